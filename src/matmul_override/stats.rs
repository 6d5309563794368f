//! What became of the calls.

use super::call::{Call, PassedOn};
use crate::gemm::Precision;
use std::collections::BTreeMap;
use std::fmt;

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
}

impl Stats {
    /// All calls that arrived while the override was on.
    pub fn calls(&self) -> u64 {
        self.taken + self.passed_on.values().sum::<u64>() + self.failed.values().sum::<u64>()
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} cuBLAS products taken over", self.taken, self.calls())?;
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
            } = shape;
            write!(f, "\n  {calls:>8} × {call}, {precision}: {kernel}")?;
        }
        Ok(())
    }
}
