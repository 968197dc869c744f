//! A store in memory, for tests: leaves are away now and then, and are packed and taken out of memory between
//! transaction groups.

use std::collections::HashMap;

use forebay_base::rng::SmallRng;
use forebay_base::sync::{Arc, Mutex};

use super::store::{LeafStore, Look};
use super::{pack, put_entries};
use crate::format::{TAIL_BYTES, ZAP_LEAF_BYTES};
use crate::{Error, ErrorKind, Result};

/// What is known of a leaf.
pub(super) struct Leaf {
    /// As it is stored, or open with the length of a whole leaf.
    pub(super) bytes: Vec<u8>,
    dirty: bool,
    away: bool,
}

#[derive(Default)]
pub(super) struct Inside {
    pub(super) inline: Vec<u8>,
    pub(super) leaves: HashMap<u64, Leaf>,
    pub(super) prefetched: Vec<u64>,
    pub(super) fetches: u64,
    /// Leaves that were away when they were asked for ahead.
    pub(super) read_ahead: u64,
    /// What is fetched stays with who fetched it: no cache keeps it.
    uncached: bool,
    inline_dirty: bool,
    /// Decides what fails, where failures are wanted.
    failures: Option<SmallRng>,
}

/// A clone is the same store.
#[derive(Clone)]
pub(super) struct MemoryStore {
    pub(super) inside: Arc<Mutex<Inside>>,
    room: usize,
    seed: u64,
}

/// What to fetch: a leaf, or what says that there is none.
pub(super) struct Ticket(u64);

/// A leaf that was fetched.
pub(super) struct Fetched(u64);

impl MemoryStore {
    pub(super) fn with_seed(seed: u64) -> Self {
        Self::with(TAIL_BYTES - 144, seed)
    }

    pub(super) fn with_room(room: usize) -> Self {
        Self::with(room, 0)
    }

    fn with(room: usize, seed: u64) -> Self {
        Self { inside: Arc::new(Mutex::named("test-store", Inside::default())), room, seed }
    }

    /// Ends a transaction group: packs what is dirty.
    pub(super) fn commit(&self) {
        let mut inside = self.inside.lock();
        inside.inline_dirty = false;
        for leaf in inside.leaves.values_mut().filter(|leaf| leaf.dirty) {
            let len = pack(&mut leaf.bytes);
            assert!(leaf.bytes[len..].iter().all(|byte| *byte == 0), "the rest is zeros");
            leaf.bytes.truncate(len);
            leaf.dirty = false;
        }
    }

    /// Takes clean leaves out of memory, one in `of`.
    pub(super) fn evict(&self, rng: &mut SmallRng, of: u64) {
        for leaf in self.inside.lock().leaves.values_mut().filter(|leaf| !leaf.dirty) {
            leaf.away = rng.below(of) == 0;
        }
    }

    /// No cache keeps what is fetched.
    pub(super) fn without_cache(&self) {
        self.inside.lock().uncached = true;
    }

    /// From now on one in five changes fails that may.
    pub(super) fn fail(&self, seed: u64) {
        self.inside.lock().failures = Some(SmallRng::from_seed(seed));
    }

    pub(super) fn leaf_count(&self) -> usize {
        self.inside.lock().leaves.len()
    }

    pub(super) fn stored_bytes(&self) -> usize {
        self.inside.lock().leaves.values().map(|leaf| leaf.bytes.len()).sum()
    }
}

impl Inside {
    /// Perhaps fails; a change of what this group has changed before does not.
    fn change(&mut self, is_dirty: bool) -> Result<()> {
        let fails = self.failures.as_mut().is_some_and(|rng| !is_dirty && rng.below(5) == 0);
        if fails { Err(Error::new(ErrorKind::NoMemory, "a failure was wanted")) } else { Ok(()) }
    }

    fn is_dirty(&self, id: u64) -> bool {
        self.leaves.get(&id).is_some_and(|leaf| leaf.dirty)
    }
}

impl Leaf {
    fn is_here(&self, id: u64, fetched: &[Fetched]) -> bool {
        !self.away || fetched.iter().any(|fetched| fetched.0 == id)
    }
}

impl LeafStore for MemoryStore {
    type Tx = ();
    type Ticket = Ticket;
    type Fetched = Fetched;

    fn describe(&self) -> String {
        "a directory in memory".into()
    }

    fn inline(&self) -> Result<Vec<u8>> {
        Ok(self.inside.lock().inline.clone())
    }

    fn inline_room(&self) -> Result<usize> {
        Ok(self.room)
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn set_inline(&self, _: &(), content: &[u8]) -> Result<()> {
        assert!(content.len() <= self.room, "inline content has its room");
        let mut inside = self.inside.lock();
        let is_dirty = inside.inline_dirty;
        inside.change(is_dirty)?;
        inside.inline = content.to_vec();
        inside.inline_dirty = true;
        Ok(())
    }

    fn set_entries(&self, _: &(), entries: u64) {
        put_entries(&mut self.inside.lock().inline, entries);
    }

    fn with_leaf<R>(
        &self,
        id: u64,
        fetched: &[Fetched],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Look<R, Ticket>> {
        Ok(match self.inside.lock().leaves.get(&id) {
            None => Look::Hole,
            Some(leaf) if leaf.is_here(id, fetched) => Look::Here(f(&leaf.bytes)),
            Some(_) => Look::Away(Ticket(id)),
        })
    }

    fn with_leaf_mut<R>(
        &self,
        _: &(),
        id: u64,
        fetched: &[Fetched],
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<Look<R, Ticket>> {
        let mut inside = self.inside.lock();
        let is_dirty = inside.is_dirty(id);
        inside.change(is_dirty)?;
        Ok(match inside.leaves.get_mut(&id) {
            None => Look::Hole,
            Some(leaf) if leaf.is_here(id, fetched) => {
                leaf.bytes.resize(ZAP_LEAF_BYTES, 0);
                (leaf.dirty, leaf.away) = (true, false);
                Look::Here(f(&mut leaf.bytes))
            }
            Some(_) => Look::Away(Ticket(id)),
        })
    }

    fn new_leaf<R>(&self, _: &(), id: u64, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let mut bytes = vec![0; ZAP_LEAF_BYTES];
        let mut inside = self.inside.lock();
        if inside.leaves.contains_key(&id) {
            return Err(Error::new(ErrorKind::Corrupt, format!("leaf {id}: it is there")));
        }
        inside.change(false)?;
        let result = f(&mut bytes);
        inside.leaves.insert(id, Leaf { bytes, dirty: true, away: false });
        Ok(result)
    }

    fn free_leaf(&self, _: &(), id: u64) -> Result<()> {
        let mut inside = self.inside.lock();
        let is_dirty = inside.is_dirty(id);
        inside.change(is_dirty)?;
        let old = inside.leaves.remove(&id);
        assert!(old.is_some(), "leaf {id} is there");
        Ok(())
    }

    fn fetch(&self, Ticket(id): Ticket) -> Result<Fetched> {
        let mut inside = self.inside.lock();
        inside.fetches += 1;
        let uncached = inside.uncached;
        match inside.leaves.get_mut(&id) {
            Some(leaf) => {
                leaf.away &= uncached;
                Ok(Fetched(id))
            }
            None => Err(Error::new(ErrorKind::Corrupt, "a ticket for a leaf that is gone")),
        }
    }

    fn prefetch(&self, ids: &[u64]) -> usize {
        let mut inside = self.inside.lock();
        inside.prefetched.extend_from_slice(ids);
        let mut away = 0;
        for id in ids {
            if let Some(leaf) = inside.leaves.get_mut(id) {
                away += usize::from(std::mem::take(&mut leaf.away));
            }
        }
        inside.read_ahead += away as u64;
        away
    }
}
