//! Checks and measures, and gathers the rows of the report.

use crate::support::case::{grid as grid_cases, Case, Layout};
use crate::support::gpu::{Gpu, Timing};
use crate::support::product::Product;
use crate::support::record::{Report, Row};
use crate::{print, Arguments};
use anyhow::{Context, Result};
use candle_sgemm::device::CurrentContext;
use candle_sgemm::gemm::kernel::spec::Role;
use candle_sgemm::gemm::{DType, GemmProblem, KernelSpec, Plan, Precision};
use candle_sgemm::modules::resources;
use candle_sgemm::Error;
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

pub const PROGRAM: &str = "cargo run --release --features cuda --example ladder --";

/// The rung whose source transposes A beforehand. It is measured so where A does not come stored transposed.
const TURNS_A: Role = Role::Rung(9);

impl Arguments {
    pub fn timing(&self) -> Timing {
        Timing {
            samples: self.samples,
            sample_us: self.sample_ms * 1e3,
            with_host: false,
            pause: Duration::from_secs_f64(self.pause_ms * 1e-3),
        }
    }
}

pub fn progress(steps: usize) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").context("the progress bar's template")?;
    Ok(ProgressBar::new(steps as u64).with_style(style))
}

/// Every kernel on every case beside cuBLAS. A kernel that cannot take a case is left out with its reason; one that is
/// wrong ends the run.
pub fn ladder(gpu: &Gpu, arguments: &Arguments, cases: &[Case], kernels: &[&'static KernelSpec]) -> Result<Report> {
    let mut report = gpu.report(PROGRAM)?;
    print::heading(&report);
    let bar = progress(cases.len() * kernels.len())?;
    for &case in cases {
        let (mut rows, mut left_out) = (Vec::new(), Vec::new());
        for dtype in [DType::F32, DType::F64] {
            let kernels: Vec<_> = kernels.iter().filter(|spec| spec.dtype == dtype).collect();
            if kernels.is_empty() {
                continue;
            }
            let product = Product::new(gpu, case, dtype, arguments.precision, arguments.alpha, arguments.beta)?;
            product.check("cuBLAS", || product.launch_cublas(0))?;
            for spec in kernels {
                bar.set_message(format!("{} on {case}", spec.name));
                if spec.role == TURNS_A && !case.layout.a_transposed {
                    rows.push(measure_turned(gpu, &product, spec, arguments.timing())?);
                    bar.inc(1);
                    continue;
                }
                match product.plan(Some(spec.name)) {
                    Ok(plan) => rows.push(measure(gpu, &product, &plan, "ladder", arguments.timing())?),
                    Err(Error::Refused { kernel, reason }) => left_out.push(format!("{kernel}: {reason}")),
                    Err(error) => return Err(error.into()),
                }
                bar.inc(1);
            }
        }
        bar.suspend(|| print::case(&case, &rows, &left_out, gpu.ffma_tflops));
        report.rows.extend(rows);
    }
    bar.finish_and_clear();
    Ok(report)
}

/// The shapes that were asked for, with weights that are not in the L2; else those of networks.
fn cases_to_plan(arguments: &Arguments, cases: &[Case]) -> Vec<Case> {
    match arguments.shapes {
        // Products in a batch have no weights, as in the grid.
        Some(_) => cases
            .iter()
            .map(|case| Case {
                cold: case.batch == 1,
                ..*case
            })
            .collect(),
        None => grid_cases(),
    }
}

/// The planner's choice on the shapes of networks, or on those asked for, beside cuBLAS.
pub fn grid(gpu: &Gpu, arguments: &Arguments, cases: &[Case]) -> Result<Report> {
    let mut report = gpu.report(PROGRAM)?;
    print::heading(&report);
    let cases = cases_to_plan(arguments, cases);
    let bar = progress(cases.len())?;
    for case in cases {
        bar.set_message(case.to_string());
        let product = Product::new(
            gpu,
            case,
            arguments.dtype,
            arguments.precision,
            arguments.alpha,
            arguments.beta,
        )?;
        // Of 16-bit products cuBLAS may round sums of slices of k, too.
        if arguments.dtype == DType::F32 {
            product.check("cuBLAS", || product.launch_cublas(0))?;
        }
        let plan = product.plan(None)?;
        let row = measure(gpu, &product, &plan, "sgemm", arguments.timing())?;
        bar.suspend(|| print::grid_row(&case, &row));
        report.rows.push(row);
        bar.inc(1);
    }
    bar.finish_and_clear();
    print::grid_summary(&report);
    Ok(report)
}

/// The planner's choice beside cuBLAS in every layout and at every precision: back to back, and after pauses.
pub fn sustained(gpu: &Gpu, arguments: &Arguments, cases: &[Case]) -> Result<Report> {
    let mut report = gpu.report(PROGRAM)?;
    print::heading(&report);
    // Precision governs FP32 factors.
    let precisions: &[Precision] = match arguments.dtype {
        DType::F32 => &Precision::ALL,
        _ => &[Precision::Fp32],
    };
    let bar = progress(cases.len() * Layout::ALL.len() * precisions.len())?;
    for case in cases {
        for &precision in precisions {
            for layout in Layout::ALL {
                let case = Case { layout, ..*case };
                bar.set_message(format!("{case} {precision}"));
                let product = Product::new(gpu, case, arguments.dtype, precision, arguments.alpha, arguments.beta)?;
                let plan = product.plan(None)?;
                if arguments.dtype == DType::F32 {
                    product.check("cuBLAS", || product.launch_cublas(0))?;
                }
                product.check(plan.kernel.name, || product.launch(&plan, 0))?;
                let mut cublas = |i| product.launch_cublas(i);
                let mut ours = |i| product.launch(&plan, i);
                let settled = (gpu.sustained(&mut cublas)?, gpu.sustained(&mut ours)?);
                let rested = (gpu.after_pause(&mut cublas)?, gpu.after_pause(&mut ours)?);
                let rows = [("sustained", settled), ("after a pause", rested)].map(|(pace, times)| {
                    Ok(Row {
                        pace: Some(pace.into()),
                        ..row(gpu, &product, &plan, "sustained", times)?
                    })
                });
                let rows = rows.into_iter().collect::<Result<Vec<_>>>()?;
                bar.suspend(|| print::paces(&case, &rows));
                report.rows.extend(rows);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(report)
}

/// The plans that the planner considers for a problem, if this build has their kernels and `wanted` takes them: in the order of their
/// predicted times, without those that are predicted to be more than `within` times slower than the first.
pub fn considered(
    gpu: &Gpu,
    problem: &GemmProblem,
    within: f64,
    wanted: impl Fn(&KernelSpec) -> bool,
) -> Result<Vec<Plan>> {
    let (problem, device) = (problem.folded().map_err(anyhow::Error::msg)?, gpu.context.info());
    let mut plans: Vec<Plan> = Plan::candidates(&problem, device, gpu.costs())
        .filter(|plan| plan.is_built(device) && wanted(plan.kernel))
        .collect();
    plans.sort_by(|x, y| x.predicted_us.total_cmp(&y.predicted_us));
    let limit = plans.first().map_or(0.0, |plan| within * plan.predicted_us);
    plans.retain(|plan| plan.predicted_us <= limit);
    Ok(plans)
}

/// Everything that the planner considers (of these kernels) on the shapes of networks, beside cuBLAS.
pub fn every_plan(gpu: &Gpu, arguments: &Arguments, cases: &[Case], kernels: &[&'static KernelSpec]) -> Result<Report> {
    let mut report = gpu.report(PROGRAM)?;
    print::heading(&report);
    let cases = cases_to_plan(arguments, cases);
    let bar = progress(cases.len())?;
    for case in cases {
        bar.set_message(case.to_string());
        let product = Product::new(
            gpu,
            case,
            arguments.dtype,
            arguments.precision,
            arguments.alpha,
            arguments.beta,
        )?;
        let problem = case.problem(arguments.dtype, arguments.precision, arguments.beta != 0.0);
        let wanted = |of: &KernelSpec| kernels.iter().any(|spec| spec.name == of.name);
        let rows = considered(gpu, &problem, arguments.within, wanted)?
            .iter()
            .map(|plan| measure(gpu, &product, plan, "sgemm", arguments.timing()))
            .collect::<Result<Vec<_>>>()?;
        bar.suspend(|| print::plans(&case, &rows));
        report.rows.extend(rows);
        bar.inc(1);
    }
    bar.finish_and_clear();
    print::planning_summary(&report);
    Ok(report)
}

/// Checks a plan and measures it.
fn measure(gpu: &Gpu, product: &Product, plan: &Plan, bench: &str, timing: Timing) -> Result<Row> {
    let (spec, case) = (plan.kernel, &product.case);
    product.check(spec.name, || product.launch(plan, 0))?;
    let times = product
        .compare(plan, timing)
        .with_context(|| format!("{} on {case}", spec.name))?;
    row(gpu, product, plan, bench, times)
}

/// The same for a kernel whose A is transposed beforehand; the time of that stands beside the product's.
fn measure_turned(gpu: &Gpu, product: &Product, spec: &KernelSpec, timing: Timing) -> Result<Row> {
    let turned = product.turn_a()?;
    let plan = product.plan_turned(&turned, spec.name)?;
    product.check(spec.name, || {
        product.launch_turn(&turned)?;
        product.launch_turned(&turned, &plan, 0)
    })?;
    let [baseline_us, prepare_us, us] = product
        .compare_turned(&turned, &plan, timing)
        .with_context(|| format!("{} on {}", spec.name, product.case))?;
    Ok(Row {
        prepare_us: Some((prepare_us * 1e3).round() / 1e3),
        prepare_kernel: Some(turned.kernel().into()),
        ..row(gpu, product, &plan, "ladder", (baseline_us, us))?
    })
}

/// The row of a measured plan: its times and what the kernel occupies.
fn row(gpu: &Gpu, product: &Product, plan: &Plan, bench: &str, times: (f64, f64)) -> Result<Row> {
    let case = &product.case;
    Ok(Row {
        precision: Some(product.precision.name().into()),
        dtype: Some(product.dtype.to_string()),
        layout: Some(case.layout.to_string()),
        m: Some(case.m),
        n: Some(case.n),
        k: Some(case.k),
        batch: Some(case.batch),
        predicted_us: (bench == "sgemm").then(|| rounded(plan.predicted_us, 2)),
        cold: case.cold.then_some(true),
        tflops: Some(rounded(case.flops() / times.1 * 1e-6, 4)),
        ..plan_row(gpu, plan, bench, times)?
    })
}

pub fn rounded(value: f64, places: i32) -> f64 {
    (value * 10f64.powi(places)).round() / 10f64.powi(places)
}

/// What there is to say of a plan and its times, whatever the product.
pub fn plan_row(gpu: &Gpu, plan: &Plan, bench: &str, (baseline_us, us): (f64, f64)) -> Result<Row> {
    let spec = plan.kernel;
    let capability = gpu.context.info().compute_capability;
    let compiled = resources()
        .iter()
        .find(|r| r.entry == spec.name && r.capability == capability);
    let function = CurrentContext::get()?.function(spec.file, spec.name, spec.dynamic_shared)?;
    let blocks = function.blocks_per_multiprocessor(spec.threads, spec.dynamic_shared)?;
    let room = gpu
        .stream
        .context()
        .attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
    Ok(Row {
        bench: bench.into(),
        kernel: Some(spec.name.into()),
        rung: match spec.role {
            Role::Rung(number) => Some(number),
            Role::Production => None,
        },
        split_k: (plan.split_k() > 1).then_some(plan.split_k()),
        stream_ranges: plan.stream_k().map(|way| way.ranges),
        repacked: match plan.repacks {
            [None, None] => None,
            [Some(_), None] => Some("a".into()),
            [None, Some(_)] => Some("b".into()),
            [Some(_), Some(_)] => Some("ab".into()),
        },
        us: Some(rounded(us, 3)),
        baseline: Some("cublas".into()),
        baseline_us: Some(rounded(baseline_us, 3)),
        speedup: Some(rounded(baseline_us / us, 4)),
        registers: compiled.map(|r| r.registers),
        shared_bytes: compiled.map(|r| r.static_shared + spec.dynamic_shared),
        blocks_per_sm: Some(blocks),
        occupancy: Some(rounded((blocks * spec.threads) as f64 / room as f64, 3)),
        ..Row::default()
    })
}
