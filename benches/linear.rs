//! Linear layers with GELU: stock candle, this crate's product with all else left to candle, and everything in one kernel.
//! The time is that of a program that calls one layer after the other, the host's share included.
//!
//!     cargo bench --features cuda --bench linear
//!     cargo bench --features cuda --bench linear -- '4096×768'

#[path = "support/mod.rs"]
mod support;

fn main() {
    #[cfg(feature = "cuda")]
    support::bench("linear", support::layer::open, run);
    #[cfg(not(feature = "cuda"))]
    support::without_gpu("linear");
}

#[cfg(feature = "cuda")]
fn run(
    (device, gpu): &(candle_core::Device, support::gpu::Gpu),
    criterion: &mut criterion::Criterion,
) -> anyhow::Result<()> {
    use support::layer::{Case, LAYERS};

    for case in LAYERS.into_iter().map(Case::linear) {
        support::layer::bench(gpu, device, &case, criterion)?;
    }
    Ok(())
}
