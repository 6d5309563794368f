//! Runs a kernel from a PTX file, under every order, and says what is wrong with it.
//!
//! `cargo run --release -p ptx-emulator --example run -- FILE ENTRY [OPTIONS] ARGUMENT…`
//!
//! Arguments of the kernel: `in:BYTES` and `out:BYTES` are addresses of that many bytes, of random floats between 0 and 1 or
//! never written; `u32:N`, `u64:N` and `f32:X` are numbers. Options: `--grid X,Y,Z`, `--block X,Y,Z`, `--cluster X,Y,Z`,
//! `--shared BYTES`, `--seeds N` (of each order; 4 otherwise), and `--trace 0x400` or `--trace "barrier 1"`: the story of a
//! byte, an mbarrier or a barrier.

use ptx_emulator::{run, Launch, Memory, Module, Order, Param, Random, Schedule, Use};
use std::process::ExitCode;

const USAGE: &str =
    "run FILE ENTRY [--grid X,Y,Z] [--block X,Y,Z] [--cluster X,Y,Z] [--shared BYTES] [--seeds N] [--trace WHAT] \
                     [in:BYTES | out:BYTES | u32:N | u64:N | f32:X]…";

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("'{text}' is no number"))
}

fn extent(text: &str) -> Result<[u32; 3], String> {
    let mut extent = [1; 3];
    for (to, word) in extent.iter_mut().zip(text.split(',')) {
        *to = number(word)?;
    }
    Ok(extent)
}

fn argument(text: &str, memory: &mut Memory) -> Result<Param, String> {
    let (kind, value) = text.split_once(':').ok_or_else(|| format!("'{text}' is no argument"))?;
    Ok(match kind {
        "in" => {
            let mut random = Random(1);
            let floats =
                (0..number::<usize>(value)?.div_ceil(4)).map(|_| random.below(1 << 24) as f32 / (1 << 24) as f32);
            let bytes: Vec<u8> = floats.flat_map(f32::to_le_bytes).collect();
            memory.upload(&bytes, Use::Input).into()
        }
        "out" => memory.reserve(number(value)?).into(),
        "u32" => number::<u32>(value)?.into(),
        "u64" => number::<u64>(value)?.into(),
        "f32" => number::<f32>(value)?.to_bits().into(),
        _ => return Err(format!("'{kind}' is no kind of argument")),
    })
}

fn go() -> Result<(), String> {
    let mut words = std::env::args().skip(1);
    let (Some(path), Some(entry)) = (words.next(), words.next()) else {
        return Err(USAGE.to_string());
    };
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let module = Module::parse(&text).map_err(|error| format!("{path}: {error}"))?;
    let (mut launch, mut seeds, mut arguments) = (Launch::new(&entry, 1, 32), 4, Vec::new());
    while let Some(word) = words.next() {
        let Some(option) = word.strip_prefix("--") else {
            arguments.push(word);
            continue;
        };
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        match option {
            "grid" => launch.grid = extent(&value)?,
            "block" => launch.block = extent(&value)?,
            "cluster" => launch.cluster = extent(&value)?,
            "shared" => launch.dynamic_shared = number(&value)?,
            "seeds" => seeds = number(&value)?,
            "trace" => launch.watch = Some(value.parse()?),
            _ => return Err(USAGE.to_string()),
        }
    }
    for order in Order::ALL {
        for seed in 0..seeds {
            let mut memory = Memory::new();
            launch.params.clear();
            for text in &arguments {
                launch.params.push(argument(text, &mut memory)?);
            }
            let schedule = Schedule { order, seed };
            let report = run(&module, &launch, &mut memory, schedule).map_err(|finding| finding.to_string())?;
            println!(
                "{order:?}, seed {seed}: {} thread instructions",
                report.thread_instructions
            );
            report.story.iter().for_each(|line| println!("  {line}"));
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match go() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
