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

use super::spec::KernelSpec;
use crate::error::{Error, Result};

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
