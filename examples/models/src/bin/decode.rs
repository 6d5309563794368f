//! A Llama of about 1B parameters that reads one token at a time: as candle has it, with the override, and on this crate's layers
//! with a cache of fixed size, plainly and as one CUDA graph, beside what reading the weights takes at the speed of a copy.
//!
//!     cargo run --release -p models --bin decode --features cuda,override -- --out out
//!     cargo run --release -p models --bin decode -- --device cpu --small

use anyhow::Result;
use clap::Parser;
use models::decode::measure::{measure, Text};
use models::options::Options;
use models::place::Place;
use models::program;
use models::way::Way;
use models::zoo::Setup;
use std::process::ExitCode;

/// Tokens that are read before the first that counts, and tokens that count.
const TOKENS: (usize, usize) = (128, 128);
const SMALL_TOKENS: (usize, usize) = (6, 6);

/// A language model that reads one token at a time, beside the speed of memory.
#[derive(Parser, Debug)]
#[command(name = "decode")]
struct Arguments {
    /// Tokens that are read before the first that is timed [default: 128]
    #[arg(long)]
    prompt: Option<usize>,
    /// Tokens that are timed [default: 128]
    #[arg(long)]
    tokens: Option<usize>,
    /// Tokens that the cache has room for [default: as many as are read]
    #[arg(long)]
    capacity: Option<usize>,
    /// Measure the parts of a step one by one too
    #[arg(long)]
    parts: bool,
    #[command(flatten)]
    options: Options,
}

fn run(arguments: &Arguments) -> Result<()> {
    let options = &arguments.options;
    let ways = options.ways(&Way::OF_DECODING)?;
    let (prompt, tokens) = if options.small { SMALL_TOKENS } else { TOKENS };
    let (prompt, tokens) = (arguments.prompt.unwrap_or(prompt), arguments.tokens.unwrap_or(tokens));
    let text = Text {
        prompt,
        tokens,
        capacity: arguments.capacity.unwrap_or(prompt.saturating_add(tokens)),
        parts: arguments.parts,
    };
    let model = if options.small { "llama-small" } else { "llama-1b" };
    let place = Place::open(options.device)?;
    let mut report = place.report("cargo run --release -p models --bin decode --features cuda,override --")?;
    for &dtype in &options.dtype {
        let setup = Setup {
            device: place.device().clone(),
            dtype,
            small: options.small,
        };
        let decoding = measure(&place, &setup, text, &ways, &options.precision, options.seconds)?;
        print!("{}", decoding.lines(model));
        report.rows.extend(decoding.rows(model));
    }
    match &options.out {
        Some(folder) => report.write(folder, "decode"),
        None => Ok(()),
    }
}

fn main() -> ExitCode {
    program::main_of("decode", run)
}
