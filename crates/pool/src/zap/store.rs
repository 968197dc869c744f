//! The interface between a directory and the object that stores it.

use crate::Result;
use crate::wait::Wait;

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

/// The object of a directory: inline content, and leaves by block number.
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

    /// Sets the entry count, which overrides the count in the inline content. For fat directories,
    /// after the change of a leaf in this transaction.
    fn set_entries(&self, tx: &Self::Tx, entries: u64);

    /// Calls `f` with a leaf, in stored form or as the last [`with_leaf_mut`](Self::with_leaf_mut)
    /// left it. Searches `fetched` if the cache does not have it.
    fn with_leaf<R>(
        &self,
        id: u64,
        fetched: &[Self::Fetched],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<LeafLookup<R, Self::Ticket>>;

    /// Calls `f` with a leaf to change in this transaction. The buffer has `ZAP_LEAF_BYTES` bytes;
    /// the first time it holds the stored leaf followed by zeros. `pack` turns it into stored form.
    /// If the record size of the object is wrong, the buffer may have another length, and the leaf
    /// is reported as damaged.
    fn with_leaf_mut<R>(
        &self,
        tx: &Self::Tx,
        id: u64,
        fetched: &[Self::Fetched],
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<LeafLookup<R, Self::Ticket>>;

    /// Creates a leaf: `f` gets a buffer of `ZAP_LEAF_BYTES` zeros. Readers see neither the leaf
    /// before `f` returns nor a leaf half changed by [`with_leaf_mut`](Self::with_leaf_mut).
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the leaf exists, which means that the depth of
    /// another leaf is wrong. The existing leaf is unchanged.
    fn new_leaf<R>(&self, tx: &Self::Tx, id: u64, f: impl FnOnce(&mut [u8]) -> R) -> Result<R>;

    /// Frees a leaf.
    fn free_leaf(&self, tx: &Self::Tx, id: u64) -> Result<()>;

    /// Reads a block that was not resident.
    fn fetch(&self, ticket: Self::Ticket, wait: Wait) -> Result<Self::Fetched>;

    /// Whether the fetched block is a leaf, not an indirect block.
    fn has_leaf(_fetched: &Self::Fetched) -> bool {
        true
    }

    /// Prefetches leaves, as far as they exist. Returns how many of them were not resident or not
    /// known to be.
    fn prefetch(&self, _ids: &[u64]) -> usize {
        0
    }
}
