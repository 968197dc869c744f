//! A process that has pools: one cache, the pools on it, their mounts.
//!
//! Foreground mounts and daemons are the same thing; they differ in who hears of what happens, and in that only a
//! daemon takes pools that others bring.
//!
//! # Invariants
//!
//! - A dataset is mounted at most once: nothing else would see what one mount's inodes know.
//! - A mount that ends, by whomever, is closed and forgotten by its own thread ([`Host::retire`]). A pool that came
//!   only to be mounted is exported with its last mount. The process ends with its last pool.
//!
//! # Locking
//!
//! `host-changing` is held over every change of what is had (importing, mounting, closing), and may be held for as
//! long as these take; `host-state` only for a look or a push. The second is taken under the first.

pub(crate) mod figures;
mod held;
pub(crate) mod live;
pub(crate) mod long;
mod requests;
pub(crate) mod run;
pub(crate) mod spawn;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use forebay_base::sync::{Condvar, Mutex, MutexGuard};
use forebay_fuse::MountError;
use forebay_pool::{BlockCache, BlockCacheOptions};
use serde::{Deserialize, Serialize};

use crate::control::views::{MountView, PoolView, ProcessView};
use crate::error::{Failure, Result};
use crate::flags::Flags;
use crate::memory::MemoryPlan;
use crate::pools::{self, ImportWanted};
pub(crate) use held::{Held, HeldMount};
use live::Screen;
pub(crate) use requests::{add_cache, expand_pool, remove_cache};

/// Dirty data of all pools together may take this part of the cache's bound.
const DIRTY_SHARE: (u64, u64) = (3, 4);

/// How to mount a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MountWanted {
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
pub(crate) enum Service {
    /// Who has started it.
    Foreground,
    /// All of a user's pools, in the background.
    Shared,
    /// In the background, but for what it was started for: nobody else's pool is to share its cache unasked.
    Separate,
}

/// A process that has pools.
pub(crate) struct Host {
    pub(crate) plan: MemoryPlan,
    pub(crate) daemon: bool,
    separate: bool,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) screen: Arc<Screen>,
    pub(crate) started: Instant,
    changing: Mutex<()>,
    state: Mutex<State>,
    ended: Condvar,
    events: Sender<Event>,
}

#[derive(Default)]
struct State {
    pools: Vec<Arc<Held>>,
    /// Requests under way.
    requests: usize,
    /// Whether there was ever something to do.
    used: bool,
    /// Whether nothing may come any more.
    ending: bool,
    /// What went wrong when pools and mounts were closed.
    failures: Vec<String>,
}

impl Host {
    /// A process without pools.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub(crate) fn new(
        plan: MemoryPlan,
        service: Service,
        screen: Arc<Screen>,
        events: Sender<Event>,
    ) -> Result<Arc<Self>> {
        let options = BlockCacheOptions { bytes: plan.cache_bytes, ..BlockCacheOptions::default() };
        Ok(Arc::new(Self {
            plan,
            daemon: service != Service::Foreground,
            separate: service == Service::Separate,
            cache: BlockCache::new(options)?,
            screen,
            started: Instant::now(),
            changing: Mutex::named("host-changing", ()),
            state: Mutex::named("host-state", State::default()),
            ended: Condvar::new(),
            events,
        }))
    }

    /// Imports a pool, to stay until it is exported. One that is here already is the answer.
    ///
    /// # Errors
    /// Why it cannot be imported.
    pub(crate) fn import(&self, wanted: &ImportWanted) -> Result<Arc<Held>> {
        let changing = self.changing.lock();
        let held = self.import_locked(&changing, wanted)?;
        held.stay();
        Ok(held)
    }

    fn import_locked(
        &self,
        _changing: &MutexGuard<'_, ()>,
        wanted: &ImportWanted,
    ) -> Result<Arc<Held>> {
        let paths = pools::absolute(&wanted.paths)?;
        if let Some(held) = self.pools().into_iter().find(|held| held.has_device(&paths)) {
            return match held.pool.is_read_only() && !wanted.read_only {
                false => Ok(held),
                true => Err(Failure::new(format!(
                    "pool {} is imported for reading only; export it first, or use --read-only",
                    held.pool.name()
                ))),
            };
        }
        if self.state.lock().ending {
            return Err(Failure::new("the process is ending; try again"));
        }
        // Even if it is only read: who reads the mount waits for this process, which would wait for the mount.
        paths.iter().try_for_each(|path| pools::refuse_served(path))?;
        let pool =
            pools::import(&ImportWanted { paths: paths.clone(), ..wanted.clone() }, &self.cache)?;
        let dirty_set = wanted.tunables.iter().any(|(name, _)| name == held::DIRTY_TUNABLE);
        let held = Arc::new(Held::new(pool, paths, dirty_set));
        let mut state = self.state.lock();
        state.pools.push(Arc::clone(&held));
        state.used = true;
        drop(state);
        self.share_dirty();
        Ok(held)
    }

    /// Several pools may not each have as much dirty as one alone: the cache has it only once.
    fn share_dirty(&self) {
        let pools = self.pools();
        let all = self.plan.cache_bytes / DIRTY_SHARE.1 * DIRTY_SHARE.0;
        let each = all / pools.len().max(1) as u64;
        for held in pools {
            held.bound_dirty(each);
        }
    }

    /// Mounts a dataset of a pool, which is imported for it if it is not here yet.
    ///
    /// # Errors
    /// Why it cannot be imported or mounted. A pool that was imported for it is exported again.
    pub(crate) fn mount(
        self: &Arc<Self>,
        import: &ImportWanted,
        wanted: &MountWanted,
    ) -> Result<Arc<HeldMount>> {
        let changing = self.changing.lock();
        let held = self.import_locked(&changing, import)?;
        let mounted = self.mount_locked(&held, wanted);
        if mounted.is_err() {
            // The first error is the one to tell; this one is noted.
            let _ = self.close_if_unused(&changing, &held);
        }
        mounted
    }

    fn mount_locked(
        self: &Arc<Self>,
        held: &Arc<Held>,
        wanted: &MountWanted,
    ) -> Result<Arc<HeldMount>> {
        if let Some(other) = held.mounts().iter().find(|mount| mount.dataset == wanted.dataset) {
            return Err(Failure::new(format!(
                "dataset {} of pool {} is mounted at {}; `forebay umount` it first",
                wanted.dataset,
                held.pool.name(),
                other.at().display()
            )));
        }
        let mount = Arc::new(HeldMount::begin(held, wanted, &self.plan)?);
        held.add_mount(&mount);
        let (host, of_thread, its_pool) = (Arc::clone(self), Arc::clone(&mount), Arc::clone(held));
        let watch = move || {
            let broke = of_thread.wait();
            host.retire(&its_pool, &of_thread, broke);
        };
        let watcher = forebay_base::sync::thread::spawn_named("forebay-mount", watch);
        if let Err(error) = watcher {
            held.remove_mount(&mount);
            return Err(Failure::new(format!(
                "cannot start a thread: {error}; end other programs"
            )));
        }
        self.changed();
        Ok(mount)
    }

    /// A mount has ended: closes its files, and its pool if that came for mounts only.
    fn retire(self: &Arc<Self>, held: &Arc<Held>, mount: &Arc<HeldMount>, broke: Option<String>) {
        // The process does not end before all is said.
        let _under_way = self.request();
        let changing = self.changing.lock();
        let mut outcome = mount.close();
        if let Some(why) = broke {
            self.screen.say(&format!("{}: the mount broke: {why}", mount.at().display()));
        }
        held.remove_mount(mount);
        if let Err(error) = &outcome {
            self.note_failure(format!("{}: {error}", mount.at().display()));
        }
        let closed = self.close_if_unused(&changing, held);
        if outcome.is_ok() {
            outcome = closed;
        }
        drop(changing);
        self.screen.say(&format!("unmounted {}", mount.at().display()));
        mount.set_outcome(outcome.map_err(|error| error.message));
        self.changed();
    }

    fn close_if_unused(&self, changing: &MutexGuard<'_, ()>, held: &Arc<Held>) -> Result<()> {
        match held.stays() || !held.mounts().is_empty() {
            true => Ok(()),
            false => self.close_pool(changing, held),
        }
    }

    /// Exports a pool without mounts, and forgets it.
    fn close_pool(&self, _changing: &MutexGuard<'_, ()>, held: &Arc<Held>) -> Result<()> {
        let closed = held.pool.close().map_err(|error| {
            let failure =
                Failure::from(error).doing(format_args!("exporting pool {}", held.pool.name()));
            self.note_failure(failure.message.clone());
            failure
        });
        self.state.lock().pools.retain(|other| !Arc::ptr_eq(other, held));
        self.share_dirty();
        self.changed();
        closed
    }

    /// Unmounts, and returns when all is closed.
    ///
    /// # Errors
    /// If it is busy, or closing failed.
    pub(crate) fn unmount(&self, mount: &Arc<HeldMount>, lazy: bool) -> Result<()> {
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
    fn wait_for(&self, mount: &HeldMount, patience: Duration) {
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
    pub(crate) fn export(&self, held: &Arc<Held>, lazy: bool) -> Result<()> {
        for mount in held.mounts() {
            self.unmount(&mount, lazy)?;
        }
        let changing = self.changing.lock();
        if let Some(mount) = held.mounts().first() {
            return Err(Failure::new(format!(
                "pool {}: {} is still in use; it is exported when its last user lets go",
                held.pool.name(),
                mount.at().display()
            )));
        }
        match self.pools().iter().any(|other| Arc::ptr_eq(other, held)) {
            true => self.close_pool(&changing, held),
            false => Ok(()),
        }
    }

    /// From now on nothing comes any more. What is left without mounts is exported, and stays no longer.
    pub(crate) fn begin_ending(&self) {
        let changing = self.changing.lock();
        self.state.lock().ending = true;
        for held in self.pools() {
            held.go_with_last_mount();
            // It is noted.
            let _ = self.close_if_unused(&changing, &held);
        }
    }

    /// Closes what is left in spite of its users, who get errors from now on.
    pub(crate) fn force_end(&self) {
        let changing = self.changing.lock();
        for held in self.pools() {
            for mount in held.mounts() {
                if let Err(error) = mount.close() {
                    self.note_failure(error.message);
                }
                held.remove_mount(&mount);
            }
            // It is noted.
            let _ = self.close_pool(&changing, &held);
        }
    }

    /// Pools that are here.
    pub(crate) fn pools(&self) -> Vec<Arc<Held>> {
        self.state.lock().pools.clone()
    }

    /// The pool of that guid.
    ///
    /// # Errors
    /// If it is not here.
    pub(crate) fn pool(&self, guid: u64) -> Result<Arc<Held>> {
        let found = self.pools().into_iter().find(|held| held.pool.guid() == guid);
        found.ok_or_else(|| Failure::new("the pool was exported meanwhile"))
    }

    /// All mounts.
    pub(crate) fn mounts(&self) -> Vec<Arc<HeldMount>> {
        self.pools().iter().flat_map(|held| held.mounts()).collect()
    }

    /// The mount at a place.
    ///
    /// # Errors
    /// If there is none of this process.
    pub(crate) fn mount_at(&self, at: &Path) -> Result<Arc<HeldMount>> {
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

    /// That somebody has wanted something of this process: from now on it ends when it has no pool.
    pub(crate) fn note_used(&self) {
        self.state.lock().used = true;
    }

    /// Who it is, and what it has.
    pub(crate) fn view(&self) -> ProcessView {
        ProcessView {
            pid: std::process::id(),
            daemon: self.daemon,
            separate: self.separate,
            memory_bytes: self.plan.total_bytes,
            pools: self.pools().iter().map(|held| held.view()).collect(),
        }
    }
}

/// How long a lazy unmount waits for the end before it leaves the mount to its users.
const LAZY_PATIENCE: Duration = Duration::from_secs(2);

/// A busy mount is tried so often, with such pauses, before it is said that it is.
const BUSY_ROUNDS: u32 = 5;
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// A request that is being served.
pub(crate) struct RequestUnderWay(Arc<Host>);

impl Drop for RequestUnderWay {
    fn drop(&mut self) {
        self.0.state.lock().requests -= 1;
        self.0.changed();
    }
}

/// What there is to say of a pool in a list.
pub(crate) fn pool_view(held: &Held) -> PoolView {
    let stats = held.pool.stats();
    PoolView {
        name: held.pool.name().to_owned(),
        guid: held.pool.guid(),
        read_only: held.pool.is_read_only(),
        devices: held.devices(),
        mounts: held.mounts().iter().map(|mount| mount_view(mount)).collect(),
        total_bytes: stats.total_bytes,
        free_bytes: stats.free_bytes,
        available_bytes: stats.available_bytes,
        suspended: stats.suspended,
    }
}

/// What there is to say of a mount.
pub(crate) fn mount_view(mount: &HeldMount) -> MountView {
    MountView {
        pool: mount.pool.clone(),
        dataset: mount.dataset.clone(),
        at: mount.at().to_owned(),
        read_only: mount.flags().read_only,
        kernel_cache: mount.kernel_cache,
        pid: std::process::id(),
    }
}
