//! Calls of a key's `Hash`, `Eq` and `owner`, which are user code: they may answer differently each
//! time, or panic. A wrong answer costs misses, but never a block that is in use.
//!
//! * What a header's slot depends on is not asked twice. A header is unlinked by its address; if it
//!   is not where its key's hash says, the whole index is searched (`insert`, `evict::demote`).
//! * An operation asks the caller's key first, and undoes what it holds if that panics
//!   ([`undone`]). Then the panic is the caller's.
//! * All other calls come in the middle of a step that must be finished. A panic in one is caught
//!   and counted, except under the lock of a partition, where it is caught. Its answer is the one
//!   that costs least.
//!
//! Not defended against: a call that uses the same cache. Under a partition's lock it may hang.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::counters::CacheCounters;
use crate::inner::CacheInner;
use crate::key::{Key, OwnerId};

/// Runs a call that may panic, and then `undo`, before the panic goes on.
#[inline(always)]
pub(crate) fn undone<T>(undo: impl Fn(), call: impl FnOnce() -> T) -> T {
    struct Undo<F: Fn()>(F);
    impl<F: Fn()> Drop for Undo<F> {
        #[inline(always)]
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let undo = Undo(undo);
    let result = call();
    std::mem::forget(undo);
    result
}

/// Whether a key in the index is the one that is looked for. False if the comparison panics.
pub(crate) fn is_key<K: Key>(in_index: &K, wanted: &K) -> bool {
    catch_unwind(AssertUnwindSafe(|| in_index == wanted)).unwrap_or(false)
}

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// The hash of the key of a header, in the middle of a step.
    pub(crate) fn rehash(&self, key: &K) -> u64 {
        self.caught(|| self.hash(key)).unwrap_or(0)
    }

    /// The owner of a key, in the middle of a step.
    pub(crate) fn owner_of(&self, key: &K) -> OwnerId {
        self.caught(|| key.owner()).unwrap_or(OwnerId::NONE)
    }

    fn caught<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        let result = catch_unwind(AssertUnwindSafe(call)).ok();
        if result.is_none() {
            self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
        }
        result
    }
}
