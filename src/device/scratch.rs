//! Scratch memory: what launches take for repacked operands, partial sums and counters. A stream keeps what it has had, and a graph owns
//! what was captured into it.

use super::capture::{Lane, RelaxedCapture, CAPTURES};
use crate::error::{Error, Result};
use cudarc::driver::{result, sys, DriverError};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::Instant;

/// Scratch memory that is kept from one launch to the next.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Where it lies, if there is any.
    pub address: sys::CUdeviceptr,
    /// How much there is.
    pub bytes: usize,
}

/// What a stream keeps.
struct Kept {
    stream: u64,
    scratch: Arc<Mutex<Scratch>>,
    /// When it was last asked for, in ms.
    used: AtomicU64,
}

/// What the launches share that were captured on one stream for one graph: they run one after the other there.
struct Captured {
    capture: u64,
    lane: Lane,
    scratch: Arc<Mutex<Scratch>>,
}

/// So many streams of a context may keep scratch memory.
const MAX_KEEPING_STREAMS: usize = 8;

/// A stream that asked for nothing as long may be gone: another one may have its place.
const IDLE_MS: u64 = 1000;

/// So many captures are remembered: of more that go on at once, some allocate more than they need.
const MAX_CAPTURES: usize = 16;

/// A pool of device memory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ScratchPool(sys::CUmemoryPool);

// SAFETY: the driver allows the use of a pool from every thread.
unsafe impl Send for ScratchPool {}

// SAFETY: as above; the handle is never written through.
unsafe impl Sync for ScratchPool {}

/// The scratch memory of a context, which is current on the thread where its methods are called.
pub(crate) struct ScratchMemory {
    /// Bytes that its pool keeps at most.
    most_kept: u64,
    pool: OnceLock<Option<ScratchPool>>,
    kept: RwLock<Vec<Kept>>,
    captured: Mutex<Vec<Captured>>,
    /// What graphs owned that are gone.
    retired: Mutex<Vec<sys::CUdeviceptr>>,
    has_retired: AtomicBool,
    /// Milliseconds count from here.
    start: Instant,
}

impl ScratchMemory {
    /// None yet; its pool will keep at most so many bytes.
    pub(super) fn new(most_kept: u64) -> Self {
        ScratchMemory {
            most_kept,
            pool: OnceLock::new(),
            kept: RwLock::default(),
            captured: Mutex::default(),
            retired: Mutex::default(),
            has_retired: AtomicBool::new(false),
            start: Instant::now(),
        }
    }

    /// Where scratch memory comes from: a pool that keeps so many bytes as it was told when the host waits for the device, where the
    /// default pool would give back everything and have to map it anew for the next launch. What it keeps goes to whoever allocates when
    /// there is no other memory left: the driver sees to that. `None` if the driver makes no such pool (old ones, and some virtual
    /// devices): the default one serves as well, only slower.
    pub(crate) fn pool(&self) -> Option<sys::CUmemoryPool> {
        if let Some(pool) = self.pool.get() {
            return pool.map(|pool| pool.0);
        }
        let _relaxed = RelaxedCapture::begin().ok()?;
        match new_pool(self.most_kept) {
            Ok(pool) => {
                let kept = self.pool.get_or_init(|| Some(ScratchPool(pool)));
                if *kept != Some(ScratchPool(pool)) {
                    // Another thread was faster. SAFETY: nothing was allocated from this pool.
                    let _ = unsafe { result::mem_pool::destroy(pool) };
                }
                kept.map(|pool| pool.0)
            }
            Err(error) => {
                // What cannot be had now may be had later, unless there is no such thing.
                if error.0 == sys::CUresult::CUDA_ERROR_NOT_SUPPORTED {
                    self.pool.get_or_init(|| None);
                }
                None
            }
        }
    }

    /// What a stream keeps, by the driver's number for it, which no other stream of the process ever has; `None` if as
    /// many others keep some already and have used it of late.
    pub(crate) fn of_stream(&self, id: u64, stream: sys::CUstream) -> Option<Arc<Mutex<Scratch>>> {
        self.free_retired();
        let now = self.start.elapsed().as_millis() as u64;
        let of = |kept: &[Kept]| {
            let kept = kept.iter().find(|kept| kept.stream == id)?;
            kept.used.store(now, Ordering::Relaxed);
            Some(kept.scratch.clone())
        };
        if let Some(scratch) = of(&self.kept.read().unwrap_or_else(PoisonError::into_inner)) {
            return Some(scratch);
        }
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(scratch) = of(&kept) {
            return Some(scratch);
        }
        if kept.len() >= MAX_KEEPING_STREAMS {
            let used = |kept: &Kept| kept.used.load(Ordering::Relaxed);
            let (place, idle) = kept.iter().enumerate().min_by_key(|(_, kept)| used(kept))?;
            if used(idle) + IDLE_MS > now {
                return None;
            }
            // Whether the idle stream still uses its memory cannot be asked, for it may be gone. So all work is waited
            // for, once in a long while, and not while a graph is recorded.
            let _no_capture = match CAPTURES.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            };
            let mut scratch = idle.scratch.lock().unwrap_or_else(PoisonError::into_inner);
            if scratch.bytes > 0 {
                // SAFETY: this memory's context is current on this thread.
                unsafe { sys::cuCtxSynchronize() }.result().ok()?;
                // SAFETY: the memory was allocated in stream order, and what used it has ended.
                unsafe { result::free_async(scratch.address, stream) }.ok()?;
                *scratch = Scratch::default();
            }
            drop(scratch);
            kept.swap_remove(place);
        }
        let scratch = Arc::<Mutex<Scratch>>::default();
        kept.push(Kept {
            stream: id,
            scratch: scratch.clone(),
            used: AtomicU64::new(now),
        });
        Some(scratch)
    }

    /// Takes from a stream what it keeps: its next launch finds nothing.
    pub(crate) fn forget(&self, stream: u64) -> Option<Scratch> {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        let place = kept.iter().position(|kept| kept.stream == stream)?;
        let slot = kept.swap_remove(place);
        let mut scratch = slot.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        Some(std::mem::take(&mut scratch))
    }

    /// What launches share that are captured on this stream in this capture.
    pub(crate) fn of_capture(&self, capture: u64, lane: Lane) -> Arc<Mutex<Scratch>> {
        self.free_retired();
        let mut captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        let known = captured.iter().find(|c| (c.capture, c.lane) == (capture, lane));
        if let Some(known) = known {
            return known.scratch.clone();
        }
        if captured.len() >= MAX_CAPTURES {
            captured.remove(0);
        }
        let scratch = Arc::<Mutex<Scratch>>::default();
        captured.push(Captured {
            capture,
            lane,
            scratch: scratch.clone(),
        });
        scratch
    }

    /// Memory full of zeros that `graph`, which is being captured, owns.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], if there is not so much memory, for one.
    pub(crate) fn of_graph(self: &Arc<Self>, graph: sys::CUgraph, bytes: usize) -> Result<sys::CUdeviceptr> {
        let say = |e| Error::driver("allocating scratch memory for a CUDA graph", e);
        let _relaxed = RelaxedCapture::begin().map_err(say)?;
        let address = self.on_a_stream(|stream| {
            // SAFETY: the stream is alive; the memory has so many bytes, and nobody else knows of it.
            unsafe {
                let address = match self.pool() {
                    Some(pool) => result::mem_pool::alloc_async(pool, bytes, stream)?,
                    None => result::malloc_async(stream, bytes)?,
                };
                match result::memset_d8_async(address, 0, bytes, stream) {
                    Ok(()) => Ok(address),
                    Err(error) => result::free_async(address, stream).and(Err(error)),
                }
            }
        });
        let address = address.map_err(say)?;
        let memory = Box::into_raw(Box::new(GraphMemory {
            owner: self.clone(),
            address,
        }));
        let mut object = std::ptr::null_mut();
        // SAFETY: the destructor takes what the box held, once. The graph is alive, for it is being captured; the one
        // reference moves to it. Where that fails, the memory is taken back here.
        unsafe {
            let created = sys::cuUserObjectCreate(
                &mut object,
                memory.cast(),
                Some(GraphMemory::retire),
                1,
                sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32,
            );
            if let Err(error) = created.result() {
                GraphMemory::retire(memory.cast());
                return Err(say(error));
            }
            let moves = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
            if let Err(error) = sys::cuGraphRetainUserObject(graph, object, 1, moves).result() {
                let _ = sys::cuUserObjectRelease(object, 1);
                return Err(say(error));
            }
        }
        Ok(address)
    }

    /// Frees what graphs owned that are gone. (Their destructors must not call the driver.)
    fn free_retired(&self) {
        if !self.has_retired.load(Ordering::Relaxed) || !self.has_retired.swap(false, Ordering::Acquire) {
            return;
        }
        // An error here has no one to go to: what could not be freed is tried again by the next launch.
        let Ok(_relaxed) = RelaxedCapture::begin() else {
            return self.has_retired.store(true, Ordering::Release);
        };
        let mut retired = std::mem::take(&mut *self.retired.lock().unwrap_or_else(PoisonError::into_inner));
        let _ = self.on_a_stream(|stream| {
            // SAFETY: the graph that owned it is gone, and with it what used the memory.
            retired.retain(|&address| unsafe { result::free_async(address, stream) }.is_err());
            Ok(())
        });
        if !retired.is_empty() {
            self.retired
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .append(&mut retired);
            self.has_retired.store(true, Ordering::Release);
        }
    }

    /// Queues `work` on a stream of its own and waits for it, whatever is being captured elsewhere.
    fn on_a_stream<T>(
        &self,
        work: impl FnOnce(sys::CUstream) -> std::result::Result<T, DriverError>,
    ) -> std::result::Result<T, DriverError> {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        let done = work(stream);
        // SAFETY: the stream was made here, and nothing uses it after this.
        unsafe {
            let waited = result::stream::synchronize(stream);
            let destroyed = result::stream::destroy(stream);
            let done = done?;
            waited.and(destroyed).map(|()| done)
        }
    }
}

/// Scratch memory that a graph owns, by way of a user object.
struct GraphMemory {
    owner: Arc<ScratchMemory>,
    address: sys::CUdeviceptr,
}

impl GraphMemory {
    /// Called by the driver when the graph and all that was made of it are gone: on any thread, from which the driver must
    /// not be called. The context's next launch frees the memory.
    unsafe extern "C" fn retire(memory: *mut std::ffi::c_void) {
        // SAFETY: the pointer came from `Box::into_raw`, and this is called once.
        let memory = unsafe { Box::from_raw(memory.cast::<GraphMemory>()) };
        let mut retired = memory.owner.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.push(memory.address);
        drop(retired);
        memory.owner.has_retired.store(true, Ordering::Release);
    }
}

/// A pool of the current context's device that keeps so many bytes.
fn new_pool(mut kept: u64) -> std::result::Result<sys::CUmemoryPool, DriverError> {
    let mut device = 0;
    // SAFETY: `device` outlives the call.
    unsafe { sys::cuCtxGetDevice(&mut device) }.result()?;
    // SAFETY: plain data, for which zeros are "nothing special".
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: a location is its kind and then the device's number, whatever the second is called in this version of
    // CUDA's headers. The attribute is a 64-bit number.
    unsafe {
        std::ptr::from_mut(&mut properties.location)
            .cast::<i32>()
            .add(1)
            .write(device);
        let pool = result::mem_pool::create(&properties)?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        match result::mem_pool::set_attribute(pool, attribute, std::ptr::from_mut(&mut kept).cast()) {
            Ok(()) => Ok(pool),
            Err(error) => result::mem_pool::destroy(pool).and(Err(error)),
        }
    }
}
