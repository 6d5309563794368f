//! What the benchmarks and the programs that measure share: cases, the result files, and measuring on a GPU.
#![allow(dead_code)] // each program uses its own part

pub mod case;
pub mod distribution;
pub mod record;
pub mod sampler;

#[cfg(feature = "cuda")]
pub mod drawn;
#[cfg(feature = "cuda")]
pub mod gpu;
#[cfg(feature = "cuda")]
pub mod layer;
#[cfg(feature = "cuda")]
pub mod product;
