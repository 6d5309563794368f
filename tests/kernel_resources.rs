//! What the compiler made of every kernel, on every architecture of this build. Needs nvcc but no GPU. Prints a table;
//! fails where a row of the table has no kernel, or a kernel spills registers on an architecture that its row does not
//! allow by name.
#![cfg(feature = "cuda")]

use candle_sgemm::gemm::schedule::parallel;
use candle_sgemm::gemm::TABLE;
use candle_sgemm::modules::{architectures, module, resources};

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

#[test]
fn every_kernel_of_attention_rows_and_slices_is_compiled_and_spills_nothing() {
    let mut complaints = Vec::new();
    let attention = candle_sgemm::attention::TABLE
        .iter()
        .chain(candle_sgemm::attention::STEPS)
        .map(|kernel| kernel.name);
    let names: Vec<_> = attention
        .chain(candle_sgemm::rowwise::kernels::all().map(|kernel| kernel.name))
        .chain(parallel::NAMES)
        .collect();
    for name in names {
        for &capability in architectures() {
            let compiled = resources()
                .iter()
                .find(|r| r.entry == name && r.capability == capability);
            match compiled {
                None => complaints.push(format!("{}: no machine code for sm_{capability}", name)),
                Some(found) if found.spilled > 0 => {
                    complaints.push(format!("{}: spills {} bytes on sm_{capability}", name, found.spilled))
                }
                Some(_) => {}
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
