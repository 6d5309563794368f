//! The one unsafe step: a plan, addresses and a stream become a running kernel.

use super::args::GemmArgs;
use super::cache;
use super::dealt::COUNTER_BYTES;
use super::kernels::SplitK;
use super::plan::{Addresses, Plan};
use crate::device::{clusters_of, early_start, early_starts, CurrentContext, KeptScratch};
use crate::error::{Error, Result};
use crate::transpose;
use cudarc::driver::{result, sys};
use std::hash::{BuildHasher, RandomState};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError};

/// Scratch memory for the length of one launch.
struct Workspace {
    /// Where the workspace begins; 0 where none was asked for. Before it are COUNTER_BYTES bytes of counters.
    address: sys::CUdeviceptr,
    /// Whether it was allocated for this launch, and is freed in the stream's order.
    for_once: bool,
}

/// So much a stream may keep: what stream-K takes on 132 multiprocessors with the larger tile.
const MAX_KEPT_BYTES: usize = 34 << 20;

impl Workspace {
    /// Allocating and freeing in stream order takes the device 1.4 to 1.8 µs a launch on an H100. So the first few streams
    /// keep what their kernels ask for, in `kept`. A capture allocates, because its graph may run beside the stream; so does
    /// what is larger than a kernel's own needs.
    ///
    /// `counted`: the kernel wants the counters before its workspace to be 0, as it leaves them.
    fn allocate(
        bytes: usize,
        counted: bool,
        kept: Option<&mut KeptScratch>,
        context: &CurrentContext,
        stream: sys::CUstream,
    ) -> Result<Self> {
        if bytes == 0 {
            return Ok(Workspace {
                address: 0,
                for_once: false,
            });
        }
        let bytes = COUNTER_BYTES + bytes;
        let Some(kept) = kept else {
            let address = allocate(bytes, context, stream)?;
            if counted {
                clear(address, COUNTER_BYTES, stream)?;
            }
            return Ok(Workspace {
                address: address + COUNTER_BYTES as u64,
                for_once: true,
            });
        };
        if kept.bytes < bytes {
            let address = allocate(bytes, context, stream)?;
            // All of it, not the counters alone: kernels may look at flags here that nobody has raised yet. What those say does
            // not matter, but that memory was never written would be reported by the tools that look for it.
            clear(address, bytes, stream)?;
            let small = std::mem::replace(kept, KeptScratch { address, bytes });
            if small.bytes > 0 {
                free(small.address, stream)?;
            }
        }
        Ok(Workspace {
            address: kept.address + COUNTER_BYTES as u64,
            for_once: false,
        })
    }

    fn free(self, stream: sys::CUstream) -> Result<()> {
        match self.for_once {
            true => free(self.address - COUNTER_BYTES as u64, stream),
            false => Ok(()),
        }
    }
}

/// Gives back what a stream keeps, in the stream's order: before it is destroyed.
pub(super) fn forget(stream: sys::CUstream, context: &CurrentContext) -> Result<()> {
    let Some(id) = id_outside_captures(stream) else {
        return Ok(());
    };
    match context.forget_scratch(id) {
        Some(kept) if kept.bytes > 0 => free(kept.address, stream),
        _ => Ok(()),
    }
}

/// The driver's number for a stream, unless it is being captured, or is the handle that stands for another stream in
/// every thread.
fn id_outside_captures(stream: sys::CUstream) -> Option<u64> {
    /// `CU_STREAM_PER_THREAD`
    const PER_THREAD: usize = 2;
    if stream as usize == PER_THREAD {
        return None;
    }
    let mut id = 0;
    // SAFETY: the stream is alive for the length of this call (the caller of `launch` vouches for it), and `id` outlives it.
    unsafe {
        let status = result::stream::is_capturing(stream).ok()?;
        if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return None;
        }
        sys::cuStreamGetId(stream, &mut id).result().ok()?;
    }
    Some(id)
}

fn allocate(bytes: usize, context: &CurrentContext, stream: sys::CUstream) -> Result<sys::CUdeviceptr> {
    // SAFETY: the stream is alive for the length of this call (the caller of `launch` vouches for it), and the pool for
    // that of the context.
    unsafe {
        match context.scratch_pool() {
            Some(pool) => result::mem_pool::alloc_async(pool, bytes, stream),
            None => result::malloc_async(stream, bytes),
        }
    }
    .map_err(|e| Error::driver("allocating the workspace of a product", e))
}

/// Clears memory that was allocated on this stream just now, or frees it.
fn clear(address: sys::CUdeviceptr, bytes: usize, stream: sys::CUstream) -> Result<()> {
    // SAFETY: the memory has at least so many bytes, and nobody else knows of it.
    unsafe { result::memset_d8_async(address, 0, bytes, stream) }.map_err(|error| {
        // The first error is the one to report.
        let _ = free(address, stream);
        Error::driver("clearing the workspace of a product", error)
    })
}

fn free(address: sys::CUdeviceptr, stream: sys::CUstream) -> Result<()> {
    // SAFETY: the address came from `allocate` on this stream, and what uses it was queued there before this.
    unsafe { result::free_async(address, stream) }.map_err(|e| Error::driver("freeing the workspace of a product", e))
}

/// Queues `plan` on `stream` and returns at once.
///
/// Nothing is synchronised and memory is only allocated in stream order, so a launch can be captured into a CUDA graph. A
/// stream keeps the few megabytes that some kernels need for their blocks' partial sums.
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
    let slot = match plan.workspace_bytes {
        1..=MAX_KEPT_BYTES => id_outside_captures(stream).and_then(|id| context.kept_scratch(id)),
        _ => None,
    };
    // Held until the launch is queued: another thread's launch on this stream may free the memory for a larger one only
    // after that.
    let mut kept = slot
        .as_ref()
        .map(|slot| slot.lock().unwrap_or_else(PoisonError::into_inner));
    let counted = matches!(plan.kernel.split_k, SplitK::Dealt(_));
    let workspace = match Workspace::allocate(plan.workspace_bytes, counted, kept.as_deref_mut(), &context, stream) {
        Ok(workspace) => workspace,
        Err(error) => {
            // Without room for copies of its operands a product runs on them as they lie.
            drop(kept);
            let other = match plan.repacks {
                [None, None] => None,
                _ => cache::best(&plan.as_it_lies(), &context, |other| !other.is_repacked())?,
            };
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
    for (repack, src, dst) in [(&plan.repacks[0], at.a, here.a), (&plan.repacks[1], at.b, here.b)] {
        if let Some(repack) = repack {
            let movement = repack.movement(&problem.batch_dims, problem.dtype);
            let movement = transpose::cache::plan(context, movement)?;
            // SAFETY: the source is the operand, the destination its part of the workspace; what is queued on this stream
            // later finds it written.
            unsafe { transpose::launch::launch_before(&movement, src, dst, stream, true) }?;
        }
    }
    let function = context.function(kernel.file, kernel.name, kernel.dynamic_shared)?;
    // Kernels that read A and B through the copy engine take their tensor maps beside the arguments.
    let mut maps = match plan.tensor_maps(&here) {
        Some([a, b]) => Some([a.encode()?, b.encode()?]),
        None => None,
    };
    let mut args: GemmArgs = plan.args(&here, alpha, beta, workspace.address);
    args.epoch = next_epoch();
    let mut parameters = [std::ptr::from_mut(&mut args).cast(), null_mut(), null_mut()];
    if let Some([a, b]) = &mut maps {
        parameters[1] = std::ptr::from_mut(a).cast();
        parameters[2] = std::ptr::from_mut(b).cast();
    }
    // Kernels that use the copy engine wait by themselves for the kernels before them, so they may get ready meanwhile.
    let early = kernel.starts_early() && early_starts(context.info());
    let mut attributes = [clusters_of(plan.cluster), early_start()];
    let first = usize::from(plan.cluster == 1);
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
        numAttrs: u32::from(plan.cluster > 1) + u32::from(early),
    };
    // SAFETY: a kernel of the table takes one `GemmArgs` and, if its row has copy boxes, two tensor maps, all by value,
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
