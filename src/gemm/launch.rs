//! The one unsafe step: a plan, addresses and a stream become a running kernel.

use super::args::GemmArgs;
use super::plan::{Addresses, Plan};
use crate::device::CurrentContext;
use crate::error::{Error, Result};
use cudarc::driver::{result, sys};
use std::hash::{BuildHasher, RandomState};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// Stream-ordered scratch memory for the length of one launch.
struct Workspace {
    address: sys::CUdeviceptr,
    stream: sys::CUstream,
}

impl Workspace {
    fn allocate(bytes: usize, stream: sys::CUstream) -> Result<Self> {
        if bytes == 0 {
            return Ok(Workspace { address: 0, stream });
        }
        // SAFETY: the stream is alive for the length of this call (the caller of `launch` vouches for it).
        let address = unsafe { result::malloc_async(stream, bytes) }
            .map_err(|e| Error::driver("allocating the workspace of a product", e))?;
        Ok(Workspace { address, stream })
    }

    fn free(self) -> Result<()> {
        if self.address == 0 {
            return Ok(());
        }
        // SAFETY: the address came from `malloc_async` on this stream, and what uses it was queued there before this.
        unsafe { result::free_async(self.address, self.stream) }
            .map_err(|e| Error::driver("freeing the workspace of a product", e))
    }
}

/// Queues `plan` on `stream` and returns at once.
///
/// Nothing is synchronised and memory is only allocated in stream order, so a launch can be captured into a CUDA graph.
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
    let kernel = plan.kernel;
    let function = CurrentContext::get()?.function(kernel.file, kernel.name, kernel.dynamic_shared)?;
    // Kernels that read A and B through the copy engine take their tensor maps beside the arguments.
    let mut maps = match plan.tensor_maps(at) {
        Some([a, b]) => Some([a.encode()?, b.encode()?]),
        None => None,
    };
    let workspace = Workspace::allocate(plan.workspace_bytes, stream)?;
    let mut args: GemmArgs = plan.args(at, alpha, beta, workspace.address);
    args.epoch = next_epoch();
    let mut parameters = [std::ptr::from_mut(&mut args).cast(), null_mut(), null_mut()];
    if let Some([a, b]) = &mut maps {
        parameters[1] = std::ptr::from_mut(a).cast();
        parameters[2] = std::ptr::from_mut(b).cast();
    }
    let mut cluster = cluster_attribute(plan.cluster);
    let config = sys::CUlaunchConfig {
        gridDimX: plan.grid[0],
        gridDimY: plan.grid[1],
        gridDimZ: plan.grid[2],
        blockDimX: kernel.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: kernel.dynamic_shared,
        hStream: stream,
        attrs: &mut cluster,
        numAttrs: u32::from(plan.cluster > 1),
    };
    // SAFETY: a kernel of the table takes one `GemmArgs` and, if its row has copy boxes, two tensor maps, all by value,
    // which the driver copies before it returns. What the kernel does with the addresses in them is what the caller
    // vouched for.
    let launched =
        unsafe { sys::cuLaunchKernelEx(&config, function.handle(), parameters.as_mut_ptr(), null_mut()).result() }
            .map_err(|e| Error::driver("launching a product", e));
    // The workspace goes back even where the launch failed; the launch's error is the one to report.
    launched.and(workspace.free())
}

/// A multiple of 4 that no launch had before. Blocks raise flags to it in memory whose old contents may be anything, also
/// what a launch of another process left there: numbers start anywhere.
fn next_epoch() -> u64 {
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU64::new(RandomState::new().hash_one(std::process::id())));
    next.fetch_add(1, Ordering::Relaxed) << 2
}

/// That so many blocks, neighbours along x, are a cluster.
fn cluster_attribute(blocks: u32) -> sys::CUlaunchAttribute {
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: blocks, y: 1, z: 1 };
    sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        pad: [0; 4],
        value,
    }
}
