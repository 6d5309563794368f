//! What the compiler made of every kernel, on every architecture of this build. Needs nvcc but no GPU. Prints a table;
//! fails where a row of the table has no kernel, or a kernel spills registers on an architecture that its row does not
//! allow by name.
#![cfg(feature = "cuda")]

use candle_sgemm::gemm::TABLE;
use candle_sgemm::modules::{architectures, module, resources};
use std::collections::BTreeMap;
use std::process::Command;

#[test]
fn every_row_of_the_table_is_compiled_and_spills_only_where_allowed() {
    let mut complaints = Vec::new();
    println!(
        "{:<44} {:>4} {:>5} {:>9} {:>7}",
        "kernel", "sm", "regs", "smem", "spills"
    );
    for spec in TABLE {
        if module(spec.file).is_none() {
            let elsewhere = spec
                .needs
                .only_capability
                .is_some_and(|only| !architectures().contains(&only));
            if !elsewhere {
                complaints.push(format!("{}: cuda/{}.cu was not compiled", spec.name, spec.file));
            }
            continue;
        }
        for &capability in architectures() {
            if capability < spec.needs.min_capability || spec.needs.only_capability.is_some_and(|c| c != capability) {
                continue;
            }
            let Some(found) = resources()
                .iter()
                .find(|r| r.entry == spec.name && r.capability == capability)
            else {
                complaints.push(format!("{}: no machine code for sm_{capability}", spec.name));
                continue;
            };
            let shared = found.static_shared + spec.dynamic_shared;
            println!(
                "{:<44} {capability:>4} {:>5} {shared:>9} {:>7}",
                spec.name, found.registers, found.spilled
            );
            if found.spilled > 0 && !spec.may_spill_on.contains(&capability) {
                complaints.push(format!(
                    "{}: spills {} bytes on sm_{capability}",
                    spec.name, found.spilled
                ));
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// The threads that a block of this kernel is declared to have at most, in the PTX of its file.
fn declared_threads(ptx: &str, name: &str) -> Option<u32> {
    let entry = &ptx[ptx.find(&format!(".entry {name}("))?..];
    let header = &entry[..entry.find('{')?];
    let (_, numbers) = header.split_once(".maxntid ")?;
    // One to three numbers: x, y and z.
    let numbers = numbers
        .lines()
        .next()?
        .split(',')
        .map(|number| number.trim().parse::<u32>());
    numbers.product::<Result<u32, _>>().ok()
}

/// The table says how many threads and how much dynamic shared memory a launch asks for, and the source how much the kernel uses:
/// memory would be written past, silently.
#[test]
fn launches_ask_for_the_threads_and_the_shared_memory_that_kernels_use() {
    let nvcc = env!("CANDLE_SGEMM_NVCC");
    if Command::new(nvcc).arg("--version").output().is_err() {
        println!("skipped: {nvcc}, which built this, is not on this machine");
        return;
    }
    let folder = std::env::temp_dir().join(format!("candle-sgemm-shared-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut files: BTreeMap<&str, String> = BTreeMap::new();
    for spec in TABLE {
        let start = || format!("#include \"{}/cuda/{}.cu\"\n", env!("CARGO_MANIFEST_DIR"), spec.file);
        let (name, bytes) = (spec.name, spec.dynamic_shared);
        let text = files.entry(spec.file).or_insert_with(start);
        if bytes > 0 {
            *text += &format!("static_assert({name}_shared == {bytes}, \"{name}: the table has {bytes} bytes\");\n");
        }
    }
    let mut complaints = Vec::new();
    for (number, (file, text)) in files.iter().enumerate() {
        let (source, output) = (folder.join(format!("{number}.cu")), folder.join("out.ptx"));
        std::fs::write(&source, text).unwrap();
        // Only the assertions are wanted, so nothing is optimised.
        let compiled = Command::new(nvcc)
            .args(["-std=c++17", "-arch=compute_90a", "-Xcicc", "-O0", "-ptx", "-o"])
            .args([&output, &source])
            .output()
            .unwrap();
        if !compiled.status.success() {
            complaints.push(format!("{file}: {}", String::from_utf8_lossy(&compiled.stderr)));
            continue;
        }
        let ptx = std::fs::read_to_string(&output).unwrap();
        for spec in TABLE.iter().filter(|spec| spec.file == *file) {
            let declared = declared_threads(&ptx, spec.name);
            if declared != Some(spec.threads) {
                let (name, threads) = (spec.name, spec.threads);
                complaints.push(format!(
                    "{name}: the table has {threads} threads, the source {declared:?}"
                ));
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    println!("{} files are as the table says", files.len() - complaints.len());
    assert!(complaints.is_empty() && files.len() > 5, "{}", complaints.join("\n"));
}

#[test]
fn every_transposition_is_compiled_for_every_element_size_and_spills_nothing() {
    let mut complaints = Vec::new();
    for kernel in candle_sgemm::transpose::TABLE {
        let built = |capability: &u32| kernel.needs.only_capability.is_none_or(|only| only == *capability);
        for &capability in architectures().iter().filter(|&capability| built(capability)) {
            for instance in kernel.instances {
                match resources()
                    .iter()
                    .find(|r| r.entry == instance.entry && r.capability == capability)
                {
                    None => complaints.push(format!("{}: no machine code for sm_{capability}", instance.entry)),
                    Some(found) if found.spilled > 0 => complaints.push(format!(
                        "{}: spills {} bytes on sm_{capability}",
                        instance.entry, found.spilled
                    )),
                    Some(_) => {}
                }
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
