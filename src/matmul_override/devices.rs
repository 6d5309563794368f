//! GPUs that nothing here is for: their products are passed on without a plan being made for each.

use super::call::PassedOn;
use super::counts::Left;
use crate::device::DeviceInfo;
use crate::error::{report, Error};
use std::sync::{PoisonError, RwLock};

/// What tells devices apart here: kernels refuse by capability and shared memory.
type Kind = (u32, u32);

/// Which devices are served, as far as is known. Meant for a `static`.
pub(super) struct Devices(RwLock<Vec<(Kind, bool)>>);

#[cfg_attr(not(all(feature = "cuda", feature = "override")), allow(dead_code))] // nothing calls cuBLAS there
impl Devices {
    pub(super) const fn new() -> Self {
        Devices(RwLock::new(Vec::new()))
    }

    /// What `product` makes, if `serves` says, when it is first asked, that there are kernels for this device. An error that
    /// means that there are none after all is remembered too.
    ///
    /// # Errors
    ///
    /// [`PassedOn::Device`] where there are none; else the error's message.
    pub(super) fn on<T>(
        &self,
        device: &DeviceInfo,
        serves: impl FnOnce() -> bool,
        product: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Left> {
        let kind = (device.compute_capability, device.shared_per_block);
        let known = {
            let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
            known.iter().find(|(of, _)| *of == kind).map(|(_, served)| *served)
        };
        let served = known.unwrap_or_else(|| {
            let served = serves();
            self.remember(kind, served, &"no kernel of this build runs on it");
            served
        });
        if !served {
            return Err(Left::PassedOn(PassedOn::Device));
        }
        product().map_err(|error| {
            if !is_about_the_device(&error) {
                return Left::Failed(error.to_string());
            }
            self.remember(kind, false, &error);
            Left::PassedOn(PassedOn::Device)
        })
    }

    fn remember(&self, kind: Kind, served: bool, why_not: &dyn std::fmt::Display) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let before = known.iter_mut().find(|(of, _)| *of == kind);
        if !served && before.as_ref().is_none_or(|(_, served)| *served) {
            let (capability, _) = kind;
            report(format_args!(
                "products on the GPU of compute capability {capability} stay with cuBLAS: {why_not}"
            ));
        }
        match before {
            Some((_, before)) => *before &= served,
            None => known.push((kind, served)),
        }
    }
}

/// Whether every product on the device would end in this error.
fn is_about_the_device(error: &Error) -> bool {
    /// What the driver says of machine code for other devices, and of PTX that is newer than itself.
    const NO_CODE: [&str; 2] = ["CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"];
    match error {
        Error::NotBuilt { .. } => true,
        Error::Driver { message, .. } => NO_CODE.iter().any(|code| message.contains(code)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn device(compute_capability: u32) -> DeviceInfo {
        DeviceInfo {
            compute_capability,
            ..DeviceInfo::H100
        }
    }

    #[test]
    fn a_device_without_kernels_is_asked_about_once_and_nothing_is_planned() {
        let devices = Devices::new();
        let (asked, planned) = (Cell::new(0), Cell::new(0));
        let run = |capability, served: bool| {
            devices.on(
                &device(capability),
                || {
                    asked.set(asked.get() + 1);
                    served
                },
                || {
                    planned.set(planned.get() + 1);
                    Ok("some_kernel")
                },
            )
        };
        for _ in 0..5 {
            assert_eq!(run(61, false), Err(Left::PassedOn(PassedOn::Device)));
        }
        assert_eq!((asked.get(), planned.get()), (1, 0));
        // Another device in the same process is.
        for _ in 0..5 {
            assert_eq!(run(90, true), Ok("some_kernel"));
        }
        assert_eq!((asked.get(), planned.get()), (2, 5));
    }

    #[test]
    fn an_error_that_no_product_escapes_is_met_once_and_others_each_time() {
        let driver = |message: &str| Error::Driver {
            doing: "loading a kernel module",
            message: message.into(),
        };
        for (error, remembered) in [
            (Error::NotBuilt { file: "gemm/some" }, true),
            (
                driver("DriverError(CUDA_ERROR_NO_BINARY_FOR_GPU, \"no kernel image\")"),
                true,
            ),
            (driver("DriverError(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, \"\")"), true),
            (
                driver("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")"),
                false,
            ),
            (Error::Problem("too large".into()), false),
        ] {
            let devices = Devices::new();
            let mut planned = 0;
            for _ in 0..3 {
                let left = devices.on(
                    &device(90),
                    || true,
                    || {
                        planned += 1;
                        Err::<(), _>(error.clone())
                    },
                );
                let expected = match remembered {
                    true => Left::PassedOn(PassedOn::Device),
                    false => Left::Failed(error.to_string()),
                };
                assert_eq!(left, Err(expected));
            }
            assert_eq!(planned, if remembered { 1 } else { 3 }, "{error}");
        }
    }
}
