//! Multiplies, compares with FP64, and gathers the rows of the report.

use crate::numbers::{Numbers, ALL};
use crate::support::case::{Case, Layout};
use crate::support::gpu::Gpu;
use crate::support::plot;
use crate::support::product::{Errors, Product};
use crate::support::record::{write_whole, Report, Row};
use crate::Arguments;
use anyhow::{ensure, Context, Result};
use candle_sgemm::gemm::Precision;
use std::fs;

const PROGRAM: &str = "cargo run --release --features cuda --example accuracy --";
/// The length of the sums of hard numbers.
const HARD_K: usize = 1024;

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
    ensure!(
        !chosen.is_empty(),
        "no numbers are called that; there are: {}",
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
