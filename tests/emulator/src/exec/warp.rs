//! How a warp goes through the program: which of its lanes go on, and where they part and end.

use super::{lanes, Next, Stop};
use crate::finding::{at_lane, Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Known, Machine, Warp, Why};

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

    /// Some lanes end.
    pub(super) fn exit(&mut self, w: &mut Warp, active: u32) -> Check<()> {
        self.idle = 0;
        for bulk in w.bulks.iter().filter(|bulk| active >> bulk.lane & 1 == 1) {
            if w.clock[bulk.lane as usize].get(w.block, bulk.components[0]) < bulk.last {
                let text =
                    "a thread ends, and a bulk copy of its may still read shared memory, which its block may leave";
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
        Ok(())
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
