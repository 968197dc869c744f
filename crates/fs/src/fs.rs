//! The file system object, with the parts that all operations share.

use forebay_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use forebay_base::sync::thread::spawn_named;
use forebay_base::sync::{Arc, Mutex};
use forebay_pool::format::ObjectKind;
use forebay_pool::{Dataset, DatasetSettings, Directory, ErrorKind as PoolKind, Pool, Transaction};

use crate::attrs::Meta;
use crate::error::{Error, ErrorKind, Result};
use crate::format::FLAVOUR;
use crate::inode::{Inode, SizeInfo};
use crate::inode_table::{CacheLookup, InodeTable};
use crate::ops::privileges::Client;
use crate::ops::{RETRIES_MAX, retries_exhausted};
use crate::options::{AtimeMode, FsOptions};
use crate::reclaim::Reclaim;
use crate::stats::{FsCounters, FsStats, Op};
use crate::types::{Attr, Entry, FileKind, Ino, Owner, Time};
use crate::workers::{Dispatch, Workers};
use crate::writeback_errors::WritebackErrors;

/// Unit of `Attr::blocks` in bytes.
const BLOCK_BYTES: u64 = 512;
/// Preferred I/O size of inodes that have no content of their own.
const PREFERRED_BYTES: u32 = 4096;

/// A file system on a dataset. Any number of threads may share it.
///
/// Operations may block on devices and transaction groups. Within
/// [`non_blocking`](forebay_pool::non_blocking) an operation that would block fails with
/// [`WouldBlock`](ErrorKind::WouldBlock) and changes nothing. An inode number stays valid while the
/// inode has a lookup or a handle.
pub struct FileSystem {
    pool: Arc<Pool>,
    dataset: Dataset,
    /// Object number of the root directory.
    root: u64,
    orphans: Directory,
    table: InodeTable,
    pub(crate) workers: Workers,
    reclaim: Arc<Reclaim>,
    writeback_errors: WritebackErrors,
    /// Held by a thread that moves a directory to another parent, so that the ancestors do not
    /// change while it checks for loops.
    pub(crate) rename_mutex: Mutex<()>,
    pub(crate) options: FsOptions,
    /// When reads update access times, encoded by [`set_atime`](Self::set_atime).
    atime: AtomicU8,
    pub(crate) client: Mutex<Option<Arc<dyn Client>>>,
    counters: FsCounters,
    /// Transaction group of the most recent transaction.
    last_txg: AtomicU64,
    closed: AtomicBool,
}

/// Two bits for the mode, one for directories.
fn encode_atime(mode: AtimeMode, directories: bool) -> u8 {
    let mode = match mode {
        AtimeMode::Relative => 0,
        AtimeMode::Strict => 1,
        AtimeMode::Off => 2,
    };
    mode | u8::from(directories) << 2
}

fn decode_atime(bits: u8) -> (AtimeMode, bool) {
    let mode = match bits & 3 {
        0 => AtimeMode::Relative,
        1 => AtimeMode::Strict,
        _ => AtimeMode::Off,
    };
    (mode, bits & 4 != 0)
}

/// A reference to an inode. It keeps the inode in memory.
pub(crate) struct InodeRef<'a> {
    fs: &'a FileSystem,
    inode: Arc<Inode>,
}

impl std::ops::Deref for InodeRef<'_> {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

impl Drop for InodeRef<'_> {
    fn drop(&mut self) {
        self.fs.put(&self.inode);
    }
}

impl FileSystem {
    /// Creates an empty file system in a new dataset, or in an existing empty one. Durable on
    /// return.
    ///
    /// # Errors
    /// [`Exists`](ErrorKind::Exists) if the dataset is not empty, or an error of the pool.
    pub fn create_in(
        pool: &Pool,
        dataset: &str,
        settings: &DatasetSettings,
        root: Owner,
    ) -> Result<()> {
        let options = FsOptions::default();
        let made = match pool.create_dataset(dataset, settings) {
            Ok(made) => made,
            Err(error) if error.kind() == PoolKind::Exists => {
                let there = pool.dataset(dataset)?;
                if there.flavour() != 0 || there.object_count() > 0 {
                    return Err(error.into());
                }
                there
            }
            Err(error) => return Err(error.into()),
        };
        let now = options.clock.unix_time();
        let mut meta = Meta::new(FileKind::Directory, root.mode, (root.uid, root.gid), now);
        {
            let tx = pool.begin()?;
            meta.orphans = made.create_directory(&tx, &[])?;
            let number = made.create_directory(&tx, &meta.encode())?;
            meta.parent = number;
            made.set_attributes(&tx, number, &meta.encode())?;
            made.set_root(&tx, number, FLAVOUR)?;
        }
        Ok(pool.sync()?)
    }

    /// Opens the file system of a dataset. Starts to destroy, in the background, the orphans that
    /// the last use left.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if the dataset does not exist,
    /// [`Invalid`](ErrorKind::Invalid) if it holds no files, [`Corrupt`](ErrorKind::Corrupt), or an
    /// error of the pool.
    pub fn open_in(pool: Arc<Pool>, dataset: &str, options: &FsOptions) -> Result<Arc<Self>> {
        let name = dataset;
        let doing = |error: Error| error.doing(format_args!("file system of dataset {name}"));
        let dataset = pool.dataset(name).map_err(|error| match error.kind() {
            PoolKind::NotFound => Error::new(ErrorKind::NotFound, error.to_string()),
            _ => error.into(),
        })?;
        if dataset.flavour() != FLAVOUR || dataset.root_object() == 0 {
            let text = format!("dataset {name} has no file system: create one in a new dataset");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let root = dataset.root_object();
        let info = dataset.object_info(root).map_err(|error| doing(error.into()))?;
        let meta = Meta::decode(&info.attributes).map_err(doing)?;
        if meta.kind != FileKind::Directory || info.kind != ObjectKind::Zap {
            return Err(doing(Error::corrupt("the root is not a directory")));
        }
        let orphans = dataset.directory(meta.orphans).map_err(|error| doing(error.into()))?;
        let mut options = options.clone();
        options.read_only |= pool.is_read_only();
        let fs = Arc::new(Self {
            pool,
            dataset,
            root,
            orphans,
            table: InodeTable::new(),
            workers: Workers::new(options.workers),
            reclaim: Reclaim::new(),
            writeback_errors: WritebackErrors::new(),
            rename_mutex: Mutex::named("fs-rename", ()),
            atime: AtomicU8::new(encode_atime(options.atime, options.dir_atime)),
            options,
            client: Mutex::named("fs-client", None),
            counters: FsCounters::new(),
            last_txg: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        });
        // The root stays in memory without a lookup.
        fs.inode(root)?.add_ref();
        fs.reclaim.start(Arc::downgrade(&fs))?;
        Ok(fs)
    }

    /// Ends background work, writes pending times, and makes everything durable. Later calls fail.
    /// Unlinked files that are still open are destroyed when the file system is opened again.
    ///
    /// # Errors
    /// The reason why something is not durable. The file system is closed anyway.
    pub fn close(&self) -> Result<()> {
        let writable = self.check_writable().is_ok();
        // From here on, jobs and callbacks find the file system closed and start nothing.
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.reclaim.stop();
        self.workers.close();
        let mut failed = None;
        self.table.for_each(|inode| {
            if writable && inode.state().times_pending {
                let begun = self.pool.begin_freeing().map_err(Error::from);
                let written = begun.and_then(|tx| self.write_times(&tx, inode));
                failed = failed.take().or(written.err());
            }
            true
        });
        if writable {
            self.pool.sync()?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Sets when reads update access times, and whether they do so for directories.
    pub fn set_atime(&self, mode: AtimeMode, directories: bool) {
        self.atime.store(encode_atime(mode, directories), Ordering::Relaxed);
    }

    /// When a read of an inode of this kind updates its access time.
    pub(crate) fn atime_of(&self, kind: FileKind) -> AtimeMode {
        let (mode, directories) = decode_atime(self.atime.load(Ordering::Relaxed));
        if directories || kind != FileKind::Directory { mode } else { AtimeMode::Off }
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The name of the dataset.
    pub fn name(&self) -> &str {
        self.dataset.name()
    }

    /// Statistics of the file system.
    pub fn stats(&self) -> FsStats {
        let (workers_busy, jobs_queued) = self.workers.load();
        let counters = self.counters.snapshot().into_iter();
        FsStats {
            inodes: self.table.len(),
            inode_bytes: self.table.bytes(),
            orphans: self.orphans.len(),
            background_tasks: self.reclaim.len(),
            workers_busy,
            jobs_queued,
            counters: counters
                .map(|value| (value.name, value.label.unwrap_or_default(), value.value))
                .collect(),
        }
    }

    /// Names of inodes whose memory could be reclaimed if the kernel forgot them: up to `most`
    /// pairs of directory and name. Directories are not included. Empty while inodes use at most
    /// [`FsOptions::memory_bytes`]. Successive calls look at different inodes.
    pub fn reclaimable(&self, most: usize) -> Vec<(Ino, Vec<u8>)> {
        if self.table.bytes() <= self.options.memory_bytes {
            return Vec::new();
        }
        let mut names = Vec::new();
        self.table.for_each_round_robin(|inode| {
            let state = inode.state();
            // A directory may be a process's working directory. Forgetting it would break that
            // process.
            let may_go = state.opens == 0 && inode.kind != FileKind::Directory;
            if let (true, Some((parent, name))) = (may_go, &state.dentry) {
                names.push((self.ino(*parent), name.to_vec()));
            }
            names.len() < most
        });
        names
    }

    /// Runs `job` on a thread that may block. If the queue is full, runs it on this thread.
    pub fn spawn(self: &Arc<Self>, job: Box<dyn FnOnce(&Arc<Self>) + Send>) {
        let fs = Arc::clone(self);
        let back = self.workers.push(Box::new(move |_| job(&fs)), false);
        let row = match back.is_some() {
            true => FsCounters::JOBS_INLINE,
            false => FsCounters::JOBS,
        };
        self.counters.add(row, 0, 1);
        if let Some(job) = back {
            job(Dispatch::Run);
        }
    }

    /// As [`spawn`](Self::spawn), for a thread that must not block. Without a worker thread, `job`
    /// is called here with [`Dispatch::Cancelled`].
    pub(crate) fn spawn_from_callback(
        self: &Arc<Self>,
        job: Box<dyn FnOnce(&Arc<Self>, Dispatch) + Send>,
    ) {
        let fs = Arc::clone(self);
        self.counters.add(FsCounters::JOBS, 0, 1);
        if let Some(job) = self.workers.push(Box::new(move |dispatch| job(&fs, dispatch)), true) {
            job(Dispatch::Cancelled);
        }
    }

    /// The error of a cancelled job.
    pub(crate) fn no_worker_error(&self) -> Error {
        match self.check_open() {
            Err(error) => error,
            Ok(()) => Error::new(
                ErrorKind::NoMemory,
                "cannot start a worker thread: the system has no more",
            ),
        }
    }

    /// Drops a reference in a callback that must not block. Dropping the last one closes the file
    /// system, which blocks.
    pub(crate) fn drop_in_background(self: Arc<Self>) {
        if let Some(last) = Arc::into_inner(self) {
            // Without a thread it is closed here.
            let _ = spawn_named("fs-close", move || drop(last));
        }
    }
}

impl FileSystem {
    pub(crate) fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    pub(crate) fn orphans(&self) -> &Directory {
        &self.orphans
    }

    pub(crate) fn table(&self) -> &InodeTable {
        &self.table
    }

    pub(crate) fn reclaim(&self) -> &Reclaim {
        &self.reclaim
    }

    pub(crate) fn writeback_errors(&self) -> &WritebackErrors {
        &self.writeback_errors
    }

    pub(crate) fn counters(&self) -> &FsCounters {
        &self.counters
    }

    pub(crate) fn root(&self) -> u64 {
        self.root
    }

    /// Counts an operation. Fails if the file system is closed.
    pub(crate) fn enter(&self, op: Op) -> Result<()> {
        self.counters.add(FsCounters::OPERATIONS, op as usize, 1);
        self.check_open()
    }

    fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Closed, "the file system is closed")),
        }
    }

    /// # Errors
    /// [`ReadOnly`](ErrorKind::ReadOnly), [`Closed`](ErrorKind::Closed).
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        match self.options.read_only {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::ReadOnly, "the file system is read-only")),
        }
    }

    /// Begins a transaction. The thread holds no inode lock and no other transaction.
    pub(crate) fn begin(&self) -> Result<Transaction<'_>> {
        self.check_writable()?;
        Ok(self.begun(self.pool.begin()?))
    }

    /// As [`begin`](Self::begin), for operations that free space.
    pub(crate) fn begin_freeing(&self) -> Result<Transaction<'_>> {
        self.check_writable()?;
        Ok(self.begun(self.pool.begin_freeing()?))
    }

    fn begun<'a>(&self, tx: Transaction<'a>) -> Transaction<'a> {
        // Store once per transaction group, so that threads do not contend for the cache line.
        if self.last_txg.load(Ordering::Relaxed) != tx.txg() {
            self.last_txg.store(tx.txg(), Ordering::Relaxed);
        }
        tx
    }

    /// Loads the dnode that a change of the inode's attributes needs, so that the change itself
    /// does not block. After a change in the open transaction group it is in memory already.
    pub(crate) fn warm(&self, inode: &Inode) -> Result<()> {
        let last = self.last_txg.load(Ordering::Relaxed);
        if last > 0 && inode.state().stored_txg >= last {
            return Ok(());
        }
        Ok(self.dataset.object_info(inode.number).map(drop)?)
    }

    pub(crate) fn now(&self) -> Time {
        self.options.clock.unix_time()
    }

    pub(crate) fn ino(&self, number: u64) -> Ino {
        match number == self.root {
            true => Ino::ROOT,
            // Numbers from a device were checked. A saturated number belongs to no other inode.
            false => Ino(number.saturating_add(2)),
        }
    }

    /// The object number of an inode.
    pub(crate) fn number(&self, ino: Ino) -> Result<u64> {
        match ino {
            Ino::ROOT => Ok(self.root),
            Ino(ino) => ino.checked_sub(2).filter(|number| *number > 0).ok_or_else(stale),
        }
    }

    /// Returns the inode if it is in memory.
    pub(crate) fn cached(&self, number: u64) -> Option<InodeRef<'_>> {
        Some(InodeRef { fs: self, inode: self.table.get(number)? })
    }

    /// Returns the inode with this number, loaded from the dataset if necessary.
    ///
    /// # Errors
    /// [`Stale`](ErrorKind::Stale) if it does not exist, or a read error.
    pub(crate) fn inode(&self, number: u64) -> Result<InodeRef<'_>> {
        for _ in 0..RETRIES_MAX {
            let guard = match self.table.get_or_load(number) {
                CacheLookup::Hit(inode) => return Ok(InodeRef { fs: self, inode }),
                CacheLookup::Miss(guard) => guard,
            };
            let loaded = self.load(number);
            #[cfg(test)]
            crate::tests::after_load();
            match loaded {
                Ok(loaded) => {
                    if let Some(inode) = guard.finish(loaded) {
                        return Ok(InodeRef { fs: self, inode });
                    }
                }
                Err(error) if !guard.is_stale() => return Err(error),
                Err(_) => {}
            }
            // The inode was in memory during the load.
            self.counters.add(FsCounters::RETRIES, 0, 1);
        }
        Err(retries_exhausted())
    }

    /// Returns the inode that a caller names.
    pub(crate) fn inode_of(&self, ino: Ino) -> Result<InodeRef<'_>> {
        self.inode(self.number(ino)?)
    }

    /// Returns the directory that a caller names.
    pub(crate) fn directory_of(&self, ino: Ino) -> Result<InodeRef<'_>> {
        let inode = self.inode_of(ino)?;
        inode.check_directory()?;
        Ok(inode)
    }

    /// Enters a new inode into the table, before it has a name.
    pub(crate) fn add(&self, inode: Inode) -> InodeRef<'_> {
        InodeRef { fs: self, inode: self.table.add(inode) }
    }

    fn load(&self, number: u64) -> Result<Inode> {
        let doing = |error: Error| error.doing(format_args!("inode {number}"));
        if number == self.orphans.number() {
            return Err(stale());
        }
        let info = match self.dataset.object_info(number) {
            Ok(info) => info,
            Err(error) if error.kind() == PoolKind::NotFound => return Err(stale()),
            Err(error) => return Err(doing(error.into())),
        };
        let meta = Meta::decode(&info.attributes).map_err(doing)?;
        let wanted = match meta.kind {
            FileKind::Directory => ObjectKind::Zap,
            _ => ObjectKind::Data,
        };
        if info.kind != wanted {
            return Err(doing(Error::corrupt("the object has another type than the inode")));
        }
        if meta.nlink == 0 {
            return Err(stale());
        }
        self.counters.add(FsCounters::INODES_LOADED, 0, 1);
        let size = match meta.kind {
            FileKind::Symlink => self.target(&meta).map_err(doing)?.len() as u64,
            _ => info.usage.size_bytes,
        };
        let size_info =
            SizeInfo { size, allocated: info.usage.allocated_bytes, record: info.record_bytes };
        let inode = Inode::new(number, info.created_txg, meta, size_info, 0);
        if info.usage.is_estimate {
            // The object is in memory and will have the final size.
            match inode.kind {
                FileKind::File => inode.file(&self.dataset).map(drop).map_err(doing)?,
                FileKind::Directory => inode.directory(&self.dataset).map(drop).map_err(doing)?,
                _ => {}
            }
        }
        Ok(inode)
    }

    /// Drops a reference.
    pub(crate) fn put(&self, inode: &Inode) {
        if InodeTable::put(inode) {
            self.evict_if_unused(inode.number);
        }
    }

    pub(crate) fn attr(&self, inode: &Inode) -> Attr {
        let (size_info, blocks_estimated) = inode.size_info();
        let (size, allocated, block_bytes) = match inode.kind {
            FileKind::File => (size_info.size, size_info.allocated, size_info.record),
            FileKind::Symlink => (size_info.size, 0, PREFERRED_BYTES),
            FileKind::Directory => {
                (u64::from(PREFERRED_BYTES), size_info.allocated, PREFERRED_BYTES)
            }
            _ => (0, 0, PREFERRED_BYTES),
        };
        let state = inode.state();
        let meta = &state.meta;
        Attr {
            ino: self.ino(inode.number),
            kind: meta.kind,
            mode: meta.mode,
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            rdev: meta.rdev,
            size,
            blocks: allocated.div_ceil(BLOCK_BYTES),
            blocks_estimated,
            block_bytes,
            atime: meta.atime,
            mtime: meta.mtime,
            ctime: meta.ctime,
            btime: meta.btime,
            generation: inode.generation,
        }
    }

    /// Stores attributes. They become durable together with the names that the transaction changes.
    fn store(&self, tx: &Transaction<'_>, number: u64, meta: &Meta) -> Result<()> {
        Ok(self.dataset.set_attributes_with_names(tx, number, &meta.encode())?)
    }

    /// Changes an inode's attributes, in memory and in its object. The caller holds the inode lock.
    pub(crate) fn change(
        &self,
        tx: &Transaction<'_>,
        inode: &Inode,
        change: impl FnOnce(&mut Meta),
    ) -> Result<()> {
        let mut meta = inode.meta();
        change(&mut meta);
        self.store(tx, inode.number, &meta)?;
        inode.set_atime_fresh_until(0);
        let mut state = inode.state();
        state.meta = meta;
        state.times_pending = false;
        state.stored_txg = tx.txg();
        Ok(())
    }

    /// Changes an inode's times. Stores them in the object once per transaction group; later
    /// changes are pending. The caller holds the inode lock.
    pub(crate) fn touch(
        &self,
        tx: &Transaction<'_>,
        inode: &Inode,
        change: impl FnOnce(&mut Meta),
    ) -> Result<()> {
        {
            let mut state = inode.state();
            if state.stored_txg == tx.txg() {
                change(&mut state.meta);
                state.times_pending = true;
                drop(state);
                inode.set_atime_fresh_until(0);
                return Ok(());
            }
        }
        self.change(tx, inode, change)
    }

    /// Stores pending times.
    pub(crate) fn flush_times(&self, inode: &Inode) -> Result<()> {
        if !inode.state().times_pending {
            return Ok(());
        }
        let tx = self.begin_freeing()?;
        self.write_times(&tx, inode)
    }

    fn write_times(&self, tx: &Transaction<'_>, inode: &Inode) -> Result<()> {
        let _lock = inode.lock()?;
        if !inode.state().times_pending {
            return Ok(());
        }
        self.counters.add(FsCounters::TIMES_FLUSHED, 0, 1);
        self.change(tx, inode, |_| {})?;
        // These times may be old: the next change in this transaction group stores its own.
        inode.state().stored_txg = 0;
        Ok(())
    }
}

impl InodeRef<'_> {
    /// Adds a reference. The caller drops it with [`put`](FileSystem::put).
    pub(crate) fn add_ref(&self) {
        self.inode.refs.fetch_add(1, Ordering::SeqCst);
    }

    /// Turns the reference into the result of a lookup, and counts the lookup.
    pub(crate) fn into_entry(self, parent: u64, name: &[u8]) -> Entry {
        let attr = self.fs.attr(&self);
        self.count_lookup(parent, name);
        Entry { attr }
    }

    /// Counts a lookup by this name.
    pub(crate) fn count_lookup(&self, parent: u64, name: &[u8]) {
        self.add_ref();
        self.fs.table.count_lookup(&self.inode);
        let mut state = self.state();
        let same =
            state.dentry.as_ref().is_some_and(|dentry| dentry.0 == parent && *dentry.1 == *name);
        if !same {
            state.dentry = Some((parent, name.into()));
        }
    }
}

#[cold]
pub(crate) fn stale() -> Error {
    Error::new(ErrorKind::Stale, "the inode no longer exists")
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // To see errors, call `close` first.
        let _ = self.close();
    }
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "file system of dataset {} of {:?}", self.dataset.name(), self.pool)
    }
}
