//! Matrix multiplication: [`problem`] says what is asked, [`kernel`] what there is, [`planner`] how it is done, and
//! [`launch`] does it.

pub mod cpu;
pub mod kernel;
pub mod launch;
pub mod operands;
pub mod planner;
pub mod problem;
pub mod schedule;
pub mod tune;

pub use kernel::costs::Costs;
pub use kernel::spec::KernelSpec;
pub use kernel::table::TABLE;
pub use operands::{Access, DType, OperandLayout};
pub use planner::explain::explain;
pub use planner::plan::Plan;
pub use problem::{Activation, Combine, Epilogue, GemmProblem, Precision};
