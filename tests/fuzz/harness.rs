//! Draws cases until the time is up, keeps those that fail, makes them smaller, and reports them.

use crate::draw::one_of;
use crate::layer::Layer;
use crate::mistake::Mistake;
use crate::movement::Move;
use crate::product::Product;
use crate::special::Special;
use candle_core::{Device, Result};
use rand::rngs::StdRng;
use rand::SeedableRng;
use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

/// How long each device is tested.
const SECONDS_VARIABLE: &str = "CANDLE_SGEMM_TEST_SECONDS";
/// The seed of the first case. Without the other variable it is the only one.
const SEED_VARIABLE: &str = "CANDLE_SGEMM_TEST_SEED";
const DEFAULT_SECONDS: f64 = 6.0;

/// Failing cases that are looked for before the test gives up.
const MOST_FAILURES: usize = 8;
/// Smaller cases that are tried for each failing one, and how long.
const MOST_SHRINKS: usize = 300;
const SHRINK_TIME: Duration = Duration::from_secs(5);

/// What a check found: nothing, or what is wrong. Errors of the reference itself are errors of candle's.
pub type Verdict = Result<std::result::Result<(), String>>;

/// One thing to try, as plain data, from which numbers are drawn again at every check.
pub trait Case: Sized + Debug {
    fn check(&self, device: &Device) -> Verdict;
    /// Similar cases with less to them, the smallest first.
    fn smaller(&self) -> Vec<Self>;
    /// Multiply-adds or elements: failures are reported in this order.
    fn size(&self) -> usize;
}

#[derive(Debug)]
pub enum Any {
    Product(Box<Product>),
    Layer(Box<Layer>),
    Move(Move),
    Special(Box<Special>),
    Mistake(Mistake),
}

impl Any {
    /// The case of this seed. `on_gpu` draws kernels by name more often, which a CPU can only refuse.
    pub fn draw(seed: u64, on_gpu: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        match one_of(&mut rng, &[0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4]) {
            0 => Any::Product(Box::new(Product::draw(&mut rng, on_gpu))),
            1 => Any::Layer(Box::new(Layer::draw(&mut rng, on_gpu))),
            2 => Any::Move(Move::draw(&mut rng, on_gpu)),
            3 => Any::Special(Box::new(Special::draw(&mut rng))),
            _ => Any::Mistake(Mistake::draw(&mut rng)),
        }
    }
}

impl Case for Any {
    fn check(&self, device: &Device) -> Verdict {
        match self {
            Any::Product(case) => case.check(device),
            Any::Layer(case) => case.check(device),
            Any::Move(case) => case.check(device),
            Any::Special(case) => case.check(device),
            Any::Mistake(case) => case.check(device),
        }
    }

    fn smaller(&self) -> Vec<Self> {
        fn wrap<T: Case>(case: &T, any: impl Fn(T) -> Any) -> Vec<Any> {
            case.smaller().into_iter().map(any).collect()
        }
        match self {
            Any::Product(case) => wrap(&**case, |case| Any::Product(Box::new(case))),
            Any::Layer(case) => wrap(&**case, |case| Any::Layer(Box::new(case))),
            Any::Move(case) => wrap(case, Any::Move),
            Any::Special(case) => wrap(&**case, |case| Any::Special(Box::new(case))),
            Any::Mistake(case) => wrap(case, Any::Mistake),
        }
    }

    fn size(&self) -> usize {
        match self {
            Any::Product(case) => case.size(),
            Any::Layer(case) => case.size(),
            Any::Move(case) => case.size(),
            Any::Special(case) => case.size(),
            Any::Mistake(case) => case.size(),
        }
    }
}

/// The multi-index of element `i` of a tensor of these dimensions.
pub fn index_of(mut i: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (at, &dim) in index.iter_mut().zip(dims).rev() {
        *at = i % dim;
        i /= dim;
    }
    index
}

/// What is wrong with a case, a panic and an unexpected error included.
fn complaint(case: &Any, device: &Device) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| case.check(device))) {
        Ok(Ok(Ok(()))) => None,
        Ok(Ok(Err(complaint))) => Some(complaint),
        Ok(Err(error)) => Some(format!("an error where there should be a result: {error}")),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Some(format!("a panic: {}", text.unwrap_or("without a text")))
        }
    }
}

/// The smallest case that still fails, as far as a little time finds one, and what is wrong with it.
fn shrunk(mut case: Any, mut why: String, device: &Device) -> (Any, String) {
    let start = Instant::now();
    let mut tries = 0;
    'smaller: loop {
        for candidate in case.smaller() {
            if tries == MOST_SHRINKS || start.elapsed() > SHRINK_TIME {
                return (case, why);
            }
            tries += 1;
            if let Some(complaint) = complaint(&candidate, device) {
                (case, why) = (candidate, complaint);
                continue 'smaller;
            }
        }
        return (case, why);
    }
}

struct Failure {
    seed: u64,
    case: Any,
    smallest: Any,
    why: String,
}

/// An environment variable as a number.
fn number<T: std::str::FromStr>(variable: &str) -> Result<Option<T>> {
    match std::env::var(variable) {
        Err(_) => Ok(None),
        Ok(text) => match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => candle_core::bail!("{variable} is '{text}', which is no number of the kind that is needed"),
        },
    }
}

/// Tries cases until the time is up or enough have failed.
///
/// # Panics
///
/// With every failing case, the smallest first, if there is one.
pub fn run(device: &Device) -> Result<()> {
    let seconds: Option<f64> = number(SECONDS_VARIABLE)?;
    let seed: Option<u64> = number(SEED_VARIABLE)?;
    // Six digits are enough to be different from run to run, and easy to copy.
    let first = seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()) % 1_000_000);
    let time = match (seed, seconds) {
        (Some(_), None) => Duration::ZERO,
        (_, seconds) => {
            Duration::try_from_secs_f64(seconds.unwrap_or(DEFAULT_SECONDS)).map_err(candle_core::Error::wrap)?
        }
    };
    let name = if device.is_cuda() { "GPU" } else { "CPU" };
    println!(
        "{name}: cases from {SEED_VARIABLE}={first}, for {} s",
        time.as_secs_f64()
    );

    let start = Instant::now();
    let mut failures: Vec<Failure> = Vec::new();
    let mut next = first;
    loop {
        let case = Any::draw(next, device.is_cuda());
        if let Some(why) = complaint(&case, device) {
            let (smallest, why) = shrunk(Any::draw(next, device.is_cuda()), why, device);
            eprintln!("{SEED_VARIABLE}={next} fails: {why}");
            failures.push(Failure {
                seed: next,
                case,
                smallest,
                why,
            });
        }
        next = next.wrapping_add(1);
        if start.elapsed() >= time || failures.len() == MOST_FAILURES {
            break;
        }
    }
    println!(
        "{name}: {} cases in {:.1} s",
        next.wrapping_sub(first),
        start.elapsed().as_secs_f64()
    );
    if failures.is_empty() {
        return Ok(());
    }
    failures.sort_by_key(|failure| failure.smallest.size());
    let mut report = format!(
        "{} of {} cases fail on the {name}; each can be had again by its seed\n",
        failures.len(),
        next.wrapping_sub(first)
    );
    for Failure {
        seed,
        case,
        smallest,
        why,
    } in &failures
    {
        report += &format!("\n{SEED_VARIABLE}={seed}\n  {why}\n  smallest: {smallest:?}\n  as drawn: {case:?}\n");
    }
    panic!("{report}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::SMALL;
    use std::collections::HashMap;

    /// Every dimension of 1 to 9, as the rows and as the columns of either operand, adjacent in memory or not, at every
    /// alignment of its lines, beside a long side: none of these may be rare, for it was one of them that no other test met.
    #[test]
    fn every_small_side_of_every_operand_is_drawn_beside_long_ones() {
        const CASES: u64 = 400_000;
        const LONG: usize = 16;
        const LEAST: usize = 10;
        let mut met: HashMap<(usize, usize, usize, bool, usize, usize), usize> = HashMap::new();
        for seed in 0..CASES {
            let views = match &Any::draw(seed, true) {
                Any::Product(case) => case.views().map(Clone::clone),
                Any::Layer(case) => case.views().map(Clone::clone),
                _ => continue,
            };
            for (operand, view) in views.iter().enumerate() {
                for side in 0..2 {
                    if view.dim(side) <= SMALL && view.dim(1 - side) > LONG {
                        let adjacent = view.adjacent() == Some(side);
                        let size = view.dtype().size_in_bytes();
                        let place = (size, operand, side, adjacent, view.dim(side), view.line_alignment());
                        *met.entry(place).or_default() += 1;
                    }
                }
            }
        }
        // FP32 and 16 bits, as the first and as the second operand, rows and columns.
        let sides = (0..8).map(|i| ([2, 4][i / 4], i / 2 % 2, i % 2));
        for (size, operand, side) in sides {
            for adjacent in [false, true] {
                // One element has no neighbour.
                for extent in 1 + usize::from(adjacent)..=SMALL {
                    for align in [2, 4, 8, 16].into_iter().filter(|&align| align >= size) {
                        let place = (size, operand, side, adjacent, extent, align);
                        let times = met.get(&place).copied().unwrap_or(0);
                        assert!(
                            times >= LEAST,
                            "(size, operand, side, adjacent, extent, align) = {place:?}: {times} times"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_case_again() {
        for seed in 0..200 {
            let case = || format!("{:?}", Any::draw(seed, true));
            assert_eq!(case(), case());
        }
    }

    #[test]
    fn smaller_cases_are_right_too_and_come_to_an_end() {
        for seed in 0..60 {
            let mut case = Any::draw(seed, false);
            if case.size() > 10_000 {
                continue;
            }
            // Down to the last: the greediest way through.
            for _ in 0..200 {
                let Some(next) = case.smaller().into_iter().next() else {
                    break;
                };
                case = next;
                let complaint = complaint(&case, &Device::Cpu);
                assert_eq!(complaint, None, "from seed {seed}: {case:?}");
            }
        }
    }
}
