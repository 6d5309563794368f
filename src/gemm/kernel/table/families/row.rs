//! What rows of the table have in common, whatever their family.

use super::super::super::spec::{Arithmetic, EpilogueSupport, Grid, Inside, KernelSpec, Needs, Role, SplitK, Tile};
use crate::gemm::operands::DType;

/// Where a kernel has no warp tiles, or the row does not say which.
pub(in super::super) const NO_WARPS: [u32; 2] = [0, 0];
/// The thread tile of kernels whose threads compute one output, or whose tensor cores do.
pub(in super::super) const NO_THREADS: [u32; 2] = [1, 1];

pub(in super::super) const fn tile(
    [bm, bn, bk]: [u32; 3],
    [wm, wn]: [u32; 2],
    [tm, tn]: [u32; 2],
    stages: u32,
) -> Tile {
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
pub(in super::super) const PRODUCTION: KernelSpec = KernelSpec {
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
    inside: Inside::Product,
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
    pub(in super::super) const fn spills(self, on: &'static [u32]) -> Self {
        KernelSpec {
            may_spill_on: on,
            ..self
        }
    }

    /// The same with so many portions of k in shared memory.
    pub(in super::super) const fn stages(self, stages: u32) -> Self {
        KernelSpec {
            tile: Tile { stages, ..self.tile },
            ..self
        }
    }
}
