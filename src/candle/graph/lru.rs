//! A few things by key, of which the one that was not asked for the longest goes first.

/// Holds at most `capacity` values. Meant for a few dozen: a look-up compares keys one after the other.
pub(super) struct Lru<K, V> {
    capacity: usize,
    /// The last one that was asked for comes first.
    kept: Vec<(K, V)>,
}

impl<K: PartialEq, V: Clone> Lru<K, V> {
    /// At least one is kept.
    pub(super) fn new(capacity: usize) -> Self {
        Lru {
            capacity: capacity.max(1),
            kept: Vec::new(),
        }
    }

    /// The value of the key that `is` recognises, or that of a new key, and what had to go for it.
    pub(super) fn get_or_make(&mut self, is: impl Fn(&K) -> bool, make: impl FnOnce() -> (K, V)) -> (V, Option<V>) {
        if let Some(place) = self.kept.iter().position(|(key, _)| is(key)) {
            self.kept[..=place].rotate_right(1);
            return (self.kept[0].1.clone(), None);
        }
        let gone = match self.kept.len() < self.capacity {
            true => None,
            false => self.kept.pop().map(|(_, value)| value),
        };
        let (key, value) = make();
        self.kept.insert(0, (key, value.clone()));
        (value, gone)
    }

    /// Forgets values that `are` recognises.
    pub(super) fn remove(&mut self, are: impl Fn(&V) -> bool) {
        self.kept.retain(|(_, value)| !are(value));
    }

    pub(super) fn clear(&mut self) -> Vec<V> {
        self.kept.drain(..).map(|(_, value)| value).collect()
    }

    /// The value of a key, which does not count as asking for it.
    pub(super) fn find(&self, is: impl Fn(&K) -> bool) -> Option<V> {
        let found = self.kept.iter().find(|(key, _)| is(key));
        found.map(|(_, value)| value.clone())
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.kept.iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// Against a list of everything that was ever asked for: kept are the last `capacity` different keys of it.
    #[test]
    fn what_was_not_asked_for_the_longest_goes_first() {
        let mut rng = StdRng::seed_from_u64(1);
        for capacity in 0..6 {
            let mut lru = Lru::new(capacity);
            let mut asked: Vec<u32> = Vec::new();
            for time in 0..500 {
                let key = rng.random_range(0..8u32);
                let mut newest: Vec<u32> = Vec::new();
                for &old in asked.iter().rev() {
                    if !newest.contains(&old) {
                        newest.push(old);
                    }
                }
                newest.truncate(capacity.max(1));
                let known = newest.contains(&key);
                let mut made = false;
                let (value, gone) = lru.get_or_make(
                    |k| *k == key,
                    || {
                        made = true;
                        (key, (key, time))
                    },
                );
                assert_eq!(value.0, key);
                assert_eq!(made, !known, "capacity {capacity}, {key} after {asked:?}");
                let full = !known && newest.len() == capacity.max(1);
                assert_eq!(gone.map(|(key, _)| key), newest.last().copied().filter(|_| full));
                assert!(lru.values().count() <= capacity.max(1));
                // Looking does not count.
                assert!(lru.find(|_| true).is_some() && lru.find(|k| *k == key) == Some(value));
                asked.push(key);
            }
            assert!(!lru.clear().is_empty());
            assert_eq!(lru.values().count(), 0);
        }
    }

    #[test]
    fn what_is_removed_is_made_again() {
        let mut lru = Lru::new(2);
        lru.get_or_make(|k| *k == 1, || (1, 'a'));
        lru.remove(|value| *value == 'a');
        assert_eq!(lru.get_or_make(|k| *k == 1, || (1, 'b')), ('b', None));
    }
}
