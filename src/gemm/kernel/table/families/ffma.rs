//! FP32 multiply-adds on any device.

use super::super::super::spec::{Arithmetic, KernelSpec, Needs, SplitK, Tile};
use super::super::derived;
use super::row::{tile, NO_WARPS, PRODUCTION};
use crate::gemm::operands::DType;

/// FP32 multiply-adds, any layout, k cut across a cluster where there are few tiles.
pub(super) const FFMA: KernelSpec = KernelSpec {
    dtype: DType::F32,
    arithmetic: Arithmetic::Ffma,
    split_k: SplitK::Cluster,
    ..PRODUCTION
};

/// One tile a block.
const TILED: KernelSpec = KernelSpec {
    file: "ffma/ffma_tiled",
    summary: "FP32 multiply-adds, any layout",
    parallel_split_k: true,
    pdl: true,
    ..FFMA
};

/// Double-buffered, through registers. Sliced-K: so many groups of warps share the k of a stage.
pub(in super::super) const fn tiled(
    name: &'static str,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    groups: u32,
) -> KernelSpec {
    let tile = tile(block, warp, thread, 2);
    KernelSpec {
        name,
        tile,
        threads: groups * derived::threads(&tile),
        partial_sums: groups,
        ..TILED
    }
}

/// The same by asynchronous copies, some stages ahead.
pub(in super::super) const fn pipelined(
    name: &'static str,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
) -> KernelSpec {
    let tile = tile(block, warp, thread, stages);
    KernelSpec {
        name,
        summary: "FP32 multiply-adds, any layout, asynchronous copies",
        tile,
        threads: derived::threads(&tile),
        dynamic_shared: derived::pipelined(&tile),
        ..TILED
    }
}

/// By asynchronous copies of single words, whatever the alignment.
const fn by_words(name: &'static str, tile: Tile) -> KernelSpec {
    KernelSpec {
        name,
        tile,
        threads: derived::threads(&tile),
        dynamic_shared: derived::words(&tile),
        parallel_split_k: true,
        pdl: true,
        ..FFMA
    }
}

/// Short sums. A thread's columns are as far apart as threads beside each other are many.
pub(in super::super) const fn words(name: &'static str, block: [u32; 3], thread: [u32; 2], stages: u32) -> KernelSpec {
    KernelSpec {
        file: "ffma/ffma_words",
        summary: "FFMA, any alignment, copies of words",
        ..by_words(name, tile(block, NO_WARPS, thread, stages))
    }
}

/// Longer sums: copies are spread over the steps of k that they run beside.
pub(in super::super) const fn unaligned(
    name: &'static str,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
) -> KernelSpec {
    KernelSpec {
        file: "ffma/ffma_unaligned",
        summary: "FP32 multiply-adds, any alignment, copies of words between them",
        halves_end: true,
        ..by_words(name, tile(block, warp, thread, stages))
    }
}

/// The same sliced-K: so many groups of warps share the k of a block.
pub(in super::super) const fn unaligned_sliced_k(
    name: &'static str,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
    groups: u32,
) -> KernelSpec {
    let row = unaligned(name, block, warp, thread, stages);
    KernelSpec {
        summary: "FP32 multiply-adds, any alignment, groups of warps share k",
        threads: groups * row.threads,
        dynamic_shared: derived::unaligned_sliced_k(&row.tile, groups),
        partial_sums: groups,
        ..row
    }
}

/// Sums of at most BK products, straight from memory. A tile of one row or column is for results of one row or column.
pub(in super::super) const fn few_k(name: &'static str, block: [u32; 3], rows: u32) -> KernelSpec {
    let [bm, bn, bk] = block;
    KernelSpec {
        name,
        file: "ffma/ffma_few_k",
        summary: "FP32 multiply-adds, sums of a few products straight from memory",
        tile: tile(block, NO_WARPS, [rows, 1], 1),
        threads: bm / rows * bn,
        pdl: true,
        leaves_out_outside: true,
        needs: Needs {
            max_m: if bm == 1 { 1 } else { 0 },
            max_n: if bn == 1 { 1 } else { 0 },
            max_k: bk,
            ..Needs::ANY
        },
        ..FFMA
    }
}

/// Outer products, and sums of up to BK products: a block of so many warps, whose threads have four columns, walks down its rows of D.
pub(in super::super) const fn outer(name: &'static str, block: [u32; 3], warps: u32) -> KernelSpec {
    const COLS: u32 = 4;
    let [bm, bn, bk] = block;
    let threads = warps * derived::WARP;
    KernelSpec {
        name,
        file: "ffma/ffma_outer",
        summary: "FP32 multiply-adds, outer products and sums of a few, stored row by row",
        tile: tile(block, NO_WARPS, [bm * bn / COLS / threads, COLS], 1),
        threads,
        pdl: true,
        leaves_out_outside: true,
        needs: Needs {
            max_k: bk,
            ..Needs::ANY
        },
        ..FFMA
    }
}
