//! TF32 products on tensor cores.

use super::super::spec::Arithmetic::{Tf32, Tf32x3};
use super::super::spec::KernelSpec;
use super::derived::Clusters::{CutK, Multicast};
use super::derived::Layout::{NN, NT, TN, TT};
use super::derived::Registers::{A, B};
use super::families::tensor_core::{mma, tf32, tf32x3};

#[rustfmt::skip]
pub(super) const ROWS: &[KernelSpec] = &[
    // name, layout, [BM, BN, BK], the operand in registers, what clusters are for
    tf32x3("gemm_tf32x3_sm90_128x128_2cta_nt", NT, [128, 128, 32], A, Multicast),
    tf32x3("gemm_tf32x3_sm90_128x128_2cta_tt", TT, [128, 128, 32], A, Multicast),
    tf32x3("gemm_tf32x3_sm90_128x128_2cta_nn", NN, [128, 128, 32], B, Multicast),
    tf32x3("gemm_tf32x3_sm90_128x128_nt",      NT, [128, 128, 32], A, CutK),
    tf32x3("gemm_tf32x3_sm90_128x128_tt",      TT, [128, 128, 32], A, CutK),
    tf32x3("gemm_tf32x3_sm90_128x128_nn",      NN, [128, 128, 32], B, CutK),
    tf32x3("gemm_tf32x3_sm90_128x128_tn",      TN, [128, 128, 32], A, CutK),
    tf32x3("gemm_tf32x3_sm90_128x64_nt",       NT, [128, 64, 32],  A, CutK),
    tf32x3("gemm_tf32x3_sm90_128x32_nt",       NT, [128, 32, 32],  A, CutK),
    tf32x3("gemm_tf32x3_sm90_128x16_nt",       NT, [128, 16, 32],  A, CutK),
    tf32x3("gemm_tf32x3_sm90_128x64_tt",       TT, [128, 64, 32],  A, CutK),
    tf32x3("gemm_tf32x3_sm90_128x32_tt",       TT, [128, 32, 32],  A, CutK),
    tf32x3("gemm_tf32x3_sm90_128x16_tt",       TT, [128, 16, 32],  A, CutK),
    tf32x3("gemm_tf32x3_sm90_128x64_nn",       NN, [128, 64, 32],  A, CutK),
    tf32x3("gemm_tf32x3_sm90_128x64_tn",       TN, [128, 64, 32],  A, CutK),
    tf32x3("gemm_tf32x3_sm90_128x32_tn",       TN, [128, 32, 32],  A, CutK),
    tf32x3("gemm_tf32x3_sm90_64x128_nt",       NT, [64, 128, 32],  B, CutK),
    tf32x3("gemm_tf32x3_sm90_32x128_nt",       NT, [32, 128, 32],  B, CutK),
    tf32x3("gemm_tf32x3_sm90_16x128_nt",       NT, [16, 128, 32],  B, CutK),
    tf32x3("gemm_tf32x3_sm90_64x128_nn",       NN, [64, 128, 32],  B, CutK),
    tf32x3("gemm_tf32x3_sm90_32x128_nn",       NN, [32, 128, 32],  B, CutK),
    tf32x3("gemm_tf32x3_sm90_16x128_nn",       NN, [16, 128, 32],  B, CutK),
    tf32x3("gemm_tf32x3_sm90_64x64_nt",        NT, [64, 64, 32],   A, CutK),
    tf32x3("gemm_tf32x3_sm90_64x64_tt",        TT, [64, 64, 32],   A, CutK),
    tf32x3("gemm_tf32x3_sm90_64x64_tn",        TN, [64, 64, 32],   A, CutK),
    tf32x3("gemm_tf32x3_sm90_32x64_nt",        NT, [32, 64, 32],   B, CutK),
    tf32x3("gemm_tf32x3_sm90_16x64_nt",        NT, [16, 64, 32],   B, CutK),
    tf32x3("gemm_tf32x3_sm90_32x64_nn",        NN, [32, 64, 32],   B, CutK),
    tf32x3("gemm_tf32x3_sm90_16x64_nn",        NN, [16, 64, 32],   B, CutK),

    tf32("gemm_tf32_sm90_128x256_2cta_nt", NT, [128, 256, 32], A, Multicast),
    tf32("gemm_tf32_sm90_128x256_2cta_tt", TT, [128, 256, 32], A, Multicast),
    tf32("gemm_tf32_sm90_256x128_2cta_nn", NN, [256, 128, 32], B, Multicast),
    tf32("gemm_tf32_sm90_128x128_nt",      NT, [128, 128, 32], A, CutK),
    tf32("gemm_tf32_sm90_128x128_tt",      TT, [128, 128, 32], A, CutK),
    tf32("gemm_tf32_sm90_128x128_nn",      NN, [128, 128, 32], B, CutK),
    tf32("gemm_tf32_sm90_128x128_tn",      TN, [128, 128, 32], A, CutK),
    tf32("gemm_tf32_sm90_128x64_nt",       NT, [128, 64, 32],  A, CutK),
    tf32("gemm_tf32_sm90_128x64_tt",       TT, [128, 64, 32],  A, CutK),
    tf32("gemm_tf32_sm90_128x64_nn",       NN, [128, 64, 32],  A, CutK),
    tf32("gemm_tf32_sm90_128x64_tn",       TN, [128, 64, 32],  A, CutK),
    tf32("gemm_tf32_sm90_64x128_nt",       NT, [64, 128, 32],  B, CutK),
    tf32("gemm_tf32_sm90_32x128_nt",       NT, [32, 128, 32],  B, CutK),
    tf32("gemm_tf32_sm90_16x128_nt",       NT, [16, 128, 32],  B, CutK),
    tf32("gemm_tf32_sm90_64x128_nn",       NN, [64, 128, 32],  B, CutK),
    tf32("gemm_tf32_sm90_32x128_nn",       NN, [32, 128, 32],  B, CutK),
    tf32("gemm_tf32_sm90_16x128_nn",       NN, [16, 128, 32],  B, CutK),

    // name, arithmetic, [BM, BN, BK], [WM, WN], stages
    mma("gemm_tf32x3_mma_128x128", Tf32x3, [128, 128, 32], [64, 32], 3),
    mma("gemm_tf32x3_mma_64x64",   Tf32x3, [64, 64, 32],   [32, 32], 3),
    mma("gemm_tf32_mma_128x128",   Tf32,   [128, 128, 32], [64, 64], 3),
    mma("gemm_tf32_mma_64x64",     Tf32,   [64, 64, 32],   [32, 32], 3),
];
