//! The ways to cut k.

use super::stream_k::StreamK;
use super::work_queue::WorkQueue;

/// How a plan cuts k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Not at all.
    Whole,
    /// Into so many slices, one a block of a cluster.
    Cluster(u32),
    /// Into ranges of equal length, one a block.
    StreamK(StreamK),
    /// Into slices whose strips the blocks take from a queue.
    WorkQueue(WorkQueue),
}
