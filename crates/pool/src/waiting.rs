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
    static FORBIDDEN: Cell<bool> = const { Cell::new(false) };
}

/// What the mark was before; so it is again when this is dropped, by a panic too.
struct Before(bool);

impl Before {
    fn set(forbidden: bool) -> Self {
        Self(FORBIDDEN.with(|mark| mark.replace(forbidden)))
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        FORBIDDEN.with(|mark| mark.set(self.0));
    }
}

/// Runs `f` on this thread so that nothing of a pool's in it waits for a device or a transaction group: what would have to wait
/// fails with [`ErrorKind::WouldBlock`] instead, before it has changed anything. Where that is a block that is not in memory, its
/// read has begun, if it can be read without waiting: who asks again, on a thread that may wait, joins it.
///
/// ```
/// # use forebay_pool::{ErrorKind, Object, without_waiting};
/// fn read(object: &Object, out: &mut [u8]) -> forebay_pool::Result<usize> {
///     match without_waiting(|| object.read(0, out)) {
///         Err(error) if error.kind() == ErrorKind::WouldBlock => {
///             object.read(0, out) // On a thread that may wait.
///         }
///         done => done,
///     }
/// }
/// ```
///
/// Callbacks that `f` leaves behind are not marked. Calls nest, also with [`waiting_allowed`].
pub fn without_waiting<R>(f: impl FnOnce() -> R) -> R {
    let _before = Before::set(true);
    f()
}

/// The opposite, inside of it: for what must not stop half-way, as several changes of one transaction.
pub fn waiting_allowed<R>(f: impl FnOnce() -> R) -> R {
    let _before = Before::set(false);
    f()
}

/// Whether this thread must not wait.
#[inline]
pub(crate) fn is_forbidden() -> bool {
    FORBIDDEN.with(Cell::get)
}

/// To be called before waiting.
///
/// # Errors
/// [`ErrorKind::WouldBlock`] if this thread must not.
#[inline]
pub fn check(what: &'static str) -> Result<()> {
    if is_forbidden() { Err(would_wait(what)) } else { Ok(()) }
}

/// `what` is not there yet, and this thread must not wait for it.
#[cold]
pub(crate) fn would_wait(what: &'static str) -> Error {
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
    if !is_forbidden() {
        return Ok(mutex.lock());
    }
    for _ in 0..LOCK_TRIES {
        hint::spin_loop();
        if let Some(guard) = mutex.try_lock() {
            return Ok(guard);
        }
    }
    Err(would_wait(what))
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    #[test]
    fn marks_nest_and_end_with_a_panic() {
        assert!(!is_forbidden());
        without_waiting(|| {
            assert!(is_forbidden());
            waiting_allowed(|| {
                assert!(!is_forbidden());
                without_waiting(|| assert!(is_forbidden()));
                assert!(!is_forbidden());
            });
            assert!(is_forbidden());
            let panicked = std::panic::catch_unwind(|| waiting_allowed(|| panic!("on purpose")));
            assert!(panicked.is_err());
            assert!(is_forbidden());
        });
        let panicked = std::panic::catch_unwind(|| without_waiting(|| panic!("on purpose")));
        assert!(panicked.is_err());
        assert!(!is_forbidden());
    }

    #[test]
    fn a_lock_that_is_held_is_given_up() {
        let mutex = Mutex::named("object-turn", 1);
        let guard = mutex.lock();
        let tried = without_waiting(|| lock(&mutex, "a test").map(drop));
        assert_eq!(tried.unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(guard);
        without_waiting(|| assert_eq!(*lock(&mutex, "a test").unwrap(), 1));
    }
}
