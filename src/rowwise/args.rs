//! The kernel ABI: the mirror of `cuda/abi/rowwise_args.cuh`, checked at compile time on both sides.

/// The argument of every row-wise kernel, passed by value. See `rowwise_args.cuh`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct RowwiseArgs {
    /// Device address of the first element of x.
    pub x: u64,
    /// Device address of the first element of y.
    pub y: u64,
    /// Device address of a norm's factors, or else 0.
    pub weight: u64,
    /// Device address of what a norm adds; 0 adds nothing.
    pub bias: u64,
    /// Elements between neighbouring rows of x.
    pub x_stride: i64,
    /// Elements between neighbouring rows of y.
    pub y_stride: i64,
    /// Rows.
    pub rows: i32,
    /// Elements of a row.
    pub width: i32,
    /// What a norm adds to the variance.
    pub epsilon: f32,
    /// 1 if a norm subtracts the mean, or else 0.
    pub centered: i32,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<RowwiseArgs>() == 64, "rowwise_args.cuh has this size");
    assert!(offset_of!(RowwiseArgs, x_stride) == 32);
    assert!(offset_of!(RowwiseArgs, rows) == 48);
    assert!(offset_of!(RowwiseArgs, epsilon) == 56);
};

// SAFETY: `repr(C)`, no padding, no pointers to host memory: the bytes may be copied to the device as they are.
#[cfg(feature = "cuda")]
unsafe impl cudarc::driver::DeviceRepr for RowwiseArgs {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field has its own place: no two of them shared, nothing between them.
    #[test]
    fn the_layout_has_no_holes() {
        assert_eq!(6 * 8 + 4 * 4, size_of::<RowwiseArgs>());
    }
}
