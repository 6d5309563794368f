//! What lanes of a warp carry out together: they meet, shuffle, vote, reduce and elect.

use super::atomics::atomic_result;
use super::{lanes, Next};
use crate::finding::{at_lane, Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Machine, Warp, Why};

impl Machine<'_> {
    /// Waits until all of `wanted` are here; true when they are.
    #[inline]
    pub(super) fn meet(&mut self, w: &mut Warp, pc: u32, active: u32, wanted: u32) -> Check<bool> {
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

    /// Waits until all lanes of an instruction's mask are here, and says which of them take part.
    fn meet_of(&mut self, w: &mut Warp, pc: u32, mask: Src, active: u32) -> Check<Option<u32>> {
        let wanted = self.narrow(w, mask)[active.trailing_zeros() as usize];
        Ok(self.meet(w, pc, active, wanted)?.then_some(wanted & w.live))
    }

    pub(super) fn warp_sync(&mut self, w: &mut Warp, mask: Src, active: u32) -> Check<Next> {
        let mask = self.narrow(w, mask)[active.trailing_zeros() as usize];
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
        Ok(Next::On)
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn shfl(
        &mut self,
        w: &mut Warp,
        pc: u32,
        kind: Shfl,
        (d, p): (u32, u32),
        [a, b, c]: [Src; 3],
        mask: Src,
        active: u32,
    ) -> Check<Next> {
        let Some(all) = self.meet_of(w, pc, mask, active)? else {
            return Ok(Next::Wait);
        };
        let (a, b, c) = (self.narrow(w, a), self.narrow(w, b), self.narrow(w, c));
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
        self.put(w, d, &value, all);
        Self::put_pred(w, p, valid, all);
        Ok(Next::On)
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn vote(
        &mut self,
        w: &mut Warp,
        pc: u32,
        kind: Vote,
        d: u32,
        p: PredSrc,
        mask: Src,
        active: u32,
    ) -> Check<Next> {
        let Some(all) = self.meet_of(w, pc, mask, active)? else {
            return Ok(Next::Wait);
        };
        let yes = Self::pred(w, p) & all;
        let answer = match kind {
            Vote::Ballot => {
                self.put(w, d, &[yes; 32], all);
                return Ok(Next::On);
            }
            Vote::Any => yes != 0,
            Vote::All => yes == all,
            Vote::Uni => yes == 0 || yes == all,
        };
        Self::put_pred(w, d, if answer { u32::MAX } else { 0 }, all);
        Ok(Next::On)
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn redux(
        &mut self,
        w: &mut Warp,
        pc: u32,
        op: AtomOp,
        ty: Ty,
        d: u32,
        a: Src,
        mask: Src,
        active: u32,
    ) -> Check<Next> {
        let Some(all) = self.meet_of(w, pc, mask, active)? else {
            return Ok(Next::Wait);
        };
        let a = self.narrow(w, a);
        let mut values = lanes(all).map(|lane| u64::from(a[lane as usize]));
        let first = values.next().unwrap_or(0);
        let Some(value) = values.try_fold(first, |x, y| atomic_result(op, ty, x, y, 0)) else {
            return Err(Fault::new(Kind::Unsupported, format!("redux {op:?} of {ty:?}")));
        };
        self.put(w, d, &[value as u32; 32], all);
        Ok(Next::On)
    }

    pub(super) fn elect(&mut self, w: &mut Warp, pc: u32, (d, p): (u32, u32), mask: Src, active: u32) -> Check<Next> {
        let Some(all) = self.meet_of(w, pc, mask, active)? else {
            return Ok(Next::Wait);
        };
        let leader = all.trailing_zeros();
        self.put(w, d, &[leader; 32], all);
        Self::put_pred(w, p, 1 << leader, all);
        Ok(Next::On)
    }
}
