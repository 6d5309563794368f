//! What arithmetic a product may use: problems carry it, and the environment may name it.

use std::fmt;

/// What arithmetic may be used for a product of FP32 matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Precision {
    /// FP32-grade: the error is no worse than that of FP32 multiply-adds. Tensor cores may be used to reach it
    /// (each operand is split into TF32 heads and tails, the running sum is kept in FP32).
    #[default]
    Fp32,
    /// FP32 fused multiply-adds only, never tensor cores.
    Fp32Strict,
    /// One TF32 product: operands are rounded to 10 bits of mantissa, a relative error of about 3e-4.
    Tf32,
}

impl Precision {
    /// All precisions, in the order of their error.
    pub const ALL: [Precision; 3] = [Precision::Fp32Strict, Precision::Fp32, Precision::Tf32];

    /// The name that command lines, environment variables and result files use.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::Fp32 => "fp32",
            Precision::Fp32Strict => "fp32-strict",
            Precision::Tf32 => "tf32",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Precision::ALL
            .into_iter()
            .find(|precision| precision.name() == text)
            .ok_or_else(|| {
                let names = Precision::ALL.map(Precision::name).join(", ");
                format!("unknown precision '{text}': choose one of {names}")
            })
    }
}
