//! Layers and networks to be measured, the same weights for stock candle and for this crate.

use super::gpu::Gpu;
use anyhow::{bail, Context, Result};
use candle_core::{DType, Device, Module, Tensor};
use candle_sgemm::{Activation, GatedMlp, Gemm, Linear, Mlp, Precision};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::CudaGraph;
use std::fmt;

/// A linear layer followed by GELU, in its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerCase {
    pub rows: usize,
    pub inputs: usize,
    pub outputs: usize,
}

impl fmt::Display for LayerCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}→{}", self.rows, self.inputs, self.outputs)
    }
}

/// The feed-forward layers of transformers, from one row on.
pub const LAYERS: [LayerCase; 14] = [
    LayerCase::new(1, 768, 3072),
    LayerCase::new(16, 768, 3072),
    LayerCase::new(128, 768, 3072),
    LayerCase::new(512, 768, 3072),
    LayerCase::new(4096, 768, 3072),
    LayerCase::new(16384, 768, 3072),
    LayerCase::new(1, 4096, 4096),
    LayerCase::new(16, 4096, 4096),
    LayerCase::new(128, 4096, 4096),
    LayerCase::new(512, 4096, 4096),
    LayerCase::new(4096, 4096, 4096),
    LayerCase::new(512, 4096, 14336),
    LayerCase::new(2048, 4096, 14336),
    LayerCase::new(4096, 4096, 14336),
];

impl LayerCase {
    pub const fn new(rows: usize, inputs: usize, outputs: usize) -> Self {
        LayerCase { rows, inputs, outputs }
    }
}

/// Networks by their widths, with the batches that they are measured with.
pub const NETWORKS: [(&[usize], &[usize]); 2] = [
    (&[784, 512, 512, 10], &[1, 64, 1024, 16384]),
    (&[4096, 4096, 4096, 4096], &[1, 128, 4096]),
];

/// SwiGLU layers by width and hidden width, with the batches that they are measured with.
pub const GATED: [(usize, usize, &[usize]); 3] = [
    (768, 2048, &[1, 128, 4096]),
    (4096, 11008, &[1, 128, 2048]),
    (4096, 14336, &[1, 512, 4096]),
];

/// `784-512-512-10`
fn network_name(widths: &[usize]) -> String {
    let numbers: Vec<String> = widths.iter().map(usize::to_string).collect();
    numbers.join("-")
}

/// What is measured, with how many rows of input.
#[derive(Clone, Debug)]
pub struct Case {
    /// `linear`, `mlp` or `graph`, as the result files have it.
    pub bench: &'static str,
    pub name: String,
    /// From the input's to the output's.
    pub widths: Vec<usize>,
    pub rows: usize,
    /// Of weights, biases, inputs and results: f32, f16 or bf16.
    pub dtype: DType,
    /// Of all layers but the last, and of a single one; of the gate.
    pub activation: Activation,
    /// Whether this is `down(activation(gate(x)) ⊙ up(x))`, without biases, rather than a stack of layers with biases.
    pub gated: bool,
}

impl Case {
    /// The linear layers with GELU, each by its tanh formula in FP32, and by the exact one (erf) in 16 bits.
    pub fn linears(dtype: DType) -> impl Iterator<Item = Case> {
        LAYERS.into_iter().map(move |case| Case {
            bench: "linear",
            name: format!("linear + GELU {case}"),
            widths: vec![case.inputs, case.outputs],
            rows: case.rows,
            dtype,
            activation: match dtype {
                DType::F32 => Activation::GeluTanh,
                _ => Activation::GeluErf,
            },
            gated: false,
        })
    }

    /// The networks.
    pub fn networks(dtype: DType) -> impl Iterator<Item = Case> {
        NETWORKS.into_iter().flat_map(move |(widths, batches)| {
            batches.iter().map(move |&rows| Case {
                dtype,
                bench: "mlp",
                name: format!("MLP {}, batch {rows}", network_name(widths)),
                widths: widths.to_vec(),
                rows,
                activation: Activation::Relu,
                gated: false,
            })
        })
    }

    /// The SwiGLU layers.
    pub fn gated(dtype: DType) -> impl Iterator<Item = Case> {
        GATED.into_iter().flat_map(move |(width, hidden, batches)| {
            batches.iter().map(move |&rows| Case {
                dtype,
                bench: "mlp",
                name: format!("SwiGLU {}, batch {rows}", network_name(&[width, hidden])),
                widths: vec![width, hidden, width],
                rows,
                activation: Activation::Silu,
                gated: true,
            })
        })
    }

    /// Input and output width of each linear layer; of a gated one, those of gate, up and down.
    fn layers(&self) -> Vec<(usize, usize)> {
        let pairs = self.widths.windows(2).map(|pair| (pair[0], pair[1]));
        let gate = self.gated.then(|| (self.widths[0], self.widths[1]));
        gate.into_iter().chain(pairs).collect()
    }

    /// What arithmetic ours is asked for: all of these for FP32, whose operands they govern; 16-bit products are the same at
    /// each.
    pub fn precisions<'a>(&self, asked: &'a [Precision]) -> &'a [Precision] {
        match self.dtype {
            DType::F32 => asked,
            _ => &asked[..asked.len().min(1)],
        }
    }

    /// How ours is called in tables: by the precision of FP32, else by the type.
    pub fn arithmetic(&self, precision: Precision) -> &'static str {
        match self.dtype {
            DType::F32 => precision.name(),
            dtype => dtype.as_str(),
        }
    }

    /// Multiplications and additions of the products.
    pub fn flops(&self) -> f64 {
        let products = self.layers().into_iter().map(|(inputs, outputs)| inputs * outputs);
        2.0 * (self.rows * products.sum::<usize>()) as f64
    }

    /// What follows layer `i` of a stack.
    fn activation_after(&self, i: usize) -> Activation {
        let last = self.widths.len() - 2;
        if i < last || last == 0 {
            self.activation
        } else {
            Activation::Identity
        }
    }
}

/// The first GPU, for candle and for measuring on candle's stream.
///
/// # Errors
///
/// If there is none.
pub fn open() -> Result<(Device, Gpu)> {
    let device = Device::new_cuda(0).context("no usable NVIDIA GPU")?;
    let gpu = Gpu::on(device.as_cuda_device()?.cuda_stream())?;
    Ok((device, gpu))
}

/// [`open`] for recording graphs: candle's tensors then don't wait for what other streams do with them, which from inside
/// a recording they could not.
///
/// # Errors
///
/// As [`open`].
pub fn open_for_graphs() -> Result<(Device, Gpu)> {
    let (device, gpu) = open()?;
    // SAFETY: one stream does everything here.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    Ok((device, gpu))
}

/// What candle's stream was asked to do, recorded once and replayed with one launch.
pub struct Graph {
    output: Tensor,
    graph: CudaGraph,
}

impl Graph {
    /// Records what `run` queues on the stream of `device`, which is of [`open_for_graphs`].
    ///
    /// # Errors
    ///
    /// Those of `run`, and of the driver.
    pub fn record(device: &Device, run: impl Fn() -> Result<Tensor>) -> Result<Self> {
        let device = device.as_cuda_device()?;
        let stream = device.cuda_stream();
        // Candle copies the strides of broadcast operands from memory of the host, which a replay would not find any more,
        // unless it is told to keep those that it has copied before.
        let _kept = device.enable_cuda_graph_htod_cache();
        run()?; // copies them, loads kernels and chooses plans, none of which can be recorded
        stream.synchronize()?;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let output = run();
        let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        let recorded = Graph {
            output: output?,
            graph: graph?.context("nothing was recorded")?,
        };
        recorded.replay()?; // the result has no memory before
        Ok(recorded)
    }

    /// # Errors
    ///
    /// Of the driver.
    pub fn replay(&self) -> Result<()> {
        Ok(self.graph.launch()?)
    }

    /// The result of the last replay.
    pub fn output(&self) -> &Tensor {
        &self.output
    }
}

/// Random weights of the size that keeps activations at theirs, and an input.
pub struct Weights {
    case: Case,
    layers: Vec<(Tensor, Option<Tensor>)>,
    input: Tensor,
}

impl Weights {
    pub fn random(case: &Case, device: &Device) -> Result<Self> {
        let layers = case.layers().into_iter().map(|(inputs, outputs)| {
            let scale = 1.0 / (inputs as f64).sqrt();
            let weight = (Tensor::randn(0f32, 1., (outputs, inputs), device)? * scale)?.to_dtype(case.dtype)?;
            let bias = match case.gated {
                true => None,
                false => Some(Tensor::randn(0f32, 0.1, outputs, device)?.to_dtype(case.dtype)?),
            };
            Ok((weight, bias))
        });
        Ok(Weights {
            layers: layers.collect::<Result<_>>()?,
            input: Tensor::randn(0f32, 1., (case.rows, case.widths[0]), device)?.to_dtype(case.dtype)?,
            case: case.clone(),
        })
    }

    /// Candle's own layers.
    pub fn stock(&self) -> Result<Tensor> {
        self.with(|x, weight, bias| Ok(candle_nn::Linear::new(weight.clone(), bias.cloned()).forward(x)?))
    }

    /// This crate's product in place of candle's, all else as candle does it.
    pub fn unfused(&self, precision: Precision) -> Result<Tensor> {
        let gemm = Gemm::new().precision(precision);
        self.with(|x, weight, bias| {
            let y = gemm.matmul(x, &weight.t()?)?;
            Ok(match bias {
                Some(bias) => y.broadcast_add(bias)?,
                None => y,
            })
        })
    }

    /// The product of a case that has no other, by itself: what its layer would take if bias and activation were free. `None` where there are several.
    pub fn product(&self, precision: Precision) -> Option<impl Fn() -> Result<Tensor> + '_> {
        let [(weight, _)] = &self.layers[..] else {
            return None;
        };
        let gemm = Gemm::new().precision(precision);
        Some(move || Ok(gemm.matmul(&self.input, &weight.t()?)?))
    }

    /// With this linear layer, and the activations and multiplications of candle.
    fn with(&self, linear: impl Fn(&Tensor, &Tensor, Option<&Tensor>) -> Result<Tensor>) -> Result<Tensor> {
        let layer = |i: usize, x: &Tensor| {
            let (weight, bias) = &self.layers[i];
            linear(x, weight, bias.as_ref())
        };
        let x = &self.input;
        if self.case.gated {
            let gate = activate(&layer(0, x)?, self.case.activation)?;
            return layer(2, &(gate * layer(1, x)?)?);
        }
        (0..self.layers.len()).try_fold(x.clone(), |x, i| {
            activate(&layer(i, &x)?, self.case.activation_after(i))
        })
    }

    /// This crate's layers.
    pub fn fused(&self, precision: Precision) -> Result<Fused> {
        let layer = |i: usize| {
            let (weight, bias) = &self.layers[i];
            Linear::new(weight.clone(), bias.clone()).with_gemm(Gemm::new().precision(precision))
        };
        if self.case.gated {
            let gated = GatedMlp::from_layers(layer(0), layer(1), layer(2), self.case.activation)?;
            return Ok(Fused(Box::new(gated.prepare()?)));
        }
        let layers = (0..self.layers.len()).map(|i| layer(i).with_activation(self.case.activation_after(i)));
        Ok(Fused(Box::new(Mlp::from_layers(layers.collect()).prepare()?)))
    }

    /// The result of this crate's layers.
    pub fn run(&self, layers: &Fused) -> Result<Tensor> {
        Ok(layers.0.forward(&self.input)?)
    }
}

/// This crate's layers with the weights of a case.
pub struct Fused(Box<dyn Module>);

fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    Ok(match activation {
        Activation::Identity => x.clone(),
        Activation::Relu => x.relu()?,
        Activation::GeluTanh => x.gelu()?,
        Activation::GeluErf => x.gelu_erf()?,
        Activation::Silu => x.silu()?,
        other => bail!("{other:?} is not measured"),
    })
}

/// Fails unless two results agree as results of their type do: in 16 bits candle rounds after every operation.
pub fn check(what: &str, ours: &Tensor, stock: &Tensor) -> Result<()> {
    let most = match stock.dtype() {
        DType::BF16 => 2e-2,
        DType::F16 => 3e-3,
        _ => 1e-3,
    };
    let double = |t: &Tensor| t.to_dtype(DType::F64);
    let error = (double(ours)? - double(stock)?)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
    let norm = double(stock)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
    let relative = (error / norm.max(f64::MIN_POSITIVE)).sqrt();
    if relative.is_nan() || relative > most {
        bail!("{what}: the result differs from candle's by {relative:e} of its norm");
    }
    Ok(())
}
