//! Lookups of names without the directory's lock.
//!
//! A leaf contains its hash prefix and thereby its block number. A leaf that is found at its own
//! block and covers a hash is the right leaf, however it was found. So a lookup tries the block
//! that [`Hints`] suggests, which may be stale, and takes the lock only if a few probes fail.
//!
//! # Invariants
//!
//! A leaf changes as a whole: a new leaf appears with all its entries, and a split or merge
//! replaces a leaf in one step. So a leaf at its own block never lacks an entry that it covers.
//! During a split or merge there may briefly be no leaf for some hashes.

use forebay_base::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::Zap;
use super::entry::{Value, leaf_id};
use super::leaf::{Leaf, LeafDefect};
use super::store::{LeafLookup, LeafStore};
use crate::Result;
use crate::format::ZapBlock;

/// There is one hint for each prefix of this many bits. All hints fit one cache line.
const HINT_BITS: u32 = 6;
/// Leaves that are probed before the lock is taken.
const PROBES_MAX: usize = 4;
/// One operation in this many is counted, with this weight, to reduce writes to shared memory.
const SAMPLE: u32 = 16;

/// For each prefix, one more than the depth at which a leaf was found, or 0. Access is relaxed:
/// each hint is validated on use.
pub(super) struct Hints([AtomicU8; 1 << HINT_BITS]);

impl Hints {
    pub(super) fn new() -> Self {
        Self([const { AtomicU8::new(0) }; 1 << HINT_BITS])
    }

    #[inline]
    fn get(&self, hash: u32) -> Option<u8> {
        self.slot(hash).load(Ordering::Relaxed).checked_sub(1)
    }

    /// Records the depth of the leaf of a hash.
    pub(super) fn set(&self, hash: u32, depth: u8) {
        let slot = self.slot(hash);
        if slot.load(Ordering::Relaxed) != depth + 1 {
            slot.store(depth + 1, Ordering::Relaxed);
        }
    }

    /// Clears all hints: the directory has no leaves any more.
    pub(super) fn clear(&self) {
        self.0.iter().for_each(|hint| hint.store(0, Ordering::Relaxed));
    }

    #[inline]
    fn slot(&self, hash: u32) -> &AtomicU8 {
        &self.0[(hash >> (u32::BITS - HINT_BITS)) as usize]
    }
}

/// Approximate number of operations.
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

/// Result of a probe.
enum Probe {
    /// The leaf of the hash: the value of the name, if it exists.
    Leaf(Option<Value>),
    /// A leaf for other hashes, of this depth.
    OtherLeaf(u8),
}

impl<S: LeafStore> Zap<S> {
    /// Looks a name up if hints lead to its leaf and the leaf is in memory. The outer `None` means
    /// that the lookup needs the lock.
    #[inline]
    pub(super) fn probe(&self, hash: u32, name: &[u8]) -> Result<Option<Option<Value>>> {
        let Some(mut depth) = self.hints.get(hash) else {
            return Ok(None);
        };
        for _ in 0..PROBES_MAX {
            let id = leaf_id(hash, depth);
            let block = ZapBlock::Leaf(id);
            match self.store.with_leaf(block, &[], |bytes| probe_leaf(bytes, id, hash, name))? {
                LeafLookup::Resident(Ok(Probe::Leaf(found))) => return Ok(Some(found)),
                LeafLookup::Resident(Ok(Probe::OtherLeaf(deeper))) if deeper > depth => {
                    depth = deeper
                }
                LeafLookup::Hole if id != 0 => depth = id.ilog2() as u8,
                // A lookup under the lock finds the defect.
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
        return Ok(Probe::OtherLeaf(leaf.depth()));
    }
    let record = leaf.find(hash, name)?;
    Ok(Probe::Leaf(record.map(|record| record.value()).transpose()?))
}
