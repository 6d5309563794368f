//! Products of a recording that do the work of candle's kernels after them.
//!
//! Candle adds a bias, scales, activates and adds a residual with a kernel each, which takes longer to start than to run in a
//! small model; the kernels of products here do the same before they store. While a function is recorded its products are noted.
//! Then the graph is read as plain data ([`node`]), the kernels after products are recognised ([`neighbour`]), [`rules`] decides
//! what may be folded, and [`driver`] does it: the last of the folded kernels becomes the product. Then the function is recorded once
//! more without the products that this moves, and the same is done there. Folded kernels between are switched off where the
//! graph is made ready to run. (Nodes cannot be removed from a graph that allocates memory.) The memory between them stays
//! allocated, and nobody uses it.

#[cfg(feature = "cuda")]
mod driver;
mod neighbour;
mod node;
mod rules;
#[cfg(test)]
mod tests;

#[cfg(feature = "cuda")]
pub(super) use driver::{fold, Folded};
