//! TF32 products on tensor cores.

use super::super::costs::Cost;
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
        boxes $a_inner:literal by $a_outer:literal and $b_inner:literal by $b_outer:literal, $($grid:ident)+,
        cost $full:literal $setup:literal $stream:literal
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
        .candidate(Cost::measured($full, $full, 1, $setup, $stream))
    };
}

pub(super) const ROWS: &[KernelSpec] = &[
    sm90!("gemm_tf32x3_sm90_128x128_pair_nt": tf32x3 NT, 128 by 128, 512 threads, 213504 bytes, boxes 32 by 128 and 32 by 64, pairs along M, cost 0.83 2.25 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_pair_tt": tf32x3 TT, 128 by 128, 512 threads, 213504 bytes, boxes 32 by 32 and 32 by 64, pairs along M, cost 0.83 2.50 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_pair_nn": tf32x3 NN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 64 and 32 by 32, pairs along N, cost 0.83 2.25 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_pair_tn": tf32x3 TN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, pairs along M, cost 0.62 2.50 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_nt": tf32x3 NT, 128 by 128, 512 threads, 213504 bytes, boxes 32 by 128 and 32 by 128, persistent, cost 0.81 3.50 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_tt": tf32x3 TT, 128 by 128, 512 threads, 213504 bytes, boxes 32 by 32 and 32 by 128, persistent, cost 0.81 3.00 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_nn": tf32x3 NN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 128 and 32 by 32, persistent, cost 0.81 3.00 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_tn": tf32x3 TN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.62 4.25 0.75),
    sm90!("gemm_tf32x3_sm90_128x64_nt": tf32x3 NT, 128 by 64, 512 threads, 221696 bytes, boxes 32 by 128 and 32 by 64, persistent, cost 0.68 3.00 0.75),
    sm90!("gemm_tf32x3_sm90_128x32_nt": tf32x3 NT, 128 by 32, 512 threads, 217600 bytes, boxes 32 by 128 and 32 by 32, persistent, cost 0.34 0.50 0.75),
    sm90!("gemm_tf32x3_sm90_128x16_nt": tf32x3 NT, 128 by 16, 512 threads, 190976 bytes, boxes 32 by 128 and 32 by 16, persistent, cost 0.22 0.25 0.75),
    sm90!("gemm_tf32x3_sm90_128x64_tt": tf32x3 TT, 128 by 64, 512 threads, 221696 bytes, boxes 32 by 32 and 32 by 64, persistent, cost 0.66 1.75 0.75),
    sm90!("gemm_tf32x3_sm90_128x32_tt": tf32x3 TT, 128 by 32, 512 threads, 217600 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.40 0.75 0.75),
    sm90!("gemm_tf32x3_sm90_128x16_tt": tf32x3 TT, 128 by 16, 512 threads, 190976 bytes, boxes 32 by 32 and 32 by 16, persistent, cost 0.22 0.25 0.75),
    sm90!("gemm_tf32x3_sm90_128x64_nn": tf32x3 NN, 128 by 64, 512 threads, 213504 bytes, boxes 32 by 128 and 32 by 32, persistent, cost 0.46 1.00 0.75),
    sm90!("gemm_tf32x3_sm90_128x32_nn": tf32x3 NN, 128 by 32, 512 threads, 217600 bytes, boxes 32 by 128 and 32 by 32, persistent, cost 0.30 0.25 0.85),
    sm90!("gemm_tf32x3_sm90_128x64_tn": tf32x3 TN, 128 by 64, 512 threads, 213504 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.46 1.75 0.75),
    sm90!("gemm_tf32x3_sm90_128x32_tn": tf32x3 TN, 128 by 32, 512 threads, 217600 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.28 0.50 0.85),
    sm90!("gemm_tf32x3_sm90_64x128_nt": tf32x3 NT, 64 by 128, 512 threads, 221696 bytes, boxes 32 by 64 and 32 by 128, persistent, cost 0.68 3.00 0.80),
    sm90!("gemm_tf32x3_sm90_32x128_nt": tf32x3 NT, 32 by 128, 512 threads, 217600 bytes, boxes 32 by 32 and 32 by 128, persistent, cost 0.38 1.75 0.75),
    sm90!("gemm_tf32x3_sm90_16x128_nt": tf32x3 NT, 16 by 128, 512 threads, 190976 bytes, boxes 32 by 16 and 32 by 128, persistent, cost 0.24 2.00 0.75),
    sm90!("gemm_tf32x3_sm90_64x128_nn": tf32x3 NN, 64 by 128, 512 threads, 221696 bytes, boxes 32 by 64 and 32 by 32, persistent, cost 0.62 1.25 0.80),
    sm90!("gemm_tf32x3_sm90_32x128_nn": tf32x3 NN, 32 by 128, 512 threads, 217600 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.40 0.50 0.75),
    sm90!("gemm_tf32x3_sm90_16x128_nn": tf32x3 NN, 16 by 128, 512 threads, 190976 bytes, boxes 32 by 16 and 32 by 32, persistent, cost 0.22 0.25 0.75),
    sm90!("gemm_tf32x3_sm90_64x64_nt": tf32x3 NT, 64 by 64, 384 threads, 188928 bytes, boxes 32 by 64 and 32 by 64, persistent, cost 0.44 1.25 0.80),
    sm90!("gemm_tf32x3_sm90_64x64_tt": tf32x3 TT, 64 by 64, 384 threads, 188928 bytes, boxes 32 by 32 and 32 by 64, persistent, cost 0.46 0.75 0.80),
    sm90!("gemm_tf32x3_sm90_64x64_nn": tf32x3 NN, 64 by 64, 384 threads, 229888 bytes, boxes 32 by 64 and 32 by 32, persistent, cost 0.30 0.25 0.80),
    sm90!("gemm_tf32x3_sm90_64x64_tn": tf32x3 TN, 64 by 64, 384 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.28 0.50 0.80),
    sm90!("gemm_tf32x3_sm90_32x64_nt": tf32x3 NT, 32 by 64, 384 threads, 135680 bytes, boxes 32 by 32 and 32 by 64, persistent, cost 0.26 0.50 0.85),
    sm90!("gemm_tf32x3_sm90_16x64_nt": tf32x3 NT, 16 by 64, 384 threads, 109056 bytes, boxes 32 by 16 and 32 by 64, persistent, cost 0.14 0.50 0.80),
    sm90!("gemm_tf32x3_sm90_32x64_nn": tf32x3 NN, 32 by 64, 384 threads, 135680 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.28 0.25 0.80),
    sm90!("gemm_tf32x3_sm90_16x64_nn": tf32x3 NN, 16 by 64, 384 threads, 109056 bytes, boxes 32 by 16 and 32 by 32, persistent, cost 0.16 0.25 0.80),
    sm90!("gemm_tf32_sm90_128x256_pair_nt": tf32 NT, 128 by 256, 384 threads, 213504 bytes, boxes 32 by 128 and 32 by 128, pairs along M, cost 0.82 6.75 0.75),
    sm90!("gemm_tf32_sm90_128x256_pair_tt": tf32 TT, 128 by 256, 384 threads, 213504 bytes, boxes 32 by 32 and 32 by 128, pairs along M, cost 0.82 7.00 0.75),
    sm90!("gemm_tf32_sm90_256x128_pair_nn": tf32 NN, 256 by 128, 384 threads, 213504 bytes, boxes 32 by 128 and 32 by 32, pairs along N, cost 0.78 7.00 0.75),
    sm90!("gemm_tf32_sm90_128x128_pair_tn": tf32 TN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, pairs along M, cost 0.35 4.25 0.75),
    sm90!("gemm_tf32_sm90_128x128_nt": tf32 NT, 128 by 128, 384 threads, 229888 bytes, boxes 32 by 128 and 32 by 128, persistent, cost 0.76 4.00 0.75),
    sm90!("gemm_tf32_sm90_128x128_tt": tf32 TT, 128 by 128, 384 threads, 229888 bytes, boxes 32 by 32 and 32 by 128, persistent, cost 0.72 3.00 0.75),
    sm90!("gemm_tf32_sm90_128x128_nn": tf32 NN, 128 by 128, 384 threads, 229888 bytes, boxes 32 by 128 and 32 by 32, persistent, cost 0.64 3.25 0.75),
    sm90!("gemm_tf32_sm90_128x128_tn": tf32 TN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.36 3.50 0.75),
    sm90!("gemm_tf32_sm90_128x64_nt": tf32 NT, 128 by 64, 384 threads, 221696 bytes, boxes 32 by 128 and 32 by 64, persistent, cost 0.60 2.50 0.75),
    sm90!("gemm_tf32_sm90_128x64_tt": tf32 TT, 128 by 64, 384 threads, 221696 bytes, boxes 32 by 32 and 32 by 64, persistent, cost 0.42 1.50 0.75),
    sm90!("gemm_tf32_sm90_128x64_nn": tf32 NN, 128 by 64, 512 threads, 229888 bytes, boxes 32 by 128 and 32 by 32, persistent, cost 0.28 1.50 0.75),
    sm90!("gemm_tf32_sm90_128x64_tn": tf32 TN, 128 by 64, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.28 1.75 0.75),
    sm90!("gemm_tf32_sm90_64x128_nt": tf32 NT, 64 by 128, 384 threads, 221696 bytes, boxes 32 by 64 and 32 by 128, persistent, cost 0.62 2.75 0.75),
    sm90!("gemm_tf32_sm90_32x128_nt": tf32 NT, 32 by 128, 384 threads, 205312 bytes, boxes 32 by 32 and 32 by 128, persistent, cost 0.30 1.50 0.60),
    sm90!("gemm_tf32_sm90_16x128_nt": tf32 NT, 16 by 128, 384 threads, 184832 bytes, boxes 32 by 16 and 32 by 128, persistent, cost 0.16 1.25 0.60),
    sm90!("gemm_tf32_sm90_64x128_nn": tf32 NN, 64 by 128, 384 threads, 221696 bytes, boxes 32 by 64 and 32 by 32, persistent, cost 0.38 1.50 0.75),
    sm90!("gemm_tf32_sm90_32x128_nn": tf32 NN, 32 by 128, 384 threads, 205312 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.20 1.00 0.60),
    sm90!("gemm_tf32_sm90_16x128_nn": tf32 NN, 16 by 128, 384 threads, 184832 bytes, boxes 32 by 16 and 32 by 32, persistent, cost 0.16 1.75 0.60),
    KernelSpec::mma(
        "gemm_tf32x3_mma_128x128",
        Arithmetic::Tf32x3,
        Tile::block(128, 128, 32).stages(3),
        256,
        98304,
        Cost::measured(0.42, 0.420, 1, 4.0, 0.75),
    ),
    KernelSpec::mma(
        "gemm_tf32x3_mma_64x64",
        Arithmetic::Tf32x3,
        Tile::block(64, 64, 32).stages(3),
        128,
        49152,
        Cost::measured(0.34, 0.212, 2, 4.0, 0.75),
    ),
    KernelSpec::mma(
        "gemm_tf32_mma_128x128",
        Arithmetic::Tf32,
        Tile::block(128, 128, 32).stages(3),
        128,
        98304,
        Cost::measured(0.4, 0.400, 1, 4.0, 0.75),
    ),
    KernelSpec::mma(
        "gemm_tf32_mma_64x64",
        Arithmetic::Tf32,
        Tile::block(64, 64, 32).stages(3),
        128,
        49152,
        Cost::measured(0.28, 0.175, 2, 4.0, 0.75),
    ),
];
