//! Bulk copies, with a tensor map or without, and stores that complete on an mbarrier.

use super::addresses::*;
use super::lanes;
use crate::clock::{map_lanes, Epoch};
use crate::finding::{at_lane, Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Bulk, Copy, Machine, Warp};
use crate::shadow::Access;
use crate::tma::{Swizzle, TensorMap};
use std::rc::Rc;

impl Machine<'_> {
    pub(super) fn bulk(&mut self, w: &mut Warp, op: &Op, pc: u32, active: u32) -> Check<()> {
        self.idle = 0;
        for lane in lanes(active) {
            let result = self.bulk_lane(w, op, pc, lane);
            at_lane(result, lane)?;
        }
        Ok(())
    }

    fn bulk_lane(&mut self, w: &mut Warp, op: &Op, pc: u32, lane: u32) -> Check<()> {
        let i = lane as usize;
        match op {
            Op::TmaLoad {
                dst,
                map,
                coords,
                bar,
                multicast,
                ..
            } => {
                let (dst, map, bar) = (
                    self.addresses(w, dst)[i],
                    self.addresses(w, map)[i],
                    self.addresses(w, bar)[i],
                );
                let coords: Vec<i32> = coords.iter().map(|&c| self.narrow(w, c)[i] as i32).collect();
                let multicast = multicast.map(|mask| self.narrow(w, mask)[i] & 0xFFFF);
                let map = self.map_at(w, lane, map)?;
                let rows = map.rows(&coords)?;
                let row_bytes = map.row_bytes() as usize;
                let mut data = vec![0; map.box_bytes() as usize];
                let targets = self.bulk_targets(w, (dst, 128), bar, multicast)?;
                let epoch = self.arrival(targets[0].0, targets[0].2)?;
                let mut hint = w.hint;
                for (row, place) in data.chunks_exact_mut(row_bytes).zip(&rows) {
                    if let Some((address, at, bytes)) = *place {
                        let from = self.proxy_read(w, &mut hint, lane, address, bytes, epoch)?;
                        row[at..at + bytes].copy_from_slice(from);
                    }
                    map.transform(row);
                }
                w.hint = hint;
                self.start_copy(w, lane, pc, data, map.swizzle, targets)
            }
            Op::BulkLoad {
                dst,
                src,
                bytes,
                bar,
                multicast,
            } => {
                let (dst, src, bar) = (
                    self.addresses(w, dst)[i],
                    self.addresses(w, src)[i],
                    self.addresses(w, bar)[i],
                );
                let bytes = self.narrow(w, *bytes)[i] as usize;
                let multicast = multicast.map(|mask| self.narrow(w, mask)[i] & 0xFFFF);
                if !bytes.is_multiple_of(16) || src % 16 != 0 {
                    return Err(Fault::new(
                        Kind::Misaligned,
                        format!("a bulk copy of {bytes} bytes from {src:#x}: both have to be multiples of 16"),
                    ));
                }
                let targets = self.bulk_targets(w, (dst, 16), bar, multicast)?;
                let epoch = self.arrival(targets[0].0, targets[0].2)?;
                let mut hint = w.hint;
                let data = self.proxy_read(w, &mut hint, lane, src, bytes, epoch)?.to_vec();
                w.hint = hint;
                self.start_copy(w, lane, pc, data, Swizzle::None, targets)
            }
            Op::StAsync { at, s, bar } => {
                let (at, bar) = (self.addresses(w, at)[i], self.addresses(w, bar)[i]);
                if w.undefined.any() && s.iter().any(|s| w.undefined.src(*s, false) >> lane & 1 == 1) {
                    return Err(Fault::new(
                        Kind::Uninitialised,
                        "a register that was never written is stored asynchronously",
                    ));
                }
                let data: Vec<u8> = s.iter().flat_map(|s| self.narrow(w, *s)[i].to_le_bytes()).collect();
                let targets = self.bulk_targets(w, (at, data.len() as u32), bar, None)?;
                self.start_copy(w, lane, pc, data, Swizzle::None, targets)
            }
            Op::TmaStore { map, src, coords, .. } => {
                let (map, src) = (self.addresses(w, map)[i], self.addresses(w, src)[i]);
                let coords: Vec<i32> = coords.iter().map(|&c| self.narrow(w, c)[i] as i32).collect();
                let map = self.map_at(w, lane, map)?;
                let rows = map.rows(&coords)?;
                let row_bytes = map.row_bytes() as usize;
                let data = self.bulk_source(w, lane, src, map.box_bytes() as usize, map.swizzle)?;
                for (row, place) in data.chunks_exact(row_bytes).zip(&rows) {
                    if let Some((address, at, bytes)) = *place {
                        self.proxy_write(w, lane, address, &row[at..at + bytes])?;
                    }
                }
                Ok(())
            }
            Op::BulkStore { dst, src, bytes } => {
                let (dst, src) = (self.addresses(w, dst)[i], self.addresses(w, src)[i]);
                let bytes = self.narrow(w, *bytes)[i] as usize;
                if !bytes.is_multiple_of(16) || dst % 16 != 0 {
                    return Err(Fault::new(
                        Kind::Misaligned,
                        format!("a bulk copy of {bytes} bytes to {dst:#x}: both have to be multiples of 16"),
                    ));
                }
                let data = self.bulk_source(w, lane, src, bytes, Swizzle::None)?;
                self.proxy_write(w, lane, dst, &data)
            }
            _ => Ok(()),
        }
    }

    fn map_at(&self, w: &Warp, lane: u32, address: u64) -> Check<TensorMap> {
        const BYTES: usize = 128;
        let bytes = match self.place(w, Space::Generic, address)? {
            Place::Param(offset) => self.params.get(offset as usize..offset as usize + BYTES),
            Place::Global(address) => self.memory.read(address, BYTES),
            _ => None,
        };
        match bytes.and_then(TensorMap::decode) {
            Some(map) => Ok(map),
            None => Err(Fault {
                lane: Some(lane),
                ..*Fault::new(Kind::OutOfBounds, format!("there is no tensor map at {address:#x}"))
            }
            .into()),
        }
    }

    /// Slot, offset and barrier of each block that a bulk copy goes to.
    fn bulk_targets(
        &mut self,
        w: &Warp,
        (dst, alignment): (u64, u32),
        bar: u64,
        multicast: Option<u32>,
    ) -> Check<Vec<(usize, u32, u32)>> {
        let (slot, offset) = self.shared_place(w, Space::Cluster, dst)?;
        let (bar_slot, bar) = self.shared_place(w, Space::Cluster, bar)?;
        if offset % alignment != 0 {
            return Err(Fault::new(
                Kind::Misaligned,
                format!("a copy to {offset:#x} of shared memory, which is no multiple of {alignment}"),
            ));
        }
        let Some(mask) = multicast else {
            if slot != bar_slot {
                return Err(Fault::new(
                    Kind::Mbarrier,
                    "a bulk copy and its mbarrier are in different blocks",
                ));
            }
            return Ok(vec![(slot, offset, bar)]);
        };
        let mut targets = Vec::new();
        for rank in lanes(mask) {
            match self.peer(w.slot, rank) {
                Some(slot) => targets.push((slot, offset, bar)),
                None => {
                    return Err(Fault::new(
                        Kind::OutOfBounds,
                        format!("a copy for block {rank} of a cluster of {}", self.cluster_blocks),
                    ))
                }
            }
        }
        if targets.is_empty() {
            return Err(Fault::new(Kind::Mbarrier, "a copy for no block"));
        }
        Ok(targets)
    }

    /// The point in time at which copies that complete on an mbarrier now will have arrived.
    fn arrival(&self, slot: usize, bar: u32) -> Check<Epoch> {
        let block = self.block_ref(slot);
        match block.mbars.get(&bar) {
            Some(barrier) if !barrier.public => Err(Self::not_public(bar)),
            Some(barrier) => Ok(Epoch::new(block.id, barrier.component, barrier.phase + 1)),
            None => Err(Self::missing(bar)),
        }
    }

    fn bulk_source(&mut self, w: &mut Warp, lane: u32, src: u64, bytes: usize, swizzle: Swizzle) -> Check<Vec<u8>> {
        let address = if src >= SHARED_WINDOW { src - SHARED_WINDOW } else { src };
        let (slot, offset) = self.shared_place(w, Space::Shared, address)?;
        self.shared_bounds(offset, bytes as u32, 16)?;
        if offset % 128 != 0 && swizzle != Swizzle::None {
            return Err(Fault::new(
                Kind::Misaligned,
                format!("a bulk copy from {offset:#x} of shared memory"),
            ));
        }
        self.not_a_barrier(slot, offset, bytes as u32)?;
        let (components, time) = self.bulk_group(w, lane)?;
        let access = Access {
            epoch: Epoch::new(w.block, components[0], time),
            proxy: true,
            strong: false,
            rmw: false,
        };
        self.proxy_cells(w, lane, slot, offset, bytes as u32, false, access)?;
        let block = self.block_ref(slot);
        let mut data = Vec::with_capacity(bytes);
        for at in (offset..offset + bytes as u32).step_by(16) {
            let from = swizzle.apply(at) as usize;
            data.extend_from_slice(&block.data[from..from + 16]);
        }
        Ok(data)
    }

    fn start_copy(
        &mut self,
        w: &mut Warp,
        lane: u32,
        pc: u32,
        data: Vec<u8>,
        swizzle: Swizzle,
        targets: Vec<(usize, u32, u32)>,
    ) -> Check<()> {
        self.report.copies += 1;
        for &(slot, offset, bar) in &targets {
            self.shared_bounds(offset, data.len() as u32, 16)?;
            self.shared_bounds(bar, 8, 8)?;
            self.not_a_barrier(slot, offset, data.len() as u32)?;
            let epoch = self.arrival(slot, bar)?;
            self.touch(w, slot, epoch)?;
            let access = Access {
                epoch,
                proxy: true,
                strong: false,
                rmw: false,
            };
            if let Some(epoch) = {
                let view = self.view(w, lane);
                self.block_ref(slot).cells[(bar >> self.grain) as usize].unknown_write(&view)
            } {
                return Err(Fault::race(
                    Kind::Mbarrier,
                    format!("the mbarrier at {bar:#x} is used, and its initialisation may not have happened"),
                    epoch,
                ));
            }
            self.proxy_cells(w, lane, slot, offset, data.len() as u32, true, access)?;
            if let Some(barrier) = self.block_mut(slot).mbars.get_mut(&bar) {
                barrier.copies += 1;
            }
        }
        let instr = &self.entry.code[pc as usize];
        self.copies.push(Copy {
            data,
            swizzle,
            to: targets.iter().map(|&(slot, offset, _)| (slot, offset)).collect(),
            bars: targets.iter().map(|&(slot, _, bar)| (slot, bar)).collect(),
            line: instr.line,
            location: instr.location,
            block: self.block_ref(w.slot).at,
            thread: w.index * 32 + lane,
        });
        // What follows in the program is later than what the copy has to know.
        Ok(())
    }

    fn proxy_read(
        &mut self,
        w: &Warp,
        hint: &mut usize,
        lane: u32,
        address: u64,
        bytes: usize,
        epoch: Epoch,
    ) -> Check<&[u8]> {
        let access = Access {
            epoch,
            proxy: true,
            strong: false,
            rmw: false,
        };
        let (index, at) = self.global_access(w, hint, lane, address, bytes as u32, 1, false, access)?;
        Ok(&self.memory.allocations[index].data[at..at + bytes])
    }

    fn proxy_write(&mut self, w: &mut Warp, lane: u32, address: u64, data: &[u8]) -> Check<()> {
        let (components, time) = self.bulk_group(w, lane)?;
        let access = Access {
            epoch: Epoch::new(w.block, components[1], time),
            proxy: true,
            strong: false,
            rmw: false,
        };
        let mut hint = w.hint;
        let (index, at) = self.global_access(w, &mut hint, lane, address, data.len() as u32, 1, true, access)?;
        w.hint = hint;
        self.memory.allocations[index].data[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn bulk_group(&mut self, w: &mut Warp, lane: u32) -> Check<([u32; 2], u32)> {
        if let Some(bulk) = w.bulks.iter_mut().find(|bulk| bulk.lane == lane) {
            bulk.last = bulk.committed + 1;
            return Ok((bulk.components, bulk.last));
        }
        let components = [self.new_component(w.slot)?, self.new_component(w.slot)?];
        w.bulks.push(Bulk {
            lane,
            components,
            committed: 0,
            last: 1,
        });
        Ok((components, 1))
    }

    pub(super) fn bulk_commit(w: &mut Warp, active: u32) {
        for bulk in w.bulks.iter_mut().filter(|bulk| active >> bulk.lane & 1 == 1) {
            bulk.committed += 1;
        }
    }

    pub(super) fn bulk_wait(w: &mut Warp, pending: u32, read: bool, active: u32) {
        let block = w.block;
        for bulk in w.bulks.iter().filter(|bulk| active >> bulk.lane & 1 == 1) {
            let done = bulk.committed.saturating_sub(pending);
            let components = bulk.components;
            map_lanes(&mut w.clock, 1 << bulk.lane, |clock| {
                let mut clock = (**clock).clone();
                clock.learn(block, components[0], done);
                if !read {
                    clock.learn(block, components[1], done);
                }
                Rc::new(clock)
            });
        }
    }
}
