//! Ordered walks over a directory.

use std::collections::VecDeque;

use super::access::LeafAccess;
use super::buffer::PageNames;
use super::entry::{Cookie, Entry, first_position, hash_at, leaf_id, prefix_mask};
use super::fat::Fat;
use super::leaf::{LeafDefect, Record};
use super::micro::Micro;
use super::store::LeafStore;
use super::{DirectoryForm, OpStep, Zap, corrupt};
use crate::Result;
use crate::format::ZapBlock;
use crate::wait::Wait;

/// Entries that [`Cursor`] fetches at once.
const BATCH: usize = 128;
/// Leaves that a walk prefetches.
const PREFETCH_LEAVES: usize = 16;

/// Iterates over the entries of a directory.
pub(crate) struct Cursor<'a, S: LeafStore> {
    zap: &'a Zap<S>,
    from: Cookie,
    batch: VecDeque<Entry>,
    wait: Wait,
}

impl<S: LeafStore> Iterator for Cursor<'_, S> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if self.batch.is_empty() && !self.from.is_end() {
            match self.zap.batch(self.from, BATCH, self.wait) {
                Ok((entries, next)) => {
                    self.batch = entries.into();
                    self.from = next;
                }
                Err(error) => {
                    self.from = Cookie::END;
                    return Some(Err(error));
                }
            }
        }
        self.batch.pop_front().map(Ok)
    }
}

impl<S: LeafStore> Zap<S> {
    /// Iterates over the entries from `from` on. An entry that exists during the whole walk is
    /// returned exactly once. An entry that is added or removed meanwhile may be returned or not.
    /// An error ends the walk.
    pub(crate) fn cursor(&self, from: Cookie, wait: Wait) -> Cursor<'_, S> {
        Cursor { zap: self, from, batch: VecDeque::new(), wait }
    }

    /// At most `max` entries from `from` on; fewer only at the end. A walk continues at the `next`
    /// of the last entry.
    pub(crate) fn entries(&self, from: Cookie, max: usize, wait: Wait) -> Result<Vec<Entry>> {
        Ok(self.batch(from, max, wait)?.0)
    }

    /// Like [`entries`](Self::entries), but also returns where to continue. That is the end as soon
    /// as no entry can follow.
    pub(crate) fn batch(
        &self,
        from: Cookie,
        max: usize,
        wait: Wait,
    ) -> Result<(Vec<Entry>, Cookie)> {
        let mut entries = Vec::new();
        let mut from = from;
        // Every round passes a leaf, or the part of it that a buffer page covers.
        while !from.is_end() && entries.len() < max {
            let remaining = max - entries.len();
            let (mut more, next) =
                self.run(Some(hash_at(from.raw())), wait, |state, access| match &mut state.form {
                    DirectoryForm::Micro(micro) => {
                        Ok(OpStep::Done(micro_entries(micro, from, remaining)))
                    }
                    DirectoryForm::Fat(fat) => leaf_entries(fat, access, from, remaining),
                })?;
            entries.append(&mut more);
            from = next;
        }
        Ok((entries, from))
    }
}

/// Blocks of the next leaves in order after the leaf of a hash, as far as the table knows them.
pub(super) fn leaves_after(fat: &Fat, hash: u32) -> Vec<ZapBlock> {
    let mut ids = Vec::new();
    let mut hash = hash;
    let depth_of = |hash| fat.table.get(hash).unwrap_or(fat.header.depth);
    while ids.len() < PREFETCH_LEAVES
        && let Some(next) = hash_after(hash, depth_of(hash))
    {
        ids.push(ZapBlock::Leaf(leaf_id(next, depth_of(next))));
        hash = next;
    }
    ids
}

/// The first hash after the leaf of this depth.
fn hash_after(hash: u32, depth: u8) -> Option<u32> {
    (hash | !prefix_mask(depth)).checked_add(1)
}

fn micro_entries(micro: &Micro, from: Cookie, max: usize) -> (Vec<Entry>, Cookie) {
    let sorted = micro.sorted();
    let mut rest = sorted.iter().filter(|entry| entry.position >= from.raw());
    let entries: Vec<Entry> =
        rest.by_ref().take(max).filter_map(|e| entry(e.position, e.record).ok()).collect();
    let next = rest.next().map_or(Cookie::END, |entry| Cookie::from_raw(entry.position));
    (entries, next)
}

/// Entries of the leaf at `from`, and those that are buffered for it. Ends with the leaf or the
/// buffer page, whichever ends first: a step needs one leaf and one page, however many pages the
/// leaf has.
fn leaf_entries<S: LeafStore>(
    fat: &mut Fat,
    access: LeafAccess<'_, S>,
    from: Cookie,
    max: usize,
) -> Result<OpStep<(Vec<Entry>, Cookie), S::Ticket>> {
    let hash = hash_at(from.raw());
    // One more than returned: where the walk goes on.
    let most = max.saturating_add(1);
    let PageNames { names, last } = match fat.names_of_page(access, from.raw(), u32::MAX, most)? {
        OpStep::Done(page) => page,
        OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
    };
    let found = fat.with_leaf_of(access, hash, |leaf| {
        let last = last.min(hash | !prefix_mask(leaf.depth()));
        let mut entries = Vec::new();
        for found in leaf.entries_from(from.raw()).take(most) {
            let (position, record) = found?;
            if position < from.raw() {
                return Err(LeafDefect("its slots are out of order"));
            }
            if hash_at(position) > last {
                break;
            }
            entries.push(entry(position, record)?);
        }
        Ok((entries, leaf.depth()))
    })?;
    let (mut entries, depth) = match found {
        OpStep::Done(found) => found,
        OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
    };
    let last = last.min(hash | !prefix_mask(depth));
    let of_leaf = names.into_iter().take_while(|name| hash_at(name.position) <= last);
    entries.extend(of_leaf.map(|buffered| Entry {
        name: buffered.name,
        value: buffered.value,
        next: Cookie::after(buffered.position),
    }));
    // Both are sorted, and short.
    entries.sort_by_key(|entry| entry.next);
    if entries.windows(2).any(|two| two[0].next == two[1].next) {
        let leaf = ZapBlock::Leaf(leaf_id(hash, depth));
        return Err(corrupt(access.store, leaf, LeafDefect("two entries have the same position")));
    }
    let next = match entries.get(max) {
        Some(first_left) => Cookie::from_raw(first_left.next.raw() - 1),
        None => {
            last.checked_add(1).map_or(Cookie::END, |hash| Cookie::from_raw(first_position(hash)))
        }
    };
    entries.truncate(max);
    Ok(OpStep::Done((entries, next)))
}

fn entry(position: u64, record: Record<'_>) -> Result<Entry, LeafDefect> {
    Ok(Entry { name: record.name.into(), value: record.value()?, next: Cookie::after(position) })
}
