//! Reads that go ahead of a walk, on a pool whose device answers late, such as an object store.
//!
//! The walk says which blocks it comes to next: siblings in a tree, the roots of the objects in a
//! block of dnodes, the blocks of the space maps. Threads read them; the walk takes what was read,
//! and visits in its own order. What is read too early is as good: a pointer has one content, and a
//! block that was freed meanwhile is looked up before its damage counts.
//!
//! Bounds: each level of a walk asks for so many blocks ahead, and a walk has few levels. Several
//! blocks are read at a time up to a share of the cache. Contents are kept only of blocks that lead
//! to others.
//!
//! Locking: `pool-walk-ahead`, a leaf lock for a look. The walk, and threads without work, sleep on
//! it.

use std::collections::VecDeque;

use forebay_base::sync::thread::{self, JoinHandle};
use forebay_base::sync::{Arc, Condvar, Mutex};
use hashbrown::HashMap;

use crate::block_key::BlockKey;
use crate::error::Result;
use crate::format::BlockPtrPhys;
use crate::store::Store;

use super::copies::{ReadCopies, read_copies};

/// Threads that read: so many requests are in flight.
const THREADS: usize = 16;
/// Blocks that a level of the walk asks for ahead.
pub(super) const LEVEL_BLOCKS: usize = 32;

/// Blocks that are read at once take this share of the cache at most, packed and unpacked, unless
/// there is only one.
const READING_SHARE: u64 = 16;

/// Reads ahead of one walk. A drop waits for those in progress.
pub(super) struct Ahead {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A block to read, and whether its content is wanted.
type Wanted = (BlockKey, Store, BlockPtrPhys, bool);

#[derive(Default)]
struct Reads {
    waiting: VecDeque<Wanted>,
    /// Those that were begun. `None` until they end.
    begun: HashMap<BlockKey, Option<Result<ReadCopies>>>,
    /// Memory of those that have not ended.
    reading_bytes: u64,
    ended: bool,
}

struct Shared {
    reads: Mutex<Reads>,
    changed: Condvar,
    max_bytes: u64,
}

/// A read in progress. It ends with a result, or without one if it panics.
struct Reading<'a> {
    shared: &'a Shared,
    key: BlockKey,
    bytes: u64,
    read: Option<Result<ReadCopies>>,
}

impl Ahead {
    /// Starts the threads; without any, nothing is read ahead. The cache has so many bytes.
    pub(super) fn new(cache_bytes: u64) -> Self {
        let shared = Arc::new(Shared::new(cache_bytes / READING_SHARE));
        let start = |_| {
            let shared = Arc::clone(&shared);
            thread::spawn_named("forebay-walk", move || shared.run()).ok()
        };
        let threads = (0..THREADS).filter_map(start).collect();
        Self { shared, threads }
    }

    /// Reads a block ahead. The content is kept if it is wanted.
    pub(super) fn read(&self, store: &Store, ptr: &BlockPtrPhys, wants_content: bool) {
        if self.threads.is_empty() {
            return;
        }
        let key = store.key(ptr);
        let mut reads = self.shared.reads.lock();
        if reads.begun.contains_key(&key) || reads.waiting.iter().any(|(other, ..)| *other == key) {
            return;
        }
        reads.waiting.push_back((key, store.clone(), *ptr, wants_content));
        drop(reads);
        self.shared.changed.notify_all();
    }

    /// Takes a block that was read ahead, and waits for it. `None` if the walk has to read it.
    pub(super) fn take(&self, store: &Store, ptr: &BlockPtrPhys) -> Option<ReadCopies> {
        self.shared.take(store.key(ptr))
    }

    /// Forgets what the walk has not taken: it goes on with another tree.
    pub(super) fn forget(&self) {
        let mut reads = self.shared.reads.lock();
        reads.waiting.clear();
        reads.begun.retain(|_, read| read.is_none());
    }
}

impl Shared {
    fn new(max_bytes: u64) -> Self {
        let reads = Mutex::named("pool-walk-ahead", Reads::default());
        Self { reads, changed: Condvar::new(), max_bytes }
    }

    fn run(&self) {
        let mut reads = self.reads.lock();
        while !reads.ended {
            let admits = |read: &Wanted| self.admits(&reads, memory_of(&read.2));
            let next = reads.waiting.front().is_some_and(admits).then(|| reads.waiting.pop_front());
            let Some((key, store, ptr, wants_content)) = next.flatten() else {
                self.changed.wait(&mut reads);
                continue;
            };
            let mut reading = self.begin(&mut reads, key, memory_of(&ptr));
            drop(reads);
            reading.read = Some(read_copies(&store, &ptr, wants_content, &|_| true));
            drop(reading);
            reads = self.reads.lock();
        }
    }

    /// Whether a read may begin that takes so many bytes.
    fn admits(&self, reads: &Reads, bytes: u64) -> bool {
        reads.reading_bytes == 0 || reads.reading_bytes.saturating_add(bytes) <= self.max_bytes
    }

    /// Begins a read. The lock must be released before it ends.
    fn begin(&self, reads: &mut Reads, key: BlockKey, bytes: u64) -> Reading<'_> {
        reads.begun.insert(key, None);
        reads.reading_bytes += bytes;
        Reading { shared: self, key, bytes, read: None }
    }

    fn take(&self, key: BlockKey) -> Option<ReadCopies> {
        let mut reads = self.reads.lock();
        reads.waiting.retain(|(other, ..)| *other != key);
        while reads.begun.get(&key)?.is_none() {
            self.changed.wait(&mut reads);
        }
        // An error may be gone, or is met again.
        reads.begun.remove(&key).flatten()?.ok().filter(|read| read.device_error().is_none())
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut reads = self.shared.reads.lock();
        reads.reading_bytes -= self.bytes;
        match self.read.take() {
            Some(read) => drop(reads.begun.insert(self.key, Some(read))),
            // The walk must not wait for it.
            None => drop(reads.begun.remove(&self.key)),
        }
        drop(reads);
        self.shared.changed.notify_all();
    }
}

/// Memory that a read takes while it is in progress, at most.
fn memory_of(ptr: &BlockPtrPhys) -> u64 {
    2 * u64::from(ptr.logical_bytes.get())
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let mut reads = self.shared.reads.lock();
        reads.ended = true;
        drop(reads);
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // The panic hook has reported a panic.
            let _ = thread.join();
        }
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use std::panic::{self, AssertUnwindSafe};

    use forebay_cache::OwnerId;

    use super::*;

    /// A reader's panic must not leave the walk waiting, which an export waits for.
    #[test]
    fn a_panic_of_a_reader_ends_its_read() {
        let shared = Shared::new(100);
        let key = BlockKey::new(OwnerId::from_raw(0), &BlockPtrPhys::HOLE);
        let reading = shared.begin(&mut shared.reads.lock(), key, 70);
        assert_eq!([30, 31].map(|bytes| shared.admits(&shared.reads.lock(), bytes)), [true, false]);
        let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
            let _reading = reading;
            panic::resume_unwind(Box::new("a panic"));
        }));
        assert!(panicked.is_err());
        let reads = shared.reads.lock();
        assert!(!reads.begun.contains_key(&key), "the walk would wait for it");
        assert!(shared.admits(&reads, 1000), "one is read, however large");
        drop(reads);
        assert!(shared.take(key).is_none());
    }
}
