//! What one call costs the host: ours and candle's, beside what the driver takes for the launch of an empty kernel alone.
//!
//!     cargo bench -p benches --features cuda --bench host_time
//!
//! The products are so small that the device is always waiting for the host.

fn main() {
    #[cfg(feature = "cuda")]
    benches::run("host_time", || Ok(candle_core::Device::new_cuda(0)?), run);
    #[cfg(not(feature = "cuda"))]
    benches::without_gpu("host_time");
}

#[cfg(feature = "cuda")]
fn run(device: &candle_core::Device, criterion: &mut criterion::Criterion) -> anyhow::Result<()> {
    use candle_core::Tensor;
    use candle_sgemm::{matmul, Gemm, Linear, Precision};
    use cudarc::driver::result;
    use std::ffi::c_void;

    let stream = device.as_cuda_device()?.cuda_stream();
    let gpu = benches::support::gpu::Gpu::on(stream)?;
    let random = |shape: &[usize]| Tensor::randn(0f32, 1., shape, device);
    let (x, w, bias) = (random(&[16, 16])?, random(&[16, 16])?, random(&[16])?);
    // Large enough for the kernels that read through tensor maps, which are made anew for every launch.
    let (wide_x, wide_w) = (random(&[128, 256])?, random(&[256, 256])?.t()?);
    let strict = Gemm::new().precision(Precision::Fp32Strict);
    let linear = Linear::new(w.clone(), Some(bias.clone()));
    let stock = candle_nn::Linear::new(w.clone(), Some(bias));
    let empty = gpu.context.function("diagnostics/measure", "hold", 0)?;

    let mut group = criterion.benchmark_group("host time of one call");
    group.sample_size(30);
    let mut add = |name: &str, call: &mut dyn FnMut() -> anyhow::Result<()>| {
        group.bench_function(name, |bench| {
            bench.iter_custom(|calls| {
                gpu.host_time(calls, call)
                    .unwrap_or_else(|error| panic!("{name}: {error:#}"))
            })
        });
    };
    add("launch of an empty kernel", &mut || {
        let mut cycles = 0i64;
        let mut parameters: [*mut c_void; 1] = [std::ptr::from_mut(&mut cycles).cast()];
        // SAFETY: the kernel takes this number and touches no memory.
        unsafe {
            result::launch_kernel(
                empty.handle(),
                (1, 1, 1),
                (32, 1, 1),
                0,
                gpu.stream.cu_stream(),
                &mut parameters,
            )
        }?;
        Ok(())
    });
    add("candle, 16×16×16", &mut || done(x.matmul(&w)));
    add("ours, 16×16×16", &mut || done(matmul(&x, &w)));
    add("ours, strict, 16×16×16", &mut || done(strict.matmul(&x, &w)));
    add("candle, 128×256×256", &mut || done(wide_x.matmul(&wide_w)));
    add("ours, 128×256×256", &mut || done(matmul(&wide_x, &wide_w)));
    add("candle's linear layer, 16×16→16", &mut || {
        done(candle_nn::Module::forward(&stock, &x))
    });
    add("our linear layer, 16×16→16", &mut || {
        done(candle_nn::Module::forward(&linear, &x))
    });
    add("allocation of a result, 16×16", &mut || {
        // SAFETY: nothing reads it.
        done(unsafe { gpu.stream.alloc::<f32>(256) })
    });
    group.finish();
    Ok(())
}

/// The result of a call is dropped while the clock runs, as in a program.
#[cfg(feature = "cuda")]
fn done<T, E>(result: Result<T, E>) -> anyhow::Result<()>
where
    anyhow::Error: From<E>,
{
    std::hint::black_box(result?);
    Ok(())
}
