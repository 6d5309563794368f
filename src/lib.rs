//! FP32 matrix multiplication and transposition for candle.

pub mod device;
pub mod error;
pub mod gemm;
#[cfg(feature = "cuda")]
pub mod modules;

pub use error::{Error, Result};
