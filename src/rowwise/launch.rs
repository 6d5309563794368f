//! The one unsafe step: a plan, addresses and a stream become a running kernel.

use super::plan::RowwisePlan;
use crate::device::{clusters_of, early_start, early_starts, CurrentContext};
use crate::error::{Error, Result};
use cudarc::driver::sys;
use std::ptr::null_mut;

/// Queues `plan` on `stream` and returns at once. The addresses are those of x, y, weight and bias.
///
/// Nothing is synchronised or allocated, so a launch can be captured into a CUDA graph.
///
/// # Safety
///
/// - A CUDA context is current on this thread and `stream` belongs to it.
/// - The addresses are device addresses of that context, aligned as the problem says. From each on lies every element that the
///   problem reaches: rows of x and y, and `width` elements of weight and bias. Norms alone have these, and a bias may be absent: 0.
/// - y is x, with its rows in the same places, or does not overlap what is read, and all live until the stream has passed the launch.
///
/// # Errors
///
/// [`Error::NotBuilt`] where this build lacks the kernel for the device, [`Error::Driver`] with the driver's message.
pub unsafe fn launch(plan: &RowwisePlan, addresses: [u64; 4], epsilon: f32, stream: sys::CUstream) -> Result<()> {
    const NO_SHARED: u32 = 0;
    let context = CurrentContext::get()?;
    let function = context.function(plan.kernel.file, plan.kernel.name, NO_SHARED)?;
    let mut args = plan.args(addresses, epsilon);
    let mut parameters = [std::ptr::from_mut(&mut args).cast()];
    let block = plan.kernel.block();
    // A part of a device may have no room for a cluster: blocks then take more turns.
    let mut cluster = plan.cluster;
    while cluster > 1 && context.clusters(plan.kernel.file, plan.kernel.name, NO_SHARED, block, cluster)? == 0 {
        cluster /= 2;
    }
    let mut attributes = [clusters_of(cluster), early_start()];
    let first = usize::from(cluster == 1);
    let config = sys::CUlaunchConfig {
        gridDimX: plan.blocks / plan.cluster * cluster,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: block,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: NO_SHARED,
        hStream: stream,
        attrs: attributes[first..].as_mut_ptr(),
        numAttrs: u32::from(cluster > 1) + u32::from(early_starts(context.info())),
    };
    // SAFETY: every kernel of the table takes one `RowwiseArgs` by value, which the driver copies before it returns. What it does with
    // the addresses is what the caller vouched for.
    unsafe { sys::cuLaunchKernelEx(&config, function.handle(), parameters.as_mut_ptr(), null_mut()).result() }
        .map_err(|e| Error::driver("launching an operation on rows", e))
}
