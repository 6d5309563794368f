//! Plans of transpositions, made once.

use super::{TransposePlan, TransposeProblem};
use crate::device::CurrentContext;
use crate::error::Result;
use crate::plan_cache::PlanCache;
use std::sync::Arc;

/// By context and problem.
static PLANS: PlanCache<(u64, TransposeProblem), Arc<TransposePlan>> = PlanCache::new();

/// [`TransposePlan::new`] for the device of `context`: made once.
///
/// # Errors
///
/// As that. Errors are not kept.
pub fn plan(context: &CurrentContext, problem: TransposeProblem) -> Result<Arc<TransposePlan>> {
    PLANS.get_or_make((context.id(), problem), |(_, problem)| {
        TransposePlan::new(problem, context.info()).map(Arc::new)
    })
}
