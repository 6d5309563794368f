//! Operands: how they are written, and what they stand for.

use super::entry::EXTERN;
use super::statement::Statement;
use super::{Body, Named, Parser, Raw, Res};
use crate::ir::*;

impl<'a> Parser<'a> {
    pub(super) fn operand(&mut self) -> Res<Raw<'a>> {
        match self.peek() {
            b'{' => {
                self.at += 1;
                let mut list = Vec::new();
                while !self.eat(b'}') {
                    list.push(self.operand()?);
                    self.eat(b',');
                }
                Ok(Raw::Vec(list))
            }
            b'[' => {
                self.at += 1;
                let mut list = Vec::new();
                let mut offset = 0;
                while !self.eat(b']') {
                    if self.eat(b'+') {
                        offset = self.number()? as i64;
                        continue;
                    }
                    list.push(self.operand()?);
                    self.eat(b',');
                }
                Ok(Raw::Mem(list, offset))
            }
            b'!' => {
                self.at += 1;
                Ok(Raw::NotName(self.word()))
            }
            b'-' => Ok(Raw::Num(self.number()?)),
            byte if byte.is_ascii_digit() => Ok(Raw::Num(self.number()?)),
            _ => {
                let name = self.word();
                if name.is_empty() {
                    return self.error(format!("unexpected '{}'", self.next_char()));
                }
                if self.eat(b'|') {
                    return Ok(Raw::Pair(name, self.word()));
                }
                Ok(Raw::Name(name))
            }
        }
    }

    pub(super) fn register(&self, body: &Body<'a>, name: &str, wanted: Class) -> Res<u32> {
        if name == "_" {
            return Ok(SINK);
        }
        match body.lookup(name) {
            Some(Named::Reg(class, number)) if class == wanted => Ok(number),
            Some(Named::Reg(class, _)) => self.error(format!("{name} is a {class:?} register, not a {wanted:?} one")),
            _ => self.error(format!("there is no register '{name}'")),
        }
    }
}

impl Body<'_> {
    fn lookup(&self, name: &str) -> Option<Named> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            let (prefix, number) = name.split_at(name.len() - digits);
            if let (Some(&(class, base, many)), Ok(number)) = (self.ranges.get(prefix), number.parse::<u32>()) {
                if number < many {
                    return Some(Named::Reg(class, base + number));
                }
            }
        }
        let mut scope = self.scope;
        loop {
            if let Some(&named) = self.scopes[scope].names.get(name) {
                return Some(named);
            }
            if scope == 0 {
                return None;
            }
            scope = self.scopes[scope].parent;
        }
    }
}

impl<'a> Statement<'_, 'a> {
    pub(super) fn register(&self, name: &str, wanted: Class) -> Res<u32> {
        self.parser.register(self.body, name, wanted)
    }

    pub(super) fn dst(&self, raw: &Raw<'a>, class: Class) -> Res<u32> {
        match raw {
            Raw::Name(name) => self.register(name, class),
            _ => self.error("the destination has to be a register"),
        }
    }

    pub(super) fn src(&self, raw: &Raw<'a>, class: Class) -> Res<Src> {
        match raw {
            Raw::Num(number) => Ok(Src::Imm(*number)),
            Raw::Name(name) => {
                if let Some(special) = special(name) {
                    return Ok(Src::Special(special));
                }
                if self.parser.extern_shared.iter().any(|(known, _)| known == name) {
                    return Ok(Src::Imm(EXTERN));
                }
                match *name {
                    "WARP_SZ" => return Ok(Src::Imm(32)),
                    "%clock_hi" => return Ok(Src::Imm(0)),
                    "%total_smem_size" => return Ok(Src::Imm(0)),
                    _ => {}
                }
                match self.body.lookup(name) {
                    Some(Named::Reg(found, number)) if found == class => Ok(Src::Reg(number)),
                    Some(Named::Reg(found, _)) => self.error(format!("{name} is {found:?}, not {class:?}")),
                    Some(Named::Shared(at)) => Ok(Src::Imm(at.into())),
                    Some(Named::Local(at) | Named::Param(at)) => Ok(Src::Imm(at.into())),
                    Some(Named::Global(index)) => Ok(Src::Global(index)),
                    None => self.error(format!("'{name}' is not known")),
                }
            }
            _ => self.error("expected a register or a number"),
        }
    }

    pub(super) fn pred(&self, raw: &Raw<'a>) -> Res<PredSrc> {
        match raw {
            Raw::Name(name) => Ok(PredSrc::Reg(self.register(name, Class::Pred)?, false)),
            Raw::NotName(name) => Ok(PredSrc::Reg(self.register(name, Class::Pred)?, true)),
            Raw::Num(number) => Ok(PredSrc::Const(*number != 0)),
            _ => self.error("expected a predicate"),
        }
    }

    /// The class of a register that may be wider than the instruction's type.
    pub(super) fn class_of(&self, raw: &Raw<'a>, otherwise: Class) -> Class {
        let name = match raw {
            Raw::Name(name) => name,
            Raw::Vec(list) => match list.iter().find_map(|raw| match raw {
                Raw::Name(name) if *name != "_" => Some(name),
                _ => None,
            }) {
                Some(name) => name,
                None => return otherwise,
            },
            _ => return otherwise,
        };
        match self.body.lookup(name) {
            Some(Named::Reg(class @ (Class::Narrow | Class::Wide), _)) => class,
            _ => otherwise,
        }
    }

    /// `[base + offset]`
    pub(super) fn addr(&self, raw: &Raw<'a>) -> Res<Addr> {
        match raw {
            Raw::Mem(list, offset) if list.len() == 1 => self.addr_of(&list[0], *offset),
            _ => self.error("expected an address"),
        }
    }

    pub(super) fn addr_of(&self, raw: &Raw<'a>, offset: i64) -> Res<Addr> {
        if let Raw::Name(name) = raw {
            if let Some(Named::Reg(class, number)) = self.body.lookup(name) {
                return Ok(Addr {
                    base: Src::Reg(number),
                    wide: class == Class::Wide,
                    offset,
                });
            }
        }
        Ok(Addr {
            base: self.src(raw, Class::Wide)?,
            wide: true,
            offset,
        })
    }

    pub(super) fn list(&self, raw: &Raw<'a>, class: Class) -> Res<Box<[Src]>> {
        match raw {
            Raw::Vec(list) => list.iter().map(|raw| self.src(raw, class)).collect(),
            other => Ok(Box::new([self.src(other, class)?])),
        }
    }

    pub(super) fn dst_list(&self, raw: &Raw<'a>, class: Class) -> Res<Box<[u32]>> {
        match raw {
            Raw::Vec(list) => list.iter().map(|raw| self.dst(raw, class)).collect(),
            other => Ok(Box::new([self.dst(other, class)?])),
        }
    }

    pub(super) fn pair(&self, raw: &Raw<'a>, class: Class) -> Res<(u32, u32)> {
        match raw {
            Raw::Pair(d, p) => Ok((self.register(d, class)?, self.register(p, Class::Pred)?)),
            raw => Ok((self.dst(raw, class)?, SINK)),
        }
    }
}

fn special(name: &str) -> Option<Special> {
    let (stem, dim) = match name.rsplit_once('.') {
        Some((stem, "x")) => (stem, 0),
        Some((stem, "y")) => (stem, 1),
        Some((stem, "z")) => (stem, 2),
        _ => (name, 0),
    };
    Some(match stem {
        "%tid" => Special::Tid(dim),
        "%ntid" => Special::Ntid(dim),
        "%ctaid" => Special::Ctaid(dim),
        "%nctaid" => Special::Nctaid(dim),
        "%clusterid" => Special::Clusterid(dim),
        "%nclusterid" => Special::Nclusterid(dim),
        "%cluster_ctaid" => Special::ClusterCtaid(dim),
        "%cluster_nctaid" => Special::ClusterNctaid(dim),
        "%cluster_ctarank" => Special::ClusterCtarank,
        "%cluster_nctarank" => Special::ClusterNctarank,
        "%laneid" => Special::Laneid,
        "%warpid" => Special::Warpid,
        "%smid" => Special::Smid,
        "%clock" | "%clock64" | "%globaltimer" => Special::Clock,
        "%lanemask_lt" => Special::LanemaskLt,
        "%lanemask_le" => Special::LanemaskLe,
        "%lanemask_gt" => Special::LanemaskGt,
        "%lanemask_ge" => Special::LanemaskGe,
        "%lanemask_eq" => Special::LanemaskEq,
        "%dynamic_smem_size" => Special::DynamicSmem,
        _ => return None,
    })
}
