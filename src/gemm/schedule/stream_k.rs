//! Stream-K: which block computes which steps of k of which tile. The mirror of `cuda/scheduler/stream_k.cuh`, which says how
//! the pieces of a tile come together.

use serde::{Deserialize, Serialize};
use std::mem::size_of;

/// A way to cut the last tiles of a product into ranges of k of equal length, one a block. Of 2-CTA clusters all of this is said of a
/// cluster in place of a block, and of its two tiles in place of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamK {
    /// Steps of k of a tile.
    pub steps: u32,
    /// Tiles that one block computes alone, in whole waves.
    pub whole_tiles: u32,
    /// Steps of all other tiles.
    pub cut_steps: u32,
    /// Ranges into which these are cut; their lengths differ by one step at most.
    pub ranges: u32,
    /// Blocks of the launch.
    pub blocks: u32,
}

impl StreamK {
    /// The ways that may pay for `tiles` tiles of `steps` steps on `sms` multiprocessors: the shortest ranges, and ranges
    /// that divide tiles evenly, so that no block works on two tiles. Empty where the tiles are whole waves.
    pub fn ways(tiles: usize, steps: usize, sms: u32) -> impl Iterator<Item = StreamK> {
        let waves = tiles / sms as usize;
        // One wave more than the rest is cut: a tile then has two pieces, or three.
        let whole_tiles = waves.saturating_sub(1) * sms as usize;
        let cut_steps = (tiles - whole_tiles) * steps;
        // Ranges as long as tiles cut nothing.
        let shorter = whole_tiles > 0 || tiles > sms as usize || (tiles * steps).div_ceil(sms as usize) < steps;
        let cuts = shorter
            && !tiles.is_multiple_of(sms as usize)
            && cut_steps < (i32::MAX as usize).saturating_sub(sms as usize);
        let shortest = cut_steps.div_ceil(sms as usize).max(1);
        // The shortest length from there on that divides a tile, where there are no whole waves. It leaves a tile no more pieces
        // than multiprocessors, so that k may be of any length here.
        let most_pieces = match waves {
            0 if cuts => steps.min(sms as usize / tiles.max(1)),
            _ => 0,
        };
        let even = (2..=most_pieces)
            .rev()
            .find(|&pieces| steps.is_multiple_of(pieces) && steps / pieces >= shortest)
            .map(|pieces| steps / pieces)
            .filter(|&length| length != shortest);
        [Some(shortest), even]
            .into_iter()
            .flatten()
            .filter(move |_| cuts)
            .map(move |length| {
                let ranges = cut_steps.div_ceil(length) as u32;
                StreamK {
                    steps: steps as u32,
                    whole_tiles: whole_tiles as u32,
                    cut_steps: cut_steps as u32,
                    ranges,
                    blocks: if whole_tiles > 0 { sms } else { ranges },
                }
            })
    }

    /// Another way, for blocks that are fed by the L2 in step: whole waves, and the tiles that are left in so many pieces of equal
    /// length each, 2 or more, that all begin together and those of one piece of k ask for the same lines. None where such tiles are more
    /// than half of a wave, or k has no such pieces.
    pub fn in_step(tiles: usize, steps: usize, sms: u32) -> Option<StreamK> {
        let (waves, left) = (tiles / sms as usize, tiles % sms as usize);
        if waves == 0 || left == 0 || left * steps > i32::MAX as usize {
            return None;
        }
        let most = (sms as usize / left).min(steps);
        let pieces = (2..=most).rev().find(|&pieces| steps.is_multiple_of(pieces))?;
        Some(StreamK {
            steps: steps as u32,
            whole_tiles: (waves * sms as usize) as u32,
            cut_steps: (left * steps) as u32,
            ranges: (left * pieces) as u32,
            blocks: sms,
        })
    }

    /// Steps of a short range; `cut_steps % ranges` have one more.
    pub const fn share(&self) -> u32 {
        self.cut_steps / self.ranges
    }

    /// The pieces of a tile beside its first, at most.
    pub const fn others(&self) -> u32 {
        match self.straddles() {
            true => self.steps.div_ceil(self.share()),
            false => self.steps / self.share() - 1,
        }
    }

    /// Whether some block works on two tiles.
    pub const fn straddles(&self) -> bool {
        !self.cut_steps.is_multiple_of(self.ranges) || !self.steps.is_multiple_of(self.share())
    }

    /// Bytes of the workspace where a tile's first piece is the one that all others are added to: two flags a block, and the sums of
    /// the piece that each block but one begins with.
    pub const fn workspace_bytes_of_owners(&self, outputs: usize) -> usize {
        let blocks = self.blocks as usize;
        2 * size_of::<u64>() * blocks + (blocks - 1) * outputs * size_of::<f32>()
    }

    /// Bytes of the workspace for tiles of `outputs` elements: two flags a block, the sums of pieces that are left behind,
    /// and, where ranges are shorter than tiles, of pieces that are finished.
    pub const fn workspace_bytes(&self, outputs: usize) -> usize {
        let blocks = self.blocks as usize;
        let sums = if self.share() < self.steps {
            2 * blocks - 1
        } else {
            blocks - 1
        };
        2 * size_of::<u64>() * blocks + sums * outputs * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps `[begin, end)` of a tile.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Piece {
        tile: u32,
        begin: u32,
        end: u32,
    }

    impl StreamK {
        fn range_of_block(&self, block: u32) -> u32 {
            self.blocks - 1 - block
        }

        fn first_step(&self, range: u32) -> u32 {
            let longer = self.cut_steps % self.ranges;
            self.cut_steps.min(range * self.share() + range.min(longer))
        }

        fn range_of(&self, step: u32) -> u32 {
            let (share, longer) = (self.share(), self.cut_steps % self.ranges);
            match step < longer * (share + 1) {
                true => step / (share + 1),
                false => (step - longer) / share,
            }
        }

        /// `Schedule::take`
        fn take(&self, block: u32, number: u32) -> Option<Piece> {
            let (blocks, whole, steps) = (self.blocks, self.whole_tiles, self.steps as i64);
            if block + number * blocks < whole {
                return Some(Piece {
                    tile: block + number * blocks,
                    begin: 0,
                    end: self.steps,
                });
            }
            let range = self.range_of_block(block);
            let (from, to) = (self.first_step(range) as i64, self.first_step(range + 1) as i64);
            if from == to {
                return None;
            }
            let before = if block < whole {
                (whole - 1 - block) / blocks + 1
            } else {
                0
            };
            let tile = from / steps + number as i64 - before as i64;
            let (begin, end) = ((from - tile * steps).max(0), (to - tile * steps).min(steps));
            (end > 0).then_some(Piece {
                tile: whole + tile as u32,
                begin: begin as u32,
                end: end as u32,
            })
        }

        fn pieces(&self, block: u32) -> Vec<Piece> {
            (0..).map_while(|number| self.take(block, number)).collect()
        }

        /// `Contributors::of`: the first range with a piece of the tile, how many have one, and how many of them finish it.
        fn contributors(&self, tile: u32) -> (u32, u32, u32) {
            let begin = (tile - self.whole_tiles) * self.steps;
            let end = begin + self.steps;
            let (first, last) = (self.range_of(begin), self.range_of(end - 1));
            let pieces = last - first + 1;
            (first, pieces, pieces - u32::from(self.first_step(last + 1) > end))
        }
    }

    /// Every length of a range that divides a tile is looked at here, which takes as long as a tile has steps.
    #[test]
    fn even_ranges_are_the_shortest_that_divide_a_tile() {
        for sms in [1, 2, 7, 108, 132] {
            for tiles in 1..sms as usize + 2 {
                for steps in (1..200).chain([840, 1023, 1024, 5040]) {
                    let ways: Vec<StreamK> = StreamK::ways(tiles, steps, sms).collect();
                    let shortest = (tiles * steps).div_ceil(sms as usize);
                    let even = (shortest..=steps / 2).find(|&length| steps.is_multiple_of(length));
                    let expected = match even {
                        Some(length) if tiles < sms as usize && length > shortest => {
                            Some((tiles * steps / length) as u32)
                        }
                        _ => None,
                    };
                    assert_eq!(
                        ways.get(1).map(|way| way.ranges),
                        expected,
                        "{tiles} × {steps} on {sms}"
                    );
                }
            }
        }
    }

    fn ways() -> Vec<(usize, StreamK)> {
        let mut ways = Vec::new();
        for sms in [1, 2, 7, 108, 132] {
            for tiles in [1, 2, 3, 5, 6, 12, 48, 64, 96, 131, 132, 133, 200, 263, 264, 265, 768] {
                for steps in [1, 2, 3, 10, 16, 48, 192, 255, 896] {
                    ways.extend(StreamK::ways(tiles, steps, sms).map(|way| (tiles, way)));
                    let in_step = StreamK::in_step(tiles, steps, sms);
                    assert!(in_step.is_none_or(|way| !way.straddles()), "{in_step:?}");
                    ways.extend(in_step.map(|way| (tiles, way)));
                }
            }
        }
        ways
    }

    #[test]
    fn every_step_of_every_tile_is_computed_once() {
        assert!(ways().len() > 500);
        for (tiles, way) in ways() {
            let mut seen = vec![0u32; tiles * way.steps as usize];
            for block in 0..way.blocks {
                for piece in way.pieces(block) {
                    assert!(piece.begin < piece.end && piece.end <= way.steps, "{way:?}: {piece:?}");
                    for step in piece.begin..piece.end {
                        seen[(piece.tile * way.steps + step) as usize] += 1;
                    }
                }
            }
            assert!(seen.iter().all(|&times| times == 1), "{way:?}");
        }
    }

    #[test]
    fn shares_are_equal_and_no_longer_than_they_must_be() {
        for (tiles, way) in ways() {
            let lengths: Vec<u32> = (0..way.ranges)
                .map(|range| way.first_step(range + 1) - way.first_step(range))
                .collect();
            let (shortest, longest) = (*lengths.iter().min().unwrap(), *lengths.iter().max().unwrap());
            assert!(shortest > 0 && longest - shortest <= 1, "{way:?}");
            if way.whole_tiles > 0 {
                // Beside whole waves no range is longer than two tiles.
                assert!(longest <= 2 * way.steps && way.whole_tiles % way.blocks == 0, "{way:?}");
            }
            assert!(way.blocks >= way.ranges && tiles as u32 >= way.whole_tiles, "{way:?}");
        }
    }

    /// What `Finish` relies on: the ranges that it looks for have pieces of the tile; of these only the last may be one that
    /// its block does not end with; and the owner has the largest number of all blocks that it waits for.
    #[test]
    fn a_tile_finds_its_pieces_and_its_owner_waits_for_blocks_that_started_before_it() {
        for (tiles, way) in ways() {
            let last_pieces: Vec<Option<Piece>> =
                (0..way.blocks).map(|block| way.pieces(block).last().copied()).collect();
            let mut pieces_of = vec![Vec::new(); tiles];
            for block in 0..way.blocks {
                for piece in way.pieces(block) {
                    pieces_of[piece.tile as usize].push((block, piece));
                }
            }
            for (tile, mut pieces) in pieces_of.into_iter().enumerate().skip(way.whole_tiles as usize) {
                pieces.sort_by_key(|(_, piece)| piece.begin);
                let (first, count, finishers) = way.contributors(tile as u32);
                let ranges: Vec<u32> = pieces.iter().map(|&(block, _)| way.range_of_block(block)).collect();
                assert_eq!(
                    ranges,
                    (first..first + count).collect::<Vec<_>>(),
                    "{way:?}, tile {tile}"
                );
                assert!(
                    pieces.windows(2).all(|pair| pair[0].0 > pair[1].0),
                    "{way:?}, tile {tile}"
                );
                if count == 1 {
                    continue;
                }
                assert!(finishers >= 1 && count - finishers <= 1, "{way:?}, tile {tile}");
                for (i, (block, piece)) in pieces.iter().enumerate() {
                    let finishes = last_pieces[*block as usize] == Some(*piece);
                    assert_eq!(finishes, i < finishers as usize, "{way:?}, tile {tile}");
                    // Range 0 leaves nothing behind, and only ranges shorter than a tile need room for what they finish.
                    assert!(finishes || ranges[i] > 0, "{way:?}, tile {tile}");
                    assert!(finishers == 1 || way.share() < way.steps, "{way:?}, tile {tile}");
                }
            }
        }
    }

    #[test]
    fn whole_waves_stay_whole_and_even_ranges_keep_to_one_tile() {
        assert_eq!(StreamK::ways(264, 64, 132).count(), 0);
        // 1024³ in tiles of 128 × 128: 64 tiles of 64 steps of 16.
        let ways: Vec<StreamK> = StreamK::ways(64, 64, 132).collect();
        assert_eq!((ways.len(), ways[0].ranges, ways[0].share()), (1, 128, 32));
        assert!(!ways[0].straddles());
        let ways: Vec<StreamK> = StreamK::ways(32, 256, 132).collect();
        assert_eq!(ways.iter().map(|way| way.ranges).collect::<Vec<_>>(), [131, 128]);
        assert!(ways[0].straddles() && !ways[1].straddles());
        let beyond_one_wave: Vec<StreamK> = StreamK::ways(200, 48, 132).collect();
        assert_eq!((beyond_one_wave.len(), beyond_one_wave[0].whole_tiles), (1, 0));
        assert_eq!(StreamK::ways(300, 48, 132).next().unwrap().whole_tiles, 132);
    }
}
