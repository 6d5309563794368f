//! What the planner promises, on drawn problems and many devices.

use super::choose::cheapest_that;
use super::explain::explain;
use super::plan::{cheaper, clusters_in_step, Plan, GROUP_M, MAX_GRID_YZ, PIECES};
use super::prepare;
use crate::device::DeviceInfo;
use crate::error::Error;
use crate::gemm::kernel::costs::{Costs, KernelCost};
use crate::gemm::kernel::refusal::Refusal;
use crate::gemm::kernel::spec::{Arithmetic, Grid, Inside, KernelSpec, Side, SplitK};
use crate::gemm::kernel::table::TABLE;
use crate::gemm::launch::args::Addresses;
use crate::gemm::operands::{Access, DType, ElementTypes, OperandLayout, MAX_BATCH_DIMS};
use crate::gemm::problem::{Activation, GemmProblem, Precision, MAX_OVERSHOOT, MAX_SIZE};
use crate::gemm::schedule::cut::Cut;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

fn h100() -> &'static Costs {
    Costs::built_in(&DeviceInfo::H100)
}

#[test]
fn every_kernel_that_a_plan_names_takes_its_problem() {
    let devices = [
        DeviceInfo::A100,
        DeviceInfo::H100,
        DeviceInfo::H200,
        DeviceInfo::RTX_4090,
        DeviceInfo::RTX_5090,
    ];
    for device in &devices {
        for precision in Precision::ALL {
            for size in [1, 7, 64, 129, 1024, 5000] {
                let mut problem = GemmProblem::row_major(size, size, size);
                problem.precision = precision;
                let plan = Plan::new(&problem, device, Costs::built_in(device)).unwrap();
                assert_eq!(plan.kernel.refusal(&plan.problem, device), None, "{plan}");
                assert!(plan.grid.iter().all(|&blocks| blocks > 0), "{plan}");
            }
        }
    }
}

/// Clusters, early starts and one architecture's own kernels are not to be had from PTX of an older architecture.
#[test]
fn code_of_an_older_architecture_is_planned_as_such() {
    let from_ptx = DeviceInfo {
        code_capability: 80,
        ..DeviceInfo::H100
    };
    for precision in Precision::ALL {
        for (m, n, k) in [(1, 4096, 4096), (16, 512, 8192), (64, 64, 16384), (300, 700, 900)] {
            let mut problem = GemmProblem::row_major(m, n, k);
            problem.precision = precision;
            let problem = problem.folded().unwrap();
            assert!(
                Plan::candidates(&problem, &DeviceInfo::H100, h100()).any(|plan| plan.cluster() > 1),
                "{m} × {n} × {k} has plans with clusters"
            );
            for plan in Plan::candidates(&problem, &from_ptx, Costs::built_in(&from_ptx)) {
                assert!(
                    plan.cluster() == 1 && (plan.split_k() == 1 || plan.reduction().is_some()),
                    "{plan}"
                );
                assert_eq!(plan.kernel.needs.only_capability, None, "{plan}");
            }
            for spec in TABLE {
                for plan in Plan::variants(spec, &problem, &from_ptx, Costs::built_in(&from_ptx))
                    .filter(|plan| spec.refusal(&plan.problem, &from_ptx).is_none())
                {
                    assert_eq!(plan.cluster(), 1, "{plan}");
                }
            }
        }
    }
}

/// Machine code for compute capability 9.0 alone does not run on newer devices, which may run PTX of 9.0.
#[test]
fn newer_devices_that_run_code_of_hopper_take_none_that_is_hoppers_alone() {
    let (mut rng, mut on_hopper) = (StdRng::seed_from_u64(15), 0);
    for _ in 0..400 {
        let device = DeviceInfo {
            compute_capability: [100, 103, 120, 121][rng.random_range(0..4)],
            ..DeviceInfo::H200
        };
        let [m, n, k] = [(); 3].map(|()| match rng.random_range(0..3) {
            0 => rng.random_range(1..=16),
            1 => rng.random_range(1..=700),
            _ => 8 * rng.random_range(1..=300usize),
        });
        let mut layout = |rows: usize, cols: usize| {
            let gap = rng.random_range(0..2) * rng.random_range(0..9);
            match rng.random::<bool>() {
                true => OperandLayout::row_major(cols + gap),
                false => OperandLayout::col_major(rows + gap),
            }
        };
        let (a, b) = (layout(m, k), layout(k, n));
        let mut problem = GemmProblem::new(m, n, k, a, b);
        problem.types = ElementTypes::all_of([DType::F32, DType::F16, DType::BF16][rng.random_range(0..3)]);
        problem.precision = Precision::ALL[rng.random_range(0..Precision::ALL.len())];
        let problem = problem.folded().unwrap();
        let hoppers_alone = |device: &DeviceInfo| {
            let plans = Plan::candidates(&problem, device, Costs::built_in(device));
            plans.filter(|plan| plan.kernel.needs.only_capability.is_some()).count()
        };
        assert_eq!(hoppers_alone(&device), 0, "{problem:?}");
        assert!(
            Plan::candidates(&problem, &device, Costs::built_in(&device)).count() > 0,
            "{problem:?}"
        );
        on_hopper += usize::from(hoppers_alone(&DeviceInfo::H200) > 0);
    }
    assert!(on_hopper > 200, "{on_hopper}");
}

#[test]
fn every_product_has_a_plan_without_a_workspace() {
    let mut problems = Vec::new();
    for (m, n, k) in [
        (1, 4096, 4096),
        (16, 4096, 4096),
        (512, 14336, 4096),
        (577, 4097, 1023),
        (5, 3, 100_000),
    ] {
        let (row, col) = (OperandLayout::row_major, OperandLayout::col_major);
        for (a, b) in [(row(k), row(n)), (row(k), col(k)), (col(m), row(n)), (col(m), col(k))] {
            problems.push(GemmProblem::new(m, n, k, a, b));
        }
    }
    let (mut had_one, mut by_name) = (0, 0);
    for mut problem in problems {
        for precision in Precision::ALL {
            problem.precision = precision;
            let problem = problem.folded().unwrap();
            for plan in Plan::candidates(&problem, &DeviceInfo::H100, h100()).filter(|plan| plan.workspace_bytes > 0) {
                had_one += 1;
                let other = plan
                    .without_workspace(&DeviceInfo::H100, h100(), |_| Ok(true))
                    .unwrap()
                    .unwrap();
                assert_eq!(
                    (other.workspace_bytes, other.repacks),
                    (0, [None; 2]),
                    "{plan}: {other}"
                );
                assert_eq!(
                    (other.problem.a, other.problem.b),
                    (problem.a, problem.b),
                    "{plan}: {other}"
                );
                if plan.stream_k().is_some() && plan.repacks == [None; 2] {
                    by_name += 1;
                    let other = plan
                        .asked_for()
                        .without_workspace(&DeviceInfo::H100, h100(), |_| Ok(true))
                        .unwrap()
                        .unwrap();
                    assert_eq!(other.kernel.name, plan.kernel.name);
                    assert_eq!((other.workspace_bytes, other.by_name), (0, true), "{plan}: {other}");
                }
            }
        }
    }
    assert!(had_one > 100 && by_name > 10, "{had_one}, {by_name}");
}

#[test]
fn large_products_get_large_tiles_and_small_ones_small() {
    let tile = |size| {
        let problem = GemmProblem::row_major(size, size, size);
        let tile = Plan::new(&problem, &DeviceInfo::H100, h100()).unwrap().kernel.tile;
        tile.bm * tile.bn
    };
    assert!(tile(4096) > tile(256), "{} and {}", tile(4096), tile(256));
}

#[test]
fn a_few_rows_stream_the_weights_in_either_storage_order() {
    let kernel = |m, n, k, b| {
        let problem = GemmProblem::new(m, n, k, OperandLayout::row_major(k), b);
        let plan = Plan::new(&problem, &DeviceInfo::H100, h100()).unwrap();
        assert_eq!(plan.repacks, [None; 2], "{plan}");
        plan.kernel.name
    };
    let is = |name: &str, families: &[&str]| {
        assert!(families.iter().any(|family| name.starts_with(family)), "{name}");
    };
    let along_k = ["gemv_stream_m", "gemv_dot_m", "gemv_ring_m", "gemv_short_m"];
    is(kernel(1, 4096, 4096, OperandLayout::col_major(4096)), &along_k);
    is(kernel(3, 4096, 4096, OperandLayout::col_major(4096)), &along_k);
    is(kernel(8, 3072, 768, OperandLayout::col_major(768)), &along_k);
    is(kernel(8, 768, 3072, OperandLayout::col_major(3072)), &along_k);
    is(
        kernel(8, 4096, 4096, OperandLayout::row_major(4096)),
        &["gemv_axpy_m", "thin_axpy_"],
    );
    is(
        kernel(4096, 1, 4096, OperandLayout::row_major(1)),
        &["gemv_dot_n", "thin_dot_"],
    );
}

/// Kernels that take a tile of A or of B as one run of memory would read the gaps as rows or columns.
#[test]
fn lines_with_gaps_are_refused_where_they_are_to_be_one_run() {
    const DRAWN: usize = 2000;
    let mut rng = StdRng::seed_from_u64(5);
    let mut met = [0, 0];
    for spec in TABLE {
        let Some(side) = spec.needs.gapless else { continue };
        for _ in 0..DRAWN {
            let mut size = |most: u32| rng.random_range(1..=most as usize);
            let (lines, k, gap) = (size(100_000), size(spec.needs.max_k), size(8) / 2);
            let (apart, align) = (size(2) * lines * (k + gap), [4, 16][size(2) - 1]);
            let run = |layout: OperandLayout| layout.with_align(align);
            let (m, n, mut problem) = match side {
                Side::M => {
                    let n = size(spec.needs.max_n);
                    let a = run(OperandLayout::row_major(k + gap));
                    (lines, n, GemmProblem::new(lines, n, k, a, OperandLayout::col_major(k)))
                }
                Side::N => {
                    let m = size(spec.needs.max_m);
                    let b = run(OperandLayout::col_major(k + gap));
                    (m, lines, GemmProblem::new(m, lines, k, OperandLayout::row_major(k), b))
                }
            };
            if size(3) == 1 {
                problem.batch_dims[MAX_BATCH_DIMS - 1] = 3;
                let matrix = match side {
                    Side::M => &mut problem.a,
                    Side::N => &mut problem.b,
                };
                matrix.batch_strides[MAX_BATCH_DIMS - 1] = apart as i64;
                problem.d.batch_strides[MAX_BATCH_DIMS - 1] = (m * n) as i64;
            }
            let folded = problem.folded().unwrap();
            let refusal = spec.refusal(&folded, &DeviceInfo::H100);
            let stride = match side {
                Side::M => folded.a.row_stride,
                Side::N => folded.b.col_stride,
            };
            if stride != k as i64 {
                met[side as usize] += 1;
                assert_eq!(
                    refusal,
                    Some(Refusal::Gaps { side, stride, k }),
                    "{}: {m}×{n}×{k}",
                    spec.name
                );
            } else if k > 1 {
                assert_eq!(refusal, None, "{}: {m}×{n}×{k}", spec.name);
            }
        }
    }
    assert!(met[0] > DRAWN && met[1] > DRAWN, "{met:?} lines with gaps");
}

#[test]
fn sixteen_rows_get_tiles_of_sixteen_and_leave_the_weights_in_place() {
    for (n, k) in [(3072, 768), (4096, 4096), (14336, 4096), (4096, 14336)] {
        let mut problem = GemmProblem::new(16, n, k, OperandLayout::row_major(k), OperandLayout::col_major(k));
        problem.precision = Precision::Fp32Strict;
        let plan = Plan::new(&problem, &DeviceInfo::H100, h100()).unwrap();
        assert_eq!((plan.kernel.tile.bm, plan.repacks), (16, [None; 2]), "{plan}");
    }
}

/// Small products of more rows than a tile has, up to eight tiles.
#[test]
fn up_to_128_rows_past_weights_in_the_l2_are_one_round_trip() {
    let costs = Costs::built_in(&DeviceInfo::H200);
    let problem = |m, n, k| {
        let mut problem = GemmProblem::new(m, n, k, OperandLayout::row_major(k), OperandLayout::col_major(k));
        problem.precision = Precision::Fp32Strict;
        problem
    };
    for (m, n, k) in [(48, 16, 4704), (64, 384, 384), (77, 512, 512), (128, 384, 384)] {
        let plan = Plan::new(&problem(m, n, k), &DeviceInfo::H200, costs).unwrap();
        assert!(plan.kernel.name.starts_with("few_rows_"), "{plan}");
    }
    let mut rng = StdRng::seed_from_u64(31);
    for spec in TABLE.iter().filter(|spec| spec.name.starts_with("few_rows_")) {
        for _ in 0..200 {
            let m = rng.random_range(1..=256);
            let (n, k) = (4 * rng.random_range(1..=300), 4 * rng.random_range(1..=300));
            let refusal = spec.refusal(&problem(m, n, k).folded().unwrap(), &DeviceInfo::H200);
            assert_eq!(refusal.is_some(), m > 128, "{}: {m}×{n}×{k}", spec.name);
        }
    }
}

/// The products of a small encoder on a short sentence.
#[test]
fn sixteen_rows_past_weights_in_the_l2_are_one_round_trip() {
    for (n, k) in [(384, 384), (1152, 384), (1536, 384), (384, 1536), (768, 768)] {
        for precision in [Precision::Fp32, Precision::Fp32Strict] {
            let mut problem = GemmProblem::new(16, n, k, OperandLayout::row_major(k), OperandLayout::col_major(k));
            problem.precision = precision;
            let plan = Plan::new(&problem, &DeviceInfo::H200, Costs::built_in(&DeviceInfo::H200)).unwrap();
            assert!(plan.kernel.name.starts_with("few_rows_"), "{plan}");
        }
    }
}

#[test]
fn small_results_of_long_sums_are_added_in_short_chains() {
    let mut shorter = 0;
    for device in [DeviceInfo::H100, DeviceInfo::H200, DeviceInfo::A100] {
        let costs = Costs::built_in(&device);
        let plans = |size, k| {
            let mut problem = GemmProblem::row_major(size, size, k);
            problem.precision = Precision::Fp32Strict;
            let chosen = Plan::new(&problem, &device, costs).unwrap();
            let folded = problem.folded().unwrap();
            // Of those that repack no more: what is repacked counts as well.
            let fastest = Plan::candidates(&folded, &device, costs)
                .filter(|plan| chosen.is_repacked() || !plan.is_repacked())
                .min_by(|x, y| x.predicted_us.total_cmp(&y.predicted_us));
            (chosen, fastest.unwrap())
        };
        for size in [512, 768, 1024] {
            for k in [1024, 4096, 16384] {
                let (chosen, fastest) = plans(size, k);
                let depth = chosen.accumulation_depth();
                assert!(depth <= fastest.accumulation_depth(), "{chosen}\n{fastest}");
                // Shorter chains would cost more than the planner gives for them: a twentieth for half as long a one, down to 512.
                for plan in Plan::candidates(&chosen.problem, &device, costs) {
                    let halvings = (depth as f64 / plan.accumulation_depth().max(512) as f64)
                        .log2()
                        .max(0.0);
                    assert!(
                        halvings == 0.0
                            || plan.predicted_us > 1.049f64.powf(halvings) * chosen.predicted_us
                            || chosen.is_repacked(),
                        "{chosen}\n{plan}"
                    );
                }
                assert!(
                    2 * depth <= k || device.code_capability < 90,
                    "chains of {depth}: {chosen}"
                );
                shorter += usize::from(depth < fastest.accumulation_depth());
            }
        }
        // Elsewhere time decides.
        let (chosen, fastest) = plans(4096, 4096);
        assert_eq!(chosen, fastest);
    }
    assert!(shorter > 0);
}

#[test]
fn narrow_results_get_kernels_of_their_width() {
    let width = |m, n, k, batch| {
        let mut problem = GemmProblem::row_major(m, n, k);
        problem.precision = Precision::Fp32Strict;
        problem.batch_dims[MAX_BATCH_DIMS - 1] = batch;
        problem.a = problem.a.with_batch_strides([0, 0, 0, (m * k) as i64]);
        problem.b = problem.b.with_batch_strides([0, 0, 0, (k * n) as i64]);
        problem.d = problem.d.with_batch_strides([0, 0, 0, (m * n) as i64]);
        Plan::new(&problem, &DeviceInfo::H100, h100()).unwrap().kernel.tile.bn
    };
    // Tiles of 32 columns whose warps share k outrun those of 16 here: 10.9 and 11.6 µs on an H100.
    assert!(width(4096, 10, 784, 1) <= 32);
    assert_eq!(width(128, 32, 128, 384), 32);
    assert_eq!(width(512, 64, 512, 128), 64);
}

#[test]
fn tensor_cores_are_used_where_precision_device_and_operands_allow() {
    let plan = |precision, b: OperandLayout, device: &DeviceInfo| {
        let mut problem = GemmProblem::new(2048, 2048, 2048, OperandLayout::row_major(2048), b);
        problem.precision = precision;
        Plan::new(&problem, device, Costs::built_in(device)).unwrap()
    };
    let (row, col) = (OperandLayout::row_major(2048), OperandLayout::col_major(2048));
    let large = plan(Precision::Fp32, col, &DeviceInfo::H100);
    assert!(large.kernel.name.starts_with("gemm_tf32x3_sm90_128x128"), "{large}");
    let mut short = GemmProblem::new(
        2048,
        2048,
        64,
        OperandLayout::row_major(64),
        OperandLayout::col_major(64),
    );
    let exact = Plan::new(&short, &DeviceInfo::H100, h100()).unwrap();
    assert_eq!(exact.kernel.arithmetic, Arithmetic::Ffma, "{exact}");
    let explained = explain(&short, &DeviceInfo::H100, h100());
    let inexact = |(spec, reason): &(&KernelSpec, Refusal)| {
        spec.arithmetic == Arithmetic::Tf32x3 && *reason == Refusal::FewProducts(64)
    };
    assert!(explained.refused.iter().any(inexact), "{explained}");
    short.precision = Precision::Tf32;
    assert_ne!(
        Plan::new(&short, &DeviceInfo::H100, h100()).unwrap().kernel.arithmetic,
        Arithmetic::Ffma
    );
    let strict = plan(Precision::Fp32Strict, col, &DeviceInfo::H100);
    assert_eq!(strict.kernel.arithmetic, Arithmetic::Ffma, "{strict}");
    let elsewhere = plan(Precision::Fp32, col, &DeviceInfo::A100);
    assert_eq!(elsewhere.kernel.needs.only_capability, None, "{elsewhere}");
    let misaligned = plan(Precision::Fp32, row.with_align(4), &DeviceInfo::H100);
    assert!(
        misaligned.kernel.tma_boxes.is_none() || misaligned.repacks[1].is_some(),
        "{misaligned}"
    );
}

#[test]
fn large_operands_are_written_anew_where_that_pays_and_small_ones_are_not() {
    let plan = |size: usize, a: OperandLayout, b: OperandLayout, precision| {
        let mut problem = GemmProblem::new(size, size, size, a, b);
        problem.precision = precision;
        Plan::new(&problem, &DeviceInfo::H100, h100()).unwrap()
    };
    let (row, col) = (OperandLayout::row_major, OperandLayout::col_major);
    for precision in [Precision::Fp32, Precision::Tf32] {
        let turned = plan(4096, col(4096), row(4096), precision);
        assert_eq!(turned.repacks.iter().flatten().count(), 1, "{turned}");
        assert!(turned.to_string().contains("transposed beforehand"), "{turned}");
        let largest = if precision == Precision::Fp32 { 256 } else { 192 };
        for size in 1..=largest {
            let small = plan(size, col(size), row(size), precision);
            assert_eq!(small.repacks, [None; 2], "{small}");
        }
        let direct = plan(4096, row(4096), col(4096), precision);
        assert_eq!((direct.repacks, direct.workspace_bytes), ([None; 2], 0), "{direct}");
    }
    // In strict FP32 tiles that copy words have come to be as fast where they lie: on an H200 this takes 2825 µs so, 2906 repacked.
    let strict = plan(4097, row(4097), row(4097), Precision::Fp32Strict);
    assert_eq!(strict.repacks, [None; 2], "{strict}");
    for precision in [Precision::Fp32, Precision::Tf32] {
        let odd = plan(4097, row(4097), row(4097), precision);
        let [Some(a), Some(b)] = odd.repacks else {
            panic!("{odd}")
        };
        assert!(
            b.offset >= a.offset + a.bytes && b.offset.is_multiple_of(prepare::ALIGN),
            "{odd}"
        );
        assert_eq!(odd.workspace_bytes, b.offset + b.bytes, "{odd}");
        let at = odd.addresses(&Addresses::default(), 1 << 20);
        assert_eq!(
            (at.operands.a, at.operands.b),
            ((1 << 20) + a.offset as u64, (1 << 20) + b.offset as u64)
        );
    }
}

#[test]
fn a_vocabulary_off_16_bytes_is_copied_in_words_and_any_other_comes_by_tma() {
    for device in [DeviceInfo::H100, DeviceInfo::H200] {
        for (words, tma) in [(50_257, 50_256), (151_646, 151_648)] {
            let plan = |vocabulary: usize| {
                let (a, b) = (OperandLayout::col_major(128), OperandLayout::row_major(vocabulary));
                let mut problem = GemmProblem::new(128, vocabulary, 7665, a, b);
                problem.precision = Precision::Fp32Strict;
                Plan::new(&problem, &device, Costs::built_in(&device)).unwrap()
            };
            let (off, on) = (plan(words), plan(tma));
            assert!(off.kernel.tma_boxes.is_none() && off.repacks == [None; 2], "{off}");
            assert!(on.kernel.tma_boxes.is_some(), "{on}");
        }
    }
}

#[test]
fn k_is_cut_where_multiprocessors_would_be_idle_and_no_slice_is_empty() {
    let plan = |m, n, k| {
        let problem = GemmProblem::new(m, n, k, OperandLayout::row_major(k), OperandLayout::col_major(k));
        Plan::new(&problem, &DeviceInfo::H100, h100()).unwrap()
    };
    let cut = plan(64, 768, 3072);
    assert!(cut.split_k() > 1, "{cut}");
    assert_eq!(cut.cluster(), cut.split_k());
    assert_eq!(plan(8192, 8192, 8192).split_k(), 1);
    for k in [1, 31, 33, 96, 100, 257, 1000] {
        for spec in TABLE {
            let problem = GemmProblem::new(64, 64, k, OperandLayout::row_major(k), OperandLayout::col_major(k));
            for plan in Plan::variants(spec, &problem.folded().unwrap(), &DeviceInfo::H100, h100()) {
                let queue = matches!(plan.kernel.split_k, SplitK::WorkQueue(_));
                let by_workspace = queue || plan.stream_k().is_some() || plan.reduction().is_some();
                assert_eq!(plan.workspace_bytes > 0, by_workspace, "{plan}");
                assert!((plan.split_k() - 1) * plan.k_slice() < k as u32, "{plan}");
                assert!(plan.split_k() * plan.k_slice() >= k as u32, "{plan}");
            }
        }
    }
}

/// Gradients of the weights of thin layers: a cluster has too few blocks for them.
#[test]
fn long_sums_of_small_results_are_cut_into_as_many_slices_as_fill_the_device() {
    let device = DeviceInfo::H200;
    let (mut apart, mut count) = (0, 0);
    for (m, n, k) in [
        (131, 128, 32_493),
        (256, 256, 8_308),
        (120, 512, 256_206),
        (320, 2560, 27_496),
        (576, 192, 56_448),
        (2304, 21, 7_463),
    ] {
        let problem = GemmProblem::new(m, n, k, OperandLayout::col_major(m), OperandLayout::row_major(n));
        for (dtype, precision) in [
            (DType::F32, Precision::Fp32Strict),
            (DType::F32, Precision::Fp32),
            (DType::BF16, Precision::Fp32),
        ] {
            let problem = GemmProblem {
                precision,
                types: ElementTypes::all_of(dtype),
                ..problem
            };
            let plan = Plan::new(&problem, &device, Costs::built_in(&device)).unwrap();
            println!("{dtype} {precision} {plan}");
            count += 1;
            if let Some(reduction) = plan.reduction() {
                apart += 1;
                assert!(reduction.blocks > 0 && !plan.is_one_kernel(), "{plan}");
                assert_eq!(plan.grid[1], plan.split_k(), "{plan}");
                assert_eq!((plan.cluster(), plan.stream_k()), (1, None), "{plan}");
                assert!(plan.to_string().contains("that a second kernel adds up"), "{plan}");
            }
            let batch = GemmProblem {
                batch_dims: [1, 1, 1, 2],
                ..problem
            };
            let batch = batch.folded().unwrap();
            let mut cuts = Plan::candidates(&batch, &device, Costs::built_in(&device));
            assert!(
                cuts.all(|plan| plan.reduction().is_none()),
                "a slice takes the place of a matrix"
            );
        }
    }
    assert!(2 * apart > count, "{apart} of {count}");
}

/// A GPU before Hopper, of it or after it.
fn drawn_device(rng: &mut StdRng) -> DeviceInfo {
    let devices = [
        DeviceInfo::A100,
        DeviceInfo::H100,
        DeviceInfo::H200,
        DeviceInfo::RTX_4090,
    ];
    devices[rng.random_range(0..devices.len())]
}

/// A product of these sizes and of this type, whose precision, orders and gaps between rows or columns are drawn.
fn drawn_product(rng: &mut StdRng, [m, n, k]: [usize; 3], dtype: DType) -> GemmProblem {
    let mut layout = |rows: usize, cols: usize| {
        let gap = rng.random_range(0..2) * rng.random_range(0..9);
        match rng.random_bool(0.5) {
            true => OperandLayout::col_major(rows + gap),
            false => OperandLayout::row_major(cols + gap),
        }
    };
    let (a, b) = (layout(m, k), layout(k, n));
    GemmProblem {
        precision: Precision::ALL[rng.random_range(0..Precision::ALL.len())],
        types: ElementTypes::all_of(dtype),
        ..GemmProblem::new(m, n, k, a, b)
    }
}

/// A cluster has too few blocks for the sums of a few tiles, and kernels for few lines don't take few lines past few lines. Operands that start anywhere
/// may be repacked first, which reads and writes them.
#[test]
fn long_sums_of_few_lines_each_way_are_not_left_to_a_few_blocks() {
    let mut rng = StdRng::seed_from_u64(64);
    for _ in 0..600 {
        let device = drawn_device(&mut rng);
        let (m, n) = (rng.random_range(1..=64), rng.random_range(1..=64));
        let k = rng.random_range(1 << 14..1 << 18);
        let dtype = [DType::F32, DType::F16, DType::BF16][rng.random_range(0..3usize)];
        let problem = drawn_product(&mut rng, [m, n, k], dtype);
        let plan = Plan::new(&problem, &device, Costs::built_in(&device)).unwrap();
        let read_us = ((m + n) * k * dtype.size()) as f64 / f64::from(device.memory_gbps) * 1e-3;
        assert!(
            plan.predicted_us <= 20.0 + 12.0 * read_us,
            "{dtype}, {read_us:.1} µs to read: {plan}"
        );
    }
}

/// Also where the sums are shorter than the result is long, and few lines lie along k.
#[test]
fn long_fp32_sums_of_few_tiles_may_be_cut_into_slices_whatever_their_shape() {
    let mut rng = StdRng::seed_from_u64(65);
    let (mut longer, mut shorter) = (0, 0);
    for _ in 0..600 {
        let device = drawn_device(&mut rng);
        let (few, many) = (rng.random_range(1..=32), rng.random_range(1..=2048));
        let (m, n) = if rng.random() { (few, many) } else { (many, few) };
        let k = rng.random_range(1..=2048);
        let problem = drawn_product(&mut rng, [m, n, k], DType::F32).folded().unwrap();
        let apart =
            Plan::candidates(&problem, &device, Costs::built_in(&device)).any(|plan| plan.reduction().is_some());
        assert_eq!(apart, k >= 512 && m.min(n) > 2, "{m}×{n}×{k}");
        longer += usize::from(apart && k > m.max(n));
        shorter += usize::from(apart && k <= m.max(n));
    }
    assert!(longer > 50 && shorter > 50, "{longer} and {shorter}");
}

/// In 16 bits nothing but predictions and repacks counts.
#[test]
fn what_is_repacked_has_to_pay() {
    let mut rng = StdRng::seed_from_u64(66);
    let (mut repacked, mut close) = (0, 0);
    for _ in 0..1200 {
        let device = drawn_device(&mut rng);
        let mut size = || {
            let most = rng.random_range(1..=1500);
            rng.random_range(1..=most)
        };
        let sizes = [size(), size(), size()];
        let dtype = if rng.random() { DType::F16 } else { DType::BF16 };
        let problem = drawn_product(&mut rng, sizes, dtype);
        let costs = Costs::built_in(&device);
        let chosen = Plan::new(&problem, &device, costs).unwrap();
        let count = |plan: &Plan| plan.repacks.iter().flatten().count() as i32;
        repacked += usize::from(chosen.is_repacked());
        for plan in Plan::candidates(&problem.folded().unwrap(), &device, costs) {
            let least = chosen.predicted_us * 1.02f64.powi(count(&chosen) - count(&plan));
            assert!(plan.predicted_us >= least * (1.0 - 1e-9), "{chosen}\n{plan}");
            close += usize::from(count(&plan) != count(&chosen) && plan.predicted_us < 1.02 * least);
        }
    }
    assert!(repacked > 100 && close > 20, "{repacked} repacked, {close} close");
}

#[test]
fn a_fused_epilogue_gets_a_kernel_that_has_it() {
    for device in [DeviceInfo::H100, DeviceInfo::RTX_4090] {
        for (m, n, k) in [(1, 1, 1), (5, 700, 33), (300, 10, 7), (4096, 4096, 768)] {
            let mut problem = GemmProblem::row_major(m, n, k);
            problem.a = OperandLayout::strided(3 * k as i64, 3);
            problem.b = OperandLayout::strided(3 * n as i64, 3);
            problem.epilogue.bias = true;
            problem.epilogue.activation = Activation::GeluErf;
            let plan = Plan::new(&problem, &device, Costs::built_in(&device)).unwrap();
            assert_eq!(plan.kernel.refusal(&plan.problem, &device), None);
        }
    }
}

#[test]
fn a_kernel_asked_for_by_name_is_the_one_that_runs_or_says_why_not() {
    let problem = GemmProblem::row_major(64, 64, 64);
    let plan = Plan::named("sgemm_01_naive", &problem, &DeviceInfo::H100, h100()).unwrap();
    assert_eq!(plan.kernel.name, "sgemm_01_naive");
    assert_eq!(plan.grid, [2, 2, 1]);

    let error = Plan::named("sgemm_99", &problem, &DeviceInfo::H100, h100()).unwrap_err();
    assert!(error.to_string().contains("sgemm_01_naive"), "{error}");

    let mut doubles = problem;
    doubles.types = ElementTypes::all_of(DType::F64);
    let refusal = plan.kernel.refusal(&doubles, &DeviceInfo::H100).unwrap();
    let (kernel, operands) = (DType::F32, ElementTypes::all_of(DType::F64));
    assert_eq!(refusal, Refusal::DType { kernel, operands });
    let error = Plan::named("sgemm_01_naive", &doubles, &DeviceInfo::H100, h100()).unwrap_err();
    assert!(error.to_string().ends_with(&refusal.to_string()), "{error}");

    let mut fused = problem;
    fused.epilogue.activation = Activation::Relu;
    let refusal = plan.kernel.refusal(&fused, &DeviceInfo::H100);
    assert_eq!(refusal, Some(Refusal::Epilogue));
    assert!(Plan::named("sgemm_01_naive", &fused, &DeviceInfo::H100, h100()).is_err());
}

#[test]
fn grids_end_where_cuda_does() {
    let problem = GemmProblem::row_major(32 * 70_000, 1, 1);
    let plan = Plan::named("sgemm_01_naive", &problem, &DeviceInfo::H100, h100()).unwrap();
    assert_eq!(plan.grid, [1, 65_535, 1]);
}

/// A device that has room for no clusters of some sizes, of some kernels.
#[test]
fn where_a_plan_has_no_room_the_next_best_is_taken() {
    let mut rng = StdRng::seed_from_u64(8);
    let (mut without, mut others) = (0, 0);
    for _ in 0..400 {
        let size = |rng: &mut StdRng| 1usize << rng.random_range(0..14);
        let (m, n, k) = (size(&mut rng), size(&mut rng), size(&mut rng));
        let mut problem = GemmProblem::new(m, n, k, OperandLayout::row_major(k), OperandLayout::col_major(k));
        problem.precision = Precision::ALL[rng.random_range(0..3)];
        let most = [1, 2, 4, 8][rng.random_range(0..4)];
        // There is memory for what a kernel needs itself, and none for slices that a second one adds up.
        let fits = |plan: &Plan| {
            let room = plan.cluster() == 1 || plan.kernel.dynamic_shared < 200_000;
            plan.cluster() <= most && room && plan.reduction().is_none()
        };
        let problem = problem.folded().unwrap();
        let candidates = || Plan::candidates(&problem, &DeviceInfo::H100, h100());
        let mut asked: Vec<Plan> = Vec::new();
        let chosen = cheapest_that(candidates(), |plan| {
            asked.push(*plan);
            Ok(fits(plan))
        });
        let chosen = chosen.unwrap().unwrap();
        assert_eq!(Some(chosen), candidates().filter(fits).min_by(cheaper));
        assert!(
            asked.is_sorted_by(|x, y| cheaper(x, y).is_le()),
            "the best is asked first"
        );
        let (last, before) = asked.split_last().unwrap();
        assert!(
            *last == chosen && !before.iter().any(fits),
            "none is asked after the first that fits"
        );
        others += usize::from(!before.is_empty());
        without += usize::from(before.is_empty());
    }
    assert!(
        without > 0 && others > 20,
        "{without} first choices and {others} others"
    );
    let problem = GemmProblem::row_major(64, 64, 64).folded().unwrap();
    let candidates = || Plan::candidates(&problem, &DeviceInfo::H100, h100());
    assert_eq!(cheapest_that(candidates(), |_| Ok(false)), Ok(None));
    let error = Error::Problem("of the driver".into());
    assert_eq!(cheapest_that(candidates(), |_| Err(error.clone())), Err(error));
}

#[test]
fn a_kernel_asked_for_by_name_is_cut_as_there_is_room_or_says_that_there_is_none() {
    let problem = GemmProblem::new(
        64,
        64,
        8192,
        OperandLayout::row_major(8192),
        OperandLayout::col_major(8192),
    );
    let with = |precision| {
        let mut with = problem;
        with.precision = precision;
        with.folded().unwrap()
    };
    let named = |name: &str, precision, most: u32| {
        Plan::named_that(name, &with(precision), &DeviceInfo::H100, h100(), |plan| {
            Ok(plan.cluster() <= most && plan.reduction().is_none())
        })
    };
    let free = named("ffma_64x64", Precision::Fp32Strict, 8).unwrap();
    assert!(free.cluster() > 4, "{free}");
    for most in [1, 2, 4] {
        let plan = named("ffma_64x64", Precision::Fp32Strict, most).unwrap();
        assert!(plan.kernel.name == "ffma_64x64" && plan.cluster() <= most, "{plan}");
    }
    let mut refused = 0;
    for spec in TABLE.iter().filter(|spec| matches!(spec.grid, Grid::Clusters(_))) {
        if spec.refusal(&with(Precision::Tf32), &DeviceInfo::H100).is_some() {
            continue;
        }
        assert_eq!(named(spec.name, Precision::Tf32, 2).unwrap().cluster(), 2);
        let error = named(spec.name, Precision::Tf32, 1).unwrap_err().to_string();
        assert!(
            error.contains(spec.name) && error.contains("clusters of 2 blocks"),
            "{error}"
        );
        refused += 1;
    }
    assert!(refused > 0);
}

#[test]
fn a_plan_knows_the_problem_with_operands_in_place() {
    let problem = GemmProblem::row_major(4097, 4097, 4097).folded().unwrap();
    let plan = Plan::new(&problem, &DeviceInfo::H100, h100()).unwrap();
    assert!(plan.is_repacked() && plan.problem != problem, "{plan}");
    assert_eq!(plan.asked, problem);
}

/// What a kernel counts with, beyond the end of m, n, k or the batch.
#[test]
fn no_kernel_counts_beyond_32_bits() {
    let declared = include_str!("../../../cuda/abi/gemm_args.cuh");
    assert!(declared.contains(&format!("kMaxOvershoot = {MAX_OVERSHOOT};")));
    assert_eq!(MAX_SIZE + MAX_OVERSHOOT, i32::MAX as usize);
    // What a block of a dot kernel takes of k at once: GEMV_DOT(NAME, M, LINES, WARPS, UNROLL, …), a vector a lane.
    const VECTOR: u32 = 4;
    let steps = include_str!("../../../cuda/gemv/gemv.cu").lines().filter_map(|line| {
        let of: Vec<&str> = line.strip_prefix("GEMV_DOT(")?.split(", ").collect();
        Some((
            of[0],
            of[3].parse::<u32>().ok()? * 32 * VECTOR * of[4].parse::<u32>().ok()?,
        ))
    });
    let steps: Vec<(&str, u32)> = steps.collect();
    assert_eq!(
        steps.len(),
        TABLE.iter().filter(|spec| spec.name.starts_with("gemv_dot")).count()
    );
    for (name, step) in steps {
        assert!(i32::MAX as usize - MAX_SIZE >= step as usize, "{name} takes {step}");
    }
    for spec in TABLE {
        let tile = spec.tile;
        let most = tile.bm.max(tile.bn).max(tile.bk * tile.stages);
        assert!(i32::MAX as usize - MAX_SIZE >= most as usize, "{}", spec.name);
        // Blocks that walk rows of tiles together count the tiles of GROUP_M rows. Those that stream a matrix do not.
        let streams = spec.file.starts_with("gemv/");
        if spec.grid != Grid::Tiles && !streams {
            let widest = match spec.needs.max_n {
                0 => MAX_SIZE,
                most => most as usize,
            };
            assert!(
                GROUP_M as usize * widest.div_ceil(tile.bn as usize) <= i32::MAX as usize,
                "{}",
                spec.name
            );
        }
    }
}

/// A size near one of the limits, or of any magnitude.
fn extreme(rng: &mut StdRng) -> usize {
    match rng.random_range(0..4) {
        0 => MAX_SIZE - rng.random_range(0..70),
        1 => 1,
        2 => (1usize << rng.random_range(0..31)) - rng.random_range(0..2),
        _ => rng.random_range(1..5000),
    }
    .clamp(1, MAX_SIZE)
}

/// A valid problem of extreme sizes, with strides that may be anything.
fn extreme_problem(rng: &mut StdRng) -> GemmProblem {
    fn layout(rng: &mut StdRng, rows: usize, cols: usize) -> OperandLayout {
        // Half of the operands are such as TMA reads.
        let (across, batch_strides, align) = if rng.random() {
            let strides = [0, 16, 1 << 20, 1 << 37];
            let batch = std::array::from_fn(|_| strides[rng.random_range(0..strides.len())]);
            (cols.max(rows).next_multiple_of(4) as i64, batch, 16)
        } else {
            let matrix = rows.saturating_mul(cols).min(i64::MAX as usize) as i64;
            let strides = [0, 1, -1, cols as i64, matrix, i64::MIN, i64::MAX, rng.random()];
            let mut any = || strides[rng.random_range(0..strides.len())];
            (any(), std::array::from_fn(|_| any()), 4)
        };
        let layout = match rng.random_range(0..5) {
            0 => OperandLayout::strided(across, across),
            1 | 2 => OperandLayout::strided(1, across),
            _ => OperandLayout::strided(across, 1),
        };
        layout.with_batch_strides(batch_strides).with_align(align)
    }
    let (m, n, k) = (extreme(rng), extreme(rng), extreme(rng));
    let mut problem = GemmProblem::new(m, n, k, layout(rng, m, k), layout(rng, k, n));
    problem.d = OperandLayout {
        col_stride: 1,
        ..layout(rng, m, n)
    };
    let mut left = if rng.random() { extreme(rng) } else { 1 };
    for dim in (0..MAX_BATCH_DIMS).rev() {
        problem.batch_dims[dim] = if dim == 0 || rng.random() {
            left
        } else {
            (1usize << rng.random_range(0..16)).min(left)
        };
        left /= problem.batch_dims[dim];
    }
    problem.precision = Precision::ALL[rng.random_range(0..3)];
    let dtypes = [DType::F64, DType::F32, DType::F32, DType::F16, DType::BF16];
    problem.types = ElementTypes::all_of(dtypes[rng.random_range(0..dtypes.len())]);
    problem.epilogue.bias = rng.random();
    problem.epilogue.c = rng.random::<bool>().then(|| layout(rng, m, n));
    problem.epilogue.residual = rng.random::<bool>().then(|| layout(rng, m, n));
    if rng.random_range(0..8) == 0 {
        (problem.normed, problem.epilogue.gated) = [(true, false), (false, true), (true, true)][rng.random_range(0..3)];
        if problem.epilogue.gated {
            problem.n = problem.n.next_multiple_of(2).min(MAX_SIZE / 2 * 2);
            (problem.epilogue.c, problem.epilogue.residual) = (None, None);
        }
        // As the few kernels read them that have these inside, mostly.
        if rng.random_range(0..4) > 0 {
            (problem.m, problem.batch_dims) = (rng.random_range(1..=2), [1; MAX_BATCH_DIMS]);
            let line = k.next_multiple_of(8);
            (problem.a, problem.b) = (OperandLayout::row_major(line), OperandLayout::col_major(line));
            problem.types = ElementTypes::all_of(dtypes[rng.random_range(1..dtypes.len())]);
        }
    }
    problem
}

/// Arithmetic that leaves its range panics here, for tests check it.
#[test]
fn problems_near_the_limits_are_planned_and_numbers_stay_in_their_range() {
    const PROBLEMS: usize = 3000;
    // Most rows of the table are for the first.
    let devices = [
        DeviceInfo::H100,
        DeviceInfo::A100,
        DeviceInfo::H100,
        DeviceInfo::H200,
        DeviceInfo::RTX_4090,
        DeviceInfo::H100,
        DeviceInfo::RTX_5090,
    ];
    let mut rng = StdRng::seed_from_u64(6);
    let mut taken = vec![0; TABLE.len()];
    for number in 0..PROBLEMS {
        // Of results that no memory holds there are no plans.
        let (problem, folded) = loop {
            let problem = extreme_problem(&mut rng);
            match problem.folded() {
                Ok(folded) => break (problem, folded),
                Err(reason) => assert!(reason.contains("more than any memory"), "{reason}"),
            }
        };
        let device = &devices[number % devices.len()];
        let mut plans: Vec<Plan> = Plan::candidates(&folded, device, Costs::built_in(device)).collect();
        plans.extend(Plan::new(&problem, device, Costs::built_in(device)));
        for (spec, taken) in TABLE.iter().zip(&mut taken) {
            if spec.refusal(&folded, device).is_none() {
                plans.extend(Plan::variants(spec, &folded, device, Costs::built_in(device)));
                *taken += 1;
            }
        }
        for plan in plans {
            let [x, y, z] = plan.grid.map(|blocks| blocks as usize);
            assert!(x >= 1 && y >= 1 && z >= 1, "{plan}");
            assert!(x <= i32::MAX as usize && y <= MAX_GRID_YZ && z <= MAX_GRID_YZ, "{plan}");
            assert!(
                plan.cluster() >= 1 && plan.grid[0].is_multiple_of(plan.cluster()),
                "{plan}"
            );
            let slices = u64::from(plan.split_k()) * u64::from(plan.k_slice());
            assert!(slices >= folded.k as u64 && slices <= i32::MAX as u64, "{plan}");
            assert!(
                plan.accumulation_depth() >= 1 && plan.accumulation_depth() <= folded.k,
                "{plan}"
            );
            assert!(!plan.predicted_us.is_nan() && plan.predicted_us > 0.0, "{plan}");
            if let Some(way) = plan.stream_k() {
                let steps = u64::from(way.share() + 1) * u64::from(way.ranges);
                assert!(
                    steps >= u64::from(way.cut_steps) && way.cut_steps < i32::MAX as u32,
                    "{plan}"
                );
            }
            for repack in plan.repacks.iter().flatten() {
                assert!(repack.offset + repack.bytes <= plan.workspace_bytes, "{plan}");
                repack.movement();
            }
            let at = plan.addresses(&Addresses::default(), 1 << 40);
            let args = plan.args(&at, 1.0, 0.0, 1 << 40);
            assert!(args.k_slice > 0 && args.m > 0 && args.n > 0 && args.k > 0 && args.batch > 0);
            plan.tensor_maps(&at);
        }
    }
    for (spec, taken) in TABLE.iter().zip(taken) {
        assert!(taken > 0, "no problem was for {}", spec.name);
    }
}

/// A row of A whose norm is inside the product, or a pair of weights with rows in turn, or both.
fn fused_problem(m: usize, n: usize, k: usize, dtype: DType, normed: bool, gated: bool) -> GemmProblem {
    let mut problem = GemmProblem::new(m, n, k, OperandLayout::row_major(k), OperandLayout::col_major(k));
    problem.types = ElementTypes::all_of(dtype);
    problem.normed = normed;
    problem.epilogue.gated = gated;
    problem.epilogue.activation = if gated { Activation::Silu } else { Activation::Identity };
    problem.d = OperandLayout::row_major(problem.result_columns());
    problem
}

#[test]
fn norms_and_gates_go_to_kernels_that_have_them_inside() {
    let mut compared = 0;
    for device in [DeviceInfo::H200, DeviceInfo::A100, DeviceInfo::RTX_4090] {
        let plan = |problem: &GemmProblem| Plan::new(problem, &device, Costs::built_in(&device));
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for (normed, gated) in [(true, false), (false, true), (true, true)] {
                for (n, k) in [
                    (3072, 2048),
                    (16384, 2048),
                    (128256, 2048),
                    (28672, 4096),
                    (64, 8),
                    (2, 16),
                ] {
                    let problem = fused_problem(1, n, k, dtype, normed, gated);
                    let plan = plan(&problem).unwrap();
                    assert!(plan.kernel.inside.gates() && !plan.is_repacked(), "{plan}");
                    let args = plan.args(&Addresses::default(), 1.0, 0.0, 0);
                    assert_eq!(args.gated, u16::from(gated));
                    // What it costs is the stream of both weights, as that of one as large.
                    let mut alone = problem;
                    (alone.normed, alone.epilogue.gated, alone.d) = (false, false, OperandLayout::row_major(n));
                    let alone = Plan::new(&alone, &device, Costs::built_in(&device)).unwrap();
                    assert!(!alone.kernel.inside.gates(), "{alone}");
                    if plan.kernel.costs_name() == alone.kernel.costs_name() {
                        compared += 1;
                        let ratio = plan.predicted_us / alone.predicted_us;
                        assert!((0.9..=1.01).contains(&ratio), "{plan}, {alone}");
                    }
                }
            }
        }
        // Two rows, and no more.
        for dtype in [DType::F32, DType::BF16] {
            assert!(plan(&fused_problem(2, 64, 64, dtype, true, true)).is_ok());
        }
        for (m, dtype) in [(3, DType::F32), (3, DType::BF16), (300, DType::F16)] {
            let error = plan(&fused_problem(m, 64, 64, dtype, true, true)).unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error}");
        }
    }
    assert!(compared > 0, "no product goes to the kernel without norm and gates");
}

#[test]
fn gates_of_many_rows_go_to_tiles_that_have_them_inside() {
    let (mut rng, device) = (StdRng::seed_from_u64(41), DeviceInfo::H200);
    let costs = Costs::built_in(&device);
    let mut paid = 0;
    for _ in 0..200 {
        let dtype = [DType::F16, DType::BF16][rng.random_range(0..2)];
        let (m, hidden, k) = (
            rng.random_range(3..=5000),
            rng.random_range(1..=15_000),
            8 * rng.random_range(1..=1000),
        );
        let problem = fused_problem(m, 2 * hidden, k, dtype, false, true);
        let plan = Plan::new(&problem, &device, costs).unwrap();
        assert_eq!(plan.kernel.inside, Inside::Gates, "{plan}");
        assert!(!plan.is_repacked() && plan.reduction().is_none(), "{plan}");
        // TMA stores half as many columns as are multiplied, if these are whole vectors.
        let [a, _, d] = plan.tensor_maps(&Addresses::default()).unwrap();
        match hidden % 8 {
            0 => assert_eq!(d.extents[..2], [hidden as u64, m as u64], "{plan}"),
            _ => assert_eq!(d, a, "{plan}"),
        }
        let (step, steps) = problem.in_steps();
        paid += usize::from(plan.pays(&Plan::new(&step, &device, costs).unwrap(), steps));
        // What norms rows as well takes one or two of them, and no other GPU has these tiles.
        let normed = fused_problem(m, 2 * hidden, k, dtype, true, true);
        for refused in [
            Plan::new(&normed, &device, costs),
            Plan::new(&problem, &DeviceInfo::A100, costs),
        ] {
            assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
        }
    }
    assert!(paid > 100, "one product is better than two for {paid} of 200");
}

#[test]
fn pieces_in_the_workspace_count_as_more_in_16_bits_alone() {
    let (mut rng, device) = (StdRng::seed_from_u64(42), DeviceInfo::H200);
    let mut seen = [[0; 2]; 2];
    for _ in 0..60 {
        let dtype = [DType::F32, DType::BF16][rng.random_range(0..2)];
        let [m, n, k] = [(); 3].map(|()| 64 * rng.random_range(17..100));
        let mut problem = GemmProblem::new(m, n, k, OperandLayout::row_major(k), OperandLayout::col_major(k));
        problem.types = ElementTypes::all_of(dtype);
        let problem = problem.folded().unwrap();
        for plan in Plan::candidates(&problem, &device, Costs::built_in(&device)).filter(|plan| !plan.is_repacked()) {
            let pieces = matches!(plan.cut, Cut::StreamK(_));
            let more = if pieces && dtype.is_16_bit() { PIECES } else { 1.0 };
            assert_eq!(plan.regard(), more, "{plan}");
            seen[usize::from(dtype.is_16_bit())][usize::from(pieces)] += 1;
        }
    }
    assert!(seen.as_flattened().iter().all(|&count| count > 20), "{seen:?}");
}

#[test]
fn a_decoder_norms_and_gates_inside_its_products() {
    let device = DeviceInfo::H200;
    let plan = |problem: &GemmProblem| Plan::new(problem, &device, Costs::built_in(&device)).unwrap();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        // Llamas of 1 and 8 billion weights: queries, keys and values; gate and up; words.
        for (n, k, gated) in [
            (3072, 2048, false),
            (16384, 2048, true),
            (128256, 2048, false),
            (6144, 4096, false),
            (28672, 4096, true),
        ] {
            let problem = fused_problem(1, n, k, dtype, true, gated);
            let (step, steps) = problem.in_steps();
            assert_eq!((step.normed, step.epilogue.gated), (false, false));
            assert_eq!(step.n * steps, n);
            assert_eq!(
                step.accesses().b,
                Access::ColVector,
                "gate and up are views of what lies in turn"
            );
            let (inside, step) = (plan(&problem), plan(&step));
            assert!(inside.pays(&step, steps), "{inside}, {steps} × {step}");
        }
    }
}

#[test]
fn a_problem_and_a_kernel_differ_in_norms_and_gates_by_reasons() {
    let refused = |name: &str, problem: &GemmProblem| {
        let plan = Plan::named(name, problem, &DeviceInfo::H200, h100());
        plan.unwrap_err().to_string()
    };
    let normed = fused_problem(1, 64, 64, DType::F32, true, false);
    assert!(refused("gemv_stream_m1_k1024", &normed).contains("without a norm"));
    for (normed, gated) in [(true, false), (true, true), (false, false)] {
        let problem = fused_problem(100, 64, 64, DType::BF16, normed, gated);
        let only_gates = Refusal::OnlyGates.to_string();
        assert!(refused("gemm_bf16_sm90_128x128_gated_nt", &problem).contains(&only_gates));
    }
    let plain = fused_problem(1, 64, 64, DType::F32, false, false);
    assert!(refused("gemv_fused_m1_k1024", &plain).contains("this has neither"));
    let mut odd = fused_problem(1, 63, 64, DType::F32, false, true);
    assert!(odd.folded().unwrap_err().contains("63 columns"));
    odd.n = 64;
    odd.epilogue.residual = Some(odd.d);
    assert!(odd.folded().unwrap_err().contains("a residual"));
}

#[test]
fn explanations_name_every_kernel_and_the_choice() {
    let text = explain(&GemmProblem::row_major(512, 512, 512), &DeviceInfo::H100, h100()).to_string();
    for spec in TABLE {
        assert!(text.contains(spec.name), "{text}");
    }
    assert!(text.contains("chosen: "), "{text}");
}

#[test]
fn explanations_begin_with_the_choice_and_go_on_by_time() {
    for device in [DeviceInfo::H100, DeviceInfo::A100] {
        for (m, n, k) in [
            (1, 4096, 4096),
            (512, 512, 512),
            (1024, 1024, 16384),
            (4097, 4097, 4097),
        ] {
            let explained = explain(&GemmProblem::row_major(m, n, k), &device, Costs::built_in(&device));
            let (first, others) = explained.candidates.split_first().unwrap();
            assert_eq!(explained.choice.as_ref(), Ok(first), "{explained}");
            assert!(others.is_sorted_by_key(|plan| plan.predicted_us), "{explained}");
            let as_they_lie = explained.candidates.iter().filter(|plan| !plan.is_repacked());
            assert_eq!(as_they_lie.count() + explained.refused.len(), TABLE.len());
            // Refusals stand last: the table is printed in this order.
            let text = explained.to_string();
            let mut lines = text.lines().take(explained.candidates.len());
            assert!(lines.all(|line| line.contains(" µs")), "{text}");
        }
    }
}

#[test]
fn explanations_of_what_has_no_plan_give_its_reason_and_end() {
    let mut too_many = GemmProblem::row_major(4, 4, 4);
    too_many.batch_dims = [usize::MAX; MAX_BATCH_DIMS];
    for problem in [
        GemmProblem::row_major(4, 4, 0),
        GemmProblem::row_major(0, 4, 4),
        GemmProblem::row_major(4, 4, 3_900_000_000_000),
        GemmProblem::row_major(usize::MAX, usize::MAX, usize::MAX),
        too_many,
    ] {
        let explained = explain(&problem, &DeviceInfo::H100, h100());
        assert!(matches!(explained.choice, Err(Error::Problem(_))), "{explained}");
        assert!(explained.candidates.is_empty() && explained.refused.is_empty());
        assert!(explained.to_string().starts_with("no plan: "), "{explained}");
    }
}

/// A walk over the steps of k would take a thousand times as long here as for the short product.
#[test]
fn planning_does_not_take_longer_where_k_is_long() {
    const MOST: u32 = 20;
    let time = |k: usize| {
        let mut problem = GemmProblem::row_major(512, 512, k);
        problem.precision = Precision::Fp32Strict;
        let once = || {
            let start = std::time::Instant::now();
            Plan::new(&problem, &DeviceInfo::H100, h100()).unwrap();
            start.elapsed()
        };
        // The shortest of a few: others may have been interrupted.
        (0..5).map(|_| once()).min().unwrap()
    };
    let (short, long) = (time(4096), time(MAX_SIZE / 64 * 64));
    assert!(long < MOST * short, "{short:?} and {long:?}");
}

#[test]
fn names_and_symbols_of_the_table_are_unique() {
    for (i, spec) in TABLE.iter().enumerate() {
        assert!(TABLE[..i].iter().all(|other| other.name != spec.name), "{}", spec.name);
        assert!(
            spec.tile.bm > 0 && spec.tile.bn > 0 && spec.threads > 0,
            "{}",
            spec.name
        );
    }
}

#[test]
fn blocks_that_share_a_multiprocessor_reach_between_one_and_all() {
    let mut rng = StdRng::seed_from_u64(9);
    let built_in = Costs::built_in(&DeviceInfo::H200);
    let some = built_in.kernels.values().next().copied().unwrap();
    for _ in 0..1000 {
        let resident = rng.random_range(1..=32);
        let full = rng.random_range(0.01..1.5);
        // Less would say that all together are done before one alone.
        let solo = match resident {
            1 => full,
            _ => rng.random_range(full / f64::from(resident)..=full),
        };
        let cost = KernelCost {
            full,
            solo,
            resident,
            ..some
        };
        let warps = [1, 2, 4, 6, 8, 12][rng.random_range(0..6)];
        let rate = |blocks: u32| cost.rate(f64::from(blocks), warps);
        let close = |x: f64, y: f64| (x / y - 1.0).abs() < 1e-9;
        assert!(close(rate(resident), full), "{cost:?}");
        // Four schedulers: as long as each has a warp at most, blocks do not get in each other's way.
        let beside = (4 / warps).max(1);
        if resident > beside {
            assert!(close(rate(1), solo), "{cost:?}");
        }
        for blocks in 1..resident {
            let [sooner, later] = [blocks, blocks + 1].map(|blocks| f64::from(blocks) / rate(blocks));
            assert!(later >= sooner * (1.0 - 1e-9), "{cost:?}, {blocks} of {warps} warps");
            if blocks < beside {
                assert!(close(later, sooner), "{cost:?}, {blocks} of {warps} warps");
            }
        }
    }
}

#[test]
fn clusters_in_step_make_no_more_rounds() {
    for most in 1..=80 {
        for units in 1..=1000 {
            let clusters = clusters_in_step(units, most);
            assert!((1..=most).contains(&clusters), "{clusters} clusters for {units} units");
            let rounds = units.div_ceil(units.min(most));
            assert_eq!(units.div_ceil(clusters), rounds, "{units} units, {most} clusters");
        }
    }
    assert_eq!(clusters_in_step(256, 66), 64, "four units for each");
    assert_eq!(clusters_in_step(67, 66), 66, "34 would leave half of the device idle");
}
