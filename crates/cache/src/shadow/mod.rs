//! Shadow caches: which rule would have done best, found out on a sample.
//!
//! For each class there is a shadow of each of the policy's rules: a small cache of keys that does to the
//! sampled blocks what the policy would do under that rule, with a share of the room as large as the
//! sample's share of the blocks. (Waldspurger et al., "Cache Modeling and Optimization using Miniature
//! Simulations", ATC 2017.) A block is sampled by its hash; a cache of up to [`MOST`] blocks is sampled
//! whole, and each time that a shadow outgrows that, half of the sample goes. So shadows cost a fixed amount of memory and,
//! with many blocks, next to no time.
//!
//! What shadows see: a block that comes in, and a hit on a sampled one. The header of such a block has a flag in
//! its state word, which a hit has in its hand; so other hits pay nothing. Accesses go through the tap
//! (`tap.rs`), and who brings a sampled block in, or finds the tap half full, takes them out and plays them, if nobody else is at it.
//!
//! What they do not see: removals, blocks hinted `once` or `again`, pins, blocks that are refused. They are all
//! asked the same, so that the comparison is fair all the same.
//!
//! Locking: `shadows`, a leaf lock, only ever tried but for `clear` and the figures of memory.

mod choice;
mod mini;
pub(crate) mod tap;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU64, Ordering};

use crate::attributes::Class;
use crate::policy::{FIRST_RULE, RULES};
use choice::Choice;
use mini::Mini;
use tap::{Access, Tap};

/// Blocks in a shadow; beyond, the sample is halved.
const MOST: u64 = if cfg!(forebay_model) { 4 } else { 512 };
/// Keys that the shadows of a class know together; beyond, too.
const MOST_KEYS: usize = 8 * MOST as usize;
/// Blocks in a shadow that is full; below, the sample is doubled.
const FEWEST: u64 = MOST / 8;

/// The part of a hash by which blocks are sampled and shadows know them: 39 bits.
#[inline]
pub(crate) fn sample_key(hash: u64) -> u64 {
    hash >> 25
}

pub(crate) struct Shadows {
    /// By class. A block is sampled if its key has none of these bits.
    masks: [AtomicU64; 2],
    tap: Tap,
    of_class: Mutex<[Shadow; 2]>,
}

/// What happened when accesses were played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Played {
    /// Accesses by class.
    pub(crate) accesses: [u64; 2],
    /// Times that another rule was chosen, by class.
    pub(crate) changes: [u64; 2],
    /// The rules that are chosen now.
    pub(crate) chosen: [usize; 2],
}

impl Shadows {
    pub(crate) fn new(shards: usize) -> Self {
        Self {
            masks: [AtomicU64::new(0), AtomicU64::new(0)],
            tap: Tap::new(shards),
            of_class: Mutex::named("shadows", [Shadow::new(), Shadow::new()]),
        }
    }

    /// Whether blocks of that hash are sampled now.
    #[inline]
    pub(crate) fn samples(&self, hash: u64, class: Class) -> bool {
        sample_key(hash) & self.masks[class as usize].load(Ordering::Relaxed) == 0
    }

    /// A sampled block was hit: takes no lock.
    pub(crate) fn note_hit(&self, hash: u64, class: Class, weight: u32) {
        // Its header may have been sampled more generously.
        if self.samples(hash, class) {
            self.tap.note(Access { key: sample_key(hash), class, weight });
        }
    }

    /// Whether accesses should be played though no sampled block comes in: else those that are noted next are lost.
    #[inline]
    pub(crate) fn wait_to_be_played(&self) -> bool {
        self.tap.is_half_full()
    }

    /// A block comes in; a sampled one if it is told. Plays all accesses up to now, unless somebody else is at it. `room`
    /// tells the bytes that a class could fill.
    pub(crate) fn note_miss(
        &self,
        sampled: Option<(u64, Class, u32)>,
        room: impl Fn(Class) -> u64,
    ) -> Option<Played> {
        let access =
            sampled.map(|(hash, class, weight)| Access { key: sample_key(hash), class, weight });
        let Some(mut shadows) = self.of_class.try_lock() else {
            access.into_iter().for_each(|access| self.tap.note(access));
            return None;
        };
        let rooms = Class::ALL.map(room);
        let mut played = Played::default();
        let mut play = |access: Access| {
            let class = access.class as usize;
            let shadow = &mut shadows[class];
            if access.key & shadow.mask != 0 {
                return;
            }
            played.accesses[class] += 1;
            played.changes[class] += u64::from(shadow.access(access, rooms[class]));
        };
        self.tap.take(&mut play);
        access.into_iter().for_each(&mut play);
        for (mask, shadow) in self.masks.iter().zip(&*shadows) {
            mask.store(shadow.mask, Ordering::Relaxed);
        }
        played.chosen = [shadows[0].choice.chosen(), shadows[1].choice.chosen()];
        Some(played)
    }

    /// Begins anew, but for the rules that are chosen.
    pub(crate) fn clear(&self) {
        let mut shadows = self.of_class.lock();
        self.tap.take(drop);
        for (mask, shadow) in self.masks.iter().zip(&mut *shadows) {
            let chosen = shadow.choice.chosen();
            *shadow = Shadow::new();
            shadow.choice = Choice::new(chosen);
            mask.store(0, Ordering::Relaxed);
        }
    }

    /// Bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.of_class.lock().iter().map(Shadow::memory_bytes).sum()
    }
}

/// The shadows of a class.
struct Shadow {
    mask: u64,
    slots: Slots,
    minis: [Mini; RULES.len()],
    choice: Choice,
}

impl Shadow {
    fn new() -> Self {
        Self {
            mask: 0,
            slots: Slots::default(),
            minis: RULES.map(Mini::new),
            choice: Choice::new(FIRST_RULE),
        }
    }

    /// Plays an access, in a class that could fill `room`. True if another rule is chosen now.
    fn access(&mut self, access: Access, room: u64) -> bool {
        let room = room / (self.mask + 1);
        let slot = self.slots.find_or_add(access.key, access.weight);
        let mut hits = 0;
        for (rule, mini) in self.minis.iter_mut().enumerate() {
            let knew = mini.knows(slot);
            hits |= u32::from(mini.access(slot, room, &self.slots)) << rule;
            let knows = mini.knows(slot);
            self.slots.knowers[slot as usize] += u8::from(knows && !knew);
        }
        let blocks = self.minis.iter().map(Mini::blocks).max().unwrap_or(0);
        let changed = self.choice.note(hits, blocks);
        // Its entry goes too if it is too heavy for every shadow.
        self.slots.release_if_unknown(slot);
        self.let_go();
        self.fit(blocks, room);
        changed
    }

    /// Keeps the sample in proportion.
    fn fit(&mut self, blocks: u64, room: u64) {
        if blocks > MOST || self.slots.len() > MOST_KEYS {
            self.mask = (self.mask << 1) | 1;
            for slot in self.slots.all() {
                if self.slots.keys[slot as usize] & self.mask != 0 {
                    self.minis.iter_mut().for_each(|mini| mini.forget(slot, &self.slots));
                }
            }
            self.let_go();
            return;
        }
        let full = self.minis.iter().any(|mini| mini.resident_bytes() > room / 8 * 7);
        if blocks < FEWEST && full && self.mask > 0 {
            self.mask >>= 1;
        }
    }

    /// Gives up the slots that no shadow knows any more.
    fn let_go(&mut self) {
        for mini in &mut self.minis {
            for slot in mini.forgotten() {
                self.slots.knowers[slot as usize] -= 1;
                self.slots.release_if_unknown(slot);
            }
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.slots.memory_bytes() + self.minis.iter().map(Mini::memory_bytes).sum::<u64>()
    }
}

/// Numbers for the keys that the shadows of a class know.
#[derive(Default)]
struct Slots {
    by_key: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
    keys: Vec<u64>,
    /// A block's weight when it was first seen, for as long as it is known.
    weights: Vec<u32>,
    /// How many shadows know it.
    knowers: Vec<u8>,
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
            self.knowers.push(0);
            self.keys.len() as u32 - 1
        });
        let n = slot as usize;
        (self.keys[n], self.weights[n], self.knowers[n]) = (key, weight, 0);
        self.by_key.insert(key, slot);
        slot
    }

    fn release_if_unknown(&mut self, slot: u32) {
        let n = slot as usize;
        if self.knowers[n] == 0 && self.by_key.remove(&self.keys[n]).is_some() {
            self.free.push(slot);
        }
    }

    fn memory_bytes(&self) -> u64 {
        let each = size_of::<u64>() + 2 * size_of::<u32>() + 1;
        // A table's entry and its control byte.
        (self.keys.capacity() * each + self.by_key.capacity() * 17) as u64
    }
}

/// Hashes what is a hash already.
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
        // The low bits choose the place in a table, the top ones tell its entries apart; a sampled key's low bits are zero.
        self.0 = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}
