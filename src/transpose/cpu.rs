//! Permutations on the CPU: blocked for the cache and spread over threads.
//!
//! The destination is cut into contiguous pieces, one task each, so that threads never share a cache line that they
//! write. A transposition goes through a small square on the stack: rows of the source are read whole, cache line by
//! cache line, and rows of the destination are written whole, so that neither depends on lines staying in a cache that
//! power-of-two strides map to a single set.

use super::problem::{Axis, Matrices, Movement, TransposeProblem};
use crate::error::{Error, Result};
use rayon::prelude::*;

/// Side of the square: for elements of 4 bytes, two cache lines a row and 4 KiB in all.
const SIDE: usize = 32;

/// Elements of the destination that make a task worth a thread.
const TASK_ELEMENTS: usize = 1 << 15;

/// Writes the permuted elements of `src`, whose first element is the view's first, to `dst`, which they fill.
///
/// # Errors
///
/// [`Error::Problem`] if `dst` has another length than the problem, or `src` does not hold every element that the problem
/// reaches.
pub fn permute<T: Copy + Default + Send + Sync>(problem: &TransposeProblem, src: &[T], dst: &mut [T]) -> Result<()> {
    let elements = problem.elements();
    if dst.len() != elements {
        return Err(Error::Problem(format!(
            "the destination of {problem} has {} elements",
            dst.len()
        )));
    }
    if elements == 0 {
        return Ok(());
    }
    let last: Option<i64> = problem.axes.iter().try_fold(0i64, |sum, axis| {
        axis.src.checked_mul(axis.extent as i64 - 1)?.checked_add(sum)
    });
    let inside = last.is_some_and(|last| (last as u64) < src.len() as u64);
    if !inside || problem.axes.iter().any(|axis| axis.src < 0) {
        return Err(Error::Problem(format!(
            "{problem} reaches beyond the {} elements of its source",
            src.len()
        )));
    }
    match problem.movement() {
        Movement::Nothing => {}
        Movement::Copy { elements } => dst
            .par_chunks_mut(TASK_ELEMENTS)
            .zip(src[..elements].par_chunks(TASK_ELEMENTS))
            .for_each(|(dst, src)| dst.copy_from_slice(src)),
        Movement::Rows(rows) => copy_rows(problem, &rows, src, dst),
        Movement::Matrix(matrices) => transpose(problem, &matrices, src, dst),
    }
    Ok(())
}

/// Where index `index` of a row-major walk over `axes` lies in the source.
fn source_offset(axes: &[Axis], mut index: usize) -> usize {
    let mut offset = 0;
    for axis in axes.iter().rev() {
        offset += index % axis.extent * axis.src as usize;
        index /= axis.extent;
    }
    offset
}

/// Rows of the destination come from rows of the source, or from elements with a stride.
fn copy_rows<T: Copy + Send + Sync>(problem: &TransposeProblem, rows: &Matrices, src: &[T], dst: &mut [T]) {
    let outer = &problem.axes[..problem.axes.len() - 1];
    // Long rows are cut, short ones taken together.
    let piece = rows.cols.min(TASK_ELEMENTS);
    let (pieces, stride) = (rows.cols.div_ceil(piece), rows.src_col as usize);
    let rows_in_task = (TASK_ELEMENTS / rows.cols).max(1);
    let copy = |dst: &mut [T], row: usize, first: usize| {
        let start = source_offset(outer, row) + first * stride;
        if stride == 1 {
            dst.copy_from_slice(&src[start..start + dst.len()]);
        } else {
            for (i, element) in dst.iter_mut().enumerate() {
                *element = src[start + i * stride];
            }
        }
    };
    if pieces > 1 {
        dst.par_chunks_mut(rows.cols).enumerate().for_each(|(row, dst)| {
            dst.par_chunks_mut(piece)
                .enumerate()
                .for_each(|(i, dst)| copy(dst, row, i * piece));
        });
    } else {
        dst.par_chunks_mut(rows.cols * rows_in_task)
            .enumerate()
            .for_each(|(task, dst)| {
                for (i, dst) in dst.chunks_mut(rows.cols).enumerate() {
                    copy(dst, task * rows_in_task + i, 0);
                }
            });
    }
}

/// Columns of the source become rows of the destination.
fn transpose<T: Copy + Default + Send + Sync>(problem: &TransposeProblem, m: &Matrices, src: &[T], dst: &mut [T]) {
    // In the order of the destination: dimensions outside the columns, the columns, dimensions between, the rows.
    let columns = problem.axes.iter().position(|axis| axis.dst == m.dst_col);
    let (outside, inside) = problem.axes.split_at(columns.unwrap_or(0));
    let between = &inside[1..inside.len() - 1];
    let planes: usize = between.iter().map(|axis| axis.extent).product();
    let column_elements = planes * m.rows;

    // A task is a run of columns: whole squares of them, and enough to be worth a thread.
    let squares = TASK_ELEMENTS.div_ceil(column_elements * SIDE);
    let task_columns = (squares * SIDE).min(m.cols);
    dst.par_chunks_mut(m.cols * column_elements)
        .enumerate()
        .for_each(|(matrix, dst)| {
            let start = source_offset(outside, matrix);
            dst.par_chunks_mut(task_columns * column_elements)
                .enumerate()
                .for_each(|(task, dst)| {
                    let start = start + task * task_columns;
                    for plane in 0..planes {
                        let src = &src[start + source_offset(between, plane)..];
                        transpose_plane(
                            src,
                            m.src_row as usize,
                            &mut dst[plane * m.rows..],
                            column_elements,
                            m.rows,
                        );
                    }
                });
        });
}

/// Transposes `rows` rows of the source, `src_row` elements apart, into rows of the destination, `dst_row` apart: as many
/// as `dst` has room for.
fn transpose_plane<T: Copy + Default>(src: &[T], src_row: usize, dst: &mut [T], dst_row: usize, rows: usize) {
    for (block, dst) in dst.chunks_mut(SIDE * dst_row).enumerate() {
        let src = &src[block * SIDE..];
        let cols = (dst.len() + dst_row - rows) / dst_row;
        for row in (0..rows).step_by(SIDE) {
            let height = SIDE.min(rows - row);
            let mut square = [T::default(); SIDE * SIDE];
            for i in 0..height {
                let start = (row + i) * src_row;
                let line = &src[start..start + cols];
                if let Ok(line) = <&[T; SIDE]>::try_from(line) {
                    // The whole square, where the compiler knows every bound.
                    for (j, &element) in line.iter().enumerate() {
                        square[j * SIDE + i] = element;
                    }
                } else {
                    for (j, &element) in line.iter().enumerate() {
                        square[j * SIDE + i] = element;
                    }
                }
            }
            for (j, line) in square.chunks_exact(SIDE).enumerate().take(cols) {
                let start = j * dst_row + row;
                dst[start..start + height].copy_from_slice(&line[..height]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element one by one, from the definition.
    fn reference(dims: &[usize], strides: &[usize], axes: &[usize], src: &[u32]) -> Vec<u32> {
        let order: Vec<(usize, usize)> = axes.iter().map(|&axis| (dims[axis], strides[axis])).collect();
        let count: usize = dims.iter().product();
        (0..count)
            .map(|index| {
                let mut rest = index;
                let mut offset = 0;
                for &(extent, stride) in order.iter().rev() {
                    offset += rest % extent * stride;
                    rest /= extent;
                }
                src[offset]
            })
            .collect()
    }

    fn check(dims: &[usize], strides: &[usize], axes: &[usize]) {
        let reach: usize = dims.iter().zip(strides).map(|(&n, &s)| (n - 1) * s).sum();
        let src: Vec<u32> = (0..=reach as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let problem = TransposeProblem::permutation(dims, strides, axes, 4).unwrap();
        let mut dst = vec![0xDEAD_BEEF; problem.elements()];
        permute(&problem, &src, &mut dst).unwrap();
        assert!(
            dst == reference(dims, strides, axes, &src),
            "{dims:?} {strides:?} {axes:?}"
        );
    }

    fn dense(dims: &[usize]) -> Vec<usize> {
        let mut strides = vec![1; dims.len()];
        for i in (1..dims.len()).rev() {
            strides[i - 1] = strides[i] * dims[i];
        }
        strides
    }

    #[test]
    fn every_permutation_of_four_dimensions() {
        let dims = [3, 37, 5, 33];
        for a in 0..4 {
            for b in (0..4).filter(|&b| b != a) {
                for c in (0..4).filter(|&c| c != a && c != b) {
                    check(&dims, &dense(&dims), &[a, b, c, 6 - a - b - c]);
                }
            }
        }
    }

    #[test]
    fn sizes_around_the_square_and_long_thin_ones() {
        for rows in [1, 2, 31, 32, 33, 67] {
            for cols in [1, 3, 31, 32, 33, 64, 97] {
                check(&[rows, cols], &dense(&[rows, cols]), &[1, 0]);
            }
        }
        check(&[3, 100_003], &dense(&[3, 100_003]), &[1, 0]);
        check(&[100_003, 3], &dense(&[100_003, 3]), &[1, 0]);
        check(&[1, 70_001], &[70_001, 1], &[1, 0]);
    }

    #[test]
    fn views_with_gaps_broadcasts_and_strided_columns() {
        check(&[40, 50], &[64, 1], &[1, 0]);
        check(&[40, 50], &[64, 1], &[0, 1]);
        check(&[3, 70_000], &[70_100, 1], &[0, 1]);
        check(&[40, 50, 6], &[0, 1, 50], &[0, 2, 1]);
        check(&[40, 50], &[150, 3], &[0, 1]);
        check(&[40, 50], &[150, 3], &[1, 0]);
        check(&[5, 6, 7], &[1, 0, 0], &[0, 1, 2]);
    }

    #[test]
    fn short_buffers_are_refused() {
        let problem = TransposeProblem::matrix(4, 5, 4).unwrap();
        assert!(permute(&problem, &[0u32; 19], &mut [0u32; 20]).is_err());
        assert!(permute(&problem, &[0u32; 20], &mut [0u32; 19]).is_err());
    }
}
