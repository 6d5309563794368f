//! The kernel ABI: the mirror of `cuda/abi/gemm_args.cuh`, checked at compile time on both sides.

use crate::gemm::kernel::spec::SplitK;
use crate::gemm::operands::{Access, DType, OperandLayout, Operands, MAX_BATCH_DIMS};
use crate::gemm::planner::plan::Plan;
use crate::gemm::planner::prepare::Repack;
use crate::gemm::problem::{Activation, Combine};
use crate::gemm::schedule::cut::Cut;
use crate::gemm::schedule::parallel;
use crate::gemm::schedule::work_queue::COUNTER_BYTES;

/// One operand as a kernel sees it. See `gemm_args.cuh` for the meaning of each field.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct GemmOperand {
    /// Device address of the first element.
    pub data: u64,
    /// Elements between rows.
    pub row_stride: i64,
    /// Elements between columns.
    pub col_stride: i64,
    /// Elements between matrices along each batch dimension.
    pub batch_stride: [i64; MAX_BATCH_DIMS],
}

impl GemmOperand {
    /// An operand that the kernel must not touch.
    pub const ABSENT: GemmOperand = GemmOperand {
        data: 0,
        row_stride: 0,
        col_stride: 0,
        batch_stride: [0; MAX_BATCH_DIMS],
    };
}

/// The argument of every GEMM kernel, passed by value.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct GemmArgs {
    /// m × k
    pub a: GemmOperand,
    /// k × n
    pub b: GemmOperand,
    /// m × n, read where β ≠ 0
    pub c: GemmOperand,
    /// m × n, written
    pub d: GemmOperand,
    /// m × n, added to the activation's result or multiplied with it, or absent
    pub residual: GemmOperand,
    /// Device address of n elements, or 0
    pub bias: u64,
    /// Elements between neighbours of the bias
    pub bias_stride: i64,
    /// Device address of scratch memory, or 0
    pub workspace: u64,
    /// A multiple of 4 that no other launch has, where blocks raise flags for each other
    pub epoch: u64,
    /// Rows of A and D
    pub m: i32,
    /// Columns of B and D
    pub n: i32,
    /// Columns of A and rows of B
    pub k: i32,
    /// Matrices in this launch
    pub batch: i32,
    /// Extents of the batch dimensions
    pub batch_dims: [i32; MAX_BATCH_DIMS],
    /// Slices of k
    pub split_k: i32,
    /// Length of a slice
    pub k_slice: i32,
    /// Tiles that one block computes alone, where k is cut by stream-K
    pub whole_tiles: i32,
    /// Ranges into which the k of all other tiles is cut; 0: no stream-K
    pub stream_ranges: i32,
    /// Rows of tiles that are walked together
    pub group_m: i32,
    /// How A may be read
    pub a_access: Access,
    /// How B may be read
    pub b_access: Access,
    /// How C may be read
    pub c_access: Access,
    /// How D may be written
    pub d_access: Access,
    /// What is applied before the residual
    pub activation: Activation,
    /// Scales the product
    pub alpha: f32,
    /// Scales C
    pub beta: f32,
    /// How the residual may be read: an [`Access`] in 16 bits
    pub residual_access: u16,
    /// What becomes of the activation's result and the residual
    pub combine: Combine,
    /// Device address of α, or 0 where the value counts
    pub alpha_at: u64,
    /// Device address of β, or 0 where the value counts
    pub beta_at: u64,
    /// What A's elements are
    pub a_type: DType,
    /// What B's elements are: the same
    pub b_type: DType,
    /// What C's elements are
    pub c_type: DType,
    /// What D's elements are
    pub d_type: DType,
    /// What the bias's elements are
    pub bias_type: DType,
    /// What the residual's elements are
    pub residual_type: DType,
    /// 1 where columns are gated
    pub gated: u16,
    /// Device address of k weights of a norm of A's rows, or 0
    pub norm: u64,
    /// ε of the norm
    pub norm_epsilon: f32,
    /// Fills the struct to a multiple of 8 bytes; 0
    pub reserved: u32,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<GemmOperand>() == 56, "gemm_args.cuh has this size");
    assert!(size_of::<GemmArgs>() == 424, "gemm_args.cuh has this size");
    assert!(offset_of!(GemmArgs, bias) == 280);
    assert!(offset_of!(GemmArgs, m) == 312);
    assert!(offset_of!(GemmArgs, batch_dims) == 328);
    assert!(offset_of!(GemmArgs, split_k) == 344);
    assert!(offset_of!(GemmArgs, a_access) == 364);
    assert!(offset_of!(GemmArgs, activation) == 368);
    assert!(offset_of!(GemmArgs, residual_access) == 380);
    assert!(offset_of!(GemmArgs, alpha_at) == 384);
    assert!(offset_of!(GemmArgs, a_type) == 400);
    assert!(offset_of!(GemmArgs, gated) == 406);
    assert!(offset_of!(GemmArgs, norm) == 408);
};

// SAFETY: `repr(C)`, no padding, no pointers to host memory: the bytes may be copied to the device as they are.
#[cfg(feature = "cuda")]
unsafe impl cudarc::driver::DeviceRepr for GemmArgs {}

/// Where a launch finds its operands.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Addresses {
    /// Device addresses of first elements; 0 where the problem has no such operand.
    pub operands: Operands<u64>,
    /// Elements between neighbours of the bias.
    pub bias_stride: i64,
    /// α, if the problem has its scalars in device memory.
    pub alpha: u64,
    /// Likewise, β.
    pub beta: u64,
    /// The weights of the norm of A's rows, if the problem has one.
    pub norm: u64,
    /// What is added to the mean square there.
    pub norm_epsilon: f32,
}

impl Addresses {
    /// These operands, with a dense bias if any, and scalars by value.
    pub const fn new(operands: Operands<u64>) -> Self {
        Addresses {
            operands,
            bias_stride: 1,
            alpha: 0,
            beta: 0,
            norm: 0,
            norm_epsilon: 0.0,
        }
    }
}

impl Plan {
    /// The addresses that the kernel gets, where an operand is repacked, that of its copy in the workspace.
    pub fn addresses(&self, at: &Addresses, workspace: u64) -> Addresses {
        let place = |repack: &Option<Repack>, address: u64| {
            repack
                .as_ref()
                .map_or(address, |repack| workspace + repack.offset as u64)
        };
        let [a, b] = &self.repacks;
        Addresses {
            operands: Operands {
                a: place(a, at.operands.a),
                b: place(b, at.operands.b),
                ..at.operands
            },
            ..*at
        }
    }

    /// The argument of the kernel: this plan with addresses and scalars. The workspace comes after the ticket and
    /// [`COUNTER_BYTES`] bytes of counters. Pure, so that it can be checked anywhere; a launch adds its epoch.
    pub fn args(&self, at: &Addresses, alpha: f32, beta: f32, workspace: u64) -> GemmArgs {
        let args = self.all_args(at, alpha, beta, workspace);
        match self.cut {
            Cut::Parallel(slices) => self.args_of_slices(args, slices),
            _ => args,
        }
    }

    /// The argument of the kernel that adds up slices of k, where there is one ([`Plan::reduction`]).
    pub fn reduction_args(&self, at: &Addresses, alpha: f32, beta: f32, workspace: u64) -> GemmArgs {
        self.all_args(at, alpha, beta, workspace)
    }

    /// Slices instead of the product: sums in the workspace, each slice a matrix of them, and no epilogue.
    fn args_of_slices(&self, args: GemmArgs, slices: u32) -> GemmArgs {
        let [m, pitch] = [self.problem.m, parallel::pitch(self.problem.n)].map(|size| size as i64);
        let without_batch = |operand: GemmOperand| GemmOperand {
            batch_stride: [0; MAX_BATCH_DIMS],
            ..operand
        };
        GemmArgs {
            a: without_batch(args.a),
            b: without_batch(args.b),
            c: GemmOperand::ABSENT,
            d: GemmOperand {
                data: args.workspace,
                row_stride: pitch,
                col_stride: 1,
                batch_stride: [0, 0, 0, m * pitch],
            },
            residual: GemmOperand::ABSENT,
            bias: 0,
            workspace: 0,
            batch_dims: [1, 1, 1, slices as i32],
            split_k: 1,
            d_access: Access::RowVector,
            activation: Activation::Identity,
            alpha: 1.0,
            beta: 0.0,
            alpha_at: 0,
            beta_at: 0,
            d_type: DType::F32,
            ..args
        }
    }

    fn all_args(&self, at: &Addresses, alpha: f32, beta: f32, workspace: u64) -> GemmArgs {
        let problem = &self.problem;
        let (m, n, k) = (problem.m, problem.n, problem.k);
        let (accesses, types) = (problem.accesses(), problem.types);
        let operand = |layout: &OperandLayout, data: u64| GemmOperand {
            data,
            row_stride: layout.row_stride,
            col_stride: layout.col_stride,
            batch_stride: layout.batch_strides,
        };
        let optional = |layout: &Option<OperandLayout>, data: u64| {
            layout
                .as_ref()
                .map_or(GemmOperand::ABSENT, |layout| operand(layout, data))
        };
        let in_memory = |address: u64| if problem.epilogue.device_scalars { address } else { 0 };
        GemmArgs {
            a: operand(&problem.a, at.operands.a),
            b: operand(&problem.b, at.operands.b),
            c: optional(&problem.epilogue.c, at.operands.c),
            d: operand(&problem.d, at.operands.d),
            residual: optional(&problem.epilogue.residual, at.operands.residual),
            bias: if problem.epilogue.bias { at.operands.bias } else { 0 },
            bias_stride: at.bias_stride,
            workspace: match self.kernel.split_k {
                SplitK::WorkQueue(_) => workspace.wrapping_sub(COUNTER_BYTES as u64),
                _ => workspace,
            },
            epoch: 0,
            m: m as i32,
            n: n as i32,
            k: k as i32,
            batch: problem.batch() as i32,
            batch_dims: problem.batch_dims.map(|dim| dim as i32),
            split_k: self.split_k() as i32,
            k_slice: self.k_slice() as i32,
            whole_tiles: self.stream_k().map_or(0, |way| way.whole_tiles as i32),
            stream_ranges: self.stream_k().map_or(0, |way| way.ranges as i32),
            group_m: self.group_m as i32,
            a_access: accesses.a,
            b_access: accesses.b,
            c_access: accesses.c,
            d_access: accesses.d,
            activation: problem.epilogue.activation,
            alpha,
            beta: if problem.epilogue.c.is_some() { beta } else { 0.0 },
            residual_access: accesses.residual as u16,
            combine: problem.epilogue.combine,
            alpha_at: in_memory(at.alpha),
            beta_at: if problem.epilogue.c.is_some() {
                in_memory(at.beta)
            } else {
                0
            },
            a_type: types.a,
            b_type: types.b,
            c_type: types.c,
            d_type: types.d,
            bias_type: types.bias,
            residual_type: types.residual,
            gated: problem.epilogue.gated.into(),
            norm: if problem.normed { at.norm } else { 0 },
            norm_epsilon: at.norm_epsilon,
            reserved: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::kernel::table::TABLE;
    use crate::gemm::problem::GemmProblem;
    use crate::gemm::schedule::stream_k::StreamK;

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
            kernel: &TABLE[0],
            by_name: true,
            problem: problem.folded().unwrap(),
            repacks: [None; 2],
            asked: problem.folded().unwrap(),
            grid: [1, 1, 1],
            cut: Cut::Cluster(2),
            group_m: 8,
            workspace_bytes: 64,
            predicted_us: 0.0,
        };
        let at = Addresses {
            operands: Operands {
                a: 0x1000,
                b: 0x2000,
                c: 0x3000,
                d: 0x4000,
                residual: 0x5000,
                bias: 0x6000,
            },
            bias_stride: 2,
            alpha: 0x8000,
            beta: 0x9000,
            norm: 0xA000,
            norm_epsilon: 0.125,
        };
        let args = plan.args(&at, 0.5, 2.0, 0x7000);
        assert_eq!((args.m, args.n, args.k, args.batch), (5, 8, 9, 6));
        assert_eq!((args.a.data, args.a.row_stride, args.a.col_stride), (0x1000, 11, 1));
        assert_eq!((args.b.data, args.b.row_stride, args.b.col_stride), (0x2000, 1, 12));
        assert_eq!((args.d.data, args.d.batch_stride), (0x4000, [0, 0, 900, 300]));
        assert_eq!(args.residual, GemmOperand::ABSENT, "the problem has no residual");
        assert_eq!((args.bias, args.bias_stride, args.workspace), (0x6000, 2, 0x7000));
        assert_eq!((args.split_k, args.k_slice, args.group_m), (2, 5, 8));
        assert_eq!((args.whole_tiles, args.stream_ranges), (0, 0));
        let cut = Cut::StreamK(StreamK {
            steps: 10,
            whole_tiles: 3,
            cut_steps: 40,
            ranges: 4,
            blocks: 4,
        });
        let streamed = Plan { cut, ..plan }.args(&at, 0.5, 2.0, 0x7000);
        assert_eq!((streamed.whole_tiles, streamed.stream_ranges), (3, 4));
        assert_eq!((streamed.split_k, streamed.k_slice), (1, 9));
        assert_eq!((args.alpha, args.beta), (0.5, 2.0));
        assert_eq!((args.alpha_at, args.beta_at), (0, 0), "the values count");
        let apart = Plan {
            cut: Cut::Parallel(2),
            ..plan
        };
        let slices = apart.args(&at, 0.5, 2.0, 0x7000);
        assert_eq!((slices.d.data, slices.d.row_stride), (0x7000, 8));
        assert_eq!(
            (slices.d.batch_stride, slices.batch_dims),
            ([0, 0, 0, 5 * 8], [1, 1, 1, 2])
        );
        assert_eq!((slices.split_k, slices.k_slice, slices.d_type), (1, 5, DType::F32));
        assert_eq!((slices.alpha, slices.beta, slices.bias), (1.0, 0.0, 0));
        assert_eq!(apart.reduction_args(&at, 0.5, 2.0, 0x7000), args);
        problem.epilogue.device_scalars = true;
        let with = |problem: GemmProblem| Plan {
            problem: problem.folded().unwrap(),
            ..plan
        };
        let args = with(problem).args(&at, 0.5, 2.0, 0);
        assert_eq!((args.alpha_at, args.beta_at), (0x8000, 0x9000));

        assert_eq!((args.norm, args.gated), (0, 0), "rows count as they are");
        problem.epilogue.c = None;
        problem.normed = true;
        problem.epilogue.gated = true;
        let args = with(problem).args(&at, 0.5, 2.0, 0);
        assert_eq!((args.norm, args.norm_epsilon, args.gated), (0xA000, 0.125, 1));
        assert_eq!((args.beta, args.c), (0.0, GemmOperand::ABSENT), "C must stay unread");
    }
}
