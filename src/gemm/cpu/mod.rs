//! The product on the CPU: the `gemm` crate's engine below, this crate's layouts, batches and epilogue above.
//!
//! The engine takes any strides. A batch is spread over the threads, a matrix a thread, and so are the slices of a product
//! with a vector, for which the engine has one thread only; a large matrix is left to the engine's own threads. What is
//! computed, and when C is read, is what the kernels do.

mod checks;
mod element;
mod epilogue;
mod operands;
mod panels;
#[cfg(test)]
mod tests;
mod tiling;

pub use checks::CpuGemmError;
pub use element::{Element, Elements};
pub use half::{bf16, f16};
pub use operands::CpuOperands;

use checks::{check, reach};
use epilogue::finish_row;
use operands::element;
use tiling::Tiling;

use super::problem::GemmProblem;
use rayon::prelude::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Elements of a result from which on the epilogue of a single matrix is spread over threads.
const PARALLEL_EPILOGUE: usize = 1 << 17;

/// Computes `problem` on at most `threads` threads of rayon's current pool and writes every element of D in `d`, which
/// starts at D's element (0, 0). Elements of `d` between those of D are left alone. `k` may be 0: then A·B is 0.
///
/// `Precision` makes no difference: products of FP32 numbers are FP32 multiply-adds. Factors of 16 bits are multiplied and
/// summed as FP32 numbers, and what the epilogue makes of the sums is rounded once.
///
/// # Errors
///
/// Types that are not multiplied here, an operand that is shorter than its layout needs, or a D whose elements overlap.
pub fn gemm<T: Element>(
    problem: &GemmProblem,
    operands: &CpuOperands,
    d: &mut [MaybeUninit<T>],
    threads: usize,
) -> Result<(), CpuGemmError> {
    check::<T>(problem, operands, d.len())?;
    let (m, n) = (problem.m, problem.n);
    if m == 0 || n == 0 || problem.batch_dims.contains(&0) {
        return Ok(());
    }
    let (Elements::F32(a), Elements::F32(b)) = (operands.elements.a, operands.elements.b) else {
        // SAFETY: `check` found that all operands and D stay inside their slices and that no two elements of D share an address.
        unsafe { panels::gemm(problem, operands, d, threads) };
        return Ok(());
    };
    let tiling = Tiling::new(problem, threads);
    // Beside FP32 factors D is FP32: `check` has seen to it.
    let out = Output(d.as_mut_ptr().cast::<f32>());
    let run = |tile: usize| {
        let (batch, rows, cols) = tiling.tile(tile, m, n);
        // SAFETY: `check` found that all operands and D stay inside their slices and that no two elements of D share an
        // address; tiles are disjoint, so no other thread writes to this one.
        unsafe {
            multiply(
                problem,
                [a, b],
                out,
                batch,
                rows.clone(),
                cols.clone(),
                tiling.engine_threads,
            );
            finish(problem, operands, out, batch, rows, cols, tiling.engine_threads);
        }
    };
    if tiling.parallel {
        (0..tiling.count()).into_par_iter().for_each(run);
    } else {
        (0..tiling.count()).for_each(run);
    }
    Ok(())
}

/// [`gemm()`] of one problem for each of `operands`, whose results follow one another in the vector that is returned.
///
/// # Errors
///
/// As [`gemm()`], a D that is not dense, or results that cannot be allocated.
pub fn gemm_to_vec<'a, T: Element>(
    problem: &GemmProblem,
    operands: impl ExactSizeIterator<Item = CpuOperands<'a>>,
    threads: usize,
) -> Result<Vec<T>, CpuGemmError> {
    let matrices = problem.batch_dims.iter().fold(operands.len() as u128, |product, &dim| {
        product.saturating_mul(dim as u128)
    });
    let no_memory = || CpuGemmError::Memory {
        m: problem.m,
        n: problem.n,
        matrices,
    };
    let sizes = [problem.m, problem.n].into_iter().chain(problem.batch_dims);
    let len = match sizes.clone().any(|size| size == 0) {
        true => 0,
        false => sizes
            .clone()
            .try_fold(1usize, |product, size| product.checked_mul(size))
            .ok_or_else(no_memory)?,
    };
    if reach(problem, &problem.d, problem.m, problem.n) != Some(len as i128) {
        return Err(CpuGemmError::Result(problem.d));
    }
    let mut results = Vec::new();
    let all = len.checked_mul(operands.len()).ok_or_else(no_memory)?;
    results.try_reserve_exact(all).map_err(|_| no_memory())?;
    for operands in operands {
        gemm(problem, &operands, &mut results.spare_capacity_mut()[..len], threads)?;
        // SAFETY: D has `len` elements that share no address (`gemm` refuses those) and span `len`, so that it is all of
        // the slice, and `gemm` has written it.
        unsafe { results.set_len(results.len() + len) };
    }
    Ok(results)
}

/// The start of D, shared by threads that write disjoint tiles of it.
#[derive(Clone, Copy)]
struct Output<T>(*mut T);

impl<T> Output<T> {
    fn at(&self, elements: isize) -> *mut T {
        self.0.wrapping_offset(elements)
    }
}

// SAFETY: tiles are disjoint, see `gemm`.
unsafe impl<T: Send> Send for Output<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Output<T> {}

/// The tile's part of `D ← A·B`.
///
/// # Safety
///
/// The tile must lie inside the matrix, all operands inside their slices and D below `out`; nothing else may access the
/// tile's elements of D meanwhile.
#[allow(clippy::too_many_arguments)] // a tile of a problem, as `finish` has it
unsafe fn multiply(
    problem: &GemmProblem,
    [a_elements, b_elements]: [&[f32]; 2],
    out: Output<f32>,
    batch: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    threads: usize,
) {
    let GemmProblem { a, b, d, k, .. } = problem;
    let a_start = element(problem, a, batch, rows.start, 0);
    let b_start = element(problem, b, batch, 0, cols.start);
    gemm::gemm(
        rows.len(),
        cols.len(),
        *k,
        out.at(element(problem, d, batch, rows.start, cols.start)),
        d.col_stride as isize,
        d.row_stride as isize,
        false, // D is written, never read: it may be uninitialised
        a_elements.as_ptr().wrapping_offset(a_start),
        a.col_stride as isize,
        a.row_stride as isize,
        b_elements.as_ptr().wrapping_offset(b_start),
        b.col_stride as isize,
        b.row_stride as isize,
        0.0, // the engine's names are the other way round: its alpha is D's factor, its beta that of A·B
        1.0, // the sums are scaled, as in the kernels: the engine may scale operands, which can overflow or lose their last bits
        false,
        false,
        false,
        match threads {
            1 => gemm::Parallelism::None,
            threads => gemm::Parallelism::Rayon(threads),
        },
    );
}

/// The tile's part of `D ← activation(α·D + β·C + bias) + residual` (or `· residual`).
///
/// # Safety
///
/// As [`multiply`], and the tile's elements of D are initialised.
unsafe fn finish(
    problem: &GemmProblem,
    operands: &CpuOperands,
    out: Output<f32>,
    batch: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    threads: usize,
) {
    let reads_c = problem.epilogue.c.is_some() && operands.beta != 0.0;
    if operands.alpha == 1.0 && !reads_c && problem.epilogue.is_plain() {
        return;
    }
    let columns = cols.len();
    let finish_one = |row: usize| {
        let start = out.at(element(problem, &problem.d, batch, row, cols.start));
        // SAFETY: as the caller vouches; rows of D are apart.
        let d_row = unsafe { std::slice::from_raw_parts_mut(start, cols.len()) };
        finish_row(problem, operands, d_row, batch, row, cols.start);
    };
    if threads > 1 && rows.len() * columns >= PARALLEL_EPILOGUE {
        rows.into_par_iter()
            .with_min_len(PARALLEL_EPILOGUE / 4 / columns + 1)
            .for_each(finish_one);
    } else {
        rows.for_each(finish_one);
    }
}
