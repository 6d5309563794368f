//! Random weights of a sensible scale for any model: each tensor is drawn by its name and shape alone, so a model has the
//! same weights on every device, in every run, and in whatever order it asks for them.

use candle_core::{bail, DType, Device, Error, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use rayon::prelude::*;

/// How far biases, positions and the like are spread around 0, and the factors of norms around 1.
const SMALL: f32 = 0.02;
/// Numbers that one thread draws at a time.
const CHUNK: usize = 1 << 16;

/// Where a model's weights come from.
#[derive(Clone, Debug)]
pub struct RandomWeights {
    seed: u64,
    absent: Vec<&'static str>,
    scaled: Vec<(&'static str, f32)>,
}

impl RandomWeights {
    pub fn new(seed: u64) -> Self {
        RandomWeights {
            seed,
            absent: Vec::new(),
            scaled: Vec::new(),
        }
    }

    /// Without the tensors whose path has a part of this name: models ask for some to see which variant they are.
    pub fn without(mut self, part: &'static str) -> Self {
        self.absent.push(part);
        self
    }

    /// With the tensors whose name ends so multiplied by `factor`.
    pub fn scaled(mut self, ending: &'static str, factor: f64) -> Self {
        self.scaled.push((ending, factor as f32));
        self
    }

    /// A builder that hands them out.
    pub fn builder(self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        let backend: Box<dyn SimpleBackend> = Box::new(self);
        VarBuilder::from_backend(backend, dtype, device.clone())
    }

    fn lacks(&self, name: &str) -> bool {
        name.split('.').any(|part| self.absent.contains(&part))
    }
}

impl SimpleBackend for RandomWeights {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        if self.lacks(name) {
            return Err(Error::CannotFindTensor { path: name.into() });
        }
        let Spread { mean, deviation } = Spread::of(name, shape.dims());
        let factors = self.scaled.iter().filter(|(ending, _)| name.ends_with(ending));
        let deviation = factors.fold(deviation, |deviation, (_, factor)| deviation * factor);
        let numbers = normal(seed_of(self.seed, name), shape.elem_count(), mean, deviation);
        Tensor::from_vec(numbers, shape, device)?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("random weights are drawn for a shape, and '{name}' is asked for without one")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let is_tensor = ["weight", "bias", "embedding"].iter().any(|end| name.ends_with(end));
        is_tensor && !self.lacks(name)
    }
}

/// What a tensor's numbers are like.
struct Spread {
    mean: f32,
    deviation: f32,
}

impl Spread {
    /// Factors of norms and layers (`weight`, `gamma` and `running_var` of one dimension) are about 1; other vectors, and what
    /// there is one of for the whole batch (positions, classes), about 0. Matrices and convolutions are scaled such that
    /// their results are as large as what they are applied to.
    fn of(name: &str, dims: &[usize]) -> Self {
        let last = name.rsplit('.').next().unwrap_or_default();
        match dims {
            [_] | [] if matches!(last, "weight" | "gamma" | "running_var") => Spread {
                mean: 1.0,
                deviation: SMALL,
            },
            [_] | [] | [1, _, _, ..] => Spread {
                mean: 0.0,
                deviation: SMALL,
            },
            [_, inputs @ ..] => Spread {
                mean: 0.0,
                deviation: 1.0 / (inputs.iter().product::<usize>().max(1) as f32).sqrt(),
            },
        }
    }
}

/// FNV-1a.
fn seed_of(seed: u64, name: &str) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    name.bytes()
        .fold(OFFSET ^ seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// SplitMix64's number `i`.
fn bits(seed: u64, i: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = seed.wrapping_add(i.wrapping_add(1).wrapping_mul(GOLDEN));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `count` numbers around `mean`, nearly normal: sums of four uniform ones.
fn normal(seed: u64, count: usize, mean: f32, deviation: f32) -> Vec<f32> {
    /// A number of 16 bits has a deviation of 2¹⁶/√12; the sum of four, twice that.
    const FACTOR: f32 = 1.732_050_8 / 65536.0;
    /// The middle of such sums.
    const MIDDLE: f32 = 2.0 * 65535.0;
    let scale = FACTOR * deviation;
    let mut numbers = vec![0.0; count];
    numbers.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, numbers)| {
        for (i, number) in numbers.iter_mut().enumerate() {
            let z = bits(seed, (chunk * CHUNK + i) as u64);
            let sum = (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48);
            *number = mean + (sum as f32 - MIDDLE) * scale;
        }
    });
    numbers
}

/// An input of normal numbers.
///
/// # Errors
///
/// If the tensor cannot be made.
pub fn random_input(name: &str, shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
    let shape = shape.into();
    let numbers = normal(seed_of(0, name), shape.elem_count(), 0.0, 1.0);
    Tensor::from_vec(numbers, shape, device)?.to_dtype(dtype)
}

/// Tokens (batch, length) below `words`, as `u32`.
///
/// # Errors
///
/// If the tensor cannot be made.
pub fn random_tokens(name: &str, shape: (usize, usize), words: usize, device: &Device) -> Result<Tensor> {
    let seed = seed_of(0, name);
    let tokens: Vec<u32> = (0..shape.0 * shape.1)
        .map(|i| (bits(seed, i as u64) % words as u64) as u32)
        .collect();
    Tensor::from_vec(tokens, shape, device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_and_deviation(tensor: &Tensor) -> Result<(f32, f32)> {
        let numbers = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let count = numbers.len() as f32;
        let mean = numbers.iter().sum::<f32>() / count;
        let square = numbers.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / count;
        Ok((mean, square.sqrt()))
    }

    #[test]
    fn tensors_have_the_scale_of_what_they_are() -> Result<()> {
        let vb = RandomWeights::new(1).builder(DType::F32, &Device::Cpu);
        for (shape, name, mean, deviation) in [
            (vec![300, 400], "layer.weight", 0.0, 0.05),
            (vec![64, 25, 4, 4], "conv.weight", 0.0, 0.05),
            (vec![40_000], "norm.weight", 1.0, SMALL),
            (vec![40_000], "ls1.gamma", 1.0, SMALL),
            (vec![40_000], "bn.running_var", 1.0, SMALL),
            (vec![40_000], "bn.running_mean", 0.0, SMALL),
            (vec![40_000], "layer.bias", 0.0, SMALL),
            (vec![1, 100, 400], "pos_embed", 0.0, SMALL),
        ] {
            let (found_mean, found) = mean_and_deviation(&vb.get(shape, name)?)?;
            assert!(
                (found_mean - mean).abs() < 0.02 * deviation,
                "{name}: mean {found_mean}"
            );
            assert!((found / deviation - 1.0).abs() < 0.02, "{name}: deviation {found}");
        }
        Ok(())
    }

    #[test]
    fn a_tensor_depends_on_seed_and_name_and_on_nothing_else() -> Result<()> {
        let get = |seed, name: &str| -> Result<Vec<f32>> {
            let vb = RandomWeights::new(seed).builder(DType::F32, &Device::Cpu);
            vb.get(1, "another.weight")?;
            vb.get((3, CHUNK), name)?.flatten_all()?.to_vec1()
        };
        let first = get(1, "a.weight")?;
        assert_eq!(first, get(1, "a.weight")?);
        assert_ne!(first, get(2, "a.weight")?);
        assert_ne!(first, get(1, "b.weight")?);
        // Chunks that threads draw are not copies of each other.
        assert_ne!(first[..CHUNK], first[CHUNK..2 * CHUNK]);
        Ok(())
    }

    #[test]
    fn what_is_absent_is_not_found_and_what_is_scaled_is_smaller() -> Result<()> {
        let weights = RandomWeights::new(1).without("grn").scaled(".q.weight", 0.125);
        let vb = weights.builder(DType::F32, &Device::Cpu);
        assert!(vb.get(4, "mlp.grn.weight").is_err() && vb.get(4, "mlp.grown.weight").is_ok());
        assert!(!vb.contains_tensor("mlp.grn.weight") && vb.contains_tensor("mlp.fc.weight"));
        assert!(!vb.contains_tensor("bert"));
        let (_, deviation) = mean_and_deviation(&vb.get((100, 100), "layer.q.weight")?)?;
        assert!((deviation / 0.0125 - 1.0).abs() < 0.05, "{deviation}");
        Ok(())
    }

    #[test]
    fn tokens_are_words() -> Result<()> {
        let tokens = random_tokens("tokens", (2, 500), 7, &Device::Cpu)?;
        let mut tokens: Vec<u32> = tokens.flatten_all()?.to_vec1()?;
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens, [0, 1, 2, 3, 4, 5, 6]);
        Ok(())
    }
}
