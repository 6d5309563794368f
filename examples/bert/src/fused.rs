//! A BERT encoder on this crate's blocks, from the weights of candle-transformers' model.
//!
//! What a layer of it does with seven kernels, or nine for long texts, takes candle's thirty:
//!
//! | step | here | in candle |
//! |---|---|---|
//! | query, key, value | one product with its bias | three products, three bias additions |
//! | heads | views | three copies |
//! | scores, softmax, values | one kernel, which scales and masks and writes rows; for long texts two products and a softmax | two products, scaling, mask, five of the softmax, copy |
//! | output of the attention | bias and residual inside the product | product, bias, residual |
//! | feed-forward | bias, GELU and residual inside its two products | two products, two biases, GELU, residual |
//! | layer norms | two | two |

use candle_core::{Module, Result, Tensor};
use candle_nn::{embedding, Embedding, VarBuilder};
use candle_sgemm::blocks::{layer_norm, Attention, EncoderLayer, LayerNorm};
use candle_sgemm::{linear, Activation, Gemm, Mlp};
use candle_transformers::models::bert::{Config, HiddenAct};

#[derive(Clone)]
pub struct FusedBert {
    words: Embedding,
    positions: Tensor,
    types: Embedding,
    norm: LayerNorm,
    layers: Vec<EncoderLayer>,
}

impl FusedBert {
    /// The model of this configuration out of `vb`.
    ///
    /// # Errors
    ///
    /// Weights that are not there or have other shapes.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        // The model alone, as candle looks for it first, or as a part of another.
        const WORDS: &str = "embeddings.word_embeddings.weight";
        let prefixes = ["bert", config.model_type.as_deref().unwrap_or_default()];
        let mut places = [vb.clone()].into_iter().chain(prefixes.map(|prefix| vb.pp(prefix)));
        let place = places.find(|place| place.contains_tensor(WORDS));
        let vb = place.unwrap_or(vb);
        let (width, embeddings) = (config.hidden_size, vb.pp("embeddings"));
        let positions = (config.max_position_embeddings, width);
        let layers = (0..config.num_hidden_layers).map(|i| layer(vb.pp("encoder.layer").pp(i), config));
        Ok(FusedBert {
            words: embedding(config.vocab_size, width, embeddings.pp("word_embeddings"))?,
            positions: embeddings.pp("position_embeddings").get(positions, "weight")?,
            types: embedding(config.type_vocab_size, width, embeddings.pp("token_type_embeddings"))?,
            norm: layer_norm(width, config.layer_norm_eps, embeddings.pp("LayerNorm"))?,
            layers: layers.collect::<Result<_>>()?,
        })
    }

    /// The same weights with all products done as `gemm` says.
    pub fn with_gemm(self, gemm: &Gemm) -> Self {
        let layers = self.layers.into_iter().map(|layer| layer.with_gemm(gemm));
        FusedBert {
            layers: layers.collect(),
            ..self
        }
    }

    /// Hidden states (batch, length, width) of tokens (batch, length); `mask` (batch, length) is 1 where a token counts, and
    /// without one all do.
    ///
    /// # Errors
    ///
    /// Those of candle.
    pub fn forward(&self, tokens: &Tensor, types: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let length = tokens.dim(1)?;
        let x = (self.words.forward(tokens)? + self.types.forward(types)?)?;
        let x = x.broadcast_add(&self.positions.narrow(0, 0, length)?)?;
        // 0 where a token counts, the least number where it does not; the same for every head and every query.
        let mask = mask.map(|mask| {
            let mask = mask.to_dtype(x.dtype())?.affine(-(f32::MIN as f64), f32::MIN as f64)?;
            mask.unsqueeze(1)?.unsqueeze(1)
        });
        self.encode(&self.norm.forward(&x)?, mask.transpose()?.as_ref())
    }

    /// What the layers make of hidden states (batch, length, width), with a mask that is added to the scores.
    ///
    /// # Errors
    ///
    /// Those of candle.
    pub fn encode(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let mut layers = self.layers.iter();
        layers.try_fold(x.clone(), |x, layer| layer.forward_with(&x, mask))
    }
}

fn layer(vb: VarBuilder, config: &Config) -> Result<EncoderLayer> {
    let (width, inner, eps) = (config.hidden_size, config.intermediate_size, config.layer_norm_eps);
    let attention = vb.pp("attention");
    let projection = |name: &str| linear(width, width, attention.pp("self").pp(name));
    let activation = match config.hidden_act {
        HiddenAct::Gelu => Activation::GeluErf,
        HiddenAct::GeluApproximate => Activation::GeluTanh,
        HiddenAct::Relu => Activation::Relu,
    };
    let feed_forward = Mlp::from_layers(vec![
        linear(width, inner, vb.pp("intermediate.dense"))?.with_activation(activation),
        linear(inner, width, vb.pp("output.dense"))?,
    ]);
    let norm = layer_norm(width, eps, attention.pp("output.LayerNorm"))?;
    let attention = Attention::new(
        projection("query")?,
        projection("key")?,
        projection("value")?,
        linear(width, width, attention.pp("output.dense"))?,
        config.num_attention_heads,
    )?;
    EncoderLayer::post_norm(
        attention,
        norm,
        feed_forward,
        layer_norm(width, eps, vb.pp("output.LayerNorm"))?,
    )
    .prepare()
}
