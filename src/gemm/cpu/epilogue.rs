//! What is done to sums before they are rounded.

use super::operands::{element, CpuOperands};
use crate::gemm::problem::{Activation, Combine, GemmProblem};

/// `row ← activation(α·row + β·C + bias) + residual` (or `· residual`) for the columns of this row of D from `col` on.
pub(super) fn finish_row(
    problem: &GemmProblem,
    operands: &CpuOperands,
    d_row: &mut [f32],
    batch: usize,
    row: usize,
    col: usize,
) {
    let (epilogue, elements) = (&problem.epilogue, &operands.elements);
    if operands.alpha != 1.0 {
        d_row.iter_mut().for_each(|x| *x *= operands.alpha);
    }
    if let Some(layout) = epilogue.c.as_ref().filter(|_| operands.beta != 0.0) {
        let at = element(problem, layout, batch, row, col);
        elements.c.add_to(d_row, operands.beta, at, layout.col_stride);
    }
    if epilogue.bias {
        let at = (col * operands.bias_stride) as isize;
        elements.bias.add_to(d_row, 1.0, at, operands.bias_stride as i64);
    }
    activate(epilogue.activation, d_row);
    if let Some(layout) = &epilogue.residual {
        let at = element(problem, layout, batch, row, col);
        match epilogue.combine {
            Combine::Add => elements.residual.add_to(d_row, 1.0, at, layout.col_stride),
            Combine::Multiply => elements.residual.multiply_with(d_row, at, layout.col_stride),
        }
    }
}

fn activate(activation: Activation, row: &mut [f32]) {
    let apply = |row: &mut [f32], f: fn(f32) -> f32| row.iter_mut().for_each(|x| *x = f(*x));
    match activation {
        Activation::Identity => {}
        Activation::Relu => row.iter_mut().for_each(|x| *x = x.max(0.0)),
        Activation::GeluTanh => apply(row, |x| {
            const SQRT_TWO_OVER_PI: f32 = 0.797_884_6;
            0.5 * x * (1.0 + (SQRT_TWO_OVER_PI * x * (1.0 + 0.044715 * x * x)).tanh())
        }),
        Activation::GeluErf => apply(row, |x| 0.5 * x * libm::erfcf(-x * std::f32::consts::FRAC_1_SQRT_2)),
        // e^(−|x|), which does not overflow: far below 0 the result is less than FP32's least number only where it has to be.
        Activation::Silu => apply(row, |x| {
            let e = (-x.abs()).exp();
            x * if x < 0.0 { e } else { 1.0 } / (1.0 + e)
        }),
        Activation::Tanh => apply(row, f32::tanh),
        Activation::Sigmoid => apply(row, |x| 1.0 / (1.0 + (-x).exp())),
    }
}
