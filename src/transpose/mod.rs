//! Transposition and every other permutation of dimensions, at the speed of a copy: [`problem`] says what is asked,
//! [`kernels`] what there is, [`plan`] how it is done, `launch` (with the feature `cuda`) does it on a GPU and [`cpu`] on the CPU.

pub mod args;
#[cfg(feature = "cuda")]
pub mod cache;
pub mod cpu;
pub mod kernels;
#[cfg(feature = "cuda")]
pub mod launch;
pub mod plan;
pub mod problem;

pub use kernels::{TransposeKernel, TABLE};
pub use plan::{Step, TransposePlan};
pub use problem::{Axis, Matrices, Movement, TransposeProblem};
