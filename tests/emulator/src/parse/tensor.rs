//! Tensor instructions, and the loads and stores of their matrices.

use super::statement::Statement;
use super::{Raw, Res};
use crate::ir::*;

impl Statement<'_, '_> {
    pub(super) fn wgmma(&self) -> Res<Op> {
        let o = self.o;
        match self.parts.get(1) {
            Some(&"fence") => Ok(Op::WgmmaFence),
            Some(&"commit_group") => Ok(Op::WgmmaCommit),
            Some(&"wait_group") => {
                self.need(1)?;
                let Raw::Num(pending) = o[0] else {
                    return self.unsupported();
                };
                Ok(Op::WgmmaWait {
                    pending: pending as u32,
                })
            }
            Some(&"mma_async") => self.wgmma_multiply(),
            _ => self.unsupported(),
        }
    }

    fn wgmma_multiply(&self) -> Res<Op> {
        let o = self.o;
        let word = self.word;
        let shape = self.parts.iter().find(|part| part.starts_with("m64n"));
        let types: Vec<Ty> = self.parts.iter().filter_map(|part| Ty::parse(part)).collect();
        let (Some(shape), [Ty::F32, ty @ (Ty::Tf32 | Ty::F16 | Ty::BF16), _]) = (shape, types.as_slice()) else {
            return self.unsupported();
        };
        let Some(n) = shape[4..].split('k').next().and_then(|n| n.parse::<u32>().ok()) else {
            return self.unsupported();
        };
        if o.len() < 6 || n % 8 != 0 {
            return self.unsupported();
        }
        let d = self.dst_list(&o[0], Class::Narrow)?;
        if d.len() as u32 * 2 != n {
            return self.error(format!("'{word}' needs {} accumulators", n / 2));
        }
        let a = match &o[1] {
            Raw::Vec(list) if list.len() == 4 => {
                let list = self.dst_list(&o[1], Class::Narrow)?;
                WgmmaA::Regs([list[0], list[1], list[2], list[3]])
            }
            raw => WgmmaA::Desc(self.src(raw, Class::Wide)?),
        };
        let flag = |at: usize, yes: i64| matches!(o.get(at), Some(Raw::Num(number)) if *number as i64 == yes);
        let in_registers = matches!(a, WgmmaA::Regs(_));
        Ok(Op::Wgmma(Box::new(Wgmma {
            n,
            ty: *ty,
            d,
            a,
            b: self.src(&o[2], Class::Wide)?,
            scale_d: self.pred(&o[3])?,
            negate: [flag(4, -1), flag(5, -1)],
            transposed: if in_registers {
                [false, flag(6, 1)]
            } else {
                [flag(6, 1), flag(7, 1)]
            },
        })))
    }

    pub(super) fn mma(&self) -> Res<Op> {
        let o = self.o;
        let word = self.word;
        let types: Vec<Ty> = self.parts.iter().filter_map(|part| Ty::parse(part)).collect();
        let shape = self.parts.iter().find(|part| part.starts_with("m16n8k"));
        let (Some(shape), [Ty::F32, ty @ (Ty::Tf32 | Ty::F16 | Ty::BF16), _, Ty::F32], 4) =
            (shape, types.as_slice(), o.len())
        else {
            return self.unsupported();
        };
        let Ok(k) = shape[6..].parse::<u32>() else {
            return self.unsupported();
        };
        let d = self.dst_list(&o[0], Class::Narrow)?;
        let a = self.dst_list(&o[1], Class::Narrow)?;
        let b = self.dst_list(&o[2], Class::Narrow)?;
        let c = self.list(&o[3], Class::Narrow)?;
        let a_words = 16 * k * ty.size() / 4 / 32;
        if d.len() != 4 || c.len() != 4 || a.len() as u32 != a_words || b.len() as u32 * 2 != a_words {
            return self.error(format!("'{word}' has other numbers of registers"));
        }
        Ok(Op::Mma(Box::new(Mma {
            k,
            ty: *ty,
            d: [d[0], d[1], d[2], d[3]],
            a,
            b,
            c: [c[0], c[1], c[2], c[3]],
        })))
    }

    /// `ldmatrix` and `stmatrix`.
    pub(super) fn matrix(&self) -> Res<Op> {
        let o = self.o;
        self.need(2)?;
        if !self.has("m8n8") || !self.has("b16") {
            return self.unsupported();
        }
        if self.parts[0] == "ldmatrix" {
            return Ok(Op::LdMatrix {
                d: self.dst_list(&o[0], Class::Narrow)?,
                at: self.addr(&o[1])?,
                trans: self.has("trans"),
            });
        }
        Ok(Op::StMatrix {
            s: self.list(&o[1], Class::Narrow)?,
            at: self.addr(&o[0])?,
            trans: self.has("trans"),
        })
    }
}
