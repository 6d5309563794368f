//! What a kernel costs: the model by which the planner compares kernels. Its constants stand in the rows of the kernel
//! table; clock, lanes and multiprocessors of the device at hand scale them. They were fitted to a sweep of every plan over
//! the shapes of networks on an H100, so that the choices lose as little as they can against the fastest plans (1 to 2 % on
//! average there); a predicted time itself may be off by a fifth.

use crate::device::DeviceInfo;
use crate::gemm::kernel::spec::{Arithmetic, Grid, KernelSpec};
use crate::gemm::operands::Access;
use crate::gemm::problem::GemmProblem;
use crate::gemm::schedule::cut::Cut;

/// What a launch costs beside its work, in µs: measured on an H100 with an empty kernel.
const LAUNCH_US: f64 = 2.2;

/// The same for a kernel that gets ready while the one before it ends, as those of the copy engine do.
const EARLY_LAUNCH_US: f64 = 0.85;

/// What a cut of k costs beside its blocks, in µs, and the fraction of the multiprocessors on which clusters of so many
/// blocks find room: a cluster lives within one group of multiprocessors, and groups differ in size.
const fn cluster(blocks: u32) -> (f64, f64) {
    match blocks {
        1 => (0.0, 1.0),
        2 => (1.0, 1.0),
        3 => (1.1, 0.88),
        4 => (1.2, 0.91),
        5 => (1.3, 0.83),
        6 => (1.4, 0.77),
        _ => (1.6, 0.91),
    }
}

/// What pairs of blocks that share tiles cost, in µs, once: their barriers have to be there in both before either may start.
const PAIRS_US: f64 = 4.0;

/// What a cut costs more, in µs, where blocks exchange the sums of large tiles: kernels of the copy engine.
const EXCHANGE_US: f64 = 1.5;

/// What strips of several slices cost more, in µs: the last block to finish one waits for the others' sums to be visible.
const QUEUE_SLICES_US: f64 = 2.2;

/// What bringing the pieces of tiles together costs at the end of a stream-K launch, with what each piece of a tile adds, and
/// what a block loses between pieces of two tiles: as parts of what a block takes beside its multiplications.
const STREAM_K_FINISH: f64 = 0.85;
const STREAM_K_PIECE: f64 = 0.027;
const STREAM_K_STRADDLE: f64 = 0.7;

/// What each operand that can only be read by single elements adds to the time of a tile, in units of that time, where
/// threads read the operands: 61 % of the rate are left at 4097³ with both.
const SINGLE_ELEMENTS: f64 = 0.3;

/// Shorter sums take four TF32 products instead of three: `kShortSum` in `cuda/tensor_core/split.cuh`.
const SHORT_SUM: usize = 384;

/// Operands of `problem` that the threads of a tiled kernel read element by element.
fn single_elements(spec: &KernelSpec, problem: &GemmProblem) -> usize {
    let streams = spec.needs.max_m != 0 || spec.needs.max_n != 0;
    if streams || spec.tma_boxes.is_some() {
        return 0;
    }
    let GemmProblem { m, n, k, dtype, .. } = *problem;
    let accesses = [problem.a.access(m, k, dtype), problem.b.access(k, n, dtype)];
    let single = |access: &&Access| !matches!(access, Access::RowVector | Access::ColVector);
    accesses.iter().filter(single).count()
}

/// The time of `problem` in µs with k cut in this way, in slices of `k_slice` if by a cluster; by arithmetic or by memory,
/// whichever is longer. Infinite for a kernel whose costs are unknown.
pub fn predict_us(spec: &KernelSpec, problem: &GemmProblem, device: &DeviceInfo, cut: Cut, k_slice: u32) -> f64 {
    let Some(cost) = spec.cost else {
        return f64::INFINITY;
    };
    let tile = spec.tile;
    let split_k = if let Cut::Cluster(slices) = cut { slices } else { 1 };
    let (split_us, share) = cluster(split_k);
    let slots = ((device.sm_count as f64 * share) as u32 / split_k * split_k).max(1) as usize;
    let blocks = spec.units(problem).saturating_mul(match spec.grid {
        Grid::Pairs(_) => 2,
        _ => split_k as usize,
    });

    let step_flops = 2.0 * tile.bm as f64 * tile.bn as f64 * tile.bk as f64;
    let flops = step_flops * (k_slice as f64 / tile.bk as f64).ceil();
    let slowed = 1.0 + SINGLE_ELEMENTS * single_elements(spec, problem) as f64;
    let products = match spec.arithmetic {
        Arithmetic::Tf32x3 if problem.k < SHORT_SUM => 4.0 / 3.0,
        _ => 1.0,
    };
    let peak = device.peak_flops_per_us(spec.arithmetic) / (slowed * products);
    // The time of a multiprocessor that works on so many blocks at once.
    let together = |blocks: f64| {
        let rate = peak * (cost.full as f64).min(cost.solo as f64 * blocks);
        cost.setup_us as f64 + blocks * flops / rate
    };
    let arithmetic_us = if let Cut::StreamK(way) = cut {
        let range_us = way.cut_steps.div_ceil(way.ranges) as f64 * step_flops / (peak * cost.full as f64);
        // What a range longer than a tile ends beside its last piece.
        let tiles = f64::from(way.share() / way.steps);
        let straddles = if way.straddles() { STREAM_K_STRADDLE } else { 0.0 };
        let pieces = f64::from(way.steps) / f64::from(way.share());
        let setups = 1.0 + tiles + STREAM_K_FINISH + STREAM_K_PIECE * pieces + straddles;
        f64::from(way.whole_tiles / way.blocks) * together(1.0) + range_us + setups * cost.setup_us as f64
    } else if let Cut::WorkQueue(queue) = cut {
        let waves = queue.blocks().div_ceil(device.sm_count.max(1));
        f64::from(waves) * f64::from(queue.strips) / f64::from(queue.members) * flops / (peak * cost.full as f64)
    } else {
        let wave = slots * cost.resident as usize;
        let rest = blocks % wave;
        let rest_us = if rest > 0 {
            together(rest.div_ceil(slots) as f64)
        } else {
            0.0
        };
        (blocks / wave) as f64 * together(cost.resident as f64) + rest_us
    };
    // GB/s to bytes/µs: 1e3.
    let memory_us = problem.min_bytes() / (device.memory_gbps as f64 * 1e3 * cost.stream as f64);
    let exchange_us = match spec.tma_boxes {
        Some(_) if split_k > 1 => EXCHANGE_US,
        _ => 0.0,
    };
    let launch_us = match spec.starts_early() && device.has_early_starts() {
        true => EARLY_LAUNCH_US,
        false => LAUNCH_US,
    };
    let pairs_us = match spec.grid {
        Grid::Pairs(_) => PAIRS_US,
        _ => 0.0,
    };
    let queue_us = match cut {
        Cut::WorkQueue(queue) if queue.slices > 1 => cost.setup_us as f64 + QUEUE_SLICES_US,
        Cut::WorkQueue(_) => cost.setup_us as f64,
        _ => 0.0,
    };
    launch_us + queue_us + split_us + pairs_us + exchange_us + arithmetic_us.max(memory_us)
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
