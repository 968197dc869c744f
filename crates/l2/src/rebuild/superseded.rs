//! The keys of which memory has received values from elsewhere while the rebuild runs.
//!
//! Their blocks on the device are older. The index cannot mark a block that is not in it yet, so
//! the keys are kept until the rebuild ends. A key costs less than a record of the index.

use std::collections::BTreeSet;

use crate::record::{BlockAddr, KeyHash, Record, RecordState};

/// Most keys that are kept. With more, every block that is found later is bad.
const MAX_KEYS: usize = if cfg!(test) { 8 } else { 2 << 20 };
/// Bytes per key, about: leaves of a `BTreeSet` are two thirds full, and have nodes above them.
const KEY_BYTES: u64 = 9 * size_of::<KeyHash>() as u64 / 4;

/// The keys; see the module head.
#[derive(Default)]
pub(super) struct SupersededKeys {
    hashes: BTreeSet<KeyHash>,
    /// Whether there were more keys than are kept.
    is_full: bool,
}

impl SupersededKeys {
    pub(super) fn add(&mut self, hash: KeyHash) {
        if self.hashes.len() < MAX_KEYS {
            self.hashes.insert(hash);
        } else {
            self.is_full |= !self.hashes.contains(&hash);
        }
    }

    /// The live blocks among these whose keys were added.
    pub(super) fn among<'a>(
        &'a self,
        found: &'a [(KeyHash, Record)],
    ) -> impl Iterator<Item = (KeyHash, BlockAddr)> + 'a {
        let found = if self.hashes.is_empty() { &[] } else { found };
        let is_outdated = |(hash, record): &&(KeyHash, Record)| {
            record.state == RecordState::Live && (self.is_full || self.hashes.contains(hash))
        };
        found.iter().filter(is_outdated).map(|(hash, record)| (*hash, record.addr))
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.hashes.len() as u64 * KEY_BYTES
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use forebay_cache::Class;

    use super::*;

    fn found(states: &[RecordState]) -> Vec<(KeyHash, Record)> {
        let record = |(at, state): (usize, &RecordState)| {
            let addr = BlockAddr { segment: 0, unit: at as u32, units: 1 };
            let (class, in_memory, undecodable) = (Class::Data, false, false);
            let state = *state;
            (KeyHash(at as u64), Record { addr, class, hits: 0, in_memory, undecodable, state })
        };
        states.iter().enumerate().map(record).collect()
    }

    fn hashes(keys: &SupersededKeys, found: &[(KeyHash, Record)]) -> Vec<u64> {
        keys.among(found).map(|(hash, _)| hash.0).collect()
    }

    #[test]
    fn live_blocks_of_added_keys_are_found() {
        let mut keys = SupersededKeys::default();
        let found = found(&[RecordState::Live, RecordState::Live, RecordState::Tombstone]);
        assert_eq!(hashes(&keys, &found), []);
        keys.add(KeyHash(1));
        keys.add(KeyHash(2));
        assert_eq!(hashes(&keys, &found), [1]);
    }

    #[test]
    fn with_too_many_keys_all_blocks_count() {
        let mut keys = SupersededKeys::default();
        let found = found(&[RecordState::Live; 3]);
        (1..=MAX_KEYS as u64).for_each(|hash| keys.add(KeyHash(hash)));
        keys.add(KeyHash(1));
        assert_eq!(hashes(&keys, &found), [1, 2]);
        keys.add(KeyHash(MAX_KEYS as u64 + 1));
        assert_eq!(hashes(&keys, &found), [0, 1, 2]);
        assert_eq!(keys.memory_bytes(), MAX_KEYS as u64 * KEY_BYTES);
    }
}
