//! Models on this crate's blocks, from the weights of candle-transformers' models.

#[path = "../../../bert/src/fused.rs"]
mod bert;
mod vit;
mod whisper;

pub use bert::FusedBert;
pub use vit::FusedVit;
pub use whisper::FusedWhisperEncoder;
