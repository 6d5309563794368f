//! Which of the candidates becomes the plan.

use super::plan::{cheaper, Plan};
use crate::device::DeviceInfo;
use crate::error::{Error, Result};
use crate::gemm::kernel::costs::Costs;
use crate::gemm::kernel::refusal::Refusal;
use crate::gemm::kernel::spec::KernelSpec;
use crate::gemm::kernel::table::{self, TABLE};
use crate::gemm::problem::{FoldedProblem, GemmProblem};

impl Plan {
    /// The kernel that the cost model expects to be fastest for `problem` on `device`; for results of at most 1024 × 1024, where
    /// several are about as fast, one with a smaller accumulation depth ([`Plan::accumulation_depth`]).
    ///
    /// # Errors
    ///
    /// [`Error::Problem`] if the problem cannot be computed at all; [`Error::Refused`] by the last resort of the table
    /// if nothing takes it.
    pub fn new(problem: &GemmProblem, device: &DeviceInfo, costs: &Costs) -> Result<Self> {
        let problem = problem.folded().map_err(Error::Problem)?;
        Plan::of(&problem, device, costs)
    }

    /// The same of a problem that has been folded.
    ///
    /// # Errors
    ///
    /// As [`Plan::new`], but for the problem's.
    pub(in crate::gemm) fn of(problem: &FoldedProblem, device: &DeviceInfo, costs: &Costs) -> Result<Self> {
        match Plan::candidates(problem, device, costs).min_by(cheaper) {
            Some(plan) => Ok(plan),
            None => Plan::forced(&TABLE[0], problem, device, costs, |_| Ok(true)),
        }
    }

    /// The best plan for the same problem that needs no workspace, and fits: with k whole and with operands in place. A kernel that
    /// was asked for by name stays.
    ///
    /// # Errors
    ///
    /// Whatever `fits` fails with.
    #[cfg(any(feature = "cuda", test))]
    pub(in crate::gemm) fn without_workspace(
        &self,
        device: &DeviceInfo,
        costs: &Costs,
        fits: impl FnMut(&Plan) -> Result<bool>,
    ) -> Result<Option<Plan>> {
        let problem = self.asked;
        let spare = |plan: &Plan| plan.workspace_bytes == 0;
        Ok(match self.by_name {
            true => {
                let variants = Plan::variants(self.kernel, &problem, device, costs).filter(spare);
                cheapest_that(variants, fits)?.map(Plan::asked_for)
            }
            false => cheapest_that(Plan::candidates(&problem, device, costs).filter(spare), fits)?,
        })
    }

    /// The kernel of this name, whether or not it is a good choice.
    ///
    /// # Errors
    ///
    /// As [`Plan::new`], and [`Error::UnknownKernel`], and [`Error::Refused`] with the reason if this kernel cannot
    /// take the problem.
    pub fn named(name: &str, problem: &GemmProblem, device: &DeviceInfo, costs: &Costs) -> Result<Self> {
        let problem = problem.folded().map_err(Error::Problem)?;
        Plan::named_that(name, &problem, device, costs, |_| Ok(true))
    }

    /// The same with the best cut of k for which there is room on the device, as `fits` says.
    ///
    /// # Errors
    ///
    /// As [`Plan::named`], but for the problem's, whatever `fits` fails with, and [`Error::Refused`] if there is no room for any.
    pub fn named_that(
        name: &str,
        problem: &FoldedProblem,
        device: &DeviceInfo,
        costs: &Costs,
        fits: impl FnMut(&Plan) -> Result<bool>,
    ) -> Result<Self> {
        let spec = table::find(name)?;
        Plan::forced(spec, problem, device, costs, fits).map(Plan::asked_for)
    }

    fn forced(
        spec: &'static KernelSpec,
        problem: &FoldedProblem,
        device: &DeviceInfo,
        costs: &Costs,
        fits: impl FnMut(&Plan) -> Result<bool>,
    ) -> Result<Self> {
        let refused = |reason: Refusal| Error::Refused {
            kernel: spec.name,
            reason: reason.to_string(),
        };
        if let Some(reason) = spec.refusal(problem, device) {
            return Err(refused(reason));
        }
        let variants = || Plan::variants(spec, problem, device, costs);
        cheapest_that(variants(), fits)?.ok_or_else(|| {
            refused(Refusal::Clusters {
                blocks: variants().map(|plan| plan.cluster()).min().unwrap_or(1),
                shared: spec.dynamic_shared,
            })
        })
    }
}

/// The best of these plans that fits. They are asked in the order of plans, so that few are: to answer may mean to load a
/// kernel.
///
/// # Errors
///
/// Whatever `fits` fails with.
pub(super) fn cheapest_that(
    plans: impl Iterator<Item = Plan>,
    mut fits: impl FnMut(&Plan) -> Result<bool>,
) -> Result<Option<Plan>> {
    let mut plans: Vec<Plan> = plans.collect();
    plans.sort_by(cheaper);
    for plan in plans {
        if fits(&plan)? {
            return Ok(Some(plan));
        }
    }
    Ok(None)
}
