//! The target `c` and the overflow limit: set by the user, or derived from the hard bound.
//!
//! With a hard bound, the target is the bound minus the overhead and minus the overflow. It is
//! refreshed by the reclaimer, and by inserters if there is no reclaimer.
//!
//! Locking: callers that change the target hold `reclaim`.

use forebay_base::sync::atomic::Ordering;

use super::overhead;
use crate::inner::CacheInner;
use crate::key::Key;

/// While a cache with a hard bound fills up, its overhead is checked this many times.
const BOUND_CHECKS: u64 = 64;

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
        let used = overhead::bytes(self);
        self.set_target_within(bytes.saturating_sub(used));
        // Overhead grows with the cached blocks, so it is checked again before long.
        self.capacity.set_wake_at(self.capacity.reserved().saturating_add(bytes / BOUND_CHECKS));
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
