//! The mlp example as a person runs it: the result on the committed weights, training, and bad input, which must end it
//! with one clear line and exit code 1.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The example, with the profile and features of this test. Under cargo it is built where it is missing or old; where
/// the binaries were moved to another machine, it lies beside the tests.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let test = std::env::current_exe().expect("the test knows its own path");
        let profile = test.ancestors().nth(2).expect("tests lie in target/PROFILE/deps");
        if let Some(cargo) = std::env::var_os("CARGO") {
            let name = profile
                .file_name()
                .and_then(|name| name.to_str())
                .expect("a profile has a name");
            let mut build = Command::new(cargo);
            build.args(["build", "--quiet", "--example", "mlp", "--target-dir"]);
            build.arg(profile.parent().expect("profiles lie in a target folder"));
            build.args(["--profile", if name == "debug" { "dev" } else { name }]);
            if cfg!(feature = "cuda") {
                build.args(["--features", "cuda"]);
            }
            assert!(
                build.status().expect("cargo can be started").success(),
                "the example does not build"
            );
        }
        profile
            .join("examples")
            .join(format!("mlp{}", std::env::consts::EXE_SUFFIX))
    })
}

fn mlp(args: &[&str]) -> Output {
    Command::new(program())
        .args(args)
        .env_remove("RUST_BACKTRACE")
        .current_dir(project())
        .output()
        .expect("the example can be started")
}

/// The folder of the project: where it was built, or the working directory if the binaries were moved.
fn project() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR"));
    if built.exists() {
        built.to_path_buf()
    } else {
        PathBuf::from(".")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeed(args: &[&str]) -> String {
    let output = mlp(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Exit code 1, a message with these parts, no panic, nothing on standard output.
fn fail(args: &[&str], parts: &[&str]) {
    let output = mlp(args);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", text(&output.stdout));
    assert!(
        message.starts_with("error: ") && !message.contains("panicked"),
        "{args:?}: {message}"
    );
    for part in parts {
        assert!(message.contains(part), "{args:?}: '{part}' is not in: {message}");
    }
}

/// The number in front of the first `%`.
fn accuracy(report: &str) -> f64 {
    let line = report
        .lines()
        .find(|line| line.starts_with("accuracy"))
        .expect("the report has an accuracy");
    let before = line.split('%').next().unwrap_or_default();
    before
        .split_whitespace()
        .last()
        .expect("a number before %")
        .parse()
        .expect("the accuracy is a number")
}

#[test]
fn the_committed_weights_classify_the_held_out_digits() {
    let report = succeed(&["--device", "cpu"]);
    assert!(accuracy(&report) >= 96.0, "{report}");
    assert!(report.contains("359 of 359 (all)"), "{report}");
    for batch in ["     1 ", "    64 ", "  1024 "] {
        assert!(
            report.lines().any(|line| line.starts_with(batch)),
            "no batch {batch} in:\n{report}"
        );
    }
}

#[test]
fn weights_in_16_bits_classify_as_well() {
    let report = succeed(&["--device", "cpu", "--dtype", "f16"]);
    assert!(accuracy(&report) >= 96.0, "{report}");
    assert!(report.contains(", f16"), "{report}");
}

#[test]
fn training_writes_weights_that_can_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("small.safetensors");
    let file_name = file.to_str().unwrap();
    let trained = succeed(&[
        "--train",
        "--hidden",
        "32",
        "--epochs",
        "8",
        "--weights",
        file_name,
        "--device",
        "cpu",
    ]);
    assert!(accuracy(&trained) > 85.0, "{trained}");
    assert_eq!(
        std::fs::read_dir(&folder).unwrap().count(),
        1,
        "only the weights are left"
    );
    let read = succeed(&["--weights", file_name, "--device", "cpu"]);
    assert_eq!(accuracy(&read), accuracy(&trained));
    assert!(read.contains("64-32-10"), "{read}");

    // Wrong shapes, and a file that ends early.
    fail(
        &["--weights", file_name, "--hidden", "32,16"],
        &[file_name, "64-32-10", "64-32-16-10"],
    );
    let bytes = std::fs::read(&file).unwrap();
    for length in [0, 7, 100, bytes.len() - 1] {
        std::fs::write(&file, &bytes[..length]).unwrap();
        fail(&["--weights", file_name], &[file_name]);
    }
}

#[test]
fn bad_input_is_refused_with_a_clear_line() {
    fail(
        &["--weights", "no/such/file.safetensors"],
        &["no/such/file.safetensors", "--train"],
    );
    fail(&["--weights", "README.md"], &["README.md"]);
    fail(&["--hidden", "12"], &["64-512-512-10", "64-12-10"]);
    fail(&["--hidden", "12,x"], &["--hidden", "'x'"]);
    fail(&["--hidden", "0"], &["--hidden", "0"]);
    fail(&["--device", "tpu"], &["--device", "tpu", "cuda"]);
    fail(&["--kernel", "no_such_kernel"], &["no_such_kernel", "sgemm_01_naive"]);
    fail(
        &["--kernel", "sgemm_01_naive", "--device", "cpu"],
        &["sgemm_01_naive", "CUDA"],
    );
    fail(&["--data", "no/such.csv"], &["no/such.csv"]);
    fail(
        &["--train", "--weights", "no/such/folder/w.safetensors"],
        &["no/such/folder/w.safetensors", "folder"],
    );
    if !candle_core::utils::cuda_is_available() {
        fail(&["--device", "cuda"], &["--features cuda"]);
    }
}

#[test]
fn a_digit_that_does_not_parse_is_named_by_file_and_line() {
    let digits = std::fs::read_to_string(project().join("examples/data/optdigits.csv")).unwrap();
    let lines: Vec<&str> = digits.lines().collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("digits.csv");
    let file_name = file.to_str().unwrap();
    let with_line_7 = |line: &str| {
        let mut lines = lines.clone();
        lines[6] = line;
        std::fs::write(&file, lines.join("\n")).unwrap();
    };
    let good = lines[6];
    let short = good.rsplit_once(',').unwrap().0;
    for (line, reason) in [
        (format!("x{good}"), "column 1"),
        (format!("{short},-1"), "column 65"),
        (format!("{short},17"), "above 16"),
        (format!("{short},3.5"), "'3.5'"),
        (short.to_string(), "64 numbers"),
        (format!("{good},0"), "66 numbers"),
        (String::new(), "column 1"),
        (format!("10{}", &good[1..]), "label"),
    ] {
        with_line_7(&line);
        fail(&["--data", file_name], &[&format!("{file_name}, line 7"), reason]);
    }
    std::fs::write(&file, lines[1..].join("\n")).unwrap();
    fail(&["--data", file_name], &["line 1", "header"]);
    std::fs::write(&file, lines[..3].join("\n")).unwrap();
    fail(&["--data", file_name], &["2 digits"]);
    std::fs::write(&file, [0xffu8, 0xfe, 0x00]).unwrap();
    fail(&["--data", file_name], &[file_name]);
}
