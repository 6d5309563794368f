//! Asynchronous copies, of threads and in bulk.

use super::statement::Statement;
use super::{Raw, Res};
use crate::ir::*;

impl<'a> Statement<'_, 'a> {
    pub(super) fn copy(&self) -> Res<Op> {
        if self.parts.get(1) != Some(&"async") {
            return self.unsupported();
        }
        if self.has("bulk") {
            self.bulk()
        } else {
            self.cp_async()
        }
    }

    /// How many groups may be under way.
    fn pending(&self) -> Res<u32> {
        match self.o.first() {
            Some(Raw::Num(number)) => Ok(*number as u32),
            _ => self.error("the number of groups has to be a constant"),
        }
    }

    fn cp_async(&self) -> Res<Op> {
        let o = self.o;
        if self.has("commit_group") {
            return Ok(Op::CpAsyncCommit);
        }
        if self.has("wait_group") {
            return Ok(Op::CpAsyncWait {
                pending: self.pending()?,
            });
        }
        if self.has("wait_all") {
            return Ok(Op::CpAsyncWait { pending: 0 });
        }
        if self.has("mbarrier") {
            return Ok(Op::CpAsyncMbarArrive {
                at: self.addr(&o[0])?,
                noinc: self.has("noinc"),
            });
        }
        let (Some(dst), Some(src), Some(Raw::Num(bytes))) = (o.first(), o.get(1), o.get(2)) else {
            return self.unsupported();
        };
        // The last operand is a number of bytes, or a predicate that says that the source is ignored.
        let ignore = o.get(3).and_then(|raw| self.pred(raw).ok());
        let ignore = ignore.filter(|pred| matches!(pred, PredSrc::Reg(..)));
        Ok(Op::CpAsync {
            bytes: *bytes as u32,
            dst: self.addr(dst)?,
            src: self.addr(src)?,
            valid: match o.get(3) {
                Some(raw) if ignore.is_none() => Some(self.src(raw, Class::Narrow)?),
                _ => None,
            },
            ignore,
        })
    }

    fn bulk(&self) -> Res<Op> {
        let o = self.o;
        if self.has("commit_group") {
            return Ok(Op::BulkCommit);
        }
        if self.has("wait_group") {
            return Ok(Op::BulkWait {
                pending: self.pending()?,
                read: self.has("read"),
            });
        }
        if self.has("prefetch") {
            return Ok(Op::Nop);
        }
        if self.has("reduce") || self.has("im2col") {
            return self.unsupported();
        }
        // Where to comes first.
        let to = self
            .parts
            .iter()
            .find(|part| part.starts_with("shared") || **part == "global");
        let to_shared = to.is_some_and(|to| *to != "global");
        if self.has("tensor") {
            return self.tensor_copy(to_shared);
        }
        if to_shared && self.has("global") && o.len() >= 4 {
            return Ok(Op::BulkLoad {
                dst: self.addr(&o[0])?,
                src: self.addr(&o[1])?,
                bytes: self.src(&o[2], Class::Narrow)?,
                bar: self.addr(&o[3])?,
                multicast: self.multicast(4)?,
            });
        }
        if !to_shared && o.len() >= 3 {
            return Ok(Op::BulkStore {
                dst: self.addr(&o[0])?,
                src: self.addr(&o[1])?,
                bytes: self.src(&o[2], Class::Narrow)?,
            });
        }
        self.unsupported()
    }

    fn tensor_copy(&self, to_shared: bool) -> Res<Op> {
        let o = self.o;
        let coords = |raw: &Raw<'a>| -> Res<(Addr, Box<[Src]>)> {
            match raw {
                Raw::Mem(list, offset) if list.len() == 2 => {
                    Ok((self.addr_of(&list[0], *offset)?, self.list(&list[1], Class::Narrow)?))
                }
                _ => self.error("expected a tensor map and coordinates"),
            }
        };
        if to_shared && o.len() >= 3 {
            let (map, coords) = coords(&o[1])?;
            return Ok(Op::TmaLoad {
                dims: coords.len() as u32,
                dst: self.addr(&o[0])?,
                map,
                coords,
                bar: self.addr(&o[2])?,
                multicast: self.multicast(3)?,
            });
        }
        if !to_shared && o.len() >= 2 {
            let (map, coords) = coords(&o[0])?;
            return Ok(Op::TmaStore {
                dims: coords.len() as u32,
                map,
                src: self.addr(&o[1])?,
                coords,
            });
        }
        self.unsupported()
    }

    /// The blocks that get a copy, if the word says that there is such an operand.
    fn multicast(&self, at: usize) -> Res<Option<Src>> {
        match (self.has("multicast::cluster"), self.o.get(at)) {
            (true, Some(raw)) => Ok(Some(self.src(raw, Class::Narrow)?)),
            _ => Ok(None),
        }
    }
}
