//! The cache of blocks, which several pools can share, and the memory that blocks lie in.
//!
//! A key names content for good, see [`block_key`](crate::block_key), so a cached block is never stale.
//!
//! # The bound
//!
//! One bound covers what is cached, the cache's own structures, the indexes of L2 devices, and dirty bytes, which are told to
//! it by [`BlockCache::add_dirty`]. Free memory of the arena does not count: the arena has a limit
//! of its own, a little higher, for buffers of I/O in flight and copies that are being written, and
//! gives back what is free when it nears that. If it counted, room would be taken from blocks for
//! what evicted blocks have left.
//!
//! If the arena's limit is reached all the same, the cache *cedes* a share of its bound to each
//! allocation that fails, which waits until it has the memory; the cache has it all back once so
//! much is free that it would not be missed.
//!
//! Locking: `block-cache-pressure`, a leaf lock, only when memory has run out.

use std::time::Duration;

use crossbeam_utils::CachePadded;
use forebay_base::arena::{AllocError, Arena, ArenaConfig, Buffer, HugePages};
use forebay_base::clock::Clock;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_cache::{Cache, OwnedRef, SecondLevel};

use crate::block_key::BlockKey;
use crate::error::{Error, ErrorKind, Result};
use crate::l2::L2Router;

/// Beyond the bound and a quarter of it, for I/O in flight.
const MEMORY_MARGIN_BYTES: u64 = 64 << 20;
/// An allocation that finds no memory has the cache give up this part of its bound.
const CEDED_SHARE: u64 = 64;
/// Memory that is to be free when the cache takes back what it gave up, as a part of the bound.
const SPARE_SHARE: u64 = 16;
/// How often, and how long each time, an allocation waits for memory before it fails.
const MEMORY_WAITS: u32 = 20;
const MEMORY_WAIT: Duration = Duration::from_millis(5);

/// The correlated-reference window, unless the options say otherwise: a record is read in several pieces by whoever reads a file
/// from its beginning to its end, and a block that was read ahead is looked for soon; neither is reuse.
const WINDOW_PERMILLE: &str = "100";

/// A block, pinned: it stays while this lives.
pub(crate) type BlockRef = OwnedRef<BlockKey, Buffer>;

/// How a [`BlockCache`] is to be.
#[derive(Clone, Default)]
pub struct BlockCacheOptions {
    /// The bound: blocks, what the cache needs to know of them, dirty data.
    pub bytes: u64,
    /// When blocks lie in huge pages.
    pub huge_pages: HugePages,
    /// Tunables of the cache by name, see `docs/tunables.md`.
    pub tunables: Vec<(String, String)>,
    /// The clock by which waits for room are measured; the system's by default.
    pub clock: Option<Arc<dyn Clock>>,
    /// The seed of the cache's hash; from the system by default.
    pub seed: Option<u64>,
}

/// A cache of blocks, and the arena of their memory. Pools share it by `Arc`.
pub struct BlockCache {
    cache: Cache<BlockKey, Buffer>,
    arena: Arc<Arena>,
    l2: Arc<L2Router>,
    bound: u64,
    accounts: Arc<CachePadded<CacheAccounts>>,
    pressure: Mutex<()>,
    relief: Condvar,
}

/// What counts against the bound beside blocks.
#[derive(Default)]
struct CacheAccounts {
    dirty_bytes: AtomicU64,
    /// What the cache has given up for allocations that found no memory.
    ceded_bytes: AtomicU64,
}

impl BlockCache {
    /// # Errors
    /// [`ErrorKind::Invalid`] if the bound is too small or a tunable is wrong,
    /// [`ErrorKind::NoMemory`] if the system gives no memory or no thread.
    pub fn new(options: BlockCacheOptions) -> Result<Arc<Self>> {
        let limit_bytes = options.bytes + options.bytes / 4 + MEMORY_MARGIN_BYTES;
        let config = ArenaConfig { limit_bytes, huge_pages: options.huge_pages };
        let no_memory = |text: String| Error::new(ErrorKind::NoMemory, text);
        let arena = Arena::new(config).map_err(|error| {
            no_memory(format!("no address space for a cache of {} bytes", options.bytes))
                .because(error)
        })?;
        let accounts = Arc::new(CachePadded::new(CacheAccounts::default()));
        let (counted, memory) = (Arc::clone(&accounts), Arc::clone(&arena));
        let spare_bytes = options.bytes / SPARE_SHARE;
        let l2 = L2Router::new();
        let counted_l2 = Arc::clone(&l2);
        let mut builder = Cache::builder()
            .bound(options.bytes)
            .overhead(move || {
                let free_bytes = memory.limit_bytes().saturating_sub(memory.used_bytes());
                let others = counted.total(free_bytes.saturating_sub(spare_bytes));
                others.saturating_add(counted_l2.memory_bytes())
            })
            .second_level(Arc::clone(&l2) as Arc<dyn SecondLevel<BlockKey, Buffer>>)
            .weigher(|_, block: &Buffer| block.footprint() as u64)
            .tunable("correlated_window_permille", WINDOW_PERMILLE);
        for (name, value) in &options.tunables {
            builder = builder.tunable(name, value);
        }
        if let Some(clock) = options.clock {
            builder = builder.clock(clock);
        }
        if let Some(seed) = options.seed {
            builder = builder.seed(seed);
        }
        let cache = builder.build().map_err(|error| {
            let kind = match &error {
                forebay_cache::BuildError::Memory(_) | forebay_cache::BuildError::Thread(_) => {
                    ErrorKind::NoMemory
                }
                _ => ErrorKind::Invalid,
            };
            Error::new(kind, format!("cannot build the cache of blocks: {error}")).because(error)
        })?;
        let pressure = Mutex::named("block-cache-pressure", ());
        let (bound, relief) = (options.bytes, Condvar::new());
        Ok(Arc::new(Self { cache, arena, l2, bound, accounts, pressure, relief }))
    }

    /// The cache itself.
    #[inline]
    pub fn cache(&self) -> &Cache<BlockKey, Buffer> {
        &self.cache
    }

    /// The memory of blocks.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Where pools attach their L2 devices.
    pub(crate) fn l2(&self) -> &Arc<L2Router> {
        &self.l2
    }

    /// Bytes of RAM that the indexes of all L2 devices take: they count against the bound.
    pub fn l2_memory_bytes(&self) -> u64 {
        self.l2.memory_bytes()
    }

    /// The bound in bytes.
    pub fn bound_bytes(&self) -> u64 {
        self.bound
    }

    /// Memory for `len` bytes, of unspecified content. If there is none, has blocks evicted and
    /// waits a little: never call it in a request's callback.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`] if none came free in time.
    #[inline]
    pub(crate) fn alloc(&self, len: usize) -> Result<Buffer> {
        match self.arena.alloc(len) {
            Ok(buffer) => Ok(buffer),
            Err(error) => self.alloc_slow(len, error),
        }
    }

    /// The same, all zeros.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub(crate) fn alloc_zeroed(&self, len: usize) -> Result<Buffer> {
        let mut buffer = self.alloc(len)?;
        buffer.zero();
        Ok(buffer)
    }

    /// As [`alloc`](Self::alloc), but without waiting.
    pub(crate) fn try_alloc(&self, len: usize) -> Result<Buffer> {
        self.arena.alloc(len).map_err(no_memory)
    }

    #[cold]
    fn alloc_slow(&self, len: usize, error: AllocError) -> Result<Buffer> {
        if !matches!(error, AllocError::Exhausted { .. }) || forebay_io::in_callback() {
            return Err(no_memory(error));
        }
        self.wait_for_memory(len).ok_or_else(|| no_memory(error))
    }

    fn wait_for_memory(&self, len: usize) -> Option<Buffer> {
        // More than is needed: others will stand here too, and what is evicted may be of another
        // size.
        let ceded = (4 * len as u64).max(self.bound / CEDED_SHARE);
        let mut pressure = self.pressure.lock();
        for _ in 0..MEMORY_WAITS {
            self.accounts.cede(ceded, self.bound);
            // To the same bound: the reclaimer looks anew at what counts against it.
            self.cache.resize(self.bound);
            self.relief.wait_timeout(&mut pressure, MEMORY_WAIT);
            self.arena.purge();
            if let Ok(buffer) = self.arena.alloc(len) {
                return Some(buffer);
            }
        }
        None
    }

    /// Counts bytes that are dirty: they leave less room for blocks.
    #[inline]
    pub(crate) fn add_dirty(&self, bytes: u64) {
        self.accounts.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that were dirty.
    #[inline]
    pub(crate) fn sub_dirty(&self, bytes: u64) {
        let before = self.accounts.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "more was cleaned than was dirty");
    }

    /// Dirty bytes of all pools.
    pub fn dirty_bytes(&self) -> u64 {
        self.accounts.dirty_bytes.load(Ordering::Relaxed)
    }
}

impl CacheAccounts {
    /// What counts against the bound; `free_bytes` are free in the arena, beyond what is spare.
    fn total(&self, free_bytes: u64) -> u64 {
        let mut ceded = self.ceded_bytes.load(Ordering::Relaxed);
        if ceded > 0 && free_bytes >= ceded {
            self.ceded_bytes.store(0, Ordering::Relaxed);
            ceded = 0;
        }
        self.dirty_bytes.load(Ordering::Relaxed).saturating_add(ceded)
    }

    fn cede(&self, bytes: u64, most: u64) {
        let before = self.ceded_bytes.load(Ordering::Relaxed);
        // Under the lock of who waits; what `total` does meanwhile may be lost, and is done again.
        self.ceded_bytes.store(before.saturating_add(bytes).min(most), Ordering::Relaxed);
    }
}

#[cold]
fn no_memory(error: AllocError) -> Error {
    Error::new(ErrorKind::NoMemory, error.to_string()).because(error)
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockCache")
            .field("bound_bytes", &self.bound)
            .field("dirty_bytes", &self.dirty_bytes())
            .field("arena", &self.arena)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests;
