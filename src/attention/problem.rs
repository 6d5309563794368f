//! What is asked: sizes, strides and types, without data.

use super::refusal::Refusal;
use super::views::Views;
use crate::device::VECTOR_BYTES;
use crate::gemm::operands::DType;
use std::fmt;

/// A dimension that all operands are walked along: elements between neighbours in each, 0 where they share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Axis {
    /// How many there are.
    pub extent: usize,
    /// Elements between neighbours.
    pub strides: Views<i64>,
}

impl Axis {
    const ONE: Axis = Axis {
        extent: 1,
        strides: Views {
            query: 0,
            key: 0,
            value: 0,
            mask: 0,
            out: 0,
        },
    };

    /// Whether this axis goes on where `inner` ends, in every operand that `counts`.
    fn continues(&self, inner: &Axis, counts: Views<bool>) -> bool {
        let pairs = self.strides.zip(inner.strides).zip(counts);
        let goes_on = |((outer, inner_stride), counts): ((i64, i64), bool)| {
            !counts || outer == inner_stride * inner.extent as i64
        };
        pairs.map(goes_on).each().into_iter().all(|goes_on| goes_on)
    }
}

/// An operand as a tensor: (…, heads, rows, columns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described<'a> {
    /// Its dimensions.
    pub dims: &'a [usize],
    /// Elements between neighbours along each.
    pub strides: &'a [usize],
    /// What its elements are, if kernels compute with that.
    pub dtype: Option<DType>,
    /// Bytes that the address of its first element is a multiple of.
    pub align: u32,
}

/// Rows of operands start on so many bytes.
pub const ALIGN: u32 = VECTOR_BYTES as u32;

/// Sizes are smaller than this, so that a kernel's ints hold them and a tile more.
const LIMIT: usize = 1 << 30;

/// What attention computes. Rows are whole vectors of [`ALIGN`] bytes, without gaps and aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionProblem {
    /// Of all operands.
    pub dtype: DType,
    /// Rows of Q, of a head.
    pub queries: usize,
    /// Rows of K and V.
    pub keys: usize,
    /// Elements of a row of Q and K.
    pub width: usize,
    /// Elements of a row of V.
    pub value_width: usize,
    /// Elements between neighbouring rows: queries of Q, mask and result, keys of K and V.
    pub rows: Views<i64>,
    /// Whether there is a mask, and if so the elements between its neighbouring keys.
    pub mask_key: Option<i64>,
    /// The batch dimensions, outermost first.
    pub batch: [Axis; 2],
}

impl AttentionProblem {
    /// The problem of Q (…, heads, queries, width), K (…, heads, keys, width), V (…, heads, keys, value's width) and a mask (…, heads,
    /// queries, keys), with batch dimensions that are broadcast. The result is dense, (…, queries, heads, value's width).
    ///
    /// Heads that share keys and values, of one query each, are the queries of one head.
    ///
    /// # Errors
    ///
    /// What no kernel takes.
    pub fn new(
        query: &Described,
        key: &Described,
        value: &Described,
        mask: Option<&Described>,
    ) -> Result<Self, Refusal> {
        let ([q_batch @ .., queries, width], [k_batch @ .., keys, k_width], [v_batch @ .., v_keys, value_width]) =
            (query.dims, key.dims, value.dims)
        else {
            return Err(Refusal::Shapes);
        };
        let scores_batch = broadcast(q_batch, k_batch).ok_or(Refusal::Shapes)?;
        let batch = broadcast(&scores_batch, v_batch).ok_or(Refusal::Shapes)?;
        let fits = |mask: &Described| {
            let scores = [&scores_batch[..], &[*queries, *keys]].concat();
            broadcast(mask.dims, &scores).is_some_and(|both| both == scores) && mask.dims.len() <= scores.len()
        };
        if width != k_width || keys != v_keys || batch.is_empty() || !mask.is_none_or(fits) {
            return Err(Refusal::Shapes);
        }
        if batch
            .iter()
            .chain([queries, width, keys, value_width])
            .any(|&extent| extent == 0)
        {
            return Err(Refusal::Empty);
        }
        let operands = [("queries", query), ("keys", key), ("values", value)];
        let dtype = match query.dtype {
            Some(dtype @ (DType::F32 | DType::F16 | DType::BF16))
                if operands.iter().all(|(_, of)| of.dtype == Some(dtype))
                    && mask.is_none_or(|mask| mask.dtype == Some(dtype)) =>
            {
                dtype
            }
            _ => {
                let types = Views {
                    query: query.dtype,
                    key: key.dtype,
                    value: value.dtype,
                    mask: mask.map_or(query.dtype, |mask| mask.dtype),
                    out: query.dtype,
                };
                return Err(Refusal::Types { types });
            }
        };
        for (operand, of) in operands {
            check_rows(operand, of, dtype)?;
        }
        if batch.iter().chain([queries, keys]).any(|&extent| extent >= LIMIT) {
            return Err(Refusal::TooLarge);
        }

        let rank = batch.len();
        let along = |of: &Described, i: usize| stride_along(of, rank + 2, i);
        let of_mask = |i: usize| mask.map_or(0, |mask| along(mask, i));
        // The result, from its innermost dimension on: columns, heads, queries, and then the outer batch dimensions.
        let heads = batch[rank - 1];
        let mut axes = Vec::with_capacity(rank);
        // Broadcast views may have more rows than memory has bytes.
        let sizes = [*queries, *value_width].into_iter().chain(batch.iter().copied());
        let elements = sizes.map(|size| size as i64).try_fold(1, i64::checked_mul);
        if elements.is_none() {
            return Err(Refusal::TooLarge);
        }
        let mut out = (queries * heads * value_width) as i64;
        for (i, &extent) in batch.iter().enumerate().rev() {
            let of_out = if i == rank - 1 { *value_width as i64 } else { out };
            if i != rank - 1 {
                out *= extent as i64;
            }
            let strides = Views {
                query: along(query, i),
                key: along(key, i),
                value: along(value, i),
                mask: of_mask(i),
                out: of_out,
            };
            axes.insert(0, Axis { extent, strides });
        }
        let mut rows = Axis {
            extent: *queries,
            strides: Views {
                query: along(query, rank),
                key: along(key, rank),
                value: along(value, rank),
                mask: of_mask(rank),
                out: (heads * value_width) as i64,
            },
        };
        axes.retain(|axis| axis.extent > 1);
        fold_shared(&mut axes, &mut rows);
        merge(&mut axes);
        let batch = match axes[..] {
            [] => [Axis::ONE; 2],
            [inner] => [Axis::ONE, inner],
            [outer, inner] => [outer, inner],
            _ => return Err(Refusal::BatchDims { dims: axes.len() }),
        };
        let problem = AttentionProblem {
            dtype,
            queries: rows.extent,
            keys: *keys,
            width: *width,
            value_width: *value_width,
            rows: rows.strides,
            mask_key: mask.map(|mask| along(mask, rank + 1)),
            batch,
        };
        match problem.queries < LIMIT && problem.heads() < LIMIT {
            true => Ok(problem),
            false => Err(Refusal::TooLarge),
        }
    }

    /// Heads, of all batches.
    pub fn heads(&self) -> usize {
        self.batch.iter().map(|axis| axis.extent).product()
    }

    /// Multiply-adds and their additions, of scores and weighted values.
    pub fn flops(&self) -> f64 {
        2.0 * self.heads() as f64 * self.queries as f64 * self.keys as f64 * (self.width + self.value_width) as f64
    }

    /// Bytes of one operand's numbers, if each head has its own: of so many rows of so many elements.
    fn bytes_of(&self, rows: usize, width: usize, strides: impl Fn(&Axis) -> i64) -> f64 {
        let own = self.batch.iter().filter(|axis| strides(axis) != 0);
        let heads: usize = own.map(|axis| axis.extent).product();
        heads as f64 * rows as f64 * width as f64 * self.dtype.size() as f64
    }

    /// Bytes that are read and written at least once.
    pub fn bytes(&self) -> f64 {
        self.bytes_of(self.queries, self.width, |axis| axis.strides.query)
            + self.bytes_of(self.keys, self.width, |axis| axis.strides.key)
            + self.bytes_of(self.keys, self.value_width, |axis| axis.strides.value)
            + self.bytes_of(self.queries, self.value_width, |axis| axis.strides.out)
    }

    /// Bytes of all scores.
    pub fn score_bytes(&self) -> f64 {
        self.heads() as f64 * self.queries as f64 * self.keys as f64 * self.dtype.size() as f64
    }
}

impl fmt::Display for AttentionProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttentionProblem {
            queries,
            keys,
            width,
            value_width,
            dtype,
            ..
        } = self;
        write!(
            f,
            "{} heads of {queries} queries and {keys} keys, {dtype}, width {width}",
            self.heads()
        )?;
        if value_width != width {
            write!(f, " and {value_width}")?;
        }
        match self.mask_key {
            Some(_) => write!(f, ", masked"),
            None => Ok(()),
        }
    }
}

/// The batch dimensions that both are broadcast to.
fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let dim = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    let both = |i: usize| match (dim(a, i), dim(b, i)) {
        (x, y) if x == y => Some(x),
        (1, y) => Some(y),
        (x, 1) => Some(x),
        _ => None,
    };
    (0..rank).map(both).collect()
}

/// Elements between neighbours along dimension `i` of a shape of this rank: 0 where the operand is broadcast.
fn stride_along(of: &Described, rank: usize, i: usize) -> i64 {
    match (i + of.dims.len()).checked_sub(rank) {
        Some(i) if of.dims[i] != 1 => of.strides[i] as i64,
        _ => 0,
    }
}

/// Whether rows are whole vectors, without gaps, on whole vectors.
fn check_rows(operand: &'static str, of: &Described, dtype: DType) -> Result<(), Refusal> {
    let (vector, rank) = (ALIGN as usize / dtype.size(), of.dims.len());
    let (width, stride) = (of.dims[rank - 1], of.strides[rank - 1]);
    if width > 1 && stride != 1 {
        return Err(Refusal::Gaps { operand, stride });
    }
    if !width.is_multiple_of(vector) {
        return Err(Refusal::RaggedWidth { operand, width, vector });
    }
    let walked = of
        .dims
        .iter()
        .zip(of.strides)
        .take(rank - 1)
        .filter(|(&extent, _)| extent > 1);
    let whole = walked.into_iter().all(|(_, stride)| stride.is_multiple_of(vector));
    match whole && of.align.is_multiple_of(ALIGN) {
        true => Ok(()),
        false => Err(Refusal::Unaligned { operand }),
    }
}

/// Makes rows of the innermost axes along which keys and values are shared, as far as queries can be walked with one stride then.
fn fold_shared(axes: &mut Vec<Axis>, rows: &mut Axis) {
    let of_rows = Views {
        query: true,
        mask: true,
        out: true,
        ..Views::default()
    };
    while let Some(axis) = axes.last().copied() {
        let shared = axis.strides.key == 0 && axis.strides.value == 0;
        let (key, value) = (rows.strides.key, rows.strides.value);
        if !shared || !(rows.extent == 1 || axis.continues(rows, of_rows)) {
            return;
        }
        let strides = if rows.extent == 1 { axis.strides } else { rows.strides };
        *rows = Axis {
            extent: rows.extent * axis.extent,
            strides: Views { key, value, ..strides },
        };
        axes.pop();
    }
}

/// Merges neighbours that one stride walks in all operands.
fn merge(axes: &mut Vec<Axis>) {
    let all = Views::<()>::default().map(|()| true);
    for i in (1..axes.len()).rev() {
        if axes[i - 1].continues(&axes[i], all) {
            axes[i].extent *= axes[i - 1].extent;
            axes.remove(i - 1);
        }
    }
}
