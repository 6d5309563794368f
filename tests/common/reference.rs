//! What a product must be, as far as rounding allows: on a GPU and in the emulator.
//!
//! Bound: |d − ref| ≤ C0·ε·√k·|α|·Σ|a||b| + C1·ε·(|β·c| + |bias| + |residual| + |ref|) for each element, and half an
//! ulp of D's type where that has 16 bits.

use candle_sgemm::gemm::kernel::spec::Arithmetic;
use candle_sgemm::gemm::operands::MAX_BATCH_DIMS;
use candle_sgemm::gemm::{Activation, Combine, DType, GemmProblem, OperandLayout, Plan, Precision};
use half::{bf16, f16};

/// Rounding errors of a sum of k products, in units of ε·√k·Σ|a||b|. A sum in order keeps well below 1 on random data;
/// a lost or doubled product of a sum of a thousand is some thousand times more.
pub const C0: f64 = 4.0;
/// With operands rounded to TF32, this much of Σ|a||b| on top: two operands, each to 10 bits of mantissa.
pub const TF32_ERROR: f64 = 2.0 / 1024.0;
/// Rounding errors of the epilogue, in units of ε times its terms.
pub const C1: f64 = 16.0;

/// Of so many elements, no few can spoil an average.
pub const MANY: usize = 100;

/// The Frobenius error that a bare product of [`MANY`] ordinary numbers or more may have by this plan, relative: for sums of its arithmetic
/// and depth, and for the rounding of the result.
pub fn frobenius_limit(plan: &Plan) -> f64 {
    let problem = &plan.problem;
    let (epsilon, k) = (f64::from(f32::EPSILON), problem.k as f64);
    let sums = match plan.kernel.arithmetic {
        _ if problem.types.a == DType::F64 => return f64::EPSILON * (1.0 + 0.2 * k.sqrt()),
        Arithmetic::Ffma => epsilon * (1.0 + 0.2 * (plan.accumulation_depth() as f64).sqrt()),
        // Tensor cores cut off what a sum has no bits for, every time by up to an ulp and to the same side.
        Arithmetic::Half => epsilon * (1.0 + 0.02 * k),
        Arithmetic::Tf32x3 => epsilon * (2.0 + 0.05 * k.sqrt()),
        Arithmetic::Tf32 => TF32_ERROR,
    };
    sums + match problem.types.d {
        DType::F16 => f64::from(f16::EPSILON) / 2.0,
        DType::BF16 => f64::from(bf16::EPSILON) / 2.0,
        _ => 0.0,
    }
}

/// Calls `visit` with the offset of every element of a batch of rows × cols matrices, relative to the first.
pub fn walk(problem: &GemmProblem, layout: &OperandLayout, rows: usize, cols: usize, mut visit: impl FnMut(usize)) {
    for batch in 0..problem.batch() {
        for row in 0..rows {
            for col in 0..cols {
                visit(place(problem, layout, batch, row, col));
            }
        }
    }
}

/// The offset of an element, relative to the first.
pub fn place(problem: &GemmProblem, layout: &OperandLayout, mut batch: usize, row: usize, col: usize) -> usize {
    let mut offset = row as i64 * layout.row_stride + col as i64 * layout.col_stride;
    for dim in (0..MAX_BATCH_DIMS).rev() {
        offset += (batch % problem.batch_dims[dim]) as i64 * layout.batch_strides[dim];
        batch /= problem.batch_dims[dim];
    }
    offset as usize
}

/// What one element of D is made of.
pub struct Terms {
    /// Σ a·b
    pub sum: f64,
    /// Σ |a||b|
    pub magnitude: f64,
    /// β·c
    pub from_c: f64,
    pub bias: f64,
    pub residual: Option<f64>,
}

/// The element, and how far a kernel's may be from it.
pub fn element(problem: &GemmProblem, alpha: f64, terms: &Terms) -> (f64, f64) {
    let (value, bound) = unrounded(problem, problem.epilogue.activation, alpha, terms);
    (value, bound + half_ulp(problem.types.d, value.abs() + bound))
}

/// The same where columns are gated: of the two columns that the element is made of.
pub fn gated_element(problem: &GemmProblem, alpha: f64, [gate, up]: [&Terms; 2]) -> (f64, f64) {
    let (gate, gate_off) = unrounded(problem, problem.epilogue.activation, alpha, gate);
    let (up, up_off) = unrounded(problem, Activation::Identity, alpha, up);
    let value = gate * up;
    let bound =
        gate.abs() * up_off + up.abs() * gate_off + gate_off * up_off + C1 * f64::from(f32::EPSILON) * value.abs();
    (value, bound + half_ulp(problem.types.d, value.abs() + bound))
}

/// A row of A as the norm with these weights makes it.
pub fn normed(row: &[f64], weight: &[f64], epsilon: f64) -> Vec<f64> {
    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    let factor = 1.0 / (mean + epsilon).sqrt();
    row.iter().zip(weight).map(|(x, weight)| x * weight * factor).collect()
}

/// The element before it is rounded to D's type.
fn unrounded(problem: &GemmProblem, activation: Activation, alpha: f64, terms: &Terms) -> (f64, f64) {
    let &Terms {
        sum,
        magnitude,
        from_c,
        bias,
        residual,
    } = terms;
    let skip = residual.unwrap_or(0.0);
    let activated = activate(activation, alpha * sum + from_c + bias);
    let value = match (residual, problem.epilogue.combine) {
        (Some(_), Combine::Multiply) => activated * skip, // hardly larger than 1
        _ => activated + skip,
    };
    let rounding = match problem.precision {
        Precision::Tf32 => TF32_ERROR * alpha.abs() * magnitude,
        _ => 0.0,
    };
    let epsilon = match problem.types.a {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON), // sums of 16-bit numbers are FP32
    };
    let error = C0 * (problem.k as f64).sqrt() * alpha.abs() * magnitude
        + C1 * (from_c.abs() + bias.abs() + skip.abs() + value.abs());
    // The slope of every activation is below 1.2.
    (value, 1.2 * (epsilon * error + rounding))
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Identity => x,
        Activation::Relu => x.max(0.0),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        }
        Activation::GeluErf => x * 0.5 * candle_core::cpu::erf::erfc_f64(-x * std::f64::consts::FRAC_1_SQRT_2),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        _ => unimplemented!("{activation:?}"),
    }
}

/// What rounding the result to D's type may add, where that is coarser than FP32.
pub fn half_ulp(dtype: DType, value: f64) -> f64 {
    /// Half of the least positive number of `f16`.
    const LEAST: f64 = 1.0 / (1u64 << 25) as f64;
    match dtype {
        DType::F16 => (dtype.unit_roundoff() * value).max(LEAST),
        DType::BF16 => dtype.unit_roundoff() * value,
        _ => 0.0,
    }
}
