//! What needs no GPU: the choice of recordings, errors, and functions that are called as they are.

use super::*;
use candle_core::DType;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).expect("zeros on the CPU")
}

#[test]
fn a_device_without_cuda_is_an_error_unless_plain_calls_are_allowed() -> Result<()> {
    let device = Device::Cpu;
    let function = |inputs: &[Tensor]| &inputs[0] + 1.0;
    let error = Graphed::new(&device, &[zeros(&[2])], function).unwrap_err().to_string();
    assert!(
        error.contains("cannot be recorded") && error.contains("no CUDA device"),
        "{error}"
    );
    let plain = Graphed::with(Options::new().or_plainly(true), &device, &[zeros(&[2])], function)?;
    assert!(!plain.is_recorded());
    assert!(plain.why_plainly().unwrap().contains("no CUDA device"));
    assert_eq!(plain.run(&[zeros(&[2])])?.to_vec1::<f32>()?, [1.0, 1.0]);
    Ok(())
}

#[test]
fn other_shapes_than_those_recorded_are_named() -> Result<()> {
    let options = Options::new().or_plainly(true);
    let graph = Graphed::with(options, &Device::Cpu, &[zeros(&[2, 3])], |inputs| Ok(inputs[0].clone()))?;
    for wrong in [vec![], vec![zeros(&[3, 2])], vec![zeros(&[2, 3]), zeros(&[1])]] {
        let error = graph.run(&wrong).unwrap_err().to_string();
        let given = Signature::of(&wrong).to_string();
        assert!(error.contains("f32 [2, 3]") && error.contains(&given), "{error}");
    }
    Ok(())
}

#[test]
fn errors_of_the_function_are_its_own() -> Result<()> {
    let fails = |_: &[Tensor]| -> Result<Tensor> { bail!("no such weight") };
    let options = Options::new().or_plainly(true);
    let graphs = GraphedModule::with(options, &Device::Cpu, fails);
    for _ in 0..2 {
        let error = graphs.run(&[zeros(&[1])]).unwrap_err().to_string();
        assert!(error.contains("no such weight"), "{error}");
    }
    Ok(())
}

#[test]
fn tensors_come_back_in_the_form_that_the_function_gives() -> Result<()> {
    let options = Options::new().or_plainly(true);
    let inputs = [zeros(&[1]), (zeros(&[1]) + 1.0)?];
    let value = |tensor: &Tensor| tensor.to_vec1::<f32>().map(|values| values[0]);
    let pair = Graphed::with(options, &Device::Cpu, &inputs, |t| Ok((t[1].clone(), t[0].clone())))?;
    let (one, zero) = pair.run(&inputs)?;
    assert_eq!((value(&one)?, value(&zero)?), (1.0, 0.0));
    fn there_and_back<O: Outputs>(outputs: O) -> Result<O> {
        O::from_tensors(outputs.into_tensors())
    }
    let [a, b] = [&inputs[0], &inputs[1]].map(Tensor::clone);
    assert_eq!(value(&there_and_back(b.clone())?)?, 1.0);
    assert_eq!(value(&there_and_back([a.clone(), b.clone()])?[1])?, 1.0);
    assert_eq!(value(&there_and_back((a.clone(), b.clone()))?.1)?, 1.0);
    assert_eq!(value(&there_and_back((a.clone(), a.clone(), b.clone()))?.2)?, 1.0);
    assert_eq!(there_and_back(vec![a.clone(); 5])?.len(), 5);
    for wrong in [vec![], vec![a.clone(); 3]] {
        assert!(<(Tensor, Tensor)>::from_tensors(wrong.clone()).is_err());
        assert!(Tensor::from_tensors(wrong).is_err());
    }
    Ok(())
}

#[test]
fn a_module_remembers_so_many_shapes_as_it_may() -> Result<()> {
    const CAPACITY: usize = 3;
    let calls = AtomicUsize::new(0);
    let options = Options::new().or_plainly(true).capacity(CAPACITY);
    let graphs = GraphedModule::with(options, &Device::Cpu, |inputs| {
        calls.fetch_add(1, Ordering::Relaxed);
        inputs[0].sum_all()
    });
    for length in [1, 2, 3, 1, 4, 1, 2] {
        assert_eq!(graphs.run(&[zeros(&[length])])?.to_scalar::<f32>()?, 0.0);
    }
    let known = |length: usize| graphs.why_plainly(&[zeros(&[length])]).is_some();
    assert_eq!([1, 2, 3, 4].map(known), [true, true, false, true]);
    assert_eq!(
        calls.load(Ordering::Relaxed),
        7,
        "nothing is tried on a device without CUDA"
    );
    assert_eq!(graphs.recordings(), 0);
    graphs.clear();
    assert!(![1, 2, 3, 4].map(known).contains(&true));
    Ok(())
}

#[test]
fn a_module_stays_a_module() -> Result<()> {
    let layer = candle_nn::Linear::new(zeros(&[4, 3]), None);
    let options = Options::new().or_plainly(true);
    let graphs = GraphedModule::of_with(options, &Device::Cpu, layer.clone());
    assert_eq!(graphs.forward(&zeros(&[2, 3]))?.dims(), [2, 4]);
    let error = graphs.run(&[zeros(&[2, 3]), zeros(&[1])]).unwrap_err().to_string();
    assert!(error.contains("one input, not 2"), "{error}");
    let recorded = GraphedModule::of(&Device::Cpu, layer);
    assert!(recorded.forward(&zeros(&[2, 3])).is_err(), "a CPU records nothing");
    Ok(())
}

/// Threads may share what a `Send` and `Sync` function makes.
#[test]
fn graphs_can_be_shared_by_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    let graphs = GraphedModule::new(&Device::Cpu, |inputs: &[Tensor]| Ok(inputs[0].clone()));
    shared(&graphs);
    let options = Options::new().or_plainly(true);
    let none: [Tensor; 0] = [];
    let graph = Graphed::with(options, &Device::Cpu, &none, |_| Ok(Vec::new())).expect("plain calls are allowed");
    shared(&graph);
}

/// Another thread may hold the place of a recording while it waits for this thread's recording to end.
#[test]
fn a_run_within_a_recording_waits_for_no_place_and_takes_none() -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let options = Options::new().or_plainly(true).capacity(1);
    let graphs = GraphedModule::with(options, &Device::Cpu, |inputs| &inputs[0] + 1.0);
    let (known, other) = ([zeros(&[1])], [zeros(&[2])]);
    graphs.run(&known)?;
    let slot = graphs.kept().remove(0);
    let held = slot.state();
    let (done, wait) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _inside = Inside::begin();
            let results =
                [&known, &other].map(|inputs| graphs.run(inputs).and_then(|sum| sum.sum_all()?.to_scalar::<f32>()));
            done.send(results).expect("somebody waits");
        });
        let results = wait.recv_timeout(PATIENCE);
        drop(held);
        let results = results.expect("a run within a recording waits for nobody");
        assert_eq!(results.map(|sum| sum.expect("a sum")), [1.0, 2.0]);
    });
    assert!(graphs.why_plainly(&known).is_some(), "its place was taken");
    Ok(())
}

#[test]
fn recordings_within_recordings_are_refused_and_leave_the_thread_as_it_was() {
    let _outer = Inside::begin();
    let options = Options::new().or_plainly(true);
    let inner = |tensors: &[Tensor]| Ok(tensors[0].clone());
    let error = Graphed::with(options, &Device::Cpu, &[zeros(&[1])], inner).unwrap_err();
    assert!(error.to_string().contains("within"), "{error}");
    drop(Inside::begin());
    assert!(Inside::is(), "the outer one goes on");
}
