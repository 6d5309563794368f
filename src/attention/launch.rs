//! The one unsafe step: a plan, addresses and a stream become a running kernel.

use super::plan::AttentionPlan;
use super::step::{StepAddresses, StepPlan};
use super::views::Views;
use crate::device::{clusters_of, early_start, early_starts, CurrentContext};
use crate::error::{Error, Result};
use cudarc::driver::{sys, DeviceRepr};
use std::ptr::null_mut;

/// Queues `plan` on `stream` and returns at once.
///
/// Nothing is synchronised or allocated, so a launch can be captured into a CUDA graph.
///
/// # Safety
///
/// - A CUDA context is current on this thread and `stream` belongs to it.
/// - The addresses are device addresses of that context, aligned as the problem says (`ALIGN` for all but the mask, an element for
///   that; 0 for a mask that is absent). From each on lies every element that the problem reaches.
/// - The result does not overlap what is read, and all live until the stream has passed the launch.
///
/// # Errors
///
/// [`Error::NotBuilt`] where this build lacks the kernel for the device, [`Error::Driver`] with the driver's message.
pub unsafe fn launch(plan: &AttentionPlan, at: &Views<u64>, scale: f32, stream: sys::CUstream) -> Result<()> {
    // SAFETY: as the caller vouches; these kernels take this argument.
    unsafe { launch_with(plan, plan.args(at, scale), stream) }
}

/// Queues a decoder's step on `stream` and returns at once. Nothing is synchronised or allocated.
///
/// # Safety
///
/// - A CUDA context is current on this thread and `stream` belongs to it.
/// - The addresses are device addresses of that context on `ALIGN` bytes, the position on 4. From each on lies every element that the
///   problem reaches, and what is written, cache and result, overlaps nothing else. All live until the stream has passed the launch.
///
/// # Errors
///
/// As [`launch`].
pub unsafe fn launch_step(plan: &StepPlan, at: &StepAddresses, scale: f32, stream: sys::CUstream) -> Result<()> {
    // SAFETY: as the caller vouches; these kernels take this argument.
    unsafe { launch_with(&plan.attention, plan.args(at, scale), stream) }
}

/// # Safety
///
/// As [`launch`]; the plan's kernel takes one `ARGS` by value.
unsafe fn launch_with<ARGS: DeviceRepr>(plan: &AttentionPlan, mut args: ARGS, stream: sys::CUstream) -> Result<()> {
    let context = CurrentContext::get()?;
    let (kernel, threads, shared) = (plan.kernel, plan.threads(), plan.kernel.dynamic_shared());
    let function = context.function(kernel.file, kernel.name, shared)?;
    // A part of a device may have no room for a cluster: blocks then take more turns.
    let mut cluster = plan.cluster;
    while cluster > 1 && context.clusters(kernel.file, kernel.name, shared, threads, cluster)? == 0 {
        cluster /= 2;
    }
    let mut parameters = [std::ptr::from_mut(&mut args).cast()];
    let early = kernel.supports_pdl && early_starts(context.info());
    let mut attributes = [clusters_of(cluster), early_start()];
    let first = usize::from(cluster == 1);
    let config = sys::CUlaunchConfig {
        gridDimX: plan.clusters * cluster,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared,
        hStream: stream,
        attrs: attributes[first..].as_mut_ptr(),
        numAttrs: u32::from(cluster > 1) + u32::from(early),
    };
    // SAFETY: the kernel takes one `ARGS` by value, as the caller vouches, which the driver copies before it returns. What it does with
    // the addresses is what the caller vouched for.
    unsafe { sys::cuLaunchKernelEx(&config, function.handle(), parameters.as_mut_ptr(), null_mut()).result() }
        .map_err(|e| Error::driver("launching attention", e))
}
