//! Small dense numbers for threads, so that sharded structures need no hashing.
//!
//! A thread gets a slot at the first use and returns it when it exits. A slot below
//! [`EXCLUSIVE_SLOTS`] belongs to one thread at a time, so data that is indexed by it has a single
//! writer and needs no atomic read-modify-write. Other slots are for shared data.

/// Number of threads that can have an exclusive slot at the same time.
pub const EXCLUSIVE_SLOTS: usize = 64;

/// The slot of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSlot(u32);

impl ThreadSlot {
    /// The number of the slot if it is exclusive, which is below [`EXCLUSIVE_SLOTS`].
    #[inline]
    pub fn exclusive(self) -> Option<usize> {
        let slot = self.0 as usize;
        (slot < EXCLUSIVE_SLOTS).then_some(slot)
    }

    /// An index below `n` that distributes threads. Several threads may have the same index.
    ///
    /// # Panics
    /// If `n` is zero.
    #[inline]
    pub fn index(self, n: usize) -> usize {
        // Most `n` are powers of two, and a division would dominate the cost.
        if n.is_power_of_two() { self.0 as usize & (n - 1) } else { self.0 as usize % n }
    }
}

/// The slot of the calling thread.
#[cfg(forebay_model)]
pub fn thread_slot() -> ThreadSlot {
    // Not exclusive, so that model checks cover the longer code path, and no state passes from one
    // execution to the next.
    ThreadSlot(EXCLUSIVE_SLOTS as u32)
}

/// The slot of the calling thread.
#[cfg(not(forebay_model))]
#[inline]
pub fn thread_slot() -> ThreadSlot {
    let slot = assignment::SLOT.get();
    if slot == assignment::UNASSIGNED { assignment::assign() } else { ThreadSlot(slot) }
}

/// The slot of the calling thread, if it is exclusive and already assigned. Costs one load and one
/// comparison.
#[cfg(not(forebay_model))]
#[inline]
pub(crate) fn cached_exclusive_slot() -> Option<usize> {
    ThreadSlot(assignment::SLOT.get()).exclusive()
}

#[cfg(not(forebay_model))]
mod assignment {
    use std::cell::Cell;

    use super::ThreadSlot;

    pub(super) const UNASSIGNED: u32 = u32::MAX;
    /// The slot of an exiting thread, which is not exclusive.
    const EXITING: u32 = u32::MAX - 1;

    thread_local! {
        // Without a destructor, so that the fast path is one load.
        pub(super) static SLOT: Cell<u32> = const { Cell::new(UNASSIGNED) };
        static RELEASE_ON_EXIT: ReleaseOnExit = const { ReleaseOnExit };
    }

    /// The returned numbers, and the smallest number that was never used.
    struct FreeNumbers {
        returned: std::collections::BTreeSet<u32>,
        next: u32,
    }

    static FREE: parking_lot::Mutex<FreeNumbers> = parking_lot::Mutex::new(FreeNumbers {
        returned: std::collections::BTreeSet::new(),
        next: 0,
    });

    /// Returns the slot of a thread when it exits.
    struct ReleaseOnExit;

    impl Drop for ReleaseOnExit {
        fn drop(&mut self) {
            let slot = SLOT.replace(EXITING);
            if slot < EXITING {
                FREE.lock().returned.insert(slot);
            }
        }
    }

    #[cold]
    pub(super) fn assign() -> ThreadSlot {
        // Register the destructor before a number is taken. An exiting thread cannot register it,
        // and gets no exclusive slot.
        if RELEASE_ON_EXIT.try_with(|_| ()).is_err() {
            SLOT.set(EXITING);
            return ThreadSlot(EXITING);
        }
        let mut free = FREE.lock();
        let slot = free.returned.pop_first().unwrap_or_else(|| {
            let next = free.next;
            free.next += 1;
            next
        });
        SLOT.set(slot);
        ThreadSlot(slot)
    }
}

#[cfg(all(test, not(forebay_model)))]
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests with real threads")]
mod tests {
    use super::thread_slot;

    #[test]
    fn a_slot_is_stable_and_exclusive() {
        let mine = thread_slot();
        assert_eq!(mine, thread_slot());
        let barrier = std::sync::Barrier::new(4);
        let mut slots: Vec<_> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    s.spawn(|| {
                        let slot = thread_slot();
                        barrier.wait();
                        slot.0
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        slots.push(mine.0);
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), 5);
    }
}
