//! The rungs of the ladder, in its order: to be read, and run by name. The planner considers those that have costs; without
//! Hopper's kernels, rungs 13 and 14 are now and then the fastest.

use super::super::spec::KernelSpec;
use super::families::ladder::{async_rung, double_rung, rung, warp_rung};

#[rustfmt::skip]
pub(super) const ROWS: &[KernelSpec] = &[
    // number, name, [BM, BN, BK], [WM, WN] from rung 13 on, [TM, TN], stages there, what it does
    rung(1, "sgemm_01_naive",             [32, 32, 1], [1, 1], "one thread an element, warps along rows of D"),
    rung(1, "sgemm_01_naive_uncoalesced", [32, 32, 1], [1, 1], "one thread an element, warps down columns of D"),
    rung(2, "sgemm_02_coalesced_16", [16, 16, 1], [1, 1], "consecutive threads on consecutive columns, 16 × 16"),
    rung(2, "sgemm_02_coalesced",    [32, 32, 1], [1, 1], "the same, 32 × 32"),
    rung(3, "sgemm_03_shared",                   [32, 32, 32], [1, 1], "tiles of A and B in shared memory"),
    rung(3, "sgemm_03_shared_in_turn",           [32, 32, 32], [1, 1], "the same, loaded only when needed"),
    rung(3, "sgemm_03_shared_padded",            [32, 32, 32], [1, 1], "the same, rows of A padded"),
    rung(3, "sgemm_03_shared_transposed",        [32, 32, 32], [1, 1], "A transposed on the way, with bank conflicts"),
    rung(3, "sgemm_03_shared_transposed_padded", [32, 32, 32], [1, 1], "the same, padded against bank conflicts"),
    rung(4, "sgemm_04_l1_register_block_c_first", [16, 512, 1], [16, 4], "register blocks through the L1 cache, C read first"),
    rung(4, "sgemm_04_l1_register_block",         [16, 512, 1], [16, 4], "the same, C read last"),
    rung(4, "sgemm_04_l1_register_block_8x4",     [32, 128, 1], [8, 4],  "the same, 8 × 4 a thread"),
    double_rung(4, "dgemm_04_l1_register_block_c_first", [16, 512, 1], [16, 4], "FP64: register blocks through L1, C read first"),
    double_rung(4, "dgemm_04_l1_register_block",         [16, 512, 1], [16, 4], "FP64: the same, C read last"),
    rung(5, "sgemm_05_thread_tile_1d",      [64, 64, 8],  [8, 1], "a column of 8 elements a thread"),
    rung(5, "sgemm_05_thread_tile_1d_bk32", [64, 64, 32], [8, 1], "the same, k in steps of 32").spills(&[100]),
    rung(6, "sgemm_06_thread_tile_2d_4x4_padded", [128, 128, 8], [4, 4], "4 × 4 neighbouring elements a thread, padded rows"),
    rung(6, "sgemm_06_thread_tile_2d_4x4",        [128, 128, 8], [4, 4], "the same without padding"),
    rung(6, "sgemm_06_thread_tile_2d",            [128, 128, 8], [8, 8], "8 × 8 neighbouring elements a thread").spills(&[120]),
    rung(7, "sgemm_07_thread_tile_strided_unpadded", [128, 128, 8], [4, 4], "4 × 4 elements a thread, a quarter tile apart"),
    rung(7, "sgemm_07_thread_tile_strided",          [128, 128, 8], [4, 4], "the same, padded rows"),
    rung(7, "sgemm_07_thread_tile_strided_8x8",      [128, 128, 8], [8, 8], "8 × 8 elements a thread, an eighth apart"),
    rung(8, "sgemm_08_register_cached", [128, 128, 8], [8, 8], "fragments of A and B in registers").spills(&[120]),
    rung(9, "sgemm_09_quadrants",      [128, 128, 8],  [8, 8], "4 × 4 in each quadrant; A stored transposed"),
    rung(9, "sgemm_09_quadrants_bk16", [128, 128, 16], [8, 8], "the same, k in steps of 16"),
    rung(10, "sgemm_10_vectorized",            [128, 128, 8], [8, 8], "four floats an instruction, outputs in quadrants"),
    rung(10, "sgemm_10_vectorized_contiguous", [128, 128, 8], [8, 8], "the same, outputs contiguous: reads of B conflict"),
    rung(11, "sgemm_11_tuned_shared_c_first",        [128, 128, 32], [8, 8], "shared memory, BK = 32, C read first"),
    rung(11, "sgemm_11_tuned_shared_c_last",         [128, 128, 32], [8, 8], "the same, C read last"),
    rung(11, "sgemm_11_tuned_shared_bk16",           [128, 128, 16], [8, 8], "the same, BK = 16"),
    rung(11, "sgemm_11_tuned_shared_global_float4",  [128, 128, 16], [8, 8], "the same, float4 from global memory"),
    rung(11, "sgemm_11_tuned_shared",                [128, 128, 16], [8, 8], "the same, float4 from shared memory too"),
    rung(11, "sgemm_11_tuned_shared_extra_shared",   [128, 128, 16], [8, 8], "the same, with 16 KiB of shared memory unused"),
    rung(11, "sgemm_11_tuned_shared_more_registers", [128, 128, 16], [8, 8], "float4 throughout, one block a multiprocessor"),
    rung(12, "sgemm_12_double_buffered", [128, 128, 8], [8, 8], "two tiles in shared memory, loads before products").stages(2),
    warp_rung(13, "sgemm_13_warp_tiled",              [128, 256, 8], [32, 128], [8, 16], 2, "block, warp and thread tiles"),
    warp_rung(13, "sgemm_13_warp_tiled_w64x64",       [128, 256, 8], [64, 64],  [8, 16], 2, "the same, warps of 64 × 64"),
    warp_rung(13, "sgemm_13_warp_tiled_128x128",      [128, 128, 8], [64, 64],  [8, 16], 2, "the same, 128 × 128"),
    warp_rung(13, "sgemm_13_warp_tiled_128x128_t8x8", [128, 128, 8], [64, 32],  [8, 8],  2, "the same, 8 × 8 a thread"),
    warp_rung(13, "sgemm_13_warp_tiled_64x64",        [64, 64, 8],   [32, 32],  [4, 8],  2, "the same, 64 × 64"),
    async_rung(14, "sgemm_14_async_pipelined",         [128, 256, 16], [32, 128], [8, 16], 3, "asynchronous copies, three stages"),
    async_rung(14, "sgemm_14_async_pipelined_128x128", [128, 128, 16], [32, 128], [8, 16], 3, "the same, 128 × 128"),
];
