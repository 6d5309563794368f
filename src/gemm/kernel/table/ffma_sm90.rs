//! FP32 multiply-adds on Hopper.

use super::super::spec::{KernelSpec, Tile};
use crate::gemm::operands::Access;

pub(super) const ROWS: &[KernelSpec] = &[
    KernelSpec::ffma_strips(
        "ffma_strips_16_sm90",
        16,
        2048,
        Tile::block(16, 16, 256).thread(8, 8).stages(5),
        221_296,
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_16x128_sm90",
        Tile::block(16, 128, 32).warp(16, 128).thread(8, 8).stages(8),
        213_136,
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_32x64_sm90",
        Tile::block(32, 64, 32).warp(32, 64).thread(8, 8).stages(12),
        213_200,
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_32x128_sm90",
        Tile::block(32, 128, 32).warp(32, 64).thread(8, 8).stages(8),
        229_520,
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_64x64_sm90",
        Tile::block(64, 64, 32).warp(64, 32).thread(8, 8).stages(8),
        196_752,
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_128x64_sm90",
        Tile::block(128, 64, 32).warp(64, 32).thread(8, 8).stages(6),
        213_104,
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_128x128_sm90",
        Tile::block(128, 128, 32).warp(64, 32).thread(8, 8).stages(5),
        229_472,
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_64x64_stream_sm90",
        Tile::block(64, 64, 32).warp(64, 32).thread(8, 8).stages(8),
        196_752,
    )
    .streaming_k(),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_128x64_stream_sm90",
        Tile::block(128, 64, 32).warp(64, 32).thread(8, 8).stages(6),
        213_104,
    )
    .streaming_k(),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_128x128_stream_sm90",
        Tile::block(128, 128, 32).warp(64, 32).thread(8, 8).stages(5),
        229_472,
    )
    .streaming_k(),
    KernelSpec::ffma_grouped(
        "ffma_grouped_128x128_nn_sm90",
        [Access::RowVector, Access::RowVector],
        Tile::block(128, 128, 16).warp(64, 64).thread(8, 16).stages(12),
        196_896,
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_128x128_nt_sm90",
        [Access::RowVector, Access::ColVector],
        Tile::block(128, 128, 16).warp(64, 64).thread(8, 16).stages(12),
        196_896,
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_128x128_tn_sm90",
        [Access::ColVector, Access::RowVector],
        Tile::block(128, 128, 16).warp(64, 64).thread(8, 16).stages(12),
        196_896,
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_128x128_tt_sm90",
        [Access::ColVector, Access::ColVector],
        Tile::block(128, 128, 16).warp(64, 64).thread(8, 16).stages(12),
        196_896,
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_64x128_nn_sm90",
        [Access::RowVector, Access::RowVector],
        Tile::block(64, 128, 16).warp(64, 64).thread(8, 16).stages(16),
        196_992,
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_64x128_tn_sm90",
        [Access::ColVector, Access::RowVector],
        Tile::block(64, 128, 16).warp(64, 64).thread(8, 16).stages(16),
        196_992,
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_64x128_tt_sm90",
        [Access::ColVector, Access::ColVector],
        Tile::block(64, 128, 16).warp(64, 64).thread(8, 16).stages(16),
        196_992,
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_64x64_nn_sm90",
        [Access::RowVector, Access::RowVector],
        Tile::block(64, 64, 16).warp(64, 64).thread(8, 16).stages(24),
        197_184,
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_64x64_tn_sm90",
        [Access::ColVector, Access::RowVector],
        Tile::block(64, 64, 16).warp(64, 64).thread(8, 16).stages(24),
        197_184,
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_64x64_tt_sm90",
        [Access::ColVector, Access::ColVector],
        Tile::block(64, 64, 16).warp(64, 64).thread(8, 16).stages(24),
        197_184,
    ),
    KernelSpec::ffma_specialized(
        "ffma_specialized_128x256_sm90",
        Tile::block(128, 256, 16).warp(64, 64).thread(8, 16).stages(4),
        229_488,
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x256_nn_sm90",
        [Access::RowVector, Access::RowVector],
        Tile::block(128, 256, 16).warp(64, 64).thread(8, 16).stages(4),
        229_488,
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x256_nt_sm90",
        [Access::RowVector, Access::ColVector],
        Tile::block(128, 256, 16).warp(64, 64).thread(8, 16).stages(4),
        229_488,
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x256_tn_sm90",
        [Access::ColVector, Access::RowVector],
        Tile::block(128, 256, 16).warp(64, 64).thread(8, 16).stages(4),
        229_488,
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x256_tt_sm90",
        [Access::ColVector, Access::ColVector],
        Tile::block(128, 256, 16).warp(64, 64).thread(8, 16).stages(4),
        229_488,
    ),
    KernelSpec::ffma_specialized(
        "ffma_specialized_128x128_sm90",
        Tile::block(128, 128, 16).warp(64, 32).thread(8, 8).stages(4),
        131_184,
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x128_nn_sm90",
        [Access::RowVector, Access::RowVector],
        Tile::block(128, 128, 16).warp(64, 32).thread(8, 8).stages(4),
        131_184,
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x128_nt_sm90",
        [Access::RowVector, Access::ColVector],
        Tile::block(128, 128, 16).warp(64, 32).thread(8, 8).stages(4),
        131_184,
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x128_tn_sm90",
        [Access::ColVector, Access::RowVector],
        Tile::block(128, 128, 16).warp(64, 32).thread(8, 8).stages(4),
        131_184,
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x128_tt_sm90",
        [Access::ColVector, Access::ColVector],
        Tile::block(128, 128, 16).warp(64, 32).thread(8, 8).stages(4),
        131_184,
    ),
    KernelSpec::ffma_direct(
        "ffma_direct_128x32_nn_sm90",
        Access::RowVector,
        Tile::block(128, 32, 32).warp(64, 32).thread(8, 8).stages(3),
        61_496,
    ),
    KernelSpec::ffma_direct(
        "ffma_direct_128x64_nn_sm90",
        Access::RowVector,
        Tile::block(128, 64, 32).warp(64, 32).thread(8, 8).stages(2),
        49_192,
    ),
    KernelSpec::ffma_direct(
        "ffma_direct_128x64_nt_sm90",
        Access::ColVector,
        Tile::block(128, 64, 32).warp(64, 32).thread(8, 8).stages(2),
        65_560,
    ),
];
