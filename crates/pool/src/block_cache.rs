//! The block cache and the arena for the memory of blocks. Several pools can share one cache.
//!
//! A key identifies content permanently (see [`block_key`](crate::block_key)), so a cached block is
//! never stale.
//!
//! # The bound
//!
//! One bound covers the cached blocks, the structures of the cache, the indexes of L2 devices, and
//! dirty bytes, which [`BlockCache::add_dirty`] reports. Free memory of the arena does not count,
//! because memory freed by evictions would then take capacity from the cache. The arena has a limit
//! of its own, a little higher, for buffers of I/O in flight and for copies that are being written.
//! It returns free memory to the system when it comes near that limit.
//!
//! When the arena reaches its limit, the cache *cedes* a share of its bound for each failed
//! allocation, and the allocation waits for memory. The cache takes the share back once enough
//! memory is free.
//!
//! A program that limits the whole process sets the arena's limit
//! ([`BlockCacheOptions::memory_bytes`]) and [withholds](BlockCache::withhold) from it what the
//! rest of the process uses beyond its share. The cache then gives up the same share of its bound.
//!
//! # Locking
//!
//! `block-cache-pressure`, a leaf lock, is taken only when memory has run out.

use std::time::Duration;

use crossbeam_utils::CachePadded;
use forebay_base::arena::{AllocError, Arena, ArenaConfig, Buffer, HugePages};
use forebay_base::clock::Clock;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex};
use forebay_cache::{Cache, OwnedRef, SecondaryCache};

use crate::block_key::BlockKey;
use crate::error::{Error, ErrorKind, Result};
use crate::l2::L2Router;

/// Memory beyond the bound and a quarter of it, for I/O in flight.
const MEMORY_MARGIN_BYTES: u64 = 64 << 20;
/// A failed allocation makes the cache cede this fraction of its bound.
const CEDED_SHARE: u64 = 64;
/// The cache takes ceded memory back only while this fraction of its bound stays free.
const SPARE_SHARE: u64 = 16;
/// At most this fraction of the bound is withheld, and of the arena's margin beyond 125% of it.
const WITHHELD_MAX_SHARE: u64 = 4;
/// How often, and how long each time, an allocation waits for memory before it fails.
const MEMORY_WAITS: u32 = 20;
const MEMORY_WAIT: Duration = Duration::from_millis(5);

/// Default correlated-reference window. A sequential reader reads a record in several pieces, and a
/// prefetched block is read soon after; neither counts as reuse.
const WINDOW_PERMILLE: &str = "100";
/// Default wait for capacity. A block that is handed out uncached is read again soon, which costs
/// more than a short wait for blocks that are being written.
const OVERFLOW_WAIT_MS: &str = "200";

/// A pinned block. It stays in memory until the reference is dropped.
pub(crate) type BlockRef = OwnedRef<BlockKey, Buffer>;

/// Options of a [`BlockCache`].
#[derive(Clone, Default)]
pub struct BlockCacheOptions {
    /// The bound in bytes: blocks, structures of the cache, and dirty data.
    pub bytes: u64,
    /// The limit of the arena in bytes: blocks, I/O in flight, and copies being written. By default
    /// the bound, a quarter of it, and 64 MiB. Never less than the bound and a quarter of it.
    pub memory_bytes: Option<u64>,
    /// When blocks lie in huge pages.
    pub huge_pages: HugePages,
    /// Tunables of the cache as pairs of name and value, see `docs/tunables.md`.
    pub tunables: Vec<(String, String)>,
    /// Whether the cache is one LRU list, for comparisons. See
    /// [`plain_lru`](forebay_cache::Builder::plain_lru).
    #[cfg(feature = "testing")]
    pub plain_lru: bool,
    /// Clock for timeouts; the system clock by default.
    pub clock: Option<Arc<dyn Clock>>,
    /// Seed of the cache's hash; random by default.
    pub seed: Option<u64>,
}

/// A cache of blocks, and the arena of their memory. Pools share it through an `Arc`.
pub struct BlockCache {
    cache: Cache<BlockKey, Buffer>,
    arena: Arc<Arena>,
    l2: Arc<L2Router>,
    bound: u64,
    /// Limit of the arena while nothing is withheld.
    memory_bytes: u64,
    accounts: Arc<CachePadded<CacheAccounts>>,
    pressure: Mutex<()>,
    relief: Condvar,
}

/// Bytes that count against the bound beside blocks.
#[derive(Default)]
struct CacheAccounts {
    dirty_bytes: AtomicU64,
    /// Bytes beside blocks, such as the rings of a trace.
    other_bytes: AtomicU64,
    /// Bytes of the bound that the cache has ceded to failed allocations.
    ceded_bytes: AtomicU64,
    /// Bytes of the arena's limit that are withheld.
    withheld_bytes: AtomicU64,
}

impl BlockCache {
    /// Builds the cache and starts its threads.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the bound is too small or a tunable is wrong,
    /// [`ErrorKind::NoMemory`] if the system refuses memory or a thread.
    pub fn new(options: BlockCacheOptions) -> Result<Arc<Self>> {
        let least_bytes = options.bytes + options.bytes / 4;
        let limit_bytes = (options.memory_bytes)
            .map_or(least_bytes + MEMORY_MARGIN_BYTES, |wanted| wanted.max(least_bytes));
        let config = ArenaConfig { limit_bytes, huge_pages: options.huge_pages };
        let no_memory = |text: String| Error::new(ErrorKind::NoMemory, text);
        let arena = Arena::new(config).map_err(|error| {
            no_memory(format!(
                "cannot reserve address space for a block cache of {} bytes",
                options.bytes
            ))
            .because(error)
        })?;
        let accounts = Arc::new(CachePadded::new(CacheAccounts::default()));
        let (counted, memory) = (Arc::clone(&accounts), Arc::clone(&arena));
        let (bound, spare_bytes) = (options.bytes, options.bytes / SPARE_SHARE);
        let l2 = L2Router::new();
        let counted_l2 = Arc::clone(&l2);
        let mut builder = Cache::builder()
            .bound(options.bytes)
            .overhead(move || {
                let free_bytes = memory.limit_bytes().saturating_sub(memory.used_bytes());
                let withheld = counted.withheld_from(bound);
                let most = bound.saturating_sub(withheld);
                let others = counted.total(free_bytes.saturating_sub(spare_bytes), most);
                // The indexes of L2 devices are in the memory for which bytes are withheld.
                others.saturating_add(counted_l2.memory_bytes().max(withheld))
            })
            .secondary_cache(Arc::clone(&l2) as Arc<dyn SecondaryCache<BlockKey, Buffer>>)
            .weigher(|_, block: &Buffer| block.footprint() as u64)
            .tunable("correlated_window_permille", WINDOW_PERMILLE)
            .tunable("overflow_wait_ms", OVERFLOW_WAIT_MS);
        #[cfg(feature = "testing")]
        if options.plain_lru {
            builder = builder.plain_lru();
        }
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
            Error::new(kind, format!("cannot build the block cache: {error}")).because(error)
        })?;
        let pressure = Mutex::named("block-cache-pressure", ());
        let (bound, relief) = (options.bytes, Condvar::new());
        let memory_bytes = limit_bytes;
        Ok(Arc::new(Self { cache, arena, l2, bound, memory_bytes, accounts, pressure, relief }))
    }

    /// The underlying cache.
    #[inline]
    pub fn cache(&self) -> &Cache<BlockKey, Buffer> {
        &self.cache
    }

    /// The arena of the blocks' memory.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// The router to which pools attach their L2 devices.
    pub(crate) fn l2(&self) -> &Arc<L2Router> {
        &self.l2
    }

    /// Bytes of RAM for the indexes of all L2 devices. They count against the bound.
    pub fn l2_memory_bytes(&self) -> u64 {
        self.l2.memory_bytes()
    }

    /// The bound in bytes.
    pub fn bound_bytes(&self) -> u64 {
        self.bound
    }

    /// Withholds `bytes` of the arena's limit, because the rest of the process uses them. The cache
    /// gives up the same share of its bound, but keeps three quarters: pools need them for dirty
    /// data. After that I/O in flight gives up a quarter of its margin. The number replaces the one
    /// of the last call. Free memory is returned at once, the rest as blocks are evicted. Returns
    /// the number of bytes that are withheld.
    pub fn withhold(&self, bytes: u64) -> u64 {
        let margin_bytes = self.memory_bytes - (self.bound + self.bound / 4);
        let from_margin = margin_bytes / WITHHELD_MAX_SHARE;
        let bytes = bytes.min(self.bound / WITHHELD_MAX_SHARE / 4 * 5 + from_margin);
        if self.accounts.withheld_bytes.swap(bytes, Ordering::Relaxed) != bytes {
            self.arena.set_limit(self.memory_bytes - bytes);
            // Resizing to the same bound makes the reclaimer evaluate it again.
            self.cache.resize(self.bound);
        }
        bytes
    }

    /// Allocates `len` bytes of unspecified content. If there is no memory, evicts blocks and waits
    /// for a bounded time: never call it in the callback of a request.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`] if no memory became free in time.
    #[inline]
    pub(crate) fn alloc(&self, len: usize) -> Result<Buffer> {
        match self.arena.alloc(len) {
            Ok(buffer) => Ok(buffer),
            Err(error) => self.alloc_slow(len, error),
        }
    }

    /// Like [`alloc`](Self::alloc), but the buffer is filled with zeros.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub(crate) fn alloc_zeroed(&self, len: usize) -> Result<Buffer> {
        let mut buffer = self.alloc(len)?;
        buffer.zero();
        Ok(buffer)
    }

    /// Like [`alloc`](Self::alloc), but never waits.
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
        // Cede more than needed: other threads will wait too, and the evicted blocks may have
        // another size.
        let ceded = (4 * len as u64).max(self.bound / CEDED_SHARE);
        let mut pressure = self.pressure.lock();
        for _ in 0..MEMORY_WAITS {
            self.accounts.cede(ceded, self.bound);
            // Resizing to the same bound makes the reclaimer evaluate it again.
            self.cache.resize(self.bound);
            self.relief.wait_timeout(&mut pressure, MEMORY_WAIT);
            self.arena.purge();
            if let Ok(buffer) = self.arena.alloc(len) {
                return Some(buffer);
            }
        }
        None
    }

    /// Adds dirty bytes. They reduce the capacity for blocks.
    #[inline]
    pub(crate) fn add_dirty(&self, bytes: u64) {
        self.accounts.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts dirty bytes.
    #[inline]
    pub(crate) fn sub_dirty(&self, bytes: u64) {
        let before = self.accounts.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "{bytes} bytes are no longer dirty, of {before}");
    }

    /// Adds bytes of memory that are neither blocks nor dirty. They reduce the capacity for blocks.
    pub(crate) fn add_others(&self, bytes: u64) {
        self.accounts.other_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Resizing to the same bound makes the reclaimer evaluate it again.
        self.cache.resize(self.bound);
    }

    /// Subtracts bytes of [`add_others`](Self::add_others).
    pub(crate) fn sub_others(&self, bytes: u64) {
        self.accounts.other_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that count against the bound beside blocks and dirty data: those of open traces.
    pub fn other_bytes(&self) -> u64 {
        self.accounts.other_bytes.load(Ordering::Relaxed)
    }

    /// Dirty bytes of all pools.
    pub fn dirty_bytes(&self) -> u64 {
        self.accounts.dirty_bytes.load(Ordering::Relaxed)
    }
}

impl CacheAccounts {
    /// Bytes that count against the bound. `free_bytes` is the free memory of the arena beyond the
    /// part that must stay free. At most `most_ceded` bytes count as ceded.
    fn total(&self, free_bytes: u64, most_ceded: u64) -> u64 {
        let mut ceded = self.ceded_bytes.load(Ordering::Relaxed).min(most_ceded);
        if ceded > 0 && free_bytes >= ceded {
            self.ceded_bytes.store(0, Ordering::Relaxed);
            ceded = 0;
        }
        let others = self.other_bytes.load(Ordering::Relaxed);
        self.dirty_bytes.load(Ordering::Relaxed).saturating_add(others).saturating_add(ceded)
    }

    /// The part of `bound` that is withheld. The arena may exceed the bound by a quarter.
    fn withheld_from(&self, bound: u64) -> u64 {
        let withheld = self.withheld_bytes.load(Ordering::Relaxed) / 5 * 4;
        withheld.min(bound / WITHHELD_MAX_SHARE)
    }

    fn cede(&self, bytes: u64, most: u64) {
        let before = self.ceded_bytes.load(Ordering::Relaxed);
        // Called under `block-cache-pressure`. A concurrent update by `total` may be lost; `total`
        // repeats it.
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
