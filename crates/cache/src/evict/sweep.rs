//! Sweeps: remove all blocks that match a predicate, and wait until no thread uses them; visit all
//! blocks.
//!
//! A sweep walks the headers, not the lists, so it finds blocks in every state.
//!
//! Locking: `index-partition` for one block at a time; `released` to wait.

use std::ptr::NonNull;
use std::time::Duration;

use forebay_base::sync::atomic::{Ordering, fence};

use crate::attributes::{Cause, Class};
use crate::header::{FILLED, Header, HeaderState, LOADING, RETIRED, VALID};
use crate::inner::CacheInner;
use crate::key::Key;
use crate::load::load_guard::LoadingPin;

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Retires all blocks for which `wanted` is true. Returns how many.
    pub(crate) fn sweep(&self, cause: Cause, wanted: impl Fn(&K, Class) -> bool) -> u64 {
        self.sweep_noting(cause, |key, state, _| wanted(key, state.class()), |_, _| {}).0
    }

    /// Retires all blocks for which `keep` is false, and those that are being loaded. Returns how
    /// many were cached.
    pub(crate) fn retain(&self, mut keep: impl FnMut(&K, &V, Class) -> bool) -> u64 {
        let wanted = |key: &K, state: HeaderState, h: &Header<K, V>| {
            if !state.has(VALID) {
                return state.has(LOADING);
            }
            // SAFETY: pinned by the sweep, from a valid state.
            !keep(key, unsafe { h.value() }, state.class())
        };
        self.sweep_noting(Cause::Cleared, wanted, |_, _| {}).0
    }

    /// Sweeps, and calls `leaving` for headers whose last pin was released, or which an evictor is
    /// finishing. Their keys cannot be read any more. Returns how many blocks were cached and were
    /// removed, and how many wanted blocks are still in use.
    fn sweep_noting(
        &self,
        cause: Cause,
        mut wanted: impl FnMut(&K, HeaderState, &Header<K, V>) -> bool,
        mut leaving: impl FnMut(NonNull<Header<K, V>>, HeaderState),
    ) -> (u64, u64) {
        let (mut removed, mut in_use) = (0, 0);
        self.slab.for_each(|header| {
            // SAFETY: headers are type-stable.
            let h = unsafe { header.as_ref() };
            let Some(before) = self.pin_if(h, |s| s.is_in_use().then_some(s)) else {
                let state = h.state();
                if state.has(RETIRED) {
                    leaving(header, state);
                }
                return;
            };
            // Released by its drop, even if the user's `wanted` panics.
            let _pin = LoadingPin { header, inner: NonNull::from(self) };
            // SAFETY: pinned, so the key stays; it was written before the header was in use.
            let key = unsafe { *h.key() };
            if wanted(&key, before, h) {
                let hash = self.rehash(&key);
                if let Some(before) = h.retire(cause) {
                    self.unlink(header, hash);
                    self.count_left(header, before, cause);
                    // SAFETY: the pin that `retire` took; this function holds another.
                    unsafe { Self::unpin(NonNull::from(self), header) };
                    removed += u64::from(before.has(FILLED));
                    if cause == Cause::Cleared {
                        self.notify_evicted(&[key]);
                    }
                }
                in_use += u64::from(h.state().pins() > 1);
            }
        });
        (removed, in_use)
    }

    /// Sweeps until no block for which `wanted` is true is in use, or until that time by the
    /// cache's clock. Returns how many are still in use.
    pub(crate) fn sweep_and_wait(
        &self,
        cause: Cause,
        wanted: impl Fn(&K, Class) -> bool,
        deadline_ns: Option<u64>,
    ) -> u64 {
        self.closers.fetch_add(1, Ordering::SeqCst);
        // Inserts that began before have finished.
        self.index.barrier();
        let left = loop {
            let seen = *self.released.0.lock();
            fence(Ordering::SeqCst);
            let mut leaving = Vec::new();
            let note = |header, state: HeaderState| leaving.push((header, state.life()));
            let wanted = |key: &K, state: HeaderState, _: &Header<K, V>| wanted(key, state.class());
            let (_, in_use) = self.sweep_noting(cause, wanted, note);
            if in_use == 0 {
                // Waits for the headers that this sweep has seen, not for those that others evict
                // meanwhile. So it ends.
                leaving.into_iter().for_each(|(header, life)| self.wait_for_end(header, life));
                break 0;
            }
            if deadline_ns.is_some_and(|deadline| self.clock.now_ns() >= deadline) {
                break in_use;
            }
            self.wait_for_release(seen);
        };
        self.closers.fetch_sub(1, Ordering::SeqCst);
        left
    }

    /// Waits until a retired header was freed.
    fn wait_for_end(&self, header: NonNull<Header<K, V>>, life: u64) {
        loop {
            let seen = *self.released.0.lock();
            fence(Ordering::SeqCst);
            // SAFETY: headers are type-stable.
            if unsafe { header.as_ref() }.state().life() != life {
                return;
            }
            self.wait_for_release(seen);
        }
    }

    /// Waits until more than `seen` headers were freed.
    fn wait_for_release(&self, seen: u64) {
        let mut released = self.released.0.lock();
        if *released == seen {
            // The timeout bounds the cost of a wake-up lost to a sweep's own pins.
            self.released.1.wait_timeout(&mut released, Duration::from_millis(10));
        }
    }
}
