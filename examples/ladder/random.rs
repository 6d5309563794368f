//! `--random N`: products that nobody chose, beside cuBLAS as candle calls it, and how the ratios are spread.

use crate::measure::{considered, plan_row, progress, rounded, PROGRAM};
use crate::print;
use crate::support::distribution::SLOWER;
use crate::support::drawn::{Measured, Room, Wrong};
use crate::support::gpu::{Gpu, Timing};
use crate::support::record::{geometric_mean, Row};
use crate::support::sampler::{Drawn, Operand, Sampler, View};
use crate::Arguments;
use anyhow::{bail, Context, Result};
use candle_core::Device;
use candle_sgemm::gemm::{DType, Precision};

/// What is no faster than this at first is measured again, for so many times as long: nothing counts as slow by chance.
const AGAIN_BELOW: f64 = 1.02;
const AGAIN: f64 = 4.0;
/// With --every-plan: how many plans are shown of a product that cuBLAS computes faster.
const SHOWN: usize = 4;
/// Where there is no terminal to draw a bar on, a line says so often how far it is.
const LINES: usize = 20;

fn letters(which: [bool; 2]) -> Option<String> {
    match which {
        [false, false] => None,
        [true, false] => Some("a".into()),
        [false, true] => Some("b".into()),
        [true, true] => Some("ab".into()),
    }
}

fn row(gpu: &Gpu, drawn: &Drawn, precision: Precision, measured: &Measured) -> Result<Row> {
    let plan = &measured.plan;
    let view = |operand: Operand| (operand.view != View::Dense).then(|| operand.view.name().into());
    Ok(Row {
        class: Some(drawn.class.name().into()),
        precision: Some(precision.name().into()),
        dtype: Some(drawn.dtype.to_string()),
        layout: Some(drawn.problem(precision).layout_name()),
        m: Some(drawn.m),
        n: Some(drawn.n),
        k: Some(drawn.k),
        batch: Some(drawn.batch()),
        a_view: view(drawn.a),
        b_view: view(drawn.b),
        baseline_copies: letters(drawn.copied_elements().map(|elements| elements > 0)),
        off_16_bytes: Some(drawn.is_off_16_bytes()),
        predicted_us: plan.predicted_us.is_finite().then(|| rounded(plan.predicted_us, 2)),
        cold: drawn.cold.then_some(true),
        tflops: Some(rounded(drawn.flops() / measured.us * 1e-6, 4)),
        ..plan_row(gpu, plan, "random", (measured.baseline_us, measured.us))?
    })
}

/// The fastest of all that the planner considers for a product.
fn every_plan(
    room: &mut Room,
    gpu: &Gpu,
    drawn: &Drawn,
    precision: Precision,
    arguments: &Arguments,
) -> Result<Vec<Row>> {
    let mut measured = considered(gpu, &drawn.problem(precision), arguments.within, |_| true)?
        .into_iter()
        .map(|plan| room.measure_plan(plan, drawn, precision, arguments.timing()))
        .collect::<Result<Vec<_>>>()?;
    measured.sort_by(|x, y| x.us.total_cmp(&y.us));
    measured
        .iter()
        .take(SHOWN)
        .map(|measured| row(gpu, drawn, precision, measured))
        .collect()
}

/// Draws, measures, prints and writes. A wrong result is told at once, and the run goes on, but fails.
pub fn run(arguments: &Arguments, count: usize) -> Result<()> {
    // Candle's own copies are part of what is measured, and run on its stream.
    let device = Device::new_cuda(0).context("no usable NVIDIA GPU")?;
    let device = device.as_cuda_device()?;
    let gpu = Gpu::on(device.cuda_stream())?;
    let mut report = gpu.report(PROGRAM)?;
    print::heading(&report);
    let (timing, dtype) = (arguments.timing(), arguments.dtype);
    let mut room = Room::new(&gpu, device, dtype)?;
    // Precision governs FP32 factors.
    let precision = match dtype {
        DType::F32 => arguments.precision,
        _ => Precision::Fp32,
    };
    let bar = progress(count)?;
    let mut wrong = 0;
    let products = Sampler::new(arguments.emulation.seed, &arguments.class)
        .with_dtype(dtype)
        .take(count);
    for (number, drawn) in products.enumerate() {
        bar.set_message(drawn.to_string());
        let measured = room.measure(&drawn, precision, timing).and_then(|measured| {
            match measured.baseline_us / measured.us < AGAIN_BELOW {
                true => room.measure(
                    &drawn,
                    precision,
                    Timing {
                        sample_us: AGAIN * timing.sample_us,
                        ..timing
                    },
                ),
                false => Ok(measured),
            }
        });
        match measured {
            Ok(measured) => {
                let chosen = row(&gpu, &drawn, precision, &measured)?;
                if arguments.every_plan && measured.baseline_us / measured.us < SLOWER {
                    let plans = every_plan(&mut room, &gpu, &drawn, precision, arguments)?;
                    bar.suspend(|| print::slow(&chosen, &plans));
                }
                report.rows.push(chosen);
            }
            Err(error) if error.is::<Wrong>() => {
                wrong += 1;
                bar.suspend(|| println!("{error:#}"));
            }
            Err(error) => return Err(error.context(drawn.to_string())),
        }
        bar.inc(1);
        let done = number + 1;
        if bar.is_hidden() && (done * LINES / count > number * LINES / count) {
            let ratios: Vec<f64> = report.rows.iter().filter_map(|row| row.speedup).collect();
            eprintln!("{done} of {count}, geometric mean {:.3}", geometric_mean(&ratios));
        }
    }
    bar.finish_and_clear();
    print::distributions(&report);
    if let Some(folder) = &arguments.out {
        print::write(&report, folder)?;
    }
    match wrong {
        0 => Ok(()),
        _ => bail!("{wrong} of {count} products were wrong, and left out"),
    }
}
