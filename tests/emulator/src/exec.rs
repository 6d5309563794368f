//! Instructions.

use crate::alu::{self, Narrow, Wide};
use crate::clock::{join_lanes, map_lanes, Clock, Epoch};
use crate::finding::{at_lane, Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Bulk, Copy, Known, Machine, Mbarrier, Warp, Why};
use crate::memory::Use;
use crate::parse::SHARED_BASE;
use crate::shadow::{Access, View};
use crate::tensor::{Descriptor, Number, Rows};
use crate::tma::{Swizzle, TensorMap};
use std::ops::Range;
use std::rc::Rc;

/// Where shared, local and parameter memory lie for generic addresses.
const SHARED_WINDOW: u64 = 0x7F00_0000_0000;
const LOCAL_WINDOW: u64 = 0x7F10_0000_0000;
const PARAM_WINDOW: u64 = 0x7F20_0000_0000;
const WINDOW: u64 = 1 << 32;
/// A shared address of another block of the cluster has its rank, plus 1, from this bit on.
const RANK_SHIFT: u32 = 24;
const RANK_MASK: u64 = (1 << RANK_SHIFT) - 1;

/// A fault, and the instruction and lanes at which it arose.
type Stop = (Box<Fault>, u32, u32);

/// What follows an instruction.
enum Next {
    /// The next one.
    On,
    /// The lanes wait here.
    Wait,
    /// The lanes have ended.
    Ended,
}

/// Where an address points.
enum Place {
    Shared(usize, u32),
    Global(u64),
    Param(u64),
    Local(u64),
}

fn lanes(mask: u32) -> impl Iterator<Item = u32> {
    (0..32).filter(move |lane| mask >> lane & 1 == 1)
}

impl Machine<'_> {
    /// Runs a warp for at most so many instructions, until it waits or ends.
    pub(crate) fn run_warp(&mut self, w: &mut Warp, mut budget: u64) -> Result<(), Stop> {
        let entry = self.entry;
        let code = &entry.code;
        while budget > 0 {
            let runnable = w.live & !w.blocked;
            if runnable == 0 {
                return Ok(());
            }
            // The lanes that are furthest behind go on; now and then, others do, in case those wait for them.
            let mut pc = u32::MAX;
            let mut forced = false;
            if w.spins > 64 {
                w.spins = 0;
                let pick = self.random.below(runnable.count_ones() as usize);
                if let Some(lane) = lanes(runnable).nth(pick) {
                    pc = w.pc[lane as usize];
                    forced = true;
                }
            } else {
                for lane in lanes(runnable) {
                    pc = pc.min(w.pc[lane as usize]);
                }
            }
            let mut mask = 0;
            let mut next_pc = u32::MAX;
            for lane in lanes(runnable) {
                let at = w.pc[lane as usize];
                if at == pc {
                    mask |= 1 << lane;
                } else if forced {
                    next_pc = next_pc.min(if at > pc { at } else { u32::MAX });
                } else {
                    next_pc = next_pc.min(at);
                }
            }
            let alone = mask == runnable;
            let mut steps = 0;
            loop {
                if budget == 0 {
                    break;
                }
                budget -= 1;
                steps += 1;
                let instr = &code[pc as usize];
                self.pc = pc;
                let active = match instr.guard {
                    None => mask,
                    Some((p, negate)) => {
                        let p = w.preds[p as usize];
                        mask & if negate { !p } else { p }
                    }
                };
                if w.undefined.any() {
                    crate::defined::follow(w, instr, mask, active).map_err(|fault| (fault, pc, mask))?;
                }
                self.report.warp_instructions += 1;
                if active != 0 {
                    if let Some(covered) = self.covered.get_mut(pc as usize) {
                        *covered = true;
                    }
                }
                self.report.thread_instructions += u64::from(active.count_ones());
                self.idle += 1;
                w.count += 1;
                if active == 0 {
                    pc += 1;
                } else if let Op::Bra { target } = instr.op {
                    let back = target <= pc;
                    if active == mask {
                        pc = target;
                        if back && !alone {
                            w.spins += 1;
                        }
                    } else {
                        for lane in lanes(active) {
                            w.pc[lane as usize] = target;
                        }
                        for lane in lanes(mask & !active) {
                            w.pc[lane as usize] = pc + 1;
                        }
                        if back && !alone {
                            w.spins += 1;
                        }
                        mask = 0;
                        break;
                    }
                    if back && !alone {
                        break;
                    }
                } else {
                    if active != mask && meets(&instr.op) {
                        // Some lanes go past what the others do together.
                        for lane in lanes(mask & !active) {
                            w.pc[lane as usize] = pc + 1;
                        }
                        mask = active;
                    }
                    if !w.wgmma_tagged.is_empty() {
                        self.check_wgmma_registers(w, &instr.op)
                            .map_err(|fault| (fault, pc, active))?;
                    }
                    for lane in lanes(mask) {
                        w.pc[lane as usize] = pc;
                    }
                    match self
                        .step(w, &instr.op, pc, active)
                        .map_err(|fault| (fault, pc, active))?
                    {
                        Next::On => {
                            // Lanes that met here may be more than those that came last.
                            let met = lanes(w.live & !w.blocked & !mask).any(|lane| w.pc[lane as usize] == pc + 1);
                            pc += 1;
                            if met && meets(&instr.op) {
                                break;
                            }
                        }
                        Next::Wait => {
                            mask &= !active;
                            if mask == 0 {
                                break;
                            }
                            pc += 1;
                        }
                        Next::Ended => {
                            mask &= !active;
                            if mask == 0 {
                                break;
                            }
                            pc += 1;
                        }
                    }
                }
                if pc >= next_pc || forced && steps > 500 {
                    break;
                }
            }
            for lane in lanes(mask) {
                w.pc[lane as usize] = pc;
            }
        }
        Ok(())
    }

    fn special(&self, w: &Warp, special: Special) -> Narrow {
        let block = self.block_ref(w.slot);
        let cluster = &self.clusters[block.cluster];
        let (grid, size) = (self.launch.grid, self.launch.cluster);
        let one = match special {
            Special::Tid(dim) => return w.tid[dim as usize],
            Special::Ntid(dim) => self.launch.block[dim as usize],
            Special::Ctaid(dim) => block.at[dim as usize],
            Special::Nctaid(dim) => grid[dim as usize],
            Special::Clusterid(dim) => cluster.at[dim as usize],
            Special::Nclusterid(dim) => grid[dim as usize] / size[dim as usize],
            Special::ClusterCtaid(dim) => block.at[dim as usize] % size[dim as usize],
            Special::ClusterNctaid(dim) => size[dim as usize],
            Special::ClusterCtarank => block.rank,
            Special::ClusterNctarank => self.cluster_blocks,
            Special::Warpid => w.index,
            Special::Smid => w.slot as u32,
            Special::Clock => self.report.warp_instructions as u32,
            Special::DynamicSmem => self.launch.dynamic_shared,
            Special::Laneid => return std::array::from_fn(|lane| lane as u32),
            Special::LanemaskEq => return std::array::from_fn(|lane| 1 << lane),
            Special::LanemaskLt => return std::array::from_fn(|lane| (1 << lane) - 1),
            Special::LanemaskLe => return std::array::from_fn(|lane| u32::MAX >> (31 - lane)),
            Special::LanemaskGt => return std::array::from_fn(|lane| !(u32::MAX >> (31 - lane))),
            Special::LanemaskGe => return std::array::from_fn(|lane| u32::MAX << lane),
        };
        [one; 32]
    }

    #[inline]
    fn narrow(&self, w: &Warp, src: Src) -> Narrow {
        match src {
            Src::Reg(number) => w.narrow[number as usize],
            Src::Imm(value) => [value as u32; 32],
            Src::Special(special) => self.special(w, special),
            Src::Global(index) => [self.globals[index as usize] as u32; 32],
        }
    }

    #[inline]
    fn wide(&self, w: &Warp, src: Src) -> Wide {
        match src {
            Src::Reg(number) => w.wide[number as usize],
            Src::Imm(value) => [value; 32],
            Src::Special(special) => self.special(w, special).map(u64::from),
            Src::Global(index) => [self.globals[index as usize]; 32],
        }
    }

    /// A register of the class of `ty`, in 64 bits.
    fn any(&self, w: &Warp, src: Src, wide: bool) -> Wide {
        if wide {
            self.wide(w, src)
        } else {
            self.narrow(w, src).map(u64::from)
        }
    }

    #[inline]
    fn put(&self, w: &mut Warp, d: u32, value: &Narrow, active: u32) {
        if d == SINK {
            return;
        }
        if self.uses_wgmma {
            w.stamps[d as usize] = w.count;
        }
        let to = &mut w.narrow[d as usize];
        if active == u32::MAX {
            *to = *value;
            return;
        }
        for lane in 0..32 {
            if active >> lane & 1 == 1 {
                to[lane] = value[lane];
            }
        }
    }

    #[inline]
    fn put_wide(&self, w: &mut Warp, d: u32, value: &Wide, active: u32) {
        if d == SINK {
            return;
        }
        let to = &mut w.wide[d as usize];
        if active == u32::MAX {
            *to = *value;
            return;
        }
        for lane in 0..32 {
            if active >> lane & 1 == 1 {
                to[lane] = value[lane];
            }
        }
    }

    fn put_pred(w: &mut Warp, d: u32, value: u32, active: u32) {
        if d != SINK {
            let to = &mut w.preds[d as usize];
            *to = *to & !active | value & active;
        }
    }

    fn put_any(&self, w: &mut Warp, d: u32, value: &Wide, active: u32, wide: bool) {
        if wide {
            self.put_wide(w, d, value, active);
        } else {
            self.put(w, d, &value.map(|x| x as u32), active);
        }
    }

    fn pred(w: &Warp, p: PredSrc) -> u32 {
        match p {
            PredSrc::Reg(number, false) => w.preds[number as usize],
            PredSrc::Reg(number, true) => !w.preds[number as usize],
            PredSrc::Const(true) => u32::MAX,
            PredSrc::Const(false) => 0,
        }
    }

    fn addresses(&self, w: &Warp, at: &Addr) -> Wide {
        let mut base = match (at.base, at.wide) {
            (Src::Reg(_), false) => self.narrow(w, at.base).map(u64::from),
            _ => self.wide(w, at.base),
        };
        if at.offset != 0 {
            for address in &mut base {
                *address = address.wrapping_add_signed(at.offset);
                if !at.wide {
                    *address &= 0xFFFF_FFFF;
                }
            }
        }
        base
    }

    fn place(&self, w: &Warp, space: Space, address: u64) -> Check<Place> {
        Ok(match space {
            Space::Global | Space::Const => Place::Global(address),
            Space::Param => Place::Param(address & (WINDOW - 1)),
            Space::Local => Place::Local(address & (WINDOW - 1)),
            Space::Shared | Space::Cluster => {
                let (slot, offset) = self.shared_place(w, space, address)?;
                Place::Shared(slot, offset)
            }
            Space::Generic => match address.wrapping_sub(SHARED_WINDOW) {
                offset if offset < WINDOW => {
                    let (slot, offset) = self.shared_place(w, Space::Cluster, offset)?;
                    Place::Shared(slot, offset)
                }
                _ if address.wrapping_sub(LOCAL_WINDOW) < WINDOW => Place::Local(address - LOCAL_WINDOW),
                _ if address.wrapping_sub(PARAM_WINDOW) < WINDOW => Place::Param(address - PARAM_WINDOW),
                _ => Place::Global(address),
            },
        })
    }

    fn shared_place(&self, w: &Warp, space: Space, address: u64) -> Check<(usize, u32)> {
        let offset = (address & RANK_MASK) as u32;
        let rank = (address >> RANK_SHIFT) as u32;
        if rank == 0 {
            return Ok((w.slot, offset));
        }
        match self.peer(w.slot, rank - 1) {
            Some(slot) if slot == w.slot || space == Space::Cluster => Ok((slot, offset)),
            Some(_) => Err(Fault::new(
                Kind::OutOfBounds,
                format!("{address:#x} is another block's, and the instruction is for this block's shared memory"),
            )),
            None => Err(Fault::new(
                Kind::OutOfBounds,
                format!("{address:#x} is no address of shared memory of this cluster"),
            )),
        }
    }

    fn view<'v>(&self, w: &'v Warp, lane: u32) -> View<'v> {
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

    /// Notes that a block of the cluster uses another's shared memory.
    fn touch(&mut self, w: &Warp, slot: usize, epoch: Epoch) -> Check<()> {
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

    fn shared_bounds(&self, offset: u32, bytes: u32, align: u32) -> Check<()> {
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

    fn not_a_barrier(&self, slot: usize, offset: u32, bytes: u32) -> Check<()> {
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
    fn shared_access(
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
    fn is_defined(&self, slot: usize, offset: u32, bytes: u32) -> bool {
        let grain = self.grain;
        self.launch.poison
            || self.block_ref(slot).cells[(offset >> grain) as usize..=((offset + bytes - 1) >> grain) as usize]
                .iter()
                .all(|cell| cell.is_defined())
    }

    /// What lies here is made of memory that nothing wrote.
    fn forget(&mut self, slot: usize, offset: u32, bytes: u32) {
        let grain = self.grain;
        for cell in
            &mut self.block_mut(slot).cells[(offset >> grain) as usize..=((offset + bytes - 1) >> grain) as usize]
        {
            cell.set_defined(false);
        }
    }

    /// An access to global memory; returns allocation and offset.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn global_access(
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

    /// The accesses of a warp's threads: reads are noted for all lanes together, writes for each.
    fn ordinary(&self, w: &Warp, lane: u32, write: bool, strong: bool) -> Access {
        let thread = w.index * 32 + if write { lane } else { 0 };
        Access {
            epoch: Epoch::new(w.block, self.thread_component(thread), w.time),
            proxy: false,
            strong,
            rmw: false,
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn load(
        &mut self,
        w: &mut Warp,
        space: Space,
        ty: Ty,
        sem: Sem,
        wide: bool,
        d: &[u32],
        at: &Addr,
        active: u32,
    ) -> Check<()> {
        let size = ty.size();
        let bytes = size * d.len() as u32;
        let addresses = self.addresses(w, at);
        let mut hint = w.hint;
        let access = self.ordinary(w, 0, false, sem.strong());
        let mut values = [[0u64; 32]; 8];
        let mut acquired = 0;
        let mut undefined = [0u32; 8]; // of each register, the lanes
        if d.len() > values.len() {
            return Err(Fault::new(Kind::Unsupported, "a load of more than eight registers"));
        }
        for lane in lanes(active) {
            let address = addresses[lane as usize];
            let mut buffer = [0u8; 32];
            let result = (|| -> Check<()> {
                let from: &[u8] = match self.place(w, space, address)? {
                    Place::Shared(slot, offset) => {
                        self.shared_bounds(offset, bytes, bytes)?;
                        self.not_a_barrier(slot, offset, bytes)?;
                        if slot != w.slot {
                            let own = self.ordinary(w, lane, true, false).epoch;
                            self.touch(w, slot, own)?;
                        }
                        if !self.shared_access(w, lane, (slot, offset), bytes, false, access)? {
                            for (i, lanes) in undefined[..d.len()].iter_mut().enumerate() {
                                if !self.is_defined(slot, offset + i as u32 * size, size) {
                                    *lanes |= 1 << lane;
                                }
                            }
                        }
                        &self.block_ref(slot).data[offset as usize..]
                    }
                    Place::Global(address) => {
                        let (index, offset) =
                            self.global_access(w, &mut hint, lane, address, bytes, bytes, false, access)?;
                        &self.memory.allocations[index].data[offset..]
                    }
                    Place::Param(offset) => match self.params.get(offset as usize..offset as usize + bytes as usize) {
                        Some(from) => from,
                        None => {
                            return Err(Fault::new(
                                Kind::OutOfBounds,
                                format!("{bytes} bytes at {offset} of {} bytes of parameters", self.params.len()),
                            ))
                        }
                    },
                    Place::Local(offset) => {
                        let at = self.local(w, lane, offset, bytes)?;
                        &self.block_ref(w.slot).local[at..]
                    }
                };
                buffer[..bytes as usize].copy_from_slice(&from[..bytes as usize]);
                Ok(())
            })();
            at_lane(result, lane)?;
            for (i, value) in values[..d.len()].iter_mut().enumerate() {
                let part = &buffer[i * size as usize..];
                value[lane as usize] = match size {
                    1 => part[0].into(),
                    2 => u16::from_le_bytes([part[0], part[1]]).into(),
                    4 => u32::from_le_bytes([part[0], part[1], part[2], part[3]]).into(),
                    _ => u64::from_le_bytes(part[..8].try_into().expect("eight bytes")),
                };
                if ty.signed() && size < 8 {
                    let by = 64 - 8 * size;
                    let extended = ((value[lane as usize] << by) as i64 >> by) as u64;
                    value[lane as usize] = if wide { extended } else { extended & 0xFFFF_FFFF };
                }
            }
            if sem.strong() {
                acquired |= 1 << lane;
            }
        }
        w.hint = hint;
        if acquired != 0 {
            for lane in lanes(acquired) {
                let address = addresses[lane as usize];
                if let Some(known) = self.sync.get(&sync_key(w, space, address)).cloned() {
                    self.observe(w, lane, &known, sem.acquires());
                }
            }
        }
        for (i, &d) in d.iter().enumerate() {
            self.put_any(w, d, &values[i], active, wide);
        }
        if undefined.iter().any(|&lanes| lanes != 0) {
            w.undefined.start(self.entry.registers);
            for (&d, &lanes) in d.iter().zip(&undefined) {
                w.undefined.set(d, wide, lanes, active);
            }
        }
        Ok(())
    }

    fn local(&self, w: &Warp, lane: u32, offset: u64, bytes: u32) -> Check<usize> {
        let each = u64::from(self.entry.local_bytes);
        if offset + u64::from(bytes) > each {
            return Err(Fault::new(
                Kind::OutOfBounds,
                format!("{bytes} bytes at {offset} of {each} bytes of local memory"),
            ));
        }
        if !offset.is_multiple_of(u64::from(bytes)) {
            return Err(Fault::new(
                Kind::Misaligned,
                format!("{offset} of local memory is no multiple of {bytes}"),
            ));
        }
        Ok((u64::from(w.index * 32 + lane) * each + offset) as usize)
    }

    /// What a thread that has seen a flag learns: at once, or at its next fence.
    fn observe(&mut self, w: &mut Warp, lane: u32, known: &Rc<Clock>, now: bool) {
        let lane = lane as usize;
        if now {
            w.clock[lane] = crate::clock::joined(&w.clock[lane], known);
        } else {
            w.seen[lane] = Some(match &w.seen[lane] {
                Some(seen) => crate::clock::joined(seen, known),
                None => known.clone(),
            });
        }
    }

    /// All that a lane knows, its own past included.
    fn snapshot(&self, w: &Warp, lane: u32) -> Rc<Clock> {
        let mut clock = (*w.clock[lane as usize]).clone();
        self.add_own(&mut clock, w, 1 << lane);
        Rc::new(clock)
    }

    fn add_own(&self, clock: &mut Clock, w: &Warp, lanes_of: u32) {
        let first = w.index * 32;
        clock.learn_lanes(w.block, self.thread_component(first), lanes_of, w.time);
        if self.uses_copies {
            for lane in lanes(lanes_of) {
                let copied = w.copied[lane as usize];
                if copied > 0 {
                    clock.learn(w.block, self.copies_component(first + lane), copied);
                }
            }
        }
        if w.wgmma_done > 0 {
            clock.learn(w.block, self.wgmma_component(w.index), w.wgmma_done);
        }
    }

    /// Adds all that some lanes know to what those who wait will know.
    fn release_into(&self, known: &mut Known, w: &Warp, lanes_of: u32) {
        let mut last: Option<(&Rc<Clock>, &Rc<Clock>)> = None;
        for lane in lanes(lanes_of) {
            let (clock, proxy) = (&w.clock[lane as usize], &w.proxy[lane as usize]);
            if let Some((c, p)) = last {
                if Rc::ptr_eq(c, clock) && Rc::ptr_eq(p, proxy) {
                    continue;
                }
            }
            known.join(clock, proxy);
            last = Some((clock, proxy));
        }
        self.add_own(&mut known.clock, w, lanes_of);
    }

    #[allow(clippy::too_many_arguments)]
    fn store(
        &mut self,
        w: &mut Warp,
        space: Space,
        ty: Ty,
        sem: Sem,
        wide: bool,
        s: &[Src],
        at: &Addr,
        active: u32,
    ) -> Check<()> {
        let size = ty.size() as usize;
        let bytes = (size * s.len()) as u32;
        let addresses = self.addresses(w, at);
        let mut values = [[0u64; 32]; 8];
        if s.len() > values.len() {
            return Err(Fault::new(Kind::Unsupported, "a store of more than eight registers"));
        }
        for (i, &s) in s.iter().enumerate() {
            values[i] = self.any(w, s, wide);
        }
        let undefined = match w.undefined.any() {
            true => s.iter().fold(0, |lanes, s| lanes | w.undefined.src(*s, wide)),
            false => 0,
        };
        let mut hint = w.hint;
        for lane in lanes(active) {
            let mut buffer = [0u8; 64];
            for (i, value) in values[..s.len()].iter().enumerate() {
                buffer[i * size..i * size + 8].copy_from_slice(&value[lane as usize].to_le_bytes());
            }
            let address = addresses[lane as usize];
            let access = self.ordinary(w, lane, true, sem.strong());
            let result = (|| -> Check<()> {
                let to: &mut [u8] = match self.place(w, space, address)? {
                    Place::Shared(slot, offset) => {
                        self.shared_bounds(offset, bytes, bytes)?;
                        self.not_a_barrier(slot, offset, bytes)?;
                        self.touch(w, slot, access.epoch)?;
                        self.shared_access(w, lane, (slot, offset), bytes, true, access)?;
                        if undefined >> lane & 1 == 1 {
                            for (i, &s) in s.iter().enumerate() {
                                if w.undefined.src(s, wide) >> lane & 1 == 1 {
                                    self.forget(slot, offset + (i * size) as u32, size as u32);
                                }
                            }
                        }
                        &mut self.block_mut(slot).data[offset as usize..]
                    }
                    Place::Global(address) => {
                        if undefined >> lane & 1 == 1 {
                            return Err(Fault::new(
                                Kind::Uninitialised,
                                "a value that is stored comes from memory that nothing wrote",
                            ));
                        }
                        let (index, offset) =
                            self.global_access(w, &mut hint, lane, address, bytes, bytes, true, access)?;
                        &mut self.memory.allocations[index].data[offset..]
                    }
                    Place::Param(_) => return Err(Fault::new(Kind::ReadOnly, "parameters are not to be written")),
                    Place::Local(offset) => {
                        let at = self.local(w, lane, offset, bytes)?;
                        &mut self.block_mut(w.slot).local[at..]
                    }
                };
                to[..bytes as usize].copy_from_slice(&buffer[..bytes as usize]);
                Ok(())
            })();
            at_lane(result, lane)?;
            if sem.strong() {
                let key = sync_key(w, space, address);
                let known = if sem.releases() {
                    Some(self.snapshot(w, lane))
                } else {
                    w.fenced[lane as usize].clone()
                };
                match known {
                    Some(known) => self.sync.insert(key, known),
                    None => self.sync.remove(&key),
                };
            }
        }
        w.hint = hint;
        if sem.strong() {
            w.time += 1;
        }
        self.idle = 0;
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn atomic(
        &mut self,
        w: &mut Warp,
        space: Space,
        op: AtomOp,
        ty: Ty,
        sem: Sem,
        d: u32,
        at: &Addr,
        b: Src,
        c: Src,
        active: u32,
    ) -> Check<()> {
        let bytes = ty.size();
        let addresses = self.addresses(w, at);
        let (b, c) = (self.any(w, b, ty.wide()), self.any(w, c, ty.wide()));
        let mut old = [0u64; 32];
        let mut hint = w.hint;
        for lane in lanes(active) {
            let address = addresses[lane as usize];
            let read = Access {
                rmw: true,
                ..self.ordinary(w, lane, true, true)
            };
            let result = (|| -> Check<u64> {
                let place = self.place(w, space, address)?;
                let at: &mut [u8] = match place {
                    Place::Shared(slot, offset) => {
                        self.shared_bounds(offset, bytes, bytes)?;
                        self.not_a_barrier(slot, offset, bytes)?;
                        self.touch(w, slot, read.epoch)?;
                        if !self.shared_access(w, lane, (slot, offset), bytes, false, read)? {
                            return Err(Fault::new(
                                Kind::Uninitialised,
                                "an atomic on memory that nothing wrote",
                            ));
                        }
                        self.shared_access(w, lane, (slot, offset), bytes, true, read)?;
                        &mut self.block_mut(slot).data[offset as usize..][..bytes as usize]
                    }
                    Place::Global(address) => {
                        self.global_access(w, &mut hint, lane, address, bytes, bytes, false, read)?;
                        let (index, offset) =
                            self.global_access(w, &mut hint, lane, address, bytes, bytes, true, read)?;
                        &mut self.memory.allocations[index].data[offset..][..bytes as usize]
                    }
                    _ => return Err(Fault::new(Kind::OutOfBounds, "atomics need shared or global memory")),
                };
                let mut word = [0; 8];
                word[..bytes as usize].copy_from_slice(at);
                let before = u64::from_le_bytes(word);
                let Some(after) = atomic_result(op, ty, before, b[lane as usize], c[lane as usize]) else {
                    return Err(Fault::new(Kind::Unsupported, format!("atom {op:?} of {ty:?}")));
                };
                at.copy_from_slice(&after.to_le_bytes()[..bytes as usize]);
                Ok(before)
            })();
            old[lane as usize] = at_lane(result, lane)?;
            let key = sync_key(w, space, address);
            let here = self.sync.get(&key).cloned();
            if let Some(known) = &here {
                self.observe(w, lane, known, sem.acquires());
            }
            let released = if sem.releases() {
                Some(self.snapshot(w, lane))
            } else {
                w.fenced[lane as usize].clone()
            };
            if let Some(released) = released {
                let all = match here {
                    Some(here) => crate::clock::joined(&here, &released),
                    None => released,
                };
                self.sync.insert(key, all);
            }
        }
        w.hint = hint;
        w.time += 1;
        self.idle = 0;
        self.put_any(w, d, &old, active, ty.wide());
        Ok(())
    }

    /// Waits until all of `wanted` are here; true when they are.
    fn meet(&mut self, w: &mut Warp, pc: u32, active: u32, wanted: u32) -> Check<bool> {
        let wanted = wanted & w.live;
        if active & !wanted != 0 {
            return Err(Fault::new(
                Kind::Barrier,
                format!("lanes {active:#010x} carry out an instruction whose mask is {wanted:#010x}"),
            ));
        }
        let waiting = lanes(w.blocked)
            .filter(|&lane| w.why[lane as usize] == Why::Meet && w.pc[lane as usize] == pc)
            .fold(0u32, |mask, lane| mask | 1 << lane);
        if (waiting | active) & wanted == wanted {
            w.blocked &= !(waiting & wanted);
            for lane in lanes(waiting & wanted) {
                w.pc[lane as usize] = pc + 1;
            }
            return Ok(true);
        }
        w.blocked |= active;
        for lane in lanes(active) {
            w.why[lane as usize] = Why::Meet;
        }
        Ok(false)
    }

    /// The same at any barrier of the warp, wherever in the program.
    fn meet_anywhere(&mut self, w: &mut Warp, active: u32, wanted: u32) -> Check<bool> {
        let wanted = wanted & w.live;
        let waiting = lanes(w.blocked)
            .filter(|&lane| {
                w.why[lane as usize] == Why::Meet
                    && matches!(self.entry.code[w.pc[lane as usize] as usize].op, Op::WarpSync { .. })
            })
            .fold(0u32, |mask, lane| mask | 1 << lane);
        if (waiting | active) & wanted == wanted {
            w.blocked &= !(waiting & wanted);
            for lane in lanes(waiting & wanted & !active) {
                w.pc[lane as usize] += 1;
            }
            return Ok(true);
        }
        w.blocked |= active;
        for lane in lanes(active) {
            w.why[lane as usize] = Why::Meet;
        }
        Ok(false)
    }

    fn step(&mut self, w: &mut Warp, op: &Op, pc: u32, active: u32) -> Check<Next> {
        match op {
            Op::Alu {
                f,
                ty,
                mode,
                d,
                a,
                b,
                c,
                e,
            } => self.alu(w, *f, *ty, *mode, *d, [*a, *b, *c, *e], active)?,
            Op::Setp {
                cmp,
                ty,
                ftz,
                d,
                q,
                combine,
                a,
                b,
            } => {
                let (a, b) = (self.any(w, *a, ty.wide()), self.any(w, *b, ty.wide()));
                if let Some(edge) = self.edges.get_mut(pc as usize) {
                    *edge |= !ty.float() && lanes(active).any(|lane| a[lane as usize] == b[lane as usize]);
                }
                let mut value = 0u32;
                if *ty == Ty::S32 || *ty == Ty::U32 || *ty == Ty::B32 {
                    let flip = if *ty == Ty::S32 { 0x8000_0000u64 } else { 0 };
                    for lane in 0..32 {
                        let order = (a[lane] as u32 as u64 ^ flip).cmp(&(b[lane] as u32 as u64 ^ flip));
                        let yes = match cmp {
                            Cmp::Eq => order.is_eq(),
                            Cmp::Ne => order.is_ne(),
                            Cmp::Lt => order.is_lt(),
                            Cmp::Le => order.is_le(),
                            Cmp::Gt => order.is_gt(),
                            _ => order.is_ge(),
                        };
                        value |= u32::from(yes) << lane;
                    }
                } else {
                    for lane in lanes(active) {
                        let yes = alu::compare(*cmp, *ty, *ftz, a[lane as usize], b[lane as usize]);
                        value |= u32::from(yes) << lane;
                    }
                }
                let mut other = !value;
                if let Some((bit, p)) = combine {
                    let p = Self::pred(w, *p);
                    let with = |x: u32| match bit {
                        BitOp::And => x & p,
                        BitOp::Or => x | p,
                        BitOp::Xor => x ^ p,
                    };
                    value = with(value);
                    other = with(other);
                }
                Self::put_pred(w, *d, value, active);
                Self::put_pred(w, *q, other, active);
            }
            Op::Selp { wide, d, a, b, p } => {
                let p = Self::pred(w, *p);
                if *wide {
                    let (a, b) = (self.wide(w, *a), self.wide(w, *b));
                    let value = std::array::from_fn(|lane| if p >> lane & 1 == 1 { a[lane] } else { b[lane] });
                    self.put_wide(w, *d, &value, active);
                } else {
                    let (a, b) = (self.narrow(w, *a), self.narrow(w, *b));
                    let value = std::array::from_fn(|lane| if p >> lane & 1 == 1 { a[lane] } else { b[lane] });
                    self.put(w, *d, &value, active);
                }
            }
            Op::Pred { f, negate, d, a, b } => {
                let (a, b) = (Self::pred(w, *a), Self::pred(w, *b));
                let value = match f {
                    None => a,
                    Some(BitOp::And) => a & b,
                    Some(BitOp::Or) => a | b,
                    Some(BitOp::Xor) => a ^ b,
                };
                Self::put_pred(w, *d, if *negate { !value } else { value }, active);
            }
            Op::Cvt {
                to,
                from,
                mode,
                d,
                d_wide,
                a,
                a_wide,
                b,
            } => {
                let a = self.any(w, *a, *a_wide);
                let mut value = [0; 32];
                match (to, from, b) {
                    (Ty::U64 | Ty::B64, Ty::U32 | Ty::B32, _) => value = a.map(|x| x & 0xFFFF_FFFF),
                    (Ty::S64 | Ty::U64, Ty::S32, _) => {
                        for lane in 0..32 {
                            value[lane] = a[lane] as i32 as i64 as u64;
                        }
                    }
                    (Ty::F16x2 | Ty::BF16x2, Ty::F32, Some(b)) => {
                        let b = self.any(w, *b, false);
                        let half = if *to == Ty::F16x2 { Ty::F16 } else { Ty::BF16 };
                        for lane in 0..32 {
                            let part = |x: u64| alu::convert(half, Ty::F32, *mode, x).unwrap_or(0);
                            value[lane] = part(a[lane]) << 16 | part(b[lane]);
                        }
                    }
                    _ => {
                        for lane in lanes(active) {
                            value[lane as usize] = match alu::convert(*to, *from, *mode, a[lane as usize]) {
                                Some(value) => value,
                                None => {
                                    return Err(Fault::new(Kind::Unsupported, format!("cvt from {from:?} to {to:?}")))
                                }
                            };
                        }
                    }
                }
                self.put_any(w, *d, &value, active, *d_wide);
            }
            Op::Pack { ty, d, parts } => {
                let each = ty.size() * 8 / parts.len() as u32;
                let mut value = [0u64; 32];
                for (i, part) in parts.iter().enumerate() {
                    let part = self.narrow(w, *part);
                    for lane in 0..32 {
                        let bits = u64::from(part[lane]) & ((1 << each) - 1);
                        value[lane] |= bits << (each * i as u32);
                    }
                }
                self.put_any(w, *d, &value, active, ty.wide());
            }
            Op::Unpack { ty, a, parts } => {
                let each = ty.size() * 8 / parts.len() as u32;
                let a = self.any(w, *a, ty.wide());
                for (i, &part) in parts.iter().enumerate() {
                    let value = a.map(|x| (x >> (each * i as u32) & ((1 << each) - 1)) as u32);
                    self.put(w, part, &value, active);
                }
            }
            Op::Ld { constant: true, .. } if self.launch.early && active != 0 => {
                return at_lane(
                    Err(Fault::new(
                        Kind::BeforeGridWait,
                        "ld.global.nc is for memory that nobody writes while the kernel runs, and an earlier kernel may still do so when \
                         this one starts: the compiler may move it ahead of griddepcontrol.wait",
                    )),
                    active.trailing_zeros(),
                );
            }
            Op::Ld {
                space,
                ty,
                sem,
                wide,
                d,
                at,
                ..
            } => self.load(w, *space, *ty, *sem, *wide, d, at, active)?,
            Op::St {
                space,
                ty,
                sem,
                wide,
                s,
                at,
                ..
            } => self.store(w, *space, *ty, *sem, *wide, s, at, active)?,
            Op::Atom {
                space,
                op,
                ty,
                sem,
                d,
                at,
                b,
                c,
                ..
            } => self.atomic(w, *space, *op, *ty, *sem, *d, at, *b, *c, active)?,
            Op::Bra { .. } | Op::Nop | Op::SetMaxReg => {}
            Op::Exit => {
                self.idle = 0;
                for bulk in w.bulks.iter().filter(|bulk| active >> bulk.lane & 1 == 1) {
                    if w.clock[bulk.lane as usize].get(w.block, bulk.components[0]) < bulk.last {
                        let text = "a thread ends, and a bulk copy of its may still read shared memory, which its block may leave";
                        return at_lane(Err(Fault::new(Kind::Unfinished, text)), bulk.lane);
                    }
                }
                let mut known = Known::default();
                self.release_into(&mut known, w, active);
                w.live &= !active;
                // Those who wait for lanes that have ended need not any more.
                for lane in lanes(w.blocked) {
                    if w.why[lane as usize] == Why::Meet {
                        w.blocked &= !(1 << lane);
                    }
                }
                let slot = w.slot;
                self.block_mut(slot).known_at_end.join(&known.clock);
                if w.live == 0 {
                    self.warp_ended(slot)?;
                }
                return Ok(Next::Ended);
            }
            Op::Trap => return Err(Fault::new(Kind::Trap, "trap")),
            Op::Bar {
                kind,
                id,
                threads,
                aligned: _,
            } => return self.bar(w, pc, active, *kind, *id, *threads),
            Op::WarpSync { mask } => {
                let mask = self.narrow(w, *mask)[active.trailing_zeros() as usize];
                if active & !mask != 0 {
                    return Err(Fault::new(
                        Kind::Barrier,
                        format!("lanes {active:#010x} come to a barrier for lanes {mask:#010x}"),
                    ));
                }
                if !self.meet_anywhere(w, active, mask)? {
                    return Ok(Next::Wait);
                }
                let all = mask & w.live;
                self.converge(w, all);
            }
            Op::ClusterArrive { release } => {
                let live = w.live;
                if !self.meet(w, pc, active, live)? {
                    return Ok(Next::Wait);
                }
                self.idle = 0;
                let cluster = self.block_ref(w.slot).cluster;
                let generation = self.clusters[cluster].generation;
                let mut known = std::mem::take(&mut self.clusters[cluster].known);
                if *release {
                    self.release_into(&mut known, w, live);
                } else {
                    // A fence before a relaxed arrival is a release, of what came before the fence.
                    for fenced in lanes(live).filter_map(|lane| w.fenced[lane as usize].as_ref()) {
                        known.clock.join(fenced);
                    }
                }
                self.clusters[cluster].known = known;
                for lane in lanes(live) {
                    w.cluster_generation[lane as usize] = generation + 1;
                }
                w.time += 1;
                self.clusters[cluster].arrived += 1;
                self.complete_cluster(cluster);
            }
            Op::ClusterWait { .. } => {
                let live = w.live;
                if !self.meet(w, pc, active, live)? {
                    return Ok(Next::Wait);
                }
                let generation = w.cluster_generation[live.trailing_zeros() as usize];
                if generation == 0 {
                    return Err(Fault::new(
                        Kind::Barrier,
                        "barrier.cluster.wait without an arrive before it",
                    ));
                }
                for lane in lanes(live) {
                    w.why[lane as usize] = Why::Cluster {
                        generation: generation - 1,
                    };
                    w.cluster_generation[lane as usize] = 0;
                    w.pc[lane as usize] = pc;
                }
                w.blocked |= live;
                return Ok(Next::Wait);
            }
            Op::Shfl {
                kind,
                d,
                p,
                a,
                b,
                c,
                mask,
            } => {
                let wanted = self.narrow(w, *mask)[active.trailing_zeros() as usize];
                if !self.meet(w, pc, active, wanted)? {
                    return Ok(Next::Wait);
                }
                let all = wanted & w.live;
                let (a, b, c) = (self.narrow(w, *a), self.narrow(w, *b), self.narrow(w, *c));
                let mut value = [0; 32];
                let mut valid = 0;
                let before = w.given.clone();
                for lane in lanes(all) {
                    let i = lane as usize;
                    let (clamp, segment) = (c[i] & 31, c[i] >> 8 & 31);
                    let (low, high) = (lane & segment, lane & segment | clamp & !segment);
                    let by = b[i] & 31;
                    let (from, inside) = match kind {
                        Shfl::Idx => {
                            let from = low | by & !segment;
                            (from, from <= high)
                        }
                        Shfl::Up => (lane.wrapping_sub(by), lane as i32 - by as i32 >= high as i32),
                        Shfl::Down => (lane + by, lane + by <= high),
                        Shfl::Bfly => (lane ^ by, lane ^ by <= high),
                    };
                    let from = if inside { from } else { lane };
                    if all >> from & 1 == 0 {
                        return at_lane(
                            Err(Fault::new(
                                Kind::Barrier,
                                format!("shfl reads lane {from}, which does not take part"),
                            )),
                            lane,
                        );
                    }
                    value[i] = a[from as usize];
                    valid |= u32::from(inside) << lane;
                    if from != lane {
                        for (given, &more) in w.given[i].iter_mut().zip(&before[from as usize]) {
                            *given = (*given).max(more);
                        }
                        w.given[i][from as usize] = w.time;
                    }
                }
                w.time += 1; // what these lanes read from here on is no part of it
                self.put(w, *d, &value, all);
                Self::put_pred(w, *p, valid, all);
            }
            Op::Vote { kind, d, p, mask } => {
                let wanted = self.narrow(w, *mask)[active.trailing_zeros() as usize];
                if !self.meet(w, pc, active, wanted)? {
                    return Ok(Next::Wait);
                }
                let all = wanted & w.live;
                let yes = Self::pred(w, *p) & all;
                let answer = match kind {
                    Vote::Ballot => {
                        self.put(w, *d, &[yes; 32], all);
                        return Ok(Next::On);
                    }
                    Vote::Any => yes != 0,
                    Vote::All => yes == all,
                    Vote::Uni => yes == 0 || yes == all,
                };
                Self::put_pred(w, *d, if answer { u32::MAX } else { 0 }, all);
            }
            Op::Redux { op, ty, d, a, mask } => {
                let wanted = self.narrow(w, *mask)[active.trailing_zeros() as usize];
                if !self.meet(w, pc, active, wanted)? {
                    return Ok(Next::Wait);
                }
                let all = wanted & w.live;
                let a = self.narrow(w, *a);
                let mut values = lanes(all).map(|lane| u64::from(a[lane as usize]));
                let first = values.next().unwrap_or(0);
                let Some(value) = values.try_fold(first, |x, y| atomic_result(*op, *ty, x, y, 0)) else {
                    return Err(Fault::new(Kind::Unsupported, format!("redux {op:?} of {ty:?}")));
                };
                self.put(w, *d, &[value as u32; 32], all);
            }
            Op::Elect { d, p, mask } => {
                let wanted = self.narrow(w, *mask)[active.trailing_zeros() as usize];
                if !self.meet(w, pc, active, wanted)? {
                    return Ok(Next::Wait);
                }
                let all = wanted & w.live;
                let leader = all.trailing_zeros();
                self.put(w, *d, &[leader; 32], all);
                Self::put_pred(w, *p, 1 << leader, all);
            }
            Op::Activemask { d } => self.put(w, *d, &[active; 32], active),
            Op::Fence { .. } => {
                for lane in lanes(active) {
                    if let Some(seen) = w.seen[lane as usize].take() {
                        w.clock[lane as usize] = crate::clock::joined(&w.clock[lane as usize], &seen);
                    }
                    w.fenced[lane as usize] = Some(self.snapshot(w, lane));
                }
                w.time += 1;
            }
            Op::FenceProxyAsync { .. } => {
                self.publish_mbarriers(w, active);
                let (first, time, block) = (self.thread_component(w.index * 32), w.time, w.block);
                let shared = w.clock.iter().all(|clock| Rc::ptr_eq(clock, &w.clock[0]));
                if shared && active == w.live {
                    // Each lane vouches for its own writes only; lanes that fence together do not know of each other.
                    let base = w.clock[0].clone();
                    for lane in lanes(active) {
                        let mut own = (*base).clone();
                        own.join(&w.proxy[lane as usize]);
                        own.learn(block, first + lane, time);
                        w.proxy[lane as usize] = Rc::new(own);
                    }
                } else {
                    for lane in lanes(active) {
                        let i = lane as usize;
                        let mut own = (*w.clock[i]).clone();
                        own.join(&w.proxy[i]);
                        own.learn(block, first + lane, time);
                        w.proxy[i] = Rc::new(own);
                    }
                }
                w.time += 1;
            }
            Op::FenceMbarrierInit => {
                // A release that covers the initialisation of mbarriers by this thread alone, not what it knows of others.
                self.publish_mbarriers(w, active);
                for lane in lanes(active) {
                    let mut own = w.fenced[lane as usize].as_deref().cloned().unwrap_or_default();
                    own.learn(w.block, self.thread_component(w.index * 32 + lane), w.time);
                    w.fenced[lane as usize] = Some(Rc::new(own));
                }
                w.time += 1;
            }
            Op::MbarInit { .. }
            | Op::MbarInval { .. }
            | Op::MbarArrive { .. }
            | Op::MbarCompleteTx { .. }
            | Op::CpAsyncMbarArrive { .. } => self.mbarrier(w, op, active)?,
            Op::MbarWait {
                at,
                d,
                parity,
                blocking,
                acquire,
            } => return self.mbarrier_wait(w, at, *d, *parity, *blocking, *acquire, active),
            Op::CpAsync {
                bytes,
                dst,
                src,
                valid,
                ignore,
            } => {
                let ignored = ignore.map_or(0, |pred| Self::pred(w, pred));
                self.cp_async(w, *bytes, dst, src, *valid, (active, ignored))?
            }
            Op::CpAsyncCommit => {
                for lane in lanes(active) {
                    w.committed[lane as usize] += 1;
                }
            }
            Op::CpAsyncWait { pending } => {
                for lane in lanes(active) {
                    let i = lane as usize;
                    w.copied[i] = w.copied[i].max(w.committed[i].saturating_sub(*pending));
                }
            }
            Op::TmaLoad { .. }
            | Op::TmaStore { .. }
            | Op::BulkLoad { .. }
            | Op::BulkStore { .. }
            | Op::StAsync { .. } => self.bulk(w, op, pc, active)?,
            Op::BulkCommit => {
                for bulk in w.bulks.iter_mut().filter(|bulk| active >> bulk.lane & 1 == 1) {
                    bulk.committed += 1;
                }
            }
            Op::BulkWait { pending, read } => {
                let block = w.block;
                for bulk in w.bulks.iter().filter(|bulk| active >> bulk.lane & 1 == 1) {
                    let done = bulk.committed.saturating_sub(*pending);
                    let (components, read) = (bulk.components, *read);
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
            Op::GridWait => {
                let block = w.block;
                map_lanes(&mut w.clock, active, |clock| {
                    let mut clock = (**clock).clone();
                    clock.learn(block, 0, 1);
                    Rc::new(clock)
                });
            }
            Op::GridLaunch => {}
            Op::Mapa { d, wide, a, rank } => {
                let (a, rank) = (self.any(w, *a, *wide), self.narrow(w, *rank));
                let mut value = [0; 32];
                for lane in lanes(active) {
                    let i = lane as usize;
                    if rank[i] >= self.cluster_blocks {
                        return at_lane(
                            Err(Fault::new(
                                Kind::OutOfBounds,
                                format!("mapa of rank {} in a cluster of {}", rank[i], self.cluster_blocks),
                            )),
                            lane,
                        );
                    }
                    value[i] = a[i] & RANK_MASK | u64::from(rank[i] + 1) << RANK_SHIFT;
                }
                self.put_any(w, *d, &value, active, *wide);
            }
            Op::GetCtaRank { d, wide, a } => {
                let a = self.any(w, *a, *wide);
                let own = self.block_ref(w.slot).rank;
                let value = a.map(|a| match (a >> RANK_SHIFT) as u32 {
                    0 => own,
                    rank => rank - 1,
                });
                self.put(w, *d, &value, active);
            }
            Op::WgmmaFence => {
                let live = w.live;
                if !self.meet(w, pc, active, live)? {
                    return Ok(Next::Wait);
                }
                w.fence = w.count;
            }
            Op::WgmmaCommit => {
                let live = w.live;
                if !self.meet(w, pc, active, live)? {
                    return Ok(Next::Wait);
                }
                w.wgmma_committed += 1;
                w.wgmma_open = false;
            }
            Op::WgmmaWait { pending } => {
                let live = w.live;
                if !self.meet(w, pc, active, live)? {
                    return Ok(Next::Wait);
                }
                // All lanes have read what they gave to it in registers.
                self.converge(w, live);
                let done = w.wgmma_committed.saturating_sub(*pending);
                w.wgmma_done = w.wgmma_done.max(done);
                let tags = &mut w.wgmma_tag;
                w.wgmma_tagged.retain(|&register| {
                    let under_way = tags[register as usize] > done;
                    if !under_way {
                        tags[register as usize] = 0;
                    }
                    under_way
                });
            }
            Op::Wgmma(wgmma) => {
                let live = w.live;
                if !self.meet(w, pc, active, live)? {
                    return Ok(Next::Wait);
                }
                self.wgmma(w, wgmma)?;
            }
            Op::Mma(mma) => {
                let live = w.live;
                if !self.meet(w, pc, active, live)? {
                    return Ok(Next::Wait);
                }
                self.mma(w, mma);
            }
            Op::LdMatrix { .. } | Op::StMatrix { .. } => {
                let live = w.live;
                if !self.meet(w, pc, active, live)? {
                    return Ok(Next::Wait);
                }
                self.matrix(w, op)?;
            }
        }
        Ok(Next::On)
    }

    /// Each of these lanes learns what all know.
    fn converge(&self, w: &mut Warp, all: u32) {
        let mut known = Known::default();
        self.release_into(&mut known, w, all);
        w.time += 1;
        let (clock, proxy) = (Rc::new(known.clock), Rc::new(known.proxy));
        join_lanes(&mut w.clock, all, &clock);
        join_lanes(&mut w.proxy, all, &proxy);
    }

    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn alu(&mut self, w: &mut Warp, f: Alu, ty: Ty, mode: Mode, d: u32, s: [Src; 4], active: u32) -> Check<()> {
        let wide = ty.wide();
        match f {
            Alu::CvtaToGeneric | Alu::CvtaFromGeneric => {
                let window = match s[1] {
                    Src::Imm(1) => SHARED_WINDOW,
                    Src::Imm(2) => LOCAL_WINDOW,
                    Src::Imm(3) => PARAM_WINDOW,
                    _ => 0,
                };
                let a = self.any(w, s[0], wide);
                let value = match f {
                    Alu::CvtaToGeneric => a.map(|a| a.wrapping_add(window)),
                    _ => a.map(|a| a.wrapping_sub(window)),
                };
                self.put_any(w, d, &value, active, wide);
                return Ok(());
            }
            _ => {}
        }
        if !wide {
            let (a, b, c) = (self.narrow(w, s[0]), self.narrow(w, s[1]), self.narrow(w, s[2]));
            if let Some(value) = alu::fast(f, ty, mode, &a, &b, &c) {
                self.put(w, d, &value, active);
                return Ok(());
            }
        } else if !matches!(f, Alu::Clz | Alu::Popc | Alu::Bfind | Alu::BfindShift) {
            let a = self.wide(w, s[0]);
            let b = self.any(w, s[1], !matches!(f, Alu::Shl | Alu::Shr));
            if let Some(value) = alu::fast_wide(f, ty, &a, &b) {
                self.put_wide(w, d, &value, active);
                return Ok(());
            }
        }
        let narrow_at = |i: usize| match f {
            Alu::Shl | Alu::Shr => i == 1,
            Alu::Bfe => i >= 1,
            Alu::Bfi => i >= 2,
            _ => false,
        };
        let result_wide = match f {
            Alu::MulWide | Alu::MadWide => ty.size() == 4,
            Alu::Clz | Alu::Popc | Alu::Bfind | Alu::BfindShift => false,
            _ => wide,
        };
        let source = |w: &Warp, i: usize| -> Wide {
            let wide = match f {
                Alu::MadWide if i == 2 => result_wide,
                _ => wide && !narrow_at(i),
            };
            self.any(w, s[i], wide)
        };
        let (a, b, c, e) = (source(w, 0), source(w, 1), source(w, 2), source(w, 3));
        let mut value = [0; 32];
        for lane in lanes(active) {
            let i = lane as usize;
            value[i] = match alu::scalar(f, ty, mode, a[i], b[i], c[i], e[i]) {
                Some(value) => value,
                None => return Err(Fault::new(Kind::Unsupported, format!("{f:?} of {ty:?} with {mode:?}"))),
            };
        }
        self.put_any(w, d, &value, active, result_wide);
        Ok(())
    }

    fn bar(&mut self, w: &mut Warp, pc: u32, active: u32, kind: BarKind, id: Src, threads: Option<Src>) -> Check<Next> {
        let live = w.live;
        if !self.meet(w, pc, active, live)? {
            return Ok(Next::Wait);
        }
        self.idle = 0;
        let first = live.trailing_zeros() as usize;
        let ids = self.narrow(w, id);
        let id = ids[first];
        if id >= 16 {
            return Err(Fault::new(Kind::Barrier, format!("there is no barrier {id}")));
        }
        let expected = threads.map(|threads| self.narrow(w, threads)[first]);
        if let Some(expected) = expected {
            if expected % 32 != 0 || expected == 0 || expected > self.warps * 32 {
                return Err(Fault::new(
                    Kind::Barrier,
                    format!(
                        "a barrier cannot be of {expected} threads of a block of {}",
                        self.threads
                    ),
                ));
            }
        }
        let mut known = std::mem::take(&mut self.block_mut(w.slot).bars[id as usize].known);
        self.release_into(&mut known, w, live);
        w.time += 1;
        let vote = match kind {
            BarKind::RedAnd(_, p) | BarKind::RedOr(_, p) | BarKind::RedPopc(_, p) => {
                [(Self::pred(w, p) & live).count_ones(), live.count_ones()]
            }
            _ => [0; 2],
        };
        let barrier = &mut self.block_mut(w.slot).bars[id as usize];
        barrier.known = known;
        if barrier.arrived > 0 && barrier.expected != expected {
            return Err(Fault::new(
                Kind::Barrier,
                format!(
                    "some say that barrier {id} is of {:?} threads, others of {expected:?}",
                    barrier.expected
                ),
            ));
        }
        barrier.expected = expected;
        barrier.arrived += 32;
        barrier.votes[0] += vote[0];
        barrier.votes[1] += vote[1];
        let (generation, arrived) = (barrier.generation, barrier.arrived);
        if self.watches_barrier(id) {
            let how = if kind == BarKind::Arrive {
                "arrives at"
            } else {
                "comes to"
            };
            self.tell(
                w,
                w.slot,
                live,
                format!("{how} barrier {id}, where {arrived} threads are now"),
            );
        }
        if kind != BarKind::Arrive {
            for lane in lanes(live) {
                w.why[lane as usize] = Why::Bar { id, generation };
                w.pc[lane as usize] = pc;
            }
            w.blocked |= live;
        }
        self.complete_barrier(w.slot, id);
        match kind {
            BarKind::Arrive => Ok(Next::On),
            _ => Ok(Next::Wait),
        }
    }

    fn barrier_place(&mut self, w: &Warp, space: Space, lane: u32, address: u64) -> Check<(usize, u32)> {
        let space = if space == Space::Generic { Space::Shared } else { space };
        let address = if address >= SHARED_WINDOW {
            address - SHARED_WINDOW
        } else {
            address
        };
        let (slot, at) = self.shared_place(w, space, address)?;
        self.shared_bounds(at, 8, 8)?;
        let own = self.ordinary(w, lane, true, false).epoch;
        self.touch(w, slot, own)?;
        Ok((slot, at))
    }

    fn not_public(at: u32) -> Box<Fault> {
        Fault::new(
            Kind::Mbarrier,
            format!("no fence.mbarrier_init has made the mbarrier at {at:#x} visible to copies and other blocks"),
        )
    }

    fn missing(at: u32) -> Box<Fault> {
        Fault::new(
            Kind::Mbarrier,
            format!("there is no mbarrier at {at:#x}: it was not initialised"),
        )
    }

    fn mbarrier(&mut self, w: &mut Warp, op: &Op, active: u32) -> Check<()> {
        self.idle = 0;
        match op {
            Op::MbarInit { at, count } => {
                let (addresses, counts) = (self.addresses(w, at), self.narrow(w, *count));
                for lane in lanes(active) {
                    let result = self.mbarrier_init(w, lane, addresses[lane as usize], counts[lane as usize]);
                    at_lane(result, lane)?;
                }
            }
            Op::MbarInval { at } => {
                let addresses = self.addresses(w, at);
                for lane in lanes(active) {
                    let (slot, at) = at_lane(
                        self.barrier_place(w, Space::Shared, lane, addresses[lane as usize]),
                        lane,
                    )?;
                    if self.block_mut(slot).mbars.remove(&at).is_none() {
                        return at_lane(Err(Self::missing(at)), lane);
                    }
                }
            }
            Op::MbarArrive {
                space,
                at,
                release,
                expect,
                arrive,
                d,
            } => {
                let addresses = self.addresses(w, at);
                let expect = expect.map(|expect| self.narrow(w, expect));
                let arrive = arrive.map(|arrive| self.narrow(w, arrive));
                let mut states = [0; 32];
                // Lanes that arrive at the same barrier do so together.
                let mut rest = active;
                while rest != 0 {
                    let first = rest.trailing_zeros();
                    let same = lanes(rest)
                        .filter(|&lane| addresses[lane as usize] == addresses[first as usize])
                        .fold(0u32, |mask, lane| mask | 1 << lane);
                    rest &= !same;
                    let result = (|| -> Check<u32> {
                        let (slot, at) = self.barrier_place(w, *space, first, addresses[first as usize])?;
                        let (mut bytes, mut many) = (0i64, 0u32);
                        for lane in lanes(same) {
                            bytes += expect.map_or(0, |expect| i64::from(expect[lane as usize]));
                            many += arrive.map_or(0, |arrive| arrive[lane as usize]);
                        }
                        let Some(barrier) = self.block_mut(slot).mbars.get_mut(&at) else {
                            return Err(Self::missing(at));
                        };
                        if slot != w.slot && !barrier.public {
                            return Err(Self::not_public(at));
                        }
                        barrier.bytes += bytes;
                        if many > barrier.pending {
                            return Err(Fault::new(
                                Kind::Mbarrier,
                                format!(
                                    "{many} arrive at the mbarrier at {at:#x}, which waits for {} of {} in phase {}",
                                    barrier.pending, barrier.count, barrier.phase
                                ),
                            ));
                        }
                        barrier.pending -= many;
                        let phase = barrier.phase;
                        let (pending, missing) = (barrier.pending, barrier.bytes);
                        if self.watches_shared(at, 8) {
                            let what = format!(
                                "arrives ({many}) and announces {bytes} bytes; phase {phase} waits for {pending} arrivals and \
                                 {missing} bytes"
                            );
                            self.tell(w, slot, same, what);
                        }
                        if *release && many > 0 {
                            let barrier = self.block_mut(slot).mbars.get_mut(&at);
                            let mut known = barrier
                                .map(|barrier| std::mem::take(&mut barrier.known))
                                .unwrap_or_default();
                            self.release_into(&mut known, w, same);
                            if let Some(barrier) = self.block_mut(slot).mbars.get_mut(&at) {
                                barrier.known = known;
                            }
                        }
                        self.advance_mbarrier(slot, at)?;
                        Ok(phase)
                    })();
                    let phase = at_lane(result, first)?;
                    lanes(same).for_each(|lane| states[lane as usize] = phase.into());
                }
                w.time += 1;
                self.put_wide(w, *d, &states, active);
            }
            Op::MbarCompleteTx { space, at, bytes } => {
                let (addresses, bytes) = (self.addresses(w, at), self.narrow(w, *bytes));
                for lane in lanes(active) {
                    let result = (|| -> Check<()> {
                        let (slot, at) = self.barrier_place(w, *space, lane, addresses[lane as usize])?;
                        let Some(barrier) = self.block_mut(slot).mbars.get_mut(&at) else {
                            return Err(Self::missing(at));
                        };
                        barrier.bytes -= i64::from(bytes[lane as usize]);
                        self.advance_mbarrier(slot, at)
                    })();
                    at_lane(result, lane)?;
                }
            }
            Op::CpAsyncMbarArrive { at, noinc } => {
                let addresses = self.addresses(w, at);
                // The copies so far count as done for those who wait for the barrier.
                for lane in lanes(active) {
                    let result = (|| -> Check<()> {
                        let (slot, at) = self.barrier_place(w, Space::Shared, lane, addresses[lane as usize])?;
                        let mut clock = (*self.snapshot(w, lane)).clone();
                        let component = self.copies_component(w.index * 32 + lane);
                        if component != u32::MAX {
                            clock.learn(w.block, component, w.committed[lane as usize] + 1);
                        }
                        // Later copies are of a later group.
                        w.committed[lane as usize] += 1;
                        let proxy = w.proxy[lane as usize].clone();
                        let Some(barrier) = self.block_mut(slot).mbars.get_mut(&at) else {
                            return Err(Self::missing(at));
                        };
                        barrier.known.join(&Rc::new(clock), &proxy);
                        if *noinc {
                            if barrier.pending == 0 {
                                return Err(Fault::new(Kind::Mbarrier, format!("too many arrive at {at:#x}")));
                            }
                            barrier.pending -= 1;
                        }
                        self.advance_mbarrier(slot, at)
                    })();
                    at_lane(result, lane)?;
                }
                w.time += 1;
            }
            _ => {}
        }
        Ok(())
    }

    fn mbarrier_init(&mut self, w: &Warp, lane: u32, address: u64, count: u32) -> Check<()> {
        let (slot, at) = self.barrier_place(w, Space::Shared, lane, address)?;
        if slot != w.slot {
            return Err(Fault::new(
                Kind::Mbarrier,
                "another block's mbarrier cannot be initialised",
            ));
        }
        if self.block_ref(slot).mbars.contains_key(&at) {
            return Err(Fault::new(
                Kind::Mbarrier,
                format!("the mbarrier at {at:#x} is initialised a second time"),
            ));
        }
        if count == 0 || count >= 1 << 20 {
            return Err(Fault::new(
                Kind::Mbarrier,
                format!("an mbarrier cannot be for {count} arrivals"),
            ));
        }
        let component = self.new_component(slot)?;
        let access = self.ordinary(w, lane, true, false);
        let _ = self.shared_access(w, lane, (slot, at), 8, true, access)?;
        if self.watches_shared(at, 8) {
            self.tell(
                w,
                slot,
                1 << lane,
                format!("initialises the mbarrier for {count} arrivals"),
            );
        }
        let owner = self.thread_component(w.index * 32 + lane);
        self.block_mut(slot).mbars.insert(
            at,
            Mbarrier {
                count,
                pending: count,
                bytes: 0,
                phase: 0,
                component,
                known: Known::default(),
                done: Default::default(),
                copies: 0,
                owner,
                public: false,
            },
        );
        Ok(())
    }

    /// Copies and other blocks may use the mbarriers that these lanes have initialised.
    fn publish_mbarriers(&mut self, w: &Warp, active: u32) {
        let first = self.thread_component(w.index * 32);
        for barrier in self.block_mut(w.slot).mbars.values_mut() {
            let lane = barrier.owner.wrapping_sub(first);
            barrier.public |= lane < 32 && active >> lane & 1 == 1;
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn mbarrier_wait(
        &mut self,
        w: &mut Warp,
        at: &Addr,
        d: u32,
        parity: Src,
        blocking: bool,
        acquire: bool,
        active: u32,
    ) -> Check<Next> {
        let (addresses, parities) = (self.addresses(w, at), self.narrow(w, parity));
        let (mut yes, mut no) = (0, 0);
        let mut rest = active;
        while rest != 0 {
            let first = rest.trailing_zeros() as usize;
            let same = lanes(rest)
                .filter(|&lane| {
                    addresses[lane as usize] == addresses[first] && parities[lane as usize] == parities[first]
                })
                .fold(0u32, |mask, lane| mask | 1 << lane);
            rest &= !same;
            let lane = first as u32;
            let (slot, at) = at_lane(self.barrier_place(w, Space::Shared, lane, addresses[first]), lane)?;
            // Its initialisation has to be known, like any write.
            let read = Access {
                strong: false,
                ..self.ordinary(w, lane, false, false)
            };
            let init = self
                .block_ref(slot)
                .mbars
                .get(&at)
                .map(|barrier| (barrier.phase, barrier.done.clone()));
            let Some((phase, done)) = init else {
                return at_lane(Err(Self::missing(at)), lane);
            };
            for lane in lanes(same) {
                at_lane(self.knows_barrier(w, lane, slot, at, read), lane)?;
            }
            if self.watches_shared(at, 8) {
                let parity = parities[first] & 1;
                let answer = if phase % 2 != parity { "goes on" } else { "has to wait" };
                self.tell(
                    w,
                    slot,
                    same,
                    format!("waits for parity {parity} in phase {phase}: {answer}"),
                );
            }
            if phase % 2 != parities[first] & 1 {
                yes |= same;
                if acquire {
                    join_lanes(&mut w.clock, same, &done.0);
                    join_lanes(&mut w.proxy, same, &done.1);
                }
            } else {
                no |= same;
                if blocking {
                    self.report.waits += 1;
                    w.blocked |= same;
                    for lane in lanes(same) {
                        w.why[lane as usize] = Why::Mbar {
                            slot,
                            at,
                            parity: parities[first] & 1,
                        };
                    }
                }
            }
        }
        if !blocking || no == 0 {
            Self::put_pred(w, d, yes, active);
            return Ok(Next::On);
        }
        // Those whose phase has completed go on by themselves; the others come back here.
        Self::put_pred(w, d, yes, yes);
        for lane in lanes(yes) {
            w.pc[lane as usize] += 1;
        }
        Ok(Next::Wait)
    }

    fn knows_barrier(&self, w: &Warp, lane: u32, slot: usize, at: u32, _read: Access) -> Check<()> {
        let view = self.view(w, lane);
        let cell = &self.block_ref(slot).cells[(at >> self.grain) as usize];
        match cell.unknown_write(&view) {
            Some(epoch) => Err(Fault::race(
                Kind::Mbarrier,
                format!("the mbarrier at {at:#x} is used, and its initialisation may not have happened"),
                epoch,
            )),
            None => Ok(()),
        }
    }

    fn cp_async(
        &mut self,
        w: &mut Warp,
        bytes: u32,
        dst: &Addr,
        src: &Addr,
        valid: Option<Src>,
        (active, ignored): (u32, u32),
    ) -> Check<()> {
        let (to, from) = (self.addresses(w, dst), self.addresses(w, src));
        let valid = valid.map(|valid| self.narrow(w, valid));
        let mut hint = w.hint;
        for lane in lanes(active) {
            let i = lane as usize;
            let result = (|| -> Check<()> {
                let address = if to[i] >= SHARED_WINDOW {
                    to[i] - SHARED_WINDOW
                } else {
                    to[i]
                };
                let (slot, offset) = self.shared_place(w, Space::Shared, address)?;
                self.shared_bounds(offset, bytes, bytes)?;
                self.not_a_barrier(slot, offset, bytes)?;
                let read = match ignored >> lane & 1 {
                    1 => 0,
                    _ => valid.map_or(bytes, |valid| valid[i].min(bytes)),
                };
                let mut data = [0u8; 16];
                if read > 0 && from[i] % u64::from(bytes) != 0 {
                    return Err(Fault::new(
                        Kind::Misaligned,
                        format!("the source {:#x} is no multiple of {bytes}", from[i]),
                    ));
                }
                if read > 0 {
                    let access = self.ordinary(w, lane, false, false);
                    let (index, at) = self.global_access(w, &mut hint, lane, from[i], read, 1, false, access)?;
                    data[..read as usize].copy_from_slice(&self.memory.allocations[index].data[at..at + read as usize]);
                }
                let thread = w.index * 32 + lane;
                let access = Access {
                    epoch: Epoch::new(w.block, self.copies_component(thread), w.committed[i] + 1),
                    proxy: false,
                    strong: false,
                    rmw: false,
                };
                self.shared_access(w, lane, (slot, offset), bytes, true, access)?;
                self.block_mut(slot).data[offset as usize..][..bytes as usize].copy_from_slice(&data[..bytes as usize]);
                Ok(())
            })();
            at_lane(result, lane)?;
        }
        w.hint = hint;
        Ok(())
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

    fn bulk(&mut self, w: &mut Warp, op: &Op, pc: u32, active: u32) -> Check<()> {
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

    /// An access of bulk copies or `wgmma` to a run of shared memory, on behalf of a lane.
    #[allow(clippy::too_many_arguments)]
    fn proxy_cells(
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

    /// Registers of a `wgmma` that is under way are not to be touched; copies of them stand for them.
    fn check_wgmma_registers(&self, w: &mut Warp, op: &Op) -> Check<()> {
        let busy = |register: u32, tags: &[u32]| -> bool { register != SINK && tags[register as usize] != 0 };
        let complain = |register: u32| {
            Err(Fault::new(
                Kind::WgmmaRegisters,
                format!("register number {register} belongs to a wgmma that is under way"),
            ))
        };
        let source = |src: &Src, tags: &[u32]| match src {
            Src::Reg(register) if busy(*register, tags) => Some(*register),
            _ => None,
        };
        let tags = &w.wgmma_tag;
        match op {
            Op::Alu {
                f: Alu::Mov,
                ty,
                d,
                a: Src::Reg(a),
                ..
            } if !ty.wide() => {
                if busy(*a, tags) {
                    let tag = tags[*a as usize];
                    if !busy(*d, tags) {
                        w.wgmma_tagged.push(*d);
                    }
                    w.wgmma_tag[*d as usize] = tag;
                    return Ok(());
                }
                if busy(*d, tags) {
                    return complain(*d);
                }
            }
            Op::Alu { f, ty, d, a, b, c, .. } if !ty.wide() => {
                for src in [a, b, c] {
                    if let Some(register) = source(src, tags) {
                        return complain(register);
                    }
                }
                if !matches!(f, Alu::MulWide | Alu::MadWide) && busy(*d, tags) {
                    return complain(*d);
                }
            }
            Op::Selp {
                wide: false, d, a, b, ..
            } => {
                for src in [a, b] {
                    if let Some(register) = source(src, tags) {
                        return complain(register);
                    }
                }
                if busy(*d, tags) {
                    return complain(*d);
                }
            }
            Op::Setp { ty, a, b, .. } if !ty.wide() => {
                for src in [a, b] {
                    if let Some(register) = source(src, tags) {
                        return complain(register);
                    }
                }
            }
            Op::St { wide: false, s, .. } => {
                for src in s {
                    if let Some(register) = source(src, tags) {
                        return complain(register);
                    }
                }
            }
            Op::Ld { wide: false, d, .. } => {
                for &d in d {
                    if busy(d, tags) {
                        return complain(d);
                    }
                }
            }
            Op::Shfl { d, a, .. } => {
                if let Some(register) = source(a, tags) {
                    return complain(register);
                }
                if busy(*d, tags) {
                    return complain(*d);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn wgmma(&mut self, w: &mut Warp, wgmma: &Wgmma) -> Check<()> {
        let size = wgmma.ty.size();
        let size = if wgmma.ty == Ty::Tf32 { 4 } else { size };
        let depth = 32 / size;
        let scale = Self::pred(w, wgmma.scale_d);
        if scale != 0 && scale & w.live != w.live {
            return Err(Fault::new(
                Kind::Unsupported,
                "scale-d differs between the threads of a warp",
            ));
        }
        let accumulate = scale & w.live != 0;
        let group = w.wgmma_committed + 1;
        let tags_a: &[u32] = match &wgmma.a {
            WgmmaA::Regs(registers) => registers,
            WgmmaA::Desc(_) => &[],
        };
        for &register in wgmma.d.iter().chain(tags_a) {
            if w.stamps[register as usize] > w.fence {
                return Err(Fault::new(
                    Kind::WgmmaRegisters,
                    format!("register number {register} was written after the last wgmma.fence"),
                ));
            }
        }
        for &register in tags_a {
            if w.wgmma_tag[register as usize] != 0 && wgmma.d.contains(&register) {
                return Err(Fault::new(
                    Kind::WgmmaRegisters,
                    format!("register number {register} is both A and D"),
                ));
            }
        }
        let access = Access {
            epoch: Epoch::new(w.block, self.wgmma_component(w.index), group),
            proxy: true,
            strong: false,
            rmw: false,
        };
        let quarter = w.index % 4;
        // A's rows of this warp.
        let mut a = [[Number::default(); 16]; 16];
        match &wgmma.a {
            WgmmaA::Regs(registers) => {
                let words: Vec<Narrow> = registers.iter().map(|&r| w.narrow[r as usize]).collect();
                fragments(&words, wgmma.ty, depth, &mut a);
            }
            WgmmaA::Desc(src) => {
                let descriptor = Descriptor::parse(self.wide(w, *src)[w.live.trailing_zeros() as usize]);
                for row in 0..16 {
                    let mn = quarter * 16 + row as u32;
                    self.tile_row(
                        w,
                        &descriptor,
                        mn,
                        depth,
                        size,
                        wgmma.transposed[0],
                        wgmma.ty,
                        access,
                        &mut a[row],
                    )?;
                }
            }
        }
        let descriptor = Descriptor::parse(self.wide(w, wgmma.b)[w.live.trailing_zeros() as usize]);
        let mut b = vec![[Number::default(); 16]; wgmma.n as usize];
        for (column, numbers) in b.iter_mut().enumerate() {
            self.tile_row(
                w,
                &descriptor,
                column as u32,
                depth,
                size,
                wgmma.transposed[1],
                wgmma.ty,
                access,
                numbers,
            )?;
        }
        if wgmma.negate[0] != wgmma.negate[1] {
            a.iter_mut().flatten().for_each(Number::negate);
        }
        let depth = depth as usize;
        let rows = Rows::new(a, depth, size == 4, self.arithmetic);
        for (registers, columns) in wgmma.d.chunks_exact(4).zip(b.as_chunks::<8>().0) {
            let mut sums = [[0; 32]; 4];
            if accumulate {
                sums = std::array::from_fn(|i| w.narrow[registers[i] as usize]);
            }
            rows.multiply(columns, &mut sums);
            for (&register, sums) in registers.iter().zip(sums) {
                w.narrow[register as usize] = sums;
            }
        }
        self.report.tensor_multiply_adds += 16 * u64::from(wgmma.n) * depth as u64;
        for &register in wgmma.d.iter().chain(tags_a) {
            if w.wgmma_tag[register as usize] == 0 {
                w.wgmma_tagged.push(register);
            }
            w.wgmma_tag[register as usize] = group;
        }
        w.wgmma_open = true;
        Ok(())
    }

    /// A row of A or a column of B out of shared memory.
    #[allow(clippy::too_many_arguments)]
    fn tile_row(
        &mut self,
        w: &Warp,
        descriptor: &Descriptor,
        mn: u32,
        depth: u32,
        size: u32,
        mn_major: bool,
        ty: Ty,
        access: Access,
        numbers: &mut [Number; 16],
    ) -> Check<()> {
        let per_chunk = if mn_major { 1 } else { 16 / size };
        let lane = w.live.trailing_zeros();
        for first in (0..depth).step_by(per_chunk as usize) {
            let at = descriptor.address(mn, first, size, mn_major);
            let bytes = per_chunk * size;
            self.shared_bounds(at, bytes, bytes)?;
            self.proxy_cells(w, lane, w.slot, at, bytes, false, access)?;
            let data = &self.block_ref(w.slot).data[at as usize..];
            for i in 0..per_chunk {
                let part = &data[(i * size) as usize..];
                let bits = match size {
                    4 => u32::from_le_bytes([part[0], part[1], part[2], part[3]]),
                    _ => u16::from_le_bytes([part[0], part[1]]).into(),
                };
                numbers[(first + i) as usize] = Number::of(bits, ty);
            }
        }
        Ok(())
    }

    fn mma(&mut self, w: &mut Warp, mma: &Mma) {
        let words =
            |registers: &[u32], w: &Warp| -> Vec<Narrow> { registers.iter().map(|&r| w.narrow[r as usize]).collect() };
        let mut a = [[Number::default(); 16]; 16];
        fragments(&words(&mma.a, w), mma.ty, mma.k, &mut a);
        let mut b = [[Number::default(); 16]; 8];
        let b_words = words(&mma.b, w);
        let per_word = if mma.ty == Ty::Tf32 { 1 } else { 2 };
        for (i, word) in b_words.iter().enumerate() {
            for (lane, &bits) in word.iter().enumerate() {
                for part in 0..per_word {
                    let k = i * 4 * per_word + lane % 4 * per_word + part;
                    b[lane / 4][k] = Number::of(bits >> (16 * part), mma.ty);
                }
            }
        }
        let rows = Rows::new(a, mma.k as usize, per_word == 1, self.arithmetic);
        let mut sums = std::array::from_fn(|i| self.narrow(w, mma.c[i]));
        rows.multiply(&b, &mut sums);
        for (&d, sums) in mma.d.iter().zip(&sums) {
            self.put(w, d, sums, u32::MAX);
        }
        self.report.tensor_multiply_adds += 16 * 8 * u64::from(mma.k);
    }

    /// `ldmatrix` and `stmatrix`: 8 × 8 matrices of 16-bit elements, whose rows lie where lanes say.
    fn matrix(&mut self, w: &mut Warp, op: &Op) -> Check<()> {
        let (many, at, trans, store) = match op {
            Op::LdMatrix { d, at, trans } => (d.len(), at, *trans, None),
            Op::StMatrix { s, at, trans } => (s.len(), at, *trans, Some(s)),
            _ => return Ok(()),
        };
        let addresses = self.addresses(w, at);
        let place = |row: usize, matrix: usize| matrix * 8 + row;
        let mut out = vec![[0u32; 32]; many];
        for matrix in 0..many {
            let values = store.map(|s| self.narrow(w, s[matrix]));
            for row in 0..8 {
                let lane = place(row, matrix);
                let result = (|| -> Check<()> {
                    let (slot, offset) = match self.place(w, Space::Shared, addresses[lane] & (WINDOW - 1))? {
                        Place::Shared(slot, offset) => (slot, offset),
                        _ => return Ok(()),
                    };
                    self.shared_bounds(offset, 16, 16)?;
                    self.not_a_barrier(slot, offset, 16)?;
                    let access = self.ordinary(w, lane as u32, store.is_some(), false);
                    if !self.shared_access(w, lane as u32, (slot, offset), 16, store.is_some(), access)? {
                        return Err(Fault::new(Kind::Uninitialised, "a matrix of memory that nothing wrote"));
                    }
                    let data = &mut self.block_mut(slot).data[offset as usize..][..16];
                    for column in 0..8 {
                        let (r, c) = if trans { (column, row) } else { (row, column) };
                        let (thread, half) = (r * 4 + c / 2, c % 2);
                        match &values {
                            Some(values) => {
                                let bits = (values[thread] >> (16 * half)) as u16;
                                data[2 * column..2 * column + 2].copy_from_slice(&bits.to_le_bytes());
                            }
                            None => {
                                let bits = u16::from_le_bytes([data[2 * column], data[2 * column + 1]]);
                                out[matrix][thread] |= u32::from(bits) << (16 * half);
                            }
                        }
                    }
                    Ok(())
                })();
                at_lane(result, lane as u32)?;
            }
        }
        if let Op::LdMatrix { d, .. } = op {
            for (&d, value) in d.iter().zip(&out) {
                self.put(w, d, value, u32::MAX);
            }
        }
        Ok(())
    }
}

/// Operand A of `mma` and `wgmma` out of registers: rows of numbers.
fn fragments(words: &[Narrow], ty: Ty, depth: u32, a: &mut [[Number; 16]; 16]) {
    let per_word = if ty == Ty::Tf32 { 1 } else { 2 };
    debug_assert!(words.len() * 64 / 16 * per_word >= depth as usize / 2);
    for (i, word) in words.iter().enumerate() {
        for (lane, &bits) in word.iter().enumerate() {
            for part in 0..per_word {
                let row = lane / 4 + i % 2 * 8;
                let k = i / 2 * 4 * per_word + lane % 4 * per_word + part;
                a[row][k] = Number::of(bits >> (16 * part), ty);
            }
        }
    }
}

/// Whether an instruction is one that lanes carry out together.
fn meets(op: &Op) -> bool {
    matches!(
        op,
        Op::Bar { .. }
            | Op::WarpSync { .. }
            | Op::ClusterArrive { .. }
            | Op::ClusterWait { .. }
            | Op::Shfl { .. }
            | Op::Vote { .. }
            | Op::Redux { .. }
            | Op::Elect { .. }
            | Op::WgmmaFence
            | Op::WgmmaCommit
            | Op::WgmmaWait { .. }
            | Op::Wgmma(_)
            | Op::Mma(_)
            | Op::LdMatrix { .. }
            | Op::StMatrix { .. }
            | Op::MbarWait { .. }
            | Op::Exit
    )
}

/// Where what a strong access publishes is kept.
fn sync_key(w: &Warp, space: Space, address: u64) -> u64 {
    match space {
        Space::Shared | Space::Cluster => 1 << 63 | u64::from(w.block) << 32 | address,
        _ => address,
    }
}

fn atomic_result(op: AtomOp, ty: Ty, a: u64, b: u64, c: u64) -> Option<u64> {
    let mask = if ty.size() == 8 { u64::MAX } else { 0xFFFF_FFFF };
    if ty.float() {
        return match (op, ty) {
            (AtomOp::Add, Ty::F32) => Some((f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits().into()),
            (AtomOp::Add, Ty::F64) => Some((f64::from_bits(a) + f64::from_bits(b)).to_bits()),
            _ => None,
        };
    }
    let signed = |x: u64| {
        if ty.size() == 8 {
            x as i64
        } else {
            i64::from(x as u32 as i32)
        }
    };
    let less = if ty.signed() {
        signed(a) < signed(b)
    } else {
        (a & mask) < (b & mask)
    };
    Some(
        mask & match op {
            AtomOp::Add => a.wrapping_add(b),
            AtomOp::Min => {
                if less {
                    a
                } else {
                    b
                }
            }
            AtomOp::Max => {
                if less {
                    b
                } else {
                    a
                }
            }
            AtomOp::And => a & b,
            AtomOp::Or => a | b,
            AtomOp::Xor => a ^ b,
            AtomOp::Exch => b,
            AtomOp::Cas => {
                if a & mask == b & mask {
                    c
                } else {
                    a
                }
            }
            AtomOp::Inc => {
                if a & mask >= b & mask {
                    0
                } else {
                    a + 1
                }
            }
            AtomOp::Dec => {
                if a & mask == 0 || a & mask > b & mask {
                    b
                } else {
                    a - 1
                }
            }
        },
    )
}
