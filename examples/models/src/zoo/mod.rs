//! The models: candle-transformers' own, from their own configurations, with random weights.

mod encoders;
mod images;
pub mod language;
mod speech;

use candle_core::{DType, Device, Result, Tensor};
use candle_sgemm::Gemm;

/// The seed of all weights.
pub const SEED: u64 = 1;

/// How models are built.
#[derive(Clone, Debug)]
pub struct Setup {
    pub device: Device,
    pub dtype: DType,
    /// With configurations that a CPU computes in a moment.
    pub small: bool,
}

impl Setup {
    /// The first where models are small, else the second.
    pub fn choose<T>(&self, small: T, full: T) -> T {
        if self.small {
            small
        } else {
            full
        }
    }
}

/// A function of tensors.
pub type Forward = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

/// A model rebuilt on this crate's blocks, with products of these settings.
pub type Rebuild = Box<dyn Fn(&Gemm) -> Forward>;

/// A model with an input for it. The same inputs give the same outputs, call after call.
pub struct Model {
    /// Batch, length and the like: `8×128`.
    pub setting: String,
    pub inputs: Vec<Tensor>,
    pub forward: Forward,
    /// The same from the same weights, if there is such a thing.
    pub rebuild: Option<Rebuild>,
}

impl Model {
    fn new(
        setting: impl Into<String>,
        inputs: Vec<Tensor>,
        forward: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    ) -> Self {
        Model {
            setting: setting.into(),
            inputs,
            forward: Box::new(forward),
            rebuild: None,
        }
    }

    /// The model with what rebuilds it, which has been given its weights: for each setting of products a model that is `with`
    /// those, and its `forward`.
    fn rebuilt<M: Clone + 'static>(
        self,
        model: M,
        with: impl Fn(M, &Gemm) -> M + 'static,
        forward: impl Fn(&M, &[Tensor]) -> Result<Tensor> + Copy + 'static,
    ) -> Self {
        let rebuild: Rebuild = Box::new(move |gemm: &Gemm| {
            let model = with(model.clone(), gemm);
            Box::new(move |inputs: &[Tensor]| forward(&model, inputs))
        });
        Model {
            rebuild: Some(rebuild),
            ..self
        }
    }
}

/// A model that can be asked for by name.
pub struct Entry {
    pub name: &'static str,
    pub what: &'static str,
    pub build: fn(&Setup) -> Result<Model>,
}

const fn entry(name: &'static str, what: &'static str, build: fn(&Setup) -> Result<Model>) -> Entry {
    Entry { name, what, build }
}

/// All models, in the order of the tables.
pub const ALL: [Entry; 20] = [
    entry("bert-base", "BERT-base, 8 texts of 128 tokens", encoders::bert),
    entry("distilbert", "DistilBERT, 4 texts of 128 tokens", encoders::distilbert),
    entry(
        "t5-small",
        "the encoder of T5-small, 8 texts of 128 tokens",
        encoders::t5,
    ),
    entry("clip-text", "CLIP ViT-B/32, 8 texts of 77 tokens", encoders::clip_text),
    entry("clip-image", "CLIP ViT-B/32, 8 images", encoders::clip_image),
    entry("vit-b16", "ViT-B/16, 8 images", encoders::vit),
    entry("dinov2-s", "DINOv2-S, an image of 518×518", encoders::dinov2),
    entry("whisper-encoder", "Whisper base, 30 s of sound", speech::encoder),
    entry("whisper-decoder", "Whisper base, 128 tokens", speech::decoder),
    entry(
        "whisper-step",
        "Whisper base, 32 tokens, of the sound what was kept",
        speech::step,
    ),
    entry(
        "llama-prefill",
        "4 layers of a Llama of 1B, 512 tokens",
        language::llama_prefill,
    ),
    entry("llama-decode", "the same, a token after 512", language::llama_decode),
    entry(
        "mistral-prefill",
        "2 layers of Mistral-7B, 512 tokens",
        language::mistral_prefill,
    ),
    entry(
        "mistral-decode",
        "the same, a token after 512",
        language::mistral_decode,
    ),
    entry("qwen2-prefill", "Qwen2-0.5B, 256 tokens", language::qwen2_prefill),
    entry("qwen2-decode", "the same, a token after 256", language::qwen2_decode),
    entry(
        "unet",
        "the UNet of Stable Diffusion 1.5, a latent of 64×64",
        images::unet,
    ),
    entry(
        "vae-decoder",
        "the decoder of Stable Diffusion 1.5, a latent of 64×64",
        images::vae,
    ),
    entry("resnet-50", "ResNet-50, 8 images", images::resnet),
    entry("convnext-tiny", "ConvNeXt-T, an image", images::convnext),
];

/// The model of this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name)
}
