//! Why attention is not computed by one kernel.

use super::views::Views;
use crate::gemm::operands::DType;
use std::fmt;

/// Why attention is left to two products and a softmax, or why one kernel cannot compute it. Its `Display` is a clause with the numbers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// Shapes that do not fit each other: the products say what is wrong.
    Shapes,
    /// There is nothing to compute.
    Empty,
    /// Types that no kernel is compiled for, or that differ.
    Types {
        /// Of Q, K, V and, where there is one, the mask; that of the result is Q's. `None`: none of those that kernels compute with.
        types: Views<Option<DType>>,
    },
    /// Rows with gaps between their elements.
    Gaps {
        /// Which operand.
        operand: &'static str,
        /// Elements between neighbours.
        stride: usize,
    },
    /// Rows that do not all start on 16 bytes.
    Unaligned {
        /// Which operand.
        operand: &'static str,
    },
    /// A row is no whole number of 16-byte vectors.
    RaggedWidth {
        /// Which operand.
        operand: &'static str,
        /// Elements of a row.
        width: usize,
        /// What it has to be a multiple of.
        vector: usize,
    },
    /// Batch dimensions that cannot be walked with two strides.
    BatchDims {
        /// How many remain after merging.
        dims: usize,
    },
    /// More of something than a kernel counts.
    TooLarge,
    /// The device runs no code of this build, or it is older than the kernels.
    Device {
        /// The compute capability whose code it runs.
        capability: u32,
    },
    /// Not this kernel: it computes with another type.
    KernelType {
        /// The kernel's.
        kernel: DType,
        /// The problem's.
        operands: DType,
    },
    /// Not this kernel: rows are wider.
    Width {
        /// The most elements of a row that it takes.
        most: usize,
        /// The problem's.
        width: usize,
    },
    /// Not this kernel: a head has more queries.
    Queries {
        /// The most that it takes.
        most: usize,
        /// The problem's.
        queries: usize,
    },
    /// Not this kernel: a block needs more shared memory than the device has.
    SharedMemory {
        /// Bytes that a block needs.
        needs: u32,
        /// Bytes that the device has.
        has: u32,
    },
    /// Two products and a softmax are expected to be faster.
    Slower {
        /// The fastest kernel.
        kernel: &'static str,
        /// What it is expected to take, in µs.
        us: f64,
        /// What the products and the softmax are expected to take.
        products_us: f64,
    },
    /// A gradient is to flow, and these kernels have none.
    Gradients,
    /// The settings name a kernel for the products.
    NamedKernel,
    /// The tensors are not on a CUDA device of this build.
    Elsewhere,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Shapes => write!(f, "shapes do not fit each other"),
            Refusal::Empty => write!(f, "there is nothing to compute"),
            Refusal::Types { types } => {
                let name = |dtype: &Option<DType>| dtype.map_or("another type", DType::name);
                write!(
                    f,
                    "queries, keys, values and mask have one of the types f32, f16 and bf16, and here they are {}, {}, {} and {}",
                    name(&types.query),
                    name(&types.key),
                    name(&types.value),
                    name(&types.mask)
                )
            }
            Refusal::Gaps { operand, stride } => {
                write!(f, "rows have no gaps, and elements of the {operand} are {stride} apart")
            }
            Refusal::Unaligned { operand } => write!(f, "rows start on 16 bytes, and not all of the {operand} do"),
            Refusal::RaggedWidth { operand, width, vector } => {
                write!(
                    f,
                    "rows are whole vectors of {vector} elements, and those of the {operand} have {width}"
                )
            }
            Refusal::BatchDims { dims } => {
                write!(f, "two batch dimensions are walked, and {dims} remain after merging")
            }
            Refusal::TooLarge => write!(f, "there are more rows or heads than a kernel counts"),
            Refusal::Device { capability } => {
                write!(
                    f,
                    "it needs compute capability 8.0, and the device runs code of this build for {capability}"
                )
            }
            Refusal::KernelType { kernel, operands } => write!(f, "it computes with {kernel}, not {operands}"),
            Refusal::Width { most, width } => write!(f, "rows have at most {most} elements, and here {width}"),
            Refusal::Queries { most, queries } => write!(f, "a head has at most {most} queries, and here {queries}"),
            Refusal::SharedMemory { needs, has } => {
                write!(
                    f,
                    "a block needs {needs} bytes of shared memory and the device has {has}"
                )
            }
            Refusal::Slower {
                kernel,
                us,
                products_us,
            } => write!(
                f,
                "'{kernel}' is expected to take {us:.1} µs, and two products and a softmax {products_us:.1}"
            ),
            Refusal::Gradients => write!(f, "a gradient is to flow through it, and one kernel has none"),
            Refusal::NamedKernel => write!(f, "the settings name a kernel for the products"),
            Refusal::Elsewhere => write!(
                f,
                "the tensors are not on a CUDA device that this build has kernels for"
            ),
        }
    }
}
