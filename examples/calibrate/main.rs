//! Fits the planner's costs to the GPU at hand: measures what the planner chooses among over a list of shapes, looks for the costs by
//! which it chooses best, keeps them in the user's cache folder, where the next process takes them from, and prints what its choices
//! lose against the fastest plans before and after.
//!
//!     cargo run --release --features cuda --example calibrate
//!     cargo run --release --features cuda --example calibrate -- --seconds 300 --record sweep.json --export > h200.rs
//!     cargo run --release --example calibrate -- --from sweep.json
//!
//! What it measures is what the planner compares: every kernel with every cut of k, on operands in place and repacked. Each shape is
//! measured once for all precisions. What is predicted to be many times slower than the best is left out (`--within`), and what a
//! short look shows to be slow is not looked at again.

#[path = "../../benches/support/mod.rs"]
mod support;

#[cfg(feature = "cuda")]
mod measure;
mod recording;
mod shapes;

use anyhow::{bail, Context, Result};
use candle_sgemm::gemm::kernel::costs::rust_source;
use candle_sgemm::gemm::tune::calibrated;
use candle_sgemm::gemm::tune::fit::{starting_costs, Figures, Sweep};
use candle_sgemm::gemm::{Costs, Plan, Precision};
use clap::Parser;
use recording::{List, Recording};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Fits the planner's costs to the GPU at hand.
#[derive(Parser, Debug)]
#[command(name = "calibrate")]
struct Arguments {
    /// Measure for so long, at most. The fit takes some seconds more
    #[arg(long, visible_alias = "budget", default_value_t = 150.0)]
    seconds: f64,
    /// Shapes to fit to beside the drawn ones: MxNxK, several with commas
    #[arg(long, value_name = "MxNxK,…")]
    shapes: Option<String>,
    /// Fit to so many drawn shapes
    #[arg(long, default_value_t = 400)]
    fit: usize,
    /// Judge on so many other drawn shapes, beside the grid of `ladder --grid`
    #[arg(long, default_value_t = 200)]
    held_out: usize,
    /// Draws other shapes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave out plans that are predicted to be so many times slower than the best (of large products, half of that)
    #[arg(long, default_value_t = 4.0)]
    within: f64,
    /// Leave out kernels whose names contain one of these, with commas; `hopper`: those for compute capability 9.0 alone, and
    /// clusters. The costs are then not kept
    #[arg(long, value_name = "A,B")]
    exclude: Option<String>,
    /// Write what was measured to this file
    #[arg(long, value_name = "FILE.json")]
    record: Option<PathBuf>,
    /// Measure nothing: fit to what `--record` wrote, on any machine. The costs are then not kept
    #[arg(long, value_name = "FILE.json", conflicts_with = "record")]
    from: Option<PathBuf>,
    /// Print the costs as a file of src/gemm/kernel/costs/ on stdout; everything else goes to stderr
    #[arg(long)]
    export: bool,
    /// Write the costs to this file, and not into the user's cache folder
    #[arg(long, value_name = "FILE.json")]
    out: Option<PathBuf>,
}

impl Arguments {
    fn excludes(&self, plan: &Plan) -> bool {
        let only_on_hopper = plan.kernel.needs.only_capability == Some(90) || plan.cluster() > 1;
        self.exclude
            .iter()
            .flat_map(|text| text.split(','))
            .any(|part| match part.trim() {
                "" => false,
                "hopper" => only_on_hopper,
                part => plan.kernel.name.contains(part),
            })
    }
}

/// The plans of a list.
fn sweep_of(recording: &Recording, list: List, costs: &Costs, arguments: &Arguments) -> Result<Sweep> {
    let mut sweep = Sweep::new(recording.device);
    for shape in recording.shapes.iter().filter(|shape| shape.list == list) {
        let problem = shape.problem()?;
        sweep.add(&problem, &shape.plans, costs, |plan| !arguments.excludes(plan));
    }
    Ok(sweep)
}

fn percent(part: f64) -> String {
    format!("{:.2}", 100.0 * part)
}

fn print_losses(name: &str, sweep: &Sweep, before: &Costs, after: &Costs) {
    let losses = [before, after].map(|costs| sweep.losses(costs));
    for precision in Precision::ALL.map(Some).into_iter().chain([None]) {
        let figures = losses.each_ref().map(|losses| {
            let of = losses
                .iter()
                .filter(|loss| precision.is_none_or(|one| loss.precision == one));
            Figures::of(of)
        });
        let [before, after] = figures;
        let unmeasured = match after.unmeasured {
            0 => String::new(),
            count => format!("  ({count} choices were not measured)"),
        };
        eprintln!(
            "{name:<10} {:<12} {:>6}  {:>6} {:>6} {:>7}  {:>6} {:>6} {:>7}{unmeasured}",
            precision.map_or("all", Precision::name),
            after.count,
            percent(before.mean),
            percent(before.percentile_95),
            percent(before.worst),
            percent(after.mean),
            percent(after.percentile_95),
            percent(after.worst),
        );
    }
}

/// The costs that fit a recording, with what choices lose by them.
fn fit(recording: &Recording, arguments: &Arguments) -> Result<Costs> {
    let built_in = Costs::built_in(&recording.device);
    let start = starting_costs(built_in, &recording.blocks_per_multiprocessor);
    let sweeps = List::ALL.map(|list| sweep_of(recording, list, &start, arguments).map(|sweep| (list, sweep)));
    let sweeps = sweeps.into_iter().collect::<Result<Vec<_>>>()?;
    let (_, fit_on) = &sweeps[0];
    if fit_on.is_empty() {
        bail!("no shape was measured to fit to: give it more --seconds");
    }
    let begun = Instant::now();
    let fitted = fit_on.fit(&start, &recording.gpu);
    eprintln!(
        "{}: {} plans of {} shapes, fitted in {:.1} s\n",
        recording.gpu,
        fit_on.measured(),
        recording.shapes.iter().filter(|shape| shape.list == List::Fit).count(),
        begun.elapsed().as_secs_f64()
    );
    eprintln!("What the planner's choices lose against the fastest plans, %: mean, 95 of 100 at most, worst");
    eprintln!("before: costs {built_in}\n");
    eprintln!(
        "{:<10} {:<12} {:>6}  {:^21}  {:^21}",
        "shapes", "precision", "count", "before", "after"
    );
    for (list, sweep) in sweeps.iter().filter(|(_, sweep)| !sweep.is_empty()) {
        print_losses(list.name(), sweep, &start, &fitted);
    }
    eprintln!(
        "\nPredictions of good plans are off by {} % (median); before, by {} %.",
        percent(fit_on.typical_error(&fitted)),
        percent(fit_on.typical_error(&start))
    );
    Ok(fitted)
}

/// Keeps the costs, or says why not.
fn keep(costs: &Costs, recording: &Recording, arguments: &Arguments) -> Result<()> {
    let write = |path: &Path| {
        calibrated::write(costs, path).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("The costs are in {}.", path.display());
        Ok(())
    };
    match (&arguments.out, calibrated::path(&recording.gpu)) {
        (Some(path), _) => write(path),
        _ if arguments.from.is_some() || arguments.exclude.is_some() => {
            eprintln!("The costs are not kept: that takes a measurement of all kernels here.");
            Ok(())
        }
        (None, Some(path)) => {
            write(&path)?;
            eprintln!("From now on products on this GPU are planned by them; delete the file to go back.");
            Ok(())
        }
        (None, None) => bail!("there is no cache folder to keep the costs in: name a file with --out"),
    }
}

#[cfg(feature = "cuda")]
fn record(arguments: &Arguments) -> Result<Recording> {
    measure::record(arguments)
}

#[cfg(not(feature = "cuda"))]
fn record(_: &Arguments) -> Result<Recording> {
    bail!("nothing can be measured: this build has no GPU support; build with --features cuda (README.md says what that needs), or fit to a recording with --from")
}

fn run(arguments: &Arguments) -> Result<()> {
    if !(arguments.seconds > 0.0 && arguments.within >= 1.0) {
        bail!("--seconds must be above 0 and --within at least 1");
    }
    let recording = match &arguments.from {
        Some(path) => Recording::read(path)?,
        None => record(arguments)?,
    };
    if let Some(path) = &arguments.record {
        recording.write(path)?;
        eprintln!("What was measured is in {}.", path.display());
    }
    let costs = fit(&recording, arguments)?;
    keep(&costs, &recording, arguments)?;
    if arguments.export {
        let about = format!(
            "//! Costs of an {}, fitted by `calibrate` on {} to {} shapes.\n",
            recording.gpu,
            recording.date.split('T').next().unwrap_or_default(),
            recording.shapes.iter().filter(|shape| shape.list == List::Fit).count(),
        );
        print!("{}", rust_source(&costs, &about));
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("calibrate: {error:#}");
            ExitCode::FAILURE
        }
    }
}
