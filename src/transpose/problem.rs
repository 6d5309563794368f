//! What is asked: which elements go where, as plain data and in as few dimensions as possible.

use crate::device::VECTOR_BYTES;
use crate::error::{Error, Result};
use std::fmt;

/// A dimension of a permutation: `extent` steps, each of `src` elements in the source and `dst` in the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Number of steps.
    pub extent: usize,
    /// Elements between neighbours in the source; 0 repeats (a broadcast dimension).
    pub src: i64,
    /// Elements between neighbours in the destination.
    pub dst: i64,
}

impl Axis {
    const ONE: Axis = Axis {
        extent: 1,
        src: 0,
        dst: 0,
    };

    /// A row of one element.
    const ELEMENT: Axis = Axis {
        extent: 1,
        src: 1,
        dst: 1,
    };
}

/// A strided view that is to be written out contiguously, its dimensions perhaps in another order.
///
/// ```
/// use candle_sgemm::transpose::{Movement, TransposeProblem};
///
/// // The heads of attention: (batch, position, head, feature) to (batch, head, position, feature).
/// let heads = TransposeProblem::permutation(&[32, 128, 12, 64], &[98304, 768, 64, 1], &[0, 2, 1, 3], 4)?;
/// assert!(matches!(heads.movement(), Movement::Rows(_)));
/// // A batch of matrices.
/// let batch = TransposeProblem::permutation(&[64, 512, 768], &[393216, 768, 1], &[0, 2, 1], 4)?;
/// assert!(matches!(batch.movement(), Movement::Matrix(m) if m.rows == 512 && m.cols == 768));
/// # Ok::<(), candle_sgemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TransposeProblem {
    /// Bytes of an element: 1, 2, 4, 8 or 16.
    pub element_size: usize,
    /// Dimensions of the destination, outermost first, no two that one stride could walk and none of extent 1, but for a last
    /// one that stands for elements with gaps between them. The last one's stride in the destination is 1.
    pub axes: Vec<Axis>,
    /// Both base addresses are multiples of this many bytes, at least `element_size`.
    pub align: usize,
}

/// A batch of matrices that are copied or transposed.
///
/// Element (i, j) goes from `i · src_row + j · src_col` to `i · dst_row + j · dst_col`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrices {
    /// Rows of a matrix, as it is read.
    pub rows: usize,
    /// Columns of a matrix, as it is read.
    pub cols: usize,
    /// Elements between rows in the source.
    pub src_row: i64,
    /// Elements between columns in the source.
    pub src_col: i64,
    /// Elements between rows in the destination.
    pub dst_row: i64,
    /// Elements between columns in the destination.
    pub dst_col: i64,
    /// The batch, outermost first.
    pub outer: Vec<Axis>,
}

impl Matrices {
    /// Matrices in the batch.
    pub fn count(&self) -> usize {
        self.outer.iter().map(|axis| axis.extent).product()
    }

    /// Whether rows, taken one after the other as they are in the destination, leave room between them there.
    pub fn leaves_gaps(&self) -> bool {
        let mut end = self.cols as i64;
        let rows = Axis {
            extent: self.rows,
            src: self.src_row,
            dst: self.dst_row,
        };
        std::iter::once(&rows).chain(self.outer.iter().rev()).any(|axis| {
            let gap = axis.extent > 1 && axis.dst != end;
            end *= axis.extent as i64;
            gap
        })
    }
}

/// What kind of movement a problem is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Movement {
    /// There are no elements.
    Nothing,
    /// One run of elements that lie in order on both sides.
    Copy {
        /// Its length.
        elements: usize,
    },
    /// The fastest dimension stays: rows (or single elements with a stride) find new places.
    Rows(Matrices),
    /// The fastest dimension of the source becomes another one of the destination: matrices are transposed.
    Matrix(Matrices),
}

impl TransposeProblem {
    /// A view of `dims` and `strides` (in elements), its dimensions taken in the order `axes`, written out contiguously.
    ///
    /// # Errors
    ///
    /// [`Error::Problem`] if the lengths differ, `axes` is no permutation, the element size is none of 1, 2, 4 and 8, or
    /// the number of elements overflows.
    pub fn permutation(dims: &[usize], strides: &[usize], axes: &[usize], element_size: usize) -> Result<Self> {
        let wrong = |why: &str| {
            Err(Error::Problem(format!(
                "cannot permute a tensor of shape {dims:?} and strides {strides:?} to the order {axes:?}: {why}"
            )))
        };
        if dims.len() != strides.len() {
            return wrong("every dimension needs a stride");
        }
        let mut seen = vec![false; dims.len()];
        for &axis in axes {
            match seen.get_mut(axis) {
                None => return wrong("a dimension is out of range"),
                Some(seen) if *seen => return wrong("a dimension is named twice"),
                Some(seen) => *seen = true,
            }
        }
        if axes.len() != dims.len() {
            return wrong("every dimension must be named");
        }
        if !matches!(element_size, 1 | 2 | 4 | 8) {
            return wrong(&format!("elements of {element_size} bytes are not supported"));
        }
        if dims.contains(&0) {
            return Ok(Self::nothing(element_size));
        }
        let mut unfolded = Vec::with_capacity(axes.len());
        let mut dst = 1usize;
        for &axis in axes.iter().rev() {
            let (Ok(src), Ok(dst_stride)) = (i64::try_from(strides[axis]), i64::try_from(dst)) else {
                return wrong("it is too large");
            };
            unfolded.push(Axis {
                extent: dims[axis],
                src,
                dst: dst_stride,
            });
            dst = match dst.checked_mul(dims[axis]) {
                Some(next) if next.checked_mul(element_size).is_some_and(|b| i64::try_from(b).is_ok()) => next,
                _ => return wrong("it is too large"),
            };
        }
        unfolded.reverse();
        Ok(TransposeProblem {
            element_size,
            axes: folded(unfolded),
            align: element_size,
        })
    }

    /// Elements of `element_size` bytes along `axes`, which are in the order of the destination, outermost first, the last
    /// one without gaps there; rows of the destination may have gaps between them.
    pub(crate) fn strided(axes: Vec<Axis>, element_size: usize) -> Self {
        TransposeProblem {
            element_size,
            axes: folded(axes),
            align: element_size,
        }
    }

    /// The transposition of a dense `rows` × `cols` matrix.
    pub fn matrix(rows: usize, cols: usize, element_size: usize) -> Result<Self> {
        Self::permutation(&[rows, cols], &[cols, 1], &[1, 0], element_size)
    }

    /// The copy of a dense `rows` × `cols` matrix as rows, unfolded: what the copies of the ladder are measured on.
    pub fn matrix_copy(rows: usize, cols: usize, element_size: usize) -> Result<Self> {
        let mut problem = Self::permutation(&[rows, cols], &[cols, 1], &[0, 1], element_size)?;
        if problem.elements() > 0 {
            let row = Axis {
                extent: rows,
                src: cols as i64,
                dst: cols as i64,
            };
            let col = Axis {
                extent: cols,
                src: 1,
                dst: 1,
            };
            problem.axes = vec![row, col];
        }
        Ok(problem)
    }

    fn nothing(element_size: usize) -> Self {
        TransposeProblem {
            element_size,
            axes: vec![Axis {
                extent: 0,
                src: 0,
                dst: 0,
            }],
            align: element_size,
        }
    }

    /// The same, knowing that both base addresses are multiples of `bytes` (a power of two).
    pub fn aligned_to(self, bytes: usize) -> Self {
        TransposeProblem {
            align: bytes.max(self.element_size),
            ..self
        }
    }

    /// Elements to move.
    pub fn elements(&self) -> usize {
        self.axes.iter().map(|axis| axis.extent).product()
    }

    /// Bytes read; as many are written.
    pub fn bytes(&self) -> usize {
        self.elements() * self.element_size
    }

    /// What kind of movement this is.
    pub fn movement(&self) -> Movement {
        let Some((&last, outer)) = self.axes.split_last() else {
            return Movement::Copy { elements: 1 };
        };
        if last.extent == 0 {
            return Movement::Nothing;
        }
        if last.src == 1 && outer.is_empty() {
            return Movement::Copy { elements: last.extent };
        }
        // The fastest dimension of the source; the longest, should an overlapping view have several.
        let fastest = (0..outer.len())
            .filter(|&i| outer[i].src == 1)
            .max_by_key(|&i| outer[i].extent);
        match fastest {
            Some(i) if last.src != 1 => {
                let mut batch = outer.to_vec();
                let columns = batch.remove(i);
                Movement::Matrix(Matrices {
                    rows: last.extent,
                    cols: columns.extent,
                    src_row: last.src,
                    src_col: columns.src,
                    dst_row: last.dst,
                    dst_col: columns.dst,
                    outer: batch,
                })
            }
            _ => {
                let (row, batch) = match outer.split_last() {
                    Some((&row, batch)) => (row, batch.to_vec()),
                    None => (Axis::ONE, Vec::new()),
                };
                Movement::Rows(Matrices {
                    rows: row.extent,
                    cols: last.extent,
                    src_row: row.src,
                    src_col: last.src,
                    dst_row: row.dst,
                    dst_col: last.dst,
                    outer: batch,
                })
            }
        }
    }

    /// The same movement in elements of up to 16 bytes, as wide as the fastest dimension, if it stays the fastest, and
    /// the alignment allow. Where the whole fastest dimension becomes one element it falls away, so that a transposition
    /// of pairs is one of wider elements.
    pub fn widened(&self) -> Self {
        let mut wide = self.clone();
        while let Some((last, outer)) = wide.axes.split_last_mut() {
            let size = 2 * wide.element_size;
            let even = |axis: &Axis| axis.src % 2 == 0 && axis.dst % 2 == 0;
            let fits = size <= VECTOR_BYTES && wide.align.is_multiple_of(size);
            if !fits || last.src != 1 || !last.extent.is_multiple_of(2) || last.extent == 0 || !outer.iter().all(even) {
                break;
            }
            last.extent /= 2;
            for axis in outer {
                axis.src /= 2;
                axis.dst /= 2;
            }
            wide.element_size = size;
        }
        wide.axes = folded(wide.axes);
        wide
    }
}

/// Drops dimensions of extent 1 and joins neighbours that one stride walks on both sides. Where a last dimension is dropped
/// whose rows had gaps between them, what is left has a stride in the destination: its elements then are rows of one, for every
/// movement counts on a last dimension without gaps.
fn folded(axes: Vec<Axis>) -> Vec<Axis> {
    let mut folded: Vec<Axis> = Vec::with_capacity(axes.len());
    for axis in axes {
        if axis.extent == 1 {
            continue;
        }
        let steps = axis.extent as i64;
        match folded.last_mut() {
            Some(outer)
                if axis.src.checked_mul(steps) == Some(outer.src) && axis.dst.checked_mul(steps) == Some(outer.dst) =>
            {
                *outer = Axis {
                    extent: outer.extent * axis.extent,
                    ..axis
                }
            }
            _ => folded.push(axis),
        }
    }
    if folded.last().is_some_and(|last| last.dst != 1 && last.extent > 0) {
        folded.push(Axis::ELEMENT);
    }
    folded
}

impl fmt::Display for TransposeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |of: fn(&Axis) -> String| self.axes.iter().map(of).collect::<Vec<_>>().join(" × ");
        write!(
            f,
            "{} elements of {} bytes: {} from strides {}",
            self.elements(),
            self.element_size,
            list(|axis| axis.extent.to_string()),
            list(|axis| axis.src.to_string()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(dims: &[usize], axes: &[usize], size: usize) -> TransposeProblem {
        let mut strides = vec![1; dims.len()];
        for i in (1..dims.len()).rev() {
            strides[i - 1] = strides[i] * dims[i].max(1);
        }
        TransposeProblem::permutation(dims, &strides, axes, size).unwrap()
    }

    #[test]
    fn what_stays_in_order_is_a_copy() {
        assert_eq!(problem(&[], &[], 4).movement(), Movement::Copy { elements: 1 });
        assert_eq!(
            problem(&[2, 3, 5], &[0, 1, 2], 4).movement(),
            Movement::Copy { elements: 30 }
        );
        assert_eq!(problem(&[1, 7], &[1, 0], 4).movement(), Movement::Copy { elements: 7 });
        assert_eq!(
            problem(&[7, 1, 3], &[1, 0, 2], 4).movement(),
            Movement::Copy { elements: 21 }
        );
        assert_eq!(problem(&[2, 0, 5], &[2, 0, 1], 4).movement(), Movement::Nothing);
    }

    #[test]
    fn dimensions_that_stay_together_are_one() {
        let Movement::Matrix(m) = problem(&[2, 3, 5, 7], &[2, 3, 0, 1], 4).movement() else {
            panic!("this is one matrix")
        };
        assert_eq!((m.rows, m.cols, m.src_row, m.dst_col), (6, 35, 35, 6));
        assert!(m.outer.is_empty());
        let Movement::Matrix(m) = problem(&[8, 2, 3, 5], &[0, 3, 1, 2], 2).movement() else {
            panic!("this is a batch of matrices")
        };
        assert_eq!((m.rows, m.cols, m.count()), (6, 5, 8));
        assert_eq!(
            m.outer,
            [Axis {
                extent: 8,
                src: 30,
                dst: 30
            }]
        );
    }

    #[test]
    fn a_reversal_keeps_the_middle_as_batch() {
        let Movement::Matrix(m) = problem(&[3, 5, 7], &[2, 1, 0], 8).movement() else {
            panic!("the fastest dimension moves")
        };
        assert_eq!((m.rows, m.cols, m.src_row, m.dst_col), (3, 7, 35, 15));
        assert_eq!(
            m.outer,
            [Axis {
                extent: 5,
                src: 7,
                dst: 3
            }]
        );
    }

    #[test]
    fn views_with_gaps_and_broadcasts_are_rows() {
        let narrowed = TransposeProblem::permutation(&[4, 6], &[10, 1], &[0, 1], 4).unwrap();
        assert!(matches!(narrowed.movement(), Movement::Rows(m) if (m.rows, m.cols, m.src_row) == (4, 6, 10)));
        let column = TransposeProblem::permutation(&[9], &[5], &[0], 4).unwrap();
        assert!(matches!(column.movement(), Movement::Rows(m) if (m.rows, m.cols, m.src_col) == (1, 9, 5)));
        let broadcast = TransposeProblem::permutation(&[3, 4, 5], &[0, 1, 0], &[0, 1, 2], 4).unwrap();
        assert!(matches!(broadcast.movement(), Movement::Matrix(m) if (m.rows, m.src_row, m.cols) == (5, 0, 4)));
    }

    #[test]
    fn rows_are_widened_as_far_as_they_stay_whole() {
        let heads = problem(&[32, 128, 12, 64], &[0, 2, 1, 3], 4).aligned_to(256).widened();
        assert_eq!(heads.element_size, 16);
        assert!(matches!(heads.movement(), Movement::Rows(m) if m.cols == 16 && m.src_row == 192));
        // Pairs of bf16 that change places are a transposition of 4-byte elements.
        let pairs = problem(&[5, 7, 2], &[1, 0, 2], 2).aligned_to(256).widened();
        assert_eq!(pairs.element_size, 4);
        assert!(matches!(pairs.movement(), Movement::Matrix(m) if (m.rows, m.cols) == (5, 7)));
        // Neither an odd length nor a poor alignment can be widened.
        assert_eq!(
            problem(&[5, 7, 3], &[1, 0, 2], 2)
                .aligned_to(256)
                .widened()
                .element_size,
            2
        );
        assert_eq!(
            problem(&[5, 7, 8], &[1, 0, 2], 2).aligned_to(4).widened().element_size,
            4
        );
    }

    /// Makes a movement element by element as the kernels do, which take it that the fastest dimension of what they write has
    /// no gaps.
    fn moved(problem: &TransposeProblem, source: &[u8], len: usize) -> Vec<Option<u8>> {
        let size = problem.element_size;
        let mut written = vec![None; len];
        let mut put = |src: i64, dst: i64| {
            for byte in 0..size {
                let (from, to) = (src as usize * size + byte, dst as usize * size + byte);
                assert!(
                    written[to].replace(source[from]).is_none(),
                    "{problem} writes byte {to} twice"
                );
            }
        };
        match problem.movement() {
            Movement::Nothing => {}
            Movement::Copy { elements } => (0..elements as i64).for_each(|i| put(i, i)),
            Movement::Rows(m) | Movement::Matrix(m) => {
                let fastest = match problem.movement() {
                    Movement::Rows(_) => m.dst_col,
                    _ => m.dst_row,
                };
                assert_eq!(fastest, 1, "{problem}: {m:?}");
                for matrix in 0..m.count() {
                    let (mut rest, mut src, mut dst) = (matrix, 0, 0);
                    for axis in m.outer.iter().rev() {
                        let index = (rest % axis.extent) as i64;
                        (src, dst) = (src + index * axis.src, dst + index * axis.dst);
                        rest /= axis.extent;
                    }
                    for row in 0..m.rows as i64 {
                        for col in 0..m.cols as i64 {
                            put(
                                src + row * m.src_row + col * m.src_col,
                                dst + row * m.dst_row + col * m.dst_col,
                            );
                        }
                    }
                }
            }
        }
        written
    }

    /// Every small matrix, in either order and in a batch or alone, from rows that keep 4, 8 or 16 bytes to rows with gaps.
    #[test]
    fn rows_with_gaps_find_their_places_at_every_small_size() {
        const ELEMENT: usize = 4;
        for (rows, cols, batch) in
            (1..=9usize).flat_map(|rows| (1..=9usize).flat_map(move |cols| [1, 2, 3].map(|b| (rows, cols, b))))
        {
            for (turned, pad, gap, align) in [false, true].into_iter().flat_map(|turned| {
                let pads = (0..8).flat_map(|pad| [1usize, 4, 5, 6].map(|gap| (pad, gap)));
                pads.flat_map(move |(pad, gap)| [4, 8, 16].map(|align| (turned, pad, gap, align)))
            }) {
                // The source is rows × cols, with its columns adjacent or, turned, its rows.
                let (inner, outer) = if turned { (rows, cols) } else { (cols, rows) };
                let (src_line, dst_line) = (inner + pad, cols.next_multiple_of(gap));
                let [row_src, col_src] = if turned { [1, src_line] } else { [src_line, 1] };
                let axis = |extent, src: usize, dst: usize| Axis {
                    extent,
                    src: src as i64,
                    dst: dst as i64,
                };
                let axes = vec![
                    axis(batch, src_line * outer, dst_line * rows),
                    axis(rows, row_src, dst_line),
                    axis(cols, col_src, 1),
                ];
                let problem = TransposeProblem::strided(axes, ELEMENT).aligned_to(align);
                let source: Vec<u8> = (0..batch * src_line * outer * ELEMENT)
                    .map(|i| (i * 37 % 251) as u8)
                    .collect();
                let len = batch * dst_line * rows * ELEMENT;
                let mut expected = vec![None; len];
                for (b, i, j) in (0..batch).flat_map(|b| (0..rows).flat_map(move |i| (0..cols).map(move |j| (b, i, j))))
                {
                    let from = b * src_line * outer + i * row_src + j * col_src;
                    let to = b * dst_line * rows + i * dst_line + j;
                    for byte in 0..ELEMENT {
                        expected[to * ELEMENT + byte] = Some(source[from * ELEMENT + byte]);
                    }
                }
                for problem in [problem.clone(), problem.widened()] {
                    assert_eq!(moved(&problem, &source, len), expected, "{problem:?}");
                }
            }
        }
    }

    #[test]
    fn mistakes_are_named() {
        let error = |dims: &[usize], axes: &[usize]| {
            TransposeProblem::permutation(dims, &vec![1; dims.len()], axes, 4)
                .unwrap_err()
                .to_string()
        };
        assert!(error(&[2, 3], &[0, 2]).contains("shape [2, 3]"));
        assert!(error(&[2, 3], &[0, 2]).contains("out of range"));
        assert!(error(&[2, 3], &[1, 1]).contains("twice"));
        assert!(error(&[2, 3], &[1]).contains("every dimension"));
        assert!(error(&[usize::MAX, 3], &[1, 0]).contains("too large"));
    }
}
