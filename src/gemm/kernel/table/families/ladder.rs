//! The ladder: FP32 and FP64 multiply-adds, any layout, α, β and C.

use super::super::super::spec::{EpilogueSupport, Grid, KernelSpec, Role};
use super::super::derived;
use super::row::{tile, NO_WARPS, PRODUCTION};
use crate::gemm::operands::DType;

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
pub(in super::super) const fn warp_rung(
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
pub(in super::super) const fn rung(
    number: u32,
    name: &'static str,
    block: [u32; 3],
    thread: [u32; 2],
    summary: &'static str,
) -> KernelSpec {
    warp_rung(number, name, block, NO_WARPS, thread, 1, summary)
}

/// The same for FP64.
pub(in super::super) const fn double_rung(
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
pub(in super::super) const fn async_rung(
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
