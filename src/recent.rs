//! Keys that this process has lately seen finished.
//!
//! A hint about where to look first, never an answer: a retry is likely to find its record, and a look is cheaper
//! than a claim. What is forgotten, or was never known, is claimed as ever.

use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// How many keys are remembered at most, in half a megabyte: retries follow their request by seconds or minutes.
const KEYS: usize = 1 << 16;

/// A table of hashes, each in the one place that is its own; the latest stays.
#[derive(Clone)]
pub(crate) struct Recent {
    hashes: Arc<[AtomicU64]>,
    hasher: RandomState,
}

impl Default for Recent {
    fn default() -> Self {
        Self { hashes: (0..KEYS).map(|_| AtomicU64::new(0)).collect(), hasher: RandomState::new() }
    }
}

impl Recent {
    /// Remembers a key.
    pub(crate) fn note(&self, key: &impl Hash) {
        let (hash, place) = self.place(key);
        place.store(hash, Ordering::Relaxed);
    }

    /// Whether a key is remembered.
    pub(crate) fn has(&self, key: &impl Hash) -> bool {
        let (hash, place) = self.place(key);
        place.load(Ordering::Relaxed) == hash
    }

    fn place(&self, key: &impl Hash) -> (u64, &AtomicU64) {
        let hash = self.hasher.hash_one(key);
        // The remainder is below the length, which is a `usize`.
        #[allow(clippy::cast_possible_truncation, reason = "the remainder is below a usize")]
        let at = (hash % KEYS as u64) as usize;
        (hash, &self.hashes[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_remembered_and_nothing_else() {
        let recent = Recent::default();
        assert!(!recent.has(&("client", "key")));
        recent.note(&("client", "key"));
        assert!(recent.has(&("client", "key")));
        assert!(!recent.has(&("clientk", "ey")));
    }

    #[test]
    fn the_latest_keys_stay() {
        let recent = Recent::default();
        (0..KEYS * 4).for_each(|key| recent.note(&key));
        assert!((KEYS * 4 - 100..KEYS * 4).filter(|key| recent.has(key)).count() > 90);
    }
}
