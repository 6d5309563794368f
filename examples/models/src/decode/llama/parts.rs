//! The operations of a step by kind, each by itself.

use super::{argmax, bytes, FixedLlama, Heads, Layer};
use crate::decode::parts::Part;
use crate::weights::random_input;
use candle_core::{bail, Module, Result, Tensor};
use candle_sgemm::blocks::LayerNorm;
use std::rc::Rc;

type OfModel = Box<dyn Fn(&FixedLlama) -> Result<Tensor>>;
type OfLayer = Box<dyn Fn(&FixedLlama, &Layer) -> Result<Tensor>>;

/// The part that reads the cache, and no weights.
pub(in crate::decode) const ATTENTION: &str = "rotation, cache, attention";

impl FixedLlama {
    /// The operations of a step at this position, by kind, in order. Each works on random numbers of the right shape; attention writes
    /// such numbers into the cache.
    ///
    /// # Errors
    ///
    /// Those of candle.
    pub(in crate::decode) fn parts(self: &Rc<Self>, position: &Tensor) -> Result<Vec<Part>> {
        let Heads { queries, keys, width } = self.heads;
        let table = self.rotation.cosines();
        let (dtype, device) = (table.dtype(), table.device());
        let inputs = self.words.hidden_size();
        let inner = self
            .layers
            .first()
            .map_or(Ok(0), |layer| layer.mlp.up().weight().dim(0))?;
        let random = |name: &str, shape: &[usize]| random_input(name, shape, dtype, device);
        let (x, hidden) = (random("x", &[1, inputs])?, random("hidden", &[1, inner])?);
        let context = random("context", &[1, queries * width])?;
        let qkv = random("heads", &[1, (queries + 2 * keys) * width])?;
        let logits = random("logits", &[1, self.words.embeddings().dim(0)?])?;

        let once = |name, bytes, run: OfModel| {
            let model = self.clone();
            Part {
                name,
                operations: 1,
                bytes,
                run: Box::new(move || run(&model)),
            }
        };
        let each = |name, bytes: &dyn Fn(&Layer) -> usize, run: OfLayer| {
            let model = self.clone();
            Part {
                name,
                operations: self.layers.len(),
                bytes: self.layers.iter().map(bytes).sum(),
                run: Box::new(move || {
                    let results = model.layers.iter().map(|layer| run(&model, layer));
                    let last = results.reduce(|before, result| before.and(result));
                    last.unwrap_or_else(|| bail!("a model without layers"))
                }),
            }
        };
        let of_norm = |norm: Option<&LayerNorm>| norm.map_or(0, |norm| bytes(norm.weight()));
        let (at, token) = (position.clone(), position.zeros_like()?);
        let x = Rc::new(x);
        let with_x = |run: fn(&Layer, &Tensor) -> Result<Tensor>| -> OfLayer {
            let x = x.clone();
            Box::new(move |_, layer| run(layer, &x))
        };
        Ok(vec![
            once(
                "word",
                bytes(self.words.embeddings()) / self.words.embeddings().dim(0)?.max(1),
                Box::new(move |model| model.words.forward(&token)),
            ),
            each(
                "norm, queries, keys, values",
                &|layer| bytes(layer.qkv.weight()) + of_norm(layer.qkv.norm()),
                with_x(|layer, x| layer.qkv.forward(x)),
            ),
            each(
                ATTENTION,
                &|layer| {
                    layer
                        .cache
                        .keys()
                        .and_then(|keys| Ok(bytes(&keys) + bytes(&layer.cache.values()?)))
                        .unwrap_or(0)
                },
                Box::new(move |model, layer| layer.context(&qkv, &model.rotation, &at, model.heads)),
            ),
            each("output of the attention", &|layer| bytes(layer.output.weight()), {
                let x = x.clone();
                Box::new(move |_, layer| layer.output.forward_residual(&context, &x))
            }),
            each(
                "norm, gate, up",
                &|layer| bytes(layer.mlp.gate().weight()) + bytes(layer.mlp.up().weight()) + of_norm(layer.mlp.norm()),
                with_x(|layer, x| layer.mlp.hidden(x)),
            ),
            each("down", &|layer| bytes(layer.mlp.down().weight()), {
                let x = x.clone();
                Box::new(move |_, layer| layer.mlp.down().forward_residual(&hidden, &x))
            }),
            once(
                "norm, head",
                bytes(self.head.weight()) + of_norm(self.head.norm()),
                Box::new(move |model| model.head.forward(&x)),
            ),
            once("likeliest word", 0, Box::new(move |_| argmax(&logits))),
        ])
    }
}
