//! The file system object: opening and closing, transactions, and what all operations share.

use forebay_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use forebay_base::sync::thread::spawn_named;
use forebay_base::sync::{Arc, Mutex};
use forebay_pool::format::ObjectKind;
use forebay_pool::{
    Dataset, DatasetSettings, Directory, ErrorKind as PoolKind, HandleView, Pool, Transaction, Wait,
};

use crate::attrs::Meta;
use crate::error::{Error, ErrorKind, Result};
use crate::format::FLAVOUR;
use crate::inode_table::InodeTable;
use crate::options::{AtimeMode, FsOptions};
use crate::reclaim::Reclaim;
use crate::shared::FsShared;
use crate::stats::{FsCounters, FsStats, Op};
use crate::types::{FileKind, Ino, Owner, Time};
use crate::workers::{Dispatch, Workers};
use crate::writeback_errors::WritebackErrors;

/// A file system on a dataset. Clones are handles of the same file system; any number of threads
/// may share them. Dropping the last one closes the file system; to see errors, call
/// [`close`](Self::close) first.
///
/// Operations may block on devices and transaction groups. With a handle of
/// [`non_blocking`](Self::non_blocking) an operation that would block fails with
/// [`WouldBlock`](ErrorKind::WouldBlock) and changes nothing. An inode number stays valid while the
/// inode has a lookup or a handle.
#[derive(Clone)]
pub struct FileSystem {
    pub(crate) shared: Arc<FsShared>,
    /// Whether operations may wait. Those with a transaction have its mode instead.
    pub(crate) wait: Wait,
    /// The process for which it waits while the pool is suspended; 0 if it is not known. `None`
    /// for background work, which does not wait.
    pub(crate) process: Option<u32>,
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
    pub fn open_in(pool: Arc<Pool>, dataset: &str, options: &FsOptions) -> Result<Self> {
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
        let shared = Arc::new(FsShared {
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
            counters: options.counters.clone().unwrap_or_else(|| Arc::new(FsCounters::new())),
            options,
            client: Mutex::named("fs-client", None),
            last_txg: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            is_stored: AtomicBool::new(false),
            waits: AtomicBool::new(true),
        });
        let fs = Self::of(shared);
        // The root stays in memory without a lookup.
        fs.inode(root)?.add_ref();
        fs.shared.reclaim.start(Arc::downgrade(&fs.shared))?;
        Ok(fs)
    }

    /// A handle whose operations may block.
    pub(crate) fn of(shared: Arc<FsShared>) -> Self {
        Self { shared, wait: Wait::Allowed, process: Some(0) }
    }

    /// A handle of this file system whose operations may block.
    pub(crate) fn blocking(&self) -> Self {
        Self { wait: Wait::Allowed, ..self.clone() }
    }

    /// A handle whose operations do not wait while the pool is suspended or devices are gone,
    /// whatever the dataset wants: they fail with [`Suspended`](ErrorKind::Suspended).
    pub fn failing_if_suspended(&self) -> Self {
        Self { process: None, ..self.clone() }
    }

    /// A handle for operations of a process, by its number; 0 if it is not known. An operation that
    /// waits while the pool is suspended or devices are gone ends with
    /// [`Interrupted`](ErrorKind::Interrupted) if the process is killed.
    pub fn for_process(&self, process: u32) -> Self {
        Self { process: Some(process), ..self.clone() }
    }

    /// A handle for background work: it fails while the pool is suspended, and is tried again.
    pub(crate) fn for_background(shared: Arc<FsShared>) -> Self {
        Self { process: None, ..Self::of(shared) }
    }

    /// A handle of this file system in non-blocking mode: an operation that would wait for a device
    /// or a transaction group fails with [`WouldBlock`](ErrorKind::WouldBlock) and has changed
    /// nothing. What is not in memory is being read by then, if possible.
    ///
    /// [`close`](Self::close), [`audit`](Self::audit) and
    /// [`wait_for_reclaim`](Self::wait_for_reclaim) always block.
    pub fn non_blocking(&self) -> Self {
        Self { wait: Wait::Refused, ..self.blocking() }
    }

    /// Ends background work, writes pending times, and makes everything durable. Later calls fail.
    /// Unlinked files that are still open are destroyed when the file system is opened again.
    ///
    /// # Errors
    /// The reason why something is not durable. The file system is closed anyway. A repeated call
    /// tries again to make everything durable.
    pub fn close(&self) -> Result<()> {
        self.shared.close()
    }

    /// Sets when reads update access times, and whether they do so for directories.
    pub fn set_atime(&self, mode: AtimeMode, directories: bool) {
        self.shared.atime.store(encode_atime(mode, directories), Ordering::Relaxed);
    }

    /// When a read of an inode of this kind updates its access time.
    pub(crate) fn atime_of(&self, kind: FileKind) -> AtimeMode {
        let (mode, directories) = decode_atime(self.shared.atime.load(Ordering::Relaxed));
        if directories || kind != FileKind::Directory { mode } else { AtimeMode::Off }
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    /// The name of the dataset.
    pub fn name(&self) -> &str {
        self.shared.dataset.name()
    }

    /// Statistics of the file system.
    pub fn stats(&self) -> FsStats {
        let (workers_busy, jobs_queued) = self.shared.workers.load();
        let counters = self.shared.counters.snapshot().into_iter();
        FsStats {
            inodes: self.shared.table.len(),
            inode_bytes: self.shared.table.bytes(),
            orphans: self.shared.orphans.len(),
            background_tasks: self.shared.reclaim.len(),
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
        if self.shared.table.bytes() <= self.shared.options.memory_bytes {
            return Vec::new();
        }
        let mut names = Vec::new();
        self.shared.table.for_each_round_robin(|inode| {
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

    /// Runs `job` on a thread that may block, with a handle that may block. If the queue is full,
    /// runs it on this thread.
    pub fn spawn(&self, job: Box<dyn FnOnce(&Self) + Send>) {
        let fs = self.blocking();
        let back = self.shared.workers.push(Box::new(move |_| job(&fs)), false);
        let row = match back.is_some() {
            true => FsCounters::JOBS_INLINE,
            false => FsCounters::JOBS,
        };
        self.shared.counters.add(row, 0, 1);
        if let Some(job) = back {
            job(Dispatch::Run);
        }
    }

    /// As [`spawn`](Self::spawn), for a thread that must not block. Without a worker thread, `job`
    /// is called here with [`Dispatch::Cancelled`].
    pub(crate) fn spawn_from_callback(&self, job: Box<dyn FnOnce(&Self, Dispatch) + Send>) {
        let fs = self.blocking();
        self.shared.counters.add(FsCounters::JOBS, 0, 1);
        if let Some(job) =
            self.shared.workers.push(Box::new(move |dispatch| job(&fs, dispatch)), true)
        {
            job(Dispatch::Cancelled);
        }
    }

    /// The error of a cancelled job.
    pub(crate) fn no_worker_error(&self) -> Error {
        match self.shared.check_open() {
            Err(error) => error,
            Ok(()) => Error::new(
                ErrorKind::NoMemory,
                "cannot start a worker thread: the system has no more",
            ),
        }
    }

    /// Drops a handle in a callback that must not block. Dropping the last one closes the file
    /// system, which blocks.
    pub(crate) fn drop_in_background(self) {
        if let Some(last) = Arc::into_inner(self.shared) {
            // Without a thread it is closed here.
            let _ = spawn_named("fs-close", move || drop(last));
        }
    }
}

impl FileSystem {
    pub(crate) fn dataset(&self) -> &Dataset {
        &self.shared.dataset
    }

    pub(crate) fn orphans(&self) -> &Directory {
        &self.shared.orphans
    }

    pub(crate) fn table(&self) -> &InodeTable {
        &self.shared.table
    }

    pub(crate) fn reclaim(&self) -> &Reclaim {
        &self.shared.reclaim
    }

    pub(crate) fn writeback_errors(&self) -> &WritebackErrors {
        &self.shared.writeback_errors
    }

    pub(crate) fn counters(&self) -> &FsCounters {
        &self.shared.counters
    }

    pub(crate) fn root(&self) -> u64 {
        self.shared.root
    }

    /// Counts an operation. Fails if the file system is closed.
    pub(crate) fn enter(&self, op: Op) -> Result<()> {
        self.shared.counters.add(FsCounters::OPERATIONS, op as usize, 1);
        self.shared.check_open()
    }

    /// # Errors
    /// [`ReadOnly`](ErrorKind::ReadOnly), [`Closed`](ErrorKind::Closed).
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.shared.check_writable()
    }

    /// Begins a transaction. The thread holds no inode lock and no other transaction.
    pub(crate) fn begin(&self) -> Result<Transaction<'_>> {
        self.begin_with(self.wait)
    }

    /// As [`begin`](Self::begin), in another mode.
    pub(crate) fn begin_with(&self, wait: Wait) -> Result<Transaction<'_>> {
        self.begin_as(wait, HandleView::begin)
    }

    /// As [`begin`](Self::begin), for changes of attributes and names, also in a full pool.
    pub(crate) fn begin_update(&self) -> Result<Transaction<'_>> {
        self.begin_as(self.wait, HandleView::begin_update)
    }

    /// As [`begin`](Self::begin), for operations that free space.
    pub(crate) fn begin_freeing(&self) -> Result<Transaction<'_>> {
        self.begin_as(self.wait, HandleView::begin_freeing)
    }

    fn begin_as<'a>(
        &'a self,
        wait: Wait,
        begin: impl Fn(HandleView<'a, Pool>) -> forebay_pool::Result<Transaction<'a>>,
    ) -> Result<Transaction<'a>> {
        self.unless_suspended(wait, || {
            self.check_writable()?;
            Ok(self.begun(begin(self.shared.pool.with_wait(wait))?))
        })
    }

    fn begun<'a>(&self, tx: Transaction<'a>) -> Transaction<'a> {
        // Store once per transaction group, so that threads do not contend for the cache line.
        if self.shared.last_txg.load(Ordering::Relaxed) != tx.txg() {
            self.shared.last_txg.store(tx.txg(), Ordering::Relaxed);
        }
        tx
    }

    pub(crate) fn now(&self) -> Time {
        self.shared.options.clock.unix_time()
    }
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "file system of dataset {} of {:?}", self.shared.dataset.name(), self.shared.pool)
    }
}
