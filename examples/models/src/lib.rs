//! The models that candle ships, measured as they are, with this crate's products in cuBLAS's place, rebuilt on its blocks, and as
//! CUDA graphs; and a
//! language model that reads one token at a time from a cache of fixed size.

pub mod decode;
pub mod measure;
pub mod options;
pub mod place;
pub mod products;
#[path = "../../../benches/support/program.rs"]
pub mod program;
pub mod rebuilt;
pub mod rows;
#[path = "../../../benches/support/mod.rs"]
mod support;
pub mod way;
pub mod weights;
pub mod zoo;

pub use support::record;
