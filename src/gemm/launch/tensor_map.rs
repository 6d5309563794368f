//! Tensor maps: what TMA has to know of an operand, as plain data.

use super::args::Addresses;
use crate::gemm::kernel::spec::{Arithmetic, TmaBox};
use crate::gemm::operands::{Access, DType, OperandLayout, MAX_BATCH_DIMS};
use crate::gemm::planner::plan::Plan;
#[cfg(feature = "cuda")]
use std::{cell::RefCell, collections::HashMap};

/// Dimensions of every tensor map: contiguous, other, and three of the batch.
const RANK: usize = 5;
/// Strides are multiples of this many bytes, also of dimensions that are never stepped along.
const STRIDE_UNIT: u64 = 16;

/// An operand as TMA sees it, innermost dimension first: contiguous dimension, other dimension, batch
/// dimensions 3, 2 and 1. A batch dimension along which the operand is broadcast has extent 1, and kernels give 0 for its
/// coordinate. What lies outside is read as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// Device address of the first element, a multiple of 16.
    pub address: u64,
    /// Elements.
    pub extents: [u64; RANK],
    /// Bytes between neighbours in dimensions 1 to 4.
    pub strides: [u64; RANK - 1],
    /// What one copy brings.
    pub tma_box: [u32; RANK],
    /// What its elements are.
    pub dtype: DType,
    /// Whether FP32 numbers are rounded to TF32 on their way; else they arrive bit for bit.
    pub rounded: bool,
}

impl TensorMap {
    /// An operand of `inner` × `outer` elements with `stride` elements between neighbours of the outer dimension.
    ///
    /// Strides are not negative (a kernel's row refuses those).
    pub fn new(
        address: u64,
        dtype: DType,
        [inner, outer]: [usize; 2],
        stride: i64,
        batch_dims: &[usize; MAX_BATCH_DIMS],
        batch_strides: &[i64; MAX_BATCH_DIMS],
        tma_box: TmaBox,
    ) -> Self {
        let element = dtype.size() as u64;
        let mut extents = [inner as u64, outer as u64, 1, 1, 1];
        let mut strides = [STRIDE_UNIT; RANK - 1];
        if outer > 1 {
            strides[0] = stride as u64 * element;
        }
        for place in 0..RANK - 2 {
            let dim = MAX_BATCH_DIMS - 1 - place;
            if batch_dims[dim] > 1 && batch_strides[dim] != 0 {
                extents[2 + place] = batch_dims[dim] as u64;
                strides[1 + place] = batch_strides[dim] as u64 * element;
            }
        }
        TensorMap {
            address,
            extents,
            strides,
            tma_box: [tma_box.inner, tma_box.outer, 1, 1, 1],
            dtype,
            rounded: false,
        }
    }

    /// The same with numbers rounded to TF32 on their way, or not.
    pub const fn rounded(self, rounded: bool) -> Self {
        TensorMap { rounded, ..self }
    }

    /// The driver's form of it in the context of this number, made once by each thread for the addresses that return: those of weights, and what a
    /// pool hands out again.
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode).
    #[cfg(feature = "cuda")]
    pub(super) fn encoded(&self, context: u64) -> crate::error::Result<cudarc::driver::sys::CUtensorMap> {
        type Encoded = HashMap<(u64, TensorMap), cudarc::driver::sys::CUtensorMap, foldhash::fast::RandomState>;
        thread_local! {
            static ENCODED: RefCell<Encoded> = RefCell::default();
        }
        const MOST: usize = 1024;
        let key = (context, *self);
        if let Some(map) = ENCODED.with_borrow(|encoded| encoded.get(&key).copied()) {
            return Ok(map);
        }
        let map = self.encode()?;
        ENCODED.with_borrow_mut(|encoded| {
            if encoded.len() >= MOST {
                encoded.clear();
            }
            encoded.insert(key, map);
        });
        Ok(map)
    }

    /// The driver's form of it.
    ///
    /// # Errors
    ///
    /// Whatever the driver objects to.
    #[cfg(feature = "cuda")]
    fn encode(&self) -> crate::error::Result<cudarc::driver::sys::CUtensorMap> {
        use cudarc::driver::sys;
        let steps = [1u32; RANK];
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: every pointer is to a local array of RANK elements (strides: one less); the address is only written
        // into the map.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                match (self.dtype, self.rounded) {
                    (DType::F32, true) => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
                    (DType::F32, false) => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                    (DType::F64, _) => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
                    (DType::F16, _) => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                    (DType::BF16, _) => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                },
                RANK as u32,
                self.address as *mut std::ffi::c_void,
                self.extents.as_ptr(),
                self.strides.as_ptr(),
                self.tma_box.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                match u64::from(self.tma_box[0]) * self.dtype.size() as u64 {
                    32 if self.dtype.is_16_bit() => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
                    64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
                    128 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                    _ => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
                },
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(|e| crate::error::Error::driver("describing an operand to TMA", e))?;
        Ok(map)
    }
}

/// Whether an address can be found among the parameters of a kernel that reaches it through a tensor map. What the driver makes of
/// a tensor map is its own affair, so it is tried; where there are no tensor maps no kernel has any.
#[cfg(feature = "cuda")]
pub(crate) fn shows_addresses() -> bool {
    const ADDRESS: u64 = 0x12_3456_7890;
    const ROW: usize = 64;
    let batch = ([1; MAX_BATCH_DIMS], [0; MAX_BATCH_DIMS]);
    let tma_box = TmaBox::new(32, 16);
    let map = TensorMap::new(ADDRESS, DType::F32, [ROW, ROW], ROW as i64, &batch.0, &batch.1, tma_box);
    map.encode().map_or(true, |map| map.opaque.contains(&ADDRESS))
}

impl Plan {
    /// What TMA has to know of A, B and D, for a kernel that reads A and B through it. One that stores D through it does so where
    /// D has the type of its factors, and rows that start on 16 bytes and are whole vectors; elsewhere, and where sums are all that it
    /// stores, the third map is A's, which nobody looks at.
    pub fn tensor_maps(&self, at: &Addresses) -> Option<[TensorMap; 3]> {
        let [box_a, box_b] = self.kernel.tma_boxes?;
        let problem = &self.problem;
        let (accesses, types) = (problem.accesses(), problem.types);
        let map = |layout: &OperandLayout, access, dtype, [rows, cols]: [usize; 2], address: u64, tma_box: TmaBox| {
            let along_rows = matches!(access, Access::ColVector | Access::ColScalar);
            let (inner, outer, stride) = if along_rows {
                (rows, cols, layout.col_stride)
            } else {
                (cols, rows, layout.row_stride)
            };
            TensorMap::new(
                address,
                dtype,
                [inner, outer],
                stride,
                &problem.batch_dims,
                &layout.batch_strides,
                tma_box,
            )
            .rounded(self.kernel.arithmetic == Arithmetic::Tf32)
        };
        let sizes = [
            [problem.m, problem.k],
            [problem.k, problem.n],
            [problem.m, problem.result_columns()],
        ];
        let a = map(&problem.a, accesses.a, types.a, sizes[0], at.operands.a, box_a);
        let b = map(&problem.b, accesses.b, types.b, sizes[1], at.operands.b, box_b);
        let d = match self.kernel.d_box {
            Some(box_d) if self.reduction().is_none() && self.kernel.stores_by_tma(problem) => {
                map(&problem.d, accesses.d, types.d, sizes[2], at.operands.d, box_d)
            }
            _ => a,
        };
        Some([a, b, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broadcast_dimension_has_one_element_and_any_legal_stride() {
        let map = TensorMap::new(
            256,
            DType::F32,
            [40, 9],
            48,
            &[1, 5, 6, 7],
            &[0, 4000, 0, 480],
            TmaBox::new(32, 128),
        );
        assert_eq!(map.extents, [40, 9, 7, 1, 5]);
        assert_eq!(map.strides, [48 * 4, 480 * 4, 16, 4000 * 4]);
        assert_eq!(map.tma_box, [32, 128, 1, 1, 1]);
    }

    #[test]
    fn a_single_row_needs_no_stride() {
        let map = TensorMap::new(0, DType::F32, [10, 1], 3, &[1; 4], &[0; 4], TmaBox::new(32, 16));
        assert_eq!(map.strides, [16; 4]);
    }
}
