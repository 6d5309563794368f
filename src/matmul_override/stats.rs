//! What became of the calls.

use super::call::{Call, PassedOn};
use crate::gemm::Precision;
use std::collections::BTreeMap;
use std::fmt;

/// What one product of a shape takes, measured beside each other when the shape was first seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Here, in µs.
    pub ours_us: f64,
    /// With cuBLAS, in µs.
    pub cublas_us: f64,
}

/// One shape of a product that was taken over.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapeStats {
    /// The call, with addresses reduced to their alignment.
    pub call: Call,
    /// The precision that it was computed at.
    pub precision: Precision,
    /// The kernel that computed it.
    pub kernel: &'static str,
    /// How often.
    pub calls: u64,
    /// What it takes, if [`time_shapes`](super::time_shapes) was on.
    pub times: Option<Times>,
}

impl ShapeStats {
    /// Products of two numbers in all of its calls.
    pub(super) fn work(&self) -> f64 {
        let Call { m, n, k, batch, .. } = self.call;
        self.calls as f64 * [m, n, k, batch].iter().map(|&size| size as f64).product::<f64>()
    }

    /// µs that all calls together took less than with cuBLAS, going by the times of one.
    pub fn saved_us(&self) -> Option<f64> {
        let times = self.times?;
        Some(self.calls as f64 * (times.cublas_us - times.ours_us))
    }
}

/// What became of the calls that arrived while the override was on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Products that this crate computed.
    pub taken: u64,
    /// Calls that went to cuBLAS untouched, by reason.
    pub passed_on: BTreeMap<PassedOn, u64>,
    /// Calls that this crate would have taken but failed at, by message; cuBLAS computed them.
    pub failed: BTreeMap<String, u64>,
    /// The products that were taken, most work first.
    pub shapes: Vec<ShapeStats>,
    /// How many of the products that were taken have shapes that are not listed: a thousand and more are told apart.
    pub other_shapes: u64,
}

impl Stats {
    /// All calls that arrived while the override was on.
    pub fn calls(&self) -> u64 {
        self.taken + self.passed_on.values().sum::<u64>() + self.failed.values().sum::<u64>()
    }

    /// µs saved over all shapes that were timed; `None` if none was.
    pub fn saved_us(&self) -> Option<f64> {
        let saved = self.shapes.iter().filter_map(ShapeStats::saved_us);
        saved.reduce(|x, y| x + y)
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} cuBLAS products taken over", self.taken, self.calls())?;
        if let Some(us) = self.saved_us() {
            write!(f, ", {:.2} ms saved", us * 1e-3)?;
        }
        if self.calls() == 0 {
            f.write_str(
                "\n  no call arrived: the program multiplies nothing, links cuBLAS statically, or looks its functions up by \
                 name",
            )?;
        }
        for (reason, calls) in &self.passed_on {
            write!(f, "\n  {calls:>8} passed on: {reason}")?;
        }
        for (message, calls) in &self.failed {
            write!(f, "\n  {calls:>8} failed, computed by cuBLAS: {message}")?;
        }
        for shape in &self.shapes {
            let ShapeStats {
                call,
                precision,
                kernel,
                calls,
                times,
            } = shape;
            write!(f, "\n  {calls:>8} × {call}, {precision}: {kernel}")?;
            if let (Some(times), Some(us)) = (times, shape.saved_us()) {
                let Times { ours_us, cublas_us } = times;
                write!(f, ", {ours_us:.1} µs, cuBLAS {cublas_us:.1}, {:.2} ms saved", us * 1e-3)?;
            }
        }
        if self.other_shapes > 0 {
            write!(f, "\n  {:>8} × other shapes", self.other_shapes)?;
        }
        Ok(())
    }
}
