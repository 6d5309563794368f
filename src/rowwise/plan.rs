//! Which kernel, and how many blocks.

use super::args::RowwiseArgs;
use super::kernels::{self, Reading, RowwiseKernel, WARP};
use super::problem::{Operation, RowwiseProblem};
use crate::device::DeviceInfo;
use std::fmt;

/// From the end of the kernel before to the first instructions, and from the last ones to the end, in µs.
const START_US: f64 = 1.0;

/// A trip to memory, in µs.
const TRIP_US: f64 = 0.6;

/// What each piece of a row adds to a thread's chain, in µs.
const PIECE_US: f64 = 0.02;

/// A sum over the warps of a block, in µs.
const BARRIER_US: f64 = 0.04;

/// What it takes more that the blocks of a row wait for each other, in µs.
const CLUSTER_US: f64 = 0.3;

/// Bytes that a multiprocessor gets from the L2 in a clock.
const FETCHED_IN_A_CLOCK: f64 = 64.0;

/// Clocks in which a multiprocessor compares what a warp has of a piece: some 20 instructions, of which four start in a clock.
const CLOCKS_OF_A_PIECE: f64 = 5.0;

/// Threads of a multiprocessor whose registers hold rows at a time.
const RESIDENT_THREADS: f64 = 1024.0;

/// Everything a launch needs but addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowwisePlan {
    /// What is computed.
    pub problem: RowwiseProblem,
    /// The kernel.
    pub kernel: &'static RowwiseKernel,
    /// Blocks in x.
    pub blocks: u32,
    /// Blocks that share a row, as a cluster. The kernel is right with any other number up to the most, too.
    pub cluster: u32,
    /// What the launch is expected to take.
    pub predicted_us: f64,
}

impl RowwisePlan {
    /// The kernel that is expected to be fastest for `problem` on `device`, if one takes it.
    pub fn new(problem: &RowwiseProblem, device: &DeviceInfo) -> Option<Self> {
        let plans = kernels::all().filter_map(|kernel| Self::with(kernel, problem, device));
        plans.min_by(|a, b| a.predicted_us.total_cmp(&b.predicted_us))
    }

    /// `problem` by this kernel, if it takes it, with as many blocks a row as are expected to be fastest.
    pub fn with(kernel: &'static RowwiseKernel, problem: &RowwiseProblem, device: &DeviceInfo) -> Option<Self> {
        let plans = kernel.clusters(device).iter();
        let plans = plans.filter_map(|&cluster| Self::with_cluster(kernel, problem, cluster, device));
        plans.min_by(|a, b| a.predicted_us.total_cmp(&b.predicted_us))
    }

    /// The same with so many blocks a row, if it has clusters of that size.
    pub fn with_cluster(
        kernel: &'static RowwiseKernel,
        problem: &RowwiseProblem,
        cluster: u32,
        device: &DeviceInfo,
    ) -> Option<Self> {
        if !kernel.clusters(device).contains(&cluster) || !kernel.takes(problem, device) {
            return None;
        }
        // Rows and blocks are counted in 32 bits with a sign.
        let blocks = problem.rows.div_ceil(kernel.block_rows() as usize);
        let blocks = i32::try_from(blocks).ok()?.checked_mul(cluster as i32)?;
        i32::try_from(problem.rows).ok()?;
        let plan = RowwisePlan {
            problem: *problem,
            kernel,
            blocks: blocks as u32,
            cluster,
            predicted_us: 0.0,
        };
        Some(RowwisePlan {
            predicted_us: plan.predict(device),
            ..plan
        })
    }

    /// The kernel's argument, with the addresses of the first elements; 0 for what is absent.
    pub fn args(&self, [x, y, weight, bias]: [u64; 4], epsilon: f32) -> RowwiseArgs {
        let RowwiseProblem {
            operation,
            rows,
            width,
            x_stride,
            ..
        } = self.problem;
        RowwiseArgs {
            x,
            y,
            weight,
            bias,
            x_stride: x_stride as i64,
            y_stride: operation.result_width(width) as i64,
            rows: rows as i32,
            width: width as i32,
            epsilon,
            centered: i32::from(operation == Operation::LayerNorm),
        }
    }

    fn predict(&self, device: &DeviceInfo) -> f64 {
        const BYTES_A_US: f64 = 1e3; // a GB/s
        let (kernel, problem) = (self.kernel, &self.problem);
        let reductions = match problem.operation {
            Operation::RmsNorm | Operation::Argmax => 1.0,
            Operation::LayerNorm | Operation::Softmax => 2.0,
        };
        let barriers = if kernel.block_rows() == 1 { reductions } else { 0.0 };
        let row_us = barriers * BARRIER_US
            + match kernel.reading {
                Reading::Vectors | Reading::Elements => {
                    let pieces = problem.width.div_ceil(kernel.threads as usize * kernel.piece());
                    TRIP_US + pieces as f64 * PIECE_US
                }
                Reading::Turns => self.turns_us(device),
            };
        let resident = (RESIDENT_THREADS / f64::from(kernel.block())).floor() * f64::from(device.sm_count);
        // Blocks begin one by one as others end.
        let rounds = (f64::from(self.blocks) / resident).max(1.0);
        let memory_us = problem.bytes() / (f64::from(device.memory_gbps) * BYTES_A_US);
        START_US + (rounds * row_us).max(memory_us)
    }

    /// What a row takes that comes in turns.
    fn turns_us(&self, device: &DeviceInfo) -> f64 {
        let (kernel, problem) = (self.kernel, &self.problem);
        let turns = problem.width.div_ceil(kernel.turn() * self.cluster as usize) as f64;
        // Of the rows of a block.
        let rows = problem.rows.min(kernel.block_rows() as usize) as f64;
        let bytes = rows * (problem.width * problem.dtype.size()) as f64 / f64::from(self.cluster);
        let pieces = rows * f64::from(kernel.threads / WARP * kernel.pieces);
        let clocks = bytes / FETCHED_IN_A_CLOCK + turns * pieces * CLOCKS_OF_A_PIECE;
        let cluster_us = if self.cluster > 1 { CLUSTER_US } else { 0.0 };
        turns * TRIP_US + clocks / f64::from(device.clock_mhz) + cluster_us
    }
}

impl fmt::Display for RowwisePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RowwisePlan {
            problem,
            kernel,
            blocks,
            cluster,
            predicted_us,
        } = self;
        write!(f, "{} ({blocks} blocks, ", kernel.name)?;
        if *cluster > 1 {
            write!(f, "{cluster} a row, ")?;
        }
        write!(f, "about {predicted_us:.1} µs) for {problem}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::operands::DType;
    use std::collections::BTreeSet;

    fn plan(operation: Operation, dtype: DType, rows: usize, width: usize) -> Option<RowwisePlan> {
        let problem = RowwiseProblem::new(operation, dtype, &[rows, width], &[width, 1], 16).unwrap();
        RowwisePlan::new(&problem, &DeviceInfo::H200)
    }

    #[test]
    fn few_rows_have_many_threads_and_many_rows_have_few() {
        let threads = |rows, width| {
            let plan = plan(Operation::LayerNorm, DType::F32, rows, width).unwrap();
            (plan.kernel.threads, plan.kernel.pieces)
        };
        assert_eq!(threads(1, 2048), (512, 1));
        assert_eq!(threads(16, 384), (32, 4));
        assert_eq!(threads(100_000, 384), (32, 4));
        assert_eq!(threads(12_000, 1500), (128, 4));
        assert_eq!(threads(1000, 197), (128, 8));
    }

    #[test]
    fn every_row_is_taken_for_something() {
        let operations = [
            Operation::LayerNorm,
            Operation::RmsNorm,
            Operation::Softmax,
            Operation::Argmax,
        ];
        let mut taken = BTreeSet::new();
        for operation in operations {
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                for rows in [1, 16, 100, 1000, 10_000, 100_000] {
                    let vocabularies = [32_000, 50_257, 128_256, 262_144];
                    for width in (1..200).chain((200..20_000).step_by(100)).chain(vocabularies) {
                        taken.extend(plan(operation, dtype, rows, width).map(|plan| plan.kernel.name));
                    }
                }
            }
        }
        let never: Vec<_> = kernels::all().filter(|kernel| !taken.contains(kernel.name)).collect();
        assert!(never.is_empty(), "never taken: {never:?}");
    }

    #[test]
    fn what_no_kernel_takes_is_none() {
        assert!(plan(Operation::Softmax, DType::F32, 1, 8192).is_some());
        assert!(plan(Operation::Softmax, DType::F32, 1, 8196).is_none());
        assert!(plan(Operation::Softmax, DType::F32, 1, 4097).is_none());
        assert!(plan(Operation::Softmax, DType::F64, 1, 8).is_none());
        assert!(plan(Operation::Argmax, DType::F64, 1, 8).is_none());
        assert!(plan(Operation::Argmax, DType::F32, 1, 1 << 30).is_some());
        assert!(plan(Operation::Argmax, DType::F32, 1, (1 << 30) + 1).is_none());
        let problem = RowwiseProblem::new(Operation::Softmax, DType::F32, &[4, 8], &[8, 1], 16).unwrap();
        let old = DeviceInfo {
            code_capability: 75,
            ..DeviceInfo::H200
        };
        assert!(RowwisePlan::new(&problem, &old).is_none());
    }

    #[test]
    fn a_long_row_has_a_cluster_and_many_rows_have_none() {
        let shape = |rows, width| {
            let plan = plan(Operation::Argmax, DType::F32, rows, width).unwrap();
            (plan.kernel.threads, plan.cluster, plan.blocks)
        };
        // One trip to memory.
        assert_eq!(shape(1, 32_000), (256, 8, 8));
        assert_eq!(shape(1, 128_256), (512, 8, 8));
        assert_eq!(shape(2, 262_144), (512, 8, 16));
        assert_eq!(shape(1, 1000), (32, 1, 1));
        assert_eq!(shape(10_000, 10), (32, 1, 2500));
        assert_eq!(shape(4096, 50_257).1, 1);
        let problem = RowwiseProblem::new(Operation::Argmax, DType::BF16, &[1, 32_000], &[32_000, 1], 2).unwrap();
        let on = |device: &DeviceInfo| RowwisePlan::new(&problem, device).unwrap();
        assert_eq!(on(&DeviceInfo::A100).cluster, 1);
        let on_hopper = on(&DeviceInfo::H200);
        assert!(on_hopper.to_string().contains("8 a row"), "{on_hopper}");
        assert_eq!(on_hopper.args([1, 2, 0, 0], 0.0).y_stride, 1);
        assert!(RowwisePlan::with_cluster(on_hopper.kernel, &problem, 3, &DeviceInfo::H200).is_none());
    }

    #[test]
    fn arguments_say_what_the_plan_says() {
        let problem = RowwiseProblem::new(Operation::LayerNorm, DType::F32, &[3, 8], &[12, 1], 16).unwrap();
        let plan = RowwisePlan::new(&problem, &DeviceInfo::H200).unwrap();
        let args = plan.args([1, 2, 3, 4], 0.5);
        assert_eq!((args.x, args.y, args.weight, args.bias), (1, 2, 3, 4));
        assert_eq!((args.x_stride, args.y_stride, args.rows, args.width), (12, 8, 3, 8));
        assert_eq!((args.epsilon, args.centered), (0.5, 1));
        assert!(plan.to_string().contains("layer norm of 3 rows of 8, f32"), "{plan}");
    }
}
