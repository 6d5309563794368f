//! Whether plans are measured.

use crate::error::report;
use crate::settings::Settings;
use std::sync::OnceLock;

/// What measurements count for when a plan is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuning {
    /// The planner chooses.
    Off,
    /// What was measured before counts; else the planner chooses.
    Known,
    /// What is not known is measured.
    Measure,
}

impl Tuning {
    /// How a product on a stream is chosen if its caller asks for tuning, or the environment does. Measuring waits for the device, which
    /// a stream that is being captured into a graph forbids.
    ///
    /// # Errors
    ///
    /// That of `capturing`, which is asked only where something may be measured.
    pub fn on_stream<E>(wanted: bool, capturing: impl FnOnce() -> Result<bool, E>) -> Result<Self, E> {
        Ok(match wanted || asked_for() {
            false => Tuning::Off,
            true if capturing()? => Tuning::Known,
            true => Tuning::Measure,
        })
    }
}

/// Whether the environment asks for tuning ([`Settings::tune`]). A value that is not understood does not, and is reported once.
fn asked_for() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(|| match &Settings::get().tune {
        Ok(tune) => *tune,
        Err(error) => {
            report(format_args!("nothing is tuned: {error}"));
            false
        }
    })
}
