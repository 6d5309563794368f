//! From PTX text to [`Entry`]s.

mod arithmetic;
mod body;
mod copies;
mod entry;
mod memory;
mod operands;
mod statement;
mod synchronisation;
mod tensor;
mod text;

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

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
enum Named {
    Reg(Class, u32),
    /// The address of a variable in shared memory.
    Shared(u32),
    Local(u32),
    Param(u32),
    Global(u32),
}

/// Names and labels between braces.
struct Scope_ {
    parent: usize,
    names: HashMap<String, Named>,
    labels: HashMap<String, u32>,
}

/// A file that is being read.
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
