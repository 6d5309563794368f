//! Products and layers of 16-bit tensors: views, batches, other operands of either type, results of either type, gradients. On the
//! CPU and, where there is one, on a GPU.

#[macro_use]
mod devices;

use candle_core::{DType, Device, Module, Result, Tensor, Var, D};
use candle_sgemm::{matmul, Activation, GatedMlp, Gemm, Linear, SgemmExt};
use devices::largest;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

on_every_device!(
    products_are_summed_in_fp32_and_rounded_once,
    layers_fuse_what_follows_the_product,
    layers_end_in_large_tiles,
    layers_end_behind_the_next_tile,
    gradients_are_those_of_fp32_factors,
    gradients_of_what_many_rows_share_are_summed_in_fp32,
    slopes_of_gelu_are_finite_where_its_argument_is_large,
    silu_keeps_its_digits_far_below_zero,
    every_number_goes_through_gelu,
    specials_are_those_of_ieee,
    a_gated_mlp_is_that_of_its_products,
    what_does_not_fit_is_refused_with_its_types,
);

fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Half an ulp of each type, as a part of the number, and half of its least number.
fn rounding(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F16 => (1.0 / 2048.0, 1.0 / f64::from(1 << 25)),
        DType::BF16 => (1.0 / 256.0, 0.0),
        _ => (0.0, 0.0),
    }
}

/// Rounding errors of a sum of k products, in units of FP32's ε·√k·Σ|a||b|.
const C0: f64 = 4.0;
/// Of what follows, in units of ε times its terms.
const C1: f64 = 16.0;

/// A tensor of random numbers that this type has, and the same in FP64 on the CPU.
fn numbers(rng: &mut StdRng, shape: &[usize], dtype: DType, device: &Device) -> Result<(Tensor, Tensor)> {
    let count = shape.iter().product();
    let numbers: Vec<f32> = (0..count).map(|_| rng.random_range(-1.0..1.1f32)).collect();
    let rounded = Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(dtype)?;
    let exact = rounded.to_dtype(DType::F32)?.to_dtype(DType::F64)?;
    Ok((rounded.to_device(device)?, exact))
}

/// A view of this shape: dense, transposed, narrowed, or every row the same.
fn view(rng: &mut StdRng, shape: &[usize], dtype: DType, device: &Device) -> Result<(Tensor, Tensor)> {
    let (rank, way) = (shape.len(), rng.random_range(0..5));
    let mut stored = shape.to_vec();
    match way {
        1 => stored.swap(rank - 2, rank - 1),
        2 => stored[rank - 1] += [1, 3, 8][rng.random_range(0..3)],
        3 => stored[rank - 2] = 1,
        _ => {}
    }
    let (t, exact) = numbers(rng, &stored, dtype, device)?;
    let first = rng.random_range(0..=stored[rank - 1].saturating_sub(shape[rank - 1]));
    let of = |t: Tensor| match way {
        1 => t.transpose(D::Minus2, D::Minus1),
        2 => t.narrow(D::Minus1, first, shape[rank - 1]),
        3 => t.broadcast_as(shape),
        _ => Ok(t),
    };
    Ok((of(t)?, of(exact)?))
}

fn activated(activation: Activation, x: &Tensor) -> Result<Tensor> {
    match activation {
        Activation::Relu => x.relu(),
        Activation::GeluTanh => x.gelu(),
        Activation::GeluErf => x.gelu_erf(),
        Activation::Silu => x.silu(),
        _ => Ok(x.clone()),
    }
}

/// What layers are drawn with.
const ACTIVATIONS: [Activation; 5] = [
    Activation::Identity,
    Activation::Relu,
    Activation::GeluTanh,
    Activation::GeluErf,
    Activation::Silu,
];

/// What a linear layer of these numbers gives, and the sums of its products' magnitudes.
fn linear_layer(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<(Tensor, Tensor)> {
    let (x, wt) = (x.contiguous()?, w.t()?.contiguous()?);
    let magnitude = x.abs()?.matmul(&wt.abs()?)?;
    let sum = x.matmul(&wt)?;
    let sum = match bias {
        Some(bias) => sum.broadcast_add(bias)?,
        None => sum,
    };
    Ok((activated(activation, &sum)?, magnitude))
}

/// The layer by one kernel, and what it gives; `None` on GPUs without this kernel.
fn forward_by(kernel: &str, layer: Linear, x: &Tensor, what: &str) -> Result<Option<(Linear, Tensor)>> {
    let layer = layer.with_gemm(Gemm::new().kernel(kernel));
    match layer.forward(x) {
        Ok(y) => Ok(Some((layer, y))),
        Err(error) => {
            assert!(error.to_string().contains("compute capability"), "{what}: {error}");
            Ok(None)
        }
    }
}

/// Fails unless `got` is `want` as far as FP32 sums of k products and one rounding explain.
fn check(got: &Tensor, want: &Tensor, magnitude: &Tensor, k: usize, what: &str) -> Result<()> {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let (part, least) = rounding(got.dtype());
    let flat = |t: &Tensor| -> Result<Vec<f64>> {
        let t = t.to_device(&Device::Cpu)?;
        let t = if t.dtype() == DType::F64 {
            t
        } else {
            t.to_dtype(DType::F32)?.to_dtype(DType::F64)?
        };
        t.flatten_all()?.to_vec1()
    };
    let epsilon = f64::from(f32::EPSILON);
    for ((got, want), magnitude) in flat(got)?.into_iter().zip(flat(want)?).zip(flat(magnitude)?) {
        let sum = 1.2 * epsilon * (C0 * (k as f64).sqrt() * magnitude + C1 * (want.abs() + 3.0));
        let bound = sum + (part * (want.abs() + sum)).max(least);
        assert!((got - want).abs() <= bound, "{what}: {got}, not {want} (±{bound:e})");
    }
    Ok(())
}

fn products_are_summed_in_fp32_and_rounded_once(device: &Device) -> Result<()> {
    let mut rng = rng(16);
    for round in 0..60 {
        let dtype = *[DType::F16, DType::BF16].choose(&mut rng).unwrap();
        let mut size = |most: usize| {
            if rng.random_bool(0.2) {
                rng.random_range(1..=9)
            } else {
                rng.random_range(1..=most)
            }
        };
        let (m, n, k) = (size(150), size(150), size(400));
        let batch: &[usize] = [&[][..], &[], &[3], &[2, 3]].choose(&mut rng).unwrap();
        let of_b = if rng.random_bool(0.5) { batch } else { &[] };
        let (a, a_exact) = view(&mut rng, &[batch, &[m, k]].concat(), dtype, device)?;
        let (b, b_exact) = view(&mut rng, &[of_b, &[k, n]].concat(), dtype, device)?;
        let sum = a_exact.contiguous()?.broadcast_matmul(&b_exact.contiguous()?)?;
        let magnitude = a_exact
            .abs()?
            .contiguous()?
            .broadcast_matmul(&b_exact.abs()?.contiguous()?)?;
        let out = if rng.random_bool(0.3) { DType::F32 } else { dtype };
        let what = format!(
            "{round}: {dtype:?} {batch:?} {m}×{n}×{k} into {out:?}, {:?} {:?}",
            a.layout(),
            b.layout()
        );
        check(&matmul(&a, &b)?, &sum, &magnitude, k, &what)?;
        assert_eq!(a.sgemm(&b)?.dtype(), dtype);
        let c_dtype = if rng.random_bool(0.5) { DType::F32 } else { dtype };
        let (c, c_exact) = numbers(&mut rng, &[n], c_dtype, device)?;
        let d = Gemm::new().alpha(0.5).c(&c, -2.0).out_dtype(out).matmul(&a, &b)?;
        let want = sum.affine(0.5, 0.0)?.broadcast_add(&c_exact.affine(-2.0, 0.0)?)?;
        assert_eq!(d.dtype(), out, "{what}");
        check(&d, &want, &magnitude, k, &what)?;
    }
    Ok(())
}

fn layers_fuse_what_follows_the_product(device: &Device) -> Result<()> {
    let mut rng = rng(17);
    for round in 0..40 {
        let dtype = *[DType::F16, DType::BF16].choose(&mut rng).unwrap();
        let (m, n, k) = (
            rng.random_range(1..200),
            rng.random_range(1..200),
            rng.random_range(1..300),
        );
        let (x, x_exact) = view(&mut rng, &[m, k], dtype, device)?;
        let (w, w_exact) = numbers(&mut rng, &[n, k], dtype, device)?;
        let (w, w_exact) = (w.affine(0.25, 0.0)?, w_exact.affine(0.25, 0.0)?);
        let other = |rng: &mut StdRng| if rng.random_bool(0.5) { DType::F32 } else { dtype };
        let (bias_dtype, residual_dtype) = (other(&mut rng), other(&mut rng));
        let (bias, bias_exact) = numbers(&mut rng, &[n], bias_dtype, device)?;
        let (residual, residual_exact) = view(&mut rng, &[m, n], residual_dtype, device)?;
        let activation = *ACTIVATIONS.choose(&mut rng).unwrap();
        let what =
            format!("{round}: {dtype:?} {m}×{n}×{k} {activation:?}, bias {bias_dtype:?}, residual {residual_dtype:?}");
        let (y, magnitude) = linear_layer(&x_exact, &w_exact, Some(&bias_exact), activation)?;
        let layer = Linear::new(w, Some(bias)).with_activation(activation);
        for layer in [layer.clone(), layer.prepare()?] {
            check(&layer.forward(&x)?, &y, &magnitude, k, &what)?;
            check(
                &layer.forward_residual(&x, &residual)?,
                &(&y + &residual_exact)?,
                &magnitude,
                k,
                &what,
            )?;
            check(
                &layer.forward_gated(&x, &residual)?,
                &(&y * &residual_exact)?,
                &magnitude,
                k,
                &what,
            )?;
        }
    }
    Ok(())
}

/// Tiles that have code of their own for what most layers add, with and without what makes them take another way: columns that end amid a tile, a
/// bias of FP32 or from an odd element on, a residual, another activation.
fn layers_end_in_large_tiles(device: &Device) -> Result<()> {
    if !device.is_cuda() {
        return Ok(());
    }
    let mut rng = rng(18);
    let tiles = [
        "128x256_2cta",
        "128x224_2cta",
        "128x192_2cta",
        "128x128_2cta",
        "128x192",
        "128x128",
        "128x96",
    ];
    for round in 0..120 {
        let dtype = *[DType::F16, DType::BF16].choose(&mut rng).unwrap();
        let name = format!("gemm_{}_sm90_{}_nt", dtype.as_str(), tiles.choose(&mut rng).unwrap());
        let whole = rng.random_bool(0.8);
        let n = if whole {
            8 * rng.random_range(1..100)
        } else {
            rng.random_range(1..800)
        };
        let (m, k) = (rng.random_range(1..600), 8 * rng.random_range(8..80));
        let (x, x_exact) = numbers(&mut rng, &[m, k], dtype, device)?;
        let (w, w_exact) = numbers(&mut rng, &[n, k], dtype, device)?;
        let (w, w_exact) = (w.affine(0.25, 0.0)?, w_exact.affine(0.25, 0.0)?);
        let bias_dtype = if rng.random_bool(0.25) { DType::F32 } else { dtype };
        let (bias, bias_exact) = numbers(&mut rng, &[n + 3], bias_dtype, device)?;
        let first = [0, 0, 1, 2][rng.random_range(0..4)];
        let (bias, bias_exact) = (bias.narrow(0, first, n)?, bias_exact.narrow(0, first, n)?);
        let bias = rng.random_bool(0.8).then_some(bias);
        let activation = *ACTIVATIONS.choose(&mut rng).unwrap();
        let what = format!(
            "{round}: {name}, {m}×{n}×{k}, {activation:?}, bias {bias_dtype:?} from {first} on: {}",
            bias.is_some()
        );
        let (y, magnitude) = linear_layer(&x_exact, &w_exact, bias.is_some().then_some(&bias_exact), activation)?;
        let layer = Linear::new(w, bias).with_activation(activation);
        let Some((layer, got)) = forward_by(&name, layer, &x, &what)? else {
            continue;
        };
        check(&got, &y, &magnitude, k, &what)?;
        if round % 3 == 0 {
            let (residual, residual_exact) = numbers(&mut rng, &[m, n], dtype, device)?;
            check(
                &layer.forward_residual(&x, &residual)?,
                &(&y + &residual_exact)?,
                &magnitude,
                k,
                &what,
            )?;
        }
    }
    Ok(())
}

/// Clusters that have several tiles end one while they multiply the next. Three rounds of tiles and more on 132 multiprocessors, the last of which is not whole
/// and may be shared by ranges of k, and as much of k as that takes.
fn layers_end_behind_the_next_tile(device: &Device) -> Result<()> {
    const TWO_ROUNDS: usize = 198;
    const TILES: [(&str, [usize; 2]); 6] = [
        ("128x256_2cta", [256, 256]),
        ("128x224_2cta", [256, 224]),
        ("128x192_2cta", [256, 192]),
        ("128x128_2cta", [256, 128]),
        ("128x128_2cta_along_n", [128, 256]),
        ("128x96_2cta_along_n", [128, 192]),
    ];
    if !device.is_cuda() {
        return Ok(());
    }
    let mut rng = rng(19);
    for (at, (tile, [rows, columns])) in TILES.into_iter().enumerate() {
        for gelu in [true, false] {
            let dtype = [DType::F16, DType::BF16][(at + usize::from(gelu)) % 2];
            let name = format!("gemm_{}_sm90_{tile}_nt", dtype.as_str());
            let across = rng.random_range(9..15);
            let down = TWO_ROUNDS / across + rng.random_range(1..4);
            let m = rows * down - rng.random_range(0..rows);
            let n = columns * across - 8 * rng.random_range(0..columns / 8);
            let k = 8 * rng.random_range(89..=104);
            let (x, x_exact) = numbers(&mut rng, &[m, k], dtype, device)?;
            let (w, w_exact) = numbers(&mut rng, &[n, k], dtype, device)?;
            let (w, w_exact) = (w.affine(0.125, 0.0)?, w_exact.affine(0.125, 0.0)?);
            let (bias, bias_exact) = numbers(&mut rng, &[n + 2], dtype, device)?;
            let first = 2 * rng.random_range(0..2);
            let (bias, bias_exact) = (bias.narrow(0, first, n)?, bias_exact.narrow(0, first, n)?);
            let activation = if gelu {
                Activation::GeluErf
            } else {
                *[Activation::Identity, Activation::Relu].choose(&mut rng).unwrap()
            };
            let bias = (activation == Activation::Identity || rng.random_bool(0.7)).then_some(bias);
            let what = format!(
                "{name}, {m}×{n}×{k}, {activation:?}, bias from {first} on: {}",
                bias.is_some()
            );
            let (y, magnitude) = linear_layer(&x_exact, &w_exact, bias.is_some().then_some(&bias_exact), activation)?;
            let layer = Linear::new(w, bias).with_activation(activation);
            if let Some((_, got)) = forward_by(&name, layer, &x, &what)? {
                check(&got, &y, &magnitude, k, &what)?;
            }
        }
    }
    Ok(())
}

/// e^(−t) is infinite, and σ(t) less than a normal number, where t·σ(t) still is a number of BF16.
fn silu_keeps_its_digits_far_below_zero(device: &Device) -> Result<()> {
    const SIDE: usize = 64;
    const FARTHEST: f32 = 100.0;
    let numbers = (0..SIDE * SIDE).map(|at| FARTHEST * (2.0 * at as f32 / (SIDE * SIDE) as f32 - 1.0));
    let numbers = Tensor::from_iter(numbers, &Device::Cpu)?.reshape((SIDE, SIDE))?;
    // Half of the least number of each type, and a twentieth more than half an ulp for what is not the last rounding.
    for (dtype, least) in [(DType::F16, 2f64.powi(-25)), (DType::BF16, 2f64.powi(-134))] {
        let (ulp, _) = rounding(dtype);
        let x = numbers.to_dtype(dtype)?;
        let identity = Tensor::eye(SIDE, dtype, &Device::Cpu)?.to_device(device)?;
        let layer = Linear::new(identity, None).with_activation(Activation::Silu);
        for (first, rows) in [(0, SIDE), (2, 1), (3, 5)] {
            let x = x.narrow(0, first, rows)?;
            let got = layer.forward(&x.to_device(device)?)?.to_device(&Device::Cpu)?;
            let of = |t: Tensor| {
                t.to_dtype(DType::F32)?
                    .to_dtype(DType::F64)?
                    .flatten_all()?
                    .to_vec1::<f64>()
            };
            for (x, got) in of(x)?.into_iter().zip(of(got)?) {
                let want = x / (1.0 + (-x).exp());
                let error = (got - want).abs();
                assert!(
                    error <= 1.05 * ulp * want.abs() + least,
                    "{dtype:?}: {got:e} of {x}, not {want:e}"
                );
            }
        }
    }
    Ok(())
}

/// All numbers of each type, alone in their rows, so that what a layer's activation gets is exact. In large tiles, which have code of their own
/// for it, and in what the planner chooses. With as much of k as tiles need to end while the next one is multiplied, too.
fn every_number_goes_through_gelu(device: &Device) -> Result<()> {
    const NUMBERS: usize = 1 << 16;
    let outputs = if device.is_cuda() { 256 } else { 8 };
    let widths = if device.is_cuda() { &[64, 1024][..] } else { &[64] };
    let tiles = [
        "128x256_2cta_nt",
        "128x224_2cta_nt",
        "128x192_2cta_nt",
        "128x128_2cta_nt",
        "128x128_nt",
    ];
    // Of the normal distribution beyond 12.9 nothing is left that is a normal number of FP32.
    for (dtype, least) in [(DType::F16, 2f64.powi(-25)), (DType::BF16, 2f64.powi(-122))] {
        let (ulp, _) = rounding(dtype);
        let bits = (0..NUMBERS).map(|bits| bits as u16);
        let numbers = match dtype {
            DType::F16 => Tensor::from_iter(bits.map(half::f16::from_bits), device)?,
            _ => Tensor::from_iter(bits.map(half::bf16::from_bits), device)?,
        };
        let of = |t: &Tensor| t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        let given = of(&numbers)?;
        let named = tiles.map(|tile| Some(format!("gemm_{}_sm90_{tile}", dtype.as_str())));
        let kernels: Vec<_> = named.into_iter().chain([None]).collect();
        for (&width, kernel) in widths
            .iter()
            .flat_map(|width| kernels.iter().map(move |kernel| (width, kernel)))
        {
            let x = numbers.reshape((NUMBERS, 1))?.pad_with_zeros(1, 0, width - 1)?;
            let weight = Tensor::ones((outputs, 1), dtype, device)?.pad_with_zeros(1, 0, width - 1)?;
            let layer = Linear::new(weight, None).with_activation(Activation::GeluErf);
            let y = match kernel {
                Some(_) if !device.is_cuda() => continue,
                Some(name) => match forward_by(name, layer, &x, name)? {
                    Some((_, y)) => y,
                    None => continue,
                },
                None => layer.forward(&x)?,
            };
            for column in [0, outputs / 2 + 1, outputs - 1] {
                for (&x, got) in given.iter().zip(of(&y.narrow(1, column, 1)?)?) {
                    let (x, got) = (f64::from(x), f64::from(got));
                    if !x.is_finite() {
                        // Candle's −∞ · 0 is NaN.
                        let right = if x > 0.0 {
                            got == x
                        } else {
                            got.is_nan() || (x < 0.0 && got == 0.0)
                        };
                        assert!(right, "{dtype:?}, {kernel:?}: {got} of {x}");
                        continue;
                    }
                    let want = x * 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
                    let beside = if x < -5.0 { 2f64.powi(-11) } else { 0.05 * ulp };
                    let error = (got - want).abs();
                    assert!(
                        error <= (ulp + beside) * want.abs() + least,
                        "{dtype:?}, {kernel:?}: {got:e} of {x}, not {want:e}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// A sum of ones in 16 bits would stay at 256 or 2048.
fn gradients_of_what_many_rows_share_are_summed_in_fp32(device: &Device) -> Result<()> {
    const ROWS: usize = 4096;
    for dtype in [DType::F16, DType::BF16] {
        let ones = |shape: &[usize]| Tensor::ones(shape, dtype, device);
        for bias_dtype in [dtype, DType::F32] {
            let bias = Var::ones(3, bias_dtype, device)?;
            let layer = Linear::new(ones(&[3, 2])?, Some(bias.as_tensor().clone()));
            let gradients = layer.forward(&ones(&[ROWS, 2])?)?.sum_all()?.backward()?;
            let gradient = gradients.get(&bias).expect("a gradient").to_dtype(DType::F32)?;
            assert_eq!(
                gradient.to_vec1::<f32>()?,
                [ROWS as f32; 3],
                "{dtype:?}, {bias_dtype:?}"
            );
        }
    }
    Ok(())
}

/// In FP16 the square of 256 is infinite.
fn slopes_of_gelu_are_finite_where_its_argument_is_large(device: &Device) -> Result<()> {
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let x = Var::from_tensor(&Tensor::new(&[[300f32], [-300.], [40000.]], device)?.to_dtype(dtype)?)?;
        let layer = Linear::new(Tensor::ones((1, 1), dtype, device)?, None).with_activation(Activation::GeluTanh);
        let gradients = layer.forward(&x)?.sum_all()?.backward()?;
        let slopes = gradients
            .get(&x)
            .expect("a gradient")
            .to_dtype(DType::F32)?
            .flatten_all()?;
        assert_eq!(slopes.to_vec1::<f32>()?, [1.0, 0.0, 1.0], "{dtype:?}");
    }
    Ok(())
}

fn gradients_are_those_of_fp32_factors(device: &Device) -> Result<()> {
    let mut rng = rng(18);
    for dtype in [DType::F16, DType::BF16] {
        for out in [dtype, DType::F32] {
            let (a, a_exact) = numbers(&mut rng, &[2, 5, 7], dtype, device)?;
            let (b, b_exact) = numbers(&mut rng, &[7, 6], dtype, device)?;
            let (a, b) = (Var::from_tensor(&a)?, Var::from_tensor(&b)?);
            let d = Gemm::new().out_dtype(out).matmul(&a, &b)?;
            let gradients = d.sum_all()?.backward()?;
            let ones = Tensor::ones((2, 5, 6), DType::F64, &Device::Cpu)?;
            let of_a = ones.broadcast_matmul(&b_exact.t()?.contiguous()?)?;
            let of_b = a_exact
                .reshape((10, 7))?
                .t()?
                .contiguous()?
                .matmul(&ones.reshape((10, 6))?)?;
            for (gradient, want) in [(gradients.get(&a), of_a), (gradients.get(&b), of_b)] {
                let gradient = gradient.expect("a gradient");
                assert_eq!(gradient.dtype(), dtype);
                check(
                    gradient,
                    &want,
                    &want.abs()?.affine(0.0, 10.0)?,
                    10,
                    &format!("{dtype:?} {out:?}"),
                )?;
            }
        }
    }
    Ok(())
}

fn specials_are_those_of_ieee(device: &Device) -> Result<()> {
    let f16 = |x: f32| {
        Tensor::new(&[[x]], &Device::Cpu)?
            .to_dtype(DType::F16)?
            .to_device(device)
    };
    let value = |t: Tensor| -> Result<f32> { t.to_dtype(DType::F32)?.flatten_all()?.get(0)?.to_scalar() };
    // 65504 is the largest number of f16; what rounds above it is infinite.
    assert_eq!(value(matmul(&f16(256.0)?, &f16(256.0)?)?)?, f32::INFINITY);
    assert_eq!(value(matmul(&f16(-256.0)?, &f16(256.0)?)?)?, f32::NEG_INFINITY);
    assert_eq!(
        value(Gemm::new().out_dtype(DType::F32).matmul(&f16(256.0)?, &f16(256.0)?)?)?,
        65536.0
    );
    // The least number, and half of it, which is a tie and goes to even.
    let least = 1.0 / (1 << 24) as f32;
    assert_eq!(value(matmul(&f16(least)?, &f16(1.0)?)?)?, least);
    assert_eq!(value(matmul(&f16(least)?, &f16(0.5)?)?)?, 0.0);
    assert!(value(matmul(&f16(f32::INFINITY)?, &f16(0.0)?)?)?.is_nan());
    assert!(value(matmul(&f16(f32::NAN)?, &f16(1.0)?)?)?.is_nan());
    Ok(())
}

fn a_gated_mlp_is_that_of_its_products(device: &Device) -> Result<()> {
    let mut rng = rng(19);
    for dtype in [DType::F16, DType::BF16] {
        let (x, x_exact) = numbers(&mut rng, &[9, 24], dtype, device)?;
        let linear = |rng: &mut StdRng, out: usize, from: usize| -> Result<(Linear, Tensor)> {
            let (w, exact) = numbers(rng, &[out, from], dtype, device)?;
            Ok((
                Linear::new(w.affine(0.25, 0.0)?, None),
                exact.affine(0.25, 0.0)?.t()?.contiguous()?,
            ))
        };
        let ((gate, g), (up, u), (down, d)) = (
            linear(&mut rng, 40, 24)?,
            linear(&mut rng, 40, 24)?,
            linear(&mut rng, 24, 40)?,
        );
        let y = GatedMlp::from_layers(gate, up, down, Activation::Silu)?.forward(&x)?;
        let want = (x_exact.matmul(&g)?.silu()? * x_exact.matmul(&u)?)?.matmul(&d)?;
        let off = largest(&(y.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_dtype(DType::F64)? - &want)?)?;
        let largest = largest(&want)?;
        // The products in between are rounded too.
        assert!(
            off <= 8.0 * rounding(dtype).0 * largest,
            "{dtype:?}: {off} of {largest}"
        );
    }
    Ok(())
}

fn what_does_not_fit_is_refused_with_its_types(device: &Device) -> Result<()> {
    let of = |dtype: DType, shape: &[usize]| Tensor::ones(shape, DType::F32, device)?.to_dtype(dtype);
    let (half, single) = (of(DType::F16, &[2, 2])?, of(DType::F32, &[2, 2])?);
    let error = |result: Result<Tensor>| result.unwrap_err().to_string();
    assert!(error(matmul(&half, &single)).contains("differ in dtype"));
    assert!(error(Gemm::new().out_dtype(DType::F16).matmul(&single, &single)).contains("F32"));
    assert!(error(Gemm::new().out_dtype(DType::BF16).matmul(&half, &half)).contains("F16 or F32"));
    let c = of(DType::BF16, &[2, 2])?;
    assert!(error(Gemm::new().c(&c, 1.0).matmul(&half, &half)).contains("differ in dtype"));
    Ok(())
}
