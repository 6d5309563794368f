//! Recordings of models on a GPU: what they compute, what is refused and why, and that nothing is left behind.
#![cfg(feature = "cuda")]

#[path = "common/alone.rs"]
mod alone;
mod common;

use alone::alone;
use candle_core::{bail, DType, Device, Module, Result, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use candle_sgemm::graph::{Graphed, GraphedModule, Options};
use candle_sgemm::{Activation, GatedMlp, Linear, Mlp};
use common::in_a_fresh_process;
use common::needs::skip;
use cudarc::driver::sys;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::time::Duration;

/// What memory and tracking are is the process's: one test at a time. `None`, after saying so, where there is no GPU.
fn gpu(test: &str) -> Option<(Device, std::sync::MutexGuard<'static, ()>)> {
    let alone = alone();
    match Device::new_cuda(0) {
        Ok(device) => Some((device, alone)),
        Err(error) => {
            skip(test, "gpu", format_args!("no usable GPU: {error}"));
            None
        }
    }
}

macro_rules! gpu {
    ($test:literal) => {
        match gpu($test) {
            Some(found) => found,
            None => return Ok(()),
        }
    };
}

/// The same device with a stream that threads share.
fn with_a_stream() -> Result<Device> {
    Device::new_cuda_with_stream(0)
}

fn random(shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::randn(0f32, 1., shape, device)
}

/// Largest difference relative to the largest element, in double precision on the CPU.
fn error(ours: &Tensor, expected: &Tensor) -> Result<f64> {
    assert_eq!(ours.dims(), expected.dims(), "shapes differ");
    let numbers = |tensor: &Tensor| -> Result<Vec<f64>> {
        tensor
            .to_device(&Device::Cpu)?
            .to_dtype(DType::F64)?
            .flatten_all()?
            .to_vec1()
    };
    let (ours, expected) = (numbers(ours)?, numbers(expected)?);
    let largest = expected
        .iter()
        .fold(f64::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
    let differences = ours.iter().zip(&expected).map(|(x, y)| (x - y).abs());
    Ok(differences.fold(
        0.0,
        |worst: f64, x| if x.is_nan() { f64::INFINITY } else { worst.max(x) },
    ) / largest)
}

/// What FP32 kernels may differ by that sum in other orders.
const ROUNDING: f64 = 1e-5;

fn check(what: &str, ours: &Tensor, expected: &Tensor) -> Result<()> {
    let error = error(ours, expected)?;
    assert!(error < ROUNDING, "{what}: {error:e} from the plain result");
    Ok(())
}

/// Three layers with weights that can be updated, by name.
fn stock(variables: &VarMap, device: &Device) -> Result<impl Fn(&Tensor) -> Result<Tensor> + Send + Sync> {
    let vb = VarBuilder::from_varmap(variables, DType::F32, device);
    let widths = [96usize, 160, 64, 10];
    let layers = (0..3).map(|i| candle_nn::linear(widths[i], widths[i + 1], vb.pp(i)));
    let layers: Vec<candle_nn::Linear> = layers.collect::<Result<_>>()?;
    Ok(move |x: &Tensor| {
        let hidden = layers[0].forward(x)?.gelu_erf()?;
        layers[2].forward(&layers[1].forward(&hidden)?.relu()?)
    })
}

/// Three layers of this crate. (Threads that run candle's at the same time share the scratch memory of one cuBLAS handle.)
fn ours(device: &Device) -> Result<impl Fn(&Tensor) -> Result<Tensor> + Send + Sync> {
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, device);
    let mlp = Mlp::new(&[96, 160, 64, 10], Activation::GeluErf, vb)?.prepare()?;
    Ok(move |x: &Tensor| mlp.forward(x))
}

/// Runs with new inputs and compares with what the function itself gives.
fn replays_are_plain_runs(
    what: &str,
    device: &Device,
    shape: &[usize],
    model: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<()> {
    let graph = Graphed::new(device, &[random(shape, device)?], |inputs| model(&inputs[0]))
        .map_err(|error| error.context(what.to_string()))?;
    assert!(graph.is_recorded());
    let mut kept = Vec::new();
    for i in 0..5 {
        let x = random(shape, device)?;
        let y = graph.run(&[&x])?;
        check(&format!("{what}, run {i}"), &y, &model(&x)?)?;
        kept.push((x, y));
    }
    // Outputs are the caller's: later runs have not changed them.
    for (i, (x, y)) in kept.iter().enumerate() {
        check(&format!("{what}, output {i} after all runs"), y, &model(x)?)?;
    }
    // Whatever the strides of an input.
    if let [rows, columns] = *shape {
        let x = random(&[columns, rows], device)?.t()?;
        check(
            &format!("{what}, transposed"),
            &graph.run(&[&x])?,
            &model(&x.contiguous()?)?,
        )?;
        let x = random(&[rows, columns + 3], device)?.narrow(1, 2, columns)?;
        check(
            &format!("{what}, narrowed"),
            &graph.run(&[&x])?,
            &model(&x.contiguous()?)?,
        )?;
    }
    Ok(())
}

#[test]
fn models_of_either_kind_of_layer_on_either_kind_of_stream() -> Result<()> {
    let (device, _alone) = gpu!("models_of_either_kind_of_layer_on_either_kind_of_stream");
    for (stream, device) in [("the stream of each thread", device), ("a stream", with_a_stream()?)] {
        let tracked = device.as_cuda_device()?.is_event_tracking();
        for rows in [1, 7, 64] {
            let what = |model: &str| format!("{model}, {rows} rows, {stream}");
            let variables = VarMap::new();
            let model = stock(&variables, &device)?;
            replays_are_plain_runs(&what("candle's layers"), &device, &[rows, 96], model)?;
            let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
            let mlp = Mlp::new(&[96, 160, 64, 10], Activation::Relu, vb.pp("ours"))?.prepare()?;
            replays_are_plain_runs(&what("our layers"), &device, &[rows, 96], |x| mlp.forward(x))?;
            let gated = GatedMlp::new(96, 200, Activation::Silu, false, vb.pp("gated"))?;
            replays_are_plain_runs(&what("SwiGLU"), &device, &[rows, 96], |x| gated.forward_residual(x, x))?;
            // Long sums, split among blocks: the kernels need scratch memory.
            let long = Linear::new(random(&[24, 8192], &device)?, None);
            replays_are_plain_runs(&what("long sums"), &device, &[rows, 8192], |x| long.forward(x))?;
            // Broadcast operands, whose strides candle copies from the host, softmax and a norm.
            let scale = random(&[1, 96], &device)?;
            replays_are_plain_runs(&what("candle's operations"), &device, &[rows, 96], |x| {
                let x = x.broadcast_mul(&scale)?.broadcast_sub(&x.mean_keepdim(1)?)?;
                let x = candle_nn::ops::softmax(&x, 1)?;
                Tensor::cat(&[&x, &x.t()?.contiguous()?.t()?], 1)?.narrow(1, 3, 100)
            })?;
            // Small tensors from the host's memory.
            replays_are_plain_runs(&what("tensors from the host"), &device, &[rows, 8], |x| {
                let steps = Tensor::arange(0f32, 8f32, x.device())?;
                x.broadcast_add(&steps)? + Tensor::new(&[[2f32]], x.device())?.broadcast_as((rows, 8))?
            })?;
        }
        assert_eq!(
            device.as_cuda_device()?.is_event_tracking(),
            tracked,
            "tracking is as it was"
        );
    }
    Ok(())
}

#[cfg(feature = "override")]
#[test]
fn models_under_the_override() -> Result<()> {
    use candle_sgemm::matmul_override;
    let (device, _alone) = gpu!("models_under_the_override");
    let variables = VarMap::new();
    let model = stock(&variables, &device)?;
    matmul_override::reset_stats();
    for rows in [1, 40] {
        replays_are_plain_runs("the override", &device, &[rows, 96], |x| {
            matmul_override::scope(|| model(x))
        })?;
    }
    let stats = matmul_override::stats();
    assert!(stats.taken > 0, "the override took no product: {stats}");
    Ok(())
}

#[test]
fn several_inputs_and_outputs() -> Result<()> {
    let (device, _alone) = gpu!("several_inputs_and_outputs");
    let table = random(&[20, 6], &device)?;
    let function = |inputs: &[Tensor]| -> Result<(Tensor, Tensor)> {
        let [x, ids] = inputs else { bail!("two inputs") };
        let rows = table.embedding(ids)?;
        // The second output is not contiguous, and of another dtype.
        Ok(((x + &rows)?, (x * &rows)?.t()?.to_dtype(DType::BF16)?))
    };
    let ids = |first: u32| Tensor::new(&[first, 3, 19], &device);
    let graph = Graphed::new(&device, &[random(&[3, 6], &device)?, ids(0)?], function)?;
    for first in 0..20 {
        let inputs = [random(&[3, 6], &device)?, ids(first)?];
        let (sum, product) = graph.run(&inputs)?;
        let (expected_sum, expected_product) = function(&inputs)?;
        check("the sum", &sum, &expected_sum)?;
        assert_eq!(product.dtype(), DType::BF16);
        assert!(product.is_contiguous());
        check("the product", &product, &expected_product)?;
    }
    // An input as it is, and no input at all.
    let same = Graphed::new(&device, &[random(&[4], &device)?], |inputs| Ok(inputs[0].clone()))?;
    let x = random(&[4], &device)?;
    check("an input as it is", &same.run(&[&x])?, &x)?;
    let none: [Tensor; 0] = [];
    let constant = Graphed::new(&device, &none, |_| table.sum_all())?;
    check("no input", &constant.run(&none)?, &table.sum_all()?)?;
    Ok(())
}

#[test]
fn wrong_inputs_are_named() -> Result<()> {
    let (device, _alone) = gpu!("wrong_inputs_are_named");
    let graph = Graphed::new(&device, &[random(&[2, 3], &device)?], |inputs| &inputs[0] * 2.0)?;
    let text = |input: Tensor| graph.run(&[input]).unwrap_err().to_string();
    let shape = text(random(&[3, 2], &device)?);
    assert!(shape.contains("[2, 3]") && shape.contains("[3, 2]"), "{shape}");
    let dtype = text(random(&[2, 3], &device)?.to_dtype(DType::F16)?);
    assert!(dtype.contains("f32") && dtype.contains("f16"), "{dtype}");
    let place = text(random(&[2, 3], &Device::Cpu)?);
    assert!(place.contains("input 0") && place.contains("Cpu"), "{place}");
    let x = random(&[2, 3], &device)?;
    check("afterwards", &graph.run(&[&x])?, &(&x * 2.0)?)
}

#[test]
fn weights_that_are_updated_in_place_are_seen() -> Result<()> {
    let (device, _alone) = gpu!("weights_that_are_updated_in_place_are_seen");
    for device in [device, with_a_stream()?] {
        let weight = Var::from_tensor(&random(&[40, 30], &device)?)?;
        let bias = Var::from_tensor(&random(&[40], &device)?)?;
        let ours = Linear::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone()));
        let candle = candle_nn::Linear::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone()));
        let example = [random(&[5, 30], &device)?];
        let graphs = [
            Graphed::new(&device, &example, |x| ours.forward(&x[0]).map(|y| y.detach()))?.run(&example)?,
            candle.forward(&example[0])?,
        ];
        check("both layers", &graphs[0], &graphs[1])?;
        let ours_graph = Graphed::new(&device, &example, |x| ours.forward(&x[0]))?;
        let candle_graph = Graphed::new(&device, &example, |x| candle.forward(&x[0]))?;
        for i in 0..10 {
            weight.set(&random(&[40, 30], &device)?)?;
            bias.set(&random(&[40], &device)?)?;
            let x = random(&[5, 30], &device)?;
            let expected = x.matmul(&weight.as_tensor().t()?)?.broadcast_add(&bias)?.detach();
            check(
                &format!("our layer after update {i}"),
                &ours_graph.run(&[&x])?,
                &expected,
            )?;
            check(
                &format!("candle's layer after update {i}"),
                &candle_graph.run(&[&x])?,
                &expected,
            )?;
        }
    }
    Ok(())
}

/// That the stream computes as before, and records.
fn still_usable(what: &str, device: &Device) -> Result<()> {
    let usable = || -> Result<()> {
        device.synchronize()?;
        let x = random(&[8, 8], device)?;
        let twice = Graphed::new(device, &[&x], |inputs| &inputs[0] * 2.0)?;
        check("a new recording", &twice.run(&[&x])?, &(&x + &x)?)?;
        device.synchronize()
    };
    usable().map_err(|error| error.context(format!("the stream cannot be used after {what}")))
}

#[test]
fn what_cannot_be_recorded_is_named_and_the_stream_goes_on() -> Result<()> {
    type Function = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;
    let (device, _alone) = gpu!("what_cannot_be_recorded_is_named_and_the_stream_goes_on");
    for device in [device, with_a_stream()?] {
        let tracked = device.as_cuda_device()?.is_event_tracking();
        let step = AtomicUsize::new(0);
        let late = AtomicUsize::new(0);
        let synchronized = device.clone();
        let functions: [(&str, &str, Function); 7] = [
            (
                "a scalar on the host",
                "on the host",
                Box::new(|x| x[0].affine(x[0].sum_all()?.to_scalar::<f32>()? as f64, 0.0)),
            ),
            (
                "a copy to the CPU",
                "on the host",
                Box::new(|x| x[0].to_device(&Device::Cpu)?.to_device(x[0].device())? * 1.0),
            ),
            (
                "a large tensor from the host",
                "4096 bytes",
                Box::new(|x| {
                    Tensor::arange(0f32, 5000f32, x[0].device())?
                        .narrow(0, 0, 64)?
                        .reshape((8, 8))?
                        + &x[0]
                }),
            ),
            (
                "a synchronisation",
                "synchronize",
                Box::new(move |x| {
                    synchronized.synchronize()?;
                    &x[0] * 2.0
                }),
            ),
            (
                "steps that are counted",
                "gave different outputs",
                Box::new(move |x| &x[0] + step.fetch_add(1, Ordering::Relaxed) as f64),
            ),
            (
                "random numbers",
                "gave different outputs",
                Box::new(|x| x[0].rand_like(0.0, 1.0)),
            ),
            (
                "a third call that differs",
                "",
                // Not in the outputs of the two plain runs, but of the one that is recorded.
                Box::new(move |x| match late.fetch_add(1, Ordering::Relaxed) {
                    0 | 1 => &x[0] + 1.0,
                    _ => &x[0] + 2.0,
                }),
            ),
        ];
        let x = random(&[8, 8], &device)?;
        for (what, word, function) in functions {
            let error = match Graphed::new(&device, &[&x], &function) {
                Ok(_) => panic!("{what} was recorded"),
                Err(error) => error.to_string(),
            };
            assert!(
                error.contains("cannot be recorded") && error.contains(word),
                "{what}: {error}"
            );
            assert_eq!(
                device.as_cuda_device()?.is_event_tracking(),
                tracked,
                "{what}: tracking is as it was"
            );
            still_usable(what, &device)?;
            // Plain calls work where they are allowed.
            let options = Options::new().or_plainly(true);
            let plain = Graphed::with(options, &device, &[&x], &function);
            let plain = plain.map_err(|error| error.context(format!("{what}, plainly")))?;
            if word.is_empty() {
                continue; // by now it is the same with every call
            }
            let why = plain.why_plainly().unwrap_or_else(|| panic!("{what} was recorded"));
            assert!(why.contains(word), "{what}: {why}");
            assert_eq!(plain.run(&[&x])?.dims(), [8, 8]);
            still_usable(what, &device)?;
        }
        // Errors of the function itself, in the first run and in the recorded one.
        let calls = AtomicUsize::new(0);
        for last in 0..3 {
            calls.store(0, Ordering::Relaxed);
            let fails = |x: &[Tensor]| match calls.fetch_add(1, Ordering::Relaxed) {
                call if call < last => &x[0] * 2.0,
                _ => bail!("no more"),
            };
            let error = Graphed::new(&device, &[&x], fails).unwrap_err().to_string();
            assert!(error.contains("no more"), "{error}");
            still_usable("an error of the function", &device)?;
        }
        // A panic while it is recorded.
        calls.store(0, Ordering::Relaxed);
        let panics = |x: &[Tensor]| match calls.fetch_add(1, Ordering::Relaxed) {
            2 => panic!("while it is recorded, as this test wants"),
            _ => &x[0] * 2.0,
        };
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Graphed::new(&device, &[&x], panics)));
        assert!(caught.is_err());
        assert_eq!(
            device.as_cuda_device()?.is_event_tracking(),
            tracked,
            "a panic: tracking is as it was"
        );
        still_usable("a panic", &device)?;
    }
    Ok(())
}

/// The outputs of a model that only collects tensors are the same each time. What it keeps must stay valid.
#[test]
fn a_cache_that_grows_is_refused_and_stays_usable() -> Result<()> {
    let (device, _alone) = gpu!("a_cache_that_grows_is_refused_and_stays_usable");
    for device in [device, with_a_stream()?] {
        let cache = Mutex::new(Vec::new());
        let x = random(&[16, 16], &device)?;
        let error = Graphed::new(&device, &[&x], |inputs| {
            let doubled = (&inputs[0] * 2.0)?;
            cache.lock().unwrap().push(doubled.clone());
            doubled + 1.0
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("keeps 1 of the"), "{error}");
        let cache = cache.into_inner().unwrap();
        assert_eq!(cache.len(), 3);
        for (i, kept) in cache.iter().enumerate() {
            check(&format!("tensor {i} of the cache"), kept, &(&x * 2.0)?)?;
        }
        drop(cache);
        still_usable("a cache that grew", &device)?;
    }
    Ok(())
}

/// A model that replaces what it keeps drops a tensor from before while it is recorded, which cannot be freed then.
#[test]
fn a_tensor_that_is_replaced_is_refused_and_the_stream_goes_on() -> Result<()> {
    let (device, _alone) = gpu!("a_tensor_that_is_replaced_is_refused_and_the_stream_goes_on");
    for device in [device, with_a_stream()?] {
        let kept = Mutex::new(None);
        let x = random(&[16, 16], &device)?;
        let error = Graphed::new(&device, &[&x], |inputs| {
            let doubled = (&inputs[0] * 2.0)?;
            *kept.lock().unwrap() = Some(doubled.clone());
            doubled + 1.0
        });
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("replaces what it keeps") || error.contains("keeps 1 of"),
            "{error}"
        );
        eprintln!("a tensor that is replaced: {error}");
        still_usable("a tensor was replaced, and the new one is kept", &device)?;
        drop(kept);
        still_usable("a tensor was replaced, and the new one is gone", &device)?;
    }
    Ok(())
}

/// A cache of fixed size, written in place where an input says, is fine.
#[test]
fn a_cache_of_fixed_size_is_written_by_replays() -> Result<()> {
    let (device, _alone) = gpu!("a_cache_of_fixed_size_is_written_by_replays");
    const LENGTH: usize = 12;
    let cache = Tensor::zeros((LENGTH, 4), DType::F32, &device)?;
    let position = |at: usize| Tensor::full(at as u32, (1, 4), &device)?.contiguous();
    let step = |inputs: &[Tensor]| -> Result<Tensor> {
        cache.scatter_set(&inputs[1], &inputs[0], 0)?;
        cache.sum_keepdim(0)
    };
    let graph = Graphed::new(
        &device,
        &[Tensor::zeros((1, 4), DType::F32, &device)?, position(0)?],
        step,
    )?;
    let mut sum = Tensor::zeros((1, 4), DType::F32, &device)?;
    for at in 0..LENGTH {
        let x = random(&[1, 4], &device)?;
        sum = (sum + &x)?;
        check(&format!("step {at}"), &graph.run(&[&x, &position(at)?])?, &sum)?;
    }
    Ok(())
}

#[test]
fn several_threads_share_recordings() -> Result<()> {
    let (device, _alone) = gpu!("several_threads_share_recordings");
    const THREADS: usize = 6;
    const RUNS: usize = 200;
    for device in [device, with_a_stream()?] {
        let model = ours(&device)?;
        let example = random(&[3, 96], &device)?;
        let graph = Graphed::new(&device, &[&example], |inputs| model(&inputs[0]))?;
        let graphs = GraphedModule::new(&device, |inputs: &[Tensor]| model(&inputs[0]));
        device.synchronize()?;
        let run = |seed: usize| -> Result<()> {
            for i in 0..RUNS {
                let rows = 1 + (i + seed) % 4;
                let x = ((Tensor::ones((rows, 96), DType::F32, &device)? * (seed + 1) as f64)? * (i + 1) as f64)?;
                let y = if rows == 3 {
                    graph.run(&[&x])?
                } else {
                    graphs.run(&[&x])?
                };
                // Every few: comparing waits for the device.
                if i % 7 == 0 {
                    check(&format!("thread {seed}, run {i}"), &y, &model(&x)?)?;
                }
            }
            device.synchronize()
        };
        // Where threads share a stream, each shape is recorded before they start: the plain runs of one thread must not fall
        // into the recording of another.
        for rows in 1..=4 {
            graphs.run(&[random(&[rows, 96], &device)?])?;
        }
        let outcomes = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|seed| scope.spawn(move || run(seed))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect::<Vec<_>>()
        });
        outcomes.into_iter().collect::<Result<()>>()?;
    }
    Ok(())
}

/// Every thread records what it needs, at the same time, each on its own stream.
#[test]
fn several_threads_record_at_the_same_time() -> Result<()> {
    let (device, _alone) = gpu!("several_threads_record_at_the_same_time");
    let model = ours(&device)?;
    device.synchronize()?;
    let graphs = GraphedModule::with(Options::new().capacity(2), &device, |inputs: &[Tensor]| {
        model(&inputs[0])
    });
    let run = |seed: usize| -> Result<()> {
        for i in 0..12 {
            let rows = 1 + (i * (seed + 1)) % 5;
            let x = random(&[rows, 96], &device)?;
            check(&format!("thread {seed}, run {i}"), &graphs.run(&[&x])?, &model(&x)?)?;
        }
        Ok(())
    };
    // Several times, for threads that end while others record.
    for _ in 0..6 {
        let outcomes = std::thread::scope(|scope| {
            let run = &run;
            let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || run(seed))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect::<Vec<_>>()
        });
        outcomes.into_iter().collect::<Result<()>>()?;
    }
    assert!(
        (1..=2).contains(&graphs.recordings()),
        "{} recordings",
        graphs.recordings()
    );
    Ok(())
}

/// Candle keeps small tensors from the host for the thread that recorded: a recording outlives it all the same.
#[test]
fn a_recording_outlives_the_thread_that_made_it() -> Result<()> {
    let (device, _alone) = gpu!("a_recording_outlives_the_thread_that_made_it");
    let calls = AtomicUsize::new(0);
    let function = |inputs: &[Tensor]| -> Result<Tensor> {
        calls.fetch_add(1, Ordering::Relaxed);
        let steps = Tensor::arange(0f32, 64f32, inputs[0].device())?;
        inputs[0].broadcast_add(&steps)
    };
    let example = random(&[4, 64], &device)?;
    device.synchronize()?;
    let graph = std::thread::scope(|scope| {
        let made = scope.spawn(|| Graphed::new(&device, &[&example], function));
        made.join().expect("no panic")
    })?;
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    let expected = |x: &Tensor| x.broadcast_add(&Tensor::arange(0f32, 64f32, &device)?);
    // What the thread kept is free by now: fill it with something else.
    let filling: Vec<Tensor> = (0..64)
        .map(|_| Tensor::full(7f32, 64, &device))
        .collect::<Result<_>>()?;
    for i in 0..4 {
        let x = random(&[4, 64], &device)?;
        check(&format!("run {i} after its thread"), &graph.run(&[&x])?, &expected(&x)?)?;
    }
    assert_eq!(calls.load(Ordering::Relaxed), 6, "it was recorded once more");
    drop(filling);
    Ok(())
}

/// Bytes of device memory that nobody has, after everything that waits to be freed is.
fn free_memory(device: &Device) -> Result<usize> {
    device.synchronize()?;
    let stream = device.as_cuda_device()?.cuda_stream();
    let context = stream.context();
    let gone = context.synchronize().and_then(|()| {
        let mut pool = std::ptr::null_mut();
        // SAFETY: a context is current; the place outlives the call, and the pool is the device's own.
        unsafe {
            sys::cuDeviceGetDefaultMemPool(&mut pool, context.cu_device()).result()?;
            sys::cuMemPoolTrimTo(pool, 0).result()?;
        }
        context.mem_get_info()
    });
    let (free, _) = gone.map_err(candle_core::Error::wrap)?;
    Ok(free)
}

/// What measurements of free memory may be off by, for the driver's own sake.
const SLACK: usize = 8 << 20;

#[test]
fn a_hundred_thousand_runs_leave_memory_as_it_was() -> Result<()> {
    let (device, _alone) = gpu!("a_hundred_thousand_runs_leave_memory_as_it_was");
    const RUNS: usize = 100_000;
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
    let mlp = Mlp::new(&[784, 512, 512, 10], Activation::Relu, vb)?.prepare()?;
    let x = random(&[64, 784], &device)?;
    let graph = Graphed::new(&device, &[&x], |inputs| mlp.forward(&inputs[0]))?;
    let expected = mlp.forward(&x)?;
    for _ in 0..10 {
        graph.run(&[&x])?;
    }
    let before = free_memory(&device)?;
    let mut last = graph.run(&[&x])?;
    for _ in 0..RUNS {
        last = graph.run(&[&x])?;
    }
    let after = free_memory(&device)?;
    check("the last run", &last, &expected)?;
    assert!(after + SLACK >= before, "{} bytes are gone", before - after);
    Ok(())
}

#[test]
fn dropping_gives_everything_back() -> Result<()> {
    let (device, _alone) = gpu!("dropping_gives_everything_back");
    // 64 MiB a tensor, so that what stays behind is seen.
    let x = random(&[4096, 4096], &device)?;
    let function = |inputs: &[Tensor]| -> Result<Tensor> { ((&inputs[0] * 2.0)? + 1.0)?.sqr()?.sum_all() };
    let once = || -> Result<()> {
        let graph = Graphed::new(&device, &[&x], function)?;
        check("a run", &graph.run(&[&x])?, &function(std::slice::from_ref(&x))?)
    };
    once()?; // loads kernels
    let before = free_memory(&device)?;
    for _ in 0..20 {
        once()?;
    }
    let after = free_memory(&device)?;
    assert!(
        after + SLACK >= before,
        "{} bytes are gone after 20 recordings",
        before - after
    );
    // Dropped while it still runs, by another thread than the one that runs it.
    let graph = Graphed::new(&device, &[&x], function)?;
    let expected = function(std::slice::from_ref(&x))?;
    let last = (0..50)
        .map(|_| graph.run(&[&x]))
        .collect::<Result<Vec<_>>>()?
        .pop()
        .unwrap();
    std::thread::scope(|scope| scope.spawn(move || drop(graph)).join().expect("no panic"));
    check("a run whose graph is gone", &last, &expected)?;
    drop(last);
    let after = free_memory(&device)?;
    assert!(after + SLACK >= before, "{} bytes are gone at last", before - after);
    Ok(())
}

#[test]
fn a_module_keeps_so_many_recordings_as_it_may() -> Result<()> {
    let (device, _alone) = gpu!("a_module_keeps_so_many_recordings_as_it_may");
    const CAPACITY: usize = 3;
    let calls = Arc::new(AtomicUsize::new(0));
    let layer = Linear::new(random(&[10, 32], &device)?, None);
    let counted = {
        let (calls, layer) = (calls.clone(), layer.clone());
        move |x: &Tensor| {
            calls.fetch_add(1, Ordering::Relaxed);
            layer.forward(x)
        }
    };
    let graphs = GraphedModule::of_with(Options::new().capacity(CAPACITY), &device, counted);
    let run = |rows: usize, recorded: bool| -> Result<()> {
        let before = calls.load(Ordering::Relaxed);
        let x = random(&[rows, 32], &device)?;
        check(&format!("{rows} rows"), &graphs.forward(&x)?, &layer.forward(&x)?)?;
        let made = calls.load(Ordering::Relaxed) - before;
        assert_eq!(
            made,
            if recorded { 3 } else { 0 },
            "calls of the function for {rows} rows"
        );
        Ok(())
    };
    for (rows, recorded) in [
        (1, true),
        (2, true),
        (3, true),
        (1, false),
        (4, true),
        (1, false),
        (3, false),
        (2, true),
        (4, true),
    ] {
        run(rows, recorded)?;
    }
    assert_eq!(graphs.recordings(), CAPACITY);
    graphs.clear();
    assert_eq!(graphs.recordings(), 0);
    run(4, true)
}

/// What results may differ by, relative to the largest, that were rounded to `dtype` a few times.
#[cfg(feature = "override")]
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 3e-2,
        DType::F16 => 4e-3,
        _ => ROUNDING,
    }
}

/// Compares recordings with and without folding, and plain runs, with new inputs and weights, and returns how many kernels
/// were folded.
#[cfg(feature = "override")]
fn folded(
    what: &str,
    device: &Device,
    shapes: &[&[usize]],
    dtype: DType,
    variables: &VarMap,
    model: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<usize> {
    use candle_sgemm::matmul_override;
    let inputs = || -> Result<Vec<Tensor>> {
        let inputs = shapes.iter().map(|shape| random(shape, device)?.to_dtype(dtype));
        inputs.collect()
    };
    let example = inputs()?;
    let model = |inputs: &[Tensor]| matmul_override::scope(|| model(inputs));
    let graph = Graphed::new(device, &example, model)?;
    let plain = Graphed::with(Options::new().fold(false), device, &example, model)?;
    assert_eq!(plain.folded(), 0, "{what}");
    for i in 0..4 {
        let inputs = inputs()?;
        let expected = model(&inputs)?;
        for (how, y) in [("folded", graph.run(&inputs)?), ("not folded", plain.run(&inputs)?)] {
            assert_eq!(y.dtype(), expected.dtype());
            let error = error(&y, &expected)?;
            assert!(error < rounding(dtype), "{what}, {dtype:?}, {how}, run {i}: {error:e}");
        }
        // As models begin, results about as large as inputs: large scores would make differences of rounding large.
        for variable in variables.all_vars() {
            let inputs = variable.dims().last().copied().unwrap_or(1) as f64;
            let new = (random(variable.dims(), device)? / inputs.sqrt())?.to_dtype(dtype)?;
            variable.set(&new)?;
        }
    }
    Ok(graph.folded())
}

/// Layers as models chain them, with candle's own operations between them: (bias, activation, residual) of each.
#[cfg(feature = "override")]
#[test]
fn kernels_after_products_are_folded() -> Result<()> {
    use rand::Rng;
    type Function = fn(&Tensor) -> Result<Tensor>;
    let (device, _alone) = gpu!("kernels_after_products_are_folded");
    let activations: [(&str, Function); 6] = [
        ("relu", Tensor::relu),
        ("gelu", Tensor::gelu),
        ("gelu_erf", Tensor::gelu_erf),
        ("silu", Tensor::silu),
        ("tanh", Tensor::tanh),
        ("sigmoid", candle_nn::ops::sigmoid),
    ];
    let mut rng = common::rng(11);
    for device in [device, with_a_stream()?] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let (mut counted, mut wanted) = (0, 0);
            for draw in 0..24 {
                // Sizes that every kernel takes in place, and any: then a product may be more than one kernel.
                let aligned = draw % 2 == 0;
                let mut size = |most: usize| match aligned {
                    true => 16 * rng.random_range(1..=most / 16),
                    false => rng.random_range(1..=most),
                };
                let (rows, width, inner) = (size(64), size(400), size(800));
                let batch = if draw % 3 == 0 { 3 } else { 1 };
                let variables = VarMap::new();
                let vb = VarBuilder::from_varmap(&variables, dtype, &device);
                let with_bias: [bool; 2] = [rng.random(), rng.random()];
                let linear = |bias: bool, from: usize, to: usize, vb: VarBuilder| match bias {
                    true => candle_nn::linear(from, to, vb),
                    false => candle_nn::linear_no_bias(from, to, vb),
                };
                let up = linear(with_bias[0], width, inner, vb.pp("up"))?;
                let down = linear(with_bias[1], inner, width, vb.pp("down"))?;
                let (name, activate) = activations[rng.random_range(0..activations.len())];
                let gated: bool = rng.random();
                let gate = linear(false, width, inner, vb.pp("gate"))?;
                let swapped: bool = rng.random();
                let what = format!("{rows}×{width}×{inner}, {batch} of them, {with_bias:?}, {name}, gated {gated}");
                let count = folded(&what, &device, &[&[batch, rows, width]], dtype, &variables, |x| {
                    let x = &x[0];
                    let hidden = activate(&up.forward(x)?)?;
                    let hidden = match gated {
                        true => hidden.mul(&gate.forward(x)?)?,
                        false => hidden,
                    };
                    let y = down.forward(&hidden)?;
                    match swapped {
                        true => x + y,
                        false => y + x,
                    }
                })?;
                let all = with_bias.iter().filter(|&&bias| bias).count() + 2 + usize::from(gated);
                assert!(count <= all, "{what}: {count} of {all}");
                if aligned {
                    counted += count;
                    wanted += all;
                }
            }
            eprintln!("{dtype:?}: {counted} of {wanted} kernels folded");
            assert!(10 * counted >= 9 * wanted, "{dtype:?}: {counted} of {wanted}");
        }
    }
    Ok(())
}

/// Scores that are scaled and masked, and a residual after the heads are merged.
#[cfg(feature = "override")]
#[test]
fn attention_is_folded() -> Result<()> {
    let (device, _alone) = gpu!("attention_is_folded");
    for (batch, heads, length, width) in [(1, 12, 16, 32), (2, 4, 48, 64), (3, 1, 16, 16)] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let all = heads * width;
            let variables = VarMap::new();
            let vb = VarBuilder::from_varmap(&variables, dtype, &device);
            let [q, k, v, o] = ["q", "k", "v", "o"].map(|name| candle_nn::linear(all, all, vb.pp(name)));
            let (q, k, v, o) = (q?, k?, v?, o?);
            let mask = (random(&[batch, 1, 1, length], &device)? * 3.0)?.to_dtype(dtype)?;
            let what = format!("{batch} × {heads} heads of {width}, {length} long");
            let count = folded(&what, &device, &[&[batch, length, all]], dtype, &variables, |x| {
                let x = &x[0];
                let split = |y: Tensor| y.reshape((batch, length, heads, width))?.transpose(1, 2)?.contiguous();
                let (q, k, v) = (split(q.forward(x)?)?, split(k.forward(x)?)?, split(v.forward(x)?)?);
                let scores = q.matmul(&k.t()?)?;
                let scores = (scores / (width as f64).sqrt())?;
                let scores = candle_nn::ops::softmax_last_dim(&scores.broadcast_add(&mask)?)?;
                let merged = scores
                    .matmul(&v)?
                    .transpose(1, 2)?
                    .contiguous()?
                    .reshape((batch, length, all))?;
                o.forward(&merged)? + x
            })?;
            // Four biases, a factor, the mask and the residual.
            assert_eq!(count, 7, "{what}, {dtype:?}");
        }
    }
    Ok(())
}

/// This crate's layers without the override: what candle does after them.
#[test]
fn kernels_after_our_layers_are_folded() -> Result<()> {
    let (device, _alone) = gpu!("kernels_after_our_layers_are_folded");
    let bias = random(&[64], &device)?;
    let ours = Linear::new(random(&[64, 96], &device)?, Some(bias));
    let candle = candle_nn::Linear::new(random(&[96, 64], &device)?, None);
    let x = random(&[32, 96], &device)?;
    let function = |inputs: &[Tensor]| candle.forward(&ours.forward(&inputs[0])?.gelu_erf()?)? + &inputs[0];
    let graph = Graphed::new(&device, &[&x], function)?;
    assert_eq!(graph.folded(), 1, "our layer takes over its activation, cuBLAS nothing");
    for i in 0..3 {
        let inputs = [random(&[32, 96], &device)?];
        check(&format!("run {i}"), &graph.run(&inputs)?, &function(&inputs)?)?;
    }
    Ok(())
}

/// What somebody else reads, an output for one, is computed.
#[cfg(feature = "override")]
#[test]
fn what_is_read_elsewhere_is_not_folded() -> Result<()> {
    use candle_sgemm::matmul_override;
    let (device, _alone) = gpu!("what_is_read_elsewhere_is_not_folded");
    let (w, bias) = (random(&[96, 64], &device)?, random(&[64], &device)?);
    let shape = [32, 96];
    type Function = Box<dyn Fn(&Tensor) -> Result<(Tensor, Tensor)>>;
    let [product, sum] = [(); 2].map(|()| (w.clone(), bias.clone()));
    let [twice, late, viewed] = [(); 3].map(|()| (w.clone(), bias.clone()));
    let functions: [(&str, usize, Function); 5] = [
        (
            "the product is an output",
            0,
            Box::new(move |x| {
                let y = x.matmul(&product.0)?;
                Ok((y.broadcast_add(&product.1)?, y))
            }),
        ),
        (
            "the sum is an output",
            1,
            Box::new(move |x| {
                let y = x.matmul(&sum.0)?.broadcast_add(&sum.1)?;
                Ok((y.gelu()?, y))
            }),
        ),
        (
            "one kernel reads it twice",
            0,
            Box::new(move |x| {
                let y = x.matmul(&twice.0)?;
                Ok(((&y + &y)?, twice.1.clone()))
            }),
        ),
        (
            "another kernel reads it later",
            0,
            Box::new(move |x| {
                let y = x.matmul(&late.0)?;
                let z = y.broadcast_add(&late.1)?;
                Ok((z.sqr()?, y.sum_all()?))
            }),
        ),
        (
            "a part of it is read",
            0,
            Box::new(move |x| {
                let y = x.matmul(&viewed.0)?.narrow(0, 1, 8)?;
                Ok((y.broadcast_add(&viewed.1)?, viewed.1.clone()))
            }),
        ),
    ];
    for (what, expected, function) in functions {
        let function = |inputs: &[Tensor]| matmul_override::scope(|| function(&inputs[0]));
        let graph = Graphed::new(&device, &[random(&shape, &device)?], function)?;
        assert_eq!(graph.folded(), expected, "{what}");
        for _ in 0..3 {
            let inputs = [random(&shape, &device)?];
            let (y, z) = graph.run(&inputs)?;
            let (plain_y, plain_z) = function(&inputs)?;
            check(what, &y, &plain_y)?;
            check(what, &z, &plain_z)?;
        }
    }
    Ok(())
}

/// Where the rounding that is saved makes another output, the function is recorded as it is.
#[cfg(feature = "override")]
#[test]
fn folding_gives_way_where_its_rounding_counts() -> Result<()> {
    use candle_sgemm::matmul_override;
    let (device, _alone) = gpu!("folding_gives_way_where_its_rounding_counts");
    let half = |shape: &[usize]| random(shape, &device)?.to_dtype(DType::F16);
    let (x, w, bias) = (half(&[64, 256])?, half(&[256, 64])?, half(&[64])?);
    let layer = |x: &Tensor| matmul_override::scope(|| x.matmul(&w)?.broadcast_add(&bias));
    let plain = layer(&x)?;
    let calls = AtomicUsize::new(0);
    let graph = Graphed::new(&device, &[&x], |inputs| {
        calls.fetch_add(1, Ordering::Relaxed);
        layer(&inputs[0])?.eq(&plain)
    })?;
    assert_eq!((graph.folded(), calls.load(Ordering::Relaxed)), (0, 7));
    let equal: Vec<u8> = graph.run(&[&x])?.flatten_all()?.to_vec1()?;
    assert!(equal.iter().all(|&equal| equal == 1));
    // Where nothing depends on the last bit it is folded.
    assert_eq!(Graphed::new(&device, &[&x], |inputs| layer(&inputs[0]))?.folded(), 1);
    Ok(())
}

#[cfg(feature = "override")]
#[test]
fn a_hundred_thousand_folded_runs_give_the_same_bits() -> Result<()> {
    use candle_sgemm::matmul_override;
    let (device, _alone) = gpu!("a_hundred_thousand_folded_runs_give_the_same_bits");
    const RUNS: usize = 100_000;
    let variables = VarMap::new();
    let model = stock(&variables, &device)?;
    let x = random(&[16, 96], &device)?;
    let graph = Graphed::new(&device, &[&x], |inputs| matmul_override::scope(|| model(&inputs[0])))?;
    assert!(graph.folded() >= 3, "{}", graph.folded());
    let bits = |y: &Tensor| -> Result<Vec<u32>> {
        let numbers: Vec<f32> = y.flatten_all()?.to_vec1()?;
        Ok(numbers.into_iter().map(f32::to_bits).collect())
    };
    let first = bits(&graph.run(&[&x])?)?;
    let before = free_memory(&device)?;
    for i in 1..=RUNS {
        let y = graph.run(&[&x])?;
        if i % 10_000 == 0 {
            assert_eq!(bits(&y)?, first, "run {i}");
        }
    }
    let after = free_memory(&device)?;
    assert!(after + SLACK >= before, "{} bytes are gone", before - after);
    Ok(())
}

/// A recording within another one becomes part of it.
#[test]
fn recordings_nest() -> Result<()> {
    let (device, _alone) = gpu!("recordings_nest");
    let variables = VarMap::new();
    let model = stock(&variables, &device)?;
    let inner = GraphedModule::new(&device, |inputs: &[Tensor]| model(&inputs[0]));
    let example = random(&[5, 96], &device)?;
    inner.run(&[&example])?;
    let outer = Graphed::new(&device, &[&example], |inputs| inner.run(inputs)? * 2.0)?;
    for _ in 0..3 {
        let x = random(&[5, 96], &device)?;
        check("the outer one", &outer.run(&[&x])?, &(model(&x)? * 2.0)?)?;
        check("the inner one", &inner.run(&[&x])?, &model(&x)?)?;
    }
    Ok(())
}

/// One thread records functions that run what another one replays, records and forgets meanwhile.
#[test]
fn recordings_nest_while_other_threads_use_what_they_call() -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(60);
    const ROUNDS: usize = 20;
    let (device, _alone) = gpu!("recordings_nest_while_other_threads_use_what_they_call");
    let variables = VarMap::new();
    let model = stock(&variables, &device)?;
    let inner = GraphedModule::new(&device, |inputs: &[Tensor]| model(&inputs[0]));
    let example = random(&[5, 96], &device)?;
    let expected = model(&example)?;
    device.synchronize()?;
    let ended = AtomicBool::new(false);
    let (done, wait) = mpsc::channel();
    std::thread::scope(|scope| {
        let (inner, example, expected, ended, device) = (&inner, &example, &expected, &ended, &device);
        let done_too = done.clone();
        scope.spawn(move || {
            let runs = || -> Result<()> {
                let mut runs = 0;
                while !ended.load(Ordering::Relaxed) {
                    check("the inner one", &inner.run(&[example])?, expected)?;
                    runs += 1;
                    if runs % 3 == 0 {
                        inner.clear();
                    }
                }
                Ok(())
            };
            done_too.send(("the runs", runs())).ok();
        });
        scope.spawn(move || {
            let records = || -> Result<()> {
                for _ in 0..ROUNDS {
                    let outer = Graphed::new(device, &[example], |inputs| inner.run(inputs)? * 2.0)?;
                    check("the outer one", &outer.run(&[example])?, &(expected * 2.0)?)?;
                }
                Ok(())
            };
            let result = records();
            ended.store(true, Ordering::Relaxed);
            done.send(("the recordings", result)).ok();
        });
        for _ in 0..2 {
            // Threads that wait for each other cannot be ended: the process is.
            match wait.recv_timeout(PATIENCE) {
                Ok((which, result)) => result.map_err(|error| error.context(which))?,
                Err(_) => {
                    eprintln!("two threads wait for each other");
                    std::process::abort();
                }
            }
        }
        Ok(())
    })
}

/// Nothing is loaded or allocated before: neither candle's kernels nor ours, nor pools.
#[test]
fn a_fresh_process_records_at_its_first_call() {
    in_a_fresh_process("a_fresh_process_records_at_its_first_call", || {
        let body = || -> Result<()> {
            let (device, _alone) = gpu!("a_fresh_process_records_at_its_first_call");
            let numbers: Vec<f32> = (0..64 * 784).map(|i| (i % 13) as f32 - 6.0).collect();
            let x = Tensor::from_slice(&numbers, (64, 784), &device)?;
            let weight = Tensor::from_slice(&numbers[..512 * 64], (512, 64), &device)?;
            let ours = Linear::new(weight.clone(), None).with_activation(Activation::GeluErf);
            let graph = Graphed::new(&device, &[x.narrow(1, 0, 64)?], |inputs| ours.forward(&inputs[0]))?;
            let x = x.narrow(1, 64, 64)?;
            let y = graph.run(&[&x])?;
            let expected = x.contiguous()?.matmul(&weight.t()?)?.gelu_erf()?;
            check("the first recording of a process", &y, &expected)
        };
        body().unwrap();
    });
}

/// Recordings on two devices, if there are two.
#[test]
fn each_device_has_its_recordings() -> Result<()> {
    let (first, _alone) = gpu!("each_device_has_its_recordings");
    let Ok(second) = Device::new_cuda(1) else {
        skip("each_device_has_its_recordings", "two-gpus", "there is one GPU only");
        return Ok(());
    };
    let devices = [first, second];
    let square = |x: &[Tensor]| -> Result<Tensor> { x[0].sqr()? + 1.0 };
    let graphs = devices.each_ref().map(|device| GraphedModule::new(device, square));
    for i in 0..6 {
        for (device, graphs) in devices.iter().zip(&graphs) {
            let x = random(&[3, 5], device)?;
            check(
                &format!("run {i} on {device:?}"),
                &graphs.run(&[&x])?,
                &square(std::slice::from_ref(&x))?,
            )?;
        }
        let elsewhere = random(&[3, 5], &devices[1])?;
        let error = graphs[0].run(&[elsewhere]).unwrap_err().to_string();
        assert!(error.contains("input 0 is on"), "{error}");
    }
    Ok(())
}
