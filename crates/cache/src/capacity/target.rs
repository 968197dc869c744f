//! The target `c` and the overflow limit: set by the user, or derived from the hard bound.

use forebay_base::sync::atomic::Ordering;

use super::overhead;
use crate::inner::CacheInner;
use crate::key::Key;

/// While a cache with a hard bound fills up, its overhead is looked at this many times.
const BOUND_CHECKS: u64 = 64;

impl<K: Key, V: Send + Sync + 'static> CacheInner<K, V> {
    /// How far past the target the cache may go.
    pub(crate) fn overflow(&self) -> u64 {
        // One of them may have been set already, and the other not yet.
        self.capacity.limit().saturating_sub(self.capacity.target())
    }

    /// With a hard bound, the target is what overhead leaves of it.
    pub(crate) fn refresh_bound(&self) {
        let Some(bound) = &self.bound else { return self.set_target(self.capacity.target()) };
        let bytes = bound.bytes.load(Ordering::Relaxed);
        let used = overhead::bytes(self);
        self.set_target_within(bytes.saturating_sub(used));
        // Overhead grows with what is cached: it must not grow far unseen.
        self.capacity.set_wake_at(self.capacity.reserved().saturating_add(bytes / BOUND_CHECKS));
    }

    /// Sets the target so that target and overflow together come to `bytes`.
    fn set_target_within(&self, bytes: u64) {
        let shift = self.tunables.overflow_shift();
        // target + (target >> shift) <= bytes
        let target = match shift {
            0 => bytes / 2,
            _ => bytes - bytes / ((1u64 << shift) + 1) - 1.min(bytes),
        };
        self.set_target(target);
    }

    /// Sets the target and, by the tunable, the limit.
    pub(crate) fn set_target(&self, target: u64) {
        let limit = target.saturating_add(target >> self.tunables.overflow_shift());
        if target != self.capacity.target() || limit != self.capacity.limit() {
            self.policy.set_capacity(target);
            self.capacity.set(target, limit);
        }
    }
}
