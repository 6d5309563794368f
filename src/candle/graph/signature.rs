//! What a recording is made for: the shapes and dtypes of its inputs.

use candle_core::{DType, Tensor};
use std::fmt;

/// Shapes and dtypes of tensors, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Signature(Vec<(Vec<usize>, DType)>);

impl Signature {
    pub(super) fn of<T: AsRef<Tensor>>(tensors: &[T]) -> Self {
        let of = |tensor: &T| (tensor.as_ref().dims().to_vec(), tensor.as_ref().dtype());
        Signature(tensors.iter().map(of).collect())
    }

    /// Whether these tensors have it. Allocates nothing.
    pub(super) fn is_of<T: AsRef<Tensor>>(&self, tensors: &[T]) -> bool {
        let same =
            |(dims, dtype): &(Vec<usize>, DType), tensor: &Tensor| dims == tensor.dims() && *dtype == tensor.dtype();
        self.0.len() == tensors.len()
            && self
                .0
                .iter()
                .zip(tensors)
                .all(|(one, tensor)| same(one, tensor.as_ref()))
    }
}

/// `f32 [2, 3], u32 [4]`
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no tensors");
        }
        for (i, (dims, dtype)) in self.0.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{} {dims:?}", dtype.as_str())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Result};

    #[test]
    fn order_shapes_and_dtypes_count_and_strides_do_not() -> Result<()> {
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu);
        let all = [
            vec![],
            vec![zeros(&[], DType::F32)?],
            vec![zeros(&[2, 3], DType::F32)?],
            vec![zeros(&[3, 2], DType::F32)?],
            vec![zeros(&[2, 3], DType::F16)?],
            vec![zeros(&[2, 3], DType::F32)?, zeros(&[4], DType::U32)?],
            vec![zeros(&[4], DType::U32)?, zeros(&[2, 3], DType::F32)?],
        ];
        for (i, one) in all.iter().enumerate() {
            for (j, other) in all.iter().enumerate() {
                assert_eq!(Signature::of(one) == Signature::of(other), i == j, "{i} {j}");
                assert_eq!(Signature::of(one).is_of(other), i == j, "{i} {j}");
            }
        }
        assert_eq!(Signature::of(&all[5]).to_string(), "f32 [2, 3], u32 [4]");
        assert!(Signature::of(&all[2]).is_of(&[zeros(&[3, 2], DType::F32)?.t()?]));
        Ok(())
    }
}
