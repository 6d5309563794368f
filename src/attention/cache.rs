//! Plans of attention, made once.

use super::{AttentionPlan, AttentionProblem, Refusal};
use crate::device::CurrentContext;
use crate::plan_cache::PlanCache;
use std::sync::Arc;

/// A plan, or why there is none.
type Outcome = Result<Arc<AttentionPlan>, Arc<Refusal>>;

/// By context and problem.
static PLANS: PlanCache<(u64, AttentionProblem), Outcome> = PlanCache::new();

/// [`AttentionPlan::new`] for the device of `context`: made once. Refusals are kept, too.
///
/// # Errors
///
/// As that.
pub fn plan(context: &CurrentContext, problem: AttentionProblem) -> Outcome {
    let make = |(_, problem): &(u64, AttentionProblem)| {
        let plan = AttentionPlan::new(problem, context.info());
        Ok::<_, std::convert::Infallible>(plan.map(Arc::new).map_err(Arc::new))
    };
    match PLANS.get_or_make((context.id(), problem), make) {
        Ok(outcome) => outcome,
        Err(never) => match never {},
    }
}
