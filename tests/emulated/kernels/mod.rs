//! The crate's kernels in the emulator: their PTX, and plans as launches of it. The ladder's `--device emulated` has this, too.
#![allow(dead_code)] // each program uses its own part

pub mod attention;
pub mod attention_step;
mod far;
pub mod gemm;
pub mod ptx;
#[path = "../../common/reference.rs"]
mod reference;
pub mod rowwise;
pub mod transpositions;
