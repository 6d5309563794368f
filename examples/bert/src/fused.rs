//! A BERT encoder on this crate's layers, from the weights of candle-transformers' model.
//!
//! What a layer of it does with ten kernels takes candle's about thirty:
//!
//! | step | here | in candle |
//! |---|---|---|
//! | query, key, value | one product with its bias | three products, three bias additions |
//! | heads | views | three copies |
//! | scores | scaled and masked inside the product | product, scaling, mask |
//! | softmax | one kernel | five |
//! | values | one product, one transposition | product, copy |
//! | output of the attention | bias and residual inside the product | product, bias, residual |
//! | feed-forward | bias, GELU and residual inside its two products | two products, two biases, GELU, residual |
//! | layer norms | two | two |

use candle_core::{Module, Result, Tensor, D};
use candle_nn::{embedding, layer_norm, Embedding, LayerNorm, VarBuilder};
use candle_sgemm::{linear, Activation, Gemm, Linear, TransposeExt};
use candle_transformers::models::bert::{Config, HiddenAct};

pub struct FusedBert {
    words: Embedding,
    positions: Tensor,
    types: Embedding,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

struct Layer {
    /// Query, key and value, one below the other.
    qkv: Linear,
    attention_output: Linear,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
    heads: usize,
    gemm: Gemm,
}

impl FusedBert {
    /// The model of this configuration out of `vb`, with all products done as `gemm` says.
    pub fn load(vb: VarBuilder, config: &Config, gemm: &Gemm) -> Result<Self> {
        let prefixes = ["bert", config.model_type.as_deref().unwrap_or_default()];
        let prefix = prefixes
            .into_iter()
            .find(|prefix| vb.contains_tensor(&format!("{prefix}.embeddings.word_embeddings.weight")));
        let vb = prefix.map_or(vb.clone(), |prefix| vb.pp(prefix));
        let (width, embeddings) = (config.hidden_size, vb.pp("embeddings"));
        let positions = (config.max_position_embeddings, width);
        let layers = (0..config.num_hidden_layers).map(|i| Layer::load(vb.pp("encoder.layer").pp(i), config, gemm));
        Ok(FusedBert {
            words: embedding(config.vocab_size, width, embeddings.pp("word_embeddings"))?,
            positions: embeddings.pp("position_embeddings").get(positions, "weight")?,
            types: embedding(config.type_vocab_size, width, embeddings.pp("token_type_embeddings"))?,
            norm: layer_norm(width, config.layer_norm_eps, embeddings.pp("LayerNorm"))?,
            layers: layers.collect::<Result<_>>()?,
        })
    }

    /// Hidden states (batch, length, width) of tokens (batch, length); `mask` (batch, length) is 1 where a token counts.
    pub fn forward(&self, tokens: &Tensor, types: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let length = tokens.dim(1)?;
        let x = (self.words.forward(tokens)? + self.types.forward(types)?)?;
        let x = x.broadcast_add(&self.positions.narrow(0, 0, length)?)?;
        // 0 where a token counts, the least number where it does not; the same for every head and every query.
        let mask = mask
            .to_dtype(x.dtype())?
            .affine(-(f32::MIN as f64), f32::MIN as f64)?
            .unsqueeze(1)?
            .unsqueeze(1)?;
        let x = self.norm.forward(&x)?;
        self.layers.iter().try_fold(x, |x, layer| layer.forward(&x, &mask))
    }
}

impl Layer {
    fn load(vb: VarBuilder, config: &Config, gemm: &Gemm) -> Result<Self> {
        let (width, inner, eps) = (config.hidden_size, config.intermediate_size, config.layer_norm_eps);
        let attention = vb.pp("attention");
        let stacked = |name: &str, shape: candle_core::Shape| -> Result<Tensor> {
            let parts = ["query", "key", "value"].map(|part| attention.pp("self").pp(part).get(shape.clone(), name));
            Tensor::cat(&parts.into_iter().collect::<Result<Vec<_>>>()?, 0)
        };
        let qkv = Linear::new(
            stacked("weight", (width, width).into())?,
            Some(stacked("bias", width.into())?),
        );
        let activation = match config.hidden_act {
            HiddenAct::Gelu => Activation::GeluErf,
            HiddenAct::GeluApproximate => Activation::GeluTanh,
            HiddenAct::Relu => Activation::Relu,
        };
        let ready = |layer: Linear| layer.with_gemm(gemm.clone()).prepare();
        Ok(Layer {
            qkv: ready(qkv)?,
            attention_output: ready(linear(width, width, attention.pp("output.dense"))?)?,
            attention_norm: layer_norm(width, eps, attention.pp("output.LayerNorm"))?,
            intermediate: ready(linear(width, inner, vb.pp("intermediate.dense"))?)?.with_activation(activation),
            output: ready(linear(inner, width, vb.pp("output.dense"))?)?,
            output_norm: layer_norm(width, eps, vb.pp("output.LayerNorm"))?,
            heads: config.num_attention_heads,
            gemm: gemm.clone(),
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let attended = self.attend(x, mask)?;
        let x = self
            .attention_norm
            .forward(&self.attention_output.forward_residual(&attended, x)?)?;
        let inner = self.intermediate.forward(&x)?;
        self.output_norm.forward(&self.output.forward_residual(&inner, &x)?)
    }

    fn attend(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (batch, length, width) = x.dims3()?;
        let head = width / self.heads;
        // (batch, length, 3, heads, head) → three views (batch, heads, length, head)
        let qkv = self.qkv.forward(x)?.reshape((batch, length, 3, self.heads, head))?;
        let part = |i| qkv.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2);
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        let scale = 1.0 / (head as f64).sqrt();
        let scores = self.gemm.clone().alpha(scale).c(mask, 1.0).matmul(&query, &key.t()?)?;
        let weights = candle_nn::ops::softmax_last_dim(&scores)?;
        let context = self.gemm.matmul(&weights, &value)?;
        context.transpose(1, 2)?.contiguous_fast()?.flatten_from(D::Minus2)
    }
}
