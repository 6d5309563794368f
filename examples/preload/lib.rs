//! `matmul_override` for programs that are already built:
//!
//!     LD_PRELOAD=target/release/examples/libcandle_sgemm_preload.so PROGRAM
//!
//! Settings are environment variables: `CANDLE_SGEMM_PRECISION` (`fp32`, `fp32-strict`, `tf32`; unless set, what each call
//! asks for), `CANDLE_SGEMM_LOG` (`summary`: at the end of the program; `calls`: each one too), `CANDLE_SGEMM_TIME=1` (time
//! every new shape beside cuBLAS, so that the summary can tell what was saved) and `CANDLE_SGEMM_DISABLE=1`.
//! Where it cannot work it says so on stderr, once, and the program runs as if it were not there.

mod driver;

use candle_sgemm::matmul_override;
use candle_sgemm::settings::{Log, Settings};
use std::io::Write;
use std::path::Path;

/// Whether the kernel shows an NVIDIA GPU. CUDA itself is not asked: it must not be started before a program forks.
fn gpu_is_visible() -> bool {
    // A driver on Linux, on a Jetson, and on Linux under Windows.
    let devices = ["/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/dxg"];
    devices.iter().any(|device| Path::new(device).exists())
}

fn start() -> Result<(), String> {
    let settings = Settings::get();
    if settings.disable.clone()? {
        return Ok(());
    }
    let (log, time) = (settings.log.clone()?, settings.time.clone()?);
    settings.precision.as_ref()?; // the override reads it itself
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
    matmul_override::log_calls(log == Log::Calls);
    matmul_override::time_shapes(time);
    if log != Log::Nothing {
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
