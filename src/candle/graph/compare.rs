//! Whether two runs of a function came to the same.

use super::signature::Signature;
use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};

/// How far a replay may be from a plain run, in units of the largest element: libraries may choose another kernel while they
/// are recorded, which rounds otherwise. A recording that computes something else is off by far more.
const ROUNDING: f64 = 1e-3;
/// The same for numbers of 16 bits and fewer.
const COARSE_ROUNDING: f64 = 2e-2;

/// How two runs' outputs differ in number, shape, dtype or any bit; `None`: not at all.
///
/// # Errors
///
/// Those of copying tensors to the host; a dtype that cannot be compared.
pub(super) fn difference(first: &[Tensor], second: &[Tensor]) -> Result<Option<String>> {
    if let Some(text) = difference_in_kind(first, second) {
        return Ok(Some(text));
    }
    for (i, (one, other)) in first.iter().zip(second).enumerate() {
        let found = differing(one, other, |_| None)?;
        if let Some(found) = found {
            return Ok(Some(format!("output {i} ({}): {found}", kind(one))));
        }
    }
    Ok(None)
}

/// How a replay's outputs differ from a plain run's by more than rounding; `None`: not at all.
///
/// # Errors
///
/// As [`difference`].
pub(super) fn deviation(plain: &[Tensor], replayed: &[Tensor]) -> Result<Option<String>> {
    if let Some(text) = difference_in_kind(plain, replayed) {
        return Ok(Some(text));
    }
    for (i, (one, other)) in plain.iter().zip(replayed).enumerate() {
        let rounding = match one.dtype() {
            DType::F64 | DType::F32 => ROUNDING,
            _ => COARSE_ROUNDING,
        };
        let found = differing(one, other, |largest| Some(rounding * largest))?;
        if let Some(found) = found {
            return Ok(Some(format!("output {i} ({}): {found}", kind(one))));
        }
    }
    Ok(None)
}

fn difference_in_kind(first: &[Tensor], second: &[Tensor]) -> Option<String> {
    if first.len() != second.len() {
        return Some(format!("{} outputs, then {}", first.len(), second.len()));
    }
    let (i, (one, other)) = first
        .iter()
        .zip(second)
        .enumerate()
        .find(|(_, (one, other))| one.dims() != other.dims() || one.dtype() != other.dtype())?;
    Some(format!("output {i} was {}, then {}", kind(one), kind(other)))
}

fn kind(tensor: &Tensor) -> Signature {
    Signature::of(std::slice::from_ref(tensor))
}

/// `3 of 10 elements differ, the first at 4: 0.5, then 0.25`. Floats that are as close as what `allowed` makes of the largest
/// finite one do not differ; `None` allows nothing but the same bits.
fn differing(one: &Tensor, other: &Tensor, allowed: impl Fn(f64) -> Option<f64>) -> Result<Option<String>> {
    let on_host = |tensor: &Tensor| tensor.detach().to_device(&Device::Cpu)?.flatten_all();
    let (one, other) = (on_host(one)?, on_host(other)?);
    macro_rules! exactly {
        ($t:ty) => {
            report::<$t>(&one.to_vec1()?, &other.to_vec1()?, |x, y| x == y)
        };
    }
    macro_rules! floats {
        ($t:ty, $double:expr) => {{
            let (one, other) = (one.to_vec1::<$t>()?, other.to_vec1::<$t>()?);
            let double: fn($t) -> f64 = $double;
            let finite = one.iter().map(|&x| double(x).abs()).filter(|x| x.is_finite());
            let allowed = allowed(finite.fold(0.0, f64::max));
            report(&one, &other, |x, y| {
                let near = |allowed: f64| {
                    let (x, y) = (double(x), double(y));
                    (x - y).abs() <= allowed || (x.is_nan() && y.is_nan())
                };
                x.to_bits() == y.to_bits() || allowed.is_some_and(near)
            })
        }};
    }
    Ok(match one.dtype() {
        DType::U8 => exactly!(u8),
        DType::U32 => exactly!(u32),
        DType::I16 => exactly!(i16),
        DType::I32 => exactly!(i32),
        DType::I64 => exactly!(i64),
        DType::F16 => floats!(f16, f16::to_f64),
        DType::BF16 => floats!(bf16, bf16::to_f64),
        DType::F32 => floats!(f32, f64::from),
        DType::F64 => floats!(f64, |x| x),
        // Every number of 8 bits is one of 32.
        DType::F8E4M3 => return differing(&one.to_dtype(DType::F32)?, &other.to_dtype(DType::F32)?, allowed),
        dtype => candle_core::bail!("outputs of dtype {} cannot be compared", dtype.as_str()),
    })
}

fn report<T: Copy + std::fmt::Debug>(one: &[T], other: &[T], same: impl Fn(T, T) -> bool) -> Option<String> {
    let pairs = one.iter().zip(other).enumerate();
    let mut differing = pairs.filter(|(_, (x, y))| !same(**x, **y));
    let (place, (x, y)) = differing.next()?;
    let count = 1 + differing.count();
    let elements = one.len();
    Some(format!(
        "{count} of {elements} elements differ, the first at {place}: {x:?}, then {y:?}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    const DTYPES: [DType; 9] = [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    fn tensor(numbers: &[f64], dtype: DType) -> Result<Tensor> {
        Tensor::new(numbers, &Device::Cpu)?.to_dtype(dtype)
    }

    #[test]
    fn one_element_that_changed_is_found_in_every_dtype() -> Result<()> {
        let mut rng = StdRng::seed_from_u64(3);
        for dtype in DTYPES {
            for _ in 0..20 {
                let numbers: Vec<f64> = (0..rng.random_range(1..50))
                    .map(|_| rng.random_range(0..9).into())
                    .collect();
                let place = rng.random_range(0..numbers.len());
                let mut changed = numbers.clone();
                changed[place] += 9.0;
                let (one, other) = (tensor(&numbers, dtype)?, tensor(&changed, dtype)?);
                let same = [one.clone(), one.clone()];
                assert_eq!(difference(&same, &same)?, None);
                assert_eq!(deviation(&same, &same)?, None);
                let not_same = [one, other];
                for text in [difference(&same, &not_same)?, deviation(&same, &not_same)?] {
                    let text = text.expect("an element differs");
                    let place = format!("the first at {place}:");
                    assert!(
                        text.starts_with("output 1") && text.contains(&place),
                        "{dtype:?}: {text}"
                    );
                    assert!(text.contains("1 of "), "{text}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn bits_count_between_plain_runs_and_rounding_does_not_in_replays() -> Result<()> {
        for dtype in [DType::F32, DType::F64] {
            let one = [tensor(&[1000.0, 0.0, 1.0], dtype)?];
            let near = [tensor(&[1000.0, 0.0, 1.0001], dtype)?];
            assert!(difference(&one, &near)?.is_some());
            assert_eq!(deviation(&one, &near)?, None);
            // Zeros of both signs, and numbers that are none.
            let negative = [tensor(&[1000.0, -0.0, 1.0], dtype)?];
            assert!(difference(&one, &negative)?.is_some());
            assert_eq!(deviation(&one, &negative)?, None);
            let nan = [tensor(&[1000.0, f64::NAN, 1.0], dtype)?];
            assert_eq!(difference(&nan, &nan)?, None);
            assert!(deviation(&one, &nan)?.is_some() && deviation(&nan, &one)?.is_some());
            let infinite = [tensor(&[1000.0, f64::INFINITY, 1.0], dtype)?];
            assert!(deviation(&one, &infinite)?.is_some() && deviation(&infinite, &one)?.is_some());
            assert_eq!(deviation(&infinite, &infinite)?, None);
        }
        Ok(())
    }

    #[test]
    fn numbers_shapes_and_dtypes_of_outputs_count() -> Result<()> {
        let x = tensor(&[1.0, 2.0, 3.0, 4.0], DType::F32)?;
        let text = |other: &[Tensor]| difference(std::slice::from_ref(&x), other);
        assert_eq!(text(&[])?.unwrap(), "1 outputs, then 0");
        let reshaped = text(&[x.reshape((2, 2))?])?.unwrap();
        assert_eq!(reshaped, "output 0 was f32 [4], then f32 [2, 2]");
        let other = text(&[x.to_dtype(DType::F64)?])?.unwrap();
        assert_eq!(other, "output 0 was f32 [4], then f64 [4]");
        // What is compared are the elements, whatever their order in memory.
        let matrix = x.reshape((2, 2))?;
        assert_eq!(difference(&[matrix.t()?], &[matrix.t()?.contiguous()?])?, None);
        Ok(())
    }
}
