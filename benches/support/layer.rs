//! Layers and networks to be measured, the same weights for stock candle and for this crate.

use super::gpu::Gpu;
use anyhow::{bail, Context, Result};
use candle_core::{DType, Device, Module, Tensor};
use candle_sgemm::{Activation, Gemm, Linear, Mlp, Precision};
use std::fmt;

/// A linear layer followed by GELU (tanh), in its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerCase {
    pub rows: usize,
    pub inputs: usize,
    pub outputs: usize,
}

impl fmt::Display for LayerCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}→{}", self.rows, self.inputs, self.outputs)
    }
}

/// The feed-forward layers of transformers, from one row on.
pub const LAYERS: [LayerCase; 10] = [
    LayerCase::new(1, 768, 3072),
    LayerCase::new(16, 768, 3072),
    LayerCase::new(128, 768, 3072),
    LayerCase::new(512, 768, 3072),
    LayerCase::new(4096, 768, 3072),
    LayerCase::new(16384, 768, 3072),
    LayerCase::new(1, 4096, 4096),
    LayerCase::new(128, 4096, 4096),
    LayerCase::new(4096, 4096, 4096),
    LayerCase::new(2048, 4096, 14336),
];

impl LayerCase {
    pub const fn new(rows: usize, inputs: usize, outputs: usize) -> Self {
        LayerCase { rows, inputs, outputs }
    }
}

/// Networks by their widths, with the batches that they are measured with.
pub const NETWORKS: [(&[usize], &[usize]); 2] = [
    (&[784, 512, 512, 10], &[1, 64, 1024, 16384]),
    (&[4096, 4096, 4096, 4096], &[1, 128, 4096]),
];

/// `784-512-512-10`
pub fn network_name(widths: &[usize]) -> String {
    widths.iter().map(usize::to_string).collect::<Vec<_>>().join("-")
}

/// A stream of candle's and a GPU that measures on it.
pub fn open() -> Result<(Device, Gpu)> {
    let device = Device::new_cuda_with_stream(0).context("no usable NVIDIA GPU")?;
    let gpu = Gpu::on(device.as_cuda_device()?.cuda_stream())?;
    Ok((device, gpu))
}

/// Random weights of the size that keeps activations at theirs, and an input.
pub struct Weights {
    pub layers: Vec<(Tensor, Tensor)>,
    pub input: Tensor,
}

impl Weights {
    pub fn random(widths: &[usize], rows: usize, device: &Device) -> Result<Self> {
        let layers = widths.windows(2).map(|pair| {
            let scale = 1.0 / (pair[0] as f64).sqrt();
            let weight = (Tensor::randn(0f32, 1., (pair[1], pair[0]), device)? * scale)?;
            Ok((weight, Tensor::randn(0f32, 0.1, pair[1], device)?))
        });
        Ok(Weights {
            layers: layers.collect::<Result<_>>()?,
            input: Tensor::randn(0f32, 1., (rows, widths[0]), device)?,
        })
    }

    /// Candle's own layers; `activation` follows all but the last, and that too for a single layer.
    pub fn stock(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        let last = self.layers.len() - 1;
        self.layers
            .iter()
            .enumerate()
            .try_fold(x.clone(), |x, (i, (weight, bias))| {
                let y = candle_nn::Linear::new(weight.clone(), Some(bias.clone())).forward(&x)?;
                activate(
                    &y,
                    if i < last || last == 0 {
                        activation
                    } else {
                        Activation::Identity
                    },
                )
            })
    }

    /// This crate's product in place of candle's, all else as candle does it.
    pub fn unfused(&self, x: &Tensor, activation: Activation, precision: Precision) -> Result<Tensor> {
        let gemm = Gemm::new().precision(precision);
        let last = self.layers.len() - 1;
        self.layers
            .iter()
            .enumerate()
            .try_fold(x.clone(), |x, (i, (weight, bias))| {
                let y = gemm.matmul(&x, &weight.t()?)?.broadcast_add(bias)?;
                activate(
                    &y,
                    if i < last || last == 0 {
                        activation
                    } else {
                        Activation::Identity
                    },
                )
            })
    }

    /// This crate's layers.
    pub fn fused(&self, activation: Activation, precision: Precision) -> Result<Mlp> {
        let last = self.layers.len() - 1;
        let layers = self.layers.iter().enumerate().map(|(i, (weight, bias))| {
            let layer = Linear::new(weight.clone(), Some(bias.clone())).with_gemm(Gemm::new().precision(precision));
            match i < last || last == 0 {
                true => layer.with_activation(activation),
                false => layer,
            }
        });
        Ok(Mlp::from_layers(layers.collect()).prepare()?)
    }
}

fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    Ok(match activation {
        Activation::Identity => x.clone(),
        Activation::Relu => x.relu()?,
        Activation::GeluTanh => x.gelu()?,
        other => bail!("{other:?} is not measured"),
    })
}

/// Fails unless two results agree as FP32 results do.
pub fn check(what: &str, ours: &Tensor, stock: &Tensor) -> Result<()> {
    let double = |t: &Tensor| t.to_dtype(DType::F64);
    let error = (double(ours)? - double(stock)?)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
    let norm = double(stock)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
    let relative = (error / norm.max(f64::MIN_POSITIVE)).sqrt();
    if relative.is_nan() || relative > 1e-3 {
        bail!("{what}: the result differs from candle's by {relative:e} of its norm");
    }
    Ok(())
}
