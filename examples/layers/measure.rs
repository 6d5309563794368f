//! Checks against candle, measures, prints and writes.

use crate::support::gpu::{Gpu, Launch, Timing};
use crate::support::layer::{check, open, open_for_graphs, Case, Graph, Weights};
use crate::support::record::{name_for, Row};
use crate::Arguments;
use anyhow::{ensure, Result};
use candle_core::{DType, Device};
use candle_sgemm::Precision;
use std::time::Duration;

const PROGRAM: &str = "cargo run --release --features cuda --example layers --";

pub fn run(arguments: &Arguments) -> Result<()> {
    for &dtype in &arguments.dtype {
        run_type(arguments, dtype)?;
    }
    Ok(())
}

fn run_type(arguments: &Arguments, dtype: DType) -> Result<()> {
    let (device, gpu) = open()?;
    let mut report = gpu.report(PROGRAM)?;
    println!(
        "{}, driver {}, CUDA {}, cuBLAS {}, {} MHz under FP32 load, {}",
        report.gpu, report.driver, report.cuda, report.cublas, report.sm_clock_mhz, report.date
    );
    println!(
        "\n{:<42} {:<12} {:>12} {:>12} {:>12} {:>12} {:>9} {:>9}",
        "layer", "arithmetic", "candle µs", "unfused µs", "fused µs", "product µs", "unfused", "fused"
    );
    let wanted = |case: &Case| case.name.contains(&arguments.only);
    let layers = Case::linears(dtype).chain(Case::networks(dtype));
    for case in layers.chain(Case::gated(dtype)).filter(wanted) {
        report.rows.extend(measure(&gpu, &device, &case, arguments)?);
    }
    let (device, gpu) = open_for_graphs()?;
    for case in Case::networks(dtype).filter(wanted) {
        report.rows.extend(measure_graphs(&gpu, &device, &case, arguments)?);
    }
    ensure!(
        !report.rows.is_empty(),
        "no layer's name contains \"{}\": without --only all are measured",
        arguments.only
    );
    match &arguments.out {
        Some(folder) => report.write(folder, &name_for("layers", dtype.as_str())),
        None => Ok(()),
    }
}

/// Candle, and for each precision ours unfused and fused, and the product alone where there is only one.
fn measure(gpu: &Gpu, device: &Device, case: &Case, arguments: &Arguments) -> Result<Vec<Row>> {
    let weights = Weights::random(case, device)?;
    let stock = weights.stock()?;
    let precisions = || case.precisions(&arguments.precision).iter().copied();
    let networks = precisions()
        .map(|precision| weights.fused(precision))
        .collect::<Result<Vec<_>>>()?;
    for (precision, network) in precisions().zip(&networks) {
        check(&case.name, &weights.unfused(precision)?, &stock)?;
        check(&case.name, &weights.run(network)?, &stock)?;
    }
    let weights = &weights;
    let mut launches: Vec<Box<Launch>> = vec![Box::new(|_| weights.stock().map(drop))];
    for (precision, network) in precisions().zip(&networks) {
        launches.push(Box::new(move |_| weights.unfused(precision).map(drop)));
        launches.push(Box::new(move |_| weights.run(network).map(drop)));
        if let Some(product) = weights.product(precision) {
            launches.push(Box::new(move |_| product().map(drop)));
        }
    }
    compare(gpu, case, launches, arguments)
}

/// The same, each recorded as a CUDA graph and replayed.
fn measure_graphs(gpu: &Gpu, device: &Device, case: &Case, arguments: &Arguments) -> Result<Vec<Row>> {
    let weights = Weights::random(case, device)?;
    let expected = weights.stock()?;
    let mut graphs = vec![Graph::record(device, || weights.stock())?];
    for &precision in case.precisions(&arguments.precision) {
        let network = weights.fused(precision)?;
        graphs.push(Graph::record(device, || weights.unfused(precision))?);
        graphs.push(Graph::record(device, || weights.run(&network))?);
    }
    let launches = graphs
        .iter()
        .map(|graph| Box::new(|_| graph.replay()) as Box<Launch>)
        .collect();
    let case = Case {
        bench: "graph",
        name: format!("{}, graph", case.name),
        ..case.clone()
    };
    let rows = compare(gpu, &case, launches, arguments)?;
    for graph in &graphs {
        check(&case.name, graph.output(), &expected)?; // after many replays
    }
    Ok(rows)
}

/// Times launches of candle, and for each precision of ours unfused and fused, and of the product where that is among them.
fn compare(gpu: &Gpu, case: &Case, mut launches: Vec<Box<Launch>>, arguments: &Arguments) -> Result<Vec<Row>> {
    let timing = Timing {
        samples: arguments.samples,
        sample_us: arguments.sample_ms * 1e3,
        with_host: true,
        pause: Duration::ZERO,
    };
    let mut references: Vec<&mut Launch> = launches.iter_mut().map(|launch| &mut **launch as &mut Launch).collect();
    let times = gpu.compare(&mut references, timing)?;
    let (candle_us, ours) = (times[0], &times[1..]);
    let precisions = case.precisions(&arguments.precision);
    let mut rows = Vec::new();
    for (&precision, us) in precisions.iter().zip(ours.chunks_exact(ours.len() / precisions.len())) {
        let (unfused_us, fused_us, product_us) = (us[0], us[1], us.get(2).copied());
        let product = product_us.map_or(String::new(), |us| format!("{us:.2}"));
        println!(
            "{:<42} {:<12} {candle_us:>12.2} {unfused_us:>12.2} {fused_us:>12.2} {product:>12} {:>9.2} {:>9.2}",
            case.name,
            case.arithmetic(precision),
            candle_us / unfused_us,
            candle_us / fused_us
        );
        rows.push(row(case, precision, "unfused", unfused_us, Some(candle_us)));
        rows.push(row(case, precision, "fused", fused_us, Some(candle_us)));
        if let Some(us) = product_us {
            rows.push(row(case, precision, "product", us, None)); // candle's layer is no baseline of it
        }
    }
    Ok(rows)
}

fn row(case: &Case, precision: Precision, kernel: &str, us: f64, candle_us: Option<f64>) -> Row {
    let rounded = |value: f64, places: i32| (value * 10f64.powi(places)).round() / 10f64.powi(places);
    Row {
        bench: case.bench.into(),
        kernel: Some(kernel.into()),
        precision: Some(case.arithmetic(precision).into()),
        dtype: Some(case.dtype.as_str().into()),
        layer: Some(case.name.clone()),
        rows: Some(case.rows),
        inputs: case.widths.first().copied(),
        outputs: case.widths.last().copied(),
        activation: Some(format!("{:?}", case.activation).to_lowercase()),
        us: Some(rounded(us, 2)),
        baseline: candle_us.map(|_| "candle".into()),
        baseline_us: candle_us.map(|candle_us| rounded(candle_us, 2)),
        speedup: candle_us.map(|candle_us| rounded(candle_us / us, 3)),
        tflops: Some(rounded(case.flops() / us * 1e-6, 3)),
        ..Row::default()
    }
}
