//! Aligned buffers from size classes, under a hard limit.
//!
//! Purpose: memory for blocks of 512 bytes to [`MAX_LEN`], such that what is resident never
//! exceeds a limit and every freed byte serves any other size at once. Buffers have no inline
//! header: 8 KiB take 8 KiB.
//!
//! How it hangs together. Address space comes in *regions* (`region`), cut into *chunks* of
//! the size of a huge page. A chunk serves one size class at a time (`class`) or waits in the
//! *pool* (`pool`); buffers larger than the largest class are runs of whole chunks. Every
//! backed page is accounted for before it is touched (`budget`). Free blocks stay backed, to
//! be used again by their class; when new pages are needed and the limit is near, free pages
//! of any class are released (`reclaim`). Threads keep a few free blocks at hand in
//! *magazines* (`shard`), which are called back before an allocation fails.
//!
//! Invariants
//! * Resident bytes ≤ `committed_bytes` ≤ the limit (after [`Arena::set_limit`] below what is
//!   committed: as soon as buffers are freed). Outside the limit are only the chunks' headers,
//!   well below a thousandth of the memory.
//! * The kernel makes no more resident than was accounted for: chunks are advised against huge
//!   pages unless they are accounted for whole. Releasing a part of a huge chunk first ends
//!   its being huge. (The kernel counts the part as released at once; the physical page may be
//!   split only when memory gets short.)
//! * The size of a page is the system's. A page is committed whole when a byte of it is handed out,
//!   and is given back when no block in use touches it. Pages that the system does not take back,
//!   because the process has locked them meanwhile, stay committed.
//! * The memory exists until the last handle and the last buffer are gone (`inner`).
//!
//! Locks, in the order in which they may be taken, and never two of a kind:
//!
//! | lock | kept how long | protects |
//! |---|---|---|
//! | `arena-reclaim` | a purge, with its system calls | one purger at a time |
//! | `arena-shard` | an allocation or free | magazines and accounts of a share of the threads |
//! | `arena-class` | a batch of blocks | chunks of a size class: lists and headers |
//! | `arena-pool` | a chunk or run; rarely a reservation | chunks in the pool, regions |
//!
//! Deliberately absent: growing or splitting a buffer, alignment beyond 4 KiB, zeroing
//! (the content of a new buffer is unspecified), placement by NUMA node, and giving address
//! space back before the end.

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
use inner::Inner;

/// The longest buffer, in bytes.
#[cfg(not(forebay_model))]
pub const MAX_LEN: usize = 64 << 20;
/// The longest buffer, in bytes: in the model build a region has but one chunk.
#[cfg(forebay_model)]
pub const MAX_LEN: usize = classes::CHUNK_BYTES;

/// When chunks are backed by huge pages, and so committed whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// When the limit is large and a good part of it is free, from the second chunk of a
    /// class on.
    #[default]
    Auto,
    /// Never: memory is committed page by page.
    Never,
    /// Whenever a whole huge page fits below the limit.
    Always,
}

/// How to make an [`Arena`].
#[derive(Clone, Copy, Debug)]
pub struct ArenaConfig {
    /// What may be resident at most, in bytes.
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
/// assert_eq!(buffer[8191], 7); // buffers outlive the arena's handles
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Arena {
    inner: NonNull<Inner>,
}

// SAFETY: `Inner` is used through shared references only, and locks what it changes.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena that keeps at most `config.limit_bytes` resident.
    ///
    /// # Errors
    /// When the limit does not cover a page, the system refuses address space, or the process locks
    /// what it maps (`mlockall`), so that the arena could never give memory back.
    pub fn new(config: ArenaConfig) -> Result<Arc<Self>, Error> {
        // Two a CPU, so that a thread that is preempted inside one is seldom in the way.
        let cpus = crate::memory::cpus().next_power_of_two();
        let shards = if cfg!(forebay_model) { 2 } else { 2 * cpus };
        Self::with_shards(config, shards.min(MAX_SHARDS), PageSize::system())
    }

    fn with_shards(config: ArenaConfig, shards: usize, page: PageSize) -> Result<Arc<Self>, Error> {
        let least = page.bytes() as u64;
        if config.limit_bytes < least {
            return Err(Error::LimitTooSmall { limit_bytes: config.limit_bytes, least });
        }
        Ok(Arc::new(Self { inner: Inner::open(&config, shards, page)? }))
    }

    #[inline]
    fn inner(&self) -> &Inner {
        // SAFETY: it exists while there is a handle.
        unsafe { self.inner.as_ref() }
    }

    /// A buffer of `len` bytes, of unspecified content, aligned to 4,096 bytes (to 512, if
    /// it is not longer than 2,048).
    ///
    /// # Errors
    /// [`AllocError::Empty`] and [`AllocError::TooLarge`] for lengths outside `1..=MAX_LEN`;
    /// [`AllocError::Exhausted`] when the limit is reached and nothing free is left;
    /// [`AllocError::Reserve`] when the system refuses address space.
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<Buffer, AllocError> {
        self.inner().alloc(len)
    }

    /// A buffer of `len` zero bytes.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_zeroed(&self, len: usize) -> Result<Buffer, AllocError> {
        let mut buffer = self.alloc(len)?;
        buffer.zero();
        Ok(buffer)
    }

    /// What may be resident at most, in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.inner().account.limit()
    }

    /// Changes the limit; any number of bytes will do. What exceeds it is released as far as
    /// it is free; the rest follows as buffers are freed, and until then only memory that is
    /// committed already is handed out. Returns what is committed now.
    pub fn set_limit(&self, bytes: u64) -> u64 {
        self.inner().set_limit(bytes);
        self.committed_bytes()
    }

    /// Bytes that may be resident. A single load.
    pub fn committed_bytes(&self) -> u64 {
        self.inner().account.committed()
    }

    /// Bytes of blocks handed out. Two loads for each of a few shards.
    pub fn used_bytes(&self) -> u64 {
        self.inner().used()
    }

    /// Committed and not handed out, in bytes; as cheap as [`used_bytes`](Self::used_bytes).
    pub fn slack_bytes(&self) -> u64 {
        let used = self.used_bytes();
        self.committed_bytes().saturating_sub(used)
    }

    /// Gives all free memory back to the system, but for what the process has locked. Returns how
    /// many bytes.
    pub fn purge(&self) -> u64 {
        self.inner().purge()
    }

    /// The arena's state. Takes every lock for a moment, one at a time.
    pub fn stats(&self) -> ArenaStats {
        self.inner().stats()
    }
}

/// More shards than this would only spread free blocks thinner.
const MAX_SHARDS: usize = 64;

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the last handle is being dropped, and it came from `Inner::open`.
        unsafe { Inner::close(self.inner) };
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
