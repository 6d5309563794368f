//! The shapes that are measured: drawn as networks have them.
#![cfg_attr(not(feature = "cuda"), allow(dead_code))] // nothing is measured then

use crate::support::case::{grid, parse_shapes, Case, Layout};
use anyhow::Result;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

/// Products with more operations take too long to measure them in dozens of ways.
const MOST_FLOPS: f64 = 1.5e11;
/// And those with more bytes.
const MOST_BYTES: f64 = 1e9;

/// These shapes, in the layout of a linear layer, and `count` drawn ones.
///
/// # Errors
///
/// If `asked` is no list of shapes.
pub fn to_fit(asked: Option<&str>, count: usize, seed: u64) -> Result<Vec<Case>> {
    let asked = asked.map_or(Ok(Vec::new()), parse_shapes).map_err(anyhow::Error::msg)?;
    let layer = |[m, n, k]: [usize; 3]| Case {
        cold: true,
        ..Case::new(m, n, k, Layout::NT)
    };
    let mut cases: Vec<Case> = asked.into_iter().map(layer).collect();
    cases.extend(drawn(count, seed));
    Ok(cases)
}

/// `count` drawn shapes. Another seed draws others.
pub fn drawn(count: usize, seed: u64) -> Vec<Case> {
    let mut rng = StdRng::seed_from_u64(seed);
    std::iter::repeat_with(|| draw(&mut rng))
        .filter(|case| {
            let bytes = case
                .problem(candle_sgemm::gemm::DType::F32, Default::default(), false)
                .min_bytes();
            case.flops() <= MOST_FLOPS && bytes <= MOST_BYTES
        })
        .take(count)
        .collect()
}

/// The grid, in an order that makes the first of them a fair choice where time ends early.
pub fn shuffled_grid() -> Vec<Case> {
    let mut cases = grid();
    cases.shuffle(&mut StdRng::seed_from_u64(0));
    cases
}

/// A size between these, small ones as likely as large ones.
fn size(rng: &mut StdRng, least: f64, most: f64) -> usize {
    2f64.powf(rng.random_range(least.log2()..most.log2())).round() as usize
}

/// The same, most often a multiple of 64, as widths of layers are.
fn width(rng: &mut StdRng, most: f64) -> usize {
    let size = size(rng, 64.0, most);
    match rng.random_range(0..8) {
        0 => size,
        1 => size.next_multiple_of(8),
        _ => size.next_multiple_of(64),
    }
}

/// Rows of an input: a few, a power of two, or any number.
fn rows(rng: &mut StdRng) -> usize {
    match rng.random_range(0..4) {
        0 => rng.random_range(1..=16),
        1 | 2 => 1 << rng.random_range(4..14),
        _ => size(rng, 1.0, 8192.0),
    }
}

fn draw(rng: &mut StdRng) -> Case {
    match rng.random_range(0..20) {
        // A layer, its weights in memory.
        0..=8 => {
            let layout = *[Layout::NT, Layout::NT, Layout::NN].choose(rng).unwrap_or(&Layout::NT);
            Case {
                cold: true,
                ..Case::new(rows(rng), width(rng, 16384.0), width(rng, 16384.0), layout)
            }
        }
        // The gradient of its weights.
        9..=10 => Case::new(
            width(rng, 8192.0),
            width(rng, 8192.0),
            size(rng, 16.0, 16384.0),
            Layout::TN,
        ),
        // Attention.
        11..=13 => {
            let (batch, width) = (size(rng, 4.0, 512.0), 32 * rng.random_range(1..=4));
            let length = match rng.random_range(0..3) {
                0 => size(rng, 16.0, 1024.0),
                _ => size(rng, 16.0, 1024.0).next_multiple_of(16),
            };
            let case = match rng.random::<bool>() {
                true => Case::new(length, length, width, Layout::NT),
                false => Case::new(length, width, length, Layout::NN),
            };
            Case { batch, ..case }
        }
        // About square.
        14..=17 => {
            let around = size(rng, 64.0, 4096.0) as f64;
            let mut side = || {
                let side = size(rng, around / 2.0, around * 2.0);
                if rng.random_range(0..4) == 0 {
                    side
                } else {
                    side.next_multiple_of(16)
                }
            };
            let (m, n, k) = (side(), side(), side());
            Case::new(m, n, k, *Layout::ALL.choose(rng).unwrap_or(&Layout::NN))
        }
        // Anything.
        _ => {
            let (m, n, k) = (size(rng, 1.0, 4096.0), size(rng, 1.0, 4096.0), size(rng, 1.0, 4096.0));
            Case::new(m, n, k, *Layout::ALL.choose(rng).unwrap_or(&Layout::NN))
        }
    }
}
