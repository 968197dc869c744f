//! Expiry: the walk by which the reclaimer removes values whose time is over.
//!
//! A lookup refuses an expired value by itself. The walk frees the memory of those that nobody asks
//! for. A walk visits all headers, a chunk of the slab at a time. It begins when a value may have
//! expired, advances once in [`PACE_NS`], and then by at most one part in [`PARTS`] of the headers.
//! So the walk costs a bounded share of a processor, and an expired value is freed within about
//! `PARTS` times `PACE_NS`. Between two chunks the reclaimer looks whether it is needed.
//!
//! Invariant: a walk begins with [`Expiry::begin_walk`], which forgets when the next value expires.
//! Values that the walk leaves are noted again, and each value is noted once it is cached. So no
//! value is missed for good.
//!
//! Locking: `slab-central` to find a chunk; then those of a removal.

use forebay_base::sync::atomic::Ordering;

use crate::attributes::Cause;
use crate::guard::Ref;
use crate::header::VALID;
use crate::inner::CacheInner;
use crate::key::Key;

/// Time between two slices of a walk.
const PACE_NS: u64 = 1_000_000_000;
/// Slices of a walk, if there are enough chunks.
const PARTS: usize = 8;

/// Tells which values have expired.
pub(crate) trait Expiry<V>: Send + Sync {
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
    /// Chunks left in this slice.
    budget: usize,
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
            walk.budget = self.slab.chunks().div_ceil(PARTS);
            walk.next = walk.next.or_else(|| expiry.begin_walk().then_some(0));
        }
        while let Some(chunk) = walk.next
            && walk.budget > 0
        {
            // Before the chunk, so that a panic does not repeat it.
            walk.budget -= 1;
            walk.next = Some(chunk + 1);
            if self.expire_chunk(chunk, expiry).is_none() {
                walk.next = None;
            }
            if self.signal.wanted.load(Ordering::Acquire) {
                break;
            }
        }
    }

    /// Removes all expired values now. Returns how many.
    pub(crate) fn expire_all(&self) -> u64 {
        let Some(expiry) = self.expiry.as_deref() else { return 0 };
        expiry.begin_walk();
        (0..).map_while(|chunk| self.expire_chunk(chunk, expiry)).sum()
    }

    /// Removes the expired values of a chunk. Returns how many, or `None` if there is no such
    /// chunk.
    fn expire_chunk(&self, chunk: usize, expiry: &dyn Expiry<V>) -> Option<u64> {
        let mut removed = 0;
        let is_chunk = self.slab.for_each_of_chunk(chunk, |header| {
            // SAFETY: headers are type-stable.
            let h = unsafe { header.as_ref() };
            if self.pin_if(h, |s| s.has(VALID).then_some(s)).is_none() {
                return;
            }
            // SAFETY: pinned just now, from a valid state.
            let block = unsafe { Ref::from_pin(self, header) };
            if expiry.check_and_note(&block) && block.remove(Cause::Expired) {
                removed += 1;
            }
        });
        is_chunk.then_some(removed)
    }
}
