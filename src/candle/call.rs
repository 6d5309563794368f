//! What an error says of the call that it ended: candle's own errors name two operands of one operation, which need not be
//! those that the caller gave.

use candle_core::{Result, Tensor};
use std::fmt::{self, Display};

/// A call of this crate's as it stands in errors: its name, and each operand that it was given with dtype and shape.
pub(super) struct Call<'a> {
    pub name: &'static str,
    /// What the documentation calls each operand, and those that there are.
    pub operands: &'a [(&'static str, Option<&'a Tensor>)],
}

impl Call<'_> {
    /// The result, or the error behind a line that says in which call it came up.
    pub fn explain<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.context(self.to_string()))
    }

    /// The same of an error in the gradients of the call.
    pub fn explain_gradient<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.context(format!("the gradients of {self}")))
    }
}

/// `Linear::forward(x: F32 [3, 4], weight: F32 [5, 4])`, with devices where there is more than one.
impl Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = || self.operands.iter().filter_map(|(name, t)| t.map(|t| (name, t)));
        let place = |t: &Tensor| t.device().location();
        let places_differ = given()
            .zip(given().skip(1))
            .any(|((_, x), (_, y))| place(x) != place(y));
        write!(f, "{}(", self.name)?;
        for (i, (name, t)) in given().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{name}: {:?} {:?}", t.dtype(), t.dims())?;
            if places_differ {
                write!(f, " on {:?}", place(t))?;
            }
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn an_error_says_in_which_call_it_came_up() -> Result<()> {
        let x = Tensor::zeros((3, 4), DType::F32, &Device::Cpu)?;
        let w = Tensor::zeros((5, 4), DType::F16, &Device::Cpu)?;
        let call = Call {
            name: "Linear::forward",
            operands: &[("x", Some(&x)), ("weight", Some(&w)), ("bias", None)],
        };
        let failed = |explained: Result<Tensor>| explained.unwrap_err().to_string();
        assert_eq!(
            failed(call.explain(x.reshape(7))).lines().next(),
            Some("Linear::forward(x: F32 [3, 4], weight: F16 [5, 4])")
        );
        let text = failed(call.explain_gradient(x.reshape(7)));
        assert!(text.starts_with("the gradients of Linear::forward(x: F32"), "{text}");
        assert!(call.explain(x.reshape(12)).is_ok());
        Ok(())
    }
}
