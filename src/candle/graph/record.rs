//! Recordings: what a function queues on candle's stream, as a CUDA graph between an input's place and an output's.

use super::census::{Census, KEPT_BY_THREAD_BYTES};
use super::compare::{deviation, difference};
use super::fold::{fold, Folded};
use super::nodes::{kind, nodes, Copy};
use super::outputs::{Failure, Outputs};
use super::reason::explain;
use crate::device::{RelaxedCapture, CAPTURES};
use crate::gemm::launch::journal::{Journal, Launched};
use candle_core::{CudaDevice, Device, Error, Result, Tensor, Var};
use cudarc::driver::{result, sys, CudaContext, CudaEvent, CudaStream, DriverError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::thread::ThreadId;

/// `CU_STREAM_PER_THREAD`: candle's default stream, another one in each thread.
const PER_THREAD: usize = 2;
/// The streams below this handle are the legacy default stream, which cannot be recorded.
const LEGACY_BELOW: usize = PER_THREAD;

/// A stream that threads share must not be used by another one while it is recorded: whatever that queues would be recorded too.
/// Whoever records holds this alone.
static SHARED_STREAMS: RwLock<()> = RwLock::new(());

/// A recorded graph, the places of its inputs and outputs, and when its last replay ends.
pub(super) struct Recording {
    inputs: Vec<Var>,
    outputs: Vec<Var>,
    executable: Executable,
    /// On the stream after the last replay.
    done: CudaEvent,
    /// Who replayed last.
    last: ThreadId,
    /// The thread that recorded this, if the graph reads what that keeps.
    needs: Option<Arc<ThreadLife>>,
    folded: usize,
}

/// Runs `function` twice, compares, records it, folds kernels into products if it is to `fold`, replays it and compares again.
/// Where what was folded is in the way, the function is recorded as it is.
pub(super) fn record<O: Outputs>(
    device: &Device,
    inputs: &[Tensor],
    to_fold: bool,
    function: impl Fn(&[Tensor]) -> Result<O>,
) -> std::result::Result<Recording, Failure> {
    let mut has_folded = false;
    match record_once(device, inputs, to_fold.then_some(&mut has_folded), &function) {
        Err(_) if has_folded => record_once(device, inputs, None, &function),
        recorded => recorded,
    }
}

/// The same at one try. With `has_folded` kernels are folded, and it says whether any were, or were to be.
fn record_once<O: Outputs>(
    device: &Device,
    inputs: &[Tensor],
    has_folded: Option<&mut bool>,
    function: impl Fn(&[Tensor]) -> Result<O>,
) -> std::result::Result<Recording, Failure> {
    let (cuda, stream) = recordable(device)?;
    // Candle then keeps what it copies from the host in the plain runs (strides of broadcast operands, small tensors), and
    // finds it while it is recorded.
    let _kept = cuda.enable_cuda_graph_htod_cache();
    // What candle keeps for this thread exists from here on, before `THIS_THREAD`.
    drop(cuda.clone_htod(&[0u8])?);

    let places = places_of(inputs)?;
    let detached: Vec<Tensor> = places.iter().map(Var::as_detached_tensor).collect();
    let run = || Ok::<_, Error>(detach(function(&detached)?.into_tensors()));
    let first = run_plainly(run)?;
    // Their copies load the kernels and strides that the recording needs.
    let results = places_of(&first)?;
    stream
        .synchronize()
        .map_err(say("running a function before it is recorded"))?;

    let captured = |left_out| capture(&stream, &results, left_out, run);
    let (recorded, census, folded) = capture_folded(&stream, has_folded, captured)?;
    let executable = recorded.instantiate().map_err(say("making a graph ready to run"))?;
    executable
        .switch_off(&folded.idle)
        .map_err(say("switching off kernels of a graph"))?;
    let needs = census.needs_its_thread().then(|| ThreadLife::needed(stream.context()));
    executable.launch(&stream).map_err(say("launching a graph"))?;
    let done = stream.record_event(None).map_err(say("recording the end of a graph"))?;
    let recording = Recording {
        inputs: places,
        outputs: results,
        executable,
        done,
        last: std::thread::current().id(),
        needs,
        folded: folded.kernels,
    };
    // After the launch what was kept has memory, so that its owner can go on with it and free it.
    if let Some(text) = census.keeps() {
        return Err(Failure::NotRecordable(text));
    }
    check_replay(&recording, &first)?;
    Ok(recording)
}

/// The device and its stream, if that can be recorded. Its context is then current.
fn recordable(device: &Device) -> std::result::Result<(&CudaDevice, Arc<CudaStream>), Failure> {
    let Device::Cuda(cuda) = device else {
        return Err(Failure::NotRecordable(format!("{device:?} is no CUDA device")));
    };
    let stream = cuda.cuda_stream();
    let context = stream.context();
    if (stream.cu_stream() as usize) < LEGACY_BELOW {
        let text = "CUDA's legacy default stream cannot be recorded: make the device with Device::new_cuda";
        return Err(Failure::NotRecordable(text.into()));
    }
    if !context.has_async_alloc() {
        let text = "the device has no memory pools, so tensors cannot be made while it is recorded";
        return Err(Failure::NotRecordable(text.into()));
    }
    context
        .bind_to_thread()
        .map_err(say("making a GPU's context current"))?;
    Ok((cuda, stream))
}

/// A recording's own tensors, with the values of these.
fn places_of(tensors: &[Tensor]) -> Result<Vec<Var>> {
    let places = tensors.iter().map(|tensor| Var::from_tensor(&tensor.detach()));
    places.collect()
}

/// The outputs of a plain run, if those of another one are the same.
fn run_plainly(run: impl Fn() -> Result<Vec<Tensor>>) -> std::result::Result<Vec<Tensor>, Failure> {
    let first = run()?;
    let second = run()?;
    match difference(&first, &second)? {
        None => Ok(first),
        Some(text) => Err(Failure::NotRecordable(format!(
            "two runs with the same inputs gave different outputs ({text}): it keeps a state on the host, such as a count of \
             steps or a growing cache, or draws random numbers, as dropout does; a replay would repeat one step for ever. Pass \
             the state as an input"
        ))),
    }
}

/// Records a run and the copies of its outputs to their `places`. Comes with the products that it launched, and without those of these
/// numbers, which were `left_out`.
fn capture(
    stream: &Arc<CudaStream>,
    places: &[Var],
    left_out: Vec<usize>,
    run: impl Fn() -> Result<Vec<Tensor>>,
) -> std::result::Result<(Recorded, Vec<Launched>), Failure> {
    // Event tracking is the device's, too, and whoever turns it off turns it on again.
    let _one = CAPTURES.lock().unwrap_or_else(PoisonError::into_inner);
    let _alone = shared(stream).then(|| SHARED_STREAMS.write().unwrap_or_else(PoisonError::into_inner));
    let capture = Capture::begin(stream).map_err(say("beginning to record a graph"))?;
    let journal = Journal::leaving_out(left_out);
    let done = run().and_then(|outputs| {
        if outputs.len() != places.len() {
            candle_core::bail!("{} outputs, and {} before", outputs.len(), places.len());
        }
        let mut pairs = places.iter().zip(&outputs);
        pairs.try_for_each(|(place, output)| place.set(output))
    });
    let launched = journal.end();
    let (recorded, left) = match (capture.end(), &done) {
        (Ok(ended), _) => ended,
        // The function's own error says more than that its recording was given up.
        (Err(_), Err(error)) => return Err(Failure::NotRecordable(explain(error))),
        (Err(error), Ok(())) => return Err(Failure::NotRecordable(explain(&error))),
    };
    if let Err(error) = done.and_then(|()| left.map_err(say("freeing a tensor"))) {
        let mut text = explain(&error);
        if let Err(error) = recorded.settle(stream) {
            text += &format!("; what it keeps from the recording has no memory: {error}");
        }
        return Err(Failure::NotRecordable(text));
    }
    Ok((recorded, launched))
}

/// What `capture` records, with kernels folded into its products where there is a `has_folded`, which says whether any were, or were to
/// be. Where some were, it records once more.
fn capture_folded(
    stream: &CudaStream,
    has_folded: Option<&mut bool>,
    capture: impl Fn(Vec<usize>) -> std::result::Result<(Recorded, Vec<Launched>), Failure>,
) -> std::result::Result<(Recorded, Census, Folded), Failure> {
    let (mut recorded, launched) = capture(Vec::new())?;
    let mut census = replayable(&recorded)?;
    let mut folded = Folded::default();
    if let Some(has_folded) = has_folded.filter(|_| census.keeps().is_none()) {
        let done = recorded.fold(&launched, stream);
        *has_folded = done.as_ref().map_or(true, |folded| folded.kernels > 0);
        folded = done.map_err(Error::wrap)?;
        if folded.kernels > 0 {
            // Once more without the products that are computed at other places now.
            let (again, launched) = capture(folded.products)?;
            recorded = again;
            census = replayable(&recorded)?;
            folded = recorded.fold(&launched, stream).map_err(Error::wrap)?;
        }
    }
    Ok((recorded, census, folded))
}

/// What there is in a graph, if a replay does not depend on the host.
fn replayable(recorded: &Recorded) -> std::result::Result<Census, Failure> {
    let census = recorded.census().map_err(say("looking through a graph"))?;
    match census.reads_the_host() {
        Some(text) => Err(Failure::NotRecordable(text)),
        None => Ok(census),
    }
}

/// Compares what a replay has left in its places with the outputs of a `plain` run.
fn check_replay(recording: &Recording, plain: &[Tensor]) -> std::result::Result<(), Failure> {
    let replayed: Vec<Tensor> = recording.outputs.iter().map(Var::as_detached_tensor).collect();
    match deviation(plain, &replayed)? {
        None => Ok(()),
        Some(text) => Err(Failure::NotRecordable(format!(
            "the replay of its recording gives other outputs than the function ({text}): it does something else from one call \
             to the next, or part of its work is not queued on the device's stream"
        ))),
    }
}

/// The outputs without what led to them.
fn detach(tensors: Vec<Tensor>) -> Vec<Tensor> {
    tensors.iter().map(Tensor::detach).collect()
}

/// Whether threads share this stream.
fn shared(stream: &CudaStream) -> bool {
    stream.cu_stream() as usize != PER_THREAD
}

fn say(doing: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| Error::wrap(crate::error::Error::driver(doing, error))
}

/// Whether this thread's stream of `device` is being recorded, by whomever. Of a stream that threads share this does not tell:
/// a run waits there until others have recorded.
pub(super) fn is_recorded_now(device: &Device) -> Result<bool> {
    let Device::Cuda(cuda) = device else { return Ok(false) };
    let stream = cuda.cuda_stream();
    if shared(&stream) {
        return Ok(false);
    }
    let status = stream.capture_status();
    let status = status.map_err(say("asking whether a stream is recorded"))?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

impl Recording {
    /// How many kernels of others the products have taken over.
    pub(super) fn folded(&self) -> usize {
        self.folded
    }

    /// Copies the inputs into place, launches and copies the outputs; `None` if the thread has ended that keeps what the graph
    /// reads.
    pub(super) fn replay(&mut self, device: &Device, inputs: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
        // The thread cannot end while this is queued.
        let alive = self.needs.as_ref().map(|life| life.alive());
        if alive.as_ref().is_some_and(|alive| !**alive) {
            return Ok(None);
        }
        let stream = device.as_cuda_device()?.cuda_stream();
        let _running = shared(&stream).then(|| SHARED_STREAMS.read().unwrap_or_else(PoisonError::into_inner));
        let thread = std::thread::current().id();
        if self.last != thread && !shared(&stream) {
            stream
                .wait(&self.done)
                .map_err(say("waiting for another thread's replay"))?;
        }
        self.last = thread;
        let queued = self.queue(&stream, inputs);
        // Also after an error: what was queued uses the places.
        let marked = self.done.record(&stream).map_err(say("recording the end of a graph"));
        let outputs = queued?;
        marked?;
        Ok(Some(outputs))
    }

    fn queue(&self, stream: &CudaStream, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        for (place, input) in self.inputs.iter().zip(inputs) {
            place.set(input)?;
        }
        self.executable.launch(stream).map_err(say("launching a graph"))?;
        let outputs = self.outputs.iter().map(|place| place.as_detached_tensor().copy());
        outputs.collect()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Places and graph are in use until then. Whatever this thread records meanwhile does not forbid to wait.
        let context = self.done.context();
        let relaxed = RelaxedCapture::begin();
        context.record_err(self.done.synchronize());
        context.record_err(relaxed.map(drop));
    }
}

/// A stream while it is recorded. Dropped, it ends that and forgets what was recorded.
struct Capture<'a> {
    stream: &'a Arc<CudaStream>,
    tracked: bool,
    begun: bool,
}

impl<'a> Capture<'a> {
    fn begin(stream: &'a Arc<CudaStream>) -> std::result::Result<Self, DriverError> {
        let context = stream.context();
        // An error that a drop has left is not the recording's.
        context.check_err()?;
        let mut capture = Capture {
            stream,
            tracked: context.is_event_tracking(),
            begun: false,
        };
        // SAFETY: only until this is dropped. What is made meanwhile belongs to the recording, which uses one stream, and is
        // gone before. (The documentation of the module asks other threads to leave other streams of this device alone.)
        unsafe { context.disable_event_tracking() };
        // Of this thread only: others may go on.
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        capture.begun = true;
        Ok(capture)
    }

    /// What was recorded, and the error that a drop has left meanwhile: it must not meet whoever comes next.
    fn end(mut self) -> std::result::Result<(Recorded, std::result::Result<(), DriverError>), DriverError> {
        let graph = self.stop();
        let context = self.stream.context();
        let left = context.check_err();
        let recorded = Recorded {
            graph: graph?,
            context: context.clone(),
        };
        Ok((recorded, left))
    }

    fn stop(&mut self) -> std::result::Result<sys::CUgraph, DriverError> {
        self.begun = false;
        // SAFETY: the stream is alive, and this thread has begun to record it.
        unsafe { result::stream::end_capture(self.stream.cu_stream()) }
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let context = self.stream.context();
        if self.begun {
            if let Ok(graph) = self.stop() {
                if !graph.is_null() {
                    // SAFETY: nobody else knows of the graph.
                    context.record_err(unsafe { result::graph::destroy(graph) });
                }
            }
        }
        if self.tracked {
            // SAFETY: tensors that were made meanwhile, without events, were the recording's.
            unsafe { context.enable_event_tracking() };
        }
    }
}

/// A graph as it was recorded.
struct Recorded {
    graph: sys::CUgraph,
    context: Arc<CudaContext>,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if !self.graph.is_null() {
            self.context.record_err(self.context.bind_to_thread());
            // SAFETY: this is the graph's only owner.
            self.context.record_err(unsafe { result::graph::destroy(self.graph) });
        }
    }
}

impl Recorded {
    fn census(&self) -> std::result::Result<Census, DriverError> {
        let mut census = Census::default();
        // SAFETY: the graph is alive.
        unsafe { count(self.graph, &mut census) }?;
        Ok(census)
    }

    /// Folds kernels into the products that were `launched` on this stream while this was recorded.
    ///
    /// # Errors
    ///
    /// Those of [`fold`].
    fn fold(&self, launched: &[Launched], stream: &CudaStream) -> crate::error::Result<Folded> {
        // SAFETY: the graph is alive, and nothing was made of it. The stream is no longer recorded, and its context is the one that
        // it was recorded in, which is current.
        unsafe { fold(self.graph, launched, stream.cu_stream()) }
    }

    /// Runs what was recorded of a function that has failed since, if it keeps some of it: its tensors then have memory, and can
    /// be freed.
    fn settle(self, stream: &CudaStream) -> std::result::Result<(), DriverError> {
        let census = self.census()?;
        if census.keeps().is_none() || census.reads_the_host().is_some() {
            return Ok(());
        }
        let executable = self.instantiate()?;
        executable.launch(stream)?;
        stream.synchronize()
    }

    fn instantiate(self) -> std::result::Result<Executable, DriverError> {
        self.context.bind_to_thread()?;
        // SAFETY: the graph is alive. All that it allocates it frees, or it is launched once: no flag is needed.
        let executable = unsafe { result::graph::instantiate(self.graph, sys::CUgraphInstantiate_flags(0)) }?;
        let device = self.context.cu_device();
        *live().entry(device).or_default() += 1;
        Ok(Executable {
            executable,
            recorded: self,
        })
    }
}

/// Adds the nodes of a graph to the counts, and those of the graphs within.
///
/// # Safety
///
/// The graph must be alive.
unsafe fn count(graph: sys::CUgraph, census: &mut Census) -> std::result::Result<(), DriverError> {
    if graph.is_null() {
        return Ok(());
    }
    // SAFETY: the graph is alive, and so are its nodes.
    for node in unsafe { nodes(graph) }? {
        // SAFETY: as above.
        match unsafe { kind(node) }? {
            kind::MEMCPY => {
                // SAFETY: the node is a copy.
                let copy = unsafe { Copy::of(node) }?;
                census.from_host += usize::from(copy.from_host);
                census.to_host += usize::from(copy.to_host);
                census.small_copies += usize::from(copy.bytes <= KEPT_BY_THREAD_BYTES);
            }
            kind::HOST => census.host_calls += 1,
            kind::ALLOCATION => census.allocated += 1,
            kind::FREE => census.freed += 1,
            kind::GRAPH => {
                let mut within = std::ptr::null_mut();
                // SAFETY: the node is a graph, which lives as long as the one that it is part of.
                unsafe {
                    sys::cuGraphChildGraphNodeGetGraph(node, &mut within).result()?;
                    count(within, census)?;
                }
            }
            _ => (),
        }
    }
    Ok(())
}

/// A graph that can be launched.
struct Executable {
    executable: sys::CUgraphExec,
    recorded: Recorded,
}

// SAFETY: the driver allows the use of a graph from every thread, one at a time: a recording has it behind a lock, and gives out
// no reference.
unsafe impl Send for Executable {}

impl Executable {
    /// Lets kernels do nothing from now on.
    fn switch_off(&self, nodes: &[sys::CUgraphNode]) -> std::result::Result<(), DriverError> {
        for &node in nodes {
            // SAFETY: the graph is alive, and the node is a kernel of what it was made of, which is, too.
            unsafe { sys::cuGraphNodeSetEnabled(self.executable, node, 0) }.result()?;
        }
        Ok(())
    }

    fn launch(&self, stream: &CudaStream) -> std::result::Result<(), DriverError> {
        stream.context().bind_to_thread()?;
        // SAFETY: the graph is alive, and so is the stream. The function that was recorded, and with it all that it reads,
        // lives as long as the recording; inputs and outputs are part of the recording.
        unsafe { result::graph::launch(self.executable, stream.cu_stream()) }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let context = &self.recorded.context;
        context.record_err(context.bind_to_thread());
        // SAFETY: this is its only owner.
        context.record_err(unsafe { result::graph::exec_destroy(self.executable) });
        let device = context.cu_device();
        let mut live = live();
        let left = live.entry(device).or_default();
        *left = left.saturating_sub(1);
        if *left == 0 {
            // What graphs allocate the device keeps for the next one. While others live that is of use: they would have to
            // map their memory again. SAFETY: the device exists.
            context.record_err(unsafe { sys::cuDeviceGraphMemTrim(device) }.result());
        }
    }
}

/// How many graphs there are on each device.
fn live() -> std::sync::MutexGuard<'static, HashMap<sys::CUdevice, usize>> {
    static LIVE: OnceLock<Mutex<HashMap<sys::CUdevice, usize>>> = OnceLock::new();
    let live = LIVE.get_or_init(Mutex::default);
    live.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a thread still runs. When it ends, candle frees what it has kept for it.
struct ThreadLife {
    running: RwLock<bool>,
    contexts: Mutex<Vec<Weak<CudaContext>>>,
}

/// Ends the life of its thread.
struct Ends(Arc<ThreadLife>);

thread_local! {
    /// Made after candle's own, so that it is dropped before that: the last one goes first.
    static THIS_THREAD: Ends = Ends(Arc::new(ThreadLife {
        running: RwLock::new(true),
        contexts: Mutex::default(),
    }));
}

impl ThreadLife {
    /// That of this thread, which a recording in this context needs.
    fn needed(context: &Arc<CudaContext>) -> Arc<Self> {
        let life = THIS_THREAD.with(|ends| ends.0.clone());
        let mut contexts = life.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        let known = contexts
            .iter()
            .any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(context)));
        if !known {
            contexts.push(Arc::downgrade(context));
        }
        drop(contexts);
        life
    }

    /// Whether the thread runs, as it does while this is held.
    fn alive(&self) -> RwLockReadGuard<'_, bool> {
        self.running.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        *self.0.running.write().unwrap_or_else(PoisonError::into_inner) = false;
        // Replays that are queued still read what is freed next. To wait for them would break off what another thread records.
        let _no_capture = CAPTURES.lock().unwrap_or_else(PoisonError::into_inner);
        let contexts = std::mem::take(&mut *self.0.contexts.lock().unwrap_or_else(PoisonError::into_inner));
        for context in contexts.iter().filter_map(Weak::upgrade) {
            let waited = context.synchronize();
            context.record_err(waited);
        }
    }
}
