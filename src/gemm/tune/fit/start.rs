//! What a fit begins with.

use super::parameters::{IN_COMMON, OF_KERNELS, OF_SEVERAL_BLOCKS, OF_SHARED_K};
use crate::gemm::kernel::costs::{Costs, KernelCost};
use crate::gemm::kernel::spec::{Grid, KernelSpec, Role};
use crate::gemm::kernel::table::{self, TABLE};
use std::collections::HashMap;

/// These costs with a guess in place of what is 0: by factors, nothing leads away from 0. Of the kernels of which `fitted` is true, and of
/// what kernels for 32 bits and for 16 have in common, if that is fitted.
pub fn something_to_fit(start: &Costs, shared: [bool; 2], fitted: impl Fn(&str) -> bool) -> Costs {
    let mut costs = start.clone();
    let both = [&mut costs.shared, &mut costs.shared_16];
    for (shared, _) in both.into_iter().zip(shared).filter(|(_, moves)| *moves) {
        IN_COMMON.iter().for_each(|term| term.fill(shared));
    }
    for (name, cost) in costs.kernels.iter_mut().filter(|(name, _)| fitted(name)) {
        let of_shared_k = match table::find(name).is_ok_and(KernelSpec::takes_turns_of_k) {
            true => OF_SHARED_K,
            false => &[],
        };
        OF_KERNELS
            .iter()
            .chain(OF_SEVERAL_BLOCKS)
            .chain(of_shared_k)
            .for_each(|term| term.fill(cost));
    }
    costs
}

/// Costs for every kernel of the table that a plan may be made with: those of `known`, and a guess for production kernels that
/// have none yet. `holds` says how many blocks of a kernel a multiprocessor holds.
pub fn starting_costs(known: &Costs, holds: &HashMap<String, u32>) -> Costs {
    let mut costs = known.clone();
    let own = |spec: &&KernelSpec| spec.role == Role::Production && spec.costs_of.is_none();
    for spec in TABLE.iter().filter(own) {
        let most = holds.get(spec.name).copied().unwrap_or(1).max(1);
        let resident = match spec.grid {
            Grid::Tiles | Grid::Units => most,
            _ => spec.blocks_per_multiprocessor.clamp(1, most),
        };
        costs.kernels.entry(spec.name.into()).or_insert(KernelCost {
            full: 0.6,
            solo: (0.9 / resident as f64).min(0.6),
            resident,
            ..KernelCost::UNKNOWN
        });
    }
    // A GPU may hold fewer than the one that costs were fitted on.
    for (name, cost) in &mut costs.kernels {
        cost.resident = cost.resident.min(holds.get(name).copied().unwrap_or(u32::MAX)).max(1);
        cost.solo = cost.solo.max(cost.full / f64::from(cost.resident));
    }
    costs
}
