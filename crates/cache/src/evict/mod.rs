//! The evictor. Several threads can evict at once; each has its own [`Scratch`].
//!
//! 1. Pop a batch off the cold end of one sublist, under its lock.
//! 2. Judge each block without a list's lock: requeue it (`requeue`), or retire it. In MRU,
//!    admission compares candidates with victims of MFU (`admit`).
//! 3. Replace the retired blocks by ghosts and free them, together (`demote`).
//!
//! Invariants
//!
//! * By its state, a block is in exactly one ring. The position in a state changes in the same
//!   update that moves the block.
//! * A block is retired by a compare-and-swap from exactly the state that was judged, without pins.
//!   A hit that comes first keeps the block; a later one misses.
//!
//! `reclaim` decides when and how much to evict. `sweep` removes blocks by a predicate.
//!
//! Locking: `evict-scratch`, then one other lock at a time. A list or the index takes the lock of
//! its memory under its own (`ring-blocks`, `index-memory`).

mod admit;
pub(crate) mod demote;
pub(crate) mod expire;
mod reclaim;
pub(crate) mod requeue;
mod sweep;

use std::collections::HashMap;
use std::ptr::NonNull;

use forebay_base::counters::Counter;
use forebay_base::probe;
use forebay_base::rng::SmallRng;
use forebay_base::sync::{MutexGuard, hint, thread_slot};

use crate::attributes::{Cause, Class};
use crate::counters::CacheCounters;
use crate::evict::demote::{ByPartition, NO_GHOST, RetiredBlock};
use crate::evict::requeue::{Requeued, Victims};
use crate::header::{Header, HeaderState, List, MARK, VALID, WRITING};
use crate::inner::CacheInner;
use crate::key::Key;
use crate::lists::ghosts::Ghost;
use crate::lists::ring::Hand;
use crate::lists::{Sublist, draw};
use crate::policy::Sizes;

/// Vectors that a thread reuses from one eviction to the next.
pub(crate) struct Scratch<K, V> {
    pub(crate) rng: SmallRng,
    pub(crate) taken: Vec<(u32, NonNull<Header<K, V>>)>,
    pub(crate) retired: Vec<RetiredBlock<K, V>>,
    /// Blocks of MFU that admission has retired.
    pub(crate) mfu_retired: Vec<RetiredBlock<K, V>>,
    pub(crate) requeued: Vec<Requeued<K, V>>,
    pub(crate) victims: Victims<K, V>,
    /// Weight of the marks that a batch has counted as uses.
    pub(crate) uses: u64,
    /// Surplus ghosts to remove.
    pub(crate) trimmed: Vec<(u64, Ghost)>,
    pub(crate) groups: ByPartition,
    /// Headers of retired blocks.
    pub(crate) headers: Vec<NonNull<Header<K, V>>>,
    /// Keys evicted in this pass, for an active secondary cache.
    pub(crate) evicted_keys: Vec<K>,
    /// Whether blocks must be offered to the secondary cache before they are evicted.
    only_offered: bool,
    /// Whether a batch has reached a block that was not offered.
    unoffered: bool,
    /// Bytes evicted since the reclaimer was last called for maintenance.
    since_maintenance: u64,
}

// SAFETY: between passes the vectors are empty; within one, only their owner uses them.
unsafe impl<K: Send, V: Send> Send for Scratch<K, V> {}

/// The outcome of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PassOutcome {
    /// Whether it reached its goal.
    pub(crate) enough: bool,
    /// Bytes freed.
    pub(crate) freed: u64,
    /// Whether it ended early at a block that must be offered to the secondary cache first.
    pub(crate) unoffered: bool,
    /// Whether enough was evicted for maintenance to be due.
    pub(crate) maintenance_due: bool,
}

impl<K, V> Scratch<K, V> {
    pub(crate) fn new(rng: SmallRng) -> Self {
        Self {
            rng,
            taken: Vec::new(),
            retired: Vec::new(),
            mfu_retired: Vec::new(),
            requeued: Vec::new(),
            victims: Victims::default(),
            uses: 0,
            trimmed: Vec::new(),
            groups: ByPartition::default(),
            headers: Vec::new(),
            evicted_keys: Vec::new(),
            only_offered: false,
            unoffered: false,
            since_maintenance: 0,
        }
    }
}

/// Stale entries that a ring may hold beyond the number of its blocks.
const COMPACT_SLACK: u64 = if cfg!(forebay_model) { 4 } else { 4096 };
/// Entries that one step of compaction examines under the list's lock.
const COMPACT_STEP: usize = if cfg!(forebay_model) { 2 } else { 256 };

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Evicts until `goal` bytes are freed or no block can be evicted. With `only_offered`, stops
    /// at a block that was not offered to an active secondary cache.
    pub(crate) fn evict(&self, goal: u64, only_offered: bool) -> PassOutcome {
        let maintenance_interval_bytes = self.maintenance_interval_bytes();
        self.counters.add(CacheCounters::EVICT_PASSES, 0, 1);
        // First, so that a mark that should not count saves no block.
        self.mature();
        let mut locked = self.scratch();
        let scratch = &mut *locked;
        let mut freed = 0;
        let mut exhausted = Exhausted::default();
        (scratch.only_offered, scratch.unoffered) = (only_offered && self.offers(), false);
        while freed < goal && !scratch.unoffered {
            let mut sizes = self.sizes();
            self.learn(&sizes);
            exhausted.lists.iter().for_each(|(list, class)| sizes.hide(*list, *class));
            let Some((list, class)) = self.policy.next_list(&sizes, &self.tunables) else { break };
            freed += if list == List::Mru && self.policy.rule(class).admission {
                let mru_excess = self.policy.mru_excess(class, &sizes);
                self.admit_batch(scratch, &mut exhausted, class, (goal - freed, mru_excess))
            } else {
                self.evict_batch(scratch, &mut exhausted, list, class, goal - freed)
            };
            self.trim_ghosts(scratch);
        }
        let unoffered = scratch.unoffered;
        if freed < goal && !unoffered {
            self.counters.add(CacheCounters::EVICT_NOT_ENOUGH, 0, 1);
        }
        scratch.since_maintenance += freed;
        let maintenance_due = scratch.since_maintenance > maintenance_interval_bytes;
        if maintenance_due {
            scratch.since_maintenance = 0;
        }
        let evicted_keys = std::mem::take(&mut scratch.evicted_keys);
        drop(locked);
        self.notify_evicted(&evicted_keys);
        PassOutcome { enough: freed >= goal, freed, unoffered, maintenance_due }
    }

    /// A free scratch, this thread's own if possible.
    fn scratch(&self) -> MutexGuard<'_, Scratch<K, V>> {
        let shards = self.scratches.len();
        let mine = thread_slot().index(shards);
        let free = (mine..shards).chain(0..mine).find_map(|n| self.scratches[n].try_lock());
        free.unwrap_or_else(|| self.scratches[mine].lock())
    }

    /// Handles one batch from one sublist. Returns the bytes freed.
    fn evict_batch(
        &self,
        scratch: &mut Scratch<K, V>,
        exhausted: &mut Exhausted,
        list: List,
        class: Class,
        goal: u64,
    ) -> u64 {
        let from = self.list(list, class);
        let Some(n) = self.draw_sublist(scratch, exhausted, list, class) else { return 0 };
        self.take(scratch, (from.nth(n), list), goal);
        // The blocks of an empty ring are being counted out by another thread.
        let mut kept = u64::from(scratch.taken.is_empty());
        let (mut freed, mut out) = (0, Out::default());
        for i in 0..scratch.taken.len() {
            let (position, header) = scratch.taken[i];
            match self.judge(scratch, header, position, (list, class, n)) {
                Judged::Gone => {}
                Judged::Requeued => kept += 1,
                Judged::Moves(to) => exhausted.reopen(to, class, n),
                Judged::Retired(weight) => {
                    out.add(weight);
                    freed += u64::from(weight);
                }
            }
        }
        scratch.taken.clear();
        out += self.push_requeued(scratch, class, (list, n));
        out += self.push_requeued(scratch, class, (List::Mru, n));
        self.count_uses(scratch);
        from.nth(n).count_out(out.bytes, out.blocks);
        self.demote(scratch, class, (list, n), None);
        exhausted.note(list, class, n, if freed > 0 { 0 } else { kept });
        freed
    }

    /// Draws a sublist that is not exhausted. If there is none, notes that the list is exhausted.
    pub(crate) fn draw_sublist(
        &self,
        scratch: &mut Scratch<K, V>,
        exhausted: &mut Exhausted,
        list: List,
        class: Class,
    ) -> Option<usize> {
        let blocks = |(n, sublist): (usize, &Sublist)| {
            let blocks = sublist.blocks();
            if exhausted.kept(list, class, n) <= 2 * blocks { blocks } else { 0 }
        };
        let sublists = self.list(list, class).iter().enumerate().map(blocks);
        let rng = &mut scratch.rng;
        let drawn = draw(sublists, |all| rng.below(all));
        if drawn.is_none() {
            exhausted.lists.push((list, class));
        }
        drawn
    }

    /// Pops entries off the cold end: as many as reach the goal at average weight, and none that
    /// must be offered first.
    pub(crate) fn take(
        &self,
        scratch: &mut Scratch<K, V>,
        (sublist, list): (&Sublist, List),
        goal: u64,
    ) {
        let average = (sublist.bytes() / sublist.blocks().max(1)).max(1);
        let most = u64::from(self.tunables.evict_batch_limit()).min(goal.div_ceil(average));
        let offers = list != List::Once && scratch.only_offered;
        let mut ring = sublist.lock();
        let until = if offers { ring.passed(Hand::Offer) } else { u64::MAX };
        while (scratch.taken.len() as u64) < most {
            if ring.tail() >= until && !ring.is_empty() {
                scratch.unoffered = true;
                break;
            }
            let Some((position, id)) = ring.pop() else { break };
            let Some(header) = self.slab.by_id(id) else { continue };
            hint::prefetch(header.as_ptr());
            scratch.taken.push((sublist.stamp(position), header));
        }
    }

    /// Decides the outcome of one entry.
    fn judge(
        &self,
        scratch: &mut Scratch<K, V>,
        header: NonNull<Header<K, V>>,
        position: u32,
        (list, class, n): (List, Class, usize),
    ) -> Judged {
        // SAFETY: headers are type-stable.
        let h = unsafe { header.as_ref() };
        loop {
            let state = h.state();
            if !is_at(state, list, class, position) {
                self.counters.add(CacheCounters::EVICT_STALE, 0, 1);
                return Judged::Gone;
            }
            if let Some((to_list, count)) = requeue_to(state, list) {
                let to = (to_list, n);
                scratch.requeued.push(Requeued { header, from: list, position, to, count });
                return if to_list == list { Judged::Requeued } else { Judged::Moves(to_list) };
            }
            if let Some(retired) = self.try_retire(header, state) {
                let weight = retired.weight;
                scratch.retired.push(retired);
                return Judged::Retired(weight);
            }
        }
    }

    /// Retires a block if its state is still `state`.
    pub(crate) fn try_retire(
        &self,
        header: NonNull<Header<K, V>>,
        state: HeaderState,
    ) -> Option<RetiredBlock<K, V>> {
        // SAFETY: headers are type-stable. The weight is the block's if its state is unchanged.
        let h = unsafe { header.as_ref() };
        let weight = h.weight();
        if !h.change(state, state.retired(Cause::Capacity)) {
            return None;
        }
        // SAFETY: retired with a pin for this thread.
        let key = unsafe { h.key() };
        probe!(evict, std::ptr::from_ref(key), state.list_and_class(), weight);
        let (hash, owner) = (self.rehash(key), self.owner_of(key));
        self.index.prefetch(hash);
        self.record_eviction(hash, key, state, h);
        Some(RetiredBlock { header, hash, weight, owner, ghost: NO_GHOST })
    }

    /// Reports the uses that a batch has counted to the policy.
    pub(crate) fn count_uses(&self, scratch: &mut Scratch<K, V>) {
        let uses = std::mem::take(&mut scratch.uses);
        if uses > 0 {
            self.policy.count_uses(uses);
        }
    }

    /// Passes all pending ghost hits to the policy and to the ghosts' counts.
    pub(crate) fn learn(&self, sizes: &Sizes) {
        let removed = |list: usize, count| self.ghosts[list].count_slots(0, count);
        self.policy.learn(&self.ghost_hits, sizes, removed);
    }

    /// Removes stale entries from the rings.
    pub(crate) fn compact_rings(&self) {
        for list in List::ALL {
            for class in Class::ALL {
                for sublist in self.list(list, class).iter() {
                    let wants = sublist.lock().len() > 2 * sublist.blocks() + COMPACT_SLACK;
                    while wants && !self.compact_step(sublist, list, class) {}
                }
            }
        }
    }

    fn compact_step(&self, sublist: &Sublist, list: List, class: Class) -> bool {
        let done = sublist.lock().compact(COMPACT_STEP, |id, from, to| {
            let Some(header) = self.slab.by_id(id) else { return false };
            // SAFETY: headers are type-stable.
            let h = unsafe { header.as_ref() };
            let (from, to) = (sublist.stamp(from), sublist.stamp(to));
            from == to && is_at(h.state(), list, class, from)
                || h.update(|s| is_at(s, list, class, from).then(|| s.at(list, to))).is_some()
        });
        if done {
            sublist.lock().trim();
        }
        done
    }

    /// Clears the marks of MRU blocks that leave the correlated-reference window.
    pub(crate) fn mature(&self) {
        let permille = u64::from(self.tunables.correlated_window_permille());
        if permille == 0 {
            return;
        }
        for class in Class::ALL {
            for sublist in self.list(List::Mru, class).iter() {
                let mut ring = sublist.lock();
                let end = ring.next_position() - ring.len() * permille / 1000;
                ring.pass(Hand::Mature, end, COMPACT_SLACK as usize, |position, id| {
                    let Some(header) = self.slab.by_id(id) else { return };
                    let position = sublist.stamp(position);
                    // SAFETY: headers are type-stable.
                    unsafe { header.as_ref() }.update(|s| {
                        let marked = is_at(s, List::Mru, class, position) && s.has(MARK);
                        marked.then(|| s.without(MARK))
                    });
                });
            }
        }
    }
}

/// The sublists that a pass has examined in vain. Pinned blocks of one list must not protect the
/// other lists.
#[derive(Default)]
pub(crate) struct Exhausted {
    /// Blocks requeued since the sublist last gave one up. When there are more than twice its
    /// blocks, it is exhausted: a mark saves a block once.
    kept: HashMap<(List, Class, usize), u64>,
    /// Lists whose sublists are all exhausted.
    lists: Vec<(List, Class)>,
}

impl Exhausted {
    fn kept(&self, list: List, class: Class, n: usize) -> u64 {
        if self.kept.is_empty() {
            return 0;
        }
        self.kept.get(&(list, class, n)).copied().unwrap_or(0)
    }

    /// Notes the outcome of a batch: the number of requeued blocks, or zero if it freed any.
    pub(crate) fn note(&mut self, list: List, class: Class, n: usize, kept: u64) {
        if kept > 0 {
            *self.kept.entry((list, class, n)).or_default() += kept;
        } else if !self.kept.is_empty() {
            self.kept.remove(&(list, class, n));
        }
    }

    /// A block was added to the sublist.
    pub(crate) fn reopen(&mut self, list: List, class: Class, n: usize) {
        self.note(list, class, n, 0);
        self.lists.retain(|l| *l != (list, class));
    }
}

/// Weight and number of blocks that left a sublist.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Out {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

impl Out {
    pub(crate) fn add(&mut self, weight: u32) {
        self.bytes += u64::from(weight);
        self.blocks += 1;
    }
}

impl std::ops::AddAssign for Out {
    fn add_assign(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.blocks += more.blocks;
    }
}

/// The outcome of one ring entry.
pub(crate) enum Judged {
    /// Stale: its block had left before.
    Gone,
    /// To be requeued in the same list.
    Requeued,
    /// To be requeued in another list.
    Moves(List),
    /// Retired; its weight in bytes.
    Retired(u32),
}

/// Whether the state is valid and names this position.
pub(crate) fn is_at(state: HeaderState, list: List, class: Class, position: u32) -> bool {
    state.has(VALID)
        && state.list() == Some(list)
        && state.class() == class
        && state.position() == position
}

/// The list in which a block is requeued and what to count; `None` to evict it.
fn requeue_to(state: HeaderState, list: List) -> Option<(List, Option<Counter>)> {
    if state.has(WRITING) {
        return Some((list, Some(CacheCounters::EVICT_SKIPPED_WRITING)));
    }
    if state.has(MARK) {
        return Some(match list {
            List::Once => (List::Mru, Some(CacheCounters::PROMOTED)),
            List::Mru | List::Mfu => (list, None),
        });
    }
    (state.pins() > 0).then_some((list, Some(CacheCounters::EVICT_SKIPPED_PINNED)))
}

pub(crate) fn evicted_row(list: List) -> Counter {
    match list {
        List::Mru => CacheCounters::EVICTED_MRU,
        List::Mfu => CacheCounters::EVICTED_MFU,
        List::Once => CacheCounters::EVICTED_ONCE,
    }
}
