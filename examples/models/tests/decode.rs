//! One token at a time is a whole text at once, and a cache of fixed size is one that grows.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_sgemm::{Gemm, Precision};
use models::decode::measure::{measure, Text};
use models::decode::{Decoder, FixedLlama};
use models::measure::relative_difference;
use models::options::Where;
use models::place::Place;
use models::way::Way;
use models::weights::{random_tokens, RandomWeights};
use models::zoo::language::{self, small_llama, Fresh, Llama, Reader};
use models::zoo::{Setup, SEED};
use std::rc::Rc;

const LENGTH: usize = 10;
/// FP32 sums in another order.
const ROUNDING: f64 = 1e-5;

fn setup() -> Setup {
    Setup {
        device: Device::Cpu,
        dtype: DType::F32,
        small: true,
    }
}

/// Logits (1, words) after each token, the whole text so far being read at once.
fn at_once<R: Reader>(fresh: &R, tokens: &Tensor) -> Result<Vec<Tensor>> {
    let lengths = 1..=tokens.dim(1)?;
    lengths
        .map(|length| Ok(fresh.clone().read(&tokens.narrow(1, 0, length)?, 0)?))
        .collect()
}

fn near(expected: &[Tensor], found: &[Tensor]) -> Result<()> {
    assert_eq!(expected.len(), found.len());
    for (i, (expected, found)) in expected.iter().zip(found).enumerate() {
        let difference = relative_difference(expected, found)?;
        assert!(difference < ROUNDING, "position {i}: {difference}");
    }
    // The positions are told apart.
    for pair in expected.windows(2) {
        assert!(relative_difference(&pair[0], &pair[1])? > 1e-2);
    }
    Ok(())
}

fn check<R: Reader>(fresh: Fresh<R>) -> Result<()> {
    let tokens = random_tokens("test", (1, LENGTH), fresh.words, &Device::Cpu)?;
    let expected = at_once(&fresh.reader, &tokens)?;
    let mut reader = fresh.reader.clone();
    let found = (0..LENGTH).map(|i| Ok(reader.read(&tokens.narrow(1, i, 1)?, i)?));
    near(&expected, &found.collect::<Result<Vec<_>>>()?)
}

#[test]
fn llama_reads_one_by_one_as_at_once() -> Result<()> {
    check(language::llama(&setup())?)
}

#[test]
fn mistral_reads_one_by_one_as_at_once() -> Result<()> {
    check(language::mistral(&setup())?)
}

#[test]
fn qwen2_reads_one_by_one_as_at_once() -> Result<()> {
    check(language::qwen2(&setup())?)
}

fn fixed(capacity: usize) -> Result<FixedLlama> {
    let weights = RandomWeights::new(SEED).builder(DType::F32, &Device::Cpu);
    let gemm = Gemm::new().precision(Precision::Fp32Strict);
    Ok(FixedLlama::load(weights, &small_llama(32), capacity, &gemm)?)
}

fn read(decoder: &mut Decoder, tokens: &Tensor) -> Result<Vec<Tensor>> {
    let length = tokens.dim(1)?;
    let steps = (0..length).map(|i| {
        let (logits, likeliest) = decoder.read(&tokens.narrow(1, i, 1)?.squeeze(0)?)?;
        let expected: Vec<u32> = logits.argmax(1)?.to_vec1()?;
        assert_eq!(likeliest.to_vec1::<u32>()?, expected);
        Ok(logits)
    });
    steps.collect()
}

#[test]
fn a_masked_cache_of_fixed_size_is_one_that_grows() -> Result<()> {
    let weights = RandomWeights::new(SEED).builder(DType::F32, &Device::Cpu);
    let config = small_llama(32);
    let stock = Llama::load(weights, &config)?;
    let [tokens, others] =
        ["test", "other"].map(|name| random_tokens(name, (1, LENGTH), config.vocab_size, &Device::Cpu));
    let (tokens, others) = (tokens?, others?);
    let expected = at_once(&stock, &tokens)?;
    // A full cache and one with places to spare; each operation, and what stands for a recording on the CPU.
    for capacity in [LENGTH, 32] {
        let model = Rc::new(fixed(capacity)?);
        let graphed = Decoder::graphed(Rc::new(model.with_gemm(&Gemm::new())?))?;
        assert!(graphed.why_plainly().is_some_and(|why| why.contains("CUDA")));
        for mut decoder in [Decoder::plain(model)?, graphed] {
            // What the cache has of another text is masked, place by place, and written over.
            read(&mut decoder, &others)?;
            decoder.rewind(0)?;
            near(&expected, &read(&mut decoder, &tokens)?)?;
            // From the middle on.
            decoder.rewind(LENGTH / 2)?;
            let rest = tokens.narrow(1, LENGTH / 2, LENGTH - LENGTH / 2)?;
            near(&expected[LENGTH / 2..], &read(&mut decoder, &rest)?)?;
            assert_eq!(decoder.position(), LENGTH);
        }
    }
    Ok(())
}

#[test]
fn a_full_cache_and_the_future_are_refused() -> Result<()> {
    let mut decoder = Decoder::plain(Rc::new(fixed(2)?))?;
    let token = Tensor::new(&[1u32], &Device::Cpu)?;
    assert!(decoder.rewind(1).is_err());
    decoder.read(&token)?;
    decoder.read(&token)?;
    let error = decoder.read(&token).expect_err("it is full").to_string();
    assert!(error.contains("holds 2 tokens"), "{error}");
    decoder.rewind(1)?;
    decoder.read(&token)?;
    assert!(fixed(0).is_err());
    Ok(())
}

#[test]
fn a_copy_with_other_settings_has_a_cache_of_its_own() -> Result<()> {
    let first = Rc::new(fixed(4)?);
    let second = Rc::new(first.with_gemm(&Gemm::new())?);
    let token = |word: u32| Tensor::new(&[word], &Device::Cpu);
    let mut alone = Decoder::plain(Rc::new(fixed(4)?))?;
    let (mut first, mut second) = (Decoder::plain(first)?, Decoder::plain(second)?);
    for decoder in [&mut alone, &mut first] {
        decoder.read(&token(3)?)?;
    }
    second.read(&token(7)?)?;
    let (expected, _) = alone.read(&token(5)?)?;
    let (found, _) = first.read(&token(5)?)?;
    assert_eq!(relative_difference(&expected, &found)?, 0.0);
    let (other, _) = second.read(&token(5)?)?;
    assert!(relative_difference(&expected, &other)? > 1e-3);
    Ok(())
}

#[test]
fn the_weights_that_a_token_reads_are_counted() -> Result<()> {
    let config = small_llama(32);
    let (width, inner) = (config.hidden_size, config.intermediate_size);
    let keys = width / config.num_attention_heads * config.num_key_value_heads;
    let layer = width * (2 * width + 2 * keys) + 3 * width * inner + 2 * width;
    let all = config.num_hidden_layers * layer + width + config.vocab_size * width + width;
    assert_eq!(fixed(4)?.weight_bytes(), 4 * all);
    Ok(())
}

#[test]
fn decoding_is_measured_beside_the_bound() -> Result<()> {
    let place = Place::open(Where::Cpu)?;
    let text = Text {
        prompt: 3,
        tokens: 4,
        capacity: 8,
        parts: true,
    };
    let precisions = [Precision::Fp32];
    let decoding = measure(&place, &setup(), text, &Way::OF_DECODING, &precisions, 0.0)?;
    let ways: Vec<Way> = decoding.ways.iter().map(|decoded| decoded.way).collect();
    assert_eq!(ways, Way::OF_DECODING);
    for decoded in &decoding.ways[1..] {
        assert!(decoded.max_diff < Some(ROUNDING), "{decoded:?}");
        assert_eq!(decoded.same_words, Some(text.tokens));
        assert_eq!(decoded.us.is_none(), decoded.way.is_graph());
    }
    let rows = decoding.rows("llama");
    assert_eq!(rows.len(), Way::OF_DECODING.len());
    let bound = decoding.weight_bytes as f64 / decoding.copy_gbps * 1e-3;
    assert!(rows.iter().all(|row| row.bound_us == Some(bound)));
    let lines = decoding.lines("llama");
    for part in ["fused+graph", "queries, keys, values", "together"] {
        assert!(lines.contains(part), "{part}: {lines}");
    }
    let too_long = Text { capacity: 6, ..text };
    let error = measure(&place, &setup(), too_long, &Way::OF_DECODING, &precisions, 0.0);
    assert!(error.is_err_and(|error| error.to_string().contains("--capacity")));
    Ok(())
}
