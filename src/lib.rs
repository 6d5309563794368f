//! Matrix multiplication (FP32, FP16, BF16) and transposition for [candle](candle_core), by CUDA kernels of its own in place of cuBLAS,
//! and on the CPU with the same results.
//!
//! | what | how |
//! |---|---|
//! | a product in place of `Tensor::matmul` | [`matmul`], [`SgemmExt::sgemm`] |
//! | with α, β·C, a precision, a kernel by name | [`Gemm`] |
//! | layers with bias, activation, residual or gate inside | [`Linear`], [`Mlp`], [`GatedMlp`] |
//! | attention, norms, encoder layers, a decoder's cache | [`blocks`] |
//! | dimensions moved at the speed of a copy | [`transpose`], [`permute`], [`TransposeExt`] |
//! | a model as one launch | [`graph`] |
//! | models that know nothing of this crate | `matmul_override`, with the feature `override` |
//! | how a product would be computed on any GPU, and why | [`gemm::explain`] |
//!
//! Without the feature `cuda` everything runs on the CPU. Data has one way: tensor op → problem → plan → launch. All but the launch is plain
//! data and pure functions, which need no GPU.
//!
//! ```
//! use candle_core::{Device, Tensor};
//!
//! let device = Device::cuda_if_available(0)?;
//! let (a, b) = (Tensor::randn(0f32, 1., (4, 64, 32), &device)?, Tensor::randn(0f32, 1., (32, 16), &device)?);
//! assert_eq!(candle_sgemm::matmul(&a, &b)?.dims(), [4, 64, 16]);
//! # Ok::<(), candle_core::Error>(())
//! ```

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
mod precision;
mod role;
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
pub use gemm::Activation;
pub use precision::Precision;

/// The code of the README, compiled and run as doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
