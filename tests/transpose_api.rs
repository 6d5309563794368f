//! `transpose`, `permute`, `t_contiguous` and `contiguous_fast` against candle's own, for every dtype, on the CPU and, where
//! there is one, on a GPU; gradients; errors.

#[cfg(feature = "cuda")]
#[path = "common/needs.rs"]
mod needs;

use candle_core::op::BackpropOp;
use candle_core::{bail, CpuStorage, DType, Device, IndexOp, Result, Storage, Tensor, Var, D};
use candle_sgemm::{permute, transpose, TransposeExt};

fn devices() -> Vec<Device> {
    #[cfg(feature = "cuda")]
    let gpu = Device::new_cuda(0)
        .map_err(|error| needs::skip("transpose API", "gpu", format_args!("no usable GPU: {error}")))
        .ok();
    #[cfg(not(feature = "cuda"))]
    let gpu = None;
    [Device::Cpu].into_iter().chain(gpu).collect()
}

const DTYPES: [DType; 10] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
];

fn counted(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    // Small whole numbers, which every dtype holds exactly.
    let numbers = (0..count).map(|i| (i * 7 % 13 + i % 3) as f32);
    Tensor::from_iter(numbers, &Device::Cpu)?
        .reshape(shape)?
        .to_dtype(dtype)?
        .to_device(device)
}

/// Bit for bit, on the CPU: candle's own way as the reference.
fn assert_same(got: &Tensor, want: &Tensor) -> Result<()> {
    assert_eq!((got.dims(), got.dtype()), (want.dims(), want.dtype()));
    assert!(got.is_contiguous());
    let plain = |t: &Tensor| {
        let t = t.to_device(&Device::Cpu)?.flatten_all()?;
        // Candle 0.11.1 never returns from the conversion of an F8E4M3 zero to F64.
        let t = if t.dtype() == DType::F8E4M3 {
            t.to_dtype(DType::F32)?
        } else {
            t
        };
        t.to_dtype(DType::F64)?.to_vec1::<f64>()
    };
    assert_eq!(plain(got)?, plain(want)?);
    Ok(())
}

#[test]
fn every_dtype_every_permutation() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let cpu = counted(&[3, 34, 5, 18], dtype, &Device::Cpu)?;
            let x = cpu.to_device(&device)?;
            for order in [
                [0, 1, 3, 2],
                [0, 2, 1, 3],
                [3, 2, 1, 0],
                [2, 3, 0, 1],
                [1, 0, 2, 3],
                [0, 1, 2, 3],
            ] {
                assert_same(&permute(&x, order)?, &cpu.permute(order)?.contiguous()?)?;
            }
            assert_same(&transpose(&x, 1, 3)?, &cpu.transpose(1, 3)?.contiguous()?)?;
            assert_same(&x.t_contiguous()?, &cpu.t()?.contiguous()?)?;
        }
    }
    Ok(())
}

/// A tensor of a type that candle stores, but neither makes nor converts nor copies.
fn stored(bytes: &[u8], shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let storage = match device {
        Device::Cpu => Storage::Cpu(match dtype {
            DType::F8E8M0 => CpuStorage::F8E8M0(bytes.to_vec()),
            DType::F6E2M3 => CpuStorage::F6E2M3(bytes.to_vec()),
            DType::F6E3M2 => CpuStorage::F6E3M2(bytes.to_vec()),
            DType::F4 => CpuStorage::F4(bytes.to_vec()),
            dtype => bail!("{dtype:?} can be made of numbers"),
        }),
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            use candle_core::cuda_backend::{CudaStorage, CudaStorageSlice};
            let bytes = device.clone_htod(bytes)?;
            let slice = match dtype {
                DType::F8E8M0 => CudaStorageSlice::F8E8M0(bytes),
                DType::F6E2M3 => CudaStorageSlice::F6E2M3(bytes),
                DType::F6E3M2 => CudaStorageSlice::F6E3M2(bytes),
                DType::F4 => CudaStorageSlice::F4(bytes),
                dtype => bail!("{dtype:?} can be made of numbers"),
            };
            let device = device.clone();
            Storage::Cuda(CudaStorage { slice, device })
        }
        device => bail!("{device:?} is not tested"),
    };
    Ok(Tensor::from_storage(storage, shape, BackpropOp::none(), false))
}

/// The bytes of a contiguous tensor of F8E8M0.
fn stored_bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    assert!(tensor.is_contiguous());
    let (storage, layout) = tensor.storage_and_layout();
    let bytes = match &*storage {
        Storage::Cpu(CpuStorage::F8E8M0(bytes)) => bytes.clone(),
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => match &storage.slice {
            candle_core::cuda_backend::CudaStorageSlice::F8E8M0(slice) => storage.device.clone_dtoh(slice)?,
            _ => bail!("{:?} is not F8E8M0", tensor.dtype()),
        },
        _ => bail!("{:?} is not F8E8M0", tensor.dtype()),
    };
    Ok(bytes[layout.start_offset()..][..tensor.elem_count()].to_vec())
}

/// Candle 0.11.1 itself cannot copy F8E8M0: the same bytes as U8 are the reference.
#[test]
fn types_that_candle_only_stores_move_byte_for_byte() -> Result<()> {
    let shape = [5, 34, 18];
    let bytes: Vec<u8> = (0..5 * 34 * 18).map(|i| (i * 37 % 251) as u8).collect();
    let cpu = Tensor::from_slice(&bytes, &shape, &Device::Cpu)?;
    let same = |got: Tensor, want: Tensor| -> Result<()> {
        assert_eq!((got.dims(), got.dtype()), (want.dims(), DType::F8E8M0));
        assert_eq!(stored_bytes(&got)?, want.contiguous()?.flatten_all()?.to_vec1::<u8>()?);
        Ok(())
    };
    for device in devices() {
        let x = stored(&bytes, &shape, DType::F8E8M0, &device)?;
        for order in [[0, 2, 1], [1, 0, 2], [2, 1, 0], [0, 1, 2]] {
            same(permute(&x, order)?, cpu.permute(order)?)?;
        }
        same(transpose(&x, 0, 2)?, cpu.transpose(0, 2)?)?;
        same(x.narrow(1, 3, 17)?.contiguous_fast()?, cpu.narrow(1, 3, 17)?)?;
        same(x.narrow(2, 1, 16)?.t_contiguous()?, cpu.narrow(2, 1, 16)?.t()?)?;

        // Elements of less than a byte are candle's to move, or to refuse.
        for dtype in [DType::F6E2M3, DType::F6E3M2, DType::F4] {
            let x = stored(&bytes, &shape, dtype, &device)?;
            let candles = x.t()?.contiguous().map_err(|error| error.to_string());
            let ours = x.t_contiguous().map_err(|error| error.to_string());
            assert_eq!(ours.is_ok(), candles.is_ok());
            if let (Err(ours), Err(candles)) = (ours, candles) {
                // Behind a line that names the call.
                assert!(
                    ours.starts_with(&format!("t_contiguous(x: {dtype:?} {shape:?})")),
                    "{ours}"
                );
                assert_eq!(ours.lines().nth(1), candles.lines().next());
            }
        }
    }
    Ok(())
}

#[test]
fn every_rank() -> Result<()> {
    for device in devices() {
        let scalar = Tensor::new(7f32, &device)?;
        assert_same(&permute(&scalar, ())?, &scalar)?;
        assert_same(&scalar.contiguous_fast()?, &scalar)?;

        let cpu = counted(&[4, 9], DType::F32, &Device::Cpu)?;
        let x = cpu.to_device(&device)?;
        let (column, want) = (x.i((.., 5))?, cpu.i((.., 5))?);
        assert_same(&column.contiguous_fast()?, &want.contiguous()?)?;
        assert_same(&permute(&column, [0usize])?, &want.contiguous()?)?;
        assert_same(&transpose(&column, 0, D::Minus1)?, &want.contiguous()?)?;

        for shape in [
            &[3, 2, 5, 2, 3, 4][..],
            &[2, 3, 2, 3, 2, 3, 4],
            &[2, 3, 2, 3, 2, 2, 3, 5],
        ] {
            let rank = shape.len();
            let cpu = counted(shape, DType::BF16, &Device::Cpu)?;
            let x = cpu.to_device(&device)?;
            let reversed: Vec<usize> = (0..rank).rev().collect();
            let rotated: Vec<usize> = (0..rank).map(|dim| (dim + 2) % rank).collect();
            // Dimensions of even number first: nothing stays beside its neighbour.
            let apart: Vec<usize> = (0..rank).step_by(2).chain((1..rank).step_by(2)).collect();
            for order in [reversed, rotated, apart] {
                assert_same(
                    &permute(&x, order.as_slice())?,
                    &cpu.permute(order.as_slice())?.contiguous()?,
                )?;
            }
            assert_same(&x.t_contiguous()?, &cpu.t()?.contiguous()?)?;
            assert_same(&transpose(&x, 1, rank - 2)?, &cpu.transpose(1, rank - 2)?.contiguous()?)?;
            let (view, want) = (x.narrow(1, 1, 1)?, cpu.narrow(1, 1, 1)?);
            assert_same(
                &transpose(&view, 0, D::Minus1)?,
                &want.transpose(0, D::Minus1)?.contiguous()?,
            )?;
        }
    }
    Ok(())
}

#[test]
fn views_are_taken_as_they_are() -> Result<()> {
    for device in devices() {
        let cpu = counted(&[40, 6, 33], DType::F32, &Device::Cpu)?;
        let x = cpu.to_device(&device)?;
        let views: [fn(&Tensor) -> Result<Tensor>; 6] = [
            |t| t.narrow(0, 3, 31)?.narrow(2, 1, 17),
            |t| t.i((5.., 2, ..)),
            |t| t.i((.., .., 7)),
            |t| t.narrow(1, 2, 1)?.broadcast_as((40, 4, 33)),
            |t| t.i((.., 0, ..))?.unsqueeze(0)?.broadcast_as((3, 40, 33)),
            |t| t.permute((2, 0, 1)),
        ];
        for view in views {
            let (want, got) = (view(&cpu)?, view(&x)?);
            assert_same(&got.contiguous_fast()?, &want.contiguous()?)?;
            let last = want.rank() - 1;
            assert_same(&transpose(&got, 0, last)?, &want.transpose(0, last)?.contiguous()?)?;
        }
    }
    Ok(())
}

#[test]
fn what_lies_in_order_is_not_copied() -> Result<()> {
    let x = counted(&[1, 7], DType::F32, &Device::Cpu)?;
    let address = |t: &Tensor| -> Result<*const f32> {
        let (storage, layout) = t.storage_and_layout();
        match &*storage {
            candle_core::Storage::Cpu(cpu) => Ok(cpu.as_slice::<f32>()?[layout.start_offset()..].as_ptr()),
            _ => candle_core::bail!("this is a CPU tensor"),
        }
    };
    assert_eq!(address(&x.t_contiguous()?)?, address(&x)?);
    assert_eq!(address(&x.contiguous_fast()?)?, address(&x)?);
    let y = counted(&[5, 7], DType::F32, &Device::Cpu)?;
    assert_eq!(address(&y.t()?.t_contiguous()?)?, address(&y)?);
    assert_eq!(
        permute(&counted(&[0, 7], DType::F32, &Device::Cpu)?, (1, 0))?.dims(),
        [7, 0]
    );
    Ok(())
}

#[test]
fn gradients_arrive_in_the_shape_of_the_operand() -> Result<()> {
    for device in devices() {
        let x = Var::from_tensor(&counted(&[4, 5, 6], DType::F32, &device)?)?;
        let weight = counted(&[6, 4, 5], DType::F32, &device)?;
        let ours = (permute(x.as_tensor(), (2, 0, 1))? * &weight)?.sum_all()?.backward()?;
        let candles = (x.permute((2, 0, 1))?.contiguous()? * &weight)?.sum_all()?.backward()?;
        let grad = ours.get(&x).expect("a gradient");
        assert_same(&grad.contiguous()?, candles.get(&x).expect("a gradient"))?;

        // Through a view, which candle tracks, and then through contiguous_fast.
        let ours = (x.transpose(0, 2)?.contiguous_fast()? * weight.transpose(1, 2)?.contiguous()?)?;
        let candles = (x.transpose(0, 2)?.contiguous()? * weight.transpose(1, 2)?.contiguous()?)?;
        let (ours, candles) = (ours.sum_all()?.backward()?, candles.sum_all()?.backward()?);
        let both = [ours, candles].map(|grads| grads.get(&x).expect("a gradient").contiguous());
        let [ours, candles] = both;
        assert_same(&ours?, &candles?)?;
    }
    Ok(())
}

#[test]
fn mistakes_name_the_shape() -> Result<()> {
    let x = counted(&[2, 3], DType::F32, &Device::Cpu)?;
    let vector = counted(&[7], DType::F32, &Device::Cpu)?;
    let deep = counted(&[2, 1, 2, 1, 2, 3], DType::F32, &Device::Cpu)?;
    let scalar = Tensor::new(1f32, &Device::Cpu)?;
    for (result, shape, why) in [
        (transpose(&x, 0, 2), "[2, 3]", "out of range"),
        (transpose(&x, D::Minus(3), 0), "[2, 3]", "out of range"),
        (permute(&x, (0, 2)), "[2, 3]", "out of range"),
        (permute(&x, (1, 1)), "[2, 3]", "duplicate dim index"),
        (permute(&x, [1usize]), "[2, 3]", "names 1 of the 2 dimensions"),
        (permute(&x, (0, 1, 2)), "[2, 3]", "out of range"),
        (transpose(&vector, 0, 1), "[7]", "out of range"),
        (vector.t_contiguous(), "[7]", "expected: 2, got: 1"),
        (transpose(&deep, 5, 6), "[2, 1, 2, 1, 2, 3]", "out of range"),
        (permute(&deep, (0, 1, 2, 3)), "[2, 1, 2, 1, 2, 3]", "names 4 of the 6"),
        (scalar.t_contiguous(), "[]", "expected: 2, got: 0"),
        (permute(&scalar, [0usize]), "[]", "out of range"),
    ] {
        let text = result.expect_err("a mistake").to_string();
        assert!(text.contains(shape) && text.contains(why), "{shape}, {why}: {text}");
    }
    Ok(())
}
