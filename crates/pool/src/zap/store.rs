//! What a directory needs of the object that holds it.

use crate::Result;

/// What became of a look at a leaf.
pub(crate) enum LeafLookup<R, T> {
    /// The leaf was there.
    Resident(R),
    /// The object has no such block.
    Hole,
    /// It is not in memory, or it is not known yet whether it exists. Fetch this without holding locks.
    NotResident(T),
}

/// The object of a directory: inline content, and leaves by block number.
///
/// Nothing but [`fetch`](Self::fetch) may wait for a device: everything else is called under the directory's
/// lock, and [`with_leaf`](Self::with_leaf) without it too. Changes to one directory come in the order of their transaction groups.
///
/// A change may fail, for want of memory say, but not after another of the same leaf, or of inline content,
/// succeeded in that transaction.
pub(crate) trait LeafStore {
    /// A transaction.
    type Tx;
    /// Says what to fetch.
    type Ticket;
    /// What was fetched: keeps it usable until dropped, even if no cache wants it.
    type Fetched;

    /// Names the directory, for errors.
    fn describe(&self) -> String;

    /// A copy of the inline content. None at all is an empty directory.
    fn inline(&self) -> Result<Vec<u8>>;

    /// How long inline content can be beside the attributes.
    fn inline_capacity(&self) -> Result<usize>;

    /// A random number: seed of the names' hash for a directory that has no content yet.
    fn seed(&self) -> u64;

    /// Sets all inline content.
    fn set_inline(&self, tx: &Self::Tx, content: &[u8]) -> Result<()>;

    /// Says how many entries the directory has, in place of what the inline content says, which is a fat directory's. A
    /// leaf was changed in this transaction.
    fn set_entries(&self, tx: &Self::Tx, entries: u64);

    /// Shows a leaf, as stored or as it was left by [`with_leaf_mut`](Self::with_leaf_mut). `fetched` is looked
    /// at where the cache has nothing.
    fn with_leaf<R>(
        &self,
        id: u64,
        fetched: &[Self::Fetched],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<LeafLookup<R, Self::Ticket>>;

    /// Lets a leaf be changed in this transaction: a buffer of `ZAP_LEAF_BYTES`, on the first time the leaf as it
    /// was stored and zeros. `pack` turns it into what is to be stored. An object whose records have another
    /// size than `ZAP_LEAF_BYTES` may show another buffer, and is told to be damaged.
    fn with_leaf_mut<R>(
        &self,
        tx: &Self::Tx,
        id: u64,
        fetched: &[Self::Fetched],
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<LeafLookup<R, Self::Ticket>>;

    /// Makes a leaf where there is none: `f` gets a buffer of `ZAP_LEAF_BYTES` zeros. Nobody sees the leaf before
    /// `f` is done, nor a leaf half changed by [`with_leaf_mut`](Self::with_leaf_mut).
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if there is one, which stays as it is: then another leaf does not say the truth about its depth.
    fn new_leaf<R>(&self, tx: &Self::Tx, id: u64, f: impl FnOnce(&mut [u8]) -> R) -> Result<R>;

    /// Makes a hole where a leaf is.
    fn free_leaf(&self, tx: &Self::Tx, id: u64) -> Result<()>;

    /// Reads what was not resident. Waits.
    fn fetch(&self, ticket: Self::Ticket) -> Result<Self::Fetched>;

    /// Whether what was fetched is a leaf, and not what says where leaves are.
    fn has_leaf(_fetched: &Self::Fetched) -> bool {
        true
    }

    /// These leaves are likely to be wanted soon, if they exist. Returns how many of them were not resident, or cannot be told to be in memory.
    fn prefetch(&self, _ids: &[u64]) -> usize {
        0
    }
}
