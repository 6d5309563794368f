//! What the kernels of a family have in common: each function makes a row of the table.

use super::super::spec::{Arithmetic, EpilogueSupport, Grid, KernelSpec, Needs, Role, SplitK, Tile, TmaBox};
use crate::gemm::operands::{Access, DType};

/// Ways of access with a unit column stride.
pub(super) const ALONG_ROWS: &[Access] = &[Access::RowVector, Access::RowScalar];
/// Ways of access with a unit row stride.
pub(super) const ALONG_COLS: &[Access] = &[Access::ColVector, Access::ColScalar];
/// Rows of the streamed matrix that a block of the `dot` kernels for few columns takes.
pub(super) const DOT_LINES: u32 = 4;
/// Columns (or rows) of the streamed matrix that a block of the `axpy` kernels takes.
pub(super) const AXPY_LINES: u32 = 32;
/// Rows of the streamed matrix that a block of the `panel` kernel takes.
pub(super) const PANEL_LINES: u32 = 32;
/// Threads of a warp.
const LANES: u32 = 32;
/// Threads of a block of the kernels that share a multiprocessor with others.
const DIRECT_THREADS: u32 = 128;
/// Warps that multiply, of the blocks of kernels in which groups of them share k.
const MATH_WARPS: u32 = 8;

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
            costs: name,
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
            tma_boxes: None,
            waits: false,
            d_box: None,
            blocks_per_multiprocessor: 1,
            needs: Needs::ANY,
            may_spill_on: &[],
        }
    }

    /// A production kernel of FP32 multiply-adds with the whole epilogue, any layout, k cut across a cluster where there
    /// are few tiles.
    pub(super) const fn ffma(name: &'static str, tile: Tile, threads: u32) -> Self {
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
    }

    /// The same with asynchronous copies.
    pub(super) const fn ffma_pipelined(name: &'static str, tile: Tile, threads: u32, shared: u32) -> Self {
        KernelSpec {
            file: "ffma/ffma_pipelined",
            summary: "FP32 multiply-adds, any layout, asynchronous copies",
            ..KernelSpec::ffma(name, tile, threads)
        }
        .dynamic_shared(shared)
    }

    /// The same for large problems on Hopper, with warps that only multiply and warps that only load.
    pub(super) const fn ffma_specialized(name: &'static str, tile: Tile, shared: u32) -> Self {
        KernelSpec {
            file: "ffma/ffma_specialized_sm90",
            summary: "FP32 multiply-adds, any layout, producer and math warps",
            grid: Grid::Persistent,
            split_k: SplitK::StreamK,
            needs: Needs {
                only_capability: Some(90),
                ..Needs::ANY
            },
            ..KernelSpec::ffma(name, tile, 384)
        }
        .dynamic_shared(shared)
    }

    /// The same for operands that start on 16 bytes, A and B accessed in these ways: the copy engine brings them.
    pub(super) const fn ffma_copied(name: &'static str, [a, b]: [Access; 2], tile: Tile, shared: u32) -> Self {
        const fn tma_box(along_k: bool, rows: u32, k: u32) -> TmaBox {
            if along_k {
                TmaBox::new(k, rows)
            } else {
                TmaBox::new(rows, k)
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
            tma_boxes: Some([
                tma_box(matches!(a, Access::RowVector), tile.bm, tile.bk),
                tma_box(matches!(b, Access::ColVector), tile.bn, tile.bk),
            ]),
            needs: Needs {
                only_capability: Some(90),
                a: only(a),
                b: only(b),
                ..Needs::ANY
            },
            ..KernelSpec::ffma_specialized(name, tile, shared)
        }
    }

    /// The same with one tile a block, which groups of math warps share along k, and k cut across a cluster where there are
    /// few tiles.
    pub(super) const fn ffma_grouped(name: &'static str, accesses: [Access; 2], tile: Tile, shared: u32) -> Self {
        KernelSpec {
            file: "ffma/ffma_grouped_sm90",
            summary: "FP32 multiply-adds, TMA, groups of math warps share k",
            grid: Grid::Units,
            split_k: SplitK::Cluster,
            chains: math_groups(&tile),
            ..KernelSpec::ffma_copied(name, accesses, tile, shared)
        }
    }

    /// The same with one tile a block, several blocks a multiprocessor, for an A that is contiguous along k: it stays as it lies.
    pub(super) const fn ffma_direct(name: &'static str, b: Access, tile: Tile, shared: u32) -> Self {
        KernelSpec {
            file: "ffma/ffma_direct_sm90",
            summary: "FP32 multiply-adds, TMA, A along k as it lies",
            threads: DIRECT_THREADS,
            grid: Grid::Units,
            split_k: SplitK::Never,
            chains: covers(&tile, DIRECT_THREADS),
            ..KernelSpec::ffma_copied(name, [Access::RowVector, b], tile, shared)
        }
    }

    /// The same for operands that are both contiguous along k, on Hopper: the copy engine brings them as they lie in memory.
    pub(super) const fn ffma_kmajor(name: &'static str, tile: Tile, shared: u32) -> Self {
        KernelSpec {
            file: "ffma/ffma_kmajor_sm90",
            summary: "FP32 multiply-adds along k, TMA",
            chains: 2 * math_groups(&tile),
            tma_boxes: Some([TmaBox::new(tile.bk, tile.bm), TmaBox::new(tile.bk, tile.bn)]),
            needs: Needs {
                only_capability: Some(90),
                a: &[Access::RowVector],
                b: &[Access::ColVector],
                ..Needs::ANY
            },
            ..KernelSpec::ffma(name, tile, 384)
        }
        .dynamic_shared(shared)
    }

    /// The same for few rows, which a block keeps in shared memory while it is dealt strips of the result.
    pub(super) const fn ffma_strips(
        name: &'static str,
        rows: u32,
        longest_slice: u32,
        tile: Tile,
        shared: u32,
    ) -> Self {
        const BOX_K: u32 = 32;
        let spec = KernelSpec::ffma_kmajor(name, tile, shared);
        KernelSpec {
            file: "ffma/ffma_strips_sm90",
            summary: "FP32 multiply-adds along k, TMA, few rows",
            grid: Grid::Persistent,
            split_k: SplitK::WorkQueue(longest_slice),
            chains: 2 * MATH_WARPS * LANES * tile.tm * tile.tn / (tile.bm * tile.bn),
            tma_boxes: Some([TmaBox::new(BOX_K, tile.bm), TmaBox::new(BOX_K, tile.bn)]),
            needs: Needs {
                max_m: rows,
                ..spec.needs
            },
            ..spec
        }
    }
    /// A kernel that streams B past at most `rows` rows of A. It reads B along k (`b` stored transposed) or along n.
    pub(super) const fn few_rows(
        name: &'static str,
        rows: u32,
        lines: u32,
        threads: u32,
        b: &'static [Access],
    ) -> Self {
        KernelSpec {
            file: "gemv/gemv",
            split_k: SplitK::Never,
            chains: LANES, // or more
            waits: true,
            summary: "streams B once past a few rows of A",
            needs: Needs {
                b,
                max_m: rows,
                ..Needs::ANY
            },
            ..KernelSpec::ffma(name, Tile::block(rows, lines, 4), threads)
        }
    }

    /// A kernel that streams A past at most `cols` columns of B. It reads A along k or (`a` stored transposed) along m.
    pub(super) const fn few_cols(
        name: &'static str,
        cols: u32,
        lines: u32,
        threads: u32,
        a: &'static [Access],
    ) -> Self {
        KernelSpec {
            file: "gemv/gemv",
            split_k: SplitK::Never,
            chains: LANES, // or more
            waits: true,
            summary: "streams A once past a few columns of B",
            needs: Needs {
                a,
                max_n: cols,
                ..Needs::ANY
            },
            ..KernelSpec::ffma(name, Tile::block(lines, cols, 4), threads)
        }
    }

    /// A kernel that multiplies with the tensor cores of any device from compute capability 8.0 on, any layout.
    pub(super) const fn mma(name: &'static str, arithmetic: Arithmetic, tile: Tile, threads: u32, shared: u32) -> Self {
        KernelSpec {
            file: "tensor_core/gemm_tf32x3_mma",
            summary: "TF32 products by mma.sync, any layout",
            arithmetic,
            split_k: SplitK::Never,
            ..KernelSpec::ffma(name, tile, threads)
        }
        .dynamic_shared(shared)
    }

    /// The same with persistent blocks that share the steps of k equally where tiles do not fill whole waves.
    pub(super) const fn streaming_k(self) -> Self {
        KernelSpec {
            grid: Grid::Persistent,
            split_k: SplitK::StreamK,
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
}
