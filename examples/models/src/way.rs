//! The ways in which a model is run.

use candle_sgemm::Precision;
use std::fmt;
use std::str::FromStr;

/// A way to run a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As candle has it.
    Stock,
    /// The same with cuBLAS's products taken over.
    Override,
    /// The same as a CUDA graph.
    OverrideGraph,
    /// Rebuilt on this crate's layers.
    Fused,
    /// The same as a CUDA graph.
    FusedGraph,
}

impl Way {
    pub const ALL: [Way; 5] = [
        Way::Stock,
        Way::Override,
        Way::OverrideGraph,
        Way::Fused,
        Way::FusedGraph,
    ];
    /// Those of the table of models; only some are rebuilt.
    pub const OF_MODELS: [Way; 5] = Way::ALL;
    /// Those of a model that decodes: candle's cache grows, and cannot be recorded.
    pub const OF_DECODING: [Way; 4] = [Way::Stock, Way::Override, Way::Fused, Way::FusedGraph];

    pub fn name(self) -> &'static str {
        match self {
            Way::Stock => "stock",
            Way::Override => "override",
            Way::OverrideGraph => "override+graph",
            Way::Fused => "fused",
            Way::FusedGraph => "fused+graph",
        }
    }

    pub fn is_graph(self) -> bool {
        matches!(self, Way::OverrideGraph | Way::FusedGraph)
    }

    /// Whether it is another model on the same weights.
    pub fn is_rebuilt(self) -> bool {
        matches!(self, Way::Fused | Way::FusedGraph)
    }

    /// Whether candle's products are taken over.
    pub fn overrides(self) -> bool {
        matches!(self, Way::Override | Way::OverrideGraph)
    }

    /// Runs something in this way, with products of this precision.
    pub fn run<T>(self, precision: Precision, run: impl FnOnce() -> T) -> T {
        match self.overrides() {
            true => taken_over(precision, run),
            false => run(),
        }
    }
}

#[cfg(feature = "override")]
fn taken_over<T>(precision: Precision, run: impl FnOnce() -> T) -> T {
    use candle_sgemm::matmul_override;
    matmul_override::set_precision(Some(precision));
    matmul_override::scope(run)
}

#[cfg(not(feature = "override"))]
fn taken_over<T>(_: Precision, run: impl FnOnce() -> T) -> T {
    run()
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Way::ALL.map(Way::name).join(", ");
        let found = Way::ALL.into_iter().find(|way| way.name() == text);
        found.ok_or_else(|| format!("'{text}' is no way to run a model: choose of {names}"))
    }
}
