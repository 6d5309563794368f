//! Arithmetic on registers: 32 lanes at a time for what is frequent, a lane at a time for the rest.

use crate::ir::{Alu, Cmp, Mode, Round, Ty};

/// A register of 16 or 32 bits of every lane.
pub(crate) type Narrow = [u32; 32];
/// A register of 64 bits of every lane.
pub(crate) type Wide = [u64; 32];

#[inline(always)]
fn map1(a: &Narrow, f: impl Fn(u32) -> u32) -> Narrow {
    let mut d = [0; 32];
    for i in 0..32 {
        d[i] = f(a[i]);
    }
    d
}

#[inline(always)]
fn map2(a: &Narrow, b: &Narrow, f: impl Fn(u32, u32) -> u32) -> Narrow {
    let mut d = [0; 32];
    for i in 0..32 {
        d[i] = f(a[i], b[i]);
    }
    d
}

#[inline(always)]
fn map3(a: &Narrow, b: &Narrow, c: &Narrow, f: impl Fn(u32, u32, u32) -> u32) -> Narrow {
    let mut d = [0; 32];
    for i in 0..32 {
        d[i] = f(a[i], b[i], c[i]);
    }
    d
}

#[inline(always)]
fn f2(a: &Narrow, b: &Narrow, f: impl Fn(f32, f32) -> f32) -> Narrow {
    map2(a, b, |x, y| f(f32::from_bits(x), f32::from_bits(y)).to_bits())
}

#[inline(always)]
fn fma_lanes(a: &Narrow, b: &Narrow, c: &Narrow) -> Narrow {
    map3(a, b, c, |x, y, z| {
        f32::from_bits(x)
            .mul_add(f32::from_bits(y), f32::from_bits(z))
            .to_bits()
    })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fma_lanes_avx2(a: &Narrow, b: &Narrow, c: &Narrow) -> Narrow {
    fma_lanes(a, b, c)
}

/// a·b + c of every lane, rounded once, to nearest.
pub(crate) fn fma32(a: &Narrow, b: &Narrow, c: &Narrow) -> Narrow {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has just said that it has these instructions.
        return unsafe { fma_lanes_avx2(a, b, c) };
    }
    fma_lanes(a, b, c)
}

/// The bits of a NaN that arithmetic makes.
const NAN32: u32 = 0x7FFF_FFFF;

fn canonical(x: f32) -> f32 {
    if x.is_nan() {
        f32::from_bits(NAN32)
    } else {
        x
    }
}

fn flush(x: f32, on: bool) -> f32 {
    if on && x.is_subnormal() {
        0f32.copysign(x)
    } else {
        x
    }
}

fn saturate(x: f32, on: bool) -> f32 {
    match on {
        true if x.is_nan() => 0.0,
        true => x.clamp(0.0, 1.0),
        false => x,
    }
}

/// The frequent instructions on 32-bit registers, or `None`.
pub(crate) fn fast(f: Alu, ty: Ty, mode: Mode, a: &Narrow, b: &Narrow, c: &Narrow) -> Option<Narrow> {
    let signed = ty == Ty::S32;
    Some(match ty {
        Ty::F32 => {
            if mode.ftz || mode.sat {
                return None;
            }
            let near = mode.round == Round::Near;
            match f {
                Alu::Mov => *a,
                Alu::Fma if near => fma32(a, b, c),
                Alu::Add if near => f2(a, b, |x, y| x + y),
                Alu::Sub if near => f2(a, b, |x, y| x - y),
                Alu::MulLo if near => f2(a, b, |x, y| x * y),
                Alu::Neg => map1(a, |x| x ^ 0x8000_0000),
                Alu::Abs => map1(a, |x| x & 0x7FFF_FFFF),
                _ => return None,
            }
        }
        Ty::B32 | Ty::U32 | Ty::S32 => match f {
            Alu::Mov => *a,
            Alu::Add if !mode.sat => map2(a, b, u32::wrapping_add),
            Alu::Sub if !mode.sat => map2(a, b, u32::wrapping_sub),
            Alu::MulLo => map2(a, b, u32::wrapping_mul),
            Alu::MadLo if !mode.sat => map3(a, b, c, |x, y, z| x.wrapping_mul(y).wrapping_add(z)),
            Alu::And => map2(a, b, |x, y| x & y),
            Alu::Or => map2(a, b, |x, y| x | y),
            Alu::Xor => map2(a, b, |x, y| x ^ y),
            Alu::Not => map1(a, |x| !x),
            Alu::Shl => map2(a, b, |x, y| if y > 31 { 0 } else { x << y }),
            Alu::Shr if signed => map2(a, b, |x, y| (x as i32 >> y.min(31)) as u32),
            Alu::Shr => map2(a, b, |x, y| if y > 31 { 0 } else { x >> y }),
            Alu::Min if signed => map2(a, b, |x, y| (x as i32).min(y as i32) as u32),
            Alu::Max if signed => map2(a, b, |x, y| (x as i32).max(y as i32) as u32),
            Alu::Min => map2(a, b, u32::min),
            Alu::Max => map2(a, b, u32::max),
            _ => return None,
        },
        _ => return None,
    })
}

/// The frequent instructions on 64-bit registers, or `None`.
pub(crate) fn fast_wide(f: Alu, ty: Ty, a: &Wide, b: &Wide) -> Option<Wide> {
    if ty.float() {
        return None;
    }
    let mut d = [0; 32];
    match f {
        Alu::Mov => return Some(*a),
        Alu::Add => (0..32).for_each(|i| d[i] = a[i].wrapping_add(b[i])),
        Alu::Sub => (0..32).for_each(|i| d[i] = a[i].wrapping_sub(b[i])),
        Alu::MulLo => (0..32).for_each(|i| d[i] = a[i].wrapping_mul(b[i])),
        Alu::And => (0..32).for_each(|i| d[i] = a[i] & b[i]),
        Alu::Or => (0..32).for_each(|i| d[i] = a[i] | b[i]),
        Alu::Shl => (0..32).for_each(|i| d[i] = if b[i] > 63 { 0 } else { a[i] << b[i] }),
        _ => return None,
    }
    Some(d)
}

fn extend(x: u64, ty: Ty) -> i128 {
    match ty {
        Ty::S8 => x as i8 as i128,
        Ty::S16 => x as i16 as i128,
        Ty::S32 => x as i32 as i128,
        Ty::S64 => x as i64 as i128,
        _ => (x & ones(ty)) as i128,
    }
}

fn ones(ty: Ty) -> u64 {
    match ty.size() {
        1 => 0xFF,
        2 => 0xFFFF,
        4 => 0xFFFF_FFFF,
        _ => u64::MAX,
    }
}

/// x + y exactly, as a sum rounded to nearest and what is left.
fn two_sum(x: f64, y: f64) -> (f64, f64) {
    let s = x + y;
    let t = s - x;
    (s, (x - (s - t)) + (y - t))
}

/// Rounds s + e, where e is less than half an ulp of s, to FP32.
fn round32(s: f64, e: f64, round: Round) -> f32 {
    let near = s as f32;
    if near.is_nan() || s.is_infinite() {
        return near;
    }
    // Where the exact number lies, seen from `near`.
    let difference = if near.is_infinite() {
        if s > 0.0 {
            -1.0
        } else {
            1.0
        }
    } else {
        let d = s - near as f64;
        if d != 0.0 {
            d
        } else {
            e
        }
    };
    match round {
        Round::Near | Round::Away => {
            // A tie in FP64 that the rest breaks: s was halfway between two numbers.
            if e != 0.0 && !near.is_infinite() {
                let other = if s > near as f64 {
                    near.next_up()
                } else {
                    near.next_down()
                };
                let half = (near as f64 + other as f64) / 2.0;
                if s == half && s != near as f64 {
                    let (low, high) = if other > near { (near, other) } else { (other, near) };
                    return if e > 0.0 { high } else { low };
                }
            }
            near
        }
        Round::Down if difference < 0.0 => near.next_down(),
        Round::Up if difference > 0.0 => near.next_up(),
        Round::Zero if difference < 0.0 && near > 0.0 => near.next_down(),
        Round::Zero if difference > 0.0 && near < 0.0 => near.next_up(),
        _ => near,
    }
}

fn float32(f: Alu, mode: Mode, a: u64, b: u64, c: u64) -> Option<f32> {
    let arg = |x: u64| flush(f32::from_bits(x as u32), mode.ftz);
    let (x, y, z) = (arg(a), arg(b), arg(c));
    let near = mode.round == Round::Near;
    let d = match f {
        Alu::Mov => return Some(f32::from_bits(a as u32)),
        Alu::CopySign => return Some(f32::from_bits(b as u32 & 0x7FFF_FFFF | a as u32 & 0x8000_0000)),
        Alu::Add if near => x + y,
        Alu::Sub if near => x - y,
        Alu::MulLo if near => x * y,
        Alu::Fma if near => x.mul_add(y, z),
        Alu::Add | Alu::Sub => {
            let y = if f == Alu::Sub { -y } else { y };
            let (s, e) = two_sum(x as f64, y as f64);
            directed_zero(round32(s, e, mode.round), s, mode.round, x == -y && x != 0.0)
        }
        Alu::MulLo => round32(x as f64 * y as f64, 0.0, mode.round),
        Alu::Fma => {
            let p = x as f64 * y as f64;
            let (s, e) = two_sum(p, z as f64);
            directed_zero(round32(s, e, mode.round), s, mode.round, p == -(z as f64) && p != 0.0)
        }
        Alu::Div if near => x / y,
        Alu::DivApprox => x / y,
        Alu::Rcp => 1.0 / x,
        Alu::Sqrt => x.sqrt(),
        Alu::Rsqrt => (1.0 / (x as f64).sqrt()) as f32,
        Alu::Ex2 => (x as f64).exp2() as f32,
        Alu::Lg2 => (x as f64).log2() as f32,
        Alu::Sin => (x as f64).sin() as f32,
        Alu::Cos => (x as f64).cos() as f32,
        Alu::Tanh => (x as f64).tanh() as f32,
        Alu::Min | Alu::Max => {
            if x.is_nan() || y.is_nan() {
                match (mode.nan, x.is_nan(), y.is_nan()) {
                    (false, true, false) => y,
                    (false, false, true) => x,
                    _ => f32::NAN,
                }
            } else if x == y {
                // −0 is less than +0.
                let negative = if f == Alu::Min {
                    x.is_sign_negative() || y.is_sign_negative()
                } else {
                    x.is_sign_negative() && y.is_sign_negative()
                };
                if x == 0.0 && negative {
                    -0.0
                } else if x == 0.0 {
                    0.0
                } else {
                    x
                }
            } else if f == Alu::Min {
                x.min(y)
            } else {
                x.max(y)
            }
        }
        Alu::Neg => -x,
        Alu::Abs => x.abs(),
        _ => return None,
    };
    Some(saturate(flush(canonical(d), mode.ftz), mode.sat))
}

/// An exact zero that two numbers cancelled to is −0 when rounding down.
fn directed_zero(d: f32, s: f64, round: Round, cancelled: bool) -> f32 {
    if s == 0.0 && cancelled {
        return if round == Round::Down { -0.0 } else { 0.0 };
    }
    d
}

fn float64(f: Alu, mode: Mode, a: u64, b: u64, c: u64) -> Option<f64> {
    let (x, y, z) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
    if mode.round != Round::Near {
        return None;
    }
    Some(match f {
        Alu::Mov => x,
        Alu::Add => x + y,
        Alu::Sub => x - y,
        Alu::MulLo => x * y,
        Alu::Fma => x.mul_add(y, z),
        Alu::Div => x / y,
        Alu::Rcp => 1.0 / x,
        Alu::Sqrt => x.sqrt(),
        Alu::Neg => -x,
        Alu::Abs => x.abs(),
        Alu::CopySign => f64::from_bits(b & !(1 << 63) | a & 1 << 63),
        Alu::Min if x.is_nan() => y,
        Alu::Max if x.is_nan() => y,
        Alu::Min => x.min(y),
        Alu::Max => x.max(y),
        _ => return None,
    })
}

/// One lane of any instruction, or `None` where it is not known.
pub(crate) fn scalar(f: Alu, ty: Ty, mode: Mode, a: u64, b: u64, c: u64, e: u64) -> Option<u64> {
    match ty {
        Ty::F32 => return float32(f, mode, a, b, c).map(|x| x.to_bits().into()),
        Ty::F64 => return float64(f, mode, a, b, c).map(f64::to_bits),
        Ty::F16 | Ty::BF16 => {
            let half = |x: u64| half_to_f32(x as u16, ty).to_bits().into();
            let d = float32(f, mode, half(a), half(b), half(c))?;
            return Some(f32_to_half(d, ty, Round::Near).into());
        }
        Ty::F16x2 | Ty::BF16x2 => {
            let one = if ty == Ty::F16x2 { Ty::F16 } else { Ty::BF16 };
            let part = |shift: u32| {
                let cut = |x: u64| x >> shift & 0xFFFF;
                scalar(f, one, mode, cut(a), cut(b), cut(c), 0)
            };
            return Some(part(0)? | part(16)? << 16);
        }
        _ => {}
    }
    let bits = ty.size() * 8;
    let (x, y, z) = (extend(a, ty), extend(b, ty), extend(c, ty));
    let (ua, ub) = (a & ones(ty), b & ones(ty));
    let d: i128 = match f {
        Alu::Mov => return Some(ua),
        Alu::Add if mode.sat => (x + y).clamp(i32::MIN.into(), i32::MAX.into()),
        Alu::Sub if mode.sat => (x - y).clamp(i32::MIN.into(), i32::MAX.into()),
        Alu::Add => x + y,
        Alu::Sub => x - y,
        Alu::MulLo => x.wrapping_mul(y),
        Alu::MadLo => x.wrapping_mul(y).wrapping_add(z),
        Alu::MulHi => x.wrapping_mul(y) >> bits,
        Alu::MadHi => (x.wrapping_mul(y) >> bits) + z,
        Alu::MulWide => {
            let wide = (x * y) as u64;
            return Some(if bits == 16 { wide & 0xFFFF_FFFF } else { wide });
        }
        Alu::MadWide => {
            let wide = (x * y) as u64;
            return Some(if bits == 16 {
                wide.wrapping_add(c) & 0xFFFF_FFFF
            } else {
                wide.wrapping_add(c)
            });
        }
        // Division by zero is not defined; the hardware returns all ones.
        Alu::Div if y == 0 => -1,
        Alu::Rem if y == 0 => x,
        Alu::Div => x / y,
        Alu::Rem => x % y,
        Alu::Min => x.min(y),
        Alu::Max => x.max(y),
        Alu::Neg => -x,
        Alu::Abs => x.abs(),
        Alu::And => (ua & ub) as i128,
        Alu::Or => (ua | ub) as i128,
        Alu::Xor => (ua ^ ub) as i128,
        Alu::Not => !x,
        Alu::Cnot => i128::from(ua == 0),
        Alu::Shl => {
            let by = b as u32;
            if by >= bits {
                0
            } else {
                (ua << by) as i128
            }
        }
        Alu::Shr => {
            let by = (b as u32).min(127);
            if ty.signed() {
                x >> by.min(bits - 1)
            } else if by >= bits {
                0
            } else {
                (ua >> by) as i128
            }
        }
        Alu::Bfi => {
            let (position, length) = (c as u32 & 0xFF, e as u32 & 0xFF);
            if position >= bits || length == 0 {
                ub as i128
            } else {
                let length = length.min(bits - position);
                let mask = (if length >= 64 { u64::MAX } else { (1 << length) - 1 }) << position;
                (ub & !mask | (ua << position) & mask) as i128
            }
        }
        Alu::Bfe => {
            let (position, length) = (b as u32 & 0xFF, c as u32 & 0xFF);
            if length == 0 {
                0
            } else {
                let end = (position + length).min(bits);
                let field = if position >= bits { 0 } else { ua >> position };
                let kept = end.saturating_sub(position);
                let mask = if kept >= 64 { u64::MAX } else { (1u64 << kept) - 1 };
                let negative = ty.signed() && ua >> (position + length - 1).min(bits - 1) & 1 == 1;
                let value = field & mask;
                if negative {
                    (value | !mask) as i128
                } else {
                    value as i128
                }
            }
        }
        Alu::Bfind | Alu::BfindShift => {
            let value = if ty.signed() && x < 0 { !ua & ones(ty) } else { ua };
            if value == 0 {
                return Some(0xFFFF_FFFF);
            }
            let top = 63 - value.leading_zeros();
            return Some(if f == Alu::BfindShift { bits - 1 - top } else { top }.into());
        }
        Alu::Brev => (ua.reverse_bits() >> (64 - bits)) as i128,
        Alu::Clz => return Some((ua.leading_zeros() - (64 - bits)).into()),
        Alu::Popc => return Some(ua.count_ones().into()),
        Alu::Prmt => {
            let all = (ub << 32 | ua).to_le_bytes();
            let mut d = 0u64;
            for i in 0..4 {
                let pick = c >> (4 * i) & 0xF;
                let byte = all[pick as usize & 7];
                let byte = if pick & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
                d |= u64::from(byte) << (8 * i);
            }
            d as i128
        }
        Alu::ShfLWrap | Alu::ShfLClamp | Alu::ShfRWrap | Alu::ShfRClamp => {
            let by = match f {
                Alu::ShfLWrap | Alu::ShfRWrap => c as u32 & 31,
                _ => (c as u32).min(32),
            };
            let both = ub << 32 | ua;
            let d = match f {
                Alu::ShfLWrap | Alu::ShfLClamp => ((both as u128) << by >> 32) as u64,
                _ => both >> by,
            };
            (d & 0xFFFF_FFFF) as i128
        }
        Alu::Lop3 => {
            let mut d = 0u64;
            for i in 0..32 {
                let index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1;
                d |= (e >> index & 1) << i;
            }
            d as i128
        }
        _ => return None,
    };
    Some(d as u64 & ones(ty))
}

/// A 16-bit floating-point number as FP32.
pub(crate) fn half_to_f32(x: u16, ty: Ty) -> f32 {
    if ty == Ty::BF16 {
        return f32::from_bits(u32::from(x) << 16);
    }
    let (sign, exponent, fraction) = (u32::from(x >> 15) << 31, u32::from(x >> 10 & 31), u32::from(x & 0x3FF));
    let magnitude = match (exponent, fraction) {
        (0, _) => fraction as f32 * 2f32.powi(-24),
        (31, 0) => f32::INFINITY,
        (31, _) => f32::NAN,
        _ => f32::from_bits((exponent + 112) << 23 | fraction << 13),
    };
    f32::from_bits(magnitude.to_bits() | sign)
}

/// FP32 as a 16-bit floating-point number.
pub(crate) fn f32_to_half(x: f32, ty: Ty, round: Round) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    if x.is_nan() {
        return 0x7FFF;
    }
    if ty == Ty::BF16 {
        if round == Round::Zero || x.is_infinite() {
            return (bits >> 16) as u16;
        }
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16;
    }
    let magnitude = f64::from(x.abs());
    if magnitude == 0.0 {
        return sign;
    }
    // The unit of the last place at this size.
    let exponent = (magnitude.to_bits() >> 52) as i32 - 1023;
    let unit = exponent.max(-14) - 10;
    let scaled = magnitude * 2f64.powi(-unit);
    let whole = if round == Round::Zero {
        scaled.floor()
    } else {
        scaled.round_ties_even()
    };
    let value = whole * 2f64.powi(unit);
    if value >= 65536.0 {
        return sign | if round == Round::Zero { 0x7BFF } else { 0x7C00 };
    }
    let exponent = ((value.to_bits() >> 52) as i32 - 1023).max(-15);
    if value < 2f64.powi(-14) {
        return sign | (value * 2f64.powi(24)) as u16;
    }
    let fraction = ((value / 2f64.powi(exponent) - 1.0) * 1024.0) as u16;
    sign | ((exponent + 15) as u16) << 10 | fraction
}

fn round_to_integer(x: f64, round: Round) -> f64 {
    match round {
        Round::Near => x.round_ties_even(),
        Round::Away => x.round(),
        Round::Zero => x.trunc(),
        Round::Down => x.floor(),
        Round::Up => x.ceil(),
    }
}

/// `cvt` of one lane.
pub(crate) fn convert(to: Ty, from: Ty, mode: Mode, a: u64) -> Option<u64> {
    if from.float() {
        let x = match from {
            Ty::F32 | Ty::Tf32 => flush(f32::from_bits(a as u32), mode.ftz) as f64,
            Ty::F64 => f64::from_bits(a),
            _ => half_to_f32(a as u16, from) as f64,
        };
        return match to {
            Ty::F32 => {
                let d = if mode.integer {
                    round_to_integer(x, mode.round) as f32
                } else {
                    round32(x, 0.0, mode.round)
                };
                let d = if mode.relu && d < 0.0 { 0.0 } else { d };
                Some(saturate(flush(canonical(d), mode.ftz), mode.sat).to_bits().into())
            }
            Ty::F64 => {
                let d = if mode.integer {
                    round_to_integer(x, mode.round)
                } else {
                    x
                };
                Some(d.to_bits())
            }
            Ty::Tf32 => Some(to_tf32(x as f32, mode.round).to_bits().into()),
            Ty::F16 | Ty::BF16 => {
                if from == Ty::F64 && mode.round != Round::Near {
                    return None;
                }
                let x = if mode.relu && x < 0.0 { 0.0 } else { x };
                Some(f32_to_half(x as f32, to, mode.round).into())
            }
            _ => {
                if x.is_nan() {
                    return Some(match to {
                        Ty::U64 | Ty::S64 => 1 << 63,
                        _ if from == Ty::F64 => 0x8000_0000 & ones(to),
                        _ => 0,
                    });
                }
                let d = round_to_integer(x, mode.round);
                let (low, high) = limits(to);
                Some((d as i128).clamp(low, high) as u64 & ones(to))
            }
        };
    }
    let x = extend(a, from);
    match to {
        Ty::F32 => {
            let s = x as f64;
            let e = (x - s as i128) as f64;
            Some(round32(s, e, mode.round).to_bits().into())
        }
        Ty::F64 => {
            let d = x as f64;
            if mode.round != Round::Near && d as i128 != x {
                return None;
            }
            Some(d.to_bits())
        }
        Ty::F16 | Ty::BF16 => Some(f32_to_half(x as f32, to, mode.round).into()),
        _ => {
            let x = if mode.sat {
                let (low, high) = limits(to);
                x.clamp(low, high)
            } else {
                x
            };
            // Registers are wider than narrow types: the value is extended to the register.
            let all = if to.size() < 4 && to.signed() {
                x as i32 as u32 as u64
            } else {
                x as u64 & ones(to)
            };
            Some(if to.wide() { x as u64 } else { all & 0xFFFF_FFFF })
        }
    }
}

fn limits(ty: Ty) -> (i128, i128) {
    let bits = ty.size() * 8;
    if ty.signed() {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    }
}

/// FP32 with ten bits after the point.
pub(crate) fn to_tf32(x: f32, round: Round) -> f32 {
    const LOW: u32 = 13;
    let bits = x.to_bits();
    if !x.is_finite() {
        return canonical(x);
    }
    let half = 1 << (LOW - 1);
    let rounded = match round {
        Round::Zero => bits,
        Round::Away => bits.wrapping_add(half),
        _ => bits.wrapping_add(half - 1 + (bits >> LOW & 1)),
    };
    f32::from_bits(rounded & !((1 << LOW) - 1))
}

/// A comparison of one lane.
pub(crate) fn compare(cmp: Cmp, ty: Ty, ftz: bool, a: u64, b: u64) -> bool {
    let order = if ty.float() {
        let value = |x: u64| match ty {
            Ty::F32 => f64::from(flush(f32::from_bits(x as u32), ftz)),
            Ty::F64 => f64::from_bits(x),
            _ => half_to_f32(x as u16, ty).into(),
        };
        value(a).partial_cmp(&value(b))
    } else {
        Some(extend(a, ty).cmp(&extend(b, ty)))
    };
    let Some(order) = order else {
        return matches!(
            cmp,
            Cmp::Equ | Cmp::Neu | Cmp::Ltu | Cmp::Leu | Cmp::Gtu | Cmp::Geu | Cmp::Nan
        );
    };
    match cmp {
        Cmp::Eq | Cmp::Equ => order.is_eq(),
        Cmp::Ne | Cmp::Neu => order.is_ne(),
        Cmp::Lt | Cmp::Ltu => order.is_lt(),
        Cmp::Le | Cmp::Leu => order.is_le(),
        Cmp::Gt | Cmp::Gtu => order.is_gt(),
        Cmp::Ge | Cmp::Geu => order.is_ge(),
        Cmp::Num => true,
        Cmp::Nan => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODE: Mode = Mode {
        round: Round::Near,
        ftz: false,
        sat: false,
        integer: false,
        nan: false,
        relu: false,
    };

    fn float(f: Alu, round: Round, args: [f32; 3]) -> f32 {
        let [a, b, c] = args.map(|x| u64::from(x.to_bits()));
        f32::from_bits(scalar(f, Ty::F32, Mode { round, ..MODE }, a, b, c, 0).unwrap() as u32)
    }

    #[test]
    fn directed_rounding_encloses_the_exact_result() {
        let numbers = [1.0f32, 1.0 / 3.0, 1e-30, 7e20, -3.3, 1.0 + f32::EPSILON, 1e-45, -1e-40];
        for a in numbers {
            for b in numbers {
                for c in numbers {
                    let [down, near, up] = [Round::Down, Round::Near, Round::Up].map(|r| float(Alu::Fma, r, [a, b, c]));
                    assert!(down <= near && near <= up, "{a} {b} {c}: {down} {near} {up}");
                    assert!(near == down || near == up, "{a} {b} {c}: {down} {near} {up}");
                    assert!(down == up || down.next_up() == up, "{a} {b} {c}: {down} {up}");
                }
            }
        }
    }

    #[test]
    fn bit_fields() {
        let op = |f, a, b, c, e| scalar(f, Ty::B32, MODE, a, b, c, e).unwrap();
        assert_eq!(op(Alu::Bfi, 1, 0x0FFF_FFFF, 31, 1), 0x8FFF_FFFF);
        assert_eq!(op(Alu::Prmt, 0x3322_1100, 0x7766_5544, 0x7610, 0), 0x7766_1100);
        assert_eq!(op(Alu::Brev, 1, 0, 0, 0), 0x8000_0000);
        assert_eq!(scalar(Alu::BfindShift, Ty::U32, MODE, 0x8000_0000, 0, 0, 0), Some(0));
        assert_eq!(scalar(Alu::Bfind, Ty::U32, MODE, 0, 0, 0, 0), Some(0xFFFF_FFFF));
        assert_eq!(
            scalar(Alu::MulHi, Ty::U32, MODE, 0xFFFF_FFFF, 0xFFFF_FFFF, 0, 0),
            Some(0xFFFF_FFFE)
        );
        assert_eq!(scalar(Alu::Lop3, Ty::B32, MODE, 0b1100, 0b1010, 0, 0xC0), Some(0b1000));
    }

    #[test]
    fn conversions() {
        let to = |to, from, round, x: f32| {
            convert(
                to,
                from,
                Mode {
                    round,
                    integer: true,
                    ..MODE
                },
                x.to_bits().into(),
            )
            .unwrap()
        };
        assert_eq!(to(Ty::S32, Ty::F32, Round::Zero, -1.5) as i32, -1);
        assert_eq!(to(Ty::S32, Ty::F32, Round::Near, 2.5) as i32, 2);
        assert_eq!(to(Ty::U32, Ty::F32, Round::Zero, -7.0), 0);
        assert_eq!(to(Ty::S32, Ty::F32, Round::Zero, 1e20) as i32, i32::MAX);
        assert_eq!(convert(Ty::S64, Ty::S32, MODE, 0xFFFF_FFFF), Some(u64::MAX));
        assert_eq!(convert(Ty::S32, Ty::S8, MODE, 0x80), Some(0xFFFF_FF80));
        for half in 0..=u16::MAX {
            let x = half_to_f32(half, Ty::F16);
            if !x.is_nan() {
                assert_eq!(f32_to_half(x, Ty::F16, Round::Near), half, "{half:#x} {x}");
            }
        }
        assert_eq!(to_tf32(f32::from_bits(0x3F80_1000), Round::Away).to_bits(), 0x3F80_2000);
        assert_eq!(to_tf32(f32::from_bits(0x3F80_1000), Round::Near).to_bits(), 0x3F80_0000);
    }

    #[test]
    fn comparisons_with_nan() {
        let nan = u64::from(f32::NAN.to_bits());
        assert!(!compare(Cmp::Ge, Ty::F32, false, nan, 0));
        assert!(compare(Cmp::Geu, Ty::F32, false, nan, 0));
        assert!(!compare(Cmp::Ne, Ty::F32, false, nan, nan));
        assert!(compare(Cmp::Lt, Ty::S32, false, 0xFFFF_FFFF, 0));
        assert!(!compare(Cmp::Lt, Ty::U32, false, 0xFFFF_FFFF, 0));
    }
}
