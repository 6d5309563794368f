//! The fully connected layer.

use super::matmul::Gemm;
use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

/// `x·wᵀ + bias`: `candle_nn::Linear` with this crate's product, the bias added before the result is stored.
///
/// A model swaps `use candle_nn::{linear, Linear}` for `use candle_sgemm::{linear, Linear}`: constructors, names of the
/// weights and results are candle's. The input is (…, in) of rank 2 or more, any view, and the result (…, out).
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_sgemm::Linear;
///
/// let weight = Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?;
/// let bias = Tensor::new(&[0f32, 0., 1000.], &Device::Cpu)?;
/// let layer = Linear::new(weight, Some(bias));
/// let y = layer.forward(&Tensor::new(&[[10f32, 100.]], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[210., 430., 1650.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    gemm: Gemm,
}

impl Linear {
    /// A layer with this weight (out, in) and bias (out).
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Linear {
            weight,
            bias,
            gemm: Gemm::new(),
        }
    }

    /// The same layer with the settings of `gemm`: kernel, precision, α and β·C, to which the bias is added.
    pub fn with_gemm(self, gemm: Gemm) -> Self {
        Linear { gemm, ..self }
    }

    /// The weight (out, in).
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias (out).
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.gemm.linear(x, &self.weight, self.bias.as_ref())
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
