//! Products of tensors on a CUDA device: from candle's storages to addresses and a stream.

use super::layout::Product;
use crate::device::CurrentContext;
use crate::gemm::plan::Addresses;
use crate::gemm::{cache, launch};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::WrapErr;
use candle_core::{CudaStorage, Error, Result};
use cudarc::driver::{DevicePtr, DevicePtrMut};

/// The operand that is added to the product.
pub(super) enum Addend<'a> {
    /// C, scaled by this β.
    C(&'a CudaStorage, f32),
    /// A bias of n elements, so many elements apart.
    Bias(&'a CudaStorage, usize),
}

/// Computes `product` on candle's stream into fresh memory, with the kernel of this name if there is one.
pub(super) fn run(
    product: &Product,
    kernel: Option<&str>,
    a: &CudaStorage,
    b: &CudaStorage,
    alpha: f32,
    addend: Option<Addend>,
) -> Result<CudaStorage> {
    let device = a.device();
    let stream = device.cuda_stream();
    stream.context().bind_to_thread().w()?;
    let context = CurrentContext::get().map_err(Error::wrap)?;
    let plan = cache::plan(&context, &product.problem, kernel).map_err(Error::wrap)?;

    // SAFETY: every element is written by the launches below before anything reads it on this stream.
    let mut d = unsafe { device.alloc::<f32>(product.shape.elem_count()) }?;
    {
        // The guards order this stream's work after what other streams still do with the operands.
        let (a_start, _a_guard) = a.as_cuda_slice::<f32>()?.device_ptr(&stream);
        let (b_start, _b_guard) = b.as_cuda_slice::<f32>()?.device_ptr(&stream);
        let (d_start, _d_guard) = d.device_ptr_mut(&stream);
        let (addend_start, _addend_guard) = match &addend {
            Some(Addend::C(storage, _) | Addend::Bias(storage, _)) => {
                let (start, guard) = storage.as_cuda_slice::<f32>()?.device_ptr(&stream);
                (start, Some(guard))
            }
            None => (0, None),
        };
        let place = |start: u64, elements: usize| start + (elements * std::mem::size_of::<f32>()) as u64;
        for at in product.launches() {
            let mut addresses = Addresses {
                a: place(a_start, at.a),
                b: place(b_start, at.b),
                d: place(d_start, at.d),
                ..Addresses::default()
            };
            let mut beta = 0.0;
            match addend {
                Some(Addend::C(_, factor)) => {
                    addresses.c = place(addend_start, at.c);
                    beta = factor;
                }
                Some(Addend::Bias(_, stride)) => {
                    addresses.bias = place(addend_start, at.bias);
                    addresses.bias_stride = stride as i64;
                }
                None => {}
            }
            // SAFETY: candle's storages hold every element that their layouts reach, in device memory of this stream's
            // context, aligned as `Product` worked out from the layouts (allocations start on 256 bytes); D is fresh
            // memory of the result's size; the guards keep all of it until the stream has passed the launch.
            unsafe { launch::launch(&plan, &addresses, alpha, beta, stream.cu_stream()) }.map_err(Error::wrap)?;
        }
    }
    Ok(CudaStorage::wrap_cuda_slice(d, device.clone()))
}
