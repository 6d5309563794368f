//! What a kernel costs: the model by which the planner compares kernels. Its constants are measured on an H100 and stand
//! in the rows of the kernel table; clock, lanes and multiprocessors of the device at hand scale them.

use super::kernels::{Arithmetic, KernelSpec};
use super::problem::GemmProblem;
use crate::device::DeviceInfo;

/// What a launch costs beside its work, in µs: measured on an H100 with an empty kernel.
const LAUNCH_US: f64 = 2.5;
/// What it costs more to launch clusters and to add up the slices of a tile inside one, in µs.
const CLUSTER_US: f64 = 1.0;
/// Fraction of the datasheet's memory bandwidth that a streaming kernel reaches, measured on an H100.
const MEMORY_EFFICIENCY: f64 = 0.85;
/// Clusters live within groups of this many multiprocessors.
const CLUSTER_NEIGHBOURHOOD: u32 = 16;

/// The costs of a kernel's block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Fraction of the arithmetic's peak that a multiprocessor reaches when it holds all the blocks it can.
    pub full: f32,
    /// The same when it holds only one.
    pub solo: f32,
    /// Blocks that a multiprocessor holds.
    pub resident: u32,
    /// What a block takes beside its multiplications (first loads, epilogue), in µs.
    pub setup_us: f32,
}

impl Cost {
    /// Where only the speed of a full card is known.
    pub const fn of_full_card(full: f32) -> Self {
        Cost {
            full,
            solo: full,
            resident: 1,
            setup_us: 0.0,
        }
    }
}

/// The time of `problem` in µs with k in `split_k` slices of `k_slice`, by arithmetic or by memory, whichever is longer.
/// Infinite for a kernel whose costs are unknown.
pub fn predict_us(spec: &KernelSpec, problem: &GemmProblem, device: &DeviceInfo, split_k: u32, k_slice: u32) -> f64 {
    let Some(cost) = spec.cost else {
        return f64::INFINITY;
    };
    let tile = spec.tile;
    let slots = match split_k {
        1 => device.sm_count,
        _ => device.sm_count / CLUSTER_NEIGHBOURHOOD * CLUSTER_NEIGHBOURHOOD,
    }
    .max(1) as usize;
    let [tiles_m, tiles_n] = spec.tiles(problem);
    let blocks = tiles_m
        .saturating_mul(tiles_n)
        .saturating_mul(problem.batch())
        .saturating_mul(split_k as usize);

    let flops = 2.0 * tile.bm as f64 * tile.bn as f64 * (k_slice as f64 / tile.bk as f64).ceil() * tile.bk as f64;
    let peak = device.peak_flops_per_us(spec.arithmetic);
    // The time of a multiprocessor that works on so many blocks at once.
    let together = |blocks: f64| {
        let rate = peak * (cost.full as f64).min(cost.solo as f64 * blocks);
        cost.setup_us as f64 + blocks * flops / rate
    };
    let wave = slots * cost.resident as usize;
    let rest = blocks % wave;
    let mut arithmetic_us = (blocks / wave) as f64 * together(cost.resident as f64);
    if rest > 0 {
        arithmetic_us += together(rest.div_ceil(slots) as f64);
    }
    if split_k > 1 {
        arithmetic_us += CLUSTER_US;
    }
    // GB/s to bytes/µs: 1e3.
    let memory_us = problem.min_bytes() / (device.memory_gbps as f64 * 1e3 * MEMORY_EFFICIENCY);
    LAUNCH_US + arithmetic_us.max(memory_us)
}

impl DeviceInfo {
    /// Floating-point operations that a multiprocessor does in a µs at most. Three TF32 products count as one.
    fn peak_flops_per_us(&self, arithmetic: Arithmetic) -> f64 {
        let a_clock = match arithmetic {
            Arithmetic::Ffma => 2 * self.fp32_lanes(),
            Arithmetic::Tf32 => self.tf32_flops_per_clock(),
            Arithmetic::Tf32x3 => self.tf32_flops_per_clock() / 3,
        };
        a_clock as f64 * self.clock_mhz as f64
    }
}
