//! Looking a name up without the directory's lock.
//!
//! A leaf says itself which hashes it has, and at which block it belongs: one that is found at its place and
//! covers a hash is the leaf for it, however it was found. So a lookup may guess where the leaf is, from [`Hints`]
//! that nobody keeps right, and takes the lock only if guesses do not find it.
//!
//! This relies on leaves that change whole: one appears with all its entries, and gains or loses a half in one
//! step. So there is never a leaf at its place that lacks entries which it covers; only for a moment, within a split
//! or merge, there may be no leaf for some hashes.

use forebay_base::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::Zap;
use super::entry::{Value, leaf_id};
use super::leaf::{Leaf, LeafDefect};
use super::store::{LeafLookup, LeafStore};
use crate::Result;

/// Hints: one for each prefix of so many bits, a line of memory in all.
const HINT_BITS: u32 = 6;
/// Leaves that are looked at before the lock is taken.
const PROBES_MAX: usize = 4;
/// One operation in so many is counted, with this weight: others do not write what all threads share.
const SAMPLE: u32 = 16;

/// One more than the depth that a leaf was found at for each prefix, or 0. Read and written relaxed: each is a
/// guess by itself.
pub(super) struct Hints([AtomicU8; 1 << HINT_BITS]);

impl Hints {
    pub(super) fn new() -> Self {
        Self([const { AtomicU8::new(0) }; 1 << HINT_BITS])
    }

    #[inline]
    fn get(&self, hash: u32) -> Option<u8> {
        self.slot(hash).load(Ordering::Relaxed).checked_sub(1)
    }

    /// Notes where the leaf for a hash was found.
    pub(super) fn set(&self, hash: u32, depth: u8) {
        let slot = self.slot(hash);
        if slot.load(Ordering::Relaxed) != depth + 1 {
            slot.store(depth + 1, Ordering::Relaxed);
        }
    }

    /// Forgets all: there are no leaves any more.
    pub(super) fn clear(&self) {
        self.0.iter().for_each(|hint| hint.store(0, Ordering::Relaxed));
    }

    #[inline]
    fn slot(&self, hash: u32) -> &AtomicU8 {
        &self.0[(hash >> (u32::BITS - HINT_BITS)) as usize]
    }
}

/// About how many operations there were.
pub(super) struct Operations(AtomicU64);

impl Operations {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts an operation on a name with this hash.
    #[inline]
    pub(super) fn count(&self, hash: u32) {
        if hash.is_multiple_of(SAMPLE) {
            self.0.fetch_add(u64::from(SAMPLE), Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a guess found.
enum Probe {
    /// The leaf: the name's value, if it is there.
    Right(Option<Value>),
    /// A leaf for other hashes, of this depth.
    Wrong(u8),
}

impl<S: LeafStore> Zap<S> {
    /// Looks a name up if its leaf is found by guessing, is in memory, and is right.
    #[inline]
    pub(super) fn probe(&self, hash: u32, name: &[u8]) -> Result<Option<Option<Value>>> {
        let Some(mut depth) = self.hints.get(hash) else {
            return Ok(None);
        };
        for _ in 0..PROBES_MAX {
            let id = leaf_id(hash, depth);
            match self.store.with_leaf(id, &[], |bytes| probe_leaf(bytes, id, hash, name))? {
                LeafLookup::Resident(Ok(Probe::Right(found))) => return Ok(Some(found)),
                LeafLookup::Resident(Ok(Probe::Wrong(deeper))) if deeper > depth => depth = deeper,
                LeafLookup::Hole if id != 0 => depth = id.ilog2() as u8,
                // Under the lock it is known what is wrong.
                LeafLookup::Resident(_) | LeafLookup::Hole | LeafLookup::NotResident(_) => {
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }
}

#[inline]
fn probe_leaf(bytes: &[u8], id: u64, hash: u32, name: &[u8]) -> Result<Probe, LeafDefect> {
    let leaf = Leaf::read(bytes)?;
    if !leaf.covers(hash) || leaf_id(hash, leaf.depth()) != id {
        return Ok(Probe::Wrong(leaf.depth()));
    }
    let record = leaf.find(hash, name)?;
    Ok(Probe::Right(record.map(|record| record.value()).transpose()?))
}
