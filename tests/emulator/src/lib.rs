//! Runs kernels for NVIDIA GPUs on a CPU, from their PTX, and reports what is wrong with how their threads work together.
//!
//! A [`Module`] is parsed once. A [`Launch`] says which kernel, with how many blocks and which arguments; [`Memory`] is what
//! the device has allocated; a [`Schedule`] decides what happens next wherever the hardware is free to. [`run()`] carries the
//! launch out and returns a [`Report`], or the first [`Finding`]: an access outside of what was allocated, a read of memory
//! that nothing wrote, a race in shared or global memory, a missing fence or wait, a deadlock.
//!
//! Order is followed by vector clocks for every byte, not by waiting for a wrong result: a wait that is missing is found even
//! if the schedule happens to give the right order. Bulk copies are under way until something that the program did makes sure
//! that they are not.

#![warn(missing_docs)]
// Lanes index several arrays at once.
#![allow(clippy::needless_range_loop)]

mod alu;
mod clock;
mod defined;
mod exec;
mod finding;
pub mod ir;
mod machine;
mod memory;
mod parse;
mod shadow;
mod story;
mod tensor;
mod tma;

pub use finding::{Finding, Kind};
pub use machine::{run, Launch, Order, Param, Random, Report, Schedule};
pub use memory::{Memory, Use};
pub use parse::{Module, ParseError};
pub use story::Watch;
pub use tensor::{tf32_dot, Arithmetic};
pub use tma::{Element, Swizzle, TensorMap};
