//! Allocation of object numbers.
//!
//! A thread takes a whole block of dnodes and hands out its free numbers, so threads that create
//! objects share neither lock nor block. Blocks with free dnodes are preferred if they are in
//! memory. A block that is not resident is prefetched and skipped, and a fresh block is used
//! meanwhile: creating an object never waits for a device.
//!
//! Blocks with free dnodes are known from the txgs that free them. Those that were free at import
//! are found by a gradual scan of the fill counts in the indirect blocks.

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Mutex, thread_slot};
use hashbrown::HashSet;

use crate::block_label::DNODE_BLOCKS;
use crate::error::{Error, ErrorKind, Result};
use crate::format::DNODES_PER_BLOCK;
use crate::object::tree::{self, POINTERS, Tree};
use crate::wait::Wait;

use super::{DNODE_BLOCKS_MAX, Objset};

/// Blocks of numbers in use by threads; a power of two.
const CHUNKS: usize = 16;
/// Limit of remembered blocks with free dnodes. The next import finds the others.
const REUSABLE_MAX: usize = 1 << 16;

pub(super) struct FreeNumbers {
    chunks: [CachePadded<Mutex<Chunk>>; CHUNKS],
    /// The first block that was never used.
    fresh: AtomicU64,
    reusable: Mutex<Reusable>,
}

#[derive(Default)]
struct Chunk {
    block: u64,
    /// Bit n: number n of the block is free.
    free: u32,
}

struct Reusable {
    blocks: HashSet<u64>,
    /// Blocks from here up to `scan_end` have not been scanned since the import.
    scan_next: u64,
    scan_end: u64,
}

impl FreeNumbers {
    /// For an objset with `blocks` blocks of dnodes.
    pub(super) fn new(blocks: u64) -> Self {
        let reusable = Reusable { blocks: HashSet::new(), scan_next: 0, scan_end: blocks };
        Self {
            chunks: std::array::from_fn(|_| {
                CachePadded::new(Mutex::named("numbers", Chunk::default()))
            }),
            fresh: AtomicU64::new(blocks),
            reusable: Mutex::named("reusable-numbers", reusable),
        }
    }

    /// Remembers a block with free dnodes.
    pub(super) fn note_free(&self, block: u64) {
        let mut reusable = self.reusable.lock();
        if reusable.blocks.len() < REUSABLE_MAX {
            reusable.blocks.insert(block);
        }
    }

    /// Skips the numbers of all blocks before this one that were never used.
    pub(super) fn skip_to(&self, block: u64) {
        self.fresh.fetch_max(block, Ordering::Relaxed);
    }
}

impl Objset {
    /// Returns a number that was free a moment ago. The caller checks under the lock of the dnode.
    pub(super) fn next_number(&self, wait: Wait) -> Result<u64> {
        let chunk = &self.numbers.chunks[thread_slot().index(CHUNKS)];
        let mut chunk = wait.lock(chunk, "an object number")?;
        while chunk.free == 0 {
            *chunk = match self.reuse(wait)? {
                Some(chunk) => chunk,
                None => {
                    let block = self.numbers.fresh.load(Ordering::Relaxed);
                    if block >= DNODE_BLOCKS_MAX {
                        let text =
                            "no object number is left: delete objects and import the pool again";
                        return Err(Error::new(ErrorKind::NoSpace, text));
                    }
                    let block = self.numbers.fresh.fetch_add(1, Ordering::Relaxed);
                    // Number 0 is reserved.
                    Chunk { block, free: if block == 0 { !1 } else { !0 } }
                }
            };
        }
        let index = chunk.free.trailing_zeros();
        chunk.free &= chunk.free - 1;
        Ok(chunk.block * DNODES_PER_BLOCK as u64 + u64::from(index))
    }

    /// The free numbers of a reusable block, if one is in memory.
    fn reuse(&self, wait: Wait) -> Result<Option<Chunk>> {
        let _reading = self.io.store.readers().enter();
        let tree = self.tree();
        let block = {
            let mut reusable = self.numbers.reusable.lock();
            match reusable.blocks.iter().next().copied() {
                Some(block) => {
                    reusable.blocks.remove(&block);
                    block
                }
                None => {
                    let from = reusable.scan_next;
                    let end = reusable.scan_end.min(tree.blocks);
                    reusable.scan_next = (from / POINTERS as u64 + 1) * POINTERS as u64;
                    drop(reusable);
                    if from < end {
                        let scanned = self.scan(&tree, from, end, wait);
                        if scanned.as_ref().is_err_and(comes_later) {
                            let mut reusable = self.numbers.reusable.lock();
                            reusable.scan_next = reusable.scan_next.min(from);
                        }
                        return none_if_later(scanned.map(|()| None));
                    }
                    return Ok(None);
                }
            }
        };
        let ptr = match tree::lookup(&self.io.store, &tree, block, wait) {
            Ok(ptr) => ptr,
            Err(error) => {
                if comes_later(&error) {
                    self.numbers.note_free(block);
                }
                return none_if_later(Err(error));
            }
        };
        if ptr.is_hole() {
            return Ok((block < tree.blocks).then_some(Chunk {
                block,
                free: self.dnodes.free_mask(block, &[]) & number_mask(block),
            }));
        }
        match self.io.store.peek(&ptr) {
            Some(content) => {
                let free = self.dnodes.free_mask(block, &content) & number_mask(block);
                Ok((free != 0).then_some(Chunk { block, free }))
            }
            None => {
                self.io.store.prefetch(&ptr, DNODE_BLOCKS, Box::new(|_| {}));
                self.numbers.note_free(block);
                Ok(None)
            }
        }
    }

    /// Finds blocks with free dnodes from `from` up to the next indirect block, and before `end`.
    fn scan(&self, tree: &Tree, from: u64, end: u64, wait: Wait) -> Result<()> {
        let end = end.min((from / POINTERS as u64 + 1) * POINTERS as u64);
        for block in from..end {
            let ptr = tree::lookup(&self.io.store, tree, block, wait)?;
            if ptr.fill.get() < DNODES_PER_BLOCK as u64 - u64::from(block == 0) {
                self.numbers.note_free(block);
            }
        }
        Ok(())
    }
}

/// Whether a block may be read later, of which a read has failed so.
fn comes_later(error: &Error) -> bool {
    error.kind() == ErrorKind::WouldBlock || error.is_gone()
}

/// Turns the error of a block that may be read later into `None`: the caller uses a fresh block
/// instead.
fn none_if_later(found: Result<Option<Chunk>>) -> Result<Option<Chunk>> {
    if found.as_ref().is_err_and(comes_later) { Ok(None) } else { found }
}

/// Mask of the valid numbers of a block: all but 0.
fn number_mask(block: u64) -> u32 {
    if block == 0 { !1 } else { !0 }
}
