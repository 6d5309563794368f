//! How it is done: which kernel, with which grid. A pure function of problem and device, so that it can be tested and
//! printed on any machine.

use super::prepare::{self, Repacks};
use super::work::Work;
use crate::device::DeviceInfo;
use crate::gemm::kernel::costs::Costs;
use crate::gemm::kernel::spec::{Arithmetic, Grid, KernelSpec};
use crate::gemm::problem::{FoldedProblem, GemmProblem, MAX_OVERSHOOT};
use crate::gemm::schedule::cut::Cut;
use crate::gemm::schedule::parallel::{self, Reduction};
use crate::gemm::schedule::stream_k::StreamK;
use std::fmt;

/// CUDA's limit for the y and z dimensions of a grid; kernels loop over what lies beyond.
pub(super) const MAX_GRID_YZ: usize = 65_535;
const _: () = assert!(MAX_GRID_YZ <= MAX_OVERSHOOT, "a block's next matrix is so much further");

/// Rows of tiles that kernels which choose their own tiles walk together, so that blocks that run at the same time share
/// B in the L2.
pub(super) const GROUP_M: u32 = 8;

/// One of so many clusters may stay idle, so that all others have as many tiles each. 4096³ has 256 units for 66 clusters: four each for
/// 64 of them take no longer.
const FEW_CLUSTERS: u32 = 16;

/// Results with no more rows and columns can be the sums of many more products each, as gradients of weights are, and several
/// ways to share those out are about as fast. There the planner trades a little time for a smaller error, which grows with the
/// square root of the accumulation depth.
const SMALL_RESULT: usize = 1024;

/// Chains of FP32 multiply-adds need be no shorter.
const SHALLOW_DEPTH: f64 = 512.0;

/// The time that half as long a chain may cost in a small result: log₂ of 1.05.
const DEPTH_EXPONENT: f64 = 0.0704;

/// How much longer a plan counts as than is predicted for each operand that it repacks. Of two plans that are about as fast, the one that does more
/// is wrong by more: on an H200 choices among 1119 drawn BF16 products lose 3.15 % with it in place of 3.25, and FP32's 1.37 in place of 1.36.
const REPACK: f64 = 1.02;
/// The same of a plan in 16 bits whose pieces of tiles meet in the workspace. Of 1072 BF16 products drawn on an H200 five are chosen otherwise,
/// which then take 3.5 % less; with twice as much what is gained is lost again. In FP32 choices are no better for it.
pub(super) const PIECES: f64 = 1.005;

/// Clusters for so many units of work, where `most` fit on the device. Every cluster has as many units where no more than a few
/// multiprocessors stay idle for that: then clusters that share operands in the L2 remain in step.
pub(super) fn clusters_in_step(units: u32, most: u32) -> u32 {
    let even = units.div_ceil(units.div_ceil(most));
    if even >= most - most / FEW_CLUSTERS {
        even
    } else {
        units.min(most)
    }
}

/// A kernel and everything its launch needs but the addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// The kernel.
    pub kernel: &'static KernelSpec,
    /// Whether it was asked for by name, so that no other may take its place.
    pub by_name: bool,
    /// The problem as the kernel gets it: folded, with the layouts of operands that are repacked.
    pub problem: FoldedProblem,
    /// Operands that are repacked, into the workspace, before the kernel starts.
    pub repacks: Repacks,
    /// The problem that was asked for, with operands in place.
    pub asked: FoldedProblem,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// How k is cut.
    pub cut: Cut,
    /// Rows of tiles that are walked together.
    pub group_m: u32,
    /// Bytes of stream-ordered scratch memory.
    pub workspace_bytes: usize,
    /// What the cost model expects, in µs; it decides between kernels (in small results together with the error) and is no
    /// promise. Infinite for a kernel whose costs are unknown.
    pub predicted_us: f64,
}

/// What a kernel is given: the problem that was asked for, or the same product with operands repacked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub asked: FoldedProblem,
    /// As the kernel sees it.
    pub problem: FoldedProblem,
    pub repacks: Repacks,
}

impl Way {
    /// Operands in place.
    pub fn in_place(problem: FoldedProblem) -> Self {
        Way {
            asked: problem,
            problem,
            repacks: [None; 2],
        }
    }
}

impl Plan {
    /// The same, its kernel asked for by name.
    pub(super) fn asked_for(self) -> Self {
        Plan { by_name: true, ..self }
    }

    pub(super) fn with(
        spec: &'static KernelSpec,
        Way {
            asked,
            problem,
            mut repacks,
        }: Way,
        device: &DeviceInfo,
        costs: &Costs,
        cut: Cut,
    ) -> Self {
        let [tiles_m, tiles_n] = spec.tiles(&problem);
        let units = spec.units(&problem) as u32;
        let sms = device.sm_count.max(1);
        let grid = match (spec.grid, cut) {
            (Grid::Clusters(_), Cut::StreamK(way)) => [2 * way.blocks, 1, 1],
            (_, Cut::StreamK(way)) => [way.blocks, 1, 1],
            (_, Cut::WorkQueue(queue)) => [queue.blocks(), 1, 1],
            (_, Cut::Parallel(slices)) => [units, slices, 1],
            (Grid::Tiles, _) => [
                tiles_n as u32,
                tiles_m.min(MAX_GRID_YZ) as u32,
                problem.batch().min(MAX_GRID_YZ) as u32,
            ],
            (Grid::Units | Grid::Persistent, Cut::Cluster(slices)) => [units * slices, 1, 1],
            (Grid::Units, _) => [units, 1, 1],
            (Grid::Persistent, _) => [units.min(sms * spec.blocks_per_multiprocessor), 1, 1],
            (Grid::Clusters(_), _) => [2 * clusters_in_step(units, spec.workers(sms)), 1, 1],
        };
        let outputs = (spec.tile.bm * spec.tile.bn) as usize;
        // The workspace has the kernel's own part first, then the operands that are repacked.
        let mut workspace_bytes = match cut {
            Cut::StreamK(way) => match spec.grid {
                Grid::Clusters(_) => way.workspace_bytes_of_owners(2 * outputs),
                _ => way.workspace_bytes(outputs),
            },
            Cut::WorkQueue(queue) => queue.workspace_bytes(outputs),
            Cut::Parallel(slices) => parallel::workspace_bytes(&problem, slices),
            Cut::Whole | Cut::Cluster(_) => 0,
        };
        for repack in repacks.iter_mut().flatten() {
            repack.offset = workspace_bytes.next_multiple_of(prepare::ALIGN);
            workspace_bytes = repack.offset + repack.bytes;
        }
        let work = Work::of(spec, &problem, &repacks, device, cut);
        let predicted_us = match costs.of(spec) {
            Some(cost) => work.us(cost, costs.shared_of(problem.dtype())),
            None => f64::INFINITY,
        };
        Plan {
            kernel: spec,
            by_name: false,
            problem,
            repacks,
            asked,
            grid,
            cut,
            group_m: GROUP_M,
            workspace_bytes,
            predicted_us,
        }
    }

    /// About how many products are in the longest chain of FP32 multiply-adds that an output is the sum of: warps that share
    /// k do so by whole portions of it. Of a kernel for tensor cores it says nothing.
    pub fn accumulation_depth(&self) -> usize {
        let length = match self.cut {
            Cut::StreamK(way) if way.whole_tiles == 0 => {
                let steps = way.cut_steps.div_ceil(way.ranges) as usize;
                self.problem.k.min(steps * self.kernel.tile.bk as usize)
            }
            _ => self.k_slice() as usize,
        };
        length.div_ceil(self.kernel.partial_sums as usize)
    }

    /// Blocks of a cluster, along x; 1: no clusters.
    pub const fn cluster(&self) -> u32 {
        match (self.kernel.grid, self.cut) {
            (Grid::Clusters(_), _) => 2,
            (_, Cut::Cluster(slices)) => slices,
            _ => 1,
        }
    }

    /// Slices of k that are summed apart and then added in a fixed order; 1: none.
    pub const fn split_k(&self) -> u32 {
        self.cut.slices()
    }

    /// Length of a slice of k.
    pub fn k_slice(&self) -> u32 {
        self.cut.k_slice(self.problem.k as u32, self.kernel.tile.bk)
    }

    /// How the last tiles are shared among all blocks, if they are.
    pub const fn stream_k(&self) -> Option<StreamK> {
        match self.cut {
            Cut::StreamK(way) => Some(way),
            _ => None,
        }
    }

    /// The kernel that adds up slices of k behind this one, if there is one.
    pub fn reduction(&self) -> Option<Reduction> {
        match self.cut {
            Cut::Parallel(slices) => Some(Reduction::of(&self.problem, slices)),
            _ => None,
        }
    }

    /// Whether all of it is one launch: nothing is repacked before, and no slices are added up behind.
    pub fn is_one_kernel(&self) -> bool {
        !self.is_repacked() && self.reduction().is_none()
    }

    /// Whether an operand is repacked beforehand.
    pub fn is_repacked(&self) -> bool {
        self.repacks.iter().any(Option::is_some)
    }

    /// What the plan has to do on this device.
    pub fn work(&self, device: &DeviceInfo) -> Work {
        Work::of(self.kernel, &self.problem, &self.repacks, device, self.cut)
    }

    /// What plans are compared by.
    fn weight(&self) -> f64 {
        self.predicted_us * self.regard()
    }

    /// How much longer the plan counts as than is predicted: for the error that it may have, for what it repacks, and for pieces of tiles that meet in
    /// the workspace.
    pub fn regard(&self) -> f64 {
        let GemmProblem { m, n, .. } = *self.problem;
        let for_error = match self.kernel.arithmetic == Arithmetic::Ffma && m.max(n) <= SMALL_RESULT {
            true => (self.accumulation_depth() as f64 / SHALLOW_DEPTH)
                .max(1.0)
                .powf(DEPTH_EXPONENT),
            false => 1.0,
        };
        let for_repacks: f64 = self.repacks.iter().flatten().map(|_| REPACK).product();
        let for_pieces = match self.cut {
            Cut::StreamK(_) if self.problem.dtype().is_16_bit() => PIECES,
            _ => 1.0,
        };
        for_error * for_repacks * for_pieces
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (problem, [x, y, z]) = (&self.problem, self.grid);
        write!(
            f,
            "{}: {} {}×{}×{} batch {} on a grid of {x}×{y}×{z} blocks of {} threads",
            self.kernel.name,
            problem.layout_name(),
            problem.m,
            problem.n,
            problem.k,
            problem.batch(),
            self.kernel.threads
        )?;
        if self.split_k() > 1 {
            write!(f, ", k in {} slices of {}", self.split_k(), self.k_slice())?;
        }
        if self.reduction().is_some() {
            write!(f, " that a second kernel adds up")?;
        }
        if let Cut::StreamK(way) = self.cut {
            let bk = self.kernel.tile.bk;
            write!(
                f,
                ", the k of all tiles but {} in {} ranges of {}",
                way.whole_tiles,
                way.ranges,
                way.share() * bk
            )?;
        }
        for (name, repack) in ["A", "B"].iter().zip(&self.repacks) {
            match repack {
                Some(repack) if repack.transposes() => write!(f, ", {name} transposed beforehand")?,
                Some(_) => write!(f, ", {name} copied to aligned rows beforehand")?,
                None => {}
            }
        }
        write!(f, ", about {:.1} µs", self.predicted_us)
    }
}

/// The order of plans: by predicted time, and for small results by the error that they may have.
pub(super) fn cheaper(x: &Plan, y: &Plan) -> std::cmp::Ordering {
    x.weight().total_cmp(&y.weight())
}
