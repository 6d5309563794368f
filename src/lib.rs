//! FP32 matrix multiplication and transposition for candle.

#![warn(missing_docs)]

#[allow(dead_code)] // the build script has most of it
mod architectures;
pub mod candle;
pub mod device;
pub mod error;
pub mod gemm;
#[cfg(any(feature = "override", test))]
pub mod matmul_override;
#[cfg(feature = "cuda")]
pub mod modules;
#[cfg(any(feature = "cuda", test))]
mod plan_cache;
mod served;
pub mod settings;
pub mod transpose;

pub use candle::{
    linear, linear_b, linear_no_bias, matmul, permute, transpose, GatedMlp, Gemm, Linear, Mlp, SgemmExt, TransposeExt,
};
pub use error::{Error, Result};
pub use gemm::{Activation, Precision};

/// The code of the README, compiled and run as doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
