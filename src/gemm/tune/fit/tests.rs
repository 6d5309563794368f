use super::*;
use crate::device::DeviceInfo;
use crate::gemm::kernel::spec::Role;
use crate::gemm::kernel::table::TABLE;
use crate::gemm::operands::{DType, ElementTypes, OperandLayout};
use crate::gemm::planner::plan::Plan;
use crate::gemm::problem::GemmProblem;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;

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

fn sweep_of(dtype: DType, device: &DeviceInfo, problems: usize, costs: &Costs, noise: f64, rng: &mut StdRng) -> Sweep {
    let mut sweep = Sweep::new(*device);
    add(&mut sweep, dtype, problems, costs, noise, rng);
    sweep
}

/// Adds such problems.
fn add(sweep: &mut Sweep, dtype: DType, problems: usize, costs: &Costs, noise: f64, rng: &mut StdRng) {
    let device = sweep.device;
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
        let plans = Plan::candidates(&problem, &device, costs);
        let timed: Vec<Timed> = plans
            .map(|plan| Timed::new(&plan, plan.predicted_us * (1.0 + noise * rng.random_range(-1.0..1.0))))
            .collect();
        sweep.add(&problem, &timed, costs, |_| true);
    }
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
    let fitted = fitted_on.fit(start, "a GPU", Moving::ALL);
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
    let fitted = sweep.fit(start, "a GPU", Moving::ALL);
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
    assert_eq!(nothing.fit(start, "a GPU", Moving::ALL).kernels, start.kernels);
}

#[test]
fn a_fit_of_some_kernels_holds_all_others() {
    let device = DeviceInfo::H200;
    let mut rng = StdRng::seed_from_u64(5);
    for (dtype, changed) in [(DType::F32, true), (DType::BF16, true), (DType::F32, false)] {
        let hidden = planted(&device, 0.5, &mut rng);
        let sweep = sweep_of(dtype, &device, 4, &hidden, 0.0, &mut rng);
        let start = Costs::built_in(&device);
        let named: Vec<&String> = sweep.kernels.iter().filter(|_| rng.random_range(0..3) == 0).collect();
        let moving = Moving {
            kernels: &|kernel| named.iter().any(|name| *name == kernel),
            shared: false,
            changed,
        };
        let fitted = sweep.fit(start, "a GPU", moving);
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
        let fitted = sweep_of(dtype, &device, 4, &hidden, 0.0, &mut rng).fit(start, "a GPU", Moving::ALL);
        assert_eq!(fitted.shared != start.shared, dtype == DType::F32);
        assert_eq!(fitted.shared_16 != start.shared_16, dtype == DType::BF16);
    }
}

#[test]
fn kernels_for_32_bits_are_fitted_alike_with_and_without_those_for_16() {
    let device = DeviceInfo::H200;
    let mut rng = StdRng::seed_from_u64(7);
    let hidden = planted(&device, 0.5, &mut rng);
    let start = Costs::built_in(&device);
    let mut both = sweep_of(DType::F32, &device, 4, &hidden, 0.0, &mut rng);
    let alone = both.fit(start, "a GPU", Moving::ALL);
    let fitted = both.kernels.clone();
    add(&mut both, DType::BF16, 4, &hidden, 0.0, &mut rng);
    let together = both.fit(start, "a GPU", Moving::ALL);
    for name in &fitted {
        assert_eq!(together.kernels[name], alone.kernels[name], "{name}");
    }
    assert!(fitted.iter().any(|name| alone.kernels[name] != start.kernels[name]));
    assert_ne!(together.shared_16, start.shared_16);
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
    let holds = HashMap::from([(name.to_string(), 3), ("ffma_128x32".to_string(), 2)]);
    let start = starting_costs(&known, &holds);
    start.validate().unwrap();
    assert_eq!(start.kernels[name].resident, 3);
    assert_ne!(start.kernels[name], before);
    assert_eq!(start.kernels["ffma_128x32"].resident, 2, "no more than the GPU holds");
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
