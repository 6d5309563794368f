//! The rules on drawn graphs, which are run before and after: in a memory where what is freed is lost, outputs must be the same.
//! And on one graph that each rule keeps from being folded when it is changed.

use super::neighbour::{Neighbour, Operation};
use super::node::{Chain, Step, Work};
use super::rules::{stages, with_next, Obstacle, Product};
use crate::gemm::launch::args::Addresses;
use crate::gemm::operands::Operands;
use crate::gemm::{Activation, Combine, DType, ElementTypes, GemmProblem, OperandLayout, MAX_BATCH_DIMS};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, HashMap};

const DTYPE: DType = DType::F32;
const ELEMENT: u64 = DTYPE.size() as u64;
const UNIT: u64 = 256;

// ---- a memory, and what runs in it ---------------------------------------------------------------------------------

#[derive(Clone, Default)]
struct Memory(BTreeMap<u64, Vec<f64>>);

impl Memory {
    fn at(&self, address: u64) -> Option<(u64, usize)> {
        let (start, numbers) = self.0.range(..=address).next_back()?;
        let index = ((address - start) / ELEMENT) as usize;
        (index < numbers.len()).then_some((*start, index))
    }

    /// What is not there is no number.
    fn read(&self, address: u64) -> f64 {
        self.at(address)
            .map_or(f64::NAN, |(start, index)| self.0[&start][index])
    }

    fn write(&mut self, address: u64, number: f64) {
        if let Some((start, index)) = self.at(address) {
            self.0.get_mut(&start).unwrap()[index] = number;
        }
    }
}

fn step_by(address: u64, elements: i64) -> u64 {
    address.wrapping_add_signed(elements * ELEMENT as i64)
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Identity => x,
        Activation::Relu => x.max(0.0),
        Activation::Tanh => x.tanh(),
        Activation::Silu => x / (1.0 + (-x).exp()),
        // Any others, as long as they differ.
        Activation::GeluTanh => x * (x + 0.1).tanh(),
        Activation::GeluErf => x * (x + 0.2).tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
    }
}

/// All places of a problem's result: batch indices, row, column.
fn places(problem: &GemmProblem) -> Vec<([i64; MAX_BATCH_DIMS], i64, i64)> {
    let mut places = Vec::new();
    for flat in 0..problem.batch() {
        let mut rest = flat;
        let mut index = [0; MAX_BATCH_DIMS];
        for (at, &extent) in index.iter_mut().zip(&problem.batch_dims).rev() {
            *at = (rest % extent) as i64;
            rest /= extent;
        }
        for row in 0..problem.m as i64 {
            places.extend((0..problem.n as i64).map(|col| (index, row, col)));
        }
    }
    places
}

fn run_product(product: &Product, memory: &mut Memory) {
    let Product { problem, at, alpha, .. } = product;
    let element = |memory: &Memory, layout: &OperandLayout, start: u64, batch: &[i64; 4], row: i64, col: i64| {
        let batch: i64 = batch
            .iter()
            .zip(layout.batch_strides)
            .map(|(i, stride)| i * stride)
            .sum();
        memory.read(step_by(
            start,
            batch + row * layout.row_stride + col * layout.col_stride,
        ))
    };
    let operands = at.operands;
    let mut results = Vec::new();
    for (batch, row, col) in places(problem) {
        let products = (0..problem.k as i64).map(|k| {
            element(memory, &problem.a, operands.a, &batch, row, k)
                * element(memory, &problem.b, operands.b, &batch, k, col)
        });
        let mut x = f64::from(*alpha) * products.sum::<f64>();
        if problem.epilogue.bias {
            x += memory.read(step_by(operands.bias, col * at.bias_stride));
        }
        x = activated(problem.epilogue.activation, x);
        if let Some(layout) = &problem.epilogue.residual {
            let residual = element(memory, layout, operands.residual, &batch, row, col);
            x = match problem.epilogue.combine {
                Combine::Multiply => x * residual,
                _ => x + residual,
            };
        }
        results.push(x);
    }
    // All are read before the first is written only where operands and result are apart, as they must be: a kernel's blocks run
    // in any order. So what is written over an operand shows as no number.
    let starts = [operands.a, operands.b, operands.bias, operands.residual];
    let over = starts
        .iter()
        .any(|&start| start != 0 && memory.at(start).map(|at| at.0) == memory.at(operands.d).map(|at| at.0));
    for (x, i) in results.into_iter().zip(0..) {
        memory.write(step_by(operands.d, i), if over { f64::NAN } else { x });
    }
}

fn run_neighbour(call: &Neighbour, words: &[u64], memory: &mut Memory) {
    let rank = call.rank as usize;
    let offset = |element: u64, which: usize| -> i64 {
        if call.view == 0 {
            return element as i64;
        }
        let (extents, strides) = (&words[..rank], &words[rank * (1 + which)..]);
        let mut rest = element;
        let mut offset = 0;
        for (&extent, &stride) in extents.iter().zip(strides).rev() {
            offset += (rest % extent * stride) as i64;
            rest /= extent;
        }
        offset
    };
    let result = |element: u64, memory: &Memory| {
        let x = memory.read(step_by(call.operands[0], offset(element, 0)));
        let other = || memory.read(step_by(call.operands[1], offset(element, 1)));
        match call.operation {
            Operation::Add => x + other(),
            Operation::Multiply => x * other(),
            Operation::Activate(activation) => activated(activation, x),
            Operation::Scale(factor) => x * f64::from(factor),
        }
    };
    let results: Vec<f64> = (0..call.elements).map(|element| result(element, memory)).collect();
    for (x, i) in results.into_iter().zip(0..) {
        memory.write(step_by(call.result, i), x);
    }
}

/// What a step does when it is run.
#[derive(Clone, Debug)]
enum Does {
    Product(Box<Product>),
    Neighbour(Neighbour),
    /// Twice each element of the first memory into the second, so many.
    Doubled(u64, u64, u64),
    Memory,
}

#[derive(Clone, Default)]
struct Graph {
    steps: Vec<(Step, Does)>,
    /// Numbers that describe operands, by address.
    views: HashMap<u64, Vec<u64>>,
    /// Memory that is there before and afterwards.
    outside: Memory,
}

impl Graph {
    fn chain(&self) -> Chain {
        Chain::new(self.steps.iter().map(|(step, _)| step.clone()).collect())
    }

    fn products(&self) -> Vec<Product> {
        let products = self.steps.iter().filter_map(|(_, does)| match does {
            Does::Product(product) => Some(**product),
            _ => None,
        });
        products.collect()
    }

    fn view(&self, address: u64, words: usize) -> Option<Vec<u64>> {
        self.views.get(&address)?.get(..words).map(<[u64]>::to_vec)
    }

    /// The memory outside after a run.
    fn run(&self) -> Memory {
        let mut memory = self.outside.clone();
        for (step, does) in &self.steps {
            match (does, &step.work) {
                (Does::Product(product), _) => run_product(product, &mut memory),
                (Does::Neighbour(call), _) => {
                    let words = self.views.get(&call.view).cloned().unwrap_or_default();
                    run_neighbour(call, &words, &mut memory);
                }
                (Does::Doubled(from, to, count), _) => {
                    for i in 0..*count as i64 {
                        let x = 2.0 * memory.read(step_by(*from, i));
                        memory.write(step_by(*to, i), x);
                    }
                }
                (Does::Memory, Work::Allocate(range)) => {
                    let elements = (range.end - range.start) / ELEMENT;
                    memory.0.insert(range.start, vec![f64::NAN; elements as usize]);
                }
                (Does::Memory, Work::Free(start)) => {
                    memory.0.remove(start);
                }
                (Does::Memory, _) => (),
            }
        }
        memory.0.retain(|start, _| self.outside.0.contains_key(start));
        memory
    }

    /// The same with products folded as far as that goes, and how many kernels that spares.
    fn folded(&self) -> (Graph, Vec<Vec<Product>>) {
        let (chain, mut folded) = (self.chain(), self.clone());
        let mut all = Vec::new();
        for product in self.products() {
            let stages = stages(&chain, &product, |address, words| self.view(address, words));
            if let Some(last) = stages.last() {
                for place in stages
                    .iter()
                    .rev()
                    .skip(1)
                    .map(|stage| stage.place)
                    .chain([product.place])
                {
                    folded.steps[place].1 = Does::Memory;
                    folded.steps[place].0.work = Work::Touch(Vec::new());
                }
                folded.steps[last.place].1 = Does::Product(Box::new(*last));
            }
            all.push(stages);
        }
        (folded, all)
    }

    fn push(&mut self, work: Work, does: Does) {
        self.steps.push((Step { work, waits: true }, does));
    }

    fn kernel(&mut self, name: &str, parameters: Vec<Vec<u8>>, does: Does) {
        let name = name.to_string();
        self.push(Work::Kernel { name, parameters }, does);
    }

    fn product(&mut self, problem: GemmProblem, operands: Operands<u64>, alpha: f32) -> usize {
        let product = Product {
            place: self.steps.len(),
            problem,
            at: Addresses::new(operands),
            alpha,
        };
        // The arguments are one struct.
        let words = [7, operands.a, operands.b, operands.d, 3];
        let parameters = vec![words.iter().flat_map(|word| word.to_le_bytes()).collect()];
        self.kernel("gemm", parameters, Does::Product(Box::new(product)));
        product.place
    }

    fn neighbour(&mut self, call: Neighbour) {
        let name = match call.operation {
            Operation::Add => "badd",
            Operation::Multiply => "bmul",
            Operation::Activate(Activation::Relu) => "urelu",
            Operation::Activate(Activation::GeluTanh) => "ugelu",
            Operation::Activate(Activation::GeluErf) => "ugelu_erf",
            Operation::Activate(Activation::Silu) => "usilu",
            Operation::Activate(Activation::Tanh) => "utanh",
            Operation::Activate(_) => "usigmoid",
            Operation::Scale(_) => "affine",
        };
        let [x, y] = call.operands;
        let mut words = vec![call.elements, call.rank, call.view, x];
        if matches!(call.operation, Operation::Add | Operation::Multiply) {
            words.push(y);
        }
        words.push(call.result);
        let mut parameters: Vec<Vec<u8>> = words.iter().map(|word| word.to_le_bytes().to_vec()).collect();
        if let Operation::Scale(factor) = call.operation {
            parameters.extend([factor, 0.0].map(|number| number.to_le_bytes().to_vec()));
        }
        let name = format!("{name}_{}", call.dtype);
        assert_eq!(Neighbour::of(&name, &parameters), Some(call), "{name}");
        self.kernel(&name, parameters, Does::Neighbour(call));
    }
}

fn same(one: &Memory, other: &Memory) -> bool {
    let near = |x: f64, y: f64| (x - y).abs() <= 1e-9 * (1.0 + x.abs()) || (x.is_nan() && y.is_nan());
    one.0.len() == other.0.len()
        && one.0.iter().zip(&other.0).all(|(one, other)| {
            one.0 == other.0 && one.1.len() == other.1.len() && one.1.iter().zip(other.1).all(|(x, y)| near(*x, *y))
        })
}

// ---- drawn graphs --------------------------------------------------------------------------------------------------

#[derive(Clone, Debug)]
struct Tensor {
    address: u64,
    /// Batch, rows and columns.
    shape: [u64; 3],
}

impl Tensor {
    fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

struct Draw {
    rng: StdRng,
    graph: Graph,
    /// The graph's own that are there, the last one last.
    own: Vec<Tensor>,
    /// Freed memory: begin and bytes.
    free: Vec<(u64, u64)>,
    end: u64,
}

impl Draw {
    fn new(seed: u64) -> Self {
        Draw {
            rng: StdRng::seed_from_u64(seed),
            graph: Graph::default(),
            own: Vec::new(),
            free: Vec::new(),
            end: 0x7f00_0000_0000,
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn outside(&mut self, shape: [u64; 3]) -> Tensor {
        let address = 0x5000_0000 + UNIT * 64 * self.graph.outside.0.len() as u64;
        let numbers = (0..shape.iter().product()).map(|_| self.rng.random_range(-1.0..1.0));
        let numbers: Vec<f64> = numbers.collect();
        self.graph.outside.0.insert(address, numbers);
        Tensor { address, shape }
    }

    fn allocate(&mut self, shape: [u64; 3]) -> Tensor {
        let bytes = (shape.iter().product::<u64>() * ELEMENT).next_multiple_of(UNIT);
        let again = self.free.iter().position(|&(_, there)| there >= bytes);
        let address = match again.filter(|_| self.rng.random_bool(0.7)) {
            Some(place) => self.free.swap_remove(place).0,
            None => {
                self.end += bytes;
                self.end - bytes
            }
        };
        self.graph.push(Work::Allocate(address..address + bytes), Does::Memory);
        let tensor = Tensor { address, shape };
        self.own.push(tensor.clone());
        tensor
    }

    fn release(&mut self, place: usize) {
        let tensor = self.own.remove(place);
        let bytes = (tensor.elements() * ELEMENT).next_multiple_of(UNIT);
        self.free.push((tensor.address, bytes));
        self.graph.push(Work::Free(tensor.address), Does::Memory);
    }

    /// One that is there, mostly the last, or one from outside.
    fn operand(&mut self, shape: [u64; 3]) -> Tensor {
        let elements: u64 = shape.iter().product();
        let fitting: Vec<Tensor> = self
            .own
            .iter()
            .filter(|own| own.elements() == elements)
            .cloned()
            .collect();
        match fitting.choose(&mut self.rng) {
            Some(tensor) if self.rng.random_bool(0.6) => tensor.clone(),
            _ => self.outside(shape),
        }
    }

    fn product(&mut self) {
        let mut size = || self.rng.random_range(1..=4u64);
        let (m, n, k) = (size(), size(), size());
        let batch = *[1, 1, 2, 3, 4, 6].choose(&mut self.rng).expect("there are some");
        let (a, b) = (self.operand([batch, m, k]), self.operand([batch, k, n]));
        let d = self.allocate([batch, m, n]);
        let layout = |rows: u64, cols: u64| {
            let layout = OperandLayout::row_major(cols as usize);
            layout.with_batch_strides([0, 0, 0, if batch > 1 { (rows * cols) as i64 } else { 0 }])
        };
        let mut problem = GemmProblem::new(m as usize, n as usize, k as usize, layout(m, k), layout(k, n));
        problem.d = layout(m, n);
        problem.batch_dims[3] = batch as usize;
        problem.types = ElementTypes::all_of(DTYPE);
        let operands = Operands {
            a: a.address,
            b: b.address,
            d: d.address,
            ..Operands::default()
        };
        let problem = *problem.folded().expect("a problem with sizes");
        self.graph.product(problem, operands, 1.0);
    }

    /// An element-wise kernel, mostly on the last tensor, mostly one that could be folded.
    fn neighbour(&mut self) {
        let Some(last) = self.own.last().cloned() else { return };
        let x = match self.chance(80) {
            true => last,
            false => self.own.choose(&mut self.rng).cloned().unwrap_or(last),
        };
        let [batch, m, n] = x.shape;
        let activation = *Activation::ALL[1..].choose(&mut self.rng).expect("there are some");
        let operation = match self.rng.random_range(0..10) {
            0..=4 => Operation::Add,
            5 => Operation::Multiply,
            6 => Operation::Scale(*[0.25, 0.5, 2.0].choose(&mut self.rng).expect("there are some")),
            _ => Operation::Activate(activation),
        };
        let two = matches!(operation, Operation::Add | Operation::Multiply);
        // The batch as two dimensions: extents, the strides of x and those of the other operand.
        let inner = [1, 2, 3][self.rng.random_range(0..3)];
        let inner = if batch % inner == 0 { inner } else { 1 };
        let outer = batch / inner;
        let dense = [inner * m * n, m * n, n, 1];
        let (mut own, mut other, mut y) = (dense, dense, None);
        match self.rng.random_range(0..10) {
            0..=3 => (other, y) = ([0, 0, 0, 1], Some(self.outside([1, 1, n]))),
            4 => (other, y) = ([0, 0, 1, 0], Some(self.outside([1, m, 1]))),
            5 => (other, y) = ([n, 0, 0, 1], Some(self.outside([outer, 1, n]))),
            6 => (other, y) = ([0, m * n, n, 1], Some(self.outside([inner, m, n]))),
            7 if m == n => own = [inner * m * n, m * n, 1, n],
            _ => (),
        }
        let y = match y {
            Some(y) => y,
            None if self.chance(5) => x.clone(),
            None => self.operand(x.shape),
        };
        let z = self.allocate(x.shape);
        // Rank 4, rank 2 where that is the same, or rank 6.
        let view = match self.rng.random_range(0..3) {
            0 if batch == 1 => [[m, n], [own[2], own[3]], [other[2], other[3]]].concat(),
            1 => {
                let long = |[o, i, row, col]: [u64; 4]| vec![9, o, i, row, 9, col];
                let extents = vec![1, outer, inner, m, 1, n];
                [extents, long(own), long(other)].concat()
            }
            _ => [[outer, inner, m, n], own, other].concat(),
        };
        let plain = own == dense && (other == dense || !two);
        let at = match plain && self.rng.random_bool(0.7) {
            true => 0,
            false => {
                let at = 0x6000_0000 + UNIT * self.graph.views.len() as u64;
                self.graph.views.insert(at, view.clone());
                at
            }
        };
        let swapped = two && at == 0 && self.rng.random_bool(0.5);
        let operands = match (two, swapped) {
            (true, true) => [y.address, x.address],
            (true, false) => [x.address, y.address],
            _ => [x.address, 0],
        };
        self.graph.neighbour(Neighbour {
            operation,
            dtype: DTYPE,
            elements: x.elements(),
            rank: view.len() as u64 / 3,
            view: at,
            operands,
            result: z.address,
        });
    }

    /// Reads a tensor that is there, and writes a new one or an output.
    fn stranger(&mut self) {
        let Some(x) = self.own.choose(&mut self.rng).cloned() else {
            return;
        };
        let to = match self.rng.random_bool(0.5) {
            true => self.outside(x.shape),
            false => self.allocate(x.shape),
        };
        let does = Does::Doubled(x.address, to.address, x.elements());
        if self.rng.random_bool(0.5) {
            return self.graph.push(Work::Touch(vec![x.address, to.address]), does);
        }
        // Within a struct, from its first element on or a later one; or nothing is known of the kernel.
        let inside = x.address + ELEMENT * self.rng.random_range(0..x.elements());
        let mut bytes = vec![1; 4 * self.rng.random_range(0..4)];
        bytes.extend(inside.to_le_bytes());
        bytes.extend(to.address.to_le_bytes());
        match self.rng.random_bool(0.8) {
            true => self.graph.kernel("stranger", vec![vec![1; 4], bytes], does),
            false => self.graph.push(Work::Unknown, does),
        }
    }

    fn graph(mut self) -> Graph {
        for _ in 0..self.rng.random_range(2..6) {
            if self.chance(30) {
                self.stranger();
            }
            self.product();
            for _ in 0..self.rng.random_range(1..4) {
                match self.rng.random_range(0..20) {
                    0 => self.stranger(),
                    1 if !self.own.is_empty() => {
                        // Mostly not what was computed last.
                        let place = self.rng.random_range(0..self.own.len());
                        self.release(place);
                    }
                    _ => (),
                }
                self.neighbour();
                if self.chance(60) && self.own.len() > 1 {
                    self.release(self.own.len() - 2);
                }
            }
        }
        // The outputs: the last one, and sometimes another.
        for tensor in self.own.clone().iter().rev() {
            if self.chance(50) || tensor.address == self.own.last().map_or(0, |last| last.address) {
                let to = self.outside(tensor.shape);
                let does = Does::Doubled(tensor.address, to.address, tensor.elements());
                self.graph.push(Work::Touch(vec![tensor.address, to.address]), does);
            }
        }
        while !self.own.is_empty() {
            self.release(0);
        }
        if self.chance(10) {
            let place = self.rng.random_range(0..self.graph.steps.len());
            self.graph.steps[place].0.waits = false;
        }
        self.graph
    }
}

#[test]
fn folded_graphs_compute_the_same() {
    const GRAPHS: u64 = 1500;
    let (mut products, mut by_length) = (0, [0; 8]);
    let (mut rows, mut matrices, mut factors, mut splits) = (0, 0, 0, 0);
    for seed in 0..GRAPHS {
        let graph = Draw::new(seed).graph();
        let (folded, stages) = graph.folded();
        assert!(same(&graph.run(), &folded.run()), "seed {seed}: {stages:#?}");
        products += stages.len();
        for stages in stages {
            by_length[stages.len()] += 1;
            if let Some(last) = stages.last() {
                rows += usize::from(last.problem.epilogue.bias);
                matrices += usize::from(last.problem.epilogue.residual.is_some());
                factors += usize::from(last.alpha != 1.0);
                splits += usize::from(last.problem.batch_dims[2] > 1);
            }
        }
    }
    let often = |count: usize| count > products / 50;
    let said = format!(
        "{products} products, by kernels folded {by_length:?}, {rows} rows, {matrices} matrices, {factors} factors, {splits} split batches"
    );
    assert!(
        by_length[..3].iter().all(|&count| often(count)) && by_length[3] > 0,
        "{said}"
    );
    assert!([rows, matrices, factors, 10 * splits].into_iter().all(often), "{said}");
    eprintln!("{said}");
}

// ---- one graph, and what is in its way -----------------------------------------------------------------------------

const A: u64 = 0x7f00_0000_0000;
const D: u64 = A + UNIT;
const O: u64 = D + UNIT;
const B: u64 = 0x5000_0000;
const BIAS: u64 = B + UNIT;
const OUTPUT: u64 = BIAS + UNIT;
const VIEW: u64 = 0x6000_0000;
const M: u64 = 3;
const N: u64 = 4;

fn bias(operands: [u64; 2], view: u64, result: u64) -> Neighbour {
    Neighbour {
        operation: Operation::Add,
        dtype: DTYPE,
        elements: M * N,
        rank: 2,
        view,
        operands,
        result,
    }
}

/// The places of its steps, by what they do.
mod step {
    pub const PRODUCT: usize = 2;
    pub const BIAS: usize = 4;
    pub const FREE_D: usize = 5;
    pub const OUTPUT: usize = 6;
    pub const FREE_A: usize = 8;
}

/// `A·B + bias`, copied to the output.
fn layer(call: Neighbour) -> Graph {
    let mut graph = Graph::default();
    let allocate = |at: u64| Work::Allocate(at..at + UNIT);
    graph.push(allocate(A), Does::Memory);
    graph.push(allocate(D), Does::Memory);
    let problem = GemmProblem::row_major(M as usize, N as usize, 5);
    let operands = Operands {
        a: A,
        b: B,
        d: D,
        ..Operands::default()
    };
    graph.product(problem, operands, 1.0);
    graph.push(allocate(O), Does::Memory);
    graph.views.insert(VIEW, vec![M, N, N, 1, 0, 1]);
    graph.neighbour(call);
    graph.push(Work::Free(D), Does::Memory);
    graph.push(Work::Touch(vec![O, OUTPUT]), Does::Doubled(O, OUTPUT, M * N));
    graph.push(Work::Free(O), Does::Memory);
    graph.push(Work::Free(A), Does::Memory);
    graph
}

fn outcome(graph: &Graph) -> Result<Product, Obstacle> {
    let [product] = graph.products()[..] else {
        panic!("one product")
    };
    with_next(&graph.chain(), &product, |address, words| graph.view(address, words))
}

#[test]
fn a_layer_takes_over_its_bias() {
    let graph = layer(bias([D, BIAS], VIEW, O));
    let folded = outcome(&graph).unwrap();
    assert_eq!(folded.place, step::BIAS);
    assert!(folded.problem.epilogue.bias && folded.problem.epilogue.residual.is_none());
    assert_eq!((folded.at.operands.bias, folded.at.bias_stride), (BIAS, 1));
    assert_eq!((folded.at.operands.d, folded.at.operands.a), (O, A));
}

#[test]
fn each_rule_keeps_a_graph_as_it_is() {
    let plain = || layer(bias([D, BIAS], VIEW, O));
    let changed = |change: &dyn Fn(&mut Graph)| {
        let mut graph = plain();
        change(&mut graph);
        outcome(&graph).err()
    };
    let insert = |graph: &mut Graph, place: usize, work: Work| {
        graph.steps.insert(place, (Step { work, waits: true }, Does::Memory));
        for (place, (_, does)) in graph.steps.iter_mut().enumerate() {
            if let Does::Product(product) = does {
                product.place = place;
            }
        }
    };
    let touch = |address: u64| Work::Touch(vec![address]);
    let called = |call: Neighbour| outcome(&layer(call)).err();
    let obstacle =
        |found: Option<Obstacle>, expected: Obstacle, what: &str| assert_eq!(found, Some(expected), "{what}");

    assert_eq!(changed(&|_| ()), None);
    // What touches only other memory, allocates or frees it is not in the way.
    let elsewhere = |graph: &mut Graph| insert(graph, step::BIAS, Work::Allocate(UNIT..2 * UNIT));
    assert_eq!(changed(&elsewhere), None);
    assert_eq!(changed(&|graph| insert(graph, step::BIAS + 1, touch(O))), None);
    assert_eq!(changed(&|graph| insert(graph, step::BIAS + 1, touch(D + UNIT))), None);

    use Obstacle::*;
    let never_freed = |graph: &mut Graph| graph.steps[step::FREE_D].0.work = touch(0);
    obstacle(changed(&never_freed), Kept, "D outlives the graph");
    let outside = |graph: &mut Graph| graph.steps[1].0.work = touch(0);
    obstacle(changed(&outside), Kept, "D is not the graph's own");
    let in_place = |graph: &mut Graph| {
        if let Does::Product(product) = &mut graph.steps[step::PRODUCT].1 {
            product.at.operands.c = D;
        }
    };
    obstacle(changed(&in_place), Kept, "C is D");

    for (place, what) in [
        (step::PRODUCT, "before the product"),
        (step::BIAS, "between"),
        (step::BIAS + 1, "after"),
    ] {
        for address in [D, D + 4, D + UNIT - 1] {
            obstacle(changed(&|graph| insert(graph, place, touch(address))), Readers, what);
            // Half a word further than words begin.
            let mut bytes = vec![0; 4];
            bytes.extend(address.to_le_bytes());
            let kernel = Work::Kernel {
                name: "stranger".into(),
                parameters: vec![vec![0; 8], bytes],
            };
            obstacle(changed(&|graph| insert(graph, place, kernel.clone())), Readers, what);
        }
        obstacle(
            changed(&|graph| insert(graph, place, Work::Unknown)),
            Readers,
            "something unknown",
        );
    }
    let unread = |graph: &mut Graph| graph.steps[step::BIAS].0.work = touch(O);
    obstacle(changed(&unread), Readers, "D is not read");

    obstacle(
        changed(&|graph| insert(graph, step::BIAS, touch(A))),
        Between,
        "A may be written",
    );
    obstacle(
        changed(&|graph| insert(graph, step::BIAS, touch(0))),
        Between,
        "something runs",
    );
    let freed = |graph: &mut Graph| {
        let (free, _) = graph.steps.remove(step::FREE_A);
        insert(graph, step::BIAS, free.work);
    };
    obstacle(changed(&freed), Between, "A is freed");

    for place in [step::PRODUCT, step::PRODUCT + 1, step::BIAS] {
        obstacle(
            changed(&|graph| graph.steps[place].0.waits = false),
            Early,
            "an early start",
        );
    }
    for place in [step::PRODUCT - 1, step::BIAS + 1] {
        assert_eq!(changed(&|graph| graph.steps[place].0.waits = false), None);
    }

    let renamed = |name: &'static str| {
        move |graph: &mut Graph| {
            if let Work::Kernel { name: now, .. } = &mut graph.steps[step::BIAS].0.work {
                *now = name.into();
            }
        }
    };
    for name in ["bsub_f32", "badd_f64", "badd", "add_f32", "urelu_f32", "affine_f32", ""] {
        obstacle(changed(&renamed(name)), Stranger, name);
    }
    obstacle(changed(&renamed("badd_f16")), View, "another type");
    let copied = |graph: &mut Graph| graph.steps[step::BIAS].0.work = Work::Touch(vec![D, O]);
    obstacle(changed(&copied), Stranger, "a copy");
    let more = |graph: &mut Graph| {
        if let Work::Kernel { parameters, .. } = &mut graph.steps[step::BIAS].0.work {
            parameters.push(vec![0; 8]);
        }
    };
    obstacle(changed(&more), Stranger, "one more parameter");

    let views = [
        (vec![M, N, 1, M, 0, 1], "transposed"),
        (vec![M, N, N + 1, 1, 0, 1], "with gaps"),
        (vec![M, N, 0, 1, 0, 1], "one row again and again"),
        (vec![M, N - 1, N, 1, 0, 1], "a part"),
        (vec![M, N, N, 1], "fewer numbers"),
        (vec![M, u64::MAX, N, 1, 0, 1], "no extents"),
    ];
    for (view, what) in views {
        let graph = |graph: &mut Graph| {
            graph.views.insert(VIEW, view.clone());
        };
        obstacle(changed(&graph), View, what);
    }
    obstacle(called(bias([D, D], VIEW, O)), View, "twice");
    obstacle(called(bias([D + 4, BIAS], VIEW, O)), View, "from another element on");
    let mut computed = layer(bias([D, BIAS], A, O));
    computed.views.insert(A, computed.views[&VIEW].clone());
    obstacle(outcome(&computed).err(), View, "a view that is computed");
    let fewer = Neighbour {
        elements: M * N - 1,
        ..bias([D, BIAS], 0, O)
    };
    obstacle(called(fewer), View, "not all elements");
    let with_gaps = |graph: &mut Graph| {
        if let Does::Product(product) = &mut graph.steps[step::PRODUCT].1 {
            product.problem.d.row_stride += 1;
        }
    };
    obstacle(changed(&with_gaps), View, "a result with gaps");
    // 2 and then 3 columns of 4: no stride goes on like that.
    let uneven = |graph: &mut Graph| {
        graph.views.insert(VIEW, vec![2, 6, 6, 1, 100, 1]);
    };
    obstacle(changed(&uneven), Layout, "no row and no matrix");

    let place = |result: u64| called(bias([D, BIAS], VIEW, result));
    obstacle(place(D), Place, "in place");
    obstacle(place(A), Place, "over an operand");
    obstacle(place(OUTPUT), Place, "not the graph's own");
    obstacle(called(bias([D, O], VIEW, O)), Place, "over the other operand");
    // Freed before.
    let gone = |graph: &mut Graph| insert(graph, step::BIAS, Work::Free(O));
    obstacle(changed(&gone), Place, "memory that is gone");
    assert_eq!(changed(&|graph| graph.steps[step::OUTPUT].0.waits = false), None);
}

#[test]
fn the_epilogue_has_its_order() {
    #[derive(Clone, Copy, PartialEq)]
    enum Op {
        Row,
        Matrix,
        Times,
        Scale,
        Gelu,
    }
    use Op::*;
    let folds = |ops: &[Op]| -> usize {
        let mut graph = layer(bias([D, BIAS], VIEW, O));
        graph.steps.truncate(step::PRODUCT + 1);
        let mut x = D;
        for (i, op) in ops.iter().enumerate() {
            let result = O + UNIT * i as u64;
            graph.push(Work::Allocate(result..result + UNIT), Does::Memory);
            let (operation, view, y) = match op {
                Row => (Operation::Add, VIEW, BIAS),
                Matrix => (Operation::Add, 0, OUTPUT),
                Times => (Operation::Multiply, 0, OUTPUT),
                Scale => (Operation::Scale(0.5), 0, 0),
                Gelu => (Operation::Activate(Activation::GeluErf), 0, 0),
            };
            graph.neighbour(Neighbour {
                operation,
                ..bias([x, y], view, result)
            });
            graph.push(Work::Free(x), Does::Memory);
            x = result;
        }
        graph.push(Work::Free(x), Does::Memory);
        let (folded, all) = graph.folded();
        assert!(same(&graph.run(), &folded.run()));
        all[0].len()
    };
    for (ops, expected) in [
        (&[Row][..], 1),
        (&[Matrix], 1),
        (&[Times], 1),
        (&[Scale, Scale, Row, Gelu, Matrix], 5),
        (&[Row, Gelu, Times], 3),
        (&[Gelu, Row], 2),
        (&[Row, Row], 2),
        (&[Row, Row, Row], 2),
        (&[Row, Row, Gelu], 2),
        (&[Row, Scale], 1),
        (&[Gelu, Scale], 1),
        (&[Gelu, Gelu], 1),
        (&[Matrix, Gelu], 1),
        (&[Matrix, Matrix], 1),
        (&[Times, Row], 1),
    ] {
        assert_eq!(folds(ops), expected);
    }
}

#[test]
fn numbers_that_make_nothing_of_a_product_stay() {
    for factor in [0.0, f32::NAN, f32::INFINITY, 1e-40] {
        let scale = Neighbour {
            operation: Operation::Scale(factor),
            ..bias([D, 0], 0, O)
        };
        if factor.is_nan() {
            continue; // equal to nothing, the call itself neither
        }
        assert_eq!(outcome(&layer(scale)).err(), Some(Obstacle::Order), "{factor}");
    }
}

#[test]
fn numbers_are_read_in_their_type() {
    let call = |name: &str, factor: Vec<u8>, term: Vec<u8>| {
        let words = [12u64, 0, 0, D, O].map(|word| word.to_le_bytes().to_vec());
        let parameters = [&words[..], &[factor, term]].concat();
        Neighbour::of(name, &parameters).map(|call| (call.operation, call.dtype))
    };
    let (zero, one) = (0f32.to_le_bytes().to_vec(), 1f32.to_le_bytes().to_vec());
    let half = |x: f32| f16::from_f32(x).to_le_bytes().to_vec();
    let brain = |x: f32| bf16::from_f32(x).to_le_bytes().to_vec();
    let scaled = |factor: f32, dtype: DType| Some((Operation::Scale(factor), dtype));
    assert_eq!(call("affine_f32", one.clone(), zero.clone()), scaled(1.0, DType::F32));
    assert_eq!(call("affine_f16", half(0.125), half(-0.0)), scaled(0.125, DType::F16));
    assert_eq!(call("affine_bf16", brain(-3.0), brain(0.0)), scaled(-3.0, DType::BF16));
    assert_eq!(call("affine_f32", one.clone(), one), None, "something is added");
    assert_eq!(
        call("affine_f16", half(1.0), half(1e-7)),
        None,
        "something small is added"
    );
    assert_eq!(call("affine_bf16", zero.clone(), zero), None, "numbers of another size");
}
