//! Matrix multiplication: [`problem`] says what is asked and [`plan`](crate::gemm) how it is done.

pub mod problem;

pub use problem::{Access, Activation, DType, Epilogue, GemmProblem, OperandLayout, Precision};
