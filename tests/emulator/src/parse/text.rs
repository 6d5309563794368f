//! The text: words, numbers and what separates them.

use super::{Module, ParseError, Parser, Res, SHARED_BASE};
use std::collections::HashMap;

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.' | b':')
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str) -> Self {
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

    pub(super) fn error<T>(&self, message: impl Into<String>) -> Res<T> {
        Err(ParseError {
            line: self.line,
            message: message.into(),
        })
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    pub(super) fn space(&mut self) {
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

    pub(super) fn peek(&mut self) -> u8 {
        self.space();
        self.bytes().get(self.at).copied().unwrap_or(0)
    }

    pub(super) fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == byte;
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, byte: u8) -> Res<()> {
        if self.eat(byte) {
            return Ok(());
        }
        let rest: String = self.text[self.at..].chars().take(20).collect();
        self.error(format!("expected '{}' before '{rest}'", byte as char))
    }

    pub(super) fn word(&mut self) -> &'a str {
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

    pub(super) fn rest_of_line(&mut self) -> &'a str {
        let start = self.at;
        let bytes = self.bytes();
        while self.at < bytes.len() && bytes[self.at] != b'\n' {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    pub(super) fn next_char(&self) -> char {
        self.text[self.at..].chars().next().unwrap_or(' ')
    }

    pub(super) fn skip_statement(&mut self) {
        while !matches!(self.peek(), b';' | 0) {
            self.at += 1;
        }
        self.eat(b';');
    }

    pub(super) fn number(&mut self) -> Res<u64> {
        let negative = self.eat(b'-');
        let word = self.word();
        match parse_number(word) {
            Some(value) if negative => Ok(value.wrapping_neg()),
            Some(value) => Ok(value),
            None => self.error(format!("'{word}' is not a number")),
        }
    }
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
