//! Which devices this build computes on. What is asked for anywhere else is left to candle or cuBLAS, without a plan.

use crate::architectures::code_for;
use crate::gemm::kernel::{
    spec::{KernelSpec, Role},
    table::TABLE,
};
#[cfg(feature = "cuda")]
use crate::{device::CurrentContext, error::Result, modules};
use std::sync::OnceLock;

/// A device, as far as that decides who computes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The processor.
    Cpu,
    /// An NVIDIA GPU of this compute capability.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // nobody asks a GPU for it then
    Gpu(u32),
    /// A GPU that nothing is known of, or a device of another kind.
    Elsewhere,
}

/// Whether a build computes products and transpositions there that has machine code for `architectures` and PTX of the
/// lowest of them; `None` is a build without kernels.
pub(crate) fn serves(place: Place, architectures: Option<&[u32]>) -> bool {
    match (place, architectures) {
        (Place::Cpu, _) => true,
        (Place::Gpu(capability), Some(architectures)) => {
            code_for(architectures, capability).is_some_and(|code| code >= first_capability())
        }
        (Place::Gpu(_), None) | (Place::Elsewhere, _) => false,
    }
}

/// The first compute capability with a kernel that takes every problem.
fn first_capability() -> u32 {
    static FIRST: OnceLock<u32> = OnceLock::new();
    *FIRST.get_or_init(|| {
        let everywhere = |spec: &&KernelSpec| spec.role == Role::Production && spec.needs.only_capability.is_none();
        let capabilities = TABLE.iter().filter(everywhere);
        capabilities
            .map(|spec| spec.needs.min_capability)
            .min()
            .unwrap_or(u32::MAX)
    })
}

/// Whether this build computes on the GPU of `context`.
#[cfg(feature = "cuda")]
pub(crate) fn serves_context(context: &CurrentContext) -> bool {
    let capability = context.info().compute_capability;
    serves(Place::Gpu(capability), Some(modules::architectures()))
}

/// Whether this build computes on the GPU of this number, whose context `bind` makes current. It is asked once.
#[cfg(feature = "cuda")]
pub(crate) fn serves_gpu(ordinal: usize, bind: impl FnOnce() -> Result<()>) -> Result<bool> {
    use std::collections::BTreeMap;
    use std::sync::{PoisonError, RwLock};

    static KNOWN: RwLock<BTreeMap<usize, bool>> = RwLock::new(BTreeMap::new());
    let known = KNOWN
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&ordinal)
        .copied();
    if let Some(served) = known {
        return Ok(served);
    }
    bind()?;
    let served = serves_context(&CurrentContext::get()?);
    KNOWN
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(ordinal, served);
    Ok(served)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceInfo;
    use crate::gemm::{Costs, GemmProblem, OperandLayout, Plan, Precision};

    /// Compute capabilities of CUDA's GPUs, past and present.
    const CAPABILITIES: [u32; 14] = [50, 60, 61, 70, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120];

    #[test]
    fn the_processor_is_served_always_and_other_devices_never() {
        for architectures in [None, Some(&[][..]), Some(&[80, 90][..])] {
            assert!(serves(Place::Cpu, architectures));
            assert!(!serves(Place::Elsewhere, architectures));
        }
    }

    #[test]
    fn a_build_without_kernels_serves_no_gpu() {
        for capability in CAPABILITIES {
            assert!(!serves(Place::Gpu(capability), None));
            assert!(!serves(Place::Gpu(capability), Some(&[])));
        }
    }

    #[test]
    fn a_gpu_is_served_where_every_problem_has_a_plan() {
        let problems = [
            GemmProblem::row_major(64, 48, 32),
            GemmProblem::row_major(1, 999, 77),
            GemmProblem::new(
                5,
                7,
                3,
                OperandLayout::strided(9, 3).with_align(4),
                OperandLayout::strided(2, 22),
            ),
        ];
        for capability in CAPABILITIES {
            let device = DeviceInfo {
                compute_capability: capability,
                code_capability: capability,
                ..DeviceInfo::RTX_4090
            };
            let planned = |precision| {
                problems.iter().all(|problem| {
                    let problem = GemmProblem { precision, ..*problem };
                    Plan::new(&problem, &device, Costs::built_in(&device)).is_ok()
                })
            };
            let served = serves(Place::Gpu(capability), Some(&[capability]));
            for precision in Precision::ALL {
                assert_eq!(served, planned(precision), "{capability} at {precision}");
            }
        }
    }

    #[test]
    fn code_for_newer_gpus_only_serves_none_of_the_older_ones() {
        for built in CAPABILITIES {
            for capability in CAPABILITIES {
                let served = serves(Place::Gpu(capability), Some(&[built]));
                assert_eq!(served, built >= 80 && capability >= built, "{built} on {capability}");
            }
        }
        assert!(serves(Place::Gpu(86), Some(&[80, 120])));
    }
}
