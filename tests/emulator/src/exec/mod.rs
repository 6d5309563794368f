//! Instructions: [`Machine::step`] carries one out for lanes of a warp, with the functions of the modules below.

mod accesses;
mod addresses;
mod arithmetic;
mod atomics;
mod barriers;
mod bulk;
mod collectives;
mod copies;
mod loads;
mod mbarriers;
mod mma;
mod order;
mod registers;
mod warp;
mod wgmma;

use crate::finding::{Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Machine, Warp};

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

fn lanes(mask: u32) -> impl Iterator<Item = u32> {
    (0..32).filter(move |lane| mask >> lane & 1 == 1)
}

impl Machine<'_> {
    /// Carries an instruction out for these lanes.
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
            } => self.setp(w, pc, *cmp, *ty, *ftz, (*d, *q), *combine, [*a, *b], active),
            Op::Selp { wide, d, a, b, p } => self.selp(w, *wide, *d, [*a, *b], *p, active),
            Op::Pred { f, negate, d, a, b } => Self::combine_preds(w, *f, *negate, *d, [*a, *b], active),
            Op::Cvt {
                to,
                from,
                mode,
                d,
                d_wide,
                a,
                a_wide,
                b,
            } => self.cvt(w, *to, *from, *mode, (*d, *d_wide), (*a, *a_wide), *b, active)?,
            Op::Pack { ty, d, parts } => self.pack(w, *ty, *d, parts, active),
            Op::Unpack { ty, a, parts } => self.unpack(w, *ty, *a, parts, active),
            Op::Ld { constant: true, .. } if self.launch.early && active != 0 => Self::too_early(active)?,
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
                self.exit(w, active)?;
                return Ok(Next::Ended);
            }
            Op::Trap => return Err(Fault::new(Kind::Trap, "trap")),
            Op::Bar {
                kind,
                id,
                threads,
                aligned: _,
            } => return self.bar(w, pc, active, *kind, *id, *threads),
            Op::WarpSync { mask } => return self.warp_sync(w, *mask, active),
            Op::ClusterArrive { release } => return self.cluster_arrive(w, pc, *release, active),
            Op::ClusterWait { .. } => return self.cluster_wait(w, pc, active),
            Op::Shfl {
                kind,
                d,
                p,
                a,
                b,
                c,
                mask,
            } => return self.shfl(w, pc, *kind, (*d, *p), [*a, *b, *c], *mask, active),
            Op::Vote { kind, d, p, mask } => return self.vote(w, pc, *kind, *d, *p, *mask, active),
            Op::Redux { op, ty, d, a, mask } => return self.redux(w, pc, *op, *ty, *d, *a, *mask, active),
            Op::Elect { d, p, mask } => return self.elect(w, pc, (*d, *p), *mask, active),
            Op::Activemask { d } => self.put(w, *d, &[active; 32], active),
            Op::Fence { .. } => self.fence(w, active),
            Op::FenceProxyAsync { .. } => self.fence_proxy_async(w, active),
            Op::FenceMbarrierInit => self.fence_mbarrier_init(w, active),
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
            Op::CpAsyncCommit => Self::cp_async_commit(w, active),
            Op::CpAsyncWait { pending } => Self::cp_async_wait(w, *pending, active),
            Op::TmaLoad { .. }
            | Op::TmaStore { .. }
            | Op::BulkLoad { .. }
            | Op::BulkStore { .. }
            | Op::StAsync { .. } => self.bulk(w, op, pc, active)?,
            Op::BulkCommit => Self::bulk_commit(w, active),
            Op::BulkWait { pending, read } => Self::bulk_wait(w, *pending, *read, active),
            Op::GridWait => Self::grid_wait(w, active),
            Op::GridLaunch => {}
            Op::Mapa { d, wide, a, rank } => self.mapa(w, *wide, *d, [*a, *rank], active)?,
            Op::GetCtaRank { d, wide, a } => self.get_cta_rank(w, *wide, *d, *a, active),
            Op::WgmmaFence
            | Op::WgmmaCommit
            | Op::WgmmaWait { .. }
            | Op::Wgmma(_)
            | Op::Mma(_)
            | Op::LdMatrix { .. }
            | Op::StMatrix { .. } => {
                let live = w.live;
                if !self.meet(w, pc, active, live)? {
                    return Ok(Next::Wait);
                }
                self.step_of_warp(w, op)?;
            }
        }
        Ok(Next::On)
    }

    /// Carries out what takes a whole warp, whose lanes have met.
    fn step_of_warp(&mut self, w: &mut Warp, op: &Op) -> Check<()> {
        match op {
            Op::WgmmaFence => w.fence = w.count,
            Op::WgmmaCommit => {
                w.wgmma_committed += 1;
                w.wgmma_open = false;
            }
            Op::WgmmaWait { pending } => self.wgmma_wait(w, *pending),
            Op::Wgmma(wgmma) => self.wgmma(w, wgmma)?,
            Op::Mma(mma) => self.mma(w, mma),
            Op::LdMatrix { .. } | Op::StMatrix { .. } => self.matrix(w, op)?,
            _ => {}
        }
        Ok(())
    }
}
