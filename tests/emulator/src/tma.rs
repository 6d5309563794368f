//! Tensor maps: what TMA knows of a tensor.

use crate::alu::to_tf32;
use crate::finding::{Check, Fault, Kind};
use crate::ir::Round;

/// What an element of a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Element {
    Bits8,
    Bits16,
    Bits32,
    Bits64,
    /// FP32 that is rounded to TF32 on its way to shared memory.
    Tf32,
}

impl Element {
    /// Bytes.
    pub const fn size(self) -> u64 {
        match self {
            Element::Bits8 => 1,
            Element::Bits16 => 2,
            Element::Bits32 | Element::Tf32 => 4,
            Element::Bits64 => 8,
        }
    }
}

/// How 16-byte chunks of a box are exchanged in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Swizzle {
    None,
    Bytes32,
    Bytes64,
    Bytes128,
}

impl Swizzle {
    fn width(self) -> u64 {
        match self {
            Swizzle::None => u64::MAX,
            Swizzle::Bytes32 => 32,
            Swizzle::Bytes64 => 64,
            Swizzle::Bytes128 => 128,
        }
    }

    /// Where the chunk at this address goes.
    pub(crate) fn apply(self, address: u32) -> u32 {
        let mask = match self {
            Swizzle::None => 0,
            Swizzle::Bytes32 => 1,
            Swizzle::Bytes64 => 3,
            Swizzle::Bytes128 => 7,
        };
        address ^ (address >> 7 & mask) << 4
    }
}

/// A tiled tensor map; what lies outside of the tensor is read as 0 and not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Address of the first element.
    pub address: u64,
    /// Elements in each dimension, innermost first.
    pub extents: Vec<u64>,
    /// Bytes between neighbours in each dimension but the innermost.
    pub strides: Vec<u64>,
    /// Elements of a box in each dimension.
    pub box_extents: Vec<u32>,
    /// What an element is.
    pub element: Element,
    /// Exchange of chunks.
    pub swizzle: Swizzle,
}

const BYTES: usize = 128;
const MAGIC: [u8; 4] = *b"TMAP";
const MAX_RANK: usize = 5;
/// Every row of a box starts on so many bytes: an H200 takes any other start for an illegal instruction.
const ROW_UNIT: i64 = 16;

impl TensorMap {
    /// Why the driver would refuse this map.
    pub fn complaint(&self) -> Option<String> {
        let rank = self.extents.len();
        if !(1..=MAX_RANK).contains(&rank) || self.strides.len() + 1 != rank || self.box_extents.len() != rank {
            return Some(format!(
                "a tensor map has 1 to {MAX_RANK} dimensions, and a stride for all but the first"
            ));
        }
        if !self.address.is_multiple_of(16) {
            return Some(format!("the tensor's address {:#x} is no multiple of 16", self.address));
        }
        if let Some(stride) = self
            .strides
            .iter()
            .find(|stride| *stride % 16 != 0 || **stride >= 1 << 40)
        {
            return Some(format!("the stride {stride} is no multiple of 16 below 2^40"));
        }
        if let Some(extent) = self.extents.iter().find(|extent| **extent == 0 || **extent > 1 << 32) {
            return Some(format!("the extent {extent} is not between 1 and 2^32"));
        }
        if let Some(extent) = self.box_extents.iter().find(|extent| **extent == 0 || **extent > 256) {
            return Some(format!("the box extent {extent} is not between 1 and 256"));
        }
        let inner = u64::from(self.box_extents[0]) * self.element.size();
        if !inner.is_multiple_of(16) {
            return Some(format!("a row of a box has {inner} bytes, no multiple of 16"));
        }
        if inner > self.swizzle.width() {
            return Some(format!(
                "a row of a box has {inner} bytes, more than the swizzle's {}",
                self.swizzle.width()
            ));
        }
        None
    }

    /// As a kernel's parameter.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(&self.address.to_le_bytes());
        bytes.push(self.extents.len() as u8);
        bytes.push(self.element as u8);
        bytes.push(self.swizzle as u8);
        for &extent in &self.extents {
            bytes.extend_from_slice(&((extent - 1) as u32).to_le_bytes());
        }
        for &stride in &self.strides {
            bytes.extend_from_slice(&stride.to_le_bytes());
        }
        for &extent in &self.box_extents {
            bytes.extend_from_slice(&(extent as u16).to_le_bytes());
        }
        bytes.resize(BYTES - MAGIC.len(), 0);
        bytes.extend_from_slice(&MAGIC);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<TensorMap> {
        if bytes.len() != BYTES || bytes[BYTES - MAGIC.len()..] != MAGIC {
            return None;
        }
        let rank = bytes[8] as usize;
        if !(1..=MAX_RANK).contains(&rank) {
            return None;
        }
        let mut at = 11;
        let mut take = |many: usize| {
            let mut word = [0; 8];
            word[..many].copy_from_slice(&bytes[at..at + many]);
            at += many;
            u64::from_le_bytes(word)
        };
        Some(TensorMap {
            address: u64::from_le_bytes(bytes[..8].try_into().ok()?),
            extents: (0..rank).map(|_| take(4) + 1).collect(),
            strides: (1..rank).map(|_| take(8)).collect(),
            box_extents: (0..rank).map(|_| take(2) as u32).collect(),
            element: [
                Element::Bits8,
                Element::Bits16,
                Element::Bits32,
                Element::Bits64,
                Element::Tf32,
            ]
            .into_iter()
            .find(|element| *element as u8 == bytes[9])?,
            swizzle: [Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128]
                .into_iter()
                .find(|swizzle| *swizzle as u8 == bytes[10])?,
        })
    }

    pub(crate) fn row_bytes(&self) -> u64 {
        u64::from(self.box_extents[0]) * self.element.size()
    }

    pub(crate) fn box_bytes(&self) -> u64 {
        self.box_extents
            .iter()
            .map(|&extent| u64::from(extent))
            .product::<u64>()
            * self.element.size()
    }

    /// For each row of the box at these coordinates: its number, and where those of its bytes that are in the tensor lie:
    /// address, offset in the row, how many.
    pub(crate) fn rows(&self, coords: &[i32]) -> Check<Vec<Option<(u64, usize, usize)>>> {
        if coords.len() != self.extents.len() {
            return Err(Fault::new(
                Kind::Unsupported,
                format!(
                    "{} coordinates for a tensor map of {} dimensions",
                    coords.len(),
                    self.extents.len()
                ),
            ));
        }
        let rows: u32 = self.box_extents[1..].iter().product();
        let size = self.element.size();
        let first = i64::from(coords[0]);
        if first * size as i64 % ROW_UNIT != 0 {
            return Err(Fault::new(
                Kind::Misaligned,
                format!("rows of the box start at element {first} of {size} bytes, which is no multiple of {ROW_UNIT} bytes"),
            ));
        }
        let begin = (-first).clamp(0, i64::from(self.box_extents[0]));
        let end = (self.extents[0] as i64 - first).clamp(begin, i64::from(self.box_extents[0]));
        let mut list = Vec::with_capacity(rows as usize);
        for row in 0..rows {
            let mut rest = row;
            let mut address = self.address.wrapping_add_signed((first + begin) * size as i64);
            let mut inside = end > begin;
            for dim in 1..self.extents.len() {
                let at = i64::from(coords[dim]) + i64::from(rest % self.box_extents[dim]);
                rest /= self.box_extents[dim];
                inside &= at >= 0 && (at as u64) < self.extents[dim];
                address = address.wrapping_add_signed(at.wrapping_mul(self.strides[dim - 1] as i64));
            }
            list.push(inside.then_some((
                address,
                begin as usize * size as usize,
                ((end - begin) as u64 * size) as usize,
            )));
        }
        Ok(list)
    }

    /// What happens to numbers on their way to shared memory.
    pub(crate) fn transform(&self, row: &mut [u8]) {
        if self.element == Element::Tf32 {
            for word in row.chunks_exact_mut(4) {
                let x = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                word.copy_from_slice(&to_tf32(x, Round::Near).to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> TensorMap {
        TensorMap {
            address: 4096,
            extents: vec![40, 9, 7, 1, 5],
            strides: vec![192, 1920, 16, 16000],
            box_extents: vec![32, 16, 1, 1, 1],
            element: Element::Bits32,
            swizzle: Swizzle::Bytes128,
        }
    }

    #[test]
    fn a_map_survives_being_a_parameter() {
        assert_eq!(TensorMap::decode(&map().encode()), Some(map()));
        assert_eq!(map().complaint(), None);
    }

    #[test]
    fn rows_are_cut_at_the_tensor_s_edges() {
        let rows = map().rows(&[32, 8, 1, 0, 2]).unwrap();
        assert_eq!(rows[0], Some((4096 + 32 * 4 + 8 * 192 + 1920 + 2 * 16000, 0, 32)));
        assert!(rows[1..].iter().all(Option::is_none));
        let rows = map().rows(&[-4, 0, 0, 0, 0]).unwrap();
        assert_eq!(rows[8], Some((4096 + 8 * 192, 16, 112)));
    }

    #[test]
    fn rows_start_on_16_bytes() {
        for first in [-3, 1, 2, 7] {
            assert!(map().rows(&[first, 0, 0, 0, 0]).is_err());
        }
        let halves = TensorMap {
            element: Element::Bits16,
            ..map()
        };
        assert!(halves.rows(&[8, 0, 0, 0, 0]).is_ok() && halves.rows(&[4, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn bad_maps_are_refused() {
        let bad = [
            TensorMap { address: 8, ..map() },
            TensorMap {
                strides: vec![8, 1920, 16, 16000],
                ..map()
            },
            TensorMap {
                box_extents: vec![64, 16, 1, 1, 1],
                ..map()
            },
            TensorMap {
                box_extents: vec![3, 16, 1, 1, 1],
                ..map()
            },
            TensorMap {
                strides: vec![16],
                ..map()
            },
        ];
        assert!(bad.iter().all(|map| map.complaint().is_some()));
    }
}
