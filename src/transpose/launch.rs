//! The one unsafe step: a plan, addresses and a stream become a running kernel.

use super::kernels::{Instance, TransposeKernel};
use super::plan::{Piece, Step, TransposePlan};
use crate::device::{early_start, early_starts, CurrentContext};
use crate::error::{Error, Result};
use cudarc::driver::{result, sys};
use std::ptr::null_mut;

/// Queues `plan` on `stream` and returns at once.
///
/// Nothing is synchronised or allocated, so a launch can be captured into a CUDA graph.
///
/// # Safety
///
/// - A CUDA context is current on this thread and `stream` belongs to it.
/// - `src` and `dst` are device addresses of that context, multiples of the problem's `align`. From `src` on lies every
///   element that the problem reaches; from `dst` on there is room for all of them. The 16 bytes around the first and the last
///   element, from a multiple of 16 to the next, may be read too: they are part of the same allocation anywhere.
/// - The two do not overlap, and both live until the stream has passed the launch.
///
/// # Errors
///
/// [`Error::NotBuilt`] where this build lacks the kernel for the device, [`Error::Driver`] with the driver's message.
pub unsafe fn launch(plan: &TransposePlan, src: u64, dst: u64, stream: sys::CUstream) -> Result<()> {
    // SAFETY: as the caller vouches.
    unsafe { launch_before(plan, src, dst, stream, false) }
}

/// The same before a kernel that may get ready meanwhile, and then waits, if `lets_next`.
///
/// # Safety
///
/// As [`launch`].
///
/// # Errors
///
/// As [`launch`].
pub(crate) unsafe fn launch_before(
    plan: &TransposePlan,
    src: u64,
    dst: u64,
    stream: sys::CUstream,
    lets_next: bool,
) -> Result<()> {
    match &plan.step {
        Step::Nothing => Ok(()),
        // SAFETY: both addresses are good for the whole of the problem, as the caller vouches.
        Step::Copy { bytes } => unsafe { result::memcpy_dtod_async(dst, src, *bytes, stream) }
            .map_err(|e| Error::driver("copying on the device", e)),
        Step::Launch {
            kernel,
            instance,
            pieces,
        } => pieces.iter().try_for_each(|piece| {
            // SAFETY: as the caller vouches; a piece is part of the problem.
            unsafe { launch_piece(plan, kernel, instance, piece, [src, dst], stream, lets_next) }
        }),
    }
}

/// # Safety
///
/// As [`launch`].
unsafe fn launch_piece(
    plan: &TransposePlan,
    kernel: &'static TransposeKernel,
    instance: &'static Instance,
    piece: &Piece,
    [src, dst]: [u64; 2],
    stream: sys::CUstream,
    lets_next: bool,
) -> Result<()> {
    let context = CurrentContext::get()?;
    let function = context.function(kernel.file, instance.entry, instance.dynamic_shared)?;
    let mut args = piece.args(plan, kernel, src, dst);
    args.lets_next = u16::from(lets_next);
    let mut parameters = vec![std::ptr::from_mut(&mut args).cast()];
    let mut maps = match kernel.needs.tensor_maps {
        true => Some(tensor_maps(instance, piece, args.src, args.dst)?),
        false => None,
    };
    if let Some([src_map, dst_map]) = &mut maps {
        parameters.push(std::ptr::from_mut(src_map).cast());
        parameters.push(std::ptr::from_mut(dst_map).cast());
    }
    let mut early = early_start();
    let config = sys::CUlaunchConfig {
        gridDimX: piece.blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: instance.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: instance.shared(plan.streaming),
        hStream: stream,
        attrs: &mut early,
        numAttrs: u32::from(kernel.supports_pdl && early_starts(context.info())),
    };
    // SAFETY: the kernel takes one `TransposeArgs` and, if it needs them, two tensor maps, all by value, which the driver
    // copies before it returns. What it does with the addresses is what the caller vouched for.
    unsafe { sys::cuLaunchKernelEx(&config, function.handle(), parameters.as_mut_ptr(), null_mut()).result() }
        .map_err(|e| Error::driver("launching a transposition", e))
}

/// What TMA has to know of source and destination: (columns, rows, matrices) of each, in boxes 128 bytes wide,
/// swizzled as the kernel expects.
fn tensor_maps(instance: &Instance, piece: &Piece, src: u64, dst: u64) -> Result<[sys::CUtensorMap; 2]> {
    const BOX_BYTES: usize = 128;
    let (m, size) = (&piece.matrices, instance.element_size);
    let count = m.count() as u64;
    let batch = m.outer.first();
    let data_type = match size {
        1 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        2 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
        4 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_INT64,
    };
    let map = |address: u64, width: usize, height: usize, row: i64, matrix: i64, box_rows: usize| {
        let bytes = |stride: i64| stride as u64 * size as u64;
        let dims = [width as u64, height as u64, count];
        let strides = [bytes(row), bytes(matrix)];
        let extent = [(BOX_BYTES / size) as u32, box_rows as u32, 1];
        let steps = [1u32; 3];
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: every pointer is to a local array of the rank given here; the address is only written into the map.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                data_type,
                dims.len() as u32,
                address as *mut std::ffi::c_void,
                dims.as_ptr(),
                strides.as_ptr(),
                extent.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                // Whole lines of 256 bytes: half of one is the next tile's, which comes soon.
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(|e| Error::driver("describing a tensor to TMA", e))?;
        Ok(map)
    };
    // A stride for the batch must be there even where there is none.
    let src_matrix = batch.map_or(m.src_row, |axis| axis.src);
    let dst_matrix = batch.map_or(m.dst_col, |axis| axis.dst);
    Ok([
        map(src, m.cols, m.rows, m.src_row, src_matrix, instance.tile_rows)?,
        map(dst, m.rows, m.cols, m.dst_col, dst_matrix, instance.tile_cols)?,
    ])
}
