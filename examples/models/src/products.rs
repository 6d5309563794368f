//! What became of the products that a model asks cuBLAS for.

use std::collections::BTreeMap;

/// The products of one call of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Products {
    pub calls: u64,
    /// Those that were taken over.
    pub taken: u64,
    /// Those that were not, by reason.
    pub passed_on: BTreeMap<String, u64>,
    /// What those that were taken over take, here and with cuBLAS, where that was timed.
    pub times: Option<Times>,
    /// Of these the one whose time here is the longest beside cuBLAS's.
    pub slowest: Option<Slowest>,
}

/// A product in words, and cuBLAS's time of it divided by ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Slowest {
    pub what: String,
    pub speedup: f64,
}

/// µs of all products together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    pub ours_us: f64,
    pub cublas_us: f64,
}

/// Runs something, and counts its products if they go through the override; with `time`, each shape is timed on the way.
#[cfg(feature = "override")]
pub fn counted<T>(time: bool, run: impl FnOnce() -> T) -> (T, Products) {
    use candle_sgemm::matmul_override::{reset_stats, stats, time_shapes};
    reset_stats();
    time_shapes(time);
    let result = run();
    time_shapes(false);
    let stats = stats();
    let passed_on = stats
        .passed_on
        .iter()
        .map(|(reason, calls)| (reason.to_string(), *calls));
    let failed = stats
        .failed
        .iter()
        .map(|(message, calls)| (format!("failed: {message}"), *calls));
    let (mut times, mut slowest) = (None, None::<Slowest>);
    for shape in &stats.shapes {
        if let Some(of_one) = shape.times {
            let calls = shape.calls as f64;
            let sum = times.get_or_insert(Times {
                ours_us: 0.0,
                cublas_us: 0.0,
            });
            sum.ours_us += calls * of_one.ours_us;
            sum.cublas_us += calls * of_one.cublas_us;
            let speedup = of_one.cublas_us / of_one.ours_us;
            if slowest.as_ref().is_none_or(|slowest| speedup < slowest.speedup) {
                let what = format!("{}, {}: {:.1} µs", shape.call, shape.kernel, of_one.ours_us);
                slowest = Some(Slowest { what, speedup });
            }
        }
    }
    let products = Products {
        calls: stats.calls(),
        taken: stats.taken,
        passed_on: passed_on.chain(failed).collect(),
        times,
        slowest,
    };
    (result, products)
}

/// This build has no override, so nothing is counted.
#[cfg(not(feature = "override"))]
pub fn counted<T>(_: bool, run: impl FnOnce() -> T) -> (T, Products) {
    (run(), Products::default())
}
