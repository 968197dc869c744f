//! The close of a hybrid cache: one thread closes it, while no change is in progress.
//!
//! A change counts itself and then checks the mark. The close sets the mark and then waits until no
//! change is counted. So either the change sees the mark and is refused, or the close waits for it.
//! The counts are spread over cache lines, because every insert changes one.
//!
//! Invariants: the mark is never reset. Once every count was zero after the mark was set, no change
//! is in progress any more.
//!
//! The drop of a cache waits for the changes too, and for the values that a close writes.
//!
//! Locking: `hybrid-close`, a leaf lock, to read or set the state of the close, and to take or set
//! the promise of futures. Threads that wait for changes or for another thread's close sleep on the
//! first.

use std::ops::Deref;

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::thread::{ThreadId, current_id, spawn_named};
use forebay_base::sync::{Arc, Condvar, Mutex, thread_slot};

use crate::error::{Error, ErrorKind, Result};
use crate::promise::{OnDrop, Promise};

#[cfg(all(test, forebay_model))]
mod model;
#[cfg(all(test, not(forebay_model)))]
mod tests;

const SHARDS: usize = if cfg!(forebay_model) { 2 } else { 16 };

/// Changes in progress, and the state of the close.
pub(super) struct Closing {
    changes: [CachePadded<AtomicU64>; SHARDS],
    /// The mark: later changes are refused.
    is_set: AtomicBool,
    state: Mutex<CloseState>,
    progress: Condvar,
    /// The result, for futures, of the thread that closes for them. `None` if there is no thread.
    closed: Mutex<Option<Arc<Promise<Result<()>>>>>,
}

enum CloseState {
    Open,
    InProgress {
        by: ThreadId,
        /// Whether all values are written that it writes.
        is_written: bool,
    },
    Done(Result<()>),
}

/// A change in progress, counted by a reference, or by an `Arc` if it outlives the call.
pub(super) struct Change<C: Deref<Target = Closing>> {
    closing: C,
    /// Its shard.
    shard: usize,
}

impl<C: Deref<Target = Closing>> Change<C> {
    fn begin(closing: C) -> Option<Self> {
        let shard = thread_slot().index(SHARDS);
        closing.changes[shard].fetch_add(1, Ordering::SeqCst);
        let change = Self { closing, shard };
        // Dropping a refused change wakes a close that has seen its count.
        (!change.closing.is_set()).then_some(change)
    }
}

impl<C: Deref<Target = Closing>> Drop for Change<C> {
    fn drop(&mut self) {
        self.closing.changes[self.shard].fetch_sub(1, Ordering::SeqCst);
        if self.closing.is_set() {
            self.closing.notify();
        }
    }
}

/// Ends the close, also if user code panics in it.
struct CloseInProgress<'a> {
    closing: &'a Closing,
    result: Result<()>,
}

impl Drop for CloseInProgress<'_> {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Ok(()));
        *self.closing.state.lock() = CloseState::Done(result);
        self.closing.progress.notify_all();
    }
}

impl Closing {
    pub(super) fn new() -> Self {
        Self {
            changes: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
            is_set: AtomicBool::new(false),
            state: Mutex::named("hybrid-close", CloseState::Open),
            progress: Condvar::new(),
            closed: Mutex::named("hybrid-close", None),
        }
    }

    /// Whether changes are refused.
    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    /// Begins a change. Returns `None` if changes are refused.
    pub(super) fn begin_change(&self) -> Option<Change<&Self>> {
        Change::begin(self)
    }

    /// Begins a change that ends on another thread.
    pub(super) fn begin_own_change(self: &Arc<Self>) -> Option<Change<Arc<Self>>> {
        Change::begin(Arc::clone(self))
    }

    fn has_changes(&self) -> bool {
        self.changes.iter().any(|count| count.load(Ordering::SeqCst) > 0)
    }

    /// Notes that the close in progress has written all values, and writes no more.
    pub(super) fn note_written(&self) {
        if let CloseState::InProgress { is_written, .. } = &mut *self.state.lock() {
            *is_written = true;
        }
        self.notify();
    }

    /// Waits until no change is in progress, and until a close that has begun has written its
    /// values. For the thread that drops the cache: no other can begin a change or a close then.
    /// The close may wait for values that this thread holds, so its end is not awaited.
    pub(super) fn wait_for_writes(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        // Its thread may not have run yet.
        let has_begun = self.closed.lock().is_some();
        let mut state = self.state.lock();
        loop {
            let is_writing = match &*state {
                CloseState::Open => has_begun,
                CloseState::InProgress { by, is_written } => !is_written && *by != current_id(),
                CloseState::Done(_) => false,
            };
            if !is_writing && !self.has_changes() {
                return;
            }
            self.progress.wait(&mut state);
        }
    }

    fn notify(&self) {
        // With the lock, so that a close that is about to sleep is woken.
        let _state = self.state.lock();
        self.progress.notify_all();
    }

    /// Refuses changes from now on, waits for those in progress, and calls `close`. Later calls
    /// wait for the first one and return its result. Unless the caller `may_wait`, it waits for no
    /// other thread.
    pub(super) fn close(&self, may_wait: bool, close: impl FnOnce() -> Result<()>) -> Result<()> {
        self.is_set.store(true, Ordering::SeqCst);
        let mut state = self.state.lock();
        loop {
            match &*state {
                CloseState::Open => break,
                CloseState::Done(result) => return result.clone(),
                CloseState::InProgress { by, .. } if !may_wait || *by == current_id() => {
                    let text = "the cache is being closed, and this thread cannot wait for it; close it on another thread to get the result";
                    return Err(Error::new(ErrorKind::Closed, text));
                }
                CloseState::InProgress { .. } => self.progress.wait(&mut state),
            }
        }
        *state = CloseState::InProgress { by: current_id(), is_written: false };
        while may_wait && self.has_changes() {
            self.progress.wait(&mut state);
        }
        drop(state);
        let text = "user code panicked in the close; some values may not have been written";
        let result = Err(Error::new(ErrorKind::Closed, text));
        let mut in_progress = CloseInProgress { closing: self, result };
        in_progress.result = close();
        in_progress.result.clone()
    }

    /// Starts a [`close`](Self::close) on a thread of its own, unless one has begun, and promises
    /// its result. Nobody has to wait for it. If there is no thread, the cache is as before, but
    /// for the mark.
    pub(super) fn close_on_thread(
        self: &Arc<Self>,
        close: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Arc<Promise<Result<()>>> {
        self.close_on(close, |body| spawn_named("hybrid-close", body).map(drop))
    }

    /// `spawn` starts the thread.
    fn close_on(
        self: &Arc<Self>,
        close: impl FnOnce() -> Result<()> + Send + 'static,
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> std::io::Result<()>,
    ) -> Arc<Promise<Result<()>>> {
        self.is_set.store(true, Ordering::SeqCst);
        let (closed, is_first) = {
            let mut closed = self.closed.lock();
            let is_first = closed.is_none();
            (Arc::clone(closed.get_or_insert_with(Promise::new)), is_first)
        };
        if is_first {
            let (closing, answer) = (Arc::clone(self), Arc::clone(&closed));
            let body = move || {
                let result_of = Arc::clone(&closing);
                // Last, after `close` and all that it holds are gone: a thread that learns of the
                // end may open the device again. Made by the thread: a refused one drops its body.
                let _end = OnDrop::new(move || answer.fulfill(result_of.close(true, || Ok(()))));
                drop(closing.close(true, close));
            };
            if let Err(error) = spawn(Box::new(body)) {
                let text = "cannot create the thread that closes the cache; raise the process's thread limit, or use `close`";
                let error = Error::new(ErrorKind::Thread, text).because(error);
                *self.closed.lock() = None;
                closed.fulfill(Err(error));
            }
        }
        closed
    }
}
