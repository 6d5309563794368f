//! What the benchmarks and the programs that measure share: cases, the result files, and measuring on a GPU.
#![allow(dead_code)] // each program uses its own part

pub mod case;
pub mod record;

#[cfg(feature = "cuda")]
pub mod gpu;
#[cfg(feature = "cuda")]
pub mod layer;
#[cfg(feature = "cuda")]
pub mod product;
