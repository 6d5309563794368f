//! The kernels as PTX: nvcc makes it, without a GPU, and what it made is kept below `target/`.

#[path = "../../common/kernel_files.rs"]
mod kernel_files;
#[path = "../../common/needs.rs"]
mod needs;

use candle_sgemm::device::DeviceInfo;
use kernel_files::kernel_files;
use needs::skip;
use ptx_emulator::{Module, Watch};
use std::collections::hash_map::DefaultHasher;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::{env, fs};

/// Files for Hopper alone end in this.
const HOPPER_SUFFIX: &str = "_sm90";

/// An architecture that PTX is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    Ampere,
    Ada,
    Hopper,
    Blackwell,
}

impl Target {
    /// What nvcc makes the PTX of a file for.
    pub fn architecture(self, file: &str) -> &'static str {
        match self {
            _ if file.ends_with(HOPPER_SUFFIX) => "compute_90a",
            Target::Ampere => "compute_80",
            Target::Ada => "compute_89",
            Target::Hopper => "compute_90",
            Target::Blackwell => "compute_120",
        }
    }

    /// A device that has it.
    pub const fn device(self) -> DeviceInfo {
        match self {
            Target::Ampere => DeviceInfo::A100,
            Target::Ada => DeviceInfo::RTX_4090,
            Target::Hopper => DeviceInfo::H100,
            Target::Blackwell => DeviceInfo {
                compute_capability: 120,
                ..DeviceInfo::RTX_4090
            },
        }
    }

    /// Whether it can start a kernel before the one before it has ended.
    pub fn starts_early(self) -> bool {
        self.device().has_early_starts()
    }

    /// Whether a source file is compiled for it.
    pub fn has(self, file: &str) -> bool {
        self == Target::Hopper || !file.ends_with(HOPPER_SUFFIX)
    }
}

/// nvcc, if there is one: `NVCC`, in `CUDA_HOME` or on the path.
pub fn nvcc() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            let named = env::var_os("NVCC").map(PathBuf::from);
            let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os);
            let home = homes
                .map(|home| Path::new(&home).join("bin/nvcc"))
                .find(|path| path.is_file());
            let on_path = || {
                let path = env::var_os("PATH")?;
                env::split_paths(&path)
                    .map(|folder| folder.join("nvcc"))
                    .find(|path| path.is_file())
            };
            named.or(home).or_else(on_path).or_else(|| {
                let usual = PathBuf::from("/usr/local/cuda/bin/nvcc");
                usual.is_file().then_some(usual)
            })
        })
        .as_deref()
}

/// True after saying that, and why, `test` is skipped.
pub fn skipped(test: &str) -> bool {
    if nvcc().is_some() {
        return false;
    }
    skip(
        test,
        "nvcc",
        "no nvcc (put it on PATH, or run `eval \"$(scripts/cuda-toolkit.sh)\"`)",
    );
    true
}

/// The barrier or byte whose story a failing run tells: `CANDLE_SGEMM_EMULATED_TRACE`.
pub fn watched() -> Option<Watch> {
    static WATCHED: OnceLock<Option<Watch>> = OnceLock::new();
    *WATCHED.get_or_init(|| {
        let text = env::var("CANDLE_SGEMM_EMULATED_TRACE").ok()?;
        Some(text.parse().expect("CANDLE_SGEMM_EMULATED_TRACE"))
    })
}

fn cuda() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda")
}

/// `target/tmp`, where cargo keeps the files of tests; its examples are not told of it.
pub fn kept() -> PathBuf {
    const UP: usize = 3; // from target/PROFILE/FOLDER/PROGRAM
    let program = env::current_exe().expect("a program knows its own path");
    let target = || program.ancestors().nth(UP).map(|target| target.join("tmp"));
    option_env!("CARGO_TARGET_TMPDIR")
        .map(PathBuf::from)
        .or_else(target)
        .unwrap_or_else(env::temp_dir)
}

/// The sources of the kernels and their headers.
fn sources() -> &'static [PathBuf] {
    static FILES: OnceLock<Vec<PathBuf>> = OnceLock::new();
    FILES.get_or_init(kernel_files)
}

/// A number that changes with any header.
fn headers() -> u64 {
    static HASH: OnceLock<u64> = OnceLock::new();
    *HASH.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        let is_header = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "cuh");
        for header in sources().iter().filter(is_header) {
            fs::read(header).expect("a header").hash(&mut hasher);
        }
        hasher.finish()
    })
}

/// The PTX of `cuda/FILE.cu`.
pub fn text(file: &str, target: Target) -> String {
    match env::var_os("CANDLE_SGEMM_EMULATED_PTX") {
        Some(folder) => of_a_build(Path::new(&folder), file, target),
        None => from_source(&cuda().join(file).with_extension("cu"), file, target),
    }
}

/// What nvcc left in this folder when the crate was last built for all architectures, with `NVCC_APPEND_FLAGS="-lineinfo --keep
/// --keep-dir=FOLDER"`: that build has made all PTX that is wanted here.
fn of_a_build(folder: &Path, file: &str, target: Target) -> String {
    let stem = Path::new(file)
        .file_name()
        .and_then(|stem| stem.to_str())
        .expect("a file's name");
    // Files for Hopper alone have one PTX, others one for several architectures, but where they ask for one of these.
    let candidates: &[&str] = match target {
        _ if file.ends_with(HOPPER_SUFFIX) => &[""],
        Target::Ampere => &[".compute_80"],
        Target::Ada => &[".compute_89", ".compute_80"],
        Target::Hopper => &[".compute_90"],
        Target::Blackwell => &[".compute_120", ".compute_100"],
    };
    let modified = |path: &Path| fs::metadata(path).and_then(|data| data.modified());
    let paths = candidates.iter().map(|name| folder.join(format!("{stem}{name}.ptx")));
    let path = paths
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("CANDLE_SGEMM_EMULATED_PTX has no {stem}{}.ptx", candidates[0]));
    let built = modified(&path).expect("a file's time");
    let newer = sources()
        .iter()
        .find(|source| modified(source).expect("a file's time") > built);
    if let Some(source) = newer {
        panic!("{} is newer than {}: build again", source.display(), path.display());
    }
    fs::read_to_string(&path).expect("PTX")
}

/// The PTX of any source that includes the crate's headers as `cuda/FILE.cu` would.
pub fn from_source(source: &Path, name: &str, target: Target) -> String {
    let nvcc = nvcc().expect("nvcc: tests ask for it first");
    let mut hasher = DefaultHasher::new();
    (
        headers(),
        fs::read(source).expect("a source"),
        target.architecture(name),
        nvcc,
    )
        .hash(&mut hasher);
    // The lines that PTX names are those of this checkout's files: another one that shares the target folder has its own.
    let mut checkout = DefaultHasher::new();
    cuda().hash(&mut checkout);
    let folder = kept().join(format!("ptx/{:016x}", checkout.finish()));
    fs::create_dir_all(&folder).expect("target/tmp");
    let kept = folder.join(format!(
        "{}-{}-{:016x}.ptx",
        name.replace('/', "-"),
        target.architecture(name),
        hasher.finish()
    ));
    if let Ok(text) = fs::read_to_string(&kept) {
        return text;
    }
    // Two threads may want the same source at once, and so may two processes: each writes a file of its own.
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    let unfinished = kept.with_extension(format!(
        "{}-{}.tmp",
        std::process::id(),
        WRITTEN.fetch_add(1, Ordering::Relaxed)
    ));
    let output = Command::new(nvcc)
        .args(["-ptx", "-O3", "-std=c++17", "-lineinfo"])
        .arg(format!("-arch={}", target.architecture(name)))
        .arg("-o")
        .arg(&unfinished)
        .arg(source)
        .output()
        .expect("nvcc starts");
    assert!(
        output.status.success(),
        "nvcc could not compile {}:\n{}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    fs::rename(&unfinished, &kept).expect("target/tmp");
    fs::read_to_string(&kept).expect("what nvcc has just written")
}

/// The parsed PTX of a file; each is made once.
pub fn module(file: &str, target: Target) -> Arc<Module> {
    type Modules = Mutex<HashMap<(String, Target), Arc<OnceLock<Arc<Module>>>>>;
    static MODULES: OnceLock<Modules> = OnceLock::new();
    let slot = {
        let mut modules = MODULES
            .get_or_init(Modules::default)
            .lock()
            .expect("no test panics here");
        modules.entry((file.to_string(), target)).or_default().clone()
    };
    slot.get_or_init(|| match Module::parse(&text(file, target)) {
        Ok(module) => Arc::new(module),
        Err(error) => panic!("{file}: {error}"),
    })
    .clone()
}
