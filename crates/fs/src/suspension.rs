//! What changes and fsyncs do while the pool is suspended.
//!
//! The setting `failmode` of the dataset decides: they wait until the pool is cleared, or fail at
//! once. Either way, operations that change nothing go on. Background work does not wait: it is
//! tried again every now and then.
//!
//! # When a wait ends
//!
//! - The pool is cleared: the operation goes on.
//! - Only another import can help, or the pool is exported: the operation fails.
//! - The file system is closed or unmounted ([`FileSystem::end_waits`]): it fails.
//! - The process that asked for it is killed ([`Client::is_killed`](crate::Client::is_killed)).
//!
//! A thread that waits holds neither a transaction nor an inode lock. The pool of worker threads
//! starts another one for it ([`Workers::blocked`](crate::workers::Workers::blocked)), so that
//! readers find one.

use forebay_base::sync::atomic::Ordering;
use forebay_pool::Wait;
use forebay_pool::format::FailMode;

use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileSystem;
use crate::stats::FsCounters;

impl FileSystem {
    /// From now on changes and fsyncs fail while the pool is suspended. For a file system that is
    /// unmounted: the kernel writes its pages before it goes, and files that are open after a lazy
    /// unmount would keep it.
    pub fn end_waits(&self) {
        self.shared.waits.store(false, Ordering::Release);
    }

    /// Runs `call`, which begins something in the pool. While the pool is suspended, waits and
    /// repeats it if the dataset wants that.
    ///
    /// # Errors
    /// Those of `call`; [`Interrupted`](ErrorKind::Interrupted);
    /// [`WouldBlock`](ErrorKind::WouldBlock) if it must wait and may not.
    pub(crate) fn unless_suspended<T>(
        &self,
        wait: Wait,
        mut call: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        loop {
            match call() {
                Err(error) if error.kind() == ErrorKind::Suspended => {
                    self.wait_resumed(wait, error)?;
                }
                ended => return ended,
            }
        }
    }

    /// Waits for the end of the suspension that caused `refusal`.
    #[cold]
    fn wait_resumed(&self, wait: Wait, refusal: Error) -> Result<()> {
        let Some(process) = self.process else { return Err(refusal) };
        if self.dataset().fail_mode() == FailMode::Continue || self.gives_up() {
            return Err(refusal);
        }
        wait.check("the end of a suspension")?;
        self.counters().add(FsCounters::SUSPENSION_WAITS, 0, 1);
        let _blocked = self.shared.workers.blocked();
        let resumed = self.pool().wait_resumed(&|| self.gives_up() || self.is_killed(process))?;
        match resumed {
            true => Ok(()),
            false if self.gives_up() => Err(refusal),
            false => Err(Error::new(
                ErrorKind::Interrupted,
                "the process was killed while the pool was suspended",
            )),
        }
    }

    /// Whether nothing may wait for the end of a suspension.
    fn gives_up(&self) -> bool {
        !self.shared.waits.load(Ordering::Acquire) || self.shared.check_open().is_err()
    }

    /// Fails if the process that asked for the operation was killed. For operations of many steps,
    /// which are not worth their end then.
    ///
    /// # Errors
    /// [`Interrupted`](ErrorKind::Interrupted).
    pub(crate) fn check_killed(&self) -> Result<()> {
        match self.process {
            Some(process) if self.is_killed(process) => {
                Err(Error::new(ErrorKind::Interrupted, "the process was killed"))
            }
            _ => Ok(()),
        }
    }

    fn is_killed(&self, process: u32) -> bool {
        let client = self.client().filter(|_| process != 0);
        client.is_some_and(|client| client.is_killed(process))
    }
}
