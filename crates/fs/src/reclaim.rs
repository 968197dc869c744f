//! Background work: destroys orphans and writes pending times.
//!
//! An inode without names is in the orphan directory, under its number in hexadecimal. When its
//! last user is gone, it is destroyed: at once if it is small, otherwise after its blocks were
//! freed in steps of one transaction each. Orphans need no other record. Opening a file system
//! destroys every inode in the orphan directory.
//!
//! An orphan that cannot be destroyed, because the pool is full or suspended or a device fails, is
//! retried later by itself. It does not block the others. So are times that a suspended pool does
//! not take, or one whose devices are gone. A close of the file system writes the times that are
//! left.
//!
//! One thread does all of this, so only that thread and the rollback of failed operations remove
//! names from the orphan directory. It also removes names whose inode is no orphan.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_base::sync::thread::{JoinHandle, current_id, spawn_named};
use forebay_base::sync::{Arc, Condvar, Mutex, Weak};
use forebay_pool::{Cookie, ErrorKind as PoolKind, Object, Transaction};

use crate::attrs::{Extras, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::extras;
use crate::fs::FileSystem;
use crate::inode_table::Eviction;
use crate::shared::FsShared;
use crate::stats::FsCounters;
use crate::types::FileKind;

/// Largest number of tasks run, and of inodes destroyed, in one transaction.
const BATCH: usize = 32;
/// Largest number of records freed in one transaction.
const STEP_RECORDS: u64 = 8192;

/// Delay before a failed destroy is retried.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A task for the background thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReclaimTask {
    /// Destroy the orphan with this number.
    Destroy(u64),
    /// Write the pending times of this inode.
    FlushTimes(u64),
}

/// The background thread and its tasks.
pub(crate) struct Reclaim {
    state: Mutex<ReclaimState>,
    wake: Condvar,
    idle: Condvar,
}

struct ReclaimState {
    tasks: VecDeque<ReclaimTask>,
    /// Tasks that failed.
    failed: VecDeque<ReclaimTask>,
    /// Tasks are running, or the orphan directory is being read.
    busy: bool,
    stopped: bool,
    thread: Option<JoinHandle<()>>,
}

impl Reclaim {
    pub(crate) fn new() -> Arc<Self> {
        let state = ReclaimState {
            tasks: VecDeque::new(),
            failed: VecDeque::new(),
            busy: true,
            stopped: false,
            thread: None,
        };
        Arc::new(Self {
            state: Mutex::named("fs-reclaim", state),
            wake: Condvar::new(),
            idle: Condvar::new(),
        })
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub(crate) fn start(self: &Arc<Self>, fs: Weak<FsShared>) -> Result<()> {
        let reclaim = Arc::clone(self);
        let thread = spawn_named("fs-reclaim", move || reclaim.run(&fs));
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::NoMemory, format!("cannot start the reclaim thread: {error}"))
        })?;
        self.state.lock().thread = Some(thread);
        Ok(())
    }

    pub(crate) fn push(&self, task: ReclaimTask) {
        let mut state = self.state.lock();
        if !state.stopped {
            state.tasks.push_back(task);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Notes a failed task for later.
    fn push_failed(&self, task: ReclaimTask) {
        let mut state = self.state.lock();
        if !state.stopped {
            state.failed.push_back(task);
        }
    }

    /// Number of waiting tasks.
    pub(crate) fn len(&self) -> u64 {
        let state = self.state.lock();
        (state.tasks.len() + state.failed.len()) as u64
    }

    /// Retries failed tasks, and waits until no task is left except those that fail again.
    pub(crate) fn wait_for_reclaim(&self) {
        let mut state = self.state.lock();
        if !state.stopped {
            state.retry(usize::MAX);
            self.wake.notify_one();
        }
        while !state.stopped && (state.busy || !state.tasks.is_empty()) {
            self.idle.wait(&mut state);
        }
    }

    /// Ends the thread. The orphan directory still names the remaining work.
    pub(crate) fn stop(&self) {
        let thread = {
            let mut state = self.state.lock();
            state.stopped = true;
            state.tasks.clear();
            state.failed.clear();
            state.thread.take()
        };
        self.wake.notify_all();
        self.idle.notify_all();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != current_id()) {
            // The thread has printed its panic.
            let _ = thread.join();
        }
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    fn run(&self, fs: &Weak<FsShared>) {
        if let Some(fs) = fs.upgrade() {
            FileSystem::for_background(fs).destroy_leftovers(self);
        }
        loop {
            let batch: Vec<ReclaimTask> = {
                let mut state = self.state.lock();
                state.busy = false;
                if state.tasks.is_empty() {
                    self.idle.notify_all();
                }
                while state.tasks.is_empty() && !state.stopped {
                    if state.failed.is_empty() {
                        self.wake.wait(&mut state);
                    } else if self.wake.wait_timeout(&mut state, RETRY_AFTER) {
                        // Retry one transaction's worth. If that succeeds, all others follow.
                        state.retry(BATCH);
                    }
                }
                state.busy = true;
                let count = state.tasks.len().min(BATCH);
                state.tasks.drain(..count).collect()
            };
            match fs.upgrade() {
                Some(fs) if !self.is_stopped() => {
                    FileSystem::for_background(fs).run_tasks(self, &batch)
                }
                _ => return,
            }
        }
    }
}

impl ReclaimState {
    /// Turns up to `most` failed tasks into tasks.
    fn retry(&mut self, most: usize) {
        let count = self.failed.len().min(most);
        self.tasks.extend(self.failed.drain(..count));
    }
}

/// The name of an inode in the orphan directory.
pub(crate) fn orphan_name(number: u64) -> String {
    format!("{number:x}")
}

/// The inode number of such a name.
pub(crate) fn orphan_number(name: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(name).ok()?;
    let number = u64::from_str_radix(text, 16).ok()?;
    (orphan_name(number) == text).then_some(number)
}

/// An orphan that is ready to be destroyed.
struct PreparedOrphan {
    number: u64,
    extras: Extras,
}

impl FileSystem {
    /// Waits until background work is done: orphans are destroyed and pending times are written.
    pub fn wait_for_reclaim(&self) {
        self.reclaim().wait_for_reclaim();
    }

    /// Evicts an inode whose last reference is gone, or queues the task that must come first.
    pub(crate) fn evict_if_unused(&self, number: u64) {
        let left = self.table().try_evict(number, |inode| {
            let state = inode.state();
            state.times_pending && state.meta.nlink > 0
        });
        match left {
            Eviction::Deferred => self.reclaim().push(ReclaimTask::FlushTimes(number)),
            Eviction::Evicted(inode) if inode.state().meta.nlink == 0 => {
                self.reclaim().push(ReclaimTask::Destroy(number));
            }
            Eviction::Evicted(_) | Eviction::InUse => {}
        }
    }

    /// Destroys the orphans left by a crash or an earlier process.
    fn destroy_leftovers(&self, reclaim: &Reclaim) {
        if self.check_writable().is_err() {
            return;
        }
        let mut from = Cookie::START;
        while !reclaim.is_stopped() {
            let Ok(entries) = self.orphans().entries(from, BATCH) else { return };
            let Some(last) = entries.last() else { return };
            from = last.next;
            let numbers: Vec<u64> =
                entries.iter().filter_map(|entry| orphan_number(&entry.name)).collect();
            self.destroy_orphans(reclaim, &numbers);
        }
    }

    pub(crate) fn run_tasks(&self, reclaim: &Reclaim, batch: &[ReclaimTask]) {
        let mut orphans = Vec::new();
        for task in batch {
            match task {
                ReclaimTask::Destroy(number) => orphans.push(*number),
                ReclaimTask::FlushTimes(number) => self.flush_times_of(reclaim, *number),
            }
        }
        self.destroy_orphans(reclaim, &orphans);
    }

    fn flush_times_of(&self, reclaim: &Reclaim, number: u64) {
        // Another thread has already evicted it.
        let Some(inode) = self.cached(number) else { return };
        match self.flush_times(&inode) {
            Ok(()) => {}
            // A close that runs beside this writes them.
            Err(error)
                if matches!(error.kind(), ErrorKind::Suspended | ErrorKind::Closed)
                    || error.waits() =>
            {
                inode.leave();
                reclaim.push_failed(ReclaimTask::FlushTimes(number));
            }
            // The times are lost, as after a crash. Otherwise the inode could never be evicted.
            Err(_) => inode.state().times_pending = false,
        }
    }

    fn destroy_orphans(&self, reclaim: &Reclaim, numbers: &[u64]) {
        let mut ready = Vec::new();
        for number in numbers {
            match self.prepare_orphan(reclaim, *number) {
                Ok(Some(orphan)) => ready.push(orphan),
                Ok(None) => {}
                Err(error) => self.destroy_failed(reclaim, *number, &error),
            }
        }
        if ready.is_empty() || reclaim.is_stopped() {
            return;
        }
        let left = self.destroy_all(&ready);
        let mut destroyed = ready.len() - left.len();
        // One orphan may have failed the batch, or exceeded the limits of a transaction.
        for orphan in left {
            let one = self.begin_freeing().and_then(|tx| self.destroy_one(&tx, orphan));
            match one {
                Ok(()) => destroyed += 1,
                Err(error) => self.destroy_failed(reclaim, orphan.number, &error),
            }
        }
        self.counters().add(FsCounters::ORPHANS_DESTROYED, 0, destroyed as u64);
        if destroyed > 0 {
            reclaim.state.lock().retry(usize::MAX);
        }
    }

    /// Counts a failed destroy, and queues a retry unless the error is permanent.
    fn destroy_failed(&self, reclaim: &Reclaim, number: u64, error: &Error) {
        self.counters().add(FsCounters::ORPHANS_FAILED, 0, 1);
        match error.kind() {
            ErrorKind::Closed | ErrorKind::ReadOnly => {}
            ErrorKind::Corrupt => {
                tracing::error!(inode = number, %error, "cannot destroy an unlinked inode");
            }
            _ => {
                tracing::debug!(inode = number, %error, "will destroy an unlinked inode later");
                reclaim.push_failed(ReclaimTask::Destroy(number));
            }
        }
    }

    /// Checks that an inode is to be destroyed, and frees what exceeds one transaction.
    fn prepare_orphan(&self, reclaim: &Reclaim, number: u64) -> Result<Option<PreparedOrphan>> {
        if self.table().contains(number) {
            return Ok(None);
        }
        let info = match self.dataset().object_info(number) {
            Ok(info) => info,
            Err(error) if error.kind() == PoolKind::NotFound => {
                return self.remove_stale_entry(number).map(|()| None);
            }
            Err(error) => return Err(error.into()),
        };
        let meta = Meta::decode(&info.attributes)?;
        if meta.nlink != 0 {
            return self.remove_stale_entry(number).map(|()| None);
        }
        if meta.kind == FileKind::File {
            let object = self.dataset().object(number)?;
            let mut go_on = || !reclaim.is_stopped();
            if !self.free_in_steps(&object, 0, u64::MAX, &mut go_on)? {
                return Ok(None);
            }
        }
        Ok(Some(PreparedOrphan { number, extras: meta.extras }))
    }

    /// Removes a name from the orphan directory if its inode is no orphan.
    fn remove_stale_entry(&self, number: u64) -> Result<()> {
        let name = orphan_name(number);
        if self.orphans().lookup(name.as_bytes())?.is_none() {
            return Ok(());
        }
        // Another thread may be creating or unlinking an inode with this number. Then the name is
        // not stale.
        let inode = match self.inode(number) {
            Ok(inode) => Some(inode),
            Err(error) if error.kind() == ErrorKind::Stale => None,
            Err(error) => return Err(error),
        };
        let tx = self.begin_freeing()?;
        let _lock = inode.as_deref().map(|inode| inode.lock(&tx)).transpose()?;
        let is_orphan = match &inode {
            Some(inode) => inode.state().meta.nlink == 0,
            None => match self.dataset().object_info(number) {
                Ok(_) => true,
                Err(error) if error.kind() == PoolKind::NotFound => false,
                Err(error) => return Err(error.into()),
            },
        };
        if !is_orphan {
            self.orphans().remove(&tx, name.as_bytes())?;
            self.counters().add(FsCounters::ORPHAN_NAMES_REMOVED, 0, 1);
        }
        Ok(())
    }

    /// Destroys orphans in one transaction until one fails. Returns that one and those after it.
    fn destroy_all<'d>(&self, orphans: &'d [PreparedOrphan]) -> &'d [PreparedOrphan] {
        let Ok(tx) = self.begin_freeing() else { return orphans };
        let done =
            orphans.iter().take_while(|orphan| self.destroy_one(&tx, orphan).is_ok()).count();
        &orphans[done..]
    }

    /// Destroys an orphan. Removes its name first: a name without an object would collide with the
    /// next inode of that number. An object without a name is known to the retry queue only.
    fn destroy_one(&self, tx: &Transaction<'_>, orphan: &PreparedOrphan) -> Result<()> {
        let name = orphan_name(orphan.number);
        let removed = match self.orphans().remove(tx, name.as_bytes()) {
            Ok(value) => Some(value),
            Err(error) if error.kind() == PoolKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        // Destroy the object last, because a retry needs it.
        let discarded = match extras::discard(self.dataset(), tx, &orphan.extras) {
            Err(error) if error.kind() != ErrorKind::Stale => Err(error),
            _ => Ok(()),
        };
        let destroyed =
            discarded.and_then(|()| ignore_not_found(self.dataset().destroy(tx, orphan.number)));
        match (&destroyed, removed) {
            // Its number may be reused.
            (Ok(()), _) => self.writeback_errors().clear(orphan.number, 0..u64::MAX),
            (Err(_), Some(value)) => self.orphans().restore(tx, name.as_bytes(), &value)?,
            (Err(_), None) => {}
        }
        destroyed
    }

    /// Frees the records between `from` and `to`, except a rest that fits into the caller's next
    /// transaction. Each step is one transaction. Returns false if `go_on` stopped it.
    pub(crate) fn free_in_steps(
        &self,
        object: &Object,
        from: u64,
        to: u64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        let step_bytes = STEP_RECORDS * u64::from(object.record_bytes());
        let end = to.min(object.size());
        let mut at = from;
        if object.usage().allocated_bytes <= step_bytes {
            return Ok(true);
        }
        while let Some(data) = object.with_wait(self.wait).next_data(at)?
            && data < end
            && end - data > step_bytes
        {
            if !go_on() {
                return Ok(false);
            }
            // A completed step cannot be rolled back.
            self.wait.check("freeing a file in steps")?;
            // Steps are aligned to records.
            let next = (data / step_bytes + 1) * step_bytes;
            let tx = self.begin_freeing()?;
            object.punch(&tx, data.max(from), next - data.max(from))?;
            drop(tx);
            self.counters().add(FsCounters::STEPS_FREED, 0, 1);
            at = next;
        }
        Ok(true)
    }
}

/// Treats a missing name or object as removed.
fn ignore_not_found(removed: forebay_pool::Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.kind() != PoolKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
