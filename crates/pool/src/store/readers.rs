//! Tracks readers that may follow pointers of past txgs.
//!
//! A reader takes a pointer from a tree and then reads the block. Meanwhile txgs may commit, the
//! block may be freed, and its space reused. The reader would find other bytes. If another copy
//! still held the old block, it would even overwrite the new block to heal it. So a reader enters
//! before it takes the pointer and leaves when it has the block. Freed space is reused only after
//! [`Readers::synchronize`].
//!
//! # How it works
//!
//! As in sleepable RCU: each cell has two counts, one of them current. A reader increments the
//! current count and checks that it still is the current one. `synchronize` makes the other count
//! current and waits until the old one is zero. A reader writes only to its thread's cell.
//!
//! The I/O roots of `forebay-io` have such counts too, but theirs are of requests, with children,
//! errors and cancellation. A reader is a count and nothing else.
//!
//! Locking: `store-readers` is held while `synchronize` checks the counts and sleeps; readers take
//! it only to wake `synchronize`. `store-synchronize` admits one caller at a time.

use crossbeam_utils::CachePadded;
use forebay_base::memory::cpus;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::{Condvar, Mutex, thread_slot};

/// The readers of a store.
pub(crate) struct Readers {
    cells: Box<[CachePadded<[AtomicU64; 2]>]>,
    generation: AtomicU64,
    /// Whether `synchronize` waits for readers.
    waiting: AtomicBool,
    synchronize: Mutex<()>,
    sleep: Mutex<()>,
    left: Condvar,
}

/// An active reader. Space that its pointers refer to is not reused until this is dropped.
pub(crate) struct ReaderGuard<'a> {
    readers: &'a Readers,
    count: &'a AtomicU64,
}

impl Readers {
    pub(crate) fn new() -> Self {
        let cells = if cfg!(forebay_model) { 2 } else { 2 * cpus() };
        Self {
            cells: (0..cells).map(|_| CachePadded::default()).collect(),
            generation: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
            synchronize: Mutex::named("store-synchronize", ()),
            sleep: Mutex::named("store-readers", ()),
            left: Condvar::new(),
        }
    }

    /// Enters. Take pointers only after this call.
    #[inline]
    pub(crate) fn enter(&self) -> ReaderGuard<'_> {
        let cell = &self.cells[thread_slot().index(self.cells.len())];
        loop {
            let generation = self.generation.load(Ordering::SeqCst);
            let count = &cell[(generation & 1) as usize];
            count.fetch_add(1, Ordering::SeqCst);
            let reading = ReaderGuard { readers: self, count };
            // If the generation changed, `synchronize` may have missed the increment. Happens at
            // most once per call of it.
            if self.generation.load(Ordering::SeqCst) == generation {
                return reading;
            }
        }
    }

    /// Waits until all readers that entered before have left. The calling thread must not be a
    /// reader.
    pub(crate) fn synchronize(&self) {
        let _one = self.synchronize.lock();
        self.waiting.store(true, Ordering::SeqCst);
        let old = self.generation.fetch_add(1, Ordering::SeqCst);
        let counts = || self.cells.iter().map(|cell| &cell[(old & 1) as usize]);
        let mut sleep = self.sleep.lock();
        while counts().any(|count| count.load(Ordering::SeqCst) != 0) {
            self.left.wait(&mut sleep);
        }
        drop(sleep);
        self.waiting.store(false, Ordering::SeqCst);
    }
}

impl Drop for ReaderGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let before = self.count.fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.readers.waiting.load(Ordering::SeqCst) {
            drop(self.readers.sleep.lock());
            self.readers.left.notify_all();
        }
    }
}
