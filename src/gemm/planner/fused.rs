//! Whether a norm and gates belong inside a product.

use super::plan::Plan;
use crate::gemm::problem::GemmProblem;

/// What a norm of a row or two takes as a kernel of its own, with the gap before it, in µs: 1.6 and more on an H200.
const NORM_US: f64 = 1.7;

/// Gate and up.
const PAIR: usize = 2;

impl GemmProblem {
    /// Without norm and gates: a product, and how many of its kind the problem takes. Those of gate and up read every other line of B.
    pub(super) fn in_steps(&self) -> (GemmProblem, usize) {
        let mut step = *self;
        step.normed = false;
        if !self.epilogue.gated {
            return (step, 1);
        }
        step.epilogue.gated = false;
        step.n = self.result_columns();
        step.b.col_stride = self.b.col_stride.saturating_mul(PAIR as i64);
        (step, PAIR)
    }
}

impl Plan {
    /// Whether the plan is expected to take no longer than a norm and so many products of this other plan.
    pub(super) fn pays(&self, step: &Plan, steps: usize) -> bool {
        let norm_us = if self.problem.normed { NORM_US } else { 0.0 };
        self.by_name || self.predicted_us <= steps as f64 * step.predicted_us + norm_us
    }
}
