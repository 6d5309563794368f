//! Operands that lie gigabytes apart: a piece of memory wherever elements are, and none between.

use ptx_emulator::{Memory, Use};
use rand::rngs::StdRng;
use rand::Rng;

/// A gap of so many elements in an operand, or of more, gets no memory.
pub const FAR: usize = 1 << 16;

/// A piece of an operand that has memory of its own.
pub struct Piece {
    /// Where it begins, in elements from the operand's first one.
    pub start: usize,
    /// What lies at each place: the index of an element among a case's numbers, or nothing.
    pub elements: Vec<Option<usize>>,
}

/// The pieces of an operand whose elements are at these places, and what their indices are. Each has `padding` places behind it.
pub fn pieces(places: &[usize], indices: &[usize], padding: usize) -> Vec<Piece> {
    let mut pairs: Vec<(usize, usize)> = places.iter().copied().zip(indices.iter().copied()).collect();
    pairs.sort_unstable();
    pairs.dedup();
    let mut pieces: Vec<Piece> = Vec::new();
    for &(place, index) in &pairs {
        match pieces.last_mut() {
            Some(piece) if place - piece.start < piece.elements.len() + FAR => {
                assert!(
                    place - piece.start >= piece.elements.len(),
                    "no two elements share a place"
                );
                piece.elements.resize(place - piece.start, None);
                piece.elements.push(Some(index));
            }
            _ => pieces.push(Piece {
                start: place,
                elements: vec![Some(index)],
            }),
        }
    }
    for piece in &mut pieces {
        piece.elements.extend(std::iter::repeat_n(None, padding));
    }
    pieces
}

/// Elements from an operand's first one to the end of its last piece.
pub fn reach_of(pieces: &[Piece]) -> usize {
    pieces.last().map_or(0, |last| last.start + last.elements.len())
}

/// The address of an operand's first element, of `size` bytes as all of them. `first` elements that nobody has written lie before it, and such are
/// those between its rows and those of which `bytes_of` has nothing.
pub fn upload(
    memory: &mut Memory,
    pieces: &[Piece],
    first: usize,
    size: usize,
    usage: Use,
    bytes_of: impl Fn(usize) -> Option<Vec<u8>>,
) -> u64 {
    let base = memory.claim(((first + reach_of(pieces)) * size) as u64);
    for (number, piece) in pieces.iter().enumerate() {
        let before = if number == 0 { first } else { 0 };
        let elements = piece.elements.iter().map(|index| index.and_then(&bytes_of));
        let elements: Vec<Option<Vec<u8>>> = std::iter::repeat_n(None, before).chain(elements).collect();
        let start = base + ((first + piece.start - before) * size) as u64;
        let filler = vec![u8::MAX; size];
        let bytes: Vec<u8> = elements
            .iter()
            .flat_map(|x| x.as_ref().unwrap_or(&filler))
            .copied()
            .collect();
        memory.upload_at(start, &bytes, usage);
        for (at, _) in elements.iter().enumerate().filter(|(_, x)| x.is_none()) {
            memory.forget(start + (at * size) as u64, size);
        }
    }
    base + (first * size) as u64
}

/// Where the elements of a tensor are, in order, by these strides.
pub fn places(dims: &[usize], strides: &[usize]) -> Vec<usize> {
    let place = |mut index: usize| {
        let mut at = 0;
        for (extent, stride) in dims.iter().zip(strides).rev() {
            at += index % extent * stride;
            index /= extent;
        }
        at
    };
    (0..dims.iter().product()).map(place).collect()
}

/// How far apart so many neighbours are, at least two, for the last one's offset to have more than 31 bits, or more than 32: a multiple of `unit`.
pub fn apart(rng: &mut StdRng, neighbours: usize, unit: usize) -> usize {
    let reach: usize = rng.random_range(1 << 31..1 << 33);
    (reach / (neighbours - 1) + 1).next_multiple_of(unit)
}
