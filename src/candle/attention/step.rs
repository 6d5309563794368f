//! A decoder's step by one kernel: rotations, the cache and attention over it.

use candle_core::{Result, Tensor};

/// What a step is made of, its shapes checked.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // candle's operations have them one by one
pub(in super::super) struct Operands<'a> {
    /// Keys, then values: (2, batch, heads, places, width), dense. It is written.
    pub cache: &'a Tensor,
    /// (batch, (heads·queries + 2·heads)·width).
    pub rows: &'a Tensor,
    /// (positions, width / 2), dense.
    pub cosines: &'a Tensor,
    /// As many.
    pub sines: &'a Tensor,
    /// One `u32`.
    pub position: &'a Tensor,
    /// Queries that share a key.
    pub queries: usize,
}

/// The step by one kernel, or `None` where candle is to do it.
pub(in super::super) fn attend(operands: &Operands<'_>, scale: f64) -> Result<Option<Tensor>> {
    if cfg!(not(feature = "cuda")) || !operands.cache.device().is_cuda() {
        return Ok(None);
    }
    #[cfg(feature = "cuda")]
    return cuda::attend(operands, scale);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = scale;
        Ok(None)
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::super::super::checks::element_type;
    use super::super::super::cuda::start;
    use super::super::super::fallback::is_served;
    use super::super::super::look::{look_at, Seen};
    use super::Operands;
    use crate::attention::problem::ALIGN;
    use crate::attention::{launch, StepAddresses, StepPlan, StepProblem};
    use crate::device::CurrentContext;
    use candle_core::backend::BackendStorage;
    use candle_core::cuda_backend::{CudaDType, WrapErr};
    use candle_core::{
        bail, CpuStorage, CudaStorage, CustomOp1, DType, Error, InplaceOp1, Layout, Result, Shape, Tensor,
    };
    use cudarc::driver::{DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop};
    use half::{bf16, f16};
    use std::cell::Cell;

    const NAME: &str = "attend-step";

    pub(super) fn attend(operands: &Operands<'_>, scale: f64) -> Result<Option<Tensor>> {
        let rows = operands.rows;
        let Ok(dtype) = element_type(rows.dtype()) else {
            return Ok(None);
        };
        if rows.stride()[1] != 1 || !is_served(rows.device())? {
            return Ok(None);
        }
        let (_, batch, heads, places, width) = operands.cache.dims5()?;
        let problem = StepProblem {
            dtype,
            batch,
            heads,
            queries: operands.queries,
            places,
            width,
            row_stride: if batch == 1 { rows.dims()[1] } else { rows.stride()[0] },
        };
        let plan = {
            let candle_core::Device::Cuda(device) = rows.device() else {
                return Ok(None);
            };
            device.cuda_stream().context().bind_to_thread().w()?;
            let context = CurrentContext::get().map_err(Error::wrap)?;
            match StepPlan::new(&problem, context.info()) {
                Ok(plan) => plan,
                Err(_) => return Ok(None),
            }
        };
        let op = Step {
            operands,
            plan,
            scale: scale as f32,
            unaligned: Cell::new(false),
        };
        match (rows.apply_op1_no_bwd(&op), op.unaligned.get()) {
            (_, true) => Ok(None),
            (result, false) => result.map(Some),
        }
    }

    struct Step<'a> {
        operands: &'a Operands<'a>,
        plan: StepPlan,
        scale: f32,
        /// Something does not start on a vector, which is seen with the addresses only.
        unaligned: Cell<bool>,
    }

    /// What `then` makes of the address of a tensor's first element, with what keeps it.
    fn with_address<T>(tensor: &Tensor, then: impl FnOnce(u64) -> Result<T>) -> Result<T> {
        look_at(tensor, |seen, layout| {
            let Seen::Cuda(storage) = seen else {
                bail!("{NAME}: a tensor is on the CPU");
            };
            let stream = storage.device().cuda_stream();
            let (first, _guard): (u64, Option<SyncOnDrop<'_>>) = match storage.dtype() {
                DType::U32 => {
                    let (first, guard) = storage.as_cuda_slice::<u32>()?.device_ptr(&stream);
                    (first, Some(guard))
                }
                _ => start(Some(storage), &stream)?,
            };
            then(first + (layout.start_offset() * storage.dtype().size_in_bytes()) as u64)
        })
    }

    impl Step<'_> {
        fn run<T: CudaDType + DeviceRepr>(
            &self,
            storage: &CudaStorage,
            layout: &Layout,
        ) -> Result<(CudaStorage, Shape)> {
            let Operands {
                cache,
                cosines,
                sines,
                position,
                queries,
                ..
            } = *self.operands;
            let (_, batch, heads, _, width) = cache.dims5()?;
            let device = storage.device();
            let stream = device.cuda_stream();
            stream.context().bind_to_thread().w()?;
            let (first, _guard) = start(Some(storage), &stream)?;
            // The cache is locked below, which waits for ever if it is what is read here.
            if with_address(cache, |cache| Ok(cache == first))? {
                bail!("{NAME}: the rows are a part of the cache");
            }
            let rows = first + (layout.start_offset() * size_of::<T>()) as u64;
            let shape = Shape::from((batch, heads * queries * width));
            // SAFETY: every element is written by the launch below before anything reads it on this stream.
            let out = unsafe { device.alloc::<T>(shape.elem_count()) };
            let mut out =
                out.map_err(|error| error.context(format!("allocating a step's result of shape {shape:?}")))?;
            {
                let (out, _out_guard) = out.device_ptr_mut(&stream);
                with_address(cosines, |cosines| {
                    with_address(sines, |sines| {
                        with_address(position, |position| {
                            let at = StepAddresses {
                                rows,
                                keys: 0,
                                values: 0,
                                cosines,
                                sines,
                                position,
                                out,
                            };
                            cache.inplace_op1(&Write { step: self, at })
                        })
                    })
                })?;
            }
            Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), shape))
        }
    }

    impl CustomOp1 for Step<'_> {
        fn name(&self) -> &'static str {
            NAME
        }

        fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
            bail!("{NAME} on the CPU is candle's operations")
        }

        fn cuda_fwd(&self, rows: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
            match rows.dtype() {
                DType::F16 => self.run::<f16>(rows, layout),
                DType::BF16 => self.run::<bf16>(rows, layout),
                _ => self.run::<f32>(rows, layout),
            }
        }
    }

    /// The launch, with the cache's storage to be written.
    struct Write<'a> {
        step: &'a Step<'a>,
        at: StepAddresses,
    }

    impl Write<'_> {
        fn run<T: CudaDType + DeviceRepr>(&self, cache: &mut CudaStorage, layout: &Layout) -> Result<()> {
            let stream = cache.device().cuda_stream();
            let (first, _guard) = T::as_cuda_slice_mut(cache)?.device_ptr_mut(&stream);
            let keys = first + (layout.start_offset() * size_of::<T>()) as u64;
            let at = StepAddresses {
                keys,
                values: keys + (layout.shape().elem_count() / 2 * size_of::<T>()) as u64,
                ..self.at
            };
            let vectors = [at.rows, at.keys, at.values, at.cosines, at.sines, at.out];
            if vectors.iter().any(|address| !address.is_multiple_of(u64::from(ALIGN))) {
                self.step.unaligned.set(true);
                bail!("{NAME}: a tensor does not start on {ALIGN} bytes");
            }
            // SAFETY: candle's storages hold every element that their layouts reach, in device memory of this stream's context; the shapes
            // are those of the problem (`KvCache::check`), and the addresses aligned as was just checked; the cache and the fresh result
            // are other allocations than what is read; the guards keep all of it until the stream has passed the launch.
            unsafe { launch::launch_step(&self.step.plan, &at, self.step.scale, stream.cu_stream()) }
                .map_err(Error::wrap)
        }
    }

    impl InplaceOp1 for Write<'_> {
        fn name(&self) -> &'static str {
            NAME
        }

        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
            bail!("{NAME} on the CPU is candle's operations")
        }

        fn cuda_fwd(&self, cache: &mut CudaStorage, layout: &Layout) -> Result<()> {
            match cache.dtype() {
                DType::F16 => self.run::<f16>(cache, layout),
                DType::BF16 => self.run::<bf16>(cache, layout),
                _ => self.run::<f32>(cache, layout),
            }
        }
    }
}
