//! Measures the plans of the shapes, for as long as there is time.

use crate::recording::{List, Recording, Shape};
use crate::shapes::{drawn, shuffled_grid, to_fit, Subject, MOST_BYTES};
use crate::support::gpu::{Gpu, Launch, Timing};
use crate::support::record::now;
use crate::{excludes, Arguments};
use anyhow::{bail, ensure, Context, Result};
use candle_sgemm::gemm::kernel::spec::Arithmetic;
use candle_sgemm::gemm::launch::args::Addresses;
use candle_sgemm::gemm::launch::launch;
use candle_sgemm::gemm::operands::Operands;
use candle_sgemm::gemm::tune::fit::{starting_costs, Timed};
use candle_sgemm::gemm::{Costs, DType, Plan, TABLE};
use cudarc::driver::CudaSlice;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// What of the time each list has; what one leaves goes to the next.
const SHARES: [(List, f64); 3] = [(List::HeldOut, 0.25), (List::Grid, 0.3), (List::Fit, 0.45)];
/// Times as many plans are candidates of a product in FP32, at three precisions, as of one in 16 bits.
const SHARE_OF_F32: f64 = 3.0;
/// Of a GPU that the built-in costs were fitted on, plans that are predicted to take longer than this many times the best are nothing to fit
/// to: without the four fifths of all plans that are further off, choices among other shapes are better, and in their time other shapes
/// can be measured.
const NEAR_ENOUGH_TO_FIT: f64 = 1.5;
/// Storages start on a multiple of this, in bytes.
const STORAGE_BYTES: usize = 256;
/// Products whose best plan is predicted to take longer, in µs, are large: few plans of them are measured.
const LARGE_US: f64 = 300.0;
/// Launches of a first look take about so long, in µs, and are no more than this.
const LOOK_US: f64 = 40.0;
const LOOK_LAUNCHES: f64 = 12.0;
/// What takes so many times as long as predicted at first look, or more, is looked at a second time after all others, and the shorter time
/// counts: now and then something else delays launches, which can look like a bad plan where the product is small.
const SURPRISING: f64 = 1.25;
/// What takes so many times as long as the fastest at first look is not measured thoroughly, unless the planner would choose it.
const NEAR: f64 = 1.25;
/// The plans that are measured thoroughly take turns.
const AGAIN: Timing = Timing {
    samples: 5,
    sample_us: 120.0,
    with_host: false,
    pause: Duration::ZERO,
};
/// What then takes no longer than this many times the fastest is measured once more: the shortest of several times that are as long is
/// shorter than each of them is, the more so the less they were measured.
const NEXT_TO_BEST: f64 = 1.08;
const ONCE_MORE: Timing = Timing {
    samples: 11,
    sample_us: 200.0,
    with_host: false,
    pause: Duration::ZERO,
};
/// A sample has at least so many launches, back to back as in a model: by itself a launch does not show what PDL hides of its start, and
/// of two large products the one that starts more slowly would look slower than it is.
const LEAST_LAUNCHES: f64 = 4.0;
/// Then there are fewer samples, but so many at least: in this time, in µs, as far as it goes.
const LEAST_SAMPLES: f64 = 3.0;
const SAMPLES_US: f64 = 4000.0;
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
    let share_of = |dtype: DType| if dtype == DType::F32 { SHARE_OF_F32 } else { 1.0 };
    let shares: f64 = arguments.dtype.iter().map(|&dtype| share_of(dtype)).sum();
    let mut room = Room::new(&gpu)?;
    // Without some kernels, those come near the best that never did when the costs were fitted.
    let known = costs.gpu == recording.gpu && arguments.exclude.is_none();
    for &dtype in &arguments.dtype {
        room.fill(dtype)?;
        for (list, share) in SHARES {
            let subjects = match list {
                List::Fit => to_fit(
                    arguments.shapes.as_deref(),
                    arguments.layout,
                    arguments.fit,
                    2 * arguments.seed,
                    &arguments.class,
                    dtype,
                )?,
                List::HeldOut => drawn(arguments.held_out, 2 * arguments.seed + 1, &arguments.class, dtype)?,
                List::Grid if !arguments.class.is_empty() => Vec::new(),
                List::Grid => shuffled_grid(dtype)?,
            };
            let within = match list {
                List::Fit if known => arguments.within.min(NEAR_ENOUGH_TO_FIT),
                _ => arguments.within,
            };
            until += share * arguments.seconds * share_of(dtype) / shares;
            let end = begun + Duration::from_secs_f64(until);
            for (number, subject) in subjects.iter().enumerate() {
                if Instant::now() >= end {
                    bar.suspend(|| {
                        eprintln!(
                            "{dtype}, {}: {number} of {} shapes measured, for want of time",
                            list.name(),
                            subjects.len()
                        );
                    });
                    break;
                }
                bar.set_position(begun.elapsed().as_millis() as u64);
                bar.set_message(format!(
                    "{:.0} s, {dtype}, {} {}/{}: {}",
                    arguments.seconds,
                    list.name(),
                    number + 1,
                    subjects.len(),
                    subject.name
                ));
                let plans = to_measure(&room, subject, &costs, within, arguments)?;
                if arguments.passes_over(list, plans.iter().map(|plan| plan.kernel.name)) {
                    continue;
                }
                let plans = measure(&room, subject, &plans).with_context(|| subject.name.clone())?;
                recording
                    .shapes
                    .push(Shape::new(list, subject, arguments.exclude.as_deref(), plans));
            }
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
        if spec.needs.are_met_by(device) && spec.dynamic_shared <= device.shared_per_block {
            let function = gpu.context.function(spec.file, spec.name, spec.dynamic_shared)?;
            let held = function.blocks_per_multiprocessor(spec.threads, spec.dynamic_shared)?;
            blocks.insert(spec.name.into(), held.max(1));
        }
    }
    Ok(blocks)
}

/// The same timing for launches that take about so long.
fn timing_of(timing: Timing, us: f64) -> Timing {
    let sample_us = timing.sample_us.max(LEAST_LAUNCHES * us);
    let samples = (SAMPLES_US / sample_us).max(LEAST_SAMPLES) as usize;
    Timing {
        samples: timing.samples.min(samples),
        sample_us,
        ..timing
    }
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

/// Memory for all subjects, one after the other: to allocate and fill it for each would take longer than many are measured.
struct Room<'a> {
    gpu: &'a Gpu,
    /// Random numbers of one type, of which every operand is a view.
    operands: CudaSlice<u8>,
    result: CudaSlice<u8>,
}

impl<'a> Room<'a> {
    fn new(gpu: &'a Gpu) -> Result<Self> {
        // Beside A there is room for two of the largest B, or for as many smaller ones as exceed the L2 twice.
        let copies = 4 * gpu.context.info().l2_bytes as usize;
        Ok(Room {
            gpu,
            operands: gpu.allocate(2 * MOST_BYTES + copies)?,
            result: gpu.allocate(MOST_BYTES)?,
        })
    }

    fn fill(&mut self, dtype: DType) -> Result<()> {
        const THREADS: u32 = 256;
        let entry = match dtype {
            DType::F32 => "fill_random_f32",
            DType::F16 => "fill_random_f16",
            DType::BF16 => "fill_random_bf16",
            _ => bail!("products of {dtype} are not calibrated: the planner has no kernels for them"),
        };
        let mut address = self.gpu.address(&self.operands);
        let (mut count, mut seed) = ((self.operands.len() / dtype.size()) as u64, 1u64);
        let mut parameters: [*mut c_void; 3] = [
            std::ptr::from_mut(&mut address).cast(),
            std::ptr::from_mut(&mut count).cast(),
            std::ptr::from_mut(&mut seed).cast(),
        ];
        let blocks = (16 * self.gpu.context.info().sm_count, 1, 1);
        // SAFETY: the kernel takes these three and writes `count` elements, which the buffer holds.
        unsafe {
            self.gpu
                .launch_diagnostic("diagnostics/measure", entry, blocks, THREADS, &mut parameters)
        }
    }

    /// Where the operands of each launch lie: B of one that is cold somewhere else than that of the launch before.
    fn places(&self, subject: &Subject) -> Result<impl Fn(usize) -> Addresses> {
        let size = subject.problem.dtype().size();
        let [a_bytes, b_bytes] = subject.spans.map(|span| (span * size).next_multiple_of(STORAGE_BYTES));
        let copies = match subject.cold {
            true => (2 * self.gpu.context.info().l2_bytes as usize).div_ceil(b_bytes) + 1,
            false => 1,
        };
        let problem = &subject.problem;
        let d_bytes = problem.batch() * problem.m * problem.n * size;
        ensure!(
            a_bytes + copies * b_bytes <= self.operands.len() && d_bytes <= self.result.len(),
            "there is no room for it: {a_bytes} bytes of A, {copies} × {b_bytes} of B, {d_bytes} of D"
        );
        let [a_offset, b_offset] = subject.offsets.map(|offset| offset * size);
        let (storage, d) = (self.gpu.address(&self.operands), self.gpu.address(&self.result));
        Ok(move |launch: usize| {
            Addresses::new(Operands {
                a: storage + a_offset as u64,
                b: storage + (a_bytes + launch % copies * b_bytes + b_offset) as u64,
                d,
                ..Operands::default()
            })
        })
    }
}

/// The plans of a subject that are measured: what the planner chooses among, without those that are predicted to be far too slow.
fn to_measure(room: &Room, subject: &Subject, costs: &Costs, within: f64, arguments: &Arguments) -> Result<Vec<Plan>> {
    let (problem, device) = (subject.problem, room.gpu.context.info());
    let guessed = |plan: &Plan| !Costs::built_in(device).kernels.contains_key(plan.kernel.costs_name());
    let mut plans: Vec<Plan> = Plan::candidates(&problem, device, costs)
        .filter(|plan| !excludes(arguments.exclude.as_deref(), plan))
        .collect();
    let best = least(&plans, |at| plans[at].predicted_us);
    plans.retain(|plan| {
        let best = best[class(plan)];
        let within = if best > LARGE_US {
            (within / 2.0).max(1.2)
        } else {
            within
        };
        // Costs that are to be fitted say little about who comes near.
        let within = match arguments.only_names(plan.kernel.name) {
            true => within.max(arguments.within),
            false => within,
        };
        plan.predicted_us <= within * best || guessed(plan)
    });
    let mut usable = Vec::new();
    for plan in plans {
        if plan.is_usable(&room.gpu.context)? {
            usable.push(plan);
        }
    }
    Ok(usable)
}

/// The times of these plans of a subject.
fn measure(room: &Room, subject: &Subject, plans: &[Plan]) -> Result<Vec<Timed>> {
    let gpu = room.gpu;
    let places = room.places(subject)?;
    // Samples are short: if each began with the first copy of a small B again, that would still be in the L2.
    let launches = Cell::new(0usize);
    let run = |plan: &Plan| -> Result<()> {
        let at = places(launches.replace(launches.get() + 1));
        // SAFETY: the views lie in the storage, the result fits into its buffer, and both live until the last launch has ended;
        // the stream's context is current on this thread.
        unsafe { launch(plan, &at, 1.0, 0.0, gpu.stream.cu_stream()) }?;
        Ok(())
    };
    let mut times = first_look(gpu, plans, &run)?;
    for (within, timing) in [(NEAR, AGAIN), (NEXT_TO_BEST, ONCE_MORE)] {
        again(gpu, plans, &run, within, timing, &mut times)?;
    }
    let rounded = |us: f64| (us * 1e3).round() / 1e3;
    Ok(plans
        .iter()
        .zip(times)
        .map(|(plan, us)| Timed::new(plan, rounded(us)))
        .collect())
}

/// A short look at all plans, and a second one at those that surprise.
fn first_look(gpu: &Gpu, plans: &[Plan], run: &impl Fn(&Plan) -> Result<()>) -> Result<Vec<f64>> {
    let sample = |plan: &Plan, count: u32, hold: bool| {
        gpu.sample(count, hold, &mut |_| run(plan))
            .with_context(|| plan.kernel.name.to_string())
    };
    let look = |plan: &Plan| {
        let count = (LOOK_US / plan.predicted_us).clamp(1.0, LOOK_LAUNCHES) as u32;
        sample(plan, count, plan.predicted_us < NEEDS_NO_HOLD_US)
    };
    let mut times = Vec::new();
    for plan in plans {
        sample(plan, 1, false)?;
        times.push(look(plan)?);
    }
    for (plan, us) in plans.iter().zip(&mut times) {
        if *us > SURPRISING * plan.predicted_us {
            *us = us.min(look(plan)?);
        }
    }
    Ok(times)
}

/// Measures what takes no longer than `within` times the fastest once more, side by side with what the planner would choose.
fn again(
    gpu: &Gpu,
    plans: &[Plan],
    run: &impl Fn(&Plan) -> Result<()>,
    within: f64,
    timing: Timing,
    times: &mut [f64],
) -> Result<()> {
    let chosen = least(plans, |at| plans[at].predicted_us);
    let best = least(plans, |at| times[at]);
    let slowest = best.iter().copied().filter(|us| us.is_finite()).fold(0.0, f64::max);
    // One launch of a large product says more than one of a small one.
    let within = if slowest > LARGE_US {
        1.0 + (within - 1.0) / 2.0
    } else {
        within
    };
    let near: Vec<usize> = (0..plans.len())
        .filter(|&at| {
            let class = class(&plans[at]);
            times[at] <= within * best[class] || chosen[class..].contains(&plans[at].predicted_us)
        })
        .collect();
    let mut launches: Vec<Box<Launch>> = near
        .iter()
        .map(|&at| Box::new(move |_| run(&plans[at])) as Box<Launch>)
        .collect();
    let mut launches: Vec<&mut Launch> = launches.iter_mut().map(|launch| &mut **launch).collect();
    // Of the slowest of them a sample has fewer launches, but more than one.
    for (&at, us) in near.iter().zip(gpu.compare(&mut launches, timing_of(timing, slowest))?) {
        times[at] = us;
    }
    Ok(())
}
