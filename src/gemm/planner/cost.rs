//! What a plan costs: the model by which the planner compares plans. [`Work`] is what there is to do, and [`Costs`] what that
//! takes; clock, lanes and multiprocessors of the device at hand scale it.

use super::work::Work;
use crate::device::BLOCKS_BESIDE;
use crate::gemm::kernel::costs::{KernelCost, SharedCosts};
use crate::gemm::schedule::cut::Cut;
use crate::gemm::schedule::parallel;
use crate::gemm::schedule::stream_k::StreamK;
use crate::gemm::schedule::work_queue::WorkQueue;

#[cfg(doc)]
use crate::gemm::kernel::costs::Costs;

/// Warp schedulers of a multiprocessor.
const SCHEDULERS: f64 = 4.0;

impl Work {
    /// The time that it takes, in µs: by arithmetic, by memory or by the L2, whichever is longest, and what comes before and after.
    pub fn us(&self, cost: &KernelCost, shared: &SharedCosts) -> f64 {
        let blocks = self.blocks(cost, shared);
        let (memory_us, l2_us) = (self.memory_time_us(cost, shared), self.l2_time_us(shared));
        let longest = blocks.us.max(memory_us).max(l2_us);
        let product_us = longest + shared.exposed * (blocks.us + memory_us + l2_us - longest);
        // What a kernel reaches where the L2 holds its operands can be more than memory delivers.
        let product_us = product_us.max(self.memory_start_us(cost, shared) + self.beyond_l2_us);
        let launch_us = match self.starts_early {
            true => cost.start * shared.early_launch_us,
            false => shared.launch_us,
        };
        let pairs_us = if self.pairs { shared.pairs_us } else { 0.0 };
        let queue_us = match self.cut {
            Cut::WorkQueue(queue) if queue.slices > 1 => self.setup_us(cost) + shared.queue_slices_us,
            Cut::WorkQueue(_) => self.setup_us(cost),
            _ => 0.0,
        };
        let (split_us, _) = shared.clusters.of(self.cluster());
        let parallel_us = match self.cut {
            Cut::Parallel(slices) => {
                let further = f64::from(parallel::rounds(slices) - 1);
                shared.parallel.start_us
                    + self.slices_us / shared.parallel.bandwidth
                    + further * shared.parallel.round_us
            }
            _ => 0.0,
        };
        let exchange_us = self.exchange_us(&blocks, cost, shared);
        let repacks_us: f64 = self
            .repacks
            .iter()
            .flatten()
            .map(|moved| moved.us(&shared.repack))
            .sum();
        launch_us + queue_us + split_us + parallel_us + pairs_us + exchange_us + product_us + repacks_us
    }

    /// The time until memory delivers at its full rate, in µs.
    fn memory_start_us(&self, cost: &KernelCost, shared: &SharedCosts) -> f64 {
        match self.starts_early {
            true => cost.start * shared.memory_start_us,
            false => shared.memory_start_us,
        }
    }

    /// Blocks of a cluster that cuts k; 1: none does.
    const fn cluster(&self) -> u32 {
        match self.cut {
            Cut::Cluster(slices) => slices,
            _ => 1,
        }
    }

    /// What the first block of a multiprocessor takes beside its multiplications, in µs.
    fn setup_us(&self, cost: &KernelCost) -> f64 {
        let general_us = if self.general { cost.general_us } else { 0.0 };
        cost.setup_us + self.each_wave_us(cost) + general_us
    }

    /// What each further wave of blocks takes beside its multiplications, in µs.
    fn wave_us(&self, cost: &KernelCost) -> f64 {
        cost.wave_us + self.each_wave_us(cost)
    }

    /// What the first wave and each further one take more for this problem.
    fn each_wave_us(&self, cost: &KernelCost) -> f64 {
        self.ragged * cost.ragged_us + self.other_order_first * cost.other_order_us + self.batch_us(cost)
    }

    fn batch_us(&self, cost: &KernelCost) -> f64 {
        if self.batched {
            cost.batch_us
        } else {
            0.0
        }
    }

    /// Operations that a multiprocessor does in a µs at most, given how the operands lie and how tiles cover the matrix.
    fn reachable_peak(&self, cost: &KernelCost, shared: &SharedCosts) -> f64 {
        // The part of the multiprocessors that have something to do.
        let busy = (self.blocks as f64 / f64::from(self.multiprocessors.max(1))).min(1.0);
        let lines = if self.single_line {
            1.0 + shared.single_line + shared.single_outside * self.outside
        } else {
            1.0
        };
        let general = if self.general { cost.general } else { 0.0 };
        self.peak
            / (1.0 + general)
            / (1.0 + cost.single_elements * self.single_elements as f64)
            / (1.0 + cost.edges * (self.edges + self.outside))
            / (1.0 + cost.other_order * self.other_order)
            / (1.0 + cost.crowd * busy * lines)
    }

    fn blocks(&self, cost: &KernelCost, shared: &SharedCosts) -> Blocks {
        let peak = self.reachable_peak(cost, shared);
        let us = match self.cut {
            Cut::Whole | Cut::Cluster(_) | Cut::Parallel(_) => return self.blocks_of_tiles(peak, cost, shared),
            Cut::StreamK(way) => self.stream_k_us(way, peak, cost, shared),
            Cut::WorkQueue(queue) => self.work_queue_us(queue, peak, cost),
        };
        Blocks {
            us,
            beside: 1.0,
            rounds: 1.0,
        }
    }

    fn stream_k_us(&self, way: StreamK, peak: f64, cost: &KernelCost, shared: &SharedCosts) -> f64 {
        let range_us = way.cut_steps.div_ceil(way.ranges) as f64 * self.step_flops / (peak * cost.full);
        // What a range longer than a tile ends beside its last piece.
        let tiles = f64::from(way.share() / way.steps);
        let straddles = if way.straddles() { shared.stream_k.straddle } else { 0.0 };
        let pieces = match self.pairs {
            // Owners add them up one after the other.
            true => f64::from(way.others()) * self.large_tiles,
            false => f64::from(way.steps) / f64::from(way.share()),
        };
        let setups = 1.0 + tiles + shared.stream_k.finish + shared.stream_k.piece * pieces + straddles;
        let whole_tile_us = self.wave_us(cost) + self.together_us(1.0, peak, cost);
        f64::from(way.whole_tiles / way.blocks) * whole_tile_us + range_us + setups * self.setup_us(cost)
    }

    fn work_queue_us(&self, queue: WorkQueue, peak: f64, cost: &KernelCost) -> f64 {
        let waves = f64::from(queue.blocks().div_ceil(self.multiprocessors.max(1)));
        let strips = f64::from(queue.strips.div_ceil(queue.members));
        let strip_us = self.flops / (peak * cost.full) + cost.share_us;
        waves * strips * strip_us + (waves - 1.0) * self.wave_us(cost)
    }

    /// The time of a multiprocessor that works on so many blocks at once, in µs.
    fn together_us(&self, blocks: f64, peak: f64, cost: &KernelCost) -> f64 {
        blocks * self.flops / (peak * cost.rate(blocks, self.warps))
    }

    /// Where each block has one tile, or a slice of it.
    fn blocks_of_tiles(&self, peak: f64, cost: &KernelCost, shared: &SharedCosts) -> Blocks {
        let resident = cost.resident.max(1);
        let slots = |each: u32| self.slots(each, shared);
        let each = |blocks: usize| (1..resident).find(|&each| blocks <= slots(each)).unwrap_or(resident);
        let wave = slots(resident);
        let waves = self.blocks / wave;
        let (rest_us, more) = match self.blocks % wave {
            0 => (0.0, waves.saturating_sub(1)),
            rest => (self.together_us(f64::from(each(rest)), peak, cost), waves),
        };
        let in_waves = waves as f64 * self.together_us(f64::from(cost.resident), peak, cost) + rest_us;
        // Where each multiprocessor goes on by itself, all work at the full rate until there are no more blocks to begin; then those
        // under way end beside fewer others.
        let [alone, beside_others] = [cost.solo, cost.full].map(|rate| self.flops / (peak * rate));
        let of_one = self.blocks as f64 / slots(1) as f64;
        let flowing = (of_one * beside_others + shared.tail * (alone - beside_others)).max(alone);
        let beside = f64::from(each(self.blocks));
        let rounds = self.blocks.div_ceil(wave).max(1) as f64;
        let multiplied_us = (1.0 - cost.flow) * in_waves + cost.flow * flowing;
        let arrived_us = rounds * self.turns * cost.turn_us;
        Blocks {
            us: self.setup_us(cost)
                + cost.beside_us * (beside - 1.0)
                + more as f64 * self.wave_us(cost)
                + multiplied_us
                + arrived_us,
            beside,
            rounds,
        }
    }

    /// Blocks that find room if a multiprocessor holds so many at most. What a cluster leaves over of a group of multiprocessors is no more
    /// where each holds several blocks.
    fn slots(&self, each: u32, shared: &SharedCosts) -> usize {
        let held = match self.room {
            Some(room) => f64::from(each) * room[(each as usize).clamp(1, BLOCKS_BESIDE) - 1],
            None => {
                let (_, fitted_room) = shared.clusters.of(self.cluster());
                f64::from(each) - 1.0 + fitted_room
            }
        };
        let all = f64::from(self.multiprocessors) * held;
        (all.round() as u32 / self.cluster() * self.cluster()).max(1) as usize
    }

    fn memory_time_us(&self, cost: &KernelCost, shared: &SharedCosts) -> f64 {
        let bandwidth = cost.bandwidth / (1.0 + cost.edges * self.outside);
        self.memory_start_us(cost, shared)
            + (self.memory_us * (1.0 + shared.uneven * self.uneven)
                + shared.off_sectors * self.off_sectors_us
                + shared.far * self.far_us)
                / bandwidth
    }

    fn l2_time_us(&self, shared: &SharedCosts) -> f64 {
        match shared.l2 {
            0.0 => 0.0,
            together => {
                let off_sectors = 1.0 + shared.l2_off_sectors * self.off_sectors;
                let out_of_step = 1.0 + (shared.stream_k.out_of_step - 1.0) * self.part_out_of_step();
                self.l2_us
                    .max(self.l2_average_us * together * off_sectors * out_of_step)
            }
        }
    }

    /// The part of the steps of k that lies in ranges which begin anywhere in it. Of tiles in pieces of equal length, a range is in step with
    /// those that have the same part of k.
    fn part_out_of_step(&self) -> f64 {
        match self.cut {
            Cut::StreamK(way) => {
                let cut = f64::from(way.cut_steps);
                let in_step = match way.straddles() {
                    true => 0.0,
                    false => f64::from(way.share()) / f64::from(way.steps),
                };
                (1.0 - in_step) * cut / (cut + f64::from(way.whole_tiles) * f64::from(way.steps))
            }
            _ => 0.0,
        }
    }

    /// What the blocks of clusters that cut k take to add up their sums, in µs.
    fn exchange_us(&self, blocks: &Blocks, cost: &KernelCost, shared: &SharedCosts) -> f64 {
        let slices = f64::from(self.cluster());
        let handed_on = 1.0 - 1.0 / slices;
        let sums_us = shared.clusters.sums_us * self.large_tiles * blocks.beside * handed_on;
        let (cut_us, round_us) = match self.cluster() {
            1 => (0.0, 0.0),
            _ => {
                let cut_us = cost.cut_us + cost.share_us / slices + cost.slice_us * slices;
                (cut_us, shared.clusters.round_us)
            }
        };
        blocks.rounds * (sums_us + cut_us) + (blocks.rounds - 1.0) * round_us
    }
}

/// What the blocks of a launch take, whatever they read.
struct Blocks {
    /// Until the last one has multiplied, in µs.
    us: f64,
    /// Blocks of a multiprocessor at a time.
    beside: f64,
    /// Rounds of such blocks.
    rounds: f64,
}

impl KernelCost {
    /// The part of the peak that so many blocks of a multiprocessor reach together: `solo` alone, `full` where no more fit. Between the
    /// two, time goes up with what the busiest warp scheduler has to do, along a curve: a second block of two warps takes no longer beside
    /// the first.
    pub(super) fn rate(&self, blocks: f64, warps: u32) -> f64 {
        let resident = f64::from(self.resident.max(1));
        // What a scheduler has to do: blocks of few warps find one that is idle.
        let turns = |blocks: f64| (blocks * f64::from(warps) / SCHEDULERS).ceil();
        let [first, last] = [1.0, resident].map(turns);
        let together = resident / self.full;
        if first >= last {
            return blocks / together;
        }
        let alone = 1.0 / self.solo;
        let part = (turns(blocks) - first) / (last - first);
        blocks / (alone + (together - alone) * part.powf(self.curve))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceInfo;
    use crate::gemm::kernel::costs::{Costs, ParallelCosts};
    use crate::gemm::operands::{DType, ElementTypes, OperandLayout};
    use crate::gemm::planner::plan::Plan;
    use crate::gemm::planner::work::{edges, outside};
    use crate::gemm::problem::GemmProblem;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// A product of drawn size, type, order, alignment and batch.
    fn drawn(rng: &mut StdRng) -> GemmProblem {
        let mut size = || match rng.random_range(0..3) {
            0 => rng.random_range(1..=8),
            1 => rng.random_range(1..=600),
            _ => 32 * rng.random_range(1..=80),
        };
        let (m, n, k) = (size(), size(), size());
        let mut layout = |rows: usize, cols: usize| {
            let gap = rng.random_range(0..2) * rng.random_range(0..5);
            match rng.random::<bool>() {
                true => OperandLayout::row_major(cols + gap),
                false => OperandLayout::col_major(rows + gap),
            }
        };
        let (a, b) = (layout(m, k), layout(k, n));
        let mut problem = GemmProblem::new(m, n, k, a, b);
        let dtypes = [DType::F32, DType::F64, DType::F16, DType::BF16];
        problem.types = ElementTypes::all_of(dtypes[rng.random_range(0..dtypes.len())]);
        problem
    }

    /// What plans take of so many drawn products, on a GPU before Hopper and on one of it.
    fn each_drawn_plan(
        rng: &mut StdRng,
        count: usize,
        mut act: impl FnMut(&mut StdRng, &Plan, &Work, KernelCost, SharedCosts),
    ) {
        for device in [DeviceInfo::A100, DeviceInfo::H200] {
            let costs = Costs::built_in(&device);
            for _ in 0..count {
                let Ok(problem) = drawn(rng).folded() else {
                    continue;
                };
                for plan in Plan::candidates(&problem, &device, costs) {
                    let (Some(&cost), &shared) = (costs.of(plan.kernel), costs.shared_of(problem.dtype())) else {
                        panic!("a candidate without costs: {plan}");
                    };
                    act(rng, &plan, &plan.work(&device), cost, shared);
                }
            }
        }
    }

    #[test]
    fn blocks_of_a_work_queue_take_whole_strips() {
        let mut rng = StdRng::seed_from_u64(12);
        let device = DeviceInfo::H200;
        let costs = Costs::built_in(&device);
        let mut ragged = 0;
        for _ in 0..2000 {
            let mut problem = GemmProblem::row_major(
                rng.random_range(1..=16),
                rng.random_range(1..=20_000),
                rng.random_range(1..=9_000),
            );
            problem.b = OperandLayout::col_major(problem.k);
            let Ok(problem) = problem.folded() else { continue };
            for plan in Plan::candidates(&problem, &device, costs) {
                let work = plan.work(&device);
                let Cut::WorkQueue(queue) = work.cut else { continue };
                let Some(cost) = costs.of(plan.kernel) else {
                    panic!("a candidate without costs: {plan}");
                };
                let us = |strips: u32| work.work_queue_us(WorkQueue { strips, ..queue }, work.peak, cost);
                let rounds = queue.strips.div_ceil(queue.members);
                ragged += u32::from(rounds * queue.members != queue.strips);
                // The busiest block has as many strips as if all had.
                assert_eq!(us(queue.strips), us(rounds * queue.members), "{plan}");
                assert!(us(queue.strips) < us(rounds * queue.members + 1), "{plan}");
            }
        }
        assert!(ragged > 100, "{ragged} queues with blocks that have a strip less");
    }

    #[test]
    fn what_a_kernel_takes_of_a_launch_counts_where_it_starts_early() {
        let (mut early, mut late) = (0, 0);
        each_drawn_plan(&mut StdRng::seed_from_u64(13), 200, |rng, plan, work, cost, shared| {
            let us = |start: f64| work.us(&KernelCost { start, ..cost }, &shared);
            let (least, part, whole) = (us(0.0), us(rng.random_range(0.1..0.9)), us(1.0));
            match work.starts_early {
                // The launch counts in full; until memory delivers, something else may take as long.
                true => {
                    assert!(least < part && part < whole, "{plan}");
                    assert!(whole - least >= shared.early_launch_us * (1.0 - 1e-9), "{plan}");
                    early += 1;
                }
                false => {
                    assert!(least == whole && part == whole, "{plan}");
                    late += 1;
                }
            }
        });
        assert!(
            early > 100 && late > 100,
            "{early} that start early, {late} that do not"
        );
    }

    #[test]
    fn each_round_of_slices_takes_its_time() {
        let (mut rng, mut one, mut several) = (StdRng::seed_from_u64(16), 0, 0);
        for device in [DeviceInfo::A100, DeviceInfo::H200] {
            let costs = Costs::built_in(&device);
            for _ in 0..60 {
                let mut size = |most: usize| rng.random_range(1..=most);
                let problem = GemmProblem::row_major(size(100), size(100), size(100_000));
                let Ok(problem) = problem.folded() else { continue };
                let round_us = rng.random_range(0.1..5.0);
                for plan in Plan::candidates(&problem, &device, costs) {
                    let (Some(cost), &shared) = (costs.of(plan.kernel), costs.shared_of(problem.dtype())) else {
                        panic!("a candidate without costs: {plan}");
                    };
                    let us = |round_us: f64| {
                        let parallel = ParallelCosts {
                            round_us,
                            ..shared.parallel
                        };
                        plan.work(&device).us(cost, &SharedCosts { parallel, ..shared })
                    };
                    let further = match plan.cut {
                        // Eight groups of threads have eight of them under way each.
                        Cut::Parallel(slices) => slices.div_ceil(64) - 1,
                        _ => 0,
                    };
                    let more = us(round_us) - us(0.0);
                    assert!((more - f64::from(further) * round_us).abs() < 1e-6, "{plan}: {more}");
                    one += u32::from(matches!(plan.cut, Cut::Parallel(_)) && further == 0);
                    several += u32::from(further > 0);
                }
            }
        }
        assert!(one > 100 && several > 100, "{one} with one round, {several} with more");
    }

    #[test]
    fn turns_of_k_take_their_time_where_threads_share_it_and_nowhere_else() {
        let (mut shared_k, mut others) = (0, 0);
        each_drawn_plan(&mut StdRng::seed_from_u64(15), 200, |_, plan, work, cost, shared| {
            let us = |turn_us: f64| work.us(&KernelCost { turn_us, ..cost }, &shared);
            assert_eq!(plan.kernel.takes_turns_of_k(), work.turns > 0.0, "{plan}");
            match plan.kernel.takes_turns_of_k() {
                // Long ones leave nothing else to wait for.
                true => {
                    let turn_us = us(0.0);
                    assert!(us(turn_us) >= work.turns * turn_us, "{plan}");
                    shared_k += 1;
                }
                false => {
                    assert_eq!(us(0.0), us(1.0), "{plan}");
                    others += 1;
                }
            }
        });
        assert!(
            shared_k > 100 && others > 100,
            "{shared_k} whose threads share k, {others} others"
        );
    }

    #[test]
    fn what_sticks_out_is_a_part_and_costs_time() {
        each_drawn_plan(&mut StdRng::seed_from_u64(11), 300, |_, plan, work, cost, shared| {
            let (spec, problem) = (plan.kernel, &plan.problem);
            let sides = [(problem.m, spec.tile.bm), (problem.n, spec.tile.bn)];
            let ragged = sides.iter().filter(|(size, tile)| size % *tile as usize != 0).count() as f64;
            let [one, many] = [1.0, 50.0].map(|of_one| edges(spec, problem, of_one));
            let outside = outside(spec, problem);
            match spec.tma_boxes {
                Some(_) => assert!(
                    one == 0.0 && (outside > 1e-12) == (ragged > 0.0) && outside < ragged.max(1e-12),
                    "{plan}"
                ),
                None => assert!(outside == 0.0 && one == ragged && (0.0..=one).contains(&many), "{plan}"),
            }
            assert!((0.0..=1.0).contains(&work.ragged) && work.other_order <= 2.0, "{plan}");
            let us = work.us(&cost, &shared);
            let mut dearer = [cost; 10];
            dearer[0].edges += 1.0;
            dearer[1].crowd += 1.0;
            dearer[2].other_order += 1.0;
            dearer[3].ragged_us += 1.0;
            dearer[4].general_us += 1.0;
            dearer[5].general += 1.0;
            dearer[6].share_us += 1.0;
            dearer[7].slice_us += 1.0;
            dearer[8].other_order_us += 1.0;
            dearer[9].start += 1.0;
            for dear in dearer {
                assert!(work.us(&dear, &shared) >= us, "{plan}");
            }
            let mut dearer = [shared; 11];
            dearer[0].clusters.round_us += 1.0;
            dearer[1].off_sectors += 1.0;
            dearer[2].l2_off_sectors += 1.0;
            dearer[3].repack.access += 1.0;
            dearer[4].parallel.start_us += 1.0;
            dearer[5].parallel.bandwidth /= 2.0;
            dearer[6].uneven += 1.0;
            dearer[7].stream_k.out_of_step += 1.0;
            dearer[8].single_line += 1.0;
            dearer[9].single_outside += 1.0;
            dearer[10].parallel.round_us += 1.0;
            for dear in dearer {
                assert!(us.is_finite() && us > 0.0 && work.us(&cost, &dear) >= us, "{plan}");
            }
        });
    }

    #[test]
    fn less_room_for_clusters_is_never_faster_and_concerns_clusters_alone() {
        let (mut rng, mut slower) = (StdRng::seed_from_u64(12), 0);
        for _ in 0..200 {
            let Ok(problem) = drawn(&mut rng).folded() else {
                continue;
            };
            // As if clusters found room on a half of the multiprocessors, or fewer.
            let few = rng.random_range(16..=66);
            let mut whole = DeviceInfo::H200;
            let mut part = whole;
            for (beside, (whole, part)) in (1..).zip(whole.clusters.iter_mut().zip(&mut part.clusters)) {
                for (blocks, (whole, part)) in (2..).zip(whole.iter_mut().zip(part)) {
                    *whole = beside * 132 / blocks;
                    *part = (beside * few / blocks).max(1);
                }
            }
            for plan in Plan::candidates(&problem, &whole, Costs::built_in(&whole)) {
                let (Some(cost), shared) = (
                    Costs::built_in(&whole).of(plan.kernel),
                    Costs::built_in(&whole).shared_of(problem.dtype()),
                ) else {
                    panic!("a candidate without costs: {plan}");
                };
                // Blocks that go on by themselves as soon as there is room wait for no round of others.
                let cost = KernelCost { flow: 0.0, ..*cost };
                let [with, without] = [whole, part].map(|device| plan.work(&device).us(&cost, shared));
                match plan.cut {
                    Cut::Cluster(_) => assert!(without >= with - 1e-9, "{plan}: {with} and {without}"),
                    _ => assert_eq!(with, without, "{plan}"),
                }
                slower += usize::from(without > with);
            }
        }
        assert!(slower > 100, "{slower}");
    }

    #[test]
    fn more_matrices_take_no_less_time_whether_blocks_flow_or_come_in_waves() {
        let mut rng = StdRng::seed_from_u64(12);
        let (mut compared, mut differ) = (0, 0);
        for _ in 0..200 {
            let device = [DeviceInfo::A100, DeviceInfo::H100, DeviceInfo::H200][rng.random_range(0..3)];
            let costs = Costs::built_in(&device);
            let shared = SharedCosts {
                tail: rng.random_range(0.0..=1.0),
                ..costs.shared
            };
            let [m, n, k] = [(); 3].map(|()| 128 * rng.random_range(1..=6));
            let of = |batch: usize| {
                let matrices = |rows: usize, cols: usize| {
                    OperandLayout::row_major(cols).with_batch_strides([0, 0, 0, (rows * cols) as i64])
                };
                let mut problem = GemmProblem::new(m, n, k, matrices(m, k), matrices(k, n));
                problem.batch_dims = [1, 1, 1, batch];
                problem.d = matrices(m, n);
                problem.folded().unwrap()
            };
            let batch = rng.random_range(2..200);
            let (fewer, more) = (of(batch), of(batch + 1));
            for plan in
                Plan::candidates(&fewer, &device, costs).filter(|plan| plan.cut == Cut::Whole && !plan.is_repacked())
            {
                let cost = KernelCost {
                    flow: rng.random_range(0.0..=1.0),
                    curve: rng.random_range(0.2..3.0),
                    // A tile that sticks out keeps fewer waiting where there are more.
                    edges: 0.0,
                    ..*costs.of(plan.kernel).unwrap()
                };
                let [few, many] = [&fewer, &more]
                    .map(|problem| Work::of(plan.kernel, problem, &[None; 2], &device, Cut::Whole).us(&cost, &shared));
                assert!(
                    few.is_finite() && few <= many * (1.0 + 1e-12),
                    "{plan}: {few} {many}, {cost:?}"
                );
                compared += 1;
                let waves = KernelCost { flow: 0.0, ..cost };
                differ += usize::from(
                    Work::of(plan.kernel, &fewer, &[None; 2], &device, Cut::Whole).us(&waves, &shared) != few,
                );
            }
        }
        assert!(compared > 1000 && differ > compared / 4, "{compared} {differ}");
    }
}
