//! Offering blocks to the secondary cache before they are evicted, and telling it which ones have left.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_base::sync::atomic::Ordering;

use super::Candidate;
use crate::attributes::Class;
use crate::counters::CacheCounters;
use crate::evict::is_at;
use crate::guard::OwnedRef;
use crate::header::{Header, HeaderState, List, MARK, VALID, WRITING};
use crate::inner::CacheInner;
use crate::key::Key;
use crate::lists::ring::Hand;
use crate::policy::Sizes;

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Whether blocks are offered to a second level before they are evicted.
    pub(crate) fn offers(&self) -> bool {
        self.tunables.offer_ahead() > 0 && self.active_secondary().is_some()
    }

    /// Offers what the eviction of `goal` bytes will come to, and a little more.
    pub(crate) fn offer_to_secondary(&self, goal: u64) {
        let Some(secondary) = self.active_secondary() else { return };
        let candidates = self.candidates(goal);
        if candidates.is_empty() {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| secondary.offer(candidates))).is_err() {
            self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
        }
    }

    /// Tells the second level that these blocks have left memory.
    pub(crate) fn notify_evicted(&self, gone: &[K]) {
        let Some(secondary) = self.active_secondary().filter(|_| !gone.is_empty()) else { return };
        if catch_unwind(AssertUnwindSafe(|| secondary.evicted(gone))).is_err() {
            self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
        }
    }

    /// Blocks near the cold ends that the second level has not been offered yet: a part of those that `goal` bytes will be found among,
    /// and a few more. Not many at once: the later a block is offered, the more is known of it. While mru gives up its blocks, mfu loses one
    /// now and then, to a newcomer; most of what comes to its cold end stays, and would be in both places from then on.
    fn candidates(&self, goal: u64) -> Vec<Candidate<K, V>> {
        let mut candidates = Vec::new();
        let ahead = self.tunables.offer_ahead() as usize;
        if ahead == 0 {
            return candidates;
        }
        // Blocks with the hint `Once` are not offered, but while there are some they go first.
        let sizes = Sizes { once: [0; 2], ..self.sizes() };
        let giving = self.policy.next_list(&sizes, &self.tunables);
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
            self.counters.add(CacheCounters::SECONDARY_OFFERED, class as usize, fresh);
        }
        candidates
    }

    /// The block at a place if it may go; `gives`: its list has to give up what it has.
    fn candidate(&self, id: u32, at: (List, Class, u32), gives: bool) -> Option<Candidate<K, V>> {
        let (list, class, position) = at;
        let header = self.slab.by_id(id)?;
        // SAFETY: headers are type-stable.
        let h = unsafe { header.as_ref() };
        let fits = |s: HeaderState| {
            let free = is_at(s, list, class, position) && !s.has(WRITING);
            free && self.may_go(s, h, (list, class), gives)
        };
        let before = self.pin_if(h, |s| fits(s).then_some(s))?;
        // SAFETY: pinned just now, from a valid state.
        let block = unsafe { OwnedRef::from_pin(self, header) };
        Some(Candidate::new(block, class, list == List::Mfu || before.has(MARK)))
    }

    /// Whether the evictor may let go of a block when it comes to it, as far as that can be told. One that stays comes by again.
    /// `gives`: its list has to give up what it has.
    fn may_go(
        &self,
        state: HeaderState,
        h: &Header<K, V>,
        (list, class): (List, Class),
        gives: bool,
    ) -> bool {
        let admission = self.policy.rule(class).admission;
        match list {
            // It goes at once, or meets a rival, and most of them lose.
            List::Mru if admission => true,
            // A rival goes only if it is used as little as those that lose.
            List::Mfu if admission && !gives => {
                let uses = h.frequency().count(self.policy.now());
                !state.has(MARK)
                    && uses <= self.last_victim_uses[class as usize].load(Ordering::Relaxed)
            }
            _ => !state.has(MARK),
        }
    }

    /// Every block that is not being written, up to `most` at once; but for those that are used once.
    pub(crate) fn candidates_everywhere(
        &self,
        most: usize,
        mut take: impl FnMut(Vec<Candidate<K, V>>),
    ) {
        let mut candidates = Vec::new();
        self.slab.for_each(|header| {
            let away = |s: HeaderState| {
                let kept = s.has(VALID) && s.list() != Some(List::Once);
                kept && !s.has(WRITING)
            };
            // SAFETY: headers are type-stable.
            let h = unsafe { header.as_ref() };
            let Some(before) = self.pin_if(h, |s| away(s).then_some(s)) else { return };
            // SAFETY: pinned just now, from a valid state.
            let block = unsafe { OwnedRef::from_pin(self, header) };
            let reused = before.list() == Some(List::Mfu) || before.has(MARK);
            candidates.push(Candidate::new(block, before.class(), reused));
            if candidates.len() >= most {
                take(std::mem::take(&mut candidates));
            }
        });
        if !candidates.is_empty() {
            take(candidates);
        }
    }
}
