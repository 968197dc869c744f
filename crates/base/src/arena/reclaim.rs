//! Releases free memory, so that the limit holds and freed bytes can serve every size.
//!
//! A purger releases backed pages without live blocks: first in the pool, then in the classes in
//! turn. If that is not enough, it drains the magazines and starts again.
//!
//! The system calls run outside the locks of classes and pool. The chunk is in no list meanwhile.
//! The purger adds the released bytes to its reservation, so that no other thread can take them.
//!
//! Locking: a purger holds `arena-reclaim` throughout. A thread without memory waits for this lock,
//! because the running purger may release memory that it can use.

use super::budget::Reservation;
use super::class::Purge;
use super::classes::{CLASSES, MAGAZINE_CLASSES};
use super::inner::ArenaInner;
use super::lists::ChunkPtr;
use super::pages::PageSet;
use super::region;
use crate::sync::atomic::Ordering;

/// A purger releases this many bytes more than it must, so that purges are less frequent.
const PURGE_AHEAD_BYTES: u64 = 256 << 10;
/// A purger releases at most `limit / PURGE_AHEAD_SHARE` more than it must.
const PURGE_AHEAD_SHARE: u64 = 64;

/// How often an allocation drains the magazines and searches again before it fails. More than once,
/// because a chunk can move from the pool to a class that the purger has already searched.
const MAGAZINE_DRAINS: usize = 2;

/// A purger leaves the pool or a class after this many chunks with locked pages, which the system
/// does not take back.
const MAX_LOCKED_CHUNKS: usize = 16;

impl ArenaInner {
    /// Reserves `needed` bytes, and releases free memory if necessary.
    pub(super) fn reserve_with_reclaim(&self, needed: u64) -> Option<Reservation<'_>> {
        if self.used().saturating_add(needed) > self.budget.limit() {
            // It cannot succeed, so do not drain the magazines.
            return None;
        }
        let mut start = self.reclaim.lock();
        self.reserve_by_purging(&mut start, needed, MAGAZINE_DRAINS)
    }

    /// Releases free memory until the limit is not exceeded, or no memory is free.
    #[cold]
    pub(super) fn trim(&self) {
        let mut start = self.reclaim.lock();
        drop(self.reserve_by_purging(&mut start, 0, 0));
        self.budget.end_over_limit(!self.closed.load(Ordering::SeqCst));
    }

    /// Sets the limit and releases free memory above it.
    pub(super) fn set_limit(&self, limit: u64) {
        self.budget.set_limit(limit);
        if self.budget.excess() > 0 {
            self.drain_magazines();
        }
        self.trim();
    }

    /// Releases all free memory. Returns the number of bytes.
    pub(super) fn purge(&self) -> u64 {
        let mut start = self.reclaim.lock();
        self.drain_magazines();
        self.purge_bytes(&mut start, u64::MAX, &mut self.budget.empty_reservation())
    }

    /// Reserves `needed` bytes by purging, also until the limit is not exceeded. Drains the
    /// magazines up to `drains` times. `None` if that is not enough.
    fn reserve_by_purging(
        &self,
        start: &mut usize,
        needed: u64,
        drains: usize,
    ) -> Option<Reservation<'_>> {
        let mut drains = drains;
        let mut reservation = self.budget.empty_reservation();
        loop {
            reservation.grow_to(needed);
            let missing = needed - reservation.bytes() + self.budget.excess();
            if missing == 0 {
                return Some(reservation);
            }
            let ahead = PURGE_AHEAD_BYTES.min(self.budget.limit() / PURGE_AHEAD_SHARE);
            let freed = self.purge_bytes(start, missing + ahead, &mut reservation);
            reservation.shrink_to(needed);
            if freed == 0 {
                if drains == 0 {
                    return None;
                }
                drains -= 1;
                self.drain_magazines();
            }
        }
    }

    /// Releases about `wanted` bytes, or less if less is free. Returns the number of bytes.
    fn purge_bytes(
        &self,
        start: &mut usize,
        wanted: u64,
        reservation: &mut Reservation<'_>,
    ) -> u64 {
        let mut freed = self.purge_pool(wanted, reservation);
        for _ in 0..CLASSES {
            if freed >= wanted {
                return freed;
            }
            freed += self.purge_class(*start, wanted - freed, reservation);
            if freed < wanted {
                *start = (*start + 1) % CLASSES;
            }
        }
        // Again, because an emptied chunk moves from its class to the pool.
        freed + self.purge_pool(wanted.saturating_sub(freed), reservation)
    }

    fn purge_pool(&self, wanted: u64, reservation: &mut Reservation<'_>) -> u64 {
        let mut freed = 0;
        // These are put back at the end, so that the loop does not take them again.
        let mut locked = Vec::new();
        while freed < wanted && locked.len() < MAX_LOCKED_CHUNKS {
            let taken = self.pool.lock().take_backed(0);
            let Some(chunk) = taken else { break };
            // SAFETY: the chunk was just taken from the pool.
            let c = unsafe { chunk.get() };
            let pages = c.backed;
            let was_huge = std::mem::replace(&mut c.huge, false);
            let released = self.release(chunk, &pages, was_huge, reservation);
            c.backed.remove_all(&released);
            freed += self.bytes_of(&released);
            if released == pages {
                // SAFETY: this function took the chunk and passes it back.
                unsafe { self.pool.lock().put(chunk) };
            } else {
                locked.push(chunk);
            }
        }
        for chunk in locked {
            // SAFETY: this function took the chunk and passes it back.
            unsafe { self.pool.lock().put(chunk) };
        }
        freed
    }

    fn purge_class(&self, class: usize, wanted: u64, reservation: &mut Reservation<'_>) -> u64 {
        let mut freed = 0;
        // These are finished at the end, so that the loop does not select them again.
        let mut locked = Vec::new();
        let finish = |purge: &Purge, released: &PageSet| {
            let mut c = self.class(class);
            let after = c.finish_purge(purge, released);
            self.retire(after);
        };
        while freed < wanted && locked.len() < MAX_LOCKED_CHUNKS {
            let bytes = usize::try_from(wanted - freed).unwrap_or(usize::MAX);
            let begun = self.class(class).begin_purge(bytes);
            let Some(purge) = begun else { break };
            let released = self.release(purge.chunk, &purge.pages, purge.was_huge, reservation);
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

    /// Releases pages that the caller owns, and adds them to its reservation. Returns the released
    /// pages. The other pages are locked and stay backed.
    pub(super) fn release(
        &self,
        chunk: ChunkPtr,
        pages: &PageSet,
        was_huge: bool,
        reservation: &mut Reservation<'_>,
    ) -> PageSet {
        // SAFETY: a chunk of this arena, and no other thread uses or takes these pages.
        let released = unsafe {
            if was_huge {
                // First, or the system could back the released range with a new huge page. It
                // counts the range as released at once, but may split the page only when memory is
                // scarce.
                region::advise_huge(chunk, false);
            }
            region::release(chunk, pages)
        };
        let bytes = self.bytes_of(&released);
        reservation.add(bytes);
        self.locked.store(released != *pages, Ordering::Relaxed);
        self.events.purges.fetch_add(1, Ordering::Relaxed);
        self.events.purged_bytes.fetch_add(bytes, Ordering::Relaxed);
        released
    }

    fn bytes_of(&self, pages: &PageSet) -> u64 {
        (pages.count() * self.page.bytes()) as u64
    }

    /// Moves all blocks in magazines to their classes.
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
