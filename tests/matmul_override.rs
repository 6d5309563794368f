//! Candle's own matmul with the override on: the products are this crate's, and right.
#![cfg(feature = "cuda")]

#[path = "common/alone.rs"]
mod alone;
#[path = "common/largest.rs"]
mod largest;
#[path = "common/needs.rs"]
mod needs;

use alone::alone;
use candle_core::{DType, Device, Result, Tensor};
use candle_sgemm::{matmul_override, Precision};
use largest::largest;
use needs::skip;

/// The counts are the process's: one test at a time. `None`, with a line that says so, where there is no GPU.
fn gpu() -> Option<(Device, std::sync::MutexGuard<'static, ()>)> {
    match Device::new_cuda_with_stream(0) {
        Ok(device) => Some((device, alone())),
        Err(error) => {
            skip("a test of the override", "gpu", format_args!("no usable GPU: {error}"));
            None
        }
    }
}

/// A bound on `|c − ref|` for each element is `C0·ε·√k·Σ|a||b|`.
const C0: f64 = 2.0;

/// Multiplies with candle on the GPU and compares with FP64 on the CPU.
fn check(a: &Tensor, b: &Tensor) -> Result<()> {
    let k = a.dim(candle_core::D::Minus1)? as f64;
    let product = a.matmul(b)?.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    let double = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.contiguous();
    let (a, b) = (double(a)?, double(b)?);
    let difference = (product - a.matmul(&b)?)?.abs()?.flatten_all()?.to_vec1::<f64>()?;
    let sizes = a.abs()?.matmul(&b.abs()?)?.flatten_all()?.to_vec1::<f64>()?;
    for (difference, size) in difference.iter().zip(sizes) {
        let bound = C0 * f32::EPSILON as f64 * k.sqrt() * size;
        assert!(*difference <= bound, "{difference:e} is above {bound:e}");
    }
    Ok(())
}

#[test]
fn candles_products_are_taken_over_in_every_layout() -> Result<()> {
    let Some((device, _alone)) = gpu() else { return Ok(()) };
    matmul_override::reset_stats();
    let random = |shape: &[usize]| Tensor::randn(0f32, 1., shape, &device);
    let mut products = 0;
    for precision in [Precision::Fp32Strict, Precision::Fp32] {
        matmul_override::set_precision(Some(precision));
        for (m, n, k) in [
            (1, 1, 1),
            (1, 768, 3072),
            (7, 13, 17),
            (64, 96, 128),
            (129, 255, 67),
            (512, 384, 1536),
        ] {
            matmul_override::scope(|| -> Result<()> {
                check(&random(&[m, k])?, &random(&[k, n])?)?;
                check(&random(&[m, k])?, &random(&[n, k])?.t()?)?;
                check(&random(&[k, m])?.t()?, &random(&[k, n])?)?;
                check(&random(&[k, m])?.t()?, &random(&[n, k])?.t()?)?;
                check(&random(&[3, m, k])?, &random(&[3, k, n])?)?;
                check(&random(&[2, 3, m, k])?, &random(&[2, 3, n, k])?.transpose(2, 3)?)
            })?;
            products += 6;
        }
    }
    matmul_override::set_precision(None);
    let stats = matmul_override::stats();
    assert_eq!((stats.taken, stats.calls()), (products, products), "{stats}");
    Ok(())
}

#[test]
fn outside_a_scope_nothing_is_taken_and_sixteen_bits_are_inside() -> Result<()> {
    let Some((device, _alone)) = gpu() else { return Ok(()) };
    matmul_override::reset_stats();
    let a = Tensor::randn(0f32, 1., (32, 64), &device)?;
    check(&a, &a.t()?)?;
    assert_eq!(matmul_override::stats().calls(), 0);
    for dtype in [DType::F16, DType::BF16] {
        let half = a.to_dtype(dtype)?;
        let expected = half.matmul(&half.t()?)?.to_dtype(DType::F32)?;
        let product = matmul_override::scope(|| half.matmul(&half.t()?))?;
        assert_eq!((product.dims(), product.dtype()), (&[32, 32][..], dtype));
        let off = largest(&(product.to_dtype(DType::F32)? - &expected)?)?;
        let largest = largest(&expected)?;
        // Both round FP32 sums once.
        assert!(off <= largest / 128.0, "{dtype:?}: {off} of {largest}");
    }
    let stats = matmul_override::stats();
    assert_eq!((stats.taken, stats.calls()), (2, 2), "{stats}");
    Ok(())
}

#[test]
fn the_precision_is_that_of_the_call_unless_one_is_set() -> Result<()> {
    let Some((device, _alone)) = gpu() else { return Ok(()) };
    let a = Tensor::randn(0f32, 1., (256, 256), &device)?;
    let used = |wanted| -> Result<Precision> {
        matmul_override::reset_stats();
        matmul_override::set_precision(wanted);
        let product = matmul_override::scope(|| a.matmul(&a));
        matmul_override::set_precision(None);
        product?;
        Ok(matmul_override::stats().shapes[0].precision)
    };
    assert_eq!(used(None)?, Precision::Fp32);
    assert_eq!(used(Some(Precision::Fp32Strict))?, Precision::Fp32Strict);
    candle_core::cuda::set_gemm_reduced_precision_f32(true);
    let reduced = used(None);
    candle_core::cuda::set_gemm_reduced_precision_f32(false);
    assert_eq!(reduced?, Precision::Tf32);
    Ok(())
}

#[test]
fn several_threads_and_streams_multiply_at_once() -> Result<()> {
    let Some((_, _alone)) = gpu() else { return Ok(()) };
    matmul_override::reset_stats();
    matmul_override::enable();
    let results: Vec<Result<()>> = std::thread::scope(|threads| {
        let run = || -> Result<()> {
            let device = Device::new_cuda_with_stream(0)?;
            for size in [33, 128, 257] {
                let a = Tensor::randn(0f32, 1., (size, size), &device)?;
                check(&a, &a.t()?)?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..4).map(|_| threads.spawn(run)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    matmul_override::disable();
    results.into_iter().collect::<Result<()>>()?;
    let stats = matmul_override::stats();
    assert_eq!((stats.taken, stats.calls()), (12, 12), "{stats}");
    Ok(())
}

#[test]
fn a_captured_graph_replays_the_product() -> Result<()> {
    use candle_core::cuda_backend::WrapErr;
    use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

    let Some((device, _alone)) = gpu() else { return Ok(()) };
    matmul_override::reset_stats();
    // SAFETY: one stream does everything here. (cudarc would order it after events from outside the capture, which ends
    // a capture with an error, whoever multiplies.)
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    let stream = device.as_cuda_device()?.cuda_stream();
    let a = Tensor::randn(0f32, 1., (64, 64), &device)?;
    // The kernel is loaded before the capture; afterwards nothing but the launch is recorded.
    matmul_override::scope(|| a.matmul(&a))?;
    device.synchronize()?;
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .w()?;
    let product = matmul_override::scope(|| a.matmul(&a));
    let graph = stream
        .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
        .w()?;
    let product = product?;
    graph.expect("something was recorded").launch().w()?;
    let stats = matmul_override::stats();
    assert_eq!(stats.taken, 2, "{stats}");
    let expected = a.matmul(&a)?;
    let difference = largest(&(product - expected)?)?;
    assert!(difference < 1e-4, "{difference}");
    Ok(())
}
