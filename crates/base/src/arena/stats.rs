//! What an arena says about itself.

use super::classes::{CLASSES, MAGAZINE_CLASSES, RUN, SIZES};
use super::inner::Inner;
use super::region::metadata_bytes;
use crate::sync::atomic::Ordering;

/// A picture of an [`Arena`](super::Arena). Its parts are read one after the other, so that
/// they agree exactly only while nothing runs.
#[derive(Clone, Debug)]
pub struct ArenaStats {
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Bytes that may be resident: live and free blocks, whole huge pages.
    pub committed_bytes: u64,
    /// Bytes of blocks handed out.
    pub used_bytes: u64,
    /// Bytes asked for by those who have the blocks.
    pub requested_bytes: u64,
    /// Committed and not handed out.
    pub slack_bytes: u64,
    /// The part of the slack that [`purge`](super::Arena::purge) would release at once, not
    /// counting magazines: free pages of classes, and the pool.
    pub idle_bytes: u64,
    /// Bytes of free blocks in magazines.
    pub magazine_bytes: u64,
    /// Most bytes of chunk headers that can be resident, outside the limit.
    pub metadata_bytes: u64,
    /// Address space reserved, in regions.
    pub regions: usize,
    /// Chunks that serve a class or a large buffer.
    pub chunks: usize,
    /// Of these, chunks of a class that are backed by a huge page.
    pub huge_chunks: usize,
    /// Times that pages of a chunk were released.
    pub purges: u64,
    /// Bytes released.
    pub purged_bytes: u64,
    /// Allocations that failed for lack of room.
    pub exhausted: u64,
    /// By size class, ascending.
    pub classes: Vec<ClassStats>,
    /// Large buffers handed out, which are runs of whole chunks.
    pub runs: u64,
}

/// A size class in [`ArenaStats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassStats {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks handed out.
    pub used_blocks: u64,
    /// Free blocks in magazines.
    pub magazine_blocks: u64,
    /// Chunks that serve the class.
    pub chunks: usize,
    /// Backed pages that no block in use or in a magazine touches, in bytes.
    pub idle_bytes: u64,
}

impl Inner {
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
        // A free may have been seen whose allocation was not.
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
        let (committed, used) = (self.account.committed(), self.used());
        let magazine = |c: &ClassStats| c.magazine_blocks * c.block_bytes as u64;
        ArenaStats {
            limit_bytes: self.account.limit(),
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
