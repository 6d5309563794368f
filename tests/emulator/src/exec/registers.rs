//! Registers: the values of operands, and where results go.

use crate::alu::{Narrow, Wide};
use crate::ir::*;
use crate::machine::{Machine, Warp};

/// In 64 bits; a loop, which is compiled into whatever calls this, unlike `map` of arrays.
#[inline]
pub(super) fn widened(value: &Narrow) -> Wide {
    let mut wide = [0; 32];
    for lane in 0..32 {
        wide[lane] = value[lane].into();
    }
    wide
}

/// The lower 32 bits.
#[inline]
fn narrowed(value: &Wide) -> Narrow {
    let mut narrow = [0; 32];
    for lane in 0..32 {
        narrow[lane] = value[lane] as u32;
    }
    narrow
}

impl Machine<'_> {
    fn special(&self, w: &Warp, special: Special) -> Narrow {
        let block = self.block_ref(w.slot);
        let cluster = &self.clusters[block.cluster];
        let (grid, size) = (self.launch.grid, self.launch.cluster);
        let one = match special {
            Special::Tid(dim) => return w.tid[dim as usize],
            Special::Ntid(dim) => self.launch.block[dim as usize],
            Special::Ctaid(dim) => block.at[dim as usize],
            Special::Nctaid(dim) => grid[dim as usize],
            Special::Clusterid(dim) => cluster.at[dim as usize],
            Special::Nclusterid(dim) => grid[dim as usize] / size[dim as usize],
            Special::ClusterCtaid(dim) => block.at[dim as usize] % size[dim as usize],
            Special::ClusterNctaid(dim) => size[dim as usize],
            Special::ClusterCtarank => block.rank,
            Special::ClusterNctarank => self.cluster_blocks,
            Special::Warpid => w.index,
            Special::Smid => w.slot as u32,
            Special::Clock => self.report.warp_instructions as u32,
            Special::DynamicSmem => self.launch.dynamic_shared,
            Special::Laneid => return std::array::from_fn(|lane| lane as u32),
            Special::LanemaskEq => return std::array::from_fn(|lane| 1 << lane),
            Special::LanemaskLt => return std::array::from_fn(|lane| (1 << lane) - 1),
            Special::LanemaskLe => return std::array::from_fn(|lane| u32::MAX >> (31 - lane)),
            Special::LanemaskGt => return std::array::from_fn(|lane| !(u32::MAX >> (31 - lane))),
            Special::LanemaskGe => return std::array::from_fn(|lane| u32::MAX << lane),
        };
        [one; 32]
    }

    #[inline]
    pub(super) fn narrow(&self, w: &Warp, src: Src) -> Narrow {
        match src {
            Src::Reg(number) => w.narrow[number as usize],
            Src::Imm(value) => [value as u32; 32],
            Src::Special(special) => self.special(w, special),
            Src::Global(index) => [self.globals[index as usize] as u32; 32],
        }
    }

    #[inline]
    pub(super) fn wide(&self, w: &Warp, src: Src) -> Wide {
        match src {
            Src::Reg(number) => w.wide[number as usize],
            Src::Imm(value) => [value; 32],
            Src::Special(special) => widened(&self.special(w, special)),
            Src::Global(index) => [self.globals[index as usize]; 32],
        }
    }

    /// A register of the class of `ty`, in 64 bits.
    #[inline]
    pub(super) fn any(&self, w: &Warp, src: Src, wide: bool) -> Wide {
        if wide {
            self.wide(w, src)
        } else {
            widened(&self.narrow(w, src))
        }
    }

    #[inline]
    pub(super) fn put(&self, w: &mut Warp, d: u32, value: &Narrow, active: u32) {
        if d == SINK {
            return;
        }
        if self.uses_wgmma {
            w.stamps[d as usize] = w.count;
        }
        let to = &mut w.narrow[d as usize];
        if active == u32::MAX {
            *to = *value;
            return;
        }
        for lane in 0..32 {
            if active >> lane & 1 == 1 {
                to[lane] = value[lane];
            }
        }
    }

    #[inline]
    pub(super) fn put_wide(&self, w: &mut Warp, d: u32, value: &Wide, active: u32) {
        if d == SINK {
            return;
        }
        let to = &mut w.wide[d as usize];
        if active == u32::MAX {
            *to = *value;
            return;
        }
        for lane in 0..32 {
            if active >> lane & 1 == 1 {
                to[lane] = value[lane];
            }
        }
    }

    #[inline]
    pub(super) fn put_any(&self, w: &mut Warp, d: u32, value: &Wide, active: u32, wide: bool) {
        if wide {
            self.put_wide(w, d, value, active);
        } else {
            self.put(w, d, &narrowed(value), active);
        }
    }

    #[inline]
    pub(super) fn put_pred(w: &mut Warp, d: u32, value: u32, active: u32) {
        if d != SINK {
            let to = &mut w.preds[d as usize];
            *to = *to & !active | value & active;
        }
    }

    #[inline]
    pub(super) fn pred(w: &Warp, p: PredSrc) -> u32 {
        match p {
            PredSrc::Reg(number, false) => w.preds[number as usize],
            PredSrc::Reg(number, true) => !w.preds[number as usize],
            PredSrc::Const(true) => u32::MAX,
            PredSrc::Const(false) => 0,
        }
    }
}
