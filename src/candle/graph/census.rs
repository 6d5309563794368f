//! What a recorded graph consists of, as far as it says whether replays would be right.

/// Candle keeps what it copies from the host while a graph is made, up to so many bytes at a time, as long as the thread lives.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))] // graphs are counted there only
pub(super) const KEPT_BY_THREAD_BYTES: usize = 4096;

/// Counts of a graph's nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    /// Allocations.
    pub allocated: usize,
    /// Allocations that are freed again, or were made before.
    pub freed: usize,
    /// Copies from the host's memory.
    pub from_host: usize,
    /// Copies to the host's memory.
    pub to_host: usize,
    /// Calls of the host.
    pub host_calls: usize,
    /// Copies on the device of no more than [`KEPT_BY_THREAD_BYTES`] each.
    pub small_copies: usize,
}

impl Census {
    /// Why replays would be wrong whatever the function did; `None`: they would not.
    pub(super) fn reads_the_host(&self) -> Option<String> {
        let Census {
            from_host,
            to_host,
            host_calls,
            ..
        } = *self;
        if from_host > 0 {
            return Some(format!(
                "{from_host} copies from the host's memory, which a replay would make again from where something else lies by \
                 then: make such tensors once, outside of the function, or pass them as inputs"
            ));
        }
        if to_host > 0 {
            return Some(format!(
                "{to_host} copies to the host's memory, which a replay would make again to where something else lies by then: \
                 return these tensors as outputs and read them after the run"
            ));
        }
        (host_calls > 0)
            .then(|| format!("{host_calls} calls of functions on the host, which a replay would make again"))
    }

    /// That something outlived the recording, or did not; `None`: all memory that was allocated was freed.
    pub(super) fn keeps(&self) -> Option<String> {
        let Census { allocated, freed, .. } = *self;
        if allocated == freed {
            return None;
        }
        let kept = allocated.saturating_sub(freed);
        Some(format!(
            "it keeps {kept} of the {allocated} tensors that were made while it was recorded, as a model does that grows a \
             cache: a replay would not do that. Give it a cache of fixed size that is written in place, or pass the cache as \
             an input and return it as an output"
        ))
    }

    /// Whether a replay may read what the thread that recorded it keeps.
    pub(super) fn needs_its_thread(&self) -> bool {
        self.small_copies > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_has_its_consequence() {
        let balanced = Census {
            allocated: 7,
            freed: 7,
            ..Census::default()
        };
        assert_eq!((balanced.reads_the_host(), balanced.keeps()), (None, None));
        assert!(!balanced.needs_its_thread());
        let keeps = Census { freed: 4, ..balanced }.keeps().unwrap();
        assert!(keeps.contains("3 of the 7"), "{keeps}");
        for (census, word) in [
            (
                Census {
                    from_host: 2,
                    ..balanced
                },
                "2 copies from",
            ),
            (Census { to_host: 1, ..balanced }, "1 copies to"),
            (
                Census {
                    host_calls: 5,
                    ..balanced
                },
                "5 calls",
            ),
        ] {
            let text = census.reads_the_host().unwrap();
            assert!(text.starts_with(word), "{text}");
        }
        assert!(Census {
            small_copies: 1,
            ..balanced
        }
        .needs_its_thread());
    }
}
