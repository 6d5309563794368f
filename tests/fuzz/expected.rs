//! What a computation must give: numbers in FP64, and for each the error that FP32 may make.
//!
//! Bound of a product: |c − ref| ≤ C0·ε·√k·Σ|a||b|, at TF32 and TF32_ERROR·Σ|a||b| beside it, and what the errors of its
//! operands make of it; ε/2·k·Σ|a||b| more where all terms of each sum are one number. Of everything that follows a product:
//! C1·ε times its terms. Where all numbers are whole and no sum reaches 2^24 nothing is rounded, and nothing but equality will
//! do.
//!
//! What a tensor of 16 bits holds is rounded to nearest: of all that a number may be before, the least and the largest one are
//! rounded, and what lies between is right. So a number that is known exactly has one rounding only, and one that is too large for
//! FP16 is infinite.

use candle_core::{DType, Device, Result, Tensor, D};
use candle_sgemm::gemm::cpu::{bf16, f16};
use candle_sgemm::{Activation, Precision};
use std::collections::HashSet;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

/// FP32's ε.
const EPSILON: f64 = f32::EPSILON as f64;
/// Rounding errors of a sum of k products in units of ε·√k·Σ|a||b|: a sum in order keeps well below 1 on random numbers, and a
/// lost product of a sum of a thousand is some thousand times more.
const C0: f64 = 4.0;
/// Operands rounded to TF32 err by this much of Σ|a||b|: two operands, each to 10 bits of mantissa.
const TF32_ERROR: f64 = 2.0 / 1024.0;
/// Rounding errors of what follows a product, in units of ε times its terms.
const C1: f64 = 16.0;
/// Rounding errors of a slope that is computed in 16 bits, step by step, in units of their ε times one more than its argument.
const SLOPE_IN_16_BITS: f64 = 4.0;
/// No activation is steeper, and no slope steeper than 1.
const STEEPEST: f64 = 1.2;

/// FP32 holds whole numbers up to this one.
const WHOLE: f64 = (1 << 24) as f64;
/// Sums of FP16 numbers that stay below this do not overflow on the way, however they are rounded.
const NEAR_OVERFLOW_OF_F16: f64 = 6e4;
/// TF32 holds whole numbers up to this one, and a head and a tail of TF32 up to its square.
const WHOLE_TF32: f64 = (1 << 11) as f64;

/// The distance from 1 to the next number of this type.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => EPSILON,
        DType::F16 => f64::from(f16::EPSILON),
        DType::BF16 => f64::from(bf16::EPSILON),
        other => unimplemented!("{other:?}"),
    }
}

/// The nearest number of this type.
pub fn rounded(dtype: DType, x: f32) -> f32 {
    match dtype {
        DType::F32 => x,
        DType::F16 => f16::from_f32(x).to_f32(),
        DType::BF16 => bf16::from_f32(x).to_f32(),
        other => unimplemented!("{other:?}"),
    }
}

/// What a tensor of this type holds of an FP32 number that may be this one: FP32 itself is not rounded once more.
pub fn held(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 => x,
        _ => f64::from(rounded(dtype, x as f32)),
    }
}

/// The precision of products of factors of this type: those of 16 bits are multiplied exactly.
pub fn precision_of(factors: DType, precision: Precision) -> Precision {
    match factors {
        DType::F32 => precision,
        _ => Precision::Fp32Strict,
    }
}

/// The error that a sum of `k` products may have, in units of Σ|a||b|.
pub fn sum_error(precision: Precision, k: usize) -> f64 {
    let rounding = match precision {
        Precision::Tf32 => TF32_ERROR,
        Precision::Fp32 | Precision::Fp32Strict => 0.0,
        _ => unimplemented!("{precision}"),
    };
    C0 * EPSILON * (k.max(1) as f64).sqrt() + rounding
}

/// The error that a sum of `k` times the same product may have beside that, in the same units. Every rounding of a running sum
/// goes the same way there until its exponent changes, so that √k is too little.
pub fn same_terms_error(k: usize) -> f64 {
    0.5 * EPSILON * k as f64
}

/// Whether the numbers along this dimension are the same ones.
fn same_along(t: &Tensor, dim: D) -> Result<bool> {
    Ok(largest(&(t.max_keepdim(dim)? - t.min_keepdim(dim)?)?)? == 0.0)
}

/// Numbers, and by how much each may be off.
#[derive(Clone, Debug)]
pub struct Expected {
    /// FP64 on the CPU.
    value: Tensor,
    /// In the same shape; `None`: not at all.
    error: Option<Tensor>,
    /// Whether all are whole numbers.
    whole: bool,
}

fn largest(t: &Tensor) -> Result<f64> {
    match t.elem_count() {
        0 => Ok(0.0),
        _ => t.abs()?.flatten_all()?.max(0)?.to_scalar(),
    }
}

/// A·B of tensors of any ranks, broadcast.
fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (a_batch, [m, k]) = split(a);
    let (b_batch, [_, n]) = split(b);
    if b_batch.is_empty() {
        let rows = a_batch.iter().product::<usize>() * m;
        let product = a.contiguous()?.reshape((rows, k))?.matmul(&b.contiguous()?)?;
        return product.reshape([&a_batch[..], &[m, n]].concat());
    }
    let batch = broadcast(&a_batch, &b_batch);
    let flat = |t: &Tensor, matrix: [usize; 2]| {
        let dense = t.broadcast_as([&batch[..], &matrix].concat())?.contiguous()?;
        dense.reshape((batch.iter().product::<usize>(), matrix[0], matrix[1]))
    };
    let product = flat(a, [m, k])?.matmul(&flat(b, [k, n])?)?;
    product.reshape([&batch[..], &[m, n]].concat())
}

fn split(t: &Tensor) -> (Vec<usize>, [usize; 2]) {
    let (batch, matrix) = t.dims().split_at(t.rank() - 2);
    (batch.to_vec(), [matrix[0], matrix[1]])
}

/// The dimensions to which both are broadcast, if they fit.
pub fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let dim = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    let both = (0..rank).map(|i| match (dim(a, i), dim(b, i)) {
        (1, other) => other,
        (one, _) => one,
    });
    both.collect()
}

/// `f` of each number, and the error that `of_error` makes of each number and its own.
fn map(x: &Expected, f: impl Fn(f64) -> f64, of_error: impl Fn(f64, f64) -> f64) -> Result<Expected> {
    let values: Vec<f64> = x.value.flatten_all()?.to_vec1()?;
    let errors = match &x.error {
        Some(error) => error.flatten_all()?.to_vec1()?,
        None => vec![0.0; values.len()],
    };
    let errors: Vec<f64> = values
        .iter()
        .zip(errors)
        .map(|(&x, error)| of_error(x, error))
        .collect();
    let mapped: Vec<f64> = values.iter().map(|&x| f(x)).collect();
    let tensor = |numbers: Vec<f64>| Tensor::from_vec(numbers, x.value.dims(), &Device::Cpu);
    let inexact = errors.iter().any(|&error| error != 0.0);
    Ok(Expected {
        value: tensor(mapped)?,
        error: if inexact { Some(tensor(errors)?) } else { None },
        whole: false,
    })
}

fn standard_normal(x: f64) -> f64 {
    (-0.5 * x * x).exp() * 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2
}

fn cumulative_normal(x: f64) -> f64 {
    0.5 * candle_core::cpu::erf::erfc_f64(-x * FRAC_1_SQRT_2)
}

/// The argument of the tanh in GELU's approximation, and its slope.
fn gelu_argument(x: f64) -> (f64, f64) {
    const CUBIC: f64 = 0.044715;
    let scale = (2.0 / PI).sqrt();
    (scale * (x + CUBIC * x * x * x), scale * (1.0 + 3.0 * CUBIC * x * x))
}

pub fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Identity => x,
        Activation::Relu => x.max(0.0),
        Activation::GeluTanh => 0.5 * x * (1.0 + gelu_argument(x).0.tanh()),
        Activation::GeluErf => x * cumulative_normal(x),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        _ => unimplemented!("{activation:?}"),
    }
}

/// The derivative of [`activate`]. That of ReLU at 0 is candle's: 1.
fn slope(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Identity => 1.0,
        Activation::Relu => f64::from(x >= 0.0),
        Activation::GeluTanh => {
            let (argument, inner) = gelu_argument(x);
            let tanh = argument.tanh();
            0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner
        }
        Activation::GeluErf => cumulative_normal(x) + x * standard_normal(x),
        Activation::Silu => {
            let sigmoid = 1.0 / (1.0 + (-x).exp());
            sigmoid * (1.0 + x * (1.0 - sigmoid))
        }
        Activation::Tanh => 1.0 - x.tanh().powi(2),
        Activation::Sigmoid => {
            let sigmoid = 1.0 / (1.0 + (-x).exp());
            sigmoid * (1.0 - sigmoid)
        }
        _ => unimplemented!("{activation:?}"),
    }
}

impl Expected {
    /// Numbers without an error.
    pub fn exact(value: Tensor, whole: bool) -> Result<Self> {
        Ok(Expected {
            value,
            error: None,
            whole,
        })
    }

    pub fn dims(&self) -> &[usize] {
        self.value.dims()
    }

    /// A·B in sums of FP32, with operands broadcast.
    pub fn product(&self, b: &Expected, precision: Precision) -> Result<Expected> {
        let value = matmul(&self.value, &b.value)?;
        let (a_size, b_size) = (self.value.abs()?, b.value.abs()?);
        let magnitude = matmul(&a_size, &b_size)?;
        if self.whole && b.whole && largest(&magnitude)? < WHOLE {
            let (a_most, b_most) = (largest(&a_size)?, largest(&b_size)?);
            let exact = match precision {
                Precision::Fp32Strict => true,
                // Of two tails the product is left out.
                Precision::Fp32 => a_most.max(b_most) <= WHOLE_TF32 * WHOLE_TF32 && a_most.min(b_most) <= WHOLE_TF32,
                Precision::Tf32 => a_most.max(b_most) <= WHOLE_TF32,
                _ => unimplemented!("{precision}"),
            };
            if exact {
                return Expected::exact(value, true);
            }
        }
        let k = self.value.dim(D::Minus1)?;
        let mut bound = sum_error(precision, k);
        if value.elem_count() > 0 && same_along(&self.value, D::Minus1)? && same_along(&b.value, D::Minus2)? {
            bound += same_terms_error(k);
        }
        let mut error = (magnitude * bound)?;
        if let Some(a_error) = &self.error {
            error = (error + matmul(a_error, &b_size)?)?;
        }
        if let Some(b_error) = &b.error {
            error = (error + matmul(&a_size, b_error)?)?;
            if let Some(a_error) = &self.error {
                error = (error + matmul(a_error, b_error)?)?;
            }
        }
        Ok(Expected {
            value,
            error: Some(error),
            whole: false,
        })
    }

    /// Σ over the batch of A·B, for A and B of the same batch dimensions: one sum over all of k and the batch.
    pub fn product_over_batch(&self, b: &Expected, precision: Precision) -> Result<Expected> {
        let in_columns = |t: &Tensor| -> Result<Tensor> {
            let rank = t.rank();
            let rows = t.dim(rank - 2)?;
            let order: Vec<usize> = [rank - 2].into_iter().chain(0..rank - 2).chain([rank - 1]).collect();
            t.permute(order)?.contiguous()?.reshape((rows, t.elem_count() / rows))
        };
        let columns = b.value.dim(D::Minus1)?;
        let in_rows = |t: &Tensor| t.contiguous()?.reshape((t.elem_count() / columns, columns));
        self.arranged(in_columns)?.product(&b.arranged(in_rows)?, precision)
    }

    /// Rounded once more, if it was rounded at all: C1·ε of `terms` beside the error so far.
    fn rounded(value: Tensor, error: Option<Tensor>, terms: Tensor, whole: bool) -> Result<Expected> {
        if whole && error.is_none() && largest(&terms)? < WHOLE {
            return Expected::exact(value, true);
        }
        let rounding = (terms * (C1 * EPSILON))?;
        let error = match error {
            Some(error) => (error + rounding)?,
            None => rounding,
        };
        Ok(Expected {
            value,
            error: Some(error),
            whole: false,
        })
    }

    /// Times a number that FP32 holds.
    pub fn scaled(&self, factor: f32) -> Result<Expected> {
        if factor == 1.0 {
            return Ok(self.clone());
        }
        let factor = f64::from(factor);
        let value = (&self.value * factor)?;
        let error = self.error.as_ref().map(|error| error * factor.abs()).transpose()?;
        let terms = value.abs()?;
        Expected::rounded(value, error, terms, self.whole && factor.fract() == 0.0)
    }

    /// The sum, with `other` broadcast.
    pub fn plus(&self, other: &Expected) -> Result<Expected> {
        let value = self.value.broadcast_add(&other.value)?;
        let terms = value.abs()?.broadcast_add(&other.value.abs()?)?;
        let error = match (&self.error, &other.error) {
            (Some(x), Some(y)) => Some(x.broadcast_add(y)?),
            (None, Some(error)) | (Some(error), None) => Some(error.broadcast_as(value.dims())?),
            (None, None) => None,
        };
        Expected::rounded(value, error, terms, self.whole && other.whole)
    }

    /// The product element by element, with `other` broadcast.
    pub fn times(&self, other: &Expected) -> Result<Expected> {
        let value = self.value.broadcast_mul(&other.value)?;
        let zero = Tensor::zeros(value.dims(), DType::F64, &Device::Cpu)?;
        let mut error = None;
        for (x, y) in [(self, other), (other, self)] {
            if let Some(x_error) = &x.error {
                let part = x_error.broadcast_mul(&y.value.abs()?)?;
                error = Some(error.unwrap_or_else(|| zero.clone()).broadcast_add(&part)?);
            }
        }
        if let (Some(x), Some(y), Some(sum)) = (&self.error, &other.error, &error) {
            error = Some(sum.broadcast_add(&x.broadcast_mul(y)?)?);
        }
        let terms = value.abs()?;
        Expected::rounded(value, error, terms, self.whole && other.whole)
    }

    /// `activation` of each number. An implementation may err by some ε of what it is applied to.
    pub fn activated(&self, activation: Activation) -> Result<Expected> {
        match activation {
            Activation::Identity => Ok(self.clone()),
            Activation::Relu => {
                let result = map(self, |x| activate(activation, x), |_, error| error)?;
                Ok(Expected {
                    whole: self.whole,
                    ..result
                })
            }
            _ => map(
                self,
                |x| activate(activation, x),
                |x, error| STEEPEST * error + C1 * EPSILON * (activate(activation, x).abs() + x.abs()),
            ),
        }
    }

    /// The slope of `activation` at each number, in arithmetic of this type.
    pub fn slopes(&self, activation: Activation, dtype: DType) -> Result<Expected> {
        let rounding = match dtype {
            DType::F32 => C1 * EPSILON,
            _ => SLOPE_IN_16_BITS * epsilon(dtype),
        };
        let error = |x: f64, error: f64| match activation {
            Activation::Identity => 0.0,
            // It jumps at 0.
            Activation::Relu => f64::from(error.is_nan() || (error > 0.0 && x.abs() <= error)),
            _ => error + rounding * (1.0 + x.abs()),
        };
        let slopes = map(self, |x| slope(activation, x), error)?;
        let whole = matches!(activation, Activation::Identity | Activation::Relu) && slopes.error.is_none();
        Ok(Expected { whole, ..slopes })
    }

    /// The last two dimensions exchanged.
    pub fn t(&self) -> Result<Expected> {
        self.arranged(Tensor::t)
    }

    /// The dimensions before the last two broadcast to these.
    pub fn batched(&self, batch: &[usize]) -> Result<Expected> {
        let (_, matrix) = split(&self.value);
        let dims = [batch, &matrix].concat();
        self.arranged(|t| t.broadcast_as(&dims[..])?.contiguous())
    }

    /// The same numbers in another shape.
    pub fn reshaped(&self, dims: &[usize]) -> Result<Expected> {
        self.arranged(|t| t.contiguous()?.reshape(dims))
    }

    /// Matrices of the last batch dimension side by side: (…, h, m, n) is (…, m, h·n).
    pub fn side_by_side(&self) -> Result<Expected> {
        self.arranged(|t| {
            let rank = t.rank();
            t.transpose(rank - 3, rank - 2)?.contiguous()?.flatten_from(rank - 2)
        })
    }

    /// The way back from [`side_by_side`](Self::side_by_side), of so many matrices.
    pub fn one_after_the_other(&self, matrices: usize) -> Result<Expected> {
        self.arranged(|t| {
            let (before, [m, columns]) = split(t);
            let apart = t.reshape([&before[..], &[m, matrices, columns / matrices]].concat())?;
            apart.transpose(before.len(), before.len() + 1)?.contiguous()
        })
    }

    /// Numbers and their errors moved in the same way.
    fn arranged(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Expected> {
        Ok(Expected {
            value: f(&self.value)?,
            error: self.error.as_ref().map(&f).transpose()?,
            whole: self.whole,
        })
    }

    /// As a tensor of this type holds the numbers. What may overflow may be anything from then on.
    pub fn stored(&self, dtype: DType) -> Result<Expected> {
        if dtype == DType::F32 {
            return Ok(self.clone());
        }
        let middle = |x: f64| match held(dtype, x) {
            held if held.is_finite() => held,
            _ => x,
        };
        let error = |x: f64, error: f64| {
            let (least, most) = (held(dtype, x - error), held(dtype, x + error));
            match held(dtype, x).is_finite() && !error.is_nan() {
                true => (most - middle(x)).max(middle(x) - least),
                false => f64::INFINITY,
            }
        };
        let stored = map(self, middle, error)?;
        Ok(Expected {
            whole: self.whole && stored.error.is_none(),
            ..stored
        })
    }

    /// As a tensor of this type holds the numbers, or as they were.
    pub fn perhaps_stored(&self, dtype: DType) -> Result<Expected> {
        let error = |x: f64, error: f64| match dtype {
            DType::F32 => error,
            _ => error.max(held(dtype, x + error) - x).max(x - held(dtype, x - error)),
        };
        let either = map(self, |x| x, error)?;
        Ok(Expected {
            whole: self.whole && either.error.is_none(),
            ..either
        })
    }

    /// Sums of `count` numbers that are rounded to this type as they are added up. Where they mostly have one sign the running sum
    /// does not come back to 0, and each rounding to 16 bits may go the same way.
    fn summed(
        value: Tensor,
        error: Option<Tensor>,
        magnitude: &Tensor,
        count: usize,
        whole: bool,
        dtype: DType,
    ) -> Result<Expected> {
        // Numbers of this type are whole numbers of steps of ε from 1 to 2, and so of 1 up to 2/ε.
        if whole && error.is_none() && largest(magnitude)? < 2.0 / epsilon(dtype) {
            return Expected::exact(value, true);
        }
        let random = C0 * (count as f64).sqrt();
        let one_way = match dtype {
            DType::F32 => 0.0,
            _ => 0.5 * count as f64,
        };
        let magnitudes: Vec<f64> = magnitude.flatten_all()?.to_vec1()?;
        let sums: Vec<f64> = value.flatten_all()?.to_vec1()?;
        let rounding = magnitudes.into_iter().zip(sums).map(|(magnitude, sum)| match dtype {
            DType::F16 if magnitude >= NEAR_OVERFLOW_OF_F16 => f64::INFINITY,
            _ => epsilon(dtype) * (random * magnitude + one_way * sum.abs()),
        });
        let rounding = Tensor::from_iter(rounding, &Device::Cpu)?.reshape(value.dims())?;
        Ok(Expected {
            value,
            error: Some(error.map_or(Ok(rounding.clone()), |error| error + &rounding)?),
            whole: false,
        })
    }

    /// Summed over the dimensions along which `dims` were broadcast to these, in numbers of this type.
    pub fn sum_to(&self, dims: &[usize], dtype: DType) -> Result<Expected> {
        let missing = self.dims().len() - dims.len();
        let summed: Vec<usize> = (0..self.dims().len())
            .filter(|&i| i < missing || dims[i - missing] != self.dims()[i])
            .collect();
        if summed.is_empty() {
            return Ok(self.clone());
        }
        let sum = |t: &Tensor| t.sum_keepdim(&summed[..])?.reshape(dims);
        let value = sum(&self.value)?;
        let magnitude = sum(&self.value.abs()?)?;
        let error = self.error.as_ref().map(sum).transpose()?;
        let count = self.value.elem_count() / value.elem_count().max(1);
        Expected::summed(value, error, &magnitude, count, self.whole, dtype)
    }

    /// Each number added to its place in a storage of zeros of this type.
    pub fn in_storage(&self, places: &[usize], len: usize, dtype: DType) -> Result<Expected> {
        let gather = |t: &Tensor| -> Result<(Vec<f64>, Vec<f64>)> {
            let (mut sums, mut magnitudes) = (vec![0.0; len], vec![0.0; len]);
            for (&place, number) in places.iter().zip(t.flatten_all()?.to_vec1::<f64>()?) {
                sums[place] += number;
                magnitudes[place] += number.abs();
            }
            Ok((sums, magnitudes))
        };
        let (sums, magnitudes) = gather(&self.value)?;
        let tensor = |numbers: Vec<f64>| Tensor::from_vec(numbers, len, &Device::Cpu);
        let error = match &self.error {
            Some(error) => Some(tensor(gather(error)?.0)?),
            None => None,
        };
        // Every element of a view that is broadcast stands for as many.
        let there = places.iter().collect::<HashSet<_>>().len();
        match places.len() / there {
            1 => Ok(Expected {
                value: tensor(sums)?,
                error,
                whole: self.whole,
            }),
            count => Expected::summed(tensor(sums)?, error, &tensor(magnitudes)?, count, self.whole, dtype),
        }
    }

    /// Whether `actual` is this, in a tensor of this type: shape, and every element.
    pub fn check(&self, actual: &Tensor, dtype: DType, what: &str) -> Result<std::result::Result<(), String>> {
        if actual.dtype() != dtype {
            return Ok(Err(format!("{what}: the dtype is {:?}, not {dtype:?}", actual.dtype())));
        }
        if actual.dims() != self.dims() {
            let wanted = self.dims();
            return Ok(Err(format!("{what}: the shape is {:?}, not {wanted:?}", actual.dims())));
        }
        let actual = actual.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        let actual: Vec<f32> = actual.flatten_all()?.to_vec1()?;
        let wanted: Vec<f64> = self.value.flatten_all()?.to_vec1()?;
        let errors: Option<Vec<f64>> = match &self.error {
            Some(error) => Some(error.flatten_all()?.to_vec1()?),
            None => None,
        };
        let bound = |i: usize| errors.as_ref().map_or(0.0, |errors| errors[i]);
        let wrong = |&i: &usize| {
            let range = held(dtype, wanted[i] - bound(i))..=held(dtype, wanted[i] + bound(i));
            // Whose error is not finite may be NaN as well.
            bound(i).is_finite() && !range.contains(&f64::from(actual[i]))
        };
        let Some(first) = (0..actual.len()).find(wrong) else {
            return Ok(Ok(()));
        };
        let count = (first..actual.len()).filter(wrong).count();
        let index = crate::harness::index_of(first, self.dims());
        Ok(Err(format!(
            "{what}: {count} of {} elements are wrong; {index:?} is {:e}, not {:e} (±{:.1e}) in {dtype:?}",
            actual.len(),
            actual[first],
            wanted[first],
            bound(first)
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, whole: bool) -> Vec<f64> {
        let number = |i: usize| ((i * 7919 + 13) % 7) as f64 - 3.0;
        (0..count)
            .map(|i| if whole { number(i) } else { 0.3 * number(i) + 0.1 })
            .collect()
    }

    fn expected(rows: usize, cols: usize, whole: bool) -> Expected {
        let value = Tensor::from_vec(numbers(rows * cols, whole), (rows, cols), &Device::Cpu).unwrap();
        Expected::exact(value, whole).unwrap()
    }

    /// Whether a product is taken for right whose element in the middle is off by so much: of whole numbers by the number
    /// itself, of others by that much of its Σ|a||b|.
    fn passes(whole: bool, precision: Precision, k: usize, off: f64) -> bool {
        let (a, b) = (expected(5, k, whole), expected(k, 6, whole));
        let product = a.product(&b, precision).unwrap();
        let magnitude = matmul(&a.value.abs().unwrap(), &b.value.abs().unwrap()).unwrap();
        let mut values: Vec<f64> = product.value.flatten_all().unwrap().to_vec1().unwrap();
        let magnitudes: Vec<f64> = magnitude.flatten_all().unwrap().to_vec1().unwrap();
        let middle = values.len() / 2;
        values[middle] += if whole { off } else { off * magnitudes[middle] };
        let actual = Tensor::from_vec(values, (5, 6), &Device::Cpu)
            .unwrap()
            .to_dtype(DType::F32)
            .unwrap();
        product.check(&actual, DType::F32, "product").unwrap().is_ok()
    }

    #[test]
    fn one_wrong_element_is_found() {
        for k in [1, 2, 9, 100, 3000] {
            for precision in Precision::ALL {
                assert!(passes(true, precision, k, 0.0) && passes(false, precision, k, 0.0));
                // The smallest error that there is in a whole sum, and a rounding error too many in any other.
                assert!(!passes(true, precision, k, 1.0), "{precision}, k {k}");
                assert!(
                    !passes(false, precision, k, 2.0 * sum_error(precision, k)),
                    "{precision}, k {k}"
                );
                assert!(
                    passes(false, precision, k, 0.5 * sum_error(precision, k)),
                    "{precision}, k {k}"
                );
            }
        }
        let same = |rows, columns| Expected {
            value: Tensor::full(0.3f64, (rows, columns), &Device::Cpu).unwrap(),
            error: None,
            whole: false,
        };
        let k = 5000;
        let product = same(1, k).product(&same(k, 1), Precision::Fp32Strict).unwrap();
        let in_order = (0..k).fold(0f32, |sum, _| (0.3f32).mul_add(0.3, sum));
        let in_order = Tensor::from_vec(vec![in_order], (1, 1), &Device::Cpu).unwrap();
        assert!(product.check(&in_order, DType::F32, "the same term").unwrap().is_ok());
        let nan = Tensor::full(f32::NAN, (5, 6), &Device::Cpu).unwrap();
        assert!(expected(5, 6, false)
            .check(&nan, DType::F32, "numbers")
            .unwrap()
            .is_err());
    }

    /// Numbers of 16 bits are right where they are next to what is wanted, and wrong one further.
    #[test]
    fn one_rounding_to_16_bits_is_right_and_a_second_one_is_not() {
        let one = |x: f64| Tensor::from_vec(vec![x], 1, &Device::Cpu).unwrap();
        let passes = |expected: &Expected, dtype: DType, got: f64| {
            let got = one(got).to_dtype(DType::F32).unwrap().to_dtype(dtype).unwrap();
            expected.check(&got, dtype, "a number").unwrap().is_ok()
        };
        for (dtype, ulp) in [(DType::F16, 1.0 / 1024.0), (DType::BF16, 1.0 / 128.0)] {
            let exact = Expected::exact(one(1.0 + 1.5 * ulp), false).unwrap();
            // A tie goes to the even one.
            let wanted = [1.0, 1.0 + ulp, 1.0 + 2.0 * ulp, 1.0 + 3.0 * ulp].map(|got| passes(&exact, dtype, got));
            assert_eq!(wanted, [false, false, true, false], "{dtype:?}");
            assert!(!passes(&exact, dtype, f64::NAN));
            let off = Expected {
                error: Some(one(0.1 * ulp)),
                ..exact.clone()
            };
            let wanted = [1.0, 1.0 + ulp, 1.0 + 2.0 * ulp, 1.0 + 3.0 * ulp].map(|got| passes(&off, dtype, got));
            assert_eq!(wanted, [false, true, true, false], "{dtype:?}");
            assert_eq!(
                exact.stored(dtype).unwrap().value.to_vec1::<f64>().unwrap(),
                [1.0 + 2.0 * ulp]
            );
            assert!(exact.stored(dtype).unwrap().error.is_none());
        }
        // 65504 is the largest number of FP16, and from the middle to the next one on numbers are infinite.
        let large = |x: f64| Expected::exact(one(x), true).unwrap();
        assert!(passes(&large(65519.0), DType::F16, 65504.0) && !passes(&large(65519.0), DType::F16, f64::INFINITY));
        assert!(passes(&large(65520.0), DType::F16, f64::INFINITY) && !passes(&large(65520.0), DType::F16, 65504.0));
        assert!(passes(&large(-65520.0), DType::F16, f64::NEG_INFINITY));
    }

    #[test]
    fn slopes_are_those_of_the_activations() {
        const STEP: f64 = 1e-6;
        for activation in [
            Activation::Identity,
            Activation::Relu,
            Activation::GeluTanh,
            Activation::GeluErf,
            Activation::Silu,
            Activation::Tanh,
            Activation::Sigmoid,
        ] {
            for i in -50..50 {
                let x = f64::from(i) * 0.1 + 0.05;
                let difference = (activate(activation, x + STEP) - activate(activation, x - STEP)) / (2.0 * STEP);
                let slope = slope(activation, x);
                assert!(
                    (slope - difference).abs() < 1e-7,
                    "{activation:?} at {x}: {slope}, not {difference}"
                );
                assert!(slope.abs() <= STEEPEST);
            }
        }
    }
}
