//! Encoders of texts and images.

use super::{Model, Setup, SEED};
use crate::rebuilt::{FusedBert, FusedVit};
use crate::weights::{random_input, random_tokens, RandomWeights};
use candle_core::{DType, Error, Module, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{bert, clip, dinov2, distilbert, t5, vit};
use std::cell::RefCell;

fn weights(setup: &Setup) -> VarBuilder<'static> {
    RandomWeights::new(SEED).builder(setup.dtype, &setup.device)
}

pub fn bert(setup: &Setup) -> Result<Model> {
    let config = setup.choose(
        bert::Config {
            vocab_size: 100,
            hidden_size: 64,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            intermediate_size: 128,
            max_position_embeddings: 32,
            ..bert::Config::default()
        },
        bert::Config::default(),
    );
    let (batch, length) = setup.choose((2, 16), (8, 128));
    let rebuilt = FusedBert::load(weights(setup), &config)?;
    if setup.dtype != DType::F32 {
        // Its mask is 0 times a number that 16 bits round to infinity. The layers have no such difficulty.
        let encoder = bert::BertEncoder::load(weights(setup).pp("encoder"), &config)?;
        let hidden = (batch, length, config.hidden_size);
        let hidden = random_input("bert", hidden, setup.dtype, &setup.device)?;
        let mask = Tensor::zeros((batch, 1, 1, length), setup.dtype, &setup.device)?;
        let setting = format!("{batch}×{length}, layers alone");
        let model = Model::new(setting, vec![hidden, mask], move |inputs| {
            encoder.forward(&inputs[0], &inputs[1])
        });
        return Ok(model.rebuilt(rebuilt, FusedBert::with_gemm, |rebuilt, inputs| {
            rebuilt.encode(&inputs[0], Some(&inputs[1]))
        }));
    }
    let model = bert::BertModel::load(weights(setup), &config)?;
    let tokens = random_tokens("bert", (batch, length), config.vocab_size, &setup.device)?;
    let inputs = vec![tokens.clone(), tokens.zeros_like()?];
    let model = Model::new(format!("{batch}×{length}"), inputs, move |inputs| {
        model.forward(&inputs[0], &inputs[1], None)
    });
    Ok(model.rebuilt(rebuilt, FusedBert::with_gemm, |rebuilt, inputs| {
        rebuilt.forward(&inputs[0], &inputs[1], None)
    }))
}

/// The sizes of DistilBERT. Candle's configuration has private fields: it is made of JSON.
#[derive(serde::Serialize)]
struct DistilBert {
    vocab_size: usize,
    dim: usize,
    n_layers: usize,
    n_heads: usize,
    hidden_dim: usize,
    activation: &'static str,
    max_position_embeddings: usize,
    initializer_range: f64,
    pad_token_id: usize,
}

pub fn distilbert(setup: &Setup) -> Result<Model> {
    let full = DistilBert {
        vocab_size: 30522,
        dim: 768,
        n_layers: 6,
        n_heads: 12,
        hidden_dim: 3072,
        activation: "gelu",
        max_position_embeddings: 512,
        initializer_range: 0.02,
        pad_token_id: 0,
    };
    let small = DistilBert {
        vocab_size: 100,
        dim: 64,
        n_layers: 2,
        n_heads: 4,
        hidden_dim: 128,
        max_position_embeddings: 32,
        ..full
    };
    let sizes = setup.choose(small, full);
    let config = serde_json::to_value(&sizes).and_then(serde_json::from_value::<distilbert::Config>);
    let config = config.map_err(Error::wrap)?;
    let (batch, length) = setup.choose((2, 16), (4, 128));
    let model = distilbert::DistilBertModel::load(weights(setup), &config)?;
    let tokens = random_tokens("distilbert", (batch, length), config.vocab_size, &setup.device)?;
    // 1 where a token does not count.
    let mask = Tensor::zeros((batch, 1, 1, length), DType::U8, &setup.device)?;
    Ok(Model::new(
        format!("{batch}×{length}"),
        vec![tokens, mask],
        move |inputs| model.forward(&inputs[0], &inputs[1]),
    ))
}

pub fn t5(setup: &Setup) -> Result<Model> {
    // The default is T5-small.
    let full = t5::Config::default();
    let config = setup.choose(
        t5::Config {
            vocab_size: 100,
            d_model: 64,
            d_kv: 16,
            d_ff: 128,
            num_layers: 2,
            num_heads: 4,
            ..full.clone()
        },
        full,
    );
    let (batch, length) = setup.choose((2, 16), (8, 128));
    // T5 does not scale its scores: its queries are smaller instead.
    let weights = RandomWeights::new(SEED).scaled(".q.weight", 1.0 / (config.d_kv as f64).sqrt());
    let model = t5::T5EncoderModel::load(weights.builder(setup.dtype, &setup.device), &config)?;
    let model = RefCell::new(model);
    let tokens = random_tokens("t5", (batch, length), config.vocab_size, &setup.device)?;
    Ok(Model::new(format!("{batch}×{length}"), vec![tokens], move |inputs| {
        model.borrow_mut().forward(&inputs[0])
    }))
}

pub fn clip_text(setup: &Setup) -> Result<Model> {
    let full = clip::text_model::ClipTextConfig::vit_base_patch32();
    let config = setup.choose(
        clip::text_model::ClipTextConfig {
            vocab_size: 100,
            embed_dim: 64,
            intermediate_size: 128,
            max_position_embeddings: 16,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            ..full.clone()
        },
        full,
    );
    let (batch, length) = (setup.choose(2, 8), config.max_position_embeddings);
    let model = clip::text_model::ClipTextTransformer::new(weights(setup), &config)?;
    let tokens = random_tokens("clip", (batch, length), config.vocab_size, &setup.device)?;
    Ok(Model::new(format!("{batch}×{length}"), vec![tokens], move |inputs| {
        model.forward(&inputs[0])
    }))
}

/// Images (batch, 3, size, size).
pub(super) fn images(setup: &Setup, name: &str, batch: usize, size: usize) -> Result<(String, Vec<Tensor>)> {
    let images = random_input(name, (batch, 3, size, size), setup.dtype, &setup.device)?;
    Ok((format!("{batch}×{size}×{size}"), vec![images]))
}

pub fn clip_image(setup: &Setup) -> Result<Model> {
    let full = clip::vision_model::ClipVisionConfig::vit_base_patch32();
    let config = setup.choose(
        clip::vision_model::ClipVisionConfig {
            embed_dim: 64,
            intermediate_size: 128,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            image_size: 32,
            patch_size: 8,
            ..full.clone()
        },
        full,
    );
    let model = clip::vision_model::ClipVisionTransformer::new(weights(setup), &config)?;
    let (setting, inputs) = images(setup, "clip", setup.choose(2, 8), config.image_size)?;
    Ok(Model::new(setting, inputs, move |inputs| model.forward(&inputs[0])))
}

pub fn vit(setup: &Setup) -> Result<Model> {
    const LABELS: usize = 1000;
    let full = vit::Config::vit_base_patch16_224();
    let config = setup.choose(
        vit::Config {
            hidden_size: 64,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            intermediate_size: 128,
            image_size: 32,
            patch_size: 8,
            ..full.clone()
        },
        full,
    );
    let labels = setup.choose(10, LABELS);
    let model = vit::Model::new(&config, labels, weights(setup))?;
    let (setting, inputs) = images(setup, "vit", setup.choose(2, 8), config.image_size)?;
    let model = Model::new(setting, inputs, move |inputs| model.forward(&inputs[0]));
    let rebuilt = FusedVit::load(weights(setup), &config, labels)?;
    Ok(model.rebuilt(rebuilt, FusedVit::with_gemm, |rebuilt, inputs| {
        rebuilt.forward(&inputs[0])
    }))
}

pub fn dinov2(setup: &Setup) -> Result<Model> {
    let model = match setup.small {
        true => dinov2::DinoVisionTransformer::new(weights(setup), 2, 64, 4)?,
        false => dinov2::vit_small(weights(setup))?,
    };
    let (setting, inputs) = images(setup, "dinov2", 1, setup.choose(28, 518))?;
    Ok(Model::new(setting, inputs, move |inputs| model.forward(&inputs[0])))
}
