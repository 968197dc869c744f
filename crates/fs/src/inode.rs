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
const BODY_BYTES: u64 = 900;

/// An inode.
pub(crate) struct Inode {
    /// Its object.
    pub(crate) number: u64,
    /// What it is, for ever.
    pub(crate) kind: FileKind,
    /// Tells it from others with its number.
    pub(crate) generation: u64,
    /// Reasons to keep it: counts of lookups, of opens, and who uses it right now. See [`Table`](crate::table::Table).
    pub(crate) refs: AtomicU64,
    /// Changes of it take turns.
    turn: Mutex<()>,
    known: Mutex<Known>,
    body: Mutex<Body>,
    /// Of a directory: how often names that were in it went elsewhere.
    removals: AtomicU64,
    /// Its time of access needs no look before this second; 0: it does.
    atime_fresh_until: AtomicI64,
}

/// What is known of it.
pub(crate) struct Known {
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
    pub(crate) place: Option<(u64, Box<[u8]>)>,
}

/// How long and large content is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Length in bytes; of a symlink that of its path.
    pub(crate) size: u64,
    /// Bytes on devices.
    pub(crate) allocated: u64,
    /// Bytes of a record.
    pub(crate) record: u32,
}

/// Its content, if it was needed so far.
#[derive(Clone)]
enum Body {
    /// It was not: so it was when the inode was read, no guess, and so it is as long as nobody opens it.
    Away(Extent),
    File(Arc<Object>),
    Directory(Arc<Directory>),
}

impl Inode {
    pub(crate) fn new(number: u64, generation: u64, meta: Meta, away: Extent, txg: u64) -> Self {
        let kind = meta.kind;
        let known = Known {
            meta,
            times_pending: false,
            stored_txg: txg,
            capability: None,
            opens: 0,
            place: None,
        };
        Self {
            number,
            kind,
            generation,
            refs: AtomicU64::new(0),
            turn: Mutex::named("fs-inode", ()),
            known: Mutex::named("fs-known", known),
            body: Mutex::named("fs-body", Body::Away(away)),
            removals: AtomicU64::new(0),
            atime_fresh_until: AtomicI64::new(0),
        }
    }

    /// The right to change it, until dropped. The thread has a transaction, and takes turns by number:
    /// see [`Turns`](crate::lock::Turns).
    ///
    /// # Errors
    /// [`WouldBlock`](ErrorKind::WouldBlock) if the thread must not wait, and somebody has it: that may take a device's time.
    pub(crate) fn turn(&self) -> Result<MutexGuard<'_, ()>> {
        Ok(lock_if_allowed(&self.turn, "the turn of an inode")?)
    }

    /// The same, if nobody has it.
    pub(crate) fn try_turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.try_lock()
    }

    /// What is known of it. Nothing else may be locked meanwhile, nor the pool called.
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }

    /// Its attributes as they are now.
    pub(crate) fn meta(&self) -> Meta {
        self.known().meta.clone()
    }

    /// Its content, if it is a file.
    ///
    /// # Errors
    /// [`IsADirectory`](ErrorKind::IsADirectory), [`Invalid`](ErrorKind::Invalid), and what opening it brings.
    pub(crate) fn file(&self, dataset: &Dataset) -> Result<Arc<Object>> {
        if let Body::File(object) = &*self.body.lock() {
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
        let mut body = self.body.lock();
        if let Body::File(object) = &*body {
            return Ok(Arc::clone(object));
        }
        *body = Body::File(Arc::clone(&object));
        Ok(object)
    }

    /// Its names, if it is a directory.
    ///
    /// # Errors
    /// [`NotADirectory`](ErrorKind::NotADirectory), and what opening it brings.
    pub(crate) fn directory(&self, dataset: &Dataset) -> Result<Arc<Directory>> {
        if let Body::Directory(directory) = &*self.body.lock() {
            return Ok(Arc::clone(directory));
        }
        self.check_directory()?;
        let directory = Arc::new(dataset.directory(self.number)?);
        let mut body = self.body.lock();
        if let Body::Directory(directory) = &*body {
            return Ok(Arc::clone(directory));
        }
        *body = Body::Directory(Arc::clone(&directory));
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
    pub(crate) fn extent(&self) -> (Extent, bool) {
        // The pool is asked without the lock.
        let body = self.body.lock().clone();
        let (usage, record) = match body {
            Body::Away(extent) => return (extent, false),
            Body::File(object) => (object.usage(), object.record_bytes()),
            Body::Directory(directory) => (directory.usage(), 0),
        };
        let (size, allocated) = (usage.size_bytes, usage.allocated_bytes);
        (Extent { size, allocated, record }, usage.is_guess)
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
    pub(crate) fn atime_needs_look(&self, now: Time) -> bool {
        now.seconds >= self.atime_fresh_until.load(Ordering::Relaxed)
    }

    /// The time of access need not be looked at before that second; 0: at once.
    pub(crate) fn set_atime_fresh(&self, until_seconds: i64) {
        self.atime_fresh_until.store(until_seconds, Ordering::Relaxed);
    }

    /// Bytes of memory that it takes, roughly.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // With its place in the table.
        let mut bytes = size_of::<Self>() as u64 + 48;
        {
            let known = self.known();
            if let Extras::Inline(extras) = &known.meta.extras {
                bytes += extras.len() as u64;
            }
            bytes += known.place.as_ref().map_or(0, |(_, name)| name.len() as u64);
        }
        match &*self.body.lock() {
            Body::Away(_) => bytes,
            _ => bytes + BODY_BYTES,
        }
    }
}
