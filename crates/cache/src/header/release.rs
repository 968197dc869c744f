//! Releases pins, and frees what the last pin leaves: the value, capacity, the header, and the
//! cache itself.
//!
//! Invariants
//!
//! * A value is dropped by the thread that releases the last pin, or by the evictor.
//! * Each header that is pinned when the `Cache` is dropped becomes a hold on `CacheInner`.
//!
//! Locking: none held while values are dropped. `slab-magazine`, `released` or `callback-queue` for
//! one step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use forebay_base::sync::atomic::{Ordering, fence};

use crate::attributes::Cause;
use crate::callbacks::Evicted;
use crate::counters::CacheCounters;
use crate::header::{Contents, Header, HeaderState, RETIRED, Unpinned};
use crate::inner::CacheInner;
use crate::key::Key;
impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Releases a pin of a borrowed reference.
    ///
    /// # Safety
    ///
    /// The caller holds the pin, and something else keeps the cache alive during this call.
    #[inline]
    pub(crate) unsafe fn unpin(inner: NonNull<Self>, header: NonNull<Header<K, V>>) {
        // SAFETY: the caller's pin keeps the header in use.
        match unsafe { header.as_ref() }.unpin() {
            Unpinned::Kept => {}
            // SAFETY: the caller keeps the cache alive, and `unpin` returned `unpinned`.
            unpinned => unsafe { Self::after_unpin(inner, header, unpinned) },
        }
    }

    /// The rest of [`unpin`](Self::unpin), kept out of the code of a hit.
    ///
    /// # Safety
    ///
    /// As for `unpin`, with what the header's `unpin` returned.
    #[cold]
    #[inline(never)]
    unsafe fn after_unpin(inner: NonNull<Self>, header: NonNull<Header<K, V>>, unpinned: Unpinned) {
        match unpinned {
            Unpinned::Kept => {}
            // SAFETY: the last pin of a retired header was released, so this thread owns it; the
            // caller keeps the cache alive.
            Unpinned::Last => unsafe { inner.as_ref().free(header) },
            // SAFETY: the caller keeps the cache alive.
            Unpinned::Sparse => unsafe { inner.as_ref() }.refill(header),
        }
    }

    /// Releases a pin that may outlive the `Cache`.
    ///
    /// # Safety
    ///
    /// The caller holds the pin.
    #[inline]
    pub(crate) unsafe fn unpin_owned(inner: NonNull<Self>, header: NonNull<Header<K, V>>) {
        // SAFETY: the pin keeps the header in use, and the cache alive (`hold`).
        if unsafe { header.as_ref() }.unpin_simply().is_some() {
            return;
        }
        // SAFETY: the pin still keeps the cache alive; from here the hold does.
        unsafe {
            inner.as_ref().hold();
            Self::unpin(inner, header);
            Self::release(inner);
        }
    }

    /// Frees a header after its last pin was released: drops the value, returns capacity and
    /// header.
    ///
    /// # Safety
    ///
    /// The caller owns the header (rule 3 in `header`) and keeps the cache alive.
    pub(crate) unsafe fn free(&self, header: NonNull<Header<K, V>>) {
        // SAFETY: the caller owns the header and keeps the cache alive.
        let state = unsafe { self.finish(header, |weight| self.capacity.release(weight)) };
        if let Some(state) = state {
            self.slab.give(header);
            self.note_freed(state);
        }
    }

    /// Drops the contents of a header and makes it free. The caller then returns it to the slab and
    /// calls [`note_freed`](Self::note_freed). `None` if a sweep has pinned it meanwhile and will
    /// free it.
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free).
    pub(crate) unsafe fn finish(
        &self,
        header: NonNull<Header<K, V>>,
        release: impl FnOnce(u64),
    ) -> Option<HeaderState> {
        // SAFETY: headers live as long as their cache, which the caller keeps alive.
        let h = unsafe { header.as_ref() };
        // SAFETY: the caller owns it, and a retired header's slot is gone before its retiring pin.
        if let Some(contents) = unsafe { h.empty() } {
            self.dispose(contents, release);
            if h.unpin() != Unpinned::Last {
                return None;
            }
        }
        // SAFETY: the caller owns it, it has no slot, and it holds nothing any more.
        Some(unsafe { h.vacate() })
    }

    /// Finishes a header that the evictor has retired. No other thread can have pinned it since: it
    /// was retired without pins, for [`Cause::Capacity`].
    ///
    /// # Safety
    ///
    /// The caller has retired it so, and taken it out of the index.
    pub(crate) unsafe fn finish_evicted(
        &self,
        header: NonNull<Header<K, V>>,
        release: impl FnOnce(u64),
    ) -> HeaderState {
        // SAFETY: by contract, this thread owns it alone.
        let h = unsafe { header.as_ref() };
        // The header stays retired while its value is dropped, so that a close waits for that.
        // SAFETY: this thread owns it, and it has its contents since it was retired for capacity.
        self.dispose(unsafe { h.contents() }, release);
        // SAFETY: this thread owns it, it has no slot, and its contents were taken.
        unsafe { h.vacate() }
    }

    /// Passes a value to the user's listener, or drops it and returns its capacity.
    fn dispose(&self, contents: Contents<K, V>, release: impl FnOnce(u64)) {
        let Contents { state, key, value, weight } = contents;
        let (cause, weight) = (state.cause(), u64::from(weight));
        match (&self.callbacks, value) {
            (Some(callbacks), Some(value)) if cause != Cause::Uncached => {
                let event = Evicted { key, value, class: state.class(), cause, weight };
                if let Err(event) = callbacks.push(event, self.capacity.target() / 8) {
                    self.counters.add(CacheCounters::CALLBACKS_DROPPED, 0, 1);
                    self.drop_value(event);
                    release(weight);
                }
            }
            (_, value) => {
                self.drop_value(value);
                if weight > 0 {
                    release(weight);
                }
            }
        }
    }

    /// Drops a value of the user's. A panic is caught and counted, so that it neither ends the
    /// evictor nor loses capacity.
    fn drop_value<T>(&self, value: T) {
        if std::mem::needs_drop::<T>() && catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
            self.counters.add(CacheCounters::PANICS_CAUGHT, 0, 1);
        }
    }

    /// Tells closing threads that a header was freed, and ends the header's hold if it was
    /// orphaned.
    pub(crate) fn note_freed(&self, state: HeaderState) {
        if self.closers.load(Ordering::SeqCst) > 0 {
            *self.released.0.lock() += 1;
            self.released.1.notify_all();
        }
        if state.is_orphaned() {
            // SAFETY: the hold that `orphan_the_pinned` took for this header; the caller has its
            // own.
            unsafe { Self::release(NonNull::from(self)) };
        }
    }

    /// Keeps `self` alive until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::Relaxed);
    }

    /// Releases a hold. The last one frees the cache.
    ///
    /// # Safety
    ///
    /// The caller has a hold, and does not use `inner` afterwards.
    pub(crate) unsafe fn release(inner: NonNull<Self>) {
        // SAFETY: the hold keeps it alive.
        if unsafe { inner.as_ref() }.holds.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: made by `Box::leak` in the builder, and this was the last hold.
            drop(unsafe {
                Box::from_raw(std::ptr::with_exposed_provenance_mut::<Self>(inner.addr().get()))
            });
        }
    }

    /// Converts the pins that outlive the `Cache` to holds.
    pub(crate) fn orphan_the_pinned(&self) {
        self.slab.for_each(|header| {
            self.hold();
            // Headers retired for capacity belong to their evictor, which has another hold.
            let outlives =
                |s: HeaderState| s.has(RETIRED) && s.pins() > 0 && s.cause() != Cause::Capacity;
            // SAFETY: headers are type-stable.
            let orphaned = unsafe { header.as_ref() }.update(|s| outlives(s).then(|| s.orphaned()));
            if orphaned.is_none() {
                // SAFETY: the hold taken above; the caller has its own.
                unsafe { Self::release(NonNull::from(self)) };
            }
        });
    }
}
