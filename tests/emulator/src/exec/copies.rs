//! Copies of a thread, of up to 16 bytes (`cp.async`).

use super::addresses::SHARED_WINDOW;
use super::lanes;
use crate::clock::Epoch;
use crate::finding::{at_lane, Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Machine, Warp};
use crate::shadow::Access;

impl Machine<'_> {
    #[inline]
    pub(super) fn cp_async(
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

    pub(super) fn cp_async_commit(w: &mut Warp, active: u32) {
        for lane in lanes(active) {
            w.committed[lane as usize] += 1;
        }
    }

    pub(super) fn cp_async_wait(w: &mut Warp, pending: u32, active: u32) {
        for lane in lanes(active) {
            let i = lane as usize;
            w.copied[i] = w.copied[i].max(w.committed[i].saturating_sub(pending));
        }
    }
}
