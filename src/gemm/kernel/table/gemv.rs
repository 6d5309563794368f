//! Products with few rows or few columns: kernels that stream the other matrix once.

use super::super::spec::KernelSpec;
use super::families::{ALONG_COLS, ALONG_ROWS, AXPY_LINES, DOT_LINES, PANEL_LINES};

pub(super) const ROWS: &[KernelSpec] = &[
    KernelSpec::few_rows("gemv_dot_m1", 1, 2, 192, ALONG_COLS),
    KernelSpec::few_rows("gemv_dot_m2", 2, 2, 128, ALONG_COLS),
    KernelSpec::few_rows("gemv_dot_m4", 4, 4, 256, ALONG_COLS),
    KernelSpec::few_rows("gemv_dot_m8", 8, 4, 64, ALONG_COLS),
    KernelSpec::few_rows("gemv_dot_m8_deep", 8, 2, 256, ALONG_COLS),
    KernelSpec::few_rows("gemv_axpy_m1", 1, AXPY_LINES, 512, ALONG_ROWS),
    KernelSpec::few_rows("gemv_axpy_m2", 2, AXPY_LINES, 512, ALONG_ROWS),
    KernelSpec::few_rows("gemv_axpy_m4", 4, AXPY_LINES, 512, ALONG_ROWS),
    KernelSpec::few_rows("gemv_axpy_m8", 8, AXPY_LINES, 512, ALONG_ROWS),
    KernelSpec::few_cols("gemv_dot_n1", 1, DOT_LINES, 128, ALONG_ROWS),
    KernelSpec::few_cols("gemv_dot_n2", 2, DOT_LINES, 128, ALONG_ROWS),
    KernelSpec::few_cols("gemv_dot_n4", 4, DOT_LINES, 128, ALONG_ROWS),
    KernelSpec::few_cols("gemv_dot_n8", 8, DOT_LINES, 128, ALONG_ROWS),
    KernelSpec::few_cols("gemv_axpy_n1", 1, AXPY_LINES, 512, ALONG_COLS),
    KernelSpec::few_cols("gemv_axpy_n2", 2, AXPY_LINES, 512, ALONG_COLS),
    KernelSpec::few_cols("gemv_axpy_n4", 4, AXPY_LINES, 512, ALONG_COLS),
    KernelSpec::few_cols("gemv_axpy_n8", 8, AXPY_LINES, 512, ALONG_COLS),
    KernelSpec::few_cols("gemv_panel_n16", 16, PANEL_LINES, 512, ALONG_ROWS),
];
