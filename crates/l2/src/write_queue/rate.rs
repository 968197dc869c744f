//! How much may be written a second.
//!
//! A bucket of bytes that fills with time; admitting a block takes its bytes out. How fast it fills adapts: it grows as long as
//! the device takes a batch about as fast as it did lately, and shrinks when a batch takes a multiple of that, which says
//! that the device, or whoever shares it, has something better to do.

/// A batch that takes so many times as long a byte as quick ones did lately says that the device is busy.
const BUSY_FACTOR: u64 = 4;
/// One that takes less, in nanoseconds a MiB, does not: nobody has to wait for long.
const MIN_BUSY_NS_PER_MIB: u64 = 10_000_000;
/// How fast it is forgotten that batches were quicker: one part in so many a batch.
const FAST_DECAY: u64 = 64;
/// Of a second: what the bucket holds at most.
const DEPTH_DIVISOR: u64 = 4;

/// How much may be written a second, and now.
#[derive(Clone, Debug)]
pub(crate) struct WriteRate {
    /// Bytes a second.
    pub(crate) bytes_per_s: u64,
    tokens: u64,
    filled_ns: u64,
    /// Nanoseconds a MiB, of quick batches lately.
    fast_ns_per_mib: u64,
}

/// Bounds of a rate, in bytes a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateBounds {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl WriteRate {
    /// A full bucket, as fast as allowed.
    pub(crate) fn new(bounds: RateBounds, now_ns: u64) -> Self {
        let bytes_per_s = bounds.max.max(bounds.min);
        Self {
            bytes_per_s,
            tokens: bytes_per_s / DEPTH_DIVISOR,
            filled_ns: now_ns,
            fast_ns_per_mib: u64::MAX,
        }
    }

    /// Lets time pass.
    pub(crate) fn fill(&mut self, bounds: RateBounds, now_ns: u64) {
        self.bytes_per_s = self.bytes_per_s.min(bounds.max).max(bounds.min);
        let passed = u128::from(now_ns.saturating_sub(self.filled_ns));
        let bytes = (passed * u128::from(self.bytes_per_s) / 1_000_000_000) as u64;
        if bytes > 0 {
            self.filled_ns = now_ns;
            self.tokens = self.tokens.saturating_add(bytes).min(self.depth());
        }
    }

    /// Takes a block's bytes, if there are any left; for a block that is not `proven` much, if the bucket is half full.
    pub(crate) fn take(&mut self, bytes: u64, proven: bool) -> bool {
        let reserve = if proven { 0 } else { self.depth() / 2 };
        if self.tokens <= reserve {
            return false;
        }
        // A block may be larger than what is left: the next ones wait the longer.
        self.tokens = self.tokens.saturating_sub(bytes);
        true
    }

    /// What was taken is not needed.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.tokens = (self.tokens + bytes).min(self.depth());
    }

    /// A batch took that long.
    pub(crate) fn record_batch(&mut self, bounds: RateBounds, bytes: u64, took_ns: u64) {
        // Short ones tell of the device's latency, not of what it moves.
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
        (self.bytes_per_s / DEPTH_DIVISOR).max(1 << 16)
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
            rate.fill(BOUNDS, ms * 1_000_000);
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
        let unproven = (0..).take_while(|_| rate.take(8192, false)).count() as u64;
        let proven = (0..).take_while(|_| rate.take(8192, true)).count() as u64;
        assert!(unproven.abs_diff(proven) <= 1, "{unproven} and {proven}");
    }
}
