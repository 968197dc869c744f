//! The lease of a process on the devices of a pool: the time until which no other host can take the
//! pool over. Each writer checks it before it writes. The heartbeat renews it.

use forebay_base::clock::Clock;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};

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

    /// Sets the end; 0 ends it now.
    pub(crate) fn set_end_ns(&self, end_ns: u64) {
        self.end_ns.store(end_ns, Ordering::Release);
    }
}
