//! What counts calls, measures free memory or fills the card is the process's: such tests run one at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test of this process has what this returns. A test that failed with it does not stop the others.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
