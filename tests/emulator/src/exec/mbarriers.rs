//! Barriers that lie in shared memory (`mbarrier`), on which copies complete too.

use super::addresses::SHARED_WINDOW;
use super::{lanes, Next};
use crate::clock::join_lanes;
use crate::finding::{at_lane, Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Known, Machine, Mbarrier, Warp, Why};
use crate::shadow::Access;
use std::rc::Rc;

impl Machine<'_> {
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

    pub(super) fn not_public(at: u32) -> Box<Fault> {
        Fault::new(
            Kind::Mbarrier,
            format!("no fence.mbarrier_init has made the mbarrier at {at:#x} visible to copies and other blocks"),
        )
    }

    pub(super) fn missing(at: u32) -> Box<Fault> {
        Fault::new(
            Kind::Mbarrier,
            format!("there is no mbarrier at {at:#x}: it was not initialised"),
        )
    }

    pub(super) fn mbarrier(&mut self, w: &mut Warp, op: &Op, active: u32) -> Check<()> {
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
            } => self.mbarrier_arrive(w, *space, at, *release, [*expect, *arrive], *d, active)?,
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
            Op::CpAsyncMbarArrive { at, noinc } => self.copies_arrive(w, at, *noinc, active)?,
            _ => {}
        }
        Ok(())
    }

    /// Arrivals, and bytes that copies will bring.
    #[allow(clippy::too_many_arguments)]
    fn mbarrier_arrive(
        &mut self,
        w: &mut Warp,
        space: Space,
        at: &Addr,
        release: bool,
        [expect, arrive]: [Option<Src>; 2],
        d: u32,
        active: u32,
    ) -> Check<()> {
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
                let (slot, at) = self.barrier_place(w, space, first, addresses[first as usize])?;
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
                if release && many > 0 {
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
        self.put_wide(w, d, &states, active);
        Ok(())
    }

    /// What has been copied by `cp.async` so far arrives.
    fn copies_arrive(&mut self, w: &mut Warp, at: &Addr, noinc: bool, active: u32) -> Check<()> {
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
                if noinc {
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
    pub(super) fn publish_mbarriers(&mut self, w: &Warp, active: u32) {
        let first = self.thread_component(w.index * 32);
        for barrier in self.block_mut(w.slot).mbars.values_mut() {
            let lane = barrier.owner.wrapping_sub(first);
            barrier.public |= lane < 32 && active >> lane & 1 == 1;
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn mbarrier_wait(
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
}
