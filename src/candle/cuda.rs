//! Products of tensors on a CUDA device: from candle's storages to addresses and a stream.

use super::layout::{Product, Terms, MAX_ALIGN};
use super::look::{look_at, Seen};
use crate::device::CurrentContext;
use crate::gemm::launch::args::Addresses;
use crate::gemm::planner::cache;
use crate::gemm::{launch, tune};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::WrapErr;
use candle_core::{CudaStorage, DType, Error, Result, Tensor};
use cudarc::driver::{sys, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};

/// The factors of a product.
#[derive(Clone, Copy)]
pub(super) struct Scalars {
    pub alpha: f32,
    pub beta: f32,
    /// Elements between neighbours of the bias.
    pub bias_stride: usize,
}

/// Computes `product` on candle's stream into fresh memory, with the kernel of this name if there is one,
/// or else with one that was measured to be the fastest where that is asked for.
pub(super) fn run(
    product: &Product,
    kernel: Option<&str>,
    tuned: bool,
    a: &CudaStorage,
    b: &CudaStorage,
    terms: &Terms<&CudaStorage>,
    scalars: Scalars,
) -> Result<CudaStorage> {
    let device = a.device();
    let stream = device.cuda_stream();
    stream.context().bind_to_thread().w()?;
    let context = CurrentContext::get().map_err(Error::wrap)?;
    // SAFETY: every element is written by the launches below before anything reads it on this stream.
    let d = unsafe { device.alloc::<f32>(product.shape.elem_count()) };
    let mut d = d.map_err(|error| error.context(format!("allocating a product of shape {:?}", product.shape)))?;
    {
        // The guards order this stream's work after what other streams still do with the operands.
        let (a_start, _a_guard) = a.as_cuda_slice::<f32>()?.device_ptr(&stream);
        let (b_start, _b_guard) = b.as_cuda_slice::<f32>()?.device_ptr(&stream);
        let (d_start, _d_guard) = d.device_ptr_mut(&stream);
        let (c_start, _c_guard) = optional(terms.c, &stream)?;
        let (bias_start, _bias_guard) = optional(terms.bias, &stream)?;
        let (residual_start, _residual_guard) = optional(terms.residual, &stream)?;
        let starts = Addresses {
            a: a_start,
            b: b_start,
            c: c_start,
            d: d_start,
            residual: residual_start,
            bias: bias_start,
            ..Addresses::default()
        };
        // Tuning waits for the device, which a stream that is being captured into a graph forbids.
        let measured = (tuned || tune::asked_for()) && !capturing(&stream)?;
        let plan = cache::plan(&context, &product.problem_at(&starts)?, kernel, measured)
            .map_err(|error| Error::wrap(error).context(format!("no product of shape {:?}", product.shape)))?;
        let place = |start: u64, elements: usize| match start {
            0 => 0,
            start => start + (elements * std::mem::size_of::<f32>()) as u64,
        };
        for at in product.launches() {
            let addresses = Addresses {
                a: place(a_start, at.a),
                b: place(b_start, at.b),
                c: place(c_start, at.c),
                d: place(d_start, at.d),
                residual: place(residual_start, at.residual),
                bias: place(bias_start, at.bias),
                bias_stride: scalars.bias_stride as i64,
                ..Addresses::default()
            };
            // SAFETY: candle's storages hold every element that their layouts reach, in device memory of this stream's
            // context, aligned as `Product` worked out from layouts and addresses; D is fresh memory of the result's size;
            // the guards keep all of it until the stream has passed the launch.
            unsafe { launch::launch(&plan, &addresses, scalars.alpha, scalars.beta, stream.cu_stream()) }
                .map_err(Error::wrap)?;
        }
    }
    Ok(CudaStorage::wrap_cuda_slice(d, device.clone()))
}

/// The address of an operand that may be absent, and what keeps it until the stream is done with it.
fn optional<'a>(storage: Option<&'a CudaStorage>, stream: &'a CudaStream) -> Result<(u64, Option<SyncOnDrop<'a>>)> {
    let Some(storage) = storage else {
        return Ok((0, None));
    };
    let (start, guard) = storage.as_cuda_slice::<f32>()?.device_ptr(stream);
    Ok((start, Some(guard)))
}

/// Whether what is queued on the stream is being recorded instead of run.
fn capturing(stream: &CudaStream) -> Result<bool> {
    let status = stream.capture_status().w()?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Whether a tensor's storage starts on so many bytes as kernels may ask for. One that is not FP32 on a CUDA device does.
pub(super) fn starts_aligned(tensor: &Tensor) -> Result<bool> {
    look_at(tensor, |seen, _| {
        let Seen::Cuda(storage) = seen else {
            return Ok(true);
        };
        if storage.dtype() != DType::F32 {
            return Ok(true);
        }
        let stream = storage.device().cuda_stream();
        let (start, _guard) = storage.as_cuda_slice::<f32>()?.device_ptr(&stream);
        Ok(start.is_multiple_of(MAX_ALIGN.into()))
    })
}
