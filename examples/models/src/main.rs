//! The models of candle-transformers with cuBLAS, with the override, rebuilt on blocks where that was done, and as CUDA graphs,
//! measured in turn in one process on the same weights.
//!
//!     cargo run --release -p models --features cuda,override -- --out out
//!     cargo run --release -p models -- --device cpu --small

use anyhow::{bail, Result};
use clap::Parser;
use models::measure::measure;
use models::options::Options;
use models::place::Place;
use models::program;
use models::rows;
use models::way::Way;
use models::zoo::{self, Entry, Setup};
use std::process::ExitCode;

/// The models that candle ships, stock, with the override, rebuilt, and as CUDA graphs.
#[derive(Parser, Debug)]
#[command(name = "models")]
struct Arguments {
    /// Only these models; several with commas
    #[arg(long, value_delimiter = ',')]
    model: Vec<String>,
    /// Print the models' names and end
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    options: Options,
}

fn chosen(names: &[String]) -> Result<Vec<&'static Entry>> {
    if names.is_empty() {
        return Ok(zoo::ALL.iter().collect());
    }
    let found = names.iter().map(|name| match zoo::find(name) {
        Some(entry) => Ok(entry),
        None => bail!("there is no model '{name}': --list prints the names"),
    });
    found.collect()
}

fn run(arguments: &Arguments) -> Result<()> {
    if arguments.list {
        for entry in &zoo::ALL {
            println!("{:<16} {}", entry.name, entry.what);
        }
        return Ok(());
    }
    let options = &arguments.options;
    let (entries, ways) = (chosen(&arguments.model)?, options.ways(&Way::OF_MODELS)?);
    let place = Place::open(options.device)?;
    let mut report = place.report("cargo run --release -p models --features cuda,override --")?;
    println!("{}", rows::heading());
    for entry in entries {
        for &dtype in &options.dtype {
            let setup = Setup {
                device: place.device().clone(),
                dtype,
                small: options.small,
            };
            let outcome = measure(&place, entry, &setup, &ways, &options.precision, options.seconds)?;
            print!("{}", rows::lines(&outcome));
            report.rows.extend(rows::of_model(&outcome));
        }
    }
    match &options.out {
        Some(folder) => report.write(folder, "models"),
        None => Ok(()),
    }
}

fn main() -> ExitCode {
    program::main_of("models", run)
}
