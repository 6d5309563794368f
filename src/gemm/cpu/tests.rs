use super::*;
use crate::gemm::operands::{DType, ElementTypes, OperandLayout, Operands, MAX_BATCH_DIMS};
use crate::gemm::problem::{Activation, Combine};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[test]
fn layouts_that_reach_beyond_all_numbers_are_refused() {
    let mut rng = StdRng::seed_from_u64(11);
    let (a, b) = (random(64, 1), random(64, 2));
    for _ in 0..2000 {
        // Sizes and strides of every order of magnitude, the largest ones among them.
        let mut size = |bits: u32| (u64::MAX >> rng.random_range(64 - bits..64)) as usize;
        let (m, n, k) = (size(64), size(64), size(64));
        let batch_dims = [size(64), size(8), 1, size(64)];
        let mut stride = || (i64::MAX as u64 >> rng.random_range(0..63)) as i64;
        let mut problem = GemmProblem::new(
            m,
            n,
            k,
            OperandLayout::strided(stride(), stride()).with_batch_strides([stride(), 0, 0, stride()]),
            OperandLayout::strided(stride(), stride()).with_batch_strides([stride(), 0, 0, stride()]),
        );
        problem.d = OperandLayout::strided(stride(), 1).with_batch_strides([stride(), stride(), 0, stride()]);
        problem.batch_dims = batch_dims;
        let sizes = [m, n, k].into_iter().chain(batch_dims);
        let work: f64 = sizes.map(|size| size as f64).product();
        let operands = CpuOperands::new(&a, &b);
        let mut d = [MaybeUninit::new(0f32); 8];
        // A few elements at distances that a slice may have; whatever else is refused, not computed, and never a panic.
        let refused = gemm(&problem, &operands, &mut d, 1).is_err();
        assert!(refused || work < 1e6, "{problem:?}");
        problem.d = OperandLayout::row_major(n);
        let refused = gemm_to_vec::<f32>(&problem, std::iter::once(operands), 1).is_err();
        assert!(refused || work < 1e6, "{problem:?}");
    }
}

#[test]
fn results_that_no_memory_holds_are_refused_with_their_sizes() {
    let one = [1f32];
    let operands = CpuOperands::new(&one, &one);
    let everywhere = OperandLayout::strided(0, 0);
    for (m, n, batch) in [
        (1 << 31, 1 << 31, 1),
        (1 << 40, 1 << 40, 1),
        (7, 1 << 29, 1 << 30),
        (1 << 58, 1, 1),
    ] {
        let mut problem = GemmProblem::new(m, n, 1, everywhere, everywhere);
        problem.batch_dims = [1, 1, 1, batch];
        problem.d.batch_strides = [0, 0, 0, m.saturating_mul(n).min(1 << 62) as i64];
        let error = gemm_to_vec::<f32>(&problem, std::iter::once(operands), 1).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(&m.to_string()) && text.contains(&n.to_string()) && text.contains(&batch.to_string()),
            "{text}"
        );
    }
    let problem = GemmProblem::new(1 << 30, 1 << 20, 1, everywhere, everywhere);
    let many = std::iter::repeat_n(operands, 1 << 10);
    let error = gemm_to_vec::<f32>(&problem, many, 1).unwrap_err();
    assert!(matches!(error, CpuGemmError::Memory { matrices: 1024, .. }), "{error}");
}

fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-1.0..1.2f32)).collect()
}

/// D in FP64, and Σ|a||b| of the product, straight from the definition.
fn expected(problem: &GemmProblem, operands: &CpuOperands, batch: usize, i: usize, j: usize) -> (f64, f64) {
    let at = |data: Elements, layout: &OperandLayout, row, col| {
        let mut number = [0f32];
        data.copy_to(&mut number, element(problem, layout, batch, row, col), 1);
        f64::from(number[0])
    };
    let Operands {
        a,
        b,
        c: c_elements,
        bias,
        residual: residual_elements,
        ..
    } = operands.elements;
    let (mut sum, mut scale) = (0.0, 0.0);
    for p in 0..problem.k {
        let term = at(a, &problem.a, i, p) * at(b, &problem.b, p, j);
        sum += term;
        scale += term.abs();
    }
    let mut x = f64::from(operands.alpha) * sum;
    if let Some(c) = &problem.epilogue.c {
        x += f64::from(operands.beta) * at(c_elements, c, i, j);
    }
    if problem.epilogue.bias {
        let row = OperandLayout::strided(0, operands.bias_stride as i64);
        x += at(bias, &row, 0, j);
    }
    x = match problem.epilogue.activation {
        Activation::Identity => x,
        Activation::Relu => x.max(0.0),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt())),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
    };
    if let Some(residual) = &problem.epilogue.residual {
        let residual = at(residual_elements, residual, i, j);
        x = match problem.epilogue.combine {
            Combine::Add => x + residual,
            Combine::Multiply => x * residual,
        };
    }
    (x, scale)
}

/// Runs into NaN with each number of threads, checks every element of D against FP64, and that what lies between
/// them is still NaN.
fn check(problem: &GemmProblem, operands: &CpuOperands, threads: &[usize]) {
    check_into::<f32>(problem, operands, threads);
}

fn check_into<T: Element + Into<f64>>(problem: &GemmProblem, operands: &CpuOperands, threads: &[usize]) {
    // Half an ulp, and half of the least positive number.
    let (roundoff, least) = match T::DTYPE {
        DType::F16 => (T::DTYPE.unit_roundoff(), 1.0 / f64::from(1 << 25)),
        DType::BF16 => (T::DTYPE.unit_roundoff(), 0.0),
        _ => (0.0, 0.0),
    };
    let (m, n, batch) = (problem.m, problem.n, problem.batch());
    let len = reach(problem, &problem.d, m, n).unwrap() as usize;
    let nan = T::round(f32::NAN);
    let mut results: Vec<Vec<T>> = Vec::new();
    for &threads in threads {
        let mut d = vec![MaybeUninit::new(nan); len];
        gemm(problem, operands, &mut d, threads).unwrap();
        // SAFETY: all elements were initialised above.
        results.push(d.into_iter().map(|x| unsafe { x.assume_init() }).collect());
    }
    // |d − ref| ≤ 2·ε·√k·Σ|a||b|, plus the rounding of a few more operations on values of this size.
    let c0 = 2.0 * f64::from(f32::EPSILON);
    for index in 0..batch * m * n {
        let (matrix, i, j) = (index / (m * n), index / n % m, index % n);
        let (expected, scale) = expected(problem, operands, matrix, i, j);
        let bound = c0 * ((problem.k as f64).sqrt() * scale + 4.0 * (1.0 + expected.abs()));
        let bound = bound + (roundoff * (expected.abs() + bound)).max(least);
        let at = element(problem, &problem.d, matrix, i, j) as usize;
        for (d, threads) in results.iter_mut().zip(threads) {
            let found: f64 = d[at].into();
            let error = (found - expected).abs();
            assert!(
                error <= bound,
                "matrix {matrix} ({i}, {j}): {found}, not {expected}; {threads} threads, {problem:?}"
            );
            d[at] = nan;
        }
    }
    let untouched = results.iter().flatten().all(|&x| Into::<f64>::into(x).is_nan());
    assert!(untouched, "written outside D: {problem:?}");
}

#[test]
fn every_part_of_the_epilogue_is_applied_in_order() {
    let (m, n, k) = (37, 41, 29);
    let (a, b, c) = (random(m * k, 1), random(k * n, 2), random(2 * m * n, 3));
    let (bias, residual) = (random(3 * n, 4), random(m * n, 5));
    let operands = CpuOperands {
        bias_stride: 3,
        alpha: 0.5,
        beta: -1.5,
        ..CpuOperands::new(&a, &b)
            .with_c(&c)
            .with_bias(&bias)
            .with_residual(&residual)
    };
    for activation in [
        Activation::Identity,
        Activation::Relu,
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::Silu,
        Activation::Tanh,
        Activation::Sigmoid,
    ] {
        for parts in 0..8 {
            let mut problem = GemmProblem::row_major(m, n, k);
            problem.d = OperandLayout::row_major(n + 5);
            problem.epilogue.c = (parts & 1 != 0).then_some(OperandLayout::strided(2, 2 * m as i64));
            problem.epilogue.bias = parts & 2 != 0;
            problem.epilogue.residual = (parts & 4 != 0).then_some(OperandLayout::row_major(n));
            problem.epilogue.activation = activation;
            check(&problem, &operands, &[1]);
            problem.epilogue.combine = Combine::Multiply;
            check(&problem, &operands, &[1]);
        }
    }
}

/// Products of a subnormal number and the largest power of two, which have few bits: they and their multiples by powers of two are exact, but
/// part of the first one is lost, or the second one overflows, where α multiplies a factor.
fn scales_sums<T: Element + Default>(seed: u64)
where
    for<'a> &'a Vec<T>: Into<Elements<'a>>,
{
    let mut rng = StdRng::seed_from_u64(seed);
    let most = f32::from_bits(0x7F00_0000);
    for _ in 0..300 {
        let mut size = |most: usize| rng.random_range(1..=most);
        let (m, n, k) = match size(4) {
            1 => (1, size(200), size(40)),
            2 => (size(200), 1, size(40)),
            3 => (size(40), size(40), size(2)),
            _ => (size(40), size(40), size(40)),
        };
        let mut layout = |rows: usize, cols: usize| match rng.random_bool(0.5) {
            true => OperandLayout::row_major(cols),
            false => OperandLayout::col_major(rows),
        };
        let mut problem = GemmProblem::new(m, n, k, layout(m, k), layout(k, n));
        problem.types = Operands {
            a: T::DTYPE,
            b: T::DTYPE,
            ..ElementTypes::all_of(DType::F32)
        };
        // One product in each sum. A subnormal BF16 number has seven bits.
        let least = f32::from_bits(match T::DTYPE {
            DType::BF16 => rng.random_range(1..1 << 7) << 16,
            _ => rng.random_range(1..1 << 23),
        });
        let (x, y) = match rng.random_bool(0.5) {
            true => (least, most),
            false => (most, least),
        };
        let (mut a, b) = (vec![T::default(); m * k], vec![T::round(y); k * n]);
        for i in 0..m {
            a[element(&problem, &problem.a, 0, i, rng.random_range(0..k)) as usize] = T::round(x);
        }
        let alpha = [1.0, -1.0][rng.random_range(0..2)] * 2f32.powi(rng.random_range(-20..=2));
        let operands = CpuOperands {
            alpha,
            ..CpuOperands::new(&a, &b)
        };
        let d: Vec<f32> = gemm_to_vec(&problem, std::iter::once(operands), 2).unwrap();
        assert_eq!(
            d,
            vec![alpha * (x * y); m * n],
            "{x:e}, {y:e}, alpha {alpha}, {problem:?}"
        );
    }
}

#[test]
fn alpha_is_a_factor_of_sums_and_not_of_operands() {
    scales_sums::<f32>(17);
    scales_sums::<bf16>(18);
}

#[test]
fn tiles_of_any_number_of_threads_cover_the_result() {
    for (m, n, k, batch) in [
        (300, 310, 60, 1),
        (1, 3000, 900, 1),
        (3000, 1, 900, 1),
        (90, 70, 80, 7),
        (200, 150, 40, 3),
    ] {
        let mut problem = GemmProblem::row_major(m, n, k);
        problem.batch_dims[MAX_BATCH_DIMS - 1] = batch;
        problem.a.batch_strides[MAX_BATCH_DIMS - 1] = (m * k) as i64;
        problem.d.batch_strides[MAX_BATCH_DIMS - 1] = (m * n + 3) as i64;
        problem.epilogue.bias = true;
        let (a, b, bias) = (random(batch * m * k, 6), random(k * n, 7), random(n, 8));
        let operands = CpuOperands::new(&a, &b).with_bias(&bias);
        check(&problem, &operands, &[1, 2, 3, 8, 13]);
    }
}

fn rounded<T: Element>(numbers: &[f32]) -> Vec<T> {
    numbers.iter().map(|&x| T::round(x)).collect()
}

/// Random problems with factors of this type, into results of the same and of FP32, and with other operands of either.
fn sixteen_bits<T: Element + Into<f64>>()
where
    for<'a> &'a Vec<T>: Into<Elements<'a>>,
{
    let mut rng = StdRng::seed_from_u64(16);
    for _ in 0..25 {
        let mut size = |most: usize| rng.random_range(1..=most);
        let (m, n, k, batch) = (size(140), size(270), size(40), size(2));
        let mut layout = |rows: usize, cols: usize| {
            let odd = rng.random_range(0..3);
            let layout = match rng.random_range(0..3) {
                0 => OperandLayout::row_major(cols + odd),
                1 => OperandLayout::col_major(rows + odd),
                _ => OperandLayout::strided(2 * (cols + odd) as i64, 2),
            };
            let stride = match rng.random_bool(0.7) {
                true => 2 * ((rows + 3) * (cols + 3)) as i64,
                false => 0,
            };
            layout.with_batch_strides([0, 0, 0, stride])
        };
        let mut problem = GemmProblem::new(m, n, k, layout(m, k), layout(k, n));
        problem.batch_dims[MAX_BATCH_DIMS - 1] = batch;
        problem.d = OperandLayout::row_major(n + 1).with_batch_strides([0, 0, 0, (m * (n + 1)) as i64]);
        problem.epilogue.c = rng.random_bool(0.5).then(|| OperandLayout::strided(1, 0));
        problem.epilogue.residual = rng.random_bool(0.5).then(|| OperandLayout::row_major(n));
        problem.epilogue.bias = rng.random_bool(0.5);
        problem.epilogue.activation = Activation::ALL[rng.random_range(0..Activation::ALL.len())];
        let fp32 = [(); 4].map(|()| rng.random_bool(0.5));
        let one_of = |fp32: bool| if fp32 { DType::F32 } else { T::DTYPE };
        problem.types = Operands {
            a: T::DTYPE,
            b: T::DTYPE,
            c: one_of(fp32[0]),
            d: one_of(fp32[3]),
            bias: one_of(fp32[1]),
            residual: one_of(fp32[2]),
        };
        let room = |rows: usize, cols: usize| 2 * batch * (rows + 3) * (cols + 3);
        let (a, b) = (
            rounded::<T>(&random(room(m, k), 1)),
            rounded::<T>(&random(room(k, n), 2)),
        );
        let others = [m, n, m * n].map(|len| random(len, len as u64));
        let halves = others.each_ref().map(|numbers| rounded::<T>(numbers));
        let elements = |i: usize| match fp32[i] {
            true => Elements::from(&others[i]),
            false => (&halves[i]).into(),
        };
        let operands = CpuOperands {
            alpha: 0.5,
            beta: -1.5,
            ..CpuOperands::new(&a, &b)
                .with_c(elements(0))
                .with_bias(elements(1))
                .with_residual(elements(2))
        };
        match fp32[3] {
            true => check_into::<f32>(&problem, &operands, &[1, 3]),
            false => check_into::<T>(&problem, &operands, &[1, 3]),
        }
    }
}

#[test]
fn products_of_sixteen_bit_matrices_are_summed_in_fp32_and_rounded_once() {
    sixteen_bits::<half::f16>();
    sixteen_bits::<half::bf16>();
    // 1 + 4096 times 2⁻¹², which sums of 16 bits would lose.
    let k = 4097;
    let (mut a, b) = (vec![half::f16::from_f32(1.0 / 4096.0); k], vec![half::f16::ONE; k]);
    a[0] = half::f16::ONE;
    let mut problem = GemmProblem::row_major(1, 1, k);
    problem.types = ElementTypes::all_of(DType::F16);
    let d: Vec<half::f16> = gemm_to_vec(&problem, std::iter::once(CpuOperands::new(&a, &b)), 1).unwrap();
    assert_eq!(d, [half::f16::from_f32(2.0)]);
}

#[test]
fn tilings_use_the_threads() {
    let tiles = |m, n, k, batch, threads| {
        let mut problem = GemmProblem::row_major(m, n, k);
        problem.batch_dims[0] = batch;
        let tiling = Tiling::new(&problem, threads);
        (
            tiling.parallel,
            tiling.engine_threads,
            tiling.row_tiles,
            tiling.col_tiles,
        )
    };
    assert_eq!(
        tiles(1024, 1024, 1024, 1, 4),
        (false, 4, 1, 1),
        "one matrix: the engine's threads"
    );
    assert_eq!(tiles(1024, 1024, 1024, 1, 1), (false, 1, 1, 1), "one thread");
    assert_eq!(tiles(64, 64, 64, 100, 4), (true, 1, 1, 1), "a matrix a thread");
    assert_eq!(
        tiles(512, 512, 512, 3, 4),
        (false, 4, 1, 1),
        "fewer matrices than threads"
    );
    assert_eq!(tiles(8, 8, 8, 4, 4), (false, 1, 1, 1), "small work stays on one thread");
    assert_eq!(tiles(1, 512, 512, 1, 4), (false, 1, 1, 1), "a small vector too");
    assert_eq!(tiles(1, 4096, 4096, 1, 4), (true, 1, 1, 4), "slices of a row");
    assert_eq!(tiles(4096, 1, 4096, 1, 4), (true, 1, 4, 1), "slices of a column");
}

#[test]
fn beta_of_zero_does_not_read_c() {
    let mut problem = GemmProblem::row_major(5, 6, 7);
    problem.epilogue.c = Some(OperandLayout::row_major(6));
    let (a, b, c) = (random(35, 9), random(42, 10), [f32::NAN; 30]);
    for c in [&c[..], &[]] {
        let operands = CpuOperands::new(&a, &b).with_c(c);
        let mut d = [MaybeUninit::new(f32::NAN); 30];
        gemm(&problem, &operands, &mut d, 1).unwrap();
        // SAFETY: all elements were initialised above.
        assert!(d.iter().all(|x| unsafe { x.assume_init() }.is_finite()));
    }
}

#[test]
fn an_empty_k_gives_the_epilogue_alone() {
    let mut problem = GemmProblem::row_major(3, 4, 0);
    problem.epilogue.bias = true;
    let bias = [1f32, 2.0, 3.0, 4.0];
    check(
        &problem,
        &CpuOperands::new(&[0f32; 0], &[0f32; 0]).with_bias(&bias),
        &[1, 2],
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    let data = vec![0f32; 12];
    let run = |problem: &GemmProblem, d_len: usize| {
        let mut d = vec![MaybeUninit::new(0f32); d_len];
        gemm(problem, &CpuOperands::new(&data, &data), &mut d, 1)
    };
    let problem = GemmProblem::row_major(3, 3, 4);
    assert_eq!(run(&problem, 9), Ok(()));
    assert!(run(&problem, 8)
        .unwrap_err()
        .to_string()
        .starts_with("D of row stride 3"));
    assert!(run(&GemmProblem::row_major(3, 4, 4), 12)
        .unwrap_err()
        .to_string()
        .starts_with("B of"));
    let mut negative = problem;
    negative.a.row_stride = -4;
    assert!(run(&negative, 9).unwrap_err().to_string().starts_with("A of"));
    let mut overlapping = problem;
    overlapping.d.row_stride = 2;
    assert!(matches!(run(&overlapping, 9), Err(CpuGemmError::Result(_))));
    let mut double = problem;
    for types in [
        ElementTypes::all_of(DType::F64),
        ElementTypes::all_of(DType::F16),
        Operands {
            b: DType::BF16,
            ..problem.types
        },
        Operands {
            d: DType::F16,
            ..problem.types
        },
    ] {
        double.types = types;
        assert_eq!(run(&double, 9), Err(CpuGemmError::DType(types)));
    }
    let mut missing = problem;
    missing.epilogue.residual = Some(OperandLayout::row_major(3));
    assert!(run(&missing, 9).unwrap_err().to_string().starts_with("the residual of"));
}

#[test]
fn results_of_several_launches_follow_one_another() {
    let problem = GemmProblem::row_major(2, 2, 2);
    let (a, b) = ([1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [1f32, 0.0, 0.0, 1.0]);
    let launches = [0, 4].map(|at| CpuOperands::new(&a[at..], &b));
    let results: Vec<f32> = gemm_to_vec(&problem, launches.into_iter(), 2).unwrap();
    assert_eq!(results, a);
    let mut padded = problem;
    padded.d.row_stride = 3;
    assert!(gemm_to_vec::<f32>(&padded, launches.into_iter(), 2).is_err());
}
