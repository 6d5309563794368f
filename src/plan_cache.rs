//! Plans that were made before, so that a model's next call costs a look-up.

use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{OnceLock, PoisonError, RwLock};

/// A model has a few dozen problems; one whose sizes change with every call should not fill the memory.
const MAX_PLANS: usize = 4096;

/// Plans by what they were made for, shared by all threads. Meant for a `static`. A problem is some 400 bytes, which the standard hash
/// takes longer over than for all the rest of a look-up.
pub(crate) struct PlanCache<K, P>(OnceLock<RwLock<HashMap<K, P, RandomState>>>);

impl<K: Eq + Hash, P: Clone> PlanCache<K, P> {
    pub(crate) const fn new() -> Self {
        PlanCache(OnceLock::new())
    }

    /// The plan of this key, if it was made before.
    pub(crate) fn get(&self, key: &K) -> Option<P> {
        let plans = self.0.get_or_init(RwLock::default);
        let plans = plans.read().unwrap_or_else(PoisonError::into_inner);
        plans.get(key).cloned()
    }

    /// The plan of this key, made now if it is not known. Errors are not kept.
    pub(crate) fn get_or_make<E>(&self, key: K, make: impl FnOnce(&K) -> Result<P, E>) -> Result<P, E> {
        if let Some(plan) = self.get(&key) {
            return Ok(plan);
        }
        let plan = make(&key)?;
        let plans = self.0.get_or_init(RwLock::default);
        let mut plans = plans.write().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        plans.insert(key, plan.clone());
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_made_once_and_errors_again() {
        let cache: PlanCache<u32, u32> = PlanCache::new();
        let mut made = 0;
        for _ in 0..3 {
            let plan = cache.get_or_make(7, |key| {
                made += 1;
                Ok::<_, ()>(key * 2)
            });
            assert_eq!(plan, Ok(14));
        }
        assert_eq!(made, 1);
        assert_eq!((cache.get(&7), cache.get(&8)), (Some(14), None));
        assert_eq!(cache.get_or_make(8, |_| Err("no")), Err("no"));
        assert_eq!(cache.get_or_make(8, |_| Ok::<_, &str>(1)), Ok(1));
    }

    #[test]
    fn ever_new_problems_do_not_fill_the_memory() {
        let cache: PlanCache<usize, usize> = PlanCache::new();
        for key in 0..3 * MAX_PLANS {
            assert_eq!(cache.get_or_make(key, |key| Ok::<_, ()>(*key)), Ok(key));
        }
        assert!(cache.0.get().unwrap().read().unwrap().len() <= MAX_PLANS);
    }
}
