//! Where models run, and how long what the device does takes there.

use crate::options::Where;
use crate::record::{command, median, now, Report};
use anyhow::Result;
use candle_core::Device;
use std::time::Instant;

#[cfg(feature = "cuda")]
use crate::support::{
    gpu::{Gpu, Timing},
    layer,
};

/// Bytes of the copy whose speed is measured: more than any cache holds.
#[cfg(feature = "cuda")]
const COPY_BYTES: usize = 1 << 30;
const CPU_COPY_BYTES: usize = 1 << 26;
/// The median of so many copies counts, and of so many calls whose time on the GPU is measured.
const SAMPLES: usize = 5;
/// The stream is held back for so many times what the host takes to queue a call, and a little longer, in µs.
#[cfg(feature = "cuda")]
const HELD: (f64, f64) = (1.5, 50.0);

/// The device, with what measures it.
pub struct Place {
    device: Device,
    #[cfg(feature = "cuda")]
    gpu: Option<Gpu>,
}

impl Place {
    /// # Errors
    ///
    /// If there is no GPU where one is asked for, or this build cannot use it.
    pub fn open(place: Where) -> Result<Self> {
        match place {
            Where::Cpu => Ok(Place {
                device: Device::Cpu,
                #[cfg(feature = "cuda")]
                gpu: None,
            }),
            #[cfg(feature = "cuda")]
            Where::Cuda => {
                let (device, gpu) = layer::open()?;
                Ok(Place { device, gpu: Some(gpu) })
            }
            #[cfg(not(feature = "cuda"))]
            Where::Cuda => anyhow::bail!(
                "this build has no GPU support: build with --features cuda,override (README.md says what that needs), or pass \
                 --device cpu"
            ),
        }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The time that the GPU takes for a call which the host queues in `host_us`: the stream is held back until the call is
    /// queued. Of a call that waits for the device it is an upper bound, since what the host does after the wait counts too.
    /// `None` on the CPU.
    ///
    /// # Errors
    ///
    /// Those of the call, and of the driver where a kernel fails.
    #[cfg(feature = "cuda")]
    pub fn gpu_us(&self, host_us: f64, call: &mut dyn FnMut() -> Result<()>) -> Result<Option<f64>> {
        let Some(gpu) = &self.gpu else { return Ok(None) };
        let (factor, more) = HELD;
        let samples = (0..SAMPLES).map(|_| gpu.sample_held(1, host_us * factor + more, &mut |_| call()));
        Ok(Some(median(samples.collect::<Result<_>>()?)))
    }

    #[cfg(not(feature = "cuda"))]
    pub fn gpu_us(&self, _: f64, _: &mut dyn FnMut() -> Result<()>) -> Result<Option<f64>> {
        Ok(None)
    }

    /// GB/s, read and written, of a copy on the device that no cache holds.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    pub fn copy_gbps(&self) -> Result<f64> {
        let gbps = |bytes: usize, us: f64| 2.0 * bytes as f64 / us * 1e-3;
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &self.gpu {
            let (from, mut to) = (gpu.allocate(COPY_BYTES)?, gpu.allocate(COPY_BYTES)?);
            let timing = Timing {
                samples: SAMPLES,
                sample_us: 5e3,
                with_host: false,
                pause: std::time::Duration::ZERO,
            };
            let mut copy = |_| Ok(gpu.stream.memcpy_dtod(&from, &mut to)?);
            let times = gpu.compare(&mut [&mut copy], timing)?;
            return Ok(gbps(COPY_BYTES, times[0]));
        }
        let (from, mut to) = (vec![1u8; CPU_COPY_BYTES], vec![2u8; CPU_COPY_BYTES]);
        let samples = (0..SAMPLES).map(|_| {
            let start = Instant::now();
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
            start.elapsed().as_secs_f64() * 1e6
        });
        Ok(gbps(CPU_COPY_BYTES, median(samples.collect())))
    }

    /// A report without rows, for this device and this moment.
    ///
    /// # Errors
    ///
    /// If CUDA cannot tell its versions.
    pub fn report(&self, program: &str) -> Result<Report> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &self.gpu {
            return gpu.report(program);
        }
        Ok(Report {
            gpu: "CPU".into(),
            date: now(),
            command: command(program),
            ..Report::default()
        })
    }
}
