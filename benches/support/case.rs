//! A product to be measured, without data.

use candle_sgemm::gemm::{DType, ElementTypes, GemmProblem, OperandLayout, Precision};
use std::fmt;

/// Storage order of A and B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// A is stored k × m.
    pub a_transposed: bool,
    /// B is stored n × k.
    pub b_transposed: bool,
}

impl Layout {
    pub const NN: Layout = Layout::new(false, false);
    pub const NT: Layout = Layout::new(false, true);
    pub const TN: Layout = Layout::new(true, false);
    pub const TT: Layout = Layout::new(true, true);
    pub const ALL: [Layout; 4] = [Layout::NN, Layout::NT, Layout::TN, Layout::TT];

    const fn new(a_transposed: bool, b_transposed: bool) -> Self {
        Layout {
            a_transposed,
            b_transposed,
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |transposed| if transposed { 'T' } else { 'N' };
        write!(f, "{}{}", letter(self.a_transposed), letter(self.b_transposed))
    }
}

impl std::str::FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Layout::ALL
            .into_iter()
            .find(|layout| layout.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| format!("unknown layout '{text}': choose one of nn, nt, tn, tt"))
    }
}

/// Dense operands, `batch` of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub batch: usize,
    pub layout: Layout,
    /// Each launch finds B in memory rather than in the L2: as many copies of it are walked as exceed the L2 twice.
    pub cold: bool,
}

impl Case {
    pub const fn new(m: usize, n: usize, k: usize, layout: Layout) -> Self {
        Case {
            m,
            n,
            k,
            batch: 1,
            layout,
            cold: false,
        }
    }

    /// The same, so many times in a batch.
    pub const fn times(self, batch: usize) -> Self {
        Case { batch, ..self }
    }

    pub const fn square(size: usize, layout: Layout) -> Self {
        Case::new(size, size, size, layout)
    }

    /// Strides of A (row, column) and of B.
    pub fn strides(&self) -> [(i64, i64); 2] {
        let stored = |transposed, rows: usize, cols: usize| match transposed {
            false => (cols as i64, 1),
            true => (1, rows as i64),
        };
        [
            stored(self.layout.a_transposed, self.m, self.k),
            stored(self.layout.b_transposed, self.k, self.n),
        ]
    }

    /// The problem that a plan is made for. With `scaled`, C is D itself.
    pub fn problem(&self, dtype: DType, precision: Precision, scaled: bool) -> GemmProblem {
        let [(a_row, a_col), (b_row, b_col)] = self.strides();
        let batched = |layout: OperandLayout, elements: usize| {
            let stride = if self.batch > 1 { elements as i64 } else { 0 };
            layout.with_batch_strides([0, 0, 0, stride])
        };
        let mut problem = GemmProblem::new(
            self.m,
            self.n,
            self.k,
            batched(OperandLayout::strided(a_row, a_col), self.m * self.k),
            batched(OperandLayout::strided(b_row, b_col), self.k * self.n),
        );
        problem.batch_dims = [1, 1, 1, self.batch];
        problem.d = batched(OperandLayout::row_major(self.n), self.m * self.n);
        problem.types = ElementTypes::all_of(dtype);
        problem.precision = precision;
        problem.epilogue.c = scaled.then_some(problem.d);
        problem
    }

    pub fn flops(&self) -> f64 {
        2.0 * self.batch as f64 * self.m as f64 * self.n as f64 * self.k as f64
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.layout)?;
        if self.batch > 1 {
            write!(f, "{} × ", self.batch)?;
        }
        write!(f, "{}×{}×{}", self.m, self.n, self.k)
    }
}

/// The grid on which the planner's choice has to hold its own: squares in every layout, the layers of networks from one
/// row on with weights that are not in the L2, attention, and sizes that fit nothing.
pub fn grid() -> Vec<Case> {
    let mut cases = Vec::new();
    for size in [256, 512, 1024, 2048, 4096, 8192] {
        cases.extend(Layout::ALL.map(|layout| Case::square(size, layout)));
    }
    let weights = [
        (768, 768),
        (3072, 768),
        (768, 3072),
        (4096, 4096),
        (14336, 4096),
        (4096, 14336),
    ];
    for (n, k) in weights {
        for m in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 4096] {
            cases.push(Case {
                cold: true,
                ..Case::new(m, n, k, Layout::NT)
            });
        }
    }
    for (sequences, heads, length, width) in [(32, 12, 128, 32), (8, 16, 512, 64), (1, 32, 2048, 128)] {
        let batch = sequences * heads;
        let queries_keys = Case::new(length, length, width, Layout::NT);
        let weights_values = Case::new(length, width, length, Layout::NN);
        cases.extend([queries_keys, weights_values].map(|case| Case { batch, ..case }));
    }
    cases.push(Case::square(1023, Layout::NN));
    cases.push(Case::square(4097, Layout::NN));
    cases.push(Case::new(4096, 10, 784, Layout::NN));
    cases
}

/// `256..8192` (powers of two from the first to the last), or `300,1000`, or one size.
///
/// # Errors
///
/// A sentence that quotes what is not a size.
pub fn parse_sizes(text: &str) -> Result<Vec<usize>, String> {
    match text.split_once("..") {
        Some((first, last)) => {
            let (first, last) = (parse_size(first)?, parse_size(last)?);
            if first > last {
                return Err(format!("the range {text} is empty: write the smaller size first"));
            }
            let powers = std::iter::successors(Some(first.next_power_of_two()), |size| size.checked_mul(2));
            let sizes: Vec<usize> = powers.take_while(|&size| size <= last).collect();
            match sizes.is_empty() {
                true => Err(format!(
                    "there is no power of two in {text}: list the sizes with commas"
                )),
                false => Ok(sizes),
            }
        }
        None => text.split(',').map(parse_size).collect(),
    }
}

/// `MxNxK`, or `BxMxNxK` in a batch, several with commas: batch, m, n and k of each.
///
/// # Errors
///
/// A sentence that quotes what is not a shape.
pub fn parse_shapes(text: &str) -> Result<Vec<[usize; 4]>, String> {
    text.split(',')
        .map(
            |shape| match *shape.split('x').map(parse_size).collect::<Result<Vec<_>, _>>()? {
                [m, n, k] => Ok([1, m, n, k]),
                [batch, m, n, k] => Ok([batch, m, n, k]),
                _ => Err(format!(
                    "'{shape}' is not a shape: write MxNxK, e.g. 4096x512x784, or BxMxNxK, e.g. 32x128x128x64"
                )),
            },
        )
        .collect()
}

fn parse_size(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(size) if (1..=1 << 20).contains(&size) => Ok(size),
        _ => Err(format!(
            "'{text}' is not a size: write a whole number from 1 to {}",
            1 << 20
        )),
    }
}
