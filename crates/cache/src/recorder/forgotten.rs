//! Notes of recorded blocks that were forgotten: enough to tell a loop much larger than the cache
//! from first reads.
//!
//! Locking: none; a part of the [`Log`](super::log::Log).

use std::collections::{HashMap, VecDeque};

/// Most notes. The oldest go.
const NOTES: usize = if cfg!(forebay_model) { 4 } else { 1024 };

/// Notes of blocks that were forgotten.
pub(super) struct Forgotten {
    /// By key, the weight of all recorded inserts when the block left.
    notes: HashMap<u64, u64, foldhash::fast::FixedState>,
    /// The notes in order. Some were replaced since.
    order: VecDeque<(u64, u64)>,
}

impl Forgotten {
    pub(super) fn new(hasher: foldhash::fast::FixedState) -> Self {
        Self { notes: HashMap::with_hasher(hasher), order: VecDeque::new() }
    }

    pub(super) fn inserted(&self, key: u64) -> Option<u64> {
        self.notes.get(&key).copied()
    }

    pub(super) fn note(&mut self, key: u64, inserted: u64) {
        if self.order.len() == NOTES
            && let Some((oldest, at)) = self.order.pop_front()
            && self.inserted(oldest) == Some(at)
        {
            self.notes.remove(&oldest);
        }
        self.order.push_back((key, inserted));
        self.notes.insert(key, inserted);
    }

    /// Doubles all weights.
    pub(super) fn double(&mut self) {
        self.notes.values_mut().for_each(|inserted| *inserted *= 2);
        self.order.iter_mut().for_each(|(_, inserted)| *inserted *= 2);
    }

    pub(super) fn clear(&mut self) {
        self.notes.clear();
        self.order.clear();
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let note = size_of::<(u64, u64)>();
        (self.notes.capacity() * 8 / 7 * (note + 1) + self.order.capacity() * note) as u64
    }
}
