//! The header: the descriptor of one block, and the protocol of its state word.
//!
//! Everything about a header that changes together lies in one atomic word:
//!
//! | bits | name | who changes it |
//! |---|---|---|
//! | 0–16 | pins | anyone who holds or takes a pin |
//! | 17 | `SAMPLED`: its hits are told to the shadows | who occupies it |
//! | 18 | `VALID`: may be pinned by a lookup | set by the publisher; cleared by who retires |
//! | 19 | `MARK`: looked up since the evictor last came by | set by a hit; cleared by the evictor |
//! | 20 | class | the publisher, before it is reachable |
//! | 21–22 | the list it is in | the publisher (under the sublist's lock), then the evictor |
//! | 23 | `WRITING`: the second level is writing it | the second level's guard, which holds a pin |
//! | 24 | `RETIRED`: on its way out | whoever evicts, removes or replaces; never cleared but by freeing |
//! | 25 | `LOADING`: a filler will publish or abandon it | the filler |
//! | 26 | `WAITERS`: the filler must wake somebody | who joins, while `LOADING` |
//! | 27 | `SPILLED`: more pins are counted in `spill` | who spills or refills, under the lock of `spill` |
//! | 28–30 | cause of retirement; all ones: orphaned, see `CacheInner::hold` | with `RETIRED` |
//! | 31 | `FILLED`: the value is initialised | the publisher |
//! | 32–63 | position in its sublist's ring (in no list, and when free: generation) | the publisher and the evictor, under the sublist's lock |
//!
//! The rules (proved under the model checker in `tests/model`):
//!
//! 1. *Pin and verify.* A lookup pins with a compare-and-swap from a state that is
//!    `VALID`; success means that the header was valid at that instant and cannot be
//!    freed until unpinned. Only then are `K` and `V` read. No pin is ever taken on a
//!    header that is not in use, so that a free header's memory has no stray writers
//!    and may be wiped or reused at once.
//! 2. *Retire once.* `RETIRED` is set by one compare-and-swap, which also clears `VALID`
//!    and takes a pin: its winner removes the header from the index. From then on pins only
//!    fall.
//! 3. *Last one out frees.* Whoever brings the pins of a retired header to zero owns it
//!    alone. It takes the value out, and keeps one pin while it disposes of it, so that a close that
//!    waits for what is in use waits for the value's drop; whoever brings the pins to zero again (a
//!    sweep may have looked at the key meanwhile) gives the header back. A header with pins elsewhere
//!    (`SPILLED`) has some in the word as well, so that zero in the word means that there are none.
//! 4. A header stays referenced by its index slot only while not freed: the slot is
//!    cleared or replaced, under its partition's lock, before the retiring pin goes. Hence
//!    under that lock the key of any header found in a slot may be read without a pin.

mod release;
pub(crate) mod slab;
pub(crate) mod spill;
mod state;

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

use forebay_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use forebay_base::vm::ZeroInit;

use crate::attributes::{Cause, Class};
use crate::frequency::Frequency;
use state::{CROWDED, SPILLED};

pub(crate) use state::{
    FILLED, HeaderState, LOADING, List, MARK, PIN, RETIRED, SAMPLED, VALID, WAITERS, WRITING,
};

/// The descriptor of one block. A cache line for keys of up to 24 bytes with values of up to 16.
#[repr(C, align(64))]
pub(crate) struct Header<K, V> {
    state: AtomicU64,
    /// Weight of a block in use; the next free header of a free one.
    weight: AtomicU32,
    /// Place in the slab; set when the header is carved, before its first use.
    id: AtomicU32,
    /// Counts the uses of the header.
    generation: AtomicU32,
    /// When and how often the block was asked for: `Frequency`'s bits. Written by who brings the block in, then by evictors; two
    /// of them may overwrite each other's count of one use.
    frequency: AtomicU32,
    key: UnsafeCell<MaybeUninit<K>>,
    value: UnsafeCell<MaybeUninit<V>>,
}

#[cfg(not(any(forebay_model, feature = "counting")))]
const _: () = assert!(size_of::<Header<[u64; 3], [u64; 2]>>() == 64, "a header outgrew its line");

// SAFETY: zero is the state of a free header, whose key and value nobody reads; state, weight and
// id are atomic, and key and value are read only by owners of a pin.
unsafe impl<K, V> ZeroInit for Header<K, V> {
    fn zero() -> Self {
        Self {
            state: AtomicU64::new(0),
            weight: AtomicU32::new(0),
            id: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            frequency: AtomicU32::new(0),
            key: UnsafeCell::new(MaybeUninit::uninit()),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
    fn wipe(&self) {
        self.state.store(0, Ordering::Relaxed);
        self.weight.store(0, Ordering::Relaxed);
    }
}

/// What a header held.
pub(crate) struct Contents<K, V> {
    pub(crate) state: HeaderState,
    pub(crate) key: K,
    pub(crate) value: Option<V>,
    pub(crate) weight: u32,
}

/// What has become of a header when a pin was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unpinned {
    /// Nothing has to be done.
    Kept,
    /// The caller owns it alone, and must free it.
    Last,
    /// Pins have to be moved back into its word.
    Sparse,
}

impl<K: Copy, V> Header<K, V> {
    #[inline]
    pub(crate) fn state(&self) -> HeaderState {
        HeaderState(self.state.load(Ordering::Acquire))
    }

    /// Rule 1. Also sets the mark, so that a hit is one atomic update. Returns the state before.
    ///
    /// # Errors
    /// What was met instead: not valid, or crowded.
    #[inline(always)]
    pub(crate) fn try_pin(&self, mark: u64) -> Result<HeaderState, HeaderState> {
        // Acquire, so that a slot that is read again after an invalid header is read after it.
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            // Both at once: whether it may be pinned, and whether the word has room for a pin.
            if state & (VALID | CROWDED) != VALID {
                return Err(HeaderState(state));
            }
            match self.state.compare_exchange_weak(
                state,
                (state + PIN) | mark,
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(HeaderState(state)),
                Err(now) => state = now,
            }
        }
    }

    /// Makes an anonymous header loading or valid. Only its occupier can have a pin on it before.
    pub(crate) fn announce(&self, bits: u64) {
        let state = self.state.load(Ordering::Relaxed);
        debug_assert!(HeaderState(state).pins() == 1 && state & (VALID | LOADING | RETIRED) == 0);
        self.state.store(state | bits, Ordering::Release);
    }

    /// Rule 3.
    #[inline]
    #[must_use]
    pub(crate) fn unpin(&self) -> Unpinned {
        let before = HeaderState(self.state.fetch_sub(PIN, Ordering::Release));
        debug_assert!(before.pins() > 0, "unpinned too often: {before:?}");
        if before.0 & (RETIRED | SPILLED) == 0 {
            return Unpinned::Kept;
        }
        if before.is_spilled() {
            if before.pins() == PIN {
                // Thousands of threads are between the update above and the refill that each owes. The next
                // one would take from the bits beyond the pins.
                std::process::abort();
            }
            let sparse = HeaderState(before.0 - PIN).is_sparse();
            return if sparse { Unpinned::Sparse } else { Unpinned::Kept };
        }
        if before.pins() > PIN {
            return Unpinned::Kept;
        }
        forebay_base::sync::atomic::fence(Ordering::Acquire);
        Unpinned::Last
    }

    /// As [`unpin`](Self::unpin), if nothing has to be done then. `None` if the header is retired or has
    /// pins elsewhere: then nothing is done, so that the caller can first make sure that the cache
    /// outlives what follows.
    #[must_use]
    pub(crate) fn unpin_simply(&self) -> Option<()> {
        let simple = |s: HeaderState| s.0 & (RETIRED | SPILLED) == 0;
        self.update(|s| simple(s).then(|| s.unpinned())).map(drop)
    }

    /// Applies `change` until it succeeds or declines. Returns the state before.
    pub(crate) fn update(
        &self,
        mut change: impl FnMut(HeaderState) -> Option<HeaderState>,
    ) -> Option<HeaderState> {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let next = change(HeaderState(state))?;
            match self.state.compare_exchange_weak(
                state,
                next.0,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(HeaderState(state)),
                Err(now) => state = now,
            }
        }
    }

    /// One attempt to go from exactly `from` to `to`.
    pub(crate) fn change(&self, from: HeaderState, to: HeaderState) -> bool {
        let result = self.state.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed);
        result.is_ok()
    }

    /// Rule 2. Returns the state before, or `None` if somebody else has retired it.
    pub(crate) fn retire(&self, cause: Cause) -> Option<HeaderState> {
        self.update(|s| {
            let in_use = s.has(VALID) || s.has(LOADING);
            (in_use && !s.has(RETIRED)).then(|| s.retired(cause))
        })
    }

    /// Begins the use of a free header, anonymously.
    ///
    /// # Safety
    /// The caller owns the header alone.
    pub(crate) unsafe fn occupy(
        &self,
        key: K,
        weight: u32,
        value: Option<V>,
        (class, sampled): (Class, bool),
    ) {
        debug_assert!(self.state().is_free());
        // SAFETY: a free header's key and value are nobody's but the caller's.
        unsafe {
            (*self.key.get()).write(key);
            if let Some(value) = value {
                (*self.value.get()).write(value);
            }
        }
        self.weight.store(weight, Ordering::Relaxed);
        let generation = self.generation.load(Ordering::Relaxed).wrapping_add(1);
        self.generation.store(generation, Ordering::Relaxed);
        self.frequency.store(0, Ordering::Relaxed);
        self.state.store(HeaderState::anonymous(class, sampled, generation).0, Ordering::Release);
    }

    /// Writes the value of a loading header.
    ///
    /// # Safety
    /// The caller is its filler, and the header is not yet `FILLED`.
    pub(crate) unsafe fn fill(&self, value: V, weight: u32) {
        // SAFETY: nobody reads the value before `FILLED`.
        unsafe { (*self.value.get()).write(value) };
        self.weight.store(weight, Ordering::Relaxed);
    }

    /// As [`vacate`](Self::vacate) for an anonymous header; returns the value it was occupied with.
    ///
    /// # Safety
    /// The caller is its occupier, has not announced it, and says truly whether it has a value.
    pub(crate) unsafe fn retract(&self, has_value: bool) -> Option<V> {
        // SAFETY: by contract nobody else has seen the header, and the value was written.
        let value = has_value.then(|| unsafe { (*self.value.get()).assume_init_read() });
        self.set_free();
        value
    }

    /// Takes out of a header what it holds, weight and value if it was filled, and leaves it retired with
    /// one pin, the caller's. `None` if it holds nothing any more.
    ///
    /// # Safety
    /// The caller owns the header alone (rule 3), and it is out of the index.
    pub(crate) unsafe fn empty(&self) -> Option<Contents<K, V>> {
        let state = HeaderState(self.state.load(Ordering::Relaxed));
        let weight = self.weight.load(Ordering::Relaxed);
        if weight == 0 && !state.has(FILLED) {
            return None;
        }
        // SAFETY: by contract.
        let contents = unsafe { self.contents() };
        self.weight.store(0, Ordering::Relaxed);
        // Nobody changes a retired state without a pin, so that no update is lost.
        self.state.store(state.without(FILLED).pinned().0, Ordering::Release);
        Some(contents)
    }

    /// Moves out of a header what it holds: nothing of it may be read afterwards.
    ///
    /// # Safety
    /// The caller owns the header alone, and it is retired.
    pub(crate) unsafe fn contents(&self) -> Contents<K, V> {
        let state = HeaderState(self.state.load(Ordering::Relaxed));
        let weight = self.weight.load(Ordering::Relaxed);
        // SAFETY: in use, so that the key is initialised; the value is if `FILLED`.
        unsafe {
            let value = state.has(FILLED).then(|| (*self.value.get()).assume_init_read());
            Contents { state, key: *self.key(), value, weight }
        }
    }

    /// Makes an empty header free. Returns its last state.
    ///
    /// # Safety
    /// The caller owns the header alone (rule 3), and it is out of the index and empty.
    pub(crate) unsafe fn vacate(&self) -> HeaderState {
        let state = HeaderState(self.state.load(Ordering::Relaxed));
        self.set_free();
        state
    }

    fn set_free(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        self.state.store(HeaderState::free(generation).0, Ordering::Release);
    }

    /// # Safety
    /// The caller holds a pin, or the lock of the partition in which a slot refers to this header.
    #[inline]
    pub(crate) unsafe fn key(&self) -> &K {
        // SAFETY: initialised before the header was reachable, and unchanged until it is freed.
        unsafe { (*self.key.get()).assume_init_ref() }
    }

    /// # Safety
    /// The caller holds a pin whose state was `VALID`, or knows that the header is `FILLED`.
    #[inline]
    pub(crate) unsafe fn value(&self) -> &V {
        // SAFETY: written before `FILLED`, which `VALID` implies, and unchanged until freed.
        unsafe { (*self.value.get()).assume_init_ref() }
    }

    #[inline]
    pub(crate) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }
    /// When and how often the block was asked for.
    pub(crate) fn frequency(&self) -> Frequency {
        Frequency::from_bits(self.frequency.load(Ordering::Relaxed))
    }
    pub(crate) fn set_frequency(&self, frequency: Frequency) {
        self.frequency.store(frequency.bits(), Ordering::Relaxed);
    }
    /// Place in the slab.
    pub(crate) fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }
    pub(crate) fn set_id(&self, id: u32) {
        self.id.store(id, Ordering::Relaxed);
    }
    /// Of a free header: the next in its chunk's list.
    pub(crate) fn next_free(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }
    pub(crate) fn set_next_free(&self, next: u32) {
        self.weight.store(next, Ordering::Relaxed);
    }
}
