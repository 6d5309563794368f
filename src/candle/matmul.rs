//! `matmul` and its builder.

use super::activation;
use super::call::Call;
use super::checks::{element_type, fits_beside, is_16_bit, same_kind, with_bias};
use super::layout::{result_shape, Arrangement};
use super::op::{computes, extra_name, in_memory, is_empty, Op};
use super::stock::{converted, stock};
use crate::gemm::kernel::spec::EpilogueSupport;
use crate::gemm::kernel::table;
use crate::gemm::{Activation, Combine, Precision};
use crate::settings::Settings;
use candle_core::{bail, DType, Error, Result, Shape, Tensor, D};

/// `a·b`: `Tensor::matmul` with this crate's kernels, at their default precision.
///
/// - `a` is (…, m, k), `b` is (…, k, n), the result is (…, m, n), dense. Batch dimensions, of any number, are broadcast
///   against each other without a copy; the ranks need not agree. The shape is that of `Tensor::broadcast_matmul`.
///   `Tensor::matmul` itself broadcasts nothing: it takes batch dimensions of equal rank and equal product, whatever they
///   are, pairs the matrices in order and keeps the dimensions of `a`. So (1, 6, 4, 5)·(6, 1, 5, 3) is (6, 6, 4, 3) here, all
///   pairs, and (1, 6, 4, 3) there; and (2, 3, 4, 5)·(3, 2, 5, 3), which it takes, is an error here.
/// - Operands are views with any strides: transposed, narrowed, padded or broadcast ones are not copied.
/// - Gradients flow through both operands.
/// - `f32`, `f16` or `bf16` on a CPU or, with the feature `cuda`, on a CUDA device of compute capability 8.0 and newer is
///   computed here. Sums are FP32, of 16-bit operands too, and the result is rounded once. Everything else (other dtypes and
///   devices, empty tensors) goes to candle's own matmul, made contiguous where that needs it.
///
/// # Errors
///
/// As `Tensor::matmul`: a rank below 2, shapes, dtypes or devices that don't fit. The text names the call and the shapes and
/// dtypes of all that it was given; so it does for every product and layer of this crate.
///
/// ```
/// use candle_core::{Device, Tensor};
///
/// let a = Tensor::randn(0f32, 1., (8, 3, 64, 32), &Device::Cpu)?;
/// let b = Tensor::randn(0f32, 1., (10, 32), &Device::Cpu)?;
/// let c = candle_sgemm::matmul(&a, &b.t()?)?; // `b` is shared by the batch and stays where it is
/// assert_eq!(c.dims(), [8, 3, 64, 10]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    Gemm::new().matmul_as("matmul", a, b)
}

/// [`matmul`] as a method of `Tensor`.
pub trait SgemmExt {
    /// `self·rhs`: see [`matmul`].
    ///
    /// # Errors
    ///
    /// As [`matmul`].
    fn sgemm(&self, rhs: &Tensor) -> Result<Tensor>;
}

impl SgemmExt for Tensor {
    fn sgemm(&self, rhs: &Tensor) -> Result<Tensor> {
        matmul(self, rhs)
    }
}

/// A product `α·A·B + β·C` with its settings: kernel, precision, α, β and C.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_sgemm::{Gemm, Precision};
///
/// let a = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
/// let c = Tensor::new(&[10f32, 20.], &Device::Cpu)?;
/// let d = Gemm::new()
///     .precision(Precision::Fp32Strict)
///     .alpha(2.0)
///     .c(&c, 0.5) // broadcast to the shape of the result
///     .matmul(&a, &a)?;
/// assert_eq!(d.to_vec2::<f32>()?, [[19., 30.], [35., 54.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gemm {
    pub(super) kernel: Option<String>,
    precision: Option<Precision>,
    pub(super) tuned: bool,
    pub(super) alpha: f64,
    pub(super) c: Option<(Tensor, f64)>,
    pub(super) out_dtype: Option<DType>,
}

impl Default for Gemm {
    fn default() -> Self {
        Gemm::new()
    }
}

impl Gemm {
    /// `A·B` at the default precision, with the kernel that the plan chooses.
    pub fn new() -> Self {
        Gemm {
            kernel: None,
            precision: None,
            tuned: false,
            alpha: 1.0,
            c: None,
            out_dtype: None,
        }
    }

    /// Uses the kernel of this name and no other; a product that it can't take is then refused with the reason,
    /// and so is a name that the table lacks, by [`matmul`](Self::matmul). The backward pass keeps the precision and chooses its own kernels, for its operands are laid out differently.
    pub fn kernel(self, name: impl Into<String>) -> Self {
        Gemm {
            kernel: Some(name.into()),
            ..self
        }
    }

    /// What arithmetic may be used on a GPU. The CPU computes FP32 multiply-adds at any setting.
    ///
    /// Unless set here, it is what the environment variable `CANDLE_SGEMM_PRECISION` says (`fp32`, `fp32-strict` or
    /// `tf32`), else [`Precision::Tf32`] if candle was told to reduce the precision of FP32 products
    /// (`candle_core::cuda::set_gemm_reduced_precision_f32`) and NVIDIA's `NVIDIA_TF32_OVERRIDE=0` does not forbid that, else
    /// [`Precision::Fp32`].
    pub fn precision(self, precision: Precision) -> Self {
        Gemm {
            precision: Some(precision),
            ..self
        }
    }

    /// Chooses the kernel by measuring: the first product of a new shape times the planner's candidates on the device (some
    /// milliseconds, waiting for the device) and keeps the winner, in this process and in a file for the next ones. A
    /// kernel that was asked for by name is used all the same, and while a CUDA graph is being captured nothing is
    /// measured, but what is known counts.
    ///
    /// The environment variable `CANDLE_SGEMM_TUNE=1` asks for it everywhere. The file lies in the user's cache folder, or
    /// where `CANDLE_SGEMM_CACHE` says, and is named after the GPU and the versions of CUDA, driver and this crate.
    pub fn tuned(self) -> Self {
        Gemm { tuned: true, ..self }
    }

    /// The factor of A·B, 1 unless set.
    pub fn alpha(self, alpha: f64) -> Self {
        Gemm { alpha, ..self }
    }

    /// Adds β·C. C is broadcast to the shape of the result without a copy; with β = 0 it is not read.
    pub fn c(self, c: &Tensor, beta: f64) -> Self {
        Gemm {
            c: Some((c.clone(), beta)),
            ..self
        }
    }

    /// What several products can share: kernel, precision and tuning. α, C and the result's type are one product's own.
    pub(super) fn shared(&self) -> Self {
        Gemm {
            kernel: self.kernel.clone(),
            precision: self.precision,
            tuned: self.tuned,
            ..Gemm::new()
        }
    }

    /// Whether two products with these settings could be one. C is one product's own.
    pub(super) fn says_the_same_as(&self, other: &Gemm) -> bool {
        let Gemm {
            kernel,
            precision,
            tuned,
            alpha,
            c,
            out_dtype,
        } = self;
        c.is_none()
            && other.c.is_none()
            && (kernel, precision, tuned) == (&other.kernel, &other.precision, &other.tuned)
            && (alpha, out_dtype) == (&other.alpha, &other.out_dtype)
    }

    /// Whether the products have a kernel of the caller's choice.
    pub(super) fn names_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// The type of the result: that of the factors unless set here, or `F32` for factors of `F16` or `BF16`, whose sums are FP32
    /// and then not rounded.
    pub fn out_dtype(self, dtype: DType) -> Self {
        Gemm {
            out_dtype: Some(dtype),
            ..self
        }
    }

    /// Computes `α·a·b + β·C`: see [`matmul`](crate::matmul) for shapes, views and dtypes. Gradients flow through C too.
    ///
    /// # Errors
    ///
    /// As [`matmul`](crate::matmul); a C that can't be broadcast or has another dtype or device; a kernel name that the
    /// table lacks (the text lists the names); a kernel that was asked for and can't take this product.
    pub fn matmul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.matmul_as("Gemm::matmul", a, b)
    }

    /// [`matmul`](Self::matmul), which errors call `name`.
    fn matmul_as(&self, name: &'static str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let c = self.c.as_ref().map(|(c, _)| c);
        let call = Call {
            name,
            operands: &[("a", Some(a)), ("b", Some(b)), ("C", c)],
        };
        call.explain(self.product(a, b))
    }

    /// [`matmul`](Self::matmul) with the products of the last batch dimension side by side: (…, h, m, k)·(…, h, k, n) is
    /// (…, m, h·n), row by row. They are written there, not moved: it is what attention's heads become before their output
    /// projection.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_sgemm::Gemm;
    ///
    /// let weights = Tensor::new(&[[[1f32, 0.], [0., 1.]], [[0., 1.], [1., 0.]]], &Device::Cpu)?; // two heads, two rows
    /// let values = Tensor::new(&[[[1f32], [2.]], [[3.], [4.]]], &Device::Cpu)?; // a number wide
    /// let context = Gemm::new().matmul_side_by_side(&weights, &values)?;
    /// assert_eq!(context.to_vec2::<f32>()?, [[1., 4.], [2., 3.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`matmul`](Self::matmul); a product without a batch dimension.
    pub fn matmul_side_by_side(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let call = Call {
            name: "Gemm::matmul_side_by_side",
            operands: &[("a", Some(a)), ("b", Some(b)), ("C", self.c.as_ref().map(|(c, _)| c))],
        };
        let product = || {
            if a.rank().max(b.rank()) < 3 {
                bail!(
                    "products are put side by side along their last batch dimension, and these have none: use matmul"
                );
            }
            self.arranged(a, b, Arrangement::SideBySide)?.flatten_from(D::Minus2)
        };
        call.explain(product())
    }

    fn product(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.arranged(a, b, Arrangement::InTurn)
    }

    /// The product as it lies in memory, dense.
    fn arranged(&self, a: &Tensor, b: &Tensor, arrangement: Arrangement) -> Result<Tensor> {
        let shape = result_shape(a.shape(), b.shape())?;
        same_kind(("a", a), ("b", b))?;
        self.check_out_dtype(a.dtype())?;
        let c = match &self.c {
            Some((c, beta)) => {
                fits_beside(("a", a), ("C", c))?;
                let c = c
                    .broadcast_as(&shape)
                    .map_err(|error| error.context(format!("C can't be broadcast to the product's {shape:?}")))?;
                (*beta != 0.0).then_some((c, *beta))
            }
            None => None,
        };
        if !self.computes(a, &shape)? {
            let product = stock(a, b, self.alpha, c, self.out_dtype)?;
            return in_memory(&product, arrangement)?.contiguous();
        }
        let op = Op {
            arrangement,
            beta: c.as_ref().map_or(0.0, |(_, beta)| *beta),
            ..self.op()?
        };
        match c {
            Some((c, _)) => a.apply_op3(b, &c, op),
            None => a.apply_op2(b, op),
        }
    }

    /// `activation(x·wᵀ + bias)` for `w` (n, k) and a bias of n elements, plus or times a residual that can be broadcast to
    /// the result, all in one kernel where that can be. Errors call it `name`.
    pub(crate) fn linear(
        &self,
        name: &'static str,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        activation: Activation,
        residual: Option<(Combine, &Tensor)>,
    ) -> Result<Tensor> {
        let call = Call {
            name,
            operands: &[
                ("x", Some(x)),
                ("weight", Some(w)),
                ("bias", bias),
                ("C", self.c.as_ref().map(|(c, _)| c)),
                (
                    extra_name(residual.map(|(combine, _)| combine)),
                    residual.map(|(_, t)| t),
                ),
            ],
        };
        call.explain(self.layer(x, w, bias, activation, residual))
    }

    fn layer(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        activation: Activation,
        residual: Option<(Combine, &Tensor)>,
    ) -> Result<Tensor> {
        if weight.rank() < 2 {
            bail!("the weight has shape {:?} where a layer's is (out, in)", weight.shape());
        }
        let combine = residual.map_or(Combine::Add, |(combine, _)| combine);
        let what = extra_name(Some(combine));
        let w = weight.t()?;
        let shape = result_shape(x.shape(), w.shape())
            .map_err(|error| error.context("the product of x, as a, and the weight transposed, as b"))?;
        let others = [
            ("weight", Some(weight)),
            ("bias", bias),
            (what, residual.map(|(_, t)| t)),
        ];
        for (name, other) in others {
            if let Some(other) = other {
                match name {
                    "weight" => same_kind(("x", x), (name, other))?,
                    _ => fits_beside(("x", x), (name, other))?,
                }
            }
        }
        let row = [shape.dims()[shape.rank() - 1]];
        let result = match bias {
            Some(bias) if bias.dims() != row => with_bias(&shape, bias.shape())?,
            _ => shape.clone(),
        };
        let residual = match residual {
            Some((_, residual)) => Some(residual.broadcast_as(&result).map_err(|error| {
                error.context(format!(
                    "the {what} can't be broadcast to the layer's result {result:?}"
                ))
            })?),
            None => None,
        };
        let with_residual = |y: Tensor, residual: Option<Tensor>| match (residual, combine) {
            (None, _) => Ok(y),
            (Some(residual), Combine::Add) => &y + converted(&residual, y.dtype())?,
            (Some(residual), Combine::Multiply) => &y * converted(&residual, y.dtype())?,
        };
        // ReLU's slope at 0 is 1 in candle, and its result does not tell the 0 of 0 from that of a negative number. Where a
        // gradient is to flow through it, to keep what it was applied to is cheaper than to compute that anew.
        let tracked = [Some(x), Some(&w), bias].into_iter().flatten().any(Tensor::track_op);
        if activation == Activation::Relu && tracked {
            let y = self.layer(x, weight, bias, Activation::Identity, None)?;
            return with_residual(activation::apply(activation, &y)?, residual);
        }
        // A bias of another shape is broadcast as candle broadcasts it; C and a bias would be four operands.
        let fits = self.c.is_none() && bias.is_none_or(|bias| bias.dims() == row);
        let plain = bias.is_none() && activation == Activation::Identity && residual.is_none();
        if plain || !fits || !self.computes(x, &shape)? || !self.fuses(x) {
            let mut y = self.product(x, &w)?;
            if let Some(bias) = bias {
                y = y.broadcast_add(&converted(bias, y.dtype())?)?;
            }
            return with_residual(activation::apply(activation, &y)?, residual);
        }
        // A custom op has three operands. One that no gradient flows to need not be among them. (And the gradients of a
        // product want both of its factors: they had better be kept than computed anew.)
        let (inside, outside) = match residual {
            Some(residual) if residual.track_op() => (None, Some(residual)),
            residual => (residual, None),
        };
        let op = Op {
            third_is_bias: true,
            activation,
            residual: inside,
            combine,
            ..self.op()?
        };
        let y = match bias {
            Some(bias) => x.apply_op3(&w, bias, op)?,
            None => x.apply_op2(&w, op)?,
        };
        with_residual(y, outside)
    }

    /// What arithmetic may be used, where it was not set, too.
    pub(super) fn arithmetic(&self) -> Result<Precision> {
        self.precision.map_or_else(default_precision, Ok)
    }

    /// `α·A·B` with these settings.
    fn op(&self) -> Result<Op> {
        Ok(Op {
            kernel: self.kernel.clone(),
            tuned: self.tuned,
            out_dtype: self.out_dtype,
            ..Op::new(self.arithmetic()?, self.alpha)
        })
    }

    /// Whether bias, activation and residual can be part of the product on this device. Rungs of the ladder compute α·A·B + β·C only.
    fn fuses(&self, x: &Tensor) -> bool {
        let fuses = || match &self.kernel {
            Some(name) => table::find(name).is_ok_and(|spec| spec.epilogue == EpilogueSupport::Fused),
            None => element_type(x.dtype()).is_ok_and(|dtype| table::multiplies(dtype, true)),
        };
        x.device().is_cpu() || fuses()
    }

    /// # Errors
    ///
    /// A result of a type that products of such factors do not have.
    fn check_out_dtype(&self, factors: DType) -> Result<()> {
        match self.out_dtype {
            Some(out) if out != factors && !(is_16_bit(factors) && out == DType::F32) => bail!(
                "products of {factors:?} matrices are {factors:?}{}, not {out:?}: convert the result with to_dtype",
                if is_16_bit(factors) { " or F32" } else { "" }
            ),
            _ => Ok(()),
        }
    }

    /// Whether this crate computes a product with the operand `a` and a result of this shape, or candle does.
    fn computes(&self, a: &Tensor, shape: &Shape) -> Result<bool> {
        let Some(kernel) = &self.kernel else {
            return computes(a, shape);
        };
        let spec = table::find(kernel).map_err(Error::wrap)?;
        let kernel = spec.name;
        if !element_type(a.dtype()).is_ok_and(|dtype| dtype == spec.dtype) {
            bail!(
                "kernel '{kernel}' multiplies {} tensors, not {}",
                spec.dtype,
                a.dtype().as_str()
            );
        }
        if !a.device().is_cuda() {
            bail!(
                "kernel '{kernel}' runs on CUDA devices, but the tensors are on {:?}: move them, or name no kernel",
                a.device().location()
            );
        }
        if cfg!(not(feature = "cuda")) {
            bail!("kernel '{kernel}' is not part of this build: build candle-sgemm with its feature 'cuda', or name no kernel");
        }
        Ok(!is_empty(a, shape))
    }
}

/// What the environment says, else what candle was told, else FP32.
fn default_precision() -> Result<Precision> {
    let allowed = match candle_core::cuda::gemm_reduced_precision_f32() {
        true => Precision::Tf32,
        false => Precision::default(),
    };
    Settings::get().precision_where_allowed(allowed).map_err(Error::msg)
}
