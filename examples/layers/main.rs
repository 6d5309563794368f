//! Layers and small networks as stock candle computes them, with this crate's products but nothing fused, and fused, in
//! one process on the same weights. Times are those of a program that calls one layer after the other: what the host
//! takes counts.
//!
//!     cargo run --release --features cuda --example layers -- --out out
//!     cargo run --release --features cuda --example layers -- --precision fp32-strict
//!     cargo run --release --features cuda --example layers -- --dtype bf16,f16 --out out

#[path = "../../benches/support/program.rs"]
mod program;
#[path = "../../benches/support/mod.rs"]
mod support;

#[cfg(feature = "cuda")]
mod measure;

use anyhow::Result;
use candle_core::DType;
use candle_sgemm::Precision;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Stock candle, this crate unfused and this crate fused: linear layers and MLPs on one GPU, in one process.
#[derive(Parser, Debug)]
#[command(name = "layers")]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // without a GPU nothing is measured
struct Arguments {
    /// What arithmetic our products may use: fp32, fp32-strict or tf32; several with commas
    #[arg(long, default_value = "fp32-strict,fp32", value_delimiter = ',')]
    precision: Vec<Precision>,
    /// What weights and activations are: f32, f16 or bf16; several with commas
    #[arg(long, default_value = "f32", value_delimiter = ',',
          value_parser = PossibleValuesParser::new(["f32", "f16", "bf16"]).try_map(|name| name.parse::<DType>()))]
    dtype: Vec<DType>,
    /// Only layers whose names contain this, such as "SwiGLU 4096-14336"; of networks their graphs as well
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Write JSON and CSV files into this folder; `cargo run -p report -- --plots FILE.json` draws them
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Samples of which the median counts
    #[arg(long, default_value_t = 9)]
    samples: usize,
    /// Length of a sample in milliseconds
    #[arg(long, default_value_t = 4.0)]
    sample_ms: f64,
}

#[cfg(feature = "cuda")]
fn run(arguments: &Arguments) -> Result<()> {
    measure::run(arguments)
}

#[cfg(not(feature = "cuda"))]
fn run(_: &Arguments) -> Result<()> {
    anyhow::bail!("nothing was measured: this build has no GPU support; build with --features cuda (README.md says what that needs)")
}

fn main() -> ExitCode {
    program::main_of("layers", run)
}
