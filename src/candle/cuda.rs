//! Products of tensors on a CUDA device: from candle's storages to addresses and a stream.

use super::layout::{MatmulCall, MAX_ALIGN};
use super::look::{look_at, Seen};
use crate::device::CurrentContext;
use crate::gemm::launch;
use crate::gemm::launch::args::Addresses;
use crate::gemm::operands::{DType as ElementType, Operands};
use crate::gemm::planner::cache;
use crate::gemm::tune::Tuning;
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::{bail, CudaStorage, DType, Error, Result, Tensor};
use cudarc::driver::{sys, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop};
use half::{bf16, f16};
use std::cell::Cell;

/// What a product has beside its operands.
#[derive(Clone, Copy)]
pub(super) struct Beside<'a> {
    pub alpha: f32,
    pub beta: f32,
    /// Elements between neighbours of the bias.
    pub bias_stride: usize,
    /// The norm of A's rows, if they are normed.
    pub norm: Option<Norm<'a>>,
}

/// A norm of A's rows.
#[derive(Clone, Copy)]
pub(super) struct Norm<'a> {
    /// Of as many elements as a row has, of its type, one after the other from `first` on.
    pub weight: &'a CudaStorage,
    pub first: usize,
    pub epsilon: f32,
}

/// How a product is to be computed.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    /// The kernel of this name if there is one,
    pub kernel: Option<&'a str>,
    /// or else one that was measured to be the fastest, where that is asked for.
    pub tuned: bool,
    /// Where the caller can do without: set where no kernel takes the product with its operands in place, or a kernel for each step is
    /// faster.
    pub refused: Option<&'a Cell<bool>>,
}

impl Way<'_> {
    /// The error, and a note of it for a caller that can do without.
    fn refuse(&self, error: Error) -> Error {
        if let Some(refused) = self.refused {
            refused.set(true);
        }
        error
    }
}

/// Computes `call` on candle's stream into fresh memory.
pub(super) fn run(
    call: &MatmulCall,
    way: Way<'_>,
    storages: &Operands<Option<&CudaStorage>>,
    beside: Beside<'_>,
) -> Result<CudaStorage> {
    match call.problem.types.d {
        ElementType::F16 => run_into::<f16>(call, way, storages, beside),
        ElementType::BF16 => run_into::<bf16>(call, way, storages, beside),
        ElementType::F32 | ElementType::F64 => run_into::<f32>(call, way, storages, beside),
    }
}

fn run_into<T: CudaDType + DeviceRepr>(
    call: &MatmulCall,
    way: Way<'_>,
    storages: &Operands<Option<&CudaStorage>>,
    beside: Beside<'_>,
) -> Result<CudaStorage> {
    let Some(a) = storages.a else {
        bail!("a product has two factors, and one of them is missing");
    };
    let device = a.device();
    let stream = device.cuda_stream();
    stream.context().bind_to_thread().w()?;
    let context = CurrentContext::get().map_err(Error::wrap)?;
    // SAFETY: every element is written by the launches below before anything reads it on this stream.
    let d = unsafe { device.alloc::<T>(call.shape.elem_count()) };
    let mut d = d.map_err(|error| error.context(format!("allocating a product of shape {:?}", call.shape)))?;
    {
        let Operands {
            a,
            b,
            c,
            bias,
            residual,
            ..
        } = *storages;
        // The guards order this stream's work after what other streams still do with the operands.
        let (a, _a_guard) = start(a, &stream)?;
        let (b, _b_guard) = start(b, &stream)?;
        let (c, _c_guard) = start(c, &stream)?;
        let (bias, _bias_guard) = start(bias, &stream)?;
        let (residual, _residual_guard) = start(residual, &stream)?;
        let (d, _d_guard) = d.device_ptr_mut(&stream);
        let starts = Operands {
            a,
            b,
            c,
            d,
            bias,
            residual,
        };
        let tuning = Tuning::on_stream(way.tuned, || capturing(&stream))?;
        let problem = call.problem_at(&starts)?;
        let plan = cache::plan(&context, &problem, way.kernel, tuning)
            .map_err(|error| way.refuse(Error::wrap(error).context(format!("no product of shape {:?}", call.shape))))?;
        if way.refused.is_some() {
            let pays = cache::pays(&context, &problem, &plan, tuning).map_err(Error::wrap)?;
            if !plan.is_one_kernel() || !pays {
                return Err(way.refuse(Error::msg("a kernel for each step is faster")));
            }
        }
        let (norm, _norm_guard) = start(beside.norm.map(|norm| norm.weight), &stream)?;
        let (norm, norm_epsilon) = match beside.norm {
            Some(of) => (norm + (of.first * call.problem.types.a.size()) as u64, of.epsilon),
            None => (0, 0.0),
        };
        if !norm.is_multiple_of(MAX_ALIGN.into()) {
            return Err(way.refuse(Error::msg(format!(
                "the weights of the norm start at address {norm:#x}, which is no multiple of {MAX_ALIGN}"
            ))));
        }
        let places = starts.zip(call.problem.types);
        for at in call.launches() {
            let place = |((start, dtype), elements): ((u64, ElementType), usize)| match start {
                0 => 0,
                start => start + (elements * dtype.size()) as u64,
            };
            let addresses = Addresses {
                bias_stride: beside.bias_stride as i64,
                norm,
                norm_epsilon,
                ..Addresses::new(places.zip(at).map(place))
            };
            // SAFETY: candle's storages hold every element that their layouts reach, in device memory of this stream's
            // context, aligned as `MatmulCall` worked out from layouts and addresses; the norm's weights are as many as a row has
            // elements, as its caller has seen, and start on 16 bytes; D is fresh memory of the result's size; the guards keep all of it
            // until the stream has passed the launch.
            unsafe { launch::launch(&plan, &addresses, beside.alpha, beside.beta, stream.cu_stream()) }
                .map_err(Error::wrap)?;
        }
    }
    Ok(CudaStorage::wrap_cuda_slice(d, device.clone()))
}

/// The address of an operand, 0 of one that is absent, and what keeps it until the stream is done with it.
pub(super) fn start<'a>(
    storage: Option<&'a CudaStorage>,
    stream: &'a CudaStream,
) -> Result<(u64, Option<SyncOnDrop<'a>>)> {
    let Some(storage) = storage else {
        return Ok((0, None));
    };
    let (start, guard) = match storage.dtype() {
        DType::F16 => storage.as_cuda_slice::<f16>()?.device_ptr(stream),
        DType::BF16 => storage.as_cuda_slice::<bf16>()?.device_ptr(stream),
        _ => storage.as_cuda_slice::<f32>()?.device_ptr(stream),
    };
    Ok((start, Some(guard)))
}

/// Whether what is queued on the stream is being recorded instead of run.
fn capturing(stream: &CudaStream) -> Result<bool> {
    let status = stream.capture_status().w()?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Whether a tensor's storage starts on so many bytes as kernels may ask for. One that no kernel reads does.
pub(super) fn starts_aligned(tensor: &Tensor) -> Result<bool> {
    look_at(tensor, |seen, _| {
        let Seen::Cuda(storage) = seen else {
            return Ok(true);
        };
        if !matches!(storage.dtype(), DType::F32 | DType::F16 | DType::BF16) {
            return Ok(true);
        }
        let stream = storage.device().cuda_stream();
        let (start, _guard) = start(Some(storage), &stream)?;
        Ok(start.is_multiple_of(MAX_ALIGN.into()))
    })
}
