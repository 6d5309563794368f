//! Attention: plans go to the emulator as `src/attention/launch.rs` sends them to a GPU.

use super::far::{self, apart, pieces, places};
use super::gemm::{number, Wrong};
use super::ptx::{self, Target};
use candle_sgemm::attention::args::AttentionArgs;
use candle_sgemm::attention::{AttentionKernel, AttentionPlan, AttentionProblem, Described, Shape, Views};
use candle_sgemm::device::DeviceInfo;
use candle_sgemm::gemm::DType;
use half::{bf16, f16};
use ptx_emulator::{run, Launch, Memory, Module, Param, Report, Schedule, Use, Watch};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, RngCore, SeedableRng};

fn argument_bytes(args: &AttentionArgs) -> Vec<u8> {
    // SAFETY: `repr(C)` without padding, as src/attention/args.rs says: every byte is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(args).cast::<u8>(), size_of::<AttentionArgs>()) }.to_vec()
}

pub(super) fn bytes_of(x: f64, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => f16::from_f64(x).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(x).to_le_bytes().to_vec(),
        _ => (x as f32).to_le_bytes().to_vec(),
    }
}

pub(super) fn number_of(bytes: &[u8], dtype: DType) -> f64 {
    match (dtype, bytes) {
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f64(),
        (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f64(),
        (_, bytes) => f32::from_le_bytes(bytes.try_into().expect("four bytes")).into(),
    }
}

/// A tensor, dense or not, some of it broadcast.
struct Operand {
    dims: Vec<usize>,
    strides: Vec<usize>,
    /// Strides in `data`, where nothing is far apart.
    near: Vec<usize>,
    /// What lies at each place; gaps have nothing.
    data: Vec<Option<f64>>,
}

impl Operand {
    /// Dense but for gaps of whole vectors, and for dimensions that are 1 here.
    fn draw(rng: &mut StdRng, dims: Vec<usize>, vector: usize, dtype: DType) -> Self {
        let rank = dims.len();
        let mut strides = vec![1; rank];
        // Heads before rows or rows before heads, as views of a projection's result have them.
        let mut order: Vec<usize> = (0..rank - 1).collect();
        if rng.random_bool(0.5) && rank > 2 {
            order.swap(rank - 3, rank - 2);
        }
        let mut next = dims[rank - 1];
        for &i in order.iter().rev() {
            next += if rng.random_bool(0.2) {
                vector * rng.random_range(0..3)
            } else {
                0
            };
            next = next.next_multiple_of(vector);
            strides[i] = next;
            next *= dims[i];
        }
        let reach: usize = dims.iter().zip(&strides).map(|(n, stride)| (n - 1) * stride).sum();
        let mut operand = Operand {
            data: vec![None; reach + 1],
            dims,
            near: strides.clone(),
            strides,
        };
        operand.each(|x| *x = Some(number(rng, dtype)));
        operand
    }

    /// Puts heads or rows so far apart that offsets have more than 31 bits. False where there are none.
    fn put_apart(&mut self, rng: &mut StdRng, vector: usize) -> bool {
        let several = (0..self.dims.len() - 1).filter(|&i| self.dims[i] > 1).choose(rng);
        let Some(i) = several else {
            return false;
        };
        self.strides[i] += apart(rng, self.dims[i], vector);
        true
    }

    /// Visits every place that is one of the tensor's.
    fn each(&mut self, mut visit: impl FnMut(&mut Option<f64>)) {
        for at in places(&self.dims, &self.near) {
            visit(&mut self.data[at]);
        }
    }

    fn described(&self, dtype: DType) -> Described<'_> {
        Described {
            dims: &self.dims,
            strides: &self.strides,
            dtype: Some(dtype),
            align: 16,
        }
    }

    /// The number at these indices, which are broadcast.
    fn at(&self, indices: &[usize]) -> f64 {
        let missing = indices.len() - self.dims.len();
        let own = indices[missing..].iter().zip(&self.dims).zip(&self.near);
        let place: usize = own.map(|((i, n), stride)| if *n == 1 { 0 } else { i * stride }).sum();
        self.data[place].expect("a place of the tensor")
    }

    fn upload(&self, memory: &mut Memory, dtype: DType) -> u64 {
        let pieces = pieces(&places(&self.dims, &self.strides), &places(&self.dims, &self.near), 0);
        far::upload(memory, &pieces, 0, dtype.size(), Use::Input, |index| {
            self.data[index].map(|x| bytes_of(x, dtype))
        })
    }
}

/// Attention with its data.
pub struct Case {
    pub plan: AttentionPlan,
    pub target: Target,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Option<Operand>,
    scale: f32,
    seed: u64,
    /// Warp instructions after which a run is given up.
    pub limit: u64,
    /// A barrier or byte whose story a failing run tells.
    pub watch: Option<Watch>,
}

impl Case {
    /// A case for this kernel of so many multiply-adds at most, its tiles filled up, if one is found. `far`: heads or rows of some operands lie so
    /// far apart that offsets have more than 31 bits.
    pub fn draw(
        rng: &mut StdRng,
        kernel: &'static AttentionKernel,
        target: Target,
        most_work: usize,
        far: bool,
    ) -> Option<Case> {
        const TRIES: usize = 1000;
        (0..TRIES).find_map(|_| Self::try_draw(rng, kernel, target, most_work, far))
    }

    fn try_draw(
        rng: &mut StdRng,
        kernel: &'static AttentionKernel,
        target: Target,
        most_work: usize,
        far: bool,
    ) -> Option<Case> {
        let (dtype, vector) = (kernel.dtype, 16 / kernel.dtype.size());
        let device = DeviceInfo {
            // From one block a head to the largest cluster.
            sm_count: [1, 4, 16, 64][rng.random_range(0..4usize)],
            ..target.device()
        };
        let block_keys = kernel.block_keys();
        let (most_queries, tile) = match kernel.shape {
            Shape::Rows { queries, .. } => (queries, queries),
            Shape::Tiles { queries, .. } => (3 * queries, queries),
        };
        let queries = match rng.random_range(0..3) {
            0 => rng.random_range(1..=most_queries),
            1 => most_queries,
            _ => (tile + rng.random_range(0..3)).saturating_sub(1).clamp(1, most_queries),
        };
        let keys = match rng.random_range(0..4) {
            0 => rng.random_range(1..8),
            1 => (block_keys * rng.random_range(1..4usize) + rng.random_range(0..3))
                .saturating_sub(1)
                .max(1),
            _ => rng.random_range(1..=300),
        };
        let width = |rng: &mut StdRng| match rng.random_bool(0.5) {
            true => kernel.max_width,
            false => vector * rng.random_range(1..=kernel.max_width / vector),
        };
        let width_of_keys = width(rng);
        let value_width = if rng.random_bool(0.7) {
            width_of_keys
        } else {
            width(rng)
        };
        let batch: Vec<usize> = (0..rng.random_range(1..3)).map(|_| rng.random_range(1..4)).collect();
        let heads: usize = batch.iter().product();
        let work = heads * queries.next_multiple_of(tile) * keys.next_multiple_of(block_keys) * 2 * kernel.max_width;
        if work > most_work {
            return None;
        }
        let shared = |rng: &mut StdRng, extent: usize, chance: f64| if rng.random_bool(chance) { 1 } else { extent };
        let whole = |more: [usize; 2]| [&batch[..], &more].concat();
        let mut of_keys = batch.clone();
        for extent in &mut of_keys {
            *extent = shared(rng, *extent, 0.3);
        }
        let mut query = Operand::draw(rng, whole([queries, width_of_keys]), vector, dtype);
        let mut key = Operand::draw(rng, [&of_keys[..], &[keys, width_of_keys]].concat(), vector, dtype);
        let mut value = Operand::draw(rng, [&of_keys[..], &[keys, value_width]].concat(), vector, dtype);
        let mut mask = rng.random_bool(0.5).then(|| {
            let mut dims = whole([queries, keys]);
            for extent in &mut dims {
                *extent = shared(rng, *extent, 0.4);
            }
            let kept = rng.random_range(1..=dims.len());
            let mut mask = Operand::draw(rng, dims.split_off(dims.len() - kept), 1, dtype);
            let hidden = match (rng.random_range(0..3), dtype) {
                (0, _) => f64::NEG_INFINITY,
                (_, DType::F16) => -6e4,
                _ => -1e30,
            };
            let chance = *[0.0, 0.3, 0.9].choose(rng).expect("one of them");
            mask.each(|x| {
                if rng.random_bool(chance) {
                    *x = Some(number_of(&bytes_of(hidden, dtype), dtype));
                }
            });
            mask
        });
        if far {
            const CHANCE: f64 = 0.75;
            let mut any = false;
            for operand in [&mut query, &mut key, &mut value].into_iter().chain(&mut mask) {
                any |= rng.random_bool(CHANCE) && operand.put_apart(rng, vector);
            }
            if !any {
                return None;
            }
        }
        let mut case = Case {
            plan: {
                let described = mask.as_ref().map(|mask| mask.described(dtype));
                let [query, key, value] = [&query, &key, &value].map(|operand| operand.described(dtype));
                let problem = AttentionProblem::new(&query, &key, &value, described.as_ref()).ok()?;
                AttentionPlan::named(kernel.name, &problem, &device).ok()?
            },
            target,
            query,
            key,
            value,
            mask,
            scale: [1.0, 0.125, 0.3][rng.random_range(0..3usize)],
            seed: rng.next_u64(),
            limit: u64::MAX,
            watch: ptx::watched(),
        };
        case.make_special(rng);
        Some(case)
    }

    /// Sometimes puts numbers somewhere that are none, or infinite.
    fn make_special(&mut self, rng: &mut StdRng) {
        if rng.random_bool(0.7) {
            return;
        }
        let x = *[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]
            .choose(rng)
            .expect("one of them");
        let operand = match rng.random_range(0..3) {
            0 => &mut self.query,
            1 => &mut self.key,
            _ => &mut self.value,
        };
        let places: Vec<usize> = (0..operand.data.len())
            .filter(|&at| operand.data[at].is_some())
            .collect();
        operand.data[*places.choose(rng).expect("a place")] = Some(x);
    }

    /// The plan, and what it was made for.
    pub fn describe(&self) -> String {
        let of = |operand: &Operand| format!("{:?} by {:?}", operand.dims, operand.strides);
        format!(
            "{} ({:?}, Q {}, K {}, V {}, mask {}, scale {}, seed {})",
            self.plan,
            self.target,
            of(&self.query),
            of(&self.key),
            of(&self.value),
            self.mask.as_ref().map_or("none".to_string(), of),
            self.scale,
            self.seed
        )
    }

    /// Every number of the result, in order, and how far a kernel's may be from it.
    ///
    /// A score is wrong by C·ε·(√width·Σ|q||k| + |score|) at most, a weight by twice as much of itself and some roundings more, and so
    /// the result by that of the weighted absolute values, and a rounding to its type.
    fn reference(&self) -> Vec<(f64, f64)> {
        const C: f64 = 4.0;
        const ROUNDINGS: f64 = 16.0;
        /// What is added drowns what it is added to, in FP64, too.
        const DROWNS: f64 = 1e29;
        let (dims, dtype) = (&self.query.dims, self.plan.kernel.dtype);
        let (batch, matrix) = dims.split_at(dims.len() - 2);
        let (queries, width) = (matrix[0], matrix[1]);
        let (keys, value_width) = (self.value.dims[dims.len() - 2], self.value.dims[dims.len() - 1]);
        let (heads, eps) = (batch[batch.len() - 1], f64::from(f32::EPSILON));
        let outer: usize = batch[..batch.len() - 1].iter().product();
        let mut out = Vec::with_capacity(outer * queries * heads * value_width);
        for outer in 0..outer {
            for query in 0..queries {
                for head in 0..heads {
                    // Outer batch dimensions are one here, at most.
                    let at = |row: usize, column: usize| match batch.len() {
                        1 => vec![head, row, column],
                        _ => vec![outer, head, row, column],
                    };
                    let mut scores = Vec::with_capacity(keys);
                    let mut error: f64 = 0.0;
                    for key in 0..keys {
                        let pairs = (0..width).map(|i| (self.query.at(&at(query, i)), self.key.at(&at(key, i))));
                        let (sum, size) =
                            pairs.fold((0.0, 0.0), |(sum, size), (q, k)| (sum + q * k, size + (q * k).abs()));
                        let mask = self.mask.as_ref().map_or(0.0, |mask| mask.at(&at(query, key)));
                        let scale = f64::from(self.scale);
                        let score = scale * sum + mask;
                        scores.push(score);
                        if score.is_finite() && mask.abs() < DROWNS {
                            error = error.max(C * eps * ((width as f64).sqrt() * scale * size + score.abs()));
                        }
                    }
                    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    for column in 0..value_width {
                        let values = (0..keys).map(|key| self.value.at(&at(key, column)));
                        let (sum, size) = values.zip(&weights).fold((0.0, 0.0), |(sum, size), (value, weight)| {
                            (sum + weight * value, size + (weight * value).abs())
                        });
                        let (x, size) = (sum / total, size / total);
                        let roundings = eps * (ROUNDINGS + C * (keys as f64).sqrt());
                        let bound = (2.0 * error + roundings) * size + dtype.unit_roundoff() * x.abs() * 1.01;
                        // Below the least normal number of 16 bits steps are its.
                        let least = if dtype == DType::F16 { 6e-8 } else { 1e-36 };
                        out.push((x, bound + least));
                    }
                }
            }
        }
        out
    }

    /// Runs the case with this code and compares every number.
    pub fn run(&self, module: &Module, schedule: Schedule) -> Result<(Vec<u8>, Report), Wrong> {
        /// Elements behind the result that must stay unwritten.
        const PADDING: usize = 16;
        let (plan, dtype) = (&self.plan, self.plan.kernel.dtype);
        let mut rng = StdRng::seed_from_u64(self.seed ^ schedule.seed);
        let mut memory = Memory::new();
        let expected = self.reference();
        let size = expected.len() * dtype.size();
        let out = memory.reserve(size + PADDING * dtype.size());
        let at = Views {
            query: self.query.upload(&mut memory, dtype),
            key: self.key.upload(&mut memory, dtype),
            value: self.value.upload(&mut memory, dtype),
            mask: self.mask.as_ref().map_or(0, |mask| mask.upload(&mut memory, dtype)),
            out,
        };
        let args = plan.args(&at, self.scale);
        let mut launch = Launch::new(plan.kernel.name, plan.clusters * plan.cluster, plan.threads())
            .param(Param::Bytes(argument_bytes(&args)));
        launch.cluster = [plan.cluster, 1, 1];
        launch.dynamic_shared = plan.kernel.dynamic_shared();
        launch.early = plan.kernel.supports_pdl && self.target.starts_early();
        launch.limit = self.limit;
        launch.coverage = true;
        launch.watch = self.watch;
        launch.resident = 1 + rng.random_range(0..8usize);
        let report = run(module, &launch, &mut memory, schedule)?;
        if let Some(address) = memory.first_unwritten(out, size) {
            let at = (address - out) / dtype.size() as u64;
            return Err(Wrong::Result(format!("number {at} of the result was not written")));
        }
        if memory
            .first_written(out + size as u64, PADDING * dtype.size())
            .is_some()
        {
            return Err(Wrong::Result("a byte behind the result was written".to_string()));
        }
        let found = memory.read(out, size).unwrap_or_default().to_vec();
        for (i, (bytes, &(expected, bound))) in found.chunks(dtype.size()).zip(&expected).enumerate() {
            let found = number_of(bytes, dtype);
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
