//! An instruction as it is written: its word, whose parts points separate, and its operands.

use super::arithmetic::alu_of;
use super::{Body, Parser, Raw, Res};
use crate::ir::*;

/// An instruction, and where it is read.
pub(super) struct Statement<'s, 'a> {
    pub(super) parser: &'s Parser<'a>,
    pub(super) body: &'s Body<'a>,
    pub(super) word: &'a str,
    /// The word's parts.
    pub(super) parts: Vec<&'a str>,
    /// The operands.
    pub(super) o: &'s [Raw<'a>],
}

impl<'s, 'a> Statement<'s, 'a> {
    pub(super) fn new(parser: &'s Parser<'a>, body: &'s Body<'a>, word: &'a str, o: &'s [Raw<'a>]) -> Self {
        let parts = word.split('.').collect();
        Statement {
            parser,
            body,
            word,
            parts,
            o,
        }
    }

    /// What the instruction does.
    pub(super) fn op(&self) -> Res<Op> {
        let has = |name: &str| self.has(name);
        match self.parts[0] {
            "mov" => self.mov(),
            "add" | "sub" if has("cc") => self.unsupported(),
            "mul" | "mad" => self.mul(),
            "div" => self.alu(
                if has("approx") || has("full") {
                    Alu::DivApprox
                } else {
                    Alu::Div
                },
                self.ty()?,
            ),
            "and" | "or" | "xor" => self.bits(),
            "not" => self.not(),
            "bfind" => self.alu(if has("shiftamt") { Alu::BfindShift } else { Alu::Bfind }, self.ty()?),
            "prmt" if self.parts.len() == 2 => self.alu(Alu::Prmt, Ty::B32),
            "shf" => self.shf(),
            "lop3" if !has("or") && !has("and") => self.alu(Alu::Lop3, Ty::B32),
            "cvta" => self.cvta(),
            "setp" => self.setp(),
            "selp" => self.selp(),
            "cvt" => self.cvt(),
            "ld" | "ldu" => self.ld(),
            "st" if has("async") => self.st_async(),
            "st" => self.st(),
            "atom" | "red" if !has("async") => self.atom(),
            "mapa" => self.mapa(),
            "getctarank" => self.getctarank(),
            "cp" => self.copy(),
            "bra" => self.bra(),
            "ret" | "exit" => Ok(Op::Exit),
            "trap" | "brkpt" => Ok(Op::Trap),
            "bar" | "barrier" if has("warp") => self.bar_warp(),
            "barrier" if has("cluster") => self.barrier_cluster(),
            "bar" | "barrier" => self.bar(),
            "mbarrier" => self.mbarrier(),
            "shfl" => self.shfl(),
            "vote" => self.vote(),
            "redux" => self.redux(),
            "elect" => self.elect(),
            "activemask" => Ok(Op::Activemask {
                d: self.dst(&self.o[0], Class::Narrow)?,
            }),
            "membar" => self.membar(),
            "fence" => self.fence(),
            "griddepcontrol" => match self.parts.get(1) {
                Some(&"wait") => Ok(Op::GridWait),
                Some(&"launch_dependents") => Ok(Op::GridLaunch),
                _ => self.unsupported(),
            },
            "setmaxnreg" => Ok(Op::SetMaxReg),
            "prefetch" | "prefetchu" | "nanosleep" => Ok(Op::Nop),
            "wgmma" => self.wgmma(),
            "mma" => self.mma(),
            "ldmatrix" | "stmatrix" => self.matrix(),
            name => match alu_of(name) {
                Some(f) => self.alu(f, self.ty()?),
                None => self.unsupported(),
            },
        }
    }

    /// The target is known at the end of the kernel.
    fn bra(&self) -> Res<Op> {
        self.need(1)?;
        let Raw::Name(_) = self.o[0] else {
            return self.error("a branch needs a label");
        };
        Ok(Op::Bra { target: u32::MAX })
    }

    pub(super) fn error<T>(&self, message: impl Into<String>) -> Res<T> {
        self.parser.error(message)
    }

    pub(super) fn unsupported<T>(&self) -> Res<T> {
        self.error(format!("the instruction '{}' is not supported", self.word))
    }

    /// Whether the word has this part.
    pub(super) fn has(&self, name: &str) -> bool {
        self.parts[1..].contains(&name)
    }

    /// There have to be so many operands.
    pub(super) fn need(&self, many: usize) -> Res<()> {
        if self.o.len() < many {
            return self.error(format!("'{}' needs {many} operands", self.word));
        }
        Ok(())
    }

    /// The last type that the word has.
    pub(super) fn ty(&self) -> Res<Ty> {
        match self.parts[1..].iter().rev().find_map(|part| Ty::parse(part)) {
            Some(ty) => Ok(ty),
            None => self.error(format!("'{}' has no known type", self.word)),
        }
    }

    pub(super) fn mode(&self) -> Mode {
        let mut mode = Mode {
            round: Round::Near,
            ftz: self.has("ftz"),
            sat: self.has("sat"),
            integer: false,
            nan: self.has("NaN"),
            relu: self.has("relu"),
        };
        for part in &self.parts[1..] {
            let (round, integer) = match *part {
                "rn" => (Round::Near, false),
                "rz" => (Round::Zero, false),
                "rm" => (Round::Down, false),
                "rp" => (Round::Up, false),
                "rna" => (Round::Away, false),
                "rni" => (Round::Near, true),
                "rzi" => (Round::Zero, true),
                "rmi" => (Round::Down, true),
                "rpi" => (Round::Up, true),
                _ => continue,
            };
            mode.round = round;
            mode.integer = integer;
        }
        mode
    }

    pub(super) fn space(&self) -> Space {
        if self.has("shared::cluster") {
            Space::Cluster
        } else if self.has("shared") || self.has("shared::cta") {
            Space::Shared
        } else if self.has("global") {
            Space::Global
        } else if self.has("local") {
            Space::Local
        } else if self.has("const") {
            Space::Const
        } else if self.parts[1..].iter().any(|part| part.starts_with("param")) {
            Space::Param
        } else {
            Space::Generic
        }
    }

    pub(super) fn scope(&self) -> Scope {
        if self.has("cta") {
            Scope::Cta
        } else if self.has("cluster") {
            Scope::Cluster
        } else if self.has("sys") {
            Scope::Sys
        } else {
            Scope::Gpu
        }
    }

    pub(super) fn sem(&self) -> Sem {
        if self.has("acq_rel") {
            Sem::AcqRel
        } else if self.has("acquire") {
            Sem::Acquire
        } else if self.has("release") {
            Sem::Release
        } else if self.has("relaxed") || self.has("volatile") || self.has("mmio") {
            Sem::Relaxed
        } else {
            Sem::Weak
        }
    }
}

/// The class of registers of a type.
pub(super) fn class_for(ty: Ty) -> Class {
    if ty.wide() {
        Class::Wide
    } else {
        Class::Narrow
    }
}
