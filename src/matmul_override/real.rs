//! The way to the real cuBLAS, past the functions of the same names here.

use crate::error::report;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void, CStr, CString};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

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
    let objects = loaded_objects();
    let here = in_loaded_libraries as *const () as usize;
    let own = |address: usize| objects.iter().any(|object| object.has(address) && object.has(here));
    let (cublas, others): (Vec<_>, Vec<_>) = objects.iter().partition(|object| is_cublas(&object.path));
    cublas
        .into_iter()
        .chain(others)
        .filter(|object| !object.path.is_empty())
        .find_map(|object| in_library(&object.path, name, own))
}

/// The function in this library or what it depends on, unless it is one of this crate (`own`). The library then stays loaded.
fn in_library(path: &CStr, name: &CStr, own: impl Fn(usize) -> bool) -> Option<usize> {
    // SAFETY: a C string; `RTLD_NOLOAD` runs no code of a library that is not there yet.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: a live library and a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() || own(found as usize) {
        // SAFETY: the handle came from `dlopen` and is used no more.
        unsafe { libc::dlclose(library) };
        return None;
    }
    Some(found as usize)
}

/// The program or a shared library of it.
struct Object {
    /// Empty for the program itself.
    path: CString,
    /// The addresses that it takes.
    segments: Vec<Range<usize>>,
}

impl Object {
    fn has(&self, address: usize) -> bool {
        self.segments.iter().any(|segment| segment.contains(&address))
    }
}

/// Everything that the loader has brought into this process. (`dladdr` would go through the symbols of a library, of which some
/// have a hundred thousand.)
fn loaded_objects() -> Vec<Object> {
    unsafe extern "C" fn keep(info: *mut libc::dl_phdr_info, _size: usize, objects: *mut c_void) -> c_int {
        // SAFETY: the loader describes an object, and `objects` is what is given to it below.
        let (info, objects) = unsafe { (&*info, &mut *objects.cast::<Vec<Object>>()) };
        let (path, headers) = match (info.dlpi_name.is_null(), info.dlpi_phdr.is_null()) {
            // SAFETY: the name is a C string, and there are so many headers, while this function runs.
            (false, false) => unsafe {
                let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
                (CStr::from_ptr(info.dlpi_name).to_owned(), headers)
            },
            _ => return 0,
        };
        let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let segments = loaded.map(|header| {
            let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            start..start.saturating_add(header.p_memsz as usize)
        });
        objects.push(Object {
            path,
            segments: segments.collect(),
        });
        0
    }
    let mut objects = Vec::new();
    // SAFETY: the function gets what it expects, and only before this returns.
    unsafe { libc::dl_iterate_phdr(Some(keep), std::ptr::from_mut(&mut objects).cast()) };
    objects
}

/// Whether a path is that of cuBLAS or cuBLASLt.
fn is_cublas(path: &CStr) -> bool {
    let file = path.to_bytes().rsplit(|&byte| byte == b'/').next();
    file.is_some_and(|file| file.starts_with(LIBRARY_PREFIX))
}

/// Whether the code at this address is cuBLAS's own: its libraries call each other by names that are defined here too. A program
/// calls from few places, so the answer is kept for each.
pub(super) fn is_in_cublas(address: usize) -> bool {
    /// More places than any program calls from, unless it makes its code as it runs.
    const MAX_PLACES: usize = 4096;
    static KNOWN: RwLock<BTreeMap<usize, bool>> = RwLock::new(BTreeMap::new());
    if let Some(&known) = KNOWN.read().unwrap_or_else(PoisonError::into_inner).get(&address) {
        return known;
    }
    let objects = loaded_objects();
    let found = objects
        .iter()
        .any(|object| object.has(address) && is_cublas(&object.path));
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= MAX_PLACES {
        known.clear();
    }
    known.insert(address, found);
    found
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
        let here = in_loaded_libraries as *const () as usize;
        let objects = loaded_objects();
        let home = |address| objects.iter().position(|object| object.has(address));
        let found = in_loaded_libraries(c"strlen").expect("every program has a C library");
        // (Some processors get a version of their own, whose address is no symbol's.)
        assert!(home(here).is_some() && home(found).is_some() && home(found) != home(here));
        assert!(objects
            .iter()
            .any(|object| object.path.to_bytes().windows(4).any(|part| part == b"libc")));
        assert!(!is_in_cublas(here) && !is_in_cublas(found) && !is_in_cublas(0));
        assert_eq!(in_loaded_libraries(c"candle_sgemm_has_no_such_function"), None);
    }
}
