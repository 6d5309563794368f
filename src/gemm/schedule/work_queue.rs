//! How the kernels for few rows share their work: the arithmetic of `cuda/ffma/ffma_small_m_sm90.cu`.

use crate::gemm::problem::GemmProblem;
use serde::{Deserialize, Serialize};

/// Bytes of the counters that such a kernel finds before its part of the workspace: 0 before and after every launch.
pub const COUNTER_BYTES: usize = 1 << 16;
/// Before the counters lies the one that blocks draw their numbers from: `cuda/scheduler/stream_k.cuh` has the same number.
pub const TICKET_BYTES: usize = 256;
/// Bytes before a workspace, which are 0 before and after every launch: the ticket and the counters.
pub const HEAD_BYTES: usize = TICKET_BYTES + COUNTER_BYTES;
/// Counters, for strips and slices.
pub const COUNTERS: usize = COUNTER_BYTES / size_of::<u32>();

/// Slices longer than this are cut where multiprocessors would have nothing to do: 16 × 768 × 3072 takes 9.8 µs with slices of
/// 768, and 11.1 with slices of 1024.
const WORTH_CUTTING: usize = 1024;

/// k is cut into slices. The blocks of a slice keep their part of A in shared memory, and take strips of the result from a
/// queue, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkQueue {
    /// Slices of k.
    pub slices: u32,
    /// Length of a slice, the last one's at most.
    pub k_slice: u32,
    /// Strips of columns of a matrix of the batch.
    pub strips: u32,
    /// Matrices of the batch.
    pub batch: u32,
    /// Blocks for each slice of each matrix.
    pub members: u32,
}

impl WorkQueue {
    /// For strips of `width` columns and slices of at most `longest`, a multiple of `step`; `None` if there would be more
    /// strips and slices than counters.
    pub fn of(problem: &GemmProblem, width: u32, step: u32, longest: u32, multiprocessors: u32) -> Option<Self> {
        let steps = problem.k.div_ceil(step as usize);
        let strips = problem.n.div_ceil(width as usize);
        let mut slices = steps.div_ceil((longest / step) as usize);
        // Where strips are few, shorter slices give more multiprocessors something to do.
        let few = |slices: usize| problem.batch().saturating_mul(slices * strips) < multiprocessors as usize;
        while few(slices) && steps.div_ceil(slices) * step as usize > WORTH_CUTTING {
            slices *= 2;
        }
        let slice_steps = steps.div_ceil(slices);
        let slices = steps.div_ceil(slice_steps);
        let counters = problem.batch().checked_mul(slices.checked_add(strips)?)?;
        if counters > COUNTERS {
            return None;
        }
        let groups = problem.batch() * slices;
        Some(WorkQueue {
            slices: slices as u32,
            k_slice: slice_steps as u32 * step,
            strips: strips as u32,
            batch: problem.batch() as u32,
            members: (multiprocessors as usize / groups).clamp(1, strips) as u32,
        })
    }

    /// Blocks of the grid.
    pub const fn blocks(&self) -> u32 {
        self.batch * self.slices * self.members
    }

    /// Bytes of the workspace after the counters, for strips of `outputs` elements: the sums of all slices. Never 0, for
    /// there to be a workspace.
    pub const fn workspace_bytes(&self, outputs: usize) -> usize {
        let slices = if self.slices > 1 { self.slices as usize } else { 0 };
        let bytes = self.batch as usize * slices * self.strips as usize * outputs * size_of::<f32>();
        if bytes > 0 {
            bytes
        } else {
            size_of::<f32>()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_k_and_none_is_empty() {
        for k in (1..70_000).step_by(61).chain([256, 2048, 2049, 4096, 14336, 1 << 21]) {
            let queue = WorkQueue::of(&GemmProblem::row_major(16, 100, k), 16, 256, 2048, 132).unwrap();
            let (slices, slice) = (queue.slices as usize, queue.k_slice as usize);
            assert!(slices * slice >= k && (slices - 1) * slice < k, "{k}: {queue:?}");
            assert!(slice <= 2048 && slice.is_multiple_of(256), "{k}: {queue:?}");
        }
    }

    #[test]
    fn every_slice_has_blocks_and_no_block_is_without_a_strip() {
        for (n, k) in [(1, 1), (16, 4096), (4096, 4096), (100, 700_000), (50_000, 14336)] {
            let queue = WorkQueue::of(&GemmProblem::row_major(16, n, k), 16, 256, 2048, 132).unwrap();
            assert!(queue.members >= 1 && queue.members <= queue.strips, "{queue:?}");
            assert!(queue.blocks() <= 132.max(queue.slices), "{queue:?}");
        }
    }

    #[test]
    fn more_strips_than_counters_are_refused() {
        assert!(WorkQueue::of(&GemmProblem::row_major(16, 16 * 16_384, 64), 16, 256, 2048, 132).is_none());
        assert!(WorkQueue::of(&GemmProblem::row_major(16, 16 * 16_383, 64), 16, 256, 2048, 132).is_some());
    }
}
