//! Differences that are not a number, too.

use candle_core::{DType, Device, Result, Tensor};

/// The largest magnitude of the elements, in double precision on the CPU; NaN if one of them is. (Candle's maxima pass over NaN.)
pub fn largest(t: &Tensor) -> Result<f64> {
    let elements = t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?;
    let larger = |most: f64, x: &f64| if x.abs() > most || x.is_nan() { x.abs() } else { most };
    Ok(elements.to_vec1()?.iter().fold(0.0, larger))
}
