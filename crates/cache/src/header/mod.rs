//! The header: the descriptor of one block, and the protocol of its state word.
//!
//! All parts of a header that change together are in one atomic word ([`state`]). The rules, which
//! the model checks in `tests/model` verify:
//!
//! 1. *Pin and verify.* A lookup pins with a compare-and-swap from a `VALID` state. If it succeeds,
//!    the header was valid at that instant and is not freed before it is unpinned. Only then are
//!    key and value read. No thread pins a header that is not in use. So nothing writes to a free
//!    header, and its memory may be wiped or reused at once.
//! 2. *Retire once.* One compare-and-swap sets `RETIRED`, clears `VALID` and takes a pin. The
//!    thread that succeeds removes the header from the index. From then on pins only decrease.
//! 3. *The last pin frees.* The thread that brings the pins of a retired header to zero owns it. It
//!    takes the value out and keeps one pin while it drops the value, so a close that waits for the
//!    header also waits for the drop. A sweep may have pinned the header meanwhile to read its key.
//!    So the thread that brings the pins to zero again returns the header. A `SPILLED` header has
//!    pins in its word too, so zero in the word means that there are none.
//! 4. *The slot goes first.* The index slot of a header is cleared or replaced, under its
//!    partition's lock, before the retiring pin is released. So under that lock, the key of a
//!    header found in a slot may be read without a pin. The slot is found by the header's address.
//!    If it is not where the key's hash says, another thread has taken it (`UNLINKED`), or the hash
//!    has changed and the whole index is searched.

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

/// The descriptor of one block. One cache line for keys of up to 24 bytes and values of up to 16.
#[repr(C, align(64))]
pub(crate) struct Header<K, V> {
    state: AtomicU64,
    /// Weight of a block in use; next free header of a free one.
    weight: AtomicU32,
    /// Number in the slab. Set when the header is carved, before its first use.
    id: AtomicU32,
    /// Number of uses of the header, wrapping.
    generation: AtomicU32,
    /// When and how often the block was used, as `Frequency` bits. Written by the thread that
    /// inserts the block, then by evictors, which may overwrite each other's count of one use.
    frequency: AtomicU32,
    key: UnsafeCell<MaybeUninit<K>>,
    value: UnsafeCell<MaybeUninit<V>>,
}

#[cfg(not(any(forebay_model, feature = "counting")))]
const _: () = assert!(size_of::<Header<[u64; 3], [u64; 2]>>() == 64, "a header outgrew its line");

// SAFETY: zero is the state of a free header, whose key and value no thread reads; state, weight
// and id are atomic, and key and value are read only by owners of a pin.
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

/// The parts taken out of a header.
pub(crate) struct Contents<K, V> {
    pub(crate) state: HeaderState,
    pub(crate) key: K,
    pub(crate) value: Option<V>,
    pub(crate) weight: u32,
}

/// The work left after a pin was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unpinned {
    /// Nothing.
    Kept,
    /// The caller owns the header and must free it.
    Last,
    /// The caller must move spilled pins back into the word.
    Sparse,
}

impl<K: Copy, V> Header<K, V> {
    #[inline]
    pub(crate) fn state(&self) -> HeaderState {
        HeaderState(self.state.load(Ordering::Acquire))
    }

    /// Pins a valid header (rule 1). Also sets `mark`, so a hit is one atomic update. Returns the
    /// state before.
    ///
    /// # Errors
    ///
    /// The state found, if it is not valid or has too many pins.
    #[inline(always)]
    pub(crate) fn try_pin(&self, mark: u64) -> Result<HeaderState, HeaderState> {
        // Acquire: a slot that is read again after an invalid header is read after it.
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            // One test for both: valid, and not crowded.
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

    /// Makes an anonymous header loading or valid. Until then only its occupier has a pin on it.
    pub(crate) fn announce(&self, bits: u64) {
        let state = self.state.load(Ordering::Relaxed);
        debug_assert!(HeaderState(state).pins() == 1 && state & (VALID | LOADING | RETIRED) == 0);
        self.state.store(state | bits, Ordering::Release);
    }

    /// Releases a pin (rule 3).
    #[inline]
    #[must_use]
    pub(crate) fn unpin(&self) -> Unpinned {
        let before = HeaderState(self.state.fetch_sub(PIN, Ordering::Release));
        debug_assert!(before.pins() > 0, "unpinned too often: {before:?}");
        if before.0 & (RETIRED | SPILLED) == 0 { Unpinned::Kept } else { Self::after_unpin(before) }
    }

    /// The rest of [`unpin`](Self::unpin), kept out of the code of a hit.
    #[cold]
    #[inline(never)]
    fn after_unpin(before: HeaderState) -> Unpinned {
        if before.is_spilled() {
            if before.pins() == PIN {
                // Thousands of threads are between the update in `unpin` and the refill that each
                // owes. The next one would borrow from other bits.
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

    /// Releases a pin if nothing is left to do then. `None`, without a change, if the header is
    /// retired or has spilled pins: the caller must first ensure that the cache outlives the rest.
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

    /// Changes the state from exactly `from` to `to`, in one attempt.
    pub(crate) fn change(&self, from: HeaderState, to: HeaderState) -> bool {
        let result = self.state.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed);
        result.is_ok()
    }

    /// Retires the header (rule 2). Returns the state before, or `None` if it was not in use or is
    /// retired already.
    pub(crate) fn retire(&self, cause: Cause) -> Option<HeaderState> {
        self.update(|s| {
            let in_use = s.has(VALID) || s.has(LOADING);
            (in_use && !s.has(RETIRED)).then(|| s.retired(cause))
        })
    }

    /// Notes that a retired header's slot is gone, so that its retirer or load guard does not look
    /// for it. Called under the lock of the slot's partition.
    pub(crate) fn note_unlinked(&self) {
        self.update(|s| s.has(RETIRED).then(|| s.unlinked()));
    }

    /// Begins the use of a free header. Its state is anonymous.
    ///
    /// # Safety
    ///
    /// The caller owns the header.
    pub(crate) unsafe fn occupy(
        &self,
        key: K,
        weight: u32,
        value: Option<V>,
        (class, sampled): (Class, bool),
    ) {
        debug_assert!(self.state().is_free());
        // SAFETY: only the owner of a free header accesses its key and value.
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
    ///
    /// The caller has its load guard, and the header is not yet `FILLED`.
    pub(crate) unsafe fn fill(&self, value: V, weight: u32) {
        // SAFETY: no thread reads the value before `FILLED`.
        unsafe { (*self.value.get()).write(value) };
        self.weight.store(weight, Ordering::Relaxed);
    }

    /// Frees an anonymous header. Returns the value that it was occupied with.
    ///
    /// # Safety
    ///
    /// The caller is its occupier, has not announced it, and `has_value` is true exactly if it has
    /// a value.
    pub(crate) unsafe fn retract(&self, has_value: bool) -> Option<V> {
        // SAFETY: by contract no other thread has seen the header, and the value was written.
        let value = has_value.then(|| unsafe { (*self.value.get()).assume_init_read() });
        self.set_free();
        value
    }

    /// Takes weight and value out of a header and leaves it retired, with one pin, the caller's.
    /// `None` if it is empty already.
    ///
    /// # Safety
    ///
    /// The caller owns the header (rule 3), and it is out of the index.
    pub(crate) unsafe fn empty(&self) -> Option<Contents<K, V>> {
        let state = HeaderState(self.state.load(Ordering::Relaxed));
        let weight = self.weight.load(Ordering::Relaxed);
        if weight == 0 && !state.has(FILLED) {
            return None;
        }
        // SAFETY: the caller owns the header, which is in use as it holds a weight or a value.
        let contents = unsafe { self.contents() };
        self.weight.store(0, Ordering::Relaxed);
        // No thread changes a retired state without a pin, so no update is lost.
        self.state.store(state.without(FILLED).pinned().0, Ordering::Release);
        Some(contents)
    }

    /// Claims the value of a retired header for its only pin: no other thread has a pin that it may
    /// read the value with, and no new one can come. False, without a change, if that is not so.
    pub(crate) fn claim_value(&self) -> bool {
        let only =
            |s: HeaderState| s.has(RETIRED) && s.has(FILLED) && !s.is_spilled() && s.pins() == PIN;
        self.update(|s| only(s).then(|| s.without(FILLED))).is_some()
    }

    /// Takes value and weight out of a header, which keeps its key, and is empty afterwards.
    ///
    /// # Safety
    ///
    /// The caller has claimed the value, and takes it once.
    pub(crate) unsafe fn take_claimed(&self) -> (V, u32) {
        // SAFETY: written before `FILLED`, which the claim has found and cleared.
        let value = unsafe { (*self.value.get()).assume_init_read() };
        (value, self.weight.swap(0, Ordering::Relaxed))
    }

    /// Moves key, value and weight out of a header. None of them may be read from it afterwards.
    ///
    /// # Safety
    ///
    /// The caller owns the header, and it is retired.
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
    ///
    /// The caller owns the header (rule 3). It is empty and out of the index.
    pub(crate) unsafe fn vacate(&self) -> HeaderState {
        let state = HeaderState(self.state.load(Ordering::Relaxed));
        self.set_free();
        state
    }

    fn set_free(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        self.state.store(HeaderState::free(generation).0, Ordering::Release);
    }

    /// Reads the key.
    ///
    /// # Safety
    ///
    /// The caller holds a pin, or the lock of the partition in which a slot refers to this header.
    #[inline]
    pub(crate) unsafe fn key(&self) -> &K {
        // SAFETY: initialised before the header was reachable, and unchanged until it is freed.
        unsafe { (*self.key.get()).assume_init_ref() }
    }

    /// Reads the value.
    ///
    /// # Safety
    ///
    /// The caller holds a pin taken from a `VALID` state, or knows that the header is `FILLED`.
    #[inline]
    pub(crate) unsafe fn value(&self) -> &V {
        // SAFETY: written before `FILLED`, which `VALID` implies, and unchanged until freed.
        unsafe { (*self.value.get()).assume_init_ref() }
    }

    #[inline]
    pub(crate) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }
    /// Changes the weight of a block that is in no list. The caller holds a pin.
    pub(crate) fn set_weight(&self, weight: u32) {
        self.weight.store(weight, Ordering::Relaxed);
    }
    /// When and how often the block was used.
    pub(crate) fn frequency(&self) -> Frequency {
        Frequency::from_bits(self.frequency.load(Ordering::Relaxed))
    }
    pub(crate) fn set_frequency(&self, frequency: Frequency) {
        self.frequency.store(frequency.bits(), Ordering::Relaxed);
    }
    /// Number in the slab.
    pub(crate) fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }
    pub(crate) fn set_id(&self, id: u32) {
        self.id.store(id, Ordering::Relaxed);
    }
    /// The next header in the chunk's free list. For free headers only.
    pub(crate) fn next_free(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }
    pub(crate) fn set_next_free(&self, next: u32) {
        self.weight.store(next, Ordering::Relaxed);
    }
}
