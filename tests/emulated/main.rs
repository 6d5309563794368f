//! Every kernel of the tables without a GPU: their PTX runs in the emulator, under schedules that want it to fail.
//!
//! Problems, plans and schedules are drawn by seed; each row of the tables has its turn. `CANDLE_SGEMM_EMULATED_CASES=n` draws
//! n problems for each row (2 otherwise), `CANDLE_SGEMM_EMULATED_SEED=n` others, and `CANDLE_SGEMM_EMULATED_KERNEL=text` keeps
//! to kernels whose name contains the text. `CANDLE_SGEMM_EMULATED_TRACE=0x38418` has failing runs tell the story of a byte or
//! mbarrier of shared memory, `="barrier 1"` that of a barrier.

mod broken;
#[path = "../common/cuda_source.rs"]
mod cuda_source;
mod kernels;
mod mutants;

use candle_sgemm::attention as attentions;
use candle_sgemm::device::DeviceInfo;
use candle_sgemm::gemm::kernel::costs::Costs;
use candle_sgemm::gemm::kernel::spec::{Arithmetic, Grid, Inside, KernelSpec, Side, SplitK};
use candle_sgemm::gemm::planner::work::SHORT_SUM;
use candle_sgemm::gemm::{Activation, ElementTypes, GemmProblem, OperandLayout, Plan, Precision, TABLE};
use candle_sgemm::rowwise as rowwise_operations;
use candle_sgemm::transpose;
use cuda_source::{constant, source};
use kernels::gemm::Variety;
use kernels::ptx::Target;
use kernels::{attention, attention_step, gemm, ptx, rowwise, transpositions};
use ptx_emulator::{Kind, Module, Report, Schedule};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, RngCore, SeedableRng};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::Instant;

/// Multiply-adds of a problem, at most, its tiles filled up.
const MOST_WORK: usize = 6 << 20;
/// Bytes that a transposition moves, at most.
const MOST_BYTES: usize = 192 << 10;
/// Elements of the rows of an operation, at most.
const MOST_ELEMENTS: usize = 32 << 10;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

fn chosen(name: &str) -> bool {
    std::env::var("CANDLE_SGEMM_EMULATED_KERNEL").map_or(true, |text| name.contains(&text))
}

/// What is drawn for a kernel depends on its name and the seed: alone it gets the same problems as among all.
fn rng_of(name: &str, seed: u64) -> StdRng {
    const PRIME: u64 = 0x100_0000_01B3; // FNV-1a
    let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    });
    StdRng::seed_from_u64(hash ^ seed)
}

/// Does `work` for every number below `many`, on all processors.
fn in_parallel(many: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= many {
                    return;
                }
                work(i);
            });
        }
    });
}

/// What many runs found.
#[derive(Default)]
struct Tally {
    complaints: Mutex<Vec<String>>,
    runs: AtomicU64,
    instructions: AtomicU64,
    multiply_adds: AtomicU64,
    /// Cases with offsets of more than 31 bits in A, in B and in D.
    far: [AtomicU64; 3],
}

impl Tally {
    fn ran(&self, report: Report) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.instructions
            .fetch_add(report.thread_instructions, Ordering::Relaxed);
        self.multiply_adds
            .fetch_add(report.tensor_multiply_adds, Ordering::Relaxed);
    }

    fn complain(&self, text: String) {
        eprintln!("{text}");
        self.complaints.lock().expect("nobody panics with it").push(text);
    }

    /// Runs a case under a drawn schedule.
    fn judge(&self, case: &gemm::Case, rng: &mut StdRng) {
        match case.check(Schedule::drawn(rng.next_u64())) {
            Ok((_, report)) => self.ran(report),
            Err(wrong) => self.complain(format!("{case}:\n{wrong}")),
        }
    }

    fn conclude(self, what: &str, started: Instant) {
        println!(
            "{what}: {} runs, {:.0} million thread instructions, {:.0} million tensor multiply-adds, {:.0} s",
            self.runs.load(Ordering::Relaxed),
            self.instructions.load(Ordering::Relaxed) as f64 * 1e-6,
            self.multiply_adds.load(Ordering::Relaxed) as f64 * 1e-6,
            started.elapsed().as_secs_f64(),
        );
        let complaints = self.complaints.into_inner().expect("nobody panics with it");
        let shown = complaints.len().min(5);
        assert!(
            complaints.is_empty(),
            "{} wrong:\n{}",
            complaints.len(),
            complaints[..shown].join("\n\n")
        );
    }
}

/// The files of all tables.
fn files() -> BTreeSet<&'static str> {
    let products = TABLE.iter().map(|spec| spec.file);
    let movements = transpose::TABLE.iter().map(|kernel| kernel.file);
    let attention = attentions::TABLE
        .iter()
        .chain(attentions::STEPS)
        .map(|kernel| kernel.file);
    let rowwise = rowwise_operations::kernels::all().map(|kernel| kernel.file);
    products.chain(movements).chain(attention).chain(rowwise).collect()
}

/// Draws so many problems, unless the environment has another number, for each kernel of products.
fn products(target: Target, variety: Variety, many: u64, work: usize) {
    /// Of so few kernels, as one chooses them for a try, some operands may never be far.
    const FEW: usize = 100;
    let started = Instant::now();
    let seed = setting("CANDLE_SGEMM_EMULATED_SEED", 1);
    let many = setting("CANDLE_SGEMM_EMULATED_CASES", many);
    let rows: Vec<_> = TABLE
        .iter()
        .filter(|spec| target.has(spec.file) && chosen(spec.name))
        .collect();
    let tally = Tally::default();
    in_parallel(rows.len(), |i| {
        let spec = rows[i];
        let mut rng = rng_of(spec.name, seed);
        let began = Instant::now();
        let mut ran = 0;
        for _ in 0..many {
            let Some(drawn) = gemm::draw(&mut rng, spec, target, work, false, variety) else {
                tally.complain(format!("{}: no problem suits it", spec.name));
                break;
            };
            // k whole, one of the ways to cut it, and one that takes a second kernel; of operands that lie far apart any of these.
            let plans = &drawn.plans;
            let mut picks = vec![0];
            if plans.len() > 1 {
                picks.push(rng.random_range(1..plans.len()));
            }
            let apart = plans.iter().enumerate().filter(|(_, plan)| plan.reduction().is_some());
            picks.extend(apart.map(|(at, _)| at).choose(&mut rng));
            if variety == Variety::Far {
                picks = picks.choose(&mut rng).copied().into_iter().collect();
            }
            for pick in picks {
                let case = gemm::Case::drawn(plans[pick], target, &drawn, rng.next_u64());
                for (far, count) in case.is_far().into_iter().zip(&tally.far) {
                    count.fetch_add(far.into(), Ordering::Relaxed);
                }
                let first = match case.check(Schedule::drawn(rng.next_u64())) {
                    Ok((d, report)) => {
                        tally.ran(report);
                        ran += 1;
                        d
                    }
                    Err(wrong) => {
                        tally.complain(format!("{case}:\n{wrong}"));
                        continue;
                    }
                };
                if rng.random_bool(0.3) {
                    match case.check(Schedule::drawn(rng.next_u64())) {
                        Ok((d, report)) => {
                            tally.ran(report);
                            if d.iter()
                                .zip(&first)
                                .any(|(x, y)| x.to_bits() != y.to_bits() && !x.is_nan())
                            {
                                tally.complain(format!("{case}: another schedule gives other bits"));
                            }
                        }
                        Err(wrong) => tally.complain(format!("{case}:\n{wrong}")),
                    }
                }
            }
        }
        println!("{}: {ran} right, {:.1} s", spec.name, began.elapsed().as_secs_f64());
    });
    if variety == Variety::Far && rows.len() > FEW {
        let far = tally.far.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert!(
            far.iter().all(|&cases| cases as usize > rows.len() / 4),
            "{far:?} cases with a far A, B and D"
        );
    }
    tally.conclude(&format!("products for {target:?}, {variety:?}"), started);
}

fn movements(target: Target, far: bool) {
    let started = Instant::now();
    let seed = setting("CANDLE_SGEMM_EMULATED_SEED", 1);
    let many = 2 * setting("CANDLE_SGEMM_EMULATED_CASES", 2);
    let rows: Vec<_> = transpose::TABLE
        .iter()
        .filter(|kernel| target.has(kernel.file) && chosen(kernel.name))
        .collect();
    let tally = Tally::default();
    in_parallel(rows.len(), |i| {
        let kernel = rows[i];
        let mut rng = rng_of(kernel.name, seed);
        let module = ptx::module(kernel.file, target);
        for _ in 0..many {
            let Some(case) = transpositions::Case::draw(&mut rng, kernel, target, MOST_BYTES, far) else {
                tally.complain(format!("{}: no problem suits it", kernel.name));
                break;
            };
            match case.run(&module, Schedule::drawn(rng.next_u64())) {
                Ok(report) => tally.ran(report),
                Err(wrong) => tally.complain(format!("{}:\n{wrong}", case.describe())),
            }
        }
        println!("{}: done", kernel.name);
    });
    tally.conclude(&format!("copies and transpositions for {target:?}"), started);
}

/// Cases of these kernels, each drawn for its kernel and run under two schedules, which have to give the same bits.
fn drawn<K: Sync + 'static, C>(
    what: &str,
    target: Target,
    kernels: impl Iterator<Item = &'static K>,
    name_and_file: impl Fn(&'static K) -> (&'static str, &'static str) + Sync,
    draw: impl Fn(&mut StdRng, &'static K) -> Option<C> + Sync,
    run: impl Fn(&C, &Module, Schedule) -> Result<(Vec<u8>, Report), gemm::Wrong> + Sync,
    describe: impl Fn(&C) -> String + Sync,
) {
    let started = Instant::now();
    let seed = setting("CANDLE_SGEMM_EMULATED_SEED", 1);
    let many = 2 * setting("CANDLE_SGEMM_EMULATED_CASES", 2);
    let kernels: Vec<_> = kernels
        .filter(|kernel| {
            let (name, file) = name_and_file(kernel);
            target.has(file) && chosen(name)
        })
        .collect();
    let tally = Tally::default();
    in_parallel(kernels.len(), |i| {
        let (name, file) = name_and_file(kernels[i]);
        let mut rng = rng_of(name, seed);
        let module = ptx::module(file, target);
        for _ in 0..many {
            let Some(case) = draw(&mut rng, kernels[i]) else {
                tally.complain(format!("{name}: no problem suits it"));
                break;
            };
            let under = |schedule| {
                let found = run(&case, &module, Schedule::drawn(schedule));
                found.map_err(|wrong| tally.complain(format!("{}:\n{wrong}", describe(&case))))
            };
            let Ok((first, report)) = under(rng.next_u64()) else {
                continue;
            };
            tally.ran(report);
            if rng.random_bool(0.3) && under(rng.next_u64()).is_ok_and(|(again, _)| again != first) {
                tally.complain(format!("{}: another schedule gives other bits", describe(&case)));
            }
        }
        println!("{name}: done");
    });
    tally.conclude(&format!("{what} for {target:?}"), started);
}

fn attention(target: Target, far: bool) {
    drawn(
        "attention",
        target,
        attentions::TABLE.iter(),
        |kernel| (kernel.name, kernel.file),
        |rng, kernel| attention::Case::draw(rng, kernel, target, MOST_WORK, far),
        attention::Case::run,
        attention::Case::describe,
    );
}

fn decoders(target: Target, far: bool) {
    drawn(
        "steps of decoders",
        target,
        attentions::STEPS.iter(),
        |kernel| (kernel.name, kernel.file),
        |rng, kernel| attention_step::Case::draw(rng, kernel, target, MOST_WORK, far),
        attention_step::Case::run,
        attention_step::Case::describe,
    );
}

fn rows(target: Target, far: bool) {
    drawn(
        "operations on rows",
        target,
        rowwise_operations::kernels::all(),
        |kernel| (kernel.name, kernel.file),
        |rng, kernel| rowwise::Case::draw(rng, kernel, target, MOST_ELEMENTS, far),
        rowwise::Case::run,
        rowwise::Case::describe,
    );
}

#[test]
fn every_kernel_for_hopper() {
    every_kernel("every_kernel_for_hopper", Target::Hopper);
}

#[test]
fn every_kernel_for_ampere() {
    every_kernel("every_kernel_for_ampere", Target::Ampere);
}

#[test]
#[ignore = "its instructions are Ampere's, as every_instruction_is_known finds"]
fn every_kernel_for_ada() {
    every_kernel("every_kernel_for_ada", Target::Ada);
}

#[test]
#[ignore = "its instructions are Ampere's, as every_instruction_is_known finds"]
fn every_kernel_for_blackwell() {
    every_kernel("every_kernel_for_blackwell", Target::Blackwell);
}

fn every_kernel(test: &str, target: Target) {
    if !ptx::skipped(test) {
        products(target, Variety::Wild, 2, MOST_WORK);
        movements(target, false);
        attention(target, false);
        decoders(target, false);
        rows(target, false);
    }
}

/// Offsets of more than 31 bits: rows, columns or matrices that lie gigabytes apart, with memory for what is there of them alone.
#[test]
fn operands_may_lie_far_apart() {
    const WORK: usize = MOST_WORK / 4;
    if !ptx::skipped("operands_may_lie_far_apart") {
        products(Target::Hopper, Variety::Far, 1, WORK);
        movements(Target::Hopper, true);
        attention(Target::Hopper, true);
        decoders(Target::Hopper, true);
        rows(Target::Hopper, true);
    }
}

/// The test above would find a kernel of products that counts with 32 bits: one whose threads get no more of its strides is wrong.
#[test]
fn strides_of_32_bits_are_found() {
    const EACH: usize = 8;
    const TRIES: usize = 40;
    if ptx::skipped("strides_of_32_bits_are_found") {
        return;
    }
    let by_threads = |spec: &&KernelSpec| spec.tma_boxes.is_none() && Target::Hopper.has(spec.file);
    let rows: Vec<&'static KernelSpec> = TABLE.iter().filter(by_threads).step_by(EACH).collect();
    let seed = setting("CANDLE_SGEMM_EMULATED_SEED", 1);
    let (tried, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    in_parallel(rows.len(), |i| {
        let mut rng = rng_of(rows[i].name, seed);
        let wide = (0..TRIES).find_map(|_| {
            let drawn = gemm::draw(&mut rng, rows[i], Target::Hopper, MOST_WORK / 8, false, Variety::Far)?;
            let case = gemm::Case::drawn(drawn.plans[0], Target::Hopper, &drawn, rng.next_u64());
            case.has_wide_strides().then_some(case)
        });
        let Some(mut case) = wide else {
            return;
        };
        tried.fetch_add(1, Ordering::Relaxed);
        case.cuts_strides = true;
        if case.check(Schedule::drawn(rng.next_u64())).is_ok() {
            missed.lock().expect("nobody panics with it").push(case.to_string());
        }
    });
    let (tried, missed) = (tried.into_inner(), missed.into_inner().expect("nobody panics with it"));
    println!("{tried} of {} kernels", rows.len());
    assert!(2 * tried > rows.len(), "{tried} of {} kernels were tried", rows.len());
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n\n"));
}

/// Tests `check` with every kernel that stores by TMA and is `meant`, each with so many drawn numbers.
fn with_stores_by_tma(
    test: &str,
    what: &str,
    meant: impl Fn(&KernelSpec) -> bool,
    check: impl Fn(&'static KernelSpec, &mut StdRng, &Tally) + Sync,
) {
    if ptx::skipped(test) {
        return;
    }
    let started = Instant::now();
    let seed = setting("CANDLE_SGEMM_EMULATED_SEED", 1);
    let many = setting("CANDLE_SGEMM_EMULATED_CASES", 2);
    let rows: Vec<_> = TABLE
        .iter()
        .filter(|spec| spec.d_box.is_some() && meant(spec) && chosen(spec.name))
        .collect();
    let tally = Tally::default();
    in_parallel(rows.len(), |i| {
        let mut rng = rng_of(rows[i].name, seed);
        for _ in 0..many {
            check(rows[i], &mut rng, &tally);
        }
    });
    tally.conclude(what, started);
}

fn has_clusters(spec: &KernelSpec) -> bool {
    matches!(spec.grid, Grid::Clusters(_))
}

fn stores_tiles_behind(spec: &KernelSpec) -> bool {
    has_clusters(spec) && spec.inside == Inside::Product
}

/// A product for such a kernel with so many units, tiles or those of a cluster, along m and n, the last of which may be mostly empty, and its second tile, too;
/// k has more than `steps[0]` portions, and `steps[1]` at most. Rows are whole vectors, for TMA takes no others, or, where columns are gated, half as many.
fn units_of(spec: &KernelSpec, rng: &mut StdRng, [units_m, units_n]: [usize; 2], steps: [usize; 2]) -> GemmProblem {
    let [mut bm, mut bn, bk] = [spec.tile.bm, spec.tile.bn, spec.tile.bk].map(|size| size as usize);
    match spec.grid {
        Grid::Clusters(Side::N) => bn *= 2,
        Grid::Clusters(Side::M) => bm *= 2,
        _ => {}
    }
    let mut vectors = |most: usize, least: usize| rng.random_range(least / 8 + 1..=most / 8) * 8;
    let m = vectors(bm * units_m, bm * (units_m - 1));
    let n = vectors(bn * units_n, bn * (units_n - 1));
    let k = vectors(steps[1] * bk, steps[0] * bk);
    let (a, b) = (spec.name.as_bytes()[spec.name.len() - 2], spec.name.ends_with('t'));
    let a = if a == b't' {
        OperandLayout::col_major(m)
    } else {
        OperandLayout::row_major(k)
    };
    let b = if b {
        OperandLayout::col_major(k)
    } else {
        OperandLayout::row_major(n)
    };
    let mut problem = GemmProblem::new(m, n, k, a, b);
    problem.types = ElementTypes::all_of(spec.dtype);
    if spec.inside.gates() {
        problem.epilogue.gated = true;
        problem.epilogue.activation = gemm::ACTIVATIONS[rng.random_range(0..gemm::ACTIVATIONS.len())];
        problem.d = OperandLayout::row_major(problem.result_columns());
    }
    problem
}

/// Products with several tiles for each cluster, whose epilogue is nothing but α: there each tile is stored while the next one is
/// multiplied. [`MOST_WORK`] leaves no room for such. Rows of tiles are walked one after the other or two together, so that some
/// are walked backwards.
#[test]
fn tiles_are_stored_behind_the_next() {
    with_stores_by_tma(
        "tiles_are_stored_behind_the_next",
        "tiles stored behind the next",
        stores_tiles_behind,
        |spec, rng, tally| {
            let boxes = boxes_of(spec);
            judge_several_tiles(spec, rng, tally, [boxes - 2, boxes + 1], |_| ());
        },
    );
}

/// The same with what most layers add. Of GELU a part of a tile waits for the first stages of the next one, for which k may be too short.
#[test]
fn layers_end_behind_the_next_tile() {
    with_stores_by_tma(
        "layers_end_behind_the_next_tile",
        "tiles of layers that end behind the next",
        stores_tiles_behind,
        |spec, rng, tally| {
            for gelu in [true, false] {
                let (activation, least) = match gelu {
                    true => (Activation::GeluErf, held_parts_of(spec)),
                    false => (
                        [Activation::Identity, Activation::Relu][rng.random_range(0..2usize)],
                        boxes_of(spec),
                    ),
                };
                let steps = match rng.random_bool(0.25) {
                    true => [least - 2, least - 1],
                    false => [least - 1, least + 1],
                };
                let bias = activation == Activation::Identity || rng.random();
                judge_several_tiles(spec, rng, tally, steps, |problem| {
                    problem.epilogue.bias = bias;
                    problem.epilogue.activation = activation;
                });
            }
        },
    );
}

/// Stages behind which GELU of a part of a tile is computed, as `Config::HELD_PARTS` has it.
fn held_parts_of(spec: &KernelSpec) -> usize {
    let header = source("tensor_core/half_layout_sm90.cuh");
    let number = |name: &str| constant(&header, name).unwrap_or_else(|| panic!("{name} of half_layout_sm90.cuh"));
    let sums = spec.tile.bn as usize / 2;
    let of_box = sums / boxes_of(spec);
    let room = number("CONSUMER_REGISTERS") - number("kOtherRegisters") - sums;
    sums.min(room / of_box * of_box) / number("HELD_PART")
}

/// Boxes of D that a tile is stored in.
fn boxes_of(spec: &KernelSpec) -> usize {
    (spec.tile.bn / spec.d_box.map_or(1, |d_box| d_box.inner)) as usize
}

/// A product with two or more tiles for the only cluster of a device, more than `steps[0]` portions of k and at most `steps[1]`, and this epilogue.
fn judge_several_tiles(
    spec: &'static KernelSpec,
    rng: &mut StdRng,
    tally: &Tally,
    steps: [usize; 2],
    epilogue: impl Fn(&mut GemmProblem),
) {
    const UNITS: [[usize; 2]; 5] = [[2, 1], [1, 2], [2, 2], [3, 1], [1, 3]];
    let device = DeviceInfo {
        sm_count: 2,
        ..Target::Hopper.device()
    };
    let units = UNITS[rng.random_range(0..UNITS.len())];
    let mut problem = units_of(spec, rng, units, steps);
    epilogue(&mut problem);
    let mut plan =
        Plan::named(spec.name, &problem, &device, Costs::built_in(&device)).expect("a problem for this kernel");
    plan.group_m = rng.random_range(1..=2);
    tally.judge(&gemm::Case::new(plan, Target::Hopper, device, 0, rng.next_u64()), rng);
}

/// Sums of 3×TF32 that are short take a fourth product, of the tails of both operands. Errors of random sums do not tell whether it is there.
#[test]
fn short_sums_have_the_product_of_both_tails() {
    const TEST: &str = "short_sums_have_the_product_of_both_tails";
    if ptx::skipped(TEST) {
        return;
    }
    let started = Instant::now();
    let seed = setting("CANDLE_SGEMM_EMULATED_SEED", 1);
    let tally = Tally::default();
    for target in [Target::Hopper, Target::Ampere] {
        let rows: Vec<_> = TABLE
            .iter()
            .filter(|spec| spec.arithmetic == Arithmetic::Tf32x3 && target.has(spec.file) && chosen(spec.name))
            .collect();
        in_parallel(rows.len(), |i| {
            let (spec, mut rng, device) = (rows[i], rng_of(rows[i].name, seed), target.device());
            let plans = (0..100).find_map(|_| {
                // As often as not with rows on 16 bytes, which most of these kernels need, and with gaps between them.
                let step = [1, 4][rng.random_range(0..2usize)];
                let mut size = |most: usize| (rng.random_range(1..=most.div_ceil(step)) * step).min(most / step * step);
                let [m, n] = [spec.tile.bm, spec.tile.bn].map(|tile| size(2 * tile as usize));
                let k = size(SHORT_SUM - 1).max(2); // one product is exact
                let mut layout = |rows: usize, cols: usize| {
                    let gap = rng.random_range(0..3) * step;
                    match rng.random() {
                        true => OperandLayout::row_major(cols + gap),
                        false => OperandLayout::col_major(rows + gap),
                    }
                };
                let problem = GemmProblem::new(m, n, k, layout(m, k), layout(k, n));
                let plan = Plan::named(spec.name, &problem, &device, Costs::built_in(&device)).ok()?;
                Some(Plan::variants(spec, &plan.problem, &device, Costs::built_in(&device)).collect::<Vec<_>>())
            });
            let Some(plan) = plans.and_then(|plans| plans.into_iter().choose(&mut rng)) else {
                tally.complain(format!("{}: no problem suits it", spec.name));
                return;
            };
            let case = gemm::Case::new(plan, target, device, 0, rng.next_u64()).of_tails();
            match case.run(&ptx::module(spec.file, target), Schedule::drawn(rng.next_u64())) {
                Ok((d, report)) => {
                    tally.ran(report);
                    if let Some(lost) = case.lost_tail(&d) {
                        tally.complain(format!("{case}: {lost}"));
                    }
                }
                Err(wrong) => tally.complain(format!("{case}:\n{wrong}")),
            }
        });
    }
    tally.conclude("short sums of tails", started);
}

/// So many of this product along three dimensions of a batch. Those of A and of B that do not `differ` are the same along them.
fn batch_of(mut problem: GemmProblem, extents: [usize; 3], differ: [[bool; 3]; 2]) -> GemmProblem {
    let GemmProblem { m, n, k, .. } = problem;
    let columns = problem.result_columns();
    let packed = |elements: usize, differs: [bool; 3]| {
        let (mut strides, mut step) = ([0; 4], elements);
        for i in (0..extents.len()).rev().filter(|&i| differs[i]) {
            strides[i + 1] = step as i64;
            step *= extents[i];
        }
        strides
    };
    problem.batch_dims = [1, extents[0], extents[1], extents[2]];
    problem.a = problem.a.with_batch_strides(packed(m * k, differ[0]));
    problem.b = problem.b.with_batch_strides(packed(k * n, differ[1]));
    problem.d = problem.d.with_batch_strides(packed(m * columns, [true; 3]));
    problem
}

/// Batches with several tiles for each block, whose epilogue is nothing but α, or gates: with the former consumers read where a tile lies in what the producer has left for
/// them. Small ones are so many that places are written anew. Operands are shared along some dimensions, so that not all of them fold.
#[test]
fn consumers_are_told_where_tiles_lie() {
    const UNITS: [[usize; 2]; 4] = [[1, 1], [2, 1], [1, 2], [2, 2]];
    with_stores_by_tma(
        "consumers_are_told_where_tiles_lie",
        "tiles of a batch, several for a block",
        |spec| spec.arithmetic == Arithmetic::Half,
        |spec, rng, tally| {
            let device = DeviceInfo {
                sm_count: if has_clusters(spec) { 2 } else { 1 },
                ..Target::Hopper.device()
            };
            let units = UNITS[rng.random_range(0..UNITS.len())];
            let one = units_of(spec, rng, units, [0, 2]);
            let matrices = (2 * MOST_WORK / (one.m * one.n * one.k)).clamp(2, 20);
            let outer = rng.random_range(1..=matrices.min(3));
            let middle = rng.random_range(1..=(matrices / outer).min(3));
            let extents = [outer, middle, matrices / outer / middle];
            let problem = batch_of(one, extents, rng.random());
            let mut plan =
                Plan::named(spec.name, &problem, &device, Costs::built_in(&device)).expect("a problem for this kernel");
            plan.group_m = rng.random_range(1..=2);
            tally.judge(&gemm::Case::new(plan, Target::Hopper, device, 0, rng.next_u64()), rng);
        },
    );
}

/// Products whose last units several clusters share by ranges of k, with and without whole waves before them, and with more pieces of a
/// unit than two.
#[test]
fn clusters_share_units_by_ranges_of_k() {
    const UNITS: [[usize; 2]; 5] = [[1, 1], [2, 1], [1, 3], [2, 2], [5, 1]];
    let (mut cut, mut whole, mut many) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let all = chosen("");
    with_stores_by_tma(
        "clusters_share_units_by_ranges_of_k",
        "units shared by ranges of k",
        |spec| spec.split_k == SplitK::StreamK,
        |spec, rng, tally| {
            let units = UNITS[rng.random_range(0..UNITS.len())];
            let device = DeviceInfo {
                sm_count: 2 * rng.random_range(2..=5),
                ..Target::Hopper.device()
            };
            let mut problem = units_of(spec, rng, units, [0, 7]);
            if units[0] * units[1] <= 2 && rng.random() {
                problem = batch_of(problem, [1, 1, 2], [[true; 3]; 2]);
            }
            let problem = problem.folded().expect("a product");
            let plans = Plan::variants(spec, &problem, &device, Costs::built_in(&device));
            for mut plan in plans {
                let Some(way) = plan.stream_k() else {
                    continue;
                };
                cut.fetch_add(1, Ordering::Relaxed);
                whole.fetch_add(usize::from(way.whole_tiles > 0), Ordering::Relaxed);
                many.fetch_add(usize::from(2 * way.share() < way.steps), Ordering::Relaxed);
                plan.group_m = rng.random_range(1..=2);
                tally.judge(&gemm::Case::new(plan, Target::Hopper, device, 0, rng.next_u64()), rng);
            }
        },
    );
    let [cut, whole, many] = [&mut cut, &mut whole, &mut many].map(|count| *count.get_mut());
    println!("{cut} plans, {whole} with whole waves, {many} with units of more than two pieces");
    assert!(!all || cut == 0 || whole.min(many) > 0);
}

/// The kernels for the architectures that have no run of their own are parsed, too: an instruction that the emulator lacks is
/// named.
#[test]
fn every_instruction_is_known() {
    if ptx::skipped("every_instruction_is_known") {
        return;
    }
    let files = files();
    let all: Vec<(&str, Target)> = [Target::Ada, Target::Blackwell]
        .into_iter()
        .flat_map(|target| files.iter().map(move |file| (*file, target)))
        .filter(|(file, target)| target.has(file))
        .collect();
    in_parallel(all.len(), |i| {
        let (file, target) = all[i];
        ptx::module(file, target);
    });
}

/// The fault that this crate once had: stages that take turns between sets of warps, their number no multiple of the sets'.
/// Then a set does not see every round of a stage's barrier, and by the parity a round cannot be told from the one before the
/// last.
#[test]
fn stages_that_change_between_sets_are_found() {
    if ptx::skipped("stages_that_change_between_sets_are_found") {
        return;
    }
    const FILE: &str = "ffma/ffma_kmajor_sm90";
    const NAME: &str = "ffma_kmajor_64x64_sm90";
    const MORE_STAGES: u32 = 2;
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    let source = std::fs::read_to_string(folder.join(FILE).with_extension("cu")).expect("the kernel");
    let (begin, end) = ("static_assert(STAGES % SETS == 0,", ");");
    let from = source.find(begin).expect("the assertion that forbids it");
    let to = from + source[from..].find(end).expect("its end") + end.len();
    let right = format!("FFMA_KMAJOR({NAME}, 64, 64, 8, 4, 8, ");
    assert!(source.contains(&right), "the kernel has other stages now");
    let broken = [&source[..from], &source[to..]]
        .concat()
        .replace(&right, &format!("FFMA_KMAJOR({NAME}, 64, 64, 8, 4, 10, "));
    // The file lies elsewhere: what it includes, from its own folder or another, gets a full path.
    let of_this_checkout = |line: &str| match line.strip_prefix("#include \"") {
        Some(path) => format!("#include \"{}/ffma/{path}\n", folder.display()),
        None => format!("{line}\n"),
    };
    let broken: String = broken.lines().map(of_this_checkout).collect();
    let path = ptx::kept().join("broken_kmajor.cu");
    std::fs::write(&path, broken).expect("target/tmp");
    let text = ptx::from_source(&path, "broken_kmajor_sm90", Target::Hopper);
    let kernel = mutants::Kernel::new(&text, NAME);
    let module = kernel.module();
    let spec = TABLE.iter().find(|spec| spec.name == NAME).expect("a row of the table");
    let (started, began) = (Instant::now(), busy_seconds());
    let mut rng = StdRng::seed_from_u64(1);
    for run in 0..200 {
        let drawn = gemm::draw(&mut rng, spec, Target::Hopper, MOST_WORK, true, Variety::Tame).expect("a problem");
        let mut case = gemm::Case::drawn(drawn.plans[0], Target::Hopper, &drawn, rng.next_u64());
        case.more_shared = MORE_STAGES * ((64 + 64) * 128 + 16);
        match case.run(&module, Schedule::drawn(rng.next_u64())) {
            Err(gemm::Wrong::Found(finding)) => {
                println!(
                    "found after {run} right runs and {:.1} s:\n{finding}",
                    started.elapsed().as_secs_f64()
                );
                assert!(
                    matches!(finding.kind, Kind::SharedRace | Kind::Uninitialised),
                    "a read of a stage whose round has not arrived, not {finding}"
                );
                assert!(
                    busy_seconds() - began < 60.0,
                    "processor time, beside whatever else runs"
                );
                return;
            }
            Err(wrong) => panic!("{wrong}"),
            Ok(_) => {}
        }
    }
    panic!("not found");
}

/// Seconds that this thread has had a processor, where the system says it; else seconds of the clock.
fn busy_seconds() -> f64 {
    static STARTED: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    match text
        .split(' ')
        .next()
        .and_then(|nanoseconds| nanoseconds.parse::<f64>().ok())
    {
        Some(nanoseconds) => nanoseconds * 1e-9,
        None => STARTED.get_or_init(Instant::now).elapsed().as_secs_f64(),
    }
}

/// How fast the emulator is on one processor, all checks on: `cargo test --test emulated how_fast -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn how_fast() {
    if ptx::skipped("how_fast") {
        return;
    }
    const RUNS: u64 = 3;
    let kernels = [
        ("sgemm_13_warp_tiled", Target::Ampere),
        ("ffma_pipelined_128x128", Target::Ampere),
        ("ffma_kmajor_64x64_sm90", Target::Hopper),
        ("ffma_specialized_128x256_nt_sm90", Target::Hopper),
        ("gemm_tf32_mma_64x64", Target::Ampere),
        ("gemm_tf32x3_mma_64x64", Target::Ampere),
        ("gemm_tf32_sm90_128x128_tn", Target::Hopper),
        ("gemm_tf32x3_sm90_64x64_nt", Target::Hopper),
    ];
    for (name, target) in kernels.into_iter().filter(|(name, _)| chosen(name)) {
        let (m, n, k) = (256, 256, 256);
        let (rows, cols) = (OperandLayout::row_major(k), OperandLayout::col_major(k));
        let mut problem = GemmProblem::new(m, n, k, rows, cols);
        if name.contains("_tn") {
            problem.a = OperandLayout::col_major(m);
            problem.b = OperandLayout::row_major(n);
        }
        if name.contains("tf32_") {
            problem.precision = Precision::Tf32;
        }
        let device = DeviceInfo {
            sm_count: 4,
            ..target.device()
        };
        let plan = Plan::named(name, &problem, &device, Costs::built_in(&device)).expect("a problem for this kernel");
        let case = gemm::Case::new(plan, target, device, 0, 1);
        let module = ptx::module(plan.kernel.file, target);
        let began = busy_seconds();
        let (mut instructions, mut multiply_adds) = (0, 0);
        for seed in 0..RUNS {
            let order = ptx_emulator::Order::Random;
            let (_, report) = case
                .run(&module, Schedule { order, seed })
                .expect("a kernel that is right");
            instructions += report.thread_instructions;
            multiply_adds += report.tensor_multiply_adds;
        }
        let seconds = busy_seconds() - began;
        let rate = |many: u64| many as f64 * 1e-6 / seconds;
        println!(
            "{name}: {:.0} million thread instructions a second, {:.0} million tensor multiply-adds",
            rate(instructions),
            rate(multiply_adds)
        );
    }
}
