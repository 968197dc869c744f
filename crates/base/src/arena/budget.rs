//! The hard limit, and reservations of bytes below it.
//!
//! `committed` counts every byte that may be resident and every byte that is reserved. A thread
//! reserves bytes before it touches a page, and returns them after it has released a page. So
//! `committed` is never less than the resident bytes, and it never exceeds the limit unless the
//! limit is lowered below it.
//!
//! Locking: none; all fields are atomics.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Committed bytes and their limit.
#[repr(align(128))]
pub(super) struct Budget {
    committed: AtomicU64,
    /// On a cache line of its own, because every free reads it and writes are rare.
    pub(super) limit: Limit,
}

/// The limit.
#[repr(align(128))]
pub(super) struct Limit {
    bytes: AtomicU64,
    /// Freed memory is released to the system at once, because the limit was lowered and is still
    /// exceeded, or because the arena is closed.
    over_limit: AtomicBool,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            committed: AtomicU64::new(0),
            limit: Limit { bytes: AtomicU64::new(limit), over_limit: AtomicBool::new(false) },
        }
    }

    pub(super) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit.bytes.load(Ordering::Relaxed)
    }

    /// Sets the limit. Freed memory is not kept until [`end_over_limit`](Self::end_over_limit).
    pub(super) fn set_limit(&self, limit: u64) {
        self.limit.over_limit.store(true, Ordering::SeqCst);
        self.limit.bytes.store(limit, Ordering::SeqCst);
    }

    /// Whether freed memory is released to the system at once.
    #[inline]
    pub(super) fn is_over_limit(&self) -> bool {
        self.limit.over_limit.load(Ordering::Relaxed)
    }

    /// Allows to keep freed memory again, if `open` and the limit is not exceeded.
    pub(super) fn end_over_limit(&self, open: bool) {
        if open && self.committed() <= self.limit() {
            self.limit.over_limit.store(false, Ordering::SeqCst);
        }
    }

    /// Bytes by which the limit is exceeded.
    pub(super) fn excess(&self) -> u64 {
        self.committed().saturating_sub(self.limit())
    }

    /// Reserves `bytes`. `None` if less than `headroom` bytes would remain below the limit.
    pub(super) fn try_reserve(&self, bytes: u64, headroom: u64) -> Option<Reservation<'_>> {
        let mut reservation = self.empty_reservation();
        let available = self.limit().saturating_sub(headroom);
        let mut committed = self.committed.load(Ordering::Relaxed);
        loop {
            let after = committed.checked_add(bytes).filter(|after| *after <= available)?;
            match self.exchange(committed, after) {
                Ok(()) => {
                    reservation.bytes = bytes;
                    return Some(reservation);
                }
                Err(now) => committed = now,
            }
        }
    }

    /// A reservation of 0 bytes.
    pub(super) fn empty_reservation(&self) -> Reservation<'_> {
        Reservation { budget: self, bytes: 0 }
    }

    fn exchange(&self, from: u64, to: u64) -> Result<(), u64> {
        let order = Ordering::Relaxed;
        self.committed.compare_exchange_weak(from, to, order, order).map(|_| ())
    }
}

/// Committed bytes that are not backed yet. Dropping it returns the bytes that were not consumed.
pub(super) struct Reservation<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Reservation<'_> {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Removes `bytes` from the reservation, because they are backed now.
    pub(super) fn consume(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "{bytes} bytes backed, {} reserved", self.bytes);
        self.bytes -= bytes;
    }

    /// Grows the reservation up to `bytes`, as far as the limit allows.
    pub(super) fn grow_to(&mut self, bytes: u64) {
        let mut committed = self.budget.committed();
        while self.bytes < bytes {
            let available = self.budget.limit().saturating_sub(committed);
            let add = available.min(bytes - self.bytes);
            if add == 0 {
                return;
            }
            match self.budget.exchange(committed, committed + add) {
                Ok(()) => {
                    self.bytes += add;
                    committed += add;
                }
                Err(now) => committed = now,
            }
        }
    }

    /// Adds `bytes` of released pages to the reservation.
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Returns the reserved bytes above `bytes`.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        let excess = self.bytes.saturating_sub(bytes);
        if excess > 0 {
            self.bytes -= excess;
            self.budget.committed.fetch_sub(excess, Ordering::Relaxed);
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}
