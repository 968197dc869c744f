//! The contest: whether a newcomer at the cold end of mru stays, or a block of mfu.
//!
//! Newcomers are taken off mru in batches, as everywhere; a rival is taken off the cold end of one sublist of mfu, one at a time, when
//! it is needed. Both are in nobody's way from then on, as `evict.rs` says. The one that stays is pushed to the warm end
//! of mfu, the other is retired. Nothing is locked while two are compared, so that anything may happen to either meanwhile: then the
//! update of its state fails, and it is looked at again.

use std::ptr::NonNull;

use forebay_base::sync::atomic::Ordering;

use crate::attributes::Class;
use crate::counters::CacheCounters;
use crate::evict::{Judged, Scratch, Spent, is_at};
use crate::frequency::Frequency;
use crate::header::{Header, List, MARK, State, WRITING};
use crate::inner::Inner;
use crate::key::Key;
use crate::policy::FLOW;

/// Entries of mfu that are looked at to find one rival: some are pinned, or of blocks long gone.
const MOST_LOOKS: u32 = 16;

/// A block that was taken off its sublist, as it was then.
struct Taken<K, V> {
    header: NonNull<Header<K, V>>,
    state: State,
    weight: u32,
    /// Its uses, its mark included.
    uses: Frequency,
}

/// Weights and numbers of blocks that have left a sublist.
#[derive(Default)]
struct Out(u64, u64);

impl Out {
    fn add(&mut self, weight: u32) {
        self.0 += u64::from(weight);
        self.1 += 1;
    }
}

impl<K: Key, V: Send + Sync + 'static> Inner<K, V> {
    /// One batch of newcomers, of which the first may go over to mfu as long as mru has `overflow` more bytes than
    /// it may keep. Returns the bytes freed.
    pub(crate) fn contest_batch(
        &self,
        scratch: &mut Scratch<K, V>,
        spent: &mut Spent,
        class: Class,
        (goal, overflow): (u64, u64),
    ) -> u64 {
        let Some(n) = self.draw_sublist(scratch, spent, List::Mru, class) else { return 0 };
        let rivals = {
            let sublists = self.list(List::Mfu, class).iter().map(|s| s.blocks());
            let rng = &mut scratch.rng;
            crate::lists::draw(sublists, |all| rng.below(all))
        };
        let from = self.list(List::Mru, class).nth(n);
        let overflow = overflow.min(goal.saturating_mul(FLOW.into()));
        self.take(scratch, from, goal.saturating_add(overflow));
        let mut stayed = u64::from(scratch.taken.is_empty());
        let (mut freed, mut flowed) = (0, 0);
        let (mut left_mru, mut left_mfu) = (Out::default(), Out::default());
        for i in 0..scratch.taken.len() {
            let (position, header) = scratch.taken[i];
            // SAFETY: headers are type-stable.
            let weight = u64::from(unsafe { header.as_ref() }.weight());
            let flows = flowed + weight <= overflow;
            let at = (class, n, position);
            match self.judge_newcomer(scratch, header, at, flows, rivals, &mut left_mfu) {
                Judged::Gone => {}
                Judged::Stays => stayed += 1,
                Judged::Moved(to, weight) => {
                    left_mru.add(weight);
                    if flows {
                        flowed += u64::from(weight);
                    }
                    spent.reopen(to, class, n);
                }
                Judged::Victim(weight) => {
                    left_mru.add(weight);
                    freed += u64::from(weight);
                }
            }
        }
        from.count_out(left_mru.0, left_mru.1);
        freed += left_mfu.0;
        scratch.taken.clear();
        self.bury(scratch, List::Mru, class, n);
        if let Some(m) = rivals {
            self.list(List::Mfu, class).nth(m).count_out(left_mfu.0, left_mfu.1);
            std::mem::swap(&mut scratch.victims, &mut scratch.demoted);
            self.bury(scratch, List::Mfu, class, m);
        }
        spent.note(List::Mru, class, n, if freed > 0 { 0 } else { stayed });
        freed
    }

    /// Decides what becomes of a newcomer.
    fn judge_newcomer(
        &self,
        scratch: &mut Scratch<K, V>,
        header: NonNull<Header<K, V>>,
        (class, n, position): (Class, usize, u32),
        flows: bool,
        rivals: Option<usize>,
        left_mfu: &mut Out,
    ) -> Judged {
        let row = class as usize;
        let (now, rule) = (self.policy.now(), self.policy.rule(class));
        loop {
            let Some(newcomer) = self.inspect(header, (List::Mru, class, position)) else {
                self.counters.add(CacheCounters::EVICT_STALE, 0, 1);
                return Judged::Gone;
            };
            let Taken { state, weight, uses, .. } = newcomer;
            if let Some(skipped) = in_use(state) {
                if self.requeue(header, state, List::Mru, List::Mru, n) {
                    self.counters.add(skipped, row, 1);
                    return Judged::Stays;
                }
                continue;
            }
            if flows {
                if self.requeue(header, state, List::Mru, List::Mfu, n) {
                    self.counters.add(CacheCounters::OVERFLOWED, row, 1);
                    return Judged::Moved(List::Mfu, weight);
                }
                continue;
            }
            let rival = match rivals {
                Some(m) if uses.count(now) > 1 => self.rival(class, m).map(|rival| (rival, m)),
                _ => None,
            };
            let Some((rival, m)) = rival else {
                if let Some(victim) = self.retire_newcomer(&newcomer) {
                    scratch.victims.push(victim);
                    return Judged::Victim(weight);
                }
                continue;
            };
            if rule.prefers(uses, rival.uses, now) {
                if let Some(victim) = self.retire_victim(rival.header, rival.state) {
                    scratch.demoted.push(victim);
                    left_mfu.add(rival.weight);
                    self.beaten[row].store(rival.uses.count(now), Ordering::Relaxed);
                    self.counters.add(CacheCounters::CONTESTS_WON, row, 1);
                    return self.promote(header, (class, n, position));
                }
            } else if let Some(victim) = self.retire_newcomer(&newcomer) {
                scratch.victims.push(victim);
                self.counters.add(CacheCounters::CONTESTS_LOST, row, 1);
                self.put_back(&rival, m);
                return Judged::Victim(weight);
            }
            // One of them was used meanwhile, or has gone.
            self.put_back(&rival, m);
        }
    }

    /// Whether the evictor may let go of a block when it comes to it, as far as that can be told. One that stays comes by again.
    pub(crate) fn may_go(&self, state: State, h: &Header<K, V>, list: List, class: Class) -> bool {
        if !self.policy.rule(class).contest {
            return !state.has(MARK);
        }
        // A newcomer goes at once, or meets a rival, and most of them lose. A rival goes only if it is used as little as
        // those that lose.
        let uses = || h.frequency().count(self.policy.now());
        list == List::Mru
            || !state.has(MARK) && uses() <= self.beaten[class as usize].load(Ordering::Relaxed)
    }

    /// Takes the winner over to mfu, whatever has happened to it, unless it has gone.
    fn promote(&self, header: NonNull<Header<K, V>>, at: (Class, usize, u32)) -> Judged {
        let (class, n, position) = at;
        while let Some(winner) = self.inspect(header, (List::Mru, class, position)) {
            if self.requeue(header, winner.state, List::Mru, List::Mfu, n) {
                self.counters.add(CacheCounters::PROMOTED, class as usize, 1);
                return Judged::Moved(List::Mfu, winner.weight);
            }
        }
        Judged::Gone
    }

    /// A block of mfu that may go: the coldest that is not marked, or the second that is looked at.
    fn rival(&self, class: Class, m: usize) -> Option<Taken<K, V>> {
        let sublist = self.list(List::Mfu, class).nth(m);
        let mut marked_one = false;
        for _ in 0..MOST_LOOKS {
            let (position, id) = sublist.lock().pop()?;
            let Some(header) = self.slab.by_id(id) else { continue };
            let position = sublist.stamp(position);
            while let Some(taken) = self.inspect(header, (List::Mfu, class, position)) {
                let skipped = in_use(taken.state);
                let first_marked = taken.state.has(MARK) && !marked_one;
                if skipped.is_none() && !first_marked {
                    return Some(taken);
                }
                if self.requeue(header, taken.state, List::Mfu, List::Mfu, m) {
                    marked_one |= skipped.is_none();
                    if let Some(skipped) = skipped {
                        self.counters.add(skipped, class as usize, 1);
                    }
                    break;
                }
            }
        }
        None
    }

    /// Puts a rival that stays to the warm end, unless it has gone.
    fn put_back(&self, rival: &Taken<K, V>, m: usize) {
        let at = (List::Mfu, rival.state.class(), rival.state.position());
        while let Some(now) = self.inspect(rival.header, at) {
            if self.requeue(rival.header, now.state, List::Mfu, List::Mfu, m) {
                return;
            }
        }
    }

    /// What stands at an entry that was taken, if it is still there.
    fn inspect(
        &self,
        header: NonNull<Header<K, V>>,
        (list, class, position): (List, Class, u32),
    ) -> Option<Taken<K, V>> {
        // SAFETY: headers are type-stable.
        let h = unsafe { header.as_ref() };
        let state = h.state();
        if !is_at(state, list, class, position) {
            return None;
        }
        let uses = h.frequency();
        let uses = if state.has(MARK) { uses.used(self.policy.now()) } else { uses };
        Some(Taken { header, state, weight: h.weight(), uses })
    }

    /// Retires a newcomer that has lost, if it is as it was judged. Its mark, if it has one, is counted.
    fn retire_newcomer(&self, newcomer: &Taken<K, V>) -> Option<crate::evict::Victim<K, V>> {
        let victim = self.retire_victim(newcomer.header, newcomer.state)?;
        if newcomer.state.has(MARK) {
            // SAFETY: retired by this thread just now, so that nobody else changes it.
            let h = unsafe { newcomer.header.as_ref() };
            h.set_frequency(h.frequency().used(self.policy.now()));
            self.policy.count_uses(u64::from(newcomer.weight));
        }
        Some(victim)
    }
}

/// Why a block cannot go now: what to count.
fn in_use(state: State) -> Option<forebay_base::counters::Counter> {
    if state.has(WRITING) {
        return Some(CacheCounters::EVICT_SKIPPED_WRITING);
    }
    (state.pins() > 0).then_some(CacheCounters::EVICT_SKIPPED_PINNED)
}
