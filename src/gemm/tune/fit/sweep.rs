//! The plans of many problems: what they have to do, what they took, and what the planner's choices among them lose.

use crate::device::DeviceInfo;
use crate::gemm::kernel::costs::{Costs, KernelCost, SharedCosts};
use crate::gemm::operands::DType;
use crate::gemm::planner::plan::Plan;
use crate::gemm::planner::work::Work;
use crate::gemm::problem::{FoldedProblem, Precision};
use crate::gemm::schedule::cut::Cut;
use serde::{Deserialize, Serialize};

/// By this power of how much slower it is, a plan counts less for the error.
const NEAR: i32 = 2;

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
    /// How much longer than that it counts as: see [`Plan::regard`].
    pub regard: f64,
}

/// A plan.
pub struct Row {
    pub kernel: usize,
    /// Whether elements have 16 bits.
    pub half: bool,
    pub cut: Cut,
    pub repacked: [bool; 2],
    pub work: Work,
    pub regard: f64,
    pub us: Option<f64>,
    /// Its time as a multiple of the fastest one's, among the choices where that is the least.
    pub behind: f64,
    /// What its error counts for.
    pub weight: f64,
    /// The time that counts as 1 among the choices that it belongs to.
    pub unit: f64,
    /// The choices that it belongs to.
    pub choices: Vec<usize>,
}

/// What the planner chooses among, for one problem at one precision.
pub struct Choice {
    pub dtype: DType,
    pub precision: Precision,
    pub rows: Vec<usize>,
    /// The shortest time among them.
    pub best: f64,
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
    pub(super) device: DeviceInfo,
    pub(super) kernels: Vec<String>,
    pub(super) rows: Vec<Row>,
    pub(super) choices: Vec<Choice>,
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
                            regard: plan.regard(),
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
        let weights: Vec<f64> = self.rows.iter().map(|row| values.us(row) * row.regard).collect();
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
                regard: row.regard,
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

    pub(super) fn values(&self, costs: &Costs) -> Values {
        let of = |name: &String| costs.kernels.get(name).copied().unwrap_or(KernelCost::UNKNOWN);
        Values {
            shared: [costs.shared, costs.shared_16],
            kernels: self.kernels.iter().map(of).collect(),
        }
    }
}

/// Costs as they are fitted: by the number of the kernel.
#[derive(Clone)]
pub struct Values {
    /// Of kernels for 32 bits and for 16.
    pub shared: [SharedCosts; 2],
    pub kernels: Vec<KernelCost>,
}

impl Values {
    pub fn us(&self, row: &Row) -> f64 {
        row.work
            .us(&self.kernels[row.kernel], &self.shared[usize::from(row.half)])
    }
}
