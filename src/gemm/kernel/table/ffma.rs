//! FP32 multiply-adds on any device.

use super::super::spec::{KernelSpec, Tile};

pub(super) const ROWS: &[KernelSpec] = &[
    KernelSpec::ffma("ffma_128x256", Tile::block(128, 256, 16).thread(8, 16).stages(2), 256),
    KernelSpec::ffma("ffma_64x128", Tile::block(64, 128, 16).thread(8, 8).stages(2), 128),
    KernelSpec::ffma("ffma_64x64", Tile::block(64, 64, 32).thread(8, 8).stages(2), 128),
    KernelSpec::ffma("ffma_32x128", Tile::block(32, 128, 32).thread(8, 8).stages(2), 128),
    KernelSpec::ffma("ffma_32x64", Tile::block(32, 64, 32).thread(8, 8).stages(2), 64),
    KernelSpec::ffma("ffma_16x128", Tile::block(16, 128, 32).thread(8, 8).stages(2), 128),
    KernelSpec::ffma("ffma_32x32", Tile::block(32, 32, 32).thread(4, 8).stages(2), 64),
    KernelSpec::ffma("ffma_128x32", Tile::block(128, 32, 32).thread(4, 8).stages(2), 128),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_128x256",
        Tile::block(128, 256, 16).warp(32, 128).thread(8, 16).stages(3),
        256,
        131072,
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_128x128",
        Tile::block(128, 128, 16).warp(32, 128).thread(8, 16).stages(3),
        128,
        65536,
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_64x128",
        Tile::block(64, 128, 16).warp(32, 64).thread(8, 8).stages(3),
        128,
        38400,
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_128x64",
        Tile::block(128, 64, 16).warp(32, 64).thread(8, 8).stages(3),
        128,
        38400,
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_64x64",
        Tile::block(64, 64, 16).warp(32, 32).thread(8, 4).stages(4),
        128,
        34816,
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_32x128",
        Tile::block(32, 128, 16).warp(32, 32).thread(8, 4).stages(4),
        128,
        43008,
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_32x64",
        Tile::block(32, 64, 16).warp(16, 64).thread(4, 8).stages(4),
        64,
        26624,
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_32x32",
        Tile::block(32, 32, 32).warp(16, 32).thread(4, 4).stages(4),
        64,
        36864,
    ),
];
