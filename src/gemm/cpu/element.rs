//! Elements of operands on the CPU, of any type that is multiplied here.

use crate::gemm::operands::DType;
use half::{bf16, f16};

/// A type of elements that the CPU path writes.
pub trait Element: Copy + Send + Sync + 'static {
    /// Its name.
    const DTYPE: DType;
    /// Its number, rounded to nearest, ties to even.
    fn round(value: f32) -> Self;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
    fn round(value: f32) -> Self {
        value
    }
}

impl Element for f16 {
    const DTYPE: DType = DType::F16;
    fn round(value: f32) -> Self {
        f16::from_f32(value)
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::BF16;
    fn round(value: f32) -> Self {
        bf16::from_f32(value)
    }
}

/// Elements of an operand.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// FP32 numbers.
    F32(&'a [f32]),
    /// IEEE half-precision numbers.
    F16(&'a [f16]),
    /// Upper halves of FP32 numbers.
    BF16(&'a [bf16]),
}

impl Default for Elements<'_> {
    fn default() -> Self {
        Elements::F32(&[])
    }
}

macro_rules! elements_of {
    ($type:ty, $variant:ident) => {
        impl<'a> From<&'a [$type]> for Elements<'a> {
            fn from(elements: &'a [$type]) -> Self {
                Elements::$variant(elements)
            }
        }
        impl<'a> From<&'a Vec<$type>> for Elements<'a> {
            fn from(elements: &'a Vec<$type>) -> Self {
                Elements::$variant(elements)
            }
        }
        impl<'a, const N: usize> From<&'a [$type; N]> for Elements<'a> {
            fn from(elements: &'a [$type; N]) -> Self {
                Elements::$variant(elements)
            }
        }
    };
}
elements_of!(f32, F32);
elements_of!(f16, F16);
elements_of!(bf16, BF16);

impl<'a> Elements<'a> {
    /// What they are.
    pub const fn dtype(&self) -> DType {
        match self {
            Elements::F32(_) => DType::F32,
            Elements::F16(_) => DType::F16,
            Elements::BF16(_) => DType::BF16,
        }
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        match self {
            Elements::F32(elements) => elements.len(),
            Elements::F16(elements) => elements.len(),
            Elements::BF16(elements) => elements.len(),
        }
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those from this one on; none where there are fewer.
    pub fn starting_at(self, first: usize) -> Self {
        match self {
            Elements::F32(elements) => Elements::F32(elements.get(first..).unwrap_or_default()),
            Elements::F16(elements) => Elements::F16(elements.get(first..).unwrap_or_default()),
            Elements::BF16(elements) => Elements::BF16(elements.get(first..).unwrap_or_default()),
        }
    }

    /// `to[j] = f(to[j], element at + j·stride)` for all of `to`.
    fn each(&self, to: &mut [f32], at: isize, stride: i64, f: impl Fn(&mut f32, f32)) {
        fn walk<E: Copy>(
            to: &mut [f32],
            from: &[E],
            at: isize,
            stride: i64,
            float: impl Fn(E) -> f32,
            f: impl Fn(&mut f32, f32),
        ) {
            let from = &from[at as usize..];
            match stride {
                1 => to.iter_mut().zip(from).for_each(|(x, &y)| f(x, float(y))),
                _ => to
                    .iter_mut()
                    .enumerate()
                    .for_each(|(j, x)| f(x, float(from[j * stride as usize]))),
            }
        }
        match self {
            Elements::F32(from) => walk(to, from, at, stride, |x| x, f),
            Elements::F16(from) => walk(to, from, at, stride, f16::to_f32, f),
            Elements::BF16(from) => walk(to, from, at, stride, bf16::to_f32, f),
        }
    }

    /// `to += factor · elements at, at + stride, …`
    pub(super) fn add_to(&self, to: &mut [f32], factor: f32, at: isize, stride: i64) {
        self.each(to, at, stride, |x, y| *x += factor * y);
    }

    /// `to *= elements at, at + stride, …`
    pub(super) fn multiply_with(&self, to: &mut [f32], at: isize, stride: i64) {
        self.each(to, at, stride, |x, y| *x *= y);
    }

    /// `to = elements at, at + stride, …`
    pub(super) fn copy_to(&self, to: &mut [f32], at: isize, stride: i64) {
        self.each(to, at, stride, |x, y| *x = y);
    }
}
