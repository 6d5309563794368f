//! What the emulator complains about.

use crate::clock::Epoch;
use std::fmt;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The launch itself is not possible.
    Launch,
    /// An access outside of what was allocated.
    OutOfBounds,
    /// An address that is not a multiple of what the access needs.
    Misaligned,
    /// A read of memory that nothing wrote.
    Uninitialised,
    /// A write to memory that is only to be read.
    ReadOnly,
    /// Two accesses to shared memory, one of them a write, that nothing orders.
    SharedRace,
    /// The same in global memory.
    GlobalRace,
    /// An ordinary write that reaches a bulk copy or `wgmma` without a proxy fence.
    ProxyFence,
    /// Registers of a `wgmma` that is under way, or without `wgmma.fence`.
    WgmmaRegisters,
    /// Misuse of a barrier of the block.
    Barrier,
    /// Misuse of an mbarrier.
    Mbarrier,
    /// Bytes announced and bytes copied differ.
    TransactionCount,
    /// Memory used before `griddepcontrol.wait`.
    BeforeGridWait,
    /// Shared memory of a block that may have ended.
    ClusterExit,
    /// All wait.
    Deadlock,
    /// Nothing changes any more.
    Livelock,
    /// Copies that nobody waited for at a thread's end.
    Unfinished,
    /// `trap`
    Trap,
    /// An instruction, or a form of it, that the emulator lacks.
    Unsupported,
}

/// A complaint: what, where, by whom, under which schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub kind: Kind,
    /// In words.
    pub message: String,
    /// Kernel.
    pub entry: String,
    /// Line of the PTX; 0: none.
    pub ptx_line: u32,
    /// Line of the source, where the PTX has it.
    pub source: Option<String>,
    /// Block.
    pub block: [u32; 3],
    /// Thread, if it is one's.
    pub thread: Option<u32>,
    /// The schedule, to be repeated.
    pub schedule: String,
    /// What happened to the barrier or byte that the launch watches.
    pub story: Vec<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}\n  in {}", self.kind, self.message, self.entry)?;
        if self.ptx_line > 0 {
            write!(f, ", PTX line {}", self.ptx_line)?;
        }
        if let Some(source) = &self.source {
            write!(f, ", {source}")?;
        }
        let [x, y, z] = self.block;
        write!(f, "\n  block ({x}, {y}, {z})")?;
        if let Some(thread) = self.thread {
            write!(f, ", thread {thread}")?;
        }
        write!(f, "; schedule {}", self.schedule)?;
        if !self.story.is_empty() {
            write!(f, "\n  the story:\n  {}", self.story.join("\n  "))?;
        }
        Ok(())
    }
}

impl std::error::Error for Finding {}

/// A complaint before it is known where it arose.
#[derive(Debug)]
pub(crate) struct Fault {
    pub kind: Kind,
    pub text: String,
    /// The access that this one conflicts with.
    pub other: Option<Epoch>,
    pub lane: Option<u32>,
}

impl Fault {
    pub(crate) fn new(kind: Kind, text: impl Into<String>) -> Box<Fault> {
        Box::new(Fault {
            kind,
            text: text.into(),
            other: None,
            lane: None,
        })
    }

    pub(crate) fn race(kind: Kind, text: impl Into<String>, other: Epoch) -> Box<Fault> {
        Box::new(Fault {
            kind,
            text: text.into(),
            other: Some(other),
            lane: None,
        })
    }
}

pub(crate) type Check<T> = Result<T, Box<Fault>>;

/// Names the lane that an error belongs to.
pub(crate) fn at_lane<T>(result: Check<T>, lane: u32) -> Check<T> {
    result.map_err(|mut fault| {
        fault.lane = Some(lane);
        fault
    })
}
