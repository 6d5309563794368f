//! Scratch memory of launches: where it comes from and who keeps it.
//!
//! Allocating and freeing in stream order takes the device 1.4 to 1.8 µs a launch on an H100. So the first few streams of a
//! context keep what their kernels ask for. A launch that is captured into a CUDA graph gets memory that the graph owns: it
//! goes back when the graph and all that was made of it are gone, it is no node of the graph, so the graph can become part of
//! another one, and it was cleared before the graph runs. What is larger than a kernel's own needs is allocated for one launch.

use crate::device::{capture_of, CurrentContext, Lane, Scratch};
use crate::error::{Error, Result};
use crate::gemm::schedule::work_queue::HEAD_BYTES;
use cudarc::driver::{result, sys};
use std::sync::{Arc, Mutex};

/// So much a stream may keep: what stream-K takes on 132 multiprocessors with the larger tile.
const MAX_KEPT_BYTES: usize = 34 << 20;

/// Where a launch is queued, as far as its workspace is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    /// A stream that runs, by the driver's number for it.
    Stream(u64),
    /// A stream that is captured into this graph, by the number of the capture.
    Capture {
        lane: Lane,
        capture: u64,
        graph: sys::CUgraph,
    },
}

/// The scratch memory that one launch finds, and what keeps it.
pub(super) struct Keeper {
    queue: Queue,
    /// What the stream or the graph keeps from launch to launch; `None`: the memory is allocated for this launch.
    kept: Option<Arc<Mutex<Scratch>>>,
}

/// Scratch memory for the length of one launch.
pub(super) struct Workspace {
    /// Where the workspace begins; 0 where none was asked for. [`HEAD_BYTES`] bytes lie before it.
    pub address: sys::CUdeviceptr,
    /// Whether it was allocated for this launch, and is freed in the stream's order.
    for_once: bool,
}

impl Workspace {
    /// That of a launch that needs none.
    pub const NONE: Workspace = Workspace {
        address: 0,
        for_once: false,
    };

    fn in_memory(memory: sys::CUdeviceptr, for_once: bool) -> Self {
        Workspace {
            address: memory + HEAD_BYTES as u64,
            for_once,
        }
    }

    /// Whether there is one that was allocated for this launch.
    pub fn is_for_once(&self) -> bool {
        self.for_once
    }

    /// Gives back what was allocated for one launch.
    pub fn free(self, stream: sys::CUstream) -> Result<()> {
        match self.for_once {
            true => free(self.address - HEAD_BYTES as u64, stream),
            false => Ok(()),
        }
    }
}

impl Keeper {
    /// Who keeps a workspace of `bytes` bytes for launches on `stream`.
    pub fn of(stream: sys::CUstream, bytes: usize, context: &CurrentContext) -> Result<Self> {
        let queue = Queue::of(stream)?;
        let kept = match queue {
            Queue::Stream(id) if bytes <= MAX_KEPT_BYTES => context.scratch().of_stream(id, stream),
            Queue::Stream(_) => None,
            Queue::Capture { lane, capture, .. } => Some(context.scratch().of_capture(capture, lane)),
        };
        Ok(Keeper { queue, kept })
    }

    /// What is kept. Whoever takes the workspace holds the lock until the launch is queued: another thread's launch on this
    /// stream may free the memory for a larger one only after that.
    pub fn kept(&self) -> Option<&Mutex<Scratch>> {
        self.kept.as_deref()
    }

    /// A workspace of `bytes` bytes, in what is `kept` if that is large enough. `counts`: the kernel needs the head to be 0.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], if there is not so much memory, for one.
    pub fn workspace(
        &self,
        bytes: usize,
        counts: bool,
        kept: Option<&mut Scratch>,
        context: &CurrentContext,
        stream: sys::CUstream,
    ) -> Result<Workspace> {
        let bytes = HEAD_BYTES + bytes;
        let Some(kept) = kept else {
            let memory = allocate(bytes, context, stream)?;
            if counts {
                clear(memory, HEAD_BYTES, stream)?;
            }
            return Ok(Workspace::in_memory(memory, true));
        };
        if kept.bytes < bytes {
            let address = match self.queue {
                Queue::Stream(_) => {
                    let address = allocate(bytes, context, stream)?;
                    // All of it, not the head alone: kernels may look at flags here that nobody has raised yet. What those
                    // say does not matter, but that memory was never written would be reported by the tools that look for it.
                    clear(address, bytes, stream)?;
                    address
                }
                Queue::Capture { graph, .. } => context.scratch().of_graph(graph, bytes)?,
            };
            let small = std::mem::replace(kept, Scratch { address, bytes });
            // A graph keeps what it owns: launches that are captured already use it.
            if small.bytes > 0 && matches!(self.queue, Queue::Stream(_)) {
                free(small.address, stream)?;
            }
        }
        Ok(Workspace::in_memory(kept.address, false))
    }
}

impl Queue {
    fn of(stream: sys::CUstream) -> Result<Self> {
        let say = |e| Error::driver("asking a stream who it is", e);
        if let Some(capturing) = capture_of(stream).map_err(say)? {
            return Ok(Queue::Capture {
                lane: lane_of(stream),
                capture: capturing.id,
                graph: capturing.graph,
            });
        }
        let mut id = 0;
        // SAFETY: the stream is alive for the length of this call (the caller of `launch` vouches for it), and `id` outlives it.
        unsafe { sys::cuStreamGetId(stream, &mut id) }.result().map_err(say)?;
        Ok(Queue::Stream(id))
    }
}

fn lane_of(stream: sys::CUstream) -> Lane {
    /// `CU_STREAM_PER_THREAD`
    const PER_THREAD: usize = 2;
    let handle = stream as usize;
    (handle, (handle == PER_THREAD).then(|| std::thread::current().id()))
}

/// Gives back what a stream keeps, in the stream's order: before it is destroyed.
pub(in crate::gemm) fn forget(stream: sys::CUstream, context: &CurrentContext) -> Result<()> {
    let Queue::Stream(id) = Queue::of(stream)? else {
        return Ok(());
    };
    match context.scratch().forget(id) {
        Some(kept) if kept.bytes > 0 => free(kept.address, stream),
        _ => Ok(()),
    }
}

fn allocate(bytes: usize, context: &CurrentContext, stream: sys::CUstream) -> Result<sys::CUdeviceptr> {
    // SAFETY: the stream is alive for the length of this call (the caller of `launch` vouches for it), and the pool for
    // that of the context.
    unsafe {
        match context.scratch().pool() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::{CudaContext, CudaStream};

    /// The first GPU's context, or `None` after saying that `test` was skipped, and why.
    fn gpu(test: &str) -> Option<(Arc<CudaContext>, CurrentContext)> {
        match CudaContext::new(0) {
            Ok(cuda) => {
                cuda.bind_to_thread()
                    .expect("a context that was just made can be bound");
                Some((cuda, CurrentContext::get().expect("a context is current")))
            }
            Err(error) => {
                eprintln!("{test}: skipped, no usable GPU: {error}");
                None
            }
        }
    }

    /// Takes a workspace as a launch does, and says where it lies, and whether the stream keeps it.
    fn take(stream: &CudaStream, bytes: usize, context: &CurrentContext) -> (sys::CUdeviceptr, bool) {
        let keeper = Keeper::of(stream.cu_stream(), bytes, context).unwrap();
        let mut kept = keeper.kept().map(|kept| kept.lock().unwrap());
        let workspace = keeper.workspace(bytes, true, kept.as_deref_mut(), context, stream.cu_stream());
        let workspace = workspace.unwrap();
        let is_kept = !workspace.for_once;
        let address = workspace.address;
        workspace.free(stream.cu_stream()).unwrap();
        (address, is_kept)
    }

    /// One after the other, for streams of one test would take places that the other counts on.
    #[test]
    fn streams_keep_scratch_memory_as_long_as_they_use_it() {
        let Some((cuda, context)) = gpu("streams_keep_scratch_memory_as_long_as_they_use_it") else {
            return;
        };
        candles_default_stream_keeps_scratch_memory_thread_by_thread(&cuda, &context);
        places_of_streams_that_are_gone_are_given_to_others(&cuda, &context);
    }

    /// A repacked vocabulary takes gigabytes.
    #[test]
    fn a_large_workspace_is_kept_while_the_host_waits() {
        let Some((cuda, context)) = gpu("a_large_workspace_is_kept_while_the_host_waits") else {
            return;
        };
        let stream = cuda.default_stream();
        let bytes = context.info().scratch_bytes() as usize / 5 * 4;
        let address = allocate(bytes, &context, stream.cu_stream()).unwrap();
        free(address, stream.cu_stream()).unwrap();
        stream.synchronize().unwrap();
        let Some(pool) = context.scratch().pool() else {
            eprintln!("the driver makes no pools: nothing is kept");
            return;
        };
        let mut reserved = 0u64;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        // SAFETY: the pool is the context's, and the attribute is a 64-bit number.
        unsafe { result::mem_pool::get_attribute(pool, attribute, std::ptr::from_mut(&mut reserved).cast()) }.unwrap();
        assert!(reserved >= bytes as u64, "{reserved} bytes of {bytes} are kept");
    }

    fn candles_default_stream_keeps_scratch_memory_thread_by_thread(cuda: &Arc<CudaContext>, context: &CurrentContext) {
        let stream = cuda.per_thread_stream();
        let first = take(&stream, 1 << 20, context);
        assert!(first.1, "the stream keeps what its launches ask for");
        assert_eq!(take(&stream, 1 << 10, context), first);
        // The same handle stands for another stream in another thread.
        let other = std::thread::scope(|scope| {
            let elsewhere = scope.spawn(|| {
                cuda.bind_to_thread().unwrap();
                take(&stream, 1 << 20, &CurrentContext::get().unwrap())
            });
            elsewhere.join().unwrap()
        });
        assert!(other.1 && other.0 != first.0, "{other:?} and {first:?}");
        stream.synchronize().unwrap();
    }

    fn places_of_streams_that_are_gone_are_given_to_others(cuda: &Arc<CudaContext>, context: &CurrentContext) {
        // More than keep memory at a time. Those that come first are gone when the last one comes.
        for _ in 0..40 {
            let stream = cuda.new_stream().unwrap();
            take(&stream, 1 << 12, context);
            stream.synchronize().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(2100));
        let stream = cuda.new_stream().unwrap();
        let first = take(&stream, 1 << 12, context);
        assert!(first.1, "a new stream keeps memory where others have been idle");
        assert_eq!(take(&stream, 1 << 12, context), first);
        stream.synchronize().unwrap();
    }
}
