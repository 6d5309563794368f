//! What a kernel is for: the tables of products and of transpositions say it of each row.

/// Where a row of a kernel table belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A step of the ladder, by its number.
    Rung(u32),
    /// Written for use, not to be read in order.
    Production,
}
