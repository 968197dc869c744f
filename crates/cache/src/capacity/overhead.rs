//! Memory that the cache uses for itself, by kind. The hard bound includes it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::counters::CacheCounters;
use crate::inner::CacheInner;
use crate::key::Key;

/// Bytes that the cache uses beside the blocks, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// Headers, including free ones.
    pub headers: u64,
    /// Lines and directories of the index.
    pub index: u64,
    /// Rings of the resident lists.
    pub lists: u64,
    /// Rings of the ghost lists. Their slots are in `index`.
    pub ghosts: u64,
    /// Resident but unused memory of headers, index and rings: the rest of huge pages, and memory
    /// kept for reuse.
    pub slack: u64,
    /// Counters, locks and tables whose size does not depend on the number of blocks, and the
    /// miniature simulations and the flight recorder, which grow with the first few thousand
    /// blocks.
    pub fixed: u64,
    /// Bytes of headers and index that are part of the weight of the cached blocks, with a hard
    /// bound.
    pub in_weights: u64,
    /// Bytes that the builder's `overhead` function reports, such as an arena's slack.
    pub others: u64,
}

impl Overhead {
    /// The sum of all kinds, without what is part of the weight of blocks.
    pub fn total(&self) -> u64 {
        let own = self.headers + self.index + self.lists + self.ghosts + self.slack + self.fixed;
        own.saturating_sub(self.in_weights).saturating_add(self.others)
    }
}

/// The overhead by kind. Takes the lock of each list once.
pub(crate) fn by_kind<K: Key, V: Send + Sync + 'static>(inner: &CacheInner<K, V>) -> Overhead {
    let lists = inner.resident.iter().flatten().flat_map(|list| list.iter());
    Overhead {
        headers: inner.slab.bytes(),
        index: inner.index.used_bytes(),
        slack: inner.slab.slack_bytes()
            + inner.index.idle_bytes()
            + inner.free_blocks.bytes()
            + inner.free_ghosts.bytes(),
        lists: lists.map(|sublist| sublist.lock().bytes()).sum(),
        ghosts: inner.ghosts.iter().map(|g| g.memory_bytes()).sum(),
        fixed: size_of::<CacheInner<K, V>>() as u64
            + FIXED
            + inner.simulations.memory_bytes()
            + inner.recorder.memory_bytes(),
        in_weights: inner.resident_blocks() * inner.structure_bytes(),
        others: others(inner),
    }
}

/// Bytes that the user's function reports. A panic in it is caught and counted, and reports zero,
/// so that it costs no inserter its capacity.
fn others<K: Key, V: Send + Sync + 'static>(inner: &CacheInner<K, V>) -> u64 {
    let Some(tell) = inner.bound.as_ref().and_then(|b| b.others.as_ref()) else { return 0 };
    catch_unwind(AssertUnwindSafe(tell)).unwrap_or_else(|_| {
        inner.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
        0
    })
}

/// Approximate size of the counters' shards, owners' modes and magazines.
const FIXED: u64 = 128 << 10;

/// See [`Overhead::total`].
pub(crate) fn bytes<K: Key, V: Send + Sync + 'static>(inner: &CacheInner<K, V>) -> u64 {
    by_kind(inner).total()
}
