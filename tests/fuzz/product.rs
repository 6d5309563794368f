//! Products: shapes, views, broadcast batches, types, precisions, kernels by name, α, β, C, gradients.

use crate::draw::{self, one_in, one_of, Seed, Values};
use crate::expected::{broadcast, precision_of, Expected};
use crate::harness::{Case, Verdict};
use crate::operand::Operand;
use crate::view::View;
use candle_core::{DType, Device, Result, Tensor};
use candle_sgemm::gemm::{KernelSpec, TABLE};
use candle_sgemm::{matmul, Gemm, Precision, SgemmExt};
use rand::rngs::{SmallRng, StdRng};
use rand::{Rng, SeedableRng};

/// How the product is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Entry {
    Matmul,
    Sgemm,
    Gemm,
    SideBySide,
}

/// C and its factor.
#[derive(Clone, Debug)]
pub struct Added {
    beta: f32,
    c: View,
}

/// `α·A·B + β·C`.
#[derive(Clone, Debug)]
pub struct Product {
    entry: Entry,
    a: View,
    b: View,
    alpha: f32,
    added: Option<Added>,
    /// The type of the result, where it is asked for.
    out: Option<DType>,
    precision: Precision,
    kernel: Option<&'static str>,
    gradients: bool,
    values: Values,
    numbers: Seed,
}

/// A kernel of the table, mostly none: on a CPU all that it can do is refuse. Mostly one that multiplies such factors.
pub fn draw_kernel(rng: &mut StdRng, on_gpu: bool, factors: DType) -> Option<&'static str> {
    const OF_ANY_TYPE_ONE_IN: u32 = 20;
    let times = if on_gpu { 4 } else { 40 };
    if !one_in(rng, times) {
        return None;
    }
    let any = one_in(rng, OF_ANY_TYPE_ONE_IN);
    let fits = |spec: &&KernelSpec| any || spec.dtype.name() == factors.as_str();
    let kernels: Vec<&KernelSpec> = TABLE.iter().filter(fits).collect();
    Some(one_of(rng, &kernels).name)
}

/// What to make of a result where a kernel was asked for by name: it may be refused, with its name and a reason.
pub fn refused(result: &Result<Tensor>, kernel: Option<&str>) -> Option<std::result::Result<(), String>> {
    let (Err(error), Some(kernel)) = (result, kernel) else {
        return None;
    };
    let text = error.to_string();
    let reason = [
        "cannot take",
        "multiplies f",
        "multiplies bf16",
        "runs on CUDA devices",
        "was not compiled",
    ];
    Some(
        match text.contains(kernel) && reason.iter().any(|reason| text.contains(reason)) {
            true => Ok(()),
            false => Err(format!("kernel '{kernel}' is refused without a reason: {text}")),
        },
    )
}

impl Product {
    pub fn draw(rng: &mut StdRng, on_gpu: bool) -> Self {
        let batch = draw::batch(rng);
        let [m, n, k] = draw::sizes(rng, batch.iter().product());
        let dtype = draw::factors(rng);
        let operand = |rng: &mut StdRng, rows, cols| {
            let dims = draw::broadcastable(rng, &[&batch[..], &[rows, cols]].concat(), 2);
            View::draw(rng, &dims, dtype)
        };
        let (a, b) = (operand(rng, m, k), operand(rng, k, n));
        let values = Values::draw(rng);
        let mut entry = one_of(
            rng,
            &[
                Entry::Matmul,
                Entry::Sgemm,
                Entry::Gemm,
                Entry::Gemm,
                Entry::Gemm,
                Entry::SideBySide,
            ],
        );
        if entry == Entry::SideBySide && a.dims().len().max(b.dims().len()) < 3 {
            entry = Entry::Gemm;
        }
        let mut case = Product {
            entry,
            a,
            b,
            alpha: 1.0,
            added: None,
            out: None,
            precision: Precision::default(),
            kernel: None,
            gradients: one_in(rng, 5),
            values,
            numbers: Seed(rng.random_range(0..1 << 16)),
        };
        if matches!(entry, Entry::Gemm | Entry::SideBySide) {
            case.precision = one_of(rng, &Precision::ALL);
            case.kernel = draw_kernel(rng, on_gpu, dtype);
            case.out = draw::result(rng, dtype);
            if rng.random() {
                case.alpha = values.factor(rng);
            }
            if one_in(rng, 3) {
                let dims = draw::broadcastable(rng, &case.dims(), 0);
                let dtype = draw::beside(rng, dtype);
                case.added = Some(Added {
                    beta: values.factor(rng),
                    c: View::draw(rng, &dims, dtype),
                });
            }
        }
        case
    }

    /// The type of A and B.
    fn factors(&self) -> DType {
        self.a.dtype()
    }

    /// The type of the result.
    fn result(&self) -> DType {
        self.out.unwrap_or(self.factors())
    }

    /// Dimensions of the result, one matrix after the other.
    fn dims(&self) -> Vec<usize> {
        let batch = |view: &View| view.dims()[..view.dims().len() - 2].to_vec();
        [
            broadcast(&batch(&self.a), &batch(&self.b)),
            vec![self.a.dim(1), self.b.dim(0)],
        ]
        .concat()
    }

    /// Rows of A, columns of B, and what is between them.
    fn sizes(&self) -> [usize; 3] {
        [self.a.dim(1), self.b.dim(0), self.a.dim(0)]
    }

    /// A and B.
    pub fn views(&self) -> [&View; 2] {
        [&self.a, &self.b]
    }

    /// The same with another m, n and k.
    fn resized(&self, [m, n, k]: [usize; 3]) -> Self {
        let added = self.added.as_ref().map(|added| Added {
            c: added.c.resized(1, m).resized(0, n),
            ..*added
        });
        Product {
            a: self.a.resized(1, m).resized(0, k),
            b: self.b.resized(1, k).resized(0, n),
            added,
            ..self.clone()
        }
    }

    /// The same with FP32 numbers.
    fn in_fp32(&self) -> Self {
        let added = self.added.as_ref().map(|added| Added {
            c: added.c.typed(DType::F32),
            ..*added
        });
        Product {
            a: self.a.typed(DType::F32),
            b: self.b.typed(DType::F32),
            added,
            out: None,
            ..self.clone()
        }
    }

    /// The same with batch dimension `i`, counted from the innermost, of one matrix.
    fn without_batch(&self, i: usize) -> Self {
        let added = self.added.as_ref().map(|added| Added {
            c: added.c.resized(i + 2, 1),
            ..*added
        });
        Product {
            a: self.a.resized(i + 2, 1),
            b: self.b.resized(i + 2, 1),
            added,
            ..self.clone()
        }
    }
}

impl Case for Product {
    fn size(&self) -> usize {
        self.dims().iter().product::<usize>() * self.a.dim(0)
    }

    fn smaller(&self) -> Vec<Self> {
        let sizes = self.sizes();
        let mut smaller = Vec::new();
        for (i, &size) in sizes.iter().enumerate() {
            let less = [1, size / 2, size - size / 8, size - 1];
            for less in less.into_iter().filter(|&less| less >= 1 && less < size) {
                let mut sizes = sizes;
                sizes[i] = less;
                smaller.push(self.resized(sizes));
            }
        }
        let dims = self.dims();
        for i in (0..dims.len() - 2).filter(|&i| dims[dims.len() - 3 - i] > 1) {
            smaller.push(self.without_batch(i));
        }
        let same = || self.clone();
        if self.factors() != DType::F32 {
            smaller.push(self.in_fp32());
        }
        if self.out.is_some() {
            smaller.push(Product { out: None, ..same() });
        }
        if self.entry == Entry::SideBySide {
            smaller.push(Product {
                entry: Entry::Gemm,
                ..same()
            });
        }
        if self.gradients {
            smaller.push(Product {
                gradients: false,
                ..same()
            });
        }
        if self.added.is_some() {
            smaller.push(Product { added: None, ..same() });
        }
        if self.alpha != 1.0 {
            smaller.push(Product { alpha: 1.0, ..same() });
        }
        smaller.extend(self.a.simpler().into_iter().map(|a| Product { a, ..same() }));
        smaller.extend(self.b.simpler().into_iter().map(|b| Product { b, ..same() }));
        if let Some(added) = &self.added {
            let views = added.c.simpler().into_iter();
            smaller.extend(views.map(|c| Product {
                added: Some(Added { c, ..*added }),
                ..same()
            }));
        }
        smaller
    }

    fn check(&self, device: &Device) -> Verdict {
        let rng = &mut SmallRng::seed_from_u64(self.numbers.0);
        let values = self.values;
        let variables = self.gradients;
        let a = Operand::new(&self.a, values, rng, variables, device)?;
        let b = Operand::new(&self.b, values, rng, variables, device)?;
        let c = match &self.added {
            // Where β is 0 nobody may look at C.
            Some(Added { beta: 0.0, c }) => Some(Operand::mapped(c, values, rng, false, device, |_| f32::NAN)?),
            Some(added) => Some(Operand::new(&added.c, values, rng, variables, device)?),
            None => None,
        };
        let result = match self.entry {
            Entry::Matmul => matmul(&a.tensor, &b.tensor),
            Entry::Sgemm => a.tensor.sgemm(&b.tensor),
            Entry::Gemm | Entry::SideBySide => {
                let mut gemm = Gemm::new().precision(self.precision).alpha(f64::from(self.alpha));
                if let (Some(added), Some(c)) = (&self.added, &c) {
                    gemm = gemm.c(&c.tensor, f64::from(added.beta));
                }
                if let Some(kernel) = self.kernel {
                    gemm = gemm.kernel(kernel);
                }
                if let Some(out) = self.out {
                    gemm = gemm.out_dtype(out);
                }
                match self.entry {
                    Entry::SideBySide => gemm.matmul_side_by_side(&a.tensor, &b.tensor),
                    _ => gemm.matmul(&a.tensor, &b.tensor),
                }
            }
        };
        if let Some(verdict) = refused(&result, self.kernel) {
            return Ok(verdict);
        }
        let result = result?;
        // What the environment says counts where the case names no precision.
        let precision = match self.entry {
            Entry::Gemm | Entry::SideBySide => self.precision,
            Entry::Matmul | Entry::Sgemm => default_precision(),
        };
        let (a_exact, b_exact) = (a.exact()?, b.exact()?);
        let forward = precision_of(self.factors(), precision);
        let mut expected = a_exact.product(&b_exact, forward)?.scaled(self.alpha)?;
        let read = self.added.as_ref().filter(|added| added.beta != 0.0).zip(c.as_ref());
        if let Some((added, c)) = read {
            expected = expected.plus(&c.exact()?.scaled(added.beta)?)?;
        }
        let dims = self.dims();
        let batch = &dims[..dims.len() - 2];
        if self.entry == Entry::SideBySide {
            expected = expected.side_by_side()?;
        }
        let out = self.result();
        if let Err(complaint) = expected.check(&result, out, "result")? {
            return Ok(Err(complaint));
        }
        if !result.is_contiguous() {
            return Ok(Err(format!("the result has strides {:?}", result.stride())));
        }
        if !self.gradients {
            return Ok(Ok(()));
        }

        // The sum of the result's elements, each with a weight of its own, has these weights as its gradient.
        let weights = Operand::new(&View::dense(result.dims(), out), values, rng, false, device)?;
        let gradients = (&result * &weights.tensor)?.sum_all()?.backward()?;
        let mut weights = weights.exact()?;
        if self.entry == Entry::SideBySide {
            weights = weights.one_after_the_other(batch[batch.len() - 1])?;
        }
        // Factors of these products have the type of the result. An operand that the whole batch shares has one sum, rounded
        // once; what others have for each matrix is rounded before it is added up.
        let backward = precision_of(out, precision);
        let shared = |view: &View| view.dims().iter().rev().skip(2).all(|&dim| dim == 1);
        let finished = |of: Expected| of.scaled(self.alpha)?.stored(out);
        let of_a = match shared(&self.a) {
            true => {
                let of_a = weights.product_over_batch(&b_exact.batched(batch)?.t()?, backward)?;
                finished(of_a)?.reshaped(self.a.dims())?
            }
            false => finished(weights.product(&b_exact.t()?, backward)?)?.sum_to(self.a.dims(), DType::F32)?,
        };
        let of_b = match shared(&self.b) {
            true => {
                let of_b = a_exact.batched(batch)?.t()?.product_over_batch(&weights, backward)?;
                finished(of_b)?.reshaped(self.b.dims())?
            }
            false => finished(a_exact.t()?.product(&weights, backward)?)?.sum_to(self.b.dims(), DType::F32)?,
        };
        let mut checks: Vec<(&str, &Operand, Expected)> = vec![("A", &a, of_a), ("B", &b, of_b)];
        if let Some((added, c)) = read {
            let of_c = weights.scaled(added.beta)?.stored(out)?.stored(added.c.dtype())?;
            checks.push(("C", c, of_c.sum_to(added.c.dims(), added.c.dtype())?));
        }
        for (name, operand, expected) in checks {
            if let Err(complaint) = operand.check_gradient(&gradients, &expected, name)? {
                return Ok(Err(complaint));
            }
        }
        Ok(Ok(()))
    }
}

/// The precision of products that name none.
pub fn default_precision() -> Precision {
    let named = std::env::var("CANDLE_SGEMM_PRECISION").ok();
    named.and_then(|name| name.parse().ok()).unwrap_or_default()
}
