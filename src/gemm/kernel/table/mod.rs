//! The kernel table. A kernel is one `.cu` file and one line here (or several lines, where one file is instantiated with
//! several tiles): planning, launching, tests, benchmarks and reports walk this table and keep no list of their own.
//!
//! A line says what only its author can know: name, layout, tile, stages. `families` fills in what the kernels of a family
//! have in common, and `derived` what follows from the rest.

mod derived;
mod families;
mod ffma;
mod ffma_sm90;
mod gemv;
mod half;
mod ladder;
mod tensor_core;

use super::spec::{EpilogueSupport, KernelSpec, Role};
use crate::error::{Error, Result};
use crate::gemm::operands::DType;
use std::sync::OnceLock;

const GROUPS: [&[KernelSpec]; 7] = [
    ladder::ROWS,
    gemv::ROWS,
    ffma::ROWS,
    tensor_core::ROWS,
    ffma_sm90::ROWS,
    half::F16,
    half::BF16,
];

const ROWS: usize = {
    let (mut rows, mut group) = (0, 0);
    while group < GROUPS.len() {
        rows += GROUPS[group].len();
        group += 1;
    }
    rows
};

static JOINED: [KernelSpec; ROWS] = {
    let mut joined = [GROUPS[0][0]; ROWS];
    let (mut rows, mut group) = (0, 0);
    while group < GROUPS.len() {
        let mut row = 0;
        while row < GROUPS[group].len() {
            joined[rows] = GROUPS[group][row];
            (rows, row) = (rows + 1, row + 1);
        }
        group += 1;
    }
    joined
};

/// Every kernel, rungs in the order of the ladder. The last resort, which takes every problem that a rung can, is the
/// first row.
pub static TABLE: &[KernelSpec] = &JOINED;

/// Whether there are kernels for factors of this type that a plan may choose, and, if `fused`, such as take a whole epilogue. Looked up
/// once: to walk the table takes a good part of the time in which a layer is launched.
pub fn multiplies(dtype: DType, fused: bool) -> bool {
    static KNOWN: OnceLock<Vec<(DType, bool)>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let production = TABLE.iter().filter(|spec| spec.role == Role::Production);
        let mut known: Vec<_> = production
            .map(|spec| (spec.dtype, spec.epilogue == EpilogueSupport::Fused))
            .collect();
        known.dedup();
        known
    });
    known.iter().any(|&(of, fuses)| of == dtype && (fuses || !fused))
}

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
