//! What the benchmarks, the ladder and the report share: cases, the result files, plots, and measuring on a GPU.
#![allow(dead_code)] // each program uses its own part

pub mod case;
pub mod plot;
pub mod record;
pub mod series;

#[cfg(feature = "cuda")]
pub mod gpu;
#[cfg(feature = "cuda")]
pub mod layer;
#[cfg(feature = "cuda")]
pub mod product;
