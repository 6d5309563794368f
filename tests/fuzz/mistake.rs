//! Wrong input, and input that is right but odd: shapes, ranks and dtypes that do not fit, empty tensors, names that nobody
//! has. Never a panic: an error that says what did not fit, or the result that candle's own operations give.

use crate::draw::{one_in, one_of, Seed};
use crate::harness::{Case, Verdict};
use candle_core::{DType, Device, Module, Result, Tensor, D};
use candle_nn::VarBuilder;
use candle_sgemm::{matmul, permute, transpose, Activation, GatedMlp, Gemm, Linear, Mlp, TransposeExt};
use rand::rngs::{SmallRng, StdRng};
use rand::{Rng, SeedableRng};

const DTYPES: [DType; 7] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::U8,
    DType::U32,
    DType::I64,
];

/// A tensor, dense.
#[derive(Clone, Debug)]
struct Plain {
    dims: Vec<usize>,
    dtype: DType,
}

#[derive(Clone, Debug)]
enum Call {
    Matmul(Plain, Plain),
    /// With C.
    Gemm(Plain, Plain, Plain),
    /// With a kernel of this name.
    Kernel(Plain, Plain, &'static str),
    /// Input, weight, bias, residual.
    Linear(Plain, Plain, Option<Plain>, Option<Plain>),
    /// Prepared first.
    Prepared(Plain, Plain),
    Mlp(Vec<usize>),
    /// The weights.
    Gated(Plain, Plain, Plain),
    Permute(Plain, Vec<usize>),
    Transpose(Plain, usize, usize),
    TContiguous(Plain),
}

#[derive(Clone, Debug)]
pub struct Mistake {
    call: Call,
    numbers: Seed,
}

impl Plain {
    fn draw(rng: &mut StdRng) -> Self {
        let rank = one_of(rng, &[0, 1, 2, 2, 2, 3, 3, 4]);
        Plain {
            dims: (0..rank).map(|_| rng.random_range(0..=3)).collect(),
            dtype: if one_in(rng, 4) {
                one_of(rng, &DTYPES)
            } else {
                DType::F32
            },
        }
    }

    /// Like this one in most, so that not everything that could fail does at once.
    fn near(&self, rng: &mut StdRng, dims: &[usize]) -> Self {
        let mut near = Plain {
            dims: dims.to_vec(),
            dtype: self.dtype,
        };
        match rng.random_range(0..6) {
            0 => near = Plain::draw(rng),
            1 if !near.dims.is_empty() => {
                let i = rng.random_range(0..near.dims.len());
                near.dims[i] = rng.random_range(0..=3);
            }
            2 => near.dims.insert(0, rng.random_range(0..=3)),
            _ => {}
        }
        near
    }

    fn tensor(&self, rng: &mut SmallRng, device: &Device) -> Result<Tensor> {
        let count: usize = self.dims.iter().product();
        let numbers: Vec<f32> = (0..count).map(|_| f32::from(rng.random_range(0..=3u8))).collect();
        Tensor::from_vec(numbers, &self.dims[..], &Device::Cpu)?
            .to_dtype(self.dtype)?
            .to_device(device)
    }

    /// As errors name it.
    fn named(&self) -> String {
        format!("{:?} {:?}", self.dtype, self.dims)
    }

    /// The last dimension, or one that will not fit.
    fn last(&self) -> usize {
        self.dims.last().copied().unwrap_or(2)
    }
}

impl Mistake {
    pub fn draw(rng: &mut StdRng) -> Self {
        let a = Plain::draw(rng);
        let (k, n) = (a.last(), rng.random_range(0..=3));
        let rows = a.dims.len().saturating_sub(1);
        let result = [&a.dims[..rows], &[n]].concat();
        let call = match rng.random_range(0..10) {
            0 => Call::Matmul(a.clone(), a.near(rng, &[k, n])),
            1 => Call::Gemm(a.clone(), a.near(rng, &[k, n]), a.near(rng, &result)),
            2 => {
                let names = ["no_such_kernel", "", candle_sgemm::gemm::TABLE[0].name];
                Call::Kernel(a.clone(), a.near(rng, &[k, n]), one_of(rng, &names))
            }
            3 | 4 => Call::Linear(
                a.clone(),
                a.near(rng, &[n, k]),
                rng.random::<bool>().then(|| a.near(rng, &[n])),
                rng.random::<bool>().then(|| a.near(rng, &result)),
            ),
            5 => Call::Prepared(a.clone(), a.near(rng, &[n, k])),
            6 => match rng.random() {
                true => Call::Mlp((0..rng.random_range(0..4)).map(|_| rng.random_range(0..=3)).collect()),
                false => Call::Gated(
                    a.clone(),
                    a.near(rng, &a.dims),
                    a.near(rng, &[n, a.dims.first().copied().unwrap_or(1)]),
                ),
            },
            7 => {
                let rank = a.dims.len() + rng.random_range(0..2);
                let order = (0..rank).map(|_| rng.random_range(0..=a.dims.len())).collect();
                Call::Permute(a, order)
            }
            8 => {
                let rank = a.dims.len();
                Call::Transpose(a, rng.random_range(0..=rank), rng.random_range(0..=rank))
            }
            _ => Call::TContiguous(a),
        };
        Mistake {
            call,
            numbers: Seed(rng.random_range(0..1 << 16)),
        }
    }
}

/// Whether what is added to a product may have this type: that of the factors, or FP32 beside factors of 16 bits.
fn stands_beside(other: DType, factors: DType) -> bool {
    other == factors || (other == DType::F32 && matches!(factors, DType::F16 | DType::BF16))
}

/// The product as candle's broadcast_matmul has it, of any dtype, in FP64.
fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.rank() < 2 || b.rank() < 2 || a.dtype() != b.dtype() || a.dim(D::Minus1)? != b.dim(D::Minus2)? {
        candle_core::bail!("no product");
    }
    let double = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    let (a, b) = (double(a)?, double(b)?);
    // Element by element: candle's own matmul stops at some ranks, and at empty tensors.
    let product = a.unsqueeze(a.rank())?.broadcast_mul(&b.unsqueeze(b.rank() - 2)?)?;
    let rank = product.rank();
    let dims = [&product.dims()[..rank - 2], &product.dims()[rank - 1..]].concat();
    match product.elem_count() {
        0 => Tensor::zeros(dims, DType::F64, &Device::Cpu),
        _ => product.sum(rank - 2),
    }
}

/// Whether `got` is `wanted`, or an error in its place that names dtype and shape of each input. Where `wanted` is an error,
/// only that will do. Dtypes that candle cannot multiply may be refused.
fn compare(got: Result<Tensor>, wanted: Result<Tensor>, inputs: &[&Plain]) -> Verdict {
    const ROUNDING: f64 = 0.01; // of BF16, for numbers below 40
    let got = match (got, &wanted) {
        (Ok(got), Ok(_)) => got,
        (Ok(got), Err(error)) => {
            let dims = got.dims();
            return Ok(Err(format!("a result of shape {dims:?} where candle says: {error}")));
        }
        (Err(error), wanted) => {
            let text = error.to_string();
            let floats = inputs.iter().all(|input| input.dtype.is_float());
            if wanted.is_ok() && floats {
                return Ok(Err(format!("candle computes this: {text}")));
            }
            let names = |input: &&Plain| text.contains(&input.named());
            return Ok(match inputs.iter().all(names) {
                true => Ok(()),
                false => Err(format!("the error does not name dtype and shape of each input: {text}")),
            });
        }
    };
    let wanted = wanted?;
    if got.dims() != wanted.dims() {
        return Ok(Err(format!("shape {:?}, not {:?}", got.dims(), wanted.dims())));
    }
    let double = |t: &Tensor| {
        t.to_device(&Device::Cpu)?
            .to_dtype(DType::F64)?
            .flatten_all()?
            .to_vec1::<f64>()
    };
    let (got, wanted) = (double(&got)?, double(&wanted)?);
    let close = |(got, wanted): (&f64, &f64)| (got - wanted).abs() <= ROUNDING * (1.0 + wanted.abs());
    Ok(match got.iter().zip(&wanted).all(close) {
        true => Ok(()),
        false => Err(format!("{got:?}, not {wanted:?}")),
    })
}

impl Case for Mistake {
    fn size(&self) -> usize {
        0
    }

    fn smaller(&self) -> Vec<Self> {
        Vec::new()
    }

    fn check(&self, device: &Device) -> Verdict {
        let rng = &mut SmallRng::seed_from_u64(self.numbers.0);
        let mut tensor = |plain: &Plain| plain.tensor(rng, device);
        let double = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
        match &self.call {
            Call::Matmul(a, b) => {
                let (x, y) = (tensor(a)?, tensor(b)?);
                compare(matmul(&x, &y), product(&x, &y), &[a, b])
            }
            Call::Gemm(a, b, c) => {
                let (x, y, z) = (tensor(a)?, tensor(b)?, tensor(c)?);
                let wanted = || -> Result<Tensor> {
                    let product = product(&x, &y)?;
                    if !stands_beside(z.dtype(), x.dtype()) {
                        candle_core::bail!("dtypes differ");
                    }
                    (product.affine(2.0, 0.0)? - double(&z)?.broadcast_as(product.dims())?)?.contiguous()
                };
                let gemm = Gemm::new().alpha(2.0).c(&z, -1.0);
                let unsigned = [a, b, c].iter().any(|plain| !plain.dtype.is_float());
                match (gemm.matmul(&x, &y), unsigned) {
                    // Nothing is promised about negative unsigned numbers.
                    (Ok(_), true) => Ok(Ok(())),
                    (got, _) => compare(got, wanted(), &[a, b, c]),
                }
            }
            Call::Kernel(a, b, name) => {
                let (x, y) = (tensor(a)?, tensor(b)?);
                let fits = product(&x, &y).is_ok();
                let known = candle_sgemm::gemm::TABLE.iter().any(|spec| spec.name == *name);
                Ok(match Gemm::new().kernel(*name).matmul(&x, &y) {
                    Ok(_) if known && fits && device.is_cuda() => Ok(()),
                    Ok(_) => Err(format!("kernel '{name}' gives a result")),
                    Err(error) if !fits || error.to_string().contains(name) => Ok(()),
                    Err(error) => Err(format!("the error does not name the kernel: {error}")),
                })
            }
            Call::Linear(x, w, bias, residual) => {
                let (input, weight) = (tensor(x)?, tensor(w)?);
                let added = bias.as_ref().map(&mut tensor).transpose()?;
                let skipped = residual.as_ref().map(&mut tensor).transpose()?;
                let layer = Linear::new(weight.clone(), added.clone());
                let got = match &skipped {
                    Some(residual) => layer.forward_residual(&input, residual),
                    None => layer.forward(&input),
                };
                let wanted = || -> Result<Tensor> {
                    let mut y = product(&input, &weight.t()?)?;
                    for other in [&added, &skipped].into_iter().flatten() {
                        if !stands_beside(other.dtype(), input.dtype()) {
                            candle_core::bail!("dtypes differ");
                        }
                    }
                    if let Some(bias) = &added {
                        y = y.broadcast_add(&double(bias)?)?;
                    }
                    if let Some(residual) = &skipped {
                        let residual = double(residual)?.broadcast_as(y.dims())?;
                        y = (y + residual)?;
                    }
                    Ok(y)
                };
                let inputs: Vec<&Plain> = [Some(x), Some(w), bias.as_ref(), residual.as_ref()]
                    .into_iter()
                    .flatten()
                    .collect();
                compare(got, wanted(), &inputs)
            }
            Call::Prepared(x, w) => {
                let (input, weight) = (tensor(x)?, tensor(w)?);
                let wanted = weight.t().and_then(|w| product(&input, &w));
                match Linear::new(weight, None).prepare() {
                    Ok(layer) => compare(layer.forward(&input), wanted, &[x, w]),
                    // This has not seen the input.
                    Err(error) => compare(Err(error), wanted, &[w]),
                }
            }
            Call::Mlp(widths) => {
                let vb = VarBuilder::zeros(DType::F32, device);
                let mlp = Mlp::new(widths, Activation::Relu, vb);
                Ok(match (mlp, widths.len()) {
                    (Ok(mlp), 2..) => {
                        let y = mlp.forward(&Tensor::zeros((2, widths[0]), DType::F32, device)?)?;
                        match y.dims() == [2, widths[widths.len() - 1]] {
                            true => Ok(()),
                            false => Err(format!("shape {:?}", y.dims())),
                        }
                    }
                    (Err(error), 0..2) if error.to_string().contains(&format!("{widths:?}")) => Ok(()),
                    (Err(error), _) => Err(error.to_string()),
                    (Ok(_), _) => Err("a network without layers".to_string()),
                })
            }
            Call::Gated(gate, up, down) => {
                let mut layer = |plain: &Plain| Ok::<_, candle_core::Error>(Linear::new(tensor(plain)?, None));
                let layers = [layer(gate)?, layer(up)?, layer(down)?];
                let fits = gate.dims.len() == 2
                    && gate.dims == up.dims
                    && down.dims.len() == 2
                    && down.dims[1] == gate.dims[0];
                let [one, two, three] = layers;
                Ok(match (GatedMlp::from_layers(one, two, three, Activation::Silu), fits) {
                    (Ok(_), true) => Ok(()),
                    (Ok(_), false) => Err("weights that do not fit are a layer".to_string()),
                    (Err(error), true) => Err(error.to_string()),
                    (Err(error), false) => {
                        let text = error.to_string();
                        let shapes = [gate, up, down].map(|plain| format!("{:?}", plain.dims));
                        match shapes.iter().any(|shape| text.contains(shape)) {
                            true => Ok(()),
                            false => Err(format!("the error names no shape: {text}")),
                        }
                    }
                })
            }
            Call::Permute(x, order) => {
                let input = tensor(x)?;
                let wanted = input.permute(order.clone()).and_then(|y| y.contiguous());
                moved(permute(&input, order.clone()), wanted, x)
            }
            Call::Transpose(x, i, j) => {
                let input = tensor(x)?;
                let wanted = input.transpose(*i, *j).and_then(|y| y.contiguous());
                moved(transpose(&input, *i, *j), wanted, x)
            }
            Call::TContiguous(x) => {
                let input = tensor(x)?;
                let wanted = input.t().and_then(|y| y.contiguous());
                moved(input.t_contiguous(), wanted, x)
            }
        }
    }
}

/// As [`compare`], but of no dtype is an error right where candle has none.
fn moved(got: Result<Tensor>, wanted: Result<Tensor>, x: &Plain) -> Verdict {
    match got {
        Err(error) if wanted.is_ok() => Ok(Err(format!("candle does this: {error}"))),
        got => compare(got, wanted, &[x]),
    }
}
