//! Mounts of a daemon: how a dataset is mounted and unmounted, and what a mount that ends does.
//!
//! Each mount has a thread that waits for its end, and then closes and removes it.
//!
//! Locking: as in the module above. An unmount holds no lock while it waits for the mount.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::registry::NotClean;
use super::{Daemon, ImportedPool, MountedDataset};
use crate::error::{Failure, Result};
use crate::flags::Flags;
use crate::pools::ImportRequest;

/// How long a lazy unmount waits for the end of the mount.
const LAZY_TIMEOUT: Duration = Duration::from_secs(2);

/// A request to mount a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MountRequest {
    pub(crate) dataset: String,
    /// Mount point; an absolute path in a request to another process.
    pub(crate) at: PathBuf,
    pub(crate) flags: Flags,
    pub(crate) kernel_cache: bool,
    /// Allow access by other users; the default is true for root, else false.
    pub(crate) allow_other: bool,
    /// Threads that serve requests; `None` for the default of the process.
    pub(crate) threads: Option<usize>,
}

impl Daemon {
    /// Mounts a dataset, and imports its pool if needed.
    ///
    /// # Errors
    /// If the import or the mount fails. A pool imported for this mount is exported again.
    pub(crate) fn mount(
        self: &Arc<Self>,
        import: &ImportRequest,
        request: &MountRequest,
    ) -> Result<Arc<MountedDataset>> {
        let changing = self.lock_for(import)?;
        let imported = self.import_locked(&changing, import)?;
        let mounted = self.mount_locked(&imported, request);
        if mounted.is_err() {
            // `close_pool` records its own error; the mount error is returned.
            let _ = self.close_if_unused(changing, &imported);
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
                "dataset {} of pool {} is mounted at {}; run `forebay umount {2}` first",
                request.dataset,
                imported.pool().name(),
                other.current_at().display()
            )));
        }
        let mount = Arc::new(MountedDataset::begin(imported, request, &self.plan)?);
        imported.add_mount(&mount);
        // What is changed there from now on was not given up.
        imported.give_changes_up(false);
        let (daemon, of_thread, its_pool) =
            (Arc::clone(self), Arc::clone(&mount), Arc::clone(imported));
        let watch = move || {
            let failure = of_thread.wait();
            daemon.retire(&its_pool, &of_thread, failure);
        };
        let watcher = forebay_base::sync::thread::spawn_named("forebay-mount", watch);
        if let Err(error) = watcher {
            imported.remove_mount(&mount);
            let (dataset, pool) = (&request.dataset, imported.pool());
            let what = format!("cannot mount dataset {dataset} of pool {}", pool.name());
            return Err(Failure::no_thread(&what, &error));
        }
        self.changed();
        Ok(mount)
    }

    /// Closes a mount that has ended, and its pool if it was imported only for mounts.
    fn retire(
        self: &Arc<Self>,
        imported: &Arc<ImportedPool>,
        mount: &Arc<MountedDataset>,
        failure: Option<String>,
    ) {
        // Keeps the process from ending before the messages are printed.
        let _request_guard = self.request();
        let changing = self.changing.lock();
        let mut outcome = mount.close();
        if let Some(why) = failure {
            self.screen.warn(&format!("{}: the mount failed: {why}", mount.current_at().display()));
        }
        imported.remove_mount(mount);
        let is_pending = outcome.as_ref().is_err_and(|error| error.is_pending);
        if let Err(NotClean { message, is_pending: false }) = &outcome {
            self.note_failure(format!("{}: {message}", mount.current_at().display()));
        }
        if let Some(closed) = self.close_if_unused(changing, imported)
            && (outcome.is_ok() || is_pending)
        {
            outcome = closed.map_err(NotClean::from);
        } else if !imported.stays()
            && imported.mounts().is_empty()
            && let Some(unsaved) = self.unsaved(imported)
        {
            let at = mount.current_at();
            let message = format!("{}: {}", at.display(), unsaved.stays());
            self.screen.warn(&message);
            outcome = Err(NotClean { message, is_pending: true });
        }
        self.screen.say(&format!("unmounted {}", mount.current_at().display()));
        mount.set_outcome(outcome);
        self.changed();
    }

    /// Unmounts a dataset, and waits until it is closed.
    ///
    /// # Errors
    /// If the mount is busy, or closing fails.
    pub(crate) fn unmount(&self, mount: &Arc<MountedDataset>, lazy: bool) -> Result<()> {
        mount.unmount(lazy)?;
        if lazy {
            // Open files keep a detached mount alive without limit.
            self.wait_for(mount, LAZY_TIMEOUT);
            return match mount.outcome() {
                Some(outcome) => outcome.map_err(Failure::from),
                None => {
                    let at = mount.current_at();
                    self.screen.say(&format!(
                        "{}: detached; it ends when its last file is closed",
                        at.display()
                    ));
                    Ok(())
                }
            };
        }
        while mount.outcome().is_none() {
            self.wait_for(mount, Duration::from_secs(1));
        }
        mount.outcome().unwrap_or(Ok(())).map_err(Failure::from)
    }

    /// Waits until a mount is closed, for at most `timeout`.
    fn wait_for(&self, mount: &MountedDataset, timeout: Duration) {
        let until = Instant::now() + timeout;
        let mut state = self.state.lock();
        while mount.outcome().is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.ended.wait_timeout(&mut state, left);
        }
    }
}
