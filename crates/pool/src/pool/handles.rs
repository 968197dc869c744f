//! Datasets, objects and directories, as users of the library see them.
//!
//! Every change is made in a [`Transaction`], and noted for the intent log if the dataset logs.

use forebay_base::sync::{Arc, MutexGuard};

use super::PoolInner;
use crate::dataset::{DatasetInner, DatasetSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{ObjectKind, ZAP_LEAF_BYTES};
use crate::log::Change;
use crate::object::{Leaves, Node, ObjectUsage, SeekTarget};
use crate::tx::Transaction;
use crate::zap::{Cookie, Entry, Value, Zap, ZapStats};

/// A dataset: a set of objects with settings, and a name in its pool.
#[derive(Clone)]
pub struct Dataset {
    pub(crate) pool: Arc<PoolInner>,
    pub(crate) inner: Arc<DatasetInner>,
}

/// An object of bytes, open.
#[derive(Clone)]
pub struct Object {
    dataset: Dataset,
    node: Arc<Node>,
}

/// A directory, open: names of 1 to 255 bytes with values of 1 to 32 bytes.
#[derive(Clone)]
pub struct Directory {
    dataset: Dataset,
    number: u64,
    zap: Arc<Zap<Leaves>>,
}

/// What is known of an object.
#[derive(Clone, Debug)]
pub struct ObjectInfo {
    /// What it is.
    pub kind: ObjectKind,
    /// Size of its records in bytes.
    pub record_bytes: u32,
    /// The transaction group that created it.
    pub created_txg: u64,
    /// Its attributes, for its user to understand.
    pub attributes: Vec<u8>,
    /// How long it is, and what it takes.
    pub usage: ObjectUsage,
}

impl Dataset {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The number that names it for ever.
    pub fn guid(&self) -> u64 {
        self.inner.guid
    }

    /// How it is set up.
    pub fn settings(&self) -> Result<DatasetSettings> {
        self.inner.settings()
    }

    /// Changes how it is set up, durably. Records that are written from now on are written so; new objects have the new
    /// record size; what is cached stays. The calling thread must have no transaction.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], and as [`Pool::begin`](crate::Pool::begin).
    pub fn set_settings(&self, settings: &DatasetSettings) -> Result<()> {
        self.pool.set_settings(&self.inner, settings)
    }

    /// Number of the object that its user starts from; 0 if there is none.
    pub fn root_object(&self) -> u64 {
        self.inner.root().0
    }

    /// What kind of user made it, for them to say; 0 is none.
    pub fn flavour(&self) -> u32 {
        self.inner.root().1
    }

    /// Sets both. They become durable with the transaction's txg, not by an fsync.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such object.
    pub fn set_root(&self, tx: &Transaction<'_>, root_object: u64, flavour: u32) -> Result<()> {
        if root_object != 0 {
            self.inner.objset.dnode(root_object)?;
        }
        self.inner.set_root(tx.tx(), root_object, flavour);
        Ok(())
    }

    /// Objects in use, as of the newest durable txg.
    pub fn object_count(&self) -> u64 {
        self.inner.objset.objects()
    }

    /// Bytes that it takes on devices, all copies, as of the newest durable txg.
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.objset.allocated_bytes()
    }

    /// Creates an object of bytes with the dataset's record size, and returns its number. `attributes` has at most
    /// [`ATTRIBUTES_MAX`](crate::format::ATTRIBUTES_MAX) bytes, for the user to understand.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], [`ErrorKind::NoMemory`].
    pub fn create_object(&self, tx: &Transaction<'_>, attributes: &[u8]) -> Result<u64> {
        let record_shift = self.inner.settings()?.record_bytes.trailing_zeros() as u8;
        self.create(tx, ObjectKind::Data, record_shift, attributes)
    }

    /// As [`create_object`](Self::create_object), with records of a size of their own.
    ///
    /// # Errors
    /// As there.
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

    /// Destroys an object or a directory, whatever is in it. Handles of it answer [`ErrorKind::Closed`] from then on.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn destroy(&self, tx: &Transaction<'_>, number: u64) -> Result<()> {
        self.inner.objset.destroy(tx.tx(), number, || self.log(tx, number, || Change::Destroy))
    }

    /// What is known of an object, without opening it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], or why its dnode cannot be read.
    pub fn object_info(&self, number: u64) -> Result<ObjectInfo> {
        let dnode = self.inner.objset.dnode(number)?;
        let kind = dnode.object_kind().unwrap_or(ObjectKind::Free);
        Ok(ObjectInfo {
            kind,
            record_bytes: 1u32.checked_shl(u32::from(dnode.record_shift)).unwrap_or(0),
            created_txg: dnode.created_txg.get(),
            attributes: dnode.attributes().to_vec(),
            usage: self.inner.objset.usage(number)?,
        })
    }

    /// Changes an object's attributes. Those of a directory become durable with any fsync in the dataset, as its names
    /// do; those of an object with its own.
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

    /// As [`set_attributes`](Self::set_attributes), but for objects of bytes too they become durable as names do: with any fsync in
    /// the dataset, together with all else of existence and names that the transaction changes. For what has to agree
    /// with names, as a count of them.
    ///
    /// # Errors
    /// As there.
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
        // Noted in the order in which they are made.
        let node = self.inner.objset.open(number)?;
        let _lock = node.lock_object()?;
        self.inner.set_attributes(tx.tx(), number, attributes)?;
        self.log(tx, number, || change(node.kind));
        Ok(())
    }

    /// Opens an object.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Invalid`] for a directory.
    pub fn object(&self, number: u64) -> Result<Object> {
        let node = self.inner.objset.open(number)?;
        if node.kind != ObjectKind::Data {
            let text = format!("object {number} is a directory");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(Object { dataset: self.clone(), node })
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Invalid`] if it is none.
    pub fn directory(&self, number: u64) -> Result<Directory> {
        let zap = self.inner.directory(number)?;
        Ok(Directory { dataset: self.clone(), number, zap })
    }

    /// Returns once all changes of directories and objects' existence, and those of this object's content and attributes,
    /// are durable, if they were made before this was called. The calling thread must have no transaction.
    ///
    /// # Errors
    /// Why they are not.
    pub fn fsync(&self, number: u64) -> Result<()> {
        self.pool.fsync(&self.inner, number)
    }

    /// From here on, no fsync makes names of this transaction, or of a later one, durable without the content
    /// that object `number` has now. To be called before the names are changed. Costs nothing if that content is durable.
    pub fn order_content(&self, tx: &Transaction<'_>, number: u64) {
        self.log(tx, number, || Change::Bind);
    }

    /// The same for the content of all objects. The next fsync writes all that is not durable yet.
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
    /// Its number.
    pub fn number(&self) -> u64 {
        self.node.number
    }

    /// Its length in bytes.
    pub fn size(&self) -> u64 {
        self.node.size()
    }

    /// Size of its records in bytes.
    pub fn record_bytes(&self) -> u32 {
        1 << self.node.record_shift
    }

    /// Fills `out` from `offset` on. Returns how many bytes there were before the end.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] and [`ErrorKind::Device`], with object and block.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.node.read(offset, out)
    }

    /// Begins to bring what a read of this range needs into the cache, and calls `done` once, when nothing more is on its way:
    /// from a callback of the I/O on whatever thread, where it must not wait, or on this thread before this returns, if there
    /// was nothing to wait for. Never waits.
    ///
    /// After `done` a read [`non_blocking`](crate::non_blocking) usually succeeds. It may not: what came was pushed out
    /// again, or was an indirect block, or could not be read, or the cache wants none of it. Ask again a few times, and
    /// then read on a thread that may wait.
    pub fn fetch(&self, offset: u64, len: u64, done: Box<dyn FnOnce() + Send>) {
        self.node.fetch_range(offset, len, done);
    }

    /// The next offset from `from` on at which there is data, record by record: `from` itself, if it lies in a record that has
    /// some; what was written and is not on devices yet counts. `None` if there is none before the end.
    ///
    /// # Errors
    /// Why the indirect blocks that know cannot be read.
    pub fn next_data(&self, from: u64) -> Result<Option<u64>> {
        self.node.seek(from, SeekTarget::Data)
    }

    /// The next offset from `from` on that lies in a hole, record by record; what is behind the last record is one, so that it
    /// is the object's length at most. `None` if `from` is not before the end.
    ///
    /// # Errors
    /// As [`next_data`](Self::next_data).
    pub fn next_hole(&self, from: u64) -> Result<Option<u64>> {
        self.node.seek(from, SeekTarget::Hole)
    }

    /// How long it is, and what it takes on devices.
    pub fn usage(&self) -> ObjectUsage {
        self.node.usage()
    }

    /// Writes `data` at `offset`; the object becomes longer if need be. If it fails, a beginning of `data` may have been
    /// written, as if that had been all.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if it was destroyed, [`ErrorKind::Invalid`], [`ErrorKind::NoMemory`], and what reading a record that is
    /// not written whole may bring.
    pub fn write(&self, tx: &Transaction<'_>, offset: u64, data: &[u8]) -> Result<()> {
        self.write_some(tx, offset, data).1
    }

    /// As [`write`](Self::write), and says how many bytes of `data` were written, from its beginning: all if it succeeds,
    /// perhaps none if it fails. For whoever keeps something of its own that has to agree with the content.
    pub fn write_some(&self, tx: &Transaction<'_>, offset: u64, data: &[u8]) -> (u64, Result<()>) {
        let _lock = match self.lock_object() {
            Ok(lock_object) => lock_object,
            Err(error) => return (0, Err(error)),
        };
        let (len, written) = self.node.write_some(tx.tx(), offset, data);
        if len > 0 {
            self.dataset.log(tx, self.node.number, || Change::Write { offset, len });
        }
        (len, written)
    }

    /// Makes the object `size` bytes long: what was behind is gone, what is new reads as zeros.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn truncate(&self, tx: &Transaction<'_>, size: u64) -> Result<()> {
        let _lock = self.lock_object()?;
        self.node.truncate(tx.tx(), size)?;
        self.dataset.log(tx, self.node.number, || Change::Truncate { size });
        Ok(())
    }

    /// Makes a range read as zeros, and gives back whole records in it. The length stays.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn punch(&self, tx: &Transaction<'_>, offset: u64, len: u64) -> Result<()> {
        let _lock = self.lock_object()?;
        self.node.punch(tx.tx(), offset, len)?;
        self.dataset.log(tx, self.node.number, || Change::Punch { offset, len });
        Ok(())
    }

    /// Held over a change, which may take several steps, and its note: the log has changes of one object in the order
    /// in which they were made.
    fn lock_object(&self) -> Result<MutexGuard<'_, ()>> {
        self.node.lock_object()
    }

    /// As [`Dataset::fsync`], for this object.
    ///
    /// # Errors
    /// As there.
    pub fn fsync(&self) -> Result<()> {
        self.dataset.fsync(self.node.number)
    }
}

impl Directory {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Adds a name.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`]; [`ErrorKind::Invalid`] for a name or value that is empty or too long.
    pub fn insert(&self, tx: &Transaction<'_>, name: &[u8], value: &[u8]) -> Result<()> {
        let _lock = self.lock_object()?;
        self.zap.insert(tx.tx(), name, value)?;
        self.dataset.log(tx, self.number, || Change::ZapInsert { name, value });
        Ok(())
    }

    /// Sets the value of a name, whether it is there or not. Returns the value before.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), but for the first.
    pub fn update(&self, tx: &Transaction<'_>, name: &[u8], value: &[u8]) -> Result<Option<Value>> {
        let _lock = self.lock_object()?;
        let old = self.zap.upsert(tx.tx(), name, value)?;
        self.dataset.log(tx, self.number, || Change::ZapUpdate { name, value });
        Ok(old)
    }

    /// Gives a name that is there another value. Returns the value before.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; otherwise as [`insert`](Self::insert), but for the first.
    pub fn replace(&self, tx: &Transaction<'_>, name: &[u8], value: &[u8]) -> Result<Value> {
        let _lock = self.lock_object()?;
        let old = self.zap.replace(tx.tx(), name, value)?;
        self.dataset.log(tx, self.number, || Change::ZapUpdate { name, value });
        Ok(old)
    }

    /// The value of a name.
    ///
    /// # Errors
    /// Why the leaf that would have it cannot be read.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<Value>> {
        self.zap.lookup(name)
    }

    /// Removes a name, and returns its value.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn remove(&self, tx: &Transaction<'_>, name: &[u8]) -> Result<Value> {
        let _lock = self.lock_object()?;
        let old = self.zap.remove(tx.tx(), name)?;
        self.dataset.log(tx, self.number, || Change::ZapRemove { name });
        Ok(old)
    }

    /// Up to `limit` entries from `from` on, in the directory's own order. An entry that is there all the time is
    /// returned exactly once by a walk that goes on at the last entry's `next`.
    ///
    /// # Errors
    /// Why a leaf cannot be read.
    pub fn entries(&self, from: Cookie, limit: usize) -> Result<Vec<Entry>> {
        self.zap.entries(from, limit)
    }

    /// All entries, in the directory's own order. What is there during the whole walk comes once; what comes or goes
    /// meanwhile may come or not. An error, why a leaf cannot be read, ends it.
    pub fn iter(&self) -> impl Iterator<Item = Result<Entry>> + '_ {
        self.zap.cursor(Cookie::START)
    }

    /// Names in it.
    pub fn len(&self) -> u64 {
        self.zap.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.zap.is_empty()
    }

    /// What it takes on devices.
    pub fn usage(&self) -> ObjectUsage {
        self.zap.store().0.usage()
    }

    /// How it is built: leaves by fill, by depth, entries a leaf. Reads all leaves.
    ///
    /// # Errors
    /// Why a leaf cannot be read.
    pub fn stats(&self) -> Result<ZapStats> {
        self.zap.stats()
    }

    /// Reads all leaves, and checks every entry and count; nothing may change it meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`], naming the first thing that is wrong.
    pub fn audit(&self) -> Result<ZapStats> {
        self.zap.audit()
    }

    /// As for objects, if the dataset logs: a change of a directory is one step.
    fn lock_object(&self) -> Result<Option<MutexGuard<'_, ()>>> {
        let node = &self.zap.store().0;
        self.dataset.inner.logs().then(|| node.lock_object()).transpose()
    }

    /// As [`Dataset::fsync`], for this directory.
    ///
    /// # Errors
    /// As there.
    pub fn fsync(&self) -> Result<()> {
        self.dataset.fsync(self.number)
    }
}
