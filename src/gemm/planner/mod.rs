//! How it is done: [`candidates`] → `cost` → [`plan`]. Pure functions of problem and device, so that they can be tested and
//! printed on any machine; only the module `cache` asks the GPU at hand.

#[cfg(feature = "cuda")]
pub mod cache;
pub mod candidates;
pub mod choose;
mod cost;
pub mod explain;
#[cfg(any(feature = "cuda", test))]
mod fused;
mod moved;
pub mod plan;
pub mod prepare;
#[cfg(test)]
mod tests;
pub mod work;
