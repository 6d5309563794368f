//! Transpositions and permutations: every dtype, bit for bit.

use crate::draw::{one_in, one_of, side, Seed};
use crate::harness::{index_of, Case, Verdict};
use crate::view::{draw_order, View};
use candle_core::{bail, CpuStorage, DType, Device, Result, Storage, Tensor, Var};
use candle_sgemm::{permute, transpose, TransposeExt};
use rand::rngs::{SmallRng, StdRng};
use rand::{Rng, RngCore, SeedableRng};

/// Dtypes of whole bytes. Candle has tensors of the last one on the CPU only.
const DTYPES: [DType; 11] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
    DType::F8E8M0,
];

/// Elements of most movements, and of a few.
const ELEMENTS: f64 = 3e4;
const MANY_ELEMENTS: f64 = 6e5;

/// What is done with the tensor.
#[derive(Clone, Debug)]
enum Operation {
    Transpose(usize, usize),
    Permute(Vec<usize>),
    TContiguous,
    ContiguousFast,
}

#[derive(Clone, Debug)]
pub struct Move {
    operation: Operation,
    x: View,
    gradient: bool,
    numbers: Seed,
}

impl Move {
    pub fn draw(rng: &mut StdRng, on_gpu: bool) -> Self {
        let most = if one_in(rng, 20) { MANY_ELEMENTS } else { ELEMENTS };
        let rank = one_of(rng, &[0, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7]);
        let mut dims = vec![1; rank];
        let mut rest = most;
        // Whichever comes first may be long.
        for dim in draw_order(rng, rank) {
            dims[dim] = side(rng, rest as usize);
            rest /= dims[dim] as f64;
        }
        let operation = match one_of(rng, &[0, 1, 1, 2, 3]) {
            0 if rank >= 1 => Operation::Transpose(rng.random_range(0..rank), rng.random_range(0..rank)),
            2 if rank >= 2 => Operation::TContiguous,
            3 => Operation::ContiguousFast,
            _ => Operation::Permute(draw_order(rng, rank)),
        };
        let dtypes = if on_gpu { &DTYPES[..DTYPES.len() - 1] } else { &DTYPES };
        let dtype = one_of(rng, dtypes);
        Move {
            operation,
            x: View::draw(rng, &dims, dtype),
            gradient: dtype == DType::F32 && rng.random(),
            numbers: Seed(rng.random_range(0..1 << 16)),
        }
    }

    /// Dimensions of `x` in the order of the result.
    fn order(&self) -> Vec<usize> {
        let rank = self.x.dims().len();
        let mut order: Vec<usize> = (0..rank).collect();
        match &self.operation {
            Operation::Transpose(i, j) => order.swap(*i, *j),
            Operation::Permute(given) => order.clone_from(given),
            Operation::TContiguous => order.swap(rank - 2, rank - 1),
            Operation::ContiguousFast => {}
        }
        order
    }

    fn run(&self, x: &Tensor) -> Result<Tensor> {
        match &self.operation {
            Operation::Transpose(i, j) => transpose(x, *i, *j),
            Operation::Permute(order) => permute(x, order.clone()),
            Operation::TContiguous => x.t_contiguous(),
            Operation::ContiguousFast => x.contiguous_fast(),
        }
    }
}

/// The bits of every element, in the order of the dimensions.
fn bits(t: &Tensor) -> Result<Vec<u64>> {
    let t = t.to_device(&Device::Cpu)?;
    let (storage, layout) = t.storage_and_layout();
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("the result has strides {:?}", layout.stride());
    };
    let Storage::Cpu(storage) = &*storage else {
        bail!("the copy is not on the CPU");
    };
    let range = start..end;
    Ok(match storage {
        CpuStorage::U8(x) => x[range].iter().map(|&x| x.into()).collect(),
        CpuStorage::F8E8M0(x) => x[range].iter().map(|&x| x.into()).collect(),
        CpuStorage::U32(x) => x[range].iter().map(|&x| x.into()).collect(),
        CpuStorage::I16(x) => x[range].iter().map(|&x| x.cast_unsigned().into()).collect(),
        CpuStorage::I32(x) => x[range].iter().map(|&x| x.cast_unsigned().into()).collect(),
        CpuStorage::I64(x) => x[range].iter().map(|&x| x.cast_unsigned()).collect(),
        CpuStorage::BF16(x) => x[range].iter().map(|&x| x.to_bits().into()).collect(),
        CpuStorage::F16(x) => x[range].iter().map(|&x| x.to_bits().into()).collect(),
        CpuStorage::F32(x) => x[range].iter().map(|&x| x.to_bits().into()).collect(),
        CpuStorage::F64(x) => x[range].iter().map(|&x| x.to_bits()).collect(),
        CpuStorage::F8E4M3(x) => x[range].iter().map(|&x| x.to_bits().into()).collect(),
        _ => bail!("{:?} is no dtype of whole bytes", t.dtype()),
    })
}

impl Case for Move {
    fn size(&self) -> usize {
        self.x.elements()
    }

    fn smaller(&self) -> Vec<Self> {
        let mut smaller = Vec::new();
        for (i, &dim) in self.x.dims().iter().rev().enumerate() {
            for less in [1, dim / 2, dim - 1]
                .into_iter()
                .filter(|&less| less >= 1 && less < dim)
            {
                smaller.push(Move {
                    x: self.x.resized(i, less),
                    ..self.clone()
                });
            }
        }
        smaller.extend(self.x.simpler().into_iter().map(|x| Move { x, ..self.clone() }));
        smaller
    }

    fn check(&self, device: &Device) -> Verdict {
        let rng = &mut SmallRng::seed_from_u64(self.numbers.0);
        let (len, dtype) = (self.x.len(), self.x.dtype());
        let size = dtype.size_in_bytes();
        // Any bits at all, those of NaN included; but small numbers where candle adds gradients up.
        let mut bytes = vec![0; len * size];
        rng.fill_bytes(&mut bytes);
        let storage = Tensor::from_raw_buffer(&bytes, dtype, &[len], device)?;
        let patterns: Vec<u64> = bytes
            .chunks_exact(size)
            .map(|bytes| bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte)))
            .collect();

        let order = self.order();
        let variable = if self.gradient {
            Some(Var::from_tensor(&storage)?)
        } else {
            None
        };
        let storage = variable.as_ref().map_or(&storage, |variable| variable.as_tensor());
        let x = self.x.of(storage)?;
        let y = self.run(&x)?;
        let dims: Vec<usize> = order.iter().map(|&dim| self.x.dims()[dim]).collect();
        if y.dims() != dims || y.dtype() != dtype || !y.is_contiguous() {
            return Ok(Err(format!(
                "the result is {:?} of shape {:?} and strides {:?}, not {dims:?}",
                y.dtype(),
                y.dims(),
                y.stride()
            )));
        }
        // Numbers of the result's elements in the order of x, from which both ways can be read.
        let moved = View::dense(self.x.dims(), DType::U32);
        let numbers = Tensor::from_iter(0..moved.elements() as u32, &Device::Cpu)?.reshape(self.x.dims())?;
        let from: Vec<u32> = numbers.permute(order)?.flatten_all()?.to_vec1()?;
        let places = self.x.places();
        let got = bits(&y)?;
        let wanted = |i: usize| patterns[places[from[i] as usize]];
        if let Some(i) = (0..got.len()).find(|&i| got[i] != wanted(i)) {
            return Ok(Err(format!(
                "element {:?} of the result has the bits {:x}, not {:x}",
                index_of(i, &dims),
                got[i],
                wanted(i)
            )));
        }
        if !self.gradient {
            return Ok(Ok(()));
        }

        // The gradient goes the way back: each weight to the element that it was given.
        let weights: Vec<f32> = (0..got.len()).map(|_| f32::from(rng.random_range(-9i8..=9))).collect();
        let mut back = vec![0f32; len];
        for (i, weight) in weights.iter().enumerate() {
            back[places[from[i] as usize]] += weight;
        }
        let weights = Tensor::from_vec(weights, &dims[..], device)?;
        let gradients = (y * weights)?.sum_all()?.backward()?;
        let Some(gradient) = gradients.get(storage) else {
            return Ok(Err("there is no gradient".to_string()));
        };
        let gradient: Vec<f32> = gradient.flatten_all()?.to_vec1()?;
        Ok(match (0..len).find(|&i| gradient[i] != back[i]) {
            None => Ok(()),
            Some(i) => Err(format!(
                "the gradient of element {i} of the storage is {}, not {}",
                gradient[i], back[i]
            )),
        })
    }
}
