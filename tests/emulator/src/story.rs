//! The story of one barrier, or of one byte: who came to it, in order.

use crate::machine::{Machine, Warp};
use std::collections::VecDeque;
use std::fmt::Write;
use std::str::FromStr;

/// What a story is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// A byte, or an mbarrier, of every block's shared memory.
    Shared(u32),
    /// A byte of global memory.
    Global(u64),
    /// A barrier of the block, by its number.
    Barrier(u32),
}

impl FromStr for Watch {
    type Err = String;

    /// `0x38418`: shared memory, as findings name it; from 4 GiB on: global memory; `barrier 1`: a barrier of the block.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let text = text.trim();
        let watch = match text.strip_prefix("barrier") {
            Some(rest) => number(rest.trim())
                .and_then(|id| u32::try_from(id).ok())
                .map(Watch::Barrier),
            None => number(text).map(|address| u32::try_from(address).map_or(Watch::Global(address), Watch::Shared)),
        };
        watch.ok_or_else(|| format!("'{text}' is neither an address, such as 0x38418, nor 'barrier 1'"))
    }
}

/// Something that happened, by lanes of one warp.
struct Event {
    step: u64,
    block: [u32; 3],
    warp: u32,
    lanes: u32,
    pc: u32,
    what: String,
    times: u32,
}

/// The last events; older ones are forgotten.
#[derive(Default)]
pub(crate) struct Story {
    events: VecDeque<Event>,
    forgotten: usize,
}

const MOST_EVENTS: usize = 60;

impl Machine<'_> {
    /// Whether these bytes of shared memory are the watched ones.
    #[inline]
    pub(crate) fn watches_shared(&self, offset: u32, bytes: u32) -> bool {
        matches!(self.launch.watch, Some(Watch::Shared(at)) if at.wrapping_sub(offset) < bytes)
    }

    #[inline]
    pub(crate) fn watches_global(&self, address: u64, bytes: u32) -> bool {
        matches!(self.launch.watch, Some(Watch::Global(at)) if at.wrapping_sub(address) < u64::from(bytes))
    }

    pub(crate) fn watches_barrier(&self, id: u32) -> bool {
        self.launch.watch == Some(Watch::Barrier(id))
    }

    /// Adds to the story what lanes of a warp did at the current instruction to something of the block in `slot`.
    pub(crate) fn tell(&mut self, w: &Warp, slot: usize, lanes: u32, mut what: String) {
        if slot != w.slot {
            let [x, y, z] = self.block_ref(slot).at;
            let _ = write!(what, " of block ({x}, {y}, {z})");
        }
        self.add(w.slot, w.index, lanes, what);
    }

    /// Adds what happened to a block by itself.
    pub(crate) fn happens(&mut self, slot: usize, what: String) {
        self.add(slot, 0, 0, what);
    }

    fn add(&mut self, slot: usize, warp: u32, lanes: u32, what: String) {
        let (block, pc) = (self.block_ref(slot).at, self.pc);
        let step = self.report.warp_instructions;
        if let Some(last) = self.story.events.back_mut() {
            let same = (last.block, last.warp, last.pc) == (block, warp, pc) && last.what == what;
            if same && lanes != 0 {
                last.times += u32::from(last.lanes & lanes != 0);
                last.lanes |= lanes;
                return;
            }
        }
        self.story.events.push_back(Event {
            step,
            block,
            warp,
            lanes,
            pc,
            what,
            times: 1,
        });
        if self.story.events.len() > MOST_EVENTS {
            self.story.events.pop_front();
            self.story.forgotten += 1;
        }
    }

    /// The story so far, a line an event.
    pub(crate) fn story(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.story.forgotten > 0 {
            lines.push(format!("({} earlier events)", self.story.forgotten));
        }
        for event in &self.story.events {
            let [x, y, z] = event.block;
            let mut line = format!("{:>8}  block ({x}, {y}, {z})", event.step);
            if event.lanes != 0 {
                let thread = |lane: u32| event.warp * 32 + lane;
                let (first, last) = (event.lanes.trailing_zeros(), 31 - event.lanes.leading_zeros());
                let _ = match first == last {
                    true => write!(line, ", thread {}", thread(first)),
                    false => write!(
                        line,
                        ", {} threads from {} to {}",
                        event.lanes.count_ones(),
                        thread(first),
                        thread(last)
                    ),
                };
            }
            let _ = write!(line, ": {}", event.what);
            if event.times > 1 {
                let _ = write!(line, ", {} times", event.times);
            }
            if event.lanes != 0 {
                let instr = &self.entry.code[event.pc as usize];
                let _ = write!(line, " (PTX line {}", instr.line);
                if instr.location != 0 {
                    let source = self.module.describe(self.entry.locations[instr.location as usize]);
                    let _ = write!(line, ", {source}");
                }
                line.push(')');
            }
            lines.push(line);
        }
        lines
    }
}
