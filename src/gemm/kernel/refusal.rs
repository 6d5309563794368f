//! Why a kernel cannot compute a problem.

use super::spec::{Arithmetic, EpilogueSupport, Grid, Inside, KernelSpec, Side, SplitK};
use crate::device::DeviceInfo;
use crate::gemm::operands::{Access, DType, ElementTypes, OperandLayout, Operands};
use crate::gemm::problem::{GemmProblem, Precision, MAX_SIZE};
use crate::gemm::schedule::work_queue::COUNTERS;
use std::fmt;

/// Strides of a tensor map are below so many bytes.
const MAX_TMA_STRIDE: i64 = 1 << 40;

/// Why a kernel is out. Its `Display` is a sentence with the numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// It is written for one compute capability, and the device runs code of another.
    OnlyCapability {
        /// The kernel's.
        capability: u32,
        /// The device.
        device: DeviceInfo,
    },
    /// The device runs code of a lower compute capability only.
    MinCapability {
        /// The least that will do.
        capability: u32,
        /// The device.
        device: DeviceInfo,
    },
    /// A block needs more shared memory than the device has.
    SharedMemory {
        /// Bytes that a block needs.
        needs: u32,
        /// Bytes that the device has.
        has: u32,
    },
    /// It computes with elements of another type.
    DType {
        /// The kernel's.
        kernel: DType,
        /// The problem's.
        operands: ElementTypes,
    },
    /// Its arithmetic is too coarse.
    Precision {
        /// What it multiplies with.
        arithmetic: Arithmetic,
        /// What was asked for.
        precision: Precision,
    },
    /// It has no fused epilogue.
    Epilogue,
    /// It norms no rows of A and gates no columns.
    NotFused,
    /// It is for problems with a norm of A's rows or gated columns.
    OnlyFused,
    /// It is for gated columns, and norms no rows of A.
    OnlyGates,
    /// The problem has too many rows.
    Rows {
        /// The most that it takes.
        most: u32,
        /// The problem's.
        rows: usize,
    },
    /// The problem has too many columns.
    Columns {
        /// The most that it takes.
        most: u32,
        /// The problem's.
        columns: usize,
    },
    /// The sums are too long.
    Depth {
        /// The most products that it takes.
        most: u32,
        /// The problem's.
        k: usize,
    },
    /// The batch has too many matrices.
    Batch {
        /// The most that it takes.
        most: u32,
        /// The problem's.
        matrices: usize,
    },
    /// There are gaps between the rows of A, or the columns of B.
    Gaps {
        /// The rows of A, or the columns of B.
        side: Side,
        /// Elements from one to the next.
        stride: i64,
        /// Elements of one.
        k: usize,
    },
    /// There are too many tiles to count.
    Tiles(usize),
    /// There are too many strips of so many columns to count.
    Strips(u32),
    /// It cannot read an operand.
    Operand {
        /// A or B.
        name: char,
        /// Its rows and columns.
        size: [usize; 2],
        /// Where it lies.
        layout: OperandLayout,
        /// How it may be read.
        access: Access,
        /// How the kernel reads it.
        takes: &'static [Access],
    },
    /// TMA does not walk so many batch dimensions.
    TmaBatch,
    /// TMA does not take this stride.
    TmaStride(i64),
    /// The device has no room for its clusters.
    Clusters {
        /// Blocks of a cluster.
        blocks: u32,
        /// Bytes of shared memory of each.
        shared: u32,
    },
    /// It has no measured costs: the planner does not consider it.
    OnlyByName,
    /// Sums of so few products are more exact with multiply-adds: the planner does not consider it.
    FewProducts(usize),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::OnlyCapability { capability, device } => write!(
                f,
                "it is written for compute capability {capability} and {}",
                device.runs()
            ),
            Refusal::MinCapability { capability, device } => {
                write!(f, "it needs compute capability {capability} and {}", device.runs())
            }
            Refusal::SharedMemory { needs, has } => write!(
                f,
                "it needs {needs} bytes of shared memory a block and the device has {has}"
            ),
            Refusal::DType { kernel, operands } => {
                let Operands { a, b, c, d, bias, residual } = operands;
                write!(
                    f,
                    "it multiplies {kernel} matrices and the operands are A {a}, B {b}, C {c}, D {d}, bias {bias} and residual \
                     {residual}"
                )
            }
            Refusal::Precision { arithmetic, precision } => {
                write!(
                    f,
                    "its arithmetic ({arithmetic:?}) does not serve precision {precision}"
                )
            }
            Refusal::Epilogue => f.write_str(
                "it computes α·A·B + β·C only, without bias, activation, residual or scalars in device memory",
            ),
            Refusal::NotFused => f.write_str("it takes rows of A as they are and columns one by one, without a norm and gates"),
            Refusal::OnlyFused => f.write_str("it is for products with a norm of A's rows or gated columns, and this has neither"),
            Refusal::OnlyGates => f.write_str("it is for products with gated columns, and takes rows of A as they are, without a norm"),
            Refusal::Rows { most, rows } => write!(f, "it takes at most {most} rows and the problem has {rows}"),
            Refusal::Columns { most, columns } => {
                write!(f, "it takes at most {most} columns and the problem has {columns}")
            }
            Refusal::Depth { most, k } => write!(f, "it takes sums of at most {most} products and k is {k}"),
            Refusal::Batch { most, matrices } => write!(
                f,
                "it takes at most {most} matrices at a time and the batch has {matrices}"
            ),
            Refusal::Gaps { side, stride, k } => {
                let lines = match side {
                    Side::M => "rows of A",
                    Side::N => "columns of B",
                };
                write!(
                    f,
                    "it takes {lines} that follow one another without gaps and those of {k} elements are {stride} apart"
                )
            }
            Refusal::Tiles(tiles) => write!(f, "it would have {tiles} tiles to count, and counts to {MAX_SIZE}"),
            Refusal::Strips(columns) => write!(
                f,
                "it counts the strips of {columns} columns that are done, and has counters for {COUNTERS}"
            ),
            Refusal::Operand {
                name,
                size: [rows, cols],
                layout,
                access,
                takes,
            } => write!(
                f,
                "{name} ({rows} × {cols}, strides {} and {}, aligned to {} bytes) is {access:?}, and it takes {takes:?}",
                layout.row_stride, layout.col_stride, layout.align
            ),
            Refusal::TmaBatch => f.write_str("TMA walks at most three batch dimensions"),
            Refusal::TmaStride(stride) => write!(
                f,
                "TMA takes strides from 0 to {MAX_TMA_STRIDE} bytes, not one of {stride} elements"
            ),
            Refusal::Clusters { blocks, shared } => write!(
                f,
                "it needs clusters of {blocks} blocks with {shared} bytes of shared memory each, and those multiprocessors of the \
                 device that this process may use have no room for one"
            ),
            Refusal::OnlyByName => f.write_str("only by name"),
            Refusal::FewProducts(most) => {
                write!(f, "sums of up to {most} products are more exact with multiply-adds")
            }
        }
    }
}

impl KernelSpec {
    /// Why this kernel cannot compute `problem` on `device`, or `None` if it can. `problem` is folded and valid.
    pub fn refusal(&self, problem: &GemmProblem, device: &DeviceInfo) -> Option<Refusal> {
        let (needs, device) = (&self.needs, *device);
        if let Some(capability) = needs.only_capability {
            if !device.runs_code_for_only(capability) {
                return Some(Refusal::OnlyCapability { capability, device });
            }
        }
        let capability = needs.min_capability;
        if device.code_capability < capability {
            return Some(Refusal::MinCapability { capability, device });
        }
        if self.dynamic_shared > device.shared_per_block {
            return Some(Refusal::SharedMemory {
                needs: self.dynamic_shared,
                has: device.shared_per_block,
            });
        }
        if !problem.types.served_by(self.dtype) {
            return Some(Refusal::DType {
                kernel: self.dtype,
                operands: problem.types,
            });
        }
        let (arithmetic, precision) = (self.arithmetic, problem.precision);
        if !arithmetic.serves(precision) {
            return Some(Refusal::Precision { arithmetic, precision });
        }
        if self.epilogue == EpilogueSupport::Scaled && !problem.epilogue.is_plain() {
            return Some(Refusal::Epilogue);
        }
        match (self.inside, problem.normed || problem.epilogue.gated) {
            (Inside::Product, true) => return Some(Refusal::NotFused),
            (Inside::NormAndGates, false) => return Some(Refusal::OnlyFused),
            (Inside::Gates, _) if problem.normed || !problem.epilogue.gated => return Some(Refusal::OnlyGates),
            _ => {}
        }
        if needs.max_m != 0 && problem.m > needs.max_m as usize {
            return Some(Refusal::Rows {
                most: needs.max_m,
                rows: problem.m,
            });
        }
        if needs.max_n != 0 && problem.n > needs.max_n as usize {
            return Some(Refusal::Columns {
                most: needs.max_n,
                columns: problem.n,
            });
        }
        if needs.max_k != 0 && problem.k > needs.max_k as usize {
            return Some(Refusal::Depth {
                most: needs.max_k,
                k: problem.k,
            });
        }
        if needs.max_batch != 0 && problem.batch() > needs.max_batch as usize {
            return Some(Refusal::Batch {
                most: needs.max_batch,
                matrices: problem.batch(),
            });
        }
        if let Some(side) = needs.gapless {
            let stride = match side {
                Side::M => problem.a.row_stride,
                Side::N => problem.b.col_stride,
            };
            if stride != problem.k as i64 {
                let k = problem.k;
                return Some(Refusal::Gaps { side, stride, k });
            }
        }
        if self.grid != Grid::Tiles && self.units(problem) > MAX_SIZE {
            return Some(Refusal::Tiles(self.units(problem)));
        }
        if matches!(self.split_k, SplitK::WorkQueue(_)) && self.work_queue(problem, &device).is_none() {
            return Some(Refusal::Strips(self.tile.bn));
        }
        let accesses = problem.accesses();
        let operands = [
            ('A', problem.a, accesses.a, [problem.m, problem.k], needs.a),
            ('B', problem.b, accesses.b, [problem.k, problem.n], needs.b),
        ];
        for (name, layout, access, size, takes) in operands {
            if !takes.is_empty() && !takes.contains(&access) {
                return Some(Refusal::Operand {
                    name,
                    size,
                    layout,
                    access,
                    takes,
                });
            }
        }
        if self.tma_boxes.is_some() {
            if problem.batch_dims[0] != 1 {
                return Some(Refusal::TmaBatch);
            }
            let strides = |layout: &OperandLayout| {
                let [_, batch @ ..] = layout.batch_strides;
                [layout.row_stride, layout.col_stride, batch[0], batch[1], batch[2]]
            };
            let longest = MAX_TMA_STRIDE / problem.dtype().size() as i64;
            let outside = |stride: &i64| !(0..longest).contains(stride);
            let through_tma = [Some(&problem.a), Some(&problem.b), self.d_box.map(|_| &problem.d)];
            if let Some(stride) = through_tma.into_iter().flatten().flat_map(strides).find(outside) {
                return Some(Refusal::TmaStride(stride));
            }
        }
        None
    }
}
