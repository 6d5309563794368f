//! A recorded graph as plain data, as far as memory is concerned.

use std::ops::Range;

/// What a node does.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::candle::graph) enum Work {
    /// Runs a kernel of this name with parameters of these bytes.
    Kernel { name: String, parameters: Vec<Vec<u8>> },
    /// Reads or writes memory that begins at these addresses, all of it within what was allocated there.
    Touch(Vec<u64>),
    /// Memory begins to be there.
    Allocate(Range<u64>),
    /// The memory that begins there goes.
    Free(u64),
    /// Anything else: it may read and write whatever there is.
    Unknown,
}

impl Work {
    /// Whether memory at these addresses may be read or written, by what can be seen: any four bytes of a parameter may be the
    /// begin of an address, within structs and tensor maps too.
    fn touches(&self, memory: &Range<u64>) -> bool {
        const ADDRESS: usize = size_of::<u64>();
        const STEP: usize = 4;
        match self {
            Work::Kernel { parameters, .. } => parameters.iter().any(|bytes| {
                let words = bytes.windows(ADDRESS).step_by(STEP);
                let mut words = words.filter_map(|word| word.try_into().ok().map(u64::from_le_bytes));
                words.any(|word| memory.contains(&word))
            }),
            Work::Touch(addresses) => addresses.iter().any(|address| memory.contains(address)),
            Work::Allocate(_) | Work::Free(_) => false,
            Work::Unknown => true,
        }
    }
}

/// A node of a graph in which each one follows one other.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::candle::graph) struct Step {
    pub work: Work,
    /// Whether it begins when all before it is done; else it may be started earlier, and waits by itself.
    pub waits: bool,
}

/// Memory of the graph's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub memory: Range<u64>,
    /// The places of the nodes that allocate and free it, in the chain.
    pub places: Range<usize>,
}

/// A graph whose nodes run one after the other, in this order.
#[derive(Clone, Debug)]
pub(in crate::candle::graph) struct Chain {
    pub steps: Vec<Step>,
    lives: Vec<Life>,
}

impl Chain {
    pub fn new(steps: Vec<Step>) -> Self {
        let mut lives: Vec<Life> = Vec::new();
        for (place, step) in steps.iter().enumerate() {
            match &step.work {
                Work::Allocate(memory) => lives.push(Life {
                    memory: memory.clone(),
                    places: place..usize::MAX,
                }),
                Work::Free(address) => {
                    let mut there = lives.iter_mut().filter(|life| life.places.end == usize::MAX);
                    if let Some(life) = there.find(|life| life.memory.start == *address) {
                        life.places.end = place;
                    }
                }
                _ => (),
            }
        }
        Chain { steps, lives }
    }

    /// The graph's own memory that holds `address` when the node at `place` runs.
    pub(super) fn memory(&self, address: u64, place: usize) -> Option<&Life> {
        let mut there = self.lives.iter().filter(|life| life.places.contains(&place));
        there.find(|life| life.memory.contains(&address))
    }

    /// Whether there was or will be memory of the graph's own at `address`.
    pub(super) fn is_own(&self, address: u64) -> bool {
        self.lives.iter().any(|life| life.memory.contains(&address))
    }

    /// Whether the memory goes within the graph.
    pub(super) fn frees(&self, life: &Life) -> bool {
        life.places.end < self.steps.len()
    }

    /// The places of the nodes that touch the memory while it is there.
    pub(super) fn users<'a>(&'a self, life: &'a Life) -> impl Iterator<Item = usize> + 'a {
        let end = life.places.end.min(self.steps.len());
        (life.places.start..end).filter(|&place| self.steps[place].work.touches(&life.memory))
    }
}
