//! What lies outside of kernels, and a kernel's head.

use super::{Body, Module, Named, ParseError, Parser, Res, Scope_, SHARED_BASE};
use crate::ir::*;
use std::collections::HashMap;

impl<'a> Parser<'a> {
    pub(super) fn module(mut self) -> Res<Module> {
        loop {
            match self.peek() {
                0 => break,
                b'{' | b'}' | b';' => {
                    self.at += 1;
                    continue;
                }
                _ => {}
            }
            let word = self.word();
            match word {
                ".version" | ".address_size" => {
                    self.rest_of_line();
                }
                ".target" => {
                    let rest = self.rest_of_line();
                    let digits: String = rest
                        .trim()
                        .trim_start_matches("sm_")
                        .chars()
                        .take_while(char::is_ascii_digit)
                        .collect();
                    self.module.target = digits.parse().unwrap_or(0);
                }
                ".file" => self.file()?,
                ".section" => {
                    // Debugging information: nothing that runs.
                    let mut depth = 0;
                    loop {
                        match self.peek() {
                            0 => break,
                            b'{' => depth += 1,
                            b'}' => {
                                depth -= 1;
                                if depth == 0 {
                                    self.at += 1;
                                    break;
                                }
                            }
                            _ => {}
                        }
                        self.at += 1;
                    }
                }
                ".visible" | ".weak" | ".extern" | ".common" => {}
                ".entry" => self.entry()?,
                ".func" => return self.error("functions (.func) are not supported: nvcc inlines them at -O3"),
                ".shared" => {
                    let (name, align, size, _) = self.variable()?;
                    if size == 0 {
                        self.extern_shared.push((name.to_string(), align));
                    } else {
                        self.shared_end = self.shared_end.next_multiple_of(align);
                        self.shared.insert(name.to_string(), self.shared_end);
                        self.shared_end += size;
                    }
                }
                ".global" | ".const" => {
                    let (name, align, size, init) = self.variable()?;
                    self.module.globals.push(Variable {
                        name: name.to_string(),
                        align,
                        size,
                        init,
                    });
                }
                ".pragma" => self.skip_statement(),
                "" => return self.error(format!("unexpected '{}'", self.next_char())),
                other => return self.error(format!("'{other}' is not supported here")),
            }
        }
        Ok(self.module)
    }

    fn file(&mut self) -> Res<()> {
        let number = self.number()? as u32;
        let rest = self.rest_of_line();
        let name = rest.split('"').nth(1).unwrap_or("?");
        self.module.files.insert(number, name.to_string());
        Ok(())
    }

    /// `.align N .TYPE NAME[SIZE]... = {…};`
    pub(super) fn variable(&mut self) -> Res<(&'a str, u32, u32, Vec<u8>)> {
        let mut align = 1;
        let mut size = 1;
        loop {
            let word = self.word();
            match word {
                ".align" => align = self.number()? as u32,
                _ if word.starts_with('.') => {
                    if let Some(ty) = Ty::parse(&word[1..]) {
                        size = ty.size();
                        align = align.max(size);
                    }
                }
                name => {
                    let element = size;
                    let mut total = size;
                    while self.eat(b'[') {
                        total = if self.peek() == b']' {
                            0
                        } else {
                            total * self.number()? as u32
                        };
                        self.expect(b']')?;
                    }
                    let mut init = Vec::new();
                    if self.eat(b'=') {
                        let list = self.eat(b'{');
                        loop {
                            let value = self.number()?;
                            init.extend_from_slice(&value.to_le_bytes()[..element as usize]);
                            if !self.eat(b',') {
                                break;
                            }
                        }
                        if list {
                            self.expect(b'}')?;
                        }
                    }
                    if !matches!(self.peek(), b')' | b',') {
                        self.expect(b';')?;
                    }
                    return Ok((name, align, total, init));
                }
            }
        }
    }

    fn entry(&mut self) -> Res<()> {
        let name = self.word();
        let mut params = Vec::new();
        let mut offset: u32 = 0;
        if self.eat(b'(') {
            while !self.eat(b')') {
                self.word(); // .param
                let (name, align, size, _) = self.variable()?;
                offset = offset.next_multiple_of(align);
                params.push(ParamDecl {
                    name: name.to_string(),
                    offset,
                    size,
                });
                offset += size;
                self.eat(b',');
            }
        }
        let mut names: HashMap<String, Named> = HashMap::new();
        for param in &params {
            names.insert(param.name.clone(), Named::Param(param.offset));
        }
        for (i, global) in self.module.globals.iter().enumerate() {
            names.insert(global.name.clone(), Named::Global(i as u32));
        }
        for (name, &at) in &self.shared {
            names.insert(name.clone(), Named::Shared(at));
        }
        let mut body = Body {
            entry: Entry {
                name: name.to_string(),
                params,
                param_bytes: offset,
                static_shared: 0,
                local_bytes: 0,
                registers: [0; 3],
                code: Vec::new(),
                locations: vec![Location::default()],
                max_threads: None,
                grain: [2, 2],
            },
            scopes: vec![Scope_ {
                parent: 0,
                names,
                labels: HashMap::new(),
            }],
            scope: 0,
            ranges: HashMap::new(),
            location: 0,
            pending: Vec::new(),
        };
        while self.peek() == b'.' {
            let word = self.word();
            let mut numbers = Vec::new();
            while self.peek().is_ascii_digit() {
                numbers.push(self.number()? as u32);
                self.eat(b',');
            }
            if word == ".maxntid" || word == ".reqntid" {
                body.entry.max_threads = Some(numbers.iter().product());
            }
        }
        self.expect(b'{')?;
        self.body(&mut body)?;
        // Externally sized shared memory comes after all that has a size.
        let end = body.entry.static_shared.max(self.shared_end);
        let at = self
            .extern_shared
            .iter()
            .fold(end, |at, (_, align)| at.next_multiple_of((*align).max(16)));
        body.entry.static_shared = at - SHARED_BASE;
        for instr in &mut body.entry.code {
            place_extern(&mut instr.op, at);
        }
        let mut entry = body.entry;
        for (index, scope, label, line) in body.pending {
            let mut scope = scope;
            let target = loop {
                if let Some(&target) = body.scopes[scope].labels.get(label) {
                    break target;
                }
                if scope == 0 {
                    return Err(ParseError {
                        line,
                        message: format!("there is no label '{label}'"),
                    });
                }
                scope = body.scopes[scope].parent;
            };
            if let Op::Bra { target: to } = &mut entry.code[index].op {
                *to = target;
            }
        }
        entry.code.push(Instr {
            op: Op::Exit,
            guard: None,
            line: self.line,
            location: 0,
        });
        entry.grain = grain(&entry.code);
        self.module.entries.push(entry);
        Ok(())
    }
}

/// Stands for the start of the externally sized shared memory until that is known.
pub(super) const EXTERN: u64 = 0xE87E_0000_0000;

fn place_extern(op: &mut Op, at: u32) {
    let fix = |src: &mut Src| {
        if *src == Src::Imm(EXTERN) {
            *src = Src::Imm(at.into());
        }
    };
    match op {
        Op::Alu { a, b, c, .. } => [a, b, c].into_iter().for_each(fix),
        Op::Ld { at, .. } | Op::St { at, .. } | Op::Atom { at, .. } => fix(&mut at.base),
        Op::MbarInit { at, .. } | Op::MbarArrive { at, .. } | Op::MbarWait { at, .. } => fix(&mut at.base),
        Op::CpAsync { dst, .. } => fix(&mut dst.base),
        Op::TmaLoad { dst, bar, .. } | Op::BulkLoad { dst, bar, .. } | Op::StAsync { at: dst, bar, .. } => {
            fix(&mut dst.base);
            fix(&mut bar.base);
        }
        Op::TmaStore { src, .. } | Op::BulkStore { src, .. } => fix(&mut src.base),
        Op::Selp { a, b, .. } => [a, b].into_iter().for_each(fix),
        Op::Cvt { a, .. } | Op::Mapa { a, .. } => fix(a),
        _ => {}
    }
}

/// log2 of the smallest access to shared memory and to global memory, at most 4 bytes.
fn grain(code: &[Instr]) -> [u32; 2] {
    let mut grain = [2u32; 2];
    for instr in code {
        let (space, ty) = match &instr.op {
            Op::Ld { space, ty, .. } | Op::St { space, ty, .. } | Op::Atom { space, ty, .. } => (*space, *ty),
            _ => continue,
        };
        let log = ty.size().trailing_zeros().min(2);
        match space {
            Space::Shared | Space::Cluster => grain[0] = grain[0].min(log),
            Space::Global => grain[1] = grain[1].min(log),
            Space::Generic => grain.iter_mut().for_each(|grain| *grain = (*grain).min(log)),
            _ => {}
        }
    }
    grain
}
