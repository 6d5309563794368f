//! A Llama for one token at a time, from the weights of candle-transformers' model.
//!
//! | step | here | in candle |
//! |---|---|---|
//! | query, key, value | one product | three products |
//! | rotation | one kernel for queries and keys; values pass unturned | two kernels |
//! | cache | one kernel writes key and value in place | two copies of the whole cache, longer each time |
//! | heads that share a key | read it together | two copies of the whole cache |
//! | scores, softmax, values | one kernel | four: product, scaling, softmax, product |
//! | output of the attention | residual inside the product | product, addition |
//! | feed-forward | activation, multiplication and residual inside three products | three products, three kernels |
//! | norms | two | two |
//!
//! Every operation has the same shape whatever the position, which is a tensor: where the cache is written, which rotation is
//! taken and what is masked are looked up on the device. The price is that scores of the whole cache are computed, of tokens
//! that are yet to come too.

mod parts;

use candle_core::{bail, DType, Device, Module, Result, Tensor, D};
use candle_nn::{embedding, rms_norm, Embedding, RmsNorm, VarBuilder};
use candle_sgemm::{blocks, Activation, GatedMlp, Gemm, Linear};
use candle_transformers::models::llama::Config;

/// A Llama with a cache for so many tokens.
pub struct FixedLlama {
    words: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    tables: Tables,
    heads: Heads,
    gemm: Gemm,
}

/// How queries share keys.
#[derive(Clone, Copy)]
struct Heads {
    /// Of queries.
    queries: usize,
    /// Of keys, and as many of values.
    keys: usize,
    width: usize,
}

impl Heads {
    /// Queries that share a key are heads of one query each.
    fn of_queries(self) -> (usize, usize, usize, usize) {
        (self.keys, self.queries / self.keys, 1, self.width)
    }
}

struct Layer {
    norm: RmsNorm,
    /// Queries, keys and values, one below the other.
    qkv: Linear,
    output: Linear,
    mlp_norm: RmsNorm,
    mlp: GatedMlp,
    /// Keys, then values: (2·heads, capacity, width).
    cache: Tensor,
}

/// What is looked up by position.
#[derive(Clone)]
struct Tables {
    /// 0, 1, … of the cache's places.
    places: Tensor,
    /// Cosines and sines (capacity, width / 2).
    cos: Tensor,
    sin: Tensor,
    /// Those of no rotation, for the values (heads, 1, width / 2).
    ones: Tensor,
    zeros: Tensor,
    /// What is added to the scores of places that are read, and of those that are not (capacity).
    seen: Tensor,
    unseen: Tensor,
}

/// What all layers need of a position.
struct Here {
    /// Rotations of all heads (queries + 2·keys, 1, width / 2).
    cos: Tensor,
    sin: Tensor,
    /// The place in the cache, for each number that is written (2·keys, 1, width).
    place: Tensor,
    /// (1, 1, capacity).
    mask: Tensor,
}

fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

impl FixedLlama {
    /// The model of this configuration out of `weights`, with room for `capacity` tokens, and with products as `gemm` says.
    ///
    /// # Errors
    ///
    /// Weights that are not there or have other shapes; a rotation other than the plain one; a capacity of 0.
    pub fn load(weights: VarBuilder, config: &Config, capacity: usize, gemm: &Gemm) -> Result<Self> {
        if config.rope_scaling.is_some() {
            bail!("this Llama has plain rotations only, and the configuration scales them");
        }
        if capacity == 0 {
            bail!("a cache holds at least one token");
        }
        let heads = Heads {
            queries: config.num_attention_heads,
            keys: config.num_key_value_heads,
            width: config.hidden_size / config.num_attention_heads,
        };
        let (dtype, device) = (weights.dtype(), weights.device().clone());
        let width = config.hidden_size;
        let words = embedding(config.vocab_size, width, weights.pp("model.embed_tokens"))?;
        let head = match config.tie_word_embeddings {
            true => Linear::new(words.embeddings().clone(), None),
            false => candle_sgemm::linear_no_bias(width, config.vocab_size, weights.pp("lm_head"))?,
        };
        let layers = (0..config.num_hidden_layers).map(|i| {
            let weights = weights.pp("model.layers").pp(i);
            Layer::load(weights, config, heads, capacity, gemm)
        });
        Ok(FixedLlama {
            words,
            layers: layers.collect::<Result<_>>()?,
            norm: rms_norm(width, config.rms_norm_eps, weights.pp("model.norm"))?,
            head: head.with_gemm(gemm.clone()).prepare()?,
            tables: Tables::new(config, heads, capacity, dtype, &device)?,
            heads,
            gemm: gemm.clone(),
        })
    }

    /// The same weights with another precision or kernel, and a cache of its own, which is empty.
    ///
    /// # Errors
    ///
    /// If there is no room for the cache.
    pub fn with_gemm(&self, gemm: &Gemm) -> Result<Self> {
        let layers = self.layers.iter().map(|layer| layer.with_gemm(gemm));
        Ok(FixedLlama {
            words: self.words.clone(),
            layers: layers.collect::<Result<_>>()?,
            norm: self.norm.clone(),
            head: self.head.clone().with_gemm(gemm.clone()),
            tables: self.tables.clone(),
            heads: self.heads,
            gemm: gemm.clone(),
        })
    }

    /// 0, 1, … up to the cache's capacity, to take a position from.
    ///
    /// # Errors
    ///
    /// If they cannot be copied.
    pub fn positions(&self) -> Result<Tensor> {
        self.tables.places.copy()
    }

    /// Bytes that are read for each token, whatever the position: all weights, of the words' one row.
    pub fn weight_bytes(&self) -> usize {
        let norm = |norm: &RmsNorm| bytes(norm.weight());
        let layers = self.layers.iter().map(|layer| {
            let matrices = [
                &layer.qkv,
                &layer.output,
                layer.mlp.gate(),
                layer.mlp.up(),
                layer.mlp.down(),
            ];
            let matrices: usize = matrices.iter().map(|matrix| bytes(matrix.weight())).sum();
            matrices + norm(&layer.norm) + norm(&layer.mlp_norm)
        });
        let row = bytes(self.words.embeddings()) / self.words.embeddings().dims()[0].max(1);
        layers.sum::<usize>() + norm(&self.norm) + bytes(self.head.weight()) + row
    }

    /// Logits (1, words) after `token` (1) at `position` (1), both `u32`, and the likeliest word (1). The position must be less
    /// than the capacity: on the device nobody looks.
    ///
    /// # Errors
    ///
    /// Those of candle.
    pub fn step(&self, token: &Tensor, position: &Tensor) -> Result<(Tensor, Tensor)> {
        let here = self.tables.here(position, self.heads)?;
        let mut x = self.words.forward(token)?;
        for layer in &self.layers {
            x = layer.attend(&x, &here, self.heads, &self.gemm)?;
            x = layer.mlp.forward_residual(&layer.mlp_norm.forward(&x)?, &x)?;
        }
        let logits = self.head.forward(&self.norm.forward(&x)?)?;
        let likeliest = logits.argmax(D::Minus1)?;
        Ok((logits, likeliest))
    }
}

impl Layer {
    fn load(weights: VarBuilder, config: &Config, heads: Heads, capacity: usize, gemm: &Gemm) -> Result<Self> {
        let (width, inner, eps) = (config.hidden_size, config.intermediate_size, config.rms_norm_eps);
        let attention = weights.pp("self_attn");
        let ready = |layer: Linear| layer.with_gemm(gemm.clone()).prepare();
        let linear = |inputs, outputs, weights| ready(candle_sgemm::linear_no_bias(inputs, outputs, weights)?);
        let projection =
            |name: &str, heads_of_part: usize| linear(width, heads_of_part * heads.width, attention.pp(name));
        let parts = [
            projection("q_proj", heads.queries)?,
            projection("k_proj", heads.keys)?,
            projection("v_proj", heads.keys)?,
        ];
        let mlp = weights.pp("mlp");
        Ok(Layer {
            norm: rms_norm(width, eps, weights.pp("input_layernorm"))?,
            qkv: ready(Linear::side_by_side(&parts)?)?,
            output: linear(heads.queries * heads.width, width, attention.pp("o_proj"))?,
            mlp_norm: rms_norm(width, eps, weights.pp("post_attention_layernorm"))?,
            mlp: GatedMlp::from_layers(
                linear(width, inner, mlp.pp("gate_proj"))?,
                linear(width, inner, mlp.pp("up_proj"))?,
                linear(inner, width, mlp.pp("down_proj"))?,
                Activation::Silu,
            )?,
            cache: Tensor::zeros(
                (2 * heads.keys, capacity, heads.width),
                weights.dtype(),
                weights.device(),
            )?,
        })
    }

    fn with_gemm(&self, gemm: &Gemm) -> Result<Self> {
        let with = |layer: &Linear| layer.clone().with_gemm(gemm.clone());
        Ok(Layer {
            norm: self.norm.clone(),
            qkv: with(&self.qkv),
            output: with(&self.output),
            mlp_norm: self.mlp_norm.clone(),
            mlp: self.mlp.clone().with_gemm(gemm),
            cache: self.cache.zeros_like()?,
        })
    }

    fn attend(&self, x: &Tensor, here: &Here, heads: Heads, gemm: &Gemm) -> Result<Tensor> {
        let Heads { queries, keys, width } = heads;
        let qkv = self.qkv.forward(&self.norm.forward(x)?)?;
        // Each head is a batch of its own, with its own rotation.
        let qkv = qkv.reshape((queries + 2 * keys, 1, 1, width))?;
        let qkv = candle_nn::rotary_emb::rope(&qkv, &here.cos, &here.sin)?.squeeze(1)?;
        let new = qkv.narrow(0, queries, 2 * keys)?;
        self.cache.scatter_set(&here.place, &new, 1)?;
        let query = qkv.narrow(0, 0, queries)?.reshape(heads.of_queries())?;
        let context = self.context(&query, here, heads, gemm)?.reshape((1, queries * width))?;
        self.output.forward_residual(&context, x)
    }

    /// What queries (keys, queries that share one, 1, width) find in the cache: (keys, 1, queries that share one · width).
    fn context(&self, query: &Tensor, here: &Here, heads: Heads, gemm: &Gemm) -> Result<Tensor> {
        let Heads { keys, width, .. } = heads;
        let part = |first| self.cache.narrow(0, first, keys)?.unsqueeze(1);
        let scale = 1.0 / (width as f64).sqrt();
        blocks::attend(gemm, query, &part(0)?, &part(keys)?, scale, Some(&here.mask))
    }
}

impl Tables {
    fn new(config: &Config, heads: Heads, capacity: usize, dtype: DType, device: &Device) -> Result<Self> {
        /// What scores of 32 and of 16 bits drown in.
        const UNSEEN: f64 = -1e30;
        const UNSEEN_F16: f64 = -6e4;
        let places = Tensor::arange(0, capacity as u32, device)?;
        let half = heads.width / 2;
        // As candle computes them, so that the angles are the same to the bit.
        let turns: Vec<f32> = (0..half)
            .map(|i| 1.0 / config.rope_theta.powf((2 * i) as f32 / heads.width as f32))
            .collect();
        let turns = Tensor::from_vec(turns, (1, half), device)?;
        let angles = places.to_dtype(DType::F32)?.reshape((capacity, 1))?.matmul(&turns)?;
        let unseen = if dtype == DType::F16 { UNSEEN_F16 } else { UNSEEN };
        let zeros = Tensor::zeros(capacity, dtype, device)?;
        Ok(Tables {
            places,
            cos: angles.cos()?.to_dtype(dtype)?,
            sin: angles.sin()?.to_dtype(dtype)?,
            ones: Tensor::ones((heads.keys, 1, half), dtype, device)?,
            zeros: Tensor::zeros((heads.keys, 1, half), dtype, device)?,
            unseen: zeros.affine(1.0, unseen)?,
            seen: zeros,
        })
    }

    fn here(&self, position: &Tensor, heads: Heads) -> Result<Here> {
        let Heads { queries, keys, width } = heads;
        let rotation = |table: &Tensor, none: &Tensor| -> Result<Tensor> {
            let row = table.index_select(position, 0)?;
            let turned = row.broadcast_as((queries + keys, 1, width / 2))?;
            Tensor::cat(&[&turned, none], 0)
        };
        let later = self.places.broadcast_gt(position)?;
        Ok(Here {
            cos: rotation(&self.cos, &self.ones)?,
            sin: rotation(&self.sin, &self.zeros)?,
            place: position.broadcast_as((2 * keys, 1, width))?.contiguous()?,
            mask: later.where_cond(&self.unseen, &self.seen)?.reshape((1, 1, ()))?,
        })
    }
}
