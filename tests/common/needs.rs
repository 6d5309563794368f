//! Tests that need what not every machine has.

use std::fmt::Display;

/// Names what tests may not do without, between commas: `gpu`, `nvcc`.
const VARIABLE: &str = "CANDLE_SGEMM_TEST_NEEDS";

/// Says on standard error that `test` is skipped, since it `needs` something, and why that is not there.
///
/// # Panics
///
/// Where `CANDLE_SGEMM_TEST_NEEDS` names it: on a machine that has a GPU, tests that were all skipped are no success.
pub fn skip(test: &str, needs: &str, why: impl Display) {
    let names = std::env::var(VARIABLE).unwrap_or_default();
    assert!(
        !names.split(',').any(|name| name == needs),
        "{test} needs what {VARIABLE}={names} says is here: {why}"
    );
    eprintln!("{test}: skipped: {why}");
}
