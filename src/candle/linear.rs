//! The fully connected layer.

use super::blocks::LayerNorm;
use super::call::Call;
use super::fused::Fused;
use super::matmul::Gemm;
use crate::device::VECTOR_BYTES;
use crate::gemm::{Activation, Combine};
use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::VarBuilder;

/// `activation(x·wᵀ + bias)`, plus a residual or times a gate, in one kernel: `candle_nn::Linear` with this crate's product, everything that
/// follows it done before the result is stored.
///
/// A model swaps `use candle_nn::{linear, Linear}` for `use candle_sgemm::{linear, Linear}`: constructors, names of the
/// weights and results are candle's. The input is (…, in) of rank 2 or more, any view, and the result (…, out). Gradients
/// flow to the input, the weight, the bias and the residual; the backward pass computes anew what it needs of the forward
/// pass, so nothing is kept for it. ReLU alone, where a gradient is to flow through it, is candle's own operation behind the
/// product, which keeps what it was applied to: its slope at 0 is 1 there, and the result does not tell where that was.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_sgemm::{Activation, Linear};
///
/// let weight = Tensor::new(&[[1f32, 2.], [3., 4.], [-5., -6.]], &Device::Cpu)?;
/// let bias = Tensor::new(&[0f32, 0., 1000.], &Device::Cpu)?;
/// let layer = Linear::new(weight, Some(bias)).with_activation(Activation::Relu);
/// let x = Tensor::new(&[[10f32, 100.], [100., 100.]], &Device::Cpu)?;
/// let y = layer.forward(&x)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[210., 430., 350.], [300., 700., 0.]]);
///
/// let skip = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?; // broadcast to the result
/// let y = layer.forward_residual(&x, &skip)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[211., 432., 353.], [301., 702., 3.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    activation: Activation,
    norm: Option<LayerNorm>,
    gemm: Gemm,
}

impl Linear {
    /// A layer with this weight (out, in) and bias (out). Shapes that do not fit are reported by `forward`.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Linear {
            weight,
            bias,
            activation: Activation::Identity,
            norm: None,
            gemm: Gemm::new(),
        }
    }

    /// One layer in place of several with the same input: its result has theirs side by side, and its weight theirs one below
    /// the other. So the projections to queries, keys and values are one product, and `narrow` finds each in its result without
    /// a copy.
    ///
    /// A layer without a bias counts as one with a bias of zeros where another has one. The activation and the settings of the
    /// product are those of the first layer; all must have the same activation and none a norm. Weights are copied: what becomes of the layers'
    /// own later is not seen here.
    ///
    /// ```
    /// use candle_core::{Device, Module, Tensor};
    /// use candle_sgemm::Linear;
    ///
    /// let keys = Linear::new(Tensor::new(&[[1f32, 2.]], &Device::Cpu)?, None);
    /// let values = Linear::new(Tensor::new(&[[3f32, 4.]], &Device::Cpu)?, Some(Tensor::new(&[5f32], &Device::Cpu)?));
    /// let both = Linear::side_by_side(&[keys, values])?.forward(&Tensor::new(&[[10f32, 1.]], &Device::Cpu)?)?;
    /// assert_eq!(both.to_vec2::<f32>()?, [[12., 39.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// No layers; weights that do not have two dimensions or whose inputs, dtypes or devices differ; a bias that is not as long
    /// as its layer's output; activations that differ; a norm.
    pub fn side_by_side(layers: &[Linear]) -> Result<Self> {
        let Some(first) = layers.first() else {
            bail!("of no layers at all, none can be made: there must be one at least");
        };
        for (i, layer) in layers.iter().enumerate() {
            let (weight, of_first) = (&layer.weight, &first.weight);
            let dims = weight.dims();
            if dims.len() != 2 || dims[1] != of_first.dim(1)? || weight.dtype() != of_first.dtype() {
                bail!(
                    "layer {i} (from 0) has a weight of {:?} {dims:?} and layer 0 one of {:?} {:?}: side by side, weights are \
                     (out, in) with the same input and dtype",
                    weight.dtype(),
                    of_first.dtype(),
                    of_first.dims()
                );
            }
            if let Some(bias) = layer.bias().filter(|bias| bias.dims() != [dims[0]]) {
                bail!(
                    "layer {i} (from 0) has {} outputs and a bias of shape {:?}",
                    dims[0],
                    bias.dims()
                );
            }
            if layer.norm.is_some() {
                bail!("layer {i} (from 0) has a norm of its own: side by side, layers share their input, so norm them together");
            }
            if layer.activation != first.activation {
                bail!(
                    "layer {i} (from 0) is followed by {:?} and layer 0 by {:?}: one product has one activation",
                    layer.activation,
                    first.activation
                );
            }
        }
        let weights: Vec<&Tensor> = layers.iter().map(|layer| &layer.weight).collect();
        let biases = match layers.iter().find_map(Linear::bias) {
            Some(bias) => {
                let (dtype, device) = (bias.dtype(), bias.device());
                let of_layer = |layer: &Linear| match layer.bias() {
                    Some(bias) => Ok(bias.clone()),
                    None => Tensor::zeros(layer.weight.dim(0)?, dtype, device),
                };
                let biases = layers.iter().map(of_layer).collect::<Result<Vec<_>>>()?;
                Some(Tensor::cat(&biases, 0)?)
            }
            None => None,
        };
        Ok(Linear {
            weight: Tensor::cat(&weights, 0)?,
            bias: biases,
            activation: first.activation,
            norm: None,
            gemm: first.gemm.clone(),
        })
    }

    /// The same layer followed by this activation, which becomes part of the product.
    pub fn with_activation(self, activation: Activation) -> Self {
        Linear { activation, ..self }
    }

    /// The same layer behind this norm, `activation(norm(x)·wᵀ + bias)`.
    ///
    /// On a CUDA device, and where no gradient is to flow, an RMS norm of a row or two becomes part of the product, if weight,
    /// input and the norm's weight start on 16 bytes, as [`prepare`](Self::prepare) sees to for the weight. Such a row is not rounded
    /// between norm and product. All else is two kernels or more.
    ///
    /// ```
    /// use candle_core::{DType, Device, Module, Tensor};
    /// use candle_sgemm::{blocks::LayerNorm, Linear};
    ///
    /// let norm = LayerNorm::new(Tensor::ones(2, DType::F32, &Device::Cpu)?, None, 0.0).without_mean();
    /// let weight = Tensor::new(&[[1f32, 0.], [3., 1.]], &Device::Cpu)?;
    /// let layer = Linear::new(weight, None).with_norm(norm);
    /// let y = layer.forward(&Tensor::new(&[[2f32, -2.]], &Device::Cpu)?)?; // the norm makes 1 and -1 of them
    /// assert_eq!(y.to_vec2::<f32>()?, [[1., 2.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn with_norm(self, norm: LayerNorm) -> Self {
        Linear {
            norm: Some(norm),
            ..self
        }
    }

    /// The same layer with the settings of `gemm`: kernel, precision, α and β·C, to which the bias is added.
    pub fn with_gemm(self, gemm: Gemm) -> Self {
        Linear { gemm, ..self }
    }

    /// The same layer with its weight laid out as the kernels read it fastest: dense, every row of it on 16 bytes. The
    /// results are the same.
    ///
    /// A weight that is so already is shared, not copied. Otherwise the copy takes `out · in` elements, `in` rounded up to a
    /// multiple of 16 bytes, for as long as the layer lives; and no gradient flows to the weight any more.
    ///
    /// # Errors
    ///
    /// A weight of fewer than two dimensions; if the copy cannot be allocated.
    pub fn prepare(self) -> Result<Self> {
        let weight = self.weight.clone();
        let call = Call {
            name: "Linear::prepare",
            operands: &[("weight", Some(&weight))],
        };
        call.explain(self.prepared())
    }

    fn prepared(self) -> Result<Self> {
        if self.weight.rank() < 2 {
            bail!("a layer's weight is (out, in)");
        }
        let quantum = match self.weight.dtype() {
            DType::F32 => VECTOR_BYTES / 4,
            DType::F16 | DType::BF16 => VECTOR_BYTES / 2,
            _ => return Ok(self),
        };
        let columns = self.weight.dim(1)?;
        let padding = columns.next_multiple_of(quantum) - columns;
        let strides = self.weight.stride();
        let in_place = strides[1] == 1 && strides[0].is_multiple_of(quantum);
        let aligned = self.weight.layout().start_offset().is_multiple_of(quantum);
        #[cfg(feature = "cuda")]
        let aligned = aligned && super::cuda::starts_aligned(&self.weight)?;
        if in_place && aligned {
            return Ok(self);
        }
        let weight = self.weight.detach();
        let weight = match padding {
            0 => weight.force_contiguous()?,
            _ => weight
                .contiguous()?
                .pad_with_zeros(1, 0, padding)?
                .narrow(1, 0, columns)?,
        };
        Ok(Linear { weight, ..self })
    }

    /// The weight (out, in).
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The same layer with another weight of this shape.
    pub(super) fn with_weight(self, weight: Tensor) -> Self {
        Linear { weight, ..self }
    }

    /// The settings of its product.
    pub(super) fn gemm(&self) -> &Gemm {
        &self.gemm
    }

    /// The bias (out).
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// What the input goes through first.
    pub fn norm(&self) -> Option<&LayerNorm> {
        self.norm.as_ref()
    }

    /// What is applied to `x·wᵀ + bias`.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// The layer's result plus `residual`, which is broadcast to the result's shape: that of `x·wᵀ`, or, where the bias has
    /// more dimensions or longer ones, that of the sum.
    ///
    /// # Errors
    ///
    /// As [`matmul`](crate::matmul), and for a residual that cannot be broadcast.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run("Linear::forward_residual", x, Some((Combine::Add, residual)))
    }

    /// The layer's result times `gate`, element by element; `gate` is broadcast to the result's shape.
    ///
    /// # Errors
    ///
    /// As [`forward_residual`](Self::forward_residual).
    pub fn forward_gated(&self, x: &Tensor, gate: &Tensor) -> Result<Tensor> {
        self.run("Linear::forward_gated", x, Some((Combine::Multiply, gate)))
    }

    fn run(&self, name: &'static str, x: &Tensor, residual: Option<(Combine, &Tensor)>) -> Result<Tensor> {
        let bias = self.bias.as_ref();
        let Some(norm) = &self.norm else {
            return self.gemm.linear(name, x, &self.weight, bias, self.activation, residual);
        };
        if residual.is_none() {
            let layer = Fused {
                x,
                weight: &self.weight,
                bias,
                norm: Some(norm),
                activation: self.activation,
                gated: false,
            };
            if let Some(y) = layer.by_one_kernel(&self.gemm)? {
                return Ok(y);
            }
        }
        let x = &norm.forward(x)?;
        self.gemm.linear(name, x, &self.weight, bias, self.activation, residual)
    }
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run("Linear::forward", x, None)
    }
}

impl From<candle_nn::Linear> for Linear {
    fn from(layer: candle_nn::Linear) -> Self {
        Linear::new(layer.weight().clone(), layer.bias().cloned())
    }
}

/// A layer from `weight` and `bias` of `vb`, or newly initialised as candle does.
///
/// # Errors
///
/// Those of `VarBuilder`: missing tensors, wrong shapes.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    Ok(candle_nn::linear(in_dim, out_dim, vb)?.into())
}

/// [`linear`] without a bias.
///
/// # Errors
///
/// As [`linear`].
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    Ok(candle_nn::linear_no_bias(in_dim, out_dim, vb)?.into())
}

/// [`linear`] or [`linear_no_bias`].
///
/// # Errors
///
/// As [`linear`].
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder) -> Result<Linear> {
    Ok(candle_nn::linear_b(in_dim, out_dim, bias, vb)?.into())
}
