//! Named locks and condition variables on top of those of the build.
//!
//! The guard is a type of its own, so that its drop records the hold time, and so that all builds
//! have the same interface for waiting.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

#[cfg(feature = "counting")]
use super::count;

#[cfg(not(forebay_model))]
mod raw {
    pub(super) use parking_lot::{Condvar, Mutex, MutexGuard};
}
#[cfg(forebay_model)]
mod raw {
    pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard};
}

/// A mutual exclusion lock of a named class.
pub struct Mutex<T> {
    raw: raw::Mutex<T>,
    #[cfg(feature = "counting")]
    class: count::LockClass,
}

/// The guard of a locked [`Mutex`]. Dropping it unlocks.
pub struct MutexGuard<'a, T> {
    // `None` only during a wait in the model build.
    raw: Option<raw::MutexGuard<'a, T>>,
    #[cfg(forebay_model)]
    of: &'a raw::Mutex<T>,
    #[cfg(feature = "counting")]
    hold_timer: count::HoldTimer,
}

impl<T> Mutex<T> {
    /// Creates a lock of the class `name`, a row of `docs/locking.md`.
    pub fn named(name: &'static str, value: T) -> Self {
        #[cfg(not(feature = "counting"))]
        let _ = name;
        Self {
            raw: raw::Mutex::new(value),
            #[cfg(feature = "counting")]
            class: count::LockClass::register(name),
        }
    }

    /// Locks, and waits if another thread holds the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(feature = "counting")]
        {
            let (raw, contended) = match self.raw_try_lock() {
                Some(raw) => (raw, false),
                None => (self.raw_lock(), true),
            };
            self.guard(raw, contended)
        }
        #[cfg(not(feature = "counting"))]
        self.guard(self.raw_lock(), false)
    }

    /// Locks if no thread holds the lock.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let raw = self.raw_try_lock()?;
        Some(self.guard(raw, false))
    }

    #[inline]
    fn guard<'a>(&'a self, raw: raw::MutexGuard<'a, T>, contended: bool) -> MutexGuard<'a, T> {
        #[cfg(not(feature = "counting"))]
        let _ = contended;
        MutexGuard {
            raw: Some(raw),
            #[cfg(forebay_model)]
            of: &self.raw,
            #[cfg(feature = "counting")]
            hold_timer: count::HoldTimer::start(self.class, contended),
        }
    }

    /// The value, without locking, because no other thread can access it.
    pub fn get_mut(&mut self) -> &mut T {
        #[cfg(not(forebay_model))]
        return self.raw.get_mut();
        #[cfg(forebay_model)]
        return self.raw.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
    }

    /// Consumes the lock and returns the value.
    pub fn into_inner(self) -> T {
        #[cfg(not(forebay_model))]
        return self.raw.into_inner();
        #[cfg(forebay_model)]
        return self.raw.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    }

    #[inline]
    fn raw_lock(&self) -> raw::MutexGuard<'_, T> {
        #[cfg(not(forebay_model))]
        return self.raw.lock();
        #[cfg(forebay_model)]
        return self.raw.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    }

    #[inline]
    fn raw_try_lock(&self) -> Option<raw::MutexGuard<'_, T>> {
        #[cfg(not(forebay_model))]
        return self.raw.try_lock();
        #[cfg(forebay_model)]
        return match self.raw.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        };
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match &self.raw {
            Some(raw) => raw,
            None => unreachable!("the raw guard is present outside a wait"),
        }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.raw {
            Some(raw) => raw,
            None => unreachable!("the raw guard is present outside a wait"),
        }
    }
}

#[cfg(feature = "counting")]
impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.hold_timer.end();
    }
}

/// A condition variable for [`MutexGuard`]s. Wake-ups can be spurious.
pub struct Condvar {
    raw: raw::Condvar,
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl Condvar {
    /// Creates a condition variable without waiters.
    pub fn new() -> Self {
        Self { raw: raw::Condvar::new() }
    }

    /// Unlocks, waits for a notification, and locks again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        #[cfg(not(forebay_model))]
        if let Some(raw) = &mut guard.raw {
            self.raw.wait(raw);
        }
        #[cfg(forebay_model)]
        {
            let raw = guard.raw.take().expect("the raw guard is present outside a wait");
            let raw = self.raw.wait(raw).unwrap_or_else(std::sync::PoisonError::into_inner);
            guard.raw = Some(raw);
        }
    }

    /// As [`wait`](Self::wait), for at most `timeout`. Returns true if it timed out.
    ///
    /// The model build has no time. The wait ends after the scheduler could run other threads, and
    /// its result is random.
    pub fn wait_timeout<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        #[cfg(not(forebay_model))]
        return match &mut guard.raw {
            Some(raw) => self.raw.wait_for(raw, timeout).timed_out(),
            None => unreachable!("the raw guard is present outside a wait"),
        };
        #[cfg(forebay_model)]
        {
            let _ = timeout;
            let raw = guard.raw.take().expect("the raw guard is present outside a wait");
            drop(raw);
            shuttle::thread::yield_now();
            let raw = guard.of.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            guard.raw = Some(raw);
            use shuttle::rand::Rng;
            shuttle::rand::thread_rng().r#gen::<bool>()
        }
    }

    /// Wakes one waiter, if any.
    pub fn notify_one(&self) {
        self.raw.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.raw.notify_all();
    }
}
