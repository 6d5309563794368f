//! How the blocks of a launch are kept apart.
//!
//! Nothing tells CUDA to spread blocks over the multiprocessors. Two kinds of launches need it, and ask for so much shared memory that a
//! multiprocessor has room for its even share of blocks, and for no more:
//!
//! - Behind the copy of a repacked operand, which lets the product start at once. A kernel that starts early (PDL) finds the multiprocessors
//!   as the kernel before it leaves them. The first ones that are free take as many blocks as they hold, and the others, still at work, get
//!   none. Few and small blocks pile up that way, and a product takes several times as long.
//! - Clusters that cut k, where all of them are at work at once in any case. A multiprocessor with room for several blocks of a cluster may get
//!   them, while others get none: of 1674 such plans of drawn products on an H200, one in twenty takes at least 5 % less time with blocks
//!   that are kept apart, and some 30 %. Where fewer clusters would then find room than there are, the others begin when these have ended,
//!   and it takes up to 1.8 times as long. So the driver is asked. We require room for one cluster more than the launch has: where there was room for
//!   just as many (39 of six blocks, 30 of eight), the first ones left gaps, and it took up to 1.6 times as long.
//!
//! Other launches ask for what they need: in chains of products on an H200 nothing piled up, and two launches that share a multiprocessor,
//! one ending and one getting ready, need room for both.

use crate::error::Result;
use crate::gemm::kernel::spec::Grid;
use crate::gemm::planner::plan::Plan;
use crate::gemm::schedule::cut::Cut;
use crate::gemm::schedule::parallel::Reduction;

/// Bytes of shared memory that CUDA takes for itself with each block, on every GPU since 8.0. A multiprocessor has as many more than
/// what one block may use.
const RESERVED: u32 = 1024;
/// Shared memory is dealt out in units of so many bytes.
const UNIT: u32 = 128;

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

impl Blocks {
    /// What a multiprocessor has of them if all have as many, or one less.
    fn share(&self, multiprocessors: u32) -> u64 {
        self.count.div_ceil(u64::from(multiprocessors.max(1))).max(1)
    }

    /// The dynamic shared memory with which a multiprocessor holds `share` of these blocks and not one more, of which a block may have
    /// `most` bytes of shared memory; `None` where that is no more than they need.
    fn apart(&self, share: u64, most: u32) -> Option<u32> {
        let all = most.saturating_add(RESERVED);
        let share = u32::try_from(share).ok().filter(|&share| share < all / RESERVED)?;
        // One block more does not fit, and the share does.
        let apart = (all / (share + 1) / UNIT + 1) * UNIT;
        let dynamic = apart.saturating_sub(RESERVED + self.fixed) / UNIT * UNIT + UNIT;
        let fits = share * (RESERVED + self.fixed + dynamic) <= all && self.fixed + dynamic <= most;
        (fits && dynamic > self.needed).then_some(dynamic)
    }

    /// The dynamic shared memory to launch these blocks with on a device of so many multiprocessors, of which a block may have `most` bytes
    /// of shared memory: what they need, or more, such that a multiprocessor holds its share of them and not one block more. Of clusters,
    /// `at_once` tells how many the device holds with so much dynamic shared memory: all have to find room, and one more would.
    fn spread(&self, multiprocessors: u32, most: u32, mut at_once: impl FnMut(u32) -> Result<u32>) -> Result<u32> {
        let mut share = self.share(multiprocessors);
        if self.cluster <= 1 {
            return Ok(self.apart(share, most).unwrap_or(self.needed));
        }
        let clusters = self.count / u64::from(self.cluster);
        if u64::from(at_once(self.needed)?) < clusters {
            return Ok(self.needed);
        }
        // A cluster lives within one group of multiprocessors and leaves some of it over, so the even share may not do.
        while let Some(dynamic) = self.apart(share, most) {
            if u64::from(at_once(dynamic)?) > clusters {
                return Ok(dynamic);
            }
            share += 1;
        }
        Ok(self.needed)
    }
}

impl Plan {
    /// The dynamic shared memory that this plan is launched with, of a kernel that has `fixed` bytes of shared memory as it was compiled.
    /// `at_once` tells how many of its clusters find room with so much.
    ///
    /// # Errors
    ///
    /// Those of `at_once`.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(super) fn shared_bytes(
        &self,
        fixed: u32,
        multiprocessors: u32,
        most: u32,
        at_once: impl FnMut(u32) -> Result<u32>,
    ) -> Result<u32> {
        let stays = match (self.kernel.grid, self.cut) {
            (Grid::Tiles | Grid::Units, _) | (Grid::Persistent, Cut::Cluster(_)) => false,
            (Grid::Persistent | Grid::Clusters(_), _) => true,
        };
        if stays {
            // As many blocks as there is room for.
            return Ok(self.kernel.dynamic_shared);
        }
        let blocks = Blocks {
            count: self.grid.iter().map(|&size| u64::from(size)).product(),
            cluster: self.cluster(),
            fixed,
            needed: self.kernel.dynamic_shared,
        };
        blocks.spread(multiprocessors, most, at_once)
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
        blocks
            .apart(blocks.share(multiprocessors), most)
            .unwrap_or(blocks.needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// Blocks of any kind, of a device with so many multiprocessors, of which a block may have so much shared memory.
    fn draw(rng: &mut StdRng) -> (Blocks, u32, u32) {
        let most = [232_448, 166_912, 101_376][rng.random_range(0..3)];
        let multiprocessors = rng.random_range(1..=160);
        let fixed = rng.random_range(0..4) * rng.random_range(0..12_000);
        let cluster = rng.random_range(1..=8);
        let blocks = Blocks {
            count: rng.random_range(1..=20 * u64::from(multiprocessors)) * u64::from(cluster),
            cluster,
            fixed,
            needed: rng.random_range(0..=most - fixed),
        };
        (blocks, multiprocessors, most)
    }

    /// Blocks of a multiprocessor with so much dynamic shared memory.
    fn holds(blocks: &Blocks, most: u32, dynamic: u32) -> u32 {
        (most + RESERVED) / (RESERVED + blocks.fixed + dynamic).next_multiple_of(UNIT)
    }

    #[test]
    fn a_multiprocessor_holds_its_share_of_the_blocks_and_no_more_where_memory_can_say_so() {
        let mut rng = StdRng::seed_from_u64(7);
        for _ in 0..20_000 {
            let (drawn, multiprocessors, most) = draw(&mut rng);
            let blocks = Blocks { cluster: 1, ..drawn };
            let dynamic = blocks
                .spread(multiprocessors, most, |_| unreachable!("these are no clusters"))
                .unwrap();
            assert!(dynamic >= blocks.needed && dynamic + blocks.fixed <= most, "{blocks:?}");
            let share = blocks.count.div_ceil(u64::from(multiprocessors)) as u32;
            // All that had room at once still has.
            let held = holds(&blocks, most, dynamic);
            assert!(
                held >= share.min(holds(&blocks, most, blocks.needed)),
                "{blocks:?}: {dynamic}"
            );
            if dynamic > blocks.needed {
                assert_eq!(held, share, "{blocks:?}: {dynamic}");
            }
        }
    }

    #[test]
    fn clusters_are_kept_as_far_apart_as_lets_all_of_them_run_at_once() {
        let (mut rng, mut kept_apart) = (StdRng::seed_from_u64(8), 0);
        for _ in 0..20_000 {
            let (drawn, multiprocessors, most) = draw(&mut rng);
            let cluster = drawn.cluster.max(2);
            let blocks = Blocks {
                cluster,
                count: u64::from(rng.random_range(1..=multiprocessors) * cluster),
                ..drawn
            };
            // Clusters live within groups of multiprocessors.
            const GROUP: u32 = 16;
            let at_once = |dynamic: u32| {
                let each = holds(&blocks, most, dynamic);
                let whole = multiprocessors / GROUP * (GROUP * each / blocks.cluster);
                whole + multiprocessors % GROUP * each / blocks.cluster
            };
            let clusters = blocks.count / u64::from(blocks.cluster);
            let dynamic = blocks
                .spread(multiprocessors, most, |dynamic| Ok(at_once(dynamic)))
                .unwrap();
            assert!(dynamic >= blocks.needed && dynamic + blocks.fixed <= most, "{blocks:?}");
            if dynamic == blocks.needed {
                continue;
            }
            kept_apart += 1;
            assert!(
                u64::from(at_once(dynamic)) > clusters,
                "{blocks:?}: {dynamic} may have some begin later"
            );
            let held = u64::from(holds(&blocks, most, dynamic));
            for fewer in blocks.count.div_ceil(u64::from(multiprocessors))..held {
                let more = blocks.apart(fewer, most).expect("fewer blocks leave room for more");
                assert!(
                    u64::from(at_once(more)) <= clusters,
                    "{blocks:?}: {fewer} in place of {held} would do"
                );
            }
        }
        assert!(kept_apart > 1000, "{kept_apart}");
    }

    #[test]
    fn clusters_that_come_in_turns_are_left_alone() {
        let blocks = Blocks {
            count: 400,
            cluster: 4,
            fixed: 0,
            needed: 20_000,
        };
        let asked = std::cell::Cell::new(0);
        let at_once = |_| {
            asked.set(asked.get() + 1);
            Ok(99)
        };
        assert_eq!(blocks.spread(132, 232_448, at_once).unwrap(), 20_000);
        assert_eq!(asked.get(), 1);
    }
}
