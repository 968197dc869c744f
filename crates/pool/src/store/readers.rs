//! Who may still follow pointers of txgs that are past.
//!
//! A reader takes a pointer from a tree, and reads the block. Meanwhile txgs may be committed,
//! the block freed, and its place used again: the reader would find other bytes, and, if another
//! copy were still the old one, heal the new block to death. So a reader enters here before it
//! takes the pointer and leaves when it has the block, and places that were freed are used again
//! only after [`Readers::quiesce`].
//!
//! # How it works
//!
//! As in sleepable read-copy-update: two counts a cell, of which one is current. Who enters counts
//! itself into the current one, and looks again whether it still is. A quiesce makes the other one
//! current, and waits until the old one is zero. A reader writes to its thread's cell only.
//!
//! Locking: `store-readers`: held while a quiesce looks at the counts and sleeps; readers take it
//! only to wake one. `store-quiesce`: one quiesce at a time.

use crossbeam_utils::CachePadded;
use forebay_base::memory::cpus;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::{Condvar, Mutex, thread_slot};

/// All readers of a store.
pub(crate) struct Readers {
    cells: Box<[CachePadded<[AtomicU64; 2]>]>,
    generation: AtomicU64,
    /// Whether somebody sleeps until readers have left.
    waiting: AtomicBool,
    quiesce: Mutex<()>,
    sleep: Mutex<()>,
    left: Condvar,
}

/// A reader: what its pointers lead to stays, until this is dropped.
pub(crate) struct Reading<'a> {
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
            quiesce: Mutex::named("store-quiesce", ()),
            sleep: Mutex::named("store-readers", ()),
            left: Condvar::new(),
        }
    }

    /// Enters. Take pointers after this.
    #[inline]
    pub(crate) fn enter(&self) -> Reading<'_> {
        let cell = &self.cells[thread_slot().index(self.cells.len())];
        loop {
            let generation = self.generation.load(Ordering::SeqCst);
            let count = &cell[(generation & 1) as usize];
            count.fetch_add(1, Ordering::SeqCst);
            let reading = Reading { readers: self, count };
            // If not, a quiesce may have seen the count before this reader was in it. At most once
            // for each quiesce.
            if self.generation.load(Ordering::SeqCst) == generation {
                return reading;
            }
        }
    }

    /// Waits until all who have entered before have left. Never call it while reading.
    pub(crate) fn quiesce(&self) {
        let _one = self.quiesce.lock();
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

impl Drop for Reading<'_> {
    #[inline]
    fn drop(&mut self) {
        let before = self.count.fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.readers.waiting.load(Ordering::SeqCst) {
            drop(self.readers.sleep.lock());
            self.readers.left.notify_all();
        }
    }
}
