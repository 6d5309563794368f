//! What the GPU tests share: a device or a reason to skip, and random numbers.
#![allow(dead_code)] // each test binary uses its own part

use cudarc::driver::{CudaContext, CudaStream};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// The first GPU's stream, or `None` after saying on standard error that, and why, `test` was skipped.
pub fn stream_or_skip(test: &str) -> Option<Arc<CudaStream>> {
    let context = match CudaContext::new(0) {
        Ok(context) => context,
        Err(error) => {
            eprintln!("{test}: skipped, no usable GPU: {error}");
            return None;
        }
    };
    context
        .bind_to_thread()
        .expect("a context that was just made can be bound");
    Some(context.new_stream().expect("a fresh context can make a stream"))
}

/// A generator that gives the same numbers on every machine.
pub fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// A number in [-1, 1), skewed so that sums do not cancel by symmetry.
pub fn uniform(rng: &mut StdRng) -> f64 {
    rng.random_range(-1.0..1.0f64) + 0.1
}
