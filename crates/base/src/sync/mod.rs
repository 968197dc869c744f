//! The sync shim: atomics, locks and threads for every library crate.
//!
//! Purpose: one door behind which three things can stand.
//!
//! * the ordinary build: `std` atomics and `parking_lot` locks, at no cost;
//! * the model build (`--cfg forebay_model`): shuttle's, which runs a test under
//!   many schedules. It is sequentially consistent and has no time: a timed wait
//!   there ends when the scheduler says so;
//! * the counting build (feature `counting`): every lock taken, read-modify-write,
//!   failed compare-and-swap and hold time is counted a thread, see [`count`].
//!
//! Every lock has a name, the class of lock in `docs/locking.md`. Locks do not
//! poison: a panic while one is held releases it, and whoever holds a lock keeps
//! its data valid at every point that can panic.
//!
//! Deliberately absent: reader-writer locks (a reader count is a shared line) and
//! anything that spins without bound.

pub mod count;
#[cfg(any(feature = "counting", forebay_model))]
mod counted;
mod lock;
mod slot;

pub use lock::{Condvar, Mutex, MutexGuard};
#[cfg(not(forebay_model))]
pub(crate) use slot::own_slot;
pub use slot::{EXCLUSIVE_SLOTS, ThreadSlot, thread_slot};

/// Atomics of the build at hand.
pub mod atomic {
    #[cfg(any(feature = "counting", forebay_model))]
    pub use super::counted::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    };
    #[cfg(not(any(feature = "counting", forebay_model)))]
    pub use std::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    };

    pub use std::sync::atomic::Ordering;

    #[cfg(forebay_model)]
    pub use shuttle::sync::atomic::fence;
    #[cfg(not(forebay_model))]
    pub use std::sync::atomic::fence;
}

/// Thread-local variables of the build at hand.
#[cfg(forebay_model)]
pub use shuttle::thread_local;
/// Thread-local variables of the build at hand.
#[cfg(not(forebay_model))]
pub use std::thread_local;

#[cfg(forebay_model)]
pub use shuttle::sync::{Arc, Weak};
#[cfg(not(forebay_model))]
pub use std::sync::{Arc, Weak};

/// What to tell the processor: in a loop that waits for another thread's next step, and of memory wanted soon.
pub mod hint {
    #[cfg(forebay_model)]
    pub use shuttle::hint::spin_loop;
    #[cfg(not(forebay_model))]
    pub use std::hint::spin_loop;

    /// Has the processor fetch the line at `at`, whatever address that is, without waiting for it.
    #[inline]
    pub fn prefetch<T>(at: *const T) {
        // SAFETY: a prefetch accesses nothing: it is ignored where there is no memory.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = at;
    }
}

/// Threads of the build at hand.
pub mod thread {
    #[cfg(forebay_model)]
    pub use shuttle::thread::{JoinHandle, ThreadId, yield_now};
    #[cfg(not(forebay_model))]
    pub use std::thread::{JoinHandle, ThreadId, yield_now};

    /// The calling thread.
    pub fn current_id() -> ThreadId {
        #[cfg(forebay_model)]
        return shuttle::thread::current().id();
        #[cfg(not(forebay_model))]
        return std::thread::current().id();
    }

    /// Starts a thread that debuggers and `top` show under `name`.
    ///
    /// # Errors
    /// What the system says when it refuses a thread.
    pub fn spawn_named<F, T>(name: &str, f: F) -> std::io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        #[cfg(forebay_model)]
        return shuttle::thread::Builder::new().name(name.to_owned()).spawn(f);
        #[cfg(not(forebay_model))]
        #[allow(clippy::disallowed_methods, reason = "the shim is the one place")]
        return std::thread::Builder::new().name(name.to_owned()).spawn(f);
    }
}
