//! One case on the GPU: operands, the FP64 reference, the kernels and cuBLAS on them.

use super::case::Case;
use super::gpu::{Gpu, Timing};
use anyhow::{bail, ensure, Context, Result};
use candle_sgemm::gemm::cpu::{bf16, f16};
use candle_sgemm::gemm::launch::args::Addresses;
use candle_sgemm::gemm::launch::launch;
use candle_sgemm::gemm::operands::Operands;
use candle_sgemm::gemm::{DType, Plan, Precision};
use candle_sgemm::transpose::launch::launch as launch_transpose;
use candle_sgemm::transpose::{TransposePlan, TransposeProblem};
use cudarc::cublas::sys as cublas;
use cudarc::driver::{result, CudaSlice};
use std::ffi::c_void;

/// Bound of an element: C0·ε·√k·|α|·Σ|a||b| + C1·ε·(|β·c| + |reference|), the same as in the tests.
const C0: f64 = 4.0;
/// See [`C0`].
const C1: f64 = 16.0;
/// With TF32 operands, this much of |α|·Σ|a||b| on top: two operands, each cut to 10 bits of mantissa.
const TF32_ERROR: f64 = 2.0 / 1024.0;

/// The argument of the reference kernel in `cuda/diagnostics/measure.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct ReferenceArgs {
    a: u64,
    b: u64,
    c: u64,
    reference: u64,
    bound: u64,
    a_strides: [i64; 3],
    b_strides: [i64; 3],
    m_n_k_batch: [i64; 4],
    alpha: f64,
    beta: f64,
    product_error: f64,
    term_error: f64,
}

const _: () = assert!(std::mem::size_of::<ReferenceArgs>() == 152, "measure.cu has this size");

/// How far a result lies from the reference, over the elements that are finite in both.
#[derive(Clone, Copy, Debug, Default)]
pub struct Errors {
    /// ‖d − reference‖ / ‖reference‖
    pub frobenius: f64,
    /// The largest |d − reference| / Σ|a||b|.
    pub componentwise: f64,
    /// Elements that are infinite or NaN where the reference, rounded to the result's type, is not the same.
    pub wrong_class: usize,
}

/// What an element's bound allows for each unit of Σ|a||b|, and of the reference itself.
pub fn allowances(dtype: DType, precision: Precision, k: usize) -> (f64, f64) {
    let epsilon = match dtype {
        DType::F64 => f64::EPSILON,
        _ => f32::EPSILON as f64, // sums of 16-bit numbers are FP32
    };
    let from_tf32 = match precision {
        Precision::Tf32 => TF32_ERROR,
        _ => 0.0,
    };
    // What rounding the result takes: half an ulp.
    let rounding = if dtype.is_16_bit() { dtype.unit_roundoff() } else { 0.0 };
    (C0 * epsilon * (k as f64).sqrt() + from_tf32, C1 * epsilon + rounding)
}

/// A product that cuBLAS is asked for as candle asks: matrices without gaps, a row-major `D = A·B` as the column-major
/// `Dᵀ = Bᵀ·Aᵀ`, FP32 compute (TF32 where that was asked for, as candle does when told to), of FP32 or 16-bit numbers.
pub struct Asked {
    /// m, n, k and batch.
    pub sizes: [usize; 4],
    /// Whether A and B are stored transposed.
    pub transposed: [bool; 2],
    /// Elements from each matrix of A and of B to the next.
    pub strides: [i64; 2],
    /// Of A, B and D.
    pub addresses: [u64; 3],
    pub dtype: DType,
    pub precision: Precision,
    pub alpha: f32,
    pub beta: f32,
}

impl Asked {
    /// Elements from each row (or column, as they are stored) of A and of B to the next.
    fn leading(&self) -> [i32; 2] {
        let ([m, n, k, _], [a_transposed, b_transposed]) = (self.sizes, self.transposed);
        [
            if a_transposed { m } else { k } as i32,
            if b_transposed { k } else { n } as i32,
        ]
    }

    fn operations(&self) -> [cublas::cublasOperation_t; 2] {
        self.transposed.map(|transposed| match transposed {
            true => cublas::cublasOperation_t::CUBLAS_OP_T,
            false => cublas::cublasOperation_t::CUBLAS_OP_N,
        })
    }

    /// Queues the product.
    ///
    /// # Errors
    ///
    /// Of cuBLAS.
    pub fn launch(&self, gpu: &Gpu) -> Result<()> {
        let ([m, n, k, batch], [a, b, d]) = (self.sizes, self.addresses);
        let ([leading_a, leading_b], [op_a, op_b]) = (self.leading(), self.operations());
        let [stride_a, stride_b] = self.strides;
        let compute = match self.precision {
            Precision::Tf32 if self.dtype == DType::F32 => cublas::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => cublas::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let float = match self.dtype {
            DType::F16 => cublas::cudaDataType_t::CUDA_R_16F,
            DType::BF16 => cublas::cudaDataType_t::CUDA_R_16BF,
            _ => cublas::cudaDataType_t::CUDA_R_32F,
        };
        // SAFETY: the matrices are where the caller says that they are.
        unsafe {
            cudarc::cublas::result::gemm_strided_batched_ex(
                *gpu.blas.handle(),
                op_b,
                op_a,
                n as i32,
                m as i32,
                k as i32,
                std::ptr::from_ref(&self.alpha).cast(),
                b as *const c_void,
                float,
                leading_b,
                stride_b,
                a as *const c_void,
                float,
                leading_a,
                stride_a,
                std::ptr::from_ref(&self.beta).cast(),
                d as *mut c_void,
                float,
                n as i32,
                (m * n) as i64,
                batch as i32,
                compute,
                cublas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
            )
        }?;
        Ok(())
    }
}

/// A case with its data on the device.
pub struct Product<'a> {
    gpu: &'a Gpu,
    pub case: Case,
    pub dtype: DType,
    pub precision: Precision,
    pub alpha: f32,
    pub beta: f32,
    a: CudaSlice<u8>,
    /// One copy of B, or as many as exceed the L2.
    b: CudaSlice<u8>,
    b_copies: usize,
    b_bytes: usize,
    d: CudaSlice<u8>,
    reference: CudaSlice<u8>,
    bound: CudaSlice<u8>,
    /// Elements of the result.
    elements: usize,
}

/// A in the other storage order, by the crate's own transposition.
pub struct TurnedA {
    a: CudaSlice<u8>,
    transposition: TransposePlan,
    /// The product with A stored so.
    case: Case,
}

impl TurnedA {
    /// The kernel that transposes.
    pub fn kernel(&self) -> &'static str {
        self.transposition.name()
    }
}

impl<'a> Product<'a> {
    /// Fills the operands with random numbers and computes the reference.
    ///
    /// # Errors
    ///
    /// If the case does not fit into the device's memory, or CUDA fails.
    pub fn new(gpu: &'a Gpu, case: Case, dtype: DType, precision: Precision, alpha: f32, beta: f32) -> Result<Self> {
        let product = Product::allocate(gpu, case, dtype, precision, (alpha, beta))?;
        product.fill(&product.a, 1)?;
        product.fill(&product.b, 2)?;
        product.reset_d()?;
        product.compute_reference()?;
        Ok(product)
    }

    /// The product of these numbers, rounded to elements of `dtype`, in the order in which the case's layout stores them:
    /// `D = A·B`.
    ///
    /// # Errors
    ///
    /// If they are too many or too few for the case, or as [`Product::new`].
    pub fn of(gpu: &'a Gpu, case: Case, dtype: DType, precision: Precision, [a, b]: [&[f32]; 2]) -> Result<Self> {
        let mut product = Product::allocate(gpu, case, dtype, precision, (1.0, 0.0))?;
        for (buffer, numbers) in [(&mut product.a, a), (&mut product.b, b)] {
            let bytes: Vec<u8> = match dtype {
                DType::F16 => numbers
                    .iter()
                    .flat_map(|&number| f16::from_f32(number).to_le_bytes())
                    .collect(),
                DType::BF16 => numbers
                    .iter()
                    .flat_map(|&number| bf16::from_f32(number).to_le_bytes())
                    .collect(),
                DType::F64 => numbers
                    .iter()
                    .flat_map(|&number| f64::from(number).to_le_bytes())
                    .collect(),
                _ => numbers.iter().flat_map(|&number| number.to_le_bytes()).collect(),
            };
            let room = buffer.len();
            ensure!(
                bytes.len() <= room && room < bytes.len() + 256,
                "{} numbers for {room} bytes of {case}",
                numbers.len()
            );
            gpu.stream.memcpy_htod(&bytes, &mut buffer.slice_mut(..bytes.len()))?;
        }
        product.reset_d()?;
        product.compute_reference()?;
        Ok(product)
    }

    fn allocate(
        gpu: &'a Gpu,
        case: Case,
        dtype: DType,
        precision: Precision,
        (alpha, beta): (f32, f32),
    ) -> Result<Self> {
        let size = dtype.size();
        let elements = case.batch * case.m * case.n;
        let reference_bytes = elements * size_of::<f64>();
        // Copies start on 256 bytes, so each is as well aligned as a tensor of its own.
        let b_bytes = (case.batch * case.k * case.n * size).next_multiple_of(256);
        let b_copies = match case.cold {
            true => (2 * gpu.context.info().l2_bytes as usize).div_ceil(b_bytes) + 1,
            false => 1,
        };
        Ok(Product {
            gpu,
            case,
            dtype,
            precision,
            alpha,
            beta,
            a: gpu.allocate(case.batch * case.m * case.k * size)?,
            b: gpu.allocate(b_copies * b_bytes)?,
            b_copies,
            b_bytes,
            d: gpu.allocate(elements * size)?,
            reference: gpu.allocate(reference_bytes)?,
            bound: gpu.allocate(reference_bytes)?,
            elements,
        })
    }

    /// The one of these that is for the type of the elements.
    fn entry(&self, [f32, f64, f16, bf16]: [&'static str; 4]) -> &'static str {
        match self.dtype {
            DType::F64 => f64,
            DType::F16 => f16,
            DType::BF16 => bf16,
            _ => f32,
        }
    }

    fn fill(&self, buffer: &CudaSlice<u8>, mut seed: u64) -> Result<()> {
        const THREADS: u32 = 256;
        let mut address = self.gpu.address(buffer);
        let mut count = (buffer.len() / self.dtype.size()) as u64;
        let blocks = 16 * self.gpu.context.info().sm_count;
        let mut parameters: [*mut c_void; 3] = [
            std::ptr::from_mut(&mut address).cast(),
            std::ptr::from_mut(&mut count).cast(),
            std::ptr::from_mut(&mut seed).cast(),
        ];
        let entry = self.entry([
            "fill_random_f32",
            "fill_random_f64",
            "fill_random_f16",
            "fill_random_bf16",
        ]);
        // SAFETY: the kernel takes these three and writes `count` elements, which the buffer holds.
        unsafe {
            self.gpu
                .launch_diagnostic("diagnostics/measure", entry, (blocks, 1, 1), THREADS, &mut parameters)
        }
    }

    /// What a kernel finds in D: C where there is one, else NaN.
    fn reset_d(&self) -> Result<()> {
        if self.beta != 0.0 {
            return self.fill(&self.d, 3);
        }
        let (address, stream) = (self.gpu.address(&self.d), self.gpu.stream.cu_stream());
        // SAFETY: the buffer has these bytes. All ones is NaN in every floating-point type.
        unsafe { result::memset_d8_async(address, 0xff, self.d.len(), stream) }?;
        Ok(())
    }

    fn allowances(&self) -> (f64, f64) {
        allowances(self.dtype, self.precision, self.case.k)
    }

    fn compute_reference(&self) -> Result<()> {
        const TILE: usize = 32;
        const THREADS: u32 = 256;
        let case = &self.case;
        let [(a_row, a_col), (b_row, b_col)] = case.strides();
        let (product_error, term_error) = self.allowances();
        let mut args = ReferenceArgs {
            a: self.gpu.address(&self.a),
            b: self.gpu.address(&self.b),
            c: self.gpu.address(&self.d),
            reference: self.gpu.address(&self.reference),
            bound: self.gpu.address(&self.bound),
            a_strides: [a_row, a_col, (case.m * case.k) as i64],
            b_strides: [b_row, b_col, (case.k * case.n) as i64],
            m_n_k_batch: [case.m, case.n, case.k, case.batch].map(|size| size as i64),
            alpha: self.alpha as f64,
            beta: self.beta as f64,
            product_error,
            term_error,
        };
        let tiles = (case.m.div_ceil(TILE) * case.batch).min(65_535) as u32;
        let grid = (case.n.div_ceil(TILE) as u32, tiles, 1);
        let mut parameters = [std::ptr::from_mut(&mut args).cast()];
        let entry = self.entry([
            "gemm_reference_f32",
            "gemm_reference_f64",
            "gemm_reference_f16",
            "gemm_reference_bf16",
        ]);
        // SAFETY: the kernel takes this struct; the buffers were made for this case.
        unsafe {
            self.gpu
                .launch_diagnostic("diagnostics/measure", entry, grid, THREADS, &mut parameters)
        }
    }

    /// Runs `launch` once and compares every element with the reference.
    ///
    /// # Errors
    ///
    /// With the place of the first wrong element, or CUDA's error.
    pub fn check(&self, name: &str, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        const THREADS: u32 = 256;
        self.reset_d()?;
        launch().with_context(|| format!("{name} on {}", self.case))?;
        let first = self.gpu.stream.clone_htod(&[u64::MAX])?;
        let mut addresses = [&self.d, &self.reference, &self.bound].map(|buffer| self.gpu.address(buffer));
        let mut count = self.elements as u64;
        let mut first_address = cudarc::driver::DevicePtr::device_ptr(&first, &self.gpu.stream).0;
        let [d, reference, bound] = &mut addresses;
        let mut parameters: [*mut c_void; 5] = [
            std::ptr::from_mut(d).cast(),
            std::ptr::from_mut(reference).cast(),
            std::ptr::from_mut(bound).cast(),
            std::ptr::from_mut(&mut count).cast(),
            std::ptr::from_mut(&mut first_address).cast(),
        ];
        let entry = self.entry([
            "first_wrong_f32",
            "first_wrong_f64",
            "first_wrong_f16",
            "first_wrong_bf16",
        ]);
        let blocks = 16 * self.gpu.context.info().sm_count;
        // SAFETY: the kernel takes these five; D, the reference and the bound have `count` elements, `first` is one number.
        unsafe {
            self.gpu
                .launch_diagnostic("diagnostics/measure", entry, (blocks, 1, 1), THREADS, &mut parameters)
        }?;
        let first = self
            .gpu
            .stream
            .clone_dtoh(&first)
            .with_context(|| format!("{name} failed on {}", self.case))?[0] as usize;
        if first >= self.elements {
            return Ok(());
        }
        let value = self.element(&self.bytes(&self.d, first, self.dtype.size())?);
        let double = |buffer| -> Result<f64> {
            let bytes = self.bytes(buffer, first, size_of::<f64>())?;
            Ok(f64::from_le_bytes(std::array::from_fn(|i| bytes[i])))
        };
        let (reference, bound) = (double(&self.reference)?, double(&self.bound)?);
        let (matrix, at) = (first / (self.case.m * self.case.n), first % (self.case.m * self.case.n));
        let (row, col) = (at / self.case.n, at % self.case.n);
        let matrix = if self.case.batch > 1 {
            format!(" of matrix {matrix}")
        } else {
            String::new()
        };
        bail!(
            "{name} is wrong on {}: the first wrong element is D({row}, {col}){matrix}: {value}, not {reference} (±{bound:.1e})",
            self.case
        )
    }

    /// The element of D in these bytes.
    fn element(&self, bytes: &[u8]) -> f64 {
        match self.dtype {
            DType::F64 => f64::from_le_bytes(std::array::from_fn(|i| bytes[i])),
            DType::F16 => f16::from_le_bytes(std::array::from_fn(|i| bytes[i])).to_f64(),
            DType::BF16 => bf16::from_le_bytes(std::array::from_fn(|i| bytes[i])).to_f64(),
            _ => f64::from(f32::from_le_bytes(std::array::from_fn(|i| bytes[i]))),
        }
    }

    /// A number as an element of D.
    fn rounded(&self, number: f64) -> f64 {
        match self.dtype {
            DType::F64 => number,
            DType::F16 => f16::from_f64(number).to_f64(),
            DType::BF16 => bf16::from_f64(number).to_f64(),
            _ => f64::from(number as f32),
        }
    }

    /// Runs `launch` once and measures how far its result lies from the reference.
    ///
    /// # Errors
    ///
    /// Of the launch.
    pub fn errors(&self, launch: impl FnOnce() -> Result<()>) -> Result<Errors> {
        self.reset_d()?;
        launch()?;
        let (product_error, term_error) = self.allowances();
        let host = |buffer| self.gpu.stream.clone_dtoh(buffer);
        let (d, reference, bound) = (host(&self.d)?, host(&self.reference)?, host(&self.bound)?);
        let doubles = |bytes: &[u8]| f64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        let (mut errors, mut squares, mut reference_squares) = (Errors::default(), 0.0, 0.0);
        for ((d, reference), bound) in d
            .chunks_exact(self.dtype.size())
            .zip(reference.chunks_exact(8))
            .zip(bound.chunks_exact(8))
        {
            let d = self.element(d);
            let (reference, bound) = (doubles(reference), doubles(bound));
            let rounded = self.rounded(reference);
            if !d.is_finite() || !rounded.is_finite() {
                errors.wrong_class += usize::from(d != rounded && !(d.is_nan() && rounded.is_nan()));
                continue;
            }
            let error = (d - reference).abs();
            squares += error * error;
            reference_squares += reference * reference;
            let magnitude = (bound - term_error * reference.abs()) / product_error;
            if error > 0.0 {
                errors.componentwise = errors.componentwise.max(error / magnitude);
            }
        }
        if squares > 0.0 {
            errors.frobenius = (squares / reference_squares).sqrt();
        }
        Ok(errors)
    }

    /// One element of `size` bytes.
    fn bytes(&self, buffer: &CudaSlice<u8>, element: usize, size: usize) -> Result<Vec<u8>> {
        let element = buffer.slice(element * size..(element + 1) * size);
        Ok(self.gpu.stream.clone_dtoh(&element)?)
    }

    fn b_address(&self, i: usize) -> u64 {
        self.gpu.address(&self.b) + (i % self.b_copies * self.b_bytes) as u64
    }

    /// A plan for this product: the planner's choice, or the kernel of this name.
    ///
    /// # Errors
    ///
    /// With the kernel's reason where it refuses.
    pub fn plan(&self, kernel: Option<&str>) -> candle_sgemm::Result<Plan> {
        let problem = self.case.problem(self.dtype, self.precision, self.beta != 0.0);
        match kernel {
            Some(name) => Plan::named(name, &problem, self.gpu.context.info(), self.gpu.costs()),
            None => Plan::new(&problem, self.gpu.context.info(), self.gpu.costs()),
        }
    }

    /// Room for A in the other storage order, and how it gets there.
    ///
    /// # Errors
    ///
    /// If there is no room, or no transposition.
    pub fn turn_a(&self) -> Result<TurnedA> {
        let Case {
            m,
            k,
            batch,
            mut layout,
            ..
        } = self.case;
        let [rows, cols] = if layout.a_transposed { [k, m] } else { [m, k] };
        let problem = TransposeProblem::permutation(
            &[batch, rows, cols],
            &[rows * cols, cols, 1],
            &[0, 2, 1],
            self.dtype.size(),
        )?;
        layout.a_transposed = !layout.a_transposed;
        Ok(TurnedA {
            a: self.gpu.allocate(self.a.len())?,
            transposition: TransposePlan::new(&problem.aligned_to(256), self.gpu.context.info())?,
            case: Case { layout, ..self.case },
        })
    }

    /// Queues the transposition of A.
    ///
    /// # Errors
    ///
    /// Of the launch.
    pub fn launch_turn(&self, turned: &TurnedA) -> Result<()> {
        let (src, dst) = (self.gpu.address(&self.a), self.gpu.address(&turned.a));
        // SAFETY: both buffers hold all of A, start on 256 bytes and live as long as every measurement of this product.
        unsafe { launch_transpose(&turned.transposition, src, dst, self.gpu.stream.cu_stream()) }?;
        Ok(())
    }

    /// A plan for the product with A in the other storage order.
    ///
    /// # Errors
    ///
    /// With the kernel's reason where it refuses.
    pub fn plan_turned(&self, turned: &TurnedA, kernel: &str) -> candle_sgemm::Result<Plan> {
        let problem = turned.case.problem(self.dtype, self.precision, self.beta != 0.0);
        Plan::named(kernel, &problem, self.gpu.context.info(), self.gpu.costs())
    }

    /// Queues launch `i` of `plan`, which was made for this product.
    ///
    /// # Errors
    ///
    /// Of the launch.
    pub fn launch(&self, plan: &Plan, i: usize) -> Result<()> {
        self.launch_on(&self.a, plan, i)
    }

    /// Queues launch `i` of `plan`, which was made for the product with A in the other storage order.
    ///
    /// # Errors
    ///
    /// Of the launch.
    pub fn launch_turned(&self, turned: &TurnedA, plan: &Plan, i: usize) -> Result<()> {
        self.launch_on(&turned.a, plan, i)
    }

    fn launch_on(&self, a: &CudaSlice<u8>, plan: &Plan, i: usize) -> Result<()> {
        let d = self.gpu.address(&self.d);
        let at = Addresses::new(Operands {
            a: self.gpu.address(a),
            b: self.b_address(i),
            c: if self.beta != 0.0 { d } else { 0 },
            d,
            ..Operands::default()
        });
        // SAFETY: the buffers were made for this case and live as long as `self`, which outlives every measurement's
        // final synchronisation; the stream's context is current on this thread.
        unsafe { launch(plan, &at, self.alpha, self.beta, self.gpu.stream.cu_stream()) }?;
        Ok(())
    }

    /// Queues launch `i` of cuBLAS, called as candle calls it: see [`Asked`].
    ///
    /// # Errors
    ///
    /// Of cuBLAS.
    pub fn launch_cublas(&self, i: usize) -> Result<()> {
        let case = &self.case;
        let layout = case.layout;
        let asked = Asked {
            sizes: [case.m, case.n, case.k, case.batch],
            transposed: [layout.a_transposed, layout.b_transposed],
            strides: [case.m * case.k, case.k * case.n].map(|elements| elements as i64),
            addresses: [self.gpu.address(&self.a), self.b_address(i), self.gpu.address(&self.d)],
            dtype: self.dtype,
            precision: self.precision,
            alpha: self.alpha,
            beta: self.beta,
        };
        let [leading_a, leading_b] = asked.leading();
        let [op_a, op_b] = asked.operations();
        let [stride_a, stride_b] = asked.strides;
        let (m, n, k) = (case.m as i32, case.n as i32, case.k as i32);
        let stride_d = (case.m * case.n) as i64;
        let handle = *self.gpu.blas.handle();
        let [a, b, d] = asked.addresses;
        match self.dtype {
            DType::F64 => {
                let (alpha, beta) = (self.alpha as f64, self.beta as f64);
                // SAFETY: as above.
                unsafe {
                    cudarc::cublas::result::dgemm_strided_batched(
                        handle,
                        op_b,
                        op_a,
                        n,
                        m,
                        k,
                        &alpha,
                        b as *const f64,
                        leading_b,
                        stride_b,
                        a as *const f64,
                        leading_a,
                        stride_a,
                        &beta,
                        d as *mut f64,
                        n,
                        stride_d,
                        case.batch as i32,
                    )
                }
                .map_err(anyhow::Error::from)
            }
            _ => asked.launch(self.gpu),
        }
        .with_context(|| format!("cuBLAS on {case}"))
    }

    /// µs of cuBLAS and of `plan`, measured in turn.
    ///
    /// # Errors
    ///
    /// Of the launches.
    pub fn compare(&self, plan: &Plan, timing: Timing) -> Result<(f64, f64)> {
        let times = self.gpu.compare(
            &mut [&mut |i| self.launch_cublas(i), &mut |i| self.launch(plan, i)],
            timing,
        )?;
        Ok((times[0], times[1]))
    }
    /// µs of cuBLAS, of the transposition of A, and of `plan` on what that wrote, measured in turn.
    ///
    /// # Errors
    ///
    /// Of the launches.
    pub fn compare_turned(&self, turned: &TurnedA, plan: &Plan, timing: Timing) -> Result<[f64; 3]> {
        let times = self.gpu.compare(
            &mut [
                &mut |i| self.launch_cublas(i),
                &mut |_| self.launch_turn(turned),
                &mut |i| self.launch_turned(turned, plan, i),
            ],
            timing,
        )?;
        Ok([times[0], times[1], times[2]])
    }
}
