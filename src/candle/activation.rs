//! Activations as candle computes them, and their derivatives.

use crate::gemm::Activation;
use candle_core::{Result, Tensor};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

thread_local! {
    /// Whether candle is to make gradients that gradients of their own flow through: its variable, which it reads once a
    /// thread.
    static KEEPS_GRAPHS: bool =
        std::env::var("CANDLE_GRAD_DO_NOT_DETACH").is_ok_and(|value| !matches!(value.as_str(), "" | "0"));
}

/// A tensor as a gradient is computed from it: cut off from its graph, as candle cuts off the gradients between its
/// operations, unless gradients of gradients are asked for.
pub(super) fn for_gradients(t: &Tensor) -> Tensor {
    match KEEPS_GRAPHS.with(|keeps| *keeps) {
        true => t.clone(),
        false => t.detach(),
    }
}

/// The factor of x³ in the tanh approximation of GELU.
const GELU_CUBIC: f64 = 0.044715;

/// `activation(x)` by candle's own operations.
pub(super) fn apply(activation: Activation, x: &Tensor) -> Result<Tensor> {
    match activation {
        Activation::Identity => Ok(x.clone()),
        Activation::Relu => x.relu(),
        Activation::GeluTanh => x.gelu(),
        Activation::GeluErf => x.gelu_erf(),
        Activation::Silu => x.silu(),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => candle_nn::ops::sigmoid(x),
    }
}

/// `grad·activation'(x)`, from the result `y` where that is enough, else from `x`, which is asked for only then.
pub(super) fn gradient(
    activation: Activation,
    x: impl FnOnce() -> Result<Tensor>,
    y: &Tensor,
    grad: &Tensor,
) -> Result<Tensor> {
    let slope = match activation {
        Activation::Identity => return Ok(grad.clone()),
        Activation::Relu => x()?.ge(0f64)?.to_dtype(grad.dtype())?, // 1 at 0, as candle has it
        Activation::Tanh => y.sqr()?.affine(-1.0, 1.0)?,
        Activation::Sigmoid => (y * y.affine(-1.0, 1.0)?)?,
        Activation::Silu => {
            // s + (x·s)·(1 − s): s + s·x·(1 − s) rounds once more before the sum
            let x = x()?;
            let s = candle_nn::ops::sigmoid(&x)?;
            (&s + ((x * &s)? * s.affine(-1.0, 1.0)?)?)?
        }
        Activation::GeluTanh => {
            // (1 + t)/2 + x·(1 − t²)·u'/2 with t = tanh(u), u = √(2/π)·(x + c·x³)
            let x = x()?;
            let scale = (2.0 / PI).sqrt();
            let square = x.sqr()?;
            let t = (&x * square.affine(scale * GELU_CUBIC, scale)?)?.tanh()?;
            let inner = square.affine(3.0 * scale * GELU_CUBIC, scale)?;
            let tail = ((x * t.sqr()?.affine(-1.0, 1.0)?)? * inner)?;
            ((t + tail)?.affine(0.5, 0.5))?
        }
        Activation::GeluErf => {
            // Φ(x) + x·φ(x)
            let x = x()?;
            let cumulative = (&x * FRAC_1_SQRT_2)?.erf()?.affine(0.5, 0.5)?;
            let density = (x.sqr()? * -0.5)?
                .exp()?
                .affine(0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2, 0.0)?;
            (cumulative + (x * density)?)?
        }
    };
    slope * grad
}
