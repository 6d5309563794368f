//! What is asked: sizes, strides, precision and epilogue of a matrix multiplication, without data.

use super::operands::{
    continues, merge_batch_dims, Access, BatchDim, DType, ElementTypes, OperandLayout, Operands, MAX_BATCH_DIMS,
};
use std::ops::Deref;

pub use crate::precision::Precision;

/// Sizes are handed to kernels as 32-bit integers (offsets and strides are 64-bit), and what a kernel counts with may go so
/// far beyond the end without leaving their range. A block that goes on to the next of its matrices does so by up to 65535,
/// which is what a grid has at most along z; of k, a block takes up to 4096 at once (`gemv_stream_bf16_m1_k4096`,
/// `gemv_ring_bf16_m8`); tiles are smaller. The mirror of `kMaxOvershoot` in `cuda/abi/gemm_args.cuh`, by which the kernels
/// check their steps.
pub(crate) const MAX_OVERSHOOT: usize = 65_535;
/// The largest m, n, k and batch of a problem.
pub const MAX_SIZE: usize = i32::MAX as usize - MAX_OVERSHOOT;

/// The function applied to `α·acc + β·C + bias`. Formulas are candle's own; the numbers are the kernel ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
#[non_exhaustive]
pub enum Activation {
    /// `x`
    #[default]
    Identity = 0,
    /// `max(x, 0)`
    Relu = 1,
    /// `Tensor::gelu`: the tanh approximation.
    GeluTanh = 2,
    /// `Tensor::gelu_erf`: `x·Φ(x)`.
    GeluErf = 3,
    /// `x·sigmoid(x)`
    Silu = 4,
    /// `tanh(x)`
    Tanh = 5,
    /// `1 / (1 + exp(-x))`
    Sigmoid = 6,
}

impl Activation {
    /// All activations, in the order of their numbers.
    pub const ALL: [Activation; 7] = [
        Activation::Identity,
        Activation::Relu,
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::Silu,
        Activation::Tanh,
        Activation::Sigmoid,
    ];
}

/// What becomes of the activation's result and the residual. The numbers are the kernel ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u16)]
#[non_exhaustive]
pub enum Combine {
    /// Their sum.
    #[default]
    Add = 0,
    /// Their product, element by element.
    Multiply = 1,
}

/// What happens to an accumulator before it is stored: `D ← activation(α·acc + β·C + bias) + residual`, or times the
/// residual.
///
/// The values of α and β are not part of the problem: they travel with the pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Epilogue {
    /// Where C lies, if β ≠ 0 or β is unknown. C may be D itself.
    pub c: Option<OperandLayout>,
    /// Whether α and β are in device memory, for the kernel to read. If β is 0 there, C is not read.
    pub device_scalars: bool,
    /// Whether a bias of `n` elements is added, one a column.
    pub bias: bool,
    /// What is applied to the sum.
    pub activation: Activation,
    /// Where the residual lies.
    pub residual: Option<OperandLayout>,
    /// What is done with the residual, last of all.
    pub combine: Combine,
    /// Whether columns are gated: those of A·B come in pairs, gate and up in turn, and D has `activation(gate + bias)·(up + bias)` of each.
    /// Then there is no C and no residual, and n is even.
    pub gated: bool,
}

impl Epilogue {
    /// Whether only C and the values of α and β are used, which every kernel does.
    pub fn is_plain(&self) -> bool {
        !self.bias
            && !self.device_scalars
            && !self.gated
            && self.activation == Activation::Identity
            && self.residual.is_none()
    }
}

/// `D[m×n] ← activation(α·A[m×k]·B[k×n] + β·C[m×n] + bias[n]) + residual[m×n]` (or `· residual[m×n]`), for every matrix
/// of a batch. Two things that only some kernels do come on top: a norm of A's rows, and gated columns.
///
/// A plain value: equal problems have equal plans, so it is also the key under which plans are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmProblem {
    /// Rows of A, C and D.
    pub m: usize,
    /// Columns of B, C and D.
    pub n: usize,
    /// Columns of A and rows of B.
    pub k: usize,
    /// Batch dimensions, outermost first, 1 where unused.
    pub batch_dims: [usize; MAX_BATCH_DIMS],
    /// What the elements of each operand are; of operands that the problem lacks, the type of A.
    pub types: ElementTypes,
    /// What arithmetic may be used for factors that are FP32. Products of 16-bit numbers are exact at every precision, and
    /// their sums are FP32.
    pub precision: Precision,
    /// Layout of the m × k operand.
    pub a: OperandLayout,
    /// Layout of the k × n operand.
    pub b: OperandLayout,
    /// Layout of the m × n result; its column stride is 1.
    pub d: OperandLayout,
    /// C, bias, activation, residual.
    pub epilogue: Epilogue,
    /// Whether rows of A are normed: an element counts as itself times its column's weight, divided by the root of ε and the row's mean
    /// square. The weights, which lie one after the other from a multiple of 16 bytes on, are of A's type; they and ε travel with the
    /// pointers.
    pub normed: bool,
}

impl GemmProblem {
    /// A single product of `a` (m × k) and `b` (k × n) into a dense row-major result.
    pub const fn new(m: usize, n: usize, k: usize, a: OperandLayout, b: OperandLayout) -> Self {
        GemmProblem {
            m,
            n,
            k,
            batch_dims: [1; MAX_BATCH_DIMS],
            types: ElementTypes::all_of(DType::F32),
            precision: Precision::Fp32,
            a,
            b,
            d: OperandLayout::row_major(n),
            epilogue: Epilogue {
                c: None,
                device_scalars: false,
                bias: false,
                activation: Activation::Identity,
                residual: None,
                combine: Combine::Add,
                gated: false,
            },
            normed: false,
        }
    }

    /// A single product of dense row-major matrices (NN).
    pub const fn row_major(m: usize, n: usize, k: usize) -> Self {
        GemmProblem::new(m, n, k, OperandLayout::row_major(k), OperandLayout::row_major(n))
    }

    /// Columns of D: n, or half of them where they are gated.
    pub const fn result_columns(&self) -> usize {
        match self.epilogue.gated {
            true => self.n / 2,
            false => self.n,
        }
    }

    /// Matrices in the batch; the largest number there is where that would be too small.
    pub fn batch(&self) -> usize {
        self.batch_dims.iter().fold(1, |batch, &dim| batch.saturating_mul(dim))
    }

    /// Floating-point operations: a multiplication and an addition for each of batch·m·n·k.
    pub fn flops(&self) -> f64 {
        2.0 * self.batch() as f64 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// Bytes that A, B and D take, each element once: the least that has to move through memory. Operands that are
    /// broadcast along the batch count once.
    pub fn min_bytes(&self) -> f64 {
        let matrices = |layout: &OperandLayout| -> f64 {
            let dims = self.batch_dims.iter().zip(layout.batch_strides);
            dims.filter(|(_, stride)| *stride != 0)
                .map(|(&dim, _)| dim as f64)
                .product()
        };
        let (m, n, k) = (self.m as f64, self.n as f64, self.k as f64);
        let bytes = self.types.map(|dtype| dtype.size() as f64);
        m * k * matrices(&self.a) * bytes.a
            + k * n * matrices(&self.b) * bytes.b
            + m * self.result_columns() as f64 * self.batch() as f64 * bytes.d
    }

    /// The storage order of A and B: `NN`, `NT`, `TN` or `TT` (T: stored transposed), or with `*` for an operand that
    /// has neither a unit row stride nor a unit column stride.
    pub fn layout_name(&self) -> String {
        let letter = |access| match access {
            Access::RowScalar | Access::RowVector => 'N',
            Access::ColScalar | Access::ColVector => 'T',
            Access::Strided => '*',
        };
        let Operands { a, b, .. } = self.accesses();
        [letter(a), letter(b)].iter().collect()
    }

    /// How each operand may be accessed; [`Access::Strided`] for those that the problem lacks, and for the bias.
    pub fn accesses(&self) -> Operands<Access> {
        let GemmProblem { m, n, k, types, .. } = *self;
        let columns = self.result_columns();
        let result = |layout: &OperandLayout, dtype| layout.access(m, columns, dtype);
        let optional = |layout: Option<OperandLayout>, dtype| layout.map_or(Access::Strided, |at| result(&at, dtype));
        Operands {
            a: self.a.access(m, k, types.a),
            b: self.b.access(k, n, types.b),
            c: optional(self.epilogue.c, types.c),
            d: result(&self.d, types.d),
            bias: Access::Strided,
            residual: optional(self.epilogue.residual, types.residual),
        }
    }

    /// The type of A's and B's elements, which kernels multiply.
    pub const fn dtype(&self) -> DType {
        self.types.a
    }

    /// Checks what every kernel takes for granted.
    ///
    /// # Errors
    ///
    /// A sentence with the numbers: a size of 0 (the caller answers those without a kernel), a size or batch above
    /// [`MAX_SIZE`], or a result whose columns are not adjacent.
    pub fn validate(&self) -> Result<(), String> {
        let (m, n, k, batch) = (self.m, self.n, self.k, self.batch());
        if m == 0 || n == 0 || k == 0 || batch == 0 {
            return Err(format!(
                "an empty product (m {m}, n {n}, k {k}, batch {batch}) has no plan: its result is β·C or empty"
            ));
        }
        if m.max(n).max(k).max(batch) > MAX_SIZE {
            return Err(format!(
                "m {m}, n {n}, k {k} and batch {batch} must each be at most {MAX_SIZE}; split the product"
            ));
        }
        let bytes = [m, n, batch, self.types.d.size()]
            .iter()
            .fold(1u128, |product, &size| product * size as u128);
        if bytes > isize::MAX as u128 {
            return Err(format!(
                "the result of m {m}, n {n} and batch {batch} has {bytes} bytes, more than any memory: split the product"
            ));
        }
        let Epilogue { c, residual, gated, .. } = self.epilogue;
        if gated && (!n.is_multiple_of(2) || c.is_some() || residual.is_some()) {
            return Err(format!(
                "gated columns come in pairs, without C and residual, but there are {n} columns, {} C and {} residual",
                if c.is_some() { "a" } else { "no" },
                if residual.is_some() { "a" } else { "no" }
            ));
        }
        if self.d.col_stride != 1 && self.result_columns() > 1 {
            return Err(format!(
                "the result's columns must be adjacent, but its column stride is {}",
                self.d.col_stride
            ));
        }
        Ok(())
    }

    /// The same problem as plans and kernels see it.
    ///
    /// # Errors
    ///
    /// Those of [`GemmProblem::validate`].
    pub fn folded(&self) -> Result<FoldedProblem, String> {
        self.validate()?;
        Ok(FoldedProblem(self.with_fewest_dims()))
    }

    /// The same result with fewer batch dimensions or none: dimensions of one element are dropped, neighbours that can
    /// be walked with one stride are merged, and a batch that shares one B becomes more rows of A (the case of a
    /// linear layer applied to an input of rank 3).
    pub(crate) fn with_fewest_dims(&self) -> Self {
        let layouts = self.layouts();
        let mut dims: Vec<BatchDim> = (0..MAX_BATCH_DIMS)
            .map(|i| BatchDim {
                extent: self.batch_dims[i],
                strides: layouts.map(|layout| layout.map_or(0, |layout| layout.batch_strides[i])),
            })
            .collect();
        merge_batch_dims(&mut dims);

        let mut folded = *self;
        // Rows and the innermost batch dimension can be one where B is shared and the rows go on in step. A matrix of
        // one row has no row stride to keep: the batch's takes its place.
        if let Some(inner) = dims.last().copied() {
            let rows = layouts.map(|layout| layout.map_or(0, |layout| layout.row_stride));
            let in_step = |(inner, row)| self.m == 1 || continues(inner, row, self.m);
            let fits = self.m.saturating_mul(inner.extent) <= MAX_SIZE;
            // B has no rows of the result.
            let steps = Operands {
                b: (0, 0),
                ..inner.strides.zip(rows)
            };
            if fits && inner.strides.b == 0 && steps.all(in_step) {
                folded.m = self.m * inner.extent;
                dims.pop();
                if self.m == 1 {
                    folded.a.row_stride = inner.strides.a;
                    folded.d.row_stride = inner.strides.d;
                    if let Some(c) = folded.epilogue.c.as_mut() {
                        c.row_stride = inner.strides.c;
                    }
                    if let Some(residual) = folded.epilogue.residual.as_mut() {
                        residual.row_stride = inner.strides.residual;
                    }
                }
            }
        }
        folded.batch_dims = [1; MAX_BATCH_DIMS];
        let mut strides = [Operands::default(); MAX_BATCH_DIMS];
        let first = MAX_BATCH_DIMS - dims.len();
        for (i, dim) in dims.iter().enumerate() {
            folded.batch_dims[first + i] = dim.extent;
            strides[first + i] = dim.strides;
        }
        folded.a.batch_strides = strides.map(|strides| strides.a);
        folded.b.batch_strides = strides.map(|strides| strides.b);
        folded.d.batch_strides = strides.map(|strides| strides.d);
        if let Some(c) = folded.epilogue.c.as_mut() {
            c.batch_strides = strides.map(|strides| strides.c);
        }
        if let Some(residual) = folded.epilogue.residual.as_mut() {
            residual.batch_strides = strides.map(|strides| strides.residual);
        }
        folded
    }

    /// Where the operands lie, those that the problem has. The bias has no layout.
    pub fn layouts(&self) -> Operands<Option<OperandLayout>> {
        Operands {
            a: Some(self.a),
            b: Some(self.b),
            c: self.epilogue.c,
            d: Some(self.d),
            bias: None,
            residual: self.epilogue.residual,
        }
    }
}

/// A problem that can be computed, with as few batch dimensions as it has: checked and folded once, by
/// [`GemmProblem::folded`]. Plans are made for it, and equal ones have the same measured choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FoldedProblem(GemmProblem);

impl FoldedProblem {
    /// The same sizes with A and B laid out otherwise.
    pub fn with_factors(self, a: OperandLayout, b: OperandLayout) -> Self {
        FoldedProblem(GemmProblem { a, b, ..self.0 })
    }

    /// The same with as few batch dimensions as it has now that its layouts are these.
    pub(crate) fn refolded(self) -> Self {
        FoldedProblem(self.0.with_fewest_dims())
    }

    /// The same with other arithmetic allowed.
    pub fn with_precision(self, precision: Precision) -> Self {
        FoldedProblem(GemmProblem { precision, ..self.0 })
    }
}

impl Deref for FoldedProblem {
    type Target = GemmProblem;

    fn deref(&self) -> &GemmProblem {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_the_names_of_the_field() {
        let (n, t) = (OperandLayout::row_major(64), OperandLayout::col_major(64));
        let name = |a, b| GemmProblem::new(64, 64, 64, a, b).layout_name();
        assert_eq!(name(n, n), "NN");
        assert_eq!(name(n, t), "NT");
        assert_eq!(name(t, n), "TN");
        assert_eq!(name(t, t), "TT");
        assert_eq!(name(OperandLayout::strided(128, 2), n), "*N");
    }

    fn batched(dims: [usize; 4], a: [i64; 4], b: [i64; 4], d: [i64; 4]) -> GemmProblem {
        let mut problem = GemmProblem::row_major(3, 5, 7);
        problem.batch_dims = dims;
        problem.a.batch_strides = a;
        problem.b.batch_strides = b;
        problem.d.batch_strides = d;
        problem
    }

    #[test]
    fn dense_batches_merge_into_one_dimension() {
        let problem = batched([2, 1, 4, 6], [504, 0, 126, 21], [840, 0, 210, 35], [360, 0, 90, 15]);
        let folded = problem.folded().unwrap();
        assert_eq!(folded.batch_dims, [1, 1, 1, 48]);
        assert_eq!(folded.a.batch_strides, [0, 0, 0, 21]);
        assert_eq!(folded.b.batch_strides, [0, 0, 0, 35]);
        assert_eq!(folded.batch(), problem.batch());
    }

    #[test]
    fn a_batch_that_shares_b_becomes_rows() {
        let folded = batched([1, 1, 4, 6], [0, 0, 126, 21], [0; 4], [0, 0, 90, 15])
            .folded()
            .unwrap();
        assert_eq!((folded.m, folded.batch()), (3 * 24, 1));
    }

    #[test]
    fn a_batch_of_single_rows_takes_the_stride_of_the_batch() {
        let mut problem = batched([1, 1, 1, 6], [0, 0, 0, 16], [0; 4], [0, 0, 0, 5]);
        problem.m = 1;
        let folded = problem.folded().unwrap();
        assert_eq!((folded.m, folded.batch()), (6, 1));
        assert_eq!((folded.a.row_stride, folded.d.row_stride), (16, 5));
    }

    #[test]
    fn a_batch_that_would_be_too_many_rows_stays_a_batch() {
        let mut problem = batched([1, 1, 1, 1 << 20], [0, 0, 0, 7 << 20], [0; 4], [0, 0, 0, 5 << 20]);
        problem.m = 1 << 20;
        let folded = problem.folded().unwrap();
        assert_eq!((folded.m, folded.batch()), (1 << 20, 1 << 20));
    }

    #[test]
    fn rows_stay_apart_where_they_do_not_continue() {
        // A is padded between matrices: 24 instead of 3·7 elements.
        let folded = batched([1, 1, 1, 6], [0, 0, 0, 24], [0; 4], [0, 0, 0, 15])
            .folded()
            .unwrap();
        assert_eq!((folded.m, folded.batch_dims), (3, [1, 1, 1, 6]));
    }

    #[test]
    fn dimensions_that_do_not_line_up_stay_apart() {
        let problem = batched([1, 1, 4, 6], [0, 0, 0, 21], [0, 0, 35, 35], [0, 0, 90, 15]);
        assert_eq!(problem.folded().unwrap().batch_dims, [1, 1, 4, 6]);
    }

    #[test]
    fn validation_names_the_numbers() {
        let mut empty = GemmProblem::row_major(1, 2, 3);
        empty.batch_dims = [usize::MAX, usize::MAX, 3, 0];
        assert!(empty.validate().unwrap_err().contains("batch 0"));
        let error = GemmProblem::row_major(0, 2, 3).validate().unwrap_err();
        assert!(error.contains("m 0, n 2, k 3"), "{error}");
        let error = GemmProblem::row_major(1 << 31, 2, 3).validate().unwrap_err();
        assert!(error.contains("2147483648"), "{error}");
        let mut many = GemmProblem::row_major(2, 3, 4);
        many.batch_dims = [1 << 20, 1 << 20, 1 << 20, 1 << 20];
        assert!(many.folded().unwrap_err().contains("batch"));
        // Each size is allowed, the result has 2^64 bytes and more.
        let huge = GemmProblem::row_major(1 << 30, 1 << 30, 1);
        let mut batch = GemmProblem::row_major(1 << 30, 1 << 30, 1);
        batch.batch_dims = [1, 1, 1, 1 << 30];
        for problem in [huge, batch] {
            let error = problem.validate();
            assert_eq!(error.is_err(), problem.batch() > 1, "{error:?}");
        }
        assert!(batch.validate().unwrap_err().contains("1073741824"));
        let mut strided = GemmProblem::row_major(4, 4, 4);
        strided.d.col_stride = 2;
        assert!(strided.validate().unwrap_err().contains("column stride is 2"));
    }

    #[test]
    fn precision_names_round_trip() {
        for precision in Precision::ALL {
            assert_eq!(precision.name().parse::<Precision>().unwrap(), precision);
        }
        assert!("fp16".parse::<Precision>().unwrap_err().contains("fp32-strict"));
    }
}
