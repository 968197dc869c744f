//! Small dense numbers for threads, so that sharded structures need no hashing.
//!
//! A thread leases a number at its first use and gives it back when it ends. Numbers
//! below [`EXCLUSIVE_SLOTS`] belong to one live thread at a time: what is indexed by
//! such a number has a single writer and needs no atomic read-modify-write. Threads
//! beyond that share.

/// How many threads at once can have a slot that nobody shares.
pub const EXCLUSIVE_SLOTS: usize = 64;

/// The number that stands for the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSlot(u32);

impl ThreadSlot {
    /// The thread's own slot, below [`EXCLUSIVE_SLOTS`], or `None` if it must share.
    #[inline]
    pub fn exclusive(self) -> Option<usize> {
        let slot = self.0 as usize;
        (slot < EXCLUSIVE_SLOTS).then_some(slot)
    }

    /// A number below `n` that spreads threads; shared by several of them when `n` is small.
    ///
    /// # Panics
    /// If `n` is zero.
    #[inline]
    pub fn index(self, n: usize) -> usize {
        // Most are powers of two, and a division takes longer than what it is for.
        if n.is_power_of_two() { self.0 as usize & (n - 1) } else { self.0 as usize % n }
    }
}

/// The calling thread's slot.
#[cfg(forebay_model)]
pub fn thread_slot() -> ThreadSlot {
    // Shared by all: the model sees the longest code path, and state does not leak
    // from one execution into the next.
    ThreadSlot(EXCLUSIVE_SLOTS as u32)
}

/// The calling thread's slot.
#[cfg(not(forebay_model))]
#[inline]
pub fn thread_slot() -> ThreadSlot {
    let slot = lease::SLOT.get();
    if slot == lease::NONE { lease::take() } else { ThreadSlot(slot) }
}

/// The calling thread's slot, if nobody shares it, and if the thread has asked for it before: one load and one comparison.
#[cfg(not(forebay_model))]
#[inline]
pub(crate) fn own_slot() -> Option<usize> {
    ThreadSlot(lease::SLOT.get()).exclusive()
}

#[cfg(not(forebay_model))]
mod lease {
    use std::cell::Cell;

    use super::ThreadSlot;

    pub(super) const NONE: u32 = u32::MAX;
    /// What a thread uses once its lease has ended: it shares.
    const ENDED: u32 = u32::MAX - 1;

    thread_local! {
        // Without a destructor, so that the fast path is one load.
        pub(super) static SLOT: Cell<u32> = const { Cell::new(NONE) };
        static LEASE: Lease = const { Lease };
    }

    /// Numbers that threads have given back, and the next one never used.
    struct Free {
        returned: std::collections::BTreeSet<u32>,
        next: u32,
    }

    static FREE: parking_lot::Mutex<Free> =
        parking_lot::Mutex::new(Free { returned: std::collections::BTreeSet::new(), next: 0 });

    struct Lease;

    impl Drop for Lease {
        fn drop(&mut self) {
            let slot = SLOT.replace(ENDED);
            if slot < ENDED {
                FREE.lock().returned.insert(slot);
            }
        }
    }

    #[cold]
    pub(super) fn take() -> ThreadSlot {
        // The lease's destructor must be registered before a number is taken; a thread
        // that is ending already cannot register one and shares.
        if LEASE.try_with(|_| ()).is_err() {
            SLOT.set(ENDED);
            return ThreadSlot(ENDED);
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
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "plain threads for a test")]
mod tests {
    use super::thread_slot;

    #[test]
    fn a_slot_is_stable_and_no_other_live_thread_has_it() {
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
