//! The state of a root in one word: counts of requests in flight, current generation, and closed
//! flag.
//!
//! | bits | meaning | changed by |
//! |---|---|---|
//! | 0–30 | requests in flight of even generations | submissions, completions |
//! | 31–61 | requests in flight of odd generations | submissions, completions |
//! | 62 | parity of the current generation | a drain, one at a time |
//! | 63 | closed: no new request may enter | `close`, once |
//!
//! A request enters by one compare-and-swap that covers generation, closed flag and count. So it
//! either is counted in the generation that a drain waits for, or comes after the begin of that
//! drain. Nothing must be checked again.
//!
//! # Generations
//!
//! There are two generations at a time, as in sleepable RCU. A drain switches each root to the
//! other generation, then waits until all counts of the old one are zero. One word holds both
//! counts and the current generation, so there is no window between reading it and being counted in
//! it.
//!
//! Invariant: a count rises only in the current generation, or while a request of its generation is
//! in flight (by submissions of callbacks). So the count of a past generation falls to zero once,
//! and stays zero until a later drain makes its parity current again.

use std::fmt;

use forebay_base::sync::atomic::{AtomicU64, Ordering};

const COUNT_BITS: u32 = 31;
/// Most requests in flight of one generation and root.
const MAX_COUNT: u64 = (1 << COUNT_BITS) - 1;
const PARITY: u64 = 1 << 62;
const CLOSED: u64 = 1 << 63;

/// One of the two generations that can have requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parity {
    Even,
    Odd,
}

impl Parity {
    /// Returns 0 or 1.
    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Returns the parity of the `n`th generation.
    pub(crate) fn of(n: u64) -> Self {
        if n.is_multiple_of(2) { Self::Even } else { Self::Odd }
    }

    fn shift(self) -> u32 {
        self as u32 * COUNT_BITS
    }

    /// Returns one request of this generation, as an addend of the word.
    fn one(self) -> u64 {
        1 << self.shift()
    }

    /// Returns the count of this generation in `word`.
    fn count(self, word: u64) -> u64 {
        (word >> self.shift()) & MAX_COUNT
    }

    fn current(word: u64) -> Self {
        if word & PARITY == 0 { Self::Even } else { Self::Odd }
    }
}

/// The state word of a root.
pub(crate) struct RootWord(AtomicU64);

impl RootWord {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts `n` new requests in the current generation, and returns that generation. `None` if
    /// the root is closed.
    pub(crate) fn enter(&self, n: u64) -> Option<Parity> {
        self.add(|word| (word & CLOSED == 0).then(|| Parity::current(word)), n)
    }

    /// Counts `n` requests submitted by a callback of generation `parity`, even if the root is
    /// closed.
    pub(crate) fn enter_child(&self, parity: Parity, n: u64) {
        let parent = |word| {
            assert!(parity.count(word) > 0, "a callback runs, but its request is not in flight");
            Some(parity)
        };
        self.add(parent, n);
    }

    #[inline]
    fn add(&self, into: impl Fn(u64) -> Option<Parity>, n: u64) -> Option<Parity> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let parity = into(word)?;
            assert!(
                parity.count(word) + n <= MAX_COUNT,
                "too many requests in flight under one root"
            );
            let next = word + n * parity.one();
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(parity),
                Err(now) => word = now,
            }
        }
    }

    /// Removes a request that has completed, callback included. Returns whether it was the last one
    /// that a drain waits for. Then the caller must wake the drain.
    #[inline]
    pub(crate) fn leave(&self, parity: Parity) -> bool {
        let before = self.0.fetch_sub(parity.one(), Ordering::AcqRel);
        debug_assert!(parity.count(before) > 0, "more requests left than entered");
        parity.count(before) == 1 && Parity::current(before) != parity
    }

    /// Begins the generation after `ending`, and returns the number of requests in flight of
    /// `ending`. Only one drain at a time may call it, and only once the generation before `ending`
    /// is empty.
    pub(crate) fn flip(&self, ending: Parity) -> u64 {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            assert_eq!(Parity::current(word), ending, "drains run one after another");
            let next = word ^ PARITY;
            assert_eq!(
                Parity::current(next).count(word),
                0,
                "the previous generation is not empty"
            );
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return ending.count(word),
                Err(now) => word = now,
            }
        }
    }

    /// Closes the root: no new request enters.
    pub(crate) fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::AcqRel);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Returns the number of requests in flight of `parity`.
    pub(crate) fn count(&self, parity: Parity) -> u64 {
        parity.count(self.0.load(Ordering::Acquire))
    }

    /// Returns the number of requests in flight.
    pub(crate) fn in_flight(&self) -> u64 {
        let word = self.0.load(Ordering::Acquire);
        Parity::Even.count(word) + Parity::Odd.count(word)
    }
}

impl fmt::Debug for RootWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.0.load(Ordering::Acquire);
        f.debug_struct("State")
            .field("even", &Parity::Even.count(word))
            .field("odd", &Parity::Odd.count(word))
            .field("current", &Parity::current(word))
            .field("closed", &(word & CLOSED != 0))
            .finish()
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use proptest::prelude::*;

    use super::{MAX_COUNT, Parity, RootWord};

    #[test]
    fn a_generation_ends_once() {
        let state = RootWord::new();
        assert_eq!(state.enter(2), Some(Parity::Even));
        assert!(!state.leave(Parity::Even));
        assert_eq!(state.flip(Parity::Even), 1);
        // A newer generation neither delays the end of the older one nor causes it.
        assert_eq!(state.enter(1), Some(Parity::Odd));
        assert!(!state.leave(Parity::Odd));
        state.enter_child(Parity::Even, 1);
        assert!(!state.leave(Parity::Even));
        assert!(state.leave(Parity::Even));
        assert_eq!(state.in_flight(), 0);
    }

    #[test]
    fn a_closed_root_lets_only_children_in() {
        let state = RootWord::new();
        assert_eq!(state.enter(1), Some(Parity::Even));
        state.close();
        state.close();
        assert!(state.is_closed());
        assert_eq!(state.enter(1), None);
        state.enter_child(Parity::Even, 3);
        assert_eq!(state.count(Parity::Even), 4);
        assert_eq!(state.flip(Parity::Even), 4);
        assert!(state.is_closed());
    }

    #[test]
    fn a_full_count_does_not_spill_into_its_neighbours() {
        let state = RootWord::new();
        assert_eq!(state.enter(MAX_COUNT), Some(Parity::Even));
        assert_eq!(state.flip(Parity::Even), MAX_COUNT);
        assert_eq!(state.enter(MAX_COUNT), Some(Parity::Odd));
        assert_eq!((state.count(Parity::Even), state.count(Parity::Odd)), (MAX_COUNT, MAX_COUNT));
        assert!(!state.is_closed());
        assert!(std::panic::catch_unwind(|| state.enter(1)).is_err());
        assert_eq!(state.in_flight(), 2 * MAX_COUNT);
    }

    #[test]
    #[should_panic(expected = "not in flight")]
    fn a_child_needs_a_parent() {
        RootWord::new().enter_child(Parity::Odd, 1);
    }

    #[test]
    #[should_panic(expected = "not empty")]
    fn generations_do_not_overtake() {
        let state = RootWord::new();
        state.enter(1);
        state.flip(Parity::Even);
        state.flip(Parity::Odd);
    }

    proptest! {
        /// Against plain counts.
        #[test]
        fn the_word_matches_plain_counts(steps in prop::collection::vec(0..6u8, 0..200)) {
            let state = RootWord::new();
            let (mut counts, mut current, mut closed) = ([0u64; 2], 0, false);
            let parity = |n: usize| Parity::of(n as u64);
            for step in steps {
                let old = 1 - current;
                match step {
                    0 | 1 => {
                        let entered = state.enter(1).map(Parity::index);
                        prop_assert_eq!(entered, (!closed).then_some(current));
                        counts[current] += u64::from(!closed);
                    }
                    2 if counts[current] > 0 => {
                        prop_assert!(!state.leave(parity(current)));
                        counts[current] -= 1;
                    }
                    3 if counts[old] > 0 => {
                        prop_assert_eq!(state.leave(parity(old)), counts[old] == 1);
                        counts[old] -= 1;
                    }
                    4 if counts[old] == 0 => {
                        prop_assert_eq!(state.flip(parity(current)), counts[current]);
                        current = old;
                    }
                    5 if counts[old] > 0 => {
                        state.enter_child(parity(old), 2);
                        counts[old] += 2;
                    }
                    5 if counts[0] + counts[1] > 7 => {
                        state.close();
                        closed = true;
                    }
                    _ => {}
                }
                prop_assert_eq!(counts.map(u64::from), [Parity::Even, Parity::Odd].map(|p| state.count(p)));
                prop_assert_eq!(state.in_flight(), counts[0] + counts[1]);
                prop_assert_eq!(state.is_closed(), closed);
            }
        }
    }
}
