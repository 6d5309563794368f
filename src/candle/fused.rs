//! Layers by one kernel with what surrounds their product: the norm of the rows before it, where these are one or two, and the gate behind it.

use super::blocks::LayerNorm;
use super::matmul::Gemm;
use crate::gemm::Activation;
use candle_core::{Result, Tensor};

/// `activation(norm(x)·wᵀ + bias)`, or `activation(norm(x)·gᵀ + bias) ⊙ (norm(x)·uᵀ + bias)` of two weights g and u.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // nothing reads it where there are no kernels
pub(super) struct Fused<'a> {
    pub x: &'a Tensor,
    /// (out, in); where it is gated (2·out, in), rows of g and u in turn.
    pub weight: &'a Tensor,
    /// One element a row of the weight.
    pub bias: Option<&'a Tensor>,
    pub norm: Option<&'a LayerNorm>,
    pub activation: Activation,
    pub gated: bool,
}

impl Fused<'_> {
    /// By one kernel, or `None` where the caller is to do it step by step: on the CPU, where a gradient is to flow, where steps are
    /// faster, for more rows than such a kernel takes, operands that do not start on 16 bytes, a norm with a mean or a bias, and
    /// other types.
    pub fn by_one_kernel(&self, gemm: &Gemm) -> Result<Option<Tensor>> {
        #[cfg(feature = "cuda")]
        return cuda::run(self, gemm);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (gemm, self);
            Ok(None)
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::super::checks::element_type;
    use super::super::cuda::{self, Beside, Norm, Way};
    use super::super::fallback::is_served;
    use super::super::layout::{bias_stride, Arrangement, Asked, MatmulCall, MAX_ALIGN};
    use super::super::look::{look_at, Seen};
    use super::super::matmul::Gemm;
    use super::Fused;
    use crate::device::CurrentContext;
    use crate::gemm::kernel::spec::KernelSpec;
    use crate::gemm::kernel::table::TABLE;
    use crate::gemm::operands::Operands;
    use crate::gemm::{Activation, Combine, Precision};
    use candle_core::backend::BackendStorage;
    use candle_core::cuda_backend::WrapErr;
    use candle_core::{
        bail, CpuStorage, CudaStorage, CustomOp2, CustomOp3, DType, Device, Error, Layout, Result, Shape, Tensor,
    };
    use std::cell::Cell;
    use std::sync::OnceLock;

    const NAME: &str = "fused-layer";

    pub(super) fn run(layer: &Fused<'_>, gemm: &Gemm) -> Result<Option<Tensor>> {
        let norm = match layer.norm.map(|norm| norm.without_mean_and_bias()) {
            None => None,
            Some(Some(norm)) => Some(norm),
            Some(None) => return Ok(None),
        };
        let norm_weight = norm.map(|(weight, _)| weight);
        if !fits(layer, norm_weight, gemm) || !is_served(layer.x.device())? || !has_kernel(layer, gemm)? {
            return Ok(None);
        }
        let op = Op {
            norm: norm.map(|(weight, epsilon)| (weight.clone(), epsilon as f32)),
            activation: layer.activation,
            gated: layer.gated,
            out_dtype: gemm.out_dtype.unwrap_or(layer.x.dtype()),
            precision: gemm.arithmetic()?,
            kernel: gemm.kernel.clone(),
            tuned: gemm.tuned,
            alpha: gemm.alpha as f32,
            refused: Cell::new(false),
        };
        let w = layer.weight.t()?;
        let result = match layer.bias {
            Some(bias) => layer.x.apply_op3_no_bwd(&w, bias, &op),
            None => layer.x.apply_op2_no_bwd(&w, &op),
        };
        match (result, op.refused.get()) {
            (_, true) => Ok(None),
            (result, false) => result.map(Some),
        }
    }

    /// Whether types, devices, sizes and places are those of such a kernel. What is wrong with the rest, the steps will tell.
    fn fits(layer: &Fused<'_>, norm: Option<&Tensor>, gemm: &Gemm) -> bool {
        let Fused { x, weight, bias, .. } = *layer;
        let (dtype, Ok(element)) = (x.dtype(), element_type(x.dtype())) else {
            return false;
        };
        let &[outputs, width] = weight.dims() else {
            return false;
        };
        let others = || [Some(weight), bias, norm].into_iter().flatten();
        if !x.device().is_cuda() || x.track_op() || others().any(Tensor::track_op) || gemm.c.is_some() {
            return false;
        }
        let finer = |other: DType| other == dtype || other == DType::F32;
        let of_types = weight.dtype() == dtype
            && norm.is_none_or(|norm| norm.dtype() == dtype)
            && bias.is_none_or(|bias| finer(bias.dtype()))
            && gemm.out_dtype.is_none_or(finer);
        let of_sizes = x.rank() >= 2
            && x.dims().last() == Some(&width)
            && x.elem_count() > 0
            && outputs > 0
            && bias.is_none_or(|bias| bias.dims() == [outputs])
            && norm.is_none_or(|norm| norm.dims() == [width] && norm.is_contiguous());
        let beside = others().all(|other| other.device().same_device(x.device()));
        if !of_types || !of_sizes || !beside {
            return false;
        }
        let vector = MAX_ALIGN as usize / element.size();
        weight.stride()[1] == 1
            && weight.stride()[0].is_multiple_of(vector)
            && weight.layout().start_offset().is_multiple_of(vector)
    }

    /// Whether the device has a kernel for such a layer with so many rows. Seen here, so that a product that no kernel takes is not planned in
    /// vain each time.
    fn has_kernel(layer: &Fused<'_>, gemm: &Gemm) -> Result<bool> {
        let (Device::Cuda(device), Ok(element)) = (layer.x.device(), element_type(layer.x.dtype())) else {
            return Ok(false);
        };
        let rows = layer.x.elem_count() / layer.weight.dim(1)?.max(1);
        static WITH_MORE: OnceLock<Vec<&KernelSpec>> = OnceLock::new();
        let with_more = WITH_MORE.get_or_init(|| {
            let more = |spec: &&KernelSpec| spec.inside.norms() || spec.inside.gates();
            TABLE.iter().filter(more).collect()
        });
        let mut kernels = with_more.iter().filter(|spec| {
            let inside = match layer.norm {
                Some(_) => spec.inside.norms(),
                None => spec.inside.gates(),
            };
            inside
                && spec.dtype == element
                && gemm.kernel.as_ref().is_none_or(|name| spec.name == name)
                && (spec.needs.max_m == 0 || rows <= spec.needs.max_m as usize)
        });
        // Most layers have too many rows for any.
        let Some(first) = kernels.next() else {
            return Ok(false);
        };
        device.cuda_stream().context().bind_to_thread().w()?;
        let context = CurrentContext::get().map_err(Error::wrap)?;
        Ok(std::iter::once(first)
            .chain(kernels)
            .any(|spec| spec.needs.are_met_by(context.info())))
    }

    struct Op {
        /// The weight of the norm and ε.
        norm: Option<(Tensor, f32)>,
        activation: Activation,
        gated: bool,
        out_dtype: DType,
        precision: Precision,
        kernel: Option<String>,
        tuned: bool,
        alpha: f32,
        /// No kernel takes it, or one for each step is faster, which is seen with the addresses only.
        refused: Cell<bool>,
    }

    type Storage<'a> = (&'a CudaStorage, &'a Layout);

    impl Op {
        fn run(&self, a: Storage<'_>, b: Storage<'_>, bias: Option<Storage<'_>>) -> Result<(CudaStorage, Shape)> {
            let Some((weight, epsilon)) = &self.norm else {
                return self.run_with(a, b, bias, None);
            };
            look_at(weight, |seen, layout| match seen {
                Seen::Cuda(weight) => {
                    let norm = Norm {
                        weight,
                        first: layout.start_offset(),
                        epsilon: *epsilon,
                    };
                    self.run_with(a, b, bias, Some(norm))
                }
                Seen::Cpu(_) => bail!("the weight of the norm is on the CPU and the other operands on a CUDA device"),
            })
        }

        fn run_with(
            &self,
            a: Storage<'_>,
            b: Storage<'_>,
            bias: Option<Storage<'_>>,
            norm: Option<Norm<'_>>,
        ) -> Result<(CudaStorage, Shape)> {
            let operands = Operands {
                a: Some(a),
                b: Some(b),
                bias,
                ..Operands::default()
            };
            let factors = element_type(a.0.dtype())?;
            let layouts = operands.map(|operand| operand.map(|(_, layout)| layout));
            let asked = Asked {
                types: Operands {
                    a: factors,
                    b: factors,
                    c: factors,
                    d: element_type(self.out_dtype)?,
                    bias: bias.map_or(Ok(factors), |(bias, _)| element_type(bias.dtype()))?,
                    residual: factors,
                },
                precision: self.precision,
                activation: self.activation,
                combine: Combine::Add,
                arrangement: Arrangement::InTurn,
                normed: norm.is_some(),
                gated: self.gated,
            };
            let call = MatmulCall::new(&layouts, &asked)?;
            let way = Way {
                kernel: self.kernel.as_deref(),
                tuned: self.tuned,
                refused: Some(&self.refused),
            };
            let beside = Beside {
                alpha: self.alpha,
                beta: 0.0,
                bias_stride: bias_stride(layouts.bias),
                norm,
            };
            let storages = operands.map(|operand| operand.map(|(storage, _)| storage));
            Ok((cuda::run(&call, way, &storages, beside)?, call.shape))
        }

        fn on_the_cpu(&self) -> Result<(CpuStorage, Shape)> {
            bail!("{NAME} on the CPU is done step by step")
        }
    }

    impl CustomOp2 for Op {
        fn name(&self) -> &'static str {
            NAME
        }

        fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
            self.on_the_cpu()
        }

        fn cuda_fwd(
            &self,
            a: &CudaStorage,
            a_layout: &Layout,
            b: &CudaStorage,
            b_layout: &Layout,
        ) -> Result<(CudaStorage, Shape)> {
            self.run((a, a_layout), (b, b_layout), None)
        }
    }

    impl CustomOp3 for Op {
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
            self.on_the_cpu()
        }

        fn cuda_fwd(
            &self,
            a: &CudaStorage,
            a_layout: &Layout,
            b: &CudaStorage,
            b_layout: &Layout,
            bias: &CudaStorage,
            bias_layout: &Layout,
        ) -> Result<(CudaStorage, Shape)> {
            self.run((a, a_layout), (b, b_layout), Some((bias, bias_layout)))
        }
    }
}
