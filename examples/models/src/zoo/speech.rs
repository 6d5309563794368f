//! Whisper: what it does with the sound once, with a text, and with a text a step further.

use super::{Model, Setup, SEED};
use crate::rebuilt::FusedWhisperEncoder;
use crate::weights::{random_input, random_tokens, RandomWeights};
use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::whisper::{model::Whisper, Config};
use std::cell::RefCell;

/// Whisper base.
fn config(setup: &Setup) -> Config {
    let full = Config {
        num_mel_bins: 80,
        max_source_positions: 1500,
        d_model: 512,
        encoder_attention_heads: 8,
        encoder_layers: 6,
        vocab_size: 51865,
        max_target_positions: 448,
        decoder_attention_heads: 8,
        decoder_layers: 6,
        suppress_tokens: Vec::new(),
    };
    setup.choose(
        Config {
            num_mel_bins: 8,
            max_source_positions: 20,
            d_model: 64,
            encoder_attention_heads: 4,
            encoder_layers: 2,
            vocab_size: 100,
            max_target_positions: 16,
            decoder_attention_heads: 4,
            decoder_layers: 2,
            suppress_tokens: Vec::new(),
        },
        full,
    )
}

fn weights(setup: &Setup) -> VarBuilder<'static> {
    RandomWeights::new(SEED).builder(setup.dtype, &setup.device)
}

fn load(setup: &Setup) -> Result<Whisper> {
    Whisper::load(&weights(setup), config(setup))
}

pub fn encoder(setup: &Setup) -> Result<Model> {
    let model = load(setup)?;
    let (bins, positions) = (model.config.num_mel_bins, model.config.max_source_positions);
    // The second convolution halves the length.
    let length = 2 * positions;
    let sound = random_input("whisper", (1, bins, length), setup.dtype, &setup.device)?;
    let rebuilt = FusedWhisperEncoder::load(weights(setup), &model.config)?;
    let model = RefCell::new(model.encoder);
    let model = Model::new(format!("1×{length}"), vec![sound], move |inputs| {
        model.borrow_mut().forward(&inputs[0], true)
    });
    Ok(
        model.rebuilt(rebuilt, FusedWhisperEncoder::with_gemm, |rebuilt, inputs| {
            rebuilt.forward(&inputs[0])
        }),
    )
}

/// Tokens, and what the encoder has made of the sound.
fn inputs(setup: &Setup, config: &Config, length: usize) -> Result<Vec<Tensor>> {
    let tokens = random_tokens("whisper", (1, length), config.vocab_size, &setup.device)?;
    let sound = (1, config.max_source_positions, config.d_model);
    Ok(vec![tokens, random_input("sound", sound, setup.dtype, &setup.device)?])
}

pub fn decoder(setup: &Setup) -> Result<Model> {
    let model = load(setup)?;
    let length = setup.choose(8, 128);
    let inputs = inputs(setup, &model.config, length)?;
    let model = RefCell::new(model.decoder);
    Ok(Model::new(format!("1×{length}"), inputs, move |inputs| {
        let mut model = model.borrow_mut();
        let hidden = model.forward(&inputs[0], &inputs[1], true)?;
        // What it keeps of the sound goes now: a recording could not free it when the next call begins.
        model.reset_kv_cache();
        model.final_linear(&hidden)
    }))
}

pub fn step(setup: &Setup) -> Result<Model> {
    let model = load(setup)?;
    let length = setup.choose(4, 32);
    let inputs = inputs(setup, &model.config, length)?;
    let mut decoder = model.decoder;
    decoder.forward(&inputs[0], &inputs[1], true)?;
    let model = RefCell::new(decoder);
    Ok(Model::new(format!("1×{length}"), inputs, move |inputs| {
        let mut model = model.borrow_mut();
        let hidden = model.forward(&inputs[0], &inputs[1], false)?;
        model.final_linear(&hidden.narrow(1, length - 1, 1)?)
    }))
}
