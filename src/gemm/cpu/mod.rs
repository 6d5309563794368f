//! The product on the CPU: the `gemm` crate's engine below, this crate's layouts, batches and epilogue above.
//!
//! The engine takes any strides. A batch is spread over the threads, a matrix a thread, and so are the slices of a product
//! with a vector, for which the engine has one thread only; a large matrix is left to the engine's own threads. What is
//! computed, and when C is read, is what the kernels do.

mod element;
mod panels;

pub use element::{Element, Elements};
pub use half::{bf16, f16};

use super::operands::{DType, ElementTypes, OperandLayout, Operands};
use super::problem::{Activation, Combine, GemmProblem};
use rayon::prelude::*;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Multiply-adds below which waking other threads costs more than they save.
const SERIAL_WORK: usize = 2 << 20;

/// Slices of a product with a vector are a multiple of this, so that the engine's vectors are filled.
const SLICE_QUANTUM: usize = 64;

/// Elements of a result from which on the epilogue of a single matrix is spread over threads.
const PARALLEL_EPILOGUE: usize = 1 << 17;

/// The data of a product.
#[derive(Clone, Copy, Debug)]
pub struct CpuOperands<'a> {
    /// Elements from an operand's element (0, 0) of the first matrix on, as the problem lays them out; D has none. C is not read
    /// where the epilogue has none or β is 0, nor are bias and residual where it has none.
    pub elements: Operands<Elements<'a>>,
    /// Elements between neighbours of the bias.
    pub bias_stride: usize,
    /// The factor of A·B; here it is a value, wherever the problem has it.
    pub alpha: f32,
    /// The factor of C.
    pub beta: f32,
}

impl<'a> CpuOperands<'a> {
    /// `A·B` alone.
    pub fn new(a: impl Into<Elements<'a>>, b: impl Into<Elements<'a>>) -> Self {
        CpuOperands {
            elements: Operands {
                a: a.into(),
                b: b.into(),
                ..Operands::default()
            },
            bias_stride: 1,
            alpha: 1.0,
            beta: 0.0,
        }
    }

    /// The same with this C.
    pub fn with_c(mut self, c: impl Into<Elements<'a>>) -> Self {
        self.elements.c = c.into();
        self
    }

    /// The same with this bias.
    pub fn with_bias(mut self, bias: impl Into<Elements<'a>>) -> Self {
        self.elements.bias = bias.into();
        self
    }

    /// The same with this residual.
    pub fn with_residual(mut self, residual: impl Into<Elements<'a>>) -> Self {
        self.elements.residual = residual.into();
        self
    }
}

/// Why a product was refused. Nothing was written then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuGemmError {
    /// Operands are FP32, or factors are of one type of 16 bits and all others of that or FP32. The slices have these types.
    DType(ElementTypes),
    /// An operand's layout reaches outside its slice.
    OutOfBounds {
        /// Which operand.
        operand: &'static str,
        /// Its layout.
        layout: OperandLayout,
        /// Elements in its slice.
        len: usize,
    },
    /// The problem norms rows of A or gates columns, which is left to those who call this.
    Fused,
    /// Elements of the result share an address, or those of a row are not adjacent.
    Result(OperandLayout),
    /// The results cannot be allocated.
    Memory {
        /// Rows of a result.
        m: usize,
        /// Columns of a result.
        n: usize,
        /// Results.
        matrices: u128,
    },
}

impl fmt::Display for CpuGemmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpuGemmError::DType(types) => write!(
                f,
                "the CPU path multiplies f32 matrices, or f16 or bf16 ones with all else of that type or f32, not A {}, B {}, C {}, \
                 D {}, bias {} and residual {}, and the data must be of these types",
                types.a, types.b, types.c, types.d, types.bias, types.residual
            ),
            CpuGemmError::Fused => f.write_str(
                "the CPU path takes rows as they are and columns one by one: norm rows before the product and gate columns after it",
            ),
            CpuGemmError::OutOfBounds {
                operand,
                layout,
                len,
            } => write!(
                f,
                "{operand} of row stride {}, column stride {} and batch strides {:?} reaches outside its {len} elements",
                layout.row_stride, layout.col_stride, layout.batch_strides
            ),
            CpuGemmError::Result(layout) => write!(
                f,
                "elements of the result must not overlap, and those of a row must be adjacent: row stride {}, column stride {}, batch strides {:?}",
                layout.row_stride, layout.col_stride, layout.batch_strides
            ),
            CpuGemmError::Memory { m, n, matrices } => {
                write!(f, "there is no memory for {matrices} results of {m} × {n} numbers")
            }
        }
    }
}

impl std::error::Error for CpuGemmError {}

/// Computes `problem` on at most `threads` threads of rayon's current pool and writes every element of D in `d`, which
/// starts at D's element (0, 0). Elements of `d` between those of D are left alone. `k` may be 0: then A·B is 0.
///
/// `Precision` makes no difference: products of FP32 numbers are FP32 multiply-adds. Factors of 16 bits are multiplied and
/// summed as FP32 numbers, and what the epilogue makes of the sums is rounded once.
///
/// # Errors
///
/// Types that are not multiplied here, an operand that is shorter than its layout needs, or a D whose elements overlap.
pub fn gemm<T: Element>(
    problem: &GemmProblem,
    operands: &CpuOperands,
    d: &mut [MaybeUninit<T>],
    threads: usize,
) -> Result<(), CpuGemmError> {
    check::<T>(problem, operands, d.len())?;
    let (m, n) = (problem.m, problem.n);
    if m == 0 || n == 0 || problem.batch_dims.contains(&0) {
        return Ok(());
    }
    let (Elements::F32(a), Elements::F32(b)) = (operands.elements.a, operands.elements.b) else {
        // SAFETY: `check` found that all operands and D stay inside their slices and that no two elements of D share an address.
        unsafe { panels::gemm(problem, operands, d, threads) };
        return Ok(());
    };
    let tiling = Tiling::new(problem, threads);
    // Beside FP32 factors D is FP32: `check` has seen to it.
    let out = Output(d.as_mut_ptr().cast::<f32>());
    let run = |tile: usize| {
        let (batch, rows, cols) = tiling.tile(tile, m, n);
        // SAFETY: `check` found that all operands and D stay inside their slices and that no two elements of D share an
        // address; tiles are disjoint, so no other thread writes to this one.
        unsafe {
            multiply(
                problem,
                [a, b],
                operands.alpha,
                out,
                batch,
                rows.clone(),
                cols.clone(),
                tiling.engine_threads,
            );
            finish(problem, operands, out, batch, rows, cols, tiling.engine_threads);
        }
    };
    if tiling.parallel {
        (0..tiling.count()).into_par_iter().for_each(run);
    } else {
        (0..tiling.count()).for_each(run);
    }
    Ok(())
}

/// [`gemm()`] of one problem for each of `operands`, whose results follow one another in the vector that is returned.
///
/// # Errors
///
/// As [`gemm()`], a D that is not dense, or results that cannot be allocated.
pub fn gemm_to_vec<'a, T: Element>(
    problem: &GemmProblem,
    operands: impl ExactSizeIterator<Item = CpuOperands<'a>>,
    threads: usize,
) -> Result<Vec<T>, CpuGemmError> {
    let matrices = problem.batch_dims.iter().fold(operands.len() as u128, |product, &dim| {
        product.saturating_mul(dim as u128)
    });
    let no_memory = || CpuGemmError::Memory {
        m: problem.m,
        n: problem.n,
        matrices,
    };
    let sizes = [problem.m, problem.n].into_iter().chain(problem.batch_dims);
    let len = match sizes.clone().any(|size| size == 0) {
        true => 0,
        false => sizes
            .clone()
            .try_fold(1usize, |product, size| product.checked_mul(size))
            .ok_or_else(no_memory)?,
    };
    if reach(problem, &problem.d, problem.m, problem.n) != Some(len as i128) {
        return Err(CpuGemmError::Result(problem.d));
    }
    let mut results = Vec::new();
    let all = len.checked_mul(operands.len()).ok_or_else(no_memory)?;
    results.try_reserve_exact(all).map_err(|_| no_memory())?;
    for operands in operands {
        gemm(problem, &operands, &mut results.spare_capacity_mut()[..len], threads)?;
        // SAFETY: D has `len` elements that share no address (`gemm` refuses those) and span `len`, so that it is all of
        // the slice, and `gemm` has written it.
        unsafe { results.set_len(results.len() + len) };
    }
    Ok(results)
}

/// The start of D, shared by threads that write disjoint tiles of it.
#[derive(Clone, Copy)]
struct Output<T>(*mut T);

impl<T> Output<T> {
    fn at(&self, elements: isize) -> *mut T {
        self.0.wrapping_offset(elements)
    }
}

// SAFETY: tiles are disjoint, see `gemm`.
unsafe impl<T: Send> Send for Output<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Output<T> {}

/// How the result is cut into tiles: matrices of the batch, or slices of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiling {
    batch: usize,
    row_tiles: usize,
    col_tiles: usize,
    tile_rows: usize,
    tile_cols: usize,
    /// Whether tiles are computed side by side.
    parallel: bool,
    /// Threads that the engine may use inside a tile.
    engine_threads: usize,
}

impl Tiling {
    fn new(problem: &GemmProblem, threads: usize) -> Self {
        let (m, n, batch) = (problem.m, problem.n, problem.batch());
        let work = [m, n, problem.k]
            .iter()
            .fold(batch, |product, &size| product.saturating_mul(size));
        let matrices = Tiling {
            batch,
            row_tiles: 1,
            col_tiles: 1,
            tile_rows: m,
            tile_cols: n,
            parallel: false,
            engine_threads: 1,
        };
        if threads <= 1 {
            return matrices;
        }
        if batch == 1 && m > 1 && n > 1 {
            // The engine knows from which size on its threads are worth their while.
            return Tiling {
                engine_threads: threads,
                ..matrices
            };
        }
        if work < SERIAL_WORK {
            return matrices;
        }
        if batch % threads == 0 || batch >= 4 * threads {
            return Tiling {
                parallel: true,
                ..matrices
            };
        }
        if m > 1 && n > 1 {
            return Tiling {
                engine_threads: threads,
                ..matrices
            };
        }
        let pieces = threads.div_ceil(batch);
        let slice = |size: usize| size.div_ceil(pieces).next_multiple_of(SLICE_QUANTUM);
        let (tile_rows, tile_cols) = (slice(m), slice(n));
        Tiling {
            row_tiles: m.div_ceil(tile_rows),
            col_tiles: n.div_ceil(tile_cols),
            tile_rows,
            tile_cols,
            parallel: true,
            ..matrices
        }
    }

    fn count(&self) -> usize {
        self.batch * self.row_tiles * self.col_tiles
    }

    /// Matrix, rows and columns of a tile.
    fn tile(&self, index: usize, m: usize, n: usize) -> (usize, Range<usize>, Range<usize>) {
        let (row, col) = (
            index / self.col_tiles % self.row_tiles * self.tile_rows,
            index % self.col_tiles * self.tile_cols,
        );
        let batch = index / (self.row_tiles * self.col_tiles);
        (
            batch,
            row..m.min(row + self.tile_rows),
            col..n.min(col + self.tile_cols),
        )
    }
}

/// Offset of the first element of matrix `batch` (row-major over the batch dimensions).
fn batch_offset(problem: &GemmProblem, layout: &OperandLayout, mut batch: usize) -> isize {
    let mut offset = 0;
    for (&extent, &stride) in problem.batch_dims.iter().zip(&layout.batch_strides).rev() {
        offset += (batch % extent) as isize * stride as isize;
        batch /= extent;
    }
    offset
}

/// Offset of element (row, col) of matrix `batch`.
fn element(problem: &GemmProblem, layout: &OperandLayout, batch: usize, row: usize, col: usize) -> isize {
    batch_offset(problem, layout, batch)
        + row as isize * layout.row_stride as isize
        + col as isize * layout.col_stride as isize
}

/// The tile's part of `D ← α·A·B`.
///
/// # Safety
///
/// The tile must lie inside the matrix, all operands inside their slices and D below `out`; nothing else may access the
/// tile's elements of D meanwhile.
#[allow(clippy::too_many_arguments)] // a tile of a problem, as `finish` has it
unsafe fn multiply(
    problem: &GemmProblem,
    [a_elements, b_elements]: [&[f32]; 2],
    alpha: f32,
    out: Output<f32>,
    batch: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    threads: usize,
) {
    let GemmProblem { a, b, d, k, .. } = problem;
    let a_start = element(problem, a, batch, rows.start, 0);
    let b_start = element(problem, b, batch, 0, cols.start);
    gemm::gemm(
        rows.len(),
        cols.len(),
        *k,
        out.at(element(problem, d, batch, rows.start, cols.start)),
        d.col_stride as isize,
        d.row_stride as isize,
        false, // D is written, never read: it may be uninitialised
        a_elements.as_ptr().wrapping_offset(a_start),
        a.col_stride as isize,
        a.row_stride as isize,
        b_elements.as_ptr().wrapping_offset(b_start),
        b.col_stride as isize,
        b.row_stride as isize,
        0.0, // the engine's names are the other way round: its alpha is D's factor, its beta that of A·B
        alpha,
        false,
        false,
        false,
        match threads {
            1 => gemm::Parallelism::None,
            threads => gemm::Parallelism::Rayon(threads),
        },
    );
}

/// The tile's part of `D ← activation(D + β·C + bias) + residual` (or `· residual`).
///
/// # Safety
///
/// As [`multiply`], and the tile's elements of D are initialised.
unsafe fn finish(
    problem: &GemmProblem,
    operands: &CpuOperands,
    out: Output<f32>,
    batch: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    threads: usize,
) {
    let reads_c = problem.epilogue.c.is_some() && operands.beta != 0.0;
    if !reads_c && problem.epilogue.is_plain() {
        return;
    }
    let columns = cols.len();
    let finish_one = |row: usize| {
        let start = out.at(element(problem, &problem.d, batch, row, cols.start));
        // SAFETY: as the caller vouches; rows of D are apart.
        let d_row = unsafe { std::slice::from_raw_parts_mut(start, cols.len()) };
        finish_row(problem, operands, d_row, batch, row, cols.start);
    };
    if threads > 1 && rows.len() * columns >= PARALLEL_EPILOGUE {
        rows.into_par_iter()
            .with_min_len(PARALLEL_EPILOGUE / 4 / columns + 1)
            .for_each(finish_one);
    } else {
        rows.for_each(finish_one);
    }
}

/// `row ← activation(row + β·C + bias) + residual` (or `· residual`) for the columns of this row of D from `col` on.
fn finish_row(problem: &GemmProblem, operands: &CpuOperands, d_row: &mut [f32], batch: usize, row: usize, col: usize) {
    let (epilogue, elements) = (&problem.epilogue, &operands.elements);
    if let Some(layout) = epilogue.c.as_ref().filter(|_| operands.beta != 0.0) {
        let at = element(problem, layout, batch, row, col);
        elements.c.add_to(d_row, operands.beta, at, layout.col_stride);
    }
    if epilogue.bias {
        let at = (col * operands.bias_stride) as isize;
        elements.bias.add_to(d_row, 1.0, at, operands.bias_stride as i64);
    }
    activate(epilogue.activation, d_row);
    if let Some(layout) = &epilogue.residual {
        let at = element(problem, layout, batch, row, col);
        match epilogue.combine {
            Combine::Add => elements.residual.add_to(d_row, 1.0, at, layout.col_stride),
            Combine::Multiply => elements.residual.multiply_with(d_row, at, layout.col_stride),
        }
    }
}

fn activate(activation: Activation, row: &mut [f32]) {
    let apply = |row: &mut [f32], f: fn(f32) -> f32| row.iter_mut().for_each(|x| *x = f(*x));
    match activation {
        Activation::Identity => {}
        Activation::Relu => row.iter_mut().for_each(|x| *x = x.max(0.0)),
        Activation::GeluTanh => apply(row, |x| {
            const SQRT_TWO_OVER_PI: f32 = 0.797_884_6;
            0.5 * x * (1.0 + (SQRT_TWO_OVER_PI * x * (1.0 + 0.044715 * x * x)).tanh())
        }),
        Activation::GeluErf => apply(row, |x| 0.5 * x * libm::erfcf(-x * std::f32::consts::FRAC_1_SQRT_2)),
        Activation::Silu => apply(row, |x| x / (1.0 + (-x).exp())),
        Activation::Tanh => apply(row, f32::tanh),
        Activation::Sigmoid => apply(row, |x| 1.0 / (1.0 + (-x).exp())),
    }
}

fn check<T: Element>(problem: &GemmProblem, operands: &CpuOperands, d_len: usize) -> Result<(), CpuGemmError> {
    if problem.normed || problem.epilogue.gated {
        return Err(CpuGemmError::Fused);
    }
    let (types, elements) = (problem.types, &operands.elements);
    // Slices of operands that the problem lacks may be of any type.
    let given = Operands {
        a: elements.a.dtype(),
        b: elements.b.dtype(),
        c: problem.epilogue.c.map_or(types.c, |_| elements.c.dtype()),
        d: T::DTYPE,
        bias: if problem.epilogue.bias {
            elements.bias.dtype()
        } else {
            types.bias
        },
        residual: problem
            .epilogue
            .residual
            .map_or(types.residual, |_| elements.residual.dtype()),
    };
    let served = types.a != DType::F64 && types.served_by(types.a);
    let fits = |(given, asked)| given == asked;
    let unread_c = operands.beta == 0.0 && Operands { c: types.c, ..given }.zip(types).all(fits);
    if !served || !(unread_c || given.zip(types).all(fits)) {
        return Err(CpuGemmError::DType(types));
    }
    let (m, n, k) = (problem.m, problem.n, problem.k);
    let inside = |operand, layout: &OperandLayout, rows, cols, len| {
        if reach(problem, layout, rows, cols).is_some_and(|reach| reach <= len as i128) {
            Ok(())
        } else {
            Err(CpuGemmError::OutOfBounds {
                operand,
                layout: *layout,
                len,
            })
        }
    };
    inside("A", &problem.a, m, k, operands.elements.a.len())?;
    inside("B", &problem.b, k, n, operands.elements.b.len())?;
    inside("D", &problem.d, m, n, d_len)?;
    let epilogue = &problem.epilogue;
    if let Some(c) = epilogue.c.as_ref().filter(|_| operands.beta != 0.0) {
        inside("C", c, m, n, operands.elements.c.len())?;
    }
    if let Some(residual) = &epilogue.residual {
        inside("the residual", residual, m, n, operands.elements.residual.len())?;
    }
    if epilogue.bias {
        // The bias is a row that the whole batch shares.
        let bias = OperandLayout::strided(0, operands.bias_stride as i64);
        inside("the bias", &bias, 1, n, operands.elements.bias.len())?;
    }
    if overlaps(problem) || (n > 1 && problem.d.col_stride != 1) {
        return Err(CpuGemmError::Result(problem.d));
    }
    Ok(())
}

/// Steps that a rows × cols operand takes: extent and stride of each dimension.
fn steps(
    problem: &GemmProblem,
    layout: &OperandLayout,
    rows: usize,
    cols: usize,
) -> impl Iterator<Item = (usize, i64)> {
    let batch = problem.batch_dims.into_iter().zip(layout.batch_strides);
    batch.chain([(rows, layout.row_stride), (cols, layout.col_stride)])
}

/// Elements from the first one to the end of the last one; `None` where a stride is negative or the number has no place in
/// 128 bits.
fn reach(problem: &GemmProblem, layout: &OperandLayout, rows: usize, cols: usize) -> Option<i128> {
    if steps(problem, layout, rows, cols).any(|(extent, _)| extent == 0) {
        return Some(0);
    }
    let mut steps = steps(problem, layout, rows, cols).filter(|&(extent, _)| extent > 1);
    steps.try_fold(1i128, |reach, (extent, stride)| {
        let stride = i128::from(stride);
        let last = (extent as i128 - 1).checked_mul(stride)?;
        if stride < 0 {
            return None;
        }
        reach.checked_add(last)
    })
}

/// Whether elements of D may share an address: no stride, from the shortest on, may fall within what the shorter ones
/// span.
fn overlaps(problem: &GemmProblem) -> bool {
    let mut steps: Vec<_> = steps(problem, &problem.d, problem.m, problem.n)
        .filter(|(extent, _)| *extent > 1)
        .collect();
    steps.sort_unstable_by_key(|&(_, stride)| stride);
    let mut span = 0i128;
    steps.iter().any(|&(extent, stride)| {
        let stride = i128::from(stride);
        let within = stride <= span;
        span = span.saturating_add((extent as i128 - 1).saturating_mul(stride));
        within
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::operands::MAX_BATCH_DIMS;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn layouts_that_reach_beyond_all_numbers_are_refused() {
        let mut rng = StdRng::seed_from_u64(11);
        let (a, b) = (random(64, 1), random(64, 2));
        for _ in 0..2000 {
            // Sizes and strides of every order of magnitude, the largest ones among them.
            let mut size = |bits: u32| (u64::MAX >> rng.random_range(64 - bits..64)) as usize;
            let (m, n, k) = (size(64), size(64), size(64));
            let batch_dims = [size(64), size(8), 1, size(64)];
            let mut stride = || (i64::MAX as u64 >> rng.random_range(0..63)) as i64;
            let mut problem = GemmProblem::new(
                m,
                n,
                k,
                OperandLayout::strided(stride(), stride()).with_batch_strides([stride(), 0, 0, stride()]),
                OperandLayout::strided(stride(), stride()).with_batch_strides([stride(), 0, 0, stride()]),
            );
            problem.d = OperandLayout::strided(stride(), 1).with_batch_strides([stride(), stride(), 0, stride()]);
            problem.batch_dims = batch_dims;
            let sizes = [m, n, k].into_iter().chain(batch_dims);
            let work: f64 = sizes.map(|size| size as f64).product();
            let operands = CpuOperands::new(&a, &b);
            let mut d = [MaybeUninit::new(0f32); 8];
            // A few elements at distances that a slice may have; whatever else is refused, not computed, and never a panic.
            let refused = gemm(&problem, &operands, &mut d, 1).is_err();
            assert!(refused || work < 1e6, "{problem:?}");
            problem.d = OperandLayout::row_major(n);
            let refused = gemm_to_vec::<f32>(&problem, std::iter::once(operands), 1).is_err();
            assert!(refused || work < 1e6, "{problem:?}");
        }
    }

    #[test]
    fn results_that_no_memory_holds_are_refused_with_their_sizes() {
        let one = [1f32];
        let operands = CpuOperands::new(&one, &one);
        let everywhere = OperandLayout::strided(0, 0);
        for (m, n, batch) in [
            (1 << 31, 1 << 31, 1),
            (1 << 40, 1 << 40, 1),
            (7, 1 << 29, 1 << 30),
            (1 << 58, 1, 1),
        ] {
            let mut problem = GemmProblem::new(m, n, 1, everywhere, everywhere);
            problem.batch_dims = [1, 1, 1, batch];
            problem.d.batch_strides = [0, 0, 0, m.saturating_mul(n).min(1 << 62) as i64];
            let error = gemm_to_vec::<f32>(&problem, std::iter::once(operands), 1).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains(&m.to_string()) && text.contains(&n.to_string()) && text.contains(&batch.to_string()),
                "{text}"
            );
        }
        let problem = GemmProblem::new(1 << 30, 1 << 20, 1, everywhere, everywhere);
        let many = std::iter::repeat_n(operands, 1 << 10);
        let error = gemm_to_vec::<f32>(&problem, many, 1).unwrap_err();
        assert!(matches!(error, CpuGemmError::Memory { matrices: 1024, .. }), "{error}");
    }

    fn random(len: usize, seed: u64) -> Vec<f32> {
        let mut rng = StdRng::seed_from_u64(seed);
        (0..len).map(|_| rng.random_range(-1.0..1.2f32)).collect()
    }

    /// D in FP64, and Σ|a||b| of the product, straight from the definition.
    fn expected(problem: &GemmProblem, operands: &CpuOperands, batch: usize, i: usize, j: usize) -> (f64, f64) {
        let at = |data: Elements, layout: &OperandLayout, row, col| {
            let mut number = [0f32];
            data.copy_to(&mut number, element(problem, layout, batch, row, col), 1);
            f64::from(number[0])
        };
        let Operands {
            a,
            b,
            c: c_elements,
            bias,
            residual: residual_elements,
            ..
        } = operands.elements;
        let (mut sum, mut scale) = (0.0, 0.0);
        for p in 0..problem.k {
            let term = at(a, &problem.a, i, p) * at(b, &problem.b, p, j);
            sum += term;
            scale += term.abs();
        }
        let mut x = f64::from(operands.alpha) * sum;
        if let Some(c) = &problem.epilogue.c {
            x += f64::from(operands.beta) * at(c_elements, c, i, j);
        }
        if problem.epilogue.bias {
            let row = OperandLayout::strided(0, operands.bias_stride as i64);
            x += at(bias, &row, 0, j);
        }
        x = match problem.epilogue.activation {
            Activation::Identity => x,
            Activation::Relu => x.max(0.0),
            Activation::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
            Activation::GeluErf => 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt())),
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        };
        if let Some(residual) = &problem.epilogue.residual {
            let residual = at(residual_elements, residual, i, j);
            x = match problem.epilogue.combine {
                Combine::Add => x + residual,
                Combine::Multiply => x * residual,
            };
        }
        (x, scale)
    }

    /// Runs into NaN with each number of threads, checks every element of D against FP64, and that what lies between
    /// them is still NaN.
    fn check(problem: &GemmProblem, operands: &CpuOperands, threads: &[usize]) {
        check_into::<f32>(problem, operands, threads);
    }

    fn check_into<T: Element + Into<f64>>(problem: &GemmProblem, operands: &CpuOperands, threads: &[usize]) {
        // Half an ulp, and half of the least positive number.
        let (roundoff, least) = match T::DTYPE {
            DType::F16 => (T::DTYPE.unit_roundoff(), 1.0 / f64::from(1 << 25)),
            DType::BF16 => (T::DTYPE.unit_roundoff(), 0.0),
            _ => (0.0, 0.0),
        };
        let (m, n, batch) = (problem.m, problem.n, problem.batch());
        let len = reach(problem, &problem.d, m, n).unwrap() as usize;
        let nan = T::round(f32::NAN);
        let mut results: Vec<Vec<T>> = Vec::new();
        for &threads in threads {
            let mut d = vec![MaybeUninit::new(nan); len];
            gemm(problem, operands, &mut d, threads).unwrap();
            // SAFETY: all elements were initialised above.
            results.push(d.into_iter().map(|x| unsafe { x.assume_init() }).collect());
        }
        // |d − ref| ≤ 2·ε·√k·Σ|a||b|, plus the rounding of a few more operations on values of this size.
        let c0 = 2.0 * f64::from(f32::EPSILON);
        for index in 0..batch * m * n {
            let (matrix, i, j) = (index / (m * n), index / n % m, index % n);
            let (expected, scale) = expected(problem, operands, matrix, i, j);
            let bound = c0 * ((problem.k as f64).sqrt() * scale + 4.0 * (1.0 + expected.abs()));
            let bound = bound + (roundoff * (expected.abs() + bound)).max(least);
            let at = element(problem, &problem.d, matrix, i, j) as usize;
            for (d, threads) in results.iter_mut().zip(threads) {
                let found: f64 = d[at].into();
                let error = (found - expected).abs();
                assert!(
                    error <= bound,
                    "matrix {matrix} ({i}, {j}): {found}, not {expected}; {threads} threads, {problem:?}"
                );
                d[at] = nan;
            }
        }
        let untouched = results.iter().flatten().all(|&x| Into::<f64>::into(x).is_nan());
        assert!(untouched, "written outside D: {problem:?}");
    }

    #[test]
    fn every_part_of_the_epilogue_is_applied_in_order() {
        let (m, n, k) = (37, 41, 29);
        let (a, b, c) = (random(m * k, 1), random(k * n, 2), random(2 * m * n, 3));
        let (bias, residual) = (random(3 * n, 4), random(m * n, 5));
        let operands = CpuOperands {
            bias_stride: 3,
            alpha: 0.5,
            beta: -1.5,
            ..CpuOperands::new(&a, &b)
                .with_c(&c)
                .with_bias(&bias)
                .with_residual(&residual)
        };
        for activation in [
            Activation::Identity,
            Activation::Relu,
            Activation::GeluTanh,
            Activation::GeluErf,
            Activation::Silu,
            Activation::Tanh,
            Activation::Sigmoid,
        ] {
            for parts in 0..8 {
                let mut problem = GemmProblem::row_major(m, n, k);
                problem.d = OperandLayout::row_major(n + 5);
                problem.epilogue.c = (parts & 1 != 0).then_some(OperandLayout::strided(2, 2 * m as i64));
                problem.epilogue.bias = parts & 2 != 0;
                problem.epilogue.residual = (parts & 4 != 0).then_some(OperandLayout::row_major(n));
                problem.epilogue.activation = activation;
                check(&problem, &operands, &[1]);
                problem.epilogue.combine = Combine::Multiply;
                check(&problem, &operands, &[1]);
            }
        }
    }

    #[test]
    fn tiles_of_any_number_of_threads_cover_the_result() {
        for (m, n, k, batch) in [
            (300, 310, 60, 1),
            (1, 3000, 900, 1),
            (3000, 1, 900, 1),
            (90, 70, 80, 7),
            (200, 150, 40, 3),
        ] {
            let mut problem = GemmProblem::row_major(m, n, k);
            problem.batch_dims[MAX_BATCH_DIMS - 1] = batch;
            problem.a.batch_strides[MAX_BATCH_DIMS - 1] = (m * k) as i64;
            problem.d.batch_strides[MAX_BATCH_DIMS - 1] = (m * n + 3) as i64;
            problem.epilogue.bias = true;
            let (a, b, bias) = (random(batch * m * k, 6), random(k * n, 7), random(n, 8));
            let operands = CpuOperands::new(&a, &b).with_bias(&bias);
            check(&problem, &operands, &[1, 2, 3, 8, 13]);
        }
    }

    fn rounded<T: Element>(numbers: &[f32]) -> Vec<T> {
        numbers.iter().map(|&x| T::round(x)).collect()
    }

    /// Random problems with factors of this type, into results of the same and of FP32, and with other operands of either.
    fn sixteen_bits<T: Element + Into<f64>>()
    where
        for<'a> &'a Vec<T>: Into<Elements<'a>>,
    {
        let mut rng = StdRng::seed_from_u64(16);
        for _ in 0..25 {
            let mut size = |most: usize| rng.random_range(1..=most);
            let (m, n, k, batch) = (size(140), size(270), size(40), size(2));
            let mut layout = |rows: usize, cols: usize| {
                let odd = rng.random_range(0..3);
                let layout = match rng.random_range(0..3) {
                    0 => OperandLayout::row_major(cols + odd),
                    1 => OperandLayout::col_major(rows + odd),
                    _ => OperandLayout::strided(2 * (cols + odd) as i64, 2),
                };
                let stride = match rng.random_bool(0.7) {
                    true => 2 * ((rows + 3) * (cols + 3)) as i64,
                    false => 0,
                };
                layout.with_batch_strides([0, 0, 0, stride])
            };
            let mut problem = GemmProblem::new(m, n, k, layout(m, k), layout(k, n));
            problem.batch_dims[MAX_BATCH_DIMS - 1] = batch;
            problem.d = OperandLayout::row_major(n + 1).with_batch_strides([0, 0, 0, (m * (n + 1)) as i64]);
            problem.epilogue.c = rng.random_bool(0.5).then(|| OperandLayout::strided(1, 0));
            problem.epilogue.residual = rng.random_bool(0.5).then(|| OperandLayout::row_major(n));
            problem.epilogue.bias = rng.random_bool(0.5);
            problem.epilogue.activation = Activation::ALL[rng.random_range(0..Activation::ALL.len())];
            let fp32 = [(); 4].map(|()| rng.random_bool(0.5));
            let one_of = |fp32: bool| if fp32 { DType::F32 } else { T::DTYPE };
            problem.types = Operands {
                a: T::DTYPE,
                b: T::DTYPE,
                c: one_of(fp32[0]),
                d: one_of(fp32[3]),
                bias: one_of(fp32[1]),
                residual: one_of(fp32[2]),
            };
            let room = |rows: usize, cols: usize| 2 * batch * (rows + 3) * (cols + 3);
            let (a, b) = (
                rounded::<T>(&random(room(m, k), 1)),
                rounded::<T>(&random(room(k, n), 2)),
            );
            let others = [m, n, m * n].map(|len| random(len, len as u64));
            let halves = others.each_ref().map(|numbers| rounded::<T>(numbers));
            let elements = |i: usize| match fp32[i] {
                true => Elements::from(&others[i]),
                false => (&halves[i]).into(),
            };
            let operands = CpuOperands {
                alpha: 0.5,
                beta: -1.5,
                ..CpuOperands::new(&a, &b)
                    .with_c(elements(0))
                    .with_bias(elements(1))
                    .with_residual(elements(2))
            };
            match fp32[3] {
                true => check_into::<f32>(&problem, &operands, &[1, 3]),
                false => check_into::<T>(&problem, &operands, &[1, 3]),
            }
        }
    }

    #[test]
    fn products_of_sixteen_bit_matrices_are_summed_in_fp32_and_rounded_once() {
        sixteen_bits::<half::f16>();
        sixteen_bits::<half::bf16>();
        // 1 + 4096 times 2⁻¹², which sums of 16 bits would lose.
        let k = 4097;
        let (mut a, b) = (vec![half::f16::from_f32(1.0 / 4096.0); k], vec![half::f16::ONE; k]);
        a[0] = half::f16::ONE;
        let mut problem = GemmProblem::row_major(1, 1, k);
        problem.types = ElementTypes::all_of(DType::F16);
        let d: Vec<half::f16> = gemm_to_vec(&problem, std::iter::once(CpuOperands::new(&a, &b)), 1).unwrap();
        assert_eq!(d, [half::f16::from_f32(2.0)]);
    }

    #[test]
    fn tilings_use_the_threads() {
        let tiles = |m, n, k, batch, threads| {
            let mut problem = GemmProblem::row_major(m, n, k);
            problem.batch_dims[0] = batch;
            let tiling = Tiling::new(&problem, threads);
            (
                tiling.parallel,
                tiling.engine_threads,
                tiling.row_tiles,
                tiling.col_tiles,
            )
        };
        assert_eq!(
            tiles(1024, 1024, 1024, 1, 4),
            (false, 4, 1, 1),
            "one matrix: the engine's threads"
        );
        assert_eq!(tiles(1024, 1024, 1024, 1, 1), (false, 1, 1, 1), "one thread");
        assert_eq!(tiles(64, 64, 64, 100, 4), (true, 1, 1, 1), "a matrix a thread");
        assert_eq!(
            tiles(512, 512, 512, 3, 4),
            (false, 4, 1, 1),
            "fewer matrices than threads"
        );
        assert_eq!(tiles(8, 8, 8, 4, 4), (false, 1, 1, 1), "small work stays on one thread");
        assert_eq!(tiles(1, 512, 512, 1, 4), (false, 1, 1, 1), "a small vector too");
        assert_eq!(tiles(1, 4096, 4096, 1, 4), (true, 1, 1, 4), "slices of a row");
        assert_eq!(tiles(4096, 1, 4096, 1, 4), (true, 1, 4, 1), "slices of a column");
    }

    #[test]
    fn beta_of_zero_does_not_read_c() {
        let mut problem = GemmProblem::row_major(5, 6, 7);
        problem.epilogue.c = Some(OperandLayout::row_major(6));
        let (a, b, c) = (random(35, 9), random(42, 10), [f32::NAN; 30]);
        for c in [&c[..], &[]] {
            let operands = CpuOperands::new(&a, &b).with_c(c);
            let mut d = [MaybeUninit::new(f32::NAN); 30];
            gemm(&problem, &operands, &mut d, 1).unwrap();
            // SAFETY: all elements were initialised above.
            assert!(d.iter().all(|x| unsafe { x.assume_init() }.is_finite()));
        }
    }

    #[test]
    fn an_empty_k_gives_the_epilogue_alone() {
        let mut problem = GemmProblem::row_major(3, 4, 0);
        problem.epilogue.bias = true;
        let bias = [1f32, 2.0, 3.0, 4.0];
        check(
            &problem,
            &CpuOperands::new(&[0f32; 0], &[0f32; 0]).with_bias(&bias),
            &[1, 2],
        );
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let data = vec![0f32; 12];
        let run = |problem: &GemmProblem, d_len: usize| {
            let mut d = vec![MaybeUninit::new(0f32); d_len];
            gemm(problem, &CpuOperands::new(&data, &data), &mut d, 1)
        };
        let problem = GemmProblem::row_major(3, 3, 4);
        assert_eq!(run(&problem, 9), Ok(()));
        assert!(run(&problem, 8)
            .unwrap_err()
            .to_string()
            .starts_with("D of row stride 3"));
        assert!(run(&GemmProblem::row_major(3, 4, 4), 12)
            .unwrap_err()
            .to_string()
            .starts_with("B of"));
        let mut negative = problem;
        negative.a.row_stride = -4;
        assert!(run(&negative, 9).unwrap_err().to_string().starts_with("A of"));
        let mut overlapping = problem;
        overlapping.d.row_stride = 2;
        assert!(matches!(run(&overlapping, 9), Err(CpuGemmError::Result(_))));
        let mut double = problem;
        for types in [
            ElementTypes::all_of(DType::F64),
            ElementTypes::all_of(DType::F16),
            Operands {
                b: DType::BF16,
                ..problem.types
            },
            Operands {
                d: DType::F16,
                ..problem.types
            },
        ] {
            double.types = types;
            assert_eq!(run(&double, 9), Err(CpuGemmError::DType(types)));
        }
        let mut missing = problem;
        missing.epilogue.residual = Some(OperandLayout::row_major(3));
        assert!(run(&missing, 9).unwrap_err().to_string().starts_with("the residual of"));
    }

    #[test]
    fn results_of_several_launches_follow_one_another() {
        let problem = GemmProblem::row_major(2, 2, 2);
        let (a, b) = ([1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [1f32, 0.0, 0.0, 1.0]);
        let launches = [0, 4].map(|at| CpuOperands::new(&a[at..], &b));
        let results: Vec<f32> = gemm_to_vec(&problem, launches.into_iter(), 2).unwrap();
        assert_eq!(results, a);
        let mut padded = problem;
        padded.d.row_stride = 3;
        assert!(gemm_to_vec::<f32>(&padded, launches.into_iter(), 2).is_err());
    }
}
