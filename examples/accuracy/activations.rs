//! The error of activations and of their slopes against FP64: fused in this crate's layers, and as candle's operations.

#[path = "by_candle.rs"]
mod by_candle;

use by_candle::by_candle;
use candle_core::{Device, Module, Result, Tensor, Var};
use candle_sgemm::{Activation, Gemm, Linear, Precision};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

/// All but the identity.
pub const ACTIVATIONS: [Activation; 6] = [
    Activation::Relu,
    Activation::GeluTanh,
    Activation::GeluErf,
    Activation::Silu,
    Activation::Tanh,
    Activation::Sigmoid,
];

/// The function itself, or its slope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

impl Direction {
    pub const ALL: [Direction; 2] = [Direction::Forward, Direction::Backward];

    pub fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        }
    }
}

/// Part of the numbers that an activation may be applied to.
pub struct Range {
    pub name: &'static str,
    /// Absolute values, as bits, from the first to before the second.
    bits: [u32; 2],
}

/// The bits of the first subnormal number, 2^-126, 2^-12, 1, 8, 104 (from where e^-x is 0 in FP32), and infinity.
const BORDERS: [u32; 7] = [
    1,
    0x0080_0000,
    0x3980_0000,
    0x3f80_0000,
    0x4100_0000,
    0x42d0_0000,
    0x7f80_0000,
];

/// Every number is in one of them, but for those of [`special`].
pub const RANGES: [Range; 6] = [
    Range::new("subnormal", 0),
    Range::new("2^-126 to 2^-12", 1),
    Range::new("2^-12 to 1", 2),
    Range::new("1 to 8", 3),
    Range::new("8 to 104", 4),
    Range::new("above 104", 5),
];

impl Range {
    const fn new(name: &'static str, border: usize) -> Self {
        Range {
            name,
            bits: [BORDERS[border], BORDERS[border + 1]],
        }
    }

    /// So many numbers of each sign, evenly spread over the bits: as many from each binade.
    pub fn numbers(&self, of_each_sign: u32) -> Vec<f32> {
        let [first, end] = self.bits;
        let step = ((end - first) / of_each_sign).max(1);
        (first..end)
            .step_by(step as usize)
            .flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
            .collect()
    }
}

/// Zeros, the ends of the ranges, infinities, NaN.
pub fn special() -> Vec<f32> {
    let positive = [0.0, f32::MIN_POSITIVE, 1.0, f32::MAX, f32::INFINITY];
    let both = positive.into_iter().flat_map(|x| [x, -x]);
    both.chain([f32::NAN]).collect()
}

/// The exact value, in double precision without cancellation; at infinity its limit, and for NaN what candle makes of it.
pub fn exact(activation: Activation, direction: Direction, x: f32) -> f64 {
    let x = f64::from(x);
    if x.is_nan() {
        return if activation == Activation::Relu { 0.0 } else { x };
    }
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    // GELU's tanh is that of this; (1 + tanh u)/2 is sigmoid(2u).
    const CUBIC: f64 = 0.044715;
    let twice_u = 2.0 * (2.0 / PI).sqrt() * (x + CUBIC * x * x * x);
    let grows = !matches!(activation, Activation::Tanh | Activation::Sigmoid);
    if x.is_infinite() && grows {
        return match direction {
            Direction::Forward => x.max(0.0),
            Direction::Backward => f64::from(x > 0.0),
        };
    }
    let normal = |x: f64| 0.5 * libm::erfc(-x * FRAC_1_SQRT_2);
    match (activation, direction) {
        (Activation::Identity, Direction::Forward) => x,
        (Activation::Identity, Direction::Backward) => 1.0,
        (Activation::Relu, Direction::Forward) => x.max(0.0),
        (Activation::Relu, Direction::Backward) => f64::from(x >= 0.0),
        (Activation::GeluTanh, Direction::Forward) => x * sigmoid(twice_u),
        (Activation::GeluTanh, Direction::Backward) => {
            let slope = 2.0 * (2.0 / PI).sqrt() * (1.0 + 3.0 * CUBIC * x * x);
            sigmoid(twice_u) + x * slope * sigmoid(twice_u) * sigmoid(-twice_u)
        }
        (Activation::GeluErf, Direction::Forward) => x * normal(x),
        (Activation::GeluErf, Direction::Backward) => {
            normal(x) + x * 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (-0.5 * x * x).exp()
        }
        (Activation::Silu, Direction::Forward) => x * sigmoid(x),
        (Activation::Silu, Direction::Backward) => sigmoid(x) + x * sigmoid(x) * sigmoid(-x),
        (Activation::Tanh, Direction::Forward) => x.tanh(),
        (Activation::Tanh, Direction::Backward) => 4.0 * sigmoid(2.0 * x) * sigmoid(-2.0 * x),
        (Activation::Sigmoid, Direction::Forward) => sigmoid(x),
        (Activation::Sigmoid, Direction::Backward) => sigmoid(x) * sigmoid(-x),
        _ => unimplemented!("{activation:?}"),
    }
}

/// How far results are from the exact ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// ‖results − exact‖ / ‖exact‖
    pub frobenius: f64,
    /// The largest error of one. Of the function it is relative, numbers below 2^-126 counting as that; of the slope absolute.
    pub worst: f64,
    /// Results that are NaN where the exact one is not, or infinite where it is finite, and the other way round.
    pub wrong_class: usize,
}

impl Errors {
    /// Of the results of `numbers`.
    pub fn of(activation: Activation, direction: Direction, numbers: &[f32], results: &[f32]) -> Self {
        let (mut squares, mut exact_squares, mut errors) = (0f64, 0f64, Errors::default());
        for (&x, &result) in numbers.iter().zip(results) {
            let exact = exact(activation, direction, x);
            let result = f64::from(result);
            // What rounds to infinity may be it.
            let infinite = (exact as f32).is_infinite();
            if result.is_nan() != exact.is_nan() || result.is_infinite() != infinite {
                errors.wrong_class += 1;
            } else if !exact.is_nan() && !infinite {
                let scale = match direction {
                    Direction::Forward => exact.abs().max(f32::MIN_POSITIVE.into()),
                    Direction::Backward => 1.0,
                };
                let error = (result - exact).abs();
                errors.worst = errors.worst.max(error / scale);
                squares += error * error;
                exact_squares += exact * exact;
            }
        }
        errors.frobenius = match exact_squares {
            0.0 => squares.sqrt(),
            _ => (squares / exact_squares).sqrt(),
        };
        errors
    }
}

/// The results of `numbers` as a layer of this crate has them, and by candle's operation.
pub fn results(
    activation: Activation,
    direction: Direction,
    numbers: &[f32],
    device: &Device,
) -> Result<[Vec<f32>; 2]> {
    let x = Var::from_slice(numbers, (numbers.len(), 1), device)?;
    // Sums of one product, x·1.
    let one = Tensor::ones((1, 1), candle_core::DType::F32, device)?;
    let layer = Linear::new(one, None)
        .with_activation(activation)
        .with_gemm(Gemm::new().precision(Precision::Fp32Strict));
    let of = |compute: &dyn Fn(&Tensor) -> Result<Tensor>| -> Result<Vec<f32>> {
        let result = match direction {
            Direction::Forward => compute(&x.as_tensor().detach())?,
            Direction::Backward => {
                let gradients = compute(&x)?.sum_all()?.backward()?;
                let gradient = gradients.get(&x).cloned();
                gradient.ok_or_else(|| candle_core::Error::Msg("no gradient flows to x".into()))?
            }
        };
        result.flatten_all()?.to_vec1()
    };
    Ok([of(&|x| layer.forward(x))?, of(&|x| by_candle(activation, x))?])
}
