//! Tokens a second: candle's Llama, and this one, on the same weights and the same tokens.

use super::{Decoder, FixedLlama};
use crate::measure::{in_turn, relative_difference, Contender};
use crate::place::Place;
use crate::record::Row;
use crate::way::Way;
use crate::weights::{random_tokens, RandomWeights};
use crate::zoo::language::{llama_1b, small_llama, Llama, Reader};
use crate::zoo::{Setup, SEED};
use anyhow::{ensure, Result};
use candle_core::{Tensor, D};
use candle_sgemm::{Gemm, Precision};
use std::cell::RefCell;
use std::rc::Rc;

/// What is read.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// Tokens before the first that is timed.
    pub prompt: usize,
    /// Tokens that are timed.
    pub tokens: usize,
    /// Tokens that the cache of fixed size has room for.
    pub capacity: usize,
    /// Whether the rebuilt model's parts are measured one by one too.
    pub parts: bool,
}

/// How a way of decoding did.
#[derive(Clone, Debug)]
pub struct Decoded {
    pub way: Way,
    pub precision: Option<Precision>,
    /// A token, in a loop that waits for the device at its end alone; `None` if the way is not there.
    pub us: Option<f64>,
    /// Largest difference of the logits from stock's ÷ stock's largest, over all tokens.
    pub max_diff: Option<f64>,
    /// Of the tokens, those after which the likeliest word is stock's.
    pub same_words: Option<usize>,
    pub note: Option<String>,
}

/// All ways of decoding, stock first, and what bounds them.
#[derive(Clone, Debug)]
pub struct Decoding {
    pub setting: String,
    pub dtype: &'static str,
    pub text: Text,
    pub weight_bytes: usize,
    pub copy_gbps: f64,
    pub ways: Vec<Decoded>,
    /// The rebuilt model's parts at each precision, if they were asked for, as tables.
    pub parts: Vec<(Precision, String)>,
}

/// Reads one token after the other.
type Read = Box<dyn FnMut(&Tensor) -> Result<Tensor>>;

/// A way to read, from the end of the prompt on.
struct Subject {
    /// Begins after the prompt; what it gives then reads the tokens.
    begin: Box<dyn Fn() -> Result<Read>>,
}

/// Logits (tokens, words) of all tokens, one by one.
fn logits(subject: &Subject, tokens: &[Tensor]) -> Result<Tensor> {
    let mut read = (subject.begin)()?;
    let rows = tokens.iter().map(&mut read).collect::<Result<Vec<_>>>()?;
    Ok(Tensor::cat(&rows, 0)?)
}

/// Candle's Llama, and the likeliest word of each step, as a program needs it.
fn stock(filled: Rc<Llama>, prompt: usize, way: Way, precision: Precision) -> Subject {
    let begin = move || -> Result<Read> {
        let mut reader = Llama::clone(&filled);
        let mut position = prompt;
        Ok(Box::new(move |token: &Tensor| {
            let logits = way.run(precision, || reader.read(&token.unsqueeze(0)?, position))?;
            logits.argmax(D::Minus1)?;
            position += 1;
            Ok(logits)
        }))
    };
    Subject { begin: Box::new(begin) }
}

/// This crate's, which reads the prompt too.
fn fixed(mut decoder: Decoder, prompt: &[Tensor]) -> Result<Subject> {
    for token in prompt {
        decoder.read(token)?;
    }
    let (decoder, prompt) = (Rc::new(RefCell::new(decoder)), prompt.len());
    let begin = move || -> Result<Read> {
        decoder.borrow_mut().rewind(prompt)?;
        let decoder = decoder.clone();
        Ok(Box::new(move |token: &Tensor| Ok(decoder.borrow_mut().read(token)?.0)))
    };
    Ok(Subject { begin: Box::new(begin) })
}

/// Measures decoding in these ways.
///
/// # Errors
///
/// Those of the models; a text that the cache has no room for.
pub fn measure(
    place: &Place,
    setup: &Setup,
    text: Text,
    ways: &[Way],
    precisions: &[Precision],
    seconds: f64,
) -> Result<Decoding> {
    let Text {
        prompt,
        tokens,
        capacity,
        ..
    } = text;
    ensure!(prompt > 0 && tokens > 0, "there is nothing to read");
    let length = prompt + tokens;
    ensure!(
        length <= capacity,
        "{prompt} and {tokens} tokens are more than the cache's {capacity}: set --capacity"
    );
    let config = setup.choose(small_llama(capacity), llama_1b(16, capacity));
    let weights = RandomWeights::new(SEED).builder(setup.dtype, &setup.device);
    let ids = random_tokens("decode", (1, length), config.vocab_size, &setup.device)?;
    let read: Vec<Tensor> = (0..length)
        .map(|i| Ok(ids.narrow(1, i, 1)?.squeeze(0)?))
        .collect::<Result<_>>()?;
    let (before, timed) = read.split_at(prompt);

    let mut filled = Llama::load(weights.clone(), &config)?;
    filled.read(&ids.narrow(1, 0, prompt)?, 0)?;
    let filled = Rc::new(filled);
    let first = precisions.first().copied().unwrap_or_default();
    let fused = FixedLlama::load(weights, &config, capacity, &Gemm::new().precision(first))?;

    let subject_of_stock = stock(filled.clone(), prompt, Way::Stock, first);
    let stock_logits = logits(&subject_of_stock, timed)?;
    let stock_words = stock_logits.argmax(D::Minus1)?.to_vec1::<u32>()?;
    let mut decoded = vec![Decoded {
        way: Way::Stock,
        precision: None,
        us: None,
        max_diff: None,
        same_words: None,
        note: None,
    }];
    let mut subjects = vec![Some(subject_of_stock)];
    for &way in ways.iter().filter(|way| **way != Way::Stock) {
        for &precision in precisions {
            let model = || fused.with_gemm(&Gemm::new().precision(precision)).map(Rc::new);
            let mut note = None;
            let subject = match way {
                Way::Fused => fixed(Decoder::plain(model()?)?, before)?,
                Way::FusedGraph => {
                    let decoder = Decoder::graphed(model()?)?;
                    note = decoder.why_plainly().map(String::from);
                    fixed(decoder, before)?
                }
                Way::Stock | Way::Override | Way::OverrideGraph => stock(filled.clone(), prompt, way, precision),
            };
            let found = logits(&subject, timed)?;
            let words = found.argmax(D::Minus1)?.to_vec1::<u32>()?;
            decoded.push(Decoded {
                way,
                precision: Some(precision),
                us: None,
                max_diff: Some(relative_difference(&stock_logits, &found)?),
                same_words: Some(words.iter().zip(&stock_words).filter(|(x, y)| x == y).count()),
                note: note.clone(),
            });
            // What was not recorded is no graph to be timed.
            subjects.push(note.is_none().then_some(subject));
        }
    }
    let there: Vec<(usize, &Subject)> = subjects
        .iter()
        .enumerate()
        .filter_map(|(i, subject)| Some((i, subject.as_ref()?)))
        .collect();
    let contenders: Vec<Contender> = there
        .iter()
        .map(|(_, subject)| Contender {
            call: Box::new(move || {
                let mut read = (subject.begin)()?;
                timed.iter().try_for_each(|token| read(token).map(drop))
            }),
        })
        .collect();
    let times = in_turn(place, seconds, &contenders)?;
    for ((i, _), (us, _)) in there.iter().zip(times) {
        decoded[*i].us = Some(us / tokens as f64);
    }
    drop(contenders);
    let copy_gbps = place.copy_gbps()?;
    let mut parts = Vec::new();
    for &precision in precisions.iter().filter(|_| text.parts) {
        let model = Rc::new(fused.with_gemm(&Gemm::new().precision(precision))?);
        let measured = super::parts::measure(place, &model, prompt)?;
        parts.push((precision, super::parts::lines(&measured, copy_gbps)));
    }
    Ok(Decoding {
        setting: format!("{tokens} after {prompt}, room for {capacity}"),
        dtype: setup.dtype.as_str(),
        text,
        weight_bytes: fused.weight_bytes(),
        copy_gbps,
        ways: decoded,
        parts,
    })
}

impl Decoding {
    /// What reading all weights takes at the speed of a copy, in µs.
    pub fn bound_us(&self) -> f64 {
        self.weight_bytes as f64 / self.copy_gbps * 1e-3
    }

    /// A row for each way, stock too.
    pub fn rows(&self, model: &str) -> Vec<Row> {
        let stock_us = self.ways.first().and_then(|stock| stock.us);
        let row = |decoded: &Decoded| Row {
            bench: "decode".into(),
            model: Some(model.into()),
            setting: Some(self.setting.clone()),
            way: Some(decoded.way.name().into()),
            precision: decoded.precision.map(|precision| precision.name().into()),
            dtype: Some(self.dtype.into()),
            us: decoded.us,
            baseline: stock_us.map(|_| "candle".into()),
            baseline_us: stock_us,
            speedup: stock_us.zip(decoded.us).map(|(stock, us)| stock / us),
            max_diff: decoded.max_diff,
            tokens_per_s: decoded.us.map(|us| 1e6 / us),
            bound_us: Some(self.bound_us()),
            copy_gbps: Some(self.copy_gbps),
            note: decoded.note.clone(),
            ..Row::default()
        };
        self.ways.iter().map(row).collect()
    }

    /// What to read.
    pub fn lines(&self, model: &str) -> String {
        let mut text = format!(
            "{model}, {}, {}: {:.1} MB of weights at the {:.0} GB/s of a copy take {:.1} µs, {:.1} tokens/s\n",
            self.dtype,
            self.setting,
            self.weight_bytes as f64 * 1e-6,
            self.copy_gbps,
            self.bound_us(),
            1e6 / self.bound_us()
        );
        text += &format!(
            "{:<15} {:<12} {:>10} {:>10} {:>7} {:>10} {:>11} {:>11}\n",
            "way", "precision", "tokens/s", "µs each", "×", "of bound", "difference", "same words"
        );
        for (decoded, row) in self.ways.iter().zip(self.rows(model)) {
            let number = |number: Option<f64>, digits: usize| number.map_or(String::new(), |x| format!("{x:.digits$}"));
            let share = decoded.us.map(|us| format!("{:.1} %", 100.0 * self.bound_us() / us));
            let difference = decoded.max_diff.map(|difference| format!("{difference:.1e}"));
            let words = decoded.same_words.map(|words| format!("{words}/{}", self.text.tokens));
            let line = format!(
                "{:<15} {:<12} {:>10} {:>10} {:>7} {:>10} {:>11} {:>11}  {}",
                decoded.way,
                row.precision.unwrap_or_default(),
                number(row.tokens_per_s, 1),
                number(row.us, 1),
                number(row.speedup, 2),
                share.unwrap_or_default(),
                difference.unwrap_or_default(),
                words.unwrap_or_default(),
                decoded.note.clone().unwrap_or_default()
            );
            text += line.trim_end();
            text.push('\n');
        }
        for (precision, table) in &self.parts {
            text += &format!("\nthe rebuilt model's parts, {precision}, each recorded by itself:\n{table}");
        }
        text
    }
}
