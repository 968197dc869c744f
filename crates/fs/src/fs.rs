//! A file system: what all operations share.

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

/// Unit of `Attr::blocks`.
const BLOCK_BYTES: u64 = 512;
/// What directories and others without content say of their best size of requests.
const PREFERRED_BYTES: u32 = 4096;

/// Files on a dataset. Any number of threads may share it.
///
/// Each operation may wait for devices and for transaction groups; in
/// [`without_waiting`](forebay_pool::without_waiting) it fails with [`WouldBlock`](ErrorKind::WouldBlock) instead, having
/// changed nothing. Numbers of inodes stay good while there is a lookup or a handle for them.
pub struct FileSystem {
    pool: Arc<Pool>,
    dataset: Dataset,
    /// Number of the root's object.
    root: u64,
    orphans: Directory,
    table: InodeTable,
    pub(crate) workers: Workers,
    reclaim: Arc<Reclaim>,
    writeback_errors: WritebackErrors,
    /// One at a time moves directories between directories: whoever does looks at all above them.
    pub(crate) rename_mutex: Mutex<()>,
    pub(crate) options: FsOptions,
    /// When reading changes times, as [`set_atime`](Self::set_atime) encodes it.
    atime: AtomicU8,
    pub(crate) client: Mutex<Option<Arc<dyn Client>>>,
    counters: FsCounters,
    /// The transaction group that somebody last began a transaction in.
    last_txg: AtomicU64,
    closed: AtomicBool,
}

/// Two bits for the mode, and one for directories.
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

/// An inode that somebody uses: it stays in memory meanwhile.
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
    /// Makes an empty file system in a new dataset, or in one that was made and has nothing in it. Durable on return.
    ///
    /// # Errors
    /// [`Exists`](ErrorKind::Exists), and what the pool says.
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

    /// Opens the file system of a dataset. What was deleted and still in use when it was last open is destroyed in the background
    /// from now on.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no such dataset, [`Invalid`](ErrorKind::Invalid) if it holds no files,
    /// [`Corrupt`](ErrorKind::Corrupt), and what the pool says.
    pub fn open_in(pool: Arc<Pool>, dataset: &str, options: &FsOptions) -> Result<Arc<Self>> {
        let name = dataset;
        let doing = |error: Error| error.doing(format_args!("the files of dataset {name}"));
        let dataset = pool.dataset(name).map_err(|error| match error.kind() {
            PoolKind::NotFound => Error::new(ErrorKind::NotFound, error.to_string()),
            _ => error.into(),
        })?;
        if dataset.flavour() != FLAVOUR || dataset.root_object() == 0 {
            let text = format!("dataset {name} holds no files: make a new dataset for them");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let root = dataset.root_object();
        let info = dataset.object_info(root).map_err(|error| doing(error.into()))?;
        let meta = Meta::decode(&info.attributes).map_err(doing)?;
        if meta.kind != FileKind::Directory || info.kind != ObjectKind::Zap {
            return Err(doing(Error::corrupt("the root is no directory")));
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
        // For ever: nobody looks it up.
        fs.inode(root)?.add_ref();
        fs.reclaim.start(Arc::downgrade(&fs))?;
        Ok(fs)
    }

    /// Ends work in the background, writes what is not written, and makes all durable. Every later call fails. What is unlinked and
    /// open is destroyed when the file system is opened again.
    ///
    /// # Errors
    /// Why something is not durable. It is closed all the same.
    pub fn close(&self) -> Result<()> {
        let writable = self.check_writable().is_ok();
        // From here on jobs and callbacks find it closed, and begin nothing.
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

    /// Sets when reading changes times, and whether it does so for directories too.
    pub fn set_atime(&self, mode: AtimeMode, directories: bool) {
        self.atime.store(encode_atime(mode, directories), Ordering::Relaxed);
    }

    /// When reading an inode of that kind changes its time of access.
    pub(crate) fn atime_of(&self, kind: FileKind) -> AtimeMode {
        let (mode, directories) = decode_atime(self.atime.load(Ordering::Relaxed));
        if directories || kind != FileKind::Directory { mode } else { AtimeMode::Off }
    }

    /// The pool that it is on.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The name of its dataset.
    pub fn name(&self) -> &str {
        self.dataset.name()
    }

    /// The file system in numbers.
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

    /// Where inodes were looked up that could go from memory if whoever looked them up forgot them: up to `most` directories and
    /// names; no names of directories. Nothing as long as inodes take no more memory than [`FsOptions::memory_bytes`]. Each call looks at other inodes.
    pub fn reclaimable(&self, most: usize) -> Vec<(Ino, Vec<u8>)> {
        if self.table.bytes() <= self.options.memory_bytes {
            return Vec::new();
        }
        let mut names = Vec::new();
        self.table.for_each_round_robin(|inode| {
            let state = inode.state();
            // A directory may be somebody's working directory, and would be lost to them.
            let may_go = state.opens == 0 && inode.kind != FileKind::Directory;
            if let (true, Some((parent, name))) = (may_go, &state.dentry) {
                names.push((self.ino(*parent), name.to_vec()));
            }
            names.len() < most
        });
        names
    }

    /// Runs `job` on a thread that may wait. If too many jobs wait already, this thread runs it.
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

    /// The same for a thread that must not wait. If there is no thread for it, `job` learns that, here.
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

    /// Why there is no thread.
    pub(crate) fn no_worker_error(&self) -> Error {
        match self.check_open() {
            Err(error) => error,
            Ok(()) => Error::new(ErrorKind::NoMemory, "the system gives no thread"),
        }
    }

    /// Ends the use of a file system in a callback that must not wait. If it is the last one, that closes it, which waits.
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

    /// Counts an operation, and refuses it if the file system is closed.
    pub(crate) fn enter(&self, op: Op) -> Result<()> {
        self.counters.add(FsCounters::OPERATIONS, op as usize, 1);
        self.check_open()
    }

    fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Closed, "the file system was closed")),
        }
    }

    /// # Errors
    /// [`ReadOnly`](ErrorKind::ReadOnly), [`Closed`](ErrorKind::Closed).
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        match self.options.read_only {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::ReadOnly, "it was opened for reading only")),
        }
    }

    /// Begins a transaction. The thread has no turn, and no other transaction.
    pub(crate) fn begin(&self) -> Result<Transaction<'_>> {
        self.check_writable()?;
        Ok(self.begun(self.pool.begin()?))
    }

    /// The same, for what gives room back.
    pub(crate) fn begin_freeing(&self) -> Result<Transaction<'_>> {
        self.check_writable()?;
        Ok(self.begun(self.pool.begin_freeing()?))
    }

    fn begun<'a>(&self, tx: Transaction<'a>) -> Transaction<'a> {
        // Once a group: no line that threads fight for.
        if self.last_txg.load(Ordering::Relaxed) != tx.txg() {
            self.last_txg.store(tx.txg(), Ordering::Relaxed);
        }
        tx
    }

    /// Brings what a change of an inode's attributes needs into memory, so that the change itself has nothing to wait for. What the
    /// open group has changed already is there.
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
            // Numbers that come from a device were checked; whatever else it is, it is not another one's.
            false => Ino(number.saturating_add(2)),
        }
    }

    /// The object of an inode.
    pub(crate) fn number(&self, ino: Ino) -> Result<u64> {
        match ino {
            Ino::ROOT => Ok(self.root),
            Ino(ino) => ino.checked_sub(2).filter(|number| *number > 0).ok_or_else(stale),
        }
    }

    /// An inode that is in memory.
    pub(crate) fn cached(&self, number: u64) -> Option<InodeRef<'_>> {
        Some(InodeRef { fs: self, inode: self.table.get(number)? })
    }

    /// The inode of a number, read from the dataset if need be.
    ///
    /// # Errors
    /// [`Stale`](ErrorKind::Stale) if there is none, and what reading it brings.
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
            // Others had it meanwhile.
            self.counters.add(FsCounters::RETRIES, 0, 1);
        }
        Err(retries_exhausted())
    }

    /// The inode that a caller names.
    pub(crate) fn inode_of(&self, ino: Ino) -> Result<InodeRef<'_>> {
        self.inode(self.number(ino)?)
    }

    /// The directory that a caller names.
    pub(crate) fn directory_of(&self, ino: Ino) -> Result<InodeRef<'_>> {
        let inode = self.inode_of(ino)?;
        inode.check_directory()?;
        Ok(inode)
    }

    /// A new inode, in memory, before any name leads to it.
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
            return Err(doing(Error::corrupt("its object is of another kind")));
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
        if info.usage.is_guess {
            // Its object is in memory, and knows what comes of it.
            match inode.kind {
                FileKind::File => inode.file(&self.dataset).map(drop).map_err(doing)?,
                FileKind::Directory => inode.directory(&self.dataset).map(drop).map_err(doing)?,
                _ => {}
            }
        }
        Ok(inode)
    }

    /// Ends the use of an inode.
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

    /// Writes attributes, so that they are durable with the names that the transaction changes.
    fn store(&self, tx: &Transaction<'_>, number: u64, meta: &Meta) -> Result<()> {
        Ok(self.dataset.set_attributes_with_names(tx, number, &meta.encode())?)
    }

    /// Changes what is known of an inode, here and in its object. The caller has its turn.
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

    /// Changes the times of an inode: in its object only once a group; the last ones follow later. The caller has its turn.
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

    /// Writes times that are not in the object yet.
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
        self.change(tx, inode, |_| {})
    }
}

impl InodeRef<'_> {
    /// Adds a reference that somebody ends with [`put`](FileSystem::put).
    pub(crate) fn add_ref(&self) {
        self.inode.refs.fetch_add(1, Ordering::SeqCst);
    }

    /// As the answer to a lookup: counts it.
    pub(crate) fn into_entry(self, parent: u64, name: &[u8]) -> Entry {
        let attr = self.fs.attr(&self);
        self.count_lookup(parent, name);
        Entry { attr }
    }

    /// Counts a lookup under that name.
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
    Error::new(ErrorKind::Stale, "there is no such inode any more")
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // Whoever wants to know what fails closes it before.
        let _ = self.close();
    }
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "files of dataset {} of {:?}", self.dataset.name(), self.pool)
    }
}
