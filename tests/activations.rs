//! Activations and their slopes against FP64 over all of their range, beside candle's: no worse than those.

#[path = "../examples/accuracy/activations.rs"]
mod activations;
#[macro_use]
mod devices;

use activations::{exact, results, special, Direction, Errors, ACTIVATIONS, RANGES};
use candle_core::{Device, Result};
use candle_sgemm::Activation;

on_every_device!(
    functions_and_slopes_are_no_worse_than_candles,
    the_ends_of_the_range_are_no_worse_than_candles,
);

const EPSILON: f64 = f32::EPSILON as f64;
/// Candle's errors are the measure, but for what rounding costs: 1 ulp of the exponential, half a one each of 1 + e^x, of the
/// quotient and of the product with x.
const FORWARD: f64 = 2.5 * EPSILON;
/// Sums of two numbers of which the larger is about 1.
const BACKWARD: f64 = EPSILON;
/// The error of all together, if each were half an ulp.
const FROBENIUS: f64 = 0.5 * EPSILON;

/// Of each sign in each range.
const NUMBERS: u32 = 20_000;

fn functions_and_slopes_are_no_worse_than_candles(device: &Device) -> Result<()> {
    for activation in ACTIVATIONS {
        for direction in Direction::ALL {
            let rounding = match direction {
                Direction::Forward => FORWARD,
                Direction::Backward => BACKWARD,
            };
            for range in &RANGES {
                let numbers = range.numbers(NUMBERS);
                let [ours, candle] = results(activation, direction, &numbers, device)?
                    .map(|results| Errors::of(activation, direction, &numbers, &results));
                let what = format!(
                    "{activation:?} {}, {}: {ours:?}, candle {candle:?}",
                    direction.name(),
                    range.name
                );
                println!("{what}");
                assert!(ours.worst <= candle.worst.max(rounding), "{what}");
                assert!(ours.frobenius <= candle.frobenius.max(FROBENIUS), "{what}");
                assert!(ours.wrong_class <= candle.wrong_class, "{what}");
            }
        }
    }
    Ok(())
}

fn the_ends_of_the_range_are_no_worse_than_candles(device: &Device) -> Result<()> {
    let numbers = special();
    for activation in ACTIVATIONS {
        for direction in Direction::ALL {
            let [ours, candle] = results(activation, direction, &numbers, device)?;
            for ((&x, ours), candle) in numbers.iter().zip(ours).zip(candle) {
                let error = |result: f32| Errors::of(activation, direction, &[x], &[result]);
                let (ours, theirs) = (error(ours), error(candle));
                let what = format!(
                    "{activation:?} {} of {x:e}: {ours:?}, candle {theirs:?}",
                    direction.name()
                );
                assert!(ours.wrong_class <= theirs.wrong_class, "{what}");
                assert!(
                    ours.worst <= theirs.worst.max(FORWARD) || theirs.wrong_class > 0,
                    "{what}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn the_ranges_have_all_numbers_and_errors_are_seen() {
    assert_eq!(f32::from_bits(1), RANGES[0].numbers(1000)[0]);
    for range in &RANGES {
        let numbers = range.numbers(1000);
        assert!(numbers.len() >= 2000 && numbers.iter().all(|x| x.is_finite() && *x != 0.0));
        for activation in ACTIVATIONS {
            for direction in Direction::ALL {
                let right: Vec<f32> = numbers
                    .iter()
                    .map(|&x| exact(activation, direction, x) as f32)
                    .collect();
                let errors = Errors::of(activation, direction, &numbers, &right);
                assert!(
                    errors.worst <= 0.5 * EPSILON && errors.wrong_class == 0,
                    "{activation:?} {errors:?}"
                );
                let mut wrong = right.clone();
                wrong[7] += 1e-3 * wrong[7].abs().max(1.0);
                wrong[9] = f32::NAN;
                wrong[11] = f32::INFINITY;
                let errors = Errors::of(activation, direction, &numbers, &wrong);
                assert!(
                    errors.worst > 5e-4 && errors.wrong_class == 2,
                    "{activation:?} {errors:?}"
                );
            }
        }
    }
}

/// The closed forms of the slopes against differences of the functions, both in double precision.
#[test]
fn exact_slopes_are_those_of_the_exact_functions() {
    const STEP: f32 = 1.0 / 1024.0;
    for activation in ACTIVATIONS {
        for i in -8000..8000 {
            let x = i as f32 / 512.0;
            if activation == Activation::Relu && x.abs() <= STEP {
                continue;
            }
            let at = |x: f32| exact(activation, Direction::Forward, x);
            let difference = (at(x + STEP) - at(x - STEP)) / f64::from(2.0 * STEP);
            let slope = exact(activation, Direction::Backward, x);
            assert!(
                (difference - slope).abs() < 1e-5,
                "{activation:?} at {x}: {slope}, {difference}"
            );
        }
    }
}
