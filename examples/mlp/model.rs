//! The network: layers of any `Linear` with ReLU between them, its weights, and the file that holds them.

use crate::data::{Shuffle, CLASSES, PIXELS};
use anyhow::{bail, ensure, Context, Result};
use candle_core::{DType, Device, Module, Tensor, Var};
use std::collections::HashMap;
use std::path::Path;

/// `Linear` layers with ReLU between them. `L` is this crate's layer or candle's: the rest is the same.
pub struct Mlp<L> {
    layers: Vec<L>,
}

impl<L: Module> Mlp<L> {
    /// Makes each layer from its weight (out, in) and its bias (out).
    pub fn new(weights: &Weights, layer: impl Fn(Tensor, Tensor) -> L) -> Self {
        let layers = weights
            .layers
            .iter()
            .map(|(weight, bias)| layer(weight.clone(), bias.clone()))
            .collect();
        Self { layers }
    }
}

impl<L: Module> Module for Mlp<L> {
    /// (rows, 64) images → (rows, 10) logits.
    fn forward(&self, images: &Tensor) -> candle_core::Result<Tensor> {
        let Some((last, hidden)) = self.layers.split_last() else {
            return Ok(images.clone());
        };
        let mut x = images.clone();
        for layer in hidden {
            x = layer.forward(&x)?.relu()?;
        }
        last.forward(&x)
    }
}

/// A weight (out, in) and a bias (out) for each layer.
pub struct Weights {
    layers: Vec<(Tensor, Tensor)>,
}

impl Weights {
    /// Random weights for these hidden sizes, as variables to train: uniform, within 1/√in.
    pub fn random(hidden: &[usize], seed: u64, device: &Device) -> Result<(Self, Vec<Var>)> {
        let mut random = Shuffle::new(seed);
        let mut uniform = |shape: &[usize], bound: f32| {
            let values = (0..shape.iter().product()).map(|_| random.symmetric(bound)).collect();
            Var::from_vec(values, shape, device)
        };
        let (mut layers, mut variables) = (Vec::new(), Vec::new());
        for size in sizes(hidden).windows(2) {
            let bound = 1.0 / (size[0] as f32).sqrt();
            let (weight, bias) = (uniform(&[size[1], size[0]], bound)?, uniform(&[size[1]], bound)?);
            layers.push((weight.as_tensor().clone(), bias.as_tensor().clone()));
            variables.extend([weight, bias]);
        }
        Ok((Self { layers }, variables))
    }

    /// Reads `layers.N.weight` and `layers.N.bias`. The layers must lead from 64 pixels to 10 classes, through `hidden`
    /// where it is given.
    pub fn load(path: &Path, hidden: Option<&[usize]>, device: &Device) -> Result<Self> {
        let file = || format!("cannot load the weights of {}", path.display());
        let mut tensors =
            candle_core::safetensors::load(path, device).with_context(|| format!("{} (--train makes them)", file()))?;
        let mut layers = Vec::new();
        while let Some(weight) = tensors.remove(&name(layers.len(), "weight")) {
            let bias_name = name(layers.len(), "bias");
            let Some(bias) = tensors.remove(&bias_name) else {
                bail!("{}: '{bias_name}' is missing", file())
            };
            layers.push((weight, bias));
        }
        let weights = Self { layers };
        weights.check(hidden).with_context(file)?;
        Ok(weights)
    }

    /// The same, rounded to elements of this type.
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        let layers = self
            .layers
            .iter()
            .map(|(weight, bias)| Ok((weight.to_dtype(dtype)?, bias.to_dtype(dtype)?)));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
        })
    }

    fn check(&self, hidden: Option<&[usize]>) -> Result<()> {
        ensure!(!self.layers.is_empty(), "there is no tensor '{}'", name(0, "weight"));
        for (at, (weight, bias)) in self.layers.iter().enumerate() {
            ensure!(
                weight.rank() == 2 && bias.dims() == [weight.dims()[0]],
                "layer {at} has a weight of shape {:?} and a bias of shape {:?}, not (out, in) and (out)",
                weight.dims(),
                bias.dims()
            );
            for tensor in [weight, bias] {
                ensure!(
                    tensor.dtype() == DType::F32,
                    "layer {at} holds {:?}, not F32",
                    tensor.dtype()
                );
            }
        }
        let chained = self
            .layers
            .windows(2)
            .all(|pair| pair[0].0.dims()[0] == pair[1].0.dims()[1]);
        let found = self.sizes();
        ensure!(
            chained && found.first() == Some(&PIXELS) && found.last() == Some(&CLASSES),
            "weights of shapes {:?} don't lead from {PIXELS} pixels to {CLASSES} classes",
            self.layers.iter().map(|(weight, _)| weight.dims()).collect::<Vec<_>>()
        );
        if let Some(hidden) = hidden {
            ensure!(
                found == sizes(hidden),
                "they are for layers {}, but --hidden asks for {}",
                dashed(&found),
                dashed(&sizes(hidden))
            );
        }
        Ok(())
    }

    /// Writes the file whole or not at all: to a temporary file beside it, which then takes its name.
    pub fn save(&self, path: &Path) -> Result<()> {
        let tensors: HashMap<String, Tensor> = self
            .layers
            .iter()
            .enumerate()
            .flat_map(|(at, (weight, bias))| [(name(at, "weight"), weight.clone()), (name(at, "bias"), bias.clone())])
            .collect();
        let Some(file_name) = path.file_name() else {
            bail!("{} is not the name of a file", path.display())
        };
        let temporary = path.with_file_name(format!(".{}.{}.tmp", file_name.to_string_lossy(), std::process::id()));
        let written = candle_core::safetensors::save(&tensors, &temporary)
            .map_err(anyhow::Error::from)
            .and_then(|()| Ok(std::fs::rename(&temporary, path)?));
        if written.is_err() {
            // What is left of it is of no use; that it can't be removed changes nothing about the error.
            let _ = std::fs::remove_file(&temporary);
        }
        written.with_context(|| format!("cannot write the weights to {}", path.display()))
    }

    /// Inputs of the first layer, then outputs of each.
    pub fn sizes(&self) -> Vec<usize> {
        let inputs = self.layers.first().map(|(weight, _)| weight.dims()[1]);
        inputs
            .into_iter()
            .chain(self.layers.iter().map(|(weight, _)| weight.dims()[0]))
            .collect()
    }
}

fn name(layer: usize, part: &str) -> String {
    format!("layers.{layer}.{part}")
}

fn sizes(hidden: &[usize]) -> Vec<usize> {
    [&[PIXELS], hidden, &[CLASSES]].concat()
}

/// "64-512-512-10"
pub fn dashed(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join("-")
}
