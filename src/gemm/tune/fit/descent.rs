//! The search for better costs, one number at a time.

use super::parameters::Parameter;
use super::sweep::{Row, Sweep, Values};

// These numbers, `NEAR` and the inertias of `parameters.rs` are the best of ten sets: by them costs that were fitted to 1890 FP32 shapes chose best among the plans of 688 shapes of another
// seed. Of BF16, fitted to 1800 shapes, choices were as good with either inertia. Recordings of an H200 of 2026-11-24, which are not kept.
/// Differences of predicted times that decide no choice: about what predictions for other shapes are off by, one beside another.
const SOFTNESS: f64 = 0.02;
/// What the error of predictions counts for beside what choices lose. With less, predictions leave the times that they are of, for
/// the sake of choices on the shapes of the sweep.
const ERROR_SHARE: f64 = 0.6;
/// Errors below this count less and less.
const ERROR_OF_NO_MATTER: f64 = 0.05;
/// What it costs to move a parameter by a factor of e, where choices are fitted. With a tenth of that, costs went where the shapes at hand
/// drew them: choices lost 1.57 % of the shortest time among shapes of another seed, and 1.02 % with this (strict FP32; those that the fit
/// began with 1.08 %).
const INERTIA: f64 = 2e-3;
/// Rounds through all parameters.
const ROUNDS: usize = 40;
/// Parameters are moved by this part at first, and not by less than this in the end.
const STEPS: (f64, f64) = (0.25, 0.004);
/// So many rounds a parameter rests that could not be moved by the least.
const REST: usize = 3;
/// A round that improves the whole by less than this part is the last.
const WORTH_A_ROUND: f64 = 1e-4;

/// What a row contributes at present.
#[derive(Clone, Copy, Default)]
struct Part {
    /// How likely it is to be chosen, beside others of the same problem.
    likely: f64,
    /// Its error, as it counts.
    error: f64,
}

/// A search from some values to better ones, one parameter at a time.
pub struct Descent<'a> {
    sweep: &'a Sweep,
    /// Whether rows of 16 bits are fitted, and not those of 32.
    half: bool,
    values: Values,
    /// What parameters are held to, the more the further they go: where it began, or 0, which is as far from a guess as one factor of e.
    pub anchor: Values,
    pub guess: Values,
    /// How hard they are held.
    pub strength: f64,
    /// What losses of choices count for; 0: predictions alone.
    choosing: f64,
    /// Choices among plans that move.
    pub count: f64,
    parts: Vec<Part>,
    /// For each choice, the sum of `likely` and of `likely` times what is lost.
    sums: Vec<[f64; 2]>,
    parameters: Vec<Parameter>,
    /// The rows that each parameter concerns, of those that were measured: what was left out as far too slow would be far from
    /// being chosen.
    rows_of: Vec<Vec<usize>>,
    /// Changes of `sums`, 0 between two attempts, and which they are.
    changes: Vec<[f64; 2]>,
    touched: Vec<usize>,
    fresh: Vec<Part>,
}

impl<'a> Descent<'a> {
    pub fn new(sweep: &'a Sweep, values: Values, choosing: f64, half: bool, moves: &dyn Fn(Parameter) -> bool) -> Self {
        let of_half = |parameter: Parameter| {
            let mut rows = rows_of(sweep, &values, parameter);
            rows.retain(|&row| sweep.rows[row].half == half);
            rows
        };
        // What concerns no row stays where it is: with nothing to gain, it would go back to its anchor.
        let (parameters, rows_of) = Parameter::all(&values)
            .into_iter()
            .filter(|&parameter| moves(parameter))
            .map(|parameter| (parameter, of_half(parameter)))
            .filter(|(_, rows)| !rows.is_empty())
            .unzip();
        let mut descent = Descent {
            sweep,
            half,
            anchor: values.clone(),
            guess: values.clone(),
            strength: 1.0,
            values,
            choosing,
            count: sweep
                .choices
                .iter()
                .filter(|choice| choice.dtype.is_16_bit() == half)
                .count()
                .max(1) as f64,
            parts: Vec::new(),
            sums: Vec::new(),
            parameters,
            rows_of,
            changes: vec![[0.0; 2]; sweep.choices.len()],
            touched: Vec::new(),
            fresh: Vec::new(),
        };
        descent.sum_up();
        descent
    }

    fn part(&self, row: &Row) -> Part {
        let us = self.values.us(row);
        let behind = (us * row.regard / row.unit).ln() / SOFTNESS;
        let error = row.us.map_or(0.0, |measured| {
            let error = (us / measured).ln();
            let size = error.hypot(ERROR_OF_NO_MATTER) - ERROR_OF_NO_MATTER;
            row.weight * size
        });
        Part {
            // Sums of these are changed and changed back: they must not differ by too many digits.
            likely: (-behind).clamp(-300.0, 20.0).exp(),
            error,
        }
    }

    fn lost(&self, row: &Row, choice: usize) -> f64 {
        let best = self.sweep.choices[choice].best;
        row.us.map_or(0.0, |us| us / best - 1.0)
    }

    /// Everything anew: what changes bit by bit loses digits.
    fn sum_up(&mut self) {
        let part = |row: &Row| match row.half == self.half {
            true => self.part(row),
            false => Part::default(),
        };
        self.parts = self.sweep.rows.iter().map(part).collect();
        let sums = self.sweep.choices.iter().enumerate().map(|(at, choice)| {
            let rows = choice.rows.iter().filter(|&&row| self.sweep.rows[row].us.is_some());
            rows.fold([0.0; 2], |[sum, lost], &row| {
                let likely = self.parts[row].likely;
                [sum + likely, lost + likely * self.lost(&self.sweep.rows[row], at)]
            })
        });
        self.sums = sums.collect();
    }

    /// What is to become small.
    fn whole(&self) -> f64 {
        let lost: f64 = self.sums.iter().map(expected).sum();
        let error: f64 = self.parts.iter().map(|part| part.error).sum();
        self.weigh(lost, error)
    }

    fn weigh(&self, lost: f64, error: f64) -> f64 {
        let count = self.count;
        let error_share = if self.choosing > 0.0 { ERROR_SHARE } else { 1.0 };
        // As if every problem had three choices, as those in FP32 have.
        self.choosing * lost / count + error_share * 3.0 * error / count
    }

    fn inertia(&mut self, parameter: Parameter) -> f64 {
        let (here, there) = (*parameter.get(&mut self.values), *parameter.get(&mut self.anchor));
        let guess = *parameter.get(&mut self.guess);
        let moved = match (here > 0.0, there > 0.0) {
            (true, true) => (here / there).ln(),
            (true, false) if guess > 0.0 => here / guess,
            _ => 0.0,
        };
        let inertia = match self.choosing {
            0.0 => parameter.inertia(),
            _ => INERTIA,
        };
        self.strength * inertia * moved * moved
    }

    /// Moves a parameter, unless that makes the whole no better; whether it did.
    fn attempt(&mut self, number: usize, factor: f64) -> bool {
        let parameter = self.parameters[number];
        let before = (
            self.values.kernels.get(parameter.kernel().unwrap_or(0)).copied(),
            self.values.shared,
        );
        let inertia = self.inertia(parameter);
        parameter.scale(&mut self.values, factor);
        let inertia = self.inertia(parameter) - inertia;
        let rows = std::mem::take(&mut self.rows_of[number]);
        let mut error = 0.0;
        self.fresh.clear();
        for &at in &rows {
            let row = &self.sweep.rows[at];
            let (fresh, old) = (self.part(row), self.parts[at]);
            self.fresh.push(fresh);
            error += fresh.error - old.error;
            let more = fresh.likely - old.likely;
            if more != 0.0 && self.choosing > 0.0 {
                for &choice in &row.choices {
                    let lost = self.lost(row, choice);
                    let change = &mut self.changes[choice];
                    if *change == [0.0; 2] {
                        self.touched.push(choice);
                    }
                    change[0] += more;
                    change[1] += more * lost;
                }
            }
        }
        let mut lost = 0.0;
        for &choice in &self.touched {
            let ([sum, of_it], change) = (self.sums[choice], self.changes[choice]);
            lost += expected(&[sum + change[0], of_it + change[1]]) - expected(&[sum, of_it]);
        }
        let better = self.weigh(lost, error) + inertia < -1e-9;
        for &choice in &self.touched {
            if better {
                self.sums[choice][0] += self.changes[choice][0];
                self.sums[choice][1] += self.changes[choice][1];
            }
            self.changes[choice] = [0.0; 2];
        }
        self.touched.clear();
        if better {
            for (&at, &fresh) in rows.iter().zip(&self.fresh) {
                self.parts[at] = fresh;
            }
        } else {
            self.values.shared = before.1;
            if let (Some(kernel), Some(cost)) = (parameter.kernel(), before.0) {
                self.values.kernels[kernel] = cost;
            }
        }
        self.rows_of[number] = rows;
        better
    }

    pub fn run(mut self) -> Values {
        let mut steps = vec![STEPS.0; self.parameters.len()];
        // Rounds in which a parameter rests that is where it should be.
        let mut rests = vec![0; self.parameters.len()];
        for _ in 0..ROUNDS {
            let before = self.whole();
            for (number, (step, rest)) in steps.iter_mut().zip(&mut rests).enumerate() {
                if *rest > 0 {
                    *rest -= 1;
                    continue;
                }
                let factor = 1.0 + *step;
                let moved = self.attempt(number, factor) || self.attempt(number, 1.0 / factor);
                if !moved && *step <= STEPS.1 {
                    *rest = REST;
                }
                *step = if moved {
                    (*step * 1.3).min(STEPS.0)
                } else {
                    (*step * 0.5).max(STEPS.1)
                };
            }
            self.sum_up();
            let settled = steps.iter().all(|&step| step < 2.0 * STEPS.1);
            if before - self.whole() < WORTH_A_ROUND * before && settled {
                break;
            }
        }
        self.values
    }
}

/// The measured rows whose predictions depend on this parameter.
fn rows_of(sweep: &Sweep, values: &Values, parameter: Parameter) -> Vec<usize> {
    let measured = (0..sweep.rows.len()).filter(|&at| sweep.rows[at].us.is_some());
    if let Some(kernel) = parameter.kernel() {
        return measured.filter(|&at| sweep.rows[at].kernel == kernel).collect();
    }
    // Then nothing is hidden behind what takes longer.
    let mut values = values.clone();
    values.shared.iter_mut().for_each(|shared| shared.exposed = 0.5);
    let mut changed = values.clone();
    *parameter.get(&mut changed) *= 0.3;
    measured
        .filter(|&at| values.us(&sweep.rows[at]) != changed.us(&sweep.rows[at]))
        .collect()
}

/// What is lost on average, of the sum of likelihoods and that of what is lost.
fn expected(&[sum, lost]: &[f64; 2]) -> f64 {
    lost / sum.max(f64::MIN_POSITIVE)
}
