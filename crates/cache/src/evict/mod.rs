//! The evictor. Several threads can evict at once; each has a [`Scratch`] of its own.
//!
//! A batch is taken off the cold end of one sublist under its lock and then handled without any: what is
//! popped is in nobody's way, and a block that is removed or used meanwhile shows it in its state. The
//! blocks that are to stay (marked, pinned, being written) are pushed again, all under one lock (`requeue_to.rs`); the position in a state is
//! changed in the same update, so that no block is ever in two rings by its state, or in none.
//!
//! A victim is retired by a compare-and-swap from exactly the state that was judged, without pins; so a hit
//! that comes first keeps the block, and one that comes later misses. All victims of a batch are ended together (`demote.rs`).

mod admit;
pub(crate) mod demote;
mod reclaim;
pub(crate) mod requeue;
mod sweep;

use std::collections::HashMap;
use std::ptr::NonNull;

use forebay_base::counters::Counter;
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

/// What the evictor uses again and again.
pub(crate) struct Scratch<K, V> {
    pub(crate) rng: SmallRng,
    pub(crate) taken: Vec<(u32, NonNull<Header<K, V>>)>,
    pub(crate) retired: Vec<RetiredBlock<K, V>>,
    /// Victims of mfu in contests.
    pub(crate) mfu_retired: Vec<RetiredBlock<K, V>>,
    pub(crate) requeued: Vec<Requeued<K, V>>,
    pub(crate) victims: Victims<K, V>,
    /// Weight of the uses that a batch has found.
    pub(crate) uses: u64,
    /// Old ghosts that are to be forgotten.
    pub(crate) trimmed: Vec<(u64, Ghost)>,
    pub(crate) groups: ByPartition,
    /// Headers of victims.
    pub(crate) headers: Vec<NonNull<Header<K, V>>>,
    /// Keys of what has gone in this pass, if a second level wants to know.
    pub(crate) evicted_keys: Vec<K>,
    /// Whether blocks have to be offered to the second level before they go.
    only_offered: bool,
    /// Whether a batch has come to one that was not.
    unoffered: bool,
    /// Weight freed since the reclaimer was last called to look after memory.
    since_maintenance: u64,
}

// SAFETY: between passes the vectors are empty; within one, only their owner uses them.
unsafe impl<K: Send, V: Send> Send for Scratch<K, V> {}

/// What became of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PassOutcome {
    /// Whether it freed what it was asked to.
    pub(crate) enough: bool,
    /// Bytes freed.
    pub(crate) freed: u64,
    /// Whether it ended early, since what comes next has to be offered to the second level first.
    pub(crate) unoffered: bool,
    /// Whether so much has gone that memory should be looked after.
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

/// Entries of blocks long gone that a ring may hold beside twice those of its blocks.
const COMPACT_SLACK: u64 = if cfg!(forebay_model) { 4 } else { 4096 };
/// Entries that compaction looks at before it lets go of the list's lock.
const COMPACT_STEP: usize = if cfg!(forebay_model) { 2 } else { 256 };

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Evicts until `goal` bytes are free that were not, or nothing more can go; with `only_offered` until it comes to a block that an
    /// active second level has not been offered.
    pub(crate) fn evict(&self, goal: u64, only_offered: bool) -> PassOutcome {
        let maintenance_interval_bytes = self.maintenance_interval_bytes();
        self.counters.add(CacheCounters::EVICT_PASSES, 0, 1);
        // First: a mark that should not count must not save a block.
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

    /// Something to work with, of this thread's shard if nobody has that.
    fn scratch(&self) -> MutexGuard<'_, Scratch<K, V>> {
        let shards = self.scratches.len();
        let mine = thread_slot().index(shards);
        let free = (mine..shards).chain(0..mine).find_map(|n| self.scratches[n].try_lock());
        free.unwrap_or_else(|| self.scratches[mine].lock())
    }

    /// One batch from one sublist. Returns the bytes freed.
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
        // An empty ring's blocks are just being counted out.
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

    /// A sublist that is worth a look; `None` if the list has none, which is noted.
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

    /// Takes entries off the cold end: as many as should do if they are of average weight, and none that has to be offered to
    /// the second level first.
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

    /// Decides what becomes of an entry.
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
        let (hash, owner) = (self.hash(key), key.owner());
        self.index.prefetch(hash);
        Some(RetiredBlock { header, hash, weight, owner, ghost: NO_GHOST })
    }

    /// Tells the policy of the uses that a batch has found.
    pub(crate) fn count_uses(&self, scratch: &mut Scratch<K, V>) {
        let uses = std::mem::take(&mut scratch.uses);
        if uses > 0 {
            self.policy.count_uses(uses);
        }
    }

    /// Lets the policy and the ghosts' counts know of all ghost hits so far.
    pub(crate) fn learn(&self, sizes: &Sizes) {
        let removed = |list: usize, count| self.ghosts[list].count_slots(0, count);
        self.policy.learn(&self.ghost_hits, sizes, removed);
    }

    /// Squeezes entries of blocks long gone out of the rings.
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

    /// Clears the marks of mru blocks that have left the correlated-reference window.
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

/// What a pass has looked at in vain: pins on one list must not protect the others.
#[derive(Default)]
pub(crate) struct Exhausted {
    /// Blocks of a sublist that stayed since it last gave one up. When they outnumber its blocks
    /// twice (since a mark is good for one stay), the pass is done with it.
    kept: HashMap<(List, Class, usize), u64>,
    /// Lists with all of whose sublists it is done.
    lists: Vec<(List, Class)>,
}

impl Exhausted {
    fn kept(&self, list: List, class: Class, n: usize) -> u64 {
        if self.kept.is_empty() {
            return 0;
        }
        self.kept.get(&(list, class, n)).copied().unwrap_or(0)
    }

    /// Notes the outcome of a batch: how many stayed, or zero if something went.
    pub(crate) fn note(&mut self, list: List, class: Class, n: usize, kept: u64) {
        if kept > 0 {
            *self.kept.entry((list, class, n)).or_default() += kept;
        } else if !self.kept.is_empty() {
            self.kept.remove(&(list, class, n));
        }
    }

    /// Something new has come to a sublist.
    pub(crate) fn reopen(&mut self, list: List, class: Class, n: usize) {
        self.note(list, class, n, 0);
        self.lists.retain(|l| *l != (list, class));
    }
}

/// Weights and numbers of blocks that have left a sublist.
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

/// What became of an entry.
pub(crate) enum Judged {
    /// Its block had left before.
    Gone,
    /// It is to be pushed again.
    Requeued,
    /// The same, to another list.
    Moves(List),
    /// It leaves, of this weight.
    Retired(u32),
}

/// Whether a state says that its block is at that place, and still the cache's.
pub(crate) fn is_at(state: HeaderState, list: List, class: Class, position: u32) -> bool {
    state.has(VALID)
        && state.list() == Some(list)
        && state.class() == class
        && state.position() == position
}

/// Where a block goes that is not to be evicted now, and what to count; `None` for a victim.
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
