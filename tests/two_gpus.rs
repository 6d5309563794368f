//! Two GPUs in one process, the second one used first: products, layers, transpositions, the tuner and the override work on
//! either, and what is cached for one is not taken for the other.
#![cfg(feature = "cuda")]

mod common;

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_sgemm::{matmul, permute, transpose, Activation, Gemm, Linear, Precision};
use common::in_a_fresh_process;
use common::largest::largest;
use common::needs::skip;

/// The largest difference to the FP64 product, in units of the sum of absolute products.
fn off(product: &Tensor, a: &Tensor, b: &Tensor) -> Result<f64> {
    let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    let (product, a, b) = (wide(product)?, wide(a)?, wide(b)?);
    let difference = (product - a.contiguous()?.matmul(&b.contiguous()?)?)?.abs()?;
    let magnitude = a.abs()?.contiguous()?.matmul(&b.abs()?.contiguous()?)?;
    largest(&(difference / magnitude)?)
}

fn everything(device: &Device) -> Result<()> {
    let random = |shape: &[usize]| Tensor::rand(-1f32, 1.1f32, shape, device);
    // Tiles, stream-K, few rows, repacked operands: whatever the planner takes.
    for (m, n, k) in [
        (257, 130, 65),
        (1, 768, 3072),
        (16, 4096, 4096),
        (640, 512, 2048),
        (1000, 1000, 999),
    ] {
        let (a, b) = (random(&[m, k])?, random(&[n, k])?);
        for precision in [Precision::Fp32Strict, Precision::Fp32, Precision::Tf32] {
            let bound = if precision == Precision::Tf32 { 2e-3 } else { 2e-5 };
            for gemm in [Gemm::new(), Gemm::new().tuned()] {
                let product = gemm.precision(precision).matmul(&a, &b.t()?)?;
                let off = off(&product, &a, &b.t()?)?;
                assert!(
                    off < bound,
                    "{m}×{n}×{k} at {precision} on {:?}: {off}",
                    device.location()
                );
            }
        }
    }
    let (x, w, bias) = (random(&[37, 85])?, random(&[94, 85])?, random(&[94])?);
    let fused = Linear::new(w.clone(), Some(bias.clone())).with_activation(Activation::GeluErf);
    let stock = candle_nn::Linear::new(w.clone(), Some(bias));
    assert!(largest(&(fused.forward(&x)? - stock.forward(&x)?.gelu_erf()?)?)? < 1e-4);

    let t = random(&[5, 33, 70])?;
    let (ours, theirs) = (transpose(&t, 1, 2)?, t.transpose(1, 2)?.contiguous()?);
    assert_eq!(ours.to_vec3::<f32>()?, theirs.to_vec3::<f32>()?);
    let (ours, theirs) = (permute(&t, (2, 0, 1))?, t.permute((2, 0, 1))?.contiguous()?);
    assert_eq!(ours.to_vec3::<f32>()?, theirs.to_vec3::<f32>()?);

    #[cfg(feature = "override")]
    {
        let taken = candle_sgemm::matmul_override::scope(|| x.matmul(&w.t()?))?;
        let off = off(&taken, &x, &w.t()?)?;
        assert!(off < 2e-5, "overridden on {:?}: {off}", device.location());
    }
    let again = matmul(&x, &w.t()?)?;
    assert!(off(&again, &x, &w.t()?)? < 2e-5);
    Ok(())
}

#[test]
fn the_second_gpu_may_be_used_first() {
    let test = "the_second_gpu_may_be_used_first";
    if let Err(error) = Device::new_cuda(1) {
        skip(test, "two-gpus", format_args!("there is no second GPU: {error}"));
        return;
    }
    in_a_fresh_process(test, || {
        let cache = tempfile::tempdir().unwrap();
        std::env::set_var("CANDLE_SGEMM_CACHE", cache.path().join("choices.json"));
        for ordinal in [1, 0, 1] {
            everything(&Device::new_cuda(ordinal).unwrap()).unwrap();
        }
        // Both at a time, from a thread each.
        std::thread::scope(|scope| {
            for ordinal in [0, 1] {
                scope.spawn(move || everything(&Device::new_cuda(ordinal).unwrap()).unwrap());
            }
        });
    });
}
