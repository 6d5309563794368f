//! What is measured on the GPU at hand: [`store`] keeps the kernels that were chosen by their times, [`calibrated`] the costs
//! by which the planner chooses all others, which [`fit`] finds.

pub mod calibrated;
pub mod fit;
#[cfg(feature = "cuda")]
mod measure;
pub mod store;
#[cfg(feature = "cuda")]
mod wanted;

#[cfg(feature = "cuda")]
pub use measure::tune;
#[cfg(feature = "cuda")]
pub(in crate::gemm) use measure::{known, tune_folded};
#[cfg(feature = "cuda")]
pub use wanted::Tuning;
