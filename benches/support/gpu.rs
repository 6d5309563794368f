//! A GPU to measure on: a stream, cuBLAS on it, and times from CUDA events.

use super::record::{command, median, now, Report};
use anyhow::{bail, Context, Result};
use candle_sgemm::device::CurrentContext;
use candle_sgemm::gemm::kernel::costs::Costs;
use candle_sgemm::gemm::tune::calibrated;
use cudarc::cublas::CudaBlas;
use cudarc::driver::sys::{self, CUevent_flags};
use cudarc::driver::{result, CudaContext, CudaSlice, CudaStream, DevicePtr};
use std::ffi::c_void;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Launches between two events: fewer than the driver queues before it makes the host wait.
const MAX_LAUNCHES: u32 = 256;
/// What the host takes at most to queue one launch, in µs; the stream is held back for so long.
pub const QUEUING_US: f64 = 15.0;
/// From here on the host is ahead of the device by itself, in µs a launch.
const NEEDS_NO_HOLD_US: f64 = 100.0;
/// A launch that takes longer than so many samples is measured fewer times.
const SLOW_SAMPLES: f64 = 5.0;
/// Work goes on for so long until clock and power have settled; the second half of it counts.
const SETTLING_US: f64 = 400e3;
/// Launches between two events of such work take about so long.
const SETTLING_SAMPLE_US: f64 = 4e3;
/// A pause in which the clock recovers: before work that goes on, and before launches that are measured after one.
const SETTLING_PAUSE: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_millis(150);
/// Launches that are measured after a pause, and how often.
const AFTER_PAUSE: (u32, usize) = (3, 3);

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The median of so many samples counts.
    pub samples: usize,
    /// Launches are repeated until a sample takes about so long.
    pub sample_us: f64,
    /// Whether what the host takes to queue a launch counts too, where it is longer than the launch: as in a program that
    /// calls one operation after the other.
    pub with_host: bool,
    /// What the device rests for before each sample of launches that take 100 µs or longer, which are then few: in long samples the card
    /// comes down to the clocks that its power allows, and back again, at no given time.
    pub pause: Duration,
}

/// Queues launch number `i` on the stream.
pub type Launch<'a> = dyn FnMut(usize) -> Result<()> + 'a;

pub struct Gpu {
    pub stream: Arc<CudaStream>,
    pub context: CurrentContext,
    pub blas: CudaBlas,
    /// Clock under FP32 load.
    pub clock_mhz: f64,
    /// The rate of FP32 multiply-adds alone.
    pub ffma_tflops: f64,
}

impl Gpu {
    /// The first GPU, with its FFMA peak measured.
    ///
    /// # Errors
    ///
    /// If there is none, or CUDA or cuBLAS fail.
    pub fn open() -> Result<Self> {
        let cuda = CudaContext::new(0).context("no usable NVIDIA GPU")?;
        Gpu::on(cuda.per_thread_stream())
    }

    /// The GPU of this stream, with its FFMA peak measured.
    ///
    /// # Errors
    ///
    /// As [`Gpu::open`].
    pub fn on(stream: Arc<CudaStream>) -> Result<Self> {
        stream.context().bind_to_thread()?;
        let blas = CudaBlas::new(stream.clone()).context("cuBLAS cannot start")?;
        let context = CurrentContext::get()?;
        let clock_mhz = context.info().clock_mhz as f64;
        let mut gpu = Gpu {
            stream,
            context,
            blas,
            clock_mhz,
            ffma_tflops: 0.0,
        };
        gpu.measure_ffma_peak()?;
        Ok(gpu)
    }

    /// The costs by which a model's products are planned here.
    pub fn costs(&self) -> &'static Costs {
        calibrated::costs(&self.context)
    }

    /// A report without rows, for this GPU and this moment.
    ///
    /// # Errors
    ///
    /// If CUDA or cuBLAS cannot tell their names and versions.
    pub fn report(&self, program: &str) -> Result<Report> {
        let (mut cuda, mut cublas) = (0, 0);
        // SAFETY: the integers outlive the calls; the handle is alive.
        unsafe {
            sys::cuDriverGetVersion(&mut cuda).result()?;
            cudarc::cublas::sys::cublasGetVersion_v2(*self.blas.handle(), &mut cublas).result()?;
        }
        Ok(Report {
            gpu: self.stream.context().name()?,
            driver: driver_version(),
            cuda: format!("{}.{}", cuda / 1000, cuda % 1000 / 10),
            cublas: format!("{}.{}.{}", cublas / 10_000, cublas / 100 % 100, cublas % 100),
            sm_clock_mhz: self.clock_mhz.round(),
            ffma_tflops: Some((self.ffma_tflops * 10.0).round() / 10.0),
            date: now(),
            command: command(program),
            rows: Vec::new(),
        })
    }

    /// Device memory for `bytes` bytes, with an address on 256 bytes.
    ///
    /// # Errors
    ///
    /// If the device has no such room.
    pub fn allocate(&self, bytes: usize) -> Result<CudaSlice<u8>> {
        // SAFETY: every user writes before it reads.
        unsafe { self.stream.alloc(bytes) }.with_context(|| format!("cannot allocate {bytes} bytes on the GPU"))
    }

    pub fn address(&self, slice: &CudaSlice<u8>) -> u64 {
        slice.device_ptr(&self.stream).0
    }

    /// Queues a kernel of `cuda/diagnostics/`.
    ///
    /// # Safety
    ///
    /// `parameters` are those of the kernel, and the memory that it reaches through them is there.
    pub unsafe fn launch_diagnostic(
        &self,
        file: &'static str,
        entry: &'static str,
        grid: (u32, u32, u32),
        threads: u32,
        parameters: &mut [*mut c_void],
    ) -> Result<()> {
        let function = self.context.function(file, entry, 0)?;
        // SAFETY: the caller vouches for the parameters.
        unsafe {
            result::launch_kernel(
                function.handle(),
                grid,
                (threads, 1, 1),
                0,
                self.stream.cu_stream(),
                parameters,
            )
        }
        .with_context(|| format!("cannot launch {entry}"))
    }

    /// µs a launch of each of `launches`, the samples taken in turn and in changing order, so that all see the same clocks.
    ///
    /// # Errors
    ///
    /// Of the launches, and of the driver where a kernel fails.
    pub fn compare(&self, launches: &mut [&mut Launch], timing: Timing) -> Result<Vec<f64>> {
        self.compare_queued(launches, timing, QUEUING_US)
    }

    /// The same of launches that the host takes at most so long to queue, in µs: those of several kernels, or with copies.
    ///
    /// # Errors
    ///
    /// As [`Gpu::compare`].
    pub fn compare_queued(&self, launches: &mut [&mut Launch], timing: Timing, queuing_us: f64) -> Result<Vec<f64>> {
        let held = |hold: bool| if hold { queuing_us } else { 0.0 };
        let mut counts = Vec::new();
        let mut samples = timing.samples.max(1);
        for launch in launches.iter_mut() {
            // The first launch loads code, the second gives a first estimate, the third is long enough for a good one.
            self.sample(1, false, *launch)?;
            let first = self.sample(1, false, *launch)?;
            let mut count = launch_count(timing.sample_us, first);
            let mut us = first;
            if count > 1 {
                us = self.sample_held(count, held(!timing.with_host), *launch)?;
                count = launch_count(timing.sample_us, us);
            }
            if us > SLOW_SAMPLES * timing.sample_us {
                samples = samples.min(3);
            }
            let long = us >= NEEDS_NO_HOLD_US;
            let rests = long && !timing.pause.is_zero();
            if rests {
                count = count.min(AFTER_PAUSE.0);
            }
            counts.push((count, !long && !timing.with_host, rests));
        }
        let mut times = vec![Vec::new(); launches.len()];
        let mut order: Vec<usize> = (0..launches.len()).collect();
        for round in 0..samples {
            // Where power is the limit, a launch finds the clock that the one before it has left: none may always follow the same one.
            match round % 2 {
                0 => order.rotate_left(1),
                _ => order.reverse(),
            }
            for &at in &order {
                let (count, hold, rests) = counts[at];
                if rests {
                    self.rest(timing.pause, &mut *launches[at])?;
                }
                times[at].push(self.sample_held(count, held(hold), &mut *launches[at])?);
            }
        }
        Ok(times.into_iter().map(median).collect())
    }

    /// µs a launch, over `count` launches between two events. With `hold` the stream waits until they are queued, so that
    /// the device's time is measured rather than the host's.
    ///
    /// # Errors
    ///
    /// As [`Gpu::compare`].
    pub fn sample(&self, count: u32, hold: bool, launch: &mut Launch) -> Result<f64> {
        self.sample_held(count, if hold { QUEUING_US } else { 0.0 }, launch)
    }

    /// The same with the stream held back for so many µs a launch.
    ///
    /// # Errors
    ///
    /// As [`Gpu::compare`].
    pub fn sample_held(&self, count: u32, queuing_us: f64, launch: &mut Launch) -> Result<f64> {
        if queuing_us > 0.0 {
            let mut cycles = (queuing_us * count as f64 * self.clock_mhz) as i64;
            let mut parameters = [std::ptr::from_mut(&mut cycles).cast()];
            // SAFETY: the kernel takes this number and touches no memory.
            unsafe { self.launch_diagnostic("diagnostics/measure", "hold", (1, 1, 1), 1, &mut parameters) }?;
        }
        let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let start = self.stream.record_event(timed)?;
        for i in 0..count {
            launch(i as usize)?;
        }
        let stop = self.stream.record_event(timed)?;
        stop.synchronize().context("a kernel failed")?;
        Ok(start.elapsed_ms(&stop)? as f64 * 1e3 / count as f64)
    }

    /// µs a launch of work that goes on: after a pause, launches back to back for 0.4 s, the median over the second half.
    ///
    /// # Errors
    ///
    /// As [`Gpu::compare`].
    pub fn sustained(&self, launch: &mut Launch) -> Result<f64> {
        self.sample(1, false, launch)?;
        let once = self.sample(3, false, launch)?;
        let count = launch_count(SETTLING_SAMPLE_US, once);
        let samples = (SETTLING_US / (count as f64 * once)).ceil().max(4.0) as usize;
        self.stream.synchronize()?;
        std::thread::sleep(SETTLING_PAUSE);
        let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let mut events = vec![self.stream.record_event(timed)?];
        for _ in 0..samples {
            (0..count).try_for_each(|i| launch(i as usize))?;
            events.push(self.stream.record_event(timed)?);
        }
        self.stream.synchronize().context("a kernel failed")?;
        let times = events[samples / 2..].windows(2).map(|pair| {
            let ms = pair[0].elapsed_ms(&pair[1])?;
            Ok(ms as f64 * 1e3 / count as f64)
        });
        Ok(median(times.collect::<Result<_>>()?))
    }

    /// µs a launch after a pause in which the device had nothing to do: a launch that is not counted, then three that are;
    /// the median of three such pauses.
    ///
    /// # Errors
    ///
    /// As [`Gpu::compare`].
    pub fn after_pause(&self, launch: &mut Launch) -> Result<f64> {
        let (count, pauses) = AFTER_PAUSE;
        let times = (0..pauses).map(|_| {
            self.rest(PAUSE, launch)?;
            self.sample(count, false, launch)
        });
        Ok(median(times.collect::<Result<_>>()?))
    }

    /// Lets the clocks recover, and then queues a launch that is not counted.
    fn rest(&self, pause: Duration, launch: &mut Launch) -> Result<()> {
        self.stream.synchronize()?;
        std::thread::sleep(pause);
        launch(0)
    }

    /// The time of `launches` launches, however many: the device's, or that of a program that makes one after the other.
    ///
    /// # Errors
    ///
    /// As [`Gpu::compare`].
    pub fn time(&self, launches: u64, with_host: bool, launch: &mut Launch) -> Result<Duration> {
        let (mut left, mut us) = (launches, 0.0);
        while left > 0 {
            let count = left.min(MAX_LAUNCHES as u64) as u32;
            us += self.sample(count, !with_host, launch)? * count as f64;
            left -= count as u64;
        }
        Ok(Duration::from_secs_f64(us * 1e-6))
    }

    /// The host's time for `calls` calls that queue work, with the device given time to catch up in between.
    ///
    /// # Errors
    ///
    /// Of the calls, and of the driver where a kernel fails.
    pub fn host_time(&self, calls: u64, call: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        let (mut left, mut time) = (calls, Duration::ZERO);
        while left > 0 {
            let count = left.min(MAX_LAUNCHES as u64);
            self.stream.synchronize()?;
            let start = Instant::now();
            for _ in 0..count {
                call()?;
            }
            time += start.elapsed();
            left -= count;
        }
        self.stream.synchronize().context("a kernel failed")?;
        Ok(time)
    }

    fn measure_ffma_peak(&mut self) -> Result<()> {
        const THREADS: u32 = 1024;
        const ITERATIONS: i32 = 4096;
        let blocks = self.context.info().sm_count;
        let out = self.stream.alloc_zeros::<i64>(3)?;
        let mut run = |_| {
            let address = out.device_ptr(&self.stream).0;
            let (mut sink, mut work, mut cycles) = (address, address + 8, address + 16);
            let (mut x, mut y, mut iterations) = (0.999f32, 0.001f32, ITERATIONS);
            let mut parameters: [*mut c_void; 6] = [
                std::ptr::from_mut(&mut sink).cast(),
                std::ptr::from_mut(&mut work).cast(),
                std::ptr::from_mut(&mut cycles).cast(),
                std::ptr::from_mut(&mut x).cast(),
                std::ptr::from_mut(&mut y).cast(),
                std::ptr::from_mut(&mut iterations).cast(),
            ];
            // SAFETY: the kernel takes these six, and `out` has the three numbers that it may write.
            unsafe {
                self.launch_diagnostic(
                    "diagnostics/ffma_peak",
                    "ffma_peak",
                    (blocks, 1, 1),
                    THREADS,
                    &mut parameters,
                )
            }
        };
        self.sample(1, false, &mut run)?;
        let us = median((0..5).map(|_| self.sample(1, false, &mut run)).collect::<Result<_>>()?);
        let numbers = self.stream.clone_dtoh(&out)?;
        if numbers[1] <= 0 {
            bail!("the FFMA kernel did not run");
        }
        self.ffma_tflops = numbers[1] as f64 * (blocks * THREADS) as f64 / us * 1e-6;
        // One block a multiprocessor, all at once: block 0 runs from the start to the end.
        self.clock_mhz = numbers[2] as f64 / us;
        Ok(())
    }
}

fn launch_count(sample_us: f64, us: f64) -> u32 {
    ((sample_us / us.max(0.1)) as u32).clamp(1, MAX_LAUNCHES)
}

/// The driver's version as `nvidia-smi` prints it, which is not asked for where there is none.
fn driver_version() -> String {
    let output = Command::new("nvidia-smi")
        .args(["--query-gpu=driver_version", "--format=csv,noheader", "--id=0"])
        .output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_string(),
        _ => "unknown".into(),
    }
}
