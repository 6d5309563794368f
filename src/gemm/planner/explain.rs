//! Why a plan is chosen: the table of the candidates and of the kernels that are out.

use super::candidates::disregarded;
use super::plan::{cheaper, Plan};
use crate::device::DeviceInfo;
use crate::error::Result;
use crate::gemm::kernel::costs::Costs;
use crate::gemm::kernel::refusal::Refusal;
use crate::gemm::kernel::spec::KernelSpec;
use crate::gemm::kernel::table::TABLE;
use crate::gemm::problem::GemmProblem;
use std::fmt;

/// What the planner makes of a problem: the choice, the other kernels by their predicted times, and the reasons of those that
/// are out. Its `Display` prints a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The plan that [`Plan::new`] returns, or its error.
    pub choice: Result<Plan>,
    /// The best plan of each kernel with operands in place, and the best with operands repacked: the choice first, then by
    /// predicted time.
    pub candidates: Vec<Plan>,
    /// Every row of the table that has no plan with operands in place, and why; empty for a problem that has no plan at all.
    pub refused: Vec<(&'static KernelSpec, Refusal)>,
    /// Where the costs come from that times are predicted with.
    pub costs: String,
}

/// Shows how [`Plan::new`] decides.
pub fn explain(problem: &GemmProblem, device: &DeviceInfo, costs: &Costs) -> Explanation {
    let mut explanation = Explanation {
        choice: Plan::new(problem, device, costs),
        candidates: Vec::new(),
        refused: Vec::new(),
        costs: costs.to_string(),
    };
    let Ok(folded) = problem.folded() else {
        return explanation;
    };
    for plan in Plan::candidates(&folded, device, costs) {
        let of_its_kind =
            |other: &&mut Plan| other.kernel.name == plan.kernel.name && other.is_repacked() == plan.is_repacked();
        match explanation.candidates.iter_mut().find(of_its_kind) {
            Some(other) if cheaper(&plan, other).is_lt() => *other = plan,
            Some(_) => {}
            None => explanation.candidates.push(plan),
        }
    }
    let chosen = |plan: &Plan| explanation.choice.as_ref() == Ok(plan);
    explanation.candidates.sort_by(|x, y| {
        let by_time = x.predicted_us.total_cmp(&y.predicted_us);
        chosen(y).cmp(&chosen(x)).then(by_time)
    });
    explanation.refused = TABLE
        .iter()
        .filter_map(|spec| {
            let reason = spec.refusal(&folded, device);
            Some((spec, reason.or_else(|| disregarded(spec, &folded, costs))?))
        })
        .collect();
    explanation
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for plan in &self.candidates {
            let way = match plan.is_repacked() {
                true => " with operands repacked",
                false => "",
            };
            writeln!(f, "  {:<40} {:>10.1} µs{way}", plan.kernel.name, plan.predicted_us)?;
        }
        for (spec, reason) in &self.refused {
            writeln!(f, "  {:<40} {:>10}    {reason}", spec.name, "-")?;
        }
        if self.choice.is_ok() {
            writeln!(f, "costs: {}", self.costs)?;
        }
        match &self.choice {
            Ok(plan) => write!(f, "chosen: {plan}"),
            Err(error) => write!(f, "no plan: {error}"),
        }
    }
}
