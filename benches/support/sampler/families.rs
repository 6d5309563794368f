//! Sizes of models that people run. What is missing is missing because nobody thought of it, not because a kernel is slow on
//! it: leave the list alone while kernels are tuned.

/// Widths of a family of transformers.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Of what its blocks pass on.
    pub hidden: usize,
    /// Between the two products of an MLP, or three.
    pub inner: usize,
    /// Of all keys, and of all values.
    pub keys: usize,
}

const fn family(hidden: usize, inner: usize, keys: usize) -> Family {
    Family { hidden, inner, keys }
}

pub const FAMILIES: [Family; 38] = [
    family(128, 512, 128),     // BERT tiny
    family(192, 768, 192),     // DeiT tiny
    family(256, 1024, 256),    // DETR, BERT mini
    family(312, 1200, 312),    // TinyBERT
    family(320, 1280, 320),    // ESM-2 8M
    family(384, 1536, 384),    // MiniLM, ViT small, Whisper tiny
    family(480, 1920, 480),    // ESM-2 35M
    family(512, 2048, 512),    // T5 small, Whisper base, CLIP's text
    family(576, 1536, 192),    // SmolLM 135M
    family(640, 2560, 640),    // ESM-2 150M
    family(768, 3072, 768),    // BERT, ViT and GPT-2 base
    family(768, 2048, 768),    // T5 1.1 base
    family(896, 4864, 128),    // Qwen2 0.5B
    family(960, 2560, 320),    // SmolLM 360M
    family(1024, 4096, 1024),  // BERT, ViT and Whisper, the larger ones
    family(1024, 2816, 1024),  // T5 1.1 large
    family(1024, 3072, 1024),  // Qwen3 0.6B
    family(1152, 4304, 1152),  // SigLIP
    family(1152, 6912, 256),   // Gemma 3 1B
    family(1280, 5120, 1280),  // Whisper large, ViT huge
    family(1408, 6144, 1408),  // EVA
    family(1536, 4096, 1536),  // DINOv2 giant
    family(1536, 8960, 256),   // Qwen2 1.5B
    family(1600, 6400, 1600),  // GPT-2 XL
    family(2048, 5632, 256),   // TinyLlama
    family(2048, 8192, 512),   // Llama 3.2 1B
    family(2048, 5120, 2048),  // T5 XL
    family(2304, 9216, 1024),  // Gemma 2 2B
    family(2560, 10240, 2560), // Phi 2
    family(3072, 8192, 1024),  // Llama 3.2 3B
    family(3072, 8192, 3072),  // Phi 3
    family(3584, 18944, 512),  // Qwen2 7B
    family(4096, 11008, 4096), // Llama 2 7B
    family(4096, 14336, 1024), // Llama 3 8B, Mistral
    family(4544, 18176, 64),   // Falcon
    family(5120, 13824, 5120), // Llama 2 13B
    family(5120, 17408, 1024), // Qwen3 14B
    family(8192, 28672, 1024), // Llama 3 70B
];

/// What a head tells apart: tokens, or the classes of a picture.
pub const VOCABULARIES: [usize; 39] = [
    32, 512, 1000, 1024, 1025, 2048, 4097, 8192, 16384, 21841, 21843, 28996, 30522, 32000, 32064, 32128, 49152, 49408,
    50257, 50265, 50280, 50304, 51200, 51864, 51865, 51866, 64000, 65024, 65536, 92544, 100352, 119547, 128256, 129280,
    151646, 151936, 250002, 256000, 256206,
];

/// Heads of attention.
pub const HEADS: [usize; 16] = [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 25, 28, 32, 40];

/// Widths of a head.
pub const HEAD_SIZES: [usize; 14] = [32, 40, 48, 56, 64, 72, 80, 88, 96, 112, 120, 128, 160, 256];

/// Edges of pictures, and of what becomes of them on the way through a network.
pub const EDGES: [usize; 30] = [
    7, 8, 12, 13, 14, 15, 16, 19, 20, 24, 28, 32, 38, 40, 48, 52, 56, 64, 75, 80, 96, 112, 128, 160, 192, 224, 256,
    320, 384, 512,
];

/// Channels inside a convolutional network.
pub const CHANNELS: [usize; 28] = [
    16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 960, 1024,
    1152, 1280, 1536, 2048,
];

/// Channels of what comes in or goes out: masks, grey and coloured pictures with and without more of them, boxes with their
/// classes.
pub const OUTER_CHANNELS: [usize; 13] = [1, 2, 3, 4, 5, 6, 9, 12, 16, 18, 21, 144, 255];

/// Kernels in front of a network of pictures, and their strides.
pub const STEMS: [(usize, usize); 9] = [
    (3, 1),
    (3, 2),
    (4, 4),
    (5, 2),
    (7, 2),
    (8, 8),
    (14, 14),
    (16, 16),
    (32, 32),
];

/// Lengths of kernels over time.
pub const SPANS: [usize; 10] = [1, 2, 3, 4, 5, 7, 8, 10, 11, 16];
