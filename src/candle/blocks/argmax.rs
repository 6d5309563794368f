//! The choice behind a model: the likeliest word, the likeliest class.

use super::super::rowwise::{by_one_kernel, Operands};
use crate::rowwise::Operation;
use candle_core::{Error, Result, Tensor, D};

/// The index (`u32`) of the largest element along the last dimension, which is removed: candle's `argmax(D::Minus1)`.
///
/// In f32, f16 and bf16 on a CUDA device it is one kernel, whatever the rows' length and wherever they start; on Hopper the blocks of a
/// cluster share a long row. Of equal numbers, as −0 and 0 are, the first counts. A NaN is passed over, unless it is in the first place:
/// then that is the result. So does candle on the CPU. On a GPU candle leaves open which of equal numbers it finds, and what a NaN hides.
/// Other types, and views whose rows are not the same distance apart, are candle's.
///
/// ```
/// use candle_core::{Device, Tensor};
///
/// let logits = Tensor::new(&[[0f32, 3., 3.], [f32::NEG_INFINITY, f32::NAN, -1.]], &Device::Cpu)?;
/// assert_eq!(candle_sgemm::blocks::argmax(&logits)?.to_vec1::<u32>()?, [1, 2]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
///
/// Those of candle: a tensor without dimensions, or without elements.
pub fn argmax(x: &Tensor) -> Result<Tensor> {
    let operands = Operands {
        x,
        weight: None,
        bias: None,
    };
    match by_one_kernel(Operation::Argmax, operands, 0.0)? {
        Some(places) => Ok(places),
        // Candle divides by the number of rows on a GPU.
        None if x.elem_count() == 0 => Err(Error::EmptyTensor { op: "argmax" }.bt()),
        None => x.argmax(D::Minus1),
    }
}
