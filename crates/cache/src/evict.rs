//! The evictor. Several threads can evict at once; each has a [`Scratch`] of its own.
//!
//! A batch is taken off the cold end of one sublist under its lock and then handled without any: what is
//! popped is in nobody's way, and a block that is removed or used meanwhile shows it in its state. A
//! block that is to stay (marked, pinned, being written) is pushed again; the position in its state is
//! changed in the same update, so that no block is ever in two rings by its state, or in none.
//!
//! A victim is retired by a compare-and-swap from exactly the state that was judged, without pins; so a hit
//! that comes first keeps the block, and one that comes later misses.

use std::collections::HashMap;
use std::ptr::NonNull;

use forebay_base::counters::Counter;
use forebay_base::rng::SmallRng;
use forebay_base::sync::{MutexGuard, thread_slot};

use crate::attributes::{Cause, Class};
use crate::counters::CacheCounters;
use crate::guard::OwnedRef;
use crate::header::{Header, List, MARK, State, VALID, WRITING};
use crate::index::{Locked, partition_of, prefetch_line};
use crate::inner::Inner;
use crate::key::{Key, OwnerId};
use crate::lists::ghosts::{Ghost, GhostList};
use crate::lists::ring::Hand;
use crate::lists::{Sublist, draw};
use crate::policy::Sizes;
use crate::second::Candidate;

/// What the evictor uses again and again.
pub(crate) struct Scratch<K, V> {
    pub(crate) rng: SmallRng,
    pub(crate) taken: Vec<(u32, NonNull<Header<K, V>>)>,
    pub(crate) victims: Vec<Victim<K, V>>,
    /// Victims of mfu in contests.
    pub(crate) demoted: Vec<Victim<K, V>>,
    ghosts: Vec<Ghost>,
    positions: Vec<u64>,
    trimmed: Vec<(u64, Ghost)>,
    headers: Vec<NonNull<Header<K, V>>>,
    /// Weight freed since the reclaimer was last called to look after memory.
    since_upkeep: u64,
}

// SAFETY: between passes the vectors are empty; within one, only their owner uses them.
unsafe impl<K: Send, V: Send> Send for Scratch<K, V> {}

pub(crate) struct Victim<K, V> {
    header: NonNull<Header<K, V>>,
    hash: u64,
    weight: u32,
}

/// What became of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passed {
    /// Whether it freed what it was asked to.
    pub(crate) enough: bool,
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
            ghosts: Vec::new(),
            positions: Vec::new(),
            trimmed: Vec::new(),
            headers: Vec::new(),
            since_upkeep: 0,
        }
    }
}

/// Entries of blocks long gone that a ring may hold beside twice those of its blocks.
const PATIENCE: u64 = if cfg!(forebay_model) { 4 } else { 4096 };
/// Entries that compaction looks at before it lets go of the list's lock.
const COMPACT_STEP: usize = if cfg!(forebay_model) { 2 } else { 256 };

impl<K: Key, V: Send + Sync + 'static> Inner<K, V> {
    /// Evicts until `goal` bytes are free that were not, or nothing more can go.
    pub(crate) fn evict(&self, goal: u64) -> Passed {
        let upkeep_every = self.upkeep_every();
        self.counters.add(CacheCounters::EVICT_PASSES, 0, 1);
        // First: a mark that should not count must not save a block.
        self.mature();
        let scratch = &mut *self.scratch();
        let mut freed = 0;
        let mut spent = Spent::default();
        while freed < goal {
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
        if freed < goal {
            self.counters.add(CacheCounters::EVICT_NOT_ENOUGH, 0, 1);
        }
        scratch.since_upkeep += freed;
        let upkeep_due = scratch.since_upkeep > upkeep_every;
        if upkeep_due {
            scratch.since_upkeep = 0;
        }
        Passed { enough: freed >= goal, upkeep_due }
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
        self.take(scratch, from.nth(n), goal);
        // An empty ring's blocks are just being counted out.
        let mut stayed = u64::from(scratch.taken.is_empty());
        let (mut freed, mut out) = (0, (0, 0));
        for i in 0..scratch.taken.len() {
            let (position, header) = scratch.taken[i];
            match self.judge(scratch, header, position, (list, class, n)) {
                Judged::Gone => {}
                Judged::Stays => stayed += 1,
                Judged::Moved(to, weight) => {
                    out = (out.0 + u64::from(weight), out.1 + 1);
                    spent.reopen(to, class, n);
                }
                Judged::Victim(weight) => {
                    out = (out.0 + u64::from(weight), out.1 + 1);
                    freed += u64::from(weight);
                }
            }
        }
        from.nth(n).count_out(out.0, out.1);
        scratch.taken.clear();
        self.bury(scratch, list, class, n);
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

    /// Takes entries off the cold end: as many as should do if they are of average weight.
    pub(crate) fn take(&self, scratch: &mut Scratch<K, V>, sublist: &Sublist, goal: u64) {
        let average = (sublist.bytes() / sublist.blocks().max(1)).max(1);
        let most = u64::from(self.tunables.evict_batch_limit()).min(goal.div_ceil(average));
        let mut ring = sublist.lock();
        while (scratch.taken.len() as u64) < most {
            let Some((position, id)) = ring.pop() else { break };
            let Some(header) = self.slab.by_id(id) else { continue };
            prefetch_line(header.as_ptr());
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
            let weight = h.weight();
            if let Some((home, row)) = stay(state, list) {
                if self.requeue(header, state, list, home, n) {
                    if let Some(row) = row {
                        self.counters.add(row, class as usize, 1);
                    }
                    return if home == list { Judged::Stays } else { Judged::Moved(home, weight) };
                }
            } else if let Some(victim) = self.retire_victim(header, state) {
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
        let hash = self.hash(unsafe { h.key() });
        self.index.prefetch(hash);
        Some(Victim { header, hash, weight })
    }

    /// Pushes a block that stays, if its state is still `state`. Its mark, if it has one, is counted as a use.
    pub(crate) fn requeue(
        &self,
        header: NonNull<Header<K, V>>,
        state: State,
        from: List,
        to: List,
        n: usize,
    ) -> bool {
        // SAFETY: headers are type-stable. Id and weight are the block's if its state is unchanged.
        let h = unsafe { header.as_ref() };
        let (id, weight, class) = (h.id(), h.weight(), state.class());
        let sublist = self.list(to, class).nth(n);
        let mut ring = sublist.lock();
        let position = sublist.stamp(ring.next_position());
        if !h.change(state, state.at(to, position).without(MARK)) {
            return false;
        }
        if state.has(MARK) {
            // Before an evictor can find it in its new place.
            h.set_frequency(h.frequency().used(self.policy.now()));
            self.policy.count_uses(u64::from(weight));
        }
        ring.push(id);
        if from != to {
            sublist.count_in(&ring, weight);
        }
        true
    }

    /// Ends the victims of a batch: a ghost takes the place of each in the index.
    pub(crate) fn bury(&self, scratch: &mut Scratch<K, V>, list: List, class: Class, n: usize) {
        if scratch.victims.is_empty() {
            return;
        }
        let remembered = list != List::Once && self.tunables.ghost_percent() > 0;
        let ghosts = GhostList { frequent: list == List::Mfu, class };
        // Neighbours share a partition and so its lock.
        scratch.victims.sort_unstable_by_key(|victim| partition_of(victim.hash));
        if remembered {
            let now = self.policy.now();
            scratch.ghosts.extend(scratch.victims.iter().map(|v| {
                // SAFETY: retired with a pin for this thread.
                Ghost::new(v.hash, v.weight, unsafe { v.header.as_ref().key() }.owner(), now)
            }));
            self.ghosts[ghosts.number()].push_all(n, &scratch.ghosts, &mut scratch.positions);
        }
        let mut made = 0;
        let mut positions = scratch.positions.iter();
        let same =
            |a: &Victim<K, V>, b: &Victim<K, V>| partition_of(a.hash) == partition_of(b.hash);
        for group in scratch.victims.chunk_by(same) {
            let mut locked = self.index.lock(group[0].hash);
            for victim in group {
                let ghost = positions.next().map(|position| (ghosts, *position));
                made += u64::from(self.replace_by_ghost(&mut locked, victim, ghost));
            }
        }
        let mut released = 0;
        for victim in &scratch.victims {
            // SAFETY: retired by this thread for room, and out of the index: nobody pins it any more.
            let state = unsafe { self.finish_victim(victim.header, |w| released += w) };
            scratch.headers.push(victim.header);
            self.freed_one(state);
        }
        self.ghosts[ghosts.number()].count_slots(made, 0);
        self.slab.give_all(&mut scratch.headers);
        let evicted = scratch.victims.len() as u64;
        self.counters.add(evicted_row(list), class as usize, evicted);
        self.counters.add(CacheCounters::LEFT, Cause::Capacity as usize, evicted);
        self.counters.add(CacheCounters::EVICTED_UNDER, self.policy.rule_number(class), evicted);
        if list == List::Mfu {
            self.counters.add(CacheCounters::DEMOTED, class as usize, evicted);
        }
        scratch.victims.clear();
        scratch.ghosts.clear();
        scratch.positions.clear();
        self.room.release_all(released);
    }

    /// True if the victim's slot is now its ghost's.
    fn replace_by_ghost(
        &self,
        locked: &mut Locked<'_>,
        victim: &Victim<K, V>,
        ghost: Option<(GhostList, u64)>,
    ) -> bool {
        let address = victim.header.addr().get();
        locked.turn_to(victim.hash);
        // If an insert of the same key has taken the slot, there is nothing to remember.
        let Some((place, _)) = locked.find_resident(|a| a == address) else { return false };
        let remembered =
            ghost.filter(|(list, position)| !self.ghosts[list.number()].is_over(*position));
        match remembered {
            Some((list, position)) => {
                // SAFETY: headers are type-stable, and this one is retired with a pin for this thread.
                let frequency = unsafe { victim.header.as_ref() }.frequency();
                let slot = locked.ghost_slot(list.number(), position);
                locked.replace(place, slot.with_uses(frequency, self.policy.now()));
                true
            }
            None => {
                locked.remove(place);
                false
            }
        }
    }

    /// Forgets the oldest ghosts of lists that remember too much.
    pub(crate) fn trim_ghosts(&self, scratch: &mut Scratch<K, V>) {
        let percent = self.tunables.ghost_percent();
        let remembered = |list: GhostList| {
            let ghosts = &self.ghosts[list.number()];
            (ghosts.remembered_bytes(), ghosts.remembered(), ghosts.age(self.policy.now()))
        };
        while let Some((list, surplus)) = self.policy.surplus_ghosts(remembered, percent) {
            let ghosts = &self.ghosts[list.number()];
            let average = ghosts.remembered_bytes() / ghosts.remembered().max(1);
            let most = (surplus / average.max(1)).clamp(1, 64) as usize;
            if let Some(n) = ghosts.draw(|all| scratch.rng.below(all)) {
                ghosts.pop(n, most, &mut scratch.trimmed);
            }
            if scratch.trimmed.is_empty() {
                // Counted, and not pushed yet.
                return;
            }
            scratch.trimmed.iter().for_each(|(_, ghost)| self.index.prefetch(ghost.hash));
            self.unlink_ghosts(list, &mut scratch.trimmed);
        }
    }

    /// Takes the slots of ghosts whose entries have left their ring out of the index.
    fn unlink_ghosts(&self, list: GhostList, entries: &mut Vec<(u64, Ghost)>) {
        let mut gone = 0;
        entries.retain(|(_, ghost)| ghost.weight > 0);
        entries.sort_unstable_by_key(|(_, ghost)| partition_of(ghost.hash));
        for group in entries.chunk_by(|a, b| partition_of(a.1.hash) == partition_of(b.1.hash)) {
            let mut locked = self.index.lock(group[0].1.hash);
            for (position, ghost) in group {
                locked.turn_to(ghost.hash);
                if let Some(place) = locked.find_ghost_at(list.number(), *position) {
                    locked.remove(place);
                    gone += 1;
                }
            }
        }
        entries.clear();
        self.ghosts[list.number()].count_slots(0, gone);
        self.counters.add(CacheCounters::GHOSTS_TRIMMED, list.class as usize, gone);
    }

    /// Forgets the ghosts for which `wanted` says yes.
    pub(crate) fn forget_ghosts(&self, wanted: impl Fn(OwnerId) -> bool) {
        for (number, ghosts) in self.ghosts.iter().enumerate() {
            let mut found = ghosts.extract(|ghost| wanted(ghost.owner()));
            self.unlink_ghosts(GhostList::from_number(number), &mut found);
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

    /// Blocks near the cold ends that the second level has not been offered yet.
    pub(crate) fn candidates(&self) -> Vec<Candidate<K, V>> {
        let mut candidates = Vec::new();
        for (list, class) in
            [List::Mru, List::Mfu].into_iter().flat_map(|l| Class::ALL.map(|c| (l, c)))
        {
            let multilist = self.list(list, class);
            let ahead = (self.tunables.offer_ahead() as usize).div_ceil(multilist.len());
            let before = candidates.len();
            for sublist in multilist.iter() {
                let mut ring = sublist.lock();
                let end = ring.tail() + ahead as u64;
                ring.pass(Hand::Offer, end, ahead, |position, id| {
                    let at = (list, class, sublist.stamp(position));
                    candidates.extend(self.candidate(id, at));
                });
            }
            let fresh = (candidates.len() - before) as u64;
            self.counters.add(CacheCounters::SECOND_OFFERED, class as usize, fresh);
        }
        candidates
    }

    fn candidate(&self, id: u32, at: (List, Class, u32)) -> Option<Candidate<K, V>> {
        let (list, class, position) = at;
        let header = self.slab.by_id(id)?;
        // SAFETY: headers are type-stable.
        let h = unsafe { header.as_ref() };
        let fits = |s: State| {
            is_at(s, list, class, position) && !s.has(WRITING) && self.may_go(s, h, list, class)
        };
        let before = h.update(|s| fits(s).then(|| s.pinned()))?;
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

/// What became of an entry.
pub(crate) enum Judged {
    /// Its block had left before.
    Gone,
    Stays,
    /// It went to another list, of this weight.
    Moved(List, u32),
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

fn evicted_row(list: List) -> Counter {
    match list {
        List::Mru => CacheCounters::EVICTED_MRU,
        List::Mfu => CacheCounters::EVICTED_MFU,
        List::Once => CacheCounters::EVICTED_ONCE,
    }
}
