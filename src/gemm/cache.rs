//! Plans that were made before, so that a model's next call costs a look-up.

use super::kernels;
use super::plan::{cheaper, Plan};
use super::problem::GemmProblem;
use super::tune;
use crate::device::CurrentContext;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};

/// A model has a few dozen problems; one whose sizes change with every call should not fill the memory.
const MAX_PLANS: usize = 4096;

/// Context, problem, the kernel if one was asked for by name, and whether the choice was measured.
type Key = (u64, GemmProblem, Option<&'static str>, bool);

fn plans() -> &'static RwLock<HashMap<Key, Plan>> {
    static PLANS: OnceLock<RwLock<HashMap<Key, Plan>>> = OnceLock::new();
    PLANS.get_or_init(RwLock::default)
}

/// [`Plan::new`], [`Plan::named`] if a kernel is named, or else [`tune`](tune::tune()) if the choice is to be `measured`,
/// for the device of `context`: made once.
///
/// # Errors
///
/// As those. Errors are not kept.
pub fn plan(context: &CurrentContext, problem: &GemmProblem, kernel: Option<&str>, measured: bool) -> Result<Plan> {
    let kernel = kernel.map(kernels::find).transpose()?.map(|spec| spec.name);
    let key = (context.id(), *problem, kernel, measured);
    if let Some(plan) = plans().read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(*plan);
    }
    let plan = match kernel {
        Some(name) => Plan::named(name, problem, context.info()),
        None if measured => tune::tune(problem),
        None => automatic(problem, context),
    }?;
    let mut plans = plans().write().unwrap_or_else(PoisonError::into_inner);
    if plans.len() >= MAX_PLANS {
        plans.clear();
    }
    plans.insert(key, plan);
    Ok(plan)
}

/// [`Plan::new`] with the kernels that this build has machine code for.
fn automatic(problem: &GemmProblem, context: &CurrentContext) -> Result<Plan> {
    problem.validate().map_err(Error::Problem)?;
    let candidates = Plan::candidates(&problem.folded(), context.info())
        .filter(Plan::is_built)
        .min_by(cheaper);
    match candidates {
        Some(plan) => Ok(plan),
        None => Plan::new(problem, context.info()),
    }
}
