//! One test body for every device: the CPU, and the first GPU where there is one.

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
                        eprintln!("{}: skipped, no usable GPU: {error}", stringify!($test));
                        Ok(())
                    }
                }
            })+
        }
    };
}
