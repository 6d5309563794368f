//! Parses PTX files and lists their kernels, or says what the emulator does not understand.
//!
//! `cargo run -p ptx-emulator --example inspect FILE…`

use ptx_emulator::Module;

fn main() {
    let mut failed = false;
    for path in std::env::args().skip(1) {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("{path}: {error}");
                failed = true;
                continue;
            }
        };
        match Module::parse(&text) {
            Ok(module) => {
                println!("{path} (sm_{})", module.target());
                for entry in module.entries() {
                    let [preds, narrow, wide] = entry.registers;
                    println!(
                        "  {}: {} instructions, {preds} + {narrow} + {wide} registers, {} bytes of static shared memory",
                        entry.name,
                        entry.code.len(),
                        entry.static_shared
                    );
                }
            }
            Err(error) => {
                eprintln!("{path}: {error}");
                failed = true;
            }
        }
    }
    std::process::exit(i32::from(failed));
}
