//! Barriers, fences, and what lanes carry out together.

use super::memory::atom_op;
use super::statement::Statement;
use super::{Raw, Res};
use crate::ir::*;

impl<'a> Statement<'_, 'a> {
    pub(super) fn bar_warp(&self) -> Res<Op> {
        let o = self.o;
        self.need(1)?;
        Ok(Op::WarpSync {
            mask: self.src(&o[0], Class::Narrow)?,
        })
    }

    pub(super) fn barrier_cluster(&self) -> Res<Op> {
        match (self.has("arrive"), self.has("wait")) {
            (true, _) => Ok(Op::ClusterArrive {
                release: !self.has("relaxed"),
            }),
            (_, true) => Ok(Op::ClusterWait { acquire: true }),
            _ => self.unsupported(),
        }
    }

    pub(super) fn bar(&self) -> Res<Op> {
        let o = self.o;
        let (mut kind, mut first) = match (self.has("sync"), self.has("arrive"), self.has("red")) {
            (true, ..) => (BarKind::Sync, 0),
            (_, true, _) => (BarKind::Arrive, 0),
            (_, _, true) => (BarKind::Sync, 1),
            _ => return self.unsupported(),
        };
        let many = o.len();
        self.need(first + 1)?;
        let mut last = many;
        if self.has("red") {
            let p = self.pred(&o[many - 1])?;
            last -= 1;
            kind = if self.has("and") {
                BarKind::RedAnd(self.dst(&o[0], Class::Pred)?, p)
            } else if self.has("or") {
                BarKind::RedOr(self.dst(&o[0], Class::Pred)?, p)
            } else {
                BarKind::RedPopc(self.dst(&o[0], Class::Narrow)?, p)
            };
        }
        let id = self.src(&o[first], Class::Narrow)?;
        first += 1;
        Ok(Op::Bar {
            kind,
            id,
            threads: if first < last {
                Some(self.src(&o[first], Class::Narrow)?)
            } else {
                None
            },
            aligned: self.parts[0] == "bar" || self.has("aligned"),
        })
    }

    pub(super) fn mbarrier(&self) -> Res<Op> {
        let o = self.o;
        let narrow = |raw: &Raw<'a>| self.src(raw, Class::Narrow);
        let Some(first) = o.first() else {
            return self.unsupported();
        };
        let action = self.parts[1];
        match action {
            "init" if o.len() == 2 => Ok(Op::MbarInit {
                at: self.addr(first)?,
                count: narrow(&o[1])?,
            }),
            "inval" => Ok(Op::MbarInval { at: self.addr(first)? }),
            "expect_tx" if o.len() == 2 => Ok(Op::MbarArrive {
                space: self.space(),
                at: self.addr(first)?,
                release: false,
                expect: Some(narrow(&o[1])?),
                arrive: None,
                d: SINK,
            }),
            "complete_tx" if o.len() == 2 => Ok(Op::MbarCompleteTx {
                space: self.space(),
                at: self.addr(first)?,
                bytes: narrow(&o[1])?,
            }),
            "arrive" => {
                // The state that is returned comes first, except for other blocks' barriers, where it may be left out.
                let with_state = matches!(first, Raw::Name(_));
                let rest = if with_state { &o[1..] } else { o };
                let Some(at) = rest.first() else {
                    return self.unsupported();
                };
                let expect_tx = self.has("expect_tx");
                if self.has("noComplete") {
                    return self.unsupported();
                }
                let extra = match rest.get(1) {
                    Some(raw) => Some(narrow(raw)?),
                    None => None,
                };
                Ok(Op::MbarArrive {
                    space: self.space(),
                    at: self.addr(at)?,
                    release: !self.has("relaxed"),
                    expect: if expect_tx { extra } else { None },
                    arrive: Some(match extra {
                        Some(count) if !expect_tx => count,
                        _ => Src::Imm(1),
                    }),
                    d: match first {
                        Raw::Name(_) => self.dst(first, Class::Wide)?,
                        _ => SINK,
                    },
                })
            }
            "try_wait" | "test_wait" if self.has("parity") && o.len() >= 3 => Ok(Op::MbarWait {
                at: self.addr(&o[1])?,
                d: self.dst(first, Class::Pred)?,
                parity: narrow(&o[2])?,
                blocking: action == "try_wait",
                acquire: !self.has("relaxed"),
            }),
            _ => self.unsupported(),
        }
    }

    pub(super) fn shfl(&self) -> Res<Op> {
        let o = self.o;
        self.need(5)?;
        let kind = match (self.has("idx"), self.has("up"), self.has("down"), self.has("bfly")) {
            (true, ..) => Shfl::Idx,
            (_, true, ..) => Shfl::Up,
            (_, _, true, _) => Shfl::Down,
            _ => Shfl::Bfly,
        };
        let (d, p) = self.pair(&o[0], Class::Narrow)?;
        let narrow = |i: usize| self.src(&o[i], Class::Narrow);
        Ok(Op::Shfl {
            kind,
            d,
            p,
            a: narrow(1)?,
            b: narrow(2)?,
            c: narrow(3)?,
            mask: narrow(4)?,
        })
    }

    pub(super) fn vote(&self) -> Res<Op> {
        let o = self.o;
        self.need(3)?;
        let kind = match (self.has("any"), self.has("all"), self.has("uni")) {
            (true, ..) => Vote::Any,
            (_, true, _) => Vote::All,
            (_, _, true) => Vote::Uni,
            _ => Vote::Ballot,
        };
        let class = if kind == Vote::Ballot {
            Class::Narrow
        } else {
            Class::Pred
        };
        Ok(Op::Vote {
            kind,
            d: self.dst(&o[0], class)?,
            p: self.pred(&o[1])?,
            mask: self.src(&o[2], Class::Narrow)?,
        })
    }

    pub(super) fn redux(&self) -> Res<Op> {
        let o = self.o;
        self.need(3)?;
        let Some(op) = self.parts[1..].iter().find_map(|part| atom_op(part)) else {
            return self.unsupported();
        };
        Ok(Op::Redux {
            op,
            ty: self.ty()?,
            d: self.dst(&o[0], Class::Narrow)?,
            a: self.src(&o[1], Class::Narrow)?,
            mask: self.src(&o[2], Class::Narrow)?,
        })
    }

    pub(super) fn elect(&self) -> Res<Op> {
        let o = self.o;
        self.need(2)?;
        let (d, p) = self.pair(&o[0], Class::Narrow)?;
        Ok(Op::Elect {
            d,
            p,
            mask: self.src(&o[1], Class::Narrow)?,
        })
    }

    pub(super) fn membar(&self) -> Res<Op> {
        Ok(Op::Fence {
            sem: Sem::AcqRel,
            scope: match self.parts.get(1) {
                Some(&"cta") => Scope::Cta,
                Some(&"sys") => Scope::Sys,
                _ => Scope::Gpu,
            },
        })
    }

    pub(super) fn fence(&self) -> Res<Op> {
        if self.has("proxy") {
            return match self.parts.get(2) {
                Some(&"async") => Ok(Op::FenceProxyAsync {
                    global: !self.has("shared::cta") && !self.has("shared::cluster"),
                    shared: !self.has("global"),
                }),
                _ => self.unsupported(),
            };
        }
        if self.has("mbarrier_init") {
            return Ok(Op::FenceMbarrierInit);
        }
        Ok(Op::Fence {
            sem: Sem::AcqRel,
            scope: self.scope(),
        })
    }
}
