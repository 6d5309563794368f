//! What a kernel is: a row of the [table](super::table), and what follows from it for a problem.

use crate::device::DeviceInfo;
use crate::gemm::operands::{Access, DType};
use crate::gemm::problem::{GemmProblem, Precision};
use crate::gemm::schedule::work_queue::WorkQueue;

pub use crate::role::Role;

/// What a kernel multiplies with, which decides under which [`Precision`] it may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Fused multiply-adds in the type of the operands.
    Ffma,
    /// Three TF32 products on tensor cores with an FP32 running sum.
    Tf32x3,
    /// One TF32 product on tensor cores.
    Tf32,
    /// One product of 16-bit numbers on tensor cores, exact, with an FP32 running sum.
    Half,
}

impl Arithmetic {
    /// Whether a problem of this precision may be computed so.
    pub const fn serves(self, precision: Precision) -> bool {
        match precision {
            // Precision is about FP32 factors: what 16-bit ones lose is lost before.
            Precision::Fp32Strict => matches!(self, Arithmetic::Ffma | Arithmetic::Half),
            Precision::Fp32 => matches!(self, Arithmetic::Ffma | Arithmetic::Tf32x3 | Arithmetic::Half),
            Precision::Tf32 => true,
        }
    }
}

/// The tile of a kernel: how much of the result a block, a warp and a thread compute, and in what portions of k.
/// 0 where a kernel has no such level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Tile {
    /// Rows of the result a block computes.
    pub bm: u32,
    /// Columns of the result a block computes.
    pub bn: u32,
    /// Portion of k between two barriers.
    pub bk: u32,
    /// Rows a warp computes.
    pub wm: u32,
    /// Columns a warp computes.
    pub wn: u32,
    /// Rows a thread computes.
    pub tm: u32,
    /// Columns a thread computes.
    pub tn: u32,
    /// Portions of k that are in shared memory at a time.
    pub stages: u32,
}

/// A dimension of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Its rows.
    M,
    /// Its columns.
    N,
}

/// Which blocks a launch has. A *unit* is a tile of the result of one matrix, or a slice of k of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// `(⌈n / BN⌉, min(⌈m / BM⌉, 65535), min(batch, 65535))`; blocks go on to further tile rows and matrices.
    Tiles,
    /// `(units, 1, 1)`: the kernel finds out which unit a block is.
    Units,
    /// `(min(units, blocks that the multiprocessors hold), 1, 1)`: blocks go on to further units. Where a cluster cuts k: `(units, 1, 1)`, and
    /// with stream-K as many blocks as that says.
    Persistent,
    /// 2-CTA clusters: the tiles of their two blocks are neighbours along this side, what they share of an operand TMA
    /// multicasts to both, and they go on to further units, of two tiles each: `(2·min(units, multiprocessors / 2), 1, 1)`,
    /// or a few less where all clusters then have as many units.
    Clusters(Side),
}

/// How a kernel can cut k, where there are fewer tiles than multiprocessors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitK {
    /// Not at all.
    Never,
    /// The slices of a tile are the blocks of a cluster (2 to 8), which add their sums through distributed shared
    /// memory. Compute capability 9.0 and newer; elsewhere k stays whole.
    Cluster,
    /// The last tiles are cut into ranges of equal length, one a block, whatever the number of tiles; the fix-up adds the
    /// pieces of a tile through the workspace: [`StreamK`](crate::gemm::schedule::stream_k::StreamK).
    StreamK,
    /// Always into as few slices as are no longer than this, whose strips of the result the blocks take from a queue:
    /// [`WorkQueue`].
    WorkQueue(u32),
}

/// The pieces in which TMA brings an operand: elements along the dimension in which the operand is contiguous, and along
/// the other one. They lie in shared memory in rows of `inner` elements, whose 16-byte chunks are
/// swizzled where a row has 64 or 128 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmaBox {
    /// Elements along the contiguous dimension.
    pub inner: u32,
    /// Elements along the other dimension.
    pub outer: u32,
}

impl TmaBox {
    /// A box of `inner` × `outer` elements.
    pub const fn new(inner: u32, outer: u32) -> Self {
        TmaBox { inner, outer }
    }
}

/// What of the epilogue a kernel computes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpilogueSupport {
    /// `α·acc + β·C`
    Scaled,
    /// All of it: bias, activation and residual too.
    Fused,
}

/// What a kernel has inside that is no product and no epilogue of one. Kernels with more than a product are for problems that want some of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// Neither a norm nor gates.
    Product,
    /// Gated columns.
    Gates,
    /// A norm of A's rows, gated columns, or both.
    NormAndGates,
}

impl Inside {
    /// Whether rows of A may be normed.
    pub const fn norms(self) -> bool {
        matches!(self, Inside::NormAndGates)
    }

    /// Whether columns may be gated.
    pub const fn gates(self) -> bool {
        matches!(self, Inside::Gates | Inside::NormAndGates)
    }
}

/// What a kernel demands of the device and of its operands. Everything else it must be right for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The least compute capability.
    pub min_capability: u32,
    /// The only compute capability, for kernels that use one architecture's own instructions.
    pub only_capability: Option<u32>,
    /// Ways of access that A may have; empty: any.
    pub a: &'static [Access],
    /// Ways of access that B may have; empty: any.
    pub b: &'static [Access],
    /// Most rows of the result; 0: any.
    pub max_m: u32,
    /// Most columns of the result; 0: any.
    pub max_n: u32,
    /// Most products of a sum; 0: any.
    pub max_k: u32,
    /// Most matrices of the batch; 0: any.
    pub max_batch: u32,
    /// Rows of A (along m) or columns of B (along n) that follow one another without gaps: a tile of them is one run of memory.
    pub gapless: Option<Side>,
}

impl Needs {
    /// Compute capability 8.0 and newer, any operands.
    pub const ANY: Needs = Needs {
        min_capability: 80,
        only_capability: None,
        a: &[],
        b: &[],
        max_m: 0,
        max_n: 0,
        max_k: 0,
        max_batch: 0,
        gapless: None,
    };

    /// Whether this device has the instructions.
    pub fn are_met_by(&self, device: &DeviceInfo) -> bool {
        let capability = device.code_capability;
        capability >= self.min_capability && self.only_capability.is_none_or(|only| only == capability)
    }
}

/// A row of the kernel table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelSpec {
    /// The name by which users choose it, and the symbol of the `extern "C"` function.
    pub name: &'static str,
    /// The source file: `cuda/FILE.cu`.
    pub file: &'static str,
    /// What this step does, in a few words.
    pub summary: &'static str,
    /// Another kernel whose costs it has, because they differ in the type of their elements, or in a norm and gates, only.
    pub costs_of: Option<&'static str>,
    /// Rung or production kernel.
    pub role: Role,
    /// What an element is.
    pub dtype: DType,
    /// What it multiplies with.
    pub arithmetic: Arithmetic,
    /// Its tile.
    pub tile: Tile,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub dynamic_shared: u32,
    /// The shape of its grid.
    pub grid: Grid,
    /// What of the epilogue it computes.
    pub epilogue: EpilogueSupport,
    /// Whether it can norm rows of A and gate columns, and is for problems that want one of these.
    pub inside: Inside,
    /// How it can cut k.
    pub split_k: SplitK,
    /// Whether it can compute slices of k like matrices of a batch, for a second kernel to add up:
    /// [`parallel`](crate::gemm::schedule::parallel).
    pub parallel_split_k: bool,
    /// Partial sums that a block makes of the products of an output, k whole: groups of warps, lanes or registers add theirs
    /// apart. 1: all products of an output are added one after the other.
    pub partial_sums: u32,
    /// For kernels whose A and B TMA brings, and that take two tensor maps as further parameters: the boxes of A and of B.
    /// They support PDL: operands may still be repacked when they start, and they wait for that themselves.
    pub tma_boxes: Option<[TmaBox; 2]>,
    /// Whether it supports PDL without TMA.
    pub pdl: bool,
    /// For kernels that store D by TMA where its rows start on 16 bytes: the box.
    pub d_box: Option<TmaBox>,
    /// Whether the end of k takes half a portion where that is enough.
    pub halves_end: bool,
    /// Whether threads, whose outputs lie `tile.bm / tile.tm` rows apart, leave out those outside of D, and products past the end of k.
    pub leaves_out_outside: bool,
    /// Blocks that a multiprocessor holds of a persistent kernel.
    pub blocks_per_multiprocessor: u32,
    /// What it demands.
    pub needs: Needs,
    /// Compute capabilities on which the compiler may spill registers.
    pub may_spill_on: &'static [u32],
}

/// TMA stores rows of D that are multiples of so many 16-bit elements: `kWholeRows` in `cuda/tensor_core/half_store_sm90.cuh`.
pub const WHOLE_ROWS: usize = 8;

impl KernelSpec {
    /// How such a kernel shares its work, if there are not more strips than it has counters for; `None` of any other kernel.
    pub fn work_queue(&self, problem: &GemmProblem, device: &DeviceInfo) -> Option<WorkQueue> {
        match self.split_k {
            SplitK::WorkQueue(longest) => {
                WorkQueue::of(problem, self.tile.bn, self.tile.bk, longest, device.sm_count.max(1))
            }
            _ => None,
        }
    }

    /// The name of the kernel whose costs it has: mostly its own.
    pub const fn costs_name(&self) -> &'static str {
        match self.costs_of {
            Some(name) => name,
            None => self.name,
        }
    }

    /// Tensor maps that it takes beside the arguments: of A and B, and, if it multiplies numbers of 16 bits, of D.
    pub const fn tensor_maps(&self) -> usize {
        match (self.tma_boxes, self.arithmetic) {
            (None, _) => 0,
            (Some(_), Arithmetic::Half) => 3,
            (Some(_), _) => 2,
        }
    }

    /// Whether it supports PDL (programmatic dependent launch): it may be started while kernels before it on the stream
    /// still run, and waits for them itself.
    pub const fn supports_pdl(&self) -> bool {
        self.pdl || self.tma_boxes.is_some()
    }

    /// Whether TMA stores D, where no other kernel adds up slices of k: its rows are whole ones of 16 bytes.
    pub fn stores_by_tma(&self, problem: &GemmProblem) -> bool {
        self.d_box.is_some()
            && problem.types.d == problem.types.a
            && problem.accesses().d == Access::RowVector
            && problem.result_columns().is_multiple_of(WHOLE_ROWS)
    }

    /// Whether threads share k and add up at the end, as those of kernels for matrices and few vectors do, of any type: what they ask of memory
    /// comes in turns of k. (Warps of `gemv_half.cu` share k too, but count as one here.)
    pub const fn takes_turns_of_k(&self) -> bool {
        self.partial_sums > 1 && self.tile.tm * self.tile.tn == 1
    }

    /// Of such a kernel for FP32: whether the lanes of a warp share k and read operands straight into registers.
    pub const fn lanes_share_k(&self) -> bool {
        matches!(self.arithmetic, Arithmetic::Ffma) && self.takes_turns_of_k()
    }

    /// Of a kernel whose lanes share k: the order in which it reads vectors of the operand that it takes in any order, which is
    /// that of the other operand. `None` where either order is the same to it.
    pub const fn vector_order(&self, side: Side) -> Option<Access> {
        if !self.lanes_share_k() {
            return None;
        }
        let (own, other) = match side {
            Side::M => (self.needs.a, self.needs.b),
            Side::N => (self.needs.b, self.needs.a),
        };
        match (own, other) {
            ([], [Access::ColVector, ..]) => Some(Access::RowVector),
            ([], [Access::RowVector, ..]) => Some(Access::ColVector),
            _ => None,
        }
    }

    /// Blocks for which a multiprocessor has dynamic shared memory and threads. It may hold fewer.
    pub const fn blocks_at_once(&self, device: &DeviceInfo) -> u32 {
        /// Threads of a multiprocessor, and bytes of shared memory that CUDA takes for each block.
        const THREADS: u32 = 2048;
        const RESERVED: u32 = 1024;
        let by_memory = (device.shared_per_block + RESERVED) / (self.dynamic_shared + RESERVED);
        let by_threads = THREADS / self.threads;
        let blocks = if by_memory < by_threads { by_memory } else { by_threads };
        if blocks > 1 {
            blocks
        } else {
            1
        }
    }

    /// Tiles along rows and along columns of one matrix of `problem`.
    pub const fn tiles(&self, problem: &GemmProblem) -> [usize; 2] {
        [
            problem.m.div_ceil(self.tile.bm as usize),
            problem.n.div_ceil(self.tile.bn as usize),
        ]
    }

    /// The blocks, or 2-CTA clusters, that work on one unit at a time each, on so many multiprocessors.
    pub fn workers(&self, multiprocessors: u32) -> u32 {
        match self.grid {
            Grid::Clusters(_) => (multiprocessors / 2).max(1),
            _ => multiprocessors,
        }
    }

    /// Units of work of `problem` with k in one piece: tiles, or the two tiles of a cluster, of all matrices.
    pub fn units(&self, problem: &GemmProblem) -> usize {
        let [m, n] = self.tiles(problem);
        let [m, n] = match self.grid {
            Grid::Clusters(Side::M) => [m.div_ceil(2), n],
            Grid::Clusters(Side::N) => [m, n.div_ceil(2)],
            _ => [m, n],
        };
        m.saturating_mul(n).saturating_mul(problem.batch())
    }
}
