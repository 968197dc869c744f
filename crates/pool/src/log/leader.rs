//! Commits led by a thread of the pool, for devices that may be away.
//!
//! Usually one of the threads that commit becomes the leader and writes to the devices. A device
//! that comes back by itself may let it wait for hours, and that wait cannot be given up. So a
//! thread of the pool is the leader of each batch instead, and a commit that gives up only stops
//! waiting: its batch goes on, and may yet become durable.
//!
//! Locking: `log-commit`, as for all commits. Whether to give up is asked without it.

use std::time::Duration;

use forebay_base::waits::{self, WaitKind};

use super::commit::{Committed, FallbackCause, Fetch};
use super::{IntentLog, LogCounters};

/// Interval at which a waiting commit asks whether to give up.
const INTERVAL: Duration = Duration::from_millis(250);

impl IntentLog {
    /// As [`commit`](Self::commit), for a log with a thread that [leads](Self::lead). Returns
    /// [`Committed::WaitForTxg`] once `gives_up` says so.
    pub(crate) fn commit_led(
        &self,
        object: Option<(u64, u64)>,
        gives_up: &dyn Fn() -> bool,
    ) -> Committed {
        self.counters.add(LogCounters::COMMITS, 0, 1);
        if let Err(cause) = self.check(object) {
            return self.to_txg(cause);
        }
        let mut queue = self.commits.queue.lock();
        queue.objects.extend(object);
        queue.wanted = true;
        let batch = forebay_base::sync::Arc::clone(&queue.batch);
        self.commits.wanted.notify_one();
        let _wait = waits::measure(WaitKind::Device);
        loop {
            if let Some(outcome) = batch.outcome() {
                drop(queue);
                self.counters.add(LogCounters::JOINED, 0, 1);
                return outcome;
            }
            if queue.ends && !queue.has_leader {
                drop(queue);
                return self.to_txg(FallbackCause::Closed);
            }
            if self.commits.ended.wait_timeout(&mut queue, INTERVAL) {
                drop(queue);
                if gives_up() {
                    return self.to_txg(FallbackCause::Failed);
                }
                queue = self.commits.queue.lock();
            }
        }
    }

    /// Leads batches until [`end_leading`](Self::end_leading).
    pub(crate) fn lead(&self, fetch: &dyn Fetch) {
        // If `fetch` panics, later commits use the txg.
        let _end = EndGuard(self);
        loop {
            let mut queue = self.commits.queue.lock();
            while !queue.wanted && !queue.ends {
                self.commits.wanted.wait(&mut queue);
            }
            if !queue.wanted {
                return;
            }
            queue.wanted = false;
            self.write_as_leader(queue, fetch);
        }
    }

    /// Ends the leading thread after the batches that commits wait for.
    pub(crate) fn end_leading(&self) {
        self.commits.queue.lock().ends = true;
        self.commits.wanted.notify_all();
        self.commits.ended.notify_all();
    }
}

struct EndGuard<'a>(&'a IntentLog);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.end_leading();
    }
}
