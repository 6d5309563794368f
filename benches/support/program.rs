//! How a program that measures or writes documents begins and ends.

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;

/// Runs the program `name` with the arguments of the command line. Clap ends with 2 on a bad one; here every failure ends
/// with 1.
pub fn main_of<A: Parser>(name: &str, run: impl FnOnce(&A) -> Result<()>) -> ExitCode {
    let arguments = match A::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Only a closed terminal can make this fail, and then there is nobody to tell.
            let _ = error.print();
            return match error.use_stderr() {
                true => ExitCode::FAILURE,
                false => ExitCode::SUCCESS,
            };
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
