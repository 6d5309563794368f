//! A decoder's step: plans go to the emulator as `src/attention/launch.rs` sends them to a GPU.

use super::attention::{bytes_of, number_of};
use super::far::apart;
use super::gemm::{number, Wrong};
use super::ptx::{self, Target};
use candle_sgemm::attention::args::AttentionStepArgs;
use candle_sgemm::attention::{AttentionKernel, Shape, StepAddresses, StepPlan, StepProblem};
use candle_sgemm::device::DeviceInfo;
use ptx_emulator::{run, Launch, Memory, Module, Param, Report, Schedule, Use, Watch};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

fn argument_bytes(args: &AttentionStepArgs) -> Vec<u8> {
    // SAFETY: `repr(C)` without padding, as src/attention/args.rs says: every byte is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(args).cast::<u8>(), size_of::<AttentionStepArgs>()) }
        .to_vec()
}

/// A step with its data, all of it as it is stored.
pub struct Case {
    pub plan: StepPlan,
    target: Target,
    /// (batch, row_length); gaps are numbers, too.
    rows: Vec<f64>,
    /// Elements from one row to the next, except where rows are far apart: then those of a row, with a gap.
    row_length: usize,
    /// Keys, then values: (batch, heads, places, width).
    cache: Vec<f64>,
    /// Cosines, then sines: (places, width / 2).
    angles: Vec<f64>,
    position: u32,
    scale: f32,
    seed: u64,
    /// Warp instructions after which a run is given up.
    pub limit: u64,
    /// A barrier or byte whose story a failing run tells.
    watch: Option<Watch>,
}

impl Case {
    /// A case for this kernel of so many multiply-adds at most, if one is found.
    /// `far`: the rows of two sequences lie 2³¹ elements or more apart.
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
        let (Shape::Rows { queries: most, .. } | Shape::Tiles { queries: most, .. }) = kernel.shape;
        let queries = if rng.random() { most } else { rng.random_range(1..=most) };
        let width = match rng.random() {
            true => kernel.max_width,
            false => 2 * vector * rng.random_range(1..=kernel.max_width / 2 / vector),
        };
        let (batch, heads, places) = (
            rng.random_range(1..3),
            rng.random_range(1..4),
            rng.random_range(1..300usize),
        );
        if batch * heads * queries * places.next_multiple_of(kernel.block_keys()) * 2 * kernel.max_width > most_work {
            return None;
        }
        let mut problem = StepProblem {
            dtype,
            batch,
            heads,
            queries,
            places,
            width,
            row_stride: 0,
        };
        let row_length = problem.row() + vector * rng.random_range(0..3usize);
        problem.row_stride = match far {
            true if batch == 1 => return None,
            true => apart(rng, batch, vector),
            false => row_length,
        };
        let device = DeviceInfo {
            // From one block a head to the largest cluster.
            sm_count: [1, 4, 16, 64][rng.random_range(0..4usize)],
            ..target.device()
        };
        let plan = StepPlan::new(&problem, &device).ok()?;
        if plan.attention.kernel.name != kernel.name {
            return None;
        }
        let position = match rng.random_range(0..5) {
            0 => 0,
            1 => places - 1,
            // No place: nothing is written.
            2 if rng.random() => places + rng.random_range(0..3usize),
            _ => rng.random_range(0..places),
        };
        let numbers = |rng: &mut StdRng, count: usize| (0..count).map(|_| number(rng, dtype)).collect::<Vec<_>>();
        let mut cache = numbers(rng, 2 * batch * heads * places * width);
        // What is not seen may be anything.
        for (i, x) in cache.iter_mut().enumerate() {
            if i / width % places > position && rng.random_bool(0.1) {
                *x = f64::NAN;
            }
        }
        let mut rows = numbers(rng, batch * row_length);
        // A query that is no number is its own result's only.
        if rng.random_bool(0.25) {
            let query = rng.random_range(0..heads * queries);
            rows[query * width..][..width].fill(f64::NAN);
        }
        Some(Case {
            rows,
            row_length,
            cache,
            angles: numbers(rng, places * width),
            position: position as u32,
            plan,
            target,
            scale: [1.0, 0.125, 0.3][rng.random_range(0..3usize)],
            seed: rng.next_u64(),
            limit: u64::MAX,
            watch: ptx::watched(),
        })
    }

    /// The plan, and what it was made for.
    pub fn describe(&self) -> String {
        format!(
            "{} ({:?}, {:?}, place {}, scale {}, seed {})",
            self.plan.attention, self.plan.problem, self.target, self.position, self.scale, self.seed
        )
    }

    /// The two numbers of a row that are rotated with each other, as `rotated` of the kernel makes them of them, in FP64.
    fn rotated(&self, row: &[f64], at: usize) -> Vec<f64> {
        let StepProblem { width, places, .. } = self.plan.problem;
        let half = width / 2;
        let (cosines, sines) = self.angles.split_at(places * half);
        let angle = |i: usize| (cosines[at * half + i], sines[at * half + i]);
        let turned = |i: usize| match i < half {
            true => row[i] * angle(i).0 - row[i + half] * angle(i).1,
            false => row[i - half] * angle(i - half).1 + row[i] * angle(i - half).0,
        };
        (0..width).map(turned).collect()
    }

    /// Runs the case with this code and compares every number, of the result and of the cache.
    pub fn run(&self, module: &Module, schedule: Schedule) -> Result<(Vec<u8>, Report), Wrong> {
        /// Elements behind the result that must stay unwritten.
        const PADDING: usize = 16;
        let (problem, plan) = (&self.plan.problem, &self.plan.attention);
        let (dtype, size) = (problem.dtype, problem.dtype.size());
        let mut rng = StdRng::seed_from_u64(self.seed ^ schedule.seed);
        let mut memory = Memory::new();
        let all_bytes = |numbers: &[f64]| numbers.iter().flat_map(|&x| bytes_of(x, dtype)).collect::<Vec<u8>>();
        let apart = (problem.row_stride * size) as u64;
        let rows = memory.claim(apart * (problem.batch as u64 - 1) + (self.row_length * size) as u64);
        for (row, address) in self.rows.chunks(self.row_length).zip((rows..).step_by(apart as usize)) {
            memory.upload_at(address, &all_bytes(row), Use::Input);
        }
        let mut upload = |numbers: &[f64], usage| memory.upload(&all_bytes(numbers), usage);
        // Apart, so that nothing lies behind the last key.
        let (keys, values) = self.cache.split_at(self.cache.len() / 2);
        let (keys, values) = (upload(keys, Use::Any), upload(values, Use::Any));
        let (cosines, sines) = self.angles.split_at(self.angles.len() / 2);
        let (cosines, sines) = (upload(cosines, Use::Input), upload(sines, Use::Input));
        let position = memory.upload(&self.position.to_le_bytes(), Use::Input);
        let count = problem.batch * problem.heads * problem.queries * problem.width;
        let out = memory.reserve((count + PADDING) * size);
        let at = StepAddresses {
            rows,
            keys,
            values,
            cosines,
            sines,
            position,
            out,
        };
        let args = self.plan.args(&at, self.scale);
        let mut launch = Launch::new(plan.kernel.name, plan.clusters * plan.cluster, plan.threads())
            .param(Param::Bytes(argument_bytes(&args)));
        launch.cluster = [plan.cluster, 1, 1];
        launch.early = plan.kernel.supports_pdl && self.target.starts_early();
        launch.limit = self.limit;
        launch.coverage = true;
        launch.watch = self.watch;
        launch.resident = 1 + rng.random_range(0..8usize);
        let report = run(module, &launch, &mut memory, schedule)?;
        if let Some(address) = memory.first_unwritten(out, count * size) {
            let at = (address - out) / size as u64;
            return Err(Wrong::Result(format!("number {at} of the result was not written")));
        }
        if memory
            .first_written(out + (count * size) as u64, PADDING * size)
            .is_some()
        {
            return Err(Wrong::Result("a byte behind the result was written".to_string()));
        }
        let read = |address: u64, count: usize| -> Vec<f64> {
            let bytes = memory.read(address, count * size).unwrap_or_default();
            bytes.chunks(size).map(|bytes| number_of(bytes, dtype)).collect()
        };
        let half = self.cache.len() / 2;
        let cache = [read(keys, half), read(values, half)].concat();
        self.check_cache(&cache)?;
        self.check_context(&cache, &read(out, count))?;
        let found = [
            memory.read(out, count * size),
            memory.read(keys, half * size),
            memory.read(values, half * size),
        ];
        Ok((found.into_iter().flatten().flatten().copied().collect(), report))
    }

    /// That the new key and the new value stand at their place, and everything else where it was.
    fn check_cache(&self, found: &[f64]) -> Result<(), Wrong> {
        let StepProblem {
            dtype,
            batch,
            heads,
            queries,
            places,
            width,
            ..
        } = self.plan.problem;
        let position = self.position as usize;
        for (i, (&found, &before)) in found.iter().zip(&self.cache).enumerate() {
            let (column, place, head) = (i % width, i / width % places, i / width / places % heads);
            let (sequence, of_values) = (i / width / places / heads % batch, i >= self.cache.len() / 2);
            let (expected, bound) = if place != position {
                (before, 0.0)
            } else {
                let first = sequence * self.row_length + (heads * queries + head) * width;
                match of_values {
                    true => (self.rows[first + heads * width + column], 0.0),
                    false => {
                        let x = self.rotated(&self.rows[first..][..width], position)[column];
                        (
                            x,
                            (dtype.unit_roundoff() * 1.01 + 4.0 * f64::from(f32::EPSILON)) * x.abs().max(8.0),
                        )
                    }
                }
            };
            let same = found == expected || found.is_nan() && expected.is_nan() || (found - expected).abs() <= bound;
            if !same {
                return Err(Wrong::Result(format!(
                    "number {i} of the cache is {found}, not {expected} ± {bound:e}"
                )));
            }
        }
        Ok(())
    }

    /// That the queries found what FP64 finds in this cache. Rotated queries are rounded as the kernel rounds them.
    fn check_context(&self, cache: &[f64], found: &[f64]) -> Result<(), Wrong> {
        const ROUNDINGS: f64 = 16.0;
        /// Numbers of a query which FP32 and FP64 may round to 16 bits differently: those between two, as good as none.
        const OTHERWISE: f64 = 2.0;
        let StepProblem {
            dtype,
            heads,
            queries,
            places,
            width,
            ..
        } = self.plan.problem;
        let eps = f64::from(f32::EPSILON);
        let last = (self.position as usize).min(places - 1);
        let (keys, values) = cache.split_at(cache.len() / 2);
        for (unit, found) in found.chunks(width).enumerate() {
            let (query, head, sequence) = (unit % queries, unit / queries % heads, unit / queries / heads);
            let first = sequence * self.row_length + (head * queries + query) * width;
            let turned = self.rotated(&self.rows[first..][..width], last).into_iter();
            let turned: Vec<f64> = turned.map(|x| number_of(&bytes_of(x, dtype), dtype)).collect();
            let row = |part: &[f64], key: usize| {
                let first = ((sequence * heads + head) * places + key) * width;
                part[first..][..width].to_vec()
            };
            let scale = f64::from(self.scale);
            let (mut scores, mut error) = (Vec::new(), 0.0f64);
            for key in 0..=last {
                let key = row(keys, key);
                let products = turned.iter().zip(&key).map(|(x, y)| x * y);
                let (sum, size) = products.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
                scores.push(scale * sum);
                let largest = turned
                    .iter()
                    .zip(&key)
                    .fold(0.0f64, |most, (x, y)| most.max((x * y).abs()));
                let rounded = OTHERWISE * 2.0 * dtype.unit_roundoff() * largest;
                // FP32's roundings add up as roots do.
                error = error.max(scale * (4.0 * eps * (width as f64).sqrt() * (size + 8.0) + rounded));
            }
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sums = vec![(0.0, 0.0); width];
            for (key, weight) in weights.iter().enumerate() {
                for ((sum, size), value) in sums.iter_mut().zip(row(values, key)) {
                    *sum += weight * value;
                    *size += (weight * value).abs();
                }
            }
            for (column, (&found, (sum, size))) in found.iter().zip(sums).enumerate() {
                let (expected, size) = (sum / total, size / total);
                let roundings = eps * (ROUNDINGS + 4.0 * (places as f64).sqrt());
                let bound =
                    ((2.0 * error).exp_m1() + roundings) * size + dtype.unit_roundoff() * expected.abs() * 1.01 + 1e-6;
                let same = (found - expected).abs() <= bound || found.is_nan() && expected.is_nan();
                if !same {
                    return Err(Wrong::Result(format!(
                        "column {column} of head {head}, query {query} is {found}, not {expected} ± {bound:e}"
                    )));
                }
            }
        }
        Ok(())
    }
}
