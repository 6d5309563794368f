//! How it is done: which kernel, with which grid. A pure function of problem and device, so that it can be tested and
//! printed on any machine.

use super::args::{Divisor, OuterDim, TransposeArgs, MAX_OUTER_DIMS};
use super::kernels::{self, Instance, Tiling, TransposeKernel, NARROW_TILE_BYTES};
use super::problem::{Axis, Matrices, Movement, TransposeProblem};
use crate::device::DeviceInfo;
use crate::error::{Error, Result};
use std::fmt;

/// Everything a launch needs but the addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct TransposePlan {
    /// The problem as the kernel gets it: in elements as wide as they may be.
    pub problem: TransposeProblem,
    /// What is to be done.
    pub step: Step,
    /// Whether source and destination are more than the L2 holds, so that nobody will find them there.
    pub streaming: bool,
}

/// What a plan does.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing: there are no elements.
    Nothing,
    /// One copy of this many bytes.
    Copy {
        /// How many.
        bytes: usize,
    },
    /// One kernel, launched once for each piece: more than one piece only where a kernel's numbers are too small for the
    /// whole.
    Launch {
        /// The kernel.
        kernel: &'static TransposeKernel,
        /// For this element size.
        instance: &'static Instance,
        /// Its launches.
        pieces: Vec<Piece>,
    },
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Elements from the source's first to this piece's first.
    pub src: i64,
    /// The same in the destination.
    pub dst: i64,
    /// What is moved.
    pub matrices: Matrices,
    /// Blocks in x.
    pub blocks: u32,
    tiles_inner: u32,
    tiles_matrix: u32,
}

impl TransposePlan {
    /// The kernel that is fastest for `problem` on `device`, by the order of preference measured on an H100.
    ///
    /// # Errors
    ///
    /// [`Error::Problem`] if the problem is too large for any kernel.
    pub fn new(problem: &TransposeProblem, device: &DeviceInfo) -> Result<Self> {
        let problem = problem.widened();
        let movement = problem.movement();
        let (size, align) = (problem.element_size, problem.align);
        let matrices = match &movement {
            Movement::Nothing | Movement::Copy { .. } => return Ok(Self::plain(problem, &movement)),
            Movement::Rows(matrices) | Movement::Matrix(matrices) => matrices,
        };
        let best = kernels::TABLE
            .iter()
            .filter(|kernel| kernel.refusal(&movement, size, align, device).is_none())
            .filter_map(|kernel| Some((kernel.order(matrices, size, align, device)?, kernel)))
            .min_by_key(|(order, _)| *order);
        match best {
            Some((_, kernel)) => Self::with(kernel, matrices, problem.clone(), device),
            None => Err(Error::Problem(format!("no kernel takes {problem}"))),
        }
    }

    /// The kernel of this name, whether or not it is a good choice. Elements are not widened for a step of the ladder,
    /// which is there to be measured as it is.
    ///
    /// # Errors
    ///
    /// As [`TransposePlan::new`], and [`Error::UnknownKernel`], and [`Error::Refused`] with the reason if this kernel
    /// cannot take the problem.
    pub fn named(name: &str, problem: &TransposeProblem, device: &DeviceInfo) -> Result<Self> {
        let kernel = kernels::find(name)?;
        let refusal = |problem: &TransposeProblem| {
            kernel.refusal(&problem.movement(), problem.element_size, problem.align, device)
        };
        let wide = problem.widened();
        let widest = matches!(kernel.tiling, Tiling::Runs { .. }) || refusal(problem).is_some();
        let problem = if widest && refusal(&wide).is_none() {
            wide
        } else {
            problem.clone()
        };
        if let Some(reason) = refusal(&problem) {
            return Err(Error::Refused {
                kernel: kernel.name,
                reason,
            });
        }
        match problem.movement() {
            Movement::Rows(matrices) | Movement::Matrix(matrices) => Self::with(kernel, &matrices, problem, device),
            movement => Ok(Self::plain(problem, &movement)),
        }
    }

    fn plain(problem: TransposeProblem, movement: &Movement) -> Self {
        let step = match movement {
            Movement::Copy { elements } => Step::Copy {
                bytes: elements * problem.element_size,
            },
            _ => Step::Nothing,
        };
        TransposePlan {
            problem,
            step,
            streaming: false,
        }
    }

    fn with(
        kernel: &'static TransposeKernel,
        matrices: &Matrices,
        problem: TransposeProblem,
        device: &DeviceInfo,
    ) -> Result<Self> {
        let Some(instance) = kernel.instance(problem.element_size) else {
            return Err(Error::Refused {
                kernel: kernel.name,
                reason: format!("it is not compiled for elements of {} bytes", problem.element_size),
            });
        };
        let mut pieces = Vec::new();
        if !cut(kernel, instance, matrices.clone(), 0, 0, &mut pieces) {
            return Err(Error::Problem(format!(
                "{problem} is too large for kernel '{}'",
                kernel.name
            )));
        }
        Ok(TransposePlan {
            streaming: kernels::streams(problem.bytes(), device),
            problem,
            step: Step::Launch {
                kernel,
                instance,
                pieces,
            },
        })
    }

    /// The kernel's name, or what is done without one.
    pub fn name(&self) -> &'static str {
        match &self.step {
            Step::Nothing => "nothing",
            Step::Copy { .. } => "copy",
            Step::Launch { kernel, .. } => kernel.name,
        }
    }
}

impl Piece {
    /// The kernel's argument, with the addresses of the whole problem's first elements.
    pub fn args(&self, plan: &TransposePlan, kernel: &TransposeKernel, src: u64, dst: u64) -> TransposeArgs {
        let element_size = plan.problem.element_size;
        let m = &self.matrices;
        let mut outer = [OuterDim::ONE; MAX_OUTER_DIMS];
        for (dim, axis) in outer.iter_mut().zip(m.outer.iter().rev()) {
            *dim = OuterDim {
                src_stride: axis.src,
                dst_stride: axis.dst,
                extent: Divisor::new(axis.extent as u32),
                reserved: 0,
            };
        }
        let address = |base: u64, offset: i64| base.wrapping_add_signed(offset * element_size as i64);
        TransposeArgs {
            src: address(src, self.src),
            dst: address(dst, self.dst),
            src_row_stride: m.src_row,
            dst_col_stride: m.dst_col,
            src_col_stride: m.src_col,
            dst_row_stride: m.dst_row,
            rows: m.rows as i64,
            cols: m.cols as i64,
            tiles_inner: Divisor::new(self.tiles_inner),
            tiles_matrix: Divisor::new(self.tiles_matrix),
            walk_rows: kernel.walk_rows as u16,
            streaming: plan.streaming as u16,
            outer_dims: m.outer.len() as u16,
            lets_next: 0,
            outer_count: m.count() as u32,
            gaps: u32::from(m.leaves_gaps()),
            outer,
        }
    }
}

/// Elements along the long side of a tile whose short side is `short`. `narrow_tile_length` in `cuda/transpose/narrow.cuh`
/// computes the same.
fn narrow_tile_length(short: usize, element_size: usize) -> usize {
    const MULTIPLE: usize = 16;
    NARROW_TILE_BYTES / element_size / (short | 1) / MULTIPLE * MULTIPLE
}

/// Cuts `matrices` into launches whose numbers all stay below [`Divisor::LIMIT`]. False if that cannot be done.
fn cut(
    kernel: &TransposeKernel,
    instance: &Instance,
    matrices: Matrices,
    src: i64,
    dst: i64,
    pieces: &mut Vec<Piece>,
) -> bool {
    const LIMIT: u128 = Divisor::LIMIT as u128;
    let count: u128 = matrices.outer.iter().map(|axis| axis.extent as u128).product();
    let (rows, cols) = (matrices.rows, matrices.cols);
    let tiles = |tile_rows: usize, tile_cols: usize, more_rows: usize| {
        let (down, across) = ((rows + more_rows).div_ceil(tile_rows), cols.div_ceil(tile_cols));
        let inner = if kernel.walk_rows { down } else { across };
        (inner, down as u128 * across as u128)
    };
    let (inner, matrix) = match kernel.tiling {
        Tiling::Tiles => tiles(instance.tile_rows, instance.tile_cols, 0),
        Tiling::Shifted => tiles(instance.tile_rows, instance.tile_cols, 16 / instance.element_size - 1),
        Tiling::FewRows => tiles(rows, narrow_tile_length(rows, instance.element_size), 0),
        Tiling::FewCols => tiles(narrow_tile_length(cols, instance.element_size), cols, 0),
        // Here these two are the row's length and the rows of a matrix.
        Tiling::Runs { .. } => (cols, rows as u128),
    };
    let (work, blocks) = match kernel.tiling {
        Tiling::Runs { elements } => {
            let all = rows as u128 * cols as u128 * count;
            (all, all.div_ceil(elements as u128))
        }
        _ => (matrix * count, matrix * count),
    };
    if matrices.outer.len() <= MAX_OUTER_DIMS && work < LIMIT && (inner as u128) < LIMIT && count < LIMIT {
        pieces.push(Piece {
            src,
            dst,
            matrices,
            blocks: blocks as u32,
            tiles_inner: inner as u32,
            tiles_matrix: matrix as u32,
        });
        return true;
    }
    // Too much for one launch: the outermost dimension is cut in two, or, if only too many, walked here.
    let halves = |axis: Axis| {
        let first = axis.extent / 2;
        [
            (Axis { extent: first, ..axis }, 0),
            (
                Axis {
                    extent: axis.extent - first,
                    ..axis
                },
                first as i64,
            ),
        ]
    };
    if let Some((&outermost, rest)) = matrices.outer.split_first() {
        return halves(outermost).into_iter().all(|(axis, start)| {
            let mut outer = rest.to_vec();
            match axis.extent {
                0 => return true,
                1 => {}
                _ => outer.insert(0, axis),
            }
            let part = Matrices {
                outer,
                ..matrices.clone()
            };
            cut(
                kernel,
                instance,
                part,
                src + start * axis.src,
                dst + start * axis.dst,
                pieces,
            )
        });
    }
    if !matches!(kernel.tiling, Tiling::Runs { .. }) {
        return false;
    }
    let by_rows = rows > 1;
    let axis = Axis {
        extent: if by_rows { rows } else { cols },
        src: if by_rows { matrices.src_row } else { matrices.src_col },
        dst: if by_rows { matrices.dst_row } else { matrices.dst_col },
    };
    halves(axis).into_iter().all(|(axis, start)| {
        let mut part = matrices.clone();
        *(if by_rows { &mut part.rows } else { &mut part.cols }) = axis.extent;
        cut(
            kernel,
            instance,
            part,
            src + start * axis.src,
            dst + start * axis.dst,
            pieces,
        )
    })
}

impl fmt::Display for TransposePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.step {
            Step::Nothing => write!(f, "nothing to move"),
            Step::Copy { bytes } => write!(f, "one copy of {bytes} bytes"),
            Step::Launch {
                kernel,
                instance,
                pieces,
            } => {
                write!(f, "{} ({} threads", kernel.name, instance.threads)?;
                match pieces.as_slice() {
                    [piece] => write!(f, ", {} blocks", piece.blocks)?,
                    _ => write!(f, ", {} launches", pieces.len())?,
                }
                write!(f, ") for {}", self.problem)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernels::MAX_TMA_SIDE;
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn plan(dims: &[usize], axes: &[usize], size: usize, device: &DeviceInfo) -> TransposePlan {
        let mut strides = vec![1; dims.len()];
        for i in (1..dims.len()).rev() {
            strides[i - 1] = strides[i] * dims[i];
        }
        let problem = TransposeProblem::permutation(dims, &strides, axes, size)
            .unwrap()
            .aligned_to(256);
        TransposePlan::new(&problem, device).unwrap()
    }

    /// Machine code for compute capability 9.0 alone does not run on newer devices, which may run PTX of 9.0.
    #[test]
    fn newer_devices_that_run_code_of_hopper_take_none_that_is_hoppers_alone() {
        let (mut rng, mut on_hopper) = (StdRng::seed_from_u64(16), 0);
        for _ in 0..2000 {
            let device = DeviceInfo {
                compute_capability: [100, 103, 120, 121][rng.random_range(0..4)],
                ..DeviceInfo::H200
            };
            let [rows, cols] = [(); 2].map(|()| match rng.random::<bool>() {
                true => rng.random_range(1..=6000usize),
                false => 16 * rng.random_range(1..=600usize),
            });
            let size = 1 << rng.random_range(0..=3);
            let is_hoppers_alone = |device: &DeviceInfo| match plan(&[rows, cols], &[1, 0], size, device).step {
                Step::Launch { kernel, .. } => kernel.needs.only_capability.is_some(),
                Step::Nothing | Step::Copy { .. } => false,
            };
            assert!(!is_hoppers_alone(&device), "{rows} × {cols} of {size} bytes");
            on_hopper += usize::from(is_hoppers_alone(&DeviceInfo::H200));
        }
        assert!(on_hopper > 100, "{on_hopper}");
    }

    #[test]
    fn gaps_in_the_destination_are_seen_in_every_dimension() {
        let gaps = |dst: [i64; 3]| {
            let extents = [3, 4, 5];
            let src = [1000, 100, 1];
            let axes = (0..3).map(|i| Axis {
                extent: extents[i],
                src: src[i],
                dst: dst[i],
            });
            let plan = TransposePlan::named(
                "copy_03_rows",
                &TransposeProblem::strided(axes.collect(), 4),
                &DeviceInfo::H100,
            );
            let plan = plan.unwrap();
            let Step::Launch { kernel, pieces, .. } = &plan.step else {
                panic!("{plan} launches nothing");
            };
            pieces[0].args(&plan, kernel, 0, 0).gaps
        };
        assert_eq!(gaps([20, 5, 1]), 0);
        assert_eq!(gaps([32, 8, 1]), 1, "after each row");
        assert_eq!(gaps([24, 5, 1]), 1, "after each matrix");
    }

    #[test]
    fn the_default_follows_shape_alignment_and_device() {
        let name = |dims: &[usize], axes: &[usize], size| plan(dims, axes, size, &DeviceInfo::H100).name();
        assert_eq!(name(&[4096, 4096], &[1, 0], 4), "transpose_06_tma");
        assert_eq!(name(&[64, 512, 768], &[0, 2, 1], 2), "transpose_06_tma");
        assert_eq!(name(&[4095, 4097], &[1, 0], 4), "transpose_07_unaligned");
        assert_eq!(name(&[3, 10_000_000], &[1, 0], 4), "transpose_08_few_rows");
        assert_eq!(name(&[10_000_000, 3], &[1, 0], 4), "transpose_09_few_cols");
        assert_eq!(name(&[32, 128, 12, 64], &[0, 2, 1, 3], 4), "copy_03_rows_two");
        assert_eq!(name(&[64, 512, 12, 64], &[0, 2, 1, 3], 4), "copy_03_rows"); // more than the L2 holds
        assert_eq!(name(&[2048, 2048], &[1, 0], 4), "transpose_10_registers");
        assert_eq!(name(&[1024, 1024], &[1, 0], 8), "transpose_10_registers");
        assert_eq!(name(&[512, 512], &[1, 0], 8), "transpose_10_registers");
        assert_eq!(name(&[1024, 1024], &[1, 0], 1), "transpose_10_registers");
        assert_eq!(name(&[4096, 4096], &[1, 0], 1), "transpose_06_tma"); // not more than the L2 holds, but long rows
        assert_eq!(name(&[4096, 4096], &[1, 0], 8), "transpose_06_tma");
        assert_eq!(name(&[31, 101], &[1, 0], 4), "transpose_03_padded");
        assert_eq!(name(&[16, 64, 16, 64, 4], &[1, 0, 3, 2, 4], 4), "transpose_03_padded"); // 16-byte elements
        assert_eq!(name(&[77, 1], &[1, 0], 4), "copy");
        assert_eq!(name(&[0, 7], &[1, 0], 4), "nothing");
        let other = |dims: &[usize], axes: &[usize]| plan(dims, axes, 4, &DeviceInfo::RTX_4090).name();
        // An RTX 4090 has no TMA for tiles, and more L2.
        assert_eq!(other(&[8192, 8192], &[1, 0]), "transpose_05_swizzled");
        assert_eq!(other(&[2560, 2880], &[1, 0]), "transpose_10_registers");
        assert_eq!(name(&[2560, 2880], &[1, 0], 4), "transpose_06_tma");
    }

    #[test]
    fn a_kernel_by_name_is_used_or_refused_with_the_reason() {
        let problem = TransposeProblem::matrix(33, 35, 4).unwrap().aligned_to(256);
        let named = |name| TransposePlan::named(name, &problem, &DeviceInfo::H100);
        assert_eq!(named("transpose_02_shared").unwrap().name(), "transpose_02_shared");
        assert!(named("transpose_06_tma")
            .unwrap_err()
            .to_string()
            .contains("16-byte aligned"));
        assert!(named("transpose_08_few_rows")
            .unwrap_err()
            .to_string()
            .contains("here it is 33"));
        assert!(named("copy_01_plain")
            .unwrap_err()
            .to_string()
            .contains("fastest dimension"));
        assert!(named("transpose")
            .unwrap_err()
            .to_string()
            .contains("transpose_04_diagonal"));
        let on_ada = TransposePlan::named(
            "transpose_06_tma",
            &TransposeProblem::matrix(64, 64, 4).unwrap().aligned_to(16),
            &DeviceInfo::RTX_4090,
        );
        assert!(on_ada.unwrap_err().to_string().contains("compute capability 90"));
    }

    #[test]
    fn tiles_cover_the_matrix() {
        let blocks = |dims: &[usize], axes: &[usize], size| match plan(dims, axes, size, &DeviceInfo::H100).step {
            Step::Launch { pieces, .. } => pieces.iter().map(|piece| piece.blocks).collect::<Vec<_>>(),
            step => panic!("{step:?}"),
        };
        assert_eq!(blocks(&[4096, 4096], &[1, 0], 4), [64 * 64]);
        assert_eq!(blocks(&[64, 512, 768], &[0, 2, 1], 4), [64 * 8 * 12]);
        assert_eq!(blocks(&[4095, 4097], &[1, 0], 4), [65 * 65]); // 4095 rows and up to 3 before them
        assert_eq!(blocks(&[3, 10_000_000], &[1, 0], 4), [10_000_000u32.div_ceil(1360)]);
        assert_eq!(blocks(&[32, 128, 12, 64], &[0, 2, 1, 3], 4), [32 * 128 * 12 * 16 / 512]);
    }

    #[test]
    fn sides_that_tma_cannot_count_go_to_other_kernels() {
        let mut rng = StdRng::seed_from_u64(8);
        for _ in 0..2000 {
            let size = 1 << rng.random_range(0..4usize);
            let vectors = |count: usize| count * 16 / size;
            let long = vectors(rng.random_range(MAX_TMA_SIDE / vectors(1) - 40..=MAX_TMA_SIDE / vectors(1) + 40));
            let short = vectors(rng.random_range(1..=20));
            let (rows, cols) = if rng.random() { (long, short) } else { (short, long) };
            let problem = TransposeProblem::matrix(rows, cols, size).unwrap().aligned_to(256);
            match TransposePlan::named("transpose_06_tma", &problem, &DeviceInfo::H200) {
                Ok(_) => assert!(long <= MAX_TMA_SIDE, "{rows}x{cols} of {size}"),
                Err(error) => {
                    assert!(
                        long > MAX_TMA_SIDE && error.to_string().contains("TMA counts"),
                        "{error}"
                    );
                    let plan = TransposePlan::new(&problem, &DeviceInfo::H200).unwrap();
                    assert_ne!(plan.name(), "transpose_06_tma");
                }
            }
        }
        // Of a broadcast column, only the result has so many elements.
        let axes = (&[48, (1 << 31) + 128], &[1, 0], &[0, 1]);
        let problem = TransposeProblem::permutation(axes.0, axes.1, axes.2, 1)
            .unwrap()
            .aligned_to(256);
        assert_ne!(
            TransposePlan::new(&problem, &DeviceInfo::H200).unwrap().name(),
            "transpose_06_tma"
        );
    }

    #[test]
    fn what_is_too_much_for_one_launch_is_cut() {
        // 2³³ single bytes with a stride: five launches would not cover more, fewer would overflow.
        let huge = TransposeProblem::permutation(&[1 << 33], &[2], &[0], 1).unwrap();
        let plan = TransposePlan::new(&huge, &DeviceInfo::H100).unwrap();
        let Step::Launch { pieces, .. } = plan.step else {
            panic!()
        };
        let mut next = 0;
        for piece in &pieces {
            assert_eq!((piece.src, piece.dst), (2 * next, next));
            next += piece.matrices.cols as i64;
            assert!(piece.matrices.cols < 1 << 31);
        }
        assert_eq!(next, 1 << 33);
        // Nine dimensions that do not fold: more than a launch takes.
        let dims = [2, 3, 2, 3, 2, 3, 2, 3, 5];
        let plan = super::tests::plan(&dims, &[8, 7, 6, 5, 4, 3, 2, 1, 0], 4, &DeviceInfo::H100);
        let Step::Launch { pieces, .. } = plan.step else {
            panic!()
        };
        assert!(pieces.len() > 1);
        let moved: usize = pieces
            .iter()
            .map(|p| p.matrices.rows * p.matrices.cols * p.matrices.count())
            .sum();
        assert_eq!(moved, dims.iter().product::<usize>());
    }
}
