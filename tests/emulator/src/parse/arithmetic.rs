//! Arithmetic on registers and predicates, and conversions.

use super::statement::{class_for, Statement};
use super::{Raw, Res};
use crate::ir::*;

impl Statement<'_, '_> {
    /// Arithmetic with a destination of the type's class and up to three sources of the same.
    pub(super) fn alu(&self, f: Alu, ty: Ty) -> Res<Op> {
        let o = self.o;
        self.need(2)?;
        let wide_result = matches!(f, Alu::MulWide | Alu::MadWide);
        let narrow_result = matches!(f, Alu::Clz | Alu::Popc | Alu::Bfind | Alu::BfindShift);
        let d_class = match (wide_result, narrow_result) {
            (true, _) if ty.size() == 4 => Class::Wide,
            (_, true) => Class::Narrow,
            _ => class_for(ty),
        };
        let source = |i: usize| -> Res<Src> {
            let Some(raw) = o.get(i + 1) else {
                return Ok(Src::Imm(0));
            };
            let class = match (f, i) {
                (Alu::Shl | Alu::Shr, 1) | (Alu::Bfe, 1 | 2) | (Alu::Bfi, 2 | 3) => Class::Narrow,
                (Alu::MadWide, 2) => d_class,
                _ => class_for(ty),
            };
            self.src(raw, class)
        };
        Ok(Op::Alu {
            f,
            ty,
            mode: self.mode(),
            d: self.dst(&o[0], d_class)?,
            a: source(0)?,
            b: source(1)?,
            c: source(2)?,
            e: source(3)?,
        })
    }

    pub(super) fn mov(&self) -> Res<Op> {
        let o = self.o;
        self.need(2)?;
        let ty = self.ty()?;
        if ty == Ty::Pred {
            return Ok(Op::Pred {
                f: None,
                negate: false,
                d: self.dst(&o[0], Class::Pred)?,
                a: self.pred(&o[1])?,
                b: PredSrc::Const(false),
            });
        }
        match (&o[0], &o[1]) {
            (_, Raw::Vec(list)) => Ok(Op::Pack {
                ty,
                d: self.dst(&o[0], class_for(ty))?,
                parts: list
                    .iter()
                    .map(|raw| self.src(raw, Class::Narrow))
                    .collect::<Res<_>>()?,
            }),
            (Raw::Vec(list), _) => Ok(Op::Unpack {
                ty,
                a: self.src(&o[1], class_for(ty))?,
                parts: list
                    .iter()
                    .map(|raw| self.dst(raw, Class::Narrow))
                    .collect::<Res<_>>()?,
            }),
            _ => self.alu(Alu::Mov, ty),
        }
    }

    /// `mul` and `mad`.
    pub(super) fn mul(&self) -> Res<Op> {
        let ty = self.ty()?;
        let mad = self.parts[0] == "mad";
        if ty.float() {
            return self.alu(if mad { Alu::Fma } else { Alu::MulLo }, ty);
        }
        let f = match (mad, self.has("wide"), self.has("hi")) {
            (false, true, _) => Alu::MulWide,
            (false, _, true) => Alu::MulHi,
            (false, ..) => Alu::MulLo,
            (true, true, _) => Alu::MadWide,
            (true, _, true) => Alu::MadHi,
            (true, ..) => Alu::MadLo,
        };
        self.alu(f, ty)
    }

    /// `and`, `or` and `xor`.
    pub(super) fn bits(&self) -> Res<Op> {
        let o = self.o;
        let ty = self.ty()?;
        let (f, p) = match self.parts[0] {
            "and" => (Alu::And, BitOp::And),
            "or" => (Alu::Or, BitOp::Or),
            _ => (Alu::Xor, BitOp::Xor),
        };
        if ty != Ty::Pred {
            return self.alu(f, ty);
        }
        self.need(3)?;
        Ok(Op::Pred {
            f: Some(p),
            negate: false,
            d: self.dst(&o[0], Class::Pred)?,
            a: self.pred(&o[1])?,
            b: self.pred(&o[2])?,
        })
    }

    pub(super) fn not(&self) -> Res<Op> {
        let o = self.o;
        let ty = self.ty()?;
        if ty != Ty::Pred {
            return self.alu(Alu::Not, ty);
        }
        self.need(2)?;
        Ok(Op::Pred {
            f: None,
            negate: true,
            d: self.dst(&o[0], Class::Pred)?,
            a: self.pred(&o[1])?,
            b: PredSrc::Const(false),
        })
    }

    pub(super) fn shf(&self) -> Res<Op> {
        self.alu(
            match (self.has("l"), self.has("clamp")) {
                (true, false) => Alu::ShfLWrap,
                (true, true) => Alu::ShfLClamp,
                (false, false) => Alu::ShfRWrap,
                (false, true) => Alu::ShfRClamp,
            },
            Ty::B32,
        )
    }

    pub(super) fn cvta(&self) -> Res<Op> {
        let o = self.o;
        self.need(2)?;
        let to = self.has("to");
        let kind = match self.space() {
            Space::Shared | Space::Cluster => 1,
            Space::Local => 2,
            Space::Param => 3,
            Space::Const | Space::Global => 0,
            _ => return self.unsupported(),
        };
        let ty = self.ty()?;
        // A variable's name stands for its address.
        Ok(Op::Alu {
            f: if to { Alu::CvtaFromGeneric } else { Alu::CvtaToGeneric },
            ty,
            mode: self.mode(),
            d: self.dst(&o[0], class_for(ty))?,
            a: self.src(&o[1], class_for(ty))?,
            b: Src::Imm(kind),
            c: Src::Imm(0),
            e: Src::Imm(0),
        })
    }

    pub(super) fn setp(&self) -> Res<Op> {
        let o = self.o;
        self.need(3)?;
        let cmp = match self.parts[1] {
            "eq" => Cmp::Eq,
            "ne" => Cmp::Ne,
            "lt" | "lo" => Cmp::Lt,
            "le" | "ls" => Cmp::Le,
            "gt" | "hi" => Cmp::Gt,
            "ge" | "hs" => Cmp::Ge,
            "equ" => Cmp::Equ,
            "neu" => Cmp::Neu,
            "ltu" => Cmp::Ltu,
            "leu" => Cmp::Leu,
            "gtu" => Cmp::Gtu,
            "geu" => Cmp::Geu,
            "num" => Cmp::Num,
            "nan" => Cmp::Nan,
            _ => return self.unsupported(),
        };
        let ty = self.ty()?;
        let combine = match (self.has("and"), self.has("or"), self.has("xor")) {
            (true, ..) => Some(BitOp::And),
            (_, true, _) => Some(BitOp::Or),
            (_, _, true) => Some(BitOp::Xor),
            _ => None,
        };
        let (d, q) = match o[0] {
            Raw::Pair(d, q) => (self.register(d, Class::Pred)?, self.register(q, Class::Pred)?),
            ref raw => (self.dst(raw, Class::Pred)?, SINK),
        };
        Ok(Op::Setp {
            cmp,
            ty,
            ftz: self.has("ftz"),
            d,
            q,
            combine: match combine {
                Some(bit) => {
                    self.need(4)?;
                    Some((bit, self.pred(&o[3])?))
                }
                None => None,
            },
            a: self.src(&o[1], class_for(ty))?,
            b: self.src(&o[2], class_for(ty))?,
        })
    }

    pub(super) fn selp(&self) -> Res<Op> {
        let o = self.o;
        self.need(4)?;
        let class = class_for(self.ty()?);
        Ok(Op::Selp {
            wide: class == Class::Wide,
            d: self.dst(&o[0], class)?,
            a: self.src(&o[1], class)?,
            b: self.src(&o[2], class)?,
            p: self.pred(&o[3])?,
        })
    }

    pub(super) fn cvt(&self) -> Res<Op> {
        let o = self.o;
        self.need(2)?;
        let mut types = self.parts[1..].iter().filter_map(|part| Ty::parse(part));
        let (Some(to), Some(from)) = (types.next(), types.next()) else {
            return self.unsupported();
        };
        if self.has("satfinite") || self.has("pack") {
            return self.unsupported();
        }
        let d_class = self.class_of(&o[0], class_for(to));
        let a_class = self.class_of(&o[1], class_for(from));
        Ok(Op::Cvt {
            to,
            from,
            mode: self.mode(),
            d: self.dst(&o[0], d_class)?,
            d_wide: d_class == Class::Wide,
            a: self.src(&o[1], a_class)?,
            a_wide: a_class == Class::Wide,
            b: match o.get(2) {
                Some(raw) => Some(self.src(raw, class_for(from))?),
                None => None,
            },
        })
    }
}

/// Arithmetic that has a name and a type, and nothing that decides what it is.
pub(super) fn alu_of(name: &str) -> Option<Alu> {
    Some(match name {
        "add" => Alu::Add,
        "sub" => Alu::Sub,
        "fma" => Alu::Fma,
        "rem" => Alu::Rem,
        "min" => Alu::Min,
        "max" => Alu::Max,
        "neg" => Alu::Neg,
        "abs" => Alu::Abs,
        "cnot" => Alu::Cnot,
        "shl" => Alu::Shl,
        "shr" => Alu::Shr,
        "bfi" => Alu::Bfi,
        "bfe" => Alu::Bfe,
        "brev" => Alu::Brev,
        "clz" => Alu::Clz,
        "popc" => Alu::Popc,
        "ex2" => Alu::Ex2,
        "lg2" => Alu::Lg2,
        "rcp" => Alu::Rcp,
        "sqrt" => Alu::Sqrt,
        "rsqrt" => Alu::Rsqrt,
        "sin" => Alu::Sin,
        "cos" => Alu::Cos,
        "tanh" => Alu::Tanh,
        "copysign" => Alu::CopySign,
        _ => return None,
    })
}
