//! A harness for R3: caches that differ only in the index and in the moment at which memory is
//! freed.
//!
//! [`SecondChanceCache`] is the common part: a budget of bytes and a sharded second-chance queue.
//! An [`Index`] finds blocks and decides when an evicted block is freed: [`TreeIndex`] and
//! [`HashIndex`] at once, [`EpochIndex`] when no reader can use it any more. Blocks are really
//! allocated and written.
//!
//! Locking: a queue's lock and an index's lock are never held together.

mod epoch_index;
mod forebay;
mod locked_index;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use forebay_base::sync::Mutex;

use crate::blocks::fill;
use crate::keys::scramble;

pub(crate) use epoch_index::EpochIndex;
pub(crate) use forebay::{ArenaFreeing, HeapFreeing, PagedFreeing};
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

/// Bytes from one byte that a hit reads to the next.
pub(crate) const STRIDE: usize = 512;

/// Where a hit reads a byte of every [`STRIDE`], like a walk through a metadata buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    /// At the same offsets in each block. If all blocks begin at page boundaries, an eighth of the
    /// sets of a CPU's cache has all of these bytes.
    SameOffsets,
    /// At offsets that depend on the key.
    SpreadOffsets,
}

impl Walk {
    /// The offset of the first byte in the block of a key.
    #[inline]
    pub(crate) fn first(self, key: u64) -> usize {
        const LINE_BYTES: usize = 64;
        match self {
            Self::SameOffsets => 0,
            Self::SpreadOffsets => scramble(key) as usize % (STRIDE / LINE_BYTES) * LINE_BYTES,
        }
    }
}

/// Uses a block, or a page of it: reads a byte of every [`STRIDE`] from `first` on.
#[inline]
pub(crate) fn use_block(bytes: &[u8], first: usize) -> u64 {
    let read = bytes.get(first..).unwrap_or_default().iter().step_by(STRIDE);
    read.fold(0, |sum, byte| sum + u64::from(*byte))
}

/// A block with its second-chance mark.
pub(crate) struct Block {
    bytes: Box<[u8]>,
    /// Where a hit begins to read.
    first: usize,
    used: AtomicBool,
}

impl Block {
    /// A block with its content.
    pub(crate) fn new(key: u64, walk: Walk) -> Self {
        let mut bytes = vec![0u8; block_bytes(key)].into_boxed_slice();
        fill(&mut bytes, key);
        Self { bytes, first: walk.first(key), used: AtomicBool::new(false) }
    }

    /// Uses and marks the block.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
        use_block(&self.bytes, self.first)
    }
}

/// The result of an attempt to evict a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It was used since the last attempt.
    Used,
    /// It was evicted; its size in bytes.
    Evicted(u64),
    /// It was not in the index.
    Gone,
}

/// Finds blocks and decides when evicted ones are freed.
pub(crate) trait Index: Send + Sync + 'static {
    /// An index for about `blocks` blocks.
    fn with_capacity(blocks: usize) -> Self;
    /// Uses a block if it is present.
    fn touch(&self, key: u64) -> Option<u64>;
    /// Adds a block. Returns false if the key is present.
    fn insert(&self, key: u64, block: Block) -> bool;
    /// Evicts a block unless it was used since the last attempt.
    fn evict(&self, key: u64) -> Verdict;
}

/// Checks and clears the mark of a block.
fn judge(block: &Block) -> Verdict {
    if block.used.swap(false, Relaxed) {
        Verdict::Used
    } else {
        Verdict::Evicted(block.bytes.len() as u64)
    }
}

const QUEUES: usize = 16;
/// Blocks that one insert examines at most.
const PROBES_PER_INSERT: usize = 64;

#[repr(align(128))]
struct Queue(Mutex<VecDeque<u64>>);

#[repr(align(128))]
struct Total(AtomicU64);

/// The cache around an index.
pub(crate) struct SecondChanceCache<I> {
    index: I,
    walk: Walk,
    capacity_bytes: u64,
    bytes: Total,
    queues: [Queue; QUEUES],
}

impl<I: Index> SecondChanceCache<I> {
    /// An empty cache of `capacity_bytes`.
    pub(crate) fn new(capacity_bytes: u64, walk: Walk) -> Self {
        let blocks = capacity_bytes / MIN_BLOCK_BYTES;
        Self {
            index: I::with_capacity(blocks as usize),
            walk,
            capacity_bytes,
            bytes: Total(AtomicU64::new(0)),
            queues: std::array::from_fn(|_| Queue(Mutex::named("freeing queue", VecDeque::new()))),
        }
    }

    /// Looks a block up; makes and inserts it on a miss. Returns true for a hit.
    pub(crate) fn get_or_insert(&self, key: u64) -> bool {
        if let Some(sum) = self.index.touch(key) {
            std::hint::black_box(sum);
            return true;
        }
        let block = Block::new(key, self.walk);
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
        let cache = SecondChanceCache::<I>::new(CAPACITY, Walk::SpreadOffsets);
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
        // Each inserter may exceed the budget by its last block.
        assert!(bytes <= CAPACITY + 4 * MAX_BLOCK_BYTES, "{bytes} bytes");
        let mut listed = 0;
        for queue in &cache.queues {
            for key in queue.0.lock().iter() {
                // The first attempt may find the mark; the second evicts.
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
    fn each_walk_reads_as_many_bytes() {
        // The byte at an offset is one more than its line.
        let block: Vec<u8> = (0..MAX_BLOCK_BYTES).map(|at| (at / 64) as u8 + 1).collect();
        let mut firsts = Vec::new();
        for key in 0..100 {
            let bytes = &block[..block_bytes(key)];
            let lines = |first: usize| (first..bytes.len()).step_by(STRIDE).map(|at| at / 64 + 1);
            for walk in [Walk::SameOffsets, Walk::SpreadOffsets] {
                let first = walk.first(key);
                assert_eq!(lines(first).count(), bytes.len() / STRIDE);
                assert_eq!(use_block(bytes, first), lines(first).sum::<usize>() as u64);
            }
            firsts.push(Walk::SpreadOffsets.first(key));
        }
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts, [0, 64, 128, 192, 256, 320, 384, 448]);
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
