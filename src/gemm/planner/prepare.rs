//! Operands that are repacked before the product, because the kernel cannot take them in place or reads them faster
//! otherwise: transposed, so that TMA finds k adjacent, or with rows that start on 16 bytes. The crate's own
//! transpositions and copies write them into the workspace of the launch. As plain data, like the plan.

use crate::device::DeviceInfo;
use crate::gemm::kernel::spec::{KernelSpec, Side};
use crate::gemm::operands::{Access, DType, OperandLayout, MAX_BATCH_DIMS};
use crate::gemm::problem::{FoldedProblem, GemmProblem};
use crate::transpose::{Axis, TransposeProblem};

/// Rows of what is written start on sectors of memory.
pub(super) const SECTOR_BYTES: usize = 32;
/// Rows that are longer than this start on lines of the L2: TMA fetches a piece of 128 bytes from one line then, and not from two.
const LINE_BYTES: usize = 128;
/// Where an operand starts in the workspace is a multiple of this.
pub(super) const ALIGN: usize = 256;

/// One operand that is repacked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repack {
    /// Where it lies.
    pub from: OperandLayout,
    /// Where the kernel finds it, relative to its place in the workspace.
    pub to: OperandLayout,
    /// What its elements are.
    pub dtype: DType,
    /// Its rows and columns.
    pub size: [usize; 2],
    /// Matrices of the batch that it has, in each dimension of the problem that was asked for.
    pub batch_dims: [usize; MAX_BATCH_DIMS],
    /// Bytes that it takes there, gaps between rows included.
    pub bytes: usize,
    /// Its place: bytes from the workspace's start.
    pub offset: usize,
}

/// A and B, where they are repacked.
pub type Repacks = [Option<Repack>; 2];

/// Which neighbours are adjacent in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Those of a row.
    Rows,
    /// Those of a column.
    Columns,
}

/// `problem` with operands as `spec` likes them, and what has to be written for that: `None` where nothing would change, or
/// the copies would take more scratch memory than `device` has for them: such a product runs with operands in place.
pub fn offer(spec: &KernelSpec, problem: &FoldedProblem, device: &DeviceInfo) -> Option<(FoldedProblem, Repacks)> {
    let GemmProblem {
        m, n, k, mut a, mut b, ..
    } = **problem;
    let mut repacks = [None; 2];
    let accesses = problem.accesses();
    let operands = [
        (&mut a, accesses.a, problem.types.a, spec.needs.a, [m, k], Side::M),
        (&mut b, accesses.b, problem.types.b, spec.needs.b, [k, n], Side::N),
    ];
    for ((layout, access, dtype, needs, size, side), repack) in operands.into_iter().zip(&mut repacks) {
        if let Some(order) = wanted(access, needs, spec.vector_order(side)) {
            let written = match Repack::new(*layout, dtype, order, size, problem) {
                Some(written) => written,
                // A kernel that takes anything takes this operand in place.
                None if needs.is_empty() => continue,
                None => return None,
            };
            *layout = written.to;
            *repack = Some(written);
        }
    }
    let bytes = repacks
        .iter()
        .flatten()
        .fold(0usize, |bytes, repack| bytes.saturating_add(repack.bytes));
    (bytes > 0 && bytes as u64 <= device.scratch_bytes()).then(|| (problem.with_factors(a, b), repacks))
}

/// `problem` with the rows of A written one after the other, where that makes a batch that shares one B a matrix of more rows, as
/// `Tensor::narrow` leaves batches whose rows are not in step, and what has to be written for that. B is then read once, and tiles are cut off
/// at the end of all rows alone. `None` where rows are in step already, or D, C or the residual are not, or there is no scratch memory.
pub fn offer_rows(problem: &FoldedProblem, device: &DeviceInfo) -> Option<(FoldedProblem, Repacks)> {
    if problem.batch() == 1 {
        return None;
    }
    let written = Repack::new(problem.a, problem.types.a, Order::Rows, [problem.m, problem.k], problem)?;
    let folded = problem.with_factors(written.to, problem.b).refolded();
    let fits = written.bytes as u64 <= device.scratch_bytes();
    (folded.m > problem.m && fits).then_some((folded, [Some(written), None]))
}

/// The order in which an operand should be written for a kernel with these needs, if at all.
fn wanted(access: Access, needs: &[Access], vector_order: Option<Access>) -> Option<Order> {
    match (needs, access) {
        ([], access) if vector_order.is_some() => match vector_order {
            order if order == Some(access) => None,
            Some(Access::ColVector) => Some(Order::Columns),
            _ => Some(Order::Rows),
        },
        // Kernels that take anything read vectors faster than single elements.
        ([], Access::RowVector | Access::ColVector) => None,
        ([], Access::ColScalar) => Some(Order::Columns),
        ([], Access::RowScalar | Access::Strided) => Some(Order::Rows),
        (needs, access) if needs.contains(&access) => None,
        ([Access::ColVector | Access::ColScalar, ..], _) => Some(Order::Columns),
        _ => Some(Order::Rows),
    }
}

impl Repack {
    fn new(from: OperandLayout, dtype: DType, order: Order, size: [usize; 2], problem: &GemmProblem) -> Option<Self> {
        let [rows, cols] = size;
        let (inner, outer) = match order {
            Order::Rows => (cols, rows),
            Order::Columns => (rows, cols),
        };
        let strides = [from.row_stride, from.col_stride];
        let negative = strides.iter().chain(&from.batch_strides).any(|&stride| stride < 0);
        // Nothing is gained where lines have one element; and where an operand repeats itself its copy would be larger.
        if inner == 1 || negative || strides.contains(&0) {
            return None;
        }
        let element = dtype.size();
        let start = match inner.saturating_mul(element) {
            ..=LINE_BYTES => SECTOR_BYTES,
            _ => LINE_BYTES,
        };
        let line = inner.next_multiple_of(start / element);
        let mut elements = line.saturating_mul(outer);
        let mut batch_strides = [0; MAX_BATCH_DIMS];
        for dim in (0..MAX_BATCH_DIMS).rev() {
            let extent = problem.batch_dims[dim];
            if extent > 1 && from.batch_strides[dim] != 0 {
                batch_strides[dim] = i64::try_from(elements).ok()?;
                elements = elements.saturating_mul(extent);
            }
        }
        let to = match order {
            Order::Rows => OperandLayout::row_major(line),
            Order::Columns => OperandLayout::col_major(line),
        };
        Some(Repack {
            from,
            to: to.with_batch_strides(batch_strides),
            dtype,
            size,
            batch_dims: problem.batch_dims,
            bytes: elements.saturating_mul(element),
            offset: 0,
        })
    }

    /// The movement that writes the operand.
    pub fn movement(&self) -> TransposeProblem {
        let [rows, cols] = self.size;
        let batch = (0..MAX_BATCH_DIMS)
            .filter(|&dim| self.to.batch_strides[dim] != 0)
            .map(|dim| Axis {
                extent: self.batch_dims[dim],
                src: self.from.batch_strides[dim],
                dst: self.to.batch_strides[dim],
            });
        let mut axes: Vec<Axis> = batch.collect();
        let row = Axis {
            extent: rows,
            src: self.from.row_stride,
            dst: self.to.row_stride,
        };
        let col = Axis {
            extent: cols,
            src: self.from.col_stride,
            dst: self.to.col_stride,
        };
        axes.extend(if self.to.col_stride == 1 {
            [row, col]
        } else {
            [col, row]
        });
        TransposeProblem::strided(axes, self.dtype.size()).aligned_to(self.from.align as usize)
    }

    /// Whether rows become columns in memory.
    pub fn transposes(&self) -> bool {
        match self.to.col_stride {
            1 => self.from.col_stride != 1,
            _ => self.from.row_stride != 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::kernel::table;
    use crate::transpose::Movement;

    fn spec(name: &str) -> &'static KernelSpec {
        table::find(name).unwrap()
    }

    fn offered(kernel: &str, problem: &GemmProblem) -> Option<(FoldedProblem, Repacks)> {
        offer(spec(kernel), &problem.folded().unwrap(), &DeviceInfo::H200)
    }

    #[test]
    fn an_operand_is_transposed_where_a_kernel_wants_the_other_order() {
        let problem = GemmProblem::new(
            2048,
            1024,
            512,
            OperandLayout::col_major(2048),
            OperandLayout::row_major(1024),
        );
        let (changed, [a, b]) = offered("gemm_tf32x3_sm90_128x128_nt", &problem).unwrap();
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_eq!(changed.layout_name(), "NT");
        assert_eq!((a.to.row_stride, a.bytes), (512, 2048 * 512 * 4));
        assert_eq!((b.to.col_stride, b.bytes), (512, 1024 * 512 * 4));
        assert!(a.transposes() && b.transposes());
        let Movement::Matrix(m) = a.movement().movement() else {
            panic!("a transposition")
        };
        assert_eq!((m.rows, m.cols, m.src_row, m.dst_col), (512, 2048, 2048, 512));
        let (changed, [a, b]) = offered("gemm_tf32x3_sm90_128x128_tt", &problem).unwrap();
        assert_eq!((changed.layout_name().as_str(), a), ("TT", None));
        assert!(b.is_some());
        assert!(offered("gemm_tf32x3_sm90_128x128_tn", &problem).is_none());
    }

    #[test]
    fn rows_that_start_anywhere_are_padded_and_batches_kept() {
        let mut problem = GemmProblem::row_major(65, 33, 127);
        problem.batch_dims = [1, 1, 3, 2];
        problem.a.batch_strides = [0, 0, 65 * 127, 0];
        problem.b.batch_strides = [0, 0, 2 * 127 * 33, 127 * 33];
        problem.d.batch_strides = [0, 0, 2 * 65 * 33, 65 * 33];
        let (changed, [a, b]) = offered("ffma_64x64", &problem).unwrap();
        let (a, b) = (a.unwrap(), b.unwrap());
        assert!(!a.transposes() && !b.transposes());
        assert_eq!(a.to.batch_strides, [0, 0, 65 * 128, 0]);
        assert_eq!(b.to.batch_strides, [0, 0, 2 * 127 * 64, 127 * 64]);
        assert_eq!((a.bytes, b.bytes), (3 * 65 * 128 * 4, 6 * 127 * 64 * 4));
        assert_eq!(changed.a.access(65, 127, DType::F32), Access::RowVector);
        assert_eq!(changed.b.access(127, 33, DType::F32), Access::RowVector);
        let movement = b.movement();
        assert!(matches!(movement.movement(), Movement::Rows(m) if (m.rows, m.cols, m.dst_row) == (762, 33, 64)));
    }

    #[test]
    fn repacked_rows_start_on_sectors_and_long_ones_on_lines() {
        use rand::rngs::StdRng;
        use rand::{Rng, SeedableRng};
        let mut rng = StdRng::seed_from_u64(29);
        for _ in 0..2000 {
            let dtype = [DType::F32, DType::F16, DType::BF16][rng.random_range(0..3usize)];
            let [rows, cols] = [(); 2].map(|()| rng.random_range(1..=300usize));
            let order = [Order::Rows, Order::Columns][rng.random_range(0..2usize)];
            let (inner, outer) = match order {
                Order::Rows => (cols, rows),
                Order::Columns => (rows, cols),
            };
            let from = OperandLayout::row_major(cols + rng.random_range(0..4usize));
            let problem = GemmProblem::row_major(rows, 8, cols);
            let Some(repack) = Repack::new(from, dtype, order, [rows, cols], &problem) else {
                assert_eq!(inner, 1, "{rows} {cols}");
                continue;
            };
            let size = dtype.size();
            let pitch = repack.bytes / outer;
            let start = if inner * size > LINE_BYTES {
                LINE_BYTES
            } else {
                SECTOR_BYTES
            };
            assert_eq!(repack.bytes, pitch * outer);
            assert!(
                pitch.is_multiple_of(start) && (inner * size..inner * size + start).contains(&pitch),
                "{rows} {cols} {pitch}"
            );
        }
    }

    #[test]
    fn a_batch_with_one_b_becomes_rows_once_those_of_a_are_in_step() {
        // Two of five rows of each of eight sequences, past weights that are shared.
        let mut problem = GemmProblem::row_major(2, 24, 100);
        problem.batch_dims = [1, 1, 3, 8];
        problem.a.batch_strides = [0, 0, 8 * 500, 500];
        problem.d.batch_strides = [0, 0, 8 * 48, 48];
        let folded = problem.folded().unwrap();
        assert_eq!((folded.m, folded.batch()), (2, 24));
        let (rows, [a, b]) = offer_rows(&folded, &DeviceInfo::H200).unwrap();
        let a = a.unwrap();
        assert_eq!((rows.m, rows.batch(), rows.a.row_stride, b), (48, 1, 128, None));
        assert_eq!((a.bytes, a.batch_dims), (48 * 128 * 4, folded.batch_dims));
        assert_eq!(
            (a.from.batch_strides, a.to.batch_strides),
            ([0, 0, 0, 500], [0, 0, 0, 256])
        );
        // Weights of each sequence, results that are not in step, and rows that are already.
        let mut own = problem;
        own.b.batch_strides = [0, 0, 8 * 2400, 2400];
        let mut apart = problem;
        apart.d.batch_strides = [0, 0, 8 * 480, 480];
        let mut in_step = problem;
        in_step.a.batch_strides = [0, 0, 8 * 200, 200];
        for other in [own, apart, in_step] {
            assert!(offer_rows(&other.folded().unwrap(), &DeviceInfo::H200).is_none());
        }
    }

    #[test]
    fn what_would_not_help_is_not_offered() {
        let fine = GemmProblem::row_major(64, 64, 64);
        assert!(offered("ffma_64x64", &fine).is_none());
        let mut broadcast = fine;
        broadcast.a = OperandLayout::strided(0, 1).with_align(4);
        assert!(offered("ffma_64x64", &broadcast).is_none());
        let huge = GemmProblem::new(
            1 << 16,
            1 << 16,
            1 << 16,
            OperandLayout::col_major(1 << 16),
            OperandLayout::row_major(1 << 16),
        );
        assert!(offered("gemm_tf32x3_sm90_128x128_2cta_nt", &huge).is_none());
    }

    #[test]
    fn what_a_device_has_no_room_for_is_not_offered() {
        let vocabulary = GemmProblem::row_major(980, 250_002, 1536).folded().unwrap();
        let kernel = spec("gemm_tf32x3_sm90_128x128_nt");
        for device in [DeviceInfo::H200, DeviceInfo::H100, DeviceInfo::RTX_4090] {
            let offered = offer(kernel, &vocabulary, &device);
            assert_eq!(offered.is_some(), device.scratch_bytes() > 1_600_000_000, "{device:?}");
            let bytes: usize = offered
                .iter()
                .flat_map(|(_, repacks)| repacks.iter().flatten())
                .map(|r| r.bytes)
                .sum();
            assert!(bytes as u64 <= device.scratch_bytes(), "{bytes}");
        }
    }
}
