//! A layer of an encoder.

use super::super::matmul::Gemm;
use super::super::mlp::{GatedMlp, Mlp};
use super::attention::Attention;
use super::norm::LayerNorm;
use candle_core::{Module, Result, Tensor};

/// The feed-forward part of a layer: an [`Mlp`] or a [`GatedMlp`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FeedForward {
    /// Layers one after the other, mostly two.
    Plain(Mlp),
    /// With a gate.
    Gated(Box<GatedMlp>),
}

impl From<Mlp> for FeedForward {
    fn from(mlp: Mlp) -> Self {
        FeedForward::Plain(mlp)
    }
}

impl From<GatedMlp> for FeedForward {
    fn from(mlp: GatedMlp) -> Self {
        FeedForward::Gated(Box::new(mlp))
    }
}

impl FeedForward {
    /// The result plus `residual`, added in the last product.
    ///
    /// # Errors
    ///
    /// As [`Mlp::forward_residual`] and [`GatedMlp::forward_residual`].
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        match self {
            FeedForward::Plain(mlp) => mlp.forward_residual(x, residual),
            FeedForward::Gated(mlp) => mlp.forward_residual(x, residual),
        }
    }

    /// The same with the kernel, precision and tuning of `gemm` for all products.
    pub fn with_gemm(self, gemm: &Gemm) -> Self {
        match self {
            FeedForward::Plain(mlp) => mlp.with_gemm(gemm).into(),
            FeedForward::Gated(mlp) => mlp.with_gemm(gemm).into(),
        }
    }

    /// [`Linear::prepare`](crate::Linear::prepare) for every layer.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare(self) -> Result<Self> {
        Ok(match self {
            FeedForward::Plain(mlp) => mlp.prepare()?.into(),
            FeedForward::Gated(mlp) => mlp.prepare()?.into(),
        })
    }
}

impl Module for FeedForward {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            FeedForward::Plain(mlp) => mlp.forward(x),
            FeedForward::Gated(mlp) => mlp.forward(x),
        }
    }
}

/// A layer of an encoder: attention and feed-forward layers, each with a norm and a residual. Norms are a [`LayerNorm`], or any
/// other `Module`, as candle's are. The [module's documentation](super) has an example.
#[derive(Clone, Debug)]
pub struct EncoderLayer<N = LayerNorm> {
    attention: Attention,
    attention_norm: N,
    feed_forward: FeedForward,
    feed_forward_norm: N,
    order: Order,
}

/// Where the norms stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// x + part(norm(x))
    Pre,
    /// norm(x + part(x))
    Post,
}

impl<N: Module> EncoderLayer<N> {
    /// `x + attention(norm(x))`, then `x + feed_forward(norm(x))`: ViT, Whisper, CLIP.
    pub fn pre_norm(
        attention: Attention,
        attention_norm: N,
        feed_forward: impl Into<FeedForward>,
        feed_forward_norm: N,
    ) -> Self {
        EncoderLayer {
            attention,
            attention_norm,
            feed_forward: feed_forward.into(),
            feed_forward_norm,
            order: Order::Pre,
        }
    }

    /// `norm(x + attention(x))`, then `norm(x + feed_forward(x))`: BERT.
    pub fn post_norm(
        attention: Attention,
        attention_norm: N,
        feed_forward: impl Into<FeedForward>,
        feed_forward_norm: N,
    ) -> Self {
        EncoderLayer {
            order: Order::Post,
            ..EncoderLayer::pre_norm(attention, attention_norm, feed_forward, feed_forward_norm)
        }
    }

    /// The same with the kernel, precision and tuning of `gemm` for all products.
    pub fn with_gemm(self, gemm: &Gemm) -> Self {
        EncoderLayer {
            attention: self.attention.with_gemm(gemm),
            feed_forward: self.feed_forward.with_gemm(gemm),
            ..self
        }
    }

    /// [`Linear::prepare`](crate::Linear::prepare) for every weight.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare(self) -> Result<Self> {
        Ok(EncoderLayer {
            attention: self.attention.prepare()?,
            feed_forward: self.feed_forward.prepare()?,
            ..self
        })
    }

    /// Its attention.
    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    /// Its feed-forward layers.
    pub fn feed_forward(&self) -> &FeedForward {
        &self.feed_forward
    }

    /// The result for x (batch, length, width), of that shape, with a mask that is added to the scores
    /// (batch, heads, length, length).
    ///
    /// # Errors
    ///
    /// As [`Attention::forward_with`] and [`FeedForward::forward_residual`]; those of the norms.
    pub fn forward_with(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        match self.order {
            Order::Pre => {
                let x = &self
                    .attention
                    .forward_with(&self.attention_norm.forward(x)?, mask, Some(x))?;
                self.feed_forward
                    .forward_residual(&self.feed_forward_norm.forward(x)?, x)
            }
            Order::Post => {
                let x = self.attention.forward_with(x, mask, Some(x))?;
                let x = &self.attention_norm.forward(&x)?;
                self.feed_forward_norm
                    .forward(&self.feed_forward.forward_residual(x, x)?)
            }
        }
    }
}

impl<N: Module> Module for EncoderLayer<N> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, None)
    }
}
