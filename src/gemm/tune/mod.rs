//! Choosing by measurement: [`store`] keeps what was chosen.

#[cfg(feature = "cuda")]
mod measure;
pub mod store;

#[cfg(feature = "cuda")]
pub use measure::{asked_for, tune};
