//! The costs that `calibrate` fitted on this machine, in a file of the user's cache folder from one process to the next.

use super::store::plain_file_name;
#[cfg(feature = "cuda")]
use crate::device::CurrentContext;
use crate::device::DeviceInfo;
use crate::error::report;
use crate::gemm::kernel::costs::{Costs, Origin};
use crate::settings::Settings;
#[cfg(feature = "cuda")]
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
#[cfg(feature = "cuda")]
use std::sync::{Mutex, OnceLock, PoisonError};

#[cfg(feature = "cuda")]
/// The costs by which products on the device of `context` are planned: those that `calibrate` wrote for a GPU of this name,
/// else the nearest that the crate has. Read once.
pub fn costs(context: &CurrentContext) -> &'static Costs {
    /// By the name of the GPU: there are few.
    static COSTS: OnceLock<Mutex<HashMap<String, &'static Costs>>> = OnceLock::new();
    let mut all = COSTS
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    all.entry(context.name().to_string())
        .or_insert_with(|| match of_user(context.name(), context.info()) {
            Some(costs) => Box::leak(Box::new(costs)),
            None => Costs::built_in(context.info()),
        })
}

/// Where the costs of a GPU of this name are kept, for this version of the crate; `None` if the user has no cache folder.
pub fn path(gpu: &str) -> Option<PathBuf> {
    Some(Settings::read().cache_folder()?.join(file_name(gpu)))
}

fn file_name(gpu: &str) -> String {
    plain_file_name(&format!("costs-{gpu}-v{}", env!("CARGO_PKG_VERSION")))
}

/// The costs that are kept for a GPU of this name, with the built-in ones for kernels that they lack. A file that is of no use
/// counts as none, with a line on stderr.
pub fn of_user(gpu: &str, device: &DeviceInfo) -> Option<Costs> {
    let path = path(gpu)?;
    match read(&path) {
        Ok(costs) => Some(costs.or(Costs::built_in(device))),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                report(format_args!("ignoring the costs in {}: {error}", path.display()));
            }
            None
        }
    }
}

/// The costs in this file.
///
/// # Errors
///
/// If it cannot be read, is not a file of costs, or has numbers that cannot be.
pub fn read(path: &Path) -> io::Result<Costs> {
    let mut costs: Costs = serde_json::from_slice(&fs::read(path)?)?;
    costs
        .validate()
        .map_err(|text| io::Error::new(io::ErrorKind::InvalidData, text))?;
    costs.origin = Origin::File(path.into());
    Ok(costs)
}

/// Keeps costs in this file. Who reads meanwhile sees the old file or the new one. A link stays one; what is no regular file, such as a
/// pipe, is written to and not replaced.
///
/// # Errors
///
/// If it cannot be written.
pub fn write(costs: &Costs, path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let text = serde_json::to_vec_pretty(costs)?;
    // Where nothing is yet, there is nothing to follow.
    let path = path.canonicalize().unwrap_or_else(|_| path.into());
    if path.exists() && !path.is_file() {
        return fs::write(path, text);
    }
    let fresh = path.with_extension("new");
    fs::write(&fresh, text)?;
    fs::rename(fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_there_for_the_next_process_and_a_file_of_no_use_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/costs.json");
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let mut costs = Costs::built_in(&DeviceInfo::H200).clone();
        costs.gpu = "NVIDIA H200".into();
        costs.shared.launch_us = 1.875;
        write(&costs, &path).unwrap();
        let found = read(&path).unwrap();
        assert_eq!((&found.shared, &found.kernels), (&costs.shared, &costs.kernels));
        let said = found.to_string();
        assert!(
            said.contains("NVIDIA H200") && said.contains("deep/costs.json"),
            "{said}"
        );
        costs.shared.launch_us = -1.0;
        write(&costs, &path).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("launch_us"));
        fs::write(&path, "{ half a fi").unwrap();
        assert!(read(&path).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_and_devices_are_written_through_and_stay() {
        let folder = tempfile::tempdir().unwrap();
        let costs = Costs::built_in(&DeviceInfo::H200);
        let device = Path::new("/dev/null");
        let is_device = !device.is_file();
        for target in [folder.path().join("costs.json"), device.into()] {
            let link = folder.path().join("link");
            if !target.exists() {
                fs::write(&target, "").unwrap();
            }
            std::os::unix::fs::symlink(&target, &link).unwrap();
            write(costs, &link).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), target);
            fs::remove_file(link).unwrap();
        }
        assert_eq!(read(&folder.path().join("costs.json")).unwrap().shared, costs.shared);
        assert_eq!(!device.is_file(), is_device);
    }

    #[test]
    fn the_file_is_named_after_the_gpu_and_the_crate() {
        let expected = format!("costs-NVIDIA-H200-v{}.json", env!("CARGO_PKG_VERSION"));
        assert_eq!(file_name("NVIDIA H200"), expected);
    }
}
