//! Whisper's encoder on this crate's blocks.
//!
//! A layer is nine kernels here, or seven where attention is one, and 23 in candle: three projections with two biases, the
//! scaling of queries and of keys, a copy of values, scores, softmax, values and a copy, output with bias and residual, two
//! layers with biases, GELU and residual, two norms. The two convolutions are layers of the rows that they look at, with bias and GELU
//! inside, and the second with the positions.

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use candle_sgemm::blocks::{layer_norm, Attention, EncoderLayer, LayerNorm};
use candle_sgemm::{linear, linear_no_bias, transpose, Activation, Gemm, Linear, Mlp};
use candle_transformers::models::whisper::Config;

/// Neighbours that a convolution looks at, and zeros beyond each end.
const KERNEL: usize = 3;
const PADDING: usize = 1;
/// The second convolution halves the length.
const STRIDES: [usize; 2] = [1, 2];
/// Of all norms.
const EPSILON: f64 = 1e-5;
/// How many times as wide feed-forward layers are as the model.
const WIDENING: usize = 4;

/// What Whisper makes of sound.
#[derive(Clone)]
pub struct FusedWhisperEncoder {
    convolutions: [Convolution; 2],
    /// (positions, width).
    positions: Tensor,
    layers: Vec<EncoderLayer>,
    norm: LayerNorm,
}

impl FusedWhisperEncoder {
    /// The encoder of this configuration out of `vb`, which has those of the whole model.
    ///
    /// # Errors
    ///
    /// Weights that are not there or have other shapes.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (vb, width) = (vb.pp("model.encoder"), config.d_model);
        let convolution =
            |name: &str, inputs: usize, stride: usize| Convolution::load(vb.pp(name), [inputs, width], stride);
        let layers = (0..config.encoder_layers).map(|i| layer(vb.pp("layers").pp(i), config));
        Ok(FusedWhisperEncoder {
            convolutions: [
                convolution("conv1", config.num_mel_bins, STRIDES[0])?,
                convolution("conv2", width, STRIDES[1])?,
            ],
            positions: positions(config.max_source_positions, width, vb.device())?.to_dtype(vb.dtype())?,
            layers: layers.collect::<Result<_>>()?,
            norm: layer_norm(width, EPSILON, vb.pp("layer_norm"))?,
        })
    }

    /// The same weights with all products done as `gemm` says.
    pub fn with_gemm(self, gemm: &Gemm) -> Self {
        let layers = self.layers.into_iter().map(|layer| layer.with_gemm(gemm));
        FusedWhisperEncoder {
            convolutions: self.convolutions.map(|convolution| convolution.with_gemm(gemm)),
            layers: layers.collect(),
            ..self
        }
    }

    /// Hidden states (batch, length / 2, width) of sound (batch, bins, length).
    ///
    /// # Errors
    ///
    /// Those of candle.
    pub fn forward(&self, sound: &Tensor) -> Result<Tensor> {
        let [first, second] = &self.convolutions;
        let x = first.layer.forward(&first.seen(&transpose(sound, 1, 2)?)?)?;
        let x = second.seen(&x)?;
        let positions = self.positions.narrow(0, 0, x.dim(1)?)?;
        let x = second.layer.forward_residual(&x, &positions)?;
        let x = self.layers.iter().try_fold(x, |x, layer| layer.forward(&x))?;
        self.norm.forward(&x)
    }
}

/// A convolution over rows as a layer of those that it looks at, side by side.
#[derive(Clone)]
struct Convolution {
    layer: Linear,
    stride: usize,
}

impl Convolution {
    fn load(vb: VarBuilder, [inputs, outputs]: [usize; 2], stride: usize) -> Result<Self> {
        let weight = vb.get((outputs, inputs, KERNEL), "weight")?;
        let weight = weight.transpose(1, 2)?.contiguous()?.flatten_from(1)?;
        let layer = Linear::new(weight, Some(vb.get(outputs, "bias")?)).with_activation(Activation::GeluTanh);
        Ok(Convolution {
            layer: layer.prepare()?,
            stride,
        })
    }

    fn with_gemm(self, gemm: &Gemm) -> Self {
        let layer = self.layer.with_gemm(gemm.clone());
        Convolution { layer, ..self }
    }

    /// Every row of the result with what it sees of x (batch, length, inputs): (batch, length / stride, kernel·inputs).
    fn seen(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, length, inputs) = x.dims3()?;
        let stride = self.stride;
        let rows = (length + 2 * PADDING - KERNEL) / stride + 1;
        let padded = (length + 2 * PADDING).next_multiple_of(stride);
        let x = x.pad_with_zeros(1, PADDING, padded - length - PADDING)?;
        // As many rows side by side as it steps over; a result sees all of them, and some of those behind.
        let steps = x.reshape((batch, padded / stride, stride * inputs))?;
        let part = |first: usize| {
            let rows_of_part = stride.min(KERNEL - first);
            steps
                .narrow(1, first / stride, rows)?
                .narrow(2, 0, rows_of_part * inputs)
        };
        let parts = (0..KERNEL).step_by(stride).map(part).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&parts, 2)
    }
}

fn layer(vb: VarBuilder, config: &Config) -> Result<EncoderLayer> {
    let (width, inner) = (config.d_model, WIDENING * config.d_model);
    let attention = vb.pp("self_attn");
    let attention = Attention::new(
        linear(width, width, attention.pp("q_proj"))?,
        linear_no_bias(width, width, attention.pp("k_proj"))?,
        linear(width, width, attention.pp("v_proj"))?,
        linear(width, width, attention.pp("out_proj"))?,
        config.encoder_attention_heads,
    )?;
    let feed_forward = Mlp::from_layers(vec![
        linear(width, inner, vb.pp("fc1"))?.with_activation(Activation::GeluTanh),
        linear(inner, width, vb.pp("fc2"))?,
    ]);
    let norm = |name: &str| layer_norm(width, EPSILON, vb.pp(name));
    EncoderLayer::pre_norm(
        attention,
        norm("self_attn_layer_norm")?,
        feed_forward,
        norm("final_layer_norm")?,
    )
    .prepare()
}

/// Sines in the first half of the columns and cosines in the second, with periods from 2π to 2π·10⁴ in a geometric series.
fn positions(length: usize, width: usize, device: &Device) -> Result<Tensor> {
    const LONGEST: f32 = 10_000.0;
    let columns = width / 2;
    let step = LONGEST.ln() / (columns - 1) as f32;
    let frequencies: Vec<f32> = (0..columns).map(|i| (i as f32 * -step).exp()).collect();
    let frequencies = Tensor::from_vec(frequencies, (1, columns), device)?;
    let times = Tensor::arange(0, length as u32, device)?.to_dtype(DType::F32)?;
    let angles = times.reshape((length, 1))?.broadcast_mul(&frequencies)?;
    Tensor::cat(&[angles.sin()?, angles.cos()?], 1)
}
