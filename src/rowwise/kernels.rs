//! The kernel table: a kernel is one row here. Planning, launching and tests walk this table and keep no list of their own.

use super::problem::{Operation, RowwiseProblem};
use crate::device::{DeviceInfo, VECTOR_BYTES};
use crate::gemm::operands::DType;

/// Threads of a block whose warps have a row each. `row.cuh` has the same number.
pub const SMALL_BLOCK: u32 = 128;

pub(super) const WARP: u32 = 32;

/// Blocks of a cluster that share a row, at most. `argmax.cu` has the same number.
pub const MOST_BLOCKS: u32 = 8;

/// Elements of a row that comes in turns, at most: places and what is added to them are 32-bit numbers with a sign.
const LONGEST_ROW: usize = 1 << 30;

/// How a row comes to its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Whole, in pieces of 16 bytes, on which it starts and of which it is a whole number.
    Vectors,
    /// Whole, in pieces of one element.
    Elements,
    /// In turns of pieces of 16 bytes, of any length and from any address on. Where a block has a row, so can a cluster.
    Turns,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowwiseKernel {
    /// The symbol.
    pub name: &'static str,
    /// The source file: `cuda/FILE.cu`.
    pub file: &'static str,
    /// What it computes with.
    pub dtype: DType,
    /// Threads that have a row: a warp, or a block.
    pub threads: u32,
    /// Pieces of a row that a thread has at a time.
    pub pieces: u32,
    /// How these come to it.
    pub reading: Reading,
}

impl RowwiseKernel {
    /// Elements of a piece.
    pub const fn piece(&self) -> usize {
        match self.reading {
            Reading::Vectors | Reading::Turns => VECTOR_BYTES / self.dtype.size(),
            Reading::Elements => 1,
        }
    }

    /// Elements of a row that its threads have at a time.
    pub const fn turn(&self) -> usize {
        self.threads as usize * self.pieces as usize * self.piece()
    }

    /// The most elements of a row.
    pub const fn max_width(&self) -> usize {
        match self.reading {
            Reading::Turns => LONGEST_ROW,
            Reading::Vectors | Reading::Elements => self.turn(),
        }
    }

    /// Blocks that can share a row, each a power of two.
    pub const fn clusters(&self, device: &DeviceInfo) -> &'static [u32] {
        match self.reading {
            Reading::Turns if self.threads > WARP && device.has_clusters() => &[1, 2, 4, MOST_BLOCKS],
            _ => &[1],
        }
    }

    /// Threads of a block.
    pub const fn block(&self) -> u32 {
        if self.threads == WARP {
            SMALL_BLOCK
        } else {
            self.threads
        }
    }

    /// Rows of a block.
    pub const fn block_rows(&self) -> u32 {
        self.block() / self.threads
    }

    /// Whether this kernel can compute `problem` on `device`.
    pub fn takes(&self, problem: &RowwiseProblem, device: &DeviceInfo) -> bool {
        const AMPERE: u32 = 80;
        device.code_capability >= AMPERE
            && self.file == file_of(problem.operation)
            && self.dtype == problem.dtype
            && problem.width <= self.max_width()
            && (self.reading != Reading::Vectors || problem.has_vectors())
    }
}

/// The file with the kernels of an operation.
const fn file_of(operation: Operation) -> &'static str {
    match operation {
        Operation::LayerNorm | Operation::RmsNorm => "rowwise/norm",
        Operation::Softmax => "rowwise/softmax",
        Operation::Argmax => "rowwise/argmax",
    }
}

const fn row(
    name: &'static str,
    operation: Operation,
    dtype: DType,
    threads: u32,
    pieces: u32,
    reading: Reading,
) -> RowwiseKernel {
    RowwiseKernel {
        name,
        file: file_of(operation),
        dtype,
        threads,
        pieces,
        reading,
    }
}

/// The rows of an operation and a type, as `ROWWISE_SHAPES` of `row.cuh` compiles them.
macro_rules! shapes {
    ($name:literal, $operation:expr, $dtype:expr) => {
        &[
            row(concat!($name, "_32x4"), $operation, $dtype, 32, 4, Reading::Vectors),
            row(concat!($name, "_128x4"), $operation, $dtype, 128, 4, Reading::Vectors),
            row(concat!($name, "_512x1"), $operation, $dtype, 512, 1, Reading::Vectors),
            row(concat!($name, "_512x4"), $operation, $dtype, 512, 4, Reading::Vectors),
            row(
                concat!($name, "_32x8_elements"),
                $operation,
                $dtype,
                32,
                8,
                Reading::Elements,
            ),
            row(
                concat!($name, "_128x8_elements"),
                $operation,
                $dtype,
                128,
                8,
                Reading::Elements,
            ),
            row(
                concat!($name, "_512x8_elements"),
                $operation,
                $dtype,
                512,
                8,
                Reading::Elements,
            ),
        ]
    };
}

/// The same of `ARGMAX_SHAPES` of `argmax.cu`.
macro_rules! argmax_shapes {
    ($name:literal, $dtype:expr) => {
        &[
            row(
                concat!($name, "_32x8"),
                Operation::Argmax,
                $dtype,
                32,
                8,
                Reading::Turns,
            ),
            row(
                concat!($name, "_256x4"),
                Operation::Argmax,
                $dtype,
                256,
                4,
                Reading::Turns,
            ),
            row(
                concat!($name, "_512x8"),
                Operation::Argmax,
                $dtype,
                512,
                8,
                Reading::Turns,
            ),
        ]
    };
}

/// Every kernel, by operation and type.
pub const TABLE: &[&[RowwiseKernel]] = &[
    shapes!("norm_f32", Operation::LayerNorm, DType::F32),
    shapes!("norm_f16", Operation::LayerNorm, DType::F16),
    shapes!("norm_bf16", Operation::LayerNorm, DType::BF16),
    shapes!("softmax_f32", Operation::Softmax, DType::F32),
    shapes!("softmax_f16", Operation::Softmax, DType::F16),
    shapes!("softmax_bf16", Operation::Softmax, DType::BF16),
    argmax_shapes!("argmax_f32", DType::F32),
    argmax_shapes!("argmax_f16", DType::F16),
    argmax_shapes!("argmax_bf16", DType::BF16),
];

/// Every kernel, one after the other.
pub fn all() -> impl Iterator<Item = &'static RowwiseKernel> {
    TABLE.iter().copied().flatten()
}
