//! The sweep: reads leaves ahead that buffered names can move to, and other blocks that a directory
//! in use soon needs.
//!
//! Creates drive the sweep. It holds no lock of its own and waits for nothing: it returns blocks to
//! prefetch, and looks later whether they have arrived.

use std::collections::{HashSet, VecDeque};

use super::OpStep;
use super::buffer::{PAGE_SPAN, PageAttempt};
use super::entry::{first_position, hash_at, leaf_id, prefix_mask};
use super::fat::{Fat, LeafAccess};
use super::store::LeafStore;
use crate::Result;
use crate::format::{ZAP_FILTER_LEAVES, ZAP_PAGE_BYTES, ZapBlock};

/// Leaves that a sweep has in flight at most.
pub(super) const SWEEP_MAX: u64 = 64;
/// Leaves that one change adds to a sweep at most.
const SWEEP_STEP: usize = 8;
/// A change looks at so many leaves of the sweep to find one that has arrived.
const SWEEP_TRIES: usize = 2;
/// Changes after which the sweep requests a leaf again that has not arrived, or was evicted.
const SWEEP_PATIENCE: u64 = 512;
/// Filter blocks, and pages, that are prefetched together when the first of them is not resident.
const WINDOW: u64 = 64;

/// The leaves that are being read so that buffered names can move to them.
#[derive(Default)]
pub(super) struct Sweep {
    /// The hash where it goes on.
    at: u32,
    /// A hash of each leaf in flight, and the change that added it.
    queue: VecDeque<(u32, u64)>,
    /// Number of changes.
    changes: u64,
    /// Windows of filter blocks and pages that were prefetched.
    windows: HashSet<u64>,
}

#[cfg(all(test, not(forebay_model)))]
impl Sweep {
    /// Number of leaves in flight.
    pub(super) fn in_flight(&self) -> u64 {
        self.queue.len() as u64
    }
}

impl Fat {
    /// The leaves of the next buffered names in the order of the hash, to be merged together. Sets
    /// a hash of each.
    pub(super) fn next_to_merge<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        hashes: &mut Vec<u32>,
    ) -> Result<OpStep<Vec<ZapBlock>, S::Ticket>> {
        hashes.clear();
        let mut ids = Vec::new();
        let (mut from, mut is_again) = (first_position(self.sweep.at), self.sweep.at == 0);
        while self.header.buffered.get() > 0 && (hashes.len() as u64) < SWEEP_MAX {
            let page = match self.names_of_page(access, from, u32::MAX, 1)? {
                OpStep::Done(page) => page,
                OpStep::NotResident(_) if !hashes.is_empty() => break,
                OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
            };
            let mut end = page.last;
            if let Some(name) = page.names.first() {
                let hash = hash_at(name.position);
                let depth = self.table.get(hash).unwrap_or(self.header.depth);
                hashes.push(hash);
                ids.push(ZapBlock::Leaf(leaf_id(hash, depth)));
                end = end.min(hash | !prefix_mask(depth));
            }
            self.sweep.at = end.wrapping_add(1);
            match end.checked_add(1) {
                Some(after) => from = first_position(after),
                None if is_again => break,
                None => (from, is_again) = (0, true),
            }
        }
        Ok(OpStep::Done(ids))
    }

    /// Filter blocks and pages to prefetch with one that is not resident, once for each window: a
    /// cold directory in use soon needs all of them.
    pub(super) fn aside_ahead(&mut self, at: u64) -> Vec<ZapBlock> {
        if !self.sweep.windows.insert(at / WINDOW) {
            return Vec::new();
        }
        let numbers = at / WINDOW * WINDOW..(at / WINDOW + 1) * WINDOW;
        let filters = (1u64 << self.header.depth).div_ceil(ZAP_FILTER_LEAVES as u64);
        let pages = 1u64 << self.header.page_depth;
        let filter = |at| (at < filters).then_some(ZapBlock::Filter(at));
        let page = |at| (at < pages && self.header.pages.get() > 0).then_some(ZapBlock::Page(at));
        numbers.flat_map(|at| [filter(at), page(at)]).flatten().collect()
    }

    /// Moves the names of a leaf that has arrived, and returns leaves to read next. `page` is the
    /// one that has just got a name with this hash. Failures are left to the change that needs the
    /// leaf.
    pub(super) fn advance_sweep<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        tx: &S::Tx,
        hash: u32,
        page: &PageAttempt,
    ) -> Vec<ZapBlock> {
        self.sweep.changes += 1;
        let mut ids = Vec::new();
        for _ in 0..SWEEP_TRIES {
            let Some((hash, since)) = self.sweep.queue.pop_front() else { break };
            if self.has_drained(access, hash) {
                continue;
            }
            if !access.store.may_merge(tx) {
                // The space is for the change that drives the sweep.
                self.sweep.queue.push_back((hash, since));
                break;
            }
            match self.merge_names(access, tx, hash) {
                Ok(OpStep::NotResident(ticket)) => {
                    let block = S::block_of(&ticket);
                    let is_leaf =
                        matches!(block, ZapBlock::Leaf(_)) && S::txg_of(&ticket).is_some();
                    let is_lost = self.sweep.changes - since > SWEEP_PATIENCE;
                    // A filter block or an indirect block that the leaf needs is requested at once.
                    ids.extend((!is_leaf || is_lost).then_some(block));
                    let since = if is_lost { self.sweep.changes } else { since };
                    self.sweep.queue.push_back((hash, since));
                }
                Err(_) => {}
                Ok(OpStep::Done(_)) => break,
            }
        }
        let in_flight = self.sweep_target(page);
        for _ in 0..SWEEP_STEP {
            if self.sweep.queue.len() as u64 >= in_flight {
                break;
            }
            let at = self.sweep.at;
            let (leaf, next) = self.sweep_leaf(access, at);
            ids.extend(leaf);
            self.sweep.at = next.unwrap_or(0);
        }
        if !page.splits && page.used_bytes > ZAP_PAGE_BYTES * 7 / 8 {
            // This page does not wait for its turn.
            let last = hash | !prefix_mask(page.depth);
            let mut next = Some(hash & prefix_mask(page.depth));
            for _ in 0..2 << PAGE_SPAN {
                let is_full = self.sweep.queue.len() as u64 >= SWEEP_MAX;
                let Some(at) = next.filter(|at| *at <= last && !is_full) else { break };
                let (leaf, after) = self.sweep_leaf(access, at);
                ids.extend(leaf);
                next = after;
            }
        }
        ids
    }

    /// Leaves that should be in flight: none below three eighths of the space of all pages, ever
    /// more up to five eighths.
    fn sweep_target(&self, page: &PageAttempt) -> u64 {
        let name_bytes = (page.used_bytes / page.len.max(1)).max(1);
        // Pages that are few split when they are full.
        let pages = u64::from(self.header.pages.get()).max(self.leaves() >> PAGE_SPAN);
        let capacity = pages * (ZAP_PAGE_BYTES / name_bytes) as u64;
        let excess = self.header.buffered.get().saturating_sub(capacity * 3 / 8);
        // A forged header counts any number of names.
        excess.saturating_mul(SWEEP_MAX).div_ceil((capacity / 4).max(1)).min(SWEEP_MAX)
    }

    /// Whether it is known that no name waits for the leaf of a hash any more.
    fn has_drained<S: LeafStore>(&mut self, access: LeafAccess<'_, S>, hash: u32) -> bool {
        let depth = self.table.get(hash).unwrap_or(self.header.depth);
        matches!(self.count_buffered(access, hash, depth), Ok(Some(0)))
    }

    /// Adds the leaf of a hash to the sweep if it is worth its read: at least half as many names
    /// wait for it as for others. Returns its block in that case, and the first hash after it.
    fn sweep_leaf<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        hash: u32,
    ) -> (Option<ZapBlock>, Option<u32>) {
        let known = self.table.get(hash);
        let depth = known.unwrap_or(self.header.depth);
        let (low, last) = (hash & prefix_mask(depth), hash | !prefix_mask(depth));
        let next = last.checked_add(1);
        // The depth of a leaf that names wait for is known, except after an import.
        if known.is_none() || self.sweep.queue.iter().any(|(at, _)| (low..=last).contains(at)) {
            return (None, next);
        }
        let waiting = self.count_buffered(access, hash, depth).ok().flatten().unwrap_or(0) as u64;
        let share = waiting.saturating_mul(2).saturating_mul(self.leaves());
        if waiting == 0 || share < self.header.buffered.get() {
            return (None, next);
        }
        self.sweep.queue.push_back((hash, self.sweep.changes));
        (Some(ZapBlock::Leaf(leaf_id(hash, depth))), next)
    }
}
