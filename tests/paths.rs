//! Every file and folder of this repository that a document, a kernel or a comment names exists, and every link of a document
//! leads somewhere.

use std::fs;
use std::path::{Path, PathBuf};

/// What a path of this repository begins with.
const FOLDERS: [&str; 7] = ["src", "cuda", "tests", "benches", "examples", "docs", "scripts"];
/// Files in which paths are looked for, beside all in the folders.
const FILES: [&str; 3] = ["README.md", "CHANGELOG.md", "build.rs"];
/// Names that stand for any other.
const PLACEHOLDERS: [&str; 2] = ["FILE", "NAME"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Documents and sources below `path`.
fn texts(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            texts(&entry.unwrap().path(), found);
        }
    } else if path
        .extension()
        .is_some_and(|kind| ["md", "rs", "cu", "cuh"].iter().any(|known| kind == *known))
    {
        found.push(path.to_owned());
    }
}

/// The part of a line in which paths are those of this repository: all of it, but of Rust only the comment.
fn said<'a>(file: &Path, line: &'a str) -> &'a str {
    match file.extension().is_some_and(|kind| kind == "rs") {
        true => line.find("//").map_or("", |at| &line[at + 2..]),
        false => line,
    }
}

/// The words of a text that are paths from the root of the repository, without those that stand for several.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let of_a_path = |c: char| c.is_alphanumeric() || "_./-*{}…".contains(c);
    let words = text
        .split(move |c| !of_a_path(c))
        .map(|word| word.trim_end_matches(['.', '-']));
    words.filter(|word| {
        let starts = word
            .split_once('/')
            .is_some_and(|(folder, _)| FOLDERS.contains(&folder));
        let stem = Path::new(word).file_stem().and_then(|stem| stem.to_str());
        let stands_for_others = word.contains(['*', '{', '…']) || stem.is_some_and(|stem| PLACEHOLDERS.contains(&stem));
        starts && !stands_for_others
    })
}

/// Where the links of a line of a document lead that leave neither the repository nor the document.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let targets = targets.map(|(target, _)| target.split('#').next().unwrap_or(target));
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

#[test]
fn every_path_that_is_named_exists() {
    let mut files = Vec::new();
    for start in FOLDERS.iter().chain(&FILES) {
        texts(&root().join(start), &mut files);
    }
    let (mut named, mut missing) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let folder = file.parent().unwrap();
        for (i, line) in text.lines().enumerate() {
            let place = || format!("{}:{}", file.strip_prefix(root()).unwrap().display(), i + 1);
            for path in paths(said(&file, line)) {
                named += 1;
                // A package within this one may count from its own root.
                let within = || folder.ancestors().take_while(|at| at.starts_with(root()));
                if !within().any(|at| at.join(path).exists()) {
                    missing.push(format!("{} names {path}", place()));
                }
            }
            if file.extension().is_some_and(|kind| kind == "md") {
                for link in links(line).filter(|link| !folder.join(link).exists()) {
                    missing.push(format!("{} links to {link}", place()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "no such file or folder:\n{}", missing.join("\n"));
    assert!(named > 100, "paths are not found any more: {named}");
}

#[test]
fn paths_and_links_are_found_in_a_text() {
    let text =
        "`src/gemm/launch/args.rs` and (docs/precision.md), cuda/FILE.cu, cuda/{file}.cu, /usr/local/cuda/lib64, \
                docs/*.md, cuda/ladder/….cu; see src/candle/.";
    let found: Vec<&str> = paths(text).collect();
    assert_eq!(found, ["src/gemm/launch/args.rs", "docs/precision.md", "src/candle/"]);
    assert_eq!(
        said(Path::new("a.rs"), "let x = \"src/\"; // of src/lib.rs"),
        " of src/lib.rs"
    );
    let found: Vec<&str> = links("[a](ladder.md#one) and [b](https://b.org/c), [c](#d), ![d](plots/e.svg)").collect();
    assert_eq!(found, ["ladder.md", "plots/e.svg"]);
}
