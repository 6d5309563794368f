//! When a product may do the work of the kernel that follows it, and what product that is.

use super::neighbour::{Neighbour, Operation};
use super::node::{Chain, Work};
use crate::device::VECTOR_BYTES;
use crate::gemm::launch::args::Addresses;
use crate::gemm::operands::Operands;
use crate::gemm::{Activation, Combine, GemmProblem, OperandLayout, MAX_BATCH_DIMS};

/// A product in a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::candle::graph) struct Product {
    /// The place of its kernel in the chain.
    pub place: usize,
    /// What is asked.
    pub problem: GemmProblem,
    /// Where its operands are.
    pub at: Addresses,
    /// α, where it is no number in device memory.
    pub alpha: f32,
}

/// Why a product leaves the next kernel alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The result is not in memory that the graph allocates and frees, apart from all that the product reads.
    Kept,
    /// Not one node after the product touches the result, but none or several.
    Readers,
    /// Something runs in between that could be in the way, or an operand's memory goes.
    Between,
    /// A node may begin before the one before it has ended: it waits for that one by itself, and for no other.
    Early,
    /// What reads the result is no kernel whose work is known.
    Stranger,
    /// The kernel does not read the result once, whole and in order.
    View,
    /// The other operand's elements do not lie as those of a row or a matrix can.
    Layout,
    /// The epilogue does not do this after what it does already.
    Order,
    /// What the kernel writes is not memory of the graph's own that the product reads nothing of.
    Place,
}

/// The product with one more of the kernels that follow it each, at the places of those kernels: as many as there are. `view` reads
/// so many numbers at an address in device memory, as they are whenever the graph runs.
pub(in crate::candle::graph) fn stages(
    chain: &Chain,
    product: &Product,
    view: impl Fn(u64, usize) -> Option<Vec<u64>>,
) -> Vec<Product> {
    let next = |product: &Product| with_next(chain, product, &view).ok();
    std::iter::successors(next(product), next).collect()
}

/// The product that does the work of the kernel after it too, at that kernel's place.
pub(super) fn with_next(
    chain: &Chain,
    product: &Product,
    view: impl Fn(u64, usize) -> Option<Vec<u64>>,
) -> Result<Product, Obstacle> {
    let &Product {
        place: from,
        problem,
        at,
        alpha,
    } = product;
    let Operands {
        a,
        b,
        c,
        d,
        bias,
        residual,
    } = at.operands;
    let operands = [a, b, c, bias, residual, at.alpha, at.beta, at.norm].into_iter();
    let operands = operands.filter(|&address| address != 0);
    // Nothing comes after a gate.
    if problem.epilogue.gated {
        return Err(Obstacle::Order);
    }

    let own = chain.memory(d, from).filter(|own| chain.frees(own));
    let own = own.ok_or(Obstacle::Kept)?;
    if operands.clone().any(|address| own.memory.contains(&address)) {
        return Err(Obstacle::Kept);
    }
    let mut users = chain.users(own).filter(|&place| place != from);
    let (Some(place), None) = (users.next(), users.next()) else {
        return Err(Obstacle::Readers);
    };
    if place < from {
        return Err(Obstacle::Readers);
    }
    let is_operand = |start: u64| {
        let mut memory = operands.clone().filter_map(|address| chain.memory(address, from));
        memory.any(|life| life.memory.start == start)
    };
    let in_the_way = |work: &Work| match work {
        Work::Allocate(_) => false,
        Work::Free(start) => is_operand(*start),
        _ => true,
    };
    if chain.steps[from + 1..place].iter().any(|step| in_the_way(&step.work)) {
        return Err(Obstacle::Between);
    }
    if !chain.steps[from..=place].iter().all(|step| step.waits) {
        return Err(Obstacle::Early);
    }

    let Work::Kernel { name, parameters } = &chain.steps[place].work else {
        return Err(Obstacle::Stranger);
    };
    let neighbour = Neighbour::of(name, parameters).ok_or(Obstacle::Stranger)?;
    let (problem, other) = seen(chain, &problem, &neighbour, d, view)?;

    let result = chain.memory(neighbour.result, place).ok_or(Obstacle::Place)?;
    let others = other.map(|(address, _)| address);
    let is_read = operands.chain(others).any(|address| result.memory.contains(&address));
    if result == own || is_read {
        return Err(Obstacle::Place);
    }

    let mut product = Product {
        place,
        problem,
        at,
        alpha,
    };
    product.problem.d.align = align_of(neighbour.result);
    product.at.operands.d = neighbour.result;
    product.compute(neighbour.operation, other)?;
    Ok(product)
}

/// The kernel's other operand, if it has one, as the product's epilogue would read it: its address and layout, and the same problem
/// with the dimensions that this takes.
fn seen(
    chain: &Chain,
    problem: &GemmProblem,
    neighbour: &Neighbour,
    d: u64,
    view: impl Fn(u64, usize) -> Option<Vec<u64>>,
) -> Result<(GemmProblem, Option<(u64, OperandLayout)>), Obstacle> {
    let sizes = sizes(problem);
    let elements = count(&sizes).ok_or(Obstacle::View)?;
    let whole = neighbour.elements == elements as u64 && neighbour.dtype == problem.types.d && is_dense(problem);
    // Which of the operands is the result of the product: one of them.
    let which = match neighbour.operands.map(|address| address == d) {
        [true, false] => 0,
        [false, true] => 1,
        _ => return Err(Obstacle::View),
    };
    if !whole {
        return Err(Obstacle::View);
    }
    let rank = neighbour.rank as usize;
    let (extents, strides) = if neighbour.view == 0 || rank == 0 {
        (vec![elements], [vec![1], vec![1]])
    } else {
        // What lies there must be the same in each run.
        let words = neighbour.view_words().filter(|_| !chain.is_own(neighbour.view));
        let words = words
            .and_then(|words| view(neighbour.view, words))
            .ok_or(Obstacle::View)?;
        let numbers = words.iter().map(|&word| usize::try_from(word));
        let numbers = numbers.collect::<Result<Vec<usize>, _>>().map_err(|_| Obstacle::View)?;
        let mut parts = numbers.chunks_exact(rank).map(<[usize]>::to_vec);
        let extents = parts.next().ok_or(Obstacle::View)?;
        let first = parts.next().ok_or(Obstacle::View)?;
        let second = parts.next().unwrap_or_else(|| first.clone());
        (extents, [first, second])
    };
    let dense = viewed(&[elements], &[1], &sizes);
    if count(&extents) != Some(elements) || viewed(&extents, &strides[which], &sizes) != dense {
        return Err(Obstacle::View);
    }
    let address = neighbour.operands[1 - which];
    if !matches!(neighbour.operation, Operation::Add | Operation::Multiply) {
        return Ok((*problem, None));
    }
    // A mask may be one for all heads, where sequences and heads are one batch.
    let inner = extents.iter().rev().scan(1, |inner, &extent| {
        *inner *= extent;
        Some(*inner / (problem.m * problem.n))
    });
    let split = inner.filter_map(|inner| split(problem, inner));
    let found = std::iter::once(*problem).chain(split).find_map(|problem| {
        let strides = viewed(&extents, &strides[1 - which], &self::sizes(&problem))?;
        Some((problem, strides))
    });
    let (problem, [batch_strides @ .., row, col]) = found.ok_or(Obstacle::Layout)?;
    let layout = OperandLayout::strided(row, col).with_batch_strides(batch_strides);
    Ok((problem, Some((address, layout.with_align(align_of(address))))))
}

/// The same problem with its last batch dimension as two, the last of `inner` matrices; `None` if that cannot be.
fn split(problem: &GemmProblem, inner: usize) -> Option<GemmProblem> {
    let [unused, b1, b2, b3] = problem.batch_dims;
    if unused != 1 || inner < 2 || inner >= b3 || b3 % inner != 0 {
        return None;
    }
    let mut problem = *problem;
    problem.batch_dims = [b1, b2, b3 / inner, inner];
    let epilogue = &mut problem.epilogue;
    let layouts = [Some(&mut problem.a), Some(&mut problem.b), Some(&mut problem.d)].into_iter();
    let layouts = layouts.chain([epilogue.c.as_mut(), epilogue.residual.as_mut()]);
    for layout in layouts.flatten() {
        let [_, s1, s2, s3] = layout.batch_strides;
        layout.batch_strides = [s1, s2, s3 * inner as i64, s3];
    }
    Some(problem)
}

impl Product {
    /// Adds the operation to the epilogue: `activation(α·acc + β·C + bias) + residual`, or times the residual.
    fn compute(&mut self, operation: Operation, other: Option<(u64, OperandLayout)>) -> Result<(), Obstacle> {
        let Product { problem, at, alpha, .. } = self;
        let GemmProblem { n, types, epilogue, .. } = problem;
        let open = epilogue.residual.is_none();
        let linear = open && epilogue.activation == Activation::Identity;
        match (operation, other) {
            (Operation::Scale(factor), None) => {
                let allowed = linear && !epilogue.bias && epilogue.c.is_none() && !epilogue.device_scalars;
                let scaled = *alpha * factor;
                if !allowed || !scaled.is_normal() {
                    return Err(Obstacle::Order);
                }
                *alpha = scaled;
            }
            (Operation::Activate(activation), None) if linear => epilogue.activation = activation,
            (Operation::Add, Some((address, layout))) if linear && !epilogue.bias && is_row(&layout, *n) => {
                epilogue.bias = true;
                types.bias = types.d;
                at.operands.bias = address;
                at.bias_stride = 1;
            }
            (Operation::Add | Operation::Multiply, Some((address, layout))) if open => {
                epilogue.residual = Some(layout);
                epilogue.combine = match operation {
                    Operation::Multiply => Combine::Multiply,
                    _ => Combine::Add,
                };
                types.residual = types.d;
                at.operands.residual = address;
            }
            _ => return Err(Obstacle::Order),
        }
        Ok(())
    }
}

/// Whether it is one dense row for all rows of all matrices.
fn is_row(layout: &OperandLayout, n: usize) -> bool {
    layout.batch_strides == [0; MAX_BATCH_DIMS] && layout.row_stride == 0 && (layout.col_stride == 1 || n == 1)
}

/// More alignment brings nothing.
const MAX_ALIGN: u64 = VECTOR_BYTES as u64;

fn align_of(address: u64) -> u32 {
    1 << address.trailing_zeros().min(MAX_ALIGN.trailing_zeros())
}

/// Batch dimensions, rows and columns.
const DIMS: usize = MAX_BATCH_DIMS + 2;

/// The extents of a result.
fn sizes(problem: &GemmProblem) -> [usize; DIMS] {
    let [b0, b1, b2, b3] = problem.batch_dims;
    [b0, b1, b2, b3, problem.m, problem.n]
}

fn count(extents: &[usize]) -> Option<usize> {
    extents
        .iter()
        .try_fold(1usize, |count, &extent| count.checked_mul(extent))
}

/// Whether the elements of the result follow one another in memory.
fn is_dense(problem: &GemmProblem) -> bool {
    let [b0, b1, b2, b3] = problem.d.batch_strides;
    let strides = [b0, b1, b2, b3, problem.d.row_stride, problem.d.col_stride];
    let sizes = sizes(problem);
    let mut step = 1usize;
    let pairs = sizes.iter().zip(strides).rev();
    let mut in_order = pairs.map(|(&extent, stride)| {
        let follows = extent == 1 || i64::try_from(step) == Ok(stride);
        step = step.saturating_mul(extent);
        follows
    });
    in_order.all(|follows| follows)
}

/// The strides by which elements that lie so along `extents` are walked along `to`, which are as many: 0 along dimensions of one;
/// `None` where no strides do that.
fn viewed<T: TryInto<i64> + Copy>(extents: &[usize], strides: &[T], to: &[usize; DIMS]) -> Option<[i64; DIMS]> {
    // Innermost first, neighbours that one stride walks as one.
    let mut axes: Vec<(usize, i64)> = Vec::new();
    for (&extent, &stride) in extents.iter().zip(strides).rev() {
        let stride: i64 = stride.try_into().ok()?;
        match axes.last_mut() {
            _ if extent == 1 => (),
            Some((inner, step)) if i64::try_from(*inner).ok()?.checked_mul(*step)? == stride => *inner *= extent,
            _ => axes.push((extent, stride)),
        }
    }
    let mut axes = axes.into_iter();
    let (mut left, mut step) = (1, 0);
    let mut strides = [0; DIMS];
    for (stride, &extent) in strides.iter_mut().zip(to).rev() {
        if extent == 1 {
            continue;
        }
        if left == 1 {
            (left, step) = axes.next()?;
        }
        if left % extent != 0 {
            return None;
        }
        *stride = step;
        left /= extent;
        step = step.checked_mul(i64::try_from(extent).ok()?)?;
    }
    (left == 1 && axes.next().is_none()).then_some(strides)
}
