//! Statistics of an arena.

use super::classes::{CLASSES, MAGAZINE_CLASSES, RUN, SIZES};
use super::inner::ArenaInner;
use super::region::metadata_bytes;
use crate::sync::atomic::Ordering;

/// Statistics of an [`Arena`](super::Arena). The fields are read one after another, so they agree
/// exactly only while no other thread uses the arena.
#[derive(Clone, Debug)]
pub struct ArenaStats {
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Bytes that may be resident: live blocks, free blocks and whole huge pages.
    pub committed_bytes: u64,
    /// Bytes of live buffers.
    pub used_bytes: u64,
    /// Requested bytes of live buffers.
    pub requested_bytes: u64,
    /// Committed bytes that no buffer uses.
    pub slack_bytes: u64,
    /// The part of the slack that [`purge`](super::Arena::purge) would release, without magazines:
    /// idle pages of classes, and backed pages in the pool.
    pub idle_bytes: u64,
    /// Bytes of free blocks in magazines.
    pub magazine_bytes: u64,
    /// Largest number of resident bytes of headers, which are outside the limit.
    pub metadata_bytes: u64,
    /// Number of reserved regions of address space.
    pub regions: usize,
    /// Number of chunks that serve a class or a large buffer.
    pub chunks: usize,
    /// Number of chunks of a class that use a huge page.
    pub huge_chunks: usize,
    /// Number of times that pages of a chunk were released.
    pub purges: u64,
    /// Number of released bytes.
    pub purged_bytes: u64,
    /// Number of allocations that failed because the limit was reached.
    pub exhausted: u64,
    /// Statistics per size class, in ascending order of size.
    pub classes: Vec<ClassStats>,
    /// Number of live buffers that are runs of whole chunks.
    pub runs: u64,
}

/// Statistics of a size class in [`ArenaStats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassStats {
    /// Size of a block in bytes.
    pub block_bytes: usize,
    /// Number of blocks of live buffers.
    pub used_blocks: u64,
    /// Number of free blocks in magazines.
    pub magazine_blocks: u64,
    /// Number of chunks that serve the class.
    pub chunks: usize,
    /// Bytes of backed pages without a block of a buffer or a magazine.
    pub idle_bytes: u64,
}

impl ArenaInner {
    pub(super) fn stats(&self) -> ArenaStats {
        let mut live = [0i64; CLASSES + 1];
        let mut magazines = [0u64; MAGAZINE_CLASSES];
        let mut requested = 0;
        for shard in &self.shards {
            let state = shard.state.lock();
            requested += state.requested;
            live.iter_mut().zip(state.live).for_each(|(sum, n)| *sum += n);
            let counts = magazines.iter_mut().zip(&state.magazines);
            counts.for_each(|(sum, magazine)| *sum += magazine.len() as u64);
        }
        // The sums may include a free without its allocation.
        let live = live.map(|n| n.max(0).cast_unsigned());
        let mut huge_chunks = 0;
        let class_stats = |class: usize| {
            let (chunks, huge, idle_pages, _) = self.class(class).counts();
            huge_chunks += huge;
            ClassStats {
                block_bytes: SIZES[class] as usize,
                used_blocks: live[class],
                magazine_blocks: magazines.get(class).copied().unwrap_or(0),
                chunks,
                idle_bytes: (idle_pages * self.page.bytes()) as u64,
            }
        };
        let classes: Vec<_> = (0..CLASSES).map(class_stats).collect();
        let (regions, chunks, pool_pages) = self.pool.lock().counts();
        let (committed, used) = (self.budget.committed(), self.used());
        let magazine = |c: &ClassStats| c.magazine_blocks * c.block_bytes as u64;
        ArenaStats {
            limit_bytes: self.budget.limit(),
            committed_bytes: committed,
            used_bytes: used,
            requested_bytes: requested.max(0).cast_unsigned(),
            slack_bytes: committed.saturating_sub(used),
            idle_bytes: classes.iter().map(|c| c.idle_bytes).sum::<u64>()
                + (pool_pages * self.page.bytes()) as u64,
            magazine_bytes: classes.iter().map(magazine).sum(),
            metadata_bytes: (regions * metadata_bytes(self.page)) as u64,
            regions,
            chunks,
            huge_chunks,
            purges: self.events.purges.load(Ordering::Relaxed),
            purged_bytes: self.events.purged_bytes.load(Ordering::Relaxed),
            exhausted: self.events.exhausted.load(Ordering::Relaxed),
            classes,
            runs: live[RUN],
        }
    }
}
