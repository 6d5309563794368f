//! The plans that the planner compares.

use super::plan::{Plan, Way};
use super::prepare;
use crate::device::DeviceInfo;
use crate::gemm::kernel::costs::Costs;
use crate::gemm::kernel::refusal::Refusal;
use crate::gemm::kernel::spec::{Arithmetic, Grid, KernelSpec, SplitK};
use crate::gemm::kernel::table::TABLE;
use crate::gemm::operands::Access;
use crate::gemm::problem::{FoldedProblem, GemmProblem, Precision};
use crate::gemm::schedule::cut::Cut;
use crate::gemm::schedule::parallel;
use crate::gemm::schedule::stream_k::StreamK;

/// Sums of so few products err by little but what each product loses, and there the three TF32 products of split operands
/// lose more than FP32 multiply-adds.
const FEW_PRODUCTS: usize = 64;

/// Of sums of fewer products the planner compares no plans whose slices a second kernel adds up.
const MANY_PRODUCTS: usize = 512;

/// And of fewer than these in 16 bits, or of no more than the result has rows or columns.
const MANY_PRODUCTS_OF_16_BITS: usize = 1024;

/// Up to so many rows, or columns, have kernels of their own, which share k already: TT 2×6×3507 takes 3.9 µs on an H200, and 6.1 in slices.
const FEW_LINES: usize = 2;

/// And in 16 bits up to so many past a matrix along k.
const FEW_LINES_OF_16_BITS: usize = 16;

/// But neither holds for results of no more than [`TINY_RESULT`] rows and columns that are sums of so many products or more. They have too few
/// tiles for those kernels: without clusters four blocks would have all of NT 55×1×257708.
const VERY_MANY_PRODUCTS: usize = 1 << 14;
const TINY_RESULT: usize = 64;

/// The ways to cut k that the planner tries where a kernel can.
const CLUSTER_SPLITS: [u32; 6] = [2, 3, 4, 5, 6, 8];

impl Plan {
    /// Every plan with a kernel that the planner considers: with operands in place, and with
    /// operands repacked where a kernel reads those otherwise not at all or slowly.
    pub fn candidates<'a>(
        problem: &'a FoldedProblem,
        device: &'a DeviceInfo,
        costs: &'a Costs,
    ) -> impl Iterator<Item = Plan> + 'a {
        let (asked, apart) = (*problem, has_long_sums(problem));
        let rows = prepare::offer_rows(problem, device).map(|(problem, repacks)| Way {
            asked,
            problem,
            repacks,
        });
        TABLE
            .iter()
            .filter(|spec| disregarded(spec, problem, costs).is_none())
            .flat_map(move |spec| {
                let taken = |way: &Way| spec.refusal(&way.problem, device).is_none();
                let rows_and_b = rows.and_then(|way| with_b_repacked(spec, way, device)).filter(taken);
                let rows = rows.filter(taken);
                let repacked = prepare::offer(spec, problem, device).map(|(problem, repacks)| Way {
                    asked,
                    problem,
                    repacks,
                });
                // Where rows of A become those of one matrix, there is no use in other ways to repack them.
                let repacked = repacked.filter(|way| way.repacks[0].is_none() || rows.or(rows_and_b).is_none());
                [Some(Way::in_place(asked)), repacked, rows, rows_and_b]
                    .into_iter()
                    .flatten()
                    .filter(taken)
                    .flat_map(move |way| Plan::cuts(spec, way, device, costs, apart))
            })
    }

    /// This kernel with k whole and with every cut of k that may pay and leaves no slice empty.
    pub fn variants<'a>(
        spec: &'static KernelSpec,
        problem: &FoldedProblem,
        device: &DeviceInfo,
        costs: &'a Costs,
    ) -> impl Iterator<Item = Plan> + 'a {
        Plan::cuts(spec, Way::in_place(*problem), device, costs, true)
    }

    fn cuts<'a>(
        spec: &'static KernelSpec,
        way: Way,
        device: &DeviceInfo,
        costs: &'a Costs,
        apart: bool,
    ) -> impl Iterator<Item = Plan> + 'a {
        let (device, problem) = (*device, way.problem);
        let sms = device.sm_count.max(1);
        let (mut clusters, mut stream): (&[u32], _) = (&[], None);
        let units = spec.units(&problem);
        let steps = problem.k.div_ceil(spec.tile.bk as usize);
        match spec.split_k {
            SplitK::Cluster if device.has_clusters() => clusters = &CLUSTER_SPLITS,
            SplitK::StreamK => {
                let workers = spec.workers(sms);
                let in_step = match spec.grid {
                    Grid::Clusters(_) => StreamK::in_step(units, steps, workers),
                    _ => None,
                };
                stream = Some(StreamK::ways(units, steps, workers).chain(in_step));
            }
            SplitK::Cluster | SplitK::Never | SplitK::WorkQueue(_) => {}
        }
        let apart = (spec.parallel_split_k && apart)
            .then(|| parallel::ways(&problem, units, spec.tile.bk, sms, spec.blocks_at_once(&device)))
            .into_iter()
            .flatten();
        let clusters = clusters.iter().copied().filter(move |&cut| {
            // A cut pays where multiprocessors would have nothing to do, and has to leave every slice something.
            let whole = steps.div_ceil(cut as usize) * (cut as usize - 1) < steps;
            whole && units * (cut as usize) < 2 * (device.sm_count * spec.blocks_per_multiprocessor) as usize
        });
        std::iter::once(spec.work_queue(&problem, &device).map_or(Cut::Whole, Cut::WorkQueue))
            .chain(clusters.map(Cut::Cluster))
            .chain(apart.map(Cut::Parallel))
            .chain(stream.into_iter().flatten().map(Cut::StreamK))
            .map(move |cut| Plan::with(spec, way, &device, costs, cut))
    }
}

/// The same with B repacked too: `None` where the kernel takes it in place, or would have A otherwise.
fn with_b_repacked(spec: &KernelSpec, way: Way, device: &DeviceInfo) -> Option<Way> {
    let (problem, [a, b]) = prepare::offer(spec, &way.problem, device)?;
    a.is_none().then_some(Way {
        problem,
        repacks: [way.repacks[0], b],
        ..way
    })
}

/// Whether the sums are so long that the planner compares plans whose slices a second kernel adds up, also where they are shorter than the result
/// is wide or high: of 673 drawn FP32 products on an H200 choices differ so for 22, of which 15 are faster by over 3 % (NT 5376×21×4608
/// takes 42 µs in place of 57) and two slower. In 16 bits choices among drawn products were better without.
fn has_long_sums(problem: &GemmProblem) -> bool {
    let GemmProblem { m, n, k, .. } = *problem;
    let accesses = problem.accesses();
    let a_along_k = matches!(accesses.a, Access::RowVector | Access::RowScalar);
    let b_along_k = matches!(accesses.b, Access::ColVector | Access::ColScalar);
    let half = problem.dtype().is_16_bit();
    let few = match a_along_k && b_along_k && half {
        _ if m.max(n) <= TINY_RESULT && k >= VERY_MANY_PRODUCTS => 0,
        true => FEW_LINES_OF_16_BITS,
        false => FEW_LINES,
    };
    let long = match half {
        true => k >= MANY_PRODUCTS_OF_16_BITS && k > m.max(n),
        false => k >= MANY_PRODUCTS,
    };
    long && m.min(n) > few
}

/// Why the planner does not consider a kernel that could compute `problem`.
pub(super) fn disregarded(spec: &KernelSpec, problem: &GemmProblem, costs: &Costs) -> Option<Refusal> {
    let inexact = spec.arithmetic == Arithmetic::Tf32x3 && problem.precision == Precision::Fp32;
    match costs.of(spec) {
        None => Some(Refusal::OnlyByName),
        Some(_) => (inexact && problem.k <= FEW_PRODUCTS).then_some(Refusal::FewProducts(FEW_PRODUCTS)),
    }
}
