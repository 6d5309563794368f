//! The error of products against FP64: this crate's arithmetic beside cuBLAS's, on easy and on hard numbers. And that of
//! activations and their slopes, beside candle's, over all of their range.
//!
//!     cargo run --release --features cuda --example accuracy -- --out out
//!     cargo run --release --features cuda --example accuracy -- --dtype bf16,f16 --out out

#[path = "../../benches/support/program.rs"]
mod program;
#[path = "../../benches/support/mod.rs"]
mod support;

#[cfg(feature = "cuda")]
mod activations;
#[cfg(feature = "cuda")]
mod measure;
mod numbers;

use anyhow::Result;
use candle_sgemm::gemm::DType;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Frobenius and largest componentwise error of C = A·B against FP64.
#[derive(Parser, Debug)]
#[command(name = "accuracy")]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // without a GPU nothing is measured
struct Arguments {
    /// Rows of A and columns of B
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Lengths of the sums, with commas
    #[arg(long, default_value = "64,256,512,1024,4096,16384", value_delimiter = ',')]
    k: Vec<usize>,
    /// Only numbers whose names contain one of these, with commas; "activations" are activations
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    numbers: Vec<String>,
    /// What the operands are rounded to before, and the result after: f32, f16 or bf16; several with commas
    #[arg(long, default_value = "f32", value_delimiter = ',',
          value_parser = PossibleValuesParser::new(["f32", "f16", "bf16"]).try_map(|name| name.parse::<DType>()))]
    dtype: Vec<DType>,
    /// Write JSON and CSV files into this folder; `cargo run -p report -- --plots FILE.json` draws them
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[cfg(feature = "cuda")]
fn run(arguments: &Arguments) -> Result<()> {
    measure::run(arguments)
}

#[cfg(not(feature = "cuda"))]
fn run(_: &Arguments) -> Result<()> {
    for numbers in numbers::ALL {
        println!("{:<24} {}", numbers.name, numbers.what);
    }
    anyhow::bail!("nothing was measured: this build has no GPU support; build with --features cuda (README.md says what that needs)")
}

fn main() -> ExitCode {
    program::main_of("accuracy", run)
}
