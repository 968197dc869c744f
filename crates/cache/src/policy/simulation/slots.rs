//! Numbers for sampled keys, so that miniatures keep their blocks in arrays.
//!
//! Locking: `simulations`.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use forebay_base::sync::Arc;

use super::marked_keys::MarkedKeys;

/// Numbers for the keys that some miniatures track.
#[derive(Default)]
pub(super) struct Slots {
    by_key: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
    pub(super) keys: Vec<u64>,
    /// A block's weight when it was first seen, while it is tracked.
    weights: Vec<u32>,
    /// How many miniatures track it.
    pub(super) trackers: Vec<u8>,
    pub(super) free: Vec<u32>,
    /// Of all miniatures of the class.
    marked: Arc<MarkedKeys>,
}

impl Slots {
    pub(super) fn new(marked: Arc<MarkedKeys>) -> Self {
        Self { marked, ..Self::default() }
    }

    /// A miniature has cleared a block's mark.
    pub(super) fn note_unmarked(&self, slot: u32) {
        self.marked.remove(self.keys[slot as usize]);
    }

    /// The sample has grown.
    pub(super) fn forget_marked(&self) {
        self.marked.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn weight(&self, slot: u32) -> u32 {
        self.weights[slot as usize]
    }

    pub(super) fn all(&self) -> Vec<u32> {
        self.by_key.values().copied().collect()
    }

    pub(super) fn find_or_add(&mut self, key: u64, weight: u32) -> u32 {
        if let Some(slot) = self.by_key.get(&key) {
            return *slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.keys.push(0);
            self.weights.push(0);
            self.trackers.push(0);
            self.keys.len() as u32 - 1
        });
        let n = slot as usize;
        (self.keys[n], self.weights[n], self.trackers[n]) = (key, weight, 0);
        self.by_key.insert(key, slot);
        slot
    }

    pub(super) fn release_if_untracked(&mut self, slot: u32) {
        let n = slot as usize;
        if self.trackers[n] == 0 && self.by_key.remove(&self.keys[n]).is_some() {
            self.free.push(slot);
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let each = size_of::<u64>() + 2 * size_of::<u32>() + 1;
        // An entry of the table and its control byte.
        (self.keys.capacity() * each + self.by_key.capacity() * 17) as u64
    }
}

/// Hashes values that are hashes already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, key: u64) {
        // The table uses the low bits for the bucket and the top bits to tell entries apart. The
        // low bits of a sampled key are zero.
        self.0 = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}
