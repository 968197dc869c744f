//! An in-memory [`LeafStore`] for tests. Leaves are packed between txgs, and evicted at random.

use std::collections::{BTreeMap, HashMap, HashSet};

use forebay_base::counters::Counter;
use forebay_base::rng::SmallRng;
use forebay_base::sync::{Arc, Mutex};

use super::share::{AidMemory, AidShare};
use super::store::{FilterOpening, LeafLookup, LeafStore, Prefetched, ZapCounts};
use super::{
    MergeBatch, Pace, SlotChange, Zap, ZapCounters, add_filters, filter_of, has_filter,
    leaves_of_filter, open_filter, pack, put_counts, rebuild_filter,
};
use crate::format::{TAIL_BYTES, ZAP_FILTER_LEAVES, ZAP_LEAF_BYTES, ZAP_PAGE_BYTES, ZapBlock};
use crate::wait::Wait;
use crate::{Error, ErrorKind, Result};

/// A leaf and its state.
#[derive(Default)]
pub(super) struct Leaf {
    /// In stored form, or open with the length of a full leaf.
    pub(super) bytes: Vec<u8>,
    dirty: bool,
    /// Whether the txg before the open one has changed it, and is not synced.
    syncing: bool,
    not_resident: bool,
    /// The txg that wrote it.
    pub(super) txg: u64,
}

#[derive(Default)]
pub(super) struct MemoryStoreState {
    pub(super) inline: Vec<u8>,
    /// Leaves, filter blocks and buffer pages.
    pub(super) leaves: HashMap<ZapBlock, Leaf>,
    /// The open txg.
    txg: u64,
    pub(super) now_ns: u64,
    /// Shares of memory, and their maximum.
    pub(super) aid_memory: AidMemory,
    pub(super) aid_bytes_max: Option<u64>,
    /// Memory of the cache for leaves.
    pub(super) cache_bytes: u64,
    /// With so many leaves a directory is large.
    pub(super) aided_leaves: u64,
    /// How often moves of names were asked for, and creates slowed down.
    pub(super) merge_requests: u64,
    pub(super) drain_requests: u64,
    pub(super) slowed: u64,
    /// Whether prefetched blocks never arrive.
    pub(super) prefetches_nothing: bool,
    /// So many are prefetched at a time, if there is a limit.
    pub(super) prefetches_at_once: Option<usize>,
    /// Whether names are not buffered.
    pub(super) buffers_nothing: bool,
    /// Whether a block or inline content that this txg has not changed cannot be changed.
    pub(super) is_full: bool,
    /// Whether transactions have no space for merges and filters.
    pub(super) is_short_of_space: bool,
    /// Blocks whose read fails.
    pub(super) unreadable: HashSet<ZapBlock>,
    /// Why it fails; by default, they are damaged.
    pub(super) unreadable_for: Option<ErrorKind>,
    /// Whether it is their block pointers that cannot be read.
    pub(super) lacks_pointers: bool,
    /// Leaves that the open txg has changed only to add buffered names.
    pub(super) moved: HashSet<u64>,
    pub(super) prefetched: Vec<ZapBlock>,
    pub(super) counters: Option<Arc<ZapCounters>>,
    pub(super) fetches: u64,
    /// Blocks that operations waited for.
    pub(super) waits: u64,
    /// Blocks that were fetched, in order.
    pub(super) fetched_blocks: Vec<ZapBlock>,
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

/// The leaf to fetch, and the txg that wrote it. `None` for its block pointer.
pub(super) struct Ticket(ZapBlock, Option<u64>);

/// A leaf that was fetched.
pub(super) struct Fetched(ZapBlock);

impl MemoryStore {
    pub(super) fn with_seed(seed: u64) -> Self {
        Self::with(TAIL_BYTES - 144, seed)
    }

    pub(super) fn with_inline_capacity(capacity: usize) -> Self {
        Self::with(capacity, 0)
    }

    fn with(capacity: usize, seed: u64) -> Self {
        Self {
            state: Arc::new(Mutex::named(
                "test-store",
                MemoryStoreState { aided_leaves: 4, ..MemoryStoreState::default() },
            )),
            capacity,
            seed,
        }
    }

    /// Never uses filters and buffer pages.
    pub(super) fn unaided(self) -> Self {
        self.state.lock().aided_leaves = u64::MAX;
        self
    }

    /// Another txg opens. The one before is synced by [`commit`](Self::commit), together with it;
    /// until then its blocks stay open in memory.
    pub(super) fn open_next_txg(&self) {
        let mut state = self.state.lock();
        state.inline_dirty = false;
        state.moved.clear();
        for leaf in state.leaves.values_mut().filter(|leaf| leaf.dirty) {
            (leaf.dirty, leaf.syncing) = (false, true);
        }
    }

    /// Ends a txg: packs the dirty leaves.
    pub(super) fn commit(&self) {
        let mut state = self.state.lock();
        for leaf in state.leaves.values_mut() {
            leaf.dirty |= std::mem::take(&mut leaf.syncing);
        }
        state.inline_dirty = false;
        state.moved.clear();
        state.txg += 1;
        let txg = state.txg;
        state.rebuild_filters();
        for (_, leaf) in state.leaves.iter_mut().filter(|(_, leaf)| leaf.dirty) {
            leaf.txg = txg;
            let len = pack(&mut leaf.bytes);
            assert!(leaf.bytes[len..].iter().all(|byte| *byte == 0), "the rest is zeros");
            leaf.bytes.truncate(len);
            leaf.dirty = false;
        }
    }

    /// Evicts about one in `of` clean leaves.
    pub(super) fn evict(&self, rng: &mut SmallRng, of: u64) {
        for leaf in self.state.lock().leaves.values_mut().filter(|leaf| leaf.is_clean()) {
            leaf.not_resident = rng.below(of) == 0;
        }
    }

    /// Evicts some clean blocks.
    pub(super) fn evict_if(&self, f: impl Fn(ZapBlock) -> bool) {
        let mut state = self.state.lock();
        let clean = state.leaves.iter_mut().filter(|(id, leaf)| leaf.is_clean() && f(**id));
        clean.for_each(|(_, leaf)| leaf.evict());
    }

    /// Disables the cache of fetched leaves.
    pub(super) fn without_cache(&self) {
        self.state.lock().uncached = true;
    }

    /// From now on one in five changes that may fail does so.
    pub(super) fn fail(&self, seed: u64) {
        self.state.lock().failures = Some(SmallRng::from_seed(seed));
    }

    /// Number of leaves, filter blocks and buffer pages.
    pub(super) fn leaf_count(&self) -> usize {
        self.state.lock().leaves.len()
    }

    /// Number of such blocks that the open txg has changed.
    pub(super) fn dirty_blocks(&self, of: impl Fn(ZapBlock) -> bool) -> usize {
        let state = self.state.lock();
        state.leaves.iter().filter(|(id, leaf)| leaf.dirty && of(**id)).count()
    }

    /// The sum of a counter.
    pub(super) fn counted(&self, counter: Counter) -> u64 {
        self.state.lock().counters.as_ref().map_or(0, |counters| counters.sum(counter.at(0)))
    }

    pub(super) fn stored_bytes(&self) -> usize {
        let state = self.state.lock();
        let leaves = state.leaves.iter().filter(|(id, _)| matches!(id, ZapBlock::Leaf(_)));
        leaves.map(|(_, leaf)| leaf.bytes.len()).sum()
    }
}

impl Zap<MemoryStore> {
    /// Moves the names of some leaves. Returns the number of names that are still buffered.
    pub(super) fn merge_some(&self) -> Result<u64> {
        self.retry_unreadable();
        let batch = self.merge_batch(true)?;
        match batch.error {
            Some(error) if !batch.has_moved => Err(error),
            _ => self.buffered(Wait::Allowed),
        }
    }

    pub(super) fn merge_batch(&self, drains: bool) -> Result<MergeBatch<MemoryStore>> {
        let mut batch = self.start_merge(64, drains);
        self.load_merge(&mut batch, || false);
        while !batch.is_empty() {
            self.finish_merge(&(), &mut batch)?;
        }
        Ok(batch)
    }

    /// Moves names as long as they are asked to move, as the thread of a pool does.
    pub(super) fn merge_requested(&self) {
        while self.store().state.lock().merge_requests > 0 && !self.end_merge_request(false) {
            let batch = self.merge_batch(false).expect("it is possible");
            if !batch.has_moved {
                self.end_merge_request(true);
                break;
            }
        }
        self.store().state.lock().merge_requests = 0;
    }
}

impl MemoryStoreState {
    /// Fails at random, except for content that this txg has changed before.
    fn change(&mut self, is_dirty: bool) -> Result<()> {
        if self.is_full && !is_dirty {
            return Err(Error::new(ErrorKind::NoSpace, "the store is full"));
        }
        let fails = self.failures.as_mut().is_some_and(|rng| !is_dirty && rng.below(5) == 0);
        if fails { Err(Error::new(ErrorKind::NoMemory, "injected failure")) } else { Ok(()) }
    }

    /// Rewrites the open filter blocks, as the sync of a txg does.
    fn rebuild_filters(&mut self) {
        let txg = self.txg;
        let open: Vec<u64> = self
            .leaves
            .iter()
            .filter(|(_, block)| block.dirty)
            .filter_map(|(id, _)| match id {
                ZapBlock::Filter(index) => Some(*index),
                _ => None,
            })
            .collect();
        for index in open {
            let change = |slot: usize| {
                let id = ZapBlock::Leaf(index * ZAP_FILTER_LEAVES as u64 + slot as u64);
                match self.leaves.get(&id) {
                    None => SlotChange::Drop,
                    Some(leaf) if leaf.dirty => SlotChange::Leaf(&leaf.bytes),
                    Some(_) => SlotChange::Keep,
                }
            };
            let id = ZapBlock::Filter(index);
            let new = rebuild_filter(&self.leaves[&id].bytes, txg, change);
            let block = self.leaves.get_mut(&id).expect("it is there");
            (block.bytes, block.dirty, block.txg) = (new, false, txg);
        }
    }

    fn open_filter(
        &mut self,
        leaf: u64,
        FilterOpening { seed, replaces, .. }: FilterOpening,
        fetched: &[Fetched],
    ) -> Result<LeafLookup<(), Ticket>> {
        let id = filter_of(leaf);
        if self.is_dirty(id) {
            return Ok(LeafLookup::Resident(()));
        }
        self.change(false)?;
        let empty = Leaf::default;
        let block = self.leaves.entry(id).or_insert_with(empty);
        if replaces {
            (block.bytes, block.not_resident) = (Vec::new(), false);
        }
        if !block.is_available(id, fetched) {
            return Ok(LeafLookup::NotResident(self.ticket(id)));
        }
        block.bytes.resize(ZAP_LEAF_BYTES, 0);
        (block.dirty, block.not_resident) = (true, false);
        open_filter(&mut block.bytes, seed);
        Ok(LeafLookup::Resident(()))
    }

    fn ticket(&self, id: ZapBlock) -> Ticket {
        let lacks_pointer = self.lacks_pointers && self.unreadable.contains(&id);
        Ticket(id, (!lacks_pointer).then(|| self.leaves[&id].txg))
    }

    fn is_dirty(&self, id: ZapBlock) -> bool {
        self.leaves.get(&id).is_some_and(|leaf| leaf.dirty)
    }
}

impl Leaf {
    pub(super) fn evict(&mut self) {
        self.not_resident = true;
    }

    pub(super) fn load(&mut self) {
        self.not_resident = false;
    }

    pub(super) fn is_away(&self) -> bool {
        self.not_resident
    }

    fn is_clean(&self) -> bool {
        !self.dirty && !self.syncing
    }

    fn is_available(&self, id: ZapBlock, fetched: &[Fetched]) -> bool {
        !self.not_resident || fetched.iter().any(|fetched| fetched.0 == id)
    }
}

fn open_bytes(id: ZapBlock) -> usize {
    match id {
        ZapBlock::Page(_) => ZAP_PAGE_BYTES,
        _ => ZAP_LEAF_BYTES,
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

    fn set_counts(&self, _: &(), counts: ZapCounts) {
        put_counts(&mut self.state.lock().inline, counts);
    }

    fn with_leaf<R>(
        &self,
        id: ZapBlock,
        fetched: &[Fetched],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<LeafLookup<R, Ticket>> {
        let state = self.state.lock();
        Ok(match state.leaves.get(&id) {
            None => LeafLookup::Hole,
            Some(leaf) if leaf.is_available(id, fetched) => LeafLookup::Resident(f(&leaf.bytes)),
            Some(_) => LeafLookup::NotResident(state.ticket(id)),
        })
    }

    fn with_leaf_mut<R>(
        &self,
        _: &(),
        id: ZapBlock,
        filter: Option<FilterOpening>,
        fetched: &[Fetched],
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<LeafLookup<R, Ticket>> {
        let mut state = self.state.lock();
        if let (Some(filter), ZapBlock::Leaf(leaf)) = (filter, id)
            && state
                .leaves
                .get(&id)
                .is_some_and(|leaf| !leaf.dirty && leaf.is_available(id, fetched))
            && let LeafLookup::NotResident(ticket) = state.open_filter(leaf, filter, fetched)?
        {
            if filter.is_needed {
                return Ok(LeafLookup::NotResident(ticket));
            }
            let counters = state.counters.get_or_insert_with(|| Arc::new(ZapCounters::new()));
            counters.add(ZapCounters::DIRECTORY_FILTERS_VOIDED, 0, 1);
        }
        let is_dirty = state.is_dirty(id);
        state.change(is_dirty)?;
        if let ZapBlock::Leaf(leaf) = id {
            state.moved.remove(&leaf);
        }
        Ok(match state.leaves.get_mut(&id) {
            None => LeafLookup::Hole,
            Some(leaf) if leaf.is_available(id, fetched) => {
                leaf.bytes.resize(open_bytes(id).max(leaf.bytes.len()), 0);
                (leaf.dirty, leaf.not_resident) = (true, false);
                LeafLookup::Resident(f(&mut leaf.bytes))
            }
            Some(_) => LeafLookup::NotResident(state.ticket(id)),
        })
    }

    fn note_moved(&self, _: &(), id: u64) {
        self.state.lock().moved.insert(id);
    }

    fn new_leaf<R>(&self, _: &(), id: ZapBlock, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let mut bytes = vec![0; open_bytes(id)];
        let mut state = self.state.lock();
        if state.leaves.contains_key(&id) {
            return Err(Error::new(ErrorKind::Corrupt, format!("{id}: exists already")));
        }
        state.change(false)?;
        let result = f(&mut bytes);
        state.leaves.insert(id, Leaf { bytes, dirty: true, ..Leaf::default() });
        Ok(result)
    }

    fn open_filter(
        &self,
        _: &(),
        leaf: u64,
        filter: FilterOpening,
        fetched: &[Fetched],
    ) -> Result<LeafLookup<(), Ticket>> {
        self.state.lock().open_filter(leaf, filter, fetched)
    }

    fn make_filters(&self, _: &(), index: u64, seed: u64) -> Result<()> {
        let mut state = self.state.lock();
        let at_hand: Vec<(u64, Option<(Vec<u8>, u64)>)> = leaves_of_filter(index)
            .filter_map(|id| {
                let leaf = state.leaves.get(&ZapBlock::Leaf(id)).filter(|leaf| !leaf.is_away())?;
                Some((id, leaf.is_clean().then(|| (leaf.bytes.clone(), leaf.txg))))
            })
            .collect();
        let Some((first, _)) = at_hand.first() else { return Ok(()) };
        let opening = FilterOpening { seed, replaces: false, is_needed: false };
        if let LeafLookup::NotResident(_) = state.open_filter(*first, opening, &[])? {
            return Ok(());
        }
        let block = state.leaves.get_mut(&ZapBlock::Filter(index)).expect("it is open");
        let (mut stored, bytes) = (BTreeMap::new(), &mut block.bytes);
        for (id, leaf) in at_hand {
            if let Some((leaf, txg)) = leaf.filter(|(_, txg)| !has_filter(bytes, id, *txg)) {
                stored.insert(id as usize % ZAP_FILTER_LEAVES, (leaf.into_boxed_slice(), txg));
            }
        }
        add_filters(bytes, |slot| stored.remove(&slot));
        Ok(())
    }

    fn free_aside(&self, _: &()) -> Result<()> {
        let mut state = self.state.lock();
        state.change(false)?;
        state.leaves.retain(|id, _| matches!(id, ZapBlock::Leaf(_)));
        Ok(())
    }

    fn block_of(ticket: &Ticket) -> ZapBlock {
        ticket.0
    }

    fn txg_of(ticket: &Ticket) -> Option<u64> {
        ticket.1
    }

    fn stored_txg(&self, id: u64) -> Option<u64> {
        let state = self.state.lock();
        state.leaves.get(&ZapBlock::Leaf(id)).filter(|leaf| leaf.is_clean()).map(|leaf| leaf.txg)
    }

    fn aided_leaves(&self) -> u64 {
        self.state.lock().aided_leaves
    }

    fn may_buffer(&self) -> bool {
        !self.state.lock().buffers_nothing
    }

    fn take_share(&self, bytes: u64) -> Option<AidShare> {
        let state = self.state.lock();
        state.aid_memory.take(bytes, state.aid_bytes_max.unwrap_or(u64::MAX))
    }

    fn shared_bytes(&self) -> u64 {
        self.state.lock().aid_memory.bytes()
    }

    fn free_bytes(&self) -> u64 {
        let state = self.state.lock();
        let leaves = state.leaves.iter().filter(|(id, _)| matches!(id, ZapBlock::Leaf(_)));
        let resident = leaves.filter(|(_, leaf)| !leaf.is_away()).map(|(_, leaf)| leaf.bytes.len());
        state.cache_bytes.saturating_sub(resident.sum::<usize>() as u64)
    }

    fn may_merge(&self, _: &()) -> bool {
        !self.state.lock().is_short_of_space
    }

    fn may_open_filter(&self, _: &()) -> bool {
        !self.state.lock().is_short_of_space
    }

    fn request_merge(&self) {
        self.state.lock().merge_requests += 1;
    }

    fn request_drain(&self) {
        self.state.lock().drain_requests += 1;
    }

    fn slow_down(&self, _: &Pace, _: Wait) -> Result<()> {
        self.state.lock().slowed += 1;
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        self.state.lock().now_ns
    }

    fn count(&self, counter: Counter, amount: u64) {
        let mut state = self.state.lock();
        let counters = state.counters.get_or_insert_with(|| Arc::new(ZapCounters::new()));
        counters.add(counter, 0, amount);
    }

    fn count_wait(&self, _: ZapBlock, _: u64) {
        self.state.lock().waits += 1;
    }

    fn free_leaf(&self, _: &(), id: ZapBlock) -> Result<()> {
        let mut state = self.state.lock();
        let is_dirty = state.is_dirty(id);
        state.change(is_dirty)?;
        let old = state.leaves.remove(&id);
        assert!(old.is_some(), "{id} exists");
        Ok(())
    }

    fn fetch(&self, Ticket(id, _): Ticket, _: Wait) -> Result<Fetched> {
        let mut state = self.state.lock();
        if state.unreadable.contains(&id) {
            let kind = state.unreadable_for.unwrap_or(ErrorKind::Corrupt);
            return Err(Error::new(kind, format!("{id}: not readable")));
        }
        if let ZapBlock::Leaf(_) = id {
            state.fetches += 1;
        }
        state.fetched_blocks.push(id);
        let uncached = state.uncached;
        match state.leaves.get_mut(&id) {
            Some(leaf) => {
                leaf.not_resident &= uncached;
                Ok(Fetched(id))
            }
            None => Err(Error::new(ErrorKind::Corrupt, "a ticket for a leaf that was freed")),
        }
    }

    fn prefetch(&self, ids: &[ZapBlock], least: usize) -> Prefetched {
        let mut state = self.state.lock();
        let taken =
            state.prefetches_at_once.map_or(ids.len(), |most| ids.len().min(most.max(least)));
        let ids = &ids[..taken];
        state.prefetched.extend_from_slice(ids);
        if state.prefetches_nothing {
            return Prefetched { taken, not_resident: 0 };
        }
        let mut not_resident = 0;
        for id in ids {
            if state.unreadable.contains(id) {
                continue;
            }
            if let Some(leaf) = state.leaves.get_mut(id) {
                not_resident += usize::from(std::mem::take(&mut leaf.not_resident));
            }
        }
        state.read_ahead += not_resident as u64;
        Prefetched { taken, not_resident }
    }
}
