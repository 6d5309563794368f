//! What can go wrong below the API for candle.

use std::fmt;

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong between a problem and its launch. In the API for candle it becomes a [`candle_core::Error`] with the
/// same text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The problem itself cannot be computed; the text names the numbers.
    Problem(String),
    /// No kernel has this name; the text lists those that exist.
    UnknownKernel {
        /// The name that was asked for.
        name: String,
        /// The names of the table, comma separated.
        known: String,
    },
    /// The kernel that was asked for cannot take the problem.
    Refused {
        /// The kernel.
        kernel: &'static str,
        /// Why, with the numbers.
        reason: String,
    },
    /// This build contains neither machine code nor PTX of this file that the device runs.
    NotBuilt {
        /// Path below `cuda/`, without the extension.
        file: &'static str,
    },
    /// The embedded module lacks a kernel: the table and the source file disagree.
    MissingKernel {
        /// Path below `cuda/`, without the extension.
        file: &'static str,
        /// The symbol.
        entry: &'static str,
    },
    /// The CUDA driver reported an error.
    Driver {
        /// What was being done.
        doing: &'static str,
        /// The driver's name and description of the error.
        message: String,
    },
}

impl Error {
    #[cfg(feature = "cuda")]
    pub(crate) fn driver(doing: &'static str, error: cudarc::driver::DriverError) -> Self {
        Error::Driver {
            doing,
            message: error.to_string(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Problem(text) => f.write_str(text),
            Error::UnknownKernel { name, known } => {
                write!(f, "there is no kernel '{name}'; the kernels are: {known}")
            }
            Error::Refused { kernel, reason } => {
                write!(f, "kernel '{kernel}' cannot take this problem: {reason}")
            }
            Error::NotBuilt { file } => write!(
                f,
                "this build has no code of cuda/{file}.cu that the device runs; build again with CUDA_COMPUTE_CAP (or \
                 CANDLE_SGEMM_ARCHS) naming the device's architecture, or for older devices as well a lower one"
            ),
            Error::MissingKernel { file, entry } => write!(
                f,
                "the compiled cuda/{file}.cu has no kernel '{entry}': the kernel table and the source file disagree"
            ),
            Error::Driver { doing, message } => write!(f, "CUDA failed while {doing}: {message}"),
        }
    }
}

impl std::error::Error for Error {}

/// A line on stderr. One that cannot be written, to a closed pipe for example, is lost: a panic could end a program that came
/// here from C.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // without it there is less to report
pub(crate) fn report(line: fmt::Arguments<'_>) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "candle-sgemm: {line}");
}
