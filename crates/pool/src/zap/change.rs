//! Changes of a name in a fat directory: which there are, and how one changes a leaf or the buffer.

use super::access::LeafAccess;
use super::entry::HashedName;
use super::fat::Fat;
use super::leaf::{Change, LeafDefect, LeafMut};
use super::store::LeafStore;
use super::{OpStep, merge};
use crate::format::ZAP_DEPTH_MAX;
use crate::{Error, ErrorKind, Result};

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameChange {
    Insert,
    Upsert,
    Replace,
    Remove,
    /// An insert that undoes a removal in the same transaction.
    Restore,
}

/// A requested change.
pub(super) struct ChangeRequest<'a> {
    pub(super) kind: NameChange,
    pub(super) name: HashedName<'a>,
    pub(super) value: &'a [u8],
}

impl ChangeRequest<'_> {
    /// Whether the change adds the name if it does not exist.
    pub(super) fn adds(&self) -> bool {
        matches!(self.kind, NameChange::Insert | NameChange::Upsert | NameChange::Restore)
    }

    #[inline]
    fn apply(&self, leaf: &mut LeafMut<'_>) -> Result<Change, LeafDefect> {
        match self.kind {
            NameChange::Insert | NameChange::Restore => leaf.insert(self.name, self.value),
            NameChange::Replace => leaf.replace(self.name.hash(), self.name.name, self.value),
            NameChange::Remove => leaf.remove(self.name.hash(), self.name.name),
            NameChange::Upsert => {
                match leaf.replace(self.name.hash(), self.name.name, self.value)? {
                    Change::Missing => leaf.insert(self.name, self.value),
                    change => Ok(change),
                }
            }
        }
    }
}

/// Result of a change.
pub(super) struct Changed {
    pub(super) change: Change,
    /// Whether the leaf became so empty that a merge should be tried.
    pub(super) merge_due: bool,
    /// Whether names of the change buffer should move to their leaves.
    pub(super) wants_merge: bool,
    /// Whether the name was buffered because its leaf is not in memory.
    pub(super) lacks_leaf: bool,
    /// Whether leaves have no filters because the directory has just become large.
    pub(super) lacks_filters: bool,
}

impl Changed {
    pub(super) fn new(change: Change, merge_due: bool) -> Self {
        Self { change, merge_due, wants_merge: false, lacks_leaf: false, lacks_filters: false }
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
    /// Inserts, changes or removes an entry.
    pub(super) fn change<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        request: &ChangeRequest<'_>,
    ) -> Result<OpStep<Changed, S::Ticket>> {
        self.takes_share(access.store);
        if request.kind == NameChange::Restore {
            return self.restore(access, tx, request);
        }
        if self.header.buffered.get() > 0
            && let Some(step) = self.change_buffered(access, tx, request)?
        {
            return Ok(step);
        }
        match self.change_leaf(access, tx, request)? {
            OpStep::NotResident(ticket) if self.is_aided() => {
                self.change_absent(access, tx, request, ticket)
            }
            step => Ok(step),
        }
    }

    /// Inserts, changes or removes an entry of a leaf.
    pub(super) fn change_leaf<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        request: &ChangeRequest<'_>,
    ) -> Result<OpStep<Changed, S::Ticket>> {
        // A removal has no use for the filter. The next name for the leaf reads the leaf instead,
        // and makes a filter again.
        let reads_filters = request.kind != NameChange::Remove;
        let access = LeafAccess { reads_filters, ..access };
        // Every round but the last splits the leaf, which becomes deeper.
        for _ in 0..=ZAP_DEPTH_MAX {
            let attempt =
                match self.edit(access, tx, request.name.hash(), |leaf| attempt(leaf, request))? {
                    OpStep::Done(attempt) => attempt,
                    OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
                };
            if attempt.change != Change::Full {
                self.count(access.store, tx, request.kind, attempt.change);
                return Ok(OpStep::Done(Changed::new(attempt.change, attempt.merge_due)));
            }
            if !attempt.can_split {
                break;
            }
            if let OpStep::NotResident(ticket) =
                self.split(access, tx, request.name.hash(), attempt.depth)?
            {
                return Ok(OpStep::NotResident(ticket));
            }
        }
        Err(full(access.store))
    }

    /// Updates the entry count after a change.
    #[inline]
    fn count<S: LeafStore>(&mut self, store: &S, tx: &S::Tx, kind: NameChange, change: Change) {
        let before = self.header.entries.get();
        let entries = match (kind, change) {
            (NameChange::Insert | NameChange::Upsert | NameChange::Restore, Change::Done(None)) => {
                before.saturating_add(1)
            }
            (NameChange::Remove, Change::Done(_)) => before.saturating_sub(1),
            _ => return,
        };
        self.set_counts(store, tx, entries, self.header.buffered.get());
    }
}

/// Tries a change that may need more space than the leaf has.
#[inline]
fn attempt(leaf: &mut LeafMut<'_>, request: &ChangeRequest<'_>) -> Result<Attempt, LeafDefect> {
    let removes = request.kind == NameChange::Remove;
    let before = if removes { leaf.leaf()?.used_bytes() } else { 0 };
    let change = request.apply(leaf)?;
    let can_split = change == Change::Full && leaf.can_split(request.name.hash())?;
    let leaf = leaf.leaf()?;
    let merge_due = removes && merge::is_due(&leaf, before);
    Ok(Attempt { change, depth: leaf.depth(), can_split, merge_due })
}

#[cold]
pub(super) fn full<S: LeafStore>(store: &S) -> Error {
    let what = store.describe();
    Error::new(
        ErrorKind::NoSpace,
        format!("{what}: the leaf is full of names with nearly equal hashes; use another name"),
    )
}
