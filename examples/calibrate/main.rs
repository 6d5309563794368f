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
use candle_sgemm::gemm::tune::fit::{starting_costs, Figures, Loss, Moving, Sweep, Timed, CLOSE};
use candle_sgemm::gemm::{Costs, DType, Plan, Precision};
use clap::Parser;
use recording::{List, Recording, Shape};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use support::case::Layout;
use support::sampler::Class;

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
    /// Storage order of the A and B of `--shapes`: nn, nt, tn or tt (t: stored transposed); nt is that of a linear layer
    #[arg(long, default_value = "nt")]
    layout: Layout,
    /// Types of the elements, with commas. Types of 16 bits have the same costs: one of them is enough
    #[arg(long, value_name = "TYPE,…", value_delimiter = ',', default_value = "f32,bf16")]
    dtype: Vec<DType>,
    /// Fit to so many drawn shapes of each type, as far as there is time; with 0, and without --shapes, the built-in costs or those of --before
    /// are judged, and nothing is fitted
    #[arg(long, default_value_t = 1600)]
    fit: usize,
    /// Judge on so many other drawn shapes of each type, beside the grid of `ladder --grid`
    #[arg(long, default_value_t = 200)]
    held_out: usize,
    /// Draws other shapes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw only these, and leave out the grid: layer, head, attention, convolution, gradient, odd, with commas
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    class: Vec<Class>,
    /// Leave out plans that are predicted to be so many times slower than the best (of large products, half of that; 1.5 at most for
    /// shapes to fit to, on a GPU that the built-in costs were fitted on)
    #[arg(long, default_value_t = 4.0)]
    within: f64,
    /// Leave out kernels whose names contain one of these, with commas; `hopper`: those for compute capability 9.0 alone, and
    /// clusters. The costs are then not kept
    #[arg(long, value_name = "A,B")]
    exclude: Option<String>,
    /// Write what was measured to this file
    #[arg(long, value_name = "FILE.json")]
    record: Option<PathBuf>,
    /// Measure nothing: fit to what `--record` wrote, on any machine; to the shapes of several such files, with commas. The costs
    /// are then not kept
    #[arg(long, value_name = "FILE.json,…", value_delimiter = ',', conflicts_with = "record")]
    from: Vec<PathBuf>,
    /// Fit to the shapes of these lists, with commas, and judge on all
    #[arg(long, value_name = "LIST,…", value_delimiter = ',', default_value = "fit")]
    fit_to: Vec<List>,
    /// Fit the costs of kernels whose names contain one of these alone, and hold all others: for kernels that are new or have changed. Shapes to
    /// fit to on which none of these comes near are not measured then
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Hold the costs of kernels whose names contain one of these, with commas, and fit all others; `shared`: what kernels have in common
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', conflicts_with = "only")]
    hold: Vec<String>,
    /// Judge on every shape by costs that were fitted without it: fit so many times, each time without one of so many parts of all
    /// shapes. Nothing else is done then
    #[arg(long, value_name = "PARTS")]
    cross_validate: Option<usize>,
    /// Write what each plan took and what is predicted: with `--cross-validate` by costs that were fitted without its shape, else by
    /// the costs before
    #[arg(long, value_name = "FILE.tsv")]
    predictions: Option<PathBuf>,
    /// Compare with these costs, as `--out` writes them, in place of the built-in ones
    #[arg(long, value_name = "FILE.json")]
    before: Option<PathBuf>,
    /// Begin from the built-in costs of another GPU, which have seen none of the shapes
    #[arg(long)]
    afresh: bool,
    /// Print the costs as a file of src/gemm/kernel/costs/ on stdout; everything else goes to stderr
    #[arg(long)]
    export: bool,
    /// Write the costs to this file, and not into the user's cache folder
    #[arg(long, value_name = "FILE.json")]
    out: Option<PathBuf>,
}

impl Arguments {
    /// Whether `--only` names this kernel.
    fn only_names(&self, kernel: &str) -> bool {
        contains_one_of(kernel, &self.only)
    }

    /// Whether a shape of this list is not worth measuring: it is to be fitted to, and of the kernels that come near on it `--only` names none.
    #[cfg(any(feature = "cuda", test))]
    fn passes_over(&self, list: List, mut kernels: impl Iterator<Item = &'static str>) -> bool {
        list == List::Fit && !self.only.is_empty() && !kernels.any(|kernel| self.only_names(kernel))
    }

    /// Whether costs are judged and none fitted.
    fn judges_alone(&self) -> bool {
        self.fit == 0 && self.shapes.is_none()
    }

    /// The costs that are fitted to these plans.
    fn fitted(&self, sweep: &Sweep, start: &Costs, recording: &Recording) -> Costs {
        let kernels = |kernel: &str| match self.only.is_empty() {
            true => !contains_one_of(kernel, &self.hold),
            false => self.only_names(kernel),
        };
        let moving = Moving {
            kernels: &kernels,
            shared: self.only.is_empty() && !self.hold.iter().any(|part| part == "shared"),
            changed: !self.only.is_empty(),
        };
        sweep.fit(start, &recording.gpu, moving)
    }
}

/// Whether a kernel's name contains one of these.
fn contains_one_of(kernel: &str, parts: &[String]) -> bool {
    parts.iter().any(|part| kernel.contains(part.as_str()))
}

/// Whether a plan's kernel is among these, which `--exclude` names.
fn excludes(exclude: Option<&str>, plan: &Plan) -> bool {
    let only_on_hopper = plan.kernel.needs.only_capability == Some(90) || plan.cluster() > 1;
    exclude
        .iter()
        .flat_map(|text| text.split(','))
        .any(|part| match part.trim() {
            "" => false,
            "hopper" => only_on_hopper,
            part => plan.kernel.name.contains(part),
        })
}

/// The plans of some shapes, without those that were left out when they were measured.
fn sweep_of<'a>(
    recording: &Recording,
    shapes: impl IntoIterator<Item = &'a Shape>,
    costs: &Costs,
    arguments: &Arguments,
) -> Result<Sweep> {
    let mut sweep = Sweep::new(recording.device);
    for shape in shapes {
        let problem = shape.problem()?;
        let excluded = [&arguments.exclude, &shape.exclude];
        sweep.add(&problem, &shape.plans, costs, |plan| {
            excluded.iter().all(|exclude| !excludes(exclude.as_deref(), plan))
        });
    }
    Ok(sweep)
}

fn percent(part: f64) -> String {
    format!("{:.2}", 100.0 * part)
}

fn print_heading() {
    eprintln!("What the planner's choices lose against the fastest plans, %: mean, 95 of 100 at most, worst");
    eprintln!(
        "By how much predictions of the chosen plans' times are off, %: median, and the part that is off by at most {:.0}",
        100.0 * CLOSE
    );
    eprintln!("What choices take after as a part of before: geometric mean, worst\n");
    eprintln!(
        "{:<16} {:<12} {:>5}  {:^35}  {:^35}  {:^13}",
        "shapes", "precision", "count", "before", "after", "after/before"
    );
}

/// The lines of a list: what choices lost before and after, in the same order.
fn print_losses(name: &str, losses: [&[Loss]; 2]) {
    let f32 = |precision: Precision| (precision.name(), DType::F32, Some(precision));
    let of_16_bits = [DType::F16, DType::BF16].map(|dtype| (dtype.name(), dtype, None));
    for (kind, dtype, precision) in Precision::ALL.map(f32).into_iter().chain(of_16_bits) {
        let of = |loss: &&Loss| loss.dtype == dtype && precision.is_none_or(|one| loss.precision == one);
        if !losses[1].iter().any(|loss| of(&loss)) {
            continue;
        }
        let [before, after] = losses.map(|losses| Figures::of(losses.iter().filter(of)));
        let ratios: Vec<f64> = losses[0]
            .iter()
            .zip(losses[1])
            .filter(|(loss, _)| of(loss))
            .filter_map(|(before, after)| Some(after.us? / before.us?))
            .collect();
        let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len().max(1) as f64;
        let unmeasured = match after.unmeasured {
            0 => String::new(),
            count => format!("  ({count} choices were not measured)"),
        };
        let columns = |figures: &Figures| {
            let numbers = [
                figures.mean,
                figures.percentile_95,
                figures.worst,
                figures.off,
                figures.close,
            ];
            numbers.map(|number| format!("{:>6}", percent(number))).join(" ")
        };
        eprintln!(
            "{name:<16} {:<12} {:>5}  {:>35}  {:>35}  {:>6.4} {:>6.3}{unmeasured}",
            kind,
            after.count,
            columns(&before),
            columns(&after),
            mean.exp(),
            ratios.iter().copied().fold(0.0, f64::max),
        );
    }
}

/// The costs that a fit begins with.
fn start(recording: &Recording, arguments: &Arguments) -> Costs {
    let known = match arguments.afresh {
        true => Costs::built_in_of_others(&recording.device, &recording.gpu),
        false => Costs::built_in(&recording.device),
    };
    starting_costs(known, &recording.blocks_per_multiprocessor)
}

/// The costs that choices are compared with.
fn before(recording: &Recording, arguments: &Arguments) -> Result<Costs> {
    Ok(match &arguments.before {
        Some(path) => calibrated::read(path).with_context(|| format!("cannot take the costs in {}", path.display()))?,
        None => Costs::built_in(&recording.device).clone(),
    })
}

/// The costs that fit a recording, with what choices lose by them; `None` where none were asked for.
fn fit(recording: &Recording, arguments: &Arguments) -> Result<Option<Costs>> {
    let (start, old) = (start(recording, arguments), before(recording, arguments)?);
    let shapes = recording.shapes.iter();
    let fit_on = shapes.filter(|shape| arguments.fit_to.contains(&shape.list));
    let count = fit_on.clone().count();
    let fit_on = sweep_of(recording, fit_on, &start, arguments)?;
    let fitted = match (arguments.judges_alone(), fit_on.is_empty()) {
        (true, _) => None,
        (false, true) => bail!(
            "no shape was measured to fit to: give it more --seconds, or judge the costs as they are with --fit 0"
        ),
        (false, false) => {
            let begun = Instant::now();
            let fitted = arguments.fitted(&fit_on, &start, recording);
            eprintln!(
                "{}: {} plans of {count} shapes, fitted in {:.1} s; before: costs {old}\n",
                recording.gpu,
                fit_on.measured(),
                begun.elapsed().as_secs_f64()
            );
            Some(fitted)
        }
    };
    if fitted.is_none() {
        eprintln!("{}: nothing is fitted; before and after: costs {old}\n", recording.gpu);
    }
    let after = fitted.as_ref().unwrap_or(&old);
    if let Some(path) = &arguments.predictions {
        let mut lines = String::new();
        for shape in &recording.shapes {
            lines += &predictions(&sweep_of(recording, [shape], &start, arguments)?, shape, &old);
        }
        write_predictions(path, &lines)?;
    }
    print_heading();
    for list in List::ALL {
        let shapes = recording.shapes.iter().filter(|shape| shape.list == list);
        let sweep = sweep_of(recording, shapes, &start, arguments)?;
        if !sweep.is_empty() {
            print_losses(list.name(), [&sweep.losses(&old), &sweep.losses(after)]);
        }
    }
    Ok(fitted)
}

/// What costs predict of the plans of a shape, a line a plan.
fn predictions(sweep: &Sweep, shape: &Shape, costs: &Costs) -> String {
    let mut lines = String::new();
    for prediction in sweep.predictions(costs) {
        let Timed {
            kernel,
            cut,
            repacked,
            us,
        } = prediction.timed;
        let (predicted, regard) = (prediction.predicted_us, prediction.regard);
        // Writing to a string cannot fail.
        let _ = writeln!(
            lines,
            "{}\t{shape}\t{kernel}\t{cut:?}\t{repacked:?}\t{us}\t{predicted:.3}\t{regard:.4}\t{:?}",
            shape.list.name(),
            prediction.work
        );
    }
    lines
}

fn write_predictions(path: &Path, lines: &str) -> Result<()> {
    let heading = "list\tshape\tkernel\tcut\trepacked\tus\tpredicted_us\tregard\twork\n";
    std::fs::write(path, format!("{heading}{lines}")).with_context(|| format!("cannot write {}", path.display()))
}

/// What a part of the shapes showed by costs that were fitted to the others.
#[derive(Default)]
struct Part {
    /// The list of a choice, and what it lost before and after.
    losses: Vec<(List, Loss, Loss)>,
    /// A line a plan.
    predictions: String,
}

/// Judges on every shape by costs that were fitted to others.
fn cross_validate(recording: &Recording, arguments: &Arguments, parts: usize) -> Result<()> {
    let (start, old) = (start(recording, arguments), before(recording, arguments)?);
    // A shape that was recorded twice is in one part.
    let mut known: Vec<String> = Vec::new();
    let mut numbers = Vec::new();
    for shape in &recording.shapes {
        let name = shape.to_string();
        numbers.push(known.iter().position(|other| *other == name).unwrap_or_else(|| {
            known.push(name);
            known.len() - 1
        }));
    }
    let part_of = |number: usize| numbers[number] % parts;
    let one = |part: usize| -> Result<Part> {
        let shapes = || recording.shapes.iter().enumerate();
        let mut judged = Part::default();
        let others = shapes()
            .filter(|&(number, _)| part_of(number) != part)
            .map(|(_, shape)| shape);
        let fitted = arguments.fitted(&sweep_of(recording, others, &start, arguments)?, &start, recording);
        for (_, shape) in shapes().filter(|&(number, _)| part_of(number) == part) {
            let sweep = sweep_of(recording, [shape], &start, arguments)?;
            let both = sweep.losses(&old).into_iter().zip(sweep.losses(&fitted));
            judged
                .losses
                .extend(both.map(|(before, after)| (shape.list, before, after)));
            if arguments.predictions.is_some() {
                judged.predictions += &predictions(&sweep, shape, &fitted);
            }
        }
        Ok(judged)
    };
    let begun = Instant::now();
    let judged: Vec<Part> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..parts).map(|part| scope.spawn(move || one(part))).collect();
        let of = |thread: std::thread::ScopedJoinHandle<'_, Result<_>>| match thread.join() {
            Ok(losses) => losses,
            Err(_) => bail!("a fit failed"),
        };
        threads.into_iter().map(of).collect::<Result<Vec<_>>>()
    })?;
    if let Some(path) = &arguments.predictions {
        let lines: String = judged.iter().map(|part| part.predictions.as_str()).collect();
        write_predictions(path, &lines)?;
    }
    let losses: Vec<(List, Loss, Loss)> = judged.into_iter().flat_map(|part| part.losses).collect();
    eprintln!(
        "{}: {} shapes in {parts} parts, fitted in {:.1} s; before: costs {old}\n",
        recording.gpu,
        recording.shapes.len(),
        begun.elapsed().as_secs_f64()
    );
    print_heading();
    for list in List::ALL.map(Some).into_iter().chain([None]) {
        let of = losses.iter().filter(|(of, ..)| list.is_none_or(|list| list == *of));
        let (before, after): (Vec<Loss>, Vec<Loss>) = of.map(|&(_, before, after)| (before, after)).unzip();
        print_losses(list.map_or("all", List::name), [&before, &after]);
    }
    Ok(())
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
        _ if !arguments.from.is_empty() || arguments.exclude.is_some() => {
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
    if arguments.judges_alone() && (arguments.export || arguments.out.is_some() || arguments.cross_validate.is_some()) {
        bail!("--fit 0 fits nothing: there is nothing to --export, to write by --out or to --cross-validate");
    }
    let recording = match arguments.from.as_slice() {
        [] => record(arguments)?,
        paths => Recording::read_all(paths)?,
    };
    if let Some(path) = &arguments.record {
        recording.write(path)?;
        eprintln!("What was measured is in {}.", path.display());
    }
    if let Some(parts) = arguments.cross_validate {
        return cross_validate(&recording, arguments, parts.max(2));
    }
    let Some(costs) = fit(&recording, arguments)? else {
        return Ok(());
    };
    keep(&costs, &recording, arguments)?;
    if arguments.export {
        let about = format!(
            "//! Costs of an {}, fitted by `calibrate` on {} to {} shapes.\n",
            recording.gpu,
            recording.date.split('T').next().unwrap_or_default(),
            recording
                .shapes
                .iter()
                .filter(|shape| arguments.fit_to.contains(&shape.list))
                .count(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::drawn;
    use candle_sgemm::device::DeviceInfo;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::collections::HashMap;

    fn nothing_recorded(device: DeviceInfo) -> Recording {
        Recording {
            gpu: "a GPU".into(),
            device,
            version: String::new(),
            date: String::new(),
            blocks_per_multiprocessor: HashMap::new(),
            shapes: Vec::new(),
        }
    }

    #[test]
    fn what_was_left_out_of_a_recording_is_no_choice() {
        let arguments = Arguments::parse_from(["calibrate"]);
        let device = DeviceInfo::H200;
        let costs = Costs::built_in(&device);
        let mut recording = nothing_recorded(device);
        let mut seed = 0;
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for exclude in [None, Some("hopper"), Some("ffma_unaligned, gemm_")] {
                seed += 1;
                for subject in drawn(12, seed, &[], dtype).unwrap() {
                    let plans = Plan::candidates(&subject.problem, &device, costs);
                    let measured = plans.filter(|plan| !excludes(exclude, plan));
                    let timed: Vec<Timed> = measured.map(|plan| Timed::new(&plan, plan.predicted_us)).collect();
                    if !timed.is_empty() {
                        recording.shapes.push(Shape::new(List::Fit, &subject, exclude, timed));
                    }
                }
            }
        }
        // As it is written and read again.
        let recording: Recording = serde_json::from_slice(&serde_json::to_vec(&recording).unwrap()).unwrap();
        let unmeasured = |shapes: &[Shape]| {
            let sweep = sweep_of(&recording, shapes, costs, &arguments).unwrap();
            let losses = sweep.losses(costs);
            losses.iter().filter(|loss| loss.lost.is_none()).count()
        };
        assert_eq!(unmeasured(&recording.shapes), 0);
        let mut forgotten = recording.shapes.clone();
        forgotten.iter_mut().for_each(|shape| shape.exclude = None);
        assert!(unmeasured(&forgotten) > 0);
    }

    #[test]
    fn costs_are_judged_alone_where_that_is_asked() {
        let device = DeviceInfo::H200;
        let costs = Costs::built_in(&device);
        let mut recording = nothing_recorded(device);
        for subject in drawn(4, 9, &[], DType::F32).unwrap() {
            let plans = Plan::candidates(&subject.problem, &device, costs);
            let timed = plans.map(|plan| Timed::new(&plan, plan.predicted_us)).collect();
            recording.shapes.push(Shape::new(List::HeldOut, &subject, None, timed));
        }
        let options = [
            &["calibrate", "--fit", "0"] as &[&str],
            &["calibrate"],
            &["calibrate", "--fit", "0", "--shapes", "8x8x8"],
        ];
        let [asked, unasked, of_shapes] = options.map(Arguments::parse_from);
        assert!(fit(&recording, &asked).unwrap().is_none());
        for not_alone in [&unasked, &of_shapes] {
            assert!(fit(&recording, not_alone).is_err(), "there is nothing to fit to");
        }
        // Whatever was recorded.
        recording.shapes.iter_mut().for_each(|shape| shape.list = List::Fit);
        assert!(fit(&recording, &asked).unwrap().is_none());
        assert!(fit(&recording, &of_shapes).unwrap().is_some());
        for more in [
            &["--export"] as &[&str],
            &["--out", "costs.json"],
            &["--cross-validate", "2"],
        ] {
            let arguments = Arguments::parse_from([&["calibrate", "--fit", "0"] as &[&str], more].concat());
            assert!(run(&arguments).unwrap_err().to_string().contains("--fit 0"));
        }
    }

    #[test]
    fn what_is_held_stays_and_all_else_may_move() {
        let device = DeviceInfo::H200;
        let costs = Costs::built_in(&device);
        let mut rng = StdRng::seed_from_u64(3);
        let mut sweep = Sweep::new(device);
        for subject in drawn(8, 1, &[], DType::F32).unwrap() {
            let plans = Plan::candidates(&subject.problem, &device, costs);
            let timed: Vec<Timed> = plans
                .map(|plan| Timed::new(&plan, plan.predicted_us * rng.random_range(0.5..2.0)))
                .collect();
            sweep.add(&subject.problem, &timed, costs, |_| true);
        }
        let recording = nothing_recorded(device);
        // Whether these options hold a kernel, and what kernels share.
        type Holds = (&'static [&'static str], fn(&str) -> bool, bool);
        let cases: [Holds; 4] = [
            (
                &["--hold", "ffma_unaligned_"],
                |name| name.contains("ffma_unaligned_"),
                false,
            ),
            (&["--hold", "gemv_,shared"], |name| name.contains("gemv_"), true),
            (
                &["--only", "thin_,few_rows"],
                |name| !name.contains("thin_") && !name.contains("few_rows"),
                true,
            ),
            (&[], |_| false, false),
        ];
        for (options, held, shared_held) in cases {
            let arguments = Arguments::parse_from([&["calibrate"], options].concat());
            let fitted = arguments.fitted(&sweep, costs, &recording);
            let moved = |name: &String| fitted.kernels[name] != costs.kernels[name];
            let (stay, may_move): (Vec<_>, Vec<_>) = costs.kernels.keys().partition(|name| held(name));
            assert!(!stay.into_iter().any(moved), "{options:?}");
            assert!(may_move.into_iter().any(moved), "{options:?}");
            assert_eq!(fitted.shared == costs.shared, shared_held, "{options:?}");
        }
    }

    #[test]
    fn shapes_are_passed_over_where_no_kernel_to_fit_comes_near() {
        let device = DeviceInfo::H200;
        let costs = Costs::built_in(&device);
        let [all, thin] =
            [&["calibrate"] as &[&str], &["calibrate", "--only", "thin_,few_rows"]].map(Arguments::parse_from);
        let mut seen = [false; 2];
        for subject in drawn(60, 5, &[], DType::F32).unwrap() {
            let near: Vec<&'static str> = Plan::candidates(&subject.problem, &device, costs)
                .map(|plan| plan.kernel.name)
                .collect();
            let named = near
                .iter()
                .any(|name| name.contains("thin_") || name.contains("few_rows"));
            seen[usize::from(named)] = true;
            for list in [List::Fit, List::HeldOut, List::Grid] {
                assert!(!all.passes_over(list, near.iter().copied()));
                assert_eq!(
                    thin.passes_over(list, near.iter().copied()),
                    list == List::Fit && !named
                );
            }
        }
        assert_eq!(seen, [true; 2], "shapes of both kinds");
    }
}
