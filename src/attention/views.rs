//! One thing for each operand.

/// One thing for each operand of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Views<T> {
    /// Of Q.
    pub query: T,
    /// Of K.
    pub key: T,
    /// Of V.
    pub value: T,
    /// Of the mask.
    pub mask: T,
    /// Of the result.
    pub out: T,
}

impl<T> Views<T> {
    /// What `change` makes of each.
    pub fn map<U>(self, mut change: impl FnMut(T) -> U) -> Views<U> {
        Views {
            query: change(self.query),
            key: change(self.key),
            value: change(self.value),
            mask: change(self.mask),
            out: change(self.out),
        }
    }

    /// Pairs, one for each operand.
    pub fn zip<U>(self, other: Views<U>) -> Views<(T, U)> {
        Views {
            query: (self.query, other.query),
            key: (self.key, other.key),
            value: (self.value, other.value),
            mask: (self.mask, other.mask),
            out: (self.out, other.out),
        }
    }

    pub(super) fn each(self) -> [T; 5] {
        [self.query, self.key, self.value, self.mask, self.out]
    }
}
