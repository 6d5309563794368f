//! Views as candle makes them, and what it does with those that it cannot hand to cuBLAS.

use candle_sgemm::gemm::operands::MAX_BATCH_DIMS;
use candle_sgemm::gemm::{DType, OperandLayout};

/// Storages start on so many bytes, and nothing reads more at once.
const MOST_ALIGN: usize = 16;

/// Where the elements of an operand come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    /// A tensor of its own.
    Dense,
    /// A part of a larger one.
    Narrowed,
    /// Heads that lie beside each other in the rows of a layer's result.
    Heads,
    /// One for several matrices of the batch.
    Broadcast,
    /// Every second column.
    Interleaved,
}

impl View {
    pub const fn name(self) -> &'static str {
        match self {
            View::Dense => "dense",
            View::Narrowed => "narrowed",
            View::Heads => "heads",
            View::Broadcast => "broadcast",
            View::Interleaved => "interleaved",
        }
    }
}

/// A tensor as candle keeps it: dimensions and their strides, none of its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    dims: Vec<usize>,
    strides: Vec<usize>,
    offset: usize,
    view: View,
}

impl Tensor {
    pub fn dense(dims: &[usize]) -> Self {
        let mut strides = vec![1; dims.len()];
        for i in (1..dims.len()).rev() {
            strides[i - 1] = strides[i] * dims[i];
        }
        Tensor {
            dims: dims.to_vec(),
            strides,
            offset: 0,
            view: View::Dense,
        }
    }

    pub fn permute(&self, order: &[usize]) -> Self {
        Tensor {
            dims: order.iter().map(|&axis| self.dims[axis]).collect(),
            strides: order.iter().map(|&axis| self.strides[axis]).collect(),
            ..self.clone()
        }
    }

    /// The last two dimensions in each other's place.
    pub fn t(&self) -> Self {
        let mut order: Vec<usize> = (0..self.dims.len()).collect();
        let last = order.len() - 1;
        order.swap(last - 1, last);
        self.permute(&order)
    }

    pub fn narrow(&self, axis: usize, start: usize, length: usize) -> Self {
        let mut narrowed = self.clone();
        if length < self.dims[axis] {
            narrowed.view = View::Narrowed;
        }
        narrowed.offset += start * self.strides[axis];
        narrowed.dims[axis] = length;
        narrowed
    }

    /// Without an axis: what is at one place of it.
    pub fn at(&self, axis: usize, index: usize) -> Self {
        let mut part = self.narrow(axis, index, 1);
        part.dims.remove(axis);
        part.strides.remove(axis);
        part
    }

    /// The same for each of so many, in front of the dimension `axis`.
    pub fn repeat(&self, axis: usize, times: usize) -> Self {
        let mut repeated = self.clone();
        if times > 1 {
            repeated.view = View::Broadcast;
        }
        repeated.dims.insert(axis, times);
        repeated.strides.insert(axis, 0);
        repeated
    }

    /// The same, called otherwise.
    pub fn called(self, view: View) -> Self {
        Tensor { view, ..self }
    }

    /// Dimensions before the last two, with 1 in front where there are fewer than a kernel walks.
    pub fn batch_dims(&self) -> [usize; MAX_BATCH_DIMS] {
        let mut dims = [1; MAX_BATCH_DIMS];
        let batch = &self.dims[..self.dims.len() - 2];
        dims[MAX_BATCH_DIMS - batch.len()..].copy_from_slice(batch);
        dims
    }

    /// Rows and columns.
    pub fn matrix(&self) -> [usize; 2] {
        let rank = self.dims.len();
        [self.dims[rank - 2], self.dims[rank - 1]]
    }

    pub fn operand(&self) -> Operand {
        let rank = self.dims.len();
        // A dimension of one element is never stepped along.
        let stride = |axis: usize| {
            if self.dims[axis] == 1 {
                0
            } else {
                self.strides[axis] as i64
            }
        };
        let mut batch_strides = [0; MAX_BATCH_DIMS];
        for axis in 0..rank - 2 {
            batch_strides[MAX_BATCH_DIMS - (rank - 2) + axis] = stride(axis);
        }
        let steps = self.dims.iter().zip(&self.strides);
        Operand {
            layout: OperandLayout::strided(self.strides[rank - 2] as i64, self.strides[rank - 1] as i64)
                .with_batch_strides(batch_strides),
            offset: self.offset,
            span: self.offset + steps.map(|(dim, stride)| (dim - 1) * stride).sum::<usize>() + 1,
            view: self.view,
        }
    }
}

/// An operand of a product, in a storage that starts on 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// As if its first element were that of the storage: see [`Operand::layout_of`].
    pub layout: OperandLayout,
    /// Elements of the storage before the first.
    pub offset: usize,
    /// Elements of the storage up to the last.
    pub span: usize,
    pub view: View,
}

/// How candle hands an operand to cuBLAS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handed {
    /// Dimensions and strides of what has to be copied beforehand, as candle's `contiguous` gets them; `None` for what cuBLAS
    /// can read where it lies.
    pub copied: Option<(Vec<usize>, Vec<usize>)>,
    /// Whether the matrix that cuBLAS gets is stored transposed.
    pub transposed: bool,
    /// Elements from each of its matrices to the next.
    pub batch_stride: i64,
}

/// One stride for the whole batch, if it can be walked with one.
fn single_stride(batch_dims: [usize; MAX_BATCH_DIMS], strides: [i64; MAX_BATCH_DIMS]) -> Option<i64> {
    let mut dims = batch_dims.into_iter().zip(strides).filter(|(dim, _)| *dim > 1).rev();
    let Some((mut extent, stride)) = dims.next() else {
        return Some(0);
    };
    for (dim, outer) in dims {
        if outer != stride * extent as i64 {
            return None;
        }
        extent *= dim;
    }
    Some(stride)
}

impl Operand {
    /// Its layout with elements of this type, whose first one is as well aligned as the skipped bytes leave it.
    pub fn layout_of(&self, dtype: DType) -> OperandLayout {
        let skipped = self.offset * dtype.size();
        let align = match skipped {
            0 => MOST_ALIGN,
            skipped => (1 << skipped.trailing_zeros()).min(MOST_ALIGN),
        };
        self.layout.with_align(align as u32)
    }

    /// What `Tensor::matmul` takes, it takes; what it refuses a model copies, in the order in which its rows lie: `contiguous`,
    /// or `t`, `contiguous` and `t` again.
    pub fn handed(&self, [rows, cols]: [usize; 2], batch_dims: [usize; MAX_BATCH_DIMS]) -> Handed {
        let OperandLayout {
            row_stride,
            col_stride,
            batch_strides,
            ..
        } = self.layout;
        // The conditions of candle's `gemm_config`, in its order.
        let as_rows = (col_stride == 1 || cols == 1) && (row_stride == cols as i64 || rows == 1);
        let as_cols = (col_stride == rows as i64 || cols == 1) && (row_stride == 1 || rows == 1);
        if let (true, Some(batch_stride)) = (as_rows || as_cols, single_stride(batch_dims, batch_strides)) {
            return Handed {
                copied: None,
                transposed: !as_rows,
                batch_stride,
            };
        }
        let transposed = row_stride == 1 && col_stride != 1;
        let mut kept = vec![(rows, row_stride), (cols, col_stride)];
        if transposed {
            kept.reverse();
        }
        let batch = batch_dims.into_iter().zip(batch_strides).filter(|(dim, _)| *dim > 1);
        let steps: Vec<(usize, i64)> = batch.chain(kept).collect();
        Handed {
            copied: Some((
                steps.iter().map(|(dim, _)| *dim).collect(),
                steps.iter().map(|(_, stride)| *stride as usize).collect(),
            )),
            transposed,
            batch_stride: (rows * cols) as i64,
        }
    }
}
