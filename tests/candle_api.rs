//! The API for candle, one test body for every device: shapes, views, broadcast, ranks, dtypes, gradients and errors,
//! against FP64 and against candle itself.

#[macro_use]
mod devices;

use candle_core::{DType, Device, Layout, Module, Result, Shape, Tensor, Var, D};
use candle_sgemm::{linear, linear_b, linear_no_bias, matmul, Gemm, Linear, Precision, SgemmExt};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// |c − ref| ≤ C0·ε·√k·Σ|a||b|: sums of k terms in several registers stay below this by far.
const C0: f64 = 2.0;

on_every_device!(
    products_of_every_shape_and_storage_order,
    views_are_read_where_they_are,
    batch_dimensions_of_any_number_are_broadcast,
    alpha_beta_and_c,
    beta_of_zero_does_not_read_c,
    a_measured_choice_is_right_and_kept,
    non_finite_operands_reach_their_rows,
    other_dtypes_go_to_candle,
    gradients_are_those_of_candle,
    gradients_are_finite_differences,
    only_variables_get_gradients,
    linear_is_candles_linear,
    linear_has_candles_gradients,
    errors_say_what_does_not_fit,
    results_that_no_memory_holds_are_refused,
    sums_of_nothing_are_zeros_with_a_graph,
    batch_dimensions_are_those_of_broadcast_matmul,
);

fn random(shape: &[usize], device: &Device) -> Tensor {
    Tensor::rand(-1f32, 1.5, shape, device).unwrap()
}

fn values(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64)
        .unwrap()
        .flatten_all()
        .unwrap()
        .to_vec1()
        .unwrap()
}

/// The FP64 product by candle, of operands that are broadcast and made dense first.
fn reference(a: &Tensor, b: &Tensor) -> Tensor {
    let double = |t: &Tensor| t.to_device(&Device::Cpu).unwrap().to_dtype(DType::F64).unwrap();
    let (mut a, mut b) = (double(a), double(b));
    while a.rank() < b.rank() {
        a = a.unsqueeze(0).unwrap();
    }
    while b.rank() < a.rank() {
        b = b.unsqueeze(0).unwrap();
    }
    let rank = a.rank();
    let batch: Vec<usize> = (0..rank - 2)
        .map(|i| if a.dims()[i] == 1 { b.dims()[i] } else { a.dims()[i] })
        .collect();
    let flat = |t: &Tensor| {
        let matrix = &t.dims()[rank - 2..];
        let t = t.broadcast_as([&batch, matrix].concat()).unwrap().contiguous().unwrap();
        t.reshape((batch.iter().product::<usize>(), matrix[0], matrix[1]))
            .unwrap()
    };
    let (m, n) = (a.dims()[rank - 2], b.dims()[rank - 1]);
    flat(&a)
        .matmul(&flat(&b))
        .unwrap()
        .reshape([&batch[..], &[m, n]].concat())
        .unwrap()
}

/// Checks every element of `c` against FP64 with the bound above.
fn assert_product(c: &Tensor, a: &Tensor, b: &Tensor, what: &str) {
    let expected = reference(a, b);
    assert_eq!(c.dims(), expected.dims(), "{what}");
    assert!(c.is_contiguous(), "{what}");
    let scale = values(&reference(&a.abs().unwrap(), &b.abs().unwrap()));
    let k = a.dims()[a.rank() - 1] as f64;
    let bound = C0 * f64::from(f32::EPSILON) * k.sqrt();
    for (i, ((c, expected), scale)) in values(c).iter().zip(values(&expected)).zip(scale).enumerate() {
        assert!(
            (c - expected).abs() <= bound * scale,
            "{what}: element {i} is {c}, not {expected}"
        );
    }
}

fn assert_close(x: &Tensor, y: &Tensor, tolerance: f64, what: &str) {
    assert_eq!(x.dims(), y.dims(), "{what}");
    for (i, (x, y)) in values(x).iter().zip(values(y)).enumerate() {
        assert!(
            (x - y).abs() <= tolerance * (1.0 + y.abs()),
            "{what}: element {i} is {x}, not {y}"
        );
    }
}

fn products_of_every_shape_and_storage_order(device: &Device) -> Result<()> {
    let sizes = [
        (1, 1, 1),
        (1, 1, 7),
        (1, 17, 1),
        (19, 1, 3),
        (2, 3, 2),
        (5, 7, 11),
        (16, 16, 16),
        (31, 33, 65),
        (63, 65, 64),
        (127, 129, 128),
        (1, 301, 511),
        (257, 1, 130),
        (3, 1021, 5),
        (700, 2, 9),
        (160, 170, 180), // above the size from which the CPU path uses threads
    ];
    for (m, n, k) in sizes {
        for (a_transposed, b_transposed) in [(false, false), (false, true), (true, false), (true, true)] {
            let operand = |rows, cols, transposed| match transposed {
                false => Ok(random(&[rows, cols], device)),
                true => random(&[cols, rows], device).t(),
            };
            let (a, b) = (operand(m, k, a_transposed)?, operand(k, n, b_transposed)?);
            let what = format!("{m}×{n}×{k}, A transposed {a_transposed}, B transposed {b_transposed}");
            assert_product(&matmul(&a, &b)?, &a, &b, &what);
        }
    }
    Ok(())
}

fn views_are_read_where_they_are(device: &Device) -> Result<()> {
    let check = |a: &Tensor, a_strides: &[usize], b: &Tensor, b_strides: &[usize], what: &str| -> Result<()> {
        assert_eq!((a.stride(), b.stride()), (a_strides, b_strides), "{what}");
        assert_product(&matmul(a, b)?, a, b, what);
        Ok(())
    };
    let big = random(&[70, 90], device);
    let (a, b) = (
        big.narrow(0, 3, 40)?.narrow(1, 5, 50)?,
        big.narrow(0, 7, 50)?.narrow(1, 11, 33)?,
    );
    check(&a, &[90, 1], &b, &[90, 1], "two windows of one tensor")?;
    check(&a.t()?, &[1, 90], &a, &[90, 1], "a transposed window")?;
    check(&a, &[90, 1], &a.t()?, &[1, 90], "a window and itself transposed")?;

    let cube = random(&[20, 6, 30], device);
    let plane = cube.narrow(1, 2, 1)?.squeeze(1)?;
    let column = random(&[30, 8, 3], device).narrow(2, 1, 1)?.squeeze(2)?;
    check(&plane, &[180, 1], &column, &[24, 3], "no unit stride in B")?;
    check(&column.t()?, &[3, 24], &plane.t()?, &[1, 180], "no unit stride in A")?;

    let row = random(&[1, 30], device).broadcast_as((20, 30))?;
    check(&row, &[0, 1], &column, &[24, 3], "a row for all rows")?;
    let number = random(&[1, 1], device).broadcast_as((30, 12))?;
    check(&plane, &[180, 1], &number, &[0, 0], "a number for all of B")?;

    // The heads of attention: batch dimensions that are not the outer ones in memory.
    let q = random(&[2, 9, 3, 8], device).transpose(1, 2)?;
    let k = random(&[2, 11, 3, 8], device).transpose(1, 2)?;
    check(&q, &[216, 8, 24, 1], &k.t()?, &[264, 8, 1, 24], "heads")
}

fn batch_dimensions_of_any_number_are_broadcast(device: &Device) -> Result<()> {
    let random = |shape: &[usize]| random(shape, device);
    let cases: &[(&[usize], &[usize])] = &[
        (&[4], &[4]),
        (&[4], &[1]),
        (&[1], &[4]),
        (&[], &[4]),
        (&[4], &[]),
        (&[2, 3], &[2, 3]),
        (&[2, 3], &[3]),
        (&[2, 1], &[1, 3]),
        (&[5, 1, 2], &[4, 1]),
        (&[2, 3, 2, 2], &[2, 3, 2, 2]),
        (&[2, 1, 2, 1, 3], &[1, 2, 1, 2, 1]),
        (&[2, 1, 2, 1, 2, 1], &[1, 3, 1, 2, 1, 2]),
        (&[1, 1], &[1, 1, 1]),
    ];
    for (a_batch, b_batch) in cases {
        let a = random(&[a_batch, &[3, 5][..]].concat());
        let b = random(&[b_batch, &[5, 4][..]].concat());
        let what = format!("{a_batch:?} with {b_batch:?}");
        assert_product(&matmul(&a, &b)?, &a, &b, &what);
        let b = random(&[b_batch, &[4, 5][..]].concat()).t()?;
        assert_product(&a.sgemm(&b)?, &a, &b, &format!("{what}, B transposed"));
    }
    // More batch dimensions than one launch walks, none of which merge.
    let a = random(&[2, 2, 3, 2, 2, 3, 4]).permute([4, 2, 0, 3, 1, 5, 6])?;
    let b = random(&[2, 3, 2, 2, 2, 4, 5]).permute([4, 1, 3, 0, 2, 5, 6])?;
    assert_product(&matmul(&a, &b)?, &a, &b, "five permuted batch dimensions");
    // Enough work for threads: several matrices a thread, and several tiles a matrix.
    let (a, b) = (random(&[12, 70, 80]), random(&[12, 80, 60]));
    assert_product(&matmul(&a, &b)?, &a, &b, "12 matrices");
    let (a, b) = (random(&[3, 150, 80]), random(&[1, 80, 160]));
    assert_product(&matmul(&a, &b)?, &a, &b, "3 matrices that share B");
    let (a, b) = (random(&[150, 80]), random(&[3, 80, 160]));
    assert_product(&matmul(&a, &b)?, &a, &b, "3 matrices that share A");
    Ok(())
}

fn alpha_beta_and_c(device: &Device) -> Result<()> {
    let random = |shape: &[usize]| random(shape, device);
    let (a, b) = (random(&[2, 40, 30]), random(&[30, 50]));
    let product = reference(&a, &b);
    let cs = [
        random(&[2, 40, 50]),
        random(&[40, 50]),
        random(&[50]),
        random(&[40, 1]),
        random(&[1, 1, 1]),
        random(&[2, 40, 70]).narrow(2, 10, 50)?,
        random(&[2, 50, 40]).t()?,
    ];
    for c in cs {
        let d = Gemm::new().alpha(-0.75).c(&c, 1.5).matmul(&a, &b)?;
        let c64 = c.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
        let expected = product.affine(-0.75, 0.0)?.broadcast_add(&c64.affine(1.5, 0.0)?)?;
        assert_close(&d, &expected, 2e-5, &format!("C with {:?}", c.layout()));
    }
    for precision in Precision::ALL {
        let d = Gemm::new().precision(precision).alpha(2.0).matmul(&a, &b)?;
        let tolerance = if precision == Precision::Tf32 { 2e-2 } else { 2e-5 };
        assert_close(&d, &product.affine(2.0, 0.0)?, tolerance, precision.name());
    }
    Ok(())
}

fn beta_of_zero_does_not_read_c(device: &Device) -> Result<()> {
    let (a, b) = (random(&[4, 6], device), random(&[6, 5], device));
    let nan = Tensor::full(f32::NAN, (4, 5), device)?;
    let d = Gemm::new().c(&nan, 0.0).matmul(&a, &b)?;
    assert_product(&d, &a, &b, "β = 0");
    Ok(())
}

fn a_measured_choice_is_right_and_kept(device: &Device) -> Result<()> {
    let folder = tempfile::tempdir()?;
    // No other test here tunes, so none looks at the variable.
    std::env::set_var("CANDLE_SGEMM_CACHE", folder.path());
    let (a, b) = (random(&[37, 96], device), random(&[45, 96], device).t()?);
    for what in ["measured", "remembered"] {
        let c = Gemm::new().precision(Precision::Fp32Strict).tuned().matmul(&a, &b)?;
        assert_product(&c, &a, &b, what);
    }
    let files: Vec<_> = std::fs::read_dir(folder.path())?.collect();
    assert_eq!(files.is_empty(), device.is_cpu(), "{files:?}"); // there is nothing to choose from on a CPU
    Ok(())
}

fn non_finite_operands_reach_their_rows(device: &Device) -> Result<()> {
    let (k, n) = (6, 5);
    let mut a = random(&[4, k], device).flatten_all()?.to_vec1::<f32>()?;
    a[k + 2] = f32::NAN; // row 1
    a[2 * k] = f32::INFINITY; // row 2
    let a = Tensor::from_vec(a, (4, k), device)?;
    let d = matmul(&a, &random(&[k, n], device))?.to_vec2::<f32>()?;
    assert!(d[0].iter().chain(&d[3]).all(|x| x.is_finite()), "{d:?}");
    assert!(d[1].iter().all(|x| x.is_nan()), "{d:?}");
    assert!(d[2].iter().all(|x| x.is_infinite()), "{d:?}");
    Ok(())
}

// On the CPU alone: candle can neither allocate an empty tensor on a CUDA device nor go on well after it failed to.
#[test]
fn empty_tensors_are_what_they_are_in_candle() -> Result<()> {
    let device = &Device::Cpu;
    for (m, n, k, batch) in [(0, 3, 4, 2), (3, 0, 4, 2), (3, 4, 0, 2), (3, 4, 5, 0), (0, 0, 0, 1)] {
        let a = Tensor::ones((batch, m, k), DType::F32, device)?;
        let b = Tensor::ones((batch, k, n), DType::F32, device)?;
        let (ours, candle) = (matmul(&a, &b)?, a.matmul(&b)?);
        assert_eq!(ours.dims(), candle.dims());
        assert_eq!(values(&ours), values(&candle));
        let b = Tensor::ones((k, n), DType::F32, device)?;
        let d = Gemm::new()
            .alpha(2.0)
            .c(&Tensor::full(3f32, (1, 1), device)?, 0.5)
            .matmul(&a, &b)?;
        assert_eq!(d.dims(), candle.dims());
        assert!(values(&d)
            .iter()
            .all(|&x| x == 1.5 + if k == 0 { 0.0 } else { 2.0 * k as f64 }));
        let layer = Linear::new(
            Tensor::ones((n, k), DType::F32, device)?,
            Some(Tensor::ones(n, DType::F32, device)?),
        );
        assert_eq!(layer.forward(&a)?.dims(), candle.dims());
        // Finer numbers beside it, as many as it has or none.
        let half = Linear::new(layer.weight().to_dtype(DType::F16)?, layer.bias().cloned());
        let y = half.forward_residual(&a.to_dtype(DType::F16)?, &Tensor::ones((1, n), DType::F32, device)?)?;
        assert_eq!((y.dims(), y.dtype()), (candle.dims(), DType::F16));
    }
    Ok(())
}

fn other_dtypes_go_to_candle(device: &Device) -> Result<()> {
    for (dtype, tolerance) in [(DType::F16, 2e-2), (DType::BF16, 1e-1), (DType::F64, 1e-12)] {
        let random = |shape: &[usize]| random(shape, device).to_dtype(dtype).unwrap();
        let check = |a: &Tensor, b: &Tensor, what: &str| -> Result<()> {
            let c = matmul(a, b)?;
            assert_eq!(c.dtype(), dtype);
            assert_close(&c, &reference(a, b), tolerance, &format!("{dtype:?}, {what}"));
            Ok(())
        };
        let (a, b) = (random(&[6, 7]), random(&[7, 5]));
        // Candle's own product. Those of 16 bits are this crate's, and may add up in another order.
        if dtype == DType::F64 {
            assert_eq!(values(&matmul(&a, &b)?), values(&a.matmul(&b)?));
        }
        check(&a, &b, "dense")?;
        check(
            &random(&[9, 9]).narrow(1, 1, 7)?,
            &random(&[5, 7]).t()?,
            "padded, transposed",
        )?;
        check(&random(&[2, 3, 6, 7]), &b, "shared B")?;
        check(&a, &random(&[2, 7, 5]), "shared A")?;
        check(&random(&[3, 1, 6, 7]), &random(&[4, 7, 5]), "broadcast")?;
        check(&random(&[2, 1, 2, 1, 3, 4]), &random(&[2, 1, 2, 1, 4, 5]), "rank 6")?;
        check(
            &random(&[2, 6, 3, 7]).transpose(1, 2)?,
            &random(&[2, 3, 7, 5]),
            "permuted batch",
        )?;
        let c = random(&[5]);
        let d = Gemm::new().alpha(2.0).c(&c, 1.0).matmul(&a, &b)?;
        let expected = a.matmul(&b)?.affine(2.0, 0.0)?.broadcast_add(&c)?;
        assert_close(&d, &expected, tolerance, "α and C");
        let layer = Linear::new(random(&[5, 7]), Some(random(&[5])));
        let stock = candle_nn::Linear::new(layer.weight().clone(), layer.bias().cloned());
        let x = random(&[2, 6, 7]);
        assert_close(&layer.forward(&x)?, &stock.forward(&x)?, tolerance, "Linear");
    }
    let integers = Tensor::ones((2, 2), DType::U32, device)?;
    assert!(matmul(&integers, &integers).is_err(), "candle multiplies no integers");
    Ok(())
}

/// Candle's own gradients of the same loss, for operands that candle can multiply.
fn gradients_are_those_of_candle(device: &Device) -> Result<()> {
    let cases: &[(&[usize], &[usize])] = &[
        (&[5, 7], &[7, 4]),
        (&[3, 5, 7], &[3, 7, 4]),
        (&[2, 3, 5, 7], &[2, 3, 7, 4]),
    ];
    for (a_shape, b_shape) in cases {
        let (a, b) = (
            Var::from_tensor(&random(a_shape, device))?,
            Var::from_tensor(&random(b_shape, device))?,
        );
        let weights = random(&[&a_shape[..a_shape.len() - 1], &[4]].concat(), device);
        let loss = |c: Tensor| (c * &weights)?.sum_all();
        let ours = loss(matmul(&a, &b)?)?.backward()?;
        let candle = loss(a.matmul(&b)?)?.backward()?;
        for var in [&a, &b] {
            let (x, y) = (ours.get(var).unwrap(), candle.get(var).unwrap());
            assert_close(x, y, 1e-5, &format!("{a_shape:?}·{b_shape:?}"));
        }
    }
    Ok(())
}

/// The gradient of `loss` in `variable` against central differences, element by element. The loss is linear in each
/// operand, so that a wide step costs no accuracy.
fn check_gradient(variable: &Var, what: &str, loss: &dyn Fn() -> Result<Tensor>) -> Result<()> {
    const STEP: f64 = 0.5;
    let grads = loss()?.backward()?;
    let Some(grad) = grads.get(variable) else {
        panic!("{what}: no gradient")
    };
    assert_eq!(grad.dims(), variable.dims(), "{what}");
    let (grad, before) = (values(grad), values(variable));
    let set = |values: Vec<f64>| {
        let t = Tensor::from_vec(values, variable.shape(), &Device::Cpu)?.to_dtype(DType::F32)?;
        variable.set(&t.to_device(variable.device())?)
    };
    let moved = |i: usize, step: f64| -> Result<f64> {
        let mut values = before.clone();
        values[i] += step;
        set(values)?;
        Ok(f64::from(loss()?.to_scalar::<f32>()?))
    };
    for (i, grad) in grad.iter().enumerate() {
        let difference = (moved(i, STEP)? - moved(i, -STEP)?) / (2.0 * STEP);
        assert!(
            (grad - difference).abs() <= 2e-4 * (1.0 + difference.abs()),
            "{what}: element {i} has gradient {grad}, but the loss moves by {difference}"
        );
    }
    set(before)
}

fn gradients_are_finite_differences(device: &Device) -> Result<()> {
    let variable = |shape: &[usize]| Var::from_tensor(&random(shape, device));
    let cases: &[(&[usize], &[usize], &[usize])] = &[
        (&[3, 4], &[4, 2], &[3, 2]),
        (&[3, 4], &[4, 2], &[2]),
        (&[2, 3, 4], &[4, 2], &[3, 1]),
        (&[3, 4], &[5, 4, 2], &[1, 1]),
        (&[1, 3, 4], &[3, 4, 2], &[3, 3, 2]),
        (&[2, 1, 3, 4], &[1, 2, 4, 2], &[2, 1, 1, 2]),
        (&[2, 1, 2, 1, 2, 3], &[2, 1, 2, 3, 2], &[2]),
    ];
    for (a_shape, b_shape, c_shape) in cases {
        let (a, b, c) = (variable(a_shape)?, variable(b_shape)?, variable(c_shape)?);
        let weights = random(matmul(&a, &b)?.dims(), device);
        let loss = || -> Result<Tensor> {
            let d = Gemm::new().alpha(1.5).c(&c, -0.5).matmul(&a, &b)?;
            (d * &weights)?.sum_all()
        };
        let what = format!("{a_shape:?}·{b_shape:?} + {c_shape:?}");
        check_gradient(&a, &format!("A of {what}"), &loss)?;
        check_gradient(&b, &format!("B of {what}"), &loss)?;
        check_gradient(&c, &format!("C of {what}"), &loss)?;
    }
    // Through views of the variables.
    let (a, b) = (variable(&[4, 3])?, variable(&[2, 5, 4])?);
    let weights = random(&[2, 3, 3], device);
    let loss = || -> Result<Tensor> {
        let product = matmul(&a.t()?, &b.narrow(1, 1, 3)?.transpose(1, 2)?)?;
        (product * &weights)?.sum_all()
    };
    check_gradient(&a, "A transposed", &loss)?;
    check_gradient(&b, "B narrowed", &loss)
}

fn only_variables_get_gradients(device: &Device) -> Result<()> {
    let (a, b) = (random(&[3, 4], device), Var::from_tensor(&random(&[4, 2], device))?);
    let grads = matmul(&a, &b)?.sum_all()?.backward()?;
    assert!(grads.get(&b).is_some());
    assert!(grads.get(&a).is_none());
    Ok(())
}

fn linear_is_candles_linear(device: &Device) -> Result<()> {
    let random = |shape: &[usize]| random(shape, device);
    let map = candle_nn::VarMap::new();
    let vb = candle_nn::VarBuilder::from_varmap(&map, DType::F32, device);
    let ours = [
        linear(12, 7, vb.pp("a"))?,
        linear_no_bias(12, 7, vb.pp("b"))?,
        linear_b(12, 7, true, vb.pp("c"))?,
    ];
    let candle = [
        candle_nn::linear(12, 7, vb.pp("a"))?,
        candle_nn::linear_no_bias(12, 7, vb.pp("b"))?,
        candle_nn::linear_b(12, 7, true, vb.pp("c"))?,
    ];
    for (ours, candle) in ours.iter().zip(&candle) {
        let swapped = Linear::from(candle.clone());
        assert_eq!(values(swapped.weight()), values(ours.weight()));
        assert_eq!(swapped.bias().map(values), ours.bias().map(values));
        let inputs = [
            random(&[1, 12]),
            random(&[5, 12]),
            random(&[3, 5, 12]),
            random(&[2, 3, 5, 12]),
            random(&[5, 30]).narrow(1, 9, 12)?,
            random(&[12, 5]).t()?,
            random(&[4, 3, 12]).transpose(0, 1)?,
        ];
        for x in inputs {
            let expected = candle.forward(&x.contiguous()?)?;
            assert_close(&ours.forward(&x)?, &expected, 1e-5, &format!("{:?}", x.layout()));
            assert_close(&swapped.forward(&x)?, &expected, 1e-5, "From<candle_nn::Linear>");
        }
        // Candle's layer stops at rank 4.
        let x = random(&[2, 1, 3, 2, 5, 12]);
        let flat = candle.forward(&x.reshape((60, 12))?)?.reshape((2, 1, 3, 2, 5, 7))?;
        assert_close(&ours.forward(&x)?, &flat, 1e-5, "rank 6");
    }
    // A bias that is no plain vector, and one with a stride.
    let (x, weight) = (random(&[5, 12]), random(&[7, 12]));
    for bias in [
        random(&[1, 7]),
        random(&[1]),
        random(&[7, 3]).narrow(1, 1, 1)?.squeeze(1)?,
    ] {
        let what = format!("bias with {:?}", bias.layout());
        let expected = candle_nn::Linear::new(weight.clone(), Some(bias.clone())).forward(&x)?;
        assert_close(
            &Linear::new(weight.clone(), Some(bias)).forward(&x)?,
            &expected,
            1e-5,
            &what,
        );
    }
    // Settings reach the product.
    let bias = random(&[7]);
    let layer = Linear::new(weight.clone(), Some(bias.clone())).with_gemm(Gemm::new().alpha(2.0).c(&bias, 1.0));
    let expected = candle_nn::Linear::new(weight, Some(bias))
        .forward(&x)?
        .affine(2.0, 0.0)?;
    assert_close(&layer.forward(&x)?, &expected, 1e-5, "2·x·wᵀ + bias + bias");
    Ok(())
}

fn linear_has_candles_gradients(device: &Device) -> Result<()> {
    for shape in [&[6, 4][..], &[2, 3, 4]] {
        let x = Var::from_tensor(&random(shape, device))?;
        let weight = Var::from_tensor(&random(&[5, 4], device))?;
        let bias = Var::from_tensor(&random(&[5], device))?;
        let (w, b) = (weight.as_tensor().clone(), Some(bias.as_tensor().clone()));
        let gradients = |layer: &dyn Module| layer.forward(&x)?.sqr()?.sum(D::Minus1)?.sum_all()?.backward();
        let ours = gradients(&Linear::new(w.clone(), b.clone()))?;
        let candle = gradients(&candle_nn::Linear::new(w, b))?;
        for (var, what) in [(&x, "x"), (&weight, "weight"), (&bias, "bias")] {
            assert_close(ours.get(var).unwrap(), candle.get(var).unwrap(), 1e-4, what);
        }
    }
    Ok(())
}

fn errors_say_what_does_not_fit(device: &Device) -> Result<()> {
    let random = |shape: &[usize]| random(shape, device);
    let check = |result: Result<Tensor>, parts: &[&str]| {
        let text = result.expect_err("this must be refused").to_string();
        for part in parts {
            assert!(text.contains(part), "'{part}' is not in: {text}");
        }
    };
    let (a, b) = (random(&[3, 4]), random(&[4, 2]));
    check(matmul(&a, &random(&[5, 2])), &["shape mismatch", "[3, 4]", "[5, 2]"]);
    check(matmul(&random(&[4]), &b), &["shape mismatch", "[4]"]);
    check(matmul(&a, &random(&[4])), &["shape mismatch", "[3, 4]", "[4]"]);
    check(
        matmul(&random(&[2, 3, 4]), &random(&[3, 4, 5])),
        &["[2, 3, 4]", "[3, 4, 5]"],
    );
    let half = b.to_dtype(DType::F16)?;
    check(matmul(&a, &half), &["dtype mismatch", "F32", "F16"]);

    check(Gemm::new().c(&random(&[7]), 1.0).matmul(&a, &b), &["[7]", "[3, 2]"]);
    check(Gemm::new().c(&half, 1.0).matmul(&a, &b), &["dtype mismatch"]);
    check(
        Linear::new(b.clone(), Some(random(&[9]))).forward(&random(&[3, 2])),
        &["[3, 4]", "[9]"],
    );

    let unknown = Gemm::new().kernel("sgemm_99_magic");
    check(unknown.matmul(&a, &b), &["sgemm_99_magic", "sgemm_01_naive"]);
    let naive = Gemm::new().kernel("sgemm_01_naive");
    check(
        naive.matmul(&a.to_dtype(DType::F16)?, &half),
        &["sgemm_01_naive", "F16"],
    );
    if device.is_cpu() {
        check(naive.matmul(&a, &b), &["sgemm_01_naive", "CUDA"]);
    } else {
        check(
            matmul(&a, &b.to_device(&Device::Cpu)?),
            &["device mismatch", "Cuda", "Cpu"],
        );
        // Another handle of the same GPU has a stream of its own.
        let other = Device::new_cuda(0)?;
        let layer = Linear::new(a.clone(), None).with_activation(candle_sgemm::Activation::Tanh);
        let (x, residual) = (random(&[5, 4]), Tensor::zeros((5, 3), DType::F32, &other)?);
        check(layer.forward_residual(&x, &residual), &["device mismatch"]);
        check(
            matmul(&x, &Tensor::zeros((4, 3), DType::F32, &other)?),
            &["device mismatch"],
        );
    }
    Ok(())
}

fn sums_of_nothing_are_zeros_with_a_graph(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16] {
        for (a_shape, b_shape) in [
            (&[4, 8][..], &[8, 3][..]),
            (&[2, 4, 8], &[2, 8, 3]),
            (&[2, 1, 4, 8], &[3, 8, 3]),
        ] {
            let variable = |shape: &[usize]| Var::from_tensor(&random(shape, device).to_dtype(dtype)?);
            let (a, b) = (variable(a_shape)?, variable(b_shape)?);
            let nothing = |t: &Var, dim: usize| t.narrow(dim, 0, 0);
            let (left, right) = (nothing(&a, a_shape.len() - 1)?, nothing(&b, b_shape.len() - 2)?);
            let c = matmul(&left, &right)?;
            assert_eq!(c.dims(), matmul(&a, &b)?.dims());
            assert!(values(&c).iter().all(|&x| x == 0.0));
            assert!(c.track_op(), "{a_shape:?}·{b_shape:?}: no gradient can flow");
            if device.is_cuda() {
                continue; // candle cannot allocate the empty gradients
            }
            let grads = c.sum_all()?.backward()?;
            for var in [&a, &b] {
                let grad = grads.get(var).expect("a gradient");
                assert_eq!(grad.dims(), var.dims());
                assert!(values(grad).iter().all(|&x| x == 0.0));
            }
        }
    }
    Ok(())
}

/// Against candle's `broadcast_matmul`, its errors included, and apart from its `matmul` where that pairs in order.
fn batch_dimensions_are_those_of_broadcast_matmul(device: &Device) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(20);
    let (mut broadcast, mut paired_only, mut neither) = (0, 0, 0);
    for _ in 0..300 {
        let mut batch = || -> Vec<usize> {
            let rank = rng.random_range(0..4);
            (0..rank).map(|_| [1, 2, 3, 6][rng.random_range(0..4)]).collect()
        };
        let (a_batch, mut b_batch) = (batch(), batch());
        if rng.random() {
            b_batch = a_batch.clone();
            b_batch.reverse();
        }
        let a = random(&[&a_batch[..], &[4, 5]].concat(), device);
        let b = random(&[&b_batch[..], &[5, 3]].concat(), device);
        let what = format!("{:?}·{:?}", a.shape(), b.shape());
        let shape = Shape::from(&a_batch[..]).broadcast_shape_binary_op(&Shape::from(&b_batch[..]), "batch");
        match (matmul(&a, &b), shape) {
            (Ok(ours), Ok(shape)) => {
                assert_eq!(ours.dims(), [shape.dims(), &[4, 3]].concat(), "{what}");
                assert_product(&ours, &a, &b, &what);
                // Candle refuses some strides of its own making.
                if let Ok(candle) = a.broadcast_matmul(&b) {
                    assert_close(&ours, &candle, 1e-5, &what);
                    broadcast += 1;
                }
            }
            (Err(error), Err(_)) => {
                let text = error.to_string();
                assert!(text.contains("shape mismatch"), "{what}: {text}");
                let count = |batch: &[usize]| batch.iter().product::<usize>();
                let pairs = a_batch.len() == b_batch.len() && count(&a_batch) == count(&b_batch);
                // Of more than two batch dimensions candle refuses the strides.
                assert!(!pairs || a_batch.len() > 2 || a.matmul(&b).is_ok(), "{what}");
                assert_eq!(text.contains("Tensor::matmul"), pairs, "{what}: {text}");
                assert_eq!(text.contains(&format!("{b_batch:?}")), pairs, "{what}: {text}");
                paired_only += usize::from(pairs);
                neither += usize::from(!pairs);
            }
            (ours, candle) => panic!("{what}: {ours:?} here and {candle:?} in candle"),
        }
    }
    assert!(
        broadcast > 50 && paired_only > 0 && neither > 20,
        "{broadcast} {paired_only} {neither}"
    );
    // What the two of them shape differently.
    let (a, b) = (random(&[1, 6, 4, 5], device), random(&[6, 1, 5, 3], device));
    assert_eq!(
        (matmul(&a, &b)?.dims(), a.matmul(&b)?.dims()),
        (&[6, 6, 4, 3][..], &[1, 6, 4, 3][..])
    );
    Ok(())
}

/// Broadcast operands of one number, results of 2^58 elements and more: those whose size in bytes is 0 in 64 bits among them.
fn results_that_no_memory_holds_are_refused(device: &Device) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(5);
    let one = Tensor::ones((1, 1), DType::F32, device)?;
    let half = one.to_dtype(DType::F16)?;
    let mut shapes = vec![
        (31, 31, 0),
        (32, 32, 0),
        (30, 32, 0),
        (31, 31, 2),
        (58, 0, 0),
        (20, 20, 24),
        (40, 40, 40),
    ];
    while shapes.len() < 200 {
        let bits = (
            rng.random_range(0..50),
            rng.random_range(0..50),
            rng.random_range(0..50),
        );
        if bits.0 + bits.1 + bits.2 >= 58 {
            shapes.push(bits);
        }
    }
    for (m, n, batch) in shapes {
        // Candle itself ends the program where it finds no memory for a result that there could be.
        let beyond_all = m + n + batch >= 60;
        let (m, n, batch) = (1usize << m, 1usize << n, 1usize << batch);
        for one in [&one, &half] {
            if one.dtype() == DType::F16 && !beyond_all {
                continue;
            }
            let a = one.broadcast_as((batch, m, 1))?;
            let b = one.broadcast_as((1, 1, n))?;
            let text = match matmul(&a, &b) {
                Ok(c) => panic!("a result of shape {:?}", c.shape()),
                Err(error) => error.to_string(),
            };
            for size in [m, n, batch] {
                assert!(text.contains(&size.to_string()), "{m}×{n}×1, batch {batch}: {text}");
            }
        }
        let layer = Linear::new(one.broadcast_as((n, 1))?, Some(one.reshape(1)?.broadcast_as(n)?));
        let layer = layer.with_activation(candle_sgemm::Activation::Relu);
        let text = layer
            .forward(&one.broadcast_as((batch, m, 1))?)
            .unwrap_err()
            .to_string();
        assert!(text.contains(&n.to_string()), "{text}");
        let view = one.broadcast_as((batch, m, n))?;
        assert!(candle_sgemm::transpose(&view, 0, 2).is_err());
    }
    // The device is as well as before.
    let (a, b) = (random(&[5, 6], device), random(&[6, 7], device));
    assert_product(&matmul(&a, &b)?, &a, &b, "afterwards");
    Ok(())
}

#[test]
fn a_result_is_dense_whatever_its_operands_are() -> Result<()> {
    let (a, b) = (
        random(&[3, 2, 5], &Device::Cpu).transpose(0, 1)?,
        random(&[4, 5], &Device::Cpu),
    );
    let c = matmul(&a, &b.t()?)?;
    assert_eq!(c.layout(), &Layout::contiguous((2, 3, 4)));
    Ok(())
}

/// With candle's feature `cuda` and not this crate's (`--features candle-core/cuda,candle-nn/cuda`).
#[cfg(not(feature = "cuda"))]
#[test]
fn cuda_tensors_are_candles_where_this_build_has_no_kernels() -> Result<()> {
    let device = match Device::new_cuda(0) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("cuda_tensors_are_candles_where_this_build_has_no_kernels: skipped, no usable GPU: {error}");
            return Ok(());
        }
    };
    let (a, b) = (random(&[3, 40, 30], &device), random(&[20, 30], &device));
    assert_product(&matmul(&a, &b.t()?)?, &a, &b.t()?, "candle's product");
    let layer = Linear::new(b.clone(), Some(random(&[20], &device))).with_activation(candle_sgemm::Activation::Relu);
    let stock = candle_nn::Linear::new(b.clone(), layer.bias().cloned());
    assert_close(&layer.forward(&a)?, &stock.forward(&a)?.relu()?, 1e-5, "candle's layer");
    let transposed = candle_sgemm::transpose(&a, 1, 2)?;
    assert_eq!(values(&transposed), values(&a.transpose(1, 2)?.contiguous()?));
    let error = Gemm::new().kernel("sgemm_01_naive").matmul(&b, &b.t()?).unwrap_err();
    assert!(error.to_string().contains("feature 'cuda'"), "{error}");
    Ok(())
}
