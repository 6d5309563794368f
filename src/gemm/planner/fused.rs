//! Whether a norm and gates belong inside a product.

use super::plan::Plan;
use crate::gemm::kernel::spec::Grid;
use crate::gemm::problem::GemmProblem;

/// What a norm of a row or two takes as a kernel of its own, with the gap before it, in µs: 1.6 and more on an H200.
const NORM_US: f64 = 1.7;

/// What a norm inside a product takes, in µs: on an H200, queries, keys and values of a row take so much longer with it, and the 32000 outputs of
/// a head in BF16 hardly more.
const NORM_INSIDE_US: f64 = 0.7;

/// And, where blocks begin and end with a few outputs and each has the norm to itself, by this part of the product's time: the head takes
/// 68.6 µs in FP32 there, 64.2 without the norm.
const NORM_INSIDE_PART: f64 = 0.055;

/// Gate and up.
const PAIR: usize = 2;

impl GemmProblem {
    /// Without what is inside: products that do the rest, and how many of each kind that takes. The norm, or else both, are kernels of
    /// their own then. Gate and up as two products read every other line of B.
    pub(super) fn in_steps(&self) -> impl Iterator<Item = (GemmProblem, usize)> {
        let gated = self.epilogue.gated;
        let mut bare = *self;
        bare.normed = false;
        let mut step = bare;
        if gated {
            step.epilogue.gated = false;
            step.n = self.result_columns();
            step.b.col_stride = self.b.col_stride.saturating_mul(PAIR as i64);
        }
        let gate_inside = (self.normed && gated).then_some((bare, 1));
        gate_inside.into_iter().chain([(step, if gated { PAIR } else { 1 })])
    }
}

impl Plan {
    /// Whether the plan is expected to take no longer than a norm and so many products of this other plan.
    pub(super) fn pays(&self, step: &Plan, steps: usize) -> bool {
        let blocks_stay = self.kernel.grid == Grid::Persistent;
        let (inside_us, norm_us) = match self.problem.normed {
            true if blocks_stay => (NORM_INSIDE_US, NORM_US),
            true => (NORM_INSIDE_US + NORM_INSIDE_PART * self.predicted_us, NORM_US),
            false => (0.0, 0.0),
        };
        self.by_name || self.predicted_us + inside_us <= steps as f64 * step.predicted_us + norm_us
    }
}
