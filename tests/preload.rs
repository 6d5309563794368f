//! The library for `LD_PRELOAD`, in programs that know nothing of it. What it does on a GPU is what
//! `tests/matmul_override.rs` checks; here it has to stay out of the way.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn library_to_preload() -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    let profile = here.ancestors().nth(2).expect("tests lie in PROFILE/deps");
    let library = profile.join("examples/libcandle_sgemm_preload.so");
    assert!(
        library.exists(),
        "{} is missing: cargo build --features cuda,override --example candle_sgemm_preload",
        library.display()
    );
    library
}

/// `sh -c 'echo ran'` with the library, these variables, and no CUDA library on the loader's path.
fn run(variables: &[(&str, &str)]) -> (Output, String) {
    let output = Command::new("/bin/sh")
        .args(["-c", "echo ran"])
        .env_clear()
        .env("LD_PRELOAD", library_to_preload())
        .envs(variables.iter().copied())
        .output()
        .expect("/bin/sh runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, stderr)
}

fn ran(output: &Output) -> bool {
    output.status.success() && output.stdout == b"ran\n"
}

/// Whoever calls another function of the driver learns here which one the loader would look for.
#[test]
fn it_defines_every_function_of_cuda_that_it_calls() {
    let output = Command::new("nm")
        .args(["--dynamic", "--undefined-only", "--format=just-symbols"])
        .arg(library_to_preload())
        .output()
        .expect("nm is where the linker is");
    assert!(output.status.success(), "{output:?}");
    let symbols = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(symbols.lines().any(|symbol| symbol.starts_with("dlsym")), "{symbols}");
    let missing: Vec<_> = symbols
        .lines()
        .filter(|symbol| symbol.starts_with("cu") || symbol.starts_with("__cuda"))
        .collect();
    assert!(missing.is_empty(), "examples/preload/driver.rs lacks {missing:?}");
}

#[test]
fn a_program_without_cuda_runs_on_and_one_line_says_why_nothing_happens() {
    let (output, stderr) = run(&[]);
    assert!(ran(&output), "{output:?}");
    assert!(stderr.starts_with("candle-sgemm: "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn unknown_settings_are_named_with_those_that_exist_and_the_program_runs() {
    for (variable, value, choices) in [
        ("CANDLE_SGEMM_PRECISION", "fp8", "fp32-strict"),
        ("CANDLE_SGEMM_LOG", "everything", "summary"),
        ("CANDLE_SGEMM_DISABLE", "maybe", "0 or 1"),
        ("CANDLE_SGEMM_TIME", "now", "0 or 1"),
    ] {
        let (output, stderr) = run(&[(variable, value)]);
        assert!(ran(&output), "{output:?}");
        for word in [variable, value, choices, "stay with cuBLAS"] {
            assert!(stderr.contains(word), "{word}: {stderr}");
        }
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn disabled_it_is_silent() {
    let (output, stderr) = run(&[("CANDLE_SGEMM_DISABLE", "1")]);
    assert!(ran(&output), "{output:?}");
    assert_eq!(stderr, "");
}

/// Compiles C with these options into `folder/file`, and says where that is.
fn compile(folder: &Path, file: &str, source: &str, options: &[&str]) -> PathBuf {
    let (code, output) = (folder.join(format!("{file}.c")), folder.join(file));
    std::fs::write(&code, source).expect("the folder can be written to");
    let search = [
        format!("-L{0}", folder.display()),
        format!("-Wl,-rpath,{}", folder.display()),
    ];
    let status = Command::new("cc")
        .args([Path::new("-O1"), Path::new("-o"), &output, &code])
        .args(&search)
        .args(options)
        .status()
        .expect("a C compiler is there, for rustc links with it");
    assert!(status.success(), "{file} does not compile");
    output
}

/// A cuBLAS of its own that each of whose products says where it was computed, for all that are called here.
const CUBLAS: &str = "
    int cublasGetPointerMode_v2(void *handle, int *mode) { return 1; }
    int cublasGetMathMode(void *handle, int *mode) { return 1; }
    int cublasGetStream_v2(void *handle, void **stream) { return 1; }
    int cublasSgemm_v2(void *handle, int ta, int tb, int m, int n, int k, float *alpha, float *a, int lda, float *b, int ldb,
                       float *beta, float *c, int ldc) { return m + n + k + ldc; }
    int cublasGemmEx(void *handle, int ta, int tb, int m, int n, int k, float *alpha, float *a, int ta_, int lda, float *b,
                     int tb_, int ldb, float *beta, float *c, int tc_, int ldc, int compute, int algo)
        { return m + n + k + ldc + compute + algo; }
";

/// A module that is linked against it, as Python's are.
const PLUGIN: &str = "
    int cublasSgemm_v2(void *, int, int, int, int, int, float *, float *, int, float *, int, float *, float *, int);
    int cublasGemmEx(void *, int, int, int, int, int, float *, float *, int, int, float *, int, int, float *, float *, int,
                     int, int, int);
    int sgemm(void) { return cublasSgemm_v2(0, 0, 0, 1, 2, 3, 0, 0, 1, 0, 1, 0, 0, 100); }
    int gemm_ex(void) { return cublasGemmEx(0, 0, 0, 1, 2, 3, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 100, 1000, 10000); }
";

const PROGRAM: &str = "
    #include <dlfcn.h>
    #include <stdio.h>
    int main(int count, char **arguments) {
        void *plugin = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
        if (!plugin) { puts(dlerror()); return 1; }
        int (*sgemm)(void) = dlsym(plugin, \"sgemm\"), (*gemm_ex)(void) = dlsym(plugin, \"gemm_ex\");
        printf(\"%d %d\", sgemm(), gemm_ex());
        return 0;
    }
";

/// What `PROGRAM` prints where its calls arrive.
const BOTH_ARRIVED: &[u8] = b"106 11106";

#[test]
fn a_cublas_of_any_version_that_a_plugin_keeps_to_itself_goes_on_working() {
    for version in ["9.2", "10", "11", "12", "13", "42"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let library = format!("libcublas.so.{version}");
        let soname = format!("-Wl,-soname,{library}");
        compile(folder.path(), &library, CUBLAS, &["-shared", "-fPIC", &soname]);
        let links = ["-shared", "-fPIC", &format!("-l:{library}")];
        let plugin = compile(folder.path(), "plugin.so", PLUGIN, &links);
        let program = compile(folder.path(), "program", PROGRAM, &["-ldl"]);
        for variables in [
            &[][..],
            &[("CANDLE_SGEMM_DISABLE", "1")],
            &[("CANDLE_SGEMM_DISABLE", "yes")],
        ] {
            let output = Command::new(&program)
                .arg(&plugin)
                .env_clear()
                .env("LD_PRELOAD", library_to_preload())
                .envs(variables.iter().copied())
                .output()
                .expect("the program runs");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.stdout, BOTH_ARRIVED, "{version} {variables:?}: {stderr}");
            assert!(!stderr.contains("has no cuBLAS"), "{version} {variables:?}: {stderr}");
            assert!(
                variables.is_empty() || stderr.is_empty(),
                "{version} {variables:?}: {stderr}"
            );
        }
    }
}
