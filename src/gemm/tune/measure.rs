//! Choosing by measurement: the planner's candidates for a problem are timed once on the device, and the winner is kept
//! in [`Choices`]. Off unless asked for by [`tune`], by [`Gemm::tuned`](crate::Gemm::tuned) or by `CANDLE_SGEMM_TUNE=1`.
//! Time alone decides here: the planner's preference for a small accumulation depth ([`Plan::accumulation_depth`]) does not.

use super::calibrated::costs;
use super::store::{Choice, Choices, Software};
use crate::device::CurrentContext;
use crate::error::{Error, Result};
use crate::gemm::launch::args::Addresses;
use crate::gemm::launch::room::usable;
use crate::gemm::launch::submit::launch;
use crate::gemm::launch::workspace::forget;
use crate::gemm::operands::{DType, OperandLayout, Operands};
use crate::gemm::planner::plan::Plan;
use crate::gemm::problem::{FoldedProblem, GemmProblem};
use cudarc::driver::{result, sys};
use half::{bf16, f16};
use std::collections::hash_map::{Entry, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Candidates that are measured: those that the cost model puts first.
const MAX_CANDIDATES: usize = 24;
/// Candidates that the cost model puts so many times above the best one are not measured.
const MAX_RATIO: f64 = 4.0;
/// The median of so many samples counts.
const SAMPLES: usize = 7;
/// Launches are repeated until a sample takes about so long, in µs.
const SAMPLE_US: f64 = 300.0;
const MAX_LAUNCHES: f64 = 50.0;
/// A model finds its weights cold: operands are rotated through so many times the L2 cache, in at most so many copies.
const L2_TIMES: u64 = 2;
const MAX_COPIES: u64 = 8;

/// The fastest plan for `problem` on the device of the context that is current on this thread: out of the user's cache
/// file, or measured now (which takes some milliseconds and waits for the device).
///
/// # Errors
///
/// [`Error::Problem`] for a problem that has no plan; [`Error::Driver`] if measuring fails, for example for want of memory
/// for a second set of operands.
pub fn tune(problem: &GemmProblem) -> Result<Plan> {
    tune_folded(&problem.folded().map_err(Error::Problem)?)
}

/// [`tune`] of a problem that has been folded.
///
/// # Errors
///
/// As [`tune`], but for the problem's.
pub(in crate::gemm) fn tune_folded(problem: &FoldedProblem) -> Result<Plan> {
    let context = CurrentContext::get()?;
    let choices = choices_for(device_words()?);
    choices.get_or_measure(
        problem,
        // Where the driver cannot say whether there is room, it is measured, which says so too.
        |choice| chosen(choice, problem, &context).ok().flatten(),
        || {
            let (plan, us) = measure(problem, &context)?;
            let choice = us.map(|us| Choice {
                kernel: plan.kernel.name.to_string(),
                cut: plan.cut,
                repacked: repacked(&plan),
                us,
            });
            Ok((plan, choice))
        },
    )
}

/// The plan that was measured to be the fastest for `problem`, now or by another process, if there is one.
///
/// # Errors
///
/// [`Error::Driver`] if the driver cannot describe the device.
pub(in crate::gemm) fn known(problem: &FoldedProblem, context: &CurrentContext) -> Result<Option<Plan>> {
    let choice = choices_for(device_words()?).get(problem);
    choice.map_or(Ok(None), |choice| chosen(&choice, problem, context))
}

/// The name of a GPU and what its times are measured with.
type DeviceWords = (String, Software);

/// The choices for a device, read from its file when they are first asked for.
fn choices_for(device: DeviceWords) -> Arc<Choices> {
    static CHOICES: OnceLock<Mutex<HashMap<DeviceWords, Arc<Choices>>>> = OnceLock::new();
    let all = CHOICES.get_or_init(Mutex::default);
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    let choices = match all.entry(device) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => {
            let (gpu, software) = new.key();
            let choices = Arc::new(Choices::of_user(gpu, software));
            new.insert(choices)
        }
    };
    choices.clone()
}

fn device_words() -> Result<DeviceWords> {
    /// Where Linux tells the version of NVIDIA's driver.
    const DRIVER_VERSION: [&str; 2] = ["/sys/module/nvidia/version", "/proc/driver/nvidia/version"];
    let say = |e| Error::driver("describing the GPU", e);
    let (mut device, mut cuda) = (0, 0);
    // SAFETY: the integers outlive the calls.
    unsafe {
        sys::cuCtxGetDevice(&mut device).result().map_err(say)?;
        sys::cuDriverGetVersion(&mut cuda).result().map_err(say)?;
    }
    let name = result::device::get_name(device).map_err(say)?;
    let driver = DRIVER_VERSION.iter().find_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        Software::driver_version_in(&text).map(String::from)
    });
    Ok((name, Software { cuda, driver }))
}

/// The plan that a choice names, if this build still has it and the device room for it.
fn chosen(choice: &Choice, problem: &FoldedProblem, context: &CurrentContext) -> Result<Option<Plan>> {
    let plan = Plan::candidates(problem, context.info(), costs(context))
        .find(|plan| plan.kernel.name == choice.kernel && plan.cut == choice.cut && repacked(plan) == choice.repacked);
    match plan {
        Some(plan) if usable(&plan, context)? => Ok(Some(plan)),
        _ => Ok(None),
    }
}

/// Which of A and B a plan repacks.
fn repacked(plan: &Plan) -> [bool; 2] {
    plan.repacks.map(|repack| repack.is_some())
}

/// The fastest candidate and its time in µs; of a problem that has none, the plan it gets all the same, which was not timed.
fn measure(problem: &FoldedProblem, context: &CurrentContext) -> Result<(Plan, Option<f64>)> {
    let mut candidates: Vec<Plan> = Plan::candidates(problem, context.info(), costs(context)).collect();
    candidates.sort_by(|x, y| x.predicted_us.total_cmp(&y.predicted_us));
    let mut plans: Vec<Plan> = Vec::new();
    for plan in candidates {
        let limit = plans
            .first()
            .map_or(f64::INFINITY, |first| first.predicted_us * MAX_RATIO);
        if plans.len() == MAX_CANDIDATES || plan.predicted_us > limit {
            break;
        }
        if usable(&plan, context)? {
            plans.push(plan);
        }
    }
    let Some(first) = plans.first() else {
        return Ok((Plan::of(problem, context.info(), costs(context))?, None));
    };
    let bench = Bench::new(problem, context)?;
    let mut best = (*first, f64::INFINITY);
    for plan in plans {
        let us = bench.time(&plan)?;
        if us < best.1 {
            best = (plan, us);
        }
    }
    Ok((best.0, Some(best.1)))
}

/// A stream with two events and operands full of random numbers, all given back at the end.
struct Bench {
    context: CurrentContext,
    stream: sys::CUstream,
    events: [sys::CUevent; 2],
    memory: Vec<sys::CUdeviceptr>,
    copies: Vec<Addresses>,
}

impl Bench {
    fn new(problem: &GemmProblem, context: &CurrentContext) -> Result<Self> {
        let say = |e| Error::driver("preparing to time kernels", e);
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(say)?;
        let mut bench = Bench {
            context: context.clone(),
            stream,
            events: [std::ptr::null_mut(); 2],
            memory: Vec::new(),
            copies: Vec::new(),
        };
        for event in &mut bench.events {
            *event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(say)?;
        }
        let (m, n, k) = (problem.m, problem.n, problem.k);
        let types = problem.types;
        let elements = |layout: &OperandLayout, rows: usize, cols: usize| reach(problem, layout, rows, cols);
        let (a, b) = (elements(&problem.a, m, k), elements(&problem.b, k, n));
        let streamed = a * types.a.size() + b * types.b.size();
        let copies = (L2_TIMES * context.info().l2_bytes).div_ceil(streamed.max(1) as u64);
        for _ in 0..copies.clamp(1, MAX_COPIES) {
            let factors = Operands {
                a: bench.random(a, types.a)?,
                b: bench.random(b, types.b)?,
                ..Operands::default()
            };
            bench.copies.push(Addresses::new(factors));
        }
        let epilogue = &problem.epilogue;
        let mut optional = |layout: &Option<OperandLayout>, dtype| match layout {
            Some(layout) => bench.random(elements(layout, m, n), dtype),
            None => Ok(0),
        };
        let (c, residual) = (
            optional(&epilogue.c, types.c)?,
            optional(&epilogue.residual, types.residual)?,
        );
        let bias = if epilogue.bias { bench.random(n, types.bias)? } else { 0 };
        let norm = if problem.normed { bench.random(k, types.a)? } else { 0 };
        let scalars = if epilogue.device_scalars {
            bench.random(2, DType::F32)?
        } else {
            0
        };
        let d = bench.random(elements(&problem.d, m, problem.result_columns()), types.d)?;
        for at in &mut bench.copies {
            *at = Addresses {
                operands: Operands {
                    c,
                    d,
                    bias,
                    residual,
                    ..at.operands
                },
                bias_stride: 1,
                alpha: scalars,
                beta: scalars + DType::F32.size() as u64,
                norm,
                norm_epsilon: 1e-5,
            };
        }
        Ok(bench)
    }

    /// Device memory for so many elements, full of numbers between −1 and 1.
    fn random(&mut self, elements: usize, dtype: DType) -> Result<u64> {
        const CHUNK: usize = 1 << 20;
        let bytes = elements * dtype.size();
        let say = |e| Error::driver("allocating operands to time kernels with", e);
        // SAFETY: the stream is alive until this is dropped.
        let address = unsafe { result::malloc_async(self.stream, bytes.max(4)) }.map_err(say)?;
        self.memory.push(address);
        let chunk = random_numbers(CHUNK.min(elements), dtype);
        let mut done = 0;
        while done < bytes {
            let now = (bytes - done).min(chunk.len());
            // SAFETY: both ranges are inside their memory; the host's is read before the call returns, for it is not
            // page-locked.
            unsafe { result::memcpy_htod_async(address + done as u64, &chunk[..now], self.stream) }.map_err(say)?;
            done += now;
        }
        Ok(address)
    }

    /// The median time of a launch in µs.
    fn time(&self, plan: &Plan) -> Result<f64> {
        let once = self.sample(plan, 1)?;
        let launches = (SAMPLE_US / once.max(1.0)).clamp(1.0, MAX_LAUNCHES) as usize;
        let mut samples = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            samples.push(self.sample(plan, launches)?);
        }
        samples.sort_by(f64::total_cmp);
        Ok(samples[SAMPLES / 2])
    }

    fn sample(&self, plan: &Plan, launches: usize) -> Result<f64> {
        let say = |e| Error::driver("timing kernels", e);
        let [start, end] = self.events;
        // SAFETY: the events and the stream are alive.
        unsafe { result::event::record(start, self.stream) }.map_err(say)?;
        for i in 0..launches {
            let at = &self.copies[i % self.copies.len()];
            // SAFETY: the operands were allocated for this problem, and live until the stream is done.
            unsafe { launch(plan, at, 1.0, 0.5, self.stream) }?;
        }
        // SAFETY: as above.
        unsafe {
            result::event::record(end, self.stream).map_err(say)?;
            result::event::synchronize(end).map_err(say)?;
            let ms = result::event::elapsed(start, end).map_err(say)?;
            Ok(ms as f64 * 1e3 / launches as f64)
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // An error here has no one to go to, and what failed before has been reported.
        let _ = forget(self.stream, &self.context);
        // SAFETY: all of these were made by this value, and nothing uses them any more.
        unsafe {
            for &address in &self.memory {
                let _ = result::free_async(address, self.stream);
            }
            for &event in self.events.iter().filter(|event| !event.is_null()) {
                let _ = result::event::destroy(event);
            }
            let _ = result::stream::synchronize(self.stream);
            let _ = result::stream::destroy(self.stream);
        }
    }
}

/// Elements from the first to the last one of an operand.
fn reach(problem: &GemmProblem, layout: &OperandLayout, rows: usize, cols: usize) -> usize {
    let batch = problem.batch_dims.iter().zip(layout.batch_strides);
    let steps = batch.chain([(&rows, layout.row_stride), (&cols, layout.col_stride)]);
    1 + steps
        .map(|(&extent, stride)| (extent - 1) * stride.max(0) as usize)
        .sum::<usize>()
}

/// Bytes of numbers between −1 and 1: their bits decide how much power a multiplication takes.
fn random_numbers(count: usize, dtype: DType) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut bytes = Vec::with_capacity(count * dtype.size());
    for _ in 0..count {
        match dtype {
            DType::F32 => bytes.extend(next().to_ne_bytes()),
            DType::F64 => bytes.extend(f64::from(next()).to_ne_bytes()),
            DType::F16 => bytes.extend(f16::from_f32(next()).to_ne_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f32(next()).to_ne_bytes()),
        }
    }
    bytes
}
