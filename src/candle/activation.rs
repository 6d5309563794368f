//! Activations as candle computes them, and their derivatives.

use crate::gemm::Activation;
use candle_core::{Error, Result, Tensor};
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

/// Of candle's activations those that a kernel computes. Configurations of models name candle's:
///
/// ```
/// use candle_sgemm::Activation;
///
/// assert_eq!(Activation::try_from(candle_nn::Activation::Gelu)?, Activation::GeluErf);
/// assert!(Activation::try_from(candle_nn::Activation::Mish).is_err());
/// # Ok::<(), candle_core::Error>(())
/// ```
impl TryFrom<candle_nn::Activation> for Activation {
    type Error = Error;

    fn try_from(activation: candle_nn::Activation) -> Result<Self> {
        use candle_nn::Activation as Candle;
        match activation {
            Candle::Relu => Ok(Activation::Relu),
            Candle::Gelu => Ok(Activation::GeluErf),
            Candle::NewGelu | Candle::GeluPytorchTanh => Ok(Activation::GeluTanh),
            Candle::Silu | Candle::Swish => Ok(Activation::Silu),
            Candle::Sigmoid => Ok(Activation::Sigmoid),
            other => Err(Error::msg(format!(
                "no kernel computes the activation {other:?}: apply it to the result of the layer"
            ))),
        }
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
            // From 16 on t is ±1 and the tail 0, and FP16 has no room for the square of 256: ∞·0 is no number.
            let square = x.sqr()?.minimum(256f64)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Module};

    #[test]
    fn activations_of_candle_are_the_same_functions_here() -> Result<()> {
        use candle_nn::Activation as Candle;
        let x = Tensor::arange_step(-4f32, 4., 0.125, &Device::Cpu)?;
        let here = [
            Candle::Relu,
            Candle::Gelu,
            Candle::NewGelu,
            Candle::GeluPytorchTanh,
            Candle::Silu,
            Candle::Swish,
            Candle::Sigmoid,
        ];
        for activation in here {
            let (theirs, ours) = (activation.forward(&x)?, apply(Activation::try_from(activation)?, &x)?);
            let difference = (theirs - ours)?.abs()?.max(0)?.to_scalar::<f32>()?;
            assert!(difference < 1e-6, "{activation:?}: {difference}");
        }
        for activation in [Candle::Relu2, Candle::Swiglu, Candle::LeakyRelu(0.1)] {
            let error = Activation::try_from(activation).unwrap_err().to_string();
            assert!(error.contains(&format!("{activation:?}")), "{error}");
        }
        Ok(())
    }
}
