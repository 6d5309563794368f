//! The one unsafe step: a plan, addresses and a stream become a running kernel.

use super::args::{Addresses, GemmArgs};
use super::room::usable;
use super::workspace::{Keeper, Workspace};
use crate::device::{clusters_of, early_start, early_starts, CurrentContext};
use crate::error::{Error, Result};
use crate::gemm::planner::plan::Plan;
use crate::gemm::tune::calibrated::costs;
use crate::transpose;
use cudarc::driver::sys;
use std::hash::{BuildHasher, RandomState};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError};

/// Of A, B and D.
const MAX_TENSOR_MAPS: usize = 3;

/// Queues `plan` on `stream` and returns at once.
///
/// Nothing is synchronised and memory is only allocated in stream order, so a launch can be captured into a CUDA graph, the
/// first one of a process as well. A stream keeps the few megabytes that some kernels need for their blocks' partial sums. A
/// graph owns those of the launches that were captured into it: they are freed when it and all that was made of it are gone.
/// So two executables of one graph must not run at the same time, as they could not anyway: they would write the same D. Where
/// there is no memory for a workspace, another plan is launched that needs none.
///
/// # Safety
///
/// - A CUDA context is current on this thread and `stream` belongs to it.
/// - Each address that the plan's problem has an operand for is device memory of that context which holds every element
///   that the operand's layout reaches, and is a multiple of its `align`.
/// - The memory of D is written by nothing else, and overlaps A, B, the bias and the residual nowhere; it may be C's if
///   the layouts of the two are the same. All of it lives until the stream has passed the launch.
///
/// # Errors
///
/// [`Error::NotBuilt`] where this build lacks the kernel for the device, [`Error::Driver`] with the driver's message.
pub unsafe fn launch(plan: &Plan, at: &Addresses, alpha: f32, beta: f32, stream: sys::CUstream) -> Result<()> {
    let context = CurrentContext::get()?;
    if plan.workspace_bytes == 0 {
        // SAFETY: as the caller vouches; no workspace is the size of this plan's.
        return unsafe { launch_in(&Workspace::NONE, plan, at, alpha, beta, &context, stream) };
    }
    let keeper = Keeper::of(stream, plan.workspace_bytes, &context)?;
    let mut kept = keeper
        .kept()
        .map(|kept| kept.lock().unwrap_or_else(PoisonError::into_inner));
    let counts = plan.cut.counts();
    let workspace = match keeper.workspace(plan.workspace_bytes, counts, kept.as_deref_mut(), &context, stream) {
        Ok(workspace) => workspace,
        Err(error) => {
            // On a full card a product runs without: with k whole, with operands in place.
            drop(kept);
            let other = plan.without_workspace(context.info(), costs(&context), |plan| usable(plan, &context))?;
            return match other {
                // SAFETY: as the caller vouches: it is the same product.
                Some(other) => unsafe { launch(&other, at, alpha, beta, stream) },
                None => Err(error),
            };
        }
    };
    // SAFETY: as the caller vouches; the workspace has the plan's size.
    let launched = unsafe { launch_in(&workspace, plan, at, alpha, beta, &context, stream) };
    // The workspace goes back even where the launch failed; the launch's error is the one to report.
    launched.and(workspace.free(stream))
}

/// # Safety
///
/// As [`launch`]; the workspace has the size that the plan asks for.
unsafe fn launch_in(
    workspace: &Workspace,
    plan: &Plan,
    at: &Addresses,
    alpha: f32,
    beta: f32,
    context: &CurrentContext,
    stream: sys::CUstream,
) -> Result<()> {
    let (kernel, problem) = (plan.kernel, &plan.problem);
    let here = plan.addresses(at, workspace.address);
    for (repack, src, dst) in [
        (&plan.repacks[0], at.operands.a, here.operands.a),
        (&plan.repacks[1], at.operands.b, here.operands.b),
    ] {
        if let Some(repack) = repack {
            let movement = repack.movement(&problem.batch_dims);
            let movement = transpose::cache::plan(context, movement)?;
            // SAFETY: the source is the operand, the destination its part of the workspace; what is queued on this stream
            // later finds it written.
            unsafe { transpose::launch::launch_before(&movement, src, dst, stream, true) }?;
        }
    }
    let function = context.function(kernel.file, kernel.name, kernel.dynamic_shared)?;
    // Kernels that read A and B through TMA take their tensor maps beside the arguments.
    let mut maps = [sys::CUtensorMap { opaque: [0; 16] }; MAX_TENSOR_MAPS];
    let described = plan.tensor_maps(&here);
    for (map, described) in maps
        .iter_mut()
        .zip(described.iter().flatten())
        .take(kernel.tensor_maps())
    {
        *map = described.encode()?;
    }
    let mut args: GemmArgs = plan.args(&here, alpha, beta, workspace.address);
    args.epoch = next_epoch();
    let mut parameters = [null_mut(); 1 + MAX_TENSOR_MAPS];
    parameters[0] = std::ptr::from_mut(&mut args).cast();
    for (parameter, map) in parameters[1..].iter_mut().zip(&mut maps).take(kernel.tensor_maps()) {
        *parameter = std::ptr::from_mut(map).cast();
    }
    // Kernels that use TMA wait by themselves for the kernels before them, so they may get ready meanwhile.
    let early = kernel.supports_pdl() && early_starts(context.info());
    let mut attributes = [clusters_of(plan.cluster()), early_start()];
    let first = usize::from(plan.cluster() == 1);
    let config = sys::CUlaunchConfig {
        gridDimX: plan.grid[0],
        gridDimY: plan.grid[1],
        gridDimZ: plan.grid[2],
        blockDimX: kernel.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: kernel.dynamic_shared,
        hStream: stream,
        attrs: attributes[first..].as_mut_ptr(),
        numAttrs: u32::from(plan.cluster() > 1) + u32::from(early),
    };
    // SAFETY: a kernel of the table takes one `GemmArgs` and as many tensor maps as its row says, all by value,
    // which the driver copies before it returns. What the kernel does with the addresses in them is what the caller
    // vouched for.
    unsafe { sys::cuLaunchKernelEx(&config, function.handle(), parameters.as_mut_ptr(), null_mut()).result() }
        .map_err(|e| Error::driver("launching a product", e))
}

/// A multiple of 4 that no launch had before. Blocks raise flags to it in memory whose old contents may be anything, also
/// what a launch of another process left there: numbers start anywhere.
fn next_epoch() -> u64 {
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU64::new(RandomState::new().hash_one(std::process::id())));
    next.fetch_add(1, Ordering::Relaxed) << 2
}
