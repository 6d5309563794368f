//! The kernel table: a kernel is one `.cu` file and one row here. Planning, launching, tests, benchmarks and reports walk
//! this table and keep no list of their own.

use super::problem::{Matrices, Movement};
use crate::device::DeviceInfo;
use crate::error::{Error, Result};
use crate::gemm::kernel::spec::Role;

/// Bytes of the tile of a kernel for matrices with one short side. `cuda/transpose/narrow.cuh` has the same number.
pub const NARROW_TILE_BYTES: usize = 16 << 10;

/// The longest short side. `cuda/transpose/narrow.cuh` has the same number.
pub const MAX_NARROW: usize = 32;

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
    /// Tensor maps of source and destination beside the arguments, for the copy engine.
    pub tensor_maps: bool,
}

impl Needs {
    const NOTHING: Needs = Needs {
        only_capability: None,
        aligned: false,
        max_outer: usize::MAX,
        unit_strides: false,
        tensor_maps: false,
    };
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
    /// Whether it may be started before the kernels before it on the stream have ended: it waits for them itself.
    pub supports_pdl: bool,
    /// What it demands.
    pub needs: Needs,
    /// When the planner takes it.
    pub choice: Choice,
}

impl TransposeKernel {
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
            if device.code_capability != capability {
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
    const VECTOR: i64 = 16;
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
/// from how much data on the planner takes it.
macro_rules! instances {
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

/// Every kernel: the copies, then the transpositions, in the order of the ladder.
pub const TABLE: &[TransposeKernel] = &[
    TransposeKernel {
        name: "copy_01_plain",
        file: "transpose/copy_01_plain",
        summary: "one element a thread and turn",
        role: Role::Rung(1),
        moves: Moves::Rows,
        tiling: Tiling::Tiles,
        walk_rows: false,
        instances: instances!("copy_01_plain"; 1 => 32 by 32, 256; 2 => 32 by 32, 256; 4 => 32 by 32, 256; 8 => 32 by 32, 256;),
        supports_pdl: false,
        needs: Needs::NOTHING,
        choice: Choice::ByNameOnly,
    },
    TransposeKernel {
        name: "copy_02_shared",
        file: "transpose/copy_02_shared",
        summary: "the same by way of shared memory",
        role: Role::Rung(2),
        moves: Moves::Rows,
        tiling: Tiling::Tiles,
        walk_rows: false,
        instances: instances!("copy_02_shared"; 1 => 32 by 32, 256; 2 => 32 by 32, 256; 4 => 32 by 32, 256; 8 => 32 by 32, 256;),
        supports_pdl: false,
        needs: Needs::NOTHING,
        choice: Choice::ByNameOnly,
    },
    TransposeKernel {
        name: "copy_03_rows",
        file: "transpose/copy_03_rows",
        summary: "rows in the widest elements that they allow, four loads under way",
        role: Role::Rung(3),
        moves: Moves::Rows,
        tiling: Tiling::Runs { elements: 1024 },
        walk_rows: false,
        instances: instances!("copy_03_rows"; 1 => 1 by 1024, 256; 2 => 1 by 1024, 256; 4 => 1 by 1024, 256; 8 => 1 by 1024, 256; 16 => 1 by 1024, 256;),
        supports_pdl: true,
        needs: Needs::NOTHING,
        choice: Choice::Preferred {
            order: 1,
            from: Threshold::BeyondL2,
            max_short_bytes: 0,
        },
    },
    TransposeKernel {
        name: "copy_03_rows_two",
        file: "transpose/copy_03_rows",
        summary: "the same with two loads under way, for what the L2 holds",
        role: Role::Rung(3),
        moves: Moves::Rows,
        tiling: Tiling::Runs { elements: 512 },
        walk_rows: false,
        instances: instances!("copy_03_rows_two"; 1 => 1 by 512, 256; 2 => 1 by 512, 256; 4 => 1 by 512, 256; 8 => 1 by 512, 256; 16 => 1 by 512, 256;),
        supports_pdl: true,
        needs: Needs::NOTHING,
        choice: Choice::Preferred {
            order: 2,
            from: Threshold::Any,
            max_short_bytes: 0,
        },
    },
    TransposeKernel {
        name: "transpose_01_naive",
        file: "transpose/transpose_01_naive",
        summary: "reads along rows, writes along columns",
        role: Role::Rung(1),
        moves: Moves::Matrices,
        tiling: Tiling::Tiles,
        walk_rows: false,
        instances: instances!("transpose_01_naive"; 1 => 32 by 32, 256; 2 => 32 by 32, 256; 4 => 32 by 32, 256; 8 => 32 by 32, 256;),
        supports_pdl: false,
        needs: Needs::NOTHING,
        choice: Choice::ByNameOnly,
    },
    TransposeKernel {
        name: "transpose_02_shared",
        file: "transpose/transpose_02_shared",
        summary: "the tile turns in shared memory",
        role: Role::Rung(2),
        moves: Moves::Matrices,
        tiling: Tiling::Tiles,
        walk_rows: false,
        instances: instances!("transpose_02_shared"; 1 => 32 by 32, 256; 2 => 32 by 32, 256; 4 => 32 by 32, 256; 8 => 32 by 32, 256;),
        supports_pdl: false,
        needs: Needs::NOTHING,
        choice: Choice::ByNameOnly,
    },
    TransposeKernel {
        name: "transpose_03_padded",
        file: "transpose/transpose_03_padded",
        summary: "an element of padding a row, against bank conflicts",
        role: Role::Rung(3),
        moves: Moves::Matrices,
        tiling: Tiling::Tiles,
        walk_rows: true,
        instances: instances!("transpose_03_padded"; 1 => 32 by 32, 256; 2 => 32 by 32, 256; 4 => 32 by 32, 256; 8 => 32 by 32, 256; 16 => 32 by 32, 256;),
        supports_pdl: false,
        needs: Needs::NOTHING,
        choice: Choice::Preferred {
            order: 7,
            from: Threshold::Any,
            max_short_bytes: 0,
        },
    },
    TransposeKernel {
        name: "transpose_04_diagonal",
        file: "transpose/transpose_04_diagonal",
        summary: "tiles walked along diagonals",
        role: Role::Rung(4),
        moves: Moves::Matrices,
        tiling: Tiling::Tiles,
        walk_rows: false,
        instances: instances!("transpose_04_diagonal"; 1 => 32 by 32, 256; 2 => 32 by 32, 256; 4 => 32 by 32, 256; 8 => 32 by 32, 256;),
        supports_pdl: false,
        needs: Needs::NOTHING,
        choice: Choice::ByNameOnly,
    },
    TransposeKernel {
        name: "transpose_05_swizzled",
        file: "transpose/transpose_05_swizzled",
        summary: "16-byte accesses, XOR-swizzled tile",
        role: Role::Rung(5),
        moves: Moves::Matrices,
        tiling: Tiling::Tiles,
        walk_rows: true,
        instances: instances!("transpose_05_swizzled"; 1 => 128 by 128, 256; 2 => 64 by 64, 256; 4 => 64 by 64, 512; 8 => 32 by 32, 256;),
        supports_pdl: false,
        needs: Needs {
            unit_strides: true,
            aligned: true,
            ..Needs::NOTHING
        },
        choice: Choice::Preferred {
            order: 4,
            from: Threshold::BeyondL2,
            max_short_bytes: 0,
        },
    },
    TransposeKernel {
        name: "transpose_06_tma",
        file: "transpose/transpose_06_tma_sm90",
        summary: "the copy engine of Hopper moves tiles, threads turn them in registers",
        role: Role::Rung(6),
        moves: Moves::Matrices,
        tiling: Tiling::Tiles,
        walk_rows: true,
        instances: instances!("transpose_06_tma"; 1 => 128 by 128, 64, shared 74752, from Threshold::Bytes(8 << 20); 2 => 64 by 64, 64, shared 43008, from Threshold::Bytes(6 << 20); 4 => 64 by 64, 256, shared 65536, from Threshold::BeyondL2; 8 => 32 by 32, 256, shared 43008, from Threshold::BeyondL2;),
        supports_pdl: true,
        needs: Needs {
            only_capability: Some(90),
            unit_strides: true,
            aligned: true,
            max_outer: 1,
            tensor_maps: true,
        },
        choice: Choice::Preferred {
            order: 3,
            from: Threshold::Any,
            max_short_bytes: 0,
        },
    },
    TransposeKernel {
        name: "transpose_07_unaligned",
        file: "transpose/transpose_07_unaligned",
        summary: "16-byte accesses of rows that start anywhere",
        role: Role::Rung(7),
        moves: Moves::Matrices,
        tiling: Tiling::Shifted,
        walk_rows: true,
        instances: instances!("transpose_07_unaligned"; 1 => 128 by 64, 256; 2 => 64 by 64, 256; 4 => 64 by 64, 512; 8 => 32 by 32, 256, from Threshold::BeyondL2;),
        supports_pdl: true,
        needs: Needs {
            unit_strides: true,
            ..Needs::NOTHING
        },
        choice: Choice::Preferred {
            order: 6,
            from: MANY_BYTES,
            max_short_bytes: 0,
        },
    },
    TransposeKernel {
        name: "transpose_08_few_rows",
        file: "transpose/transpose_08_few_rows",
        summary: "matrices of 2 to 32 long rows",
        role: Role::Rung(8),
        moves: Moves::Matrices,
        tiling: Tiling::FewRows,
        walk_rows: true,
        instances: instances!("transpose_08_few_rows"; 1 => 0 by 0, 256; 2 => 0 by 0, 256; 4 => 0 by 0, 256; 8 => 0 by 0, 256;),
        supports_pdl: false,
        needs: Needs {
            unit_strides: true,
            ..Needs::NOTHING
        },
        choice: Choice::Preferred {
            order: 1,
            from: MANY_BYTES,
            max_short_bytes: 64,
        },
    },
    TransposeKernel {
        name: "transpose_09_few_cols",
        file: "transpose/transpose_09_few_cols",
        summary: "matrices of 2 to 32 columns",
        role: Role::Rung(9),
        moves: Moves::Matrices,
        tiling: Tiling::FewCols,
        walk_rows: true,
        instances: instances!("transpose_09_few_cols"; 1 => 0 by 0, 256; 2 => 0 by 0, 256; 4 => 0 by 0, 256; 8 => 0 by 0, 256;),
        supports_pdl: false,
        needs: Needs {
            unit_strides: true,
            ..Needs::NOTHING
        },
        choice: Choice::Preferred {
            order: 2,
            from: MANY_BYTES,
            max_short_bytes: 64,
        },
    },
    TransposeKernel {
        name: "transpose_10_registers",
        file: "transpose/transpose_10_registers",
        summary: "micro tiles turned in registers without shared memory, for what the L2 holds",
        role: Role::Rung(10),
        moves: Moves::Matrices,
        tiling: Tiling::Tiles,
        walk_rows: true,
        instances: instances!("transpose_10_registers"; 1 => 128 by 128, 64; 2 => 64 by 64, 64; 4 => 32 by 64, 64; 8 => 32 by 16, 64;),
        supports_pdl: true,
        needs: Needs {
            unit_strides: true,
            aligned: true,
            ..Needs::NOTHING
        },
        choice: Choice::Preferred {
            order: 5,
            from: Threshold::Any,
            max_short_bytes: 0,
        },
    },
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
