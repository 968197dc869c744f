//! The write rate: a token bucket whose rate adapts to the device.
//!
//! The bucket fills with time, and an admitted block takes its bytes out. The rate grows while
//! batches take about as long per byte as the fast ones lately. It shrinks when a batch takes a
//! multiple of that: the device is then busy with other requests.
//!
//! Until the ring wraps, a write evicts nothing, and the device was filled at most once. So the
//! bucket is deeper then, starts full, and keeps nothing back for proven blocks: a new cache is
//! filled as fast as the device takes it, up to [`ROOM_DEPTH_S`] seconds of writing at once. A busy
//! device lowers the rate, and the depth with it.

/// A batch that takes this many times as long per byte as fast ones shows a busy device.
const BUSY_FACTOR: u64 = 4;
/// A batch that takes less than this, in nanoseconds per MiB, never does.
const MIN_BUSY_NS_PER_MIB: u64 = 10_000_000;
/// Each batch moves the time of fast batches by one part in this many.
const FAST_DECAY: u64 = 64;
/// The bucket holds the bytes of a second divided by this, once the ring has wrapped.
const DEPTH_DIVISOR: u64 = 4;
/// The bucket holds the bytes of this many seconds until then.
const ROOM_DEPTH_S: u64 = 16;

/// The current write rate and the bucket.
#[derive(Clone, Debug)]
pub(crate) struct WriteRate {
    /// The rate, in bytes per second.
    pub(crate) bytes_per_s: u64,
    tokens: u64,
    /// Whether the ring has segments that were never used.
    has_room: bool,
    filled_ns: u64,
    /// Time of recent fast batches, in nanoseconds per MiB.
    fast_ns_per_mib: u64,
}

/// Bounds of the rate, in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateBounds {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl WriteRate {
    /// A full bucket at the maximum rate. [`fill`](Self::fill) takes away what a ring that has
    /// wrapped may not have.
    pub(crate) fn new(bounds: RateBounds, now_ns: u64) -> Self {
        let bytes_per_s = bounds.max.max(bounds.min);
        Self {
            bytes_per_s,
            tokens: bytes_per_s.saturating_mul(ROOM_DEPTH_S),
            has_room: true,
            filled_ns: now_ns,
            fast_ns_per_mib: u64::MAX,
        }
    }

    /// Fills the bucket up to the current time.
    pub(crate) fn fill(&mut self, bounds: RateBounds, now_ns: u64, has_room: bool) {
        self.bytes_per_s = self.bytes_per_s.min(bounds.max).max(bounds.min);
        self.has_room = has_room;
        self.tokens = self.tokens.min(self.depth());
        let passed = u128::from(now_ns.saturating_sub(self.filled_ns));
        let bytes = (passed * u128::from(self.bytes_per_s) / 1_000_000_000) as u64;
        if bytes > 0 {
            self.filled_ns = now_ns;
            self.tokens = self.tokens.saturating_add(bytes).min(self.depth());
        }
    }

    /// Takes a block's bytes if any are left. Once the ring has wrapped, an unproven block needs
    /// more than half of the bucket.
    pub(crate) fn take(&mut self, bytes: u64, proven: bool) -> bool {
        let reserve = if proven || self.has_room { 0 } else { self.depth() / 2 };
        if self.tokens <= reserve {
            return false;
        }
        // A block may be larger than the rest. Later blocks then wait longer.
        self.tokens = self.tokens.saturating_sub(bytes);
        true
    }

    /// Returns bytes that were not used.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_add(bytes).min(self.depth());
    }

    /// Adapts the rate to a batch that took `took_ns`.
    pub(crate) fn record_batch(&mut self, bounds: RateBounds, bytes: u64, took_ns: u64) {
        // Small batches measure latency, not throughput.
        if bytes < 64 << 10 {
            return;
        }
        let now =
            u64::try_from((u128::from(took_ns) << 20) / u128::from(bytes)).unwrap_or(u64::MAX);
        let now = now.max(1);
        let fast_ns_per_mib = self.fast_ns_per_mib.min(now);
        let busy = now > MIN_BUSY_NS_PER_MIB && now / BUSY_FACTOR > fast_ns_per_mib;
        self.fast_ns_per_mib = fast_ns_per_mib + (now - fast_ns_per_mib) / FAST_DECAY;
        self.bytes_per_s = match busy {
            true => (self.bytes_per_s / 4 * 3).max(bounds.min),
            false => (self.bytes_per_s + self.bytes_per_s / 8).min(bounds.max).max(bounds.min),
        };
    }

    fn depth(&self) -> u64 {
        let bytes = match self.has_room {
            true => self.bytes_per_s.saturating_mul(ROOM_DEPTH_S),
            false => self.bytes_per_s / DEPTH_DIVISOR,
        };
        bytes.max(1 << 16)
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    const BOUNDS: RateBounds = RateBounds { min: 1 << 20, max: 64 << 20 };
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_bucket_grants_no_more_than_the_rate() {
        let mut rate = WriteRate::new(BOUNDS, 0);
        let mut taken = 0;
        for ms in 1..=10_000 {
            rate.fill(BOUNDS, ms * 1_000_000, false);
            while rate.take(8192, true) {
                taken += 8192;
            }
        }
        let allowed = 10 * BOUNDS.max + BOUNDS.max / DEPTH_DIVISOR;
        assert!(taken <= allowed + 10_000 * 8192 && taken >= allowed * 9 / 10, "{taken}");
    }

    #[test]
    fn slow_batches_lower_the_rate_and_fast_batches_raise_it() {
        let mut rate = WriteRate::new(BOUNDS, 0);
        rate.record_batch(BOUNDS, 1 << 20, SECOND / 1000);
        assert_eq!(rate.bytes_per_s, BOUNDS.max);
        (0..16).for_each(|_| rate.record_batch(BOUNDS, 1 << 20, SECOND / 10));
        assert_eq!(rate.bytes_per_s, BOUNDS.min);
        (0..100).for_each(|_| rate.record_batch(BOUNDS, 1 << 20, SECOND / 1000));
        assert_eq!(rate.bytes_per_s, BOUNDS.max);
    }

    #[test]
    fn unproven_blocks_leave_half_of_the_bucket() {
        let mut rate = WriteRate::new(BOUNDS, 0);
        rate.fill(BOUNDS, 0, false);
        let unproven = (0..).take_while(|_| rate.take(8192, false)).count() as u64;
        let proven = (0..).take_while(|_| rate.take(8192, true)).count() as u64;
        assert!(unproven.abs_diff(proven) <= 1, "{unproven} and {proven}");
    }

    #[test]
    fn with_room_unproven_blocks_take_a_burst_until_the_device_is_busy() {
        let mut rate = WriteRate::new(BOUNDS, 0);
        rate.fill(BOUNDS, 0, true);
        let burst = (0..).take_while(|_| rate.take(8192, false)).count() as u64 * 8192;
        assert_eq!(burst, BOUNDS.max * ROOM_DEPTH_S);
        let mut busy = WriteRate::new(BOUNDS, 0);
        busy.record_batch(BOUNDS, 1 << 20, SECOND / 1000);
        (0..16).for_each(|_| busy.record_batch(BOUNDS, 1 << 20, SECOND / 10));
        busy.fill(BOUNDS, 0, true);
        let burst = (0..).take_while(|_| busy.take(8192, false)).count() as u64 * 8192;
        assert_eq!(burst, BOUNDS.min * ROOM_DEPTH_S, "a busy device gets the least");
        let mut wrapped = WriteRate::new(BOUNDS, 0);
        wrapped.fill(BOUNDS, 0, false);
        let burst = (0..).take_while(|_| wrapped.take(8192, true)).count() as u64 * 8192;
        assert_eq!(burst, BOUNDS.max / DEPTH_DIVISOR, "a ring that has wrapped has no room");
    }
}
