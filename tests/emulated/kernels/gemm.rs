//! Products: plans go to the emulator as `src/gemm/launch/submit.rs` sends them to a GPU.

use super::far::{self, pieces, reach_of, Piece, FAR};
use super::ptx::{self, Target};
use super::reference::{element, frobenius_limit, gated_element, normed, place, walk, Terms, MANY};
use super::transpositions;
use candle_sgemm::device::DeviceInfo;
use candle_sgemm::gemm::kernel::costs::Costs;
use candle_sgemm::gemm::kernel::spec::{Arithmetic, EpilogueSupport, Grid, Inside, SplitK};
use candle_sgemm::gemm::launch::args::Addresses;
use candle_sgemm::gemm::launch::args::GemmArgs;
use candle_sgemm::gemm::operands::{ElementTypes, Operands, MAX_BATCH_DIMS};
use candle_sgemm::gemm::schedule::cut::Cut;
use candle_sgemm::gemm::schedule::parallel;
use candle_sgemm::gemm::schedule::work_queue::HEAD_BYTES;
use candle_sgemm::gemm::{Activation, Combine, DType, GemmProblem, KernelSpec, OperandLayout, Plan, Precision};
use candle_sgemm::transpose::TransposePlan;
use half::{bf16, f16};
use ptx_emulator::{
    run, Element, Finding, Launch, Memory, Module, Param, Report, Schedule, Swizzle, TensorMap, Use, Watch,
};
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, RngCore, SeedableRng};
use std::fmt;

/// Random numbers are no larger.
const LARGEST_NUMBER: f64 = 1.1;
/// What 1 + ε has beyond the 10 bits of a TF32 mantissa. Its square is a bit that FP32 has beside 1.
const TAIL: f64 = 1.0 / 2048.0;
/// Elements behind D that must stay unwritten. Operands end where their allocations do.
const PADDING: usize = 8;
/// How often a launch of a rung has fewer blocks than tiles.
const FEW_BLOCKS: f64 = 0.6;

/// What went wrong: in the run or in its result.
#[derive(Debug)]
pub enum Wrong {
    Found(Box<Finding>),
    Result(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Found(finding) => write!(f, "{finding}"),
            Wrong::Result(text) => write!(f, "{text}"),
        }
    }
}

impl From<Box<Finding>> for Wrong {
    fn from(finding: Box<Finding>) -> Self {
        Wrong::Found(finding)
    }
}

/// What lies between rows and before operands: nobody reads it. Operands may have NaN of other bits.
const GAP: f64 = f64::from_bits(0x7FF8_0000_0000_00A9);

fn is_gap(x: f64) -> bool {
    x.to_bits() == GAP.to_bits()
}

/// How far problems and numbers go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variety {
    /// One alignment for all operands, a dense bias, ordinary numbers, and a C that counts: most runs then go through all of a kernel. For
    /// broken kernels, whose runs have to be few.
    Tame,
    /// Whatever callers may pass.
    Wild,
    /// The same, and rows, columns or matrices of some operands lie so far apart that offsets have more than 31 bits.
    Far,
}

/// A plan with its data.
pub struct Case {
    pub plan: Plan,
    /// The problem with operands as they lie in memory.
    far: GemmProblem,
    /// The same with operands as they lie in the vectors below, where nothing is far apart.
    near: GemmProblem,
    pub target: Target,
    pub device: DeviceInfo,
    alpha: f32,
    beta: f32,
    /// Elements from a multiple of 16 bytes to each operand's first one.
    offsets: Operands<usize>,
    a: Vec<f64>,
    b: Vec<f64>,
    c: Option<Vec<f64>>,
    residual: Option<Vec<f64>>,
    bias: Option<Vec<f64>>,
    bias_stride: usize,
    /// The weights of the norm of A's rows.
    norm: Option<Vec<f64>>,
    norm_epsilon: f32,
    seed: u64,
    /// Warp instructions after which a run is given up.
    pub limit: u64,
    /// Bytes of shared memory beyond what the kernel's row says.
    pub more_shared: u32,
    /// Whether the kernel gets no more than 32 bits of each stride, as if it counted with those: for a test of these tests.
    pub cuts_strides: bool,
    /// A barrier or byte whose story a failing run tells.
    pub watch: Option<Watch>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({:?}, seed {}, α {}, β {}, first elements at {:?}, bias with stride {}, {:?})",
            self.plan, self.target, self.seed, self.alpha, self.beta, self.offsets, self.bias_stride, self.plan.problem
        )
    }
}

fn reach(problem: &GemmProblem, layout: &OperandLayout, rows: usize, cols: usize) -> usize {
    let mut last = (rows - 1) as i64 * layout.row_stride + (cols - 1) as i64 * layout.col_stride;
    for dim in 0..MAX_BATCH_DIMS {
        last += (problem.batch_dims[dim] - 1) as i64 * layout.batch_strides[dim];
    }
    last as usize + 1
}

/// Random numbers where the layout reaches, gaps elsewhere.
fn operand(
    rng: &mut StdRng,
    problem: &GemmProblem,
    layout: &OperandLayout,
    [rows, cols]: [usize; 2],
    dtype: DType,
) -> Vec<f64> {
    let mut data = vec![GAP; reach(problem, layout, rows, cols)];
    walk(problem, layout, rows, cols, |at| data[at] = number(rng, dtype));
    data
}

/// A random number of this type.
pub fn number(rng: &mut StdRng, dtype: DType) -> f64 {
    let x = rng.random_range(-1.0..1.0f32) + 0.1;
    match dtype {
        DType::F16 => f16::from_f32(x).to_f64(),
        DType::BF16 => bf16::from_f32(x).to_f64(),
        _ => x.into(),
    }
}

/// The largest number of this type.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::MAX.to_f64(),
        DType::BF16 => bf16::MAX.to_f64(),
        DType::F64 => f64::MAX,
        _ => f32::MAX.into(),
    }
}

fn bytes(data: &[f64], dtype: DType) -> Vec<u8> {
    let mut out = Vec::new();
    for x in data {
        match dtype {
            DType::F32 => out.extend_from_slice(&(*x as f32).to_le_bytes()),
            DType::F64 => out.extend_from_slice(&x.to_le_bytes()),
            DType::F16 => out.extend_from_slice(&f16::from_f64(*x).to_le_bytes()),
            DType::BF16 => out.extend_from_slice(&bf16::from_f64(*x).to_le_bytes()),
            other => unimplemented!("{other}"),
        }
    }
    out
}

fn argument_bytes(args: &GemmArgs) -> Vec<u8> {
    // SAFETY: `repr(C)` without padding, as src/gemm/launch/args.rs says: every byte is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(args).cast::<u8>(), size_of::<GemmArgs>()) }.to_vec()
}

/// The map as src/gemm/launch/tensor_map.rs gives it to the driver.
fn map(of: &candle_sgemm::gemm::launch::tensor_map::TensorMap) -> Param {
    Param::Map(TensorMap {
        address: of.address,
        extents: of.extents.to_vec(),
        strides: of.strides.to_vec(),
        box_extents: of.tma_box.to_vec(),
        element: match (of.dtype.size(), of.rounded) {
            (_, true) => Element::Tf32,
            (2, _) => Element::Bits16,
            (8, _) => Element::Bits64,
            _ => Element::Bits32,
        },
        swizzle: match of.tma_box[0] as usize * of.dtype.size() {
            32 if of.dtype.is_16_bit() => Swizzle::Bytes32,
            64 => Swizzle::Bytes64,
            128 => Swizzle::Bytes128,
            _ => Swizzle::None,
        },
    })
}

impl Case {
    /// A case with every operand so many elements after a multiple of 16 bytes, and whose C counts, if there is one.
    pub fn new(plan: Plan, target: Target, device: DeviceInfo, offset: usize, seed: u64) -> Self {
        let drawn = Drawn {
            far: *plan.asked,
            near: *plan.asked,
            plans: Vec::new(),
            device,
            offsets: Operands::default().map(|_: usize| offset),
            variety: Variety::Tame,
        };
        Case::drawn(plan, target, &drawn, seed)
    }

    /// A case of one of the plans that were drawn.
    pub fn drawn(plan: Plan, target: Target, drawn: &Drawn, seed: u64) -> Self {
        let (variety, problem) = (drawn.variety, drawn.near);
        let mut rng = StdRng::seed_from_u64(seed);
        let (m, n, k, types) = (problem.m, problem.n, problem.k, problem.types);
        let (alpha, beta) = scalars(&mut rng, &problem, variety);
        let bias_stride = match variety {
            Variety::Tame => 1,
            Variety::Wild | Variety::Far => [0, 1, 1, 3][rng.random_range(0..4usize)],
        };
        let mut case = Case {
            a: operand(&mut rng, &problem, &problem.a, [m, k], types.a),
            b: operand(&mut rng, &problem, &problem.b, [k, n], types.b),
            c: problem
                .epilogue
                .c
                .map(|layout| operand(&mut rng, &problem, &layout, [m, n], types.c)),
            residual: problem
                .epilogue
                .residual
                .map(|layout| operand(&mut rng, &problem, &layout, [m, n], types.residual)),
            bias: problem.epilogue.bias.then(|| {
                let mut bias = vec![GAP; (n - 1) * bias_stride + 1];
                (0..n).for_each(|col| bias[col * bias_stride] = number(&mut rng, types.bias));
                bias
            }),
            bias_stride,
            norm: problem
                .normed
                .then(|| (0..k).map(|_| number(&mut rng, types.a)).collect()),
            norm_epsilon: if problem.normed {
                rng.random_range(1e-6..0.5)
            } else {
                f32::NAN
            },
            plan,
            far: drawn.far,
            near: problem,
            target,
            device: drawn.device,
            alpha,
            beta,
            offsets: drawn.offsets,
            seed,
            limit: u64::MAX,
            more_shared: 0,
            cuts_strides: false,
            watch: ptx::watched(),
        };
        if variety != Variety::Tame {
            case.forbid_what_counts_for_nothing(&mut rng);
            const SPECIAL: f64 = 0.15;
            if !case.without_product() && rng.random_bool(SPECIAL) {
                case.plant_specials(&mut rng);
            }
        }
        case
    }

    /// The same product of numbers whose TF32 heads cancel: steps of k come in pairs, and of (1 + ε)² − (1 + 2ε) = ε² nothing is left but the
    /// product of both tails. All sums are exact, in TF32 as in FP32, and so an element is ε² times the number of pairs.
    pub fn of_tails(mut self) -> Self {
        let problem = self.near;
        let (m, n, k) = (problem.m, problem.n, problem.k);
        let paired = k / 2 * 2;
        for batch in 0..problem.batch() {
            for step in 0..k {
                let [x, y] = match step % 2 {
                    _ if step >= paired => [0.0; 2],
                    0 => [1.0 + TAIL; 2],
                    _ => [1.0, -1.0 - 2.0 * TAIL],
                };
                (0..m).for_each(|row| self.a[place(&problem, &problem.a, batch, row, step)] = x);
                (0..n).for_each(|col| self.b[place(&problem, &problem.b, batch, step, col)] = y);
            }
        }
        (self.alpha, self.beta) = (1.0, 0.0);
        self
    }

    /// The first element of a bare product of such numbers that is not exact.
    pub fn lost_tail(&self, d: &[f64]) -> Option<String> {
        let problem = self.near;
        let exact = (problem.k / 2) as f64 * TAIL * TAIL;
        let mut lost = None;
        walk(&problem, &problem.d, problem.m, problem.n, |at| {
            if d[at] != exact && lost.is_none() {
                lost = Some(format!("place {at} of D is {:e}, not {exact:e}", d[at]));
            }
        });
        lost
    }

    /// Infinities, NaN, zeros and the largest numbers, among elements of A and B: one or two, as often as not at the ends of lines, where
    /// what is read beyond a line may meet the zeros that fill up the other operand.
    fn plant_specials(&mut self, rng: &mut StdRng) {
        let problem = self.near;
        let dtype = problem.types.a;
        for _ in 0..rng.random_range(1..=2) {
            let number = match rng.random_range(0..8) {
                0..=2 => f64::INFINITY,
                3..=4 => f64::NAN,
                5 => 0.0,
                _ => largest(dtype),
            };
            let number = if rng.random() { number } else { -number };
            let (data, layout, [rows, cols]) = match rng.random() {
                true => (&mut self.a, &problem.a, [problem.m, problem.k]),
                false => (&mut self.b, &problem.b, [problem.k, problem.n]),
            };
            let mut along = |size: usize| match rng.random_range(0..6) {
                0 => 0,
                1 => size - 1,
                2 => rng.random_range(0..size.min(WHOLE_VECTORS)),
                _ => rng.random_range(0..size),
            };
            let (row, col) = (along(rows), along(cols));
            data[place(&problem, layout, rng.random_range(0..problem.batch()), row, col)] = number;
        }
    }

    /// What a factor of zero multiplies is NaN.
    fn forbid_what_counts_for_nothing(&mut self, rng: &mut StdRng) {
        let in_place = self.adds_to_d();
        if let (Some(c), true) = (&mut self.c, self.beta == 0.0) {
            // Where C is D, places that nobody has written are still to be seen.
            for x in c.iter_mut().filter(|x| !is_gap(**x)) {
                *x = if in_place { GAP } else { f64::NAN };
            }
        }
        if self.without_product() {
            const MOST: usize = 4;
            for _ in 0..rng.random_range(1..=MOST) {
                let factor = if rng.random() { &mut self.a } else { &mut self.b };
                let at = rng.random_range(0..factor.len());
                if !is_gap(factor[at]) {
                    factor[at] = [f64::NAN, f64::INFINITY][rng.random_range(0..2usize)];
                }
            }
        }
    }

    /// Whether α is 0 in device memory: then NaN and infinities of A and B count for nothing.
    fn without_product(&self) -> bool {
        self.plan.asked.epilogue.device_scalars && self.alpha == 0.0
    }

    /// Whether C is D: what the product is added to is where it goes.
    fn adds_to_d(&self) -> bool {
        let problem = &self.plan.asked;
        problem.epilogue.c == Some(problem.d) && problem.types.c == problem.types.d
    }

    /// Whether offsets in A, in B and in D have more than 31 bits.
    pub fn is_far(&self) -> [bool; 3] {
        let GemmProblem { m, n, k, a, b, d, .. } = self.far;
        let operands = [(a, m, k), (b, k, n), (d, m, self.far.result_columns())];
        operands.map(|(layout, rows, cols)| reach(&self.far, &layout, rows, cols) > 1 << 31)
    }

    /// Whether a stride of what the kernel reads or writes has more than 32 bits.
    pub fn has_wide_strides(&self) -> bool {
        let problem = &self.plan.problem;
        let wide = |layout: &OperandLayout| {
            let strides = [layout.row_stride, layout.col_stride];
            strides
                .iter()
                .chain(&layout.batch_strides)
                .any(|&stride| stride > u32::MAX.into())
        };
        !self.without_product() && [&problem.a, &problem.b, &problem.d].into_iter().any(wide)
    }

    /// The pieces of an operand of so many rows and columns: its layout in memory, and in the vectors here.
    fn pieces(&self, [far, near]: [&OperandLayout; 2], [rows, cols]: [usize; 2], padding: usize) -> Vec<Piece> {
        let [places, indices] = [(&self.far, far), (&self.near, near)].map(|(problem, layout)| {
            let mut places = Vec::new();
            walk(problem, layout, rows, cols, |at| places.push(at));
            places
        });
        pieces(&places, &indices, padding)
    }

    /// Runs the plan and returns D's elements in the order of their places.
    pub fn run(&self, module: &Module, schedule: Schedule) -> Result<(Vec<f64>, Report), Wrong> {
        let (plan, problem, asked) = (&self.plan, self.near, &self.far);
        let (m, n, k) = (problem.m, problem.n, problem.k);
        let (kernel, types) = (plan.kernel, problem.types);
        let mut rng = StdRng::seed_from_u64(self.seed ^ schedule.seed);
        let mut memory = Memory::new();
        // Nobody reads what lies between rows.
        let upload = |memory: &mut Memory, data: &[f64], pieces: &[Piece], offset: usize, dtype: DType, usage: Use| {
            let bytes_of = |index: usize| (!is_gap(data[index])).then(|| bytes(&data[index..=index], dtype));
            far::upload(memory, pieces, offset, dtype.size(), usage, bytes_of)
        };
        let offsets = &self.offsets;
        let of_a = self.pieces([&asked.a, &problem.a], [m, k], 0);
        let of_b = self.pieces([&asked.b, &problem.b], [k, n], 0);
        let a = upload(&mut memory, &self.a, &of_a, offsets.a, types.a, Use::Input);
        let b = upload(&mut memory, &self.b, &of_b, offsets.b, types.b, Use::Input);
        let [of_c, of_residual] = [
            [&asked.epilogue.c, &problem.epilogue.c],
            [&asked.epilogue.residual, &problem.epilogue.residual],
        ]
        .map(|layouts| match layouts {
            [Some(far), Some(near)] => self.pieces([far, near], [m, n], 0),
            _ => Vec::new(),
        });
        let residual = self.residual.as_ref().map_or(0, |residual| {
            let (offset, dtype) = (offsets.residual, types.residual);
            upload(&mut memory, residual, &of_residual, offset, dtype, Use::Input)
        });
        let bias = self.bias.as_ref().map_or(0, |bias| {
            let places: Vec<usize> = (0..bias.len()).collect();
            let whole = pieces(&places, &places, 0);
            upload(&mut memory, bias, &whole, offsets.bias, types.bias, Use::Input)
        });
        let norm = self
            .norm
            .as_ref()
            .map_or(0, |norm| memory.upload(&bytes(norm, types.a), Use::Input));
        let mut scalars = self.alpha.to_le_bytes().to_vec();
        scalars.extend_from_slice(&self.beta.to_le_bytes());
        let scalars = memory.upload(&scalars, Use::Input);
        let of_d = self.pieces([&asked.d, &problem.d], [m, problem.result_columns()], PADDING);
        let (dtype, size) = (types.d, types.d.size() as u64);
        let (c, d) = match &self.c {
            Some(c) if self.adds_to_d() => {
                let both = upload(&mut memory, c, &of_d, offsets.d, dtype, Use::Any);
                (both, both)
            }
            c => {
                let c = c
                    .as_ref()
                    .map_or(0, |c| upload(&mut memory, c, &of_c, offsets.c, types.c, Use::Input));
                let d = memory.claim((offsets.d + reach_of(&of_d)) as u64 * size) + offsets.d as u64 * size;
                let mut before = offsets.d as u64;
                for piece in &of_d {
                    let elements = before + piece.elements.len() as u64;
                    memory.reserve_at(
                        d + piece.start as u64 * size - before * size,
                        (elements * size) as usize,
                    );
                    before = 0;
                }
                (c, d)
            }
        };
        let (alpha, beta) = match problem.epilogue.device_scalars {
            true => (f32::NAN, f32::NAN),
            false => (self.alpha, self.beta),
        };
        let at = Addresses {
            operands: Operands {
                a,
                b,
                c,
                d,
                bias,
                residual,
            },
            bias_stride: self.bias_stride as i64,
            alpha: scalars,
            beta: scalars + 4,
            norm,
            norm_epsilon: self.norm_epsilon,
        };
        // Old contents of the workspace may be anything, and are NaN where sums are to be; counters are 0.
        let counted = plan.cut.counts();
        let workspace = match plan.workspace_bytes {
            0 => 0,
            bytes => {
                let mut data = vec![0; HEAD_BYTES + bytes];
                match plan.reduction() {
                    Some(_) => data.fill(u8::MAX),
                    None => rng.fill_bytes(&mut data),
                }
                if counted {
                    data[..HEAD_BYTES].fill(0);
                }
                memory.upload(&data, Use::Any) + HEAD_BYTES as u64
            }
        };
        let here = plan.addresses(&at, workspace);
        let mut report = Report::default();
        for (repack, src, dst) in [
            (&plan.repacks[0], at.operands.a, here.operands.a),
            (&plan.repacks[1], at.operands.b, here.operands.b),
        ] {
            if let Some(repack) = repack {
                let movement = repack.movement();
                let movement =
                    TransposePlan::new(&movement, &self.device).map_err(|error| Wrong::Result(error.to_string()))?;
                transpositions::launch(&movement, self.target, src, dst, true, &mut memory, schedule)?;
            }
        }
        let mut args = plan.args(&here, alpha, beta, workspace);
        args.epoch = rng.next_u64() << 2;
        if self.cuts_strides {
            for operand in [&mut args.a, &mut args.b, &mut args.d] {
                let strides = [&mut operand.row_stride, &mut operand.col_stride];
                let strides = strides.into_iter().chain(&mut operand.batch_stride);
                strides.for_each(|stride| *stride = (*stride as i32).into());
            }
        }
        let mut launch = Launch::new(kernel.name, 1, kernel.threads).param(Param::Bytes(argument_bytes(&args)));
        launch.grid = plan.grid;
        if kernel.grid == Grid::Tiles && rng.random_bool(FEW_BLOCKS) {
            // As where tiles or matrices exceed what a grid may have: blocks go on with further ones.
            for blocks in &mut launch.grid[1..] {
                *blocks = rng.random_range(1..=2).min(*blocks);
            }
        }
        launch.cluster = [plan.cluster(), 1, 1];
        launch.dynamic_shared = kernel.dynamic_shared + self.more_shared;
        launch.early = kernel.supports_pdl() && self.target.starts_early();
        if matches!(plan.cut, Cut::StreamK(_)) && workspace > 0 {
            // Blocks draw their numbers as they start. A launch starts early only when all blocks of the one before it have
            // started, and so drawn; the last of them has set the counter back.
            let ticket = workspace - HEAD_BYTES as u64;
            launch.early_atomics.push(ticket..ticket + size_of::<u32>() as u64);
        }
        launch.limit = self.limit;
        launch.coverage = true;
        launch.watch = self.watch;
        launch.resident = 1 + rng.random_range(0..8usize);
        if let Some(maps) = plan.tensor_maps(&here) {
            launch.params.extend(maps[..plan.kernel.tensor_maps()].iter().map(map));
        }
        let ran = run(module, &launch, &mut memory, schedule)?;
        report.warp_instructions += ran.warp_instructions;
        report.thread_instructions += ran.thread_instructions;
        report.tensor_multiply_adds += ran.tensor_multiply_adds;
        report.lines = ran.lines;
        report.edges = ran.edges;
        if counted {
            let counters = memory
                .read(workspace - HEAD_BYTES as u64, HEAD_BYTES)
                .unwrap_or_default();
            if counters.iter().any(|&byte| byte != 0) {
                return Err(Wrong::Result("the counters are not 0 after the launch".to_string()));
            }
        }
        if let Some(reduction) = plan.reduction() {
            let module = ptx::module(parallel::FILE, self.target);
            let args = plan.reduction_args(&here, alpha, beta, workspace);
            let mut launch = Launch::new(reduction.name, reduction.blocks, reduction.threads)
                .param(Param::Bytes(argument_bytes(&args)));
            launch.early = self.target.starts_early();
            launch.limit = self.limit;
            launch.coverage = true;
            launch.watch = self.watch;
            launch.resident = 1 + rng.random_range(0..8usize);
            let ran = run(&module, &launch, &mut memory, schedule)?;
            report.warp_instructions += ran.warp_instructions;
            report.thread_instructions += ran.thread_instructions;
        }
        let mut out = vec![f64::NAN; reach(&problem, &problem.d, m, problem.result_columns())];
        for piece in &of_d {
            for (place, index) in (piece.start..).zip(&piece.elements) {
                let address = d + place as u64 * size;
                let written = memory.first_unwritten(address, size as usize).is_none();
                if written != index.is_some() {
                    return Err(Wrong::Result(format!(
                        "place {place} of D, which is {}, was {}",
                        match index {
                            Some(_) => "one of the result",
                            None => "none of the result",
                        },
                        if written { "written" } else { "not written" }
                    )));
                }
                let Some(index) = *index else {
                    continue;
                };
                let data = memory.read(address, size as usize).unwrap_or_default();
                out[index] = match dtype {
                    DType::F32 => f32::from_le_bytes(data.try_into().unwrap_or_default()).into(),
                    DType::F64 => f64::from_le_bytes(data.try_into().unwrap_or_default()),
                    DType::F16 => f16::from_le_bytes(data.try_into().unwrap_or_default()).into(),
                    DType::BF16 => bf16::from_le_bytes(data.try_into().unwrap_or_default()).into(),
                    other => unimplemented!("{other}"),
                };
            }
        }
        Ok((out, report))
    }

    /// The first element that is further from the FP64 result than rounding explains, or that is not the infinity or NaN that it has to be.
    /// Those are not judged that may overflow or not, as the order of additions has it, nor what activations and gates make of infinities
    /// and NaN. Else, of many bare products, an error in the Frobenius norm that is larger than this arithmetic's.
    pub fn complaint(&self, d: &[f64]) -> Option<String> {
        let problem = self.near;
        let (m, n) = (problem.m, problem.n);
        const NEAR_OVERFLOW: f64 = 0.9;
        let sums = match problem.types.a {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let bare = problem.epilogue.is_plain()
            && problem.epilogue.c.is_none()
            && self.norm.is_none()
            && !self.without_product();
        let most = LARGEST_NUMBER * LARGEST_NUMBER * problem.k as f64;
        let (mut count, mut error, mut norm) = (0, 0.0, 0.0);
        for batch in 0..problem.batch() {
            let [sum, magnitude] = match self.without_product() {
                true => [vec![0.0; m * n], vec![0.0; m * n]],
                false => self.products(&problem, batch),
            };
            let at = |layout: &OperandLayout, row: usize, col: usize| place(&problem, layout, batch, row, col);
            for row in 0..m {
                for place in 0..problem.result_columns() {
                    let terms = |col: usize| Terms {
                        sum: sum[row * n + col],
                        magnitude: magnitude[row * n + col],
                        from_c: match (&problem.epilogue.c, &self.c) {
                            (Some(layout), Some(c)) if self.beta != 0.0 => {
                                f64::from(self.beta) * c[at(layout, row, col)]
                            }
                            _ => 0.0,
                        },
                        bias: self.bias.as_ref().map_or(0.0, |bias| bias[col * self.bias_stride]),
                        residual: match (&problem.epilogue.residual, &self.residual) {
                            (Some(layout), Some(residual)) => Some(residual[at(layout, row, col)]),
                            _ => None,
                        },
                    };
                    let alpha = f64::from(self.alpha);
                    let epilogue = &problem.epilogue;
                    let pair = [2 * place, 2 * place + 1].map(|col| if epilogue.gated { col } else { place });
                    let pair = pair.map(terms);
                    let overflows = |terms: &Terms| {
                        !terms.sum.is_nan() && terms.magnitude * alpha.abs().max(1.0) > NEAR_OVERFLOW * largest(sums)
                    };
                    let finite = pair.iter().all(|terms| terms.sum.is_finite());
                    let plain = epilogue.activation == Activation::Identity && !epilogue.gated;
                    if pair.iter().any(overflows) || !(finite || plain) {
                        continue;
                    }
                    let (value, bound) = match epilogue.gated {
                        true => gated_element(&problem, alpha, [&pair[0], &pair[1]]),
                        false => element(&problem, alpha, &pair[0]),
                    };
                    let got = d[at(&problem.d, row, place)];
                    let right = match finite {
                        true if value.abs() + bound > NEAR_OVERFLOW * largest(problem.types.d) => continue,
                        true => (got - value).abs() <= bound,
                        false => got == value || (got.is_nan() && value.is_nan()),
                    };
                    if !right {
                        return Some(format!(
                            "D({row}, {place}) of matrix {batch} is {got}, not {value} (±{bound:e})"
                        ));
                    }
                    if bare && finite && pair[0].magnitude <= most {
                        count += 1;
                        error += (got - value).powi(2);
                        norm += value.powi(2);
                    }
                }
            }
        }
        let (frobenius, limit) = ((error / norm).sqrt(), frobenius_limit(&self.plan));
        (count >= MANY && norm > 0.0 && frobenius > limit)
            .then(|| format!("the Frobenius error of {count} elements is {frobenius:e}, above {limit:e}"))
    }

    /// Σ a·b and Σ |a||b| of one matrix of the batch; the second of products that are finite, and infinite where finite numbers have one that
    /// is not.
    fn products(&self, problem: &GemmProblem, batch: usize) -> [Vec<f64>; 2] {
        let (m, n, k) = (problem.m, problem.n, problem.k);
        let dense = |data: &[f64], layout: &OperandLayout, rows: usize, cols: usize| -> Vec<f64> {
            (0..rows)
                .flat_map(|row| (0..cols).map(move |col| (row, col)))
                .map(|(row, col)| data[place(problem, layout, batch, row, col)])
                .collect()
        };
        let (mut a, b) = (dense(&self.a, &problem.a, m, k), dense(&self.b, &problem.b, k, n));
        /// No ordinary number is as large.
        const LARGE: f64 = 1e3;
        /// The square of a larger one may be infinite in FP32.
        const SQUARED: f64 = 1e18;
        let is_special = |x: &f64| x.is_nan() || x.abs() >= LARGE;
        let special_rows: Vec<bool> = a.chunks(k).map(|row| row.iter().any(is_special)).collect();
        let mut special_cols = vec![false; n];
        for row in b.chunks(n) {
            for (special, x) in special_cols.iter_mut().zip(row) {
                *special |= is_special(x);
            }
        }
        let may_overflow: Vec<bool> = a
            .chunks(k)
            .map(|row| problem.normed && row.iter().any(|x| x.is_finite() && x.abs() > SQUARED))
            .collect();
        if let Some(norm) = &self.norm {
            let rows = a.chunks(k).map(|row| normed(row, norm, self.norm_epsilon.into()));
            a = rows.flatten().collect();
        }
        let absolute = |x: &[f64]| x.iter().map(|x| x.abs()).collect::<Vec<_>>();
        let [mut sum, mut magnitude] = [(a.clone(), b.clone()), (absolute(&a), absolute(&b))].map(|(a, b)| {
            let mut d = vec![0.0; m * n];
            // SAFETY: dense row-major matrices of these sizes.
            unsafe {
                gemm::gemm(
                    m,
                    n,
                    k,
                    d.as_mut_ptr(),
                    1,
                    n as isize,
                    false,
                    a.as_ptr(),
                    1,
                    k as isize,
                    b.as_ptr(),
                    1,
                    n as isize,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::None,
                );
            }
            d
        });
        for (row, col) in (0..m).flat_map(|row| (0..n).map(move |col| (row, col))) {
            if !special_rows[row] && !special_cols[col] {
                continue;
            }
            let at = row * n + col;
            (sum[at], magnitude[at]) = (0.0, 0.0);
            for i in 0..k {
                let (x, y) = (a[row * k + i], b[i * n + col]);
                sum[at] += x * y;
                if x.is_finite() && y.is_finite() {
                    magnitude[at] += (x * y).abs();
                }
            }
            if may_overflow[row] {
                magnitude[at] = f64::INFINITY;
            }
        }
        [sum, magnitude]
    }

    /// Runs the case and compares its result.
    pub fn check(&self, schedule: Schedule) -> Result<(Vec<f64>, Report), Wrong> {
        let module = ptx::module(self.plan.kernel.file, self.target);
        let (d, report) = self.run(&module, schedule)?;
        match self.complaint(&d) {
            Some(complaint) => Err(Wrong::Result(format!("{complaint}\n  schedule {schedule:?}"))),
            None => Ok((d, report)),
        }
    }
}

/// α and β; α is 0 in device memory alone.
fn scalars(rng: &mut StdRng, problem: &GemmProblem, variety: Variety) -> (f32, f32) {
    let epilogue = &problem.epilogue;
    if variety == Variety::Tame {
        let plain = epilogue.is_plain() && epilogue.c.is_none();
        return if plain && rng.random_bool(0.5) {
            (1.0, 0.0)
        } else {
            (-1.25, 0.75)
        };
    }
    let mut one_of = |zero: bool, others: [f32; 3]| match rng.random_range(0..4) {
        0 if zero => 0.0,
        other => others[other % others.len()],
    };
    (
        one_of(epilogue.device_scalars, [1.0, -1.25, -1.25]),
        one_of(true, [0.75, 1.0, 0.75]),
    )
}

pub const ACTIVATIONS: [Activation; 7] = [
    Activation::Identity,
    Activation::Relu,
    Activation::GeluTanh,
    Activation::GeluErf,
    Activation::Silu,
    Activation::Tanh,
    Activation::Sigmoid,
];

/// A number of rows, columns or steps: around a tile, or anything.
fn size(rng: &mut StdRng, tile: usize, most: usize) -> usize {
    let tile = tile.max(1);
    let drawn = match rng.random_range(0..8) {
        0 => rng.random_range(1..=8),
        1 => tile,
        2 => tile - 1,
        3 => tile + 1,
        4 => 2 * tile + rng.random_range(0..5),
        5 => (rng.random_range(1..=tile.div_ceil(4)) * 4).min(tile),
        _ => rng.random_range(1..=2 * tile),
    };
    drawn.clamp(1, most.max(1))
}

/// Rows of so many elements, of any type, start on 16 bytes if the first one does.
const WHOLE_VECTORS: usize = 8;

/// An operand's layout, with the chances that its elements follow one another along rows, that rows start on 16 bytes, and that
/// it is every other element of something.
fn layout(rng: &mut StdRng, rows: usize, cols: usize, along_rows: f64, aligned: f64, spread: f64) -> OperandLayout {
    let (along_rows, aligned) = (rng.random_bool(along_rows), rng.random_bool(aligned));
    let odd = rng.random_range(0..4usize);
    let padded = |length: usize| match aligned {
        true => length.next_multiple_of(WHOLE_VECTORS) + WHOLE_VECTORS * odd,
        false => length + odd,
    };
    if rng.random_bool(spread) {
        return OperandLayout::strided((2 * padded(cols)) as i64, 2);
    }
    match along_rows {
        true => OperandLayout::row_major(padded(cols)),
        false => OperandLayout::col_major(padded(rows)),
    }
}

/// Which operands start on 16 bytes, rows of A, B and C included: mostly both factors, which kernels that copy vectors need, at times
/// one of them, and the others as they come.
fn aligned_operands(rng: &mut StdRng, variety: Variety) -> Operands<bool> {
    if variety == Variety::Tame {
        let all = rng.random_bool(0.75);
        return Operands::default().map(|_: bool| all);
    }
    let [a, b] = match rng.random_range(0..20) {
        0..=12 => [true, true],
        13..=14 => [true, false],
        15..=16 => [false, true],
        _ => [false, false],
    };
    const OTHERS: f64 = 0.8;
    let mut other = || rng.random_bool(OTHERS);
    Operands {
        a,
        b,
        c: other(),
        d: other(),
        bias: other(),
        residual: other(),
    }
}

/// A problem that may suit a kernel, and elements from a multiple of 16 bytes to each operand's first one.
fn draw_problem(
    rng: &mut StdRng,
    spec: &KernelSpec,
    most_work: usize,
    deep: bool,
    variety: Variety,
) -> (GemmProblem, Operands<usize>) {
    let tile = &spec.tile;
    let (bm, bn, bk) = (
        tile.bm.max(1) as usize,
        tile.bn.max(1) as usize,
        tile.bk.max(1) as usize,
    );
    let limit = |most: u32| if most == 0 { usize::MAX } else { most as usize };
    let several = deep && rng.random_bool(0.5);
    let mut m = size(rng, bm, limit(spec.needs.max_m).min(600));
    let mut n = size(rng, bn, limit(spec.needs.max_n).min(600));
    if deep {
        (m, n) = (m.min(bm), n.min(bn));
        // Strips come from a work queue, and persistent blocks take several tiles: those make rounds, too.
        match spec.split_k {
            SplitK::WorkQueue(_) => n = rng.random_range(8..16) * bn,
            _ if several => (m, n) = (4 * bm - rng.random_range(0..bm.min(8)), n),
            _ => {}
        }
        m = m.min(limit(spec.needs.max_m));
    }
    // Persistent blocks gather the sums of many lines before they store: some have so many, and then more.
    const MANY: f64 = 0.4;
    if spec.grid == Grid::Persistent && spec.needs.max_m > 0 && rng.random_bool(MANY) {
        n = rng.random_range(1..=600);
    }
    let (norms, gates) = match spec.inside {
        Inside::NormAndGates => [(true, false), (false, true), (true, true)][rng.random_range(0..3usize)],
        Inside::Gates => (false, true),
        Inside::Product => (false, false),
    };
    let padded = m.next_multiple_of(bm) * n.next_multiple_of(bn);
    // Often enough for every stage of a ring to come round more than once.
    const MOST_STAGES: u32 = 10;
    let narrow = spec.needs.max_m > 0 || spec.needs.max_n > 0;
    let stages = if spec.tma_boxes.is_some() {
        tile.stages.max(MOST_STAGES)
    } else {
        tile.stages.max(1)
    };
    // Kernels for few vectors take so much of k at a time.
    const LONG: usize = 600;
    let rounds = (bk * stages as usize).max(if narrow { LONG } else { 1 });
    let k = match rng.random_range(0..4) {
        _ if several => (rounds / 2 + rng.random_range(0..=rounds / 2)).max(1),
        _ if deep => 3 * rounds + rng.random_range(0..=rounds),
        0 => size(rng, bk, 600),
        1 => rng.random_range(1..=rounds),
        _ => rounds + rng.random_range(0..=2 * rounds),
    };
    let most_k = (most_work / padded).clamp(1, limit(spec.needs.max_k));
    // Longer ones are spread over what the kernel takes: its longest k has no edges.
    let mut k = match spec.needs.max_k {
        0 => k.min(most_k),
        _ => (k - 1) % most_k + 1,
    };
    // Slices that a second kernel adds up are some portions of k each.
    const APART: f64 = 0.25;
    let apart = spec.parallel_split_k && !deep && rng.random_bool(APART);
    if apart {
        k = (bk * rng.random_range(8..24usize) + rng.random_range(0..bk)).min(most_k);
    }
    // Rows of two elements are as easily taken for two rows.
    const TWO: f64 = 0.05;
    if !deep && rng.random_bool(TWO) {
        *[&mut m, &mut n, &mut k][rng.random_range(0..3usize)] = 2;
        (m, n) = (m.min(limit(spec.needs.max_m)), n.min(limit(spec.needs.max_n)));
    }
    if gates {
        n = n.next_multiple_of(2);
    }
    let columns = if gates { n / 2 } else { n };
    let aligned = aligned_operands(rng, variety);
    let chance = aligned.map(|aligned| f64::from(u8::from(aligned)));
    let mut offset = |aligned, most| if aligned { 0 } else { rng.random_range(0..most) };
    let mut offsets = match variety {
        Variety::Tame => {
            let all = offset(aligned.a, 4);
            Operands {
                bias: 0,
                ..Operands::default().map(|_: usize| all)
            }
        }
        Variety::Wild | Variety::Far => aligned.map(|aligned| offset(aligned, WHOLE_VECTORS)),
    };
    let spread = if rng.random_bool(0.1) { 0.5 } else { 0.0 };
    let a = layout(rng, m, k, 0.5, chance.a, spread);
    let b = layout(rng, k, n, 0.5, chance.b, spread);
    let mut problem = GemmProblem::new(m, n, k, a, b);
    problem.types = ElementTypes::all_of(spec.dtype);
    if spec.dtype.is_16_bit() {
        let mut finer = |dtype| if rng.random_bool(0.3) { DType::F32 } else { dtype };
        let Operands {
            a,
            b,
            c,
            d,
            bias,
            residual,
        } = problem.types;
        problem.types = Operands {
            a,
            b,
            c: finer(c),
            d: finer(d),
            bias: finer(bias),
            residual: finer(residual),
        };
    }
    problem.precision = match spec.arithmetic {
        Arithmetic::Tf32 => Precision::Tf32,
        _ => Precision::Fp32,
    };
    problem.d = layout(rng, m, columns, 1.0, 0.5, 0.0);
    (problem.normed, problem.epilogue.gated) = (norms, gates);
    if rng.random_bool(0.3) {
        problem.epilogue.c = Some(layout(rng, m, n, 1.0, chance.c, 0.0));
    }
    if spec.epilogue == EpilogueSupport::Fused && rng.random_bool(0.5) {
        problem.epilogue.bias = rng.random_bool(0.7);
        problem.epilogue.activation = ACTIVATIONS[rng.random_range(0..ACTIVATIONS.len())];
        if rng.random_bool(0.4) {
            problem.epilogue.residual = Some(layout(rng, m, n, 1.0, 0.5, 0.0));
            if rng.random_bool(0.3) {
                problem.epilogue.combine = Combine::Multiply;
            }
        }
        problem.epilogue.device_scalars = rng.random_bool(0.2);
    }
    if spec.epilogue == EpilogueSupport::Fused && variety != Variety::Tame {
        problem.epilogue.device_scalars = rng.random_bool(0.2);
    }
    if !apart && rng.random_bool(0.3) && padded * k * 4 <= 2 * most_work {
        let dims: [usize; MAX_BATCH_DIMS] = match rng.random_range(0..3) {
            0 => [1, 1, 1, 3],
            1 => [1, 1, 2, 2],
            _ => [1, 2, 1, 2],
        };
        problem.batch_dims = dims;
        let mut dense = |layout: &mut OperandLayout, rows: usize, cols: usize, aligned: bool, may_repeat: bool| {
            let one = ((rows - 1) as i64 * layout.row_stride + (cols - 1) as i64 * layout.col_stride + 1) as usize;
            // Elsewhere a matrix starts where the one before it ends, on any element.
            let mut stride = match aligned {
                true => one.next_multiple_of(WHOLE_VECTORS) as i64,
                false => one as i64,
            };
            let mut strides = [0; MAX_BATCH_DIMS];
            for dim in (0..MAX_BATCH_DIMS).rev() {
                if dims[dim] > 1 && !(may_repeat && rng.random_bool(0.3)) {
                    strides[dim] = stride;
                    stride *= dims[dim] as i64;
                }
            }
            layout.batch_strides = strides;
        };
        dense(&mut problem.a, m, k, aligned.a, true);
        dense(&mut problem.b, k, n, aligned.b, true);
        dense(&mut problem.d, m, n, aligned.d, false);
        if let Some(c) = &mut problem.epilogue.c {
            dense(c, m, n, aligned.c, true);
        }
        if let Some(residual) = &mut problem.epilogue.residual {
            dense(residual, m, n, aligned.residual, true);
        }
    }
    if gates {
        (problem.epilogue.c, problem.epilogue.residual) = (None, None);
    }
    // Addresses are as aligned as planners find them.
    let align = offsets.zip(problem.types).map(|(offset, dtype)| {
        const MOST: usize = 16;
        1 << ((offset * dtype.size()) | MOST).trailing_zeros()
    });
    let set = |layout: &mut OperandLayout, align: u32| *layout = layout.with_align(align);
    set(&mut problem.a, align.a);
    set(&mut problem.b, align.b);
    set(&mut problem.d, align.d);
    problem.epilogue.c.iter_mut().for_each(|layout| set(layout, align.c));
    problem
        .epilogue
        .residual
        .iter_mut()
        .for_each(|layout| set(layout, align.residual));
    // C is often D, and then a tile must not read what another one stores. Drawn apart: all else is drawn as if it never were.
    const IN_PLACE: f64 = 0.4;
    if problem.epilogue.c.is_some() && rng.clone().random_bool(IN_PLACE) {
        problem.epilogue.c = Some(problem.d);
        problem.types.c = problem.types.d;
        offsets.c = offsets.d;
    }
    (problem, offsets)
}

/// Puts the rows, columns or matrices of some operands so far apart that offsets have more than 31 bits, or more than 32. False where there are
/// none to put apart.
fn put_apart(rng: &mut StdRng, problem: &mut GemmProblem) -> bool {
    const CHANCE: f64 = 0.75;
    let (m, n, k, columns) = (problem.m, problem.n, problem.k, problem.result_columns());
    let in_place = problem.epilogue.c == Some(problem.d);
    let batch_dims = problem.batch_dims;
    let mut any = false;
    let near = *problem;
    let mut put = |layout: &mut OperandLayout, rows: usize, cols: usize| {
        let reach_of_others = reach(&near, layout, rows, cols);
        // What is contiguous stays so.
        let strides = [(rows, &mut layout.row_stride), (cols, &mut layout.col_stride)];
        let strides = strides.into_iter().filter(|(_, stride)| **stride > 1);
        let batches = batch_dims.into_iter().zip(&mut layout.batch_strides);
        let batches = batches.filter(|(_, stride)| **stride > 0);
        let Some((extent, stride)) = strides.chain(batches).filter(|(extent, _)| *extent > 1).choose(rng) else {
            return;
        };
        if rng.random_bool(CHANCE) {
            let more = far::apart(rng, extent, WHOLE_VECTORS);
            // Neighbours that are put apart must not come to lie among others.
            if more > reach_of_others.max(FAR) {
                *stride += more as i64;
                any = true;
            }
        }
    };
    put(&mut problem.a, m, k);
    put(&mut problem.b, k, n);
    put(&mut problem.d, m, columns);
    if let Some(residual) = &mut problem.epilogue.residual {
        put(residual, m, n);
    }
    match &mut problem.epilogue.c {
        Some(c) if in_place => *c = problem.d,
        Some(c) => put(c, m, n),
        None => {}
    }
    any
}

/// Plans of one problem, the device that they are for, and elements from a multiple of 16 bytes to each operand's first one.
pub struct Drawn {
    pub plans: Vec<Plan>,
    /// Their problem, and what it was before anything was put far apart.
    far: GemmProblem,
    near: GemmProblem,
    pub device: DeviceInfo,
    offsets: Operands<usize>,
    variety: Variety,
}

/// Plans of one problem that this kernel takes, with each way to cut k. `deep`: one tile and so much k, or so many tiles, that
/// every stage of a ring comes round several times.
pub fn draw(
    rng: &mut StdRng,
    spec: &'static KernelSpec,
    target: Target,
    most_work: usize,
    deep: bool,
    variety: Variety,
) -> Option<Drawn> {
    const TRIES: usize = 400;
    const REPACKED: f64 = 0.3;
    // So many multiply-adds of wgmma take no longer here than one by a thread, and the tiles of these kernels are large: with less, no
    // ring comes round.
    const BY_WGMMA: usize = 8;
    let most_work = match (spec.arithmetic, spec.tma_boxes) {
        (Arithmetic::Half | Arithmetic::Tf32 | Arithmetic::Tf32x3, Some(_)) => BY_WGMMA * most_work,
        _ => most_work,
    };
    for _ in 0..TRIES {
        let device = DeviceInfo {
            sm_count: [1, 2, 3, 4, 8][rng.random_range(0..if deep { 2 } else { 5usize })],
            ..target.device()
        };
        let (near, offsets) = draw_problem(rng, spec, most_work, deep, variety);
        let mut problem = near;
        if variety == Variety::Far && !put_apart(rng, &mut problem) {
            continue;
        }
        let Ok(folded) = problem.folded() else {
            continue;
        };
        // Operands that the planner would have repacked, for kernels that read them otherwise not at all or slowly.
        // Large ones are moved by kernels that read whole vectors of the gaps between rows, which count as uninitialised here.
        let many = spec.grid == Grid::Persistent && spec.needs.max_m > 0 && problem.n > 2 * spec.tile.bn as usize + 5;
        if !deep && !many && rng.random_bool(REPACKED) {
            let plans: Vec<Plan> = Plan::candidates(&folded, &device, Costs::built_in(&device))
                .filter(|plan| plan.kernel.name == spec.name && plan.is_repacked())
                .collect();
            if !plans.is_empty() {
                return Some(Drawn {
                    plans,
                    far: problem,
                    near,
                    device,
                    offsets,
                    variety,
                });
            }
        }
        let Ok(plan) = Plan::named(spec.name, &problem, &device, Costs::built_in(&device)) else {
            continue;
        };
        let mut plans: Vec<Plan> = Plan::variants(spec, &plan.problem, &device, Costs::built_in(&device)).collect();
        if deep {
            plans.truncate(1);
        }
        if !plans.is_empty() {
            return Some(Drawn {
                plans,
                far: problem,
                near,
                device,
                offsets,
                variety,
            });
        }
    }
    None
}
