//! The one unsafe step: a plan, addresses and a stream become a running kernel.

use super::args::{Addresses, GemmArgs};
use super::journal::{self, Launched};
use super::workspace::{Keeper, Workspace};
use crate::device::{capture_of, clusters_of, early_start, early_starts, CurrentContext, Function};
use crate::error::{Error, Result};
use crate::gemm::planner::cache;
use crate::gemm::planner::plan::Plan;
use crate::gemm::schedule::cut::Cut;
use crate::gemm::schedule::parallel::{self, Reduction};
use crate::transpose;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::hash::{BuildHasher, RandomState};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError};

/// Of A, B and D.
const MAX_TENSOR_MAPS: usize = 3;

/// Queues `plan` on `stream` and returns at once.
///
/// Memory is only allocated in stream order, so a launch can be captured into a CUDA graph, the first one of a process as well. Nothing is
/// waited for, but by the ninth stream of a context that keeps a workspace: where another has used its own for no time of late, all work of
/// the context is waited for once, so that this one gets its place. A program with so many streams does not capture meanwhile on its own;
/// what [`graph`](crate::graph) records is safe from that. A stream keeps the few megabytes that some kernels need for their blocks' partial sums. A
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
            return match cache::without_workspace(&context, plan) {
                // SAFETY: as the caller vouches: it is the same product.
                Ok(Some(other)) => unsafe { launch(&other, at, alpha, beta, stream) },
                // The first error says more than that there is no other plan.
                Ok(None) | Err(_) => Err(error),
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
    let here = plan.addresses(at, workspace.address);
    for (repack, src, dst) in [
        (&plan.repacks[0], at.operands.a, here.operands.a),
        (&plan.repacks[1], at.operands.b, here.operands.b),
    ] {
        if let Some(repack) = repack {
            let movement = repack.movement();
            let movement = transpose::cache::plan(context, movement)?;
            // SAFETY: the source is the operand, the destination its part of the workspace; what is queued on this stream
            // later finds it written.
            unsafe { transpose::launch::launch_before(&movement, src, dst, stream, true) }?;
        }
    }
    let kernel = plan.kernel;
    let is_one_kernel = plan.is_one_kernel() && !workspace.is_for_once();
    let noted = is_one_kernel.then(journal::next).flatten();
    let note = |number: usize, left_out: bool| {
        let last = capture_of(stream).ok().flatten().and_then(|capturing| capturing.last);
        let launched = last.map(|node| Launched {
            number,
            left_out,
            node,
            plan: *plan,
            at: *at,
            alpha,
            beta,
            workspace: workspace.address,
        });
        if let Some(launched) = launched {
            journal::note(launched);
        }
        launched.is_some()
    };
    if let Some((number, true)) = noted {
        if note(number, true) {
            return Ok(());
        }
    }
    let mut taken = Taken::new(plan, &here, alpha, beta, workspace.address, context)?;
    let early = starts_early(plan, context);
    let mut attributes = [clusters_of(plan.cluster()), early_start()];
    let first = usize::from(plan.cluster() == 1);
    let config = sys::CUlaunchConfig {
        gridDimX: plan.grid[0],
        gridDimY: plan.grid[1],
        gridDimZ: plan.grid[2],
        blockDimX: kernel.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: taken.shared,
        hStream: stream,
        attrs: attributes[first..].as_mut_ptr(),
        numAttrs: u32::from(plan.cluster() > 1) + u32::from(early),
    };
    let function = taken.function.handle();
    // SAFETY: these are the kernel's parameters, all by value, which the driver copies before it returns. What the kernel does
    // with the addresses in them is what the caller vouched for.
    unsafe { sys::cuLaunchKernelEx(&config, function, taken.parameters().as_mut_ptr(), null_mut()).result() }
        .map_err(|e| Error::driver("launching a product", e))?;
    if let Some((number, _)) = noted {
        note(number, false);
    }
    match plan.reduction() {
        Some(reduction) => {
            let args = plan.reduction_args(&here, alpha, beta, workspace.address);
            // SAFETY: as the caller vouches; the workspace holds the sums of the kernel that was just queued.
            unsafe { add_slices(&reduction, args, context, stream) }
        }
        None => Ok(()),
    }
}

/// Queues the kernel that adds up slices of k behind the one that computes them.
///
/// # Safety
///
/// As [`launch`]; the workspace in `args` holds the sums when the stream comes to this.
unsafe fn add_slices(
    reduction: &Reduction,
    mut args: GemmArgs,
    context: &CurrentContext,
    stream: sys::CUstream,
) -> Result<()> {
    let function = context.function(parallel::FILE, reduction.name, 0)?;
    let (info, early) = (context.info(), early_starts(context.info()));
    let shared = match early {
        true => reduction.shared_bytes(function.fixed_shared(), info.sm_count, info.shared_per_block),
        false => 0,
    };
    let mut attributes = [early_start()];
    let config = sys::CUlaunchConfig {
        gridDimX: reduction.blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: reduction.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared,
        hStream: stream,
        attrs: attributes.as_mut_ptr(),
        numAttrs: u32::from(early),
    };
    let mut parameters = [std::ptr::from_mut(&mut args).cast::<c_void>()];
    // SAFETY: this is the kernel's parameter, by value, which the driver copies before it returns. The rest the caller vouches for.
    unsafe { sys::cuLaunchKernelEx(&config, function.handle(), parameters.as_mut_ptr(), null_mut()).result() }
        .map_err(|e| Error::driver("adding up slices of a product", e))
}

/// Makes a kernel of a graph, one that has not been made ready to run, the launch of `plan`, which is one kernel.
///
/// # Safety
///
/// - A CUDA context is current on this thread, and `node` is a kernel of it in a graph that is alive.
/// - Where and when the node runs, [`launch`]'s conditions hold, and `workspace` is the begin of as much memory as the plan asks
///   for, which a launch of this crate has had as its workspace and no kernel uses that may run at the same time.
///
/// # Errors
///
/// As [`launch`]. The node may have changed then.
pub(crate) unsafe fn launch_as_node(
    node: sys::CUgraphNode,
    plan: &Plan,
    at: &Addresses,
    (alpha, beta): (f32, f32),
    workspace: sys::CUdeviceptr,
    context: &CurrentContext,
) -> Result<()> {
    let workspace = if plan.workspace_bytes > 0 { workspace } else { 0 };
    let mut taken = Taken::new(plan, at, alpha, beta, workspace, context)?;
    let mut parameters = taken.parameters();
    let described = sys::CUDA_KERNEL_NODE_PARAMS {
        func: taken.function.handle(),
        gridDimX: plan.grid[0],
        gridDimY: plan.grid[1],
        gridDimZ: plan.grid[2],
        blockDimX: plan.kernel.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: taken.shared,
        kernelParams: parameters.as_mut_ptr(),
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    };
    let clusters = clusters_of(plan.cluster());
    // SAFETY: as for a launch: these are the kernel's parameters, which the driver copies. The rest the caller vouches for.
    unsafe {
        let changed = sys::cuGraphKernelNodeSetParams_v2(node, &described).result();
        changed.and_then(|()| match plan.cluster() {
            1 => Ok(()),
            _ => sys::cuGraphKernelNodeSetAttribute(node, clusters.id, &clusters.value).result(),
        })
    }
    .map_err(|e| Error::driver("making a product part of a graph", e))
}

/// What a kernel takes: a row of the table says how many tensor maps beside the one [`GemmArgs`].
struct Taken {
    function: Function,
    /// Bytes of dynamic shared memory.
    shared: u32,
    args: GemmArgs,
    maps: [sys::CUtensorMap; MAX_TENSOR_MAPS],
    count: usize,
}

impl Taken {
    fn new(
        plan: &Plan,
        at: &Addresses,
        alpha: f32,
        beta: f32,
        workspace: sys::CUdeviceptr,
        context: &CurrentContext,
    ) -> Result<Self> {
        let kernel = plan.kernel;
        let function = context.function(kernel.file, kernel.name, kernel.dynamic_shared)?;
        let mut taken = Taken {
            function,
            shared: shared_bytes(plan, function, context),
            args: plan.args(at, alpha, beta, workspace),
            maps: [sys::CUtensorMap { opaque: [0; 16] }; MAX_TENSOR_MAPS],
            count: kernel.tensor_maps(),
        };
        taken.args.epoch = next_epoch();
        let described = plan.tensor_maps(at);
        for (map, described) in taken.maps.iter_mut().zip(described.iter().flatten()).take(taken.count) {
            *map = described.encoded(context.id())?;
        }
        Ok(taken)
    }

    /// Where they are, as long as this is not moved.
    fn parameters(&mut self) -> [*mut c_void; 1 + MAX_TENSOR_MAPS] {
        let mut parameters = [null_mut(); 1 + MAX_TENSOR_MAPS];
        parameters[0] = std::ptr::from_mut(&mut self.args).cast();
        for (parameter, map) in parameters[1..].iter_mut().zip(&mut self.maps).take(self.count) {
            *parameter = std::ptr::from_mut(map).cast();
        }
        parameters
    }
}

/// Whether a plan's kernel gets ready while those before it still run, and waits for them by itself.
fn starts_early(plan: &Plan, context: &CurrentContext) -> bool {
    plan.kernel.supports_pdl() && early_starts(context.info())
}

/// The dynamic shared memory that a plan is launched with: what its kernel needs, or for clusters and behind a copy more, which keeps its
/// blocks apart ([`spread`](super::spread)). Where the driver does not tell what has room, it is what the kernel needs.
fn shared_bytes(plan: &Plan, function: Function, context: &CurrentContext) -> u32 {
    let (kernel, info) = (plan.kernel, context.info());
    let behind_copy = plan.is_repacked() && starts_early(plan, context);
    let kept_apart = behind_copy || matches!(plan.cut, Cut::Cluster(_));
    if !kept_apart {
        return kernel.dynamic_shared;
    }
    let at_once = |dynamic| context.clusters(kernel.file, kernel.name, dynamic, kernel.threads, plan.cluster());
    plan.shared_bytes(function.fixed_shared(), info.sm_count, info.shared_per_block, at_once)
        .unwrap_or(kernel.dynamic_shared)
}

/// A multiple of 4 that no launch had before. Blocks raise flags to it in memory whose old contents may be anything, also
/// what a launch of another process left there: numbers start anywhere.
fn next_epoch() -> u64 {
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU64::new(RandomState::new().hash_one(std::process::id())));
    next.fetch_add(1, Ordering::Relaxed) << 2
}
