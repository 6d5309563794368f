//! The products of every candle model in the process, without a change to the model.
//!
//! Candle has no hook for another matmul, but on a CUDA device each dense product is one call of cuBLAS, and cuBLAS
//! is linked dynamically. With the feature `override` this crate defines the functions that candle (and others) call, so
//! that the linker takes them instead; they hand on to the real ones what this crate has no better way for. The functions
//! are `cublasGemmStridedBatchedEx`, `cublasGemmEx`, `cublasSgemmStridedBatched` and `cublasSgemm_v2` (which C programs call
//! `cublasSgemm`). Other functions of cuBLAS and cuBLASLt that multiply are counted ([`PassedOn::Function`]) and go on to the
//! library.
//!
//! Nothing changes until [`enable`] or [`scope`] is called, and [`disable`] takes it back, so one process can compare the
//! two on the same weights:
//!
//! ```no_run
//! use candle_sgemm::matmul_override;
//! # fn main() -> candle_core::Result<()> {
//! # let model = |x: &candle_core::Tensor| -> candle_core::Result<candle_core::Tensor> { Ok(x.clone()) };
//! # let x = candle_core::Tensor::zeros(1, candle_core::DType::F32, &candle_core::Device::Cpu)?;
//! let stock = model(&x)?;
//! let ours = matmul_override::scope(|| model(&x))?;
//! println!("{}", matmul_override::stats());
//! # Ok(())
//! # }
//! ```
//!
//! A call is queued on the stream of its cuBLAS handle, without waiting, so CUDA graphs can be captured (`docs/swap_in.md`
//! has the exception: programs with more than eight streams). If
//! ours fails, cuBLAS computes the product and [`Stats::failed`] counts it. Calls may come from any thread.
//!
//! Without the feature `cuda` there is no cuBLAS to stand in for: the functions here do nothing.

mod call;
mod counts;
mod devices;
#[cfg(all(feature = "override", any(feature = "cuda", test)))]
mod real;
mod stats;
#[cfg(all(feature = "cuda", feature = "override"))]
mod symbols;
#[cfg(all(feature = "cuda", feature = "override"))]
mod timing;
#[cfg(all(
    feature = "override",
    any(feature = "cuda", test),
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod uncovered;

pub use call::PassedOn;
// A call of cuBLAS as data. Public for tests.
#[doc(hidden)]
pub use call::{compute, math, Call, Matrix, Scalars, R_32F};
pub use stats::{ShapeStats, Stats, Times};

use crate::error::report;
use crate::gemm::Precision;
use crate::settings::Settings;
use counts::{Counts, Left, Outcome};
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static ENABLED: AtomicBool = AtomicBool::new(false);
static LOG_CALLS: AtomicBool = AtomicBool::new(false);
static TIME_SHAPES: AtomicBool = AtomicBool::new(false);
/// One more than an index of [`Precision::ALL`]; 0: what each call asks for.
static PRECISION: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// How many [`scope`]s this thread is inside of.
    static SCOPES: Cell<usize> = const { Cell::new(0) };
}

/// Takes over the products of all threads from now on.
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Leaves products to cuBLAS again, but for threads inside a [`scope`].
pub fn disable() {
    ENABLED.store(false, Ordering::Relaxed);
}

/// Takes over the products that this thread asks for inside `run`.
pub fn scope<T>(run: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            SCOPES.set(SCOPES.get() - 1);
        }
    }
    SCOPES.set(SCOPES.get() + 1);
    let _leave = Leave; // on a panic too
    run()
}

/// Whether a product that this thread asks for now is taken over.
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed) || SCOPES.get() > 0
}

/// The precision of all products from now on. With `None`, as at the start, it is the one that the environment names
/// ([`Settings::precision`]), or else the one that each call asks for: FP32, or TF32 if the program has allowed that (in candle
/// with `set_gemm_reduced_precision_f32`) and `NVIDIA_TF32_OVERRIDE=0` does not forbid it, or strict FP32 for cuBLAS's pedantic
/// modes.
pub fn set_precision(precision: Option<Precision>) {
    let index = precision.and_then(|wanted| Precision::ALL.iter().position(|&precision| precision == wanted));
    PRECISION.store(index.map_or(0, |index| index + 1), Ordering::Relaxed);
}

/// What [`set_precision`] has set, else what the environment names; `None`: what each call asks for.
pub fn precision() -> Option<Precision> {
    set_by_program().or_else(|| Settings::get().precision.clone().ok().flatten())
}

fn set_by_program() -> Option<Precision> {
    let index = PRECISION.load(Ordering::Relaxed).checked_sub(1)?;
    Precision::ALL.get(index).copied()
}

/// The precision that a call is computed at, where the program has set `by_program`.
#[cfg_attr(not(all(feature = "cuda", feature = "override")), allow(dead_code))] // nothing calls cuBLAS there
fn precision_of(call: &Call, by_program: Option<Precision>, settings: &Settings) -> Result<Precision, Left> {
    let asked = call.precision(by_program).map_err(Left::PassedOn)?;
    match by_program {
        Some(precision) => Ok(precision),
        None => settings.precision_where_allowed(asked).map_err(Left::Failed),
    }
}

/// Whether every call is reported on stderr.
pub fn log_calls(log: bool) {
    LOG_CALLS.store(log, Ordering::Relaxed);
}

/// Whether every shape is timed when it is first taken over, here and with cuBLAS, so that [`stats`] can tell what was
/// saved. Off unless switched on: the first call of a shape then takes some milliseconds, waits for its stream, and needs
/// memory for a second result. Calls that are being captured into a CUDA graph are not timed.
pub fn time_shapes(time: bool) {
    TIME_SHAPES.store(time, Ordering::Relaxed);
}

/// Whether [`time_shapes`] is on.
pub fn times_shapes() -> bool {
    TIME_SHAPES.load(Ordering::Relaxed)
}

/// What became of the calls since the start or the last [`reset_stats`].
pub fn stats() -> Stats {
    COUNTS.stats()
}

/// Begins to count anew.
pub fn reset_stats() {
    COUNTS.reset();
}

static COUNTS: Counts = Counts::new();

/// Counts and, if asked to, reports what became of a call.
#[cfg_attr(not(all(feature = "cuda", feature = "override")), allow(dead_code))]
fn record(call: &dyn fmt::Display, outcome: Outcome) {
    if LOG_CALLS.load(Ordering::Relaxed) {
        match &outcome {
            Outcome::Taken(_, precision, kernel) => report(format_args!("{call}, {precision}: {kernel}")),
            Outcome::Left(Left::PassedOn(reason)) => report(format_args!("{call}: passed on: {reason}")),
            Outcome::Left(Left::Failed(message)) => {
                report(format_args!("{call}: failed, computed by cuBLAS: {message}"))
            }
        }
    }
    COUNTS.record(outcome);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, PoisonError};

    /// The settings are the process's: one test at a time.
    pub(super) fn alone() -> std::sync::MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn call(m: i32) -> Call {
        let matrix = Matrix {
            address: 0x100,
            dtype: R_32F,
            ld: 64,
            stride: 0,
        };
        Call {
            function: "cublasSgemm_v2",
            transposed: [0, 0],
            m,
            n: 2,
            k: 3,
            a: matrix,
            b: matrix,
            c: matrix,
            batch: 1,
            compute: compute::F32,
            math: math::DEFAULT,
        }
    }

    #[test]
    fn scopes_nest_end_on_a_panic_and_are_of_one_thread() {
        let _alone = alone();
        assert!(!is_enabled());
        scope(|| {
            scope(|| assert!(is_enabled()));
            assert!(is_enabled());
            let elsewhere = std::thread::spawn(is_enabled).join();
            assert!(!elsewhere.unwrap());
        });
        assert!(!is_enabled());
        assert!(std::panic::catch_unwind(|| scope(|| panic!("inside"))).is_err());
        assert!(!is_enabled());
    }

    #[test]
    fn enabling_is_for_all_threads() {
        let _alone = alone();
        enable();
        assert!(std::thread::spawn(is_enabled).join().unwrap());
        disable();
        assert!(!is_enabled());
    }

    #[test]
    fn precision_can_be_set_and_left_to_the_calls() {
        let _alone = alone();
        for wanted in Precision::ALL {
            set_precision(Some(wanted));
            assert_eq!(precision(), Some(wanted));
        }
        set_precision(None);
        assert_eq!(precision(), None);
    }

    #[test]
    fn a_call_is_computed_as_the_program_the_environment_or_the_call_itself_wants() {
        let environment = |variable: &'static str, value: &'static str| {
            Settings::from(move |name: &str| (name == variable).then(|| value.into()))
        };
        let nothing = environment("", "");
        let tf32 = Call {
            compute: compute::F32_FAST_TF32,
            ..call(3)
        };
        assert_eq!(precision_of(&tf32, None, &nothing), Ok(Precision::Tf32));
        let strict = environment("CANDLE_SGEMM_PRECISION", "fp32-strict");
        assert_eq!(precision_of(&tf32, None, &strict), Ok(Precision::Fp32Strict));
        assert_eq!(precision_of(&call(3), None, &strict), Ok(Precision::Fp32Strict));
        assert_eq!(precision_of(&tf32, Some(Precision::Fp32), &strict), Ok(Precision::Fp32));
        let no_tf32 = environment("NVIDIA_TF32_OVERRIDE", "0");
        assert_eq!(precision_of(&tf32, None, &no_tf32), Ok(Precision::Fp32));
        let by_mode = Call {
            math: math::TF32_TENSOR_OP,
            ..call(3)
        };
        assert_eq!(precision_of(&by_mode, None, &no_tf32), Ok(Precision::Fp32));
        assert_eq!(
            precision_of(&by_mode, Some(Precision::Tf32), &no_tf32),
            Ok(Precision::Tf32)
        );
        // What is not understood leaves the product to cuBLAS and says why; what is not ours is passed on all the same.
        let unknown = environment("CANDLE_SGEMM_PRECISION", "fp8");
        assert!(matches!(precision_of(&tf32, None, &unknown), Err(Left::Failed(text)) if text.contains("fp8")));
        assert_eq!(
            precision_of(&tf32, Some(Precision::Tf32), &unknown),
            Ok(Precision::Tf32)
        );
        let mut half = call(3);
        half.a.dtype = 2;
        assert_eq!(
            precision_of(&half, None, &unknown),
            Err(Left::PassedOn(PassedOn::DType))
        );
    }

    /// A process of its own, for the environment is read once.
    #[test]
    fn the_environment_names_the_precision_in_process() {
        const CHILD: &str = "CANDLE_SGEMM_TEST_CHILD";
        let test = "matmul_override::tests::the_environment_names_the_precision_in_process";
        if std::env::var_os(CHILD).is_some() {
            assert_eq!(precision(), Some(Precision::Fp32Strict));
            return;
        }
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact"])
            .env(CHILD, "1")
            .env("CANDLE_SGEMM_PRECISION", "fp32-strict")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&status.stdout);
        assert!(status.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    fn calls_are_counted_by_what_became_of_them() {
        let _alone = alone();
        reset_stats();
        assert_eq!(stats(), Stats::default());
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..100 {
                        let taken = |m| Outcome::Taken(call(m).shape(), Precision::Fp32, "some_kernel");
                        record(&call(1), taken(1));
                        record(&call(64), taken(64));
                        record(&call(1), Outcome::Left(Left::PassedOn(PassedOn::DType)));
                    }
                });
            }
        });
        record(&call(1), Outcome::Left(Left::Failed("no luck".into())));
        assert!(COUNTS.first_sight(&call(64), Precision::Fp32) && !COUNTS.first_sight(&call(64), Precision::Fp32));
        let times = Times {
            ours_us: 10.0,
            cublas_us: 12.5,
        };
        COUNTS.keep_times(&call(64), Precision::Fp32, times);
        let stats = stats();
        assert_eq!((stats.taken, stats.calls()), (800, 1201));
        assert_eq!(stats.passed_on[&PassedOn::DType], 400);
        assert_eq!(stats.failed["no luck"], 1);
        let sizes: Vec<_> = stats.shapes.iter().map(|shape| (shape.call.m, shape.calls)).collect();
        assert_eq!(sizes, [(64, 400), (1, 400)], "most work first");
        assert_eq!(stats.shapes[0].saved_us(), Some(1000.0));
        assert_eq!((stats.shapes[1].saved_us(), stats.saved_us()), (None, Some(1000.0)));
        let text = stats.to_string();
        assert!(
            text.starts_with("800 of 1201 cuBLAS products taken over, 1.00 ms saved"),
            "{text}"
        );
        assert!(text.contains("10.0 µs, cuBLAS 12.5, 1.00 ms saved"), "{text}");
        assert!(text.contains("no luck") && text.contains("some_kernel"), "{text}");
        reset_stats();
    }
}
