//! Programs that call cuBLAS themselves, with the override on: every function that is taken over, every storage order,
//! leading dimension, pointer mode and way to fail.
#![cfg(feature = "cuda")]

#[path = "common/alone.rs"]
mod alone;
mod common;

use alone::alone;
use candle_sgemm::gemm::cpu::{bf16, f16};
use candle_sgemm::matmul_override::{self, PassedOn};
use common::{rng, stream_or_skip, uniform};
use cudarc::cublas::{sys, CudaBlas};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use rand::rngs::StdRng;
use rand::Rng;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// A bound on `|c − ref|` for each element is `C0·ε·(√k·|α|·Σ|a||b| + |β·c|)`.
const C0: f64 = 4.0;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    Sgemm,
    SgemmStridedBatched,
    GemmStridedBatchedEx,
    GemmEx,
}

const FUNCTIONS: [Function; 4] = [
    Function::Sgemm,
    Function::SgemmStridedBatched,
    Function::GemmStridedBatchedEx,
    Function::GemmEx,
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum ScalarsIn {
    HostMemory,
    DeviceMemory,
}

/// A cuBLAS handle and its stream.
struct Handle {
    blas: CudaBlas,
    stream: Arc<CudaStream>,
}

impl Handle {
    fn new(stream: &Arc<CudaStream>) -> Self {
        Handle {
            blas: CudaBlas::new(stream.clone()).expect("cuBLAS starts"),
            stream: stream.clone(),
        }
    }
}

/// A column-major matrix, or a batch of them.
#[derive(Clone, Copy, Debug)]
struct Stored {
    rows: usize,
    cols: usize,
    ld: usize,
    stride: usize,
}

impl Stored {
    /// `padding` elements between columns, and a few more between matrices.
    fn new(rows: usize, cols: usize, padding: usize) -> Self {
        let ld = rows + padding;
        Stored {
            rows,
            cols,
            ld,
            stride: ld * cols + padding,
        }
    }

    fn at(&self, batch: usize, row: usize, col: usize) -> usize {
        batch * self.stride + col * self.ld + row
    }

    /// Random numbers, with NaN where the matrices are not.
    fn fill(&self, rng: &mut StdRng, batch: usize) -> Vec<f32> {
        let mut data = vec![f32::NAN; self.stride * batch + self.ld];
        for i in 0..batch {
            for col in 0..self.cols {
                for row in 0..self.rows {
                    data[self.at(i, row, col)] = uniform(rng) as f32;
                }
            }
        }
        data
    }
}

/// One call: sizes, storage and data, and what comes out of it.
struct Call {
    function: Function,
    transposed: [bool; 2],
    size: [usize; 3],
    batch: usize,
    stored: [Stored; 3],
    host: [Vec<f32>; 3],
    device: [CudaSlice<f32>; 3],
}

impl Call {
    fn new(
        stream: &Arc<CudaStream>,
        function: Function,
        transposed: [bool; 2],
        size: [usize; 3],
        padding: usize,
    ) -> Self {
        let [m, n, k] = size;
        let batch = match function {
            Function::Sgemm | Function::GemmEx => 1,
            Function::SgemmStridedBatched | Function::GemmStridedBatchedEx => 3,
        };
        let side = |rows, cols, transposed| match transposed {
            false => Stored::new(rows, cols, padding),
            true => Stored::new(cols, rows, padding),
        };
        let stored = [side(m, k, transposed[0]), side(k, n, transposed[1]), side(m, n, false)];
        let mut rng = rng((m * n * k + padding) as u64);
        let host = stored.map(|matrix| matrix.fill(&mut rng, batch));
        let device = host.each_ref().map(|data| stream.clone_htod(data).expect("upload"));
        Call {
            function,
            transposed,
            size,
            batch,
            stored,
            host,
            device,
        }
    }

    /// C as cuBLAS's documentation has it, with a bound on the error of each element; places that are not C's are `None`.
    fn expected(&self, alpha: f64, beta: f64) -> Vec<Option<(f64, f64)>> {
        let [m, n, k] = self.size;
        let [a, b, c] = &self.stored;
        let mut expected = vec![None; self.host[2].len()];
        let element = |data: &[f32], matrix: &Stored, transposed: bool, batch, row, col| {
            let (row, col) = if transposed { (col, row) } else { (row, col) };
            data[matrix.at(batch, row, col)] as f64
        };
        for batch in 0..self.batch {
            for col in 0..n {
                for row in 0..m {
                    let (mut sum, mut size) = (0.0, 0.0);
                    for i in 0..k {
                        let product = element(&self.host[0], a, self.transposed[0], batch, row, i)
                            * element(&self.host[1], b, self.transposed[1], batch, i, col);
                        sum += product;
                        size += product.abs();
                    }
                    let from_c = match beta {
                        0.0 => 0.0,
                        _ => beta * self.host[2][c.at(batch, row, col)] as f64,
                    };
                    let (value, size) = match alpha {
                        0.0 => (from_c, 0.0),
                        _ => (alpha * sum + from_c, alpha.abs() * size),
                    };
                    let bound = C0 * f32::EPSILON as f64 * ((k as f64).sqrt() * size + from_c.abs());
                    expected[c.at(batch, row, col)] = Some((value, bound));
                }
            }
        }
        expected
    }

    /// Where the matrices are.
    fn addresses(&self, stream: &CudaStream) -> [u64; 3] {
        self.device.each_ref().map(|memory| memory.device_ptr(stream).0)
    }

    /// Queues the call; α and β are where the handle's pointer mode says.
    fn queue(&self, blas: &Handle, at: [u64; 3], alpha: *const f32, beta: *const f32) -> sys::cublasStatus_t {
        let operation = |transposed| match transposed {
            false => sys::cublasOperation_t::CUBLAS_OP_N,
            true => sys::cublasOperation_t::CUBLAS_OP_T,
        };
        let handle = *blas.blas.handle();
        let [transa, transb] = self.transposed.map(operation);
        let [m, n, k] = self.size.map(|size| size as c_int);
        let [lda, ldb, ldc] = self.stored.map(|matrix| matrix.ld as c_int);
        let [stride_a, stride_b, stride_c] = self.stored.map(|matrix| matrix.stride as i64);
        let [a, b, c] = at;
        let batch = self.batch as c_int;
        // SAFETY: the memory holds the matrices, and whoever calls this waits for the stream before it goes.
        unsafe {
            match self.function {
                Function::Sgemm => sys::cublasSgemm_v2(
                    handle,
                    transa,
                    transb,
                    m,
                    n,
                    k,
                    alpha,
                    a as *const f32,
                    lda,
                    b as *const f32,
                    ldb,
                    beta,
                    c as *mut f32,
                    ldc,
                ),
                Function::SgemmStridedBatched => sys::cublasSgemmStridedBatched(
                    handle,
                    transa,
                    transb,
                    m,
                    n,
                    k,
                    alpha,
                    a as *const f32,
                    lda,
                    stride_a,
                    b as *const f32,
                    ldb,
                    stride_b,
                    beta,
                    c as *mut f32,
                    ldc,
                    stride_c,
                    batch,
                ),
                Function::GemmStridedBatchedEx => sys::cublasGemmStridedBatchedEx(
                    handle,
                    transa,
                    transb,
                    m,
                    n,
                    k,
                    alpha.cast(),
                    a as *const c_void,
                    sys::cudaDataType_t::CUDA_R_32F,
                    lda,
                    stride_a,
                    b as *const c_void,
                    sys::cudaDataType_t::CUDA_R_32F,
                    ldb,
                    stride_b,
                    beta.cast(),
                    c as *mut c_void,
                    sys::cudaDataType_t::CUDA_R_32F,
                    ldc,
                    stride_c,
                    batch,
                    sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                    sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
                ),
                Function::GemmEx => sys::cublasGemmEx(
                    handle,
                    transa,
                    transb,
                    m,
                    n,
                    k,
                    alpha.cast(),
                    a as *const c_void,
                    sys::cudaDataType_t::CUDA_R_32F,
                    lda,
                    b as *const c_void,
                    sys::cudaDataType_t::CUDA_R_32F,
                    ldb,
                    beta.cast(),
                    c as *mut c_void,
                    sys::cudaDataType_t::CUDA_R_32F,
                    ldc,
                    sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                    sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
                ),
            }
        }
    }

    /// Makes the call and waits for it.
    fn run(&self, blas: &Handle, alpha: f32, beta: f32, scalars: ScalarsIn) {
        let stream = &blas.stream;
        let at = self.addresses(stream);
        let status = match scalars {
            ScalarsIn::HostMemory => self.queue(blas, at, &alpha, &beta),
            ScalarsIn::DeviceMemory => {
                let in_memory = stream.clone_htod(&[alpha, beta]).expect("upload");
                let alpha = in_memory.device_ptr(stream).0 as *const f32;
                with_scalars_in_memory(blas, || self.queue(blas, at, alpha, alpha.wrapping_add(1)))
            }
        };
        assert_eq!(status, sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        stream.synchronize().expect("the product runs");
    }

    /// Compares C with what it should be.
    fn check(&self, stream: &Arc<CudaStream>, expected: &[Option<(f64, f64)>], what: &str) {
        let c = stream.clone_dtoh(&self.device[2]).expect("download");
        for (place, (value, expected)) in c.iter().zip(expected).enumerate() {
            match expected {
                Some((expected, bound)) => {
                    let error = (*value as f64 - expected).abs();
                    assert!(
                        error <= *bound,
                        "{what}: place {place} is {value}, not {expected} ± {bound:e}"
                    );
                }
                None => assert!(value.is_nan(), "{what}: place {place}, which is not C's, was written"),
            }
        }
    }
}

/// With CUBLAS_POINTER_MODE_DEVICE.
fn with_scalars_in_memory<T>(blas: &Handle, run: impl FnOnce() -> T) -> T {
    use sys::cublasPointerMode_t::{CUBLAS_POINTER_MODE_DEVICE, CUBLAS_POINTER_MODE_HOST};
    let set = |mode| {
        // SAFETY: the handle is alive.
        let status = unsafe { sys::cublasSetPointerMode_v2(*blas.blas.handle(), mode) };
        assert_eq!(status, sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLAS_POINTER_MODE_DEVICE);
    let result = run();
    set(CUBLAS_POINTER_MODE_HOST);
    result
}

#[test]
fn every_function_storage_order_padding_and_scalar_means_what_cublas_means() {
    let Some(stream) = stream_or_skip("every_function_storage_order_padding_and_scalar_means_what_cublas_means") else {
        return;
    };
    let _alone = alone();
    matmul_override::reset_stats();
    let blas = Handle::new(&stream);
    let mut calls = 0;
    for function in FUNCTIONS {
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            for size in [[1, 1, 1], [1, 130, 65], [67, 1, 33], [64, 48, 96], [129, 65, 31]] {
                for padding in [0, 3, 4] {
                    for (alpha, beta) in [(1.0, 0.0), (0.5, -1.5)] {
                        for scalars in [ScalarsIn::HostMemory, ScalarsIn::DeviceMemory] {
                            let call = Call::new(&stream, function, transposed, size, padding);
                            matmul_override::scope(|| call.run(&blas, alpha, beta, scalars));
                            let what =
                                format!("{function:?} {transposed:?} {size:?} +{padding} {alpha} {beta} {scalars:?}");
                            call.check(&stream, &call.expected(alpha as f64, beta as f64), &what);
                            calls += 1;
                        }
                    }
                }
            }
        }
    }
    let stats = matmul_override::stats();
    assert_eq!((stats.taken, stats.calls()), (calls, calls), "{stats}");
}

/// With β = 0, C may hold anything; with α = 0, A and B may.
#[test]
fn factors_of_zero_keep_out_what_they_multiply() {
    let Some(stream) = stream_or_skip("factors_of_zero_keep_out_what_they_multiply") else {
        return;
    };
    let _alone = alone();
    let blas = Handle::new(&stream);
    for function in FUNCTIONS {
        for scalars in [ScalarsIn::HostMemory, ScalarsIn::DeviceMemory] {
            for size in [[40, 24, 16], [3, 200, 64], [256, 256, 64]] {
                let mut call = Call::new(&stream, function, [true, false], size, 1);
                let expected = call.expected(0.75, 0.0);
                call.device[2] = stream.clone_htod(&vec![f32::NAN; call.host[2].len()]).unwrap();
                matmul_override::scope(|| call.run(&blas, 0.75, 0.0, scalars));
                call.check(&stream, &expected, &format!("{function:?} {scalars:?} β = 0"));

                let mut call = Call::new(&stream, function, [false, false], size, 2);
                let expected = call.expected(0.0, -2.0);
                call.device[0] = stream.clone_htod(&vec![f32::INFINITY; call.host[0].len()]).unwrap();
                matmul_override::scope(|| call.run(&blas, 0.0, -2.0, scalars));
                call.check(&stream, &expected, &format!("{function:?} {scalars:?} α = 0"));
            }
        }
    }
}

#[test]
fn a_captured_call_reads_its_scalars_at_every_replay() {
    let Some(stream) = stream_or_skip("a_captured_call_reads_its_scalars_at_every_replay") else {
        return;
    };
    let _alone = alone();
    // SAFETY: one stream does everything here. (cudarc would make it wait for events from outside the capture.)
    unsafe { stream.context().disable_event_tracking() };
    let blas = Handle::new(&stream);
    for function in FUNCTIONS {
        let mut call = Call::new(&stream, function, [true, false], [130, 70, 90], 2);
        let mut scalars = stream.clone_htod(&[f32::NAN; 2]).unwrap();
        let alpha = scalars.device_ptr(&stream).0 as *const f32;
        let at = call.addresses(&stream);
        // The kernel is loaded before the capture.
        matmul_override::scope(|| call.run(&blas, 1.0, 1.0, ScalarsIn::DeviceMemory));
        matmul_override::reset_stats();
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .unwrap();
        let status = with_scalars_in_memory(&blas, || {
            matmul_override::scope(|| call.queue(&blas, at, alpha, alpha.wrapping_add(1)))
        });
        let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        assert_eq!(status, sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        let graph = graph.unwrap().expect("something was recorded");
        let stats = matmul_override::stats();
        assert_eq!((stats.taken, stats.calls()), (1, 1), "{stats}");
        for (alpha, beta) in [(1.0f32, 0.0f32), (-0.5, 2.0)] {
            stream.memcpy_htod(&call.host[2], &mut call.device[2]).unwrap();
            stream.memcpy_htod(&[alpha, beta], &mut scalars).unwrap();
            graph.launch().unwrap();
            stream.synchronize().unwrap();
            let what = format!("{function:?}, replayed with {alpha} and {beta}");
            call.check(&stream, &call.expected(alpha as f64, beta as f64), &what);
        }
    }
}

#[test]
fn where_ours_cannot_launch_cublas_computes_and_the_failure_is_counted() {
    let Some(stream) = stream_or_skip("where_ours_cannot_launch_cublas_computes_and_the_failure_is_counted") else {
        return;
    };
    let _alone = alone();
    matmul_override::reset_stats();
    let blas = Handle::new(&stream);
    let call = Call::new(&stream, Function::Sgemm, [false, true], [70, 50, 30], 1);
    let (alpha, beta) = (2.0f32, 0.5f32);
    let at = call.addresses(&stream);
    // A thread that no CUDA context is current on: our launch needs one, cuBLAS makes itself at home.
    let status = std::thread::scope(|threads| {
        let call = || matmul_override::scope(|| call.queue(&blas, at, &alpha, &beta));
        threads.spawn(call).join().expect("no panic")
    });
    assert_eq!(status, sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
    stream.synchronize().unwrap();
    call.check(&stream, &call.expected(alpha as f64, beta as f64), "computed by cuBLAS");
    let stats = matmul_override::stats();
    assert_eq!((stats.taken, stats.calls()), (0, 1), "{stats}");
    assert_eq!(stats.failed.values().sum::<u64>(), 1, "{stats}");
}

#[test]
fn products_are_timed_beside_cublas_and_come_out_the_same() {
    let Some(stream) = stream_or_skip("products_are_timed_beside_cublas_and_come_out_the_same") else {
        return;
    };
    let _alone = alone();
    matmul_override::reset_stats();
    matmul_override::time_shapes(true);
    let blas = Handle::new(&stream);
    for function in FUNCTIONS {
        for scalars in [ScalarsIn::HostMemory, ScalarsIn::DeviceMemory] {
            let call = Call::new(&stream, function, [false, false], [200, 100, 50], 1);
            matmul_override::scope(|| call.run(&blas, 1.0, -0.5, scalars));
            // Timing has not been at C.
            call.check(&stream, &call.expected(1.0, -0.5), &format!("{function:?} {scalars:?}"));
        }
    }
    matmul_override::time_shapes(false);
    let stats = matmul_override::stats();
    println!("{stats}");
    assert_eq!(stats.shapes.len(), FUNCTIONS.len(), "{stats}");
    for shape in &stats.shapes {
        let times = shape.times.expect("timed at first sight");
        assert!(times.ours_us > 0.0 && times.cublas_us > 0.0, "{shape:?}");
        assert_eq!(shape.calls, 2);
        assert_eq!(shape.saved_us(), Some(2.0 * (times.cublas_us - times.ours_us)));
    }
    assert!(stats.saved_us().is_some());
}

#[test]
fn what_cublas_should_judge_gets_its_status() {
    let Some(stream) = stream_or_skip("what_cublas_should_judge_gets_its_status") else {
        return;
    };
    let _alone = alone();
    matmul_override::reset_stats();
    let blas = Handle::new(&stream);
    let mut call = Call::new(&stream, Function::Sgemm, [false, false], [8, 8, 8], 0);
    call.stored[0].ld = 7;
    let status = matmul_override::scope(|| call.queue(&blas, call.addresses(&stream), &1.0, &0.0));
    assert_eq!(status, sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE);
    let stats = matmul_override::stats();
    assert_eq!(stats.passed_on.get(&PassedOn::Arguments), Some(&1), "{stats}");
}

/// Needs no GPU: cuBLAS refuses a handle that is none.
#[test]
fn calls_that_are_not_taken_over_are_counted_by_function_and_get_cublass_answer() {
    extern "C" {
        /// As cuBLASLt declares it, with opaque types.
        fn cublasLtMatmul(
            handle: *mut c_void,
            description: *mut c_void,
            alpha: *const c_void,
            a: *const c_void,
            a_layout: *mut c_void,
            b: *const c_void,
            b_layout: *mut c_void,
            beta: *const c_void,
            c: *const c_void,
            c_layout: *mut c_void,
            d: *mut c_void,
            d_layout: *mut c_void,
            algorithm: *const c_void,
            workspace: *mut c_void,
            bytes: usize,
            stream: *mut c_void,
        ) -> c_int;
    }
    use sys::cublasOperation_t::CUBLAS_OP_N as N;
    use sys::cudaDataType_t::CUDA_R_32F as F32;

    let _alone = alone();
    matmul_override::reset_stats();
    let (null, none) = (std::ptr::null_mut(), std::ptr::null());
    let (arrays, results) = (std::ptr::null(), std::ptr::null());
    let void = std::ptr::null_mut::<c_void>();
    let (one, zero) = ([1f32], [0f32]);
    let (alpha, beta) = (one.as_ptr(), zero.as_ptr());
    // SAFETY: cuBLAS looks at the handle first, and there is none.
    let statuses = matmul_override::scope(|| unsafe {
        let (alpha_void, beta_void) = (alpha.cast(), beta.cast());
        let batched = sys::cublasSgemmBatched(null, N, N, 1, 1, 1, alpha, arrays, 1, arrays, 1, beta, results, 1, 1);
        let wide = sys::cublasSgemm_v2_64(
            null,
            N,
            N,
            1,
            1,
            1,
            alpha,
            none,
            1,
            none,
            1,
            beta,
            std::ptr::null_mut(),
            1,
        );
        let extended = sys::cublasSgemmEx(
            null, N, N, 1, 1, 1, alpha, void, F32, 1, void, F32, 1, beta, void, F32, 1,
        );
        let light = cublasLtMatmul(
            void, void, alpha_void, void, void, void, void, beta_void, void, void, void, void, void, void, 0, void,
        );
        assert_ne!(light, 0);
        // One that is taken over, but not with such a handle.
        let plain = sys::cublasSgemm_v2(
            null,
            N,
            N,
            1,
            1,
            1,
            alpha,
            none,
            1,
            none,
            1,
            beta,
            std::ptr::null_mut(),
            1,
        );
        [batched, wide, extended, plain]
    });
    assert_eq!(statuses, [sys::cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED; 4]);
    let stats = matmul_override::stats();
    println!("{stats}");
    for name in [
        "cublasSgemmBatched",
        "cublasSgemm_v2_64",
        "cublasSgemmEx",
        "cublasLtMatmul",
    ] {
        assert_eq!(stats.passed_on.get(&PassedOn::Function(name)), Some(&1), "{stats}");
    }
    assert_eq!(stats.passed_on.get(&PassedOn::Arguments), Some(&1), "{stats}");
    assert_eq!((stats.taken, stats.calls()), (0, 5), "{stats}");
}

/// Numbers of 16 bits as cuBLAS takes them.
struct SixteenBits {
    name: sys::cudaDataType_t,
    bits: fn(f32) -> u16,
    value: fn(u16) -> f32,
    /// Half of the distance between 1 and the next number.
    unit_roundoff: f64,
}

const SIXTEEN_BITS: [SixteenBits; 2] = [
    SixteenBits {
        name: sys::cudaDataType_t::CUDA_R_16F,
        bits: |x| f16::from_f32(x).to_bits(),
        value: |bits| f16::from_bits(bits).to_f32(),
        unit_roundoff: 1.0 / 2048.0,
    },
    SixteenBits {
        name: sys::cudaDataType_t::CUDA_R_16BF,
        bits: |x| bf16::from_f32(x).to_bits(),
        value: |bits| bf16::from_bits(bits).to_f32(),
        unit_roundoff: 1.0 / 256.0,
    },
];

/// `A·B` of 16-bit matrices, with 16-bit and with FP32 results, by the function that takes one product.
#[test]
fn sixteen_bit_matrices_are_multiplied_with_sums_in_fp32() {
    let Some(stream) = stream_or_skip("sixteen_bit_matrices_are_multiplied_with_sums_in_fp32") else {
        return;
    };
    const SIZE: [usize; 3] = [67, 34, 129];
    let _alone = alone();
    matmul_override::reset_stats();
    let blas = Handle::new(&stream);
    let [m, n, k] = SIZE;
    let mut calls = 0;
    for dtype in &SIXTEEN_BITS {
        let mut rng = rng(7);
        let mut matrix =
            |count: usize| -> Vec<u16> { (0..count).map(|_| (dtype.bits)(rng.random_range(-1f32..1.0))).collect() };
        let (a, b) = (matrix(m * k), matrix(k * n));
        let (on_device_a, on_device_b) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
        for result in [dtype.name, sys::cudaDataType_t::CUDA_R_32F] {
            let wide = result == sys::cudaDataType_t::CUDA_R_32F;
            let d = stream
                .clone_htod(&vec![u16::MAX; m * n * if wide { 2 } else { 1 }])
                .unwrap();
            let (alpha, beta) = (1f32, 0f32);
            // SAFETY: the memory holds the matrices, column by column, and lives until the stream has been waited for.
            let status = matmul_override::scope(|| unsafe {
                sys::cublasGemmEx(
                    *blas.blas.handle(),
                    sys::cublasOperation_t::CUBLAS_OP_N,
                    sys::cublasOperation_t::CUBLAS_OP_N,
                    m as c_int,
                    n as c_int,
                    k as c_int,
                    std::ptr::from_ref(&alpha).cast(),
                    on_device_a.device_ptr(&stream).0 as *const c_void,
                    dtype.name,
                    m as c_int,
                    on_device_b.device_ptr(&stream).0 as *const c_void,
                    dtype.name,
                    k as c_int,
                    std::ptr::from_ref(&beta).cast(),
                    d.device_ptr(&stream).0 as *mut c_void,
                    result,
                    m as c_int,
                    sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                    sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
                )
            });
            assert_eq!(status, sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
            calls += 1;
            let bits = stream.clone_dtoh(&d).unwrap();
            for (col, row) in (0..n).flat_map(|col| (0..m).map(move |row| (col, row))) {
                let at = col * m + row;
                let value = f64::from(match wide {
                    true => f32::from_bits(u32::from(bits[2 * at]) | u32::from(bits[2 * at + 1]) << 16),
                    false => (dtype.value)(bits[at]),
                });
                let (mut sum, mut size) = (0.0, 0.0);
                for i in 0..k {
                    let factors = [a[i * m + row], b[col * k + i]].map(|bits| f64::from((dtype.value)(bits)));
                    sum += factors[0] * factors[1];
                    size += (factors[0] * factors[1]).abs();
                }
                let rounding = if wide { 0.0 } else { dtype.unit_roundoff * sum.abs() };
                let bound = C0 * f32::EPSILON as f64 * (k as f64).sqrt() * size + rounding;
                let what = format!(
                    "{:?} to {result:?}: C({row}, {col}) is {value}, not {sum} ± {bound:e}",
                    dtype.name
                );
                assert!((value - sum).abs() <= bound, "{what}");
            }
        }
    }
    let stats = matmul_override::stats();
    assert_eq!((stats.taken, stats.calls()), (calls, calls), "{stats}");
}

/// All devices, several streams each, at once.
#[test]
fn devices_and_streams_do_not_meet() {
    const STREAMS: usize = 3;
    let _alone = alone();
    let devices = CudaContext::device_count().unwrap_or(0) as usize;
    if devices == 0 {
        common::needs::skip("devices_and_streams_do_not_meet", "gpu", "no usable GPU");
        return;
    }
    println!("{devices} devices");
    matmul_override::reset_stats();
    matmul_override::enable();
    std::thread::scope(|threads| {
        for device in 0..devices {
            for number in 0..STREAMS {
                threads.spawn(move || {
                    let context = CudaContext::new(device).unwrap();
                    let stream = context.new_stream().unwrap();
                    let blas = Handle::new(&stream);
                    for function in FUNCTIONS {
                        let size = [33 + 100 * number, 64 + device, 65];
                        let call = Call::new(&stream, function, [number == 1, device == 1], size, number);
                        call.run(&blas, 1.0, 0.25, ScalarsIn::HostMemory);
                        let what = format!("device {device}, stream {number}, {function:?}");
                        call.check(&stream, &call.expected(1.0, 0.25), &what);
                    }
                });
            }
        }
    });
    matmul_override::disable();
    let stats = matmul_override::stats();
    let calls = (devices * STREAMS * FUNCTIONS.len()) as u64;
    assert_eq!((stats.taken, stats.calls()), (calls, calls), "{stats}");
}
