//! Plans of products, made once.

use super::choose::cheapest_that;
use super::plan::Plan;
use crate::device::CurrentContext;
use crate::error::{report, Error, Result};
use crate::gemm::kernel::table;
use crate::gemm::launch::room::usable;
use crate::gemm::problem::{FoldedProblem, GemmProblem};
use crate::gemm::tune::{self, calibrated::costs, Tuning};
use crate::plan_cache::PlanCache;

/// Context, problem, the kernel if one was asked for by name, and whether the choice was measured.
type Key = (u64, GemmProblem, Option<&'static str>, bool);

static PLANS: PlanCache<Key, Plan> = PlanCache::new();

/// [`Plan::new`], [`Plan::named`] if a kernel is named, or else what measurements say as far as `tuning` lets them
/// ([`tune`](tune::tune())), for the device of `context`: made once.
///
/// # Errors
///
/// As [`Plan::new`] and [`Plan::named`]. Errors are not kept.
pub fn plan(context: &CurrentContext, problem: &GemmProblem, kernel: Option<&str>, tuning: Tuning) -> Result<Plan> {
    let kernel = kernel.map(table::find).transpose()?.map(|spec| spec.name);
    if let (None, Tuning::Known) = (kernel, tuning) {
        if let Some(plan) = measured_before(context, problem)? {
            return Ok(plan);
        }
    }
    let measured = tuning == Tuning::Measure;
    PLANS.get_or_make((context.id(), *problem, kernel, measured), |_| {
        let problem = problem.folded().map_err(Error::Problem)?;
        let fits = |plan: &Plan| usable(plan, context);
        let (device, costs) = (context.info(), costs(context));
        // The kernels that this build has machine code for and the device room.
        let automatic = || match cheapest_that(Plan::candidates(&problem, device, costs), fits)? {
            Some(plan) => Ok(plan),
            None => Plan::of(&problem, device, costs),
        };
        match kernel {
            Some(name) => Plan::named_that(name, &problem, device, costs, fits),
            // Where measuring fails, on a full card for one, the planner decides, and it is not tried again at every call.
            None if measured => tune::tune_folded(&problem).or_else(|error| {
                report(format_args!("a product is planned instead of measured: {error}"));
                automatic()
            }),
            None => automatic(),
        }
    })
}

/// The plan that was measured to be the fastest, by this process or another. What it finds is kept as if it had been measured here.
fn measured_before(context: &CurrentContext, problem: &GemmProblem) -> Result<Option<Plan>> {
    let key = (context.id(), *problem, None, true);
    if let Some(plan) = PLANS.get(&key) {
        return Ok(Some(plan));
    }
    let folded = problem.folded().map_err(Error::Problem)?;
    let plan = tune::known(&folded, context).unwrap_or_else(|error| {
        report(format_args!("a product is planned, whatever was measured: {error}"));
        None
    });
    plan.map(|plan| PLANS.get_or_make(key, |_| Ok(plan))).transpose()
}

/// What takes the place of `plan` where there is no memory for its workspace ([`Plan::without_workspace`]), made once as well: on a card that
/// is full every launch asks. `None`: nothing does.
///
/// # Errors
///
/// Whatever the driver reports of the room for clusters. Errors are not kept.
pub fn without_workspace(context: &CurrentContext, plan: &Plan) -> Result<Option<Plan>> {
    type Key = (u64, FoldedProblem, Option<&'static str>);
    static PLANS: PlanCache<Key, Option<Plan>> = PlanCache::new();
    let by_name = plan.by_name.then_some(plan.kernel.name);
    PLANS.get_or_make((context.id(), plan.asked, by_name), |_| {
        plan.without_workspace(context.info(), costs(context), |plan| usable(plan, context))
    })
}

/// Whether `plan` for this problem, with a norm or gates inside, is expected to take no longer than a kernel for each step. One whose kernel
/// was asked for by name counts as if it were. Of one that `tuning` may have found, the planner's own choice tells: its prediction is
/// what those of the steps can be compared with.
///
/// # Errors
///
/// As [`plan`], for a step.
pub fn pays(context: &CurrentContext, problem: &GemmProblem, plan: &Plan, tuning: Tuning) -> Result<bool> {
    let (step, steps) = problem.in_steps();
    let step = self::plan(context, &step, None, Tuning::Off)?;
    match (plan.by_name, tuning) {
        (true, _) | (false, Tuning::Off) => Ok(plan.pays(&step, steps)),
        (false, _) => Ok(self::plan(context, problem, None, Tuning::Off)?.pays(&step, steps)),
    }
}
