//! What operations do while the pool is suspended, or while no device answers that could have a
//! block that they need.
//!
//! The setting `failmode` of the dataset decides: they wait until the pool is cleared, or fail at
//! once. What needs neither a device that is gone nor a change goes on. Background work does not
//! wait: it is tried again every now and then.
//!
//! An operation waits where its transaction begins and in `fsync`; and at its entry
//! ([`FileSystem::run`]), to be repeated, if a read has failed for want of devices. An error after
//! which something is left half-way is not repeated ([`Error::without_wait`]).
//!
//! # When a wait ends
//!
//! - The pool is cleared: the operation goes on.
//! - Only another import can help, or the pool is exported: the operation fails.
//! - The file system is closed or unmounted ([`FileSystem::end_waits`]): it fails.
//! - The process that asked for it is killed ([`Client::is_killed`](crate::Client::is_killed)).
//!
//! A thread that waits holds neither a transaction nor a lock. The pool of worker threads starts
//! another one for it ([`Workers::blocked`](crate::workers::Workers::blocked)).

use forebay_base::sync::atomic::Ordering;
use forebay_pool::format::FailMode;
use forebay_pool::{DevicesWait, Wait};

use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileSystem;
use crate::stats::{FsCounters, Op};

/// How often an operation is repeated whose devices answer, but do not have the block.
const REPETITIONS_MAX: usize = 3;

impl FileSystem {
    /// From now on operations fail while the pool is suspended, instead of waiting. For a file
    /// system that is unmounted: the kernel writes its pages before it goes, and files that are
    /// open after a lazy unmount would keep it.
    pub fn end_waits(&self) {
        self.shared.waits.store(false, Ordering::Release);
    }

    /// Counts an operation and runs it. If no device answers that could have a block that it reads,
    /// waits and repeats it if the dataset wants that. The thread holds no transaction and no lock.
    ///
    /// # Errors
    /// Those of `operation`; [`Interrupted`](ErrorKind::Interrupted);
    /// [`WouldBlock`](ErrorKind::WouldBlock) if it must wait and may not;
    /// [`Suspended`](ErrorKind::Suspended).
    #[inline]
    pub(crate) fn run<T>(&self, op: Op, operation: impl FnMut() -> Result<T>) -> Result<T> {
        self.enter(op)?;
        self.unless_gone(operation)
    }

    /// As [`run`](Self::run), for a part of an operation, which is repeated alone.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    #[inline]
    pub(crate) fn unless_gone<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        let mut repetitions = 0;
        loop {
            match call() {
                Err(error) if error.waits() => self.wait_for_devices(error, &mut repetitions)?,
                ended => return ended,
            }
        }
    }

    /// Waits until devices are back whose absence has caused `failure`.
    #[cold]
    fn wait_for_devices(&self, failure: Error, repetitions: &mut usize) -> Result<()> {
        let Some(process) = self.process else { return Err(failure.suspended()) };
        let ends = self.fails_at_once() || self.pool().is_read_only();
        if ends || *repetitions == REPETITIONS_MAX {
            return Err(failure.without_wait());
        }
        self.wait.check("devices that do not answer")?;
        match self.blocked_for(process, |give_up| self.pool().wait_for_devices(give_up))? {
            DevicesWait::Back => *repetitions = 0,
            DevicesWait::Durable => *repetitions += 1,
            DevicesWait::GaveUp => return Err(self.given_up(failure)),
        }
        Ok(())
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
        if self.fails_at_once() {
            return Err(refusal);
        }
        wait.check("the end of a suspension")?;
        match self.blocked_for(process, |give_up| self.pool().wait_resumed(give_up))? {
            true => Ok(()),
            false => Err(self.given_up(refusal)),
        }
    }

    /// Runs `wait`, which waits until it has to give up, on behalf of a process.
    fn blocked_for<T>(
        &self,
        process: u32,
        wait: impl FnOnce(&dyn Fn() -> bool) -> forebay_pool::Result<T>,
    ) -> Result<T> {
        self.counters().add(FsCounters::SUSPENSION_WAITS, 0, 1);
        let _blocked = self.shared.workers.blocked();
        Ok(wait(&|| self.gives_up() || self.is_killed(process))?)
    }

    /// The error of an operation that has given up waiting after this one.
    fn given_up(&self, error: Error) -> Error {
        match self.gives_up() {
            true => error.without_wait(),
            false => Error::new(
                ErrorKind::Interrupted,
                "the process was killed while the pool was suspended",
            ),
        }
    }

    fn fails_at_once(&self) -> bool {
        self.dataset().fail_mode() == FailMode::Continue || self.gives_up()
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
