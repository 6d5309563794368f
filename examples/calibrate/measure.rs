//! Measures the plans of the shapes, for as long as there is time.

use crate::recording::{problem_of, List, Recording, Shape};
use crate::shapes::{drawn, shuffled_grid, to_fit};
use crate::support::case::Case;
use crate::support::gpu::{Gpu, Launch, Timing};
use crate::support::product::Product;
use crate::support::record::now;
use crate::Arguments;
use anyhow::{Context, Result};
use candle_sgemm::gemm::kernel::spec::Arithmetic;
use candle_sgemm::gemm::tune::fit::{starting_costs, Timed};
use candle_sgemm::gemm::{Costs, Plan, Precision, TABLE};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What of the time each list has; what one leaves goes to the next.
const SHARES: [(List, f64); 3] = [(List::HeldOut, 0.25), (List::Grid, 0.3), (List::Fit, 1.0)];
/// Products whose best plan is predicted to take longer, in µs, are large: few plans of them are measured.
const LARGE_US: f64 = 300.0;
/// Launches of a first look take about so long, in µs, and are no more than this.
const LOOK_US: f64 = 40.0;
const LOOK_LAUNCHES: f64 = 12.0;
/// What takes so many times as long as the fastest at first look is not looked at again.
const NEAR: f64 = 1.25;
/// The plans that are looked at again are measured in turn.
const AGAIN: Timing = Timing {
    samples: 5,
    sample_us: 120.0,
    with_host: false,
};
/// From here on the host is ahead of the device by itself, in µs a launch.
const NEEDS_NO_HOLD_US: f64 = 100.0;

/// Measures until the time is over or everything is measured.
///
/// # Errors
///
/// If there is no GPU, or CUDA fails.
pub fn record(arguments: &Arguments) -> Result<Recording> {
    let gpu = Gpu::open()?;
    let device = *gpu.context.info();
    let blocks_per_multiprocessor = blocks_per_multiprocessor(&gpu)?;
    let costs = starting_costs(Costs::built_in(&device), &blocks_per_multiprocessor);
    let mut recording = Recording {
        gpu: gpu.context.name().into(),
        device,
        version: env!("CARGO_PKG_VERSION").into(),
        date: now(),
        blocks_per_multiprocessor,
        shapes: Vec::new(),
    };
    let style = ProgressStyle::with_template("{bar:30} {elapsed} of {msg}").context("the progress bar's template")?;
    let bar = ProgressBar::new((arguments.seconds * 1e3) as u64).with_style(style);
    let begun = Instant::now();
    let mut until = 0.0;
    for (list, share) in SHARES {
        let cases = match list {
            List::Fit => to_fit(arguments.shapes.as_deref(), arguments.fit, 2 * arguments.seed)?,
            List::HeldOut => drawn(arguments.held_out, 2 * arguments.seed + 1),
            List::Grid => shuffled_grid(),
        };
        until = if share < 1.0 {
            until + share * arguments.seconds
        } else {
            arguments.seconds
        };
        let end = begun + Duration::from_secs_f64(until);
        for (number, case) in cases.iter().enumerate() {
            if Instant::now() >= end {
                bar.suspend(|| {
                    eprintln!(
                        "{}: {number} of {} shapes measured, for want of time",
                        list.name(),
                        cases.len()
                    );
                });
                break;
            }
            bar.set_position(begun.elapsed().as_millis() as u64);
            bar.set_message(format!(
                "{:.0} s, {} {}/{}: {case}",
                arguments.seconds,
                list.name(),
                number + 1,
                cases.len()
            ));
            let plans = measure(&gpu, case, &costs, arguments).with_context(|| case.to_string())?;
            recording.shapes.push(Shape::new(list, case, plans));
        }
    }
    bar.finish_and_clear();
    eprintln!(
        "{} plans of {} shapes in {:.0} s",
        recording.shapes.iter().map(|shape| shape.plans.len()).sum::<usize>(),
        recording.shapes.len(),
        begun.elapsed().as_secs_f64()
    );
    Ok(recording)
}

/// How many blocks of each kernel that this build has a multiprocessor holds.
fn blocks_per_multiprocessor(gpu: &Gpu) -> Result<HashMap<String, u32>> {
    let device = gpu.context.info();
    let mut blocks = HashMap::new();
    for spec in TABLE {
        let here = device.code_capability >= spec.needs.min_capability
            && spec
                .needs
                .only_capability
                .is_none_or(|only| only == device.code_capability);
        if here && spec.dynamic_shared <= device.shared_per_block {
            let function = gpu.context.function(spec.file, spec.name, spec.dynamic_shared)?;
            let held = function.blocks_per_multiprocessor(spec.threads, spec.dynamic_shared)?;
            blocks.insert(spec.name.into(), held.max(1));
        }
    }
    Ok(blocks)
}

/// The index of the strictest precision at which a plan may be taken.
fn class(plan: &Plan) -> usize {
    match plan.kernel.arithmetic {
        Arithmetic::Ffma | Arithmetic::Half => 0,
        Arithmetic::Tf32x3 => 1,
        Arithmetic::Tf32 => 2,
    }
}

/// For each class, the least of these numbers among plans that may be taken at its precision.
fn least(plans: &[Plan], of: impl Fn(usize) -> f64) -> [f64; 3] {
    let mut least = [f64::INFINITY; 3];
    for (at, plan) in plans.iter().enumerate() {
        for least in &mut least[class(plan)..] {
            *least = least.min(of(at));
        }
    }
    least
}

/// The times of the plans of a case.
fn measure(gpu: &Gpu, case: &Case, costs: &Costs, arguments: &Arguments) -> Result<Vec<Timed>> {
    let (problem, device) = (problem_of(case)?, gpu.context.info());
    let guessed = |plan: &Plan| !Costs::built_in(device).kernels.contains_key(plan.kernel.name);
    let mut plans: Vec<Plan> = Plan::candidates(&problem, device, costs)
        .filter(|plan| !arguments.excludes(plan))
        .collect();
    let best = least(&plans, |at| plans[at].predicted_us);
    plans.retain(|plan| {
        let best = best[class(plan)];
        let within = if best > LARGE_US {
            (arguments.within / 2.0).max(1.2)
        } else {
            arguments.within
        };
        plan.predicted_us <= within * best || guessed(plan)
    });
    let mut usable = Vec::new();
    for plan in plans {
        if plan.is_usable(&gpu.context)? {
            usable.push(plan);
        }
    }
    let plans = usable;
    let product = Product::to_time(gpu, *case, Precision::Tf32)?;
    let mut times = Vec::new();
    for plan in &plans {
        let mut launch = |i| product.launch(plan, i);
        let say = || plan.kernel.name.to_string();
        gpu.sample(1, false, &mut launch).with_context(say)?;
        let count = (LOOK_US / plan.predicted_us).clamp(1.0, LOOK_LAUNCHES) as u32;
        let hold = plan.predicted_us < NEEDS_NO_HOLD_US;
        times.push(gpu.sample(count, hold, &mut launch).with_context(say)?);
    }
    let best = least(&plans, |at| times[at]);
    let near: Vec<usize> = (0..plans.len())
        .filter(|&at| times[at] <= NEAR * best[class(&plans[at])])
        .collect();
    let mut launches: Vec<Box<Launch>> = near
        .iter()
        .map(|&at| {
            let (product, plan) = (&product, &plans[at]);
            Box::new(move |i| product.launch(plan, i)) as Box<Launch>
        })
        .collect();
    let mut launches: Vec<&mut Launch> = launches.iter_mut().map(|launch| &mut **launch).collect();
    for (&at, us) in near.iter().zip(gpu.compare(&mut launches, AGAIN)?) {
        times[at] = us;
    }
    let rounded = |us: f64| (us * 1e3).round() / 1e3;
    Ok(plans
        .iter()
        .zip(times)
        .map(|(plan, us)| Timed::new(plan, rounded(us)))
        .collect())
}
