//! An object as the leaf store of a directory.

use forebay_base::counters::Counter;
use forebay_base::sync::{Arc, MutexGuard, hint};

use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    BlockPtrPhys, ZAP_ASIDE, ZAP_FILTER_LEAVES, ZAP_LEAF_BYTES, ZAP_PAGE_BYTES, ZapBlock,
};
use crate::reservation::FIRST_BYTES;
use crate::tx::Tx;
use crate::wait::Wait;
use crate::zap::{
    self, AidShare, DRAIN_PAUSE_NS, FilterOpening, LeafLookup, LeafStore, Pace, Prefetched,
    ZapCounters, ZapCounts, counts_of, put_counts,
};

use super::node::{BlockState, Fetched, Node, NodeState};
use super::write::{HoleAction, ModifyOutcome, ModifyStep, WantedBytes, dirty_mut, dirty_of};

/// A block or pointer that a directory operation must fetch before it can go on.
pub(crate) enum FetchTicket {
    /// The block pointer of this block.
    Pointer(ZapBlock),
    /// This block, at this block pointer.
    Block(ZapBlock, BlockPtrPhys),
}

/// The object of a directory.
pub(crate) struct Leaves(pub(crate) Arc<Node>);

const WHOLE_LEAF: WantedBytes =
    WantedBytes { bytes: ZAP_LEAF_BYTES, whole: false, on_hole: HoleAction::Leave };
const PAGE: WantedBytes = WantedBytes { bytes: ZAP_PAGE_BYTES, ..WHOLE_LEAF };
const FILTER_BLOCK: WantedBytes = WantedBytes { on_hole: HoleAction::Create, ..WHOLE_LEAF };

impl Leaves {
    /// Fails if the object was destroyed. Inline content is found by object number, and another
    /// object may have the number by now.
    fn check_alive(&self) -> Result<()> {
        self.0.check_alive(&self.0.lock())
    }

    /// Ensures that the txg has a buffer of a block.
    fn open(
        &self,
        state: &mut NodeState,
        tx: &Tx,
        (id, wanted): (ZapBlock, WantedBytes),
        fetched: &[Option<Fetched>],
    ) -> Result<LeafLookup<(), FetchTicket>> {
        let block = id.block();
        let known = match state.find(block) {
            BlockState::Stored(ptr) => found(fetched, &ptr),
            _ => None,
        };
        Ok(match self.0.try_modify(state, tx, block, wanted, known)? {
            ModifyStep::Ready => LeafLookup::Resident(()),
            ModifyStep::Hole => LeafLookup::Hole,
            ModifyStep::Fetch(ptr) => LeafLookup::NotResident(FetchTicket::Block(id, ptr)),
            ModifyStep::Pin => LeafLookup::NotResident(FetchTicket::Pointer(id)),
        })
    }

    /// Whether a change of a block would find its content.
    fn is_at_hand(&self, state: &NodeState, block: u64, fetched: &[Option<Fetched>]) -> bool {
        match state.find(block) {
            BlockState::Dirty(_) => true,
            BlockState::Stored(ptr) => {
                let store = &self.0.io.store;
                found(fetched, &ptr).is_some() || store.cache().cache().contains(&store.key(&ptr))
            }
            BlockState::Hole | BlockState::Unknown => false,
        }
    }

    /// Opens the filter block of a leaf, see [`LeafStore::open_filter`].
    fn open_filter_in(
        &self,
        state: &mut NodeState,
        tx: &Tx,
        (leaf, FilterOpening { seed, replaces, .. }): (u64, FilterOpening),
        fetched: &[Option<Fetched>],
    ) -> Result<LeafLookup<(), FetchTicket>> {
        let id = zap::filter_of(leaf);
        if dirty_of(state, tx, id.block(), ZAP_LEAF_BYTES).is_some() {
            return Ok(LeafLookup::Resident(()));
        }
        // A new block, without the content of a damaged one.
        let wanted = WantedBytes { whole: replaces, ..FILTER_BLOCK };
        let opened = self.open(state, tx, (id, wanted), fetched)?;
        if let LeafLookup::Resident(()) = opened {
            let block = dirty_mut(state, tx, id.block());
            if replaces {
                block.fill(0);
            }
            zap::open_filter(block, seed);
        }
        Ok(opened)
    }

    /// Opens the filter block of a leaf if it is in memory, and returns whether it was. Releases
    /// the lock meanwhile if the block's pointer must be looked up.
    fn open_filter_at_hand<'a>(
        &'a self,
        mut state: MutexGuard<'a, NodeState>,
        tx: &Tx,
        leaf: (u64, FilterOpening),
        fetched: &[Option<Fetched>],
    ) -> Result<(MutexGuard<'a, NodeState>, bool)> {
        let mut opened = self.open_filter_in(&mut state, tx, leaf, fetched)?;
        if let LeafLookup::NotResident(FetchTicket::Pointer(id)) = opened {
            drop(state);
            let is_known = self.0.pin(id.block(), Wait::Refused).is_ok();
            state = self.0.lock();
            self.0.check_alive(&state)?;
            if is_known {
                opened = self.open_filter_in(&mut state, tx, leaf, fetched)?;
            }
        }
        Ok((state, matches!(opened, LeafLookup::Resident(()))))
    }

    /// Adds filters of stored leaves that are in memory and have none to a filter block that is
    /// open in this transaction.
    fn add_filters(&self, state: &mut NodeState, tx: &Tx, index: u64) {
        let store = &self.0.io.store;
        let block = ZapBlock::Filter(index).block();
        let mut missing = Vec::new();
        for id in zap::leaves_of_filter(index) {
            let BlockState::Stored(ptr) = state.find(ZapBlock::Leaf(id).block()) else { continue };
            let txg = ptr.birth_txg.get();
            if !zap::has_filter(dirty_mut(state, tx, block), id, txg)
                && let Some(leaf) = store.cache().cache().peek(&store.key(&ptr))
            {
                missing.push((id as usize % ZAP_FILTER_LEAVES, leaf, txg));
            }
        }
        if !missing.is_empty() {
            let mut missing = missing.into_iter().peekable();
            zap::add_filters(dirty_mut(state, tx, block), |slot| {
                let next = missing.next_if(|(of, ..)| *of == slot);
                next.map(|(_, leaf, txg)| (leaf, txg))
            });
        }
    }
}

impl LeafStore for Leaves {
    type Tx = Tx;
    type Ticket = FetchTicket;
    type Fetched = Option<Fetched>;

    fn describe(&self) -> String {
        format!("directory {}", self.0.number)
    }

    fn wait_of(tx: &Tx) -> Wait {
        tx.wait()
    }

    fn inline(&self, wait: Wait) -> Result<Vec<u8>> {
        let counts = {
            let state = self.0.lock();
            self.0.check_alive(&state)?;
            state.counts()
        };
        let mut inline = self.0.owner.inline(self.0.number, wait)?;
        if let Some(counts) = counts {
            put_counts(&mut inline, counts);
        }
        Ok(inline)
    }

    fn inline_capacity(&self, tx: &Tx) -> Result<usize> {
        self.check_alive()?;
        self.0.owner.inline_capacity(self.0.number, tx.wait())
    }

    fn seed(&self) -> u64 {
        self.0.owner.new_seed()
    }

    fn set_inline(&self, tx: &Tx, content: &[u8]) -> Result<()> {
        let counts = counts_of(content);
        {
            let mut state = self.0.lock();
            self.0.check_alive(&state)?;
            if counts.is_some() {
                self.0.mark_dirty(&mut state, tx)?;
            }
        }
        if !self.0.owner.set_inline(tx, self.0.number, content)? {
            let text = format!(
                "{}: {} bytes of inline content do not fit into its dnode",
                self.describe(),
                content.len()
            );
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        if let Some(counts) = counts {
            self.set_counts(tx, counts);
        }
        Ok(())
    }

    #[inline]
    fn set_counts(&self, tx: &Tx, counts: ZapCounts) {
        let mut state = self.0.lock();
        let pending = &mut state.pending[(tx.txg() & 1) as usize];
        debug_assert_eq!(
            pending.txg,
            tx.txg(),
            "the counts change only together with the directory"
        );
        pending.counts = Some(counts);
    }

    fn with_leaf<R>(
        &self,
        id: ZapBlock,
        fetched: &[Option<Fetched>],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<LeafLookup<R, FetchTicket>> {
        let block = id.block();
        let state = self.0.lock();
        self.0.check_alive(&state)?;
        let ptr = match state.find(block) {
            BlockState::Dirty(leaf) => return Ok(LeafLookup::Resident(f(leaf))),
            BlockState::Hole => return Ok(LeafLookup::Hole),
            BlockState::Unknown => return Ok(LeafLookup::NotResident(FetchTicket::Pointer(id))),
            BlockState::Stored(ptr) => ptr,
        };
        let store = &self.0.io.store;
        let (slot_hint, content) = state.pins.hint(block);
        store.prefetch_header(slot_hint);
        drop(state);
        // The header at the start of a leaf is needed first.
        content.into_iter().for_each(hint::prefetch);
        if let Some(leaf) = store.peek_at(&ptr, slot_hint) {
            // A block that was fetched is reported already.
            if store.is_traced() && found(fetched, &ptr).is_none() {
                self.0.note_hit(block, leaf.len());
            }
            if leaf.slot_hint() != slot_hint {
                self.0.lock().pins.set_hint(block, leaf.slot_hint(), &leaf);
            }
            return Ok(LeafLookup::Resident(f(&leaf)));
        }
        match found(fetched, &ptr) {
            Some(fetched) => Ok(LeafLookup::Resident(f(&fetched.content))),
            None => Ok(LeafLookup::NotResident(FetchTicket::Block(id, ptr))),
        }
    }

    fn with_leaf_mut<R>(
        &self,
        tx: &Tx,
        id: ZapBlock,
        filter: Option<FilterOpening>,
        fetched: &[Option<Fetched>],
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<LeafLookup<R, FetchTicket>> {
        let block = id.block();
        let mut state = self.0.lock();
        self.0.check_alive(&state)?;
        let wanted = if let ZapBlock::Page(_) = id { PAGE } else { WHOLE_LEAF };
        let moved = &mut state.pending[(tx.txg() & 1) as usize].moved;
        if !moved.is_empty() {
            moved.remove(&block);
        }
        if let Some(leaf) = dirty_of(&mut state, tx, block, wanted.bytes) {
            return Ok(LeafLookup::Resident(f(leaf)));
        }
        if let (Some(filter), ZapBlock::Leaf(leaf)) = (filter, id)
            && self.is_at_hand(&state, block, fetched)
        {
            if !filter.is_needed {
                let is_open;
                (state, is_open) = self.open_filter_at_hand(state, tx, (leaf, filter), fetched)?;
                if !is_open {
                    self.count(ZapCounters::DIRECTORY_FILTERS_VOIDED, 1);
                }
            } else if let LeafLookup::NotResident(ticket) =
                self.open_filter_in(&mut state, tx, (leaf, filter), fetched)?
            {
                return Ok(LeafLookup::NotResident(ticket));
            }
        }
        Ok(match self.open(&mut state, tx, (id, wanted), fetched)? {
            LeafLookup::Resident(()) => LeafLookup::Resident(f(dirty_mut(&mut state, tx, block))),
            LeafLookup::Hole => LeafLookup::Hole,
            LeafLookup::NotResident(ticket) => LeafLookup::NotResident(ticket),
        })
    }

    fn note_moved(&self, tx: &Tx, id: u64) {
        let mut state = self.0.lock();
        state.pending[(tx.txg() & 1) as usize].moved.insert(ZapBlock::Leaf(id).block());
    }

    fn new_leaf<R>(&self, tx: &Tx, id: ZapBlock, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let block = id.block();
        if !self.0.is_hole(block, tx.wait())? {
            let text = format!(
                "{}: {id} exists, but the directory has it as unused; run a check of the pool",
                self.describe()
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let wanted = match id {
            // A new buffer of the wanted size, not of a whole record.
            ZapBlock::Page(_) => PAGE,
            _ => WantedBytes { whole: true, ..WHOLE_LEAF },
        };
        let wanted = WantedBytes { on_hole: HoleAction::Create, ..wanted };
        let new = self.0.modify(tx, block, wanted, tx.wait(), |leaf| {
            leaf.fill(0);
            f(leaf)
        })?;
        match new {
            ModifyOutcome::Done(result) => Ok(result),
            ModifyOutcome::Hole => unreachable!("HoleAction::Create never leaves a hole"),
        }
    }

    fn free_leaf(&self, tx: &Tx, id: ZapBlock) -> Result<()> {
        self.0.free_blocks(tx, id.block()..id.block() + 1)
    }

    fn open_filter(
        &self,
        tx: &Tx,
        leaf: u64,
        filter: FilterOpening,
        fetched: &[Option<Fetched>],
    ) -> Result<LeafLookup<(), FetchTicket>> {
        let mut state = self.0.lock();
        self.0.check_alive(&state)?;
        self.open_filter_in(&mut state, tx, (leaf, filter), fetched)
    }

    fn make_filters(&self, tx: &Tx, index: u64, seed: u64) -> Result<()> {
        let leaves = zap::leaves_of_filter(index);
        let first = ZapBlock::Leaf(leaves.start).block();
        let mut state = self.0.lock();
        self.0.check_alive(&state)?;
        // The leaves of a filter block share an indirect block.
        if matches!(state.find(first), BlockState::Unknown) {
            drop(state);
            if self.0.pin(first, Wait::Refused).is_err() {
                return Ok(());
            }
            state = self.0.lock();
            self.0.check_alive(&state)?;
        }
        let mut blocks = leaves.map(|id| ZapBlock::Leaf(id).block());
        if !blocks.any(|block| self.is_at_hand(&state, block, &[])) {
            return Ok(());
        }
        let opening = FilterOpening { seed, replaces: false, is_needed: false };
        let leaf = (index * ZAP_FILTER_LEAVES as u64, opening);
        let (mut state, is_open) = self.open_filter_at_hand(state, tx, leaf, &[])?;
        if is_open {
            self.add_filters(&mut state, tx, index);
        }
        Ok(())
    }

    fn free_aside(&self, tx: &Tx) -> Result<()> {
        self.0.free_blocks(tx, ZAP_ASIDE)
    }

    fn block_of(ticket: &FetchTicket) -> ZapBlock {
        match ticket {
            FetchTicket::Pointer(id) | FetchTicket::Block(id, _) => *id,
        }
    }

    fn txg_of(ticket: &FetchTicket) -> Option<u64> {
        match ticket {
            FetchTicket::Pointer(_) => None,
            FetchTicket::Block(_, ptr) => Some(ptr.birth_txg.get()),
        }
    }

    fn stored_txg(&self, id: u64) -> Option<u64> {
        match self.0.lock().find(ZapBlock::Leaf(id).block()) {
            BlockState::Stored(ptr) => Some(ptr.birth_txg.get()),
            BlockState::Dirty(_) | BlockState::Hole | BlockState::Unknown => None,
        }
    }

    fn aided_leaves(&self) -> u64 {
        match self.may_buffer() {
            true => self.0.io.ahead.directories().tunables.directory_buffer_leaves().into(),
            false => u64::MAX,
        }
    }

    fn may_buffer(&self) -> bool {
        self.0.io.ahead.directories().tunables.directory_buffer()
    }

    fn take_share(&self, bytes: u64) -> Option<AidShare> {
        let directories = self.0.io.ahead.directories();
        let percent = u64::from(directories.tunables.directory_buffer_percent());
        let max_bytes = self.0.io.store.cache().bound_bytes() / 100 * percent;
        directories.memory.take(bytes, max_bytes)
    }

    fn shared_bytes(&self) -> u64 {
        self.0.io.ahead.directories().memory.bytes()
    }

    fn free_bytes(&self) -> u64 {
        self.0.io.store.cache().cache().free_bytes()
    }

    fn may_merge(&self, tx: &Tx) -> bool {
        // A merge changes as much as a change of any kind; the change itself comes after it.
        tx.has_spare(2 * FIRST_BYTES)
    }

    #[inline]
    fn may_open_filter(&self, tx: &Tx) -> bool {
        // Only a transaction that frees space in a full pool has reserved less.
        tx.has_spare(FIRST_BYTES / 2)
    }

    fn request_merge(&self) {
        self.0.io.ahead.merges().push(Arc::downgrade(&self.0));
    }

    fn request_drain(&self) {
        let ahead = &self.0.io.ahead;
        let due_ns = ahead.clock().now_ns().saturating_add(DRAIN_PAUSE_NS);
        ahead.merges().push_drain(Arc::downgrade(&self.0), due_ns);
    }

    fn slow_down(&self, pace: &Pace, wait: Wait) -> Result<()> {
        let ahead = &self.0.io.ahead;
        let tunables = &ahead.directories().tunables;
        if tunables.directory_merge_reads() == 0 {
            return Ok(());
        }
        let scale_ns = tunables.directory_slow_scale_ns();
        if ahead.merges().delay(ahead.clock(), scale_ns, pace, wait)? {
            self.count(ZapCounters::DIRECTORY_CREATES_SLOWED, 1);
        }
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        self.0.io.ahead.clock().now_ns()
    }

    fn count(&self, counter: Counter, amount: u64) {
        self.0.io.ahead.directories().counters.add(counter, 0, amount);
    }

    fn count_wait(&self, block: ZapBlock, ns: u64) {
        let kind = match block {
            ZapBlock::Leaf(_) => 0,
            ZapBlock::Filter(_) => 1,
            ZapBlock::Page(_) => 2,
        };
        let counters = &self.0.io.ahead.directories().counters;
        counters.add(ZapCounters::DIRECTORY_WAITS, kind, 1);
        counters.add(ZapCounters::DIRECTORY_WAIT_NS, kind, ns);
    }

    fn fetch(&self, ticket: FetchTicket, wait: Wait) -> Result<Option<Fetched>> {
        match ticket {
            FetchTicket::Pointer(id) => self.0.pin(id.block(), wait).map(|()| None),
            FetchTicket::Block(id, ptr) => self.0.fetch(id.block(), &ptr, wait),
        }
    }

    fn prefetch(&self, ids: &[ZapBlock], least: usize) -> Prefetched {
        let store = &self.0.io.store;
        let _reading = store.readers().enter();
        let (mut not_resident, mut begun) = (0, 0);
        for (taken, id) in ids.iter().enumerate() {
            let block = id.block();
            let known = |state: &NodeState| match state.find(block) {
                BlockState::Stored(ptr) => Some(Some(ptr)),
                BlockState::Unknown => None,
                BlockState::Dirty(_) | BlockState::Hole => Some(None),
            };
            let mut found = known(&self.0.lock());
            if found.is_none() && self.0.pin(block, Wait::Refused).is_ok() {
                found = known(&self.0.lock());
            }
            let ptr = match found {
                Some(Some(ptr)) => ptr,
                Some(None) => continue,
                None => {
                    not_resident += 1;
                    continue;
                }
            };
            if store.cache().cache().contains(&store.key(&ptr)) {
                continue;
            }
            if begun >= least && store.is_read_depth_full() {
                return Prefetched { taken, not_resident };
            }
            (not_resident, begun) = (not_resident + 1, begun + 1);
            self.0.prefetch(block, &ptr);
        }
        Prefetched { taken: ids.len(), not_resident }
    }
}

fn found<'a>(fetched: &'a [Option<Fetched>], ptr: &BlockPtrPhys) -> Option<&'a Fetched> {
    fetched.iter().flatten().find(|fetched| fetched.ptr == *ptr)
}
