//! Models as CUDA graphs: recorded once, then one launch a call.
//!
//! In a small model the host takes longer to launch the kernels than the GPU to run them. [`Graphed`] records what a function of
//! tensors queues on candle's stream, for inputs of one shape and dtype each, and replays it with one launch.
//! [`GraphedModule`] keeps a recording for each of the shapes that it meets. The function is any closure, or any
//! [`candle_core::Module`], with this crate's layers or candle's own, under `matmul_override` or not.
//!
//! ```no_run
//! use candle_core::{Device, Module, Tensor};
//! use candle_sgemm::graph::{Graphed, GraphedModule};
//! # fn model(device: &Device) -> candle_core::Result<candle_nn::Linear> {
//! #     Ok(candle_nn::Linear::new(Tensor::zeros((10, 32), candle_core::DType::F32, device)?, None))
//! # }
//!
//! let device = Device::new_cuda(0)?;
//! let model = model(&device)?;
//! let example = Tensor::randn(0f32, 1., (1, 32), &device)?;
//!
//! // For one shape. Inputs and outputs may be several: (Tensor, Tensor), Vec<Tensor> and so on.
//! let graph = Graphed::new(&device, &[&example], |inputs| model.forward(&inputs[0]))?;
//! let x = Tensor::randn(0f32, 1., (1, 32), &device)?;
//! let y: Tensor = graph.run(&[&x])?;
//! assert_eq!(y.dims(), [1, 10]);
//!
//! // For the shapes that come, the last 16 of them: again a Module.
//! let graphs = GraphedModule::of(&device, model.clone());
//! for rows in [1, 8, 1] {
//!     let x = Tensor::randn(0f32, 1., (rows, 32), &device)?;
//!     assert_eq!(graphs.forward(&x)?.dims(), [rows, 10]);
//! }
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! # What is recorded
//!
//! The function runs twice as it is, which loads kernels and fills candle's caches; the two runs must give the same bits. It
//! runs a third time while its stream is recorded, when nothing is computed. Then the recording is launched, and its outputs must
//! be those of the plain runs (to rounding: libraries may choose other kernels while they are recorded). So the function is
//! called three times for each recording, four times where kernels are folded (seven in the case that the next section
//! names), and never again.
//!
//! A run copies the inputs into the recording's own tensors, launches, and copies the outputs into fresh tensors: those are
//! contiguous, carry no gradient, and stay valid for as long as they are held. Inputs may have any strides.
//!
//! Weights are read where they lie. One that is updated in place, as `Var::set` and candle's optimisers do, is seen by the next
//! run. One that is replaced by another tensor is not: the recording would read where the old one was, so make a new recording.
//! The same holds for copies that a layer made of its weights before it was recorded, as [`crate::Linear::prepare`] does.
//!
//! # What is folded
//!
//! Candle adds a bias, scales, activates and adds a residual with a kernel each. In a recording, products of this crate's
//! kernels, under `matmul_override` or in its own layers, do that themselves, as long as it goes
//! `activation(α·A·B + bias) + residual` or `· residual`: a row that is added to all rows, a number that is multiplied with, ReLU,
//! both GELUs, SiLU, tanh or sigmoid, another tensor that is added or multiplied with. The kernel must come right after the
//! product, and nothing else may read what is in between, outputs included. The results then differ by rounding: with numbers
//! of 16 bits, what is in between is no longer rounded. A replay must be as close to the plain runs as any other; where one is not,
//! the function is recorded as it is, which takes three more calls. So are all functions with [`Options::fold`] off. It needs a
//! driver of CUDA 12.4 or later. [`Graphed::folded`] counts the kernels.
//!
//! # When not to use it
//!
//! - A function whose work depends on more than its inputs' shapes and values on the device: one that counts steps on the
//!   host, grows a cache, draws random numbers, or looks at a tensor on the host to decide what to do. Most of it is found and
//!   refused, with the reason. Which branch a recording takes is decided by the example's inputs.
//! - Training: there are no gradients through a run.
//! - Shapes that change with each call: a recording costs three runs and more.
//! - Models that keep the GPU busy anyway: a long prefill gains nothing, and inputs and outputs are copied once more.
//!
//! What a recording cannot hold is refused when it is made: reading a tensor on the host (`to_vec1`, `to_scalar`),
//! `synchronize`, tensors of more than 4096 bytes made from the host's memory (masks, `arange`). Make such tensors
//! once, before, or pass them as inputs. The stream can be used as before afterwards. With [`Options::or_plainly`] the function
//! is then called as it is instead.
//!
//! # Threads, streams and devices
//!
//! A recording can be made in one thread and run in others; runs of one recording follow each other on the device. Different
//! recordings run at the same time if their streams differ: those of candle's default stream in different threads do.
//! Inputs must be ready on the stream of the thread that runs, as for any operation of candle.
//!
//! While a function is being recorded, cudarc tracks no events for its device (it is turned on again afterwards, if it was on).
//! So no other thread should work on other streams of that `Device` meanwhile; and where threads share a stream
//! (`Device::new_cuda_with_stream`), no other thread should use it but for runs of recordings, which wait. Candle's default,
//! `Device::new_cuda`, has a stream for each thread, and needs no such care.
//!
//! Candle keeps small tensors that a recording makes from the host's memory for as long as the thread lives that recorded it. When
//! that thread has ended, the next run makes the recording anew.
//!
//! Within a function that is being recorded, runs of other recordings call their functions, so that these become part of it.

#[cfg(any(feature = "cuda", test))]
mod census;
#[cfg(any(feature = "cuda", test))]
mod compare;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // graphs are changed there only
mod fold;
mod lru;
#[cfg(feature = "cuda")]
mod nodes;
mod outputs;
#[cfg(any(feature = "cuda", test))]
mod reason;
#[cfg(feature = "cuda")]
mod record;
mod signature;

use candle_core::{bail, Device, Module, Result, Tensor};
use lru::Lru;
use outputs::Failure;
#[cfg(feature = "cuda")]
use record::{is_recorded_now, record, Recording};
use signature::Signature;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(not(feature = "cuda"))]
use without_cuda::{is_recorded_now, record, Recording};

pub use outputs::Outputs;

/// So many recordings a [`GraphedModule`] keeps unless it is told otherwise.
pub const DEFAULT_CAPACITY: usize = 16;

/// How recordings are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    or_plainly: bool,
    capacity: usize,
    fold: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            or_plainly: false,
            capacity: DEFAULT_CAPACITY,
            fold: true,
        }
    }
}

impl Options {
    /// A function that cannot be recorded is an error; [`DEFAULT_CAPACITY`] recordings are kept; kernels are folded.
    pub fn new() -> Self {
        Options::default()
    }

    /// Whether a function that cannot be recorded is called as it is instead, as it is on devices without CUDA. Its own errors
    /// stay errors. To find that out it is called up to three times, or seven where kernels are [folded](Options::fold), which a
    /// function that keeps a state will notice.
    pub fn or_plainly(mut self, or_plainly: bool) -> Self {
        self.or_plainly = or_plainly;
        self
    }

    /// How many recordings a [`GraphedModule`] keeps, one at least: of more, the one that was not used for the longest goes.
    pub fn capacity(mut self, recordings: usize) -> Self {
        self.capacity = recordings.max(1);
        self
    }

    /// Whether this crate's products do the work of candle's element-wise kernels after them, as the
    /// [module](self#what-is-folded) says.
    pub fn fold(mut self, fold: bool) -> Self {
        self.fold = fold;
        self
    }
}

/// A function of tensors, recorded for inputs of one shape and dtype each. See the [module](self).
pub struct Graphed<F, O> {
    device: Device,
    signature: Signature,
    slot: Slot,
    options: Options,
    // After the slot: a recording reads what the function owns, and goes first.
    function: F,
    outputs: PhantomData<fn() -> O>,
}

impl<F: Fn(&[Tensor]) -> Result<O>, O: Outputs> Graphed<F, O> {
    /// Records `function` for inputs with the shapes and dtypes of `example`, whose values it is tried with.
    ///
    /// # Errors
    ///
    /// Those of `function`; if it cannot be recorded, why, and what to do; inputs that are not on `device`; a `device` without
    /// CUDA.
    pub fn new<T: AsRef<Tensor>>(device: &Device, example: &[T], function: F) -> Result<Self> {
        Graphed::with(Options::new(), device, example, function)
    }

    /// [`Graphed::new`] with other options.
    ///
    /// # Errors
    ///
    /// As there. With [`Options::or_plainly`], not because `function` cannot be recorded.
    pub fn with<T: AsRef<Tensor>>(options: Options, device: &Device, example: &[T], function: F) -> Result<Self> {
        let example = on_device(device, example)?;
        let graphed = Graphed {
            device: device.clone(),
            signature: Signature::of(&example),
            slot: Slot::default(),
            options,
            function,
            outputs: PhantomData,
        };
        graphed.slot.prepare(device, options, &graphed.function, &example)?;
        Ok(graphed)
    }

    /// The function's outputs for these inputs, in fresh tensors.
    ///
    /// # Errors
    ///
    /// Inputs with other shapes or dtypes than those that were recorded, or that are not on its device; what CUDA reports.
    pub fn run<T: AsRef<Tensor>>(&self, inputs: &[T]) -> Result<O> {
        if !self.signature.is_of(inputs) {
            bail!(
                "this graph was recorded for {} and cannot run with {}: record another one, or use a GraphedModule, which \
                 keeps one for each shape",
                self.signature,
                Signature::of(inputs)
            );
        }
        let inputs = on_device(&self.device, inputs)?;
        match is_inside_a_recording(&self.device)? {
            true => (self.function)(&inputs),
            false => self.slot.run(&self.device, self.options, &self.function, &inputs).0,
        }
    }

    /// Whether a run replays a recording.
    pub fn is_recorded(&self) -> bool {
        self.slot.why_plainly().is_none()
    }

    /// How many of candle's kernels the recording's products do the work of.
    pub fn folded(&self) -> usize {
        self.slot.folded()
    }

    /// Why the function is called as it is, where [`Options::or_plainly`] allows that; `None`: a run replays a recording.
    pub fn why_plainly(&self) -> Option<String> {
        self.slot.why_plainly()
    }
}

impl<F, O> fmt::Debug for Graphed<F, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Graphed");
        text.field("device", &self.device);
        text.field("inputs", &format_args!("{}", self.signature));
        text.finish_non_exhaustive()
    }
}

/// A function of tensors with a recording for each of the input shapes and dtypes that it meets. See the [module](self).
///
/// It is a [`Module`] if the function takes one tensor and gives one.
pub struct GraphedModule<F, O> {
    device: Device,
    slots: Mutex<Lru<Signature, Arc<Slot>>>,
    options: Options,
    // After the slots, as in `Graphed`.
    function: F,
    outputs: PhantomData<fn() -> O>,
}

impl<F: Fn(&[Tensor]) -> Result<O>, O: Outputs> GraphedModule<F, O> {
    /// Records nothing yet: a run with inputs of new shapes or dtypes does.
    pub fn new(device: &Device, function: F) -> Self {
        GraphedModule::with(Options::new(), device, function)
    }

    /// [`GraphedModule::new`] with other options.
    pub fn with(options: Options, device: &Device, function: F) -> Self {
        GraphedModule {
            device: device.clone(),
            slots: Mutex::new(Lru::new(options.capacity)),
            options,
            function,
            outputs: PhantomData,
        }
    }

    /// The function's outputs for these inputs, in fresh tensors.
    ///
    /// # Errors
    ///
    /// Those of [`Graphed::new`], when it meets new shapes, and of [`Graphed::run`]. What was not recorded is tried again with
    /// the next run.
    pub fn run<T: AsRef<Tensor>>(&self, inputs: &[T]) -> Result<O> {
        let inputs = on_device(&self.device, inputs)?;
        // Another thread may hold a slot and wait until this recording is done, so no slot is waited for, and none goes.
        if is_inside_a_recording(&self.device)? {
            return (self.function)(&inputs);
        }
        let (slot, gone) = self.slots().get_or_make(
            |signature| signature.is_of(&inputs),
            || (Signature::of(&inputs), Arc::default()),
        );
        // Waits for its last run: without the lock.
        drop(gone);
        let (run, kept) = slot.run(&self.device, self.options, &self.function, &inputs);
        if !kept {
            self.slots().remove(|other| Arc::ptr_eq(other, &slot));
        }
        run
    }

    /// How many recordings there are.
    pub fn recordings(&self) -> usize {
        self.kept().iter().filter(|slot| slot.is_recorded()).count()
    }

    /// How many of candle's kernels the products of all recordings do the work of.
    pub fn folded(&self) -> usize {
        self.kept().iter().map(|slot| slot.folded()).sum()
    }

    /// The places for recordings. What they hold may be in use for long: without the lock.
    fn kept(&self) -> Vec<Arc<Slot>> {
        self.slots().values().cloned().collect()
    }

    /// Why the function is called as it is for such inputs, where [`Options::or_plainly`] allows that; `None`: it is not.
    pub fn why_plainly<T: AsRef<Tensor>>(&self, inputs: &[T]) -> Option<String> {
        let signature = Signature::of(inputs);
        let slot = self.slots().find(|kept| *kept == signature)?;
        slot.why_plainly()
    }

    /// Forgets all recordings: after a weight was replaced, for one.
    pub fn clear(&self) {
        let gone = self.slots().clear();
        drop(gone);
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, Lru<Signature, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Recordings of a module, by its input's shape and dtype.
impl GraphedModule<(), Tensor> {
    /// [`GraphedModule::new`] for a module. Candle's layers are cheap to clone: weights are shared.
    pub fn of<M: Module>(device: &Device, module: M) -> GraphedModule<impl Fn(&[Tensor]) -> Result<Tensor>, Tensor> {
        GraphedModule::of_with(Options::new(), device, module)
    }

    /// [`GraphedModule::of`] with other options.
    pub fn of_with<M: Module>(
        options: Options,
        device: &Device,
        module: M,
    ) -> GraphedModule<impl Fn(&[Tensor]) -> Result<Tensor>, Tensor> {
        GraphedModule::with(options, device, move |inputs: &[Tensor]| match inputs {
            [x] => module.forward(x),
            _ => bail!("a module takes one input, not {}", inputs.len()),
        })
    }
}

impl<F: Fn(&[Tensor]) -> Result<Tensor>> Module for GraphedModule<F, Tensor> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(&[x])
    }
}

impl<F, O> fmt::Debug for GraphedModule<F, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("GraphedModule");
        text.field("device", &self.device);
        text.field("options", &self.options);
        text.finish_non_exhaustive()
    }
}

/// The tensors, if all of them are on this device.
fn on_device<T: AsRef<Tensor>>(device: &Device, tensors: &[T]) -> Result<Vec<Tensor>> {
    let tensors = tensors.iter().map(|tensor| tensor.as_ref().clone()).enumerate();
    let checked = tensors.map(|(i, tensor)| match tensor.device().same_device(device) {
        true => Ok(tensor),
        false => bail!(
            "input {i} is on {:?}, and the graph on {device:?}: copy it there with to_device, before the run",
            tensor.device()
        ),
    });
    checked.collect()
}

/// A place for one recording.
#[derive(Default)]
struct Slot(Mutex<State>);

#[derive(Default)]
enum State {
    #[default]
    Empty,
    Recorded(Recording),
    /// Why not.
    Plainly(String),
}

impl State {
    /// Records if that was not done.
    fn prepare<O: Outputs>(
        &mut self,
        device: &Device,
        options: Options,
        function: &impl Fn(&[Tensor]) -> Result<O>,
        inputs: &[Tensor],
    ) -> Result<()> {
        if !matches!(self, State::Empty) {
            return Ok(());
        }
        if Inside::is() {
            bail!("a graph cannot be recorded within a function that is being recorded: make it before");
        }
        let recorded = {
            let _inside = Inside::begin();
            record(device, inputs, options.fold, function)
        };
        *self = match recorded {
            Ok(recording) => State::Recorded(recording),
            Err(Failure::Function(error)) => return Err(error),
            Err(Failure::NotRecordable(why)) if options.or_plainly => State::Plainly(why),
            Err(Failure::NotRecordable(why)) => bail!("the function cannot be recorded as a CUDA graph: {why}"),
        };
        Ok(())
    }

    /// The outputs of a replay, after recording if that was not done; `None`: the function is called as it is.
    fn replay<O: Outputs>(
        &mut self,
        device: &Device,
        options: Options,
        function: &impl Fn(&[Tensor]) -> Result<O>,
        inputs: &[Tensor],
    ) -> Result<Option<Vec<Tensor>>> {
        loop {
            self.prepare(device, options, function, inputs)?;
            let replayed = match self {
                State::Recorded(recording) => recording.replay(device, inputs)?,
                State::Empty | State::Plainly(_) => return Ok(None),
            };
            if replayed.is_some() {
                return Ok(replayed);
            }
            // Its thread has ended; that of the next one is this.
            *self = State::Empty;
        }
    }
}

impl Slot {
    /// Records if that was not done.
    ///
    /// # Errors
    ///
    /// Those of [`Graphed::with`].
    fn prepare<O: Outputs>(
        &self,
        device: &Device,
        options: Options,
        function: &impl Fn(&[Tensor]) -> Result<O>,
        inputs: &[Tensor],
    ) -> Result<()> {
        self.state().prepare(device, options, function, inputs)
    }

    /// The function's outputs, and whether there is something in this place afterwards. Not [inside of a
    /// recording](is_inside_a_recording): this waits for the last run.
    fn run<O: Outputs>(
        &self,
        device: &Device,
        options: Options,
        function: &impl Fn(&[Tensor]) -> Result<O>,
        inputs: &[Tensor],
    ) -> (Result<O>, bool) {
        let mut state = self.state();
        let replayed = state.replay(device, options, function, inputs);
        let kept = !matches!(*state, State::Empty);
        drop(state);
        let outputs = match replayed {
            Ok(Some(outputs)) => O::from_tensors(outputs),
            Ok(None) => function(inputs),
            Err(error) => Err(error),
        };
        (outputs, kept)
    }

    fn is_recorded(&self) -> bool {
        matches!(*self.state(), State::Recorded(_))
    }

    fn folded(&self) -> usize {
        match &*self.state() {
            State::Recorded(recording) => recording.folded(),
            State::Empty | State::Plainly(_) => 0,
        }
    }

    fn why_plainly(&self) -> Option<String> {
        match &*self.state() {
            State::Plainly(why) => Some(why.clone()),
            _ => None,
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    static RECORDS: Cell<bool> = const { Cell::new(false) };
}

/// While this lives, the thread calls a function to record it. Holds what was so before.
struct Inside(bool);

impl Inside {
    fn begin() -> Self {
        Inside(RECORDS.replace(true))
    }

    fn is() -> bool {
        RECORDS.get()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        RECORDS.set(self.0);
    }
}

/// Whether the thread records a function, or what it queues is captured by others: then functions are called as they are.
fn is_inside_a_recording(device: &Device) -> Result<bool> {
    Ok(Inside::is() || is_recorded_now(device)?)
}

/// What a build without CUDA has instead: nothing can be recorded.
#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use super::outputs::{Failure, Outputs};
    use candle_core::{Device, Result, Tensor};
    use std::convert::Infallible;

    pub(super) struct Recording(Infallible);

    impl Recording {
        pub(super) fn folded(&self) -> usize {
            match self.0 {}
        }

        pub(super) fn replay(&mut self, _: &Device, _: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
            match self.0 {}
        }
    }

    pub(super) fn record<O: Outputs>(
        device: &Device,
        _: &[Tensor],
        _: bool,
        _: impl Fn(&[Tensor]) -> Result<O>,
    ) -> std::result::Result<Recording, Failure> {
        Err(Failure::NotRecordable(format!(
            "{device:?} is no CUDA device, and this build has none: it needs the feature cuda"
        )))
    }

    pub(super) fn is_recorded_now(_: &Device) -> Result<bool> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
