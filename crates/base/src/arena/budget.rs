//! The hard limit, and leave to back pages.
//!
//! Purpose: `committed` counts every byte that may be resident plus every byte that somebody
//! has leave to back. Leave is taken before a page is touched and given up after a page was
//! released, so `committed` never says less than the truth and never exceeds the limit
//! (unless the limit has been lowered below it).
//!
//! Locking: none; two atomics.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The account.
#[repr(align(128))]
pub(super) struct Account {
    committed: AtomicU64,
    /// On a line of its own: read by every free, seldom written.
    pub(super) bound: Bound,
}

/// The limit.
#[repr(align(128))]
pub(super) struct Bound {
    limit: AtomicU64,
    /// The limit was lowered and is not met yet, or the arena is closed: what is freed goes
    /// back to the system.
    over: AtomicBool,
}

impl Account {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            committed: AtomicU64::new(0),
            bound: Bound { limit: AtomicU64::new(limit), over: AtomicBool::new(false) },
        }
    }

    pub(super) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    pub(super) fn limit(&self) -> u64 {
        self.bound.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit. Until [`settled`](Self::settled), freed memory is not kept.
    pub(super) fn set_limit(&self, limit: u64) {
        self.bound.over.store(true, Ordering::SeqCst);
        self.bound.limit.store(limit, Ordering::SeqCst);
    }

    /// Whether freed memory goes back to the system at once.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.bound.over.load(Ordering::Relaxed)
    }

    /// Freed memory may be kept again, if the limit is met and `open`.
    pub(super) fn settled(&self, open: bool) {
        if open && self.committed() <= self.limit() {
            self.bound.over.store(false, Ordering::SeqCst);
        }
    }

    /// Bytes by which the limit is exceeded.
    pub(super) fn excess(&self) -> u64 {
        self.committed().saturating_sub(self.limit())
    }

    /// Leave for `bytes`, with at least `spare` bytes left below the limit; or nothing.
    pub(super) fn try_reserve(&self, bytes: u64, spare: u64) -> Option<Leave<'_>> {
        let mut leave = self.no_leave();
        let room = self.limit().saturating_sub(spare);
        let mut committed = self.committed.load(Ordering::Relaxed);
        loop {
            let after = committed.checked_add(bytes).filter(|after| *after <= room)?;
            match self.exchange(committed, after) {
                Ok(()) => {
                    leave.bytes = bytes;
                    return Some(leave);
                }
                Err(now) => committed = now,
            }
        }
    }

    /// Leave for nothing yet.
    pub(super) fn no_leave(&self) -> Leave<'_> {
        Leave { account: self, bytes: 0 }
    }

    fn exchange(&self, from: u64, to: u64) -> Result<(), u64> {
        let order = Ordering::Relaxed;
        self.committed.compare_exchange_weak(from, to, order, order).map(|_| ())
    }
}

/// Leave to back some bytes. What is not spent goes back when dropped.
pub(super) struct Leave<'a> {
    account: &'a Account,
    bytes: u64,
}

impl Leave<'_> {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// These bytes are backed now.
    pub(super) fn spend(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "leave for {} bytes, {bytes} backed", self.bytes);
        self.bytes -= bytes;
    }

    /// Adds what is free below the limit, up to `bytes` in all.
    pub(super) fn grow_to(&mut self, bytes: u64) {
        let mut committed = self.account.committed();
        while self.bytes < bytes {
            let room = self.account.limit().saturating_sub(committed);
            let add = room.min(bytes - self.bytes);
            if add == 0 {
                return;
            }
            match self.account.exchange(committed, committed + add) {
                Ok(()) => {
                    self.bytes += add;
                    committed += add;
                }
                Err(now) => committed = now,
            }
        }
    }

    /// Pages of `bytes` bytes have been released, and are leave now.
    pub(super) fn gain(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Gives up what exceeds `bytes`.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        let excess = self.bytes.saturating_sub(bytes);
        if excess > 0 {
            self.bytes -= excess;
            self.account.committed.fetch_sub(excess, Ordering::Relaxed);
        }
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}
