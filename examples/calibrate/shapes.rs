//! The shapes that are measured: drawn as models have them, by the sampler of `ladder --random`.
#![cfg_attr(not(feature = "cuda"), allow(dead_code))] // nothing is measured then

use crate::support::case::{grid, parse_shapes, Case, Layout};
use crate::support::sampler::{Class, Drawn, Sampler};
use anyhow::Result;
use candle_sgemm::gemm::{DType, FoldedProblem, Precision};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::SeedableRng;

/// Products with more operations take too long to measure them in dozens of ways.
const MOST_FLOPS: f64 = 1.5e11;
/// And those whose operands, or whose result, take more bytes.
pub const MOST_BYTES: usize = 1 << 30;

/// A product to be measured.
#[derive(Clone, Debug)]
pub struct Subject {
    /// As the planner sees it, at the precision that allows every kernel.
    pub problem: FoldedProblem,
    /// Where A and B start in their storages, in elements.
    pub offsets: [usize; 2],
    /// Elements of the storages.
    pub spans: [usize; 2],
    /// Whether B is kept out of the L2.
    pub cold: bool,
    /// What it is called on the progress bar.
    pub name: String,
}

impl Subject {
    /// # Errors
    ///
    /// If the case is no product.
    pub fn of_case(case: &Case, dtype: DType) -> Result<Self> {
        let problem = case.problem(dtype, Precision::Tf32, false);
        Ok(Subject {
            problem: problem.folded().map_err(anyhow::Error::msg)?,
            offsets: [0; 2],
            spans: [case.batch * case.m * case.k, case.batch * case.k * case.n],
            cold: case.cold,
            name: case.to_string(),
        })
    }

    /// # Errors
    ///
    /// If what was drawn is no product.
    pub fn of_drawn(drawn: &Drawn) -> Result<Self> {
        Ok(Subject {
            problem: drawn.problem(Precision::Tf32).folded().map_err(anyhow::Error::msg)?,
            offsets: [drawn.a.offset, drawn.b.offset],
            spans: [drawn.a.span, drawn.b.span],
            cold: drawn.cold,
            name: drawn.to_string(),
        })
    }
}

/// These shapes in this layout, and `count` drawn ones.
///
/// # Errors
///
/// If `asked` is no list of shapes.
pub fn to_fit(
    asked: Option<&str>,
    layout: Layout,
    count: usize,
    seed: u64,
    classes: &[Class],
    dtype: DType,
) -> Result<Vec<Subject>> {
    let asked = asked.map_or(Ok(Vec::new()), parse_shapes).map_err(anyhow::Error::msg)?;
    let case = |[batch, m, n, k]: [usize; 4]| Case {
        cold: batch == 1,
        ..Case::new(m, n, k, layout).times(batch)
    };
    let mut subjects = Vec::new();
    for shape in asked {
        subjects.push(Subject::of_case(&case(shape), dtype)?);
    }
    subjects.extend(drawn(count, seed, classes, dtype)?);
    Ok(subjects)
}

/// `count` drawn shapes, each of these classes (all where there are none) as often as any other. Another seed draws others.
///
/// # Errors
///
/// As [`Subject::of_drawn`].
pub fn drawn(count: usize, seed: u64, classes: &[Class], dtype: DType) -> Result<Vec<Subject>> {
    let fits = |drawn: &Drawn| {
        let elements = [drawn.a.span + drawn.b.span, drawn.elements()];
        drawn.flops() <= MOST_FLOPS && elements.iter().all(|elements| elements * dtype.size() <= MOST_BYTES)
    };
    let subjects = Sampler::new(seed, classes).with_dtype(dtype).filter(fits).take(count);
    subjects.map(|drawn| Subject::of_drawn(&drawn)).collect()
}

/// The grid, in an order that makes the first of them a fair choice where time ends early.
///
/// # Errors
///
/// As [`Subject::of_case`].
pub fn shuffled_grid(dtype: DType) -> Result<Vec<Subject>> {
    let mut cases = grid();
    cases.shuffle(&mut StdRng::seed_from_u64(0));
    cases.iter().map(|case| Subject::of_case(case, dtype)).collect()
}
