//! Miniatures of one size under several rules, on one sample whose size is bounded.
//!
//! Whenever a miniature outgrows its bound, the sample is halved, and doubled when it is much too
//! small. So memory and time are bounded, however large the cache is.
//!
//! Locking: `simulations`.

use forebay_base::sync::Arc;

use super::access_buffer::Access;
use super::marked_keys::MarkedKeys;
use super::miniature::Miniature;
use super::slots::Slots;
use crate::policy::admission::Rule;

/// How large miniatures become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Blocks in a miniature above which the sample is halved. It is doubled when a full one has
    /// fewer than an eighth.
    pub(crate) blocks: u64,
    /// Halves a sample of less than one of `dense` blocks, instead of `blocks`. So caches of few
    /// blocks, where chance matters most, have dense samples, and those of many have cheap ones.
    pub(crate) sparse_blocks: u64,
    pub(crate) dense: u64,
    /// Keys of all miniatures above which the sample is halved.
    pub(crate) keys: usize,
    /// Ghosts that each miniature may always keep.
    pub(crate) min_ghosts: u64,
}

pub(crate) struct Miniatures {
    bounds: Bounds,
    mask: u64,
    pub(super) slots: Slots,
    pub(super) miniatures: Vec<Miniature>,
}

impl Miniatures {
    pub(crate) fn new(rules: &[Rule], bounds: Bounds, marked: Arc<MarkedKeys>) -> Self {
        let miniature = |rule: &Rule| Miniature::new(*rule, bounds.min_ghosts);
        let miniatures = rules.iter().map(miniature).collect();
        Self { bounds, mask: 0, slots: Slots::new(marked), miniatures }
    }

    pub(crate) fn samples(&self, key: u64) -> bool {
        key & self.mask == 0
    }

    /// Bits of a sampled key that are zero. One of `mask + 1` blocks is sampled.
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    /// Replays an access to a sampled block, in a cache of `capacity` bytes. Returns under which
    /// rules it hits, as bits.
    pub(crate) fn access(&mut self, access: Access, capacity: u64) -> u32 {
        let capacity = capacity >> self.mask.count_ones();
        let slot = self.slots.find_or_add(access.key, access.weight);
        let mut hits = 0;
        for (rule, miniature) in self.miniatures.iter_mut().enumerate() {
            let tracked_before = miniature.tracks(slot);
            hits |= u32::from(miniature.access(slot, capacity, &self.slots)) << rule;
            let tracks = miniature.tracks(slot);
            self.slots.trackers[slot as usize] += u8::from(tracks && !tracked_before);
        }
        if hits.count_ones() as usize == self.miniatures.len() {
            // Nothing has moved.
            return hits;
        }
        // No miniature has it if it is too heavy for all.
        self.slots.release_if_untracked(slot);
        self.release_forgotten();
        self.adjust_sample(capacity);
        hits
    }

    /// Removes a block from all miniatures.
    pub(crate) fn remove(&mut self, key: u64) {
        let slot = if self.samples(key) { self.slots.find(key) } else { None };
        let Some(slot) = slot else { return };
        self.miniatures.iter_mut().for_each(|miniature| miniature.forget(slot, &self.slots));
        self.release_forgotten();
    }

    /// Blocks in the largest miniature.
    pub(crate) fn blocks(&self) -> u64 {
        self.miniatures.iter().map(Miniature::blocks).max().unwrap_or(0)
    }

    /// Halves or doubles the sample if a miniature is too large or too small.
    fn adjust_sample(&mut self, capacity: u64) {
        let blocks = self.blocks();
        let most = if self.mask < self.bounds.dense {
            self.bounds.blocks
        } else {
            self.bounds.sparse_blocks
        };
        if blocks > most || self.slots.len() > self.bounds.keys {
            self.mask = (self.mask << 1) | 1;
            for slot in self.slots.all() {
                if self.slots.keys[slot as usize] & self.mask != 0 {
                    self.miniatures
                        .iter_mut()
                        .for_each(|miniature| miniature.forget(slot, &self.slots));
                }
            }
            self.release_forgotten();
            return;
        }
        let is_full =
            || self.miniatures.iter().any(|each| each.resident_bytes() > capacity / 8 * 7);
        // Twice as many must not be too many again.
        let few = (self.bounds.blocks / 8).min(most / 3);
        if self.mask > 0 && blocks < few && is_full() {
            self.mask >>= 1;
            self.slots.forget_marked();
        }
    }

    /// Releases the slots that no miniature tracks.
    fn release_forgotten(&mut self) {
        for miniature in &mut self.miniatures {
            if !miniature.has_forgotten() {
                continue;
            }
            for slot in miniature.forgotten() {
                self.slots.trackers[slot as usize] -= 1;
                self.slots.release_if_untracked(slot);
            }
            miniature.shrink_forgotten();
        }
    }

    /// Weight of the blocks in the largest miniature.
    #[cfg(feature = "insight")]
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.miniatures.iter().map(Miniature::resident_bytes).max().unwrap_or(0)
    }

    /// Changes the rule, of a single miniature.
    #[cfg(feature = "insight")]
    pub(crate) fn set_only_rule(&mut self, rule: Rule) {
        if let [only] = &mut self.miniatures[..] {
            only.set_rule(rule);
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let own = self.miniatures.capacity() * size_of::<Miniature>();
        let nodes: u64 = self.miniatures.iter().map(Miniature::memory_bytes).sum();
        own as u64 + self.slots.memory_bytes() + nodes
    }

    /// Bytes that miniatures of so many rules take, at most.
    #[cfg(feature = "insight")]
    pub(crate) const fn most_bytes(bounds: &Bounds, rules: usize) -> u64 {
        // The sample is halved when there is a key more.
        let keys = bounds.keys + 1;
        let each = size_of::<Miniature>() as u64 + Miniature::most_bytes(keys);
        Slots::most_bytes(keys) + rules as u64 * each
    }
}
