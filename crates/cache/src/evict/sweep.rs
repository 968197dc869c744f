//! Sweeps: remove all blocks that match a predicate, and wait until no thread uses them.
//!
//! A sweep walks the headers, not the lists, so it finds blocks in every state.
//!
//! Locking: `index-partition` for one block at a time; `released` to wait.

use std::ptr::NonNull;
use std::time::Duration;

use forebay_base::sync::atomic::{Ordering, fence};

use crate::attributes::{Cause, Class};
use crate::header::{FILLED, Header, HeaderState, RETIRED};
use crate::inner::CacheInner;
use crate::key::Key;
use crate::load::load_guard::LoadingPin;

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Retires all blocks for which `wanted` is true. Returns how many, and how many such blocks
    /// are still in use.
    pub(crate) fn sweep(&self, cause: Cause, wanted: impl Fn(&K, Class) -> bool) -> (u64, u64) {
        self.sweep_noting(cause, wanted, |_, _| {})
    }

    /// Sweeps, and calls `leaving` for headers whose last pin was released, or which an evictor is
    /// finishing. Their keys cannot be read any more.
    fn sweep_noting(
        &self,
        cause: Cause,
        wanted: impl Fn(&K, Class) -> bool,
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
            if wanted(&key, before.class()) {
                let hash = self.rehash(&key);
                if let Some(before) = h.retire(cause) {
                    self.unlink(header, hash);
                    self.count_left(header, before, cause);
                    // SAFETY: the pin that `retire` took; this function holds another.
                    unsafe { Self::unpin(NonNull::from(self), header) };
                    removed += u64::from(before.has(FILLED));
                    if cause == Cause::Flushed {
                        self.notify_evicted(&[key]);
                    }
                }
                in_use += u64::from(h.state().pins() > 1);
            }
        });
        (removed, in_use)
    }

    /// Sweeps until no block for which `wanted` is true is in use.
    pub(crate) fn sweep_and_wait(&self, cause: Cause, wanted: impl Fn(&K, Class) -> bool) {
        self.closers.fetch_add(1, Ordering::SeqCst);
        // Inserts that began before have finished.
        self.index.barrier();
        loop {
            let seen = *self.released.0.lock();
            fence(Ordering::SeqCst);
            let mut leaving = Vec::new();
            let note = |header, state: HeaderState| leaving.push((header, state.life()));
            let (_, in_use) = self.sweep_noting(cause, &wanted, note);
            if in_use == 0 {
                // Waits for the headers that this sweep has seen, not for those that others evict
                // meanwhile. So it ends.
                leaving.into_iter().for_each(|(header, life)| self.wait_for_end(header, life));
                break;
            }
            self.wait_for_release(seen);
        }
        self.closers.fetch_sub(1, Ordering::SeqCst);
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
