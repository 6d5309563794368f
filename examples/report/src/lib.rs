//! What the documents and plots are made of: the result files, the generated blocks, and the plots as SVG.

pub mod blocks;
#[path = "../../../benches/support/distribution.rs"]
pub mod distribution;
mod models;
mod plot;
#[path = "../../../benches/support/record.rs"]
pub mod record;
pub mod series;
