//! Addresses: what operands say, and where in which memory that is.

use super::lanes;
use super::registers::widened;
use crate::alu::Wide;
use crate::finding::{at_lane, Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Machine, Warp};

/// Where shared, local and parameter memory lie for generic addresses.
pub(super) const SHARED_WINDOW: u64 = 0x7F00_0000_0000;
pub(super) const LOCAL_WINDOW: u64 = 0x7F10_0000_0000;
pub(super) const PARAM_WINDOW: u64 = 0x7F20_0000_0000;
pub(super) const WINDOW: u64 = 1 << 32;
/// A shared address of another block of the cluster has its rank, plus 1, from this bit on.
const RANK_SHIFT: u32 = 24;
const RANK_MASK: u64 = (1 << RANK_SHIFT) - 1;

/// Where an address points.
pub(super) enum Place {
    Shared(usize, u32),
    Global(u64),
    Param(u64),
    Local(u64),
}

impl Machine<'_> {
    #[inline]
    pub(super) fn addresses(&self, w: &Warp, at: &Addr) -> Wide {
        let mut base = match (at.base, at.wide) {
            (Src::Reg(_), false) => widened(&self.narrow(w, at.base)),
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

    #[inline]
    pub(super) fn place(&self, w: &Warp, space: Space, address: u64) -> Check<Place> {
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

    #[inline]
    pub(super) fn shared_place(&self, w: &Warp, space: Space, address: u64) -> Check<(usize, u32)> {
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

    /// Where a lane's local memory lies in its block's.
    #[inline]
    pub(super) fn local(&self, w: &Warp, lane: u32, offset: u64, bytes: u32) -> Check<usize> {
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

    pub(super) fn mapa(&mut self, w: &mut Warp, wide: bool, d: u32, [a, rank]: [Src; 2], active: u32) -> Check<()> {
        let (a, rank) = (self.any(w, a, wide), self.narrow(w, rank));
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
        self.put_any(w, d, &value, active, wide);
        Ok(())
    }

    pub(super) fn get_cta_rank(&mut self, w: &mut Warp, wide: bool, d: u32, a: Src, active: u32) {
        let a = self.any(w, a, wide);
        let own = self.block_ref(w.slot).rank;
        let value = a.map(|a| match (a >> RANK_SHIFT) as u32 {
            0 => own,
            rank => rank - 1,
        });
        self.put(w, d, &value, active);
    }
}
