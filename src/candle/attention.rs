//! Attention of tensors by one kernel, where that is expected to be faster than two products and a softmax.

pub(super) mod step;

use super::matmul::Gemm;
use crate::attention::Refusal;
use candle_core::{Result, Tensor};

/// What is attended with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands<'a> {
    pub query: &'a Tensor,
    pub key: &'a Tensor,
    pub value: &'a Tensor,
    pub mask: Option<&'a Tensor>,
}

/// `softmax(scale·Q·Kᵀ + mask)·V` by one kernel, or why not: then products and a softmax compute it, or say what is wrong with it.
pub(super) fn attend(gemm: &Gemm, operands: Operands<'_>, scale: f64) -> Result<std::result::Result<Tensor, Refusal>> {
    match refusal(gemm, &operands) {
        Some(refusal) => Ok(Err(refusal)),
        #[cfg(feature = "cuda")]
        None => cuda::attend(operands, scale),
        #[cfg(not(feature = "cuda"))]
        None => {
            let _ = scale;
            Ok(Err(Refusal::Elsewhere))
        }
    }
}

/// How attention of these tensors is computed, in a sentence.
pub(super) fn explain(gemm: &Gemm, operands: Operands<'_>) -> Result<String> {
    let plan = match refusal(gemm, &operands) {
        Some(refusal) => Err(refusal),
        #[cfg(feature = "cuda")]
        None => cuda::plan(&operands)?.map(|plan| plan.to_string()),
        #[cfg(not(feature = "cuda"))]
        None => Err(Refusal::Elsewhere),
    };
    Ok(plan.unwrap_or_else(|refusal| format!("two products and a softmax: {refusal}")))
}

/// What speaks against one kernel whatever the shapes.
fn refusal(gemm: &Gemm, operands: &Operands<'_>) -> Option<Refusal> {
    let Operands {
        query,
        key,
        value,
        mask,
    } = *operands;
    let others = [Some(key), Some(value), mask];
    if gemm.names_kernel() {
        return Some(Refusal::NamedKernel);
    }
    if !query.device().is_cuda() || cfg!(not(feature = "cuda")) {
        return Some(Refusal::Elsewhere);
    }
    if query.track_op() || others.into_iter().flatten().any(Tensor::track_op) {
        return Some(Refusal::Gradients);
    }
    let together = |other: &Tensor| query.device().same_device(other.device());
    (!others.into_iter().flatten().all(together)).then_some(Refusal::Shapes)
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::super::checks::element_type;
    use super::super::cuda::start;
    use super::super::fallback::is_served;
    use super::super::look::{look_at, Seen};
    use super::Operands;
    use crate::attention::problem::ALIGN;
    use crate::attention::{cache, launch, AttentionPlan, AttentionProblem, Described, Refusal, Views};
    use crate::device::CurrentContext;
    use candle_core::backend::BackendStorage;
    use candle_core::cuda_backend::{CudaDType, WrapErr};
    use candle_core::{bail, CpuStorage, CudaStorage, CustomOp3, DType, Device, Error, Layout, Result, Shape, Tensor};
    use cudarc::driver::{DevicePtrMut, DeviceRepr};
    use half::{bf16, f16};
    use std::cell::Cell;
    use std::sync::Arc;

    type Outcome<T> = std::result::Result<T, Refusal>;

    pub(super) fn plan(operands: &Operands<'_>) -> Result<Outcome<Arc<AttentionPlan>>> {
        let Operands {
            query,
            key,
            value,
            mask,
        } = *operands;
        let Device::Cuda(device) = query.device() else {
            return Ok(Err(Refusal::Elsewhere));
        };
        if !is_served(query.device())? {
            return Ok(Err(Refusal::Elsewhere));
        }
        let mask = mask.map(described);
        let problem = AttentionProblem::new(&described(query), &described(key), &described(value), mask.as_ref());
        let problem = match problem {
            Ok(problem) => problem,
            Err(refusal) => return Ok(Err(refusal)),
        };
        device.cuda_stream().context().bind_to_thread().w()?;
        let context = CurrentContext::get().map_err(Error::wrap)?;
        Ok(cache::plan(&context, problem).map_err(|refusal| Refusal::clone(&refusal)))
    }

    pub(super) fn attend(operands: Operands<'_>, scale: f64) -> Result<Outcome<Tensor>> {
        let plan = match plan(&operands)? {
            Ok(plan) => plan,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Operands {
            query,
            key,
            value,
            mask,
        } = operands;
        let op = Attend {
            plan,
            scale: scale as f32,
            mask,
            refusal: Cell::new(None),
        };
        match (query.apply_op3_no_bwd(key, value, &op), op.refusal.take()) {
            (_, Some(refusal)) => Ok(Err(refusal)),
            (result, None) => result.map(Ok),
        }
    }

    /// A tensor without the address of its storage.
    fn described(tensor: &Tensor) -> Described<'_> {
        let (layout, dtype) = (tensor.layout(), tensor.dtype());
        let start = layout.start_offset() * dtype.size_in_bytes();
        Described {
            dims: layout.dims(),
            strides: layout.stride(),
            dtype: element_type(dtype).ok(),
            align: 1 << start.trailing_zeros().min(ALIGN.trailing_zeros()),
        }
    }

    struct Attend<'a> {
        plan: Arc<AttentionPlan>,
        scale: f32,
        mask: Option<&'a Tensor>,
        /// Storages that candle has not allocated may start anywhere, which is seen here only.
        refusal: Cell<Option<Refusal>>,
    }

    const NAME: &str = "attend";

    type Seen3<'a> = Views<Option<(&'a CudaStorage, &'a Layout)>>;

    impl Attend<'_> {
        /// (…, queries, heads·width of a value).
        fn shape(query: &Layout, key: &Layout, value: &Layout) -> Result<Shape> {
            let batch = |layout: &Layout| Shape::from(&layout.dims()[..layout.dims().len() - 2]);
            let all = batch(query).broadcast_shape_binary_op(&batch(key), NAME)?;
            let all = all.broadcast_shape_binary_op(&batch(value), NAME)?;
            let ([outer @ .., heads], [.., queries, _], [.., width]) = (all.dims(), query.dims(), value.dims()) else {
                bail!("attention has heads");
            };
            Ok([outer, &[*queries, heads * width]].concat().into())
        }

        fn run<T: CudaDType + DeviceRepr>(&self, operands: Seen3<'_>) -> Result<(CudaStorage, Shape)> {
            let (Some(query), Some(key), Some(value)) = (operands.query, operands.key, operands.value) else {
                bail!("attention has queries, keys and values");
            };
            let device = query.0.device();
            let stream = device.cuda_stream();
            stream.context().bind_to_thread().w()?;
            let shape = Self::shape(query.1, key.1, value.1)?;
            let starts = operands.map(|operand| start(operand.map(|(storage, _)| storage), &stream));
            // The guards order this stream's work after what other streams still do with the operands.
            let Views {
                query,
                key,
                value,
                mask,
                ..
            } = starts;
            let ((query, _q_guard), (key, _k_guard), (value, _v_guard), (mask, _m_guard)) =
                (query?, key?, value?, mask?);
            let first = |storage: u64, layout: Option<(&CudaStorage, &Layout)>| {
                layout.map_or(0, |(_, layout)| {
                    storage + (layout.start_offset() * size_of::<T>()) as u64
                })
            };
            let (query, key, value) = (
                first(query, operands.query),
                first(key, operands.key),
                first(value, operands.value),
            );
            let mask = first(mask, operands.mask);
            for (operand, address, align) in [
                ("queries", query, u64::from(ALIGN)),
                ("keys", key, u64::from(ALIGN)),
                ("values", value, u64::from(ALIGN)),
                ("mask", mask, size_of::<T>() as u64),
            ] {
                if !address.is_multiple_of(align) {
                    self.refusal.set(Some(Refusal::Unaligned { operand }));
                    bail!("{operand} are not aligned");
                }
            }
            // SAFETY: every element is written by the launch below before anything reads it on this stream.
            let out = unsafe { device.alloc::<T>(shape.elem_count()) };
            let mut out =
                out.map_err(|error| error.context(format!("allocating attention's result of shape {shape:?}")))?;
            {
                let (out, _out_guard) = out.device_ptr_mut(&stream);
                let at = Views {
                    query,
                    key,
                    value,
                    mask,
                    out,
                };
                // SAFETY: candle's storages hold every element that their layouts reach, in device memory of this stream's context,
                // aligned as was just checked; the result is fresh memory of its size, which the allocator aligns to more than
                // `ALIGN`; the guards keep all of it until the stream has passed the launch.
                unsafe { launch::launch(&self.plan, &at, self.scale, stream.cu_stream()) }.map_err(Error::wrap)?;
            }
            Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), shape))
        }

        fn run_typed(&self, operands: Seen3<'_>) -> Result<(CudaStorage, Shape)> {
            match operands.query.map(|(storage, _)| storage.dtype()) {
                Some(DType::F16) => self.run::<f16>(operands),
                Some(DType::BF16) => self.run::<bf16>(operands),
                _ => self.run::<f32>(operands),
            }
        }
    }

    impl CustomOp3 for Attend<'_> {
        fn name(&self) -> &'static str {
            NAME
        }

        fn cpu_fwd(
            &self,
            _: &CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
        ) -> Result<(CpuStorage, Shape)> {
            bail!("attention on the CPU is two products and a softmax")
        }

        fn cuda_fwd(
            &self,
            query: &CudaStorage,
            query_layout: &Layout,
            key: &CudaStorage,
            key_layout: &Layout,
            value: &CudaStorage,
            value_layout: &Layout,
        ) -> Result<(CudaStorage, Shape)> {
            let operands = Views {
                query: Some((query, query_layout)),
                key: Some((key, key_layout)),
                value: Some((value, value_layout)),
                mask: None,
                out: None,
            };
            let Some(mask) = self.mask else {
                return self.run_typed(operands);
            };
            look_at(mask, |seen, layout| match seen {
                Seen::Cuda(storage) => {
                    let mask = Some((storage, layout));
                    self.run_typed(Views { mask, ..operands })
                }
                Seen::Cpu(_) => bail!("the mask is on the CPU and the other operands on a CUDA device"),
            })
        }
    }
}
