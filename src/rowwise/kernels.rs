//! The kernel table: a kernel is one row here. Planning, launching and tests walk this table and keep no list of their own.

use super::problem::{Operation, RowwiseProblem, VECTOR_BYTES};
use crate::device::DeviceInfo;
use crate::gemm::operands::DType;

/// Threads of a block whose warps have a row each. `row.cuh` has the same number.
pub const SMALL_BLOCK: u32 = 128;

const WARP: u32 = 32;

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
    /// Pieces of a row that a thread has, at most.
    pub pieces: u32,
    /// Whether a piece is 16 bytes, or else one element.
    pub vectors: bool,
}

impl RowwiseKernel {
    /// Elements of a piece.
    pub const fn piece(&self) -> usize {
        if self.vectors {
            VECTOR_BYTES / self.dtype.size()
        } else {
            1
        }
    }

    /// The most elements of a row.
    pub const fn max_width(&self) -> usize {
        self.threads as usize * self.pieces as usize * self.piece()
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
            && (!self.vectors || problem.has_vectors())
    }
}

/// The file with the kernels of an operation.
const fn file_of(operation: Operation) -> &'static str {
    match operation {
        Operation::LayerNorm | Operation::RmsNorm => "rowwise/norm",
        Operation::Softmax => "rowwise/softmax",
    }
}

const fn row(
    name: &'static str,
    operation: Operation,
    dtype: DType,
    threads: u32,
    pieces: u32,
    vectors: bool,
) -> RowwiseKernel {
    RowwiseKernel {
        name,
        file: file_of(operation),
        dtype,
        threads,
        pieces,
        vectors,
    }
}

/// The rows of an operation and a type, as `ROWWISE_SHAPES` of `row.cuh` compiles them.
macro_rules! shapes {
    ($name:literal, $operation:expr, $dtype:expr) => {
        [
            row(concat!($name, "_32x4"), $operation, $dtype, 32, 4, true),
            row(concat!($name, "_128x4"), $operation, $dtype, 128, 4, true),
            row(concat!($name, "_512x1"), $operation, $dtype, 512, 1, true),
            row(concat!($name, "_512x4"), $operation, $dtype, 512, 4, true),
            row(concat!($name, "_32x8_elements"), $operation, $dtype, 32, 8, false),
            row(concat!($name, "_128x8_elements"), $operation, $dtype, 128, 8, false),
            row(concat!($name, "_512x8_elements"), $operation, $dtype, 512, 8, false),
        ]
    };
}

/// Every kernel, by operation and type.
pub const TABLE: &[[RowwiseKernel; 7]] = &[
    shapes!("norm_f32", Operation::LayerNorm, DType::F32),
    shapes!("norm_f16", Operation::LayerNorm, DType::F16),
    shapes!("norm_bf16", Operation::LayerNorm, DType::BF16),
    shapes!("softmax_f32", Operation::Softmax, DType::F32),
    shapes!("softmax_f16", Operation::Softmax, DType::F16),
    shapes!("softmax_bf16", Operation::Softmax, DType::BF16),
];

/// Every kernel, one after the other.
pub fn all() -> impl Iterator<Item = &'static RowwiseKernel> {
    TABLE.iter().flatten()
}
