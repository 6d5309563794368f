//! Norms, softmax and argmax of tensors by one kernel each, where one takes them.

use crate::rowwise::Operation;
use candle_core::{Result, Tensor};

/// What a row-wise operation is given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands<'a> {
    pub x: &'a Tensor,
    /// Of a norm: a factor a column.
    pub weight: Option<&'a Tensor>,
    /// Of a norm: what is added to each column.
    pub bias: Option<&'a Tensor>,
}

impl Operands<'_> {
    fn each(&self) -> impl Iterator<Item = &Tensor> {
        [Some(self.x), self.weight, self.bias].into_iter().flatten()
    }

    /// Whether a gradient is to flow through the operation: a kernel has none.
    pub fn tracked(&self) -> bool {
        self.each().any(Tensor::track_op)
    }

    /// Whether types, devices and sizes are those of a kernel.
    fn fit(&self) -> bool {
        let (x, width) = (self.x, self.x.dims().last().copied());
        let of_columns = |t: &Tensor| t.rank() == 1 && t.dims().first().copied() == width && t.is_contiguous();
        x.device().is_cuda()
            && x.elem_count() > 0
            && self
                .each()
                .all(|t| t.dtype() == x.dtype() && t.device().same_device(x.device()))
            && [self.weight, self.bias].into_iter().flatten().all(of_columns)
    }
}

/// `operation` along the last dimension by one kernel, or `None` where candle is to do it: on the CPU, where a gradient is to flow, for
/// other types and for rows that are too long.
pub(super) fn by_one_kernel(operation: Operation, operands: Operands<'_>, epsilon: f64) -> Result<Option<Tensor>> {
    let differentiated = operation.has_gradient() && operands.tracked();
    if cfg!(not(feature = "cuda")) || differentiated || !operands.fit() {
        return Ok(None);
    }
    #[cfg(feature = "cuda")]
    return cuda::run(operation, operands, epsilon as f32);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (operation, epsilon);
        Ok(None)
    }
}

/// The softmax of x along the last dimension in the memory of x, which nobody else may be reading; `false` where no kernel takes it, and
/// then x is as it was.
pub(super) fn softmax_in_place(x: &Tensor) -> Result<bool> {
    let operands = Operands {
        x,
        weight: None,
        bias: None,
    };
    if cfg!(not(feature = "cuda")) || operands.tracked() || !operands.fit() || !x.is_contiguous() {
        return Ok(false);
    }
    #[cfg(feature = "cuda")]
    return cuda::in_place(x);
    #[cfg(not(feature = "cuda"))]
    Ok(false)
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::super::checks::element_type;
    use super::super::cuda::start;
    use super::super::fallback::is_served;
    use super::Operands;
    use crate::device::{CurrentContext, VECTOR_BYTES};
    use crate::rowwise::{launch, Operation, RowwisePlan, RowwiseProblem};
    use candle_core::backend::BackendStorage;
    use candle_core::cuda_backend::{CudaDType, WrapErr};
    use candle_core::{
        bail, CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Error, InplaceOp1, Layout, Result,
        Shape, Tensor,
    };
    use cudarc::driver::{DevicePtrMut, DeviceRepr};
    use half::{bf16, f16};
    use std::cell::Cell;

    pub(super) fn run(operation: Operation, operands: Operands<'_>, epsilon: f32) -> Result<Option<Tensor>> {
        let Operands { x, weight, bias } = operands;
        let Ok(dtype) = element_type(x.dtype()) else {
            return Ok(None);
        };
        let layout = x.layout();
        let walked = RowwiseProblem::new(operation, dtype, layout.dims(), layout.stride(), 1).is_some();
        // Candle's own argmax takes any strides.
        if !is_served(x.device())? || (!walked && operation == Operation::Argmax) {
            return Ok(None);
        }
        let gathered;
        let x = if walked {
            x
        } else {
            gathered = x.contiguous()?;
            &gathered
        };
        let op = OnRows {
            operation,
            epsilon,
            refused: Cell::new(false),
        };
        let result = match (weight, bias) {
            (Some(weight), Some(bias)) => x.apply_op3_no_bwd(weight, bias, &op),
            (Some(weight), None) => x.apply_op2_no_bwd(weight, &op),
            _ => x.apply_op1_no_bwd(&op),
        };
        match (result, op.refused.get()) {
            (_, true) => Ok(None),
            (result, false) => result.map(Some),
        }
    }

    pub(super) fn in_place(x: &Tensor) -> Result<bool> {
        if element_type(x.dtype()).is_err() || !is_served(x.device())? {
            return Ok(false);
        }
        let op = OnRows {
            operation: Operation::Softmax,
            epsilon: 0.0,
            refused: Cell::new(false),
        };
        match (x.inplace_op1(&op), op.refused.get()) {
            (_, true) => Ok(false),
            (result, false) => result.map(|()| true),
        }
    }

    struct OnRows {
        operation: Operation,
        epsilon: f32,
        /// No kernel takes it, which is seen with the addresses only.
        refused: Cell<bool>,
    }

    type Seen<'a> = (&'a CudaStorage, &'a Layout);

    impl OnRows {
        fn title(&self) -> &'static str {
            match self.operation {
                Operation::LayerNorm => "layer-norm",
                Operation::RmsNorm => "rms-norm",
                Operation::Softmax => "softmax",
                Operation::Argmax => "argmax",
            }
        }

        /// The shape of what becomes of a tensor.
        fn shape_of(&self, x: &Layout) -> Shape {
            match self.operation {
                Operation::Argmax => x.dims().split_last().map_or(&[][..], |(_, outer)| outer).into(),
                _ => x.shape().clone(),
            }
        }

        /// What is done with rows of this layout at these addresses, 0 of what is absent.
        fn plan(&self, dtype: DType, layout: &Layout, addresses: &[u64]) -> Result<RowwisePlan> {
            let context = CurrentContext::get().map_err(Error::wrap)?;
            let all = addresses.iter().fold(VECTOR_BYTES as u64, |all, address| all | address);
            let (dims, strides, align) = (layout.dims(), layout.stride(), 1 << all.trailing_zeros());
            let problem = RowwiseProblem::new(self.operation, element_type(dtype)?, dims, strides, align);
            let plan = problem.and_then(|problem| RowwisePlan::new(&problem, context.info()));
            plan.ok_or_else(|| {
                self.refused.set(true);
                Error::msg(format!("no kernel takes {} of {:?}", self.title(), layout.shape()))
            })
        }

        fn run_in_place<T: CudaDType + DeviceRepr>(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
            let (stream, dtype) = (storage.device().cuda_stream(), storage.dtype());
            stream.context().bind_to_thread().w()?;
            let (start, _guard) = T::as_cuda_slice_mut(storage)?.device_ptr_mut(&stream);
            let x = start + (layout.start_offset() * size_of::<T>()) as u64;
            let plan = self.plan(dtype, layout, &[x])?;
            // SAFETY: candle's storage holds every element that its layout reaches, in device memory of this stream's context, aligned
            // as was just seen; it is contiguous, so x and y have their rows in the same places; the guard keeps it until the stream has
            // passed the launch.
            unsafe { launch::launch(&plan, [x, x, 0, 0], self.epsilon, stream.cu_stream()) }.map_err(Error::wrap)
        }

        /// The operands are of type T, and the result of type Y.
        fn run<T, Y: CudaDType + DeviceRepr>(&self, operands: [Option<Seen<'_>>; 3]) -> Result<(CudaStorage, Shape)> {
            let [Some((storage, layout)), weight, bias] = operands else {
                bail!("{} has an operand", self.title());
            };
            let device = storage.device();
            let stream = device.cuda_stream();
            stream.context().bind_to_thread().w()?;
            // The guards order this stream's work after what other streams still do with the operands.
            let address = |seen: Option<Seen<'_>>, start: u64| {
                let first = seen.map_or(0, |(_, layout)| layout.start_offset() * size_of::<T>());
                start + first as u64
            };
            let (x, _x_guard) = start(Some(storage), &stream)?;
            let (weight_start, _weight_guard) = start(weight.map(|(storage, _)| storage), &stream)?;
            let (bias_start, _bias_guard) = start(bias.map(|(storage, _)| storage), &stream)?;
            let [x, weight, bias] = [
                address(Some((storage, layout)), x),
                address(weight, weight_start),
                address(bias, bias_start),
            ];
            let plan = self.plan(storage.dtype(), layout, &[x, weight, bias])?;
            let shape = self.shape_of(layout);
            // SAFETY: every element is written by the launch below before anything reads it on this stream.
            let y = unsafe { device.alloc::<Y>(shape.elem_count()) };
            let mut y = y.map_err(|error| error.context(format!("allocating a result of shape {shape:?}")))?;
            {
                let (y, _y_guard) = y.device_ptr_mut(&stream);
                // SAFETY: candle's storages hold every element that their layouts reach, in device memory of this stream's context,
                // aligned as was just seen; weight and bias have as many as a row, as `Operands::fit` says; y is fresh memory of its
                // size, which the allocator aligns to more than a vector; the guards keep all of it until the stream has passed the
                // launch.
                unsafe { launch::launch(&plan, [x, y, weight, bias], self.epsilon, stream.cu_stream()) }
                    .map_err(Error::wrap)?;
            }
            Ok((CudaStorage::wrap_cuda_slice(y, device.clone()), shape))
        }

        fn run_typed(&self, operands: [Option<Seen<'_>>; 3]) -> Result<(CudaStorage, Shape)> {
            let places = self.operation == Operation::Argmax;
            match operands[0].map(|(storage, _)| storage.dtype()) {
                Some(DType::F16) if places => self.run::<f16, u32>(operands),
                Some(DType::BF16) if places => self.run::<bf16, u32>(operands),
                _ if places => self.run::<f32, u32>(operands),
                Some(DType::F16) => self.run::<f16, f16>(operands),
                Some(DType::BF16) => self.run::<bf16, bf16>(operands),
                _ => self.run::<f32, f32>(operands),
            }
        }

        fn on_the_cpu(&self) -> Result<(CpuStorage, Shape)> {
            bail!("{} on the CPU is candle's", self.title())
        }
    }

    impl InplaceOp1 for OnRows {
        fn name(&self) -> &'static str {
            self.title()
        }

        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
            self.on_the_cpu().map(|_| ())
        }

        fn cuda_fwd(&self, x: &mut CudaStorage, layout: &Layout) -> Result<()> {
            match x.dtype() {
                DType::F16 => self.run_in_place::<f16>(x, layout),
                DType::BF16 => self.run_in_place::<bf16>(x, layout),
                _ => self.run_in_place::<f32>(x, layout),
            }
        }
    }

    impl CustomOp1 for OnRows {
        fn name(&self) -> &'static str {
            self.title()
        }

        fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
            self.on_the_cpu()
        }

        fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
            self.run_typed([Some((x, layout)), None, None])
        }
    }

    impl CustomOp2 for OnRows {
        fn name(&self) -> &'static str {
            self.title()
        }

        fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
            self.on_the_cpu()
        }

        fn cuda_fwd(
            &self,
            x: &CudaStorage,
            x_layout: &Layout,
            weight: &CudaStorage,
            weight_layout: &Layout,
        ) -> Result<(CudaStorage, Shape)> {
            self.run_typed([Some((x, x_layout)), Some((weight, weight_layout)), None])
        }
    }

    impl CustomOp3 for OnRows {
        fn name(&self) -> &'static str {
            self.title()
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
            self.on_the_cpu()
        }

        fn cuda_fwd(
            &self,
            x: &CudaStorage,
            x_layout: &Layout,
            weight: &CudaStorage,
            weight_layout: &Layout,
            bias: &CudaStorage,
            bias_layout: &Layout,
        ) -> Result<(CudaStorage, Shape)> {
            self.run_typed([
                Some((x, x_layout)),
                Some((weight, weight_layout)),
                Some((bias, bias_layout)),
            ])
        }
    }
}
