//! Kernels of every family, broken on purpose: how many breaks are found, as what, and after how many runs.

use crate::kernels::ptx::{self, Target};
use crate::kernels::{attention, attention_step, gemm, rowwise, transpositions};
use crate::mutants::{Break, Kernel, Mutant};
use crate::{chosen, files, in_parallel, rng_of, setting};
use candle_sgemm::attention as attentions;
use candle_sgemm::attention::AttentionKernel;
use candle_sgemm::gemm::{KernelSpec, TABLE};
use candle_sgemm::rowwise as rowwise_operations;
use candle_sgemm::rowwise::RowwiseKernel;
use candle_sgemm::transpose;
use candle_sgemm::transpose::kernels::{Instance, TransposeKernel};
use candle_sgemm::transpose::plan::Step;
use ptx_emulator::{Module, Order, Report, Schedule};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Mutex;
use std::time::Instant;

/// Kernels of a family, the smallest that show what the family does. A name of the table of transpositions stands for its
/// kernels for all sizes of elements.
type Family = (&'static str, Target, &'static [&'static str]);

/// The slowest first, so that all processors are busy to the end.
const FAMILIES: [Family; 42] = [
    (
        "16 bits on Hopper, 2 CTAs",
        Target::Hopper,
        &["gemm_bf16_sm90_128x128_2cta_tn", "gemm_f16_sm90_128x96_2cta_along_n_nt"],
    ),
    (
        "16 bits on Hopper",
        Target::Hopper,
        &[
            "gemm_bf16_sm90_64x64_tn",
            "gemm_f16_sm90_32x64_nt",
            "gemm_bf16_sm90_128x64_tt",
        ],
    ),
    (
        "gated columns",
        Target::Hopper,
        &["gemm_bf16_sm90_128x224_2cta_gated_nt", "gemm_f16_sm90_128x128_gated_nt"],
    ),
    (
        "mma.sync, 16 bits",
        Target::Hopper,
        &["gemm_bf16_mma_64x64", "gemm_f16_mma_16x64"],
    ),
    (
        "TF32 on Hopper",
        Target::Hopper,
        &["gemm_tf32_sm90_128x64_tn", "gemm_tf32_sm90_128x256_2cta_nt"],
    ),
    (
        "3×TF32 on Hopper",
        Target::Hopper,
        &["gemm_tf32x3_sm90_32x64_nn", "gemm_tf32x3_sm90_64x64_tn"],
    ),
    (
        "FFMA, specialized",
        Target::Hopper,
        &["ffma_specialized_128x128_tn_sm90", "ffma_specialized_128x128_tt_sm90"],
    ),
    (
        "FFMA, k-major, stream-K",
        Target::Hopper,
        &["ffma_kmajor_64x64_stream_k_sm90"],
    ),
    ("FFMA, k-major", Target::Hopper, &["ffma_kmajor_32x64_sm90"]),
    ("FFMA, small m", Target::Hopper, &["ffma_small_m_16_sm90"]),
    (
        "FFMA, sliced-K",
        Target::Hopper,
        &["ffma_sliced_k_64x64_nn_sm90", "ffma_sliced_k_64x64_tn_sm90"],
    ),
    (
        "FFMA, words by producers",
        Target::Hopper,
        &[
            "ffma_sliced_k_128x128_words_sm90",
            "ffma_specialized_128x128_words_sm90",
        ],
    ),
    (
        "FFMA, direct",
        Target::Hopper,
        &["ffma_direct_128x32_nn_sm90", "ffma_direct_128x64_nt_sm90"],
    ),
    (
        "FFMA, direct, no transposition",
        Target::Hopper,
        &["ffma_direct_64x64_tn_sm90"],
    ),
    ("FFMA, pipelined", Target::Ampere, &["ffma_pipelined_128x128"]),
    (
        "FFMA, tiled",
        Target::Hopper,
        &["ffma_64x64", "ffma_16x128", "ffma_128x32"],
    ),
    ("FFMA, words", Target::Hopper, &["ffma_words_32x32", "ffma_words_16x64"]),
    (
        "FFMA, unaligned",
        Target::Hopper,
        &[
            "ffma_unaligned_16x32",
            "ffma_unaligned_32x32",
            "ffma_unaligned_64x32",
            "ffma_unaligned_64x48",
        ],
    ),
    (
        "FFMA, unaligned, sliced-K",
        Target::Hopper,
        &[
            "ffma_unaligned_16x32_sliced_k",
            "ffma_unaligned_32x32_sliced_k",
            "ffma_unaligned_64x32_sliced_k",
        ],
    ),
    ("few k", Target::Hopper, &["ffma_few_k_1024x1", "few_k_bf16_128x8"]),
    (
        "FFMA, outer products",
        Target::Hopper,
        &["ffma_outer_64x128x8", "outer_bf16_256x32x16"],
    ),
    (
        "thin products",
        Target::Hopper,
        &[
            "thin_axpy_4x128",
            "thin_axpy_4x16",
            "thin_axpy_32x8",
            "thin_axpy_32x1",
            "thin_axpy_1x128",
            "thin_wide_4x64",
            "thin_dot_128x4",
            "thin_dot_4x128",
            "thin_run_128x1",
            "thin_run_128x4",
        ],
    ),
    (
        "thin products, 16 bits",
        Target::Hopper,
        &[
            "thin_dot_bf16_64x8",
            "thin_dot_f16_8x16",
            "thin_axpy_bf16_16x64",
            "thin_axpy_f16_64x8",
        ],
    ),
    (
        "matrix and vector",
        Target::Hopper,
        &[
            "gemv_dot_m1",
            "gemv_dot_n4",
            "gemv_dot_m8_deep",
            "gemv_short_m2",
            "gemv_short_n4",
            "gemv_axpy_m2",
            "gemv_axpy_n4",
            "gemv_panel_n16",
            "gemv_stream_m1_k1024",
        ],
    ),
    (
        "few vectors past small matrices",
        Target::Hopper,
        &[
            "brief_axpy_1x8",
            "brief_axpy_4x64",
            "brief_axpy_32x8",
            "brief_dot_4x8",
            "brief_dot_16x1",
            "brief_dot_8x8",
            "brief_lines_1x64",
            "brief_lines_128x4",
            "brief_wide_1x32",
            "brief_wide_4x16",
        ],
    ),
    (
        "few rows past small matrices, 16 bits",
        Target::Hopper,
        &["brief_bf16_1x8", "brief_f16_4x32"],
    ),
    (
        "matrix and vector, 16 bits",
        Target::Hopper,
        &["gemv_bf16_m8_n8", "gemv_f16_m16_n8", "gemv_stream_f16_m2_k4096"],
    ),
    (
        "few rows through rings",
        Target::Hopper,
        &["gemv_ring_bf16_m8", "gemv_ring_f16_m8_2blocks"],
    ),
    (
        "norms and gates inside",
        Target::Hopper,
        &["gemv_fused_dot_m2", "gemv_fused_m1_k1024"],
    ),
    ("few rows", Target::Hopper, &["few_rows_16x8", "few_rows_16x12"]),
    (
        "few rows past short lines, 16 bits",
        Target::Hopper,
        &["gemv_short_bf16_m1", "gemv_short_f16_m4", "gemv_short_bf16_n2"],
    ),
    (
        "mma.sync",
        Target::Ampere,
        &["gemm_tf32x3_mma_64x64", "gemm_tf32_mma_64x64"],
    ),
    (
        "the ladder, asynchronous",
        Target::Ampere,
        &["sgemm_14_async_pipelined", "sgemm_14_async_pipelined_128x128"],
    ),
    (
        "the ladder, synchronous",
        Target::Hopper,
        &["sgemm_13_warp_tiled", "sgemm_12_double_buffered", "sgemm_03_shared"],
    ),
    (
        "the ladder, first rungs",
        Target::Hopper,
        &[
            "sgemm_01_naive",
            "sgemm_02_coalesced",
            "sgemm_04_l1_register_block",
            "sgemm_05_thread_tile_1d",
            "sgemm_06_thread_tile_2d",
            "sgemm_07_thread_tile_strided",
            "sgemm_08_register_cached",
            "sgemm_09_quadrants",
            "sgemm_10_vectorized",
            "sgemm_11_tuned_shared",
        ],
    ),
    (
        "attention, few queries",
        Target::Hopper,
        &["attention_rows_f32_q4_w64", "attention_rows_bf16_q1_w128"],
    ),
    (
        "attention, steps",
        Target::Hopper,
        &["attention_step_f32_q4_w64", "attention_step_bf16_q1_w128"],
    ),
    (
        "attention, tiles",
        Target::Hopper,
        &["attention_tiles_f32_16x32_w32", "attention_tiles_f16_16x32_w64"],
    ),
    (
        "operations on rows",
        Target::Hopper,
        &[
            "norm_f32_128x4",
            "norm_bf16_32x8_elements",
            "softmax_f32_512x1",
            "softmax_f16_32x4",
            "argmax_f32_256x4",
            "argmax_bf16_32x8",
        ],
    ),
    ("transposition by TMA", Target::Hopper, &["transpose_06_tma"]),
    (
        "transpositions and copies, first rungs",
        Target::Hopper,
        &[
            "transpose_01_naive",
            "transpose_02_shared",
            "transpose_04_diagonal",
            "copy_01_plain",
            "copy_02_shared",
        ],
    ),
    (
        "other transpositions and copies",
        Target::Hopper,
        &[
            "transpose_03_padded",
            "transpose_05_swizzled",
            "transpose_07_unaligned",
            "transpose_08_few_rows",
            "transpose_09_few_cols",
            "transpose_10_registers",
            "copy_03_rows",
        ],
    ),
];

/// A kernel that is broken.
#[derive(Clone, Copy)]
enum Subject {
    Product(&'static KernelSpec),
    Movement(&'static TransposeKernel, &'static Instance),
    Attention(&'static AttentionKernel),
    Step(&'static AttentionKernel),
    Rowwise(&'static RowwiseKernel),
}

impl Subject {
    fn of(name: &str) -> Vec<Subject> {
        let products = TABLE.iter().filter(|spec| spec.name == name).map(Subject::Product);
        let movements = transpose::TABLE
            .iter()
            .filter(|kernel| kernel.name == name)
            .flat_map(|kernel| {
                kernel
                    .instances
                    .iter()
                    .map(|instance| Subject::Movement(kernel, instance))
            });
        let attention = attentions::TABLE
            .iter()
            .filter(|kernel| kernel.name == name)
            .map(Subject::Attention);
        let steps = attentions::STEPS
            .iter()
            .filter(|kernel| kernel.name == name)
            .map(Subject::Step);
        let rowwise = rowwise_operations::kernels::all()
            .filter(|kernel| kernel.name == name)
            .map(Subject::Rowwise);
        let all: Vec<_> = products
            .chain(movements)
            .chain(attention)
            .chain(steps)
            .chain(rowwise)
            .collect();
        assert!(!all.is_empty(), "no table has {name}");
        all
    }

    fn name(self) -> &'static str {
        match self {
            Subject::Product(spec) => spec.name,
            Subject::Movement(_, instance) => instance.entry,
            Subject::Attention(kernel) => kernel.name,
            Subject::Step(kernel) => kernel.name,
            Subject::Rowwise(kernel) => kernel.name,
        }
    }

    fn file(self) -> &'static str {
        match self {
            Subject::Product(spec) => spec.file,
            Subject::Movement(kernel, _) => kernel.file,
            Subject::Attention(kernel) => kernel.file,
            Subject::Step(kernel) => kernel.file,
            Subject::Rowwise(kernel) => kernel.file,
        }
    }

    fn kernel(self, target: Target) -> Kernel {
        Kernel::new(&ptx::text(self.file(), target), self.name())
    }

    /// A case of so many multiply-adds; a deep one is deep enough for rings to come round.
    fn draw(self, rng: &mut StdRng, target: Target, work: usize, deep: bool) -> Option<Case> {
        const BYTES: usize = 64 << 10;
        const ELEMENTS: usize = 8 << 10;
        const TRIES: usize = 50;
        match self {
            Subject::Product(spec) => {
                let drawn = gemm::draw(rng, spec, target, work, deep, gemm::Variety::Tame)?;
                let plan = drawn.plans[rng.random_range(0..drawn.plans.len())];
                let case = gemm::Case::drawn(plan, target, &drawn, rng.next_u64());
                Some(Case::Product(Box::new(case)))
            }
            Subject::Movement(kernel, instance) => (0..TRIES)
                .filter_map(|_| transpositions::Case::draw(rng, kernel, target, BYTES, false))
                .find(|case| matches!(&case.plan.step, Step::Launch { instance: drawn, .. } if drawn.entry == instance.entry))
                .map(|case| Case::Movement(Box::new(case))),
            Subject::Attention(kernel) => attention::Case::draw(rng, kernel, target, work / 2, false)
                .map(|case| Case::Attention(Box::new(case))),
            Subject::Step(kernel) => attention_step::Case::draw(rng, kernel, target, work / 2, false)
                .map(|case| Case::Step(Box::new(case))),
            Subject::Rowwise(kernel) => rowwise::Case::draw(rng, kernel, target, ELEMENTS, false)
                .map(|case| Case::Rowwise(Box::new(case))),
        }
    }
}

enum Case {
    Product(Box<gemm::Case>),
    Movement(Box<transpositions::Case>),
    Attention(Box<attention::Case>),
    Step(Box<attention_step::Case>),
    Rowwise(Box<rowwise::Case>),
}

impl Case {
    fn limit(&mut self, instructions: u64) {
        match self {
            Case::Product(case) => case.limit = instructions,
            Case::Movement(case) => case.limit = instructions,
            Case::Attention(case) => case.limit = instructions,
            Case::Step(case) => case.limit = instructions,
            Case::Rowwise(case) => case.limit = instructions,
        }
    }

    /// Runs the case with this code; what is wrong is said in a word.
    fn run(&self, module: &Module, schedule: Schedule) -> Result<Report, String> {
        let wrong = |wrong| match wrong {
            gemm::Wrong::Found(finding) => format!("{:?}", finding.kind),
            gemm::Wrong::Result(_) => "result".to_string(),
        };
        match self {
            Case::Product(case) => {
                let (d, report) = case.run(module, schedule).map_err(wrong)?;
                match case.complaint(&d) {
                    Some(_) => Err("result".to_string()),
                    None => Ok(report),
                }
            }
            Case::Movement(case) => case.run(module, schedule).map_err(wrong),
            Case::Attention(case) => case.run(module, schedule).map(|(_, report)| report).map_err(wrong),
            Case::Step(case) => case.run(module, schedule).map(|(_, report)| report).map_err(wrong),
            Case::Rowwise(case) => case.run(module, schedule).map(|(_, report)| report).map_err(wrong),
        }
    }
}

/// A case, the lines that it carries out, and those where some thread stands on a guard's edge.
struct Covered {
    case: Case,
    lines: BTreeSet<u32>,
    edges: BTreeSet<u32>,
}

impl Covered {
    fn shows(&self, mutant: &Mutant) -> bool {
        match mutant.kind {
            Break::Guard => self.edges.contains(&mutant.line),
            _ => self.lines.contains(&mutant.line),
        }
    }
}

/// A kernel as it is, its cases and its mutants.
struct Patient {
    subject: Subject,
    target: Target,
    kernel: Kernel,
    cases: Vec<Covered>,
}

impl Patient {
    fn new(subject: Subject, target: Target, seed: u64) -> (Self, Vec<Mutant>) {
        const CASES: usize = 10;
        const WORK: usize = 10 << 20;
        let kernel = subject.kernel(target);
        let original = kernel.module();
        let mut rng = StdRng::seed_from_u64(seed);
        let mut cases = Vec::new();
        for i in 0..CASES {
            let Some(mut case) = subject.draw(&mut rng, target, WORK, i % 2 == 1) else {
                continue;
            };
            match case.run(&original, Schedule::drawn(1)) {
                Ok(report) => {
                    case.limit(20 * report.warp_instructions + 200_000);
                    cases.push(Covered {
                        case,
                        lines: report.lines.into_iter().collect(),
                        edges: report.edges.into_iter().collect(),
                    });
                }
                Err(wrong) => panic!("{} as it is: {wrong}", subject.name()),
            }
        }
        let union = |of: fn(&Covered) -> &BTreeSet<u32>| cases.iter().flat_map(of).copied().collect();
        let mutants = kernel.mutants(&union(|covered| &covered.lines), &union(|covered| &covered.edges));
        let patient = Patient {
            subject,
            target,
            kernel,
            cases,
        };
        (patient, mutants)
    }

    /// How a mutant is found, and in which run: first with the cases that show it, then with others, small and many, then with deep ones.
    fn examine(&self, mutant: &Mutant, seed: u64) -> Option<(String, usize)> {
        const RUNS: usize = 15;
        const MORE_RUNS: usize = 80;
        const DEEP_RUNS: usize = 20;
        const MORE_INSTRUCTIONS: u64 = 3 << 20;
        const WORK: usize = 1 << 20;
        let module = self.kernel.mutated(mutant);
        let those: Vec<_> = self.cases.iter().filter(|covered| covered.shows(mutant)).collect();
        let schedule = |run: usize| Schedule {
            order: Order::ALL[(run + 2) % Order::ALL.len()],
            seed: seed + run as u64,
        };
        for run in 0..RUNS {
            let covered = those[(run + those.len() - 1) % those.len()];
            if let Err(how) = covered.case.run(&module, schedule(run)) {
                return Some((how, run + 1));
            }
        }
        for (deep, runs) in [
            (false, RUNS..RUNS + MORE_RUNS),
            (true, RUNS + MORE_RUNS..RUNS + MORE_RUNS + DEEP_RUNS),
        ] {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut instructions = 0;
            for run in runs {
                let mut case = self.subject.draw(&mut rng, self.target, WORK, deep)?;
                case.limit(MORE_INSTRUCTIONS);
                match case.run(&module, schedule(run)) {
                    Ok(report) => instructions += report.warp_instructions,
                    Err(how) => return Some((how, run + 1)),
                }
                if instructions > MORE_INSTRUCTIONS {
                    break;
                }
            }
        }
        None
    }
}

#[test]
fn every_file_has_kernels_that_are_broken() {
    let subjects = FAMILIES
        .iter()
        .flat_map(|(_, _, kernels)| kernels.iter().flat_map(|name| Subject::of(name)));
    let broken: BTreeSet<_> = subjects.map(Subject::file).collect();
    let missing: Vec<_> = files().into_iter().filter(|file| !broken.contains(file)).collect();
    assert!(missing.is_empty(), "no family has kernels of {missing:?}");
}

/// What became of a family's mutants.
#[derive(Default)]
struct Outcome {
    name: &'static str,
    /// Found and tried, of each kind.
    kinds: BTreeMap<Break, [usize; 2]>,
    /// Left out, because they are the same kernel.
    same: usize,
    /// How many were found how.
    how: BTreeMap<String, usize>,
    /// The runs that it took.
    runs: Vec<usize>,
    survivors: Vec<Survivor>,
    /// What could be broken, and where.
    places: Vec<(Break, String)>,
}

struct Survivor {
    kernel: &'static str,
    kind: Break,
    what: String,
    source: String,
}

impl Outcome {
    fn sum(&self) -> [usize; 2] {
        self.kinds.values().fold([0; 2], |a, b| [a[0] + b[0], a[1] + b[1]])
    }
}

/// Breaks the kernels of a family in as many places as asked for, each kind of break in its turn.
fn examine(&(name, target, kernels): &Family, seed: u64, most: usize) -> Outcome {
    let (mut patients, mut pool) = (Vec::new(), BTreeMap::<Break, Vec<(usize, Mutant)>>::new());
    for subject in kernels.iter().flat_map(|name| Subject::of(name)) {
        let (patient, mutants) = Patient::new(subject, target, seed);
        for mutant in mutants {
            pool.entry(mutant.kind).or_default().push((patients.len(), mutant));
        }
        patients.push(patient);
    }
    let mut outcome = Outcome {
        name,
        ..Outcome::default()
    };
    // A change of a kernel changes the places of few others in this order: numbers of lines and registers do not count.
    for (&kind, mutants) in &mut pool {
        let mut seen = BTreeMap::<String, u64>::new();
        mutants.sort_by_cached_key(|(patient, mutant)| {
            let subject = patients[*patient].subject.name();
            let instruction = mutant.what.split(['%', '[']).next().unwrap_or_default();
            let source = patients[*patient].kernel.source(mutant.line);
            let text = source.split_once(": ").map_or("", |(_, text)| text);
            outcome.places.push((kind, source.clone()));
            let text = format!("{subject} {instruction} {text}");
            let again = seen.entry(text.clone()).or_default();
            *again += 1;
            rng_of(&text, seed + *again).next_u64()
        });
    }
    let mut tried = 0;
    while tried < most && pool.values().any(|mutants| !mutants.is_empty()) {
        for (&kind, mutants) in &mut pool {
            let Some((patient, mutant)) = mutants.pop() else {
                continue;
            };
            let patient = &patients[patient];
            if patient.kernel.equivalent(&mutant).is_some() {
                outcome.same += 1;
                continue;
            }
            tried += 1;
            let counts = outcome.kinds.entry(kind).or_default();
            counts[1] += 1;
            match patient.examine(&mutant, seed) {
                Some((how, runs)) => {
                    counts[0] += 1;
                    *outcome.how.entry(how).or_default() += 1;
                    outcome.runs.push(runs);
                }
                None => outcome.survivors.push(Survivor {
                    kernel: patient.subject.name(),
                    kind,
                    source: patient.kernel.source(mutant.line),
                    what: mutant.what,
                }),
            }
        }
    }
    outcome.runs.sort_unstable();
    outcome
}

/// The table of docs/emulation.md.
fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::from("| family |");
    let mut rule = String::from("|---|");
    for kind in Break::ALL {
        let _ = write!(text, " {} |", kind.name());
        rule += "--:|";
    }
    let _ = writeln!(text, " all | same | runs |\n{rule}--:|--:|--:|");
    for outcome in outcomes {
        let _ = write!(text, "| {} |", outcome.name);
        for kind in Break::ALL {
            match outcome.kinds.get(&kind) {
                Some([found, tried]) => write!(text, " {found}/{tried} |"),
                None => write!(text, " |"),
            }
            .expect("a string");
        }
        let [found, tried] = outcome.sum();
        let median = outcome.runs.get(outcome.runs.len() / 2).copied().unwrap_or_default();
        let most = outcome.runs.last().copied().unwrap_or_default();
        let _ = writeln!(text, " {found}/{tried} | {} | {median} ≤ {most} |", outcome.same);
    }
    text
}

/// A row of the table of survivors in docs/emulation.md.
struct Explanation {
    family: String,
    kind: String,
    /// A part of the source's line, in backticks in the table.
    fragment: String,
}

/// That table.
fn explanations() -> Vec<Explanation> {
    const TABLE: &str = "| family | break | at | why nothing shows |";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/emulation.md");
    let text = std::fs::read_to_string(path).expect("docs/emulation.md");
    let rows = text.lines().skip_while(|line| *line != TABLE).skip(2);
    rows.take_while(|line| line.starts_with('|'))
        .map(|row| {
            let mut cells = row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_string());
            let mut next = || cells.next().unwrap_or_default();
            let (family, kind, fragment) = (next(), next(), next());
            let fragment = fragment.trim_matches('`').to_string();
            Explanation { family, kind, fragment }
        })
        .collect()
}

/// What the table of survivors lacks, and which of its rows are about nothing any more.
fn unexplained(outcomes: &[Outcome]) -> Vec<String> {
    let rows = explanations();
    let explains = |row: &Explanation, family: &str, kind: Break, source: &str| {
        row.family == family && row.kind == kind.name() && source.contains(&row.fragment)
    };
    let mut list = Vec::new();
    for outcome in outcomes {
        for survivor in &outcome.survivors {
            let known = |row: &Explanation| explains(row, outcome.name, survivor.kind, &survivor.source);
            if !rows.iter().any(known) {
                let (kind, source) = (survivor.kind.name(), &survivor.source);
                list.push(format!("no row for {} | {kind} | {source}", outcome.name));
            }
        }
        for row in rows.iter().filter(|row| row.family == outcome.name) {
            let known = |(kind, source): &(Break, String)| explains(row, outcome.name, *kind, source);
            if !outcome.places.iter().any(known) {
                list.push(format!(
                    "nothing is like {} | {} | {}",
                    row.family, row.kind, row.fragment
                ));
            }
        }
    }
    list
}

/// At least this share of the mutants has to be found.
const FOUND: f64 = 0.95;

#[test]
fn broken_kernels_are_found() {
    if ptx::skipped("broken_kernels_are_found") {
        return;
    }
    let started = Instant::now();
    let most = setting("CANDLE_SGEMM_EMULATED_MUTANTS", 60) as usize;
    let seed = setting("CANDLE_SGEMM_EMULATED_SEED", 1);
    let families: Vec<_> = FAMILIES
        .iter()
        .filter(|(name, _, kernels)| chosen(name) || kernels.iter().any(|kernel| chosen(kernel)))
        .collect();
    let outcomes = Mutex::new(Vec::new());
    in_parallel(families.len(), |i| {
        let began = Instant::now();
        let outcome = examine(families[i], seed, most);
        let [found, tried] = outcome.sum();
        println!(
            "{}: {found} of {tried} broken kernels found in {:.0} s, {:?}",
            outcome.name,
            began.elapsed().as_secs_f64(),
            outcome.how
        );
        for survivor in &outcome.survivors {
            println!(
                "    survived, {} of {}: {} ({})",
                survivor.kind.name(),
                survivor.kernel,
                survivor.what,
                survivor.source
            );
        }
        outcomes.lock().expect("nobody panics with it").push(outcome);
    });
    let mut outcomes = outcomes.into_inner().expect("nobody panics with it");
    outcomes.sort_by_key(|outcome| FAMILIES.iter().position(|(name, ..)| *name == outcome.name));
    let [found, tried] = outcomes.iter().fold([0; 2], |sum, outcome| {
        let one = outcome.sum();
        [sum[0] + one[0], sum[1] + one[1]]
    });
    let same: usize = outcomes.iter().map(|outcome| outcome.same).sum();
    println!(
        "{}{found} of {tried} found in {:.0} s, {same} left out as the same kernel",
        table(&outcomes),
        started.elapsed().as_secs_f64()
    );
    let all = families.len() == FAMILIES.len();
    assert!(
        !all || same * 10 <= tried + same,
        "{same} of {} are left out",
        tried + same
    );
    assert!(
        found as f64 >= FOUND * tried as f64,
        "only {found} of {tried} broken kernels are found"
    );
    let unexplained = unexplained(&outcomes);
    assert!(
        unexplained.is_empty(),
        "the table of survivors in docs/emulation.md:\n{}",
        unexplained.join("\n")
    );
}
