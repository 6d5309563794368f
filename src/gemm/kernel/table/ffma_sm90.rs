//! FP32 multiply-adds on Hopper.

use super::super::spec::KernelSpec;
use super::derived::Layout::{NN, NT, TN, TT};
use super::families::ffma_sm90::{
    direct, direct_tn, k_major, k_major_stream_k, sliced_k, sliced_k_words, small_m, specialized_tma, specialized_words,
};

#[rustfmt::skip]
pub(super) const ROWS: &[KernelSpec] = &[
    // name, [BM, BN, BK], [TM, TN], stages, longest slice of k
    small_m("ffma_small_m_16_sm90", [16, 16, 256], [8, 8], 5, 2048),

    // name, [BM, BN, BK], [WM, WN], [TM, TN], stages
    k_major("ffma_kmajor_16x128_sm90",  [16, 128, 32],  [16, 128], [8, 8], 8),
    k_major("ffma_kmajor_32x64_sm90",   [32, 64, 32],   [32, 64],  [8, 8], 12),
    k_major("ffma_kmajor_32x128_sm90",  [32, 128, 32],  [32, 64],  [8, 8], 8),
    k_major("ffma_kmajor_128x16_sm90",  [128, 16, 32],  [128, 16], [8, 8], 8),
    k_major("ffma_kmajor_64x32_sm90",   [64, 32, 32],   [64, 32],  [8, 8], 12),
    k_major("ffma_kmajor_128x32_sm90",  [128, 32, 32],  [64, 32],  [8, 8], 8),
    k_major("ffma_kmajor_64x64_sm90",   [64, 64, 32],   [64, 32],  [8, 8], 8),
    k_major("ffma_kmajor_128x64_sm90",  [128, 64, 32],  [64, 32],  [8, 8], 6),
    k_major("ffma_kmajor_128x128_sm90", [128, 128, 32], [64, 32],  [8, 8], 5),
    k_major_stream_k("ffma_kmajor_64x64_stream_k_sm90",   [64, 64, 32],   [64, 32], [8, 8], 8),
    k_major_stream_k("ffma_kmajor_128x64_stream_k_sm90",  [128, 64, 32],  [64, 32], [8, 8], 6),

    // name, layout, [BM, BN, BK], [WM, WN], [TM, TN], stages
    sliced_k("ffma_sliced_k_128x128_nn_sm90", NN, [128, 128, 16], [64, 64], [8, 16], 12),
    sliced_k("ffma_sliced_k_128x128_tn_sm90", TN, [128, 128, 16], [64, 64], [8, 16], 12),
    sliced_k("ffma_sliced_k_64x128_nn_sm90",  NN, [64, 128, 16],  [64, 64], [8, 16], 16),
    sliced_k("ffma_sliced_k_64x128_tn_sm90",  TN, [64, 128, 16],  [64, 64], [8, 16], 16),
    sliced_k("ffma_sliced_k_64x64_nn_sm90",   NN, [64, 64, 16],   [64, 64], [8, 16], 24),
    sliced_k("ffma_sliced_k_64x64_tn_sm90",   TN, [64, 64, 16],   [64, 64], [8, 16], 24),

    // name, layout of those with TMA, [BM, BN, BK], [WM, WN], [TM, TN], stages
    specialized_tma("ffma_specialized_128x256_nn_sm90", NN, [128, 256, 16], [64, 64], [8, 16], 4),
    specialized_tma("ffma_specialized_128x256_nt_sm90", NT, [128, 256, 16], [64, 64], [8, 16], 4),
    specialized_tma("ffma_specialized_128x256_tn_sm90", TN, [128, 256, 16], [64, 64], [8, 16], 4),
    specialized_tma("ffma_specialized_128x256_tt_sm90", TT, [128, 256, 16], [64, 64], [8, 16], 4),
    specialized_tma("ffma_specialized_128x128_tn_sm90", TN, [128, 128, 16], [64, 32], [8, 8], 4),
    specialized_tma("ffma_specialized_128x128_tt_sm90", TT, [128, 128, 16], [64, 32], [8, 8], 4),

    // name, [BM, BN, BK], [WM, WN], [TM, TN], stages
    sliced_k_words("ffma_sliced_k_128x128_words_sm90", [128, 128, 16], [64, 64], [8, 16], 12),
    specialized_words("ffma_specialized_128x256_words_sm90", [128, 256, 16], [64, 64], [8, 16], 4),
    specialized_words("ffma_specialized_128x128_words_sm90", [128, 128, 16], [64, 32], [8, 8], 4),
    specialized_words("ffma_specialized_512x32_words_sm90",  [512, 32, 16],  [64, 32], [8, 8], 4),
    specialized_words("ffma_specialized_32x512_words_sm90",  [32, 512, 16],  [32, 64], [8, 8], 4),
    specialized_words("ffma_specialized_256x64_words_sm90",  [256, 64, 16],  [64, 32], [8, 8], 4),
    specialized_words("ffma_specialized_64x256_words_sm90",  [64, 256, 16],  [64, 32], [8, 8], 4),

    // name, layout, [BM, BN, BK], [WM, WN], [TM, TN], stages
    direct("ffma_direct_128x32_nn_sm90", NN, [128, 32, 32], [64, 32], [8, 8], 3),
    direct("ffma_direct_128x64_nn_sm90", NN, [128, 64, 32], [64, 32], [8, 8], 2),
    direct("ffma_direct_128x64_nt_sm90", NT, [128, 64, 32], [64, 32], [8, 8], 2),

    // name, [BM, BN, BK], [WM, WN], [TM, TN], stages
    direct_tn("ffma_direct_64x128_tn_sm90", [64, 128, 16], [32, 64], [8, 8], 4),
    direct_tn("ffma_direct_128x64_tn_sm90", [128, 64, 16], [64, 32], [8, 8], 4),
    direct_tn("ffma_direct_64x64_tn_sm90",  [64, 64, 16],  [32, 32], [4, 8], 4),
];
