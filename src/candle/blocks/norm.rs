//! What stands between the products of a transformer: norms, and the softmax of attention.

use super::super::rowwise::{by_one_kernel, softmax_in_place, Operands};
use crate::rowwise::Operation;
use candle_core::{DType, Module, Result, Tensor, D};
use candle_nn::{LayerNormConfig, VarBuilder};

/// `e^x / Σ e^x` along the last dimension: a softmax.
///
/// In f32, f16 and bf16 on a CUDA device it is one kernel for rows of up to 4096 numbers, 8192 or more where rows start on 16 bytes, and
/// x may be a view. It computes in FP32. Everything else, and where a gradient is to flow, is candle's.
///
/// ```
/// use candle_core::{Device, Tensor};
///
/// let x = Tensor::new(&[[0f32, 0.], [f32::NEG_INFINITY, 3.]], &Device::Cpu)?;
/// assert_eq!(candle_sgemm::blocks::softmax(&x)?.to_vec2::<f32>()?, [[0.5, 0.5], [0., 1.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
///
/// Those of candle.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let operands = Operands {
        x,
        weight: None,
        bias: None,
    };
    if let Some(y) = by_one_kernel(Operation::Softmax, operands, 0.0)? {
        return Ok(y);
    }
    match x.track_op() {
        // Candle launches no kernel for nothing, and fails.
        _ if x.elem_count() == 0 => Ok(x.clone()),
        // Candle's kernel has no gradient, and would cut it off in silence.
        true => candle_nn::ops::softmax(x, D::Minus1),
        false => candle_nn::ops::softmax_last_dim(&x.contiguous()?),
    }
}

/// [`softmax`] of numbers that nobody else has: in their own memory where a kernel does it.
pub(super) fn softmax_of_own(x: Tensor) -> Result<Tensor> {
    match softmax_in_place(&x)? {
        true => Ok(x),
        false => softmax(&x),
    }
}

/// `(x − mean) / √(variance + ε) · weight + bias` along the last dimension, or without the mean: candle's `LayerNorm` by a kernel of this
/// crate.
///
/// In f32, f16 and bf16 on a CUDA device it is one kernel, which computes in FP32, for rows of up to 4096 numbers, 8192 or more where
/// rows start on 16 bytes; x may be a view. The CPU and the rest are candle's. Gradients flow: there it is composed of candle's
/// operations.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_sgemm::blocks::LayerNorm;
///
/// let norm = LayerNorm::new(Tensor::ones(4, candle_core::DType::F32, &Device::Cpu)?, None, 0.0);
/// let y = norm.forward(&Tensor::new(&[[1f32, 1., 3., 3.]], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[-1., -1., 1., 1.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    epsilon: f64,
    remove_mean: bool,
}

impl LayerNorm {
    /// The weight and ε of a norm that divides by the root of the mean square, and no more.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // no kernel takes it into a product then
    pub(in crate::candle) fn without_mean_and_bias(&self) -> Option<(&Tensor, f64)> {
        let alone = !self.remove_mean && self.bias.is_none();
        alone.then_some((&self.weight, self.epsilon))
    }

    /// With a weight and a bias of as many numbers as a row, of its type, and with ε.
    pub fn new(weight: Tensor, bias: Option<Tensor>, epsilon: f64) -> Self {
        LayerNorm {
            weight,
            bias,
            epsilon,
            remove_mean: true,
        }
    }

    /// The same, but for the mean, which stays: an RMS norm.
    pub fn without_mean(self) -> Self {
        LayerNorm {
            remove_mean: false,
            ..self
        }
    }

    /// A factor for each column.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// What is added to each column.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// By candle's operations, each of which has a gradient. Half the bits are not enough for squares.
    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let dtype = x.dtype();
        let wide = match dtype {
            DType::F16 | DType::BF16 => x.to_dtype(DType::F32)?,
            _ => x.clone(),
        };
        let centered = match self.remove_mean {
            true => wide.broadcast_sub(&wide.mean_keepdim(D::Minus1)?)?,
            false => wide,
        };
        let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
        let scaled = centered.broadcast_div(&(variance + self.epsilon)?.sqrt()?)?;
        let y = scaled.to_dtype(dtype)?.broadcast_mul(&self.weight)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

impl Module for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let operands = Operands {
            x,
            weight: Some(&self.weight),
            bias: self.bias.as_ref(),
        };
        let operation = match self.remove_mean {
            true => Operation::LayerNorm,
            false => Operation::RmsNorm,
        };
        if let Some(y) = by_one_kernel(operation, operands, self.epsilon)? {
            return Ok(y);
        }
        let epsilon = self.epsilon as f32;
        match (&self.bias, self.remove_mean) {
            _ if x.elem_count() == 0 => Ok(x.clone()),
            _ if operands.tracked() => self.composed(x),
            (Some(bias), true) => candle_nn::ops::layer_norm(&x.contiguous()?, &self.weight, bias, epsilon),
            (None, false) => candle_nn::ops::rms_norm(&x.contiguous()?, &self.weight, epsilon),
            _ => self.composed(x),
        }
    }
}

/// Candle's `layer_norm`, as a [`LayerNorm`] of this crate: weights and biases of `weights`, or 1 and 0 in a fresh `VarMap`.
///
/// # Errors
///
/// Those of candle: weights that are not there or have other shapes.
pub fn layer_norm(width: usize, config: impl Into<LayerNormConfig>, weights: VarBuilder) -> Result<LayerNorm> {
    let config = config.into();
    let norm = candle_nn::layer_norm(width, config, weights)?;
    Ok(LayerNorm {
        weight: norm.weight().clone(),
        bias: norm.bias().cloned(),
        epsilon: config.eps,
        remove_mean: config.remove_mean,
    })
}

/// Candle's `rms_norm`, as a [`LayerNorm`] of this crate without mean and bias.
///
/// # Errors
///
/// Those of candle: weights that are not there or have other shapes.
pub fn rms_norm(width: usize, epsilon: f64, weights: VarBuilder) -> Result<LayerNorm> {
    Ok(candle_nn::rms_norm(width, epsilon, weights)?.into())
}

impl From<candle_nn::RmsNorm> for LayerNorm {
    fn from(norm: candle_nn::RmsNorm) -> Self {
        LayerNorm::new(norm.weight().clone(), None, norm.eps()).without_mean()
    }
}
