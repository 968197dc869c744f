//! Giving free memory back, so that the limit holds and freed bytes serve every size.
//!
//! Purpose: find backed pages that no live block touches, in the pool first, then in the
//! classes in turn, and release them. When that does not suffice, blocks are called back from
//! the magazines.
//!
//! The system calls run outside the locks of classes and pool: the pages' chunk is in no list
//! meanwhile. Freed pages become leave of the purger, so that no other thread can take them
//! from under it.
//!
//! Locking: `arena-reclaim` is held throughout; a thread that finds no room waits here, since
//! what another purger is about to release may be what it needs.

use super::budget::Leave;
use super::class::Purge;
use super::classes::{CLASSES, MAGAZINE_CLASSES};
use super::inner::Inner;
use super::lists::ChunkPtr;
use super::pages::PageSet;
use super::region;
use crate::sync::atomic::Ordering;

/// A purger releases this much more than it must, to be called less often ...
const PURGE_AHEAD_BYTES: u64 = 256 << 10;
/// ... but at most this share of the limit.
const PURGE_AHEAD_SHARE: u64 = 64;

/// How often the magazines are called back and all is searched once more before an allocation
/// fails. More than once, since a chunk can pass from the pool to a class behind the purger.
const CALLS_BACK: usize = 2;

/// Chunks of the pool or of a class of which the system takes not all pages, since the process has
/// locked them: after this many, a purger looks no further there.
const MOST_LOCKED: usize = 16;

impl Inner {
    /// Leave for `needed` bytes, released from wherever they are free.
    pub(super) fn reserve_hard(&self, needed: u64) -> Option<Leave<'_>> {
        if self.used().saturating_add(needed) > self.account.limit() {
            // Hopeless: do not empty everybody's magazines for it.
            return None;
        }
        let mut start = self.reclaim.lock();
        self.gather(&mut start, needed, CALLS_BACK)
    }

    /// Releases what exceeds the limit, as far as it is free.
    #[cold]
    pub(super) fn trim(&self) {
        let mut start = self.reclaim.lock();
        drop(self.gather(&mut start, 0, 0));
        self.account.settled(!self.closed.load(Ordering::SeqCst));
    }

    /// Sets the limit and releases what exceeds it.
    pub(super) fn set_limit(&self, limit: u64) {
        self.account.set_limit(limit);
        if self.account.excess() > 0 {
            self.drain_magazines();
        }
        self.trim();
    }

    /// Releases all that is free. Returns bytes.
    pub(super) fn purge(&self) -> u64 {
        let mut start = self.reclaim.lock();
        self.drain_magazines();
        self.purge_some(&mut start, u64::MAX, &mut self.account.no_leave())
    }

    fn gather(&self, start: &mut usize, needed: u64, calls_back: usize) -> Option<Leave<'_>> {
        let mut calls_back = calls_back;
        let mut leave = self.account.no_leave();
        loop {
            leave.grow_to(needed);
            let missing = needed - leave.bytes() + self.account.excess();
            if missing == 0 {
                return Some(leave);
            }
            let ahead = PURGE_AHEAD_BYTES.min(self.account.limit() / PURGE_AHEAD_SHARE);
            let freed = self.purge_some(start, missing + ahead, &mut leave);
            leave.shrink_to(needed);
            if freed == 0 {
                if calls_back == 0 {
                    return None;
                }
                calls_back -= 1;
                self.drain_magazines();
            }
        }
    }

    /// Releases about `want` bytes, less if less is free. Returns how many.
    fn purge_some(&self, start: &mut usize, want: u64, leave: &mut Leave<'_>) -> u64 {
        let mut freed = self.purge_pool(want, leave);
        for _ in 0..CLASSES {
            if freed >= want {
                return freed;
            }
            freed += self.purge_class(*start, want - freed, leave);
            if freed < want {
                *start = (*start + 1) % CLASSES;
            }
        }
        // Last, since an emptied chunk moves from its class to the pool.
        freed + self.purge_pool(want.saturating_sub(freed), leave)
    }

    fn purge_pool(&self, want: u64, leave: &mut Leave<'_>) -> u64 {
        let mut freed = 0;
        // Put back at the end, or they would be the next ones again.
        let mut locked = Vec::new();
        while freed < want && locked.len() < MOST_LOCKED {
            let taken = self.pool.lock().take_warm(0);
            let Some(chunk) = taken else { break };
            // SAFETY: just taken from the pool, so it is ours.
            let c = unsafe { chunk.get() };
            let pages = c.backed;
            let was_huge = std::mem::replace(&mut c.huge, false);
            let released = self.release(chunk, &pages, was_huge, leave);
            c.backed.remove_all(&released);
            freed += self.bytes_of(&released);
            if released == pages {
                // SAFETY: ours, and given up here.
                unsafe { self.pool.lock().put(chunk) };
            } else {
                locked.push(chunk);
            }
        }
        for chunk in locked {
            // SAFETY: ours since it was taken, and given up here.
            unsafe { self.pool.lock().put(chunk) };
        }
        freed
    }

    fn purge_class(&self, class: usize, want: u64, leave: &mut Leave<'_>) -> u64 {
        let mut freed = 0;
        // Finished at the end, or they would be the next ones again.
        let mut locked = Vec::new();
        let finish = |purge: &Purge, released: &PageSet| {
            let mut c = self.class(class);
            let given = c.finish_purge(purge, released);
            self.retire(given);
        };
        while freed < want && locked.len() < MOST_LOCKED {
            let bytes = usize::try_from(want - freed).unwrap_or(usize::MAX);
            let begun = self.class(class).begin_purge(bytes);
            let Some(purge) = begun else { break };
            let released = self.release(purge.chunk, &purge.pages, purge.was_huge, leave);
            freed += self.bytes_of(&released);
            if released == purge.pages {
                finish(&purge, &released);
            } else {
                locked.push((purge, released));
            }
        }
        locked.iter().for_each(|(purge, released)| finish(purge, released));
        freed
    }

    /// Releases pages that the caller has to itself, and makes them its leave. Returns those that
    /// the system took; the others are locked, stay backed, and are no leave.
    pub(super) fn release(
        &self,
        chunk: ChunkPtr,
        pages: &PageSet,
        was_huge: bool,
        leave: &mut Leave<'_>,
    ) -> PageSet {
        // SAFETY: a chunk of this arena, of which nobody else uses or takes these pages.
        let released = unsafe {
            if was_huge {
                // First, or the system could fill the hole again with a new huge page.
                region::advise_huge(chunk, false);
            }
            region::release(chunk, pages)
        };
        let bytes = self.bytes_of(&released);
        leave.gain(bytes);
        self.locked.store(released != *pages, Ordering::Relaxed);
        self.events.purges.fetch_add(1, Ordering::Relaxed);
        self.events.purged_bytes.fetch_add(bytes, Ordering::Relaxed);
        released
    }

    fn bytes_of(&self, pages: &PageSet) -> u64 {
        (pages.count() * self.page.bytes()) as u64
    }

    /// Calls all blocks in magazines back to their classes.
    fn drain_magazines(&self) {
        for shard in &self.shards {
            let mut state = shard.state.lock();
            for class in 0..MAGAZINE_CLASSES {
                let magazine = &mut state.magazines[class];
                if !magazine.is_empty() {
                    self.drain(class, magazine, usize::MAX);
                }
            }
        }
    }
}
