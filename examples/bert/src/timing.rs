//! Forward passes, timed way by way in turn.

use crate::support::record::median;
use crate::{Arguments, Model, Tokens, Way};
use anyhow::{bail, Result};
use candle_core::{Device, Tensor};
use std::time::Instant;

#[cfg(feature = "cuda")]
use crate::support::{gpu::Gpu, layer, record::Row};

/// Where the model runs.
pub struct Place {
    #[cfg(feature = "cuda")]
    gpu: Option<(Device, Gpu)>,
}

impl Place {
    /// The first GPU, or the CPU where that is asked for or all that there is.
    pub fn open(cpu: bool) -> Result<Self> {
        #[cfg(feature = "cuda")]
        {
            let gpu = if cpu { None } else { Some(layer::open()?) };
            Ok(Place { gpu })
        }
        #[cfg(not(feature = "cuda"))]
        {
            if !cpu {
                println!("on the CPU: build with --features cuda,override for a GPU");
            }
            Ok(Place {})
        }
    }

    pub fn device(&self) -> Result<Device> {
        #[cfg(feature = "cuda")]
        if let Some((device, _)) = &self.gpu {
            return Ok(device.clone());
        }
        Ok(Device::Cpu)
    }

    pub fn is_gpu(&self) -> bool {
        #[cfg(feature = "cuda")]
        return self.gpu.is_some();
        #[cfg(not(feature = "cuda"))]
        false
    }
}

/// Tokens that fill `batch` × `length`, different in every place.
fn random_tokens(model: &Model, (batch, length): (usize, usize)) -> Result<Tokens> {
    let longest = model.config.max_position_embeddings;
    if length > longest {
        bail!("a length of {length} is more than this model's {longest}");
    }
    let words = model.config.vocab_size as f32;
    let ids = Tensor::rand(0f32, words - 1.0, (batch, length), &Device::Cpu)?;
    let ids = ids.to_dtype(candle_core::DType::U32)?.to_device(&model.device)?;
    Ok(Tokens {
        types: ids.zeros_like()?,
        mask: ids.ones_like()?,
        ids,
    })
}

/// Prints, and on a GPU writes, the time of a forward pass for every setting and way.
///
/// `differences` are those of the embeddings, for every way but the first.
pub fn run(place: &Place, model: &Model, ways: &[Way], differences: &[f32], arguments: &Arguments) -> Result<()> {
    println!("\nms a forward pass, the median of {}:", arguments.samples);
    let names: Vec<String> = ways.iter().map(|way| format!("{:>19}", way.name())).collect();
    println!("{:>14} {}", "batch × length", names.join(" "));
    let mut measured = Vec::new();
    for &setting in &arguments.settings {
        let tokens = random_tokens(model, setting)?;
        // The first passes load kernels and fill the memory pool.
        for &way in ways {
            for _ in 0..2 {
                model.forward(way, &tokens)?;
            }
        }
        let mut times = vec![Vec::new(); ways.len()];
        for _ in 0..arguments.samples.max(1) {
            for (&way, times) in ways.iter().zip(&mut times) {
                model.device.synchronize()?;
                let start = Instant::now();
                model.forward(way, &tokens)?;
                model.device.synchronize()?;
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        let times: Vec<f64> = times.into_iter().map(median).collect();
        let cells: Vec<String> = times
            .iter()
            .map(|ms| format!("{ms:>10.3} ({:>5.2}×)", times[0] / ms))
            .collect();
        println!("{:>14} {}", format!("{} × {}", setting.0, setting.1), cells.join(" "));
        measured.push((setting, times));
    }
    write(place, ways, differences, arguments, &measured)
}

#[cfg(feature = "cuda")]
fn write(
    place: &Place,
    ways: &[Way],
    differences: &[f32],
    arguments: &Arguments,
    measured: &[((usize, usize), Vec<f64>)],
) -> Result<()> {
    let (Some((_, gpu)), Some(folder)) = (&place.gpu, &arguments.out) else {
        return Ok(());
    };
    let mut report = gpu.report("cargo run --release -p bert --features cuda,override --")?;
    for ((batch, length), times) in measured {
        for ((way, ms), difference) in ways.iter().zip(times).skip(1).zip(differences) {
            report.rows.push(Row {
                bench: "model".into(),
                layer: Some(format!("bert {batch}×{length}, {}", way.name())),
                precision: Some(arguments.precision.name().into()),
                dtype: Some("f32".into()),
                batch: Some(*batch),
                rows: Some(*length),
                us: Some(ms * 1e3),
                baseline: Some("candle".into()),
                baseline_us: Some(times[0] * 1e3),
                speedup: Some(times[0] / ms),
                err_max: Some(*difference as f64),
                ..Row::default()
            });
        }
    }
    report.write(folder, "bert")
}

#[cfg(not(feature = "cuda"))]
fn write(_: &Place, _: &[Way], _: &[f32], _: &Arguments, _: &[((usize, usize), Vec<f64>)]) -> Result<()> {
    Ok(())
}
