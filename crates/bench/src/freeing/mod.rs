//! R3's question in one harness: a cache of which only the index, and the moment at which
//! memory is freed, differ.
//!
//! [`SecondChanceCache`] is the common part: a budget of bytes and a second-chance queue in shards.
//! An [`Index`] finds blocks and decides when an evicted block's memory is freed:
//! [`TreeIndex`] and [`HashIndex`] at once, [`EpochIndex`] when no reader can be in it any
//! more. Blocks are really allocated and written.
//!
//! Locking: a queue's lock and an index's lock are never held together.

mod epoch_index;
mod locked_index;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use forebay_base::sync::Mutex;

use crate::blocks::fill;
use crate::keys::scramble;

pub(crate) use epoch_index::EpochIndex;
pub(crate) use locked_index::{HashIndex, TreeIndex};

/// Smallest and largest block: R3's metadata buffers.
pub(crate) const MIN_BLOCK_BYTES: u64 = 4096;
/// See [`MIN_BLOCK_BYTES`].
pub(crate) const MAX_BLOCK_BYTES: u64 = 8192;

/// The size of a key's block: a multiple of 512 bytes.
pub(crate) fn block_bytes(key: u64) -> usize {
    const STEP: u64 = 512;
    let steps = (MAX_BLOCK_BYTES - MIN_BLOCK_BYTES) / STEP + 1;
    (MIN_BLOCK_BYTES + scramble(key) % steps * STEP) as usize
}

/// What a hit does with a block: reads a word of every 512 bytes, as a walk through a
/// metadata buffer does.
#[inline]
pub(crate) fn use_block(bytes: &[u8]) -> u64 {
    const STRIDE: usize = 512;
    bytes.iter().step_by(STRIDE).fold(0, |sum, byte| sum + u64::from(*byte))
}

/// A block with the mark of the second chance.
pub(crate) struct Block {
    bytes: Box<[u8]>,
    used: AtomicBool,
}

impl Block {
    /// A block with its content.
    pub(crate) fn new(key: u64) -> Self {
        let mut bytes = vec![0u8; block_bytes(key)].into_boxed_slice();
        fill(&mut bytes, key);
        Self { bytes, used: AtomicBool::new(false) }
    }

    /// A hit on it.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
        use_block(&self.bytes)
    }
}

/// What the evictor's question about a block found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It was used since: ask again later.
    Used,
    /// It is out; its bytes.
    Evicted(u64),
    /// It was not there.
    Gone,
}

/// How blocks are found, and when the memory of evicted ones is freed.
pub(crate) trait Index: Send + Sync + 'static {
    /// An index for about `blocks` blocks.
    fn with_capacity(blocks: usize) -> Self;
    /// Touches a block if it is there.
    fn touch(&self, key: u64) -> Option<u64>;
    /// Adds a block, unless there is one: then false.
    fn insert(&self, key: u64, block: Block) -> bool;
    /// Takes a block out unless it was used since the last question.
    fn evict(&self, key: u64) -> Verdict;
}

/// Decides about a block that the evictor has found.
fn judge(block: &Block) -> Verdict {
    if block.used.swap(false, Relaxed) {
        Verdict::Used
    } else {
        Verdict::Evicted(block.bytes.len() as u64)
    }
}

const QUEUES: usize = 16;
/// Second chances that one insert gives before it leaves the rest to the next.
const PROBES_PER_INSERT: usize = 64;

#[repr(align(128))]
struct Queue(Mutex<VecDeque<u64>>);

#[repr(align(128))]
struct Total(AtomicU64);

/// The cache around an index.
pub(crate) struct SecondChanceCache<I> {
    index: I,
    capacity_bytes: u64,
    bytes: Total,
    queues: [Queue; QUEUES],
}

impl<I: Index> SecondChanceCache<I> {
    /// An empty cache of a number of bytes.
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        let blocks = capacity_bytes / MIN_BLOCK_BYTES;
        Self {
            index: I::with_capacity(blocks as usize),
            capacity_bytes,
            bytes: Total(AtomicU64::new(0)),
            queues: std::array::from_fn(|_| Queue(Mutex::named("freeing queue", VecDeque::new()))),
        }
    }

    /// Looks a block up; makes, writes and inserts it if it is missing. True for a hit.
    pub(crate) fn get_or_insert(&self, key: u64) -> bool {
        if let Some(sum) = self.index.touch(key) {
            std::hint::black_box(sum);
            return true;
        }
        let block = Block::new(key);
        let bytes = block.bytes.len() as u64;
        if self.index.insert(key, block) {
            let queue = scramble(key) as usize % QUEUES;
            self.queues[queue].0.lock().push_back(key);
            let now = self.bytes.0.fetch_add(bytes, Relaxed) + bytes;
            if now > self.capacity_bytes {
                self.evict(queue);
            }
        }
        false
    }

    /// Bytes of the resident blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.0.load(Relaxed)
    }

    fn evict(&self, first: usize) {
        let mut queue = first;
        for _ in 0..PROBES_PER_INSERT {
            if self.bytes() <= self.capacity_bytes {
                break;
            }
            let oldest = self.queues[queue].0.lock().pop_front();
            let Some(key) = oldest else {
                queue = (queue + 1) % QUEUES;
                continue;
            };
            match self.index.evict(key) {
                Verdict::Used => self.queues[queue].0.lock().push_back(key),
                Verdict::Evicted(bytes) => {
                    self.bytes.0.fetch_sub(bytes, Relaxed);
                }
                Verdict::Gone => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::XorShift;

    fn stress<I: Index>() {
        const CAPACITY: u64 = 1 << 20;
        let cache = SecondChanceCache::<I>::new(CAPACITY);
        let hits: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let cache = &cache;
                    scope.spawn(move || {
                        let mut rng = XorShift::new(thread);
                        (0..5000).filter(|_| cache.get_or_insert(rng.below(600))).count() as u64
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().expect("no panic")).sum()
        });
        assert!(hits > 1000, "{hits} hits");
        let bytes = cache.bytes();
        // Each inserter may leave its last block over the budget.
        assert!(bytes <= CAPACITY + 4 * MAX_BLOCK_BYTES, "{bytes} bytes");
        let mut listed = 0;
        for queue in &cache.queues {
            for key in queue.0.lock().iter() {
                // The first question may find the block used; the second takes it.
                let verdicts = [cache.index.evict(*key), cache.index.evict(*key)];
                let evicted = verdicts.iter().find_map(|v| match v {
                    Verdict::Evicted(bytes) => Some(*bytes),
                    _ => None,
                });
                listed += evicted.expect("every key in a queue is in the index");
                assert_eq!(cache.index.touch(*key), None);
            }
        }
        assert_eq!(listed, bytes);
    }

    #[test]
    fn a_tree_keeps_its_books() {
        stress::<TreeIndex>();
    }

    #[test]
    fn a_hash_table_keeps_its_books() {
        stress::<HashIndex>();
    }

    #[test]
    fn an_epoch_table_keeps_its_books() {
        stress::<EpochIndex>();
    }
}
