//! Random numbers that are the same on every machine and with every version of everything: whole numbers alone.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// What follows depends on each of these numbers.
    pub fn of(seeds: &[u64]) -> Self {
        let mut rng = Rng(0);
        for &seed in seeds {
            rng.0 = rng.next() ^ seed;
        }
        rng.next();
        rng
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// From 0 to `end`, which it is not.
    pub fn below(&mut self, end: usize) -> usize {
        ((self.next() as u128 * end as u128) >> 64) as usize
    }

    /// From `least` to `most`, both of which it can be.
    pub fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    /// From `least`, which is not 0, to `most`: as likely in each octave as in any other, and anywhere in it.
    pub fn by_octaves(&mut self, least: usize, most: usize) -> usize {
        let (first, last) = (least.ilog2() as usize, most.ilog2() as usize);
        loop {
            let octave = 1 << self.between(first, last);
            let number = octave + self.below(octave);
            if (least..=most).contains(&number) {
                return number;
            }
        }
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of a list, which is not empty.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}
