//! The functions of cuBLAS that are taken over, under their own names, and the way to the real ones.

use super::call::{compute, Call, Matrix, PassedOn, Scalars, R_32F};
use super::counts::{Left, Outcome};
use super::devices::Devices;
use super::real::{Real, Status, NOT_INITIALIZED};
use super::{is_enabled, precision_of, record, set_by_program, times_shapes, timing, COUNTS};
use crate::device::CurrentContext;
use crate::error::{report, Error};
use crate::gemm::planner::cache;
use crate::gemm::tune::Tuning;
use crate::gemm::{launch, Precision};
use crate::served::serves_context;
use crate::settings::Settings;
use cudarc::driver::{result, sys};
use std::ffi::{c_int, c_longlong, c_uint, c_void, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// `cublasHandle_t`
type Handle = *mut c_void;

const SUCCESS: Status = 0;
/// `CUBLAS_POINTER_MODE_HOST`
const POINTER_MODE_HOST: c_uint = 0;
/// `CUBLAS_POINTER_MODE_DEVICE`
const POINTER_MODE_DEVICE: c_uint = 1;

/// Defines `fn NAME`, which finds the real function once and calls it.
macro_rules! real {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($argument:ident: $type:ty),* $(,)?);)*) => {$(
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        unsafe fn $name($($argument: $type),*) -> Status {
            static REAL: Real = Real::new($symbol);
            let Some(address) = REAL.address() else {
                return NOT_INITIALIZED;
            };
            // SAFETY: a function of cuBLAS under this name has this signature.
            let function: unsafe extern "C" fn($($type),*) -> Status = unsafe { std::mem::transmute(address) };
            // SAFETY: the arguments are those of the caller, who vouches for them.
            unsafe { function($($argument),*) }
        }
    )*};
}

real! {
    real_get_stream = c"cublasGetStream_v2" (handle: Handle, stream: *mut sys::CUstream);
    real_get_pointer_mode = c"cublasGetPointerMode_v2" (handle: Handle, mode: *mut c_uint);
    real_get_math_mode = c"cublasGetMathMode" (handle: Handle, mode: *mut c_uint);
}

fn matrix<T>(address: *const T, dtype: c_uint, ld: c_int, stride: c_longlong) -> Matrix {
    Matrix {
        address: address as u64,
        dtype,
        ld,
        stride,
    }
}

/// A call as it arrived.
struct Arrived {
    handle: Handle,
    call: Call,
    alpha: *const f32,
    beta: *const f32,
}

/// Computes the call's product if that is ours to do; otherwise the caller has to ask cuBLAS. `real` is cuBLAS's way to
/// do it, with the result written to another address.
///
/// # Safety
///
/// The handle is cuBLAS's; α and β are what it takes for this call; the matrices are device memory as the call describes
/// it.
unsafe fn taken(arrived: &Arrived, real: &dyn Fn(u64) -> Status) -> bool {
    // Unwinding must not leave these functions; whatever goes wrong here, cuBLAS can still do.
    // SAFETY: passed on from the caller.
    let attempt = AssertUnwindSafe(|| unsafe { attempt(arrived, real) });
    let outcome = match catch_unwind(attempt) {
        Ok(Ok((call, precision, kernel))) => Outcome::Taken(call, precision, kernel),
        Ok(Err(left)) => Outcome::Left(left),
        Err(_) => Outcome::Left(Left::Failed("a panic, reported above".into())),
    };
    let taken = matches!(outcome, Outcome::Taken(..));
    record(&arrived.call, outcome);
    taken
}

/// Queues the call's product and says what was queued: its shape, precision and kernel.
///
/// # Safety
///
/// As [`taken`].
unsafe fn attempt(
    arrived: &Arrived,
    real: &dyn Fn(u64) -> Status,
) -> std::result::Result<(Call, Precision, &'static str), Left> {
    static DEVICES: Devices = Devices::new();
    let &Arrived {
        handle,
        call,
        alpha,
        beta,
    } = arrived;
    let (mut pointer_mode, mut math, mut stream) = (0, 0, std::ptr::null_mut());
    // SAFETY: the handle is the caller's; the variables outlive the calls.
    let described = unsafe {
        real_get_pointer_mode(handle, &mut pointer_mode) == SUCCESS
            && real_get_math_mode(handle, &mut math) == SUCCESS
            && real_get_stream(handle, &mut stream) == SUCCESS
    };
    if !described || alpha.is_null() || beta.is_null() {
        return Err(Left::PassedOn(PassedOn::Arguments));
    }
    let call = Call { math, ..call };
    let precision = precision_of(&call, set_by_program(), Settings::get())?;
    let scalars = match pointer_mode {
        // SAFETY: with this pointer mode and an FP32 compute type they are floats in host memory.
        POINTER_MODE_HOST => unsafe { Scalars::Values(alpha.read_unaligned(), beta.read_unaligned()) },
        POINTER_MODE_DEVICE => Scalars::InMemory(alpha as u64, beta as u64),
        _ => return Err(Left::PassedOn(PassedOn::Arguments)),
    };
    let (problem, at) = call.problem(precision, scalars).map_err(Left::PassedOn)?;
    let (alpha, beta) = scalars.values();
    let context = CurrentContext::get().map_err(|error| Left::Failed(error.to_string()))?;
    let serves = || serves_context(&context);
    let kernel = DEVICES.on(context.info(), serves, || {
        let capturing = is_capturing(stream);
        let tuning = Tuning::on_stream(false, || Ok::<_, Error>(capturing))?;
        let plan = cache::plan(&context, &problem, None, tuning)?;
        if times_shapes() && !capturing && COUNTS.first_sight(&call, precision) {
            // SAFETY: as below; what cuBLAS is told to write to is as large as C.
            let times = unsafe { timing::compare(&call, &plan, &at, (alpha, beta), stream, real) };
            match times {
                Ok(times) => COUNTS.keep_times(&call, precision, times),
                Err(error) => report(format_args!("{call} is not timed: {error}")),
            }
        }
        // SAFETY: cuBLAS wants the handle's device to be current too, so the stream is of this context (if not, the
        // driver refuses the launch). The matrices are the caller's, as large as `problem` has them, and C is D itself.
        unsafe { launch::launch(&plan, &at, alpha, beta, stream) }?;
        Ok(plan.kernel.name)
    })?;
    Ok((call.shape(), precision, kernel))
}

/// Whether what is queued on the stream is recorded instead of run; where the driver can't tell, it counts as recorded.
fn is_capturing(stream: sys::CUstream) -> bool {
    // SAFETY: the stream is that of a live cuBLAS handle.
    let status = unsafe { result::stream::is_capturing(stream) };
    !matches!(status, Ok(sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE))
}

/// Defines cuBLAS's function of this name: it computes the call that its arguments make, or hands them on, untouched, to
/// the real one. `writes` names the argument that says where the result goes.
macro_rules! stand_in {
    ($name:ident($($argument:ident: $type:ty),* $(,)?) writes $result:ident, $arrived:expr) => {
        /// In place of cuBLAS's function of this name.
        ///
        /// # Safety
        ///
        /// As cuBLAS has it.
        #[no_mangle]
        #[allow(clippy::too_many_arguments, non_snake_case)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> Status {
            static REAL: Real = Real::new(match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zeros"),
            });
            let real = |$result| {
                let Some(address) = REAL.address() else {
                    return NOT_INITIALIZED;
                };
                // SAFETY: a function of cuBLAS under this name has this signature.
                let function: unsafe extern "C" fn($($type),*) -> Status = unsafe { std::mem::transmute(address) };
                // SAFETY: the arguments are those of the caller, who vouches for them.
                unsafe { function($($argument),*) }
            };
            // SAFETY: likewise; α and β are read where the types are FP32.
            if is_enabled() && unsafe { taken(&$arrived, &|address| real(address as *mut _)) } {
                return SUCCESS;
            }
            real($result)
        }
    };
}

stand_in! {
    cublasSgemm_v2(
        handle: Handle, transa: c_uint, transb: c_uint, m: c_int, n: c_int, k: c_int,
        alpha: *const f32, a: *const f32, lda: c_int, b: *const f32, ldb: c_int,
        beta: *const f32, c: *mut f32, ldc: c_int,
    ) writes c,
    Arrived {
        handle,
        call: Call {
            function: "cublasSgemm_v2",
            transposed: [transa, transb],
            m,
            n,
            k,
            a: matrix(a, R_32F, lda, 0),
            b: matrix(b, R_32F, ldb, 0),
            c: matrix(c, R_32F, ldc, 0),
            batch: 1,
            compute: compute::F32,
            math: 0,
        },
        alpha,
        beta,
    }
}

stand_in! {
    cublasSgemmStridedBatched(
        handle: Handle, transa: c_uint, transb: c_uint, m: c_int, n: c_int, k: c_int,
        alpha: *const f32, a: *const f32, lda: c_int, stride_a: c_longlong,
        b: *const f32, ldb: c_int, stride_b: c_longlong,
        beta: *const f32, c: *mut f32, ldc: c_int, stride_c: c_longlong, batch: c_int,
    ) writes c,
    Arrived {
        handle,
        call: Call {
            function: "cublasSgemmStridedBatched",
            transposed: [transa, transb],
            m,
            n,
            k,
            a: matrix(a, R_32F, lda, stride_a),
            b: matrix(b, R_32F, ldb, stride_b),
            c: matrix(c, R_32F, ldc, stride_c),
            batch,
            compute: compute::F32,
            math: 0,
        },
        alpha,
        beta,
    }
}

// The one that candle calls.
stand_in! {
    cublasGemmStridedBatchedEx(
        handle: Handle, transa: c_uint, transb: c_uint, m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: *const c_void, a_type: c_uint, lda: c_int, stride_a: c_longlong,
        b: *const c_void, b_type: c_uint, ldb: c_int, stride_b: c_longlong,
        beta: *const c_void, c: *mut c_void, c_type: c_uint, ldc: c_int, stride_c: c_longlong,
        batch: c_int, compute_type: c_uint, algo: c_int,
    ) writes c,
    Arrived {
        handle,
        call: Call {
            function: "cublasGemmStridedBatchedEx",
            transposed: [transa, transb],
            m,
            n,
            k,
            a: matrix(a, a_type, lda, stride_a),
            b: matrix(b, b_type, ldb, stride_b),
            c: matrix(c, c_type, ldc, stride_c),
            batch,
            compute: compute_type,
            math: 0,
        },
        alpha: alpha.cast(),
        beta: beta.cast(),
    }
}

stand_in! {
    cublasGemmEx(
        handle: Handle, transa: c_uint, transb: c_uint, m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: *const c_void, a_type: c_uint, lda: c_int,
        b: *const c_void, b_type: c_uint, ldb: c_int,
        beta: *const c_void, c: *mut c_void, c_type: c_uint, ldc: c_int,
        compute_type: c_uint, algo: c_int,
    ) writes c,
    Arrived {
        handle,
        call: Call {
            function: "cublasGemmEx",
            transposed: [transa, transb],
            m,
            n,
            k,
            a: matrix(a, a_type, lda, 0),
            b: matrix(b, b_type, ldb, 0),
            c: matrix(c, c_type, ldc, 0),
            batch: 1,
            compute: compute_type,
            math: 0,
        },
        alpha: alpha.cast(),
        beta: beta.cast(),
    }
}
