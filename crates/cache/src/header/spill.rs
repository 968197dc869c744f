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
//! * The word of such a header has pins. Pins of a spilled word are released by `CacheInner::unpin`
//!   only, and a thread that leaves it sparse refills it before it does anything else. The word
//!   could reach zero only if half as many threads as a crowded word has pins were between these
//!   two steps at once. `Header::unpin` then ends the process.
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

#[cfg(test)]
mod tests {
    use forebay_base::sync::{Arc, Mutex};

    use crate::cache::Cache;
    use crate::guard::OwnedRef;
    use crate::header::state::CROWDED;

    type Guards = Arc<Mutex<Vec<OwnedRef<u64, Value>>>>;

    /// A value that calls a function when it is dropped.
    struct Value(Option<Box<dyn FnOnce() + Send + Sync>>);

    impl Drop for Value {
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(|run| run());
        }
    }

    /// Pins the block until its word spills, and drops guards until one pin less is sparse.
    fn pin_to_the_edge(cache: &Cache<u64, Value>, guards: &Guards) {
        let mut taken = vec![cache.get_owned(&1).expect("its insert has announced it")];
        while !taken[0].header().state().is_spilled() {
            taken.push(taken[0].clone());
        }
        while taken[0].header().state().pins() > CROWDED / 2 {
            taken.pop();
        }
        guards.lock().extend(taken);
    }

    /// While an insert drops the value that it replaces, lookups find its block already. The insert
    /// still has a pin on it then, and must refill the word if releasing that leaves it sparse.
    #[test]
    fn an_insert_refills_the_word_that_it_leaves_sparse() {
        let cache = Cache::builder().capacity(10).weigher(|_, _| 1).build();
        let cache = Arc::new(cache.expect("a small cache"));
        let guards: Guards = Arc::new(Mutex::named("test-guards", Vec::new()));
        let (inside, kept) = (cache.clone(), guards.clone());
        let old = Value(Some(Box::new(move || pin_to_the_edge(&inside, &kept))));
        assert!(cache.insert(1, old).is_ok());
        assert!(cache.insert(1, Value(None)).is_ok());
        let guards = std::mem::take(&mut *guards.lock());
        let state = guards[0].header().state();
        assert!(!state.is_sparse(), "{state:?}");
        assert!(guards[0].is_cached());
        drop(guards);
        cache.audit();
    }
}
