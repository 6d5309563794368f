//! How a result is cut into what threads compute.

use crate::gemm::problem::GemmProblem;
use std::ops::Range;

/// Multiply-adds below which waking other threads costs more than they save.
const SERIAL_WORK: usize = 2 << 20;

/// Slices of a product with a vector are a multiple of this, so that the engine's vectors are filled.
const SLICE_QUANTUM: usize = 64;

/// How the result is cut into tiles: matrices of the batch, or slices of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    pub batch: usize,
    pub row_tiles: usize,
    pub col_tiles: usize,
    pub tile_rows: usize,
    pub tile_cols: usize,
    /// Whether tiles are computed side by side.
    pub parallel: bool,
    /// Threads that the engine may use inside a tile.
    pub engine_threads: usize,
}

impl Tiling {
    pub fn new(problem: &GemmProblem, threads: usize) -> Self {
        let (m, n, batch) = (problem.m, problem.n, problem.batch());
        let work = [m, n, problem.k]
            .iter()
            .fold(batch, |product, &size| product.saturating_mul(size));
        let matrices = Tiling {
            batch,
            row_tiles: 1,
            col_tiles: 1,
            tile_rows: m,
            tile_cols: n,
            parallel: false,
            engine_threads: 1,
        };
        if threads <= 1 {
            return matrices;
        }
        if batch == 1 && m > 1 && n > 1 {
            // The engine knows from which size on its threads are worth their while.
            return Tiling {
                engine_threads: threads,
                ..matrices
            };
        }
        if work < SERIAL_WORK {
            return matrices;
        }
        if batch % threads == 0 || batch >= 4 * threads {
            return Tiling {
                parallel: true,
                ..matrices
            };
        }
        if m > 1 && n > 1 {
            return Tiling {
                engine_threads: threads,
                ..matrices
            };
        }
        let pieces = threads.div_ceil(batch);
        let slice = |size: usize| size.div_ceil(pieces).next_multiple_of(SLICE_QUANTUM);
        let (tile_rows, tile_cols) = (slice(m), slice(n));
        Tiling {
            row_tiles: m.div_ceil(tile_rows),
            col_tiles: n.div_ceil(tile_cols),
            tile_rows,
            tile_cols,
            parallel: true,
            ..matrices
        }
    }

    pub fn count(&self) -> usize {
        self.batch * self.row_tiles * self.col_tiles
    }

    /// Matrix, rows and columns of a tile.
    pub fn tile(&self, index: usize, m: usize, n: usize) -> (usize, Range<usize>, Range<usize>) {
        let (row, col) = (
            index / self.col_tiles % self.row_tiles * self.tile_rows,
            index % self.col_tiles * self.tile_cols,
        );
        let batch = index / (self.row_tiles * self.col_tiles);
        (
            batch,
            row..m.min(row + self.tile_rows),
            col..n.min(col + self.tile_cols),
        )
    }
}
