//! Whether operands fit each other: dtype, device and shape.

use super::layout::elements;
use crate::gemm::operands::DType as ElementType;
use candle_core::{bail, DType, Error, Result, Shape, Tensor};

/// What candle's errors call the operation.
pub(super) const NAME: &str = "matmul";

/// The shape of a product of this shape plus a bias, which may be broadcast to it or it to the bias.
pub(super) fn with_bias(product: &Shape, bias: &Shape) -> Result<Shape> {
    let sum = product.broadcast_shape_binary_op(bias, "bias").map_err(|error| {
        let columns = product.dims().last().copied().unwrap_or(1);
        error.context(format!(
            "the bias has shape {bias:?} where the product has {product:?}: [{columns}] is what a layer's bias is"
        ))
    })?;
    if elements(sum.dims()).is_none() {
        bail!(
            "the product of shape {product:?} plus the bias of shape {bias:?} has more elements than any memory holds"
        );
    }
    Ok(sum)
}

/// What this crate calls a type of candle's.
///
/// # Errors
///
/// A type that it has no kernels for.
pub(super) fn element_type(dtype: DType) -> Result<ElementType> {
    match dtype {
        DType::F32 => Ok(ElementType::F32),
        DType::F16 => Ok(ElementType::F16),
        DType::BF16 => Ok(ElementType::BF16),
        other => bail!("{other:?} matrices are not multiplied here"),
    }
}

/// Whether FP32 numbers may stand beside numbers of this type.
pub(super) fn is_16_bit(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// As [`same_kind`], but what is added to a product of 16-bit factors, or multiplied with it, may be FP32.
pub(super) fn fits_beside(factor: (&str, &Tensor), (name, other): (&str, &Tensor)) -> Result<()> {
    let (_, of) = factor;
    if is_16_bit(of.dtype()) && other.dtype() == DType::F32 {
        return same_device(factor, (name, other));
    }
    same_kind(factor, (name, other))
}

/// Dtype and device must agree; two handles of one GPU, which have streams of their own, are two devices, as in candle.
pub(super) fn same_kind((a_name, a): (&str, &Tensor), (b_name, b): (&str, &Tensor)) -> Result<()> {
    if a.dtype() != b.dtype() {
        let error = Error::DTypeMismatchBinaryOp {
            lhs: a.dtype(),
            rhs: b.dtype(),
            op: NAME,
        };
        return Err(error.bt().context(format!(
            "{a_name} and {b_name} differ in dtype: convert one of them with to_dtype"
        )));
    }
    same_device((a_name, a), (b_name, b))
}

fn same_device((a_name, a): (&str, &Tensor), (b_name, b): (&str, &Tensor)) -> Result<()> {
    if !a.device().same_device(b.device()) {
        let (lhs, rhs) = (a.device().location(), b.device().location());
        let error = Error::DeviceMismatchBinaryOp { lhs, rhs, op: NAME };
        return Err(error.bt().context(match lhs == rhs {
            true => {
                format!("{a_name} and {b_name} were made with two handles of one device: make them with clones of one")
            }
            false => format!("{a_name} and {b_name} are on two devices: move one of them with to_device"),
        }));
    }
    Ok(())
}
