//! The one unsafe step: a plan, addresses and a stream become a running kernel.

use super::args::GemmArgs;
use super::plan::{Addresses, Plan};
use crate::device::CurrentContext;
use crate::error::{Error, Result};
use cudarc::driver::{result, sys};

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
    let workspace = Workspace::allocate(plan.workspace_bytes, stream)?;
    let mut args: GemmArgs = plan.args(at, alpha, beta, workspace.address);
    let mut parameters = [std::ptr::from_mut(&mut args).cast()];
    // SAFETY: every kernel of the table takes one `GemmArgs` by value, which the driver copies before it returns. What
    // the kernel does with the addresses in it is what the caller vouched for.
    let launched = unsafe {
        result::launch_kernel(
            function.handle(),
            (plan.grid[0], plan.grid[1], plan.grid[2]),
            (kernel.threads, 1, 1),
            kernel.dynamic_shared,
            stream,
            &mut parameters,
        )
    }
    .map_err(|e| Error::driver("launching a product", e));
    // The workspace goes back even where the launch failed; the launch's error is the one to report.
    launched.and(workspace.free())
}
