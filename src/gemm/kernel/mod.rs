//! What there is: the kernels, what they need and what they cost.

pub mod costs;
pub mod former_names;
pub mod refusal;
pub mod spec;
pub mod table;
