//! The registry entries of a daemon: imported pools and mounted datasets.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use forebay_base::sync::Mutex;
use forebay_fs::{FileSystem, FsCounters, FsOptions, FsStats, ReadBuffers};
use forebay_fuse::{Groups, Mount, MountError, MountOptions};
use forebay_pool::Pool;

use super::MountRequest;
use super::follow::Following;
use crate::control::messages::PoolInfo;
use crate::error::{Failure, Result};
use crate::flags::Flags;
use crate::memory::{MAX_WRITE_BYTES, MemoryPlan};

/// Name of the tunable that limits the dirty data of a pool.
pub(crate) const DIRTY_TUNABLE: &str = "dirty_max_bytes";
/// Threads of a mount for operations that block.
const WORKERS: usize = 16;

/// An imported pool.
pub(crate) struct ImportedPool {
    /// Of a pool that is followed: that of the newest group.
    pool: Mutex<Arc<Pool>>,
    /// Canonical paths that were given to the import, of devices that it does not use.
    unused: Vec<PathBuf>,
    mounts: Mutex<Vec<Arc<MountedDataset>>>,
    /// True if the pool stays imported without mounts.
    stays: AtomicBool,
    /// True if the user has set the limit of dirty data.
    dirty_set: AtomicBool,
    /// The pool is followed as another host writes it.
    pub(crate) following: Option<Following>,
    closing: Mutex<Closing>,
    /// Those who want that an export does not wait for a store that is away.
    giving_up: Arc<AtomicUsize>,
    /// Whether changes that are not durable may be lost with the pool.
    given_up: AtomicBool,
}

/// How far the export of a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Closing {
    Open,
    Running,
    Ended(Result<(), String>),
}

/// While it lives, an export of its pool does not wait for an object store that is away.
pub(crate) struct GivingUp(Arc<AtomicUsize>);

impl Drop for GivingUp {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Paths of the devices of a pool that are there.
fn paths(pool: &Pool) -> Vec<PathBuf> {
    let there = pool.devices().into_iter().filter(|device| !device.missing);
    there.map(|device| PathBuf::from(device.path)).collect()
}

impl ImportedPool {
    pub(super) fn new(
        pool: Pool,
        following: Option<Following>,
        devices: Vec<PathBuf>,
        dirty_set: bool,
    ) -> Self {
        let used = paths(&pool);
        let unused = devices.into_iter().filter(|path| !used.contains(path)).collect();
        Self {
            pool: Mutex::named("registry-pool", Arc::new(pool)),
            following,
            unused,
            mounts: Mutex::named("registry-mounts", Vec::new()),
            stays: AtomicBool::new(false),
            dirty_set: AtomicBool::new(dirty_set),
            closing: Mutex::named("registry-closing", Closing::Open),
            giving_up: Arc::default(),
            given_up: AtomicBool::new(false),
        }
    }

    /// The pool; of one that is followed, as of the newest transaction group.
    pub(crate) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool.lock())
    }

    /// Replaces a pool that is followed by that of a newer group. Returns the one before.
    pub(super) fn advance(&self, pool: Pool) -> Arc<Pool> {
        std::mem::replace(&mut *self.pool.lock(), Arc::new(pool))
    }

    /// While the guard lives, an export, also a running one, does not wait for an object store that
    /// is away. What is not durable is lost then.
    pub(crate) fn give_up(&self) -> GivingUp {
        self.giving_up.fetch_add(1, Ordering::Relaxed);
        GivingUp(Arc::clone(&self.giving_up))
    }

    /// Sets whether changes that are not durable may be lost with the pool.
    pub(super) fn give_changes_up(&self, given_up: bool) {
        self.given_up.store(given_up, Ordering::Relaxed);
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Claims the export for the calling thread. Returns false if another thread exports the pool,
    /// or has exported it.
    pub(super) fn begin_closing(&self) -> bool {
        let mut closing = self.closing.lock();
        let begins = *closing == Closing::Open;
        if begins {
            *closing = Closing::Running;
        }
        begins
    }

    pub(super) fn is_closing(&self) -> bool {
        *self.closing.lock() != Closing::Open
    }

    pub(super) fn set_closed(&self, result: Result<(), String>) {
        *self.closing.lock() = Closing::Ended(result);
    }

    /// The result of the export, once it has ended.
    pub(super) fn closed(&self) -> Option<Result<(), String>> {
        match &*self.closing.lock() {
            Closing::Ended(result) => Some(result.clone()),
            Closing::Open | Closing::Running => None,
        }
    }

    /// Exports the pool, and closes its devices.
    ///
    /// # Errors
    /// As [`Pool::close_with_devices`].
    pub(super) fn close(&self) -> forebay_pool::Result<()> {
        let giving_up = Arc::clone(&self.giving_up);
        let gives_up = move || giving_up.load(Ordering::Relaxed) > 0;
        self.pool().close_with_devices(Some(Arc::new(gives_up)))
    }

    pub(super) fn has_device(&self, paths: &[PathBuf]) -> bool {
        self.devices().iter().any(|device| paths.contains(device))
    }

    /// Canonical paths of the devices: those of the pool, which may change, and those that were
    /// given and are not used.
    pub(crate) fn devices(&self) -> Vec<PathBuf> {
        let mut devices = paths(&self.pool());
        devices.extend(self.unused.iter().cloned());
        devices
    }

    pub(crate) fn mounts(&self) -> Vec<Arc<MountedDataset>> {
        self.mounts.lock().clone()
    }

    pub(super) fn add_mount(&self, mount: &Arc<MountedDataset>) {
        self.mounts.lock().push(Arc::clone(mount));
    }

    pub(super) fn remove_mount(&self, mount: &Arc<MountedDataset>) {
        self.mounts.lock().retain(|other| !Arc::ptr_eq(other, mount));
    }

    pub(super) fn stay(&self) {
        self.stays.store(true, Ordering::Relaxed);
    }

    pub(super) fn go_with_last_mount(&self) {
        self.stays.store(false, Ordering::Relaxed);
    }

    pub(super) fn stays(&self) -> bool {
        self.stays.load(Ordering::Relaxed)
    }

    /// Limits the dirty data of the pool, unless the user has set the limit.
    pub(super) fn bound_dirty(&self, bytes: u64) {
        if !self.dirty_set.load(Ordering::Relaxed) {
            // A value out of range is refused, and the default, which fits the cache, stays.
            let _ = self.pool().set_tunable(DIRTY_TUNABLE, &bytes.to_string());
        }
    }

    /// Sets a tunable on behalf of the user.
    ///
    /// # Errors
    /// If the name or the value is invalid.
    pub(crate) fn set_tunable(&self, name: &str, value: &str) -> Result<()> {
        self.pool().set_tunable(name, value)?;
        if name == DIRTY_TUNABLE {
            self.dirty_set.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn info(&self) -> PoolInfo {
        super::pool_info(self)
    }
}

/// A mounted dataset.
pub(crate) struct MountedDataset {
    pub(crate) pool: String,
    pub(crate) dataset: String,
    pub(crate) kernel_cache: bool,
    /// True if the file system was opened read-only, which a remount cannot change.
    opened_read_only: bool,
    flags: Mutex<Flags>,
    files: Files,
    mount: Mount,
    /// Its path when it was looked for last.
    seen_at: Mutex<PathBuf>,
    /// Whether another mount was over it when it was to be unmounted last.
    covered: AtomicBool,
    /// Result of closing, once the mount is closed.
    outcome: Mutex<Option<Result<(), NotClean>>>,
}

/// Why a mount was not closed cleanly.
#[derive(Clone, Debug)]
pub(super) struct NotClean {
    pub(super) message: String,
    /// True if the pool, which is suspended, still has all changes. Its export says what becomes of
    /// them.
    pub(super) is_pending: bool,
}

impl From<Failure> for NotClean {
    fn from(failure: Failure) -> Self {
        Self { message: failure.message, is_pending: false }
    }
}

impl From<NotClean> for Failure {
    fn from(error: NotClean) -> Self {
        Self::new(error.message)
    }
}

impl MountedDataset {
    /// Opens the file system of a dataset, and mounts it.
    ///
    /// # Errors
    /// If the dataset does not exist or cannot be mounted.
    pub(super) fn begin(
        imported: &ImportedPool,
        request: &MountRequest,
        plan: &MemoryPlan,
    ) -> Result<Self> {
        forebay_fuse::available()?;
        let pool = imported.pool().name().to_owned();
        let its_pool = imported.pool();
        let read_only = request.flags.read_only || its_pool.is_read_only();
        let files_options = FilesOptions::new(request, plan);
        let files = match &imported.following {
            Some(following) => {
                let group = following.group(imported, |pool| files_options.open(pool))?;
                Files::Following(Groups::new(group), files_options)
            }
            None => Files::Fixed(files_options.open(&its_pool)?),
        };
        let mut options = MountOptions::default();
        options.threads = request.threads.unwrap_or(plan.threads);
        options.kernel_cache = request.kernel_cache;
        let flags = Flags { read_only, ..request.flags };
        options.flags = flags.for_kernel();
        options.allow_other = request.allow_other;
        options.fs_name = format!("{pool}/{}", request.dataset);
        options.max_write_bytes = MAX_WRITE_BYTES;
        options.max_waiting_bytes = plan.waiting_bytes as usize;
        options.max_suspended_bytes = plan.suspended_bytes as usize;
        let mounted = match &files {
            Files::Fixed(fs) => forebay_fuse::mount(fs.clone(), &request.at, &options),
            Files::Following(groups, _) => {
                forebay_fuse::mount_following(Arc::clone(groups), &request.at, &options)
            }
        };
        match mounted {
            Ok(mount) => Ok(Self {
                pool,
                dataset: request.dataset.clone(),
                kernel_cache: request.kernel_cache,
                opened_read_only: read_only,
                flags: Mutex::named("mount-flags", flags),
                files,
                seen_at: Mutex::named("mount-seen-at", mount.path().to_owned()),
                covered: AtomicBool::new(false),
                mount,
                outcome: Mutex::named("mount-outcome", None),
            }),
            Err(error) => {
                // The mount error is returned; the close error would hide it.
                let _ = files.close();
                Err(error.into())
            }
        }
    }

    /// The current flags: those of the kernel, or the last ones set if it is not mounted any more.
    pub(crate) fn flags(&self) -> Flags {
        self.current(*self.flags.lock())
    }

    fn current(&self, last: Flags) -> Flags {
        self.mount.flags().map_or(last, |shown| last.as_the_kernel_has(&shown))
    }

    /// Changes the named flags; other flags stay.
    ///
    /// # Errors
    /// If a name is unknown, if a mount that was opened read-only is to become writable, or if the
    /// kernel refuses.
    pub(super) fn remount(&self, names: &[String]) -> Result<()> {
        let mut flags = self.flags.lock();
        let mut changed = self.current(*flags);
        if let Some(unknown) = names.iter().find(|name| !changed.take(name)) {
            return Err(Failure::new(format!(
                "-o {unknown}: no such flag; valid flags are {}",
                Flags::NAMES
            )));
        }
        if self.opened_read_only && !changed.read_only {
            return Err(Failure::new(format!(
                "{0}: cannot become writable: it was mounted read-only; run `forebay umount {0}`, and \
                 mount it again without ro",
                self.current_at().display()
            )));
        }
        self.mount.remount(&changed.for_kernel())?;
        self.files.newest().set_atime(changed.atime_mode(), !changed.no_dir_atime);
        *flags = changed;
        Ok(())
    }

    /// Where it is now, as after a rename of a directory above it. Once it has left the mount
    /// table, where it was seen last.
    pub(crate) fn current_at(&self) -> PathBuf {
        let current = self.mount.current_path();
        let mut seen_at = self.seen_at.lock();
        if let Some(path) = current {
            *seen_at = path;
        }
        seen_at.clone()
    }

    /// Its id in the mount table; `None` if it is not there.
    pub(crate) fn id(&self) -> Option<u64> {
        self.mount.id()
    }

    /// Whether the mount table shows it at this path.
    pub(crate) fn is_attached_at(&self, at: &Path) -> bool {
        self.mount.current_path().is_some_and(|path| path == at)
    }

    /// Whether another mount was over it when it was to be unmounted last. Does not look again: a
    /// walk of its path may hang, and this is asked when the daemon must end.
    pub(super) fn is_covered(&self) -> bool {
        self.covered.load(Ordering::Relaxed)
    }

    /// What to say of a mount that is still in the mount table when its process ends.
    pub(super) fn left_behind(&self) -> Option<String> {
        let path = self.mount.current_path()?;
        let at = path.display();
        Some(match self.is_covered() {
            true => format!(
                "{at}: stays behind, dead, below another mount; run `forebay umount {at}` once that is gone"
            ),
            false => format!("{at}: stays behind, dead; run `forebay umount {at}`"),
        })
    }

    /// Waits until the mount ends. Returns the reason if it was not unmounted.
    pub(super) fn wait(&self) -> Option<String> {
        self.mount.wait()
    }

    /// Unmounts, and waits for the end of the mount, unless `lazy`.
    pub(super) fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        self.unmount_by(if lazy { Mount::unmount_lazily } else { Mount::unmount })
    }

    /// Unmounts, without waiting for the end of the mount.
    pub(super) fn begin_unmount(&self, lazy: bool) -> Result<(), MountError> {
        self.unmount_by(if lazy { Mount::unmount_lazily } else { Mount::begin_unmount })
    }

    /// The error of an unmount that was begun long ago: another mount keeps the file system. `None`
    /// if the mount has ended, and is being closed.
    pub(super) fn kept_elsewhere(&self) -> Option<MountError> {
        (!self.mount.has_ended()).then(|| self.mount.in_use_elsewhere())
    }

    fn unmount_by(&self, unmount: fn(&Mount) -> Result<(), MountError>) -> Result<(), MountError> {
        // For messages, since it leaves the mount table.
        let _ = self.current_at();
        let done = unmount(&self.mount);
        let is_covered = matches!(done, Err(MountError::Covered { .. }));
        self.covered.store(is_covered, Ordering::Relaxed);
        done
    }

    /// Closes the file system.
    pub(super) fn close(&self) -> Result<(), NotClean> {
        self.files.close().map_err(|error| NotClean {
            is_pending: error.kind() == forebay_fs::ErrorKind::Suspended,
            ..NotClean::from(Failure::from(error))
        })
    }

    pub(super) fn set_outcome(&self, outcome: Result<(), NotClean>) {
        *self.outcome.lock() = Some(outcome);
    }

    pub(super) fn outcome(&self) -> Option<Result<(), NotClean>> {
        self.outcome.lock().clone()
    }

    /// Shows the newest transaction group of a pool that is followed. Ends groups that no open file
    /// needs.
    ///
    /// # Errors
    /// If the file system cannot be opened as of that group. The mount goes on with the one before.
    pub(super) fn follow(&self, imported: &ImportedPool, following: &Following) -> Result<()> {
        let Files::Following(groups, options) = &self.files else { return Ok(()) };
        // Not by number: a store that was set back to a copy has the same numbers again.
        if Arc::ptr_eq(groups.current().fs().pool(), &imported.pool()) {
            groups.drop_unused();
            return Ok(());
        }
        groups.advance(following.group(imported, |pool| options.open(pool))?);
        Ok(())
    }

    /// Transaction groups that it uses, if its pool is followed.
    pub(crate) fn groups(&self) -> usize {
        match &self.files {
            Files::Fixed(_) => 0,
            Files::Following(groups, _) => groups.len(),
        }
    }

    /// Statistics of the file system.
    pub(crate) fn files_stats(&self) -> FsStats {
        self.files.newest().stats()
    }

    /// Statistics of the mount.
    pub(crate) fn mount_stats(&self) -> forebay_fuse::MountStats {
        self.mount.stats()
    }

    /// How long operations of the mount took.
    pub(crate) fn mount_latencies(&self) -> Vec<forebay_fuse::OperationLatency> {
        self.mount.latencies()
    }
}

/// What a mount serves.
enum Files {
    Fixed(FileSystem),
    /// Of a pool that is followed: one file system for each group.
    Following(Arc<Groups>, FilesOptions),
}

impl Files {
    fn newest(&self) -> FileSystem {
        match self {
            Self::Fixed(files) => files.clone(),
            Self::Following(groups, _) => groups.current().fs().clone(),
        }
    }

    fn close(&self) -> forebay_fs::Result<()> {
        match self {
            Self::Fixed(files) => files.close(),
            Self::Following(groups, _) => {
                groups.close();
                Ok(())
            }
        }
    }
}

/// How the file system of a dataset is opened.
struct FilesOptions {
    dataset: String,
    options: FsOptions,
}

impl FilesOptions {
    fn new(request: &MountRequest, plan: &MemoryPlan) -> Self {
        let options = FsOptions {
            memory_bytes: plan.inode_bytes,
            read_only: request.flags.read_only,
            atime: request.flags.atime_mode(),
            dir_atime: !request.flags.no_dir_atime,
            workers: WORKERS,
            // Each transaction group of a pool that is followed has these.
            read_buffers: Arc::new(ReadBuffers::new(plan.reading_bytes as usize)),
            counters: Some(Arc::new(FsCounters::new())),
            ..FsOptions::default()
        };
        Self { dataset: request.dataset.clone(), options }
    }

    /// Opens the file system of a dataset. If the pool is read-only, so is the file system.
    fn open(&self, pool: &Arc<Pool>) -> Result<FileSystem> {
        let names = pool.datasets()?;
        if !names.contains(&self.dataset) {
            let (name, has) = (pool.name(), names.join(", "));
            let hint = match names.is_empty() {
                true => "it has none; create one with `forebay dataset create`".to_owned(),
                false => format!(
                    "it has {has}; give one of these with --dataset, or create it with `forebay dataset create`"
                ),
            };
            return Err(Failure::new(format!(
                "pool {name} has no dataset {}: {hint}",
                self.dataset
            )));
        }
        Ok(FileSystem::open_in(Arc::clone(pool), &self.dataset, &self.options)?)
    }
}

impl From<forebay_fs::Error> for Failure {
    fn from(error: forebay_fs::Error) -> Self {
        Self::new(crate::error::one_line(&error.to_string()))
    }
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        Self::new(crate::error::one_line(&error.to_string()))
    }
}
