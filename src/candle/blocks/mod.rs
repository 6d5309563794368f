//! Blocks of transformers, on this crate's layers: what stands beside a product is part of it.
//!
//! [`Attention`] and [`FeedForward`] make an [`EncoderLayer`], and each serves alone. They are built from the layers of a model,
//! so a model keeps the names of its weights, and its norms are a [`LayerNorm`] or any other `Module`. A layer of an encoder is seven kernels, or nine where
//! attention has much to compute and is three (where a plan cuts k or lays an operand out anew, that product is two):
//!
//! | kernel | what it does |
//! |---|---|
//! | product | queries, keys and values with their biases |
//! | attention | scores, scaled and masked, their softmax, and that times values, written as the rows that the next product reads; heads are views. Or a product, a [`softmax`] and a product: see [`attend`] |
//! | product | the attention's output, bias and residual |
//! | layer norm | |
//! | product | bias and activation |
//! | product | bias and residual |
//! | layer norm | |
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::{VarBuilder, VarMap};
//! use candle_sgemm::blocks::{layer_norm, Attention, EncoderLayer};
//! use candle_sgemm::{linear, Activation, Mlp};
//!
//! let variables = VarMap::new();
//! let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
//! let (width, inner, heads) = (64, 256, 4);
//! let attention = Attention::new(
//!     linear(width, width, vb.pp("query"))?,
//!     linear(width, width, vb.pp("key"))?,
//!     linear(width, width, vb.pp("value"))?,
//!     linear(width, width, vb.pp("output"))?,
//!     heads,
//! )?;
//! let feed_forward = Mlp::from_layers(vec![
//!     linear(width, inner, vb.pp("fc1"))?.with_activation(Activation::GeluErf),
//!     linear(inner, width, vb.pp("fc2"))?,
//! ]);
//! let norms = (layer_norm(width, 1e-5, vb.pp("norm1"))?, layer_norm(width, 1e-5, vb.pp("norm2"))?);
//! let layer = EncoderLayer::pre_norm(attention, norms.0, feed_forward, norms.1).prepare()?;
//!
//! let x = Tensor::randn(0f32, 1., (2, 10, width), &Device::Cpu)?;
//! assert_eq!(layer.forward(&x)?.dims(), x.dims());
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! # Masks
//!
//! A mask is added to the scores, which have shape (batch, heads, queries, keys): 0 where a key counts, and a large negative
//! number where it does not. It is broadcast to that shape without a copy.
//!
//! # Gradients
//!
//! Gradients flow through all of it; where one is to, attention is two products and candle's composed softmax, and a [`LayerNorm`] is
//! composed of candle's operations, for the kernels that are one have none. Candle's own fused layer norm has none either, and cuts
//! gradients off. The projections to queries, keys and values are copied into one weight. Gradients reach
//! the layers' own weights through the copy, but what an optimiser then makes of those is not seen: a model that is trained
//! builds [`Attention::from_projections`] on one variable.

mod argmax;
mod attention;
mod cache;
mod encoder;
mod norm;

pub use argmax::argmax;
pub use attention::{attend, explain_attention, Attention};
pub use cache::{KvCache, Rotation};
pub use encoder::{EncoderLayer, FeedForward};
pub use norm::{layer_norm, rms_norm, softmax, LayerNorm};
