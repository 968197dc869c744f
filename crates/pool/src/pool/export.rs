//! Exports a pool.

use forebay_base::sync::atomic::Ordering;

use crate::devices::label;
use crate::error::{ErrorKind, Result};
use crate::events::{Event, EventKind};
use crate::l2::DeviceCloser;

use super::outage_watch::{GivesUp, OutageWatch};
use super::{Pool, PoolInner};

impl Pool {
    /// Commits dirty data, writes the pool's cached blocks to its L2 devices, marks the pool as
    /// exported, and closes its devices.
    ///
    /// Afterwards every handle of the pool fails with
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed). Concurrent operations of other threads may
    /// fail.
    ///
    /// # Errors
    /// The error that kept the last txg from being committed. The pool is closed nevertheless, and
    /// earlier durable txgs are intact.
    pub fn export(self) -> Result<()> {
        self.close()
    }

    /// Closes the pool without a commit, as a crash would.
    #[cfg(any(test, feature = "testing"))]
    pub fn abandon(self) {
        self.stop();
        self.inner.close_l2_devices("the pool is exported");
        self.inner.close();
    }

    /// Ends the threads of the pool, without a commit.
    pub(super) fn stop(&self) {
        self.inner.closed.store(true, Ordering::Release);
        self.inner.end_walks();
        self.inner.txgs.close();
        self.join();
        self.inner.end_log_thread();
    }

    /// As [`export`](Self::export), for a shared pool. A second call does nothing.
    ///
    /// # Errors
    /// As [`export`](Self::export).
    pub fn close(&self) -> Result<()> {
        self.end(None)
    }

    /// As [`close`](Self::close), and closes the files of all devices before it returns, even while
    /// handles of the pool are referenced. An L2 device that hangs is closed with its last request.
    /// Nobody else can use the devices afterwards.
    ///
    /// A device that is away and comes back by itself is waited for, until `gives_up`, which is
    /// asked now and then, returns true. Then what is not durable is lost.
    ///
    /// # Errors
    /// As [`export`](Self::export). If it gives up, the error says what is lost.
    pub fn close_with_devices(&self, gives_up: Option<GivesUp>) -> Result<()> {
        let l2_devices = self.inner.l2_devices.closers();
        let ended = self.end(gives_up);
        self.inner.devices.leaves().for_each(|leaf| leaf.device().close());
        l2_devices.into_iter().for_each(DeviceCloser::close);
        ended
    }

    fn end(&self, gives_up: Option<GivesUp>) -> Result<()> {
        if self.inner.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let watch = gives_up.and_then(|gives_up| OutageWatch::start(&self.inner, gives_up));
        let ended = self.end_waiting();
        match watch.and_then(OutageWatch::end) {
            Some(lost) => ended.map_err(|error| lost.because(error)),
            None => ended,
        }
    }

    /// Ends the pool. Waits for devices that are away.
    fn end_waiting(&self) -> Result<()> {
        self.inner.store.trace().end();
        self.inner.end_walks();
        let synced = match self.inner.read_only {
            true => Ok(()),
            false => self.inner.sync_last(),
        };
        self.inner.txgs.close();
        self.join();
        self.inner.end_log_thread();
        self.inner.fill_l2_devices();
        self.inner.close_l2_devices("the pool is exported");
        let marked = match (&synced, self.inner.read_only) {
            (Ok(()), false) => self.inner.mark_exported(),
            _ => Ok(()),
        };
        if marked.is_ok() && synced.is_ok() && !self.inner.read_only {
            self.inner.release_leaving();
        }
        self.inner.close();
        let ended = synced.and(marked);
        let (events, txg) = (self.inner.events(), self.inner.txgs.synced_txg());
        match &ended {
            Ok(()) => events.note(EventKind::Exported, Event::default().in_txg(txg)),
            Err(error) => events.note(EventKind::ClosedDirty, Event::because(error).in_txg(txg)),
        }
        ended
    }

    pub(super) fn join(&self) {
        if let Some(thread) = self.thread.lock().take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
        // Nothing is written any more, and the caches' owners wait for pins.
        self.inner.store.abandon_writes();
    }
}

impl PoolInner {
    /// Ends scrubs, checks, discards and moves of names. They may wait for `space`, which a commit
    /// holds while it is parked.
    fn end_walks(&self) {
        self.txgs.end_parks();
        self.scrub.shut_down();
        self.resilver.shut_down();
        self.trim.shut_down();
        self.end_merges();
        self.l2_fills.shut_down();
    }

    /// Commits what is dirty. Waits for a device that is away and comes back by itself.
    fn sync_last(&self) -> Result<()> {
        let txgs = &self.txgs;
        loop {
            let error = match txgs.sync_now() {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let waits = error.kind() == ErrorKind::Suspended && txgs.suspension().is_none();
            // If it ended meanwhile, nothing is waited for.
            if !waits || txgs.wait_resumed(&|| false).is_err() {
                return Err(error);
            }
        }
    }

    fn mark_exported(&self) -> Result<()> {
        let mut config = self.config.lock();
        config.active = false;
        config.txg = self.txgs.synced_txg();
        let may_write = |generation| self.may_write_labels(generation);
        label::update_config(&self.devices, &mut config, self.store.cache(), &may_write)
    }

    /// Closes the devices and drops their blocks from the cache.
    fn close(&self) {
        self.close_objects();
        self.devices.close();
    }

    /// Closes all objects, and waits for the requests in flight.
    pub(super) fn close_objects(&self) {
        self.heartbeats.stop();
        let datasets: Vec<_> = self.datasets.lock().drain().map(|(_, dataset)| dataset).collect();
        for dataset in datasets {
            dataset.objset.close();
        }
        self.mos.close();
        self.devices.drain();
        // Of writes that have ended since the sync thread did.
        self.store.abandon_writes();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Callers that need the result call `export`.
        let _ = self.close();
    }
}
