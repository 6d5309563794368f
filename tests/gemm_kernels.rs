//! Every kernel of the table against FP64, on a GPU: sizes around its tile, primes, long thin ones, all storage orders,
//! padded, misaligned, broadcast and batched operands, α and β, and the epilogue where the kernel has it.
//!
//! Bound: |d − ref| ≤ C0·ε·√k·|α|·Σ|a||b| + C1·ε·(|β·c| + |bias| + |residual| + |ref|) for each element, beside the
//! Frobenius norm. `CANDLE_SGEMM_TEST_KERNEL=text` keeps to kernels whose name contains the text;
//! `CANDLE_SGEMM_TEST_EVERY=n` to every n-th case (for runs under compute-sanitizer).
#![cfg(feature = "cuda")]

mod common;

use candle_sgemm::device::{CurrentContext, DeviceInfo};
use candle_sgemm::gemm::kernel::costs::Costs;
use candle_sgemm::gemm::kernel::refusal::Refusal;
use candle_sgemm::gemm::kernel::spec::{Arithmetic, EpilogueSupport, Inside, SplitK};
use candle_sgemm::gemm::launch::args::Addresses;
use candle_sgemm::gemm::launch::args::{GemmArgs, GemmOperand};
use candle_sgemm::gemm::launch::launch;
use candle_sgemm::gemm::operands::{ElementTypes, Operands, MAX_BATCH_DIMS};
use candle_sgemm::gemm::planner::cache;
use candle_sgemm::gemm::tune::Tuning;
use candle_sgemm::gemm::{
    Access, Activation, Combine, DType, GemmProblem, KernelSpec, OperandLayout, Plan, Precision, TABLE,
};
use candle_sgemm::Error;
use common::reference::{element, frobenius_limit, gated_element, normed, place, walk, Terms, C0, MANY, TF32_ERROR};
use common::{rng, stream_or_skip, uniform};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::Rng;
use std::collections::HashSet;
use std::sync::Arc;

/// What rows start on, where TMA takes them.
const TMA_ROW_BYTES: usize = 16;

trait Element: DeviceRepr + Copy + Default + 'static {
    const EPSILON: f64;
    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
    fn bits(self) -> u64;
}

impl Element for f32 {
    const EPSILON: f64 = f32::EPSILON as f64;
    fn from_f64(x: f64) -> Self {
        x as f32
    }
    fn to_f64(self) -> f64 {
        self as f64
    }
    fn bits(self) -> u64 {
        self.to_bits() as u64
    }
}

impl Element for f64 {
    const EPSILON: f64 = f64::EPSILON;
    fn from_f64(x: f64) -> Self {
        x
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

impl Element for f16 {
    const EPSILON: f64 = DType::F16.unit_roundoff();
    fn from_f64(x: f64) -> Self {
        f16::from_f64(x)
    }
    fn to_f64(self) -> f64 {
        f16::to_f64(self)
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Element for bf16 {
    const EPSILON: f64 = DType::BF16.unit_roundoff();
    fn from_f64(x: f64) -> Self {
        bf16::from_f64(x)
    }
    fn to_f64(self) -> f64 {
        bf16::to_f64(self)
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

/// ε of norms.
const NORM_EPSILON: f32 = 0.01;

/// A problem with the offset of each operand's first element in its buffer, and the scalars.
#[derive(Clone, Copy, Debug)]
struct Case {
    problem: GemmProblem,
    offset: usize,
    alpha: f32,
    beta: f32,
}

/// An operand on the host and on the device. What its layout does not reach is NaN, so that a kernel which reads beside
/// the operand and uses what it finds is caught.
struct Operand<T: Element> {
    host: Vec<T>,
    device: CudaSlice<T>,
    layout: OperandLayout,
    offset: usize,
}

impl<T: Element> Operand<T> {
    fn new(
        stream: &Arc<CudaStream>,
        rng: &mut StdRng,
        problem: &GemmProblem,
        layout: OperandLayout,
        rows: usize,
        cols: usize,
        offset: usize,
    ) -> Self {
        let mut last = 0;
        walk(problem, &layout, rows, cols, |at| last = last.max(at));
        let mut host = vec![T::from_f64(f64::NAN); offset + last + 1];
        walk(problem, &layout, rows, cols, |at| {
            host[offset + at] = T::from_f64(uniform(rng))
        });
        let device = stream.clone_htod(&host).expect("upload");
        Operand {
            host,
            device,
            layout,
            offset,
        }
    }

    fn address(&self, stream: &CudaStream) -> u64 {
        let (address, _sync) = self.device.device_ptr(stream);
        address + (self.offset * std::mem::size_of::<T>()) as u64
    }

    fn at(&self, problem: &GemmProblem, batch: usize, row: usize, col: usize) -> f64 {
        self.host[self.offset + place(problem, &self.layout, batch, row, col)].to_f64()
    }
}

/// A case's data, and what every kernel must make of it.
struct Prepared<T: Element> {
    case: Case,
    a: Operand<T>,
    b: Operand<T>,
    c: Option<Operand<T>>,
    residual: Option<Operand<T>>,
    bias: Option<CudaSlice<T>>,
    /// The weights of the norm of A's rows.
    norm: Option<CudaSlice<T>>,
    /// For each element of D, in the order of [`walk`]: its place, the reference and the bound.
    expected: Vec<(usize, f64, f64)>,
    d_len: usize,
}

impl<T: Element> Prepared<T> {
    fn new(stream: &Arc<CudaStream>, case: Case, seed: u64) -> Self {
        let mut rng = rng(seed);
        let problem = case.problem;
        let (m, n, k) = (problem.m, problem.n, problem.k);
        let a = Operand::<T>::new(stream, &mut rng, &problem, problem.a, m, k, case.offset);
        let b = Operand::<T>::new(stream, &mut rng, &problem, problem.b, k, n, case.offset);
        let mut extra = |layout: Option<OperandLayout>| {
            layout.map(|layout| Operand::<T>::new(stream, &mut rng, &problem, layout, m, n, case.offset))
        };
        let c = extra(problem.epilogue.c);
        let residual = extra(problem.epilogue.residual);
        let bias_host: Option<Vec<T>> = problem
            .epilogue
            .bias
            .then(|| (0..n).map(|_| T::from_f64(uniform(&mut rng))).collect());
        let norm_host: Option<Vec<T>> = problem
            .normed
            .then(|| (0..k).map(|_| T::from_f64(uniform(&mut rng))).collect());
        let norm = norm_host
            .as_ref()
            .map(|norm| norm.iter().map(|&weight| weight.to_f64()).collect::<Vec<_>>());

        let mut expected = Vec::new();
        let mut places = Vec::new();
        walk(&problem, &problem.d, m, problem.result_columns(), |at| places.push(at));
        let mut places = places.into_iter();
        for batch in 0..problem.batch() {
            for row in 0..m {
                let mut of_a: Vec<f64> = (0..k).map(|i| a.at(&problem, batch, row, i)).collect();
                if let Some(norm) = &norm {
                    of_a = normed(&of_a, norm, NORM_EPSILON.into());
                }
                let terms = |col: usize| {
                    let (mut sum, mut magnitude) = (0.0, 0.0);
                    for (i, a) in of_a.iter().enumerate() {
                        let product = a * b.at(&problem, batch, i, col);
                        sum += product;
                        magnitude += product.abs();
                    }
                    let from_c = c
                        .as_ref()
                        .map_or(0.0, |c| case.beta as f64 * c.at(&problem, batch, row, col));
                    Terms {
                        sum,
                        magnitude,
                        from_c,
                        bias: bias_host.as_ref().map_or(0.0, |bias| bias[col].to_f64()),
                        residual: residual.as_ref().map(|r| r.at(&problem, batch, row, col)),
                    }
                };
                for col in 0..problem.result_columns() {
                    let alpha = case.alpha as f64;
                    let (value, bound) = match problem.epilogue.gated {
                        true => gated_element(&problem, alpha, [&terms(2 * col), &terms(2 * col + 1)]),
                        false => element(&problem, alpha, &terms(col)),
                    };
                    let place = places.next().expect("as many places as elements");
                    expected.push((place, value, bound));
                }
            }
        }
        let d_len = expected.iter().map(|(place, ..)| place + 1).max().unwrap_or(0) + 7;
        let upload = |host: Option<Vec<T>>| host.map(|host| stream.clone_htod(&host).expect("upload"));
        let (bias, norm) = (upload(bias_host), upload(norm_host));
        Prepared {
            case,
            a,
            b,
            c,
            residual,
            bias,
            norm,
            expected,
            d_len,
        }
    }

    /// Runs `plan` into a D full of NaN and returns it.
    fn run(&self, stream: &Arc<CudaStream>, plan: &Plan) -> Vec<T> {
        let case = &self.case;
        let d = stream
            .clone_htod(&vec![T::from_f64(f64::NAN); case.offset + self.d_len])
            .expect("upload");
        let address = |slice: &CudaSlice<T>| slice.device_ptr(stream).0;
        let scalars = stream.clone_htod(&[case.alpha, case.beta]).expect("upload");
        let device_scalars = case.problem.epilogue.device_scalars;
        let (alpha, beta) = match device_scalars {
            true => (f32::NAN, f32::NAN), // not these
            false => (case.alpha, case.beta),
        };
        let at = Addresses {
            operands: Operands {
                a: self.a.address(stream),
                b: self.b.address(stream),
                c: self.c.as_ref().map_or(0, |c| c.address(stream)),
                d: address(&d) + (case.offset * std::mem::size_of::<T>()) as u64,
                bias: self.bias.as_ref().map_or(0, address),
                residual: self.residual.as_ref().map_or(0, |r| r.address(stream)),
            },
            bias_stride: 1,
            alpha: scalars.device_ptr(stream).0,
            beta: scalars.device_ptr(stream).0 + std::mem::size_of::<f32>() as u64,
            norm: self.norm.as_ref().map_or(0, address),
            norm_epsilon: NORM_EPSILON,
        };
        // SAFETY: the operands were allocated for exactly this problem and live until the copy below has synchronised.
        unsafe { launch(plan, &at, alpha, beta, stream.cu_stream()) }.expect("launch");
        stream.clone_dtoh(&d).expect("download")
    }

    /// The Frobenius error that few numbers may have, of any arithmetic that serves the precision.
    fn wide_limit(&self) -> f64 {
        let problem = &self.case.problem;
        let rounding = match problem.precision {
            Precision::Tf32 => TF32_ERROR,
            _ => 0.0,
        };
        let sqrt_k = (problem.k as f64).sqrt();
        match problem.types.a.is_16_bit() {
            true => C0 * f64::from(f32::EPSILON) * sqrt_k + T::EPSILON,
            false => C0 * T::EPSILON * sqrt_k + rounding,
        }
    }

    /// The first thing that is wrong with `d`, which this plan has computed, or `None`.
    fn complaint(&self, d: &[T], plan: &Plan) -> Option<String> {
        let d = &d[self.case.offset..];
        let mut untouched = vec![true; d.len()];
        let (mut error, mut norm) = (0.0, 0.0);
        for (i, &(place, reference, bound)) in self.expected.iter().enumerate() {
            untouched[place] = false;
            let value = d[place].to_f64();
            let off = (value - reference).abs();
            if off.is_nan() || off > bound {
                let n = self.case.problem.result_columns();
                let (row, col) = (i / n % self.case.problem.m, i % n);
                return Some(format!("D({row}, {col}) is {value}, not {reference} (±{bound:e})"));
            }
            error += off * off;
            norm += reference * reference;
        }
        let frobenius = (error / norm.max(f64::MIN_POSITIVE)).sqrt();
        let plain = self.case.problem.epilogue.c.is_none() && self.case.problem.epilogue.is_plain();
        // Rows, columns or matrices that are one, broadcast, have the same sums, which cancellation could spoil together.
        let different = |strides: &[i64], extent: usize| {
            if strides.iter().all(|&stride| stride == 0) {
                1
            } else {
                extent
            }
        };
        let problem = &self.case.problem;
        let (a, b) = (&problem.a, &problem.b);
        let matrices: usize = (0..MAX_BATCH_DIMS)
            .map(|dim| different(&[a.batch_strides[dim], b.batch_strides[dim]], problem.batch_dims[dim]))
            .product();
        let sums = matrices * different(&[a.row_stride], problem.m) * different(&[b.col_stride], problem.n);
        // One row and one column make one number, and a few numbers no average: these have room for the worst of them.
        let one_number = a.row_stride == 0 && b.col_stride == 0;
        let (judged, limit) = match sums >= MANY {
            true => (true, frobenius_limit(plan)),
            false => (!one_number && self.expected.len() > MANY, self.wide_limit()),
        };
        if plain && judged && norm > 0.0 && frobenius > limit {
            return Some(format!("the Frobenius error is {frobenius:e}, above {limit:e}"));
        }
        let nan = T::from_f64(f64::NAN).bits();
        let strayed = (0..d.len()).find(|&place| untouched[place] && d[place].bits() != nan);
        strayed.map(|place| format!("place {place}, which is not D's, was written"))
    }
}

/// The storage orders and views in which an operand may come. `extra` pads.
fn layouts(rows: usize, cols: usize) -> Vec<OperandLayout> {
    vec![
        OperandLayout::row_major(cols),
        OperandLayout::col_major(rows),
        OperandLayout::row_major(cols.next_multiple_of(8) + 8), // padded, still aligned
        OperandLayout::row_major(cols + 3),                     // padded to an odd stride
        OperandLayout::col_major(rows.next_multiple_of(8) + 16),
        OperandLayout::strided(2 * cols as i64 + 1, 2), // every second column of something
        OperandLayout::strided(0, 1),                   // one row, broadcast
        OperandLayout::strided(1, 0),                   // one column, broadcast
    ]
}

fn aligned_for(dtype: DType, layout: OperandLayout, offset: usize) -> OperandLayout {
    let bytes = offset * dtype.size();
    layout.with_align(if bytes.is_multiple_of(16) {
        16
    } else {
        dtype.size() as u32
    })
}

/// Sizes that end before, at and after the tile of a kernel, and some that have nothing to do with it.
fn sizes(spec: &KernelSpec) -> Vec<(usize, usize, usize)> {
    let (bm, bn, bk) = (
        spec.tile.bm as usize,
        spec.tile.bn as usize,
        spec.tile.bk.max(1) as usize,
    );
    let mut sizes = vec![
        (1, 1, 1),
        (1, 1, 67),
        (1, 97, 129),
        (113, 1, 61),
        (127, 131, 1),
        (2, 3, 5),
        (31, 37, 41),
        (16, 16, 16),
        (64, 48, 32),
        (509, 3, 7),
        (3, 509, 11),
        (5, 7, 1031),
        (bm + 1, bn + 1, 2 * bk + 1),
        (bm, bn, 4 * bk),
        (bm - 1, bn + 1, bk),
        (bm + 1, bn.max(2) - 1, bk + 1),
        (2 * bm, bn, 3 * bk + 1),
    ];
    for size in &mut sizes {
        *size = (size.0.max(1), size.1.max(1), size.2.max(1));
    }
    if spec.needs.max_k > 0 {
        let most = spec.needs.max_k as usize;
        let whole: Vec<_> = sizes.iter().map(|&(m, n, k)| (m, n, k.min(most))).collect();
        sizes.extend(whole);
        sizes.extend((1..=most).map(|k| (2 * bm + 3, 3 * bn + 1, k)));
        if spec.needs.max_n > 0 {
            sizes.extend((1..=most).map(|k| (2 * bm + 3, spec.needs.max_n as usize, k)));
        }
    }
    sizes
}

fn cases(spec: &'static KernelSpec) -> Vec<Case> {
    let precision = match spec.arithmetic {
        Arithmetic::Tf32 => Precision::Tf32,
        _ => Precision::Fp32,
    };
    let base = |m, n, k, a, b, offset| {
        let mut problem = GemmProblem::new(m, n, k, a, b);
        problem.types = ElementTypes::all_of(spec.dtype);
        problem.precision = precision;
        for layout in [&mut problem.a, &mut problem.b, &mut problem.d] {
            *layout = aligned_for(spec.dtype, *layout, offset);
        }
        problem
    };
    let mut cases = Vec::new();
    let mut add = |problem: GemmProblem, offset: usize, alpha: f32, beta: f32| {
        cases.push(Case {
            problem,
            offset,
            alpha,
            beta,
        })
    };
    for (m, n, k) in sizes(spec) {
        let (row, col) = (OperandLayout::row_major, OperandLayout::col_major);
        for (a, b) in [(row(k), row(n)), (row(k), col(k)), (col(m), row(n)), (col(m), col(k))] {
            add(base(m, n, k, a, b, 0), 0, 1.0, 0.0);
        }
        if spec.tma_boxes.is_some() {
            // TMA takes rows that start on 16 bytes, whatever their length.
            let vector = TMA_ROW_BYTES / spec.dtype.size();
            let padded = |length: usize| length.next_multiple_of(vector) + vector;
            let (row, col) = (|cols| row(padded(cols)), |rows| col(padded(rows)));
            for (a, b) in [(row(k), row(n)), (row(k), col(k)), (col(m), row(n)), (col(m), col(k))] {
                add(base(m, n, k, a, b, 0), 0, 1.0, 0.0);
            }
        }
        // α and β, C padded, everything one element off alignment.
        let mut scaled = base(m, n, k, row(k), row(n), 1);
        scaled.epilogue.c = Some(OperandLayout::row_major(n + 5).with_align(4));
        scaled.d = OperandLayout::row_major(n + 2).with_align(4);
        add(scaled, 1, -1.25, 0.75);
        // The same well aligned.
        let mut scaled = base(m, n, k, row(k), col(k), 0);
        scaled.epilogue.c = Some(OperandLayout::row_major(n));
        add(scaled, 0, 0.5, 2.0);
    }
    let (m, n, k) = (37, 45, 29);
    for a in layouts(m, k) {
        for b in layouts(k, n) {
            add(base(m, n, k, a, b, 0), 0, 1.0, 0.0);
            add(base(m, n, k, a, b, 3), 3, 2.0, 0.0);
        }
    }
    // Batches: dense, B shared, a broadcast in the middle, three dimensions that do not merge.
    let (m, n, k) = (33, 34, 36);
    let (mk, kn, mn) = ((m * k) as i64, (k * n) as i64, (m * n) as i64);
    for (dims, a, b, d) in [
        ([1, 1, 1, 5], [0, 0, 0, mk], [0, 0, 0, kn], [0, 0, 0, mn]),
        ([1, 1, 1, 5], [0, 0, 0, mk], [0; 4], [0, 0, 0, mn]),
        ([1, 1, 1, 5], [0; 4], [0, 0, 0, kn], [0, 0, 0, mn + 8]),
        ([1, 1, 3, 2], [0, 0, mk, 0], [0, 0, 0, kn], [0, 0, 2 * mn, mn]),
        ([1, 2, 3, 2], [0, mk, 0, 2 * mk], [0, 0, kn, 0], [0, 6 * mn, 2 * mn, mn]),
        (
            [2, 2, 2, 2],
            [mk, 8 * mk, 2 * mk, 4 * mk],
            [0, kn, 0, 2 * kn],
            [8 * mn, 4 * mn, 2 * mn, mn],
        ),
    ] {
        for transposed in [false, true] {
            let b_layout = if transposed {
                OperandLayout::col_major(k)
            } else {
                OperandLayout::row_major(n)
            };
            let mut problem = base(m, n, k, OperandLayout::row_major(k), b_layout, 0);
            problem.batch_dims = dims;
            problem.a.batch_strides = a;
            problem.b.batch_strides = b;
            problem.d.batch_strides = d;
            add(problem, 0, 1.0, 0.0);
            problem.epilogue.c = Some(OperandLayout::row_major(n).with_batch_strides(d));
            add(problem, 0, 1.5, -0.5);
        }
    }
    if spec.split_k == SplitK::StreamK || spec.inside == Inside::Gates {
        // More tiles than any device has multiprocessors, by a few and by more than a wave; and few tiles with much k.
        let (bm, bn, bk) = (spec.tile.bm as usize, spec.tile.bn as usize, spec.tile.bk as usize);
        let (row, col) = (OperandLayout::row_major, OperandLayout::col_major);
        for (m, n, k) in [
            (14 * bm - 5, 14 * bn + 3, 2 * bk + 3),
            (19 * bm - 1, 16 * bn - 8, 4 * bk),
            (bm + 1, bn + 4, 67 * bk + 4),
            (bm, bn, 300 * bk),
        ] {
            add(base(m, n, k, row(k), col(k), 0), 0, 1.0, 0.0);
            // In every layout, with rows that TMA takes.
            let padded = |length: usize| length.next_multiple_of(8);
            let (row, col) = (|cols| row(padded(cols)), |rows| col(padded(rows)));
            for (a, b) in [(row(k), row(n)), (row(k), col(k)), (col(m), row(n)), (col(m), col(k))] {
                let mut problem = base(m, n, k, a, b, 0);
                problem.d = row(n);
                add(problem, 0, 1.0, 0.0);
                problem.epilogue.c = Some(row(n));
                add(problem, 0, 1.5, -0.5);
            }
        }
    }
    if spec.parallel_split_k {
        // Few tiles with so much k that a second kernel adds up many slices, of which the last one is short.
        let (bm, bn, bk) = (spec.tile.bm as usize, spec.tile.bn as usize, spec.tile.bk as usize);
        // The host computes them too.
        const MOST_PRODUCTS: usize = 1 << 24;
        let steps = (MOST_PRODUCTS / (bm * bn * bk)).clamp(40, 600);
        for (m, n, k) in [(bm, bn, steps * bk), (bm + 3, (2 * bn).max(4) - 3, 40 * bk + 5)] {
            let (row, col) = (OperandLayout::row_major, OperandLayout::col_major);
            for (a, b) in [(row(k), row(n)), (row(k), col(k)), (col(m), row(n)), (col(m), col(k))] {
                let mut problem = base(m, n, k, a, b, 0);
                add(problem, 0, 1.0, 0.0);
                problem.epilogue.c = Some(OperandLayout::row_major(n + 1).with_align(4));
                problem.epilogue.bias = true;
                problem.epilogue.activation = Activation::GeluErf;
                add(problem, 0, 0.75, 0.5);
                problem.epilogue.residual = Some(OperandLayout::row_major(n));
                problem.epilogue.device_scalars = true;
                problem.d = OperandLayout::row_major(n + 3).with_align(4);
                add(problem, 0, -1.25, 1.5);
            }
        }
    }
    if spec.epilogue == EpilogueSupport::Fused {
        for activation in [
            Activation::Identity,
            Activation::Relu,
            Activation::GeluTanh,
            Activation::GeluErf,
            Activation::Silu,
            Activation::Tanh,
            Activation::Sigmoid,
        ] {
            for (m, n, k) in [(7, 12, 40), (130, 67, 33), (64, 128, 64), (12, 5, 20)] {
                let (row, col) = (OperandLayout::row_major, OperandLayout::col_major);
                for (a, b) in [(row(k), row(n)), (row(k), col(k)), (col(m), row(n)), (col(m), col(k))] {
                    let mut problem = base(m, n, k, a, b, 0);
                    problem.epilogue.bias = true;
                    problem.epilogue.activation = activation;
                    add(problem, 0, 1.0, 0.0);
                    problem.epilogue.residual = Some(OperandLayout::row_major(n + 1).with_align(4));
                    problem.epilogue.c = Some(OperandLayout::strided(0, 1));
                    add(problem, 0, 0.75, 0.5);
                    problem.epilogue.residual = Some(OperandLayout::row_major(n));
                    problem.epilogue.c = Some(OperandLayout::row_major(n));
                    add(problem, 0, 1.0, -1.0);
                    problem.epilogue.combine = Combine::Multiply;
                    problem.epilogue.device_scalars = true;
                    add(problem, 0, 0.5, 1.5);
                }
            }
        }
    }
    if spec.inside != Inside::Product {
        return cases.into_iter().flat_map(|case| fused(spec, case)).collect();
    }
    cases
}

/// The case with a norm, with gates and with both, as far as it and the kernel can have them.
fn fused(spec: &'static KernelSpec, case: Case) -> impl Iterator<Item = Case> {
    [(true, false), (false, true), (true, true)]
        .into_iter()
        .filter(move |&(normed, _)| !normed || spec.inside.norms())
        .map(move |(normed, gated)| {
            let mut case = case;
            case.problem.normed = normed;
            case.problem.epilogue.gated = gated;
            if gated {
                (case.problem.epilogue.c, case.problem.epilogue.residual) = (None, None);
                case.problem.n = case.problem.n.next_multiple_of(2);
            }
            case
        })
}

fn chosen_kernels() -> impl Iterator<Item = &'static KernelSpec> {
    let filter = std::env::var("CANDLE_SGEMM_TEST_KERNEL").unwrap_or_default();
    TABLE.iter().filter(move |spec| spec.name.contains(&filter))
}

fn every() -> usize {
    let every = std::env::var("CANDLE_SGEMM_TEST_EVERY")
        .ok()
        .and_then(|text| text.parse().ok());
    every.unwrap_or(1).max(1)
}

fn check_kernel<T: Element>(stream: &Arc<CudaStream>, spec: &'static KernelSpec, device: &DeviceInfo) -> Vec<String> {
    let (mut ran, mut refused, mut complaints) = (0, 0, Vec::new());
    for (i, case) in cases(spec).into_iter().enumerate().step_by(every()) {
        let plan = match Plan::named(spec.name, &case.problem, device, Costs::built_in(device)) {
            Ok(plan) => plan,
            Err(Error::Refused { .. }) => {
                refused += 1;
                continue;
            }
            Err(error) => {
                complaints.push(format!("{}, {case:?}: {error}", spec.name));
                continue;
            }
        };
        let prepared = Prepared::<T>::new(stream, case, i as u64);
        ran += 1;
        for plan in Plan::variants(spec, &plan.problem, device, Costs::built_in(device)) {
            let d = prepared.run(stream, &plan);
            if let Some(complaint) = prepared.complaint(&d, &plan) {
                complaints.push(format!("{plan}, {case:?}: {complaint}"));
                continue;
            }
            let again = prepared.run(stream, &plan);
            if d.iter().zip(&again).any(|(x, y)| x.bits() != y.bits()) {
                complaints.push(format!("{plan}: a second run gave other bits"));
            }
        }
    }
    println!("{}: {ran} cases right, {refused} refused", spec.name);
    if ran == 0 {
        complaints.push(format!("{}: refused every case", spec.name));
    }
    complaints
}

#[test]
fn every_kernel_is_right_for_every_shape_and_view() {
    let Some(stream) = stream_or_skip("every_kernel_is_right_for_every_shape_and_view") else {
        return;
    };
    let device = *CurrentContext::get().unwrap().info();
    let mut complaints = Vec::new();
    for spec in chosen_kernels() {
        if spec
            .refusal(&GemmProblem::row_major(64, 64, 64), &device)
            .is_some_and(|why| matches!(why, Refusal::OnlyCapability { .. } | Refusal::MinCapability { .. }))
        {
            println!(
                "{}: skipped, not for compute capability {}",
                spec.name, device.compute_capability
            );
            continue;
        }
        complaints.extend(match spec.dtype {
            DType::F32 => check_kernel::<f32>(&stream, spec, &device),
            DType::F64 => check_kernel::<f64>(&stream, spec, &device),
            DType::F16 => check_kernel::<f16>(&stream, spec, &device),
            DType::BF16 => check_kernel::<bf16>(&stream, spec, &device),
            other => unimplemented!("{other}"),
        });
    }
    assert_none_wrong(&complaints);
}

/// Fails with the number of complaints and the first of them.
fn assert_none_wrong(complaints: &[String]) {
    let shown = complaints.len().min(10);
    assert!(
        complaints.is_empty(),
        "{} wrong:\n{}",
        complaints.len(),
        complaints[..shown].join("\n")
    );
}

#[test]
fn operands_that_are_written_anew_give_the_same_products() {
    let Some(stream) = stream_or_skip("operands_that_are_written_anew_give_the_same_products") else {
        return;
    };
    let device = *CurrentContext::get().unwrap().info();
    let (row, col, any) = (
        OperandLayout::row_major,
        OperandLayout::col_major,
        OperandLayout::strided,
    );
    let mut problems = Vec::new();
    for (m, n, k) in [(130, 67, 129), (64, 96, 160), (3, 259, 200)] {
        let strided = any(3 * k as i64 + 1, 3);
        for (a, b) in [
            (row(k), row(n)),
            (row(k), col(k)),
            (col(m), row(n)),
            (col(m), col(k)),
            (strided, row(n + 1)),
        ] {
            for offset in [0, 1] {
                problems.push((GemmProblem::new(m, n, k, a, b), offset));
            }
        }
    }
    // A batch in two dimensions, one of which B does not have, with gaps between matrices.
    let (m, n, k) = (66, 35, 70);
    let (mk, kn, mn) = ((m * k + 5) as i64, (k * n) as i64, (m * n) as i64);
    let mut batched = GemmProblem::new(m, n, k, col(m), row(n));
    batched.batch_dims = [1, 1, 3, 2];
    batched.a.batch_strides = [0, 0, 2 * mk, mk];
    batched.b.batch_strides = [0, 0, kn, 0];
    batched.d.batch_strides = [0, 0, 2 * mn, mn];
    problems.push((batched, 0));

    let filter = std::env::var("CANDLE_SGEMM_TEST_KERNEL").unwrap_or_default();
    let (mut ran, mut complaints) = (0, Vec::new());
    for (i, (mut problem, offset)) in problems.into_iter().enumerate() {
        for layout in [&mut problem.a, &mut problem.b, &mut problem.d] {
            *layout = aligned_for(DType::F32, *layout, offset);
        }
        for precision in Precision::ALL {
            problem.precision = precision;
            let case = Case {
                problem,
                offset,
                alpha: 1.0,
                beta: 0.0,
            };
            let prepared = Prepared::<f32>::new(&stream, case, i as u64);
            let folded = problem.folded().unwrap();
            let plans = Plan::candidates(&folded, &device, Costs::built_in(&device)).filter(|plan| {
                plan.repacks != [None; 2] && plan.is_built(&device) && plan.kernel.name.contains(&filter)
            });
            for plan in plans.step_by(every()) {
                ran += 1;
                if let Some(complaint) = prepared.complaint(&prepared.run(&stream, &plan), &plan) {
                    complaints.push(format!("{plan}, {case:?}: {complaint}"));
                }
            }
        }
    }
    println!("{} of {ran} plans right", ran - complaints.len());
    assert_none_wrong(&complaints);
}

/// Every size from 1 to 9 on two sides of a product whose third is longer, each operand in either order, with rows that keep 16,
/// 8 or 4 bytes: the planner's choice, and some of all the other plans.
#[test]
fn sides_of_one_to_nine_elements_are_right_in_every_alignment() {
    let Some(stream) = stream_or_skip("sides_of_one_to_nine_elements_are_right_in_every_alignment") else {
        return;
    };
    let mut sides = Sides::default();
    sides.sweep::<f32>(&stream, DType::F32);
    sides.sweep::<f16>(&stream, DType::F16);
    sides.sweep::<bf16>(&stream, DType::BF16);
    let Sides {
        ran,
        repacked,
        complaints,
    } = sides;
    println!(
        "{} of {ran} plans right, {repacked} of them with repacked operands",
        ran - complaints.len()
    );
    assert_none_wrong(&complaints);
    assert!(repacked > 0 || std::env::var_os("CANDLE_SGEMM_TEST_KERNEL").is_some());
}

/// Products of which two sides have one to nine elements: how many plans ran, how many of them repacked, what was wrong.
#[derive(Default)]
struct Sides {
    ran: usize,
    repacked: usize,
    complaints: Vec<String>,
}

impl Sides {
    fn sweep<T: Element>(&mut self, stream: &Arc<CudaStream>, dtype: DType) {
        const OTHERS: usize = 4;
        let device = *CurrentContext::get().unwrap().info();
        let filter = std::env::var("CANDLE_SGEMM_TEST_KERNEL").unwrap_or_default();
        let mut rng = rng(2);
        let vector = 16 / dtype.size();
        // Either order, and strides that keep 16 bytes, a half of that, and so on down to one element.
        let units: Vec<usize> = (0..=vector.ilog2()).map(|halved| vector >> halved).collect();
        let orders = || {
            let of = |turned| units.iter().map(move |&unit| (turned, unit));
            [false, true].into_iter().flat_map(of)
        };
        let layout = |(turned, unit): (bool, usize), rows: usize, cols: usize| {
            let line = if turned { rows } else { cols }.next_multiple_of(unit);
            // No more than that.
            let line = match line % (2 * unit) == 0 && unit < vector {
                true => line + unit,
                false => line,
            };
            match turned {
                true => OperandLayout::col_major(line),
                false => OperandLayout::row_major(line),
            }
        };
        let sides = (1..=9).flat_map(|x| (1..=9).map(move |y| (x, y)));
        for (long, (x, y)) in (0..3).flat_map(|long| sides.clone().map(move |xy| (long, xy))) {
            for (a_order, b_order) in orders().flat_map(|a| orders().map(move |b| (a, b))) {
                let longest = if rng.random_bool(0.1) { 700 } else { 90 };
                let length = rng.random_range(10..=longest);
                let (m, n, k) = [(length, x, y), (x, length, y), (x, y, length)][long];
                let offset = rng.random_range(0..vector);
                let mut problem = GemmProblem::new(m, n, k, layout(a_order, m, k), layout(b_order, k, n));
                problem.types = ElementTypes::all_of(dtype);
                let align = 16.min((dtype.size() as u32) << offset.trailing_zeros().min(vector.ilog2()));
                for layout in [&mut problem.a, &mut problem.b, &mut problem.d] {
                    *layout = layout.with_align(align);
                }
                problem.precision = Precision::ALL[rng.random_range(0..3)];
                let case = Case {
                    problem,
                    offset,
                    alpha: 1.0,
                    beta: 0.0,
                };
                let prepared = Prepared::<T>::new(stream, case, rng.random());
                let folded = problem.folded().unwrap();
                let mut plans: Vec<Plan> = Plan::candidates(&folded, &device, Costs::built_in(&device))
                    .filter(|plan| plan.is_built(&device) && plan.kernel.name.contains(&filter))
                    .collect();
                let chosen = Plan::new(&problem, &device, Costs::built_in(&device)).expect("every problem has a plan");
                let others = (0..OTHERS.min(plans.len())).map(|_| plans.swap_remove(rng.random_range(0..plans.len())));
                let others: Vec<Plan> = others.collect();
                let chosen = Some(chosen).filter(|plan| plan.kernel.name.contains(&filter));
                for plan in chosen.into_iter().chain(others).step_by(every()) {
                    self.ran += 1;
                    self.repacked += usize::from(plan.repacks != [None; 2]);
                    if let Some(complaint) = prepared.complaint(&prepared.run(stream, &plan), &plan) {
                        self.complaints.push(format!("{plan}, {case:?}: {complaint}"));
                    }
                }
            }
        }
    }
}

/// Kernels that get ready while the one before them ends must read nothing that it still writes: a chain of products, each of
/// the one before (or of its transpose), queued at once.
#[test]
fn products_wait_for_the_products_before_them() {
    let Some(stream) = stream_or_skip("products_wait_for_the_products_before_them") else {
        return;
    };
    products_wait(&stream, 352, &[352, 16, 8, 4, 2, 1]);
    products_wait(&stream, 2304, &[16, 8, 5]); // lines so long that kernels fetch them ahead
}

fn products_wait(stream: &Arc<CudaStream>, size: usize, row_counts: &[usize]) {
    const LENGTH: usize = 12;
    let device = *CurrentContext::get().unwrap().info();
    let filter = std::env::var("CANDLE_SGEMM_TEST_KERNEL").unwrap_or_default();
    let mut rng = rng(5);
    let mut random = || {
        let host: Vec<f32> = (0..size * size).map(|_| uniform(&mut rng) as f32).collect();
        stream.clone_htod(&host).unwrap()
    };
    let (start, b, mut x) = (random(), random(), [random(), random()]);
    // Numbers stay about as large as they are: a sum of so many products of numbers between -1 and 1 has k / 9.
    let alpha = (3.0 / size as f32).sqrt();
    let (row, col) = (OperandLayout::row_major(size), OperandLayout::col_major(size));
    let (mut ran, mut complaints) = (0, Vec::new());
    let layouts = [(row, row), (row, col), (col, row), (col, col)];
    for (rows, (a_layout, b_layout)) in row_counts.iter().flat_map(|&rows| layouts.map(|both| (rows, both))) {
        let mut problem = GemmProblem::new(rows, size, size, a_layout, b_layout);
        problem.precision = Precision::Tf32;
        let folded = problem.folded().unwrap();
        let plans = Plan::candidates(&folded, &device, Costs::built_in(&device))
            .filter(|plan| plan.is_built(&device) && plan.kernel.name.contains(&filter))
            .filter(|plan| plan.kernel.supports_pdl() || plan.repacks != [None; 2])
            .filter(|plan| rows == size || plan.kernel.needs.max_m > 0);
        for plan in plans.step_by(every()) {
            let mut chain = |step_by_step: bool| {
                stream.memcpy_dtod(&start, &mut x[0]).unwrap();
                for i in 0..LENGTH {
                    let at = Addresses::new(Operands {
                        a: x[i % 2].device_ptr(stream).0,
                        b: b.device_ptr(stream).0,
                        d: x[(i + 1) % 2].device_ptr(stream).0,
                        ..Operands::default()
                    });
                    // SAFETY: the three matrices are of this size, D another than A, and live until they are downloaded.
                    unsafe { launch(&plan, &at, alpha, 0.0, stream.cu_stream()) }.expect("launch");
                    if step_by_step {
                        stream.synchronize().unwrap();
                    }
                }
                let last = stream.clone_dtoh(&x[LENGTH % 2]).expect("download");
                last.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let expected = chain(true);
            ran += 1;
            if (0..3).any(|_| chain(false) != expected) {
                complaints.push(format!(
                    "{plan}: a chain of products gave other bits when it was queued at once"
                ));
            }
        }
    }
    println!("{} of {ran} plans wait", ran - complaints.len());
    assert_none_wrong(&complaints);
}

/// Where operands come from memory instead of the L2, tiles of a ring arrive late and out of step now and then, once in many
/// launches: every launch must end, and with the same bits.
#[test]
fn tiles_may_arrive_late() {
    const FAR_BYTES: usize = 160 << 20; // no L2 has so much
    let Some(stream) = stream_or_skip("tiles_may_arrive_late") else {
        return;
    };
    let device = *CurrentContext::get().unwrap().info();
    let filter = std::env::var("CANDLE_SGEMM_TEST_KERNEL").unwrap_or_default();
    let mut rng = rng(11);
    let mut random = |len: usize| (0..len).map(|_| uniform(&mut rng) as f32).collect::<Vec<_>>();
    let (mut ran, mut complaints) = (0, Vec::new());
    // Few rows; a wave of tiles; more tiles than multiprocessors, so that blocks go on to others.
    for (m, n, k, kept, rounds) in [(16, 512, 1536, 256, 4), (64, 512, 1536, 256, 4), (640, 1024, 256, 8, 3)] {
        let (a, b_once) = (stream.clone_htod(&random(m * k)).unwrap(), random(k * n));
        let copies = FAR_BYTES / size_of_val(b_once.as_slice());
        let b = stream.clone_htod(&b_once.repeat(copies)).unwrap();
        let mut d = stream.alloc_zeros::<f32>(kept * m * n).unwrap();
        for (a_layout, b_layout) in [
            (OperandLayout::row_major(k), OperandLayout::row_major(n)),
            (OperandLayout::row_major(k), OperandLayout::col_major(k)),
            (OperandLayout::col_major(m), OperandLayout::row_major(n)),
            (OperandLayout::col_major(m), OperandLayout::col_major(k)),
        ] {
            let mut problem = GemmProblem::new(m, n, k, a_layout, b_layout);
            problem.precision = Precision::Tf32;
            let folded = problem.folded().unwrap();
            // Kernels with a ring: with k whole, and with the first of every way of cutting it.
            let mut seen = HashSet::new();
            let plans = Plan::candidates(&folded, &device, Costs::built_in(&device))
                .filter(|plan| plan.is_built(&device) && plan.kernel.name.contains(&filter))
                .filter(|plan| plan.kernel.tma_boxes.is_some() && plan.repacks == [None; 2])
                .filter(|plan| {
                    seen.insert((
                        plan.kernel.name,
                        plan.cluster() > 1,
                        plan.reduction(),
                        plan.stream_k().is_some(),
                    ))
                });
            for plan in plans.step_by(every()) {
                let mut expected = None;
                let mut different = 0;
                for _ in 0..rounds {
                    stream.memset_zeros(&mut d).unwrap();
                    for i in 0..kept {
                        let at = Addresses::new(Operands {
                            a: a.device_ptr(&stream).0,
                            b: b.device_ptr(&stream).0 + (i % copies * size_of_val(b_once.as_slice())) as u64,
                            d: d.device_ptr_mut(&stream).0 + (i * m * n * size_of::<f32>()) as u64,
                            ..Operands::default()
                        });
                        // SAFETY: every matrix is within its allocation, and all live until D is downloaded.
                        unsafe { launch(&plan, &at, 1.0, 0.0, stream.cu_stream()) }.expect("launch");
                    }
                    let results = stream.clone_dtoh(&d).expect("download");
                    let bits = |x: &f32| x.to_bits();
                    let expected: &Vec<u32> =
                        expected.get_or_insert_with(|| results[..m * n].iter().map(bits).collect());
                    let wrong = |result: &&[f32]| !result.iter().map(bits).eq(expected.iter().copied());
                    different += results.chunks(m * n).filter(wrong).count();
                }
                ran += 1;
                if different > 0 {
                    complaints.push(format!(
                        "{plan}: {different} launches of the same product gave other bits"
                    ));
                }
            }
        }
    }
    println!("{} of {ran} plans right", ran - complaints.len());
    assert_none_wrong(&complaints);
    assert!(
        ran > 0 || device.code_capability != 90 || !filter.is_empty(),
        "no kernel has a ring"
    );
}

/// Of all products one is so large that every other one that is added to it later is lost: what is missing in the end tells
/// how long the accumulation depth was that began with it. Plans say it to within a factor of two.
#[test]
fn chains_of_additions_are_as_long_as_plans_say() {
    const LARGE: f32 = 16_777_216.0; // 2²⁴: 1 added to it is rounded away
    let Some(stream) = stream_or_skip("chains_of_additions_are_as_long_as_plans_say") else {
        return;
    };
    let device = *CurrentContext::get().unwrap().info();
    let filter = std::env::var("CANDLE_SGEMM_TEST_KERNEL").unwrap_or_default();
    let k = 4096;
    let mut row = vec![1.0f32; k];
    row[0] = LARGE;
    let (mut ran, mut complaints) = (0, Vec::new());
    for (m, n) in [(8, 64), (16, 512), (128, 128), (384, 512)] {
        let a_host = row.repeat(m);
        let a_turned: Vec<f32> = (0..k).flat_map(|i| std::iter::repeat_n(row[i], m)).collect();
        let (a, a_turned) = (
            stream.clone_htod(&a_host).unwrap(),
            stream.clone_htod(&a_turned).unwrap(),
        );
        let b = stream.clone_htod(&vec![1.0f32; k * n]).unwrap();
        let mut d = stream.alloc_zeros::<f32>(m * n).unwrap();
        let (row_major, col_major) = (OperandLayout::row_major, OperandLayout::col_major);
        for (a, a_layout) in [(&a, row_major(k)), (&a_turned, col_major(m))] {
            for b_layout in [row_major(n), col_major(k)] {
                let mut problem = GemmProblem::new(m, n, k, a_layout, b_layout);
                problem.precision = Precision::Fp32Strict;
                let folded = problem.folded().unwrap();
                let plans = Plan::candidates(&folded, &device, Costs::built_in(&device))
                    .filter(|plan| plan.is_built(&device) && plan.kernel.name.contains(&filter))
                    .filter(|plan| plan.repacks == [None; 2]);
                for plan in plans.step_by(every()) {
                    let at = Addresses::new(Operands {
                        a: a.device_ptr(&stream).0,
                        b: b.device_ptr(&stream).0,
                        d: d.device_ptr_mut(&stream).0,
                        ..Operands::default()
                    });
                    // SAFETY: the three matrices are of this size and live until D is downloaded.
                    unsafe { launch(&plan, &at, 1.0, 0.0, stream.cu_stream()) }.expect("launch");
                    let results = stream.clone_dtoh(&d).expect("download");
                    let lost = |result: &f32| (LARGE as f64 + (k - 1) as f64 - *result as f64) as usize + 1;
                    let longest = results.iter().map(lost).max().unwrap();
                    // Sums of whole portions of k; joining chains rounds, too.
                    let said = plan.accumulation_depth() + plan.kernel.tile.bk as usize + plan.split_k() as usize;
                    ran += 1;
                    if longest > said.max(2 * plan.accumulation_depth()) {
                        complaints.push(format!(
                            "{plan}: a chain of {longest}, said to be {}",
                            plan.accumulation_depth()
                        ));
                    }
                    let streams = plan.kernel.needs.max_m + plan.kernel.needs.max_n > 0; // "or more"
                    if !streams && 2 * longest < plan.accumulation_depth() {
                        complaints.push(format!(
                            "{plan}: a chain of {longest} only, said to be {}",
                            plan.accumulation_depth()
                        ));
                    }
                }
            }
        }
    }
    println!("{} of {ran} plans right", ran - complaints.len());
    assert_none_wrong(&complaints);
    assert!(ran > 0 || !filter.is_empty());
}

/// Blocks that wait for each other must come to an end, and find flags of their own launch only: with other launches on the
/// device, so that not all blocks run at the same time, and when a graph repeats a launch with the same workspace.
#[test]
fn pieces_of_tiles_come_together_beside_other_launches_and_in_graphs() {
    let Some(stream) = stream_or_skip("pieces_of_tiles_come_together_beside_other_launches_and_in_graphs") else {
        return;
    };
    // SAFETY: what another stream is to see is waited for here. (A capture must not wait for events from outside.)
    unsafe { stream.context().disable_event_tracking() };
    let device = *CurrentContext::get().unwrap().info();
    // With the one that `Prepared` uses, one more than keep a workspace.
    const STREAMS: usize = 4;
    let streams = [(); STREAMS].map(|()| stream.context().new_stream().unwrap());
    for spec in chosen_kernels().filter(|spec| spec.split_k == SplitK::StreamK) {
        match spec.dtype {
            DType::F32 => pieces_come_together::<f32>(&stream, &streams, spec, &device),
            DType::F16 => pieces_come_together::<f16>(&stream, &streams, spec, &device),
            DType::BF16 => pieces_come_together::<bf16>(&stream, &streams, spec, &device),
            other => panic!("{} has a type that is not tested here: {other}", spec.name),
        }
    }
}

/// The same of one kernel, in every layout that it takes.
fn pieces_come_together<T: Element>(
    stream: &Arc<CudaStream>,
    streams: &[Arc<CudaStream>],
    spec: &'static KernelSpec,
    device: &DeviceInfo,
) {
    let (bm, bn) = (spec.tile.bm as usize, spec.tile.bn as usize);
    // Rows of a multiple of eight elements, as TMA takes them.
    let (m, n, k) = (3 * bm - 8, 2 * bn + 8, 1000);
    let (row, col) = (OperandLayout::row_major, OperandLayout::col_major);
    let mut ran = 0;
    for (a, b) in [(row(k), row(n)), (row(k), col(k)), (col(m), row(n)), (col(m), col(k))] {
        let mut problem = GemmProblem::new(m, n, k, a, b);
        problem.types = ElementTypes::all_of(spec.dtype);
        if spec.refusal(&problem, device).is_some() {
            continue;
        }
        let case = Case {
            problem,
            offset: 0,
            alpha: 1.0,
            beta: 0.0,
        };
        let prepared = Prepared::<T>::new(stream, case, 7);
        for plan in Plan::variants(spec, &problem.folded().unwrap(), device, Costs::built_in(device))
            .filter(|plan| plan.stream_k().is_some())
        {
            ran += 1;
            let poison = vec![T::from_f64(f64::NAN); prepared.d_len];
            let mut lanes: Vec<_> = streams
                .iter()
                .map(|lane| (lane, lane.clone_htod(&poison).unwrap()))
                .collect();
            let queue = |lane: &Arc<CudaStream>, d: &CudaSlice<T>| {
                let at = Addresses::new(Operands {
                    a: prepared.a.address(stream),
                    b: prepared.b.address(stream),
                    d: d.device_ptr(lane).0,
                    ..Operands::default()
                });
                // SAFETY: as in `Prepared::run`; each stream writes to a D of its own.
                unsafe { launch(&plan, &at, 1.0, 0.0, lane.cu_stream()) }.expect("launch");
            };
            stream.synchronize().unwrap();
            for _ in 0..50 {
                for (lane, d) in &lanes {
                    queue(lane, d);
                }
            }
            for (lane, d) in &lanes {
                let complaint = prepared.complaint(&lane.clone_dtoh(d).unwrap(), &plan);
                assert_eq!(complaint, None, "{plan}, on several streams");
            }
            let (lane, d) = &mut lanes[0];
            lane.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
                .unwrap();
            queue(lane, d);
            queue(lane, d);
            let graph = lane
                .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
                .unwrap()
                .expect("something was recorded");
            for _ in 0..3 {
                lane.memcpy_htod(&poison, d).unwrap();
                graph.launch().unwrap();
                let complaint = prepared.complaint(&lane.clone_dtoh(d).unwrap(), &plan);
                assert_eq!(complaint, None, "{plan}, repeated by a graph");
            }
        }
    }
    let runs_here = spec
        .needs
        .only_capability
        .is_none_or(|only| only == device.code_capability);
    assert!(ran > 0 || !runs_here, "no stream-K of {} was tested", spec.name);
}

/// What is planted among ordinary numbers: what is not finite, what TF32 rounds to an infinity, and what makes NaN of one.
const SPECIALS: [f32; 6] = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, 0.0];
/// Sums of magnitudes above this may overflow on their way, or not, as the order of additions has it.
const SURELY_FINITE: f64 = 0.9 * f32::MAX as f64;

/// A size up to `most`; small ones are as likely as large ones.
fn drawn_size(rng: &mut StdRng, most: usize) -> usize {
    let bits = rng.random_range(0.0..=(most as f64).log2());
    (bits.exp2().round() as usize).clamp(1, most)
}

/// A rows × cols matrix in either storage order, dense or padded, or every second element of a larger one, and the elements
/// that it takes, up to the next multiple of 16 bytes.
fn drawn_layout(rng: &mut StdRng, rows: usize, cols: usize) -> (OperandLayout, i64) {
    let along_rows = rng.random_bool(0.5);
    let (line, lines) = if along_rows { (cols, rows) } else { (rows, cols) };
    let stride = match rng.random_range(0..4) {
        0 => line,
        1 | 2 => line.next_multiple_of(4) + 4 * rng.random_range(0..2),
        _ => line + rng.random_range(1..4),
    };
    let (layout, reach) = match (along_rows, rng.random_bool(0.1)) {
        (_, true) => (OperandLayout::strided(2 * cols as i64 + 1, 2), rows * (2 * cols + 1)),
        (true, false) => (OperandLayout::row_major(stride), stride * lines),
        (false, false) => (OperandLayout::col_major(stride), stride * lines),
    };
    (aligned_for(DType::F32, layout, 0), reach.next_multiple_of(4) as i64)
}

/// A product of up to `MOST_PRODUCTS` multiplications: any shape, half of them with sums long enough for three products of
/// TF32, a third of them a batch, in which A or B may be the same everywhere.
fn drawn_product(rng: &mut StdRng) -> GemmProblem {
    const MOST_PRODUCTS: usize = 6_000_000;
    const THREE_PRODUCTS_FROM: usize = 384;
    const MOST_K: usize = 3000;
    let k = match rng.random_bool(0.5) {
        true => rng.random_range(THREE_PRODUCTS_FROM..=MOST_K),
        false => drawn_size(rng, MOST_K),
    };
    let batch = match rng.random_range(0..3) {
        0 => [rng.random_range(1..3), rng.random_range(1..4)],
        _ => [1, 1],
    };
    let left = MOST_PRODUCTS / (k * batch[0] * batch[1]);
    let short = drawn_size(rng, 300);
    let long = drawn_size(rng, (left / short).min(2000));
    let (m, n) = match rng.random_bool(0.5) {
        true => (short, long),
        false => (long, short),
    };
    let (a, a_reach) = drawn_layout(rng, m, k);
    let (b, b_reach) = drawn_layout(rng, k, n);
    let mut problem = GemmProblem::new(m, n, k, a, b);
    problem.batch_dims = [1, 1, batch[0], batch[1]];
    let dense = |reach: i64| [0, 0, batch[1] as i64 * reach, reach];
    let same = rng.random_range(0..4);
    problem.a.batch_strides = if same == 0 { [0; MAX_BATCH_DIMS] } else { dense(a_reach) };
    problem.b.batch_strides = if same == 1 { [0; MAX_BATCH_DIMS] } else { dense(b_reach) };
    problem.d.batch_strides = dense((m * n) as i64);
    problem
}

impl Operand<f32> {
    /// Plants special values at drawn places of this rows × cols operand: single ones, and runs along a row or a column. The
    /// largest numbers only come singly.
    fn plant(&mut self, stream: &Arc<CudaStream>, rng: &mut StdRng, problem: &GemmProblem, rows: usize, cols: usize) {
        for _ in 0..[0, 1, 1, 2, 5, 40][rng.random_range(0..6)] {
            let value = SPECIALS[rng.random_range(0..SPECIALS.len())];
            let batch = rng.random_range(0..problem.batch());
            let (row, col) = (rng.random_range(0..rows), rng.random_range(0..cols));
            let [down, along] = match rng.random_range(0..4) {
                0 if value.abs() != f32::MAX => [rng.random_range(1..=rows - row), 1],
                1 if value.abs() != f32::MAX => [1, rng.random_range(1..=cols - col)],
                _ => [1, 1],
            };
            for (row, col) in (row..row + down).flat_map(|row| (col..col + along).map(move |col| (row, col))) {
                self.host[self.offset + place(problem, &self.layout, batch, row, col)] = value;
            }
        }
        self.device = stream.clone_htod(&self.host).expect("upload");
    }
}

/// The elements of a result as FP64 has them: place, value, and the sum of the magnitudes of products that are finite.
fn special_results(problem: &GemmProblem, a: &Operand<f32>, b: &Operand<f32>) -> Vec<(usize, f64, f64)> {
    let (m, n, k) = (problem.m, problem.n, problem.k);
    let mut places = Vec::new();
    walk(problem, &problem.d, m, n, |at| places.push(at));
    let mut places = places.into_iter();
    let mut results = Vec::new();
    for batch in 0..problem.batch() {
        let line = |operand: &Operand<f32>, start: i64, step: i64| -> Vec<f64> {
            let first = (operand.offset + place(problem, &operand.layout, batch, 0, 0)) as i64 + start;
            (0..k as i64)
                .map(|i| operand.host[(first + i * step) as usize] as f64)
                .collect()
        };
        let columns: Vec<_> = (0..n as i64)
            .map(|col| line(b, col * b.layout.col_stride, b.layout.row_stride))
            .collect();
        for row in 0..m as i64 {
            let row = line(a, row * a.layout.row_stride, a.layout.col_stride);
            for column in &columns {
                let (mut sum, mut magnitude) = (0.0, 0.0);
                for (x, y) in row.iter().zip(column) {
                    sum += x * y;
                    if (x * y).is_finite() {
                        magnitude += (x * y).abs();
                    }
                }
                results.push((places.next().expect("as many places as elements"), sum, magnitude));
            }
        }
    }
    results
}

/// Every way in which a product is computed, at every precision: sums of one to 3000 products, k whole, cut by clusters and by
/// stream-K, batches, few rows and columns. NaN, either infinity or neither: each result is what FP32 arithmetic says, and a
/// second run gives the same bits.
#[test]
fn special_values_go_where_ieee_arithmetic_sends_them() {
    const CASES: u64 = 160;
    const PLANS: usize = 12; // of a case and precision, drawn among all
    let Some(stream) = stream_or_skip("special_values_go_where_ieee_arithmetic_sends_them") else {
        return;
    };
    let device = *CurrentContext::get().unwrap().info();
    let (mut complaints, mut ran) = (Vec::new(), 0);
    let (mut nan, mut infinite, mut finite, mut not_judged) = (0, [0; 2], 0, 0);
    // Plans of tensor cores for long sums and with k in slices, with slices for a second kernel, with stream-K, of batches and for few rows or columns.
    let mut ways = [0; 6];
    for seed in (0..CASES).step_by(every()) {
        let mut rng = rng(seed);
        let mut problem = drawn_product(&mut rng);
        let (m, n, k) = (problem.m, problem.n, problem.k);
        let mut a = Operand::<f32>::new(&stream, &mut rng, &problem, problem.a, m, k, 0);
        let mut b = Operand::<f32>::new(&stream, &mut rng, &problem, problem.b, k, n, 0);
        a.plant(&stream, &mut rng, &problem, m, k);
        b.plant(&stream, &mut rng, &problem, k, n);
        let results = special_results(&problem, &a, &b);
        let mut prepared = Prepared {
            case: Case {
                problem,
                offset: 0,
                alpha: 1.0,
                beta: 0.0,
            },
            a,
            b,
            c: None,
            residual: None,
            bias: None,
            norm: None,
            expected: Vec::new(),
            d_len: problem.batch() * m * n,
        };
        for precision in Precision::ALL {
            problem.precision = precision;
            prepared.case.problem = problem;
            let folded = problem.folded().unwrap();
            let mut plans: Vec<Plan> = chosen_kernels()
                .filter(|spec| spec.dtype == DType::F32 && spec.refusal(&folded, &device).is_none())
                .flat_map(|spec| Plan::variants(spec, &folded, &device, Costs::built_in(&device)))
                .filter(|plan| plan.is_built(&device))
                .collect();
            while plans.len() > PLANS {
                plans.swap_remove(rng.random_range(0..plans.len()));
            }
            let rounding = match precision {
                Precision::Tf32 => TF32_ERROR,
                _ => 0.0,
            };
            let relative = C0 * f64::from(f32::EPSILON) * (k as f64).sqrt() + rounding;
            for plan in plans {
                let tensor_cores = plan.kernel.arithmetic != Arithmetic::Ffma;
                let streams = plan.kernel.needs.max_m + plan.kernel.needs.max_n > 0;
                for (count, met) in ways.iter_mut().zip([
                    plan.kernel.arithmetic == Arithmetic::Tf32x3 && k >= 384,
                    tensor_cores && plan.cluster() > 1,
                    plan.reduction().is_some(),
                    plan.stream_k().is_some(),
                    problem.batch() > 1,
                    streams,
                ]) {
                    *count += usize::from(met);
                }
                ran += 1;
                let d = prepared.run(&stream, &plan);
                let wrong = results.iter().find(|&&(place, reference, magnitude)| {
                    let value = f64::from(d[place]);
                    if reference.is_nan() {
                        nan += 1;
                        !value.is_nan()
                    } else if magnitude > SURELY_FINITE {
                        not_judged += 1;
                        false
                    } else if reference.is_infinite() {
                        infinite[usize::from(reference < 0.0)] += 1;
                        value != reference
                    } else {
                        finite += 1;
                        let off = (value - reference).abs();
                        off.is_nan() || off > relative * magnitude
                    }
                });
                if let Some((place, reference, _)) = wrong {
                    let (row, col) = (place % (m * n) / n, place % n);
                    complaints.push(format!(
                        "seed {seed}: {plan}, {problem:?}: D({row}, {col}) of matrix {} is {}, not {reference}",
                        place / (m * n),
                        d[*place]
                    ));
                }
                let again = prepared.run(&stream, &plan);
                if d.iter().zip(&again).any(|(x, y)| x.bits() != y.bits()) {
                    complaints.push(format!("seed {seed}: {plan}: a second run gave other bits"));
                }
            }
        }
    }
    println!(
        "{ran} plans, {nan} NaN, {infinite:?} infinities, {finite} finite, {not_judged} not judged; long sums, slices, \
         slices for a second kernel, stream-K, batches, few rows or columns: {ways:?}"
    );
    assert_none_wrong(&complaints);
    if every() == 1 && std::env::var_os("CANDLE_SGEMM_TEST_KERNEL").is_none() {
        assert!(nan > 0 && infinite[0] > 0 && infinite[1] > 0 && finite > 0 && not_judged < finite);
        // Clusters and stream-K need what Hopper's kernels have.
        let expected = if device.code_capability == 90 { 6 } else { 4 };
        assert!(ways.iter().filter(|&&count| count > 0).count() >= expected, "{ways:?}");
    }
}

#[test]
fn offsets_beyond_two_to_the_31_are_reached() {
    let Some(stream) = stream_or_skip("offsets_beyond_two_to_the_31_are_reached") else {
        return;
    };
    rows_far_apart::<f32>(&stream, DType::F32);
    rows_far_apart::<f16>(&stream, DType::F16);
    rows_far_apart::<bf16>(&stream, DType::BF16);
}

/// Rows of A and of D lie 2³⁰ elements apart, so that the third and fourth begin past the reach of 32-bit offsets. B lies along either side,
/// and rows of D begin on 16 bytes or not.
fn rows_far_apart<T: Element>(stream: &Arc<CudaStream>, dtype: DType) {
    let device = *CurrentContext::get().unwrap().info();
    let (m, n, k, stride) = (4usize, 40usize, 33usize, 1usize << 30);
    // A row of D begins so far behind A's.
    const BEHIND: usize = 512;
    let elements = (m - 1) * stride + BEHIND + n;
    let (free, _) = stream.context().mem_get_info().unwrap();
    if free < size_of::<T>() * elements + (1 << 30) {
        eprintln!("rows far apart of {dtype}: skipped, {free} bytes of device memory are not enough");
        return;
    }
    // SAFETY: the rows that the product reads are written below; the rest is never read.
    let mut memory = unsafe { stream.alloc::<T>(elements) }.unwrap();
    let mut rng = rng(5);
    let mut drawn = |count: usize| -> Vec<T> { (0..count).map(|_| T::from_f64(uniform(&mut rng))).collect() };
    let rows: Vec<Vec<T>> = (0..m).map(|_| drawn(k)).collect();
    for (i, row) in rows.iter().enumerate() {
        let mut view = memory.slice_mut(i * stride..i * stride + k);
        stream.memcpy_htod(row, &mut view).unwrap();
    }
    let padded = k.next_multiple_of(8);
    let b_host = drawn(padded * n);
    let b = stream.clone_htod(&b_host).unwrap();
    let along_n = (OperandLayout::row_major(n), [n, 1]);
    let along_k = (OperandLayout::col_major(padded), [1, padded]);
    for ((b_layout, [b_row, b_col]), behind) in [(along_n, BEHIND), (along_k, BEHIND), (along_n, BEHIND - 1)] {
        let far = OperandLayout::strided(stride as i64, 1);
        let mut problem = GemmProblem::new(m, n, k, far, b_layout);
        problem.types = ElementTypes::all_of(dtype);
        problem.d = far;
        if behind % 8 != 0 {
            problem.d = far.with_align(size_of::<T>() as u32);
        }
        for spec in chosen_kernels().filter(|spec| spec.dtype == dtype) {
            problem.precision = match spec.arithmetic {
                Arithmetic::Tf32 => Precision::Tf32,
                _ => Precision::default(),
            };
            let Ok(plan) = Plan::named(spec.name, &problem, &device, Costs::built_in(&device)) else {
                continue;
            };
            let nan = vec![T::from_f64(f64::NAN); n];
            for i in 0..m {
                let mut view = memory.slice_mut(i * stride + behind..i * stride + behind + n);
                stream.memcpy_htod(&nan, &mut view).unwrap();
            }
            let start = memory.device_ptr(stream).0;
            let at = Addresses::new(Operands {
                a: start,
                b: b.device_ptr(stream).0,
                d: start + (behind * size_of::<T>()) as u64,
                ..Operands::default()
            });
            // SAFETY: the buffers hold every element that the layouts reach, and rows of D begin behind those of A.
            unsafe { launch(&plan, &at, 1.0, 0.0, stream.cu_stream()) }.unwrap();
            for (i, row) in rows.iter().enumerate() {
                let view = memory.slice(i * stride + behind..i * stride + behind + n);
                let d = stream.clone_dtoh(&view).unwrap();
                for (j, value) in d.iter().enumerate() {
                    let factor = |l: usize| b_host[l * b_row + j * b_col].to_f64();
                    let reference: f64 = (0..k).map(|l| row[l].to_f64() * factor(l)).sum();
                    let tolerance = match problem.precision {
                        Precision::Tf32 => 3e-2,
                        _ if dtype == DType::F32 => 1e-4,
                        _ => 1e-4 + T::EPSILON * reference.abs(),
                    };
                    let value = value.to_f64();
                    assert!(
                        (value - reference).abs() < tolerance,
                        "{plan}: D({i}, {j}) is {value}, not {reference}"
                    );
                }
            }
        }
    }
}

/// On a whole GPU, and on a part of one (a MIG slice, or `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=10` under MPS): what the driver
/// says has room is launched without an error, and what the planner chooses has room.
#[test]
fn clusters_that_find_room_run_and_others_are_not_chosen() {
    /// More blocks than a cluster has on any device.
    const TOO_MANY: u32 = 64;
    let Some(stream) = stream_or_skip("clusters_that_find_room_run_and_others_are_not_chosen") else {
        return;
    };
    let context = CurrentContext::get().unwrap();
    if !context.info().has_clusters() {
        eprintln!("clusters_that_find_room_run_and_others_are_not_chosen: skipped, the device has no clusters");
        return;
    }
    let fits = |plan: &Plan, blocks| {
        let kernel = plan.kernel;
        context
            .clusters(kernel.file, kernel.name, kernel.dynamic_shared, kernel.threads, blocks)
            .unwrap()
            > 0
    };
    // No plan asks for this size, so the driver is asked inside a capture, which goes on as if it had not been.
    const UNASKED: u32 = 7;
    let (size, k) = (64, 4096);
    let [a, b] = [0, 1].map(|_| stream.alloc_zeros::<f32>(size * k).unwrap());
    let d = stream.alloc_zeros::<f32>(size * size).unwrap();
    let at = Addresses::new(Operands {
        a: a.device_ptr(&stream).0,
        b: b.device_ptr(&stream).0,
        d: d.device_ptr(&stream).0,
        ..Operands::default()
    });
    let (mut with_room, mut without) = (0, 0);
    for a in [OperandLayout::row_major(k), OperandLayout::col_major(size)] {
        for b in [OperandLayout::row_major(size), OperandLayout::col_major(k)] {
            for precision in Precision::ALL {
                let mut problem = GemmProblem::new(size, size, k, a, b);
                problem.precision = precision;
                let problem = problem.folded().unwrap();
                let candidates = Plan::candidates(&problem, context.info(), Costs::built_in(context.info()));
                for plan in candidates.filter(|plan| plan.is_built(context.info()) && plan.cluster() > 1) {
                    assert!(!fits(&plan, TOO_MANY), "{plan}");
                    if !fits(&plan, plan.cluster()) {
                        without += 1;
                        continue;
                    }
                    with_room += 1;
                    // SAFETY: the buffers hold every element that the layouts reach.
                    let launched = unsafe { launch(&plan, &at, 1.0, 0.0, stream.cu_stream()) };
                    assert_eq!(launched, Ok(()), "{plan}");
                }
                let names = chosen_kernels().filter(|spec| spec.needs.only_capability.is_some());
                for name in [None].into_iter().chain(names.map(|spec| Some(spec.name))) {
                    match cache::plan(&context, &problem, name, Tuning::Off) {
                        Ok(plan) => assert!(plan.cluster() == 1 || fits(&plan, plan.cluster()), "{plan}"),
                        Err(error) => assert!(name.is_some(), "{problem:?}: {error}"),
                    }
                }
                stream.synchronize().unwrap();
            }
        }
    }
    println!("{with_room} plans with clusters ran, {without} have no room");

    let problem = GemmProblem::row_major(size, size, k).folded().unwrap();
    let mut candidates = Plan::candidates(&problem, context.info(), Costs::built_in(context.info()))
        .filter(|plan| plan.is_built(context.info()));
    let Some(plan) = candidates.find(|plan| plan.cluster() > 1 && fits(plan, plan.cluster())) else {
        return;
    };
    let kernel = plan.kernel;
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .unwrap();
    let answer = context.clusters(kernel.file, kernel.name, kernel.dynamic_shared, kernel.threads, UNASKED);
    // SAFETY: as above.
    let launched = unsafe { launch(&plan, &at, 1.0, 0.0, stream.cu_stream()) };
    stream
        .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
        .expect("a question does not end a capture")
        .expect("the launch was recorded");
    answer.unwrap();
    launched.unwrap();
    assert!(with_room + without > 0);
}

#[test]
fn both_sides_of_the_kernel_abi_see_the_same_fields() {
    let Some(stream) = stream_or_skip("both_sides_of_the_kernel_abi_see_the_same_fields") else {
        return;
    };
    let out = stream.clone_htod(&vec![f64::NAN; 90]).unwrap();
    let mut next = 100i64;
    let mut number = || {
        next += 1;
        next
    };
    let mut operand = || GemmOperand {
        data: number() as u64,
        row_stride: number(),
        col_stride: (1 << 40) + number(),
        batch_stride: [number(), number(), number(), number()],
    };
    let (a, b, c, mut d, residual) = (operand(), operand(), operand(), operand(), operand());
    d.data = out.device_ptr(&stream).0;
    let mut args = GemmArgs {
        a,
        b,
        c,
        d,
        residual,
        bias: 1,
        bias_stride: 2,
        workspace: 3,
        epoch: 4,
        m: 5,
        n: 6,
        k: 7,
        batch: 8,
        batch_dims: [9, 10, 11, 12],
        split_k: 13,
        k_slice: 14,
        whole_tiles: 15,
        stream_ranges: 16,
        group_m: 17,
        a_access: Access::RowScalar,
        b_access: Access::ColScalar,
        c_access: Access::RowVector,
        d_access: Access::ColVector,
        activation: Activation::Sigmoid,
        alpha: 0.25,
        beta: -3.5,
        residual_access: 77,
        combine: Combine::Multiply,
        alpha_at: 78,
        beta_at: 79,
        a_type: DType::F64,
        b_type: DType::F16,
        c_type: DType::BF16,
        d_type: DType::F32,
        bias_type: DType::F64,
        residual_type: DType::F16,
        gated: 80,
        norm: 81,
        norm_epsilon: 0.5,
        reserved: 82,
    };
    let mut expected = Vec::new();
    for operand in [a, b, c, d, residual] {
        expected.extend([
            operand.data as f64,
            operand.row_stride as f64,
            operand.col_stride as f64,
        ]);
        expected.extend(operand.batch_stride.map(|stride| stride as f64));
    }
    expected.extend((1..=17).map(f64::from));
    expected.extend([1.0, 2.0, 3.0, 4.0, 6.0, 0.25, -3.5, 77.0, 1.0, 78.0, 79.0]);
    expected.extend([1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 80.0, 81.0, 0.5, 82.0]);

    let function = CurrentContext::get()
        .unwrap()
        .function("diagnostics/gemm_args_echo", "gemm_args_echo", 0)
        .unwrap();
    let mut parameters = [std::ptr::from_mut(&mut args).cast()];
    // SAFETY: the kernel takes this struct by value and writes fewer than 90 doubles to `out`.
    unsafe {
        cudarc::driver::result::launch_kernel(
            function.handle(),
            (1, 1, 1),
            (1, 1, 1),
            0,
            stream.cu_stream(),
            &mut parameters,
        )
    }
    .unwrap();
    let seen = stream.clone_dtoh(&out).unwrap();
    assert_eq!(seen[..expected.len()], expected);
    assert!(
        seen[expected.len()].is_nan(),
        "the kernel has a field that the struct lacks"
    );
}
