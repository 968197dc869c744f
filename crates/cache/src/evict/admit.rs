//! The evictor's side of admission: a batch of candidates from MRU, each compared with a victim of
//! MFU.
//!
//! `policy::admission` compares the two. Here is the rest of the decision: a candidate with one use
//! goes, a lead by one use does not count if the secondary cache would have to write the victim,
//! and blocks beyond MRU's share move to MFU uncompared. The block that stays is requeued at the
//! warm end of MFU when the batch ends; the other is retired. Without a usable victim, the
//! candidate is retired, whatever its uses. Candidates are popped in one batch. Victims are read
//! from the cold end of one MFU sublist, some at a time; once examined, they are popped together
//! before more are read, and at the end (`requeue`).
//!
//! No list is locked during a comparison. If one of the two blocks is used or removed meanwhile,
//! the update of its state fails, and the candidate is examined again.
//!
//! Locking: under `evict-scratch`, `sublist`, one at a time: to take the candidates, between
//! comparisons to read more victims, at the end to requeue.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use forebay_base::counters::Counter;
use forebay_base::sync::atomic::Ordering;

use crate::attributes::Class;
use crate::counters::CacheCounters;
use crate::evict::demote::RetiredBlock;
use crate::evict::requeue::Requeued;
use crate::evict::{Exhausted, Judged, Out, Scratch, is_at};
use crate::frequency::Frequency;
use crate::guard::OwnedRef;
use crate::header::{Header, HeaderState, List, MARK, WRITING};
use crate::inner::CacheInner;
use crate::key::Key;
use crate::policy::admission::MOVES_PER_CANDIDATE;

/// MFU entries examined to find one victim. Some are pinned or stale.
const MAX_EXAMINED: u32 = 16;

/// A block whose ring entry was taken, with its state at that time.
struct Inspected<K, V> {
    header: NonNull<Header<K, V>>,
    state: HeaderState,
    weight: u32,
    /// Uses, including an uncounted mark.
    uses: Frequency,
}

/// Blocks that left the sublists of a batch.
#[derive(Default)]
struct AdmissionSums {
    /// Retired from MRU.
    mru: Out,
    mfu: Out,
    /// All that left MRU, to MFU or for good.
    moved: Out,
}

impl<K, V> Inspected<K, V> {
    /// Requeues a victim that stays, in the `m`th MFU sublist.
    fn requeued(&self, m: usize, count: Option<Counter>) -> Requeued<K, V> {
        let (header, position) = (self.header, self.state.position());
        Requeued { header, from: List::Mfu, position, to: (List::Mfu, m), count }
    }
}

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Handles one batch of candidates. The first may move to MFU without admission, up to
    /// `mru_excess` bytes. Returns the bytes freed.
    pub(crate) fn admit_batch(
        &self,
        scratch: &mut Scratch<K, V>,
        exhausted: &mut Exhausted,
        class: Class,
        (goal, mru_excess): (u64, u64),
    ) -> u64 {
        let Some(n) = self.draw_sublist(scratch, exhausted, List::Mru, class) else { return 0 };
        let victim_sublist = {
            let sublists = self.list(List::Mfu, class).iter().map(|s| s.blocks());
            let rng = &mut scratch.rng;
            crate::lists::draw(sublists, |all| rng.below(all))
        };
        let from = self.list(List::Mru, class).nth(n);
        let mru_excess = mru_excess.min(goal.saturating_mul(MOVES_PER_CANDIDATE.into()));
        self.take(scratch, (from, List::Mru), goal.saturating_add(mru_excess));
        let mut kept = u64::from(scratch.taken.is_empty());
        let mut rebalanced = 0;
        let mut out = AdmissionSums::default();
        for i in 0..scratch.taken.len() {
            let (position, header) = scratch.taken[i];
            // SAFETY: headers are type-stable.
            let weight = u64::from(unsafe { header.as_ref() }.weight());
            let rebalances = rebalanced + weight <= mru_excess;
            let at = (class, n, position);
            match self.judge_candidate(scratch, header, at, rebalances, victim_sublist, &mut out) {
                Judged::Gone => {}
                Judged::Requeued => kept += 1,
                Judged::Moves(to) => {
                    if rebalances {
                        rebalanced += weight;
                    }
                    exhausted.reopen(to, class, n);
                }
                Judged::Retired(weight) => out.mru.add(weight),
            }
        }
        let freed = out.mru.bytes + out.mfu.bytes;
        scratch.taken.clear();
        if let Some(m) = victim_sublist {
            out.moved += self.advance_victims(scratch, class, m, 0);
            self.list(List::Mfu, class).nth(m).count_out(out.mfu.bytes, out.mfu.blocks);
        }
        out.moved += self.push_requeued(scratch, class, (List::Mfu, n));
        self.push_requeued(scratch, class, (List::Mru, n));
        self.count_uses(scratch);
        out.moved += out.mru;
        from.count_out(out.moved.bytes, out.moved.blocks);
        self.demote(scratch, class, (List::Mru, n), victim_sublist);
        exhausted.note(List::Mru, class, n, if freed > 0 { 0 } else { kept });
        freed
    }

    /// Decides the outcome of one candidate.
    fn judge_candidate(
        &self,
        scratch: &mut Scratch<K, V>,
        header: NonNull<Header<K, V>>,
        (class, n, position): (Class, usize, u32),
        rebalances: bool,
        victim_sublist: Option<usize>,
        out: &mut AdmissionSums,
    ) -> Judged {
        let row = class as usize;
        let (now, rule) = (self.policy.now(), self.policy.rule(class));
        loop {
            let Some(candidate) = self.inspect(header, (List::Mru, class, position)) else {
                self.counters.add(CacheCounters::EVICT_STALE, 0, 1);
                return Judged::Gone;
            };
            let Inspected { state, weight, uses, .. } = candidate;
            let mut keep = |to: List, count: Counter| {
                let (from, to) = (List::Mru, (to, n));
                scratch.requeued.push(Requeued { header, from, position, to, count: Some(count) });
            };
            if let Some(skipped) = in_use(state) {
                keep(List::Mru, skipped);
                return Judged::Requeued;
            }
            if rebalances {
                keep(List::Mfu, CacheCounters::OVERFLOWED);
                return Judged::Moves(List::Mfu);
            }
            let victim = match victim_sublist {
                Some(m) if uses.count(now) > 1 => {
                    self.find_victim(scratch, class, m, out).map(|victim| (victim, m))
                }
                _ => None,
            };
            let Some((victim, m)) = victim else {
                if let Some(retired) = self.retire_candidate(scratch, &candidate) {
                    scratch.retired.push(retired);
                    return Judged::Retired(weight);
                }
                continue;
            };
            let preferred = rule.prefers(uses, victim.uses, now)
                && !(rule.is_narrow(uses, victim.uses, now)
                    && self.would_be_written(&victim, class));
            if preferred {
                if let Some(retired) = self.try_retire(victim.header, victim.state) {
                    scratch.mfu_retired.push(retired);
                    out.mfu.add(victim.weight);
                    self.last_victim_uses[row].store(victim.uses.count(now), Ordering::Relaxed);
                    self.counters.add(CacheCounters::ADMISSIONS_WON, row, 1);
                    let (from, to) = (List::Mru, (List::Mfu, n));
                    let count = Some(CacheCounters::PROMOTED);
                    scratch.requeued.push(Requeued { header, from, position, to, count });
                    return Judged::Moves(List::Mfu);
                }
            } else if let Some(retired) = self.retire_candidate(scratch, &candidate) {
                scratch.retired.push(retired);
                self.counters.add(CacheCounters::ADMISSIONS_LOST, row, 1);
                scratch.requeued.push(victim.requeued(m, None));
                return Judged::Retired(weight);
            }
            // One of the two was used or removed meanwhile.
            scratch.requeued.push(victim.requeued(m, None));
        }
    }

    /// Whether the secondary cache would write the victim if it were evicted. A lead of the
    /// candidate that may be chance is not worth a write.
    fn would_be_written(&self, victim: &Inspected<K, V>, class: Class) -> bool {
        let Some(secondary) = self.active_secondary() else { return false };
        // SAFETY: headers are type-stable.
        let h = unsafe { victim.header.as_ref() };
        // A key is read under a pin.
        let Some(_) = self.pin_if(h, |s| (s == victim.state).then_some(s)) else { return false };
        // SAFETY: pinned just now, from a valid state.
        let block = unsafe { OwnedRef::from_pin(self, victim.header) };
        let asked = catch_unwind(AssertUnwindSafe(|| secondary.would_write(block.key(), class)));
        asked.unwrap_or_else(|_| {
            self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
            false
        })
    }

    /// The MFU block to compare: the coldest unmarked one, or the second one examined.
    fn find_victim(
        &self,
        scratch: &mut Scratch<K, V>,
        class: Class,
        m: usize,
        out: &mut AdmissionSums,
    ) -> Option<Inspected<K, V>> {
        let mut marked_one = false;
        for _ in 0..MAX_EXAMINED {
            let wanted = scratch.taken.len();
            let (position, header) =
                self.next_victim(scratch, class, (m, wanted), &mut out.moved)?;
            let Some(taken) = self.inspect(header, (List::Mfu, class, position)) else { continue };
            let skipped = in_use(taken.state);
            if skipped.is_none() && (marked_one || !taken.state.has(MARK)) {
                return Some(taken);
            }
            marked_one |= skipped.is_none();
            scratch.requeued.push(taken.requeued(m, skipped));
        }
        None
    }

    /// State, weight and uses of the block of a ring entry, if it is still there.
    fn inspect(
        &self,
        header: NonNull<Header<K, V>>,
        (list, class, position): (List, Class, u32),
    ) -> Option<Inspected<K, V>> {
        // SAFETY: headers are type-stable.
        let h = unsafe { header.as_ref() };
        let state = h.state();
        if !is_at(state, list, class, position) {
            return None;
        }
        let uses = h.frequency();
        let uses = if state.has(MARK) { uses.used(self.policy.now()) } else { uses };
        Some(Inspected { header, state, weight: h.weight(), uses })
    }

    /// Retires a candidate that was not admitted, if it is unchanged. Counts its mark as a use.
    fn retire_candidate(
        &self,
        scratch: &mut Scratch<K, V>,
        candidate: &Inspected<K, V>,
    ) -> Option<RetiredBlock<K, V>> {
        let retired = self.try_retire(candidate.header, candidate.state)?;
        if candidate.state.has(MARK) {
            // SAFETY: retired by this thread just now, so no other thread changes it.
            let h = unsafe { candidate.header.as_ref() };
            h.set_frequency(h.frequency().used(self.policy.now()));
            scratch.uses += u64::from(candidate.weight);
        }
        Some(retired)
    }
}

/// The counter of the reason why a block cannot be evicted now.
fn in_use(state: HeaderState) -> Option<Counter> {
    if state.has(WRITING) {
        return Some(CacheCounters::EVICT_SKIPPED_WRITING);
    }
    (state.pins() > 0).then_some(CacheCounters::EVICT_SKIPPED_PINNED)
}
