//! Memory that the cache uses beside the blocks, by kind. The hard bound counts it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::counters::CacheCounters;
use crate::inner::CacheInner;
use crate::key::Key;

/// Bytes of overhead by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// Headers, free ones included.
    pub headers: u64,
    /// The index's lines and directories.
    pub index: u64,
    /// The rings of the resident lists.
    pub lists: u64,
    /// The rings of the ghosts; their slots are in `index`.
    pub ghosts: u64,
    /// Memory of headers and of the index that is resident and unused: the rest of huge pages, and
    /// what waits to be used again.
    pub slack: u64,
    /// Counters, locks and tables that do not depend on the number of blocks, but for the policy's shadow caches, which
    /// grow up to a few hundred blocks.
    pub fixed: u64,
    /// What the `overhead` function given to the builder tells, an arena's slack for instance.
    pub others: u64,
}

impl Overhead {
    /// All kinds together.
    pub fn total(&self) -> u64 {
        let own = self.headers + self.index + self.lists + self.ghosts + self.slack + self.fixed;
        own.saturating_add(self.others)
    }
}

/// By kind. Takes every list's lock once.
pub(crate) fn by_kind<K: Key, V: Send + Sync + 'static>(inner: &CacheInner<K, V>) -> Overhead {
    let lists = inner.resident.iter().flatten().flat_map(|list| list.iter());
    Overhead {
        headers: inner.slab.bytes(),
        index: inner.index.used_bytes(),
        slack: inner.slab.slack_bytes() + inner.index.idle_bytes(),
        lists: lists.map(|sublist| sublist.lock().bytes()).sum(),
        ghosts: inner.ghosts.iter().map(|g| g.memory_bytes()).sum(),
        fixed: size_of::<CacheInner<K, V>>() as u64 + FIXED + inner.simulations.memory_bytes(),
        others: others(inner),
    }
}

/// What the user's function tells. A panic in it must not cost an inserter its room: it is caught and
/// counted, and tells nothing.
fn others<K: Key, V: Send + Sync + 'static>(inner: &CacheInner<K, V>) -> u64 {
    let Some(tell) = inner.bound.as_ref().and_then(|b| b.others.as_ref()) else { return 0 };
    catch_unwind(AssertUnwindSafe(tell)).unwrap_or_else(|_| {
        inner.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
        0
    })
}

/// Counters' shards, owners' modes, magazines: about.
const FIXED: u64 = 128 << 10;

/// All kinds together.
pub(crate) fn bytes<K: Key, V: Send + Sync + 'static>(inner: &CacheInner<K, V>) -> u64 {
    by_kind(inner).total()
}
