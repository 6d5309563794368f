//! The numbers that are multiplied: distributions that networks have, and cases that are hard for split operands.
#![cfg_attr(not(feature = "cuda"), allow(dead_code))]

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A kind of operands.
pub struct Numbers {
    pub name: &'static str,
    pub what: &'static str,
    /// Changes a pair of dense matrices of normal numbers, A as rows of `k` and B as rows of `k` (columns of the product).
    shape: fn(&mut StdRng, &mut [f32], &mut [f32], usize),
    /// Whether it is one of the distributions that are measured for every k; the others have one k.
    pub every_k: bool,
}

pub const ALL: &[Numbers] = &[
    Numbers::distribution("normal", "mean 0, deviation 1", |_, _, _, _| {}),
    Numbers::distribution("uniform [0,1]", "every product is positive", |rng, a, b, _| {
        each(a, b, |_| rng.random())
    }),
    Numbers::distribution("uniform [-1,1]", "", |rng, a, b, _| {
        each(a, b, |_| rng.random_range(-1.0..1.0))
    }),
    Numbers::distribution("normal * 2^U(-12,12)", "a wide range", |rng, a, b, _| {
        each(a, b, |x| x * rng.random_range(-12f32..12.0).exp2())
    }),
    Numbers::distribution("normal * 2^U(-20,20)", "a wider range", |rng, a, b, _| {
        each(a, b, |x| x * rng.random_range(-20f32..20.0).exp2())
    }),
    Numbers::hard("one row 2^60", "row 7 of A is 2^60 times the others", |_, a, _, k| {
        a[7 * k..8 * k].iter_mut().for_each(|x| *x *= 60f32.exp2())
    }),
    Numbers::hard(
        "cancelling",
        "the second half of each sum almost undoes the first",
        |rng, a, b, k| {
            for (a, b) in a.chunks_exact_mut(k).zip(b.chunks_exact_mut(k)) {
                for i in 0..k / 2 {
                    a[k / 2 + i] = a[i];
                    b[k / 2 + i] = -b[i] * (1.0 + rng.random_range(-1f32..1.0) * (-10f32).exp2());
                }
            }
        },
    ),
    Numbers::hard("2^-110", "tails close to the smallest numbers", |_, a, b, _| {
        a.iter_mut().for_each(|x| *x *= (-110f32).exp2());
        b.iter_mut().for_each(|x| *x *= 80f32.exp2());
    }),
    Numbers::hard("2^-125", "tails below the smallest numbers", |_, a, b, _| {
        a.iter_mut().for_each(|x| *x *= (-125f32).exp2());
        b.iter_mut().for_each(|x| *x *= 80f32.exp2());
    }),
    Numbers::hard("subnormal results", "products below 2^-126", |_, a, b, _| {
        a.iter_mut().for_each(|x| *x *= (-70f32).exp2());
        b.iter_mut().for_each(|x| *x *= (-65f32).exp2());
    }),
    Numbers::hard("near the largest", "A up to the largest FP32 number", |rng, a, b, _| {
        a.iter_mut()
            .for_each(|x| *x = f32::MAX * (1.0 - rng.random::<f32>() * (-12f32).exp2()));
        b.iter_mut().for_each(|x| *x *= (-20f32).exp2());
    }),
    Numbers::hard("overflowing sums", "some sums are beyond FP32", |_, a, b, _| {
        a.iter_mut().for_each(|x| *x = x.abs() * 124f32.exp2());
        b.iter_mut().for_each(|x| *x = x.abs() * (-6f32).exp2());
    }),
    Numbers::hard("infinities", "one in 100,000 is infinite", |rng, a, b, _| {
        each(a, b, |x| match rng.random_ratio(1, 100_000) {
            true => x.signum() * f32::INFINITY,
            false => x,
        })
    }),
    Numbers::hard("NaN", "one in 100,000 is NaN", |rng, a, b, _| {
        each(a, b, |x| if rng.random_ratio(1, 100_000) { f32::NAN } else { x })
    }),
];

fn each(a: &mut [f32], b: &mut [f32], mut change: impl FnMut(f32) -> f32) {
    a.iter_mut().chain(b).for_each(|x| *x = change(*x));
}

impl Numbers {
    const fn distribution(
        name: &'static str,
        what: &'static str,
        shape: fn(&mut StdRng, &mut [f32], &mut [f32], usize),
    ) -> Self {
        Numbers {
            name,
            what,
            shape,
            every_k: true,
        }
    }

    const fn hard(
        name: &'static str,
        what: &'static str,
        shape: fn(&mut StdRng, &mut [f32], &mut [f32], usize),
    ) -> Self {
        Numbers {
            every_k: false,
            ..Numbers::distribution(name, what, shape)
        }
    }

    /// A and B, both as rows of `k`; the same for the same sizes.
    pub fn draw(&self, rows_a: usize, rows_b: usize, k: usize) -> (Vec<f32>, Vec<f32>) {
        let mut rng = StdRng::seed_from_u64(20_240_229 + k as u64);
        let mut normal = |count: usize| -> Vec<f32> { (0..count).map(|_| normal(&mut rng)).collect() };
        let (mut a, mut b) = (normal(rows_a * k), normal(rows_b * k));
        (self.shape)(&mut rng, &mut a, &mut b, k);
        (a, b)
    }
}

/// Box and Muller's.
fn normal(rng: &mut StdRng) -> f32 {
    let radius = (-2.0 * (1.0 - rng.random::<f32>()).ln()).sqrt();
    radius * (std::f32::consts::TAU * rng.random::<f32>()).cos()
}
