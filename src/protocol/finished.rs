//! Keys that this process has lately seen finished.
//!
//! A hint about where to look first, never an answer: a retry is likely to find its record, and a look is cheaper
//! than a claim. A key that is not remembered is claimed as usual.

use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// The number of places, and of keys in each: 65,536 keys in half a megabyte. That is enough, because retries follow
/// their request by seconds or minutes.
const PLACES: usize = 1 << 13;
const KEYS: usize = 8;

/// Hashes of keys. The hash decides the place of a key; within a place the latest comes first.
#[derive(Clone)]
pub(crate) struct Finished {
    places: Arc<[[AtomicU64; KEYS]]>,
    hasher: RandomState,
}

impl Default for Finished {
    fn default() -> Self {
        Self { places: (0..PLACES).map(|_| Default::default()).collect(), hasher: RandomState::new() }
    }
}

impl Finished {
    /// Remembers a key.
    pub(crate) fn note(&self, key: &impl Hash) {
        let (mut hash, place) = self.place(key);
        let noted = hash;
        // Each hash moves on by one slot, up to the key's former slot or out of the last one. A race loses only a hint.
        for slot in place {
            hash = slot.swap(hash, Ordering::Relaxed);
            if hash == noted {
                break;
            }
        }
    }

    /// Whether a key is remembered.
    pub(crate) fn has(&self, key: &impl Hash) -> bool {
        let (hash, place) = self.place(key);
        place.iter().any(|slot| slot.load(Ordering::Relaxed) == hash)
    }

    fn place(&self, key: &impl Hash) -> (u64, &[AtomicU64; KEYS]) {
        let hash = self.hasher.hash_one(key);
        #[allow(clippy::cast_possible_truncation, reason = "a remainder that is below a usize")]
        let at = (hash % PLACES as u64) as usize;
        (hash, &self.places[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_remembered_and_nothing_else() {
        let finished = Finished::default();
        assert!(!finished.has(&("client", "key")));
        finished.note(&("client", "key"));
        assert!(finished.has(&("client", "key")));
        assert!(!finished.has(&("clientk", "ey")));
    }

    #[test]
    fn the_latest_keys_stay_and_those_that_come_again() {
        let finished = Finished::default();
        let all = PLACES * KEYS * 2;
        for key in 0..all {
            finished.note(&key);
            finished.note(&"again");
        }
        assert!(finished.has(&"again"));
        let latest = all - PLACES / 4..all;
        assert_eq!(latest.clone().filter(|key| finished.has(key)).count(), latest.len());
        assert!((0..PLACES).filter(|key| finished.has(key)).count() < PLACES / 10);
    }
}
