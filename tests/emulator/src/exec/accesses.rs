//! Accesses to shared and global memory: bounds, races, and what nothing wrote.

use crate::clock::Epoch;
use crate::finding::{Check, Fault, Kind};
use crate::machine::{Machine, Warp};
use crate::memory::Use;
use crate::parse::SHARED_BASE;
use crate::shadow::{Access, View};
use std::ops::Range;

impl Machine<'_> {
    #[inline]
    pub(super) fn view<'v>(&self, w: &'v Warp, lane: u32) -> View<'v> {
        let thread = w.index * 32 + lane;
        View {
            clock: &w.clock[lane as usize],
            proxy: &w.proxy[lane as usize],
            block: w.block,
            thread: self.thread_component(thread),
            warp: self.thread_component(w.index * 32),
            given: &w.given[lane as usize],
            copies: (self.copies_component(thread), w.copied[lane as usize]),
            wgmma: (self.wgmma_component(w.index), w.wgmma_done),
        }
    }

    /// The accesses of a warp's threads: reads are noted for all lanes together, writes for each.
    #[inline]
    pub(super) fn ordinary(&self, w: &Warp, lane: u32, write: bool, strong: bool) -> Access {
        let thread = w.index * 32 + if write { lane } else { 0 };
        Access {
            epoch: Epoch::new(w.block, self.thread_component(thread), w.time),
            proxy: false,
            strong,
            rmw: false,
        }
    }

    /// Notes that a block of the cluster uses another's shared memory.
    #[inline]
    pub(super) fn touch(&mut self, w: &Warp, slot: usize, epoch: Epoch) -> Check<()> {
        if slot == w.slot {
            return Ok(());
        }
        let block = self.block_mut(slot);
        if block.ended {
            return Err(Fault::new(
                Kind::ClusterExit,
                format!(
                    "block {} of the cluster has ended, and its shared memory with it",
                    block.rank
                ),
            ));
        }
        let time = block.remote.entry((epoch.block(), epoch.component())).or_insert(0);
        *time = (*time).max(epoch.time());
        Ok(())
    }

    #[inline]
    pub(super) fn shared_bounds(&self, offset: u32, bytes: u32, align: u32) -> Check<()> {
        if offset < SHARED_BASE || offset as u64 + bytes as u64 > self.shared_bytes as u64 {
            return Err(Fault::new(
                Kind::OutOfBounds,
                format!(
                    "{bytes} bytes at {offset:#x} of shared memory, which is from {SHARED_BASE:#x} to {:#x}",
                    self.shared_bytes
                ),
            ));
        }
        if !offset.is_multiple_of(align) {
            return Err(Fault::new(
                Kind::Misaligned,
                format!("{offset:#x} of shared memory is no multiple of {align}"),
            ));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn not_a_barrier(&self, slot: usize, offset: u32, bytes: u32) -> Check<()> {
        let block = self.block_ref(slot);
        if !block.mbars.is_empty() {
            let from = offset.saturating_sub(7);
            if let Some((at, _)) = block.mbars.range(from..offset + bytes).next() {
                return Err(Fault::new(
                    Kind::Mbarrier,
                    format!("an ordinary access to {offset:#x}, where the mbarrier at {at:#x} lies"),
                ));
            }
        }
        Ok(())
    }

    /// An access of one lane to shared memory.
    #[inline]
    pub(super) fn shared_access(
        &mut self,
        w: &Warp,
        lane: u32,
        (slot, offset): (usize, u32),
        bytes: u32,
        write: bool,
        access: Access,
    ) -> Check<bool> {
        if self.watches_shared(offset, bytes) {
            let how = match (access.rmw, write) {
                (true, false) => "an atomic on",
                (_, true) => "writes",
                _ => "reads",
            };
            self.tell(w, slot, 1 << lane, format!("{how} {bytes} bytes at {offset:#x}"));
        }
        let mut defined = true;
        let (grain, poison) = (self.grain, self.launch.poison);
        let view = self.view(w, lane);
        let block = self.blocks[slot].as_mut().expect("a resident block");
        let (first, last) = (offset >> grain, (offset + bytes - 1) >> grain);
        for cell in &mut block.cells[first as usize..=last as usize] {
            if write {
                cell.write(&view, access, Kind::SharedRace)?;
            } else {
                defined &= cell.is_defined() || poison;
                cell.read(&view, access, lane, Kind::SharedRace)?;
            }
        }
        Ok(defined)
    }

    /// Whether what lies here is made of memory that something wrote.
    pub(super) fn is_defined(&self, slot: usize, offset: u32, bytes: u32) -> bool {
        let grain = self.grain;
        self.launch.poison
            || self.block_ref(slot).cells[(offset >> grain) as usize..=((offset + bytes - 1) >> grain) as usize]
                .iter()
                .all(|cell| cell.is_defined())
    }

    /// What lies here is made of memory that nothing wrote.
    pub(super) fn forget(&mut self, slot: usize, offset: u32, bytes: u32) {
        let grain = self.grain;
        for cell in
            &mut self.block_mut(slot).cells[(offset >> grain) as usize..=((offset + bytes - 1) >> grain) as usize]
        {
            cell.set_defined(false);
        }
    }

    /// An access of bulk copies or `wgmma` to a run of shared memory, on behalf of a lane.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn proxy_cells(
        &mut self,
        w: &Warp,
        lane: u32,
        slot: usize,
        offset: u32,
        bytes: u32,
        write: bool,
        access: Access,
    ) -> Check<()> {
        if self.watches_shared(offset, bytes) {
            let how = if write {
                "asks for a bulk copy of"
            } else {
                "has a bulk copy or wgmma read"
            };
            self.tell(w, slot, 1 << lane, format!("{how} {bytes} bytes at {offset:#x}"));
        }
        let grain = self.grain;
        let view = self.view(w, lane);
        let block = self.blocks[slot].as_mut().expect("a resident block");
        let (first, last) = (offset >> grain, (offset + bytes - 1) >> grain);
        for (i, cell) in block.cells[first as usize..=last as usize].iter_mut().enumerate() {
            if write {
                cell.write(&view, access, Kind::SharedRace)?;
            } else {
                if !cell.is_defined() {
                    let at = (first as usize + i) << grain;
                    return Err(Fault::new(
                        Kind::Uninitialised,
                        format!("{at:#x} of shared memory is read, and nothing was written there"),
                    ));
                }
                cell.read(&view, access, 0, Kind::SharedRace)?;
            }
        }
        Ok(())
    }

    /// An access to global memory; returns allocation and offset.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn global_access(
        &mut self,
        w: &Warp,
        hint: &mut usize,
        lane: u32,
        address: u64,
        bytes: u32,
        align: u32,
        write: bool,
        access: Access,
    ) -> Check<(usize, usize)> {
        if !address.is_multiple_of(u64::from(align)) {
            return Err(Fault::new(
                Kind::Misaligned,
                format!("the address {address:#x} is no multiple of {align}"),
            ));
        }
        let (index, offset) = self.memory.find(address, bytes, hint)?;
        let allowed = |range: &Range<u64>| range.start <= address && address + u64::from(bytes) <= range.end;
        if self.launch.early
            && w.clock[lane as usize].get(w.block, 0) == 0
            && !(access.rmw && self.launch.early_atomics.iter().any(allowed))
        {
            return Err(Fault::new(
                Kind::BeforeGridWait,
                "global memory is used before griddepcontrol.wait, while an earlier kernel may still run",
            ));
        }
        if self.watches_global(address, bytes) {
            let how = if write { "writes" } else { "reads" };
            self.tell(w, w.slot, 1 << lane, format!("{how} {bytes} bytes at {address:#x}"));
        }
        let grain = self.entry.grain[1];
        let view = self.view(w, lane);
        let allocation = &mut self.memory.allocations[index];
        let input = allocation.usage == Use::Input;
        if input && write {
            return Err(Fault::new(
                Kind::ReadOnly,
                format!("{address:#x} is written, and belongs to an input"),
            ));
        }
        if !write && !allocation.is_written(offset, bytes as usize) {
            return Err(Fault::new(
                Kind::Uninitialised,
                format!("{bytes} bytes at {address:#x}, {offset} bytes into an allocation, are read, and nothing was written there"),
            ));
        }
        if input {
            return Ok((index, offset));
        }
        let (first, last) = (offset >> grain, (offset + bytes as usize - 1) >> grain);
        for cell in &mut allocation.cells[first..=last] {
            if write {
                cell.write(&view, access, Kind::GlobalRace)?;
            } else {
                cell.read(&view, access, if access.proxy { 0 } else { lane }, Kind::GlobalRace)?;
            }
        }
        if write {
            allocation.set_written(offset, bytes as usize);
        }
        Ok((index, offset))
    }
}
