//! What is remembered of each piece of memory: who wrote it last, and who has read it since.

use crate::clock::{Clock, Epoch};
use crate::finding::{Check, Fault, Kind};

/// What one thread (or a copy on its behalf) knows at the moment of an access.
pub(crate) struct View<'a> {
    pub clock: &'a Clock,
    /// What ordinary writes bulk copies and `wgmma` of this thread can rely on.
    pub proxy: &'a Clock,
    pub block: u32,
    /// The thread's own component.
    pub thread: u32,
    /// The first component of its warp.
    pub warp: u32,
    /// For each lane of the warp the last time whose reads of global memory what this one has been given by `shfl` is made of.
    pub given: &'a [u32; 32],
    /// Its `cp.async` component, and the groups that it has waited for.
    pub copies: (u32, u32),
    /// The warp's `wgmma` component, likewise.
    pub wgmma: (u32, u32),
}

impl View<'_> {
    pub(crate) fn knows(&self, epoch: Epoch) -> bool {
        if !epoch.is_real() {
            return true;
        }
        if epoch.block() == self.block {
            let component = epoch.component();
            if component == self.thread {
                return true;
            }
            // It may have waited for its own copies, or for a barrier that waits for them.
            if component == self.copies.0 && epoch.time() <= self.copies.1 {
                return true;
            }
            if component == self.wgmma.0 {
                return epoch.time() <= self.wgmma.1;
            }
        }
        self.clock.knows(epoch)
    }

    /// Whether a read of global memory by another lane came before, because this one has been given something since, which may be made of it.
    fn made_of(&self, read: Epoch) -> bool {
        let lane = read.component().wrapping_sub(self.warp) as usize;
        read.block() == self.block && self.given.get(lane).is_some_and(|&given| read.time() <= given)
    }
}

/// Who accesses, and how.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    /// The component and time that the access belongs to.
    pub epoch: Epoch,
    /// By a bulk copy or `wgmma`.
    pub proxy: bool,
    /// Atomic, or a flag.
    pub strong: bool,
    /// An atomic's read and write.
    pub rmw: bool,
}

/// Reads by neighbouring components at one time.
#[derive(Clone, Copy, Default)]
struct Read {
    /// The first component.
    epoch: Epoch,
    mask: u32,
    strong: bool,
}

/// The history of one piece of memory.
#[derive(Clone, Default)]
pub(crate) struct Cell {
    write: Epoch,
    by_proxy: bool,
    strong: bool,
    rmw: bool,
    /// What lies here is made of memory that nothing wrote.
    undefined: bool,
    first: Read,
    // A cell is small where few read it: most have no list.
    #[allow(clippy::box_collection)]
    more: Option<Box<Vec<Read>>>,
}

impl Cell {
    /// Whether a read finds something that was written.
    pub(crate) fn is_defined(&self) -> bool {
        self.write != Epoch::NEVER && !self.undefined
    }

    pub(crate) fn set_defined(&mut self, defined: bool) {
        self.undefined = !defined;
    }

    pub(crate) fn before_launch(&mut self, written: bool) {
        *self = Cell {
            write: if written { Epoch::BEFORE } else { Epoch::NEVER },
            ..Cell::default()
        };
    }

    /// The last write, if whoever looks does not know of it.
    pub(crate) fn unknown_write(&self, view: &View) -> Option<Epoch> {
        (self.write.is_real() && !view.knows(self.write)).then_some(self.write)
    }

    fn reads(&self) -> impl Iterator<Item = &Read> {
        let first = (self.first.mask != 0).then_some(&self.first);
        first.into_iter().chain(self.more.iter().flat_map(|more| more.iter()))
    }

    /// The last write is known to whoever accesses.
    #[inline]
    fn check_order(&self, view: &View, access: Access, race: Kind, what: &str) -> Check<()> {
        let write = self.write;
        if !write.is_real() {
            return Ok(());
        }
        let both_strong = self.strong && access.strong;
        if !both_strong && !view.knows(write) {
            return Err(Fault::race(race, format!("{what} what may just be written"), write));
        }
        if access.proxy && !self.by_proxy && !view.proxy.knows(write) {
            return Err(Fault::race(
                Kind::ProxyFence,
                format!("{what} what was written ordinarily, and no fence.proxy.async came between"),
                write,
            ));
        }
        Ok(())
    }

    /// A read by the lane `lane` of the component that `access` has as the first of its warp.
    #[inline]
    pub(crate) fn read(&mut self, view: &View, access: Access, lane: u32, race: Kind) -> Check<()> {
        self.check_order(view, access, race, "reads")?;
        if access.rmw {
            return Ok(());
        }
        let bit = 1u32 << lane;
        if self.first.mask == 0 {
            self.first = Read {
                epoch: access.epoch,
                mask: bit,
                strong: access.strong,
            };
            return Ok(());
        }
        if self.first.epoch == access.epoch && self.first.strong == access.strong {
            self.first.mask |= bit;
            return Ok(());
        }
        // A later read by the same thread stands for its earlier ones.
        let same = |read: &Read| {
            read.epoch.block() == access.epoch.block()
                && read.epoch.component() == access.epoch.component()
                && (read.strong || !access.strong)
        };
        if same(&self.first) {
            self.first.mask &= !bit;
        }
        let mut found = false;
        if let Some(more) = &mut self.more {
            for read in more.iter_mut() {
                if read.epoch == access.epoch && read.strong == access.strong {
                    read.mask |= bit;
                    found = true;
                } else if same(read) {
                    read.mask &= !bit;
                }
            }
            if !found {
                more.retain(|read| read.mask != 0);
            }
        }
        if found {
            return Ok(());
        }
        let new = Read {
            epoch: access.epoch,
            mask: bit,
            strong: access.strong,
        };
        if self.first.mask == 0 {
            self.first = new;
        } else {
            self.more.get_or_insert_with(Box::default).push(new);
        }
        Ok(())
    }

    /// A write; `own` is the epoch that later accesses have to know.
    #[inline]
    pub(crate) fn write(&mut self, view: &View, access: Access, race: Kind) -> Check<()> {
        // Whoever has done an atomic here comes after all atomics before it.
        let mine = self.rmw
            && self.write.is_real()
            && self.write.block() == view.block
            && self.write.component() == view.thread;
        self.check_order(view, access, race, "overwrites")?;
        if self.first.mask != 0 {
            for read in self.reads() {
                if read.strong && (access.strong || mine) {
                    continue;
                }
                let mut mask = read.mask;
                while mask != 0 {
                    let lane = mask.trailing_zeros();
                    mask &= mask - 1;
                    let epoch = Epoch::new(read.epoch.block(), read.epoch.component() + lane, read.epoch.time());
                    let known = view.knows(epoch) || race == Kind::GlobalRace && view.made_of(epoch);
                    if !known {
                        return Err(Fault::race(race, "overwrites what may still be read", epoch));
                    }
                }
            }
        }
        self.write = access.epoch;
        self.by_proxy = access.proxy;
        self.strong = access.strong;
        self.rmw = access.rmw;
        self.undefined = false;
        // An atomic leaves ordinary reads of the past behind only where they are known, as all are here.
        if !access.rmw || self.reads().all(|read| !read.strong) {
            self.first.mask = 0;
            self.more = None;
        }
        Ok(())
    }
}
