//! Captures: what may be done while a graph is recorded, and what a stream is recorded into.

use cudarc::driver::{result, sys, DriverError};
use std::ffi::CStr;
use std::sync::{Mutex, OnceLock};
use std::thread::ThreadId;

/// A stream within one capture, which lives as long: the driver does not tell its number then. Its handle, and the thread where
/// that stands for another stream in each.
pub(crate) type Lane = (usize, Option<ThreadId>);

/// Held by whoever records a graph, one at a time, and by whoever waits for all work of a context: that would end every
/// recording of the context with an error, in whichever thread.
pub(crate) static CAPTURES: Mutex<()> = Mutex::new(());

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
