//! A Llama for one token at a time, from the weights of candle-transformers' model.
//!
//! | step | here | in candle |
//! |---|---|---|
//! | norm, query, key, value | one product | a kernel, three products |
//! | rotation, cache, scores, softmax, values | one kernel: `KvCache::attend_step` | ten: two rotations, two copies of the whole cache, two more for heads that share a key, product, scaling, softmax, product |
//! | output of the attention | residual inside the product | product, addition |
//! | norm, gate, up | one product, with activation and multiplication inside | a kernel, two products, two kernels |
//! | down | residual inside the product | product, addition |
//! | norm, words | one product | a kernel, a product |
//! | the likeliest word | one kernel: `blocks::argmax` | a kernel |
//!
//! Every operation has the same shape whatever the position, which is a tensor that the attention reads on the device.

pub(in crate::decode) mod parts;

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::{embedding, Embedding, VarBuilder};
use candle_sgemm::blocks::{argmax, rms_norm, KvCache, LayerNorm, Rotation};
use candle_sgemm::{Activation, GatedMlp, Gemm, Linear};
use candle_transformers::models::llama::Config;

/// A Llama with a cache for so many tokens.
pub struct FixedLlama {
    words: Embedding,
    layers: Vec<Layer>,
    /// With the last norm.
    head: Linear,
    rotation: Rotation,
    /// 0, 1, … of the cache's places.
    positions: Tensor,
    heads: Heads,
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

struct Layer {
    /// The norm, then queries, keys and values, one below the other.
    qkv: Linear,
    output: Linear,
    /// With its norm.
    mlp: GatedMlp,
    cache: KvCache,
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
            head: head
                .with_norm(rms_norm(width, config.rms_norm_eps, weights.pp("model.norm"))?)
                .with_gemm(gemm.clone())
                .prepare()?,
            rotation: rotation(config, heads.width, capacity, dtype, &device)?,
            positions: Tensor::arange(0, capacity as u32, &device)?,
            heads,
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
            head: self.head.clone().with_gemm(gemm.clone()),
            rotation: self.rotation.clone(),
            positions: self.positions.clone(),
            heads: self.heads,
        })
    }

    /// 0, 1, … up to the cache's capacity, to take a position from.
    ///
    /// # Errors
    ///
    /// If they cannot be copied.
    pub fn positions(&self) -> Result<Tensor> {
        self.positions.copy()
    }

    /// Bytes that are read for each token, whatever the position: all weights, of the words' one row.
    pub fn weight_bytes(&self) -> usize {
        let norm = |norm: Option<&LayerNorm>| norm.map_or(0, |norm| bytes(norm.weight()));
        let layers = self.layers.iter().map(|layer| {
            let matrices = [
                &layer.qkv,
                &layer.output,
                layer.mlp.gate(),
                layer.mlp.up(),
                layer.mlp.down(),
            ];
            let matrices: usize = matrices.iter().map(|matrix| bytes(matrix.weight())).sum();
            matrices + norm(layer.qkv.norm()) + norm(layer.mlp.norm())
        });
        let row = bytes(self.words.embeddings()) / self.words.embeddings().dims()[0].max(1);
        layers.sum::<usize>() + norm(self.head.norm()) + bytes(self.head.weight()) + row
    }

    /// Logits (1, words) after `token` (1) at `position` (1), both `u32`, and the likeliest word (1). The position must be less
    /// than the capacity: on the device nobody looks.
    ///
    /// # Errors
    ///
    /// Those of candle.
    pub fn step(&self, token: &Tensor, position: &Tensor) -> Result<(Tensor, Tensor)> {
        let mut x = self.words.forward(token)?;
        for layer in &self.layers {
            x = layer.attend(&x, &self.rotation, position, self.heads)?;
            x = layer.mlp.forward_residual(&x, &x)?;
        }
        let logits = self.head.forward(&x)?;
        let likeliest = argmax(&logits)?;
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
            qkv: ready(Linear::side_by_side(&parts)?.with_norm(rms_norm(width, eps, weights.pp("input_layernorm"))?))?,
            output: linear(heads.queries * heads.width, width, attention.pp("o_proj"))?,
            mlp: GatedMlp::from_layers(
                linear(width, inner, mlp.pp("gate_proj"))?,
                linear(width, inner, mlp.pp("up_proj"))?,
                linear(inner, width, mlp.pp("down_proj"))?,
                Activation::Silu,
            )?
            .with_norm(rms_norm(width, eps, weights.pp("post_attention_layernorm"))?)
            .prepare()?,
            cache: KvCache::new(1, heads.keys, capacity, heads.width, weights.dtype(), weights.device())?,
        })
    }

    fn with_gemm(&self, gemm: &Gemm) -> Result<Self> {
        let with = |layer: &Linear| layer.clone().with_gemm(gemm.clone());
        Ok(Layer {
            qkv: with(&self.qkv),
            output: with(&self.output),
            mlp: self.mlp.clone().with_gemm(gemm),
            cache: self.cache.emptied()?,
        })
    }

    fn attend(&self, x: &Tensor, rotation: &Rotation, position: &Tensor, heads: Heads) -> Result<Tensor> {
        let qkv = self.qkv.forward(x)?;
        let context = self.context(&qkv, rotation, position, heads)?;
        self.output.forward_residual(&context, x)
    }

    /// What queries, new keys and new values (1, (queries + 2·keys)·width) make of the cache: (1, queries·width).
    fn context(&self, qkv: &Tensor, rotation: &Rotation, position: &Tensor, heads: Heads) -> Result<Tensor> {
        let scale = 1.0 / (heads.width as f64).sqrt();
        self.cache.attend_step(qkv, rotation, position, scale)
    }
}

/// Cosines and sines of each position's angles, as candle computes them, so that they are the same to the bit.
fn rotation(config: &Config, width: usize, positions: usize, dtype: DType, device: &Device) -> Result<Rotation> {
    let half = width / 2;
    let turns: Vec<f32> = (0..half)
        .map(|i| 1.0 / config.rope_theta.powf((2 * i) as f32 / width as f32))
        .collect();
    let turns = Tensor::from_vec(turns, (1, half), device)?;
    let positions = Tensor::arange(0, positions as u32, device)?.to_dtype(DType::F32)?;
    let angles = positions.unsqueeze(1)?.matmul(&turns)?;
    Rotation::new(&angles.cos()?.to_dtype(dtype)?, &angles.sin()?.to_dtype(dtype)?)
}
