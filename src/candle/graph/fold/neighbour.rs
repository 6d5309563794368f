//! Candle's element-wise kernels that an epilogue can do the work of, by their names and parameters: those of `binary.cu`,
//! `unary.cu` and `affine.cu` in candle-kernels 0.11.

use crate::gemm::{Activation, DType};
use half::{bf16, f16};

/// What such a kernel computes of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operation {
    /// The sum of two operands.
    Add,
    /// Their product.
    Multiply,
    /// A function of one.
    Activate(Activation),
    /// One operand times a number.
    Scale(f32),
}

/// A call of one of these kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Neighbour {
    pub operation: Operation,
    pub dtype: DType,
    /// How many elements it computes.
    pub elements: u64,
    /// How many dimensions its operands have.
    pub rank: u64,
    /// Where the extents of the dimensions are, then each operand's strides; 0: the operands are contiguous.
    pub view: u64,
    /// The first elements of its operands; the second is 0 where there is one.
    pub operands: [u64; 2],
    /// The result's, which is contiguous.
    pub result: u64,
}

impl Neighbour {
    /// The call that a kernel of this name with these parameters is, if it is one.
    pub fn of(name: &str, parameters: &[Vec<u8>]) -> Option<Self> {
        let (dtype, operation) = [DType::F32, DType::F16, DType::BF16].into_iter().find_map(|dtype| {
            let operation = name.strip_suffix(dtype.name())?.strip_suffix('_')?;
            Some((dtype, operation))
        })?;
        let word = |at: usize| -> Option<u64> {
            let bytes = parameters.get(at)?.as_slice().try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let scalar = |at: usize| -> Option<f32> {
            let bytes = parameters.get(at)?.as_slice();
            Some(match dtype {
                DType::F16 => f16::from_le_bytes(bytes.try_into().ok()?).to_f32(),
                DType::BF16 => bf16::from_le_bytes(bytes.try_into().ok()?).to_f32(),
                _ => f32::from_le_bytes(bytes.try_into().ok()?),
            })
        };
        // All begin with elements, rank and view; then come operands, the result and numbers.
        let (operation, operands, numbers) = match operation {
            "badd" => (Operation::Add, 2, 0),
            "bmul" => (Operation::Multiply, 2, 0),
            "urelu" => (Operation::Activate(Activation::Relu), 1, 0),
            "ugelu" => (Operation::Activate(Activation::GeluTanh), 1, 0),
            "ugelu_erf" => (Operation::Activate(Activation::GeluErf), 1, 0),
            "usilu" => (Operation::Activate(Activation::Silu), 1, 0),
            "utanh" => (Operation::Activate(Activation::Tanh), 1, 0),
            "usigmoid" => (Operation::Activate(Activation::Sigmoid), 1, 0),
            // x·factor + term: where nothing is added.
            "affine" if scalar(6)? == 0.0 => (Operation::Scale(scalar(5)?), 1, 2),
            _ => return None,
        };
        let all = 3 + operands + 1 + numbers;
        (parameters.len() == all).then_some(())?;
        Some(Neighbour {
            operation,
            dtype,
            elements: word(0)?,
            rank: word(1)?,
            view: word(2)?,
            operands: [word(3)?, if operands == 2 { word(4)? } else { 0 }],
            result: word(3 + operands)?,
        })
    }

    /// How many numbers describe the operands, where `view` is.
    pub fn view_words(&self) -> Option<usize> {
        /// Candle's tensors seldom have more than 6 dimensions.
        const MAX_RANK: u64 = 16;
        let operands = match self.operation {
            Operation::Add | Operation::Multiply => 2,
            Operation::Activate(_) | Operation::Scale(_) => 1,
        };
        (self.rank <= MAX_RANK).then_some(self.rank as usize * (1 + operands))
    }
}
