//! What is refused before anything is written.

use super::element::Element;
use super::operands::CpuOperands;
use crate::gemm::operands::{DType, ElementTypes, OperandLayout, Operands};
use crate::gemm::problem::GemmProblem;
use std::fmt;

/// Why a product was refused. Nothing was written then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuGemmError {
    /// Operands are FP32, or factors are of one type of 16 bits and all others of that or FP32. The slices have these types.
    DType(ElementTypes),
    /// An operand's layout reaches outside its slice.
    OutOfBounds {
        /// Which operand.
        operand: &'static str,
        /// Its layout.
        layout: OperandLayout,
        /// Elements in its slice.
        len: usize,
    },
    /// The problem norms rows of A or gates columns, which is left to those who call this.
    Fused,
    /// Elements of the result share an address, or those of a row are not adjacent.
    Result(OperandLayout),
    /// The results cannot be allocated.
    Memory {
        /// Rows of a result.
        m: usize,
        /// Columns of a result.
        n: usize,
        /// Results.
        matrices: u128,
    },
}

impl fmt::Display for CpuGemmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpuGemmError::DType(types) => write!(
                f,
                "the CPU path multiplies f32 matrices, or f16 or bf16 ones with all else of that type or f32, not A {}, B {}, C {}, \
                 D {}, bias {} and residual {}, and the data must be of these types",
                types.a, types.b, types.c, types.d, types.bias, types.residual
            ),
            CpuGemmError::Fused => f.write_str(
                "the CPU path takes rows as they are and columns one by one: norm rows before the product and gate columns after it",
            ),
            CpuGemmError::OutOfBounds {
                operand,
                layout,
                len,
            } => write!(
                f,
                "{operand} of row stride {}, column stride {} and batch strides {:?} reaches outside its {len} elements",
                layout.row_stride, layout.col_stride, layout.batch_strides
            ),
            CpuGemmError::Result(layout) => write!(
                f,
                "elements of the result must not overlap, and those of a row must be adjacent: row stride {}, column stride {}, batch strides {:?}",
                layout.row_stride, layout.col_stride, layout.batch_strides
            ),
            CpuGemmError::Memory { m, n, matrices } => {
                write!(f, "there is no memory for {matrices} results of {m} × {n} numbers")
            }
        }
    }
}

impl std::error::Error for CpuGemmError {}

/// Refuses what this path does not compute: norms and gates, slices of other types than the problem has or shorter than its layouts
/// reach, a D whose elements overlap or whose rows have gaps.
pub(super) fn check<T: Element>(
    problem: &GemmProblem,
    operands: &CpuOperands,
    d_len: usize,
) -> Result<(), CpuGemmError> {
    if problem.normed || problem.epilogue.gated {
        return Err(CpuGemmError::Fused);
    }
    let (types, elements) = (problem.types, &operands.elements);
    // Slices of operands that the problem lacks may be of any type.
    let given = Operands {
        a: elements.a.dtype(),
        b: elements.b.dtype(),
        c: problem.epilogue.c.map_or(types.c, |_| elements.c.dtype()),
        d: T::DTYPE,
        bias: if problem.epilogue.bias {
            elements.bias.dtype()
        } else {
            types.bias
        },
        residual: problem
            .epilogue
            .residual
            .map_or(types.residual, |_| elements.residual.dtype()),
    };
    let served = types.a != DType::F64 && types.served_by(types.a);
    let fits = |(given, asked)| given == asked;
    let unread_c = operands.beta == 0.0 && Operands { c: types.c, ..given }.zip(types).all(fits);
    if !served || !(unread_c || given.zip(types).all(fits)) {
        return Err(CpuGemmError::DType(types));
    }
    let (m, n, k) = (problem.m, problem.n, problem.k);
    let inside = |operand, layout: &OperandLayout, rows, cols, len| {
        if reach(problem, layout, rows, cols).is_some_and(|reach| reach <= len as i128) {
            Ok(())
        } else {
            Err(CpuGemmError::OutOfBounds {
                operand,
                layout: *layout,
                len,
            })
        }
    };
    inside("A", &problem.a, m, k, operands.elements.a.len())?;
    inside("B", &problem.b, k, n, operands.elements.b.len())?;
    inside("D", &problem.d, m, n, d_len)?;
    let epilogue = &problem.epilogue;
    if let Some(c) = epilogue.c.as_ref().filter(|_| operands.beta != 0.0) {
        inside("C", c, m, n, operands.elements.c.len())?;
    }
    if let Some(residual) = &epilogue.residual {
        inside("the residual", residual, m, n, operands.elements.residual.len())?;
    }
    if epilogue.bias {
        // The bias is a row that the whole batch shares.
        let bias = OperandLayout::strided(0, operands.bias_stride as i64);
        inside("the bias", &bias, 1, n, operands.elements.bias.len())?;
    }
    if overlaps(problem) || (n > 1 && problem.d.col_stride != 1) {
        return Err(CpuGemmError::Result(problem.d));
    }
    Ok(())
}

/// Steps that a rows × cols operand takes: extent and stride of each dimension.
fn steps(
    problem: &GemmProblem,
    layout: &OperandLayout,
    rows: usize,
    cols: usize,
) -> impl Iterator<Item = (usize, i64)> {
    let batch = problem.batch_dims.into_iter().zip(layout.batch_strides);
    batch.chain([(rows, layout.row_stride), (cols, layout.col_stride)])
}

/// Elements from the first one to the end of the last one; `None` where a stride is negative or the number has no place in
/// 128 bits.
pub(super) fn reach(problem: &GemmProblem, layout: &OperandLayout, rows: usize, cols: usize) -> Option<i128> {
    if steps(problem, layout, rows, cols).any(|(extent, _)| extent == 0) {
        return Some(0);
    }
    let mut steps = steps(problem, layout, rows, cols).filter(|&(extent, _)| extent > 1);
    steps.try_fold(1i128, |reach, (extent, stride)| {
        let stride = i128::from(stride);
        let last = (extent as i128 - 1).checked_mul(stride)?;
        if stride < 0 {
            return None;
        }
        reach.checked_add(last)
    })
}

/// Whether elements of D may share an address: no stride, from the shortest on, may fall within what the shorter ones
/// span.
fn overlaps(problem: &GemmProblem) -> bool {
    let mut steps: Vec<_> = steps(problem, &problem.d, problem.m, problem.n)
        .filter(|(extent, _)| *extent > 1)
        .collect();
    steps.sort_unstable_by_key(|&(_, stride)| stride);
    let mut span = 0i128;
    steps.iter().any(|&(extent, stride)| {
        let stride = i128::from(stride);
        let within = stride <= span;
        span = span.saturating_add((extent as i128 - 1).saturating_mul(stride));
        within
    })
}
