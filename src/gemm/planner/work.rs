//! What a plan has to do on a device, whatever that costs: operations, bytes, blocks and what is irregular about them.

use super::moved::Moved;
use super::prepare::{Repacks, SECTOR_BYTES};
use crate::device::{DeviceInfo, BLOCKS_BESIDE, VECTOR_BYTES};
use crate::gemm::kernel::spec::{Arithmetic, Grid, KernelSpec, Side};
use crate::gemm::operands::{Access, OperandLayout};
use crate::gemm::problem::GemmProblem;
use crate::gemm::schedule::cut::Cut;
use crate::gemm::schedule::parallel;

/// Shorter sums take four TF32 products instead of three: `kShortSum` in `cuda/tensor_core/split.cuh`.
pub const SHORT_SUM: usize = 384;

/// Bytes that a multiprocessor fetches from the L2 in a clock at most.
const L2_BYTES_PER_CLOCK: f64 = 64.0;

/// Operands of `problem` that the threads of a kernel read element by element. Where lanes share k and both lie along it, one operand is
/// read as the other: both, or none.
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
    let along_k =
        spec.vector_order(Side::M) == Some(Access::RowVector) || spec.vector_order(Side::N) == Some(Access::ColVector);
    match accesses.iter().filter(single).count() {
        1 if along_k => accesses.len(),
        count => count,
    }
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
pub(super) fn edges(spec: &KernelSpec, problem: &GemmProblem, of_one: f64) -> f64 {
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
pub(super) fn outside(spec: &KernelSpec, problem: &GemmProblem) -> f64 {
    if spec.tma_boxes.is_none() {
        return 0.0;
    }
    let [rows, cols] = filled(spec, problem);
    2.0 - rows - cols
}

/// The part of a slab whose loads keep memory busy, where blocks are persistent and read straight into registers: they have the next
/// slab under way too. Shorter k leaves threads without a load.
const BUSY_PART: f64 = 0.5;

/// What of memory's time the threads that have nothing in a slab leave unused there. On an H200, a vocabulary of 51864 takes a quarter longer
/// at k = 1152 in slabs of 1024 than where turns of k are filled (a recording of `calibrate`).
const PERSISTENT_IDLE_PART: f64 = 0.4;

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
        Grid::Persistent => (of_slabs / BUSY_PART).min(1.0 - PERSISTENT_IDLE_PART * (1.0 - of_slabs)),
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

/// What an output takes beside its products, in products: it passes the epilogue by itself.
const OUTPUT_PRODUCTS: f64 = 4.0;

/// The part of a tile's outputs and of its products that a thread computes; all, where a kernel computes what lies outside too.
fn inside(spec: &KernelSpec, problem: &GemmProblem) -> f64 {
    if !spec.leaves_out_outside {
        return 1.0;
    }
    let tile = spec.tile;
    let apart = (tile.bm / tile.tm) as usize;
    let outputs = problem.m.min(tile.bm as usize).div_ceil(apart);
    let products = |k: usize| OUTPUT_PRODUCTS + k as f64;
    let [all, here] = [tile.bk as usize, problem.k.min(tile.bk as usize)].map(products);
    outputs as f64 / f64::from(tile.tm) * here / all
}

/// Portions of k that a block has, counted by what they take.
fn steps_of_k(spec: &KernelSpec, k_slice: u32) -> f64 {
    let steps = f64::from(k_slice) / f64::from(spec.tile.bk);
    match spec.lanes_share_k() {
        // Lanes without a part of k have little to do.
        true => TURN_PART * steps.ceil() + (1.0 - TURN_PART) * steps,
        false if spec.halves_end => (2.0 * steps).ceil() / 2.0,
        false => steps.ceil(),
    }
}

/// Rows of A and columns of B that a block fetches: those of a pair fetch one half each of what they share.
fn fetched_lines(spec: &KernelSpec) -> [f64; 2] {
    let [rows, cols] = [spec.tile.bm, spec.tile.bn].map(f64::from);
    match spec.grid {
        Grid::Clusters(Side::M) => [rows, cols / 2.0],
        Grid::Clusters(Side::N) => [rows / 2.0, cols],
        _ => [rows, cols],
    }
}

/// Bytes of A and B, whose matrices count once where the batch shares them.
fn operand_bytes(problem: &GemmProblem) -> [f64; 2] {
    let bytes = |operand: &OperandLayout, rows: usize, cols: usize| {
        let matrices = (0..problem.batch_dims.len()).filter(|&dim| operand.batch_strides[dim] != 0);
        let matrices: usize = matrices.map(|dim| problem.batch_dims[dim]).product();
        problem.dtype().size() as f64 * (matrices as f64 * rows as f64 * cols as f64)
    };
    [
        bytes(&problem.a, problem.m, problem.k),
        bytes(&problem.b, problem.k, problem.n),
    ]
}

/// How many times as many bytes as it has come with an operand, of which memory and the L2 hand out whole sectors: 8 where elements of
/// 4 bytes lie far from each other, 1 where rows or columns are long and have no gaps.
fn whole_sectors(operand: &OperandLayout, rows: usize, cols: usize, element_bytes: usize) -> f64 {
    let bytes = |stride: i64| (stride.unsigned_abs() as f64) * element_bytes as f64;
    let mut sides = [(bytes(operand.row_stride), rows), (bytes(operand.col_stride), cols)];
    sides.sort_by(|(x, _), (y, _)| x.total_cmp(y));
    // Elements that lie side by side, as far as there are several.
    let mut useful = element_bytes as f64;
    let mut fetched = SECTOR_BYTES as f64;
    for (pitch, count) in sides.into_iter().filter(|&(pitch, count)| count > 1 && pitch > 0.0) {
        // Lines closer than a sector share it.
        fetched = (fetched.min(pitch) * count as f64).max(SECTOR_BYTES as f64);
        useful *= count as f64;
    }
    (fetched / useful).max(1.0)
}

/// Sectors that a row of a box costs memory beside its own, on average, where every other one starts off sectors. Such a row has a part of one at
/// either end: one more is written, and both are read before. That would be 1.5; recordings of an H200 show about twice as much.
const SECTORS_OF_ENDS: f64 = 3.0;

/// What memory moves beside D itself, in bytes, where D's rows start off sectors and TMA stores them in boxes. 0 where threads store.
fn more_bytes_of_d(spec: &KernelSpec, problem: &GemmProblem, cut: Cut) -> f64 {
    let pitch = (problem.d.row_stride.unsigned_abs() as usize).wrapping_mul(problem.types.d.size());
    let off = problem.m > 1 && !pitch.is_multiple_of(SECTOR_BYTES);
    match spec.d_box {
        Some(of_d) if off && spec.stores_by_tma(problem) && !matches!(cut, Cut::Parallel(_)) => {
            let rows = problem.m as f64 * problem.batch() as f64;
            let boxes = problem.result_columns() as f64 / f64::from(of_d.inner);
            rows * boxes * SECTORS_OF_ENDS * SECTOR_BYTES as f64
        }
        _ => 0.0,
    }
}

/// The parts of what all tiles fetch of A and of B that another tile has fetched before.
fn fetched_again(spec: &KernelSpec, problem: &GemmProblem) -> [f64; 2] {
    let [tiles_m, tiles_n] = match (spec.grid, spec.tiles(problem)) {
        (Grid::Clusters(Side::M), [m, n]) => [m.div_ceil(2), n],
        (Grid::Clusters(Side::N), [m, n]) => [m, n.div_ceil(2)],
        (_, tiles) => tiles,
    };
    [tiles_n, tiles_m].map(|tiles| 1.0 - 1.0 / tiles.max(1) as f64)
}

/// Outputs of a tile of 128 × 128.
const LARGE_TILE: f64 = 128.0 * 128.0;

/// Threads of a warp.
const WARP: u32 = 32;

/// What a plan has to do on a device, whatever that costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    pub(super) cut: Cut,
    pub(super) multiprocessors: u32,
    /// The part of the blocks that find room in clusters, where a multiprocessor holds one, two, … of them and the device tells.
    pub(super) room: Option<[f64; BLOCKS_BESIDE]>,
    /// Blocks of the grid if each had one tile, or a slice of it.
    pub(super) blocks: usize,
    /// Warps of a block.
    pub(super) warps: u32,
    /// Operations of a block in one portion of k.
    pub(super) step_flops: f64,
    /// Operations of a block.
    pub(super) flops: f64,
    /// Turns of k of a block whose threads share it; 0 for all other kernels.
    pub(super) turns: f64,
    /// Operations that a multiprocessor does in a µs at most.
    pub(super) peak: f64,
    /// Operands that are read by single elements.
    pub(super) single_elements: usize,
    /// Tiles that stick out of the matrix, where threads look whether what they read is inside, as parts of those that a
    /// multiprocessor has.
    pub(super) edges: f64,
    /// The parts of tiles outside of the matrix that TMA fills.
    pub(super) outside: f64,
    /// The part of A and B in the order that threads read more slowly; 2: all.
    pub(super) other_order: f64,
    /// The same of the portions of k that arrive before anything is multiplied, as far as a block has so many.
    pub(super) other_order_first: f64,
    /// What A, B and D take at the datasheet's bandwidth, in µs, or longer where the kernel does not ask for so much at a time.
    pub(super) memory_us: f64,
    /// What of A, B and D the L2 can't hold takes at the datasheet's bandwidth, in µs: no kernel takes less.
    pub(super) beyond_l2_us: f64,
    /// How many more blocks the busiest multiprocessor has than it would if all had as many, as a part.
    pub(super) uneven: f64,
    /// What A and B take there once more, as far as several tiles fetch the same of them, in µs.
    pub(super) far_us: f64,
    /// What the portions of A and B that the blocks of the busiest multiprocessor fetch take from the L2 at least, in µs.
    pub(super) l2_us: f64,
    /// The same of what a multiprocessor fetches on average.
    pub(super) l2_average_us: f64,
    /// The part of what blocks fetch of A and B in rows off sectors, where TMA does it.
    pub(super) off_sectors: f64,
    /// What such operands take at the datasheet's bandwidth, in µs.
    pub(super) off_sectors_us: f64,
    /// Whether a matrix has a single row or column of tiles, each of which has one of its operands for itself.
    pub(super) single_line: bool,
    /// The part of its tiles that D has, where its rows start off 16 bytes; 0 where they do not.
    pub(super) ragged: f64,
    /// Whether the operands are not what the kernel has a loop of its own for.
    pub(super) general: bool,
    /// Whether there is a batch, in which a block has to find its matrices.
    pub(super) batched: bool,
    /// Whether the kernel gets ready while the one before it ends.
    pub(super) starts_early: bool,
    /// Whether two blocks share tiles.
    pub(super) pairs: bool,
    /// Outputs of a tile, as a part of one of 128 × 128.
    pub(super) large_tiles: f64,
    /// What sums that a second kernel adds up take at the datasheet's bandwidth of memory, written and read, in µs.
    pub(super) slices_us: f64,
    /// What is moved of A and B.
    pub(super) repacks: [Option<Moved>; 2],
}

impl Work {
    /// What this kernel has to do for `problem`, with k cut in this way and the operands repacked as it finds them.
    pub fn of(spec: &KernelSpec, problem: &GemmProblem, repacks: &Repacks, device: &DeviceInfo, cut: Cut) -> Self {
        let tile = spec.tile;
        let k_slice = cut.k_slice(problem.k as u32, tile.bk);
        let step_flops = 2.0 * tile.bm as f64 * tile.bn as f64 * tile.bk as f64;
        let products = match spec.arithmetic {
            Arithmetic::Tf32x3 if problem.k < SHORT_SUM => 4.0 / 3.0,
            _ => 1.0,
        };
        let pairs = matches!(spec.grid, Grid::Clusters(_));
        let of_a_unit = match cut {
            _ if pairs => 2,
            Cut::Cluster(slices) | Cut::Parallel(slices) => slices as usize,
            Cut::Whole | Cut::StreamK(_) | Cut::WorkQueue(_) => 1,
        };
        let blocks = spec.units(problem).saturating_mul(of_a_unit);
        let of_one = blocks as f64 / f64::from(device.sm_count.max(1));
        // The multiprocessor with most blocks counts, where blocks begin and end with their tile.
        let of_busiest = match cut {
            Cut::Whole | Cut::Cluster(_) | Cut::Parallel(_) => of_one.ceil(),
            Cut::StreamK(_) | Cut::WorkQueue(_) => of_one,
        };
        let lines = fetched_lines(spec);
        let element_bytes = problem.dtype().size();
        let sectors = [
            whole_sectors(&problem.a, problem.m, problem.k, element_bytes),
            whole_sectors(&problem.b, problem.k, problem.n, element_bytes),
        ];
        let fetched = lines[0] * sectors[0] + lines[1] * sectors[1];
        let slice_bytes = fetched * f64::from(k_slice) * element_bytes as f64;
        let l2_bytes_per_us = L2_BYTES_PER_CLOCK * f64::from(device.clock_mhz);
        let [a_bytes, b_bytes] = operand_bytes(problem);
        // Beside each element once.
        let more_bytes = a_bytes * (sectors[0] - 1.0) + b_bytes * (sectors[1] - 1.0);
        let [a_bytes, b_bytes] = [a_bytes * sectors[0], b_bytes * sectors[1]];
        let bytes = problem.min_bytes() + more_bytes;
        let moved = bytes + more_bytes_of_d(spec, problem, cut);
        let again = fetched_again(spec, problem);
        let off = off_sectors(spec, problem);
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
            flops: step_flops * steps_of_k(spec, k_slice) * inside(spec, problem),
            turns: match spec.takes_turns_of_k() {
                true => f64::from(k_slice.div_ceil(tile.bk)),
                false => 0.0,
            },
            peak: device.peak_flops_per_us(spec.arithmetic) / products,
            single_elements: single_elements(spec, problem),
            other_order: other_order(spec, problem),
            other_order_first: other_order(spec, problem)
                * (f64::from(k_slice) / f64::from(tile.bk * tile.stages.max(1))).min(1.0),
            edges: edges(spec, problem, of_one),
            outside: outside(spec, problem),
            memory_us: moved / bytes_per_us / slab_fill(spec, problem.k),
            beyond_l2_us: (bytes - device.l2_bytes as f64).max(0.0) / bytes_per_us,
            far_us: (a_bytes * again[0] + b_bytes * again[1]) / bytes_per_us,
            uneven: if of_one > 1.0 { of_busiest / of_one - 1.0 } else { 0.0 },
            l2_us: slice_bytes * of_busiest / l2_bytes_per_us,
            l2_average_us: slice_bytes * of_one / l2_bytes_per_us,
            off_sectors: (lines[0] * off[0] + lines[1] * off[1]) / (lines[0] + lines[1]),
            off_sectors_us: (a_bytes * off[0] + b_bytes * off[1]) / bytes_per_us,
            single_line: spec.tiles(problem).contains(&1),
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
            repacks: repacks.map(|repack| Some(Moved::of(&repack?, bytes_per_us))),
        }
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
    use std::collections::HashSet;

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
    fn rows_of_d_off_sectors_count_where_tma_stores_them() {
        let problem = |m: usize, n: usize, pitch: usize| {
            let mut problem = GemmProblem::new(m, n, 64, OperandLayout::row_major(64), OperandLayout::col_major(64));
            problem.types = ElementTypes::all_of(DType::BF16);
            problem.d = OperandLayout::row_major(pitch);
            problem
        };
        let more = |name: &str, problem: &GemmProblem, cut: Cut| more_bytes_of_d(spec(name), problem, cut);
        let [wide, narrow] = ["gemm_bf16_sm90_128x128_2cta_nt", "gemm_bf16_sm90_128x128_2blocks_nt"];
        let mut rng = StdRng::seed_from_u64(17);
        for _ in 0..500 {
            let (m, n) = (rng.random_range(2..300), 8 * rng.random_range(1..100));
            let pitch = n + 8 * rng.random_range(0..4usize);
            let counts = pitch % 16 != 0;
            let here = problem(m, n, pitch);
            assert_eq!(more(wide, &here, Cut::Whole) > 0.0, counts, "{n} {pitch}");
            // Boxes of half the width have twice as many ends.
            assert_eq!(more(narrow, &here, Cut::Whole), 2.0 * more(wide, &here, Cut::Whole));
            // A second kernel adds up slices; threads store what is no whole row of 16 bytes, other types, and without boxes.
            assert_eq!(more(wide, &here, Cut::Parallel(4)), 0.0);
            assert_eq!(more(wide, &problem(m, n - 1, pitch), Cut::Whole), 0.0);
            let mut finer = here;
            finer.types.d = DType::F32;
            assert_eq!(more(wide, &finer, Cut::Whole), 0.0);
            assert_eq!(more("gemm_bf16_mma_64x64", &here, Cut::Whole), 0.0);
            // A single row starts where D does.
            assert_eq!(more(wide, &problem(1, n, pitch), Cut::Whole), 0.0);
        }
    }

    #[test]
    fn strided_elements_come_in_sectors_of_their_own() {
        let sectors = |layout: OperandLayout, rows: usize, cols: usize| whole_sectors(&layout, rows, cols, 4);
        assert_eq!(sectors(OperandLayout::row_major(512), 64, 512), 1.0);
        assert_eq!(sectors(OperandLayout::col_major(64), 64, 512), 1.0);
        // Narrowed to rows that are shorter, but long; to every other element; and to one column.
        assert_eq!(sectors(OperandLayout::row_major(512), 64, 100), 1.0);
        assert_eq!(sectors(OperandLayout::strided(512, 2), 64, 256), 2.0);
        assert_eq!(sectors(OperandLayout::row_major(512), 64, 1), 8.0);
        // Rows of three elements without gaps between them, and with.
        assert_eq!(sectors(OperandLayout::row_major(3), 64, 3), 1.0);
        assert_eq!(sectors(OperandLayout::row_major(512), 64, 3), 8.0 / 3.0);
        // All rows are the same one, and windows that overlap.
        assert_eq!(sectors(OperandLayout::strided(0, 1), 64, 512), 1.0);
        assert_eq!(sectors(OperandLayout::strided(1, 1), 64, 512), 1.0);
        assert_eq!(sectors(OperandLayout::row_major(1), 1, 1), 8.0);
        // Of drawn matrices without overlaps, about as many as they touch: where each line starts in a sector is not looked at.
        let mut rng = StdRng::seed_from_u64(15);
        for _ in 0..2000 {
            let [rows, cols] = [(); 2].map(|()| rng.random_range(1..=40usize));
            let element = [2, 4][rng.random_range(0..2)];
            let inner = [1, 1, rng.random_range(1..=40)][rng.random_range(0..3)];
            let gap = [0, rng.random_range(0..=100)][rng.random_range(0..2)];
            let outer = |count: usize| (count as i64 - 1) * inner + 1 + gap;
            let layout = match rng.random::<bool>() {
                true => OperandLayout::strided(outer(cols), inner),
                false => OperandLayout::strided(inner, outer(rows)),
            };
            let at = |row: usize, col: usize| row as i64 * layout.row_stride + col as i64 * layout.col_stride;
            let touched: HashSet<i64> = (0..rows * cols)
                .map(|i| at(i / cols, i % cols) * element as i64 / SECTOR_BYTES as i64)
                .collect();
            let wanted = (touched.len() * SECTOR_BYTES) as f64 / (rows * cols * element) as f64;
            let ratio = whole_sectors(&layout, rows, cols, element) / wanted;
            assert!(
                (0.5..=2.0).contains(&ratio),
                "{rows} × {cols} of {element} bytes, {layout:?}: {ratio}"
            );
        }
    }

    #[test]
    fn no_kernel_is_faster_than_memory() {
        let mut rng = StdRng::seed_from_u64(16);
        let (mut plans, mut bound) = (0, 0);
        for _ in 0..60 {
            let device = [DeviceInfo::A100, DeviceInfo::H100, DeviceInfo::H200][rng.random_range(0..3)];
            // As if each kernel had been fitted to what the L2 holds.
            let mut costs = Costs::built_in(&device).clone();
            costs.kernels.values_mut().for_each(|cost| cost.bandwidth = 10.0);
            let thin = rng.random_range(1..=40);
            let [long, k] = [(); 2].map(|()| rng.random_range(1..=20_000));
            let (m, n) = if rng.random::<bool>() {
                (long, thin)
            } else {
                (thin, long)
            };
            let mut layout = |rows: usize, cols: usize| {
                let gap = rng.random_range(0..2) * rng.random_range(0..5);
                match rng.random::<bool>() {
                    true => OperandLayout::row_major(cols + gap),
                    false => OperandLayout::col_major(rows + gap),
                }
            };
            let mut problem = GemmProblem::new(m, n, k, layout(m, k), layout(k, n));
            let dtype = [DType::F32, DType::F16, DType::BF16][rng.random_range(0..3)];
            problem.types = ElementTypes::all_of(dtype);
            let bytes = (m * k + k * n + m * n) as f64 * dtype.size() as f64;
            let beyond_l2 = bytes - device.l2_bytes as f64;
            // GB/s to bytes/µs: 1e3.
            let least_us = beyond_l2 / (1e3 * f64::from(device.memory_gbps));
            for plan in Plan::candidates(&problem.folded().unwrap(), &device, &costs) {
                assert!(plan.predicted_us > least_us, "{plan}: {least_us}");
                plans += 1;
                bound += usize::from(beyond_l2 > 0.0);
            }
        }
        assert!(bound > 100 && plans > bound, "{bound} of {plans}");
    }

    #[test]
    fn what_lies_along_k_is_read_by_elements_with_the_other_operand_or_not_at_all() {
        let (mut rng, device) = (StdRng::seed_from_u64(16), DeviceInfo::H200);
        let costs = Costs::built_in(&device);
        let mut counts = [0; 2];
        for _ in 0..400 {
            // Few rows or few columns, past lines along k that start on 16 bytes or do not.
            let mut sides = [rng.random_range(1..9usize), rng.random_range(1..3000)];
            if rng.random_bool(0.5) {
                sides.reverse();
            }
            let [m, n] = sides;
            let k = rng.random_range(1..3000);
            let mut pitch = || k + rng.random_range(0..5usize);
            let mut problem = GemmProblem::row_major(m, n, k);
            (problem.a, problem.b) = (OperandLayout::row_major(pitch()), OperandLayout::col_major(pitch()));
            let problem = problem.folded().unwrap();
            for plan in Plan::candidates(&problem, &device, costs) {
                if !plan.kernel.name.starts_with("gemv_dot_") {
                    continue;
                }
                let accesses = plan.problem.accesses();
                let vectors = accesses.a == Access::RowVector && accesses.b == Access::ColVector;
                let wanted = if vectors { 0 } else { 2 };
                assert_eq!(plan.work(&device).single_elements, wanted, "{plan}");
                counts[usize::from(vectors)] += 1;
            }
        }
        assert!(counts.iter().all(|&count| count > 30), "{counts:?}");
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
}
