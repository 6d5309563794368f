//! `softmax(scale·Q·Kᵀ + mask)·V` as one kernel: [`problem`] says what is asked, [`kernels`] what there is, [`plan`] which of them is
//! taken and whether it is faster than two products and a softmax, and `launch` (with the feature `cuda`) does it. [`step`] is that of
//! a decoder's step, with its rotations and its cache.

pub mod args;
#[cfg(feature = "cuda")]
pub mod cache;
pub mod kernels;
#[cfg(feature = "cuda")]
pub mod launch;
pub mod plan;
pub mod problem;
pub mod refusal;
pub mod step;
mod views;

pub use kernels::{AttentionKernel, Shape, STEPS, TABLE};
pub use plan::AttentionPlan;
pub use problem::{AttentionProblem, Described};
pub use refusal::Refusal;
pub use step::{StepAddresses, StepPlan, StepProblem};
pub use views::Views;
