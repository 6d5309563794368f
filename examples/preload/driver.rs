//! The CUDA driver, looked up when the library is loaded.
//!
//! A library that is linked against `libcuda.so.1` cannot be preloaded where there is none: the loader would stop the
//! program. So the functions of the driver that this crate calls are defined here, each as a jump to an address that
//! [`load`] fills in. They are hidden: the program and its libraries go on seeing the driver's own.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `CUDA_ERROR_NOT_INITIALIZED`, from a function that was not found.
extern "C" fn missing() -> u32 {
    3
}

macro_rules! forward {
    ($($name:literal)*) => {
        const NAMES: &[&str] = &[$(concat!($name, "\0")),*];
        /// Where each function is, in the order of `NAMES`.
        static ADDRESSES: [AtomicPtr<()>; NAMES.len()] =
            [const { AtomicPtr::new(missing as *const () as *mut ()) }; NAMES.len()];

        #[cfg(target_arch = "x86_64")]
        std::arch::global_asm!(
            ".set candle_sgemm_slot, 0",
            $(
                concat!(".globl ", $name),
                concat!(".hidden ", $name),
                concat!(".type ", $name, ", @function"),
                concat!($name, ":"),
                "jmp *{addresses} + candle_sgemm_slot(%rip)",
                ".set candle_sgemm_slot, candle_sgemm_slot + 8",
            )*
            addresses = sym ADDRESSES,
            options(att_syntax),
        );

        #[cfg(target_arch = "aarch64")]
        std::arch::global_asm!(
            ".set candle_sgemm_slot, 0",
            $(
                concat!(".globl ", $name),
                concat!(".hidden ", $name),
                concat!(".type ", $name, ", %function"),
                concat!($name, ":"),
                "adrp x16, {addresses}",
                "add x16, x16, :lo12:{addresses}",
                "ldr x16, [x16, #candle_sgemm_slot]",
                "br x16",
                ".set candle_sgemm_slot, candle_sgemm_slot + 8",
            )*
            addresses = sym ADDRESSES,
        );
    };
}

forward! {
    "cuCtxGetDevice"
    "cuCtxGetId"
    "cuCtxSynchronize"
    "cuDeviceGetAttribute"
    "cuDeviceGetName"
    "cuDeviceTotalMem_v2"
    "cuDriverGetVersion"
    "cuEventCreate"
    "cuEventDestroy_v2"
    "cuEventElapsedTime_v2"
    "cuEventRecord"
    "cuEventSynchronize"
    "cuFuncGetAttribute"
    "cuFuncSetAttribute"
    "cuGetErrorString"
    "cuGetProcAddress_v2"
    "cuGraphRetainUserObject"
    "cuLaunchKernel"
    "cuLaunchKernelEx"
    "cuMemAllocAsync"
    "cuMemAllocFromPoolAsync"
    "cuMemFreeAsync"
    "cuMemPoolCreate"
    "cuMemPoolDestroy"
    "cuMemPoolSetAttribute"
    "cuMemcpyDtoDAsync_v2"
    "cuMemcpyHtoDAsync_v2"
    "cuMemsetD8Async"
    "cuModuleGetFunction"
    "cuOccupancyMaxActiveClusters"
    "cuModuleLoadData"
    "cuStreamCreate"
    "cuStreamDestroy_v2"
    "cuStreamGetId"
    "cuStreamIsCapturing"
    "cuStreamSynchronize"
    "cuTensorMapEncodeTiled"
    "cuThreadExchangeStreamCaptureMode"
    "cuUserObjectCreate"
    "cuUserObjectRelease"
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {missing}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {missing}"
    };
}

/// Kernels of candle come along with its library and register with the CUDA runtime when this one is loaded. Nothing here
/// launches them, so the runtime's functions are defined to do nothing rather than to need it.
macro_rules! unused {
    ($($name:literal)*) => {
        std::arch::global_asm!(
            $(
                concat!(".globl ", $name),
                concat!(".hidden ", $name),
                concat!($name, ":"),
            )*
            jump!(),
            missing = sym missing,
        );
    };
}

unused! {
    "__cudaGetKernel"
    "__cudaLaunchKernel_ptsz"
    "__cudaPopCallConfiguration"
    "__cudaPushCallConfiguration"
    "__cudaRegisterFatBinary"
    "__cudaRegisterFatBinaryEnd"
    "__cudaRegisterFunction"
    "__cudaRegisterVar"
    "__cudaUnregisterFatBinary"
    "cudaDeviceGetAttribute"
    "cudaFree"
    "cudaFreeAsync_ptsz"
    "cudaFuncGetAttributes"
    "cudaFuncSetAttribute"
    "cudaGetDevice"
    "cudaGetDeviceCount"
    "cudaGetErrorName"
    "cudaGetErrorString"
    "cudaGetLastError"
    "cudaMalloc"
    "cudaMallocAsync_ptsz"
    "cudaMemsetAsync_ptsz"
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"
    "cudaPeekAtLastError"
    "cudaSetDevice"
    "cudaStreamSynchronize_ptsz"
}

/// Finds the driver and its functions.
///
/// # Errors
///
/// If there is no driver, or one without a function that is needed.
pub fn load() -> Result<(), String> {
    // SAFETY: a C string. The program's own driver, if it has one, is the same library.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY) };
    if library.is_null() {
        return Err("there is no CUDA driver (libcuda.so.1)".into());
    }
    for (name, slot) in NAMES.iter().zip(&ADDRESSES) {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            continue;
        };
        // SAFETY: a live library and a C string.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        if address.is_null() {
            return Err(format!("the CUDA driver has no {name:?}: it is too old"));
        }
        slot.store(address.cast(), Ordering::Relaxed);
    }
    Ok(())
}
