//! From PTX text to [`Entry`]s.

use crate::ir::*;
use std::collections::HashMap;
use std::fmt;

/// What could not be understood, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Line of the PTX.
    pub line: u32,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for ParseError {}

/// A parsed PTX file.
#[derive(Clone, Debug, Default)]
pub struct Module {
    pub(crate) entries: Vec<Entry>,
    pub(crate) globals: Vec<Variable>,
    pub(crate) files: HashMap<u32, String>,
    /// The number after `sm_`.
    pub(crate) target: u32,
}

/// Static shared memory begins here: what lies below is the system's on Hopper, so that 0 is no object's address.
pub(crate) const SHARED_BASE: u32 = 1024;

impl Module {
    /// Parses all kernels of a file.
    ///
    /// # Errors
    ///
    /// The first thing that is not understood, by its name.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        Parser::new(text).module()
    }

    /// The kernels.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The kernel of this name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The number after `sm_` in the file's target.
    pub fn target(&self) -> u32 {
        self.target
    }

    /// `FILE:LINE`, and where that was inlined.
    pub(crate) fn describe(&self, location: Location) -> String {
        let name = |file: u32| {
            let path = self.files.get(&file).map_or("?", String::as_str);
            path.rsplit('/').next().unwrap_or(path).to_string()
        };
        let mut text = format!("{}:{}", name(location.file), location.line);
        if let Some((file, line)) = location.inlined {
            text += &format!(" (from {}:{line})", name(file));
        }
        text
    }
}

/// An operand as it is written.
#[derive(Clone, Debug)]
enum Raw<'a> {
    Name(&'a str),
    NotName(&'a str),
    Num(u64),
    Vec(Vec<Raw<'a>>),
    Mem(Vec<Raw<'a>>, i64),
    Pair(&'a str, &'a str),
}

#[derive(Clone, Copy, Debug)]
enum Named {
    Reg(Class, u32),
    /// The address of a variable in shared memory.
    Shared(u32),
    Local(u32),
    Param(u32),
    Global(u32),
}

struct Scope_ {
    parent: usize,
    names: HashMap<String, Named>,
    labels: HashMap<String, u32>,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    module: Module,
    shared: HashMap<String, u32>,
    shared_end: u32,
    extern_shared: Vec<(String, u32)>,
}

/// A kernel that is being read.
struct Body<'a> {
    entry: Entry,
    scopes: Vec<Scope_>,
    scope: usize,
    ranges: HashMap<&'a str, (Class, u32, u32)>,
    location: u32,
    /// Branches: instruction, scope, label.
    pending: Vec<(usize, usize, &'a str, u32)>,
}

type Res<T> = Result<T, ParseError>;

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.' | b':')
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Parser {
            text,
            at: 0,
            line: 1,
            module: Module::default(),
            shared: HashMap::new(),
            shared_end: SHARED_BASE,
            extern_shared: Vec::new(),
        }
    }

    fn error<T>(&self, message: impl Into<String>) -> Res<T> {
        Err(ParseError {
            line: self.line,
            message: message.into(),
        })
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    fn space(&mut self) {
        let bytes = self.bytes();
        while self.at < bytes.len() {
            match bytes[self.at] {
                b'\n' => {
                    self.line += 1;
                    self.at += 1;
                }
                b' ' | b'\t' | b'\r' => self.at += 1,
                b'/' if bytes.get(self.at + 1) == Some(&b'/') => {
                    while self.at < bytes.len() && bytes[self.at] != b'\n' {
                        self.at += 1;
                    }
                }
                b'/' if bytes.get(self.at + 1) == Some(&b'*') => {
                    while self.at < bytes.len() && !self.text[self.at..].starts_with("*/") {
                        self.line += u32::from(bytes[self.at] == b'\n');
                        self.at += 1;
                    }
                    self.at += 2;
                }
                _ => break,
            }
        }
    }

    fn peek(&mut self) -> u8 {
        self.space();
        self.bytes().get(self.at).copied().unwrap_or(0)
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == byte;
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Res<()> {
        if self.eat(byte) {
            return Ok(());
        }
        let rest: String = self.text[self.at..].chars().take(20).collect();
        self.error(format!("expected '{}' before '{rest}'", byte as char))
    }

    fn word(&mut self) -> &'a str {
        self.space();
        let bytes = self.bytes();
        let start = self.at;
        while self.at < bytes.len() && is_word(bytes[self.at]) {
            // A single colon ends a label.
            if bytes[self.at] == b':' {
                if bytes.get(self.at + 1) == Some(&b':') {
                    self.at += 2;
                    continue;
                }
                break;
            }
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn rest_of_line(&mut self) -> &'a str {
        let start = self.at;
        let bytes = self.bytes();
        while self.at < bytes.len() && bytes[self.at] != b'\n' {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn next_char(&self) -> char {
        self.text[self.at..].chars().next().unwrap_or(' ')
    }

    fn skip_statement(&mut self) {
        while !matches!(self.peek(), b';' | 0) {
            self.at += 1;
        }
        self.eat(b';');
    }

    fn number(&mut self) -> Res<u64> {
        let negative = self.eat(b'-');
        let word = self.word();
        match parse_number(word) {
            Some(value) if negative => Ok(value.wrapping_neg()),
            Some(value) => Ok(value),
            None => self.error(format!("'{word}' is not a number")),
        }
    }

    fn module(mut self) -> Res<Module> {
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
    fn variable(&mut self) -> Res<(&'a str, u32, u32, Vec<u8>)> {
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

    fn body(&mut self, body: &mut Body<'a>) -> Res<()> {
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

    fn operand(&mut self) -> Res<Raw<'a>> {
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

    fn lookup(&self, body: &Body<'a>, name: &str) -> Option<Named> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            let (prefix, number) = name.split_at(name.len() - digits);
            if let (Some(&(class, base, many)), Ok(number)) = (body.ranges.get(prefix), number.parse::<u32>()) {
                if number < many {
                    return Some(Named::Reg(class, base + number));
                }
            }
        }
        let mut scope = body.scope;
        loop {
            if let Some(&named) = body.scopes[scope].names.get(name) {
                return Some(named);
            }
            if scope == 0 {
                return None;
            }
            scope = body.scopes[scope].parent;
        }
    }

    fn register(&self, body: &Body<'a>, name: &str, wanted: Class) -> Res<u32> {
        if name == "_" {
            return Ok(SINK);
        }
        match self.lookup(body, name) {
            Some(Named::Reg(class, number)) if class == wanted => Ok(number),
            Some(Named::Reg(class, _)) => self.error(format!("{name} is a {class:?} register, not a {wanted:?} one")),
            _ => self.error(format!("there is no register '{name}'")),
        }
    }

    fn dst(&self, body: &Body<'a>, raw: &Raw<'a>, class: Class) -> Res<u32> {
        match raw {
            Raw::Name(name) => self.register(body, name, class),
            _ => self.error("the destination has to be a register"),
        }
    }

    fn src(&self, body: &Body<'a>, raw: &Raw<'a>, class: Class) -> Res<Src> {
        match raw {
            Raw::Num(number) => Ok(Src::Imm(*number)),
            Raw::Name(name) => {
                if let Some(special) = special(name) {
                    return Ok(Src::Special(special));
                }
                if self.extern_shared.iter().any(|(known, _)| known == name) {
                    return Ok(Src::Imm(EXTERN));
                }
                match *name {
                    "WARP_SZ" => return Ok(Src::Imm(32)),
                    "%clock_hi" => return Ok(Src::Imm(0)),
                    "%total_smem_size" => return Ok(Src::Imm(0)),
                    _ => {}
                }
                match self.lookup(body, name) {
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

    fn pred(&self, body: &Body<'a>, raw: &Raw<'a>) -> Res<PredSrc> {
        match raw {
            Raw::Name(name) => Ok(PredSrc::Reg(self.register(body, name, Class::Pred)?, false)),
            Raw::NotName(name) => Ok(PredSrc::Reg(self.register(body, name, Class::Pred)?, true)),
            Raw::Num(number) => Ok(PredSrc::Const(*number != 0)),
            _ => self.error("expected a predicate"),
        }
    }

    /// The class of a register that may be wider than the instruction's type.
    fn class_of(&self, body: &Body<'a>, raw: &Raw<'a>, otherwise: Class) -> Class {
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
        match self.lookup(body, name) {
            Some(Named::Reg(class @ (Class::Narrow | Class::Wide), _)) => class,
            _ => otherwise,
        }
    }

    /// `[base + offset]`
    fn addr(&self, body: &Body<'a>, raw: &Raw<'a>) -> Res<Addr> {
        match raw {
            Raw::Mem(list, offset) if list.len() == 1 => self.addr_of(body, &list[0], *offset),
            _ => self.error("expected an address"),
        }
    }

    fn addr_of(&self, body: &Body<'a>, raw: &Raw<'a>, offset: i64) -> Res<Addr> {
        if let Raw::Name(name) = raw {
            if let Some(Named::Reg(class, number)) = self.lookup(body, name) {
                return Ok(Addr {
                    base: Src::Reg(number),
                    wide: class == Class::Wide,
                    offset,
                });
            }
        }
        Ok(Addr {
            base: self.src(body, raw, Class::Wide)?,
            wide: true,
            offset,
        })
    }

    fn list(&self, body: &Body<'a>, raw: &Raw<'a>, class: Class) -> Res<Box<[Src]>> {
        match raw {
            Raw::Vec(list) => list.iter().map(|raw| self.src(body, raw, class)).collect(),
            other => Ok(Box::new([self.src(body, other, class)?])),
        }
    }

    fn dst_list(&self, body: &Body<'a>, raw: &Raw<'a>, class: Class) -> Res<Box<[u32]>> {
        match raw {
            Raw::Vec(list) => list.iter().map(|raw| self.dst(body, raw, class)).collect(),
            other => Ok(Box::new([self.dst(body, other, class)?])),
        }
    }

    fn instruction(&self, body: &mut Body<'a>, word: &'a str, o: &[Raw<'a>], index: usize, line: u32) -> Res<Op> {
        let parts: Vec<&str> = word.split('.').collect();
        let has = |name: &str| parts[1..].contains(&name);
        let unsupported = || -> Res<Op> { self.error(format!("the instruction '{word}' is not supported")) };
        let need = |many: usize| -> Res<()> {
            if o.len() < many {
                return self.error(format!("'{word}' needs {many} operands"));
            }
            Ok(())
        };
        let ty = || -> Res<Ty> {
            match parts[1..].iter().rev().find_map(|part| Ty::parse(part)) {
                Some(ty) => Ok(ty),
                None => self.error(format!("'{word}' has no known type")),
            }
        };
        let class = |ty: Ty| if ty.wide() { Class::Wide } else { Class::Narrow };
        let mut mode = Mode {
            round: Round::Near,
            ftz: has("ftz"),
            sat: has("sat"),
            integer: false,
            nan: has("NaN"),
            relu: has("relu"),
        };
        for part in &parts[1..] {
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
        let space = if has("shared::cluster") {
            Space::Cluster
        } else if has("shared") || has("shared::cta") {
            Space::Shared
        } else if has("global") {
            Space::Global
        } else if has("local") {
            Space::Local
        } else if has("const") {
            Space::Const
        } else if parts[1..].iter().any(|part| part.starts_with("param")) {
            Space::Param
        } else {
            Space::Generic
        };
        let scope = if has("cta") {
            Scope::Cta
        } else if has("cluster") {
            Scope::Cluster
        } else if has("sys") {
            Scope::Sys
        } else {
            Scope::Gpu
        };
        let sem = if has("acq_rel") {
            Sem::AcqRel
        } else if has("acquire") {
            Sem::Acquire
        } else if has("release") {
            Sem::Release
        } else if has("relaxed") || has("volatile") || has("mmio") {
            Sem::Relaxed
        } else {
            Sem::Weak
        };
        // Arithmetic with a destination of the type's class and up to three sources of the same.
        let alu = |f: Alu, ty: Ty| -> Res<Op> {
            need(2)?;
            let wide_result = matches!(f, Alu::MulWide | Alu::MadWide);
            let narrow_result = matches!(f, Alu::Clz | Alu::Popc | Alu::Bfind | Alu::BfindShift);
            let d_class = match (wide_result, narrow_result) {
                (true, _) if ty.size() == 4 => Class::Wide,
                (_, true) => Class::Narrow,
                _ => class(ty),
            };
            let source = |i: usize| -> Res<Src> {
                let Some(raw) = o.get(i + 1) else {
                    return Ok(Src::Imm(0));
                };
                let class = match (f, i) {
                    (Alu::Shl | Alu::Shr, 1) | (Alu::Bfe, 1 | 2) | (Alu::Bfi, 2 | 3) => Class::Narrow,
                    (Alu::MadWide, 2) => d_class,
                    _ => class(ty),
                };
                self.src(body, raw, class)
            };
            Ok(Op::Alu {
                f,
                ty,
                mode,
                d: self.dst(body, &o[0], d_class)?,
                a: source(0)?,
                b: source(1)?,
                c: source(2)?,
                e: source(3)?,
            })
        };
        match parts[0] {
            "mov" => {
                need(2)?;
                let ty = ty()?;
                if ty == Ty::Pred {
                    return Ok(Op::Pred {
                        f: None,
                        negate: false,
                        d: self.dst(body, &o[0], Class::Pred)?,
                        a: self.pred(body, &o[1])?,
                        b: PredSrc::Const(false),
                    });
                }
                match (&o[0], &o[1]) {
                    (_, Raw::Vec(list)) => Ok(Op::Pack {
                        ty,
                        d: self.dst(body, &o[0], class(ty))?,
                        parts: list
                            .iter()
                            .map(|raw| self.src(body, raw, Class::Narrow))
                            .collect::<Res<_>>()?,
                    }),
                    (Raw::Vec(list), _) => Ok(Op::Unpack {
                        ty,
                        a: self.src(body, &o[1], class(ty))?,
                        parts: list
                            .iter()
                            .map(|raw| self.dst(body, raw, Class::Narrow))
                            .collect::<Res<_>>()?,
                    }),
                    _ => alu(Alu::Mov, ty),
                }
            }
            "add" | "sub" if has("cc") => unsupported(),
            "add" => alu(Alu::Add, ty()?),
            "sub" => alu(Alu::Sub, ty()?),
            "mul" | "mad" => {
                let ty = ty()?;
                let mad = parts[0] == "mad";
                if ty.float() {
                    return alu(if mad { Alu::Fma } else { Alu::MulLo }, ty);
                }
                let f = match (mad, has("wide"), has("hi")) {
                    (false, true, _) => Alu::MulWide,
                    (false, _, true) => Alu::MulHi,
                    (false, ..) => Alu::MulLo,
                    (true, true, _) => Alu::MadWide,
                    (true, _, true) => Alu::MadHi,
                    (true, ..) => Alu::MadLo,
                };
                alu(f, ty)
            }
            "fma" => alu(Alu::Fma, ty()?),
            "div" => alu(
                if has("approx") || has("full") {
                    Alu::DivApprox
                } else {
                    Alu::Div
                },
                ty()?,
            ),
            "rem" => alu(Alu::Rem, ty()?),
            "min" => alu(Alu::Min, ty()?),
            "max" => alu(Alu::Max, ty()?),
            "neg" => alu(Alu::Neg, ty()?),
            "abs" => alu(Alu::Abs, ty()?),
            "and" | "or" | "xor" => {
                let ty = ty()?;
                let (f, p) = match parts[0] {
                    "and" => (Alu::And, BitOp::And),
                    "or" => (Alu::Or, BitOp::Or),
                    _ => (Alu::Xor, BitOp::Xor),
                };
                if ty != Ty::Pred {
                    return alu(f, ty);
                }
                need(3)?;
                Ok(Op::Pred {
                    f: Some(p),
                    negate: false,
                    d: self.dst(body, &o[0], Class::Pred)?,
                    a: self.pred(body, &o[1])?,
                    b: self.pred(body, &o[2])?,
                })
            }
            "not" => {
                let ty = ty()?;
                if ty != Ty::Pred {
                    return alu(Alu::Not, ty);
                }
                need(2)?;
                Ok(Op::Pred {
                    f: None,
                    negate: true,
                    d: self.dst(body, &o[0], Class::Pred)?,
                    a: self.pred(body, &o[1])?,
                    b: PredSrc::Const(false),
                })
            }
            "cnot" => alu(Alu::Cnot, ty()?),
            "shl" => alu(Alu::Shl, ty()?),
            "shr" => alu(Alu::Shr, ty()?),
            "bfi" => alu(Alu::Bfi, ty()?),
            "bfe" => alu(Alu::Bfe, ty()?),
            "bfind" => alu(if has("shiftamt") { Alu::BfindShift } else { Alu::Bfind }, ty()?),
            "brev" => alu(Alu::Brev, ty()?),
            "clz" => alu(Alu::Clz, ty()?),
            "popc" => alu(Alu::Popc, ty()?),
            "prmt" if parts.len() == 2 => alu(Alu::Prmt, Ty::B32),
            "shf" => alu(
                match (has("l"), has("clamp")) {
                    (true, false) => Alu::ShfLWrap,
                    (true, true) => Alu::ShfLClamp,
                    (false, false) => Alu::ShfRWrap,
                    (false, true) => Alu::ShfRClamp,
                },
                Ty::B32,
            ),
            "lop3" if !has("or") && !has("and") => alu(Alu::Lop3, Ty::B32),
            "ex2" => alu(Alu::Ex2, ty()?),
            "lg2" => alu(Alu::Lg2, ty()?),
            "rcp" => alu(Alu::Rcp, ty()?),
            "sqrt" => alu(Alu::Sqrt, ty()?),
            "rsqrt" => alu(Alu::Rsqrt, ty()?),
            "sin" => alu(Alu::Sin, ty()?),
            "cos" => alu(Alu::Cos, ty()?),
            "tanh" => alu(Alu::Tanh, ty()?),
            "copysign" => alu(Alu::CopySign, ty()?),
            "cvta" => {
                need(2)?;
                let to = has("to");
                let kind = match space {
                    Space::Shared | Space::Cluster => 1,
                    Space::Local => 2,
                    Space::Param => 3,
                    Space::Const | Space::Global => 0,
                    _ => return unsupported(),
                };
                let ty = ty()?;
                // A variable's name stands for its address.
                Ok(Op::Alu {
                    f: if to { Alu::CvtaFromGeneric } else { Alu::CvtaToGeneric },
                    ty,
                    mode,
                    d: self.dst(body, &o[0], class(ty))?,
                    a: self.src(body, &o[1], class(ty))?,
                    b: Src::Imm(kind),
                    c: Src::Imm(0),
                    e: Src::Imm(0),
                })
            }
            "setp" => {
                need(3)?;
                let cmp = match parts[1] {
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
                    _ => return unsupported(),
                };
                let ty = ty()?;
                let combine = match (has("and"), has("or"), has("xor")) {
                    (true, ..) => Some(BitOp::And),
                    (_, true, _) => Some(BitOp::Or),
                    (_, _, true) => Some(BitOp::Xor),
                    _ => None,
                };
                let (d, q) = match o[0] {
                    Raw::Pair(d, q) => (
                        self.register(body, d, Class::Pred)?,
                        self.register(body, q, Class::Pred)?,
                    ),
                    ref raw => (self.dst(body, raw, Class::Pred)?, SINK),
                };
                Ok(Op::Setp {
                    cmp,
                    ty,
                    ftz: mode.ftz,
                    d,
                    q,
                    combine: match combine {
                        Some(bit) => {
                            need(4)?;
                            Some((bit, self.pred(body, &o[3])?))
                        }
                        None => None,
                    },
                    a: self.src(body, &o[1], class(ty))?,
                    b: self.src(body, &o[2], class(ty))?,
                })
            }
            "selp" => {
                need(4)?;
                let class = class(ty()?);
                Ok(Op::Selp {
                    wide: class == Class::Wide,
                    d: self.dst(body, &o[0], class)?,
                    a: self.src(body, &o[1], class)?,
                    b: self.src(body, &o[2], class)?,
                    p: self.pred(body, &o[3])?,
                })
            }
            "cvt" => {
                need(2)?;
                let mut types = parts[1..].iter().filter_map(|part| Ty::parse(part));
                let (Some(to), Some(from)) = (types.next(), types.next()) else {
                    return unsupported();
                };
                if has("satfinite") || has("pack") {
                    return unsupported();
                }
                let d_class = self.class_of(body, &o[0], class(to));
                let a_class = self.class_of(body, &o[1], class(from));
                Ok(Op::Cvt {
                    to,
                    from,
                    mode,
                    d: self.dst(body, &o[0], d_class)?,
                    d_wide: d_class == Class::Wide,
                    a: self.src(body, &o[1], a_class)?,
                    a_wide: a_class == Class::Wide,
                    b: match o.get(2) {
                        Some(raw) => Some(self.src(body, raw, class(from))?),
                        None => None,
                    },
                })
            }
            "ld" | "ldu" => {
                need(2)?;
                let ty = ty()?;
                Ok(Op::Ld {
                    space,
                    ty,
                    sem,
                    scope,
                    constant: has("nc"),
                    wide: self.class_of(body, &o[0], class(ty)) == Class::Wide,
                    d: self.dst_list(body, &o[0], self.class_of(body, &o[0], class(ty)))?,
                    at: self.addr(body, &o[1])?,
                })
            }
            "st" if has("async") => {
                need(3)?;
                if ty()?.wide() || !has("mbarrier::complete_tx::bytes") {
                    return unsupported();
                }
                Ok(Op::StAsync {
                    at: self.addr(body, &o[0])?,
                    s: self.list(body, &o[1], Class::Narrow)?,
                    bar: self.addr(body, &o[2])?,
                })
            }
            "st" => {
                need(2)?;
                let ty = ty()?;
                Ok(Op::St {
                    space,
                    ty,
                    sem,
                    scope,
                    wide: self.class_of(body, &o[1], class(ty)) == Class::Wide,
                    s: self.list(body, &o[1], self.class_of(body, &o[1], class(ty)))?,
                    at: self.addr(body, &o[0])?,
                })
            }
            "atom" | "red" if !has("async") => {
                let red = parts[0] == "red";
                need(if red { 2 } else { 3 })?;
                let ty = ty()?;
                let op = match parts[1..].iter().find_map(|part| atom_op(part)) {
                    Some(op) => op,
                    None => return unsupported(),
                };
                let first = usize::from(!red);
                Ok(Op::Atom {
                    space,
                    op,
                    ty,
                    sem: if sem == Sem::Weak { Sem::Relaxed } else { sem },
                    scope,
                    d: if red { SINK } else { self.dst(body, &o[0], class(ty))? },
                    at: self.addr(body, &o[first])?,
                    b: self.src(body, &o[first + 1], class(ty))?,
                    c: match o.get(first + 2) {
                        Some(raw) => self.src(body, raw, class(ty))?,
                        None => Src::Imm(0),
                    },
                })
            }
            "bra" => {
                need(1)?;
                let Raw::Name(label) = o[0] else {
                    return self.error("a branch needs a label");
                };
                body.pending.push((index, body.scope, label, line));
                Ok(Op::Bra { target: u32::MAX })
            }
            "ret" | "exit" => Ok(Op::Exit),
            "trap" | "brkpt" => Ok(Op::Trap),
            "bar" | "barrier" if has("warp") => {
                need(1)?;
                Ok(Op::WarpSync {
                    mask: self.src(body, &o[0], Class::Narrow)?,
                })
            }
            "barrier" if has("cluster") => match (has("arrive"), has("wait")) {
                (true, _) => Ok(Op::ClusterArrive {
                    release: !has("relaxed"),
                }),
                (_, true) => Ok(Op::ClusterWait { acquire: true }),
                _ => unsupported(),
            },
            "bar" | "barrier" => {
                let (mut kind, mut first) = match (has("sync"), has("arrive"), has("red")) {
                    (true, ..) => (BarKind::Sync, 0),
                    (_, true, _) => (BarKind::Arrive, 0),
                    (_, _, true) => (BarKind::Sync, 1),
                    _ => return unsupported(),
                };
                let many = o.len();
                need(first + 1)?;
                let mut last = many;
                if has("red") {
                    let p = self.pred(body, &o[many - 1])?;
                    last -= 1;
                    kind = if has("and") {
                        BarKind::RedAnd(self.dst(body, &o[0], Class::Pred)?, p)
                    } else if has("or") {
                        BarKind::RedOr(self.dst(body, &o[0], Class::Pred)?, p)
                    } else {
                        BarKind::RedPopc(self.dst(body, &o[0], Class::Narrow)?, p)
                    };
                }
                let id = self.src(body, &o[first], Class::Narrow)?;
                first += 1;
                Ok(Op::Bar {
                    kind,
                    id,
                    threads: if first < last {
                        Some(self.src(body, &o[first], Class::Narrow)?)
                    } else {
                        None
                    },
                    aligned: parts[0] == "bar" || has("aligned"),
                })
            }
            "shfl" => {
                need(5)?;
                let kind = match (has("idx"), has("up"), has("down"), has("bfly")) {
                    (true, ..) => Shfl::Idx,
                    (_, true, ..) => Shfl::Up,
                    (_, _, true, _) => Shfl::Down,
                    _ => Shfl::Bfly,
                };
                let (d, p) = self.pair(body, &o[0], Class::Narrow)?;
                let narrow = |i: usize| self.src(body, &o[i], Class::Narrow);
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
            "vote" => {
                need(3)?;
                let kind = match (has("any"), has("all"), has("uni")) {
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
                    d: self.dst(body, &o[0], class)?,
                    p: self.pred(body, &o[1])?,
                    mask: self.src(body, &o[2], Class::Narrow)?,
                })
            }
            "redux" => {
                need(3)?;
                let Some(op) = parts[1..].iter().find_map(|part| atom_op(part)) else {
                    return unsupported();
                };
                Ok(Op::Redux {
                    op,
                    ty: ty()?,
                    d: self.dst(body, &o[0], Class::Narrow)?,
                    a: self.src(body, &o[1], Class::Narrow)?,
                    mask: self.src(body, &o[2], Class::Narrow)?,
                })
            }
            "elect" => {
                need(2)?;
                let (d, p) = self.pair(body, &o[0], Class::Narrow)?;
                Ok(Op::Elect {
                    d,
                    p,
                    mask: self.src(body, &o[1], Class::Narrow)?,
                })
            }
            "activemask" => Ok(Op::Activemask {
                d: self.dst(body, &o[0], Class::Narrow)?,
            }),
            "membar" => Ok(Op::Fence {
                sem: Sem::AcqRel,
                scope: match parts.get(1) {
                    Some(&"cta") => Scope::Cta,
                    Some(&"sys") => Scope::Sys,
                    _ => Scope::Gpu,
                },
            }),
            "fence" if has("proxy") => match parts.get(2) {
                Some(&"async") => Ok(Op::FenceProxyAsync {
                    global: !has("shared::cta") && !has("shared::cluster"),
                    shared: !has("global"),
                }),
                _ => unsupported(),
            },
            "fence" if has("mbarrier_init") => Ok(Op::FenceMbarrierInit),
            "fence" => Ok(Op::Fence {
                sem: Sem::AcqRel,
                scope,
            }),
            "mbarrier" => self.mbarrier(body, &parts, o, space, word),
            "cp" => self.copy(body, &parts, o, word),
            "griddepcontrol" => match parts.get(1) {
                Some(&"wait") => Ok(Op::GridWait),
                Some(&"launch_dependents") => Ok(Op::GridLaunch),
                _ => unsupported(),
            },
            "mapa" => {
                need(3)?;
                let ty = ty()?;
                if space != Space::Cluster {
                    return unsupported();
                }
                Ok(Op::Mapa {
                    d: self.dst(body, &o[0], class(ty))?,
                    wide: ty.wide(),
                    a: self.src(body, &o[1], class(ty))?,
                    rank: self.src(body, &o[2], Class::Narrow)?,
                })
            }
            "getctarank" => {
                need(2)?;
                let ty = ty()?;
                Ok(Op::GetCtaRank {
                    d: self.dst(body, &o[0], Class::Narrow)?,
                    wide: ty.wide(),
                    a: self.src(body, &o[1], class(ty))?,
                })
            }
            "setmaxnreg" => Ok(Op::SetMaxReg),
            "prefetch" | "prefetchu" | "nanosleep" | "applypriority" | "discard" | "createpolicy" => match parts[0] {
                "createpolicy" | "discard" | "applypriority" => unsupported(),
                _ => Ok(Op::Nop),
            },
            "wgmma" => match parts.get(1) {
                Some(&"fence") => Ok(Op::WgmmaFence),
                Some(&"commit_group") => Ok(Op::WgmmaCommit),
                Some(&"wait_group") => {
                    need(1)?;
                    let Raw::Num(pending) = o[0] else { return unsupported() };
                    Ok(Op::WgmmaWait {
                        pending: pending as u32,
                    })
                }
                Some(&"mma_async") => self.wgmma(body, &parts, o, word),
                _ => unsupported(),
            },
            "mma" => self.mma(body, &parts, o, word),
            "ldmatrix" | "stmatrix" => {
                need(2)?;
                if !has("m8n8") || !(has("b16")) {
                    return unsupported();
                }
                if parts[0] == "ldmatrix" {
                    return Ok(Op::LdMatrix {
                        d: self.dst_list(body, &o[0], Class::Narrow)?,
                        at: self.addr(body, &o[1])?,
                        trans: has("trans"),
                    });
                }
                Ok(Op::StMatrix {
                    s: self.list(body, &o[1], Class::Narrow)?,
                    at: self.addr(body, &o[0])?,
                    trans: has("trans"),
                })
            }
            _ => unsupported(),
        }
    }

    fn pair(&self, body: &Body<'a>, raw: &Raw<'a>, class: Class) -> Res<(u32, u32)> {
        match raw {
            Raw::Pair(d, p) => Ok((self.register(body, d, class)?, self.register(body, p, Class::Pred)?)),
            raw => Ok((self.dst(body, raw, class)?, SINK)),
        }
    }

    fn mbarrier(&self, body: &Body<'a>, parts: &[&str], o: &[Raw<'a>], space: Space, word: &str) -> Res<Op> {
        let has = |name: &str| parts[1..].contains(&name);
        let narrow = |raw: &Raw<'a>| self.src(body, raw, Class::Narrow);
        let unsupported = || self.error(format!("the instruction '{word}' is not supported"));
        let Some(first) = o.first() else { return unsupported() };
        let action = parts[1];
        match action {
            "init" if o.len() == 2 => Ok(Op::MbarInit {
                at: self.addr(body, first)?,
                count: narrow(&o[1])?,
            }),
            "inval" => Ok(Op::MbarInval {
                at: self.addr(body, first)?,
            }),
            "expect_tx" if o.len() == 2 => Ok(Op::MbarArrive {
                space,
                at: self.addr(body, first)?,
                release: false,
                expect: Some(narrow(&o[1])?),
                arrive: None,
                d: SINK,
            }),
            "complete_tx" if o.len() == 2 => Ok(Op::MbarCompleteTx {
                space,
                at: self.addr(body, first)?,
                bytes: narrow(&o[1])?,
            }),
            "arrive" => {
                // The state that is returned comes first, except for other blocks' barriers, where it may be left out.
                let with_state = matches!(first, Raw::Name(_));
                let rest = if with_state { &o[1..] } else { o };
                let Some(at) = rest.first() else { return unsupported() };
                let expect_tx = has("expect_tx");
                if has("noComplete") {
                    return unsupported();
                }
                let extra = match rest.get(1) {
                    Some(raw) => Some(narrow(raw)?),
                    None => None,
                };
                Ok(Op::MbarArrive {
                    space,
                    at: self.addr(body, at)?,
                    release: !has("relaxed"),
                    expect: if expect_tx { extra } else { None },
                    arrive: Some(match extra {
                        Some(count) if !expect_tx => count,
                        _ => Src::Imm(1),
                    }),
                    d: match first {
                        Raw::Name(_) => self.dst(body, first, Class::Wide)?,
                        _ => SINK,
                    },
                })
            }
            "try_wait" | "test_wait" if has("parity") && o.len() >= 3 => Ok(Op::MbarWait {
                at: self.addr(body, &o[1])?,
                d: self.dst(body, first, Class::Pred)?,
                parity: narrow(&o[2])?,
                blocking: action == "try_wait",
                acquire: !has("relaxed"),
            }),
            _ => unsupported(),
        }
    }

    fn copy(&self, body: &Body<'a>, parts: &[&str], o: &[Raw<'a>], word: &str) -> Res<Op> {
        let has = |name: &str| parts[1..].contains(&name);
        let unsupported = || self.error(format!("the instruction '{word}' is not supported"));
        let pending = || match o.first() {
            Some(Raw::Num(number)) => Ok(*number as u32),
            _ => self.error("the number of groups has to be a constant"),
        };
        if parts.get(1) != Some(&"async") {
            return unsupported();
        }
        if !has("bulk") {
            if has("commit_group") {
                return Ok(Op::CpAsyncCommit);
            }
            if has("wait_group") {
                return Ok(Op::CpAsyncWait { pending: pending()? });
            }
            if has("wait_all") {
                return Ok(Op::CpAsyncWait { pending: 0 });
            }
            if has("mbarrier") {
                return Ok(Op::CpAsyncMbarArrive {
                    at: self.addr(body, &o[0])?,
                    noinc: has("noinc"),
                });
            }
            let (Some(dst), Some(src), Some(Raw::Num(bytes))) = (o.first(), o.get(1), o.get(2)) else {
                return unsupported();
            };
            // The last operand is a number of bytes, or a predicate that says that the source is ignored.
            let ignore = o.get(3).and_then(|raw| self.pred(body, raw).ok());
            let ignore = ignore.filter(|pred| matches!(pred, PredSrc::Reg(..)));
            return Ok(Op::CpAsync {
                bytes: *bytes as u32,
                dst: self.addr(body, dst)?,
                src: self.addr(body, src)?,
                valid: match o.get(3) {
                    Some(raw) if ignore.is_none() => Some(self.src(body, raw, Class::Narrow)?),
                    _ => None,
                },
                ignore,
            });
        }
        if has("commit_group") {
            return Ok(Op::BulkCommit);
        }
        if has("wait_group") {
            return Ok(Op::BulkWait {
                pending: pending()?,
                read: has("read"),
            });
        }
        if has("prefetch") {
            return Ok(Op::Nop);
        }
        if has("reduce") || has("im2col") {
            return unsupported();
        }
        let coords = |raw: &Raw<'a>| -> Res<(Addr, Box<[Src]>)> {
            match raw {
                Raw::Mem(list, offset) if list.len() == 2 => Ok((
                    self.addr_of(body, &list[0], *offset)?,
                    self.list(body, &list[1], Class::Narrow)?,
                )),
                _ => self.error("expected a tensor map and coordinates"),
            }
        };
        let multicast = has("multicast::cluster");
        let extra = |at: usize| -> Res<Option<Src>> {
            match (multicast, o.get(at)) {
                (true, Some(raw)) => Ok(Some(self.src(body, raw, Class::Narrow)?)),
                _ => Ok(None),
            }
        };
        let to_shared = matches!(parts.iter().find(|part| part.starts_with("shared") || **part == "global"), Some(part) if *part != "global");
        if has("tensor") {
            if has("reduce") {
                return unsupported();
            }
            if to_shared && o.len() >= 3 {
                let (map, coords) = coords(&o[1])?;
                return Ok(Op::TmaLoad {
                    dims: coords.len() as u32,
                    dst: self.addr(body, &o[0])?,
                    map,
                    coords,
                    bar: self.addr(body, &o[2])?,
                    multicast: extra(3)?,
                });
            }
            if !to_shared && o.len() >= 2 {
                let (map, coords) = coords(&o[0])?;
                return Ok(Op::TmaStore {
                    dims: coords.len() as u32,
                    map,
                    src: self.addr(body, &o[1])?,
                    coords,
                });
            }
            return unsupported();
        }
        if to_shared && has("global") && o.len() >= 4 {
            return Ok(Op::BulkLoad {
                dst: self.addr(body, &o[0])?,
                src: self.addr(body, &o[1])?,
                bytes: self.src(body, &o[2], Class::Narrow)?,
                bar: self.addr(body, &o[3])?,
                multicast: extra(4)?,
            });
        }
        if !to_shared && o.len() >= 3 {
            return Ok(Op::BulkStore {
                dst: self.addr(body, &o[0])?,
                src: self.addr(body, &o[1])?,
                bytes: self.src(body, &o[2], Class::Narrow)?,
            });
        }
        unsupported()
    }

    fn wgmma(&self, body: &Body<'a>, parts: &[&str], o: &[Raw<'a>], word: &str) -> Res<Op> {
        let unsupported = || self.error(format!("the instruction '{word}' is not supported"));
        let shape = parts.iter().find(|part| part.starts_with("m64n"));
        let types: Vec<Ty> = parts.iter().filter_map(|part| Ty::parse(part)).collect();
        let (Some(shape), [Ty::F32, ty @ (Ty::Tf32 | Ty::F16 | Ty::BF16), _]) = (shape, types.as_slice()) else {
            return unsupported();
        };
        let Some(n) = shape[4..].split('k').next().and_then(|n| n.parse::<u32>().ok()) else {
            return unsupported();
        };
        if o.len() < 6 {
            return unsupported();
        }
        let d = self.dst_list(body, &o[0], Class::Narrow)?;
        if d.len() as u32 * 2 != n {
            return self.error(format!("'{word}' needs {} accumulators", n / 2));
        }
        let a = match &o[1] {
            Raw::Vec(list) if list.len() == 4 => {
                let list = self.dst_list(body, &o[1], Class::Narrow)?;
                WgmmaA::Regs([list[0], list[1], list[2], list[3]])
            }
            raw => WgmmaA::Desc(self.src(body, raw, Class::Wide)?),
        };
        let flag = |at: usize, yes: i64| matches!(o.get(at), Some(Raw::Num(number)) if *number as i64 == yes);
        let in_registers = matches!(a, WgmmaA::Regs(_));
        Ok(Op::Wgmma(Box::new(Wgmma {
            n,
            ty: *ty,
            d,
            a,
            b: self.src(body, &o[2], Class::Wide)?,
            scale_d: self.pred(body, &o[3])?,
            negate: [flag(4, -1), flag(5, -1)],
            transposed: if in_registers {
                [false, flag(6, 1)]
            } else {
                [flag(6, 1), flag(7, 1)]
            },
        })))
    }

    fn mma(&self, body: &Body<'a>, parts: &[&str], o: &[Raw<'a>], word: &str) -> Res<Op> {
        let unsupported = || self.error(format!("the instruction '{word}' is not supported"));
        let types: Vec<Ty> = parts.iter().filter_map(|part| Ty::parse(part)).collect();
        let shape = parts.iter().find(|part| part.starts_with("m16n8k"));
        let (Some(shape), [Ty::F32, ty @ (Ty::Tf32 | Ty::F16 | Ty::BF16), _, Ty::F32], 4) =
            (shape, types.as_slice(), o.len())
        else {
            return unsupported();
        };
        let Ok(k) = shape[6..].parse::<u32>() else {
            return unsupported();
        };
        let d = self.dst_list(body, &o[0], Class::Narrow)?;
        let a = self.dst_list(body, &o[1], Class::Narrow)?;
        let b = self.dst_list(body, &o[2], Class::Narrow)?;
        let c = self.list(body, &o[3], Class::Narrow)?;
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
}

/// Stands for the start of the externally sized shared memory until that is known.
const EXTERN: u64 = 0xE87E_0000_0000;

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

fn parse_number(word: &str) -> Option<u64> {
    let bytes = word.as_bytes();
    if bytes.len() > 2 && bytes[0] == b'0' {
        match bytes[1] {
            b'x' | b'X' => return u64::from_str_radix(word[2..].trim_end_matches('U'), 16).ok(),
            b'f' | b'F' if bytes.len() == 10 => return u64::from_str_radix(&word[2..], 16).ok(),
            b'd' | b'D' if bytes.len() == 18 => return u64::from_str_radix(&word[2..], 16).ok(),
            b'b' | b'B' => return u64::from_str_radix(&word[2..], 2).ok(),
            _ => {}
        }
    }
    word.trim_end_matches('U').parse().ok()
}

fn atom_op(word: &str) -> Option<AtomOp> {
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
