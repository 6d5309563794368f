//! What a plan has to know of a GPU, and, with the feature `cuda`, the GPU that a thread works on.

use serde::{Deserialize, Serialize};

/// A GPU as the planner sees it: plain data, so that plans for any card can be made and tested on any machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Compute capability as two digits or three: 80, 86, 89, 90, 100, 120.
    pub compute_capability: u32,
    /// The compute capability that the code which runs there was compiled for. Where a build has no machine code for a newer
    /// device, the driver compiles its PTX, which may be of an older one: then blocks form no clusters, and no kernel waits for
    /// those before it, so none may be started early. 0: the build has nothing that runs there.
    pub code_capability: u32,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Bytes of shared memory that one block may use after opting in.
    pub shared_per_block: u32,
    /// Bytes of the L2 cache.
    pub l2_bytes: u64,
    /// Peak clock of the multiprocessors in MHz.
    pub clock_mhz: u32,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Device memory bandwidth in GB/s.
    pub memory_gbps: f32,
    /// Clusters that the device holds at once; 0: not known. `clusters[b − 1][s − 2]` is for clusters of `s` blocks (2 to 8) where a
    /// multiprocessor holds `b` of their blocks (1 to 4).
    /// A cluster lives within one group of multiprocessors, and how many of a group work may differ from card to card.
    #[serde(default)]
    pub clusters: [[u16; CLUSTER_SIZES]; BLOCKS_BESIDE],
}

/// Sizes of clusters that are considered: 2 to 8 blocks.
pub const CLUSTER_SIZES: usize = 7;

/// Blocks of a multiprocessor up to which room for clusters is known.
pub const BLOCKS_BESIDE: usize = 4;

/// Bytes of the widest access of a thread to memory: more alignment than this brings nothing.
pub(crate) const VECTOR_BYTES: usize = 16;

/// Scratch memory may take this fraction (1/32) of a device's memory, and at least so many bytes on any device. A repacked vocabulary of
/// 250002 × 1536 takes 1.5 GB.
const SCRATCH_PART: u64 = 32;
const LEAST_SCRATCH_BYTES: u64 = 256 << 20;

/// The first compute capability with clusters and early starts.
const HOPPER: u32 = 90;

/// Bytes of shared memory that a block of any GPU may use without opting in to more.
const SHARED_WITHOUT_OPTING_IN: u32 = 48 << 10;

/// What a driver says of a GPU: 0 where it does not know, as drivers of virtual GPUs do not know clocks, and those of GPUs
/// that share the host's memory do not know its clock and width. Public for tests.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reported {
    /// Compute capability as two digits or three.
    pub compute_capability: u32,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Bytes of shared memory that one block may use after opting in.
    pub shared_per_block: u32,
    /// Bytes of the L2 cache.
    pub l2_bytes: u32,
    /// Peak clock of the multiprocessors in kHz.
    pub clock_khz: u32,
    /// Clock of the memory in kHz.
    pub memory_khz: u32,
    /// Width of the memory's bus in bits.
    pub bus_bits: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

/// What GPUs of one generation have in common, and what one of them has where the driver does not say. Public for tests.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generation {
    /// FP32 multiply-add lanes of a multiprocessor.
    pub fp32_lanes: u32,
    /// Operations on TF32 numbers that a multiprocessor does in a clock.
    pub tf32_flops_per_clock: u32,
    /// A usual peak clock in MHz.
    pub clock_mhz: u32,
    /// A usual memory bandwidth in GB/s.
    pub memory_gbps: f32,
}

impl Generation {
    /// The generation of a compute capability; of one that is newer than all of these, the newest.
    ///
    /// Lanes are those of the CUDA C++ Programming Guide. TF32 rates are the datasheets' peaks without sparsity, divided by
    /// clock and multiprocessors; for 8.7 and 11.0, whose datasheets name other types only, a quarter of the rate of 8-bit
    /// numbers.
    pub const fn of(compute_capability: u32) -> Self {
        let (fp32_lanes, tf32_flops_per_clock, clock_mhz, memory_gbps) = match compute_capability {
            0..=80 => (64, 1024, 1410, 2039.0),     // A100
            81..=86 => (128, 256, 1695, 760.0),     // GeForce RTX 30
            87 => (128, 1024, 1300, 204.8),         // Jetson Orin
            88..=89 => (128, 256, 2520, 1008.0),    // GeForce RTX 40
            90..=99 => (128, 2048, 1980, 3350.0),   // H100
            100..=109 => (128, 4096, 1965, 7700.0), // B200, B300
            110..=119 => (128, 4096, 1575, 273.0),  // Jetson Thor
            121 => (128, 256, 2418, 273.0),         // GB10
            _ => (128, 256, 2407, 1792.0),          // GeForce RTX 50
        };
        Generation {
            fp32_lanes,
            tf32_flops_per_clock,
            clock_mhz,
            memory_gbps,
        }
    }
}

impl DeviceInfo {
    /// NVIDIA H100 80GB HBM3 (SXM).
    pub const H100: DeviceInfo = DeviceInfo {
        compute_capability: 90,
        code_capability: 90,
        sm_count: 132,
        shared_per_block: 232_448,
        l2_bytes: 50 << 20,
        clock_mhz: 1980,
        memory_bytes: 80 << 30,
        memory_gbps: 3350.0,
        clusters: [[0; CLUSTER_SIZES]; BLOCKS_BESIDE],
    };

    /// NVIDIA H200 (SXM): an H100 with faster memory, and more of it.
    pub const H200: DeviceInfo = DeviceInfo {
        memory_bytes: 140 << 30,
        memory_gbps: 4800.0,
        ..DeviceInfo::H100
    };

    /// NVIDIA A100 80GB (SXM).
    pub const A100: DeviceInfo = DeviceInfo {
        compute_capability: 80,
        code_capability: 80,
        sm_count: 108,
        shared_per_block: 166_912,
        l2_bytes: 40 << 20,
        clock_mhz: 1410,
        memory_bytes: 80 << 30,
        memory_gbps: 2039.0,
        clusters: [[0; CLUSTER_SIZES]; BLOCKS_BESIDE],
    };

    /// NVIDIA GeForce RTX 4090.
    pub const RTX_4090: DeviceInfo = DeviceInfo {
        compute_capability: 89,
        code_capability: 89,
        sm_count: 128,
        shared_per_block: 101_376,
        l2_bytes: 72 << 20,
        clock_mhz: 2520,
        memory_bytes: 24 << 30,
        memory_gbps: 1008.0,
        clusters: [[0; CLUSTER_SIZES]; BLOCKS_BESIDE],
    };

    /// NVIDIA GeForce RTX 5090.
    pub const RTX_5090: DeviceInfo = DeviceInfo {
        compute_capability: 120,
        code_capability: 120,
        sm_count: 170,
        shared_per_block: 101_376,
        l2_bytes: 96 << 20,
        clock_mhz: 2407,
        memory_bytes: 32 << 30,
        memory_gbps: 1792.0,
        clusters: [[0; CLUSTER_SIZES]; BLOCKS_BESIDE],
    };

    /// Blocks in clusters of so many that find room where a multiprocessor holds one, two, … of them, as parts of those that would without
    /// clusters; `None` where that is not known.
    pub(crate) fn room_for_clusters(&self, blocks: u32) -> Option<[f64; BLOCKS_BESIDE]> {
        let at = (blocks as usize).checked_sub(2).filter(|&at| at < CLUSTER_SIZES)?;
        let mut room = [0.0; BLOCKS_BESIDE];
        for ((beside, room), clusters) in (1..).zip(&mut room).zip(&self.clusters) {
            let held = u32::from(clusters[at]) * blocks;
            *room = (f64::from(held) / f64::from(beside * self.sm_count.max(1))).min(1.0);
        }
        room.iter().all(|&room| room > 0.0).then_some(room)
    }

    /// Whether blocks can form clusters: from compute capability 9.0 on.
    pub const fn has_clusters(&self) -> bool {
        self.code_capability >= HOPPER
    }

    /// Whether a kernel can be started before those before it on the stream have ended, and waits for them itself: from
    /// compute capability 9.0 on.
    pub const fn has_early_starts(&self) -> bool {
        self.code_capability >= HOPPER
    }

    /// The most scratch memory that one launch asks for, in bytes, and what is kept of it from launch to launch: to get so much anew
    /// takes longer than to fill it.
    pub const fn scratch_bytes(&self) -> u64 {
        let part = self.memory_bytes / SCRATCH_PART;
        if part > LEAST_SCRATCH_BYTES {
            part
        } else {
            LEAST_SCRATCH_BYTES
        }
    }

    /// Whether machine code for this compute capability alone, as `_sm90` files have, runs here: the device has it, and the build's code for
    /// the device is not PTX of another.
    pub(crate) const fn runs_code_for_only(&self, capability: u32) -> bool {
        self.compute_capability == capability && self.code_capability == capability
    }

    /// What the device has and runs, for a reason why a kernel is out.
    pub(crate) fn runs(&self) -> String {
        let has = self.compute_capability;
        match self.code_capability {
            0 => format!("this build has no code for the device, which has {has}"),
            code if code == has => format!("the device has {has}"),
            code => format!("the device, which has {has}, runs code of this build that was compiled for {code}"),
        }
    }

    /// What a driver says of a GPU, with the figures of its [`Generation`] in place of those that the driver does not know:
    /// without a clock or a bandwidth every kernel would seem to take for ever, and none would be the fastest.
    pub fn from_reported(reported: &Reported) -> Self {
        let usual = Generation::of(reported.compute_capability);
        let or = |value: u32, otherwise: u32| if value == 0 { otherwise } else { value };
        // Two transfers a clock; kHz × bits / 8 bytes is in kB/s.
        let memory_gbps = 2.0 * reported.memory_khz as f32 * reported.bus_bits as f32 / 8.0 * 1e-6;
        DeviceInfo {
            compute_capability: reported.compute_capability,
            code_capability: reported.compute_capability,
            sm_count: reported.sm_count.max(1),
            shared_per_block: or(reported.shared_per_block, SHARED_WITHOUT_OPTING_IN),
            l2_bytes: reported.l2_bytes as u64,
            clock_mhz: or(reported.clock_khz / 1000, usual.clock_mhz),
            memory_bytes: reported.memory_bytes,
            memory_gbps: if memory_gbps > 0.0 {
                memory_gbps
            } else {
                usual.memory_gbps
            },
            clusters: [[0; CLUSTER_SIZES]; BLOCKS_BESIDE],
        }
    }

    /// FP32 multiply-add lanes of a multiprocessor.
    pub const fn fp32_lanes(&self) -> u32 {
        Generation::of(self.compute_capability).fp32_lanes
    }

    /// Operations on TF32 numbers that a multiprocessor's tensor cores do in a clock: a multiplication and an addition
    /// count as two.
    pub const fn tf32_flops_per_clock(&self) -> u32 {
        Generation::of(self.compute_capability).tf32_flops_per_clock
    }

    /// The rate of FP32 multiply-adds alone, in TFLOP/s: clock × lanes × 2.
    pub fn fp32_peak_tflops(&self) -> f64 {
        2.0 * self.clock_mhz as f64 * self.sm_count as f64 * self.fp32_lanes() as f64 * 1e-6
    }
}

#[cfg(feature = "cuda")]
mod capture;
#[cfg(feature = "cuda")]
mod context;
#[cfg(feature = "cuda")]
mod function;
#[cfg(feature = "cuda")]
mod scratch;

#[cfg(feature = "cuda")]
pub(crate) use capture::{capture_of, driver_function, Lane, RelaxedCapture, CAPTURES};
#[cfg(feature = "cuda")]
pub(crate) use function::{clusters_of, early_start, early_starts};
#[cfg(feature = "cuda")]
pub(crate) use scratch::Scratch;
// Public for tests and benches.
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use {context::CurrentContext, function::Function};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::kernel::costs::Costs;
    use crate::gemm::kernel::spec::Arithmetic;
    use crate::gemm::TABLE;
    use crate::gemm::{explain, GemmProblem, Plan, Precision};

    /// As the driver of such a GPU would describe it.
    fn reported(compute_capability: u32) -> Reported {
        Reported {
            compute_capability,
            sm_count: 48,
            shared_per_block: 101_376,
            l2_bytes: 24 << 20,
            clock_khz: 2_000_000,
            memory_khz: 4_000_000,
            bus_bits: 256,
            memory_bytes: 16 << 30,
        }
    }

    #[test]
    fn what_the_driver_says_counts() {
        let info = DeviceInfo::from_reported(&reported(89));
        assert_eq!((info.sm_count, info.clock_mhz), (48, 2000));
        assert_eq!((info.shared_per_block, info.l2_bytes), (101_376, 24 << 20));
        assert_eq!(info.memory_gbps, 256.0);
        assert_eq!((info.memory_bytes, info.scratch_bytes()), (16 << 30, 512 << 20));
    }

    #[test]
    fn small_and_unknown_memories_have_some_room_for_scratch() {
        let of = |memory_bytes| DeviceInfo {
            memory_bytes,
            ..DeviceInfo::H200
        };
        for memory_bytes in [0, 1, 4 << 30] {
            assert_eq!(of(memory_bytes).scratch_bytes(), LEAST_SCRATCH_BYTES);
        }
        assert!(DeviceInfo::H200.scratch_bytes() > 4 << 30);
    }

    #[test]
    fn planning_survives_a_driver_that_knows_no_clocks() {
        for compute_capability in [80, 86, 87, 89, 90, 100, 103, 110, 120, 121, 130] {
            let usual = Generation::of(compute_capability);
            for missing in 1..16u32 {
                let keep = |bit: u32, value: u32| if missing >> bit & 1 == 1 { 0 } else { value };
                let full = reported(compute_capability);
                let info = DeviceInfo::from_reported(&Reported {
                    clock_khz: keep(0, full.clock_khz),
                    memory_khz: keep(1, full.memory_khz),
                    bus_bits: keep(2, full.bus_bits),
                    sm_count: keep(3, full.sm_count),
                    ..full
                });
                if missing & 1 != 0 {
                    assert_eq!(info.clock_mhz, usual.clock_mhz);
                }
                if missing & 0b110 != 0 {
                    assert_eq!(info.memory_gbps, usual.memory_gbps);
                }
                for precision in Precision::ALL {
                    let mut problem = GemmProblem::row_major(1024, 1024, 1024);
                    problem.precision = precision;
                    let plan = Plan::new(&problem, &info, Costs::built_in(&info)).unwrap();
                    assert!(plan.predicted_us.is_finite(), "{info:?}: {plan}");
                    let tile = plan.kernel.tile;
                    assert!(tile.bm * tile.bn >= 64 * 64, "{info:?}: {plan}");
                }
            }
        }
    }

    #[test]
    fn capabilities_between_the_listed_ones_have_the_rates_of_their_generation() {
        let rates = |capability: u32| {
            let info = DeviceInfo::from_reported(&reported(capability));
            (info.fp32_lanes(), info.tf32_flops_per_clock())
        };
        assert_eq!(rates(80), (64, 1024));
        assert_eq!(rates(87), (128, 1024));
        assert_eq!(rates(103), rates(100));
        assert_eq!(rates(110), (128, 4096));
        assert_eq!(rates(121), rates(120));
        for device in [
            DeviceInfo::A100,
            DeviceInfo::H100,
            DeviceInfo::RTX_4090,
            DeviceInfo::RTX_5090,
        ] {
            let usual = Generation::of(device.compute_capability);
            assert_eq!(
                (usual.clock_mhz, usual.memory_gbps),
                (device.clock_mhz, device.memory_gbps)
            );
        }
        // Tensor cores that do 256 operations a clock are as fast as the FP32 lanes at best; from 1024 on they are faster.
        for (capability, arithmetic) in [
            (87, Arithmetic::Tf32),
            (103, Arithmetic::Tf32),
            (110, Arithmetic::Tf32),
            (121, Arithmetic::Ffma),
        ] {
            let mut problem = GemmProblem::row_major(4096, 4096, 4096);
            problem.precision = Precision::Tf32;
            let device = DeviceInfo::from_reported(&reported(capability));
            let explained = explain(&problem, &device, Costs::built_in(&device));
            let choice = explained.choice.as_ref().unwrap();
            assert_eq!(choice.kernel.arithmetic, arithmetic, "{capability}: {explained}");
            let text = explained.to_string();
            assert!(TABLE.iter().all(|spec| text.contains(spec.name)), "{text}");
            assert!(!text.contains("inf"), "{capability}: {text}");
        }
    }

    #[test]
    fn clusters_and_early_starts_come_with_the_code_not_with_the_device() {
        let from_ptx = DeviceInfo {
            code_capability: 80,
            ..DeviceInfo::H100
        };
        assert!(DeviceInfo::H100.has_clusters() && DeviceInfo::H100.has_early_starts());
        assert!(!from_ptx.has_clusters() && !from_ptx.has_early_starts());
        assert!(from_ptx.runs().contains("compiled for 80"), "{}", from_ptx.runs());
    }
}
