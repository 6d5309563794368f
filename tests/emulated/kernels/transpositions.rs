//! Copies and transpositions: plans go to the emulator as `src/transpose/launch.rs` sends them to a GPU.

use super::far::{apart, pieces, places, reach_of};
use super::gemm::Wrong;
use super::ptx::{self, Target};
use candle_sgemm::device::DeviceInfo;
use candle_sgemm::transpose::args::TransposeArgs;
use candle_sgemm::transpose::kernels::{Instance, TransposeKernel};
use candle_sgemm::transpose::plan::{Piece, Step};
use candle_sgemm::transpose::{TransposePlan, TransposeProblem};
use ptx_emulator::{run, Element, Launch, Memory, Module, Param, Report, Schedule, Swizzle, TensorMap, Use, Watch};
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, RngCore, SeedableRng};

fn argument_bytes(args: &TransposeArgs) -> Vec<u8> {
    // SAFETY: `repr(C)` without padding, as src/transpose/args.rs says: every byte is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(args).cast::<u8>(), size_of::<TransposeArgs>()) }.to_vec()
}

/// The maps that src/transpose/launch.rs gives to the driver.
fn maps(instance: &Instance, piece: &Piece, src: u64, dst: u64) -> [Param; 2] {
    const BOX_BYTES: usize = 128;
    let (m, size) = (&piece.matrices, instance.element_size);
    let batch = m.outer.first();
    let map = |address: u64, width: usize, height: usize, row: i64, matrix: i64, box_rows: usize| {
        Param::Map(TensorMap {
            address,
            extents: vec![width as u64, height as u64, m.count() as u64],
            strides: vec![row as u64 * size as u64, matrix as u64 * size as u64],
            box_extents: vec![(BOX_BYTES / size) as u32, box_rows as u32, 1],
            element: match size {
                1 => Element::Bits8,
                2 => Element::Bits16,
                4 => Element::Bits32,
                _ => Element::Bits64,
            },
            swizzle: Swizzle::Bytes128,
        })
    };
    [
        map(
            src,
            m.cols,
            m.rows,
            m.src_row,
            batch.map_or(m.src_row, |axis| axis.src),
            instance.tile_rows,
        ),
        map(
            dst,
            m.rows,
            m.cols,
            m.dst_col,
            batch.map_or(m.dst_col, |axis| axis.dst),
            instance.tile_cols,
        ),
    ]
}

/// Carries out a plan in the emulator.
pub fn launch(
    plan: &TransposePlan,
    target: Target,
    src: u64,
    dst: u64,
    lets_next: bool,
    memory: &mut Memory,
    schedule: Schedule,
) -> Result<Report, Wrong> {
    let how = How {
        target,
        lets_next,
        limit: u64::MAX,
        watch: ptx::watched(),
    };
    match &plan.step {
        Step::Launch { kernel, .. } => {
            let module = ptx::module(kernel.file, target);
            launch_in(&module, plan, [src, dst], &how, memory, schedule)
        }
        _ => launch_in(&Module::default(), plan, [src, dst], &how, memory, schedule),
    }
}

/// What a launch needs beside plan and addresses.
pub struct How {
    target: Target,
    /// Whether the kernel lets the next one start early.
    lets_next: bool,
    limit: u64,
    watch: Option<Watch>,
}

/// The same with other code for the kernel.
fn launch_in(
    module: &Module,
    plan: &TransposePlan,
    [src, dst]: [u64; 2],
    how: &How,
    memory: &mut Memory,
    schedule: Schedule,
) -> Result<Report, Wrong> {
    let mut all = Report::default();
    match &plan.step {
        Step::Nothing => {}
        Step::Copy { bytes } => {
            let data = memory.read(src, *bytes).map(<[u8]>::to_vec);
            if !data.is_some_and(|data| memory.write(dst, &data)) {
                return Err(Wrong::Result("a copy leaves what was allocated".to_string()));
            }
        }
        Step::Launch {
            kernel,
            instance,
            pieces,
        } => {
            for piece in pieces {
                let mut args = piece.args(plan, kernel, src, dst);
                args.lets_next = u16::from(how.lets_next);
                let mut launch = Launch::new(instance.entry, piece.blocks, instance.threads)
                    .param(Param::Bytes(argument_bytes(&args)));
                launch.dynamic_shared = instance.shared(plan.streaming);
                launch.limit = how.limit;
                // Tiles are read in whole vectors; what is beyond the matrix goes nowhere, as every byte of the result shows.
                launch.poison = true;
                launch.coverage = true;
                launch.watch = how.watch;
                launch.early = kernel.supports_pdl && how.target.starts_early();
                if kernel.needs.tensor_maps {
                    launch.params.extend(maps(instance, piece, args.src, args.dst));
                }
                let report = run(module, &launch, memory, schedule)?;
                all.warp_instructions += report.warp_instructions;
                all.thread_instructions += report.thread_instructions;
                all.lines = report.lines;
                all.edges = report.edges;
            }
        }
    }
    Ok(all)
}

/// A view of a buffer, and the order in which its dimensions are written out.
#[derive(Clone, Debug)]
pub struct View {
    pub dims: Vec<usize>,
    pub strides: Vec<usize>,
    /// Strides of the same dimensions in the data of a case, where nothing is far apart.
    pub near: Vec<usize>,
    pub order: Vec<usize>,
    /// Elements before the first.
    pub offset: usize,
    /// Bytes of an element.
    pub size: usize,
    /// Bytes by which the destination begins after a multiple of 256.
    pub shift: usize,
}

impl View {
    /// The plan of this kernel, if it takes the view.
    pub fn plan(&self, kernel: &TransposeKernel, device: &DeviceInfo) -> candle_sgemm::Result<TransposePlan> {
        let both = (self.offset * self.size) | self.shift;
        let align = match both {
            0 => 256,
            _ => 1 << both.trailing_zeros().min(8),
        };
        let problem = TransposeProblem::permutation(&self.dims, &self.strides, &self.order, self.size)?;
        TransposePlan::named(kernel.name, &problem.aligned_to(align), device)
    }
}

/// A view that is written out, with its data.
#[derive(Debug)]
pub struct Case {
    pub plan: TransposePlan,
    pub target: Target,
    view: View,
    src: Vec<u8>,
    seed: u64,
    /// Warp instructions after which a run is given up.
    pub limit: u64,
    /// A barrier or byte whose story a failing run tells.
    pub watch: Option<Watch>,
}

/// Bytes around the destination that stay as they are.
const GUARD: usize = 256;
/// Kernels may read before and behind the source to the next multiple of so many bytes, as allocations have them.
const READABLE: usize = 16;
/// Kernels may read so many bytes behind a row that others follow, even if far away: tiles are read whole.
const BETWEEN: usize = 8192;
/// What lies in gaps.
const FILLER: u8 = 0xC3;

impl Case {
    /// A case for this kernel, if one is found. `far`: one of its dimensions has neighbours that lie so far apart that offsets in the source have
    /// more than 31 bits.
    pub fn draw(
        rng: &mut StdRng,
        kernel: &'static TransposeKernel,
        target: Target,
        most_bytes: usize,
        far: bool,
    ) -> Option<Case> {
        const TRIES: usize = 4000;
        let device = target.device();
        for _ in 0..TRIES {
            let device = DeviceInfo {
                // Sometimes more than the L2 holds.
                l2_bytes: if rng.random_bool(0.3) { 1 } else { device.l2_bytes },
                ..device
            };
            let size = kernel.instances[rng.random_range(0..kernel.instances.len())].element_size;
            let side = |rng: &mut StdRng| match rng.random_range(0..6) {
                0 => rng.random_range(1..8usize),
                1 => rng.random_range(1..=16) * 16,
                2 => [31, 32, 33, 63, 64, 65, 127, 128, 129][rng.random_range(0..9usize)],
                3 => rng.random_range(1..=3000),
                _ => rng.random_range(1..=300),
            };
            let many = rng.random_range(2..=4usize);
            let dims: Vec<usize> = (0..many)
                .map(|i| {
                    if i + 2 < many {
                        rng.random_range(1..5)
                    } else {
                        side(rng)
                    }
                })
                .collect();
            let order: Vec<usize> = match (many, rng.random_range(0..3)) {
                (2, 0) => vec![0, 1],
                (2, _) => vec![1, 0],
                (3, 0) => vec![1, 0, 2],
                (3, 1) => vec![0, 2, 1],
                (3, _) => vec![2, 1, 0],
                (_, 0) => vec![0, 2, 1, 3],
                (_, 1) => vec![3, 0, 2, 1],
                _ => vec![0, 1, 3, 2],
            };
            let elements: usize = dims.iter().product();
            if elements * size > most_bytes {
                continue;
            }
            let mut strides = vec![1; many];
            let gap = if rng.random_bool(0.3) {
                rng.random_range(0..3) * 16 + rng.random_range(0..2)
            } else {
                0
            };
            if rng.random_bool(0.1) {
                strides[many - 1] = 2;
            }
            for i in (1..many).rev() {
                strides[i - 1] = strides[i] * dims[i] + if i == many - 1 { gap } else { 0 };
            }
            let offset = if rng.random_bool(0.3) {
                rng.random_range(0..20)
            } else {
                0
            };
            let shift = if rng.random_bool(0.3) {
                rng.random_range(0..16) * size
            } else {
                0
            };
            let near = strides.clone();
            if far {
                // What is contiguous stays so.
                let several = (0..many).filter(|&i| dims[i] > 1 && strides[i] > 1).choose(rng);
                let Some(i) = several else {
                    continue;
                };
                let more = apart(rng, dims[i], READABLE);
                // Neighbours that are put apart must not come to lie among others.
                if more <= strides[0] * dims[0] {
                    continue;
                }
                strides[i] += more;
            }
            let view = View {
                dims,
                strides,
                near,
                order,
                offset,
                size,
                shift,
            };
            let Ok(plan) = view.plan(kernel, &device) else {
                continue;
            };
            if matches!(plan.step, Step::Launch { .. }) {
                return Some(Case::new(plan, target, view, rng.next_u64()));
            }
        }
        None
    }

    pub fn new(plan: TransposePlan, target: Target, view: View, seed: u64) -> Self {
        let last: usize = view.dims.iter().zip(&view.near).map(|(n, s)| (n - 1) * s).sum();
        let mut src = vec![0; (view.offset + last + 1) * view.size];
        StdRng::seed_from_u64(seed).fill_bytes(&mut src);
        Case {
            plan,
            target,
            view,
            src,
            seed,
            limit: u64::MAX,
            watch: ptx::watched(),
        }
    }

    /// The plan, and what it was made for.
    pub fn describe(&self) -> String {
        let Case {
            plan,
            target,
            view,
            seed,
            ..
        } = self;
        format!("{plan} ({target:?}, {view:?}, seed {seed})")
    }

    fn reference(&self) -> Vec<u8> {
        let view = &self.view;
        let count: usize = view.dims.iter().product();
        let mut out = Vec::with_capacity(count * view.size);
        for index in 0..count {
            let (mut rest, mut at) = (index, view.offset);
            for &axis in view.order.iter().rev() {
                at += rest % view.dims[axis] * view.near[axis];
                rest /= view.dims[axis];
            }
            out.extend_from_slice(&self.src[at * view.size..(at + 1) * view.size]);
        }
        out
    }

    /// The address of the first element of the source.
    fn upload(&self, memory: &mut Memory) -> u64 {
        let View {
            dims,
            strides,
            near,
            offset,
            size,
            ..
        } = &self.view;
        let pieces = pieces(&places(dims, strides), &places(dims, near), 0);
        let room = (offset + reach_of(&pieces)) * size;
        let base = memory.claim(room.next_multiple_of(READABLE) as u64);
        for (number, piece) in pieces.iter().enumerate() {
            // Kernels read whole vectors, and the last one of an allocation.
            let first = (offset + piece.start) * size;
            let start = match number {
                0 => 0,
                _ => first / READABLE * READABLE,
            };
            let mut data = vec![FILLER; first - start];
            for index in &piece.elements {
                match index {
                    Some(index) => data.extend_from_slice(&self.src[(offset + index) * size..][..*size]),
                    None => data.extend(std::iter::repeat_n(FILLER, *size)),
                }
            }
            let behind = match number + 1 < pieces.len() {
                true => data.len() + BETWEEN,
                false => (start + data.len()).next_multiple_of(READABLE) - start,
            };
            data.resize(behind, FILLER);
            memory.upload_at(base + start as u64, &data, Use::Input);
        }
        base + (offset * size) as u64
    }

    /// Runs the case with this code and compares every byte.
    pub fn run(&self, module: &Module, schedule: Schedule) -> Result<Report, Wrong> {
        let mut memory = Memory::new();
        let src = self.upload(&mut memory);
        let bytes = self.plan.problem.bytes();
        let start = GUARD + self.view.shift;
        let room = memory.reserve(start + bytes + GUARD);
        let dst = room + start as u64;
        let how = How {
            target: self.target,
            lets_next: false,
            limit: self.limit,
            watch: self.watch,
        };
        let report = launch_in(module, &self.plan, [src, dst], &how, &mut memory, schedule)?;
        if let Some(address) = memory.first_unwritten(dst, bytes) {
            return Err(Wrong::Result(format!(
                "byte {} of the destination was not written",
                address - dst
            )));
        }
        let beside = memory.first_written(room, start);
        if let Some(address) = beside.or_else(|| memory.first_written(dst + bytes as u64, GUARD)) {
            let at = address as i64 - dst as i64;
            return Err(Wrong::Result(format!(
                "byte {at} was written, of a destination of {bytes}"
            )));
        }
        let got = memory.read(dst, bytes).unwrap_or_default();
        let expected = self.reference();
        match got.iter().zip(&expected).position(|(got, expected)| got != expected) {
            Some(at) => Err(Wrong::Result(format!(
                "byte {at} of the destination is wrong\n  schedule {schedule:?}"
            ))),
            None => Ok(report),
        }
    }
}
