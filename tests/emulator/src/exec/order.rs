//! What threads know of each other's past: fences, what they release to others, and what they learn from them.

use super::lanes;
use crate::clock::{join_lanes, map_lanes, Clock};
use crate::ir::*;
use crate::machine::{Known, Machine, Warp};
use std::rc::Rc;

impl Machine<'_> {
    /// What a thread that has seen a flag learns: at once, or at its next fence.
    pub(super) fn observe(&mut self, w: &mut Warp, lane: u32, known: &Rc<Clock>, now: bool) {
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
    pub(super) fn snapshot(&self, w: &Warp, lane: u32) -> Rc<Clock> {
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
    pub(super) fn release_into(&self, known: &mut Known, w: &Warp, lanes_of: u32) {
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

    /// Each of these lanes learns what all know.
    pub(super) fn converge(&self, w: &mut Warp, all: u32) {
        let mut known = Known::default();
        self.release_into(&mut known, w, all);
        w.time += 1;
        let (clock, proxy) = (Rc::new(known.clock), Rc::new(known.proxy));
        join_lanes(&mut w.clock, all, &clock);
        join_lanes(&mut w.proxy, all, &proxy);
    }

    /// A fence between the threads of a scope.
    pub(super) fn fence(&self, w: &mut Warp, active: u32) {
        for lane in lanes(active) {
            if let Some(seen) = w.seen[lane as usize].take() {
                w.clock[lane as usize] = crate::clock::joined(&w.clock[lane as usize], &seen);
            }
            w.fenced[lane as usize] = Some(self.snapshot(w, lane));
        }
        w.time += 1;
    }

    /// A fence between ordinary accesses and those of bulk copies and `wgmma`.
    pub(super) fn fence_proxy_async(&mut self, w: &mut Warp, active: u32) {
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

    /// A release that covers the initialisation of mbarriers by this thread alone, not what it knows of others.
    pub(super) fn fence_mbarrier_init(&mut self, w: &mut Warp, active: u32) {
        self.publish_mbarriers(w, active);
        for lane in lanes(active) {
            let mut own = w.fenced[lane as usize].as_deref().cloned().unwrap_or_default();
            own.learn(w.block, self.thread_component(w.index * 32 + lane), w.time);
            w.fenced[lane as usize] = Some(Rc::new(own));
        }
        w.time += 1;
    }

    /// What the kernel before this one did has happened.
    pub(super) fn grid_wait(w: &mut Warp, active: u32) {
        let block = w.block;
        map_lanes(&mut w.clock, active, |clock| {
            let mut clock = (**clock).clone();
            clock.learn(block, 0, 1);
            Rc::new(clock)
        });
    }
}

/// Where what a strong access publishes is kept.
pub(super) fn sync_key(w: &Warp, space: Space, address: u64) -> u64 {
    match space {
        Space::Shared | Space::Cluster => 1 << 63 | u64::from(w.block) << 32 | address,
        _ => address,
    }
}
