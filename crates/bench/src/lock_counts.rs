//! Locks and atomic updates per operation, as the counting build counts them. Other builds leave
//! these figures out.

use forebay_base::sync::count::{self, Counts};

use crate::report::Record;

/// Counts since a start.
pub(crate) struct LockCounts {
    total: Counts,
    by_lock: Vec<(&'static str, Counts)>,
}

/// The use of one lock class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockUse {
    /// The lock class.
    pub(crate) name: &'static str,
    /// Number of acquisitions.
    pub(crate) locks: u64,
    /// Total hold time, in nanoseconds.
    pub(crate) hold_ns: u64,
}

impl LockCounts {
    /// Starts counting.
    pub(crate) fn start() -> Self {
        Self { total: count::total(), by_lock: count::by_lock() }
    }

    /// Adds the counts per operation since the start to a record.
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

    /// Lock classes that were taken since the start. Empty in builds that do not count.
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
