//! A kernel's statements: directives, labels and instructions.

use super::statement::Statement;
use super::{Body, Named, Parser, Raw, Res, Scope_};
use crate::ir::*;
use std::collections::HashMap;

impl<'a> Parser<'a> {
    pub(super) fn body(&mut self, body: &mut Body<'a>) -> Res<()> {
        let mut shared_end = self.shared_end;
        loop {
            match self.peek() {
                0 => return self.error("the file ends within a kernel"),
                b'{' => {
                    self.at += 1;
                    body.scopes.push(Scope_ {
                        parent: body.scope,
                        names: HashMap::new(),
                        labels: HashMap::new(),
                    });
                    body.scope = body.scopes.len() - 1;
                    continue;
                }
                b'}' => {
                    self.at += 1;
                    if body.scope == 0 {
                        body.entry.static_shared = shared_end;
                        return Ok(());
                    }
                    body.scope = body.scopes[body.scope].parent;
                    continue;
                }
                b';' => {
                    self.at += 1;
                    continue;
                }
                _ => {}
            }
            let line = self.line;
            let mut guard = None;
            if self.eat(b'@') {
                let negate = self.eat(b'!');
                let name = self.word();
                guard = Some((self.register(body, name, Class::Pred)?, negate));
            }
            let word = self.word();
            if let Some(directive) = word.strip_prefix('.') {
                match directive {
                    "loc" => self.loc(body)?,
                    "reg" => self.registers(body)?,
                    "shared" => {
                        let (name, align, size, _) = self.variable()?;
                        shared_end = shared_end.next_multiple_of(align);
                        body.scopes[body.scope]
                            .names
                            .insert(name.to_string(), Named::Shared(shared_end));
                        shared_end += size;
                    }
                    "local" => {
                        let (name, align, size, _) = self.variable()?;
                        let at = body.entry.local_bytes.next_multiple_of(align);
                        body.scopes[body.scope].names.insert(name.to_string(), Named::Local(at));
                        body.entry.local_bytes = at + size;
                    }
                    "pragma" => self.skip_statement(),
                    _ => return self.error(format!("'{word}' is not supported in a kernel")),
                }
                continue;
            }
            if word.is_empty() {
                return self.error(format!("unexpected '{}'", self.next_char()));
            }
            if self.peek() == b':' {
                self.at += 1;
                let at = body.entry.code.len() as u32;
                body.scopes[body.scope].labels.insert(word.to_string(), at);
                continue;
            }
            let mut operands = Vec::new();
            while self.peek() != b';' {
                operands.push(self.operand()?);
                if !self.eat(b',') {
                    break;
                }
            }
            self.expect(b';')?;
            let index = body.entry.code.len();
            let op = match self.instruction(body, word, &operands, index, line) {
                Ok(op) => op,
                Err(mut error) => {
                    error.line = line;
                    return Err(error);
                }
            };
            body.entry.code.push(Instr {
                op,
                guard,
                line,
                location: body.location,
            });
        }
    }

    /// What an instruction does; branches are noted, to find their targets at the end.
    fn instruction(&self, body: &mut Body<'a>, word: &'a str, o: &[Raw<'a>], index: usize, line: u32) -> Res<Op> {
        let op = Statement::new(self, body, word, o).op()?;
        if let (Op::Bra { .. }, Some(Raw::Name(label))) = (&op, o.first()) {
            body.pending.push((index, body.scope, label, line));
        }
        Ok(op)
    }

    fn loc(&mut self, body: &mut Body<'a>) -> Res<()> {
        let rest = self.rest_of_line();
        let mut words = rest.split([' ', '\t', ',']).filter(|word| !word.is_empty());
        let mut next = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0u32);
        let (file, line) = (next(), next());
        let inlined = rest.split("inlined_at").nth(1).map(|at| {
            let mut numbers = at.split_whitespace().map(|word| word.parse().unwrap_or(0));
            (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
        });
        body.entry.locations.push(Location { file, line, inlined });
        body.location = body.entry.locations.len() as u32 - 1;
        Ok(())
    }

    fn registers(&mut self, body: &mut Body<'a>) -> Res<()> {
        let ty = self.word();
        let class = match Ty::parse(ty.trim_start_matches('.')) {
            Some(Ty::Pred) => Class::Pred,
            Some(ty) if ty.wide() => Class::Wide,
            Some(_) => Class::Narrow,
            None => return self.error(format!("registers of type '{ty}' are not supported")),
        };
        loop {
            let name = self.word();
            let count = &mut body.entry.registers[class as usize];
            if self.eat(b'<') {
                let many = self.number()? as u32;
                self.expect(b'>')?;
                body.ranges.insert(name, (class, *count, many));
                *count += many;
            } else {
                body.scopes[body.scope]
                    .names
                    .insert(name.to_string(), Named::Reg(class, *count));
                *count += 1;
            }
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(b';')
    }
}
