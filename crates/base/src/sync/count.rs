//! Counts of the counting build: locks, contention, hold times, atomic read-modify-writes, failed
//! compare-and-swaps, retries.
//!
//! Each thread has its own counts, so that counting adds no shared cache line; readers sum them. In
//! other builds every function is empty and [`ENABLED`] is false. Readers must then report "not
//! counted" and not zero.

/// Whether this build counts.
pub const ENABLED: bool = cfg!(feature = "counting");

/// Counts since the start or the last [`reset`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of locks taken.
    pub locks: u64,
    /// Number of locks that another thread held at the first attempt.
    pub contended: u64,
    /// Total hold time in nanoseconds, with the cost of reading the clock.
    pub hold_ns: u64,
    /// Number of atomic read-modify-writes, successful or not.
    pub rmw: u64,
    /// Number of failed compare-and-swaps.
    pub cas_failed: u64,
    /// Number of restarts of optimistic reads.
    pub retries: u64,
}

#[cfg(feature = "counting")]
pub(crate) use enabled::{HoldTimer, LockClass};
#[cfg(feature = "counting")]
pub use enabled::{by_lock, reset, thread, total};

/// Counts a restart of an optimistic read.
#[inline]
pub fn retry() {
    #[cfg(feature = "counting")]
    enabled::add(enabled::RETRIES, 1);
}

#[cfg(any(feature = "counting", forebay_model))]
#[inline]
pub(crate) fn rmw() {
    #[cfg(feature = "counting")]
    enabled::add(enabled::RMW, 1);
}

#[cfg(any(feature = "counting", forebay_model))]
#[inline]
pub(crate) fn cas_failed() {
    #[cfg(feature = "counting")]
    enabled::add(enabled::CAS_FAILED, 1);
}

/// The counts of the calling thread.
#[cfg(not(feature = "counting"))]
pub fn thread() -> Counts {
    Counts::default()
}

/// The counts of all threads, with exited threads.
#[cfg(not(feature = "counting"))]
pub fn total() -> Counts {
    Counts::default()
}

/// The counts of all threads per class of lock; only `locks`, `contended` and `hold_ns` are set.
#[cfg(not(feature = "counting"))]
pub fn by_lock() -> Vec<(&'static str, Counts)> {
    Vec::new()
}

/// Sets all counts to zero. Concurrent counts may be lost.
#[cfg(not(feature = "counting"))]
pub fn reset() {}

#[cfg(feature = "counting")]
mod enabled {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Instant;

    use super::Counts;

    pub(super) const RMW: usize = 0;
    pub(super) const CAS_FAILED: usize = 1;
    pub(super) const RETRIES: usize = 2;
    const EVENTS: usize = 3;
    /// Number of lock classes with a row of their own. Later classes share the last row.
    const CLASSES: usize = 128;

    struct PerThread {
        events: [AtomicU64; EVENTS],
        /// `locks`, `contended` and `hold_ns` of each class.
        locks: [[AtomicU64; 3]; CLASSES],
    }

    impl PerThread {
        fn new() -> Self {
            let zero = |_| AtomicU64::new(0);
            Self {
                events: std::array::from_fn(zero),
                locks: std::array::from_fn(|_| std::array::from_fn(zero)),
            }
        }
    }

    static THREADS: parking_lot::Mutex<Vec<Arc<PerThread>>> = parking_lot::Mutex::new(Vec::new());
    static NAMES: parking_lot::Mutex<Vec<&'static str>> = parking_lot::Mutex::new(Vec::new());

    thread_local! {
        static THIS_THREAD: Arc<PerThread> = {
            let counts = Arc::new(PerThread::new());
            THREADS.lock().push(counts.clone());
            counts
        };
    }

    #[inline]
    pub(super) fn add(event: usize, n: u64) {
        // Only this thread writes its counts. An exiting thread is not counted.
        let _ = THIS_THREAD.try_with(|counts| increase(&counts.events[event], n));
    }

    #[inline]
    fn increase(cell: &AtomicU64, n: u64) {
        cell.store(cell.load(Relaxed) + n, Relaxed);
    }

    /// A class of lock: its index in the table of names.
    #[derive(Clone, Copy)]
    pub(crate) struct LockClass(u8);

    impl LockClass {
        pub(crate) fn register(name: &'static str) -> Self {
            let mut names = NAMES.lock();
            let at = names.iter().position(|n| *n == name).unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            });
            Self(at.min(CLASSES - 1) as u8)
        }
    }

    /// The time at which a lock was taken.
    pub(crate) struct HoldTimer {
        class: LockClass,
        since: Instant,
    }

    impl HoldTimer {
        #[inline]
        pub(crate) fn start(class: LockClass, contended: bool) -> Self {
            let _ = THIS_THREAD.try_with(|counts| {
                increase(&counts.locks[class.0 as usize][0], 1);
                increase(&counts.locks[class.0 as usize][1], u64::from(contended));
            });
            #[allow(clippy::disallowed_methods, reason = "this module measures hold times")]
            Self { class, since: Instant::now() }
        }

        #[inline]
        pub(crate) fn end(&self) {
            #[allow(clippy::disallowed_methods, reason = "this module measures hold times")]
            let held = self.since.elapsed().as_nanos() as u64;
            let _ = THIS_THREAD
                .try_with(|counts| increase(&counts.locks[self.class.0 as usize][2], held));
        }
    }

    fn sum<'a>(threads: impl Iterator<Item = &'a PerThread>) -> Counts {
        let mut counts = Counts::default();
        for thread in threads {
            counts.rmw += thread.events[RMW].load(Relaxed);
            counts.cas_failed += thread.events[CAS_FAILED].load(Relaxed);
            counts.retries += thread.events[RETRIES].load(Relaxed);
            for class in &thread.locks {
                counts.locks += class[0].load(Relaxed);
                counts.contended += class[1].load(Relaxed);
                counts.hold_ns += class[2].load(Relaxed);
            }
        }
        counts
    }

    /// The counts of the calling thread.
    pub fn thread() -> Counts {
        THIS_THREAD.with(|counts| sum(std::iter::once(&**counts)))
    }

    /// The counts of all threads, with exited threads.
    pub fn total() -> Counts {
        sum(THREADS.lock().iter().map(|t| &**t))
    }

    /// The counts of all threads per class of lock; only `locks`, `contended` and `hold_ns` are
    /// set.
    pub fn by_lock() -> Vec<(&'static str, Counts)> {
        let threads = THREADS.lock();
        let names = NAMES.lock();
        let row =
            |i: usize, col: usize| threads.iter().map(|t| t.locks[i][col].load(Relaxed)).sum();
        (names.iter().take(CLASSES).enumerate())
            .map(|(i, name)| {
                let counts = Counts {
                    locks: row(i, 0),
                    contended: row(i, 1),
                    hold_ns: row(i, 2),
                    ..Counts::default()
                };
                (*name, counts)
            })
            .collect()
    }

    /// Sets all counts to zero. Concurrent counts may be lost.
    pub fn reset() {
        for thread in THREADS.lock().iter() {
            thread
                .events
                .iter()
                .chain(thread.locks.iter().flatten())
                .for_each(|c| c.store(0, Relaxed));
        }
    }
}
