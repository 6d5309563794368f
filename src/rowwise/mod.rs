//! Operations on rows, norms, softmax and argmax, as one kernel each: [`problem`] says what is asked, [`kernels`] what there is,
//! [`plan`] which of them is taken, and `launch` (with the feature `cuda`) does it.

pub mod args;
pub mod kernels;
#[cfg(feature = "cuda")]
pub mod launch;
pub mod plan;
pub mod problem;

pub use kernels::{RowwiseKernel, TABLE};
pub use plan::RowwisePlan;
pub use problem::{Operation, RowwiseProblem};
