//! Whether a plan can run here: the build has its kernel's code, the device room for its clusters.

use crate::device::{CurrentContext, DeviceInfo};
use crate::error::{Error, Result};
use crate::gemm::planner::plan::Plan;

impl Plan {
    /// Whether this build has code of the kernel that runs on `device`.
    pub fn is_built(&self, device: &DeviceInfo) -> bool {
        device.code_capability > 0 && crate::modules::module(self.kernel.file).is_some()
    }

    /// The same, and whether the device has room for its clusters.
    ///
    /// # Errors
    ///
    /// Whatever the driver reports.
    pub fn is_usable(&self, context: &CurrentContext) -> Result<bool> {
        usable(self, context)
    }
}

/// Whether this build has code of a plan's kernel that the device runs, and the device room for it. Blocks alone always find some, but a
/// cluster lives within one group of multiprocessors, of which a part of a GPU (a MIG slice, or the share of a process under MPS) may have
/// too few.
///
/// # Errors
///
/// Whatever the driver reports.
pub(in crate::gemm) fn usable(plan: &Plan, context: &CurrentContext) -> Result<bool> {
    let kernel = plan.kernel;
    match plan.cluster() {
        _ if !plan.is_built(context.info()) => Ok(false),
        1 => Ok(true),
        blocks => match context.clusters(kernel.file, kernel.name, kernel.dynamic_shared, kernel.threads, blocks) {
            // The module has no code for this device: other plans are left.
            Err(Error::NotBuilt { .. }) => Ok(false),
            clusters => Ok(clusters? > 0),
        },
    }
}
