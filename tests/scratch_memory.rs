//! Where launches find their scratch memory: inside captures, in graphs of graphs, on full cards, on many streams, and where few
//! blocks run at a time. GPU tests; each runs in a process of its own, for what a process has allocated before would help.
#![cfg(feature = "cuda")]

#[path = "common/alone.rs"]
mod alone;
mod common;

use alone::alone;
use candle_sgemm::device::{CurrentContext, DeviceInfo};
use candle_sgemm::gemm::kernel::costs::Costs;
use candle_sgemm::gemm::launch::args::Addresses;
use candle_sgemm::gemm::launch::launch;
use candle_sgemm::gemm::operands::Operands;
use candle_sgemm::gemm::{DType, ElementTypes, GemmProblem, OperandLayout, Plan, Precision, TABLE};
use common::{in_a_fresh_process, rng, stream_or_skip, uniform};
use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};
use cudarc::driver::{result, CudaSlice, CudaStream, DevicePtr};
use half::bf16;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// Rounding errors of a sum of k products, in units of ε·√k·Σ|a||b|.
const C0: f64 = 4.0;

/// A strict product of x (m × k) and the transpose of a weight (n × k), and what it must come to.
struct Product {
    problem: GemmProblem,
    /// The bytes of A and B.
    a: CudaSlice<u8>,
    b: CudaSlice<u8>,
    d: CudaSlice<f32>,
    /// The place, the value and the error bound of some elements.
    expected: Vec<(usize, f64, f64)>,
}

impl Product {
    fn new(stream: &Arc<CudaStream>, m: usize, n: usize, k: usize) -> Self {
        Self::of(stream, DType::F32, m, n, k)
    }

    /// Of factors of this type, FP32 or BF16; the result is FP32.
    fn of(stream: &Arc<CudaStream>, factors: DType, m: usize, n: usize, k: usize) -> Self {
        const CHECKED: usize = 500;
        let mut rng = rng((m * n + k) as u64);
        let rounded = |x: f64| match factors {
            DType::F32 => x as f32,
            _ => bf16::from_f64(x).to_f32(),
        };
        let mut random = |count: usize| (0..count).map(|_| rounded(uniform(&mut rng))).collect::<Vec<_>>();
        let (a, b) = (random(m * k), random(n * k));
        let elements = (0..m * n).step_by((m * n / CHECKED).max(1) | 1);
        let expected = elements.map(|at| {
            let (row, col) = (at / n, at % n);
            let products = (0..k).map(|i| a[row * k + i] as f64 * b[col * k + i] as f64);
            let (sum, magnitude) = products.fold((0.0, 0.0), |(sum, all): (f64, f64), x| (sum + x, all + x.abs()));
            (at, sum, C0 * f32::EPSILON as f64 * (k as f64).sqrt() * magnitude)
        });
        let mut problem = GemmProblem::new(m, n, k, OperandLayout::row_major(k), OperandLayout::col_major(k));
        problem.precision = Precision::Fp32Strict;
        problem.types = ElementTypes {
            a: factors,
            b: factors,
            ..problem.types
        };
        let bytes = |numbers: &[f32]| -> Vec<u8> {
            match factors {
                DType::F32 => numbers.iter().flat_map(|x| x.to_ne_bytes()).collect(),
                _ => numbers.iter().flat_map(|&x| bf16::from_f32(x).to_ne_bytes()).collect(),
            }
        };
        Product {
            problem,
            expected: expected.collect(),
            d: stream.clone_htod(&vec![f32::NAN; m * n]).unwrap(),
            a: stream.clone_htod(&bytes(&a)).unwrap(),
            b: stream.clone_htod(&bytes(&b)).unwrap(),
        }
    }

    /// The planner's choice among plans with a workspace.
    fn plan_with_a_workspace(&self) -> Plan {
        let device = *CurrentContext::get().unwrap().info();
        Plan::candidates(&self.problem.folded().unwrap(), &device, Costs::built_in(&device))
            .filter(|plan| plan.is_built(&device) && plan.workspace_bytes > 0)
            .min_by(|x, y| x.predicted_us.total_cmp(&y.predicted_us))
            .expect("this product has plans with a workspace")
    }

    fn at(&self, stream: &CudaStream) -> Addresses {
        Addresses::new(Operands {
            a: self.a.device_ptr(stream).0,
            b: self.b.device_ptr(stream).0,
            d: self.d.device_ptr(stream).0,
            ..Operands::default()
        })
    }

    fn launch(&self, plan: &Plan, stream: &CudaStream) {
        // SAFETY: the operands were allocated for this problem, and live as long as this.
        unsafe { launch(plan, &self.at(stream), 1.0, 0.0, stream.cu_stream()) }.expect("launch");
    }

    fn poison(&mut self, stream: &Arc<CudaStream>) {
        let poison = vec![f32::NAN; self.problem.m * self.problem.n];
        stream.memcpy_htod(&poison, &mut self.d).unwrap();
    }

    fn check(&self, stream: &Arc<CudaStream>, what: &str) {
        let d = stream.clone_dtoh(&self.d).unwrap();
        for &(at, value, bound) in &self.expected {
            let off = (d[at] as f64 - value).abs();
            assert!(
                off <= bound,
                "{what}: element {at} is {}, not {value} (±{bound:e})",
                d[at]
            );
        }
    }
}

/// A graph that was captured, and is destroyed with this.
struct Graph(sys::CUgraph);

impl Graph {
    fn capture(stream: &CudaStream, work: impl FnOnce()) -> Self {
        // The strictest mode: it forbids unsafe calls to every thread.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: the stream is alive.
        unsafe { result::stream::begin_capture(stream.cu_stream(), mode) }.unwrap();
        work();
        // SAFETY: as above.
        Graph(unsafe { result::stream::end_capture(stream.cu_stream()) }.expect("the capture holds"))
    }

    fn executable(&self) -> Executable {
        let mut executable = null_mut();
        // SAFETY: the graph is alive, and the handle outlives the call.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, self.0, 0) }
            .result()
            .expect("the graph can be instantiated");
        Executable(executable)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is destroyed once.
        unsafe { sys::cuGraphDestroy(self.0) }.result().unwrap();
    }
}

struct Executable(sys::CUgraphExec);

impl Executable {
    fn launch(&self, stream: &CudaStream) {
        // SAFETY: both are alive.
        unsafe { sys::cuGraphLaunch(self.0, stream.cu_stream()) }
            .result()
            .unwrap();
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: the executable is destroyed once.
        unsafe { sys::cuGraphExecDestroy(self.0) }.result().unwrap();
    }
}

/// Runs `body` in a process of its own with the GPU's stream, if there is one; a capture there waits for no events of cudarc's.
fn on_a_fresh_gpu(test: &str, body: impl FnOnce(Arc<CudaStream>)) {
    // One at a time: one fills the card, and another counts what is free.
    let _alone = alone();
    let Some(stream) = stream_or_skip(test) else {
        return;
    };
    in_a_fresh_process(test, || {
        // SAFETY: what another stream is to see is waited for here.
        unsafe { stream.context().disable_event_tracking() };
        body(stream)
    });
}

#[test]
fn the_first_launch_of_a_process_can_be_captured() {
    on_a_fresh_gpu("the_first_launch_of_a_process_can_be_captured", |stream| {
        let mut product = Product::new(&stream, 16, 4096, 4096);
        let plan = product.plan_with_a_workspace();
        stream.synchronize().unwrap();
        let graph = Graph::capture(&stream, || product.launch(&plan, &stream));
        let executable = graph.executable();
        for replay in 0..3 {
            product.poison(&stream);
            executable.launch(&stream);
            product.check(&stream, &format!("replay {replay} of {plan}"));
        }
        // And what is not captured works as well after it.
        product.poison(&stream);
        product.launch(&plan, &stream);
        product.check(&stream, "after the capture");
    });
}

#[test]
fn a_graph_with_workspaces_can_be_part_of_another() {
    on_a_fresh_gpu("a_graph_with_workspaces_can_be_part_of_another", |stream| {
        let mut products =
            [(16, 4096, 4096), (512, 1000, 4096), (16, 768, 3072)].map(|(m, n, k)| Product::new(&stream, m, n, k));
        let plans = products.each_ref().map(Product::plan_with_a_workspace);
        stream.synchronize().unwrap();
        let part = Graph::capture(&stream, || {
            for (product, plan) in products.iter().zip(&plans) {
                product.launch(plan, &stream);
            }
        });
        let mut whole = Graph(null_mut());
        // SAFETY: the graphs are alive, and the handles outlive the calls.
        unsafe {
            sys::cuGraphCreate(&mut whole.0, 0).result().unwrap();
            let mut node = null_mut();
            sys::cuGraphAddChildGraphNode(&mut node, whole.0, null(), 0, part.0)
                .result()
                .expect("a graph with products can become a child");
        }
        let executables = [whole.executable(), part.executable(), part.executable()];
        // What the graph owns lives as long as what was made of it.
        drop((whole, part));
        for (i, executable) in executables.iter().enumerate() {
            for product in &mut products {
                product.poison(&stream);
            }
            executable.launch(&stream);
            for (product, plan) in products.iter().zip(&plans) {
                product.check(&stream, &format!("executable {i}, {plan}"));
            }
        }
    });
}

#[test]
fn graphs_give_their_memory_back() {
    on_a_fresh_gpu("graphs_give_their_memory_back", |stream| {
        let product = Product::new(&stream, 16, 4096, 14336);
        let plan = product.plan_with_a_workspace();
        let free_after = |rounds: usize| {
            for _ in 0..rounds {
                stream.synchronize().unwrap();
                let graph = Graph::capture(&stream, || product.launch(&plan, &stream));
                graph.executable().launch(&stream);
                stream.synchronize().unwrap();
            }
            stream.context().mem_get_info().unwrap().0
        };
        let (first, then) = (free_after(20), free_after(500));
        assert!(then + (4 << 20) > first, "{} bytes are lost", first - then);
    });
}

/// Takes device memory until at most so many bytes are free.
fn fill_up(stream: &Arc<CudaStream>, leave: usize) -> Vec<sys::CUdeviceptr> {
    let mut taken = Vec::new();
    let mut piece = 1usize << 36;
    while piece >= 1 << 20 {
        let (free, _) = stream.context().mem_get_info().unwrap();
        if free < leave + piece {
            piece /= 2;
            continue;
        }
        // SAFETY: the memory is not used.
        match unsafe { result::malloc_sync(piece) } {
            Ok(address) => taken.push(address),
            Err(_) => piece /= 2,
        }
    }
    taken
}

#[test]
fn a_full_card_still_multiplies() {
    on_a_fresh_gpu("a_full_card_still_multiplies", |stream| {
        let sizes = [
            (512, 14336, 4096),
            (16, 4096, 14336),
            (257, 4097, 1023),
            (4097, 129, 2047),
        ];
        let mut products = sizes.map(|(m, n, k)| Product::new(&stream, m, n, k));
        let plans = products.each_ref().map(Product::plan_with_a_workspace);
        // Modules and whatever else the driver wants is there before the card is full.
        for (product, plan) in products.iter_mut().zip(&plans) {
            let device = *CurrentContext::get().unwrap().info();
            let other = Plan::candidates(&product.problem.folded().unwrap(), &device, Costs::built_in(&device))
                .filter(|plan| plan.workspace_bytes == 0)
                .collect::<Vec<_>>();
            for plan in other {
                product.launch(&plan, &stream);
            }
            product.poison(&stream);
            println!("{plan}");
        }
        stream.synchronize().unwrap();
        let taken = fill_up(&stream, 1 << 20);
        for (product, plan) in products.iter().zip(&plans) {
            product.launch(plan, &stream);
            product.check(&stream, &format!("on a full card, {plan}"));
        }
        // A kernel that was asked for by name stays.
        let device = *CurrentContext::get().unwrap().info();
        for product in &products {
            for plan in waiting_plans(product, &device) {
                let Ok(named) = Plan::named(plan.kernel.name, &product.problem, &device, Costs::built_in(&device))
                else {
                    continue;
                };
                product.launch(&named, &stream);
                product.check(&stream, &format!("on a full card, {named}"));
            }
        }
        for address in taken {
            // SAFETY: nothing uses the memory.
            unsafe { result::free_sync(address) }.unwrap();
        }
        for (product, plan) in products.iter_mut().zip(&plans) {
            product.poison(&stream);
            product.launch(plan, &stream);
            product.check(&stream, &format!("with room again, {plan}"));
        }
    });
}

/// Numbers beyond 2³⁰ bytes of a workspace, and beyond 2³¹ of an operand.
#[test]
fn a_vocabulary_of_gigabytes_is_repacked() {
    on_a_fresh_gpu("a_vocabulary_of_gigabytes_is_repacked", |stream| {
        const PLANS: usize = 3;
        let device = *CurrentContext::get().unwrap().info();
        let (m, n, k) = (64, 250_002, 2_305);
        if device.scratch_bytes() < 4 * (n * (k + 64)) as u64 {
            println!(
                "skipped: the device keeps no more than {} bytes of scratch memory",
                device.scratch_bytes()
            );
            return;
        }
        let mut product = Product::new(&stream, m, n, k);
        let mut plans: Vec<Plan> =
            Plan::candidates(&product.problem.folded().unwrap(), &device, Costs::built_in(&device))
                .filter(|plan| plan.is_built(&device) && plan.workspace_bytes > 4 * n * k)
                .collect();
        plans.sort_by(|x, y| x.predicted_us.total_cmp(&y.predicted_us));
        assert!(
            !plans.is_empty(),
            "rows off 16 bytes are read by kernels that want them there"
        );
        for plan in plans.iter().take(PLANS) {
            product.poison(&stream);
            product.launch(plan, &stream);
            product.check(&stream, &plan.to_string());
        }
    });
}

/// Plans whose blocks wait for others, for a device of this kind.
fn waiting_plans(product: &Product, device: &DeviceInfo) -> Vec<Plan> {
    let problem = product.problem.folded().unwrap();
    TABLE
        .iter()
        .filter(|spec| spec.refusal(&product.problem, device).is_none())
        .flat_map(|spec| Plan::variants(spec, &problem, device, Costs::built_in(device)))
        .filter(|plan| plan.stream_k().is_some())
        .collect()
}

/// CUDA does not say in which order blocks start, nor how many run at a time: in a context of a few multiprocessors, beside
/// other launches, plans for all of them must come to an end.
#[test]
fn blocks_that_wait_come_to_an_end_on_few_multiprocessors() {
    on_a_fresh_gpu("blocks_that_wait_come_to_an_end_on_few_multiprocessors", |stream| {
        const STREAMS: usize = 3;
        let device = *CurrentContext::get().unwrap().info();
        let mut products = [DType::F32, DType::BF16].map(|factors| Product::of(&stream, factors, 391, 644, 1000));
        let plans: Vec<Vec<Plan>> = products.iter().map(|product| waiting_plans(product, &device)).collect();
        assert!(plans.iter().all(|plans| !plans.is_empty()) || device.code_capability != 90);
        stream.synchronize().unwrap();
        let Some(few) = GreenContext::new(8) else {
            println!("skipped: the driver makes no context of few multiprocessors");
            return;
        };
        let lanes: Vec<sys::CUstream> = (0..STREAMS).map(|_| few.stream()).collect();
        let mut ds: Vec<CudaSlice<f32>> = lanes.iter().map(|_| products[0].d.try_clone().unwrap()).collect();
        stream.synchronize().unwrap();
        for (at, plan) in plans
            .iter()
            .enumerate()
            .flat_map(|(at, plans)| plans.iter().map(move |plan| (at, plan)))
        {
            let product = &mut products[at];
            let poison = vec![f32::NAN; product.problem.m * product.problem.n];
            for d in &mut ds {
                stream.memcpy_htod(&poison, d).unwrap();
            }
            stream.synchronize().unwrap();
            few.current();
            for _ in 0..20 {
                for (lane, d) in lanes.iter().zip(&ds) {
                    let mut at = product.at(&stream);
                    at.operands.d = d.device_ptr(&stream).0;
                    // SAFETY: the operands were allocated for this problem, each stream has a D of its own, and all of it lives
                    // until the context has been waited for.
                    unsafe { launch(plan, &at, 1.0, 0.0, *lane) }.expect("launch");
                }
            }
            // SAFETY: the context is current.
            unsafe { sys::cuCtxSynchronize() }.result().unwrap();
            stream.context().bind_to_thread().unwrap();
            for d in &ds {
                stream.memcpy_dtod(d, &mut product.d).unwrap();
                product.check(&stream, &format!("on few multiprocessors, {plan}"));
            }
        }
        println!("{} plans come to an end", plans.iter().flatten().count());
        // Leaving the process frees the context and its streams.
    });
}

/// A context of a few multiprocessors.
struct GreenContext {
    green: sys::CUgreenCtx,
    context: sys::CUcontext,
}

impl GreenContext {
    fn new(multiprocessors: u32) -> Option<Self> {
        // SAFETY: plain data for which zeros will do, and places that outlive the calls.
        unsafe {
            let mut device = 0;
            sys::cuCtxGetDevice(&mut device).result().ok()?;
            let mut all: sys::CUdevResource = std::mem::zeroed();
            let kind = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
            sys::cuDeviceGetDevResource(device, &mut all, kind).result().ok()?;
            let (mut few, mut rest): (sys::CUdevResource, sys::CUdevResource) =
                (std::mem::zeroed(), std::mem::zeroed());
            let mut groups = 1;
            sys::cuDevSmResourceSplitByCount(&mut few, &mut groups, &all, &mut rest, 0, multiprocessors)
                .result()
                .ok()?;
            let (mut description, mut green, mut context) = (null_mut(), null_mut(), null_mut());
            sys::cuDevResourceGenerateDesc(&mut description, &mut few, 1)
                .result()
                .ok()?;
            let flags = sys::CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM as u32;
            sys::cuGreenCtxCreate(&mut green, description, device, flags)
                .result()
                .ok()?;
            sys::cuCtxFromGreenCtx(&mut context, green).result().ok()?;
            Some(GreenContext { green, context })
        }
    }

    fn current(&self) {
        // SAFETY: the context is alive.
        unsafe { sys::cuCtxSetCurrent(self.context) }.result().unwrap();
    }

    fn stream(&self) -> sys::CUstream {
        let mut stream = null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is alive, and the handle outlives the call.
        let made: CUresult = unsafe { sys::cuGreenCtxStreamCreate(&mut stream, self.green, flags, 0) };
        made.result().expect("a stream in a green context");
        stream
    }
}
