//! What a build is for, and the script that sets up a toolkit, on machines that this one is not.

#[path = "../src/architectures.rs"]
mod architectures;
#[path = "common/kernel_files.rs"]
mod kernel_files;

use architectures::{boundaries, choose, compiled_together, known_to_nvcc, named, Wish, ALL, BOUNDARIES_OF_CUDA};
use kernel_files::kernel_files;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;

/// What `nvcc --list-gpu-arch` of CUDA 12.4 knows.
const CUDA_12_4: [u32; 12] = [50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 90];

#[test]
fn a_build_without_wishes_leaves_out_what_the_compiler_lacks_and_says_so() {
    let choice = choose(&Wish::Nothing, Some(&CUDA_12_4)).unwrap();
    assert_eq!(choice.capabilities, [80, 86, 90]);
    let [warning] = &choice.warnings[..] else {
        panic!("{:?}", choice.warnings);
    };
    assert!(warning.contains("89, 100, 120"), "{warning}");

    let everything = choose(&Wish::Nothing, Some(&ALL)).unwrap();
    assert_eq!((everything.capabilities, everything.warnings.len()), (ALL.to_vec(), 0));
    // A compiler that does not say what it knows is believed to know all.
    assert_eq!(choose(&Wish::Nothing, None).unwrap().capabilities, ALL);
}

#[test]
fn what_was_named_and_the_compiler_lacks_is_an_error_that_says_what_to_do() {
    for (list, lacking) in [
        ("120", "120"),
        ("80,100", "100"),
        ("all 100", "100"),
        ("90a, 121", "121"),
    ] {
        let wish = named("CANDLE_SGEMM_ARCHS", list).unwrap();
        let error = choose(&wish, Some(&CUDA_12_4)).unwrap_err();
        for words in ["CANDLE_SGEMM_ARCHS", lacking, "80, 86, 90", "12.8"] {
            assert!(error.contains(words), "{list}: {words}: {error}");
        }
    }
    // `all` alone is what the compiler has of them.
    let wish = named("CANDLE_SGEMM_ARCHS", "all").unwrap();
    let choice = choose(&wish, Some(&CUDA_12_4)).unwrap();
    assert_eq!((choice.capabilities, choice.warnings.len()), (vec![80, 86, 90], 1));
}

#[test]
fn a_gpu_that_the_compiler_does_not_know_gets_the_newest_older_code() {
    let choice = choose(&Wish::Gpu(120), Some(&CUDA_12_4)).unwrap();
    assert_eq!((choice.capabilities, choice.warnings.len()), (vec![90], 1));
    assert!(choice.warnings[0].contains("120"), "{:?}", choice.warnings);
    let known = choose(&Wish::Gpu(86), Some(&CUDA_12_4)).unwrap();
    assert_eq!((known.capabilities, known.warnings.len()), (vec![86], 0));
}

/// The condition `__CUDA_ARCH__ OPERATOR value` of an architecture.
fn holds(operator: &str, value: u32, capability: u32) -> bool {
    let has = 10 * capability;
    match operator {
        ">=" => has >= value,
        ">" => has > value,
        "<=" => has <= value,
        "<" => has < value,
        "==" => has == value,
        "!=" => has != value,
        _ => panic!("{operator} compares nothing"),
    }
}

#[test]
fn what_no_condition_tells_apart_is_compiled_together() {
    let groups = |capabilities: &[u32], boundaries: &BTreeSet<u32>| {
        let groups = compiled_together(capabilities, boundaries);
        groups.map(<[u32]>::to_vec).collect::<Vec<_>>()
    };
    let of_cuda = BTreeSet::from(BOUNDARIES_OF_CUDA);
    assert_eq!(groups(&ALL, &of_cuda), [vec![80, 86, 89], vec![90], vec![100, 120]]);
    let rng = &mut StdRng::seed_from_u64(1);
    for _ in 0..300 {
        let mut capabilities: Vec<u32> = (0..rng.random_range(1..9)).map(|_| rng.random_range(80..130)).collect();
        capabilities.sort_unstable();
        capabilities.dedup();
        let conditions: Vec<(&str, u32)> = (0..rng.random_range(0..5))
            .map(|_| {
                let operators = ["<", "<=", "==", "!=", ">=", ">"];
                (operators.choose(rng).copied().unwrap(), 10 * rng.random_range(75..130))
            })
            .collect();
        let lines = conditions.iter().map(|(operator, value)| {
            let spaces = ["", " ", "  "].choose(rng).unwrap();
            format!("#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__{spaces}{operator}{spaces}{value}\nint of_700;\n")
        });
        let boundaries: BTreeSet<u32> = boundaries(&lines.collect::<String>()).collect();
        let groups = groups(&capabilities, &boundaries);
        assert_eq!(groups.concat(), capabilities);
        let told_apart = |a: u32, b: u32| {
            let differs = |(operator, value): &(&str, u32)| holds(operator, *value, a) != holds(operator, *value, b);
            conditions.iter().any(differs)
        };
        for group in &groups {
            let mut pairs = group.iter().flat_map(|a| group.iter().map(move |b| (*a, *b)));
            assert!(pairs.all(|(a, b)| !told_apart(a, b)), "{groups:?}: {conditions:?}");
        }
        for pair in groups.windows(2) {
            let (last, first) = (pair[0][pair[0].len() - 1], pair[1][0]);
            // Between them lies a boundary, if not always one that these two differ by: 8.9 and 9.1 are both not 9.0.
            assert!(
                boundaries.iter().any(|&b| 10 * last < b && b <= 10 * first),
                "{groups:?}: {conditions:?}"
            );
        }
    }
}

/// A comparison that is not understood would compile for one architecture what is meant for another.
#[test]
fn every_condition_of_the_kernels_is_understood() {
    let (mut comparisons, mut sources) = (0, BTreeSet::new());
    for path in kernel_files() {
        // The compiler's intermediate files, of which the emulator takes the PTX, have the name of a source and no folder.
        let is_new = path.extension().is_none_or(|e| e != "cu") || sources.insert(path.file_name().unwrap().to_owned());
        assert!(is_new, "{}: another folder has one of this name", path.display());
        let source = std::fs::read_to_string(&path).unwrap();
        let parts: Vec<&str> = source.split("__CUDA_ARCH__").collect();
        for (before, after) in parts.iter().zip(&parts[1..]) {
            let line = after.lines().next().unwrap_or_default();
            let defined = before.ends_with("defined(") && line.starts_with(')');
            let (operator, rest) = match line.trim_start().split_once(' ') {
                Some((operator, rest)) if !operator.starts_with(')') => (operator, rest),
                _ => {
                    assert!(defined, "{}: __CUDA_ARCH__{line}", path.display());
                    continue;
                }
            };
            let value: u32 = rest
                .split(|c: char| !c.is_ascii_digit())
                .next()
                .unwrap()
                .parse()
                .unwrap();
            let understood: BTreeSet<u32> = boundaries(&format!("__CUDA_ARCH__{line}")).collect();
            for [a, b] in [[value / 10 - 1, value / 10], [value / 10, value / 10 + 1]] {
                let differ = holds(operator, value, a) != holds(operator, value, b);
                let lies_between = understood.range(10 * a + 1..=10 * b).next().is_some();
                assert_eq!(differ, lies_between, "{}: __CUDA_ARCH__{line}", path.display());
            }
            comparisons += 1;
        }
    }
    assert!(comparisons > 0);
}

/// Whatever is asked of whatever compiler: a choice is sorted, known, and what was named; otherwise it is an error.
#[test]
fn no_choice_holds_what_the_compiler_lacks() {
    const CAPABILITIES: [u32; 14] = [50, 70, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121, 130];
    for seed in 0..2000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let known: Vec<u32> = CAPABILITIES.into_iter().filter(|_| rng.random()).collect();
        let mut some = || {
            let count = rng.random_range(1..4);
            CAPABILITIES
                .choose_multiple(&mut rng, count)
                .copied()
                .collect::<Vec<_>>()
        };
        let (capabilities, gpu) = (some(), some()[0]);
        let wish = match seed % 4 {
            0 => Wish::Nothing,
            1 => Wish::Gpu(gpu),
            which => Wish::Named {
                variable: "ASKED",
                all: which == 3,
                capabilities: capabilities.clone(),
            },
        };
        let all_known = capabilities.iter().all(|capability| known.contains(capability));
        match choose(&wish, Some(&known)) {
            Ok(choice) => {
                let chosen = &choice.capabilities;
                assert!(!chosen.is_empty() && chosen.is_sorted(), "{seed}: {wish:?} {choice:?}");
                assert!(chosen.iter().all(|c| known.contains(c)), "{seed}: {wish:?} {choice:?}");
                assert!(chosen.windows(2).all(|two| two[0] < two[1]), "{seed}: {choice:?}");
                if let Wish::Named { .. } = wish {
                    assert!(
                        all_known && capabilities.iter().all(|c| chosen.contains(c)),
                        "{seed}: {choice:?}"
                    );
                }
            }
            Err(_) => match wish {
                Wish::Named { .. } => assert!(!all_known, "{seed}: {wish:?} of {known:?}"),
                Wish::Gpu(gpu) => assert!(!known.contains(&gpu), "{seed}: {wish:?} of {known:?}"),
                Wish::Nothing => assert!(!ALL.iter().any(|c| known.contains(c)), "{seed}: {known:?}"),
            },
        }
    }
}

#[test]
fn the_compilers_list_is_read_and_nonsense_is_no_list() {
    let printed = "compute_75\ncompute_80\ncompute_90\ncompute_90a\ncompute_120f\n";
    assert_eq!(known_to_nvcc(printed), Some(vec![75, 80, 90, 90, 120]));
    for nothing in ["", "nvcc fatal   : Unknown option '--list-gpu-arch'", "compute_"] {
        assert_eq!(known_to_nvcc(nothing), None, "{nothing}");
    }
    for word in ["hopper", "9.0", "-80", "90aa"] {
        let error = named("CANDLE_SGEMM_ARCHS", word).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
    assert!(named("CANDLE_SGEMM_ARCHS", " , ").is_err());
}

/// `scripts/cuda-toolkit.sh` with a toolkit that looks complete, and an `ldconfig` that does as it is told.
#[cfg(unix)]
mod toolkit_script {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::Command;

    const DRIVER_LINE: &str = "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1";
    /// Far more than a pipe holds, so that a reader who stops early is noticed.
    const OTHER_LIBRARIES: usize = 20_000;

    fn program(path: &Path, text: &str) {
        fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The folders of `LD_LIBRARY_PATH` that the script prints, where the loader's cache holds `lines`.
    fn library_path(lines: &[String], searched_before: Option<&Path>) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("toolkit");
        let home = root.join("lib/python3.11/site-packages/nvidia/cu13");
        for inside in [home.join("bin"), home.join("lib/stubs"), folder.path().join("bin")] {
            fs::create_dir_all(inside).unwrap();
        }
        program(&home.join("bin/nvcc"), "exit 0");
        fs::write(root.join(".complete"), "").unwrap();
        let cache = folder.path().join("cache.txt");
        fs::write(&cache, lines.join("\n") + "\n").unwrap();
        program(
            &folder.path().join("bin/ldconfig"),
            &format!("exec cat '{}'", cache.display()),
        );
        let path = std::env::var("PATH").unwrap_or_default();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/cuda-toolkit.sh");
        let mut command = Command::new("bash");
        command
            .arg(script)
            .env("CANDLE_SGEMM_TOOLKIT", &root)
            .env("PATH", format!("{}/bin:{path}", folder.path().display()))
            .env_remove("LD_LIBRARY_PATH");
        if let Some(searched) = searched_before {
            command.env("LD_LIBRARY_PATH", searched);
        }
        let output = command.output().expect("bash runs");
        assert!(output.status.success(), "{output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        let line = printed.lines().find(|line| line.starts_with("export LD_LIBRARY_PATH="));
        let value = line.expect("the script sets the variable").split_once('=').unwrap().1;
        value.split(':').map(String::from).collect()
    }

    fn hides_the_driver(folders: &[String]) -> bool {
        folders.iter().any(|folder| folder.ends_with("/stubs"))
    }

    fn cache(driver_at: Option<usize>) -> Vec<String> {
        let other = |i| format!("\tlibother{i}.so.1 (libc6,x86-64) => /usr/lib/libother{i}.so.1");
        let mut lines: Vec<String> = (0..OTHER_LIBRARIES).map(other).collect();
        if let Some(place) = driver_at {
            lines.insert(place, DRIVER_LINE.into());
        }
        lines
    }

    #[test]
    fn a_driver_anywhere_in_a_long_cache_is_found() {
        for place in [0, 1, 500, OTHER_LIBRARIES / 2, OTHER_LIBRARIES] {
            assert!(!hides_the_driver(&library_path(&cache(Some(place)), None)), "{place}");
        }
    }

    #[test]
    fn without_a_driver_the_stub_stands_in() {
        assert!(hides_the_driver(&library_path(&cache(None), None)));
        // A library of another name is no driver.
        let other = ["\tlibcuda.so.11 (libc6,x86-64) => /usr/lib/libcuda.so.11".to_string()];
        assert!(hides_the_driver(&library_path(&other, None)));
    }

    #[test]
    fn a_driver_in_a_folder_that_is_searched_is_not_hidden() {
        let folder = tempfile::tempdir().unwrap();
        assert!(hides_the_driver(&library_path(&[], Some(folder.path()))));
        fs::write(folder.path().join("libcuda.so.1"), "").unwrap();
        assert!(!hides_the_driver(&library_path(&[], Some(folder.path()))));
    }
}
