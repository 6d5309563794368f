//! Loads and stores.

use super::addresses::Place;
use super::lanes;
use super::order::sync_key;
use crate::finding::{at_lane, Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Machine, Warp};

impl Machine<'_> {
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn load(
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

    /// Memory that an earlier kernel may still write is not for loads that say that nobody writes it.
    pub(super) fn too_early(active: u32) -> Check<()> {
        let fault = Fault::new(
            Kind::BeforeGridWait,
            "ld.global.nc is for memory that nobody writes while the kernel runs, and an earlier kernel may still do so \
             when this one starts: the compiler may move it ahead of griddepcontrol.wait",
        );
        at_lane(Err(fault), active.trailing_zeros())
    }

    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn store(
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
}
