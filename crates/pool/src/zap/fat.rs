//! A fat directory: extendible hashing that uses the object's block tree as its pointer table.
//!
//! The leaf of the hashes that start with certain `depth` bits lies at the block whose number is
//! those bits in reverse order. In a split, the leaf of a following 0 stays in place, and the leaf
//! of a following 1 goes to a block that was a hole.
//!
//! A search for the leaf of a hash tries the block of the deepest possible leaf, then ever
//! shallower ones. The first that is not a hole is the leaf, because leaves cover every hash
//! exactly once. [`DepthTable`] remembers the result, so later searches take one step.
//!
//! # Invariants
//!
//! - Leaves cover every hash exactly once: the sum over leaves of 2^-depth is 1.
//! - When the directory's lock is free, the depth in the header is that of the deepest leaf, and
//!   the counts in the header are right.

use zerocopy::{FromBytes, IntoBytes};

use super::entry::{leaf_id, prefix_mask};
use super::leaf::{Change, Leaf, LeafDefect, LeafMut, put_leaf};
use super::store::{LeafLookup, LeafStore};
use super::table::DepthTable;
use super::{NameChange, OpStep, corrupt};
use crate::format::{ZAP_DEPTH_MAX, ZAP_FAT, ZAP_LEAF_BYTES, ZapFatPhys, ZapHeadPhys};
use crate::{Error, ErrorKind, Result};

/// In-memory state of a fat directory.
pub(super) struct Fat {
    pub(super) header: ZapFatPhys,
    pub(super) table: DepthTable,
}

/// The store, and the blocks fetched for the current operation.
pub(super) struct LeafAccess<'a, S: LeafStore> {
    pub(super) store: &'a S,
    pub(super) fetched: &'a [S::Fetched],
}

impl<S: LeafStore> Clone for LeafAccess<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: LeafStore> Copy for LeafAccess<'_, S> {}

/// Result of a change.
pub(super) struct Changed {
    pub(super) change: Change,
    /// Whether the leaf became so empty that a merge should be tried.
    pub(super) merge_due: bool,
}

/// A requested change.
pub(super) struct ChangeRequest<'a> {
    pub(super) kind: NameChange,
    pub(super) hash: u32,
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
}

impl ChangeRequest<'_> {
    #[inline]
    fn apply(&self, leaf: &mut LeafMut<'_>) -> Result<Change, LeafDefect> {
        match self.kind {
            NameChange::Insert => leaf.insert(self.hash, self.name, self.value),
            NameChange::Replace => leaf.replace(self.hash, self.name, self.value),
            NameChange::Remove => leaf.remove(self.hash, self.name),
            NameChange::Upsert => match leaf.replace(self.hash, self.name, self.value)? {
                Change::Missing => leaf.insert(self.hash, self.name, self.value),
                change => Ok(change),
            },
        }
    }
}

/// Result of one attempt of a change.
struct Attempt {
    change: Change,
    depth: u8,
    can_split: bool,
    merge_due: bool,
}

impl Fat {
    /// A directory with one leaf, which is block 0.
    pub(super) fn new(seed: u64, entries: u64) -> Self {
        let mut header = ZapFatPhys {
            head: ZapHeadPhys { form: ZAP_FAT, reserved: [0; 3], seed: seed.into() },
            depth: 0,
            reserved: [0; 3],
            entries: entries.into(),
            leaves_at: [0.into(); ZAP_DEPTH_MAX as usize + 1],
        };
        header.leaves_at[0] = 1.into();
        Self { header, table: DepthTable::new(0) }
    }

    /// From a header that comes from a device.
    pub(super) fn read(header: ZapFatPhys) -> Result<Self, LeafDefect> {
        if header.depth > ZAP_DEPTH_MAX || header.leaves_at[usize::from(header.depth)].get() == 0 {
            return Err(LeafDefect("its depth is invalid"));
        }
        let covered = |(depth, leaves): (usize, &zerocopy::little_endian::U32)| {
            u64::from(leaves.get()) << (usize::from(ZAP_DEPTH_MAX) - depth)
        };
        let whole: u64 = header.leaves_at.iter().enumerate().map(covered).sum();
        if whole != 1 << ZAP_DEPTH_MAX {
            return Err(LeafDefect("its leaves do not cover every hash exactly once"));
        }
        Ok(Self { header, table: DepthTable::new(header.depth) })
    }

    /// Number of leaves.
    pub(super) fn leaves(&self) -> u64 {
        self.header.leaves_at.iter().map(|leaves| u64::from(leaves.get())).sum()
    }

    /// Calls `f` with the leaf of a hash.
    #[inline]
    pub(super) fn with_leaf_of<S: LeafStore, R>(
        &mut self,
        access: LeafAccess<'_, S>,
        hash: u32,
        mut f: impl FnMut(&Leaf<'_>) -> Result<R, LeafDefect>,
    ) -> Result<OpStep<R, S::Ticket>> {
        let deepest = self.header.depth;
        self.descend(access.store, hash, |id| {
            access.store.with_leaf(id, access.fetched, |bytes| {
                let leaf = Leaf::read(bytes)?;
                check_location(&leaf, id, hash, deepest)?;
                Ok((leaf.depth(), f(&leaf)?))
            })
        })
    }

    /// Calls `f` with the leaf of a hash, open for changes.
    #[inline]
    pub(super) fn edit<S: LeafStore, R>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        hash: u32,
        mut f: impl FnMut(&mut LeafMut<'_>) -> Result<R, LeafDefect>,
    ) -> Result<OpStep<R, S::Ticket>> {
        let deepest = self.header.depth;
        self.descend(access.store, hash, |id| {
            access.store.with_leaf_mut(tx, id, access.fetched, |bytes| {
                let mut leaf = LeafMut::open(bytes)?;
                let depth = {
                    let leaf = leaf.leaf()?;
                    check_location(&leaf, id, hash, deepest)?;
                    leaf.depth()
                };
                Ok((depth, f(&mut leaf)?))
            })
        })
    }

    /// Inserts, changes or removes an entry.
    pub(super) fn change<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        request: &ChangeRequest<'_>,
    ) -> Result<OpStep<Changed, S::Ticket>> {
        // Every round but the last splits the leaf, which becomes deeper.
        for _ in 0..=ZAP_DEPTH_MAX {
            let attempt =
                match self.edit(access, tx, request.hash, |leaf| attempt(leaf, request))? {
                    OpStep::Done(attempt) => attempt,
                    OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
                };
            if attempt.change != Change::Full {
                self.count(access.store, tx, request.kind, attempt.change);
                return Ok(OpStep::Done(Changed {
                    change: attempt.change,
                    merge_due: attempt.merge_due,
                }));
            }
            if !attempt.can_split {
                break;
            }
            if let OpStep::NotResident(ticket) =
                self.split(access, tx, request.hash, attempt.depth)?
            {
                return Ok(OpStep::NotResident(ticket));
            }
        }
        let what = access.store.describe();
        Err(Error::new(
            ErrorKind::NoSpace,
            format!("{what}: the leaf is full of names with nearly equal hashes; use another name"),
        ))
    }

    /// Writes the header.
    pub(super) fn put_header<S: LeafStore>(&self, store: &S, tx: &S::Tx) -> Result<()> {
        store.set_inline(tx, self.header.as_bytes())
    }

    /// Finds the leaf of a hash, from the deepest possible one upwards.
    #[inline]
    fn descend<S: LeafStore, R>(
        &mut self,
        store: &S,
        hash: u32,
        mut visit: impl FnMut(u64) -> Result<LeafLookup<Result<(u8, R), LeafDefect>, S::Ticket>>,
    ) -> Result<OpStep<R, S::Ticket>> {
        let known = self.table.get(hash);
        let mut id = leaf_id(hash, known.unwrap_or(self.header.depth));
        loop {
            match visit(id)? {
                LeafLookup::Resident(Ok((depth, result))) => {
                    if known != Some(depth) {
                        self.table.set(hash, depth);
                    }
                    return Ok(OpStep::Done(result));
                }
                LeafLookup::Resident(Err(defect)) => return Err(corrupt(store, id, defect)),
                LeafLookup::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
                LeafLookup::Hole if id == 0 || known.is_some() => {
                    return Err(corrupt(store, id, LeafDefect("it is missing")));
                }
                // The next shallower leaf at another block: clear the highest bit.
                LeafLookup::Hole => id &= !(1 << id.ilog2()),
            }
        }
    }

    /// Splits the leaf of a hash. The leaf is open in this transaction.
    #[cold]
    #[inline(never)]
    fn split<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        hash: u32,
        depth: u8,
    ) -> Result<OpStep<(), S::Ticket>> {
        let store = access.store;
        // On the stack: an allocation would fault in fresh pages under the directory's lock.
        let mut both = [0; 2 * ZAP_LEAF_BYTES];
        let (low, high) = both.split_at_mut(ZAP_LEAF_BYTES);
        let halves = self.edit(access, tx, hash, |leaf| leaf.halves(low, high))?;
        if let OpStep::NotResident(ticket) = halves {
            return Ok(OpStep::NotResident(ticket));
        }
        let low_id = leaf_id(hash, depth);
        let high_id = low_id | 1 << depth;
        self.move_leaves(store, tx, depth, depth + 1)?;
        let created = store.new_leaf(tx, high_id, |bytes| put_leaf(bytes, high)).and_then(|put| {
            let put = put.map_err(|defect| corrupt(store, high_id, defect));
            let both = put.and_then(|()| self.rewrite(access, tx, low_id, low));
            both.or_else(|error| store.free_leaf(tx, high_id).and(Err(error)))
        });
        if let Err(error) = created {
            self.move_leaves(store, tx, depth + 1, depth)?;
            return Err(error);
        }
        let prefix = hash & prefix_mask(depth);
        self.table.set(prefix, depth + 1);
        self.table.set(prefix | 1 << (31 - u32::from(depth)), depth + 1);
        Ok(OpStep::Done(()))
    }

    /// Replaces the content of a leaf that is open in this transaction.
    pub(super) fn rewrite<S: LeafStore>(
        &self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        id: u64,
        leaf: &[u8],
    ) -> Result<()> {
        let store = access.store;
        match store.with_leaf_mut(tx, id, access.fetched, |bytes| put_leaf(bytes, leaf))? {
            LeafLookup::Resident(Ok(())) => Ok(()),
            LeafLookup::Resident(Err(defect)) => Err(corrupt(store, id, defect)),
            LeafLookup::Hole | LeafLookup::NotResident(_) => {
                Err(corrupt(store, id, LeafDefect("it disappeared during a change")))
            }
        }
    }

    /// Replaces one leaf of depth `from` by two of depth `to` in the counts, or two by one, and
    /// updates the depth of the directory.
    pub(super) fn move_leaves<S: LeafStore>(
        &mut self,
        store: &S,
        tx: &S::Tx,
        from: u8,
        to: u8,
    ) -> Result<()> {
        let (less, more) = if from < to { (1, 2) } else { (2, 1) };
        let mut header = self.header;
        let leaves_at = &mut header.leaves_at;
        let left = leaves_at[usize::from(from)].get().saturating_sub(less);
        leaves_at[usize::from(from)] = left.into();
        leaves_at[usize::from(to)] += more;
        header.depth = leaves_at.iter().rposition(|leaves| leaves.get() > 0).unwrap_or(0) as u8;
        store.set_inline(tx, header.as_bytes())?;
        if header.depth != self.header.depth {
            self.table.resize(header.depth);
        }
        self.header = header;
        Ok(())
    }

    /// Updates the entry count after a change.
    #[inline]
    fn count<S: LeafStore>(&mut self, store: &S, tx: &S::Tx, kind: NameChange, change: Change) {
        let before = self.header.entries.get();
        let entries = match (kind, change) {
            (NameChange::Insert | NameChange::Upsert, Change::Done(None)) => {
                before.saturating_add(1)
            }
            (NameChange::Remove, Change::Done(_)) => before.saturating_sub(1),
            _ => return,
        };
        self.header.entries = entries.into();
        store.set_entries(tx, entries);
    }
}

/// The entry count in inline content, if it is a fat directory's.
pub(crate) fn entries_of(inline: &[u8]) -> Option<u64> {
    let header = ZapFatPhys::ref_from_bytes(inline).ok()?;
    (header.head.form == ZAP_FAT).then(|| header.entries.get())
}

/// Sets the entry count in inline content, if it is a fat directory's.
pub(crate) fn put_entries(inline: &mut [u8], entries: u64) {
    if let Ok(header) = ZapFatPhys::mut_from_bytes(inline)
        && header.head.form == ZAP_FAT
    {
        header.entries = entries.into();
    }
}

/// Tries a change that may need more space than the leaf has.
#[inline]
fn attempt(leaf: &mut LeafMut<'_>, request: &ChangeRequest<'_>) -> Result<Attempt, LeafDefect> {
    let removes = request.kind == NameChange::Remove;
    let before = if removes { leaf.leaf()?.used_bytes() } else { 0 };
    let change = request.apply(leaf)?;
    let can_split = change == Change::Full && leaf.can_split(request.hash)?;
    let leaf = leaf.leaf()?;
    let merge_due = removes && super::merge::is_due(&leaf, before);
    Ok(Attempt { change, depth: leaf.depth(), can_split, merge_due })
}

#[inline]
fn check_location(leaf: &Leaf<'_>, id: u64, hash: u32, deepest: u8) -> Result<(), LeafDefect> {
    if !leaf.covers(hash) || leaf_id(hash, leaf.depth()) != id || leaf.depth() > deepest {
        return Err(LeafDefect("it belongs to another block"));
    }
    Ok(())
}
