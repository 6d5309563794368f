//! Every kernel of both tables without a GPU: their PTX runs in the emulator, under schedules that want it to fail.
//!
//! Problems, plans and schedules are drawn by seed; each row of the tables has its turn. `CANDLE_SGEMM_EMULATED_CASES=n` draws
//! n problems for each row (2 otherwise), `CANDLE_SGEMM_EMULATED_SEED=n` others, and `CANDLE_SGEMM_EMULATED_KERNEL=text` keeps
//! to kernels whose name contains the text.

mod gemm;
mod mutants;
mod ptx;
mod transpositions;

use candle_sgemm::gemm::TABLE;
use candle_sgemm::transpose;
use ptx::Target;
use ptx_emulator::{Kind, Schedule};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::Instant;

/// Multiply-adds of a problem, at most, its tiles filled up.
const MOST_WORK: usize = 6 << 20;
/// Bytes that a transposition moves, at most.
const MOST_BYTES: usize = 192 << 10;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

fn chosen(name: &str) -> bool {
    std::env::var("CANDLE_SGEMM_EMULATED_KERNEL").map_or(true, |text| name.contains(&text))
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
}

impl Tally {
    fn ran(&self, report: ptx_emulator::Report) {
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

fn products(target: Target) {
    let started = Instant::now();
    let seed = setting("CANDLE_SGEMM_EMULATED_SEED", 1);
    let many = setting("CANDLE_SGEMM_EMULATED_CASES", 2);
    let rows: Vec<_> = TABLE
        .iter()
        .filter(|spec| target.has(spec.file) && chosen(spec.name))
        .collect();
    let tally = Tally::default();
    in_parallel(rows.len(), |i| {
        let spec = rows[i];
        let mut rng = StdRng::seed_from_u64(seed ^ (i as u64) << 32);
        let began = Instant::now();
        let mut ran = 0;
        for _ in 0..many {
            let Some((plans, device, offset)) = gemm::draw(&mut rng, spec, target, MOST_WORK, false) else {
                tally.complain(format!("{}: no problem suits it", spec.name));
                break;
            };
            // k whole, and one of the ways to cut it.
            let mut picks = vec![0];
            if plans.len() > 1 {
                picks.push(rng.random_range(1..plans.len()));
            }
            for pick in picks {
                let case = gemm::Case::new(plans[pick], target, device, offset, rng.next_u64());
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
    tally.conclude(&format!("products for {target:?}"), started);
}

#[test]
fn every_product_kernel_for_hopper() {
    if !ptx::skipped("every_product_kernel_for_hopper") {
        products(Target::Hopper);
    }
}

#[test]
fn every_product_kernel_for_ampere() {
    if !ptx::skipped("every_product_kernel_for_ampere") {
        products(Target::Ampere);
    }
}

fn movements(target: Target) {
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
        let mut rng = StdRng::seed_from_u64(seed ^ (i as u64) << 32);
        let module = ptx::module(kernel.file, target);
        for _ in 0..many {
            let Some(case) = transpositions::Case::draw(&mut rng, kernel, target, MOST_BYTES) else {
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

#[test]
fn every_transposition_kernel_for_hopper() {
    if !ptx::skipped("every_transposition_kernel_for_hopper") {
        movements(Target::Hopper);
    }
}

#[test]
fn every_transposition_kernel_for_ampere() {
    if !ptx::skipped("every_transposition_kernel_for_ampere") {
        movements(Target::Ampere);
    }
}

/// A kernel of each family, the smallest that shows what the family does.
const FAMILIES: [(&str, Target); 14] = [
    ("sgemm_13_warp_tiled", Target::Hopper),
    ("sgemm_14_async_pipelined", Target::Ampere),
    ("ffma_64x64", Target::Hopper),
    ("ffma_pipelined", Target::Ampere),
    ("ffma_direct_128x32_nn_sm90", Target::Hopper),
    ("ffma_grouped_64x64_nn_sm90", Target::Hopper),
    ("ffma_kmajor_32x64_sm90", Target::Hopper),
    ("ffma_kmajor_64x64_stream_sm90", Target::Hopper),
    ("ffma_specialized_128x128_nn_sm90", Target::Hopper),
    ("ffma_strips_16_sm90", Target::Hopper),
    ("gemm_tf32_sm90_128x64_tn", Target::Hopper),
    ("gemm_tf32_sm90_128x128_pair_tn", Target::Hopper),
    ("gemm_tf32x3_sm90_32x64_nn", Target::Hopper),
    ("gemm_tf32x3_mma_64x64", Target::Ampere),
];

/// What became of a kernel's mutants.
struct Outcome {
    made: usize,
    /// Left out, because they are the same kernel.
    same: usize,
    tried: usize,
    found: Vec<String>,
    survivors: Vec<String>,
}

/// Breaks a kernel in as many places as asked for, and counts which breaks are found.
fn mutants_of(name: &str, target: Target, seed: u64, most: usize) -> Outcome {
    const CASES: usize = 8;
    const RUNS: usize = 20;
    /// One in so many mutants is a guard.
    const GUARDS: usize = 10;
    const MUTANT_WORK: usize = 10 << 20;
    let spec = TABLE
        .iter()
        .find(|spec| spec.name.starts_with(name))
        .expect("a row of the table");
    let kernel = mutants::Kernel::new(&ptx::text(spec.file, target), spec.name);
    let original = kernel.module();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut cases = Vec::new();
    let (mut covered, mut edges) = (BTreeSet::new(), BTreeSet::new());
    for i in 0..CASES {
        let Some((plans, device, offset)) = gemm::draw(&mut rng, spec, target, MUTANT_WORK, i % 2 == 1) else {
            continue;
        };
        let pick = rng.random_range(0..plans.len());
        let mut case = gemm::Case::new(plans[pick], target, device, offset, rng.next_u64());
        match case.run(&original, Schedule::drawn(1)) {
            Ok((_, report)) => {
                case.limit = 20 * report.warp_instructions + 200_000;
                let lines: BTreeSet<u32> = report.lines.iter().copied().collect();
                let on_edge: BTreeSet<u32> = report.edges.iter().copied().collect();
                covered.extend(&lines);
                edges.extend(&on_edge);
                cases.push((case, lines, on_edge));
            }
            Err(wrong) => panic!("{name} as it is: {wrong}"),
        }
    }
    let mut all = kernel.mutants(&covered, &edges);
    // A sample, in which the many guards do not crowd out the rest.
    for i in (1..all.len()).rev() {
        all.swap(i, rng.random_range(0..=i));
    }
    let mut guards = 0;
    all.retain(|mutant| {
        let guard = mutant.what.starts_with(mutants::GUARD);
        guards += usize::from(guard);
        !guard || guards <= most / GUARDS
    });
    let many = all.len();
    all.retain(|mutant| kernel.equivalent(mutant).is_none());
    let left_out = many - all.len();
    println!("{name}: {left_out} of {many} mutants are the same kernel");
    all.truncate(most);
    let (mut found, mut survivors) = (Vec::new(), Vec::new());
    for mutant in &all {
        let module = kernel.mutated(mutant);
        let mut fate = mutants::Fate::Survived;
        let guard = mutant.what.starts_with(mutants::GUARD);
        let shows = |lines: &BTreeSet<u32>, edges: &BTreeSet<u32>| {
            if guard {
                edges.contains(&mutant.line)
            } else {
                lines.contains(&mutant.line)
            }
        };
        let those: Vec<_> = cases.iter().filter(|(_, lines, edges)| shows(lines, edges)).collect();
        for run in 0..RUNS {
            let (case, ..) = those[(run + those.len() - 1) % those.len()];
            let order = ptx_emulator::Order::ALL[(run + 2) % ptx_emulator::Order::ALL.len()];
            let schedule = Schedule {
                order,
                seed: seed + run as u64,
            };
            let result = case.run(&module, schedule);
            let seen = match result {
                Err(gemm::Wrong::Found(finding)) => format!("{:?}", finding.kind),
                Err(gemm::Wrong::Result(_)) => "output".to_string(),
                Ok((d, _)) => match case.complaint(&d) {
                    Some(_) => "result".to_string(),
                    None => continue,
                },
            };
            fate = mutants::Fate::Found(seen, run + 1);
            break;
        }
        match fate {
            mutants::Fate::Found(how, runs) => found.push(format!("{how} after {runs}: {}", mutant.what)),
            mutants::Fate::Survived => {
                survivors.push(format!("{name}: {} ({})", mutant.what, kernel.source(mutant.line)))
            }
        }
    }
    Outcome {
        made: many,
        same: left_out,
        tried: all.len(),
        found,
        survivors,
    }
}

/// At least this share of the mutants has to be found.
const FOUND: f64 = 0.95;

#[test]
fn broken_kernels_are_found() {
    if ptx::skipped("broken_kernels_are_found") {
        return;
    }
    let started = Instant::now();
    let most = setting("CANDLE_SGEMM_EMULATED_MUTANTS", 10) as usize;
    let seed = setting("CANDLE_SGEMM_EMULATED_SEED", 1);
    let families: Vec<_> = FAMILIES.iter().filter(|(name, _)| chosen(name)).collect();
    let totals = Mutex::new((0, 0, Vec::new(), 0, 0));
    in_parallel(families.len(), |i| {
        let (name, target) = *families[i];
        let began = Instant::now();
        let Outcome {
            made,
            same,
            tried,
            found,
            survivors,
        } = mutants_of(name, target, seed, most);
        let mut kinds = BTreeMap::<&str, usize>::new();
        for text in &found {
            *kinds.entry(text.split(' ').next().unwrap_or_default()).or_default() += 1;
        }
        println!(
            "{name}: {} of {tried} found in {:.0} s, {kinds:?}",
            found.len(),
            began.elapsed().as_secs_f64()
        );
        if std::env::var_os("CANDLE_SGEMM_EMULATED_VERBOSE").is_some() {
            found.iter().for_each(|text| println!("    {text}"));
        }
        survivors.iter().for_each(|text| println!("    survived: {text}"));
        let mut totals = totals.lock().expect("nobody panics with it");
        totals.0 += tried;
        totals.1 += found.len();
        totals.2.extend(survivors);
        totals.3 += made;
        totals.4 += same;
    });
    let (many, found, survivors, made, same) = totals.into_inner().expect("nobody panics with it");
    println!(
        "{found} of {many} mutants found in {:.0} s",
        started.elapsed().as_secs_f64()
    );
    assert!(
        same * 10 <= made,
        "{same} of {made} mutants are left out as the same kernel"
    );
    assert!(
        found as f64 >= FOUND * many as f64,
        "too many survive:\n{}",
        survivors.join("\n")
    );
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
        .replace(&right, &format!("FFMA_KMAJOR({NAME}, 64, 64, 8, 4, 10, "))
        .replace("#include \"../", &format!("#include \"{}/", folder.display()))
        .replace(
            "#include \"along",
            &format!("#include \"{}/ffma/along", folder.display()),
        )
        .replace("#include \"lane", &format!("#include \"{}/ffma/lane", folder.display()));
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken_kmajor.cu");
    std::fs::write(&path, broken).expect("target/tmp");
    let text = ptx::from_source(&path, "broken_kmajor", Target::Hopper);
    let kernel = mutants::Kernel::new(&text, NAME);
    let module = kernel.module();
    let spec = TABLE.iter().find(|spec| spec.name == NAME).expect("a row of the table");
    let started = Instant::now();
    let mut rng = StdRng::seed_from_u64(1);
    for run in 0..200 {
        let (plans, device, offset) = gemm::draw(&mut rng, spec, Target::Hopper, MOST_WORK, true).expect("a problem");
        let mut case = gemm::Case::new(plans[0], Target::Hopper, device, offset, rng.next_u64());
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
                assert!(started.elapsed() < std::time::Duration::from_secs(60));
                return;
            }
            Err(wrong) => panic!("{wrong}"),
            Ok(_) => {}
        }
    }
    panic!("not found");
}
