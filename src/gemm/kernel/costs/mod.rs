//! What kernels cost, as measured: the numbers by which the planner compares them. They stand apart from the kernel table, one
//! file a GPU. `cargo run --release --features cuda --example calibrate` fits them on the GPU at hand.

// A fitted 3.14 is a time, and no π.
#[allow(clippy::approx_constant)]
mod h100;
#[allow(clippy::approx_constant)]
mod h200;
mod source;

use super::spec::KernelSpec;
use super::table::TABLE;
use crate::device::DeviceInfo;
use crate::gemm::operands::DType;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

pub use source::rust_source;

/// What a kernel's blocks cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelCost {
    /// Fraction of the arithmetic's peak that a multiprocessor reaches when it holds all the blocks it can.
    pub full: f64,
    /// The same when it holds only one.
    pub solo: f64,
    /// Blocks that a multiprocessor holds.
    pub resident: u32,
    /// What a block takes beside its multiplications (first loads, epilogue), in µs.
    pub setup_us: f64,
    /// What each further wave of blocks takes beside its multiplications, in µs: less where blocks that share a multiprocessor,
    /// or the warps of one that stays, load while others store.
    pub wave_us: f64,
    /// Fraction of the datasheet's memory bandwidth that it reaches where memory is the limit.
    pub bandwidth: f64,
    /// What each operand that can only be read by single elements adds to the time of a tile, in units of that time, where threads
    /// read the operands.
    pub single_elements: f64,
    /// What tiles that stick out of the matrix on a side take more, as a part of their time; with TMA, as far as they stick out.
    pub edges: f64,
    /// What A or B takes more in the order that threads read more slowly, as a part of the time of a tile: along k, where threads transpose
    /// it on its way to shared memory; where lanes share k, vectors that do not lie along it.
    pub other_order: f64,
    /// What it takes a wave more, in µs: the first portions of k have to arrive, and nothing is multiplied beside them.
    #[serde(default)]
    pub other_order_us: f64,
    /// What arithmetic takes more where all multiprocessors work than where one does, as a part.
    pub crowd: f64,
    /// What a wave of whole tiles takes more, in µs, where rows of the result start off 16 bytes.
    pub ragged_us: f64,
    /// What a wave takes more, in µs, where there is a batch: a block first works out where its matrices are.
    pub batch_us: f64,
    /// What operands take more to start, in µs, that the kernel has no loop of its own for: gaps between their elements; where lanes share
    /// k, also a batch, or anything but whole vectors.
    #[serde(default)]
    pub general_us: f64,
    /// The same as a part of the time of a tile.
    #[serde(default)]
    pub general: f64,
    /// What each block that shares a multiprocessor with others adds to the first wave, in µs: their first loads and their
    /// epilogues get in each other's way.
    pub beside_us: f64,
    /// What a cut across a cluster takes more with this kernel, in µs.
    pub cut_us: f64,
    /// What it takes a block more to finish the sums of a whole tile, where a cluster cuts k, in µs: each finishes its part of them. Where
    /// blocks take strips from a queue, the same for each strip.
    #[serde(default)]
    pub share_us: f64,
    /// What each slice of k adds to that, in µs: its sums have to arrive.
    #[serde(default)]
    pub slice_us: f64,
    /// How far multiprocessors that are done with a block go on with the next one by themselves: 0 where blocks come in waves
    /// (wave quantization in full), 1 where nothing waits for a wave to end.
    pub flow: f64,
    /// How time goes up between one block of a multiprocessor and all that fit: with this power of the part of the blocks. Below 1 it is the
    /// second block that takes most.
    pub curve: f64,
    /// What it takes of a launch and of the time until memory delivers, as a part, where kernels get ready while the one before ends: less
    /// where it lets the next one in as soon as its loads have arrived.
    #[serde(default = "whole")]
    pub start: f64,
}

/// All of it.
const fn whole() -> f64 {
    1.0
}

impl KernelCost {
    /// Where a fit begins, of a kernel that nothing is known of.
    pub const UNKNOWN: KernelCost = KernelCost {
        full: 0.5,
        solo: 0.5,
        resident: 1,
        setup_us: 4.0,
        wave_us: 4.0,
        bandwidth: 0.75,
        single_elements: 0.3,
        edges: 0.0,
        crowd: 0.0,
        other_order: 0.0,
        other_order_us: 0.0,
        ragged_us: 0.0,
        batch_us: 0.0,
        general_us: 0.0,
        general: 0.0,
        beside_us: 0.0,
        cut_us: 0.0,
        share_us: 0.0,
        slice_us: 0.0,
        flow: 0.0,
        curve: 1.0,
        start: 1.0,
    };
}

/// What kernels have in common.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedCosts {
    /// What a launch takes beside its work, in µs.
    pub launch_us: f64,
    /// The same for a kernel that gets ready while the one before it ends.
    pub early_launch_us: f64,
    /// What 2-CTA clusters that share tiles take, in µs, once: their barriers have to be there in both blocks before either
    /// may start.
    pub pairs_us: f64,
    /// What a work queue over several slices of k takes more, in µs: the last block to finish a strip waits for the others' sums
    /// to be visible.
    pub queue_slices_us: f64,
    /// The time for all that blocks fetch from the L2, relative to every multiprocessor fetching at the rate that one has alone; 0 where
    /// that was not fitted.
    pub l2: f64,
    /// What it takes until memory delivers at its full rate, in µs: what is read first has its whole way to go, and what is
    /// stored last.
    pub memory_start_us: f64,
    /// What operands that several tiles fetch take beyond their bytes, as a part of those: an L2 in two halves hands them from one to
    /// the other.
    pub far: f64,
    /// What operands whose rows start off sectors take more of memory's time where TMA fetches them, as a part.
    #[serde(default)]
    pub off_sectors: f64,
    /// What memory takes longer, as a part of how many more blocks the busiest multiprocessor has than it would if all had as many.
    pub uneven: f64,
    /// The same of the L2's time, by the part that is fetched of such operands.
    #[serde(default)]
    pub l2_off_sectors: f64,
    /// How much more `crowd` counts, as a part, where a matrix has a single row or column of tiles, which share one operand alone.
    pub single_line: f64,
    /// How much more yet by the part of such tiles that lies outside of the matrix: 64 rows in tiles of 128 take longer than 128 rows.
    #[serde(default)]
    pub single_outside: f64,
    /// Of arithmetic, memory and L2, the part of the shorter times that is not hidden behind the longest.
    pub exposed: f64,
    /// Where blocks do not come in waves: the part of the time of a block alone, beyond its time beside others, that the end of a launch
    /// takes, when there are no more blocks to begin.
    pub tail: f64,
    /// Of cuts across clusters.
    pub clusters: ClusterCosts,
    /// Of slices that a second kernel adds up.
    #[serde(default)]
    pub parallel: ParallelCosts,
    /// Of cuts by stream-K.
    pub stream_k: StreamKCosts,
    /// Of operands that are repacked.
    pub repack: RepackCosts,
}

/// What a cut of k across a cluster costs, by the number of blocks: of 2, 3, 4, 5, 6, 7 and 8.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterCosts {
    /// What it takes beside its blocks, in µs.
    pub us: [f64; 7],
    /// The fraction of the multiprocessors on which such clusters find room: a cluster lives within one group of
    /// multiprocessors, and groups differ in size.
    pub room: [f64; 7],
    /// What it takes a multiprocessor to hand on the sums of a tile of 128 × 128 to the blocks that add them up, in µs. Each block
    /// keeps its own part.
    pub sums_us: f64,
    /// What each round of clusters after the first takes more than one of blocks, in µs: all blocks of a cluster have to find room at
    /// once.
    pub round_us: f64,
}

/// What it costs to add up slices of k by a second kernel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParallelCosts {
    /// What it takes beside the bytes of the sums, in µs.
    pub start_us: f64,
    /// The bandwidth at which these are written and read, as a multiple of the datasheet's for memory: they stay in the L2.
    pub bandwidth: f64,
}

/// A guess, where it was not fitted.
impl Default for ParallelCosts {
    fn default() -> Self {
        ParallelCosts {
            start_us: 2.6,
            bandwidth: 0.8,
        }
    }
}

/// What the end of a stream-K launch costs, as parts of what a block takes beside its multiplications.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamKCosts {
    /// The fix-up: adding up the pieces of tiles.
    pub finish: f64,
    /// What each piece of a tile adds to that; in 2-CTA clusters, each but the first, by the 128 × 128 outputs of a tile.
    pub piece: f64,
    /// What a block loses between pieces of two tiles.
    pub straddle: f64,
    /// How many times as long the L2 takes to feed blocks whose ranges begin anywhere in k: those that work in step ask for the same lines
    /// at the same time. At least 1.
    pub out_of_step: f64,
}

/// What it costs to repack an operand before the product.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RepackCosts {
    /// Rows that are copied.
    pub copy: MoveCost,
    /// Transpositions of rows that start on 16 bytes and end there, before and after.
    pub transpose: MoveCost,
    /// Other transpositions.
    pub transpose_unaligned: MoveCost,
    /// The part of the bandwidth which is left for elements with gaps between them, each of which is fetched with its sector.
    pub gaps: f64,
    /// What each further access adds to the time of a copy, as a part of it, where rows start off 16 bytes and are copied by smaller pieces.
    #[serde(default)]
    pub access: f64,
}

/// What it costs to copy or transpose an operand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveCost {
    /// What it takes beside its bytes, in µs.
    pub start_us: f64,
    /// The fraction of the datasheet's bandwidth that it reaches; a product that follows finds less of its operands in the L2.
    pub bandwidth: f64,
}

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

impl ClusterCosts {
    /// What a cut across a cluster of so many blocks takes, in µs, and the fraction of the multiprocessors on which there is
    /// room.
    pub fn of(&self, blocks: u32) -> (f64, f64) {
        match blocks {
            0 | 1 => (0.0, 1.0),
            blocks => {
                let at = (blocks as usize - 2).min(self.us.len() - 1);
                (self.us[at], self.room[at])
            }
        }
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
