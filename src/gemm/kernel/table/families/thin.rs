//! Thin products: a matrix with many lines past up to some tens of vectors, at any alignment.

use super::super::super::spec::{KernelSpec, Needs, Side};
use super::super::derived;
use super::ffma::FFMA;
use super::gemv::{ALONG_COLS, ALONG_ROWS, GEMV_K};
use super::row::{tile, NO_WARPS};
use crate::gemm::operands::Access;

/// How a warp of `thin_axpy` works on so many lines.
struct ThinAxpy {
    /// Lines of a lane.
    each: u32,
    /// Rows of the matrix that a warp reads at once.
    rows: u32,
    /// k that it takes at a time.
    turn: u32,
}

/// Where lanes read so many neighbouring lines at once.
const fn thin_warp(vectors: u32, lines: u32, at_once: u32) -> ThinAxpy {
    let lanes = match lines / at_once < derived::WARP {
        true => lines / at_once,
        false => derived::WARP,
    };
    let (each, rows) = (lines / lanes, derived::WARP / lanes);
    let steps = match (vectors, each) {
        (1, 1) => 32,
        (_, 1) => 16,
        _ => 8,
    };
    let turn = steps * rows;
    ThinAxpy { each, rows, turn }
}

/// Tiles along the vectors at most: the matrix is read once for each of them.
const THIN_TILES: u32 = 2;

/// A matrix with many lines past up to some tens of vectors, at any alignment; k is cut across a cluster where there are few tiles.
const THIN: KernelSpec = KernelSpec {
    parallel_split_k: true,
    pdl: true,
    ..FFMA
};

pub(in super::super) const fn past_rows(block: [u32; 2], b: &'static [Access]) -> Needs {
    let [bm, _] = block;
    Needs {
        b,
        max_m: THIN_TILES * bm,
        ..Needs::ANY
    }
}

pub(in super::super) const fn past_cols(block: [u32; 2], a: &'static [Access]) -> Needs {
    let [_, bn] = block;
    Needs {
        a,
        max_n: THIN_TILES * bn,
        ..Needs::ANY
    }
}

/// The lanes of a warp lie along the lines, or groups of them where there are fewer than 32; groups and warps share k.
const fn thin_axpy(name: &'static str, [bm, bn]: [u32; 2], thread: [u32; 2], warp: ThinAxpy, warps: u32) -> KernelSpec {
    KernelSpec {
        name,
        file: "gemv/thin_axpy",
        summary: "a matrix along its lines past few vectors, any alignment",
        tile: tile([bm, bn, warps * warp.turn], NO_WARPS, thread, 1),
        threads: warps * derived::WARP,
        partial_sums: warps * warp.rows,
        ..THIN
    }
}

/// B past rows of A, BM at a time. Tile `[BM, BN]`, then warps.
pub(in super::super) const fn thin_axpy_rows(name: &'static str, block: [u32; 2], warps: u32) -> KernelSpec {
    let [bm, bn] = block;
    let warp = thin_warp(bm, bn, 1);
    KernelSpec {
        needs: past_rows(block, ALONG_ROWS),
        ..thin_axpy(name, block, [bm, warp.each], warp, warps)
    }
}

/// A, stored transposed, past columns of B, BN at a time.
pub(in super::super) const fn thin_axpy_cols(name: &'static str, block: [u32; 2], warps: u32) -> KernelSpec {
    let [bm, bn] = block;
    let warp = thin_warp(bn, bm, 1);
    KernelSpec {
        needs: past_cols(block, ALONG_COLS),
        ..thin_axpy(name, block, [warp.each, bn], warp, warps)
    }
}

/// B, whose rows 16 bytes fit, past rows of A, BM at a time: a lane reads four neighbours of a row at once. Tile `[BM, BN]`, then warps.
pub(in super::super) const fn thin_wide_rows(name: &'static str, block: [u32; 2], warps: u32) -> KernelSpec {
    let [bm, bn] = block;
    let warp = thin_warp(bm, bn, GEMV_K);
    KernelSpec {
        summary: "a matrix along its lines past few vectors, 16 bytes at a time",
        needs: past_rows(block, &[Access::RowVector]),
        ..thin_axpy(name, block, [bm, warp.each], warp, warps)
    }
}

/// A thread has whole lines, so much of them in shared memory at a time.
const fn thin_dot(name: &'static str, block: [u32; 3], thread: [u32; 2], stages: u32) -> KernelSpec {
    let tile = tile(block, NO_WARPS, thread, stages);
    KernelSpec {
        name,
        file: "gemv/thin_dot",
        summary: "a matrix along k past few vectors, any alignment and k",
        tile,
        threads: derived::THIN_DOT,
        ..THIN
    }
}

/// A past columns of B, BN at a time.
pub(in super::super) const fn thin_dot_cols(name: &'static str, block: [u32; 3], stages: u32) -> KernelSpec {
    let [bm, bn, bk] = block;
    let row = thin_dot(name, block, [bm / derived::THIN_DOT, bn], stages);
    KernelSpec {
        dynamic_shared: derived::thin_dot([bm, bn], bk, stages),
        needs: past_cols([bm, bn], ALONG_ROWS),
        ..row
    }
}

/// B, stored transposed, past rows of A, BM at a time.
pub(in super::super) const fn thin_dot_rows(name: &'static str, block: [u32; 3], stages: u32) -> KernelSpec {
    let [bm, bn, bk] = block;
    let row = thin_dot(name, block, [bm, bn / derived::THIN_DOT], stages);
    KernelSpec {
        dynamic_shared: derived::thin_dot([bn, bm], bk, stages),
        needs: past_rows([bm, bn], ALONG_COLS),
        ..row
    }
}

/// A, whose rows are short and follow one another without gaps, past at most BN columns of B: a thread has a row, of at most BK elements, and a
/// block has all of its rows in shared memory at once.
pub(in super::super) const fn thin_run_cols(name: &'static str, block: [u32; 3]) -> KernelSpec {
    let [bm, bn, bk] = block;
    KernelSpec {
        summary: "short rows of A without gaps past a few columns, any alignment",
        needs: Needs {
            a: ALONG_ROWS,
            max_n: bn,
            max_k: bk,
            gapless: Some(Side::M),
            ..Needs::ANY
        },
        ..thin_run(name, block, [1, bn], [bm, bn])
    }
}

/// The same of columns of B past at most BM rows of A.
pub(in super::super) const fn thin_run_rows(name: &'static str, block: [u32; 3]) -> KernelSpec {
    let [bm, bn, bk] = block;
    KernelSpec {
        summary: "short columns of B without gaps past a few rows, any alignment",
        needs: Needs {
            b: ALONG_COLS,
            max_m: bm,
            max_k: bk,
            gapless: Some(Side::N),
            ..Needs::ANY
        },
        ..thin_run(name, block, [bm, 1], [bn, bm])
    }
}

/// Such a kernel whose threads have so many outputs, and whose blocks have so many lines past so many vectors.
const fn thin_run(name: &'static str, block: [u32; 3], thread: [u32; 2], [lines, vectors]: [u32; 2]) -> KernelSpec {
    let [_, _, bk] = block;
    KernelSpec {
        name,
        file: "gemv/thin_run",
        tile: tile(block, NO_WARPS, thread, 1),
        threads: lines,
        dynamic_shared: derived::thin_run([lines, vectors], bk),
        pdl: true,
        leaves_out_outside: true,
        ..FFMA
    }
}
