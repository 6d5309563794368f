//! One token at a time: a Llama on this crate's layers, whose cache has a fixed size and whose position is a tensor, so that one
//! recording serves every token.

mod llama;
pub mod measure;
pub mod parts;

pub use llama::FixedLlama;

use anyhow::{ensure, Result};
use candle_core::Tensor;
use candle_sgemm::graph::{Graphed, Options};
use std::rc::Rc;

/// What a model makes of a token: logits (1, words), and the word that is most likely next (1).
pub type Step = (Tensor, Tensor);

/// What a token (1) and its position (1) give.
type Reading = Box<dyn Fn(&[Tensor]) -> candle_core::Result<Step>>;

/// A model that reads token by token and counts them.
pub struct Decoder {
    step: Reading,
    /// 0, 1, … on the device: the host copies no number there for a token.
    positions: Tensor,
    next: usize,
    plainly: Option<String>,
}

impl Decoder {
    /// Queues each operation, as candle does.
    ///
    /// # Errors
    ///
    /// If its positions cannot be made.
    pub fn plain(model: Rc<FixedLlama>) -> Result<Self> {
        Ok(Decoder {
            positions: model.positions()?,
            step: Box::new(move |inputs| model.step(&inputs[0], &inputs[1])),
            next: 0,
            plainly: None,
        })
    }

    /// Replays one recording. What cannot be recorded, as on the CPU, is [plain](Decoder::why_plainly).
    ///
    /// # Errors
    ///
    /// Those of the model.
    pub fn graphed(model: Rc<FixedLlama>) -> Result<Self> {
        let positions = model.positions()?;
        let device = positions.device().clone();
        // Position 0 is written now, and again with the first token.
        let example = [positions.narrow(0, 0, 1)?, positions.narrow(0, 0, 1)?];
        let graph = Graphed::with(
            Options::new().or_plainly(true),
            &device,
            &example,
            move |inputs: &[Tensor]| model.step(&inputs[0], &inputs[1]),
        )?;
        Ok(Decoder {
            plainly: graph.why_plainly(),
            step: Box::new(move |inputs| graph.run(inputs)),
            positions,
            next: 0,
        })
    }

    /// Why there is no recording where one was asked for.
    pub fn why_plainly(&self) -> Option<&str> {
        self.plainly.as_deref()
    }

    /// Reads a token (1) that follows all those before.
    ///
    /// # Errors
    ///
    /// If the cache is full; those of the model.
    pub fn read(&mut self, token: &Tensor) -> Result<Step> {
        let capacity = self.positions.dim(0)?;
        ensure!(
            self.next < capacity,
            "the cache holds {capacity} tokens and is full: make it larger, or rewind"
        );
        let position = self.positions.narrow(0, self.next, 1)?;
        let step = (self.step)(&[token.clone(), position])?;
        self.next += 1;
        Ok(step)
    }

    /// How many tokens were read.
    pub fn position(&self) -> usize {
        self.next
    }

    /// Forgets all but the first `position` tokens: what the cache has of later ones is masked, and overwritten.
    ///
    /// # Errors
    ///
    /// If fewer were read.
    pub fn rewind(&mut self, position: usize) -> Result<()> {
        ensure!(
            position <= self.next,
            "{} tokens were read, which is fewer than {position}",
            self.next
        );
        self.next = position;
        Ok(())
    }
}
