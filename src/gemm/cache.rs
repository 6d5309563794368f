//! Plans that were made before, so that a model's next call costs a look-up.

use super::kernels;
use super::plan::Plan;
use super::problem::GemmProblem;
use crate::device::CurrentContext;
use crate::error::Result;
use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};

/// A model has a few dozen problems; one whose sizes change with every call should not fill the memory.
const MAX_PLANS: usize = 4096;

/// Context, problem, and the kernel if one was asked for by name.
type Key = (u64, GemmProblem, Option<&'static str>);

fn plans() -> &'static RwLock<HashMap<Key, Plan>> {
    static PLANS: OnceLock<RwLock<HashMap<Key, Plan>>> = OnceLock::new();
    PLANS.get_or_init(RwLock::default)
}

/// [`Plan::new`], or [`Plan::named`] if a kernel is named, for the device of `context`: made once.
///
/// # Errors
///
/// As those. Errors are not kept.
pub fn plan(context: &CurrentContext, problem: &GemmProblem, kernel: Option<&str>) -> Result<Plan> {
    let kernel = kernel.map(kernels::find).transpose()?.map(|spec| spec.name);
    let key = (context.id(), *problem, kernel);
    if let Some(plan) = plans().read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(*plan);
    }
    let plan = match kernel {
        Some(name) => Plan::named(name, problem, context.info()),
        None => Plan::new(problem, context.info()),
    }?;
    let mut plans = plans().write().unwrap_or_else(PoisonError::into_inner);
    if plans.len() >= MAX_PLANS {
        plans.clear();
    }
    plans.insert(key, plan);
    Ok(plan)
}
