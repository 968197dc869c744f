//! The sync shim: atomics, locks and threads for all library crates, in three builds.
//!
//! * The ordinary build uses `std` atomics and `parking_lot` locks without overhead.
//! * The model build (`--cfg forebay_model`) uses shuttle, which runs a test under many schedules.
//!   It is sequentially consistent and has no time: the scheduler ends timed waits.
//! * The counting build (feature `counting`) counts locks, read-modify-writes, failed
//!   compare-and-swaps and hold times per thread; see [`count`].
//!
//! Every lock has a name, which is its class in `docs/locking.md`. Locks are not poisoned: a panic
//! releases the lock. Code under a lock keeps its data valid at every point that can panic.
//!
//! It has no reader-writer locks (a reader count is a shared cache line) and no unbounded spinning.

pub mod count;
#[cfg(any(feature = "counting", forebay_model))]
mod counted;
mod lock;
mod slot;

pub use lock::{Condvar, Mutex, MutexGuard};
#[cfg(not(forebay_model))]
pub(crate) use slot::cached_exclusive_slot;
pub use slot::{EXCLUSIVE_SLOTS, ThreadSlot, thread_slot};

/// Atomics of this build.
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

/// Thread-local variables of this build.
#[cfg(forebay_model)]
pub use shuttle::thread_local;
/// Thread-local variables of this build.
#[cfg(not(forebay_model))]
pub use std::thread_local;

#[cfg(forebay_model)]
pub use shuttle::sync::{Arc, Weak};
#[cfg(not(forebay_model))]
pub use std::sync::{Arc, Weak};

/// Hints for the processor: spin loops and prefetch.
pub mod hint {
    #[cfg(forebay_model)]
    pub use shuttle::hint::spin_loop;
    #[cfg(not(forebay_model))]
    pub use std::hint::spin_loop;

    /// Prefetches the cache line at `at`, which may be any address.
    #[inline]
    pub fn prefetch<T>(at: *const T) {
        // SAFETY: a prefetch does not fault, and an invalid address is ignored.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = at;
    }
}

/// Threads of this build.
pub mod thread {
    #[cfg(forebay_model)]
    pub use shuttle::thread::{JoinHandle, ThreadId, yield_now};
    #[cfg(not(forebay_model))]
    pub use std::thread::{JoinHandle, ThreadId, yield_now};

    /// The identifier of the calling thread.
    pub fn current_id() -> ThreadId {
        #[cfg(forebay_model)]
        return shuttle::thread::current().id();
        #[cfg(not(forebay_model))]
        return std::thread::current().id();
    }

    /// Starts a thread with a name, which debuggers and `top` show.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn spawn_named<F, T>(name: &str, f: F) -> std::io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        #[cfg(forebay_model)]
        return shuttle::thread::Builder::new().name(name.to_owned()).spawn(f);
        #[cfg(not(forebay_model))]
        #[allow(clippy::disallowed_methods, reason = "all other code uses the shim")]
        return std::thread::Builder::new().name(name.to_owned()).spawn(f);
    }
}
