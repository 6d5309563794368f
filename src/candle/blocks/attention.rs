//! Attention of a sequence to itself.

use super::super::attention::{self as fused, Operands};
use super::super::linear::Linear;
use super::super::matmul::Gemm;
use super::norm::softmax_of_own;
use candle_core::{bail, Module, Result, Tensor};

/// `softmax(scale·Q·Kᵀ + mask)·V` for heads (…, heads, length, width), any views: (…, queries, heads·width of a value). The last
/// dimension has the heads side by side, as an output projection reads them.
///
/// On a CUDA device it is one kernel where that is expected to be faster: with few queries, or few of both. [`explain_attention`] says
/// which, or why not. It multiplies in FP32, as every precision allows, and rounds once. Otherwise it is three kernels, two products
/// and a softmax: where there is more to compute, where a gradient is to flow, and where `gemm` names a kernel. Those have the kernel,
/// precision and tuning of `gemm`. Its α, C and type of result count in neither case.
///
/// Keys and values may be those of another sequence, and fewer than the queries' batch where they are broadcast. Heads of one query
/// each that share keys, (…, heads, 1, width) with keys (…, 1, keys, width), are read as the queries of one head.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_sgemm::{blocks, Gemm};
///
/// // Heads of a tensor (batch, length, heads, width) are a view of it.
/// let heads = |length: usize| Tensor::randn(0f32, 1., (2, length, 4, 16), &Device::Cpu)?.transpose(1, 2);
/// let (query, key, value) = (heads(5)?, heads(7)?, heads(7)?);
/// let context = blocks::attend(&Gemm::new(), &query, &key, &value, 0.25, None)?;
/// assert_eq!(context.dims(), [2, 5, 64]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`matmul`](crate::matmul); a mask that cannot be broadcast to (…, heads, queries, keys); operands without heads.
pub fn attend(
    gemm: &Gemm,
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    scale: f64,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let operands = Operands {
        query,
        key,
        value,
        mask,
    };
    if let Ok(context) =
        fused::attend(gemm, operands, scale).map_err(|error| error.context("attention by one kernel"))?
    {
        return Ok(context);
    }
    let plain = gemm.shared();
    let scaled = plain.clone().alpha(scale);
    let scaled = match mask {
        Some(mask) => scaled.c(mask, 1.0),
        None => scaled,
    };
    let in_part = |part: &str, error: candle_core::Error| error.context(format!("the {part} of attention"));
    let transposed = key.t()?;
    let scores = scaled
        .matmul(query, &transposed)
        .map_err(|error| in_part("scores", error))?;
    plain
        .matmul_side_by_side(&softmax_of_own(scores)?, value)
        .map_err(|error| in_part("context", error))
}

/// How [`attend`] computes this: the kernel and what it is expected to take, or why it is two products and a softmax.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_sgemm::{blocks, Gemm};
///
/// let heads = |rows: usize| Tensor::randn(0f32, 1., (8, rows, 64), &Device::Cpu);
/// let how = blocks::explain_attention(&Gemm::new(), &heads(4)?, &heads(256)?, &heads(256)?, None)?;
/// assert!(how.starts_with("two products and a softmax"), "{how}"); // as always on the CPU
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
///
/// If the driver fails to describe the device. Shapes that do not fit each other are no error here: [`attend`] reports them.
pub fn explain_attention(
    gemm: &Gemm,
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    mask: Option<&Tensor>,
) -> Result<String> {
    fused::explain(
        gemm,
        Operands {
            query,
            key,
            value,
            mask,
        },
    )
}

/// Attention of a sequence to itself: projections to queries, keys and values as one product, heads as views of its result,
/// scale and mask inside the scores' product, and bias and residual inside that of the output projection.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_sgemm::blocks::Attention;
/// use candle_sgemm::Linear;
///
/// let projection = || Ok::<_, candle_core::Error>(Linear::new(Tensor::randn(0f32, 0.1, (64, 64), &Device::Cpu)?, None));
/// let attention = Attention::new(projection()?, projection()?, projection()?, projection()?, 4)?;
/// let x = Tensor::randn(0f32, 1., (2, 10, 64), &Device::Cpu)?;
/// let mask = Tensor::zeros((2, 1, 1, 10), x.dtype(), &Device::Cpu)?;
/// let y = attention.forward_with(&x, Some(&mask), Some(&x))?; // the residual is added in the last product
/// assert_eq!(y.dims(), x.dims());
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Attention {
    /// Queries, keys and values, one below the other.
    projections: Linear,
    output: Linear,
    heads: usize,
    scale: f64,
    gemm: Gemm,
}

impl Attention {
    /// These projections, (heads·width of a head, in) each, with or without biases, and the output (out, heads·width). Scores are
    /// divided by the square root of a head's width.
    ///
    /// # Errors
    ///
    /// Weights that do not fit each other or the number of heads. See [`Linear::side_by_side`].
    pub fn new(query: Linear, key: Linear, value: Linear, output: Linear, heads: usize) -> Result<Self> {
        let widths = [&query, &key, &value].map(|layer| layer.weight().dims().first().copied());
        if widths.iter().any(|width| *width != widths[0]) {
            bail!(
                "queries, keys and values of attention have one width each, not weights {:?}, {:?} and {:?}",
                query.weight().dims(),
                key.weight().dims(),
                value.weight().dims()
            );
        }
        let projections = Linear::side_by_side(&[query, key, value])
            .map_err(|error| error.context("the projections of attention to queries, keys and values"))?;
        Attention::from_projections(projections, output, heads)
    }

    /// As [`new`](Self::new), of models whose projections are one weight (3·heads·width, in) already: queries, then keys, then
    /// values.
    ///
    /// # Errors
    ///
    /// Weights that do not fit each other or the number of heads.
    pub fn from_projections(projections: Linear, output: Linear, heads: usize) -> Result<Self> {
        let head = match (projections.weight().dims(), output.weight().dims()) {
            ([all, _], [_, width]) if heads > 0 && *all == 3 * width && *width > 0 && width % heads == 0 => {
                width / heads
            }
            (projections, output) => bail!(
                "attention of {heads} heads has projections (3·heads·width, in) and an output (out, heads·width), not \
                 {projections:?} and {output:?}"
            ),
        };
        Ok(Attention {
            projections,
            output,
            heads,
            scale: 1.0 / (head as f64).sqrt(),
            gemm: Gemm::new(),
        })
    }

    /// The same with another factor of the scores.
    pub fn with_scale(self, scale: f64) -> Self {
        Attention { scale, ..self }
    }

    /// The same with the kernel, precision and tuning of `gemm` for all products.
    pub fn with_gemm(self, gemm: &Gemm) -> Self {
        let gemm = gemm.shared();
        Attention {
            projections: self.projections.with_gemm(gemm.clone()),
            output: self.output.with_gemm(gemm.clone()),
            gemm,
            ..self
        }
    }

    /// [`Linear::prepare`] for both weights.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare(self) -> Result<Self> {
        Ok(Attention {
            projections: self.projections.prepare()?,
            output: self.output.prepare()?,
            ..self
        })
    }

    /// The layer that gives queries, keys and values.
    pub fn projections(&self) -> &Linear {
        &self.projections
    }

    /// The output projection.
    pub fn output(&self) -> &Linear {
        &self.output
    }

    /// Heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// What scores are multiplied with.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The result for x (batch, length, in): (batch, length, out). The mask is added to the scores (batch, heads, length, length),
    /// the residual to the result.
    ///
    /// # Errors
    ///
    /// An x of another rank; as [`attend`] and [`Linear::forward_residual`].
    pub fn forward_with(&self, x: &Tensor, mask: Option<&Tensor>, residual: Option<&Tensor>) -> Result<Tensor> {
        let [batch, length, _] = *x.dims() else {
            bail!("attention takes (batch, length, in), not {:?}", x.dims());
        };
        let part = |part: &str, result: Result<Tensor>| {
            result.map_err(|error| error.context(format!("the {part} of an Attention")))
        };
        let all = part("projections", self.projections.forward(x))?;
        let width = all.dim(2)? / 3 / self.heads;
        let all = all.reshape((batch, length, 3, self.heads, width))?;
        // (batch, heads, length, width)
        let heads = |i: usize| all.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2);
        let context = attend(&self.gemm, &heads(0)?, &heads(1)?, &heads(2)?, self.scale, mask)?;
        let y = match residual {
            Some(residual) => self.output.forward_residual(&context, residual),
            None => self.output.forward(&context),
        };
        part("output", y)
    }
}

impl Module for Attention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, None, None)
    }
}
