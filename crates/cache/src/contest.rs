//! The contest: whether a newcomer at the cold end of mru stays, or a block of mfu.
//!
//! Newcomers are taken off mru in batches, as everywhere; rivals are read from the cold end of one sublist of mfu as they
//! are needed, and taken off together at the end (`stay.rs`). Both are in nobody's way from then on, as `evict.rs` says. The one that stays is pushed to the warm end
//! of mfu, when the batch ends; the other is retired. Nothing is locked while two are compared, so that anything may happen to either meanwhile: then the
//! update of its state fails, and it is looked at again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use forebay_base::counters::Counter;
use forebay_base::sync::atomic::Ordering;

use crate::attributes::Class;
use crate::bury::Victim;
use crate::counters::CacheCounters;
use crate::evict::{Judged, Out, Scratch, Spent, is_at};
use crate::frequency::Frequency;
use crate::guard::OwnedRef;
use crate::header::{Header, List, MARK, State, WRITING};
use crate::inner::Inner;
use crate::key::Key;
use crate::policy::FLOW;
use crate::stay::Staying;

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

/// What has left the sublists of a contest.
#[derive(Default)]
struct Contested {
    /// Victims.
    mru: Out,
    mfu: Out,
    /// What has gone over from mru to mfu.
    moved: Out,
}

impl<K, V> Taken<K, V> {
    /// A rival that stays, in the `m`th sublist of mfu.
    fn staying(&self, m: usize, count: Option<Counter>) -> Staying<K, V> {
        let (header, position) = (self.header, self.state.position());
        Staying { header, from: List::Mfu, position, to: (List::Mfu, m), count }
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
        self.take(scratch, (from, List::Mru), goal.saturating_add(overflow));
        let mut stayed = u64::from(scratch.taken.is_empty());
        let mut flowed = 0;
        let mut out = Contested::default();
        for i in 0..scratch.taken.len() {
            let (position, header) = scratch.taken[i];
            // SAFETY: headers are type-stable.
            let weight = u64::from(unsafe { header.as_ref() }.weight());
            let flows = flowed + weight <= overflow;
            let at = (class, n, position);
            match self.judge_newcomer(scratch, header, at, flows, rivals, &mut out) {
                Judged::Gone => {}
                Judged::Stays => stayed += 1,
                Judged::Moves(to) => {
                    if flows {
                        flowed += weight;
                    }
                    spent.reopen(to, class, n);
                }
                Judged::Victim(weight) => out.mru.add(weight),
            }
        }
        let freed = out.mru.bytes + out.mfu.bytes;
        scratch.taken.clear();
        if let Some(m) = rivals {
            out.moved += self.leave_rivals(scratch, class, m, 0);
            self.list(List::Mfu, class).nth(m).count_out(out.mfu.bytes, out.mfu.blocks);
        }
        out.moved += self.push_staying(scratch, class, (List::Mfu, n));
        self.push_staying(scratch, class, (List::Mru, n));
        self.count_uses(scratch);
        out.moved += out.mru;
        from.count_out(out.moved.bytes, out.moved.blocks);
        self.bury(scratch, class, (List::Mru, n), rivals);
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
        out: &mut Contested,
    ) -> Judged {
        let row = class as usize;
        let (now, rule) = (self.policy.now(), self.policy.rule(class));
        loop {
            let Some(newcomer) = self.inspect(header, (List::Mru, class, position)) else {
                self.counters.add(CacheCounters::EVICT_STALE, 0, 1);
                return Judged::Gone;
            };
            let Taken { state, weight, uses, .. } = newcomer;
            let mut keep = |to: List, count: Counter| {
                let (from, to) = (List::Mru, (to, n));
                scratch.staying.push(Staying { header, from, position, to, count: Some(count) });
            };
            if let Some(skipped) = in_use(state) {
                keep(List::Mru, skipped);
                return Judged::Stays;
            }
            if flows {
                keep(List::Mfu, CacheCounters::OVERFLOWED);
                return Judged::Moves(List::Mfu);
            }
            let rival = match rivals {
                Some(m) if uses.count(now) > 1 => {
                    self.rival(scratch, class, m, out).map(|rival| (rival, m))
                }
                _ => None,
            };
            let Some((rival, m)) = rival else {
                if let Some(victim) = self.retire_newcomer(scratch, &newcomer) {
                    scratch.victims.push(victim);
                    return Judged::Victim(weight);
                }
                continue;
            };
            let preferred = rule.prefers(uses, rival.uses, now)
                && !(rule.is_narrow(uses, rival.uses, now) && self.would_be_written(&rival, class));
            if preferred {
                if let Some(victim) = self.retire_victim(rival.header, rival.state) {
                    scratch.demoted.push(victim);
                    out.mfu.add(rival.weight);
                    self.beaten[row].store(rival.uses.count(now), Ordering::Relaxed);
                    self.counters.add(CacheCounters::CONTESTS_WON, row, 1);
                    let (from, to) = (List::Mru, (List::Mfu, n));
                    let count = Some(CacheCounters::PROMOTED);
                    scratch.staying.push(Staying { header, from, position, to, count });
                    return Judged::Moves(List::Mfu);
                }
            } else if let Some(victim) = self.retire_newcomer(scratch, &newcomer) {
                scratch.victims.push(victim);
                self.counters.add(CacheCounters::CONTESTS_LOST, row, 1);
                scratch.staying.push(rival.staying(m, None));
                return Judged::Victim(weight);
            }
            // One of them was used meanwhile, or has gone.
            scratch.staying.push(rival.staying(m, None));
        }
    }

    /// Whether the second level would write the block if it went. If the one that stays in its stead is there already, it is in both
    /// places from then on, and the other one takes a place as well: that is not worth a difference that may be chance.
    fn would_be_written(&self, rival: &Taken<K, V>, class: Class) -> bool {
        let Some(second) = self.active_second() else { return false };
        // SAFETY: headers are type-stable.
        let h = unsafe { rival.header.as_ref() };
        // A key is read under a pin.
        let Some(_) = self.pin_if(h, |s| (s == rival.state).then_some(s)) else { return false };
        // SAFETY: pinned just now, from a valid state.
        let block = unsafe { OwnedRef::from_pin(self, rival.header) };
        let asked = catch_unwind(AssertUnwindSafe(|| second.would_write(block.key(), class)));
        asked.unwrap_or_else(|_| {
            self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
            false
        })
    }

    /// Whether the evictor may let go of a block when it comes to it, as far as that can be told. One that stays comes by again.
    /// `gives`: its list has to give up what it has.
    pub(crate) fn may_go(
        &self,
        state: State,
        h: &Header<K, V>,
        (list, class): (List, Class),
        gives: bool,
    ) -> bool {
        let contest = self.policy.rule(class).contest;
        match list {
            // It goes at once, or meets a rival, and most of them lose.
            List::Mru if contest => true,
            // A rival goes only if it is used as little as those that lose.
            List::Mfu if contest && !gives => {
                let uses = h.frequency().count(self.policy.now());
                !state.has(MARK) && uses <= self.beaten[class as usize].load(Ordering::Relaxed)
            }
            _ => !state.has(MARK),
        }
    }

    /// A block of mfu that may go: the coldest that is not marked, or the second that is looked at.
    fn rival(
        &self,
        scratch: &mut Scratch<K, V>,
        class: Class,
        m: usize,
        out: &mut Contested,
    ) -> Option<Taken<K, V>> {
        let mut marked_one = false;
        for _ in 0..MOST_LOOKS {
            let wanted = scratch.taken.len();
            let (position, header) =
                self.next_rival(scratch, class, (m, wanted), &mut out.moved)?;
            let Some(taken) = self.inspect(header, (List::Mfu, class, position)) else { continue };
            let skipped = in_use(taken.state);
            if skipped.is_none() && (marked_one || !taken.state.has(MARK)) {
                return Some(taken);
            }
            marked_one |= skipped.is_none();
            scratch.staying.push(taken.staying(m, skipped));
        }
        None
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
    fn retire_newcomer(
        &self,
        scratch: &mut Scratch<K, V>,
        newcomer: &Taken<K, V>,
    ) -> Option<Victim<K, V>> {
        let victim = self.retire_victim(newcomer.header, newcomer.state)?;
        if newcomer.state.has(MARK) {
            // SAFETY: retired by this thread just now, so that nobody else changes it.
            let h = unsafe { newcomer.header.as_ref() };
            h.set_frequency(h.frequency().used(self.policy.now()));
            scratch.uses += u64::from(newcomer.weight);
        }
        Some(victim)
    }
}

/// Why a block cannot go now: what to count.
fn in_use(state: State) -> Option<Counter> {
    if state.has(WRITING) {
        return Some(CacheCounters::EVICT_SKIPPED_WRITING);
    }
    (state.pins() > 0).then_some(CacheCounters::EVICT_SKIPPED_PINNED)
}
