//! Loads, stores and atomics, and addresses of other blocks.

use super::statement::{class_for, Statement};
use super::Res;
use crate::ir::*;

impl Statement<'_, '_> {
    pub(super) fn ld(&self) -> Res<Op> {
        let o = self.o;
        self.need(2)?;
        let ty = self.ty()?;
        Ok(Op::Ld {
            space: self.space(),
            ty,
            sem: self.sem(),
            scope: self.scope(),
            constant: self.has("nc"),
            wide: self.class_of(&o[0], class_for(ty)) == Class::Wide,
            d: self.dst_list(&o[0], self.class_of(&o[0], class_for(ty)))?,
            at: self.addr(&o[1])?,
        })
    }

    pub(super) fn st_async(&self) -> Res<Op> {
        let o = self.o;
        self.need(3)?;
        if self.ty()?.wide() || !self.has("mbarrier::complete_tx::bytes") {
            return self.unsupported();
        }
        Ok(Op::StAsync {
            at: self.addr(&o[0])?,
            s: self.list(&o[1], Class::Narrow)?,
            bar: self.addr(&o[2])?,
        })
    }

    pub(super) fn st(&self) -> Res<Op> {
        let o = self.o;
        self.need(2)?;
        let ty = self.ty()?;
        Ok(Op::St {
            space: self.space(),
            ty,
            sem: self.sem(),
            scope: self.scope(),
            wide: self.class_of(&o[1], class_for(ty)) == Class::Wide,
            s: self.list(&o[1], self.class_of(&o[1], class_for(ty)))?,
            at: self.addr(&o[0])?,
        })
    }

    /// `atom` and `red`.
    pub(super) fn atom(&self) -> Res<Op> {
        let o = self.o;
        let sem = self.sem();
        let red = self.parts[0] == "red";
        self.need(if red { 2 } else { 3 })?;
        let ty = self.ty()?;
        let op = match self.parts[1..].iter().find_map(|part| atom_op(part)) {
            Some(op) => op,
            None => return self.unsupported(),
        };
        let first = usize::from(!red);
        Ok(Op::Atom {
            space: self.space(),
            op,
            ty,
            sem: if sem == Sem::Weak { Sem::Relaxed } else { sem },
            scope: self.scope(),
            d: if red { SINK } else { self.dst(&o[0], class_for(ty))? },
            at: self.addr(&o[first])?,
            b: self.src(&o[first + 1], class_for(ty))?,
            c: match o.get(first + 2) {
                Some(raw) => self.src(raw, class_for(ty))?,
                None => Src::Imm(0),
            },
        })
    }

    pub(super) fn mapa(&self) -> Res<Op> {
        let o = self.o;
        self.need(3)?;
        let ty = self.ty()?;
        if self.space() != Space::Cluster {
            return self.unsupported();
        }
        Ok(Op::Mapa {
            d: self.dst(&o[0], class_for(ty))?,
            wide: ty.wide(),
            a: self.src(&o[1], class_for(ty))?,
            rank: self.src(&o[2], Class::Narrow)?,
        })
    }

    pub(super) fn getctarank(&self) -> Res<Op> {
        let o = self.o;
        self.need(2)?;
        let ty = self.ty()?;
        Ok(Op::GetCtaRank {
            d: self.dst(&o[0], Class::Narrow)?,
            wide: ty.wide(),
            a: self.src(&o[1], class_for(ty))?,
        })
    }
}

pub(super) fn atom_op(word: &str) -> Option<AtomOp> {
    Some(match word {
        "add" => AtomOp::Add,
        "min" => AtomOp::Min,
        "max" => AtomOp::Max,
        "and" => AtomOp::And,
        "or" => AtomOp::Or,
        "xor" => AtomOp::Xor,
        "exch" => AtomOp::Exch,
        "cas" => AtomOp::Cas,
        "inc" => AtomOp::Inc,
        "dec" => AtomOp::Dec,
        _ => return None,
    })
}
