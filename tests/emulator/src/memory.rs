//! Global memory: allocations with bounds, and which of their bytes anything wrote.

use crate::finding::{Check, Fault, Kind};
use crate::shadow::Cell;

/// What a kernel may do with an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Read it.
    Input,
    /// Read and write it.
    Any,
}

/// Addresses of allocations begin here.
const FIRST: u64 = 0x10_0000_0000;
/// Allocations begin on multiples of this, and so much is free between them.
const GAP: u64 = 4096;

pub(crate) struct Allocation {
    pub base: u64,
    pub data: Vec<u8>,
    /// A bit for each byte that something wrote.
    written: Vec<u64>,
    pub usage: Use,
    pub cells: Vec<Cell>,
}

impl Allocation {
    /// Whether all of these bytes were written.
    pub(crate) fn is_written(&self, offset: usize, bytes: usize) -> bool {
        if bytes <= 16 && offset % 64 + bytes <= 64 {
            let mask = ((1u64 << bytes) - 1) << (offset % 64);
            return self.written[offset / 64] & mask == mask;
        }
        (offset..offset + bytes).all(|at| self.written[at / 64] >> (at % 64) & 1 == 1)
    }

    pub(crate) fn set_written(&mut self, offset: usize, bytes: usize) {
        if bytes <= 16 && offset % 64 + bytes <= 64 {
            self.written[offset / 64] |= ((1u64 << bytes) - 1) << (offset % 64);
            return;
        }
        for at in offset..offset + bytes {
            self.written[at / 64] |= 1 << (at % 64);
        }
    }
}

/// The memory of the device. Kernels that run one after the other share it.
#[derive(Default)]
pub struct Memory {
    pub(crate) allocations: Vec<Allocation>,
    next: u64,
    /// Where the range that was claimed last ends.
    claimed: u64,
}

impl Memory {
    /// Without any allocation.
    pub fn new() -> Self {
        Memory {
            allocations: Vec::new(),
            next: FIRST,
            claimed: FIRST,
        }
    }

    fn add(&mut self, data: Vec<u8>, written: bool, usage: Use) -> u64 {
        let base = self.claim(data.len() as u64);
        self.add_at(base, data, written, usage);
        base
    }

    fn add_at(&mut self, base: u64, data: Vec<u8>, written: bool, usage: Use) {
        let words = data.len().div_ceil(64);
        if let Some(last) = self.allocations.last() {
            assert!(base >= last.base + last.data.len() as u64, "allocations are in order");
        }
        assert!(
            base + data.len() as u64 <= self.claimed,
            "only what was claimed is allocated"
        );
        self.allocations.push(Allocation {
            base,
            data,
            written: vec![if written { u64::MAX } else { 0 }; words],
            usage,
            cells: Vec::new(),
        });
    }

    /// Addresses for so many bytes, from a multiple of 4096 on, none of them allocated. [`Memory::upload_at`] and [`Memory::reserve_at`] then
    /// allocate pieces: of an operand whose rows lie gigabytes apart, all that there is of it.
    pub fn claim(&mut self, bytes: u64) -> u64 {
        let base = self.next.max(FIRST);
        self.claimed = base + bytes;
        self.next = (base + bytes + GAP).next_multiple_of(GAP);
        base
    }

    /// An allocation with these bytes at an address that was claimed last, behind all allocations.
    pub fn upload_at(&mut self, address: u64, bytes: &[u8], usage: Use) {
        self.add_at(address, bytes.to_vec(), true, usage);
    }

    /// The same, whose bytes must not be read before they are written.
    pub fn reserve_at(&mut self, address: u64, bytes: usize) {
        self.add_at(address, vec![0xFF; bytes], false, Use::Any);
    }

    /// An allocation with these bytes. Its address is a multiple of 4096.
    pub fn upload(&mut self, bytes: &[u8], usage: Use) -> u64 {
        self.add(bytes.to_vec(), true, usage)
    }

    /// An allocation whose bytes must not be read before they are written.
    pub fn reserve(&mut self, bytes: usize) -> u64 {
        self.add(vec![0xFF; bytes], false, Use::Any)
    }

    fn position(&self, address: u64) -> Option<usize> {
        let after = self
            .allocations
            .partition_point(|allocation| allocation.base <= address);
        after.checked_sub(1)
    }

    /// Takes these bytes for never written: gaps between the rows of a matrix, which a kernel has no business with.
    pub fn forget(&mut self, address: u64, bytes: usize) {
        if let Some(at) = self.position(address) {
            let allocation = &mut self.allocations[at];
            let offset = (address - allocation.base) as usize;
            for at in offset..(offset + bytes).min(allocation.data.len()) {
                allocation.written[at / 64] &= !(1 << (at % 64));
            }
        }
    }

    /// What lies at an address; `None` where nothing was allocated.
    pub fn read(&self, address: u64, bytes: usize) -> Option<&[u8]> {
        let allocation = &self.allocations[self.position(address)?];
        let offset = (address - allocation.base) as usize;
        allocation.data.get(offset..offset + bytes)
    }

    /// Writes, as the host would. False where nothing was allocated.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> bool {
        let Some(at) = self.position(address) else {
            return false;
        };
        let allocation = &mut self.allocations[at];
        let offset = (address - allocation.base) as usize;
        let Some(place) = allocation.data.get_mut(offset..offset + bytes.len()) else {
            return false;
        };
        place.copy_from_slice(bytes);
        allocation.set_written(offset, bytes.len());
        true
    }

    /// The first of these bytes that nothing wrote.
    pub fn first_unwritten(&self, address: u64, bytes: usize) -> Option<u64> {
        let Some(at) = self.position(address) else {
            return Some(address);
        };
        let allocation = &self.allocations[at];
        let offset = (address - allocation.base) as usize;
        (offset..offset + bytes)
            .find(|&at| at >= allocation.data.len() || !allocation.is_written(at, 1))
            .map(|at| allocation.base + at as u64)
    }

    /// The first of these bytes that something wrote.
    pub fn first_written(&self, address: u64, bytes: usize) -> Option<u64> {
        let at = self.position(address)?;
        let allocation = &self.allocations[at];
        let offset = (address - allocation.base) as usize;
        (offset..(offset + bytes).min(allocation.data.len()))
            .find(|&at| allocation.is_written(at, 1))
            .map(|at| allocation.base + at as u64)
    }

    /// Allocation and offset of an access.
    #[inline]
    pub(crate) fn find(&self, address: u64, bytes: u32, hint: &mut usize) -> Check<(usize, usize)> {
        if let Some(allocation) = self.allocations.get(*hint) {
            let offset = address.wrapping_sub(allocation.base);
            if offset < allocation.data.len() as u64 && offset + u64::from(bytes) <= allocation.data.len() as u64 {
                return Ok((*hint, offset as usize));
            }
        }
        if let Some(at) = self.position(address) {
            let allocation = &self.allocations[at];
            let offset = address - allocation.base;
            if offset + u64::from(bytes) <= allocation.data.len() as u64 {
                *hint = at;
                return Ok((at, offset as usize));
            }
            let size = allocation.data.len() as u64;
            if offset < size + GAP {
                return Err(Fault::new(
                    Kind::OutOfBounds,
                    format!("{bytes} bytes at {address:#x} are {offset} bytes into an allocation of {size} bytes"),
                ));
            }
        }
        let before = self
            .allocations
            .iter()
            .find(|allocation| allocation.base > address && allocation.base - address <= GAP);
        Err(Fault::new(
            Kind::OutOfBounds,
            match before {
                Some(next) => format!(
                    "{bytes} bytes at {address:#x} begin {} bytes before an allocation of {} bytes",
                    next.base - address,
                    next.data.len()
                ),
                None => format!("{bytes} bytes at {address:#x} belong to no allocation"),
            },
        ))
    }

    /// Forgets who accessed what: a kernel boundary.
    pub(crate) fn before_launch(&mut self, grain: u32) {
        for allocation in &mut self.allocations {
            if allocation.usage == Use::Input {
                continue;
            }
            let cells = allocation.data.len().div_ceil(1 << grain);
            if allocation.cells.len() != cells {
                allocation.cells = vec![Cell::default(); cells];
            } else {
                allocation.cells.iter_mut().for_each(|cell| cell.before_launch(true));
            }
        }
    }
}
