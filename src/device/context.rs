//! The CUDA context that a thread works in: its device, and the kernels that were loaded there.

use super::capture::RelaxedCapture;
use super::function::Function;
use super::scratch::ScratchMemory;
use super::{DeviceInfo, Reported, BLOCKS_BESIDE, CLUSTER_SIZES};
use crate::architectures::code_for;
use crate::error::{Error, Result};
use crate::modules;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{result, DriverError};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

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
    scratch: Arc<ScratchMemory>,
}

#[derive(Clone, Copy)]
struct LoadedModule(sys::CUmodule);

// SAFETY: the driver allows the use of a module handle from every thread that has its context current.
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
                    scratch: Arc::new(ScratchMemory::new(info.scratch_bytes())),
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

    /// The scratch memory of this context.
    pub(crate) fn scratch(&self) -> &Arc<ScratchMemory> {
        &self.0.scratch
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
        // The first launch of a kernel may be captured, which not every driver bears with where a module is loaded.
        let _relaxed =
            RelaxedCapture::begin().map_err(|e| Error::driver("allowing a kernel to be loaded during a capture", e))?;
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
        let module = unsafe { result::module::load_data(embedded.image().as_ptr().cast()) }.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => Error::NotBuilt { file },
            _ => Error::driver("loading a kernel module", e),
        })?;
        let module = LoadedModule(module);
        modules.insert(file, module);
        Ok(module)
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
