//! Keeps the process within its memory limit.
//!
//! The plan of a limit reserves shares for everything beside blocks. Some of it has no counter of
//! its own: the code, stacks, free memory of the C allocator, the indexes of L2 devices, buffers of
//! further mounts. So a thread compares the resident memory of the process with the plan, and
//! withholds from blocks what everything else uses beyond its shares.
//!
//! Memory of blocks that is committed but not resident yet hides other memory for a while. So the
//! thread follows a fall of the other memory slowly.
//!
//! If blocks cannot give way to all of it, the C allocator releases its free memory.
//!
//! It does not evict anything itself, and it does not follow the limits of control groups.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use forebay_base::sync::thread::spawn_named;
use forebay_pool::BlockCache;

use crate::error::{Failure, Result};
use crate::memory::MemoryPlan;

/// How often the resident memory is read. The headroom of the plan is for growth in between.
const PERIOD: Duration = Duration::from_millis(100);
/// Withheld bytes are a multiple of this, and of this fraction of the arena, so that they change
/// rarely.
const STEP_BYTES: u64 = 1 << 20;
const STEP_SHARE: u64 = 256;
/// While blocks cannot give way to all, the C allocator releases its free memory once in so many
/// looks.
const LOOKS_PER_RELEASE: u32 = 10;
/// The other memory falls at most by this fraction from one look to the next.
const FALL_SHARE: u64 = 64;

/// Starts the thread. It ends when the cache is dropped.
///
/// # Errors
/// If the system gives no thread.
pub(super) fn start(plan: &MemoryPlan, cache: &Arc<BlockCache>) -> Result<()> {
    let (mut watch, cache) = (MemoryWatch::new(plan), Arc::downgrade(cache));
    let run = move || {
        while let Some(cache) = Weak::upgrade(&cache) {
            // Without `/proc`, the shares of the plan are all there is.
            watch.adjust(&cache);
            drop(cache);
            thread::sleep(PERIOD);
        }
    };
    spawn_named("forebay-memory", run)
        .map(drop)
        .map_err(|error| Failure::no_thread("cannot watch memory", &error))
}

/// What the thread knows between two looks.
struct MemoryWatch {
    /// Bytes that everything beside blocks may use before some are withheld.
    share_bytes: u64,
    /// Bytes that everything beside blocks uses.
    other_bytes: u64,
    /// What is withheld is a multiple of this.
    step_bytes: u64,
    /// Whether more had to be withheld than blocks can spare.
    is_short: bool,
    /// Looks until the C allocator may release its free memory again.
    looks_to_release: u32,
}

impl MemoryWatch {
    fn new(plan: &MemoryPlan) -> Self {
        let share_bytes = plan.total_bytes - plan.arena_bytes - plan.headroom_bytes();
        let step_bytes = STEP_BYTES.max(plan.arena_bytes / STEP_SHARE);
        Self { share_bytes, other_bytes: 0, step_bytes, is_short: false, looks_to_release: 0 }
    }

    /// Withholds what the rest of the process uses beyond its shares.
    fn adjust(&mut self, cache: &BlockCache) {
        // The arena may return memory to the system between the looks.
        let before = cache.arena().committed_bytes();
        // Without `/proc`, the shares of the plan are all there is.
        let Some(resident) = forebay_base::memory::rss_bytes() else { return };
        let wanted = self.look(resident, before.max(cache.arena().committed_bytes()));
        let is_short = cache.withhold(wanted) < wanted;
        if is_short && !self.is_short {
            tracing::warn!(
                wanted_bytes = wanted,
                other_bytes = self.other_bytes,
                "the process may exceed --memory: blocks cannot give way to all that it uses \
                 beside them; give it more memory, or fewer mounts and threads"
            );
        }
        self.is_short = is_short;
        self.looks_to_release = self.looks_to_release.saturating_sub(1);
        if is_short && self.looks_to_release == 0 {
            forebay_base::memory::return_free_memory();
            self.looks_to_release = LOOKS_PER_RELEASE;
        }
    }

    /// The bytes to withhold, if the process has `resident` bytes and blocks have `committed`.
    fn look(&mut self, resident: u64, committed: u64) -> u64 {
        let slowest = self.other_bytes - self.other_bytes / FALL_SHARE;
        self.other_bytes = resident.saturating_sub(committed).max(slowest);
        self.other_bytes.saturating_sub(self.share_bytes).next_multiple_of(self.step_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_beyond_the_shares_is_withheld_from_blocks_until_it_is_free() {
        let plan = MemoryPlan::new(Some(256 << 20), Some(4)).unwrap();
        let mut watch = MemoryWatch::new(&plan);
        let shares = plan.total_bytes - plan.arena_bytes - plan.headroom_bytes();
        let blocks = plan.arena_bytes / 2;
        assert_eq!(watch.look(shares + blocks, blocks), 0);
        // Others use 10 MB more than their shares.
        let withheld = watch.look(shares + 10_000_000 + blocks, blocks);
        assert_eq!(withheld, 10 << 20);
        // Then the whole process stays below the limit.
        let most = plan.arena_bytes - withheld + shares + 10_000_000;
        assert!(most + plan.headroom_bytes() <= plan.total_bytes + STEP_BYTES);
        // More committed memory does not make others smaller at once, and does in the end.
        assert!(watch.look(shares, blocks) > 0);
        assert!((0..1000).any(|_| watch.look(shares, blocks) == 0));
    }
}
