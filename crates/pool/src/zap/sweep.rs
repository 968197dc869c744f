//! The sweep: which leaves get their buffered names next, and how full the buffer is.
//!
//! A sweep goes over the leaves in the order of their blocks, and takes those that at least half as
//! many names wait for as for others. The number of a block is the prefix of its hashes in reverse,
//! so successive leaves lie far apart in the order of the hash. This has three effects:
//!
//! - Neighbours in the order of blocks share filter blocks and indirect blocks, which a group then
//!   writes once for many leaves, and they are written, and later read, together.
//! - A page has leaves that have just got their names, leaves that get them soon, and those
//!   between. So all pages are about equally full, and can be fuller before one of them overflows.
//! - The leaf that gets its names next has waited longest, and has twice as many as the mean.
//!
//! The leaves of a page that is nearly full do not wait for their turn. A drain goes in the order
//! of the hash instead, page by page. The sweep itself reads nothing: see [`super::rounds`].

use std::collections::{HashMap, VecDeque};

use super::OpStep;
use super::access::{LeafAccess, filter_of};
use super::buffer::{PAGE_SPAN, PageAttempt};
use super::entry::{first_position, hash_at, leaf_id, prefix_mask};
use super::fat::Fat;
use super::skips::{Skips, Unreadable};
use super::store::LeafStore;
use crate::Result;
use crate::format::{ZAP_FILTER_LEAVES, ZAP_PAGE_BYTES, ZapBlock};

/// Shares of the pages' space, in thousandths: names begin to move at the first one, and creates
/// are slowed down from the second on, so much that the third is never reached. The fuller pages
/// are, the more names move with each leaf that is read.
const MOVE_AT: u64 = 400;
const SLOW_AT: u64 = 650;
const SLOW_END: u64 = 850;
/// Pages whose leaves do not wait for their turn.
const URGENT_MAX: usize = 64;
/// A step looks at so many leaves at most to find some that names wait for.
const LOOKS_MAX: usize = 256;
/// A step passes so many blocks at most that are no leaves: their leaf covers more hashes, and has
/// another block.
const PASSED_MAX: usize = 8 * LOOKS_MAX;
/// Filter blocks, and pages, that are prefetched together when the first of them is not resident.
const WINDOW: u64 = 64;
/// Operations for each of them until they are prefetched again.
const WINDOW_AGAIN: u64 = 4;
/// After so many creates in a row for each leaf that found it in memory, names are not buffered.
const FOUND_PER_LEAF: u64 = 4;

/// Where names move next.
#[derive(Default)]
pub(super) struct Sweep {
    /// The block where it goes on.
    pub(super) next: u64,
    /// Blocks since the last leaf that names move to.
    barren: u64,
    /// The hash where a drain goes on.
    at: u32,
    /// Hashes of pages that are nearly full.
    urgent: VecDeque<u32>,
    /// Bytes of a name with its value in a page, as last seen.
    name_bytes: u32,
    /// Windows of filter blocks and pages that were prefetched.
    windows: HashMap<u64, Window>,
    /// What cannot be read for now.
    pub(super) skips: Skips,
    /// Names that were added to pages, and those of them that the last step of a drain saw.
    added: u64,
    added_seen: u64,
    /// Creates in a row that found their leaf in memory.
    found_in_row: u64,
}

impl Sweep {
    /// Whether no name was added to a page since the last call.
    pub(super) fn is_idle(&mut self) -> bool {
        let seen = std::mem::replace(&mut self.added_seen, self.added);
        seen == self.added
    }

    /// An operation missed its leaf.
    pub(super) fn note_missing_leaf(&mut self) {
        self.found_in_row = 0;
    }

    /// A create found its leaf in memory. Returns whether so many did in a row that all `leaves`
    /// are in memory, by all appearances: then a buffer only makes lookups slower.
    pub(super) fn note_found_leaf(&mut self, leaves: u64) -> bool {
        self.found_in_row = self.found_in_row.saturating_add(1);
        self.found_in_row > leaves.saturating_mul(FOUND_PER_LEAF)
    }
}

/// A window of filter blocks and pages.
struct Window {
    /// Operations before it was prefetched.
    since: u64,
    /// The number that somebody waited for, which came first.
    from: u64,
    /// Blocks that were prefetched.
    taken: usize,
}

/// Leaves whose names move together.
#[derive(Default)]
pub(super) struct SweepLeaves {
    /// A hash of each.
    pub(super) hashes: Vec<u32>,
    /// The leaves and their filter blocks.
    pub(super) blocks: Vec<ZapBlock>,
    /// For each leaf, the number of blocks up to its own.
    pub(super) ends: Vec<usize>,
    /// Number of leaves that were looked at.
    looks: usize,
    /// Number of blocks that were passed as they are no leaves.
    passed: usize,
    /// Whether the sweep has not been around since it found a leaf, so that a step that found none
    /// is repeated.
    pub(super) has_more: bool,
    /// What is read, if a step fails.
    pub(super) reading: Unreadable,
}

/// What the sweep found at a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// No leaf.
    NoLeaf,
    /// A leaf that few or no names wait for.
    Unworthy,
    /// A leaf that names will move to.
    Worthy,
}

impl Fat {
    /// The next leaves to move names to, at most `max`. Unless `drains`, enough names stay to make
    /// the next sweep worth its reads.
    pub(super) fn next_to_merge<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        (max, drains): (usize, bool),
        found: &mut SweepLeaves,
    ) -> Result<OpStep<(), S::Ticket>> {
        if self.header.buffered.get() == 0 {
            self.sweep.urgent.clear();
            return Ok(OpStep::Done(()));
        }
        while found.hashes.len() < max
            && let Some(hash) = self.sweep.urgent.front().copied()
        {
            if self.sweep.skips.end_of(hash).is_some() {
                self.sweep.urgent.pop_front();
                continue;
            }
            found.reading = self.page_at(hash);
            let (first, last) = match self.with_page_of(access, hash, |page| Ok(page.depth()))? {
                OpStep::Done(depth) => (hash & prefix_mask(depth), hash | !prefix_mask(depth)),
                OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
            };
            if let OpStep::NotResident(ticket) =
                self.sweep_range(access, (first, last), usize::MAX, found)?
            {
                return Ok(OpStep::NotResident(ticket));
            }
            self.sweep.urgent.pop_front();
        }
        if !drains {
            // Few at first, so that they take little memory, but those of a filter block together.
            let over = self.used_thousandths().saturating_sub(MOVE_AT);
            if over == 0 {
                return Ok(OpStep::Done(()));
            }
            let share = max.saturating_mul(over as usize) / (SLOW_AT - MOVE_AT) as usize;
            return self.sweep_blocks(access, max.min(share.max(ZAP_FILTER_LEAVES)), found);
        }
        // Once around at most.
        let begun = self.sweep.at;
        for (first, last) in [(begun, u32::MAX), (0, begun)] {
            if found.hashes.len() >= max || found.looks >= LOOKS_MAX {
                break;
            }
            if let OpStep::NotResident(ticket) =
                self.sweep_range(access, (first, last), max, found)?
            {
                return Ok(OpStep::NotResident(ticket));
            }
        }
        Ok(OpStep::Done(()))
    }

    /// Takes leaves that are worth their read in the order of blocks, from where the sweep is.
    fn sweep_blocks<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        max: usize,
        found: &mut SweepLeaves,
    ) -> Result<OpStep<(), S::Ticket>> {
        // The directory may have become smaller.
        let blocks = 1 << self.header.depth;
        while found.hashes.len() < max
            && found.looks < LOOKS_MAX
            && found.passed < PASSED_MAX
            && self.sweep.barren < blocks
        {
            let block = self.sweep.next % blocks;
            let hash = (block as u32).reverse_bits();
            if self.sweep.skips.end_of(hash).is_some() {
                found.passed += 1;
            } else {
                let taken = match self.take_leaf(access, hash, block, found)? {
                    OpStep::Done(taken) => taken,
                    // The block comes again when this is in memory.
                    OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
                };
                match taken {
                    Taken::NoLeaf => found.passed += 1,
                    Taken::Unworthy | Taken::Worthy => found.looks += 1,
                }
                if taken == Taken::Worthy {
                    self.sweep.barren = 0;
                }
            }
            self.sweep.barren += 1;
            self.sweep.next = block + 1;
        }
        found.has_more = self.sweep.barren < blocks;
        if !found.has_more {
            self.sweep.barren = 0;
        }
        Ok(OpStep::Done(()))
    }

    /// Takes the leaf at a block, the first one of this hash, if there is one and it is worth its
    /// read.
    fn take_leaf<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        hash: u32,
        block: u64,
        found: &mut SweepLeaves,
    ) -> Result<OpStep<Taken, S::Ticket>> {
        found.reading = self.leaf_at(hash);
        let (id, depth) = match self.locate_leaf(access, hash)? {
            OpStep::Done(leaf) => leaf,
            OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
        };
        // A leaf that covers more hashes has come before.
        if id != block {
            return Ok(OpStep::Done(Taken::NoLeaf));
        }
        found.reading = self.page_at(hash);
        let (first, last) = (hash & prefix_mask(depth), hash | !prefix_mask(depth));
        let waiting =
            match self.with_page_of(access, hash, |page| Ok(page.count_hashes(first, last)))? {
                OpStep::Done(waiting) => waiting as u64,
                OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
            };
        let is_worthy = self.add_worthy(hash, id, waiting, found);
        Ok(OpStep::Done(if is_worthy { Taken::Worthy } else { Taken::Unworthy }))
    }

    /// Adds a leaf that so many names wait for if at least half as many wait as for others. Returns
    /// whether it did.
    fn add_worthy(&self, hash: u32, id: u64, waiting: u64, found: &mut SweepLeaves) -> bool {
        let leaf = ZapBlock::Leaf(id);
        let is_worth =
            waiting.saturating_mul(2).saturating_mul(self.leaves()) >= self.header.buffered.get();
        let is_new = is_worth && waiting > 0 && !found.blocks.contains(&leaf);
        if is_new {
            found.hashes.push(hash);
            found.blocks.push(leaf);
            let filter = filter_of(id);
            if !found.blocks.contains(&filter) {
                found.blocks.push(filter);
            }
            found.ends.push(found.blocks.len());
        }
        is_new
    }

    /// Takes leaves of a range of hashes that are worth their read, in the order of the hash. Moves
    /// the drain, unless `max` has no limit.
    fn sweep_range<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        (first, last): (u32, u32),
        max: usize,
        found: &mut SweepLeaves,
    ) -> Result<OpStep<(), S::Ticket>> {
        let mut at = Some(first).filter(|_| self.header.buffered.get() > 0);
        while let Some(hash) = at.filter(|at| *at <= last)
            && found.hashes.len() < max
            && (found.looks < LOOKS_MAX || max == usize::MAX)
        {
            found.looks += 1;
            if let Some(last) = self.sweep.skips.end_of(hash) {
                at = self.sweep_on(last, max);
                continue;
            }
            found.reading = self.page_at(hash);
            let page = match self.names_of_page(access, first_position(hash), last, 1)? {
                OpStep::Done(page) => page,
                OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
            };
            let mut end = page.last;
            if let Some(name) = page.names.first() {
                let hash = hash_at(name.position);
                if let Some(last) = self.sweep.skips.end_of(hash) {
                    at = self.sweep_on(last, max);
                    continue;
                }
                found.reading = self.leaf_at(hash);
                let (id, depth) = match self.locate_leaf(access, hash)? {
                    OpStep::Done(leaf) => leaf,
                    OpStep::NotResident(ticket) => return Ok(OpStep::NotResident(ticket)),
                };
                end = hash | !prefix_mask(depth);
                let waiting = self.count_buffered(access, hash, depth)?.unwrap_or(0) as u64;
                self.add_worthy(hash, id, waiting, found);
            }
            at = self.sweep_on(end, max);
        }
        Ok(OpStep::Done(()))
    }

    /// The hash behind a range. Moves the drain there, unless `max` has no limit.
    fn sweep_on(&mut self, last: u32, max: usize) -> Option<u32> {
        let at = last.checked_add(1);
        if max != usize::MAX {
            self.sweep.at = at.unwrap_or(0);
        }
        at
    }

    /// The hashes of the page of a hash. If its depth is not known, it may have more.
    fn page_at(&self, hash: u32) -> Unreadable {
        let mask = prefix_mask(self.pages.get(hash).unwrap_or(self.header.page_depth));
        Unreadable { first: hash & mask, last: hash | !mask, is_page: true }
    }

    /// The hashes of the leaf of a hash. If its depth is not known, it may have more.
    fn leaf_at(&self, hash: u32) -> Unreadable {
        let mask = prefix_mask(self.table.get(hash).unwrap_or(self.header.depth));
        Unreadable { first: hash & mask, last: hash | !mask, is_page: false }
    }

    /// Names of the leaf of a hash do not move for a while.
    pub(super) fn skip_leaf(&mut self, hash: u32, now_ns: u64) {
        let leaf = self.leaf_at(hash);
        self.sweep.skips.add(leaf, now_ns);
    }

    /// The block and depth of the leaf of a hash, without the leaf. A leaf that is not resident and
    /// whose depth is not known is taken to be as deep as can be.
    fn locate_leaf<S: LeafStore>(
        &mut self,
        access: LeafAccess<'_, S>,
        hash: u32,
    ) -> Result<OpStep<(u64, u8), S::Ticket>> {
        if let Some(depth) = self.table.get(hash) {
            return Ok(OpStep::Done((leaf_id(hash, depth), depth)));
        }
        let deepest = self.header.depth;
        Ok(match self.with_leaf_of(access, hash, |leaf| Ok(leaf.depth()))? {
            OpStep::Done(depth) => OpStep::Done((leaf_id(hash, depth), depth)),
            OpStep::NotResident(ticket) => match (S::block_of(&ticket), S::txg_of(&ticket)) {
                (ZapBlock::Leaf(id), Some(_)) => OpStep::Done((id, deepest)),
                _ => OpStep::NotResident(ticket),
            },
        })
    }

    /// Notes how full the page is that has just got a name.
    pub(super) fn note_buffered(&mut self, hash: u32, page: &PageAttempt) {
        self.sweep.added += 1;
        self.sweep.name_bytes = (page.used_bytes / page.len.max(1)) as u32;
        let is_nearly_full = !page.splits && page.used_bytes > ZAP_PAGE_BYTES * 7 / 8;
        let first = hash & prefix_mask(page.depth);
        let urgent = &mut self.sweep.urgent;
        if is_nearly_full && urgent.len() < URGENT_MAX && !urgent.contains(&first) {
            urgent.push_back(first);
        }
    }

    /// Ends a request. The next one goes around all blocks again before it ends by itself.
    pub(super) fn end_sweep(&mut self) {
        self.sweep.barren = 0;
    }

    /// Whether names should move to their leaves.
    pub(super) fn wants_merge(&self) -> bool {
        !self.sweep.urgent.is_empty() || self.used_thousandths() > MOVE_AT
    }

    /// How much creates must be slowed down, in thousandths: 0 for not at all.
    pub(super) fn pressure(&self) -> u64 {
        let over = self.used_thousandths().saturating_sub(SLOW_AT);
        (over.saturating_mul(1000) / (SLOW_END - SLOW_AT)).min(1000)
    }

    /// The share of the pages' space that names use.
    fn used_thousandths(&self) -> u64 {
        // Pages that are few split when they are full.
        let pages = u64::from(self.header.pages.get()).max(self.leaves() >> PAGE_SPAN);
        let name_bytes = u64::from(self.sweep.name_bytes);
        if name_bytes == 0 {
            return 0;
        }
        let of_page = (ZAP_PAGE_BYTES as u64 / name_bytes).max(1);
        // Names in unreadable pages cannot move, whatever creates wait for.
        let lost = self.sweep.skips.pages().min(pages);
        let buffered = self.header.buffered.get().saturating_sub(lost * of_page);
        let capacity = (pages - lost) * of_page;
        // A forged header counts any number of names.
        buffered.saturating_mul(1000) / capacity.max(1)
    }

    /// Filter blocks and pages to prefetch with one that is not resident: a directory in use soon
    /// needs all of them. Those with its number come first, because somebody waits. Those of a
    /// window are prefetched again after some `operations` for each. So they return together if
    /// they were evicted, and those that do not fit the cache cost few reads in vain. What the
    /// device had no capacity for ([`leave_aside`](Self::leave_aside)) comes with the next of them.
    pub(super) fn aside_ahead(&mut self, at: u64, operations: u64) -> Vec<ZapBlock> {
        let filters = (1u64 << self.header.depth).div_ceil(ZAP_FILTER_LEAVES as u64);
        let pages = if self.header.pages.get() > 0 { 1u64 << self.header.page_depth } else { 0 };
        let blocks = filters.min(WINDOW) + u64::from(self.header.pages.get()).min(WINDOW);
        let new = || Window { since: operations, from: at, taken: 0 };
        let window = self.sweep.windows.entry(at / WINDOW).or_insert_with(new);
        if operations >= window.since + WINDOW_AGAIN * blocks {
            *window = new();
        }
        let (from, first) = (window.from, at / WINDOW * WINDOW);
        let numbers = (from..first + WINDOW).chain(first..from);
        let filter = |at| (at < filters).then_some(ZapBlock::Filter(at));
        let page = |at| (at < pages).then_some(ZapBlock::Page(at));
        let all = numbers.flat_map(|at| [filter(at), page(at)]).flatten();
        let left: Vec<ZapBlock> = all.skip(window.taken).collect();
        window.taken += left.len();
        left
    }

    /// The last `left` blocks of the window of a number were not prefetched.
    pub(super) fn leave_aside(&mut self, at: u64, left: usize) {
        if let Some(window) = self.sweep.windows.get_mut(&(at / WINDOW)) {
            window.taken = window.taken.saturating_sub(left);
        }
    }
}
