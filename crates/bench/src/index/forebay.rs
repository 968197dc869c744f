//! Forebay's index alone. As in the cache, the index holds tags of hashes, and keys are compared in
//! the headers; a column of keys stands for these.

use forebay_cache::bench_internals::BareIndex;

use super::Table;
use crate::keys::scramble;

/// The index and the column of keys.
#[derive(Default)]
pub(crate) struct ForebayIndex {
    index: BareIndex,
    keys: Vec<u64>,
}

impl ForebayIndex {
    /// An empty index, with a preallocated column: its growth is not the index's.
    pub(crate) fn new(most_entries: u64) -> Self {
        Self { index: BareIndex::default(), keys: Vec::with_capacity(most_entries as usize) }
    }
}

impl Table for ForebayIndex {
    fn insert(&mut self, key: u64, slot: u64) {
        // Slots are assigned in order, as in the slab.
        debug_assert_eq!(slot, self.keys.len() as u64);
        self.keys.push(key);
        let keys = &self.keys;
        let inserted = self.index.insert(scramble(key), slot as usize, |at| scramble(keys[at]));
        assert!(inserted, "the system has no memory for the index");
    }

    fn lookup(&self, key: u64) -> Option<u64> {
        self.index.find(scramble(key), |at| self.keys[at] == key).map(|at| at as u64)
    }

    fn bytes(&self) -> u64 {
        self.index.stats().resident_bytes
    }

    fn longest_chain(&self) -> Option<u64> {
        Some(self.index.stats().longest_chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_what_it_holds() {
        let mut index = ForebayIndex::new(5000);
        (0..5000).for_each(|key| index.insert(key * 3, key));
        for key in 0..15_000 {
            assert_eq!(index.lookup(key), (key % 3 == 0).then_some(key / 3), "key {key}");
        }
        assert!(index.bytes() > 5000 * 8);
    }
}
