//! What the table derives is what the CUDA sources say: threads, shared memory, partial sums, tiles and TMA boxes of every kernel. Needs
//! nvcc but no GPU, and neither a build with `cuda`: it compiles assertions.

#[path = "../src/architectures.rs"]
#[allow(dead_code)] // the build script and the library have the other parts
mod architectures;
#[path = "common/kernel_files.rs"]
mod kernel_files;
#[path = "common/needs.rs"]
mod needs;

use candle_sgemm::attention::{self, Shape};
use candle_sgemm::gemm::kernel::spec::{Role, SplitK, TmaBox};
use candle_sgemm::gemm::{Access, KernelSpec, TABLE};
use candle_sgemm::rowwise::kernels::Reading;
use candle_sgemm::rowwise::{self, RowwiseKernel};
use candle_sgemm::transpose;
use kernel_files::kernel_files;
use needs::skip;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// How sources make kernels: a macro with its parameters, the type that it makes a kernel of (`C` below), and what that says of the
/// row, by the names of [`facts`]. What is not named here the macro's kernels do not have.
struct Family {
    made_by: &'static str,
    of: &'static str,
    says: &'static [(&'static str, &'static str)],
}

/// Boxes of kernels for which TMA brings whole tiles: BK along k, all rows of the tile across.
macro_rules! whole_tiles {
    ($a_along_k:literal, $b_along_k:literal, $($more:tt)*) => {
        &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "C::BK"), $($more)*
            ("a_along_k", $a_along_k), ("b_along_k", $b_along_k),
            ("a_inner", concat!($a_along_k, " ? C::BK : BM")), ("a_outer", concat!($a_along_k, " ? BM : C::BK")),
            ("b_inner", concat!($b_along_k, " ? C::BK : BN")), ("b_outer", concat!($b_along_k, " ? BN : C::BK")),
        ]
    };
}

/// Register operand R and shared operand S of the frame for wgmma.
#[rustfmt::skip]
const WGMMA: &[(&str, &str)] = &[
    ("bm", "SWAPPED ? BS : BR"), ("bn", "SWAPPED ? BR : BS"), ("bk", "BK"), ("partial_sums", "1"), ("threads", "C::THREADS"),
    ("stages", "C::STAGES"), ("a_along_k", "(SWAPPED ? S_MAJOR : MAJOR) == Major::kK"), ("b_along_k", "(SWAPPED ? MAJOR : S_MAJOR) == Major::kK"),
    ("a_inner", "BK"), ("b_inner", "BK"),
    ("a_outer", "SWAPPED ? (S_MAJOR == Major::kK ? BS / MULTICAST : kBox<float>) : MAJOR == Major::kK ? BR : kBox<float>"),
    ("b_outer", "SWAPPED ? (MAJOR == Major::kK ? BR : kBox<float>) : S_MAJOR == Major::kK ? BS / MULTICAST : kBox<float>"),
];

/// Few rows past small matrices, both along k, 16 bytes at a time.
const BRIEF_WIDE: &[(&str, &str)] = &[
    ("norms", "false"),
    ("gates", "false"),
    ("bm", "M"),
    ("bn", "LINES"),
    ("bk", "C::kTurn"),
    ("threads", "C::kThreads"),
    ("partial_sums", "C::kGroups * C::kLanesK"),
    ("most_rows", "brief::kMostRows"),
    ("most_cols", "0"),
    ("a_along_k", "true"),
    ("b_along_k", "true"),
];

#[rustfmt::skip]
const FAMILIES: &[Family] = &[
    Family {
        made_by: "ASYNC_PIPELINED(NAME, BM, BN, BK, WM, WN, TM, TN, STAGES)",
        of: "AsyncPipelined<BM, BN, BK, WM, WN, TM, TN, STAGES>",
        says: &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "BK"), ("wm", "WM"), ("wn", "WN"), ("tm", "TM"), ("tn", "TN"), ("stages", "STAGES"),
            ("partial_sums", "1"), ("threads", "C::kThreads"),
        ],
    },
    Family {
        made_by: "FFMA_TILED(NAME, BLOCKS, BM, BN, BK, LM, TM, TN, WARPS_K)",
        of: "ffma_gemm::ThroughRegisters<BM, BN, BK, LM, TM, TN, WARPS_K>",
        says: &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "BK"), ("wm", "C::Thread::kWarpM"), ("wn", "C::Thread::kWarpN"), ("tm", "TM"), ("tn", "TN"),
            ("stages", "C::kBuffers"), ("partial_sums", "C::kThreads / C::kGroup"), ("threads", "C::kThreads"),
        ],
    },
    Family {
        made_by: "FFMA_PIPELINED(NAME, BLOCKS, BM, BN, BK, WM, WN, TM, TN, STAGES)",
        of: "ffma_gemm::Asynchronous<BM, BN, BK, WM, WN, TM, TN, STAGES>",
        says: &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "BK"), ("wm", "WM"), ("wn", "WN"), ("tm", "TM"), ("tn", "TN"), ("stages", "STAGES"),
            ("partial_sums", "1"), ("threads", "C::kThreads"),
        ],
    },
    Family {
        made_by: "FFMA_WORDS(NAME, BLOCKS, BM, BN, BK, TM, STAGES)",
        of: "ffma_gemm::Words<BM, BN, BK, TM, STAGES>",
        says: &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "BK"), ("tm", "TM"), ("tn", "C::TN"), ("stages", "STAGES"), ("partial_sums", "1"),
            ("threads", "C::kThreads"),
        ],
    },
    Family {
        made_by: "FFMA_UNALIGNED(NAME, BLOCKS, BM, BN, BLOCK_K, WM, WN, TM, TN, STAGES, ROLLED, SHORT, GROUPS)",
        of: "ffma_gemm::Unaligned<BM, BN, BLOCK_K, WM, WN, TM, TN, STAGES, ROLLED, SHORT, GROUPS>",
        says: &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "BLOCK_K"), ("wm", "C::Thread::kWarpM"), ("wn", "C::Thread::kWarpN"), ("tm", "TM"), ("tn", "TN"),
            ("stages", "STAGES"), ("partial_sums", "GROUPS"), ("threads", "C::kThreads"),
            ("halves_end", "2 * C::kHalf * GROUPS == BLOCK_K"),
        ],
    },
    Family {
        made_by: "FFMA_FEW_K(NAME, BLOCKS, BM, BN, MOST_K, TM)",
        of: "ffma_gemm::FewK<ffma_gemm::FewFloats, BM, BN, MOST_K, TM>",
        says: &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "MOST_K"), ("tm", "TM"), ("tn", "1"), ("partial_sums", "1"), ("threads", "C::kThreads"),
            ("most_k", "MOST_K"), ("most_rows", "BM == 1 ? 1 : 0"), ("most_cols", "BN == 1 ? 1 : 0"),
        ],
    },
    Family {
        made_by: "FEW_K_HALF_OF(NAME, TYPE, BLOCKS, BM, BN, MOST_K, TM)",
        of: "ffma_gemm::FewK<ffma_gemm::FewHalves<TYPE>, BM, BN, MOST_K, TM>",
        says: &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "MOST_K"), ("tm", "TM"), ("tn", "1"), ("partial_sums", "1"), ("threads", "C::kThreads"),
            ("most_k", "MOST_K"), ("most_rows", "BM == 1 ? 1 : 0"), ("most_cols", "BN == 1 ? 1 : 0"),
        ],
    },
    Family {
        made_by: "FFMA_OUTER(NAME, BLOCKS, BM, BN, MOST_K, WARPS)",
        of: "ffma_gemm::Outer<ffma_gemm::OuterFloats, BM, BN, MOST_K, WARPS>",
        says: &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "MOST_K"), ("tm", "BM / C::kRowsAtOnce"), ("tn", "kVector"), ("partial_sums", "1"),
            ("threads", "C::kThreads"), ("most_k", "MOST_K"),
        ],
    },
    Family {
        made_by: "OUTER_HALF_OF(NAME, TYPE, BLOCKS, BM, BN, MOST_K, WARPS)",
        of: "ffma_gemm::Outer<ffma_gemm::OuterHalves<TYPE>, BM, BN, MOST_K, WARPS>",
        says: &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "MOST_K"), ("tm", "BM / C::kRowsAtOnce"), ("tn", "kVector"), ("partial_sums", "1"),
            ("threads", "C::kThreads"), ("most_k", "MOST_K"),
        ],
    },
    Family {
        made_by: "FFMA_BY_WORDS(NAME, BM, BN, TM, TN)",
        of: "ffma_gemm::Specialized<BM, BN, TM, TN, ffma_gemm::Words<BM, BN>>",
        says: &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "C::BK"), ("wm", "C::Thread::kWarpM"), ("wn", "C::Thread::kWarpN"),
            ("tm", "TM"), ("tn", "TN"), ("stages", "C::STAGES"), ("partial_sums", "1"), ("threads", "C::kThreads"),
        ],
    },
    Family {
        made_by: "FFMA_COPIED(NAME, BM, BN, TM, TN, A_TRANSPOSED, B_TRANSPOSED)",
        of: "ffma_gemm::Specialized<BM, BN, TM, TN, ffma_gemm::Copied<BM, BN, A_TRANSPOSED, B_TRANSPOSED>>",
        says: whole_tiles!(
            "A_TRANSPOSED", "B_TRANSPOSED", ("wm", "C::Thread::kWarpM"), ("wn", "C::Thread::kWarpN"), ("tm", "TM"), ("tn", "TN"),
            ("stages", "C::STAGES"), ("partial_sums", "1"), ("threads", "C::kThreads"),
        ),
    },
    Family {
        made_by: "FFMA_SLICED_K(NAME, BM, BN, STAGES, AHEAD, A_TRANSPOSED, B_TRANSPOSED)",
        of: "ffma_gemm::SlicedCopies<BM, BN, STAGES, AHEAD, A_TRANSPOSED, B_TRANSPOSED>",
        says: whole_tiles!(
            "A_TRANSPOSED", "B_TRANSPOSED", ("wm", "C::Thread::kWarpM"), ("wn", "C::Thread::kWarpN"), ("tm", "C::TM"), ("tn", "C::TN"),
            ("stages", "STAGES"), ("partial_sums", "C::kGroups"), ("threads", "C::kThreads"),
        ),
    },
    Family {
        made_by: "FFMA_SLICED_K_BY_WORDS(NAME, BM, BN, STAGES)",
        of: "ffma_gemm::SlicedWords<BM, BN, STAGES>",
        says: &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "C::BK"), ("wm", "C::Thread::kWarpM"), ("wn", "C::Thread::kWarpN"), ("tm", "C::TM"),
            ("tn", "C::TN"), ("stages", "STAGES"), ("partial_sums", "C::kGroups"), ("threads", "C::kThreads"),
        ],
    },
    Family {
        made_by: "FFMA_DIRECT(NAME, BLOCKS, BM, BN, GROUPS, STAGES, B_TRANSPOSED, ...)",
        of: "ffma_gemm::Direct<BM, BN, GROUPS, STAGES, B_TRANSPOSED, __VA_ARGS__>",
        says: whole_tiles!(
            "true", "B_TRANSPOSED", ("wm", "C::kWarpM"), ("wn", "C::kWarpN"), ("tm", "C::TM"), ("tn", "C::TN"),
            ("stages", "STAGES"), ("partial_sums", "C::kWarps / C::kGroupWarps"), ("threads", "C::kThreads"),
        ),
    },
    Family {
        made_by: "FFMA_DIRECT_TN(NAME, BLOCKS, BM, BN, WM, WN, TM, TN, STAGES)",
        of: "ffma_gemm::DirectTN<BM, BN, WM, WN, TM, TN, STAGES>",
        says: whole_tiles!(
            "false", "false", ("wm", "C::Thread::kWarpM"), ("wn", "C::Thread::kWarpN"), ("tm", "TM"), ("tn", "TN"),
            ("stages", "STAGES"), ("partial_sums", "1"), ("threads", "C::kThreads"), ("halves_end", "C::kParts == 2"),
        ),
    },
    Family {
        made_by: "FFMA_KMAJOR(NAME, BM, BN, LM, SETS, STAGES, CUT)",
        of: "ffma_gemm::KMajor<BM, BN, LM, SETS, STAGES, CUT>",
        says: whole_tiles!(
            "true", "true", ("wm", "C::kWarpM"), ("wn", "C::kWarpN"), ("tm", "C::TM"), ("tn", "C::TN"), ("stages", "STAGES"),
            ("partial_sums", "C::kGroups * sizeof(C::Tile::sum[0][0]) / sizeof(float)"), ("threads", "C::kThreads"),
        ),
    },
    Family {
        made_by: "FFMA_SMALL_M(NAME, BM, LM, STAGES, MAX_SLICE)",
        of: "ffma_gemm::SmallM<BM, LM, STAGES, MAX_SLICE>",
        says: &[
            ("bm", "BM"), ("bn", "C::BN"), ("bk", "C::kStageK"), ("tm", "C::TM"), ("tn", "C::TN"), ("stages", "STAGES"),
            ("partial_sums", "C::kConsumerWarps * C::LK * sizeof(C::Tile::sum[0][0]) / sizeof(float)"), ("threads", "C::kThreads"),
            ("a_along_k", "true"), ("b_along_k", "true"), ("longest_slice", "MAX_SLICE"), ("most_rows", "BM"),
            ("a_inner", "C::kBoxK"), ("a_outer", "C::kBoxX / C::kRowBytes"),
            ("b_inner", "C::kBoxK"), ("b_outer", "C::kBoxW / C::kRowBytes"),
        ],
    },
    Family {
        made_by: "GEMV_DOT(NAME, M, LINES, WARPS, UNROLL, BLOCKS, SWAPPED, AHEAD)",
        of: "void",
        says: &[
            ("norms", "false"), ("gates", "false"),
            ("bm", "SWAPPED ? LINES : M"), ("bn", "SWAPPED ? M : LINES"), ("bk", "UNROLL * WARPS * 32 * kVector"), ("threads", "WARPS * 32"),
            ("most_rows", "SWAPPED ? 0 : M"), ("most_cols", "SWAPPED ? M : 0"),
            ("a_along_k", "SWAPPED"), ("b_along_k", "!SWAPPED"),
        ],
    },
    Family {
        made_by: "GEMV_SHORT(NAME, M, EACH, BK, SWAPPED, LANES)",
        of: "gemv::Short<gemv::Floats, M, EACH, BK, SWAPPED, LANES>",
        says: &[
            ("norms", "false"), ("gates", "false"), ("bm", "SWAPPED ? C::kLines : M"), ("bn", "SWAPPED ? M : C::kLines"), ("bk", "BK"), ("threads", "C::kThreads"),
            ("partial_sums", "C::kLanes"), ("most_rows", "SWAPPED ? 0 : M"), ("most_cols", "SWAPPED ? M : 0"), ("a_along_k", "true"),
            ("b_along_k", "!SWAPPED || M > 4"),
        ],
    },
    Family {
        made_by: "GEMV_SHORT_HALF_OF(NAME, TYPE, M, EACH, BK, SWAPPED)",
        of: "gemv::Short<gemv::Halves<TYPE>, M, EACH, BK, SWAPPED>",
        says: &[
            ("norms", "false"), ("gates", "false"), ("bm", "SWAPPED ? C::kLines : M"), ("bn", "SWAPPED ? M : C::kLines"), ("bk", "BK"), ("threads", "C::kThreads"),
            ("partial_sums", "C::kLanes"), ("most_rows", "SWAPPED ? 0 : M"), ("most_cols", "SWAPPED ? M : 0"), ("a_along_k", "true"),
            ("b_along_k", "!SWAPPED"),
        ],
    },
    Family {
        made_by: "BRIEF(NAME, M, LINES, LANES, STEPS, WARPS, SWAPPED, ALONG_K)",
        of: "brief::Brief<brief::Floats, M, LINES, LANES, STEPS, SWAPPED, ALONG_K, WARPS>",
        says: &[
            ("norms", "false"), ("gates", "false"), ("bm", "SWAPPED ? LINES : M"), ("bn", "SWAPPED ? M : LINES"), ("bk", "C::kTurn"), ("threads", "C::kThreads"),
            ("partial_sums", "C::kApart"), ("most_rows", "SWAPPED ? 0 : brief::kMostRows"), ("most_cols", "SWAPPED ? M : 0"),
            ("a_along_k", "SWAPPED && ALONG_K"), ("b_along_k", "!SWAPPED && ALONG_K"),
        ],
    },
    Family {
        made_by: "BRIEF_LINES(NAME, M, LINES, STEPS, SWAPPED)",
        of: "void",
        says: &[
            ("norms", "false"), ("gates", "false"), ("bm", "SWAPPED ? LINES : M"), ("bn", "SWAPPED ? M : LINES"), ("bk", "STEPS"), ("threads", "LINES"),
            ("partial_sums", "1"), ("most_rows", "SWAPPED ? 0 : brief::kMostRows"), ("most_cols", "SWAPPED ? M : 0"),
            ("a_along_k", "false"), ("b_along_k", "false"),
        ],
    },
    Family {
        made_by: "BRIEF_WIDE(NAME, M, LINES, STEPS)",
        of: "brief::BriefWide<brief::Floats, M, LINES, STEPS, false>",
        says: BRIEF_WIDE,
    },
    Family {
        made_by: "BRIEF_HALF_OF(NAME, TYPE, M, LINES, STEPS, EARLY)",
        of: "brief::BriefWide<brief::Halves<TYPE>, M, LINES, STEPS, EARLY>",
        says: BRIEF_WIDE,
    },
    Family {
        made_by: "GEMV_FUSED_DOT(NAME, M, LINES, WARPS, UNROLL, BLOCKS)",
        of: "void",
        says: &[
            ("norms", "true"), ("gates", "true"), ("bm", "M"), ("bn", "LINES"), ("bk", "UNROLL * WARPS * 32 * kVector"), ("threads", "WARPS * 32"),
            ("most_rows", "M"), ("most_cols", "0"), ("b_along_k", "true"),
        ],
    },
    Family {
        made_by: "GEMV_AXPY(NAME, M, LANES, WARPS, UNROLL, SWAPPED)",
        of: "void",
        says: &[
            ("norms", "false"), ("gates", "false"),
            ("bm", "SWAPPED ? LANES * kVector : M"), ("bn", "SWAPPED ? M : LANES * kVector"),
            ("bk", "kVector"), ("threads", "WARPS * 32"),
            ("most_rows", "SWAPPED ? 0 : M"), ("most_cols", "SWAPPED ? M : 0"), ("a_along_k", "false"), ("b_along_k", "false"),
        ],
    },
    Family {
        made_by: "GEMV_PANEL(NAME, N, LINES, WARPS, STEPS)",
        of: "void",
        says: &[
            ("norms", "false"), ("gates", "false"),
            ("bm", "LINES * WARPS"), ("bn", "N"), ("bk", "STEPS * 32 * kVector"), ("threads", "WARPS * 32"), ("most_rows", "0"),
            ("most_cols", "N"), ("a_along_k", "true"), ("b_along_k", "false"),
        ],
    },
    Family {
        made_by: "GEMV_STREAM(NAME, TYPE, FUSED, ROWS, WARPS, LINES, LOADS, BLOCKS)",
        of: "Shape<TYPE, FUSED, ROWS, WARPS, LINES, LOADS, BLOCKS>",
        says: &[
            ("norms", "FUSED"), ("gates", "FUSED"),
            ("bm", "ROWS"), ("bn", "LINES"), ("bk", "C::SLAB_K"), ("threads", "C::THREADS"), ("blocks", "BLOCKS"),
            ("most_rows", "ROWS"), ("most_cols", "0"), ("a_along_k", "true"), ("b_along_k", "true"),
        ],
    },
    Family {
        made_by: "FEW_ROWS(NAME, BM, BN, LANES_K, LANES_M, WARPS, STEPS, BLOCKS)",
        of: "few_rows::Shape<BM, BN, LANES_K, LANES_M, WARPS, STEPS>",
        says: &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "C::STEP_K"), ("tm", "C::TM"), ("tn", "C::TN"), ("threads", "C::THREADS"),
            ("partial_sums", "C::PARTIAL_SUMS"), ("most_rows", "few_rows::kMostTileRows * BM"), ("most_cols", "0"), ("a_along_k", "true"), ("b_along_k", "true"),
        ],
    },
    Family {
        made_by: "THIN_AXPY_OF(NAME, M, LINES, WARPS, BLOCKS, SWAPPED, WIDE)",
        of: "thin::Axpy<M, LINES, WARPS, SWAPPED, WIDE>",
        says: &[
            ("bm", "SWAPPED ? C::kLines : M"), ("bn", "SWAPPED ? M : C::kLines"), ("bk", "WARPS * C::kTurn"),
            ("tm", "SWAPPED ? C::EACH : M"), ("tn", "SWAPPED ? M : C::EACH"), ("partial_sums", "WARPS * C::ROWS"), ("threads", "C::kThreads"),
            ("most_rows", "SWAPPED ? 0 : thin::kTiles * M"), ("most_cols", "SWAPPED ? thin::kTiles * M : 0"),
            ("a_along_k", "false"), ("b_along_k", "false"),
        ],
    },
    Family {
        made_by: "THIN_DOT(NAME, BLOCKS, M, EACH, DEPTH, STAGES, SWAPPED)",
        of: "thin::Dot<M, EACH, DEPTH, STAGES, SWAPPED>",
        says: &[
            ("bm", "SWAPPED ? C::kLines : M"), ("bn", "SWAPPED ? M : C::kLines"), ("bk", "DEPTH"), ("stages", "STAGES"),
            ("tm", "SWAPPED ? EACH : M"), ("tn", "SWAPPED ? M : EACH"), ("partial_sums", "1"), ("threads", "thin::kThreads"),
            ("most_rows", "SWAPPED ? 0 : thin::kTiles * M"), ("most_cols", "SWAPPED ? thin::kTiles * M : 0"),
            ("a_along_k", "true"), ("b_along_k", "true"),
        ],
    },
    Family {
        made_by: "THIN_RUN(NAME, M, MOST_K, SWAPPED)",
        of: "thin::Run<M, MOST_K, SWAPPED>",
        says: &[
            ("bm", "SWAPPED ? C::kLines : M"), ("bn", "SWAPPED ? M : C::kLines"), ("bk", "MOST_K"), ("tm", "SWAPPED ? 1 : M"),
            ("tn", "SWAPPED ? M : 1"), ("partial_sums", "1"), ("threads", "C::kThreads"), ("most_rows", "SWAPPED ? 0 : M"),
            ("most_cols", "SWAPPED ? M : 0"), ("most_k", "MOST_K"), ("a_along_k", "SWAPPED"), ("b_along_k", "!SWAPPED"),
        ],
    },
    Family {
        made_by: "GEMM_TF32X3_SM90(NAME, BR, BS, MAJOR, S_MAJOR, SWAPPED, MULTICAST)",
        of: "Tf32x3<BR, BS, MAJOR, S_MAJOR, SWAPPED, MULTICAST>",
        says: WGMMA,
    },
    Family {
        made_by: "GEMM_TF32_SM90(NAME, BR, BS, MAJOR, S_MAJOR, SWAPPED, MULTICAST)",
        of: "Tf32<BR, BS, MAJOR, S_MAJOR, SWAPPED, MULTICAST>",
        says: WGMMA,
    },
    Family {
        made_by: "GEMM_MMA(NAME, BLOCKS, PRODUCTS, BM, BN, WM, WN, STAGES)",
        of: "Shape<PRODUCTS, BM, BN, WM, WN, STAGES>",
        says: &[
            ("bm", "BM"), ("bn", "BN"), ("bk", "BK"), ("wm", "WM"), ("wn", "WN"), ("stages", "STAGES"), ("partial_sums", "1"),
            ("threads", "C::THREADS"),
        ],
    },
    Family {
        made_by: "GEMM_HALF_MMA_OF(NAME, BLOCKS, ...)",
        of: "Shape<__VA_ARGS__>",
        says: &[
            ("bm", "C::BM"), ("bn", "C::BN"), ("bk", "BK"), ("wm", "C::WM"), ("wn", "C::WN"), ("stages", "C::STAGES"),
            ("partial_sums", "1"), ("threads", "C::THREADS"),
        ],
    },
    // R is A and S is B, or the other way round.
    Family {
        made_by: "GEMM_HALF_SM90_OF(NAME, ...)",
        of: "Config<__VA_ARGS__>",
        says: &[
            ("bm", "C::SWAPPED ? C::BN : C::BM"), ("bn", "C::SWAPPED ? C::ROWS : C::BN"), ("bk", "BK"), ("stages", "C::STAGES"),
            ("partial_sums", "1"), ("threads", "C::THREADS"),
            ("a_along_k", "(C::SWAPPED ? C::S_MAJOR : C::R_MAJOR) == Major::kK"),
            ("b_along_k", "(C::SWAPPED ? C::R_MAJOR : C::S_MAJOR) == Major::kK"),
            ("a_inner", "kBox<Bits>"), ("b_inner", "kBox<Bits>"),
            ("a_outer", "a_along_k ? (C::SWAPPED ? C::BN / C::PAIR_R : C::BM / C::PAIR_S) : BK"),
            ("b_outer", "b_along_k ? (C::SWAPPED ? C::BM / C::PAIR_S : C::BN / C::PAIR_R) : BK"),
            ("blocks", "C::BLOCKS"), ("d_columns", "C::SWAPPED ? 0 : C::D_BOX"), ("gates", "C::GATED"),
        ],
    },
    Family {
        made_by: "GEMV_HALF_OF(NAME, TYPE, ...)",
        of: "Shape<TYPE, __VA_ARGS__>",
        says: &[
            ("bm", "C::ROWS"), ("bn", "C::COLUMNS"), ("bk", "kVectorElements"), ("threads", "kThreads"),
            ("most_rows", "C::ROWS"), ("most_cols", "0"), ("a_along_k", "true"), ("b_along_k", "true"),
        ],
    },
    Family {
        made_by: "GEMV_RING_OF(NAME, TYPE, WARPS, STAGES, GROUPS, BLOCKS)",
        of: "Shape<TYPE, WARPS, STAGES, GROUPS, BLOCKS>",
        says: &[
            ("bm", "kGroup"), ("bn", "kGroup"), ("bk", "C::ROUND_K"), ("stages", "STAGES"), ("threads", "C::THREADS"), ("blocks", "BLOCKS"),
            ("partial_sums", "WARPS"), ("most_rows", "kGroup"), ("most_cols", "0"), ("a_along_k", "true"), ("b_along_k", "true"),
        ],
    },
    Family {
        made_by: "THIN_HALF_DOT_OF(NAME, TYPE, BLOCKS, RUN_WINDOWS, LINE_WARPS, K_WARPS, SWAPPED)",
        of: "thin_half::Dot<TYPE, RUN_WINDOWS, LINE_WARPS, K_WARPS, SWAPPED>",
        says: &[
            ("bm", "SWAPPED ? C::kLines : C::kVectors"), ("bn", "SWAPPED ? C::kVectors : C::kLines"), ("bk", "C::kDepth"),
            ("partial_sums", "K_WARPS"), ("threads", "C::kThreads"), ("most_rows", "SWAPPED ? 0 : thin::kTiles * C::kVectors"),
            ("most_cols", "SWAPPED ? thin::kTiles * C::kVectors : 0"), ("a_along_k", "true"), ("b_along_k", "true"),
        ],
    },
    Family {
        made_by: "THIN_HALF_AXPY_OF(NAME, TYPE, BLOCKS, VECTORS, LINE_WARPS, K_WARPS, SWAPPED)",
        of: "thin_half::Axpy<TYPE, VECTORS, LINE_WARPS, K_WARPS, SWAPPED>",
        says: &[
            ("bm", "SWAPPED ? C::kLines : VECTORS"), ("bn", "SWAPPED ? VECTORS : C::kLines"), ("bk", "C::kDepth"),
            ("partial_sums", "K_WARPS"), ("threads", "C::kThreads"), ("most_rows", "SWAPPED ? 0 : thin::kTiles * VECTORS"),
            ("most_cols", "SWAPPED ? thin::kTiles * VECTORS : 0"), ("a_along_k", "false"), ("b_along_k", "false"),
        ],
    },
];

/// What a row says, by name.
fn facts(spec: &KernelSpec) -> BTreeMap<&'static str, u32> {
    let (tile, needs) = (&spec.tile, &spec.needs);
    let mut facts = BTreeMap::from([
        ("bm", tile.bm),
        ("bn", tile.bn),
        ("bk", tile.bk),
        ("wm", tile.wm),
        ("wn", tile.wn),
        ("tm", tile.tm),
        ("tn", tile.tn),
        ("stages", tile.stages),
        ("threads", spec.threads),
        ("partial_sums", spec.partial_sums),
        ("blocks", spec.blocks_per_multiprocessor),
        ("d_columns", spec.d_box.map_or(0, |of| of.inner)),
        ("most_rows", needs.max_m),
        ("most_cols", needs.max_n),
        ("most_k", needs.max_k),
        ("norms", spec.inside.norms().into()),
        ("gates", spec.inside.gates().into()),
        ("halves_end", spec.halves_end.into()),
    ]);
    // Whether an operand runs along its rows, if the kernel takes one order only.
    let along_rows = |takes: &[Access]| {
        let rows = |of: &Access| matches!(of, Access::RowVector | Access::RowScalar);
        let first = takes.first().map(rows)?;
        takes.iter().all(|of| rows(of) == first).then_some(first)
    };
    facts.extend(along_rows(needs.a).map(|along| ("a_along_k", along.into())));
    facts.extend(along_rows(needs.b).map(|along| ("b_along_k", (!along).into())));
    if let Some([a, b]) = spec.tma_boxes {
        let named = |[inner, outer]: [&'static str; 2], of: TmaBox| [(inner, of.inner), (outer, of.outer)];
        facts.extend(named(["a_inner", "a_outer"], a));
        facts.extend(named(["b_inner", "b_outer"], b));
    }
    if let SplitK::WorkQueue(longest) = spec.split_k {
        facts.insert("longest_slice", longest);
    }
    facts
}

/// nvcc: `NVCC`, in `CUDA_HOME` or on the path; `None` after saying that there is none.
fn nvcc() -> Option<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].map(|name| Some(Path::new(&env::var_os(name)?).join("bin/nvcc")));
    let named = [env::var_os("NVCC").map(PathBuf::from)];
    let usual = ["nvcc", "/usr/local/cuda/bin/nvcc"].map(|path| Some(PathBuf::from(path)));
    let runs = |path: &PathBuf| Command::new(path).arg("--version").output().is_ok();
    let found = named.into_iter().chain(homes).chain(usual).flatten().find(runs);
    if found.is_none() {
        skip(
            "what sources say",
            "nvcc",
            "no nvcc (put it on PATH, or run `eval \"$(scripts/cuda-toolkit.sh)\"`)",
        );
    }
    found
}

/// Where a kernel file is, and what it says.
fn source_of(file: &str) -> (String, String) {
    let path = format!("{}/cuda/{file}.cu", env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    (path, source)
}

impl Family {
    /// Of its macro.
    fn name(&self) -> &str {
        self.made_by.split_once('(').expect("a macro with parameters").0
    }

    fn is_defined_in(&self, source: &str) -> bool {
        source.contains(&format!("#define {}(", self.name()))
    }
}

/// The source of a file of kernels, and after it what its macros say of each kernel, and that the rows say the same. Notes what
/// is compared of which row.
fn assertions(
    file: &str,
    rows: &[&'static KernelSpec],
    compared: &mut BTreeSet<(&'static str, &'static str)>,
) -> String {
    let (path, source) = source_of(file);
    let mut text = format!("#include \"{path}\"\n");
    for spec in rows.iter().filter(|spec| spec.dynamic_shared > 0) {
        let (name, bytes) = (spec.name, spec.dynamic_shared);
        text += &format!("static_assert({name}_shared == {bytes}, \"{name}: the table has {bytes} bytes\");\n");
        compared.insert((name, "dynamic_shared"));
    }
    let mut said = BTreeSet::new();
    for family in FAMILIES {
        if !family.is_defined_in(&source) {
            continue;
        }
        let (name, made_by, of) = (family.name(), family.made_by, family.of);
        text += &format!("#undef {name}\n#define {made_by} namespace NAME##_says {{ using C = {of};");
        for (what, value) in family.says {
            text += &format!(" constexpr int {what} = ({value});");
            said.insert(*what);
        }
        text += " }\n";
    }
    if said.is_empty() {
        return text;
    }
    // Lines that begin with a macro make kernels.
    let is_macro = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let makes = |line: &&str| {
        line.split_once('(')
            .is_some_and(|(name, _)| !name.is_empty() && name.chars().all(is_macro))
    };
    for line in source.lines().filter(makes) {
        text += &format!("{line}\n");
    }
    for spec in rows {
        for (what, value) in facts(spec).into_iter().filter(|(what, _)| said.contains(what)) {
            let name = spec.name;
            text +=
                &format!("static_assert({name}_says::{what} == {value}, \"{name}: the table has {what} {value}\");\n");
            compared.insert((name, what));
        }
    }
    text
}

/// The threads that a block of this kernel is declared to have at most, in the PTX of its file.
fn declared_threads(ptx: &str, name: &str) -> Option<u32> {
    let entry = &ptx[ptx.find(&format!(".entry {name}("))?..];
    let header = &entry[..entry.find('{')?];
    let (_, numbers) = header.split_once(".maxntid ")?;
    // One to three numbers: x, y and z.
    let numbers = numbers
        .lines()
        .next()?
        .split(',')
        .map(|number| number.trim().parse::<u32>());
    numbers.product::<Result<u32, _>>().ok()
}

/// A kernel's symbol and its threads, as the table has them.
type Entry<'a> = (&'a str, u32);

/// What is wrong with files of kernels, each with its text and the kernels that it declares: they do not compile, or a kernel has
/// other threads than the table says.
fn complaints(nvcc: &Path, files: &[(&str, String, Vec<Entry>)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    // Only the assertions are wanted, so nothing is optimised.
    let help = Command::new(nvcc).arg("--help").output().unwrap();
    let quick: &[&str] = match String::from_utf8_lossy(&help.stdout).contains("--Ofast-compile") {
        true => &["--Ofast-compile=max"],
        false => &["-Xcicc", "-O0"], // before CUDA 12.9
    };
    let compile = |file: &str, text: &str, kernels: &[Entry]| {
        let path = folder.path().join(file.replace('/', "-"));
        let [source, output] = ["cu", "ptx"].map(|extension| path.with_extension(extension));
        std::fs::write(&source, text).unwrap();
        let compiled = Command::new(nvcc)
            .args(["-std=c++17", "-arch=compute_90a", "-ptx"])
            .args(quick)
            .arg("-o")
            .args([&output, &source])
            .output()
            .unwrap();
        if !compiled.status.success() {
            return vec![format!("{file}: {}", String::from_utf8_lossy(&compiled.stderr))];
        }
        let ptx = std::fs::read_to_string(&output).unwrap();
        let differ = |(name, threads): &Entry| {
            let declared = declared_threads(&ptx, name);
            let complaint = || format!("{name}: the table has {threads} threads, the source {declared:?}");
            (declared != Some(*threads)).then(complaint)
        };
        kernels.iter().filter_map(differ).collect()
    };
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((file, text, kernels)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let complaints = compile(file, text, kernels);
                    found.lock().unwrap().extend(complaints);
                }
            });
        }
    });
    found.into_inner().unwrap()
}

/// Where they differ, memory is written past, sums are wrong or a launch fails, and only there is it seen.
#[test]
fn rows_say_what_their_sources_say() {
    let Some(nvcc) = nvcc() else { return };
    let mut rows: BTreeMap<&str, Vec<&'static KernelSpec>> = BTreeMap::new();
    for spec in TABLE {
        rows.entry(spec.file).or_default().push(spec);
    }
    let mut compared = BTreeSet::new();
    let mut file_of = |(file, rows): (&'static str, Vec<&'static KernelSpec>)| {
        let kernels = rows.iter().map(|spec| (spec.name, spec.threads)).collect();
        (file, assertions(file, &rows, &mut compared), kernels)
    };
    let files: Vec<_> = rows.into_iter().map(&mut file_of).collect();
    for spec in TABLE {
        let has = |what| compared.contains(&(spec.name, what));
        assert_eq!(has("dynamic_shared"), spec.dynamic_shared > 0, "{}", spec.name);
        let all = ["bm", "bn", "bk", "threads"].into_iter().all(has);
        let rung = matches!(spec.role, Role::Rung(_));
        assert!(all || rung, "{}: nothing to compare with", spec.name);
        let sums = spec.partial_sums == 1 || has("partial_sums") || spec.name.starts_with("gemv_");
        assert!(sums, "{}: its partial sums", spec.name);
        assert!(!spec.halves_end || has("halves_end"), "{}: how it ends", spec.name);
        let boxes = ["a_inner", "a_outer", "b_inner", "b_outer"].into_iter().all(has);
        assert_eq!(boxes, spec.tma_boxes.is_some(), "{}: its boxes", spec.name);
    }
    let sources: Vec<_> = files.iter().map(|(file, ..)| source_of(file).1).collect();
    for family in FAMILIES {
        let defined = sources.iter().any(|source| family.is_defined_in(source));
        assert!(defined, "no kernel file defines {}", family.name());
    }
    let found = complaints(&nvcc, &files);
    println!(
        "{} numbers of {} rows compared in {} files",
        compared.len(),
        TABLE.len(),
        files.len()
    );
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn transpositions_have_the_threads_that_their_sources_declare() {
    let Some(nvcc) = nvcc() else { return };
    let mut entries: BTreeMap<&str, Vec<Entry>> = BTreeMap::new();
    for kernel in transpose::TABLE {
        let instances = kernel.instances.iter().map(|of| (of.entry, of.threads));
        entries.entry(kernel.file).or_default().extend(instances);
    }
    let include = |file: &str| format!("#include \"{}/cuda/{file}.cu\"\n", env!("CARGO_MANIFEST_DIR"));
    let files: Vec<_> = entries
        .into_iter()
        .map(|(file, kernels)| (file, include(file), kernels))
        .collect();
    let found = complaints(&nvcc, &files);
    assert!(found.is_empty() && files.len() > 5, "{}", found.join("\n"));
}

/// Kernels for operations on rows have as many threads, rows a block and elements a turn as their table says.
#[test]
fn operations_on_rows_have_the_shapes_that_their_sources_say() {
    let Some(nvcc) = nvcc() else { return };
    let mut rows: BTreeMap<&str, Vec<&RowwiseKernel>> = BTreeMap::new();
    for kernel in rowwise::kernels::all() {
        rows.entry(kernel.file).or_default().push(kernel);
    }
    let says = |kernel: &RowwiseKernel| {
        let RowwiseKernel {
            name, threads, pieces, ..
        } = *kernel;
        let dtype = ["kF32", "kF16", "kBF16"][["f32", "f16", "bf16"]
            .iter()
            .position(|known| *known == kernel.dtype.name())
            .unwrap()];
        let piece = match kernel.reading {
            Reading::Vectors | Reading::Turns => "kVector",
            Reading::Elements => "kElement",
        };
        let shape = format!("rowwise::Shape<rowwise::Type::{dtype}, {threads}, {pieces}, rowwise::Piece::{piece}>");
        format!(
            "static_assert({shape}::ROWS == {}, \"{name}: rows of a block\");\n\
             static_assert({threads} * {pieces} * {shape}::WIDTH == {}, \"{name}: elements of a turn\");\n",
            kernel.block_rows(),
            kernel.turn()
        )
    };
    let blocks = format!(
        "static_assert(kMostBlocks == {}, \"blocks of a cluster\");\n",
        rowwise::kernels::MOST_BLOCKS
    );
    let files: Vec<_> = rows
        .into_iter()
        .map(|(file, rows)| {
            let include = format!("#include \"{}/cuda/{file}.cu\"\n", env!("CARGO_MANIFEST_DIR"));
            let mut text: String = rows.iter().map(|kernel| says(kernel)).collect();
            if rows.iter().any(|kernel| kernel.reading == Reading::Turns) {
                text += &blocks;
            }
            let threads = |kernel: &&RowwiseKernel| (kernel.name, kernel.block());
            (file, include + &text, rows.iter().map(threads).collect())
        })
        .collect();
    let found = complaints(&nvcc, &files);
    assert!(found.is_empty() && files.len() == 3, "{}", found.join("\n"));
}

/// What the macros of the attention kernels say of each, by the names of [`attention_facts`].
#[rustfmt::skip]
const ATTENTION: &[Family] = &[
    Family {
        made_by: "ATTENTION_ROWS_OF(NAME, ...)",
        of: "Shape<__VA_ARGS__>",
        says: &[
            ("queries", "C::ROWS"), ("keys", "C::KEYS"), ("block_keys", "C::BLOCK_KEYS"), ("width", "C::WIDTH"),
            ("shared", "0"), ("element", "sizeof(C::Stored)"), ("most_blocks", "kMostBlocks"),
        ],
    },
    Family {
        made_by: "ATTENTION_STEP_OF(NAME, ...)",
        of: "Shape<__VA_ARGS__>",
        says: &[
            ("queries", "C::ROWS"), ("keys", "C::KEYS"), ("block_keys", "C::BLOCK_KEYS"), ("width", "C::WIDTH"),
            ("shared", "0"), ("element", "sizeof(C::Stored)"), ("most_blocks", "kMostBlocks"),
        ],
    },
    Family {
        made_by: "ATTENTION_TILES(NAME, BLOCKS, ...)",
        of: "Tile<__VA_ARGS__>",
        says: &[
            ("queries", "C::BM"), ("keys", "C::BN"), ("block_keys", "C::BN"), ("width", "C::WIDTH"),
            ("shared", "NAME##_shared"), ("element", "sizeof(C::Stored)"), ("most_blocks", "8"),
        ],
    },
];

fn attention_facts(kernel: &attention::AttentionKernel) -> [(&'static str, usize); 7] {
    let (Shape::Rows { queries, keys } | Shape::Tiles { queries, keys }) = kernel.shape;
    [
        ("queries", queries),
        ("keys", keys),
        ("block_keys", kernel.block_keys()),
        ("width", kernel.max_width),
        ("shared", kernel.dynamic_shared() as usize),
        ("element", kernel.dtype.size()),
        ("most_blocks", attention::kernels::MOST_BLOCKS as usize),
    ]
}

#[test]
fn rows_of_attention_say_what_their_sources_say() {
    let Some(nvcc) = nvcc() else { return };
    let mut rows: BTreeMap<&str, Vec<&attention::AttentionKernel>> = BTreeMap::new();
    for kernel in attention::TABLE.iter().chain(attention::STEPS) {
        rows.entry(kernel.file).or_default().push(kernel);
    }
    let files: Vec<_> = rows
        .into_iter()
        .map(|(file, rows)| {
            let path = format!("{}/cuda/{file}.cu", env!("CARGO_MANIFEST_DIR"));
            let source = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            let mut text = format!("#include \"{path}\"\n");
            let family = ATTENTION
                .iter()
                .find(|family| source.contains(&format!("#define {}", family.made_by)));
            let Family { made_by, of, says } = family.unwrap_or_else(|| panic!("{path}: no macro that is known"));
            let name = made_by.split('(').next().unwrap();
            text += &format!("#undef {name}\n#define {made_by} namespace NAME##_says {{ using C = {of};");
            for (what, value) in *says {
                text += &format!(" constexpr int {what} = ({value});");
            }
            text += " }\n";
            for line in source.lines().filter(|line| line.starts_with("ATTENTION_")) {
                text += &format!("{line}\n");
            }
            for kernel in &rows {
                for (what, value) in attention_facts(kernel) {
                    let name = kernel.name;
                    text += &format!(
                        "static_assert({name}_says::{what} == {value}, \"{name}: the table has {what} {value}\");\n"
                    );
                }
            }
            let threads = |kernel: &&attention::AttentionKernel| (kernel.name, attention::kernels::THREADS);
            (file, text, rows.iter().map(threads).collect())
        })
        .collect();
    let found = complaints(&nvcc, &files);
    assert!(found.is_empty() && files.len() == 3, "{}", found.join("\n"));
}

/// CUDA's headers that kernels include say the same to architectures whose machine code the build makes from one PTX.
#[test]
fn headers_of_cuda_tell_apart_what_the_build_compiles_apart() {
    let Some(nvcc) = nvcc() else { return };
    let mut included = BTreeSet::new();
    for path in kernel_files() {
        let source = std::fs::read_to_string(&path).unwrap();
        let headers = source.lines().filter(|line| line.starts_with("#include <"));
        included.extend(headers.map(str::to_string));
    }
    assert!(included.contains("#include <cuda_fp16.h>"), "{included:?}");
    let known = Command::new(&nvcc).arg("--list-gpu-arch").output().unwrap();
    let known = architectures::known_to_nvcc(&String::from_utf8_lossy(&known.stdout)).unwrap_or_default();
    let capabilities: Vec<u32> = architectures::ALL.into_iter().filter(|c| known.contains(c)).collect();
    let boundaries = BTreeSet::from(architectures::BOUNDARIES_OF_CUDA);
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("headers.cu");
    std::fs::write(&source, included.into_iter().collect::<Vec<_>>().join("\n") + "\n").unwrap();
    let preprocessed = |capability: u32| {
        let output = Command::new(&nvcc)
            .args(["-E", "-std=c++17"])
            .arg(format!("-arch=compute_{capability}"))
            .arg(&source)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        lines.join("\n")
    };
    for together in architectures::compiled_together(&capabilities, &boundaries) {
        let first = preprocessed(together[0]);
        for &other in &together[1..] {
            assert!(preprocessed(other) == first, "{} and {other}", together[0]);
        }
    }
}
