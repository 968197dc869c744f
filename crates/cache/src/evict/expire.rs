//! Expiry: the walk by which the reclaimer removes values whose time is over.
//!
//! A lookup refuses an expired value by itself. The walk frees the memory of those that nobody asks
//! for. A walk visits all headers, a chunk of the slab at a time. It begins when a value may have
//! expired, and advances once in [`PACE_NS`] by one part in [`PARTS`] of the headers, at least by a
//! chunk. So it costs a bounded share of a processor, and an expired value is freed within about
//! `PARTS` times `PACE_NS`. Between two chunks the reclaimer looks whether it is needed.
//!
//! Invariant: a walk begins with [`Expiry::begin_walk`], which forgets when the next value expires.
//! Values that the walk leaves are noted again, and each value is noted once it is cached. So no
//! value is missed for good.
//!
//! Locking: `slab-central` to find a chunk; then those of a removal.

use std::ops::Range;

use forebay_base::sync::atomic::Ordering;

use crate::attributes::Cause;
use crate::guard::Ref;
use crate::header::{Header, VALID};
use crate::inner::CacheInner;
use crate::key::Key;

/// Time between two slices of a walk.
const PACE_NS: u64 = 1_000_000_000;
/// Slices of a walk, if there are enough headers.
const PARTS: u64 = 8;

/// Tells the reclaimer which values have expired, for a layer whose lookups refuse those.
pub trait Expiry<V>: Send + Sync {
    /// Begins a walk if a value may have expired.
    fn begin_walk(&self) -> bool;
    /// Whether a value has expired. If not, notes when it will.
    fn check_and_note(&self, value: &V) -> bool;
}

/// Where the reclaimer's walk is.
#[derive(Default)]
pub(crate) struct ExpiryWalk {
    /// The next chunk, if a walk is in progress.
    next: Option<usize>,
    /// Headers left in this slice.
    budget: u64,
    /// When the last slice began.
    slice_ns: u64,
}

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Goes on with the walk, if it is time.
    pub(crate) fn expire_some(&self, walk: &mut ExpiryWalk) {
        let Some(expiry) = self.expiry.as_deref() else { return };
        let now_ns = self.clock.now_ns();
        if now_ns.saturating_sub(walk.slice_ns) >= PACE_NS {
            walk.slice_ns = now_ns;
            walk.budget = self.slab.bytes() / size_of::<Header<K, V>>() as u64 / PARTS + 1;
            walk.next = walk.next.or_else(|| expiry.begin_walk().then_some(0));
        }
        while let Some(chunk) = walk.next
            && walk.budget > 0
        {
            let Some(ids) = self.slab.ids_of_chunk(chunk) else {
                walk.next = None;
                break;
            };
            // Before the chunk, so that a panic does not repeat it.
            walk.next = Some(chunk + 1);
            walk.budget = walk.budget.saturating_sub(ids.len() as u64);
            self.expire(ids, expiry);
            if self.signal.wanted.load(Ordering::Acquire) {
                break;
            }
        }
    }

    /// Removes all expired values now. Returns how many.
    pub(crate) fn expire_all(&self) -> u64 {
        let Some(expiry) = self.expiry.as_deref() else { return 0 };
        expiry.begin_walk();
        let chunks = (0..).map_while(|chunk| self.slab.ids_of_chunk(chunk));
        chunks.map(|ids| self.expire(ids, expiry)).sum()
    }

    /// Removes the expired values of some headers. Returns how many.
    fn expire(&self, ids: Range<u32>, expiry: &dyn Expiry<V>) -> u64 {
        let mut removed = 0;
        for header in ids.filter_map(|id| self.slab.by_id(id)) {
            // SAFETY: headers are type-stable.
            let h = unsafe { header.as_ref() };
            if self.pin_if(h, |s| s.has(VALID).then_some(s)).is_none() {
                continue;
            }
            // SAFETY: pinned just now, from a valid state.
            let block = unsafe { Ref::from_pin(self, header) };
            if expiry.check_and_note(&block) {
                removed += u64::from(self.expire_block(&block));
            }
        }
        removed
    }

    /// Removes a block from memory, because its time is over, unless it has left already.
    pub(crate) fn expire_block(&self, block: &Ref<'_, K, V>) -> bool {
        let removed = block.remove(Cause::Expired).is_some();
        if removed {
            self.notify_evicted(&[*block.key()]);
        }
        removed
    }
}
