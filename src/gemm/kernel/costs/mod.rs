//! What a block of a kernel costs, as measured.

/// The costs of a kernel's block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Fraction of the arithmetic's peak that a multiprocessor reaches when it holds all the blocks it can.
    pub full: f32,
    /// The same when it holds only one.
    pub solo: f32,
    /// Blocks that a multiprocessor holds.
    pub resident: u32,
    /// What a block takes beside its multiplications (first loads, epilogue), in µs.
    pub setup_us: f32,
    /// Fraction of the datasheet's memory bandwidth that it reaches where memory is the limit.
    pub stream: f32,
}

impl Cost {
    /// These costs, in the order of the fields.
    pub const fn measured(full: f32, solo: f32, resident: u32, setup_us: f32, stream: f32) -> Self {
        Cost {
            full,
            solo,
            resident,
            setup_us,
            stream,
        }
    }
}
