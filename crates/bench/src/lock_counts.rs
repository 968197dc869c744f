//! What the counting build counted during a measurement, an operation. In other builds
//! there are no such figures: what was not counted is left out, it does not read zero.

use forebay_base::sync::count::{self, Counts};

use crate::report::Record;

/// Counts from here on.
pub(crate) struct LockCounts {
    total: Counts,
    by_lock: Vec<(&'static str, Counts)>,
}

/// What one class of lock did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockUse {
    /// The class.
    pub(crate) name: &'static str,
    /// Times taken.
    pub(crate) locks: u64,
    /// Time held, nanoseconds.
    pub(crate) hold_ns: u64,
}

impl LockCounts {
    /// Begins to count.
    pub(crate) fn start() -> Self {
        Self { total: count::total(), by_lock: count::by_lock() }
    }

    /// Adds the counts of each operation since the start to a record.
    pub(crate) fn add_to(&self, record: Record, ops: u64) -> Record {
        if !count::ENABLED || ops == 0 {
            return record;
        }
        let now = count::total();
        let each = |now: u64, before: u64| (now - before) as f64 / ops as f64;
        record
            .figure("locks_per_op", each(now.locks, self.total.locks))
            .figure("contended_locks_per_op", each(now.contended, self.total.contended))
            .figure("lock_hold_ns_per_op", each(now.hold_ns, self.total.hold_ns))
            .figure("rmw_per_op", each(now.rmw, self.total.rmw))
            .figure("cas_failed_per_op", each(now.cas_failed, self.total.cas_failed))
            .figure("retries_per_op", each(now.retries, self.total.retries))
    }

    /// Classes of lock that were taken since the start. Empty in builds that do not count.
    pub(crate) fn locks(&self) -> Vec<LockUse> {
        let since = |(name, now): &(&'static str, Counts)| {
            let before = self.by_lock.iter().find(|(n, _)| n == name).map(|(_, c)| *c);
            let before = before.unwrap_or_default();
            let (locks, hold_ns) = (now.locks - before.locks, now.hold_ns - before.hold_ns);
            LockUse { name, locks, hold_ns }
        };
        count::by_lock().iter().map(since).filter(|lock| lock.locks > 0).collect()
    }
}
