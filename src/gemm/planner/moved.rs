//! What repacking an operand before the product takes.

use super::prepare::Repack;
use crate::device::VECTOR_BYTES;
use crate::gemm::kernel::costs::RepackCosts;
use crate::gemm::operands::Access;

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

/// An operand that is moved before the product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    /// What its bytes take, read and written, at the datasheet's bandwidth, in µs.
    us: f64,
    how: Move,
    /// Whether there are gaps between its elements.
    gaps: bool,
    /// Accesses of a copy in place of one of [`VECTOR_BYTES`] bytes: rows that start on fewer bytes are copied by smaller pieces.
    accesses: f64,
}

impl Moved {
    /// `bytes_per_us` is the bandwidth of the device by its datasheet.
    pub fn of(repack: &Repack, bytes_per_us: f64) -> Self {
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
                let batch = (0..repack.batch_dims.len()).filter(|&dim| repack.batch_dims[dim] > 1);
                let strides = batch.map(|dim| repack.from.batch_strides[dim]).chain([pitch]);
                // Whatever overflows: the lowest bits tell what rows start on.
                let bytes = strides.map(|stride| (stride.unsigned_abs() as usize).wrapping_mul(element));
                let all = bytes.fold(
                    inner.wrapping_mul(element) | repack.from.align as usize | VECTOR_BYTES,
                    |all, bytes| all | bytes,
                );
                1 << all.trailing_zeros()
            }
            Move::Copy => element,
            Move::Transpose | Move::TransposeUnaligned => VECTOR_BYTES,
        };
        Moved {
            us: 2.0 * repack.bytes as f64 / bytes_per_us,
            how,
            gaps,
            accesses: VECTOR_BYTES as f64 / width as f64,
        }
    }

    /// What it takes, in µs, the start of its kernel included.
    pub fn us(&self, repack: &RepackCosts) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceInfo;
    use crate::gemm::kernel::costs::Costs;
    use crate::gemm::operands::{DType, ElementTypes};
    use crate::gemm::planner::plan::Plan;
    use crate::gemm::problem::GemmProblem;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

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
            let width = (1 << (columns * dtype.size()).trailing_zeros()).min(VECTOR_BYTES);
            for plan in Plan::candidates(&problem, &device, Costs::built_in(&device)) {
                match plan.repacks[1].map(|repack| Moved::of(&repack, 1.0)) {
                    Some(moved) if moved.how == Move::Copy => {
                        assert_eq!(moved.accesses, (VECTOR_BYTES / width) as f64, "{plan}");
                        copies[width.ilog2() as usize - 1] += 1;
                    }
                    Some(moved) => assert_eq!(moved.accesses, 1.0, "{plan}"),
                    None => {}
                }
            }
        }
        assert!(copies[..3].iter().all(|&count| count > 50), "{copies:?}");
    }
}
