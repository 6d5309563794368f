//! `matmul_override` for programs that are already built:
//!
//!     LD_PRELOAD=target/release/examples/libcandle_sgemm_preload.so PROGRAM
//!
//! Settings are environment variables: `CANDLE_SGEMM_PRECISION` (`fp32`, `fp32-strict`, `tf32`; unless set, what each call
//! asks for), `CANDLE_SGEMM_LOG` (`summary`: at the end of the program; `calls`: each one too), `CANDLE_SGEMM_TIME=1` (time
//! every new shape beside cuBLAS, so that the summary can tell what was saved) and `CANDLE_SGEMM_DISABLE=1`.
//! Where it cannot work it says so on stderr, once, and the program runs as if it were not there.

mod driver;

use candle_sgemm::{matmul_override, Precision};
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

/// What the environment asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Settings {
    disabled: bool,
    precision: Option<Precision>,
    log: Log,
    time: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Log {
    #[default]
    Nothing,
    Summary,
    Calls,
}

impl Settings {
    /// Reads the settings from a lookup of variables.
    fn from(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, String> {
        let text = |name: &str| match variable(name).map(OsString::into_string) {
            None => Ok(String::new()),
            Some(Ok(text)) => Ok(text),
            Some(Err(raw)) => Err(format!("{name}={raw:?} is not text")),
        };
        let precision = match text("CANDLE_SGEMM_PRECISION")?.as_str() {
            "" => None,
            name => Some(name.parse().map_err(|e| format!("CANDLE_SGEMM_PRECISION: {e}"))?),
        };
        let log = match text("CANDLE_SGEMM_LOG")?.as_str() {
            "" => Log::Nothing,
            "summary" => Log::Summary,
            "calls" => Log::Calls,
            other => {
                return Err(format!(
                    "CANDLE_SGEMM_LOG: unknown value '{other}': choose one of summary, calls"
                ))
            }
        };
        let switch = |name: &str| match text(name)?.as_str() {
            "" | "0" => Ok(false),
            "1" => Ok(true),
            other => Err(format!("{name}: unknown value '{other}': choose 0 or 1")),
        };
        let (disabled, time) = (switch("CANDLE_SGEMM_DISABLE")?, switch("CANDLE_SGEMM_TIME")?);
        Ok(Settings {
            disabled,
            precision,
            log,
            time,
        })
    }
}

/// Whether the kernel shows an NVIDIA GPU. CUDA itself is not asked: it must not be started before a program forks.
fn gpu_is_visible() -> bool {
    // A driver on Linux, on a Jetson, and on Linux under Windows.
    let devices = ["/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/dxg"];
    devices.iter().any(|device| Path::new(device).exists())
}

fn start() -> Result<(), String> {
    let settings = Settings::from(|name| std::env::var_os(name))?;
    if settings.disabled {
        return Ok(());
    }
    if !gpu_is_visible() {
        return Err("this machine shows no NVIDIA GPU".into());
    }
    driver::load()?;
    // SAFETY: a C string; the result is only compared.
    if unsafe { libc::dlsym(libc::RTLD_NEXT, c"cublasCreate_v2".as_ptr()) }.is_null() {
        say(format_args!(
            "this program has not loaded cuBLAS: no product can be taken over unless it does so later"
        ));
    }
    matmul_override::set_precision(settings.precision);
    matmul_override::log_calls(settings.log == Log::Calls);
    matmul_override::time_shapes(settings.time);
    if settings.log != Log::Nothing {
        // SAFETY: the function stays loaded to the end, for a preloaded library is never unloaded.
        unsafe { libc::atexit(summary) };
    }
    matmul_override::enable();
    Ok(())
}

/// A line on stderr; one that cannot be written is lost, for a panic would end the program.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "candle-sgemm: {line}");
}

extern "C" fn summary() {
    say(format_args!("{}", matmul_override::stats()));
}

extern "C" fn on_load() {
    // A panic must not reach the loader; its message is on stderr.
    if let Ok(Err(reason)) = std::panic::catch_unwind(start) {
        say(format_args!("products stay with cuBLAS: {reason}"));
    }
}

/// The loader calls this before the program begins.
#[used]
#[link_section = ".init_array"]
static ON_LOAD: extern "C" fn() = on_load;
