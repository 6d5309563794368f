//! `--device emulated`: kernels are checked on a CPU, as docs/emulation.md describes. Nothing is measured.

#[path = "../../tests/emulated/kernels/mod.rs"]
mod kernels;

use crate::support::case::Case;
use crate::{parse_dims, Arguments, TransposeArguments};
use anyhow::{bail, Result};
use candle_sgemm::device::DeviceInfo;
use candle_sgemm::gemm::kernel::costs::Costs;
use candle_sgemm::gemm::kernel::spec::Arithmetic;
use candle_sgemm::gemm::{KernelSpec, Plan, Precision};
use candle_sgemm::transpose::kernels::Moves;
use kernels::ptx::{module, nvcc, Target};
use kernels::transpositions::View;
use kernels::{gemm, transpositions};
use ptx_emulator::{Order, Report, Schedule};
use std::time::Instant;

/// Kernels are those of Hopper; with few multiprocessors, so that small problems have several tiles for each.
const DEVICE: DeviceInfo = DeviceInfo {
    sm_count: 4,
    ..DeviceInfo::H100
};

/// Counts what was wrong.
#[derive(Default)]
struct Tally {
    runs: usize,
    wrong: usize,
}

impl Tally {
    fn new() -> Result<Self> {
        match nvcc() {
            Some(_) => Ok(Tally::default()),
            None => bail!("kernels are emulated from their PTX, which nvcc makes: put it on PATH, or run `eval \"$(scripts/cuda-toolkit.sh)\"`"),
        }
    }

    /// Runs a case under every order.
    fn check(&mut self, name: &str, seed: u64, run: impl Fn(Schedule) -> Result<Report, gemm::Wrong>) {
        let (started, mut instructions) = (Instant::now(), 0);
        for order in Order::ALL {
            self.runs += 1;
            match run(Schedule { order, seed }) {
                Ok(report) => instructions += report.thread_instructions,
                Err(wrong) => {
                    self.wrong += 1;
                    println!("{name}:\n{wrong}");
                    return;
                }
            }
        }
        println!(
            "{name}: right under {} schedules, {:.1} million thread instructions, {:.1} s",
            Order::ALL.len(),
            instructions as f64 * 1e-6,
            started.elapsed().as_secs_f64()
        );
    }

    fn conclude(self) -> Result<()> {
        match (self.runs, self.wrong) {
            (0, _) => bail!("nothing was run: no kernel takes such a problem"),
            (_, 0) => Ok(()),
            (_, wrong) => bail!("{wrong} wrong"),
        }
    }
}

/// Every kernel on every case, with each cut of k.
pub fn products(arguments: &Arguments, cases: &[Case], kernels: &[&'static KernelSpec]) -> Result<()> {
    let mut tally = Tally::new()?;
    let emulation = arguments.emulation;
    for case in cases {
        for &spec in kernels {
            let precision = match spec.arithmetic {
                Arithmetic::Tf32 => Precision::Tf32,
                _ => arguments.precision,
            };
            let problem = case.problem(spec.dtype, precision, arguments.beta != 0.0);
            let plan = match Plan::named(spec.name, &problem, &DEVICE, Costs::built_in(&DEVICE)) {
                Ok(plan) => plan,
                Err(reason) => {
                    println!("left out on {case}: {reason}");
                    continue;
                }
            };
            for plan in Plan::variants(spec, &plan.problem, &DEVICE, Costs::built_in(&DEVICE)) {
                let mut product = gemm::Case::new(plan, Target::Hopper, DEVICE, 0, emulation.seed);
                product.watch = emulation.trace.or(product.watch);
                tally.check(&plan.to_string(), emulation.seed, |schedule| {
                    product.check(schedule).map(|(_, report)| report)
                });
            }
        }
    }
    tally.conclude()
}

/// Every kernel on shapes around its tile, or on those asked for, for every size of elements.
pub fn transpositions(arguments: &TransposeArguments) -> Result<()> {
    /// Bytes of an element that a tensor can have.
    const LARGEST: usize = 8;
    const GAP: usize = 16;
    const SHAPES: &str = "64x128,65x130,3x1000,1000x3,2x48x80";
    let mut tally = Tally::new()?;
    let emulation = arguments.emulation;
    let shapes = parse_dims(arguments.shapes.as_deref().unwrap_or(SHAPES))?;
    for kernel in arguments.kernels()? {
        let module = module(kernel.file, Target::Hopper);
        for dims in &shapes {
            for instance in kernel
                .instances
                .iter()
                .filter(|instance| instance.element_size <= LARGEST)
            {
                let mut strides = vec![1; dims.len()];
                for i in (1..dims.len()).rev() {
                    strides[i - 1] = strides[i] * dims[i];
                }
                let mut order: Vec<usize> = (0..dims.len()).collect();
                let last = order.len() - 1;
                match kernel.moves {
                    Moves::Matrices => order.swap(last - 1, last),
                    // Rows with something between them: otherwise there is nothing for a kernel to do.
                    Moves::Rows => strides[..last].iter_mut().for_each(|stride| *stride += GAP * dims[0]),
                }
                let view = View {
                    dims: dims.clone(),
                    near: strides.clone(),
                    strides,
                    order,
                    offset: 0,
                    size: instance.element_size,
                    shift: 0,
                };
                let plan = match view.plan(kernel, &DEVICE) {
                    Ok(plan) => plan,
                    Err(reason) => {
                        println!("left out on {dims:?} of {} bytes: {reason}", instance.element_size);
                        continue;
                    }
                };
                let name = plan.to_string();
                let mut case = transpositions::Case::new(plan, Target::Hopper, view, emulation.seed);
                case.watch = emulation.trace.or(case.watch);
                tally.check(&name, emulation.seed, |schedule| case.run(&module, schedule));
            }
        }
    }
    tally.conclude()
}
