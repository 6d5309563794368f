//! Language models with candle's own caches: a text at once (prefill), and one token more (decode).

use super::{Model, Setup, SEED};
use crate::weights::{random_tokens, RandomWeights};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Activation, VarBuilder};
use candle_transformers::models::{llama, mistral, qwen2};
use std::sync::Arc;

/// A model and what it has read so far. A copy shares the weights and reads on by itself.
pub trait Reader: Clone + 'static {
    /// Reads tokens (batch, length) that follow `position` others; logits (batch, words) of what comes next.
    fn read(&mut self, tokens: &Tensor, position: usize) -> Result<Tensor>;
}

/// A Llama with its cache.
#[derive(Clone)]
pub struct Llama {
    model: Arc<llama::Llama>,
    cache: llama::Cache,
}

impl Llama {
    pub fn load(weights: VarBuilder, config: &llama::Config) -> Result<Self> {
        let cache = llama::Cache::new(true, weights.dtype(), config, weights.device())?;
        let model = Arc::new(llama::Llama::load(weights, config)?);
        Ok(Llama { model, cache })
    }

    /// Has the masks for texts of this length made, which the cache then keeps, and nothing else.
    fn prepare(mut self, length: usize, device: &Device) -> Result<Self> {
        self.cache.use_kv_cache = false;
        self.model
            .forward(&Tensor::zeros((1, length), DType::U32, device)?, 0, &mut self.cache)?;
        self.cache.use_kv_cache = true;
        Ok(self)
    }
}

impl Reader for Llama {
    fn read(&mut self, tokens: &Tensor, position: usize) -> Result<Tensor> {
        self.model.forward(tokens, position, &mut self.cache)
    }
}

impl Reader for mistral::Model {
    fn read(&mut self, tokens: &Tensor, position: usize) -> Result<Tensor> {
        self.forward(tokens, position)?.squeeze(1)
    }
}

impl Reader for qwen2::ModelForCausalLM {
    fn read(&mut self, tokens: &Tensor, position: usize) -> Result<Tensor> {
        self.forward(tokens, position)?.squeeze(1)
    }
}

/// The sizes of a Llama of about 1B parameters with so many layers.
pub fn llama_1b(layers: usize, positions: usize) -> llama::Config {
    llama::Config {
        hidden_size: 2048,
        intermediate_size: 8192,
        vocab_size: 32000,
        num_hidden_layers: layers,
        num_attention_heads: 32,
        num_key_value_heads: 8,
        use_flash_attn: false,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: positions,
        tie_word_embeddings: false,
    }
}

/// The same with everything smaller.
pub fn small_llama(positions: usize) -> llama::Config {
    llama::Config {
        hidden_size: 64,
        intermediate_size: 128,
        vocab_size: 100,
        num_attention_heads: 8,
        num_key_value_heads: 2,
        ..llama_1b(2, positions)
    }
}

/// A reader that has read nothing, and the number of its words.
pub struct Fresh<R> {
    pub reader: R,
    pub words: usize,
}

fn weights(setup: &Setup) -> VarBuilder<'static> {
    RandomWeights::new(SEED).builder(setup.dtype, &setup.device)
}

pub fn llama(setup: &Setup) -> Result<Fresh<Llama>> {
    let config = setup.choose(small_llama(32), llama_1b(4, 1024));
    Ok(Fresh {
        reader: Llama::load(weights(setup), &config)?,
        words: config.vocab_size,
    })
}

pub fn mistral(setup: &Setup) -> Result<Fresh<mistral::Model>> {
    let full = mistral::Config {
        num_hidden_layers: 2,
        max_position_embeddings: 1024,
        ..mistral::Config::config_7b_v0_1(false)
    };
    let config = setup.choose(
        mistral::Config {
            vocab_size: 100,
            hidden_size: 64,
            intermediate_size: 128,
            num_attention_heads: 8,
            num_key_value_heads: 2,
            max_position_embeddings: 32,
            ..full.clone()
        },
        full,
    );
    Ok(Fresh {
        reader: mistral::Model::new(&config, weights(setup))?,
        words: config.vocab_size,
    })
}

pub fn qwen2(setup: &Setup) -> Result<Fresh<qwen2::ModelForCausalLM>> {
    // Qwen2-0.5B, but for its number of positions, which only makes tables longer.
    let full = qwen2::Config {
        vocab_size: 151_936,
        hidden_size: 896,
        intermediate_size: 4864,
        num_hidden_layers: 24,
        num_attention_heads: 14,
        num_key_value_heads: 2,
        max_position_embeddings: 1024,
        sliding_window: 32_768,
        max_window_layers: 24,
        tie_word_embeddings: true,
        rope_theta: 1e6,
        rms_norm_eps: 1e-6,
        use_sliding_window: false,
        hidden_act: Activation::Silu,
    };
    let config = setup.choose(
        qwen2::Config {
            vocab_size: 100,
            hidden_size: 64,
            intermediate_size: 128,
            num_hidden_layers: 2,
            num_attention_heads: 8,
            max_position_embeddings: 32,
            max_window_layers: 2,
            ..full.clone()
        },
        full,
    );
    let weights = RandomWeights::new(SEED)
        .without("lm_head")
        .builder(setup.dtype, &setup.device);
    Ok(Fresh {
        reader: qwen2::ModelForCausalLM::new(&config, weights)?,
        words: config.vocab_size,
    })
}

/// Reads a whole text at each call.
fn prefill<R: Reader>(setup: &Setup, fresh: Fresh<R>, length: usize) -> Result<Model> {
    let tokens = random_tokens("text", (1, length), fresh.words, &setup.device)?;
    Ok(Model::new(format!("1×{length}"), vec![tokens], move |inputs| {
        fresh.reader.clone().read(&inputs[0], 0)
    }))
}

/// Reads the token after a text of this length, the same at each call.
fn decode<R: Reader>(setup: &Setup, fresh: Fresh<R>, length: usize) -> Result<Model> {
    let text = random_tokens("text", (1, length), fresh.words, &setup.device)?;
    let mut reader = fresh.reader;
    reader.read(&text, 0)?;
    let token = random_tokens("next", (1, 1), fresh.words, &setup.device)?;
    Ok(Model::new(format!("after {length}"), vec![token], move |inputs| {
        reader.clone().read(&inputs[0], length)
    }))
}

pub fn llama_prefill(setup: &Setup) -> Result<Model> {
    let (length, fresh) = (setup.choose(16, 512), llama(setup)?);
    let reader = fresh.reader.prepare(length, &setup.device)?;
    prefill(setup, Fresh { reader, ..fresh }, length)
}

pub fn llama_decode(setup: &Setup) -> Result<Model> {
    decode(setup, llama(setup)?, setup.choose(16, 512))
}

pub fn mistral_prefill(setup: &Setup) -> Result<Model> {
    prefill(setup, mistral(setup)?, setup.choose(16, 512))
}

pub fn mistral_decode(setup: &Setup) -> Result<Model> {
    decode(setup, mistral(setup)?, setup.choose(16, 512))
}

pub fn qwen2_prefill(setup: &Setup) -> Result<Model> {
    prefill(setup, qwen2(setup)?, setup.choose(16, 256))
}

pub fn qwen2_decode(setup: &Setup) -> Result<Model> {
    decode(setup, qwen2(setup)?, setup.choose(16, 256))
}
