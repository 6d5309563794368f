//! Operations on rows: plans go to the emulator as `src/rowwise/launch.rs` sends them to a GPU.

use super::attention::{bytes_of, number_of};
use super::far::{self, apart, pieces};
use super::gemm::{number, Wrong};
use super::ptx::{self, Target};
use candle_sgemm::device::DeviceInfo;
use candle_sgemm::gemm::operands::DType;
use candle_sgemm::rowwise::args::RowwiseArgs;
use candle_sgemm::rowwise::kernels::Reading;
use candle_sgemm::rowwise::{Operation, RowwiseKernel, RowwisePlan, RowwiseProblem};
use ptx_emulator::{run, Launch, Memory, Module, Param, Report, Schedule, Use, Watch};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

fn argument_bytes(args: &RowwiseArgs) -> Vec<u8> {
    // SAFETY: `repr(C)` without padding, as src/rowwise/args.rs says: every byte is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(args).cast::<u8>(), size_of::<RowwiseArgs>()) }.to_vec()
}

/// A row in which the largest number may come often, or be none that is greater than the others.
fn row_with_equals(rng: &mut StdRng, width: usize, dtype: DType) -> Vec<f64> {
    let few: &[f64] = match rng.random_range(0..6) {
        0 => &[],
        1 => &[-3.0, -2.0, -1.0, 0.0, 1.0, 2.0],
        2 => &[0.0, -0.0],
        3 => &[-0.0, -1.0, -f64::INFINITY, f64::NAN],
        4 => &[f64::NEG_INFINITY, f64::NAN],
        _ => &[f64::INFINITY, 1.0, f64::NAN],
    };
    let mut row: Vec<f64> = (0..width)
        .map(|_| match few.is_empty() {
            true => number(rng, dtype),
            false => few[rng.random_range(0..few.len())],
        })
        .collect();
    // Drawn often enough, every number comes first and last and in between by itself.
    if rng.random() {
        row[rng.random_range(0..width)] = [3.0, f64::INFINITY, f64::NAN][rng.random_range(0..3usize)];
    }
    if rng.random_bool(0.2) {
        row[0] = f64::NAN;
    }
    row
}

/// An operation with its data.
pub struct Case {
    pub plan: RowwisePlan,
    target: Target,
    /// By row and column.
    x: Vec<f64>,
    weight: Vec<f64>,
    bias: Option<Vec<f64>>,
    epsilon: f32,
    seed: u64,
    /// Warp instructions after which a run is given up.
    pub limit: u64,
    /// A barrier or byte whose story a failing run tells.
    watch: Option<Watch>,
}

impl Case {
    /// A case for this kernel of so many elements at most, if one is found. `far`: offsets of the last row have more than 31 bits.
    pub fn draw(
        rng: &mut StdRng,
        kernel: &'static RowwiseKernel,
        target: Target,
        most: usize,
        far: bool,
    ) -> Option<Case> {
        const TRIES: usize = 1000;
        (0..TRIES).find_map(|_| match kernel.reading {
            Reading::Turns => Self::try_draw_turns(rng, kernel, target, most, far),
            Reading::Vectors | Reading::Elements => Self::try_draw(rng, kernel, target, most, far),
        })
    }

    fn try_draw(
        rng: &mut StdRng,
        kernel: &'static RowwiseKernel,
        target: Target,
        most: usize,
        far: bool,
    ) -> Option<Case> {
        let (dtype, piece) = (kernel.dtype, kernel.piece());
        let norms = [Operation::LayerNorm, Operation::RmsNorm];
        let operation = match kernel.file.ends_with("softmax") {
            true => Operation::Softmax,
            false => norms[rng.random_range(0..2usize)],
        };
        let pieces = kernel.max_width() / piece;
        let width = piece
            * match rng.random_range(0..3) {
                0 => rng.random_range(1..=pieces),
                1 => pieces - rng.random_range(0..2usize).min(pieces - 1),
                _ => rng.random_range(1..=pieces.min(40)),
            };
        let rows = rng.random_range(1..=3 * kernel.block_rows() as usize);
        if rows * width > most {
            return None;
        }
        let gap = match rng.random() {
            _ if far && rows == 1 => return None,
            _ if far => apart(rng, rows, piece),
            true => 0,
            false => piece * rng.random_range(0..3),
        };
        let align = match kernel.reading {
            Reading::Vectors => 16,
            Reading::Elements | Reading::Turns => dtype.size() as u32,
        };
        let problem = RowwiseProblem::new(operation, dtype, &[rows, width], &[width + gap, 1], align)?;
        let plan = RowwisePlan::with(kernel, &problem, &DeviceInfo { ..target.device() })?;
        let numbers = |rng: &mut StdRng, count: usize| (0..count).map(|_| number(rng, dtype)).collect::<Vec<_>>();
        let mut x = numbers(rng, rows * width);
        if rng.random_bool(0.2) {
            let x = &mut x[rng.random_range(0..rows * width)];
            *x = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][rng.random_range(0..3usize)];
        }
        let weight = numbers(rng, width);
        let bias = rng.random::<bool>().then(|| numbers(rng, width));
        Some(Case {
            plan,
            target,
            x,
            weight,
            bias,
            epsilon: [1e-5, 0.5][rng.random_range(0..2usize)],
            seed: rng.next_u64(),
            limit: u64::MAX,
            watch: ptx::watched(),
        })
    }

    /// Rows of any length, from anywhere on, over one block or several: an argmax.
    fn try_draw_turns(
        rng: &mut StdRng,
        kernel: &'static RowwiseKernel,
        target: Target,
        most: usize,
        far: bool,
    ) -> Option<Case> {
        /// What comes in turns has to be long to have several.
        const LONGER: usize = 4;
        let (dtype, device) = (kernel.dtype, target.device());
        let clusters = kernel.clusters(&device);
        let cluster = clusters[rng.random_range(0..clusters.len())];
        let turn = kernel.turn() * cluster as usize;
        let width = match rng.random_range(0..5) {
            0 => rng.random_range(1..=3 * kernel.piece()),
            1 => rng.random_range(1..=1000),
            2 => turn + rng.random_range(0..=2 * kernel.piece()) - kernel.piece(),
            3 => rng.random_range(turn..=3 * turn),
            _ => rng.random_range(1..=turn),
        };
        let rows = rng.random_range(1..=3 * kernel.block_rows() as usize);
        if rows * width > LONGER * most {
            return None;
        }
        let gap = match rng.random() {
            _ if far && rows == 1 => return None,
            _ if far => apart(rng, rows, 1),
            true => 0,
            false => rng.random_range(0..20usize),
        };
        let dims = [rows, width];
        let problem = RowwiseProblem::new(Operation::Argmax, dtype, &dims, &[width + gap, 1], dtype.size() as u32)?;
        Some(Case {
            plan: RowwisePlan::with_cluster(kernel, &problem, cluster, &device)?,
            target,
            x: (0..rows).flat_map(|_| row_with_equals(rng, width, dtype)).collect(),
            weight: Vec::new(),
            bias: None,
            epsilon: 0.0,
            seed: rng.next_u64(),
            limit: u64::MAX,
            watch: ptx::watched(),
        })
    }

    /// The plan, and what it was made for.
    pub fn describe(&self) -> String {
        let (bias, stride) = (self.bias.is_some(), self.plan.problem.x_stride);
        format!(
            "{} ({:?}, rows {stride} apart, bias {bias}, seed {})",
            self.plan, self.target, self.seed
        )
    }

    /// Every number of the result, and how far a kernel's may be from it.
    fn reference(&self) -> Vec<(f64, f64)> {
        /// Roundings on the way, each of which is at most half of FP32's last bit of the numbers that meet there.
        const ROUNDINGS: f64 = 16.0;
        let problem = &self.plan.problem;
        let (width, eps) = (problem.width, f64::from(f32::EPSILON));
        let mut out = Vec::with_capacity(self.x.len());
        for row in self.x.chunks(width) {
            let largest = row.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
            match problem.operation {
                Operation::Softmax => {
                    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> = row.iter().map(|x| (x - top).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    let none = row.iter().any(|x| x.is_nan());
                    // The difference of two numbers is rounded, and e to that is wrong by as much of itself.
                    let error = eps * (ROUNDINGS + (width as f64).sqrt() + 4.0 * largest.min(1e3));
                    out.extend(weights.iter().map(|weight| match none {
                        true => (f64::NAN, 0.0),
                        false => (weight / sum, weight / sum * error),
                    }));
                }
                // As candle's on the CPU: a number replaces one that it is greater than.
                Operation::Argmax => {
                    let (mut place, mut largest) = (0, row[0]);
                    for (i, &x) in row.iter().enumerate() {
                        if largest < x {
                            (place, largest) = (i, x);
                        }
                    }
                    out.push((place as f64, 0.0));
                }
                Operation::LayerNorm | Operation::RmsNorm => {
                    let mean = match problem.operation {
                        Operation::LayerNorm => row.iter().sum::<f64>() / width as f64,
                        _ => 0.0,
                    };
                    let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                    let scale = (variance + f64::from(self.epsilon)).sqrt();
                    // The mean is wrong by some of the largest number's last bits, and so is every difference.
                    let error = eps * (ROUNDINGS + (width as f64).sqrt());
                    out.extend(row.iter().enumerate().map(|(column, x)| {
                        let (normed, weight) = ((x - mean) / scale, self.weight[column]);
                        let bias = self.bias.as_ref().map_or(0.0, |bias| bias[column]);
                        let off = error * (normed.abs() * (1.0 + largest / scale) + largest / scale);
                        (normed * weight + bias, off * weight.abs() + eps * bias.abs())
                    }));
                }
            }
        }
        if problem.operation == Operation::Argmax {
            return out;
        }
        let (roundoff, least) = (problem.dtype.unit_roundoff(), 1e-7);
        out.into_iter()
            .map(|(x, bound)| (x, bound + roundoff * x.abs() * 1.01 + least))
            .collect()
    }

    /// Runs the case with this code and compares every number.
    pub fn run(&self, module: &Module, schedule: Schedule) -> Result<(Vec<u8>, Report), Wrong> {
        /// Elements behind the result that must stay unwritten.
        const PADDING: usize = 16;
        let (plan, dtype) = (&self.plan, self.plan.kernel.dtype);
        let (problem, element) = (&plan.problem, dtype.size());
        let places = problem.operation == Operation::Argmax;
        let result_element = if places { size_of::<u32>() } else { element };
        let mut rng = StdRng::seed_from_u64(self.seed ^ schedule.seed);
        let resident = rng.random_range(0..8usize);
        let mut memory = Memory::new();
        let expected = self.reference();
        let size = expected.len() * result_element;
        // What no vectors are read from may start anywhere.
        let mut offset = || match plan.kernel.reading {
            Reading::Vectors => 0,
            Reading::Elements | Reading::Turns => rng.random_range(0..8usize),
        };
        let mut upload = |numbers: &[f64], run: usize, stride: usize| {
            let places: Vec<usize> = (0..numbers.len()).map(|i| i / run * stride + i % run).collect();
            let indices: Vec<usize> = (0..numbers.len()).collect();
            let pieces = pieces(&places, &indices, 0);
            far::upload(&mut memory, &pieces, offset(), element, Use::Input, |index| {
                Some(bytes_of(numbers[index], dtype))
            })
        };
        let x = upload(&self.x, problem.width, problem.x_stride);
        let (weight, bias) = match problem.operation {
            Operation::Softmax | Operation::Argmax => (0, 0),
            Operation::LayerNorm | Operation::RmsNorm => (
                upload(&self.weight, problem.width, problem.width),
                self.bias
                    .as_ref()
                    .map_or(0, |bias| upload(bias, problem.width, problem.width)),
            ),
        };
        let y = memory.reserve(size + PADDING * result_element);
        let args = plan.args([x, y, weight, bias], self.epsilon);
        let mut launch =
            Launch::new(plan.kernel.name, plan.blocks, plan.kernel.block()).param(Param::Bytes(argument_bytes(&args)));
        launch.cluster = [plan.cluster, 1, 1];
        launch.early = self.target.starts_early();
        launch.limit = self.limit;
        launch.coverage = true;
        launch.watch = self.watch;
        launch.resident = 1 + resident;
        let report = run(module, &launch, &mut memory, schedule)?;
        if let Some(address) = memory.first_unwritten(y, size) {
            let at = (address - y) / result_element as u64;
            return Err(Wrong::Result(format!("number {at} of the result was not written")));
        }
        if memory
            .first_written(y + size as u64, PADDING * result_element)
            .is_some()
        {
            return Err(Wrong::Result("a byte behind the result was written".to_string()));
        }
        let found = memory.read(y, size).unwrap_or_default().to_vec();
        for (i, (bytes, &(expected, bound))) in found.chunks(result_element).zip(&expected).enumerate() {
            let found = match places {
                true => u32::from_le_bytes(bytes.try_into().expect("four bytes")).into(),
                false => number_of(bytes, dtype),
            };
            let same = found == expected || found.is_nan() && expected.is_nan() || (found - expected).abs() <= bound;
            if !same {
                return Err(Wrong::Result(format!(
                    "number {i} of the result is {found}, not {expected} ± {bound:e}\n  schedule {schedule:?}"
                )));
            }
        }
        Ok((found, report))
    }
}
