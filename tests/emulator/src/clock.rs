//! Vector clocks: what a thread knows of the others' past.
//!
//! Each block has a row of components; a thread knows a prefix of the time of each. Components of a block:
//!
//! - 0: the kernels before this one on the stream, 1 once a thread has waited for them;
//! - one a thread: its own accesses;
//! - one a thread: its `cp.async` groups (only where the kernel has such copies);
//! - one a warp: its `wgmma` groups;
//! - further ones, given out as they are asked for: the phases of each mbarrier, and bulk copies out of shared memory.

use std::rc::Rc;

/// A point in the history of one component, in one word: block, component, time. 0: never.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Epoch(u64);

const TIME_BITS: u32 = 28;
const COMPONENT_BITS: u32 = 13;
pub(crate) const MAX_COMPONENTS: u32 = 1 << COMPONENT_BITS;

impl Epoch {
    /// Before everything.
    pub(crate) const NEVER: Epoch = Epoch(0);
    /// Written before this launch: by the host or by an earlier kernel.
    pub(crate) const BEFORE: Epoch = Epoch(1);

    pub(crate) fn new(block: u32, component: u32, time: u32) -> Self {
        debug_assert!(component < MAX_COMPONENTS && time >> TIME_BITS == 0);
        Epoch(
            (u64::from(block) + 1) << (TIME_BITS + COMPONENT_BITS)
                | u64::from(component) << TIME_BITS
                | u64::from(time),
        )
    }
    pub(crate) fn block(self) -> u32 {
        ((self.0 >> (TIME_BITS + COMPONENT_BITS)) as u32).wrapping_sub(1)
    }
    pub(crate) fn component(self) -> u32 {
        (self.0 >> TIME_BITS) as u32 & (MAX_COMPONENTS - 1)
    }
    pub(crate) fn time(self) -> u32 {
        self.0 as u32 & ((1 << TIME_BITS) - 1)
    }
    pub(crate) fn is_real(self) -> bool {
        self.0 > 1
    }
}

/// What is known of each block's components.
#[derive(Clone, Default, Debug)]
pub(crate) struct Clock {
    rows: Vec<(u32, Rc<Vec<u32>>)>,
}

impl Clock {
    fn row(&self, block: u32) -> Option<&Rc<Vec<u32>>> {
        match self.rows.first() {
            Some((first, row)) if *first == block => Some(row),
            _ => self
                .rows
                .binary_search_by_key(&block, |(block, _)| *block)
                .ok()
                .map(|at| &self.rows[at].1),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The known time of a component.
    pub(crate) fn get(&self, block: u32, component: u32) -> u32 {
        self.row(block)
            .and_then(|row| row.get(component as usize))
            .copied()
            .unwrap_or(0)
    }

    pub(crate) fn knows(&self, epoch: Epoch) -> bool {
        self.get(epoch.block(), epoch.component()) >= epoch.time()
    }

    /// Learns that a component has reached a time.
    pub(crate) fn learn(&mut self, block: u32, component: u32, time: u32) {
        let at = match self.rows.binary_search_by_key(&block, |(block, _)| *block) {
            Ok(at) => at,
            Err(at) => {
                self.rows.insert(at, (block, Rc::new(Vec::new())));
                at
            }
        };
        let row = &mut self.rows[at].1;
        if row.get(component as usize).copied().unwrap_or(0) >= time {
            return;
        }
        let row = Rc::make_mut(row);
        if row.len() <= component as usize {
            row.resize(component as usize + 1, 0);
        }
        row[component as usize] = time;
    }

    /// Learns the time of the components whose bits are set, counted from `first`.
    pub(crate) fn learn_lanes(&mut self, block: u32, first: u32, mask: u32, time: u32) {
        let top = first + 31 - mask.leading_zeros().min(31);
        self.learn(block, top, time);
        let at = match self.rows.binary_search_by_key(&block, |(block, _)| *block) {
            Ok(at) => at,
            Err(_) => return,
        };
        let row = Rc::make_mut(&mut self.rows[at].1);
        if row.len() <= top as usize {
            row.resize(top as usize + 1, 0);
        }
        for (lane, known) in row[first as usize..=top as usize].iter_mut().enumerate() {
            if mask >> lane & 1 == 1 {
                *known = (*known).max(time);
            }
        }
    }

    /// Learns all that another knows.
    pub(crate) fn join(&mut self, other: &Clock) {
        if self.rows.is_empty() {
            self.rows.clone_from(&other.rows);
            return;
        }
        for (block, theirs) in &other.rows {
            match self.rows.binary_search_by_key(block, |(block, _)| *block) {
                Err(at) => self.rows.insert(at, (*block, theirs.clone())),
                Ok(at) => {
                    let mine = &mut self.rows[at].1;
                    if Rc::ptr_eq(mine, theirs) || dominates(mine, theirs) {
                        continue;
                    }
                    if dominates(theirs, mine) {
                        *mine = theirs.clone();
                        continue;
                    }
                    let mine = Rc::make_mut(mine);
                    if mine.len() < theirs.len() {
                        mine.resize(theirs.len(), 0);
                    }
                    for (mine, &theirs) in mine.iter_mut().zip(theirs.iter()) {
                        *mine = (*mine).max(theirs);
                    }
                }
            }
        }
    }
}

fn dominates(a: &[u32], b: &[u32]) -> bool {
    let common = a.len().min(b.len());
    a[..common].iter().zip(&b[..common]).all(|(a, b)| a >= b) && b[common..].iter().all(|&b| b == 0)
}

/// `a` with what `b` knows; the same object where that is nothing new.
pub(crate) fn joined(a: &Rc<Clock>, b: &Rc<Clock>) -> Rc<Clock> {
    if Rc::ptr_eq(a, b) || b.is_empty() {
        return a.clone();
    }
    if a.is_empty() {
        return b.clone();
    }
    let covered = a.rows.iter().all(|(block, mine)| match b.row(*block) {
        Some(theirs) => Rc::ptr_eq(mine, theirs) || dominates(theirs, mine),
        None => false,
    });
    if covered {
        return b.clone();
    }
    let mut clock = (**a).clone();
    clock.join(b);
    Rc::new(clock)
}

/// Joins the clocks of some lanes with one; lanes that shared a clock go on sharing one.
pub(crate) fn join_lanes(clocks: &mut [Rc<Clock>], lanes: u32, with: &Rc<Clock>) {
    map_lanes(clocks, lanes, |clock| joined(clock, with));
}

/// Replaces the clocks of some lanes; equal ones only once.
pub(crate) fn map_lanes(clocks: &mut [Rc<Clock>], lanes: u32, mut f: impl FnMut(&Rc<Clock>) -> Rc<Clock>) {
    let mut last: Option<(Rc<Clock>, Rc<Clock>)> = None;
    for (lane, clock) in clocks.iter_mut().enumerate() {
        if lanes >> lane & 1 == 0 {
            continue;
        }
        match &last {
            Some((before, after)) if Rc::ptr_eq(before, clock) => *clock = after.clone(),
            _ => {
                let after = f(clock);
                last = Some((clock.clone(), after.clone()));
                *clock = after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_keep_their_parts() {
        let epoch = Epoch::new(70_000, 4000, 200_000_000);
        assert_eq!(
            (epoch.block(), epoch.component(), epoch.time()),
            (70_000, 4000, 200_000_000)
        );
        assert!(epoch.is_real() && !Epoch::BEFORE.is_real());
    }

    #[test]
    fn a_join_knows_what_both_knew() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.learn(0, 3, 5);
        a.learn(2, 1, 7);
        b.learn(0, 3, 4);
        b.learn(0, 9, 1);
        b.learn(1, 0, 2);
        a.join(&b);
        assert_eq!(
            [a.get(0, 3), a.get(0, 9), a.get(1, 0), a.get(2, 1), a.get(3, 0)],
            [5, 1, 2, 7, 0]
        );
        assert!(!b.knows(Epoch::new(2, 1, 1)));
    }
}
