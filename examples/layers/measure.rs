//! Checks against candle, measures, prints and writes.

use crate::support::gpu::{Gpu, Launch, Timing};
use crate::support::layer::{check, network_name, open, Weights, LAYERS, NETWORKS};
use crate::support::record::{write_whole, Row};
use crate::support::series;
use crate::Arguments;
use anyhow::Result;
use candle_core::{Device, Module};
use candle_sgemm::{Activation, Precision};

const PROGRAM: &str = "cargo run --release --features cuda --example layers --";

/// One line of the table: what is computed, for how many rows.
struct Case<'a> {
    bench: &'a str,
    layer: String,
    widths: &'a [usize],
    rows: usize,
    activation: Activation,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let (device, gpu) = open()?;
    let mut report = gpu.report(PROGRAM)?;
    println!(
        "{}, driver {}, CUDA {}, cuBLAS {}, {} MHz under FP32 load, {}",
        report.gpu, report.driver, report.cuda, report.cublas, report.sm_clock_mhz, report.date
    );
    println!(
        "\n{:<34} {:<12} {:>12} {:>12} {:>12} {:>9} {:>9}",
        "layer", "precision", "candle µs", "unfused µs", "fused µs", "unfused", "fused"
    );
    let mut cases = Vec::new();
    for case in &LAYERS {
        cases.push((
            "linear",
            format!("linear + GELU {case}"),
            vec![case.inputs, case.outputs],
            case.rows,
            Activation::GeluTanh,
        ));
    }
    for (widths, batches) in NETWORKS {
        for &rows in batches {
            let name = format!("MLP {}, batch {rows}", network_name(widths));
            cases.push(("mlp", name, widths.to_vec(), rows, Activation::Relu));
        }
    }
    for (bench, layer, widths, rows, activation) in &cases {
        let case = Case {
            bench,
            layer: layer.clone(),
            widths,
            rows: *rows,
            activation: *activation,
        };
        report.rows.extend(measure(&gpu, &device, &case, arguments)?);
    }
    let Some(folder) = &arguments.out else {
        return Ok(());
    };
    let mut files = vec![
        ("layers.json".to_string(), report.to_json()?),
        ("layers.csv".to_string(), report.to_csv()?),
    ];
    files.extend(series::layer_plots(&report, "layers")?);
    for (file, text) in files {
        let path = folder.join(file);
        write_whole(&path, &text)?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// Candle, and for each precision ours unfused and fused.
fn measure(gpu: &Gpu, device: &Device, case: &Case, arguments: &Arguments) -> Result<Vec<Row>> {
    let weights = Weights::random(case.widths, case.rows, device)?;
    let x = &weights.input;
    let stock = weights.stock(x, case.activation)?;
    let networks = arguments
        .precision
        .iter()
        .map(|&precision| weights.fused(case.activation, precision))
        .collect::<Result<Vec<_>>>()?;
    for (&precision, network) in arguments.precision.iter().zip(&networks) {
        check(&case.layer, &weights.unfused(x, case.activation, precision)?, &stock)?;
        check(&case.layer, &network.forward(x)?, &stock)?;
    }
    let mut launches: Vec<Box<Launch>> = vec![Box::new(|_| weights.stock(x, case.activation).map(drop))];
    for (&precision, network) in arguments.precision.iter().zip(&networks) {
        let weights = &weights;
        launches.push(Box::new(move |_| {
            weights.unfused(x, case.activation, precision).map(drop)
        }));
        launches.push(Box::new(move |_| Ok(network.forward(x).map(drop)?)));
    }
    let timing = Timing {
        samples: arguments.samples,
        sample_us: arguments.sample_ms * 1e3,
        with_host: true,
    };
    let mut references: Vec<&mut Launch> = launches.iter_mut().map(|launch| &mut **launch as &mut Launch).collect();
    let times = gpu.compare(&mut references, timing)?;
    let candle_us = times[0];
    let mut rows = Vec::new();
    for (i, precision) in arguments.precision.iter().enumerate() {
        let (unfused_us, fused_us) = (times[1 + 2 * i], times[2 + 2 * i]);
        println!(
            "{:<34} {:<12} {candle_us:>12.2} {unfused_us:>12.2} {fused_us:>12.2} {:>9.2} {:>9.2}",
            case.layer,
            precision.name(),
            candle_us / unfused_us,
            candle_us / fused_us
        );
        for (kernel, us) in [("unfused", unfused_us), ("fused", fused_us)] {
            rows.push(row(case, *precision, kernel, us, candle_us));
        }
    }
    Ok(rows)
}

fn row(case: &Case, precision: Precision, kernel: &str, us: f64, candle_us: f64) -> Row {
    let rounded = |value: f64, places: i32| (value * 10f64.powi(places)).round() / 10f64.powi(places);
    let flops: f64 = case
        .widths
        .windows(2)
        .map(|pair| 2.0 * (case.rows * pair[0] * pair[1]) as f64)
        .sum();
    Row {
        bench: case.bench.into(),
        kernel: Some(kernel.into()),
        precision: Some(precision.name().into()),
        dtype: Some("f32".into()),
        layer: Some(case.layer.clone()),
        rows: Some(case.rows),
        inputs: case.widths.first().copied(),
        outputs: case.widths.last().copied(),
        activation: Some(format!("{:?}", case.activation).to_lowercase()),
        us: Some(rounded(us, 2)),
        baseline: Some("candle".into()),
        baseline_us: Some(rounded(candle_us, 2)),
        speedup: Some(rounded(candle_us / us, 3)),
        tflops: Some(rounded(flops / us * 1e-6, 3)),
        ..Row::default()
    }
}
