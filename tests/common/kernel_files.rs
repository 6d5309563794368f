//! The files of the kernels.

use std::path::{Path, PathBuf};

/// Sources and headers below `cuda/`, sorted.
pub fn kernel_files() -> Vec<PathBuf> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("cuda/") {
            let path = entry.expect("cuda/").path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.sort();
    files
}
