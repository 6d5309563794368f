//! Random uses of the public API: products, layers, gradients, transpositions, special values and wrong input, drawn from a
//! seed, against FP64 or bit for bit.
//!
//! `CANDLE_SGEMM_TEST_SECONDS=60` says how long each device is tested. A failure names its seed:
//! `CANDLE_SGEMM_TEST_SEED=123` tries that case again and no other, or, with seconds given too, starts there.

#[macro_use]
mod devices;
#[path = "fuzz/draw.rs"]
mod draw;
#[path = "fuzz/expected.rs"]
mod expected;
#[path = "fuzz/harness.rs"]
mod harness;
#[path = "fuzz/layer.rs"]
mod layer;
#[path = "fuzz/mistake.rs"]
mod mistake;
#[path = "fuzz/movement.rs"]
mod movement;
#[path = "fuzz/operand.rs"]
mod operand;
#[path = "fuzz/product.rs"]
mod product;
#[path = "fuzz/special.rs"]
mod special;
#[path = "fuzz/view.rs"]
mod view;

use candle_core::{Device, Result};

on_every_device!(whatever_the_api_is_asked_for_is_right);

fn whatever_the_api_is_asked_for_is_right(device: &Device) -> Result<()> {
    harness::run(device)
}
