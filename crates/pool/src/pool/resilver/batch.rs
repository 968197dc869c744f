//! Blocks that a walk has met, in the order of the device, visited by several threads.
//!
//! The order of a walk is that of the files. Many blocks at a time, sorted by address, are nearly
//! in the order of the device, however the files lie on it. The threads take the next block each,
//! so that a device has several requests to serve.

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use forebay_base::sync::thread::{self, JoinHandle};

use super::super::PoolInner;
use super::super::walk::{BlockLocation, Bookmark, PostponedBlock, SliceEnd, Step, Visitor};
use super::{Clocked, Resilverer};
use crate::error::{Error, ErrorKind};
use crate::format::BlockPtrPhys;
use crate::store::Store;

/// Blocks of a batch: 4 MiB of memory, and 2 GiB of large blocks.
const BATCH_BLOCKS: usize = 16_384;
/// Threads that visit the blocks of a batch. A mirror serves several reads at a time, and beside a
/// read of one device goes the write of another.
const THREADS: usize = 6;
/// Blocks for which another thread is worth its start.
const BLOCKS_PER_THREAD: usize = 32;
/// Visits of one block that may fail for want of memory, each after a wait for some.
const STARVED_MAX: u32 = 200;

/// A block that waits.
struct WaitingBlock {
    store: Store,
    ptr: BlockPtrPhys,
    location: BlockLocation,
}

impl WaitingBlock {
    fn block(&self) -> PostponedBlock<'_> {
        PostponedBlock { store: &self.store, ptr: &self.ptr, location: &self.location }
    }
}

/// Blocks that wait.
#[derive(Default)]
pub(super) struct Batch(Vec<WaitingBlock>);

impl Batch {
    /// Adds a block. Returns whether the batch is full.
    pub(super) fn push(
        &mut self,
        PostponedBlock { store, ptr, location }: PostponedBlock<'_>,
    ) -> bool {
        let (store, location) = (store.clone(), location.clone());
        self.0.push(WaitingBlock { store, ptr: *ptr, location });
        self.0.len() >= BATCH_BLOCKS
    }

    /// Takes all blocks, in the order of their first copies.
    fn take(&mut self) -> Vec<WaitingBlock> {
        let mut blocks = std::mem::take(&mut self.0);
        blocks.sort_by_cached_key(|one| {
            one.ptr.dvas().next().map_or((0, 0), |dva| (dva.device, dva.offset))
        });
        blocks
    }
}

/// Blocks that several threads visit.
struct Visits {
    blocks: Vec<WaitingBlock>,
    next: AtomicUsize,
    /// Whether a thread has failed, so that the others need not go on.
    ended: AtomicBool,
}

impl Visits {
    /// Visits blocks until none is left.
    fn run(&self, pool: &PoolInner, visitor: &mut Resilverer<'_>) -> Step {
        while !self.ended.load(Ordering::Acquire) {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(waiting) = self.blocks.get(next) else { break };
            if let Err(end) = Self::visit(waiting, pool, visitor) {
                self.ended.store(true, Ordering::Release);
                return Err(end);
            }
        }
        Ok(())
    }

    /// Visits a block, again if there was no memory.
    fn visit(waiting: &WaitingBlock, pool: &PoolInner, visitor: &mut Resilverer<'_>) -> Step {
        let mut starved = 0;
        loop {
            let visited = visitor
                .proceed(&Bookmark::START)
                .and_then(|()| pool.visit_later(waiting.block(), visitor));
            match visited {
                Err(SliceEnd::Failed(error))
                    if error.kind() == ErrorKind::NoMemory && starved < STARVED_MAX =>
                {
                    starved += 1;
                }
                ended => return ended,
            }
        }
    }
}

impl Resilverer<'_> {
    /// Visits the blocks that wait. After an error, none waits any more, and some were not visited.
    ///
    /// # Errors
    /// [`SliceEnd::Interrupted`] if the pool is exported meanwhile, or [`SliceEnd::Ended`] with the
    /// error of a visit.
    pub(super) fn visit_batch(&mut self) -> Step {
        let blocks = self.batch.take();
        let helpers = (blocks.len() / BLOCKS_PER_THREAD).min(THREADS - 1);
        let visits = Visits { blocks, next: AtomicUsize::new(0), ended: AtomicBool::new(false) };
        let visits = Arc::new(visits);
        let (oldest, until) = (self.oldest, self.until);
        let help = |_| {
            let (pool, visits) = (Arc::clone(self.pool), Arc::clone(&visits));
            // Without a thread, the others do its work.
            let helper = move || {
                let mut visitor = Resilverer::new(&pool, (oldest, until), Clocked::ByAnother);
                (visits.run(&pool, &mut visitor), visitor.lost)
            };
            thread::spawn_named("forebay-resilver", helper).ok()
        };
        let helpers: Vec<JoinHandle<_>> = (0..helpers).filter_map(help).collect();
        let pool = Arc::clone(self.pool);
        let mut ended = visits.run(&pool, self);
        for helper in helpers {
            let (end, lost) = helper.join().unwrap_or_else(|_| (Err(panicked()), 0));
            self.lost += lost;
            ended = ended.and(end);
        }
        ended.map_err(|end| match end {
            SliceEnd::Failed(error) => SliceEnd::Ended(error),
            // It is no walk, so it cannot be full or overtaken.
            SliceEnd::Full | SliceEnd::Overtaken | SliceEnd::Interrupted | SliceEnd::Ended(_) => {
                end
            }
        })
    }
}

/// The end of a thread of which the panic hook has reported the panic.
fn panicked() -> SliceEnd {
    SliceEnd::Failed(Error::new(ErrorKind::Corrupt, "a thread of the resilver panicked"))
}
