//! Products as models make them, drawn rather than listed: so that a planner is measured, and fitted, on what it was not made
//! for. There is no GPU in this, and no knowledge of kernels. The same seed draws the same products on every machine, and those
//! of a class are the same whichever other classes are drawn beside it.

pub mod families;
mod rng;
mod view;

pub use view::{Handed, Operand, Tensor, View};

use candle_sgemm::gemm::operands::MAX_BATCH_DIMS;
use candle_sgemm::gemm::{Access, DType, ElementTypes, GemmProblem, OperandLayout, Precision};
use families::{Family, CHANNELS, EDGES, FAMILIES, HEADS, HEAD_SIZES, OUTER_CHANNELS, SPANS, STEMS, VOCABULARIES};
use rng::Rng;
use std::fmt;

/// Multiplications of a product at most, of all its matrices.
pub const MOST_WORK: f64 = 1e12;
/// Bytes of both operands at most, of the storages of which they are views.
pub const MOST_OPERAND_BYTES: usize = 4 << 30;
/// Bytes of a result at most.
pub const MOST_RESULT_BYTES: usize = 2 << 30;
/// Bytes at most of what candle copies before it multiplies.
pub const MOST_COPIED_BYTES: usize = 3 << 29;
/// Matrices of a batch at most.
const MOST_MATRICES: usize = 65_535;
/// Rows of an input at most, those of all its matrices.
const MOST_ROWS: usize = 32_768;
/// With so many rows or fewer, a weight's way from memory counts: other layers have driven it out of the L2.
const FEW_ROWS: usize = 4096;
/// With so many queries or fewer, the same of what was kept of the keys and values before.
const FEW_QUERIES: usize = 16;
/// Bytes that are read at once where rows start on them.
const VECTOR_BYTES: usize = 16;
/// What is appended to a row, at most, so that the next one starts elsewhere.
const MOST_APPENDED: usize = 3;

/// What a product is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A linear layer between widths of real families.
    Layer,
    /// The last layer: as many columns as there are tokens.
    Head,
    /// Queries by keys, and what comes of them by values.
    Attention,
    /// Convolutions, as candle multiplies them.
    Convolution,
    /// The way back: long sums.
    Gradient,
    /// Whatever fits nothing.
    Odd,
}

impl Class {
    pub const ALL: [Class; 6] = [
        Class::Layer,
        Class::Head,
        Class::Attention,
        Class::Convolution,
        Class::Gradient,
        Class::Odd,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Class::Layer => "layer",
            Class::Head => "head",
            Class::Attention => "attention",
            Class::Convolution => "convolution",
            Class::Gradient => "gradient",
            Class::Odd => "odd",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Class::ALL
            .into_iter()
            .find(|class| class.name() == text)
            .ok_or_else(|| {
                let names = Class::ALL.map(Class::name).join(", ");
                format!("unknown class '{text}': choose of {names}")
            })
    }
}

/// A product, without data. D is dense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Drawn {
    pub class: Class,
    /// What the elements are.
    pub dtype: DType,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Matrices along each dimension of the batch, outermost first, 1 where unused.
    pub batch_dims: [usize; MAX_BATCH_DIMS],
    pub a: Operand,
    pub b: Operand,
    /// B comes from memory rather than from the L2.
    pub cold: bool,
}

impl Drawn {
    /// The product of these views, which have the same dimensions before the last two.
    fn of(class: Class, a: &Tensor, b: &Tensor, cold: bool) -> Self {
        let ([m, k], [_, n]) = (a.matrix(), b.matrix());
        debug_assert_eq!(k, b.matrix()[0], "{a:?} {b:?}");
        debug_assert_eq!(a.batch_dims(), b.batch_dims(), "{a:?} {b:?}");
        Drawn {
            class,
            dtype: DType::F32,
            m,
            n,
            k,
            batch_dims: a.batch_dims(),
            a: a.operand(),
            b: b.operand(),
            cold,
        }
    }

    pub fn batch(&self) -> usize {
        self.batch_dims.iter().product()
    }

    pub fn flops(&self) -> f64 {
        2.0 * self.batch() as f64 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// Elements of the result.
    pub fn elements(&self) -> usize {
        self.batch() * self.m * self.n
    }

    /// The problem that a plan is made for.
    pub fn problem(&self, precision: Precision) -> GemmProblem {
        let [a, b] = [self.a, self.b].map(|operand| operand.layout_of(self.dtype));
        let mut problem = GemmProblem::new(self.m, self.n, self.k, a, b);
        problem.types = ElementTypes::all_of(self.dtype);
        let mut stride = (self.m * self.n) as i64;
        let mut strides = [0; MAX_BATCH_DIMS];
        for (step, dim) in strides.iter_mut().zip(self.batch_dims).rev() {
            if dim > 1 {
                *step = stride;
                stride *= dim as i64;
            }
        }
        problem.batch_dims = self.batch_dims;
        problem.d = OperandLayout::row_major(self.n).with_batch_strides(strides);
        problem.precision = precision;
        problem
    }

    /// Whether some row (or column, where an operand is stored so) of an operand or of the result is off 16 bytes.
    pub fn is_off_16_bytes(&self) -> bool {
        let problem = self.problem(Precision::Fp32);
        let Drawn { m, n, k, .. } = *self;
        [(problem.a, m, k), (problem.b, k, n), (problem.d, m, n)]
            .into_iter()
            .map(|(layout, rows, cols)| layout.access(rows, cols, self.dtype))
            .any(|access| !matches!(access, Access::RowVector | Access::ColVector))
    }

    /// How candle hands A and B to cuBLAS.
    pub fn handed(&self) -> [Handed; 2] {
        [
            self.a.handed([self.m, self.k], self.batch_dims),
            self.b.handed([self.k, self.n], self.batch_dims),
        ]
    }

    /// Elements of A and of B that candle copies first.
    pub fn copied_elements(&self) -> [usize; 2] {
        self.handed().map(|handed| match handed.copied {
            Some((dims, _)) => dims.iter().product(),
            None => 0,
        })
    }

    /// Elements of the result by which it is judged: the ends of its first and last row, and others from all over it.
    pub fn sample(&self, count: usize) -> Vec<u64> {
        let last = self.elements() - 1;
        let mut sample = vec![0, self.n - 1, last + 1 - self.n, last];
        let mut rng = Rng::of(&[self.m as u64, self.n as u64, self.k as u64]);
        sample.extend((sample.len()..count).map(|_| rng.between(0, last)));
        sample.into_iter().map(|element| element as u64).collect()
    }

    /// Within what the programs that measure have time and room for.
    fn fits(&self) -> bool {
        let bytes = |elements: usize| elements.saturating_mul(self.dtype.size());
        self.batch() <= MOST_MATRICES
            && self.flops() <= 2.0 * MOST_WORK
            && bytes(self.a.span + self.b.span) <= MOST_OPERAND_BYTES
            && bytes(self.elements()) <= MOST_RESULT_BYTES
            && bytes(self.copied_elements().iter().sum()) <= MOST_COPIED_BYTES
    }
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.class, self.problem(Precision::Fp32).layout_name())?;
        if self.batch() > 1 {
            write!(f, "{} × ", self.batch())?;
        }
        write!(f, "{}×{}×{}", self.m, self.n, self.k)?;
        for (name, operand) in [("A", self.a), ("B", self.b)] {
            if operand.view != View::Dense {
                write!(f, ", {name} {}", operand.view.name())?;
            }
        }
        Ok(())
    }
}

/// Draws the classes in turn, without an end.
#[derive(Clone, Debug)]
pub struct Sampler {
    seed: u64,
    dtype: DType,
    classes: Vec<Class>,
    drawn: usize,
}

impl Sampler {
    /// With no class named, of all.
    pub fn new(seed: u64, classes: &[Class]) -> Self {
        let classes = if classes.is_empty() { &Class::ALL } else { classes };
        Sampler {
            seed,
            dtype: DType::F32,
            classes: classes.to_vec(),
            drawn: 0,
        }
    }

    /// With elements of this type in place of FP32: other numbers of them are 16 bytes, so other products are drawn.
    pub fn with_dtype(self, dtype: DType) -> Self {
        Sampler { dtype, ..self }
    }
}

/// What a product is drawn with.
#[derive(Clone, Copy)]
struct Wanted {
    /// Whether some row is off 16 bytes.
    off: bool,
    /// Elements on 16 bytes.
    vector: usize,
}

impl Wanted {
    /// Any size, or the next one that keeps rows on 16 bytes.
    fn any_or_even(self, size: usize) -> usize {
        match self.off {
            true => size,
            false => size.next_multiple_of(self.vector),
        }
    }
}

impl Iterator for Sampler {
    type Item = Drawn;

    fn next(&mut self) -> Option<Drawn> {
        let class = self.classes[self.drawn % self.classes.len()];
        let number = self.drawn / self.classes.len();
        self.drawn += 1;
        let mut rng = Rng::of(&[self.seed, class as u64, number as u64]);
        let off = number % 2 == 1;
        let wanted = Wanted {
            off,
            vector: VECTOR_BYTES / self.dtype.size(),
        };
        let dtype = self.dtype;
        let draws = std::iter::repeat_with(|| match class {
            Class::Layer => layer(&mut rng, wanted),
            Class::Head => head(&mut rng),
            Class::Attention => attention(&mut rng, wanted),
            Class::Convolution => convolution(&mut rng, wanted),
            Class::Gradient => gradient(&mut rng, wanted),
            Class::Odd => odd(&mut rng, wanted),
        });
        let mut draws = draws.map(|drawn| Drawn { dtype, ..drawn });
        draws.find(|drawn| drawn.is_off_16_bytes() == off && drawn.fits())
    }
}

/// Columns and rows of a weight.
fn widths(rng: &mut Rng, wanted: Wanted) -> (usize, usize) {
    let Family { hidden, inner, keys } = rng.pick(&FAMILIES);
    if wanted.off && rng.once_in(2) {
        // Labels, features as they were counted, and widths with something appended.
        return match rng.below(3) {
            0 => (rng.by_octaves(1, 127), hidden),
            1 => (hidden, rng.by_octaves(1, 511)),
            _ => (hidden, hidden + rng.between(1, MOST_APPENDED)),
        };
    }
    match rng.below(7) {
        0 => (hidden, hidden),
        1 => (inner, hidden),
        2 => (hidden, inner),
        3 => (keys, hidden),
        4 => (hidden + 2 * keys, hidden),
        5 => (2 * inner, hidden),
        _ => (3 * hidden, hidden),
    }
}

/// A batch of so many, and rows for each of them; about `rows` in all.
fn sequences(rng: &mut Rng, rows: usize) -> (usize, usize) {
    let batch = rng.by_octaves(1, rows.min(64));
    (batch, rows / batch)
}

fn layer(rng: &mut Rng, wanted: Wanted) -> Drawn {
    let (n, k) = widths(rng, wanted);
    let rows = rng.by_octaves(1, MOST_ROWS);
    let (batch, length) = sequences(rng, rows);
    // Most weights are stored a row an output, those of GPT-2 and its like a row an input.
    let weight = match rng.once_in(4) {
        true => Tensor::dense(&[k, n]),
        false => Tensor::dense(&[n, k]).t(),
    };
    let cold = rows <= FEW_ROWS;
    let (a, b) = match rng.below(8) {
        0..=3 => (Tensor::dense(&[rows, k]), weight),
        // Channels come first, as a convolution leaves them.
        4 => (Tensor::dense(&[batch, k, length]).t(), weight.repeat(0, batch)),
        // Without what stands in front of each sequence, or only that.
        5 => {
            let skipped = rng.between(1, 5);
            let whole = Tensor::dense(&[batch, skipped + length, k]);
            (whole.narrow(1, skipped, length), weight.repeat(0, batch))
        }
        6 => (Tensor::dense(&[rows, rng.between(2, 512), k]).at(1, 0), weight),
        // One of several parts of what another layer has computed in one go.
        _ => {
            let (parts, appended) = (
                rng.between(2, 3),
                if wanted.off { rng.below(MOST_APPENDED + 1) } else { 0 },
            );
            let whole = Tensor::dense(&[rows, parts * k + appended]);
            let start = rng.below(parts) * k + appended;
            (whole.narrow(1, start, k), weight)
        }
    };
    Drawn::of(Class::Layer, &a, &b, cold)
}

fn head(rng: &mut Rng) -> Drawn {
    let (k, n) = (rng.pick(&FAMILIES).hidden, rng.pick(&VOCABULARIES));
    let rows = match rng.once_in(2) {
        true => rng.between(1, 16),
        false => rng.by_octaves(1, 2048),
    };
    let a = match rng.once_in(4) {
        // The last token of each sequence.
        true => {
            let length = rng.by_octaves(1, 512);
            Tensor::dense(&[rows, length, k]).at(1, length - 1)
        }
        false => Tensor::dense(&[rows, k]),
    };
    let b = match rng.once_in(4) {
        true => Tensor::dense(&[k, n]),
        false => Tensor::dense(&[n, k]).t(),
    };
    Drawn::of(Class::Head, &a, &b, rows <= FEW_ROWS)
}

/// A tensor of heads, `(batch, heads, length, width)`, as one of several models stores it.
#[derive(Clone, Copy)]
enum Stored {
    Dense,
    /// `(batch, length, heads, width)`, as a layer leaves it.
    Heads,
    /// The same, queries, keys and values beside each other.
    Fused,
    /// The beginning of what there is room for.
    Cache,
}

impl Stored {
    fn tensor(self, rng: &mut Rng, [batch, heads, length, width]: [usize; 4]) -> Tensor {
        let to_heads = |tensor: Tensor| tensor.permute(&[0, 2, 1, 3]).called(View::Heads);
        match self {
            Stored::Dense => Tensor::dense(&[batch, heads, length, width]),
            Stored::Heads => to_heads(Tensor::dense(&[batch, length, heads, width])),
            Stored::Fused => to_heads(Tensor::dense(&[batch, length, 3, heads, width]).at(2, rng.below(3))),
            Stored::Cache => {
                let room = length.next_power_of_two().max(256);
                Tensor::dense(&[batch, heads, room, width]).narrow(2, 0, length)
            }
        }
    }
}

fn attention(rng: &mut Rng, wanted: Wanted) -> Drawn {
    let (heads, width, batch) = (rng.pick(&HEADS), rng.pick(&HEAD_SIZES), rng.by_octaves(1, 32));
    let keys = wanted.any_or_even(rng.by_octaves(1, 4096));
    let queries = match rng.below(4) {
        0 | 1 => keys,
        2 => wanted.any_or_even(rng.by_octaves(1, 4096)),
        _ => rng.pick(&[1, 1, 1, 2, 4, 5]),
    };
    let stored = rng.pick(&[
        Stored::Dense,
        Stored::Dense,
        Stored::Heads,
        Stored::Fused,
        Stored::Cache,
    ]);
    let of_queries = if matches!(stored, Stored::Cache) {
        Stored::Dense
    } else {
        stored
    };
    // Several heads of queries look at the same keys.
    let shared = if rng.once_in(5) { rng.pick(&[2, 4, 7, 8]) } else { 1 };
    let cold = queries <= FEW_QUERIES;
    let is_scores = rng.once_in(2);
    let other = stored.tensor(rng, [batch, heads, keys, width]);
    let other = if shared > 1 { other.repeat(2, shared) } else { other };
    let dims = |length: usize, width: usize| match shared {
        1 => vec![batch, heads, length, width],
        _ => vec![batch, heads, shared, length, width],
    };
    let (a, b) = match is_scores {
        true => {
            let a = match shared {
                1 => of_queries.tensor(rng, [batch, heads, queries, width]),
                _ => Tensor::dense(&dims(queries, width)),
            };
            // Some keep their keys as columns.
            let is_turned = matches!(stored, Stored::Dense) && shared == 1 && rng.once_in(4);
            let b = match is_turned {
                true => Tensor::dense(&dims(width, keys)),
                false => other.t(),
            };
            (a, b)
        }
        false => (Tensor::dense(&dims(queries, keys)), other),
    };
    Drawn::of(Class::Attention, &a, &b, cold)
}

/// Every filter looks at every place: `(batch, places, inputs)` by `(outputs, inputs)`, one for the whole batch.
fn places(batch: usize, places: usize, inputs: usize, outputs: usize) -> Drawn {
    let a = Tensor::dense(&[batch, places, inputs]);
    let b = Tensor::dense(&[outputs, inputs]).t().repeat(0, batch);
    Drawn::of(Class::Convolution, &a, &b, batch * places <= FEW_ROWS)
}

fn convolution(rng: &mut Rng, wanted: Wanted) -> Drawn {
    let batch = rng.by_octaves(1, 32);
    let (inside, outputs) = (rng.pick(&CHANNELS), rng.pick(&CHANNELS));
    let (height, width) = match rng.pick(&EDGES) {
        edge if rng.once_in(3) => (edge, rng.pick(&EDGES)),
        edge => (edge, edge),
    };
    let kernel = rng.pick(&[1, 1, 3, 3, 3, 5, 7]);
    match rng.below(if wanted.off { 12 } else { 8 }) {
        // Inside a network of pictures.
        0..=3 => places(batch, height * width, inside * kernel * kernel, outputs),
        // Over time.
        4 | 5 => {
            let length = rng.by_octaves(8, MOST_ROWS);
            places(batch, length, inside * rng.pick(&SPANS), outputs)
        }
        // The way back to a longer time: every place of the input writes a span of the output.
        6 | 10 => {
            let length = wanted.any_or_even(rng.by_octaves(4, MOST_ROWS / 4));
            let a = Tensor::dense(&[batch, inside, length]).t();
            let b = Tensor::dense(&[inside, outputs * rng.pick(&SPANS)]).repeat(0, batch);
            Drawn::of(Class::Convolution, &a, &b, batch * length <= FEW_ROWS)
        }
        // In front, from the picture's own channels.
        7 | 8 => {
            let ((kernel, stride), edge) = (rng.pick(&STEMS), rng.pick(&[224, 256, 320, 384, 512, 640]));
            let side = (edge / stride).max(1);
            places(batch, side * side, rng.pick(&OUTER_CHANNELS) * kernel * kernel, outputs)
        }
        // At the end, to channels that mean something.
        9 => places(
            batch,
            height * width,
            inside * kernel * kernel,
            rng.pick(&OUTER_CHANNELS),
        ),
        // Each channel, or a few of them, by itself.
        _ => {
            let few = rng.pick(&[1, 1, 1, 2, 4, 8]);
            places(batch, height * width, few * rng.pick(&[9, 25, 49]), few)
        }
    }
}

fn gradient(rng: &mut Rng, wanted: Wanted) -> Drawn {
    let (outputs, inputs) = widths(rng, wanted);
    let rows = wanted.any_or_even(rng.by_octaves(64, MOST_ROWS));
    let (a, b) = match rng.below(8) {
        // Of a weight: a sum over all rows of the input.
        0..=2 => (Tensor::dense(&[rows, inputs]).t(), Tensor::dense(&[rows, outputs])),
        // The same of the last layer.
        3 => {
            let tokens = rng.pick(&VOCABULARIES);
            let hidden = rng.pick(&FAMILIES).hidden;
            (Tensor::dense(&[rows, hidden]).t(), Tensor::dense(&[rows, tokens]))
        }
        // Of an input: a sum over all outputs.
        4 => (Tensor::dense(&[rows, outputs]), Tensor::dense(&[outputs, inputs])),
        5 => {
            let (tokens, hidden) = (rng.pick(&VOCABULARIES), rng.pick(&FAMILIES).hidden);
            (Tensor::dense(&[rows, tokens]), Tensor::dense(&[tokens, hidden]))
        }
        // Of keys and values: a sum over all queries.
        6 => {
            let (heads, width, batch) = (rng.pick(&HEADS), rng.pick(&HEAD_SIZES), rng.by_octaves(1, 32));
            let keys = wanted.any_or_even(rng.by_octaves(16, 4096));
            let queries = if rng.once_in(2) {
                keys
            } else {
                wanted.any_or_even(rng.by_octaves(64, 4096))
            };
            (
                Tensor::dense(&[batch, heads, queries, keys]).t(),
                Tensor::dense(&[batch, heads, queries, width]),
            )
        }
        // Of filters: a sum over all places of all pictures, a matrix an input channel.
        _ => {
            let (edge, batch, kernel) = (rng.pick(&EDGES), rng.by_octaves(1, 32), rng.pick(&[1, 3, 3, 5, 7]));
            let (inside, outputs, seen) = (rng.pick(&CHANNELS), rng.pick(&CHANNELS), batch * edge * edge);
            (
                Tensor::dense(&[inside, kernel * kernel, seen]),
                Tensor::dense(&[outputs, seen]).t().repeat(0, inside),
            )
        }
    };
    Drawn::of(Class::Gradient, &a, &b, false)
}

fn odd(rng: &mut Rng, wanted: Wanted) -> Drawn {
    let [m, n, k] = [(); 3].map(|()| wanted.any_or_even(rng.by_octaves(1, 8192)));
    let batch = if rng.once_in(2) { 1 } else { rng.by_octaves(2, 64) };
    let is_shared = rng.once_in(4);
    let mut operand = |rows: usize, cols: usize, batch: Option<usize>| {
        let is_turned = rng.once_in(2);
        let [rows, cols] = if is_turned { [cols, rows] } else { [rows, cols] };
        let with_batch = |dims: &[usize]| batch.into_iter().chain(dims.iter().copied()).collect::<Vec<_>>();
        let last = with_batch(&[rows, cols]).len() - 1;
        let tensor = match rng.below(16) {
            0 => Tensor::dense(&with_batch(&[rows, cols, 2]))
                .at(last + 1, rng.below(2))
                .called(View::Interleaved),
            1..=4 => {
                let (before, after) = (rng.below(33), rng.below(33));
                let [before, after] = [before, after].map(|pad| wanted.any_or_even(pad));
                Tensor::dense(&with_batch(&[rows, before + cols + after])).narrow(last, before, cols)
            }
            5 => Tensor::dense(&with_batch(&[rows + 7, cols])).narrow(last - 1, 3, rows),
            _ => Tensor::dense(&with_batch(&[rows, cols])),
        };
        if is_turned {
            tensor.t()
        } else {
            tensor
        }
    };
    let (a, b) = match (batch, operand(m, k, (batch > 1).then_some(batch))) {
        (1, a) => (a, operand(k, n, None)),
        (_, a) if is_shared => (a, operand(k, n, None).repeat(0, batch)),
        (_, a) => (a, operand(k, n, Some(batch))),
    };
    Drawn::of(Class::Odd, &a, &b, false)
}
