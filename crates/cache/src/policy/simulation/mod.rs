//! Miniature simulations: find the rule that does best, on a sample of the blocks.
//!
//! For each class and rule there is a small cache of keys ([`miniature`]). It applies the policy
//! under that rule to the sampled blocks, with the sample's share of the capacity (Waldspurger et
//! al., "Cache Modeling and Optimization using Miniature Simulations", ATC 2017). Blocks are
//! sampled by hash. A cache of up to [`MAX_BLOCKS`] blocks is sampled whole. Whenever a miniature
//! outgrows that, the sample is halved. So the memory is bounded, and with many blocks the time is
//! negligible.
//!
//! The simulations see inserted blocks and hits on sampled blocks. The header of a sampled block
//! has a flag in its state word, so other hits pay nothing. Accesses pass through the
//! [`access_buffer`]. A thread that inserts a sampled block, or finds its ring half full, replays
//! all accesses, unless another thread does.
//!
//! They do not see removals, refused blocks, pins, and blocks hinted `once` or `again`. All rules
//! see the same accesses, so the comparison is fair.
//!
//! Locking: `simulations`, a leaf lock. Inserters only try it; `clear` and the sum of memory wait
//! for it.

pub(crate) mod access_buffer;
mod choice;
mod miniature;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use forebay_base::sync::Mutex;

use crate::attributes::Class;
use crate::policy::admission::{FIRST_RULE, RULES};
use crate::sample::{Sample, sample_key};
use access_buffer::{Access, AccessBuffer};
use choice::Choice;
use miniature::Miniature;

/// Blocks in a miniature above which the sample is halved.
const MAX_BLOCKS: u64 = if cfg!(forebay_model) { 4 } else { 512 };
/// Keys of all miniatures of a class above which the sample is halved.
const MAX_KEYS: usize = 8 * MAX_BLOCKS as usize;
/// Blocks in a full miniature below which the sample is doubled.
const MIN_BLOCKS: u64 = MAX_BLOCKS / 8;

pub(crate) struct Simulations {
    /// By class.
    samples: [Sample; 2],
    access_buffer: AccessBuffer,
    of_class: Mutex<[Simulation; 2]>,
}

/// The outcome of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplayOutcome {
    /// Accesses by class.
    pub(crate) accesses: [u64; 2],
    /// Changes of the chosen rule, by class.
    pub(crate) changes: [u64; 2],
    /// The chosen rules, by class.
    pub(crate) chosen: [usize; 2],
}

impl Simulations {
    pub(crate) fn new(shards: usize) -> Self {
        Self {
            samples: [Sample::default(), Sample::default()],
            access_buffer: AccessBuffer::new(shards),
            of_class: Mutex::named("simulations", [Simulation::new(), Simulation::new()]),
        }
    }

    /// Whether blocks of that hash are sampled now.
    #[inline]
    pub(crate) fn samples(&self, hash: u64, class: Class) -> bool {
        self.samples[class as usize].has(sample_key(hash))
    }

    /// Notes a hit on a sampled block. Takes no lock.
    pub(crate) fn note_hit(&self, hash: u64, class: Class, weight: u32) {
        // The header was sampled when the sample was larger, perhaps.
        if self.samples(hash, class) {
            self.access_buffer.note(Access { key: sample_key(hash), class, weight });
        }
    }

    /// Whether accesses should be replayed even though no sampled block was inserted, because the
    /// ring is about to drop some.
    #[inline]
    pub(crate) fn should_replay(&self) -> bool {
        self.access_buffer.is_half_full()
    }

    /// Notes an insertion, with the block if it is sampled, and replays all accesses unless another
    /// thread does. `capacity_of` returns the bytes that a class could fill.
    pub(crate) fn note_miss(
        &self,
        sampled: Option<(u64, Class, u32)>,
        capacity_of: impl Fn(Class) -> u64,
    ) -> Option<ReplayOutcome> {
        let access =
            sampled.map(|(hash, class, weight)| Access { key: sample_key(hash), class, weight });
        let Some(mut simulations) = self.of_class.try_lock() else {
            access.into_iter().for_each(|access| self.access_buffer.note(access));
            return None;
        };
        let capacities = Class::ALL.map(capacity_of);
        let mut replayed = ReplayOutcome::default();
        let mut replay = |access: Access| {
            let class = access.class as usize;
            let simulation = &mut simulations[class];
            if access.key & simulation.mask != 0 {
                return;
            }
            replayed.accesses[class] += 1;
            replayed.changes[class] += u64::from(simulation.access(access, capacities[class]));
        };
        self.access_buffer.take(&mut replay);
        access.into_iter().for_each(&mut replay);
        for (sample, simulation) in self.samples.iter().zip(&*simulations) {
            sample.set_mask(simulation.mask);
        }
        replayed.chosen = [simulations[0].choice.chosen(), simulations[1].choice.chosen()];
        Some(replayed)
    }

    /// Restarts the simulations. The chosen rules stay.
    pub(crate) fn clear(&self) {
        let mut simulations = self.of_class.lock();
        self.access_buffer.take(drop);
        for (sample, simulation) in self.samples.iter().zip(&mut *simulations) {
            let chosen = simulation.choice.chosen();
            *simulation = Simulation::new();
            simulation.choice = Choice::new(chosen);
            sample.set_mask(0);
        }
    }

    /// Bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.of_class.lock().iter().map(Simulation::memory_bytes).sum()
    }
}

/// The miniatures of a class.
struct Simulation {
    mask: u64,
    slots: Slots,
    miniatures: [Miniature; RULES.len()],
    choice: Choice,
}

impl Simulation {
    fn new() -> Self {
        Self {
            mask: 0,
            slots: Slots::default(),
            miniatures: RULES.map(Miniature::new),
            choice: Choice::new(FIRST_RULE),
        }
    }

    /// Replays an access in a class that could fill `capacity` bytes. True if the chosen rule
    /// changes.
    fn access(&mut self, access: Access, capacity: u64) -> bool {
        let capacity = capacity / (self.mask + 1);
        let slot = self.slots.find_or_add(access.key, access.weight);
        let mut hits = 0;
        for (rule, miniature) in self.miniatures.iter_mut().enumerate() {
            let tracked_before = miniature.tracks(slot);
            hits |= u32::from(miniature.access(slot, capacity, &self.slots)) << rule;
            let tracks = miniature.tracks(slot);
            self.slots.trackers[slot as usize] += u8::from(tracks && !tracked_before);
        }
        let blocks = self.miniatures.iter().map(Miniature::blocks).max().unwrap_or(0);
        let changed = self.choice.note(hits, blocks);
        // No miniature has it if it is too heavy for all.
        self.slots.release_if_untracked(slot);
        self.release_forgotten();
        self.adjust_sample(blocks, capacity);
        changed
    }

    /// Halves or doubles the sample if a miniature is too large or too small.
    fn adjust_sample(&mut self, blocks: u64, capacity: u64) {
        if blocks > MAX_BLOCKS || self.slots.len() > MAX_KEYS {
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
        let full =
            self.miniatures.iter().any(|miniature| miniature.resident_bytes() > capacity / 8 * 7);
        if blocks < MIN_BLOCKS && full && self.mask > 0 {
            self.mask >>= 1;
        }
    }

    /// Releases the slots that no miniature tracks.
    fn release_forgotten(&mut self) {
        for miniature in &mut self.miniatures {
            for slot in miniature.forgotten() {
                self.slots.trackers[slot as usize] -= 1;
                self.slots.release_if_untracked(slot);
            }
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.slots.memory_bytes() + self.miniatures.iter().map(Miniature::memory_bytes).sum::<u64>()
    }
}

/// Numbers for the keys that the miniatures of a class track.
#[derive(Default)]
struct Slots {
    by_key: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
    keys: Vec<u64>,
    /// A block's weight when it was first seen, while it is tracked.
    weights: Vec<u32>,
    /// How many miniatures track it.
    trackers: Vec<u8>,
    free: Vec<u32>,
}

impl Slots {
    fn len(&self) -> usize {
        self.by_key.len()
    }

    fn weight(&self, slot: u32) -> u32 {
        self.weights[slot as usize]
    }

    fn all(&self) -> Vec<u32> {
        self.by_key.values().copied().collect()
    }

    fn find_or_add(&mut self, key: u64, weight: u32) -> u32 {
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

    fn release_if_untracked(&mut self, slot: u32) {
        let n = slot as usize;
        if self.trackers[n] == 0 && self.by_key.remove(&self.keys[n]).is_some() {
            self.free.push(slot);
        }
    }

    fn memory_bytes(&self) -> u64 {
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
