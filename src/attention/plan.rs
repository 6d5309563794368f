//! How it is done: which kernel, with which grid, and whether it is worth it. A pure function of problem and device, so that it can be
//! tested and printed on any machine.
//!
//! # When one kernel is taken
//!
//! Two products and a softmax write all scores, read and write them again, and read them once more; they are three kernels, each of which
//! takes some µs however little it does. But the products have tensor cores where precision allows, and cost models of their own. One
//! kernel of FP32 multiply-adds takes one start and leaves scores in the multiprocessor. So it wins where there is little to compute, and
//! loses where there is much. Both are estimated from what is known of the device, with the constants below.

use super::args::{AttentionArgs, AttentionOperand};
use super::kernels::{self, AttentionKernel, Shape, MOST_BLOCKS, THREADS};
use super::problem::{AttentionProblem, Views};
use super::refusal::Refusal;
use crate::device::DeviceInfo;
use crate::error::{Error, Result};
use std::fmt;

/// A product or a softmax of next to nothing in a CUDA graph, in µs: three of them take 8.8 in a step of a decoder and 9 in a layer of
/// MiniLM with 16 tokens, on an H200.
const SMALL_KERNEL_US: f64 = 2.9;

/// What the kernel for few queries takes before its first turn and after its last: start, one round trip to memory, the cluster's exchange.
const ROWS_START_US: f64 = 2.6;

/// A turn of it: what is left of a round trip to memory that was asked for a turn ago, and the arithmetic of one warp a scheduler.
const ROWS_TURN_US: f64 = 0.4;

/// Blocks of it that get on side by side on a multiprocessor as fast as one.
const ROWS_RESIDENT: f64 = 2.0;

/// What a tile takes before its first multiply-add and after its last.
const TILES_START_US: f64 = 2.2;

/// Share of the rate of FP32 multiply-adds that one block of four warps reaches: each scheduler has one warp, which waits for shared memory,
/// barriers and its own results.
const ALONE: f64 = 0.25;

/// Blocks on a multiprocessor that reach so many times that rate together.
const TOGETHER: f64 = 2.0;

/// Shared memory serves a warp's 16 bytes a lane of neighbouring rows in so many cycles, and what all lanes of a row share in one.
const CYCLES_OF_KEYS: usize = 2;

/// Share of the tensor cores' peak, or of that of FP32 multiply-adds, which small products reach.
const PRODUCTS: f64 = 0.35;
const FFMA_PRODUCTS: f64 = 0.6;

/// An FP32 product on tensor cores is three of TF32.
const TF32_PARTS: f64 = 3.0;

/// 16-bit tensor cores are so many times as fast as TF32's.
const HALF_RATE: f64 = 2.0;

/// Scores are written by the first product, read and written by the softmax, read by the second product.
const SCORE_PASSES: f64 = 4.0;

/// What the L2 holds comes so many times as fast as what is in memory.
const L2_SPEED: f64 = 1.2;

/// Everything a launch needs but addresses and the scale.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionPlan {
    /// What is computed.
    pub problem: AttentionProblem,
    /// The kernel.
    pub kernel: &'static AttentionKernel,
    /// Blocks of a cluster. The kernel is right with fewer, too, and then slower: any number that divides none of the work unequally.
    pub cluster: u32,
    /// Clusters in x.
    pub clusters: u32,
    /// What the launch is expected to take.
    pub predicted_us: f64,
}

impl AttentionPlan {
    /// The kernel that is expected to be fastest for `problem` on `device`, if it is expected to be faster than two products and a
    /// softmax.
    ///
    /// # Errors
    ///
    /// Why it is not taken.
    pub fn new(problem: &AttentionProblem, device: &DeviceInfo) -> std::result::Result<Self, Refusal> {
        let mut refused = None;
        let mut best: Option<AttentionPlan> = None;
        for kernel in kernels::TABLE {
            match Self::with(kernel, problem, device) {
                Ok(plan) if best.as_ref().is_none_or(|best| plan.predicted_us < best.predicted_us) => best = Some(plan),
                Ok(_) => {}
                // That of a kernel that comes nearer says more.
                Err(Refusal::KernelType { .. }) if refused.is_some() => {}
                Err(refusal) => refused = Some(refusal),
            }
        }
        let Some(plan) = best else {
            return Err(refused.unwrap_or(Refusal::TooLarge));
        };
        let products_us = products_us(problem, device);
        match plan.predicted_us < products_us {
            true => Ok(plan),
            false => Err(Refusal::Slower {
                kernel: plan.kernel.name,
                us: plan.predicted_us,
                products_us,
            }),
        }
    }

    /// The kernel of this name, whether or not it is a good choice.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownKernel`], and [`Error::Refused`] with the reason if this kernel cannot take the problem.
    pub fn named(name: &str, problem: &AttentionProblem, device: &DeviceInfo) -> Result<Self> {
        let kernel = kernels::find(name)?;
        Self::with(kernel, problem, device).map_err(|refusal| Error::Refused {
            kernel: kernel.name,
            reason: refusal.to_string(),
        })
    }

    fn with(
        kernel: &'static AttentionKernel,
        problem: &AttentionProblem,
        device: &DeviceInfo,
    ) -> std::result::Result<Self, Refusal> {
        if let Some(refusal) = kernel.refusal(problem, device) {
            return Err(refusal);
        }
        let heads = problem.heads();
        let (cluster, clusters) = match kernel.shape {
            Shape::Rows { .. } => (cluster_of(kernel, problem, device), heads),
            Shape::Tiles { queries, .. } => (1, heads * problem.queries.div_ceil(queries)),
        };
        // The numbers of blocks and threads are ints.
        if clusters > i32::MAX as usize / MOST_BLOCKS as usize {
            return Err(Refusal::TooLarge);
        }
        let mut plan = AttentionPlan {
            problem: *problem,
            kernel,
            cluster,
            clusters: clusters as u32,
            predicted_us: 0.0,
        };
        plan.predicted_us = plan.predict(device);
        Ok(plan)
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        THREADS
    }

    fn predict(&self, device: &DeviceInfo) -> f64 {
        let (problem, kernel) = (&self.problem, self.kernel);
        let blocks_each = (f64::from(self.clusters) * f64::from(self.cluster) / f64::from(device.sm_count)).ceil();
        let memory_us = problem.bytes() / bytes_a_us(problem.bytes(), device);
        match kernel.shape {
            Shape::Rows { .. } => {
                let turns = problem.keys.div_ceil(kernel.block_keys() * self.cluster as usize) as f64;
                let turns_us = turns * ROWS_TURN_US * (blocks_each / ROWS_RESIDENT).max(1.0);
                ROWS_START_US + turns_us.max(memory_us)
            }
            Shape::Tiles { queries, keys } => {
                const ROW_THREADS: usize = 8;
                const COLUMN_THREADS: usize = 16;
                const VECTOR: usize = 4;
                const WARPS: usize = 4;
                let (tm, tn) = (queries / ROW_THREADS, keys / COLUMN_THREADS);
                // Multiply-adds of a vector of columns, one a cycle and scheduler, and what they read.
                let cycles = (VECTOR * tm * tn).max(WARPS * (tm + CYCLES_OF_KEYS * tn));
                let steps = problem.keys.div_ceil(keys);
                // As many vectors of columns for scores as of keys' columns for values.
                let vectors = (2 * kernel.max_width / VECTOR) as f64;
                let lanes = f64::from(device.fp32_lanes()) / THREADS as f64;
                let block_us = steps as f64 * vectors * cycles as f64 / (lanes * ALONE * f64::from(device.clock_mhz));
                TILES_START_US + (block_us * (blocks_each / TOGETHER).max(1.0)).max(memory_us)
            }
        }
    }

    /// The kernel's argument, with the addresses of the operands' first elements; 0 for a mask that is absent.
    pub fn args(&self, at: &Views<u64>, scale: f32) -> AttentionArgs {
        let problem = &self.problem;
        let [outer, inner] = problem.batch;
        let operand = |of: fn(&Views<i64>) -> i64, data: u64| AttentionOperand {
            data,
            row_stride: of(&problem.rows),
            head_stride: of(&inner.strides),
            batch_stride: of(&outer.strides),
        };
        AttentionArgs {
            query: operand(|of| of.query, at.query),
            key: operand(|of| of.key, at.key),
            value: operand(|of| of.value, at.value),
            mask: operand(|of| of.mask, if problem.mask_key.is_some() { at.mask } else { 0 }),
            out: operand(|of| of.out, at.out),
            mask_key_stride: problem.mask_key.unwrap_or(0),
            heads: inner.extent as i32,
            queries: problem.queries as i32,
            keys: problem.keys as i32,
            width: problem.width as i32,
            value_width: problem.value_width as i32,
            scale,
        }
    }
}

/// Blocks of a cluster: as many as have keys and find a multiprocessor.
fn cluster_of(kernel: &AttentionKernel, problem: &AttentionProblem, device: &DeviceInfo) -> u32 {
    if !device.has_clusters() {
        return 1;
    }
    let turns = problem.keys.div_ceil(kernel.block_keys());
    let room = device.sm_count as usize / problem.heads();
    let most = turns.min(room).clamp(1, MOST_BLOCKS as usize) as u32;
    // As few as have no turn more than the most would.
    let turns_with = |blocks: u32| turns.div_ceil(blocks as usize);
    let sizes = [1, 2, 4, MOST_BLOCKS]
        .into_iter()
        .filter(|&blocks| blocks <= most.next_power_of_two());
    sizes.min_by_key(|&blocks| (turns_with(blocks), blocks)).unwrap_or(1)
}

/// Bytes that arrive in a µs, out of a working set of so many.
fn bytes_a_us(working_set: f64, device: &DeviceInfo) -> f64 {
    const BYTES_A_US: f64 = 1e3; // a GB/s
    let speed = if working_set < device.l2_bytes as f64 {
        L2_SPEED
    } else {
        1.0
    };
    f64::from(device.memory_gbps) * BYTES_A_US * speed
}

/// What two products and a softmax are expected to take.
pub fn products_us(problem: &AttentionProblem, device: &DeviceInfo) -> f64 {
    const CLOCKS_A_US: f64 = 1.0; // a MHz
    let tf32 = f64::from(device.tf32_flops_per_clock())
        * f64::from(device.sm_count)
        * f64::from(device.clock_mhz)
        * CLOCKS_A_US;
    const FLOPS_A_US: f64 = 1e6; // a TFLOP/s
    let ffma = device.fp32_peak_tflops() * FLOPS_A_US * FFMA_PRODUCTS;
    let rate = match problem.dtype.is_16_bit() {
        true => tf32 * HALF_RATE * PRODUCTS,
        false => (tf32 / TF32_PARTS * PRODUCTS).max(ffma),
    };
    let scores = problem.score_bytes();
    let moved =
        problem.bytes() / bytes_a_us(problem.bytes(), device) + SCORE_PASSES * scores / bytes_a_us(scores, device);
    3.0 * SMALL_KERNEL_US + moved + problem.flops() / rate
}

impl fmt::Display for AttentionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttentionPlan {
            problem,
            kernel,
            cluster,
            clusters,
            predicted_us,
        } = self;
        write!(f, "{} ({clusters} ", kernel.name)?;
        match cluster {
            1 => write!(f, "blocks")?,
            _ => write!(f, "clusters of {cluster} blocks")?,
        }
        write!(f, ", about {predicted_us:.1} µs) for {problem}")
    }
}
