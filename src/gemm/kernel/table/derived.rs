//! What follows from the layout, the tile and the stages of a kernel: threads, partial sums, shared memory, the boxes in which
//! TMA brings operands. The CUDA sources compute the same numbers from their template parameters, and `tests/kernel_sources.rs`
//! compares.

use super::super::spec::{Arithmetic, Grid, Needs, Side, SplitK, Tile, TmaBox};
use crate::device::VECTOR_BYTES;
use crate::gemm::operands::{Access, DType};

/// Threads of a warp.
pub(super) const WARP: u32 = 32;
/// Threads of a warpgroup.
const WARPGROUP: u32 = 4 * WARP;
/// Bytes of a sum, and of an element of FP32 operands.
const FLOAT: u32 = DType::F32.size() as u32;
/// Bytes of an int in shared memory: a number that a block drew, a counter.
const INT: u32 = 4;
/// Bytes of an mbarrier.
const BARRIER: u32 = 8;
/// Bytes of a vector: what a thread reads from shared memory at once.
const VECTOR: u32 = VECTOR_BYTES as u32;
/// The only compute capability that runs the kernels for Hopper.
const HOPPER: u32 = 90;
/// The most shared memory that a block on Hopper can have.
const SHARED_LIMIT: u32 = 227 << 10;

const fn larger(x: u32, y: u32) -> u32 {
    if x > y {
        x
    } else {
        y
    }
}

// ---- layouts ------------------------------------------------------------------------------------------------------

/// How A and B are stored, for kernels that take one layout only: N as they are, T transposed. Every row starts on 16 bytes.
#[derive(Clone, Copy)]
#[allow(clippy::upper_case_acronyms)]
pub(super) enum Layout {
    NN,
    NT,
    TN,
    TT,
}

impl Layout {
    /// Whether A is contiguous along k.
    pub(super) const fn a_along_k(self) -> bool {
        matches!(self, Layout::NN | Layout::NT)
    }

    /// Whether B is contiguous along k.
    pub(super) const fn b_along_k(self) -> bool {
        matches!(self, Layout::NT | Layout::TT)
    }

    /// What a kernel for Hopper demands that reads operands of this layout.
    pub(super) const fn needs(self) -> Needs {
        const ROWS: &[Access] = &[Access::RowVector];
        const COLS: &[Access] = &[Access::ColVector];
        Needs {
            only_capability: Some(HOPPER),
            a: if self.a_along_k() { ROWS } else { COLS },
            b: if self.b_along_k() { COLS } else { ROWS },
            ..Needs::ANY
        }
    }

    /// What a kernel for Hopper demands that reads any layout, at any alignment, but no operands with gaps between elements.
    pub(super) const ANY_LINES: Needs = {
        const LINES: &[Access] = &[
            Access::RowVector,
            Access::ColVector,
            Access::RowScalar,
            Access::ColScalar,
        ];
        Needs {
            only_capability: Some(HOPPER),
            a: LINES,
            b: LINES,
            ..Needs::ANY
        }
    };

    /// A box brings a whole tile of A, or of B: `k` elements along k by all of its rows.
    pub(super) const fn whole_tiles(self, tile: &Tile, k: u32) -> [TmaBox; 2] {
        const fn of(along_k: bool, rows: u32, k: u32) -> TmaBox {
            if along_k {
                TmaBox::new(k, rows)
            } else {
                TmaBox::new(rows, k)
            }
        }
        [of(self.a_along_k(), tile.bm, k), of(self.b_along_k(), tile.bn, k)]
    }
}

// ---- threads and partial sums -------------------------------------------------------------------------------------

/// Threads that compute the block's tile once, TM × TN outputs each.
pub(super) const fn threads(tile: &Tile) -> u32 {
    tile.bm * tile.bn / (tile.tm * tile.tn)
}

/// Threads whose warps compute the block's tile once, WM × WN outputs each.
pub(super) const fn threads_of_warps(tile: &Tile) -> u32 {
    tile.bm * tile.bn / (tile.wm * tile.wn) * WARP
}

/// Consumer warps of a block with producer warps: those that multiply.
pub(super) const CONSUMER_WARPS: u32 = 8;
/// Threads of such a block: those, and a warpgroup of producers.
pub(super) const WARP_SPECIALIZED: u32 = CONSUMER_WARPS * WARP + WARPGROUP;
/// Threads of the blocks of small FFMA kernels on Hopper, which have no producers and share a multiprocessor.
pub(super) const DIRECT: u32 = WARPGROUP;

/// Threads of the blocks of the kernels for thin products along k.
pub(super) const THIN_DOT: u32 = WARPGROUP;

/// Sliced-K: groups of consumer warps, each of which covers the tile and takes every so-manyth stage, or part, of k.
pub(super) const fn consumer_groups(tile: &Tile) -> u32 {
    CONSUMER_WARPS * tile.wm * tile.wn / (tile.bm * tile.bn)
}

/// The same of the warps of a block of [`DIRECT`] threads.
pub(super) const fn direct_groups(tile: &Tile) -> u32 {
    DIRECT / threads(tile)
}

/// Along k a thread of the K-major kernels sums even and odd k apart, for the sake of register banks.
const EVEN_AND_ODD: u32 = 2;

/// Partial sums of an output in the K-major kernels.
pub(super) const fn k_major_sums(tile: &Tile) -> u32 {
    EVEN_AND_ODD * consumer_groups(tile)
}

/// The same where every consumer warp covers the tile, and lanes share k, too.
pub(super) const fn strip_sums(tile: &Tile) -> u32 {
    EVEN_AND_ODD * CONSUMER_WARPS * (WARP / threads(tile))
}

/// The least that an output is the sum of where the lanes of a warp share k.
pub(super) const LANE_SUMS: u32 = WARP;

// ---- shared memory ------------------------------------------------------------------------------------------------

/// Bytes that a structure takes whose largest member starts on `align` bytes.
const fn padded(bytes: u32, align: u32) -> u32 {
    bytes.next_multiple_of(align)
}

/// A ring of stages: BK of k of BM rows of A and BN columns of B each.
pub(super) const fn ring(tile: &Tile, element: DType) -> u32 {
    tile.stages * (tile.bm + tile.bn) * tile.bk * element.size() as u32
}

/// The sums of a tile.
const fn sums(tile: &Tile) -> u32 {
    tile.bm * tile.bn * FLOAT
}

/// The ring of kernels that load by `cp.async`: rows are padded by a vector, so that neighbours in k are four banks apart.
pub(super) const fn async_ring(tile: &Tile) -> u32 {
    let pad = VECTOR / FLOAT;
    tile.stages * (tile.bm + pad + tile.bn + pad) * tile.bk * FLOAT
}

/// The same ring; when it is done with, its place is taken by the sums on their way to the epilogue.
pub(super) const fn pipelined(tile: &Tile) -> u32 {
    larger(async_ring(tile), sums(tile))
}

/// By words: the same padding, and where the sums take the place of the ring, rows of them are padded by an element.
pub(super) const fn words(tile: &Tile) -> u32 {
    larger(async_ring(tile), tile.bm * (tile.bn + 1) * FLOAT)
}

/// The same where groups share k, each with a part of the ring: the sums of all of them, and what these add up to.
pub(super) const fn unaligned_sliced_k(tile: &Tile, groups: u32) -> u32 {
    larger(
        async_ring(tile),
        padded(groups * sums(tile) + tile.bm * (tile.bn + 1) * FLOAT, VECTOR),
    )
}

/// Thin products along k: a ring of `k` of so many lines, each padded by an element, and of so many vectors, padded by 16 bytes
/// where there are many. The sums, which take its place, are fewer.
pub(super) const fn thin_dot([lines, vectors]: [u32; 2], k: u32, stages: u32) -> u32 {
    const MANY: u32 = 8;
    let pad = if vectors < MANY { 0 } else { VECTOR / FLOAT };
    stages * (lines * (k + 1) + (vectors + pad) * k) * FLOAT
}

/// A run of whole lines of at most `k` elements, each padded by 16 bytes, and so much of the vectors.
pub(super) const fn thin_run([lines, vectors]: [u32; 2], k: u32) -> u32 {
    (lines * (k + VECTOR / FLOAT) + vectors * k) * FLOAT
}

/// Warp-specialized, persistent: the ring, the sums of a tile (the ring holds the next tile's operands by then), three barriers
/// a stage (full, empty, arrived but not transposed yet), and the number that the block drew.
pub(super) const fn specialized(tile: &Tile) -> u32 {
    let barriers = 3 * tile.stages * BARRIER;
    padded(ring(tile, DType::F32) + sums(tile) + barriers + INT, VECTOR)
}

/// Sliced-K, one tile a block: the ring, whose place the sums of all groups take in the end, and three barriers a stage.
pub(super) const fn sliced_k(tile: &Tile) -> u32 {
    let barriers = 3 * tile.stages * BARRIER;
    padded(
        larger(ring(tile, DType::F32), consumer_groups(tile) * sums(tile)) + barriers,
        VECTOR,
    )
}

/// Copies of words, warp-specialized and persistent: the same with a padded ring.
pub(super) const fn specialized_words(tile: &Tile) -> u32 {
    let barriers = 3 * tile.stages * BARRIER;
    padded(async_ring(tile) + sums(tile) + barriers + INT, VECTOR)
}

/// Copies of words, sliced-K: likewise.
pub(super) const fn sliced_k_words(tile: &Tile) -> u32 {
    let barriers = 3 * tile.stages * BARRIER;
    padded(
        larger(async_ring(tile), consumer_groups(tile) * sums(tile)) + barriers,
        VECTOR,
    )
}

/// K-major: the ring, the sums of all groups, two barriers a stage (full, empty), and the number that the block drew.
pub(super) const fn k_major(tile: &Tile) -> u32 {
    let barriers = 2 * tile.stages * BARRIER;
    padded(
        ring(tile, DType::F32) + consumer_groups(tile) * sums(tile) + barriers + INT,
        VECTOR,
    )
}

/// Small m, from a work queue: a ring of B alone, the block's slice of A, which stays, and the sums of every consumer warp; two
/// barriers a stage and one for the sums; the strip of every stage, and the one whose sums are done.
pub(super) const fn small_m(tile: &Tile, longest_slice: u32) -> u32 {
    let ring = tile.stages * tile.bn * tile.bk * FLOAT;
    let slice = longest_slice * tile.bm * FLOAT;
    let barriers = (2 * tile.stages + 1) * BARRIER;
    let strips = (tile.stages + 1) * INT;
    padded(ring + slice + CONSUMER_WARPS * sums(tile) + barriers + strips, VECTOR)
}

/// A in place, several blocks a multiprocessor: the ring, whose place the sums take in the end; two stages of B transposed where
/// it is contiguous along k, and a vector in their place where it is not; a barrier and a count of readers for each stage.
pub(super) const fn direct(tile: &Tile, layout: Layout) -> u32 {
    let transposed = match layout.b_along_k() {
        true => 2 * tile.bn * tile.bk * FLOAT,
        false => VECTOR,
    };
    padded(
        ring(tile, DType::F32) + transposed + tile.stages * (BARRIER + INT),
        BARRIER,
    )
}

/// Both operands along their rows, several blocks a multiprocessor: the ring, whose place the sums take in the end, with their rows padded
/// by an element; a barrier and a count of readers for each stage.
pub(super) const fn direct_tn(tile: &Tile) -> u32 {
    let room = larger(ring(tile, DType::F32), tile.bm * (tile.bn + 1) * FLOAT);
    padded(padded(room, VECTOR) + tile.stages * (BARRIER + INT), VECTOR)
}

// ---- wgmma --------------------------------------------------------------------------------------------------------

/// Which operand a kernel reads from registers. The tensor cores read the other from shared memory.
#[derive(Clone, Copy)]
pub(super) enum Registers {
    A,
    B,
}

/// What the clusters of a kernel for tensor cores are for.
#[derive(Clone, Copy)]
pub(super) enum Clusters {
    /// Two blocks, neighbours along the register operand, share each tile of the shared operand, which TMA multicasts to both.
    Multicast,
    /// The blocks of a cluster cut k.
    CutK,
}

/// A kernel that multiplies with wgmma: register operand R, shared operand S. The frame in `cuda/tensor_core/` says how.
#[derive(Clone, Copy)]
pub(super) struct Wgmma {
    products: u32,
    registers: Registers,
    clusters: Clusters,
    r_rows: u32,
    s_rows: u32,
    r_along_k: bool,
    s_along_k: bool,
}

impl Wgmma {
    /// Portion of k in a stage: a row of 128 bytes, the width of the swizzle.
    const K: u32 = 128 / FLOAT;
    /// Rows of R that a consumer warpgroup multiplies.
    const CONSUMER_ROWS: u32 = 64;
    /// Most stages of the ring.
    const MOST_STAGES: u32 = 10;
    /// Bytes for all barriers.
    const BARRIERS: u32 = 512;
    /// Rows of S whose results are staged at a time.
    const STAGED_ROWS: u32 = 32;
    /// From so many rows of S on, results are staged on their way to memory.
    const LARGE: u32 = 128;

    pub(super) const fn new(
        arithmetic: Arithmetic,
        layout: Layout,
        tile: &Tile,
        registers: Registers,
        clusters: Clusters,
    ) -> Self {
        let products = match arithmetic {
            Arithmetic::Tf32x3 => 3,
            Arithmetic::Tf32 => 1,
            Arithmetic::Ffma | Arithmetic::Half => panic!("this frame converts FP32 operands to TF32"),
        };
        assert!(tile.bk == Self::K, "a stage is as long as the swizzle is wide");
        let (a, b) = ((tile.bm, layout.a_along_k()), (tile.bn, layout.b_along_k()));
        let ((r_rows, r_along_k), (s_rows, s_along_k)) = match registers {
            Registers::A => (a, b),
            Registers::B => (b, a),
        };
        Wgmma {
            products,
            registers,
            clusters,
            r_rows,
            s_rows,
            r_along_k,
            s_along_k,
        }
    }

    /// Bytes that the converter warps make of a tile of S: its tails for three products; its heads, transposed, where S is not
    /// contiguous along k.
    const fn converted(&self) -> u32 {
        let heads = !self.s_along_k as u32;
        let tails = (self.products == 3) as u32;
        (heads + tails) * self.s_rows * Self::K * FLOAT
    }

    /// Bytes of the ring of converted tiles. Four rather than three where they are transposed, which takes longer.
    const fn converted_ring(&self) -> u32 {
        let slots = if self.s_along_k { 3 } else { 4 };
        slots * self.converted()
    }

    /// Bytes of a stage.
    const fn stage(&self) -> u32 {
        (self.r_rows + self.s_rows) * Self::K * FLOAT
    }

    /// As many stages as fit.
    pub(super) const fn stages(&self) -> u32 {
        let fit = (SHARED_LIMIT - Self::BARRIERS - self.converted_ring()) / self.stage();
        if fit < Self::MOST_STAGES {
            fit
        } else {
            Self::MOST_STAGES
        }
    }

    const fn consumers(&self) -> u32 {
        self.r_rows / Self::CONSUMER_ROWS
    }

    /// A warpgroup of feeders (TMA), another one where there is something to convert, and the consumers.
    pub(super) const fn threads(&self) -> u32 {
        let feeders = if self.converted() > 0 { 2 } else { 1 };
        (feeders + self.consumers()) * WARPGROUP
    }

    /// Both rings and the barriers; beside them, where it pays and fits, room in which each consumer stages results.
    pub(super) const fn shared(&self) -> u32 {
        let rings = self.stages() * self.stage() + self.converted_ring() + Self::BARRIERS;
        let staging = self.consumers() * Self::CONSUMER_ROWS * Self::STAGED_ROWS * FLOAT;
        let pays = self.s_rows >= Self::LARGE && (matches!(self.registers, Registers::B) || self.products == 1);
        if pays && rings + staging <= SHARED_LIMIT {
            rings + staging
        } else {
            rings
        }
    }

    /// Boxes are 128 bytes wide. Along k they have all rows of the tile, of which each block of a multicast cluster brings its
    /// share; otherwise the 32 of k of 32 rows.
    pub(super) const fn boxes(&self) -> [TmaBox; 2] {
        let share = match self.clusters {
            Clusters::Multicast => self.s_rows / 2,
            Clusters::CutK => self.s_rows,
        };
        let r = TmaBox::new(Self::K, if self.r_along_k { self.r_rows } else { Self::K });
        let s = TmaBox::new(Self::K, if self.s_along_k { share } else { Self::K });
        match self.registers {
            Registers::A => [r, s],
            Registers::B => [s, r],
        }
    }

    /// Which blocks a launch has, and how they cut k.
    pub(super) const fn grid(&self) -> (Grid, SplitK) {
        match (self.clusters, self.registers) {
            (Clusters::CutK, _) => (Grid::Persistent, SplitK::Cluster),
            (Clusters::Multicast, Registers::A) => (Grid::Clusters(Side::M), SplitK::Never),
            (Clusters::Multicast, Registers::B) => (Grid::Clusters(Side::N), SplitK::Never),
        }
    }
}
