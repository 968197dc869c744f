//! State shared by the handles of a file system, and what needs no mode of a handle: closing, and
//! storing attributes, which has the mode of its transaction.

use forebay_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_pool::{Dataset, Directory, Pool, Transaction};

use crate::attrs::Meta;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::inode_table::InodeTable;
use crate::ops::privileges::Client;
use crate::options::FsOptions;
use crate::reclaim::Reclaim;
use crate::stats::FsCounters;
use crate::workers::Workers;
use crate::writeback_errors::WritebackErrors;

/// State shared by the handles of a file system.
pub(crate) struct FsShared {
    pub(crate) pool: Arc<Pool>,
    pub(crate) dataset: Dataset,
    /// Object number of the root directory.
    pub(crate) root: u64,
    pub(crate) orphans: Directory,
    pub(crate) table: InodeTable,
    pub(crate) workers: Workers,
    pub(crate) reclaim: Arc<Reclaim>,
    pub(crate) writeback_errors: WritebackErrors,
    /// Held by a thread that moves a directory to another parent, so that the ancestors do not
    /// change while it checks for loops.
    pub(crate) rename_mutex: Mutex<()>,
    pub(crate) options: FsOptions,
    /// When reads update access times, encoded by [`set_atime`](crate::FileSystem::set_atime).
    pub(crate) atime: AtomicU8,
    pub(crate) client: Mutex<Option<Arc<dyn Client>>>,
    pub(crate) counters: Arc<FsCounters>,
    /// Transaction group of the most recent transaction.
    pub(crate) last_txg: AtomicU64,
    pub(crate) closed: AtomicBool,
    /// Whether a close has made everything durable, so that there is nothing to repeat.
    pub(crate) is_stored: AtomicBool,
    /// Whether changes may wait while the pool is suspended, see `suspension.rs`.
    pub(crate) waits: AtomicBool,
}

impl FsShared {
    /// See [`FileSystem::close`](crate::FileSystem::close).
    pub(crate) fn close(&self) -> Result<()> {
        // From here on, jobs and callbacks find the file system closed and start nothing.
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.reclaim.stop();
            self.workers.close();
        }
        if self.options.read_only || self.is_stored.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut failed = None;
        self.table.for_each(|inode| {
            if inode.state().times_pending {
                let begun = self.pool.begin_freeing().map_err(Error::from);
                let written = begun.and_then(|tx| self.write_times(&tx, inode));
                failed = failed.take().or(written.err());
            }
            true
        });
        self.pool.sync()?;
        failed.map_or(Ok(()), Err)?;
        self.is_stored.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Closed, "the file system is closed")),
        }
    }

    /// # Errors
    /// [`ReadOnly`](ErrorKind::ReadOnly), [`Closed`](ErrorKind::Closed).
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        match self.options.read_only {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::ReadOnly, "the file system is read-only")),
        }
    }

    /// Stores attributes. They become durable together with the names that the transaction changes.
    fn store(&self, tx: &Transaction<'_>, number: u64, meta: &Meta) -> Result<()> {
        Ok(self.dataset.set_attributes_with_names(tx, number, &meta.encode())?)
    }

    /// Changes an inode's attributes, in memory and in its object. The caller holds the inode lock.
    pub(crate) fn change(
        &self,
        tx: &Transaction<'_>,
        inode: &Inode,
        change: impl FnOnce(&mut Meta),
    ) -> Result<()> {
        let mut meta = inode.meta();
        change(&mut meta);
        self.store(tx, inode.number, &meta)?;
        inode.set_atime_fresh_until(0);
        let mut state = inode.state();
        state.meta = meta;
        state.times_pending = false;
        state.stored_txg = tx.txg();
        Ok(())
    }

    pub(crate) fn write_times(&self, tx: &Transaction<'_>, inode: &Inode) -> Result<()> {
        let _lock = inode.lock(tx)?;
        if !inode.state().times_pending {
            return Ok(());
        }
        self.counters.add(FsCounters::TIMES_FLUSHED, 0, 1);
        self.change(tx, inode, |_| {})?;
        // These times may be old: the next change in this transaction group stores its own.
        inode.state().stored_txg = 0;
        Ok(())
    }
}

impl Drop for FsShared {
    fn drop(&mut self) {
        // To see errors, call `close` first.
        let _ = self.close();
    }
}
