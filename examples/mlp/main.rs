//! A multilayer perceptron classifies handwritten digits, with this crate's matmul and with candle's side by side.
//!
//!     cargo run --release --example mlp                        classify with the committed weights, on the CPU
//!     cargo run --release --example mlp --features cuda        the same on the GPU
//!     cargo run --release --example mlp -- --train             train from scratch through this crate's ops
//!     cargo run --release --example mlp -- --dtype bf16        classify with weights and images rounded to 16 bits
//!
//! It prints the accuracy of both on the held-out fifth of the digits, whether every prediction agrees, the largest
//! difference of the logits, and the latency and throughput of both. Bad input ends it with one line and exit code 1.

mod data;
mod model;

use anyhow::{ensure, Context, Result};
use candle_core::{DType, Device, Module, Tensor, D};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};
use candle_sgemm::Gemm;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum};
use data::{Digits, Shuffle};
use indicatif::{ProgressBar, ProgressStyle};
use model::{dashed, Mlp, Weights};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const WEIGHTS: &str = "examples/data/mlp-512-512.safetensors";
const DIGITS: &str = "examples/data/optdigits.csv";
const HIDDEN: [usize; 2] = [512, 512];
/// Seed of the first weights and of the order of the training rows.
const SEED: u64 = 42;
/// Training rows a step.
const STEP: usize = 64;
const BATCHES: [usize; 3] = [1, 64, 1024];

/// Classify handwritten digits with candle-sgemm and with candle.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Train from scratch and write the weights, then classify with them.
    #[arg(long)]
    train: bool,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = Place::Auto)]
    device: Place,
    /// The weights to read or, with --train, to write [default: examples/data/mlp-512-512.safetensors].
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Sizes of the hidden layers [default: those of the weights file; 512,512 to train].
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65536))]
    hidden: Option<Vec<u32>>,
    /// Compute this crate's products with this kernel (CUDA only); by default the plan chooses.
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// What weights and images are while digits are classified: f32, f16 or bf16. Training is in f32.
    #[arg(long, default_value = "f32",
          value_parser = PossibleValuesParser::new(["f32", "f16", "bf16"]).try_map(|name| name.parse::<DType>()))]
    dtype: DType,
    /// Times that training sees every digit.
    #[arg(long, value_name = "N", default_value_t = 40)]
    epochs: usize,
    /// The digits [default: examples/data/optdigits.csv].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Place {
    Cpu,
    Cuda,
    /// CUDA where this build and the machine have it, else the CPU.
    Auto,
}

impl Place {
    fn device(self) -> Result<Device> {
        let built = candle_core::utils::cuda_is_available();
        match self {
            Place::Cpu => Ok(Device::Cpu),
            Place::Cuda => {
                ensure!(built, "this build has no CUDA support: build it with --features cuda");
                Device::new_cuda(0).context("no CUDA device can be used (--device cpu runs without one)")
            }
            Place::Auto if built => Ok(Device::new_cuda(0).unwrap_or_else(|error| {
                eprintln!("note: no CUDA device can be used, running on the CPU ({error})");
                Device::Cpu
            })),
            Place::Auto => Ok(Device::Cpu),
        }
    }
}

fn main() {
    let args = Args::try_parse().unwrap_or_else(|error| {
        // Only a closed terminal can make this fail, and then there is nobody to tell.
        let _ = error.print();
        std::process::exit(if error.use_stderr() { 1 } else { 0 })
    });
    if let Err(error) = run(&args) {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}

fn run(args: &Args) -> Result<()> {
    let device = args.device.device()?;
    let gemm = match &args.kernel {
        Some(kernel) => Gemm::new().kernel(kernel.as_str()),
        None => Gemm::new(),
    };
    let hidden: Option<Vec<usize>> = args
        .hidden
        .as_ref()
        .map(|sizes| sizes.iter().map(|&size| size as usize).collect());
    let weights_path = args.weights.clone().unwrap_or_else(|| in_project(WEIGHTS));
    let (train, held_out) = Digits::read(&args.data.clone().unwrap_or_else(|| in_project(DIGITS)))?.split();

    let weights = if args.train {
        let folder = weights_path.parent().filter(|folder| !folder.as_os_str().is_empty());
        ensure!(
            folder.is_none_or(Path::is_dir),
            "cannot write the weights to {}: its folder does not exist",
            weights_path.display()
        );
        let weights = train_weights(
            &train,
            hidden.as_deref().unwrap_or(&HIDDEN),
            &gemm,
            args.epochs,
            &device,
        )?;
        weights.save(&weights_path)?;
        weights
    } else {
        Weights::load(&weights_path, hidden.as_deref(), &device)?
    }
    .to_dtype(args.dtype)?;

    let ours = Mlp::new(&weights, |w, b| {
        candle_sgemm::Linear::new(w, Some(b)).with_gemm(gemm.clone())
    });
    let candle = Mlp::new(&weights, |w, b| candle_nn::Linear::new(w, Some(b)));
    let report = format!(
        "digits   {} to train on, {} held out\nlayers   {}\nweights  {}{}, {}\ndevice   {}\n\n{}\n{}",
        train.len(),
        held_out.len(),
        dashed(&weights.sizes()),
        weights_path.display(),
        if args.train { ", just trained" } else { "" },
        args.dtype.as_str(),
        if device.is_cpu() { "CPU" } else { "CUDA device 0" },
        agreement(&ours, &candle, &held_out, args.dtype, &device)?,
        speed(&ours, &candle, &held_out, args.dtype, &device)?
    );
    Ok(std::io::stdout().lock().write_all(report.as_bytes())?)
}

/// A file of the project: below the working directory if it is there, else where the project was built.
fn in_project(path: &str) -> PathBuf {
    let here = PathBuf::from(path);
    if here.exists() {
        here
    } else {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
    }
}

/// Trains a new network with cross entropy and AdamW, every product and every gradient of one through this crate.
fn train_weights(digits: &Digits, hidden: &[usize], gemm: &Gemm, epochs: usize, device: &Device) -> Result<Weights> {
    let (weights, variables) = Weights::random(hidden, SEED, device)?;
    let network = Mlp::new(&weights, |w, b| {
        candle_sgemm::Linear::new(w, Some(b)).with_gemm(gemm.clone())
    });
    let mut optimizer = AdamW::new(
        variables.clone(),
        ParamsAdamW {
            lr: 1e-3,
            ..Default::default()
        },
    )?;
    let (images, labels) = (digits.images(device)?, digits.labels(device)?);

    let steps = digits.len().div_ceil(STEP);
    let bar = ProgressBar::new((epochs * steps) as u64);
    bar.set_style(ProgressStyle::with_template(
        "training {wide_bar} {pos}/{len} steps, {msg}, {eta} left",
    )?);
    let mut shuffle = Shuffle::new(SEED + 1);
    for epoch in 1..=epochs {
        let mut loss_sum = 0.0;
        for rows in shuffle.order(digits.len()).chunks(STEP) {
            let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
            let rows = Tensor::new(rows, device)?;
            let logits = network.forward(&images.index_select(&rows, 0)?)?;
            let loss = candle_nn::loss::cross_entropy(&logits, &labels.index_select(&rows, 0)?)?;
            optimizer.backward_step(&loss)?;
            loss_sum += f64::from(loss.to_scalar::<f32>()?);
            bar.inc(1);
        }
        let loss = loss_sum / steps as f64;
        ensure!(
            loss.is_finite(),
            "training diverged in epoch {epoch}: the loss is {loss}"
        );
        bar.set_message(format!("epoch {epoch}, loss {loss:.4}"));
    }
    bar.finish();
    Ok(weights)
}

/// Accuracies, agreement of the predictions, and difference of the logits, on the held-out digits.
fn agreement(ours: &dyn Module, candle: &dyn Module, digits: &Digits, dtype: DType, device: &Device) -> Result<String> {
    let (images, labels) = (digits.images(device)?.to_dtype(dtype)?, digits.labels(device)?);
    let (our_logits, candle_logits) = (ours.forward(&images)?, candle.forward(&images)?);
    let predictions = [our_logits.argmax(D::Minus1)?, candle_logits.argmax(D::Minus1)?];
    let same =
        |a: &Tensor, b: &Tensor| -> Result<u32> { Ok(a.eq(b)?.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()?) };
    let share = |hits: u32| 100.0 * f64::from(hits) / digits.len() as f64;
    let difference = (our_logits.to_dtype(DType::F32)? - candle_logits.to_dtype(DType::F32)?)?
        .abs()?
        .flatten_all()?
        .max(0)?
        .to_scalar::<f32>()?;
    let agreeing = same(&predictions[0], &predictions[1])?;

    let mut table = String::new();
    writeln!(table, "{:28}{:>14}{:>14}", "held-out digits", "candle-sgemm", "candle")?;
    writeln!(
        table,
        "{:28}{:>12.2} %{:>12.2} %",
        "accuracy",
        share(same(&predictions[0], &labels)?),
        share(same(&predictions[1], &labels)?)
    )?;
    writeln!(
        table,
        "{:28}{agreeing} of {} ({})",
        "predictions that agree",
        digits.len(),
        if agreeing as usize == digits.len() {
            "all"
        } else {
            "not all"
        }
    )?;
    writeln!(table, "{:28}{difference:.1e}", "largest logit difference")?;
    Ok(table)
}

/// Latency and throughput of both, batch by batch.
fn speed(ours: &dyn Module, candle: &dyn Module, digits: &Digits, dtype: DType, device: &Device) -> Result<String> {
    let mut table = String::new();
    writeln!(
        table,
        "{:>6}{:>17}{:>17}{:>17}{:>17}{:>10}",
        "batch", "candle-sgemm", "candle", "candle-sgemm", "candle", "speed-up"
    )?;
    for batch in BATCHES {
        let images = digits.cycled(batch).images(device)?.to_dtype(dtype)?;
        let [ours, candle] = latencies([ours, candle], &images, device)?;
        let rate = |time: Duration| batch as f64 / time.as_secs_f64();
        writeln!(
            table,
            "{batch:>6}{:>14.1} µs{:>14.1} µs{:>10.0} img/s{:>10.0} img/s{:>9.2}×",
            ours.as_secs_f64() * 1e6,
            candle.as_secs_f64() * 1e6,
            rate(ours),
            rate(candle),
            candle.as_secs_f64() / ours.as_secs_f64()
        )?;
    }
    Ok(table)
}

/// The median time of one forward pass of each network, measured in turns so that both see the same machine.
fn latencies(networks: [&dyn Module; 2], images: &Tensor, device: &Device) -> Result<[Duration; 2]> {
    const WARM_UP: usize = 20;
    const LEAST_SAMPLES: usize = 20;
    const MEASURE: Duration = Duration::from_millis(600);

    let mut samples = [Vec::new(), Vec::new()];
    let mut begin = Instant::now();
    for round in 0.. {
        if round == WARM_UP {
            begin = Instant::now();
        } else if round >= WARM_UP + LEAST_SAMPLES && begin.elapsed() >= MEASURE {
            break;
        }
        for (network, samples) in networks.iter().zip(&mut samples) {
            let start = Instant::now();
            network.forward(images)?;
            device.synchronize()?;
            if round >= WARM_UP {
                samples.push(start.elapsed());
            }
        }
    }
    Ok(samples.map(|mut samples| {
        samples.sort_unstable();
        samples[samples.len() / 2]
    }))
}
