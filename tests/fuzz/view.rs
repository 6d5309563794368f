//! Views: tensors that lie anyhow in a larger piece of memory, as plain data.

use crate::draw::{one_in, MOST_ELEMENTS};
use candle_core::{DType, Result, Tensor};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::Rng;
use std::fmt;

/// How one dimension lies in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stored {
    /// Elements before the first and after the last one that belongs to the view.
    before: usize,
    after: usize,
    /// Every how many elements one belongs to the view.
    step: usize,
    /// One element is there for all.
    broadcast: bool,
}

impl Stored {
    const DENSE: Stored = Stored {
        before: 0,
        after: 0,
        step: 1,
        broadcast: false,
    };

    /// Elements that a dimension of this extent takes.
    fn extent(&self, extent: usize) -> usize {
        let there = if self.broadcast { 1 } else { extent };
        (self.before + there + self.after) * self.step
    }
}

/// A tensor within a storage: narrowed, permuted, stepped over, broadcast.
#[derive(Clone, PartialEq)]
pub struct View {
    dims: Vec<usize>,
    /// The dimensions as they lie in memory, outermost first.
    order: Vec<usize>,
    /// For each dimension.
    stored: Vec<Stored>,
    /// Elements before all of it.
    lead: usize,
    dtype: DType,
}

/// Elements of this type in 16 bytes.
fn vector(dtype: DType) -> usize {
    16 / dtype.size_in_bytes()
}

/// Type, dimensions and strides are all that a reader needs to make the same tensor.
impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} with strides {:?}", self.dtype, self.dims, self.strides())?;
        match self.start() {
            0 => Ok(()),
            start => write!(f, " from element {start}"),
        }
    }
}

impl View {
    /// A tensor that fills its storage.
    pub fn dense(dims: &[usize], dtype: DType) -> Self {
        View {
            dims: dims.to_vec(),
            order: (0..dims.len()).collect(),
            stored: vec![Stored::DENSE; dims.len()],
            lead: 0,
            dtype,
        }
    }

    /// Any view of these dimensions.
    pub fn draw(rng: &mut StdRng, dims: &[usize], dtype: DType) -> Self {
        /// Candle's tensors have no more; a dimension that is stepped over is two for a while.
        const MOST_DIMENSIONS: usize = 8;
        let rank = dims.len();
        let vector = vector(dtype);
        let mut dimensions = rank;
        let mut view = View::dense(dims, dtype);
        if one_in(rng, 4) {
            return view;
        }
        if rank >= 2 && rng.random() {
            view.order.swap(rank - 2, rank - 1);
        }
        if one_in(rng, 4) {
            view.order.shuffle(rng);
        }
        for (stored, &dim) in view.stored.iter_mut().zip(dims) {
            if one_in(rng, 5) {
                stored.before = rng.random_range(0..vector);
                stored.after = rng.random_range(0..vector);
            }
            if one_in(rng, 12) && dimensions < MOST_DIMENSIONS {
                stored.step = rng.random_range(2..=3);
                dimensions += 1;
            }
            stored.broadcast = dim > 1 && one_in(rng, 14);
        }
        if let Some(&innermost) = view.order.last().filter(|_| rng.random()) {
            // Rows of every length modulo 16 bytes.
            let stored = &mut view.stored[innermost];
            let remainder = rng.random_range(0..vector);
            stored.after = (0..vector)
                .find(|&after| Stored { after, ..*stored }.extent(dims[innermost]) % vector == remainder)
                .unwrap_or(0);
        }
        view.lead = if rng.random() {
            rng.random_range(1..=2 * vector)
        } else {
            0
        };
        match view.len() > 2 * MOST_ELEMENTS {
            true => View::dense(dims, dtype),
            false => view,
        }
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The same view of elements of another type.
    pub fn typed(&self, dtype: DType) -> Self {
        View { dtype, ..self.clone() }
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The same view where dimension `i`, counted from the last, has another extent, and 1 stays 1. Row starts keep their
    /// alignment.
    pub fn resized(&self, from_last: usize, extent: usize) -> Self {
        let mut view = self.clone();
        let Some(i) = view.dims.len().checked_sub(from_last + 1) else {
            return view;
        };
        if view.dims[i] > 1 {
            if !view.stored[i].broadcast {
                view.stored[i].after = (view.stored[i].after + view.dims[i] - extent) % vector(self.dtype);
            }
            view.dims[i] = extent;
        }
        view
    }

    /// Simpler views of the same dimensions, the simplest first.
    pub fn simpler(&self) -> Vec<View> {
        let mut simpler = vec![View::dense(&self.dims, self.dtype)];
        simpler.push(View {
            order: self.order.clone(),
            ..View::dense(&self.dims, self.dtype)
        });
        simpler.push(View {
            lead: 0,
            ..self.clone()
        });
        for i in 0..self.dims.len() {
            let mut view = self.clone();
            view.stored[i] = Stored::DENSE;
            simpler.push(view);
        }
        simpler.retain(|view| view != self);
        simpler
    }

    /// Elements between neighbours in memory, dimension by dimension, before broadcast.
    fn units(&self) -> Vec<usize> {
        let mut units = vec![0; self.dims.len()];
        let mut unit = 1;
        for &dim in self.order.iter().rev() {
            units[dim] = unit;
            unit *= self.stored[dim].extent(self.dims[dim]);
        }
        units
    }

    fn strides(&self) -> Vec<usize> {
        let stride = |(unit, stored): (usize, &Stored)| match stored.broadcast {
            true => 0,
            false => unit * stored.step,
        };
        self.units().into_iter().zip(&self.stored).map(stride).collect()
    }

    fn start(&self) -> usize {
        let before = self.units().into_iter().zip(&self.stored);
        self.lead
            + before
                .map(|(unit, stored)| unit * stored.before * stored.step)
                .sum::<usize>()
    }

    /// Elements of the storage.
    pub fn len(&self) -> usize {
        let extents = self.dims.iter().zip(&self.stored);
        self.lead + extents.map(|(&dim, stored)| stored.extent(dim)).product::<usize>()
    }

    /// Where each element lies in the storage, in the order of the dimensions.
    pub fn places(&self) -> Vec<usize> {
        let mut places = vec![self.start()];
        for (&dim, stride) in self.dims.iter().zip(self.strides()) {
            places = places
                .iter()
                .flat_map(|&place| (0..dim).map(move |i| place + i * stride))
                .collect();
        }
        places
    }

    /// The view of `storage`, a tensor of [`len`](Self::len) elements, by candle's operations.
    pub fn of(&self, storage: &Tensor) -> Result<Tensor> {
        let mut shape = Vec::new();
        for &dim in &self.order {
            let stored = self.stored[dim];
            shape.push(stored.extent(self.dims[dim]) / stored.step);
            if stored.step > 1 {
                shape.push(stored.step);
            }
        }
        let mut view = storage.narrow(0, self.lead, self.len() - self.lead)?.reshape(shape)?;
        for (place, &dim) in self.order.iter().enumerate() {
            let stored = self.stored[dim];
            let there = if stored.broadcast { 1 } else { self.dims[dim] };
            view = view.narrow(place, stored.before, there)?;
            if stored.step > 1 {
                view = view.narrow(place + 1, 0, 1)?.squeeze(place + 1)?;
            }
        }
        let mut back = vec![0; self.order.len()];
        for (place, &dim) in self.order.iter().enumerate() {
            back[dim] = place;
        }
        view.permute(back)?.broadcast_as(&self.dims[..])
    }

    /// A dimension of this view, counted from the last: its extent.
    pub fn dim(&self, from_last: usize) -> usize {
        self.dims[self.dims.len() - 1 - from_last]
    }

    /// The largest power of two, up to 16, that is a divisor of where every line of elements starts, in bytes.
    pub fn line_alignment(&self) -> usize {
        let vector = vector(self.dtype);
        let innermost = self.order.last().copied();
        let strides = self.strides();
        let outer = (0..self.dims.len()).filter(|&dim| Some(dim) != innermost && self.dims[dim] > 1);
        let starts = outer.map(|dim| strides[dim]).chain([self.start()]);
        let bits = starts.fold(vector, |bits, start| bits | (start % vector));
        self.dtype.size_in_bytes() << bits.trailing_zeros()
    }

    /// The dimension, counted from the last, whose elements are adjacent, if there is one with more than one element.
    pub fn adjacent(&self) -> Option<usize> {
        let strides = self.strides();
        let rank = self.dims.len();
        (0..rank).find(|&from_last| {
            let dim = rank - 1 - from_last;
            strides[dim] == 1 && self.dims[dim] > 1
        })
    }
}

/// An order of so many dimensions: any, or with the last two exchanged, or as they are.
pub fn draw_order(rng: &mut StdRng, rank: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rank).collect();
    match rng.random_range(0..5) {
        0 | 1 => order.shuffle(rng),
        2 => {}
        _ if rank >= 2 => order.swap(rank - 2, rank - 1),
        _ => {}
    }
    order
}
