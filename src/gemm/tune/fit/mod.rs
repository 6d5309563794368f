//! Costs from measured times. A [`Sweep`] holds the plans of many problems, what they have to do and what they took; [`Sweep::fit`]
//! looks for the costs by which the planner chooses best among them, and [`Sweep::losses`] tells how well it chooses. Pure
//! arithmetic: `examples/calibrate` measures.
//!
//! Predictions are fitted first: coordinate descent on the error of their logarithms, where plans count the more the closer they are
//! to the fastest one. Then choices: the same descent on what they lose against the fastest plans, with a little of the error, so
//! that predictions stay times. A choice is softened for that (the plan that is predicted to be the fastest by far is taken with
//! certainty, those that are predicted to be about as fast with about the same probability), so that costs are found by which
//! choices are safe, and not those that happen to be right on the problems of the sweep.

mod descent;
mod figures;
mod parameters;
mod start;
mod sweep;
#[cfg(test)]
mod tests;

pub use figures::{Figures, CLOSE};
pub use start::starting_costs;
pub use sweep::{Loss, Prediction, Sweep, Timed};

use crate::gemm::kernel::costs::{Costs, Origin};
use crate::gemm::problem::Precision;
use descent::Descent;
use parameters::Parameter;
use start::something_to_fit;
use sweep::Row;

/// Costs of the same GPU that a fit begins with count as much as so many problems that are at hand: where these are fewer, parameters move so
/// much harder. By a fit to 459 of 612 drawn FP32 shapes and the others as often as it goes, choices lose 1.78 % with inertia as it is for
/// thousands of shapes, 1.57 % with four times that, 1.30 % with sixteen times and 1.43 % with fifty times, of 1.63 % before.
const KNOWN_PROBLEMS: f64 = 7300.0;
/// Costs of another GPU hold predictions by so much of the inertia. Fitted to 1600 FP32 and 1600 BF16 shapes of an H100 from an H200's
/// costs, choices among 200 others lose 1.14 % of the shortest time (strict FP32), and 1.44 % with all of it.
const FOREIGN: f64 = 0.02;
/// What begins at 0 begins to move at this part of a guess.
const FIRST_PART: f64 = 0.1;

/// Which costs a fit changes; all others are held.
#[derive(Clone, Copy)]
pub struct Moving<'a> {
    /// The kernels whose costs do.
    pub kernels: &'a dyn Fn(&str) -> bool,
    /// Whether what kernels have in common does.
    pub shared: bool,
    /// Whether these kernels are new or have changed: then costs of the same GPU from before say no more of them than another GPU's.
    pub changed: bool,
}

impl Moving<'_> {
    pub const ALL: Moving<'static> = Moving {
        kernels: &|_| true,
        shared: true,
        changed: false,
    };
}

impl Sweep {
    /// The costs by which the planner chooses best among these plans, looked for from `start` on. Kernels of which the sweep has
    /// no plans keep their costs.
    ///
    /// Kernels for 32 bits and for 16 are fitted by themselves, with what they have in common: they err in other ways, and fitted together
    /// choices among both were worse.
    pub fn fit(&self, start: &Costs, gpu: &str, moving: Moving) -> Costs {
        let measured = |row: &&Row| row.us.is_some();
        let halves = [false, true].map(|half| self.rows.iter().filter(measured).any(|row| row.half == half));
        let has_rows = |name: &str| {
            let rows = self.rows.iter().filter(measured);
            rows.map(|row| &self.kernels[row.kernel]).any(|kernel| kernel == name)
        };
        let fitted = |name: &str| (moving.kernels)(name) && has_rows(name);
        let guessed = &something_to_fit(start, halves.map(|half| half && moving.shared), fitted);
        let (mut anchor, guess) = (self.values(start), self.values(guessed));
        let mut values = guess.clone();
        for parameter in Parameter::all(&guess) {
            if *parameter.get(&mut anchor) == 0.0 {
                *parameter.get(&mut values) *= FIRST_PART;
            }
        }
        let stages = [false, true].into_iter().zip(halves).filter(|(_, any)| *any);
        for (half, _) in stages {
            let moves = |parameter: Parameter| match parameter.kernel() {
                Some(kernel) => (moving.kernels)(&self.kernels[kernel]),
                None => moving.shared && parameter.half().is_none_or(|of| of == half),
            };
            for choosing in [0.0, 1.0] {
                let mut descent = Descent::new(self, values, choosing, half, &moves);
                if start.gpu == gpu && !moving.changed {
                    let choices = if half { 1.0 } else { Precision::ALL.len() as f64 };
                    descent.strength = (KNOWN_PROBLEMS * choices / descent.count).max(1.0);
                } else if choosing == 0.0 {
                    descent.strength = FOREIGN;
                }
                if choosing == 0.0 {
                    descent.anchor = anchor.clone();
                    descent.guess = guess.clone();
                }
                values = descent.run();
            }
        }
        let mut costs = guessed.clone();
        costs.gpu = gpu.into();
        costs.origin = Origin::Given;
        for parameter in Parameter::all(&values) {
            let value = parameter.get(&mut values);
            *value = three_digits(*value);
        }
        for cost in values.kernels.iter_mut().filter(|cost| cost.resident == 1) {
            cost.solo = cost.full;
            cost.beside_us = 0.0;
        }
        [costs.shared, costs.shared_16] = values.shared;
        for (name, kernel) in self.kernels.iter().zip(values.kernels) {
            costs.kernels.insert(name.clone(), kernel);
        }
        costs
    }
}

fn three_digits(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}
