//! What functions that are recorded give, and why there may be no recording of one.

use candle_core::{Error, Result, Tensor};

/// What a function gives: a tensor or several.
pub trait Outputs: Sized {
    /// The tensors in order.
    fn into_tensors(self) -> Vec<Tensor>;

    /// The same from tensors in that order.
    ///
    /// # Errors
    ///
    /// If there are more or fewer than there should be.
    fn from_tensors(tensors: Vec<Tensor>) -> Result<Self>;
}

impl Outputs for Tensor {
    fn into_tensors(self) -> Vec<Tensor> {
        vec![self]
    }

    fn from_tensors(tensors: Vec<Tensor>) -> Result<Self> {
        let [tensor] = <[Tensor; 1]>::from_tensors(tensors)?;
        Ok(tensor)
    }
}

impl Outputs for Vec<Tensor> {
    fn into_tensors(self) -> Vec<Tensor> {
        self
    }

    fn from_tensors(tensors: Vec<Tensor>) -> Result<Self> {
        Ok(tensors)
    }
}

impl<const N: usize> Outputs for [Tensor; N] {
    fn into_tensors(self) -> Vec<Tensor> {
        self.into()
    }

    fn from_tensors(tensors: Vec<Tensor>) -> Result<Self> {
        let wrong = |tensors: Vec<Tensor>| Error::Msg(format!("{} outputs where {N} are expected", tensors.len()));
        tensors.try_into().map_err(wrong)
    }
}

impl Outputs for (Tensor, Tensor) {
    fn into_tensors(self) -> Vec<Tensor> {
        vec![self.0, self.1]
    }

    fn from_tensors(tensors: Vec<Tensor>) -> Result<Self> {
        Ok(<[Tensor; 2]>::from_tensors(tensors)?.into())
    }
}

impl Outputs for (Tensor, Tensor, Tensor) {
    fn into_tensors(self) -> Vec<Tensor> {
        vec![self.0, self.1, self.2]
    }

    fn from_tensors(tensors: Vec<Tensor>) -> Result<Self> {
        Ok(<[Tensor; 3]>::from_tensors(tensors)?.into())
    }
}

/// Why there is no recording.
pub(super) enum Failure {
    /// An error that a plain call would have met as well.
    Function(Error),
    /// The function cannot be recorded, for this reason.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    NotRecordable(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Function(error)
    }
}
