//! What a plan has to know of a GPU, and, with the feature `cuda`, the GPU that a thread works on.

/// A GPU as the planner sees it: plain data, so that plans for any card can be made and tested on any machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Compute capability as two digits or three: 80, 86, 89, 90, 100, 120.
    pub compute_capability: u32,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Bytes of shared memory that one block may use after opting in.
    pub shared_per_block: u32,
    /// Bytes of the L2 cache.
    pub l2_bytes: u64,
    /// Peak clock of the multiprocessors in MHz.
    pub clock_mhz: u32,
    /// Device memory bandwidth in GB/s.
    pub memory_gbps: f32,
}

/// Bytes of shared memory that a block of any GPU may use without opting in to more.
const SHARED_WITHOUT_OPTING_IN: u32 = 48 << 10;

/// What a driver says of a GPU: 0 where it does not know, as drivers of virtual GPUs do not know clocks, and those of GPUs
/// that share the host's memory do not know its clock and width.
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
}

/// What GPUs of one generation have in common, and what one of them has where the driver does not say.
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
        sm_count: 132,
        shared_per_block: 232_448,
        l2_bytes: 50 << 20,
        clock_mhz: 1980,
        memory_gbps: 3350.0,
    };

    /// NVIDIA A100 80GB (SXM).
    pub const A100: DeviceInfo = DeviceInfo {
        compute_capability: 80,
        sm_count: 108,
        shared_per_block: 166_912,
        l2_bytes: 40 << 20,
        clock_mhz: 1410,
        memory_gbps: 2039.0,
    };

    /// NVIDIA GeForce RTX 4090.
    pub const RTX_4090: DeviceInfo = DeviceInfo {
        compute_capability: 89,
        sm_count: 128,
        shared_per_block: 101_376,
        l2_bytes: 72 << 20,
        clock_mhz: 2520,
        memory_gbps: 1008.0,
    };

    /// NVIDIA GeForce RTX 5090.
    pub const RTX_5090: DeviceInfo = DeviceInfo {
        compute_capability: 120,
        sm_count: 170,
        shared_per_block: 101_376,
        l2_bytes: 96 << 20,
        clock_mhz: 2407,
        memory_gbps: 1792.0,
    };

    /// What a driver says of a GPU, with the figures of its [`Generation`] in place of those that the driver does not know:
    /// without a clock or a bandwidth every kernel would seem to take for ever, and none would be the fastest.
    pub fn from_reported(reported: &Reported) -> Self {
        let usual = Generation::of(reported.compute_capability);
        let or = |value: u32, otherwise: u32| if value == 0 { otherwise } else { value };
        // Two transfers a clock; kHz × bits / 8 bytes is in kB/s.
        let memory_gbps = 2.0 * reported.memory_khz as f32 * reported.bus_bits as f32 / 8.0 * 1e-6;
        DeviceInfo {
            compute_capability: reported.compute_capability,
            sm_count: reported.sm_count.max(1),
            shared_per_block: or(reported.shared_per_block, SHARED_WITHOUT_OPTING_IN),
            l2_bytes: reported.l2_bytes as u64,
            clock_mhz: or(reported.clock_khz / 1000, usual.clock_mhz),
            memory_gbps: if memory_gbps > 0.0 {
                memory_gbps
            } else {
                usual.memory_gbps
            },
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
pub(crate) use cuda::{clusters_of, early_start, early_starts};
#[cfg(feature = "cuda")]
pub use cuda::{CurrentContext, Function, KeptScratch};

#[cfg(feature = "cuda")]
mod cuda {
    use super::{DeviceInfo, Reported};
    use crate::error::{Error, Result};
    use crate::modules;
    use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
    use cudarc::driver::{result, DriverError};
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

    /// A loaded kernel. Valid in the context that it was loaded in, for as long as that context lives.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Function(sys::CUfunction);

    // SAFETY: the driver allows the use of a function handle from every thread that has its context current.
    unsafe impl Send for Function {}
    // SAFETY: as above; the handle is never written through.
    unsafe impl Sync for Function {}

    impl Function {
        /// The driver's handle.
        pub fn handle(self) -> sys::CUfunction {
            self.0
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
                sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, self.0, threads as i32, shared as usize)
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
            let status = unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, self.0, &config) };
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
        modules: Mutex<HashMap<&'static str, LoadedModule>>,
        functions: RwLock<HashMap<&'static str, Function>>,
        /// Kernels and sizes of clusters that the driver was asked for, and whether there is room for one.
        clusters: RwLock<HashMap<(&'static str, u32), bool>>,
        scratch: OnceLock<Option<ScratchPool>>,
        kept: RwLock<Vec<(u64, Arc<Mutex<KeptScratch>>)>>,
    }

    /// Scratch memory that a stream keeps from one launch to the next.
    #[derive(Default)]
    pub struct KeptScratch {
        /// Where it lies, if there is any.
        pub address: sys::CUdeviceptr,
        /// How much there is.
        pub bytes: usize,
    }

    /// So many streams of a context may keep scratch memory. A stream that is destroyed keeps its place: what still uses the
    /// memory cannot be known then.
    const MAX_KEEPING_STREAMS: usize = 4;

    /// A pool of device memory.
    #[derive(Clone, Copy)]
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
                    let state = Arc::new(ContextState {
                        id,
                        info: describe_current_device().map_err(|e| Error::driver("describing the GPU", e))?,
                        modules: Mutex::default(),
                        functions: RwLock::default(),
                        clusters: RwLock::default(),
                        scratch: OnceLock::new(),
                        kept: RwLock::default(),
                    });
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

        /// The device of this context.
        pub fn info(&self) -> &DeviceInfo {
            &self.0.info
        }

        /// Where scratch memory comes from, for the length of one launch: a pool that keeps up to [`KEPT_SCRATCH_BYTES`]
        /// when the host waits for the device, where the default pool would give back everything and have to map it anew
        /// for the next launch. `None` if the driver makes no such pool (old ones, and some virtual devices): the default one
        /// serves as well, only slower.
        pub fn scratch_pool(&self) -> Option<sys::CUmemoryPool> {
            let pool = self.0.scratch.get_or_init(|| scratch_pool().ok().map(ScratchPool));
            pool.map(|pool| pool.0)
        }

        /// What a stream keeps, by the driver's number for it, which no other stream of the process ever has; `None` if as
        /// many others keep some already. Whoever takes it for a launch holds the lock until that is queued: then the stream's
        /// order keeps launches apart.
        pub fn kept_scratch(&self, stream: u64) -> Option<Arc<Mutex<KeptScratch>>> {
            let of = |kept: &[(u64, Arc<Mutex<KeptScratch>>)]| {
                let (_, slot) = kept.iter().find(|(owner, _)| *owner == stream)?;
                Some(slot.clone())
            };
            if let Some(slot) = of(&self.0.kept.read().unwrap_or_else(PoisonError::into_inner)) {
                return Some(slot);
            }
            let mut kept = self.0.kept.write().unwrap_or_else(PoisonError::into_inner);
            if of(&kept).is_none() && kept.len() < MAX_KEEPING_STREAMS {
                kept.push((stream, Arc::default()));
            }
            of(&kept)
        }

        /// Takes from a stream what it keeps: its next launch finds nothing.
        pub fn forget_scratch(&self, stream: u64) -> Option<KeptScratch> {
            let mut kept = self.0.kept.write().unwrap_or_else(PoisonError::into_inner);
            let place = kept.iter().position(|(owner, _)| *owner == stream)?;
            let (_, slot) = kept.swap_remove(place);
            let mut scratch = slot.lock().unwrap_or_else(PoisonError::into_inner);
            Some(std::mem::take(&mut scratch))
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
            /// A kernel may use this much dynamic shared memory without opting in.
            const DEFAULT_DYNAMIC_SHARED: u32 = 48 << 10;
            if shared > DEFAULT_DYNAMIC_SHARED {
                // SAFETY: the handle is that of a kernel of the current context.
                unsafe {
                    result::function::set_function_attribute(
                        handle,
                        sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                        shared as i32,
                    )
                }
                .map_err(|e| Error::driver("reserving dynamic shared memory for a kernel", e))?;
            }
            let function = Function(handle);
            let mut functions = self.0.functions.write().unwrap_or_else(PoisonError::into_inner);
            functions.insert(entry, function);
            Ok(function)
        }

        /// Whether clusters of `blocks` blocks of a kernel find room on this context's multiprocessors, which may be few of the
        /// device's. The driver is asked once. `file`, `entry` and `shared` are those of [`CurrentContext::function`], `threads`
        /// those of a block.
        ///
        /// # Errors
        ///
        /// As [`CurrentContext::function`].
        pub fn clusters_fit(
            &self,
            file: &'static str,
            entry: &'static str,
            shared: u32,
            threads: u32,
            blocks: u32,
        ) -> Result<bool> {
            let key = (entry, blocks);
            let known = {
                let clusters = self.0.clusters.read().unwrap_or_else(PoisonError::into_inner);
                clusters.get(&key).copied()
            };
            if let Some(fit) = known {
                return Ok(fit);
            }
            let fit = self.function(file, entry, shared)?.clusters(blocks, threads, shared)? > 0;
            let mut clusters = self.0.clusters.write().unwrap_or_else(PoisonError::into_inner);
            clusters.insert(key, fit);
            Ok(fit)
        }

        fn module(&self, file: &'static str) -> Result<LoadedModule> {
            let mut modules = self.0.modules.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(module) = modules.get(file) {
                return Ok(*module);
            }
            let embedded = modules::module(file).ok_or(Error::NotBuilt { file })?;
            // SAFETY: the image is a complete fatbin that `nvcc` wrote, aligned, and lives as long as the program.
            let module = unsafe { result::module::load_data(embedded.image().as_ptr().cast()) }
                .map_err(|e| Error::driver("loading a kernel module", e))?;
            let module = LoadedModule(module);
            modules.insert(file, module);
            Ok(module)
        }
    }

    /// What [`CurrentContext::scratch_pool`] keeps.
    const KEPT_SCRATCH_BYTES: u64 = 256 << 20;

    fn scratch_pool() -> std::result::Result<sys::CUmemoryPool, DriverError> {
        let mut device = 0;
        // SAFETY: `device` outlives the call.
        unsafe { sys::cuCtxGetDevice(&mut device) }.result()?;
        // SAFETY: plain data, for which zeros are "nothing special".
        let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.handleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        let mut kept = KEPT_SCRATCH_BYTES;
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

    fn describe_current_device() -> std::result::Result<DeviceInfo, DriverError> {
        let mut device = 0;
        // SAFETY: `device` outlives the call; without a current context the driver answers with an error.
        unsafe { sys::cuCtxGetDevice(&mut device) }.result()?;
        let attribute = |which: Attribute| -> std::result::Result<u32, DriverError> {
            // SAFETY: the driver has just named this device.
            unsafe { result::device::get_attribute(device, which) }.map(|value| value.max(0) as u32)
        };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(DeviceInfo::from_reported(&Reported {
            compute_capability: major * 10 + minor,
            sm_count: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
            clock_khz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            memory_khz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            bus_bits: attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        }))
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
        const CAPABILITY: u32 = 90;
        const SINCE: i32 = 12_030;
        static CAN: OnceLock<bool> = OnceLock::new();
        device.compute_capability >= CAPABILITY
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
    use crate::gemm::kernels::{self, Arithmetic};
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
        }
    }

    #[test]
    fn what_the_driver_says_counts() {
        let info = DeviceInfo::from_reported(&reported(89));
        assert_eq!((info.sm_count, info.clock_mhz), (48, 2000));
        assert_eq!((info.shared_per_block, info.l2_bytes), (101_376, 24 << 20));
        assert_eq!(info.memory_gbps, 256.0);
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
                    let plan = Plan::new(&problem, &info).unwrap();
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
            let explained = explain(&problem, &DeviceInfo::from_reported(&reported(capability)));
            let choice = explained.choice.as_ref().unwrap();
            assert_eq!(choice.kernel.arithmetic, arithmetic, "{capability}: {explained}");
            let text = explained.to_string();
            assert!(kernels::TABLE.iter().all(|spec| text.contains(spec.name)), "{text}");
            assert!(!text.contains("inf"), "{capability}: {text}");
        }
    }
}
