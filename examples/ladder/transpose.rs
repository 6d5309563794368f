//! The mode for transpositions: every kernel of their table beside a device-to-device copy of the same bytes, cuBLAS's
//! geam and candle's own `contiguous()`, in one run.

use crate::support::gpu::{Gpu, Launch, Timing};
use crate::support::record::Row;
use anyhow::{bail, Context, Result};
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::{DType, Device, Storage, Tensor};
use candle_sgemm::transpose::kernels::Moves;
use candle_sgemm::transpose::launch::launch;
use candle_sgemm::transpose::{TransposeKernel, TransposePlan, TransposeProblem};
use candle_sgemm::Error;
use cudarc::cublas::sys as cublas;
use cudarc::driver::{result, CudaSlice, DevicePtr};
use std::ffi::c_void;

use super::{parse_dims, TransposeArguments};
use std::time::Duration;

const PROGRAM: &str = "cargo run --release --features cuda --example ladder --";

/// A tensor that is permuted.
#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    shape: Vec<usize>,
    axes: Vec<usize>,
}

impl Case {
    fn is_matrix(&self) -> bool {
        self.axes == [1, 0]
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size_in_bytes()
    }

    fn name(&self) -> String {
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        format!(
            "{} {} in the order {:?}",
            self.dtype.as_str(),
            shape.join("×"),
            self.axes
        )
    }

    /// Row-major strides.
    fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.shape.len()];
        for i in (0..self.shape.len().saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * self.shape[i + 1];
        }
        strides
    }
}

/// What the built-in list has: squares, shapes that fit nothing, a batch, and the heads of attention.
fn cases(arguments: &TransposeArguments) -> Result<Vec<Case>> {
    let dtypes: Vec<DType> = arguments
        .dtype
        .split(',')
        .map(|word| match word.trim() {
            "f32" => Ok(DType::F32),
            "f64" => Ok(DType::F64),
            "bf16" => Ok(DType::BF16),
            "u8" => Ok(DType::U8),
            other => bail!("'{other}' is not one of f32, f64, bf16 and u8"),
        })
        .collect::<Result<_>>()?;
    let mut shapes: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    if let Some(text) = &arguments.shapes {
        for shape in parse_dims(text)? {
            let last = shape.len() - 1;
            let mut axes: Vec<usize> = (0..=last).collect();
            axes.swap(last - 1, last);
            shapes.push((shape, axes));
        }
    } else {
        for size in [512, 1024, 2048, 4096, 8192, 16384] {
            shapes.push((vec![size, size], vec![1, 0]));
        }
        shapes.push((vec![32, 128, 12, 64], vec![0, 2, 1, 3]));
        shapes.push((vec![64, 512, 768], vec![0, 2, 1]));
        for [rows, cols] in [
            [4095, 4097],
            [4099, 8209],
            [3, 30_000_000],
            [30_000_000, 3],
            [1, 30_000_000],
            [30_000_000, 1],
        ] {
            shapes.push((vec![rows, cols], vec![1, 0]));
        }
    }
    let all = dtypes
        .iter()
        .flat_map(|&dtype| {
            shapes.iter().map(move |(shape, axes)| Case {
                dtype,
                shape: shape.clone(),
                axes: axes.clone(),
            })
        })
        .collect();
    Ok(all)
}

/// The device's address of a tensor's first element.
fn address(tensor: &Tensor, gpu: &Gpu) -> Result<u64> {
    let (storage, _) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        bail!("a tensor is not on the GPU");
    };
    Ok(match &storage.slice {
        CudaStorageSlice::F32(slice) => slice.device_ptr(&gpu.stream).0,
        CudaStorageSlice::F64(slice) => slice.device_ptr(&gpu.stream).0,
        CudaStorageSlice::BF16(slice) => slice.device_ptr(&gpu.stream).0,
        CudaStorageSlice::U8(slice) => slice.device_ptr(&gpu.stream).0,
        _ => bail!("{:?} is not measured", tensor.dtype()),
    })
}

fn fill(gpu: &Gpu, mut address: u64, bytes: usize) -> Result<()> {
    const THREADS: u32 = 256;
    let mut count = (bytes / size_of::<f32>()) as u64;
    let mut seed = 7u64;
    let mut parameters: [*mut c_void; 3] = [
        std::ptr::from_mut(&mut address).cast(),
        std::ptr::from_mut(&mut count).cast(),
        std::ptr::from_mut(&mut seed).cast(),
    ];
    let blocks = 16 * gpu.context.info().sm_count;
    // SAFETY: the kernel takes these three and writes `count` whole words of the buffer.
    unsafe {
        gpu.launch_diagnostic(
            "diagnostics/measure",
            "fill_random_f32",
            (blocks, 1, 1),
            THREADS,
            &mut parameters,
        )
    }
}

/// Fails with the place of the first byte that differs.
fn check(gpu: &Gpu, name: &str, case: &Case, found: u64, wanted: u64) -> Result<()> {
    const THREADS: u32 = 256;
    let first: CudaSlice<u64> = gpu.stream.clone_htod(&[u64::MAX])?;
    let (mut found, mut wanted, mut count) = (found, wanted, case.bytes() as u64);
    let mut first_address = first.device_ptr(&gpu.stream).0;
    let mut parameters: [*mut c_void; 4] = [
        std::ptr::from_mut(&mut found).cast(),
        std::ptr::from_mut(&mut wanted).cast(),
        std::ptr::from_mut(&mut count).cast(),
        std::ptr::from_mut(&mut first_address).cast(),
    ];
    let blocks = 16 * gpu.context.info().sm_count;
    // SAFETY: the kernel takes these four; both buffers have `count` bytes and `first` is one number.
    unsafe {
        gpu.launch_diagnostic(
            "diagnostics/measure",
            "first_difference",
            (blocks, 1, 1),
            THREADS,
            &mut parameters,
        )
    }?;
    let at = gpu
        .stream
        .clone_dtoh(&first)
        .with_context(|| format!("{name} failed on {}", case.name()))?[0];
    if at < count {
        let element = at as usize / case.dtype.size_in_bytes();
        bail!(
            "{name} is wrong on {}: element {element} of the result is the first that differs",
            case.name()
        );
    }
    Ok(())
}

/// What is measured: a name, the kernel of the table if it is one, and how it is launched.
struct Contender<'a> {
    name: String,
    chosen: bool,
    launch: Box<dyn FnMut(usize) -> Result<()> + 'a>,
}

/// Measures one case: the copy first, then every contender that takes it.
fn measure(
    gpu: &Gpu,
    device: &Device,
    case: &Case,
    kernels: &[&'static TransposeKernel],
    timing: Timing,
) -> Result<Vec<Row>> {
    let x = Tensor::zeros(case.shape.as_slice(), case.dtype, device)?;
    let (src, bytes) = (address(&x, gpu)?, case.bytes());
    fill(gpu, src, bytes)?;
    let out = gpu.allocate(bytes.next_multiple_of(16))?;
    let dst = gpu.address(&out);
    let reference = x.permute(case.axes.as_slice())?.contiguous()?;
    let reference_at = address(&reference, gpu)?;
    let stream = gpu.stream.cu_stream();
    let wipe = || -> Result<()> {
        // SAFETY: the buffer has these bytes.
        unsafe { result::memset_d8_async(dst, 0xa5, bytes, stream) }?;
        Ok(())
    };

    let size = case.dtype.size_in_bytes();
    let problem = TransposeProblem::permutation(&case.shape, &case.strides(), &case.axes, size)?.aligned_to(256);
    let info = gpu.context.info();
    let default = TransposePlan::new(&problem, info)?;
    let mut contenders = vec![Contender {
        name: "device-to-device copy".into(),
        chosen: false,
        // SAFETY: both buffers have these bytes.
        launch: Box::new(|_| Ok(unsafe { result::memcpy_dtod_async(dst, src, bytes, stream) }?)),
    }];
    for kernel in kernels {
        // Steps that copy rows are measured on the copy of a matrix, which is what they stand for in the ladder.
        let copies = kernel.moves == Moves::Rows && case.is_matrix();
        let problem = match copies {
            true => TransposeProblem::matrix_copy(case.shape[0], case.shape[1], size)?.aligned_to(256),
            false => problem.clone(),
        };
        let plan = match TransposePlan::named(kernel.name, &problem, info) {
            Ok(plan) => plan,
            Err(Error::Refused { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        wipe()?;
        // SAFETY: source and destination hold the whole problem and do not overlap.
        unsafe { launch(&plan, src, dst, stream) }?;
        check(gpu, kernel.name, case, dst, if copies { src } else { reference_at })?;
        contenders.push(Contender {
            name: kernel.name.into(),
            chosen: !copies && kernel.name == default.name(),
            // SAFETY: as above.
            launch: Box::new(move |_| Ok(unsafe { launch(&plan, src, dst, stream) }?)),
        });
    }
    if !contenders.iter().any(|contender| contender.chosen) {
        wipe()?;
        // SAFETY: as above.
        unsafe { launch(&default, src, dst, stream) }?;
        check(gpu, default.name(), case, dst, reference_at)?;
        contenders.push(Contender {
            name: default.name().into(),
            chosen: true,
            // SAFETY: as above.
            launch: Box::new(|_| Ok(unsafe { launch(&default, src, dst, stream) }?)),
        });
    }
    if case.is_matrix() && matches!(case.dtype, DType::F32 | DType::F64) {
        let dtype = case.dtype;
        let (rows, cols) = (case.shape[0] as i32, case.shape[1] as i32);
        wipe()?;
        geam(gpu, dtype, rows, cols, src, dst)?;
        check(gpu, "cuBLAS geam", case, dst, reference_at)?;
        contenders.push(Contender {
            name: "cuBLAS geam".into(),
            chosen: false,
            launch: Box::new(move |_| geam(gpu, dtype, rows, cols, src, dst)),
        });
    }
    contenders.push(Contender {
        name: "candle contiguous()".into(),
        chosen: false,
        launch: Box::new(|_| {
            x.permute(case.axes.as_slice())?.contiguous()?;
            Ok(())
        }),
    });

    let (names, mut launches): (Vec<_>, Vec<_>) = contenders
        .into_iter()
        .map(|contender| ((contender.name, contender.chosen), contender.launch))
        .unzip();
    let mut references: Vec<&mut Launch> = launches.iter_mut().map(|launch| &mut **launch as &mut Launch).collect();
    let times = gpu.compare(&mut references, timing)?;
    let copy_us = times[0];
    let rounded = |value: f64, places: i32| (value * 10f64.powi(places)).round() / 10f64.powi(places);
    let rows = names.into_iter().zip(times).map(|((name, chosen), us)| Row {
        bench: "transpose".into(),
        kernel: Some(name),
        dtype: Some(case.dtype.as_str().into()),
        shape: Some(case.shape.clone()),
        axes: Some(case.axes.clone()),
        chosen: chosen.then_some(true),
        us: Some(rounded(us, 3)),
        baseline: Some("copy".into()),
        baseline_us: Some(rounded(copy_us, 3)),
        speedup: Some(rounded(copy_us / us, 4)),
        gbps: Some(rounded(2.0 * case.bytes() as f64 / us * 1e-3, 1)),
        ..Row::default()
    });
    Ok(rows.collect())
}

/// The transposition of a row-major matrix by cuBLAS.
fn geam(gpu: &Gpu, dtype: DType, rows: i32, cols: i32, src: u64, dst: u64) -> Result<()> {
    use cublas::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
    let handle = *gpu.blas.handle();
    // SAFETY: both buffers hold rows × cols elements, and the leading dimensions are those of dense matrices. The second
    // operand is multiplied by 0 and not read.
    unsafe {
        match dtype {
            DType::F64 => {
                let (one, zero) = (1.0f64, 0.0f64);
                let (a, c) = (src as *const f64, dst as *mut f64);
                cublas::cublasDgeam(
                    handle,
                    CUBLAS_OP_T,
                    CUBLAS_OP_N,
                    rows,
                    cols,
                    &one,
                    a,
                    cols,
                    &zero,
                    c,
                    rows,
                    c,
                    rows,
                )
            }
            _ => {
                let (one, zero) = (1.0f32, 0.0f32);
                let (a, c) = (src as *const f32, dst as *mut f32);
                cublas::cublasSgeam(
                    handle,
                    CUBLAS_OP_T,
                    CUBLAS_OP_N,
                    rows,
                    cols,
                    &one,
                    a,
                    cols,
                    &zero,
                    c,
                    rows,
                    c,
                    rows,
                )
            }
        }
    }
    .result()
    .context("cuBLAS geam")
}

/// Measures, prints and writes.
pub fn run(arguments: &TransposeArguments) -> Result<()> {
    let (cases, kernels) = (cases(arguments)?, arguments.kernels()?);
    // Everything here is measured on the stream that candle's operations run on.
    let device = Device::new_cuda(0).context("no usable NVIDIA GPU")?;
    let gpu = Gpu::on(device.as_cuda_device()?.cuda_stream())?;
    let mut report = gpu.report(PROGRAM)?;
    crate::print::heading(&report);
    let timing = Timing {
        samples: arguments.samples,
        sample_us: arguments.sample_ms * 1e3,
        with_host: false,
        pause: Duration::ZERO,
    };
    for case in &cases {
        let rows = measure(&gpu, &device, case, &kernels, timing).with_context(|| case.name())?;
        println!(
            "\n{}\n{:<28} {:>11} {:>9} {:>8}",
            case.name(),
            "kernel",
            "µs",
            "GB/s",
            "of copy"
        );
        for row in &rows {
            println!(
                "{:<28} {:>11.2} {:>9.0} {:>8.3}{}",
                row.kernel.as_deref().unwrap_or_default(),
                row.us.unwrap_or_default(),
                row.gbps.unwrap_or_default(),
                row.speedup.unwrap_or_default(),
                if row.chosen == Some(true) { "  chosen" } else { "" }
            );
        }
        report.rows.extend(rows);
    }
    match &arguments.out {
        Some(folder) => report.write(folder, "transpose"),
        None => Ok(()),
    }
}
