//! TF32 products on tensor cores.

use super::super::super::spec::{Arithmetic, KernelSpec, Tile};
use super::super::derived::{self, Clusters, Layout, Registers, Wgmma};
use super::row::{tile, NO_THREADS, NO_WARPS, PRODUCTION};
use crate::gemm::operands::DType;

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
pub(in super::super) const fn tf32x3(
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
pub(in super::super) const fn tf32(
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
pub(in super::super) const fn mma(
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
