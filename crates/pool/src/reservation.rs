//! Reservations of free space: a transaction reserves space before it uses it.
//!
//! A transaction begins with [`FIRST_BYTES`], enough for a change of any kind, and reserves more as
//! it needs more. So concurrent transactions never promise more than there is, and a single one may
//! use all of it. A transaction reports its dirty bytes to its txg before its reservation ends, so
//! they are never missing from both.
//!
//! First reservations are counted in shards, by thread, and summed only when space is scarce:
//! beginning a transaction in a pool with enough free space writes no cache line that another
//! thread writes.
//!
//! Locking: none; `docs/locking.md` has the order of the atomics.

use std::cell::Cell;

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, thread_slot};

use crate::space::SpaceStats;
use crate::txg::Txgs;

/// Number of shards of the first reservations; a power of two.
const SHARDS: usize = 16;
/// First reservation of a transaction: enough for a change of any kind.
pub(crate) const FIRST_BYTES: u64 = 1 << 20;
/// Minimum step by which a reservation grows.
const GROW_BYTES: u64 = 1 << 20;
/// With at least this much space left, first reservations are not summed: 2000 concurrent
/// transactions reserve less.
const PLENTY_BYTES: u64 = 2 << 30;

/// How a transaction affects free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// It may use more space.
    Use,
    /// It changes attributes or names, which uses little more space. It may begin in a full pool,
    /// but leaves enough for transactions that free space.
    Update,
    /// It frees space in the end, so it may begin in a full pool.
    Free,
}

/// Free space of a pool and its reservations.
pub(crate) struct ReservableSpace {
    txgs: Arc<Txgs>,
    /// Free bytes as of the newest committed txg.
    free: AtomicU64,
    /// Free bytes plus bytes that become reusable some txgs later.
    free_later: AtomicU64,
    /// Bytes of `free` that transactions must leave free, by intent.
    kept: [AtomicU64; 3],
    /// Bytes that transactions reserved beyond their first reservations.
    grown: AtomicU64,
    /// Bytes of first reservations.
    first: [CachePadded<AtomicU64>; SHARDS],
}

/// A shard of [`ReservableSpace`]. A transaction holds a reference to it; few threads share the
/// count's cache line.
pub(crate) struct ReservationShard {
    space: Arc<ReservableSpace>,
    index: usize,
}

/// The reservations of a pool.
pub(crate) struct Reservations([Arc<CachePadded<ReservationShard>>; SHARDS]);

/// Space reserved by a transaction. Dropping it releases the space.
pub(crate) struct Reservation {
    shard: Arc<CachePadded<ReservationShard>>,
    intent: Intent,
    first: u64,
    grown: Cell<u64>,
}

impl Reservations {
    pub(crate) fn new(txgs: &Arc<Txgs>) -> Self {
        let space = Arc::new(ReservableSpace {
            txgs: Arc::clone(txgs),
            free: AtomicU64::new(0),
            free_later: AtomicU64::new(0),
            kept: std::array::from_fn(|_| AtomicU64::new(0)),
            grown: AtomicU64::new(0),
            first: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
        });
        Self(std::array::from_fn(|index| {
            Arc::new(CachePadded::new(ReservationShard { space: Arc::clone(&space), index }))
        }))
    }

    /// Sets the free space, and how much of it transactions must leave free, by intent.
    pub(crate) fn set(&self, space: &SpaceStats, kept: impl Fn(Intent) -> u64) {
        let reservable = &self.0[0].space;
        for intent in [Intent::Use, Intent::Update, Intent::Free] {
            reservable.kept[intent as usize].store(kept(intent), Ordering::Relaxed);
        }
        reservable.free_later.store(space.free_bytes + space.deferred_bytes, Ordering::SeqCst);
        reservable.free.store(space.free_bytes, Ordering::SeqCst);
    }

    /// Returns the bytes that further changes can use, if they wait for freed space. Returns 0 if
    /// less than a first reservation is left.
    pub(crate) fn available(&self) -> u64 {
        let reservable = &self.0[0].space;
        let left = reservable.left_of(&reservable.free_later, Intent::Use, true);
        left.filter(|left| *left >= FIRST_BYTES).unwrap_or(0)
    }

    /// Whether a first reservation may succeed once all freed space is reusable.
    pub(crate) fn may_succeed_later(&self, intent: Intent) -> bool {
        let reservable = &self.0[0].space;
        let left = reservable.left_of(&reservable.free_later, intent, true);
        left.is_some_and(|left| left >= FIRST_BYTES)
    }

    /// Makes a first reservation; `None` if there is no space.
    pub(crate) fn reserve(&self, intent: Intent) -> Option<Reservation> {
        self.reserve_bytes(intent, FIRST_BYTES)
    }

    /// Makes a smaller first reservation, for a transaction that frees space when waiting yields no
    /// more.
    pub(crate) fn reserve_less(&self, intent: Intent) -> Option<Reservation> {
        let left = self.0[0].space.left(intent, true).unwrap_or(0);
        let bytes = left.min(FIRST_BYTES) / 2;
        (intent == Intent::Free && bytes > 0).then(|| self.reserve_bytes(intent, bytes))?
    }

    fn reserve_bytes(&self, intent: Intent, bytes: u64) -> Option<Reservation> {
        let index = thread_slot().index(SHARDS);
        let reserved = self.0[index].space.reserve_first(index, intent, bytes);
        reserved.then(|| Reservation {
            shard: Arc::clone(&self.0[index]),
            intent,
            first: bytes,
            grown: Cell::new(0),
        })
    }
}

impl ReservableSpace {
    /// Returns the unreserved bytes, or `None` if more is reserved than free. First reservations
    /// and dirty bytes in txg cells count only if `exact`.
    fn left(&self, intent: Intent, exact: bool) -> Option<u64> {
        self.left_of(&self.free, intent, exact)
    }

    fn left_of(&self, free: &AtomicU64, intent: Intent, exact: bool) -> Option<u64> {
        // In the order in which a byte moves from reservation to use, so that no byte is missed.
        let first: u64 = match exact {
            true => self.first.iter().map(|shard| shard.load(Ordering::SeqCst)).sum(),
            false => 0,
        };
        let grown = self.grown.load(Ordering::SeqCst);
        let dirty = match exact {
            true => self.txgs.dirty_bytes(),
            false => self.txgs.dirty_estimate(),
        };
        let free = free.load(Ordering::SeqCst);
        let kept = self.kept[intent as usize].load(Ordering::Relaxed);
        free.checked_sub(kept)?.checked_sub(dirty)?.checked_sub(grown)?.checked_sub(first)
    }

    /// Adds first, then checks: of two threads that compete for the last space, at least one sees
    /// the other.
    fn reserve_first(&self, index: usize, intent: Intent, bytes: u64) -> bool {
        self.first[index].fetch_add(bytes, Ordering::SeqCst);
        let plenty = self.left(intent, false).is_some_and(|left| left >= PLENTY_BYTES);
        if plenty || self.left(intent, true).is_some() {
            return true;
        }
        self.first[index].fetch_sub(bytes, Ordering::SeqCst);
        false
    }

    fn grow(&self, intent: Intent, bytes: u64) -> bool {
        self.grown.fetch_add(bytes, Ordering::SeqCst);
        if self.left(intent, true).is_some() {
            return true;
        }
        self.grown.fetch_sub(bytes, Ordering::SeqCst);
        false
    }
}

impl Reservation {
    /// Whether the reservation covers `bytes`; grows it if necessary.
    #[inline]
    pub(crate) fn covers(&self, bytes: u64) -> bool {
        let missing = bytes.saturating_sub(self.first + self.grown.get());
        missing == 0 || self.grow(missing)
    }

    /// Whether the reservation covers `bytes`, or could now grow to that. Reserves nothing.
    pub(crate) fn could_cover(&self, bytes: u64) -> bool {
        let missing = bytes.saturating_sub(self.first + self.grown.get());
        let left = || self.shard.space.left(self.intent, true);
        missing == 0 || left().is_some_and(|left| left >= missing)
    }

    #[cold]
    fn grow(&self, missing: u64) -> bool {
        let space = &self.shard.space;
        let step = missing.max(GROW_BYTES);
        let got = [step, missing].into_iter().find(|bytes| space.grow(self.intent, *bytes));
        self.grown.set(self.grown.get() + got.unwrap_or(0));
        got.is_some()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let ReservationShard { space, index } = &**self.shard;
        if self.grown.get() > 0 {
            space.grown.fetch_sub(self.grown.get(), Ordering::SeqCst);
        }
        space.first[*index].fetch_sub(self.first, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::clock::SystemClock;

    use super::*;
    use crate::txg::TxgTunables;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_was_freed_first_fills_what_is_kept() {
        let txgs = Txgs::new(9, Arc::new(SystemClock::new()), Arc::new(TxgTunables::default()));
        let shards = Reservations::new(&Arc::new(txgs));
        let available = |free_bytes, deferred_bytes| {
            let space = SpaceStats { free_bytes, deferred_bytes, ..SpaceStats::default() };
            let kept = |intent| if intent == Intent::Use { 33 * MIB } else { 16 * MIB };
            shards.set(&space, kept);
            shards.available()
        };
        // Transactions that free space may use part of the reserve.
        assert_eq!(available(20 * MIB, 10 * MIB), 0);
        assert_eq!(available(20 * MIB, 15 * MIB), 2 * MIB);
        assert_eq!(available(40 * MIB, 15 * MIB), 22 * MIB);
        let reserved = shards.reserve(Intent::Use).expect("there is space");
        assert_eq!(available(40 * MIB, 15 * MIB), 22 * MIB - FIRST_BYTES);
        assert_eq!(available(33 * MIB, FIRST_BYTES), 0);
        drop(reserved);
        assert_eq!(available(33 * MIB, FIRST_BYTES), FIRST_BYTES);
        assert_eq!(available(33 * MIB, FIRST_BYTES - 1), 0, "nothing begins with that");
    }
}
