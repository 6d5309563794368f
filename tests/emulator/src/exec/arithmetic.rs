//! Arithmetic on registers and predicates.

use super::addresses::*;
use super::lanes;
use crate::alu::{self, Wide};
use crate::finding::{Check, Fault, Kind};
use crate::ir::*;
use crate::machine::{Machine, Warp};

impl Machine<'_> {
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn alu(
        &mut self,
        w: &mut Warp,
        f: Alu,
        ty: Ty,
        mode: Mode,
        d: u32,
        s: [Src; 4],
        active: u32,
    ) -> Check<()> {
        let wide = ty.wide();
        match f {
            Alu::CvtaToGeneric | Alu::CvtaFromGeneric => {
                let window = match s[1] {
                    Src::Imm(1) => SHARED_WINDOW,
                    Src::Imm(2) => LOCAL_WINDOW,
                    Src::Imm(3) => PARAM_WINDOW,
                    _ => 0,
                };
                let a = self.any(w, s[0], wide);
                let value = match f {
                    Alu::CvtaToGeneric => a.map(|a| a.wrapping_add(window)),
                    _ => a.map(|a| a.wrapping_sub(window)),
                };
                self.put_any(w, d, &value, active, wide);
                return Ok(());
            }
            _ => {}
        }
        if !wide {
            let (a, b, c) = (self.narrow(w, s[0]), self.narrow(w, s[1]), self.narrow(w, s[2]));
            if let Some(value) = alu::fast(f, ty, mode, &a, &b, &c) {
                self.put(w, d, &value, active);
                return Ok(());
            }
        } else if !matches!(f, Alu::Clz | Alu::Popc | Alu::Bfind | Alu::BfindShift) {
            let a = self.wide(w, s[0]);
            let b = self.any(w, s[1], !matches!(f, Alu::Shl | Alu::Shr));
            if let Some(value) = alu::fast_wide(f, ty, &a, &b) {
                self.put_wide(w, d, &value, active);
                return Ok(());
            }
        }
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
        let source = |w: &Warp, i: usize| -> Wide {
            let wide = match f {
                Alu::MadWide if i == 2 => result_wide,
                _ => wide && !narrow_at(i),
            };
            self.any(w, s[i], wide)
        };
        let (a, b, c, e) = (source(w, 0), source(w, 1), source(w, 2), source(w, 3));
        let mut value = [0; 32];
        for lane in lanes(active) {
            let i = lane as usize;
            value[i] = match alu::scalar(f, ty, mode, a[i], b[i], c[i], e[i]) {
                Some(value) => value,
                None => return Err(Fault::new(Kind::Unsupported, format!("{f:?} of {ty:?} with {mode:?}"))),
            };
        }
        self.put_any(w, d, &value, active, result_wide);
        Ok(())
    }

    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn setp(
        &mut self,
        w: &mut Warp,
        pc: u32,
        cmp: Cmp,
        ty: Ty,
        ftz: bool,
        (d, q): (u32, u32),
        combine: Option<(BitOp, PredSrc)>,
        [a, b]: [Src; 2],
        active: u32,
    ) {
        let (a, b) = (self.any(w, a, ty.wide()), self.any(w, b, ty.wide()));
        if let Some(edge) = self.edges.get_mut(pc as usize) {
            *edge |= !ty.float() && lanes(active).any(|lane| a[lane as usize] == b[lane as usize]);
        }
        let mut value = 0u32;
        if ty == Ty::S32 || ty == Ty::U32 || ty == Ty::B32 {
            let flip = if ty == Ty::S32 { 0x8000_0000u64 } else { 0 };
            for lane in 0..32 {
                let order = (a[lane] as u32 as u64 ^ flip).cmp(&(b[lane] as u32 as u64 ^ flip));
                let yes = match cmp {
                    Cmp::Eq => order.is_eq(),
                    Cmp::Ne => order.is_ne(),
                    Cmp::Lt => order.is_lt(),
                    Cmp::Le => order.is_le(),
                    Cmp::Gt => order.is_gt(),
                    _ => order.is_ge(),
                };
                value |= u32::from(yes) << lane;
            }
        } else {
            for lane in lanes(active) {
                let yes = alu::compare(cmp, ty, ftz, a[lane as usize], b[lane as usize]);
                value |= u32::from(yes) << lane;
            }
        }
        let mut other = !value;
        if let Some((bit, p)) = combine {
            let p = Self::pred(w, p);
            let with = |x: u32| match bit {
                BitOp::And => x & p,
                BitOp::Or => x | p,
                BitOp::Xor => x ^ p,
            };
            value = with(value);
            other = with(other);
        }
        Self::put_pred(w, d, value, active);
        Self::put_pred(w, q, other, active);
    }

    #[inline]
    pub(super) fn selp(&mut self, w: &mut Warp, wide: bool, d: u32, [a, b]: [Src; 2], p: PredSrc, active: u32) {
        let p = Self::pred(w, p);
        if wide {
            let (a, b) = (self.wide(w, a), self.wide(w, b));
            let value = std::array::from_fn(|lane| if p >> lane & 1 == 1 { a[lane] } else { b[lane] });
            self.put_wide(w, d, &value, active);
        } else {
            let (a, b) = (self.narrow(w, a), self.narrow(w, b));
            let value = std::array::from_fn(|lane| if p >> lane & 1 == 1 { a[lane] } else { b[lane] });
            self.put(w, d, &value, active);
        }
    }

    /// `and`, `or`, `xor`, `not` and `mov` of predicates.
    #[inline]
    pub(super) fn combine_preds(
        w: &mut Warp,
        f: Option<BitOp>,
        negate: bool,
        d: u32,
        [a, b]: [PredSrc; 2],
        active: u32,
    ) {
        let (a, b) = (Self::pred(w, a), Self::pred(w, b));
        let value = match f {
            None => a,
            Some(BitOp::And) => a & b,
            Some(BitOp::Or) => a | b,
            Some(BitOp::Xor) => a ^ b,
        };
        Self::put_pred(w, d, if negate { !value } else { value }, active);
    }

    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn cvt(
        &mut self,
        w: &mut Warp,
        to: Ty,
        from: Ty,
        mode: Mode,
        (d, d_wide): (u32, bool),
        (a, a_wide): (Src, bool),
        b: Option<Src>,
        active: u32,
    ) -> Check<()> {
        let a = self.any(w, a, a_wide);
        let mut value = [0; 32];
        match (to, from, b) {
            (Ty::U64 | Ty::B64, Ty::U32 | Ty::B32, _) => value = a.map(|x| x & 0xFFFF_FFFF),
            (Ty::S64 | Ty::U64, Ty::S32, _) => {
                for lane in 0..32 {
                    value[lane] = a[lane] as i32 as i64 as u64;
                }
            }
            (Ty::F16x2 | Ty::BF16x2, Ty::F32, Some(b)) => {
                let b = self.any(w, b, false);
                let half = if to == Ty::F16x2 { Ty::F16 } else { Ty::BF16 };
                for lane in 0..32 {
                    let part = |x: u64| alu::convert(half, Ty::F32, mode, x).unwrap_or(0);
                    value[lane] = part(a[lane]) << 16 | part(b[lane]);
                }
            }
            _ => {
                for lane in lanes(active) {
                    value[lane as usize] = match alu::convert(to, from, mode, a[lane as usize]) {
                        Some(value) => value,
                        None => return Err(Fault::new(Kind::Unsupported, format!("cvt from {from:?} to {to:?}"))),
                    };
                }
            }
        }
        self.put_any(w, d, &value, active, d_wide);
        Ok(())
    }

    /// `mov` of several registers into a wider one.
    pub(super) fn pack(&mut self, w: &mut Warp, ty: Ty, d: u32, parts: &[Src], active: u32) {
        let each = ty.size() * 8 / parts.len() as u32;
        let mut value = [0u64; 32];
        for (i, part) in parts.iter().enumerate() {
            let part = self.narrow(w, *part);
            for lane in 0..32 {
                let bits = u64::from(part[lane]) & ((1 << each) - 1);
                value[lane] |= bits << (each * i as u32);
            }
        }
        self.put_any(w, d, &value, active, ty.wide());
    }

    /// `mov` of a register into several narrower ones.
    pub(super) fn unpack(&mut self, w: &mut Warp, ty: Ty, a: Src, parts: &[u32], active: u32) {
        let each = ty.size() * 8 / parts.len() as u32;
        let a = self.any(w, a, ty.wide());
        for (i, &part) in parts.iter().enumerate() {
            let value = a.map(|x| (x >> (each * i as u32) & ((1 << each) - 1)) as u32);
            self.put(w, part, &value, active);
        }
    }
}
