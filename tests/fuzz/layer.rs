//! Layers: `Linear` with every activation, bias, residual and gate, stacks of them, gated ones, of every type, and their
//! gradients.

use crate::draw::{self, one_in, one_of, Seed, Values};
use crate::expected::{precision_of, Expected};
use crate::harness::{Case, Verdict};
use crate::operand::Operand;
use crate::product::{draw_kernel, refused};
use crate::view::View;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_sgemm::{Activation, GatedMlp, Gemm, Linear, Mlp, Precision};
use rand::rngs::{SmallRng, StdRng};
use rand::{Rng, SeedableRng};

/// Those that turn whole numbers into whole numbers.
const WHOLE: [Activation; 2] = [Activation::Identity, Activation::Relu];

/// Multiply-adds of each layer of a network after the first.
const LATER_WORK: usize = 1 << 20;

/// A weight, a bias, and what is applied to their result.
#[derive(Clone, Debug)]
struct Weights {
    w: View,
    bias: Option<View>,
    activation: Activation,
}

/// What is built of the weights.
#[derive(Clone, Debug)]
enum Kind {
    /// One layer.
    Linear,
    /// One layer and what is added to its result.
    Residual(View),
    /// One layer and what its result is multiplied with.
    Gate(View),
    /// The layers one after the other.
    Mlp,
    /// Gate, up and down, and what is added in the end.
    Gated(Option<View>),
}

#[derive(Clone, Debug)]
pub struct Layer {
    kind: Kind,
    x: View,
    weights: Vec<Weights>,
    /// The type of the last layer's result, where it is asked for.
    out: Option<DType>,
    precision: Precision,
    kernel: Option<&'static str>,
    prepare: bool,
    gradients: bool,
    values: Values,
    numbers: Seed,
}

/// The operands of one layer, and what the forward pass is expected to give.
struct Made {
    w: Operand,
    bias: Option<Operand>,
    activation: Activation,
}

/// What a layer was expected to compute, for the way back.
struct Step {
    x: Expected,
    before: Expected,
    /// The type of its result.
    out: DType,
}

impl Made {
    fn layer(&self, gemm: Gemm) -> Linear {
        let bias = self.bias.as_ref().map(|bias| bias.tensor.clone());
        Linear::new(self.w.tensor.clone(), bias)
            .with_activation(self.activation)
            .with_gemm(gemm)
    }

    /// The result before it is rounded to the type `out`. For gradients what an activation is applied to is rounded to it, and so
    /// it is on the way forward where ReLU is an operation of its own because of them.
    fn forward(&self, x: Expected, out: DType, precision: Precision, gradients: bool) -> Result<(Expected, Step)> {
        let precision = precision_of(self.w.view.dtype(), precision);
        let mut before = x.product(&self.w.exact()?.t()?, precision)?;
        if let Some(bias) = &self.bias {
            before = before.plus(&bias.exact()?)?;
        }
        let stored = before.stored(out)?;
        let apart = gradients && self.activation == Activation::Relu;
        let y = if apart { &stored } else { &before }.activated(self.activation)?;
        let before = stored;
        Ok((y, Step { x, before, out }))
    }

    /// Checks the gradients of weight and bias, where `gradient` is that of the layer's result, and returns that of its input.
    /// Factors and results of these products have the type of the layer's result.
    fn backward(
        &self,
        step: &Step,
        gradient: &Expected,
        precision: Precision,
        checks: &mut Vec<(&'static str, Expected, usize)>,
        index: usize,
    ) -> Result<Expected> {
        let out = step.out;
        let precision = precision_of(out, precision);
        let gradient = match self.activation {
            Activation::Identity => gradient.clone(),
            activation => {
                let slopes = step.before.slopes(activation, out)?.stored(out)?;
                gradient.times(&slopes)?.stored(out)?
            }
        };
        let of_w = step.x.t()?.product_over_batch(&gradient, precision)?.t()?;
        checks.push(("weight", of_w.stored(out)?, index));
        if let Some(bias) = &self.bias {
            checks.push(("bias", gradient.sum_to(bias.view.dims(), DType::F32)?, index));
        }
        let of_x = gradient.product(&self.w.exact()?, precision)?;
        of_x.stored(out)?.stored(self.w.view.dtype())
    }
}

impl Layer {
    pub fn draw(rng: &mut StdRng, on_gpu: bool) -> Self {
        let batch = draw::batch(rng);
        let [m, n, k] = draw::sizes(rng, batch.iter().product());
        let values = Values::draw(rng);
        let dtype = draw::factors(rng);
        let x = View::draw(rng, &[&batch[..], &[m, k]].concat(), dtype);
        let activation = |rng: &mut StdRng| match values {
            Values::Whole => one_of(rng, &WHOLE),
            _ => one_of(rng, &Activation::ALL),
        };
        let result = |n: usize| [&batch[..], &[m, n]].concat();
        let extra = |rng: &mut StdRng, n: usize| {
            let dims = draw::broadcastable(rng, &result(n), 0);
            let dtype = draw::beside(rng, dtype);
            View::draw(rng, &dims, dtype)
        };
        let rows = m * batch.iter().product::<usize>();
        let width = |rng: &mut StdRng, inputs: usize| draw::side(rng, LATER_WORK / (rows * inputs));
        let kind = match one_of(rng, &[0, 0, 0, 1, 1, 2, 2, 3, 4]) {
            0 => Kind::Linear,
            1 => Kind::Residual(extra(rng, n)),
            2 => Kind::Gate(extra(rng, n)),
            3 => Kind::Mlp,
            _ => Kind::Gated(None),
        };
        let chosen = activation(rng);
        let mut weights = vec![Weights::draw(rng, k, n, chosen, dtype)];
        let kind = match kind {
            Kind::Mlp => {
                let mut inputs = n;
                for _ in 0..rng.random_range(0..=2) {
                    let outputs = width(rng, inputs);
                    let chosen = activation(rng);
                    weights.push(Weights::draw(rng, inputs, outputs, chosen, dtype));
                    inputs = outputs;
                }
                Kind::Mlp
            }
            Kind::Gated(_) => {
                let outputs = width(rng, n);
                weights.push(Weights::draw(rng, k, n, Activation::Identity, dtype));
                weights.push(Weights::draw(rng, n, outputs, Activation::Identity, dtype));
                Kind::Gated(rng.random::<bool>().then(|| extra(rng, outputs)))
            }
            kind => kind,
        };
        Layer {
            kind,
            x,
            weights,
            out: draw::result(rng, dtype),
            precision: one_of(rng, &Precision::ALL),
            kernel: draw_kernel(rng, on_gpu, dtype),
            prepare: one_in(rng, 4),
            gradients: one_in(rng, 3),
            values,
            numbers: Seed(rng.random_range(0..1 << 16)),
        }
    }

    /// The input, and the weight of the first layer.
    pub fn views(&self) -> [&View; 2] {
        [&self.x, &self.weights[0].w]
    }

    /// The type of the factors of every product.
    fn factors(&self) -> DType {
        self.x.dtype()
    }

    /// The type of the result of layer `i`.
    fn result_of(&self, i: usize) -> DType {
        let last = i + 1 == self.weights.len();
        self.out.filter(|_| last).unwrap_or(self.factors())
    }

    /// The same with FP32 numbers.
    fn in_fp32(&self) -> Self {
        let typed = |view: &View| view.typed(DType::F32);
        let kind = match &self.kind {
            Kind::Residual(view) => Kind::Residual(typed(view)),
            Kind::Gate(view) => Kind::Gate(typed(view)),
            Kind::Gated(Some(view)) => Kind::Gated(Some(typed(view))),
            kind => kind.clone(),
        };
        let weights = self.weights.iter().map(|weights| Weights {
            w: typed(&weights.w),
            bias: weights.bias.as_ref().map(typed),
            ..*weights
        });
        Layer {
            kind,
            x: typed(&self.x),
            weights: weights.collect(),
            out: None,
            ..self.clone()
        }
    }
}

impl Weights {
    fn draw(rng: &mut StdRng, inputs: usize, outputs: usize, activation: Activation, dtype: DType) -> Self {
        let of_bias = draw::beside(rng, dtype);
        Weights {
            w: View::draw(rng, &[outputs, inputs], dtype),
            bias: rng.random::<bool>().then(|| View::draw(rng, &[outputs], of_bias)),
            activation,
        }
    }
}

impl Case for Layer {
    fn size(&self) -> usize {
        let rows = self.x.elements() / self.x.dim(0);
        rows * self.weights.iter().map(|weights| weights.w.elements()).sum::<usize>()
    }

    fn smaller(&self) -> Vec<Self> {
        let same = || self.clone();
        let mut smaller = Vec::new();
        let less = |size: usize| {
            let sizes = [1, size / 2, size - size / 8, size - 1];
            sizes.into_iter().filter(move |&less| less >= 1 && less < size)
        };
        // Rows and other dimensions outside of the layer.
        let rank = self.x.dims().len();
        for from_last in 1..rank {
            for extent in less(self.x.dim(from_last)) {
                let resize = |view: &View| view.resized(from_last, extent);
                let kind = match &self.kind {
                    Kind::Residual(view) => Kind::Residual(resize(view)),
                    Kind::Gate(view) => Kind::Gate(resize(view)),
                    Kind::Gated(Some(view)) => Kind::Gated(Some(resize(view))),
                    kind => kind.clone(),
                };
                smaller.push(Layer {
                    x: resize(&self.x),
                    kind,
                    ..same()
                });
            }
        }
        // Inputs and outputs of a single layer.
        if let [one] = &self.weights[..] {
            for inputs in less(one.w.dim(0)) {
                let mut case = same();
                case.x = self.x.resized(0, inputs);
                case.weights[0].w = one.w.resized(0, inputs);
                smaller.push(case);
            }
            for outputs in less(one.w.dim(1)) {
                let mut case = same();
                case.weights[0].w = one.w.resized(1, outputs);
                case.weights[0].bias = one.bias.as_ref().map(|bias| bias.resized(0, outputs));
                case.kind = match &self.kind {
                    Kind::Residual(view) => Kind::Residual(view.resized(0, outputs)),
                    Kind::Gate(view) => Kind::Gate(view.resized(0, outputs)),
                    kind => kind.clone(),
                };
                smaller.push(case);
            }
        }
        match &self.kind {
            Kind::Residual(_) | Kind::Gate(_) => smaller.push(Layer {
                kind: Kind::Linear,
                ..same()
            }),
            Kind::Gated(Some(_)) => smaller.push(Layer {
                kind: Kind::Gated(None),
                ..same()
            }),
            Kind::Mlp if self.weights.len() > 1 => {
                let mut case = same();
                case.weights.pop();
                smaller.push(case);
            }
            _ => {}
        }
        if self.factors() != DType::F32 {
            smaller.push(self.in_fp32());
        }
        if self.out.is_some() {
            smaller.push(Layer { out: None, ..same() });
        }
        if self.gradients {
            smaller.push(Layer {
                gradients: false,
                ..same()
            });
        }
        if self.prepare {
            smaller.push(Layer {
                prepare: false,
                ..same()
            });
        }
        for (i, weights) in self.weights.iter().enumerate() {
            if weights.bias.is_some() {
                let mut case = same();
                case.weights[i].bias = None;
                smaller.push(case);
            }
            if weights.activation != Activation::Identity {
                let mut case = same();
                case.weights[i].activation = Activation::Identity;
                smaller.push(case);
            }
            for w in weights.w.simpler() {
                let mut case = same();
                case.weights[i].w = w;
                smaller.push(case);
            }
        }
        smaller.extend(self.x.simpler().into_iter().map(|x| Layer { x, ..same() }));
        smaller
    }

    fn check(&self, device: &Device) -> Verdict {
        let rng = &mut SmallRng::seed_from_u64(self.numbers.0);
        let (values, variables, precision) = (self.values, self.gradients, self.precision);
        let x = Operand::new(&self.x, values, rng, variables, device)?;
        let mut made = Vec::new();
        for Weights { w, bias, activation } in &self.weights {
            // So that sums stay about as large as what they are made of, but whole where they are to be whole.
            let scale = match values {
                Values::Whole => 1.0,
                _ => (w.dim(0) as f32).sqrt().recip(),
            };
            made.push(Made {
                w: Operand::mapped(w, values, rng, variables && !self.prepare, device, |number| {
                    number * scale
                })?,
                bias: match bias {
                    Some(bias) => Some(Operand::new(bias, values, rng, variables, device)?),
                    None => None,
                },
                activation: *activation,
            });
        }
        let extra = match &self.kind {
            Kind::Residual(view) | Kind::Gate(view) | Kind::Gated(Some(view)) => {
                Some(Operand::new(view, values, rng, variables, device)?)
            }
            Kind::Linear | Kind::Mlp | Kind::Gated(None) => None,
        };

        let mut gemm = Gemm::new().precision(precision);
        if let Some(kernel) = self.kernel {
            gemm = gemm.kernel(kernel);
        }
        let result = self.forward(&x.tensor, &made, extra.as_ref().map(|extra| &extra.tensor), &gemm);
        if let Some(verdict) = refused(&result, self.kernel) {
            return Ok(verdict);
        }
        let result = result?;

        // The same forward.
        let x_exact = x.exact()?;
        let extra_exact = extra.as_ref().map(Operand::exact).transpose()?;
        let mut steps = Vec::new();
        let mut y = x_exact.clone();
        let mut up = None;
        for (i, layer) in made.iter().enumerate() {
            let input = match (&self.kind, i) {
                (Kind::Gated(_), 1) => x_exact.clone(),
                _ => y.clone(),
            };
            let out = self.result_of(i);
            let (mut output, step) = layer.forward(input, out, precision, self.gradients)?;
            steps.push(step);
            let gated = matches!(self.kind, Kind::Gated(_));
            if gated && i == 1 {
                if self.gradients {
                    output = output.stored(out)?;
                }
                let gated = output.times(&y)?;
                up = Some((y, output));
                output = gated;
            }
            y = match i + 1 < made.len() {
                // One kernel may compute both gate and up.
                true if gated && i == 0 && self.prepare && device.is_cuda() => output.perhaps_stored(out)?,
                true => output.stored(out)?,
                false => output,
            };
        }
        let out = self.result_of(made.len() - 1);
        // What is to have a gradient is added to the stored result, in its type, or multiplied with it.
        let extra_exact = match (extra_exact, self.gradients) {
            (Some(extra), true) => {
                y = y.stored(out)?;
                Some(extra.stored(out)?)
            }
            (extra, _) => extra,
        };
        let last = y.clone();
        if let Some(extra) = &extra_exact {
            y = match self.kind {
                Kind::Gate(_) => y.times(extra)?,
                _ => y.plus(extra)?,
            };
        }
        if let Err(complaint) = y.check(&result, out, "result")? {
            return Ok(Err(complaint));
        }
        if !self.gradients {
            return Ok(Ok(()));
        }

        // And back.
        let weights = Operand::new(&View::dense(result.dims(), out), values, rng, false, device)?;
        let gradients = (&result * &weights.tensor)?.sum_all()?.backward()?;
        let mut gradient = weights.exact()?;
        if let (Some(extra), Some(exact)) = (&extra, &extra_exact) {
            let of_extra = match self.kind {
                Kind::Gate(_) => gradient.times(&last)?.stored(out)?,
                _ => gradient.clone(),
            };
            let dtype = extra.view.dtype();
            let of_extra = of_extra.stored(dtype)?.sum_to(extra.view.dims(), dtype)?;
            if let Err(complaint) = extra.check_gradient(&gradients, &of_extra, "residual or gate")? {
                return Ok(Err(complaint));
            }
            if matches!(self.kind, Kind::Gate(_)) {
                gradient = gradient.times(exact)?.stored(out)?;
            }
        }
        let mut checks = Vec::new();
        let of_x = match &up {
            Some((gate, up)) => {
                let gated = made[2].backward(&steps[2], &gradient, precision, &mut checks, 2)?;
                let factors = self.factors();
                let of_up = gated.times(gate)?.stored(factors)?;
                let through_up = made[1].backward(&steps[1], &of_up, precision, &mut checks, 1)?;
                let of_gate = gated.times(up)?.stored(factors)?;
                let through_gate = made[0].backward(&steps[0], &of_gate, precision, &mut checks, 0)?;
                through_up.plus(&through_gate)?
            }
            None => {
                for (i, layer) in made.iter().enumerate().rev() {
                    gradient = layer.backward(&steps[i], &gradient, precision, &mut checks, i)?;
                }
                gradient
            }
        };
        if let Err(complaint) = x.check_gradient(&gradients, &of_x, "x")? {
            return Ok(Err(complaint));
        }
        check_weights(&made, &gradients, &checks)
    }
}

fn check_weights(made: &[Made], gradients: &GradStore, checks: &[(&'static str, Expected, usize)]) -> Verdict {
    for (name, expected, index) in checks {
        let operand = match *name {
            "weight" => Some(&made[*index].w),
            _ => made[*index].bias.as_ref(),
        };
        // The weight of a layer that was prepared has no gradient.
        let Some(operand) = operand.filter(|operand| operand.is_variable()) else {
            continue;
        };
        let what = format!("{name} of layer {index}");
        if let Err(complaint) = operand.check_gradient(gradients, expected, &what)? {
            return Ok(Err(complaint));
        }
    }
    Ok(Ok(()))
}

impl Layer {
    fn forward(&self, x: &Tensor, made: &[Made], extra: Option<&Tensor>, gemm: &Gemm) -> Result<Tensor> {
        let gemm_of = |i: usize| match self.out {
            Some(out) if i + 1 == made.len() => gemm.clone().out_dtype(out),
            _ => gemm.clone(),
        };
        let layers = made.iter().enumerate().map(|(i, made)| made.layer(gemm_of(i)));
        let layers: Vec<Linear> = layers.collect();
        match (&self.kind, &layers[..]) {
            (Kind::Mlp, _) => {
                let mlp = Mlp::from_layers(layers);
                (if self.prepare { mlp.prepare()? } else { mlp }).forward(x)
            }
            (Kind::Gated(_), [gate, up, down]) => {
                let activation = gate.activation();
                let mlp = GatedMlp::from_layers(gate.clone(), up.clone(), down.clone(), activation)?;
                let mlp = if self.prepare { mlp.prepare()? } else { mlp };
                match extra {
                    Some(residual) => mlp.forward_residual(x, residual),
                    None => mlp.forward(x),
                }
            }
            (kind, [layer, ..]) => {
                let layer = if self.prepare {
                    layer.clone().prepare()?
                } else {
                    layer.clone()
                };
                match (kind, extra) {
                    (Kind::Residual(_), Some(residual)) => layer.forward_residual(x, residual),
                    (Kind::Gate(_), Some(gate)) => layer.forward_gated(x, gate),
                    _ => layer.forward(x),
                }
            }
            (_, []) => candle_core::bail!("a case has no layers"),
        }
    }
}
