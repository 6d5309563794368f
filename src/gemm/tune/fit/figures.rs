//! What choices lose, in figures.

use super::sweep::Loss;

/// Losses in figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Choices that were measured.
    pub count: usize,
    /// What they lose on average.
    pub mean: f64,
    /// What 95 of 100 lose at most.
    pub percentile_95: f64,
    /// What the worst loses.
    pub worst: f64,
    /// Choices that were not measured.
    pub unmeasured: usize,
    /// By how much the prediction of a chosen plan's time is off, as a part of that (median).
    pub off: f64,
    /// The part of the choices whose predictions are off by no more than [`CLOSE`].
    pub close: f64,
}

/// A prediction that is off by no more is close, as a part of the time.
pub const CLOSE: f64 = 0.15;

impl Figures {
    /// The figures of these losses.
    pub fn of<'a>(losses: impl IntoIterator<Item = &'a Loss>) -> Self {
        let (mut known, mut errors, mut unmeasured) = (Vec::new(), Vec::new(), 0);
        for loss in losses {
            errors.extend(loss.foretold.map(|foretold| (foretold - 1.0).abs()));
            match loss.lost {
                Some(lost) => known.push(lost),
                None => unmeasured += 1,
            }
        }
        known.sort_by(f64::total_cmp);
        errors.sort_by(f64::total_cmp);
        let close = errors.iter().filter(|&&error| error <= CLOSE).count();
        let at = (known.len() * 95).div_ceil(100).max(1) - 1;
        Figures {
            count: known.len(),
            mean: known.iter().sum::<f64>() / known.len().max(1) as f64,
            percentile_95: known.get(at).copied().unwrap_or(0.0),
            worst: known.last().copied().unwrap_or(0.0),
            unmeasured,
            off: errors.get(errors.len() / 2).copied().unwrap_or(0.0),
            close: close as f64 / errors.len().max(1) as f64,
        }
    }
}
