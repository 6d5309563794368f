//! A call of cuBLAS as plain data, and the row-major problem that it stands for.

use crate::device::VECTOR_BYTES;
use crate::gemm::kernel::spec::Role;
use crate::gemm::kernel::table::TABLE;
use crate::gemm::launch::args::Addresses;
use crate::gemm::operands::Operands;
use crate::gemm::{DType, ElementTypes, GemmProblem, OperandLayout, Precision};
use std::fmt;

/// `CUDA_R_32F` of `cudaDataType`.
pub const R_32F: u32 = 0;
/// `CUDA_R_16F` of `cudaDataType`.
pub const R_16F: u32 = 2;
/// `CUDA_R_16BF` of `cudaDataType`.
pub const R_16BF: u32 = 14;

/// The values of `cublasComputeType_t` that stand for FP32 products.
pub mod compute {
    /// FP32, with the math mode of the handle.
    pub const F32: u32 = 68;
    /// FP32 multiply-adds only.
    pub const F32_PEDANTIC: u32 = 69;
    /// TF32 allowed.
    pub const F32_FAST_TF32: u32 = 77;
}

/// The values of `cublasMath_t` that stand for FP32 products.
pub mod math {
    /// No reduced precision.
    pub const DEFAULT: u32 = 0;
    /// Deprecated; for FP32 the default.
    pub const TENSOR_OP: u32 = 1;
    /// FP32 multiply-adds only.
    pub const PEDANTIC: u32 = 2;
    /// TF32 allowed.
    pub const TF32_TENSOR_OP: u32 = 3;
    /// The bits above these modify a mode for operands of half precision.
    pub const MODES: u32 = 0xf;
}

/// Bytes of α and of β.
const SCALAR: u64 = 4;
/// More alignment than this brings nothing.
const MAX_ALIGN: u64 = VECTOR_BYTES as u64;

/// A matrix, or the first of a batch, as cuBLAS gets it: column-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// Device address.
    pub address: u64,
    /// `cudaDataType`.
    pub dtype: u32,
    /// Leading dimension: elements from a column to the next.
    pub ld: i32,
    /// Elements from a matrix of the batch to the next.
    pub stride: i64,
}

/// `C ← α·op(A)·op(B) + β·C`, column-major, as cuBLAS gets it. α and β travel apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The function that was called.
    pub function: &'static str,
    /// `cublasOperation_t` of A and of B.
    pub transposed: [u32; 2],
    /// Rows of op(A) and C.
    pub m: i32,
    /// Columns of op(B) and C.
    pub n: i32,
    /// Columns of op(A), rows of op(B).
    pub k: i32,
    /// The first operand.
    pub a: Matrix,
    /// The second operand.
    pub b: Matrix,
    /// The result.
    pub c: Matrix,
    /// Matrices in the batch.
    pub batch: i32,
    /// `cublasComputeType_t`.
    pub compute: u32,
    /// `cublasMath_t` of the handle.
    pub math: u32,
}

/// α and β of a call, as the handle's pointer mode has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalars {
    /// In host memory: their values.
    Values(f32, f32),
    /// In device memory, where only a kernel can read them: their addresses.
    InMemory(u64, u64),
}

impl Scalars {
    /// The values, 1 and 0 where only the device knows them.
    pub fn values(&self) -> (f32, f32) {
        match *self {
            Scalars::Values(alpha, beta) => (alpha, beta),
            Scalars::InMemory(..) => (1.0, 0.0),
        }
    }
}

/// Why a call went to cuBLAS untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum PassedOn {
    /// Matrices of types that no kernel multiplies: other than FP32, FP16 and BF16, or mixed otherwise than 16-bit factors with
    /// an FP32 result.
    DType,
    /// A compute type or math mode other than FP32 and TF32.
    Compute,
    /// A size of 0, or α = 0: there is no product to compute.
    Empty,
    /// Arguments that cuBLAS should judge: negative sizes or strides, small leading dimensions, misaligned or null addresses.
    Arguments,
    /// The results of the batch share memory.
    Overlap,
    /// A GPU that no kernel of this build runs on.
    Device,
    /// A function that is not taken over, whatever it multiplies.
    Function(&'static str),
}

impl fmt::Display for PassedOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PassedOn::Function(name) => return write!(f, "{name}, which is not taken over"),
            PassedOn::DType => "matrices of types that no kernel multiplies",
            PassedOn::Compute => "a compute type or math mode other than FP32 and TF32",
            PassedOn::Empty => "no product to compute (a size of 0, or alpha = 0)",
            PassedOn::Arguments => "arguments that are for cuBLAS to judge",
            PassedOn::Overlap => "results that share memory",
            PassedOn::Device => "a GPU that no kernel of this build runs on",
        })
    }
}

impl Call {
    /// The precision that the call asks for, unless one is `wanted` of all calls.
    ///
    /// # Errors
    ///
    /// If this is no product of FP32 or 16-bit matrices in FP32 or TF32 arithmetic. Then α and β may have another type too, and
    /// must not be read.
    pub fn precision(&self, wanted: Option<Precision>) -> Result<Precision, PassedOn> {
        self.types()?;
        let asked = match (self.compute, self.math & math::MODES) {
            (compute::F32_PEDANTIC, _) | (compute::F32, math::PEDANTIC) => Precision::Fp32Strict,
            (compute::F32_FAST_TF32, _) | (compute::F32, math::TF32_TENSOR_OP) => Precision::Tf32,
            (compute::F32, math::DEFAULT | math::TENSOR_OP) => Precision::Fp32,
            _ => return Err(PassedOn::Compute),
        };
        Ok(wanted.unwrap_or(asked))
    }

    /// What the elements are; C is D.
    ///
    /// # Errors
    ///
    /// If no kernel multiplies such matrices.
    fn types(&self) -> Result<ElementTypes, PassedOn> {
        let of = |matrix: Matrix| match matrix.dtype {
            R_32F => Ok(DType::F32),
            R_16F => Ok(DType::F16),
            R_16BF => Ok(DType::BF16),
            _ => Err(PassedOn::DType),
        };
        let (factors, result) = (of(self.a)?, of(self.c)?);
        let types = Operands {
            b: of(self.b)?,
            c: result,
            d: result,
            ..ElementTypes::all_of(factors)
        };
        let multiplied = TABLE
            .iter()
            .any(|spec| spec.role == Role::Production && types.served_by(spec.dtype));
        multiplied.then_some(types).ok_or(PassedOn::DType)
    }

    /// The row-major problem and where its operands are.
    ///
    /// A column-major C is its transpose in row-major order, and `Cᵀ = op(B)ᵀ·op(A)ᵀ`: B comes first, m and n change
    /// places, and each leading dimension becomes the stride of the dimension that it steps along.
    ///
    /// # Errors
    ///
    /// If there is nothing to compute, or something that cuBLAS should judge.
    pub fn problem(&self, precision: Precision, scalars: Scalars) -> Result<(GemmProblem, Addresses), PassedOn> {
        let size = |size: i32| usize::try_from(size).map_err(|_| PassedOn::Arguments);
        let (m, n, k, batch) = (size(self.m)?, size(self.n)?, size(self.k)?, size(self.batch)?);
        let (no_product, reads_c, [alpha_at, beta_at]) = match scalars {
            Scalars::Values(alpha, beta) => (alpha == 0.0, beta != 0.0, [0, 0]),
            Scalars::InMemory(alpha, beta) => (false, true, [alpha, beta]),
        };
        if m == 0 || n == 0 || k == 0 || batch == 0 || no_product {
            return Err(PassedOn::Empty);
        }
        if ![alpha_at, beta_at].iter().all(|address| address.is_multiple_of(SCALAR)) {
            return Err(PassedOn::Arguments);
        }
        // `rows` are those of the matrix as cuBLAS stores it.
        let types = self.types()?;
        let operand = |matrix: &Matrix, dtype: DType, rows: usize, ld_steps_rows: bool| {
            let aligned = matrix.address != 0 && matrix.address.is_multiple_of(dtype.size() as u64);
            if !aligned || matrix.stride < 0 || matrix.ld <= 0 || (matrix.ld as usize) < rows {
                return Err(PassedOn::Arguments);
            }
            let ld = matrix.ld as i64;
            let (row_stride, col_stride) = if ld_steps_rows { (ld, 1) } else { (1, ld) };
            let stride = if batch > 1 { matrix.stride } else { 0 };
            let align = 1 << matrix.address.trailing_zeros().min(MAX_ALIGN.trailing_zeros());
            Ok(OperandLayout::strided(row_stride, col_stride)
                .with_batch_strides([0, 0, 0, stride])
                .with_align(align))
        };
        let transposed = |operation: u32| match operation {
            0 => Ok(false),
            1 | 2 => Ok(true), // conjugation is nothing to real numbers
            _ => Err(PassedOn::Arguments),
        };
        let [a_transposed, b_transposed] = [transposed(self.transposed[0])?, transposed(self.transposed[1])?];
        // Stored untransposed, a column of B (one of our rows) is ld from the next; stored transposed, neighbours.
        let a = operand(&self.b, types.a, if b_transposed { n } else { k }, !b_transposed)?;
        let b = operand(&self.a, types.a, if a_transposed { k } else { m }, !a_transposed)?;
        let d = operand(&self.c, types.d, m, true)?;
        if batch > 1 && !apart(self.c.stride, self.c.ld, m, n, batch) {
            return Err(PassedOn::Overlap);
        }
        let mut problem = GemmProblem::new(n, m, k, a, b);
        problem.batch_dims = [1, 1, 1, batch];
        problem.types = types;
        problem.precision = precision;
        problem.d = d;
        problem.epilogue.c = reads_c.then_some(d);
        problem.epilogue.device_scalars = matches!(scalars, Scalars::InMemory(..));
        let at = Addresses {
            alpha: alpha_at,
            beta: beta_at,
            ..Addresses::new(Operands {
                a: self.b.address,
                b: self.a.address,
                c: if reads_c { self.c.address } else { 0 },
                d: self.c.address,
                ..Operands::default()
            })
        };
        Ok((problem, at))
    }

    /// Elements from the first to the last one of C, of a call that has a [`problem`](Call::problem).
    pub fn result_elements(&self) -> usize {
        let steps = |count: i32, stride: i64| (count as i64 - 1) * stride;
        let elements = steps(self.batch, self.c.stride) + steps(self.n, self.c.ld as i64) + self.m as i64;
        elements as usize
    }

    /// Whether two calls ask for the same work at whatever addresses (of the same alignment).
    pub fn shape(&self) -> Call {
        let anywhere = |matrix: Matrix| Matrix {
            address: matrix.address % MAX_ALIGN,
            ..matrix
        };
        Call {
            a: anywhere(self.a),
            b: anywhere(self.b),
            c: anywhere(self.c),
            ..*self
        }
    }
}

/// Whether no element of C belongs to two matrices of the batch: they follow one another, or lie side by side in the
/// columns of a wider matrix.
fn apart(stride: i64, ld: i32, m: usize, n: usize, batch: usize) -> bool {
    let stride = stride.unsigned_abs() as u128;
    let (ld, m, n, batch) = (ld as u128, m as u128, n as u128, batch as u128);
    let one_after_the_other = stride >= (n - 1) * ld + m;
    let side_by_side = stride >= m && (batch - 1) * stride + m <= ld;
    one_after_the_other || side_by_side
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |operation: u32| if operation == 0 { 'N' } else { 'T' };
        write!(
            f,
            "{} {}{} m {} n {} k {} batch {} (ld {} {} {}, strides {} {} {})",
            self.function,
            letter(self.transposed[0]),
            letter(self.transposed[1]),
            self.m,
            self.n,
            self.k,
            self.batch,
            self.a.ld,
            self.b.ld,
            self.c.ld,
            self.a.stride,
            self.b.stride,
            self.c.stride,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::cpu::{gemm_to_vec, CpuOperands};
    use crate::gemm::Access;

    const ONE: Scalars = Scalars::Values(1.0, 0.0);

    fn matrix(ld: i32, stride: i64) -> Matrix {
        Matrix {
            address: 0x1000,
            dtype: R_32F,
            ld,
            stride,
        }
    }

    /// Dense, untransposed, a batch of one.
    fn dense(m: i32, n: i32, k: i32) -> Call {
        Call {
            function: "cublasSgemm_v2",
            transposed: [0, 0],
            m,
            n,
            k,
            a: matrix(m, 0),
            b: matrix(k, 0),
            c: matrix(m, 0),
            batch: 1,
            compute: compute::F32,
            math: math::DEFAULT,
        }
    }

    /// What cuBLAS's documentation says, element by element: `C[i + j·ldc] = α·Σ op(A)(i,p)·op(B)(p,j) + β·C[i + j·ldc]`.
    fn by_the_book(call: &Call, alpha: f64, beta: f64, a: &[f32], b: &[f32], c: &[f32]) -> Vec<f32> {
        let mut out = c.to_vec();
        let at = |matrix: &Matrix, transposed: u32, row: usize, col: usize, i: usize| {
            let (row, col) = if transposed == 0 { (row, col) } else { (col, row) };
            i * matrix.stride as usize + row + col * matrix.ld as usize
        };
        for batch in 0..call.batch as usize {
            for j in 0..call.n as usize {
                for i in 0..call.m as usize {
                    let sum: f64 = (0..call.k as usize)
                        .map(|p| {
                            let x = a[at(&call.a, call.transposed[0], i, p, batch)] as f64;
                            x * b[at(&call.b, call.transposed[1], p, j, batch)] as f64
                        })
                        .sum();
                    let place = at(&call.c, 0, i, j, batch);
                    out[place] = (alpha * sum + if beta == 0.0 { 0.0 } else { beta * c[place] as f64 }) as f32;
                }
            }
        }
        out
    }

    fn numbers(seed: u32, count: usize) -> Vec<f32> {
        let mut state = seed;
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    #[test]
    fn every_storage_order_padding_and_batch_means_what_cublas_means() {
        for transposed in [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0]] {
            for (m, n, k) in [(1, 1, 1), (3, 5, 7), (1, 6, 4), (6, 1, 4), (5, 3, 1)] {
                for (padding, batch, beta) in [(0, 1, 0.0), (3, 1, 0.5), (0, 4, 1.0), (2, 3, 0.0)] {
                    let stored = |rows: i32, cols: i32, gap: i64| {
                        let ld = rows + padding;
                        matrix(ld, ld as i64 * cols as i64 + gap)
                    };
                    let call = Call {
                        transposed,
                        a: if transposed[0] == 0 {
                            stored(m, k, 1)
                        } else {
                            stored(k, m, 1)
                        },
                        b: if transposed[1] == 0 {
                            stored(k, n, 2)
                        } else {
                            stored(n, k, 2)
                        },
                        c: stored(m, n, 3),
                        batch,
                        ..dense(m, n, k)
                    };
                    let length = |matrix: &Matrix| (matrix.stride * batch as i64) as usize;
                    let (a, b) = (numbers(1, length(&call.a)), numbers(2, length(&call.b)));
                    // Where β = 0, C must not be read.
                    let c = match beta {
                        0.0 => vec![f32::NAN; length(&call.c)],
                        _ => numbers(3, length(&call.c)),
                    };
                    let expected = by_the_book(&call, 1.5, beta, &a, &b, &c);

                    let (problem, at) = call
                        .problem(Precision::Fp32, Scalars::Values(1.5, beta as f32))
                        .unwrap();
                    let Operands {
                        a: at_a,
                        b: at_b,
                        d: at_d,
                        ..
                    } = at.operands;
                    assert_eq!((at_a, at_b, at_d), (0x1000, 0x1000, 0x1000));
                    assert_eq!(at.operands.c != 0, beta != 0.0);
                    // The CPU engine writes a dense result: gather it from where the problem says that it lies.
                    let (d, mut compact) = (problem.d, problem);
                    compact.d = OperandLayout::row_major(problem.n).with_batch_strides([
                        0,
                        0,
                        0,
                        (problem.m * problem.n) as i64,
                    ]);
                    let operands = CpuOperands {
                        alpha: 1.5,
                        beta: beta as f32,
                        ..CpuOperands::new(&b, &a).with_c(&c)
                    };
                    let result: Vec<f32> = gemm_to_vec(&compact, std::iter::once(operands), 1).unwrap();
                    for (i, value) in result.iter().enumerate() {
                        let (matrix, row, col) =
                            (i / (problem.m * problem.n), i / problem.n % problem.m, i % problem.n);
                        let place = matrix as i64 * d.batch_strides[3] + row as i64 * d.row_stride + col as i64;
                        let expected = expected[place as usize];
                        assert!((value - expected).abs() < 1e-5, "{call}: {value} {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_major_product_as_candle_hands_it_over_is_what_it_was() {
        // x (8 × 5) times w (5 × 6), both dense and row-major: candle swaps the operands.
        let (problem, _) = dense(6, 8, 5).problem(Precision::Fp32, ONE).unwrap();
        assert_eq!((problem.m, problem.n, problem.k), (8, 6, 5));
        assert_eq!(problem, {
            let mut expected = GemmProblem::row_major(8, 6, 5);
            expected.precision = Precision::Fp32;
            expected
        });
        // The weight of a linear layer, stored transposed.
        let linear = Call {
            transposed: [1, 0],
            a: matrix(5, 0),
            ..dense(6, 8, 5)
        };
        let (problem, _) = linear.problem(Precision::Fp32, ONE).unwrap();
        assert_eq!(problem.layout_name(), "NT");
    }

    #[test]
    fn alignment_is_that_of_the_address_and_the_strides() {
        let mut call = dense(8, 8, 8);
        let access = |call: &Call| {
            let (problem, _) = call.problem(Precision::Fp32, ONE).unwrap();
            problem.accesses().a
        };
        assert_eq!(access(&call), Access::RowVector);
        call.b.address += 4;
        assert_eq!(access(&call), Access::RowScalar);
        call.b = matrix(9, 0);
        assert_eq!(access(&call), Access::RowScalar);
    }

    #[test]
    fn precision_follows_compute_type_math_mode_and_what_is_wanted() {
        let asked = |compute, math| {
            Call {
                compute,
                math,
                ..dense(2, 2, 2)
            }
            .precision(None)
        };
        assert_eq!(asked(compute::F32, math::DEFAULT), Ok(Precision::Fp32));
        assert_eq!(asked(compute::F32, math::DEFAULT | 16), Ok(Precision::Fp32));
        assert_eq!(asked(compute::F32, math::PEDANTIC), Ok(Precision::Fp32Strict));
        assert_eq!(asked(compute::F32, math::TF32_TENSOR_OP), Ok(Precision::Tf32));
        assert_eq!(
            asked(compute::F32_PEDANTIC, math::TF32_TENSOR_OP),
            Ok(Precision::Fp32Strict)
        );
        assert_eq!(asked(compute::F32_FAST_TF32, math::DEFAULT), Ok(Precision::Tf32));
        const FAST_16BF: u32 = 75;
        const EMULATED_BF16X9: u32 = 4;
        assert_eq!(asked(FAST_16BF, math::DEFAULT), Err(PassedOn::Compute));
        assert_eq!(asked(compute::F32, EMULATED_BF16X9), Err(PassedOn::Compute));
        let wanted = Some(Precision::Fp32Strict);
        assert_eq!(dense(2, 2, 2).precision(wanted), Ok(Precision::Fp32Strict));
        let of = |a, b, c| {
            let mut call = dense(2, 2, 2);
            (call.a.dtype, call.b.dtype, call.c.dtype) = (a, b, c);
            call.precision(wanted)
        };
        const R_64F: u32 = 1;
        for dtype in [R_16F, R_16BF] {
            for passed_on in [
                of(R_32F, dtype, R_32F),
                of(dtype, dtype, R_64F),
                of(R_32F, R_32F, dtype),
            ] {
                assert_eq!(passed_on, Err(PassedOn::DType));
            }
        }
        assert_eq!(of(R_16F, R_16BF, R_16F), Err(PassedOn::DType));
    }

    #[test]
    fn what_is_not_ours_to_judge_is_passed_on_with_its_reason() {
        let reason = |call: Call, alpha| call.problem(Precision::Fp32, Scalars::Values(alpha, 0.0)).err();
        let good = Call {
            batch: 2,
            a: matrix(4, 16),
            b: matrix(4, 16),
            c: matrix(4, 16),
            ..dense(4, 4, 4)
        };
        assert_eq!(reason(good, 1.0), None);
        assert_eq!(reason(good, 0.0), Some(PassedOn::Empty));
        assert_eq!(reason(Call { k: 0, ..good }, 1.0), Some(PassedOn::Empty));
        assert_eq!(reason(Call { batch: 0, ..good }, 1.0), Some(PassedOn::Empty));
        assert_eq!(reason(Call { m: -1, ..good }, 1.0), Some(PassedOn::Arguments));
        assert_eq!(
            reason(
                Call {
                    a: matrix(3, 16),
                    ..good
                },
                1.0
            ),
            Some(PassedOn::Arguments)
        );
        assert_eq!(
            reason(
                Call {
                    transposed: [7, 0],
                    ..good
                },
                1.0
            ),
            Some(PassedOn::Arguments)
        );
        let null = Matrix {
            address: 0,
            ..matrix(4, 16)
        };
        assert_eq!(reason(Call { b: null, ..good }, 1.0), Some(PassedOn::Arguments));
        let odd = Matrix {
            address: 0x1002,
            ..matrix(4, 16)
        };
        assert_eq!(reason(Call { b: odd, ..good }, 1.0), Some(PassedOn::Arguments));
        for overlapping in [matrix(4, 0), matrix(4, 15)] {
            let call = Call { c: overlapping, ..good };
            assert_eq!(reason(call, 1.0), Some(PassedOn::Overlap));
        }
        // Side by side in a wider matrix.
        assert_eq!(
            reason(
                Call {
                    c: matrix(8, 4),
                    ..good
                },
                1.0
            ),
            None
        );
        assert_eq!(
            reason(
                Call {
                    c: matrix(7, 4),
                    ..good
                },
                1.0
            ),
            Some(PassedOn::Overlap)
        );
    }

    #[test]
    fn scalars_in_device_memory_are_left_to_the_kernel() {
        let call = dense(4, 4, 4);
        let (problem, at) = call.problem(Precision::Fp32, Scalars::InMemory(0x40, 0x44)).unwrap();
        assert!(problem.epilogue.device_scalars && problem.epilogue.c.is_some());
        assert_eq!((at.alpha, at.beta, at.operands.c), (0x40, 0x44, call.c.address));
        let odd = call.problem(Precision::Fp32, Scalars::InMemory(0x40, 0x45));
        assert_eq!(odd.err(), Some(PassedOn::Arguments));
    }

    #[test]
    fn operands_may_share_memory_among_the_batch() {
        let shared = Call {
            batch: 3,
            a: matrix(4, 0),
            b: matrix(4, 16),
            c: matrix(4, 16),
            ..dense(4, 4, 4)
        };
        let (problem, _) = shared.problem(Precision::Fp32, ONE).unwrap();
        assert_eq!(problem.b.batch_strides, [0; 4]);
        // A weight that the whole batch shares makes the batch more rows.
        let folded = problem.folded().unwrap();
        assert_eq!((folded.m, folded.batch()), (12, 1));
    }
}
