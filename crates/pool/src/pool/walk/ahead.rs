//! Reads that go ahead of a walk, on a pool whose device answers late, such as an object store.
//!
//! The walk says which blocks it comes to next: siblings in a tree, the roots of the objects in a
//! block of dnodes, the blocks of the space maps. Threads read them; the walk takes what was read,
//! and visits in its own order. What is read too early is as good: a pointer has one content, and a
//! block that was freed meanwhile is looked up before its damage counts.
//!
//! Bounds: each level of a walk asks for so many blocks ahead, and a walk has few levels. Contents
//! are kept only of blocks that lead to others.
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

/// Reads ahead of one walk. A drop waits for those in progress.
pub(super) struct Ahead {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Reads {
    waiting: VecDeque<(BlockKey, Store, BlockPtrPhys, bool)>,
    /// Those that were begun. `None` until they end.
    begun: HashMap<BlockKey, Option<Result<ReadCopies>>>,
    ended: bool,
}

struct Shared {
    reads: Mutex<Reads>,
    changed: Condvar,
}

impl Ahead {
    /// Starts the threads; without any, nothing is read ahead.
    pub(super) fn new() -> Self {
        let reads = Mutex::named("pool-walk-ahead", Reads::default());
        let shared = Arc::new(Shared { reads, changed: Condvar::new() });
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
        let key = store.key(ptr);
        let mut reads = self.shared.reads.lock();
        reads.waiting.retain(|(other, ..)| *other != key);
        while reads.begun.get(&key)?.is_none() {
            self.shared.changed.wait(&mut reads);
        }
        // An error may be gone, or is met again.
        reads.begun.remove(&key).flatten()?.ok().filter(|read| read.device_error().is_none())
    }

    /// Forgets what the walk has not taken: it goes on with another tree.
    pub(super) fn forget(&self) {
        let mut reads = self.shared.reads.lock();
        reads.waiting.clear();
        reads.begun.retain(|_, read| read.is_none());
    }
}

impl Shared {
    fn run(&self) {
        let mut reads = self.reads.lock();
        while !reads.ended {
            let Some((key, store, ptr, wants_content)) = reads.waiting.pop_front() else {
                self.changed.wait(&mut reads);
                continue;
            };
            reads.begun.insert(key, None);
            drop(reads);
            let read = read_copies(&store, &ptr, wants_content, &|_| true);
            reads = self.reads.lock();
            reads.begun.insert(key, Some(read));
            self.changed.notify_all();
        }
    }
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
