//! Few vectors past small matrices.

use super::super::super::spec::{KernelSpec, Needs};
use super::super::derived;
use super::gemv::gemv;
use super::row::{tile, NO_THREADS, NO_WARPS};
use crate::gemm::operands::Access;

/// The most rows of such a product. Blocks take as many of them as their tile has, past the same lines.
const BRIEF_ROWS: u32 = 64;
/// The longest k of a product that takes about as long as a launch: from some thousands on, kernels with more of it under way are faster.
const BRIEF_K: u32 = 2048;
/// The same for larger blocks than these, which have four times as much under way, past lines along k.
const BRIEF_DEEP_K: u32 = 16384;
const BRIEF_THREADS: u32 = 256;
/// Past lines across k such blocks go on for so many turns of it: each step of k is in a line of memory of its own, and where the L2 does not
/// hold them a step takes more than a nanosecond (docs/few_vectors.md). Of 24 products with a longer k, recorded on an H200 with all that comes near,
/// these kernels are the fastest of one, by 4 %, and take 1.1 to 2.4 times as long as the fastest of the others.
const BRIEF_DEEP_TURNS: u32 = 3;

/// Few vectors past small matrices, whose vectors pass through shared memory, BK of k in a turn, of which a thread has STEPS elements.
/// A block has so many lines of the matrix.
const fn brief(name: &'static str, block: [u32; 3], steps: u32, lines: u32) -> KernelSpec {
    let [bm, bn, bk] = block;
    let of_line = bk / steps; // threads
    KernelSpec {
        file: "gemv/brief",
        summary: "few rows or columns past small matrices, any alignment",
        tile: tile(block, NO_WARPS, NO_THREADS, 1),
        partial_sums: of_line,
        ..gemv(name, [bm, bn], lines * of_line / derived::WARP)
    }
}

/// Whether lines that a kernel takes so lie across k: its operand is contiguous along the other dimension, which is `inner`.
const fn lies_across(access: &[Access], inner: Access) -> bool {
    matches!(
        (access, inner),
        ([Access::RowVector, ..], Access::RowVector) | ([Access::ColVector, ..], Access::ColVector)
    )
}

/// The longest k for blocks of so many lines, each of which so many threads share, and which lie across k or along it. A turn has BK of it.
const fn longest_brief_k(of_line: u32, lines: u32, across: bool, bk: u32) -> u32 {
    match (lines * of_line > BRIEF_THREADS, across) {
        (true, true) => BRIEF_DEEP_TURNS * bk,
        (true, false) => BRIEF_DEEP_K,
        (false, _) => BRIEF_K,
    }
}

/// At most `BRIEF_ROWS` rows of A, BM a block, past lines of B that lie as `b` says. Tile `[BM, BN, BK]`, then elements of a thread in a turn.
pub(in super::super) const fn brief_rows(
    name: &'static str,
    block: [u32; 3],
    steps: u32,
    b: &'static [Access],
) -> KernelSpec {
    let [_, lines, bk] = block;
    KernelSpec {
        needs: Needs {
            b,
            max_m: BRIEF_ROWS,
            max_k: longest_brief_k(bk / steps, lines, lies_across(b, Access::RowVector), bk),
            ..Needs::ANY
        },
        ..brief(name, block, steps, lines)
    }
}

/// At most BN columns of B past rows of A that lie as `a` says: with several tiles along n, blocks would each write some bytes of the same rows of D.
/// Tile `[BM, BN, BK]`, then elements of a thread in a turn.
pub(in super::super) const fn brief_cols(
    name: &'static str,
    block: [u32; 3],
    steps: u32,
    a: &'static [Access],
) -> KernelSpec {
    let [lines, bn, bk] = block;
    KernelSpec {
        needs: Needs {
            a,
            max_n: bn,
            max_k: longest_brief_k(bk / steps, lines, lies_across(a, Access::ColVector), bk),
            ..Needs::ANY
        },
        ..brief(name, block, steps, lines)
    }
}

/// At most `BRIEF_ROWS` rows of A, BM a block, past lines of B, each of which has a thread that takes BK of k in a turn. Tile
/// `[BM, BN, BK]`.
pub(in super::super) const fn brief_lines_rows(name: &'static str, block: [u32; 3]) -> KernelSpec {
    let [_, bn, bk] = block;
    brief_lines(brief_rows(name, block, bk, Needs::ANY.b), bn)
}

/// At most BN columns of B past rows of A, each of which has a thread that takes BK of k in a turn. Tile `[BM, BN, BK]`.
pub(in super::super) const fn brief_lines_cols(name: &'static str, block: [u32; 3]) -> KernelSpec {
    let [bm, _, bk] = block;
    brief_lines(brief_cols(name, block, bk, Needs::ANY.a), bm)
}

/// This kernel with a thread for each line of a block.
const fn brief_lines(of: KernelSpec, lines: u32) -> KernelSpec {
    /// Of a line that a single thread takes.
    const LONGEST_K: u32 = 128;
    KernelSpec {
        summary: "few rows or columns past matrices with a short k, any layout",
        threads: lines,
        needs: Needs {
            max_k: LONGEST_K,
            ..of.needs
        },
        ..of
    }
}

/// Both operands lie along k and start on 16 bytes, which a thread reads at a time; at most `BRIEF_ROWS` rows of A, BM a block. Tile
/// `[BM, BN, BK]`, then threads that share a line of B.
pub(in super::super) const fn brief_wide(name: &'static str, block: [u32; 3], threads: u32) -> KernelSpec {
    let [_, _, bk] = block;
    let row = brief_rows(name, block, bk / threads, &[Access::ColVector]);
    KernelSpec {
        summary: "few rows past small matrices, 16 bytes at a time",
        needs: Needs {
            a: &[Access::RowVector],
            ..row.needs
        },
        ..row
    }
}
