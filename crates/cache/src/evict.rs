//! The evictor: one pass at a time, by whoever holds the `reclaim` lock.
//!
//! A batch is taken off the cold end of one sublist under its lock and then handled without any: what is
//! popped is in nobody's way, and a block that is removed or used meanwhile shows it in its state. A
//! block that is to stay (marked, pinned, being written) is pushed again; the position in its state is
//! changed in the same update, so that no block is ever in two rings by its state, or in none.
//!
//! A victim is retired by a compare-and-swap from exactly the state that was judged, without pins; so a hit
//! that comes first keeps the block, and one that comes later misses.

use std::ptr::NonNull;

use forebay_base::counters::Counter;
use forebay_base::rng::SmallRng;
use forebay_base::sync::MutexGuard;

use crate::attributes::{Cause, Class};
use crate::counters::CacheCounters;
use crate::guard::OwnedRef;
use crate::header::{Header, List, MARK, ON_SECOND, State, VALID, WRITING};
use crate::index::line::GHOST_POSITION;
use crate::index::prefetch_line;
use crate::inner::Inner;
use crate::key::{Key, OwnerId};
use crate::lists::Sublist;
use crate::lists::ghosts::{Ghost, GhostList};
use crate::lists::ring::Hand;
use crate::second::Candidate;

/// What the evictor uses again and again.
pub(crate) struct Scratch<K, V> {
    rng: SmallRng,
    taken: Vec<(u32, NonNull<Header<K, V>>)>,
    victims: Vec<Victim<K, V>>,
    ghosts: Vec<Ghost>,
    positions: Vec<u64>,
    trimmed: Vec<(u64, Ghost)>,
    headers: Vec<NonNull<Header<K, V>>>,
}

// SAFETY: between passes the vectors are empty; within one, only their owner uses them.
unsafe impl<K: Send, V: Send> Send for Scratch<K, V> {}

struct Victim<K, V> {
    header: NonNull<Header<K, V>>,
    hash: u64,
    weight: u32,
}

/// What became of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passed {
    /// Whether it freed what it was asked to.
    pub(crate) enough: bool,
}

impl<K, V> Scratch<K, V> {
    pub(crate) fn new(rng: SmallRng) -> Self {
        Self {
            rng,
            taken: Vec::new(),
            victims: Vec::new(),
            ghosts: Vec::new(),
            positions: Vec::new(),
            trimmed: Vec::new(),
            headers: Vec::new(),
        }
    }
}

/// Fruitless entries that a pass looks at before it gives up, beyond twice the blocks there are.
const PATIENCE: u64 = 4096;

impl<K: Key, V: Send + Sync + 'static> Inner<K, V> {
    /// Evicts until `goal` bytes are free that were not, or nothing more can go.
    pub(crate) fn evict(&self, scratch: &mut MutexGuard<'_, Scratch<K, V>>, goal: u64) -> Passed {
        self.counters.add(CacheCounters::EVICT_PASSES, 0, 1);
        let blocks: u64 = self.resident.iter().flatten().map(|list| list.blocks()).sum();
        let mut patience = 2 * blocks + PATIENCE;
        let mut freed = 0;
        while freed < goal {
            let sizes = self.sizes();
            let Some((list, class)) = self.policy.victim(&sizes, &self.tunables) else { break };
            let (looked_at, gained) = self.evict_batch(scratch, list, class, goal - freed);
            freed += gained;
            self.trim_ghosts(scratch);
            patience = patience.saturating_sub(looked_at.max(1));
            if patience == 0 {
                break;
            }
        }
        if freed < goal {
            self.counters.add(CacheCounters::EVICT_NOT_ENOUGH, 0, 1);
        }
        Passed { enough: freed >= goal }
    }

    /// One batch from one sublist. Returns entries looked at and bytes freed.
    fn evict_batch(
        &self,
        scratch: &mut Scratch<K, V>,
        list: List,
        class: Class,
        goal: u64,
    ) -> (u64, u64) {
        let from = self.list(list, class);
        let has_blocks = |n: usize| from.nth(n).blocks() > 0;
        let Some(n) = pick(from.len(), &mut scratch.rng, has_blocks) else {
            // Blocks that are just being counted out.
            return (1, 0);
        };
        self.take(scratch, from.nth(n), goal);
        let looked_at = scratch.taken.len() as u64;
        let mut freed = 0;
        for i in 0..scratch.taken.len() {
            let (position, header) = scratch.taken[i];
            let spare = freed >= goal;
            freed += self.judge(scratch, header, position, Source { list, class, n, spare });
        }
        scratch.taken.clear();
        self.bury(scratch, list, class);
        (looked_at.max(1), freed)
    }

    /// Takes entries off the cold end: as many as should do.
    fn take(&self, scratch: &mut Scratch<K, V>, sublist: &Sublist, goal: u64) {
        let most = self.tunables.evict_batch_limit() as usize;
        let mut ring = sublist.lock();
        let mut expected = 0;
        while scratch.taken.len() < most && expected < goal {
            let Some((position, id)) = ring.pop() else { break };
            let Some(header) = self.slab.by_id(id) else { continue };
            prefetch_line(header.as_ptr());
            // SAFETY: headers are type-stable. The weight is a guess, since the entry may be
            // outdated; it keeps small caches from taking more than they need.
            expected += u64::from(unsafe { header.as_ref() }.weight().max(1));
            scratch.taken.push((sublist.stamp(position), header));
        }
    }

    /// Decides what becomes of an entry. Returns the bytes freed.
    fn judge(
        &self,
        scratch: &mut Scratch<K, V>,
        header: NonNull<Header<K, V>>,
        position: u32,
        source: Source,
    ) -> u64 {
        let Source { list, class, n, spare } = source;
        // SAFETY: headers are type-stable.
        let h = unsafe { header.as_ref() };
        loop {
            let state = h.state();
            if !is_at(state, list, class, position) {
                self.counters.add(CacheCounters::EVICT_STALE, 0, 1);
                return 0;
            }
            let verdict = if spare { Some((list, None)) } else { stay(state, list) };
            let weight = h.weight();
            if let Some((home, row)) = verdict {
                if self.requeue(header, state, list, home, n) {
                    if let Some(row) = row {
                        self.counters.add(row, class as usize, 1);
                    }
                    return 0;
                }
            } else if h.change(state, state.retired(Cause::Capacity)) {
                // SAFETY: retired with a pin for this thread.
                let hash = self.hash(unsafe { h.key() });
                self.list(list, class).nth(n).count_out(weight);
                self.index.prefetch(hash);
                scratch.victims.push(Victim { header, hash, weight });
                return u64::from(weight);
            }
        }
    }

    /// Pushes a block that stays, if its state is still `state`.
    fn requeue(
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
        ring.push(id);
        drop(ring);
        if from != to {
            self.list(from, class).nth(n).count_out(weight);
            sublist.count_in(weight);
        }
        true
    }

    /// Ends the victims of a batch: a ghost takes the place of each in the index.
    fn bury(&self, scratch: &mut Scratch<K, V>, list: List, class: Class) {
        let remembered = list != List::Once && self.tunables.ghost_percent() > 0;
        let ghosts = GhostList { frequent: list == List::Mfu, class };
        if remembered {
            scratch.ghosts.extend(scratch.victims.iter().map(|v| {
                // SAFETY: retired with a pin for this thread.
                Ghost::new(v.hash, v.weight, unsafe { v.header.as_ref().key() }.owner())
            }));
            self.ghosts[ghosts.number()].push_all(&scratch.ghosts, &mut scratch.positions);
        }
        let mut released = 0;
        for (i, victim) in scratch.victims.iter().enumerate() {
            let ghost = scratch.positions.get(i).map(|position| (ghosts, *position));
            self.replace_by_ghost(victim, ghost);
            // SAFETY: retired with a pin for this thread.
            if unsafe { victim.header.as_ref() }.unpin() {
                // SAFETY: the last pin has gone.
                let (state, key, value) = unsafe { victim.header.as_ref().vacate() };
                self.dispose(key, value, state, u64::from(victim.weight), |w| released += w);
                scratch.headers.push(victim.header);
            }
        }
        self.slab.give_back(&scratch.headers);
        let evicted = scratch.victims.len() as u64;
        self.counters.add(evicted_row(list), class as usize, evicted);
        self.counters.add(CacheCounters::LEFT, Cause::Capacity as usize, evicted);
        if list == List::Mfu {
            self.counters.add(CacheCounters::DEMOTED, class as usize, evicted);
        }
        scratch.victims.clear();
        scratch.ghosts.clear();
        scratch.positions.clear();
        scratch.headers.clear();
        self.room.release_all(released);
    }

    fn replace_by_ghost(&self, victim: &Victim<K, V>, ghost: Option<(GhostList, u64)>) {
        let address = victim.header.addr().get();
        let mut locked = self.index.lock(victim.hash);
        let found = locked.find_resident(|a| a == address);
        match (found, ghost) {
            (Some((place, _)), Some((list, position))) => {
                let slot = locked.ghost_slot(list.number(), position);
                locked.replace(place, slot);
            }
            (Some((place, _)), None) => locked.remove(place),
            // An insert of the same key took the slot: nothing to remember.
            (None, Some((list, position))) => {
                drop(locked);
                self.ghosts[list.number()].kill(victim.hash, position & GHOST_POSITION);
            }
            (None, None) => {}
        }
    }

    /// Forgets the oldest ghosts of lists that remember too much.
    pub(crate) fn trim_ghosts(&self, scratch: &mut Scratch<K, V>) {
        let percent = self.tunables.ghost_percent();
        while let Some((list, surplus)) = self.policy.surplus_ghosts(&self.sizes(), percent) {
            let ghosts = &self.ghosts[list.number()];
            let average = ghosts.bytes() / ghosts.count().max(1);
            let most = (surplus / average.max(1)).clamp(1, 64) as usize;
            let start = scratch.rng.below(ghosts.sublists() as u64) as usize;
            for n in (start..ghosts.sublists()).chain(0..start) {
                ghosts.pop(n, most, &mut scratch.trimmed);
                if !scratch.trimmed.is_empty() {
                    break;
                }
            }
            if scratch.trimmed.is_empty() {
                // Counted, but hit by somebody at this moment.
                return;
            }
            self.forget_trimmed(scratch, list);
        }
    }

    /// Takes the slots of ghosts that were popped out of the index.
    fn forget_trimmed(&self, scratch: &mut Scratch<K, V>, list: GhostList) {
        let count = scratch.trimmed.len() as u64;
        self.counters.add(CacheCounters::GHOSTS_TRIMMED, list.class as usize, count);
        scratch.trimmed.iter().for_each(|(_, ghost)| self.index.prefetch(ghost.hash));
        for (position, ghost) in scratch.trimmed.drain(..) {
            self.unlink_ghost(ghost.hash, list, position);
        }
    }

    fn unlink_ghost(&self, hash: u64, list: GhostList, position: u64) {
        let mut locked = self.index.lock(hash);
        if let Some(place) = locked.find_ghost_at(list.number(), position) {
            locked.remove(place);
        }
    }

    /// Forgets the ghosts for which `wanted` says yes.
    pub(crate) fn forget_ghosts(&self, wanted: impl Fn(OwnerId) -> bool) {
        let _reclaim = self.reclaim.lock();
        for (number, ghosts) in self.ghosts.iter().enumerate() {
            let mut found = Vec::new();
            ghosts.collect(|ghost| wanted(ghost.owner()), &mut found);
            for (position, ghost) in found {
                if ghosts.kill(ghost.hash, position & GHOST_POSITION).is_some() {
                    self.unlink_ghost(ghost.hash, GhostList::from_number(number), position);
                }
            }
            ghosts.trim();
        }
    }

    /// Keeps the memory of ghost rings in proportion to their ghosts.
    pub(crate) fn thin_ghosts(&self, scratch: &mut Scratch<K, V>) {
        for (number, ghosts) in self.ghosts.iter().enumerate() {
            for n in 0..ghosts.sublists() {
                while ghosts.is_sparse(n) {
                    ghosts.pop(n, 64, &mut scratch.trimmed);
                    self.forget_trimmed(scratch, GhostList::from_number(number));
                }
            }
        }
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
        let done = sublist.lock().compact(256, |id, from, to| {
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
            for sublist in multilist.iter() {
                let mut ring = sublist.lock();
                let end = ring.tail() + ahead as u64;
                ring.pass(Hand::Offer, end, ahead, |position, id| {
                    let at = (list, class, sublist.stamp(position));
                    candidates.extend(self.candidate(id, at));
                });
            }
            let fresh = candidates.iter().filter(|c| c.class == class).count() as u64;
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
            is_at(s, list, class, position) && s.has(VALID) && !s.has(WRITING) && !s.has(ON_SECOND)
        };
        let before = h.update(|s| fits(s).then(|| s.pinned()))?;
        // SAFETY: pinned just now, from a valid state.
        let block = unsafe { OwnedRef::from_pin(self, header) };
        Some(Candidate::new(block, class, list == List::Mfu || before.has(MARK)))
    }
}

/// Where an entry was taken from.
#[derive(Clone, Copy)]
struct Source {
    list: List,
    class: Class,
    /// The sublist.
    n: usize,
    /// Enough has been freed already: the entry is put back.
    spare: bool,
}

/// Whether a state says that its block is at that place, and still the cache's.
fn is_at(state: State, list: List, class: Class, position: u32) -> bool {
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
            List::Mru => (List::Mfu, Some(CacheCounters::PROMOTED)),
            List::Once => (List::Mru, Some(CacheCounters::PROMOTED)),
            List::Mfu => (List::Mfu, None),
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

/// A random one of `count` for which `wanted` says yes.
fn pick(count: usize, rng: &mut SmallRng, wanted: impl Fn(usize) -> bool) -> Option<usize> {
    let start = rng.below(count as u64) as usize;
    (start..count).chain(0..start).find(|n| wanted(*n))
}
