//! Multilayer perceptrons and SwiGLU layers: stock candle, this crate's products with all else left to candle, and fused
//! layers; then the perceptrons as CUDA graphs, which take the host out of the time.
//!
//!     cargo bench -p benches --features cuda --bench mlp
//!     cargo bench -p benches --features cuda --bench mlp -- 784-512
//!     cargo bench -p benches --features cuda --bench mlp -- bf16

fn main() {
    #[cfg(feature = "cuda")]
    benches::run("mlp", benches::support::layer::open, run);
    #[cfg(not(feature = "cuda"))]
    benches::without_gpu("mlp");
}

#[cfg(feature = "cuda")]
fn run(
    (device, gpu): &(candle_core::Device, benches::support::gpu::Gpu),
    criterion: &mut criterion::Criterion,
) -> anyhow::Result<()> {
    use benches::layer::{bench, bench_graph, DTYPES};
    use benches::support::layer::{open_for_graphs, Case};

    for dtype in DTYPES {
        for case in Case::networks(dtype).chain(Case::gated(dtype)) {
            bench(gpu, device, &case, criterion)?;
        }
    }
    let (device, gpu) = open_for_graphs()?;
    for case in DTYPES.into_iter().flat_map(Case::networks) {
        bench_graph(&gpu, &device, &case, criterion)?;
    }
    Ok(())
}
