//! The end of a pool's use.

use forebay_base::sync::atomic::Ordering;

use crate::blocking::blocking_allowed;
use crate::devices::label;
use crate::error::Result;

use super::{Pool, PoolInner};

impl Pool {
    /// Commits what is dirty, marks the pool as exported, and closes its devices. Handles of its datasets and objects answer
    /// with [`ErrorKind::Closed`](crate::ErrorKind::Closed) from then on. Nobody may be reading or changing anything meanwhile on other
    /// threads with the expectation that it succeeds.
    ///
    /// # Errors
    /// Why the last txg could not be committed; the pool is closed all the same, and what was durable before is.
    pub fn export(self) -> Result<()> {
        self.end()
    }

    /// Closes the pool without committing anything, as a crash would.
    #[cfg(any(test, feature = "testing"))]
    pub fn abandon(self) {
        self.inner.closed.store(true, Ordering::Release);
        self.inner.txgs.close();
        self.join();
        self.inner.close_l2_devices("the pool is exported");
        self.inner.close();
    }

    /// As [`export`](Self::export), for a pool that is shared. A second time it does nothing.
    ///
    /// # Errors
    /// As there.
    pub fn close(&self) -> Result<()> {
        self.end()
    }

    /// Waits, on whatever thread: there is nobody left who could do it later.
    fn end(&self) -> Result<()> {
        blocking_allowed(|| self.end_now())
    }

    fn end_now(&self) -> Result<()> {
        if self.inner.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let synced = match self.inner.read_only {
            true => Ok(()),
            false => self.inner.txgs.sync_now().map(|_| ()),
        };
        self.inner.txgs.close();
        self.join();
        self.inner.fill_l2_devices();
        self.inner.close_l2_devices("the pool is exported");
        let marked = match (&synced, self.inner.read_only) {
            (Ok(()), false) => self.inner.mark_exported(),
            _ => Ok(()),
        };
        self.inner.close();
        synced.and(marked)
    }

    fn join(&self) {
        if let Some(thread) = self.thread.lock().take() {
            // It catches nothing, and a panic of it has been told already.
            let _ = thread.join();
        }
    }
}

impl PoolInner {
    fn mark_exported(&self) -> Result<()> {
        let mut config = self.config.lock();
        config.active = false;
        config.txg = self.txgs.synced_txg();
        label::update_config(&self.devices, &mut config, self.store.cache())
    }

    /// Lets go of the devices, and of all that the cache holds of them.
    fn close(&self) {
        let datasets: Vec<_> = self.datasets.lock().drain().map(|(_, dataset)| dataset).collect();
        for dataset in datasets {
            dataset.objset.close();
        }
        self.mos.close();
        self.devices.drain();
        self.devices.close();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Whoever wants to know how it ended calls `export`.
        let _ = self.end();
    }
}
