//! The families of kernels. Each function makes a row of the table: it takes what a row says, fills in what its family has in
//! common, and derives the rest. Tiles come as `[BM, BN, BK]`, `[WM, WN]`, `[TM, TN]`, stages: of a block, a warp and a thread.

use super::super::spec::{Arithmetic, EpilogueSupport, Grid, KernelSpec, Needs, Role, Side, SplitK, Tile};
use super::derived::{self, Clusters, Layout, Registers, Wgmma};
use crate::gemm::operands::{Access, DType};

/// Where a kernel has no warp tiles, or the row does not say which.
pub(super) const NO_WARPS: [u32; 2] = [0, 0];
/// The thread tile of kernels whose threads compute one output, or whose tensor cores do.
pub(super) const NO_THREADS: [u32; 2] = [1, 1];

pub(super) const fn tile([bm, bn, bk]: [u32; 3], [wm, wn]: [u32; 2], [tm, tn]: [u32; 2], stages: u32) -> Tile {
    Tile {
        bm,
        bn,
        bk,
        wm,
        wn,
        tm,
        tn,
        stages,
    }
}

/// A production kernel with the whole epilogue, as rows have it unless their family says otherwise.
pub(super) const PRODUCTION: KernelSpec = KernelSpec {
    name: "",
    file: "",
    summary: "",
    costs_of: None,
    role: Role::Production,
    dtype: DType::F32,
    arithmetic: Arithmetic::Ffma,
    tile: tile([1, 1, 1], NO_WARPS, NO_THREADS, 1),
    threads: 0,
    dynamic_shared: 0,
    grid: Grid::Units,
    epilogue: EpilogueSupport::Fused,
    fused: false,
    split_k: SplitK::Never,
    parallel_split_k: false,
    partial_sums: 1,
    tma_boxes: None,
    pdl: false,
    d_box: None,
    halves_end: false,
    leaves_out_outside: false,
    blocks_per_multiprocessor: 1,
    needs: Needs::ANY,
    may_spill_on: &[],
};

impl KernelSpec {
    /// The same where the compiler may spill registers on these compute capabilities.
    pub(super) const fn spills(self, on: &'static [u32]) -> Self {
        KernelSpec {
            may_spill_on: on,
            ..self
        }
    }

    /// The same with so many portions of k in shared memory.
    pub(super) const fn stages(self, stages: u32) -> Self {
        KernelSpec {
            tile: Tile { stages, ..self.tile },
            ..self
        }
    }
}

// ---- the ladder ---------------------------------------------------------------------------------------------------

/// The source of each rung.
const RUNGS: [&str; 14] = [
    "ladder/sgemm_01_naive",
    "ladder/sgemm_02_coalesced",
    "ladder/sgemm_03_shared",
    "ladder/sgemm_04_l1_register_block",
    "ladder/sgemm_05_thread_tile_1d",
    "ladder/sgemm_06_thread_tile_2d",
    "ladder/sgemm_07_thread_tile_strided",
    "ladder/sgemm_08_register_cached",
    "ladder/sgemm_09_quadrants",
    "ladder/sgemm_10_vectorized",
    "ladder/sgemm_11_tuned_shared",
    "ladder/sgemm_12_double_buffered",
    "ladder/sgemm_13_warp_tiled",
    "ladder/sgemm_14_async_pipelined",
];

/// A rung with warp tiles: FP32 multiply-adds, any layout, α, β and C.
pub(super) const fn warp_rung(
    number: u32,
    name: &'static str,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
    summary: &'static str,
) -> KernelSpec {
    let tile = tile(block, warp, thread, stages);
    KernelSpec {
        name,
        file: RUNGS[number as usize - 1],
        summary,
        role: Role::Rung(number),
        dtype: DType::F32,
        tile,
        threads: derived::threads(&tile),
        grid: Grid::Tiles,
        epilogue: EpilogueSupport::Scaled,
        ..PRODUCTION
    }
}

/// A rung without warp tiles.
pub(super) const fn rung(
    number: u32,
    name: &'static str,
    block: [u32; 3],
    thread: [u32; 2],
    summary: &'static str,
) -> KernelSpec {
    warp_rung(number, name, block, NO_WARPS, thread, 1, summary)
}

/// The same for FP64.
pub(super) const fn double_rung(
    number: u32,
    name: &'static str,
    block: [u32; 3],
    thread: [u32; 2],
    summary: &'static str,
) -> KernelSpec {
    KernelSpec {
        dtype: DType::F64,
        ..rung(number, name, block, thread, summary)
    }
}

/// A rung with warp tiles whose panels come by asynchronous copies.
pub(super) const fn async_rung(
    number: u32,
    name: &'static str,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
    summary: &'static str,
) -> KernelSpec {
    let row = warp_rung(number, name, block, warp, thread, stages, summary);
    KernelSpec {
        dynamic_shared: derived::async_ring(&row.tile),
        ..row
    }
}

// ---- FP32 multiply-adds -------------------------------------------------------------------------------------------

/// FP32 multiply-adds, any layout, k cut across a cluster where there are few tiles.
const FFMA: KernelSpec = KernelSpec {
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
pub(super) const fn tiled(
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
pub(super) const fn pipelined(
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
pub(super) const fn words(name: &'static str, block: [u32; 3], thread: [u32; 2], stages: u32) -> KernelSpec {
    KernelSpec {
        file: "ffma/ffma_words",
        summary: "FFMA, any alignment, copies of words",
        ..by_words(name, tile(block, NO_WARPS, thread, stages))
    }
}

/// Longer sums: copies are spread over the steps of k that they run beside.
pub(super) const fn unaligned(
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
pub(super) const fn unaligned_sliced_k(
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
pub(super) const fn few_k(name: &'static str, block: [u32; 3], rows: u32) -> KernelSpec {
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
pub(super) const fn outer(name: &'static str, block: [u32; 3], warps: u32) -> KernelSpec {
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

/// Warp-specialized and persistent, for large problems on Hopper: producer warps bring operands, math warps multiply.
const fn specialized(name: &'static str, block: [u32; 3], warp: [u32; 2], thread: [u32; 2], stages: u32) -> KernelSpec {
    let tile = tile(block, warp, thread, stages);
    KernelSpec {
        name,
        file: "ffma/ffma_specialized_sm90",
        tile,
        threads: derived::WARP_SPECIALIZED,
        dynamic_shared: derived::specialized(&tile),
        grid: Grid::Persistent,
        split_k: SplitK::StreamK,
        ..FFMA
    }
}

/// By TMA: producer warps transpose in shared memory what is contiguous along k.
pub(super) const fn specialized_tma(
    name: &'static str,
    layout: Layout,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
) -> KernelSpec {
    let row = specialized(name, block, warp, thread, stages);
    KernelSpec {
        summary: "FP32 multiply-adds, TMA, producer and math warps",
        tma_boxes: Some(layout.whole_tiles(&row.tile, row.tile.bk)),
        needs: layout.needs(),
        ..row
    }
}

/// The same sliced-K, with one tile a block, and k cut across a cluster where there are few tiles.
pub(super) const fn sliced_k(
    name: &'static str,
    layout: Layout,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
) -> KernelSpec {
    let row = specialized_tma(name, layout, block, warp, thread, stages);
    KernelSpec {
        file: "ffma/ffma_sliced_k_sm90",
        summary: "FP32 multiply-adds, TMA, groups of math warps share k",
        dynamic_shared: derived::sliced_k(&row.tile),
        grid: Grid::Units,
        split_k: SplitK::Cluster,
        parallel_split_k: true,
        partial_sums: derived::math_groups(&row.tile),
        ..row
    }
}

/// At any alignment: producer warps copy single words.
pub(super) const fn specialized_words(
    name: &'static str,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
) -> KernelSpec {
    let row = specialized(name, block, warp, thread, stages);
    KernelSpec {
        summary: "FP32 multiply-adds, any alignment, producer and math warps",
        dynamic_shared: derived::specialized_words(&row.tile),
        pdl: true,
        needs: Layout::ANY_LINES,
        ..row
    }
}

/// The same sliced-K, with one tile a block, and k cut across a cluster where there are few tiles.
pub(super) const fn sliced_k_words(
    name: &'static str,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
) -> KernelSpec {
    let row = specialized_words(name, block, warp, thread, stages);
    KernelSpec {
        file: "ffma/ffma_sliced_k_sm90",
        summary: "FP32 multiply-adds, any alignment, groups of math warps share k",
        dynamic_shared: derived::sliced_k_words(&row.tile),
        grid: Grid::Units,
        split_k: SplitK::Cluster,
        parallel_split_k: true,
        partial_sums: derived::math_groups(&row.tile),
        ..row
    }
}

/// One tile a block, several blocks a multiprocessor, on Hopper: an A that is contiguous along k is multiplied in place.
pub(super) const fn direct(
    name: &'static str,
    layout: Layout,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
) -> KernelSpec {
    let tile = tile(block, warp, thread, stages);
    KernelSpec {
        name,
        file: "ffma/ffma_direct_sm90",
        summary: "FP32 multiply-adds, TMA, A along k in place",
        tile,
        threads: derived::DIRECT,
        dynamic_shared: derived::direct(&tile, layout),
        split_k: SplitK::Never,
        partial_sums: derived::direct_groups(&tile),
        tma_boxes: Some(layout.whole_tiles(&tile, tile.bk)),
        needs: layout.needs(),
        ..FFMA
    }
}

/// One tile a block, several blocks a multiprocessor, on Hopper, for an A along m and a B along n: TMA brings them as they are multiplied.
pub(super) const fn direct_tn(
    name: &'static str,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
) -> KernelSpec {
    let tile = tile(block, warp, thread, stages);
    KernelSpec {
        name,
        file: "ffma/ffma_direct_tn_sm90",
        summary: "FP32 multiply-adds, TMA, no transposition",
        tile,
        threads: derived::threads(&tile),
        dynamic_shared: derived::direct_tn(&tile),
        parallel_split_k: true,
        pdl: true,
        // Eight steps of k of 8 × 8 outputs are a straight line, and sixteen of 4 × 8.
        halves_end: tile.tm * tile.tn >= 64,
        tma_boxes: Some(Layout::TN.whole_tiles(&tile, tile.bk)),
        needs: Layout::TN.needs(),
        ..FFMA
    }
}

/// Sliced-K, one tile a block, on Hopper, for operands that are both contiguous along k: TMA brings them, and they are multiplied
/// in place.
pub(super) const fn k_major(
    name: &'static str,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
) -> KernelSpec {
    let tile = tile(block, warp, thread, stages);
    KernelSpec {
        name,
        file: "ffma/ffma_kmajor_sm90",
        summary: "FP32 multiply-adds along k, TMA",
        tile,
        threads: derived::WARP_SPECIALIZED,
        dynamic_shared: derived::k_major(&tile),
        parallel_split_k: true,
        partial_sums: derived::k_major_sums(&tile),
        tma_boxes: Some(Layout::NT.whole_tiles(&tile, tile.bk)),
        needs: Layout::NT.needs(),
        ..FFMA
    }
}

/// The same with persistent blocks that share the steps of k equally where tiles do not fill whole waves.
pub(super) const fn k_major_stream_k(
    name: &'static str,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
) -> KernelSpec {
    KernelSpec {
        grid: Grid::Persistent,
        split_k: SplitK::StreamK,
        parallel_split_k: false,
        ..k_major(name, block, warp, thread, stages)
    }
}

/// Small m, K-major: a block keeps its slice of A, of at most so much of k, in shared memory and takes strips of the result from
/// a work queue. A box has what a math warp multiplies of a stage.
pub(super) const fn small_m(
    name: &'static str,
    block: [u32; 3],
    thread: [u32; 2],
    stages: u32,
    longest_slice: u32,
) -> KernelSpec {
    let tile = tile(block, NO_WARPS, thread, stages);
    KernelSpec {
        name,
        file: "ffma/ffma_small_m_sm90",
        summary: "FP32 multiply-adds along k, TMA, few rows",
        tile,
        threads: derived::WARP_SPECIALIZED,
        dynamic_shared: derived::small_m(&tile, longest_slice),
        grid: Grid::Persistent,
        split_k: SplitK::WorkQueue(longest_slice),
        partial_sums: derived::strip_sums(&tile),
        tma_boxes: Some(Layout::NT.whole_tiles(&tile, tile.bk / derived::MATH_WARPS)),
        needs: Needs {
            max_m: tile.bm,
            ..Layout::NT.needs()
        },
        ..FFMA
    }
}

// ---- GEMV ---------------------------------------------------------------------------------------------------------

/// Elements that a thread reads at a time.
const GEMV_K: u32 = 4;
/// Unit column stride.
pub(super) const ALONG_ROWS: &[Access] = &[Access::RowVector, Access::RowScalar];
/// Unit row stride.
pub(super) const ALONG_COLS: &[Access] = &[Access::ColVector, Access::ColScalar];

/// Streams one matrix past a few rows, or columns, of the other: all FFMA, lanes share k.
const fn gemv(name: &'static str, [bm, bn]: [u32; 2], warps: u32) -> KernelSpec {
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
pub(super) const fn dot_rows(name: &'static str, [bm, bn, bk]: [u32; 3], warps: u32) -> KernelSpec {
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
pub(super) const fn short_rows(name: &'static str, block: [u32; 3], lanes: u32) -> KernelSpec {
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
pub(super) const fn short_cols(name: &'static str, [bm, bn, bk]: [u32; 3], lanes: u32) -> KernelSpec {
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

/// The most rows of such a product. Blocks take as many of them as their tile has, past the same lines.
const BRIEF_ROWS: u32 = 64;
/// The longest k of a product that takes about as long as a launch: from some thousands on, kernels with more of it under way are faster.
const BRIEF_K: u32 = 2048;
/// The same for larger blocks than these, which have four times as much under way.
const BRIEF_DEEP_K: u32 = 16384;
const BRIEF_THREADS: u32 = 256;

/// Few vectors past small matrices, whose vectors pass through shared memory, BK of k in a turn, of which a thread has STEPS elements.
/// A block has so many lines of the matrix.
const fn brief(name: &'static str, block: [u32; 3], steps: u32, lines: u32) -> KernelSpec {
    let [bm, bn, bk] = block;
    let of_line = bk / steps; // threads
    KernelSpec {
        file: "gemv/brief",
        summary: "few rows or columns past small matrices, any alignment",
        tile: tile(block, NO_WARPS, NO_THREADS, 1),
        partial_sums: of_line,
        ..gemv(name, [bm, bn], lines * of_line / derived::WARP)
    }
}

/// The longest k for blocks of so many lines, each of which so many threads share.
const fn longest_brief_k(of_line: u32, lines: u32) -> u32 {
    if lines * of_line > BRIEF_THREADS {
        BRIEF_DEEP_K
    } else {
        BRIEF_K
    }
}

/// Rows of A, BM of them a block, past lines of B that lie as `b` says. Tile `[BM, BN, BK]`, then elements of a thread in a turn.
pub(super) const fn brief_rows(name: &'static str, block: [u32; 3], steps: u32, b: &'static [Access]) -> KernelSpec {
    let [_, lines, bk] = block;
    KernelSpec {
        needs: Needs {
            b,
            max_m: BRIEF_ROWS,
            max_k: longest_brief_k(bk / steps, lines),
            ..Needs::ANY
        },
        ..brief(name, block, steps, lines)
    }
}

/// At most BN columns of B past rows of A that lie as `a` says: with several tiles along n, blocks would each write some bytes of the same rows of D.
/// Tile `[BM, BN, BK]`, then elements of a thread in a turn.
pub(super) const fn brief_cols(name: &'static str, block: [u32; 3], steps: u32, a: &'static [Access]) -> KernelSpec {
    let [lines, bn, bk] = block;
    KernelSpec {
        needs: Needs {
            a,
            max_n: bn,
            max_k: longest_brief_k(bk / steps, lines),
            ..Needs::ANY
        },
        ..brief(name, block, steps, lines)
    }
}

/// At most BM rows of A past lines of B, of which each has a thread that takes BK of k in a turn. Tile `[BM, BN, BK]`.
pub(super) const fn brief_lines_rows(name: &'static str, block: [u32; 3]) -> KernelSpec {
    let [_, bn, bk] = block;
    brief_lines(brief_rows(name, block, bk, Needs::ANY.b), bn)
}

/// At most BN columns of B past rows of A, of which each has a thread that takes BK of k in a turn. Tile `[BM, BN, BK]`.
pub(super) const fn brief_lines_cols(name: &'static str, block: [u32; 3]) -> KernelSpec {
    let [bm, _, bk] = block;
    brief_lines(brief_cols(name, block, bk, Needs::ANY.a), bm)
}

/// This kernel with a thread for each line of a block.
const fn brief_lines(of: KernelSpec, lines: u32) -> KernelSpec {
    /// Of a line that a single thread takes.
    const LONGEST_K: u32 = 128;
    KernelSpec {
        summary: "few rows or columns past matrices with a short k, any layout",
        threads: lines,
        needs: Needs {
            max_k: LONGEST_K,
            ..of.needs
        },
        ..of
    }
}

/// Both operands lie along k and start on 16 bytes, which a thread reads at a time; at most BM rows of A. Tile `[BM, BN, BK]`, then threads that
/// share a line of B.
pub(super) const fn brief_wide(name: &'static str, block: [u32; 3], threads: u32) -> KernelSpec {
    let [_, _, bk] = block;
    let row = brief_rows(name, block, bk / threads, &[Access::ColVector]);
    KernelSpec {
        summary: "few rows past small matrices, 16 bytes at a time",
        needs: Needs {
            a: &[Access::RowVector],
            ..row.needs
        },
        ..row
    }
}

/// One matrix, at most BM rows of A; B is stored transposed, and blocks that stay stream it in groups of BN lines, BK of k at a time. Tile
/// `[BM, BN, BK]`, then warps and blocks a multiprocessor.
pub(super) const fn stream(
    name: &'static str,
    dtype: DType,
    [bm, bn, bk]: [u32; 3],
    warps: u32,
    blocks: u32,
) -> KernelSpec {
    KernelSpec {
        file: "gemv/gemv_stream",
        summary: "blocks that stay stream B past a row or two of A",
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

/// The same with a norm of the rows and gated columns inside, at the costs of the kernel without.
pub(super) const fn fused(name: &'static str, costs: &'static str, of: KernelSpec) -> KernelSpec {
    KernelSpec {
        name,
        summary: "the same with a norm of A's rows and gated columns",
        costs_of: Some(costs),
        fused: true,
        may_spill_on: &[],
        ..of
    }
}

/// One matrix, at most BM rows of A; B is stored transposed, and a block asks for all that it needs of both at once. k is cut across a
/// cluster where there are few columns. Tile `[BM, BN]`, then lanes of a warp along k and along the rows, and warps, which share k.
pub(super) const fn at_once(
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
            max_m: bm,
            max_batch: 1,
            ..Needs::ANY
        },
        ..gemv(name, [bm, bn], warps)
    }
}

/// At most BM rows of A; rows of B are scaled and added up.
pub(super) const fn axpy_rows(name: &'static str, block: [u32; 2], warps: u32) -> KernelSpec {
    few_rows(name, block, warps, ALONG_ROWS)
}

/// At most BN columns of B; rows of A run along k, BK of it in a turn. Tile `[BM, BN, BK]`, then warps.
pub(super) const fn dot_cols(name: &'static str, [bm, bn, bk]: [u32; 3], warps: u32) -> KernelSpec {
    KernelSpec {
        tile: tile([bm, bn, bk], NO_WARPS, NO_THREADS, 1),
        ..few_cols(name, [bm, bn], warps, ALONG_ROWS)
    }
}

/// At most BN columns of B; A is stored transposed, and its columns are scaled and added up.
pub(super) const fn axpy_cols(name: &'static str, block: [u32; 2], warps: u32) -> KernelSpec {
    few_cols(name, block, warps, ALONG_COLS)
}

// ---- thin products ------------------------------------------------------------------------------------------------

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

pub(super) const fn past_rows(block: [u32; 2], b: &'static [Access]) -> Needs {
    let [bm, _] = block;
    Needs {
        b,
        max_m: THIN_TILES * bm,
        ..Needs::ANY
    }
}

pub(super) const fn past_cols(block: [u32; 2], a: &'static [Access]) -> Needs {
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
pub(super) const fn thin_axpy_rows(name: &'static str, block: [u32; 2], warps: u32) -> KernelSpec {
    let [bm, bn] = block;
    let warp = thin_warp(bm, bn, 1);
    KernelSpec {
        needs: past_rows(block, ALONG_ROWS),
        ..thin_axpy(name, block, [bm, warp.each], warp, warps)
    }
}

/// A, stored transposed, past columns of B, BN at a time.
pub(super) const fn thin_axpy_cols(name: &'static str, block: [u32; 2], warps: u32) -> KernelSpec {
    let [bm, bn] = block;
    let warp = thin_warp(bn, bm, 1);
    KernelSpec {
        needs: past_cols(block, ALONG_COLS),
        ..thin_axpy(name, block, [warp.each, bn], warp, warps)
    }
}

/// B, whose rows 16 bytes fit, past rows of A, BM at a time: a lane reads four neighbours of a row at once. Tile `[BM, BN]`, then warps.
pub(super) const fn thin_wide_rows(name: &'static str, block: [u32; 2], warps: u32) -> KernelSpec {
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
pub(super) const fn thin_dot_cols(name: &'static str, block: [u32; 3], stages: u32) -> KernelSpec {
    let [bm, bn, bk] = block;
    let row = thin_dot(name, block, [bm / derived::THIN_DOT, bn], stages);
    KernelSpec {
        dynamic_shared: derived::thin_dot([bm, bn], bk, stages),
        needs: past_cols([bm, bn], ALONG_ROWS),
        ..row
    }
}

/// B, stored transposed, past rows of A, BM at a time.
pub(super) const fn thin_dot_rows(name: &'static str, block: [u32; 3], stages: u32) -> KernelSpec {
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
pub(super) const fn thin_run_cols(name: &'static str, block: [u32; 3]) -> KernelSpec {
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
pub(super) const fn thin_run_rows(name: &'static str, block: [u32; 3]) -> KernelSpec {
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

// ---- tensor cores -------------------------------------------------------------------------------------------------

/// On Hopper: TMA brings operands of one layout, wgmma multiplies.
const fn wgmma(
    name: &'static str,
    arithmetic: Arithmetic,
    layout: Layout,
    block: [u32; 3],
    registers: Registers,
    clusters: Clusters,
) -> KernelSpec {
    let tile = tile(block, NO_WARPS, NO_THREADS, 1);
    let frame = Wgmma::new(arithmetic, layout, &tile, registers, clusters);
    let stages = frame.stages();
    let (grid, split_k) = frame.grid();
    KernelSpec {
        name,
        dtype: DType::F32,
        arithmetic,
        tile: Tile { stages, ..tile },
        threads: frame.threads(),
        dynamic_shared: frame.shared(),
        grid,
        split_k,
        parallel_split_k: matches!(clusters, Clusters::CutK),
        tma_boxes: Some(frame.boxes()),
        needs: layout.needs(),
        ..PRODUCTION
    }
}

/// Three TF32 products for each FP32 product.
pub(super) const fn tf32x3(
    name: &'static str,
    layout: Layout,
    block: [u32; 3],
    registers: Registers,
    clusters: Clusters,
) -> KernelSpec {
    KernelSpec {
        file: "tensor_core/gemm_tf32x3_sm90",
        summary: "three TF32 products, TMA and wgmma",
        ..wgmma(name, Arithmetic::Tf32x3, layout, block, registers, clusters)
    }
}

/// One.
pub(super) const fn tf32(
    name: &'static str,
    layout: Layout,
    block: [u32; 3],
    registers: Registers,
    clusters: Clusters,
) -> KernelSpec {
    KernelSpec {
        file: "tensor_core/gemm_tf32_sm90",
        summary: "one TF32 product, TMA and wgmma",
        ..wgmma(name, Arithmetic::Tf32, layout, block, registers, clusters)
    }
}

/// On any device, any layout: mma.sync.
pub(super) const fn mma(
    name: &'static str,
    arithmetic: Arithmetic,
    block: [u32; 3],
    warp: [u32; 2],
    stages: u32,
) -> KernelSpec {
    let tile = tile(block, warp, NO_THREADS, stages);
    KernelSpec {
        name,
        file: "tensor_core/gemm_tf32x3_mma",
        summary: "TF32 products by mma.sync, any layout",
        dtype: DType::F32,
        arithmetic,
        tile,
        threads: derived::threads_of_warps(&tile),
        dynamic_shared: derived::ring(&tile, DType::F32),
        parallel_split_k: true,
        pdl: true,
        ..PRODUCTION
    }
}
