//! Plans of products, made once.

use super::kernels;
use super::plan::{cheapest_that, Plan};
use super::problem::GemmProblem;
use super::tune;
use crate::device::CurrentContext;
use crate::error::{Error, Result};
use crate::plan_cache::PlanCache;

/// Context, problem, the kernel if one was asked for by name, and whether the choice was measured.
type Key = (u64, GemmProblem, Option<&'static str>, bool);

static PLANS: PlanCache<Key, Plan> = PlanCache::new();

/// [`Plan::new`], [`Plan::named`] if a kernel is named, or else [`tune`](tune::tune()) if the choice is to be `measured`,
/// for the device of `context`: made once.
///
/// # Errors
///
/// As those. Errors are not kept.
pub fn plan(context: &CurrentContext, problem: &GemmProblem, kernel: Option<&str>, measured: bool) -> Result<Plan> {
    let kernel = kernel.map(kernels::find).transpose()?.map(|spec| spec.name);
    PLANS.get_or_make((context.id(), *problem, kernel, measured), |_| match kernel {
        Some(name) => Plan::named_that(name, problem, context.info(), |plan| fits(plan, context)),
        None if measured => tune::tune(problem),
        None => automatic(problem, context),
    })
}

/// [`Plan::new`] with the kernels that this build has machine code for and the device room.
fn automatic(problem: &GemmProblem, context: &CurrentContext) -> Result<Plan> {
    problem.validate().map_err(Error::Problem)?;
    match best(&problem.folded(), context, |_| true)? {
        Some(plan) => Ok(plan),
        None => Plan::new(problem, context.info()),
    }
}

/// The best plan for a valid, folded problem among those that are `wanted`, that this build has machine code for, and that
/// the device has room for.
///
/// # Errors
///
/// Whatever the driver reports.
pub(super) fn best(
    problem: &GemmProblem,
    context: &CurrentContext,
    wanted: impl Fn(&Plan) -> bool,
) -> Result<Option<Plan>> {
    let candidates = Plan::candidates(problem, context.info()).filter(|plan| plan.is_built() && wanted(plan));
    cheapest_that(candidates, |plan| fits(plan, context))
}

/// Whether the device has room for a plan. Blocks alone always find some, but a cluster lives within one group of
/// multiprocessors, of which a part of a GPU (a MIG slice, or the share of a process under MPS) may have too few.
///
/// # Errors
///
/// Whatever the driver reports.
pub(super) fn fits(plan: &Plan, context: &CurrentContext) -> Result<bool> {
    let kernel = plan.kernel;
    match plan.cluster {
        1 => Ok(true),
        blocks => context.clusters_fit(kernel.file, kernel.name, kernel.dynamic_shared, kernel.threads, blocks),
    }
}
