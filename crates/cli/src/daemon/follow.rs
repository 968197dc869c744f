//! Pools that another host writes: a thread takes up each new transaction group.
//!
//! Each group is imported anew, read-only, from a view of the store that stays as it is. The
//! imports share the cache. Then each mount gets a file system of the new group; files that are
//! open and have changed stay with the group before.
//!
//! With `--l2`, all imports share an L2 of this host. It hears of each new root before that is
//! imported, and keeps nothing of a history that was given up.
//!
//! A failure of a look or of an import is shown in `status`, and the mounts go on with what they
//! have. The next look tries again.
//!
//! # Locking
//! `follow-state` is held for a look at it, or to take or replace the pool of the registry with its
//! view; `follow-stop` is held while the thread sleeps.
//! The thread takes the locks of the registry for a look, one at a time.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_base::sync::thread::{JoinHandle, spawn_named};
use forebay_base::sync::{Condvar, Mutex};
use forebay_fs::FileSystem;
use forebay_fuse::Group;
use forebay_object::{Follower, ObjectDevice};
use forebay_pool::{BlockCache, EventLog, FollowedPool, Pool};

use super::ImportedPool;
use crate::control::follow::FollowInfo;
use crate::error::{Failure, Result};
use crate::object_stores;
use crate::pools::{self, ImportRequest};

/// A pool that is followed.
pub(crate) struct Following {
    follower: Follower,
    shared: FollowedPool,
    request: ImportRequest,
    interval: Duration,
    cache: Arc<BlockCache>,
    events: Arc<EventLog>,
    state: Mutex<FollowState>,
    stopped: Mutex<bool>,
    wake: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct FollowState {
    /// The view of the newest group that is shown. It changes with the pool of the registry.
    view: Arc<ObjectDevice>,
    /// A newer one, whose import has failed.
    pending: Option<Arc<ObjectDevice>>,
    /// Why the newest look failed.
    error: Option<String>,
}

impl Following {
    /// Imports the newest transaction group of a pool, to follow it from there.
    ///
    /// # Errors
    /// If the pool is on no object store, or cannot be imported.
    pub(super) fn begin(
        request: &ImportRequest,
        interval: Duration,
        cache: &Arc<BlockCache>,
        events: &Arc<EventLog>,
    ) -> Result<(Pool, Self)> {
        let url = match &request.paths[..] {
            [path] => object_stores::url(path),
            _ => None,
        };
        let url = url.ok_or_else(|| {
            Failure::new(
                "--follow is for pools on object stores; give the URL of one, s3://BUCKET/PREFIX",
            )
        })?;
        if !request.read_only {
            return Err(Failure::new("--follow writes nothing; add --read-only"));
        }
        let (follower, view) = object_stores::follow(url)?;
        let shared = FollowedPool::new();
        let shown = pools::import_view(request, object_stores::view(&view), &shared, cache, events);
        let shown = shown.and_then(|pool| {
            if let Some(path) = &request.follow_l2 {
                open_l2(path, &pool, &shared, &follower)?;
            }
            Ok(pool)
        });
        let pool = shown.inspect_err(|_| follower.close())?;
        shared.note_state(follower.mark(), |_| true);
        let state = FollowState { view, pending: None, error: None };
        let following = Self {
            follower,
            shared,
            request: request.clone(),
            interval,
            cache: Arc::clone(cache),
            events: Arc::clone(events),
            state: Mutex::named("follow-state", state),
            stopped: Mutex::named("follow-stop", false),
            wake: Condvar::new(),
            thread: Mutex::named("follow-thread", None),
        };
        Ok((pool, following))
    }

    /// Starts the thread that takes up new groups. It ends when the pool is exported.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn start(imported: &Arc<ImportedPool>) -> Result<()> {
        let Some(following) = &imported.following else { return Ok(()) };
        let weak = Arc::downgrade(imported);
        let thread = spawn_named("forebay-follow", move || run(&weak)).map_err(|error| {
            let what = format!("cannot follow pool {}", imported.pool().name());
            Failure::no_thread(&what, &error)
        })?;
        *following.thread.lock() = Some(thread);
        Ok(())
    }

    /// Ends the thread, removes the pin, and closes the L2. Reads that wait for the store fail.
    /// `pool` is that of the newest group.
    pub(super) fn stop(&self, pool: &Pool) {
        *self.stopped.lock() = true;
        self.wake.notify_all();
        // First: a look that waits for the store ends with it.
        self.follower.close();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        self.shared.fill_and_close_l2(pool);
    }

    /// Checks that a further mount of the pool asks for the L2 that it has, if it asks for one.
    ///
    /// # Errors
    /// If the L2 is another one.
    pub(super) fn check_l2(&self, pool: &str, wanted: Option<&Path>) -> Result<()> {
        let used = self.request.follow_l2.as_deref();
        if wanted.is_none() || wanted == used {
            return Ok(());
        }
        let with = match used {
            Some(used) => format!("with {} as L2", used.display()),
            None => "without an L2".to_owned(),
        };
        Err(Failure::new(format!(
            "pool {pool} is followed here {with}; run `forebay export {pool}` first, or mount it without --l2"
        )))
    }

    /// Sleeps until the next look. Returns false if there is none.
    fn sleep(&self) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.wake.wait_timeout(&mut stopped, self.interval);
        }
        !*stopped
    }

    /// Takes up the newest group, if there is a newer one.
    fn look(&self, imported: &ImportedPool) {
        let polled = self.follower.poll();
        // Before blocks of the new group are read.
        self.shared.note_state(self.follower.mark(), |mark| self.follower.descends_from(mark));
        let mut error = polled.as_ref().err().map(ToString::to_string);
        let pending = self.state.lock().pending.take();
        if let Some(view) = polled.ok().flatten().or(pending) {
            match self.import(&view) {
                Ok(pool) => {
                    // A mount that begins meanwhile has the pool and the view of before, and is
                    // brought to the newest below or at the next look.
                    let before = {
                        let mut state = self.state.lock();
                        state.view = view;
                        imported.advance(pool)
                    };
                    // Outside of the lock: the last reference closes it.
                    drop(before);
                }
                Err(failure) => {
                    error = Some(failure.message);
                    self.state.lock().pending = Some(view);
                }
            }
        }
        for mount in imported.mounts() {
            if let Err(failure) = mount.follow(imported, self) {
                error = Some(failure.message);
            }
        }
        self.note(imported, error);
    }

    /// Imports the transaction group of a view.
    fn import(&self, view: &Arc<ObjectDevice>) -> Result<Pool> {
        let view = object_stores::view(view);
        pools::import_view(&self.request, view, &self.shared, &self.cache, &self.events)
    }

    /// Notes the outcome of a look, and logs it if it is another one.
    fn note(&self, imported: &ImportedPool, error: Option<String>) {
        let before = std::mem::replace(&mut self.state.lock().error, error.clone());
        let pool = imported.pool();
        match (before, error) {
            (None, Some(error)) => {
                let text = "cannot take up the newest transaction group; the one before is shown";
                tracing::warn!(pool = pool.name(), error, text);
            }
            (Some(_), None) => {
                tracing::info!(pool = pool.name(), "takes up new transaction groups again");
            }
            _ => {}
        }
    }

    /// The newest group, with the dataset that `open` opens in its pool.
    ///
    /// # Errors
    /// The error of `open`.
    pub(super) fn group(
        &self,
        imported: &ImportedPool,
        open: impl FnOnce(&Arc<Pool>) -> Result<FileSystem>,
    ) -> Result<Group> {
        let (pool, view) = {
            let state = self.state.lock();
            (imported.pool(), Arc::clone(&state.view))
        };
        let (fs, txg) = (open(&pool)?, pool.stats().synced_txg);
        self.shared.warm_up_l2(&pool);
        Ok(Group::new(fs, txg, move || view.is_outdated()))
    }

    /// What is shown in `status`.
    pub(crate) fn info(&self, imported: &ImportedPool) -> FollowInfo {
        let known = self.follower.state();
        let (error, is_behind) = {
            let state = self.state.lock();
            (state.error.clone(), state.pending.is_some())
        };
        let groups = imported.mounts().iter().map(|mount| mount.groups()).sum();
        FollowInfo {
            owner: known.owner,
            epoch: known.epoch,
            staleness_ms: known.unknown_for.as_millis() as u64,
            is_behind,
            interval_ms: self.interval.as_millis() as u64,
            groups,
            pinned: known.pinned,
            pin_error: known.pin_error,
            error,
        }
    }
}

/// Opens the L2 of this host.
///
/// # Errors
/// If the file or device is in use, or holds anything else.
fn open_l2(path: &Path, pool: &Pool, shared: &FollowedPool, follower: &Follower) -> Result<()> {
    let opened = pools::open_new_devices(std::slice::from_ref(&path.to_owned()), None)?.pop();
    let opened = opened.ok_or_else(|| {
        Failure::new(format!("{}: cannot be opened; give another file", path.display()))
    })?;
    let is_ancestor = |mark| follower.descends_from(mark);
    Ok(shared.open_l2(pool, opened, follower.mark(), is_ancestor)?)
}

fn run(imported: &Weak<ImportedPool>) {
    while let Some(imported) = imported.upgrade() {
        let Some(following) = &imported.following else { return };
        if !following.sleep() {
            return;
        }
        following.look(&imported);
    }
}
