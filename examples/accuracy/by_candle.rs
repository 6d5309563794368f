//! Activations as candle's own operations.

use candle_core::{Result, Tensor};
use candle_sgemm::Activation;

/// `activation(x)`.
pub fn by_candle(activation: Activation, x: &Tensor) -> Result<Tensor> {
    match activation {
        Activation::Identity => Ok(x.clone()),
        Activation::Relu => x.relu(),
        Activation::GeluTanh => x.gelu(),
        Activation::GeluErf => x.gelu_erf(),
        Activation::Silu => x.silu(),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => candle_nn::ops::sigmoid(x),
        _ => candle_core::bail!("{activation:?} is not known here"),
    }
}
