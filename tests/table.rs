//! Every row of the kernel table earns its place: the planner takes it for some problem on some device, or the row is on the list
//! below, which says what else it is for. Needs no GPU.

use candle_sgemm::device::DeviceInfo;
use candle_sgemm::gemm::kernel::spec::{Arithmetic, Inside, Needs, Role};
use candle_sgemm::gemm::{
    Access, Activation, Costs, DType, ElementTypes, GemmProblem, KernelSpec, OperandLayout, Plan, Precision,
    MAX_BATCH_DIMS, TABLE,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// Production rows that the planner need not take, and what they are for. Rungs of the ladder are for reading.
const PURPOSES: &[(&str, &str)] = &[
    (
        "gemv_stream_f16_m1_k2048",
        "one row and long lines on an H200, seldom drawn here: 1×4096×4096, 1×14336×4096 and 1×4096×14336",
    ),
    (
        "gemv_stream_bf16_m1_k1024",
        "one row and lines of about 1024 elements, seldom drawn here: 1×768×768 takes 2.7 µs on an H100, cuBLAS 5.1",
    ),
    (
        "gemv_stream_bf16_m1_k2048_6blocks",
        "one row, seldom drawn here: in 34 of 320 such products it is the fastest on an H200",
    ),
    (
        "gemv_stream_f16_m2_k2048",
        "as in BF16: two rows and many long lines, seldom drawn here (2 of 60 000)",
    ),
    (
        "gemv_stream_bf16_m2_k2048",
        "two rows and many long lines, seldom drawn here (2 of 60 000)",
    ),
    (
        "ffma_outer_256x32x8",
        "tall results of at most 8 products, seldom drawn here (1 of 60 000)",
    ),
    (
        "ffma_64x64",
        "GPUs without Hopper's kernels, seldom drawn here (10 of 100 000): of 1602 products it is the fastest of 3 among those, by up to 3 %",
    ),
    (
        "ffma_32x128",
        "GPUs without Hopper's kernels, seldom drawn here (15 of 100 000): of 851 products it is the fastest of 3 among those, by up to 12 %",
    ),
    (
        "thin_run_128x1",
        "an image's patches past the one filter of each channel, seldom drawn here: 163840×1×25 takes 4.5 µs on an H100, 11.1 by the next best",
    ),
    (
        "thin_dot_128x4",
        "rows of a short k with gaps between them past up to four columns, which thin_run_ does not take, seldom drawn here (13 of 100 000): \
         NT 84375×3×40 takes 7.5 µs on an H100, 10.9 by the next best",
    ),
    (
        "gemm_f16_sm90_16x64_deep_nt",
        "as in BF16: 9 to 16 rows and many columns on an H100",
    ),
    (
        "gemm_bf16_sm90_16x64_deep_nt",
        "9 to 16 rows and many columns on an H100: of 3956 products it is the fastest for 39, by up to 2 %, which the planner does not foresee",
    ),
    (
        "gemv_stream_f16_m1_k1024",
        "as in BF16: one row and lines of 960 to 1024 on an H200, seldom drawn here: 1×51866×1024 takes 26.9 µs, 27.4 by the next best",
    ),
    (
        "gemv_stream_bf16_m1_k2048",
        "one row and long lines on an H200, seldom drawn here: 1×4096×4096, 1×14336×4096 and 1×4096×14336",
    ),
    (
        "gemv_short_m1",
        "one row past the keys of a large batch, of over 64 elements or with gaps between them, seldom drawn here: \
         NT 440 × 1×3009×72 takes 118 µs on an H200, 130 by the next best",
    ),
    (
        "gemv_short_n1",
        "one column past rows of a short k in a large batch, seldom drawn here: NT 120 × 649×1×72 takes 8.1 µs on an H200, 9.7 by the next best",
    ),
    (
        "gemv_short_n1_deep",
        "one column past rows of some hundred elements off 16 bytes in a large batch, seldom drawn here: \
         NN 24 × 1799×1×945 takes 41.7 µs on an H200, 44.7 by the next best",
    ),
    (
        "brief_bf16_4x32",
        "up to four rows past small matrices, seldom drawn here: of 674 products it is the fastest of 27, by up to 25 %",
    ),
    (
        "brief_wide_1x32",
        "one row past lines of a short k in a large batch, seldom drawn here: of 382 products it is the fastest of 25, by up to 56 %",
    ),
    (
        "gemv_short_m2",
        "two rows past lines of a short k, seldom drawn here: of 119 products it is the fastest of 8, by up to 39 %",
    ),
    (
        "gemv_fused_dot_m1",
        "a row of a decoder past lines of multiples of 2048 on an H200, seldom drawn here: 1×14336×4096, 1×4096×14336",
    ),
    (
        "gemv_stream_m1_k384",
        "one row and lines of 384, 768 or 1152, seldom drawn here: 1×51865×384, 1×50257×768",
    ),
    (
        "gemv_stream_m1_k512",
        "one row and lines of 512, seldom drawn here: 1×51865×512",
    ),
    (
        "gemv_stream_m1_k640",
        "one row and lines of 576 to 640, seldom drawn here: 1×250002×576",
    ),
    (
        "gemv_stream_m1_k1024",
        "one row and lines of 896 to 1024 on an H200, seldom drawn here: 1×65536×1024",
    ),
    (
        "gemv_fused_f16_m1_k2048",
        "a row of a decoder on an H200, seldom drawn here: 1×16384×2048 and 1×128256×2048",
    ),
    (
        "gemv_fused_bf16_m1_k2048",
        "a row of a decoder on an H200, seldom drawn here: 1×16384×2048 and 1×128256×2048",
    ),
    (
        "ffma_specialized_128x128_tt_sm90",
        "TT whose tiles of 128 × 256 leave multiprocessors idle, seldom drawn here: 5 of 100 000 products",
    ),
    (
        "gemm_tf32x3_sm90_16x128_nt",
        "vocabularies past 3 to 16 rows on an H200, not drawn here: 5×151646×320 (57 µs, 65 by the next best), 12×32000×192",
    ),
    (
        "ffma_direct_128x64_nn_sm90",
        "batches in strict FP32 on an H200, seldom drawn here: of 128 × (512×64×512) it is the fastest by 5 %, which the planner does not foresee",
    ),
    (
        "ffma_direct_128x64_nt_sm90",
        "scores of attention in strict FP32: of 384 × (128×128×32) and 128 × (512×512×64) it is the fastest by 5 to 12 % on an H100 and an H200, \
         which the planner does not foresee",
    ),
    (
        "gemm_tf32x3_sm90_128x128_2cta_tt",
        "large TT products, seldom drawn here: TT 4096 × 4096 × 4096 on an H200; of 233 drawn products on an H100 it is the fastest of 4, by up to 1 %",
    ),
    (
        "gemm_tf32x3_sm90_128x128_2cta_nn",
        "large products, seldom drawn here (3 of 150 000): of 8192 × 8192 × 8192 it is the fastest on an H200, by 4 %",
    ),
    (
        "gemm_tf32x3_sm90_128x128_2cta_nt",
        "large products: of 367 on an H200 it is the fastest of 12, by up to 3 %, which the planner does not foresee",
    ),
    (
        "gemv_fused_m1_k1024",
        "a row of a decoder whose layers are up to 1024 wide, seldom drawn here",
    ),
];

/// So many are drawn; `CANDLE_SGEMM_TEST_PROBLEMS=100000` looks further for a row that seems to be of no use.
const PROBLEMS: usize = 28_000;

/// What keeps the planner from its first choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Where {
    /// Nothing.
    Anywhere,
    /// The device has room for no cluster.
    WithoutClusters,
    /// There is no memory for a workspace.
    WithoutWorkspace,
}

impl Where {
    const ALL: [Where; 3] = [Where::Anywhere, Where::WithoutClusters, Where::WithoutWorkspace];

    fn allows(self, plan: &Plan) -> bool {
        match self {
            Where::Anywhere => true,
            Where::WithoutClusters => plan.cluster() == 1,
            Where::WithoutWorkspace => plan.workspace_bytes == 0,
        }
    }
}

/// GPUs of every kind that the crate runs on, Hopper most often: most rows are for it.
fn devices() -> Vec<DeviceInfo> {
    let hopper = |sm_count, memory_gbps| DeviceInfo {
        sm_count,
        memory_gbps,
        ..DeviceInfo::H100
    };
    vec![
        DeviceInfo::H100,
        DeviceInfo::H200,
        DeviceInfo::H100,
        // An H100 with PCIe, and halves and sevenths of H100s.
        hopper(114, 2039.0),
        hopper(60, 1675.0),
        hopper(16, 419.0),
        DeviceInfo::A100,
        DeviceInfo::RTX_4090,
        DeviceInfo::RTX_5090,
        // A build without machine code for Hopper.
        DeviceInfo {
            code_capability: 80,
            ..DeviceInfo::H100
        },
        // Jetson Orin.
        DeviceInfo {
            compute_capability: 87,
            code_capability: 87,
            sm_count: 16,
            shared_per_block: 166_912,
            l2_bytes: 4 << 20,
            clock_mhz: 1300,
            memory_bytes: 32 << 30,
            memory_gbps: 204.8,
            clusters: Default::default(),
        },
    ]
}

/// Sizes that networks have, powers of two, and sizes that fit nothing.
fn size(rng: &mut StdRng, most: usize) -> usize {
    let size = match rng.random_range(0..6) {
        0 => *[
            10, 64, 128, 256, 512, 768, 784, 1024, 2048, 3072, 4096, 5120, 8192, 11008, 14336,
        ]
        .choose(rng)
        .unwrap(),
        1 => rng.random_range(1..=16),
        2 => 1 << rng.random_range(0..15),
        3 => 4 * rng.random_range(1..=2048),
        // Of any magnitude.
        _ => rng.random_range(0.0..(most as f64).ln()).exp() as usize,
    };
    size.clamp(1, most)
}

/// A matrix stored in either order, padded or not, at any alignment; sometimes with gaps between elements.
fn layout(rng: &mut StdRng, rows: usize, cols: usize) -> OperandLayout {
    let padding = match rng.random_range(0..4) {
        0 => rng.random_range(0..9),
        1 => 32,
        _ => 0,
    };
    let layout = match rng.random_range(0..24) {
        0 => OperandLayout::strided(2 * (cols + padding) as i64, 2),
        1 => OperandLayout::strided(0, 1),
        at if at % 2 == 0 => OperandLayout::row_major(cols + padding),
        _ => OperandLayout::col_major(rows + padding),
    };
    layout.with_align(*[4, 8, 16, 16, 16, 16].choose(rng).unwrap())
}

/// A batch of so many products, of operands that follow each other; all may share one B.
fn batched(problem: &mut GemmProblem, batch: usize, shares_b: bool) {
    let GemmProblem { m, n, k, .. } = *problem;
    let last = |stride: usize| {
        let mut strides = [0; MAX_BATCH_DIMS];
        strides[MAX_BATCH_DIMS - 1] = stride as i64;
        strides
    };
    problem.batch_dims[MAX_BATCH_DIMS - 1] = batch;
    problem.a = problem.a.with_batch_strides(last(m * k));
    problem.b = problem.b.with_batch_strides(last(if shares_b { 0 } else { k * n }));
    problem.d = problem.d.with_batch_strides(last(m * n));
}

/// A problem that should suit this row: whole tiles, up to some waves of them, operands as it reads them.
fn problem_for(spec: &KernelSpec, device: &DeviceInfo, rng: &mut StdRng) -> GemmProblem {
    let tiles = |most: usize, rng: &mut StdRng| rng.random_range(0.0..(most as f64 + 1.0).ln()).exp() as usize;
    let all = tiles(8 * device.sm_count as usize, rng);
    let (rows, in_batch) = (tiles(all, rng), rng.random_range(0..3) == 0);
    let (rows, columns, batch) = match in_batch {
        true => (rows.min(8), 1, all.div_ceil(rows.min(8))),
        false => (rows, all.div_ceil(rows), 1),
    };
    let [bm, bn] = [spec.tile.bm, spec.tile.bn].map(|size| size as usize);
    let (m, n) = match spec.needs {
        Needs { max_m: 1.., .. } => (bm * rows.min(spec.needs.max_m as usize / bm).max(1), bn * columns),
        Needs { max_n: 1.., .. } => (bm * rows, bn * columns.min(spec.needs.max_n as usize / bn).max(1)),
        _ => (bm * rows, bn * columns),
    };
    let k = match spec.needs.max_k {
        0 => size(rng, 16384).next_multiple_of(4),
        most => rng.random_range(1..=most as usize),
    };
    let mut layout = |takes: &[Access], rows, cols| match takes.choose(rng) {
        Some(Access::ColVector | Access::ColScalar) => OperandLayout::col_major(rows),
        Some(_) => OperandLayout::row_major(cols),
        None if rng.random() => OperandLayout::row_major(cols),
        None => OperandLayout::col_major(rows),
    };
    let mut problem = GemmProblem::new(m, n, k, layout(spec.needs.a, m, k), layout(spec.needs.b, k, n));
    problem.types = ElementTypes::all_of(spec.dtype);
    problem.precision = match spec.arithmetic {
        Arithmetic::Ffma | Arithmetic::Half => Precision::Fp32Strict,
        Arithmetic::Tf32x3 => Precision::Fp32,
        Arithmetic::Tf32 => Precision::Tf32,
    };
    if batch > 1 {
        batched(&mut problem, batch, false);
    }
    if spec.inside != Inside::Product {
        (problem.normed, problem.epilogue.gated) = match spec.inside.norms() {
            true => *[(true, false), (false, true), (true, true)].choose(rng).unwrap(),
            false => (false, true),
        };
        let line = k.next_multiple_of(8); // on 16 bytes, in 16 bits too
        (problem.a, problem.b) = (OperandLayout::row_major(line), OperandLayout::col_major(line));
        problem.batch_dims = [1; MAX_BATCH_DIMS];
    }
    problem
}

/// Any problem.
fn problem(rng: &mut StdRng) -> GemmProblem {
    let (m, n, k) = (size(rng, 16384), size(rng, 16384), size(rng, 65536));
    let (m, n, k, a, b) = match rng.random() {
        true => (m, n, k, layout(rng, m, k), layout(rng, k, n)),
        // As most networks have them.
        false => {
            let [n, k] = [n, k].map(|size| size.next_multiple_of(16));
            let m = if rng.random() { m.next_multiple_of(16) } else { m };
            let dense = |rng: &mut StdRng, rows, cols| match rng.random() {
                true => OperandLayout::row_major(cols),
                false => OperandLayout::col_major(rows),
            };
            (m, n, k, dense(rng, m, k), dense(rng, k, n))
        }
    };
    let mut problem = GemmProblem::new(m, n, k, a, b);
    problem.precision = *Precision::ALL.choose(rng).unwrap();
    if rng.random_range(0..3) == 0 {
        problem.types = ElementTypes::all_of(*[DType::F16, DType::BF16].choose(rng).unwrap());
    }
    if rng.random_range(0..4) == 0 {
        let batch = size(rng, 512);
        batched(&mut problem, batch, rng.random_range(0..4) == 0);
    }
    if rng.random_range(0..3) == 0 {
        problem.epilogue.bias = true;
        problem.epilogue.activation = Activation::GeluErf;
        problem.epilogue.residual = rng.random::<bool>().then_some(problem.d);
    }
    problem
}

#[test]
fn every_row_is_taken_by_the_planner_or_says_what_it_is_for() {
    let problems = std::env::var("CANDLE_SGEMM_TEST_PROBLEMS").map_or(PROBLEMS, |text| text.parse().unwrap());
    let (mut rng, devices) = (StdRng::seed_from_u64(15), devices());
    let costs = Costs::built_in(&DeviceInfo::H100);
    let considered: Vec<&KernelSpec> = TABLE.iter().filter(|spec| costs.of(spec).is_some()).collect();
    let mut taken: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for number in 0..problems {
        let mut device = devices.choose(&mut rng).unwrap();
        let problem = match number % 3 {
            0 => problem(&mut rng),
            // Each row has its turn, however many there are.
            which => {
                let spec = considered[(number / 3 * 2 + which - 1) % considered.len()];
                while spec
                    .needs
                    .only_capability
                    .is_some_and(|only| only != device.code_capability)
                {
                    device = devices.choose(&mut rng).unwrap();
                }
                problem_for(spec, device, &mut rng)
            }
        };
        let Ok(problem) = problem.folded() else {
            continue;
        };
        let weight = |plan: &Plan| plan.predicted_us * plan.regard();
        let mut best: [Option<Plan>; 3] = [None; 3];
        for plan in Plan::candidates(&problem, device, Costs::built_in(device)) {
            for (best, at) in best.iter_mut().zip(Where::ALL) {
                if at.allows(&plan) && best.is_none_or(|best| weight(&plan) < weight(&best)) {
                    *best = Some(plan);
                }
            }
        }
        for (at, best) in best.iter().enumerate() {
            let Some(plan) = best else {
                panic!("{problem:?} has no plan {:?}", Where::ALL[at])
            };
            taken.entry(plan.kernel.name).or_default()[at] += 1;
        }
    }

    let mut complaints = Vec::new();
    for spec in TABLE {
        let purpose = PURPOSES.iter().find(|(name, _)| *name == spec.name);
        match (taken.get(spec.name), purpose) {
            (Some(times), None) => println!("{:<44} {times:?}", spec.name),
            (None, Some((_, purpose))) => println!("{:<44} {purpose}", spec.name),
            (None, None) if matches!(spec.role, Role::Rung(_)) => {}
            (None, None) => complaints.push(format!("{}: the planner never takes it", spec.name)),
            (Some(times), Some(_)) => println!("{:<44} {times:?}, so that it needs no place on the list", spec.name),
        }
    }
    for (name, _) in PURPOSES {
        if !TABLE.iter().any(|spec| spec.name == *name) {
            complaints.push(format!("{name}: there is no such row"));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
