//! The target `c` and the overflow limit: set by the user, or derived from the hard bound.
//!
//! With a hard bound, the target is the bound minus the overhead, minus the ghosts to come, and
//! minus the overflow. It is refreshed by the reclaimer, and by inserters if there is no reclaimer
//! or it is late.
//!
//! Locking: callers that change the target hold `reclaim`.

use forebay_base::sync::atomic::Ordering;

use super::overhead;
use crate::inner::CacheInner;
use crate::key::Key;
use crate::lists::ghosts::Ghosts;

/// While a cache with a hard bound fills up, its overhead is checked this many times.
const BOUND_CHECKS: u64 = 64;
/// Bytes of a ghost: an entry in its ring and one in the index.
const GHOST_BYTES: u64 = 32;

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// Bytes by which the cache may exceed its target.
    pub(crate) fn overflow(&self) -> u64 {
        // Another thread may have stored one of the two and not yet the other.
        self.capacity.limit().saturating_sub(self.capacity.target())
    }

    /// Sets the target to the bytes of the hard bound that the overhead leaves.
    pub(crate) fn refresh_bound(&self) {
        let Some(bound) = &self.bound else { return self.set_target(self.capacity.target()) };
        let bytes = bound.bytes.load(Ordering::Relaxed);
        let used = overhead::bytes(self).saturating_add(self.ghost_bytes_to_come());
        self.set_target_within(bytes.saturating_sub(used));
        // Overhead grows with the cached blocks, so it is checked again before long.
        self.capacity.set_wake_at(self.capacity.reserved().saturating_add(bytes / BOUND_CHECKS));
    }

    /// Bytes of the ghosts that the cached blocks will leave. If they were not counted while the
    /// cache fills, it would have to shrink afterwards, and free headers take long to be returned.
    fn ghost_bytes_to_come(&self) -> u64 {
        let percent = u64::from(self.tunables.ghost_percent());
        let ghosts: u64 = self.ghosts.iter().map(Ghosts::count).sum();
        (self.resident_blocks() * percent / 100).saturating_sub(ghosts) * GHOST_BYTES
    }

    /// With a hard bound, refreshes the target on this thread if the reclaimer is late, so that the
    /// cache never grows far without a check of its overhead. `due` says that it is late for
    /// another reason.
    pub(crate) fn refresh_late_bound(&self, due: bool) {
        let Some(bound) = &self.bound else { return };
        let step = bound.bytes.load(Ordering::Relaxed) / BOUND_CHECKS;
        if due || self.capacity.is_beyond_wake_at(step) {
            // The thread that has the lock refreshes the target. This one may hold locks, or must
            // not block.
            let Some(_reclaim) = self.reclaim.try_lock() else { return self.wake_reclaimer() };
            if due || self.capacity.is_beyond_wake_at(step) {
                self.refresh_bound();
            }
        }
    }

    /// Sets the target so that target plus overflow is at most `bytes`.
    fn set_target_within(&self, bytes: u64) {
        let shift = self.tunables.overflow_shift();
        // target + (target >> shift) <= bytes
        let target = match shift {
            0 => bytes / 2,
            _ => bytes - bytes / ((1u64 << shift) + 1) - 1.min(bytes),
        };
        self.set_target(target);
    }

    /// Sets the target, and the limit that follows from it by `overflow_shift`.
    pub(crate) fn set_target(&self, target: u64) {
        let limit = target.saturating_add(target >> self.tunables.overflow_shift());
        if target != self.capacity.target() || limit != self.capacity.limit() {
            self.policy.set_capacity(target);
            self.capacity.set(target, limit);
        }
    }
}
