//! Operands in memory that candle has not allocated, which may start on any multiple of an element's size.
#![cfg(feature = "cuda")]

#[path = "common/needs.rs"]
mod needs;

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, DType, Device, Module, Result, Storage, Tensor};
use candle_sgemm::{matmul, Activation, Gemm, Linear, Precision};
use cudarc::driver::DevicePtr;
use needs::skip;

/// |c − ref| ≤ C0·ε·√k·Σ|a||b| at FP32; TF32 keeps 10 bits of each operand.
const C0: f64 = 2.0;
const TF32_ERROR: f64 = 1e-3;

/// The first GPU, or why there is none.
fn gpu(test: &str) -> Option<Device> {
    match Device::new_cuda(0) {
        Ok(device) => Some(device),
        Err(error) => {
            skip(test, "gpu", format_args!("no usable GPU: {error}"));
            None
        }
    }
}

/// The same numbers in a storage that starts so many elements, one at least, behind a multiple of 256 bytes.
fn moved(t: &Tensor, by: usize) -> Result<Tensor> {
    let front = Tensor::zeros(by, DType::F32, t.device())?;
    let owner = Tensor::cat(&[&front, &t.flatten_all()?], 0)?;
    let (storage, _) = owner.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        panic!("the tensor is on a GPU")
    };
    let device = storage.device().clone();
    let stream = device.cuda_stream();
    let start = storage.as_cuda_slice::<f32>()?.device_ptr(&stream).0 + (by * size_of::<f32>()) as u64;
    // SAFETY: the memory holds the elements of `t` from there on, and its owner is never freed.
    let slice = unsafe { stream.upgrade_device_ptr::<f32>(start, t.elem_count()) };
    let wrapped = CudaStorage::wrap_cuda_slice(slice, device);
    let wrapped = Tensor::from_storage(Storage::Cuda(wrapped), t.shape(), BackpropOp::none(), false);
    // The owner stays, and what it owns is not freed from the middle.
    std::mem::forget((owner.clone(), wrapped.clone()));
    Ok(wrapped)
}

fn double(t: &Tensor) -> Result<Tensor> {
    t.to_device(&Device::Cpu)?.to_dtype(DType::F64)
}

fn assert_close(y: &Tensor, expected: &Tensor, allowed: &Tensor, what: &str) -> Result<()> {
    assert_eq!(y.dims(), expected.dims(), "{what}");
    let of = |t: &Tensor| double(t)?.flatten_all()?.to_vec1::<f64>();
    for (i, ((y, expected), allowed)) in of(y)?.iter().zip(of(expected)?).zip(of(allowed)?).enumerate() {
        assert!(
            (y - expected).abs() <= allowed,
            "{what}: element {i} is {y}, not {expected}"
        );
    }
    Ok(())
}

/// The error that a product of these factors may have, an element.
fn allowed(a: &Tensor, b: &Tensor, precision: Precision) -> Result<Tensor> {
    let k = a.dims()[a.rank() - 1] as f64;
    let relative = match precision {
        Precision::Tf32 => TF32_ERROR,
        _ => C0 * f64::from(f32::EPSILON) * k.sqrt(),
    };
    // A bias, C or residual adds a rounding of its own.
    double(&a.abs()?)?
        .matmul(&double(&b.abs()?)?)?
        .affine(relative, 4.0 * f64::from(f32::EPSILON) * 8.0)
}

#[test]
fn operands_may_start_anywhere() -> Result<()> {
    let Some(device) = gpu("operands_may_start_anywhere") else {
        return Ok(());
    };
    let random = |shape: &[usize]| Tensor::rand(-1f32, 1.5, shape, &device);
    // Shapes that planners like to load four elements at a time, through TMA too.
    for (m, n, k) in [
        (128, 128, 64),
        (512, 768, 256),
        (1, 1024, 512),
        (16, 256, 1024),
        (700, 4, 64),
        (33, 68, 36),
    ] {
        let (a, b, bt) = (random(&[m, k])?, random(&[k, n])?, random(&[n, k])?);
        let c = random(&[m, n])?;
        for precision in Precision::ALL {
            let gemm = Gemm::new().precision(precision);
            for by in [1, 2, 3] {
                let what = format!("{m}×{n}×{k}, {precision}, storages {} bytes off", 4 * by);
                let product = double(&a)?.matmul(&double(&b)?)?;
                let bound = allowed(&a, &b, precision)?;
                assert_close(
                    &gemm.matmul(&moved(&a, by)?, &b)?,
                    &product,
                    &bound,
                    &format!("A: {what}"),
                )?;
                assert_close(
                    &gemm.matmul(&a, &moved(&b, by)?)?,
                    &product,
                    &bound,
                    &format!("B: {what}"),
                )?;
                let plus_c = (&product + double(&c)?)?;
                let y = gemm.clone().c(&moved(&c, by)?, 1.0).matmul(&a, &b)?;
                assert_close(&y, &plus_c, &bound, &format!("C: {what}"))?;
                let transposed = double(&a)?.matmul(&double(&bt)?.t()?)?;
                let bound = allowed(&a, &bt.t()?, precision)?;
                let y = gemm.matmul(&moved(&a, by)?, &moved(&bt, by)?.t()?)?;
                assert_close(&y, &transposed, &bound, &format!("A and Bᵀ: {what}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn what_a_layer_reads_may_start_anywhere() -> Result<()> {
    let Some(device) = gpu("what_a_layer_reads_may_start_anywhere") else {
        return Ok(());
    };
    let random = |shape: &[usize]| Tensor::rand(-1f32, 1.5, shape, &device);
    for (rows, inputs, outputs) in [(1, 512, 256), (64, 128, 256), (300, 64, 128)] {
        let (x, w) = (random(&[rows, inputs])?, random(&[outputs, inputs])?);
        let (bias, residual) = (random(&[outputs])?, random(&[rows, outputs])?);
        for precision in [Precision::Fp32Strict, Precision::Fp32] {
            let product = double(&x)?.matmul(&double(&w)?.t()?)?;
            let expected = (product.broadcast_add(&double(&bias)?)?.relu()? + double(&residual)?)?;
            let bound = allowed(&x, &w.t()?, precision)?;
            for by in [1, 2] {
                for which in 0..4 {
                    let part = |i: usize, t: &Tensor| if i == which { moved(t, by) } else { Ok(t.clone()) };
                    let layer = Linear::new(part(1, &w)?, Some(part(2, &bias)?))
                        .with_activation(Activation::Relu)
                        .with_gemm(Gemm::new().precision(precision));
                    let what = format!(
                        "{rows}×{inputs}→{outputs}, {precision}, operand {which} {} bytes off",
                        4 * by
                    );
                    let (x, residual) = (part(0, &x)?, part(3, &residual)?);
                    assert_close(&layer.forward_residual(&x, &residual)?, &expected, &bound, &what)?;
                    let prepared = layer.prepare()?;
                    assert_close(&prepared.forward_residual(&x, &residual)?, &expected, &bound, &what)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_prepared_weight_starts_on_16_bytes() -> Result<()> {
    let Some(device) = gpu("a_prepared_weight_starts_on_16_bytes") else {
        return Ok(());
    };
    let w = Tensor::rand(-1f32, 1f32, (64, 128), &device)?;
    for by in [1, 2, 3, 4] {
        let layer = Linear::new(moved(&w, by)?, None).prepare()?;
        let (storage, layout) = layer.weight().storage_and_layout();
        let Storage::Cuda(storage) = &*storage else {
            panic!("the weight is on a GPU")
        };
        let stream = storage.device().cuda_stream();
        let start = storage.as_cuda_slice::<f32>()?.device_ptr(&stream).0 + 4 * layout.start_offset() as u64;
        assert_eq!(start % 16, 0, "{by}");
    }
    let layer = Linear::new(w.clone(), None);
    let expected = layer.forward(&w)?.to_vec2::<f32>()?;
    assert_eq!(layer.prepare()?.forward(&w)?.to_vec2::<f32>()?, expected);
    assert_eq!(matmul(&w, &w.t()?)?.to_vec2::<f32>()?, expected);
    Ok(())
}
