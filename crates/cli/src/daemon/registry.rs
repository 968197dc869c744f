//! A pool that the process has, and a mount of one of its datasets.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_base::sync::Mutex;
use forebay_fs::{FileSystem, FsOptions, FsStats};
use forebay_fuse::{Mount, MountError, MountOptions};
use forebay_pool::Pool;

use super::MountRequest;
use crate::control::messages::PoolInfo;
use crate::error::{Failure, Result};
use crate::flags::Flags;
use crate::memory::{MAX_WRITE_BYTES, MemoryPlan};

/// The tunable that says how much of a pool may be dirty.
pub(crate) const DIRTY_TUNABLE: &str = "dirty_max_bytes";
/// Threads of a mount for what must wait.
const WORKERS: usize = 16;

/// A pool that the process has.
pub(crate) struct ImportedPool {
    pub(crate) pool: Arc<Pool>,
    /// Paths of its devices, absolute and without links.
    devices: Mutex<Vec<PathBuf>>,
    mounts: Mutex<Vec<Arc<MountedDataset>>>,
    /// Whether it stays without mounts.
    stay: AtomicBool,
    /// Whether the user has said how much may be dirty.
    dirty_set: AtomicBool,
}

impl ImportedPool {
    pub(super) fn new(pool: Pool, devices: Vec<PathBuf>, dirty_set: bool) -> Self {
        Self {
            pool: Arc::new(pool),
            devices: Mutex::named("registry-devices", devices),
            mounts: Mutex::named("registry-mounts", Vec::new()),
            stay: AtomicBool::new(false),
            dirty_set: AtomicBool::new(dirty_set),
        }
    }

    pub(super) fn has_device(&self, paths: &[PathBuf]) -> bool {
        self.devices.lock().iter().any(|device| paths.contains(device))
    }

    pub(crate) fn devices(&self) -> Vec<PathBuf> {
        self.devices.lock().clone()
    }

    /// Another device belongs to it now.
    pub(crate) fn add_device(&self, path: PathBuf) {
        self.devices.lock().push(path);
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
        self.stay.store(true, Ordering::Relaxed);
    }

    pub(super) fn go_with_last_mount(&self) {
        self.stay.store(false, Ordering::Relaxed);
    }

    pub(super) fn stays(&self) -> bool {
        self.stay.load(Ordering::Relaxed)
    }

    /// Bounds what may be dirty, unless the user has.
    pub(super) fn bound_dirty(&self, bytes: u64) {
        if !self.dirty_set.load(Ordering::Relaxed) {
            // A share that is out of the tunable's range is not needed: the default is within the cache.
            let _ = self.pool.set_tunable(DIRTY_TUNABLE, &bytes.to_string());
        }
    }

    /// Sets a tunable, at the user's wish.
    ///
    /// # Errors
    /// If it cannot be set so.
    pub(crate) fn set_tunable(&self, name: &str, value: &str) -> Result<()> {
        self.pool.set_tunable(name, value)?;
        if name == DIRTY_TUNABLE {
            self.dirty_set.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn info(&self) -> PoolInfo {
        super::pool_info(self)
    }
}

/// A dataset that is mounted.
pub(crate) struct MountedDataset {
    pub(crate) pool: String,
    pub(crate) dataset: String,
    pub(crate) kernel_cache: bool,
    /// The files were opened for reading only: no flag changes that.
    only_read: bool,
    flags: Mutex<Flags>,
    files: Arc<FileSystem>,
    mount: Mount,
    /// How its end went, once all is closed.
    outcome: Mutex<Option<Result<(), String>>>,
}

impl MountedDataset {
    /// Opens the dataset's files and mounts them.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn begin(
        imported: &ImportedPool,
        request: &MountRequest,
        plan: &MemoryPlan,
    ) -> Result<Self> {
        forebay_fuse::available()?;
        let pool = imported.pool.name().to_owned();
        let read_only = request.flags.read_only || imported.pool.is_read_only();
        let files = open_files(&imported.pool, request, plan)?;
        let mut options = MountOptions::default();
        options.threads = request.threads.unwrap_or(plan.threads);
        options.kernel_cache = request.kernel_cache;
        let flags = Flags { read_only, ..request.flags };
        options.flags = flags.for_kernel();
        options.allow_other = request.allow_other;
        options.fs_name = format!("{pool}/{}", request.dataset);
        options.max_write_bytes = MAX_WRITE_BYTES;
        match forebay_fuse::mount(Arc::clone(&files), &request.at, &options) {
            Ok(mount) => Ok(Self {
                pool,
                dataset: request.dataset.clone(),
                kernel_cache: request.kernel_cache,
                only_read: read_only,
                flags: Mutex::named("mount-flags", flags),
                files,
                mount,
                outcome: Mutex::named("mount-outcome", None),
            }),
            Err(error) => {
                // The first error is the one to tell.
                let _ = files.close();
                Err(error.into())
            }
        }
    }

    /// The flags that it has: as the kernel shows them, and as it was told if it is mounted no more.
    pub(crate) fn flags(&self) -> Flags {
        self.shown(*self.flags.lock())
    }

    fn shown(&self, told: Flags) -> Flags {
        self.mount.flags().map_or(told, |shown| told.as_the_kernel_has(&shown))
    }

    /// Changes the flags of these names; others stay.
    ///
    /// # Errors
    /// If there is none of a name, if it was mounted for reading only and is to be written to, and what
    /// the kernel says.
    pub(super) fn remount(&self, names: &[String]) -> Result<()> {
        let mut flags = self.flags.lock();
        let mut changed = self.shown(*flags);
        if let Some(unknown) = names.iter().find(|name| !changed.take(name)) {
            return Err(Failure::new(format!(
                "-o {unknown}: no such flag; there are {}",
                Flags::NAMES
            )));
        }
        if self.only_read && !changed.read_only {
            return Err(Failure::new(format!(
                "{0}: cannot become writable: it was mounted for reading only; `forebay umount {0}`, and \
                 mount it without ro",
                self.at().display()
            )));
        }
        self.mount.remount(&changed.for_kernel())?;
        self.files.set_atime(changed.atime_mode(), !changed.no_dir_atime);
        *flags = changed;
        Ok(())
    }

    pub(crate) fn at(&self) -> &Path {
        self.mount.path()
    }

    /// Waits for its end; what broke it, if it was not unmounted.
    pub(super) fn wait(&self) -> Option<String> {
        self.mount.wait()
    }

    pub(super) fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        if lazy { self.mount.unmount_lazily() } else { self.mount.unmount() }
    }

    /// Closes its files.
    pub(super) fn close(&self) -> Result<()> {
        Ok(self.files.close()?)
    }

    pub(super) fn set_outcome(&self, outcome: Result<(), String>) {
        *self.outcome.lock() = Some(outcome);
    }

    pub(super) fn outcome(&self) -> Option<Result<(), String>> {
        self.outcome.lock().clone()
    }

    /// Its files in numbers.
    pub(crate) fn files_stats(&self) -> FsStats {
        self.files.stats()
    }

    /// The mount in numbers.
    pub(crate) fn mount_stats(&self) -> forebay_fuse::MountStats {
        self.mount.stats()
    }
}

fn open_files(
    pool: &Arc<Pool>,
    request: &MountRequest,
    plan: &MemoryPlan,
) -> Result<Arc<FileSystem>> {
    let options = FsOptions {
        memory_bytes: plan.inode_bytes,
        read_only: request.flags.read_only || pool.is_read_only(),
        atime: request.flags.atime_mode(),
        dir_atime: !request.flags.no_dir_atime,
        workers: WORKERS,
        ..FsOptions::default()
    };
    let names = pool.datasets()?;
    if !names.contains(&request.dataset) {
        let (name, has) = (pool.name(), names.join(", "));
        let way_out = match names.is_empty() {
            true => "it has none; `forebay dataset create` makes one".to_owned(),
            false => format!(
                "it has {has}; name one with --dataset, or make it: `forebay dataset create`"
            ),
        };
        return Err(Failure::new(format!(
            "pool {name} has no dataset {}: {way_out}",
            request.dataset
        )));
    }
    Ok(FileSystem::open_in(Arc::clone(pool), &request.dataset, &options)?)
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
