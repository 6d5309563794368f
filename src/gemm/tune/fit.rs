//! Costs from measured times. A [`Sweep`] holds the plans of many problems, what they have to do and what they took; [`Sweep::fit`]
//! looks for the costs by which the planner chooses best among them, and [`Sweep::losses`] tells how well it chooses. Pure
//! arithmetic: `examples/calibrate` measures.
//!
//! Predictions are fitted first: coordinate descent on the error of their logarithms, where plans count the more the closer they are
//! to the fastest one. Then choices: the same descent on what they lose against the fastest plans, with a little of the error, so
//! that predictions stay times. A choice is softened for that (the plan that is predicted to be the fastest by far is taken with
//! certainty, those that are predicted to be about as fast with about the same probability), so that costs are found by which
//! choices are safe, and not those that happen to be right on the problems of the sweep.

use crate::device::DeviceInfo;
use crate::gemm::kernel::costs::{Costs, KernelCost, Origin, SharedCosts};
use crate::gemm::operands::DType;
use crate::gemm::planner::plan::Plan;
use crate::gemm::planner::work::Work;
use crate::gemm::problem::{FoldedProblem, Precision};
use crate::gemm::schedule::cut::Cut;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

// These numbers are the best of ten sets: by them costs that were fitted to 1890 FP32 shapes chose best among the plans of 688 shapes of another
// seed. Of BF16, fitted to 1800 shapes, choices were as good with either inertia. Recordings of an H200 of 2026-11-24, which are not kept.
/// Differences of predicted times that decide no choice: about what predictions for other shapes are off by, one beside another.
const SOFTNESS: f64 = 0.02;
/// What the error of predictions counts for beside what choices lose. With less, predictions leave the times that they are of, for
/// the sake of choices on the shapes of the sweep.
const ERROR_SHARE: f64 = 0.6;
/// Errors below this count less and less.
const ERROR_OF_NO_MATTER: f64 = 0.05;
/// By this power of how much slower it is, a plan counts less for the error.
const NEAR: i32 = 2;
/// What it costs to move a parameter by a factor of e, where choices are fitted, and where predictions are. With a tenth of that, costs
/// went where the shapes at hand drew them: choices lost 1.57 % of the shortest time among shapes of another seed, and 1.02 % with these
/// (strict FP32; those that the fit began with 1.08 %).
const INERTIA: f64 = 2e-3;
const PREDICTION_INERTIA: f64 = 1e-4;
/// The same of a bandwidth, where predictions are fitted: few plans of a kernel are limited by memory, and without this some shape on
/// which another term is wrong decides what it takes where memory is the limit.
const BANDWIDTH_INERTIA: f64 = 3e-4;
/// Costs of the same GPU that a fit begins with count as much as so many problems that are at hand: where these are fewer, parameters move so
/// much harder. By a fit to 459 of 612 drawn FP32 shapes and the others as often as it goes, choices lose 1.78 % with inertia as it is for
/// thousands of shapes, 1.57 % with four times that, 1.30 % with sixteen times and 1.43 % with fifty times, of 1.63 % before.
const KNOWN_PROBLEMS: f64 = 7300.0;
/// What begins at 0 begins to move at this part of a guess.
const FIRST_PART: f64 = 0.1;
/// Rounds through all parameters.
const ROUNDS: usize = 40;
/// Parameters are moved by this part at first, and not by less than this in the end.
const STEPS: (f64, f64) = (0.25, 0.004);
/// So many rounds a parameter rests that could not be moved by the least.
const REST: usize = 3;
/// A round that improves the whole by less than this part is the last.
const WORTH_A_ROUND: f64 = 1e-4;

/// A plan of a problem, and the time that it took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// A name of the kernel table.
    pub kernel: String,
    /// How k is cut.
    pub cut: Cut,
    /// Whether A and B are repacked beforehand.
    pub repacked: [bool; 2],
    /// Its time, in µs.
    pub us: f64,
}

impl Timed {
    /// This plan took so long.
    pub fn new(plan: &Plan, us: f64) -> Self {
        Timed {
            kernel: plan.kernel.name.into(),
            cut: plan.cut,
            repacked: plan.repacks.map(|repack| repack.is_some()),
            us,
        }
    }

    fn is_of(&self, plan: &Plan) -> bool {
        let repacked = plan.repacks.map(|repack| repack.is_some());
        self.kernel == plan.kernel.name && self.cut == plan.cut && self.repacked == repacked
    }
}

/// What a measured plan took, and what was predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The plan, with its time.
    pub timed: Timed,
    /// What it has to do.
    pub work: Work,
    /// Its time by the costs in question, in µs.
    pub predicted_us: f64,
    /// By how much more than its time it counts, for the error that it may have.
    pub regard_for_error: f64,
}

/// A plan.
struct Row {
    kernel: usize,
    /// Whether elements have 16 bits.
    half: bool,
    cut: Cut,
    repacked: [bool; 2],
    work: Work,
    regard_for_error: f64,
    us: Option<f64>,
    /// Its time as a multiple of the fastest one's, among the choices where that is the least.
    behind: f64,
    /// What its error counts for.
    weight: f64,
    /// The time that counts as 1 among the choices that it belongs to.
    unit: f64,
    /// The choices that it belongs to.
    choices: Vec<usize>,
}

/// What the planner chooses among, for one problem at one precision.
struct Choice {
    dtype: DType,
    precision: Precision,
    rows: Vec<usize>,
    /// The shortest time among them.
    best: f64,
}

/// How a choice came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// What the elements are.
    pub dtype: DType,
    /// The precision that was asked for.
    pub precision: Precision,
    /// The chosen plan's time beyond the fastest one's, as a part of that; `None` if the chosen plan was not measured.
    pub lost: Option<f64>,
    /// The prediction of the chosen plan's time, as a multiple of that.
    pub foretold: Option<f64>,
    /// The chosen plan's time, in µs.
    pub us: Option<f64>,
}

/// The plans of many problems.
pub struct Sweep {
    device: DeviceInfo,
    kernels: Vec<String>,
    rows: Vec<Row>,
    choices: Vec<Choice>,
}

impl Sweep {
    /// No plans yet.
    pub fn new(device: DeviceInfo) -> Self {
        Sweep {
            device,
            kernels: Vec::new(),
            rows: Vec::new(),
            choices: Vec::new(),
        }
    }

    /// The plans of `problem` at every precision that makes a difference, as far as they are to be considered, and the times of
    /// those that were measured. `costs` say which kernels are candidates.
    pub fn add(&mut self, problem: &FoldedProblem, timed: &[Timed], costs: &Costs, consider: impl Fn(&Plan) -> bool) {
        let (device, first) = (self.device, self.rows.len());
        let mut plans: Vec<Plan> = Vec::new();
        // Products of 16 bits are the same at every precision.
        let dtype = problem.dtype();
        let precisions = match dtype.is_16_bit() {
            true => &Precision::ALL[..1],
            false => &Precision::ALL,
        };
        for &precision in precisions {
            let problem = problem.with_precision(precision);
            let mut rows = Vec::new();
            for plan in Plan::candidates(&problem, &device, costs).filter(&consider) {
                let same = |known: &Plan| {
                    known.kernel.name == plan.kernel.name && known.cut == plan.cut && known.repacks == plan.repacks
                };
                let at = match plans.iter().position(same) {
                    Some(at) => at,
                    None => {
                        let kernel = self.kernel(plan.kernel.costs_name());
                        self.rows.push(Row {
                            kernel,
                            half: dtype.is_16_bit(),
                            cut: plan.cut,
                            repacked: plan.repacks.map(|repack| repack.is_some()),
                            work: plan.work(&device),
                            regard_for_error: plan.regard_for_error(),
                            us: timed.iter().find(|timed| timed.is_of(&plan)).map(|timed| timed.us),
                            behind: f64::INFINITY,
                            weight: 0.0,
                            unit: 1.0,
                            choices: Vec::new(),
                        });
                        plans.push(plan);
                        plans.len() - 1
                    }
                };
                rows.push(first + at);
            }
            let times = rows.iter().filter_map(|&row| self.rows[row].us);
            let best = times.fold(f64::INFINITY, f64::min);
            if best.is_finite() {
                for &row in &rows {
                    let row = &mut self.rows[row];
                    row.choices.push(self.choices.len());
                    row.unit = best;
                    if let Some(us) = row.us {
                        row.behind = row.behind.min(us / best);
                        row.weight = row.behind.powi(-NEAR);
                    }
                }
                self.choices.push(Choice {
                    dtype,
                    precision,
                    rows,
                    best,
                });
            }
        }
        // Every problem counts the same.
        let rows = &mut self.rows[first..];
        let sum: f64 = rows.iter().map(|row| row.weight).sum();
        rows.iter_mut().for_each(|row| row.weight /= sum.max(f64::MIN_POSITIVE));
    }

    fn kernel(&mut self, name: &str) -> usize {
        self.kernels.iter().position(|known| known == name).unwrap_or_else(|| {
            self.kernels.push(name.into());
            self.kernels.len() - 1
        })
    }

    /// Whether there is nothing to fit to.
    pub fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    /// Plans that were measured.
    pub fn measured(&self) -> usize {
        self.rows.iter().filter(|row| row.us.is_some()).count()
    }

    /// What the planner's choices by these costs lose against the fastest plans.
    pub fn losses(&self, costs: &Costs) -> Vec<Loss> {
        let values = self.values(costs);
        let weights: Vec<f64> = self
            .rows
            .iter()
            .map(|row| values.us(row) * row.regard_for_error)
            .collect();
        let losses = self.choices.iter().map(|choice| {
            let chosen = choice.rows.iter().min_by(|&&x, &&y| weights[x].total_cmp(&weights[y]));
            let us = chosen.and_then(|&row| self.rows[row].us);
            Loss {
                dtype: choice.dtype,
                precision: choice.precision,
                lost: us.map(|us| us / choice.best - 1.0),
                foretold: chosen.and_then(|&row| Some(values.us(&self.rows[row]) / self.rows[row].us?)),
                us,
            }
        });
        losses.collect()
    }

    /// What was measured, and what these costs say of it.
    pub fn predictions(&self, costs: &Costs) -> Vec<Prediction> {
        let values = self.values(costs);
        let measured = self.rows.iter().filter_map(|row| {
            Some(Prediction {
                timed: Timed {
                    kernel: self.kernels[row.kernel].clone(),
                    cut: row.cut,
                    repacked: row.repacked,
                    us: row.us?,
                },
                work: row.work,
                predicted_us: values.us(row),
                regard_for_error: row.regard_for_error,
            })
        });
        measured.collect()
    }

    /// The median of how far predictions by these costs are off, as a part of the time, over plans at most half as fast again as
    /// the fastest.
    pub fn typical_error(&self, costs: &Costs) -> f64 {
        let values = self.values(costs);
        let near = self.rows.iter().filter_map(|row| {
            let us = row.us.filter(|_| row.behind < 1.5)?;
            Some((values.us(row) / us).ln().abs())
        });
        let mut errors: Vec<f64> = near.collect();
        errors.sort_by(f64::total_cmp);
        errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn values(&self, costs: &Costs) -> Values {
        let unknown = KernelCost {
            full: 0.5,
            solo: 0.5,
            resident: 1,
            setup_us: 4.0,
            wave_us: 4.0,
            bandwidth: 0.75,
            single_elements: 0.3,
            edges: 0.0,
            crowd: 0.0,
            other_order: 0.0,
            ragged_us: 0.0,
            batch_us: 0.0,
            general_us: 0.0,
            general: 0.0,
            beside_us: 0.0,
            cut_us: 0.0,
            share_us: 0.0,
            slice_us: 0.0,
            flow: 0.0,
            curve: 1.0,
        };
        let of = |name: &String| costs.kernels.get(name).copied().unwrap_or(unknown);
        Values {
            shared: [costs.shared, costs.shared_16],
            kernels: self.kernels.iter().map(of).collect(),
        }
    }

    /// The costs by which the planner chooses best among these plans, looked for from `start` on. Kernels of which the sweep has
    /// no plans keep their costs.
    ///
    /// Kernels for 32 bits and for 16 are fitted by themselves, with what they have in common: they err in other ways, and fitted together
    /// choices among both were worse.
    ///
    /// With `only`, the costs of the kernels for which it is true are fitted, and all others are held.
    pub fn fit(&self, start: &Costs, gpu: &str, only: Option<&dyn Fn(&str) -> bool>) -> Costs {
        let measured = |row: &&Row| row.us.is_some();
        let halves = [false, true].map(|half| self.rows.iter().filter(measured).any(|row| row.half == half));
        let has_rows = |name: &str| {
            let rows = self.rows.iter().filter(measured);
            rows.map(|row| &self.kernels[row.kernel]).any(|kernel| kernel == name)
        };
        let fitted = |name: &str| only.is_none_or(|only| only(name)) && has_rows(name);
        let guessed = &something_to_fit(start, halves.map(|half| half && only.is_none()), fitted);
        let (mut anchor, guess) = (self.values(start), self.values(guessed));
        let mut values = guess.clone();
        for parameter in Parameter::all(&guess) {
            if *parameter.get(&mut anchor) == 0.0 {
                *parameter.get(&mut values) *= FIRST_PART;
            }
        }
        let stages = [false, true].into_iter().zip(halves).filter(|(_, any)| *any);
        for (half, _) in stages {
            let moves = |parameter: Parameter| match (only, parameter.kernel()) {
                (Some(only), Some(kernel)) => only(&self.kernels[kernel]),
                (Some(_), None) => false,
                (None, _) => parameter.half().is_none_or(|of| of == half),
            };
            for choosing in [0.0, 1.0] {
                let mut descent = Descent::new(self, values, choosing, half, &moves);
                if start.gpu == gpu {
                    let choices = if half { 1.0 } else { Precision::ALL.len() as f64 };
                    descent.strength = (KNOWN_PROBLEMS * choices / descent.count).max(1.0);
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

/// Costs as they are fitted: by the number of the kernel.
#[derive(Clone)]
struct Values {
    /// Of kernels for 32 bits and for 16.
    shared: [SharedCosts; 2],
    kernels: Vec<KernelCost>,
}

impl Values {
    fn us(&self, row: &Row) -> f64 {
        row.work
            .us(&self.kernels[row.kernel], &self.shared[usize::from(row.half)])
    }
}

/// A number that is fitted.
#[derive(Clone, Copy)]
enum Parameter {
    Full(usize),
    Solo(usize),
    SetupUs(usize),
    WaveUs(usize),
    SingleElements(usize),
    Edges(usize),
    Crowd(usize),
    OtherOrder(usize),
    RaggedUs(usize),
    BatchUs(usize),
    GeneralUs(usize),
    General(usize),
    BesideUs(usize),
    CutUs(usize),
    ShareUs(usize),
    SliceUs(usize),
    Flow(usize),
    Curve(usize),
    Bandwidth(usize),
    Shared(bool, fn(&mut SharedCosts) -> &mut f64),
    ClusterUs(bool, usize),
    ClusterRoom(bool, usize),
}

impl Parameter {
    fn all(values: &Values) -> Vec<Parameter> {
        let mut all = Vec::new();
        for (kernel, cost) in values.kernels.iter().enumerate() {
            all.extend([
                Parameter::Full(kernel),
                Parameter::SetupUs(kernel),
                Parameter::WaveUs(kernel),
                Parameter::Bandwidth(kernel),
                Parameter::SingleElements(kernel),
                Parameter::Edges(kernel),
                Parameter::Crowd(kernel),
                Parameter::OtherOrder(kernel),
                Parameter::RaggedUs(kernel),
                Parameter::BatchUs(kernel),
                Parameter::GeneralUs(kernel),
                Parameter::General(kernel),
                Parameter::CutUs(kernel),
                Parameter::ShareUs(kernel),
                Parameter::SliceUs(kernel),
                Parameter::Flow(kernel),
            ]);
            if cost.resident > 1 {
                all.extend([
                    Parameter::Solo(kernel),
                    Parameter::BesideUs(kernel),
                    Parameter::Curve(kernel),
                ]);
            }
        }
        let shared: [fn(&mut SharedCosts) -> &mut f64; 27] = [
            |shared| &mut shared.tail,
            |shared| &mut shared.launch_us,
            |shared| &mut shared.early_launch_us,
            |shared| &mut shared.pairs_us,
            |shared| &mut shared.queue_slices_us,
            |shared| &mut shared.l2,
            |shared| &mut shared.memory_start_us,
            |shared| &mut shared.far,
            |shared| &mut shared.off_sectors,
            |shared| &mut shared.uneven,
            |shared| &mut shared.l2_off_sectors,
            |shared| &mut shared.exposed,
            |shared| &mut shared.clusters.round_us,
            |shared| &mut shared.parallel.start_us,
            |shared| &mut shared.parallel.bandwidth,
            |shared| &mut shared.stream_k.finish,
            |shared| &mut shared.stream_k.piece,
            |shared| &mut shared.stream_k.straddle,
            |shared| &mut shared.clusters.sums_us,
            |shared| &mut shared.repack.copy.start_us,
            |shared| &mut shared.repack.copy.bandwidth,
            |shared| &mut shared.repack.transpose.start_us,
            |shared| &mut shared.repack.transpose.bandwidth,
            |shared| &mut shared.repack.transpose_unaligned.start_us,
            |shared| &mut shared.repack.transpose_unaligned.bandwidth,
            |shared| &mut shared.repack.gaps,
            |shared| &mut shared.repack.access,
        ];
        for half in [false, true] {
            all.extend(shared.map(|of| Parameter::Shared(half, of)));
            for cut in 0..values.shared[0].clusters.us.len() {
                all.extend([Parameter::ClusterUs(half, cut), Parameter::ClusterRoom(half, cut)]);
            }
        }
        all
    }

    fn get(self, values: &mut Values) -> &mut f64 {
        match self {
            Parameter::Full(kernel) => &mut values.kernels[kernel].full,
            Parameter::Solo(kernel) => &mut values.kernels[kernel].solo,
            Parameter::SetupUs(kernel) => &mut values.kernels[kernel].setup_us,
            Parameter::WaveUs(kernel) => &mut values.kernels[kernel].wave_us,
            Parameter::SingleElements(kernel) => &mut values.kernels[kernel].single_elements,
            Parameter::Edges(kernel) => &mut values.kernels[kernel].edges,
            Parameter::Crowd(kernel) => &mut values.kernels[kernel].crowd,
            Parameter::OtherOrder(kernel) => &mut values.kernels[kernel].other_order,
            Parameter::RaggedUs(kernel) => &mut values.kernels[kernel].ragged_us,
            Parameter::BatchUs(kernel) => &mut values.kernels[kernel].batch_us,
            Parameter::GeneralUs(kernel) => &mut values.kernels[kernel].general_us,
            Parameter::General(kernel) => &mut values.kernels[kernel].general,
            Parameter::BesideUs(kernel) => &mut values.kernels[kernel].beside_us,
            Parameter::CutUs(kernel) => &mut values.kernels[kernel].cut_us,
            Parameter::ShareUs(kernel) => &mut values.kernels[kernel].share_us,
            Parameter::SliceUs(kernel) => &mut values.kernels[kernel].slice_us,
            Parameter::Flow(kernel) => &mut values.kernels[kernel].flow,
            Parameter::Curve(kernel) => &mut values.kernels[kernel].curve,
            Parameter::Bandwidth(kernel) => &mut values.kernels[kernel].bandwidth,
            Parameter::Shared(half, of) => of(&mut values.shared[usize::from(half)]),
            Parameter::ClusterUs(half, cut) => &mut values.shared[usize::from(half)].clusters.us[cut],
            Parameter::ClusterRoom(half, cut) => &mut values.shared[usize::from(half)].clusters.room[cut],
        }
    }

    /// Multiplies the number by `factor`, as far as it may go.
    fn scale(self, values: &mut Values, factor: f64) {
        // From 0 no factor leads away.
        let (least, most) = match self {
            Parameter::Full(_) | Parameter::Solo(_) | Parameter::Bandwidth(_) => (0.002, 1.5),
            Parameter::SetupUs(_) => (0.02, 100.0),
            Parameter::WaveUs(_)
            | Parameter::SingleElements(_)
            | Parameter::Edges(_)
            | Parameter::Crowd(_)
            | Parameter::OtherOrder(_)
            | Parameter::RaggedUs(_) => (0.01, 30.0),
            Parameter::Flow(_) => (0.02, 1.0),
            Parameter::Curve(_) => (0.2, 3.0),
            Parameter::GeneralUs(_)
            | Parameter::General(_)
            | Parameter::BatchUs(_)
            | Parameter::BesideUs(_)
            | Parameter::CutUs(_)
            | Parameter::ShareUs(_)
            | Parameter::SliceUs(_) => (0.01, 30.0),
            Parameter::ClusterRoom(..) => (0.3, 1.0),
            Parameter::Shared(..) | Parameter::ClusterUs(..) => (0.01, 20.0),
        };
        let value = self.get(values);
        *value = (*value * factor).clamp(least, most);
        if let Parameter::Full(kernel) | Parameter::Solo(kernel) = self {
            let cost = &mut values.kernels[kernel];
            // Less would say that all together are done before one alone.
            cost.solo = match cost.resident {
                1 => cost.full,
                resident => cost.solo.clamp(cost.full / f64::from(resident), cost.full),
            };
        }
    }

    /// Whether it concerns plans for 16 bits alone, or those for 32; `None`: those of its kernel.
    fn half(self) -> Option<bool> {
        match self {
            Parameter::Shared(half, _) | Parameter::ClusterUs(half, _) | Parameter::ClusterRoom(half, _) => Some(half),
            _ => None,
        }
    }

    /// The kernel whose plans it concerns; `None`: those of all.
    fn kernel(self) -> Option<usize> {
        match self {
            Parameter::Full(kernel)
            | Parameter::Solo(kernel)
            | Parameter::SetupUs(kernel)
            | Parameter::WaveUs(kernel)
            | Parameter::Bandwidth(kernel)
            | Parameter::SingleElements(kernel)
            | Parameter::Edges(kernel)
            | Parameter::Crowd(kernel)
            | Parameter::OtherOrder(kernel)
            | Parameter::RaggedUs(kernel)
            | Parameter::BatchUs(kernel)
            | Parameter::GeneralUs(kernel)
            | Parameter::General(kernel)
            | Parameter::BesideUs(kernel)
            | Parameter::Flow(kernel)
            | Parameter::Curve(kernel)
            | Parameter::CutUs(kernel)
            | Parameter::ShareUs(kernel)
            | Parameter::SliceUs(kernel) => Some(kernel),
            _ => None,
        }
    }
}

fn three_digits(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}

/// What a row contributes at present.
#[derive(Clone, Copy, Default)]
struct Part {
    /// How likely it is to be chosen, beside others of the same problem.
    likely: f64,
    /// Its error, as it counts.
    error: f64,
}

/// A search from some values to better ones, one parameter at a time.
struct Descent<'a> {
    sweep: &'a Sweep,
    values: Values,
    /// What parameters are held to, the more the further they go: where it began, or 0, which is as far from a guess as one factor of e.
    anchor: Values,
    guess: Values,
    /// How hard they are held.
    strength: f64,
    /// What losses of choices count for; 0: predictions alone.
    choosing: f64,
    /// Choices among plans that move.
    count: f64,
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
    fn new(sweep: &'a Sweep, values: Values, choosing: f64, half: bool, moves: &dyn Fn(Parameter) -> bool) -> Self {
        let mut parameters = Parameter::all(&values);
        parameters.retain(|&parameter| moves(parameter));
        let of_half = |&parameter: &Parameter| {
            let mut rows = rows_of(sweep, &values, parameter);
            rows.retain(|&row| sweep.rows[row].half == half);
            rows
        };
        let rows_of = parameters.iter().map(of_half).collect();
        let mut descent = Descent {
            sweep,
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
        let behind = (us * row.regard_for_error / row.unit).ln() / SOFTNESS;
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
        self.parts = self.sweep.rows.iter().map(|row| self.part(row)).collect();
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
        let inertia = match parameter {
            Parameter::Bandwidth(_) if self.choosing == 0.0 => BANDWIDTH_INERTIA,
            _ if self.choosing == 0.0 => PREDICTION_INERTIA,
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

    fn run(mut self) -> Values {
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

/// Losses in figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Choices that were measured.
    pub count: usize,
    /// What they lose on average.
    pub mean: f64,
    /// What 95 of 100 lose at most.
    pub percentile_95: f64,
    /// What the worst loses.
    pub worst: f64,
    /// Choices that were not measured.
    pub unmeasured: usize,
    /// By how much the prediction of a chosen plan's time is off, as a part of that (median).
    pub off: f64,
    /// The part of the choices whose predictions are off by no more than [`CLOSE`].
    pub close: f64,
}

/// A prediction that is off by no more is close, as a part of the time.
pub const CLOSE: f64 = 0.15;

impl Figures {
    /// The figures of these losses.
    pub fn of<'a>(losses: impl IntoIterator<Item = &'a Loss>) -> Self {
        let (mut known, mut errors, mut unmeasured) = (Vec::new(), Vec::new(), 0);
        for loss in losses {
            errors.extend(loss.foretold.map(|foretold| (foretold - 1.0).abs()));
            match loss.lost {
                Some(lost) => known.push(lost),
                None => unmeasured += 1,
            }
        }
        known.sort_by(f64::total_cmp);
        errors.sort_by(f64::total_cmp);
        let close = errors.iter().filter(|&&error| error <= CLOSE).count();
        let at = (known.len() * 95).div_ceil(100).max(1) - 1;
        Figures {
            count: known.len(),
            mean: known.iter().sum::<f64>() / known.len().max(1) as f64,
            percentile_95: known.get(at).copied().unwrap_or(0.0),
            worst: known.last().copied().unwrap_or(0.0),
            unmeasured,
            off: errors.get(errors.len() / 2).copied().unwrap_or(0.0),
            close: close as f64 / errors.len().max(1) as f64,
        }
    }
}

/// These costs with a guess in place of what is 0: by factors, nothing leads away from 0. Of the kernels of which `fitted` is true, and of
/// what kernels for 32 bits and for 16 have in common, if that is fitted.
fn something_to_fit(start: &Costs, shared: [bool; 2], fitted: impl Fn(&str) -> bool) -> Costs {
    let mut costs = start.clone();
    let both = [&mut costs.shared, &mut costs.shared_16];
    let moving = both.into_iter().zip(shared).filter(|(_, moves)| *moves);
    for (shared, _) in moving {
        for (value, guess) in [
            (&mut shared.l2, 2.0),
            (&mut shared.far, 0.2),
            (&mut shared.repack.access, 0.1),
            (&mut shared.off_sectors, 0.1),
            (&mut shared.uneven, 0.1),
            (&mut shared.l2_off_sectors, 0.1),
            (&mut shared.exposed, 0.1),
            (&mut shared.tail, 0.5),
            (&mut shared.clusters.round_us, 1.0),
            (&mut shared.clusters.sums_us, 0.5),
            (&mut shared.memory_start_us, 0.5),
        ] {
            *value = if *value > 0.0 { *value } else { guess };
        }
    }
    for (_, cost) in costs.kernels.iter_mut().filter(|(name, _)| fitted(name)) {
        for (value, guess) in [
            (&mut cost.single_elements, 0.01),
            (&mut cost.batch_us, 0.2),
            (&mut cost.general_us, 0.2),
            (&mut cost.general, 0.05),
            (&mut cost.edges, 0.05),
            (&mut cost.crowd, 0.05),
            (&mut cost.flow, 0.3),
            (&mut cost.other_order, 0.03),
            (&mut cost.beside_us, 0.1),
            (&mut cost.cut_us, 0.2),
            (&mut cost.share_us, 0.2),
            (&mut cost.slice_us, 0.02),
        ] {
            *value = if *value > 0.0 { *value } else { guess };
        }
    }
    costs
}

/// Costs for every kernel of the table that a plan may be made with: those of `known`, and a guess for production kernels that
/// have none yet. `holds` says how many blocks of a kernel a multiprocessor holds.
pub fn starting_costs(known: &Costs, holds: &HashMap<String, u32>) -> Costs {
    use crate::gemm::kernel::spec::{Grid, KernelSpec, Role};
    use crate::gemm::kernel::table::TABLE;
    let mut costs = known.clone();
    let own = |spec: &&KernelSpec| spec.role == Role::Production && spec.costs_of.is_none();
    for spec in TABLE.iter().filter(own) {
        let most = holds.get(spec.name).copied().unwrap_or(1).max(1);
        let resident = match spec.grid {
            Grid::Tiles | Grid::Units => most,
            _ => spec.blocks_per_multiprocessor.clamp(1, most),
        };
        costs.kernels.entry(spec.name.into()).or_insert(KernelCost {
            full: 0.6,
            solo: (0.9 / resident as f64).min(0.6),
            resident,
            setup_us: 4.0,
            wave_us: 4.0,
            bandwidth: 0.75,
            single_elements: 0.3,
            edges: 0.0,
            crowd: 0.0,
            other_order: 0.0,
            ragged_us: 0.0,
            batch_us: 0.0,
            general_us: 0.0,
            general: 0.0,
            beside_us: 0.0,
            cut_us: 0.0,
            share_us: 0.0,
            slice_us: 0.0,
            flow: 0.0,
            curve: 1.0,
        });
    }
    // A GPU may hold fewer than the one that costs were fitted on.
    for (name, cost) in &mut costs.kernels {
        cost.resident = cost.resident.min(holds.get(name).copied().unwrap_or(u32::MAX)).max(1);
        cost.solo = cost.solo.max(cost.full / f64::from(cost.resident));
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::kernel::spec::Role;
    use crate::gemm::kernel::table::TABLE;
    use crate::gemm::operands::{ElementTypes, OperandLayout};
    use crate::gemm::problem::GemmProblem;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// Costs that differ from the built-in ones in every number that matters, by up to this part; a kernel's in the same way, whatever
    /// other kernels there are.
    fn planted(device: &DeviceInfo, by: f64, rng: &mut StdRng) -> Costs {
        const PRIME: u64 = 0x0100_0000_01b3;
        let seed = rng.random::<u64>();
        let mut costs = Costs::built_in(device).clone();
        for (name, cost) in &mut costs.kernels {
            let of_name = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
            let mut rng = StdRng::seed_from_u64(name.bytes().fold(seed, of_name));
            let mut off = || (1.0 + by).powf(rng.random_range(-1.0..1.0));
            cost.full *= off();
            cost.solo = if cost.resident > 1 {
                (cost.solo * off()).min(cost.full)
            } else {
                cost.full
            };
            cost.setup_us *= off();
            cost.bandwidth *= off();
            cost.wave_us *= off();
            cost.single_elements *= off();
            cost.edges = 0.05 * off();
            cost.crowd = 0.05 * off();
            cost.other_order = 0.03 * off();
        }
        let mut off = || (1.0 + by).powf(rng.random_range(-1.0..1.0));
        for shared in [&mut costs.shared, &mut costs.shared_16] {
            shared.launch_us *= off();
            shared.repack.transpose.bandwidth *= off();
            shared.clusters.round_us = off();
        }
        costs
    }

    /// Problems of many kinds, with the times of all plans as `costs` say, off by up to `noise`.
    fn sweep(device: &DeviceInfo, problems: usize, costs: &Costs, noise: f64, rng: &mut StdRng) -> Sweep {
        sweep_of(DType::F32, device, problems, costs, noise, rng)
    }

    fn sweep_of(
        dtype: DType,
        device: &DeviceInfo,
        problems: usize,
        costs: &Costs,
        noise: f64,
        rng: &mut StdRng,
    ) -> Sweep {
        let mut sweep = Sweep::new(*device);
        for _ in 0..problems {
            let mut size = || {
                let size = 2f64.powf(rng.random_range(3.0..12.0)) as usize;
                if rng.random_range(0..5) == 0 {
                    size
                } else {
                    size.next_multiple_of(16)
                }
            };
            let (m, n, k) = (size(), size(), size());
            let mut layout = |rows, cols| match rng.random::<bool>() {
                true => OperandLayout::row_major(cols),
                false => OperandLayout::col_major(rows),
            };
            let (a, b) = (layout(m, k), layout(k, n));
            let mut problem = GemmProblem::new(m, n, k, a, b);
            problem.types = ElementTypes::all_of(dtype);
            problem.precision = Precision::Tf32;
            let problem = problem.folded().unwrap();
            let plans = Plan::candidates(&problem, device, costs);
            let timed: Vec<Timed> = plans
                .map(|plan| Timed::new(&plan, plan.predicted_us * (1.0 + noise * rng.random_range(-1.0..1.0))))
                .collect();
            sweep.add(&problem, &timed, costs, |_| true);
        }
        sweep
    }

    /// Times that the model can make are chosen among as well as noise allows, also of problems that were not fitted, and the
    /// rates of kernels that were measured often are found again.
    #[test]
    fn planted_costs_are_found_again() {
        let device = DeviceInfo::A100;
        let mut rng = StdRng::seed_from_u64(2);
        let hidden = planted(&device, 0.4, &mut rng);
        let (fitted_on, others) = (
            sweep(&device, 70, &hidden, 0.01, &mut rng),
            sweep(&device, 50, &hidden, 0.0, &mut rng),
        );
        let start = Costs::built_in(&device);
        let fitted = fitted_on.fit(start, "a GPU", None);
        fitted.validate().unwrap();
        assert_eq!((fitted.gpu.as_str(), &fitted.origin), ("a GPU", &Origin::Given));
        let figures = |sweep: &Sweep, costs: &Costs| Figures::of(&sweep.losses(costs));
        for sweep in [&fitted_on, &others] {
            let (before, after) = (figures(sweep, start), figures(sweep, &fitted));
            println!("before {before:?}\nafter  {after:?}");
            assert_eq!(after.unmeasured, 0);
            // The planner's regard for short sums costs time on purpose.
            let on_purpose = figures(sweep, &hidden);
            assert!(before.mean > 0.02, "{before:?}");
            assert!(
                after.mean < on_purpose.mean + 0.012,
                "{after:?}, on purpose {on_purpose:?}"
            );
            assert!(sweep.typical_error(&fitted) < 0.04, "{}", sweep.typical_error(&fitted));
        }
        // A kernel that multiplies most of the large problems, where all multiprocessors work.
        let rate = |costs: &Costs| {
            let cost = costs.kernels["ffma_pipelined_128x128"];
            cost.full / (1.0 + cost.crowd)
        };
        assert!(
            (rate(&fitted) / rate(&hidden) - 1.0).abs() < 0.1,
            "{} and {}",
            rate(&fitted),
            rate(&hidden)
        );
    }

    #[test]
    fn a_fit_changes_nothing_that_was_not_measured() {
        let device = DeviceInfo::A100;
        let mut rng = StdRng::seed_from_u64(3);
        let hidden = planted(&device, 0.2, &mut rng);
        let sweep = sweep(&device, 3, &hidden, 0.0, &mut rng);
        let start = Costs::built_in(&device);
        let fitted = sweep.fit(start, "a GPU", None);
        for (name, cost) in &start.kernels {
            if !sweep.kernels.contains(name) {
                assert_eq!(fitted.kernels[name], *cost, "{name}");
            }
        }
        assert_eq!(
            fitted.shared.pairs_us, start.shared.pairs_us,
            "no plan of an A100 has pairs"
        );
        let nothing = Sweep::new(device);
        assert!(nothing.is_empty() && nothing.losses(start).is_empty());
        assert_eq!(nothing.fit(start, "a GPU", None).kernels, start.kernels);
    }

    #[test]
    fn a_fit_of_named_kernels_holds_all_others() {
        let device = DeviceInfo::H200;
        let mut rng = StdRng::seed_from_u64(5);
        for dtype in [DType::F32, DType::BF16] {
            let hidden = planted(&device, 0.5, &mut rng);
            let sweep = sweep_of(dtype, &device, 4, &hidden, 0.0, &mut rng);
            let start = Costs::built_in(&device);
            let named: Vec<&String> = sweep.kernels.iter().filter(|_| rng.random_range(0..3) == 0).collect();
            let fitted = sweep.fit(start, "a GPU", Some(&|kernel| named.iter().any(|name| *name == kernel)));
            assert_eq!(
                (fitted.shared, fitted.shared_16),
                (start.shared, start.shared_16),
                "{dtype}"
            );
            let moved = |name: &String| fitted.kernels[name] != start.kernels[name];
            assert!(
                start
                    .kernels
                    .keys()
                    .filter(|name| !named.contains(name))
                    .all(|name| !moved(name)),
                "{dtype}"
            );
            assert!(named.into_iter().any(moved), "{dtype}");
        }
    }

    #[test]
    fn what_kernels_for_16_bits_have_in_common_is_theirs() {
        let device = DeviceInfo::H200;
        let mut rng = StdRng::seed_from_u64(6);
        let hidden = planted(&device, 0.5, &mut rng);
        let start = Costs::built_in(&device);
        for dtype in [DType::F32, DType::BF16] {
            let fitted = sweep_of(dtype, &device, 4, &hidden, 0.0, &mut rng).fit(start, "a GPU", None);
            assert_eq!(fitted.shared != start.shared, dtype == DType::F32);
            assert_eq!(fitted.shared_16 != start.shared_16, dtype == DType::BF16);
        }
    }

    #[test]
    fn a_choice_that_was_not_measured_is_counted_as_such() {
        let device = DeviceInfo::A100;
        let costs = Costs::built_in(&device);
        let mut problem = GemmProblem::row_major(512, 512, 512);
        problem.precision = Precision::Tf32;
        let problem = problem.folded().unwrap();
        let chosen = Plan::new(&problem, &device, costs).unwrap();
        let mut plans: Vec<Plan> = Plan::candidates(&problem, &device, costs).collect();
        plans.retain(|plan| plan != &chosen);
        let timed: Vec<Timed> = plans.iter().map(|plan| Timed::new(plan, plan.predicted_us)).collect();
        let mut sweep = Sweep::new(device);
        sweep.add(&problem, &timed, costs, |_| true);
        let figures = Figures::of(&sweep.losses(costs));
        assert!(figures.unmeasured > 0, "{figures:?}");
        let mut all = Sweep::new(device);
        all.add(&problem, &timed, costs, |plan| plan.kernel.name != chosen.kernel.name);
        assert_eq!(Figures::of(&all.losses(costs)).unmeasured, 0);
    }

    #[test]
    fn a_kernel_without_costs_starts_with_a_guess() {
        let mut known = Costs::built_in(&DeviceInfo::H200).clone();
        let name = "ffma_64x64";
        let before = known.kernels.remove(name).unwrap();
        let holds = HashMap::from([(name.to_string(), 3), ("ffma_32x32".to_string(), 2)]);
        let start = starting_costs(&known, &holds);
        start.validate().unwrap();
        assert_eq!(start.kernels[name].resident, 3);
        assert_ne!(start.kernels[name], before);
        assert_eq!(start.kernels["ffma_32x32"].resident, 2, "no more than the GPU holds");
        for spec in TABLE.iter().filter(|spec| spec.role == Role::Production) {
            assert!(start.of(spec).is_some(), "{}", spec.name);
        }
    }

    #[test]
    fn figures_are_those_of_a_sorted_list() {
        let loss = |lost| Loss {
            dtype: DType::F32,
            precision: Precision::Fp32,
            lost,
            foretold: lost.map(|lost| 1.0 + lost / 100.0),
            us: lost,
        };
        let mut losses: Vec<Loss> = (0..100).rev().map(|lost| loss(Some(lost as f64))).collect();
        losses.push(loss(None));
        let figures = Figures::of(&losses);
        assert_eq!((figures.count, figures.unmeasured), (100, 1));
        assert_eq!((figures.mean, figures.percentile_95, figures.worst), (49.5, 94.0, 99.0));
        assert_eq!((figures.off, figures.close), (0.5, 0.16));
        assert_eq!(Figures::of(&[]).count, 0);
    }
}
