//! An inode in memory.
//!
//! # Locking
//!
//! An operation that changes an inode, or names in it, holds a transaction and then the inode lock.
//! The state mutex is held only to read or replace fields, so reading attributes never waits for an
//! operation in progress.

use forebay_base::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex, MutexGuard};
use forebay_pool::{Dataset, Directory, Object, Transaction, Wait};

use crate::attrs::{Extras, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{FileKind, Time};

/// Approximate memory of an open pool object, in bytes.
const OPEN_OBJECT_BYTES: u64 = 900;

/// An inode.
pub(crate) struct Inode {
    /// Number of its pool object.
    pub(crate) number: u64,
    /// File type; never changes.
    pub(crate) kind: FileKind,
    /// Distinguishes inodes that have had the same number.
    pub(crate) generation: u64,
    /// Reference count: lookups, opens and uses in progress. See
    /// [`InodeTable`](crate::inode_table::InodeTable).
    pub(crate) refs: AtomicU64,
    /// The inode lock: serialises changes.
    lock: Mutex<()>,
    state: Mutex<InodeState>,
    content: Mutex<Content>,
    /// Directories: number of names removed so far.
    removals: AtomicU64,
    /// Reads before this second need not update the access time. 0 means that every read checks.
    atime_fresh_until: AtomicI64,
}

/// Attributes and usage of an inode, under the state mutex.
pub(crate) struct InodeState {
    pub(crate) meta: Meta,
    /// `meta` has times that are not stored in the object yet.
    pub(crate) times_pending: bool,
    /// Transaction group that last stored the attributes.
    pub(crate) stored_txg: u64,
    /// Whether it has file capabilities; `None` if not known yet.
    pub(crate) capability: Option<bool>,
    /// Number of open handles.
    pub(crate) opens: u64,
    /// The last lookup: directory number and name.
    pub(crate) dentry: Option<(u64, Box<[u8]>)>,
}

/// Sizes of an inode's content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeInfo {
    /// Length in bytes; for a symlink the length of its target.
    pub(crate) size: u64,
    /// Bytes allocated on devices.
    pub(crate) allocated: u64,
    /// Record size in bytes.
    pub(crate) record: u32,
}

/// The content of an inode.
#[derive(Clone)]
enum Content {
    /// Not opened yet. The sizes are those read with the inode. They stay valid until it is opened.
    Unopened(SizeInfo),
    File(Arc<Object>),
    Directory(Arc<Directory>),
}

impl Inode {
    pub(crate) fn new(
        number: u64,
        generation: u64,
        meta: Meta,
        size_info: SizeInfo,
        txg: u64,
    ) -> Self {
        let kind = meta.kind;
        let state = InodeState {
            meta,
            times_pending: false,
            stored_txg: txg,
            capability: None,
            opens: 0,
            dentry: None,
        };
        Self {
            number,
            kind,
            generation,
            refs: AtomicU64::new(0),
            lock: Mutex::named("fs-inode", ()),
            state: Mutex::named("fs-inode-state", state),
            content: Mutex::named("fs-content", Content::Unopened(size_info)),
            removals: AtomicU64::new(0),
            atime_fresh_until: AtomicI64::new(0),
        }
    }

    /// Takes the inode lock, within the thread's transaction. To lock several inodes, use
    /// [`InodeLocks`](crate::inode_lock::InodeLocks).
    ///
    /// # Errors
    /// [`WouldBlock`](ErrorKind::WouldBlock) if the transaction may not wait, and another thread
    /// holds the lock, which it may do during device I/O.
    pub(crate) fn lock(&self, tx: &Transaction<'_>) -> Result<MutexGuard<'_, ()>> {
        Ok(tx.wait().lock(&self.lock, "an inode lock")?)
    }

    /// Takes the inode lock if it is free.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        self.lock.try_lock()
    }

    /// Locks the state. The caller takes no other lock and does not call the pool meanwhile.
    pub(crate) fn state(&self) -> MutexGuard<'_, InodeState> {
        self.state.lock()
    }

    /// A copy of the current attributes.
    pub(crate) fn meta(&self) -> Meta {
        self.state().meta.clone()
    }

    /// The content of a regular file.
    ///
    /// # Errors
    /// [`IsADirectory`](ErrorKind::IsADirectory), [`Invalid`](ErrorKind::Invalid), or an error of
    /// the pool.
    pub(crate) fn file(&self, dataset: &Dataset, wait: Wait) -> Result<Arc<Object>> {
        if let Content::File(object) = &*self.content.lock() {
            return Ok(Arc::clone(object));
        }
        match self.kind {
            FileKind::File => {}
            FileKind::Directory => {
                return Err(Error::new(ErrorKind::IsADirectory, "is a directory"));
            }
            _ => return Err(Error::new(ErrorKind::Invalid, "the inode is not a regular file")),
        }
        let object = Arc::new(dataset.with_wait(wait).object(self.number)?);
        let mut content = self.content.lock();
        if let Content::File(object) = &*content {
            return Ok(Arc::clone(object));
        }
        *content = Content::File(Arc::clone(&object));
        Ok(object)
    }

    /// The names of a directory.
    ///
    /// # Errors
    /// [`NotADirectory`](ErrorKind::NotADirectory), or an error of the pool.
    pub(crate) fn directory(&self, dataset: &Dataset, wait: Wait) -> Result<Arc<Directory>> {
        if let Content::Directory(directory) = &*self.content.lock() {
            return Ok(Arc::clone(directory));
        }
        self.check_directory()?;
        let directory = Arc::new(dataset.with_wait(wait).directory(self.number)?);
        let mut content = self.content.lock();
        if let Content::Directory(directory) = &*content {
            return Ok(Arc::clone(directory));
        }
        *content = Content::Directory(Arc::clone(&directory));
        Ok(directory)
    }

    /// # Errors
    /// [`NotADirectory`](ErrorKind::NotADirectory).
    pub(crate) fn check_directory(&self) -> Result<()> {
        match self.kind {
            FileKind::Directory => Ok(()),
            _ => Err(Error::new(ErrorKind::NotADirectory, "not a directory")),
        }
    }

    /// The sizes, and whether the allocated size is an estimate.
    pub(crate) fn size_info(&self) -> (SizeInfo, bool) {
        // Call the pool without the lock.
        let content = self.content.lock().clone();
        let (usage, record) = match content {
            Content::Unopened(size_info) => return (size_info, false),
            Content::File(object) => (object.usage(), object.record_bytes()),
            Content::Directory(directory) => (directory.usage(), 0),
        };
        let (size, allocated) = (usage.size_bytes, usage.allocated_bytes);
        (SizeInfo { size, allocated, record }, usage.is_estimate)
    }

    /// Number of names removed from this directory so far. If it is the same before a name lookup
    /// and after its inode is referenced, the inode is still the one that the name refers to.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// Counts a removed name. Its inode is destroyed only after this.
    pub(crate) fn note_removal(&self) {
        self.removals.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a read at `now` may have to update the access time.
    pub(crate) fn atime_may_need_update(&self, now: Time) -> bool {
        now.seconds >= self.atime_fresh_until.load(Ordering::Relaxed)
    }

    /// Reads before `until_seconds` need not update the access time. 0 means that every read
    /// checks.
    pub(crate) fn set_atime_fresh_until(&self, until_seconds: i64) {
        self.atime_fresh_until.store(until_seconds, Ordering::Relaxed);
    }

    /// Approximate memory of the inode, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // Includes its slot in the table.
        let mut bytes = size_of::<Self>() as u64 + 48;
        {
            let state = self.state();
            if let Extras::Inline(extras) = &state.meta.extras {
                bytes += extras.len() as u64;
            }
            bytes += state.dentry.as_ref().map_or(0, |(_, name)| name.len() as u64);
        }
        match &*self.content.lock() {
            Content::Unopened(_) => bytes,
            _ => bytes + OPEN_OBJECT_BYTES,
        }
    }
}
