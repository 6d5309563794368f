//! FP32 matrix multiplication and transposition for candle.

#![warn(missing_docs)]

// What is `pub` and hidden from the documentation is there for the tests, benches and examples of this crate, and changes
// without notice.

#[allow(dead_code)] // the build script has most of it
mod architectures;
#[doc(hidden)]
pub mod attention;
mod candle;
pub mod device;
mod error;
pub mod gemm;
#[cfg(any(feature = "override", test))]
pub mod matmul_override;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub mod modules;
#[cfg(any(feature = "cuda", test))]
mod plan_cache;
#[doc(hidden)]
pub mod rowwise;
mod served;
#[doc(hidden)]
pub mod settings;
#[doc(hidden)]
pub mod transpose;

pub use candle::{blocks, graph};
pub use candle::{
    linear, linear_b, linear_no_bias, matmul, permute, transpose, GatedMlp, Gemm, Linear, Mlp, SgemmExt, TransposeExt,
};
pub use error::{Error, Result};
pub use gemm::{Activation, Precision};

/// The code of the README, compiled and run as doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
