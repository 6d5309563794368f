//! Products of 16-bit matrices: tiles of the result, for each of which the rows of A and the columns of B are converted to FP32
//! once, multiplied by the FP32 engine with sums in FP32 over all of k, and rounded after the epilogue. (The engine's own
//! products of 16-bit numbers round sums between slices of k.)

use super::element::{Element, Elements};
use super::epilogue::finish_row;
use super::operands::{element, CpuOperands};
use crate::gemm::operands::OperandLayout;
use crate::gemm::problem::GemmProblem;
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// Rows and columns of a tile. An element of a panel is converted once for some hundred multiply-adds.
const TILE_ROWS: usize = 128;
/// See [`TILE_ROWS`].
const TILE_COLS: usize = 256;
/// Multiply-adds below which waking other threads costs more than they save.
const SERIAL_WORK: usize = 1 << 20;

/// FP32 copies of lines of an operand, one after the other.
fn panel(
    elements: &Elements,
    problem: &GemmProblem,
    layout: &OperandLayout,
    batch: usize,
    [rows, cols]: [std::ops::Range<usize>; 2],
    by_columns: bool,
) -> Vec<f32> {
    let (lines, length) = match by_columns {
        true => (cols.clone(), rows.len()),
        false => (rows.clone(), cols.len()),
    };
    let mut panel = vec![0.0; lines.len() * length];
    if length > 0 {
        for (line, to) in lines.zip(panel.chunks_exact_mut(length)) {
            match by_columns {
                true => {
                    let at = element(problem, layout, batch, rows.start, line);
                    elements.copy_to(to, at, layout.row_stride);
                }
                false => {
                    let at = element(problem, layout, batch, line, cols.start);
                    elements.copy_to(to, at, layout.col_stride);
                }
            }
        }
    }
    panel
}

/// The start of D, shared by threads that write disjoint tiles of it.
struct Shared<T>(*mut MaybeUninit<T>);
// SAFETY: tiles are disjoint.
unsafe impl<T: Send> Sync for Shared<T> {}

/// Computes every element of D.
///
/// # Safety
///
/// All operands and D must stay inside their slices, and no two elements of D may share an address.
pub(super) unsafe fn gemm<T: Element>(
    problem: &GemmProblem,
    operands: &CpuOperands,
    d: &mut [MaybeUninit<T>],
    threads: usize,
) {
    let GemmProblem { m, n, k, .. } = *problem;
    let (row_tiles, col_tiles) = (m.div_ceil(TILE_ROWS), n.div_ceil(TILE_COLS));
    let out = Shared(d.as_mut_ptr());
    let out = &out;
    let tile = |index: usize| {
        let (batch, tile) = (index / (row_tiles * col_tiles), index % (row_tiles * col_tiles));
        let start = |tile: usize, size: usize| tile * size;
        let (row, col) = (start(tile / col_tiles, TILE_ROWS), start(tile % col_tiles, TILE_COLS));
        let (rows, cols) = (row..m.min(row + TILE_ROWS), col..n.min(col + TILE_COLS));
        // Lines are those that are adjacent in memory, where there are any.
        let (a_by_columns, b_by_columns) = (problem.a.row_stride == 1, problem.b.row_stride == 1);
        let elements = &operands.elements;
        let a = panel(
            &elements.a,
            problem,
            &problem.a,
            batch,
            [rows.clone(), 0..k],
            a_by_columns,
        );
        let b = panel(
            &elements.b,
            problem,
            &problem.b,
            batch,
            [0..k, cols.clone()],
            b_by_columns,
        );
        let strides = |by_columns: bool, [rows, cols]: [usize; 2]| match by_columns {
            true => (1, rows as isize),
            false => (cols as isize, 1),
        };
        let (a_row, a_col) = strides(a_by_columns, [rows.len(), k]);
        let (b_row, b_col) = strides(b_by_columns, [k, cols.len()]);
        let mut sums = vec![0f32; rows.len() * cols.len()];
        // SAFETY: the panels and the sums are dense matrices of these sizes.
        unsafe {
            gemm::gemm(
                rows.len(),
                cols.len(),
                k,
                sums.as_mut_ptr(),
                1,
                cols.len() as isize,
                false, // the sums are written, never read
                a.as_ptr(),
                a_col,
                a_row,
                b.as_ptr(),
                b_col,
                b_row,
                0.0, // the engine's alpha is the result's factor, its beta that of A·B
                1.0, // the epilogue scales the sums
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
        for (row, sums) in rows.zip(sums.chunks_exact_mut(cols.len())) {
            finish_row(problem, operands, sums, batch, row, cols.start);
            let at = element(problem, &problem.d, batch, row, cols.start);
            for (j, &sum) in sums.iter().enumerate() {
                // SAFETY: D stays inside its slice, its columns are adjacent, and no other tile has this element.
                unsafe { out.0.offset(at + j as isize).write(MaybeUninit::new(T::round(sum))) };
            }
        }
    };
    let tiles = problem.batch() * row_tiles * col_tiles;
    let work = [m, n, k]
        .iter()
        .fold(problem.batch(), |work, &size| work.saturating_mul(size));
    match threads > 1 && work >= SERIAL_WORK {
        true => (0..tiles).into_par_iter().for_each(tile),
        false => (0..tiles).for_each(tile),
    }
}
