//! What a plan has to know of a GPU, and, with the feature `cuda`, the GPU that a thread works on.

use serde::{Deserialize, Serialize};

/// A GPU as the planner sees it: plain data, so that plans for any card can be made and tested on any machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Compute capability as two digits or three: 80, 86, 89, 90, 100, 120.
    pub compute_capability: u32,
    /// The compute capability that the code which runs there was compiled for. Where a build has no machine code for a newer
    /// device, the driver compiles its PTX, which may be of an older one: then blocks form no clusters, and no kernel waits for
    /// those before it, so none may be started early. 0: the build has nothing that runs there.
    pub code_capability: u32,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Bytes of shared memory that one block may use after opting in.
    pub shared_per_block: u32,
    /// Bytes of the L2 cache.
    pub l2_bytes: u64,
    /// Peak clock of the multiprocessors in MHz.
    pub clock_mhz: u32,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Device memory bandwidth in GB/s.
    pub memory_gbps: f32,
    /// Clusters of 2, 3, … 8 blocks that the device holds at once, if a multiprocessor holds one block, two, three or four; 0: not known.
    /// A cluster lives within one group of multiprocessors, and how many of a group work may differ from card to card.
    #[serde(default)]
    pub clusters: [[u16; CLUSTER_SIZES]; BLOCKS_BESIDE],
}

/// Sizes of clusters that are considered: 2 to 8 blocks.
pub const CLUSTER_SIZES: usize = 7;

/// Blocks of a multiprocessor up to which room for clusters is known.
pub const BLOCKS_BESIDE: usize = 4;

/// Bytes of the widest access of a thread to memory: more alignment than this brings nothing.
pub const VECTOR_BYTES: usize = 16;

/// The part of a device's memory that scratch memory may take, and what it may take of any device, in bytes. A repacked vocabulary
/// of 250002 × 1536 takes 1.5 GB.
const SCRATCH_PART: u64 = 32;
const LEAST_SCRATCH_BYTES: u64 = 256 << 20;

/// The first compute capability with clusters and early starts.
const HOPPER: u32 = 90;

/// Bytes of shared memory that a block of any GPU may use without opting in to more.
const SHARED_WITHOUT_OPTING_IN: u32 = 48 << 10;

/// What a driver says of a GPU: 0 where it does not know, as drivers of virtual GPUs do not know clocks, and those of GPUs
/// that share the host's memory do not know its clock and width. Public for tests.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reported {
    /// Compute capability as two digits or three.
    pub compute_capability: u32,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Bytes of shared memory that one block may use after opting in.
    pub shared_per_block: u32,
    /// Bytes of the L2 cache.
    pub l2_bytes: u32,
    /// Peak clock of the multiprocessors in kHz.
    pub clock_khz: u32,
    /// Clock of the memory in kHz.
    pub memory_khz: u32,
    /// Width of the memory's bus in bits.
    pub bus_bits: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

/// What GPUs of one generation have in common, and what one of them has where the driver does not say. Public for tests.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generation {
    /// FP32 multiply-add lanes of a multiprocessor.
    pub fp32_lanes: u32,
    /// Operations on TF32 numbers that a multiprocessor does in a clock.
    pub tf32_flops_per_clock: u32,
    /// A usual peak clock in MHz.
    pub clock_mhz: u32,
    /// A usual memory bandwidth in GB/s.
    pub memory_gbps: f32,
}

impl Generation {
    /// The generation of a compute capability; of one that is newer than all of these, the newest.
    ///
    /// Lanes are those of the CUDA C++ Programming Guide. TF32 rates are the datasheets' peaks without sparsity, divided by
    /// clock and multiprocessors; for 8.7 and 11.0, whose datasheets name other types only, a quarter of the rate of 8-bit
    /// numbers.
    pub const fn of(compute_capability: u32) -> Self {
        let (fp32_lanes, tf32_flops_per_clock, clock_mhz, memory_gbps) = match compute_capability {
            0..=80 => (64, 1024, 1410, 2039.0),     // A100
            81..=86 => (128, 256, 1695, 760.0),     // GeForce RTX 30
            87 => (128, 1024, 1300, 204.8),         // Jetson Orin
            88..=89 => (128, 256, 2520, 1008.0),    // GeForce RTX 40
            90..=99 => (128, 2048, 1980, 3350.0),   // H100
            100..=109 => (128, 4096, 1965, 7700.0), // B200, B300
            110..=119 => (128, 4096, 1575, 273.0),  // Jetson Thor
            121 => (128, 256, 2418, 273.0),         // GB10
            _ => (128, 256, 2407, 1792.0),          // GeForce RTX 50
        };
        Generation {
            fp32_lanes,
            tf32_flops_per_clock,
            clock_mhz,
            memory_gbps,
        }
    }
}

impl DeviceInfo {
    /// NVIDIA H100 80GB HBM3 (SXM).
    pub const H100: DeviceInfo = DeviceInfo {
        compute_capability: 90,
        code_capability: 90,
        sm_count: 132,
        shared_per_block: 232_448,
        l2_bytes: 50 << 20,
        clock_mhz: 1980,
        memory_bytes: 80 << 30,
        memory_gbps: 3350.0,
        clusters: [[0; CLUSTER_SIZES]; BLOCKS_BESIDE],
    };

    /// NVIDIA H200 (SXM): an H100 with faster memory, and more of it.
    pub const H200: DeviceInfo = DeviceInfo {
        memory_bytes: 140 << 30,
        memory_gbps: 4800.0,
        ..DeviceInfo::H100
    };

    /// NVIDIA A100 80GB (SXM).
    pub const A100: DeviceInfo = DeviceInfo {
        compute_capability: 80,
        code_capability: 80,
        sm_count: 108,
        shared_per_block: 166_912,
        l2_bytes: 40 << 20,
        clock_mhz: 1410,
        memory_bytes: 80 << 30,
        memory_gbps: 2039.0,
        clusters: [[0; CLUSTER_SIZES]; BLOCKS_BESIDE],
    };

    /// NVIDIA GeForce RTX 4090.
    pub const RTX_4090: DeviceInfo = DeviceInfo {
        compute_capability: 89,
        code_capability: 89,
        sm_count: 128,
        shared_per_block: 101_376,
        l2_bytes: 72 << 20,
        clock_mhz: 2520,
        memory_bytes: 24 << 30,
        memory_gbps: 1008.0,
        clusters: [[0; CLUSTER_SIZES]; BLOCKS_BESIDE],
    };

    /// NVIDIA GeForce RTX 5090.
    pub const RTX_5090: DeviceInfo = DeviceInfo {
        compute_capability: 120,
        code_capability: 120,
        sm_count: 170,
        shared_per_block: 101_376,
        l2_bytes: 96 << 20,
        clock_mhz: 2407,
        memory_bytes: 32 << 30,
        memory_gbps: 1792.0,
        clusters: [[0; CLUSTER_SIZES]; BLOCKS_BESIDE],
    };

    /// Blocks in clusters of so many that find room where a multiprocessor holds one, two, … of them, as parts of those that would without
    /// clusters; `None` where that is not known.
    pub(crate) fn room_for_clusters(&self, blocks: u32) -> Option<[f64; BLOCKS_BESIDE]> {
        let at = (blocks as usize).checked_sub(2).filter(|&at| at < CLUSTER_SIZES)?;
        let mut room = [0.0; BLOCKS_BESIDE];
        for ((beside, room), clusters) in (1..).zip(&mut room).zip(&self.clusters) {
            let held = u32::from(clusters[at]) * blocks;
            *room = (f64::from(held) / f64::from(beside * self.sm_count.max(1))).min(1.0);
        }
        room.iter().all(|&room| room > 0.0).then_some(room)
    }

    /// Whether blocks can form clusters: from compute capability 9.0 on.
    pub const fn has_clusters(&self) -> bool {
        self.code_capability >= HOPPER
    }

    /// Whether a kernel can be started before those before it on the stream have ended, and waits for them itself: from
    /// compute capability 9.0 on.
    pub const fn has_early_starts(&self) -> bool {
        self.code_capability >= HOPPER
    }

    /// The most scratch memory that one launch asks for, in bytes, and what is kept of it from launch to launch: to get so much anew
    /// takes longer than to fill it.
    pub const fn scratch_bytes(&self) -> u64 {
        let part = self.memory_bytes / SCRATCH_PART;
        if part > LEAST_SCRATCH_BYTES {
            part
        } else {
            LEAST_SCRATCH_BYTES
        }
    }

    /// What the device has and runs, for a reason why a kernel is out.
    pub(crate) fn runs(&self) -> String {
        let has = self.compute_capability;
        match self.code_capability {
            0 => format!("this build has no code for the device, which has {has}"),
            code if code == has => format!("the device has {has}"),
            code => format!("the device, which has {has}, runs code of this build that was compiled for {code}"),
        }
    }

    /// What a driver says of a GPU, with the figures of its [`Generation`] in place of those that the driver does not know:
    /// without a clock or a bandwidth every kernel would seem to take for ever, and none would be the fastest.
    pub fn from_reported(reported: &Reported) -> Self {
        let usual = Generation::of(reported.compute_capability);
        let or = |value: u32, otherwise: u32| if value == 0 { otherwise } else { value };
        // Two transfers a clock; kHz × bits / 8 bytes is in kB/s.
        let memory_gbps = 2.0 * reported.memory_khz as f32 * reported.bus_bits as f32 / 8.0 * 1e-6;
        DeviceInfo {
            compute_capability: reported.compute_capability,
            code_capability: reported.compute_capability,
            sm_count: reported.sm_count.max(1),
            shared_per_block: or(reported.shared_per_block, SHARED_WITHOUT_OPTING_IN),
            l2_bytes: reported.l2_bytes as u64,
            clock_mhz: or(reported.clock_khz / 1000, usual.clock_mhz),
            memory_bytes: reported.memory_bytes,
            memory_gbps: if memory_gbps > 0.0 {
                memory_gbps
            } else {
                usual.memory_gbps
            },
            clusters: [[0; CLUSTER_SIZES]; BLOCKS_BESIDE],
        }
    }

    /// FP32 multiply-add lanes of a multiprocessor.
    pub const fn fp32_lanes(&self) -> u32 {
        Generation::of(self.compute_capability).fp32_lanes
    }

    /// Operations on TF32 numbers that a multiprocessor's tensor cores do in a clock: a multiplication and an addition
    /// count as two.
    pub const fn tf32_flops_per_clock(&self) -> u32 {
        Generation::of(self.compute_capability).tf32_flops_per_clock
    }

    /// The rate of FP32 multiply-adds alone, in TFLOP/s: clock × lanes × 2.
    pub fn fp32_peak_tflops(&self) -> f64 {
        2.0 * self.clock_mhz as f64 * self.sm_count as f64 * self.fp32_lanes() as f64 * 1e-6
    }
}

#[cfg(feature = "cuda")]
pub(crate) use cuda::{
    capture_of, clusters_of, driver_function, early_start, early_starts, Lane, RelaxedCapture, Scratch, CAPTURES,
};
// Public for tests and benches.
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use cuda::{CurrentContext, Function};

#[cfg(feature = "cuda")]
mod cuda {
    use super::{DeviceInfo, Reported, BLOCKS_BESIDE, CLUSTER_SIZES};
    use crate::architectures::code_for;
    use crate::error::{Error, Result};
    use crate::modules;
    use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
    use cudarc::driver::{result, DriverError};
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::ffi::CStr;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, TryLockError};
    use std::thread::ThreadId;
    use std::time::Instant;

    /// A stream within one capture, which lives as long: the driver does not tell its number then. Its handle, and the thread where
    /// that stands for another stream in each.
    pub(crate) type Lane = (usize, Option<ThreadId>);

    /// A loaded kernel. Valid in the context that it was loaded in, for as long as that context lives.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Function {
        handle: sys::CUfunction,
        fixed_shared: u32,
    }

    // SAFETY: the driver allows the use of a function handle from every thread that has its context current.
    unsafe impl Send for Function {}
    // SAFETY: as above; the handle is never written through.
    unsafe impl Sync for Function {}

    impl Function {
        /// The driver's handle.
        pub fn handle(self) -> sys::CUfunction {
            self.handle
        }

        /// Bytes of shared memory that a block has as it was compiled, without what a launch adds.
        pub fn fixed_shared(self) -> u32 {
            self.fixed_shared
        }

        /// Blocks of `threads` threads with `shared` bytes of dynamic shared memory that fit on a multiprocessor.
        ///
        /// # Errors
        ///
        /// Whatever the driver reports.
        pub fn blocks_per_multiprocessor(self, threads: u32, shared: u32) -> Result<u32> {
            let mut blocks = 0;
            // SAFETY: the handle came from the driver, and `blocks` outlives the call.
            unsafe {
                sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &mut blocks,
                    self.handle,
                    threads as i32,
                    shared as usize,
                )
            }
            .result()
            .map_err(|e| Error::driver("asking for the occupancy of a kernel", e))?;
            Ok(blocks as u32)
        }

        /// Clusters of `blocks` blocks, each of `threads` threads with `shared` bytes of dynamic shared memory, that find room
        /// on the device at the same time.
        fn clusters(self, blocks: u32, threads: u32, shared: u32) -> Result<u32> {
            let mut attribute = clusters_of(blocks);
            let config = sys::CUlaunchConfig {
                gridDimX: blocks,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: shared,
                // The context that is current counts.
                hStream: std::ptr::null_mut(),
                attrs: &mut attribute,
                numAttrs: 1,
            };
            let mut clusters = 0;
            // SAFETY: the handle came from the driver, and the configuration, its attribute and `clusters` outlive the call.
            let status = unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, self.handle, &config) };
            match status {
                // More blocks than any cluster has on this device.
                sys::CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE => Ok(0),
                _ => status
                    .result()
                    .map(|()| clusters.max(0) as u32)
                    .map_err(|e| Error::driver("asking for the room that clusters of a kernel find", e)),
            }
        }
    }

    /// The CUDA context that is current on this thread, with the modules that were loaded in it.
    #[derive(Clone)]
    pub struct CurrentContext(Arc<ContextState>);

    struct ContextState {
        id: u64,
        info: DeviceInfo,
        name: String,
        modules: Mutex<HashMap<&'static str, LoadedModule>>,
        functions: RwLock<HashMap<&'static str, Function>>,
        /// Kernels, sizes of clusters and dynamic shared memory that the driver was asked for, and how many there is room for.
        clusters: RwLock<HashMap<(&'static str, u32, u32), u32>>,
        scratch: OnceLock<Option<ScratchPool>>,
        kept: RwLock<Vec<Kept>>,
        captured: Mutex<Vec<Captured>>,
        retired: Mutex<Vec<sys::CUdeviceptr>>,
        has_retired: AtomicBool,
        /// Milliseconds count from here.
        start: Instant,
    }

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

    /// Held by whoever records a graph, one at a time, and by whoever waits for all work of a context: that would end every
    /// recording of the context with an error, in whichever thread.
    pub(crate) static CAPTURES: Mutex<()> = Mutex::new(());

    /// So many captures are remembered: of more that go on at once, some allocate more than they need.
    const MAX_CAPTURES: usize = 16;

    /// A pool of device memory.
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct ScratchPool(sys::CUmemoryPool);

    // SAFETY: the driver allows the use of a pool from every thread.
    unsafe impl Send for ScratchPool {}
    // SAFETY: as above; the handle is never written through.
    unsafe impl Sync for ScratchPool {}

    #[derive(Clone, Copy)]
    struct LoadedModule(sys::CUmodule);

    // SAFETY: as for `Function`.
    unsafe impl Send for LoadedModule {}

    /// Contexts by the identifier that the driver gives each one, never twice in a process. Handles would not do: a new
    /// context may get the address of a destroyed one.
    type Contexts = RwLock<HashMap<u64, Arc<ContextState>>>;

    fn contexts() -> &'static Contexts {
        static CONTEXTS: OnceLock<Contexts> = OnceLock::new();
        CONTEXTS.get_or_init(Contexts::default)
    }

    thread_local! {
        /// The last context this thread asked for: launches seldom change it.
        static LAST: RefCell<Option<Arc<ContextState>>> = const { RefCell::new(None) };
    }

    impl CurrentContext {
        /// The context that is current on this thread.
        ///
        /// # Errors
        ///
        /// If there is none, or the driver fails to describe its device.
        pub fn get() -> Result<Self> {
            let mut id = 0;
            // SAFETY: a null context means the current one; `id` outlives the call.
            unsafe { sys::cuCtxGetId(std::ptr::null_mut(), &mut id) }
                .result()
                .map_err(|e| Error::driver("looking for the current CUDA context", e))?;
            let last = LAST.with_borrow(|last| match last {
                Some(state) if state.id == id => Some(state.clone()),
                _ => None,
            });
            if let Some(state) = last {
                return Ok(CurrentContext(state));
            }
            let known = {
                let contexts = contexts().read().unwrap_or_else(PoisonError::into_inner);
                contexts.get(&id).cloned()
            };
            let state = match known {
                Some(state) => state,
                None => {
                    let (name, info) = describe_current_device().map_err(|e| Error::driver("describing the GPU", e))?;
                    let mut state = Arc::new(ContextState {
                        id,
                        info,
                        name,
                        modules: Mutex::default(),
                        functions: RwLock::default(),
                        clusters: RwLock::default(),
                        scratch: OnceLock::new(),
                        kept: RwLock::default(),
                        captured: Mutex::default(),
                        retired: Mutex::default(),
                        has_retired: AtomicBool::new(false),
                        start: Instant::now(),
                    });
                    let clusters = CurrentContext(state.clone()).room_for_clusters();
                    if let Some(state) = Arc::get_mut(&mut state) {
                        state.info.clusters = clusters;
                    }
                    let mut contexts = contexts().write().unwrap_or_else(PoisonError::into_inner);
                    contexts.entry(id).or_insert(state).clone()
                }
            };
            LAST.with_borrow_mut(|last| *last = Some(state.clone()));
            Ok(CurrentContext(state))
        }

        /// The driver's identifier of this context, never used twice in a process.
        pub fn id(&self) -> u64 {
            self.0.id
        }

        /// The name of the device of this context, as the driver gives it: `NVIDIA H200`.
        pub fn name(&self) -> &str {
            &self.0.name
        }

        /// The device of this context.
        pub fn info(&self) -> &DeviceInfo {
            &self.0.info
        }

        /// Where scratch memory comes from: a pool that keeps a part of the memory ([`DeviceInfo::scratch_bytes`]) when the host waits for the
        /// device, where the default pool would give back everything and have to map it anew for the next launch. What it keeps goes to
        /// whoever allocates when there is no other memory left: the driver sees to that. `None` if the driver makes no such pool (old
        /// ones, and some virtual devices): the default one serves as well, only slower.
        pub(crate) fn scratch_pool(&self) -> Option<sys::CUmemoryPool> {
            if let Some(pool) = self.0.scratch.get() {
                return pool.map(|pool| pool.0);
            }
            let _relaxed = RelaxedCapture::begin().ok()?;
            match scratch_pool(self.info().scratch_bytes()) {
                Ok(pool) => {
                    let kept = self.0.scratch.get_or_init(|| Some(ScratchPool(pool)));
                    if *kept != Some(ScratchPool(pool)) {
                        // Another thread was faster. SAFETY: nothing was allocated from this pool.
                        let _ = unsafe { result::mem_pool::destroy(pool) };
                    }
                    kept.map(|pool| pool.0)
                }
                Err(error) => {
                    // What cannot be had now may be had later, unless there is no such thing.
                    if error.0 == sys::CUresult::CUDA_ERROR_NOT_SUPPORTED {
                        self.0.scratch.get_or_init(|| None);
                    }
                    None
                }
            }
        }

        /// What a stream keeps, by the driver's number for it, which no other stream of the process ever has; `None` if as
        /// many others keep some already and have used it of late.
        pub(crate) fn kept_scratch(&self, id: u64, stream: sys::CUstream) -> Option<Arc<Mutex<Scratch>>> {
            self.free_retired();
            let now = self.0.start.elapsed().as_millis() as u64;
            let of = |kept: &[Kept]| {
                let kept = kept.iter().find(|kept| kept.stream == id)?;
                kept.used.store(now, Ordering::Relaxed);
                Some(kept.scratch.clone())
            };
            if let Some(scratch) = of(&self.0.kept.read().unwrap_or_else(PoisonError::into_inner)) {
                return Some(scratch);
            }
            let mut kept = self.0.kept.write().unwrap_or_else(PoisonError::into_inner);
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
                    // SAFETY: a context is current on this thread.
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
        pub(crate) fn forget_scratch(&self, stream: u64) -> Option<Scratch> {
            let mut kept = self.0.kept.write().unwrap_or_else(PoisonError::into_inner);
            let place = kept.iter().position(|kept| kept.stream == stream)?;
            let slot = kept.swap_remove(place);
            let mut scratch = slot.scratch.lock().unwrap_or_else(PoisonError::into_inner);
            Some(std::mem::take(&mut scratch))
        }

        /// What launches share that are captured on this stream in this capture.
        pub(crate) fn graph_scratch(&self, capture: u64, lane: Lane) -> Arc<Mutex<Scratch>> {
            self.free_retired();
            let mut captured = self.0.captured.lock().unwrap_or_else(PoisonError::into_inner);
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
        pub(crate) fn memory_of_graph(&self, graph: sys::CUgraph, bytes: usize) -> Result<sys::CUdeviceptr> {
            let say = |e| Error::driver("allocating scratch memory for a CUDA graph", e);
            let _relaxed = RelaxedCapture::begin().map_err(say)?;
            let address = self.on_a_stream(|stream| {
                // SAFETY: the stream is alive; the memory has so many bytes, and nobody else knows of it.
                unsafe {
                    let address = match self.scratch_pool() {
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
                owner: self.0.clone(),
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
            if !self.0.has_retired.load(Ordering::Relaxed) || !self.0.has_retired.swap(false, Ordering::Acquire) {
                return;
            }
            let retired = std::mem::take(&mut *self.0.retired.lock().unwrap_or_else(PoisonError::into_inner));
            let Ok(_relaxed) = RelaxedCapture::begin() else {
                return;
            };
            // An error here has no one to go to.
            let _ = self.on_a_stream(|stream| {
                for address in retired {
                    // SAFETY: the graph that owned it is gone, and with it what used the memory.
                    unsafe { result::free_async(address, stream) }?;
                }
                Ok(())
            });
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

        /// The kernel `entry` of `cuda/FILE.cu`, loaded on first use and allowed `shared` bytes of dynamic shared
        /// memory.
        ///
        /// # Errors
        ///
        /// If this build has no such file for any architecture, the file no such kernel, or the driver refuses.
        pub fn function(&self, file: &'static str, entry: &'static str, shared: u32) -> Result<Function> {
            let loaded = {
                let functions = self.0.functions.read().unwrap_or_else(PoisonError::into_inner);
                functions.get(entry).copied()
            };
            if let Some(function) = loaded {
                return Ok(function);
            }
            let module = self.module(file)?;
            let name = std::ffi::CString::new(entry).map_err(|_| Error::MissingKernel { file, entry })?;
            // SAFETY: the module was loaded in the context that is current on this thread.
            let handle = unsafe { result::module::get_function(module.0, name) }.map_err(|e| match e.0 {
                sys::CUresult::CUDA_ERROR_NOT_FOUND => Error::MissingKernel { file, entry },
                _ => Error::driver("looking up a kernel", e),
            })?;
            // SAFETY: the handle is that of a kernel of the current context.
            let fixed = unsafe {
                result::function::get_function_attribute(
                    handle,
                    sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                )
            }
            .map_err(|e| Error::driver("asking for a kernel's shared memory", e))?;
            // What a launch asks for beyond `shared` keeps its blocks apart.
            let most = (self.0.info.shared_per_block as i32 - fixed).max(shared as i32);
            // SAFETY: the handle is that of a kernel of the current context.
            unsafe {
                result::function::set_function_attribute(
                    handle,
                    sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    most,
                )
            }
            .map_err(|e| Error::driver("reserving dynamic shared memory for a kernel", e))?;
            let function = Function {
                handle,
                fixed_shared: fixed.max(0) as u32,
            };
            let mut functions = self.0.functions.write().unwrap_or_else(PoisonError::into_inner);
            functions.insert(entry, function);
            Ok(function)
        }

        /// How many clusters of `blocks` blocks of a kernel this context's multiprocessors, which may be few of the device's,
        /// hold at once. The driver is asked once. `file`, `entry` and `shared` are those of [`CurrentContext::function`],
        /// `threads` those of a block.
        ///
        /// # Errors
        ///
        /// As [`CurrentContext::function`].
        pub fn clusters(
            &self,
            file: &'static str,
            entry: &'static str,
            shared: u32,
            threads: u32,
            blocks: u32,
        ) -> Result<u32> {
            let key = (entry, blocks, shared);
            let known = {
                let clusters = self.0.clusters.read().unwrap_or_else(PoisonError::into_inner);
                clusters.get(&key).copied()
            };
            if let Some(count) = known {
                return Ok(count);
            }
            let count = self.function(file, entry, shared)?.clusters(blocks, threads, shared)?;
            let mut clusters = self.0.clusters.write().unwrap_or_else(PoisonError::into_inner);
            clusters.insert(key, count);
            Ok(count)
        }

        /// [`DeviceInfo::clusters`]. What the driver does not say is not known, and no reason to fail.
        fn room_for_clusters(&self) -> [[u16; CLUSTER_SIZES]; BLOCKS_BESIDE] {
            // Any kernel will do that needs few registers.
            const FILE: &str = "diagnostics/measure";
            const ENTRY: &str = "fill_random_f32";
            const THREADS: u32 = 128;
            let mut room = [[0; CLUSTER_SIZES]; BLOCKS_BESIDE];
            if !self.info().has_clusters() {
                return room;
            }
            // A program may begin with a capture, which would not bear with what loads a module.
            let Ok(_relaxed) = RelaxedCapture::begin() else {
                return room;
            };
            for (beside, room) in (1..).zip(&mut room) {
                // So many find room on a multiprocessor, and not one more: half a block of shared memory is left over.
                let shared = 2 * self.info().shared_per_block / (2 * beside + 1);
                for (blocks, room) in (2..).zip(room) {
                    let count = self.clusters(FILE, ENTRY, shared, THREADS, blocks).unwrap_or(0);
                    *room = count.try_into().unwrap_or(0);
                }
            }
            room
        }

        fn module(&self, file: &'static str) -> Result<LoadedModule> {
            let mut modules = self.0.modules.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(module) = modules.get(file) {
                return Ok(*module);
            }
            let embedded = modules::module(file)
                .filter(|_| self.info().code_capability > 0)
                .ok_or(Error::NotBuilt { file })?;
            // SAFETY: the image is a complete fatbin that `nvcc` wrote, aligned, and lives as long as the program.
            let module =
                unsafe { result::module::load_data(embedded.image().as_ptr().cast()) }.map_err(|e| match e.0 {
                    sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => Error::NotBuilt { file },
                    _ => Error::driver("loading a kernel module", e),
                })?;
            let module = LoadedModule(module);
            modules.insert(file, module);
            Ok(module)
        }
    }

    /// Scratch memory that a graph owns, by way of a user object.
    struct GraphMemory {
        owner: Arc<ContextState>,
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

    /// While this lives, the calling thread may do what a capture elsewhere, or its own, would forbid: allocate memory and make
    /// pools, none of which become part of a graph.
    pub(crate) struct RelaxedCapture(sys::CUstreamCaptureMode);

    impl RelaxedCapture {
        pub(crate) fn begin() -> std::result::Result<Self, DriverError> {
            let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            // SAFETY: the mode outlives the call, which puts the one before in its place.
            unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result()?;
            Ok(RelaxedCapture(mode))
        }
    }

    impl Drop for RelaxedCapture {
        fn drop(&mut self) {
            // SAFETY: as above. It worked a moment ago.
            let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
        }
    }

    /// A capture that a stream is part of.
    pub(crate) struct Capturing {
        /// The driver's number for it.
        pub id: u64,
        /// What is captured so far.
        pub graph: sys::CUgraph,
        /// The node that the stream's next one depends on, where there is one and no more.
        pub last: Option<sys::CUgraphNode>,
    }

    /// The function that the driver has under this name since `version`, null where it has none: an older driver, on which a
    /// program that links to such a function would not even start. Headers name functions differently from version to version.
    pub(crate) fn driver_function(name: &CStr, version: i32) -> *mut std::ffi::c_void {
        let mut address = std::ptr::null_mut();
        let mut found = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        // SAFETY: a C string, and places that outlive the call.
        let status = unsafe { sys::cuGetProcAddress_v2(name.as_ptr(), &mut address, version, 0, &mut found) };
        match status.result() {
            Ok(()) => address,
            Err(_) => std::ptr::null_mut(),
        }
    }

    /// What a stream is being captured into; `None` if it is not being captured.
    pub(crate) fn capture_of(stream: sys::CUstream) -> std::result::Result<Option<Capturing>, DriverError> {
        type Status = sys::CUstreamCaptureStatus;
        /// `cuStreamGetCaptureInfo_v2`, which drivers have from CUDA 11.3 on.
        type GetCaptureInfo = unsafe extern "C" fn(
            sys::CUstream,
            *mut Status,
            *mut u64,
            *mut sys::CUgraph,
            *mut *const sys::CUgraphNode,
            *mut usize,
        ) -> sys::CUresult;
        const VERSION: i32 = 11_030;
        static FUNCTION: OnceLock<Option<GetCaptureInfo>> = OnceLock::new();

        // SAFETY: the stream is alive for the length of this call (the caller of `launch` vouches for it).
        if unsafe { result::stream::is_capturing(stream) }? == Status::CU_STREAM_CAPTURE_STATUS_NONE {
            return Ok(None);
        }
        let function = FUNCTION.get_or_init(|| {
            let address = driver_function(c"cuStreamGetCaptureInfo", VERSION);
            // SAFETY: what the driver finds by this name and version has this type, and null is `None`.
            unsafe { std::mem::transmute::<*mut std::ffi::c_void, Option<GetCaptureInfo>>(address) }
        });
        let function = function.ok_or(DriverError(sys::CUresult::CUDA_ERROR_NOT_SUPPORTED))?;
        let (mut status, mut id, mut graph) = (Status::CU_STREAM_CAPTURE_STATUS_NONE, 0, std::ptr::null_mut());
        let (mut dependencies, mut count) = (std::ptr::null(), 0);
        // SAFETY: all places outlive the call.
        unsafe { function(stream, &mut status, &mut id, &mut graph, &mut dependencies, &mut count) }.result()?;
        let last = match count {
            // SAFETY: the driver has so many nodes there until the stream's next call.
            1 => Some(unsafe { dependencies.read() }),
            _ => None,
        };
        let capturing = Capturing { id, graph, last };
        Ok((status == Status::CU_STREAM_CAPTURE_STATUS_ACTIVE).then_some(capturing))
    }

    /// A pool of the current context's device that keeps so many bytes.
    fn scratch_pool(mut kept: u64) -> std::result::Result<sys::CUmemoryPool, DriverError> {
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

    /// Its name, and what a plan must know of it.
    fn describe_current_device() -> std::result::Result<(String, DeviceInfo), DriverError> {
        let mut device = 0;
        // SAFETY: `device` outlives the call; without a current context the driver answers with an error.
        unsafe { sys::cuCtxGetDevice(&mut device) }.result()?;
        let attribute = |which: Attribute| -> std::result::Result<u32, DriverError> {
            // SAFETY: the driver has just named this device.
            unsafe { result::device::get_attribute(device, which) }.map(|value| value.max(0) as u32)
        };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let compute_capability = major * 10 + minor;
        let info = DeviceInfo::from_reported(&Reported {
            compute_capability,
            sm_count: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
            clock_khz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            memory_khz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            bus_bits: attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
            // SAFETY: the driver has just named this device.
            memory_bytes: unsafe { result::device::total_mem(device) }? as u64,
        });
        let info = DeviceInfo {
            code_capability: code_for(modules::architectures(), compute_capability).unwrap_or(0),
            ..info
        };
        Ok((result::device::get_name(device)?, info))
    }

    /// That so many blocks, neighbours along x, are a cluster.
    pub(crate) fn clusters_of(blocks: u32) -> sys::CUlaunchAttribute {
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: blocks, y: 1, z: 1 };
        sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value,
        }
    }

    /// That a kernel may start before those before it on the stream have ended: while they do, it gets ready. It waits for
    /// them itself, before it reads or writes memory.
    pub(crate) fn early_start() -> sys::CUlaunchAttribute {
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.programmaticStreamSerializationAllowed = 1;
        sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value,
        }
    }

    /// Whether the device knows early starts, and the driver can also record them into graphs, from CUDA 12.3 on.
    pub(crate) fn early_starts(device: &DeviceInfo) -> bool {
        const SINCE: i32 = 12_030;
        static CAN: OnceLock<bool> = OnceLock::new();
        device.has_early_starts()
            && *CAN.get_or_init(|| {
                let mut version = 0;
                // SAFETY: the number outlives the call.
                unsafe { sys::cuDriverGetVersion(&mut version) }.result().is_ok() && version >= SINCE
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::kernel::costs::Costs;
    use crate::gemm::kernel::spec::Arithmetic;
    use crate::gemm::TABLE;
    use crate::gemm::{explain, GemmProblem, Plan, Precision};

    /// As the driver of such a GPU would describe it.
    fn reported(compute_capability: u32) -> Reported {
        Reported {
            compute_capability,
            sm_count: 48,
            shared_per_block: 101_376,
            l2_bytes: 24 << 20,
            clock_khz: 2_000_000,
            memory_khz: 4_000_000,
            bus_bits: 256,
            memory_bytes: 16 << 30,
        }
    }

    #[test]
    fn what_the_driver_says_counts() {
        let info = DeviceInfo::from_reported(&reported(89));
        assert_eq!((info.sm_count, info.clock_mhz), (48, 2000));
        assert_eq!((info.shared_per_block, info.l2_bytes), (101_376, 24 << 20));
        assert_eq!(info.memory_gbps, 256.0);
        assert_eq!((info.memory_bytes, info.scratch_bytes()), (16 << 30, 512 << 20));
    }

    #[test]
    fn small_and_unknown_memories_have_some_room_for_scratch() {
        let of = |memory_bytes| DeviceInfo {
            memory_bytes,
            ..DeviceInfo::H200
        };
        for memory_bytes in [0, 1, 4 << 30] {
            assert_eq!(of(memory_bytes).scratch_bytes(), LEAST_SCRATCH_BYTES);
        }
        assert!(DeviceInfo::H200.scratch_bytes() > 4 << 30);
    }

    #[test]
    fn planning_survives_a_driver_that_knows_no_clocks() {
        for compute_capability in [80, 86, 87, 89, 90, 100, 103, 110, 120, 121, 130] {
            let usual = Generation::of(compute_capability);
            for missing in 1..16u32 {
                let keep = |bit: u32, value: u32| if missing >> bit & 1 == 1 { 0 } else { value };
                let full = reported(compute_capability);
                let info = DeviceInfo::from_reported(&Reported {
                    clock_khz: keep(0, full.clock_khz),
                    memory_khz: keep(1, full.memory_khz),
                    bus_bits: keep(2, full.bus_bits),
                    sm_count: keep(3, full.sm_count),
                    ..full
                });
                if missing & 1 != 0 {
                    assert_eq!(info.clock_mhz, usual.clock_mhz);
                }
                if missing & 0b110 != 0 {
                    assert_eq!(info.memory_gbps, usual.memory_gbps);
                }
                for precision in Precision::ALL {
                    let mut problem = GemmProblem::row_major(1024, 1024, 1024);
                    problem.precision = precision;
                    let plan = Plan::new(&problem, &info, Costs::built_in(&info)).unwrap();
                    assert!(plan.predicted_us.is_finite(), "{info:?}: {plan}");
                    let tile = plan.kernel.tile;
                    assert!(tile.bm * tile.bn >= 64 * 64, "{info:?}: {plan}");
                }
            }
        }
    }

    #[test]
    fn capabilities_between_the_listed_ones_have_the_rates_of_their_generation() {
        let rates = |capability: u32| {
            let info = DeviceInfo::from_reported(&reported(capability));
            (info.fp32_lanes(), info.tf32_flops_per_clock())
        };
        assert_eq!(rates(80), (64, 1024));
        assert_eq!(rates(87), (128, 1024));
        assert_eq!(rates(103), rates(100));
        assert_eq!(rates(110), (128, 4096));
        assert_eq!(rates(121), rates(120));
        for device in [
            DeviceInfo::A100,
            DeviceInfo::H100,
            DeviceInfo::RTX_4090,
            DeviceInfo::RTX_5090,
        ] {
            let usual = Generation::of(device.compute_capability);
            assert_eq!(
                (usual.clock_mhz, usual.memory_gbps),
                (device.clock_mhz, device.memory_gbps)
            );
        }
        // Tensor cores that do 256 operations a clock are as fast as the FP32 lanes at best; from 1024 on they are faster.
        for (capability, arithmetic) in [
            (87, Arithmetic::Tf32),
            (103, Arithmetic::Tf32),
            (110, Arithmetic::Tf32),
            (121, Arithmetic::Ffma),
        ] {
            let mut problem = GemmProblem::row_major(4096, 4096, 4096);
            problem.precision = Precision::Tf32;
            let device = DeviceInfo::from_reported(&reported(capability));
            let explained = explain(&problem, &device, Costs::built_in(&device));
            let choice = explained.choice.as_ref().unwrap();
            assert_eq!(choice.kernel.arithmetic, arithmetic, "{capability}: {explained}");
            let text = explained.to_string();
            assert!(TABLE.iter().all(|spec| text.contains(spec.name)), "{text}");
            assert!(!text.contains("inf"), "{capability}: {text}");
        }
    }

    #[test]
    fn clusters_and_early_starts_come_with_the_code_not_with_the_device() {
        let from_ptx = DeviceInfo {
            code_capability: 80,
            ..DeviceInfo::H100
        };
        assert!(DeviceInfo::H100.has_clusters() && DeviceInfo::H100.has_early_starts());
        assert!(!from_ptx.has_clusters() && !from_ptx.has_early_starts());
        assert!(from_ptx.runs().contains("compiled for 80"), "{}", from_ptx.runs());
    }
}
