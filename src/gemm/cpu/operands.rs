//! The data of a product on the CPU, and where its elements are.

use super::element::Elements;
use crate::gemm::operands::{OperandLayout, Operands};
use crate::gemm::problem::GemmProblem;

/// The data of a product.
#[derive(Clone, Copy, Debug)]
pub struct CpuOperands<'a> {
    /// Elements from an operand's element (0, 0) of the first matrix on, as the problem lays them out; D has none. C is not read
    /// where the epilogue has none or β is 0, nor are bias and residual where it has none.
    pub elements: Operands<Elements<'a>>,
    /// Elements between neighbours of the bias.
    pub bias_stride: usize,
    /// The factor of A·B; here it is a value, wherever the problem has it.
    pub alpha: f32,
    /// The factor of C.
    pub beta: f32,
}

impl<'a> CpuOperands<'a> {
    /// `A·B` alone.
    pub fn new(a: impl Into<Elements<'a>>, b: impl Into<Elements<'a>>) -> Self {
        CpuOperands {
            elements: Operands {
                a: a.into(),
                b: b.into(),
                ..Operands::default()
            },
            bias_stride: 1,
            alpha: 1.0,
            beta: 0.0,
        }
    }

    /// The same with this C.
    pub fn with_c(mut self, c: impl Into<Elements<'a>>) -> Self {
        self.elements.c = c.into();
        self
    }

    /// The same with this bias.
    pub fn with_bias(mut self, bias: impl Into<Elements<'a>>) -> Self {
        self.elements.bias = bias.into();
        self
    }

    /// The same with this residual.
    pub fn with_residual(mut self, residual: impl Into<Elements<'a>>) -> Self {
        self.elements.residual = residual.into();
        self
    }
}

/// Offset of the first element of matrix `batch` (row-major over the batch dimensions).
fn batch_offset(problem: &GemmProblem, layout: &OperandLayout, mut batch: usize) -> isize {
    let mut offset = 0;
    for (&extent, &stride) in problem.batch_dims.iter().zip(&layout.batch_strides).rev() {
        offset += (batch % extent) as isize * stride as isize;
        batch /= extent;
    }
    offset
}

/// Offset of element (row, col) of matrix `batch`.
pub(super) fn element(problem: &GemmProblem, layout: &OperandLayout, batch: usize, row: usize, col: usize) -> isize {
    batch_offset(problem, layout, batch)
        + row as isize * layout.row_stride as isize
        + col as isize * layout.col_stride as isize
}
