//! Matrix multiplication: [`problem`] says what is asked, [`kernels`] what there is, [`plan`] how it is done.

pub mod args;
#[cfg(feature = "cuda")]
pub mod cache;
pub mod choices;
pub mod cost;
pub mod cpu;
pub mod dealt;
pub mod kernels;
#[cfg(feature = "cuda")]
pub mod launch;
pub mod plan;
pub mod problem;
pub mod repack;
pub mod stream_k;
pub mod tensor_map;
#[cfg(feature = "cuda")]
pub mod tune;
#[cfg(feature = "cuda")]
mod workspace;

pub use kernels::{KernelSpec, TABLE};
pub use plan::{explain, Plan};
pub use problem::{Access, Activation, Combine, DType, Epilogue, GemmProblem, OperandLayout, Precision};
#[cfg(feature = "cuda")]
pub(crate) use workspace::Lane;
