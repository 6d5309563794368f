//! Stacks of fully connected layers.

use super::blocks::LayerNorm;
use super::fused::Fused;
use super::linear::{linear_b, Linear};
use super::matmul::Gemm;
use crate::device::VECTOR_BYTES;
use crate::gemm::Activation;
use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::VarBuilder;

/// A multilayer perceptron: linear layers one after the other, each with its own activation, one kernel a layer. `forward` takes x of
/// shape (…, first width), of any rank from 2 on, and returns (…, last width).
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use candle_sgemm::{Activation, Mlp};
///
/// let variables = VarMap::new();
/// let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
/// let mlp = Mlp::new(&[784, 512, 512, 10], Activation::Relu, vb)?;
/// let logits = mlp.forward(&Tensor::zeros((64, 784), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(logits.dims(), [64, 10]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    /// Layers of these widths with biases, from `vb.pp("0")`, `vb.pp("1")` and so on; `activation` follows all but the last.
    ///
    /// # Errors
    ///
    /// Fewer than two widths; those of `VarBuilder`.
    pub fn new(widths: &[usize], activation: Activation, vb: VarBuilder) -> Result<Self> {
        if widths.len() < 2 {
            bail!("an MLP needs at least the widths of its input and its output, not {widths:?}");
        }
        let last = widths.len() - 2;
        let layers = widths.windows(2).enumerate().map(|(i, pair)| {
            let layer = linear_b(pair[0], pair[1], true, vb.pp(i))?;
            Ok(match i {
                i if i == last => layer,
                _ => layer.with_activation(activation),
            })
        });
        Ok(Mlp {
            layers: layers.collect::<Result<_>>()?,
        })
    }

    /// These layers, with the activations that they have.
    pub fn from_layers(layers: Vec<Linear>) -> Self {
        Mlp { layers }
    }

    /// The layers, first to last.
    pub fn layers(&self) -> &[Linear] {
        &self.layers
    }

    /// [`Linear::prepare`] for every layer.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare(self) -> Result<Self> {
        let layers = self.layers.into_iter().map(Linear::prepare);
        Ok(Mlp {
            layers: layers.collect::<Result<_>>()?,
        })
    }

    /// The same with the kernel, precision and tuning of `gemm` for every layer; α, C and the type of the result are one product's
    /// own.
    pub fn with_gemm(self, gemm: &Gemm) -> Self {
        let layers = self.layers.into_iter().map(|layer| layer.with_gemm(gemm.shared()));
        Mlp {
            layers: layers.collect(),
        }
    }

    /// The last layer's result plus `residual`, added in its product.
    ///
    /// # Errors
    ///
    /// As [`Linear::forward_residual`]; a stack without layers, in whose products nothing can be added.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let Some((last, before)) = self.layers.split_last() else {
            bail!("an Mlp without layers has no product to add a residual in");
        };
        let x = self.through(before, x)?;
        self.in_layer(before.len(), last.forward_residual(&x, residual))
    }

    /// The result of the first layers, which are these.
    fn through(&self, layers: &[Linear], x: &Tensor) -> Result<Tensor> {
        let mut layers = layers.iter().enumerate();
        layers.try_fold(x.clone(), |x, (i, layer)| self.in_layer(i, layer.forward(&x)))
    }

    /// The result of layer `i`, or the error with its place.
    fn in_layer(&self, i: usize, result: Result<Tensor>) -> Result<Tensor> {
        let count = self.layers.len();
        result.map_err(|error| error.context(format!("layer {i} (from 0) of the {count} of an Mlp")))
    }
}

impl Module for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.through(&self.layers, x)
    }
}

/// The gated feed-forward layer `down(activation(gate(x)) ⊙ up(x))` of today's language models: SwiGLU with
/// [`Activation::Silu`], GEGLU with [`Activation::GeluTanh`] or [`Activation::GeluErf`]. `forward` takes x of shape (…, width), of any
/// rank from 2 on, and returns the same shape.
///
/// It takes three kernels, for the gate's activation, the multiplication and the residual are part of the products. Where a
/// gradient is to flow to the gate, the multiplication is candle's own. Once the layers are [prepared](Self::prepare), it takes two on a
/// CUDA device where one product for gate and up is faster: for a row or two, and on Hopper in 16 bits for more rows.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use candle_sgemm::{Activation, GatedMlp};
///
/// let variables = VarMap::new();
/// let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
/// let mlp = GatedMlp::new(64, 256, Activation::Silu, false, vb)?;
/// let y = mlp.forward(&Tensor::zeros((2, 7, 64), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.dims(), [2, 7, 64]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GatedMlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    /// Gate and up by one product, once they are prepared.
    pair: Option<Pair>,
    norm: Option<LayerNorm>,
}

/// Gate and up as one matrix (2·hidden, width), their rows in turn, and one bias. The weights of both layers are views of it.
#[derive(Clone, Debug)]
struct Pair {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl GatedMlp {
    /// Layers `gate_proj`, `up_proj` (hidden, width) and `down_proj` (width, hidden) of `vb`, with or without biases.
    ///
    /// # Errors
    ///
    /// Those of `VarBuilder`.
    pub fn new(width: usize, hidden: usize, activation: Activation, bias: bool, vb: VarBuilder) -> Result<Self> {
        GatedMlp::from_layers(
            linear_b(width, hidden, bias, vb.pp("gate_proj"))?,
            linear_b(width, hidden, bias, vb.pp("up_proj"))?,
            linear_b(hidden, width, bias, vb.pp("down_proj"))?,
            activation,
        )
    }

    /// These layers; `activation` follows the gate.
    ///
    /// # Errors
    ///
    /// If gate and up have different shapes, or down does not take what they give.
    pub fn from_layers(gate: Linear, up: Linear, down: Linear, activation: Activation) -> Result<Self> {
        let fits = match (gate.weight().dims(), up.weight().dims(), down.weight().dims()) {
            (gate @ [hidden, _], up, [_, into_down]) => gate == up && into_down == hidden,
            _ => false,
        };
        if !fits {
            bail!(
                "the weights of a gated MLP do not fit: gate {:?}, up {:?}, down {:?}",
                gate.weight().shape(),
                up.weight().shape(),
                down.weight().shape()
            );
        }
        Ok(GatedMlp {
            gate: gate.with_activation(activation),
            up,
            down,
            pair: None,
            norm: None,
        })
    }

    /// The same layer behind this norm: gate and up get `norm(x)`, and a residual is added as it is. The norm becomes part of their product
    /// as that of [`Linear::with_norm`] does, if the layers are [prepared](Self::prepare).
    pub fn with_norm(self, norm: LayerNorm) -> Self {
        GatedMlp {
            norm: Some(norm),
            ..self
        }
    }

    /// What the input goes through first.
    pub fn norm(&self) -> Option<&LayerNorm> {
        self.norm.as_ref()
    }

    /// The layer of the gate, with its activation.
    pub fn gate(&self) -> &Linear {
        &self.gate
    }

    /// The layer whose result the gate multiplies.
    pub fn up(&self) -> &Linear {
        &self.up
    }

    /// The last layer.
    pub fn down(&self) -> &Linear {
        &self.down
    }

    /// [`Linear::prepare`] for every layer. On a CUDA device the weights of gate and up also become one matrix with rows of both in turn, a
    /// copy of which theirs are views from then on; not where a gradient flows to one of them, or where they have different settings.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare(self) -> Result<Self> {
        let layer = GatedMlp {
            gate: self.gate.prepare()?,
            up: self.up.prepare()?,
            down: self.down.prepare()?,
            ..self
        };
        match layer.gate.weight().device().is_cuda() && layer.pair.is_none() {
            true => layer.paired(),
            false => Ok(layer),
        }
    }

    /// The same with gate and up as a pair, where that can be.
    fn paired(self) -> Result<Self> {
        let (gate, up) = (&self.gate, &self.up);
        let weights = [gate.weight(), up.weight()];
        let biases = [gate.bias(), up.bias()];
        let alike = |a: &Tensor, b: &Tensor| a.dtype() == b.dtype() && a.device().same_device(b.device());
        let tracked = weights
            .into_iter()
            .chain(biases.into_iter().flatten())
            .any(Tensor::track_op);
        let biases = match biases {
            [None, None] => None,
            [Some(a), Some(b)] if a.rank() == 1 && a.dims() == b.dims() && alike(a, b) => Some([a, b]),
            _ => return Ok(self),
        };
        let one_way = gate.gemm().says_the_same_as(up.gemm()) && gate.norm().is_none() && up.norm().is_none();
        let multiplied = matches!(weights[0].dtype(), DType::F32 | DType::F16 | DType::BF16);
        if tracked
            || !one_way
            || !multiplied
            || !alike(weights[0], weights[1])
            || up.activation() != Activation::Identity
        {
            return Ok(self);
        }
        let (hidden, width) = weights[0].dims2()?;
        // Every row starts on 16 bytes, as in the weights.
        let pitch = width.next_multiple_of(VECTOR_BYTES / weights[0].dtype().size_in_bytes());
        let rows = |weight: &Tensor| weight.contiguous()?.pad_with_zeros(1, 0, pitch - width);
        let in_turn = Tensor::stack(&[rows(weights[0])?, rows(weights[1])?], 1)?.contiguous()?;
        let pairs = in_turn.reshape((hidden, 2 * pitch))?;
        let (gate, up) = (pairs.narrow(1, 0, width)?, pairs.narrow(1, pitch, width)?);
        let pair = Pair {
            weight: in_turn.reshape((2 * hidden, pitch))?.narrow(1, 0, width)?,
            bias: match biases {
                Some(biases) => Some(Tensor::stack(&biases, 1)?.flatten_all()?),
                None => None,
            },
        };
        Ok(GatedMlp {
            gate: self.gate.with_weight(gate),
            up: self.up.with_weight(up),
            pair: Some(pair),
            ..self
        })
    }

    /// The same with the kernel, precision and tuning of `gemm` for every layer; α, C and the type of the result are one product's
    /// own.
    pub fn with_gemm(self, gemm: &Gemm) -> Self {
        GatedMlp {
            gate: self.gate.with_gemm(gemm.shared()),
            up: self.up.with_gemm(gemm.shared()),
            down: self.down.with_gemm(gemm.shared()),
            ..self
        }
    }

    /// The layer's result plus `residual`, added in the last product.
    ///
    /// # Errors
    ///
    /// As [`Linear::forward_residual`].
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        in_part("down", self.down.forward_residual(&self.hidden(x)?, residual))
    }

    /// What `down` gets: `activation(gate(x)) ⊙ up(x)`, behind the norm if there is one.
    ///
    /// # Errors
    ///
    /// As [`matmul`](crate::matmul).
    pub fn hidden(&self, x: &Tensor) -> Result<Tensor> {
        if let Some(norm) = &self.norm {
            let by_one_kernel = in_part("gate, up", self.by_one_kernel(x, Some(norm)))?;
            return match by_one_kernel {
                Some(y) => Ok(y),
                None => self.hidden_of_normed(&in_part("norm", norm.forward(x))?),
            };
        }
        self.hidden_of_normed(x)
    }

    /// What gate and up make of numbers that have gone through the norm, if there is one.
    fn hidden_of_normed(&self, x: &Tensor) -> Result<Tensor> {
        if let Some(y) = in_part("gate, up", self.by_one_kernel(x, None))? {
            return Ok(y);
        }
        let gate = in_part("gate", self.gate.forward(x))?;
        in_part("up", self.up.forward_gated(x, &gate))
    }

    fn by_one_kernel(&self, x: &Tensor, norm: Option<&LayerNorm>) -> Result<Option<Tensor>> {
        let Some(pair) = &self.pair else {
            return Ok(None);
        };
        let layer = Fused {
            x,
            weight: &pair.weight,
            bias: pair.bias.as_ref(),
            norm,
            activation: self.gate.activation(),
            gated: true,
        };
        layer.by_one_kernel(self.gate.gemm())
    }
}

/// The result of a layer of a gated MLP, or the error with the layer's name.
fn in_part<T>(part: &str, result: Result<T>) -> Result<T> {
    result.map_err(|error| error.context(format!("layer '{part}' of a GatedMlp")))
}

impl Module for GatedMlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_part("down", self.down.forward(&self.hidden(x)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn a_pair_has_the_rows_of_gate_and_up_in_turn() -> Result<()> {
        let mut rng = StdRng::seed_from_u64(21);
        for _ in 0..50 {
            let (hidden, width) = (rng.random_range(1..20), rng.random_range(1..40));
            let dtype = [DType::F32, DType::F16, DType::BF16][rng.random_range(0..3)];
            let random = |shape: &[usize]| Tensor::randn(0f32, 1., shape, &Device::Cpu)?.to_dtype(dtype);
            let bias = rng.random::<bool>();
            let layer = |shape: [usize; 2]| -> Result<Linear> {
                let bias = bias.then(|| random(&shape[..1])).transpose()?;
                Ok(Linear::new(random(&shape)?, bias))
            };
            let (gate, up) = (layer([hidden, width])?, layer([hidden, width])?);
            let apart = GatedMlp::from_layers(gate.clone(), up.clone(), layer([width, hidden])?, Activation::Silu)?
                .prepare()?;
            let together = apart.clone().paired()?;
            let pair = together.pair.as_ref().expect("gate and up are alike");
            let numbers = |t: &Tensor| t.to_dtype(DType::F32)?.to_vec2::<f32>();
            let rows = numbers(&pair.weight)?;
            let of = |first: usize| rows.iter().skip(first).step_by(2).cloned().collect::<Vec<_>>();
            assert_eq!((of(0), of(1)), (numbers(gate.weight())?, numbers(up.weight())?));
            assert_eq!(numbers(together.gate().weight())?, of(0));
            assert_eq!(numbers(together.up().weight())?, of(1));
            assert_eq!(pair.bias.is_some(), bias);
            for weight in [&pair.weight, together.gate().weight(), together.up().weight()] {
                let bytes = [weight.stride()[0], weight.layout().start_offset()].map(|at| at * dtype.size_in_bytes());
                assert!(
                    bytes.iter().all(|bytes| bytes.is_multiple_of(VECTOR_BYTES)),
                    "{bytes:?}"
                );
            }
            let x = random(&[3, width])?;
            assert_eq!(numbers(&together.forward(&x)?)?, numbers(&apart.forward(&x)?)?);
        }
        Ok(())
    }

    #[test]
    fn layers_that_are_not_alike_stay_apart() -> Result<()> {
        let linear = |shape: (usize, usize)| -> Result<Linear> {
            Ok(Linear::new(Tensor::ones(shape, DType::F32, &Device::Cpu)?, None))
        };
        let down = linear((4, 6))?;
        let pairs = |gate: Linear, up: Linear| -> Result<bool> {
            let layer = GatedMlp::from_layers(gate, up, down.clone(), Activation::Silu)?;
            Ok(layer.paired()?.pair.is_some())
        };
        let plain = || linear((6, 4));
        let named = || -> Result<Linear> { Ok(plain()?.with_gemm(Gemm::new().kernel("gemv_dot_m1"))) };
        let bias = Tensor::ones(6, DType::F32, &Device::Cpu)?;
        let biased = Linear::new(plain()?.weight().clone(), Some(bias));
        let variable = candle_core::Var::ones((6, 4), DType::F32, &Device::Cpu)?;
        let learning = Linear::new(variable.as_tensor().clone(), None);
        assert!(pairs(plain()?, plain()?)?);
        assert!(pairs(named()?, named()?)?);
        assert!(!pairs(plain()?, named()?)?);
        assert!(!pairs(plain()?, biased)?);
        assert!(!pairs(plain()?, learning)?);
        Ok(())
    }
}
