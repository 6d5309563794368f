//! The way to the real cuBLAS, past the functions of the same names here.

use crate::error::report;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// `cublasStatus_t`
pub(super) type Status = c_uint;
/// `CUBLAS_STATUS_NOT_INITIALIZED`: what a function returns that this process lacks.
pub(super) const NOT_INITIALIZED: Status = 1;

/// The files of cuBLAS are called this and a version, whoever packs them: `libcublas.so.13`, `libcublasLt-1a2b.so.11`.
const LIBRARY_PREFIX: &[u8] = b"libcublas";

/// A function of the real cuBLAS.
pub(super) struct Real {
    name: &'static CStr,
    /// 0 until it is found.
    address: AtomicUsize,
    reported: AtomicBool,
}

impl Real {
    pub(super) const fn new(name: &'static CStr) -> Self {
        Real {
            name,
            address: AtomicUsize::new(0),
            reported: AtomicBool::new(false),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }

    /// Its address: in the library that the loader would have taken it from, or else in a cuBLAS that the program has
    /// loaded for itself, whatever its version. Where there is none, that is said once, and looked for again at the next call.
    pub(super) fn address(&self) -> Option<usize> {
        let known = self.address.load(Ordering::Relaxed);
        if known != 0 {
            return Some(known);
        }
        // SAFETY: the name is a C string. `RTLD_NEXT` looks behind the object that this code is part of, so it cannot find the
        // functions of this crate.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = match next.is_null() {
            false => Some(next as usize),
            true => in_loaded_libraries(self.name),
        };
        match found {
            Some(address) => self.address.store(address, Ordering::Relaxed),
            None if self.reported.swap(true, Ordering::Relaxed) => {}
            None => report(format_args!("this process has no cuBLAS with {:?}", self.name)),
        }
        found
    }
}

/// Looks for a function in the libraries that the program has loaded where only those that asked for them see them (plugins, the
/// modules of Python): cuBLAS's own first, then any other and what it depends on.
fn in_loaded_libraries(name: &CStr) -> Option<usize> {
    let (ours, others): (Vec<_>, Vec<_>) = loaded_libraries().into_iter().partition(|path| is_cublas(path));
    ours.into_iter().chain(others).find_map(|path| in_library(&path, name))
}

/// The function in this library or what it depends on, unless it is one of this crate. The library then stays loaded.
fn in_library(path: &CStr, name: &CStr) -> Option<usize> {
    // SAFETY: a C string; `RTLD_NOLOAD` runs no code of a library that is not there yet.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: a live library and a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() || object_of(found as usize).base == object_of(in_library as *const () as usize).base {
        // SAFETY: the handle came from `dlopen` and is used no more.
        unsafe { libc::dlclose(library) };
        return None;
    }
    Some(found as usize)
}

/// The paths of all shared libraries of this process; the program itself has none.
fn loaded_libraries() -> Vec<CString> {
    unsafe extern "C" fn keep(info: *mut libc::dl_phdr_info, _size: usize, paths: *mut c_void) -> c_int {
        // SAFETY: the loader describes an object, and `paths` is what is given to it below.
        let (info, paths) = unsafe { (&*info, &mut *paths.cast::<Vec<CString>>()) };
        if !info.dlpi_name.is_null() {
            // SAFETY: the name is a C string while this function runs.
            let path = unsafe { CStr::from_ptr(info.dlpi_name) };
            if !path.is_empty() {
                paths.push(path.to_owned());
            }
        }
        0
    }
    let mut paths = Vec::new();
    // SAFETY: the function gets what it expects, and only before this returns.
    unsafe { libc::dl_iterate_phdr(Some(keep), std::ptr::from_mut(&mut paths).cast()) };
    paths
}

/// Whether a path is that of cuBLAS or cuBLASLt.
fn is_cublas(path: &CStr) -> bool {
    let file = path.to_bytes().rsplit(|&byte| byte == b'/').next();
    file.is_some_and(|file| file.starts_with(LIBRARY_PREFIX))
}

/// The object that an address lies in.
struct Object {
    /// Where it begins; 0: in none.
    base: usize,
    is_cublas: bool,
}

fn object_of(address: usize) -> Object {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked about; `info` outlives the call.
    let known = unsafe { libc::dladdr(address as *const c_void, &mut info) } != 0;
    let name: *const c_char = info.dli_fname;
    Object {
        base: if known { info.dli_fbase as usize } else { 0 },
        // SAFETY: the name of a loaded object is a C string.
        is_cublas: known && !name.is_null() && is_cublas(unsafe { CStr::from_ptr(name) }),
    }
}

/// Whether the code at this address is cuBLAS's own: its libraries call each other by names that are defined here too.
pub(super) fn is_in_cublas(address: usize) -> bool {
    object_of(address).is_cublas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cublas_is_known_by_its_file_whatever_its_version_and_folder() {
        for (path, expected) in [
            (c"/usr/local/cuda/lib64/libcublas.so.13", true),
            (c"/opt/nvidia/cublas/lib/libcublas.so.11.4.1.1043", true),
            (c"libcublasLt.so.12", true),
            (c"/wheel.libs/libcublas-9d1f5a2b.so.11", true),
            (c"/opt/libcublas/libother.so", false),
            (c"/usr/lib/libopenblas.so.0", false),
            (c"", false),
        ] {
            assert_eq!(is_cublas(path), expected, "{path:?}");
        }
    }

    #[test]
    fn loaded_libraries_are_found_and_searched() {
        let libraries = loaded_libraries();
        assert!(libraries
            .iter()
            .any(|path| path.to_bytes().windows(4).any(|part| part == b"libc")));
        let found = in_loaded_libraries(c"strlen").expect("every program has a C library");
        assert_ne!(object_of(found).base, object_of(is_cublas as *const () as usize).base);
        assert_eq!(in_loaded_libraries(c"candle_sgemm_has_no_such_function"), None);
    }
}
