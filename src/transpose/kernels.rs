//! The kernel table: a kernel is one `.cu` file and one row here. Planning, launching, tests, benchmarks and reports walk
//! this table and keep no list of their own.

use super::problem::{Matrices, Movement};
use crate::device::{DeviceInfo, VECTOR_BYTES};
use crate::error::{Error, Result};
use crate::role::Role;

/// Bytes of the tile of a kernel for matrices with one short side. `cuda/transpose/narrow.cuh` has the same number.
pub const NARROW_TILE_BYTES: usize = 16 << 10;

/// The longest short side. `cuda/transpose/narrow.cuh` has the same number.
pub const MAX_NARROW: usize = 32;

/// The most rows and columns of a matrix that kernels with TMA move: it counts them in signed 32 bits, and a tile may reach
/// up to 255 beyond the last one.
pub(super) const MAX_TMA_SIDE: usize = i32::MAX as usize - 255;

/// How a kernel cuts a matrix into pieces, one a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiling {
    /// Tiles of the instance's rows and columns.
    Tiles,
    /// The same, where tiles of the destination start on 16 bytes and so reach up to 15 bytes before the matrix.
    Shifted,
    /// Runs of so many elements of the whole destination.
    Runs {
        /// Elements of a run.
        elements: usize,
    },
    /// All rows, and as many columns as fill [`NARROW_TILE_BYTES`].
    FewRows,
    /// All columns, and as many rows as fill [`NARROW_TILE_BYTES`].
    FewCols,
}

/// Which movements a kernel makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// Rows that stay whole: [`Movement::Rows`] and [`Movement::Copy`].
    Rows,
    /// Matrices that are transposed: [`Movement::Matrix`].
    Matrices,
}

/// What a kernel demands. Everything else it must be right for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The only compute capability, for kernels that use one architecture's own instructions.
    pub only_capability: Option<u32>,
    /// Base addresses, rows and batch strides are multiples of 16 bytes on both sides.
    pub aligned: bool,
    /// The most batch dimensions.
    pub max_outer: usize,
    /// Unit strides: along columns in the source, and along rows (a transposition) in the destination.
    pub unit_strides: bool,
    /// Tensor maps of source and destination beside the arguments, for TMA.
    pub tensor_maps: bool,
}

/// From how much data on the planner takes a kernel: for less, another one starts sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// Any number of bytes.
    Any,
    /// So many bytes.
    Bytes(usize),
    /// Where the device's L2 cannot hold source and destination: see [`streams`].
    BeyondL2,
}

impl Threshold {
    fn reached(self, bytes: usize, device: &DeviceInfo) -> bool {
        match self {
            Threshold::Any => true,
            Threshold::Bytes(least) => bytes >= least,
            Threshold::BeyondL2 => streams(bytes, device),
        }
    }
}

/// Whether a source of `bytes` bytes and a destination of as many are more than the L2 of `device` holds, so that nobody
/// will find them there.
pub fn streams(bytes: usize, device: &DeviceInfo) -> bool {
    2 * bytes as u64 > device.l2_bytes
}

/// When the planner takes a kernel; by name every kernel can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Never: a step of the ladder that others have overtaken.
    ByNameOnly,
    /// Whenever no row with a smaller number takes the problem, measured on an H100.
    Preferred {
        /// Smaller is tried first.
        order: u32,
        /// Only from so much data on.
        from: Threshold,
        /// Only where the short side has fewer bytes, or, in unaligned matrices, is any that the kernel takes; 0: any.
        max_short_bytes: usize,
    },
}

/// A kernel compiled for one element size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Bytes of an element.
    pub element_size: usize,
    /// The symbol.
    pub entry: &'static str,
    /// Rows of a tile.
    pub tile_rows: usize,
    /// Columns of a tile.
    pub tile_cols: usize,
    /// Threads of a block.
    pub threads: u32,
    /// The planner takes it only from so much data on, for this size of element.
    pub from: Threshold,
    /// Bytes of dynamic shared memory of a block: more than its tile needs where fewer blocks on a multiprocessor are
    /// faster, because memory then changes between fewer of its rows.
    pub dynamic_shared: u32,
}

impl Instance {
    /// Bytes of dynamic shared memory for a launch that streams past the L2, or that finds its data in it. There every
    /// block that fits helps.
    pub fn shared(&self, streaming: bool) -> u32 {
        let tile = self.tile_rows * self.tile_cols * self.element_size;
        if streaming {
            self.dynamic_shared
        } else {
            self.dynamic_shared.min(tile as u32)
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransposeKernel {
    /// The name by which users choose it.
    pub name: &'static str,
    /// The source file: `cuda/FILE.cu`.
    pub file: &'static str,
    /// What this step does, in a few words.
    pub summary: &'static str,
    /// Rung or production kernel.
    pub role: Role,
    /// What it moves.
    pub moves: Moves,
    /// How it cuts a matrix.
    pub tiling: Tiling,
    /// Whether neighbouring blocks take neighbouring tiles of a column, so that rows of the destination fill up soonest.
    pub walk_rows: bool,
    /// The element sizes that it is compiled for.
    pub instances: &'static [Instance],
    /// Whether it supports PDL (programmatic dependent launch): it may be started before the kernels before it on the stream
    /// have ended, and waits for them itself.
    pub supports_pdl: bool,
    /// What it demands.
    pub needs: Needs,
    /// When the planner takes it.
    pub choice: Choice,
}

impl TransposeKernel {
    const fn instances(self, instances: &'static [Instance]) -> Self {
        TransposeKernel { instances, ..self }
    }

    const fn tiling(self, tiling: Tiling) -> Self {
        TransposeKernel { tiling, ..self }
    }

    const fn walks_rows(self) -> Self {
        TransposeKernel {
            walk_rows: true,
            ..self
        }
    }

    const fn with_pdl(self) -> Self {
        TransposeKernel {
            supports_pdl: true,
            ..self
        }
    }

    const fn needs(self, needs: Needs) -> Self {
        TransposeKernel { needs, ..self }
    }

    /// The planner takes it, at this place, from so much data on, where the short side has fewer bytes; 0: any.
    const fn preferred(self, order: u32, from: Threshold, max_short_bytes: usize) -> Self {
        TransposeKernel {
            choice: Choice::Preferred {
                order,
                from,
                max_short_bytes,
            },
            ..self
        }
    }

    /// The instance for elements of `size` bytes.
    pub fn instance(&self, size: usize) -> Option<&'static Instance> {
        self.instances.iter().find(|instance| instance.element_size == size)
    }

    /// Why this kernel cannot make `movement` of elements of `element_size` bytes, between addresses that are multiples
    /// of `align`, on `device`; or `None` if it can.
    pub fn refusal(
        &self,
        movement: &Movement,
        element_size: usize,
        align: usize,
        device: &DeviceInfo,
    ) -> Option<String> {
        let matrices = match (movement, self.moves) {
            (Movement::Rows(matrices), Moves::Rows) | (Movement::Matrix(matrices), Moves::Matrices) => matrices,
            (Movement::Nothing | Movement::Copy { .. }, _) => {
                return Some("the movement is a plain copy, which needs no kernel".into())
            }
            (_, Moves::Rows) => return Some("it copies rows, and the fastest dimension of this problem moves".into()),
            (_, Moves::Matrices) => {
                return Some(
                    "it transposes matrices, and the fastest dimension of this problem stays or has gaps".into(),
                )
            }
        };
        let Some(instance) = self.instance(element_size) else {
            return Some(format!("it is not compiled for elements of {element_size} bytes"));
        };
        if let Some(capability) = self.needs.only_capability {
            if !device.runs_code_for_only(capability) {
                return Some(format!(
                    "it is written for compute capability {capability} and {}",
                    device.runs()
                ));
            }
        }
        if instance.dynamic_shared > device.shared_per_block {
            return Some(format!(
                "it needs {} bytes of shared memory a block and the device has {}",
                instance.dynamic_shared, device.shared_per_block
            ));
        }
        if self.needs.unit_strides && (matrices.src_col != 1 || matrices.dst_row != 1) {
            return Some(format!(
                "it needs unit strides, and source columns are {} elements apart and destination rows {}",
                matrices.src_col, matrices.dst_row
            ));
        }
        if matrices.outer.len() > self.needs.max_outer {
            return Some(format!(
                "it takes at most {} batch dimensions and the problem has {}",
                self.needs.max_outer,
                matrices.outer.len()
            ));
        }
        if self.needs.aligned && !aligned(matrices, element_size, align) {
            return Some(format!(
                "it needs 16-byte aligned rows, and elements of {element_size} bytes with addresses aligned to {align} \
                 bytes have rows {} elements apart in the source and {} in the destination",
                matrices.src_row, matrices.dst_col
            ));
        }
        let longest = matrices.rows.max(matrices.cols);
        if self.needs.tensor_maps && longest > MAX_TMA_SIDE {
            return Some(format!(
                "TMA counts up to {MAX_TMA_SIDE} rows and columns and the problem has {longest}"
            ));
        }
        let short = match self.tiling {
            Tiling::FewRows => matrices.rows,
            Tiling::FewCols => matrices.cols,
            _ => return None,
        };
        (!(2..=MAX_NARROW).contains(&short))
            .then(|| format!("its short side is 2 to {MAX_NARROW} and here it is {short}"))
    }

    /// Whether the planner may take this kernel for a problem that it does not refuse, and at which place.
    pub(super) fn order(
        &self,
        matrices: &Matrices,
        element_size: usize,
        align: usize,
        device: &DeviceInfo,
    ) -> Option<u32> {
        let Choice::Preferred {
            order,
            from,
            max_short_bytes,
        } = self.choice
        else {
            return None;
        };
        let bytes = matrices.rows * matrices.cols * matrices.count() * element_size;
        let short = matrices.rows.min(matrices.cols) * element_size;
        let narrow = max_short_bytes == 0 || short < max_short_bytes || !aligned(matrices, element_size, align);
        let instance = self.instance(element_size)?;
        let enough = from.reached(bytes, device) && instance.from.reached(bytes, device);
        (enough && narrow).then_some(order)
    }
}

/// Whether every row of source and destination starts on 16 bytes.
fn aligned(matrices: &Matrices, element_size: usize, align: usize) -> bool {
    const VECTOR: i64 = VECTOR_BYTES as i64;
    let size = element_size as i64;
    let whole = |stride: i64| stride * size % VECTOR == 0;
    align as i64 % VECTOR == 0
        && whole(matrices.src_row)
        && whole(matrices.dst_col)
        && matrices.outer.iter().all(|axis| whole(axis.src) && whole(axis.dst))
}

/// What an instance leaves out of [`instances`] is no condition.
macro_rules! from {
    () => {
        Threshold::Any
    };
    ($from:expr) => {
        $from
    };
}

/// The instances of a kernel: its symbol without the size, then for each size tile and threads, dynamic shared memory, and
/// from how much data on the planner takes it. Or the sizes, where tile and threads are the same for all.
macro_rules! instances {
    ($name:literal, $($size:literal)+: $rows:literal by $cols:literal, $threads:literal) => {
        instances!($name; $($size => $rows by $cols, $threads;)+)
    };
    ($name:literal; $($size:literal => $rows:literal by $cols:literal, $threads:literal $(, shared $shared:literal)? $(, from $from:expr)?;)*) => {
        &[$(Instance {
            element_size: $size,
            entry: concat!($name, "_b", $size),
            tile_rows: $rows,
            tile_cols: $cols,
            threads: $threads,
            dynamic_shared: 0 $(+ $shared)?,
            from: from!($($from)?),
        }),*]
    };
}

/// From here on throughput counts for more than how soon a kernel starts.
const MANY_BYTES: Threshold = Threshold::Bytes(4 << 20);

const NOTHING: Needs = Needs {
    only_capability: None,
    aligned: false,
    max_outer: usize::MAX,
    unit_strides: false,
    tensor_maps: false,
};
const UNIT_STRIDES: Needs = Needs {
    unit_strides: true,
    ..NOTHING
};
const ALIGNED: Needs = Needs {
    aligned: true,
    ..UNIT_STRIDES
};
/// TMA, which walks matrices of one batch dimension.
const TMA: Needs = Needs {
    only_capability: Some(90),
    max_outer: 1,
    tensor_maps: true,
    ..ALIGNED
};

/// A kernel that copies rows, or transposes matrices, as rows have it unless they say otherwise: by tiles, of any operands, and
/// only by name.
const fn kernel(
    moves: Moves,
    rung: u32,
    name: &'static str,
    file: &'static str,
    summary: &'static str,
) -> TransposeKernel {
    TransposeKernel {
        name,
        file,
        summary,
        role: Role::Rung(rung),
        moves,
        tiling: Tiling::Tiles,
        walk_rows: false,
        instances: &[],
        supports_pdl: false,
        needs: NOTHING,
        choice: Choice::ByNameOnly,
    }
}

const fn copy(rung: u32, name: &'static str, file: &'static str, summary: &'static str) -> TransposeKernel {
    kernel(Moves::Rows, rung, name, file, summary)
}

const fn transposition(rung: u32, name: &'static str, file: &'static str, summary: &'static str) -> TransposeKernel {
    kernel(Moves::Matrices, rung, name, file, summary)
}

/// Every kernel: the copies, then the transpositions, in the order of the ladder.
#[rustfmt::skip]
pub const TABLE: &[TransposeKernel] = &[
    copy(1, "copy_01_plain", "transpose/copy_01_plain", "one element a thread and turn")
        .instances(instances!("copy_01_plain", 1 2 4 8: 32 by 32, 256)),
    copy(2, "copy_02_shared", "transpose/copy_02_shared", "the same by way of shared memory")
        .instances(instances!("copy_02_shared", 1 2 4 8: 32 by 32, 256)),
    copy(3, "copy_03_rows", "transpose/copy_03_rows", "rows in the widest elements that they allow, four loads under way")
        .tiling(Tiling::Runs { elements: 1024 }).with_pdl().preferred(1, Threshold::BeyondL2, 0)
        .instances(instances!("copy_03_rows", 1 2 4 8 16: 1 by 1024, 256)),
    copy(3, "copy_03_rows_two", "transpose/copy_03_rows", "the same with two loads under way, for what the L2 holds")
        .tiling(Tiling::Runs { elements: 512 }).with_pdl().preferred(2, Threshold::Any, 0)
        .instances(instances!("copy_03_rows_two", 1 2 4 8 16: 1 by 512, 256)),
    transposition(1, "transpose_01_naive", "transpose/transpose_01_naive", "reads along rows, writes along columns")
        .instances(instances!("transpose_01_naive", 1 2 4 8: 32 by 32, 256)),
    transposition(2, "transpose_02_shared", "transpose/transpose_02_shared", "the tile turns in shared memory")
        .instances(instances!("transpose_02_shared", 1 2 4 8: 32 by 32, 256)),
    transposition(3, "transpose_03_padded", "transpose/transpose_03_padded",
        "an element of padding a row, against bank conflicts")
        .walks_rows().preferred(7, Threshold::Any, 0)
        .instances(instances!("transpose_03_padded", 1 2 4 8 16: 32 by 32, 256)),
    transposition(4, "transpose_04_diagonal", "transpose/transpose_04_diagonal", "tiles walked along diagonals")
        .instances(instances!("transpose_04_diagonal", 1 2 4 8: 32 by 32, 256)),
    transposition(5, "transpose_05_swizzled", "transpose/transpose_05_swizzled", "16-byte accesses, XOR-swizzled tile")
        .walks_rows().needs(ALIGNED).preferred(4, Threshold::BeyondL2, 0)
        .instances(instances!("transpose_05_swizzled";
            1 => 128 by 128, 256;
            2 => 64 by 64, 256;
            4 => 64 by 64, 512;
            8 => 32 by 32, 256;
        )),
    transposition(6, "transpose_06_tma", "transpose/transpose_06_tma_sm90", "TMA moves tiles, threads turn them in registers")
        .walks_rows().with_pdl().needs(TMA).preferred(3, Threshold::Any, 0)
        .instances(instances!("transpose_06_tma";
            1 => 128 by 128, 64, shared 74752, from Threshold::Bytes(8 << 20);
            2 => 64 by 64, 64, shared 43008, from Threshold::Bytes(6 << 20);
            4 => 64 by 64, 256, shared 65536, from Threshold::BeyondL2;
            8 => 32 by 32, 256, shared 43008, from Threshold::BeyondL2;
        )),
    transposition(7, "transpose_07_unaligned", "transpose/transpose_07_unaligned", "16-byte accesses of rows that start anywhere")
        .tiling(Tiling::Shifted).walks_rows().with_pdl().needs(UNIT_STRIDES).preferred(6, MANY_BYTES, 0)
        .instances(instances!("transpose_07_unaligned";
            1 => 128 by 64, 256;
            2 => 64 by 64, 256;
            4 => 64 by 64, 512;
            8 => 32 by 32, 256, from Threshold::BeyondL2;
        )),
    transposition(8, "transpose_08_few_rows", "transpose/transpose_08_few_rows", "matrices of 2 to 32 long rows")
        .tiling(Tiling::FewRows).walks_rows().needs(UNIT_STRIDES).preferred(1, MANY_BYTES, 64)
        .instances(instances!("transpose_08_few_rows", 1 2 4 8: 0 by 0, 256)),
    transposition(9, "transpose_09_few_cols", "transpose/transpose_09_few_cols", "matrices of 2 to 32 columns")
        .tiling(Tiling::FewCols).walks_rows().needs(UNIT_STRIDES).preferred(2, MANY_BYTES, 64)
        .instances(instances!("transpose_09_few_cols", 1 2 4 8: 0 by 0, 256)),
    transposition(10, "transpose_10_registers", "transpose/transpose_10_registers",
        "micro tiles turned in registers without shared memory, for what the L2 holds")
        .walks_rows().with_pdl().needs(ALIGNED).preferred(5, Threshold::Any, 0)
        .instances(instances!("transpose_10_registers";
            1 => 128 by 128, 64;
            2 => 64 by 64, 64;
            4 => 32 by 64, 64;
            8 => 32 by 16, 64;
        )),
];

/// The row with this name.
///
/// # Errors
///
/// [`Error::UnknownKernel`], which lists the names.
pub fn find(name: &str) -> Result<&'static TransposeKernel> {
    TABLE
        .iter()
        .find(|kernel| kernel.name == name)
        .ok_or_else(|| Error::UnknownKernel {
            name: name.to_string(),
            known: TABLE.iter().map(|kernel| kernel.name).collect::<Vec<_>>().join(", "),
        })
}
