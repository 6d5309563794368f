//! Compiles every `cuda/**/*.cu` to a fatbin with machine code for the architectures asked for, and writes a Rust file
//! that embeds them together with what `ptxas` said of each kernel. Without the feature `cuda` it does nothing.

#[cfg(feature = "cuda")]
#[allow(dead_code)] // the library has a part of it
#[path = "src/architectures.rs"]
mod architectures;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/architectures.rs");
    #[cfg(feature = "cuda")]
    if let Err(message) = cuda::build() {
        // The first line reaches cargo's own error output; the rest (nvcc's message) is in the script's log below it.
        let first = message.lines().next().unwrap_or_default();
        println!("cargo::error={first}");
        eprintln!("{message}");
        std::process::exit(1);
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::architectures::{self, Wish};
    use std::collections::hash_map::DefaultHasher;
    use std::collections::BTreeSet;
    use std::fmt::Write as _;
    use std::hash::{Hash, Hasher};
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Mutex;
    use std::{env, fs};

    /// Overrides every other choice for this crate alone; candle's kernels keep to [`COMPUTE_CAP`].
    const ARCHITECTURES: &str = "CANDLE_SGEMM_ARCHS";
    /// What candle builds its own kernels for.
    const COMPUTE_CAP: &str = "CUDA_COMPUTE_CAP";
    /// Options that nvcc takes from the environment.
    const NVCCS_OWN: [&str; 2] = ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"];
    /// Files for one architecture end in this; they use its own instructions, so they get the `a` target.
    const HOPPER_SUFFIX: &str = "_sm90";
    const HOPPER: u32 = 90;

    /// What one `.cu` file becomes.
    struct Module {
        /// Path below `cuda/` without the extension: the name under which the table finds it.
        name: String,
        source: PathBuf,
        fatbin: PathBuf,
        log: PathBuf,
    }

    pub fn build() -> Result<(), String> {
        let others = [ARCHITECTURES, COMPUTE_CAP, "CUDA_HOME", "NVCC", "PATH"];
        for variable in others.into_iter().chain(NVCCS_OWN) {
            println!("cargo::rerun-if-env-changed={variable}");
        }
        println!("cargo::rerun-if-changed=cuda");
        let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| e.to_string())?);
        let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(|e| e.to_string())?);
        let nvcc = cudaforge::CudaToolkit::detect()
            .map_err(|error| {
                format!(
                    "the feature `cuda` needs nvcc and none was found ({error}): install the CUDA toolkit, put its bin \
                     folder on PATH or set CUDA_HOME, or run `eval \"$(scripts/cuda-toolkit.sh)\"` in this repository"
                )
            })?
            .nvcc_path;
        // For tests that ask the compiler about a kernel's source.
        println!("cargo::rustc-env=CANDLE_SGEMM_NVCC={}", nvcc.display());
        let capabilities = capabilities(&nvcc)?;
        let cuda = root.join("cuda");
        let mut sources = Vec::new();
        let mut headers = Vec::new();
        collect(&cuda, &mut sources, &mut headers)?;
        // The largest files first, which mostly take longest: what is left when some processors have nothing to do is short.
        sources.sort_by_key(|source| std::cmp::Reverse(fs::metadata(source).map_or(0, |file| file.len())));

        let modules: Vec<Module> = sources
            .into_iter()
            .filter(|source| capabilities.contains(&HOPPER) || !is_hopper_only(source))
            .map(|source| {
                let name = source.strip_prefix(&cuda).unwrap_or(&source).with_extension("");
                let name = name.to_string_lossy().replace('\\', "/");
                let stem = out.join(name.replace('/', "-"));
                Module {
                    name,
                    fatbin: stem.with_extension("fatbin"),
                    log: stem.with_extension("ptxas.txt"),
                    source,
                }
            })
            .collect();
        compile_all(&nvcc, &modules, &headers, &capabilities)?;
        fs::write(out.join("kernels.rs"), rust_source(&modules, &capabilities)?)
            .map_err(|error| format!("cannot write kernels.rs: {error}"))
    }

    /// `CANDLE_SGEMM_ARCHS`, else `CUDA_COMPUTE_CAP`, else the GPU found, else all, as far as this nvcc knows them.
    fn capabilities(nvcc: &Path) -> Result<Vec<u32>, String> {
        let choice = architectures::choose(&wish()?, known_to(nvcc).as_deref())?;
        for warning in choice.warnings {
            println!("cargo::warning={warning}");
        }
        Ok(choice.capabilities)
    }

    fn wish() -> Result<Wish, String> {
        if let Ok(list) = env::var(ARCHITECTURES) {
            return architectures::named(ARCHITECTURES, &list);
        }
        let asked_for = env::var_os(COMPUTE_CAP).is_some();
        match cudaforge::detect_compute_cap() {
            Ok(found) if asked_for => Ok(Wish::Named {
                variable: COMPUTE_CAP,
                capabilities: vec![found.base() as u32],
                all: false,
            }),
            Ok(found) => Ok(Wish::Gpu(found.base() as u32)),
            Err(error) if asked_for => Err(format!("{COMPUTE_CAP} is not understood: {error}")),
            Err(_) => Ok(Wish::Nothing),
        }
    }

    /// The compute capabilities that this nvcc knows; `None` where it does not say.
    fn known_to(nvcc: &Path) -> Option<Vec<u32>> {
        let output = Command::new(nvcc).arg("--list-gpu-arch").output().ok()?;
        let printed = output.status.success().then_some(output.stdout)?;
        architectures::known_to_nvcc(&String::from_utf8_lossy(&printed))
    }

    fn is_hopper_only(source: &Path) -> bool {
        let stem = source.file_stem().unwrap_or_default().to_string_lossy();
        stem.ends_with(HOPPER_SUFFIX)
    }

    fn collect(folder: &Path, sources: &mut Vec<PathBuf>, headers: &mut Vec<PathBuf>) -> Result<(), String> {
        let entries = fs::read_dir(folder).map_err(|e| format!("cannot read {}: {e}", folder.display()))?;
        let mut paths = Vec::new();
        for entry in entries {
            paths.push(
                entry
                    .map_err(|e| format!("cannot read {}: {e}", folder.display()))?
                    .path(),
            );
        }
        paths.sort();
        for path in paths {
            if path.is_dir() {
                collect(&path, sources, headers)?;
                continue;
            }
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("cu") => sources.push(path),
                Some("cuh") => headers.push(path),
                _ => {}
            }
        }
        Ok(())
    }

    /// nvcc's options for one file: machine code for each architecture, and PTX of the lowest for newer cards.
    fn options(module: &Module, capabilities: &[u32]) -> Result<Vec<String>, String> {
        let mut options: Vec<String> = ["-fatbin", "-O3", "-std=c++17", "-Xptxas", "-v"]
            .iter()
            .map(|option| option.to_string())
            .collect();
        if is_hopper_only(&module.source) {
            options.push("-gencode=arch=compute_90a,code=sm_90a".into());
            return Ok(options);
        }
        let mut boundaries = BTreeSet::from(architectures::BOUNDARIES_OF_CUDA);
        for file in with_its_headers(&module.source)? {
            boundaries.extend(architectures::boundaries(&file));
        }
        for (i, together) in architectures::compiled_together(capabilities, &boundaries).enumerate() {
            let first = together[0];
            let mut code: Vec<String> = together.iter().map(|capability| format!("sm_{capability}")).collect();
            if i == 0 {
                code.push(format!("compute_{first}"));
            }
            options.push(format!("-gencode=arch=compute_{first},code=[{}]", code.join(",")));
        }
        Ok(options)
    }

    /// The texts of a source and of what it includes of this crate.
    fn with_its_headers(source: &Path) -> Result<Vec<String>, String> {
        let mut paths = vec![source.to_path_buf()];
        let mut texts = Vec::new();
        while let Some(path) = paths.get(texts.len()).cloned() {
            let text = fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
            for line in text.lines() {
                let directive = line.trim_start().strip_prefix('#').map(str::trim_start);
                let included = directive.and_then(|line| line.strip_prefix("include"));
                let Some(quoted) = included.and_then(|path| path.trim_start().strip_prefix('"')) else {
                    continue;
                };
                let header = folder.join(quoted.split('"').next().unwrap_or_default());
                let header = header
                    .canonicalize()
                    .map_err(|e| format!("{} includes {}: {e}", path.display(), header.display()))?;
                if !paths.contains(&header) {
                    paths.push(header);
                }
            }
            texts.push(text);
        }
        Ok(texts)
    }

    fn compile_all(nvcc: &Path, modules: &[Module], headers: &[PathBuf], capabilities: &[u32]) -> Result<(), String> {
        let read = |path: &Path| fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()));
        let mut shared = DefaultHasher::new();
        nvcc.hash(&mut shared);
        NVCCS_OWN.map(env::var_os).hash(&mut shared);
        for header in headers {
            read(header)?.hash(&mut shared);
        }
        let shared = shared.finish();

        let jobs = env::var("NUM_JOBS")
            .ok()
            .and_then(|jobs| jobs.parse().ok())
            .unwrap_or(1usize);
        let next = AtomicUsize::new(0);
        let failures = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..jobs.clamp(1, modules.len().max(1)) {
                scope.spawn(|| {
                    while let Some(module) = modules.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let result = read(&module.source)
                            .and_then(|source| compile(nvcc, module, &source, shared, capabilities));
                        if let Err(message) = result {
                            failures.lock().unwrap_or_else(|e| e.into_inner()).push(message);
                        }
                    }
                });
            }
        });
        let mut failures = failures.into_inner().unwrap_or_else(|e| e.into_inner());
        failures.sort();
        if failures.is_empty() {
            Ok(())
        } else {
            Err(failures.join("\n"))
        }
    }

    fn compile(nvcc: &Path, module: &Module, source: &[u8], shared: u64, capabilities: &[u32]) -> Result<(), String> {
        let options = options(module, capabilities)?;
        let mut key = DefaultHasher::new();
        (source, shared, &options).hash(&mut key);
        let key = format!("{:016x}", key.finish());
        let key_file = module.fatbin.with_extension("key");
        if module.fatbin.exists() && module.log.exists() && fs::read_to_string(&key_file).is_ok_and(|old| old == key) {
            return Ok(());
        }
        if let Some(log) = take_from_another_build(module, &key) {
            warn(module, &log);
            return keep_key(&key_file, &key);
        }
        let output = Command::new(nvcc)
            .args(&options)
            .arg("-o")
            .arg(&module.fatbin)
            .arg(&module.source)
            .output()
            .map_err(|error| format!("{} could not be started: {error}", nvcc.display()))?;
        let log = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!(
                "nvcc could not compile {}\n{}{log}",
                module.source.display(),
                String::from_utf8_lossy(&output.stdout)
            ));
        }
        warn(module, &log);
        fs::write(&module.log, log.as_bytes())
            .map_err(|error| format!("cannot write {}: {error}", module.log.display()))?;
        keep_key(&key_file, &key)
    }

    fn warn(module: &Module, log: &str) {
        for line in log.lines().filter(|line| line.contains("warning")) {
            println!("cargo::warning={}: {line}", module.name);
        }
    }

    /// The last of a module's files: who finds the key finds the others.
    fn keep_key(file: &Path, key: &str) -> Result<(), String> {
        fs::write(file, key).map_err(|error| format!("cannot write {}: {error}", file.display()))
    }

    /// Copies what another build of this package below the same target folder, of another profile or with other features, has compiled of
    /// the same sources with the same options. Returns what the compiler said; `None` where there is no such build.
    fn take_from_another_build(module: &Module, key: &str) -> Option<String> {
        // …/target/PROFILE/build/PACKAGE-HASH/out
        let out = module.fatbin.parent()?;
        let target = out.ancestors().nth(4)?;
        let package = format!("{}-", env::var("CARGO_PKG_NAME").ok()?);
        let folders = |folder: &Path| {
            fs::read_dir(folder)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
        };
        let of_this_package = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&package)
        };
        let profiles = folders(target).map(|profile| profile.join("build"));
        let mut others = profiles.flat_map(|build| folders(&build)).filter(of_this_package);
        others.find_map(|other| {
            let there = |file: &Path| Some(other.join("out").join(file.file_name()?));
            let same = fs::read_to_string(there(&module.fatbin.with_extension("key"))?).ok()? == key;
            if !same {
                return None;
            }
            fs::copy(there(&module.fatbin)?, &module.fatbin).ok()?;
            fs::copy(there(&module.log)?, &module.log).ok()?;
            fs::read_to_string(&module.log).ok()
        })
    }

    /// The file that `src/modules.rs` includes.
    fn rust_source(modules: &[Module], capabilities: &[u32]) -> Result<String, String> {
        let mut text = format!("static ARCHITECTURES: &[u32] = &{capabilities:?};\n");
        text += "static MODULES: &[Module] = &[\n";
        for module in modules {
            let path = module.fatbin.to_string_lossy().into_owned();
            let _ = writeln!(
                text,
                "    Module {{ file: {:?}, image: &Aligned(*include_bytes!({path:?})) }},",
                module.name
            );
        }
        text += "];\nstatic RESOURCES: &[Resources] = &[\n";
        for module in modules {
            let log =
                fs::read_to_string(&module.log).map_err(|e| format!("cannot read {}: {e}", module.log.display()))?;
            for resources in parse_ptxas(&log) {
                let _ = writeln!(text, "    {resources},");
            }
        }
        text += "];\n";
        Ok(text)
    }

    /// `ptxas -v` prints for each kernel and architecture a line with its name, one with stack and spills, and one with
    /// registers and static shared memory.
    fn parse_ptxas(log: &str) -> Vec<String> {
        let number_before = |line: &str, words: &str| -> u32 {
            let before = line.split(words).next().filter(|before| before.len() < line.len());
            let last = before.and_then(|before| before.split([' ', ',']).rfind(|word| !word.is_empty()));
            last.and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        let mut found = Vec::new();
        let mut kernel = String::new();
        let mut spilled = 0;
        for line in log.lines() {
            if line.contains("Compiling entry function") {
                let mut quoted = line.split('\'').skip(1).step_by(2);
                let entry = quoted.next().unwrap_or_default();
                let target = quoted.next().unwrap_or_default().trim_start_matches("sm_");
                let capability = target.trim_end_matches('a');
                kernel = format!("entry: {entry:?}, capability: {capability}");
            } else if line.contains("bytes spill stores") {
                spilled = number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
            } else if line.contains("Used ") && line.contains(" registers") {
                let registers = number_before(line, " registers");
                let shared = number_before(line, " bytes smem");
                found.push(format!(
                    "Resources {{ {kernel}, registers: {registers}, static_shared: {shared}, spilled: {spilled} }}"
                ));
            }
        }
        found
    }
}
