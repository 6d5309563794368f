//! What products a thread launches while it records a graph, so that the graph can be changed afterwards.

use super::args::Addresses;
use crate::device::CurrentContext;
use crate::error::Result;
use crate::gemm::operands::Operands;
use crate::gemm::planner::cache;
use crate::gemm::planner::plan::Plan;
use crate::gemm::problem::GemmProblem;
use crate::gemm::tune::Tuning;
use cudarc::driver::sys;
use std::cell::RefCell;

thread_local! {
    static JOURNAL: RefCell<Option<Notes>> = const { RefCell::new(None) };
}

/// What a journal holds.
#[derive(Default)]
struct Notes {
    launched: Vec<Launched>,
    /// Products so far that were or would have been one kernel.
    count: usize,
    /// The numbers of those that are not launched: their work is done elsewhere in the graph.
    left_out: Vec<usize>,
}

/// A product that was captured as one kernel, or left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launched {
    /// So many came before it.
    pub number: usize,
    /// Whether it was left out: no node computes it yet.
    pub left_out: bool,
    /// The graph's node; of one that was left out, the node before its place.
    pub node: sys::CUgraphNode,
    /// What was launched: one kernel.
    pub plan: Plan,
    /// Where its operands are.
    pub at: Addresses,
    /// α
    pub alpha: f32,
    /// β
    pub beta: f32,
    /// Where the workspace begins, which the graph owns; 0 where the plan needs none.
    pub workspace: sys::CUdeviceptr,
}

impl Launched {
    /// Where all that it reads and writes begins; 0 of what it lacks.
    pub fn addresses(&self) -> [u64; 10] {
        let Addresses {
            operands:
                Operands {
                    a,
                    b,
                    c,
                    d,
                    bias,
                    residual,
                },
            alpha,
            beta,
            norm,
            ..
        } = self.at;
        [a, b, c, d, bias, residual, alpha, beta, norm, self.workspace]
    }

    /// A plan for the same product with more in its epilogue, which runs as one kernel in the same workspace and takes no longer
    /// than this one and another kernel; `None` where there is none.
    ///
    /// # Errors
    ///
    /// Those of planning.
    pub fn with(&self, problem: &GemmProblem, context: &CurrentContext) -> Result<Option<Plan>> {
        /// About what a kernel takes in a graph that does next to nothing, on an H200.
        const SMALL_KERNEL_US: f64 = 1.5;
        let name = self.plan.by_name.then_some(self.plan.kernel.name);
        let plan = cache::plan(context, problem, name, Tuning::Off)?;
        let plan = match plan.is_one_kernel() && plan.workspace_bytes <= self.plan.workspace_bytes {
            true => Some(plan),
            false => cache::without_workspace(context, &plan)?,
        };
        // Times of kernels without costs are infinite.
        Ok(plan.filter(|plan| plan.predicted_us <= self.plan.predicted_us + SMALL_KERNEL_US))
    }
}

/// While this lives, what the thread launches into captures is noted. Holds what was noted before, for another journal.
pub(crate) struct Journal(Option<Notes>);

impl Journal {
    /// Products of these numbers are not launched.
    pub fn leaving_out(left_out: Vec<usize>) -> Self {
        let notes = Notes {
            left_out,
            ..Notes::default()
        };
        Journal(JOURNAL.replace(Some(notes)))
    }

    /// What was noted.
    pub fn end(self) -> Vec<Launched> {
        JOURNAL.take().map(|notes| notes.launched).unwrap_or_default()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        JOURNAL.set(self.0.take());
    }
}

/// The number of a product that is one kernel, if there is a journal, and whether it is to be left out.
pub(super) fn next() -> Option<(usize, bool)> {
    JOURNAL.with_borrow_mut(|journal| {
        let notes = journal.as_mut()?;
        let number = notes.count;
        notes.count += 1;
        Some((number, notes.left_out.contains(&number)))
    })
}

/// Notes a product, if there is a journal.
pub(super) fn note(launched: Launched) {
    JOURNAL.with_borrow_mut(|journal| {
        if let Some(notes) = journal {
            notes.launched.push(launched);
        }
    });
}
