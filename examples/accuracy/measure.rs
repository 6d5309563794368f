//! Multiplies, compares with FP64, and gathers the rows of the report.

use crate::activations::{self, Direction, ACTIVATIONS, RANGES};
use crate::numbers::{Numbers, ALL};
use crate::support::case::{Case, Layout};
use crate::support::gpu::Gpu;
use crate::support::product::{Errors, Product};
use crate::support::record::{name_for, Report, Row};
use crate::Arguments;
use anyhow::{ensure, Result};
use candle_core::Device;
use candle_sgemm::gemm::{DType, Precision};

const PROGRAM: &str = "cargo run --release --features cuda --example accuracy --";
/// The length of the sums of hard numbers.
const HARD_K: usize = 1024;
/// What `--numbers` calls them.
const ACTIVATIONS_NAME: &str = "activations";
/// Arguments of an activation, of each sign in each range.
const NUMBERS_OF_A_RANGE: u32 = 200_000;

pub fn run(arguments: &Arguments) -> Result<()> {
    for &dtype in &arguments.dtype {
        run_type(arguments, dtype)?;
    }
    Ok(())
}

fn run_type(arguments: &Arguments, dtype: DType) -> Result<()> {
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
        "{}, {dtype} against FP64 of the rounded operands, {1}×{1}×k: Frobenius error, largest error in units of Σ|a||b|, wrong Inf or NaN\n",
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
            measure(&gpu, numbers, dtype, arguments.size, k, &mut report)?;
        }
    }
    if with_activations && dtype == DType::F32 {
        measure_activations(&mut report)?;
    }
    if let Some(folder) = &arguments.out {
        report.write(folder, &name_for("accuracy", &dtype.to_string()))?;
    }
    Ok(())
}

/// One line for each arithmetic, and one row beside cuBLAS's.
fn measure(gpu: &Gpu, numbers: &Numbers, dtype: DType, size: usize, k: usize, report: &mut Report) -> Result<()> {
    // Precision governs FP32 operands; the products of 16-bit ones are exact and their sums FP32.
    let precisions: &[Precision] = match dtype {
        DType::F32 => &[Precision::Fp32Strict, Precision::Fp32, Precision::Tf32],
        _ => &[Precision::Fp32],
    };
    let (a, b) = numbers.draw(size, size, k);
    let b_by_rows: Vec<f32> = (0..k * size).map(|i| b[i % size * k + i / size]).collect();
    for layout in [Layout::NT, Layout::NN] {
        let case = Case::new(size, size, k, layout);
        let stored = if layout.b_transposed { &b } else { &b_by_rows };
        for &precision in precisions {
            let arithmetic = match dtype {
                DType::F32 => precision.to_string(),
                dtype => dtype.to_string(),
            };
            let product = Product::of(gpu, case, dtype, precision, [&a, stored])?;
            let plan = product.plan(None)?;
            let ours = product.errors(|| product.launch(&plan, 0))?;
            let cublas = product.errors(|| product.launch_cublas(0))?;
            print_line(k, layout, &arithmetic, plan.kernel.name, ours, cublas);
            report.rows.push(Row {
                bench: "accuracy".into(),
                kernel: Some(plan.kernel.name.into()),
                precision: Some(arithmetic),
                dtype: Some(dtype.to_string()),
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

fn print_line(k: usize, layout: Layout, arithmetic: &str, kernel: &str, ours: Errors, cublas: Errors) {
    let errors = |errors: Errors| {
        format!(
            "{:.2e} {:.1e} {:>4}",
            errors.frobenius, errors.componentwise, errors.wrong_class
        )
    };
    println!(
        "  k {k:>5} {layout} {arithmetic:<12} {}   cuBLAS {}   {kernel}",
        errors(ours),
        errors(cublas)
    );
}
