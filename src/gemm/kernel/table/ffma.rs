//! FP32 multiply-adds on any device.

use super::super::spec::KernelSpec;
use super::families::ffma::{few_k, outer, pipelined, tiled, unaligned, unaligned_sliced_k, words};

#[rustfmt::skip]
pub(super) const ROWS: &[KernelSpec] = &[
    // name, [BM, BN, BK], [WM, WN], [TM, TN], groups of warps that share k
    tiled("ffma_64x64",   [64, 64, 32],   [64, 32],  [8, 8],  2),
    tiled("ffma_32x128",  [32, 128, 32],  [32, 64],  [8, 8],  2),
    tiled("ffma_16x128",  [16, 128, 32],  [16, 128], [8, 8],  4),
    tiled("ffma_128x32",  [128, 32, 32],  [32, 32],  [4, 8],  1),

    // name, [BM, BN, BK], [WM, WN], [TM, TN], stages
    pipelined("ffma_pipelined_128x256", [128, 256, 16], [32, 128], [8, 16], 3),
    pipelined("ffma_pipelined_128x128", [128, 128, 16], [32, 128], [8, 16], 3),

    // name, [BM, BN, BK], [TM, TN], stages
    words("ffma_words_128x128", [128, 128, 16], [8, 8], 3),
    words("ffma_words_96x96",   [96, 96, 16],   [8, 6], 3),
    words("ffma_words_80x80",   [80, 80, 16],   [8, 5], 2),
    words("ffma_words_64x64",   [64, 64, 16],   [8, 4], 3),
    words("ffma_words_64x32",   [64, 32, 16],   [8, 2], 3),
    words("ffma_words_32x64",   [32, 64, 16],   [4, 4], 3),
    words("ffma_words_32x32",   [32, 32, 16],   [4, 2], 4),
    words("ffma_words_16x64",   [16, 64, 16],   [4, 4], 4),

    // name, [BM, BN, BK], [WM, WN], [TM, TN], stages
    unaligned("ffma_unaligned_64x128",  [64, 128, 16],  [32, 64], [8, 8], 3),
    unaligned("ffma_unaligned_128x64",  [128, 64, 16],  [64, 32], [8, 8], 3),
    unaligned("ffma_unaligned_64x96",   [64, 96, 16],   [16, 96], [4, 12], 3),
    unaligned("ffma_unaligned_64x80",   [64, 80, 16],   [32, 80], [4, 20], 3),
    unaligned("ffma_unaligned_96x64",   [96, 64, 16],   [48, 32], [12, 4], 3),
    unaligned("ffma_unaligned_128x128", [128, 128, 16], [32, 64], [8, 8], 3),
    unaligned("ffma_unaligned_128x96",  [128, 96, 16],  [32, 96], [8, 12], 3),
    unaligned("ffma_unaligned_128x80",  [128, 80, 16],  [32, 80], [4, 20], 3),
    // (short_k: the same tiles with a loop half as long.)
    unaligned("ffma_unaligned_64x128_short_k", [64, 128, 16], [32, 64], [8, 8], 3),
    unaligned("ffma_unaligned_128x64_short_k", [128, 64, 16], [64, 32], [8, 8], 3),
    unaligned("ffma_unaligned_64x64",   [64, 64, 16],   [32, 32], [4, 8], 3),
    unaligned("ffma_unaligned_64x48",   [64, 48, 16],   [32, 48], [4, 12], 3),
    unaligned("ffma_unaligned_48x64",   [48, 64, 16],   [48, 32], [12, 4], 3),
    unaligned("ffma_unaligned_32x96",   [32, 96, 16],   [16, 96], [4, 12], 3),
    unaligned("ffma_unaligned_128x32",  [128, 32, 16],  [32, 32], [4, 8], 2),
    unaligned("ffma_unaligned_64x32",   [64, 32, 16],   [16, 32], [4, 4], 3),
    unaligned("ffma_unaligned_32x64",   [32, 64, 16],   [32, 32], [4, 8], 3),
    unaligned("ffma_unaligned_32x48",   [32, 48, 16],   [32, 48], [4, 12], 3),
    unaligned("ffma_unaligned_32x32",   [32, 32, 16],   [16, 32], [4, 4], 2),
    unaligned("ffma_unaligned_16x32",   [16, 32, 16],   [16, 32], [4, 4], 3),
    unaligned("ffma_unaligned_256x16",  [256, 16, 16],  [64, 16], [8, 4], 2),
    unaligned("ffma_unaligned_128x16",  [128, 16, 16],  [32, 16], [4, 4], 2),
    unaligned("ffma_unaligned_64x16",   [64, 16, 16],   [32, 16], [4, 4], 3),
    unaligned("ffma_unaligned_16x128",  [16, 128, 16],  [16, 32], [4, 4], 2),
    unaligned("ffma_unaligned_16x64",   [16, 64, 16],   [16, 32], [4, 4], 3),

    // name, [BM, BN, BK], [WM, WN], [TM, TN], stages, groups of warps that share k
    unaligned_sliced_k("ffma_unaligned_64x64_sliced_k", [64, 64, 32],  [32, 32], [4, 8], 3, 2),
    unaligned_sliced_k("ffma_unaligned_64x48_sliced_k", [64, 48, 64],  [32, 48], [4, 12], 3, 4),
    unaligned_sliced_k("ffma_unaligned_64x32_sliced_k", [64, 32, 64],  [32, 32], [4, 8], 3, 4),
    unaligned_sliced_k("ffma_unaligned_32x64_sliced_k", [32, 64, 64],  [32, 32], [4, 8], 3, 4),
    unaligned_sliced_k("ffma_unaligned_32x32_sliced_k", [32, 32, 64],  [32, 32], [4, 8], 2, 4),
    unaligned_sliced_k("ffma_unaligned_16x32_sliced_k", [16, 32, 64],  [16, 32], [4, 4], 3, 4),

    // name, [BM, BN, most of k], rows of a thread
    few_k("ffma_few_k_1024x1", [1024, 1, 8], 4),

    // name, [BM, BN, most of k], warps
    outer("ffma_outer_16x32x8",    [16, 32, 8], 1),
    outer("ffma_outer_64x128x8",   [64, 128, 8], 4),
    outer("ffma_outer_128x64x8",   [128, 64, 8], 4),
    outer("ffma_outer_256x32x8",   [256, 32, 8], 4),
    outer("ffma_outer_64x128x16",  [64, 128, 16], 4),
];
