//! A process that has pools: one cache, the pools on it, their mounts.
//!
//! Foreground mounts and daemons are the same thing; they differ in who hears of what happens, and in that only a
//! daemon takes pools that others bring.
//!
//! # Invariants
//!
//! - A dataset is mounted at most once: nothing else would see what one mount's inodes know.
//! - A mount that ends, by whomever, is closed and forgotten by its own thread ([`Daemon::retire`]). A pool that came
//!   only to be mounted is exported with its last mount. The process ends with its last pool.
//!
//! # Locking
//!
//! `daemon-changing` is held over every change of what is had (importing, mounting, closing), and may be held for as
//! long as these take; `daemon-state` only for a look or a push. The second is taken under the first.

pub(crate) mod jobs;
mod registry;
mod requests;
pub(crate) mod run;
pub(crate) mod screen;
pub(crate) mod spawn;
pub(crate) mod stats;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use forebay_base::sync::{Condvar, Mutex, MutexGuard};
use forebay_fuse::MountError;
use forebay_pool::{BlockCache, BlockCacheOptions};
use serde::{Deserialize, Serialize};

use crate::control::messages::{MountInfo, PoolInfo, ProcessInfo};
use crate::error::{Failure, Result};
use crate::flags::Flags;
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportRequest};
pub(crate) use registry::{ImportedPool, MountedDataset};
pub(crate) use requests::{add_l2, expand_pool, remove_l2};
use screen::Screen;

/// Dirty data of all pools together may take this part of the cache's bound.
const DIRTY_SHARE: (u64, u64) = (3, 4);

/// How to mount a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MountRequest {
    pub(crate) dataset: String,
    /// Where; an absolute path if it travels to another process.
    pub(crate) at: PathBuf,
    pub(crate) flags: Flags,
    pub(crate) kernel_cache: bool,
    /// Root's default is yes, others' no.
    pub(crate) allow_other: bool,
    /// Threads that serve requests; the process's default if nothing is said.
    pub(crate) threads: Option<usize>,
}

/// What the process's main thread is woken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A pool or mount came or went, or a request ended.
    Changed,
    /// This signal came.
    Signal(i32),
}

/// For whom a process is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DaemonMode {
    /// Who has started it.
    Foreground,
    /// All of a user's pools, in the background.
    Shared,
    /// In the background, but for what it was started for: nobody else's pool is to share its cache unasked.
    Separate,
}

/// A process that has pools.
pub(crate) struct Daemon {
    pub(crate) plan: MemoryPlan,
    pub(crate) in_background: bool,
    separate: bool,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) screen: Arc<Screen>,
    pub(crate) started: Instant,
    changing: Mutex<()>,
    state: Mutex<DaemonState>,
    ended: Condvar,
    events: Sender<Event>,
}

#[derive(Default)]
struct DaemonState {
    pools: Vec<Arc<ImportedPool>>,
    /// Requests under way.
    requests: usize,
    /// Whether there was ever something to do.
    used: bool,
    /// Whether nothing may come any more.
    ending: bool,
    /// What went wrong when pools and mounts were closed.
    failures: Vec<String>,
}

impl Daemon {
    /// A process without pools.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub(crate) fn new(
        plan: MemoryPlan,
        mode: DaemonMode,
        screen: Arc<Screen>,
        events: Sender<Event>,
    ) -> Result<Arc<Self>> {
        let options = BlockCacheOptions { bytes: plan.cache_bytes, ..BlockCacheOptions::default() };
        Ok(Arc::new(Self {
            plan,
            in_background: mode != DaemonMode::Foreground,
            separate: mode == DaemonMode::Separate,
            cache: BlockCache::new(options)?,
            screen,
            started: Instant::now(),
            changing: Mutex::named("daemon-changing", ()),
            state: Mutex::named("daemon-state", DaemonState::default()),
            ended: Condvar::new(),
            events,
        }))
    }

    /// Imports a pool, to stay until it is exported. One that is here already is the answer.
    ///
    /// # Errors
    /// Why it cannot be imported.
    pub(crate) fn import(&self, request: &ImportRequest) -> Result<Arc<ImportedPool>> {
        let changing = self.changing.lock();
        let imported = self.import_locked(&changing, request)?;
        imported.stay();
        Ok(imported)
    }

    fn import_locked(
        &self,
        _changing: &MutexGuard<'_, ()>,
        request: &ImportRequest,
    ) -> Result<Arc<ImportedPool>> {
        let paths = pools::absolute(&request.paths)?;
        if let Some(imported) =
            self.pools().into_iter().find(|imported| imported.has_device(&paths))
        {
            return match imported.pool.is_read_only() && !request.read_only {
                false => Ok(imported),
                true => Err(Failure::new(format!(
                    "pool {} is imported for reading only; export it first, or use --read-only",
                    imported.pool.name()
                ))),
            };
        }
        if self.state.lock().ending {
            return Err(Failure::new("the process is ending; try again"));
        }
        // Even if it is only read: who reads the mount waits for this process, which would wait for the mount.
        paths.iter().try_for_each(|path| pools::refuse_served(path))?;
        let pool =
            pools::import(&ImportRequest { paths: paths.clone(), ..request.clone() }, &self.cache)?;
        let dirty_set = request.tunables.iter().any(|(name, _)| name == registry::DIRTY_TUNABLE);
        let imported = Arc::new(ImportedPool::new(pool, paths, dirty_set));
        let mut state = self.state.lock();
        state.pools.push(Arc::clone(&imported));
        state.used = true;
        drop(state);
        self.share_dirty();
        Ok(imported)
    }

    /// Several pools may not each have as much dirty as one alone: the cache has it only once.
    fn share_dirty(&self) {
        let pools = self.pools();
        let all = self.plan.cache_bytes / DIRTY_SHARE.1 * DIRTY_SHARE.0;
        let each = all / pools.len().max(1) as u64;
        for imported in pools {
            imported.bound_dirty(each);
        }
    }

    /// Mounts a dataset of a pool, which is imported for it if it is not here yet.
    ///
    /// # Errors
    /// Why it cannot be imported or mounted. A pool that was imported for it is exported again.
    pub(crate) fn mount(
        self: &Arc<Self>,
        import: &ImportRequest,
        request: &MountRequest,
    ) -> Result<Arc<MountedDataset>> {
        let changing = self.changing.lock();
        let imported = self.import_locked(&changing, import)?;
        let mounted = self.mount_locked(&imported, request);
        if mounted.is_err() {
            // The first error is the one to tell; this one is noted.
            let _ = self.close_if_unused(&changing, &imported);
        }
        mounted
    }

    fn mount_locked(
        self: &Arc<Self>,
        imported: &Arc<ImportedPool>,
        request: &MountRequest,
    ) -> Result<Arc<MountedDataset>> {
        if let Some(other) = imported.mounts().iter().find(|mount| mount.dataset == request.dataset)
        {
            return Err(Failure::new(format!(
                "dataset {} of pool {} is mounted at {}; `forebay umount` it first",
                request.dataset,
                imported.pool.name(),
                other.at().display()
            )));
        }
        let mount = Arc::new(MountedDataset::begin(imported, request, &self.plan)?);
        imported.add_mount(&mount);
        let (daemon, of_thread, its_pool) =
            (Arc::clone(self), Arc::clone(&mount), Arc::clone(imported));
        let watch = move || {
            let broke = of_thread.wait();
            daemon.retire(&its_pool, &of_thread, broke);
        };
        let watcher = forebay_base::sync::thread::spawn_named("forebay-mount", watch);
        if let Err(error) = watcher {
            imported.remove_mount(&mount);
            return Err(Failure::new(format!(
                "cannot start a thread: {error}; end other programs"
            )));
        }
        self.changed();
        Ok(mount)
    }

    /// A mount has ended: closes its files, and its pool if that came for mounts only.
    fn retire(
        self: &Arc<Self>,
        imported: &Arc<ImportedPool>,
        mount: &Arc<MountedDataset>,
        broke: Option<String>,
    ) {
        // The process does not end before all is said.
        let _under_way = self.request();
        let changing = self.changing.lock();
        let mut outcome = mount.close();
        if let Some(why) = broke {
            self.screen.say(&format!("{}: the mount broke: {why}", mount.at().display()));
        }
        imported.remove_mount(mount);
        if let Err(error) = &outcome {
            self.note_failure(format!("{}: {error}", mount.at().display()));
        }
        let closed = self.close_if_unused(&changing, imported);
        if outcome.is_ok() {
            outcome = closed;
        }
        drop(changing);
        self.screen.say(&format!("unmounted {}", mount.at().display()));
        mount.set_outcome(outcome.map_err(|error| error.message));
        self.changed();
    }

    fn close_if_unused(
        &self,
        changing: &MutexGuard<'_, ()>,
        imported: &Arc<ImportedPool>,
    ) -> Result<()> {
        match imported.stays() || !imported.mounts().is_empty() {
            true => Ok(()),
            false => self.close_pool(changing, imported),
        }
    }

    /// Exports a pool without mounts, and forgets it.
    fn close_pool(
        &self,
        _changing: &MutexGuard<'_, ()>,
        imported: &Arc<ImportedPool>,
    ) -> Result<()> {
        let closed = imported.pool.close().map_err(|error| {
            let failure =
                Failure::from(error).doing(format_args!("exporting pool {}", imported.pool.name()));
            self.note_failure(failure.message.clone());
            failure
        });
        self.state.lock().pools.retain(|other| !Arc::ptr_eq(other, imported));
        self.share_dirty();
        self.changed();
        closed
    }

    /// Unmounts, and returns when all is closed.
    ///
    /// # Errors
    /// If it is busy, or closing failed.
    pub(crate) fn unmount(&self, mount: &Arc<MountedDataset>, lazy: bool) -> Result<()> {
        for round in 1.. {
            match mount.unmount(lazy) {
                Ok(()) => break,
                // Whoever has closed the last file may not be quite gone yet.
                Err(MountError::Busy { .. }) if round < BUSY_ROUNDS => {
                    std::thread::sleep(BUSY_PAUSE)
                }
                Err(error) => return Err(error.into()),
            }
        }
        if lazy {
            // Its users may keep it for as long as they like.
            self.wait_for(mount, LAZY_PATIENCE);
            return match mount.outcome() {
                Some(outcome) => outcome.map_err(Failure::new),
                None => {
                    let at = mount.at().display();
                    self.screen.say(&format!("{at}: detached; it ends when its last user lets go"));
                    Ok(())
                }
            };
        }
        while mount.outcome().is_none() {
            self.wait_for(mount, Duration::from_secs(1));
        }
        mount.outcome().unwrap_or(Ok(())).map_err(Failure::new)
    }

    /// Waits until a mount is closed, but not for ever.
    fn wait_for(&self, mount: &MountedDataset, patience: Duration) {
        let until = Instant::now() + patience;
        let mut state = self.state.lock();
        while mount.outcome().is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.ended.wait_timeout(&mut state, left);
        }
    }

    /// Unmounts all of a pool, and exports it.
    ///
    /// # Errors
    /// If a mount is busy, or closing failed.
    pub(crate) fn export(&self, imported: &Arc<ImportedPool>, lazy: bool) -> Result<()> {
        for mount in imported.mounts() {
            self.unmount(&mount, lazy)?;
        }
        let changing = self.changing.lock();
        if let Some(mount) = imported.mounts().first() {
            return Err(Failure::new(format!(
                "pool {}: {} is still in use; it is exported when its last user lets go",
                imported.pool.name(),
                mount.at().display()
            )));
        }
        match self.pools().iter().any(|other| Arc::ptr_eq(other, imported)) {
            true => self.close_pool(&changing, imported),
            false => Ok(()),
        }
    }

    /// From now on nothing comes any more. What is left without mounts is exported, and stays no longer.
    pub(crate) fn begin_ending(&self) {
        let changing = self.changing.lock();
        self.state.lock().ending = true;
        for imported in self.pools() {
            imported.go_with_last_mount();
            // It is noted.
            let _ = self.close_if_unused(&changing, &imported);
        }
    }

    /// Closes what is left in spite of its users, who get errors from now on.
    pub(crate) fn force_end(&self) {
        let changing = self.changing.lock();
        for imported in self.pools() {
            for mount in imported.mounts() {
                if let Err(error) = mount.close() {
                    self.note_failure(error.message);
                }
                imported.remove_mount(&mount);
            }
            // It is noted.
            let _ = self.close_pool(&changing, &imported);
        }
    }

    /// Pools that are here.
    pub(crate) fn pools(&self) -> Vec<Arc<ImportedPool>> {
        self.state.lock().pools.clone()
    }

    /// The pool of that guid.
    ///
    /// # Errors
    /// If it is not here.
    pub(crate) fn pool(&self, guid: u64) -> Result<Arc<ImportedPool>> {
        let found = self.pools().into_iter().find(|imported| imported.pool.guid() == guid);
        found.ok_or_else(|| Failure::new("the pool was exported meanwhile"))
    }

    /// All mounts.
    pub(crate) fn mounts(&self) -> Vec<Arc<MountedDataset>> {
        self.pools().iter().flat_map(|imported| imported.mounts()).collect()
    }

    /// The mount at a place.
    ///
    /// # Errors
    /// If there is none of this process.
    pub(crate) fn mount_at(&self, at: &Path) -> Result<Arc<MountedDataset>> {
        let found = self.mounts().into_iter().find(|mount| mount.at() == at);
        found.ok_or_else(|| Failure::new(format!("{}: is not mounted any more", at.display())))
    }

    /// Whether there is nothing left to do: no pools, nobody who brings one.
    pub(crate) fn is_done(&self) -> bool {
        let state = self.state.lock();
        state.pools.is_empty() && state.requests == 0 && (state.used || state.ending)
    }

    /// What went wrong at the end of pools and mounts.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.state.lock().failures.clone()
    }

    fn note_failure(&self, message: String) {
        self.screen.say(&message);
        self.state.lock().failures.push(message);
    }

    fn changed(&self) {
        {
            // With the lock, so that nobody misses it between a look and the wait.
            let _state = self.state.lock();
            self.ended.notify_all();
        }
        // The main thread has gone only if the process ends.
        let _ = self.events.send(Event::Changed);
    }

    /// Counts a request in; it is counted out when the guard is dropped.
    pub(crate) fn request(self: &Arc<Self>) -> RequestUnderWay {
        let mut state = self.state.lock();
        state.requests += 1;
        drop(state);
        RequestUnderWay(Arc::clone(self))
    }

    /// That somebody has request something of this process: from now on it ends when it has no pool.
    pub(crate) fn note_used(&self) {
        self.state.lock().used = true;
    }

    /// Who it is, and what it has.
    pub(crate) fn info(&self) -> ProcessInfo {
        ProcessInfo {
            pid: std::process::id(),
            daemon: self.in_background,
            separate: self.separate,
            memory_bytes: self.plan.total_bytes,
            pools: self.pools().iter().map(|imported| imported.info()).collect(),
        }
    }
}

/// How long a lazy unmount waits for the end before it leaves the mount to its users.
const LAZY_PATIENCE: Duration = Duration::from_secs(2);

/// A busy mount is tried so often, with such pauses, before it is said that it is.
const BUSY_ROUNDS: u32 = 5;
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// A request that is being served.
pub(crate) struct RequestUnderWay(Arc<Daemon>);

impl Drop for RequestUnderWay {
    fn drop(&mut self) {
        self.0.state.lock().requests -= 1;
        self.0.changed();
    }
}

/// What there is to say of a pool in a list.
pub(crate) fn pool_info(imported: &ImportedPool) -> PoolInfo {
    let stats = imported.pool.stats();
    PoolInfo {
        name: imported.pool.name().to_owned(),
        guid: imported.pool.guid(),
        read_only: imported.pool.is_read_only(),
        devices: imported.devices(),
        mounts: imported.mounts().iter().map(|mount| mount_info(mount)).collect(),
        total_bytes: stats.total_bytes,
        free_bytes: stats.free_bytes,
        available_bytes: stats.available_bytes,
        suspended: stats.suspended,
    }
}

/// What there is to say of a mount.
pub(crate) fn mount_info(mount: &MountedDataset) -> MountInfo {
    MountInfo {
        pool: mount.pool.clone(),
        dataset: mount.dataset.clone(),
        at: mount.at().to_owned(),
        read_only: mount.flags().read_only,
        kernel_cache: mount.kernel_cache,
        pid: std::process::id(),
    }
}
