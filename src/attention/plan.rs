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
use super::problem::AttentionProblem;
use super::refusal::Refusal;
use super::views::Views;
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
    /// Blocks of a cluster, a power of two. The kernel is right with fewer, too.
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

    pub(super) fn with(
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

#[cfg(test)]
mod tests {
    use super::super::problem::Described;
    use super::super::TABLE;
    use super::*;
    use crate::gemm::operands::DType;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn dense(dims: &[usize]) -> Vec<usize> {
        let mut strides = vec![1; dims.len()];
        for i in (1..dims.len()).rev() {
            strides[i - 1] = strides[i] * dims[i];
        }
        strides
    }

    fn described<'a>(dims: &'a [usize], strides: &'a [usize], dtype: DType) -> Described<'a> {
        Described {
            dims,
            strides,
            dtype: Some(dtype),
            align: 16,
        }
    }

    /// Dense operands: batch dimensions of queries and of keys, then queries, keys and width.
    fn problem(q: &[usize], k: &[usize], [queries, keys, width]: [usize; 3], dtype: DType) -> AttentionProblem {
        let (q, k) = ([q, &[queries, width]].concat(), [k, &[keys, width]].concat());
        let (q_strides, k_strides) = (dense(&q), dense(&k));
        let (query, key) = (described(&q, &q_strides, dtype), described(&k, &k_strides, dtype));
        AttentionProblem::new(&query, &key, &key, None).unwrap()
    }

    fn plan(problem: &AttentionProblem) -> std::result::Result<AttentionPlan, Refusal> {
        AttentionPlan::new(problem, &DeviceInfo::H200)
    }

    #[test]
    fn heads_that_share_keys_are_queries_of_one() {
        for dtype in [DType::F32, DType::BF16] {
            let step = problem(&[8, 4], &[8, 1], [1, 256, 64], dtype);
            assert_eq!((step.heads(), step.queries), (8, 4));
            assert_eq!((step.rows.query, step.rows.key, step.rows.out), (64, 64, 64));
            let plan = plan(&step).unwrap();
            assert!(matches!(plan.kernel.shape, Shape::Rows { queries: 4, .. }), "{plan}");
            assert!(
                plan.clusters * plan.cluster >= 32,
                "{plan}: too few multiprocessors work"
            );
        }
        // With more queries the result of heads and queries is not walked with one stride.
        let prefill = problem(&[8, 4], &[8, 1], [16, 256, 64], DType::F32);
        assert_eq!((prefill.heads(), prefill.queries), (32, 16));
        assert_eq!(
            prefill.batch.map(|axis| (axis.extent, axis.strides.key)),
            [(8, 256 * 64), (4, 0)]
        );
    }

    #[test]
    fn views_of_more_rows_than_can_be_counted_are_refused() {
        let many = 1 << 29;
        let key = [1, 4, 64];
        let key = (&key, dense(&key));
        let key = described(key.0, &key.1, DType::F32);
        for dims in [vec![many, many, 64], vec![many, many, many, 64]] {
            let shared = [vec![0; dims.len() - 1], vec![1]].concat();
            let query = described(&dims, &shared, DType::F32);
            let refused = AttentionProblem::new(&query, &key, &key, None);
            assert_eq!(refused, Err(Refusal::TooLarge), "{dims:?}");
        }
    }

    #[test]
    fn little_attention_is_one_kernel_and_much_is_three() {
        let taken = |heads: usize, sizes: [usize; 3], dtype| plan(&problem(&[heads], &[heads], sizes, dtype));
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            // A step of a decoder, short texts, some dozens of them.
            for (heads, sizes) in [
                (8, [4, 4096, 64]),
                (8, [1, 448, 64]),
                (32, [1, 1024, 128]),
                (12, [16, 16, 32]),
            ] {
                let plan = taken(heads, sizes, dtype).unwrap_or_else(|refusal| panic!("{sizes:?} {dtype}: {refusal}"));
                assert!(plan.predicted_us < products_us(&plan.problem, &DeviceInfo::H200));
            }
            for (heads, sizes) in [(12, [2048, 2048, 64]), (96, [1024, 1024, 64]), (32, [512, 512, 128])] {
                match taken(heads, sizes, dtype) {
                    Err(Refusal::Slower { us, products_us, .. }) => assert!(us > products_us),
                    other => panic!("{sizes:?} {dtype}: {other:?}"),
                }
            }
        }
        for sizes in [[128, 128, 32], [128, 128, 64]] {
            let plan = taken(96, sizes, DType::F32).unwrap();
            assert!(
                matches!(plan.kernel.shape, Shape::Tiles { queries: 32.., .. }),
                "{plan}"
            );
        }
        let text = taken(12, [16, 16, 32], DType::F32).unwrap().to_string();
        assert!(
            text.contains("attention_tiles_f32_16x32_w32") && text.contains("12 heads of 16 queries"),
            "{text}"
        );
    }

    #[test]
    fn every_row_is_taken_for_something() {
        let mut rng = StdRng::seed_from_u64(4);
        let mut taken = std::collections::BTreeSet::new();
        for _ in 0..20_000 {
            let kernel = &TABLE[rng.random_range(0..TABLE.len())];
            let size = |rng: &mut StdRng, most: f64| rng.random_range(0.0..most.ln()).exp() as usize;
            let queries = if rng.random() {
                rng.random_range(1..9)
            } else {
                size(&mut rng, 600.0)
            };
            let sizes = [queries, size(&mut rng, 4000.0), kernel.max_width];
            let heads = size(&mut rng, 400.0);
            if let Ok(plan) = plan(&problem(&[heads], &[heads], sizes, kernel.dtype)) {
                assert!(plan.problem.keys >= 1 && plan.predicted_us.is_finite());
                taken.insert(plan.kernel.name);
            }
        }
        let never: Vec<_> = TABLE
            .iter()
            .map(|kernel| kernel.name)
            .filter(|name| !taken.contains(name))
            .collect();
        assert!(never.is_empty(), "never taken: {never:?}");
    }

    #[test]
    fn clusters_need_their_code_and_keys_for_every_block() {
        let step = problem(&[8], &[8], [4, 256, 64], DType::F32);
        let named = |device| AttentionPlan::named("attention_rows_f32_q4_w64", &step, device).unwrap();
        assert_eq!(named(&DeviceInfo::H200).cluster, 8);
        assert_eq!(named(&DeviceInfo::A100).cluster, 1);
        let from_ptx = DeviceInfo {
            code_capability: 80,
            ..DeviceInfo::H200
        };
        assert_eq!(named(&from_ptx).cluster, 1);
        // Where heads fill the device, blocks of one head would only wait for each other.
        let many = problem(&[256], &[256], [4, 256, 64], DType::F32);
        assert_eq!(
            AttentionPlan::named("attention_rows_f32_q4_w64", &many, &DeviceInfo::H200)
                .unwrap()
                .cluster,
            1
        );
        let short = problem(&[8], &[8], [4, 9, 64], DType::F32);
        assert_eq!(
            AttentionPlan::named("attention_rows_f32_q4_w64", &short, &DeviceInfo::H200)
                .unwrap()
                .cluster,
            1
        );
    }

    #[test]
    fn what_no_kernel_takes_is_refused_with_the_reason() {
        let refused = |query: &Described, key: &Described, mask: Option<&Described>| {
            let problem = AttentionProblem::new(query, key, key, mask);
            problem.and_then(|problem| plan(&problem)).unwrap_err()
        };
        let (dims, of_keys) = ([2, 3, 5, 64], [2, 3, 7, 64]);
        let (strides, key_strides) = (dense(&dims), dense(&of_keys));
        let (query, key) = (
            described(&dims, &strides, DType::F32),
            described(&of_keys, &key_strides, DType::F32),
        );
        let half = Described {
            dtype: Some(DType::F16),
            ..query
        };
        assert!(matches!(refused(&half, &key, None), Refusal::Types { .. }));
        let odd = Described { align: 4, ..query };
        assert_eq!(refused(&odd, &key, None), Refusal::Unaligned { operand: "queries" });
        let shifted = [64 * 15, 64 * 5, 66, 1];
        let rows = Described {
            strides: &shifted,
            ..query
        };
        assert_eq!(refused(&rows, &key, None), Refusal::Unaligned { operand: "queries" });
        let turned = [64 * 15, 64 * 5, 1, 5];
        let columns = Described {
            strides: &turned,
            ..query
        };
        assert_eq!(
            refused(&columns, &key, None),
            Refusal::Gaps {
                operand: "queries",
                stride: 5
            }
        );
        let mask_dims = [2, 3, 5, 8];
        let mask_strides = dense(&mask_dims);
        let mask = described(&mask_dims, &mask_strides, DType::F32);
        assert_eq!(refused(&query, &key, Some(&mask)), Refusal::Shapes);
        let empty = [2, 3, 0, 64];
        assert_eq!(
            refused(&Described { dims: &empty, ..query }, &key, None),
            Refusal::Empty
        );
        let wide = [2, 3, 5, 256];
        let wide_strides = dense(&wide);
        let wide = described(&wide, &wide_strides, DType::F32);
        assert!(matches!(
            refused(&wide, &wide, None),
            Refusal::Width { most: 128, width: 256 }
        ));
        let ragged = [2, 3, 5, 6];
        let ragged_strides = dense(&ragged);
        let ragged = described(&ragged, &ragged_strides, DType::F32);
        assert!(matches!(
            refused(&ragged, &ragged, None),
            Refusal::RaggedWidth { vector: 4, .. }
        ));
        // Three batch dimensions with gaps between them, which no two strides walk.
        let many = [2, 3, 4, 5, 64];
        let gaps = [100_000, 20_000, 1000, 64, 1];
        let many = described(&many, &gaps, DType::F32);
        assert_eq!(refused(&many, &many, None), Refusal::BatchDims { dims: 3 });
        let Err(Error::Refused { reason, .. }) = AttentionPlan::named(
            "attention_rows_f32_q4_w64",
            &problem(&[8], &[8], [5, 9, 64], DType::F32),
            &DeviceInfo::H200,
        ) else {
            panic!("five queries are more than four")
        };
        assert_eq!(reason, "a head has at most 4 queries, and here 5");
    }

    /// The strides of the argument walk the elements that the tensors' own strides do.
    #[test]
    fn arguments_walk_the_operands() {
        let mut rng = StdRng::seed_from_u64(8);
        for _ in 0..300 {
            let batch: Vec<usize> = (0..rng.random_range(1..4)).map(|_| rng.random_range(1..4)).collect();
            let (queries, keys, width) = (
                rng.random_range(1..4),
                rng.random_range(1..5),
                4 * rng.random_range(1..4),
            );
            let mut of_keys = batch.clone();
            for extent in &mut of_keys {
                *extent = if rng.random() { 1 } else { *extent };
            }
            let q = [&batch[..], &[queries, width]].concat();
            let k = [&of_keys[..], &[keys, width]].concat();
            let m = [&of_keys[..], &[queries, keys]].concat();
            let (qs, ks, ms) = (dense(&q), dense(&k), dense(&m));
            let [query, key, mask] =
                [(&q, &qs), (&k, &ks), (&m, &ms)].map(|(dims, strides)| described(dims, strides, DType::F32));
            let Ok(problem) = AttentionProblem::new(&query, &key, &key, Some(&mask)) else {
                continue;
            };
            let Ok(plan) = AttentionPlan::named("attention_tiles_f32_16x32_w32", &problem, &DeviceInfo::A100) else {
                panic!("it takes everything of this width")
            };
            let args = plan.args(
                &Views {
                    mask: 16,
                    ..Views::default()
                },
                1.0,
            );
            // Every (head, query, key) of the problem, in order, and where the kernel finds it.
            let place = |operand: &AttentionOperand, batch: i64, head: i64, row: i64| {
                batch * operand.batch_stride + head * operand.head_stride + row * operand.row_stride
            };
            let mut found = Vec::new();
            for b in 0..problem.batch[0].extent as i64 {
                for h in 0..i64::from(args.heads) {
                    for row in 0..i64::from(args.queries) {
                        for key in 0..i64::from(args.keys) {
                            found.push([
                                place(&args.query, b, h, row),
                                place(&args.key, b, h, key),
                                place(&args.mask, b, h, row) + key * args.mask_key_stride,
                                place(&args.out, b, h, row),
                            ]);
                        }
                    }
                }
            }
            let mut expected = Vec::new();
            let heads = batch[batch.len() - 1];
            for index in 0..batch.iter().product::<usize>() {
                let walk = |dims: &[usize], strides: &[usize]| {
                    let (mut rest, mut at) = (index, 0);
                    for i in (0..batch.len()).rev() {
                        at += if dims[i] == 1 { 0 } else { rest % batch[i] * strides[i] };
                        rest /= batch[i];
                    }
                    at
                };
                for row in 0..queries {
                    for key in 0..keys {
                        let out = ((index / heads * queries + row) * heads + index % heads) * width;
                        let one = |n: usize, i: usize| if n == 1 { 0 } else { i };
                        let of_mask = walk(&m, &ms) + one(queries, row) * keys + one(keys, key);
                        let at = [walk(&q, &qs) + row * width, walk(&k, &ks) + key * width, of_mask, out];
                        expected.push(at.map(|at| at as i64));
                    }
                }
            }
            assert_eq!(found, expected, "{problem:?}");
        }
    }
}
