//! Infinities, NaN, zeros of both signs, subnormal and huge numbers among ordinary ones. A result is NaN or infinite where,
//! and only where, FP32 arithmetic makes it so in any order of the sum, or rounding to its type; the rest keeps to the bound.
//!
//! Two things are left open. A sum whose terms come near the largest FP32 number may overflow or not, as the order of its
//! additions has it. And tensor cores lose the last bits of numbers below 2^-112 (docs/precision.md).

use crate::draw::{self, one_in, one_of, Seed, Values};
use crate::expected::{held, precision_of, same_terms_error, sum_error};
use crate::harness::{index_of, Case, Verdict};
use crate::operand::Operand;
use crate::view::View;
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_sgemm::{Gemm, Linear, Precision};
use rand::rngs::{SmallRng, StdRng};
use rand::{Rng, SeedableRng};

/// Multiply-adds of a case: its reference looks at each.
const WORK: f64 = 2e5;
/// From this k on the three-product kernels leave out the product of the tails.
const LONG_SUM: usize = 384;
/// Terms that add up to more than this may overflow on the way to a smaller sum.
const NEAR_OVERFLOW: f64 = f32::MAX as f64 / 4.0;
/// What is lost of an operand that is a head and a tail of TF32, however small it is: the last 13 bits of a subnormal number,
/// and half of that again where they are rounded.
const LOST_OF_OPERANDS: f64 = 1.5 * (1u64 << 13) as f64 * SUBNORMAL;
/// The smallest FP32 number, 2^-149; what a product or a sum may lose.
const SUBNORMAL: f64 = f32::from_bits(1) as f64;
/// A product of parts of operands may lose as many bits again.
const LOST_OF_PRODUCTS: f64 = (1u64 << 10) as f64 * SUBNORMAL;

/// Where a special number is planted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    A,
    B,
    C,
    Bias,
}

/// Element `index` of an operand, in the order of its dimensions and counted around, is `number`.
#[derive(Clone, Copy, Debug)]
struct Plant {
    place: Place,
    index: usize,
    number: f32,
}

#[derive(Clone, Debug)]
pub struct Special {
    /// A and B, or the input and the transposed weight of a layer.
    a: View,
    b: View,
    /// C, or the residual of a layer.
    c: Option<View>,
    /// Of a layer.
    bias: Option<View>,
    layer: bool,
    alpha: f32,
    beta: f32,
    /// The type of the result, where it is asked for.
    out: Option<DType>,
    precision: Precision,
    /// All of A is scaled by this power of two.
    scale: i32,
    plants: Vec<Plant>,
    numbers: Seed,
}

fn special_number(rng: &mut StdRng) -> f32 {
    let number = match rng.random_range(0..9) {
        0 | 1 => f32::INFINITY,
        2 => f32::NAN,
        // NaN as a GPU writes it.
        3 => f32::from_bits(0x7FFF_FFFF),
        4 => 0.0,
        5 => f32::from_bits(rng.random_range(1..1 << 23)),
        6 => 1e38,
        7 => f32::MAX,
        _ => 1e-30,
    };
    if rng.random() {
        number
    } else {
        -number
    }
}

impl Special {
    pub fn draw(rng: &mut StdRng) -> Self {
        let layer = rng.random();
        let batch: Vec<usize> = match one_in(rng, 3) {
            true => vec![rng.random_range(1..=3)],
            false => vec![],
        };
        let work = WORK / batch.iter().product::<usize>() as f64;
        let k = match rng.random() {
            true => rng.random_range(LONG_SUM..=6000),
            false => draw::side(rng, 3000),
        };
        let m = draw::side(rng, (work / k as f64) as usize);
        let n = draw::side(rng, (work / (m * k) as f64) as usize);
        let dims = |rows, cols| [&batch[..], &[rows, cols]].concat();
        let dtype = draw::factors(rng);
        let (of_c, of_bias) = (draw::beside(rng, dtype), draw::beside(rng, dtype));
        let a = View::draw(rng, &dims(m, k), dtype);
        let b = match layer {
            true => View::draw(rng, &[k, n], dtype),
            false => {
                let dims = draw::broadcastable(rng, &dims(k, n), 2);
                View::draw(rng, &dims, dtype)
            }
        };
        let c = one_in(rng, 3).then(|| View::draw(rng, &dims(m, n), of_c));
        let bias = (layer && rng.random()).then(|| View::draw(rng, &[n], of_bias));
        let places = [Place::A, Place::A, Place::B, Place::B, Place::C, Place::Bias];
        let plants = (0..rng.random_range(1..=4)).map(|_| Plant {
            place: one_of(rng, &places),
            index: rng.random_range(0..1 << 20),
            number: special_number(rng),
        });
        let plants = plants.collect();
        // Subnormal numbers, and large ones.
        let scales = match dtype {
            DType::F16 => [0, 0, 0, 0, -10, -17, -24, 6],
            _ => [0, 0, 0, 0, -110, -125, -135, 100],
        };
        Special {
            a,
            b,
            c,
            bias,
            layer,
            alpha: if layer {
                1.0
            } else {
                one_of(rng, &[1.0, 1.0, -2.0, 0.5])
            },
            beta: if layer { 1.0 } else { one_of(rng, &[1.0, -0.5]) },
            out: draw::result(rng, dtype),
            precision: one_of(rng, &Precision::ALL),
            scale: one_of(rng, &scales),
            plants,
            numbers: Seed(rng.random_range(0..1 << 16)),
        }
    }

    /// The type of A and B.
    fn factors(&self) -> DType {
        self.a.dtype()
    }

    fn operand(&self, view: &View, place: Place, rng: &mut SmallRng, device: &Device) -> Result<Operand> {
        let places = view.places();
        let mut storage = vec![f32::NAN; view.len()];
        let scale = if place == Place::A { 2f64.powi(self.scale) } else { 1.0 };
        for &at in &places {
            storage[at] = (f64::from(Values::Uniform.number(view.dtype(), rng)) * scale) as f32;
        }
        for plant in self.plants.iter().filter(|plant| plant.place == place) {
            storage[places[plant.index % places.len()]] = plant.number;
        }
        Operand::with_storage(view, Values::Uniform, storage, false, device)
    }

    fn run(&self, a: &Tensor, b: &Tensor, c: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
        let mut gemm = Gemm::new().precision(self.precision);
        if let Some(out) = self.out {
            gemm = gemm.out_dtype(out);
        }
        if self.layer {
            let layer = Linear::new(b.t()?, bias.cloned()).with_gemm(gemm);
            return match c {
                Some(residual) => layer.forward_residual(a, residual),
                None => layer.forward(a),
            };
        }
        let gemm = gemm.alpha(f64::from(self.alpha));
        match c {
            Some(c) => gemm.c(c, f64::from(self.beta)).matmul(a, b),
            None => gemm.matmul(a, b),
        }
    }
}

/// A sum in FP64, and how large what it is made of is.
#[derive(Clone, Copy, Default)]
struct Sum {
    /// With NaN and infinities as IEEE has them.
    value: f64,
    /// Σ|terms|, of those that are finite.
    magnitude: f64,
    /// Σ|a| + Σ|b|, of those that are finite.
    operands: f64,
}

impl Sum {
    fn add(&mut self, term: f64) {
        self.value += term;
        if term.is_finite() {
            self.magnitude += term.abs();
        }
    }
}

impl Case for Special {
    fn size(&self) -> usize {
        self.a.elements() * self.b.dim(0)
    }

    fn smaller(&self) -> Vec<Self> {
        let same = || self.clone();
        let mut smaller = Vec::new();
        for i in 0..self.plants.len() {
            let mut case = same();
            case.plants.remove(i);
            smaller.push(case);
        }
        if self.factors() != DType::F32 {
            let typed = |view: &View| view.typed(DType::F32);
            smaller.push(Special {
                a: typed(&self.a),
                b: typed(&self.b),
                c: self.c.as_ref().map(typed),
                bias: self.bias.as_ref().map(typed),
                out: None,
                ..same()
            });
        }
        let less = |size: usize| {
            let sizes = [1, size / 2, size - size / 8, size - 1];
            sizes.into_iter().filter(move |&less| less >= 1 && less < size)
        };
        let resized =
            |view: &Option<View>, from_last, extent| view.as_ref().map(|view: &View| view.resized(from_last, extent));
        for m in less(self.a.dim(1)) {
            smaller.push(Special {
                a: self.a.resized(1, m),
                c: resized(&self.c, 1, m),
                ..same()
            });
        }
        for n in less(self.b.dim(0)) {
            smaller.push(Special {
                b: self.b.resized(0, n),
                c: resized(&self.c, 0, n),
                bias: resized(&self.bias, 0, n),
                ..same()
            });
        }
        for k in less(self.a.dim(0)) {
            smaller.push(Special {
                a: self.a.resized(0, k),
                b: self.b.resized(1, k),
                ..same()
            });
        }
        if self.c.is_some() {
            smaller.push(Special { c: None, ..same() });
        }
        if self.bias.is_some() {
            smaller.push(Special { bias: None, ..same() });
        }
        smaller.extend(self.a.simpler().into_iter().map(|a| Special { a, ..same() }));
        smaller.extend(self.b.simpler().into_iter().map(|b| Special { b, ..same() }));
        smaller
    }

    fn check(&self, device: &Device) -> Verdict {
        let rng = &mut SmallRng::seed_from_u64(self.numbers.0);
        let a = self.operand(&self.a, Place::A, rng, device)?;
        let b = self.operand(&self.b, Place::B, rng, device)?;
        let c = self
            .c
            .as_ref()
            .map(|c| self.operand(c, Place::C, rng, device))
            .transpose()?;
        let bias = self
            .bias
            .as_ref()
            .map(|bias| self.operand(bias, Place::Bias, rng, device))
            .transpose()?;
        let tensor = |operand: &Option<Operand>| operand.as_ref().map(|operand| operand.tensor.clone());
        let result = self.run(&a.tensor, &b.tensor, tensor(&c).as_ref(), tensor(&bias).as_ref())?;
        let dims = result.dims().to_vec();
        let out = self.out.unwrap_or(self.factors());
        if result.dtype() != out {
            return Ok(Err(format!("the dtype is {:?}, not {out:?}", result.dtype())));
        }
        let result = result.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        let got: Vec<f32> = result.flatten_all()?.to_vec1()?;

        let (m, n, k) = (self.a.dim(1), self.b.dim(0), self.a.dim(0));
        let wide = |numbers: &[f32]| -> Vec<f64> { numbers.iter().map(|&x| f64::from(x)).collect() };
        // Columns of B one after the other, so that the loop below walks slices.
        let (a, mut b) = (wide(&a.numbers), wide(&b.numbers));
        let b_matrices = b.len() / (k * n);
        b = (0..b.len())
            .map(|i| b[i / (n * k) * (n * k) + i % k * n + i / k % n])
            .collect();
        let precision = precision_of(self.factors(), self.precision);
        let (lost_of_operands, lost_of_products) = match (self.factors(), precision) {
            // Tensor cores multiply these exactly, but may add up as if they were parts of FP32 numbers.
            (DType::F16 | DType::BF16, _) => (0.0, LOST_OF_PRODUCTS),
            (_, Precision::Fp32Strict) => (0.0, 2.0 * SUBNORMAL),
            (_, Precision::Fp32 | Precision::Tf32) => (LOST_OF_OPERANDS, LOST_OF_PRODUCTS),
            (_, other) => unimplemented!("{other}"),
        };
        for (i, &got) in got.iter().enumerate() {
            let (row, col) = (i / n, i % n);
            let matrix = row / m % b_matrices;
            let row = &a[row * k..][..k];
            let column = &b[(matrix * n + col) * k..][..k];
            let mut sum = Sum::default();
            for (&x, &y) in row.iter().zip(column) {
                sum.add(x * y);
                for operand in [x, y] {
                    if operand.is_finite() {
                        sum.operands += operand.abs();
                    }
                }
            }
            let alpha = f64::from(self.alpha);
            let same = |numbers: &[f64]| numbers.iter().all(|&number| number == numbers[0]);
            let rounding = match same(row) && same(column) {
                true => sum_error(precision, k) + same_terms_error(k),
                false => sum_error(precision, k),
            };
            let bound = rounding * sum.magnitude + lost_of_operands * sum.operands + lost_of_products * k as f64;
            let mut all = Sum {
                value: alpha * sum.value,
                magnitude: sum.magnitude * alpha.abs().max(1.0),
                ..sum
            };
            if let Some(bias) = &bias {
                all.add(f64::from(bias.numbers[col]));
            }
            if let Some(c) = &c {
                all.add(f64::from(self.beta) * f64::from(c.numbers[i]));
            }
            if all.magnitude > NEAR_OVERFLOW {
                continue;
            }
            let bound = bound * alpha.abs().max(1.0) + sum_error(Precision::Fp32Strict, 4) * all.magnitude + SUBNORMAL;
            let value = f64::from(got);
            let right = match all.value {
                wanted if wanted.is_nan() => value.is_nan(),
                wanted if wanted.is_infinite() => value == wanted,
                wanted => (held(out, wanted - bound)..=held(out, wanted + bound)).contains(&value),
            };
            if !right {
                return Ok(Err(format!(
                    "{:?} of {dims:?} is {got:e}, not {:e} (±{bound:.1e}) in {out:?}",
                    index_of(i, &dims),
                    all.value
                )));
            }
        }
        Ok(Ok(()))
    }
}
