//! Non-blocking mode of a thread: an operation that would wait for a device or a transaction group
//! fails instead.
//!
//! A thread that serves many requests, such as those of a file system, first runs an operation in
//! non-blocking mode. If that fails, it passes the operation to a thread that may block. The mode
//! is a thread-local flag. Only code that is about to wait reads it, so an operation that finds
//! everything in memory does not.
//!
//! # Invariants
//!
//! - An operation that fails with [`ErrorKind::WouldBlock`] has changed nothing. A change of
//!   several steps has everything it needs in memory before the first step, and may block from then
//!   on.
//!
//! # Locking
//!
//! No lock of its own. Locks that are held during device I/O are taken with [`lock`], which gives
//! up after a bounded number of attempts in non-blocking mode.
//!
//! # What it does not do
//!
//! It does not cover waits for memory: they are bounded and rare, and another thread would have to
//! wait too. It does not cover locks that are never held during I/O.

use std::cell::Cell;

use forebay_base::sync::{Mutex, MutexGuard, hint, thread_local};

use crate::error::{Error, ErrorKind, Result};

/// Attempts to take a held lock: about as long as a holder that does not wait keeps it.
const LOCK_TRIES: usize = 128;

thread_local! {
    static NON_BLOCKING: Cell<bool> = const { Cell::new(false) };
}

/// Restores the previous mode when dropped, also during a panic.
struct RestoreMode(bool);

impl RestoreMode {
    fn set(non_blocking: bool) -> Self {
        Self(NON_BLOCKING.with(|mode| mode.replace(non_blocking)))
    }
}

impl Drop for RestoreMode {
    fn drop(&mut self) {
        NON_BLOCKING.with(|mode| mode.set(self.0));
    }
}

/// Runs `f` in non-blocking mode: an operation that would wait for a device or a transaction group
/// fails with [`ErrorKind::WouldBlock`] and has changed nothing.
///
/// If the operation needs a block that is not in memory, its read has been started where that is
/// possible without waiting. A repetition on a thread that may block joins this read.
///
/// ```
/// # use forebay_pool::{ErrorKind, Object, non_blocking};
/// fn read(object: &Object, out: &mut [u8]) -> forebay_pool::Result<usize> {
///     match non_blocking(|| object.read(0, out)) {
///         Err(error) if error.kind() == ErrorKind::WouldBlock => {
///             object.read(0, out) // On a thread that may block.
///         }
///         done => done,
///     }
/// }
/// ```
///
/// The mode does not apply to callbacks that outlive `f`. Calls nest, also with
/// [`blocking_allowed`].
pub fn non_blocking<R>(f: impl FnOnce() -> R) -> R {
    let _before = RestoreMode::set(true);
    f()
}

/// Runs `f` in blocking mode within [`non_blocking`], for work that must not stop halfway, such as
/// several changes of one transaction.
pub fn blocking_allowed<R>(f: impl FnOnce() -> R) -> R {
    let _before = RestoreMode::set(false);
    f()
}

/// Whether this thread is in non-blocking mode.
#[inline]
pub(crate) fn is_non_blocking() -> bool {
    NON_BLOCKING.with(Cell::get)
}

/// Checks whether this thread may block. Call it before waiting for `what`.
///
/// # Errors
/// [`ErrorKind::WouldBlock`] in non-blocking mode.
#[inline]
pub fn check(what: &'static str) -> Result<()> {
    if is_non_blocking() { Err(would_block(what)) } else { Ok(()) }
}

/// The error of an operation that would wait for `what` in non-blocking mode.
#[cold]
pub(crate) fn would_block(what: &'static str) -> Error {
    let text =
        format!("waiting for {what} would block: repeat the operation on a thread that may block");
    Error::new(ErrorKind::WouldBlock, text)
}

/// Whether the result is a [`ErrorKind::WouldBlock`] error.
#[inline]
pub(crate) fn is_would_block<T>(result: &Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Takes a lock that others may hold during device I/O.
///
/// # Errors
/// [`ErrorKind::WouldBlock`] in non-blocking mode, if another thread holds the lock.
#[inline]
pub fn lock<'a, T>(mutex: &'a Mutex<T>, what: &'static str) -> Result<MutexGuard<'a, T>> {
    match mutex.try_lock() {
        Some(guard) => Ok(guard),
        None => lock_slow(mutex, what),
    }
}

#[cold]
fn lock_slow<'a, T>(mutex: &'a Mutex<T>, what: &'static str) -> Result<MutexGuard<'a, T>> {
    if !is_non_blocking() {
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

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    #[test]
    fn modes_nest_and_are_restored_after_a_panic() {
        assert!(!is_non_blocking());
        non_blocking(|| {
            assert!(is_non_blocking());
            blocking_allowed(|| {
                assert!(!is_non_blocking());
                non_blocking(|| assert!(is_non_blocking()));
                assert!(!is_non_blocking());
            });
            assert!(is_non_blocking());
            let panicked = std::panic::catch_unwind(|| blocking_allowed(|| panic!("on purpose")));
            assert!(panicked.is_err());
            assert!(is_non_blocking());
        });
        let panicked = std::panic::catch_unwind(|| non_blocking(|| panic!("on purpose")));
        assert!(panicked.is_err());
        assert!(!is_non_blocking());
    }

    #[test]
    fn a_held_lock_would_block() {
        let mutex = Mutex::named("object-lock", 1);
        let guard = mutex.lock();
        let tried = non_blocking(|| lock(&mutex, "a test").map(drop));
        assert_eq!(tried.unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(guard);
        non_blocking(|| assert_eq!(*lock(&mutex, "a test").unwrap(), 1));
    }
}
