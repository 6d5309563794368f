//! `transpose`, `permute`, `t_contiguous` and `contiguous_fast` against candle's own, for every dtype, on the CPU and, where
//! there is one, on a GPU; gradients; errors.

use candle_core::{DType, Device, IndexOp, Result, Tensor, Var};
use candle_sgemm::{permute, transpose, TransposeExt};

fn devices() -> Vec<Device> {
    let mut devices = vec![Device::Cpu];
    match Device::new_cuda(0) {
        Ok(device) => devices.push(device),
        Err(error) => eprintln!("transpose door: no GPU: {error}"),
    }
    devices
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
    let text = |result: Result<Tensor>| result.expect_err("a mistake").to_string();
    for message in [
        text(transpose(&x, 0, 2)),
        text(permute(&x, (0, 2))),
        text(permute(&x, (1, 1))),
        text(permute(&x, [1usize])),
        text(counted(&[7], DType::F32, &Device::Cpu)?.t_contiguous()),
    ] {
        assert!(message.contains("[2, 3]") || message.contains("[7]"), "{message}");
    }
    Ok(())
}
