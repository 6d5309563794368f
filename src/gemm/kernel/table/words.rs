//! Thin products and operands at any alignment: kernels that read single words.

use super::super::spec::{KernelSpec, Tile};
use super::families::{ALONG_COLS, ALONG_ROWS};

#[rustfmt::skip]
pub(super) const ROWS: &[KernelSpec] = &[
    KernelSpec::thin_rows("thin_axpy_m1", Tile::block(1, 128, 64).thread(1, 4), 256, ALONG_ROWS),
    KernelSpec::thin_rows("thin_axpy_m2", Tile::block(2, 128, 64).thread(2, 4), 256, ALONG_ROWS),
    KernelSpec::thin_rows("thin_axpy_m4", Tile::block(4, 128, 64).thread(4, 4), 256, ALONG_ROWS),
    KernelSpec::thin_rows("thin_axpy_m8", Tile::block(8, 128, 64).thread(8, 4), 256, ALONG_ROWS),
    KernelSpec::thin_rows("thin_axpy_m16", Tile::block(16, 128, 32).thread(16, 4), 128, ALONG_ROWS),
    KernelSpec::thin_rows("thin_axpy_m24", Tile::block(24, 128, 16).thread(24, 4), 128, ALONG_ROWS),
    KernelSpec::thin_rows("thin_axpy_m32", Tile::block(32, 128, 16).thread(32, 4), 128, ALONG_ROWS),
    KernelSpec::thin_cols("thin_axpy_n4", Tile::block(128, 4, 64).thread(4, 4), 256, ALONG_COLS),
    KernelSpec::thin_cols("thin_axpy_n16", Tile::block(128, 16, 32).thread(4, 16), 128, ALONG_COLS),
    KernelSpec::thin_cols("thin_axpy_n32", Tile::block(128, 32, 16).thread(4, 32), 128, ALONG_COLS),
    KernelSpec::thin_cols("thin_dot_n1", Tile::block(256, 1, 16).thread(2, 1).stages(3), 128, ALONG_ROWS).dynamic_shared(52416),
    KernelSpec::thin_cols("thin_dot_n2", Tile::block(256, 2, 16).thread(2, 2).stages(3), 128, ALONG_ROWS).dynamic_shared(52608),
    KernelSpec::thin_cols("thin_dot_n4", Tile::block(256, 4, 16).thread(2, 4).stages(3), 128, ALONG_ROWS).dynamic_shared(52992),
    KernelSpec::thin_cols("thin_dot_n8", Tile::block(256, 8, 16).thread(2, 8).stages(3), 128, ALONG_ROWS).dynamic_shared(54528),
    KernelSpec::thin_cols("thin_dot_n16", Tile::block(256, 16, 16).thread(4, 16).stages(3), 64, ALONG_ROWS).dynamic_shared(56064),
    KernelSpec::thin_cols("thin_dot_n24", Tile::block(256, 24, 16).thread(4, 24).stages(3), 64, ALONG_ROWS).dynamic_shared(57600),
    KernelSpec::thin_cols("thin_dot_n32", Tile::block(256, 32, 16).thread(4, 32).stages(3), 64, ALONG_ROWS).dynamic_shared(59136),
    KernelSpec::thin_rows("thin_dot_m4", Tile::block(4, 128, 16).thread(4, 1).stages(4), 128, ALONG_COLS).dynamic_shared(35840),
    KernelSpec::thin_rows("thin_dot_m8", Tile::block(8, 128, 16).thread(8, 1).stages(4), 128, ALONG_COLS).dynamic_shared(37888),
    KernelSpec::thin_rows("thin_dot_m16", Tile::block(16, 256, 16).thread(16, 4).stages(3), 64, ALONG_COLS).dynamic_shared(56064),
    KernelSpec::thin_rows("thin_dot_m32", Tile::block(32, 256, 16).thread(32, 4).stages(3), 64, ALONG_COLS).dynamic_shared(59136),
    KernelSpec::ffma_words("ffma_words_128x128", Tile::block(128, 128, 16).thread(8, 8).stages(3), 256, 66048),
    KernelSpec::ffma_words("ffma_words_128x64", Tile::block(128, 64, 16).thread(8, 4).stages(3), 256, 38400),
    KernelSpec::ffma_words("ffma_words_80x80", Tile::block(80, 80, 16).thread(8, 5).stages(3), 160, 32256),
    KernelSpec::ffma_words("ffma_words_64x64", Tile::block(64, 64, 16).thread(8, 4).stages(3), 128, 26112),
    KernelSpec::ffma_words("ffma_words_64x32", Tile::block(64, 32, 16).thread(8, 2).stages(3), 128, 19968),
    KernelSpec::ffma_words("ffma_words_32x64", Tile::block(32, 64, 16).thread(4, 4).stages(3), 128, 19968),
    KernelSpec::ffma_words("ffma_words_32x32", Tile::block(32, 32, 16).thread(4, 2).stages(4), 128, 18432),
];
