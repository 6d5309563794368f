//! What makes images, and convolutional networks.

use super::encoders::images;
use super::{Model, Setup, SEED};
use crate::weights::{random_input, RandomWeights};
use candle_core::{Module, Result};
use candle_transformers::models::stable_diffusion::unet_2d::{
    BlockConfig, UNet2DConditionModel, UNet2DConditionModelConfig,
};
use candle_transformers::models::stable_diffusion::vae::{AutoEncoderKL, AutoEncoderKLConfig};
use candle_transformers::models::{convnext as next, resnet as residual};

/// Channels of a latent image.
const LATENT: usize = 4;

/// The UNet of Stable Diffusion 1.5.
pub fn unet(setup: &Setup) -> Result<Model> {
    /// A step in the middle of the way.
    const STEP: f64 = 500.0;
    let block = |out_channels, use_cross_attn, attention_head_dim| BlockConfig {
        out_channels,
        use_cross_attn,
        attention_head_dim,
    };
    let full = UNet2DConditionModelConfig {
        blocks: vec![
            block(320, Some(1), 8),
            block(640, Some(1), 8),
            block(1280, Some(1), 8),
            block(1280, None, 8),
        ],
        cross_attention_dim: 768,
        ..UNet2DConditionModelConfig::default()
    };
    let config = setup.choose(
        UNet2DConditionModelConfig {
            blocks: vec![block(32, Some(1), 4), block(64, None, 4)],
            layers_per_block: 1,
            norm_num_groups: 8,
            cross_attention_dim: 16,
            ..full.clone()
        },
        full,
    );
    let (size, words) = setup.choose((8, 4), (64, 77));
    let text = (1, words, config.cross_attention_dim);
    let inputs = vec![
        random_input("latent", (1, LATENT, size, size), setup.dtype, &setup.device)?,
        random_input("text", text, setup.dtype, &setup.device)?,
    ];
    let weights = RandomWeights::new(SEED).builder(setup.dtype, &setup.device);
    let model = UNet2DConditionModel::new(weights, LATENT, LATENT, false, config)?;
    Ok(Model::new(format!("1×{size}×{size}"), inputs, move |inputs| {
        model.forward(&inputs[0], STEP, &inputs[1])
    }))
}

/// The decoder of Stable Diffusion 1.5.
pub fn vae(setup: &Setup) -> Result<Model> {
    let full = AutoEncoderKLConfig {
        block_out_channels: vec![128, 256, 512, 512],
        layers_per_block: 2,
        latent_channels: LATENT,
        norm_num_groups: 32,
        use_quant_conv: true,
        use_post_quant_conv: true,
    };
    let config = setup.choose(
        AutoEncoderKLConfig {
            block_out_channels: vec![32, 64],
            layers_per_block: 1,
            norm_num_groups: 8,
            ..full.clone()
        },
        full,
    );
    let size = setup.choose(8, 64);
    let latent = random_input("latent", (1, LATENT, size, size), setup.dtype, &setup.device)?;
    let weights = RandomWeights::new(SEED).builder(setup.dtype, &setup.device);
    let model = AutoEncoderKL::new(weights, 3, 3, config)?;
    Ok(Model::new(format!("1×{size}×{size}"), vec![latent], move |inputs| {
        model.decode(&inputs[0])
    }))
}

/// ResNet-50; ResNet-18 where models are small.
pub fn resnet(setup: &Setup) -> Result<Model> {
    let weights = RandomWeights::new(SEED).builder(setup.dtype, &setup.device);
    let model = match setup.small {
        true => residual::resnet18(10, weights)?,
        false => residual::resnet50(1000, weights)?,
    };
    let (batch, size) = setup.choose((1, 32), (8, 224));
    let (setting, inputs) = images(setup, "resnet", batch, size)?;
    Ok(Model::new(setting, inputs, move |inputs| model.forward(&inputs[0])))
}

/// ConvNeXt-T; ConvNeXt-A where models are small.
pub fn convnext(setup: &Setup) -> Result<Model> {
    // The second version of ConvNeXt has these normalisations, the first has factors of layers instead.
    let weights = RandomWeights::new(SEED)
        .without("grn")
        .builder(setup.dtype, &setup.device);
    let config = setup.choose(next::Config::atto(), next::Config::tiny());
    let model = next::convnext(&config, setup.choose(10, 1000), weights)?;
    let (setting, inputs) = images(setup, "convnext", 1, setup.choose(32, 224))?;
    Ok(Model::new(setting, inputs, move |inputs| model.forward(&inputs[0])))
}
