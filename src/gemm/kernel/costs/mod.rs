//! What kernels cost, as measured: the numbers by which the planner compares them. They stand apart from the kernel table, one
//! file a GPU. `cargo run --release --features cuda --example calibrate` fits them on the GPU at hand.

// A fitted 3.14 is a time, and no π.
#[allow(clippy::approx_constant)]
mod h100;
#[allow(clippy::approx_constant)]
mod h200;
mod source;
mod terms;

use super::spec::KernelSpec;
use crate::device::DeviceInfo;
use crate::gemm::operands::DType;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

pub use source::rust_source;
pub use terms::{ClusterCosts, KernelCost, MoveCost, ParallelCosts, RepackCosts, SharedCosts, StreamKCosts};

/// Where costs come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// A file of this folder.
    #[default]
    BuiltIn,
    /// What `calibrate` wrote on this machine.
    File(PathBuf),
    /// The program itself.
    Given,
}

/// The costs of all kernels on a GPU. A plain value that goes into planning beside [`DeviceInfo`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// The name of the GPU that they were fitted on.
    pub gpu: String,
    /// Where they come from.
    #[serde(skip)]
    pub origin: Origin,
    /// What kernels for 32 bits have in common.
    pub shared: SharedCosts,
    /// What kernels for 16 bits have in common: what they do at once gets in each other's way differently.
    pub shared_16: SharedCosts,
    /// What each kernel costs, by its name. Kernels without costs are no candidates of the planner.
    #[serde(serialize_with = "in_order")]
    pub kernels: HashMap<String, KernelCost>,
}

/// A file that is written twice is the same twice.
fn in_order<S: serde::Serializer>(kernels: &HashMap<String, KernelCost>, serializer: S) -> Result<S::Ok, S::Error> {
    kernels.iter().collect::<BTreeMap<_, _>>().serialize(serializer)
}

/// A file of this folder.
struct BuiltIn {
    device: DeviceInfo,
    gpu: &'static str,
    shared: SharedCosts,
    shared_16: SharedCosts,
    kernels: &'static [(&'static str, KernelCost)],
}

const BUILT_IN: [BuiltIn; 2] = [
    BuiltIn {
        device: DeviceInfo::H100,
        gpu: h100::GPU,
        shared: h100::SHARED,
        shared_16: h100::SHARED_16,
        kernels: h100::KERNELS,
    },
    BuiltIn {
        device: DeviceInfo::H200,
        gpu: h200::GPU,
        shared: h200::SHARED,
        shared_16: h200::SHARED_16,
        kernels: h200::KERNELS,
    },
];

/// Which of two GPUs is nearer to `device`.
fn nearer_to(device: &DeviceInfo) -> impl Fn(&&(DeviceInfo, Costs), &&(DeviceInfo, Costs)) -> Ordering + '_ {
    let distance = |of: &DeviceInfo| {
        let ratio = |x: f64, y: f64| (x / y).ln().abs();
        (
            of.compute_capability.abs_diff(device.compute_capability),
            ratio(of.memory_gbps.into(), device.memory_gbps.into())
                + ratio(of.sm_count.into(), device.sm_count.max(1).into()),
        )
    };
    move |(x, _), (y, _)| {
        let ((x, at_x), (y, at_y)) = (distance(x), distance(y));
        x.cmp(&y).then(at_x.total_cmp(&at_y))
    }
}

impl Costs {
    /// The costs that the crate has for the GPU which is nearest to `device`: in compute capability first, then in bandwidth and
    /// multiprocessors.
    pub fn built_in(device: &DeviceInfo) -> &'static Costs {
        let all = Costs::all_built_in();
        all.iter()
            .min_by(nearer_to(device))
            .map_or(&all[0].1, |(_, costs)| costs)
    }

    /// The same without those that were fitted on the GPU of this name: what the crate would plan with if it did not know that one.
    pub fn built_in_of_others(device: &DeviceInfo, gpu: &str) -> &'static Costs {
        let others = Costs::all_built_in().iter().filter(|(_, costs)| costs.gpu != gpu);
        others
            .min_by(nearer_to(device))
            .map_or_else(|| Costs::built_in(device), |(_, costs)| costs)
    }

    fn all_built_in() -> &'static [(DeviceInfo, Costs)] {
        static ALL: OnceLock<Vec<(DeviceInfo, Costs)>> = OnceLock::new();
        ALL.get_or_init(|| BUILT_IN.iter().map(|of| (of.device, of.costs())).collect())
    }

    /// What this kernel costs, if that is known.
    pub fn of(&self, spec: &KernelSpec) -> Option<&KernelCost> {
        self.kernels.get(spec.costs_name())
    }

    /// What kernels for such elements have in common.
    pub const fn shared_of(&self, dtype: DType) -> &SharedCosts {
        match dtype.is_16_bit() {
            true => &self.shared_16,
            false => &self.shared,
        }
    }

    /// These costs, and those of `others` for kernels that these lack.
    pub fn or(mut self, others: &Costs) -> Self {
        for (name, cost) in &others.kernels {
            self.kernels.entry(name.clone()).or_insert(*cost);
        }
        self
    }

    /// Checks that predictions made with these costs are times.
    ///
    /// # Errors
    ///
    /// A sentence that names what is not a positive number, or is above what there can be.
    pub fn validate(&self) -> Result<(), String> {
        /// Of a time in µs.
        const LONGEST: f64 = 1e6;
        let check = |of: &str, name: &str, value: f64, least: f64, most: f64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("{name} of {of} is {value}, not between {least} and {most}")),
        };
        for (kernel, cost) in &self.kernels {
            check(kernel, "full", cost.full, 1e-6, 10.0)?;
            check(kernel, "solo", cost.solo, 1e-6, 10.0)?;
            check(kernel, "resident", cost.resident.into(), 1.0, 64.0)?;
            check(kernel, "setup_us", cost.setup_us, 0.0, LONGEST)?;
            check(kernel, "wave_us", cost.wave_us, 0.0, LONGEST)?;
            check(kernel, "bandwidth", cost.bandwidth, 1e-6, 10.0)?;
            check(kernel, "single_elements", cost.single_elements, 0.0, LONGEST)?;
            check(kernel, "edges", cost.edges, 0.0, LONGEST)?;
            check(kernel, "crowd", cost.crowd, 0.0, LONGEST)?;
            check(kernel, "other_order", cost.other_order, 0.0, LONGEST)?;
            check(kernel, "ragged_us", cost.ragged_us, 0.0, LONGEST)?;
            check(kernel, "general_us", cost.general_us, 0.0, LONGEST)?;
            check(kernel, "other_order_us", cost.other_order_us, 0.0, LONGEST)?;
            check(kernel, "general", cost.general, 0.0, LONGEST)?;
            check(kernel, "batch_us", cost.batch_us, 0.0, LONGEST)?;
            check(kernel, "beside_us", cost.beside_us, 0.0, LONGEST)?;
            check(kernel, "cut_us", cost.cut_us, 0.0, LONGEST)?;
            check(kernel, "share_us", cost.share_us, 0.0, LONGEST)?;
            check(kernel, "slice_us", cost.slice_us, 0.0, LONGEST)?;
            check(kernel, "turn_us", cost.turn_us, 0.0, LONGEST)?;
            check(kernel, "flow", cost.flow, 0.0, 1.0)?;
            check(kernel, "curve", cost.curve, 1e-3, 100.0)?;
            check(kernel, "start", cost.start, 1e-3, 100.0)?;
        }
        for (of, shared) in [
            ("kernels for 32 bits", &self.shared),
            ("kernels for 16 bits", &self.shared_16),
        ] {
            let SharedCosts {
                clusters,
                parallel,
                stream_k,
                repack,
                ..
            } = *shared;
            for (name, value) in [
                ("launch_us", shared.launch_us),
                ("early_launch_us", shared.early_launch_us),
                ("pairs_us", shared.pairs_us),
                ("queue_slices_us", shared.queue_slices_us),
                ("l2", shared.l2),
                ("memory_start_us", shared.memory_start_us),
                ("far", shared.far),
                ("off_sectors", shared.off_sectors),
                ("uneven", shared.uneven),
                ("l2_off_sectors", shared.l2_off_sectors),
                ("single_line", shared.single_line),
                ("single_outside", shared.single_outside),
                ("exposed", shared.exposed),
                ("tail", shared.tail),
                ("finish", stream_k.finish),
                ("piece", stream_k.piece),
                ("straddle", stream_k.straddle),
                ("sums_us", clusters.sums_us),
                ("round_us", clusters.round_us),
                ("parallel.start_us", parallel.start_us),
                ("parallel.round_us", parallel.round_us),
            ] {
                check(of, name, value, 0.0, LONGEST)?;
            }
            check(of, "out_of_step", stream_k.out_of_step, 1.0, 100.0)?;
            check(of, "parallel.bandwidth", parallel.bandwidth, 1e-6, 100.0)?;
            for (moves, cost) in [
                ("copies", repack.copy),
                ("transpositions", repack.transpose),
                ("unaligned transpositions", repack.transpose_unaligned),
            ] {
                check(moves, "start_us", cost.start_us, 0.0, LONGEST)?;
                check(moves, "bandwidth", cost.bandwidth, 1e-6, 10.0)?;
            }
            check("repacking", "gaps", repack.gaps, 1e-6, 10.0)?;
            check("repacking", "access", repack.access, 0.0, LONGEST)?;
            for (us, room) in clusters.us.into_iter().zip(clusters.room) {
                check("clusters", "us", us, 0.0, LONGEST)?;
                check("clusters", "room", room, 1e-6, 1.0)?;
            }
        }
        Ok(())
    }
}

impl BuiltIn {
    fn costs(&self) -> Costs {
        Costs {
            gpu: self.gpu.into(),
            origin: Origin::BuiltIn,
            shared: self.shared,
            shared_16: self.shared_16,
            kernels: self.kernels.iter().map(|&(name, cost)| (name.into(), cost)).collect(),
        }
    }
}

/// Where they come from: `fitted on an NVIDIA H200 (built in)`.
impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fitted on an {} ", self.gpu)?;
        match &self.origin {
            Origin::BuiltIn => f.write_str("(built in)"),
            Origin::File(path) => write!(f, "({})", path.display()),
            Origin::Given => f.write_str("(given by the program)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::kernel::spec::Role;
    use crate::gemm::kernel::table::TABLE;

    #[test]
    fn every_built_in_file_has_every_production_kernel_and_names_no_other_than_the_tables() {
        for file in &BUILT_IN {
            let costs = file.costs();
            costs.validate().unwrap();
            assert_eq!(
                costs.kernels.len(),
                file.kernels.len(),
                "{}: a kernel stands there twice",
                file.gpu
            );
            for spec in TABLE.iter().filter(|spec| spec.role == Role::Production) {
                assert!(
                    costs.of(spec).is_some(),
                    "{} has no costs on an {}",
                    spec.name,
                    file.gpu
                );
            }
            for name in costs.kernels.keys() {
                assert!(
                    TABLE.iter().any(|spec| spec.costs_name() == name),
                    "{}: there is no kernel {name}",
                    file.gpu
                );
            }
        }
    }

    #[test]
    fn a_gpu_gets_the_costs_of_the_nearest_one() {
        let of = |device: DeviceInfo| std::ptr::from_ref(Costs::built_in(&device));
        let (h100, h200) = (of(DeviceInfo::H100), of(DeviceInfo::H200));
        assert_ne!(h100, h200);
        // As the driver describes an H200, and an H100 with PCIe.
        let with = |memory_gbps, sm_count| DeviceInfo {
            memory_gbps,
            sm_count,
            ..DeviceInfo::H100
        };
        assert_eq!(of(with(4916.0, 132)), h200);
        assert_eq!(of(with(2039.0, 114)), h100);
        assert_eq!(of(DeviceInfo::A100), h100);
        assert_eq!(of(with(f32::NAN, 0)), of(with(f32::NAN, 0)));
    }

    #[test]
    fn costs_outlive_a_file_and_what_is_no_number_is_found() {
        let costs = Costs::built_in(&DeviceInfo::H100);
        let text = serde_json::to_string_pretty(costs).unwrap();
        assert_eq!(serde_json::from_str::<Costs>(&text).unwrap(), *costs);
        let mut without = costs.clone();
        without.kernels.remove("ffma_64x64");
        assert_eq!(without.clone().or(costs), *costs);
        without.shared.stream_k.piece = f64::NAN;
        assert!(without.validate().unwrap_err().contains("piece"));
        let mut zero = costs.clone();
        zero.kernels.get_mut("ffma_64x64").unwrap().full = 0.0;
        assert!(zero.validate().unwrap_err().contains("full of ffma_64x64"));
    }

    #[test]
    fn costs_say_where_they_come_from() {
        let mut costs = Costs::built_in(&DeviceInfo::H100).clone();
        assert_eq!(costs.to_string(), "fitted on an NVIDIA H100 80GB HBM3 (built in)");
        costs.origin = Origin::File("/cache/costs.json".into());
        assert_eq!(
            costs.to_string(),
            "fitted on an NVIDIA H100 80GB HBM3 (/cache/costs.json)"
        );
    }
}
