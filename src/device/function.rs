//! Loaded kernels, what the driver says of them, and how they are launched.

use super::DeviceInfo;
use crate::error::{Error, Result};
use cudarc::driver::sys;
use std::sync::OnceLock;

/// A loaded kernel. Valid in the context that it was loaded in, for as long as that context lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    pub(super) handle: sys::CUfunction,
    pub(super) fixed_shared: u32,
}

// SAFETY: the driver allows the use of a function handle from every thread that has its context current.
unsafe impl Send for Function {}

// SAFETY: as above; the handle is never written through.
unsafe impl Sync for Function {}

impl Function {
    /// The driver's handle.
    pub fn handle(self) -> sys::CUfunction {
        self.handle
    }

    /// Bytes of shared memory that a block has as it was compiled, without what a launch adds.
    pub fn fixed_shared(self) -> u32 {
        self.fixed_shared
    }

    /// Blocks of `threads` threads with `shared` bytes of dynamic shared memory that fit on a multiprocessor.
    ///
    /// # Errors
    ///
    /// Whatever the driver reports.
    pub fn blocks_per_multiprocessor(self, threads: u32, shared: u32) -> Result<u32> {
        let mut blocks = 0;
        // SAFETY: the handle came from the driver, and `blocks` outlives the call.
        unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, self.handle, threads as i32, shared as usize)
        }
        .result()
        .map_err(|e| Error::driver("asking for the occupancy of a kernel", e))?;
        Ok(blocks as u32)
    }

    /// Clusters of `blocks` blocks, each of `threads` threads with `shared` bytes of dynamic shared memory, that find room
    /// on the device at the same time.
    pub(super) fn clusters(self, blocks: u32, threads: u32, shared: u32) -> Result<u32> {
        let mut attribute = clusters_of(blocks);
        let config = sys::CUlaunchConfig {
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            // The context that is current counts.
            hStream: std::ptr::null_mut(),
            attrs: &mut attribute,
            numAttrs: 1,
        };
        let mut clusters = 0;
        // SAFETY: the handle came from the driver, and the configuration, its attribute and `clusters` outlive the call.
        let status = unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, self.handle, &config) };
        match status {
            // More blocks than any cluster has on this device.
            sys::CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE => Ok(0),
            _ => status
                .result()
                .map(|()| clusters.max(0) as u32)
                .map_err(|e| Error::driver("asking for the room that clusters of a kernel find", e)),
        }
    }
}

/// That so many blocks, neighbours along x, are a cluster.
pub(crate) fn clusters_of(blocks: u32) -> sys::CUlaunchAttribute {
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: blocks, y: 1, z: 1 };
    sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        pad: [0; 4],
        value,
    }
}

/// That a kernel may start before those before it on the stream have ended: while they do, it gets ready. It waits for
/// them itself, before it reads or writes memory.
pub(crate) fn early_start() -> sys::CUlaunchAttribute {
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    value.programmaticStreamSerializationAllowed = 1;
    sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value,
    }
}

/// Whether the device knows early starts, and the driver can also record them into graphs, from CUDA 12.3 on.
pub(crate) fn early_starts(device: &DeviceInfo) -> bool {
    const SINCE: i32 = 12_030;
    static CAN: OnceLock<bool> = OnceLock::new();
    device.has_early_starts()
        && *CAN.get_or_init(|| {
            let mut version = 0;
            // SAFETY: the number outlives the call.
            unsafe { sys::cuDriverGetVersion(&mut version) }.result().is_ok() && version >= SINCE
        })
}
