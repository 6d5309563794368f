//! Whether a tensor's device is one that this build computes on, or candle does.

use crate::served::{serves, Place};
#[cfg(feature = "cuda")]
use candle_core::{CudaDevice, Error};
use candle_core::{Device, Result};

/// Whether this build computes on `device`.
pub(super) fn is_served(device: &Device) -> Result<bool> {
    match device {
        Device::Cpu => Ok(serves(Place::Cpu, None)),
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => serves_cuda(device),
        _ => Ok(serves(Place::Elsewhere, None)),
    }
}

#[cfg(feature = "cuda")]
fn serves_cuda(device: &CudaDevice) -> Result<bool> {
    let stream = device.cuda_stream();
    let context = stream.context();
    let bind = || {
        let bound = context.bind_to_thread();
        bound.map_err(|error| crate::error::Error::driver("making a GPU's context current", error))
    };
    crate::served::serves_gpu(context.ordinal(), bind).map_err(Error::wrap)
}
