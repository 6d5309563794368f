//! What a plan costs: the model by which the planner compares plans. [`Work`] is what there is to do, and [`Costs`] what that
//! takes; clock, lanes and multiprocessors of the device at hand scale it.

use super::prepare::{Repack, Repacks, SECTOR_BYTES};
use crate::device::{DeviceInfo, BLOCKS_BESIDE};
use crate::gemm::kernel::costs::{KernelCost, RepackCosts, SharedCosts};
use crate::gemm::kernel::spec::{Arithmetic, Grid, KernelSpec, Side};
use crate::gemm::operands::{Access, OperandLayout};
use crate::gemm::problem::GemmProblem;
use crate::gemm::schedule::cut::Cut;
use crate::gemm::schedule::parallel;

#[cfg(doc)]
use crate::gemm::kernel::costs::Costs;

/// Shorter sums take four TF32 products instead of three: `kShortSum` in `cuda/tensor_core/split.cuh`.
pub const SHORT_SUM: usize = 384;

/// Bytes that a multiprocessor fetches from the L2 in a clock at most.
const L2_BYTES_PER_CLOCK: f64 = 64.0;

/// Operands of `problem` that the threads of a kernel read element by element.
fn single_elements(spec: &KernelSpec, problem: &GemmProblem) -> usize {
    if spec.tma_boxes.is_some() {
        return 0;
    }
    let accesses = problem.accesses();
    let accesses = [(accesses.a, Side::M), (accesses.b, Side::N)];
    let single = |&&(access, side): &&(Access, Side)| match spec.vector_order(side) {
        Some(order) => access != order,
        None => !matches!(access, Access::RowVector | Access::ColVector),
    };
    accesses.iter().filter(single).count()
}

/// Whether this is what a kernel has a loop of its own for. Where lanes share k: one matrix, all of which can be read 16 bytes at a time,
/// and vectors along k. Where a block has tiles: operands without gaps between their elements.
fn is_plain(spec: &KernelSpec, problem: &GemmProblem) -> bool {
    let accesses = problem.accesses();
    if !spec.lanes_share_k() {
        return accesses.a != Access::Strided && accesses.b != Access::Strided;
    }
    let vector = VECTOR_BYTES / problem.dtype().size();
    let (matrix, along_k, lines, vectors) = match (spec.needs.a, spec.needs.b) {
        ([], &[wanted, ..]) => (
            accesses.b == wanted,
            wanted == Access::ColVector,
            problem.n,
            accesses.a == Access::RowVector,
        ),
        (&[wanted, ..], []) => (
            accesses.a == wanted,
            wanted == Access::RowVector,
            problem.m,
            accesses.b == Access::ColVector,
        ),
        _ => return true,
    };
    let whole = problem.k.is_multiple_of(vector) && (along_k || lines.is_multiple_of(vector));
    problem.batch() == 1 && matrix && vectors && whole
}

/// The part of A and B that lies in the order which threads read more slowly, 2 if all does. Where a block has tiles: what lies along k,
/// and is transposed on its way to shared memory, by the rows of A and columns of B that a tile has. Where lanes share k: vectors that
/// do not lie along k.
fn other_order(spec: &KernelSpec, problem: &GemmProblem) -> f64 {
    if spec.tma_boxes.is_some() {
        return 0.0;
    }
    let accesses = problem.accesses();
    let a = matches!(accesses.a, Access::RowVector | Access::RowScalar);
    let b = matches!(accesses.b, Access::ColVector | Access::ColScalar);
    if spec.lanes_share_k() {
        let across = |side: Side, along_k: bool| !along_k && spec.vector_order(side).is_some();
        return f64::from(u8::from(across(Side::M, a) || across(Side::N, b)));
    }
    let [rows, cols] = [spec.tile.bm, spec.tile.bn].map(f64::from);
    let part = |along_k: bool, lines: f64| if along_k { lines } else { 0.0 };
    2.0 * (part(a, rows) + part(b, cols)) / (rows + cols)
}

/// The parts of its tiles' rows and columns that a matrix has.
fn filled(spec: &KernelSpec, problem: &GemmProblem) -> [f64; 2] {
    let [tiles_m, tiles_n] = spec.tiles(problem);
    let part = |size: usize, tiles: usize, tile: u32| size as f64 / (tiles * tile as usize).max(1) as f64;
    [
        part(problem.m, tiles_m, spec.tile.bm),
        part(problem.n, tiles_n, spec.tile.bn),
    ]
}

/// Tiles that stick out of the matrix below or on the right, as parts of the `of_one` tiles that a multiprocessor has one after
/// another, where threads look whether what they read is inside: the sum of both sides. A single one keeps all waiting where each
/// multiprocessor has but one.
fn edges(spec: &KernelSpec, problem: &GemmProblem, of_one: f64) -> f64 {
    if spec.tma_boxes.is_some() {
        return 0.0;
    }
    let least = 1.0 / of_one.max(1.0);
    let part = |size: usize, tile: u32| match size % tile as usize {
        0 => 0.0,
        _ => least.max(1.0 / size.div_ceil(tile as usize) as f64),
    };
    part(problem.m, spec.tile.bm) + part(problem.n, spec.tile.bn)
}

/// The parts of tiles that lie outside of the matrix, where TMA fills them: the sum of both sides.
fn outside(spec: &KernelSpec, problem: &GemmProblem) -> f64 {
    if spec.tma_boxes.is_none() {
        return 0.0;
    }
    let [rows, cols] = filled(spec, problem);
    2.0 - rows - cols
}

/// The part of a slab whose loads keep memory busy, where blocks stay and read straight into registers: they have the next slab under
/// way too. Shorter k leaves threads without a load.
const BUSY_PART: f64 = 0.5;

/// What of memory's time the threads that have nothing in a slab leave unused there. On an H200, a vocabulary of 51864 takes a quarter longer
/// at k = 1152 in slabs of 1024 than where turns of k are filled (a recording of `calibrate`).
const STAYING_IDLE_PART: f64 = 0.4;

/// What of memory's time the threads that have nothing in a block's last turn of k leave unused, where blocks begin and end: others are
/// at work beside it. On an H200, dot products of k = 2048 in turns of 1536 take a tenth longer than those of 3072, byte for byte.
const IDLE_PART: f64 = 0.3;

/// What a turn of k takes of a block whose lanes share it, however few of them have a part of it, as a part of a full turn.
const TURN_PART: f64 = 0.25;

/// The part of its bandwidth at which memory is asked for a portion of k by a kernel that reads straight into registers, each lane its
/// part of k; 1 for all others.
fn slab_fill(spec: &KernelSpec, k: usize) -> f64 {
    if !spec.lanes_share_k() || spec.dynamic_shared != 0 {
        return 1.0;
    }
    let slab = spec.tile.bk as usize;
    let of_slabs = k as f64 / (k.div_ceil(slab) * slab) as f64;
    match spec.grid {
        Grid::Persistent => (of_slabs / BUSY_PART).min(1.0 - STAYING_IDLE_PART * (1.0 - of_slabs)),
        _ => 1.0 - IDLE_PART * (1.0 - of_slabs),
    }
}

/// Whether the rows of A and of B start off sectors, of which TMA asks for two halves then: 1 where they do. 0 where threads fetch.
fn off_sectors(spec: &KernelSpec, problem: &GemmProblem) -> [f64; 2] {
    if spec.tma_boxes.is_none() {
        return [0.0; 2];
    }
    let off = |operand: &OperandLayout, rows: usize, cols: usize| {
        // A single row starts where the operand does.
        let [pitch, count] = match operand.col_stride {
            1 => [operand.row_stride, rows as i64],
            _ => [operand.col_stride, cols as i64],
        };
        let bytes = (pitch.unsigned_abs() as usize).wrapping_mul(problem.dtype().size());
        f64::from(u8::from(count > 1 && !bytes.is_multiple_of(SECTOR_BYTES)))
    };
    [
        off(&problem.a, problem.m, problem.k),
        off(&problem.b, problem.k, problem.n),
    ]
}

/// Bytes that aligned transpositions read and write at once.
const VECTOR_BYTES: usize = 16;

/// Outputs of a tile of 128 × 128.
const LARGE_TILE: f64 = 128.0 * 128.0;

/// Threads of a warp.
const WARP: u32 = 32;

/// Warp schedulers of a multiprocessor.
const SCHEDULERS: f64 = 4.0;

/// What repacking an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Copy,
    Transpose,
    TransposeUnaligned,
}

impl Move {
    fn of(repack: &Repack) -> Self {
        let ([rows, cols], dtype) = (repack.size, repack.dtype);
        let vectors = matches!(
            repack.from.access(rows, cols, dtype),
            Access::RowVector | Access::ColVector
        );
        // Tiles of vectors have to be whole in both directions.
        let whole = |length: usize| (length * dtype.size()).is_multiple_of(VECTOR_BYTES);
        match repack.transposes() {
            false => Move::Copy,
            true if vectors && whole(rows) && whole(cols) => Move::Transpose,
            true => Move::TransposeUnaligned,
        }
    }
}

/// The widest access of a thread, in bytes.
const WIDEST: usize = 16;

/// An operand that is moved before the product.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moved {
    /// What its bytes take, read and written, at the datasheet's bandwidth, in µs.
    us: f64,
    how: Move,
    /// Whether there are gaps between its elements.
    gaps: bool,
    /// Accesses of a copy in place of one of [`WIDEST`] bytes: rows that start on fewer bytes are copied by smaller pieces.
    accesses: f64,
}

impl Moved {
    fn of(repack: &Repack, problem: &GemmProblem, bytes_per_us: f64) -> Self {
        let how = Move::of(repack);
        let [rows, cols] = repack.size;
        let element = repack.dtype.size();
        let gaps = repack.from.access(rows, cols, repack.dtype) == Access::Strided;
        let width = match how {
            Move::Copy if !gaps => {
                let (inner, pitch) = match repack.from.col_stride {
                    1 => (cols, repack.from.row_stride),
                    _ => (rows, repack.from.col_stride),
                };
                let batch = (0..problem.batch_dims.len()).filter(|&dim| problem.batch_dims[dim] > 1);
                let strides = batch.map(|dim| repack.from.batch_strides[dim]).chain([pitch]);
                // Whatever overflows: the lowest bits tell what rows start on.
                let bytes = strides.map(|stride| (stride.unsigned_abs() as usize).wrapping_mul(element));
                let all = bytes.fold(
                    inner.wrapping_mul(element) | repack.from.align as usize | WIDEST,
                    |all, bytes| all | bytes,
                );
                1 << all.trailing_zeros()
            }
            Move::Copy => element,
            Move::Transpose | Move::TransposeUnaligned => WIDEST,
        };
        Moved {
            us: 2.0 * repack.bytes as f64 / bytes_per_us,
            how,
            gaps,
            accesses: WIDEST as f64 / width as f64,
        }
    }

    fn cost_us(&self, repack: &RepackCosts) -> f64 {
        let cost = match self.how {
            Move::Copy => repack.copy,
            Move::Transpose => repack.transpose,
            Move::TransposeUnaligned => repack.transpose_unaligned,
        };
        let gaps = if self.gaps { repack.gaps } else { 1.0 };
        let accesses = 1.0 + repack.access * (self.accesses - 1.0);
        cost.start_us + self.us * accesses / (cost.bandwidth * gaps)
    }
}

/// What a plan has to do on a device, whatever that costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    cut: Cut,
    multiprocessors: u32,
    /// The part of the blocks that find room in clusters, where a multiprocessor holds one, two, … of them and the device tells.
    room: Option<[f64; BLOCKS_BESIDE]>,
    /// Blocks of the grid if each had one tile, or a slice of it.
    blocks: usize,
    /// Warps of a block.
    warps: u32,
    /// Operations of a block in one portion of k.
    step_flops: f64,
    /// Operations of a block.
    flops: f64,
    /// Operations that a multiprocessor does in a µs at most.
    peak: f64,
    /// Operands that are read by single elements.
    single_elements: usize,
    /// Tiles that stick out of the matrix, where threads look whether what they read is inside, as parts of those that a
    /// multiprocessor has.
    edges: f64,
    /// The parts of tiles outside of the matrix that TMA fills.
    outside: f64,
    /// The part of A and B in the order that threads read more slowly; 2: all.
    other_order: f64,
    /// What A, B and D take at the datasheet's bandwidth, in µs, or longer where the kernel does not ask for so much at a time.
    memory_us: f64,
    /// How many more blocks the busiest multiprocessor has than it would if all had as many, as a part.
    uneven: f64,
    /// What A and B take there once more, as far as several tiles fetch the same of them, in µs.
    far_us: f64,
    /// What the portions of A and B that the blocks of the busiest multiprocessor fetch take from the L2 at least, in µs.
    l2_us: f64,
    /// The same of what a multiprocessor fetches on average.
    l2_average_us: f64,
    /// The part of what blocks fetch of A and B in rows off sectors, where TMA does it.
    off_sectors: f64,
    /// What such operands take at the datasheet's bandwidth, in µs.
    off_sectors_us: f64,
    /// The part of its tiles that D has, where its rows start off 16 bytes; 0 where they do not.
    ragged: f64,
    /// Whether the operands are not what the kernel has a loop of its own for.
    general: bool,
    /// Whether there is a batch, in which a block has to find its matrices.
    batched: bool,
    /// Whether the kernel gets ready while the one before it ends.
    starts_early: bool,
    /// Whether two blocks share tiles.
    pairs: bool,
    /// Outputs of a tile, as a part of one of 128 × 128.
    large_tiles: f64,
    /// What sums that a second kernel adds up take at the datasheet's bandwidth of memory, written and read, in µs.
    slices_us: f64,
    /// What is moved of A and B.
    repacks: [Option<Moved>; 2],
}

impl Work {
    /// What this kernel has to do for `problem`, with k cut in this way and the operands repacked as it finds them.
    pub fn of(spec: &KernelSpec, problem: &GemmProblem, repacks: &Repacks, device: &DeviceInfo, cut: Cut) -> Self {
        let tile = spec.tile;
        let split_k = match cut {
            Cut::Cluster(slices) | Cut::Parallel(slices) => slices,
            Cut::Whole | Cut::StreamK(_) | Cut::WorkQueue(_) => 1,
        };
        let k_slice = cut.k_slice(problem.k as u32, tile.bk);
        let step_flops = 2.0 * tile.bm as f64 * tile.bn as f64 * tile.bk as f64;
        let steps = k_slice as f64 / tile.bk as f64;
        // Lanes without a part of k have little to do.
        let steps = match spec.lanes_share_k() {
            true => TURN_PART * steps.ceil() + (1.0 - TURN_PART) * steps,
            false if spec.halves_end => (2.0 * steps).ceil() / 2.0,
            false => steps.ceil(),
        };
        let products = match spec.arithmetic {
            Arithmetic::Tf32x3 if problem.k < SHORT_SUM => 4.0 / 3.0,
            _ => 1.0,
        };
        let pairs = matches!(spec.grid, Grid::Clusters(_));
        let blocks = spec
            .units(problem)
            .saturating_mul(if pairs { 2 } else { split_k as usize });
        // Blocks of a pair fetch one half each of what they share.
        let [rows, cols] = [tile.bm, tile.bn].map(f64::from);
        let lines = match spec.grid {
            Grid::Clusters(Side::M) => [rows, cols / 2.0],
            Grid::Clusters(Side::N) => [rows / 2.0, cols],
            _ => [rows, cols],
        };
        let multiprocessors = device.sm_count.max(1);
        // The multiprocessor with most blocks counts, where blocks begin and end with their tile.
        let blocks_of_one = match cut {
            Cut::Whole | Cut::Cluster(_) | Cut::Parallel(_) => blocks.div_ceil(multiprocessors as usize) as f64,
            Cut::StreamK(_) | Cut::WorkQueue(_) => blocks as f64 / f64::from(multiprocessors),
        };
        let slice_bytes = (lines[0] + lines[1]) * f64::from(k_slice) * problem.dtype().size() as f64;
        let l2_bytes_per_us = L2_BYTES_PER_CLOCK * f64::from(device.clock_mhz);
        let [tiles_m, tiles_n] = match (spec.grid, spec.tiles(problem)) {
            (Grid::Clusters(Side::M), [m, n]) => [m.div_ceil(2), n],
            (Grid::Clusters(Side::N), [m, n]) => [m, n.div_ceil(2)],
            (_, tiles) => tiles,
        };
        let elements = |operand: &OperandLayout, rows: usize, cols: usize| {
            let matrices = (0..problem.batch_dims.len()).filter(|&dim| operand.batch_strides[dim] != 0);
            let matrices: usize = matrices.map(|dim| problem.batch_dims[dim]).product();
            matrices as f64 * rows as f64 * cols as f64
        };
        let again = |tiles: usize| 1.0 - 1.0 / tiles.max(1) as f64;
        let far_bytes = problem.dtype().size() as f64
            * (elements(&problem.a, problem.m, problem.k) * again(tiles_n)
                + elements(&problem.b, problem.k, problem.n) * again(tiles_m));
        let off = off_sectors(spec, problem);
        let off_bytes = problem.dtype().size() as f64
            * (elements(&problem.a, problem.m, problem.k) * off[0]
                + elements(&problem.b, problem.k, problem.n) * off[1]);
        // GB/s to bytes/µs: 1e3.
        let bytes_per_us = device.memory_gbps as f64 * 1e3;
        Work {
            cut,
            multiprocessors: device.sm_count,
            room: match cut {
                Cut::Cluster(slices) => device.room_for_clusters(slices),
                _ => None,
            },
            blocks,
            warps: spec.threads.div_ceil(WARP),
            step_flops,
            flops: step_flops * steps,
            peak: device.peak_flops_per_us(spec.arithmetic) / products,
            single_elements: single_elements(spec, problem),
            other_order: other_order(spec, problem),
            edges: edges(spec, problem, blocks as f64 / f64::from(multiprocessors)),
            outside: outside(spec, problem),
            memory_us: problem.min_bytes() / bytes_per_us / slab_fill(spec, problem.k),
            far_us: far_bytes / bytes_per_us,
            uneven: match cut {
                Cut::Whole | Cut::Cluster(_) | Cut::Parallel(_) => {
                    let even = blocks as f64 / f64::from(multiprocessors);
                    if even > 1.0 {
                        even.ceil() / even - 1.0
                    } else {
                        0.0
                    }
                }
                Cut::StreamK(_) | Cut::WorkQueue(_) => 0.0,
            },
            l2_us: slice_bytes * blocks_of_one / l2_bytes_per_us,
            l2_average_us: slice_bytes * blocks as f64 / f64::from(multiprocessors) / l2_bytes_per_us,
            off_sectors: (lines[0] * off[0] + lines[1] * off[1]) / (lines[0] + lines[1]),
            off_sectors_us: off_bytes / bytes_per_us,
            ragged: match problem.accesses().d {
                Access::RowVector => 0.0,
                _ => filled(spec, problem).iter().product(),
            },
            general: !is_plain(spec, problem),
            batched: problem.batch() > 1,
            starts_early: spec.supports_pdl() && device.has_early_starts(),
            pairs,
            large_tiles: f64::from(tile.bm * tile.bn) / LARGE_TILE,
            slices_us: match cut {
                Cut::Parallel(slices) => 2.0 * parallel::workspace_bytes(problem, slices) as f64 / bytes_per_us,
                _ => 0.0,
            },
            repacks: repacks.map(|repack| Some(Moved::of(&repack?, problem, bytes_per_us))),
        }
    }

    /// The time that it takes, in µs: by arithmetic or by memory, whichever is longer, and what comes before and after.
    pub fn us(&self, cost: &KernelCost, shared: &SharedCosts) -> f64 {
        let split_k = if let Cut::Cluster(slices) = self.cut { slices } else { 1 };
        let (split_us, fitted_room) = shared.clusters.of(split_k);
        // The part of the multiprocessors that have something to do.
        let busy = (self.blocks as f64 / f64::from(self.multiprocessors.max(1))).min(1.0);
        let (general_us, general) = match self.general {
            true => (cost.general_us, cost.general),
            false => (0.0, 0.0),
        };
        let peak = self.peak
            / (1.0 + general)
            / (1.0 + cost.single_elements * self.single_elements as f64)
            / (1.0 + cost.edges * (self.edges + self.outside))
            / (1.0 + cost.other_order * self.other_order)
            / (1.0 + cost.crowd * busy);
        let ragged_us = self.ragged * cost.ragged_us;
        let batch_us = if self.batched { cost.batch_us } else { 0.0 };
        let (setup_us, wave_us) = (
            cost.setup_us + ragged_us + batch_us + general_us,
            cost.wave_us + ragged_us + batch_us,
        );
        // Blocks of a multiprocessor at a time, where each has one tile or a slice of it.
        let mut beside = 1.0;
        // Rounds of such blocks.
        let mut rounds = 1.0;
        // The time of a multiprocessor that works on so many blocks at once.
        let together = |blocks: f64| blocks * self.flops / (peak * cost.rate(blocks, self.warps));
        let arithmetic_us = match self.cut {
            Cut::StreamK(way) => {
                let range_us = way.cut_steps.div_ceil(way.ranges) as f64 * self.step_flops / (peak * cost.full);
                // What a range longer than a tile ends beside its last piece.
                let tiles = f64::from(way.share() / way.steps);
                let straddles = if way.straddles() { shared.stream_k.straddle } else { 0.0 };
                let pieces = f64::from(way.steps) / f64::from(way.share());
                let setups = 1.0 + tiles + shared.stream_k.finish + shared.stream_k.piece * pieces + straddles;
                f64::from(way.whole_tiles / way.blocks) * (wave_us + together(1.0)) + range_us + setups * setup_us
            }
            Cut::WorkQueue(queue) => {
                let waves = queue.blocks().div_ceil(self.multiprocessors.max(1));
                f64::from(waves) * f64::from(queue.strips) / f64::from(queue.members) * self.flops / (peak * cost.full)
            }
            Cut::Whole | Cut::Cluster(_) | Cut::Parallel(_) => {
                let resident = cost.resident.max(1);
                // Blocks that find room if a multiprocessor holds so many at most. What a cluster leaves over of a group of multiprocessors is
                // no more where each holds several blocks.
                let slots = |each: u32| {
                    let held = match self.room {
                        Some(room) => f64::from(each) * room[(each as usize).clamp(1, BLOCKS_BESIDE) - 1],
                        None => f64::from(each) - 1.0 + fitted_room,
                    };
                    let all = f64::from(self.multiprocessors) * held;
                    (all.round() as u32 / split_k * split_k).max(1) as usize
                };
                let each = |blocks: usize| (1..resident).find(|&each| blocks <= slots(each)).unwrap_or(resident);
                let wave = slots(resident);
                let rest = self.blocks % wave;
                let waves = self.blocks / wave;
                let (rest_us, more) = match rest {
                    0 => (0.0, waves.saturating_sub(1)),
                    rest => (together(f64::from(each(rest))), waves),
                };
                rounds = self.blocks.div_ceil(wave).max(1) as f64;
                beside = f64::from(each(self.blocks));
                let in_waves = waves as f64 * together(cost.resident as f64) + rest_us;
                // Where each multiprocessor goes on by itself, all work at the full rate until there are no more blocks to begin; then those
                // under way end beside fewer others.
                let [alone, beside_others] = [cost.solo, cost.full].map(|rate| self.flops / (peak * rate));
                let of_one = self.blocks as f64 / slots(1) as f64;
                let flowing = (of_one * beside_others + shared.tail * (alone - beside_others)).max(alone);
                setup_us
                    + cost.beside_us * (beside - 1.0)
                    + more as f64 * wave_us
                    + (1.0 - cost.flow) * in_waves
                    + cost.flow * flowing
            }
        };
        let bandwidth = cost.bandwidth / (1.0 + cost.edges * self.outside);
        let memory_us = shared.memory_start_us
            + (self.memory_us * (1.0 + shared.uneven * self.uneven)
                + shared.off_sectors * self.off_sectors_us
                + shared.far * self.far_us)
                / bandwidth;
        let handed_on = 1.0 - 1.0 / f64::from(split_k);
        let sums_us = shared.clusters.sums_us * self.large_tiles * beside * handed_on;
        let (cut_us, round_us) = match split_k {
            1 => (0.0, 0.0),
            slices => {
                let slices = f64::from(slices);
                let cut_us = cost.cut_us + cost.share_us / slices + cost.slice_us * slices;
                (cut_us, shared.clusters.round_us)
            }
        };
        let exchange_us = rounds * (sums_us + cut_us) + (rounds - 1.0) * round_us;
        let launch_us = match self.starts_early {
            true => shared.early_launch_us,
            false => shared.launch_us,
        };
        let pairs_us = if self.pairs { shared.pairs_us } else { 0.0 };
        let queue_us = match self.cut {
            Cut::WorkQueue(queue) if queue.slices > 1 => setup_us + shared.queue_slices_us,
            Cut::WorkQueue(_) => setup_us,
            _ => 0.0,
        };
        let repacks_us: f64 = self
            .repacks
            .iter()
            .flatten()
            .map(|moved| moved.cost_us(&shared.repack))
            .sum();
        let l2_us = match shared.l2 {
            0.0 => 0.0,
            together => {
                let off_sectors = 1.0 + shared.l2_off_sectors * self.off_sectors;
                self.l2_us.max(self.l2_average_us * together * off_sectors)
            }
        };
        let longest = arithmetic_us.max(memory_us).max(l2_us);
        let product_us = longest + shared.exposed * (arithmetic_us + memory_us + l2_us - longest);
        let parallel_us = match self.cut {
            Cut::Parallel(_) => shared.parallel.start_us + self.slices_us / shared.parallel.bandwidth,
            _ => 0.0,
        };
        launch_us + queue_us + split_us + parallel_us + pairs_us + exchange_us + product_us + repacks_us
    }
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

impl DeviceInfo {
    /// Floating-point operations that a multiprocessor does in a µs at most. Three TF32 products count as one.
    fn peak_flops_per_us(&self, arithmetic: Arithmetic) -> f64 {
        let a_clock = match arithmetic {
            Arithmetic::Ffma => 2 * self.fp32_lanes(),
            Arithmetic::Tf32 => self.tf32_flops_per_clock(),
            Arithmetic::Tf32x3 => self.tf32_flops_per_clock() / 3,
            Arithmetic::Half => 2 * self.tf32_flops_per_clock(),
        };
        a_clock as f64 * self.clock_mhz as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::kernel::costs::Costs;
    use crate::gemm::kernel::table;
    use crate::gemm::operands::{DType, ElementTypes};
    use crate::gemm::planner::plan::Plan;
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

    #[test]
    fn what_sticks_out_is_a_part_and_costs_time() {
        let mut rng = StdRng::seed_from_u64(11);
        for device in [DeviceInfo::A100, DeviceInfo::H200] {
            let costs = Costs::built_in(&device);
            for _ in 0..300 {
                let Ok(problem) = drawn(&mut rng).folded() else {
                    continue;
                };
                for plan in Plan::candidates(&problem, &device, costs) {
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
                    let work = plan.work(&device);
                    assert!((0.0..=1.0).contains(&work.ragged) && work.other_order <= 2.0, "{plan}");
                    let (Some(&cost), &shared) = (costs.of(spec), costs.shared_of(problem.dtype())) else {
                        panic!("a candidate without costs: {plan}");
                    };
                    let us = work.us(&cost, &shared);
                    let mut dearer = [cost; 8];
                    dearer[0].edges += 1.0;
                    dearer[1].crowd += 1.0;
                    dearer[2].other_order += 1.0;
                    dearer[3].ragged_us += 1.0;
                    dearer[4].general_us += 1.0;
                    dearer[5].general += 1.0;
                    dearer[6].share_us += 1.0;
                    dearer[7].slice_us += 1.0;
                    for dear in dearer {
                        assert!(work.us(&dear, &shared) >= us, "{plan}");
                    }
                    let mut dearer = [shared; 7];
                    dearer[0].clusters.round_us += 1.0;
                    dearer[1].off_sectors += 1.0;
                    dearer[2].l2_off_sectors += 1.0;
                    dearer[3].repack.access += 1.0;
                    dearer[4].parallel.start_us += 1.0;
                    dearer[5].parallel.bandwidth /= 2.0;
                    dearer[6].uneven += 1.0;
                    for dear in dearer {
                        assert!(us.is_finite() && us > 0.0 && work.us(&cost, &dear) >= us, "{plan}");
                    }
                }
            }
        }
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

    fn spec(name: &str) -> &'static KernelSpec {
        table::find(name).unwrap()
    }

    #[test]
    fn rows_off_sectors_count_where_tma_fetches_them() {
        let mut rng = StdRng::seed_from_u64(13);
        for _ in 0..2000 {
            // Rows along k of any multiple of 16 bytes, as TMA takes them.
            let mut pitch = || 8 * rng.random_range(8..200usize);
            let [a, b] = [pitch(), pitch()];
            let m = rng.random_range(1..5);
            let mut problem = GemmProblem::new(m, 512, 64, OperandLayout::row_major(a), OperandLayout::col_major(b));
            problem.types = ElementTypes::all_of(DType::BF16);
            let off = |pitch: usize| f64::from(u8::from(!(2 * pitch).is_multiple_of(SECTOR_BYTES)));
            // A single row starts where the operand does.
            let wanted = [if m > 1 { off(a) } else { 0.0 }, off(b)];
            assert_eq!(
                off_sectors(spec("gemm_bf16_sm90_128x64_nt"), &problem),
                wanted,
                "{a} {b}"
            );
            assert_eq!(off_sectors(spec("gemm_bf16_mma_64x64"), &problem), [0.0; 2]);
        }
    }

    #[test]
    fn copies_take_as_many_accesses_as_the_start_of_rows_makes_them() {
        let (mut rng, device) = (StdRng::seed_from_u64(14), DeviceInfo::H200);
        let mut copies = [0; 4];
        for _ in 0..300 {
            let dtype = [DType::F32, DType::F16, DType::BF16][rng.random_range(0..3)];
            let columns = rng.random_range(20..700usize);
            let mut problem = GemmProblem::row_major(rng.random_range(1..300), columns, rng.random_range(20..300));
            problem.types = ElementTypes::all_of(dtype);
            let problem = problem.folded().unwrap();
            // Rows of B start on this many bytes.
            let width = (1 << (columns * dtype.size()).trailing_zeros()).min(WIDEST);
            for plan in Plan::candidates(&problem, &device, Costs::built_in(&device)) {
                match plan.repacks[1].map(|repack| Moved::of(&repack, &problem, 1.0)) {
                    Some(moved) if moved.how == Move::Copy => {
                        assert_eq!(moved.accesses, (WIDEST / width) as f64, "{plan}");
                        copies[width.ilog2() as usize - 1] += 1;
                    }
                    Some(moved) => assert_eq!(moved.accesses, 1.0, "{plan}"),
                    None => {}
                }
            }
        }
        assert!(copies[..3].iter().all(|&count| count > 50), "{copies:?}");
    }

    #[test]
    fn a_kernel_has_a_loop_of_its_own_for_one_matrix_of_whole_vectors() {
        let problem = |m: usize, n: usize, k: usize| GemmProblem::row_major(m, n, k);
        let plain = |name: &str, problem: &GemmProblem| is_plain(spec(name), problem);
        // B along its lines: NN.
        assert!(plain("gemv_axpy_m4", &problem(4, 512, 128)));
        for (n, k) in [(512, 127), (511, 128), (510, 126)] {
            assert!(!plain("gemv_axpy_m4", &problem(4, n, k)), "{n} {k}");
        }
        let mut batch = problem(4, 512, 128);
        batch.batch_dims = [1, 1, 1, 2];
        batch.a.batch_strides = [0, 0, 0, 4 * 128];
        batch.b.batch_strides = [0, 0, 0, 128 * 512];
        batch.d.batch_strides = [0, 0, 0, 4 * 512];
        assert!(!plain("gemv_axpy_m4", &batch) && plain("ffma_64x64", &batch));
        // B along k: NT.
        let along_k = GemmProblem::new(
            4,
            511,
            128,
            OperandLayout::row_major(128),
            OperandLayout::col_major(128),
        );
        assert!(plain("gemv_dot_m4", &along_k));
        let gaps = GemmProblem::new(64, 64, 64, OperandLayout::strided(256, 2), OperandLayout::row_major(64));
        assert!(!plain("ffma_unaligned_64x64", &gaps) && plain("ffma_unaligned_64x64", &problem(65, 67, 63)));
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
