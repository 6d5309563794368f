//! The kernel ABI: the mirror of `cuda/common/gemm_args.cuh`, checked at compile time on both sides.

use super::problem::{Access, Activation, Combine, MAX_BATCH_DIMS};

/// One operand as a kernel sees it. See `gemm_args.cuh` for the meaning of each field.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct GemmOperand {
    /// Device address of the first element.
    pub data: u64,
    /// Elements between rows.
    pub row_stride: i64,
    /// Elements between columns.
    pub col_stride: i64,
    /// Elements between matrices along each batch dimension.
    pub batch_stride: [i64; MAX_BATCH_DIMS],
}

impl GemmOperand {
    /// An operand that the kernel must not touch.
    pub const ABSENT: GemmOperand = GemmOperand {
        data: 0,
        row_stride: 0,
        col_stride: 0,
        batch_stride: [0; MAX_BATCH_DIMS],
    };
}

/// The argument of every GEMM kernel, passed by value.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct GemmArgs {
    /// m × k
    pub a: GemmOperand,
    /// k × n
    pub b: GemmOperand,
    /// m × n, read where β ≠ 0
    pub c: GemmOperand,
    /// m × n, written
    pub d: GemmOperand,
    /// m × n, added to the activation's result or multiplied with it, or absent
    pub residual: GemmOperand,
    /// Device address of n elements, or 0
    pub bias: u64,
    /// Elements between neighbours of the bias
    pub bias_stride: i64,
    /// Device address of scratch memory, or 0
    pub workspace: u64,
    /// A multiple of 4 that no other launch has, where blocks raise flags for each other
    pub epoch: u64,
    /// Rows of A and D
    pub m: i32,
    /// Columns of B and D
    pub n: i32,
    /// Columns of A and rows of B
    pub k: i32,
    /// Matrices in this launch
    pub batch: i32,
    /// Extents of the batch dimensions
    pub batch_dims: [i32; MAX_BATCH_DIMS],
    /// Slices of k
    pub split_k: i32,
    /// Length of a slice
    pub k_slice: i32,
    /// Tiles that one block computes alone, where k is cut by stream-K
    pub whole_tiles: i32,
    /// Ranges into which the k of all other tiles is cut; 0: no stream-K
    pub stream_ranges: i32,
    /// Rows of tiles that are walked together
    pub group_m: i32,
    /// How A may be read
    pub a_access: Access,
    /// How B may be read
    pub b_access: Access,
    /// How C may be read
    pub c_access: Access,
    /// How D may be written
    pub d_access: Access,
    /// What is applied before the residual
    pub activation: Activation,
    /// Scales the product
    pub alpha: f32,
    /// Scales C
    pub beta: f32,
    /// How the residual may be read: an [`Access`] in 16 bits
    pub residual_access: u16,
    /// What becomes of the activation's result and the residual
    pub combine: Combine,
    /// Device address of α, or 0 where the value counts
    pub alpha_at: u64,
    /// Device address of β, or 0 where the value counts
    pub beta_at: u64,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<GemmOperand>() == 56, "gemm_args.cuh has this size");
    assert!(size_of::<GemmArgs>() == 400, "gemm_args.cuh has this size");
    assert!(offset_of!(GemmArgs, bias) == 280);
    assert!(offset_of!(GemmArgs, m) == 312);
    assert!(offset_of!(GemmArgs, batch_dims) == 328);
    assert!(offset_of!(GemmArgs, split_k) == 344);
    assert!(offset_of!(GemmArgs, a_access) == 364);
    assert!(offset_of!(GemmArgs, activation) == 368);
    assert!(offset_of!(GemmArgs, residual_access) == 380);
    assert!(offset_of!(GemmArgs, alpha_at) == 384);
};

// SAFETY: `repr(C)`, no padding, no pointers to host memory: the bytes may be copied to the device as they are.
#[cfg(feature = "cuda")]
unsafe impl cudarc::driver::DeviceRepr for GemmArgs {}
