//! Counting what becomes of calls, from every thread at once and for as long as a program runs.

use super::call::{Call, PassedOn};
use super::stats::{ShapeStats, Stats, Times};
use crate::gemm::Precision;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Threads count in so many places by turns, so that they seldom wait for each other.
const PLACES: usize = 16;
/// A model has a few dozen shapes; those of a program whose sizes change with every call should not fill the memory. So many
/// are told apart in each place; the calls of others are counted together.
const MAX_SHAPES: usize = 1024;
/// Likewise for the messages of failures, which name addresses or sizes at times.
const MAX_MESSAGES: usize = 64;
/// What stands for the messages beyond.
const OTHER_MESSAGES: &str = "other messages than those that are told apart";

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(not(all(feature = "cuda", feature = "override")), allow(dead_code))] // nothing calls cuBLAS there
pub(super) enum Outcome {
    /// Computed here: the call's [`shape`](Call::shape), the precision and the kernel.
    Taken(Call, Precision, &'static str),
    /// Computed by cuBLAS.
    Left(Left),
}

/// Why a call is left to cuBLAS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(not(all(feature = "cuda", feature = "override")), allow(dead_code))] // nothing calls cuBLAS there
pub(super) enum Left {
    /// It is not ours.
    PassedOn(PassedOn),
    /// It would have been, with this message.
    Failed(String),
}

/// What some of the threads have counted. On cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Place {
    shapes: HashMap<(Call, Precision, &'static str), u64>,
    other_shapes: u64,
    passed_on: BTreeMap<PassedOn, u64>,
    failed: BTreeMap<String, u64>,
}

impl Place {
    fn record(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Taken(call, precision, kernel) => {
                let (key, full) = ((call, precision, kernel), self.shapes.len() >= MAX_SHAPES);
                match self.shapes.get_mut(&key) {
                    Some(calls) => *calls += 1,
                    None if full => self.other_shapes += 1,
                    None => drop(self.shapes.insert(key, 1)),
                }
            }
            Outcome::Left(Left::PassedOn(reason)) => *self.passed_on.entry(reason).or_default() += 1,
            Outcome::Left(Left::Failed(message)) => {
                let known = self.failed.len() < MAX_MESSAGES || self.failed.contains_key(&message);
                let message = if known { message } else { OTHER_MESSAGES.into() };
                *self.failed.entry(message).or_default() += 1;
            }
        }
    }
}

/// The times of a shape, `None` while they are being measured.
type MeasuredTimes = HashMap<(Call, Precision), Option<Times>>;

/// Everything that was counted and timed. Meant for a `static`.
pub(super) struct Counts {
    places: [Mutex<Option<Place>>; PLACES],
    times: Mutex<Option<MeasuredTimes>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where this thread counts.
fn place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
    }
    PLACE.get().unwrap_or_else(|| {
        let place = NEXT.fetch_add(1, Ordering::Relaxed) % PLACES;
        PLACE.set(Some(place));
        place
    })
}

#[cfg_attr(not(all(feature = "cuda", feature = "override")), allow(dead_code))] // nothing calls cuBLAS there
impl Counts {
    pub(super) const fn new() -> Self {
        Counts {
            places: [const { Mutex::new(None) }; PLACES],
            times: Mutex::new(None),
        }
    }

    /// Counts a call.
    pub(super) fn record(&self, outcome: Outcome) {
        lock(&self.places[place()]).get_or_insert_default().record(outcome);
    }

    /// Whether nobody has measured the times of this shape or is about to. The caller is then.
    pub(super) fn first_sight(&self, call: &Call, precision: Precision) -> bool {
        let mut times = lock(&self.times);
        let times = times.get_or_insert_default();
        let key = (call.shape(), precision);
        times.len() < MAX_SHAPES && !times.contains_key(&key) && times.insert(key, None).is_none()
    }

    /// Keeps the times of a shape.
    pub(super) fn keep_times(&self, call: &Call, precision: Precision, measured: Times) {
        let mut times = lock(&self.times);
        times
            .get_or_insert_default()
            .insert((call.shape(), precision), Some(measured));
    }

    /// All that was counted, most work first.
    pub(super) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        let mut shapes: HashMap<_, u64> = HashMap::new();
        for place in &self.places {
            let Some(place) = &*lock(place) else {
                continue;
            };
            for (shape, calls) in &place.shapes {
                *shapes.entry(*shape).or_default() += calls;
            }
            for (reason, calls) in &place.passed_on {
                *stats.passed_on.entry(*reason).or_default() += calls;
            }
            for (message, calls) in &place.failed {
                *stats.failed.entry(message.clone()).or_default() += calls;
            }
            stats.other_shapes += place.other_shapes;
        }
        let times = lock(&self.times);
        let timed = |call: Call, precision| times.as_ref()?.get(&(call, precision)).copied().flatten();
        stats.taken = stats.other_shapes + shapes.values().sum::<u64>();
        stats.shapes = shapes
            .into_iter()
            .map(|((call, precision, kernel), calls)| ShapeStats {
                call,
                precision,
                kernel,
                calls,
                times: timed(call, precision),
            })
            .collect();
        stats.shapes.sort_by(|x, y| y.work().total_cmp(&x.work()));
        stats
    }

    /// Forgets everything.
    pub(super) fn reset(&self) {
        for place in &self.places {
            *lock(place) = None;
        }
        *lock(&self.times) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::call;
    use super::*;
    use std::time::Duration;

    #[test]
    fn ever_new_shapes_and_messages_are_counted_and_do_not_fill_the_memory() {
        const CALLS: i32 = 40_000;
        let counts = Counts::new();
        for m in 1..=CALLS {
            counts.record(Outcome::Taken(call(m).shape(), Precision::Fp32, "some_kernel"));
            counts.record(Outcome::Left(Left::Failed(format!("no luck at {m}"))));
            counts.first_sight(&call(m), Precision::Fp32);
        }
        // What was there before is still told apart.
        counts.record(Outcome::Taken(call(1).shape(), Precision::Fp32, "some_kernel"));
        counts.record(Outcome::Left(Left::Failed("no luck at 1".into())));
        let stats = counts.stats();
        assert_eq!((stats.taken, stats.calls()), (CALLS as u64 + 1, 2 * CALLS as u64 + 2));
        assert!(stats.shapes.len() <= MAX_SHAPES && stats.failed.len() <= MAX_MESSAGES + 1);
        let told_apart: u64 = stats.shapes.iter().map(|shape| shape.calls).sum();
        assert_eq!(told_apart + stats.other_shapes, stats.taken);
        assert_eq!(stats.failed["no luck at 1"], 2);
        assert!(stats.failed[OTHER_MESSAGES] > 0);
        assert!(stats.shapes.iter().any(|shape| shape.call.m == 1 && shape.calls == 2));
        assert!(lock(&counts.times).as_ref().unwrap().len() <= MAX_SHAPES);
        assert!(stats.to_string().contains("other shapes"), "{}", stats.other_shapes);
        counts.reset();
        assert_eq!(counts.stats(), Stats::default());
    }

    /// Threads in other places count while this one's place is taken.
    #[test]
    fn threads_count_without_waiting_for_each_other() {
        let counts = Counts::new();
        let mut held = lock(&counts.places[place()]);
        let mine = place();
        std::thread::scope(|scope| {
            let (done, wait) = std::sync::mpsc::channel();
            for _ in 0..PLACES {
                let (done, counts) = (done.clone(), &counts);
                scope.spawn(move || {
                    if place() != mine {
                        counts.record(Outcome::Left(Left::PassedOn(PassedOn::DType)));
                        let _ = done.send(());
                    }
                });
            }
            let counted = wait.recv_timeout(Duration::from_secs(20));
            held.take();
            drop(held);
            assert!(counted.is_ok(), "every thread waits for one place");
        });
        assert!(counts.stats().passed_on[&PassedOn::DType] > 0);
    }
}
