//! FP32 multiply-adds on Hopper.

use super::super::super::spec::{Grid, KernelSpec, Needs, SplitK};
use super::super::derived::{self, Layout};
use super::ffma::FFMA;
use super::row::{tile, NO_WARPS};

/// Warp-specialized and persistent, for large problems on Hopper: producer warps bring operands, consumer warps multiply.
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
pub(in super::super) const fn specialized_tma(
    name: &'static str,
    layout: Layout,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
) -> KernelSpec {
    let row = specialized(name, block, warp, thread, stages);
    KernelSpec {
        summary: "FP32 multiply-adds, TMA, producer and consumer warps",
        tma_boxes: Some(layout.whole_tiles(&row.tile, row.tile.bk)),
        needs: layout.needs(),
        ..row
    }
}

/// The same sliced-K, with one tile a block, and k cut across a cluster where there are few tiles.
pub(in super::super) const fn sliced_k(
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
        summary: "FP32 multiply-adds, TMA, groups of consumer warps share k",
        dynamic_shared: derived::sliced_k(&row.tile),
        grid: Grid::Units,
        split_k: SplitK::Cluster,
        parallel_split_k: true,
        partial_sums: derived::consumer_groups(&row.tile),
        ..row
    }
}

/// At any alignment: producer warps copy single words.
pub(in super::super) const fn specialized_words(
    name: &'static str,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
) -> KernelSpec {
    let row = specialized(name, block, warp, thread, stages);
    KernelSpec {
        summary: "FP32 multiply-adds, any alignment, producer and consumer warps",
        dynamic_shared: derived::specialized_words(&row.tile),
        pdl: true,
        needs: Layout::ANY_LINES,
        ..row
    }
}

/// The same sliced-K, with one tile a block, and k cut across a cluster where there are few tiles.
pub(in super::super) const fn sliced_k_words(
    name: &'static str,
    block: [u32; 3],
    warp: [u32; 2],
    thread: [u32; 2],
    stages: u32,
) -> KernelSpec {
    let row = specialized_words(name, block, warp, thread, stages);
    KernelSpec {
        file: "ffma/ffma_sliced_k_sm90",
        summary: "FP32 multiply-adds, any alignment, groups of consumer warps share k",
        dynamic_shared: derived::sliced_k_words(&row.tile),
        grid: Grid::Units,
        split_k: SplitK::Cluster,
        parallel_split_k: true,
        partial_sums: derived::consumer_groups(&row.tile),
        ..row
    }
}

/// One tile a block, several blocks a multiprocessor, on Hopper: an A that is contiguous along k is multiplied in place.
pub(in super::super) const fn direct(
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
pub(in super::super) const fn direct_tn(
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
pub(in super::super) const fn k_major(
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
pub(in super::super) const fn k_major_stream_k(
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
/// a work queue. A box has what a consumer warp multiplies of a stage.
pub(in super::super) const fn small_m(
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
        tma_boxes: Some(Layout::NT.whole_tiles(&tile, tile.bk / derived::CONSUMER_WARPS)),
        needs: Needs {
            max_m: tile.bm,
            ..Layout::NT.needs()
        },
        ..FFMA
    }
}
