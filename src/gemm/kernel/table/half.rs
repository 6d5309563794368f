//! Products of 16-bit numbers on tensor cores, with sums in FP32. Every kernel stands here twice, for `f16` and for `bf16`: one
//! template makes both, and they cost the same.

use super::super::spec::{Arithmetic, EpilogueSupport, Grid, KernelSpec, Needs, Role, Side, SplitK, Tile, TmaBox};
use crate::gemm::operands::{Access, DType};

/// Portion of k of every kernel.
const BK: u32 = 64;
/// Elements of 128 bytes: what a row of a box has, so that its chunks are swizzled.
const SWIZZLED: u32 = 64;
/// Rows of a box of D: those of a warp's fragment.
const D_ROWS: u32 = 16;

/// How A and B lie, by the letters of a layout.
const fn needs(layout: &str) -> Needs {
    const N: &[Access] = &[Access::RowVector];
    const T: &[Access] = &[Access::ColVector];
    let letters = layout.as_bytes();
    Needs {
        a: if letters[0] == b'N' { N } else { T },
        b: if letters[1] == b'N' { N } else { T },
        ..Needs::ANY
    }
}

/// The boxes in which A and B come: along k where that is how they lie, along the other dimension where not. Of columns that
/// two blocks share, each brings one half.
const fn boxes(layout: &str, bm: u32, bn: u32) -> [TmaBox; 2] {
    let letters = layout.as_bytes();
    [
        TmaBox::new(SWIZZLED, if letters[0] == b'N' { bm } else { BK }),
        TmaBox::new(SWIZZLED, if letters[1] == b'N' { BK } else { bn }),
    ]
}

impl KernelSpec {
    const fn half(name: &'static str, costs: &'static str, dtype: DType, tile: Tile, threads: u32) -> Self {
        KernelSpec {
            role: Role::Production,
            arithmetic: Arithmetic::Half,
            dtype,
            costs,
            grid: Grid::Units,
            epilogue: EpilogueSupport::Fused,
            ..KernelSpec::rung(0, name, "", tile, threads, "")
        }
    }

    /// Any layout, on any device.
    const fn half_mma(
        name: &'static str,
        costs: &'static str,
        dtype: DType,
        [bm, bn, stages]: [u32; 3],
        threads: u32,
    ) -> Self {
        let tile = Tile::block(bm, bn, BK).stages(stages);
        KernelSpec {
            file: "tensor_core/gemm_half_mma",
            summary: "16-bit products by mma.sync, any layout",
            ..KernelSpec::half(name, costs, dtype, tile, threads)
        }
        .dynamic_shared(stages * (bm + bn) * BK * DType::F16.size() as u32)
    }

    /// On Hopper: TMA brings boxes of A and B, wgmma multiplies them, TMA stores D where it has a box for that.
    #[allow(clippy::too_many_arguments)] // a row of the table
    const fn half_sm90(
        name: &'static str,
        costs: &'static str,
        dtype: DType,
        layout: &'static str,
        [bm, bn, stages]: [u32; 3],
        d_columns: u32,
        [threads, blocks]: [u32; 2],
        pair: bool,
    ) -> Self {
        /// Barriers and what aligns the ring.
        const BARRIERS: u32 = 256;
        /// Boxes of D that a warp fills in turn.
        const BUFFERS: u32 = 2;
        let bytes = DType::F16.size() as u32;
        let warps = threads / 128 * 4 - if threads > 160 { 4 } else { 0 };
        let staging = warps * BUFFERS * D_ROWS * d_columns * bytes;
        KernelSpec {
            file: "tensor_core/gemm_half_sm90",
            summary: "16-bit products, TMA and wgmma",
            grid: if pair { Grid::Pairs(Side::M) } else { Grid::Persistent },
            split_k: if pair { SplitK::Never } else { SplitK::Cluster },
            blocks_per_multiprocessor: blocks,
            tma_boxes: Some(boxes(layout, bm, if pair { bn / 2 } else { bn })),
            d_box: if d_columns > 0 {
                Some(TmaBox::new(d_columns, D_ROWS))
            } else {
                None
            },
            needs: Needs {
                only_capability: Some(90),
                ..needs(layout)
            },
            ..KernelSpec::half(name, costs, dtype, Tile::block(bm, bn, BK).stages(stages), threads)
        }
        .dynamic_shared(stages * (bm + bn) * BK * bytes + staging + BARRIERS)
    }

    /// Few rows, with the weights straight from memory.
    const fn half_gemv(name: &'static str, costs: &'static str, dtype: DType, [bm, bn]: [u32; 2]) -> Self {
        KernelSpec {
            file: "gemv/gemv_half",
            summary: "streams B once past a few rows of A, 16 bits",
            waits: true,
            needs: Needs {
                max_m: bm,
                ..needs("NT")
            },
            ..KernelSpec::half(name, costs, dtype, Tile::block(bm, bn, BK), 256)
        }
    }
}

/// Both types of a family's kernels. The costs are those of the second.
macro_rules! both {
    ($f16:ident, $bf16:ident, $(gemm $name:literal $make:ident($($argument:expr),*),)*) => {
        both!(@ $f16, $bf16, "gemm_f16_", "gemm_bf16_", $($name $make($($argument),*),)*);
    };
    ($f16:ident, $bf16:ident, $(gemv $name:literal $make:ident($($argument:expr),*),)*) => {
        both!(@ $f16, $bf16, "gemv_f16_", "gemv_bf16_", $($name $make($($argument),*),)*);
    };
    (@ $f16:ident, $bf16:ident, $a:literal, $b:literal, $($name:literal $make:ident($($argument:expr),*),)*) => {
        pub(super) const $f16: &[KernelSpec] =
            &[$(KernelSpec::$make(concat!($a, $name), concat!($b, $name), DType::F16, $($argument),*),)*];
        pub(super) const $bf16: &[KernelSpec] =
            &[$(KernelSpec::$make(concat!($b, $name), concat!($b, $name), DType::BF16, $($argument),*),)*];
    };
}

both! { F16_MMA, BF16_MMA,
    gemm "mma_128x128" half_mma([128, 128, 3], 256),
    gemm "mma_64x64"   half_mma([64, 64, 3], 128),
    gemm "mma_16x64"   half_mma([16, 64, 4], 128),
}

// Layout; tile and stages; columns of a box of D (0: no box); threads and blocks a multiprocessor; whether two blocks share a B.
both! { F16_SM90, BF16_SM90,
    gemm "sm90_128x256_pair_nt" half_sm90("NT", [128, 256, 4], 64, [384, 1], true),
    gemm "sm90_128x256_pair_nn" half_sm90("NN", [128, 256, 4], 64, [384, 1], true),
    gemm "sm90_128x256_pair_tn" half_sm90("TN", [128, 256, 4], 64, [384, 1], true),
    gemm "sm90_128x256_pair_tt" half_sm90("TT", [128, 256, 4], 64, [384, 1], true),
    gemm "sm90_128x224_pair_nt" half_sm90("NT", [128, 224, 4], 32, [384, 1], true),
    gemm "sm90_128x112_nt"      half_sm90("NT", [128, 112, 7], 16, [384, 1], false),
    gemm "sm90_128x128_nt"      half_sm90("NT", [128, 128, 6], 16, [384, 1], false),
    gemm "sm90_128x128_nn"      half_sm90("NN", [128, 128, 6], 16, [384, 1], false),
    gemm "sm90_128x128_tn"      half_sm90("TN", [128, 128, 6], 16, [384, 1], false),
    gemm "sm90_128x128_tt"      half_sm90("TT", [128, 128, 6], 16, [384, 1], false),
    gemm "sm90_64x64_nt"        half_sm90("NT", [64, 64, 6], 16, [160, 2], false),
    gemm "sm90_64x64_nn"        half_sm90("NN", [64, 64, 6], 16, [160, 2], false),
    gemm "sm90_64x64_tn"        half_sm90("TN", [64, 64, 6], 16, [160, 2], false),
    gemm "sm90_64x64_tt"        half_sm90("TT", [64, 64, 6], 16, [160, 2], false),
    gemm "sm90_8x64_nt"         half_sm90("NT", [8, 64, 12], 0, [160, 2], false),
    gemm "sm90_16x64_nt"        half_sm90("NT", [16, 64, 11], 0, [160, 2], false),
    gemm "sm90_32x64_nt"        half_sm90("NT", [32, 64, 9], 0, [160, 2], false),
    gemm "sm90_16x64_nn"        half_sm90("NN", [16, 64, 11], 0, [160, 2], false),
    gemm "sm90_32x64_nn"        half_sm90("NN", [32, 64, 9], 0, [160, 2], false),
    gemm "sm90_128x64_nt"       half_sm90("NT", [128, 64, 4], 0, [160, 2], false),
}

both! { F16_GEMV, BF16_GEMV,
    gemv "m8_n8"  half_gemv([8, 8]),
    gemv "m8_n16" half_gemv([8, 16]),
    gemv "m16_n8" half_gemv([16, 8]),
}
