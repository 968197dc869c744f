//! The interface between a directory and the object that stores it.

use forebay_base::counters::Counter;

use super::{AidShare, Pace};
use crate::Result;
use crate::format::ZapBlock;
use crate::wait::Wait;

/// Counts of a fat directory that change with its leaves, not with its inline content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZapCounts {
    /// Number of entries.
    pub(crate) entries: u64,
    /// Those of them in buffer pages.
    pub(crate) buffered: u64,
}

/// Result of a leaf lookup.
pub(crate) enum LeafLookup<R, T> {
    /// The leaf is in memory.
    Resident(R),
    /// The object has no such block.
    Hole,
    /// The leaf is not in memory, or it is not known whether it exists. Fetch this without holding
    /// locks.
    NotResident(T),
}

/// What [`LeafStore::prefetch`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefetched {
    /// So many of the blocks, from the first on. More reads would have queued.
    pub(crate) taken: usize,
    /// How many of these were not resident, or not known to be.
    pub(crate) not_resident: usize,
}

/// How a filter block is opened for changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilterOpening {
    /// Seed of the directory, for a new block.
    pub(crate) seed: u64,
    /// Whether the block is damaged: an empty one replaces it.
    pub(crate) replaces: bool,
    /// Whether it is read if it is not in memory. Otherwise the leaf changes without it, which
    /// makes the filter of the leaf void.
    pub(crate) is_needed: bool,
}

/// The object of a directory: inline content, leaves, filter blocks and buffer pages.
///
/// "Leaf" below stands for leaf and buffer page, unless it says otherwise.
///
/// Only [`fetch`](Self::fetch) reads leaves from a device. All other methods are called under the
/// directory's lock; [`with_leaf`](Self::with_leaf) is called without the lock too. Changes of a
/// directory come in the order of their txgs.
///
/// A change may fail, for example for lack of memory. But once a change of a leaf or of the inline
/// content has succeeded in a transaction, further changes of the same leaf or of the inline
/// content do not fail.
pub(crate) trait LeafStore {
    /// A transaction.
    type Tx;
    /// Identifies a block to fetch.
    type Ticket;
    /// A fetched block. It is usable until dropped, even if the cache does not keep it.
    type Fetched;

    /// Name of the directory, for error messages.
    fn describe(&self) -> String;

    /// Whether the methods that get this transaction may wait.
    fn wait_of(tx: &Self::Tx) -> Wait;

    /// A copy of the inline content. An empty directory has none.
    fn inline(&self, wait: Wait) -> Result<Vec<u8>>;

    /// Maximum bytes of inline content beside the attributes.
    fn inline_capacity(&self, tx: &Self::Tx) -> Result<usize>;

    /// A random number: the seed of the name hash for a new directory.
    fn seed(&self) -> u64;

    /// Replaces the inline content.
    fn set_inline(&self, tx: &Self::Tx, content: &[u8]) -> Result<()>;

    /// Sets the counts, which override those in the inline content. For fat directories, after the
    /// change of a leaf in this transaction.
    fn set_counts(&self, tx: &Self::Tx, counts: ZapCounts);

    /// Calls `f` with a leaf, in stored form or as the last [`with_leaf_mut`](Self::with_leaf_mut)
    /// left it. Searches `fetched` if the cache does not have it.
    fn with_leaf<R>(
        &self,
        id: ZapBlock,
        fetched: &[Self::Fetched],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<LeafLookup<R, Self::Ticket>>;

    /// Calls `f` with a leaf to change in this transaction. The buffer has `ZAP_LEAF_BYTES` bytes,
    /// a page's `ZAP_PAGE_BYTES`; the first time it holds the stored leaf followed by zeros. `pack`
    /// turns it into stored form. If the record size of the object is wrong, the buffer may have
    /// another length, and the leaf is reported as damaged.
    ///
    /// With `filter`, the filter block of a leaf is opened for this transaction too, see
    /// [`open_filter`](Self::open_filter).
    fn with_leaf_mut<R>(
        &self,
        tx: &Self::Tx,
        id: ZapBlock,
        filter: Option<FilterOpening>,
        fetched: &[Self::Fetched],
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<LeafLookup<R, Self::Ticket>>;

    /// Notes that this transaction has changed a leaf only to add names that were buffered. So
    /// nobody is likely to use it soon. Any other change of the leaf in the same txg undoes this.
    fn note_moved(&self, tx: &Self::Tx, id: u64);

    /// Creates a leaf: `f` gets a buffer of as many zeros as [`with_leaf_mut`](Self::with_leaf_mut)
    /// would. Readers see neither the leaf
    /// before `f` returns nor a leaf half changed by [`with_leaf_mut`](Self::with_leaf_mut).
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the leaf exists, which means that the depth of
    /// another leaf is wrong. The existing leaf is unchanged.
    fn new_leaf<R>(&self, tx: &Self::Tx, id: ZapBlock, f: impl FnOnce(&mut [u8]) -> R)
    -> Result<R>;

    /// Frees a leaf.
    fn free_leaf(&self, tx: &Self::Tx, id: ZapBlock) -> Result<()>;

    /// Opens the filter block of a leaf in this transaction, whose sync will rewrite the slots of
    /// the leaves that the txg has changed. Creates the block if need be.
    fn open_filter(
        &self,
        tx: &Self::Tx,
        leaf: u64,
        filter: FilterOpening,
        fetched: &[Self::Fetched],
    ) -> Result<LeafLookup<(), Self::Ticket>>;

    /// Opens the filter block with this number, for the filters of leaves that the txg has changed,
    /// and adds filters of other leaves that are in memory and have none. Does nothing if no leaf
    /// of the block is in memory, or if it would have to wait. `seed` is that of the directory.
    fn make_filters(&self, tx: &Self::Tx, index: u64, seed: u64) -> Result<()>;

    /// Frees all filter blocks and buffer pages.
    fn free_aside(&self, tx: &Self::Tx) -> Result<()>;

    /// The block that a ticket leads to.
    fn block_of(ticket: &Self::Ticket) -> ZapBlock;

    /// The txg that wrote the leaf that a ticket leads to. `None` if the ticket is for an indirect
    /// block.
    fn txg_of(ticket: &Self::Ticket) -> Option<u64>;

    /// The txg that wrote a leaf. `None` if it is not known, or a later txg has changed the leaf.
    fn stored_txg(&self, id: u64) -> Option<u64>;

    /// A directory with so many leaves gets filters, and names may be buffered.
    fn aided_leaves(&self) -> u64;

    /// Whether new names may be buffered.
    fn may_buffer(&self) -> bool;

    /// A share of memory for so many bytes of filters and buffer pages, if there is as much.
    fn take_share(&self, bytes: u64) -> Option<AidShare>;

    /// The sum of the shares of memory that directories have taken.
    fn shared_bytes(&self) -> u64;

    /// Free memory of the cache: so many bytes can be read ahead without an eviction.
    fn free_bytes(&self) -> u64;

    /// Whether there is enough space to merge leaves in this transaction, beside a change of its
    /// own.
    fn may_merge(&self, tx: &Self::Tx) -> bool;

    /// Whether a change of a leaf may open its filter block too. If not, the filter is void, and
    /// the transaction needs less space.
    fn may_open_filter(&self, tx: &Self::Tx) -> bool;

    /// Asks for [`start_merge`](super::Zap::start_merge) on another thread, until
    /// [`end_merge_request`](super::Zap::end_merge_request).
    fn request_merge(&self);

    /// Asks to move all buffered names on another thread, as soon as no more come. Until
    /// [`drain_step`](super::Zap::drain_step) returns [`DrainStep::Ended`](super::DrainStep).
    fn request_drain(&self);

    /// Delays a create as long as the directory's change buffer demands.
    ///
    /// # Errors
    /// [`WouldBlock`](crate::ErrorKind::WouldBlock) if it would wait and must not.
    fn slow_down(&self, pace: &Pace, wait: Wait) -> Result<()>;

    /// The time, for pauses.
    fn now_ns(&self) -> u64;

    /// Adds to a counter of [`ZapCounters`](super::ZapCounters).
    fn count(&self, counter: Counter, amount: u64);

    /// Counts that an operation waited for a block for so long.
    fn count_wait(&self, block: ZapBlock, ns: u64);

    /// Reads a block that was not resident.
    fn fetch(&self, ticket: Self::Ticket, wait: Wait) -> Result<Self::Fetched>;

    /// Prefetches blocks in this order, as far as they exist, until more reads would queue before
    /// those that somebody waits for. Reads so many, `least`, in any case.
    fn prefetch(&self, ids: &[ZapBlock], least: usize) -> Prefetched;
}
