//! Reading one more tensor's storage while others are held.
//!
//! A custom op runs while candle holds read locks of its operands. `Tensor::storage_and_layout` would queue up for another
//! behind a writer that waits, and that writer may be waiting for one of the op's own locks: a deadlock. Candle's operations
//! take read locks that do not queue, so the way to one is an operation.

use candle_core::{CpuStorage, CudaStorage, CustomOp1, Error, Layout, Result, Shape, Tensor};
use std::cell::Cell;

/// A tensor's storage.
pub(super) enum Seen<'a> {
    Cpu(&'a CpuStorage),
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // nothing is read on a CUDA device then
    Cuda(&'a CudaStorage),
}

/// What `look` makes of the storage of `tensor` and its layout. Does not wait for writers that wait.
pub(super) fn look_at<T>(tensor: &Tensor, look: impl FnOnce(Seen<'_>, &Layout) -> Result<T>) -> Result<T> {
    let op = Look {
        look: Cell::new(Some(look)),
        outcome: Cell::new(None),
    };
    let run = tensor.apply_op1_no_bwd(&op);
    match (op.outcome.take(), run) {
        (Some(outcome), _) => outcome,
        (None, Err(error)) => Err(error),
        (None, Ok(_)) => Err(Error::Msg(format!("{NAME}: candle has not run the operation"))),
    }
}

const NAME: &str = "look";

/// An operation that hands its operand's storage to a function and ends there.
struct Look<F, T> {
    look: Cell<Option<F>>,
    outcome: Cell<Option<Result<T>>>,
}

impl<F: FnOnce(Seen<'_>, &Layout) -> Result<T>, T> Look<F, T> {
    /// Always an error, which makes candle drop the operation: what was found is in `outcome`.
    fn run(&self, seen: Seen<'_>, layout: &Layout) -> Error {
        self.outcome.set(self.look.take().map(|look| look(seen, layout)));
        Error::Msg(String::new())
    }
}

impl<F: FnOnce(Seen<'_>, &Layout) -> Result<T>, T> CustomOp1 for Look<F, T> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Err(self.run(Seen::Cpu(storage), layout))
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        Err(self.run(Seen::Cuda(storage), layout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn storage_and_layout_are_those_of_the_tensor() -> Result<()> {
        let x = Tensor::arange(0f32, 12f32, &Device::Cpu)?
            .reshape((3, 4))?
            .narrow(1, 1, 2)?;
        let found = look_at(&x, |seen, layout| {
            let Seen::Cpu(storage) = seen else {
                candle_core::bail!("this tensor is on the CPU")
            };
            Ok((storage.as_slice::<f32>()?.len(), layout.start_offset(), layout.clone()))
        })?;
        assert_eq!(found, (12, 1, x.layout().clone()));
        Ok(())
    }

    #[test]
    fn errors_come_back_as_they_are() -> Result<()> {
        let x = Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu)?;
        let error = look_at::<()>(&x, |_, _| candle_core::bail!("no such thing")).unwrap_err();
        assert!(error.to_string().contains("no such thing"), "{error}");
        Ok(())
    }
}
