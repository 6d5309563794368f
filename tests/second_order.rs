//! Gradients of gradients, which candle makes under `CANDLE_GRAD_DO_NOT_DETACH=1`: a process of its own, for candle reads the
//! variable once.

#[path = "../examples/accuracy/by_candle.rs"]
mod by_candle;
#[macro_use]
mod devices;

use by_candle::by_candle;
use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_sgemm::{Activation, Gemm, Linear, Precision};

on_every_device!(
    second_gradients_are_those_of_candle_in_double_precision,
    second_gradients_of_plain_products
);

/// Candle's derivatives of GELU have constants of six digits.
const TOLERANCE: f64 = 1e-4;

fn keep_graphs() {
    std::env::set_var("CANDLE_GRAD_DO_NOT_DETACH", "1");
}

fn random(shape: &[usize]) -> Result<Tensor> {
    Tensor::randn(0f32, 1., shape, &Device::Cpu)
}

/// The gradients, in `vars`, of Σ directions·gradients of Σ y·scales.
fn second_gradients(y: &Tensor, scales: &Tensor, vars: &[Var], directions: &[Tensor]) -> Result<Vec<Tensor>> {
    let like = |t: &Tensor, model: &Tensor| t.to_device(model.device())?.to_dtype(model.dtype());
    let first = (y * like(scales, y)?)?.sum_all()?.backward()?;
    let mut sum = Tensor::zeros((), y.dtype(), y.device())?;
    for (var, direction) in vars.iter().zip(directions) {
        let gradient = first.get(var).expect("a gradient");
        sum = (sum + (gradient * like(direction, var)?)?.sum_all()?)?;
    }
    let second = sum.backward()?;
    let gradients = vars.iter().map(|var| match second.get(var) {
        Some(gradient) => Ok(gradient.clone()),
        None => var.zeros_like(),
    });
    gradients.collect()
}

fn assert_close(ours: &[Tensor], candle: &[Tensor], what: &str) -> Result<()> {
    let of = |t: &Tensor| {
        t.to_device(&Device::Cpu)?
            .to_dtype(DType::F64)?
            .flatten_all()?
            .to_vec1::<f64>()
    };
    for (which, (ours, candle)) in ours.iter().zip(candle).enumerate() {
        assert_eq!(ours.dims(), candle.dims());
        for (x, y) in of(ours)?.iter().zip(of(candle)?) {
            assert!(
                (x - y).abs() <= TOLERANCE * (1.0 + y.abs()),
                "{what}, variable {which}: {x}, not {y}"
            );
        }
    }
    Ok(())
}

fn second_gradients_are_those_of_candle_in_double_precision(device: &Device) -> Result<()> {
    keep_graphs();
    let (rows, inputs, outputs) = (5, 4, 6);
    for activation in Activation::ALL {
        for way in ["alone", "no bias", "residual", "gate"] {
            let tensors = [
                random(&[rows, inputs])?,
                random(&[outputs, inputs])?,
                random(&[outputs])?,
            ];
            let directions = [
                random(&[rows, inputs])?,
                random(&[outputs, inputs])?,
                random(&[outputs])?,
            ];
            let (scales, other) = (random(&[rows, outputs])?, random(&[rows, outputs])?);
            let count = if way == "no bias" { 2 } else { 3 };
            let gradients = |stock: bool| -> Result<Vec<Tensor>> {
                let (device, dtype) = if stock {
                    (&Device::Cpu, DType::F64)
                } else {
                    (device, DType::F32)
                };
                let place = |t: &Tensor| t.to_device(device)?.to_dtype(dtype);
                let vars = tensors.iter().map(|t| Var::from_tensor(&place(t)?));
                let vars: Vec<Var> = vars.collect::<Result<_>>()?;
                let (x, w) = (vars[0].as_tensor(), vars[1].as_tensor().clone());
                let bias = (count == 3).then(|| vars[2].as_tensor().clone());
                let other = place(&other)?;
                let y = if stock {
                    let y = by_candle(activation, &candle_nn::Linear::new(w, bias).forward(x)?)?;
                    match way {
                        "residual" => (y + other)?,
                        "gate" => (y * other)?,
                        _ => y,
                    }
                } else {
                    let layer = Linear::new(w, bias)
                        .with_activation(activation)
                        .with_gemm(Gemm::new().precision(Precision::Fp32Strict));
                    match way {
                        "residual" => layer.forward_residual(x, &other)?,
                        "gate" => layer.forward_gated(x, &other)?,
                        _ => layer.forward(x)?,
                    }
                };
                second_gradients(&y, &scales, &vars[..count], &directions)
            };
            assert_close(&gradients(false)?, &gradients(true)?, &format!("{activation:?} {way}"))?;
        }
    }
    Ok(())
}

fn second_gradients_of_plain_products(device: &Device) -> Result<()> {
    keep_graphs();
    let shapes: [(&[usize], &[usize]); 3] = [(&[3, 4], &[4, 5]), (&[2, 3, 4], &[4, 5]), (&[2, 3, 4], &[2, 4, 5])];
    for (a_shape, b_shape) in shapes {
        let (tensors, directions) = (
            [random(a_shape)?, random(b_shape)?],
            [random(a_shape)?, random(b_shape)?],
        );
        let scales = random(&[&a_shape[..a_shape.len() - 1], &[5]].concat())?;
        let gradients = |stock: bool| -> Result<Vec<Tensor>> {
            let (device, dtype) = if stock {
                (&Device::Cpu, DType::F64)
            } else {
                (device, DType::F32)
            };
            let vars = tensors
                .iter()
                .map(|t| Var::from_tensor(&t.to_device(device)?.to_dtype(dtype)?));
            let vars: Vec<Var> = vars.collect::<Result<_>>()?;
            let y = match stock {
                true => vars[0].broadcast_matmul(&vars[1])?,
                false => candle_sgemm::matmul(&vars[0], &vars[1])?,
            };
            second_gradients(&y, &scales, &vars, &directions)
        };
        assert_close(
            &gradients(false)?,
            &gradients(true)?,
            &format!("{a_shape:?}·{b_shape:?}"),
        )?;
    }
    Ok(())
}
