//! What the GPU tests share: a device or a reason to skip, and random numbers.
#![allow(dead_code)] // each test binary uses its own part

pub mod largest;
pub mod needs;
pub mod reference;

use cudarc::driver::{CudaContext, CudaStream};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// The first GPU's stream, or `None` after saying on standard error that, and why, `test` was skipped.
pub fn stream_or_skip(test: &str) -> Option<Arc<CudaStream>> {
    let context = match CudaContext::new(0) {
        Ok(context) => context,
        Err(error) => {
            needs::skip(test, "gpu", format_args!("no usable GPU: {error}"));
            return None;
        }
    };
    context
        .bind_to_thread()
        .expect("a context that was just made can be bound");
    Some(context.new_stream().expect("a fresh context can make a stream"))
}

/// Runs `body` in a process of its own, in which nothing was loaded or allocated before: the test starts its own program again
/// for this test alone.
pub fn in_a_fresh_process(test: &str, body: impl FnOnce()) {
    const VARIABLE: &str = "CANDLE_SGEMM_TEST_IN_FRESH_PROCESS";
    if std::env::var(VARIABLE).is_ok_and(|value| value == test) {
        return body();
    }
    let program = std::env::current_exe().expect("a test knows its program");
    let output = std::process::Command::new(program)
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(VARIABLE, test)
        .output()
        .expect("a test can start its program again");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success(),
        "{test} failed in a process of its own:\n{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

/// A generator that gives the same numbers on every machine.
pub fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// A number in [-1, 1), skewed so that sums do not cancel by symmetry.
pub fn uniform(rng: &mut StdRng) -> f64 {
    rng.random_range(-1.0..1.0f64) + 0.1
}
