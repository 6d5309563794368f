//! Tensor cores: the arithmetic of dot products, and where operands lie.
//!
//! The arithmetic is the one that MMA-Sim (arXiv 2511.10909) found: all products of a step and the addend are exact, are
//! aligned to the largest exponent with everything below a fixed number of fraction bits cut off, are added, and the sum is
//! cut to FP32. Products are not normalised before they are aligned.

use crate::alu::half_to_f32;
use crate::ir::Ty;

/// An architecture's arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// Fraction bits that are kept below the largest exponent.
    pub fraction_bits: u32,
    /// Products that are added at once, of 32-bit and of 16-bit operands.
    pub products: [usize; 2],
}

impl Arithmetic {
    /// Hopper's.
    pub const HOPPER: Arithmetic = Arithmetic {
        fraction_bits: 25,
        products: [8, 16],
    };
    /// Ampere's and Ada's.
    pub const AMPERE: Arithmetic = Arithmetic {
        fraction_bits: 24,
        products: [4, 8],
    };

    /// That of a compute capability.
    pub fn of(capability: u32) -> Self {
        if capability >= 90 {
            Arithmetic::HOPPER
        } else {
            Arithmetic::AMPERE
        }
    }
}

/// The NaN that tensor cores make.
const NAN: u32 = 0x7FFF_FFFF;
/// Products are scaled by this power of two: two operands of ten fraction bits.
const PRODUCT_BITS: u32 = 20;
const MIN_EXPONENT: i32 = -126;
/// So small that a product with a zero is never the largest, however large the other factor.
const ZERO_EXPONENT: i32 = -1000;

/// A number taken apart: significand · 2^(exponent − 10), or something that is not finite.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Number {
    significand: i32,
    exponent: i32,
    finite: bool,
    value: f32,
}

impl Number {
    pub(crate) fn of(bits: u32, ty: Ty) -> Number {
        const LOW: u32 = 13;
        match ty {
            Ty::Tf32 => Number::split(f32::from_bits(bits & !((1 << LOW) - 1)), MIN_EXPONENT),
            Ty::F16 => Number::split(half_to_f32(bits as u16, ty), -14),
            _ => Number::split(half_to_f32(bits as u16, ty), MIN_EXPONENT),
        }
    }

    pub(crate) fn negate(&mut self) {
        self.significand = -self.significand;
        self.value = -self.value;
    }

    #[inline]
    fn split(x: f32, least: i32) -> Number {
        let bits = x.to_bits();
        let field = (bits >> 23 & 0xFF) as i32;
        let fraction = (bits & 0x7F_FFFF) as i32;
        let (mut significand, mut exponent) = match field {
            0 => (fraction >> 13, MIN_EXPONENT),
            _ => ((fraction | 1 << 23) >> 13, field - 127),
        };
        if exponent < least {
            // A subnormal FP16 number has the least exponent.
            significand >>= least - exponent;
            exponent = least;
        }
        if significand == 0 {
            exponent = ZERO_EXPONENT;
        }
        Number {
            significand: if bits >> 31 == 1 { -significand } else { significand },
            exponent,
            finite: field != 0xFF,
            value: x,
        }
    }
}

/// a·b + c of one step.
#[inline]
fn step(a: &[Number], b: &[Number], c: f32, fraction_bits: u32) -> f32 {
    let mut finite = c.is_finite();
    let bits = c.to_bits();
    let field = (bits >> 23 & 0xFF) as i32;
    let fraction = i64::from(bits & 0x7F_FFFF);
    let (c_significand, c_exponent) = match field {
        0 => (fraction, MIN_EXPONENT),
        _ => (fraction | 1 << 23, field - 127),
    };
    let mut largest = c_exponent;
    for (x, y) in a.iter().zip(b) {
        largest = largest.max(x.exponent + y.exponent);
        finite &= x.finite & y.finite;
    }
    if !finite {
        let sum: f64 = a
            .iter()
            .zip(b)
            .map(|(x, y)| f64::from(x.value) * f64::from(y.value))
            .sum();
        let sum = sum + f64::from(c);
        return match sum.is_nan() {
            true => f32::from_bits(NAN),
            false => sum as f32,
        };
    }
    let cut = |magnitude: i64, exponent: i32| magnitude >> (largest - exponent).min(62);
    let c_aligned = cut(c_significand << (fraction_bits - 23), c_exponent);
    let mut sum = if bits >> 31 == 1 { -c_aligned } else { c_aligned };
    for (x, y) in a.iter().zip(b) {
        let product = i64::from(x.significand * y.significand);
        let aligned = cut(product.abs() << (fraction_bits - PRODUCT_BITS), x.exponent + y.exponent);
        sum += if product < 0 { -aligned } else { aligned };
    }
    truncated(sum, largest - fraction_bits as i32)
}

/// The deepest operands that an instruction has.
pub(crate) const DEPTH: usize = 16;
/// The sum of so many products and the addend fits into 32 bits: 27 bits each, and four more for the carry.
const MOST_IN_A_SUM: usize = 8;

/// Finite numbers of a row of A taken apart.
struct Row {
    significands: [i32; DEPTH],
    exponents: [i32; DEPTH],
}

/// Likewise for eight columns of B, those of one step of k side by side.
struct Columns {
    significands: [[i32; 8]; DEPTH],
    exponents: [[i32; 8]; DEPTH],
}

impl Columns {
    fn of(columns: &[[Number; DEPTH]; 8], depth: usize) -> Option<Columns> {
        let mut apart = Columns {
            significands: [[0; 8]; DEPTH],
            exponents: [[0; 8]; DEPTH],
        };
        let mut finite = true;
        for (j, column) in columns.iter().enumerate() {
            for (k, number) in column[..depth].iter().enumerate() {
                apart.significands[k][j] = number.significand;
                apart.exponents[k][j] = number.exponent;
                finite &= number.finite;
            }
        }
        finite.then_some(apart)
    }
}

/// Sixteen rows of A.
pub(crate) struct Rows {
    numbers: [[Number; DEPTH]; 16],
    depth: usize,
    at_once: usize,
    fraction_bits: u32,
    /// All of them taken apart, where they are finite.
    apart: Option<Vec<Row>>,
}

impl Rows {
    /// Rows of `depth` numbers of 32 or 16 bits.
    pub(crate) fn new(numbers: [[Number; DEPTH]; 16], depth: usize, wide: bool, arithmetic: Arithmetic) -> Rows {
        let at_once = arithmetic.products[usize::from(!wide)];
        let finite = numbers.iter().all(|row| row[..depth].iter().all(|x| x.finite));
        let apart = |row: &[Number; DEPTH]| Row {
            significands: row.map(|x| x.significand),
            exponents: row.map(|x| x.exponent),
        };
        Rows {
            depth,
            at_once,
            fraction_bits: arithmetic.fraction_bits,
            apart: finite.then(|| numbers.iter().map(apart).collect()),
            numbers,
        }
    }

    /// Adds the products with eight columns to the sums in four registers of a warp, which lie as `mma` and `wgmma` have them.
    pub(crate) fn multiply(&self, columns: &[[Number; DEPTH]; 8], sums: &mut [[u32; 32]; 4]) {
        let apart = self.apart.as_ref().zip(Columns::of(columns, self.depth));
        for row in 0..16 {
            let place = |column: usize| (row / 8 * 2 + column % 2, row % 8 * 4 + column / 2);
            let before: [f32; 8] = std::array::from_fn(|column| {
                let (register, lane) = place(column);
                f32::from_bits(sums[register][lane])
            });
            let fast = apart
                .as_ref()
                .and_then(|(rows, columns)| self.add(&rows[row], columns, before));
            let after = fast.unwrap_or_else(|| {
                std::array::from_fn(|column| {
                    let (a, b) = (&self.numbers[row][..self.depth], &columns[column][..self.depth]);
                    dot(a, b, before[column], self.fraction_bits, self.at_once)
                })
            });
            for (column, sum) in after.into_iter().enumerate() {
                let (register, lane) = place(column);
                sums[register][lane] = sum.to_bits();
            }
        }
    }

    /// One row times eight columns, if nothing on the way is infinite, on the fastest way that the processor has.
    fn add(&self, a: &Row, b: &Columns, c: [f32; 8]) -> Option<[f32; 8]> {
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has just said that it has these instructions.
            return unsafe { add_avx2(self, a, b, c) };
        }
        add(self, a, b, c)
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_avx2(rows: &Rows, a: &Row, b: &Columns, c: [f32; 8]) -> Option<[f32; 8]> {
    add(rows, a, b, c)
}

/// The same as [`dot`] for eight columns at a time.
#[inline(always)]
fn add(rows: &Rows, a: &Row, b: &Columns, mut c: [f32; 8]) -> Option<[f32; 8]> {
    let (bits, at_once) = (rows.fraction_bits, rows.at_once);
    for first in (0..rows.depth).step_by(at_once) {
        if !c.iter().all(|c| c.is_finite()) {
            return None;
        }
        let here = first..(first + at_once).min(rows.depth);
        let mut exponents = [0; 8];
        // Of the addend and the first products, and of the others.
        let mut sums = [[0; 8]; DEPTH / MOST_IN_A_SUM];
        for j in 0..8 {
            let field = (c[j].to_bits() >> 23 & 0xFF) as i32;
            let fraction = (c[j].to_bits() & 0x7F_FFFF) as i32;
            let significand = if field == 0 { fraction } else { fraction | 1 << 23 };
            exponents[j] = field.max(1) - 127;
            sums[0][j] = significand << (bits - 23);
        }
        let mut largest = exponents;
        for k in here.clone() {
            for j in 0..8 {
                largest[j] = largest[j].max(a.exponents[k] + b.exponents[k][j]);
            }
        }
        for j in 0..8 {
            let aligned = sums[0][j] >> (largest[j] - exponents[j]).min(31);
            let sign = c[j].to_bits() as i32 >> 31;
            sums[0][j] = (aligned ^ sign) - sign;
        }
        for k in here {
            let sums = &mut sums[(k - first) / MOST_IN_A_SUM];
            for j in 0..8 {
                let product = a.significands[k] * b.significands[k][j];
                let sign = product >> 31;
                let magnitude = (product ^ sign) - sign;
                let below = (largest[j] - a.exponents[k] - b.exponents[k][j]).min(31);
                let aligned = magnitude << (bits - PRODUCT_BITS) >> below;
                sums[j] += (aligned ^ sign) - sign;
            }
        }
        for j in 0..8 {
            let sum = sums.iter().map(|sums| i64::from(sums[j])).sum();
            c[j] = truncated(sum, largest[j] - bits as i32);
        }
    }
    Some(c)
}

/// sum · 2^exponent as FP32, cut off towards zero.
#[inline(always)]
fn truncated(sum: i64, exponent: i32) -> f32 {
    if sum == 0 {
        return 0.0;
    }
    let sign = if sum < 0 { 1u32 << 31 } else { 0 };
    let magnitude = sum.unsigned_abs();
    let top = 63 - magnitude.leading_zeros() as i32;
    let leading = top + exponent;
    if leading > 127 {
        return f32::from_bits(sign | 0x7F80_0000);
    }
    // The last place of the result.
    let unit = (leading - 23).max(-149);
    let shift = unit - exponent;
    let whole = if shift >= 0 {
        magnitude >> shift.min(63)
    } else {
        magnitude << -shift
    };
    let bits = if leading >= MIN_EXPONENT {
        ((leading + 127) as u32) << 23 | whole as u32 & 0x7F_FFFF
    } else {
        whole as u32
    };
    f32::from_bits(sign | bits)
}

/// a·b + c of operands that are as deep as an instruction says.
#[inline]
fn dot(a: &[Number], b: &[Number], c: f32, fraction_bits: u32, at_once: usize) -> f32 {
    let mut sum = c;
    for (a, b) in a.chunks(at_once).zip(b.chunks(at_once)) {
        sum = step(a, b, sum, fraction_bits);
    }
    sum
}

/// The dot product of `a` and `b` plus `c` as a tensor core computes it, TF32 operands as FP32 numbers whose low bits are
/// ignored: to compare the arithmetic with a GPU's.
pub fn tf32_dot(a: &[f32], b: &[f32], c: f32, arithmetic: Arithmetic) -> f32 {
    let numbers = |list: &[f32]| -> Vec<Number> { list.iter().map(|x| Number::of(x.to_bits(), Ty::Tf32)).collect() };
    dot(
        &numbers(a),
        &numbers(b),
        c,
        arithmetic.fraction_bits,
        arithmetic.products[0],
    )
}

/// A tile in shared memory as a `wgmma` descriptor says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    start: u32,
    leading: u32,
    stride: u32,
    base_offset: u32,
    swizzle: u32,
}

impl Descriptor {
    pub(crate) fn parse(bits: u64) -> Descriptor {
        let field = |at: u32| ((bits >> at & 0x3FFF) << 4) as u32;
        Descriptor {
            start: field(0),
            leading: field(16),
            stride: field(32),
            base_offset: (bits >> 49 & 7) as u32,
            swizzle: match bits >> 62 {
                0 => 0,
                1 => 128,
                2 => 64,
                _ => 32,
            },
        }
    }

    /// Where the element `k` of row (or column) `mn` lies.
    #[inline]
    pub(crate) fn address(&self, mn: u32, k: u32, size: u32, mn_major: bool) -> u32 {
        let width = if self.swizzle == 0 { 16 } else { self.swizzle };
        let linear = if mn_major {
            let bytes = mn * size;
            self.start + bytes / width * self.leading + k / 8 * self.stride + k % 8 * width + bytes % width
        } else {
            let bytes = k * size;
            let across = if self.swizzle == 0 {
                bytes / width * self.leading
            } else {
                bytes / width * width
            };
            self.start + mn / 8 * self.stride + mn % 8 * width + across + bytes % width
        };
        let row = (linear >> 7).wrapping_add(self.base_offset);
        match self.swizzle {
            128 => linear ^ (row & 7) << 4,
            64 => linear ^ (row & 3) << 4,
            32 => linear ^ (row & 1) << 4,
            _ => linear,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hopper(a: &[f32], b: &[f32], c: f32) -> f32 {
        tf32_dot(a, b, c, Arithmetic::HOPPER)
    }

    #[test]
    fn small_products_are_exact() {
        let a = [1.0, 2.0, -3.0, 4.0, 0.5, 0.25, 0.0, 1.5];
        let b = [7.0, -2.0, 5.0, 0.125, 2.0, 4.0, 9.0, 2.0];
        let exact: f32 = a.iter().zip(&b).map(|(x, y)| x * y).sum();
        assert_eq!(hopper(&a, &b, 10.0), exact + 10.0);
        assert_eq!(tf32_dot(&a, &b, 10.0, Arithmetic::AMPERE), exact + 10.0);
    }

    #[test]
    fn what_is_below_the_kept_bits_is_cut_off() {
        // 2^-26 beside 1: gone, however often; on a machine that rounds once it would count.
        let a = [2f32.powi(-13); 8];
        assert_eq!(hopper(&a, &a, 1.0), 1.0);
        // 2^-25 is kept, eight of them are two units in the last place.
        let b = [2f32.powi(-12); 8];
        assert_eq!(hopper(&a, &b, 1.0), 1.0 + 2.0 * f32::EPSILON);
        // Cut towards zero, not rounded down.
        assert_eq!(hopper(&[-2f32.powi(-13); 8], &a, 1.0), 1.0);
    }

    #[test]
    fn subnormal_and_infinite_results() {
        let tiny = f32::from_bits(1 << 22);
        assert_eq!(hopper(&[tiny], &[1.0], 0.0), tiny);
        assert_eq!(hopper(&[f32::MAX; 8], &[1.0; 8], 0.0), f32::INFINITY);
        assert_eq!(hopper(&[f32::INFINITY, 1.0], &[1.0, 1.0], 0.0), f32::INFINITY);
        assert_eq!(hopper(&[f32::INFINITY], &[0.0], 0.0).to_bits(), NAN);
        assert_eq!(hopper(&[1.0, -1.0], &[3.0, 3.0], -0.0).to_bits(), 0);
    }

    #[test]
    fn eight_columns_at_once_are_the_same() {
        let mut random = crate::machine::Random(5);
        let mut float = |spread: u64| {
            let r = random.next();
            let exponent = 127 - spread / 2 + (r >> 40) % (spread + 1);
            f32::from_bits((r as u32 & 0x807F_FFFF) | (exponent as u32) << 23)
        };
        let mut quick = 0;
        for round in 0..12_000 {
            let spread = [2, 20, 100, 250][round % 4];
            let arithmetic = [Arithmetic::HOPPER, Arithmetic::AMPERE][round / 4 % 2];
            let ty = [Ty::Tf32, Ty::F16, Ty::BF16][round / 8 % 3];
            let wide = ty == Ty::Tf32;
            let depth = if wide { [4, 8] } else { [8, DEPTH] }[round / 24 % 2];
            // One number in eight is a zero or subnormal. One round in four has infinities and NaN among the others.
            let most = if round / 48 % 4 == 0 { 31 } else { 30 };
            let mut line = || -> [Number; DEPTH] {
                std::array::from_fn(|k| {
                    let bits = float(spread).to_bits();
                    let small = float(7).to_bits() >> 23 & 7 == 0;
                    let zero = float(1).to_bits() >> 23 & 1 == 0;
                    let (sign, exponent, fraction) = (bits >> 31, bits >> 23 & 0xFF, bits & 0x7F_FFFF);
                    let fraction = if small && zero { 0 } else { fraction };
                    let bits = match ty {
                        // The exponent has five bits.
                        Ty::F16 if small => sign << 15 | fraction >> 13,
                        Ty::F16 => sign << 15 | (exponent % most + most - 30) << 10 | fraction >> 13,
                        _ if small => sign << 31 | fraction,
                        _ if most == 31 && exponent % 16 == 0 => sign << 31 | 0xFF << 23 | fraction,
                        _ => bits,
                    };
                    match k < depth {
                        true if ty == Ty::BF16 => Number::of(bits >> 16, ty),
                        true => Number::of(bits, ty),
                        false => Number::default(),
                    }
                })
            };
            let (a, b): (Vec<_>, Vec<_>) = (0..16).map(|_| (line(), line())).unzip();
            let c = float(spread);
            let mut sums = [[c.to_bits(); 32]; 4];
            let rows = Rows::new(std::array::from_fn(|row| a[row]), depth, wide, arithmetic);
            quick += usize::from(rows.apart.is_some());
            rows.multiply(&std::array::from_fn(|column| b[column]), &mut sums);
            let at_once = arithmetic.products[usize::from(!wide)];
            for (row, a) in a.iter().enumerate() {
                for (column, b) in b[..8].iter().enumerate() {
                    let sum = sums[row / 8 * 2 + column % 2][row % 8 * 4 + column / 2];
                    let expected = dot(&a[..depth], &b[..depth], c, arithmetic.fraction_bits, at_once);
                    assert_eq!(sum, expected.to_bits(), "{a:?} {b:?} {c}");
                }
            }
        }
        assert!(quick > 8000, "{quick} of 12000 on the quick way");
    }

    /// The largest sums there are: sixteen products of the largest significands and an addend with their exponent, all of one sign.
    #[test]
    fn sums_of_the_largest_significands_do_not_overflow() {
        const LARGEST: u32 = 0x3FFF; // 1.99…, as F16 and as BF16
        for ty in [Ty::F16, Ty::BF16] {
            for sign in [0, 1u32 << 15] {
                let a = [[Number::of(LARGEST | sign, ty); DEPTH]; 16];
                let b = [[Number::of(LARGEST, ty); DEPTH]; 8];
                let c = f32::from_bits(sign << 16 | 0x3FFF_FFFF);
                let mut sums = [[c.to_bits(); 32]; 4];
                Rows::new(a, DEPTH, false, Arithmetic::HOPPER).multiply(&b, &mut sums);
                let exact = 16.0 * f64::from(a[0][0].value) * f64::from(b[0][0].value) + f64::from(c);
                let got = f64::from(f32::from_bits(sums[0][0]));
                assert!(
                    (got - exact).abs() <= exact.abs() * f64::from(f32::EPSILON),
                    "{got} {exact}"
                );
            }
        }
    }

    #[test]
    fn descriptors_find_what_the_copy_engine_wrote() {
        // 128 bytes a row, eight rows a group, chunks of row r exchanged by r % 8.
        let descriptor = Descriptor::parse(1 << 62 | 64 << 32 | 1 << 16 | 2048 >> 4);
        for row in 0..64 {
            for k in 0..8 {
                let linear = 2048 + row * 128 + k * 4;
                let swizzled = linear ^ (row % 8) << 4;
                assert_eq!(descriptor.address(row, k, 4, false), swizzled);
            }
        }
    }
}
