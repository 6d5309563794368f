//! Multiplies, compares with FP64, and gathers the rows of the report.

use crate::activations::{self, Direction, ACTIVATIONS, RANGES};
use crate::numbers::{Numbers, ALL};
use crate::support::case::{Case, Layout};
use crate::support::gpu::Gpu;
use crate::support::plot;
use crate::support::product::{Errors, Product};
use crate::support::record::{write_whole, Report, Row};
use crate::Arguments;
use anyhow::{ensure, Context, Result};
use candle_core::Device;
use candle_sgemm::gemm::Precision;
use std::fs;

const PROGRAM: &str = "cargo run --release --features cuda --example accuracy --";
/// The length of the sums of hard numbers.
const HARD_K: usize = 1024;
/// What `--numbers` calls them.
const ACTIVATIONS_NAME: &str = "activations";
/// Arguments of an activation, of each sign in each range.
const NUMBERS_OF_A_RANGE: u32 = 200_000;

pub fn run(arguments: &Arguments) -> Result<()> {
    let gpu = Gpu::open()?;
    let mut report = gpu.report(PROGRAM)?;
    let chosen: Vec<_> = ALL
        .iter()
        .filter(|numbers| {
            arguments.numbers.is_empty()
                || arguments
                    .numbers
                    .iter()
                    .any(|part| numbers.name.contains(part.as_str()))
        })
        .collect();
    let with_activations = arguments.numbers.is_empty()
        || arguments
            .numbers
            .iter()
            .any(|part| ACTIVATIONS_NAME.contains(part.as_str()));
    ensure!(
        !chosen.is_empty() || with_activations,
        "no numbers are called that; there are: {}, {ACTIVATIONS_NAME}",
        ALL.iter().map(|numbers| numbers.name).collect::<Vec<_>>().join(", ")
    );
    println!(
        "{}, against FP64, {1}×{1}×k: Frobenius error, largest error in units of Σ|a||b|, wrong Inf or NaN\n",
        report.gpu, arguments.size
    );
    for numbers in chosen {
        println!(
            "{}{}",
            numbers.name,
            if numbers.what.is_empty() {
                String::new()
            } else {
                format!(" ({})", numbers.what)
            }
        );
        let lengths = if numbers.every_k { &arguments.k[..] } else { &[HARD_K] };
        for &k in lengths {
            measure(&gpu, numbers, arguments.size, k, &mut report)?;
        }
    }
    if with_activations {
        measure_activations(&mut report)?;
    }
    if let Some(folder) = &arguments.out {
        write(&report, folder)?;
    }
    Ok(())
}

/// One line for each arithmetic, and one row beside cuBLAS's.
fn measure(gpu: &Gpu, numbers: &Numbers, size: usize, k: usize, report: &mut Report) -> Result<()> {
    let (a, b) = numbers.draw(size, size, k);
    let b_by_rows: Vec<f32> = (0..k * size).map(|i| b[i % size * k + i / size]).collect();
    for layout in [Layout::NT, Layout::NN] {
        let case = Case::new(size, size, k, layout);
        let stored = if layout.b_transposed { &b } else { &b_by_rows };
        for precision in [Precision::Fp32Strict, Precision::Fp32, Precision::Tf32] {
            let product = Product::of(gpu, case, precision, &a, stored)?;
            let plan = product.plan(None)?;
            let ours = product.errors(|| product.launch(&plan, 0))?;
            let cublas = product.errors(|| product.launch_cublas(0))?;
            print_line(k, layout, precision, plan.kernel.name, ours, cublas);
            report.rows.push(Row {
                bench: "accuracy".into(),
                kernel: Some(plan.kernel.name.into()),
                precision: Some(precision.to_string()),
                dtype: Some("f32".into()),
                layout: Some(layout.to_string()),
                m: Some(size),
                n: Some(size),
                k: Some(k),
                distribution: Some(numbers.name.into()),
                baseline: Some("cublas".into()),
                err_fro: Some(ours.frobenius),
                err_max: Some(ours.componentwise),
                baseline_err_fro: Some(cublas.frobenius),
                baseline_err_max: Some(cublas.componentwise),
                ..Row::default()
            });
        }
    }
    Ok(())
}

/// One line and one row for each activation, its slope, and each part of the numbers, beside candle's.
fn measure_activations(report: &mut Report) -> Result<()> {
    let device = Device::new_cuda(0)?;
    println!("activations and their slopes: Frobenius error, largest error, wrong Inf or NaN");
    for activation in ACTIVATIONS {
        for direction in Direction::ALL {
            let special = [("zeros, ends, infinities, NaN", activations::special())];
            let ranges = RANGES
                .iter()
                .map(|range| (range.name, range.numbers(NUMBERS_OF_A_RANGE)));
            for (range, numbers) in ranges.chain(special) {
                let [ours, candle] = activations::results(activation, direction, &numbers, &device)?
                    .map(|results| activations::Errors::of(activation, direction, &numbers, &results));
                println!(
                    "  {:<9} {:<9} {range:<28} {:.2e} {:.1e} {:>5}   candle {:.2e} {:.1e} {:>5}",
                    format!("{activation:?}"),
                    direction.name(),
                    ours.frobenius,
                    ours.worst,
                    ours.wrong_class,
                    candle.frobenius,
                    candle.worst,
                    candle.wrong_class
                );
                report.rows.push(Row {
                    bench: "activation".into(),
                    activation: Some(format!("{activation:?}, {}", direction.name())),
                    dtype: Some("f32".into()),
                    distribution: Some(range.into()),
                    baseline: Some("candle".into()),
                    err_fro: Some(ours.frobenius),
                    err_max: Some(ours.worst),
                    baseline_err_fro: Some(candle.frobenius),
                    baseline_err_max: Some(candle.worst),
                    ..Row::default()
                });
            }
        }
    }
    Ok(())
}

fn print_line(k: usize, layout: Layout, precision: Precision, kernel: &str, ours: Errors, cublas: Errors) {
    let errors = |errors: Errors| {
        format!(
            "{:.2e} {:.1e} {:>4}",
            errors.frobenius, errors.componentwise, errors.wrong_class
        )
    };
    println!(
        "  k {k:>5} {layout} {:<12} {}   cuBLAS {}   {kernel}",
        precision.to_string(),
        errors(ours),
        errors(cublas)
    );
}

/// The rows as JSON and CSV, and a plot for each distribution.
fn write(report: &Report, folder: &std::path::Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    write_whole(&folder.join("accuracy.json"), &report.to_json()?)?;
    write_whole(&folder.join("accuracy.csv"), &report.to_csv()?)?;
    for numbers in ALL.iter().filter(|numbers| numbers.every_k) {
        let of = |precision: Precision, ours: bool| -> Vec<(f64, f64)> {
            report
                .rows
                .iter()
                .filter(|row| row.distribution.as_deref() == Some(numbers.name) && row.layout.as_deref() == Some("NT"))
                .filter(|row| row.precision.as_deref() == Some(&precision.to_string()))
                .filter_map(|row| {
                    Some((
                        row.k? as f64,
                        1e7 * if ours { row.err_fro? } else { row.baseline_err_fro? },
                    ))
                })
                .collect()
        };
        let series = [
            ("cuBLAS".to_string(), of(Precision::Fp32, false)),
            ("multiply-adds".to_string(), of(Precision::Fp32Strict, true)),
            ("fp32".to_string(), of(Precision::Fp32, true)),
        ];
        if series.iter().all(|(_, points)| points.is_empty()) {
            continue;
        }
        let name: String = numbers
            .name
            .chars()
            .map(|c| if c.is_alphanumeric() { c } else { '_' })
            .collect();
        let title = format!("{}: ‖C − FP64‖ / ‖FP64‖", numbers.name);
        let svg = plot::lines(&title, "k", "units of 1e-7", &series)?;
        write_whole(&folder.join(format!("accuracy_{name}.svg")), &svg)?;
    }
    Ok(())
}
