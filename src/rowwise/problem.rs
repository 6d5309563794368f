//! What is asked: an operation, sizes and strides, without data.

use crate::device::VECTOR_BYTES;
use crate::gemm::operands::DType;
use std::fmt;

/// What is made of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `(x − mean) / √(variance + ε) · weight + bias`.
    LayerNorm,
    /// `x / √(mean of x² + ε) · weight`.
    RmsNorm,
    /// `e^x / Σ e^x`.
    Softmax,
    /// The place of the largest number, as `u32`: the first of equal ones. A NaN counts in the first place alone, and is the largest
    /// there.
    Argmax,
}

impl Operation {
    /// Whether it has a gradient, though no kernel of this crate does.
    pub const fn has_gradient(self) -> bool {
        !matches!(self, Operation::Argmax)
    }

    /// Elements of the result that a row of so many becomes.
    pub const fn result_width(self, width: usize) -> usize {
        match self {
            Operation::Argmax => 1,
            _ => width,
        }
    }
}

/// An operation on the rows of a tensor. The rows of the result have no gaps between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowwiseProblem {
    /// What is made of a row.
    pub operation: Operation,
    /// The type of all tensors, but for the places that an argmax finds.
    pub dtype: DType,
    /// Rows, at least 1.
    pub rows: usize,
    /// Elements of a row, at least 1. They are neighbours.
    pub width: usize,
    /// Elements between neighbouring rows of x.
    pub x_stride: usize,
    /// Bytes that the first elements of all tensors start on, a power of two.
    pub align: u32,
}

impl RowwiseProblem {
    /// This operation on the rows of a tensor of these dimensions and strides, if one stride walks them.
    pub fn new(operation: Operation, dtype: DType, dims: &[usize], strides: &[usize], align: u32) -> Option<Self> {
        let (&width, outer) = dims.split_last()?;
        let (&step, outer_strides) = strides.split_last()?;
        if width == 0 || outer.contains(&0) || (width > 1 && step != 1) {
            return None;
        }
        // The innermost dimension that is not 1 has the stride; those further out go on where it ends.
        let mut rows = 1usize;
        let mut x_stride = width;
        for (&extent, &stride) in outer.iter().zip(outer_strides).rev().filter(|(&extent, _)| extent != 1) {
            if rows == 1 {
                x_stride = stride;
            } else if Some(stride) != x_stride.checked_mul(rows) {
                return None;
            }
            rows = rows.checked_mul(extent)?;
        }
        Some(RowwiseProblem {
            operation,
            dtype,
            rows,
            width,
            x_stride,
            align,
        })
    }

    /// Whether every row, of the result too, is a whole number of vectors that start on their own size.
    pub fn has_vectors(&self) -> bool {
        let vector = VECTOR_BYTES / self.dtype.size();
        let whole = |elements: usize| elements.is_multiple_of(vector);
        whole(self.width) && whole(self.x_stride) && (self.align as usize).is_multiple_of(VECTOR_BYTES)
    }

    /// Bytes that are read and written.
    pub fn bytes(&self) -> f64 {
        let result = match self.operation {
            Operation::Argmax => size_of::<u32>(),
            _ => self.width * self.dtype.size(),
        };
        self.rows as f64 * (self.width * self.dtype.size() + result) as f64
    }
}

impl fmt::Display for RowwiseProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RowwiseProblem {
            operation,
            dtype,
            rows,
            width,
            ..
        } = self;
        let what = match operation {
            Operation::LayerNorm => "layer norm",
            Operation::RmsNorm => "RMS norm",
            Operation::Softmax => "softmax",
            Operation::Argmax => "argmax",
        };
        write!(f, "{what} of {rows} rows of {width}, {dtype}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(dims: &[usize], strides: &[usize]) -> Option<RowwiseProblem> {
        RowwiseProblem::new(Operation::Softmax, DType::F32, dims, strides, 16)
    }

    #[test]
    fn rows_are_what_one_stride_walks() {
        let of = |dims: &[usize], strides: &[usize]| problem(dims, strides).map(|p| (p.rows, p.width, p.x_stride));
        assert_eq!(of(&[2, 3, 8], &[24, 8, 1]), Some((6, 8, 8)));
        assert_eq!(of(&[8], &[1]), Some((1, 8, 8)));
        // One token of each text.
        assert_eq!(of(&[2, 1, 8], &[24, 8, 1]), Some((2, 8, 24)));
        assert_eq!(of(&[2, 3, 8], &[48, 16, 1]), Some((6, 8, 16)));
        assert_eq!(of(&[2, 3, 8], &[50, 16, 1]), None);
        assert_eq!(of(&[3, 2, 8], &[8, 24, 1]), None);
        // The same row over and over.
        assert_eq!(of(&[5, 8], &[0, 1]), Some((5, 8, 0)));
        assert_eq!(of(&[5, 8], &[1, 5]), None);
        assert_eq!(of(&[5, 1], &[7, 3]), Some((5, 1, 7)));
        assert_eq!(of(&[0, 8], &[8, 1]), None);
        assert_eq!(of(&[5, 0], &[0, 1]), None);
    }

    #[test]
    fn vectors_need_aligned_rows() {
        let has = |width, stride, align| {
            let problem = RowwiseProblem::new(Operation::RmsNorm, DType::F16, &[5, width], &[stride, 1], align);
            problem.unwrap().has_vectors()
        };
        assert!(has(16, 16, 16));
        assert!(has(16, 24, 32));
        assert!(!has(16, 20, 16));
        assert!(!has(12, 16, 16));
        assert!(!has(16, 16, 8));
    }
}
