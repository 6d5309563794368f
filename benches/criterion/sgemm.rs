//! The planner's choice beside cuBLAS as candle calls it, on the device's clock.
//!
//!     cargo bench -p benches --features cuda --bench sgemm

fn main() {
    #[cfg(feature = "cuda")]
    benches::run("sgemm", benches::support::gpu::Gpu::open, run);
    #[cfg(not(feature = "cuda"))]
    benches::without_gpu("sgemm");
}

#[cfg(feature = "cuda")]
fn run(gpu: &benches::support::gpu::Gpu, criterion: &mut criterion::Criterion) -> anyhow::Result<()> {
    use benches::support::case::{Case, Layout};
    use benches::support::product::Product;
    use candle_sgemm::gemm::{DType, Precision};
    use criterion::{BenchmarkId, Throughput};
    use std::time::Duration;

    let mut cases: Vec<Case> = [256, 1024, 4096].map(|size| Case::square(size, Layout::NN)).to_vec();
    for m in [1, 16, 128] {
        let cold = true;
        cases.push(Case {
            cold,
            ..Case::new(m, 4096, 4096, Layout::NT)
        });
    }
    for precision in Precision::ALL {
        let mut group = criterion.benchmark_group(format!("sgemm {precision}"));
        group.sample_size(20).measurement_time(Duration::from_secs(2));
        for &case in &cases {
            let product = Product::new(gpu, case, DType::F32, precision, 1.0, 0.0)?;
            let plan = product.plan(None)?;
            product.check("cuBLAS", || product.launch_cublas(0))?;
            product.check(plan.kernel.name, || product.launch(&plan, 0))?;
            group.throughput(Throughput::Elements(case.flops() as u64));
            let mut add = |name: &str, launch: &mut benches::support::gpu::Launch| {
                group.bench_function(BenchmarkId::new(name, case), |bench| {
                    bench.iter_custom(|launches| {
                        gpu.time(launches, false, launch)
                            .unwrap_or_else(|error| panic!("{name} on {case}: {error:#}"))
                    })
                });
            };
            add("candle-sgemm", &mut |i| product.launch(&plan, i));
            add("cublas", &mut |i| product.launch_cublas(i));
        }
        group.finish();
    }
    Ok(())
}
