//! What the benchmarks share: how one starts, with and without a GPU, and what the programs that measure share with them.

#[cfg(feature = "cuda")]
pub mod layer;
#[path = "../support/mod.rs"]
pub mod support;

/// The `main` of a benchmark that runs on a GPU: where none can be opened it says so, and that is no failure.
#[cfg(feature = "cuda")]
pub fn run<G>(
    name: &str,
    open: impl FnOnce() -> anyhow::Result<G>,
    run: impl FnOnce(&G, &mut criterion::Criterion) -> anyhow::Result<()>,
) {
    let mut criterion = criterion::Criterion::default().configure_from_args();
    match open() {
        Err(error) => eprintln!("{name}: skipped: {error:#}"),
        Ok(gpu) => {
            if let Err(error) = run(&gpu, &mut criterion) {
                eprintln!("{name}: {error:#}");
                std::process::exit(1);
            }
            criterion.final_summary();
        }
    }
}

/// The same in a build that has no GPU support.
#[cfg(not(feature = "cuda"))]
pub fn without_gpu(name: &str) {
    eprintln!("{name}: skipped, no GPU: this build has no support for one; add --features cuda");
}
