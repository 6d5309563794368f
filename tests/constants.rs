//! Numbers that stand both in Rust and in CUDA are the same. Reads the sources; needs neither nvcc nor a GPU. Threads and shared
//! memory of kernels, which templates compute, are compared by `kernel_sources`, and the layout of arguments where they are
//! declared.

#[path = "common/cuda_source.rs"]
mod cuda_source;

use candle_sgemm::gemm::kernel::spec::SplitK;
use candle_sgemm::gemm::kernel::spec::WHOLE_ROWS;
use candle_sgemm::gemm::planner::work::SHORT_SUM;
use candle_sgemm::gemm::schedule::parallel;
use candle_sgemm::gemm::schedule::work_queue::{COUNTER_BYTES, HEAD_BYTES, TICKET_BYTES};
use candle_sgemm::gemm::{Access, Activation, Combine, DType, MAX_BATCH_DIMS, TABLE};
use candle_sgemm::transpose::args::MAX_OUTER_DIMS;
use candle_sgemm::transpose::kernels::{MAX_NARROW, NARROW_TILE_BYTES};
use cuda_source::{constant, source};

/// The names and numbers of `enum NAME : type { … };`, without the k that names begin with.
fn enumerators(source: &str, name: &str) -> Vec<(String, usize)> {
    let begin = source.find(&format!("enum {name} :")).unwrap();
    let body = &source[begin..begin + source[begin..].find("};").unwrap()];
    let lines = body
        .lines()
        .skip(1)
        .map(|line| line.split([',']).next().unwrap_or_default());
    lines
        .filter_map(|line| {
            let (name, number) = line.trim().strip_prefix('k')?.split_once(" = ")?;
            Some((name.to_string(), number.parse().ok()?))
        })
        .collect()
}

#[test]
fn numbers_are_the_same_in_rust_and_in_cuda() {
    for (file, name, number) in [
        ("abi/gemm_args.cuh", "kMaxBatchDims", MAX_BATCH_DIMS),
        ("abi/transpose_args.cuh", "kMaxOuterDims", MAX_OUTER_DIMS),
        ("transpose/narrow.cuh", "kNarrowTileBytes", NARROW_TILE_BYTES),
        ("transpose/narrow.cuh", "kMaxNarrow", MAX_NARROW),
        ("scheduler/stream_k.cuh", "kTicketBytes", TICKET_BYTES),
        ("scheduler/stream_k.cuh", "kCounterBytes", COUNTER_BYTES),
        ("ffma/ffma_small_m_sm90.cu", "kCounterBytes", COUNTER_BYTES),
        ("split_k/add_slices.cu", "kThreads", parallel::THREADS),
        ("split_k/add_slices.cu", "kAhead", parallel::AHEAD),
        ("split_k/add_slices.cu", "kMostGroups", parallel::MOST_GROUPS),
        ("tensor_core/split.cuh", "kShortSum", SHORT_SUM),
        ("tensor_core/half_store_sm90.cuh", "kWholeRows", WHOLE_ROWS),
    ] {
        assert_eq!(constant(&source(file), name), Some(number), "{name} of cuda/{file}");
    }
    // stream_k::draw_number() goes back from the workspace by both.
    assert_eq!(HEAD_BYTES, TICKET_BYTES + COUNTER_BYTES);
}

#[test]
fn what_kernels_are_told_by_number_has_the_same_numbers() {
    let source = source("abi/gemm_args.cuh");
    let access = [
        Access::Strided,
        Access::RowScalar,
        Access::ColScalar,
        Access::RowVector,
        Access::ColVector,
    ];
    let combine = [Combine::Add, Combine::Multiply];
    let types = [DType::F32, DType::F64, DType::F16, DType::BF16];
    let named = |name: String, number: usize| (name, number);
    assert_eq!(
        enumerators(&source, "Access"),
        access.map(|of| named(format!("{of:?}"), of as usize))
    );
    assert_eq!(
        enumerators(&source, "ElementType"),
        types.map(|of| named(format!("{of:?}"), of as usize))
    );
    assert_eq!(
        enumerators(&source, "Activation"),
        Activation::ALL.map(|of| named(format!("{of:?}"), of as usize))
    );
    assert_eq!(
        enumerators(&source, "Combine"),
        combine.map(|of| named(format!("{of:?}"), of as usize))
    );
}

/// `FFMA_SMALL_M(NAME, BM, LM, STAGES, MAX_SLICE)`
#[test]
fn work_queues_have_slices_as_long_as_their_kernels_have_room_for() {
    let source = source("ffma/ffma_small_m_sm90.cu");
    let mut rows = 0;
    for spec in TABLE {
        let SplitK::WorkQueue(longest) = spec.split_k else {
            continue;
        };
        rows += 1;
        let begin = format!("FFMA_SMALL_M({}, ", spec.name);
        let line = source.lines().find_map(|line| line.strip_prefix(&begin)).unwrap();
        let numbers = line
            .trim_end_matches(')')
            .split(", ")
            .map(|text| text.parse::<u32>().unwrap());
        let [bm, _, stages, slice] = numbers.collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        assert_eq!(
            (spec.tile.bm, spec.needs.max_m, spec.tile.stages, longest),
            (bm, bm, stages, slice),
            "{}",
            spec.name
        );
    }
    assert!(rows > 0);
}
