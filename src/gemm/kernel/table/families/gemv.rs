//! One matrix past a few rows, or columns, of the other: all FFMA, lanes share k.

use super::super::super::spec::{Arithmetic, Grid, Inside, KernelSpec, Needs, SplitK};
use super::super::derived;
use super::row::{tile, NO_THREADS, NO_WARPS, PRODUCTION};
use crate::gemm::operands::{Access, DType};

/// Elements that a thread reads at a time.
pub(super) const GEMV_K: u32 = 4;
/// Unit column stride.
pub(in super::super) const ALONG_ROWS: &[Access] = &[Access::RowVector, Access::RowScalar];
/// Unit row stride.
pub(in super::super) const ALONG_COLS: &[Access] = &[Access::ColVector, Access::ColScalar];

/// Streams one matrix past a few rows, or columns, of the other: all FFMA, lanes share k.
pub(super) const fn gemv(name: &'static str, [bm, bn]: [u32; 2], warps: u32) -> KernelSpec {
    KernelSpec {
        name,
        file: "gemv/gemv",
        dtype: DType::F32,
        arithmetic: Arithmetic::Ffma,
        tile: tile([bm, bn, GEMV_K], NO_WARPS, NO_THREADS, 1),
        threads: warps * derived::WARP,
        partial_sums: derived::LANE_SUMS,
        pdl: true,
        ..PRODUCTION
    }
}

const fn few_rows(name: &'static str, block: [u32; 2], warps: u32, b: &'static [Access]) -> KernelSpec {
    let [max_m, _] = block;
    KernelSpec {
        summary: "streams B once past a few rows of A",
        needs: Needs { b, max_m, ..Needs::ANY },
        ..gemv(name, block, warps)
    }
}

const fn few_cols(name: &'static str, block: [u32; 2], warps: u32, a: &'static [Access]) -> KernelSpec {
    let [_, max_n] = block;
    KernelSpec {
        summary: "streams A once past a few columns of B",
        needs: Needs { a, max_n, ..Needs::ANY },
        ..gemv(name, block, warps)
    }
}

/// At most BM rows of A; B is stored transposed, so that BN dot products run along k, BK of it in a turn. Tile `[BM, BN, BK]`, then
/// warps.
pub(in super::super) const fn dot_rows(name: &'static str, [bm, bn, bk]: [u32; 3], warps: u32) -> KernelSpec {
    KernelSpec {
        tile: tile([bm, bn, bk], NO_WARPS, NO_THREADS, 1),
        ..few_rows(name, [bm, bn], warps, ALONG_COLS)
    }
}

/// The longest k that is short for eight lanes, which take all of it in turn: beyond, a warp or a block for a line is as fast with many
/// lines and up to three times as fast with few. For a warp it is four times as long.
const SHORT_K: u32 = 1024;

/// At most BM rows of A; B is stored transposed, and so many lanes share a short k: a block has four warps and BN lines of B, BK of k in a
/// turn. An A across k would be read element by element, which takes longer than such products. Tile `[BM, BN, BK]`, then lanes.
pub(in super::super) const fn short_rows(name: &'static str, block: [u32; 3], lanes: u32) -> KernelSpec {
    const WARPS: u32 = 4;
    let row = dot_rows(name, block, WARPS);
    KernelSpec {
        file: "gemv/gemv_short",
        summary: "streams lines of B whose k is short past a few rows of A",
        partial_sums: lanes,
        needs: Needs {
            a: ALONG_ROWS,
            max_k: SHORT_K * lanes / 8,
            ..row.needs
        },
        ..row
    }
}

/// At most BN columns of B; so many lanes share a short k of a row of A: a block has four warps and BM rows of A, BK of k in a turn. Up to four
/// columns across k are read element by element, out of the L1; with eight this takes up to three times as long as all the rest. Tile
/// `[BM, BN, BK]`, then lanes.
pub(in super::super) const fn short_cols(name: &'static str, [bm, bn, bk]: [u32; 3], lanes: u32) -> KernelSpec {
    const FEW: u32 = 4;
    let rows = short_rows(name, [bn, bm, bk], lanes);
    let row = dot_cols(name, [bm, bn, bk], rows.threads / derived::WARP);
    KernelSpec {
        file: rows.file,
        summary: "streams rows of A whose k is short past a few columns of B",
        partial_sums: rows.partial_sums,
        needs: Needs {
            b: if bn > FEW { ALONG_COLS } else { row.needs.b },
            max_k: rows.needs.max_k,
            ..row.needs
        },
        ..row
    }
}

/// One matrix, at most BM rows of A; B is stored transposed, and persistent blocks stream it in groups of BN lines, BK of k at a time. Tile
/// `[BM, BN, BK]`, then warps and blocks a multiprocessor.
pub(in super::super) const fn stream(
    name: &'static str,
    dtype: DType,
    [bm, bn, bk]: [u32; 3],
    warps: u32,
    blocks: u32,
) -> KernelSpec {
    KernelSpec {
        file: "gemv/gemv_stream",
        summary: "persistent blocks stream B past a row or two of A",
        dtype,
        tile: tile([bm, bn, bk], NO_WARPS, NO_THREADS, 1),
        grid: Grid::Persistent,
        blocks_per_multiprocessor: blocks,
        needs: Needs {
            a: &[Access::RowVector],
            b: &[Access::ColVector],
            max_m: bm,
            max_batch: 1,
            ..Needs::ANY
        },
        ..gemv(name, [bm, bn], warps)
    }
}

/// The same with a norm of the rows and gated columns inside, at the costs of a kernel without, or at its own.
pub(in super::super) const fn fused(name: &'static str, costs: Option<&'static str>, of: KernelSpec) -> KernelSpec {
    KernelSpec {
        name,
        summary: "streams B past a row or two of A, with a norm of A's rows and gated columns",
        costs_of: match costs {
            Some(_) => costs,
            None => of.costs_of,
        },
        inside: Inside::NormAndGates,
        ..of
    }
}

/// Tiles along the rows that a kernel of [`at_once`] takes at most: `kMostTileRows` of cuda/gemv/few_rows.cu.
const AT_ONCE_TILES: u32 = 8;

/// One matrix, at most `AT_ONCE_TILES` tiles of BM rows of A; B is stored transposed, and a block asks for all that it needs of both at once. k is cut across a
/// cluster where there are few columns. Tile `[BM, BN]`, then lanes of a warp along k and along the rows, and warps, which share k.
pub(in super::super) const fn at_once(
    name: &'static str,
    [bm, bn]: [u32; 2],
    [lanes_k, lanes_m]: [u32; 2],
    warps: u32,
) -> KernelSpec {
    let lanes_n = derived::WARP / lanes_k / lanes_m;
    let k = warps * lanes_k * GEMV_K;
    KernelSpec {
        file: "gemv/few_rows",
        summary: "a few rows of A, B in the L2: one round trip",
        tile: tile([bm, bn, k], NO_WARPS, [bm / lanes_m, bn / lanes_n], 1),
        partial_sums: warps * lanes_k,
        split_k: SplitK::Cluster,
        needs: Needs {
            a: &[Access::RowVector],
            b: &[Access::ColVector],
            max_m: AT_ONCE_TILES * bm,
            max_batch: 1,
            ..Needs::ANY
        },
        ..gemv(name, [bm, bn], warps)
    }
}

/// At most BM rows of A; rows of B are scaled and added up.
pub(in super::super) const fn axpy_rows(name: &'static str, block: [u32; 2], warps: u32) -> KernelSpec {
    few_rows(name, block, warps, ALONG_ROWS)
}

/// At most BN columns of B; rows of A run along k, BK of it in a turn. Tile `[BM, BN, BK]`, then warps.
pub(in super::super) const fn dot_cols(name: &'static str, [bm, bn, bk]: [u32; 3], warps: u32) -> KernelSpec {
    KernelSpec {
        tile: tile([bm, bn, bk], NO_WARPS, NO_THREADS, 1),
        ..few_cols(name, [bm, bn], warps, ALONG_ROWS)
    }
}

/// At most BN columns of B; A is stored transposed, and its columns are scaled and added up.
pub(in super::super) const fn axpy_cols(name: &'static str, block: [u32; 2], warps: u32) -> KernelSpec {
    few_cols(name, block, warps, ALONG_COLS)
}
