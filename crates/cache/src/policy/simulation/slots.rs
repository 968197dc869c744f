//! Numbers for sampled keys, so that miniatures keep their blocks in arrays.
//!
//! Locking: `simulations`.

use forebay_base::sync::Arc;

use super::marked_keys::MarkedKeys;
use crate::key_numbers::KeyNumbers;

/// The number of a key. All numbers are below its largest value.
pub(super) type SlotNumber = u16;

/// Numbers for the keys that some miniatures track.
#[derive(Default)]
pub(super) struct Slots {
    numbers: KeyNumbers,
    pub(super) keys: Vec<u64>,
    /// A block's weight when it was first seen, while it is tracked.
    weights: Vec<u32>,
    /// How many miniatures track it.
    pub(super) trackers: Vec<u8>,
    pub(super) free: Vec<SlotNumber>,
    /// Of all miniatures of the class.
    marked: Arc<MarkedKeys>,
}

impl Slots {
    pub(super) fn new(marked: Arc<MarkedKeys>) -> Self {
        Self { marked, ..Self::default() }
    }

    /// A miniature has cleared a block's mark.
    pub(super) fn note_unmarked(&self, slot: SlotNumber) {
        self.marked.remove(self.keys[slot as usize]);
    }

    /// The sample has grown.
    pub(super) fn forget_marked(&self) {
        self.marked.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn weight(&self, slot: SlotNumber) -> u32 {
        self.weights[slot as usize]
    }

    pub(super) fn all(&self) -> Vec<SlotNumber> {
        self.numbers.iter().collect()
    }

    pub(super) fn find(&self, key: u64) -> Option<SlotNumber> {
        self.numbers.get(key, |slot| self.keys[slot as usize])
    }

    pub(super) fn find_or_add(&mut self, key: u64, weight: u32) -> SlotNumber {
        if let Some(slot) = self.find(key) {
            return slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.keys.push(0);
            self.weights.push(0);
            self.trackers.push(0);
            self.keys.len() as SlotNumber - 1
        });
        let n = slot as usize;
        (self.keys[n], self.weights[n], self.trackers[n]) = (key, weight, 0);
        self.numbers.insert(key, slot, |slot| self.keys[slot as usize]);
        slot
    }

    pub(super) fn release_if_untracked(&mut self, slot: SlotNumber) {
        let n = slot as usize;
        if self.trackers[n] > 0 {
            return;
        }
        if self.numbers.remove(self.keys[n], |slot| self.keys[slot as usize]).is_some() {
            self.free.push(slot);
        }
    }

    /// Bytes that so many keys at once take, at most.
    #[cfg(feature = "insight")]
    pub(super) const fn most_bytes(keys: usize) -> u64 {
        let each = size_of::<u64>() + size_of::<u32>() + size_of::<u8>() + size_of::<SlotNumber>();
        (keys.next_power_of_two() * each) as u64 + KeyNumbers::most_bytes(keys)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let arrays = self.keys.capacity() * size_of::<u64>()
            + self.weights.capacity() * size_of::<u32>()
            + self.trackers.capacity()
            + self.free.capacity() * size_of::<SlotNumber>();
        arrays as u64 + self.numbers.memory_bytes()
    }
}
