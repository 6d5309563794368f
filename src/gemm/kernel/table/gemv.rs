//! Products with few rows or few columns: kernels that stream the other matrix once.

use super::super::spec::KernelSpec;
use super::families::brief::{brief_cols, brief_lines_cols, brief_lines_rows, brief_rows, brief_wide};
use super::families::gemv::{
    at_once, axpy_cols, axpy_rows, dot_cols, dot_rows, fused, short_cols, short_rows, stream, ALONG_COLS, ALONG_ROWS,
};
use super::families::thin::{
    thin_axpy_cols, thin_axpy_rows, thin_dot_cols, thin_dot_rows, thin_run_cols, thin_run_rows, thin_wide_rows,
};
use crate::gemm::operands::DType::F32;

#[rustfmt::skip]
pub(super) const ROWS: &[KernelSpec] = &[
    // name, [BM, BN, BK], warps
    dot_rows("gemv_dot_m1",       [1, 2, 1536],  6),
    dot_rows("gemv_dot_m1_deep",  [1, 2, 2048],  4),
    dot_rows("gemv_dot_m2",       [2, 2, 1024],  4),
    dot_rows("gemv_dot_m4",       [4, 4, 1024],  8),
    dot_rows("gemv_dot_m8",       [8, 4, 256],   2),
    dot_rows("gemv_dot_m8_deep",  [8, 2, 1024],  8).spills(&[120]),
    dot_cols("gemv_dot_n1",       [4, 1, 2048],  4),
    dot_cols("gemv_dot_n2",       [4, 2, 2048],  4),
    dot_cols("gemv_dot_n4",       [4, 4, 1024],  4),
    dot_cols("gemv_dot_n8",       [4, 8, 1024],  4),
    dot_cols("gemv_panel_n16",    [32, 16, 512], 16),

    // name, [BM, BN, BK], lanes that share a line
    short_rows("gemv_short_m1", [1, 32, 128], 8),
    short_rows("gemv_short_m2", [2, 32, 128], 8),
    short_rows("gemv_short_m4", [4, 32, 128], 8),
    short_rows("gemv_short_m1_deep", [1, 8, 512], 32),
    short_rows("gemv_short_m2_deep", [2, 8, 512], 32),
    short_cols("gemv_short_n1", [32, 1, 128], 8),
    short_cols("gemv_short_n2", [32, 2, 128], 8),
    short_cols("gemv_short_n4", [32, 4, 128], 8),
    short_cols("gemv_short_n8", [16, 8, 64], 8),
    short_cols("gemv_short_n1_deep", [8, 1, 512], 32),
    short_cols("gemv_short_n2_deep", [8, 2, 512], 32),

    // name, [BM, BN, BK], elements of a thread in a turn, how lines lie
    brief_rows("brief_axpy_1x8",  [1, 8, 256],   8,  ALONG_ROWS),
    brief_rows("brief_axpy_1x8_deep", [1, 8, 1024], 8, ALONG_ROWS),
    brief_rows("brief_axpy_1x16", [1, 16, 128],  8,  ALONG_ROWS),
    brief_rows("brief_axpy_1x32", [1, 32, 128],  16, ALONG_ROWS),
    brief_rows("brief_axpy_4x8",  [4, 8, 256],   8,  ALONG_ROWS),
    brief_rows("brief_axpy_4x8_deep", [4, 8, 1024], 8, ALONG_ROWS),
    brief_rows("brief_axpy_4x32", [4, 32, 128],  16, ALONG_ROWS),
    brief_rows("brief_axpy_4x64", [4, 64, 64],   16, ALONG_ROWS),
    brief_rows("brief_axpy_8x16", [8, 16, 128],  8,  ALONG_ROWS),
    brief_rows("brief_axpy_8x32", [8, 32, 64],   8,  ALONG_ROWS),
    brief_cols("brief_axpy_8x1",  [8, 1, 256],   8,  ALONG_COLS),
    brief_cols("brief_axpy_8x1_deep", [8, 1, 1024], 8, ALONG_COLS),
    brief_cols("brief_axpy_32x1", [32, 1, 128],  16, ALONG_COLS),
    brief_cols("brief_axpy_32x4", [32, 4, 128],  16, ALONG_COLS),
    brief_cols("brief_axpy_32x8", [32, 8, 64],   8,  ALONG_COLS),
    brief_rows("brief_dot_1x4",   [1, 4, 512],   8,  ALONG_COLS),
    brief_rows("brief_dot_1x4_deep", [1, 4, 2048], 8, ALONG_COLS),
    brief_rows("brief_dot_1x16",  [1, 16, 128],  8,  ALONG_COLS),
    brief_rows("brief_dot_4x8",   [4, 8, 256],   8,  ALONG_COLS),
    brief_rows("brief_dot_4x8_deep", [4, 8, 1024], 8, ALONG_COLS),
    brief_rows("brief_dot_4x32",  [4, 32, 64],   8,  ALONG_COLS),
    brief_rows("brief_dot_8x8",   [8, 8, 128],   4,  ALONG_COLS),
    brief_cols("brief_dot_4x1",   [4, 1, 512],   8,  ALONG_ROWS),
    brief_cols("brief_dot_4x1_deep", [4, 1, 2048], 8, ALONG_ROWS),
    brief_cols("brief_dot_16x1",  [16, 1, 128],  8,  ALONG_ROWS),
    brief_cols("brief_dot_8x4",   [8, 4, 256],   8,  ALONG_ROWS),
    brief_cols("brief_dot_32x4",  [32, 4, 64],   8,  ALONG_ROWS),
    brief_cols("brief_dot_32x8",  [32, 8, 64],   8,  ALONG_ROWS),

    // name, [BM, BN, BK]
    brief_lines_rows("brief_lines_1x64",  [1, 64, 8]),
    brief_lines_rows("brief_lines_1x128", [1, 128, 8]),
    brief_lines_rows("brief_lines_4x64",  [4, 64, 4]),
    brief_lines_rows("brief_lines_4x128", [4, 128, 4]),
    brief_lines_cols("brief_lines_128x1", [128, 1, 8]),
    brief_lines_cols("brief_lines_64x4",  [64, 4, 4]),
    brief_lines_cols("brief_lines_128x4", [128, 4, 4]),

    // name, [BM, BN, BK], threads that share a line
    brief_wide("brief_wide_1x4",  [1, 4, 512],  64),
    brief_wide("brief_wide_1x32", [1, 32, 64],  8),
    brief_wide("brief_wide_4x16", [4, 16, 64],  16),

    // name, [BM, BN], warps
    axpy_rows("gemv_axpy_m1",     [1, 32],  16),
    axpy_rows("gemv_axpy_m2",     [2, 32],  16),
    axpy_rows("gemv_axpy_m4",     [4, 32],  16),
    axpy_rows("gemv_axpy_m8",     [8, 32],  16),
    axpy_cols("gemv_axpy_n4",     [32, 4],  16),

    // name, type, [BM, BN, BK], warps, blocks a multiprocessor
    stream("gemv_stream_m1_k384",  F32, [1, 8, 384],  3, 5).spills(&[90]),
    stream("gemv_stream_m1_k512",  F32, [1, 8, 512],  4, 4).spills(&[90]),
    stream("gemv_stream_m1_k640",  F32, [1, 8, 640],  5, 3).spills(&[90]),
    stream("gemv_stream_m1_k1024", F32, [1, 4, 1024], 4, 4).spills(&[90]),
    stream("gemv_stream_m1_k2048", F32, [1, 4, 2048], 8, 2).spills(&[90]),

    // name, that of the kernel without norm and gated columns, and it
    fused("gemv_fused_dot_m1",   Some("gemv_dot_m1_deep"),     dot_rows("", [1, 2, 2048], 4)).spills(&[86, 89, 100]),
    fused("gemv_fused_dot_m2",   Some("gemv_dot_m2"),          dot_rows("", [2, 2, 1024], 4)).spills(&[100]),
    fused("gemv_fused_m1_k1024", Some("gemv_stream_m1_k1024"), stream("", F32, [1, 4, 1024], 4, 4)),
    fused("gemv_fused_m1_k2048", Some("gemv_stream_m1_k2048"), stream("", F32, [1, 4, 2048], 8, 2)),

    // name, [BM, BN], lanes along k and rows, warps
    at_once("few_rows_16x8",  [16, 8],  [8, 2], 4),
    at_once("few_rows_16x12", [16, 12], [8, 2], 4),

    // name, [BM, BN], warps
    thin_axpy_rows("thin_axpy_1x8",   [1, 8],   16),
    thin_axpy_rows("thin_axpy_1x16",  [1, 16],  16),
    thin_axpy_rows("thin_axpy_1x32",  [1, 32],  16),
    thin_axpy_rows("thin_axpy_1x128", [1, 128], 4),
    thin_axpy_rows("thin_axpy_4x16",  [4, 16],  16),
    thin_axpy_rows("thin_axpy_4x32",  [4, 32],  16),
    thin_axpy_rows("thin_axpy_4x128", [4, 128], 8),
    thin_axpy_rows("thin_axpy_8x16",  [8, 16],  16),
    thin_axpy_rows("thin_axpy_8x32",  [8, 32],  16),
    thin_axpy_rows("thin_axpy_8x64",  [8, 64],  8),
    thin_axpy_rows("thin_axpy_8x128", [8, 128], 4),
    thin_axpy_rows("thin_axpy_16x64", [16, 64], 8),
    thin_axpy_cols("thin_axpy_16x1",  [16, 1],  16),
    thin_axpy_cols("thin_axpy_32x1",  [32, 1],  16),
    thin_axpy_cols("thin_axpy_128x1", [128, 1], 4),
    thin_axpy_cols("thin_axpy_32x4",  [32, 4],  16),
    thin_axpy_cols("thin_axpy_16x8",  [16, 8],  16),
    thin_axpy_cols("thin_axpy_32x8",  [32, 8],  16),

    // name, [BM, BN], warps
    thin_wide_rows("thin_wide_1x64",  [1, 64],  8),
    thin_wide_rows("thin_wide_4x64",  [4, 64],  8),
    thin_wide_rows("thin_wide_4x128", [4, 128], 8),

    // name, [BM, BN, BK], stages
    thin_dot_cols("thin_dot_128x4",   [128, 4, 16], 4),
    thin_dot_rows("thin_dot_4x128",   [4, 128, 32], 3),

    // name, [BM, BN, BK]
    thin_run_cols("thin_run_128x1",      [128, 1, 32]),
    thin_run_cols("thin_run_128x2",      [128, 2, 64]),
    thin_run_cols("thin_run_128x4",      [128, 4, 64]),
    thin_run_cols("thin_run_128x4_deep", [128, 4, 104]),
    thin_run_cols("thin_run_128x8",      [128, 8, 64]),
    thin_run_rows("thin_run_1x128",      [1, 128, 32]),
    thin_run_rows("thin_run_2x128",      [2, 128, 64]),
    thin_run_rows("thin_run_4x128",      [4, 128, 64]),
    thin_run_rows("thin_run_4x128_deep", [4, 128, 104]),
];
