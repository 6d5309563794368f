//! One test body for every device, the CPU and the first GPU where there is one, and what such bodies share.

#[path = "../common/largest.rs"]
mod largest;
#[cfg(feature = "cuda")]
#[path = "../common/needs.rs"]
mod needs;

use candle_core::{DType, Device, Result, Tensor};
#[allow(unused_imports)] // not every test compares tensors
pub use largest::largest;
#[cfg(feature = "cuda")]
pub use needs::skip;

/// Normal numbers.
#[allow(dead_code)] // not every test draws tensors
pub fn random(shape: &[usize], device: &Device) -> Tensor {
    Tensor::randn(0f32, 1., shape, device).unwrap()
}

/// The largest difference, in double precision on the CPU; NaN if there is one.
#[allow(dead_code)] // not every test compares tensors
pub fn worst(x: &Tensor, y: &Tensor) -> Result<f64> {
    assert_eq!(x.dims(), y.dims());
    let double = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    largest(&(double(x)? - double(y)?)?)
}

/// What FP32 sums of `k` products of standard normal numbers may differ by, also behind an activation with a slope of at most 1.2.
#[allow(dead_code)] // not every test compares tensors
pub fn tolerance(k: usize) -> f64 {
    8.0 * f32::EPSILON as f64 * (k as f64).sqrt().max(4.0)
}

/// Makes a test of each function `fn(&Device) -> Result<()>`, once in a module `cpu` and, with the feature `cuda`, once in a
/// module `cuda`, where it says so and passes if there is no usable GPU.
macro_rules! on_every_device {
    ($($test:ident),+ $(,)?) => {
        mod cpu {
            $(#[test] fn $test() -> candle_core::Result<()> { super::$test(&candle_core::Device::Cpu) })+
        }
        #[cfg(feature = "cuda")]
        mod cuda {
            $(#[test] fn $test() -> candle_core::Result<()> {
                match candle_core::Device::new_cuda(0) {
                    Ok(device) => super::$test(&device),
                    Err(error) => {
                        crate::devices::skip(stringify!($test), "gpu", format_args!("no usable GPU: {error}"));
                        Ok(())
                    }
                }
            })+
        }
    };
}
