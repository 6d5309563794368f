//! Layers and networks as groups of Criterion.

use crate::support::gpu::{Gpu, Launch};
use crate::support::layer::{check, Case, Graph, Weights};
use anyhow::Result;
use candle_core::{DType, Device};
use candle_sgemm::Precision;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use std::time::Duration;

/// The precisions that benchmarks measure.
const PRECISIONS: [Precision; 2] = [Precision::Fp32Strict, Precision::Fp32];

/// The element types that benchmarks measure.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// A Criterion group of a case: stock candle, then for each precision this crate unfused and fused.
///
/// # Errors
///
/// If CUDA fails or the results differ from candle's.
pub fn bench(gpu: &Gpu, device: &Device, case: &Case, criterion: &mut Criterion) -> Result<()> {
    let weights = Weights::random(case, device)?;
    let stock = weights.stock()?;
    let mut group = group(criterion, name_of(case), case);
    time(&mut group, gpu, "candle", &mut |_| weights.stock().map(drop));
    for &precision in case.precisions(&PRECISIONS) {
        let arithmetic = case.arithmetic(precision);
        let layers = weights.fused(precision)?;
        check(&case.name, &weights.unfused(precision)?, &stock)?;
        check(&case.name, &weights.run(&layers)?, &stock)?;
        time(&mut group, gpu, &format!("unfused {arithmetic}"), &mut |_| {
            weights.unfused(precision).map(drop)
        });
        time(&mut group, gpu, &format!("fused {arithmetic}"), &mut |_| {
            weights.run(&layers).map(drop)
        });
    }
    group.finish();
    Ok(())
}

/// The same of CUDA graphs, on what [`open_for_graphs`](crate::support::layer::open_for_graphs) gives.
///
/// # Errors
///
/// As [`bench`].
pub fn bench_graph(gpu: &Gpu, device: &Device, case: &Case, criterion: &mut Criterion) -> Result<()> {
    let weights = Weights::random(case, device)?;
    let expected = weights.stock()?;
    let mut group = group(criterion, format!("{} as a graph", name_of(case)), case);
    let mut replay = |name: &str, graph: Graph| {
        time(&mut group, gpu, name, &mut |_| graph.replay());
        check(&case.name, graph.output(), &expected) // after many replays
    };
    replay("candle", Graph::record(device, || weights.stock())?)?;
    for &precision in case.precisions(&PRECISIONS) {
        let arithmetic = case.arithmetic(precision);
        let layers = weights.fused(precision)?;
        let unfused = Graph::record(device, || weights.unfused(precision))?;
        replay(&format!("unfused {arithmetic}"), unfused)?;
        let fused = Graph::record(device, || weights.run(&layers))?;
        replay(&format!("fused {arithmetic}"), fused)?;
    }
    group.finish();
    Ok(())
}

/// The case, and its element type where that is not FP32.
fn name_of(case: &Case) -> String {
    match case.dtype {
        DType::F32 => case.name.clone(),
        dtype => format!("{}, {}", case.name, dtype.as_str()),
    }
}

fn group<'a>(criterion: &'a mut Criterion, name: String, case: &Case) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .throughput(Throughput::Elements(case.flops() as u64));
    group
}

fn time(group: &mut BenchmarkGroup<WallTime>, gpu: &Gpu, name: &str, launch: &mut Launch) {
    group.bench_function(name, |bench| {
        bench.iter_custom(|launches| {
            gpu.time(launches, true, launch)
                .unwrap_or_else(|error| panic!("{name}: {error:#}"))
        })
    });
}
