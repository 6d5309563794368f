//! Linear layers with GELU: stock candle, this crate's product with all else left to candle, and everything in one kernel.
//! The time is that of a program that calls one layer after the other, the host's share included.
//!
//!     cargo bench -p benches --features cuda --bench linear
//!     cargo bench -p benches --features cuda --bench linear -- '4096×768'
//!     cargo bench -p benches --features cuda --bench linear -- bf16

fn main() {
    #[cfg(feature = "cuda")]
    benches::run("linear", benches::support::layer::open, run);
    #[cfg(not(feature = "cuda"))]
    benches::without_gpu("linear");
}

#[cfg(feature = "cuda")]
fn run(
    (device, gpu): &(candle_core::Device, benches::support::gpu::Gpu),
    criterion: &mut criterion::Criterion,
) -> anyhow::Result<()> {
    use benches::layer::{bench, DTYPES};
    use benches::support::layer::Case;

    for case in DTYPES.into_iter().flat_map(Case::linears) {
        bench(gpu, device, &case, criterion)?;
    }
    Ok(())
}
