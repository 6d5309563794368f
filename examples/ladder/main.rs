//! The kernels of the table beside cuBLAS: checked, measured, printed, and written as JSON and CSV.
//!
//!     cargo run --release --features cuda --example ladder -- --sizes 256..8192 --out out
//!     cargo run --release --features cuda --example ladder -- --grid --precision fp32-strict
//!     cargo run --release --features cuda --example ladder -- --random 2000 --seed 1 --precision fp32 --out out
//!     cargo run --release --features cuda --example ladder -- --sustained --sizes 1024..8192
//!     cargo run --release --features cuda --example ladder -- transpose --out out
//!     cargo run --example ladder -- --list
//!
//! Without a GPU, but with nvcc, in the emulator of docs/emulation.md; nothing is measured:
//!
//!     cargo run --release --example ladder -- --device emulated --kernels ffma_kmajor_64x64_sm90 --layout nt --shapes 70x70x200
//!     cargo run --release --example ladder -- transpose --device emulated --kernels transpose_06

#[path = "../../benches/support/program.rs"]
mod program;
#[path = "../../benches/support/mod.rs"]
mod support;

mod emulated;
#[cfg(feature = "cuda")]
mod measure;
#[cfg(feature = "cuda")]
mod print;
#[cfg(feature = "cuda")]
mod random;
#[cfg(feature = "cuda")]
mod transpose;

use anyhow::{bail, Context, Result};
use candle_sgemm::gemm::kernel::{spec::Role, table};
use candle_sgemm::gemm::{DType, KernelSpec, Precision, TABLE};
use candle_sgemm::transpose::{self as transpositions, TransposeKernel};
use clap::builder::ArgPredicate;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;
use support::case::{parse_shapes, parse_sizes, Case, Layout};
use support::sampler::Class;

/// Every kernel of the ladder against cuBLAS, on one GPU and in one process.
#[derive(Parser, Debug)]
#[command(name = "ladder")]
struct Arguments {
    #[command(subcommand)]
    mode: Option<Mode>,
    /// Where kernels run
    #[arg(long, value_enum, default_value_t = Device::Gpu)]
    device: Device,
    /// Squares: a range of powers of two (256..8192), or a list (300,1000)
    #[arg(long, default_value = "256..4096", default_value_if("device", "emulated", "64..128"))]
    sizes: String,
    /// Products of other shapes instead: MxNxK, or BxMxNxK in a batch, several with commas
    #[arg(long, value_name = "[Bx]MxNxK,…")]
    shapes: Option<String>,
    /// Only these kernels: names or parts of names, with commas
    #[arg(long, alias = "kernel", value_name = "A,B")]
    kernels: Option<String>,
    /// Storage order of A and B: nn, nt, tn or tt (t: stored transposed)
    #[arg(long, default_value = "nn")]
    layout: Layout,
    /// What arithmetic the planner and the baseline may use: fp32-strict, fp32 or tf32
    #[arg(long, default_value = "fp32")]
    precision: Precision,
    /// Scales the product
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    alpha: f32,
    /// Scales what D held before
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    beta: f32,
    /// Measure the planner's choice on the shapes of networks, or on those of --shapes, with weights that are not in the L2,
    /// instead of every kernel on squares
    #[arg(long)]
    grid: bool,
    /// With --grid: measure everything that the planner considers, and how well it predicts and chooses. With --random: tell
    /// what would have been fastest where cuBLAS is faster
    #[arg(long)]
    every_plan: bool,
    /// With --every-plan: leave out what the planner predicts to be so many times slower than its choice
    #[arg(long, requires = "every_plan", default_value_t = f64::INFINITY)]
    within: f64,
    /// Measure the planner's choice and cuBLAS on squares in all layouts and at every precision, while the device works on and
    /// on, and after pauses
    #[arg(long, conflicts_with = "grid")]
    sustained: bool,
    /// Measure the planner's choice on so many products, drawn as models make them by --seed, and how the ratios are spread
    #[arg(long, value_name = "N", conflicts_with_all = ["grid", "sustained", "shapes", "sizes", "layout", "kernels", "alpha", "beta"])]
    random: Option<usize>,
    /// With --random: draw only these: layer, head, attention, convolution, gradient, odd, with commas
    #[arg(long, value_name = "A,B", value_delimiter = ',', requires = "random")]
    class: Vec<Class>,
    /// With --grid, --sustained and --random: what an element is: f32, f16 or bf16. Those of 16 bits have one precision
    #[arg(long, default_value = "f32")]
    dtype: DType,
    /// Print the kernels and their tiles, and nothing else
    #[arg(long)]
    list: bool,
    /// Write JSON and CSV files into this folder; `cargo run -p report -- --plots FILE.json` draws them
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Samples of which the median counts
    #[arg(long, default_value_t = 7)]
    samples: usize,
    /// Length of a sample in milliseconds; with --random, ten times as short where nothing else is said
    #[arg(
        long,
        default_value = "5",
        default_value_if("random", ArgPredicate::IsPresent, "0.5")
    )]
    sample_ms: f64,
    /// What the device rests for before each sample of a product that takes 100 µs or longer, in milliseconds: where power is the limit,
    /// clocks come and go between samples without it
    #[arg(long, default_value_t = 0.0)]
    pause_ms: f64,
    #[command(flatten)]
    emulation: Emulation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// The first NVIDIA GPU
    Gpu,
    /// None: their PTX runs in the emulator, which checks them and measures nothing
    Emulated,
}

/// What the emulator wants to know.
#[derive(Args, Clone, Copy, Debug)]
struct Emulation {
    /// Of what is drawn: the products of --random, and the data and schedules of the emulator
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Emulated: the byte or barrier whose story a failing run tells, such as 0x38418 or 'barrier 1'
    #[arg(long, value_name = "WHAT")]
    trace: Option<ptx_emulator::Watch>,
}

/// What else there is to climb.
#[derive(Subcommand, Debug)]
enum Mode {
    /// Transpositions beside a copy, cuBLAS's geam and candle's contiguous()
    Transpose(TransposeArguments),
}

#[derive(Args, Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // without a GPU only the list is shown
struct TransposeArguments {
    /// Where kernels run
    #[arg(long, value_enum, default_value_t = Device::Gpu)]
    device: Device,
    /// Shapes instead of the built-in list, with commas: 4095x4097, or 64x512x768 (the last two dimensions change places)
    #[arg(long, value_name = "RxC,…")]
    shapes: Option<String>,
    /// Element types: f32, f64, bf16, u8, with commas
    #[arg(long, default_value = "f32,f64,bf16,u8")]
    dtype: String,
    /// Only kernels whose names contain one of these, with commas
    #[arg(long, alias = "kernel", value_name = "A,B")]
    kernels: Option<String>,
    /// Print the kernels, and nothing else
    #[arg(long)]
    list: bool,
    /// Write JSON and CSV files into this folder; `cargo run -p report -- --plots FILE.json` draws them
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Samples of which the median counts
    #[arg(long, default_value_t = 7)]
    samples: usize,
    /// Length of a sample in milliseconds
    #[arg(long, default_value_t = 5.0)]
    sample_ms: f64,
    #[command(flatten)]
    emulation: Emulation,
}

/// Shapes of two dimensions or more, with commas between them.
fn parse_dims(text: &str) -> Result<Vec<Vec<usize>>> {
    let parse = |word: &str| {
        word.split('x')
            .map(|size| size.trim().parse::<usize>().ok().filter(|size| *size > 0))
            .collect::<Option<Vec<_>>>()
            .filter(|shape| shape.len() >= 2)
            .with_context(|| format!("'{word}' is not a shape: write e.g. 4095x4097 or 64x512x768"))
    };
    text.split(',').map(parse).collect()
}

impl TransposeArguments {
    fn kernels(&self) -> Result<Vec<&'static TransposeKernel>> {
        let Some(text) = &self.kernels else {
            return Ok(transpositions::TABLE.iter().collect());
        };
        let mut chosen = Vec::new();
        for part in text.split(',').map(str::trim) {
            let matching: Vec<_> = transpositions::TABLE
                .iter()
                .filter(|kernel| !part.is_empty() && kernel.name.contains(part))
                .collect();
            if matching.is_empty() {
                transpositions::kernels::find(part)?;
            }
            chosen.extend(matching);
        }
        Ok(chosen)
    }
}

impl Arguments {
    fn cases(&self) -> Result<Vec<Case>> {
        let case = |[batch, m, n, k]: [usize; 4]| Case::new(m, n, k, self.layout).times(batch);
        let shapes = match &self.shapes {
            Some(text) => parse_shapes(text),
            None => parse_sizes(&self.sizes).map(|sizes| sizes.into_iter().map(|size| [1, size, size, size]).collect()),
        };
        Ok(shapes.map_err(anyhow::Error::msg)?.into_iter().map(case).collect())
    }

    /// The rows of the table that were asked for. A name that is a kernel's means that kernel alone.
    fn kernels(&self) -> Result<Vec<&'static KernelSpec>> {
        let Some(text) = &self.kernels else {
            return Ok(TABLE.iter().collect());
        };
        let mut chosen: Vec<&KernelSpec> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let exact = table::find(part);
            let matching: Vec<_> = match &exact {
                Ok(spec) => vec![*spec],
                Err(_) => TABLE
                    .iter()
                    .filter(|spec| !part.is_empty() && spec.name.contains(part))
                    .collect(),
            };
            if let (true, Err(error)) = (matching.is_empty(), exact) {
                return Err(error.into());
            }
            for spec in matching {
                if chosen.iter().all(|other| other.name != spec.name) {
                    chosen.push(spec);
                }
            }
        }
        Ok(chosen)
    }
}

fn list(kernels: &[&KernelSpec]) {
    println!(
        "{:>4}  {:<36} {:<5} {:<18} {:<10} {:<8} {:>6} {:>7}  what it is",
        "rung", "kernel", "type", "block", "warp", "thread", "stages", "threads"
    );
    for spec in kernels {
        let rung = match spec.role {
            Role::Rung(number) => number.to_string(),
            Role::Production => "-".into(),
        };
        let tile = spec.tile;
        let pair = |rows: u32, cols: u32| match rows * cols {
            0 => "-".to_string(),
            _ => format!("{rows}×{cols}"),
        };
        println!(
            "{rung:>4}  {:<36} {:<5} {:<18} {:<10} {:<8} {:>6} {:>7}  {}",
            spec.name,
            spec.dtype.to_string(),
            format!("{}×{}×{}", tile.bm, tile.bn, tile.bk),
            pair(tile.wm, tile.wn),
            pair(tile.tm, tile.tn),
            tile.stages,
            spec.threads,
            spec.summary
        );
    }
}

fn list_transpositions() {
    println!("{:<24} {:<6} what it is", "kernel", "needs");
    for kernel in transpositions::TABLE {
        let needs = match kernel.needs.only_capability {
            Some(capability) => format!("sm_{capability}"),
            None => "-".into(),
        };
        println!("{:<24} {needs:<6} {}", kernel.name, kernel.summary);
    }
}

#[cfg(feature = "cuda")]
fn run_transpose(arguments: &TransposeArguments) -> Result<()> {
    if candle_core::Device::new_cuda(0).is_err() {
        list_transpositions();
        bail!("nothing was measured, for there is no usable NVIDIA GPU; these are the kernels");
    }
    transpose::run(arguments)
}

#[cfg(not(feature = "cuda"))]
fn run_transpose(_: &TransposeArguments) -> Result<()> {
    list_transpositions();
    bail!("nothing was measured: this build has no GPU support; build with --features cuda (README.md says what that needs)")
}

fn check_timing(samples: usize, sample_ms: f64) -> Result<()> {
    if samples == 0 || !(sample_ms > 0.0 && sample_ms <= 10_000.0) {
        bail!("--samples must be at least 1 and --sample-ms above 0 and at most 10000");
    }
    Ok(())
}

fn run(arguments: &Arguments) -> Result<()> {
    if let Some(Mode::Transpose(arguments)) = &arguments.mode {
        check_timing(arguments.samples, arguments.sample_ms)?;
        if arguments.list {
            list_transpositions();
            return Ok(());
        }
        return match arguments.device {
            Device::Gpu => run_transpose(arguments),
            Device::Emulated => emulated::transpositions(arguments),
        };
    }
    let (cases, kernels) = (arguments.cases()?, arguments.kernels()?);
    check_timing(arguments.samples, arguments.sample_ms)?;
    if !(0.0..=1000.0).contains(&arguments.pause_ms) {
        bail!("--pause-ms must be at least 0 and at most 1000");
    }
    if !arguments.alpha.is_finite() || !arguments.beta.is_finite() {
        bail!("--alpha and --beta must be finite");
    }
    if arguments.list {
        list(&kernels);
        return Ok(());
    }
    if arguments.every_plan && !arguments.grid && arguments.random.is_none() {
        bail!("--every-plan goes with --grid or --random");
    }
    if arguments.dtype != DType::F32 && !(arguments.grid || arguments.sustained || arguments.random.is_some()) {
        bail!("--dtype {} goes with --grid, --sustained or --random", arguments.dtype);
    }
    if arguments.random == Some(0) {
        bail!("--random must be at least 1");
    }
    if arguments.random.is_some() && !(arguments.dtype == DType::F32 || arguments.dtype.is_16_bit()) {
        bail!(
            "--random draws products of f32, f16 or bf16, not of {}",
            arguments.dtype
        );
    }
    match arguments.device {
        Device::Emulated if arguments.random.is_some() => bail!("--random measures, which the emulator does not"),
        Device::Gpu => measure_or_list(arguments, &cases, &kernels),
        Device::Emulated => emulated::products(arguments, &cases, &kernels),
    }
}

#[cfg(feature = "cuda")]
fn measure_or_list(arguments: &Arguments, cases: &[Case], kernels: &[&'static KernelSpec]) -> Result<()> {
    if let Some(count) = arguments.random {
        return random::run(arguments, count);
    }
    let gpu = match support::gpu::Gpu::open() {
        Ok(gpu) => gpu,
        Err(error) => {
            list(kernels);
            return Err(error.context("nothing was measured; these are the kernels"));
        }
    };
    let report = match (arguments.grid, arguments.every_plan) {
        _ if arguments.sustained => measure::sustained(&gpu, arguments, cases)?,
        (true, true) => measure::every_plan(&gpu, arguments, cases, kernels)?,
        (true, false) => measure::grid(&gpu, arguments, cases)?,
        (false, _) => measure::ladder(&gpu, arguments, cases, kernels)?,
    };
    match &arguments.out {
        Some(folder) => print::write(&report, folder),
        None => Ok(()),
    }
}

#[cfg(not(feature = "cuda"))]
fn measure_or_list(_: &Arguments, _: &[Case], kernels: &[&'static KernelSpec]) -> Result<()> {
    list(kernels);
    bail!("nothing was measured: this build has no GPU support; build with --features cuda (README.md says what that needs)")
}

fn main() -> ExitCode {
    program::main_of("ladder", run)
}
