//! The library for `LD_PRELOAD`, in programs that know nothing of it. What it does on a GPU is what
//! `tests/matmul_override.rs` checks; here it has to stay out of the way.

use std::path::PathBuf;
use std::process::{Command, Output};

fn library() -> PathBuf {
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
        .env("LD_PRELOAD", library())
        .envs(variables.iter().copied())
        .output()
        .expect("/bin/sh runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, stderr)
}

fn ran(output: &Output) -> bool {
    output.status.success() && output.stdout == b"ran\n"
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
