//! Barriers of a block and of a cluster.

use super::{lanes, Next};
use crate::finding::{Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Machine, Warp, Why};

impl Machine<'_> {
    pub(super) fn bar(
        &mut self,
        w: &mut Warp,
        pc: u32,
        active: u32,
        kind: BarKind,
        id: Src,
        threads: Option<Src>,
    ) -> Check<Next> {
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

    pub(super) fn cluster_arrive(&mut self, w: &mut Warp, pc: u32, release: bool, active: u32) -> Check<Next> {
        let live = w.live;
        if !self.meet(w, pc, active, live)? {
            return Ok(Next::Wait);
        }
        self.idle = 0;
        let cluster = self.block_ref(w.slot).cluster;
        let generation = self.clusters[cluster].generation;
        let mut known = std::mem::take(&mut self.clusters[cluster].known);
        if release {
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
        Ok(Next::On)
    }

    pub(super) fn cluster_wait(&mut self, w: &mut Warp, pc: u32, active: u32) -> Check<Next> {
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
        Ok(Next::Wait)
    }
}
