//! TF32 products on tensor cores.

use super::super::spec::{Arithmetic, EpilogueSupport, Grid, KernelSpec, Needs, Role, Side, SplitK, Tile, TmaBox};
use crate::gemm::operands::Access;

/// A row for Hopper's tensor cores: TMA brings boxes of A and B, wgmma multiplies; whole epilogue.
macro_rules! sm90 {
    (@file tf32x3) => { ("tensor_core/gemm_tf32x3_sm90", Arithmetic::Tf32x3, "three TF32 products, TMA and wgmma") };
    (@file tf32) => { ("tensor_core/gemm_tf32_sm90", Arithmetic::Tf32, "one TF32 product, TMA and wgmma") };
    (@a NN) => { &[Access::RowVector] };
    (@a NT) => { &[Access::RowVector] };
    (@a TN) => { &[Access::ColVector] };
    (@a TT) => { &[Access::ColVector] };
    (@b NN) => { &[Access::RowVector] };
    (@b TN) => { &[Access::RowVector] };
    (@b NT) => { &[Access::ColVector] };
    (@b TT) => { &[Access::ColVector] };
    (@grid persistent) => { (Grid::Persistent, SplitK::Cluster) };
    (@grid pairs along M) => { (Grid::Pairs(Side::M), SplitK::Never) };
    (@grid pairs along N) => { (Grid::Pairs(Side::N), SplitK::Never) };
    (
        $name:literal: $kind:tt $layout:tt, $bm:literal by $bn:literal, $threads:literal threads, $shared:literal bytes,
        boxes $a_inner:literal by $a_outer:literal and $b_inner:literal by $b_outer:literal, $($grid:ident)+
    ) => {
        KernelSpec {
            role: Role::Production,
            arithmetic: sm90!(@file $kind).1,
            grid: sm90!(@grid $($grid)+).0,
            split_k: sm90!(@grid $($grid)+).1,
            epilogue: EpilogueSupport::Fused,
            tma_boxes: Some([TmaBox::new($a_inner, $a_outer), TmaBox::new($b_inner, $b_outer)]),
            needs: Needs {
                only_capability: Some(90),
                a: sm90!(@a $layout),
                b: sm90!(@b $layout),
                ..Needs::ANY
            },
            ..KernelSpec::rung(
                0,
                $name,
                sm90!(@file $kind).0,
                Tile::block($bm, $bn, 32),
                $threads,
                sm90!(@file $kind).2,
            )
        }
        .dynamic_shared($shared)
    };
}

pub(super) const ROWS: &[KernelSpec] = &[
    sm90!("gemm_tf32x3_sm90_128x128_pair_nt": tf32x3 NT, 128 by 128, 512 threads, 213504 bytes, boxes 32 by 128 and 32 by 64, pairs along M),
    sm90!("gemm_tf32x3_sm90_128x128_pair_tt": tf32x3 TT, 128 by 128, 512 threads, 213504 bytes, boxes 32 by 32 and 32 by 64, pairs along M),
    sm90!("gemm_tf32x3_sm90_128x128_pair_nn": tf32x3 NN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 64 and 32 by 32, pairs along N),
    sm90!("gemm_tf32x3_sm90_128x128_pair_tn": tf32x3 TN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, pairs along M),
    sm90!("gemm_tf32x3_sm90_128x128_nt": tf32x3 NT, 128 by 128, 512 threads, 213504 bytes, boxes 32 by 128 and 32 by 128, persistent),
    sm90!("gemm_tf32x3_sm90_128x128_tt": tf32x3 TT, 128 by 128, 512 threads, 213504 bytes, boxes 32 by 32 and 32 by 128, persistent),
    sm90!("gemm_tf32x3_sm90_128x128_nn": tf32x3 NN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 128 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_128x128_tn": tf32x3 TN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_128x64_nt": tf32x3 NT, 128 by 64, 512 threads, 221696 bytes, boxes 32 by 128 and 32 by 64, persistent),
    sm90!("gemm_tf32x3_sm90_128x32_nt": tf32x3 NT, 128 by 32, 512 threads, 217600 bytes, boxes 32 by 128 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_128x16_nt": tf32x3 NT, 128 by 16, 512 threads, 190976 bytes, boxes 32 by 128 and 32 by 16, persistent),
    sm90!("gemm_tf32x3_sm90_128x64_tt": tf32x3 TT, 128 by 64, 512 threads, 221696 bytes, boxes 32 by 32 and 32 by 64, persistent),
    sm90!("gemm_tf32x3_sm90_128x32_tt": tf32x3 TT, 128 by 32, 512 threads, 217600 bytes, boxes 32 by 32 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_128x16_tt": tf32x3 TT, 128 by 16, 512 threads, 190976 bytes, boxes 32 by 32 and 32 by 16, persistent),
    sm90!("gemm_tf32x3_sm90_128x64_nn": tf32x3 NN, 128 by 64, 512 threads, 213504 bytes, boxes 32 by 128 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_128x32_nn": tf32x3 NN, 128 by 32, 512 threads, 217600 bytes, boxes 32 by 128 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_128x64_tn": tf32x3 TN, 128 by 64, 512 threads, 213504 bytes, boxes 32 by 32 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_128x32_tn": tf32x3 TN, 128 by 32, 512 threads, 217600 bytes, boxes 32 by 32 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_64x128_nt": tf32x3 NT, 64 by 128, 512 threads, 221696 bytes, boxes 32 by 64 and 32 by 128, persistent),
    sm90!("gemm_tf32x3_sm90_32x128_nt": tf32x3 NT, 32 by 128, 512 threads, 217600 bytes, boxes 32 by 32 and 32 by 128, persistent),
    sm90!("gemm_tf32x3_sm90_16x128_nt": tf32x3 NT, 16 by 128, 512 threads, 190976 bytes, boxes 32 by 16 and 32 by 128, persistent),
    sm90!("gemm_tf32x3_sm90_64x128_nn": tf32x3 NN, 64 by 128, 512 threads, 221696 bytes, boxes 32 by 64 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_32x128_nn": tf32x3 NN, 32 by 128, 512 threads, 217600 bytes, boxes 32 by 32 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_16x128_nn": tf32x3 NN, 16 by 128, 512 threads, 190976 bytes, boxes 32 by 16 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_64x64_nt": tf32x3 NT, 64 by 64, 384 threads, 188928 bytes, boxes 32 by 64 and 32 by 64, persistent),
    sm90!("gemm_tf32x3_sm90_64x64_tt": tf32x3 TT, 64 by 64, 384 threads, 188928 bytes, boxes 32 by 32 and 32 by 64, persistent),
    sm90!("gemm_tf32x3_sm90_64x64_nn": tf32x3 NN, 64 by 64, 384 threads, 229888 bytes, boxes 32 by 64 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_64x64_tn": tf32x3 TN, 64 by 64, 384 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_32x64_nt": tf32x3 NT, 32 by 64, 384 threads, 135680 bytes, boxes 32 by 32 and 32 by 64, persistent),
    sm90!("gemm_tf32x3_sm90_16x64_nt": tf32x3 NT, 16 by 64, 384 threads, 109056 bytes, boxes 32 by 16 and 32 by 64, persistent),
    sm90!("gemm_tf32x3_sm90_32x64_nn": tf32x3 NN, 32 by 64, 384 threads, 135680 bytes, boxes 32 by 32 and 32 by 32, persistent),
    sm90!("gemm_tf32x3_sm90_16x64_nn": tf32x3 NN, 16 by 64, 384 threads, 109056 bytes, boxes 32 by 16 and 32 by 32, persistent),
    sm90!("gemm_tf32_sm90_128x256_pair_nt": tf32 NT, 128 by 256, 384 threads, 213504 bytes, boxes 32 by 128 and 32 by 128, pairs along M),
    sm90!("gemm_tf32_sm90_128x256_pair_tt": tf32 TT, 128 by 256, 384 threads, 213504 bytes, boxes 32 by 32 and 32 by 128, pairs along M),
    sm90!("gemm_tf32_sm90_256x128_pair_nn": tf32 NN, 256 by 128, 384 threads, 213504 bytes, boxes 32 by 128 and 32 by 32, pairs along N),
    sm90!("gemm_tf32_sm90_128x128_pair_tn": tf32 TN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, pairs along M),
    sm90!("gemm_tf32_sm90_128x128_nt": tf32 NT, 128 by 128, 384 threads, 229888 bytes, boxes 32 by 128 and 32 by 128, persistent),
    sm90!("gemm_tf32_sm90_128x128_tt": tf32 TT, 128 by 128, 384 threads, 229888 bytes, boxes 32 by 32 and 32 by 128, persistent),
    sm90!("gemm_tf32_sm90_128x128_nn": tf32 NN, 128 by 128, 384 threads, 229888 bytes, boxes 32 by 128 and 32 by 32, persistent),
    sm90!("gemm_tf32_sm90_128x128_tn": tf32 TN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, persistent),
    sm90!("gemm_tf32_sm90_128x64_nt": tf32 NT, 128 by 64, 384 threads, 221696 bytes, boxes 32 by 128 and 32 by 64, persistent),
    sm90!("gemm_tf32_sm90_128x64_tt": tf32 TT, 128 by 64, 384 threads, 221696 bytes, boxes 32 by 32 and 32 by 64, persistent),
    sm90!("gemm_tf32_sm90_128x64_nn": tf32 NN, 128 by 64, 512 threads, 229888 bytes, boxes 32 by 128 and 32 by 32, persistent),
    sm90!("gemm_tf32_sm90_128x64_tn": tf32 TN, 128 by 64, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, persistent),
    sm90!("gemm_tf32_sm90_64x128_nt": tf32 NT, 64 by 128, 384 threads, 221696 bytes, boxes 32 by 64 and 32 by 128, persistent),
    sm90!("gemm_tf32_sm90_32x128_nt": tf32 NT, 32 by 128, 384 threads, 205312 bytes, boxes 32 by 32 and 32 by 128, persistent),
    sm90!("gemm_tf32_sm90_16x128_nt": tf32 NT, 16 by 128, 384 threads, 184832 bytes, boxes 32 by 16 and 32 by 128, persistent),
    sm90!("gemm_tf32_sm90_64x128_nn": tf32 NN, 64 by 128, 384 threads, 221696 bytes, boxes 32 by 64 and 32 by 32, persistent),
    sm90!("gemm_tf32_sm90_32x128_nn": tf32 NN, 32 by 128, 384 threads, 205312 bytes, boxes 32 by 32 and 32 by 32, persistent),
    sm90!("gemm_tf32_sm90_16x128_nn": tf32 NN, 16 by 128, 384 threads, 184832 bytes, boxes 32 by 16 and 32 by 32, persistent),
    KernelSpec::mma(
        "gemm_tf32x3_mma_128x128",
        Arithmetic::Tf32x3,
        Tile::block(128, 128, 32).stages(3),
        256,
        98304,
    ),
    KernelSpec::mma(
        "gemm_tf32x3_mma_64x64",
        Arithmetic::Tf32x3,
        Tile::block(64, 64, 32).stages(3),
        128,
        49152,
    ),
    KernelSpec::mma(
        "gemm_tf32_mma_128x128",
        Arithmetic::Tf32,
        Tile::block(128, 128, 32).stages(3),
        128,
        98304,
    ),
    KernelSpec::mma(
        "gemm_tf32_mma_64x64",
        Arithmetic::Tf32,
        Tile::block(64, 64, 32).stages(3),
        128,
        49152,
    ),
];
