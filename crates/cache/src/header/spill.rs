//! Pins beyond those that a header's word can count.
//!
//! A header may have any number of pins: references may be cloned, kept in vectors, or leaked. The
//! word counts tens of thousands, enough for all ordinary use. A thread that finds the word
//! *crowded* first *spills*: it moves a batch of pins to the table here. All pins are released at
//! the word, and a thread that leaves it *sparse* *refills* it from the table. So pinning never
//! fails, and costs no more than without the table.
//!
//! Invariants
//!
//! * A header has an entry here exactly while its word has `SPILLED`. Both change under the lock.
//!   So a header with an entry has pins and is in use.
//! * The word of such a header has pins. Each thread that leaves it sparse refills it before it
//!   does anything else. The word could reach zero only if half as many threads as a crowded word
//!   has pins were between these two steps at once. `Header::unpin` then ends the process.
//!
//! Locking: `spilled-pins`, a leaf lock.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ptr::NonNull;

use forebay_base::sync::Mutex;

use crate::header::{Header, HeaderState, VALID};
use crate::inner::CacheInner;
use crate::key::Key;

/// Batches of pins, by header address.
pub(crate) struct SpilledPins {
    batches: Mutex<HashMap<usize, u64>>,
}

impl SpilledPins {
    pub(crate) fn new() -> Self {
        Self { batches: Mutex::named("spilled-pins", HashMap::new()) }
    }

    /// Headers with spilled pins, for audits.
    pub(crate) fn headers(&self) -> usize {
        self.batches.lock().len()
    }
}

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Pins a header and changes its state by `change`, unless that declines. Returns the state
    /// before.
    ///
    /// `change` must accept only states of headers that are in use and not owned by a single
    /// thread.
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

    /// Adds a pin for a thread that has one.
    ///
    /// # Safety
    ///
    /// The caller holds a pin on the header.
    pub(crate) unsafe fn pin_again(&self, header: NonNull<Header<K, V>>) {
        // SAFETY: headers are type-stable.
        let pinned = self.pin_if(unsafe { header.as_ref() }, Some);
        debug_assert!(pinned.is_some_and(|before| before.pins() > 0));
    }

    /// Pins a header that was crowded a moment ago.
    ///
    /// # Errors
    ///
    /// The state found, if it is not valid.
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

    /// Moves pins out of the word of a crowded header. The caller needs no pin: a crowded header is
    /// in use, whatever block it has by now.
    #[cold]
    fn spill(&self, h: &Header<K, V>) {
        let mut batches = self.spilled.batches.lock();
        if h.update(|s| s.is_crowded().then(|| s.spilled())).is_some() {
            *batches.entry(std::ptr::from_ref(h).addr()).or_default() += 1;
        }
    }

    /// Moves pins back into the word of a sparse header. The caller's pin is released already. If
    /// the header has an entry it is in use, whatever block it has by now.
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
