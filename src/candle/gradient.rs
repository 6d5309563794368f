//! Gradients of products are products.

use super::layout::split;
use candle_core::{DType, Result, Shape, Tensor, D};

/// Gradients of A and B, given that of `product(A, B)`, which is linear in both; `None` for an operand that no variable stands behind.
pub(super) fn operand_gradients(
    a: &Tensor,
    b: &Tensor,
    grad: &Tensor,
    product: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<(Option<Tensor>, Option<Tensor>)> {
    let (batch, m, n) = split(grad.dims());
    let k = a.dim(D::Minus1)?;
    let shared = |t: &Tensor| split(t.dims()).0.iter().all(|&dim| dim == 1);
    // A result that is finer than its factors has a gradient that is.
    let (dtypes, finer) = ((a.dtype(), b.dtype()), grad.dtype());
    let (a, b) = (&a.to_dtype(finer)?, &b.to_dtype(finer)?);

    // An operand that the whole batch shares gets one product over all of the batch, in place of a product a matrix
    // and a sum.
    let a_grad = match a.track_op() {
        false => None,
        true if shared(a) => {
            let b = b.broadcast_as([batch, &[k, n]].concat())?;
            let grad = batch_in_columns(grad)?;
            let a_grad = product(&grad, &batch_in_columns(&b)?.t()?)?;
            Some(a_grad.reshape(a.shape())?)
        }
        true => Some(sum_to(product(grad, &b.t()?)?, a.shape())?),
    };
    let b_grad = match b.track_op() {
        false => None,
        true if shared(b) => {
            let a = a.broadcast_as([batch, &[m, k]].concat())?;
            let rows = batch.iter().product::<usize>() * m;
            let b_grad = product(&a.reshape((rows, k))?.t()?, &grad.reshape((rows, n))?)?;
            Some(b_grad.reshape(b.shape())?)
        }
        true => Some(sum_to(product(&a.t()?, grad)?, b.shape())?),
    };
    let like = |grad: Option<Tensor>, dtype| grad.map(|grad| grad.to_dtype(dtype)).transpose();
    Ok((like(a_grad, dtypes.0)?, like(b_grad, dtypes.1)?))
}

/// The sum of a gradient over the dimensions along which its operand was broadcast. That of 16-bit numbers is one of FP32: a sum of ones
/// stays at 256 in BF16, at 2048 in FP16.
pub(super) fn sum_to(grad: Tensor, shape: &Shape) -> Result<Tensor> {
    let missing = grad.rank() - shape.rank();
    let broadcast: Vec<usize> = (0..grad.rank())
        .filter(|&i| i < missing || (shape.dims()[i - missing] == 1 && grad.dims()[i] != 1))
        .collect();
    if broadcast.is_empty() {
        return Ok(grad);
    }
    let grad = match grad.dtype() {
        DType::F16 | DType::BF16 => grad.to_dtype(DType::F32)?,
        _ => grad,
    };
    grad.sum_keepdim(broadcast)?.reshape(shape)
}

/// (…, rows, cols) → (rows, …·cols)
fn batch_in_columns(t: &Tensor) -> Result<Tensor> {
    let rank = t.rank();
    if rank == 2 {
        return Ok(t.clone());
    }
    let order: Vec<usize> = [rank - 2].into_iter().chain(0..rank - 2).chain([rank - 1]).collect();
    let rows = t.dim(rank - 2)?;
    t.permute(order)?.reshape((rows, t.elem_count() / rows))
}
