//! The daemon: a process with one cache, the pools imported on it, and their mounts.
//!
//! A foreground mount is a daemon that prints to the terminal and accepts no pools from other
//! commands.
//!
//! # Invariants
//!
//! - A dataset is mounted at most once, because the inodes of two mounts would not see each other's
//!   changes.
//! - A mount that ends for any reason is closed and removed by its own thread (`mounts`).
//!   A pool imported only for mounts is exported with its last mount, unless it is suspended
//!   ([`unsaved`]). The process ends with its last pool.
//!
//! # Locking
//!
//! `daemon-changing` is held for the whole of an import, a mount or an unmount, and until the
//! export of a pool begins: that may wait for an object store, and other pools do not wait with it.
//! `daemon-state` is held for a short read or update. `daemon-state` may be taken under
//! `daemon-changing`. `daemon-metrics` is held while the server of metrics starts; no other lock is
//! taken under it.

mod curve;
pub(crate) mod events;
mod explain;
pub(crate) mod follow;
pub(crate) mod health;
pub(crate) mod jobs;
mod memory_watch;
pub(crate) mod metrics;
mod mounts;
mod registry;
mod requests;
pub(crate) mod run;
mod sample;
mod schedule;
pub(crate) mod screen;
pub(crate) mod spawn;
pub(crate) mod stats;
pub(crate) mod trace;
mod unsaved;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use forebay_base::sync::{Condvar, Mutex, MutexGuard};
use forebay_pool::{BlockCache, BlockCacheOptions, ErrorKind, EventLog};

use crate::control::messages::{MountInfo, PoolInfo, ProcessInfo};
use crate::discover::known;
use crate::error::{Failure, Result};
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportRequest};
use follow::Following;
pub(crate) use mounts::MountRequest;
use registry::NotClean;
pub(crate) use registry::{ImportedPool, MountedDataset};
pub(crate) use requests::{add_l2, add_log, expand_pool, remove_l2, remove_log};
use screen::Screen;
use unsaved::Unsaved;

/// Share of the cache limit that the dirty data of all pools may take, as a fraction.
const DIRTY_SHARE: (u64, u64) = (3, 4);

/// An event that wakes the main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A pool or mount was added or removed, or a request ended.
    Changed,
    /// A signal was received.
    Signal(i32),
}

/// How a daemon was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DaemonMode {
    /// In the foreground, for one mount.
    Foreground,
    /// In the background, for all pools of a user.
    Shared,
    /// In the background with --separate: only the command that started it uses it.
    Separate,
}

/// A process with imported pools.
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
    /// The events of all its pools, also of those that were exported.
    event_log: Arc<EventLog>,
    metrics: Mutex<Option<metrics::Serving>>,
}

#[derive(Default)]
struct DaemonState {
    pools: Vec<Arc<ImportedPool>>,
    /// Requests being served.
    requests: usize,
    /// True once a pool was requested.
    used: bool,
    /// True once the process is shutting down, or has decided to end: it accepts no pools.
    shutting_down: bool,
    /// Errors from closing pools and mounts.
    failures: Vec<String>,
}

/// Removes an exported pool from the registry and tells all that wait for it, also if the thread
/// that exports it panics.
struct EndOfExport<'a> {
    daemon: &'a Daemon,
    imported: &'a Arc<ImportedPool>,
    result: std::result::Result<(), String>,
}

impl Drop for EndOfExport<'_> {
    fn drop(&mut self) {
        self.daemon.state.lock().pools.retain(|other| !Arc::ptr_eq(other, self.imported));
        self.imported.set_closed(self.result.clone());
        self.daemon.share_dirty();
        self.daemon.changed();
    }
}

impl DaemonState {
    fn has_ended_pools(&self) -> bool {
        self.pools.is_empty() && (self.used || self.shutting_down)
    }
}

impl Daemon {
    /// Creates a daemon without pools.
    ///
    /// # Errors
    /// If the system is out of memory.
    pub(crate) fn new(
        plan: MemoryPlan,
        mode: DaemonMode,
        screen: Arc<Screen>,
        events: Sender<Event>,
    ) -> Result<Arc<Self>> {
        let options = BlockCacheOptions {
            bytes: plan.cache_bytes,
            memory_bytes: Some(plan.arena_bytes),
            ..BlockCacheOptions::default()
        };
        let cache = BlockCache::new(options)?;
        cache.cache().record(true);
        memory_watch::start(&plan, &cache)?;
        let daemon = Arc::new(Self {
            plan,
            in_background: mode != DaemonMode::Foreground,
            separate: mode == DaemonMode::Separate,
            cache,
            screen,
            started: Instant::now(),
            changing: Mutex::named("daemon-changing", ()),
            state: Mutex::named("daemon-state", DaemonState::default()),
            ended: Condvar::new(),
            events,
            event_log: EventLog::new(),
            metrics: Mutex::named("daemon-metrics", None),
        });
        schedule::start(&daemon)?;
        Ok(daemon)
    }

    /// Imports a pool until it is exported. Returns the pool if it is imported already.
    ///
    /// # Errors
    /// If the pool cannot be imported.
    pub(crate) fn import(&self, request: &ImportRequest) -> Result<Arc<ImportedPool>> {
        let changing = self.lock_for(request)?;
        let imported = self.import_locked(&changing, request)?;
        imported.stay();
        Ok(imported)
    }

    /// Locks for an import, once no pool with one of its devices is being exported.
    fn lock_for(&self, request: &ImportRequest) -> Result<MutexGuard<'_, ()>> {
        let paths = pools::absolute(&request.paths)?;
        loop {
            let changing = self.changing.lock();
            let mut pools = self.pools().into_iter();
            let closing = pools.find(|other| other.is_closing() && other.has_device(&paths));
            let Some(closing) = closing else { return Ok(changing) };
            drop(changing);
            // Its result is for those who export it.
            let _ = self.wait_closed(&closing);
        }
    }

    fn import_locked(
        &self,
        _changing: &MutexGuard<'_, ()>,
        request: &ImportRequest,
    ) -> Result<Arc<ImportedPool>> {
        // Also for a pool that is imported: it is about to be exported.
        if self.state.lock().shutting_down {
            return Err(Failure::ending("the daemon is shutting down; try again"));
        }
        let paths = pools::absolute(&request.paths)?;
        if let Some(imported) =
            self.pools().into_iter().find(|imported| imported.has_device(&paths))
        {
            if request.follow_ms.is_some() != imported.following.is_some() {
                return Err(Failure::new(format!(
                    "pool {} is imported here {} --follow; run `forebay export {0}` first, or use --separate",
                    imported.pool().name(),
                    if imported.following.is_some() { "with" } else { "without" }
                )));
            }
            if let Some(following) = &imported.following {
                following.check_l2(imported.pool().name(), request.follow_l2.as_deref())?;
            }
            return match imported.pool().is_read_only() && !request.read_only {
                false => Ok(imported),
                true => Err(Failure::new(format!(
                    "pool {} is imported read-only; run `forebay export {0}` first, or use --read-only",
                    imported.pool().name()
                ))),
            };
        }
        // Also for a read-only import: a device on a mount of this process would make the process
        // wait for itself.
        paths.iter().try_for_each(|path| pools::refuse_served(path))?;
        let request_here = ImportRequest { paths: paths.clone(), ..request.clone() };
        let (pool, following) = match request.follow_ms {
            Some(interval_ms) => {
                let interval = Duration::from_millis(interval_ms);
                let (cache, events) = (&self.cache, &self.event_log);
                let (pool, following) = Following::begin(&request_here, interval, cache, events)?;
                (pool, Some(following))
            }
            None => {
                let events = Some(&self.event_log);
                (pools::import_with(&request_here, &self.cache, events)?, None)
            }
        };
        let dirty_set = request.tunables.iter().any(|(name, _)| name == registry::DIRTY_TUNABLE);
        if !request.read_only
            && let Err(error) = pool.resume_scrub()
        {
            tracing::warn!(pool = pool.name(), %error, "cannot resume the scrub");
        }
        if !request.read_only
            && let Err(error) = pool.start_resilver()
        {
            tracing::warn!(pool = pool.name(), %error, "cannot resilver");
        }
        known::note(pool.name(), pool.guid(), &paths);
        let imported = Arc::new(ImportedPool::new(pool, following, paths, dirty_set));
        if let Err(failure) = Following::start(&imported) {
            // Its pin goes, too.
            imported.following.iter().for_each(|following| following.stop(&imported.pool()));
            return Err(failure);
        }
        let mut state = self.state.lock();
        state.pools.push(Arc::clone(&imported));
        state.used = true;
        drop(state);
        self.share_dirty();
        Ok(imported)
    }

    /// Divides the limit of dirty data among the pools, because they share one cache.
    fn share_dirty(&self) {
        let pools = self.pools();
        let all = self.plan.cache_bytes / DIRTY_SHARE.1 * DIRTY_SHARE.0;
        let each = all / pools.len().max(1) as u64;
        for imported in pools {
            imported.bound_dirty(each);
        }
    }

    /// Exports a pool that was imported only for mounts and has none. `None` if it stays: also if
    /// changes would be lost with it.
    fn close_if_unused(
        &self,
        changing: MutexGuard<'_, ()>,
        imported: &Arc<ImportedPool>,
    ) -> Option<Result<()>> {
        let is_used = imported.stays() || !imported.mounts().is_empty();
        let stays = is_used || self.unsaved(imported).is_some();
        (!stays).then(|| self.close_pool(changing, imported))
    }

    /// Exports a pool without mounts, and removes it from the registry, or waits for the thread
    /// that does. It may take as long as an object store does not answer, so it unlocks first.
    fn close_pool(&self, changing: MutexGuard<'_, ()>, imported: &Arc<ImportedPool>) -> Result<()> {
        let begins = imported.begin_closing();
        drop(changing);
        if !begins {
            return self.wait_closed(imported);
        }
        // The pool keeps its devices locked.
        let panicked = format!(
            "its thread panicked, which is a bug; end the daemon (process {}), and mount the pool again",
            std::process::id()
        );
        let mut ending = EndOfExport { daemon: self, imported, result: Err(panicked) };
        // With the devices that were added meanwhile.
        known::note(imported.pool().name(), imported.pool().guid(), &imported.devices());
        if let Some(following) = &imported.following {
            following.stop(&imported.pool());
        }
        let before = Unsaved::of(&imported.pool());
        let closed = imported.close().map_err(|error| {
            let is_suspended = error.kind() == ErrorKind::Suspended;
            let unsaved = before.or_else(|| Unsaved::of(&imported.pool()));
            let failure = match unsaved.filter(|_| is_suspended) {
                Some(unsaved) => unsaved.lost(),
                None => Failure::from(error)
                    .doing(format_args!("cannot export pool {} cleanly", imported.pool().name())),
            };
            self.note_failure(failure.message.clone());
            failure
        });
        ending.result = closed.as_ref().map(drop).map_err(|error| error.message.clone());
        drop(ending);
        closed
    }

    /// Waits for the export of a pool in another thread, and returns its result.
    fn wait_closed(&self, imported: &ImportedPool) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            if let Some(closed) = imported.closed() {
                return closed.map_err(Failure::new);
            }
            self.ended.wait_timeout(&mut state, Duration::from_secs(1));
        }
    }

    /// Unmounts all datasets of a pool, and exports it.
    ///
    /// # Errors
    /// If changes would be lost that nobody has given up, a mount is busy, or closing fails.
    pub(crate) fn export(&self, imported: &Arc<ImportedPool>, lazy: bool) -> Result<()> {
        self.check_saved(imported)?;
        for mount in imported.mounts() {
            let unmounted = self.unmount(&mount, lazy);
            // The export itself says what becomes of changes that are not durable yet.
            let is_pending = matches!(mount.outcome(), Some(Err(error)) if error.is_pending);
            if !is_pending {
                unmounted?;
            }
        }
        self.save(imported)?;
        let changing = self.changing.lock();
        if let Some(mount) = imported.mounts().first() {
            return Err(Failure::new(format!(
                "pool {}: {} is still in use; the pool is exported when the last file there is closed",
                imported.pool().name(),
                mount.current_at().display()
            )));
        }
        self.close_pool(changing, imported)
    }

    /// Starts the shutdown: refuses new pools, and exports pools without mounts.
    pub(crate) fn begin_shutdown(&self) {
        {
            let _changing = self.changing.lock();
            self.state.lock().shutting_down = true;
        }
        let pools = self.pools();
        pools.iter().for_each(|imported| imported.go_with_last_mount());
        for imported in pools {
            // `close_pool` records its own error.
            let _ = self.close_if_unused(self.changing.lock(), &imported);
        }
    }

    /// Closes the remaining mounts and pools. Open files return errors from then on.
    pub(crate) fn force_end(&self) {
        for imported in self.pools() {
            let changing = self.changing.lock();
            for mount in imported.mounts() {
                if let Err(NotClean { message, is_pending: false }) = mount.close() {
                    self.note_failure(message);
                }
                mount.left_behind().into_iter().for_each(|message| self.note_failure(message));
                imported.remove_mount(&mount);
            }
            // `close_pool` records its own error.
            let _ = self.close_pool(changing, &imported);
        }
    }

    /// The imported pools.
    pub(crate) fn pools(&self) -> Vec<Arc<ImportedPool>> {
        self.state.lock().pools.clone()
    }

    /// The imported pool with that guid.
    ///
    /// # Errors
    /// If no such pool is imported.
    pub(crate) fn pool(&self, guid: u64) -> Result<Arc<ImportedPool>> {
        let found = self.pools().into_iter().find(|imported| imported.pool().guid() == guid);
        found.ok_or_else(|| Failure::new("the pool was exported meanwhile; import it again"))
    }

    /// All mounts.
    pub(crate) fn mounts(&self) -> Vec<Arc<MountedDataset>> {
        self.pools().iter().flat_map(|imported| imported.mounts()).collect()
    }

    /// The mount at a path; one that has left the mount table only if no other one is there. If a
    /// pool is given by its guid, mounts of other pools are not considered.
    ///
    /// # Errors
    /// If this process has no such mount there.
    pub(crate) fn mount_at(&self, at: &Path, pool: Option<u64>) -> Result<Arc<MountedDataset>> {
        let mut pools = self.pools();
        pools.retain(|imported| pool.is_none_or(|guid| imported.pool().guid() == guid));
        let mut mounts: Vec<_> = pools.iter().flat_map(|imported| imported.mounts()).collect();
        let attached = mounts.iter().position(|mount| mount.is_attached_at(at));
        let found = attached.or_else(|| mounts.iter().position(|mount| mount.current_at() == at));
        let found = found.map(|index| mounts.swap_remove(index));
        found.ok_or_else(|| {
            Failure::new(format!(
                "{}: is not mounted any more; `forebay list` shows mounts",
                at.display()
            ))
        })
    }

    /// Decides whether the process ends: it has no pools and serves no request. `idle_over` says
    /// that it has waited long enough for its first pool. If it ends, later requests for pools are
    /// refused, and their clients ask another daemon.
    pub(crate) fn end_if_done(&self, idle_over: bool) -> bool {
        let mut state = self.state.lock();
        let has_no_pools = state.has_ended_pools() || (idle_over && state.pools.is_empty());
        let ends = has_no_pools && state.requests == 0;
        state.shutting_down |= ends;
        ends
    }

    fn is_shutting_down(&self) -> bool {
        self.state.lock().shutting_down
    }

    /// True if its pools were exported, so that it ends soon.
    pub(crate) fn has_ended_pools(&self) -> bool {
        self.state.lock().has_ended_pools()
    }

    /// Errors from closing pools and mounts.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.state.lock().failures.clone()
    }

    fn note_failure(&self, message: String) {
        self.screen.warn(&message);
        self.state.lock().failures.push(message);
    }

    fn changed(&self) {
        {
            // Under the lock, so that a waiter between its check and its wait gets the
            // notification.
            let _state = self.state.lock();
            self.ended.notify_all();
        }
        // Fails only if the main thread has ended, and the process with it.
        let _ = self.events.send(Event::Changed);
    }

    /// Registers a request until the guard is dropped.
    pub(crate) fn request(self: &Arc<Self>) -> RequestGuard {
        let mut state = self.state.lock();
        state.requests += 1;
        drop(state);
        RequestGuard(Arc::clone(self))
    }

    /// Notes that a pool was requested: from now on the process ends when it has no pool.
    pub(crate) fn note_used(&self) {
        self.state.lock().used = true;
    }

    /// Describes the daemon, its pools and mounts.
    pub(crate) fn info(&self) -> ProcessInfo {
        let ending = self.state.lock().shutting_down;
        ProcessInfo {
            pid: std::process::id(),
            daemon: self.in_background,
            separate: self.separate,
            ending,
            log: self.screen.log().to_owned(),
            memory_bytes: self.plan.total_bytes,
            metrics: self.metrics_info(),
            pools: self.pools().iter().map(|imported| imported.info()).collect(),
        }
    }
}

/// Keeps the process alive while a request is served.
pub(crate) struct RequestGuard(Arc<Daemon>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.state.lock().requests -= 1;
        self.0.changed();
    }
}

/// Describes an imported pool.
pub(crate) fn pool_info(imported: &ImportedPool) -> PoolInfo {
    let stats = imported.pool().stats();
    PoolInfo {
        name: imported.pool().name().to_owned(),
        guid: imported.pool().guid(),
        read_only: imported.pool().is_read_only(),
        devices: imported.devices(),
        mounts: imported.mounts().iter().map(|mount| mount_info(mount)).collect(),
        total_bytes: stats.total_bytes,
        free_bytes: stats.free_bytes,
        available_bytes: stats.available_bytes,
        suspended: stats::why_suspended(&imported.pool()),
        health: imported.pool().health().state,
    }
}

/// Describes a mount.
pub(crate) fn mount_info(mount: &MountedDataset) -> MountInfo {
    let mount_id = mount.id();
    MountInfo {
        pool: mount.pool.clone(),
        dataset: mount.dataset.clone(),
        at: mount.current_at(),
        read_only: mount.flags().read_only,
        kernel_cache: mount.kernel_cache,
        pid: std::process::id(),
        mount_id,
        detached: mount_id.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::control::Request;

    fn daemon() -> Arc<Daemon> {
        let plan = MemoryPlan::new(Some(128 << 20), Some(1)).unwrap();
        // Nobody has to hear of its events.
        let (events, _) = channel();
        Daemon::new(plan, DaemonMode::Shared, Arc::new(Screen::silent()), events).unwrap()
    }

    /// Between its decision and its end, it still reads requests.
    #[test]
    fn a_daemon_that_has_decided_to_end_accepts_no_pool() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tank.img");
        std::fs::write(&path, b"").unwrap();
        for was_used in [true, false] {
            let daemon = daemon();
            assert!(!daemon.end_if_done(false), "it waits for its first pool");
            if was_used {
                daemon.note_used();
            }
            let request = daemon.request();
            assert!(!daemon.end_if_done(true), "it serves a request");
            assert!(!daemon.info().ending);
            drop(request);
            assert!(daemon.end_if_done(!was_used));
            assert!(daemon.info().ending);
            let _request = daemon.request();
            let import = ImportRequest::plain(vec![path.clone()], false);
            let refused =
                daemon.serve(Request::Import { import }, &mut |_| ControlFlow::Continue(()));
            let refused = refused.unwrap_err();
            assert!(refused.is_ending, "{refused}");
        }
    }
}
