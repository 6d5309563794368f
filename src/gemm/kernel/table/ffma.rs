//! FP32 multiply-adds on any device.

use super::super::costs::Cost;
use super::super::spec::{KernelSpec, Tile};

pub(super) const ROWS: &[KernelSpec] = &[
    KernelSpec::ffma(
        "ffma_128x256",
        Tile::block(128, 256, 16).thread(8, 16).stages(2),
        256,
        Cost::measured(0.56, 0.564, 1, 8.0, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_64x128",
        Tile::block(64, 128, 16).thread(8, 8).stages(2),
        128,
        Cost::measured(0.72, 0.478, 3, 5.5, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_64x64",
        Tile::block(64, 64, 32).thread(8, 8).stages(2),
        128,
        Cost::measured(0.54, 0.405, 2, 5.0, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_32x128",
        Tile::block(32, 128, 32).thread(8, 8).stages(2),
        128,
        Cost::measured(0.59, 0.442, 2, 4.0, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_32x64",
        Tile::block(32, 64, 32).thread(8, 8).stages(2),
        64,
        Cost::measured(0.50, 0.187, 4, 8.0, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_16x128",
        Tile::block(16, 128, 32).thread(8, 8).stages(2),
        128,
        Cost::measured(0.37, 0.224, 2, 3.0, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_32x32",
        Tile::block(32, 32, 32).thread(4, 8).stages(2),
        64,
        Cost::measured(0.47, 0.155, 6, 4.5, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_128x32",
        Tile::block(128, 32, 32).thread(4, 8).stages(2),
        128,
        Cost::measured(0.53, 0.400, 3, 4.4, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_128x256",
        Tile::block(128, 256, 16).warp(32, 128).thread(8, 16).stages(3),
        256,
        131072,
        Cost::measured(0.74, 0.740, 1, 6.0, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_128x128",
        Tile::block(128, 128, 16).warp(32, 128).thread(8, 16).stages(3),
        128,
        65536,
        Cost::measured(0.76, 0.567, 2, 6.5, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_64x128",
        Tile::block(64, 128, 16).warp(32, 64).thread(8, 8).stages(3),
        128,
        38400,
        Cost::measured(0.68, 0.450, 3, 5.5, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_128x64",
        Tile::block(128, 64, 16).warp(32, 64).thread(8, 8).stages(3),
        128,
        38400,
        Cost::measured(0.63, 0.330, 4, 6.5, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_64x64",
        Tile::block(64, 64, 16).warp(32, 32).thread(8, 4).stages(4),
        128,
        34816,
        Cost::measured(0.49, 0.366, 4, 2.5, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_32x128",
        Tile::block(32, 128, 16).warp(32, 32).thread(8, 4).stages(4),
        128,
        43008,
        Cost::measured(0.41, 0.304, 4, 5.5, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_32x64",
        Tile::block(32, 64, 16).warp(16, 64).thread(4, 8).stages(4),
        64,
        26624,
        Cost::measured(0.30, 0.112, 8, 2.0, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_32x32",
        Tile::block(32, 32, 32).warp(16, 32).thread(4, 4).stages(4),
        64,
        36864,
        Cost::measured(0.35, 0.118, 6, 2.5, 0.75),
    ),
];
