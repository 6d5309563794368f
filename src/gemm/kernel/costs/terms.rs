//! The terms of the cost model: what is fitted of each kernel, and of what kernels share.

use serde::{Deserialize, Serialize};

/// What a kernel's blocks cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelCost {
    /// Fraction of the arithmetic's peak that a multiprocessor reaches when it holds all the blocks it can.
    pub full: f64,
    /// The same when it holds only one.
    pub solo: f64,
    /// Blocks that a multiprocessor holds.
    pub resident: u32,
    /// What a block takes beside its multiplications (first loads, epilogue), in µs.
    pub setup_us: f64,
    /// What each further wave of blocks takes beside its multiplications, in µs: less where blocks that share a multiprocessor,
    /// or the warps of a persistent one, load while others store.
    pub wave_us: f64,
    /// Fraction of the datasheet's memory bandwidth that it reaches where memory is the limit.
    pub bandwidth: f64,
    /// What each operand that can only be read by single elements adds to the time of a tile, in units of that time, where threads
    /// read the operands.
    pub single_elements: f64,
    /// What tiles that stick out of the matrix on a side take more, as a part of their time; with TMA, as far as they stick out.
    pub edges: f64,
    /// What A or B takes more in the order that threads read more slowly, as a part of the time of a tile: along k, where threads transpose
    /// it on its way to shared memory; where lanes share k, vectors that do not lie along it.
    pub other_order: f64,
    /// What it takes a wave more, in µs: the first portions of k have to arrive, and nothing is multiplied beside them.
    #[serde(default)]
    pub other_order_us: f64,
    /// What arithmetic takes more where all multiprocessors work than where one does, as a part.
    pub crowd: f64,
    /// What a wave of whole tiles takes more, in µs, where rows of the result start off 16 bytes.
    pub ragged_us: f64,
    /// What a wave takes more, in µs, where there is a batch: a block first works out where its matrices are.
    pub batch_us: f64,
    /// What operands take more to start, in µs, that the kernel has no loop of its own for: gaps between their elements; where lanes share
    /// k, also a batch, or anything but whole vectors.
    #[serde(default)]
    pub general_us: f64,
    /// The same as a part of the time of a tile.
    #[serde(default)]
    pub general: f64,
    /// What each block that shares a multiprocessor with others adds to the first wave, in µs: their first loads and their
    /// epilogues get in each other's way.
    pub beside_us: f64,
    /// What a cut across a cluster takes more with this kernel, in µs.
    pub cut_us: f64,
    /// What it takes a block more to finish the sums of a whole tile, where a cluster cuts k, in µs: each finishes its part of them. Where
    /// blocks take strips from a queue, the same for each strip.
    #[serde(default)]
    pub share_us: f64,
    /// What each slice of k adds to that, in µs: its sums have to arrive.
    #[serde(default)]
    pub slice_us: f64,
    /// How far multiprocessors that are done with a block go on with the next one by themselves: 0 where blocks come in waves
    /// (wave quantization in full), 1 where nothing waits for a wave to end.
    pub flow: f64,
    /// How time goes up between one block of a multiprocessor and all that fit: with this power of the part of the blocks. Below 1 it is the
    /// second block that takes most.
    pub curve: f64,
    /// What it takes of a launch and of the time until memory delivers, as a part, where kernels get ready while the one before ends: less
    /// where it lets the next one in as soon as its loads have arrived.
    #[serde(default = "whole")]
    pub start: f64,
    /// What a turn of k takes at least where threads share it, in µs: what one asks for has its whole way to go before it asks for more,
    /// however little there is to multiply. 0 for all other kernels.
    #[serde(default)]
    pub turn_us: f64,
}

/// All of it.
const fn whole() -> f64 {
    1.0
}

impl KernelCost {
    /// Where a fit begins, of a kernel that nothing is known of.
    pub const UNKNOWN: KernelCost = KernelCost {
        full: 0.5,
        solo: 0.5,
        resident: 1,
        setup_us: 4.0,
        wave_us: 4.0,
        bandwidth: 0.75,
        single_elements: 0.3,
        edges: 0.0,
        crowd: 0.0,
        other_order: 0.0,
        other_order_us: 0.0,
        ragged_us: 0.0,
        batch_us: 0.0,
        general_us: 0.0,
        general: 0.0,
        beside_us: 0.0,
        cut_us: 0.0,
        share_us: 0.0,
        slice_us: 0.0,
        flow: 0.0,
        curve: 1.0,
        start: 1.0,
        turn_us: 0.0,
    };
}

/// What kernels have in common.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedCosts {
    /// What a launch takes beside its work, in µs.
    pub launch_us: f64,
    /// The same for a kernel that gets ready while the one before it ends.
    pub early_launch_us: f64,
    /// What 2-CTA clusters that share tiles take, in µs, once: their barriers have to be there in both blocks before either
    /// may start.
    pub pairs_us: f64,
    /// What a work queue over several slices of k takes more, in µs: the last block to finish a strip waits for the others' sums
    /// to be visible.
    pub queue_slices_us: f64,
    /// The time for all that blocks fetch from the L2, relative to every multiprocessor fetching at the rate that one has alone; 0 where
    /// that was not fitted.
    pub l2: f64,
    /// What it takes until memory delivers at its full rate, in µs: what is read first has its whole way to go, and what is
    /// stored last.
    pub memory_start_us: f64,
    /// What operands that several tiles fetch take beyond their bytes, as a part of those: an L2 in two halves hands them from one to
    /// the other.
    pub far: f64,
    /// What operands whose rows start off sectors take more of memory's time where TMA fetches them, as a part.
    #[serde(default)]
    pub off_sectors: f64,
    /// What memory takes longer, as a part of how many more blocks the busiest multiprocessor has than it would if all had as many.
    pub uneven: f64,
    /// The same of the L2's time, by the part that is fetched of such operands.
    #[serde(default)]
    pub l2_off_sectors: f64,
    /// How much more `crowd` counts, as a part, where a matrix has a single row or column of tiles, which share one operand alone.
    pub single_line: f64,
    /// How much more yet by the part of such tiles that lies outside of the matrix: 64 rows in tiles of 128 take longer than 128 rows.
    #[serde(default)]
    pub single_outside: f64,
    /// Of arithmetic, memory and L2, the part of the shorter times that is not hidden behind the longest.
    pub exposed: f64,
    /// Where blocks do not come in waves: the part of the time of a block alone, beyond its time beside others, that the end of a launch
    /// takes, when there are no more blocks to begin.
    pub tail: f64,
    /// Of cuts across clusters.
    pub clusters: ClusterCosts,
    /// Of slices that a second kernel adds up.
    #[serde(default)]
    pub parallel: ParallelCosts,
    /// Of cuts by stream-K.
    pub stream_k: StreamKCosts,
    /// Of operands that are repacked.
    pub repack: RepackCosts,
}

/// What a cut of k across a cluster costs, by the number of blocks: of 2, 3, 4, 5, 6, 7 and 8.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterCosts {
    /// What it takes beside its blocks, in µs.
    pub us: [f64; 7],
    /// The fraction of the multiprocessors on which such clusters find room: a cluster lives within one group of
    /// multiprocessors, and groups differ in size.
    pub room: [f64; 7],
    /// What it takes a multiprocessor to hand on the sums of a tile of 128 × 128 to the blocks that add them up, in µs. Each block
    /// keeps its own part.
    pub sums_us: f64,
    /// What each round of clusters after the first takes more than one of blocks, in µs: all blocks of a cluster have to find room at
    /// once.
    pub round_us: f64,
}

impl ClusterCosts {
    /// What a cut across a cluster of so many blocks takes, in µs, and the fraction of the multiprocessors on which there is
    /// room.
    pub fn of(&self, blocks: u32) -> (f64, f64) {
        match blocks {
            0 | 1 => (0.0, 1.0),
            blocks => {
                let at = (blocks as usize - 2).min(self.us.len() - 1);
                (self.us[at], self.room[at])
            }
        }
    }
}

/// What it costs to add up slices of k by a second kernel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParallelCosts {
    /// What it takes beside the bytes of the sums, in µs.
    pub start_us: f64,
    /// The bandwidth at which these are written and read, as a multiple of the datasheet's for memory: they stay in the L2.
    pub bandwidth: f64,
    /// What a thread takes for each further [round](crate::gemm::schedule::parallel::rounds) of slices that it asks for, in µs: the way to the
    /// L2 and back.
    #[serde(default)]
    pub round_us: f64,
}

/// A guess, where it was not fitted.
impl Default for ParallelCosts {
    fn default() -> Self {
        ParallelCosts {
            start_us: 2.6,
            bandwidth: 0.8,
            round_us: 0.7,
        }
    }
}

/// What the end of a stream-K launch costs, as parts of what a block takes beside its multiplications.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamKCosts {
    /// The fix-up: adding up the pieces of tiles.
    pub finish: f64,
    /// What each piece of a tile adds to that; in 2-CTA clusters, each but the first, by the 128 × 128 outputs of a tile.
    pub piece: f64,
    /// What a block loses between pieces of two tiles.
    pub straddle: f64,
    /// How many times as long the L2 takes to feed blocks whose ranges begin anywhere in k: those that work in step ask for the same lines
    /// at the same time. At least 1.
    pub out_of_step: f64,
}

/// What it costs to repack an operand before the product.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RepackCosts {
    /// Rows that are copied.
    pub copy: MoveCost,
    /// Transpositions of rows that start on 16 bytes and end there, before and after.
    pub transpose: MoveCost,
    /// Other transpositions.
    pub transpose_unaligned: MoveCost,
    /// The part of the bandwidth which is left for elements with gaps between them, each of which is fetched with its sector.
    pub gaps: f64,
    /// What each further access adds to the time of a copy, as a part of it, where rows start off 16 bytes and are copied by smaller pieces.
    #[serde(default)]
    pub access: f64,
}

/// What it costs to copy or transpose an operand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveCost {
    /// What it takes beside its bytes, in µs.
    pub start_us: f64,
    /// The fraction of the datasheet's bandwidth that it reaches; a product that follows finds less of its operands in the L2.
    pub bandwidth: f64,
}
