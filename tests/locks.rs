//! Layers beside a writer in another thread: a layer must never wait for a lock that candle's own operations would not wait
//! for, or it waits for a writer that waits for the layer.
//!
//! One test at a time: a GPU's driver takes seconds to compile candle's kernels when they are first asked for, in which other threads wait
//! for candle's list of them, and not for a writer.

#[path = "common/alone.rs"]
mod alone;
#[macro_use]
mod devices;

use alone::alone;
use candle_core::{Device, Result, Tensor, Var};
use candle_sgemm::{Activation, Linear};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

on_every_device!(a_layer_does_not_wait_for_a_writer_that_waits, layers_run_beside_writers,);

/// Far longer than any layer here takes, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);
/// A reader that has not come back after so long is behind a writer.
const BEHIND_A_WRITER: Duration = Duration::from_millis(50);
/// Nor was it only late, on a busy machine, if it has not come back after so long again.
const NOT_LATE: Duration = Duration::from_millis(500);

const SIZE: usize = 4;

fn square(device: &Device) -> Result<Var> {
    Var::rand(-1f32, 1f32, (SIZE, SIZE), device)
}

/// Makes the device's context current on this thread: what a thread drops before it has used the device would else be freed in none.
fn bind(device: &Device) {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        let stream = device.cuda_stream();
        stream.context().bind_to_thread().expect("a context can be bound");
    }
    #[cfg(not(feature = "cuda"))]
    let _ = device;
}

/// Runs `work` while a reader (this function) holds the lock of `var` and a writer waits for it.
fn beside_a_waiting_writer<T: Send + 'static>(
    var: &Var,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let fresh = var.as_tensor().copy()?;
    let (finished, outcome) = channel();
    let result = {
        let _reader = var.storage_and_layout();
        let writer = var.clone();
        // Threads are left to themselves: in a deadlock they never end.
        let device = var.device().clone();
        thread::spawn(move || {
            bind(&device);
            writer.set(&fresh)
        });
        // Candle's plain read lock queues up behind a writer that waits: as soon as one does not come back, there is one.
        loop {
            let (read, came_back) = channel();
            let probe = var.clone();
            thread::spawn(move || {
                bind(probe.device());
                drop(probe.storage_and_layout());
                let _ = read.send(());
            });
            match came_back.recv_timeout(BEHIND_A_WRITER) {
                // One that comes back after all was only late.
                Err(RecvTimeoutError::Timeout) if came_back.recv_timeout(NOT_LATE).is_err() => break,
                _ => thread::sleep(Duration::from_millis(1)),
            }
        }
        let device = var.device().clone();
        thread::spawn(move || {
            bind(&device);
            let result = work();
            // Candle's default stream is another one in each thread, and none of them waits for the others.
            let _ = finished.send(device.synchronize().map(|()| result));
        });
        outcome.recv_timeout(PATIENCE)
    };
    result.unwrap_or_else(|error| panic!("{what} waits for a writer: {error}"))
}

fn a_layer_does_not_wait_for_a_writer_that_waits(device: &Device) -> Result<()> {
    let _alone = alone();
    // What shares the residual's storage: x, the weight, the bias, or nothing.
    for shared in 0..4 {
        for gated in [false, true] {
            let vars = [square(device)?, square(device)?, square(device)?, square(device)?];
            let [x, w, b, _] = &vars;
            let row = |t: &Tensor| t.narrow(0, 1, 1)?.squeeze(0);
            let layer = Linear::new(w.as_tensor().clone(), Some(row(b.as_tensor())?)).with_activation(Activation::Tanh);
            let x = x.as_tensor().clone();
            // The residual stays inside the product where no gradient flows to it.
            let residual = vars[shared].as_tensor().detach();
            let run = move || match gated {
                false => layer.forward_residual(&x, &residual),
                true => layer.forward_gated(&x, &residual),
            };
            let expected = run()?.to_vec2::<f32>()?;
            let what = format!("a layer, gated {gated}, whose residual is operand {shared} of x, w, b and none");
            let y = beside_a_waiting_writer(&vars[shared], &what, run)??;
            assert_eq!(y.to_vec2::<f32>()?, expected, "{what}");
        }
    }
    Ok(())
}

/// Two layers whose operands are each other's residuals, and writers of both.
fn layers_run_beside_writers(device: &Device) -> Result<()> {
    let _alone = alone();
    const ROUNDS: Duration = Duration::from_millis(500);
    let (first, second, w) = (square(device)?, square(device)?, square(device)?);
    let (finished, outcome) = channel();
    let until = Instant::now() + ROUNDS;
    for (x, residual) in [(&first, &second), (&second, &first), (&first, &first)] {
        let (x, residual) = (x.as_tensor().clone(), residual.as_tensor().detach());
        let layer = Linear::new(w.as_tensor().clone(), None).with_activation(Activation::Relu);
        let (target, fresh) = (x.clone(), x.copy()?);
        let done = finished.clone();
        thread::spawn(move || {
            bind(x.device());
            let mut outcome = Ok(());
            while Instant::now() < until && outcome.is_ok() {
                outcome = layer.forward_residual(&x, &residual).map(drop);
            }
            let _ = done.send(outcome);
        });
        let writer = Var::from_tensor(&target)?;
        let done = finished.clone();
        thread::spawn(move || {
            bind(writer.device());
            let mut outcome = Ok(());
            while Instant::now() < until && outcome.is_ok() {
                outcome = writer.set(&fresh);
            }
            let _ = done.send(outcome);
        });
    }
    drop(finished);
    for _ in 0..6 {
        outcome
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|error| panic!("layers and writers wait for each other: {error}"))?;
    }
    Ok(())
}
