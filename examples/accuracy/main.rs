//! The error of FP32 products against FP64: this crate's arithmetic beside cuBLAS's, on easy and on hard numbers. And that of
//! activations and their slopes, beside candle's, over all of their range.
//!
//!     cargo run --release --features cuda --example accuracy -- --out out

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
