//! How it is done: which kernel, with which grid. A pure function of problem and device, so that it can be tested and
//! printed on any machine.

use super::args::{GemmArgs, GemmOperand};
use super::cost::predict_us;
use super::dealt::{Dealt, COUNTER_BYTES};
use super::kernels::{self, Arithmetic, CopyBox, Grid, KernelSpec, SplitK};
use super::problem::{Access, GemmProblem, OperandLayout, Precision, MAX_OVERSHOOT};
use super::repack::{self, Repacks};
use super::stream_k::StreamK;
use super::tensor_map::TensorMap;
use crate::device::DeviceInfo;
use crate::error::{Error, Result};
use std::fmt;

/// CUDA's limit for the y and z dimensions of a grid; kernels loop over what lies beyond.
const MAX_GRID_YZ: usize = 65_535;
const _: () = assert!(MAX_GRID_YZ <= MAX_OVERSHOOT, "a block's next matrix is so much further");

/// Rows of tiles that kernels which choose their own tiles walk together, so that blocks that run at the same time share
/// B in the L2.
const GROUP_M: u32 = 8;

/// Sums of so few products err by little but what each product loses, and there the three TF32 products of split operands
/// lose more than FP32 multiply-adds.
const FEW_PRODUCTS: usize = 64;

/// Results with no more rows and columns can be the sums of many more products each, as gradients of weights are, and several
/// ways to share those out are about as fast. There the planner trades a little time for a smaller error, which grows with the
/// square root of the longest chain of additions.
const SMALL_RESULT: usize = 1024;

/// Chains of FP32 multiply-adds need be no shorter.
const SHORT_CHAIN: f64 = 512.0;

/// The time that half as long a chain may cost in a small result: log₂ of 1.05.
const HALF_CHAIN: f64 = 0.0704;

/// The ways to cut k that the planner tries where a kernel can.
const CLUSTER_SPLITS: [u32; 6] = [2, 3, 4, 5, 6, 8];

/// How a plan cuts k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Not at all.
    Whole,
    /// Into so many slices, one a block of a cluster.
    Cluster(u32),
    /// Into ranges of equal length, one a block.
    StreamK(StreamK),
    /// Into slices whose strips are dealt to the blocks.
    Dealt(Dealt),
}

/// A kernel and everything its launch needs but the addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// The kernel.
    pub kernel: &'static KernelSpec,
    /// Whether it was asked for by name, so that no other may take its place.
    pub by_name: bool,
    /// The problem as the kernel gets it: folded, with the layouts of operands that are written anew.
    pub problem: GemmProblem,
    /// Operands that are written anew, into the workspace, before the kernel starts.
    pub repacks: Repacks,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Blocks of a cluster, along x; 1: no clusters.
    pub cluster: u32,
    /// Slices of k that are summed apart and then added in a fixed order; 1: none.
    pub split_k: u32,
    /// Length of a slice of k.
    pub k_slice: u32,
    /// How the last tiles are shared among all blocks, if they are.
    pub stream_k: Option<StreamK>,
    /// Rows of tiles that are walked together.
    pub group_m: u32,
    /// Bytes of stream-ordered scratch memory.
    pub workspace_bytes: usize,
    /// What the cost model expects, in µs; it decides between kernels (in small results together with the error) and is no
    /// promise.
    pub predicted_us: f64,
}

/// Device addresses of a problem's operands; 0 where it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Addresses {
    /// First element of A.
    pub a: u64,
    /// First element of B.
    pub b: u64,
    /// First element of C, if β ≠ 0.
    pub c: u64,
    /// First element of D.
    pub d: u64,
    /// First element of the residual, if any.
    pub residual: u64,
    /// First element of the bias, if any.
    pub bias: u64,
    /// Elements between neighbours of the bias.
    pub bias_stride: i64,
    /// α, if the problem has its scalars in device memory.
    pub alpha: u64,
    /// Likewise, β.
    pub beta: u64,
}

impl Plan {
    /// The kernel that the cost model expects to be fastest for `problem` on `device`; for results of at most 1024 × 1024, where
    /// several are about as fast, one with shorter chains of additions ([`Plan::longest_chain`]).
    ///
    /// # Errors
    ///
    /// [`Error::Problem`] if the problem cannot be computed at all; [`Error::Refused`] by the last resort of the table
    /// if nothing takes it.
    pub fn new(problem: &GemmProblem, device: &DeviceInfo) -> Result<Self> {
        problem.validate().map_err(Error::Problem)?;
        let problem = problem.folded();
        match Plan::candidates(&problem, device).min_by(cheaper) {
            Some(plan) => Ok(plan),
            None => Plan::forced(&kernels::TABLE[0], problem, device, |_| Ok(true)),
        }
    }

    /// Every plan with a kernel that the planner considers, for a valid, folded problem: on operands as they lie, and on
    /// operands written anew where a kernel reads those otherwise not at all or slowly.
    pub fn candidates<'a>(problem: &'a GemmProblem, device: &'a DeviceInfo) -> impl Iterator<Item = Plan> + 'a {
        kernels::TABLE
            .iter()
            .filter(|spec| spec.cost.is_some() && disregarded(spec, problem).is_none())
            .flat_map(move |spec| {
                let as_it_lies = Some((*problem, [None; 2]));
                let ways = [as_it_lies, repack::offer(spec, problem)].into_iter().flatten();
                ways.filter(|(problem, _)| spec.refusal(problem, device).is_none())
                    .flat_map(move |(problem, repacks)| Plan::cuts(spec, problem, repacks, device))
            })
    }

    /// The problem with operands as they lie, before any is written anew.
    #[cfg(any(feature = "cuda", test))]
    pub(super) fn as_it_lies(&self) -> GemmProblem {
        let mut problem = self.problem;
        let [a, b] = &self.repacks;
        problem.a = a.map_or(problem.a, |repack| repack.from);
        problem.b = b.map_or(problem.b, |repack| repack.from);
        problem
    }

    /// The best plan for the same problem that needs no workspace, and fits: with k whole and operands as they lie. A kernel that
    /// was asked for by name stays.
    ///
    /// # Errors
    ///
    /// Whatever `fits` fails with.
    #[cfg(any(feature = "cuda", test))]
    pub(super) fn without_workspace(
        &self,
        device: &DeviceInfo,
        fits: impl FnMut(&Plan) -> Result<bool>,
    ) -> Result<Option<Plan>> {
        let problem = self.as_it_lies();
        let spare = |plan: &Plan| plan.workspace_bytes == 0;
        Ok(match self.by_name {
            true => {
                let variants = Plan::variants(self.kernel, problem, device).filter(spare);
                cheapest_that(variants, fits)?.map(Plan::asked_for)
            }
            false => cheapest_that(Plan::candidates(&problem, device).filter(spare), fits)?,
        })
    }

    /// The same, its kernel asked for by name.
    fn asked_for(self) -> Self {
        Plan { by_name: true, ..self }
    }

    /// Whether this build has code of the kernel that runs on `device`.
    #[cfg(feature = "cuda")]
    pub fn is_built(&self, device: &DeviceInfo) -> bool {
        device.code_capability > 0 && crate::modules::module(self.kernel.file).is_some()
    }

    /// The kernel of this name, whether or not it is a good choice.
    ///
    /// # Errors
    ///
    /// As [`Plan::new`], and [`Error::UnknownKernel`], and [`Error::Refused`] with the reason if this kernel cannot
    /// take the problem.
    pub fn named(name: &str, problem: &GemmProblem, device: &DeviceInfo) -> Result<Self> {
        Plan::named_that(name, problem, device, |_| Ok(true))
    }

    /// The same with the best cut of k for which there is room on the device, as `fits` says.
    ///
    /// # Errors
    ///
    /// As [`Plan::named`], whatever `fits` fails with, and [`Error::Refused`] if there is no room for any.
    pub fn named_that(
        name: &str,
        problem: &GemmProblem,
        device: &DeviceInfo,
        fits: impl FnMut(&Plan) -> Result<bool>,
    ) -> Result<Self> {
        let spec = kernels::find(name)?;
        problem.validate().map_err(Error::Problem)?;
        Plan::forced(spec, problem.folded(), device, fits).map(Plan::asked_for)
    }

    fn forced(
        spec: &'static KernelSpec,
        problem: GemmProblem,
        device: &DeviceInfo,
        fits: impl FnMut(&Plan) -> Result<bool>,
    ) -> Result<Self> {
        let refused = |reason| Error::Refused {
            kernel: spec.name,
            reason,
        };
        if let Some(reason) = spec.refusal(&problem, device) {
            return Err(refused(reason));
        }
        let variants = || Plan::variants(spec, problem, device);
        cheapest_that(variants(), fits)?.ok_or_else(|| {
            let blocks = variants().map(|plan| plan.cluster).min().unwrap_or(1);
            refused(format!(
                "it needs clusters of {blocks} blocks with {} bytes of shared memory each, and those multiprocessors of the \
                 device that this process may use have no room for one",
                spec.dynamic_shared
            ))
        })
    }

    /// This kernel with k whole and with every cut of k that may pay and leaves no slice empty.
    pub fn variants(
        spec: &'static KernelSpec,
        problem: GemmProblem,
        device: &DeviceInfo,
    ) -> impl Iterator<Item = Plan> + 'static {
        Plan::cuts(spec, problem, [None; 2], device)
    }

    fn cuts(
        spec: &'static KernelSpec,
        problem: GemmProblem,
        repacks: Repacks,
        device: &DeviceInfo,
    ) -> impl Iterator<Item = Plan> + 'static {
        let device = *device;
        let (mut clusters, mut stream): (&[u32], _) = (&[], None);
        let units = spec.units(&problem);
        let steps = problem.k.div_ceil(spec.tile.bk as usize);
        match spec.split_k {
            SplitK::Cluster if device.has_clusters() => clusters = &CLUSTER_SPLITS,
            SplitK::StreamK => stream = Some(StreamK::ways(units, steps, device.sm_count.max(1))),
            SplitK::Cluster | SplitK::Never | SplitK::Dealt(_) => {}
        }
        let clusters = clusters.iter().copied().filter(move |&cut| {
            // A cut pays where multiprocessors would have nothing to do, and has to leave every slice something.
            let whole = steps.div_ceil(cut as usize) * (cut as usize - 1) < steps;
            whole && units * (cut as usize) < 2 * device.sm_count as usize
        });
        std::iter::once(spec.dealt(&problem, &device).map_or(Cut::Whole, Cut::Dealt))
            .chain(clusters.map(Cut::Cluster))
            .chain(stream.into_iter().flatten().map(Cut::StreamK))
            .map(move |cut| Plan::with(spec, problem, repacks, &device, cut))
    }

    fn with(
        spec: &'static KernelSpec,
        problem: GemmProblem,
        mut repacks: Repacks,
        device: &DeviceInfo,
        cut: Cut,
    ) -> Self {
        let [tiles_m, tiles_n] = spec.tiles(&problem);
        let units = spec.units(&problem) as u32;
        let sms = device.sm_count.max(1);
        let (split_k, stream_k) = match cut {
            Cut::Whole => (1, None),
            Cut::Cluster(slices) => (slices, None),
            Cut::StreamK(way) => (1, Some(way)),
            Cut::Dealt(dealt) => (dealt.slices, None),
        };
        let (grid, cluster) = match (spec.grid, cut) {
            (_, Cut::StreamK(way)) => ([way.blocks, 1, 1], 1),
            (_, Cut::Dealt(dealt)) => ([dealt.blocks(), 1, 1], 1),
            (Grid::Tiles, _) => (
                [
                    tiles_n as u32,
                    tiles_m.min(MAX_GRID_YZ) as u32,
                    problem.batch().min(MAX_GRID_YZ) as u32,
                ],
                1,
            ),
            (Grid::Units, _) => ([units * split_k, 1, 1], split_k),
            (Grid::Persistent, _) if split_k > 1 => ([units * split_k, 1, 1], split_k),
            (Grid::Persistent, _) => ([units.min(sms), 1, 1], 1),
            (Grid::Pairs(_), _) => ([2 * units.min((sms / 2).max(1)), 1, 1], 2),
        };
        let k_slice = match split_k {
            1 => problem.k as u32,
            _ => (problem.k as u32).div_ceil(spec.tile.bk).div_ceil(split_k) * spec.tile.bk,
        };
        let outputs = (spec.tile.bm * spec.tile.bn) as usize;
        // The workspace has the kernel's own part first, then the operands that are written anew.
        let mut workspace_bytes = match cut {
            Cut::StreamK(way) => way.workspace_bytes(outputs),
            Cut::Dealt(dealt) => dealt.workspace_bytes(outputs),
            Cut::Whole | Cut::Cluster(_) => 0,
        };
        let mut predicted_us = predict_us(spec, &problem, device, cut, k_slice);
        for repack in repacks.iter_mut().flatten() {
            repack.offset = workspace_bytes.next_multiple_of(repack::ALIGN);
            workspace_bytes = repack.offset + repack.bytes;
            predicted_us += repack.predict_us(problem.dtype, device);
        }
        Plan {
            kernel: spec,
            by_name: false,
            problem,
            repacks,
            grid,
            cluster,
            split_k,
            k_slice,
            stream_k,
            group_m: GROUP_M,
            workspace_bytes,
            predicted_us,
        }
    }

    /// About how many products are in the longest chain of FP32 multiply-adds that an output is the sum of: warps that share
    /// k do so by whole portions of it. Of a kernel for tensor cores it says nothing.
    pub fn longest_chain(&self) -> usize {
        let length = match &self.stream_k {
            Some(way) if way.whole_tiles == 0 => {
                let steps = way.cut_steps.div_ceil(way.ranges) as usize;
                self.problem.k.min(steps * self.kernel.tile.bk as usize)
            }
            _ => self.k_slice as usize,
        };
        length.div_ceil(self.kernel.chains as usize)
    }

    /// Whether an operand is written anew beforehand.
    pub fn is_repacked(&self) -> bool {
        self.repacks.iter().any(Option::is_some)
    }

    /// What plans are compared by: the predicted time, and for small results the length of the chains.
    fn weight(&self) -> f64 {
        let GemmProblem { m, n, .. } = self.problem;
        if self.kernel.arithmetic != Arithmetic::Ffma || m.max(n) > SMALL_RESULT {
            return self.predicted_us;
        }
        self.predicted_us * (self.longest_chain() as f64 / SHORT_CHAIN).max(1.0).powf(HALF_CHAIN)
    }

    /// The addresses that the kernel gets, with operands that are written anew in their place in the workspace.
    pub fn addresses(&self, at: &Addresses, workspace: u64) -> Addresses {
        let place = |repack: &Option<repack::Repack>, address: u64| {
            repack
                .as_ref()
                .map_or(address, |repack| workspace + repack.offset as u64)
        };
        let [a, b] = &self.repacks;
        Addresses {
            a: place(a, at.a),
            b: place(b, at.b),
            ..*at
        }
    }

    /// Ranges into which stream-K cuts k; 0: none.
    pub fn stream_ranges(&self) -> u32 {
        self.stream_k.map_or(0, |way| way.ranges)
    }

    /// What the copy engine has to know of A and B, for a kernel that reads them through it.
    pub fn tensor_maps(&self, at: &Addresses) -> Option<[TensorMap; 2]> {
        let [box_a, box_b] = self.kernel.copy_boxes?;
        let problem = &self.problem;
        let map = |layout: &OperandLayout, rows: usize, cols: usize, address: u64, copy_box: CopyBox| {
            let along_rows = matches!(
                layout.access(rows, cols, problem.dtype),
                Access::ColVector | Access::ColScalar
            );
            let (inner, outer, stride) = if along_rows {
                (rows, cols, layout.col_stride)
            } else {
                (cols, rows, layout.row_stride)
            };
            TensorMap::new(
                address,
                [inner, outer],
                stride,
                &problem.batch_dims,
                &layout.batch_strides,
                copy_box,
            )
            .rounded(self.kernel.arithmetic == Arithmetic::Tf32)
        };
        Some([
            map(&problem.a, problem.m, problem.k, at.a, box_a),
            map(&problem.b, problem.k, problem.n, at.b, box_b),
        ])
    }

    /// The argument of the kernel: this plan with addresses and scalars. The workspace comes after the ticket and
    /// [`COUNTER_BYTES`] bytes of counters. Pure, so that it can be checked anywhere; a launch adds its epoch.
    pub fn args(&self, at: &Addresses, alpha: f32, beta: f32, workspace: u64) -> GemmArgs {
        let problem = &self.problem;
        let (m, n, k, dtype) = (problem.m, problem.n, problem.k, problem.dtype);
        let operand = |layout: &OperandLayout, data: u64| GemmOperand {
            data,
            row_stride: layout.row_stride,
            col_stride: layout.col_stride,
            batch_stride: layout.batch_strides,
        };
        let optional = |layout: &Option<OperandLayout>, data: u64| {
            layout
                .as_ref()
                .map_or((GemmOperand::ABSENT, Default::default()), |layout| {
                    (operand(layout, data), layout.access(m, n, dtype))
                })
        };
        let (c, c_access) = optional(&problem.epilogue.c, at.c);
        let (residual, residual_access) = optional(&problem.epilogue.residual, at.residual);
        let in_memory = |address: u64| if problem.epilogue.device_scalars { address } else { 0 };
        GemmArgs {
            a: operand(&problem.a, at.a),
            b: operand(&problem.b, at.b),
            c,
            d: operand(&problem.d, at.d),
            residual,
            bias: if problem.epilogue.bias { at.bias } else { 0 },
            bias_stride: at.bias_stride,
            workspace: match self.kernel.split_k {
                SplitK::Dealt(_) => workspace.wrapping_sub(COUNTER_BYTES as u64),
                _ => workspace,
            },
            epoch: 0,
            m: m as i32,
            n: n as i32,
            k: k as i32,
            batch: problem.batch() as i32,
            batch_dims: problem.batch_dims.map(|dim| dim as i32),
            split_k: self.split_k as i32,
            k_slice: self.k_slice as i32,
            whole_tiles: self.stream_k.map_or(0, |way| way.whole_tiles as i32),
            stream_ranges: self.stream_ranges() as i32,
            group_m: self.group_m as i32,
            a_access: problem.a.access(m, k, dtype),
            b_access: problem.b.access(k, n, dtype),
            c_access,
            d_access: problem.d.access(m, n, dtype),
            activation: problem.epilogue.activation,
            alpha,
            beta: if problem.epilogue.c.is_some() { beta } else { 0.0 },
            residual_access: residual_access as u16,
            combine: problem.epilogue.combine,
            alpha_at: in_memory(at.alpha),
            beta_at: if problem.epilogue.c.is_some() {
                in_memory(at.beta)
            } else {
                0
            },
        }
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
        if self.split_k > 1 {
            write!(f, ", k in {} slices of {}", self.split_k, self.k_slice)?;
        }
        if let Some(way) = &self.stream_k {
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

/// Why the planner does not consider a kernel that could compute `problem`.
fn disregarded(spec: &KernelSpec, problem: &GemmProblem) -> Option<String> {
    let inexact = spec.arithmetic == Arithmetic::Tf32x3 && problem.precision == Precision::Fp32;
    (inexact && problem.k <= FEW_PRODUCTS)
        .then(|| format!("sums of up to {FEW_PRODUCTS} products are more exact with multiply-adds"))
}

/// The order of plans: by predicted time, and for small results by the error that they may have.
pub(super) fn cheaper(x: &Plan, y: &Plan) -> std::cmp::Ordering {
    x.weight().total_cmp(&y.weight())
}

/// The best of these plans that fits. They are asked in the order of plans, so that few are: to answer may mean to load a
/// kernel.
///
/// # Errors
///
/// Whatever `fits` fails with.
pub(super) fn cheapest_that(
    plans: impl Iterator<Item = Plan>,
    mut fits: impl FnMut(&Plan) -> Result<bool>,
) -> Result<Option<Plan>> {
    let mut plans: Vec<Plan> = plans.collect();
    plans.sort_by(cheaper);
    for plan in plans {
        if fits(&plan)? {
            return Ok(Some(plan));
        }
    }
    Ok(None)
}

/// What the planner makes of a problem: the choice, the other kernels by their predicted times, and the reasons of those that
/// are out. Its `Display` prints a table.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The plan that [`Plan::new`] returns, or its error.
    pub choice: Result<Plan>,
    /// The best plan of each kernel on operands as they lie, and the best with operands written anew: the choice first, then by
    /// predicted time.
    pub candidates: Vec<Plan>,
    /// Every row of the table that has no plan on operands as they lie, and why; empty for a problem that has no plan at all.
    pub refused: Vec<(&'static KernelSpec, String)>,
}

/// Shows how [`Plan::new`] decides.
pub fn explain(problem: &GemmProblem, device: &DeviceInfo) -> Explanation {
    let mut explanation = Explanation {
        choice: Plan::new(problem, device),
        candidates: Vec::new(),
        refused: Vec::new(),
    };
    if problem.validate().is_err() {
        return explanation;
    }
    let folded = problem.folded();
    for plan in Plan::candidates(&folded, device) {
        let of_its_kind =
            |other: &&mut Plan| other.kernel.name == plan.kernel.name && other.is_repacked() == plan.is_repacked();
        match explanation.candidates.iter_mut().find(of_its_kind) {
            Some(other) if cheaper(&plan, other).is_lt() => *other = plan,
            Some(_) => {}
            None => explanation.candidates.push(plan),
        }
    }
    let chosen = |plan: &Plan| explanation.choice.as_ref() == Ok(plan);
    explanation.candidates.sort_by(|x, y| {
        let by_time = x.predicted_us.total_cmp(&y.predicted_us);
        chosen(y).cmp(&chosen(x)).then(by_time)
    });
    explanation.refused = kernels::TABLE
        .iter()
        .filter_map(|spec| {
            let by_name = || spec.cost.is_none().then(|| "only by name".to_string());
            let reason = spec.refusal(&folded, device).or_else(by_name);
            Some((spec, reason.or_else(|| disregarded(spec, &folded))?))
        })
        .collect();
    explanation
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for plan in &self.candidates {
            let way = match plan.is_repacked() {
                true => " with operands written anew",
                false => "",
            };
            writeln!(f, "  {:<40} {:>10.1} µs{way}", plan.kernel.name, plan.predicted_us)?;
        }
        for (spec, reason) in &self.refused {
            writeln!(f, "  {:<40} {:>10}    {reason}", spec.name, "-")?;
        }
        match &self.choice {
            Ok(plan) => write!(f, "chosen: {plan}"),
            Err(error) => write!(f, "no plan: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::problem::{Activation, DType, MAX_BATCH_DIMS, MAX_SIZE};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn every_kernel_that_a_plan_names_takes_its_problem() {
        let devices = [
            DeviceInfo::A100,
            DeviceInfo::H100,
            DeviceInfo::RTX_4090,
            DeviceInfo::RTX_5090,
        ];
        for device in &devices {
            for precision in Precision::ALL {
                for size in [1, 7, 64, 129, 1024, 5000] {
                    let mut problem = GemmProblem::row_major(size, size, size);
                    problem.precision = precision;
                    let plan = Plan::new(&problem, device).unwrap();
                    assert_eq!(plan.kernel.refusal(&plan.problem, device), None, "{plan}");
                    assert!(plan.grid.iter().all(|&blocks| blocks > 0), "{plan}");
                }
            }
        }
    }

    /// Clusters, early starts and one architecture's own kernels are not to be had from PTX of an older architecture.
    #[test]
    fn code_of_an_older_architecture_is_planned_as_such() {
        let from_ptx = DeviceInfo {
            code_capability: 80,
            ..DeviceInfo::H100
        };
        for precision in Precision::ALL {
            for (m, n, k) in [(1, 4096, 4096), (16, 512, 8192), (64, 64, 16384), (300, 700, 900)] {
                let mut problem = GemmProblem::row_major(m, n, k);
                problem.precision = precision;
                assert!(
                    Plan::candidates(&problem, &DeviceInfo::H100).any(|plan| plan.cluster > 1),
                    "{m} × {n} × {k} has plans with clusters"
                );
                for plan in Plan::candidates(&problem, &from_ptx) {
                    assert!(plan.cluster == 1 && plan.split_k == 1, "{plan}");
                    assert_eq!(plan.kernel.needs.only_capability, None, "{plan}");
                }
                for spec in kernels::TABLE {
                    for plan in Plan::variants(spec, problem, &from_ptx)
                        .filter(|plan| spec.refusal(&plan.problem, &from_ptx).is_none())
                    {
                        assert_eq!(plan.cluster, 1, "{plan}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_product_has_a_plan_without_a_workspace() {
        let mut problems = Vec::new();
        for (m, n, k) in [
            (1, 4096, 4096),
            (16, 4096, 4096),
            (512, 14336, 4096),
            (577, 4097, 1023),
            (5, 3, 100_000),
        ] {
            let (row, col) = (OperandLayout::row_major, OperandLayout::col_major);
            for (a, b) in [(row(k), row(n)), (row(k), col(k)), (col(m), row(n)), (col(m), col(k))] {
                problems.push(GemmProblem::new(m, n, k, a, b));
            }
        }
        let (mut had_one, mut by_name) = (0, 0);
        for mut problem in problems {
            for precision in Precision::ALL {
                problem.precision = precision;
                for plan in Plan::candidates(&problem, &DeviceInfo::H100).filter(|plan| plan.workspace_bytes > 0) {
                    had_one += 1;
                    let other = plan
                        .without_workspace(&DeviceInfo::H100, |_| Ok(true))
                        .unwrap()
                        .unwrap();
                    assert_eq!(
                        (other.workspace_bytes, other.repacks),
                        (0, [None; 2]),
                        "{plan}: {other}"
                    );
                    assert_eq!(
                        (other.problem.a, other.problem.b),
                        (problem.a, problem.b),
                        "{plan}: {other}"
                    );
                    if plan.stream_k.is_some() && plan.repacks == [None; 2] {
                        by_name += 1;
                        let other = plan
                            .asked_for()
                            .without_workspace(&DeviceInfo::H100, |_| Ok(true))
                            .unwrap()
                            .unwrap();
                        assert_eq!(other.kernel.name, plan.kernel.name);
                        assert_eq!((other.workspace_bytes, other.by_name), (0, true), "{plan}: {other}");
                    }
                }
            }
        }
        assert!(had_one > 100 && by_name > 10, "{had_one}, {by_name}");
    }

    #[test]
    fn large_products_get_large_tiles_and_small_ones_small() {
        let tile = |size| {
            let problem = GemmProblem::row_major(size, size, size);
            let tile = Plan::new(&problem, &DeviceInfo::H100).unwrap().kernel.tile;
            tile.bm * tile.bn
        };
        assert!(tile(4096) > tile(256), "{} and {}", tile(4096), tile(256));
    }

    #[test]
    fn a_few_rows_stream_the_weights_in_either_storage_order() {
        let kernel = |m, n, k, b| {
            let problem = GemmProblem::new(m, n, k, OperandLayout::row_major(k), b);
            Plan::new(&problem, &DeviceInfo::H100).unwrap().kernel.name
        };
        assert_eq!(kernel(1, 4096, 4096, OperandLayout::col_major(4096)), "gemv_dot_m1");
        assert_eq!(kernel(3, 4096, 4096, OperandLayout::col_major(4096)), "gemv_dot_m4");
        assert_eq!(kernel(8, 3072, 768, OperandLayout::col_major(768)), "gemv_dot_m8");
        assert_eq!(kernel(8, 768, 3072, OperandLayout::col_major(3072)), "gemv_dot_m8_deep");
        assert_eq!(kernel(8, 4096, 4096, OperandLayout::row_major(4096)), "gemv_axpy_m8");
        assert_eq!(kernel(4096, 1, 4096, OperandLayout::row_major(1)), "gemv_dot_n1");
    }

    #[test]
    fn sixteen_rows_are_multiplied_by_strips_that_are_dealt() {
        for (n, k) in [(768, 768), (3072, 768), (4096, 4096), (14336, 4096), (4096, 14336)] {
            let mut problem = GemmProblem::new(16, n, k, OperandLayout::row_major(k), OperandLayout::col_major(k));
            problem.precision = Precision::Fp32Strict;
            let plan = Plan::new(&problem, &DeviceInfo::H100).unwrap();
            assert_eq!(plan.kernel.name, "ffma_strips_16_sm90", "{plan}");
            assert!(plan.grid[0] <= DeviceInfo::H100.sm_count, "{plan}");
        }
    }

    #[test]
    fn small_results_of_long_sums_are_added_in_short_chains() {
        let strict = |m, n, k| {
            let mut problem = GemmProblem::row_major(m, n, k);
            problem.precision = Precision::Fp32Strict;
            Plan::new(&problem, &DeviceInfo::H100).unwrap()
        };
        for (k, longest) in [(1024, 512), (4096, 512), (16384, 2048)] {
            let plan = strict(1024, 1024, k);
            assert!(
                plan.longest_chain() <= longest,
                "chains of {}: {plan}",
                plan.longest_chain()
            );
        }
        // Elsewhere time decides.
        let problem = strict(4096, 4096, 4096).problem;
        let fastest =
            Plan::candidates(&problem, &DeviceInfo::H100).min_by(|x, y| x.predicted_us.total_cmp(&y.predicted_us));
        assert_eq!(fastest, Some(strict(4096, 4096, 4096)));
    }

    #[test]
    fn narrow_results_get_kernels_of_their_width() {
        let kernel = |m, n, k, batch| {
            let mut problem = GemmProblem::row_major(m, n, k);
            problem.precision = Precision::Fp32Strict;
            problem.batch_dims[MAX_BATCH_DIMS - 1] = batch;
            problem.a = problem.a.with_batch_strides([0, 0, 0, (m * k) as i64]);
            problem.b = problem.b.with_batch_strides([0, 0, 0, (k * n) as i64]);
            problem.d = problem.d.with_batch_strides([0, 0, 0, (m * n) as i64]);
            Plan::new(&problem, &DeviceInfo::H100).unwrap().kernel.name
        };
        assert_eq!(kernel(4096, 10, 784, 1), "gemv_panel_n16");
        assert_eq!(kernel(128, 32, 128, 384), "ffma_direct_128x32_nn_sm90");
        assert_eq!(kernel(512, 64, 512, 128), "ffma_direct_128x64_nn_sm90");
    }

    #[test]
    fn tensor_cores_are_used_where_precision_device_and_operands_allow() {
        let plan = |precision, b: OperandLayout, device: &DeviceInfo| {
            let mut problem = GemmProblem::new(2048, 2048, 2048, OperandLayout::row_major(2048), b);
            problem.precision = precision;
            Plan::new(&problem, device).unwrap()
        };
        let (row, col) = (OperandLayout::row_major(2048), OperandLayout::col_major(2048));
        let large = plan(Precision::Fp32, col, &DeviceInfo::H100);
        assert!(large.kernel.name.starts_with("gemm_tf32x3_sm90_128x128"), "{large}");
        let mut short = GemmProblem::new(
            2048,
            2048,
            64,
            OperandLayout::row_major(64),
            OperandLayout::col_major(64),
        );
        let exact = Plan::new(&short, &DeviceInfo::H100).unwrap();
        assert_eq!(exact.kernel.arithmetic, Arithmetic::Ffma, "{exact}");
        assert!(explain(&short, &DeviceInfo::H100).to_string().contains("more exact"));
        short.precision = Precision::Tf32;
        assert_ne!(
            Plan::new(&short, &DeviceInfo::H100).unwrap().kernel.arithmetic,
            Arithmetic::Ffma
        );
        let strict = plan(Precision::Fp32Strict, col, &DeviceInfo::H100);
        assert_eq!(strict.kernel.arithmetic, Arithmetic::Ffma, "{strict}");
        let elsewhere = plan(Precision::Fp32, col, &DeviceInfo::A100);
        assert_eq!(elsewhere.kernel.needs.only_capability, None, "{elsewhere}");
        let misaligned = plan(Precision::Fp32, row.with_align(4), &DeviceInfo::H100);
        assert!(
            misaligned.kernel.copy_boxes.is_none() || misaligned.repacks[1].is_some(),
            "{misaligned}"
        );
    }

    #[test]
    fn large_operands_are_written_anew_where_that_pays_and_small_ones_are_not() {
        let plan = |size: usize, a: OperandLayout, b: OperandLayout, precision| {
            let mut problem = GemmProblem::new(size, size, size, a, b);
            problem.precision = precision;
            Plan::new(&problem, &DeviceInfo::H100).unwrap()
        };
        let (row, col) = (OperandLayout::row_major, OperandLayout::col_major);
        for precision in [Precision::Fp32, Precision::Tf32] {
            let turned = plan(4096, col(4096), row(4096), precision);
            assert_eq!(turned.repacks.iter().flatten().count(), 1, "{turned}");
            assert!(turned.to_string().contains("transposed beforehand"), "{turned}");
            let small = plan(256, col(256), row(256), precision);
            assert_eq!(small.repacks, [None; 2], "{small}");
            let direct = plan(4096, row(4096), col(4096), precision);
            assert_eq!((direct.repacks, direct.workspace_bytes), ([None; 2], 0), "{direct}");
        }
        for precision in Precision::ALL {
            let odd = plan(4097, row(4097), row(4097), precision);
            let [Some(a), Some(b)] = odd.repacks else {
                panic!("{odd}")
            };
            assert!(
                b.offset >= a.offset + a.bytes && b.offset.is_multiple_of(repack::ALIGN),
                "{odd}"
            );
            assert_eq!(odd.workspace_bytes, b.offset + b.bytes, "{odd}");
            let at = odd.addresses(&Addresses::default(), 1 << 20);
            assert_eq!((at.a, at.b), ((1 << 20) + a.offset as u64, (1 << 20) + b.offset as u64));
        }
    }

    #[test]
    fn k_is_cut_where_multiprocessors_would_be_idle_and_no_slice_is_empty() {
        let plan = |m, n, k| {
            let problem = GemmProblem::new(m, n, k, OperandLayout::row_major(k), OperandLayout::col_major(k));
            Plan::new(&problem, &DeviceInfo::H100).unwrap()
        };
        let cut = plan(64, 768, 3072);
        assert!(cut.split_k > 1, "{cut}");
        assert_eq!(cut.cluster, cut.split_k);
        assert_eq!(plan(8192, 8192, 8192).split_k, 1);
        for k in [1, 31, 33, 96, 100, 257, 1000] {
            for spec in kernels::TABLE {
                let problem = GemmProblem::new(64, 64, k, OperandLayout::row_major(k), OperandLayout::col_major(k));
                for plan in Plan::variants(spec, problem, &DeviceInfo::H100) {
                    let dealt = matches!(plan.kernel.split_k, SplitK::Dealt(_));
                    assert_eq!(plan.workspace_bytes > 0, dealt || plan.stream_k.is_some(), "{plan}");
                    assert!((plan.split_k - 1) * plan.k_slice < k as u32, "{plan}");
                    assert!(plan.split_k * plan.k_slice >= k as u32, "{plan}");
                }
            }
        }
    }

    #[test]
    fn a_fused_epilogue_gets_a_kernel_that_has_it() {
        for device in [DeviceInfo::H100, DeviceInfo::RTX_4090] {
            for (m, n, k) in [(1, 1, 1), (5, 700, 33), (300, 10, 7), (4096, 4096, 768)] {
                let mut problem = GemmProblem::row_major(m, n, k);
                problem.a = OperandLayout::strided(3 * k as i64, 3);
                problem.b = OperandLayout::strided(3 * n as i64, 3);
                problem.epilogue.bias = true;
                problem.epilogue.activation = Activation::GeluErf;
                let plan = Plan::new(&problem, &device).unwrap();
                assert_eq!(plan.kernel.refusal(&plan.problem, &device), None);
            }
        }
    }

    #[test]
    fn a_kernel_asked_for_by_name_is_the_one_that_runs_or_says_why_not() {
        let problem = GemmProblem::row_major(64, 64, 64);
        let plan = Plan::named("sgemm_01_naive", &problem, &DeviceInfo::H100).unwrap();
        assert_eq!(plan.kernel.name, "sgemm_01_naive");
        assert_eq!(plan.grid, [2, 2, 1]);

        let error = Plan::named("sgemm_99", &problem, &DeviceInfo::H100).unwrap_err();
        assert!(error.to_string().contains("sgemm_01_naive"), "{error}");

        let mut doubles = problem;
        doubles.dtype = DType::F64;
        let error = Plan::named("sgemm_01_naive", &doubles, &DeviceInfo::H100).unwrap_err();
        assert!(error.to_string().contains("F64"), "{error}");

        let mut fused = problem;
        fused.epilogue.activation = Activation::Relu;
        let error = Plan::named("sgemm_01_naive", &fused, &DeviceInfo::H100).unwrap_err();
        assert!(error.to_string().contains("activation"), "{error}");
    }

    #[test]
    fn grids_end_where_cuda_does() {
        let problem = GemmProblem::row_major(32 * 70_000, 1, 1);
        let plan = Plan::named("sgemm_01_naive", &problem, &DeviceInfo::H100).unwrap();
        assert_eq!(plan.grid, [1, 65_535, 1]);
    }

    /// A device that has room for no clusters of some sizes, of some kernels.
    #[test]
    fn where_a_plan_has_no_room_the_next_best_is_taken() {
        let mut rng = StdRng::seed_from_u64(8);
        let (mut without, mut others) = (0, 0);
        for _ in 0..300 {
            let size = |rng: &mut StdRng| 1usize << rng.random_range(0..14);
            let (m, n, k) = (size(&mut rng), size(&mut rng), size(&mut rng));
            let mut problem = GemmProblem::new(m, n, k, OperandLayout::row_major(k), OperandLayout::col_major(k));
            problem.precision = Precision::ALL[rng.random_range(0..3)];
            let most = [1, 2, 4, 8][rng.random_range(0..4)];
            let fits =
                |plan: &Plan| plan.cluster <= most && (plan.cluster == 1 || plan.kernel.dynamic_shared < 200_000);
            let candidates = || Plan::candidates(&problem, &DeviceInfo::H100);
            let mut asked: Vec<Plan> = Vec::new();
            let chosen = cheapest_that(candidates(), |plan| {
                asked.push(*plan);
                Ok(fits(plan))
            });
            let chosen = chosen.unwrap().unwrap();
            assert_eq!(Some(chosen), candidates().filter(fits).min_by(cheaper));
            assert!(
                asked.is_sorted_by(|x, y| cheaper(x, y).is_le()),
                "the best is asked first"
            );
            let (last, before) = asked.split_last().unwrap();
            assert!(
                *last == chosen && !before.iter().any(fits),
                "none is asked after the first that fits"
            );
            others += usize::from(!before.is_empty());
            without += usize::from(before.is_empty());
        }
        assert!(
            without > 0 && others > 20,
            "{without} first choices and {others} others"
        );
        let problem = GemmProblem::row_major(64, 64, 64);
        let candidates = || Plan::candidates(&problem, &DeviceInfo::H100);
        assert_eq!(cheapest_that(candidates(), |_| Ok(false)), Ok(None));
        let error = Error::Problem("of the driver".into());
        assert_eq!(cheapest_that(candidates(), |_| Err(error.clone())), Err(error));
    }

    #[test]
    fn a_kernel_asked_for_by_name_is_cut_as_there_is_room_or_says_that_there_is_none() {
        let problem = GemmProblem::new(
            64,
            64,
            8192,
            OperandLayout::row_major(8192),
            OperandLayout::col_major(8192),
        );
        let with = |precision| {
            let mut with = problem;
            with.precision = precision;
            with
        };
        let named = |name: &str, precision, most: u32| {
            Plan::named_that(name, &with(precision), &DeviceInfo::H100, |plan| {
                Ok(plan.cluster <= most)
            })
        };
        let free = named("ffma_64x64", Precision::Fp32Strict, 8).unwrap();
        assert!(free.cluster > 4, "{free}");
        for most in [1, 2, 4] {
            let plan = named("ffma_64x64", Precision::Fp32Strict, most).unwrap();
            assert!(plan.kernel.name == "ffma_64x64" && plan.cluster <= most, "{plan}");
        }
        let mut refused = 0;
        for spec in kernels::TABLE.iter().filter(|spec| matches!(spec.grid, Grid::Pairs(_))) {
            if spec.refusal(&with(Precision::Tf32), &DeviceInfo::H100).is_some() {
                continue;
            }
            assert_eq!(named(spec.name, Precision::Tf32, 2).unwrap().cluster, 2);
            let error = named(spec.name, Precision::Tf32, 1).unwrap_err().to_string();
            assert!(
                error.contains(spec.name) && error.contains("clusters of 2 blocks"),
                "{error}"
            );
            refused += 1;
        }
        assert!(refused > 0);
    }

    #[test]
    fn a_plan_knows_the_problem_as_it_lies() {
        let problem = GemmProblem::row_major(4097, 4097, 4097);
        let plan = Plan::new(&problem, &DeviceInfo::H100).unwrap();
        assert!(plan.is_repacked() && plan.problem != problem, "{plan}");
        assert_eq!(plan.as_it_lies(), problem);
    }

    /// What a kernel counts with, beyond the end of m, n, k or the batch.
    #[test]
    fn no_kernel_counts_beyond_32_bits() {
        let declared = include_str!("../../cuda/common/gemm_args.cuh");
        assert!(declared.contains(&format!("kMaxOvershoot = {MAX_OVERSHOOT};")));
        assert_eq!(MAX_SIZE + MAX_OVERSHOOT, i32::MAX as usize);
        // What a block of a dot kernel takes of k at once: GEMV_DOT(NAME, M, LINES, WARPS, UNROLL, …), a vector a lane.
        const VECTOR: u32 = 4;
        let steps = include_str!("../../cuda/ffma/gemv.cu").lines().filter_map(|line| {
            let of: Vec<&str> = line.strip_prefix("GEMV_DOT(")?.split(", ").collect();
            Some((
                of[0],
                of[3].parse::<u32>().ok()? * 32 * VECTOR * of[4].parse::<u32>().ok()?,
            ))
        });
        let steps: Vec<(&str, u32)> = steps.collect();
        assert_eq!(
            steps.len(),
            kernels::TABLE
                .iter()
                .filter(|spec| spec.name.starts_with("gemv_dot"))
                .count()
        );
        for (name, step) in steps {
            assert!(i32::MAX as usize - MAX_SIZE >= step as usize, "{name} takes {step}");
        }
        for spec in kernels::TABLE {
            let tile = spec.tile;
            let most = tile.bm.max(tile.bn).max(tile.bk * tile.stages);
            assert!(i32::MAX as usize - MAX_SIZE >= most as usize, "{}", spec.name);
            // Blocks that walk rows of tiles together count the tiles of GROUP_M rows.
            if spec.grid != Grid::Tiles && spec.file != "ffma/gemv" {
                assert!(
                    GROUP_M as usize * MAX_SIZE.div_ceil(tile.bn as usize) <= i32::MAX as usize,
                    "{}",
                    spec.name
                );
            }
        }
    }

    /// A size near one of the limits, or of any magnitude.
    fn extreme(rng: &mut StdRng) -> usize {
        match rng.random_range(0..4) {
            0 => MAX_SIZE - rng.random_range(0..70),
            1 => 1,
            2 => (1usize << rng.random_range(0..31)) - rng.random_range(0..2),
            _ => rng.random_range(1..5000),
        }
        .clamp(1, MAX_SIZE)
    }

    /// A valid problem of extreme sizes, with strides that may be anything.
    fn extreme_problem(rng: &mut StdRng) -> GemmProblem {
        fn layout(rng: &mut StdRng, rows: usize, cols: usize) -> OperandLayout {
            // Half of the operands are such as the copy engine reads.
            let (across, batch_strides, align) = if rng.random() {
                let strides = [0, 16, 1 << 20, 1 << 37];
                let batch = std::array::from_fn(|_| strides[rng.random_range(0..strides.len())]);
                (cols.max(rows).next_multiple_of(4) as i64, batch, 16)
            } else {
                let matrix = rows.saturating_mul(cols).min(i64::MAX as usize) as i64;
                let strides = [0, 1, -1, cols as i64, matrix, i64::MIN, i64::MAX, rng.random()];
                let mut any = || strides[rng.random_range(0..strides.len())];
                (any(), std::array::from_fn(|_| any()), 4)
            };
            let layout = match rng.random_range(0..5) {
                0 => OperandLayout::strided(across, across),
                1 | 2 => OperandLayout::strided(1, across),
                _ => OperandLayout::strided(across, 1),
            };
            layout.with_batch_strides(batch_strides).with_align(align)
        }
        let (m, n, k) = (extreme(rng), extreme(rng), extreme(rng));
        let mut problem = GemmProblem::new(m, n, k, layout(rng, m, k), layout(rng, k, n));
        problem.d = OperandLayout {
            col_stride: 1,
            ..layout(rng, m, n)
        };
        let mut left = if rng.random() { extreme(rng) } else { 1 };
        for dim in (0..MAX_BATCH_DIMS).rev() {
            problem.batch_dims[dim] = if dim == 0 || rng.random() {
                left
            } else {
                (1usize << rng.random_range(0..16)).min(left)
            };
            left /= problem.batch_dims[dim];
        }
        problem.precision = Precision::ALL[rng.random_range(0..3)];
        problem.dtype = [DType::F32, DType::F32, DType::F64][rng.random_range(0..3)];
        problem.epilogue.bias = rng.random();
        problem.epilogue.c = rng.random::<bool>().then(|| layout(rng, m, n));
        problem.epilogue.residual = rng.random::<bool>().then(|| layout(rng, m, n));
        problem
    }

    /// Arithmetic that leaves its range panics here, for tests check it.
    #[test]
    fn problems_near_the_limits_are_planned_and_numbers_stay_in_their_range() {
        const PROBLEMS: usize = 3000;
        // Most rows of the table are for the first.
        let devices = [
            DeviceInfo::H100,
            DeviceInfo::A100,
            DeviceInfo::H100,
            DeviceInfo::RTX_4090,
            DeviceInfo::H100,
            DeviceInfo::RTX_5090,
        ];
        let mut rng = StdRng::seed_from_u64(6);
        let mut taken = vec![0; kernels::TABLE.len()];
        for number in 0..PROBLEMS {
            // Of results that no memory holds there are no plans.
            let problem = loop {
                let problem = extreme_problem(&mut rng);
                match problem.validate() {
                    Ok(()) => break problem,
                    Err(reason) => assert!(reason.contains("more than any memory"), "{reason}"),
                }
            };
            let device = &devices[number % devices.len()];
            let folded = problem.folded();
            folded.validate().unwrap();
            let mut plans: Vec<Plan> = Plan::candidates(&folded, device).collect();
            plans.extend(Plan::new(&problem, device));
            for (spec, taken) in kernels::TABLE.iter().zip(&mut taken) {
                if spec.refusal(&folded, device).is_none() {
                    plans.extend(Plan::variants(spec, folded, device));
                    *taken += 1;
                }
            }
            for plan in plans {
                let [x, y, z] = plan.grid.map(|blocks| blocks as usize);
                assert!(x >= 1 && y >= 1 && z >= 1, "{plan}");
                assert!(x <= i32::MAX as usize && y <= MAX_GRID_YZ && z <= MAX_GRID_YZ, "{plan}");
                assert!(plan.cluster >= 1 && plan.grid[0].is_multiple_of(plan.cluster), "{plan}");
                let slices = u64::from(plan.split_k) * u64::from(plan.k_slice);
                assert!(slices >= folded.k as u64 && slices <= i32::MAX as u64, "{plan}");
                assert!(plan.longest_chain() >= 1 && plan.longest_chain() <= folded.k, "{plan}");
                assert!(!plan.predicted_us.is_nan() && plan.predicted_us > 0.0, "{plan}");
                if let Some(way) = &plan.stream_k {
                    let steps = u64::from(way.share() + 1) * u64::from(way.ranges);
                    assert!(
                        steps >= u64::from(way.cut_steps) && way.cut_steps < i32::MAX as u32,
                        "{plan}"
                    );
                }
                for repack in plan.repacks.iter().flatten() {
                    assert!(repack.offset + repack.bytes <= plan.workspace_bytes, "{plan}");
                    repack.movement(&plan.problem.batch_dims, plan.problem.dtype);
                }
                let at = plan.addresses(&Addresses::default(), 1 << 40);
                let args = plan.args(&at, 1.0, 0.0, 1 << 40);
                assert!(args.k_slice > 0 && args.m > 0 && args.n > 0 && args.k > 0 && args.batch > 0);
                plan.tensor_maps(&at);
            }
        }
        for (spec, taken) in kernels::TABLE.iter().zip(taken) {
            assert!(taken > 0, "no problem was for {}", spec.name);
        }
    }

    #[test]
    fn arguments_carry_every_field_of_the_problem() {
        let mut problem = GemmProblem::new(5, 8, 9, OperandLayout::strided(11, 1), OperandLayout::strided(1, 12));
        problem.batch_dims = [1, 1, 2, 3];
        problem.a.batch_strides = [0, 0, 1000, 100];
        problem.b.batch_strides = [0, 0, 0, 200];
        problem.d = OperandLayout::row_major(16).with_batch_strides([0, 0, 900, 300]);
        problem.epilogue.c = Some(OperandLayout::strided(0, 1));
        problem.epilogue.bias = true;
        let plan = Plan {
            kernel: &kernels::TABLE[0],
            by_name: true,
            problem,
            repacks: [None; 2],
            grid: [1, 1, 1],
            cluster: 1,
            split_k: 2,
            k_slice: 5,
            stream_k: Some(StreamK {
                steps: 10,
                whole_tiles: 3,
                cut_steps: 40,
                ranges: 4,
                blocks: 4,
            }),
            group_m: 8,
            workspace_bytes: 64,
            predicted_us: 0.0,
        };
        let at = Addresses {
            a: 0x1000,
            b: 0x2000,
            c: 0x3000,
            d: 0x4000,
            residual: 0x5000,
            bias: 0x6000,
            bias_stride: 2,
            alpha: 0x8000,
            beta: 0x9000,
        };
        let args = plan.args(&at, 0.5, 2.0, 0x7000);
        assert_eq!((args.m, args.n, args.k, args.batch), (5, 8, 9, 6));
        assert_eq!((args.a.data, args.a.row_stride, args.a.col_stride), (0x1000, 11, 1));
        assert_eq!((args.b.data, args.b.row_stride, args.b.col_stride), (0x2000, 1, 12));
        assert_eq!((args.d.data, args.d.batch_stride), (0x4000, [0, 0, 900, 300]));
        assert_eq!(args.residual, GemmOperand::ABSENT, "the problem has no residual");
        assert_eq!((args.bias, args.bias_stride, args.workspace), (0x6000, 2, 0x7000));
        assert_eq!((args.split_k, args.k_slice, args.group_m), (2, 5, 8));
        assert_eq!((args.whole_tiles, args.stream_ranges), (3, 4));
        assert_eq!((args.alpha, args.beta), (0.5, 2.0));
        assert_eq!((args.alpha_at, args.beta_at), (0, 0), "the values count");
        problem.epilogue.device_scalars = true;
        let args = Plan { problem, ..plan }.args(&at, 0.5, 2.0, 0);
        assert_eq!((args.alpha_at, args.beta_at), (0x8000, 0x9000));

        problem.epilogue.c = None;
        let args = Plan { problem, ..plan }.args(&at, 0.5, 2.0, 0);
        assert_eq!((args.beta, args.c), (0.0, GemmOperand::ABSENT), "C must stay unread");
    }

    #[test]
    fn explanations_name_every_kernel_and_the_choice() {
        let text = explain(&GemmProblem::row_major(512, 512, 512), &DeviceInfo::H100).to_string();
        for spec in kernels::TABLE {
            assert!(text.contains(spec.name), "{text}");
        }
        assert!(text.contains("chosen: "), "{text}");
    }

    #[test]
    fn explanations_begin_with_the_choice_and_go_on_by_time() {
        for device in [DeviceInfo::H100, DeviceInfo::A100] {
            for (m, n, k) in [
                (1, 4096, 4096),
                (512, 512, 512),
                (1024, 1024, 16384),
                (4097, 4097, 4097),
            ] {
                let explained = explain(&GemmProblem::row_major(m, n, k), &device);
                let (first, others) = explained.candidates.split_first().unwrap();
                assert_eq!(explained.choice.as_ref(), Ok(first), "{explained}");
                assert!(others.is_sorted_by_key(|plan| plan.predicted_us), "{explained}");
                let as_they_lie = explained.candidates.iter().filter(|plan| !plan.is_repacked());
                assert_eq!(as_they_lie.count() + explained.refused.len(), kernels::TABLE.len());
                // Refusals stand last: the table is printed in this order.
                let text = explained.to_string();
                let mut lines = text.lines().take(explained.candidates.len());
                assert!(lines.all(|line| line.contains(" µs")), "{text}");
            }
        }
    }

    #[test]
    fn explanations_of_what_has_no_plan_give_its_reason_and_end() {
        let mut too_many = GemmProblem::row_major(4, 4, 4);
        too_many.batch_dims = [usize::MAX; MAX_BATCH_DIMS];
        for problem in [
            GemmProblem::row_major(4, 4, 0),
            GemmProblem::row_major(0, 4, 4),
            GemmProblem::row_major(4, 4, 3_900_000_000_000),
            GemmProblem::row_major(usize::MAX, usize::MAX, usize::MAX),
            too_many,
        ] {
            let explained = explain(&problem, &DeviceInfo::H100);
            assert!(matches!(explained.choice, Err(Error::Problem(_))), "{explained}");
            assert!(explained.candidates.is_empty() && explained.refused.is_empty());
            assert!(explained.to_string().starts_with("no plan: "), "{explained}");
        }
    }

    /// A walk over the steps of k would take a thousand times as long here as for the short product.
    #[test]
    fn planning_does_not_take_longer_where_k_is_long() {
        const MOST: u32 = 20;
        let time = |k: usize| {
            let mut problem = GemmProblem::row_major(512, 512, k);
            problem.precision = Precision::Fp32Strict;
            let once = || {
                let start = std::time::Instant::now();
                Plan::new(&problem, &DeviceInfo::H100).unwrap();
                start.elapsed()
            };
            // The shortest of a few: others may have been interrupted.
            (0..5).map(|_| once()).min().unwrap()
        };
        let (short, long) = (time(4096), time(MAX_SIZE / 64 * 64));
        assert!(long < MOST * short, "{short:?} and {long:?}");
    }

    #[test]
    fn names_and_symbols_of_the_table_are_unique() {
        for (i, spec) in kernels::TABLE.iter().enumerate() {
            assert!(
                kernels::TABLE[..i].iter().all(|other| other.name != spec.name),
                "{}",
                spec.name
            );
            assert!(
                spec.tile.bm > 0 && spec.tile.bn > 0 && spec.threads > 0,
                "{}",
                spec.name
            );
        }
    }
}
