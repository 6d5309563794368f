//! How it is done: which kernel, with which grid. A pure function of problem and device, so that it can be tested and
//! printed on any machine.

use super::args::{GemmArgs, GemmOperand};
use super::kernels::{self, Grid, KernelSpec};
use super::problem::{GemmProblem, OperandLayout};
use crate::device::DeviceInfo;
use crate::error::{Error, Result};
use std::fmt;

/// CUDA's limit for the y and z dimensions of a grid; kernels loop over what lies beyond.
const MAX_GRID_YZ: usize = 65_535;

/// What a launch costs beside its arithmetic, in µs: measured on an H100 with an empty kernel.
const LAUNCH_US: f64 = 2.5;

/// Fraction of the datasheet's memory bandwidth that a streaming kernel reaches, measured on an H100.
const MEMORY_EFFICIENCY: f64 = 0.85;

/// A kernel and everything its launch needs but the addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// The kernel.
    pub kernel: &'static KernelSpec,
    /// The problem as the kernel gets it: folded.
    pub problem: GemmProblem,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Slices of k that are summed apart and then added in a fixed order; 1: none.
    pub split_k: u32,
    /// Length of a slice of k.
    pub k_slice: u32,
    /// Rows of tiles that are walked together.
    pub group_m: u32,
    /// Bytes of stream-ordered scratch memory.
    pub workspace_bytes: usize,
    /// What the cost model expects, in µs; it decides between kernels and is no promise.
    pub predicted_us: f64,
}

/// Device addresses of a problem's operands; 0 where it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Addresses {
    /// First element of A.
    pub a: u64,
    /// First element of B.
    pub b: u64,
    /// First element of C, if β ≠ 0.
    pub c: u64,
    /// First element of D.
    pub d: u64,
    /// First element of the residual, if any.
    pub residual: u64,
    /// First element of the bias, if any.
    pub bias: u64,
    /// Elements between neighbours of the bias.
    pub bias_stride: i64,
}

impl Plan {
    /// The kernel that the cost model expects to be fastest for `problem` on `device`.
    ///
    /// # Errors
    ///
    /// [`Error::Problem`] if the problem cannot be computed at all; [`Error::Refused`] by the last resort of the table
    /// if nothing takes it.
    pub fn new(problem: &GemmProblem, device: &DeviceInfo) -> Result<Self> {
        problem.validate().map_err(Error::Problem)?;
        let problem = problem.folded();
        let best = kernels::TABLE
            .iter()
            .filter(|spec| spec.efficiency > 0.0 && spec.refusal(&problem, device).is_none())
            .map(|spec| Plan::with(spec, problem, device))
            .min_by(|x, y| x.predicted_us.total_cmp(&y.predicted_us));
        match best {
            Some(plan) => Ok(plan),
            None => Plan::forced(&kernels::TABLE[0], problem, device),
        }
    }

    /// The kernel of this name, whether or not it is a good choice.
    ///
    /// # Errors
    ///
    /// As [`Plan::new`], and [`Error::UnknownKernel`], and [`Error::Refused`] with the reason if this kernel cannot
    /// take the problem.
    pub fn named(name: &str, problem: &GemmProblem, device: &DeviceInfo) -> Result<Self> {
        let spec = kernels::find(name)?;
        problem.validate().map_err(Error::Problem)?;
        Plan::forced(spec, problem.folded(), device)
    }

    fn forced(spec: &'static KernelSpec, problem: GemmProblem, device: &DeviceInfo) -> Result<Self> {
        match spec.refusal(&problem, device) {
            Some(reason) => Err(Error::Refused {
                kernel: spec.name,
                reason,
            }),
            None => Ok(Plan::with(spec, problem, device)),
        }
    }

    fn with(spec: &'static KernelSpec, problem: GemmProblem, device: &DeviceInfo) -> Self {
        let tiles_m = problem.m.div_ceil(spec.tile.bm as usize);
        let tiles_n = problem.n.div_ceil(spec.tile.bn as usize);
        let grid = match spec.grid {
            Grid::Tiles => [
                tiles_n as u32,
                tiles_m.min(MAX_GRID_YZ) as u32,
                problem.batch().min(MAX_GRID_YZ) as u32,
            ],
        };
        Plan {
            kernel: spec,
            problem,
            grid,
            split_k: 1,
            k_slice: problem.k as u32,
            group_m: 1,
            workspace_bytes: 0,
            predicted_us: predict_us(spec, &problem, device),
        }
    }

    /// The argument of the kernel: this plan with addresses and scalars. Pure, so that it can be checked anywhere.
    pub fn args(&self, at: &Addresses, alpha: f32, beta: f32, workspace: u64) -> GemmArgs {
        let problem = &self.problem;
        let (m, n, k, dtype) = (problem.m, problem.n, problem.k, problem.dtype);
        let operand = |layout: &OperandLayout, data: u64| GemmOperand {
            data,
            row_stride: layout.row_stride,
            col_stride: layout.col_stride,
            batch_stride: layout.batch_strides,
        };
        let optional = |layout: &Option<OperandLayout>, data: u64| {
            layout
                .as_ref()
                .map_or((GemmOperand::ABSENT, Default::default()), |layout| {
                    (operand(layout, data), layout.access(m, n, dtype))
                })
        };
        let (c, c_access) = optional(&problem.epilogue.c, at.c);
        let (residual, residual_access) = optional(&problem.epilogue.residual, at.residual);
        GemmArgs {
            a: operand(&problem.a, at.a),
            b: operand(&problem.b, at.b),
            c,
            d: operand(&problem.d, at.d),
            residual,
            bias: if problem.epilogue.bias { at.bias } else { 0 },
            bias_stride: at.bias_stride,
            workspace,
            m: m as i32,
            n: n as i32,
            k: k as i32,
            batch: problem.batch() as i32,
            batch_dims: problem.batch_dims.map(|dim| dim as i32),
            split_k: self.split_k as i32,
            k_slice: self.k_slice as i32,
            group_m: self.group_m as i32,
            a_access: problem.a.access(m, k, dtype),
            b_access: problem.b.access(k, n, dtype),
            c_access,
            d_access: problem.d.access(m, n, dtype),
            activation: problem.epilogue.activation,
            alpha,
            beta: if problem.epilogue.c.is_some() { beta } else { 0.0 },
            residual_access: residual_access as u32,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (problem, [x, y, z]) = (&self.problem, self.grid);
        write!(
            f,
            "{}: {} {}×{}×{} batch {} on a grid of {x}×{y}×{z} blocks of {} threads",
            self.kernel.name,
            problem.layout_name(),
            problem.m,
            problem.n,
            problem.k,
            problem.batch(),
            self.kernel.threads
        )?;
        if self.split_k > 1 {
            write!(f, ", k in {} slices of {}", self.split_k, self.k_slice)?;
        }
        write!(f, ", about {:.1} µs", self.predicted_us)
    }
}

/// Time by arithmetic (the busiest multiprocessor's tiles) or by memory, whichever is longer, plus the launch.
fn predict_us(spec: &KernelSpec, problem: &GemmProblem, device: &DeviceInfo) -> f64 {
    let tile = spec.tile;
    let tiles = problem.m.div_ceil(tile.bm as usize) * problem.n.div_ceil(tile.bn as usize) * problem.batch();
    let busiest = tiles.div_ceil(device.sm_count as usize) as f64;
    let tile_flops = 2.0 * tile.bm as f64 * tile.bn as f64 * problem.k as f64;
    // TFLOP/s to FLOP/µs: 1e6.
    let rate = device.fp32_peak_tflops() * 1e6 / device.sm_count as f64 * spec.efficiency.max(0.01) as f64;
    let arithmetic_us = busiest * tile_flops / rate;
    // GB/s to bytes/µs: 1e3.
    let memory_us = problem.min_bytes() / (device.memory_gbps as f64 * 1e3 * MEMORY_EFFICIENCY);
    LAUNCH_US + arithmetic_us.max(memory_us)
}

/// What the planner makes of a problem: every row of the table with its predicted time or the reason of its refusal,
/// and the choice. Its `Display` prints a table.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The plan that [`Plan::new`] returns, or its error.
    pub choice: Result<Plan>,
    /// Every row of the table with its predicted time, or why it is out.
    pub candidates: Vec<(&'static KernelSpec, std::result::Result<f64, String>)>,
}

/// Shows how [`Plan::new`] decides.
pub fn explain(problem: &GemmProblem, device: &DeviceInfo) -> Explanation {
    let choice = Plan::new(problem, device);
    let folded = problem.folded();
    let candidates = kernels::TABLE
        .iter()
        .map(|spec| {
            let verdict = match spec.refusal(&folded, device) {
                Some(reason) => Err(reason),
                None if spec.efficiency == 0.0 => Err("only by name".into()),
                None => Ok(predict_us(spec, &folded, device)),
            };
            (spec, verdict)
        })
        .collect();
    Explanation { choice, candidates }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (spec, verdict) in &self.candidates {
            match verdict {
                Ok(us) => writeln!(f, "  {:<40} {us:>10.1} µs", spec.name)?,
                Err(reason) => writeln!(f, "  {:<40} {:>10}    {reason}", spec.name, "-")?,
            }
        }
        match &self.choice {
            Ok(plan) => write!(f, "chosen: {plan}"),
            Err(error) => write!(f, "no plan: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::problem::{Activation, DType, Precision};

    #[test]
    fn every_kernel_that_a_plan_names_takes_its_problem() {
        let devices = [
            DeviceInfo::A100,
            DeviceInfo::H100,
            DeviceInfo::RTX_4090,
            DeviceInfo::RTX_5090,
        ];
        for device in &devices {
            for precision in Precision::ALL {
                for size in [1, 7, 64, 129, 1024, 5000] {
                    let mut problem = GemmProblem::row_major(size, size, size);
                    problem.precision = precision;
                    let plan = Plan::new(&problem, device).unwrap();
                    assert_eq!(plan.kernel.refusal(&plan.problem, device), None, "{plan}");
                    assert!(plan.grid.iter().all(|&blocks| blocks > 0), "{plan}");
                }
            }
        }
    }

    #[test]
    fn large_products_get_large_tiles_and_small_ones_small() {
        let tile = |size| {
            let problem = GemmProblem::row_major(size, size, size);
            let tile = Plan::new(&problem, &DeviceInfo::H100).unwrap().kernel.tile;
            tile.bm * tile.bn
        };
        assert!(tile(4096) > tile(256), "{} and {}", tile(4096), tile(256));
    }

    #[test]
    fn a_kernel_asked_for_by_name_is_the_one_that_runs_or_says_why_not() {
        let problem = GemmProblem::row_major(64, 64, 64);
        let plan = Plan::named("sgemm_01_naive", &problem, &DeviceInfo::H100).unwrap();
        assert_eq!(plan.kernel.name, "sgemm_01_naive");
        assert_eq!(plan.grid, [2, 2, 1]);

        let error = Plan::named("sgemm_99", &problem, &DeviceInfo::H100).unwrap_err();
        assert!(error.to_string().contains("sgemm_01_naive"), "{error}");

        let mut doubles = problem;
        doubles.dtype = DType::F64;
        let error = Plan::named("sgemm_01_naive", &doubles, &DeviceInfo::H100).unwrap_err();
        assert!(error.to_string().contains("F64"), "{error}");

        let mut fused = problem;
        fused.epilogue.activation = Activation::Relu;
        let error = Plan::named("sgemm_01_naive", &fused, &DeviceInfo::H100).unwrap_err();
        assert!(error.to_string().contains("activation"), "{error}");
    }

    #[test]
    fn grids_end_where_cuda_does() {
        let problem = GemmProblem::row_major(32 * 70_000, 1, 1);
        let plan = Plan::named("sgemm_01_naive", &problem, &DeviceInfo::H100).unwrap();
        assert_eq!(plan.grid, [1, 65_535, 1]);
    }

    #[test]
    fn arguments_carry_every_field_of_the_problem() {
        let mut problem = GemmProblem::new(5, 8, 9, OperandLayout::strided(11, 1), OperandLayout::strided(1, 12));
        problem.batch_dims = [1, 1, 2, 3];
        problem.a.batch_strides = [0, 0, 1000, 100];
        problem.b.batch_strides = [0, 0, 0, 200];
        problem.d = OperandLayout::row_major(16).with_batch_strides([0, 0, 900, 300]);
        problem.epilogue.c = Some(OperandLayout::strided(0, 1));
        problem.epilogue.bias = true;
        let plan = Plan {
            kernel: &kernels::TABLE[0],
            problem,
            grid: [1, 1, 1],
            split_k: 2,
            k_slice: 5,
            group_m: 8,
            workspace_bytes: 64,
            predicted_us: 0.0,
        };
        let at = Addresses {
            a: 0x1000,
            b: 0x2000,
            c: 0x3000,
            d: 0x4000,
            residual: 0x5000,
            bias: 0x6000,
            bias_stride: 2,
        };
        let args = plan.args(&at, 0.5, 2.0, 0x7000);
        assert_eq!((args.m, args.n, args.k, args.batch), (5, 8, 9, 6));
        assert_eq!((args.a.data, args.a.row_stride, args.a.col_stride), (0x1000, 11, 1));
        assert_eq!((args.b.data, args.b.row_stride, args.b.col_stride), (0x2000, 1, 12));
        assert_eq!((args.d.data, args.d.batch_stride), (0x4000, [0, 0, 900, 300]));
        assert_eq!(args.residual, GemmOperand::ABSENT, "the problem has no residual");
        assert_eq!((args.bias, args.bias_stride, args.workspace), (0x6000, 2, 0x7000));
        assert_eq!((args.split_k, args.k_slice, args.group_m), (2, 5, 8));
        assert_eq!((args.alpha, args.beta), (0.5, 2.0));

        problem.epilogue.c = None;
        let args = Plan { problem, ..plan }.args(&at, 0.5, 2.0, 0);
        assert_eq!((args.beta, args.c), (0.0, GemmOperand::ABSENT), "C must stay unread");
    }

    #[test]
    fn explanations_name_every_kernel_and_the_choice() {
        let text = explain(&GemmProblem::row_major(512, 512, 512), &DeviceInfo::H100).to_string();
        for spec in kernels::TABLE {
            assert!(text.contains(spec.name), "{text}");
        }
        assert!(text.contains("chosen: "), "{text}");
    }

    #[test]
    fn names_and_symbols_of_the_table_are_unique() {
        for (i, spec) in kernels::TABLE.iter().enumerate() {
            assert!(
                kernels::TABLE[..i].iter().all(|other| other.name != spec.name),
                "{}",
                spec.name
            );
            assert!(
                spec.tile.bm > 0 && spec.tile.bn > 0 && spec.threads > 0,
                "{}",
                spec.name
            );
        }
    }
}
