//! What an object needs of the objset that it belongs to.
//!
//! Objects do not know objsets: an objset opens objects and implements [`NodeOwner`].

use forebay_base::sync::Arc;

use crate::error::Result;
use crate::readahead::ReadAhead;
use crate::store::Store;
use crate::tx::Tx;
use crate::wait::Wait;

use super::node::Node;

/// Access to blocks, shared by the objects of an owner. Each object refers to it directly, so that
/// a read makes no dynamic call. The alignment keeps the reference count, which changes whenever an
/// object is opened, out of the cache lines that reads use.
#[repr(align(128))]
pub(crate) struct ObjectIo {
    pub(crate) store: Store,
    pub(crate) ahead: Arc<ReadAhead>,
}

/// The owner of open objects: it keeps their dnodes, and syncs them.
///
/// An object keeps its owner alive. The owner keeps an object alive only while the object is on a
/// dirty list.
pub(crate) trait NodeOwner: Send + Sync {
    fn io(&self) -> &Arc<ObjectIo>;

    /// Fails if the owner is closed. From then on no object may pin blocks or become dirty.
    fn check_open(&self) -> Result<()>;

    /// Maximum copies of data, and of metadata, that an open txg may need.
    fn copies_at_most(&self) -> (u8, u8);

    /// Adds an object to the dirty list of a txg, and charges the transaction for its dnode.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) if the owner is closed: no sync follows.
    fn list_dirty(&self, tx: &Tx, node: &Arc<Node>) -> Result<()>;

    /// A node of this object is dropped.
    fn forget(&self, number: u64);

    /// The inline content of an object. For a directory it contains the entry count as of the
    /// newest sync: the caller replaces the count if it changed since the directory was opened.
    fn inline(&self, number: u64, wait: Wait) -> Result<Vec<u8>>;

    /// Maximum length in bytes of the inline content of an object.
    fn inline_capacity(&self, number: u64, wait: Wait) -> Result<usize>;

    /// Changes the inline content of an object; `false` if it does not fit.
    fn set_inline(&self, tx: &Tx, number: u64, inline: &[u8]) -> Result<bool>;

    /// An unpredictable random number.
    fn new_seed(&self) -> u64;
}
