//! The kernel ABI: the mirror of `cuda/abi/attention_args.cuh`, checked at compile time on both sides.

/// A tensor (batch, head, row, …).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AttentionOperand {
    /// Device address of its first element; 0 for a mask that is absent.
    pub data: u64,
    /// Elements between neighbouring queries (Q, mask, result) or keys (K, V).
    pub row_stride: i64,
    /// Elements between neighbouring heads; 0 shares one.
    pub head_stride: i64,
    /// Elements between neighbours of the outer batch dimension.
    pub batch_stride: i64,
}

/// The argument of every attention kernel, passed by value. See `attention_args.cuh`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct AttentionArgs {
    /// Q.
    pub query: AttentionOperand,
    /// K.
    pub key: AttentionOperand,
    /// V.
    pub value: AttentionOperand,
    /// What is added to the scaled scores.
    pub mask: AttentionOperand,
    /// The result.
    pub out: AttentionOperand,
    /// Elements of the mask between neighbouring keys.
    pub mask_key_stride: i64,
    /// Heads of an outer batch.
    pub heads: i32,
    /// Rows of Q and of the result, of a head.
    pub queries: i32,
    /// Rows of K and V, of a head.
    pub keys: i32,
    /// Elements of a row of Q and K.
    pub width: i32,
    /// Elements of a row of V and of the result.
    pub value_width: i32,
    /// The factor of the scores.
    pub scale: f32,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<AttentionOperand>() == 32, "attention_args.cuh has this size");
    assert!(size_of::<AttentionArgs>() == 192, "attention_args.cuh has this size");
    assert!(offset_of!(AttentionArgs, mask) == 96);
    assert!(offset_of!(AttentionArgs, mask_key_stride) == 160);
    assert!(offset_of!(AttentionArgs, heads) == 168);
    assert!(offset_of!(AttentionArgs, value_width) == 184);
};

// SAFETY: `repr(C)`, no padding, no pointers to host memory: the bytes may be copied to the device as they are.
#[cfg(feature = "cuda")]
unsafe impl cudarc::driver::DeviceRepr for AttentionArgs {}

/// The argument of the kernels for a decoder's step, passed by value. See `attention_step_args.cuh`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct AttentionStepArgs {
    /// Q, the cache as K and V, and the result.
    pub attention: AttentionArgs,
    /// The key that is written.
    pub new_key: AttentionOperand,
    /// The value that is written.
    pub new_value: AttentionOperand,
    /// Device address of the cosines, for each place of the cache.
    pub cosines: u64,
    /// Device address of the sines.
    pub sines: u64,
    /// Device address of the place that is written, a `u32`.
    pub position: u64,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(
        size_of::<AttentionStepArgs>() == 280,
        "attention_step_args.cuh has this size"
    );
    assert!(offset_of!(AttentionStepArgs, new_key) == 192);
    assert!(offset_of!(AttentionStepArgs, cosines) == 256);
    assert!(offset_of!(AttentionStepArgs, position) == 272);
};

// SAFETY: as for `AttentionArgs`.
#[cfg(feature = "cuda")]
unsafe impl cudarc::driver::DeviceRepr for AttentionStepArgs {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field has its own place: no two of them shared, nothing between them.
    #[test]
    fn the_layout_has_no_holes() {
        let fields = [5 * size_of::<AttentionOperand>(), 8, 6 * 4];
        assert_eq!(fields.iter().sum::<usize>(), size_of::<AttentionArgs>());
        assert_eq!(size_of::<AttentionOperand>(), 4 * 8);
        let fields = [size_of::<AttentionArgs>(), 2 * size_of::<AttentionOperand>(), 3 * 8];
        assert_eq!(fields.iter().sum::<usize>(), size_of::<AttentionStepArgs>());
    }
}
