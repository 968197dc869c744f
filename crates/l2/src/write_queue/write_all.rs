//! Writes blocks that the user wants written, without the admission policy.

use std::time::Duration;

use forebay_base::sync::{Condvar, Mutex};
use forebay_cache::{Candidate, Key};

use super::QueuedBlock;
use crate::AdmissionRefusal;
use crate::counters::L2Counters;
use crate::error::{Error, ErrorKind, Result};
use crate::shared::L2Shared;

/// How often a thread that waits for queue space checks it.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

impl<K: Key, V: Send + Sync + 'static> L2Shared<K, V> {
    /// Queues all blocks that the codec allows, without regard to the rate or their reuse. Waits
    /// for the rebuild, and while the queue is full.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the L2 fails or is closed meanwhile.
    pub(crate) fn write_all(&self, candidates: Vec<Candidate<K, V>>) -> Result<()> {
        if !self.rebuild.wait() {
            return Err(self.not_open());
        }
        for candidate in candidates {
            let prepared = match self.prepare(&candidate) {
                Ok(Some(prepared)) => prepared,
                Ok(None) => continue,
                Err(reason) => {
                    self.count_refusal(reason);
                    continue;
                }
            };
            self.wait_for_queue_space()?;
            let (class, since_ns) = (candidate.class, self.clock.now_ns());
            let Some(block) = candidate.write() else {
                self.counters.add(L2Counters::ADMITTED, class as usize, 1);
                self.counters.add(L2Counters::ADMITTED_DROPPED, class as usize, 1);
                continue;
            };
            let (hash, value_bytes, bytes) = (prepared.hash, prepared.value_bytes, prepared.bytes);
            let queued = QueuedBlock { hash, class, value_bytes, bytes, since_ns, block };
            let refused = self.write_queue.with(|state| {
                if state.stopping {
                    return Some(queued);
                }
                state.queued_bytes += queued.bytes;
                state.queue.push_back(queued);
                None
            });
            if refused.is_some() {
                self.count_refusal(AdmissionRefusal::Removed);
                return Err(self.not_open());
            }
            self.counters.add(L2Counters::ADMITTED, class as usize, 1);
        }
        Ok(())
    }

    /// Waits until the queue has space for one more block.
    fn wait_for_queue_space(&self) -> Result<()> {
        let (batch, queue_limit) = (self.batch_block_bytes(), self.tunables.queue_bytes());
        loop {
            let (queued, stopping) =
                self.write_queue.with(|state| (state.queued_bytes, state.stopping));
            if stopping {
                return Err(self.not_open());
            }
            if queued >= batch {
                self.write_queue.wake();
            }
            if queued < queue_limit {
                return Ok(());
            }
            let (nobody, condition) = (Mutex::named("l2-io", ()), Condvar::new());
            condition.wait_timeout(&mut nobody.lock(), POLL_INTERVAL);
        }
    }

    /// The error of a call on an L2 that is not open.
    pub(crate) fn not_open(&self) -> Error {
        let name = &self.io.device.info().name;
        let text = format!("the L2 on {name} has failed or was closed; open it again");
        Error::new(ErrorKind::Closed, text)
    }
}
