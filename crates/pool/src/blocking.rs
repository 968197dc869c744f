//! Threads that must not wait: what would wait for a device or a transaction group on such a thread fails instead.
//!
//! A thread that answers many, as one that serves a file system's requests, tries first without waiting, and hands over what
//! cannot be done so to a thread that may wait. The mark is the thread's own, and looked at only where somebody is about to
//! wait: what is found in memory at once never asks.
//!
//! # Invariants
//!
//! - What fails with [`ErrorKind::WouldBlock`] has changed nothing: whoever changes something in several steps has what they need in
//!   memory before the first, and may wait from then on.
//!
//! # Locking
//!
//! None of its own. Locks under which others wait for devices are taken by [`lock`], which gives up after a while on a
//! thread that must not wait.
//!
//! # What it does not do
//!
//! Waits for memory stay: they are bounded (0.1 s), rare, and have no other thread to go to. So do waits for locks that
//! nobody holds during I/O.

use std::cell::Cell;

use forebay_base::sync::{Mutex, MutexGuard, hint, thread_local};

use crate::error::{Error, ErrorKind, Result};

/// How often a lock is tried that somebody holds: about as long as one holds it who does not wait.
const LOCK_TRIES: usize = 128;

thread_local! {
    static NON_BLOCKING: Cell<bool> = const { Cell::new(false) };
}

/// What the mark was before; so it is again when this is dropped, by a panic too.
struct RestoreMark(bool);

impl RestoreMark {
    fn set(forbidden: bool) -> Self {
        Self(NON_BLOCKING.with(|mark| mark.replace(forbidden)))
    }
}

impl Drop for RestoreMark {
    fn drop(&mut self) {
        NON_BLOCKING.with(|mark| mark.set(self.0));
    }
}

/// Runs `f` on this thread so that nothing of a pool's in it waits for a device or a transaction group: what would have to wait
/// fails with [`ErrorKind::WouldBlock`] instead, before it has changed anything. Where that is a block that is not in memory, its
/// read has begun, if it can be read without waiting: who asks again, on a thread that may wait, joins it.
///
/// ```
/// # use forebay_pool::{ErrorKind, Object, non_blocking};
/// fn read(object: &Object, out: &mut [u8]) -> forebay_pool::Result<usize> {
///     match non_blocking(|| object.read(0, out)) {
///         Err(error) if error.kind() == ErrorKind::WouldBlock => {
///             object.read(0, out) // On a thread that may wait.
///         }
///         done => done,
///     }
/// }
/// ```
///
/// Callbacks that `f` leaves behind are not marked. Calls nest, also with [`blocking_allowed`].
pub fn non_blocking<R>(f: impl FnOnce() -> R) -> R {
    let _before = RestoreMark::set(true);
    f()
}

/// The opposite, inside of it: for what must not stop half-way, as several changes of one transaction.
pub fn blocking_allowed<R>(f: impl FnOnce() -> R) -> R {
    let _before = RestoreMark::set(false);
    f()
}

/// Whether this thread must not wait.
#[inline]
pub(crate) fn is_non_blocking() -> bool {
    NON_BLOCKING.with(Cell::get)
}

/// To be called before waiting.
///
/// # Errors
/// [`ErrorKind::WouldBlock`] if this thread must not.
#[inline]
pub fn check(what: &'static str) -> Result<()> {
    if is_non_blocking() { Err(would_block(what)) } else { Ok(()) }
}

/// `what` is not there yet, and this thread must not wait for it.
#[cold]
pub(crate) fn would_block(what: &'static str) -> Error {
    let text = format!("{what} would have to be waited for: do it on a thread that may wait");
    Error::new(ErrorKind::WouldBlock, text)
}

/// Whether an error says that something would have had to wait.
#[inline]
pub(crate) fn is_would_block<T>(result: &Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Takes a lock under which others may wait for devices.
///
/// # Errors
/// [`ErrorKind::WouldBlock`] if this thread must not wait, and somebody holds it.
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
    fn marks_nest_and_end_with_a_panic() {
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
    fn a_lock_that_is_held_is_given_up() {
        let mutex = Mutex::named("object-lock", 1);
        let guard = mutex.lock();
        let tried = non_blocking(|| lock(&mutex, "a test").map(drop));
        assert_eq!(tried.unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(guard);
        non_blocking(|| assert_eq!(*lock(&mutex, "a test").unwrap(), 1));
    }
}
