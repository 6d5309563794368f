//! The kernel ABI: the mirror of `cuda/abi/transpose_args.cuh`, checked at compile time on both sides.

/// Batch dimensions of one launch.
pub const MAX_OUTER_DIMS: usize = 6;

/// Division of a number below 2³¹ by a fixed one: `(2n · multiplier) >> 32 >> shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Divisor {
    value: u32,
    multiplier: u32,
    shift: u32,
}

impl Divisor {
    /// Numbers to divide, and divisors, are smaller than this.
    pub const LIMIT: u64 = 1 << 31;

    /// Divides by `value`, from 1 to below [`Divisor::LIMIT`].
    ///
    /// With 2^(l−1) < d ≤ 2^l the multiplier ⌈2^(31+l) / d⌉ lies between 2³¹ and 2³², and exceeds the true ratio by less
    /// than d / 2^(31+l) in relation; for n < 2³¹ the surplus of the quotient is below n · d / 2^(31+l) / d < 1 / d, too
    /// little to reach the next whole number.
    pub const fn new(value: u32) -> Self {
        debug_assert!(value >= 1 && (value as u64) < Self::LIMIT);
        let log = u32::BITS - (value - 1).leading_zeros();
        let multiplier = (1u64 << (31 + log)).div_ceil(value as u64);
        Divisor {
            value,
            multiplier: multiplier as u32,
            shift: log,
        }
    }

    /// What is divided by.
    pub const fn value(self) -> u32 {
        self.value
    }

    /// The quotient as the kernels compute it.
    pub const fn quotient(self, number: u32) -> u32 {
        let high = (2 * number as u64 * self.multiplier as u64) >> 32;
        high as u32 >> self.shift
    }
}

/// A batch dimension of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct OuterDim {
    /// Elements between neighbouring matrices in the source; 0 broadcasts
    pub src_stride: i64,
    /// The same in the destination
    pub dst_stride: i64,
    /// How many there are
    pub extent: Divisor,
    /// 0
    pub reserved: u32,
}

impl OuterDim {
    /// One matrix: a dimension that is not used.
    pub const ONE: OuterDim = OuterDim {
        src_stride: 0,
        dst_stride: 0,
        extent: Divisor::new(1),
        reserved: 0,
    };
}

/// The argument of every copy and transposition kernel, passed by value. See `transpose_args.cuh` for the fields and
/// their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TransposeArgs {
    /// Device address of the first element read
    pub src: u64,
    /// Device address of the first element written
    pub dst: u64,
    /// Elements between rows of the source
    pub src_row_stride: i64,
    /// Elements between what were columns, in the destination
    pub dst_col_stride: i64,
    /// Elements between columns of the source
    pub src_col_stride: i64,
    /// Elements between what were rows, in the destination
    pub dst_row_stride: i64,
    /// Rows of a matrix as it is read
    pub rows: i64,
    /// Columns of a matrix as it is read
    pub cols: i64,
    /// Tiles along the direction that is walked first
    pub tiles_inner: Divisor,
    /// Tiles of a matrix
    pub tiles_matrix: Divisor,
    /// Whether neighbouring blocks take neighbouring tiles of a column
    pub walk_rows: u16,
    /// Whether this is more than the L2 holds
    pub streaming: u16,
    /// Batch dimensions in use
    pub outer_dims: u16,
    /// Whether the next kernel may get ready while this one runs: a product that reads what this writes. Copies and
    /// transpositions themselves lose where the blocks of the next one come in between theirs: it finds the multiprocessors
    /// unequally full, and ends unequally
    pub lets_next: u16,
    /// Matrices of this launch
    pub outer_count: u32,
    /// Whether rows or matrices of the destination have gaps between them
    pub gaps: u32,
    /// The batch dimensions, innermost first
    pub outer: [OuterDim; MAX_OUTER_DIMS],
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Divisor>() == 12, "transpose_args.cuh has this size");
    assert!(size_of::<OuterDim>() == 32, "transpose_args.cuh has this size");
    assert!(offset_of!(OuterDim, extent) == 16);
    assert!(size_of::<TransposeArgs>() == 296, "transpose_args.cuh has this size");
    assert!(offset_of!(TransposeArgs, rows) == 48);
    assert!(offset_of!(TransposeArgs, tiles_inner) == 64);
    assert!(offset_of!(TransposeArgs, walk_rows) == 88);
    assert!(offset_of!(TransposeArgs, streaming) == 90);
    assert!(offset_of!(TransposeArgs, outer_dims) == 92);
    assert!(offset_of!(TransposeArgs, lets_next) == 94);
    assert!(offset_of!(TransposeArgs, outer) == 104);
};

// SAFETY: `repr(C)`, no padding, no pointers to host memory: the bytes may be copied to the device as they are.
#[cfg(feature = "cuda")]
unsafe impl cudarc::driver::DeviceRepr for TransposeArgs {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field has its own place: 296 bytes, no two of them shared.
    #[test]
    fn the_layout_has_no_holes() {
        let dimension = [8 * 2, 12, 4];
        assert_eq!(dimension.iter().sum::<usize>(), std::mem::size_of::<OuterDim>());
        let fields = [8 * 2, 8 * 6, 2 * 12, 2 * 2, 3 * 4, 32 * MAX_OUTER_DIMS];
        assert_eq!(fields.iter().sum::<usize>(), std::mem::size_of::<TransposeArgs>());
    }

    #[test]
    fn divisors_divide_exactly() {
        let interesting = |limit: u32| {
            let powers = (0..31).flat_map(|bit| [(1u32 << bit).wrapping_sub(1), 1 << bit, (1 << bit) + 1]);
            let primes = [3, 7, 31, 257, 641, 65_537, 1_000_003, 715_827_883, 2_147_483_647];
            powers.chain(primes).filter(move |&n| n < limit)
        };
        for d in interesting(1 << 31).filter(|&d| d > 0) {
            let divisor = Divisor::new(d);
            for n in interesting(1 << 31) {
                // Numbers around multiples of d are where a wrong multiplier shows.
                let multiple = n / d * d;
                for n in [n, multiple, multiple.saturating_sub(1)] {
                    assert_eq!(divisor.quotient(n), n / d, "{n} / {d}");
                }
            }
        }
    }
}
