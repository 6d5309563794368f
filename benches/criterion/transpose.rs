//! Transposition on the CPU beside candle's own, on the same tensor in one run.
//!
//!     cargo bench -p benches --bench transpose
//!
//! On a GPU: `cargo run --release --features cuda --example ladder -- transpose`.

use candle_core::{DType, Device, Result, Tensor};
use candle_sgemm::{permute, TransposeExt};
use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use std::time::Duration;

/// Ours and candle's, in bytes read and written.
fn both(
    c: &mut Criterion,
    case: &str,
    x: &Tensor,
    ours: impl Fn(&Tensor) -> Result<Tensor>,
    candle: impl Fn(&Tensor) -> Result<Tensor>,
) {
    let mut group = c.benchmark_group("transpose");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::Bytes(
        (2 * x.elem_count() * x.dtype().size_in_bytes()) as u64,
    ));
    group.bench_function(BenchmarkId::new("candle-sgemm", case), |bench| {
        bench.iter(|| ours(x).unwrap())
    });
    group.bench_function(BenchmarkId::new("candle", case), |bench| {
        bench.iter(|| candle(x).unwrap())
    });
    group.finish();
}

fn random(shape: &[usize], dtype: DType) -> Tensor {
    let x = Tensor::rand(0f32, 100f32, shape, &Device::Cpu);
    x.and_then(|x| x.to_dtype(dtype)).unwrap()
}

fn matrices(c: &mut Criterion) {
    for (rows, cols, dtype) in [
        (4096, 4096, DType::F32),
        (4096, 4096, DType::BF16),
        (4095, 4097, DType::F32),
        (3, 4_000_000, DType::F32),
        (4_000_000, 3, DType::F32),
    ] {
        let x = random(&[rows, cols], dtype);
        let case = format!("{} {rows}x{cols}", dtype.as_str());
        both(c, &case, &x, Tensor::t_contiguous, |x| x.t()?.contiguous());
    }
}

fn permutations(c: &mut Criterion) {
    let heads = random(&[32, 128, 12, 64], DType::F32);
    both(
        c,
        "f32 heads",
        &heads,
        |x| permute(x, (0, 2, 1, 3)),
        |x| x.transpose(1, 2)?.contiguous(),
    );
    let pixels = random(&[16, 224, 224, 3], DType::U8);
    both(
        c,
        "u8 pixels to planes",
        &pixels,
        |x| permute(x, (0, 3, 1, 2)),
        |x| x.permute((0, 3, 1, 2))?.contiguous(),
    );
}

criterion_group!(benches, matrices, permutations);
criterion_main!(benches);
