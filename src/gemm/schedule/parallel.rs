//! Split-K with a parallel reduction: slices of k are computed like matrices of a batch, and a second kernel adds them up. The
//! arithmetic of `cuda/split_k/add_slices.cu`, which says how.

use crate::gemm::operands::DType;
use crate::gemm::problem::{GemmProblem, MAX_OVERSHOOT};

/// The source of the kernels that add slices up: `cuda/FILE.cu`.
pub const FILE: &str = "split_k/add_slices";
/// The kernels: for products of FP32, of `f16` and of `bf16`.
pub const NAMES: [&str; 3] = ["add_slices_f32", "add_slices_f16", "add_slices_bf16"];

/// Outputs of a thread, which are neighbours of a row.
const VECTOR: usize = 4;
/// Threads of a block.
pub const THREADS: usize = 256;
/// Slices that a thread has under way.
pub const AHEAD: usize = 8;
/// Groups of threads that share the slices, at most.
pub const MOST_GROUPS: usize = 8;

/// Portions of k of the shortest slice that may pay.
const LEAST_STEPS: usize = 4;
/// Blocks for each multiprocessor that slices are to make up for: waves, or blocks beside each other.
const FILLS: [usize; 3] = [1, 2, 4];
/// Waves at most.
const WAVES: usize = 2;
/// Bytes of sums that stay in the L2 of a large GPU, and that a stream keeps from launch to launch.
const MOST_BYTES: usize = 32 << 20;

/// The second kernel: what its launch needs but the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reduction {
    /// The symbol of its function, of [`FILE`].
    pub name: &'static str,
    /// Blocks, along x.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
}

/// Elements between rows of sums: whole vectors.
pub const fn pitch(n: usize) -> usize {
    n.next_multiple_of(VECTOR)
}

/// Bytes of the sums of all slices.
pub const fn workspace_bytes(problem: &GemmProblem, slices: u32) -> usize {
    let sums = problem.m.saturating_mul(pitch(problem.n));
    sums.saturating_mul(slices as usize * size_of::<f32>())
}

/// The numbers of slices that may pay for `units` tiles with portions of `bk` of k on so many multiprocessors, of which each holds so
/// many blocks at once: they fill those with up to two waves, and none of them is empty or short.
pub fn ways(
    problem: &GemmProblem,
    units: usize,
    bk: u32,
    multiprocessors: u32,
    at_once: u32,
) -> impl Iterator<Item = u32> {
    let steps = problem.k.div_ceil(bk as usize);
    let most = (steps / LEAST_STEPS).min(MAX_OVERSHOOT / bk.max(1) as usize);
    let one = problem.batch() == 1;
    let mut last = 1;
    let problem = *problem;
    let fills = FILLS.into_iter().filter(move |&fill| fill <= WAVES * at_once as usize);
    fills.filter_map(move |fill| {
        let slices = (fill * multiprocessors as usize / units.max(1)).min(most);
        if !one || slices < 2 {
            return None;
        }
        let slices = steps.div_ceil(steps.div_ceil(slices)) as u32;
        let new = slices > last && workspace_bytes(&problem, slices) <= MOST_BYTES;
        last = last.max(slices);
        new.then_some(slices)
    })
}

/// Groups of threads that share so many slices.
const fn groups(slices: u32) -> usize {
    let mut groups = 1;
    while groups < MOST_GROUPS && slices as usize > groups * AHEAD {
        groups *= 2;
    }
    groups
}

/// How often a thread of the second kernel asks for slices and waits until they are there.
pub const fn rounds(slices: u32) -> u32 {
    (slices as usize).div_ceil(groups(slices) * AHEAD) as u32
}

impl Reduction {
    /// The kernel that adds up so many slices.
    pub fn of(problem: &GemmProblem, slices: u32) -> Self {
        let groups = groups(slices);
        let vectors = problem.m * (pitch(problem.n) / VECTOR);
        Reduction {
            name: match problem.dtype() {
                DType::F16 => NAMES[1],
                DType::BF16 => NAMES[2],
                _ => NAMES[0],
            },
            blocks: vectors.div_ceil(THREADS / groups) as u32,
            threads: THREADS as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn slices_fill_the_multiprocessors_and_none_is_empty_or_short() {
        let (mut rng, mut count) = (StdRng::seed_from_u64(1), 0);
        for _ in 0..20_000 {
            let mut size = |most: u32| 1usize << rng.random_range(0..most);
            let (m, n, k) = (size(14), size(14), size(24));
            let k = k + rng.random_range(0..k);
            let problem = GemmProblem::row_major(m, n, k);
            let (bk, sms) = (16 << rng.random_range(0..6), rng.random_range(1..200));
            let units = m.div_ceil(64) * n.div_ceil(64);
            let at_once = rng.random_range(1..5);
            let ways: Vec<u32> = ways(&problem, units, bk, sms, at_once).collect();
            assert!(ways.is_sorted_by(|x, y| x < y), "{ways:?}");
            for slices in ways {
                let steps = k.div_ceil(bk as usize);
                let each = steps.div_ceil(slices as usize);
                assert!(slices >= 2 && each >= LEAST_STEPS, "{problem:?}: {slices}");
                assert!(each * (slices as usize - 1) < steps, "{problem:?}: {slices}");
                let most = (2 * at_once * sms) as usize;
                assert!(units * slices as usize <= most, "{problem:?}: {slices}");
                assert!(workspace_bytes(&problem, slices) <= MOST_BYTES, "{problem:?}: {slices}");
                assert!(k + slices as usize * bk as usize <= k + MAX_OVERSHOOT);
                count += 1;
            }
        }
        assert!(count > 1000, "{count}");
    }

    #[test]
    fn slices_that_all_groups_have_under_way_at_once_take_one_round() {
        let mut rng = StdRng::seed_from_u64(2);
        let at_once = (AHEAD * MOST_GROUPS) as u32;
        for _ in 0..2000 {
            let slices = rng.random_range(1..=10_000);
            let rounds = rounds(slices);
            // The group with most slices has them in so many turns of AHEAD.
            let groups = (slices as usize).div_ceil(AHEAD).next_power_of_two().min(MOST_GROUPS);
            assert_eq!(
                rounds as usize,
                (slices as usize).div_ceil(groups).div_ceil(AHEAD),
                "{slices}"
            );
            assert_eq!(rounds == 1, slices <= at_once, "{slices}");
        }
    }

    #[test]
    fn every_output_has_a_thread() {
        for (m, n, slices) in [
            (1, 1, 2_usize),
            (131, 128, 33),
            (7, 45, 9),
            (2304, 21, 64),
            (5000, 3, 528),
        ] {
            let problem = GemmProblem::row_major(m, n, 4096);
            let reduction = Reduction::of(&problem, slices as u32);
            let groups = slices.div_ceil(AHEAD).next_power_of_two().min(MOST_GROUPS);
            let outputs = reduction.blocks as usize * THREADS / groups * VECTOR;
            let all = m * pitch(n);
            assert!(
                outputs >= all && outputs < all + THREADS * VECTOR,
                "{m} × {n}, {slices}: {reduction:?}"
            );
        }
    }
}
