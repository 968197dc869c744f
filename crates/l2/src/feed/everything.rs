//! Writing whatever is asked for: not what the cache offers and the level chooses from, but what a user wants written.

use std::time::Duration;

use forebay_base::sync::{Condvar, Mutex};
use forebay_cache::{Candidate, Key};

use super::Queued;
use crate::Refusal;
use crate::counters::LevelCounters;
use crate::error::{Error, ErrorKind, Result};
use crate::inner::Inner;

/// How often who waits for room in the queue looks.
const LOOK: Duration = Duration::from_millis(1);

impl<K: Key, V: Send + Sync + 'static> Inner<K, V> {
    /// Queues all of them that may be written at all, whatever the rate and their prospects; waits while the queue is
    /// full, and while it is not known yet what the device holds.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the level fails or is closed meanwhile.
    pub(crate) fn write_all(&self, candidates: Vec<Candidate<K, V>>) -> Result<()> {
        if !self.rebuild.wait() {
            return Err(self.not_open());
        }
        for candidate in candidates {
            let wish = match self.wish(&candidate) {
                Ok(Some(wish)) => wish,
                Ok(None) => continue,
                Err(reason) => {
                    self.refuse(reason);
                    continue;
                }
            };
            self.wait_for_room()?;
            let (class, since_ns) = (candidate.class, self.clock.now_ns());
            let Some(block) = candidate.write() else {
                self.counters.add(LevelCounters::ADMITTED, class as usize, 1);
                self.counters.add(LevelCounters::ADMITTED_IN_VAIN, class as usize, 1);
                continue;
            };
            let (id, value_bytes, bytes) = (wish.id, wish.value_bytes, wish.bytes);
            let queued = Queued { id, class, value_bytes, bytes, since_ns, block };
            let refused = self.feed.with(|state| {
                if state.stopping {
                    return Some(queued);
                }
                state.queued_bytes += queued.bytes;
                state.queue.push_back(queued);
                None
            });
            if refused.is_some() {
                self.refuse(Refusal::Removed);
                return Err(self.not_open());
            }
            self.counters.add(LevelCounters::ADMITTED, class as usize, 1);
        }
        Ok(())
    }

    /// Waits until the queue has room for one block more.
    fn wait_for_room(&self) -> Result<()> {
        let (batch, room) = (self.lot_bytes(), self.tunables.queue_bytes());
        loop {
            let (queued, stopping) = self.feed.with(|state| (state.queued_bytes, state.stopping));
            if stopping {
                return Err(self.not_open());
            }
            if queued >= batch {
                self.feed.wake();
            }
            if queued < room {
                return Ok(());
            }
            let (nobody, condition) = (Mutex::named("l2-io", ()), Condvar::new());
            condition.wait_timeout(&mut nobody.lock(), LOOK);
        }
    }

    /// The error of whoever comes too late.
    pub(crate) fn not_open(&self) -> Error {
        let name = &self.medium.device.info().name;
        let text = format!("the second level on {name} failed or was closed: open it again");
        Error::new(ErrorKind::Closed, text)
    }
}
