//! Public handles of datasets, objects and directories.
//!
//! Every change is made in a [`Transaction`], and noted for the intent log if the dataset has one.

use forebay_base::sync::{Arc, MutexGuard};
use forebay_cache::OwnerId;
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::IntoBytes;

use super::PoolInner;
use crate::dataset::{DatasetInner, DatasetSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{FailMode, ObjectKind, ZAP_LEAF_BYTES};
use crate::log::Change;
use crate::object::{Leaves, Node, ObjectUsage, PREALLOCATE_READS, SeekTarget};
use crate::tx::Transaction;
use crate::wait::Wait;
use crate::zap::{Cookie, Entry, Value, Zap, ZapStats};

/// A dataset: a set of objects with settings and a name in its pool.
#[derive(Clone)]
pub struct Dataset {
    pub(crate) pool: Arc<PoolInner>,
    pub(crate) inner: Arc<DatasetInner>,
}

/// An open object with byte content.
#[derive(Clone)]
pub struct Object {
    dataset: Dataset,
    pub(super) node: Arc<Node>,
}

/// An open directory: names of 1 to 255 bytes with values of 1 to 32 bytes.
#[derive(Clone)]
pub struct Directory {
    pub(super) dataset: Dataset,
    number: u64,
    pub(super) zap: Arc<Zap<Leaves>>,
}

/// Properties of an object.
#[derive(Clone, Debug)]
pub struct ObjectInfo {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Record size in bytes.
    pub record_bytes: u32,
    /// The transaction group that created it.
    pub created_txg: u64,
    /// Attributes; the user of the pool defines their meaning.
    pub attributes: Vec<u8>,
    /// Length and allocated space.
    pub usage: ObjectUsage,
}

impl Dataset {
    /// Name of the dataset.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The owner in the cache keys of the dataset's blocks.
    pub fn block_owner(&self) -> OwnerId {
        self.inner.objset.io.store.owner()
    }

    /// Unique identifier, which never changes.
    pub fn guid(&self) -> u64 {
        self.inner.guid
    }

    /// The settings of the dataset.
    pub fn settings(&self) -> Result<DatasetSettings> {
        self.inner.settings()
    }

    /// Changes the settings, durably. They apply to records that are written from now on; new
    /// objects have the new record size; cached blocks stay cached. The calling thread must not
    /// have a transaction.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], and as [`Pool::begin`](crate::Pool::begin).
    pub fn set_settings(&self, settings: &DatasetSettings) -> Result<()> {
        self.pool.set_settings(&self.inner, settings)
    }

    /// What changes do while the pool is suspended, see [`DatasetSettings::fail_mode`].
    pub fn fail_mode(&self) -> FailMode {
        self.inner.fail_mode()
    }

    /// Number of the root object, which its user starts from; 0 if there is none.
    pub fn root_object(&self) -> u64 {
        self.inner.root().0
    }

    /// Identifies the kind of the dataset's user, which defines the values; 0 means none.
    pub fn flavour(&self) -> u32 {
        self.inner.root().1
    }

    /// Sets the root object and the flavour. They become durable with the transaction's txg, not by
    /// an fsync.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the object does not exist.
    pub fn set_root(&self, tx: &Transaction<'_>, root_object: u64, flavour: u32) -> Result<()> {
        if root_object != 0 {
            self.inner.objset.dnode(root_object, tx.wait())?;
        }
        self.inner.set_root(tx.tx(), root_object, flavour);
        Ok(())
    }

    /// Objects in use in the newest durable txg.
    pub fn object_count(&self) -> u64 {
        self.inner.objset.objects()
    }

    /// Bytes allocated on devices, all copies included, in the newest durable txg.
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.objset.allocated_bytes()
    }

    /// Creates an object with the dataset's record size, and returns its number. `attributes` has
    /// at most [`ATTRIBUTES_MAX`](crate::format::ATTRIBUTES_MAX) bytes; the caller defines their
    /// meaning.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], [`ErrorKind::NoMemory`], [`ErrorKind::NoSpace`].
    pub fn create_object(&self, tx: &Transaction<'_>, attributes: &[u8]) -> Result<u64> {
        let record_shift = self.inner.settings()?.record_bytes.trailing_zeros() as u8;
        self.create(tx, ObjectKind::Data, record_shift, attributes)
    }

    /// Like [`create_object`](Self::create_object), with a given record size.
    ///
    /// # Errors
    /// As [`create_object`](Self::create_object).
    pub fn create_object_with(
        &self,
        tx: &Transaction<'_>,
        record_bytes: u32,
        attributes: &[u8],
    ) -> Result<u64> {
        DatasetSettings { record_bytes, ..DatasetSettings::default() }.check()?;
        self.create(tx, ObjectKind::Data, record_bytes.trailing_zeros() as u8, attributes)
    }

    /// Creates an empty directory, and returns its number.
    ///
    /// # Errors
    /// As [`create_object`](Self::create_object).
    pub fn create_directory(&self, tx: &Transaction<'_>, attributes: &[u8]) -> Result<u64> {
        self.create(tx, ObjectKind::Zap, ZAP_LEAF_BYTES.trailing_zeros() as u8, attributes)
    }

    fn create(
        &self,
        tx: &Transaction<'_>,
        kind: ObjectKind,
        record_shift: u8,
        attributes: &[u8],
    ) -> Result<u64> {
        let number = self.inner.objset.create(tx.tx(), kind, record_shift, attributes)?;
        self.log(tx, number, || Change::Create { kind, record_shift, attributes });
        Ok(number)
    }

    /// Destroys an object or a directory with all content. Changes through its open handles fail
    /// with [`ErrorKind::Closed`] from then on.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn destroy(&self, tx: &Transaction<'_>, number: u64) -> Result<()> {
        self.inner.objset.destroy(tx.tx(), number, || self.log(tx, number, || Change::Destroy))
    }

    /// Properties of an object, without opening it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], or the failure to read its dnode.
    pub fn object_info(&self, number: u64) -> Result<ObjectInfo> {
        self.info_of(number, Wait::Allowed)
    }

    /// A number that differs for different content or attributes of the object: a hash of its
    /// dnode, which has the checksums of all below it. Of a read-only pool; changes that are not
    /// synced do not count.
    ///
    /// # Errors
    /// As [`object_info`](Self::object_info).
    pub fn object_version(&self, number: u64) -> Result<u64> {
        self.version_of(number, Wait::Allowed)
    }

    /// Changes the attributes of an object. Those of a directory become durable with any fsync in
    /// the dataset, like names; those of other objects with an fsync of the object.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Invalid`] if they are too long.
    pub fn set_attributes(
        &self,
        tx: &Transaction<'_>,
        number: u64,
        attributes: &[u8],
    ) -> Result<()> {
        self.change_attributes(tx, number, attributes, |kind| match kind {
            ObjectKind::Zap => Change::SetAttributes { attributes, touched: false },
            _ => Change::TouchAttributes { attributes },
        })
    }

    /// Like [`set_attributes`](Self::set_attributes), but the attributes of every object become
    /// durable like names: with any fsync in the dataset, together with all other changes of names
    /// and existence in the transaction. For attributes that must agree with names, such as a link
    /// count.
    ///
    /// # Errors
    /// As [`set_attributes`](Self::set_attributes).
    pub fn set_attributes_with_names(
        &self,
        tx: &Transaction<'_>,
        number: u64,
        attributes: &[u8],
    ) -> Result<()> {
        self.change_attributes(tx, number, attributes, |kind| {
            let touched = kind != ObjectKind::Zap;
            Change::SetAttributes { attributes, touched }
        })
    }

    fn change_attributes<'c>(
        &self,
        tx: &Transaction<'_>,
        number: u64,
        attributes: &'c [u8],
        change: impl FnOnce(ObjectKind) -> Change<'c>,
    ) -> Result<()> {
        if !self.inner.logs() {
            return self.inner.set_attributes(tx.tx(), number, attributes);
        }
        // The object lock makes the order of notes that of the changes.
        let node = self.inner.objset.open(number, tx.wait())?;
        let _lock = node.lock_object(tx.wait())?;
        self.inner.set_attributes(tx.tx(), number, attributes)?;
        self.log(tx, number, || change(node.kind));
        Ok(())
    }

    /// Opens an object.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Invalid`] for a directory.
    pub fn object(&self, number: u64) -> Result<Object> {
        self.open_object(number, Wait::Allowed)
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Invalid`] if it is not a directory.
    pub fn directory(&self, number: u64) -> Result<Directory> {
        self.open_directory(number, Wait::Allowed)
    }

    pub(super) fn info_of(&self, number: u64, wait: Wait) -> Result<ObjectInfo> {
        let dnode = self.inner.objset.dnode(number, wait)?;
        let kind = dnode.object_kind().unwrap_or(ObjectKind::Free);
        Ok(ObjectInfo {
            kind,
            record_bytes: 1u32.checked_shl(u32::from(dnode.record_shift)).unwrap_or(0),
            created_txg: dnode.created_txg.get(),
            attributes: dnode.attributes().to_vec(),
            usage: self.inner.objset.usage(number, wait)?,
        })
    }

    pub(super) fn version_of(&self, number: u64, wait: Wait) -> Result<u64> {
        Ok(xxh3_64(self.inner.objset.dnode(number, wait)?.as_bytes()))
    }

    pub(super) fn open_object(&self, number: u64, wait: Wait) -> Result<Object> {
        let node = self.inner.objset.open(number, wait)?;
        if node.kind != ObjectKind::Data {
            let text = format!("object {number} is a directory");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(Object { dataset: self.clone(), node })
    }

    pub(super) fn open_directory(&self, number: u64, wait: Wait) -> Result<Directory> {
        let zap = self.inner.directory(number, wait)?;
        Ok(Directory { dataset: self.clone(), number, zap })
    }

    /// Makes all earlier changes of directories, of the existence of objects, and of this object's
    /// content and attributes durable. The calling thread must not have a transaction.
    ///
    /// # Errors
    /// The failure that prevents durability.
    pub fn fsync(&self, number: u64) -> Result<()> {
        self.pool.fsync(&self.inner, number)
    }

    /// Orders names after content: from now on, no fsync makes names of this or a later transaction
    /// durable without the present content of object `number`. Call it before the change of the
    /// names. It costs nothing if the content is durable.
    pub fn order_content(&self, tx: &Transaction<'_>, number: u64) {
        self.log(tx, number, || Change::Bind);
    }

    /// Like [`order_content`](Self::order_content), for the content of all objects. The next fsync
    /// writes everything that is not durable yet.
    pub fn order_all_content(&self, tx: &Transaction<'_>) {
        self.log(tx, 0, || Change::BindAll);
    }

    /// Notes a change for the intent log.
    fn log<'c>(&self, tx: &Transaction<'_>, number: u64, change: impl FnOnce() -> Change<'c>) {
        if self.inner.logs() {
            self.pool.log.append(tx.txg(), self.inner.guid, number, change());
        }
    }
}

impl Object {
    /// Number of the object.
    pub fn number(&self) -> u64 {
        self.node.number
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.node.size()
    }

    /// Record size in bytes.
    pub fn record_bytes(&self) -> u32 {
        1 << self.node.record_shift
    }

    /// Reads into `out` from `offset` on. Returns the number of bytes before the end of the object.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] and [`ErrorKind::Device`], with object and block.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.node.read(offset, out, Wait::Allowed)
    }

    /// Starts to load the blocks that a read of this range needs, and calls `done` once all started
    /// reads have ended. Never blocks.
    ///
    /// `done` runs on the thread that ends the last load, where it must not block: in an I/O
    /// callback, or in the middle of a read of the same block that another thread began. It runs on
    /// this thread before the call returns if there is nothing to load.
    ///
    /// After `done`, a read in [`non_blocking`](Self::non_blocking) mode usually succeeds. It may
    /// fail if a loaded block was evicted again, was an indirect block, could not be read, or is
    /// not cacheable. Fetch again a few times, then read on a thread that may block.
    pub fn fetch(&self, offset: u64, len: u64, done: Box<dyn FnOnce() + Send>) {
        self.node.fetch_range(offset, len, done);
    }

    /// The next offset from `from` on with data, at the granularity of records: `from` itself, if
    /// its record has data. Unsynced writes count. `None` if there is no data before the end.
    ///
    /// # Errors
    /// The failure to read an indirect block.
    pub fn next_data(&self, from: u64) -> Result<Option<u64>> {
        self.node.seek(from, SeekTarget::Data, Wait::Allowed)
    }

    /// The next offset from `from` on in a hole, at the granularity of records. The end of the
    /// object counts as a hole. `None` if `from` is not before the end.
    ///
    /// # Errors
    /// As [`next_data`](Self::next_data).
    pub fn next_hole(&self, from: u64) -> Result<Option<u64>> {
        self.node.seek(from, SeekTarget::Hole, Wait::Allowed)
    }

    /// Bytes of holes in a range, preallocated or not. What is behind the end is a hole. Counts in
    /// whole records.
    ///
    /// # Errors
    /// The failure to read an indirect block.
    pub fn hole_bytes(&self, offset: u64, len: u64) -> Result<u64> {
        self.node.hole_bytes(offset, len, Wait::Allowed)
    }

    /// Length and allocated space.
    pub fn usage(&self) -> ObjectUsage {
        self.node.usage()
    }

    /// Writes `data` at `offset`, and extends the object if necessary. If the write fails, a prefix
    /// of `data` may have been written, as by a shorter write.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the object was destroyed; [`ErrorKind::Invalid`];
    /// [`ErrorKind::NoMemory`]; [`ErrorKind::NoSpace`]; and the failure to read a record that is
    /// overwritten in part.
    pub fn write(&self, tx: &Transaction<'_>, offset: u64, data: &[u8]) -> Result<()> {
        self.write_some(tx, offset, data).1
    }

    /// Like [`write`](Self::write), but also returns how many bytes were written: all of `data` on
    /// success, a prefix on failure, possibly empty. For callers that keep state in step with the
    /// content.
    pub fn write_some(&self, tx: &Transaction<'_>, offset: u64, data: &[u8]) -> (u64, Result<()>) {
        // Held over a change and its note, so that the log has the changes of an object in the
        // order in which they were made.
        let _lock = match self.node.lock_object(tx.wait()) {
            Ok(guard) => guard,
            Err(error) => return (0, Err(error)),
        };
        let (len, written) = self.node.write_some(tx.tx(), offset, data);
        if len > 0 {
            self.dataset.log(tx, self.node.number, || Change::Write { offset, len });
        }
        (len, written)
    }

    /// Sets the length to `size` bytes. Content behind the new end is freed; new content reads as
    /// zeros.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn truncate(&self, tx: &Transaction<'_>, size: u64) -> Result<()> {
        let _lock = self.node.lock_object(tx.wait())?;
        self.node.truncate(tx.tx(), size)?;
        self.dataset.log(tx, self.node.number, || Change::Truncate { size });
        Ok(())
    }

    /// Makes a range read as zeros and frees the whole records in it. The length stays.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn punch(&self, tx: &Transaction<'_>, offset: u64, len: u64) -> Result<()> {
        let _lock = self.node.lock_object(tx.wait())?;
        self.node.punch(tx.tx(), offset, len)?;
        self.dataset.log(tx, self.node.number, || Change::Punch { offset, len });
        Ok(())
    }

    /// Makes the holes in a range count as allocated space, until they are written or freed, also
    /// behind the end of the object. The length stays, and the range reads as zeros. Space is not
    /// reserved: a later write may fail with [`ErrorKind::NoSpace`].
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn preallocate(&self, tx: &Transaction<'_>, offset: u64, len: u64) -> Result<()> {
        self.preallocate_within(tx, offset, len, usize::MAX).map(|_| ())
    }

    /// As [`preallocate`](Self::preallocate), for as much of the range as one transaction should
    /// change, at least a part. Returns its length in bytes. A range without data and preallocated
    /// holes is one step, however long it is.
    ///
    /// # Errors
    /// As [`write`](Self::write). In non-blocking mode also
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock), if there is more than one step.
    pub fn preallocate_some(&self, tx: &Transaction<'_>, offset: u64, len: u64) -> Result<u64> {
        self.preallocate_within(tx, offset, len, PREALLOCATE_READS)
    }

    fn preallocate_within(
        &self,
        tx: &Transaction<'_>,
        offset: u64,
        len: u64,
        reads_max: usize,
    ) -> Result<u64> {
        let _lock = self.node.lock_object(tx.wait())?;
        let len = self.node.preallocate(tx.tx(), offset, len, reads_max)?;
        self.dataset.log(tx, self.node.number, || Change::Preallocate { offset, len });
        Ok(len)
    }

    /// As [`Dataset::fsync`], for this object.
    ///
    /// # Errors
    /// As [`Dataset::fsync`].
    pub fn fsync(&self) -> Result<()> {
        self.dataset.fsync(self.node.number)
    }
}

impl Directory {
    /// Number of the directory.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Adds a name.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`]; [`ErrorKind::Invalid`] for a name or value that is empty or too long.
    pub fn insert(&self, tx: &Transaction<'_>, name: &[u8], value: &[u8]) -> Result<()> {
        let _lock = self.lock_object(tx)?;
        self.zap.insert(tx.tx(), name, value)?;
        self.dataset.log(tx, self.number, || Change::ZapInsert { name, value });
        Ok(())
    }

    /// Adds a name or replaces its value. Returns the old value, if any.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), except [`ErrorKind::Exists`].
    pub fn update(&self, tx: &Transaction<'_>, name: &[u8], value: &[u8]) -> Result<Option<Value>> {
        let _lock = self.lock_object(tx)?;
        let old = self.zap.upsert(tx.tx(), name, value)?;
        self.dataset.log(tx, self.number, || Change::ZapUpdate { name, value });
        Ok(old)
    }

    /// Replaces the value of a name. Returns the old value.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; otherwise as [`insert`](Self::insert), except
    /// [`ErrorKind::Exists`].
    pub fn replace(&self, tx: &Transaction<'_>, name: &[u8], value: &[u8]) -> Result<Value> {
        let _lock = self.lock_object(tx)?;
        let old = self.zap.replace(tx.tx(), name, value)?;
        self.dataset.log(tx, self.number, || Change::ZapUpdate { name, value });
        Ok(old)
    }

    /// The value of a name; `None` if it does not exist.
    ///
    /// # Errors
    /// The failure to read the leaf of the name.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<Value>> {
        self.zap.lookup(name, Wait::Allowed)
    }

    /// Removes a name, and returns its value.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn remove(&self, tx: &Transaction<'_>, name: &[u8]) -> Result<Value> {
        let _lock = self.lock_object(tx)?;
        let old = self.zap.remove(tx.tx(), name)?;
        self.dataset.log(tx, self.number, || Change::ZapRemove { name });
        Ok(old)
    }

    /// Adds a name that [`remove`](Self::remove) has removed in the same transaction, to undo that.
    /// Reads nothing and needs no space.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn restore(&self, tx: &Transaction<'_>, name: &[u8], value: &[u8]) -> Result<()> {
        let _lock = self.lock_object(tx)?;
        self.zap.restore(tx.tx(), name, value)?;
        self.dataset.log(tx, self.number, || Change::ZapInsert { name, value });
        Ok(())
    }

    /// Loads what a change of a name needs beside what [`lookup`](Self::lookup) loads. Called
    /// before the transaction begins, so that the change reads nothing while it is open. A removal
    /// needs nothing else.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup).
    pub fn warm(&self, name: &[u8]) -> Result<()> {
        self.zap.warm(name, Wait::Allowed)
    }

    /// Up to `limit` entries from `from` on, in the directory's own order. A walk that continues at
    /// the `next` of the last entry returns each entry that exists throughout exactly once.
    ///
    /// # Errors
    /// The failure to read a leaf.
    pub fn entries(&self, from: Cookie, limit: usize) -> Result<Vec<Entry>> {
        self.zap.entries(from, limit, Wait::Allowed)
    }

    /// Iterates over all entries, in the directory's own order. An entry that exists throughout is
    /// returned exactly once; an entry that is added or removed meanwhile may be returned or not.
    /// The failure to read a leaf ends the iteration with an error.
    pub fn iter(&self) -> impl Iterator<Item = Result<Entry>> + '_ {
        self.zap.cursor(Cookie::START, Wait::Allowed)
    }

    /// Number of names.
    pub fn len(&self) -> u64 {
        self.zap.len()
    }

    /// Whether it has no names.
    pub fn is_empty(&self) -> bool {
        self.zap.is_empty()
    }

    /// Allocated space of the directory.
    pub fn usage(&self) -> ObjectUsage {
        self.zap.store().0.usage()
    }

    /// Statistics of the structure: leaves by fill, depth and number of entries. Reads all leaves.
    ///
    /// # Errors
    /// The failure to read a leaf.
    pub fn stats(&self) -> Result<ZapStats> {
        self.zap.stats()
    }

    /// Reads all leaves and validates every entry and count. Nothing may change the directory
    /// meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`], with the first defect.
    pub fn audit(&self) -> Result<ZapStats> {
        // Keeps names from moving in the background.
        let _lock = self.zap.store().0.lock_object(Wait::Allowed)?;
        self.zap.audit()
    }

    /// As for objects, but only if the dataset has an intent log: a change of a directory is a
    /// single step.
    fn lock_object(&self, tx: &Transaction<'_>) -> Result<Option<MutexGuard<'_, ()>>> {
        let node = &self.zap.store().0;
        self.dataset.inner.logs().then(|| node.lock_object(tx.wait())).transpose()
    }

    /// As [`Dataset::fsync`], for this directory.
    ///
    /// # Errors
    /// As [`Dataset::fsync`].
    pub fn fsync(&self) -> Result<()> {
        self.dataset.fsync(self.number)
    }
}
