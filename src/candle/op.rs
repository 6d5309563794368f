//! The custom op behind products: forward on the CPU and on CUDA devices, and backward.

use super::activation::{self, for_gradients};
use super::call::Call;
use super::checks::{element_type, same_kind, NAME};
#[cfg(feature = "cuda")]
use super::cuda;
use super::fallback::is_served;
use super::gradient::{operand_gradients, sum_to};
use super::layout::{bias_stride, result_shape, Arrangement, Asked, MatmulCall};
use super::look::{look_at, Seen};
use super::stock::stock;
use crate::gemm::kernel::table;
use crate::gemm::operands::{DType as ElementType, Operands};
use crate::gemm::{cpu, Activation, Combine, Precision};
use candle_core::backend::BackendStorage;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{bail, CpuStorage, CustomOp2, CustomOp3, DType, Error, Layout, Result, Shape, Tensor};
use std::sync::OnceLock;

/// `activation(α·A·B)`, with `β·C` or a bias added inside where there is a third operand, and a residual or a factor outside.
#[derive(Clone, Debug)]
pub(super) struct Op {
    pub precision: Precision,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // the CPU path has no kernels to choose from
    pub kernel: Option<String>,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // as above
    pub tuned: bool,
    pub alpha: f64,
    pub beta: f64,
    /// Whether the third operand, where there is one, is a bias of n elements; else it is C, in the shape of the result.
    pub third_is_bias: bool,
    /// What the result is, if not what the factors are.
    pub out_dtype: Option<DType>,
    pub activation: Activation,
    /// In the shape of the result. No gradient flows to it.
    pub residual: Option<Tensor>,
    /// What is done with it.
    pub combine: Combine,
    /// How the result lies in memory. There is no bias, activation or residual unless its matrices lie in turn.
    pub arrangement: Arrangement,
}

impl Op {
    /// `α·A·B`, by a kernel that the plan chooses.
    pub(super) fn new(precision: Precision, alpha: f64) -> Self {
        Op {
            precision,
            kernel: None,
            tuned: false,
            alpha,
            beta: 0.0,
            third_is_bias: false,
            out_dtype: None,
            activation: Activation::Identity,
            residual: None,
            combine: Combine::Add,
            arrangement: Arrangement::InTurn,
        }
    }

    /// A and B, the third operand and the residual, each in its place.
    fn operands<T>(&self, a: T, b: T, third: Option<T>, residual: Option<T>) -> Operands<Option<T>> {
        let (c, bias) = match self.third_is_bias {
            false => (third, None),
            true => (None, third),
        };
        Operands {
            a: Some(a),
            b: Some(b),
            c,
            d: None,
            bias,
            residual,
        }
    }

    /// What is asked of the product of operands of these types.
    fn asked(&self, dtypes: Operands<Option<DType>>) -> Result<Asked> {
        let factors = match dtypes.a {
            Some(dtype) => element_type(dtype)?,
            None => bail!("a product has two factors, and one of them is missing"),
        };
        let of = |dtype: Option<DType>| dtype.map_or(Ok(factors), element_type);
        Ok(Asked {
            types: Operands {
                a: factors,
                b: of(dtypes.b)?,
                c: of(dtypes.c)?,
                d: of(self.out_dtype)?,
                bias: of(dtypes.bias)?,
                residual: of(dtypes.residual)?,
            },
            precision: self.precision,
            activation: self.activation,
            combine: self.combine,
            arrangement: self.arrangement,
            normed: false,
            gated: false,
        })
    }

    fn cpu(
        &self,
        a: (&CpuStorage, &Layout),
        b: (&CpuStorage, &Layout),
        third: Option<(&CpuStorage, &Layout)>,
    ) -> Result<(CpuStorage, Shape)> {
        let Some(residual) = &self.residual else {
            return self.cpu_with(self.operands(a, b, third, None));
        };
        look_at(residual, |seen, layout| match seen {
            Seen::Cpu(storage) => self.cpu_with(self.operands(a, b, third, Some((storage, layout)))),
            Seen::Cuda(_) => bail!("the residual is on a CUDA device and the other operands on the CPU"),
        })
    }

    fn cpu_with(&self, operands: Operands<Option<(&CpuStorage, &Layout)>>) -> Result<(CpuStorage, Shape)> {
        let layouts = operands.map(|operand| operand.map(|(_, layout)| layout));
        let asked = self.asked(operands.map(|operand| operand.map(|(storage, _)| storage.dtype())))?;
        let call = MatmulCall::new(&layouts, &asked)?;
        let elements = Operands {
            a: cpu_elements(operands.a)?,
            b: cpu_elements(operands.b)?,
            c: cpu_elements(operands.c)?,
            d: cpu::Elements::default(),
            bias: cpu_elements(operands.bias)?,
            residual: cpu_elements(operands.residual)?,
        };
        let launches = call.launches().map(|at| cpu::CpuOperands {
            elements: elements.zip(at).map(|(elements, at)| elements.starting_at(at)),
            bias_stride: bias_stride(layouts.bias),
            alpha: self.alpha as f32,
            beta: self.beta as f32,
        });
        let explain =
            |error| Error::wrap(error).context(format!("the result of shape {:?} cannot be computed", call.shape));
        let problem = &call.problem.with_fewest_dims();
        let storage = match asked.types.d {
            ElementType::F16 => CpuStorage::F16(cpu::gemm_to_vec(problem, launches, threads()).map_err(explain)?),
            ElementType::BF16 => CpuStorage::BF16(cpu::gemm_to_vec(problem, launches, threads()).map_err(explain)?),
            _ => CpuStorage::F32(cpu::gemm_to_vec(problem, launches, threads()).map_err(explain)?),
        };
        Ok((storage, call.shape))
    }

    #[cfg(feature = "cuda")]
    fn cuda(
        &self,
        a: (&CudaStorage, &Layout),
        b: (&CudaStorage, &Layout),
        third: Option<(&CudaStorage, &Layout)>,
    ) -> Result<(CudaStorage, Shape)> {
        let Some(residual) = &self.residual else {
            return self.cuda_with(self.operands(a, b, third, None));
        };
        look_at(residual, |seen, layout| match seen {
            Seen::Cuda(storage) => self.cuda_with(self.operands(a, b, third, Some((storage, layout)))),
            Seen::Cpu(_) => bail!("the residual is on the CPU and the other operands on a CUDA device"),
        })
    }

    #[cfg(feature = "cuda")]
    fn cuda_with(&self, operands: Operands<Option<(&CudaStorage, &Layout)>>) -> Result<(CudaStorage, Shape)> {
        let layouts = operands.map(|operand| operand.map(|(_, layout)| layout));
        let asked = self.asked(operands.map(|operand| operand.map(|(storage, _)| storage.dtype())))?;
        let call = MatmulCall::new(&layouts, &asked)?;
        let beside = cuda::Beside {
            alpha: self.alpha as f32,
            beta: self.beta as f32,
            bias_stride: bias_stride(layouts.bias),
            norm: None,
        };
        let way = cuda::Way {
            kernel: self.kernel.as_deref(),
            tuned: self.tuned,
            refused: None,
        };
        let storages = operands.map(|operand| operand.map(|(storage, _)| storage));
        let result = cuda::run(&call, way, &storages, beside)?;
        Ok((result, call.shape))
    }

    /// What errors in the gradients are to say.
    fn explain_gradient<T>(&self, a: &Tensor, b: &Tensor, third: Option<&Tensor>, result: Result<T>) -> Result<T> {
        let call = Call {
            name: NAME,
            operands: &[
                ("a", Some(a)),
                ("b", Some(b)),
                (if self.third_is_bias { "bias" } else { "C" }, third),
                (extra_name(Some(self.combine)), self.residual.as_ref()),
            ],
        };
        call.explain_gradient(result)
    }

    /// The gradient of what the activation is applied to. That is computed anew rather than kept.
    fn through_activation(
        &self,
        a: &Tensor,
        b: &Tensor,
        third: Option<&Tensor>,
        result: &Tensor,
        grad: &Tensor,
    ) -> Result<Tensor> {
        let grad = match (&self.residual, self.combine) {
            (Some(factor), Combine::Multiply) => &(grad * factor.to_dtype(grad.dtype())?)?,
            _ => grad,
        };
        if self.activation == Activation::Identity {
            return Ok(grad.clone());
        }
        let before = || {
            let op = Op {
                activation: Activation::Identity,
                residual: None,
                ..self.clone()
            };
            match third {
                Some(third) => for_gradients(a).apply_op3(&for_gradients(b), &for_gradients(third), op),
                None => for_gradients(a).apply_op2(&for_gradients(b), op),
            }
        };
        let after = match &self.residual {
            // What the residual's rounding swallowed cannot be had back by subtraction.
            Some(_) => activation::apply(self.activation, &before()?)?,
            None => for_gradients(result),
        };
        activation::gradient(self.activation, before, &after, grad)
    }

    /// A product that is a gradient: with the same precision, α and tuning.
    fn backward(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let shape = result_shape(a.shape(), b.shape())?;
        same_kind(("a", a), ("b", b))?;
        if !computes(a, &shape)? {
            return stock(a, b, self.alpha, None, None)?.contiguous();
        }
        let op = Op {
            tuned: self.tuned,
            ..Op::new(self.precision, self.alpha)
        };
        a.apply_op2(b, op)
    }
}

impl CustomOp2 for Op {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        a_layout: &Layout,
        b: &CpuStorage,
        b_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.cpu((a, a_layout), (b, b_layout), None)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        a_layout: &Layout,
        b: &CudaStorage,
        b_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.cuda((a, a_layout), (b, b_layout), None)
    }

    fn bwd(&self, a: &Tensor, b: &Tensor, result: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradients = || {
            let (result, grad) = (in_memory(result, self.arrangement)?, in_memory(grad, self.arrangement)?);
            let grad = self.through_activation(a, b, None, &result, &grad)?;
            operand_gradients(a, b, &grad, |a, b| self.backward(a, b))
        };
        self.explain_gradient(a, b, None, gradients())
    }
}

impl CustomOp3 for Op {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        a_layout: &Layout,
        b: &CpuStorage,
        b_layout: &Layout,
        third: &CpuStorage,
        third_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.cpu((a, a_layout), (b, b_layout), Some((third, third_layout)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        a_layout: &Layout,
        b: &CudaStorage,
        b_layout: &Layout,
        third: &CudaStorage,
        third_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.cuda((a, a_layout), (b, b_layout), Some((third, third_layout)))
    }

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        third: &Tensor,
        result: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradients = || {
            let (result, grad) = (in_memory(result, self.arrangement)?, in_memory(grad, self.arrangement)?);
            let grad = self.through_activation(a, b, Some(third), &result, &grad)?;
            let (a_grad, b_grad) = operand_gradients(a, b, &grad, |a, b| self.backward(a, b))?;
            let third_grad = match (third.track_op(), self.third_is_bias) {
                (false, _) => None,
                (true, false) => Some(grad.affine(self.beta, 0.0)?.to_dtype(third.dtype())?),
                (true, true) => Some(sum_to(grad.clone(), third.shape())?.to_dtype(third.dtype())?),
            };
            Ok((a_grad, b_grad, third_grad))
        };
        self.explain_gradient(a, b, Some(third), gradients())
    }
}

/// Whether this crate computes a product with the operand `a` and a result of this shape, by a kernel that the plan chooses, or
/// candle does.
pub(super) fn computes(a: &Tensor, shape: &Shape) -> Result<bool> {
    let dtype = element_type(a.dtype());
    let multiplied = dtype.is_ok_and(|dtype| a.device().is_cpu() || table::multiplies(dtype, false));
    Ok(multiplied && !is_empty(a, shape) && is_served(a.device())?)
}

/// Whether the operand `a` has no elements, or a result of this shape. Not by counting: a broadcast operand may have more elements than
/// there are numbers.
pub(super) fn is_empty(a: &Tensor, shape: &Shape) -> bool {
    shape.dims().contains(&0) || a.dims().contains(&0)
}

/// What a layer calls the operand that is combined with its result.
pub(super) fn extra_name(combine: Option<Combine>) -> &'static str {
    match combine {
        Some(Combine::Multiply) => "gate",
        Some(Combine::Add) | None => "residual",
    }
}

/// The view of a product (…, batch, m, n) as it lies in memory under this arrangement, and of what lies so as the product.
pub(super) fn in_memory(t: &Tensor, arrangement: Arrangement) -> Result<Tensor> {
    match (arrangement, t.rank()) {
        (Arrangement::SideBySide, rank @ 3..) => t.transpose(rank - 3, rank - 2),
        _ => Ok(t.clone()),
    }
}

/// The threads that candle would use. Candle asks the system at every call, which takes longer than a small product.
fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(candle_core::utils::get_num_threads)
}

/// The data of an operand, none where there is none.
fn cpu_elements<'a>(operand: Option<(&'a CpuStorage, &Layout)>) -> Result<cpu::Elements<'a>> {
    match operand {
        None => Ok(cpu::Elements::default()),
        Some((CpuStorage::F32(elements), _)) => Ok(cpu::Elements::F32(elements)),
        Some((CpuStorage::F16(elements), _)) => Ok(cpu::Elements::F16(elements)),
        Some((CpuStorage::BF16(elements), _)) => Ok(cpu::Elements::BF16(elements)),
        Some((other, _)) => bail!("{:?} matrices are not multiplied here", other.dtype()),
    }
}
