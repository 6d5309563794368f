//! Products by candle's own matmul, for what this crate has no kernel for.

use super::layout::{result_shape, split};
use candle_core::{DType, Result, Shape, Tensor};

/// The product by candle's own matmul, for what this crate has no kernel for.
pub(super) fn stock(
    a: &Tensor,
    b: &Tensor,
    alpha: f64,
    c: Option<(Tensor, f64)>,
    out_dtype: Option<DType>,
) -> Result<Tensor> {
    let shape = result_shape(a.shape(), b.shape())?;
    let mut product = stock_matmul(a, b, &shape).map_err(|error| {
        let (dtype, a, b) = (a.dtype(), a.shape(), b.shape());
        error.context(format!(
            "candle's own matmul of {dtype:?} tensors of shapes {a:?} and {b:?}; what it does not multiply, convert to F32 \
             with to_dtype"
        ))
    })?;
    if let Some(dtype) = out_dtype {
        product = converted(&product, dtype)?;
    }
    if shape.elem_count() == 0 {
        return Ok(product);
    }
    if alpha != 1.0 {
        product = product.affine(alpha, 0.0)?;
    }
    match c {
        Some((c, beta)) => &product + c.to_dtype(product.dtype())?.affine(beta, 0.0)?,
        None => Ok(product),
    }
}

/// The numbers of a tensor as others. Candle's conversion on a CUDA device launches a grid of no blocks for none, which is an
/// error.
pub(super) fn converted(t: &Tensor, dtype: DType) -> Result<Tensor> {
    match t.dims().contains(&0) && t.dtype() != dtype {
        true => Tensor::zeros(t.shape(), dtype, t.device()),
        false => t.to_dtype(dtype),
    }
}

fn stock_matmul(a: &Tensor, b: &Tensor, shape: &Shape) -> Result<Tensor> {
    let (a_batch, m, k) = split(a.dims());
    let (b_batch, _, n) = split(b.dims());
    let batch = split(shape.dims()).0;
    if k == 0 {
        // Candle cannot lay out an empty operand anew on a CUDA device; the sum of no products needs none.
        let a = a.broadcast_as([batch, &[m, k]].concat())?;
        return a.matmul(&b.broadcast_as([batch, &[k, n]].concat())?);
    }
    if a_batch == b_batch && a_batch.len() <= 2 {
        return plain(a)?.matmul(&plain(b)?);
    }
    // Broadcast operands and more batch dimensions than candle takes: at most one batch dimension is left.
    let product = if b_batch.iter().all(|&dim| dim == 1) {
        let rows = batch.iter().product::<usize>() * m;
        let a = a.broadcast_as([batch, &[m, k]].concat())?;
        a.reshape((rows, k))?.matmul(&plain(&b.reshape((k, n))?)?)?
    } else {
        let flat = |t: &Tensor, rows: usize, cols: usize| {
            let batched = t.broadcast_as([batch, &[rows, cols]].concat())?.contiguous()?;
            batched.reshape((batch.iter().product::<usize>(), rows, cols))
        };
        flat(a, m, k)?.matmul(&flat(b, k, n)?)?
    };
    product.reshape(shape)
}

/// A tensor as candle's matmul takes it on every device: dense, or dense with its last two dimensions swapped.
fn plain(t: &Tensor) -> Result<Tensor> {
    if t.is_contiguous() || t.t()?.is_contiguous() {
        Ok(t.clone())
    } else {
        t.contiguous()
    }
}
