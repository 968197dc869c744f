//! The evictor. Several threads can evict at once; each has a [`Scratch`] of its own.
//!
//! A batch is taken off the cold end of one sublist under its lock and then handled without any: what is
//! popped is in nobody's way, and a block that is removed or used meanwhile shows it in its state. The
//! blocks that are to stay (marked, pinned, being written) are pushed again, all under one lock (`stay.rs`); the position in a state is
//! changed in the same update, so that no block is ever in two rings by its state, or in none.
//!
//! A victim is retired by a compare-and-swap from exactly the state that was judged, without pins; so a hit
//! that comes first keeps the block, and one that comes later misses. All victims of a batch are ended together (`bury.rs`).

use std::collections::HashMap;
use std::ptr::NonNull;

use forebay_base::counters::Counter;
use forebay_base::rng::SmallRng;
use forebay_base::sync::{MutexGuard, hint, thread_slot};

use crate::attributes::{Cause, Class};
use crate::bury::{ByPartition, NO_GHOST, Victim};
use crate::counters::CacheCounters;
use crate::guard::OwnedRef;
use crate::header::{Header, List, MARK, State, VALID, WRITING};
use crate::inner::Inner;
use crate::key::Key;
use crate::lists::ghosts::Ghost;
use crate::lists::ring::Hand;
use crate::lists::{Sublist, draw};
use crate::policy::Sizes;
use crate::second::Candidate;
use crate::stay::{Rivals, Staying};

/// What the evictor uses again and again.
pub(crate) struct Scratch<K, V> {
    pub(crate) rng: SmallRng,
    pub(crate) taken: Vec<(u32, NonNull<Header<K, V>>)>,
    pub(crate) victims: Vec<Victim<K, V>>,
    /// Victims of mfu in contests.
    pub(crate) demoted: Vec<Victim<K, V>>,
    pub(crate) staying: Vec<Staying<K, V>>,
    pub(crate) rivals: Rivals<K, V>,
    /// Weight of the uses that a batch has found.
    pub(crate) uses: u64,
    /// Old ghosts that are to be forgotten.
    pub(crate) trimmed: Vec<(u64, Ghost)>,
    pub(crate) groups: ByPartition,
    /// Headers of victims.
    pub(crate) headers: Vec<NonNull<Header<K, V>>>,
    /// Keys of what has gone in this pass, if a second level wants to know.
    pub(crate) gone: Vec<K>,
    /// Whether blocks have to be offered to the second level before they go.
    only_offered: bool,
    /// Whether a batch has come to one that was not.
    unoffered: bool,
    /// Weight freed since the reclaimer was last called to look after memory.
    since_upkeep: u64,
}

// SAFETY: between passes the vectors are empty; within one, only their owner uses them.
unsafe impl<K: Send, V: Send> Send for Scratch<K, V> {}

/// What became of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passed {
    /// Whether it freed what it was asked to.
    pub(crate) enough: bool,
    /// Bytes freed.
    pub(crate) freed: u64,
    /// Whether it ended early, since what comes next has to be offered to the second level first.
    pub(crate) unoffered: bool,
    /// Whether so much has gone that memory should be looked after.
    pub(crate) upkeep_due: bool,
}

impl<K, V> Scratch<K, V> {
    pub(crate) fn new(rng: SmallRng) -> Self {
        Self {
            rng,
            taken: Vec::new(),
            victims: Vec::new(),
            demoted: Vec::new(),
            staying: Vec::new(),
            rivals: Rivals::default(),
            uses: 0,
            trimmed: Vec::new(),
            groups: ByPartition::default(),
            headers: Vec::new(),
            gone: Vec::new(),
            only_offered: false,
            unoffered: false,
            since_upkeep: 0,
        }
    }
}

/// Entries of blocks long gone that a ring may hold beside twice those of its blocks.
const PATIENCE: u64 = if cfg!(forebay_model) { 4 } else { 4096 };
/// Entries that compaction looks at before it lets go of the list's lock.
const COMPACT_STEP: usize = if cfg!(forebay_model) { 2 } else { 256 };

impl<K: Key, V: Send + Sync + 'static> Inner<K, V> {
    /// Evicts until `goal` bytes are free that were not, or nothing more can go; with `only_offered` until it comes to a block that an
    /// active second level has not been offered.
    pub(crate) fn evict(&self, goal: u64, only_offered: bool) -> Passed {
        let upkeep_every = self.upkeep_every();
        self.counters.add(CacheCounters::EVICT_PASSES, 0, 1);
        // First: a mark that should not count must not save a block.
        self.mature();
        let mut locked = self.scratch();
        let scratch = &mut *locked;
        let mut freed = 0;
        let mut spent = Spent::default();
        (scratch.only_offered, scratch.unoffered) = (only_offered && self.offers(), false);
        while freed < goal && !scratch.unoffered {
            let mut sizes = self.sizes();
            self.learn(&sizes);
            spent.lists.iter().for_each(|(list, class)| sizes.hide(*list, *class));
            let Some((list, class)) = self.policy.victim(&sizes, &self.tunables) else { break };
            freed += if list == List::Mru && self.policy.rule(class).contest {
                let overflow = self.policy.overflow(class, &sizes);
                self.contest_batch(scratch, &mut spent, class, (goal - freed, overflow))
            } else {
                self.evict_batch(scratch, &mut spent, list, class, goal - freed)
            };
            self.trim_ghosts(scratch);
        }
        let unoffered = scratch.unoffered;
        if freed < goal && !unoffered {
            self.counters.add(CacheCounters::EVICT_NOT_ENOUGH, 0, 1);
        }
        scratch.since_upkeep += freed;
        let upkeep_due = scratch.since_upkeep > upkeep_every;
        if upkeep_due {
            scratch.since_upkeep = 0;
        }
        let gone = std::mem::take(&mut scratch.gone);
        drop(locked);
        self.tell_second(&gone);
        Passed { enough: freed >= goal, freed, unoffered, upkeep_due }
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
        spent: &mut Spent,
        list: List,
        class: Class,
        goal: u64,
    ) -> u64 {
        let from = self.list(list, class);
        let Some(n) = self.draw_sublist(scratch, spent, list, class) else { return 0 };
        self.take(scratch, (from.nth(n), list), goal);
        // An empty ring's blocks are just being counted out.
        let mut stayed = u64::from(scratch.taken.is_empty());
        let (mut freed, mut out) = (0, Out::default());
        for i in 0..scratch.taken.len() {
            let (position, header) = scratch.taken[i];
            match self.judge(scratch, header, position, (list, class, n)) {
                Judged::Gone => {}
                Judged::Stays => stayed += 1,
                Judged::Moves(to) => spent.reopen(to, class, n),
                Judged::Victim(weight) => {
                    out.add(weight);
                    freed += u64::from(weight);
                }
            }
        }
        scratch.taken.clear();
        out += self.push_staying(scratch, class, (list, n));
        out += self.push_staying(scratch, class, (List::Mru, n));
        self.count_uses(scratch);
        from.nth(n).count_out(out.bytes, out.blocks);
        self.bury(scratch, class, (list, n), None);
        spent.note(list, class, n, if freed > 0 { 0 } else { stayed });
        freed
    }

    /// A sublist that is worth a look; `None` if the list has none, which is noted.
    pub(crate) fn draw_sublist(
        &self,
        scratch: &mut Scratch<K, V>,
        spent: &mut Spent,
        list: List,
        class: Class,
    ) -> Option<usize> {
        let blocks = |(n, sublist): (usize, &Sublist)| {
            let blocks = sublist.blocks();
            if spent.stays(list, class, n) <= 2 * blocks { blocks } else { 0 }
        };
        let sublists = self.list(list, class).iter().enumerate().map(blocks);
        let rng = &mut scratch.rng;
        let drawn = draw(sublists, |all| rng.below(all));
        if drawn.is_none() {
            spent.lists.push((list, class));
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
            if let Some((home, count)) = stay(state, list) {
                let to = (home, n);
                scratch.staying.push(Staying { header, from: list, position, to, count });
                return if home == list { Judged::Stays } else { Judged::Moves(home) };
            }
            if let Some(victim) = self.retire_victim(header, state) {
                let weight = victim.weight;
                scratch.victims.push(victim);
                return Judged::Victim(weight);
            }
        }
    }

    /// Retires a block if its state is still `state`.
    pub(crate) fn retire_victim(
        &self,
        header: NonNull<Header<K, V>>,
        state: State,
    ) -> Option<Victim<K, V>> {
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
        Some(Victim { header, hash, weight, owner, ghost: NO_GHOST })
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
        let gone = |list: usize, count| self.ghosts[list].count_slots(0, count);
        self.policy.learn(&self.ghost_hits, sizes, gone);
    }

    /// Squeezes entries of blocks long gone out of the rings.
    pub(crate) fn compact_rings(&self) {
        for list in List::ALL {
            for class in Class::ALL {
                for sublist in self.list(list, class).iter() {
                    let wants = sublist.lock().len() > 2 * sublist.blocks() + PATIENCE;
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
                ring.pass(Hand::Mature, end, PATIENCE as usize, |position, id| {
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

    /// Blocks near the cold ends that the second level has not been offered yet: a part of those that `goal` bytes will be found among,
    /// and a few more. Not many at once: the later a block is offered, the more is known of it. While mru gives up its blocks, mfu loses one
    /// now and then, to a newcomer; most of what comes to its cold end stays, and would be in both places from then on.
    pub(crate) fn candidates(&self, goal: u64) -> Vec<Candidate<K, V>> {
        let mut candidates = Vec::new();
        let ahead = self.tunables.offer_ahead() as usize;
        if ahead == 0 {
            return candidates;
        }
        // Blocks with the hint `Once` are not offered, but while there are some they go first.
        let sizes = Sizes { once: [0; 2], ..self.sizes() };
        let giving = self.policy.victim(&sizes, &self.tunables);
        for (list, class) in
            [List::Mru, List::Mfu].into_iter().flat_map(|l| Class::ALL.map(|c| (l, c)))
        {
            let multilist = self.list(list, class);
            let ahead = ahead.div_ceil(multilist.len());
            let bytes: u64 = multilist.iter().map(|sublist| sublist.bytes()).sum();
            let before = candidates.len();
            let gives = giving == Some((list, class));
            for sublist in multilist.iter() {
                let ahead = if list == List::Mru || gives {
                    // And a quarter of its share of what goes.
                    let blocks = u128::from(sublist.blocks());
                    let share = u128::from(goal) * blocks / u128::from(bytes.max(1));
                    ahead + (share / 4).min(blocks) as usize
                } else {
                    1
                };
                let mut ring = sublist.lock();
                let end = ring.tail() + ahead as u64;
                ring.pass(Hand::Offer, end, ahead, |position, id| {
                    let at = (list, class, sublist.stamp(position));
                    candidates.extend(self.candidate(id, at, gives));
                });
            }
            let fresh = (candidates.len() - before) as u64;
            self.counters.add(CacheCounters::SECOND_OFFERED, class as usize, fresh);
        }
        candidates
    }

    /// The block at a place if it may go; `gives`: its list has to give up what it has.
    fn candidate(&self, id: u32, at: (List, Class, u32), gives: bool) -> Option<Candidate<K, V>> {
        let (list, class, position) = at;
        let header = self.slab.by_id(id)?;
        // SAFETY: headers are type-stable.
        let h = unsafe { header.as_ref() };
        let fits = |s: State| {
            let free = is_at(s, list, class, position) && !s.has(WRITING);
            free && self.may_go(s, h, (list, class), gives)
        };
        let before = self.pin_if(h, |s| fits(s).then_some(s))?;
        // SAFETY: pinned just now, from a valid state.
        let block = unsafe { OwnedRef::from_pin(self, header) };
        Some(Candidate::new(block, class, list == List::Mfu || before.has(MARK)))
    }
}

/// What a pass has looked at in vain: pins on one list must not protect the others.
#[derive(Default)]
pub(crate) struct Spent {
    /// Blocks of a sublist that stayed since it last gave one up. When they outnumber its blocks
    /// twice (since a mark is good for one stay), the pass is done with it.
    stays: HashMap<(List, Class, usize), u64>,
    /// Lists with all of whose sublists it is done.
    lists: Vec<(List, Class)>,
}

impl Spent {
    fn stays(&self, list: List, class: Class, n: usize) -> u64 {
        if self.stays.is_empty() {
            return 0;
        }
        self.stays.get(&(list, class, n)).copied().unwrap_or(0)
    }

    /// Notes the outcome of a batch: how many stayed, or zero if something went.
    pub(crate) fn note(&mut self, list: List, class: Class, n: usize, stayed: u64) {
        if stayed > 0 {
            *self.stays.entry((list, class, n)).or_default() += stayed;
        } else if !self.stays.is_empty() {
            self.stays.remove(&(list, class, n));
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
    Stays,
    /// The same, to another list.
    Moves(List),
    /// It leaves, of this weight.
    Victim(u32),
}

/// Whether a state says that its block is at that place, and still the cache's.
pub(crate) fn is_at(state: State, list: List, class: Class, position: u32) -> bool {
    state.has(VALID)
        && state.list() == Some(list)
        && state.class() == class
        && state.position() == position
}

/// Where a block goes that is not to be evicted now, and what to count; `None` for a victim.
fn stay(state: State, list: List) -> Option<(List, Option<Counter>)> {
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
