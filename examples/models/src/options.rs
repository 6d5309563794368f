//! What the programs have in common on their command lines.

use crate::way::Way;
use anyhow::{bail, Result};
use candle_core::DType;
use candle_sgemm::Precision;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Where models run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Where {
    /// The first GPU
    Cuda,
    /// The CPU, where all ways are the same arithmetic
    Cpu,
}

/// The options of every program here.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where to run
    #[arg(long, value_enum, default_value = if cfg!(feature = "cuda") { "cuda" } else { "cpu" })]
    pub device: Where,
    /// Configurations that a CPU computes in a moment
    #[arg(long)]
    pub small: bool,
    /// What arithmetic our products may use: fp32, fp32-strict or tf32; several with commas
    #[arg(long, default_value = "fp32,fp32-strict", value_delimiter = ',')]
    pub precision: Vec<Precision>,
    /// The type of weights and activations: f32, f16 or bf16; several with commas
    #[arg(long, default_value = "f32", value_delimiter = ',', value_parser = dtype)]
    pub dtype: Vec<DType>,
    /// Only these ways, beside stock, which is always measured; several with commas
    #[arg(long, value_delimiter = ',')]
    pub way: Vec<Way>,
    /// How long to measure a model in all its ways
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Write JSON and CSV files into this folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

fn dtype(text: &str) -> Result<DType, String> {
    match text {
        "f32" => Ok(DType::F32),
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::BF16),
        _ => Err(format!("'{text}' is no type of weights: choose of f32, f16, bf16")),
    }
}

impl Options {
    /// The ways that were asked for out of those that there are, stock first.
    ///
    /// # Errors
    ///
    /// A way that there is not.
    pub fn ways(&self, there_are: &[Way]) -> Result<Vec<Way>> {
        if let Some(way) = self.way.iter().find(|way| !there_are.contains(way)) {
            let names: Vec<&str> = there_are.iter().map(|way| way.name()).collect();
            bail!("this program has no way '{way}': choose of {}", names.join(", "));
        }
        let ways: Vec<Way> = there_are
            .iter()
            .copied()
            .filter(|way| *way == Way::Stock || self.way.is_empty() || self.way.contains(way))
            .collect();
        let needs_override = ways.iter().any(|way| way.overrides());
        if needs_override && self.device == Where::Cuda && cfg!(not(feature = "override")) {
            bail!("this build has no override: build with --features cuda,override, or choose other ways with --way");
        }
        Ok(ways)
    }
}
