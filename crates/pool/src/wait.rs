//! Whether a call may wait.
//!
//! A thread that serves many requests first tries an operation in non-blocking mode
//! ([`Wait::Refused`]), and hands it to a thread that may block if that fails with
//! [`ErrorKind::WouldBlock`]. The mode is part of each call that may wait: a parameter of type
//! [`Wait`], the mode of the [`Transaction`](crate::Transaction), or the mode of a
//! [`HandleView`](crate::HandleView). Calls with none of these may wait. The mode is checked only
//! right before waiting. Operations that find everything in memory never check it.
//!
//! # Invariants
//!
//! - An operation that fails with [`ErrorKind::WouldBlock`] has changed nothing. A change of
//!   several steps first loads everything into memory, and may wait from the first step on.
//!
//! # Locking
//!
//! None of its own. [`Wait::lock`] takes locks that other threads hold while they wait for devices.
//! In non-blocking mode it gives up after a bounded number of attempts.
//!
//! # What it does not do
//!
//! It does not cover waits for memory, which are bounded (0.1 s) and rare, nor waits for locks that
//! are not held during I/O.

use forebay_base::sync::{Mutex, MutexGuard, hint};
use forebay_base::waits::{self, WaitKind};

use crate::error::{Error, ErrorKind, Result};

/// Attempts to take a held lock. Covers the time for which a thread holds it without I/O.
const LOCK_TRIES: usize = 128;

/// Whether a call may wait for a device or a transaction group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It waits as long as necessary.
    Allowed,
    /// Non-blocking mode: a call that would wait fails with [`ErrorKind::WouldBlock`] and has
    /// changed nothing. If a block is not in memory, its read is started if possible; a retry that
    /// may wait joins that read.
    Refused,
}

impl Wait {
    /// Call before waiting for `what`.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] in non-blocking mode.
    #[inline]
    pub fn check(self, what: &'static str) -> Result<()> {
        match self {
            Self::Allowed => Ok(()),
            Self::Refused => Err(would_block(what)),
        }
    }

    /// Takes a lock that other threads may hold while they wait for devices.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] in non-blocking mode, if another thread holds the lock.
    #[inline]
    pub fn lock<'a, T>(self, mutex: &'a Mutex<T>, what: &'static str) -> Result<MutexGuard<'a, T>> {
        match mutex.try_lock() {
            Some(guard) => Ok(guard),
            None => self.lock_slow(mutex, what),
        }
    }

    #[cold]
    fn lock_slow<'a, T>(
        self,
        mutex: &'a Mutex<T>,
        what: &'static str,
    ) -> Result<MutexGuard<'a, T>> {
        if self == Self::Allowed {
            let _wait = waits::measure(WaitKind::Lock);
            return Ok(mutex.lock());
        }
        for _ in 0..LOCK_TRIES {
            hint::spin_loop();
            if let Some(guard) = mutex.try_lock() {
                return Ok(guard);
            }
        }
        Err(would_block(what))
    }
}

/// Returns the error for `what`, which is not available without waiting.
#[cold]
pub(crate) fn would_block(what: &'static str) -> Error {
    let text = format!("would wait for {what}: retry on a thread that may block");
    Error::new(ErrorKind::WouldBlock, text)
}

/// Whether a result is [`ErrorKind::WouldBlock`].
#[inline]
pub(crate) fn is_would_block<T>(result: &Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_would_block() {
        let mutex = Mutex::named("object-lock", 1);
        let guard = mutex.lock();
        let tried = Wait::Refused.lock(&mutex, "a test").map(drop);
        assert_eq!(tried.unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(guard);
        assert_eq!(*Wait::Refused.lock(&mutex, "a test").unwrap(), 1);
    }
}
