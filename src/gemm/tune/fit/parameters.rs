//! The numbers that are fitted, a row each: a cost that the model begins to count with is one more.

use super::sweep::Values;
use crate::gemm::kernel::costs::{KernelCost, SharedCosts};

/// What it costs to move a parameter by a factor of e, where predictions are fitted.
const PREDICTION_INERTIA: f64 = 1e-4;
/// The same of a bandwidth: few plans of a kernel are limited by memory, and without this some shape on which another term is wrong
/// decides what it takes where memory is the limit.
const BANDWIDTH_INERTIA: f64 = 3e-4;

/// The range of fractions of a peak or of a bandwidth.
const FRACTION: (f64, f64) = (0.002, 1.5);
/// The range of times in µs, and of parts that something takes more.
const MORE: (f64, f64) = (0.01, 30.0);
/// The range of what kernels have in common.
const COMMON: (f64, f64) = (0.01, 20.0);

/// A number of the costs `C` that is fitted.
pub struct Term<C: 'static> {
    of: fn(&mut C) -> &mut f64,
    /// The least and the most that it may become: by factors, nothing leads away from 0.
    range: (f64, f64),
    /// What it begins at in place of 0; 0 where it stays what it is.
    guess: f64,
    /// What it costs to move it by a factor of e, where predictions are fitted.
    inertia: f64,
}

impl<C> Term<C> {
    const fn new(of: fn(&mut C) -> &mut f64, range: (f64, f64)) -> Self {
        Term {
            of,
            range,
            guess: 0.0,
            inertia: PREDICTION_INERTIA,
        }
    }

    /// It may be 0, and then begins at this guess.
    const fn from(self, guess: f64) -> Self {
        Term { guess, ..self }
    }

    const fn held_by(self, inertia: f64) -> Self {
        Term { inertia, ..self }
    }

    /// Puts the guess in place of 0.
    pub fn fill(&self, costs: &mut C) {
        let value = (self.of)(costs);
        if self.guess > 0.0 && *value <= 0.0 {
            *value = self.guess;
        }
    }
}

const fn of_kernel(of: fn(&mut KernelCost) -> &mut f64, range: (f64, f64)) -> Term<KernelCost> {
    Term::new(of, range)
}

const fn in_common(of: fn(&mut SharedCosts) -> &mut f64) -> Term<SharedCosts> {
    Term::new(of, COMMON)
}

/// Of every kernel.
pub static OF_KERNELS: &[Term<KernelCost>] = &[
    of_kernel(|cost| &mut cost.full, FRACTION),
    of_kernel(|cost| &mut cost.setup_us, (0.02, 100.0)),
    of_kernel(|cost| &mut cost.wave_us, MORE),
    of_kernel(|cost| &mut cost.bandwidth, FRACTION).held_by(BANDWIDTH_INERTIA),
    of_kernel(|cost| &mut cost.single_elements, MORE).from(0.01),
    of_kernel(|cost| &mut cost.edges, MORE).from(0.05),
    of_kernel(|cost| &mut cost.crowd, MORE).from(0.05),
    of_kernel(|cost| &mut cost.other_order, MORE).from(0.03),
    of_kernel(|cost| &mut cost.other_order_us, MORE).from(3.0),
    of_kernel(|cost| &mut cost.ragged_us, MORE),
    of_kernel(|cost| &mut cost.batch_us, MORE).from(0.2),
    of_kernel(|cost| &mut cost.general_us, MORE).from(0.2),
    of_kernel(|cost| &mut cost.general, MORE).from(0.05),
    of_kernel(|cost| &mut cost.cut_us, MORE).from(0.2),
    of_kernel(|cost| &mut cost.share_us, MORE).from(0.2),
    of_kernel(|cost| &mut cost.slice_us, MORE).from(0.02),
    of_kernel(|cost| &mut cost.flow, (0.02, 1.0)).from(0.3),
    of_kernel(|cost| &mut cost.start, (0.2, 1.0)),
];

/// Of kernels of which a multiprocessor holds several blocks.
pub static OF_SEVERAL_BLOCKS: &[Term<KernelCost>] = &[
    of_kernel(|cost| &mut cost.solo, FRACTION),
    of_kernel(|cost| &mut cost.beside_us, MORE).from(0.1),
    of_kernel(|cost| &mut cost.curve, (0.2, 3.0)),
];

/// Of kernels whose threads share k.
pub static OF_SHARED_K: &[Term<KernelCost>] = &[of_kernel(|cost| &mut cost.turn_us, (0.0002, 5.0)).from(0.3)];

/// Of what kernels have in common.
pub static IN_COMMON: &[Term<SharedCosts>] = &[
    in_common(|shared| &mut shared.tail).from(0.5),
    in_common(|shared| &mut shared.launch_us),
    in_common(|shared| &mut shared.early_launch_us),
    in_common(|shared| &mut shared.pairs_us),
    in_common(|shared| &mut shared.queue_slices_us),
    in_common(|shared| &mut shared.l2).from(2.0),
    in_common(|shared| &mut shared.memory_start_us).from(0.5),
    in_common(|shared| &mut shared.far).from(0.2),
    in_common(|shared| &mut shared.off_sectors).from(0.1),
    in_common(|shared| &mut shared.uneven).from(0.1),
    in_common(|shared| &mut shared.l2_off_sectors).from(0.1),
    in_common(|shared| &mut shared.single_line).from(0.5),
    in_common(|shared| &mut shared.single_outside).from(0.5),
    in_common(|shared| &mut shared.exposed).from(0.1),
    in_common(|shared| &mut shared.clusters.round_us).from(1.0),
    in_common(|shared| &mut shared.parallel.start_us),
    in_common(|shared| &mut shared.parallel.bandwidth),
    in_common(|shared| &mut shared.parallel.round_us).from(0.7),
    in_common(|shared| &mut shared.stream_k.finish),
    in_common(|shared| &mut shared.stream_k.piece),
    in_common(|shared| &mut shared.stream_k.straddle),
    Term::new(
        |shared: &mut SharedCosts| &mut shared.stream_k.out_of_step,
        (1.0, 100.0),
    ),
    in_common(|shared| &mut shared.clusters.sums_us).from(0.5),
    in_common(|shared| &mut shared.repack.copy.start_us),
    in_common(|shared| &mut shared.repack.copy.bandwidth),
    in_common(|shared| &mut shared.repack.transpose.start_us),
    in_common(|shared| &mut shared.repack.transpose.bandwidth),
    in_common(|shared| &mut shared.repack.transpose_unaligned.start_us),
    in_common(|shared| &mut shared.repack.transpose_unaligned.bandwidth),
    in_common(|shared| &mut shared.repack.gaps),
    in_common(|shared| &mut shared.repack.access).from(0.1),
];

/// A number that is fitted. `half`: of kernels for 16 bits, not of those for 32.
#[derive(Clone, Copy)]
pub enum Parameter {
    Kernel {
        kernel: usize,
        term: &'static Term<KernelCost>,
    },
    Shared {
        half: bool,
        term: &'static Term<SharedCosts>,
    },
    /// What clusters take, by how many blocks more than two they have.
    ClusterUs { half: bool, size: usize },
    /// The fraction of the multiprocessors on which they find room.
    ClusterRoom { half: bool, size: usize },
}

impl Parameter {
    pub fn all(values: &Values) -> Vec<Parameter> {
        let mut all = Vec::new();
        for (kernel, cost) in values.kernels.iter().enumerate() {
            let of_several = if cost.resident > 1 { OF_SEVERAL_BLOCKS } else { &[] };
            let of_shared_k = if cost.turn_us > 0.0 { OF_SHARED_K } else { &[] };
            let terms = OF_KERNELS.iter().chain(of_several).chain(of_shared_k);
            all.extend(terms.map(|term| Parameter::Kernel { kernel, term }));
        }
        for half in [false, true] {
            all.extend(IN_COMMON.iter().map(|term| Parameter::Shared { half, term }));
            for size in 0..values.shared[0].clusters.us.len() {
                all.extend([
                    Parameter::ClusterUs { half, size },
                    Parameter::ClusterRoom { half, size },
                ]);
            }
        }
        all
    }

    pub fn get(self, values: &mut Values) -> &mut f64 {
        match self {
            Parameter::Kernel { kernel, term } => (term.of)(&mut values.kernels[kernel]),
            Parameter::Shared { half, term } => (term.of)(&mut values.shared[usize::from(half)]),
            Parameter::ClusterUs { half, size } => &mut values.shared[usize::from(half)].clusters.us[size],
            Parameter::ClusterRoom { half, size } => &mut values.shared[usize::from(half)].clusters.room[size],
        }
    }

    /// Multiplies the number by `factor`, as far as it may go.
    pub fn scale(self, values: &mut Values, factor: f64) {
        let (least, most) = match self {
            Parameter::Kernel { term, .. } => term.range,
            Parameter::Shared { term, .. } => term.range,
            Parameter::ClusterUs { .. } => COMMON,
            Parameter::ClusterRoom { .. } => (0.3, 1.0),
        };
        let rates = |values: &Values| {
            self.kernel()
                .map(|at| (values.kernels[at].full, values.kernels[at].solo))
        };
        let before = rates(values);
        let value = self.get(values);
        *value = (*value * factor).clamp(least, most);
        if let Some(kernel) = self.kernel().filter(|_| rates(values) != before) {
            let cost = &mut values.kernels[kernel];
            // Less would say that all together are done before one alone.
            cost.solo = match cost.resident {
                1 => cost.full,
                resident => cost.solo.clamp(cost.full / f64::from(resident), cost.full),
            };
        }
    }

    /// What it costs to move it by a factor of e, where predictions are fitted.
    pub fn inertia(self) -> f64 {
        match self {
            Parameter::Kernel { term, .. } => term.inertia,
            Parameter::Shared { term, .. } => term.inertia,
            Parameter::ClusterUs { .. } | Parameter::ClusterRoom { .. } => PREDICTION_INERTIA,
        }
    }

    /// Whether it concerns plans for 16 bits alone, or those for 32; `None`: those of its kernel.
    pub const fn half(self) -> Option<bool> {
        match self {
            Parameter::Kernel { .. } => None,
            Parameter::Shared { half, .. }
            | Parameter::ClusterUs { half, .. }
            | Parameter::ClusterRoom { half, .. } => Some(half),
        }
    }

    /// The kernel whose plans it concerns; `None`: those of all.
    pub const fn kernel(self) -> Option<usize> {
        match self {
            Parameter::Kernel { kernel, .. } => Some(kernel),
            _ => None,
        }
    }
}
