//! Requeues blocks that the evictor has examined and keeps: CLOCK's second chance.
//!
//! Requeued blocks are pushed to the warm end of a list, many under one lock. Until then their
//! states still name their old positions. A block that is used meanwhile counts as used. A block
//! that is removed, or moved by another evictor, is skipped. One update both tests this and stores
//! the new position, under the lock of the ring that the block enters.
//!
//! *Victims* are the blocks at the cold end of an MFU sublist that admission examines. They are
//! read from the ring without popping, so that their headers can be prefetched well ahead. After
//! the examined ones were requeued or retired, their old entries are popped together.
//!
//! Locking: `sublist`, one at a time.

use std::ptr::NonNull;

use forebay_base::counters::Counter;
use forebay_base::sync::hint;

use crate::attributes::Class;
use crate::evict::{Out, Scratch, is_at};
use crate::header::{Header, HeaderState, List, MARK};
use crate::inner::CacheInner;
use crate::key::Key;
use crate::lists::ring::{Peeked, Ring};

/// Victims read from the ring at once.
const MAX_VICTIMS: u64 = if cfg!(forebay_model) { 2 } else { 128 };
/// Victims whose headers are prefetched ahead of admission.
const AHEAD: usize = 16;

/// A block to requeue.
pub(crate) struct Requeued<K, V> {
    pub(crate) header: NonNull<Header<K, V>>,
    /// The list and position in which it was found.
    pub(crate) from: List,
    pub(crate) position: u32,
    /// The list and sublist that it enters.
    pub(crate) to: (List, usize),
    /// What to count when it enters.
    pub(crate) count: Option<Counter>,
}

/// The victims read from one MFU sublist.
pub(crate) struct Victims<K, V> {
    /// Ring position and header of each.
    found: Vec<(u64, NonNull<Header<K, V>>)>,
    /// Index of the first one that was not examined.
    next: usize,
    peeked: Peeked,
}

impl<K, V> Default for Victims<K, V> {
    fn default() -> Self {
        Self { found: Vec::new(), next: 0, peeked: Peeked::default() }
    }
}

impl<K, V> Victims<K, V> {
    /// The next one, with its position.
    fn next(&mut self) -> Option<(u64, NonNull<Header<K, V>>)> {
        let next = *self.found.get(self.next)?;
        self.next += 1;
        if let Some((_, later)) = self.found.get(self.next + AHEAD) {
            hint::prefetch(later.as_ptr());
        }
        Some(next)
    }

    /// Position of the first one that was not examined.
    fn end(&self) -> u64 {
        self.found.get(self.next).map_or(self.peeked.end, |(position, _)| *position)
    }

    fn clear(&mut self) {
        self.found.clear();
        self.next = 0;
        self.peeked = Peeked::default();
    }
}

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Requeues the blocks that enter one sublist. Returns the sum of those that come from another
    /// list.
    pub(crate) fn push_requeued(
        &self,
        scratch: &mut Scratch<K, V>,
        class: Class,
        to: (List, usize),
    ) -> Out {
        if !scratch.requeued.iter().any(|requeued| requeued.to == to) {
            return Out::default();
        }
        let mut ring = self.list(to.0, class).nth(to.1).lock();
        self.push_into(&mut ring, scratch, class, to)
    }

    fn push_into(
        &self,
        ring: &mut Ring<u32>,
        scratch: &mut Scratch<K, V>,
        class: Class,
        to: (List, usize),
    ) -> Out {
        let mut came = Out::default();
        let Scratch { requeued, uses, .. } = scratch;
        requeued.retain(|block| {
            if block.to == to
                && let Some((weight, before)) = self.push_again(ring, block, class)
            {
                if before.has(MARK) {
                    *uses += u64::from(weight);
                }
                if block.from != to.0 {
                    came.add(weight);
                }
                if let Some(row) = block.count {
                    self.counters.add(row, class as usize, 1);
                }
            }
            block.to != to
        });
        came
    }

    /// Requeues a block if it is still at its old position. A mark counts as a use and is cleared.
    /// Returns the weight and the state before.
    fn push_again(
        &self,
        ring: &mut Ring<u32>,
        block: &Requeued<K, V>,
        class: Class,
    ) -> Option<(u32, HeaderState)> {
        // SAFETY: headers are type-stable. Id and weight are the block's if its state is unchanged.
        let h = unsafe { block.header.as_ref() };
        let (list, n) = block.to;
        let sublist = self.list(list, class).nth(n);
        let position = sublist.stamp(ring.next_position());
        loop {
            let state = h.state();
            if !is_at(state, block.from, class, block.position) {
                return None;
            }
            let (id, weight) = (h.id(), h.weight());
            if !h.change(state, state.at(list, position).without(MARK)) {
                continue;
            }
            if state.has(MARK) {
                // Before another evictor can find it at its new position.
                h.set_frequency(h.frequency().used(self.policy.now()));
            }
            ring.push(id);
            if block.from != list {
                sublist.count_in(ring, weight);
            }
            return Some((weight, state));
        }
    }

    /// The next victim in the `m`th MFU sublist, with its position. `wanted` is the expected number
    /// of candidates that need one. Adds to `came` as [`advance_victims`](Self::advance_victims)
    /// returns.
    pub(crate) fn next_victim(
        &self,
        scratch: &mut Scratch<K, V>,
        class: Class,
        (m, wanted): (usize, usize),
        came: &mut Out,
    ) -> Option<(u32, NonNull<Header<K, V>>)> {
        let next = match scratch.victims.next() {
            Some(next) => next,
            None => {
                // If there are no others, examined blocks are examined again.
                *came +=
                    self.advance_victims(scratch, class, m, MAX_VICTIMS.min(2 * wanted as u64 + 2));
                scratch.victims.next()?
            }
        };
        Some((self.list(List::Mfu, class).nth(m).stamp(next.0), next.1))
    }

    /// Requeues the blocks that enter an MFU sublist, pops its examined victims, and reads up to
    /// `more` new ones. Returns the sum of blocks that come from another list.
    pub(crate) fn advance_victims(
        &self,
        scratch: &mut Scratch<K, V>,
        class: Class,
        m: usize,
        more: u64,
    ) -> Out {
        let mut ring = self.list(List::Mfu, class).nth(m).lock();
        let came = self.push_into(&mut ring, scratch, class, (List::Mfu, m));
        let victims = &mut scratch.victims;
        ring.pop_peeked(victims.peeked, victims.end());
        victims.clear();
        if more > 0 {
            let found = &mut victims.found;
            victims.peeked = ring.peek(more, |position, id| {
                found.extend(self.slab.by_id(id).map(|header| (position, header)));
            });
            drop(ring);
            victims.found.iter().take(AHEAD + 1).for_each(|(_, h)| hint::prefetch(h.as_ptr()));
        }
        came
    }
}
