//! The CPU path beside candle's own matmul and Linear, on the same operands in one run.
//!
//!     cargo bench -p benches --bench cpu_matmul

use candle_core::{Device, Module, Result, Tensor};
use candle_sgemm::matmul;
use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use std::time::Duration;

fn random(shape: (usize, usize)) -> Result<Tensor> {
    Tensor::rand(-1f32, 1f32, shape, &Device::Cpu)
}

/// Both products of one pair of operands.
fn both(c: &mut Criterion, group: &str, case: &str, a: &Tensor, b: &Tensor, candle: impl Fn() -> Result<Tensor>) {
    let flops = 2 * a.elem_count() * b.dims()[1];
    let mut group = c.benchmark_group(group);
    group.throughput(Throughput::Elements(flops as u64));
    group.bench_function(BenchmarkId::new("candle-sgemm", case), |bench| {
        bench.iter(|| matmul(a, b).unwrap())
    });
    group.bench_function(BenchmarkId::new("candle", case), |bench| {
        bench.iter(|| candle().unwrap())
    });
    group.finish();
}

fn squares(c: &mut Criterion) {
    for size in [512, 1024, 2048] {
        let (a, b) = (random((size, size)).unwrap(), random((size, size)).unwrap());
        both(c, "square", &format!("{size}"), &a, &b, || a.matmul(&b));
    }
}

/// Windows of larger tensors: candle's CPU matmul takes these too, its CUDA one would not.
fn views(c: &mut Criterion) {
    let big = random((1100, 1300)).unwrap();
    let a = big.narrow(0, 3, 512).unwrap().narrow(1, 5, 512).unwrap();
    let b = big.narrow(0, 501, 512).unwrap().narrow(1, 601, 512).unwrap();
    both(c, "view", "windows of 512", &a, &b, || a.matmul(&b));
    let (a, b) = (a.t().unwrap(), b.t().unwrap());
    both(c, "view", "transposed windows of 512", &a, &b, || a.matmul(&b));
}

/// One matrix for a whole batch: candle copies it for every batch, or for every batch but the plainest.
fn broadcast(c: &mut Criterion) {
    let a = Tensor::rand(-1f32, 1f32, (128, 128), &Device::Cpu).unwrap();
    let b = Tensor::rand(-1f32, 1f32, (16, 128, 128), &Device::Cpu).unwrap();
    let mut group = c.benchmark_group("broadcast");
    group.bench_function("candle-sgemm", |bench| bench.iter(|| matmul(&a, &b).unwrap()));
    group.bench_function("candle", |bench| bench.iter(|| a.broadcast_matmul(&b).unwrap()));
    group.finish();
}

/// The layers of the mlp example at its batch sizes, bias included.
fn linear(c: &mut Criterion) {
    for (inputs, outputs) in [(64, 512), (512, 512), (512, 10)] {
        let weight = random((outputs, inputs)).unwrap();
        let bias = Tensor::rand(-1f32, 1f32, outputs, &Device::Cpu).unwrap();
        let ours = candle_sgemm::Linear::new(weight.clone(), Some(bias.clone()));
        let candle = candle_nn::Linear::new(weight, Some(bias));
        for rows in [1, 64, 1024] {
            let x = random((rows, inputs)).unwrap();
            let case = format!("{rows}x{inputs}-{outputs}");
            let mut group = c.benchmark_group("linear");
            group.bench_function(BenchmarkId::new("candle-sgemm", &case), |bench| {
                bench.iter(|| ours.forward(&x).unwrap())
            });
            group.bench_function(BenchmarkId::new("candle", &case), |bench| {
                bench.iter(|| candle.forward(&x).unwrap())
            });
            group.finish();
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(20);
    targets = squares, views, broadcast, linear
}
criterion_main!(benches);
