//! Atomics on memory.

use super::addresses::Place;
use super::lanes;
use super::order::sync_key;
use crate::finding::{at_lane, Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Machine, Warp};
use crate::shadow::Access;

impl Machine<'_> {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn atomic(
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
}

pub(super) fn atomic_result(op: AtomOp, ty: Ty, a: u64, b: u64, c: u64) -> Option<u64> {
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
