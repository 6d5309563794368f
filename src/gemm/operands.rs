//! The operands of a product: their elements, layouts and strides, one spelling for all.

use std::fmt;

/// Batch dimensions that one launch walks; more are walked on the host, launch by launch. Part of the kernel ABI.
pub const MAX_BATCH_DIMS: usize = 4;

/// What an element of an operand is. The numbers are the kernel ABI (`ElementType` in `gemm_args.cuh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum DType {
    /// IEEE single precision.
    #[default]
    F32 = 0,
    /// IEEE double precision: a few rungs of the ladder.
    F64 = 1,
    /// IEEE half precision: 5 bits of exponent, 10 of mantissa.
    F16 = 2,
    /// The upper half of a single-precision number: 8 bits of exponent, 7 of mantissa.
    BF16 = 3,
}

impl DType {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            DType::F16 | DType::BF16 => 2,
            DType::F32 => 4,
            DType::F64 => 8,
        }
    }

    /// Whether it is one of the types of 16 bits, whose products are exact in FP32.
    pub const fn is_16_bit(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// The most that rounding to nearest changes a number, as a part of it: half an ulp.
    pub const fn unit_roundoff(self) -> f64 {
        match self {
            DType::F16 => 1.0 / (1u64 << 11) as f64,
            DType::BF16 => 1.0 / (1u64 << 8) as f64,
            DType::F32 => 1.0 / (1u64 << 24) as f64,
            DType::F64 => 1.0 / (1u64 << 53) as f64,
        }
    }

    /// The name that command lines and result files use.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for DType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const ALL: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];
        ALL.into_iter().find(|dtype| dtype.name() == text).ok_or_else(|| {
            let names = ALL.map(DType::name).join(", ");
            format!("unknown element type '{text}': choose one of {names}")
        })
    }
}

/// Where the elements of one operand lie, relative to its first element. Strides count elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OperandLayout {
    /// From `(i, j)` to `(i + 1, j)`.
    pub row_stride: i64,
    /// From `(i, j)` to `(i, j + 1)`.
    pub col_stride: i64,
    /// From a matrix to the next one along each batch dimension, outermost first; 0 broadcasts.
    pub batch_strides: [i64; MAX_BATCH_DIMS],
    /// A power of two, in bytes, that the address of the first element is a multiple of. 16 enables vector access
    /// and TMA; more than 16 brings nothing.
    pub align: u32,
}

impl OperandLayout {
    /// A dense row-major matrix with `cols` columns, one matrix for the whole batch, well aligned.
    pub const fn row_major(cols: usize) -> Self {
        OperandLayout::strided(cols as i64, 1)
    }

    /// A dense matrix stored transposed (column-major) with `rows` rows, well aligned.
    pub const fn col_major(rows: usize) -> Self {
        OperandLayout::strided(1, rows as i64)
    }

    /// Any two strides, one matrix for the whole batch, well aligned.
    pub const fn strided(row_stride: i64, col_stride: i64) -> Self {
        OperandLayout {
            row_stride,
            col_stride,
            batch_strides: [0; MAX_BATCH_DIMS],
            align: 16,
        }
    }

    /// The same layout seen as the transposed matrix.
    pub const fn transposed(self) -> Self {
        OperandLayout {
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// The same layout with these batch strides (elements, outermost first).
    pub const fn with_batch_strides(self, batch_strides: [i64; MAX_BATCH_DIMS]) -> Self {
        OperandLayout { batch_strides, ..self }
    }

    /// The same layout at an address that is a multiple of `align` bytes only.
    pub const fn with_align(self, align: u32) -> Self {
        OperandLayout { align, ..self }
    }

    /// How kernels may access a `rows` × `cols` operand of this layout and of `dtype`.
    pub fn access(&self, rows: usize, cols: usize, dtype: DType) -> Access {
        // A dimension of one element is never stepped along: its stride may count as anything.
        let unit_col = self.col_stride == 1 || cols == 1;
        let unit_row = self.row_stride == 1 || rows == 1;
        let vector = 16 / dtype.size() as i64;
        let whole_vectors = |stride: i64, steps: usize| steps <= 1 || stride % vector == 0;
        let aligned = self.align >= 16 && self.batch_strides.iter().all(|stride| stride % vector == 0);
        match (unit_col, unit_row) {
            (true, _) if aligned && whole_vectors(self.row_stride, rows) && self.col_stride == 1 => Access::RowVector,
            (_, true) if aligned && whole_vectors(self.col_stride, cols) && self.row_stride == 1 => Access::ColVector,
            (true, _) if self.col_stride == 1 => Access::RowScalar,
            (_, true) if self.row_stride == 1 => Access::ColScalar,
            _ => Access::Strided,
        }
    }
}

/// How the 2D part of an operand may be accessed. Part of the kernel ABI (`Access` in `gemm_args.cuh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Access {
    /// Any strides: one element at a time.
    #[default]
    Strided = 0,
    /// Unit column stride, but rows do not all start on 16 bytes.
    RowScalar = 1,
    /// Unit row stride, but columns do not all start on 16 bytes.
    ColScalar = 2,
    /// Unit column stride, every row of every matrix starts on 16 bytes.
    RowVector = 3,
    /// Unit row stride, every column of every matrix starts on 16 bytes.
    ColVector = 4,
}

/// Something of every operand of a product: a layout, a stride, an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Operands<T> {
    /// Of the m × k operand.
    pub a: T,
    /// Of the k × n operand.
    pub b: T,
    /// Of what is added to the product, scaled by β.
    pub c: T,
    /// Of the result.
    pub d: T,
    /// Of what is added to every row.
    pub bias: T,
    /// Of what is added to the activation's result or multiplied with it.
    pub residual: T,
}

/// What the elements of each operand are.
pub type ElementTypes = Operands<DType>;

impl ElementTypes {
    /// The same type for every operand.
    pub const fn all_of(dtype: DType) -> Self {
        Operands {
            a: dtype,
            b: dtype,
            c: dtype,
            d: dtype,
            bias: dtype,
            residual: dtype,
        }
    }

    /// Whether kernels that multiply numbers of this type serve these operands: A and B are of it, and so are all others,
    /// which may be FP32 beside factors of 16 bits.
    pub fn served_by(self, factors: DType) -> bool {
        let others = [self.c, self.d, self.bias, self.residual];
        let fits = |other| other == factors || (factors.is_16_bit() && other == DType::F32);
        self.a == factors && self.b == factors && others.into_iter().all(fits)
    }
}

impl<T> Operands<T> {
    /// Something else of each operand.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> Operands<U> {
        Operands {
            a: f(self.a),
            b: f(self.b),
            c: f(self.c),
            d: f(self.d),
            bias: f(self.bias),
            residual: f(self.residual),
        }
    }

    /// Both of each operand.
    pub fn zip<U>(self, other: Operands<U>) -> Operands<(T, U)> {
        Operands {
            a: (self.a, other.a),
            b: (self.b, other.b),
            c: (self.c, other.c),
            d: (self.d, other.d),
            bias: (self.bias, other.bias),
            residual: (self.residual, other.residual),
        }
    }

    /// Whether it holds of every operand.
    pub fn all(self, mut holds: impl FnMut(T) -> bool) -> bool {
        let Operands {
            a,
            b,
            c,
            d,
            bias,
            residual,
        } = self;
        [a, b, c, d, bias, residual].into_iter().all(&mut holds)
    }
}

/// One batch dimension: its extent and the stride of each operand along it (0 for an operand that the problem lacks, and for
/// the bias, which all matrices share).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchDim {
    /// Matrices along this dimension.
    pub extent: usize,
    /// Elements between neighbours.
    pub strides: Operands<i64>,
}

/// Whether a step along the outer one of two dimensions leads to where the inner one of this extent ends.
pub(super) fn continues(outer: i64, inner: i64, extent: usize) -> bool {
    i64::try_from(extent).ok().and_then(|extent| inner.checked_mul(extent)) == Some(outer)
}

/// Drops dimensions of extent 1 and merges neighbours that every operand can walk with a single stride.
/// Outermost dimension first.
pub fn merge_batch_dims(dims: &mut Vec<BatchDim>) {
    dims.retain(|dim| dim.extent != 1);
    let mut merged: Vec<BatchDim> = Vec::with_capacity(dims.len());
    for dim in dims.iter() {
        let continues = |(outer, inner)| continues(outer, inner, dim.extent);
        match merged.last_mut() {
            Some(outer) if outer.strides.zip(dim.strides).all(continues) => {
                outer.extent = outer.extent.saturating_mul(dim.extent);
                outer.strides = dim.strides;
            }
            _ => merged.push(*dim),
        }
    }
    *dims = merged;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_follows_strides_and_alignment() {
        let row = OperandLayout::row_major(8);
        assert_eq!(row.access(4, 8, DType::F32), Access::RowVector);
        assert_eq!(row.with_align(4).access(4, 8, DType::F32), Access::RowScalar);
        assert_eq!(OperandLayout::row_major(7).access(4, 7, DType::F32), Access::RowScalar);
        assert_eq!(row.transposed().access(8, 4, DType::F32), Access::ColVector);
        assert_eq!(OperandLayout::col_major(7).access(7, 4, DType::F32), Access::ColScalar);
        assert_eq!(OperandLayout::strided(16, 2).access(4, 8, DType::F32), Access::Strided);
        let odd_batch = row.with_batch_strides([0, 0, 0, 33]);
        assert_eq!(odd_batch.access(4, 8, DType::F32), Access::RowScalar);
    }

    #[test]
    fn a_single_row_or_column_is_not_hindered_by_its_stride() {
        // A row of 8 out of a matrix with an odd leading dimension: nothing steps along the rows.
        let row = OperandLayout::strided(7, 1);
        assert_eq!(row.access(1, 8, DType::F32), Access::RowVector);
        let column = OperandLayout::strided(1, 7);
        assert_eq!(column.access(8, 1, DType::F32), Access::ColVector);
        // A zero stride broadcasts: it is a multiple of everything.
        let broadcast = OperandLayout::strided(0, 1);
        assert_eq!(broadcast.access(9, 8, DType::F32), Access::RowVector);
    }
}
