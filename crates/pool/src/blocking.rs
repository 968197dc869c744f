//! Non-blocking mode: on a thread in this mode, an operation that would wait for a device or a
//! transaction group fails instead.
//!
//! A thread that serves many requests first tries an operation in non-blocking mode, and hands it
//! to a thread that may block if that fails. The mode is thread-local and checked only right before
//! waiting. Operations that find everything in memory never check it.
//!
//! # Invariants
//!
//! - An operation that fails with [`ErrorKind::WouldBlock`] has changed nothing. A change of
//!   several steps first loads everything into memory, and allows blocking from the first step on.
//!
//! # Locking
//!
//! None of its own. [`lock`] takes locks that other threads hold while they wait for devices. In
//! non-blocking mode it gives up after a bounded number of attempts.
//!
//! # What it does not do
//!
//! It does not cover waits for memory, which are bounded (0.1 s) and rare, nor waits for locks that
//! are not held during I/O.

use std::cell::Cell;

use forebay_base::sync::{Mutex, MutexGuard, hint, thread_local};

use crate::error::{Error, ErrorKind, Result};

/// Attempts to take a held lock. Covers the time for which a thread holds it without I/O.
const LOCK_TRIES: usize = 128;

thread_local! {
    static NON_BLOCKING: Cell<bool> = const { Cell::new(false) };
}

/// The previous mode, restored on drop, also during a panic.
struct RestoreMode(bool);

impl RestoreMode {
    fn set(forbidden: bool) -> Self {
        Self(NON_BLOCKING.with(|mode| mode.replace(forbidden)))
    }
}

impl Drop for RestoreMode {
    fn drop(&mut self) {
        NON_BLOCKING.with(|mode| mode.set(self.0));
    }
}

/// Runs `f` in non-blocking mode: an operation that would wait for a device or a transaction group
/// fails with [`ErrorKind::WouldBlock`] and has changed nothing. If a block is not in memory, its
/// read is started if possible; a retry that may block joins that read.
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
/// The mode does not apply to callbacks that `f` registers. Calls nest, also with
/// [`blocking_allowed`]. such as several changes in one transaction.
pub fn non_blocking<R>(f: impl FnOnce() -> R) -> R {
    let _before = RestoreMode::set(true);
    f()
}

/// Runs `f` in blocking mode, inside a [`non_blocking`] call. For operations that must not stop
/// half-way, such as several changes in one transaction.
pub fn blocking_allowed<R>(f: impl FnOnce() -> R) -> R {
    let _before = RestoreMode::set(false);
    f()
}

/// Whether this thread is in non-blocking mode.
#[inline]
pub(crate) fn is_non_blocking() -> bool {
    NON_BLOCKING.with(Cell::get)
}

/// Call before waiting for `what`.
///
/// # Errors
/// [`ErrorKind::WouldBlock`] in non-blocking mode.
#[inline]
pub fn check(what: &'static str) -> Result<()> {
    if is_non_blocking() { Err(would_block(what)) } else { Ok(()) }
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

/// Takes a lock that other threads may hold while they wait for devices.
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
