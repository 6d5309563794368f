//! The kernel table: a kernel is one row here. Planning, launching and tests walk this table and keep no list of their own.

use super::problem::AttentionProblem;
use super::refusal::Refusal;
use crate::device::{DeviceInfo, VECTOR_BYTES};
use crate::error::{Error, Result};
use crate::gemm::operands::DType;

/// Threads of a block of either kind. `attention_rows.cu` and `attention_tiles.cu` have the same number.
pub const THREADS: u32 = 128;

/// Blocks of a cluster, at most. `attention_rows.cu` has the same number.
pub const MOST_BLOCKS: u32 = 8;

/// Floats of padding of a row in shared memory. `attention_tiles.cu` has the same number.
const PADDING: usize = 4;

/// Lanes of a warp.
const WARP: usize = 32;

/// How a kernel shares the work of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All queries in every lane, keys over lanes, warps and the blocks of a cluster.
    Rows {
        /// The most queries of a head.
        queries: usize,
        /// Keys that a group of lanes, which has a row of K, takes in a turn.
        keys: usize,
    },
    /// Tiles of queries, one a block, that take tiles of keys in turn.
    Tiles {
        /// Queries of a tile.
        queries: usize,
        /// Keys of a tile.
        keys: usize,
    },
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionKernel {
    /// The name by which tests choose it, and the symbol.
    pub name: &'static str,
    /// The source file: `cuda/FILE.cu`.
    pub file: &'static str,
    /// What it computes with.
    pub dtype: DType,
    /// How work is shared.
    pub shape: Shape,
    /// The most elements of a row.
    pub max_width: usize,
    /// Whether it supports PDL (programmatic dependent launch): it may be started before the kernels before it on the stream
    /// have ended, and waits for them itself.
    pub supports_pdl: bool,
}

impl AttentionKernel {
    /// Bytes of dynamic shared memory of a block.
    pub const fn dynamic_shared(&self) -> u32 {
        match self.shape {
            Shape::Rows { .. } => 0,
            Shape::Tiles { queries, keys } => {
                let pitch = self.max_width + PADDING;
                let floats = queries * pitch + keys * pitch + keys * self.max_width + queries * (keys + PADDING);
                (floats * size_of::<f32>()) as u32
            }
        }
    }

    /// Keys that a block takes in a turn.
    pub const fn block_keys(&self) -> usize {
        match self.shape {
            Shape::Rows { keys, .. } => {
                let lanes = self.max_width * self.dtype.size() / VECTOR_BYTES;
                THREADS as usize / WARP * (WARP / lanes) * keys
            }
            Shape::Tiles { keys, .. } => keys,
        }
    }

    /// Why this kernel cannot compute `problem` on `device`, or `None` if it can.
    pub fn refusal(&self, problem: &AttentionProblem, device: &DeviceInfo) -> Option<Refusal> {
        const AMPERE: u32 = 80;
        let (capability, width) = (device.code_capability, problem.width.max(problem.value_width));
        if capability < AMPERE {
            return Some(Refusal::Device { capability });
        }
        if problem.dtype != self.dtype {
            let (kernel, operands) = (self.dtype, problem.dtype);
            return Some(Refusal::KernelType { kernel, operands });
        }
        if width > self.max_width {
            let most = self.max_width;
            return Some(Refusal::Width { most, width });
        }
        let (needs, has) = (self.dynamic_shared(), device.shared_per_block);
        if needs > has {
            return Some(Refusal::SharedMemory { needs, has });
        }
        match self.shape {
            Shape::Rows { queries: most, .. } if problem.queries > most => {
                let queries = problem.queries;
                Some(Refusal::Queries { most, queries })
            }
            _ => None,
        }
    }
}

const fn rows(name: &'static str, dtype: DType, queries: usize, max_width: usize, keys: usize) -> AttentionKernel {
    AttentionKernel {
        name,
        file: "attention/attention_rows",
        dtype,
        shape: Shape::Rows { queries, keys },
        max_width,
        supports_pdl: true,
    }
}

const fn tiles(name: &'static str, dtype: DType, queries: usize, keys: usize, max_width: usize) -> AttentionKernel {
    AttentionKernel {
        name,
        file: "attention/attention_tiles",
        dtype,
        shape: Shape::Tiles { queries, keys },
        max_width,
        supports_pdl: true,
    }
}

/// Every kernel.
#[rustfmt::skip]
pub const TABLE: &[AttentionKernel] = &[
    rows("attention_rows_f32_q1_w64", DType::F32, 1, 64, 4),
    rows("attention_rows_f32_q4_w64", DType::F32, 4, 64, 4),
    rows("attention_rows_f32_q8_w64", DType::F32, 8, 64, 2),
    rows("attention_rows_f32_q1_w128", DType::F32, 1, 128, 4),
    rows("attention_rows_f32_q4_w128", DType::F32, 4, 128, 4),
    rows("attention_rows_f32_q8_w128", DType::F32, 8, 128, 2),
    rows("attention_rows_f16_q1_w64", DType::F16, 1, 64, 4),
    rows("attention_rows_f16_q4_w64", DType::F16, 4, 64, 4),
    rows("attention_rows_f16_q8_w64", DType::F16, 8, 64, 2),
    rows("attention_rows_f16_q1_w128", DType::F16, 1, 128, 4),
    rows("attention_rows_f16_q4_w128", DType::F16, 4, 128, 4),
    rows("attention_rows_f16_q8_w128", DType::F16, 8, 128, 2),
    rows("attention_rows_bf16_q1_w64", DType::BF16, 1, 64, 4),
    rows("attention_rows_bf16_q4_w64", DType::BF16, 4, 64, 4),
    rows("attention_rows_bf16_q8_w64", DType::BF16, 8, 64, 2),
    rows("attention_rows_bf16_q1_w128", DType::BF16, 1, 128, 4),
    rows("attention_rows_bf16_q4_w128", DType::BF16, 4, 128, 4),
    rows("attention_rows_bf16_q8_w128", DType::BF16, 8, 128, 2),
    tiles("attention_tiles_f32_16x32_w32", DType::F32, 16, 32, 32),
    tiles("attention_tiles_f32_32x64_w32", DType::F32, 32, 64, 32),
    tiles("attention_tiles_f32_16x32_w64", DType::F32, 16, 32, 64),
    tiles("attention_tiles_f32_32x64_w64", DType::F32, 32, 64, 64),
    tiles("attention_tiles_f32_16x32_w128", DType::F32, 16, 32, 128),
    tiles("attention_tiles_f32_32x32_w128", DType::F32, 32, 32, 128),
    tiles("attention_tiles_f16_16x32_w32", DType::F16, 16, 32, 32),
    tiles("attention_tiles_f16_32x64_w32", DType::F16, 32, 64, 32),
    tiles("attention_tiles_f16_16x32_w64", DType::F16, 16, 32, 64),
    tiles("attention_tiles_f16_32x64_w64", DType::F16, 32, 64, 64),
    tiles("attention_tiles_f16_16x32_w128", DType::F16, 16, 32, 128),
    tiles("attention_tiles_bf16_16x32_w32", DType::BF16, 16, 32, 32),
    tiles("attention_tiles_bf16_32x64_w32", DType::BF16, 32, 64, 32),
    tiles("attention_tiles_bf16_16x32_w64", DType::BF16, 16, 32, 64),
    tiles("attention_tiles_bf16_32x64_w64", DType::BF16, 32, 64, 64),
    tiles("attention_tiles_bf16_16x32_w128", DType::BF16, 16, 32, 128),
];

const fn step(name: &'static str, dtype: DType, queries: usize, max_width: usize, keys: usize) -> AttentionKernel {
    AttentionKernel {
        file: "attention/attention_step",
        ..rows(name, dtype, queries, max_width, keys)
    }
}

/// Every kernel for a decoder's step, which also rotates queries and keys and writes the cache.
#[rustfmt::skip]
pub const STEPS: &[AttentionKernel] = &[
    step("attention_step_f32_q1_w64", DType::F32, 1, 64, 4),
    step("attention_step_f32_q4_w64", DType::F32, 4, 64, 4),
    step("attention_step_f32_q8_w64", DType::F32, 8, 64, 2),
    step("attention_step_f32_q1_w128", DType::F32, 1, 128, 4),
    step("attention_step_f32_q4_w128", DType::F32, 4, 128, 4),
    step("attention_step_f32_q8_w128", DType::F32, 8, 128, 2),
    step("attention_step_f16_q1_w64", DType::F16, 1, 64, 4),
    step("attention_step_f16_q4_w64", DType::F16, 4, 64, 4),
    step("attention_step_f16_q8_w64", DType::F16, 8, 64, 2),
    step("attention_step_f16_q1_w128", DType::F16, 1, 128, 4),
    step("attention_step_f16_q4_w128", DType::F16, 4, 128, 4),
    step("attention_step_f16_q8_w128", DType::F16, 8, 128, 2),
    step("attention_step_bf16_q1_w64", DType::BF16, 1, 64, 4),
    step("attention_step_bf16_q4_w64", DType::BF16, 4, 64, 4),
    step("attention_step_bf16_q8_w64", DType::BF16, 8, 64, 2),
    step("attention_step_bf16_q1_w128", DType::BF16, 1, 128, 4),
    step("attention_step_bf16_q4_w128", DType::BF16, 4, 128, 4),
    step("attention_step_bf16_q8_w128", DType::BF16, 8, 128, 2),
];

/// The row with this name.
///
/// # Errors
///
/// [`Error::UnknownKernel`], which lists the names.
pub fn find(name: &str) -> Result<&'static AttentionKernel> {
    let found = TABLE.iter().find(|kernel| kernel.name == name);
    found.ok_or_else(|| Error::UnknownKernel {
        name: name.to_string(),
        known: TABLE.iter().map(|kernel| kernel.name).collect::<Vec<_>>().join(", "),
    })
}
