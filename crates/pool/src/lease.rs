//! The lease of a process on the devices of a pool: the time until which no other host can take the
//! pool over. Each writer checks it before it writes. The heartbeat renews it.
//!
//! An object store refuses writes of a former owner itself, and needs no heartbeat. A log device in
//! front of it is written without asking the store. So a pool on a store has a second lease, its
//! *ownership*: each commit, which the store accepts from the owner only, renews it, counted from
//! before the commit asked. An fsync relies on the log device alone while it holds, else it waits
//! for the group. A host that takes such a pool over waits until it must have ended.

use std::time::Duration;

use forebay_base::clock::Clock;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// How long an fsync on a log device relies on the last answer of the object store.
pub(crate) const OWNERSHIP: Duration = Duration::from_secs(15);
/// How long a takeover waits for the ownership of the former owner to end. More: no clock is exact.
pub(crate) const TAKEOVER: Duration = Duration::from_secs(18);

/// A lease.
pub(crate) struct Lease {
    clock: Arc<dyn Clock>,
    /// When it ends, by the pool's clock; `u64::MAX` if no other host can come, 0 once one has.
    end_ns: AtomicU64,
}

impl Lease {
    /// A lease without an end.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, end_ns: AtomicU64::new(u64::MAX) }
    }

    /// Whether no other host can have the pool.
    pub(crate) fn is_valid(&self) -> bool {
        let end_ns = self.end_ns();
        // Asked for each write: without other hosts it does not look at the clock.
        end_ns == u64::MAX || self.clock.now_ns() < end_ns
    }

    /// Fails if another host may have the pool. Does not look: for writers that hold locks.
    pub(crate) fn check(&self) -> Result<()> {
        match self.is_valid() {
            true => Ok(()),
            false => {
                let text = "the heartbeat is late, so another host may have the pool: try again";
                Err(Error::new(ErrorKind::Device, text))
            }
        }
    }

    pub(crate) fn end_ns(&self) -> u64 {
        self.end_ns.load(Ordering::Acquire)
    }

    /// The time by the clock of the lease.
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// The object store has confirmed that the pool is this process's, by a request that began no
    /// sooner than at this time. Does nothing if no other host can come.
    pub(crate) fn confirmed(&self, began_ns: u64) {
        if self.end_ns() != u64::MAX {
            self.set_end_ns(began_ns.saturating_add(OWNERSHIP.as_nanos() as u64));
        }
    }

    /// Sets the end; 0 ends it now.
    pub(crate) fn set_end_ns(&self, end_ns: u64) {
        self.end_ns.store(end_ns, Ordering::Release);
    }
}
