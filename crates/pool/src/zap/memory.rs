//! An in-memory [`LeafStore`] for tests. Leaves are packed between txgs, and evicted at random.

use std::collections::HashMap;

use forebay_base::rng::SmallRng;
use forebay_base::sync::{Arc, Mutex};

use super::store::{LeafLookup, LeafStore};
use super::{pack, put_entries};
use crate::format::{TAIL_BYTES, ZAP_LEAF_BYTES};
use crate::wait::Wait;
use crate::{Error, ErrorKind, Result};

/// A leaf and its state.
pub(super) struct Leaf {
    /// In stored form, or open with the length of a full leaf.
    pub(super) bytes: Vec<u8>,
    dirty: bool,
    not_resident: bool,
}

#[derive(Default)]
pub(super) struct MemoryStoreState {
    pub(super) inline: Vec<u8>,
    pub(super) leaves: HashMap<u64, Leaf>,
    pub(super) prefetched: Vec<u64>,
    pub(super) fetches: u64,
    /// Leaves that were not resident when they were prefetched.
    pub(super) read_ahead: u64,
    /// A fetched leaf stays usable for its fetcher only; no cache keeps it.
    uncached: bool,
    inline_dirty: bool,
    /// Decides which changes fail, if failures are enabled.
    failures: Option<SmallRng>,
}

/// A clone shares the store.
#[derive(Clone)]
pub(super) struct MemoryStore {
    pub(super) state: Arc<Mutex<MemoryStoreState>>,
    capacity: usize,
    seed: u64,
}

/// The leaf to fetch.
pub(super) struct Ticket(u64);

/// A leaf that was fetched.
pub(super) struct Fetched(u64);

impl MemoryStore {
    pub(super) fn with_seed(seed: u64) -> Self {
        Self::with(TAIL_BYTES - 144, seed)
    }

    pub(super) fn with_inline_capacity(capacity: usize) -> Self {
        Self::with(capacity, 0)
    }

    fn with(capacity: usize, seed: u64) -> Self {
        Self {
            state: Arc::new(Mutex::named("test-store", MemoryStoreState::default())),
            capacity,
            seed,
        }
    }

    /// Ends a txg: packs the dirty leaves.
    pub(super) fn commit(&self) {
        let mut state = self.state.lock();
        state.inline_dirty = false;
        for leaf in state.leaves.values_mut().filter(|leaf| leaf.dirty) {
            let len = pack(&mut leaf.bytes);
            assert!(leaf.bytes[len..].iter().all(|byte| *byte == 0), "the rest is zeros");
            leaf.bytes.truncate(len);
            leaf.dirty = false;
        }
    }

    /// Evicts about one in `of` clean leaves.
    pub(super) fn evict(&self, rng: &mut SmallRng, of: u64) {
        for leaf in self.state.lock().leaves.values_mut().filter(|leaf| !leaf.dirty) {
            leaf.not_resident = rng.below(of) == 0;
        }
    }

    /// Disables the cache of fetched leaves.
    pub(super) fn without_cache(&self) {
        self.state.lock().uncached = true;
    }

    /// From now on one in five changes that may fail does so.
    pub(super) fn fail(&self, seed: u64) {
        self.state.lock().failures = Some(SmallRng::from_seed(seed));
    }

    pub(super) fn leaf_count(&self) -> usize {
        self.state.lock().leaves.len()
    }

    pub(super) fn stored_bytes(&self) -> usize {
        self.state.lock().leaves.values().map(|leaf| leaf.bytes.len()).sum()
    }
}

impl MemoryStoreState {
    /// Fails at random, except for content that this txg has changed before.
    fn change(&mut self, is_dirty: bool) -> Result<()> {
        let fails = self.failures.as_mut().is_some_and(|rng| !is_dirty && rng.below(5) == 0);
        if fails { Err(Error::new(ErrorKind::NoMemory, "injected failure")) } else { Ok(()) }
    }

    fn is_dirty(&self, id: u64) -> bool {
        self.leaves.get(&id).is_some_and(|leaf| leaf.dirty)
    }
}

impl Leaf {
    fn is_available(&self, id: u64, fetched: &[Fetched]) -> bool {
        !self.not_resident || fetched.iter().any(|fetched| fetched.0 == id)
    }
}

impl LeafStore for MemoryStore {
    type Tx = ();
    type Ticket = Ticket;
    type Fetched = Fetched;

    fn describe(&self) -> String {
        "a directory in memory".into()
    }

    fn wait_of(_: &()) -> Wait {
        Wait::Allowed
    }

    fn inline(&self, _: Wait) -> Result<Vec<u8>> {
        Ok(self.state.lock().inline.clone())
    }

    fn inline_capacity(&self, _: &()) -> Result<usize> {
        Ok(self.capacity)
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn set_inline(&self, _: &(), content: &[u8]) -> Result<()> {
        assert!(content.len() <= self.capacity, "inline content fits its capacity");
        let mut state = self.state.lock();
        let is_dirty = state.inline_dirty;
        state.change(is_dirty)?;
        state.inline = content.to_vec();
        state.inline_dirty = true;
        Ok(())
    }

    fn set_entries(&self, _: &(), entries: u64) {
        put_entries(&mut self.state.lock().inline, entries);
    }

    fn with_leaf<R>(
        &self,
        id: u64,
        fetched: &[Fetched],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<LeafLookup<R, Ticket>> {
        Ok(match self.state.lock().leaves.get(&id) {
            None => LeafLookup::Hole,
            Some(leaf) if leaf.is_available(id, fetched) => LeafLookup::Resident(f(&leaf.bytes)),
            Some(_) => LeafLookup::NotResident(Ticket(id)),
        })
    }

    fn with_leaf_mut<R>(
        &self,
        _: &(),
        id: u64,
        fetched: &[Fetched],
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<LeafLookup<R, Ticket>> {
        let mut state = self.state.lock();
        let is_dirty = state.is_dirty(id);
        state.change(is_dirty)?;
        Ok(match state.leaves.get_mut(&id) {
            None => LeafLookup::Hole,
            Some(leaf) if leaf.is_available(id, fetched) => {
                leaf.bytes.resize(ZAP_LEAF_BYTES, 0);
                (leaf.dirty, leaf.not_resident) = (true, false);
                LeafLookup::Resident(f(&mut leaf.bytes))
            }
            Some(_) => LeafLookup::NotResident(Ticket(id)),
        })
    }

    fn new_leaf<R>(&self, _: &(), id: u64, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let mut bytes = vec![0; ZAP_LEAF_BYTES];
        let mut state = self.state.lock();
        if state.leaves.contains_key(&id) {
            return Err(Error::new(ErrorKind::Corrupt, format!("leaf {id}: exists already")));
        }
        state.change(false)?;
        let result = f(&mut bytes);
        state.leaves.insert(id, Leaf { bytes, dirty: true, not_resident: false });
        Ok(result)
    }

    fn free_leaf(&self, _: &(), id: u64) -> Result<()> {
        let mut state = self.state.lock();
        let is_dirty = state.is_dirty(id);
        state.change(is_dirty)?;
        let old = state.leaves.remove(&id);
        assert!(old.is_some(), "leaf {id} exists");
        Ok(())
    }

    fn fetch(&self, Ticket(id): Ticket, _: Wait) -> Result<Fetched> {
        let mut state = self.state.lock();
        state.fetches += 1;
        let uncached = state.uncached;
        match state.leaves.get_mut(&id) {
            Some(leaf) => {
                leaf.not_resident &= uncached;
                Ok(Fetched(id))
            }
            None => Err(Error::new(ErrorKind::Corrupt, "a ticket for a leaf that was freed")),
        }
    }

    fn prefetch(&self, ids: &[u64]) -> usize {
        let mut state = self.state.lock();
        state.prefetched.extend_from_slice(ids);
        let mut not_resident = 0;
        for id in ids {
            if let Some(leaf) = state.leaves.get_mut(id) {
                not_resident += usize::from(std::mem::take(&mut leaf.not_resident));
            }
        }
        state.read_ahead += not_resident as u64;
        not_resident
    }
}
