//! The ways to cut k.

use super::stream_k::StreamK;
use super::work_queue::WorkQueue;
use serde::{Deserialize, Serialize};

/// How a plan cuts k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cut {
    /// Not at all.
    Whole,
    /// Into so many slices, one a block of a cluster.
    Cluster(u32),
    /// Into so many slices, each of which is computed like a matrix of a batch; a second kernel adds them up:
    /// [`parallel`](super::parallel).
    Parallel(u32),
    /// Into ranges of equal length, one a block.
    StreamK(StreamK),
    /// Into slices whose strips the blocks take from a queue.
    WorkQueue(WorkQueue),
}

impl Cut {
    /// Slices of k that are summed apart and then added in a fixed order; 1: none.
    pub const fn slices(self) -> u32 {
        match self {
            Cut::Whole | Cut::StreamK(_) => 1,
            Cut::Cluster(slices) | Cut::Parallel(slices) => slices,
            Cut::WorkQueue(queue) => queue.slices,
        }
    }

    /// Whether blocks count in what lies before the workspace, which is 0 before and after such a launch.
    pub const fn counts(self) -> bool {
        matches!(self, Cut::WorkQueue(_) | Cut::StreamK(_))
    }

    /// Length of a slice of `k`, in portions of `bk` unless there is one slice only.
    pub const fn k_slice(self, k: u32, bk: u32) -> u32 {
        match self.slices() {
            1 => k,
            slices => k.div_ceil(bk).div_ceil(slices) * bk,
        }
    }
}
