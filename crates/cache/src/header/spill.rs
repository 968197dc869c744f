//! Pins beyond those that a header's word can count.
//!
//! A header may have any number of pins, as a value in an `Arc` may have any number of owners: guards are
//! cloned, kept in vectors, forgotten. The word counts tens of thousands, which is all that is needed where nobody
//! tries to have more. Whoever finds a word *crowded* first *spills*: moves a batch of its pins into the table
//! here. Pins are not told apart: all are given up at the word, and whoever leaves it *sparse* then *refills* it from
//! the table. So neither taking nor giving up a pin costs more than before, nor can it fail.
//!
//! Invariants
//! * A header has an entry here while its word says `SPILLED`: both change under the lock. Hence a header with an entry
//!   has pins, and is in use.
//! * The word of such a header has pins. Each thread that leaves it sparse refills it before it does
//!   anything else, so that its pins would reach zero only if as many threads as a sparse word has pins
//!   were between the two at once; `Header::unpin` ends the process then.
//!
//! Locking: `spilled-pins`, a leaf lock.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ptr::NonNull;

use forebay_base::sync::Mutex;

use crate::header::{Header, HeaderState, VALID};
use crate::inner::CacheInner;
use crate::key::Key;

/// Batches of pins, by the address of the header.
pub(crate) struct SpilledPins {
    batches: Mutex<HashMap<usize, u64>>,
}

impl SpilledPins {
    pub(crate) fn new() -> Self {
        Self { batches: Mutex::named("spilled-pins", HashMap::new()) }
    }

    /// Headers with pins here, for audits.
    pub(crate) fn headers(&self) -> usize {
        self.batches.lock().len()
    }
}

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Pins a header in the state that `change` makes of its own, unless that declines. Returns the state before.
    ///
    /// `change` says yes only to a state in which the header is in use, and nobody owns it alone.
    pub(crate) fn pin_if(
        &self,
        h: &Header<K, V>,
        change: impl Fn(HeaderState) -> Option<HeaderState>,
    ) -> Option<HeaderState> {
        loop {
            let mut crowded = false;
            let before = h.update(|s| {
                let next = change(s);
                crowded = next.is_some() && s.is_crowded();
                next.filter(|_| !crowded).map(HeaderState::pinned)
            });
            if !crowded {
                return before;
            }
            self.spill(h);
        }
    }

    /// One more pin for a holder of one.
    ///
    /// # Safety
    /// The caller holds a pin on the header.
    pub(crate) unsafe fn pin_again(&self, header: NonNull<Header<K, V>>) {
        // SAFETY: headers are type-stable.
        let pinned = self.pin_if(unsafe { header.as_ref() }, Some);
        debug_assert!(pinned.is_some_and(|before| before.pins() > 0));
    }

    /// As `Header::try_pin` of a header that has just been crowded.
    ///
    /// # Errors
    /// What was met instead: not valid.
    #[cold]
    #[inline(never)]
    pub(crate) fn pin_crowded(
        &self,
        h: &Header<K, V>,
        mark: u64,
    ) -> Result<HeaderState, HeaderState> {
        loop {
            self.spill(h);
            match h.try_pin(mark) {
                Err(state) if state.has(VALID) => {}
                tried => return tried,
            }
        }
    }

    /// Moves pins of a header out of its word, if that is crowded. The caller need not have a pin: a crowded
    /// header is in use, whatever block it has by now.
    #[cold]
    fn spill(&self, h: &Header<K, V>) {
        let mut batches = self.spilled.batches.lock();
        if h.update(|s| s.is_crowded().then(|| s.spilled())).is_some() {
            *batches.entry(std::ptr::from_ref(h).addr()).or_default() += 1;
        }
    }

    /// Moves pins of a header back into its word, if that is sparse. The caller's pin has gone; the
    /// header has an entry only if it is in use, whatever block it has by now.
    #[cold]
    pub(crate) fn refill(&self, header: NonNull<Header<K, V>>) {
        let mut batches = self.spilled.batches.lock();
        let Entry::Occupied(mut entry) = batches.entry(header.addr().get()) else { return };
        let all = *entry.get() == 1;
        // SAFETY: headers are type-stable.
        let h = unsafe { header.as_ref() };
        if h.update(|s| s.is_sparse().then(|| s.refilled(all))).is_none() {
            return;
        }
        if all {
            entry.remove();
        } else {
            *entry.get_mut() -= 1;
        }
    }
}
