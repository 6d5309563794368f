//! The programs as they are typed.

use models::record::Report;
use std::process::{Command, Output};

fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output();
    output.unwrap_or_else(|error| panic!("{program} cannot be started: {error}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn models_are_listed_chosen_and_written() {
    let program = env!("CARGO_BIN_EXE_models");
    let list = text(&run(program, &["--list"]).stdout);
    assert_eq!(list.lines().count(), models::zoo::ALL.len());
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_string_lossy().into_owned();
    let arguments =
        "--device cpu --small --seconds 0 --model bert-base,whisper-step --precision fp32 --dtype f32,f16 --out";
    let arguments: Vec<&str> = arguments.split(' ').chain([out.as_str()]).collect();
    let output = run(program, &arguments);
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{printed}{}", text(&output.stderr));
    assert!(
        printed.contains("bert-base") && printed.contains("override+graph"),
        "{printed}"
    );
    let report = Report::read(&folder.path().join("models.json")).expect("a report");
    assert!(!report.command.contains("--out"), "{}", report.command);
    let rows: Vec<_> = report
        .rows
        .iter()
        .map(|row| (row.model.as_deref(), row.way.as_deref()))
        .collect();
    // Whisper's table of positions is of 32 bits, whatever its weights are: it has a row that says so.
    let [bert, whisper] = ["bert-base", "whisper-step"].map(|name| {
        let ways = rows.iter().filter(|(model, _)| *model == Some(name));
        ways.filter_map(|(_, way)| *way).collect::<Vec<_>>()
    });
    let ways = ["override", "override+graph", "fused", "fused+graph"];
    assert_eq!(bert, [ways, ways].concat());
    assert_eq!(whisper, ["override", "override+graph", "stock"]);
    assert!(folder.path().join("models.csv").exists());
}

#[test]
fn decoding_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_string_lossy().into_owned();
    let arguments = "--device cpu --small --seconds 0 --way fused --prompt 2 --tokens 3 --out";
    let arguments: Vec<&str> = arguments.split(' ').chain([out.as_str()]).collect();
    let output = run(env!("CARGO_BIN_EXE_decode"), &arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = Report::read(&folder.path().join("decode.json")).expect("a report");
    let ways: Vec<_> = report.rows.iter().filter_map(|row| row.way.as_deref()).collect();
    assert_eq!(ways, ["stock", "fused", "fused"]);
    assert!(report.rows.iter().all(|row| row.tokens_per_s > Some(0.0)));
}

#[test]
fn what_there_is_not_is_refused() {
    let (models, decode) = (env!("CARGO_BIN_EXE_models"), env!("CARGO_BIN_EXE_decode"));
    for (program, arguments, word) in [
        (models, "--device cpu --model bertha", "bertha"),
        (models, "--device cpu --way backwards", "backwards"),
        (models, "--device cpu --dtype f8", "f32, f16, bf16"),
        (decode, "--device cpu --small --way override+graph", "override+graph"),
        (decode, "--device cpu --small --capacity 3", "--capacity"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let output = run(program, &arguments);
        let error = text(&output.stderr);
        assert!(
            !output.status.success() && error.contains(word),
            "{arguments:?}: {error}"
        );
    }
}
