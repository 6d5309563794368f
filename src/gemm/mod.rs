//! Matrix multiplication as plain data: what is asked ([`GemmProblem`]), how it is done ([`Plan`]), and why ([`explain`]).

// `problem` says what is asked, `kernel` what there is, `planner` how it is done, and `launch` does it. These modules are
// public for the tests, benches and examples of this crate; users have what stands below.
#[doc(hidden)]
pub mod cpu;
#[doc(hidden)]
pub mod kernel;
#[doc(hidden)]
pub mod launch;
#[doc(hidden)]
pub mod operands;
#[doc(hidden)]
pub mod planner;
#[doc(hidden)]
pub mod problem;
#[doc(hidden)]
pub mod schedule;
#[doc(hidden)]
pub mod tune;

pub use kernel::costs::Costs;
pub use kernel::spec::KernelSpec;
pub use kernel::table::TABLE;
pub use operands::{Access, DType, ElementTypes, OperandLayout, MAX_BATCH_DIMS};
pub use planner::explain::{explain, Explanation};
pub use planner::plan::Plan;
pub use problem::{Activation, Combine, Epilogue, FoldedProblem, GemmProblem, Precision};
