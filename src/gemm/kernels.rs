//! The kernel table. A kernel is one `.cu` file and one row here (or several rows, where one file is instantiated with
//! several tiles): planning, launching, tests, benchmarks and reports walk this table and keep no list of their own.

use super::cost::Cost;
use super::dealt::Dealt;
use super::problem::{Access, DType, GemmProblem, OperandLayout, Precision, MAX_SIZE};
use crate::device::DeviceInfo;
use crate::error::{Error, Result};

/// What a kernel multiplies with, which decides under which [`Precision`] it may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Fused multiply-adds in the type of the operands.
    Ffma,
    /// Three TF32 products on tensor cores with an FP32 running sum.
    Tf32x3,
    /// One TF32 product on tensor cores.
    Tf32,
}

impl Arithmetic {
    /// Whether a problem of this precision may be computed so.
    pub const fn serves(self, precision: Precision) -> bool {
        match precision {
            Precision::Fp32Strict => matches!(self, Arithmetic::Ffma),
            Precision::Fp32 => matches!(self, Arithmetic::Ffma | Arithmetic::Tf32x3),
            Precision::Tf32 => true,
        }
    }
}

/// Where a row of the table belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A step of the ladder, by its number.
    Rung(u32),
    /// Written for use, not to be read in order.
    Production,
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

impl Tile {
    /// A block tile of `bm` × `bn`, in portions of `bk`.
    pub const fn block(bm: u32, bn: u32, bk: u32) -> Self {
        Tile {
            bm,
            bn,
            bk,
            wm: 0,
            wn: 0,
            tm: 1,
            tn: 1,
            stages: 1,
        }
    }

    /// The same with warp tiles.
    pub const fn warp(self, wm: u32, wn: u32) -> Self {
        Tile { wm, wn, ..self }
    }

    /// The same with thread tiles.
    pub const fn thread(self, tm: u32, tn: u32) -> Self {
        Tile { tm, tn, ..self }
    }

    /// The same with this many portions of k in shared memory.
    pub const fn stages(self, stages: u32) -> Self {
        Tile { stages, ..self }
    }
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
    /// `(min(units, multiprocessors), 1, 1)`: blocks go on to further units. Where a cluster cuts k: `(units, 1, 1)`, and
    /// with stream-K as many blocks as that says.
    Persistent,
    /// Clusters of two blocks whose tiles are neighbours along this side, and go on to further pairs:
    /// `(2·min(pairs, multiprocessors / 2), 1, 1)`.
    Pairs(Side),
}

/// How a kernel can cut k, where there are fewer tiles than multiprocessors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitK {
    /// Not at all.
    Never,
    /// The slices of a tile are the blocks of a cluster (2 to 8), which add their sums through distributed shared
    /// memory. Compute capability 9.0 and newer; elsewhere k stays whole.
    Cluster,
    /// The last tiles are cut into ranges of equal length, one a block, whatever the number of tiles, and pieces come
    /// together through the workspace: [`StreamK`](super::stream_k::StreamK).
    StreamK,
    /// Always into as few slices as are no longer than this, whose strips of the result are dealt to the blocks one by one:
    /// [`Dealt`].
    Dealt(u32),
}

/// The pieces in which the copy engine (TMA) brings an operand: elements along the dimension in which the operand is
/// contiguous, and along the other one. They lie in shared memory in rows of `inner` elements, whose 16-byte chunks are
/// swizzled where a row has 64 or 128 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyBox {
    /// Elements along the contiguous dimension.
    pub inner: u32,
    /// Elements along the other dimension.
    pub outer: u32,
}

impl CopyBox {
    /// A box of `inner` × `outer` elements.
    pub const fn new(inner: u32, outer: u32) -> Self {
        CopyBox { inner, outer }
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
    };
}

/// Ways of access with a unit column stride.
const ALONG_ROWS: &[Access] = &[Access::RowVector, Access::RowScalar];
/// Ways of access with a unit row stride.
const ALONG_COLS: &[Access] = &[Access::ColVector, Access::ColScalar];
/// Rows of the streamed matrix that a block of the `dot` kernels for few columns takes.
const DOT_LINES: u32 = 4;
/// Columns (or rows) of the streamed matrix that a block of the `axpy` kernels takes.
const AXPY_LINES: u32 = 32;
/// Rows of the streamed matrix that a block of the `panel` kernel takes.
const PANEL_LINES: u32 = 32;
/// Threads of a warp.
const LANES: u32 = 32;
/// Threads of a block of the kernels that share a multiprocessor with others.
const DIRECT_THREADS: u32 = 128;
/// Warps that multiply, of the blocks of kernels in which groups of them share k.
const MATH_WARPS: u32 = 8;
/// Strides of a tensor map are below 2⁴⁰ bytes.
const MAX_COPY_STRIDE: i64 = 1 << 38;

/// A row of the kernel table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelSpec {
    /// The name by which users choose it, and the symbol of the `extern "C"` function.
    pub name: &'static str,
    /// The source file: `cuda/FILE.cu`.
    pub file: &'static str,
    /// What this step does, in a few words.
    pub summary: &'static str,
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
    /// How it can cut k.
    pub split_k: SplitK,
    /// Chains of additions that a block makes of the products of an output, k whole: groups of warps, lanes or registers add
    /// theirs apart.
    pub chains: u32,
    /// For kernels that read A and B through the copy engine, and take two tensor maps as further parameters: the
    /// boxes of A and of B. They may be started while operands are still being written anew, and wait for that themselves.
    pub copy_boxes: Option<[CopyBox; 2]>,
    /// Whether it may be started early, as those, without reading through the copy engine.
    pub waits: bool,
    /// What it demands.
    pub needs: Needs,
    /// Its measured costs. The planner considers a kernel only where they are given; by name every kernel can be had.
    pub cost: Option<Cost>,
    /// Compute capabilities on which the compiler may spill registers.
    pub may_spill_on: &'static [u32],
}

/// Groups of math warps, each of which covers the tile.
const fn math_groups(tile: &Tile) -> u32 {
    MATH_WARPS * tile.wm * tile.wn / (tile.bm * tile.bn)
}

/// How often the thread tiles of so many threads cover the block's: so many threads share the k of an output.
const fn covers(tile: &Tile, threads: u32) -> u32 {
    match threads * tile.tm * tile.tn / (tile.bm * tile.bn) {
        0 => 1,
        times => times,
    }
}

impl KernelSpec {
    /// A rung of the ladder: FP32 multiply-adds, any layout, α, β and C.
    pub const fn rung(
        number: u32,
        name: &'static str,
        file: &'static str,
        tile: Tile,
        threads: u32,
        summary: &'static str,
    ) -> Self {
        KernelSpec {
            name,
            file,
            summary,
            role: Role::Rung(number),
            dtype: DType::F32,
            arithmetic: Arithmetic::Ffma,
            tile,
            threads,
            dynamic_shared: 0,
            grid: Grid::Tiles,
            epilogue: EpilogueSupport::Scaled,
            split_k: SplitK::Never,
            chains: 1,
            copy_boxes: None,
            waits: false,
            needs: Needs::ANY,
            cost: None,
            may_spill_on: &[],
        }
    }

    /// A production kernel of FP32 multiply-adds with the whole epilogue, any layout, k cut across a cluster where there
    /// are few tiles.
    const fn ffma(name: &'static str, tile: Tile, threads: u32, cost: Cost) -> Self {
        KernelSpec {
            role: Role::Production,
            grid: Grid::Units,
            epilogue: EpilogueSupport::Fused,
            split_k: SplitK::Cluster,
            chains: covers(&tile, threads),
            ..KernelSpec::rung(
                0,
                name,
                "ffma/ffma_tiled",
                tile,
                threads,
                "FP32 multiply-adds, any layout",
            )
        }
        .candidate(cost)
    }

    /// The same with asynchronous copies.
    const fn ffma_pipelined(name: &'static str, tile: Tile, threads: u32, shared: u32, cost: Cost) -> Self {
        KernelSpec {
            file: "ffma/ffma_pipelined",
            summary: "FP32 multiply-adds, any layout, asynchronous copies",
            ..KernelSpec::ffma(name, tile, threads, cost)
        }
        .dynamic_shared(shared)
    }

    /// The same for large problems on Hopper, with warps that only multiply and warps that only load.
    const fn ffma_specialized(name: &'static str, tile: Tile, shared: u32, cost: Cost) -> Self {
        KernelSpec {
            file: "ffma/ffma_specialized_sm90",
            summary: "FP32 multiply-adds, any layout, producer and math warps",
            grid: Grid::Persistent,
            split_k: SplitK::StreamK,
            needs: Needs {
                only_capability: Some(90),
                ..Needs::ANY
            },
            ..KernelSpec::ffma(name, tile, 384, cost)
        }
        .dynamic_shared(shared)
    }

    /// The same for operands that start on 16 bytes, A and B accessed in these ways: the copy engine brings them.
    const fn ffma_copied(name: &'static str, [a, b]: [Access; 2], tile: Tile, shared: u32, cost: Cost) -> Self {
        const fn copy_box(along_k: bool, rows: u32, k: u32) -> CopyBox {
            if along_k {
                CopyBox::new(k, rows)
            } else {
                CopyBox::new(rows, k)
            }
        }
        const fn only(access: Access) -> &'static [Access] {
            match access {
                Access::RowVector => &[Access::RowVector],
                _ => &[Access::ColVector],
            }
        }
        KernelSpec {
            summary: "FP32 multiply-adds, TMA, producer and math warps",
            copy_boxes: Some([
                copy_box(matches!(a, Access::RowVector), tile.bm, tile.bk),
                copy_box(matches!(b, Access::ColVector), tile.bn, tile.bk),
            ]),
            needs: Needs {
                only_capability: Some(90),
                a: only(a),
                b: only(b),
                ..Needs::ANY
            },
            ..KernelSpec::ffma_specialized(name, tile, shared, cost)
        }
    }

    /// The same with one tile a block, which groups of math warps share along k, and k cut across a cluster where there are
    /// few tiles.
    const fn ffma_grouped(name: &'static str, accesses: [Access; 2], tile: Tile, shared: u32, cost: Cost) -> Self {
        KernelSpec {
            file: "ffma/ffma_grouped_sm90",
            summary: "FP32 multiply-adds, TMA, groups of math warps share k",
            grid: Grid::Units,
            split_k: SplitK::Cluster,
            chains: math_groups(&tile),
            ..KernelSpec::ffma_copied(name, accesses, tile, shared, cost)
        }
    }

    /// The same with one tile a block, several blocks a multiprocessor, for an A that is contiguous along k: it stays as it lies.
    const fn ffma_direct(name: &'static str, b: Access, tile: Tile, shared: u32, cost: Cost) -> Self {
        KernelSpec {
            file: "ffma/ffma_direct_sm90",
            summary: "FP32 multiply-adds, TMA, A along k as it lies",
            threads: DIRECT_THREADS,
            grid: Grid::Units,
            split_k: SplitK::Never,
            chains: covers(&tile, DIRECT_THREADS),
            ..KernelSpec::ffma_copied(name, [Access::RowVector, b], tile, shared, cost)
        }
    }

    /// The same for operands that are both contiguous along k, on Hopper: the copy engine brings them as they lie in memory.
    const fn ffma_kmajor(name: &'static str, tile: Tile, shared: u32, cost: Cost) -> Self {
        KernelSpec {
            file: "ffma/ffma_kmajor_sm90",
            summary: "FP32 multiply-adds along k, TMA",
            chains: 2 * math_groups(&tile),
            copy_boxes: Some([CopyBox::new(tile.bk, tile.bm), CopyBox::new(tile.bk, tile.bn)]),
            needs: Needs {
                only_capability: Some(90),
                a: &[Access::RowVector],
                b: &[Access::ColVector],
                ..Needs::ANY
            },
            ..KernelSpec::ffma(name, tile, 384, cost)
        }
        .dynamic_shared(shared)
    }

    /// The same for few rows, which a block keeps in shared memory while it is dealt strips of the result.
    const fn ffma_strips(
        name: &'static str,
        rows: u32,
        longest_slice: u32,
        tile: Tile,
        shared: u32,
        cost: Cost,
    ) -> Self {
        const BOX_K: u32 = 32;
        let spec = KernelSpec::ffma_kmajor(name, tile, shared, cost);
        KernelSpec {
            file: "ffma/ffma_strips_sm90",
            summary: "FP32 multiply-adds along k, TMA, few rows",
            grid: Grid::Persistent,
            split_k: SplitK::Dealt(longest_slice),
            chains: 2 * MATH_WARPS * LANES * tile.tm * tile.tn / (tile.bm * tile.bn),
            copy_boxes: Some([CopyBox::new(BOX_K, tile.bm), CopyBox::new(BOX_K, tile.bn)]),
            needs: Needs {
                max_m: rows,
                ..spec.needs
            },
            ..spec
        }
    }

    /// How such a kernel shares its work, if there are not more strips than it has counters for; `None` of any other kernel.
    pub fn dealt(&self, problem: &GemmProblem, device: &DeviceInfo) -> Option<Dealt> {
        match self.split_k {
            SplitK::Dealt(longest) => Dealt::of(problem, self.tile.bn, self.tile.bk, longest, device.sm_count.max(1)),
            _ => None,
        }
    }

    /// Whether it may be started while kernels before it on the stream still run.
    pub const fn starts_early(&self) -> bool {
        self.waits || self.copy_boxes.is_some()
    }

    /// A kernel that streams B past at most `rows` rows of A. It reads B along k (`b` stored transposed) or along n.
    const fn few_rows(
        name: &'static str,
        rows: u32,
        lines: u32,
        threads: u32,
        b: &'static [Access],
        cost: Cost,
    ) -> Self {
        KernelSpec {
            file: "ffma/gemv",
            split_k: SplitK::Never,
            chains: LANES, // or more
            waits: true,
            summary: "streams B once past a few rows of A",
            needs: Needs {
                b,
                max_m: rows,
                ..Needs::ANY
            },
            ..KernelSpec::ffma(name, Tile::block(rows, lines, 4), threads, cost)
        }
    }

    /// A kernel that streams A past at most `cols` columns of B. It reads A along k or (`a` stored transposed) along m.
    const fn few_cols(
        name: &'static str,
        cols: u32,
        lines: u32,
        threads: u32,
        a: &'static [Access],
        cost: Cost,
    ) -> Self {
        KernelSpec {
            file: "ffma/gemv",
            split_k: SplitK::Never,
            chains: LANES, // or more
            waits: true,
            summary: "streams A once past a few columns of B",
            needs: Needs {
                a,
                max_n: cols,
                ..Needs::ANY
            },
            ..KernelSpec::ffma(name, Tile::block(lines, cols, 4), threads, cost)
        }
    }

    /// A kernel that multiplies with the tensor cores of any device from compute capability 8.0 on, any layout.
    const fn mma(
        name: &'static str,
        arithmetic: Arithmetic,
        tile: Tile,
        threads: u32,
        shared: u32,
        cost: Cost,
    ) -> Self {
        KernelSpec {
            file: "tensor_core/gemm_tf32x3_mma",
            summary: "TF32 products by mma.sync, any layout",
            arithmetic,
            split_k: SplitK::Never,
            ..KernelSpec::ffma(name, tile, threads, cost)
        }
        .dynamic_shared(shared)
    }

    /// The same with persistent blocks that share the steps of k equally where tiles do not fill whole waves.
    const fn streaming_k(self) -> Self {
        KernelSpec {
            grid: Grid::Persistent,
            split_k: SplitK::StreamK,
            ..self
        }
    }

    /// The same as a candidate of the planner, with these costs.
    pub const fn candidate(self, cost: Cost) -> Self {
        KernelSpec {
            cost: Some(cost),
            ..self
        }
    }

    /// The same for another element type.
    pub const fn dtype(self, dtype: DType) -> Self {
        KernelSpec { dtype, ..self }
    }

    /// The same where the compiler is allowed to spill registers on these compute capabilities.
    pub const fn may_spill_on(self, capabilities: &'static [u32]) -> Self {
        KernelSpec {
            may_spill_on: capabilities,
            ..self
        }
    }

    /// The same with this many bytes of dynamic shared memory.
    pub const fn dynamic_shared(self, bytes: u32) -> Self {
        KernelSpec {
            dynamic_shared: bytes,
            ..self
        }
    }

    /// Tiles along rows and along columns of one matrix of `problem`.
    pub const fn tiles(&self, problem: &GemmProblem) -> [usize; 2] {
        [
            problem.m.div_ceil(self.tile.bm as usize),
            problem.n.div_ceil(self.tile.bn as usize),
        ]
    }

    /// Units of work of `problem` with k in one piece: tiles, or pairs of tiles, of all matrices.
    pub fn units(&self, problem: &GemmProblem) -> usize {
        let [m, n] = self.tiles(problem);
        let [m, n] = match self.grid {
            Grid::Pairs(Side::M) => [m.div_ceil(2), n],
            Grid::Pairs(Side::N) => [m, n.div_ceil(2)],
            _ => [m, n],
        };
        m.saturating_mul(n).saturating_mul(problem.batch())
    }

    /// Why this kernel cannot compute `problem` on `device`, or `None` if it can. `problem` is folded and valid.
    pub fn refusal(&self, problem: &GemmProblem, device: &DeviceInfo) -> Option<String> {
        if let Some(capability) = self.needs.only_capability {
            if device.code_capability != capability {
                return Some(format!(
                    "it is written for compute capability {capability} and {}",
                    device.runs()
                ));
            }
        }
        if device.code_capability < self.needs.min_capability {
            return Some(format!(
                "it needs compute capability {} and {}",
                self.needs.min_capability,
                device.runs()
            ));
        }
        if self.dynamic_shared > device.shared_per_block {
            return Some(format!(
                "it needs {} bytes of shared memory a block and the device has {}",
                self.dynamic_shared, device.shared_per_block
            ));
        }
        if self.dtype != problem.dtype {
            return Some(format!(
                "it computes {:?} and the operands are {:?}",
                self.dtype, problem.dtype
            ));
        }
        if !self.arithmetic.serves(problem.precision) {
            return Some(format!(
                "its arithmetic ({:?}) does not serve precision {}",
                self.arithmetic, problem.precision
            ));
        }
        if self.epilogue == EpilogueSupport::Scaled && !problem.epilogue.is_plain() {
            return Some(
                "it computes α·A·B + β·C only, without bias, activation, residual or scalars in device memory".into(),
            );
        }
        if self.needs.max_m != 0 && problem.m > self.needs.max_m as usize {
            return Some(format!(
                "it takes at most {} rows and the problem has {}",
                self.needs.max_m, problem.m
            ));
        }
        if self.needs.max_n != 0 && problem.n > self.needs.max_n as usize {
            return Some(format!(
                "it takes at most {} columns and the problem has {}",
                self.needs.max_n, problem.n
            ));
        }
        if self.grid != Grid::Tiles && self.units(problem) > MAX_SIZE {
            return Some(format!(
                "it would have {} tiles to count, and counts to {MAX_SIZE}",
                self.units(problem)
            ));
        }
        if matches!(self.split_k, SplitK::Dealt(_)) && self.dealt(problem, device).is_none() {
            return Some(format!(
                "it counts the strips of {} columns that are done, and has counters for 16384",
                self.tile.bn
            ));
        }
        let refused = |allowed: &[Access], access: Access| !allowed.is_empty() && !allowed.contains(&access);
        let a = problem.a.access(problem.m, problem.k, problem.dtype);
        if refused(self.needs.a, a) {
            return Some(format!(
                "A ({} × {}, strides {} and {}, aligned to {} bytes) is {a:?}, and it takes {:?}",
                problem.m, problem.k, problem.a.row_stride, problem.a.col_stride, problem.a.align, self.needs.a
            ));
        }
        let b = problem.b.access(problem.k, problem.n, problem.dtype);
        if refused(self.needs.b, b) {
            return Some(format!(
                "B ({} × {}, strides {} and {}, aligned to {} bytes) is {b:?}, and it takes {:?}",
                problem.k, problem.n, problem.b.row_stride, problem.b.col_stride, problem.b.align, self.needs.b
            ));
        }
        if self.copy_boxes.is_some() {
            if problem.batch_dims[0] != 1 {
                return Some("the copy engine walks at most three batch dimensions".into());
            }
            let strides = |layout: &OperandLayout| {
                let [_, batch @ ..] = layout.batch_strides;
                [layout.row_stride, layout.col_stride, batch[0], batch[1], batch[2]]
            };
            let outside = |stride: &i64| !(0..MAX_COPY_STRIDE).contains(stride);
            if let Some(stride) = [&problem.a, &problem.b].into_iter().flat_map(strides).find(outside) {
                return Some(format!(
                    "the copy engine takes strides from 0 to {MAX_COPY_STRIDE}, not {stride}"
                ));
            }
        }
        None
    }
}

/// A row for Hopper's tensor cores: TMA brings boxes of A and B, wgmma multiplies; whole epilogue.
macro_rules! sm90 {
    (@file tf32x3) => { ("tensor_core/gemm_tf32x3_sm90", Arithmetic::Tf32x3, "three TF32 products, TMA and wgmma") };
    (@file tf32) => { ("tensor_core/gemm_tf32_sm90", Arithmetic::Tf32, "one TF32 product, TMA and wgmma") };
    (@a NN) => { &[Access::RowVector] };
    (@a NT) => { &[Access::RowVector] };
    (@a TN) => { &[Access::ColVector] };
    (@a TT) => { &[Access::ColVector] };
    (@b NN) => { &[Access::RowVector] };
    (@b TN) => { &[Access::RowVector] };
    (@b NT) => { &[Access::ColVector] };
    (@b TT) => { &[Access::ColVector] };
    (@grid persistent) => { (Grid::Persistent, SplitK::Cluster) };
    (@grid pairs along M) => { (Grid::Pairs(Side::M), SplitK::Never) };
    (@grid pairs along N) => { (Grid::Pairs(Side::N), SplitK::Never) };
    (
        $name:literal: $kind:tt $layout:tt, $bm:literal by $bn:literal, $threads:literal threads, $shared:literal bytes,
        boxes $a_inner:literal by $a_outer:literal and $b_inner:literal by $b_outer:literal, $($grid:ident)+,
        cost $full:literal $setup:literal $stream:literal
    ) => {
        KernelSpec {
            role: Role::Production,
            arithmetic: sm90!(@file $kind).1,
            grid: sm90!(@grid $($grid)+).0,
            split_k: sm90!(@grid $($grid)+).1,
            epilogue: EpilogueSupport::Fused,
            copy_boxes: Some([CopyBox::new($a_inner, $a_outer), CopyBox::new($b_inner, $b_outer)]),
            needs: Needs {
                only_capability: Some(90),
                a: sm90!(@a $layout),
                b: sm90!(@b $layout),
                ..Needs::ANY
            },
            ..KernelSpec::rung(
                0,
                $name,
                sm90!(@file $kind).0,
                Tile::block($bm, $bn, 32),
                $threads,
                sm90!(@file $kind).2,
            )
        }
        .dynamic_shared($shared)
        .candidate(Cost::measured($full, $full, 1, $setup, $stream))
    };
}

/// Every kernel, rungs in the order of the ladder. The last resort, which takes every problem that a rung can, is the
/// first row.
pub const TABLE: &[KernelSpec] = &[
    KernelSpec::rung(
        1,
        "sgemm_01_naive",
        "sgemm/sgemm_01_naive",
        Tile::block(32, 32, 1),
        1024,
        "one thread an element, warps along rows of D",
    ),
    KernelSpec::rung(
        1,
        "sgemm_01_naive_uncoalesced",
        "sgemm/sgemm_01_naive",
        Tile::block(32, 32, 1),
        1024,
        "one thread an element, warps down columns of D",
    ),
    KernelSpec::rung(
        2,
        "sgemm_02_coalesced_16",
        "sgemm/sgemm_02_coalesced",
        Tile::block(16, 16, 1),
        256,
        "consecutive threads on consecutive columns, 16 × 16",
    ),
    KernelSpec::rung(
        2,
        "sgemm_02_coalesced",
        "sgemm/sgemm_02_coalesced",
        Tile::block(32, 32, 1),
        1024,
        "the same, 32 × 32",
    ),
    KernelSpec::rung(
        3,
        "sgemm_03_shared",
        "sgemm/sgemm_03_shared",
        Tile::block(32, 32, 32),
        1024,
        "tiles of A and B in shared memory",
    ),
    KernelSpec::rung(
        3,
        "sgemm_03_shared_in_turn",
        "sgemm/sgemm_03_shared",
        Tile::block(32, 32, 32),
        1024,
        "the same, loaded only when needed",
    ),
    KernelSpec::rung(
        3,
        "sgemm_03_shared_padded",
        "sgemm/sgemm_03_shared",
        Tile::block(32, 32, 32),
        1024,
        "the same, rows of A padded",
    ),
    KernelSpec::rung(
        3,
        "sgemm_03_shared_transposed",
        "sgemm/sgemm_03_shared",
        Tile::block(32, 32, 32),
        1024,
        "A transposed on the way, with bank conflicts",
    ),
    KernelSpec::rung(
        3,
        "sgemm_03_shared_transposed_padded",
        "sgemm/sgemm_03_shared",
        Tile::block(32, 32, 32),
        1024,
        "the same, padded against bank conflicts",
    ),
    KernelSpec::rung(
        4,
        "sgemm_04_l1_register_block_c_first",
        "sgemm/sgemm_04_l1_register_block",
        Tile::block(16, 512, 1).thread(16, 4),
        128,
        "register blocks through the L1 cache, C read first",
    ),
    KernelSpec::rung(
        4,
        "sgemm_04_l1_register_block",
        "sgemm/sgemm_04_l1_register_block",
        Tile::block(16, 512, 1).thread(16, 4),
        128,
        "the same, C read last",
    ),
    KernelSpec::rung(
        4,
        "sgemm_04_l1_register_block_8x4",
        "sgemm/sgemm_04_l1_register_block",
        Tile::block(32, 128, 1).thread(8, 4),
        128,
        "the same, 8 × 4 a thread",
    ),
    KernelSpec::rung(
        4,
        "dgemm_04_l1_register_block_c_first",
        "sgemm/sgemm_04_l1_register_block",
        Tile::block(16, 512, 1).thread(16, 4),
        128,
        "FP64: register blocks through L1, C read first",
    )
    .dtype(DType::F64),
    KernelSpec::rung(
        4,
        "dgemm_04_l1_register_block",
        "sgemm/sgemm_04_l1_register_block",
        Tile::block(16, 512, 1).thread(16, 4),
        128,
        "FP64: the same, C read last",
    )
    .dtype(DType::F64),
    KernelSpec::rung(
        5,
        "sgemm_05_thread_tile_1d",
        "sgemm/sgemm_05_thread_tile_1d",
        Tile::block(64, 64, 8).thread(8, 1),
        512,
        "a column of 8 elements a thread",
    ),
    KernelSpec::rung(
        5,
        "sgemm_05_thread_tile_1d_bk32",
        "sgemm/sgemm_05_thread_tile_1d",
        Tile::block(64, 64, 32).thread(8, 1),
        512,
        "the same, k in steps of 32",
    )
    .may_spill_on(&[100]),
    KernelSpec::rung(
        6,
        "sgemm_06_thread_tile_2d_4x4_padded",
        "sgemm/sgemm_06_thread_tile_2d",
        Tile::block(128, 128, 8).thread(4, 4),
        1024,
        "4 × 4 neighbouring elements a thread, padded rows",
    ),
    KernelSpec::rung(
        6,
        "sgemm_06_thread_tile_2d_4x4",
        "sgemm/sgemm_06_thread_tile_2d",
        Tile::block(128, 128, 8).thread(4, 4),
        1024,
        "the same without padding",
    ),
    KernelSpec::rung(
        6,
        "sgemm_06_thread_tile_2d",
        "sgemm/sgemm_06_thread_tile_2d",
        Tile::block(128, 128, 8).thread(8, 8),
        256,
        "8 × 8 neighbouring elements a thread",
    )
    .may_spill_on(&[120]),
    KernelSpec::rung(
        7,
        "sgemm_07_thread_tile_strided_unpadded",
        "sgemm/sgemm_07_thread_tile_strided",
        Tile::block(128, 128, 8).thread(4, 4),
        1024,
        "4 × 4 elements a thread, a quarter tile apart",
    ),
    KernelSpec::rung(
        7,
        "sgemm_07_thread_tile_strided",
        "sgemm/sgemm_07_thread_tile_strided",
        Tile::block(128, 128, 8).thread(4, 4),
        1024,
        "the same, padded rows",
    ),
    KernelSpec::rung(
        7,
        "sgemm_07_thread_tile_strided_8x8",
        "sgemm/sgemm_07_thread_tile_strided",
        Tile::block(128, 128, 8).thread(8, 8),
        256,
        "8 × 8 elements a thread, an eighth apart",
    ),
    KernelSpec::rung(
        8,
        "sgemm_08_register_cached",
        "sgemm/sgemm_08_register_cached",
        Tile::block(128, 128, 8).thread(8, 8),
        256,
        "fragments of A and B in registers",
    )
    .may_spill_on(&[120]),
    KernelSpec::rung(
        9,
        "sgemm_09_quadrants",
        "sgemm/sgemm_09_quadrants",
        Tile::block(128, 128, 8).thread(8, 8),
        256,
        "4 × 4 in each quadrant; A stored transposed",
    ),
    KernelSpec::rung(
        9,
        "sgemm_09_quadrants_bk16",
        "sgemm/sgemm_09_quadrants",
        Tile::block(128, 128, 16).thread(8, 8),
        256,
        "the same, k in steps of 16",
    ),
    KernelSpec::rung(
        10,
        "sgemm_10_vectorized",
        "sgemm/sgemm_10_vectorized",
        Tile::block(128, 128, 8).thread(8, 8),
        256,
        "four floats an instruction, outputs in quadrants",
    ),
    KernelSpec::rung(
        10,
        "sgemm_10_vectorized_contiguous",
        "sgemm/sgemm_10_vectorized",
        Tile::block(128, 128, 8).thread(8, 8),
        256,
        "the same, outputs contiguous: reads of B conflict",
    ),
    KernelSpec::rung(
        11,
        "sgemm_11_tuned_shared_c_first",
        "sgemm/sgemm_11_tuned_shared",
        Tile::block(128, 128, 32).thread(8, 8),
        256,
        "shared memory, BK = 32, C read first",
    ),
    KernelSpec::rung(
        11,
        "sgemm_11_tuned_shared_c_last",
        "sgemm/sgemm_11_tuned_shared",
        Tile::block(128, 128, 32).thread(8, 8),
        256,
        "the same, C read last",
    ),
    KernelSpec::rung(
        11,
        "sgemm_11_tuned_shared_bk16",
        "sgemm/sgemm_11_tuned_shared",
        Tile::block(128, 128, 16).thread(8, 8),
        256,
        "the same, BK = 16",
    ),
    KernelSpec::rung(
        11,
        "sgemm_11_tuned_shared_global_float4",
        "sgemm/sgemm_11_tuned_shared",
        Tile::block(128, 128, 16).thread(8, 8),
        256,
        "the same, float4 from global memory",
    ),
    KernelSpec::rung(
        11,
        "sgemm_11_tuned_shared",
        "sgemm/sgemm_11_tuned_shared",
        Tile::block(128, 128, 16).thread(8, 8),
        256,
        "the same, float4 from shared memory too",
    ),
    KernelSpec::rung(
        11,
        "sgemm_11_tuned_shared_extra_shared",
        "sgemm/sgemm_11_tuned_shared",
        Tile::block(128, 128, 16).thread(8, 8),
        256,
        "the same, with 16 KiB of shared memory unused",
    ),
    KernelSpec::rung(
        11,
        "sgemm_11_tuned_shared_more_registers",
        "sgemm/sgemm_11_tuned_shared",
        Tile::block(128, 128, 16).thread(8, 8),
        256,
        "float4 throughout, one block a multiprocessor",
    ),
    KernelSpec::rung(
        12,
        "sgemm_12_double_buffered",
        "sgemm/sgemm_12_double_buffered",
        Tile::block(128, 128, 8).thread(8, 8).stages(2),
        256,
        "two tiles in shared memory, loads ahead of products",
    ),
    KernelSpec::rung(
        13,
        "sgemm_13_warp_tiled",
        "sgemm/sgemm_13_warp_tiled",
        Tile::block(128, 256, 8).warp(32, 128).thread(8, 16).stages(2),
        256,
        "block, warp and thread tiles",
    )
    .candidate(Cost::measured(0.73, 0.730, 1, 6.0, 0.75)),
    KernelSpec::rung(
        13,
        "sgemm_13_warp_tiled_w64x64",
        "sgemm/sgemm_13_warp_tiled",
        Tile::block(128, 256, 8).warp(64, 64).thread(8, 16).stages(2),
        256,
        "the same, warps of 64 × 64",
    ),
    KernelSpec::rung(
        13,
        "sgemm_13_warp_tiled_128x128",
        "sgemm/sgemm_13_warp_tiled",
        Tile::block(128, 128, 8).warp(64, 64).thread(8, 16).stages(2),
        128,
        "the same, 128 × 128",
    )
    .candidate(Cost::measured(0.67, 0.402, 2, 4.0, 0.75)),
    KernelSpec::rung(
        13,
        "sgemm_13_warp_tiled_128x128_t8x8",
        "sgemm/sgemm_13_warp_tiled",
        Tile::block(128, 128, 8).warp(64, 32).thread(8, 8).stages(2),
        256,
        "the same, 8 × 8 a thread",
    ),
    KernelSpec::rung(
        13,
        "sgemm_13_warp_tiled_64x64",
        "sgemm/sgemm_13_warp_tiled",
        Tile::block(64, 64, 8).warp(32, 32).thread(4, 8).stages(2),
        128,
        "the same, 64 × 64",
    ),
    KernelSpec::rung(
        14,
        "sgemm_14_async_pipelined",
        "sgemm/sgemm_14_async_pipelined",
        Tile::block(128, 256, 16).warp(32, 128).thread(8, 16).stages(3),
        256,
        "copies to shared memory without registers, three stages",
    )
    .dynamic_shared(75_264)
    .candidate(Cost::measured(0.60, 0.600, 1, 4.5, 0.75)),
    KernelSpec::rung(
        14,
        "sgemm_14_async_pipelined_128x128",
        "sgemm/sgemm_14_async_pipelined",
        Tile::block(128, 128, 16).warp(32, 128).thread(8, 16).stages(3),
        128,
        "the same, 128 × 128",
    )
    .dynamic_shared(50_688)
    .candidate(Cost::measured(0.54, 0.407, 2, 8.0, 0.75)),
    KernelSpec::few_rows(
        "gemv_dot_m1",
        1,
        2,
        192,
        ALONG_COLS,
        Cost::measured(0.04, 0.015, 8, 1.0, 0.90),
    ),
    KernelSpec::few_rows(
        "gemv_dot_m2",
        2,
        2,
        128,
        ALONG_COLS,
        Cost::measured(0.08, 0.030, 8, 1.0, 0.90),
    ),
    KernelSpec::few_rows(
        "gemv_dot_m4",
        4,
        4,
        256,
        ALONG_COLS,
        Cost::measured(0.18, 0.070, 3, 1.5, 0.90),
    ),
    KernelSpec::few_rows(
        "gemv_dot_m8",
        8,
        4,
        64,
        ALONG_COLS,
        Cost::measured(0.40, 0.060, 8, 2.5, 0.85),
    ),
    KernelSpec::few_rows(
        "gemv_dot_m8_deep",
        8,
        2,
        256,
        ALONG_COLS,
        Cost::measured(0.22, 0.072, 3, 2.0, 0.80),
    ),
    KernelSpec::few_rows(
        "gemv_axpy_m1",
        1,
        AXPY_LINES,
        512,
        ALONG_ROWS,
        Cost::measured(0.055, 0.055, 1, 1.2, 0.87),
    ),
    KernelSpec::few_rows(
        "gemv_axpy_m2",
        2,
        AXPY_LINES,
        512,
        ALONG_ROWS,
        Cost::measured(0.104, 0.104, 1, 1.25, 0.87),
    ),
    KernelSpec::few_rows(
        "gemv_axpy_m4",
        4,
        AXPY_LINES,
        512,
        ALONG_ROWS,
        Cost::measured(0.19, 0.19, 1, 1.45, 0.87),
    ),
    KernelSpec::few_rows(
        "gemv_axpy_m8",
        8,
        AXPY_LINES,
        512,
        ALONG_ROWS,
        Cost::measured(0.275, 0.275, 1, 1.95, 0.85),
    ),
    KernelSpec::few_cols(
        "gemv_dot_n1",
        1,
        DOT_LINES,
        128,
        ALONG_ROWS,
        Cost::measured(0.04, 0.015, 4, 1.5, 0.90),
    ),
    KernelSpec::few_cols(
        "gemv_dot_n2",
        2,
        DOT_LINES,
        128,
        ALONG_ROWS,
        Cost::measured(0.06, 0.030, 4, 2.0, 0.90),
    ),
    KernelSpec::few_cols(
        "gemv_dot_n4",
        4,
        DOT_LINES,
        128,
        ALONG_ROWS,
        Cost::measured(0.14, 0.053, 4, 1.5, 0.90),
    ),
    KernelSpec::few_cols(
        "gemv_dot_n8",
        8,
        DOT_LINES,
        128,
        ALONG_ROWS,
        Cost::measured(0.22, 0.220, 4, 2.0, 0.85),
    ),
    KernelSpec::few_cols(
        "gemv_axpy_n1",
        1,
        AXPY_LINES,
        512,
        ALONG_COLS,
        Cost::measured(0.055, 0.055, 1, 1.2, 0.87),
    ),
    KernelSpec::few_cols(
        "gemv_axpy_n2",
        2,
        AXPY_LINES,
        512,
        ALONG_COLS,
        Cost::measured(0.104, 0.104, 1, 1.25, 0.87),
    ),
    KernelSpec::few_cols(
        "gemv_axpy_n4",
        4,
        AXPY_LINES,
        512,
        ALONG_COLS,
        Cost::measured(0.19, 0.19, 1, 1.45, 0.87),
    ),
    KernelSpec::few_cols(
        "gemv_axpy_n8",
        8,
        AXPY_LINES,
        512,
        ALONG_COLS,
        Cost::measured(0.275, 0.275, 1, 1.95, 0.85),
    ),
    KernelSpec::few_cols(
        "gemv_panel_n16",
        16,
        PANEL_LINES,
        512,
        ALONG_ROWS,
        Cost::measured(0.40, 0.400, 1, 3.5, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_128x256",
        Tile::block(128, 256, 16).thread(8, 16).stages(2),
        256,
        Cost::measured(0.56, 0.564, 1, 8.0, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_64x128",
        Tile::block(64, 128, 16).thread(8, 8).stages(2),
        128,
        Cost::measured(0.72, 0.478, 3, 5.5, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_64x64",
        Tile::block(64, 64, 32).thread(8, 8).stages(2),
        128,
        Cost::measured(0.54, 0.405, 2, 5.0, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_32x128",
        Tile::block(32, 128, 32).thread(8, 8).stages(2),
        128,
        Cost::measured(0.59, 0.442, 2, 4.0, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_32x64",
        Tile::block(32, 64, 32).thread(8, 8).stages(2),
        64,
        Cost::measured(0.50, 0.187, 4, 8.0, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_16x128",
        Tile::block(16, 128, 32).thread(8, 8).stages(2),
        128,
        Cost::measured(0.37, 0.224, 2, 3.0, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_32x32",
        Tile::block(32, 32, 32).thread(4, 8).stages(2),
        64,
        Cost::measured(0.47, 0.155, 6, 4.5, 0.75),
    ),
    KernelSpec::ffma(
        "ffma_128x32",
        Tile::block(128, 32, 32).thread(4, 8).stages(2),
        128,
        Cost::measured(0.53, 0.400, 3, 4.4, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_128x256",
        Tile::block(128, 256, 16).warp(32, 128).thread(8, 16).stages(3),
        256,
        131072,
        Cost::measured(0.74, 0.740, 1, 6.0, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_128x128",
        Tile::block(128, 128, 16).warp(32, 128).thread(8, 16).stages(3),
        128,
        65536,
        Cost::measured(0.76, 0.567, 2, 6.5, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_64x128",
        Tile::block(64, 128, 16).warp(32, 64).thread(8, 8).stages(3),
        128,
        38400,
        Cost::measured(0.68, 0.450, 3, 5.5, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_128x64",
        Tile::block(128, 64, 16).warp(32, 64).thread(8, 8).stages(3),
        128,
        38400,
        Cost::measured(0.63, 0.330, 4, 6.5, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_64x64",
        Tile::block(64, 64, 16).warp(32, 32).thread(8, 4).stages(4),
        128,
        34816,
        Cost::measured(0.49, 0.366, 4, 2.5, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_32x128",
        Tile::block(32, 128, 16).warp(32, 32).thread(8, 4).stages(4),
        128,
        43008,
        Cost::measured(0.41, 0.304, 4, 5.5, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_32x64",
        Tile::block(32, 64, 16).warp(16, 64).thread(4, 8).stages(4),
        64,
        26624,
        Cost::measured(0.30, 0.112, 8, 2.0, 0.75),
    ),
    KernelSpec::ffma_pipelined(
        "ffma_pipelined_32x32",
        Tile::block(32, 32, 32).warp(16, 32).thread(4, 4).stages(4),
        64,
        36864,
        Cost::measured(0.35, 0.118, 6, 2.5, 0.75),
    ),
    sm90!("gemm_tf32x3_sm90_128x128_pair_nt": tf32x3 NT, 128 by 128, 512 threads, 213504 bytes, boxes 32 by 128 and 32 by 64, pairs along M, cost 0.83 2.25 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_pair_tt": tf32x3 TT, 128 by 128, 512 threads, 213504 bytes, boxes 32 by 32 and 32 by 64, pairs along M, cost 0.83 2.50 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_pair_nn": tf32x3 NN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 64 and 32 by 32, pairs along N, cost 0.83 2.25 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_pair_tn": tf32x3 TN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, pairs along M, cost 0.62 2.50 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_nt": tf32x3 NT, 128 by 128, 512 threads, 213504 bytes, boxes 32 by 128 and 32 by 128, persistent, cost 0.81 3.50 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_tt": tf32x3 TT, 128 by 128, 512 threads, 213504 bytes, boxes 32 by 32 and 32 by 128, persistent, cost 0.81 3.00 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_nn": tf32x3 NN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 128 and 32 by 32, persistent, cost 0.81 3.00 0.75),
    sm90!("gemm_tf32x3_sm90_128x128_tn": tf32x3 TN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.62 4.25 0.75),
    sm90!("gemm_tf32x3_sm90_128x64_nt": tf32x3 NT, 128 by 64, 512 threads, 221696 bytes, boxes 32 by 128 and 32 by 64, persistent, cost 0.68 3.00 0.75),
    sm90!("gemm_tf32x3_sm90_128x32_nt": tf32x3 NT, 128 by 32, 512 threads, 217600 bytes, boxes 32 by 128 and 32 by 32, persistent, cost 0.34 0.50 0.75),
    sm90!("gemm_tf32x3_sm90_128x16_nt": tf32x3 NT, 128 by 16, 512 threads, 190976 bytes, boxes 32 by 128 and 32 by 16, persistent, cost 0.22 0.25 0.75),
    sm90!("gemm_tf32x3_sm90_128x64_tt": tf32x3 TT, 128 by 64, 512 threads, 221696 bytes, boxes 32 by 32 and 32 by 64, persistent, cost 0.66 1.75 0.75),
    sm90!("gemm_tf32x3_sm90_128x32_tt": tf32x3 TT, 128 by 32, 512 threads, 217600 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.40 0.75 0.75),
    sm90!("gemm_tf32x3_sm90_128x16_tt": tf32x3 TT, 128 by 16, 512 threads, 190976 bytes, boxes 32 by 32 and 32 by 16, persistent, cost 0.22 0.25 0.75),
    sm90!("gemm_tf32x3_sm90_128x64_nn": tf32x3 NN, 128 by 64, 512 threads, 213504 bytes, boxes 32 by 128 and 32 by 32, persistent, cost 0.46 1.00 0.75),
    sm90!("gemm_tf32x3_sm90_128x32_nn": tf32x3 NN, 128 by 32, 512 threads, 217600 bytes, boxes 32 by 128 and 32 by 32, persistent, cost 0.30 0.25 0.85),
    sm90!("gemm_tf32x3_sm90_128x64_tn": tf32x3 TN, 128 by 64, 512 threads, 213504 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.46 1.75 0.75),
    sm90!("gemm_tf32x3_sm90_128x32_tn": tf32x3 TN, 128 by 32, 512 threads, 217600 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.28 0.50 0.85),
    sm90!("gemm_tf32x3_sm90_64x128_nt": tf32x3 NT, 64 by 128, 512 threads, 221696 bytes, boxes 32 by 64 and 32 by 128, persistent, cost 0.68 3.00 0.80),
    sm90!("gemm_tf32x3_sm90_32x128_nt": tf32x3 NT, 32 by 128, 512 threads, 217600 bytes, boxes 32 by 32 and 32 by 128, persistent, cost 0.38 1.75 0.75),
    sm90!("gemm_tf32x3_sm90_16x128_nt": tf32x3 NT, 16 by 128, 512 threads, 190976 bytes, boxes 32 by 16 and 32 by 128, persistent, cost 0.24 2.00 0.75),
    sm90!("gemm_tf32x3_sm90_64x128_nn": tf32x3 NN, 64 by 128, 512 threads, 221696 bytes, boxes 32 by 64 and 32 by 32, persistent, cost 0.62 1.25 0.80),
    sm90!("gemm_tf32x3_sm90_32x128_nn": tf32x3 NN, 32 by 128, 512 threads, 217600 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.40 0.50 0.75),
    sm90!("gemm_tf32x3_sm90_16x128_nn": tf32x3 NN, 16 by 128, 512 threads, 190976 bytes, boxes 32 by 16 and 32 by 32, persistent, cost 0.22 0.25 0.75),
    sm90!("gemm_tf32x3_sm90_64x64_nt": tf32x3 NT, 64 by 64, 384 threads, 188928 bytes, boxes 32 by 64 and 32 by 64, persistent, cost 0.44 1.25 0.80),
    sm90!("gemm_tf32x3_sm90_64x64_tt": tf32x3 TT, 64 by 64, 384 threads, 188928 bytes, boxes 32 by 32 and 32 by 64, persistent, cost 0.46 0.75 0.80),
    sm90!("gemm_tf32x3_sm90_64x64_nn": tf32x3 NN, 64 by 64, 384 threads, 229888 bytes, boxes 32 by 64 and 32 by 32, persistent, cost 0.30 0.25 0.80),
    sm90!("gemm_tf32x3_sm90_64x64_tn": tf32x3 TN, 64 by 64, 384 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.28 0.50 0.80),
    sm90!("gemm_tf32x3_sm90_32x64_nt": tf32x3 NT, 32 by 64, 384 threads, 135680 bytes, boxes 32 by 32 and 32 by 64, persistent, cost 0.26 0.50 0.85),
    sm90!("gemm_tf32x3_sm90_16x64_nt": tf32x3 NT, 16 by 64, 384 threads, 109056 bytes, boxes 32 by 16 and 32 by 64, persistent, cost 0.14 0.50 0.80),
    sm90!("gemm_tf32x3_sm90_32x64_nn": tf32x3 NN, 32 by 64, 384 threads, 135680 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.28 0.25 0.80),
    sm90!("gemm_tf32x3_sm90_16x64_nn": tf32x3 NN, 16 by 64, 384 threads, 109056 bytes, boxes 32 by 16 and 32 by 32, persistent, cost 0.16 0.25 0.80),
    sm90!("gemm_tf32_sm90_128x256_pair_nt": tf32 NT, 128 by 256, 384 threads, 213504 bytes, boxes 32 by 128 and 32 by 128, pairs along M, cost 0.82 6.75 0.75),
    sm90!("gemm_tf32_sm90_128x256_pair_tt": tf32 TT, 128 by 256, 384 threads, 213504 bytes, boxes 32 by 32 and 32 by 128, pairs along M, cost 0.82 7.00 0.75),
    sm90!("gemm_tf32_sm90_256x128_pair_nn": tf32 NN, 256 by 128, 384 threads, 213504 bytes, boxes 32 by 128 and 32 by 32, pairs along N, cost 0.78 7.00 0.75),
    sm90!("gemm_tf32_sm90_128x128_pair_tn": tf32 TN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, pairs along M, cost 0.35 4.25 0.75),
    sm90!("gemm_tf32_sm90_128x128_nt": tf32 NT, 128 by 128, 384 threads, 229888 bytes, boxes 32 by 128 and 32 by 128, persistent, cost 0.76 4.00 0.75),
    sm90!("gemm_tf32_sm90_128x128_tt": tf32 TT, 128 by 128, 384 threads, 229888 bytes, boxes 32 by 32 and 32 by 128, persistent, cost 0.72 3.00 0.75),
    sm90!("gemm_tf32_sm90_128x128_nn": tf32 NN, 128 by 128, 384 threads, 229888 bytes, boxes 32 by 128 and 32 by 32, persistent, cost 0.64 3.25 0.75),
    sm90!("gemm_tf32_sm90_128x128_tn": tf32 TN, 128 by 128, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.36 3.50 0.75),
    sm90!("gemm_tf32_sm90_128x64_nt": tf32 NT, 128 by 64, 384 threads, 221696 bytes, boxes 32 by 128 and 32 by 64, persistent, cost 0.60 2.50 0.75),
    sm90!("gemm_tf32_sm90_128x64_tt": tf32 TT, 128 by 64, 384 threads, 221696 bytes, boxes 32 by 32 and 32 by 64, persistent, cost 0.42 1.50 0.75),
    sm90!("gemm_tf32_sm90_128x64_nn": tf32 NN, 128 by 64, 512 threads, 229888 bytes, boxes 32 by 128 and 32 by 32, persistent, cost 0.28 1.50 0.75),
    sm90!("gemm_tf32_sm90_128x64_tn": tf32 TN, 128 by 64, 512 threads, 229888 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.28 1.75 0.75),
    sm90!("gemm_tf32_sm90_64x128_nt": tf32 NT, 64 by 128, 384 threads, 221696 bytes, boxes 32 by 64 and 32 by 128, persistent, cost 0.62 2.75 0.75),
    sm90!("gemm_tf32_sm90_32x128_nt": tf32 NT, 32 by 128, 384 threads, 205312 bytes, boxes 32 by 32 and 32 by 128, persistent, cost 0.30 1.50 0.60),
    sm90!("gemm_tf32_sm90_16x128_nt": tf32 NT, 16 by 128, 384 threads, 184832 bytes, boxes 32 by 16 and 32 by 128, persistent, cost 0.16 1.25 0.60),
    sm90!("gemm_tf32_sm90_64x128_nn": tf32 NN, 64 by 128, 384 threads, 221696 bytes, boxes 32 by 64 and 32 by 32, persistent, cost 0.38 1.50 0.75),
    sm90!("gemm_tf32_sm90_32x128_nn": tf32 NN, 32 by 128, 384 threads, 205312 bytes, boxes 32 by 32 and 32 by 32, persistent, cost 0.20 1.00 0.60),
    sm90!("gemm_tf32_sm90_16x128_nn": tf32 NN, 16 by 128, 384 threads, 184832 bytes, boxes 32 by 16 and 32 by 32, persistent, cost 0.16 1.75 0.60),
    KernelSpec::mma(
        "gemm_tf32x3_mma_128x128",
        Arithmetic::Tf32x3,
        Tile::block(128, 128, 32).stages(3),
        256,
        98304,
        Cost::measured(0.42, 0.420, 1, 4.0, 0.75),
    ),
    KernelSpec::mma(
        "gemm_tf32x3_mma_64x64",
        Arithmetic::Tf32x3,
        Tile::block(64, 64, 32).stages(3),
        128,
        49152,
        Cost::measured(0.34, 0.212, 2, 4.0, 0.75),
    ),
    KernelSpec::mma(
        "gemm_tf32_mma_128x128",
        Arithmetic::Tf32,
        Tile::block(128, 128, 32).stages(3),
        128,
        98304,
        Cost::measured(0.4, 0.400, 1, 4.0, 0.75),
    ),
    KernelSpec::mma(
        "gemm_tf32_mma_64x64",
        Arithmetic::Tf32,
        Tile::block(64, 64, 32).stages(3),
        128,
        49152,
        Cost::measured(0.28, 0.175, 2, 4.0, 0.75),
    ),
    KernelSpec::ffma_strips(
        "ffma_strips_16_sm90",
        16,
        2048,
        Tile::block(16, 16, 256).thread(8, 8).stages(5),
        221_296,
        Cost::measured(0.50, 0.50, 1, 3.35, 0.88),
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_16x128_sm90",
        Tile::block(16, 128, 32).warp(16, 128).thread(8, 8).stages(8),
        213_136,
        Cost::measured(0.71, 0.71, 1, 2.8, 0.76),
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_32x64_sm90",
        Tile::block(32, 64, 32).warp(32, 64).thread(8, 8).stages(12),
        213_200,
        Cost::measured(0.700, 0.700, 1, 2.7, 0.83),
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_32x128_sm90",
        Tile::block(32, 128, 32).warp(32, 64).thread(8, 8).stages(8),
        229_520,
        Cost::measured(0.75, 0.75, 1, 3.2, 0.80),
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_64x64_sm90",
        Tile::block(64, 64, 32).warp(64, 32).thread(8, 8).stages(8),
        196_752,
        Cost::measured(0.757, 0.757, 1, 3.1, 0.83),
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_128x64_sm90",
        Tile::block(128, 64, 32).warp(64, 32).thread(8, 8).stages(6),
        213_104,
        Cost::measured(0.75, 0.75, 1, 3.0, 0.8),
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_128x128_sm90",
        Tile::block(128, 128, 32).warp(64, 32).thread(8, 8).stages(5),
        229_472,
        Cost::measured(0.76, 0.76, 1, 3.8, 0.8),
    ),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_64x64_stream_sm90",
        Tile::block(64, 64, 32).warp(64, 32).thread(8, 8).stages(8),
        196_752,
        Cost::measured(0.755, 0.755, 1, 5.2, 0.83),
    )
    .streaming_k(),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_128x64_stream_sm90",
        Tile::block(128, 64, 32).warp(64, 32).thread(8, 8).stages(6),
        213_104,
        Cost::measured(0.745, 0.745, 1, 4.9, 0.8),
    )
    .streaming_k(),
    KernelSpec::ffma_kmajor(
        "ffma_kmajor_128x128_stream_sm90",
        Tile::block(128, 128, 32).warp(64, 32).thread(8, 8).stages(5),
        229_472,
        Cost::measured(0.755, 0.755, 1, 6.1, 0.8),
    )
    .streaming_k(),
    KernelSpec::ffma_grouped(
        "ffma_grouped_128x128_nn_sm90",
        [Access::RowVector, Access::RowVector],
        Tile::block(128, 128, 16).warp(64, 64).thread(8, 16).stages(12),
        196_896,
        Cost::measured(0.820, 0.820, 1, 4.9, 0.75),
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_128x128_nt_sm90",
        [Access::RowVector, Access::ColVector],
        Tile::block(128, 128, 16).warp(64, 64).thread(8, 16).stages(12),
        196_896,
        Cost::measured(0.795, 0.795, 1, 5.7, 0.75),
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_128x128_tn_sm90",
        [Access::ColVector, Access::RowVector],
        Tile::block(128, 128, 16).warp(64, 64).thread(8, 16).stages(12),
        196_896,
        Cost::measured(0.835, 0.835, 1, 5.0, 0.75),
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_128x128_tt_sm90",
        [Access::ColVector, Access::ColVector],
        Tile::block(128, 128, 16).warp(64, 64).thread(8, 16).stages(12),
        196_896,
        Cost::measured(0.820, 0.820, 1, 5.0, 0.75),
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_64x128_nn_sm90",
        [Access::RowVector, Access::RowVector],
        Tile::block(64, 128, 16).warp(64, 64).thread(8, 16).stages(16),
        196_992,
        Cost::measured(0.820, 0.820, 1, 7.3, 0.75),
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_64x128_tn_sm90",
        [Access::ColVector, Access::RowVector],
        Tile::block(64, 128, 16).warp(64, 64).thread(8, 16).stages(16),
        196_992,
        Cost::measured(0.835, 0.835, 1, 4.5, 0.75),
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_64x128_tt_sm90",
        [Access::ColVector, Access::ColVector],
        Tile::block(64, 128, 16).warp(64, 64).thread(8, 16).stages(16),
        196_992,
        Cost::measured(0.800, 0.800, 1, 7.8, 0.75),
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_64x64_nn_sm90",
        [Access::RowVector, Access::RowVector],
        Tile::block(64, 64, 16).warp(64, 64).thread(8, 16).stages(24),
        197_184,
        Cost::measured(0.790, 0.790, 1, 4.4, 0.75),
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_64x64_tn_sm90",
        [Access::ColVector, Access::RowVector],
        Tile::block(64, 64, 16).warp(64, 64).thread(8, 16).stages(24),
        197_184,
        Cost::measured(0.830, 0.830, 1, 3.8, 0.75),
    ),
    KernelSpec::ffma_grouped(
        "ffma_grouped_64x64_tt_sm90",
        [Access::ColVector, Access::ColVector],
        Tile::block(64, 64, 16).warp(64, 64).thread(8, 16).stages(24),
        197_184,
        Cost::measured(0.760, 0.760, 1, 4.4, 0.75),
    ),
    KernelSpec::ffma_specialized(
        "ffma_specialized_128x256_sm90",
        Tile::block(128, 256, 16).warp(64, 64).thread(8, 16).stages(4),
        229_488,
        Cost::measured(0.773, 0.773, 1, 6.5, 0.75),
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x256_nn_sm90",
        [Access::RowVector, Access::RowVector],
        Tile::block(128, 256, 16).warp(64, 64).thread(8, 16).stages(4),
        229_488,
        Cost::measured(0.820, 0.820, 1, 6.5, 0.75),
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x256_nt_sm90",
        [Access::RowVector, Access::ColVector],
        Tile::block(128, 256, 16).warp(64, 64).thread(8, 16).stages(4),
        229_488,
        Cost::measured(0.770, 0.770, 1, 6.5, 0.75),
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x256_tn_sm90",
        [Access::ColVector, Access::RowVector],
        Tile::block(128, 256, 16).warp(64, 64).thread(8, 16).stages(4),
        229_488,
        Cost::measured(0.832, 0.832, 1, 6.5, 0.75),
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x256_tt_sm90",
        [Access::ColVector, Access::ColVector],
        Tile::block(128, 256, 16).warp(64, 64).thread(8, 16).stages(4),
        229_488,
        Cost::measured(0.805, 0.805, 1, 6.5, 0.75),
    ),
    KernelSpec::ffma_specialized(
        "ffma_specialized_128x128_sm90",
        Tile::block(128, 128, 16).warp(64, 32).thread(8, 8).stages(4),
        131_184,
        Cost::measured(0.755, 0.755, 1, 4.5, 0.75),
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x128_nn_sm90",
        [Access::RowVector, Access::RowVector],
        Tile::block(128, 128, 16).warp(64, 32).thread(8, 8).stages(4),
        131_184,
        Cost::measured(0.780, 0.780, 1, 4.5, 0.75),
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x128_nt_sm90",
        [Access::RowVector, Access::ColVector],
        Tile::block(128, 128, 16).warp(64, 32).thread(8, 8).stages(4),
        131_184,
        Cost::measured(0.735, 0.735, 1, 5.0, 0.75),
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x128_tn_sm90",
        [Access::ColVector, Access::RowVector],
        Tile::block(128, 128, 16).warp(64, 32).thread(8, 8).stages(4),
        131_184,
        Cost::measured(0.785, 0.785, 1, 4.5, 0.75),
    ),
    KernelSpec::ffma_copied(
        "ffma_specialized_128x128_tt_sm90",
        [Access::ColVector, Access::ColVector],
        Tile::block(128, 128, 16).warp(64, 32).thread(8, 8).stages(4),
        131_184,
        Cost::measured(0.780, 0.780, 1, 4.5, 0.75),
    ),
    KernelSpec::ffma_direct(
        "ffma_direct_128x32_nn_sm90",
        Access::RowVector,
        Tile::block(128, 32, 32).warp(64, 32).thread(8, 8).stages(3),
        61_496,
        Cost::measured(0.75, 0.260, 3, 4.0, 0.95),
    ),
    KernelSpec::ffma_direct(
        "ffma_direct_128x64_nn_sm90",
        Access::RowVector,
        Tile::block(128, 64, 32).warp(64, 32).thread(8, 8).stages(2),
        49_192,
        Cost::measured(0.73, 0.190, 4, 8.0, 0.75),
    ),
    KernelSpec::ffma_direct(
        "ffma_direct_128x64_nt_sm90",
        Access::ColVector,
        Tile::block(128, 64, 32).warp(64, 32).thread(8, 8).stages(2),
        65_560,
        Cost::measured(0.72, 0.300, 3, 3.0, 0.75),
    ),
];

/// The row with this name.
///
/// # Errors
///
/// [`Error::UnknownKernel`], which lists the names.
pub fn find(name: &str) -> Result<&'static KernelSpec> {
    TABLE
        .iter()
        .find(|spec| spec.name == name)
        .ok_or_else(|| Error::UnknownKernel {
            name: name.to_string(),
            known: TABLE.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", "),
        })
}
