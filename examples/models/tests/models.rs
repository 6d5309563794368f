//! Every model, small, on the CPU: it builds, gives finite numbers of a sensible size that depend on its input, and the same in
//! every way.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_sgemm::{Gemm, Precision};
use models::measure::{measure, relative_difference};
use models::options::Where;
use models::place::Place;
use models::rebuilt::FusedBert;
use models::rows;
use models::way::Way;
use models::weights::{random_tokens, RandomWeights};
use models::zoo::{self, Setup};

fn setup(dtype: DType) -> Setup {
    Setup {
        device: Device::Cpu,
        dtype,
        small: true,
    }
}

/// The models that are rebuilt on blocks.
const REBUILT: [&str; 3] = ["bert-base", "vit-b16", "whisper-encoder"];
/// What the outputs of 32 bits may differ by, in parts of the largest.
const TOLERANCE: f64 = 1e-5;

fn check(name: &str) -> Result<()> {
    let entry = zoo::find(name).expect("a model of the list");
    let model = (entry.build)(&setup(DType::F32))?;
    let output = (model.forward)(&model.inputs)?;
    let largest: f32 = output.abs()?.flatten_all()?.max(0)?.to_scalar()?;
    assert!(
        (1e-2..1e2).contains(&largest),
        "{name}: the largest number is {largest}"
    );
    // Stateless: a second call is the first.
    assert_eq!(relative_difference(&output, &(model.forward)(&model.inputs)?)?, 0.0);
    let mut others = model.inputs.clone();
    others[0] = others[0].zeros_like()?;
    let other = (model.forward)(&others)?;
    assert!(
        relative_difference(&output, &other)? > 1e-3,
        "{name} does not look at its input"
    );
    // Nor does it remember another input.
    assert_eq!(relative_difference(&output, &(model.forward)(&model.inputs)?)?, 0.0);

    // A rebuilt model is the same function, not only at one point.
    if let Some(rebuild) = &model.rebuild {
        let rebuilt = rebuild(&Gemm::new());
        assert!(relative_difference(&other, &rebuilt(&others)?)? < TOLERANCE);
        assert!(relative_difference(&output, &rebuilt(&model.inputs)?)? < TOLERANCE);
    }

    let place = Place::open(Where::Cpu)?;
    let precisions = [Precision::Fp32, Precision::Fp32Strict];
    let outcome = measure(&place, entry, &setup(DType::F32), &Way::OF_MODELS, &precisions, 0.0)?;
    let is_rebuilt = REBUILT.contains(&name);
    assert_eq!(is_rebuilt, model.rebuild.is_some(), "{name}");
    let ways = if is_rebuilt { 4 } else { 2 };
    assert_eq!(outcome.ways.len(), 1 + ways * precisions.len());
    let rows = rows::of_model(&outcome);
    for (row, way) in rows.iter().zip(&outcome.ways[1..]) {
        assert_eq!(
            (row.model.as_deref(), row.way.as_deref()),
            (Some(name), Some(way.way.name()))
        );
        // The CPU has one arithmetic, and a rebuilt model another order of it.
        let difference = row.max_diff.expect("a difference");
        match way.way.is_rebuilt() {
            true => assert!(difference < TOLERANCE, "{name}, {}: {difference:e}", way.way),
            false => assert_eq!(difference, 0.0, "{name}, {}", way.way),
        }
        match way.way.is_graph() {
            true => assert!(row.us.is_none() && row.note.as_ref().is_some_and(|note| note.contains("CUDA"))),
            false => assert!(row.us > Some(0.0) && row.note.is_none()),
        }
    }
    Ok(())
}

macro_rules! models {
    ($($function:ident $name:literal)*) => {
        $(
            #[test]
            fn $function() -> Result<()> {
                check($name)
            }
        )*

        #[test]
        fn every_model_of_the_list_is_tested() {
            let listed: Vec<&str> = zoo::ALL.iter().map(|entry| entry.name).collect();
            assert_eq!(listed, [$($name),*]);
        }
    };
}

models! {
    bert "bert-base"
    distilbert "distilbert"
    t5 "t5-small"
    clip_text "clip-text"
    clip_image "clip-image"
    vit "vit-b16"
    dinov2 "dinov2-s"
    whisper_encoder "whisper-encoder"
    whisper_decoder "whisper-decoder"
    whisper_step "whisper-step"
    llama_prefill "llama-prefill"
    llama_decode "llama-decode"
    mistral_prefill "mistral-prefill"
    mistral_decode "mistral-decode"
    qwen2_prefill "qwen2-prefill"
    qwen2_decode "qwen2-decode"
    unet "unet"
    vae "vae-decoder"
    resnet "resnet-50"
    convnext "convnext-tiny"
}

/// What candle 0.11 cannot run on a CPU in 16 bits: these add or multiply tensors of two types, …
const OF_TWO_TYPES: [&str; 4] = ["distilbert", "whisper-encoder", "whisper-decoder", "whisper-step"];
/// … and these have convolutions, which it has not got in bf16.
const WITH_CONVOLUTIONS: [&str; 7] = [
    "clip-image",
    "vit-b16",
    "dinov2-s",
    "unet",
    "vae-decoder",
    "resnet-50",
    "convnext-tiny",
];

/// What the outputs of 16 bits may differ by from those of 32, layers and all.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 0.01,
        _ => 0.08,
    }
}

fn sixteen_bits(dtype: DType) -> Result<()> {
    let place = Place::open(Where::Cpu)?;
    let output = |entry: &zoo::Entry, dtype, of: DType| -> candle_core::Result<Tensor> {
        let model = (entry.build)(&setup(of))?;
        let inputs = model.inputs.iter().map(|input| match input.dtype().is_float() {
            true => input.to_dtype(dtype)?.to_dtype(of),
            false => Ok(input.clone()),
        });
        (model.forward)(&inputs.collect::<candle_core::Result<Vec<_>>>()?)
    };
    for entry in &zoo::ALL {
        let runs =
            !OF_TWO_TYPES.contains(&entry.name) && (dtype == DType::F16 || !WITH_CONVOLUTIONS.contains(&entry.name));
        if !runs {
            let outcome = measure(&place, entry, &setup(dtype), &Way::OF_MODELS, &[], 0.0)?;
            let rows = rows::of_model(&outcome);
            let [row] = &rows[..] else {
                panic!("{}: {} rows", entry.name, rows.len())
            };
            let note = row.note.as_deref().expect("a reason");
            assert!(row.us.is_none() && note.contains(dtype.as_str()), "{note}");
            continue;
        }
        let found = output(entry, dtype, dtype)?;
        let model = (entry.build)(&setup(dtype))?;
        if let Some(rebuild) = &model.rebuild {
            let rebuilt = rebuild(&Gemm::new())(&model.inputs)?;
            assert_eq!(rebuilt.dtype(), dtype);
            let difference = relative_difference(&(model.forward)(&model.inputs)?, &rebuilt)?;
            assert!(difference < tolerance(dtype), "{}, rebuilt: {difference}", entry.name);
        }
        // BERT's layers stand for it there: they have no counterpart in 32 bits.
        if entry.name == "bert-base" {
            assert!(relative_difference(&found, &found)? == 0.0);
            continue;
        }
        let difference = relative_difference(&output(entry, dtype, DType::F32)?, &found)?;
        assert!(difference > 0.0, "{} is not in {}", entry.name, dtype.as_str());
        assert!(difference < tolerance(dtype), "{}: {difference}", entry.name);
    }
    Ok(())
}

#[test]
fn f16_is_near_or_it_is_said_why_not() -> Result<()> {
    sixteen_bits(DType::F16)
}

#[test]
fn bf16_is_near_or_it_is_said_why_not() -> Result<()> {
    sixteen_bits(DType::BF16)
}

/// Texts of one length have no mask; with one, candle adds it and so do the blocks.
#[test]
fn a_rebuilt_bert_has_candles_mask() -> Result<()> {
    use candle_transformers::models::bert::{BertModel, Config};
    let config = Config {
        vocab_size: 100,
        hidden_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 128,
        max_position_embeddings: 32,
        ..Config::default()
    };
    let weights = || RandomWeights::new(zoo::SEED).builder(DType::F32, &Device::Cpu);
    let stock = BertModel::load(weights(), &config)?;
    let rebuilt = FusedBert::load(weights(), &config)?;
    let tokens = random_tokens("bert", (2, 16), config.vocab_size, &Device::Cpu)?;
    let types = tokens.zeros_like()?;
    let counts: Vec<u32> = (0..32).map(|i| u32::from(i < 25)).collect();
    let mask = Tensor::from_vec(counts, (2, 16), &Device::Cpu)?;
    let expected = stock.forward(&tokens, &types, Some(&mask))?;
    let found = rebuilt.forward(&tokens, &types, Some(&mask))?;
    assert!(relative_difference(&expected, &found)? < TOLERANCE);
    let unmasked = rebuilt.forward(&tokens, &types, None)?;
    assert!(relative_difference(&expected, &unmasked)? > 1e-3);
    Ok(())
}
