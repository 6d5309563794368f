//! ViT on this crate's blocks.
//!
//! A layer is nine kernels here, or seven where attention is one, and 25 in candle: three projections with their biases, three
//! copies of heads, scores and their scaling, softmax, values and a copy, output with bias and residual, two layers with biases,
//! activation and residual, two norms. The patches of an image do not overlap, so their convolution is a layer of the pixels of
//! each, with the positions as residual.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::VarBuilder;
use candle_sgemm::blocks::{layer_norm, Attention, EncoderLayer, LayerNorm};
use candle_sgemm::{linear, linear_b, permute, Gemm, Linear, Mlp};
use candle_transformers::models::vit::Config;

/// ViT as a classifier.
#[derive(Clone)]
pub struct FusedVit {
    /// From the pixels of a patch.
    patches: Linear,
    patch_size: usize,
    /// Of the patches (1, patches, width).
    positions: Tensor,
    /// The token of the class, at its position (1, 1, width).
    class: Tensor,
    layers: Vec<EncoderLayer>,
    norm: LayerNorm,
    classifier: Linear,
}

impl FusedVit {
    /// The model of this configuration out of `vb`.
    ///
    /// # Errors
    ///
    /// Weights that are not there or have other shapes; an activation that no kernel computes.
    pub fn load(vb: VarBuilder, config: &Config, labels: usize) -> Result<Self> {
        let (vit, width, patch) = (vb.pp("vit"), config.hidden_size, config.patch_size);
        let embeddings = vit.pp("embeddings");
        let projection = embeddings.pp("patch_embeddings.projection");
        let kernel = projection.get((width, config.num_channels, patch, patch), "weight")?;
        let patches = Linear::new(kernel.flatten_from(1)?, Some(projection.get(width, "bias")?));
        let side = config.image_size / patch;
        let positions = embeddings.get((1, side * side + 1, width), "position_embeddings")?;
        let class = embeddings.get((1, 1, width), "cls_token")?;
        let layers = (0..config.num_hidden_layers).map(|i| layer(vit.pp("encoder.layer").pp(i), config));
        Ok(FusedVit {
            patches: patches.prepare()?,
            patch_size: patch,
            class: (class + positions.narrow(1, 0, 1)?)?,
            positions: positions.narrow(1, 1, side * side)?,
            layers: layers.collect::<Result<_>>()?,
            norm: layer_norm(width, config.layer_norm_eps, vit.pp("layernorm"))?,
            classifier: linear(width, labels, vb.pp("classifier"))?.prepare()?,
        })
    }

    /// The same weights with all products done as `gemm` says.
    pub fn with_gemm(self, gemm: &Gemm) -> Self {
        let layers = self.layers.into_iter().map(|layer| layer.with_gemm(gemm));
        FusedVit {
            patches: self.patches.with_gemm(gemm.clone()),
            classifier: self.classifier.with_gemm(gemm.clone()),
            layers: layers.collect(),
            ..self
        }
    }

    /// Logits (batch, labels) of images (batch, channels, size, size).
    ///
    /// # Errors
    ///
    /// Images of another size; those of candle.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let (batch, channels, height, width) = images.dims4()?;
        let size = self.patch_size;
        if height % size != 0 || width % size != 0 {
            bail!("images of {height}×{width} are not cut into patches of {size}×{size}");
        }
        let (rows, columns) = (height / size, width / size);
        let pixels = images.reshape(vec![batch, channels, rows, size, columns, size])?;
        let pixels = permute(&pixels, (0, 2, 4, 1, 3, 5))?;
        let pixels = pixels.reshape((batch, rows * columns, channels * size * size))?;
        let patches = self.patches.forward_residual(&pixels, &self.positions)?;
        let class = self.class.broadcast_as((batch, 1, self.class.dim(2)?))?.contiguous()?;
        let x = Tensor::cat(&[&class, &patches], 1)?;
        let x = self.layers.iter().try_fold(x, |x, layer| layer.forward(&x))?;
        let x = x.narrow(1, 0, 1)?.squeeze(1)?;
        self.classifier.forward(&self.norm.forward(&x)?)
    }
}

fn layer(vb: VarBuilder, config: &Config) -> Result<EncoderLayer> {
    let (width, inner, eps) = (config.hidden_size, config.intermediate_size, config.layer_norm_eps);
    let projections = vb.pp("attention.attention");
    let projection = |name: &str| linear_b(width, width, config.qkv_bias, projections.pp(name));
    let attention = Attention::new(
        projection("query")?,
        projection("key")?,
        projection("value")?,
        linear(width, width, vb.pp("attention.output.dense"))?,
        config.num_attention_heads,
    )?;
    let feed_forward = Mlp::from_layers(vec![
        linear(width, inner, vb.pp("intermediate.dense"))?.with_activation(config.hidden_act.try_into()?),
        linear(inner, width, vb.pp("output.dense"))?,
    ]);
    let norm = |name: &str| layer_norm(width, eps, vb.pp(name));
    EncoderLayer::pre_norm(
        attention,
        norm("layernorm_before")?,
        feed_forward,
        norm("layernorm_after")?,
    )
    .prepare()
}
