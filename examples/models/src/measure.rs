//! A model in all its ways, measured in turn.

use crate::place::Place;
use crate::products::{counted, Products};
use crate::record::median;
use crate::way::Way;
use crate::zoo::{Entry, Model, Setup};
use anyhow::{ensure, Context, Result};
use candle_core::{DType, Tensor};
use candle_sgemm::graph::{GraphedModule, Options};
use candle_sgemm::{Gemm, Precision};
use std::time::Instant;

/// Calls before the first that counts.
const WARM_UP: usize = 2;
/// Rounds of samples, one of each way: at least and at most so many.
const ROUNDS: (usize, usize) = (5, 301);

/// What a way of running a model comes to.
#[derive(Clone, Debug)]
pub struct Measured {
    pub way: Way,
    /// Of what is not stock.
    pub precision: Option<Precision>,
    /// Of a call, from a synchronised device to a synchronised device; `None` if the way is not there.
    pub us: Option<f64>,
    /// Of the GPU alone.
    pub gpu_us: Option<f64>,
    /// Largest difference from stock ÷ largest output of stock.
    pub max_diff: Option<f64>,
    pub products: Option<Products>,
    /// How many of candle's kernels a recording's products do the work of.
    pub folded: usize,
    /// Why the way is not there.
    pub note: Option<String>,
}

impl Measured {
    fn new(way: Way, precision: Option<Precision>) -> Self {
        Measured {
            way,
            precision,
            us: None,
            gpu_us: None,
            max_diff: None,
            products: None,
            folded: 0,
            note: None,
        }
    }
}

/// A model in all its ways, stock first.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub model: &'static str,
    pub setting: String,
    pub dtype: DType,
    pub ways: Vec<Measured>,
}

/// Something to be timed.
pub struct Contender<'a> {
    pub call: Box<dyn Fn() -> Result<()> + 'a>,
}

/// µs of a call of each, and of what the host takes until it is queued: medians of samples that are taken in turn.
///
/// # Errors
///
/// Those of the calls, and of waiting for the device.
pub fn in_turn(place: &Place, seconds: f64, contenders: &[Contender]) -> Result<Vec<(f64, f64)>> {
    let device = place.device();
    for contender in contenders {
        for _ in 0..WARM_UP {
            (contender.call)()?;
        }
    }
    let mut samples = vec![(Vec::new(), Vec::new()); contenders.len()];
    let (least, most) = ROUNDS;
    let begin = Instant::now();
    for round in 0..most {
        if round >= least && begin.elapsed().as_secs_f64() > seconds {
            break;
        }
        for (contender, (whole, queued)) in contenders.iter().zip(&mut samples) {
            device.synchronize()?;
            let start = Instant::now();
            (contender.call)()?;
            queued.push(start.elapsed().as_secs_f64() * 1e6);
            device.synchronize()?;
            whole.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    let medians = samples
        .into_iter()
        .map(|(whole, queued)| (median(whole), median(queued)));
    Ok(medians.collect())
}

/// The largest difference ÷ the largest number of `stock`.
///
/// # Errors
///
/// Other shapes; numbers of `stock` that are not finite, or all 0.
pub fn relative_difference(stock: &Tensor, other: &Tensor) -> Result<f64> {
    ensure!(
        stock.dims() == other.dims(),
        "the output has shape {:?}, and candle's {:?}",
        other.shape(),
        stock.shape()
    );
    let largest = |tensor: &Tensor| -> Result<f64> {
        let numbers = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        // A maximum that a NaN does not get lost in.
        let largest = numbers.iter().map(|x| x.abs());
        Ok(largest.fold(0.0f32, |x, y| if y > x || y.is_nan() { y } else { x }) as f64)
    };
    let scale = largest(stock)?;
    ensure!(
        scale.is_finite() && scale > 0.0,
        "the largest number of candle's output is {scale}"
    );
    let difference = (stock.to_dtype(DType::F32)? - other.to_dtype(DType::F32)?)?;
    Ok(largest(&difference)? / scale)
}

/// Builds a model and measures its ways. What a model cannot do in 16 bits is noted; in f32 it is an error.
///
/// # Errors
///
/// Those of the model.
pub fn measure(
    place: &Place,
    entry: &Entry,
    setup: &Setup,
    ways: &[Way],
    precisions: &[Precision],
    seconds: f64,
) -> Result<Outcome> {
    let named = || format!("{} in {}", entry.name, setup.dtype.as_str());
    let mut outcome = Outcome {
        model: entry.name,
        setting: String::new(),
        dtype: setup.dtype,
        ways: vec![Measured::new(Way::Stock, None)],
    };
    let built = (|| {
        let model = (entry.build)(setup)?;
        let output = (model.forward)(&model.inputs)?;
        relative_difference(&output, &output)?;
        Ok::<_, anyhow::Error>((model, output))
    })();
    let (model, output) = match built {
        Ok(built) => built,
        Err(error) if setup.dtype == DType::F32 => return Err(error.context(named())),
        Err(error) => {
            // Candle's errors carry a backtrace where the environment asks for one.
            let text = format!("{error:#}");
            let text = text.lines().next().unwrap_or_default();
            outcome.ways[0].note = Some(format!("candle cannot run it in {}: {text}", setup.dtype.as_str()));
            return Ok(outcome);
        }
    };
    outcome.setting = model.setting.clone();
    let there_is = |way: &Way| *way != Way::Stock && (!way.is_rebuilt() || model.rebuild.is_some());
    let others = ways.iter().filter(|way| there_is(way));
    for &way in others {
        let of_way = precisions.iter().map(|precision| Measured::new(way, Some(*precision)));
        outcome.ways.extend(of_way);
    }
    run_all(place, &model, &output, seconds, &mut outcome.ways).with_context(named)?;
    Ok(outcome)
}

/// Fills in what is measured.
fn run_all(place: &Place, model: &Model, stock: &Tensor, seconds: f64, measured: &mut [Measured]) -> Result<()> {
    let mut contenders = Vec::new();
    let mut timed = Vec::new();
    for (i, measured) in measured.iter_mut().enumerate() {
        let way = measured.way;
        // Stock asks for no precision.
        let precision = measured.precision.unwrap_or_default();
        let rebuilt = match &model.rebuild {
            Some(rebuild) if way.is_rebuilt() => Some(rebuild(&Gemm::new().precision(precision))),
            _ => None,
        };
        let forward = move |inputs: &[Tensor]| {
            let forward = rebuilt.as_ref().unwrap_or(&model.forward);
            way.run(precision, || forward(inputs))
        };
        let call: Box<dyn Fn() -> candle_core::Result<Tensor>> = match way {
            Way::Stock | Way::Fused => Box::new(move || forward(&model.inputs)),
            Way::Override => {
                let (first, products) = counted(place.device().is_cuda(), || forward(&model.inputs));
                first?;
                // The CPU asks no cuBLAS.
                measured.products = place.device().is_cuda().then_some(products);
                Box::new(move || forward(&model.inputs))
            }
            Way::OverrideGraph | Way::FusedGraph => {
                let options = Options::new().or_plainly(true);
                let graph = GraphedModule::with(options, place.device(), forward);
                let _: Tensor = graph.run(&model.inputs)?;
                // On the CPU nothing is recorded, and the call is worth comparing all the same.
                measured.note = graph.why_plainly(&model.inputs);
                measured.folded = graph.folded();
                Box::new(move || graph.run(&model.inputs))
            }
        };
        if way != Way::Stock {
            measured.max_diff = Some(relative_difference(stock, &call()?)?);
        }
        if measured.note.is_none() {
            timed.push(i);
            contenders.push(Contender {
                call: Box::new(move || call().map(drop).map_err(Into::into)),
            });
        }
    }
    let times = in_turn(place, seconds, &contenders)?;
    for ((&i, contender), (us, queued_us)) in timed.iter().zip(&contenders).zip(times) {
        measured[i].us = Some(us);
        measured[i].gpu_us = place.gpu_us(queued_us, &mut || (contender.call)())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn differences_are_relative_and_nan_is_not_overlooked() -> Result<()> {
        let tensor = |numbers: &[f32]| Tensor::new(numbers, &Device::Cpu);
        let stock = tensor(&[1.0, -4.0, 2.0])?;
        assert_eq!(relative_difference(&stock, &tensor(&[1.0, -4.0, 1.0])?)?, 0.25);
        assert!(relative_difference(&stock, &tensor(&[1.0, f32::NAN, 2.0])?)?.is_nan());
        assert!(relative_difference(&tensor(&[f32::NAN, 1.0])?, &tensor(&[1.0, 1.0])?).is_err());
        assert!(relative_difference(&stock, &stock.reshape((3, 1))?).is_err());
        Ok(())
    }
}
