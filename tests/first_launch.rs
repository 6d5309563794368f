//! What the first product of a process costs: loading one module of machine code, no compilation. Alone in its binary,
//! so that no other test has loaded anything before.
#![cfg(feature = "cuda")]

mod common;

use candle_core::{Device, Tensor};
use std::time::{Duration, Instant};

/// What a fresh process may wait for its first result beyond the creation of the CUDA context.
const LIMIT: Duration = Duration::from_millis(300);

#[test]
fn the_first_product_of_a_process_does_not_wait_for_a_compiler() {
    let test = "the_first_product_of_a_process_does_not_wait_for_a_compiler";
    if common::stream_or_skip(test).is_none() {
        return;
    }
    let device = Device::new_cuda(0).unwrap();
    let numbers = |count: usize| (0..count).map(|i| (i % 7) as f32 - 3.0).collect::<Vec<_>>();
    let a = Tensor::from_vec(numbers(256 * 784), (256, 784), &device).unwrap();
    let b = Tensor::from_vec(numbers(784 * 512), (784, 512), &device).unwrap();
    device.synchronize().unwrap();

    let start = Instant::now();
    let product = candle_sgemm::matmul(&a, &b).unwrap();
    device.synchronize().unwrap();
    let first = start.elapsed();

    let start = Instant::now();
    let again = candle_sgemm::matmul(&a, &b).unwrap();
    device.synchronize().unwrap();
    println!("first product {first:?}, second {:?}", start.elapsed());
    assert_eq!(product.to_vec2::<f32>().unwrap(), again.to_vec2::<f32>().unwrap());
    assert!(first < LIMIT, "the first product took {first:?}, more than {LIMIT:?}");
}
