//! The handwritten digits: reading them, and choosing the fifth that training never sees.

use anyhow::{bail, ensure, Context, Result};
use candle_core::{Device, Tensor};
use std::path::Path;

pub const PIXELS: usize = 64;
pub const CLASSES: usize = 10;
/// Pixels of the file are integers from 0 to this.
const BRIGHTEST: u8 = 16;
/// One digit in this many is held out.
const HELD_OUT: usize = 5;
/// Decides which digits are held out. The committed weights were trained without them: don't change it.
const SPLIT_SEED: u64 = 1998;

/// Digits as rows: `images` is (rows, 64) in 0..=1, `labels` has one class a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Digits {
    pub images: Vec<f32>,
    pub labels: Vec<u8>,
}

impl Digits {
    /// Reads `label,p0,…,p63` lines. An error names the file and the line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(
            text.starts_with("label,"),
            "{}, line 1: the header 'label,p0,…,p{}' is missing",
            path.display(),
            PIXELS - 1
        );
        let mut digits = Self::default();
        for (index, line) in text.lines().enumerate().skip(1) {
            digits
                .push_line(line)
                .with_context(|| format!("{}, line {}", path.display(), index + 1))?;
        }
        ensure!(
            digits.len() >= HELD_OUT,
            "{} has {} digits below its header line: at least {HELD_OUT} are needed",
            path.display(),
            digits.len()
        );
        Ok(digits)
    }

    fn push_line(&mut self, line: &str) -> Result<()> {
        let numbers = line
            .split(',')
            .enumerate()
            .map(|(column, field)| match field.trim().parse::<u8>() {
                Ok(number) => Ok(number),
                Err(error) => bail!("column {}: '{field}' is not a small whole number ({error})", column + 1),
            })
            .collect::<Result<Vec<u8>>>()?;
        let Some((&label, pixels)) = numbers.split_first() else {
            bail!("the line is empty")
        };
        ensure!(
            pixels.len() == PIXELS,
            "{} numbers, where a label and {PIXELS} pixels are expected",
            numbers.len()
        );
        ensure!(
            usize::from(label) < CLASSES,
            "the label is {label}, not one of 0 to {}",
            CLASSES - 1
        );
        if let Some(at) = pixels.iter().position(|&p| p > BRIGHTEST) {
            bail!("column {}: pixel {} is above {BRIGHTEST}", at + 2, pixels[at]);
        }
        self.labels.push(label);
        self.images
            .extend(pixels.iter().map(|&p| f32::from(p) / f32::from(BRIGHTEST)));
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// The digits to train on and the held-out ones. The choice depends on the number of digits alone; the file repeats
    /// 0 to 9 in order in places, so it is a shuffle and not every fifth row.
    pub fn split(&self) -> (Self, Self) {
        let order = Shuffle::new(SPLIT_SEED).order(self.len());
        let (held_out, train) = order.split_at(self.len() / HELD_OUT);
        (self.rows(train), self.rows(held_out))
    }

    /// The digits at these rows, in this order.
    pub fn rows(&self, rows: &[usize]) -> Self {
        let images = rows
            .iter()
            .flat_map(|&row| &self.images[row * PIXELS..(row + 1) * PIXELS]);
        Self {
            images: images.copied().collect(),
            labels: rows.iter().map(|&row| self.labels[row]).collect(),
        }
    }

    /// `count` digits: these, over and over.
    pub fn cycled(&self, count: usize) -> Self {
        self.rows(&(0..count).map(|row| row % self.len()).collect::<Vec<_>>())
    }

    /// The images as a (rows, 64) f32 tensor.
    pub fn images(&self, device: &Device) -> Result<Tensor> {
        Ok(Tensor::from_slice(&self.images, (self.len(), PIXELS), device)?)
    }

    /// The labels as a u32 tensor.
    pub fn labels(&self, device: &Device) -> Result<Tensor> {
        let labels: Vec<u32> = self.labels.iter().map(|&label| label.into()).collect();
        Ok(Tensor::new(labels, device)?)
    }
}

/// SplitMix64: a generator whose numbers never change with the version of a crate, so that the held-out digits and the
/// first weights are the same everywhere.
pub struct Shuffle(u64);

impl Shuffle {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of [-bound, bound).
    pub fn symmetric(&mut self, bound: f32) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1u64 << 24) as f32;
        bound * (2.0 * unit - 1.0)
    }

    /// The numbers below `count` in random order.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            let other = (self.next() % (last as u64 + 1)) as usize;
            order.swap(last, other);
        }
        order
    }
}
