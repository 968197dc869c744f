//! Blocks that the evictor has looked at and that stay: pushed to the warm end of a list, many under one lock.
//!
//! Such a block is in nobody's way meanwhile: its state still says where it was. If it is used before it is pushed,
//! that counts; if it is removed, or another evictor has moved it, it is passed over. The position in its state is changed
//! in the same update that tests this, under the lock of the ring that it enters.
//!
//! *Rivals* are blocks at the cold end of a sublist of mfu, which a contest looks at one by one. They are read from the ring, not
//! taken off, so that their headers can be asked for well before they are needed, however many that will be. Those that were looked at are taken off when they have been
//! pushed again: each has left its place then, or is retired.

use std::ptr::NonNull;

use forebay_base::counters::Counter;
use forebay_base::sync::hint;

use crate::attributes::Class;
use crate::evict::{Out, Scratch, is_at};
use crate::header::{Header, HeaderState, List, MARK};
use crate::inner::CacheInner;
use crate::key::Key;
use crate::lists::ring::{Peeked, Ring};

/// Rivals that are read from the ring at once.
const MAX_VICTIMS: u64 = if cfg!(forebay_model) { 2 } else { 128 };
/// How far ahead of the contest their headers are asked for.
const AHEAD: usize = 16;

/// A block that is to be pushed again.
pub(crate) struct Requeued<K, V> {
    pub(crate) header: NonNull<Header<K, V>>,
    /// Where it was.
    pub(crate) from: List,
    pub(crate) position: u32,
    /// Where it goes: a list, and which sublist of it.
    pub(crate) to: (List, usize),
    /// What to count if it does.
    pub(crate) count: Option<Counter>,
}

/// Blocks at the cold end of one sublist of mfu.
pub(crate) struct Victims<K, V> {
    /// Each with its position in the ring.
    found: Vec<(u64, NonNull<Header<K, V>>)>,
    /// Those before this one have been looked at.
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

    /// Position of the first one that was not looked at.
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
    /// Pushes the blocks that go to one sublist. Returns the sum of those that have come from another list.
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

    /// Pushes a block, unless it has left the place where it was. Its mark, if it has one, is a use. Returns its weight and the state
    /// before.
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
                // Before an evictor can find it in its new place.
                h.set_frequency(h.frequency().used(self.policy.now()));
            }
            ring.push(id);
            if block.from != list {
                sublist.count_in(ring, weight);
            }
            return Some((weight, state));
        }
    }

    /// The next rival in the `m`th sublist of mfu, with its position. About `wanted` newcomers need one. Adds to `came` what
    /// `advance_victims` returns.
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
                // Those that were looked at come by again if there are no others.
                *came +=
                    self.advance_victims(scratch, class, m, MAX_VICTIMS.min(2 * wanted as u64 + 2));
                scratch.victims.next()?
            }
        };
        Some((self.list(List::Mfu, class).nth(m).stamp(next.0), next.1))
    }

    /// Pushes the blocks that go to a sublist of mfu, takes the rivals off its ring that were looked at, and reads up to
    /// `more`. Returns the sum of those that have come from another list.
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
