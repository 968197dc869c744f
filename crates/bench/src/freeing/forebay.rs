//! Forebay's cache in `freeing`, with blocks of three kinds: in its arena, from the system's
//! allocator, and from that at page boundaries, as the arena's are.

use std::sync::Arc;

use forebay_base::arena::{Arena, Buffer};
use forebay_cache::Cache;

use super::{Walk, block_bytes, use_block};
use crate::benches::freeing::Freeing;
use crate::blocks::fill;
use crate::subjects::forebay::{arena, built};

/// A cache of arena blocks.
pub(crate) struct ArenaFreeing {
    arena: Arc<Arena>,
    cache: Cache<u64, Buffer>,
    walk: Walk,
}

impl ArenaFreeing {
    /// An empty cache of `capacity_bytes`.
    pub(crate) fn new(capacity_bytes: u64, walk: Walk) -> Self {
        // The limit is not to matter. A block takes at most a quarter more than its bytes, and
        // pinned blocks and blocks in transit exceed the capacity.
        let arena = arena(2 * capacity_bytes + (8 << 20));
        let builder = Cache::builder().capacity(capacity_bytes);
        Self { arena, cache: built(builder.weigher(|_, b: &Buffer| b.len() as u64)), walk }
    }
}

impl Freeing for ArenaFreeing {
    fn get_or_insert(&self, key: u64) -> bool {
        if let Some(block) = self.cache.get(&key) {
            std::hint::black_box(use_block(&block, self.walk.first(key)));
            return true;
        }
        if let Ok(mut block) = self.arena.alloc(block_bytes(key)) {
            fill(&mut block, key);
            let _ = self.cache.insert(key, block);
        }
        false
    }

    fn bytes(&self) -> u64 {
        self.cache.stats().resident_bytes()
    }
}

/// A cache of heap blocks.
pub(crate) struct HeapFreeing {
    cache: Cache<u64, Box<[u8]>>,
    walk: Walk,
}

impl HeapFreeing {
    /// An empty cache of `capacity_bytes`.
    pub(crate) fn new(capacity_bytes: u64, walk: Walk) -> Self {
        let builder = Cache::<u64, Box<[u8]>>::builder().capacity(capacity_bytes);
        Self { cache: built(builder.weigher(|_, block| block.len() as u64)), walk }
    }
}

impl Freeing for HeapFreeing {
    fn get_or_insert(&self, key: u64) -> bool {
        if let Some(block) = self.cache.get(&key) {
            std::hint::black_box(use_block(&block, self.walk.first(key)));
            return true;
        }
        let mut block = vec![0u8; block_bytes(key)].into_boxed_slice();
        fill(&mut block, key);
        let _ = self.cache.insert(key, block);
        false
    }

    fn bytes(&self) -> u64 {
        self.cache.stats().resident_bytes()
    }
}

/// Bytes at a page boundary.
#[derive(Clone)]
#[repr(align(4096))]
struct HeapPage([u8; HeapPage::BYTES]);

impl HeapPage {
    const BYTES: usize = 4096;
}

/// A heap block of whole pages, as the arena's blocks of 4 and 8 KiB are.
struct PagedBlock {
    pages: Box<[HeapPage]>,
    len: usize,
}

impl PagedBlock {
    /// A block with its content.
    fn new(key: u64) -> Self {
        let len = block_bytes(key);
        let pages = vec![HeapPage([0; HeapPage::BYTES]); len.div_ceil(HeapPage::BYTES)];
        let mut block = Self { pages: pages.into_boxed_slice(), len };
        for (nth, page) in block.pages.iter_mut().enumerate() {
            fill(&mut page.0[..HeapPage::BYTES.min(len - nth * HeapPage::BYTES)], key);
        }
        block
    }

    /// Uses the block, see [`use_block`].
    fn touch(&self, first: usize) -> u64 {
        let ends = (0..self.len).step_by(HeapPage::BYTES).map(|at| self.len - at);
        let pages = self.pages.iter().zip(ends);
        pages.map(|(page, end)| use_block(&page.0[..HeapPage::BYTES.min(end)], first)).sum()
    }
}

/// A cache of heap blocks at page boundaries.
pub(crate) struct PagedFreeing {
    cache: Cache<u64, PagedBlock>,
    walk: Walk,
}

impl PagedFreeing {
    /// An empty cache of `capacity_bytes`.
    pub(crate) fn new(capacity_bytes: u64, walk: Walk) -> Self {
        let builder = Cache::<u64, PagedBlock>::builder().capacity(capacity_bytes);
        Self { cache: built(builder.weigher(|_, block| block.len as u64)), walk }
    }
}

impl Freeing for PagedFreeing {
    fn get_or_insert(&self, key: u64) -> bool {
        if let Some(block) = self.cache.get(&key) {
            std::hint::black_box(block.touch(self.walk.first(key)));
            return true;
        }
        let _ = self.cache.insert(key, PagedBlock::new(key));
        false
    }

    fn bytes(&self) -> u64 {
        self.cache.stats().resident_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paged_block_is_that_of_the_heap() {
        for key in 0..50 {
            let block = PagedBlock::new(key);
            assert!(block.pages.as_ptr().addr().is_multiple_of(HeapPage::BYTES));
            let mut bytes: Vec<u8> = block.pages.iter().flat_map(|page| page.0).collect();
            assert!(bytes.len() - block.len < HeapPage::BYTES);
            bytes.truncate(block.len);
            for first in [0, 64, 448] {
                assert_eq!(block.touch(first), use_block(&bytes, first), "key {key}, {first}");
            }
        }
    }
}
