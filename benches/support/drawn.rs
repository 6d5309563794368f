//! Drawn products on the GPU, one after the other in the same memory: what the planner chooses beside what candle does.

use super::gpu::{Gpu, Launch, Timing, QUEUING_US};
use super::product::{allowances, Asked};
use super::sampler::{Drawn, Handed, MOST_COPIED_BYTES, MOST_OPERAND_BYTES, MOST_RESULT_BYTES};
use anyhow::{bail, ensure, Context, Result};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::{CudaDevice, CudaStorage, Layout};
use candle_sgemm::gemm::cpu::{bf16, f16};
use candle_sgemm::gemm::launch::args::Addresses;
use candle_sgemm::gemm::launch::launch;
use candle_sgemm::gemm::operands::Operands;
use candle_sgemm::gemm::{DType, Plan, Precision};
use cudarc::driver::{result, CudaSlice, DevicePtr, DeviceRepr};
use std::ffi::c_void;

/// Storages start on so many elements, as candle's do.
const STORAGE_ELEMENTS: usize = 64;
/// Elements by which a result is judged.
const SAMPLE: usize = 256;
/// What the host takes at most to queue a copy of candle's, with dimensions and strides that it sends along, in µs.
const QUEUING_COPY_US: f64 = 25.0;

/// The argument of the kernels `gemm_sample_…` in `cuda/diagnostics/measure.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct SampleArgs {
    a: u64,
    b: u64,
    d: u64,
    elements: u64,
    found: u64,
    a_strides: [i64; 6],
    b_strides: [i64; 6],
    sizes: [i64; 7],
}

const _: () = assert!(size_of::<SampleArgs>() == 192, "measure.cu has this size");

/// What a product took.
pub struct Measured {
    pub plan: Plan,
    pub us: f64,
    /// Of cuBLAS, and of candle's copies before it where there are any.
    pub baseline_us: f64,
}

/// Memory for any of them.
pub struct Room<'a> {
    gpu: &'a Gpu,
    /// What their elements are.
    dtype: DType,
    /// Random numbers, of which every operand is a view.
    operands: CudaStorage,
    /// What candle copies.
    copies: CudaStorage,
    result: CudaSlice<u8>,
    elements: CudaSlice<u64>,
    found: CudaSlice<f64>,
}

/// Where a storage is, and how many elements it has.
fn place(storage: &CudaStorage, gpu: &Gpu) -> Result<(u64, usize)> {
    fn of<T: CudaDType>(storage: &CudaStorage, gpu: &Gpu) -> Result<(u64, usize)> {
        let slice = storage.as_cuda_slice::<T>()?;
        Ok((slice.device_ptr(&gpu.stream).0, slice.len()))
    }
    match storage.dtype() {
        candle_core::DType::F16 => of::<f16>(storage, gpu),
        candle_core::DType::BF16 => of::<bf16>(storage, gpu),
        _ => of::<f32>(storage, gpu),
    }
}

/// The kernel for elements of this type.
fn entry(dtype: DType, [f32, f16, bf16]: [&'static str; 3]) -> &'static str {
    match dtype {
        DType::F16 => f16,
        DType::BF16 => bf16,
        _ => f32,
    }
}

/// Candle's memory for so many bytes of elements.
fn storage(device: &CudaDevice, dtype: DType, bytes: usize) -> Result<CudaStorage> {
    fn of<T: CudaDType + DeviceRepr>(device: &CudaDevice, bytes: usize) -> Result<CudaStorage> {
        // SAFETY: operands are filled before they are read, and copies written.
        let slice = unsafe { device.alloc::<T>(bytes / size_of::<T>()) }
            .with_context(|| format!("cannot allocate {bytes} bytes on the GPU"))?;
        Ok(CudaStorage::wrap_cuda_slice(slice, device.clone()))
    }
    match dtype {
        DType::F32 => of::<f32>(device, bytes),
        DType::F16 => of::<f16>(device, bytes),
        DType::BF16 => of::<bf16>(device, bytes),
        _ => bail!("products of {dtype} are not drawn"),
    }
}

impl<'a> Room<'a> {
    /// At most 8 GiB on a device with an L2 of up to 100 MB. `device` is candle's on the stream of `gpu`.
    ///
    /// # Errors
    ///
    /// If the device has no such room, or elements of this type are not drawn.
    pub fn new(gpu: &'a Gpu, device: &CudaDevice, dtype: DType) -> Result<Self> {
        let storage = |bytes| storage(device, dtype, bytes);
        // Room for weights that are not in the L2 beside the largest operands.
        let cold_bytes = 4 * gpu.context.info().l2_bytes as usize;
        let padding = 4 * STORAGE_ELEMENTS * dtype.size();
        let room = Room {
            gpu,
            dtype,
            operands: storage(MOST_OPERAND_BYTES + cold_bytes + padding)?,
            copies: storage(MOST_COPIED_BYTES + padding)?,
            result: gpu.allocate(MOST_RESULT_BYTES)?,
            elements: gpu.stream.alloc_zeros(SAMPLE)?,
            found: gpu.stream.alloc_zeros(3 * SAMPLE)?,
        };
        room.fill()?;
        Ok(room)
    }

    fn fill(&self) -> Result<()> {
        const THREADS: u32 = 256;
        let (mut at, count) = place(&self.operands, self.gpu)?;
        let (mut count, mut seed) = (count as u64, 1u64);
        let mut parameters: [*mut c_void; 3] = [
            std::ptr::from_mut(&mut at).cast(),
            std::ptr::from_mut(&mut count).cast(),
            std::ptr::from_mut(&mut seed).cast(),
        ];
        let blocks = (16 * self.gpu.context.info().sm_count, 1, 1);
        // SAFETY: the kernel takes these three and writes `count` elements, which the storage holds.
        unsafe {
            self.gpu.launch_diagnostic(
                "diagnostics/measure",
                entry(self.dtype, ["fill_random_f32", "fill_random_f16", "fill_random_bf16"]),
                blocks,
                THREADS,
                &mut parameters,
            )
        }
    }

    /// Plans, checks and measures.
    ///
    /// # Errors
    ///
    /// Of the planner, of CUDA, and with the first element that is wrong, ours or the baseline's.
    pub fn measure(&mut self, drawn: &Drawn, precision: Precision, timing: Timing) -> Result<Measured> {
        let plan = Plan::new(&drawn.problem(precision), self.gpu.context.info(), self.gpu.costs())?;
        self.measure_plan(plan, drawn, precision, timing)
    }

    /// Checks and measures what somebody else chose.
    ///
    /// # Errors
    ///
    /// As [`Room::measure`].
    pub fn measure_plan(
        &mut self,
        plan: Plan,
        drawn: &Drawn,
        precision: Precision,
        timing: Timing,
    ) -> Result<Measured> {
        let gpu = self.gpu;
        ensure!(
            drawn.dtype == self.dtype,
            "{drawn} of {} in a room for {}",
            drawn.dtype,
            self.dtype
        );
        let ((storages, available), d) = (place(&self.operands, gpu)?, gpu.address(&self.result));
        let size = self.dtype.size();
        // A lies in front, B behind it, so often that a launch finds none of what the launch before has read.
        let b_start = drawn.a.span.next_multiple_of(STORAGE_ELEMENTS);
        let b_step = drawn.b.span.next_multiple_of(STORAGE_ELEMENTS);
        let l2_elements = gpu.context.info().l2_bytes as usize / size;
        let b_copies = match drawn.cold && b_step < 4 * l2_elements {
            true => (2 * l2_elements).div_ceil(b_step) + 1,
            false => 1,
        };
        ensure!(b_start + b_copies * b_step <= available, "there is no room for {drawn}");
        let starts = |i: usize| [0, b_start + i % b_copies * b_step];
        let firsts = |i: usize| {
            let [a, b] = starts(i);
            [a + drawn.a.offset, b + drawn.b.offset].map(|first| storages + (first * size) as u64)
        };

        let mut ours = |i: usize| -> Result<()> {
            let [a, b] = firsts(i);
            let at = Addresses::new(Operands {
                a,
                b,
                d,
                ..Operands::default()
            });
            // SAFETY: the views lie in the storage, the result fits into its buffer, and both live until the last launch has
            // ended; the stream's context is current on this thread.
            unsafe { launch(&plan, &at, 1.0, 0.0, gpu.stream.cu_stream()) }?;
            Ok(())
        };
        let handed = drawn.handed();
        let a_room = drawn.copied_elements()[0].next_multiple_of(STORAGE_ELEMENTS);
        let (operands, copies) = (&self.operands, &mut self.copies);
        let (copied_at, _) = place(copies, gpu)?;
        let mut candle = |i: usize| -> Result<()> {
            let mut addresses = firsts(i);
            let places = [(drawn.a.offset, 0), (starts(i)[1] + drawn.b.offset, a_room)];
            for ((handed, address), (first, place)) in handed.iter().zip(&mut addresses).zip(places) {
                if let Some((dims, strides)) = &handed.copied {
                    let layout = Layout::new(dims.as_slice().into(), strides.clone(), first);
                    operands.copy_strided_src(copies, place, &layout)?;
                    *address = copied_at + (place * size) as u64;
                }
            }
            let [a, b] = addresses;
            let asked = Asked {
                sizes: [drawn.m, drawn.n, drawn.k, drawn.batch()],
                transposed: handed.each_ref().map(|handed| handed.transposed),
                strides: handed.each_ref().map(|handed| handed.batch_stride),
                addresses: [a, b, d],
                dtype: drawn.dtype,
                precision,
                alpha: 1.0,
                beta: 0.0,
            };
            asked.launch(gpu)
        };

        let judge = Judge {
            gpu,
            drawn,
            precision,
            addresses: firsts(0),
            d,
            elements: &mut self.elements,
            found: &mut self.found,
        };
        let both: &mut [(&str, &mut Launch)] = &mut [(plan.kernel.name, &mut ours), ("cuBLAS", &mut candle)];
        // Of 16-bit products cuBLAS may round sums of slices of k, too.
        judge.judge(if self.dtype.is_16_bit() { &mut both[..1] } else { both })?;
        let queuing_us = QUEUING_US + QUEUING_COPY_US * handed.iter().filter(|handed| is_copied(handed)).count() as f64;
        let times = gpu.compare_queued(&mut [&mut candle, &mut ours], timing, queuing_us)?;
        Ok(Measured {
            plan,
            us: times[1],
            baseline_us: times[0],
        })
    }
}

fn is_copied(handed: &Handed) -> bool {
    handed.copied.is_some()
}

/// Compares a few elements of results with sums in FP64.
struct Judge<'a> {
    gpu: &'a Gpu,
    drawn: &'a Drawn,
    precision: Precision,
    /// Of A and B.
    addresses: [u64; 2],
    d: u64,
    elements: &'a mut CudaSlice<u64>,
    found: &'a mut CudaSlice<f64>,
}

impl Judge<'_> {
    fn judge(self, launches: &mut [(&str, &mut Launch)]) -> Result<()> {
        const THREADS: u32 = 256;
        let (gpu, drawn) = (self.gpu, self.drawn);
        let sample = drawn.sample(SAMPLE);
        gpu.stream.memcpy_htod(&sample, self.elements)?;
        let strides = |operand: &super::sampler::Operand| {
            let [w, x, y, z] = operand.layout.batch_strides;
            [operand.layout.row_stride, operand.layout.col_stride, w, x, y, z]
        };
        let [w, x, y, z] = drawn.batch_dims;
        let [a, b] = self.addresses;
        let mut args = SampleArgs {
            a,
            b,
            d: self.d,
            elements: self.elements.device_ptr(&gpu.stream).0,
            found: self.found.device_ptr(&gpu.stream).0,
            a_strides: strides(&drawn.a),
            b_strides: strides(&drawn.b),
            sizes: [drawn.m, drawn.n, drawn.k, w, x, y, z].map(|size| size as i64),
        };
        let (product_error, term_error) = allowances(drawn.dtype, self.precision, drawn.k);
        for (name, launch) in launches {
            let bytes = drawn.elements() * drawn.dtype.size();
            // SAFETY: the buffer has these bytes. All ones is NaN.
            unsafe { result::memset_d8_async(self.d, 0xff, bytes, gpu.stream.cu_stream()) }?;
            launch(0).with_context(|| format!("{name} on {drawn}"))?;
            let mut parameters = [std::ptr::from_mut(&mut args).cast()];
            let blocks = (SAMPLE as u32, 1, 1);
            // SAFETY: the kernel takes this struct; its views lie in their storages, and there is room for what it writes.
            unsafe {
                gpu.launch_diagnostic(
                    "diagnostics/measure",
                    entry(drawn.dtype, ["gemm_sample_f32", "gemm_sample_f16", "gemm_sample_bf16"]),
                    blocks,
                    THREADS,
                    &mut parameters,
                )
            }?;
            let found = gpu
                .stream
                .clone_dtoh(self.found)
                .with_context(|| format!("{name} failed on {drawn}"))?;
            for (element, found) in sample.iter().zip(found.chunks_exact(3)) {
                let (value, wanted) = (found[0], found[1]);
                let bound = product_error * found[2] + term_error * wanted.abs();
                // Not a number is wrong too.
                if (value - wanted).abs() <= bound {
                    continue;
                }
                return Err(Wrong(format!(
                    "{name} is wrong on {drawn}: element {element} of the result is {value}, not {wanted} (±{bound:.1e})"
                ))
                .into());
            }
        }
        Ok(())
    }
}

/// A result that is not what it should be; the device goes on working.
#[derive(Debug)]
pub struct Wrong(String);

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}
