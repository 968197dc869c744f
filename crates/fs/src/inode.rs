//! An inode in memory.
//!
//! # Locking
//!
//! Who changes an inode, or names in it, has a transaction and then its *turn*. What is known of it is under a lock of
//! its own that is held for a look only, so that looking at an inode never waits for who changes it.

use forebay_base::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex, MutexGuard};
use forebay_pool::{Dataset, Directory, Object, lock_if_allowed};

use crate::attrs::{Extras, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{FileKind, Time};

/// What an open object of the pool takes in memory, roughly.
const OPEN_OBJECT_BYTES: u64 = 900;

/// An inode.
pub(crate) struct Inode {
    /// Its object.
    pub(crate) number: u64,
    /// What it is, for ever.
    pub(crate) kind: FileKind,
    /// Tells it from others with its number.
    pub(crate) generation: u64,
    /// Reasons to keep it: counts of lookups, of opens, and who uses it right now. See [`InodeTable`](crate::inode_table::Table).
    pub(crate) refs: AtomicU64,
    /// Changes of it take turns.
    lock: Mutex<()>,
    state: Mutex<InodeState>,
    content: Mutex<Content>,
    /// Of a directory: how often names that were in it went elsewhere.
    removals: AtomicU64,
    /// Its time of access needs no look before this second; 0: it does.
    atime_fresh_until: AtomicI64,
}

/// What is known of it.
pub(crate) struct InodeState {
    pub(crate) meta: Meta,
    /// Times in `meta` that are not in the object yet.
    pub(crate) times_pending: bool,
    /// The transaction group that the object's attributes were last changed in.
    pub(crate) stored_txg: u64,
    /// Whether its extended attributes hold file capabilities, if that was looked at.
    pub(crate) capability: Option<bool>,
    /// How many have it open.
    pub(crate) opens: u64,
    /// Where it was last looked up: a directory's number, and a name.
    pub(crate) dentry: Option<(u64, Box<[u8]>)>,
}

/// How long and large content is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeInfo {
    /// Length in bytes; of a symlink that of its path.
    pub(crate) size: u64,
    /// Bytes on devices.
    pub(crate) allocated: u64,
    /// Bytes of a record.
    pub(crate) record: u32,
}

/// Its content, if it was needed so far.
#[derive(Clone)]
enum Content {
    /// It was not: so it was when the inode was read, no guess, and so it is as long as nobody opens it.
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

    /// The right to change it, until dropped. The thread has a transaction, and takes turns by number:
    /// see [`InodeLocks`](crate::inode_lock::Turns).
    ///
    /// # Errors
    /// [`WouldBlock`](ErrorKind::WouldBlock) if the thread must not wait, and somebody has it: that may take a device's time.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, ()>> {
        Ok(lock_if_allowed(&self.lock, "the turn of an inode")?)
    }

    /// The same, if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        self.lock.try_lock()
    }

    /// What is known of it. Nothing else may be locked meanwhile, nor the pool called.
    pub(crate) fn state(&self) -> MutexGuard<'_, InodeState> {
        self.state.lock()
    }

    /// Its attributes as they are now.
    pub(crate) fn meta(&self) -> Meta {
        self.state().meta.clone()
    }

    /// Its content, if it is a file.
    ///
    /// # Errors
    /// [`IsADirectory`](ErrorKind::IsADirectory), [`Invalid`](ErrorKind::Invalid), and what opening it brings.
    pub(crate) fn file(&self, dataset: &Dataset) -> Result<Arc<Object>> {
        if let Content::File(object) = &*self.content.lock() {
            return Ok(Arc::clone(object));
        }
        match self.kind {
            FileKind::File => {}
            FileKind::Directory => {
                return Err(Error::new(ErrorKind::IsADirectory, "it is a directory"));
            }
            _ => return Err(Error::new(ErrorKind::Invalid, "it has no content of its own")),
        }
        let object = Arc::new(dataset.object(self.number)?);
        let mut content = self.content.lock();
        if let Content::File(object) = &*content {
            return Ok(Arc::clone(object));
        }
        *content = Content::File(Arc::clone(&object));
        Ok(object)
    }

    /// Its names, if it is a directory.
    ///
    /// # Errors
    /// [`NotADirectory`](ErrorKind::NotADirectory), and what opening it brings.
    pub(crate) fn directory(&self, dataset: &Dataset) -> Result<Arc<Directory>> {
        if let Content::Directory(directory) = &*self.content.lock() {
            return Ok(Arc::clone(directory));
        }
        self.check_directory()?;
        let directory = Arc::new(dataset.directory(self.number)?);
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
            _ => Err(Error::new(ErrorKind::NotADirectory, "it is no directory")),
        }
    }

    /// How long and large it is, and whether what it takes on devices is a guess so far.
    pub(crate) fn size_info(&self) -> (SizeInfo, bool) {
        // The pool is asked without the lock.
        let content = self.content.lock().clone();
        let (usage, record) = match content {
            Content::Unopened(size_info) => return (size_info, false),
            Content::File(object) => (object.usage(), object.record_bytes()),
            Content::Directory(directory) => (directory.usage(), 0),
        };
        let (size, allocated) = (usage.size_bytes, usage.allocated_bytes);
        (SizeInfo { size, allocated, record }, usage.is_guess)
    }

    /// How often names went from it, so far. If it is the same before a name is looked up and after its inode is held, the inode
    /// is the one that the name led to.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// Counts a name that is no longer there. What it led to is not destroyed before this.
    pub(crate) fn note_removal(&self) {
        self.removals.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the time of access may have to be changed by a read now.
    pub(crate) fn atime_may_need_update(&self, now: Time) -> bool {
        now.seconds >= self.atime_fresh_until.load(Ordering::Relaxed)
    }

    /// The time of access need not be looked at before that second; 0: at once.
    pub(crate) fn set_atime_fresh_until(&self, until_seconds: i64) {
        self.atime_fresh_until.store(until_seconds, Ordering::Relaxed);
    }

    /// Bytes of memory that it takes, roughly.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // With its place in the table.
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
