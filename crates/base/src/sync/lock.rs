//! Named locks and condition variables over the build's own.
//!
//! The guard is a type of ours so that hold times can be taken where it is dropped,
//! and so that waiting reads the same in every build.

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

/// A mutual exclusion lock that belongs to a named class.
pub struct Mutex<T> {
    raw: raw::Mutex<T>,
    #[cfg(feature = "counting")]
    class: count::LockClass,
}

/// Access to what a [`Mutex`] protects, until dropped.
pub struct MutexGuard<'a, T> {
    // Taken only while a model-build wait holds it.
    raw: Option<raw::MutexGuard<'a, T>>,
    #[cfg(forebay_model)]
    of: &'a raw::Mutex<T>,
    #[cfg(feature = "counting")]
    held: count::Held,
}

impl<T> Mutex<T> {
    /// A lock of the class `name`, a row of `docs/locking.md`.
    pub fn named(name: &'static str, value: T) -> Self {
        #[cfg(not(feature = "counting"))]
        let _ = name;
        Self {
            raw: raw::Mutex::new(value),
            #[cfg(feature = "counting")]
            class: count::LockClass::register(name),
        }
    }

    /// Waits for the lock.
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

    /// Takes the lock if nobody has it.
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
            held: count::Held::start(self.class, contended),
        }
    }

    /// The value, without locking: nobody else can have it.
    pub fn get_mut(&mut self) -> &mut T {
        #[cfg(not(forebay_model))]
        return self.raw.get_mut();
        #[cfg(forebay_model)]
        return self.raw.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
    }

    /// The value, ending the lock.
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
            None => unreachable!("a guard is whole outside a wait"),
        }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.raw {
            Some(raw) => raw,
            None => unreachable!("a guard is whole outside a wait"),
        }
    }
}

#[cfg(feature = "counting")]
impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.held.end();
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
    /// A condition that nobody waits for.
    pub fn new() -> Self {
        Self { raw: raw::Condvar::new() }
    }

    /// Releases the lock, waits for a notification, takes the lock again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        #[cfg(not(forebay_model))]
        if let Some(raw) = &mut guard.raw {
            self.raw.wait(raw);
        }
        #[cfg(forebay_model)]
        {
            let raw = guard.raw.take().expect("a guard is whole outside a wait");
            let raw = self.raw.wait(raw).unwrap_or_else(std::sync::PoisonError::into_inner);
            guard.raw = Some(raw);
        }
    }

    /// As [`wait`](Self::wait), for at most `timeout`. Returns true if the time ran out.
    ///
    /// In the model build there is no time: the wait ends after the scheduler has had
    /// a chance to run others, and a coin decides whether it counts as timed out.
    pub fn wait_timeout<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        #[cfg(not(forebay_model))]
        return match &mut guard.raw {
            Some(raw) => self.raw.wait_for(raw, timeout).timed_out(),
            None => unreachable!("a guard is whole outside a wait"),
        };
        #[cfg(forebay_model)]
        {
            let _ = timeout;
            let raw = guard.raw.take().expect("a guard is whole outside a wait");
            drop(raw);
            shuttle::thread::yield_now();
            let raw = guard.of.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            guard.raw = Some(raw);
            use shuttle::rand::Rng;
            shuttle::rand::thread_rng().r#gen::<bool>()
        }
    }

    /// Wakes one waiter, if there is one.
    pub fn notify_one(&self) {
        self.raw.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.raw.notify_all();
    }
}
