//! How sizes and values are drawn.

use candle_core::DType;
use candle_sgemm::gemm::TABLE;
use rand::rngs::{SmallRng, StdRng};
use rand::Rng;
use std::fmt;
use std::sync::OnceLock;

/// Sides up to this are drawn more often than any others: that is where a dimension falls away, becomes one vector or half of
/// one, or does not fill it.
pub const SMALL: usize = 9;
/// No side is longer.
const LONGEST: usize = 1 << 17;
/// Sides that nothing divides.
const PRIMES: [usize; 18] = [
    11, 13, 17, 19, 23, 29, 31, 37, 61, 67, 127, 131, 257, 509, 521, 1021, 2053, 4099,
];

/// Multiply-adds of most products, and of a few.
const WORK: f64 = 1e6;
const MUCH_WORK: f64 = 5e7;
/// Of so many products one is large.
const LARGE_ONE_IN: u32 = 60;
/// No operand or result has more elements.
pub const MOST_ELEMENTS: usize = 1 << 20;

/// Sides of the kernels' tiles, as the table has them.
fn tile_sides() -> &'static [usize] {
    static SIDES: OnceLock<Vec<usize>> = OnceLock::new();
    SIDES.get_or_init(|| {
        let tiles = TABLE.iter().map(|spec| spec.tile);
        let sides: std::collections::BTreeSet<usize> = tiles
            .flat_map(|tile| [tile.bm, tile.bn, tile.bk])
            .map(|side| side as usize)
            .filter(|&side| side > SMALL)
            .collect();
        sides.into_iter().collect()
    })
}

/// One of these.
pub fn one_of<T: Copy>(rng: &mut StdRng, choices: &[T]) -> T {
    choices[rng.random_range(0..choices.len())]
}

/// True once in so many draws.
pub fn one_in(rng: &mut StdRng, times: u32) -> bool {
    rng.random_ratio(1, times)
}

/// Evenly over orders of magnitude.
fn log_uniform(rng: &mut StdRng, from: f64, to: f64) -> f64 {
    rng.random_range(from.ln()..=to.max(from).ln()).exp()
}

/// A side of a matrix, up to `most`: small ones half of the time, else around a tile's side, a prime, or anything.
pub fn side(rng: &mut StdRng, most: usize) -> usize {
    let most = most.clamp(1, LONGEST);
    let side = match rng.random_range(0..20) {
        0..10 => rng.random_range(1..=SMALL),
        10..13 => {
            let tiles = one_of(rng, tile_sides()) * rng.random_range(1..=2);
            (tiles + rng.random_range(0..3)).saturating_sub(1)
        }
        13..15 => one_of(rng, &PRIMES),
        _ => log_uniform(rng, SMALL as f64, most as f64) as usize,
    };
    match side <= most {
        true => side,
        false => rng.random_range(1..=most),
    }
}

/// So many multiply-adds may a product take.
fn work(rng: &mut StdRng) -> f64 {
    let most = if one_in(rng, LARGE_ONE_IN) { MUCH_WORK } else { WORK };
    log_uniform(rng, 1e3, most)
}

/// m, n and k of a product of `batch` matrices. Each is the first to be drawn, and so perhaps the longest, equally often.
pub fn sizes(rng: &mut StdRng, batch: usize) -> [usize; 3] {
    let work = (work(rng) / batch as f64).max(1.0);
    loop {
        let mut sizes = [1; 3];
        let first = rng.random_range(0..3);
        let mut rest = work;
        for i in [first, (first + 1) % 3, (first + 2) % 3] {
            sizes[i] = side(rng, rest as usize);
            rest /= sizes[i] as f64;
        }
        let [m, n, k] = sizes;
        if [m * k, k * n, m * n]
            .iter()
            .all(|elements| elements * batch <= MOST_ELEMENTS)
        {
            return sizes;
        }
    }
}

/// Extents of batch dimensions: mostly none or one, up to five.
pub fn batch(rng: &mut StdRng) -> Vec<usize> {
    let rank = one_of(rng, &[0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 5]);
    let most = [0, 9, 5, 3, 3, 2][rank];
    (0..rank).map(|_| rng.random_range(1..=most)).collect()
}

/// `dims` as an operand may have them that is broadcast to them: leading dimensions may be missing, others be 1. The last
/// `kept` stay.
pub fn broadcastable(rng: &mut StdRng, dims: &[usize], kept: usize) -> Vec<usize> {
    let free = dims.len() - kept;
    let missing = if one_in(rng, 3) { rng.random_range(0..=free) } else { 0 };
    let shrunk = |(i, &dim): (usize, &usize)| match i + missing < free && one_in(rng, 4) {
        true => 1,
        false => dim,
    };
    dims[missing..].iter().enumerate().map(shrunk).collect()
}

/// The type of a product's factors.
pub fn factors(rng: &mut StdRng) -> DType {
    one_of(rng, &[DType::F32, DType::F32, DType::F16, DType::BF16])
}

/// The type of what stands beside factors of this type: theirs, or FP32.
pub fn beside(rng: &mut StdRng, factors: DType) -> DType {
    one_of(rng, &[factors, DType::F32])
}

/// The type that is asked for of the result of such factors, if any is.
pub fn result(rng: &mut StdRng, factors: DType) -> Option<DType> {
    one_of(rng, &[None, None, Some(factors), Some(DType::F32)])
}

/// What numbers a case is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// Small whole numbers, whose sums are exact at every precision: any difference is an error.
    Whole,
    /// From -1 to 1, a little off the middle.
    Uniform,
    /// The same, each scaled by a power of two from 2^-12 to 2^12; FP16 numbers to 2^4, for not every sum should overflow.
    Scaled,
}

impl Values {
    pub fn draw(rng: &mut StdRng) -> Self {
        one_of(rng, &[Values::Whole, Values::Whole, Values::Uniform, Values::Scaled])
    }

    /// One number for a tensor of this type, which may have to be rounded to it.
    pub fn number(self, dtype: DType, rng: &mut SmallRng) -> f32 {
        const MAGNITUDE: i32 = 3;
        const BINADES: i32 = 12;
        const MOST_OF_F16: i32 = 4;
        let most = if dtype == DType::F16 { MOST_OF_F16 } else { BINADES };
        let uniform = |rng: &mut SmallRng| rng.random_range(-1f32..1f32) + 0.1;
        match self {
            Values::Whole => rng.random_range(-MAGNITUDE..=MAGNITUDE) as f32,
            Values::Uniform => uniform(rng),
            Values::Scaled => uniform(rng) * f32::powi(2.0, rng.random_range(-BINADES..=most)),
        }
    }

    /// A factor such as α: a whole number where sums are to stay exact.
    pub fn factor(self, rng: &mut StdRng) -> f32 {
        match self {
            Values::Whole => one_of(rng, &[1.0, 1.0, -1.0, 2.0, -3.0, 0.0]),
            _ => one_of(rng, &[1.0, -1.0, 0.5, 0.75, -1.625, 0.0]),
        }
    }
}

/// A seed, printed so that it can be copied.
#[derive(Clone, Copy, PartialEq)]
pub struct Seed(pub u64);

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
