//! Every kernel of the transposition table, and what the planner chooses, bit for bit against an index-by-index reference
//! on the CPU: sizes of 1, around tiles, primes, long thin ones, views with offsets, gaps and broadcasts, batches. The
//! destination starts poisoned, and the bytes around it must stay as they were. `CANDLE_SGEMM_TEST_EVERY=n` keeps to every
//! n-th case (for runs under compute-sanitizer).
#![cfg(feature = "cuda")]

mod common;

use candle_sgemm::device::CurrentContext;
use candle_sgemm::transpose::{launch::launch, TransposePlan, TransposeProblem, TABLE};
use candle_sgemm::Error;
use common::{rng, stream_or_skip};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use rand::RngCore;
use std::sync::Arc;

/// Poison, also in front of the destination and behind it.
const POISON: u8 = 0xA5;
const GUARD: usize = 256;

/// A view to be permuted.
struct View {
    dims: Vec<usize>,
    strides: Vec<usize>,
    order: Vec<usize>,
    /// Elements before the view's first.
    offset: usize,
}

fn dense(dims: &[usize], order: &[usize]) -> View {
    let mut strides = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i];
    }
    View {
        dims: dims.to_vec(),
        strides,
        order: order.to_vec(),
        offset: 0,
    }
}

/// A matrix inside a wider one.
fn window(rows: usize, cols: usize, pitch: usize, offset: usize, order: [usize; 2]) -> View {
    View {
        dims: vec![rows, cols],
        strides: vec![pitch, 1],
        order: order.to_vec(),
        offset,
    }
}

fn views() -> Vec<View> {
    let mut views = Vec::new();
    for rows in [1, 2, 3, 7, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257] {
        for cols in [1, 2, 5, 16, 32, 33, 64, 65, 127, 128, 131, 256] {
            views.push(dense(&[rows, cols], &[1, 0]));
        }
    }
    views.extend([
        dense(&[509, 521], &[1, 0]),
        dense(&[512, 1024], &[1, 0]),
        dense(&[3, 100_003], &[1, 0]),
        dense(&[100_003, 3], &[1, 0]),
        dense(&[29, 10_007], &[1, 0]),
        dense(&[10_007, 29], &[1, 0]),
        dense(&[8, 16, 48], &[0, 2, 1]),
        dense(&[5, 96, 160], &[0, 2, 1]),
        dense(&[4, 33, 7, 64], &[0, 2, 1, 3]),
        dense(&[4, 33, 7, 5], &[0, 2, 1, 3]),
        dense(&[17, 19, 23], &[2, 1, 0]),
        dense(&[16, 32, 48], &[2, 1, 0]),
        dense(&[2, 3, 4, 5, 6], &[4, 1, 3, 0, 2]),
        dense(&[2, 3, 2, 3, 2, 3, 2, 3, 5], &[8, 7, 6, 5, 4, 3, 2, 1, 0]),
        dense(&[33, 35, 2], &[1, 0, 2]),
        dense(&[33, 35, 4], &[1, 0, 2]),
        dense(&[64, 3, 1000], &[0, 2, 1]),
        dense(&[64, 1000, 3], &[0, 2, 1]),
        window(70, 90, 128, 0, [1, 0]),
        window(70, 90, 128, 16, [1, 0]),
        window(70, 90, 131, 3, [1, 0]),
        window(70, 90, 131, 3, [0, 1]),
        window(3, 5000, 5003, 1, [1, 0]),
        window(5000, 3, 5, 1, [1, 0]),
    ]);
    let strided = |dims: &[usize], strides: &[usize], order: &[usize]| View {
        dims: dims.to_vec(),
        strides: strides.to_vec(),
        order: order.to_vec(),
        offset: 2,
    };
    views.extend([
        strided(&[40, 50], &[150, 3], &[1, 0]),
        strided(&[40, 50], &[150, 3], &[0, 1]),
        strided(&[999], &[7], &[0]),
        strided(&[6, 40, 50], &[0, 50, 1], &[0, 2, 1]),
        strided(&[40, 50], &[0, 1], &[1, 0]),
        strided(&[40, 50], &[1, 0], &[0, 1]),
    ]);
    views
}

impl View {
    fn reference(&self, src: &[u8], size: usize) -> Vec<u8> {
        let count: usize = self.dims.iter().product();
        let mut out = Vec::with_capacity(count * size);
        for index in 0..count {
            let (mut rest, mut at) = (index, self.offset);
            for &axis in self.order.iter().rev() {
                at += rest % self.dims[axis] * self.strides[axis];
                rest /= self.dims[axis];
            }
            out.extend_from_slice(&src[at * size..(at + 1) * size]);
        }
        out
    }

    fn reach(&self) -> usize {
        let last: usize = self.dims.iter().zip(&self.strides).map(|(n, s)| (n - 1) * s).sum();
        self.offset + last + 1
    }
}

fn every() -> usize {
    let every = std::env::var("CANDLE_SGEMM_TEST_EVERY")
        .ok()
        .and_then(|text| text.parse().ok());
    every.unwrap_or(1).max(1)
}

/// The destination after `plan` has run, its guards checked.
fn run(stream: &Arc<CudaStream>, plan: &TransposePlan, src: &[u8], offset_bytes: usize, dst_shift: usize) -> Vec<u8> {
    let bytes = plan.problem.bytes();
    let shift = GUARD + dst_shift;
    let source = stream.clone_htod(src).unwrap();
    let mut target = stream.clone_htod(&vec![POISON; shift + bytes + GUARD]).unwrap();
    {
        let (src_start, _src_guard) = source.device_ptr(stream);
        let (dst_start, _dst_guard) = target.device_ptr_mut(stream);
        // SAFETY: both buffers hold all that the plan reaches, and the stream is synchronised below.
        unsafe {
            launch(
                plan,
                src_start + offset_bytes as u64,
                dst_start + shift as u64,
                stream.cu_stream(),
            )
        }
        .unwrap();
    }
    let all = stream.clone_dtoh(&target).unwrap();
    stream.synchronize().unwrap();
    let inside = shift..shift + bytes;
    let outside = all[..inside.start].iter().chain(&all[inside.end..]);
    assert!(
        outside.copied().all(|byte| byte == POISON),
        "{plan}: wrote outside the destination"
    );
    all[inside].to_vec()
}

#[test]
fn every_kernel_moves_every_element_to_its_place() {
    let Some(stream) = stream_or_skip("transpose kernels") else {
        return;
    };
    let device = *CurrentContext::get().unwrap().info();
    let mut random = rng(4);
    let mut ran = vec![0; TABLE.len()];
    let mut chosen = 0;
    let every = every();
    for (s, size) in [1, 2, 4, 8].into_iter().enumerate() {
        // Each size starts elsewhere, so that a sample has different views of each.
        for view in views().into_iter().skip(s % every).step_by(every) {
            let mut src = vec![0; view.reach() * size];
            random.fill_bytes(&mut src);
            let expected = view.reference(&src, size);
            let offset_bytes = view.offset * size;
            let align = 1 << offset_bytes.trailing_zeros().min(8);
            let problem = TransposeProblem::permutation(&view.dims, &view.strides, &view.order, size).unwrap();
            let described = format!("{:?} {:?} {:?} of {size} bytes", view.dims, view.strides, view.order);
            for dst_shift in [0, size] {
                let problem = problem.clone().aligned_to(if dst_shift == 0 { align } else { size });
                let plan = TransposePlan::new(&problem, &device).unwrap();
                let got = run(&stream, &plan, &src, offset_bytes, dst_shift);
                assert!(got == expected, "{plan}: wrong for {described}");
                chosen += 1;
                for (kernel, ran) in TABLE.iter().zip(&mut ran) {
                    let plan = match TransposePlan::named(kernel.name, &problem, &device) {
                        Ok(plan) => plan,
                        Err(Error::Refused { .. }) => continue,
                        Err(error) => panic!("{}: {error}", kernel.name),
                    };
                    let got = run(&stream, &plan, &src, offset_bytes, dst_shift);
                    assert!(got == expected, "{plan}: wrong for {described}");
                    *ran += 1;
                }
            }
        }
    }
    println!("the planner's choice: {chosen} problems");
    for (kernel, ran) in TABLE.iter().zip(ran) {
        println!("{}: {ran} problems", kernel.name);
        let foreign = kernel
            .needs
            .only_capability
            .is_some_and(|only| only != device.compute_capability);
        assert!(ran > 0 || foreign || every > 1, "{} was never run", kernel.name);
    }
}

#[test]
fn large_matrices_arrive_whole() {
    let Some(stream) = stream_or_skip("large transpositions") else {
        return;
    };
    let device = *CurrentContext::get().unwrap().info();
    let mut random = rng(5);
    for (rows, cols, size) in [
        (4095, 4097, 4),
        (2048, 4096, 2),
        (4099, 2053, 1),
        (3, 2_000_003, 4),
        (2_000_003, 3, 8),
    ]
    .into_iter()
    .step_by(every())
    {
        let view = dense(&[rows, cols], &[1, 0]);
        let mut src = vec![0; rows * cols * size];
        random.fill_bytes(&mut src);
        let problem = TransposeProblem::matrix(rows, cols, size).unwrap().aligned_to(256);
        let plan = TransposePlan::new(&problem, &device).unwrap();
        assert!(run(&stream, &plan, &src, 0, 0) == view.reference(&src, size), "{plan}");
    }
}
