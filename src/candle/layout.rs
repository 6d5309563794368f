//! Candle's layouts as a problem: strides, broadcast and batch dimensions of any number.

use crate::device::VECTOR_BYTES;
use crate::gemm::operands::{merge_batch_dims, BatchDim, DType, ElementTypes, Operands, MAX_BATCH_DIMS};
use crate::gemm::{Activation, Combine, Epilogue, GemmProblem, OperandLayout, Precision};
use candle_core::{bail, Error, Layout, Result, Shape};

/// A tensor has fewer elements than this many: candle's widest take 8 bytes, and no allocation has more than 2^63.
const MAX_ELEMENTS: usize = isize::MAX as usize / 8;
/// Kernels ask for no more, and storages that candle allocates start on at least so many bytes.
pub(super) const MAX_ALIGN: u32 = VECTOR_BYTES as u32;

/// Batch dimensions, rows, columns. The rank is at least 2.
pub(super) fn split(dims: &[usize]) -> (&[usize], usize, usize) {
    let (batch, matrix) = dims.split_at(dims.len() - 2);
    (batch, matrix[0], matrix[1])
}

/// The shape of `a·b` with broadcast batch dimensions.
///
/// # Errors
///
/// `ShapeMismatchBinaryOp`, as candle's matmul: a rank below 2, inner sizes that differ, batch dimensions that can't be
/// broadcast. A result that no memory holds.
pub(crate) fn result_shape(a: &Shape, b: &Shape) -> Result<Shape> {
    let mismatch = |why: String| {
        let error = Error::ShapeMismatchBinaryOp {
            lhs: a.clone(),
            rhs: b.clone(),
            op: "matmul",
        };
        Err(error.bt().context(why))
    };
    let ([a_batch @ .., m, k], [b_batch @ .., k_of_b, n]) = (a.dims(), b.dims()) else {
        return mismatch(
            "a is (…, m, k) and b (…, k, n), of two dimensions or more: unsqueeze gives a vector another".into(),
        );
    };
    if k != k_of_b {
        return mismatch(format!(
            "a has {k} columns and b {k_of_b} rows, which must be as many; t() transposes an operand"
        ));
    }
    let rank = a_batch.len().max(b_batch.len());
    let dim = |batch: &[usize], i: usize| {
        let missing = rank - batch.len();
        if i < missing {
            1
        } else {
            batch[i - missing]
        }
    };
    let mut dims = Vec::with_capacity(rank + 2);
    for i in 0..rank {
        dims.push(match (dim(a_batch, i), dim(b_batch, i)) {
            (x, y) if x == y => x,
            (1, y) => y,
            (x, 1) => x,
            // `Tensor::matmul` compares the numbers of matrices and pairs them in order.
            _ if a_batch.len() == b_batch.len() && elements(a_batch) == elements(b_batch) => {
                return mismatch(format!(
                    "batch dimensions are broadcast here, and {a_batch:?} and {b_batch:?} cannot be; to pair their matrices \
                     in order, as Tensor::matmul does, reshape the operands to the same batch dimensions"
                ))
            }
            _ => return mismatch("dimensions before the last two are broadcast: they must be the same, or 1, or missing".into()),
        });
    }
    dims.extend([*m, *n]);
    if elements(&dims).is_none() {
        bail!("the product of {a:?} and {b:?} has shape {dims:?}, more elements than any memory holds");
    }
    Ok(dims.into())
}

/// Elements of a tensor of this shape, if there can be one.
pub(super) fn elements(dims: &[usize]) -> Option<usize> {
    if dims.contains(&0) {
        return Some(0);
    }
    let count = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))?;
    (count <= MAX_ELEMENTS).then_some(count)
}

/// Elements between neighbours of the bias.
pub(super) fn bias_stride(bias: Option<&Layout>) -> usize {
    bias.map_or(1, |layout| layout.stride()[0])
}

/// A product of tensors as one problem and the launches that it takes: one, unless more batch dimensions than a kernel
/// walks remain after merging.
#[derive(Debug)]
pub(crate) struct MatmulCall {
    /// What each launch computes. D has no gaps, and the results of the launches follow one another.
    pub problem: GemmProblem,
    /// Shape of the result as it lies in memory, dense.
    pub shape: Shape,
    /// Batch dimensions that are walked here, outermost first.
    outer: Vec<BatchDim>,
    /// Elements from the start of each storage to the first element of the first launch; 0 for an operand that is absent.
    start: Operands<usize>,
}

/// What is asked of a product besides its operands' layouts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// What the elements of each operand are; of one that is absent, the type of A.
    pub types: ElementTypes,
    /// What arithmetic may be used for FP32 factors.
    pub precision: Precision,
    /// Applied before the residual.
    pub activation: Activation,
    /// What is done with the residual.
    pub combine: Combine,
    /// How the matrices of the result lie.
    pub arrangement: Arrangement,
    /// Whether rows of A are normed.
    pub normed: bool,
    /// Whether columns are gated, so that the result has half as many.
    pub gated: bool,
}

/// How the matrices of a result lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Arrangement {
    /// One after the other: (…, batch, m, n).
    #[default]
    InTurn,
    /// Those of the last batch dimension beside each other, row by row: (…, m, batch, n).
    SideBySide,
}

impl Arrangement {
    /// Where a result of this shape (…, m, n) lies: its view of what is dense in memory.
    ///
    /// # Errors
    ///
    /// Candle's.
    pub fn layout(self, shape: &Shape) -> Result<Layout> {
        match (self, shape.rank()) {
            (Arrangement::SideBySide, rank @ 3..) => {
                Layout::contiguous(self.stored(shape)).transpose(rank - 3, rank - 2)
            }
            _ => Ok(Layout::contiguous(shape)),
        }
    }

    /// The shape in memory of a result of this shape (…, m, n).
    pub fn stored(self, shape: &Shape) -> Shape {
        let mut dims = shape.dims().to_vec();
        if let (Arrangement::SideBySide, [.., batch, m, _]) = (self, &mut dims[..]) {
            std::mem::swap(batch, m);
        }
        dims.into()
    }
}

impl MatmulCall {
    /// Layouts of the operands; D has none, gets its shape from A and B, and lies as `asked` has it. C and the residual have that
    /// shape (a broadcast view will do), the bias n elements. Nothing may be empty.
    pub fn new(layouts: &Operands<Option<&Layout>>, asked: &Asked) -> Result<Self> {
        let Operands { c, bias, residual, .. } = *layouts;
        let (Some(a), Some(b)) = (layouts.a, layouts.b) else {
            bail!("a product has two factors, and one of them is missing");
        };
        let product = result_shape(a.shape(), b.shape())?;
        let (rank, n) = (product.rank(), product.dims()[product.rank() - 1]);
        let shape = match asked.gated {
            true => Shape::from([&product.dims()[..rank - 1], &[n / 2]].concat()),
            false => product,
        };
        let dims = shape.dims();
        let (m, k) = (dims[rank - 2], a.dims()[a.dims().len() - 1]);
        for (name, layout) in [("C", c), ("the residual", residual)] {
            if let Some(layout) = layout.filter(|layout| layout.shape() != &shape) {
                bail!("{name} has shape {:?} where the product has {shape:?}", layout.shape());
            }
        }
        if let Some(bias) = bias.filter(|bias| bias.dims() != [n]) {
            bail!(
                "the bias has shape {:?} where the product has {n} columns",
                bias.shape()
            );
        }
        let result = asked.arrangement.layout(&shape)?;

        let mut outer: Vec<BatchDim> = (0..rank - 2)
            .map(|i| {
                let layouts = Operands {
                    d: Some(&result),
                    bias: None,
                    ..*layouts
                };
                BatchDim {
                    extent: dims[i],
                    strides: layouts.map(|layout| layout.map_or(0, |layout| batch_stride(layout, rank, i))),
                }
            })
            .collect();
        merge_batch_dims(&mut outer);
        let inner = outer.split_off(outer.len().saturating_sub(MAX_BATCH_DIMS));

        let start = Operands {
            d: 0,
            ..layouts.map(|layout| layout.map_or(0, Layout::start_offset))
        };
        let operand = |layout: &Layout, dtype: DType, stride_of: fn(&Operands<i64>) -> i64| {
            let strides = &layout.stride()[layout.stride().len() - 2..];
            let mut batch_strides = [0; MAX_BATCH_DIMS];
            for (stride, dim) in batch_strides[MAX_BATCH_DIMS - inner.len()..].iter_mut().zip(&inner) {
                *stride = stride_of(&dim.strides);
            }
            let outer_strides = outer.iter().map(|dim| stride_of(&dim.strides) as usize);
            OperandLayout::strided(strides[0] as i64, strides[1] as i64)
                .with_batch_strides(batch_strides)
                .with_align(alignment(dtype, outer_strides.chain([layout.start_offset()])))
        };
        let types = asked.types;
        let mut problem = GemmProblem::new(m, n, k, operand(a, types.a, |of| of.a), operand(b, types.b, |of| of.b));
        problem.types = types;
        problem.d = operand(&result, types.d, |of| of.d);
        problem.precision = asked.precision;
        problem.epilogue = Epilogue {
            c: c.map(|c| operand(c, types.c, |of| of.c)),
            device_scalars: false,
            bias: bias.is_some(),
            activation: asked.activation,
            residual: residual.map(|residual| operand(residual, types.residual, |of| of.residual)),
            combine: asked.combine,
            gated: asked.gated,
        };
        problem.normed = asked.normed;
        for (extent, dim) in problem.batch_dims[MAX_BATCH_DIMS - inner.len()..]
            .iter_mut()
            .zip(&inner)
        {
            *extent = dim.extent;
        }
        Ok(MatmulCall {
            problem,
            shape: asked.arrangement.stored(&shape),
            outer,
            start,
        })
    }

    /// The problem of operands whose storages start at these addresses: what the layouts promise of their first elements'
    /// alignment holds only as far as the storages keep it, and one that candle has not allocated may start anywhere.
    ///
    /// # Errors
    ///
    /// If a storage starts amid an element.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // the CPU reads one element at a time
    pub fn problem_at(&self, starts: &Operands<u64>) -> Result<GemmProblem> {
        let at = |name: &str, layout: OperandLayout, dtype: DType, start: u64| {
            let element = dtype.size();
            if !start.is_multiple_of(element as u64) {
                bail!("{name} starts at address {start:#x}, which is no multiple of the {element} bytes of an element");
            }
            let align = 1 << start.trailing_zeros().min(MAX_ALIGN.trailing_zeros());
            Ok(layout.with_align(layout.align.min(align)))
        };
        let types = self.problem.types;
        let mut problem = self.problem;
        problem.a = at("A's storage", problem.a, types.a, starts.a)?;
        problem.b = at("B's storage", problem.b, types.b, starts.b)?;
        problem.d = at("the result's storage", problem.d, types.d, starts.d)?;
        if let Some(c) = &mut problem.epilogue.c {
            *c = at("C's storage", *c, types.c, starts.c)?;
        }
        if let Some(residual) = &mut problem.epilogue.residual {
            *residual = at("the residual's storage", *residual, types.residual, starts.residual)?;
        }
        // Kernels look at the bias's address themselves.
        at(
            "the bias's storage",
            OperandLayout::row_major(problem.n),
            types.bias,
            starts.bias,
        )?;
        Ok(problem)
    }

    /// Where each launch begins, in the order of the results.
    pub fn launches(&self) -> impl ExactSizeIterator<Item = Operands<usize>> + '_ {
        let count: usize = self.outer.iter().map(|dim| dim.extent).product();
        (0..count).map(|launch| {
            let mut at = self.start;
            let mut rest = launch;
            for dim in self.outer.iter().rev() {
                let index = rest % dim.extent;
                rest /= dim.extent;
                at = at.zip(dim.strides).map(|(at, stride)| at + index * stride as usize);
            }
            at
        })
    }
}

/// Stride of an operand along batch dimension `i` of a result of this rank: 0 where it is broadcast.
fn batch_stride(layout: &Layout, rank: usize, i: usize) -> i64 {
    let missing = rank - layout.dims().len();
    match i.checked_sub(missing) {
        Some(i) if layout.dims()[i] != 1 => layout.stride()[i] as i64,
        _ => 0,
    }
}

/// The largest power of two, in bytes and up to [`MAX_ALIGN`], that divides all of these numbers of elements of this type.
fn alignment(dtype: DType, elements: impl Iterator<Item = usize>) -> u32 {
    elements.fold(MAX_ALIGN, |align, elements| {
        let zeros = (elements * dtype.size()).trailing_zeros();
        if zeros < align.trailing_zeros() {
            1 << zeros
        } else {
            align
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn alignment_is_that_of_offsets_strides_and_addresses() {
        let mut rng = StdRng::seed_from_u64(3);
        for _ in 0..1000 {
            let offset = rng.random_range(0..9);
            let layout = |shape: &[usize]| {
                let dense = Layout::contiguous(shape);
                Layout::new(shape.into(), dense.stride().to_vec(), offset)
            };
            let (m, n, k) = (3, rng.random_range(1..9), rng.random_range(1..9));
            let (a, b, d) = (layout(&[m, k]), layout(&[k, n]), layout(&[m, n]));
            let layouts = Operands {
                a: Some(&a),
                b: Some(&b),
                c: Some(&d),
                residual: Some(&d),
                ..Operands::default()
            };
            let dtype = [DType::F32, DType::F16, DType::BF16][rng.random_range(0..3)];
            let asked = Asked {
                types: ElementTypes::all_of(dtype),
                precision: Precision::Fp32,
                activation: Activation::Identity,
                combine: Combine::Add,
                arrangement: Arrangement::default(),
                normed: false,
                gated: false,
            };
            let product = MatmulCall::new(&layouts, &asked).unwrap();
            let starts = Operands::default().map(|_: u64| 0x7000 + dtype.size() as u64 * rng.random_range(0..16u64));
            let problem = product.problem_at(&starts).unwrap();
            let epilogue = &problem.epilogue;
            let layouts = [problem.a, problem.b, epilogue.c.unwrap(), epilogue.residual.unwrap()];
            for (layout, start) in layouts.iter().zip([starts.a, starts.b, starts.c, starts.residual]) {
                let first = start + (offset * dtype.size()) as u64;
                assert!(first.is_multiple_of(layout.align.into()), "{layout:?} at {first:#x}");
                // No less than what holds of storage and offset apart.
                let each = |x: u64| 1 << x.trailing_zeros().min(4);
                let expected: u32 = each(start).min(each((offset * dtype.size()) as u64));
                assert_eq!(layout.align, expected, "{layout:?} at {first:#x}");
            }
            assert!(starts.d.is_multiple_of(problem.d.align.into()));
            let amid = Operands { b: 0x7001, ..starts };
            assert!(product.problem_at(&amid).unwrap_err().to_string().contains("0x7001"));
        }
    }
}
