//! Work in the background: destroying inodes that nobody needs, and writing times after the fact.
//!
//! An inode that lost its last name is in the orphan directory, under its number in hexadecimal digits. When the last who uses it is
//! gone, it is destroyed: at once if it is small, otherwise after its blocks were freed in steps, each a transaction.
//! Nothing of that need be remembered: what is in the orphan directory when a file system is opened is an orphan of a
//! crash, and is destroyed then.
//!
//! What cannot be destroyed now, as in a pool that is full or whose device fails, is tried again later, one by one: so one that
//! cannot go keeps no other, and the room of deleted files comes back once it can.
//!
//! One thread does all of it, so nobody but who takes a failed change back takes names out of the orphan directory. Names there
//! that are none of an orphan's go as well.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_base::sync::thread::{JoinHandle, current_id, spawn_named};
use forebay_base::sync::{Arc, Condvar, Mutex, Weak};
use forebay_pool::{Cookie, ErrorKind as PoolKind, Object, Transaction, check_waiting};

use crate::attrs::{Extras, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::extras;
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::stats::FsCounters;
use crate::table::Leaving;
use crate::types::FileKind;

/// Chores that are done in one go; inodes that are destroyed in one transaction.
const LOT: usize = 32;
/// Records that are freed in one transaction, at most.
const STEP_RECORDS: u64 = 8192;

/// How long what could not be destroyed waits for the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Something to be done later.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Chore {
    /// Destroy the inode of that number, which no name leads to.
    Destroy(u64),
    /// Write its times.
    Times(u64),
}

/// What is to be done, and the thread that does it.
pub(crate) struct Reclaim {
    state: Mutex<State>,
    wake: Condvar,
    idle: Condvar,
}

struct State {
    chores: VecDeque<Chore>,
    /// Inodes that could not be destroyed.
    failed: VecDeque<u64>,
    /// Chores are being done, or what was left behind is being looked for.
    busy: bool,
    stopped: bool,
    thread: Option<JoinHandle<()>>,
}

impl Reclaim {
    pub(crate) fn new() -> Arc<Self> {
        let state = State {
            chores: VecDeque::new(),
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
    /// If the system has none to give.
    pub(crate) fn start(self: &Arc<Self>, fs: Weak<FileSystem>) -> Result<()> {
        let reclaim = Arc::clone(self);
        let thread = spawn_named("fs-reclaim", move || reclaim.run(&fs));
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::NoMemory, format!("the system gives no thread: {error}"))
        })?;
        self.state.lock().thread = Some(thread);
        Ok(())
    }

    pub(crate) fn push(&self, chore: Chore) {
        let mut state = self.state.lock();
        if !state.stopped {
            state.chores.push_back(chore);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// This inode is to be destroyed, and could not be.
    fn push_failed(&self, number: u64) {
        let mut state = self.state.lock();
        if !state.stopped {
            state.failed.push_back(number);
        }
    }

    /// Chores that wait.
    pub(crate) fn len(&self) -> u64 {
        let state = self.state.lock();
        (state.chores.len() + state.failed.len()) as u64
    }

    /// Tries again what failed, and waits until nothing is left to do, but for what fails once more.
    pub(crate) fn quiesce(&self) {
        let mut state = self.state.lock();
        if !state.stopped {
            state.retry(usize::MAX);
            self.wake.notify_one();
        }
        while !state.stopped && (state.busy || !state.chores.is_empty()) {
            self.idle.wait(&mut state);
        }
    }

    /// Ends the thread; what is left to do is found again when the file system is opened.
    pub(crate) fn stop(&self) {
        let thread = {
            let mut state = self.state.lock();
            state.stopped = true;
            state.chores.clear();
            state.failed.clear();
            state.thread.take()
        };
        self.wake.notify_all();
        self.idle.notify_all();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != current_id()) {
            // A panic was printed where it happened.
            let _ = thread.join();
        }
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    fn run(&self, fs: &Weak<FileSystem>) {
        if let Some(fs) = fs.upgrade() {
            fs.destroy_leftovers(self);
        }
        loop {
            let lot: Vec<Chore> = {
                let mut state = self.state.lock();
                state.busy = false;
                if state.chores.is_empty() {
                    self.idle.notify_all();
                }
                while state.chores.is_empty() && !state.stopped {
                    if state.failed.is_empty() {
                        self.wake.wait(&mut state);
                    } else if self.wake.wait_timeout(&mut state, RETRY_AFTER) {
                        // As many as one transaction takes; if that goes well, all of them.
                        state.retry(LOT);
                    }
                }
                state.busy = true;
                let count = state.chores.len().min(LOT);
                state.chores.drain(..count).collect()
            };
            match fs.upgrade() {
                Some(fs) if !self.is_stopped() => fs.do_chores(self, &lot),
                _ => return,
            }
        }
    }
}

impl State {
    /// Makes chores of up to `most` of what failed.
    fn retry(&mut self, most: usize) {
        let count = self.failed.len().min(most);
        self.chores.extend(self.failed.drain(..count).map(Chore::Destroy));
    }
}

/// The name of an inode in the orphan directory.
pub(crate) fn orphan_name(number: u64) -> String {
    format!("{number:x}")
}

/// The inode that such a name stands for.
pub(crate) fn orphan_number(name: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(name).ok()?;
    let number = u64::from_str_radix(text, 16).ok()?;
    (orphan_name(number) == text).then_some(number)
}

/// An orphan that is ready to be destroyed.
struct Doomed {
    number: u64,
    extras: Extras,
}

impl FileSystem {
    /// Waits until the background has destroyed what nobody uses, and written what was to be written.
    pub fn quiesce(&self) {
        self.reclaim().quiesce();
    }

    /// What to do with an inode whose last reference has gone.
    pub(crate) fn let_go(&self, number: u64) {
        let left = self.table().leave(number, |inode| {
            let known = inode.known();
            known.times_pending && known.meta.nlink > 0
        });
        match left {
            Leaving::Stays => self.reclaim().push(Chore::Times(number)),
            Leaving::Left(inode) if inode.known().meta.nlink == 0 => {
                self.reclaim().push(Chore::Destroy(number));
            }
            Leaving::Left(_) | Leaving::Needed => {}
        }
    }

    /// Destroys what a crash, or the end of this program, left behind.
    fn destroy_leftovers(&self, reclaim: &Reclaim) {
        if self.check_writable().is_err() {
            return;
        }
        let mut from = Cookie::START;
        while !reclaim.is_stopped() {
            let Ok(entries) = self.orphans().entries(from, LOT) else { return };
            let Some(last) = entries.last() else { return };
            from = last.next;
            let numbers: Vec<u64> =
                entries.iter().filter_map(|entry| orphan_number(&entry.name)).collect();
            self.destroy_orphans(reclaim, &numbers);
        }
    }

    fn do_chores(&self, reclaim: &Reclaim, lot: &[Chore]) {
        let mut doomed = Vec::new();
        for chore in lot {
            match chore {
                Chore::Destroy(number) => doomed.push(*number),
                Chore::Times(number) => self.flush_times_of(*number),
            }
        }
        self.destroy_orphans(reclaim, &doomed);
    }

    fn flush_times_of(&self, number: u64) {
        // Not there: somebody else was faster.
        let Some(inode) = self.held(number) else { return };
        if self.flush_times(&inode).is_err() {
            // They are lost, as after a crash; it must not stay for them.
            inode.known().times_pending = false;
        }
    }

    fn destroy_orphans(&self, reclaim: &Reclaim, numbers: &[u64]) {
        let mut ready = Vec::new();
        for number in numbers {
            match self.prepare(reclaim, *number) {
                Ok(Some(doomed)) => ready.push(doomed),
                Ok(None) => {}
                Err(error) => self.not_destroyed(reclaim, *number, &error),
            }
        }
        if ready.is_empty() || reclaim.is_stopped() {
            return;
        }
        let left = self.destroy_all(&ready);
        let mut destroyed = ready.len() - left.len();
        // One of them may have kept the others, or used up what room a transaction has.
        for doomed in left {
            let one = self.begin_freeing().and_then(|tx| self.destroy_one(&tx, doomed));
            match one {
                Ok(()) => destroyed += 1,
                Err(error) => self.not_destroyed(reclaim, doomed.number, &error),
            }
        }
        self.counters().add(FsCounters::ORPHANS_DESTROYED, 0, destroyed as u64);
        if destroyed > 0 {
            reclaim.state.lock().retry(usize::MAX);
        }
    }

    /// Takes note that an inode could not be destroyed. What makes no sense will not make more later; the rest is tried again.
    fn not_destroyed(&self, reclaim: &Reclaim, number: u64, error: &Error) {
        self.counters().add(FsCounters::ORPHANS_FAILED, 0, 1);
        if !matches!(
            error.kind(),
            ErrorKind::Corrupt | ErrorKind::Suspended | ErrorKind::Closed | ErrorKind::ReadOnly
        ) {
            reclaim.push_failed(number);
        }
    }

    /// Looks whether an inode is to be destroyed, and frees what is too much for one transaction.
    fn prepare(&self, reclaim: &Reclaim, number: u64) -> Result<Option<Doomed>> {
        if self.table().has(number) {
            return Ok(None);
        }
        let info = match self.dataset().object_info(number) {
            Ok(info) => info,
            Err(error) if error.kind() == PoolKind::NotFound => {
                return self.remove_false_name(number).map(|()| None);
            }
            Err(error) => return Err(error.into()),
        };
        let meta = Meta::decode(&info.attributes)?;
        if meta.nlink != 0 {
            return self.remove_false_name(number).map(|()| None);
        }
        if meta.kind == FileKind::File {
            let object = self.dataset().object(number)?;
            let mut go_on = || !reclaim.is_stopped();
            if !self.free_in_steps(&object, 0, u64::MAX, &mut go_on)? {
                return Ok(None);
            }
        }
        Ok(Some(Doomed { number, extras: meta.extras }))
    }

    /// Takes the name of an inode that is no orphan out of the orphan directory.
    fn remove_false_name(&self, number: u64) -> Result<()> {
        let name = orphan_name(number);
        if self.orphans().lookup(name.as_bytes())?.is_none() {
            return Ok(());
        }
        // Somebody may make an inode of that number, or an orphan of it, right now: then the name is none of ours.
        let inode = match self.inode(number) {
            Ok(inode) => Some(inode),
            Err(error) if error.kind() == ErrorKind::Stale => None,
            Err(error) => return Err(error),
        };
        let tx = self.begin_freeing()?;
        let _turn = inode.as_deref().map(Inode::turn).transpose()?;
        let is_orphan = match &inode {
            Some(inode) => inode.known().meta.nlink == 0,
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

    /// Destroys orphans in one transaction, up to one that fails; returns that and those behind it.
    fn destroy_all<'d>(&self, doomed: &'d [Doomed]) -> &'d [Doomed] {
        let Ok(tx) = self.begin_freeing() else { return doomed };
        let done = doomed.iter().take_while(|doomed| self.destroy_one(&tx, doomed).is_ok()).count();
        &doomed[done..]
    }

    /// Destroys an orphan. Its name goes first: a name whose object is gone would be in the way of who gets the number next. An object
    /// without its name is found by nobody but who tries again.
    fn destroy_one(&self, tx: &Transaction<'_>, doomed: &Doomed) -> Result<()> {
        let name = orphan_name(doomed.number);
        gone_is_fine(self.orphans().remove(tx, name.as_bytes()).map(|_| ()))?;
        // The object goes last: as long as it is there, it can be tried again.
        let discarded = match extras::discard(self.dataset(), tx, &doomed.extras) {
            Err(error) if error.kind() != ErrorKind::Stale => Err(error),
            _ => Ok(()),
        };
        let destroyed =
            discarded.and_then(|()| gone_is_fine(self.dataset().destroy(tx, doomed.number)));
        match destroyed {
            // Its number may be given to another inode.
            Ok(()) => self.lost().replaced(doomed.number, 0..u64::MAX),
            Err(_) => drop(self.orphans().update(tx, name.as_bytes(), &[1])?),
        }
        destroyed
    }

    /// Frees the records of a file from `from` to `to`, but for what is little enough for the caller's next transaction. Each step is a
    /// transaction. Stops if `go_on` says no; returns whether it did not.
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
        while let Some(data) = object.next_data(at)?
            && data < end
            && end - data > step_bytes
        {
            if !go_on() {
                return Ok(false);
            }
            // A step cannot be taken back.
            check_waiting("a file that is freed in steps")?;
            // Steps go from record to record.
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

/// Lets pass that something to be removed is not there.
fn gone_is_fine(removed: forebay_pool::Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.kind() != PoolKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
