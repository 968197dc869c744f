//! Aligned buffers from size classes, under a hard limit on resident memory.
//!
//! Buffers have 1 byte to [`MAX_LEN`] bytes, without an inline header: 8 KiB take 8 KiB.
//!
//! Structure. Address space is reserved in *regions* (`region`), which are divided into *chunks* of
//! the size of a huge page. A chunk serves one size class (`class`) or is in the *pool* (`pool`).
//! Longer buffers are runs of chunks. Pages are reserved before they are touched (`budget`). Free
//! blocks stay backed for their class. When new pages do not fit below the limit, free pages of any
//! class are released (`reclaim`). Threads keep a few free blocks in *magazines* (`shard`), which
//! are drained before an allocation fails.
//!
//! Invariants
//! * Resident bytes ≤ `committed_bytes` ≤ the limit. After [`Arena::set_limit`] lowers the limit,
//!   this holds again as soon as enough buffers are freed. Chunk headers are outside the limit.
//! * The kernel makes no more memory resident than is committed. Chunks are advised against huge
//!   pages unless they are committed whole, and before a part of them is released.
//! * A page has the size of the system's pages. It is committed whole when a byte of it is
//!   allocated, and released when no live block is on it, unless the process has locked it.
//! * The memory exists until the last handle and the last buffer are dropped (`inner`).
//!
//! Locking: `arena-reclaim`, `arena-shard`, `arena-class` and `arena-pool`, in this order, at most
//! one of each kind. `docs/locking.md` says what each protects.
//!
//! Not done: resizing or splitting buffers, alignment beyond 4 KiB, zeroing, placement by NUMA
//! node.

mod budget;
mod buffer;
mod chunk;
mod class;
mod classes;
mod error;
mod inner;
mod lists;
#[cfg(all(test, forebay_model))]
mod model;
mod pages;
mod pool;
mod reclaim;
mod region;
mod shard;
mod stats;
#[cfg(all(test, not(forebay_model)))]
mod tests;

use std::fmt;
use std::ptr::NonNull;

pub use buffer::Buffer;
pub use error::{AllocError, Error};
pub use stats::{ArenaStats, ClassStats};

use crate::sync::Arc;
use crate::vm::PageSize;
use inner::ArenaInner;

/// The length of the longest buffer, in bytes.
#[cfg(not(forebay_model))]
pub const MAX_LEN: usize = 64 << 20;
/// The length of the longest buffer, in bytes. In the model build a region has one chunk.
#[cfg(forebay_model)]
pub const MAX_LEN: usize = classes::CHUNK_BYTES;

/// When chunks use huge pages, which are committed whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// If the limit is large and a part of it is free, for all chunks of a class except the first.
    #[default]
    Auto,
    /// Never: memory is committed page by page.
    Never,
    /// If a whole huge page fits below the limit.
    Always,
}

/// The configuration of an [`Arena`].
#[derive(Clone, Copy, Debug)]
pub struct ArenaConfig {
    /// The largest number of resident bytes.
    pub limit_bytes: u64,
    /// When to use huge pages.
    pub huge_pages: HugePages,
}

/// A source of [`Buffer`]s under a hard limit.
///
/// ```
/// use forebay_base::arena::{Arena, ArenaConfig, HugePages};
///
/// let config = ArenaConfig { limit_bytes: 16 << 20, huge_pages: HugePages::Auto };
/// let arena = Arena::new(config)?;
/// let mut buffer = arena.alloc(8192)?;
/// buffer.fill(7);
/// assert_eq!(arena.used_bytes(), 8192);
/// drop(arena);
/// assert_eq!(buffer[8191], 7); // buffers outlive the handles of the arena
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Arena {
    inner: NonNull<ArenaInner>,
}

// SAFETY: `ArenaInner` is used through shared references only, and locks what it changes.
unsafe impl Send for Arena {}
// SAFETY: the methods reach `ArenaInner` through shared references only, and it locks what it
// changes.
unsafe impl Sync for Arena {}

impl Arena {
    /// Creates an arena that keeps at most `config.limit_bytes` resident.
    ///
    /// # Errors
    /// If the limit is less than a page, if the system refuses address space, or if the process
    /// locks all new mappings (`mlockall`), so that the arena could not release memory.
    pub fn new(config: ArenaConfig) -> Result<Arc<Self>, Error> {
        // Two per CPU, so that a thread preempted while it holds a shard rarely blocks others.
        let cpus = crate::memory::cpus().next_power_of_two();
        let shards = if cfg!(forebay_model) { 2 } else { 2 * cpus };
        Self::with_shards(config, shards.min(MAX_SHARDS), PageSize::system())
    }

    fn with_shards(config: ArenaConfig, shards: usize, page: PageSize) -> Result<Arc<Self>, Error> {
        let least = page.bytes() as u64;
        if config.limit_bytes < least {
            return Err(Error::LimitTooSmall { limit_bytes: config.limit_bytes, least });
        }
        Ok(Arc::new(Self { inner: ArenaInner::open(&config, shards, page)? }))
    }

    #[inline]
    fn inner(&self) -> &ArenaInner {
        // SAFETY: it exists while a handle exists.
        unsafe { self.inner.as_ref() }
    }

    /// Allocates a buffer of `len` bytes with unspecified content, aligned to 4,096 bytes if `len`
    /// is a multiple of that, and to 512 otherwise.
    ///
    /// # Errors
    /// [`AllocError::Empty`] or [`AllocError::TooLarge`] if `len` is outside `1..=MAX_LEN`,
    /// [`AllocError::Exhausted`] if the limit is reached and no memory is free, and
    /// [`AllocError::Reserve`] if the system refuses address space.
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<Buffer, AllocError> {
        self.inner().alloc(len)
    }

    /// Allocates a buffer of `len` zero bytes.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_zeroed(&self, len: usize) -> Result<Buffer, AllocError> {
        let mut buffer = self.alloc(len)?;
        buffer.zero();
        Ok(buffer)
    }

    /// The limit in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.inner().budget.limit()
    }

    /// Sets the limit to any number of bytes. Releases free memory above it at once, and the rest
    /// when buffers are freed. Until then, allocations use committed memory only. Returns the
    /// committed bytes.
    pub fn set_limit(&self, bytes: u64) -> u64 {
        self.inner().set_limit(bytes);
        self.committed_bytes()
    }

    /// Committed bytes, which may be resident. Costs one load.
    pub fn committed_bytes(&self) -> u64 {
        self.inner().budget.committed()
    }

    /// Bytes of live buffers. Costs two loads per shard.
    pub fn used_bytes(&self) -> u64 {
        self.inner().used()
    }

    /// Committed bytes that no buffer uses. Costs as much as [`used_bytes`](Self::used_bytes).
    pub fn slack_bytes(&self) -> u64 {
        let used = self.used_bytes();
        self.committed_bytes().saturating_sub(used)
    }

    /// Releases all free memory to the system, except memory that the process has locked. Returns
    /// the number of released bytes.
    pub fn purge(&self) -> u64 {
        self.inner().purge()
    }

    /// Statistics. Takes each lock of the arena for a short time, one after another.
    pub fn stats(&self) -> ArenaStats {
        self.inner().stats()
    }
}

/// The largest number of shards. More shards would hold more free blocks without less contention.
const MAX_SHARDS: usize = 64;

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: this is the last handle, and `inner` came from `ArenaInner::open`.
        unsafe { ArenaInner::close(self.inner) };
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("limit_bytes", &self.limit_bytes())
            .field("committed_bytes", &self.committed_bytes())
            .field("used_bytes", &self.used_bytes())
            .finish()
    }
}
