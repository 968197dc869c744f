//! What the counting build counts: locks taken and contended, hold times, atomic
//! read-modify-writes, failed compare-and-swaps, retries.
//!
//! Counts are kept a thread, so that counting adds no shared line to what it counts,
//! and are summed on request. In other builds every function is empty and
//! [`ENABLED`] is false: readers must say "not counted" then, not zero.

/// Whether this build counts.
pub const ENABLED: bool = cfg!(feature = "counting");

/// Sums since the start or the last [`reset`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Locks taken.
    pub locks: u64,
    /// Locks that another thread held at the first attempt.
    pub contended: u64,
    /// Time locks were held, in nanoseconds, with the cost of reading the clock in it.
    pub hold_ns: u64,
    /// Atomic read-modify-writes, successful or not.
    pub rmw: u64,
    /// Compare-and-swaps that failed.
    pub cas_failed: u64,
    /// Times that an optimistic read had to begin again.
    pub retries: u64,
}

#[cfg(feature = "counting")]
pub(crate) use enabled::{Held, LockClass};
#[cfg(feature = "counting")]
pub use enabled::{by_lock, reset, thread, total};

/// Notes that an optimistic read begins again.
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

/// The calling thread's counts.
#[cfg(not(feature = "counting"))]
pub fn thread() -> Counts {
    Counts::default()
}

/// All threads' counts, ended ones included.
#[cfg(not(feature = "counting"))]
pub fn total() -> Counts {
    Counts::default()
}

/// All threads' counts by class of lock; only `locks`, `contended` and `hold_ns` are set.
#[cfg(not(feature = "counting"))]
pub fn by_lock() -> Vec<(&'static str, Counts)> {
    Vec::new()
}

/// Sets all counts to zero. What runs at the same time may be lost.
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
    /// Classes of lock that can be told apart; later ones share the last row.
    const CLASSES: usize = 128;

    struct PerThread {
        events: [AtomicU64; EVENTS],
        /// Locks, contended, hold_ns of each class.
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
        static MINE: Arc<PerThread> = {
            let mine = Arc::new(PerThread::new());
            THREADS.lock().push(mine.clone());
            mine
        };
    }

    #[inline]
    pub(super) fn add(event: usize, n: u64) {
        // Only this thread writes its row. A thread that is ending is no longer counted.
        let _ = MINE.try_with(|mine| bump(&mine.events[event], n));
    }

    #[inline]
    fn bump(cell: &AtomicU64, n: u64) {
        cell.store(cell.load(Relaxed) + n, Relaxed);
    }

    /// A class of lock, by its place in the table of names.
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

    /// A lock that is held since `start`.
    pub(crate) struct Held {
        class: LockClass,
        since: Instant,
    }

    impl Held {
        #[inline]
        pub(crate) fn start(class: LockClass, contended: bool) -> Self {
            let _ = MINE.try_with(|mine| {
                bump(&mine.locks[class.0 as usize][0], 1);
                bump(&mine.locks[class.0 as usize][1], u64::from(contended));
            });
            #[allow(
                clippy::disallowed_methods,
                reason = "hold times are this module's own business"
            )]
            Self { class, since: Instant::now() }
        }

        #[inline]
        pub(crate) fn end(&self) {
            #[allow(
                clippy::disallowed_methods,
                reason = "hold times are this module's own business"
            )]
            let held = self.since.elapsed().as_nanos() as u64;
            let _ = MINE.try_with(|mine| bump(&mine.locks[self.class.0 as usize][2], held));
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

    /// The calling thread's counts.
    pub fn thread() -> Counts {
        MINE.with(|mine| sum(std::iter::once(&**mine)))
    }

    /// All threads' counts, ended ones included.
    pub fn total() -> Counts {
        sum(THREADS.lock().iter().map(|t| &**t))
    }

    /// All threads' counts by class of lock; only `locks`, `contended` and `hold_ns` are set.
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

    /// Sets all counts to zero. What runs at the same time may be lost.
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
