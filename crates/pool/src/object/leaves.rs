//! An object as the leaf store of a directory.

use forebay_base::sync::{Arc, hint};
use forebay_cache::Attributes;

use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockPtrPhys, ZAP_LEAF_BYTES};
use crate::tx::Tx;
use crate::wait::Wait;
use crate::zap::{LeafLookup, LeafStore, entries_of, put_entries};

use super::node::{BlockState, Fetched, Node};
use super::write::{HoleAction, ModifyOutcome, ModifyStep, WantedBytes, dirty_mut, dirty_of};

/// A block or pointer that a directory operation must fetch before it can go on.
pub(crate) enum FetchTicket {
    /// The block pointer of this block.
    Pointer(u64),
    /// This block, at this block pointer.
    Block(u64, BlockPtrPhys),
}

/// The object of a directory.
pub(crate) struct Leaves(pub(crate) Arc<Node>);

const WHOLE_LEAF: WantedBytes =
    WantedBytes { bytes: ZAP_LEAF_BYTES, whole: false, on_hole: HoleAction::Leave };

impl Leaves {
    /// Fails if the object was destroyed. Inline content is found by object number, and another
    /// object may have the number by now.
    fn check_alive(&self) -> Result<()> {
        self.0.check_alive(&self.0.lock())
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
        let entries = {
            let state = self.0.lock();
            self.0.check_alive(&state)?;
            state.entries()
        };
        let mut inline = self.0.objset.inline(self.0.number, wait)?;
        if let Some(entries) = entries {
            put_entries(&mut inline, entries);
        }
        Ok(inline)
    }

    fn inline_capacity(&self, tx: &Tx) -> Result<usize> {
        self.check_alive()?;
        Ok(self.0.objset.dnode(self.0.number, tx.wait())?.inline_capacity())
    }

    fn seed(&self) -> u64 {
        self.0.objset.new_seed()
    }

    fn set_inline(&self, tx: &Tx, content: &[u8]) -> Result<()> {
        let entries = entries_of(content);
        {
            let mut state = self.0.lock();
            self.0.check_alive(&state)?;
            if entries.is_some() {
                self.0.mark_dirty(&mut state, tx)?;
            }
        }
        if !self.0.objset.set_inline(tx, self.0.number, content)? {
            let text = format!(
                "{}: {} bytes of inline content do not fit into its dnode",
                self.describe(),
                content.len()
            );
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        if let Some(entries) = entries {
            self.set_entries(tx, entries);
        }
        Ok(())
    }

    #[inline]
    fn set_entries(&self, tx: &Tx, entries: u64) {
        let mut state = self.0.lock();
        let pending = &mut state.pending[(tx.txg() & 1) as usize];
        debug_assert_eq!(
            pending.txg,
            tx.txg(),
            "the entry count changes only together with the directory"
        );
        pending.entries = Some(entries);
    }

    fn with_leaf<R>(
        &self,
        id: u64,
        fetched: &[Option<Fetched>],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<LeafLookup<R, FetchTicket>> {
        let state = self.0.lock();
        self.0.check_alive(&state)?;
        let ptr = match state.find(id) {
            BlockState::Dirty(leaf) => return Ok(LeafLookup::Resident(f(leaf))),
            BlockState::Hole => return Ok(LeafLookup::Hole),
            BlockState::Unknown => return Ok(LeafLookup::NotResident(FetchTicket::Pointer(id))),
            BlockState::Stored(ptr) => ptr,
        };
        let store = &self.0.objset.store;
        let (slot_hint, content) = state.pins.hint(id);
        store.prefetch_header(slot_hint);
        drop(state);
        // The header at the start of a leaf is needed first.
        content.into_iter().for_each(hint::prefetch);
        if let Some(leaf) = store.peek_at(&ptr, slot_hint) {
            if leaf.slot_hint() != slot_hint {
                self.0.lock().pins.set_hint(id, leaf.slot_hint(), &leaf);
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
        id: u64,
        fetched: &[Option<Fetched>],
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<LeafLookup<R, FetchTicket>> {
        let mut state = self.0.lock();
        self.0.check_alive(&state)?;
        if let Some(leaf) = dirty_of(&mut state, tx, id, ZAP_LEAF_BYTES) {
            return Ok(LeafLookup::Resident(f(leaf)));
        }
        let known = match state.find(id) {
            BlockState::Stored(ptr) => found(fetched, &ptr),
            _ => None,
        };
        match self.0.try_modify(&mut state, tx, id, WHOLE_LEAF, known)? {
            ModifyStep::Ready => Ok(LeafLookup::Resident(f(dirty_mut(&mut state, tx, id)))),
            ModifyStep::Hole => Ok(LeafLookup::Hole),
            ModifyStep::Fetch(ptr) => Ok(LeafLookup::NotResident(FetchTicket::Block(id, ptr))),
            ModifyStep::Pin => Ok(LeafLookup::NotResident(FetchTicket::Pointer(id))),
        }
    }

    fn new_leaf<R>(&self, tx: &Tx, id: u64, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        if !self.0.is_hole(id, tx.wait())? {
            let text = format!(
                "{}: leaf {id} exists, but the directory has it as unused; run a check of the pool",
                self.describe()
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let whole = WantedBytes { whole: true, on_hole: HoleAction::Create, ..WHOLE_LEAF };
        let new = self.0.modify(tx, id, whole, tx.wait(), |leaf| {
            leaf.fill(0);
            f(leaf)
        })?;
        match new {
            ModifyOutcome::Done(result) => Ok(result),
            ModifyOutcome::Hole => unreachable!("HoleAction::Create never leaves a hole"),
        }
    }

    fn free_leaf(&self, tx: &Tx, id: u64) -> Result<()> {
        self.0.free_blocks(tx, id..id + 1)
    }

    fn fetch(&self, ticket: FetchTicket, wait: Wait) -> Result<Option<Fetched>> {
        match ticket {
            FetchTicket::Pointer(block) => self.0.pin(block, wait).map(|()| None),
            FetchTicket::Block(block, ptr) => self.0.fetch(block, &ptr, wait),
        }
    }

    fn has_leaf(fetched: &Option<Fetched>) -> bool {
        fetched.is_some()
    }

    fn prefetch(&self, ids: &[u64]) -> usize {
        let store = &self.0.objset.store;
        let _reading = store.readers().enter();
        let mut not_resident = 0;
        for id in ids {
            let state = self.0.lock();
            let ptr = match state.find(*id) {
                BlockState::Stored(ptr) => ptr,
                BlockState::Unknown => {
                    not_resident += 1;
                    continue;
                }
                BlockState::Dirty(_) | BlockState::Hole => continue,
            };
            drop(state);
            if !store.cache().cache().contains(&store.key(&ptr)) {
                not_resident += 1;
                store.prefetch(&ptr, Attributes::METADATA, Box::new(|_| {}));
            }
        }
        not_resident
    }
}

fn found<'a>(fetched: &'a [Option<Fetched>], ptr: &BlockPtrPhys) -> Option<&'a Fetched> {
    fetched.iter().flatten().find(|fetched| fetched.ptr == *ptr)
}
