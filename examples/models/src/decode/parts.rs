//! Where the time of a step goes: each kind of operation by itself, for all layers, as a recording of its own.

use super::FixedLlama;
use crate::measure::{in_turn, Contender};
use crate::place::Place;
use anyhow::Result;
use candle_core::Tensor;
use candle_sgemm::graph::{Graphed, Options};
use std::fmt::Write;
use std::rc::Rc;

/// A recording has each part so many times, so that what it takes to begin a replay counts little.
const ROUNDS: usize = 8;

/// One kind of operation.
pub struct Part {
    pub name: &'static str,
    /// Operations a token.
    pub operations: usize,
    /// Bytes of weights and cache that they read.
    pub bytes: usize,
    /// All of them, one after the other.
    pub run: Box<dyn Fn() -> candle_core::Result<Tensor>>,
}

/// What the parts of a step take, in the order of a step.
///
/// # Errors
///
/// Those of the model, and of recording.
pub fn measure(place: &Place, model: &Rc<FixedLlama>, position: usize) -> Result<Vec<(Part, f64)>> {
    let device = place.device();
    let position = model.positions()?.narrow(0, position, 1)?;
    let parts = model.parts(&position)?;
    let measured = parts.into_iter().map(|part| {
        let rounds = |_: &[Tensor]| {
            let again = (1..ROUNDS).try_for_each(|_| (part.run)().map(drop));
            again.and_then(|()| (part.run)())
        };
        let options = Options::new().or_plainly(true);
        let graph = Graphed::with(options, device, &[&position], rounds)?;
        let call = || -> Result<()> {
            let _: Tensor = graph.run(&[&position])?;
            Ok(())
        };
        let contender = Contender { call: Box::new(call) };
        let times = in_turn(place, 0.0, std::slice::from_ref(&contender))?;
        let (us, queued_us) = times[0];
        let gpu_us = place.gpu_us(queued_us, &mut || (contender.call)())?;
        drop(contender);
        drop(graph);
        Ok((part, gpu_us.unwrap_or(us) / ROUNDS as f64))
    });
    measured.collect()
}

/// A table.
pub fn lines(parts: &[(Part, f64)], copy_gbps: f64) -> String {
    let mut text = format!(
        "{:<24} {:>10} {:>10} {:>8} {:>10} {:>8} {:>9}\n",
        "part", "operations", "µs a token", "share", "MB", "GB/s", "of a copy"
    );
    let all: f64 = parts.iter().map(|(_, us)| us).sum();
    for (part, us) in parts {
        let gbps = part.bytes as f64 / us * 1e-3;
        let speed = match part.bytes {
            0 => String::new(),
            bytes => format!(
                "{:>10.1} {gbps:>8.0} {:>7.1} %",
                bytes as f64 * 1e-6,
                100.0 * gbps / copy_gbps
            ),
        };
        let line = format!(
            "{:<24} {:>10} {us:>10.1} {:>6.1} % {speed}",
            part.name,
            part.operations,
            100.0 * us / all
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let _ = writeln!(text, "{:<24} {:>10} {all:>10.1}", "together", "");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::llama::parts::ATTENTION;
    use crate::weights::RandomWeights;
    use crate::zoo::language::small_llama;
    use candle_core::{DType, Device};
    use candle_sgemm::Gemm;

    #[test]
    fn the_parts_are_a_step() -> Result<()> {
        let weights = RandomWeights::new(1).builder(DType::F32, &Device::Cpu);
        let model = Rc::new(FixedLlama::load(weights, &small_llama(8), 8, &Gemm::new())?);
        let parts = model.parts(&Tensor::new(&[3u32], &Device::Cpu)?)?;
        for part in &parts {
            (part.run)()?;
        }
        // Between them they read all weights once.
        let weights = parts.iter().filter(|part| part.name != ATTENTION);
        assert_eq!(weights.map(|part| part.bytes).sum::<usize>(), model.weight_bytes());
        let operations: usize = parts.iter().map(|part| part.operations).sum();
        assert_eq!(operations, 2 * 5 + 3);
        Ok(())
    }
}
