//! Products of 16-bit numbers on tensor cores, with sums in FP32. Every kernel stands here twice, for `f16` and for `bf16`: one
//! template makes both, at the same costs. (Of `gemv_stream_…_m1_k2048` one multiplies on tensor cores alone, that for `f16`.)

use super::super::spec::{Arithmetic, Grid, Inside, KernelSpec, Needs, Side, SplitK, TmaBox};
use super::derived;
use super::derived::Layout::{self, NN, NT, TN, TT};
use super::families;
use super::families::row::{tile, NO_THREADS, NO_WARPS, PRODUCTION};
use crate::gemm::operands::{Access, DType};

/// Portion of k of every kernel.
const BK: u32 = 64;
/// Elements of 128 bytes: what a row of a box has, so that its chunks are swizzled.
const SWIZZLED: u32 = 64;
/// Rows of a box of D: those of a warp's fragment.
const D_ROWS: u32 = 16;

/// Barriers of a kernel for Hopper, and what aligns its ring.
const BARRIERS: u32 = 256;
/// Where a block's last 16 tiles lie, where boxes of D are stored.
const PLACES: u32 = 16 * 32;
/// Boxes of D that a warp fills in turn.
const BUFFERS: u32 = 2;
/// Threads of the producer warp.
const PRODUCER: u32 = derived::WARP;
/// The same where registers are dealt between it and consumers, which whole warpgroups do.
const PRODUCER_WARPGROUP: u32 = 4 * derived::WARP;
/// Bytes of an element.
const BYTES: u32 = DType::F16.size() as u32;

/// A kernel of this type with the costs of another, which is itself for the second type.
const fn half(
    name: &'static str,
    costs: &'static str,
    dtype: DType,
    [bm, bn, stages]: [u32; 3],
    threads: u32,
) -> KernelSpec {
    KernelSpec {
        name,
        costs_of: match dtype {
            DType::F16 => Some(costs),
            _ => None,
        },
        dtype,
        arithmetic: Arithmetic::Half,
        tile: tile([bm, bn, BK], NO_WARPS, NO_THREADS, stages),
        threads,
        ..PRODUCTION
    }
}

/// Any layout, on any device: mma.sync.
const fn mma(name: &'static str, costs: &'static str, dtype: DType, block: [u32; 3], warp: [u32; 2]) -> KernelSpec {
    let [bm, bn, stages] = block;
    let tile = tile([bm, bn, BK], warp, NO_THREADS, stages);
    KernelSpec {
        file: "tensor_core/gemm_half_mma",
        summary: "16-bit products by mma.sync, any layout",
        parallel_split_k: true,
        pdl: true,
        tile,
        dynamic_shared: derived::ring(&tile, dtype),
        ..half(name, costs, dtype, block, derived::threads_of_warps(&tile))
    }
}

/// The boxes in which A and B come: along k where that is how they lie, along the other dimension where not. Of rows or
/// columns that two blocks share, each brings one half.
const fn boxes(layout: Layout, bm: u32, bn: u32) -> [TmaBox; 2] {
    [
        TmaBox::new(SWIZZLED, if layout.a_along_k() { bm } else { BK }),
        TmaBox::new(SWIZZLED, if layout.b_along_k() { bn } else { BK }),
    ]
}

/// On Hopper: TMA brings boxes of A and B, wgmma multiplies them, TMA stores boxes of D of so many columns (0: threads store).
const fn wgmma(
    name: &'static str,
    costs: &'static str,
    dtype: DType,
    layout: Layout,
    block: [u32; 3],
    d_columns: u32,
    [consumers, blocks]: [u32; 2],
) -> KernelSpec {
    let [bm, bn, stages] = block;
    let staging = consumers * 4 * BUFFERS * D_ROWS * d_columns * BYTES;
    let places = if d_columns > 0 { PLACES } else { 0 };
    let producer = if blocks == 1 { PRODUCER_WARPGROUP } else { PRODUCER };
    KernelSpec {
        file: "tensor_core/gemm_half_sm90",
        summary: "16-bit products, TMA and wgmma",
        dynamic_shared: stages * (bm + bn) * BK * BYTES + staging + BARRIERS + places,
        grid: Grid::Persistent,
        // The ring of two large blocks does not hold what each adds up.
        split_k: if consumers * blocks > 2 {
            SplitK::Never
        } else {
            SplitK::Cluster
        },
        parallel_split_k: true,
        blocks_per_multiprocessor: blocks,
        tma_boxes: Some(boxes(layout, bm, bn)),
        d_box: match d_columns {
            0 => None,
            columns => Some(TmaBox::new(columns, D_ROWS)),
        },
        needs: layout.needs(),
        // Two blocks of two warpgroups leave few registers: some of what an epilogue reads is spilled.
        may_spill_on: if consumers * blocks > 2 { &[90] } else { &[] },
        ..half(name, costs, dtype, block, consumers * 4 * derived::WARP + producer)
    }
}

/// The same for few rows with tiles of so many columns that all multiprocessors have as many: boxes of B are `rows` high, of which those
/// beyond the tile are the next one's.
const fn narrower(
    name: &'static str,
    costs: &'static str,
    dtype: DType,
    [bm, bn, stages]: [u32; 3],
    rows: u32,
) -> KernelSpec {
    let of = wgmma(name, costs, dtype, NT, [bm, rows, stages], 0, [1, 2]);
    KernelSpec {
        tile: tile([bm, bn, BK], NO_WARPS, NO_THREADS, stages),
        ..of
    }
}

/// The same with 2-CTA clusters of neighbours along one side: along m they share columns of B, along n rows of A. Clusters share the last
/// tiles by ranges of k where they are no whole waves.
const fn shared(
    name: &'static str,
    costs: &'static str,
    dtype: DType,
    along: Side,
    layout: Layout,
    block: [u32; 3],
    d_columns: u32,
) -> KernelSpec {
    let [bm, bn, _] = block;
    let [rows, columns] = match along {
        Side::M => [bm, bn / 2],
        Side::N => [bm / 2, bn],
    };
    KernelSpec {
        grid: Grid::Clusters(along),
        split_k: SplitK::StreamK,
        parallel_split_k: false,
        tma_boxes: Some(boxes(layout, rows, columns)),
        ..wgmma(name, costs, dtype, layout, block, d_columns, [2, 1])
    }
}

/// The same with gated columns, of which two of A·B make one of D, in 2-CTA clusters or without, at the costs of a kernel without gates.
const fn gated(
    name: &'static str,
    _: &'static str,
    dtype: DType,
    costs: &'static str,
    block: [u32; 3],
    d_columns: u32,
    clusters: bool,
) -> KernelSpec {
    let [bm, bn, _] = block;
    // Each box of a tile has a buffer of its own, of which two are counted already.
    let buffers = bn / 2 / d_columns;
    let staging = bm / D_ROWS * (buffers - BUFFERS) * D_ROWS * d_columns * BYTES;
    let of = match clusters {
        true => KernelSpec {
            split_k: SplitK::Never,
            ..shared(name, costs, dtype, Side::M, NT, block, d_columns)
        },
        false => wgmma(name, costs, dtype, NT, block, d_columns, [2, 1]),
    };
    KernelSpec {
        summary: "16-bit products with gated columns, TMA and wgmma",
        dynamic_shared: of.dynamic_shared + staging,
        costs_of: Some(costs),
        inside: Inside::Gates,
        parallel_split_k: false,
        ..of
    }
}

/// Few rows: mma.sync with the weights straight from memory.
const fn gemv(name: &'static str, costs: &'static str, dtype: DType, [bm, bn]: [u32; 2]) -> KernelSpec {
    /// Elements that a thread reads at once.
    const VECTOR: u32 = 16 / BYTES;
    const WARPS: u32 = 8;
    const ROWS: &[Access] = &[Access::RowVector];
    const COLS: &[Access] = &[Access::ColVector];
    KernelSpec {
        file: "gemv/gemv_half",
        summary: "streams B once past a few rows of A, 16 bits",
        pdl: true,
        tile: tile([bm, bn, VECTOR], NO_WARPS, NO_THREADS, 1),
        needs: Needs {
            a: ROWS,
            b: COLS,
            max_m: bm,
            ..Needs::ANY
        },
        ..half(name, costs, dtype, [bm, bn, 1], WARPS * derived::WARP)
    }
}

/// One or two rows: persistent blocks.
const fn stream(
    name: &'static str,
    costs: &'static str,
    dtype: DType,
    tile: [u32; 3],
    [warps, blocks]: [u32; 2],
    spills_on: &'static [u32],
) -> KernelSpec {
    let row = half(name, costs, dtype, tile, warps * derived::WARP);
    KernelSpec {
        costs_of: row.costs_of,
        arithmetic: Arithmetic::Half,
        may_spill_on: spills_on,
        ..families::gemv::stream(name, dtype, tile, warps, blocks)
    }
}

/// At most eight rows: mma.sync, and persistent blocks whose warps copy lines of B to rings of their own. Warps, stages of a ring, groups of
/// lines between two meetings of a block's warps, blocks a multiprocessor.
const fn ring(
    name: &'static str,
    costs: &'static str,
    dtype: DType,
    [warps, stages, groups, blocks]: [u32; 4],
) -> KernelSpec {
    const ROWS: u32 = 8;
    /// Of a group.
    const LINES: u32 = 8;
    /// What a warp copies of a line at once: a vector a lane.
    const K: u32 = derived::WARP * 16 / BYTES;
    const BARRIER: u32 = 8;
    let sums = 2 * ROWS * groups * LINES * DType::F32.size() as u32;
    KernelSpec {
        file: "gemv/gemv_ring_sm90",
        summary: "persistent blocks copy B past up to eight rows of A, 16 bits",
        tile: tile([ROWS, LINES, warps * K], NO_WARPS, NO_THREADS, stages),
        dynamic_shared: warps * (stages * LINES * K * BYTES + sums) + BARRIER,
        grid: Grid::Persistent,
        blocks_per_multiprocessor: blocks,
        partial_sums: warps,
        pdl: true,
        needs: Needs {
            a: &[Access::RowVector],
            b: &[Access::ColVector],
            max_m: ROWS,
            max_batch: 1,
            ..derived::Layout::NT.needs()
        },
        ..half(name, costs, dtype, [ROWS, LINES, stages], warps * derived::WARP)
    }
}

/// One or two rows as [`stream`] takes them, with a norm of the rows and gated columns inside, at the costs of a kernel without that multiplies and is
/// launched as this one is, or at its own.
const fn fused(
    name: &'static str,
    costs: &'static str,
    dtype: DType,
    of_plain: Option<&'static str>,
    tile: [u32; 3],
    blocks: [u32; 2],
    spills_on: &'static [u32],
) -> KernelSpec {
    families::gemv::fused(name, of_plain, stream(name, costs, dtype, tile, blocks, spills_on))
}

/// Few rows past lines of B whose k is short, by multiply-adds: rows, and lines of B of a block.
const fn short_rows(name: &'static str, costs: &'static str, dtype: DType, [rows, lines]: [u32; 2]) -> KernelSpec {
    const SOURCE: [&str; 2] = [
        "gemv/gemv_short_half",
        "streams lines of B whose k is short past a few rows of A, 16 bits",
    ];
    let of = families::gemv::short_rows(name, [rows, lines, 128], 8);
    KernelSpec {
        // For compute capability 10.0 the compiler spills some bytes of this one.
        may_spill_on: match (dtype, rows) {
            (DType::BF16, 2) => &[100],
            _ => &[],
        },
        ..multiply_adds(of, costs, dtype, SOURCE)
    }
}

/// Few columns past rows of A whose k is short, likewise: rows of A of a block, columns, and k of a turn.
const fn short_cols(name: &'static str, costs: &'static str, dtype: DType, block: [u32; 3]) -> KernelSpec {
    const SOURCE: [&str; 2] = [
        "gemv/gemv_short_half",
        "streams rows of A whose k is short past a few columns of B, 16 bits",
    ];
    multiply_adds(families::gemv::short_cols(name, block, 8), costs, dtype, SOURCE)
}

/// Up to 64 rows past lines of small matrices, by multiply-adds: tile, and threads that share a line of B.
const fn brief(name: &'static str, costs: &'static str, dtype: DType, block: [u32; 3], threads: u32) -> KernelSpec {
    const SOURCE: [&str; 2] = [
        "gemv/brief_half",
        "few rows past small matrices, 16 bytes at a time, 16 bits",
    ];
    multiply_adds(families::brief::brief_wide(name, block, threads), costs, dtype, SOURCE)
}

/// A kernel for FP32 with elements of this type, by the same multiply-adds, from this file and with this summary.
const fn multiply_adds(
    of: KernelSpec,
    costs: &'static str,
    dtype: DType,
    [file, summary]: [&'static str; 2],
) -> KernelSpec {
    KernelSpec {
        file,
        summary,
        costs_of: half(of.name, costs, dtype, [of.tile.bm, of.tile.bn, 1], of.threads).costs_of,
        dtype,
        arithmetic: Arithmetic::Half,
        ..of
    }
}

/// Sums of at most BK products, straight from memory, by multiply-adds.
const fn few_k(name: &'static str, costs: &'static str, dtype: DType, block: [u32; 3], rows: u32) -> KernelSpec {
    const SOURCE: [&str; 2] = [
        "ffma/few_k_half",
        "sums of a few products straight from memory, 16 bits",
    ];
    multiply_adds(families::ffma::few_k(name, block, rows), costs, dtype, SOURCE)
}

/// Outer products and sums of up to BK products, whose results are large, by multiply-adds.
const fn outer(name: &'static str, costs: &'static str, dtype: DType, block: [u32; 3], warps: u32) -> KernelSpec {
    const SOURCE: [&str; 2] = [
        "ffma/outer_half",
        "outer products and sums of a few, stored row by row, 16 bits",
    ];
    multiply_adds(families::ffma::outer(name, block, warps), costs, dtype, SOURCE)
}

/// The file of kernels for thin products, and what they are for: those whose matrix runs along k.
const DOT: [&str; 2] = [
    "gemv/thin_half_dot",
    "a matrix along k past few vectors, 16 bits, any alignment",
];
/// The same of those whose matrix runs along its lines.
const AXPY: [&str; 2] = [
    "gemv/thin_half_axpy",
    "a matrix along its lines past few vectors, 16 bits, any alignment",
];

/// Few vectors past a matrix at any alignment, by mma.sync with the matrix straight from memory: a kernel that takes so much of k, in
/// so many warps along the matrix's lines and along k.
const fn thin(
    [file, summary]: [&'static str; 2],
    name: &'static str,
    costs: &'static str,
    dtype: DType,
    [bm, bn, bk]: [u32; 3],
    [line_warps, k_warps]: [u32; 2],
    needs: Needs,
) -> KernelSpec {
    KernelSpec {
        file,
        summary,
        tile: tile([bm, bn, bk], NO_WARPS, NO_THREADS, 1),
        partial_sums: k_warps,
        split_k: SplitK::Cluster,
        parallel_split_k: true,
        pdl: true,
        needs,
        ..half(name, costs, dtype, [bm, bn, 1], line_warps * k_warps * derived::WARP)
    }
}

/// What both of these have in common. With four warps the compiler spills three registers on compute capability 9.0.
const fn dot(of: KernelSpec) -> KernelSpec {
    KernelSpec {
        parallel_split_k: false,
        may_spill_on: if of.threads == 4 * derived::WARP { &[90] } else { &[] },
        ..of
    }
}

/// A past few columns of B.
const fn dot_cols(
    name: &'static str,
    costs: &'static str,
    dtype: DType,
    block: [u32; 3],
    warps: [u32; 2],
) -> KernelSpec {
    let needs = families::thin::past_cols([block[0], block[1]], families::gemv::ALONG_ROWS);
    dot(thin(DOT, name, costs, dtype, block, warps, needs))
}

/// B, stored transposed, past few rows of A.
const fn dot_rows(
    name: &'static str,
    costs: &'static str,
    dtype: DType,
    block: [u32; 3],
    warps: [u32; 2],
) -> KernelSpec {
    let needs = families::thin::past_rows([block[0], block[1]], families::gemv::ALONG_COLS);
    dot(thin(DOT, name, costs, dtype, block, warps, needs))
}

/// B past few rows of A.
const fn axpy_rows(
    name: &'static str,
    costs: &'static str,
    dtype: DType,
    block: [u32; 3],
    warps: [u32; 2],
) -> KernelSpec {
    let needs = families::thin::past_rows([block[0], block[1]], families::gemv::ALONG_ROWS);
    thin(AXPY, name, costs, dtype, block, warps, needs)
}

/// A, stored transposed, past few columns of B.
const fn axpy_cols(
    name: &'static str,
    costs: &'static str,
    dtype: DType,
    block: [u32; 3],
    warps: [u32; 2],
) -> KernelSpec {
    let needs = families::thin::past_cols([block[0], block[1]], families::gemv::ALONG_COLS);
    thin(AXPY, name, costs, dtype, block, warps, needs)
}

/// Both types of a family's kernels. The costs are those of the second.
macro_rules! both {
    ($f16:ident, $bf16:ident, $($make:ident($kind:literal, $name:literal, $($argument:expr),*),)*) => {
        pub(super) const $f16: &[KernelSpec] =
            &[$($make(concat!($kind, "_f16_", $name), concat!($kind, "_bf16_", $name), DType::F16, $($argument),*),)*];
        pub(super) const $bf16: &[KernelSpec] =
            &[$($make(concat!($kind, "_bf16_", $name), concat!($kind, "_bf16_", $name), DType::BF16, $($argument),*),)*];
    };
}

both! { F16, BF16,
    // tile and stages, warp tile
    mma("gemm", "mma_128x128", [128, 128, 3], [64, 32]),
    mma("gemm", "mma_64x64", [64, 64, 3], [32, 32]),
    mma("gemm", "mma_16x64", [16, 64, 4], [16, 16]),
    // neighbours along, layout, tile and stages, columns of a box of D
    shared("gemm", "sm90_128x256_2cta_nt", Side::M, NT, [128, 256, 4], 64),
    shared("gemm", "sm90_128x256_2cta_nn", Side::M, NN, [128, 256, 4], 64),
    shared("gemm", "sm90_128x256_2cta_tn", Side::M, TN, [128, 256, 4], 64),
    shared("gemm", "sm90_128x256_2cta_tt", Side::M, TT, [128, 256, 4], 64),
    shared("gemm", "sm90_128x224_2cta_nt", Side::M, NT, [128, 224, 4], 32),
    shared("gemm", "sm90_128x192_2cta_nt", Side::M, NT, [128, 192, 4], 64),
    shared("gemm", "sm90_128x128_2cta_nt", Side::M, NT, [128, 128, 6], 64),
    shared("gemm", "sm90_128x128_2cta_nn", Side::M, NN, [128, 128, 6], 64),
    shared("gemm", "sm90_128x128_2cta_tn", Side::M, TN, [128, 128, 6], 64),
    shared("gemm", "sm90_128x128_2cta_tt", Side::M, TT, [128, 128, 6], 64),
    shared("gemm", "sm90_128x128_2cta_along_n_nt", Side::N, NT, [128, 128, 6], 64),
    shared("gemm", "sm90_128x96_2cta_along_n_nt", Side::N, NT, [128, 96, 7], 32),
    // costs, tile and stages, columns of a box of D, whether in clusters
    gated("gemm", "sm90_128x256_2cta_gated_nt", "gemm_bf16_sm90_128x256_2cta_nt", [128, 256, 4], 32, true),
    gated("gemm", "sm90_128x224_2cta_gated_nt", "gemm_bf16_sm90_128x224_2cta_nt", [128, 224, 4], 16, true),
    gated("gemm", "sm90_128x128_gated_nt", "gemm_bf16_sm90_128x128_nt", [128, 128, 6], 16, false),
    // layout, tile and stages, columns of a box of D, warpgroups that multiply and blocks a multiprocessor
    wgmma("gemm", "sm90_128x96_nt", NT, [128, 96, 7], 32, [2, 1]),
    wgmma("gemm", "sm90_128x112_nt", NT, [128, 112, 7], 16, [2, 1]),
    wgmma("gemm", "sm90_128x256_nt", NT, [128, 256, 4], 32, [2, 1]),
    wgmma("gemm", "sm90_128x256_nn", NN, [128, 256, 4], 32, [2, 1]),
    wgmma("gemm", "sm90_128x256_tn", TN, [128, 256, 4], 32, [2, 1]),
    wgmma("gemm", "sm90_128x192_nt", NT, [128, 192, 5], 32, [2, 1]),
    wgmma("gemm", "sm90_128x192_nn", NN, [128, 192, 5], 32, [2, 1]),
    wgmma("gemm", "sm90_128x192_tn", TN, [128, 192, 5], 32, [2, 1]),
    wgmma("gemm", "sm90_128x192_tt", TT, [128, 192, 5], 32, [2, 1]),
    wgmma("gemm", "sm90_128x128_nt", NT, [128, 128, 6], 32, [2, 1]),
    wgmma("gemm", "sm90_128x128_nn", NN, [128, 128, 6], 32, [2, 1]),
    wgmma("gemm", "sm90_128x128_tn", TN, [128, 128, 6], 32, [2, 1]),
    wgmma("gemm", "sm90_128x128_tt", TT, [128, 128, 6], 32, [2, 1]),
    wgmma("gemm", "sm90_128x64_nt", NT, [128, 64, 8], 32, [2, 1]),
    wgmma("gemm", "sm90_128x64_nn", NN, [128, 64, 8], 32, [2, 1]),
    wgmma("gemm", "sm90_128x64_tn", TN, [128, 64, 8], 32, [2, 1]),
    wgmma("gemm", "sm90_128x64_tt", TT, [128, 64, 8], 32, [2, 1]),
    wgmma("gemm", "sm90_64x96_nt", NT, [64, 96, 11], 16, [1, 1]),
    wgmma("gemm", "sm90_64x112_nt", NT, [64, 112, 10], 16, [1, 1]),
    wgmma("gemm", "sm90_64x64_deep_nt", NT, [64, 64, 12], 16, [1, 1]),
    wgmma("gemm", "sm90_64x64_nt", NT, [64, 64, 6], 16, [1, 2]),
    wgmma("gemm", "sm90_64x64_nn", NN, [64, 64, 6], 16, [1, 2]),
    wgmma("gemm", "sm90_64x64_tn", TN, [64, 64, 6], 16, [1, 2]),
    wgmma("gemm", "sm90_64x64_tt", TT, [64, 64, 6], 16, [1, 2]),
    wgmma("gemm", "sm90_128x128_2blocks_nt", NT, [128, 128, 3], 32, [2, 2]),
    wgmma("gemm", "sm90_128x128_2blocks_nn", NN, [128, 128, 3], 32, [2, 2]),
    wgmma("gemm", "sm90_128x128_2blocks_tn", TN, [128, 128, 3], 32, [2, 2]),
    wgmma("gemm", "sm90_128x128_2blocks_tt", TT, [128, 128, 3], 32, [2, 2]),
    wgmma("gemm", "sm90_8x64_nt", NT, [8, 64, 12], 0, [1, 2]),
    wgmma("gemm", "sm90_16x64_nt", NT, [16, 64, 11], 0, [1, 2]),
    wgmma("gemm", "sm90_32x64_nt", NT, [32, 64, 9], 0, [1, 2]),
    narrower("gemm", "sm90_8x56_nt", [8, 56, 12], 64),
    narrower("gemm", "sm90_16x56_nt", [16, 56, 11], 64),
    narrower("gemm", "sm90_32x56_nt", [32, 56, 9], 64),
    wgmma("gemm", "sm90_16x64_deep_nt", NT, [16, 64, 12], 0, [1, 1]),
    wgmma("gemm", "sm90_32x64_deep_nt", NT, [32, 64, 12], 0, [1, 1]),
    wgmma("gemm", "sm90_16x64_nn", NN, [16, 64, 11], 0, [1, 2]),
    wgmma("gemm", "sm90_32x64_nn", NN, [32, 64, 9], 0, [1, 2]),
    // tile
    gemv("gemv", "m8_n8", [8, 8]),
    gemv("gemv", "m8_n16", [8, 16]),
    gemv("gemv", "m16_n8", [16, 8]),
    // tile, warps and blocks a multiprocessor, where it may spill
    stream("gemv_stream", "m1_k1024", [1, 4, 1024], [4, 5], &[]),
    stream("gemv_stream", "m1_k2048", [1, 4, 2048], [4, 4], &[]),
    stream("gemv_stream", "m1_k2048_6blocks", [1, 2, 2048], [4, 6], &[]),
    stream("gemv_stream", "m1_k3072", [1, 2, 3072], [6, 4], &[]),
    stream("gemv_stream", "m1_k4096", [1, 2, 4096], [4, 4], &[80]),
    stream("gemv_stream", "m1_k4096_3blocks", [1, 2, 4096], [8, 3], &[]),
    stream("gemv_stream", "m2_k2048", [2, 2, 2048], [2, 8], &[100, 120]),
    stream("gemv_stream", "m2_k4096", [2, 2, 4096], [4, 4], &[]),
    // warps, stages, groups and blocks a multiprocessor
    ring("gemv_ring", "m8", [16, 2, 8, 1]),
    ring("gemv_ring", "m8_2blocks", [8, 3, 4, 2]),
    // tile, warps along the lines and along k
    dot_cols("thin_dot", "16x8", [16, 8, 128], [1, 4]),
    dot_cols("thin_dot", "16x8_deep", [16, 8, 512], [1, 8]),
    dot_cols("thin_dot", "64x8", [64, 8, 64], [4, 1]),
    dot_rows("thin_dot", "8x16", [8, 16, 256], [1, 4]),
    dot_rows("thin_dot", "8x16_deep", [8, 16, 512], [1, 8]),
    dot_rows("thin_dot", "8x64", [8, 64, 64], [4, 1]),
    axpy_rows("thin_axpy", "8x64", [8, 64, 128], [1, 8]),
    axpy_rows("thin_axpy", "8x256", [8, 256, 16], [4, 1]),
    axpy_rows("thin_axpy", "16x64", [16, 64, 128], [1, 8]),
    axpy_rows("thin_axpy", "16x256", [16, 256, 16], [4, 1]),
    axpy_cols("thin_axpy", "64x8", [64, 8, 128], [1, 8]),
    axpy_cols("thin_axpy", "256x8", [256, 8, 16], [4, 1]),
    // rows, lines of B of a block
    short_rows("gemv_short", "m1", [1, 64]),
    short_rows("gemv_short", "m2", [2, 64]),
    short_rows("gemv_short", "m4", [4, 32]),
    // tile, threads that share a line of B
    brief("brief", "1x4", [1, 4, 1024], 64),
    brief("brief", "1x8", [1, 8, 768], 32),
    brief("brief", "1x16", [1, 16, 256], 16),
    brief("brief", "4x32", [4, 32, 64], 8),
    // rows of A of a block, columns, k of a turn
    short_cols("gemv_short", "n1", [64, 1, 128]),
    short_cols("gemv_short", "n2", [64, 2, 128]),
    short_cols("gemv_short", "n4", [32, 4, 128]),
    // tile, most of k, rows of a thread
    few_k("few_k", "128x8", [128, 8, 16], 4),
    few_k("few_k", "16x64", [16, 64, 16], 4),
    few_k("few_k", "512x1", [512, 1, 16], 2),
    few_k("few_k", "1x256", [1, 256, 16], 1),
    // tile, most of k, warps
    outer("outer", "16x32x8", [16, 32, 8], 1),
    outer("outer", "64x128x8", [64, 128, 8], 4),
    outer("outer", "128x64x8", [128, 64, 8], 4),
    outer("outer", "256x32x8", [256, 32, 8], 4),
    outer("outer", "16x32x16", [16, 32, 16], 1),
    outer("outer", "64x128x16", [64, 128, 16], 4),
    outer("outer", "128x64x16", [128, 64, 16], 4),
    outer("outer", "256x32x16", [256, 32, 16], 4),
    // whose costs if not its own, tile, warps and blocks a multiprocessor, where it may spill
    fused("gemv_fused", "m1_k1024", Some("gemv_stream_bf16_m1_k1024"), [1, 4, 1024], [4, 5], &[]),
    fused("gemv_fused", "m1_k2048", Some("gemv_stream_bf16_m1_k2048"), [1, 4, 2048], [4, 4], &[]),
    fused("gemv_fused", "m1_k4096", None, [1, 2, 4096], [8, 3], &[80, 86, 89, 120]),
    fused("gemv_fused", "m2_k2048", None, [2, 4, 2048], [4, 3], &[]),
}
