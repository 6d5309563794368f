//! Values that nothing wrote: they may be loaded, moved and computed with, but nothing may depend on them.
//!
//! A register remembers of which lanes its value is made of memory that nothing wrote. Only warps that have met such memory pay
//! for that.

use crate::finding::{Check, Fault, Kind};
use crate::ir::*;
use crate::machine::Warp;

/// What a warp knows of its registers: for each, the lanes whose value is undefined.
#[derive(Default)]
pub(crate) struct Undefined {
    pub narrow: Vec<u32>,
    pub wide: Vec<u32>,
    pub preds: Vec<u32>,
}

impl Undefined {
    pub(crate) fn start(&mut self, registers: [u32; 3]) {
        if self.narrow.is_empty() {
            self.preds = vec![0; registers[0] as usize];
            self.narrow = vec![0; registers[1] as usize + 1];
            self.wide = vec![0; registers[2] as usize];
        }
    }

    pub(crate) fn any(&self) -> bool {
        !self.narrow.is_empty()
    }

    pub(crate) fn src(&self, src: Src, wide: bool) -> u32 {
        match src {
            Src::Reg(number) if wide => self.wide[number as usize],
            Src::Reg(number) => self.narrow[number as usize],
            _ => 0,
        }
    }

    pub(crate) fn pred(&self, p: PredSrc) -> u32 {
        match p {
            PredSrc::Reg(number, _) => self.preds[number as usize],
            PredSrc::Const(_) => 0,
        }
    }

    pub(crate) fn set(&mut self, d: u32, wide: bool, lanes: u32, active: u32) {
        if d == SINK {
            return;
        }
        let word = if wide {
            &mut self.wide[d as usize]
        } else {
            &mut self.narrow[d as usize]
        };
        *word = *word & !active | lanes & active;
    }

    fn set_pred(&mut self, d: u32, lanes: u32, active: u32) {
        if d != SINK {
            let word = &mut self.preds[d as usize];
            *word = *word & !active | lanes & active;
        }
    }

    fn addr(&self, at: &Addr) -> u32 {
        match at.base {
            Src::Reg(_) => self.src(at.base, at.wide),
            _ => 0,
        }
    }
}

fn used(lanes: u32, active: u32, how: &str) -> Check<()> {
    let lanes = lanes & active;
    if lanes == 0 {
        return Ok(());
    }
    let mut fault = Fault::new(
        Kind::Uninitialised,
        format!("{how} comes from memory that nothing wrote"),
    );
    fault.lane = Some(lanes.trailing_zeros());
    Err(fault)
}

/// Follows an instruction before it is carried out; loads say themselves what they found.
pub(crate) fn follow(w: &mut Warp, instr: &Instr, group: u32, active: u32) -> Check<()> {
    let u = &mut w.undefined;
    if let Some((p, _)) = instr.guard {
        used(u.preds[p as usize], group, "the condition of an instruction")?;
    }
    match &instr.op {
        Op::Alu {
            f, ty, d, a, b, c, e, ..
        } => {
            let wide = ty.wide();
            let narrow_at = |i: usize| match f {
                Alu::Shl | Alu::Shr => i == 1,
                Alu::Bfe => i >= 1,
                Alu::Bfi => i >= 2,
                _ => false,
            };
            let result_wide = match f {
                Alu::MulWide | Alu::MadWide => ty.size() == 4,
                Alu::Clz | Alu::Popc | Alu::Bfind | Alu::BfindShift => false,
                _ => wide,
            };
            let mut lanes = 0;
            for (i, src) in [a, b, c, e].into_iter().enumerate() {
                let wide = match f {
                    Alu::MadWide if i == 2 => result_wide,
                    _ => wide && !narrow_at(i),
                };
                lanes |= u.src(*src, wide);
            }
            u.set(*d, result_wide, lanes, active);
        }
        Op::Setp {
            ty,
            d,
            q,
            combine,
            a,
            b,
            ..
        } => {
            let mut lanes = u.src(*a, ty.wide()) | u.src(*b, ty.wide());
            if let Some((_, p)) = combine {
                lanes |= u.pred(*p);
            }
            u.set_pred(*d, lanes, active);
            u.set_pred(*q, lanes, active);
        }
        Op::Selp { wide, d, a, b, p } => {
            let value = match p {
                PredSrc::Reg(number, negate) => {
                    let p = w.preds[*number as usize];
                    let p = if *negate { !p } else { p };
                    u.src(*a, *wide) & p | u.src(*b, *wide) & !p
                }
                PredSrc::Const(true) => u.src(*a, *wide),
                PredSrc::Const(false) => u.src(*b, *wide),
            };
            let lanes = value | u.pred(*p);
            u.set(*d, *wide, lanes, active);
        }
        Op::Pred { d, a, b, f, .. } => {
            // What one side decides alone is defined.
            let (x, y) = (u.pred(*a), u.pred(*b));
            let value = |p: PredSrc| match p {
                PredSrc::Reg(number, false) => w.preds[number as usize],
                PredSrc::Reg(number, true) => !w.preds[number as usize],
                PredSrc::Const(yes) => {
                    if yes {
                        u32::MAX
                    } else {
                        0
                    }
                }
            };
            let lanes = match f {
                None => x,
                Some(BitOp::Xor) => x | y,
                Some(BitOp::And) => (x | y) & !(!x & !value(*a)) & !(!y & !value(*b)),
                Some(BitOp::Or) => (x | y) & !(!x & value(*a)) & !(!y & value(*b)),
            };
            u.set_pred(*d, lanes, active);
        }
        Op::Cvt {
            d,
            d_wide,
            a,
            a_wide,
            b,
            ..
        } => {
            let lanes = u.src(*a, *a_wide) | b.map_or(0, |b| u.src(b, false));
            u.set(*d, *d_wide, lanes, active);
        }
        Op::Pack { ty, d, parts } => {
            let lanes = parts.iter().fold(0, |lanes, part| lanes | u.src(*part, false));
            u.set(*d, ty.wide(), lanes, active);
        }
        Op::Unpack { ty, a, parts } => {
            let lanes = u.src(*a, ty.wide());
            parts.iter().for_each(|&part| u.set(part, false, lanes, active));
        }
        Op::Ld { at, wide, d, .. } => {
            used(u.addr(at), active, "an address")?;
            d.iter().for_each(|&d| u.set(d, *wide, 0, active));
        }
        Op::St { space, wide, s, at, .. } => {
            used(u.addr(at), active, "an address")?;
            // Shared memory remembers it.
            if matches!(space, Space::Global | Space::Local) {
                let lanes = s.iter().fold(0, |lanes, s| lanes | u.src(*s, *wide));
                used(lanes, active, "a value that is stored")?;
            }
        }
        Op::Atom { at, b, c, ty, d, .. } => {
            used(u.addr(at), active, "an address")?;
            used(
                u.src(*b, ty.wide()) | u.src(*c, ty.wide()),
                active,
                "an operand of an atomic",
            )?;
            u.set(*d, ty.wide(), 0, active);
        }
        Op::Shfl { d, p, a, b, c, .. } => {
            used(u.src(*b, false) | u.src(*c, false), active, "a lane's number")?;
            // Any lane may get any other's.
            let lanes = if u.src(*a, false) != 0 { u.src(*a, false) } else { 0 };
            if lanes != 0 {
                u.set(*d, false, u32::MAX, active);
            } else {
                u.set(*d, false, 0, active);
            }
            u.set_pred(*p, 0, active);
        }
        Op::Vote { kind, d, p, .. } => {
            used(u.pred(*p), active, "a vote")?;
            match kind {
                Vote::Ballot => u.set(*d, false, 0, active),
                _ => u.set_pred(*d, 0, active),
            }
        }
        Op::Redux { d, a, .. } => {
            used(u.src(*a, false), active, "an operand")?;
            u.set(*d, false, 0, active);
        }
        Op::Mapa { d, wide, a, rank } => {
            let lanes = u.src(*a, *wide) | u.src(*rank, false);
            u.set(*d, *wide, lanes, active);
        }
        Op::MbarWait { at, d, parity, .. } => {
            used(u.addr(at) | u.src(*parity, false), active, "an operand")?;
            u.set_pred(*d, 0, active);
        }
        Op::MbarArrive { at, expect, arrive, .. } => {
            let more = expect.map_or(0, |src| u.src(src, false)) | arrive.map_or(0, |src| u.src(src, false));
            used(u.addr(at) | more, active, "an operand")?;
        }
        Op::CpAsync {
            dst,
            src,
            valid,
            ignore,
            ..
        } => {
            let how = valid.map_or(0, |src| u.src(src, false)) | ignore.map_or(0, |pred| u.pred(pred));
            used(u.addr(dst) | u.addr(src) | how, active, "an address")?;
        }
        Op::Bar {
            kind: BarKind::RedAnd(_, p) | BarKind::RedOr(_, p) | BarKind::RedPopc(_, p),
            ..
        } => {
            used(u.pred(*p), active, "a vote")?;
        }
        Op::Mma(mma) => {
            // A row or a column spreads over the warp.
            let operands = mma
                .a
                .iter()
                .chain(mma.b.iter())
                .fold(0, |lanes, &r| lanes | u.narrow[r as usize]);
            let c = mma.c.iter().fold(0, |lanes, c| lanes | u.src(*c, false));
            let lanes = if operands != 0 { u32::MAX } else { c };
            mma.d.iter().for_each(|&d| u.set(d, false, lanes, u32::MAX));
        }
        Op::Wgmma(wgmma) => {
            let mut lanes = wgmma.d.iter().fold(0, |lanes, &r| lanes | u.narrow[r as usize]);
            if let WgmmaA::Regs(a) = &wgmma.a {
                if a.iter().any(|&r| u.narrow[r as usize] != 0) {
                    lanes = u32::MAX;
                }
            }
            wgmma.d.iter().for_each(|&d| u.set(d, false, lanes, u32::MAX));
        }
        _ => {}
    }
    Ok(())
}
