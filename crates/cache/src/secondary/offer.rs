//! Offers blocks to the secondary cache before they are evicted, and reports which were evicted and
//! which blocks of its own are outdated.
//!
//! A hand in each ring marks how far blocks were offered (`Hand::Offer`). The evictor stops at a
//! block that was not offered yet, and the next offer comes first.
//!
//! Locking: `sublist`, one at a time. None is held while the secondary cache is called.

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
    /// Whether blocks are offered before they are evicted.
    pub(crate) fn offers(&self) -> bool {
        self.tunables.offer_ahead() > 0 && self.active_secondary().is_some()
    }

    /// Offers the blocks that an eviction of `goal` bytes will examine, and a few more.
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

    /// Reports to the secondary cache that these blocks were evicted.
    pub(crate) fn notify_evicted(&self, gone: &[K]) {
        let Some(secondary) = self.active_secondary().filter(|_| !gone.is_empty()) else { return };
        if catch_unwind(AssertUnwindSafe(|| secondary.evicted(gone))).is_err() {
            self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
        }
    }

    /// Reports to the secondary cache that a load is about to provide a value of a key of which it
    /// may have an older one.
    #[cold]
    pub(crate) fn notify_superseded(&self, key: &K) {
        let Some(secondary) = self.active_secondary() else { return };
        if catch_unwind(AssertUnwindSafe(|| secondary.superseded(key))).is_err() {
            self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
        }
    }

    /// Blocks near the cold ends that were not offered yet: a part of those among which `goal`
    /// bytes will be found, and a few more.
    ///
    /// Few at once, because more is known of a block that is offered later. While MRU gives up
    /// blocks, MFU loses one now and then to a candidate. Most blocks at its cold end stay, and
    /// would be in both caches from then on.
    fn candidates(&self, goal: u64) -> Vec<Candidate<K, V>> {
        let mut candidates = Vec::new();
        let ahead = self.tunables.offer_ahead() as usize;
        if ahead == 0 {
            return candidates;
        }
        // Blocks hinted `Once` are not offered, but they are evicted first.
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
                    // Plus a quarter of the sublist's share of the goal.
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

    /// The block at this position if it may be evicted. `gives`: its list has to give up blocks.
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

    /// Whether the evictor would probably evict this block when it reaches it. A block that stays
    /// is considered again later. `gives`: its list has to give up blocks.
    fn may_go(
        &self,
        state: HeaderState,
        h: &Header<K, V>,
        (list, class): (List, Class),
        gives: bool,
    ) -> bool {
        let admission = self.policy.rule(class).admission;
        match list {
            // Evicted at once, or compared with a victim; most candidates lose.
            List::Mru if admission => true,
            // A victim loses only if it has as few uses as the last one that lost.
            List::Mfu if admission && !gives => {
                let uses = h.frequency().count(self.policy.now());
                !state.has(MARK)
                    && uses <= self.last_victim_uses[class as usize].load(Ordering::Relaxed)
            }
            _ => !state.has(MARK),
        }
    }

    /// Passes all blocks that are not being written to `take`, up to `most` at once, except blocks
    /// hinted `Once`.
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
