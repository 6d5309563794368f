//! The API for candle models: tensors in, tensors out, gradients included.
//!
//! [`matmul`] and [`SgemmExt::sgemm`] stand for `Tensor::matmul`, [`Linear`] for `candle_nn::Linear` and what
//! follows it, [`Mlp`] and [`GatedMlp`] for stacks of it, and [`Gemm`] chooses a kernel, a precision, α and β·C.

mod activation;
mod attention;
pub mod blocks;
mod call;
mod checks;
#[cfg(feature = "cuda")]
mod cuda;
mod fallback;
mod fused;
mod gradient;
pub mod graph;
mod layout;
mod linear;
mod look;
mod matmul;
mod mlp;
mod op;
mod rowwise;
mod stock;
mod transpose;

pub use linear::{linear, linear_b, linear_no_bias, Linear};
pub use matmul::{matmul, Gemm, SgemmExt};
pub use mlp::{GatedMlp, Mlp};
pub use transpose::{permute, transpose, TransposeExt};
