//! A decoder's step: queries and a new key are rotated, the key and a new value go into a cache, and the queries attend over the cache.

use super::args::{AttentionOperand, AttentionStepArgs};
use super::kernels::STEPS;
use super::plan::AttentionPlan;
use super::problem::{Axis, ALIGN};
use super::refusal::Refusal;
use super::views::Views;
use super::AttentionProblem;
use crate::device::DeviceInfo;
use crate::gemm::operands::DType;

/// What is asked. Queries, new keys and new values are rows (batch, (heads·queries + 2·heads)·width), one behind the other; the keys of
/// the cache, and its values, are (batch, heads, places, width), and the result (batch, heads·queries·width), all of them dense but for
/// the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepProblem {
    /// Of all operands.
    pub dtype: DType,
    /// Sequences, each with its own cache.
    pub batch: usize,
    /// Heads of keys and values.
    pub heads: usize,
    /// Queries that share a head.
    pub queries: usize,
    /// Places of the cache.
    pub places: usize,
    /// Elements of a query, a key or a value.
    pub width: usize,
    /// Elements between the rows of neighbouring sequences.
    pub row_stride: usize,
}

impl StepProblem {
    /// Elements of a row of queries, keys and values.
    pub fn row(&self) -> usize {
        (self.queries + 2) * self.heads * self.width
    }

    /// Attention over the whole cache.
    ///
    /// # Errors
    ///
    /// What no kernel takes.
    pub fn attention(&self) -> Result<AttentionProblem, Refusal> {
        let StepProblem {
            dtype,
            batch,
            heads,
            queries,
            places,
            width,
            row_stride,
        } = *self;
        let vector = ALIGN as usize / dtype.size();
        // Both halves of a row are whole vectors.
        if !width.is_multiple_of(2 * vector) {
            let (operand, vector) = ("queries, in halves", 2 * vector);
            return Err(Refusal::RaggedWidth { operand, width, vector });
        }
        if !row_stride.is_multiple_of(vector) {
            return Err(Refusal::Unaligned { operand: "queries" });
        }
        if [batch, heads, queries, places, width].contains(&0) {
            return Err(Refusal::Empty);
        }
        // Places are counted in the kernel's ints, with some turns more.
        const LIMIT: usize = 1 << 30;
        if [batch, heads, places].iter().any(|&extent| extent >= LIMIT) {
            return Err(Refusal::TooLarge);
        }
        let strides = |query: usize, key: usize, out: usize| Views {
            query: query as i64,
            key: key as i64,
            value: key as i64,
            mask: 0,
            out: out as i64,
        };
        Ok(AttentionProblem {
            dtype,
            queries,
            keys: places,
            width,
            value_width: width,
            rows: strides(width, width, width),
            mask_key: None,
            batch: [
                Axis {
                    extent: batch,
                    strides: strides(row_stride, heads * places * width, heads * queries * width),
                },
                Axis {
                    extent: heads,
                    strides: strides(queries * width, places * width, queries * width),
                },
            ],
        })
    }
}

/// Device addresses of what a step reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepAddresses {
    /// The rows of queries, new keys and new values.
    pub rows: u64,
    /// The keys of the cache.
    pub keys: u64,
    /// Its values.
    pub values: u64,
    /// Cosines (places, width / 2).
    pub cosines: u64,
    /// Sines, as many.
    pub sines: u64,
    /// The place that is written, a `u32`.
    pub position: u64,
    /// The result.
    pub out: u64,
}

/// Everything a launch needs but addresses and the scale.
#[derive(Clone, Debug, PartialEq)]
pub struct StepPlan {
    /// What is computed.
    pub problem: StepProblem,
    /// The kernel, and its blocks.
    pub attention: AttentionPlan,
}

impl StepPlan {
    /// The kernel that is expected to be fastest.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn new(problem: &StepProblem, device: &DeviceInfo) -> Result<Self, Refusal> {
        let attention = problem.attention()?;
        let plans = STEPS
            .iter()
            .map(|kernel| AttentionPlan::with(kernel, &attention, device));
        let (plans, refusals): (Vec<_>, Vec<_>) = plans.partition(Result::is_ok);
        let best = plans
            .into_iter()
            .flatten()
            .min_by(|a, b| a.predicted_us.total_cmp(&b.predicted_us));
        match best {
            Some(attention) => Ok(StepPlan {
                problem: *problem,
                attention,
            }),
            None => {
                let other = |refusal: &Refusal| !matches!(refusal, Refusal::KernelType { .. });
                let mut refusals = refusals.into_iter().filter_map(Result::err).filter(other);
                Err(refusals.next_back().unwrap_or(Refusal::Empty))
            }
        }
    }

    /// The kernel's argument.
    pub fn args(&self, at: &StepAddresses, scale: f32) -> AttentionStepArgs {
        let StepProblem {
            dtype,
            heads,
            queries,
            width,
            row_stride,
            ..
        } = self.problem;
        let size = dtype.size();
        let views = Views {
            query: at.rows,
            key: at.keys,
            value: at.values,
            mask: 0,
            out: at.out,
        };
        let row = |heads_before: usize| AttentionOperand {
            data: at.rows + (heads_before * width * size) as u64,
            row_stride: 0,
            head_stride: width as i64,
            batch_stride: row_stride as i64,
        };
        AttentionStepArgs {
            attention: self.attention.args(&views, scale),
            new_key: row(heads * queries),
            new_value: row(heads * queries + heads),
            cosines: at.cosines,
            sines: at.sines,
            position: at.position,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const STEP: StepProblem = StepProblem {
        dtype: DType::BF16,
        batch: 1,
        heads: 8,
        queries: 4,
        places: 256,
        width: 64,
        row_stride: 48 * 64,
    };

    #[test]
    fn rows_hold_queries_then_keys_then_values() {
        let problem = StepProblem {
            batch: 3,
            row_stride: 50 * 64,
            ..STEP
        };
        assert_eq!(problem.row(), 48 * 64);
        let plan = StepPlan::new(&problem, &DeviceInfo::H200).unwrap();
        let at = StepAddresses {
            rows: 1 << 20,
            keys: 2 << 20,
            values: 3 << 20,
            cosines: 4 << 20,
            sines: 5 << 20,
            position: 6 << 20,
            out: 7 << 20,
        };
        let args = plan.args(&at, 0.5);
        assert_eq!(args.new_key.data - at.rows, 32 * 64 * 2);
        assert_eq!(args.new_value.data - at.rows, 40 * 64 * 2);
        assert_eq!((args.new_key.head_stride, args.new_key.batch_stride), (64, 50 * 64));
        assert_eq!(args.attention.query.head_stride, 4 * 64);
        assert_eq!(args.attention.key.batch_stride, 8 * 256 * 64);
        assert_eq!(
            (args.attention.heads, args.attention.queries, args.attention.keys),
            (8, 4, 256)
        );
        assert_eq!(plan.attention.clusters, 24);
        assert_eq!(args.attention.scale, 0.5);
    }

    #[test]
    fn every_row_is_taken_for_something() {
        let mut taken = BTreeSet::new();
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for queries in [1, 3, 4, 7, 8] {
                for width in [32, 64, 96, 128] {
                    let problem = StepProblem {
                        dtype,
                        queries,
                        width,
                        row_stride: 10 * 8 * width,
                        ..STEP
                    };
                    taken.insert(
                        StepPlan::new(&problem, &DeviceInfo::H200)
                            .unwrap()
                            .attention
                            .kernel
                            .name,
                    );
                }
            }
        }
        assert_eq!(taken.len(), STEPS.len(), "{taken:?}");
    }

    #[test]
    fn what_no_kernel_takes_is_refused() {
        let refusal = |problem: StepProblem| StepPlan::new(&problem, &DeviceInfo::H200).unwrap_err();
        let ragged = StepProblem { width: 24, ..STEP };
        assert!(matches!(refusal(ragged), Refusal::RaggedWidth { .. }));
        let wide = StepProblem { width: 256, ..STEP };
        assert!(matches!(refusal(wide), Refusal::Width { .. }));
        let many = StepProblem { queries: 9, ..STEP };
        assert!(matches!(refusal(many), Refusal::Queries { .. }));
        assert_eq!(refusal(StepProblem { places: 0, ..STEP }), Refusal::Empty);
        let off = StepProblem {
            row_stride: 48 * 64 + 4,
            ..STEP
        };
        assert!(matches!(refusal(off), Refusal::Unaligned { .. }));
    }
}
