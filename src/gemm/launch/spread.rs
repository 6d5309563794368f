//! How the blocks of a launch are kept apart.
//!
//! A kernel that starts early (PDL) finds the multiprocessors as the kernel before it leaves them. The first ones that are free take
//! as many blocks as they hold, and the others, still at work, get none. Behind the copy of a repacked operand, which lets the product
//! start at once, few and small blocks pile up that way, and a product takes several times as long. Nothing tells CUDA to spread blocks. So such a launch asks for as much shared memory as leaves room for its even share of
//! blocks on a multiprocessor, and for no more.
//!
//! Other launches ask for what they need: in chains of products on an H200 nothing piled up, and two launches that share a multiprocessor,
//! one ending and one getting ready, need room for both.

use crate::gemm::kernel::spec::Grid;
use crate::gemm::planner::plan::Plan;
use crate::gemm::schedule::parallel::Reduction;

/// Bytes of shared memory that CUDA takes for itself with each block, on every GPU since 8.0. A multiprocessor has as many more than
/// what one block may use.
const RESERVED: u32 = 1024;
/// Shared memory is dealt out in units of so many bytes.
const UNIT: u32 = 128;
/// The part of the multiprocessors on which clusters of any size find room, at least: a cluster lives within one group of
/// multiprocessors, and what it leaves over of one stays empty.
const ROOM_FOR_CLUSTERS: f64 = 0.75;

/// What the shared memory of a launch depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Blocks of the grid.
    pub count: u64,
    /// Blocks of a cluster.
    pub cluster: u32,
    /// Bytes of shared memory that a block has as it was compiled.
    pub fixed: u32,
    /// Bytes of dynamic shared memory that it needs.
    pub needed: u32,
}

/// The dynamic shared memory to launch these blocks with on a device of so many multiprocessors, of which a block may have
/// `most` bytes of shared memory: what they need, or more, such that a multiprocessor holds its share of them and not one block more.
pub fn spread(blocks: Blocks, multiprocessors: u32, most: u32) -> u32 {
    let usable = match blocks.cluster {
        0 | 1 => f64::from(multiprocessors),
        _ => f64::from(multiprocessors) * ROOM_FOR_CLUSTERS,
    };
    let share = (blocks.count as f64 / usable.max(1.0)).ceil().max(1.0);
    let all = most.saturating_add(RESERVED);
    if share >= f64::from(all / RESERVED) {
        return blocks.needed;
    }
    let share = share as u32;
    // One block more does not fit, and the share does.
    let apart = (all / (share + 1) / UNIT + 1) * UNIT;
    let dynamic = apart.saturating_sub(RESERVED + blocks.fixed) / UNIT * UNIT + UNIT;
    let fits = share * (RESERVED + blocks.fixed + dynamic) <= all && blocks.fixed + dynamic <= most;
    if fits {
        dynamic.max(blocks.needed)
    } else {
        blocks.needed
    }
}

impl Plan {
    /// The dynamic shared memory that this plan is launched with, of a kernel that has `fixed` bytes of shared memory as it was compiled.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(super) fn shared_bytes(&self, fixed: u32, multiprocessors: u32, most: u32) -> u32 {
        match self.kernel.grid {
            Grid::Tiles | Grid::Units => spread(
                Blocks {
                    count: self.grid.iter().map(|&size| u64::from(size)).product(),
                    cluster: self.cluster(),
                    fixed,
                    needed: self.kernel.dynamic_shared,
                },
                multiprocessors,
                most,
            ),
            // As many blocks as there is room for.
            Grid::Persistent | Grid::Clusters(_) => self.kernel.dynamic_shared,
        }
    }
}

impl Reduction {
    /// The same of the kernel that adds up slices: it may start while the last blocks that compute them still run.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(super) fn shared_bytes(&self, fixed: u32, multiprocessors: u32, most: u32) -> u32 {
        let blocks = Blocks {
            count: self.blocks.into(),
            cluster: 1,
            fixed,
            needed: 0,
        };
        spread(blocks, multiprocessors, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn a_multiprocessor_holds_its_share_of_the_blocks_and_no_more_where_memory_can_say_so() {
        let mut rng = StdRng::seed_from_u64(7);
        for _ in 0..20_000 {
            let most = [232_448, 166_912, 101_376][rng.random_range(0..3)];
            let multiprocessors = rng.random_range(1..=160);
            let fixed = rng.random_range(0..4) * rng.random_range(0..12_000);
            let blocks = Blocks {
                count: rng.random_range(1..=20 * u64::from(multiprocessors)),
                cluster: rng.random_range(1..=8),
                fixed,
                needed: rng.random_range(0..=most - fixed),
            };
            let dynamic = spread(blocks, multiprocessors, most);
            let all = most + RESERVED;
            let holds = |dynamic: u32| all / (RESERVED + fixed + dynamic).next_multiple_of(UNIT);
            assert!(dynamic >= blocks.needed && dynamic + fixed <= most, "{blocks:?}");
            let share = blocks.count.div_ceil(u64::from(multiprocessors)) as u32;
            // All that had room at once still has.
            assert!(
                holds(dynamic) >= share.min(holds(blocks.needed)),
                "{blocks:?}: {dynamic}"
            );
            if blocks.cluster == 1 && share < holds(blocks.needed) && dynamic > blocks.needed {
                assert_eq!(holds(dynamic), share, "{blocks:?}: {dynamic}");
            }
        }
    }
}
