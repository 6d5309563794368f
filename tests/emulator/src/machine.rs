//! Launches: blocks come and go, warps take turns, copies arrive.

use crate::clock::{Clock, Epoch, MAX_COMPONENTS};
use crate::finding::{Check, Fault, Finding, Kind};
use crate::ir::*;
use crate::memory::Memory;
use crate::parse::{Module, SHARED_BASE};
use crate::shadow::Cell;
use crate::story::{Story, Watch};
use crate::tensor::Arithmetic;
use crate::tma::{Swizzle, TensorMap};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;

/// A kernel's argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    /// By value.
    Bytes(Vec<u8>),
    /// A tensor map, by value.
    Map(TensorMap),
}

impl From<u64> for Param {
    fn from(value: u64) -> Self {
        Param::Bytes(value.to_le_bytes().to_vec())
    }
}

impl From<u32> for Param {
    fn from(value: u32) -> Self {
        Param::Bytes(value.to_le_bytes().to_vec())
    }
}

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel's name.
    pub entry: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks of a cluster.
    pub cluster: [u32; 3],
    /// Bytes of shared memory beyond what the kernel declares.
    pub dynamic_shared: u32,
    /// Arguments.
    pub params: Vec<Param>,
    /// Whether the kernel may start before earlier kernels on its stream end: then it must not touch memory before it has
    /// waited for them.
    pub early: bool,
    /// Global memory whose atomics may come before that wait. The caller has a reason why earlier kernels are done with it.
    pub early_atomics: Vec<Range<u64>>,
    /// Clusters that are there at a time, at most; the next one starts when one has ended.
    pub resident: usize,
    /// Warp instructions after which a launch is given up.
    pub limit: u64,
    /// Whether shared memory that nothing wrote reads as arbitrary bytes, instead of being complained about: for kernels that
    /// read whole vectors where only a part is used. The bytes differ from seed to seed.
    pub poison: bool,
    /// Whether the report is to list the lines of the PTX that were carried out.
    pub coverage: bool,
    /// A barrier or byte whose story is told.
    pub watch: Option<Watch>,
}

impl Launch {
    /// One dimension of blocks and threads.
    pub fn new(entry: &str, blocks: u32, threads: u32) -> Self {
        Launch {
            entry: entry.to_string(),
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            cluster: [1, 1, 1],
            dynamic_shared: 0,
            params: Vec::new(),
            early: false,
            early_atomics: Vec::new(),
            resident: 8,
            limit: 1 << 34,
            poison: false,
            coverage: false,
            watch: None,
        }
    }

    /// The same with one more argument.
    pub fn param(mut self, param: impl Into<Param>) -> Self {
        self.params.push(param.into());
        self
    }
}

/// In which order things happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Warps in turn, copies soon.
    RoundRobin,
    /// Any warp, any number of instructions; copies at any time.
    Random,
    /// Copies arrive when nothing else can happen, the last first or any.
    LateCopies,
    /// One warp gets on only when no other does.
    StarvedWarp,
    /// One block gets on whenever it can.
    BlockAhead,
}

impl Order {
    /// All of them.
    pub const ALL: [Order; 5] = [
        Order::RoundRobin,
        Order::Random,
        Order::LateCopies,
        Order::StarvedWarp,
        Order::BlockAhead,
    ];
}

/// An order, and the seed of its choices: the same gives the same run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The order.
    pub order: Order,
    /// The seed.
    pub seed: u64,
}

impl Schedule {
    /// Draws an order and a seed.
    pub fn drawn(seed: u64) -> Self {
        Schedule {
            order: Order::ALL[(Random(seed).next() % 5) as usize],
            seed,
        }
    }
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Instructions, one for all threads of a warp that carry it out together.
    pub warp_instructions: u64,
    /// Instructions, one a thread.
    pub thread_instructions: u64,
    /// Multiply-adds of tensor instructions.
    pub tensor_multiply_adds: u64,
    /// Bulk copies.
    pub copies: u64,
    /// How often a wait for an mbarrier had to wait.
    pub waits: u64,
    /// Lines of the PTX that were carried out, if the launch asked for them.
    pub lines: Vec<u32>,
    /// Lines of comparisons of whole numbers that some thread made with equal operands, if the launch asked for lines.
    pub edges: Vec<u32>,
    /// What happened to the barrier or byte that the launch watches.
    pub story: Vec<String>,
}

/// Runs a kernel to its end.
///
/// # Errors
///
/// The first thing that is wrong.
pub fn run(module: &Module, launch: &Launch, memory: &mut Memory, schedule: Schedule) -> Result<Report, Box<Finding>> {
    let early = |text: String| {
        Box::new(Finding {
            kind: Kind::Launch,
            message: text,
            entry: launch.entry.clone(),
            ptx_line: 0,
            source: None,
            block: [0; 3],
            thread: None,
            schedule: format!("{schedule:?}"),
            story: Vec::new(),
        })
    };
    let Some(entry) = module.entry(&launch.entry) else {
        return Err(early(format!("there is no kernel '{}'", launch.entry)));
    };
    let params = lay_out(entry, launch).map_err(early)?;
    let globals = module
        .globals
        .iter()
        .map(|variable| {
            let mut bytes = variable.init.clone();
            bytes.resize(variable.size as usize, 0);
            memory.upload(&bytes, crate::memory::Use::Any)
        })
        .collect();
    memory.before_launch(entry.grain[1]);
    let mut machine = Machine::new(module, entry, launch, memory, schedule, params, globals);
    machine.run()
}

fn lay_out(entry: &Entry, launch: &Launch) -> Result<Vec<u8>, String> {
    let threads: u32 = launch.block.iter().product();
    if threads == 0 || threads > 1024 {
        return Err(format!("a block cannot have {threads} threads"));
    }
    if entry.max_threads.is_some_and(|most| threads > most) {
        return Err(format!("{threads} threads are more than the kernel was compiled for"));
    }
    if (0..3).any(|dim| launch.cluster[dim] == 0 || !launch.grid[dim].is_multiple_of(launch.cluster[dim])) {
        return Err(format!(
            "a grid of {:?} blocks is not made of clusters of {:?}",
            launch.grid, launch.cluster
        ));
    }
    if launch.grid.contains(&0) || launch.cluster.iter().product::<u32>() > 16 || launch.resident == 0 {
        return Err("the grid is empty or the cluster too large".to_string());
    }
    if launch.params.len() != entry.params.len() {
        return Err(format!(
            "{} arguments for {} parameters",
            launch.params.len(),
            entry.params.len()
        ));
    }
    let mut bytes = vec![0; entry.param_bytes as usize];
    for (param, declared) in launch.params.iter().zip(&entry.params) {
        let value = match param {
            Param::Bytes(bytes) => bytes.clone(),
            Param::Map(map) => {
                if let Some(complaint) = map.complaint() {
                    return Err(complaint);
                }
                map.encode()
            }
        };
        if value.len() != declared.size as usize {
            return Err(format!(
                "{} bytes for {}, which has {}",
                value.len(),
                declared.name,
                declared.size
            ));
        }
        bytes[declared.offset as usize..][..value.len()].copy_from_slice(&value);
    }
    Ok(bytes)
}

/// Numbers that look random: SplitMix64.
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Why a thread does not go on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Why {
    /// For other threads of its warp, at this instruction.
    Meet,
    /// For a barrier of the block.
    Bar { id: u32, generation: u32 },
    /// For a phase of an mbarrier.
    Mbar { slot: usize, at: u32, parity: u32 },
    /// For the cluster.
    Cluster { generation: u32 },
}

/// Two clocks: ordinary accesses, and writes that bulk copies and `wgmma` can rely on.
#[derive(Clone, Default)]
pub(crate) struct Known {
    pub clock: Clock,
    pub proxy: Clock,
    /// What was joined last, for speed.
    last: Option<Rc<Clock>>,
}

impl Known {
    pub(crate) fn join(&mut self, clock: &Rc<Clock>, proxy: &Rc<Clock>) {
        if !self.last.as_ref().is_some_and(|last| Rc::ptr_eq(last, clock)) {
            self.clock.join(clock);
            self.last = Some(clock.clone());
        }
        if !proxy.is_empty() {
            self.proxy.join(proxy);
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct NamedBarrier {
    pub arrived: u32,
    pub expected: Option<u32>,
    pub generation: u32,
    pub known: Known,
    pub done: (Rc<Clock>, Rc<Clock>),
    pub votes: [u32; 2],
    pub result: [u32; 2],
}

pub(crate) struct Mbarrier {
    pub count: u32,
    pub pending: u32,
    pub bytes: i64,
    /// Phases that have completed.
    pub phase: u32,
    pub component: u32,
    pub known: Known,
    pub done: (Rc<Clock>, Rc<Clock>),
    /// Copies that are under way.
    pub copies: u32,
    /// Who initialised it, and whether that thread has made it visible to copies and other blocks.
    pub owner: u32,
    pub public: bool,
}

pub(crate) struct Block {
    pub id: u32,
    pub at: [u32; 3],
    pub rank: u32,
    pub cluster: usize,
    pub data: Vec<u8>,
    pub cells: Vec<Cell>,
    pub warps: Vec<Option<Box<Warp>>>,
    pub live_warps: u32,
    pub bars: Vec<NamedBarrier>,
    pub mbars: BTreeMap<u32, Mbarrier>,
    pub next_component: u32,
    pub ended: bool,
    /// Other blocks' accesses to this one's shared memory: the last of each component.
    pub remote: BTreeMap<(u32, u32), u32>,
    pub known_at_end: Clock,
    pub local: Vec<u8>,
}

#[derive(Clone, Default)]
pub(crate) struct Cluster {
    pub arrived: u32,
    pub generation: u32,
    pub known: Known,
    pub done: (Rc<Clock>, Rc<Clock>),
    pub live: bool,
    pub at: [u32; 3],
}

pub(crate) struct Bulk {
    pub lane: u32,
    /// Components of reads from shared memory and of writes to global memory.
    pub components: [u32; 2],
    pub committed: u32,
    /// The group of the last copy.
    pub last: u32,
}

pub(crate) struct Warp {
    pub slot: usize,
    pub block: u32,
    pub index: u32,
    pub live: u32,
    pub blocked: u32,
    pub pc: [u32; 32],
    pub why: [Why; 32],
    pub narrow: Vec<[u32; 32]>,
    pub wide: Vec<[u64; 32]>,
    pub preds: Vec<u32>,
    pub clock: Vec<Rc<Clock>>,
    pub proxy: Vec<Rc<Clock>>,
    pub time: u32,
    /// For each lane and each lane of the warp: the last time whose reads of global memory what it has been given by `shfl` is made of.
    pub given: Box<[[u32; 32]; 32]>,
    pub committed: [u32; 32],
    pub copied: [u32; 32],
    pub wgmma_committed: u32,
    pub wgmma_done: u32,
    pub wgmma_open: bool,
    /// For each narrow register the group of a `wgmma` that writes or reads it; 0: none.
    pub wgmma_tag: Vec<u32>,
    pub wgmma_tagged: Vec<u32>,
    /// When each narrow register was last written, and when the last `wgmma.fence` was.
    pub stamps: Vec<u64>,
    pub fence: u64,
    pub count: u64,
    pub bulks: Vec<Bulk>,
    pub cluster_generation: [u32; 32],
    pub fenced: Vec<Option<Rc<Clock>>>,
    pub seen: Vec<Option<Rc<Clock>>>,
    pub tid: [[u32; 32]; 3],
    /// Branches back since the group of lanes was chosen, with others waiting.
    pub spins: u32,
    pub hint: usize,
    pub undefined: crate::defined::Undefined,
}

/// A bulk copy into shared memory that is under way.
pub(crate) struct Copy {
    pub data: Vec<u8>,
    pub swizzle: Swizzle,
    /// Slot and offset of each destination.
    pub to: Vec<(usize, u32)>,
    /// Slot and offset of the barrier of each destination.
    pub bars: Vec<(usize, u32)>,
    pub line: u32,
    pub location: u32,
    pub block: [u32; 3],
    pub thread: u32,
}

pub(crate) struct Machine<'a> {
    pub module: &'a Module,
    pub entry: &'a Entry,
    pub launch: &'a Launch,
    pub memory: &'a mut Memory,
    pub schedule: Schedule,
    pub random: Random,
    pub params: Vec<u8>,
    pub globals: Vec<u64>,
    pub blocks: Vec<Option<Box<Block>>>,
    pub clusters: Vec<Cluster>,
    pub copies: Vec<Copy>,
    pub sync: HashMap<u64, Rc<Clock>>,
    pub report: Report,
    pub threads: u32,
    pub warps: u32,
    pub cluster_blocks: u32,
    pub shared_bytes: u32,
    pub grain: u32,
    pub uses_copies: bool,
    pub uses_wgmma: bool,
    /// Instructions since something last changed that others can see.
    pub idle: u64,
    pub arithmetic: Arithmetic,
    /// For each instruction whether it was carried out; empty if nobody asks.
    pub covered: Vec<bool>,
    /// Likewise, whether it compared equal numbers.
    pub edges: Vec<bool>,
    /// The instruction that is carried out.
    pub pc: u32,
    pub story: Story,
    next_cluster: u32,
}

/// With nothing visible happening for so many warp instructions, others get their turn, or copies arrive.
const PATIENCE: u64 = 20_000;
/// And after so many nothing will.
const LIVELOCK: u64 = 3_000_000;

impl<'a> Machine<'a> {
    fn new(
        module: &'a Module,
        entry: &'a Entry,
        launch: &'a Launch,
        memory: &'a mut Memory,
        schedule: Schedule,
        params: Vec<u8>,
        globals: Vec<u64>,
    ) -> Self {
        let threads: u32 = launch.block.iter().product();
        let cluster_blocks: u32 = launch.cluster.iter().product();
        let clusters = launch.grid.iter().product::<u32>() / cluster_blocks;
        let resident = launch.resident.min(clusters as usize);
        let uses = |f: fn(&Op) -> bool| entry.code.iter().any(|instr| f(&instr.op));
        let mut blocks = Vec::new();
        blocks.resize_with(resident * cluster_blocks as usize, || None);
        Machine {
            module,
            entry,
            launch,
            memory,
            schedule,
            random: Random(schedule.seed ^ 0x5DEE_CE66D),
            params,
            globals,
            blocks,
            clusters: vec![Cluster::default(); resident],
            copies: Vec::new(),
            sync: HashMap::new(),
            report: Report::default(),
            threads,
            warps: threads.div_ceil(32),
            cluster_blocks,
            shared_bytes: SHARED_BASE + entry.static_shared + launch.dynamic_shared,
            grain: entry.grain[0],
            uses_copies: uses(|op| matches!(op, Op::CpAsync { .. })),
            uses_wgmma: uses(|op| matches!(op, Op::Wgmma(_))),
            idle: 0,
            arithmetic: Arithmetic::of(module.target),
            covered: vec![false; if launch.coverage { entry.code.len() } else { 0 }],
            edges: vec![false; if launch.coverage { entry.code.len() } else { 0 }],
            pc: 0,
            story: Story::default(),
            next_cluster: 0,
        }
    }

    /// The component of a thread of a block.
    pub(crate) fn thread_component(&self, thread: u32) -> u32 {
        1 + thread
    }

    pub(crate) fn copies_component(&self, thread: u32) -> u32 {
        if self.uses_copies {
            1 + self.threads_up() + thread
        } else {
            u32::MAX
        }
    }

    pub(crate) fn wgmma_component(&self, warp: u32) -> u32 {
        1 + self.threads_up() * (1 + u32::from(self.uses_copies)) + warp
    }

    fn threads_up(&self) -> u32 {
        self.warps * 32
    }

    fn first_free_component(&self) -> u32 {
        self.wgmma_component(self.warps)
    }

    pub(crate) fn new_component(&mut self, slot: usize) -> Check<u32> {
        let block = self.block_mut(slot);
        block.next_component += 1;
        if block.next_component >= MAX_COMPONENTS {
            return Err(Fault::new(
                Kind::Unsupported,
                "too many barriers and bulk groups in a block",
            ));
        }
        Ok(block.next_component - 1)
    }

    pub(crate) fn block_ref(&self, slot: usize) -> &Block {
        self.blocks[slot].as_ref().expect("a resident block")
    }

    pub(crate) fn block_mut(&mut self, slot: usize) -> &mut Block {
        self.blocks[slot].as_mut().expect("a resident block")
    }

    /// The slot of a block of the same cluster.
    pub(crate) fn peer(&self, slot: usize, rank: u32) -> Option<usize> {
        (rank < self.cluster_blocks).then(|| {
            let cluster = slot / self.cluster_blocks as usize;
            cluster * self.cluster_blocks as usize + rank as usize
        })
    }

    fn start_clusters(&mut self) {
        let per_dim: Vec<u32> = (0..3)
            .map(|dim| self.launch.grid[dim] / self.launch.cluster[dim])
            .collect();
        let all: u32 = per_dim.iter().product();
        for cluster in 0..self.clusters.len() {
            if self.clusters[cluster].live || self.next_cluster >= all {
                continue;
            }
            let number = self.next_cluster;
            self.next_cluster += 1;
            let at = [
                number % per_dim[0],
                number / per_dim[0] % per_dim[1],
                number / per_dim[0] / per_dim[1],
            ];
            self.clusters[cluster] = Cluster {
                live: true,
                at,
                ..Cluster::default()
            };
            for rank in 0..self.cluster_blocks {
                let size = self.launch.cluster;
                let inside = [rank % size[0], rank / size[0] % size[1], rank / size[0] / size[1]];
                let place: [u32; 3] = std::array::from_fn(|dim| at[dim] * size[dim] + inside[dim]);
                let slot = cluster * self.cluster_blocks as usize + rank as usize;
                self.start_block(slot, cluster, rank, place);
            }
        }
    }

    fn start_block(&mut self, slot: usize, cluster: usize, rank: u32, at: [u32; 3]) {
        let [gx, gy, _] = self.launch.grid;
        let id = at[0] + gx * (at[1] + gy * at[2]);
        let empty = Rc::new(Clock::default());
        let old = self.blocks[slot].take();
        let (mut data, mut cells, mut old_warps) = match old {
            Some(old) => (old.data, old.cells, old.warps),
            None => (Vec::new(), Vec::new(), Vec::new()),
        };
        data.resize(self.shared_bytes as usize, 0);
        match self.launch.poison {
            false => data.fill(0xFF),
            true => data.iter_mut().for_each(|byte| *byte = self.random.next() as u8),
        }
        cells.clear();
        cells.resize_with((self.shared_bytes as usize).div_ceil(1 << self.grain), Cell::default);
        let [bx, by, _] = self.launch.block;
        let mut warps = Vec::new();
        for index in 0..self.warps {
            let many = (self.threads - index * 32).min(32);
            let old = old_warps.get_mut(index as usize).and_then(Option::take);
            let (narrow, wide, preds, tags, stamps) = match old {
                Some(old) => (old.narrow, old.wide, old.preds, old.wgmma_tag, old.stamps),
                None => Default::default(),
            };
            let mut narrow = narrow;
            let mut wide = wide;
            let (mut preds, mut tags, mut stamps) = (preds, tags, stamps);
            let registers = self.entry.registers;
            narrow.resize(registers[1] as usize, [0xDEAD_BEEF; 32]);
            wide.resize(registers[2] as usize, [0xDEAD_BEEF_DEAD_BEEF; 32]);
            preds.resize(registers[0] as usize, 0);
            if self.uses_wgmma {
                tags.clear();
                stamps.clear();
                tags.resize(registers[1] as usize, 0);
                stamps.resize(registers[1] as usize, 0);
            }
            let mut tid = [[0; 32]; 3];
            for lane in 0..32 {
                let thread = index * 32 + lane as u32;
                tid[0][lane] = thread % bx;
                tid[1][lane] = thread / bx % by;
                tid[2][lane] = thread / bx / by;
            }
            warps.push(Some(Box::new(Warp {
                slot,
                block: id,
                index,
                live: if many == 32 { u32::MAX } else { (1 << many) - 1 },
                blocked: 0,
                pc: [0; 32],
                why: [Why::Meet; 32],
                narrow,
                wide,
                preds,
                clock: vec![empty.clone(); 32],
                proxy: vec![empty.clone(); 32],
                time: 1,
                given: Box::new([[0; 32]; 32]),
                committed: [0; 32],
                copied: [0; 32],
                wgmma_committed: 0,
                wgmma_done: 0,
                wgmma_open: false,
                wgmma_tag: tags,
                wgmma_tagged: Vec::new(),
                stamps,
                fence: 0,
                count: 1,
                bulks: Vec::new(),
                cluster_generation: [0; 32],
                fenced: vec![None; 32],
                seen: vec![None; 32],
                tid,
                spins: 0,
                hint: 0,
                undefined: Default::default(),
            })));
        }
        self.blocks[slot] = Some(Box::new(Block {
            id,
            at,
            rank,
            cluster,
            data,
            cells,
            live_warps: self.warps,
            warps,
            bars: vec![NamedBarrier::default(); 16],
            mbars: BTreeMap::new(),
            next_component: self.first_free_component(),
            ended: false,
            remote: BTreeMap::new(),
            known_at_end: Clock::default(),
            local: vec![0xFF; (self.entry.local_bytes * self.threads) as usize],
        }));
    }

    fn run(&mut self) -> Result<Report, Box<Finding>> {
        let mut turn = 0usize;
        let mut ready: Vec<(usize, usize)> = Vec::new();
        let favoured = self.random.next();
        let eager = self.random.next().is_multiple_of(2);
        loop {
            self.start_clusters();
            ready.clear();
            let mut alive = false;
            for slot in 0..self.blocks.len() {
                let Some(block) = &self.blocks[slot] else { continue };
                if block.ended {
                    continue;
                }
                alive = true;
                for index in 0..self.warps as usize {
                    if self.poll(slot, index) {
                        ready.push((slot, index));
                    }
                }
            }
            if !alive {
                if self.clusters.iter().any(|cluster| cluster.live) {
                    // The last blocks have just ended.
                    self.retire();
                    continue;
                }
                return match self.copies.is_empty() {
                    true => {
                        let lines = |marks: &[bool]| {
                            let code = self.entry.code.iter().zip(marks);
                            code.filter(|(_, mark)| **mark).map(|(instr, _)| instr.line).collect()
                        };
                        self.report.lines = lines(&self.covered);
                        self.report.edges = lines(&self.edges);
                        self.report.story = self.story();
                        Ok(std::mem::take(&mut self.report))
                    }
                    false => Err(self.unfinished()),
                };
            }
            self.retire();
            if ready.is_empty() {
                if self.copies.is_empty() {
                    return Err(self.deadlock());
                }
                let pick = self.random.below(self.copies.len());
                self.deliver(pick)?;
                continue;
            }
            if self.idle > LIVELOCK {
                return Err(self.livelock());
            }
            if self.report.warp_instructions > self.launch.limit {
                return Err(self.livelock());
            }
            let impatient = self.idle > PATIENCE;
            let order = self.schedule.order;
            let at = match order {
                Order::RoundRobin => {
                    turn += 1;
                    turn % ready.len()
                }
                Order::StarvedWarp if !impatient && ready.len() > 1 => {
                    let warps = self.blocks.len() * self.warps as usize;
                    let starved = favoured as usize % warps;
                    let starved = (starved / self.warps as usize, starved % self.warps as usize);
                    let at = self.random.below(ready.len());
                    if ready[at] == starved {
                        (at + 1) % ready.len()
                    } else {
                        at
                    }
                }
                Order::BlockAhead if !impatient => {
                    let slot = favoured as usize % self.blocks.len();
                    let ahead: Vec<usize> = (0..ready.len()).filter(|&i| ready[i].0 == slot).collect();
                    match ahead.is_empty() {
                        true => self.random.below(ready.len()),
                        false => ahead[self.random.below(ahead.len())],
                    }
                }
                _ => self.random.below(ready.len()),
            };
            let budget = match order {
                Order::RoundRobin => 100,
                _ => match self.random.below(4) {
                    0 => 1 + self.random.below(8),
                    1 => 1 + self.random.below(64),
                    _ => 1 + self.random.below(400),
                },
            };
            let (slot, index) = ready[at];
            self.turn(slot, index, budget as u64)?;
            if self.copies.is_empty() {
                continue;
            }
            let deliver = match order {
                Order::RoundRobin => true,
                Order::LateCopies => impatient,
                Order::StarvedWarp | Order::BlockAhead => eager || impatient,
                Order::Random => self.random.below(4) == 0,
            };
            if deliver {
                let pick = if order == Order::RoundRobin {
                    0
                } else {
                    self.random.below(self.copies.len())
                };
                self.deliver(pick)?;
            }
        }
    }

    fn turn(&mut self, slot: usize, index: usize, budget: u64) -> Result<(), Box<Finding>> {
        let Some(mut warp) = self.block_mut(slot).warps[index].take() else {
            return Ok(());
        };
        let result = self.run_warp(&mut warp, budget);
        let result = result.map_err(|(fault, pc, lanes)| {
            let instr = &self.entry.code[pc as usize];
            let lane = fault.lane.unwrap_or(lanes.trailing_zeros().min(31));
            let at = self.block_ref(slot).at;
            self.finding(*fault, instr.line, instr.location, at, Some(warp.index * 32 + lane))
        });
        self.block_mut(slot).warps[index] = Some(warp);
        result
    }

    pub(crate) fn finding(
        &self,
        fault: Fault,
        line: u32,
        location: u32,
        block: [u32; 3],
        thread: Option<u32>,
    ) -> Box<Finding> {
        let mut message = fault.text;
        if let Some(epoch) = fault.other {
            message += &format!(": {}", self.describe(epoch));
        }
        let known = location != 0;
        Box::new(Finding {
            kind: fault.kind,
            message,
            entry: self.launch.entry.clone(),
            ptx_line: line,
            source: known.then(|| self.module.describe(self.entry.locations[location as usize])),
            block,
            thread,
            schedule: format!("{:?} seed {}", self.schedule.order, self.schedule.seed),
            story: self.story(),
        })
    }

    /// Whose access an epoch is.
    fn describe(&self, epoch: Epoch) -> String {
        let component = epoch.component();
        let [gx, gy, _] = self.launch.grid;
        let id = epoch.block();
        let block = format!("block ({}, {}, {})", id % gx, id / gx % gy, id / gx / gy);
        if component == 0 {
            return "an earlier kernel".to_string();
        }
        if component < 1 + self.threads_up() {
            return format!("thread {} of {block}", component - 1);
        }
        if component < self.wgmma_component(0) {
            return format!("a cp.async of thread {} of {block}", component - 1 - self.threads_up());
        }
        if component < self.first_free_component() {
            return format!("a wgmma of warp {} of {block}", component - self.wgmma_component(0));
        }
        let here = self.blocks.iter().flatten().find(|resident| resident.id == id);
        if let Some(here) = here {
            for (at, barrier) in &here.mbars {
                if barrier.component == component {
                    return format!(
                        "a bulk copy for phase {} of the mbarrier at {at:#x} of {block}",
                        epoch.time() - 1
                    );
                }
            }
        }
        format!("a bulk copy of {block}")
    }

    /// Whether a warp can go on; lanes whose condition has come true do.
    fn poll(&mut self, slot: usize, index: usize) -> bool {
        let block = self.blocks[slot].as_mut().expect("a resident block");
        let Some(mut warp) = block.warps[index].take() else {
            return false;
        };
        if warp.blocked == 0 {
            let ready = warp.live != 0;
            block.warps[index] = Some(warp);
            return ready;
        }
        let mut rest = warp.blocked;
        while rest != 0 {
            let why = warp.why[rest.trailing_zeros() as usize];
            let same = (0..32)
                .filter(|&lane| rest >> lane & 1 == 1 && warp.why[lane] == why)
                .fold(0u32, |mask, lane| mask | 1 << lane);
            rest &= !same;
            if !self.is_free(slot, why) {
                continue;
            }
            warp.blocked &= !same;
            let done = match why {
                Why::Bar { id, .. } => {
                    self.barrier_result(&mut warp, same, id);
                    &self.block_ref(slot).bars[id as usize].done
                }
                Why::Cluster { .. } => &self.clusters[self.block_ref(slot).cluster].done,
                Why::Mbar { .. } | Why::Meet => continue,
            };
            crate::clock::join_lanes(&mut warp.clock, same, &done.0);
            crate::clock::join_lanes(&mut warp.proxy, same, &done.1);
            for lane in 0..32 {
                warp.pc[lane] += same >> lane & 1;
            }
        }
        let ready = warp.live & !warp.blocked != 0;
        self.block_mut(slot).warps[index] = Some(warp);
        ready
    }

    fn barrier_result(&mut self, warp: &mut Warp, lanes: u32, id: u32) {
        let result = self.block_ref(warp.slot).bars[id as usize].result;
        for lane in 0..32 {
            if lanes >> lane & 1 == 0 {
                continue;
            }
            let Op::Bar { kind, .. } = &self.entry.code[warp.pc[lane] as usize].op else {
                continue;
            };
            let (d, value) = match *kind {
                BarKind::RedAnd(d, _) => (d, result[0] == result[1]),
                BarKind::RedOr(d, _) => (d, result[0] > 0),
                BarKind::RedPopc(d, _) => {
                    if d != SINK {
                        warp.narrow[d as usize][lane] = result[0];
                    }
                    continue;
                }
                _ => continue,
            };
            if d != SINK {
                let bit = 1 << lane;
                let word = &mut warp.preds[d as usize];
                *word = if value { *word | bit } else { *word & !bit };
            }
        }
    }

    fn is_free(&self, slot: usize, why: Why) -> bool {
        match why {
            Why::Meet => false,
            Why::Bar { id, generation } => self.block_ref(slot).bars[id as usize].generation != generation,
            Why::Mbar { slot, at, parity } => match self.blocks[slot].as_ref().and_then(|block| block.mbars.get(&at)) {
                Some(barrier) => barrier.phase % 2 != parity,
                None => true,
            },
            Why::Cluster { generation } => {
                let cluster = self.block_ref(slot).cluster;
                self.clusters[cluster].generation != generation
            }
        }
    }

    /// Clusters all of whose blocks have ended make room.
    fn retire(&mut self) {
        for cluster in 0..self.clusters.len() {
            if !self.clusters[cluster].live {
                continue;
            }
            let first = cluster * self.cluster_blocks as usize;
            let slots = first..first + self.cluster_blocks as usize;
            let ended = slots
                .clone()
                .all(|slot| self.blocks[slot].as_ref().is_some_and(|block| block.ended));
            let arriving = self
                .copies
                .iter()
                .any(|copy| copy.to.iter().any(|(slot, _)| slots.contains(slot)));
            if ended && !arriving {
                self.clusters[cluster].live = false;
            }
        }
    }

    /// A copy arrives.
    fn deliver(&mut self, pick: usize) -> Result<(), Box<Finding>> {
        self.idle = 0;
        let copy = self.copies.remove(pick);
        for &(slot, offset) in &copy.to {
            let swizzle = copy.swizzle;
            let block = self.block_mut(slot);
            for (i, chunk) in copy.data.chunks(16).enumerate() {
                let to = swizzle.apply(offset + 16 * i as u32) as usize;
                block.data[to..to + chunk.len()].copy_from_slice(chunk);
            }
            if self.watches_shared(offset, copy.data.len() as u32) {
                self.happens(slot, format!("a bulk copy of {} bytes arrives", copy.data.len()));
            }
        }
        let bytes = copy.data.len() as i64;
        for &(slot, at) in &copy.bars {
            let result = self.copy_done(slot, at, bytes);
            if let Err(fault) = result {
                return Err(self.finding(*fault, copy.line, copy.location, copy.block, Some(copy.thread)));
            }
        }
        Ok(())
    }

    fn copy_done(&mut self, slot: usize, at: u32, bytes: i64) -> Check<()> {
        let Some(barrier) = self.block_mut(slot).mbars.get_mut(&at) else {
            return Err(Fault::new(
                Kind::Mbarrier,
                format!("a copy completes on {at:#x}, where there is no mbarrier any more"),
            ));
        };
        barrier.bytes -= bytes;
        barrier.copies -= 1;
        let missing = barrier.bytes;
        if self.watches_shared(at, 8) {
            let what = format!("a copy of {bytes} bytes completes on it; {missing} are still to come");
            self.happens(slot, what);
        }
        self.advance_mbarrier(slot, at)
    }

    /// Completes the phase of an mbarrier if all have come.
    pub(crate) fn advance_mbarrier(&mut self, slot: usize, at: u32) -> Check<()> {
        self.idle = 0;
        let block = self.blocks[slot].as_mut().expect("a resident block");
        let id = block.id;
        let Some(barrier) = block.mbars.get_mut(&at) else {
            return Ok(());
        };
        if barrier.pending > 0 || barrier.bytes != 0 {
            return Ok(());
        }
        barrier.phase += 1;
        barrier.pending = barrier.count;
        barrier.known.clock.learn(id, barrier.component, barrier.phase);
        barrier.done = (
            Rc::new(barrier.known.clock.clone()),
            Rc::new(barrier.known.proxy.clone()),
        );
        let (phase, copies) = (barrier.phase - 1, barrier.copies);
        if self.watches_shared(at, 8) {
            self.happens(slot, format!("phase {phase} of the mbarrier completes"));
        }
        if copies > 0 {
            return Err(Fault::new(
                Kind::TransactionCount,
                format!(
                    "phase {phase} of the mbarrier at {at:#x} completes while {copies} of its copies are under way: fewer \
                     bytes were announced than are copied"
                ),
            ));
        }
        Ok(())
    }

    fn unfinished(&self) -> Box<Finding> {
        let copy = &self.copies[0];
        self.finding(
            *Fault::new(
                Kind::Unfinished,
                "all threads have ended, and a bulk copy is still under way",
            ),
            copy.line,
            copy.location,
            copy.block,
            Some(copy.thread),
        )
    }

    fn livelock(&self) -> Box<Finding> {
        let text = format!("threads go on, but nothing changes any more\n{}", self.waiting());
        self.finding(*Fault::new(Kind::Livelock, text), 0, 0, [0; 3], None)
    }

    fn deadlock(&self) -> Box<Finding> {
        let text = format!("all threads wait\n{}", self.waiting());
        let mut place = (0, 0, [0; 3], None);
        'found: for block in self.blocks.iter().flatten() {
            for warp in block.warps.iter().flatten() {
                if warp.live != 0 {
                    let lane = warp.live.trailing_zeros();
                    let instr = &self.entry.code[warp.pc[lane as usize] as usize];
                    place = (instr.line, instr.location, block.at, Some(warp.index * 32 + lane));
                    break 'found;
                }
            }
        }
        self.finding(*Fault::new(Kind::Deadlock, text), place.0, place.1, place.2, place.3)
    }

    /// Who waits for what.
    fn waiting(&self) -> String {
        const MOST: usize = 24;
        let mut lines = Vec::new();
        for block in self.blocks.iter().flatten().filter(|block| !block.ended) {
            for warp in block.warps.iter().flatten() {
                let mut rest = warp.live;
                while rest != 0 {
                    let lane = rest.trailing_zeros() as usize;
                    let same = (0..32)
                        .filter(|&other| {
                            rest >> other & 1 == 1
                                && warp.pc[other] == warp.pc[lane]
                                && (warp.blocked >> other & 1) == (warp.blocked >> lane & 1)
                                && (warp.why[other] == warp.why[lane] || warp.blocked >> lane & 1 == 0)
                        })
                        .fold(0u32, |mask, other| mask | 1 << other);
                    rest &= !same;
                    let instr = &self.entry.code[warp.pc[lane] as usize];
                    let what = match warp.why[lane] {
                        _ if warp.blocked >> lane & 1 == 0 => "run".to_string(),
                        Why::Meet => "wait for other lanes of their warp".to_string(),
                        Why::Bar { id, .. } => {
                            let barrier = &block.bars[id as usize];
                            let all = barrier.expected.unwrap_or(block.live_warps * 32);
                            format!("wait at barrier {id}, where {} of {all} threads are", barrier.arrived)
                        }
                        Why::Mbar { slot, at, parity } => match self.block_ref(slot).mbars.get(&at) {
                            Some(barrier) => format!(
                                "wait for parity {parity} of the mbarrier at {at:#x}: phase {}, {} of {} arrivals and {} \
                                 bytes are missing",
                                barrier.phase, barrier.pending, barrier.count, barrier.bytes
                            ),
                            None => format!("wait for the mbarrier at {at:#x}, which is gone"),
                        },
                        Why::Cluster { .. } => "wait for their cluster".to_string(),
                    };
                    lines.push(format!(
                        "    block {}: lanes {same:#010x} of warp {} {what} (PTX line {})",
                        block.id, warp.index, instr.line
                    ));
                }
            }
        }
        let many = lines.len();
        lines.truncate(MOST);
        if many > MOST {
            lines.push(format!("    and {} more", many - MOST));
        }
        lines.join("\n")
    }

    /// A warp has ended: barriers wait for one less.
    pub(crate) fn warp_ended(&mut self, slot: usize) -> Check<()> {
        let block = self.block_mut(slot);
        block.live_warps -= 1;
        let live = block.live_warps;
        for id in 0..block.bars.len() as u32 {
            let barrier = &self.block_ref(slot).bars[id as usize];
            if barrier.expected.is_none() && barrier.arrived > 0 {
                self.complete_barrier(slot, id);
            }
        }
        let cluster = self.block_ref(slot).cluster;
        self.complete_cluster(cluster);
        if live > 0 {
            return Ok(());
        }
        let block = self.block_mut(slot);
        block.ended = true;
        for (&(other, component), &time) in &block.remote {
            let epoch = Epoch::new(other, component, time);
            if !block.known_at_end.knows(epoch) {
                return Err(Fault::race(
                    Kind::ClusterExit,
                    "this block may end while its shared memory is still used",
                    epoch,
                ));
            }
        }
        if self.copies.iter().any(|copy| copy.to.iter().any(|&(to, _)| to == slot)) {
            return Err(Fault::new(
                Kind::ClusterExit,
                "this block ends while a bulk copy into its shared memory is under way",
            ));
        }
        Ok(())
    }

    /// Lets those at a barrier go on if all have come.
    pub(crate) fn complete_barrier(&mut self, slot: usize, id: u32) {
        let block = self.block_mut(slot);
        let live = block.live_warps * 32;
        let barrier = &mut block.bars[id as usize];
        if barrier.arrived < barrier.expected.unwrap_or(live) {
            return;
        }
        let known = std::mem::take(&mut barrier.known);
        barrier.done = (Rc::new(known.clock), Rc::new(known.proxy));
        barrier.result = barrier.votes;
        barrier.votes = [0; 2];
        barrier.arrived = 0;
        barrier.expected = None;
        barrier.generation += 1;
        if self.watches_barrier(id) {
            self.happens(slot, format!("all are at barrier {id}"));
        }
    }

    pub(crate) fn complete_cluster(&mut self, cluster: usize) {
        let first = cluster * self.cluster_blocks as usize;
        let live: u32 = (first..first + self.cluster_blocks as usize)
            .filter_map(|slot| self.blocks[slot].as_ref())
            .map(|block| block.live_warps)
            .sum();
        let state = &mut self.clusters[cluster];
        if state.arrived == 0 || state.arrived < live {
            return;
        }
        let known = std::mem::take(&mut state.known);
        state.done = (Rc::new(known.clock), Rc::new(known.proxy));
        state.arrived = 0;
        state.generation += 1;
    }
}
