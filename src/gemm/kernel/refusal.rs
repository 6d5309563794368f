//! Why a kernel cannot compute a problem.

use super::spec::{EpilogueSupport, Grid, KernelSpec, SplitK};
use crate::device::DeviceInfo;
use crate::gemm::operands::{Access, OperandLayout};
use crate::gemm::problem::{GemmProblem, MAX_SIZE};

/// Strides of a tensor map are below 2⁴⁰ bytes.
const MAX_COPY_STRIDE: i64 = 1 << 38;

impl KernelSpec {
    /// Why this kernel cannot compute `problem` on `device`, or `None` if it can. `problem` is folded and valid.
    pub fn refusal(&self, problem: &GemmProblem, device: &DeviceInfo) -> Option<String> {
        if let Some(capability) = self.needs.only_capability {
            if device.code_capability != capability {
                return Some(format!(
                    "it is written for compute capability {capability} and {}",
                    device.runs()
                ));
            }
        }
        if device.code_capability < self.needs.min_capability {
            return Some(format!(
                "it needs compute capability {} and {}",
                self.needs.min_capability,
                device.runs()
            ));
        }
        if self.dynamic_shared > device.shared_per_block {
            return Some(format!(
                "it needs {} bytes of shared memory a block and the device has {}",
                self.dynamic_shared, device.shared_per_block
            ));
        }
        if self.dtype != problem.dtype {
            return Some(format!(
                "it computes {:?} and the operands are {:?}",
                self.dtype, problem.dtype
            ));
        }
        if !self.arithmetic.serves(problem.precision) {
            return Some(format!(
                "its arithmetic ({:?}) does not serve precision {}",
                self.arithmetic, problem.precision
            ));
        }
        if self.epilogue == EpilogueSupport::Scaled && !problem.epilogue.is_plain() {
            return Some(
                "it computes α·A·B + β·C only, without bias, activation, residual or scalars in device memory".into(),
            );
        }
        if self.needs.max_m != 0 && problem.m > self.needs.max_m as usize {
            return Some(format!(
                "it takes at most {} rows and the problem has {}",
                self.needs.max_m, problem.m
            ));
        }
        if self.needs.max_n != 0 && problem.n > self.needs.max_n as usize {
            return Some(format!(
                "it takes at most {} columns and the problem has {}",
                self.needs.max_n, problem.n
            ));
        }
        if self.grid != Grid::Tiles && self.units(problem) > MAX_SIZE {
            return Some(format!(
                "it would have {} tiles to count, and counts to {MAX_SIZE}",
                self.units(problem)
            ));
        }
        if matches!(self.split_k, SplitK::WorkQueue(_)) && self.work_queue(problem, device).is_none() {
            return Some(format!(
                "it counts the strips of {} columns that are done, and has counters for 16384",
                self.tile.bn
            ));
        }
        let refused = |allowed: &[Access], access: Access| !allowed.is_empty() && !allowed.contains(&access);
        let a = problem.a.access(problem.m, problem.k, problem.dtype);
        if refused(self.needs.a, a) {
            return Some(format!(
                "A ({} × {}, strides {} and {}, aligned to {} bytes) is {a:?}, and it takes {:?}",
                problem.m, problem.k, problem.a.row_stride, problem.a.col_stride, problem.a.align, self.needs.a
            ));
        }
        let b = problem.b.access(problem.k, problem.n, problem.dtype);
        if refused(self.needs.b, b) {
            return Some(format!(
                "B ({} × {}, strides {} and {}, aligned to {} bytes) is {b:?}, and it takes {:?}",
                problem.k, problem.n, problem.b.row_stride, problem.b.col_stride, problem.b.align, self.needs.b
            ));
        }
        if self.tma_boxes.is_some() {
            if problem.batch_dims[0] != 1 {
                return Some("the copy engine walks at most three batch dimensions".into());
            }
            let strides = |layout: &OperandLayout| {
                let [_, batch @ ..] = layout.batch_strides;
                [layout.row_stride, layout.col_stride, batch[0], batch[1], batch[2]]
            };
            let outside = |stride: &i64| !(0..MAX_COPY_STRIDE).contains(stride);
            if let Some(stride) = [&problem.a, &problem.b].into_iter().flat_map(strides).find(outside) {
                return Some(format!(
                    "the copy engine takes strides from 0 to {MAX_COPY_STRIDE}, not {stride}"
                ));
            }
        }
        None
    }
}
