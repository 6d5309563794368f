//! How long a product takes here and with cuBLAS, measured side by side where it is called.

use super::call::Call;
use super::stats::Times;
use crate::error::{Error, Result};
use crate::gemm::launch::args::Addresses;
use crate::gemm::operands::Operands;
use crate::gemm::{launch, Plan};
use cudarc::driver::{result, sys};

/// The median of so many samples counts.
const SAMPLES: usize = 5;
/// Launches are repeated until a sample takes about so long, in µs.
const SAMPLE_US: f64 = 200.0;
const MAX_LAUNCHES: f64 = 40.0;

fn failed(error: result::DriverError) -> Error {
    Error::driver("timing a product beside cuBLAS", error)
}

/// Two events and room for a result, given back at the end.
struct Bench {
    stream: sys::CUstream,
    events: [sys::CUevent; 2],
    result: u64,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // An error here has no one to go to.
        // SAFETY: all of these were made by this value, and the stream has passed their last use or will in its order.
        unsafe {
            if self.result != 0 {
                let _ = result::free_async(self.result, self.stream);
            }
            for &event in self.events.iter().filter(|event| !event.is_null()) {
                let _ = result::event::destroy(event);
            }
        }
    }
}

/// Times the plan and cuBLAS in turn on the call's own operands, into memory beside C. Waits for the stream.
///
/// # Safety
///
/// The stream is alive, not being captured, and of the current context; the operands are device memory as the call
/// describes it; `real` has cuBLAS compute the call with its result at another address.
///
/// # Errors
///
/// If the driver fails, for example for want of memory for a second result. C is untouched then too.
pub unsafe fn compare(
    call: &Call,
    plan: &Plan,
    at: &Addresses,
    (alpha, beta): (f32, f32),
    stream: sys::CUstream,
    real: &dyn Fn(u64) -> u32,
) -> Result<Times> {
    let mut bench = Bench {
        stream,
        events: [std::ptr::null_mut(); 2],
        result: 0,
    };
    for event in &mut bench.events {
        *event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed)?;
    }
    let bytes = call.result_elements() * plan.problem.types.d.size();
    // SAFETY: the stream is alive.
    bench.result = unsafe { result::malloc_async(stream, bytes) }.map_err(failed)?;
    // SAFETY: both hold so many bytes. (β·C should be made of ordinary numbers here too.)
    unsafe { result::memcpy_dtod_async(bench.result, at.operands.d, bytes, stream) }.map_err(failed)?;
    let beside = Addresses {
        operands: Operands {
            c: if at.operands.c == 0 { 0 } else { bench.result },
            d: bench.result,
            ..at.operands
        },
        ..*at
    };
    // SAFETY: the operands are the caller's; the result goes to memory that was made for it.
    let ours = || unsafe { launch::launch(plan, &beside, alpha, beta, stream) };
    let theirs = || match real(bench.result) {
        0 => Ok(()),
        status => Err(Error::Problem(format!(
            "cuBLAS refused to be timed with status {status}"
        ))),
    };
    let [ours_us, cublas_us] = bench.medians([&ours, &theirs])?;
    Ok(Times { ours_us, cublas_us })
}

impl Bench {
    fn medians(&self, launches: [&dyn Fn() -> Result<()>; 2]) -> Result<[f64; 2]> {
        let mut counts = [1; 2];
        for (launch, count) in launches.iter().zip(&mut counts) {
            self.sample(1, launch)?; // loads code
            let us = self.sample(1, launch)?;
            *count = (SAMPLE_US / us.max(1.0)).clamp(1.0, MAX_LAUNCHES) as u32;
        }
        let mut samples = [const { Vec::new() }; 2];
        for _ in 0..SAMPLES {
            for ((launch, &count), samples) in launches.iter().zip(&counts).zip(&mut samples) {
                samples.push(self.sample(count, launch)?);
            }
        }
        Ok(samples.map(|mut samples: Vec<f64>| {
            samples.sort_by(f64::total_cmp);
            samples[SAMPLES / 2]
        }))
    }

    /// µs a launch.
    fn sample(&self, count: u32, launch: &dyn Fn() -> Result<()>) -> Result<f64> {
        let [start, end] = self.events;
        // SAFETY: the events and the stream are alive.
        unsafe { result::event::record(start, self.stream) }.map_err(failed)?;
        for _ in 0..count {
            launch()?;
        }
        // SAFETY: as above.
        unsafe {
            result::event::record(end, self.stream).map_err(failed)?;
            result::event::synchronize(end).map_err(failed)?;
            Ok(result::event::elapsed(start, end).map_err(failed)? as f64 * 1e3 / count as f64)
        }
    }
}
