//! Stacks of fully connected layers.

use super::linear::{linear_b, Linear};
use super::matmul::Gemm;
use crate::gemm::Activation;
use candle_core::{bail, Module, Result, Tensor};
use candle_nn::VarBuilder;

/// A multilayer perceptron: linear layers one after the other, each with its own activation, one kernel a layer.
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
/// [`Activation::Silu`], GEGLU with [`Activation::GeluTanh`] or [`Activation::GeluErf`].
///
/// It takes three kernels, for the gate's activation, the multiplication and the residual are part of the products. Where a
/// gradient is to flow to the gate, the multiplication is candle's own.
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
        })
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

    /// [`Linear::prepare`] for every layer.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare(self) -> Result<Self> {
        Ok(GatedMlp {
            gate: self.gate.prepare()?,
            up: self.up.prepare()?,
            down: self.down.prepare()?,
        })
    }

    /// The same with the kernel, precision and tuning of `gemm` for every layer; α, C and the type of the result are one product's
    /// own.
    pub fn with_gemm(self, gemm: &Gemm) -> Self {
        GatedMlp {
            gate: self.gate.with_gemm(gemm.shared()),
            up: self.up.with_gemm(gemm.shared()),
            down: self.down.with_gemm(gemm.shared()),
        }
    }

    /// The layer's result plus `residual`, added in the last product.
    ///
    /// # Errors
    ///
    /// As [`Linear::forward_residual`].
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        in_part("down", self.down.forward_residual(&self.gated(x)?, residual))
    }

    fn gated(&self, x: &Tensor) -> Result<Tensor> {
        let gate = in_part("gate", self.gate.forward(x))?;
        in_part("up", self.up.forward_gated(x, &gate))
    }
}

/// The result of a layer of a gated MLP, or the error with the layer's name.
fn in_part(part: &str, result: Result<Tensor>) -> Result<Tensor> {
    result.map_err(|error| error.context(format!("layer '{part}' of a GatedMlp")))
}

impl Module for GatedMlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_part("down", self.down.forward(&self.gated(x)?))
    }
}
