//! Flushes of one open file: one at a time, and none after one that failed.
//!
//! The kernel tells of writes that it could not bring from the page cache to the medium once for
//! each open file, to the flush that looks first, and takes the lost pages for clean from then on.
//! All lanes share one open file. So a flush that succeeds proves nothing about its writes if
//! another one, which failed, was executed at the same time or before.
//!
//! # Invariants
//!
//! - At most one flush is on its way to the device below. What comes meanwhile waits, and goes
//!   together, as one flush, once the result of the first is known: it covers what had completed when
//!   each of them came, and costs one flush of the medium.
//! - After a flush has failed none is issued any more: those that wait and those that come fail.
//!   So no flush that succeeds was executed beside or after one that failed.
//! - A flush that was not executed (cancelled in the queue) says nothing about others.
//! - Nothing waits unless one is on its way, whose end takes care of it.
//!
//! # Locking
//!
//! `io-flush`, for a look at the list. Requests are submitted and finished outside it.
//!
//! # What it does not do
//!
//! It does not hold back writes, before or after a failure. What a flush of another process, or of
//! the same file opened twice, is told does not change what this one is: the kernel tells each
//! open file by itself.

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex, Weak};

use crate::completion::in_callback;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Name};
use crate::request::{Completion, Op, Request};

/// Most flushes that wait for another. A submitter that comes then waits itself.
const MAX_WAITING: usize = 1024;

/// What follows from a flush that failed.
const LOST: &str = "what was written since the last flush that succeeded may be lost, and no \
                    flush will succeed until the device is opened again";

/// The flushes of a file.
pub(super) struct Flushes {
    /// What executes them.
    below: Weak<dyn Device>,
    name: Name,
    state: Mutex<State>,
    /// Room in the list, or the last end.
    changed: Condvar,
    /// Flushes that failed because another had.
    refused: AtomicU64,
}

#[derive(Default)]
struct State {
    flying: bool,
    waiting: Vec<Request>,
    failed: Option<Error>,
    closed: bool,
}

impl Flushes {
    /// For a file whose device is `below`.
    pub(super) fn new(below: Weak<dyn Device>, name: &Name) -> Arc<Self> {
        Arc::new(Self {
            below,
            name: Name::clone(name),
            state: Mutex::named("io-flush", State::default()),
            changed: Condvar::new(),
            refused: AtomicU64::new(0),
        })
    }

    /// How many flushes failed without having been executed, because another one had failed.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Takes a flush.
    pub(super) fn submit(self: &Arc<Self>, request: Request) {
        let mut state = self.state.lock();
        while state.waiting.len() >= MAX_WAITING && !state.closed && !in_callback() {
            self.changed.wait(&mut state);
        }
        let refusal = match &state.failed {
            Some(failed) => Some(self.after(failed)),
            None => state.closed.then(|| self.closed()),
        };
        if let Some(error) = refusal {
            drop(state);
            return request.finish(Err(error));
        }
        if state.flying {
            state.waiting.push(request);
            return;
        }
        state.flying = true;
        drop(state);
        self.issue(request, Vec::new());
    }

    /// Refuses what comes from now on, and waits until all has ended; in a callback it does not wait.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.changed.notify_all();
        while state.flying && !in_callback() {
            self.changed.wait(&mut state);
        }
    }

    /// Issues `lead`, for itself and for `others`.
    fn issue(self: &Arc<Self>, lead: Request, others: Vec<Request>) {
        let this = Arc::clone(self);
        let lead = lead.layered(move |completion| this.ended(completion, others));
        match self.below.upgrade() {
            Some(below) => below.submit(lead),
            // It was dropped by a callback, which does not wait.
            None => lead.finish(Err(self.closed())),
        }
    }

    /// The lead's end, which is that of `others` as well.
    fn ended(self: &Arc<Self>, completion: &mut Completion, others: Vec<Request>) {
        match &completion.result {
            Ok(()) => self.go_on(others, Vec::new()),
            Err(error) if was_executed(error) => {
                let error = error.clone();
                self.fail(&error, others);
                completion.result = Err(error.and(LOST));
            }
            Err(_) => self.go_on(Vec::new(), others),
        }
    }

    /// The one on its way is over: `done` have succeeded, `again` and those that waited are next.
    fn go_on(self: &Arc<Self>, done: Vec<Request>, mut again: Vec<Request>) {
        let mut state = self.state.lock();
        again.append(&mut state.waiting);
        let cancelled: Vec<_> = again.extract_if(.., |request| request.is_cancelled()).collect();
        let lead = again.iter().enumerate().min_by_key(|(_, request)| request.priority());
        let lead = lead.map(|(at, _)| at).map(|at| again.remove(at));
        state.flying = lead.is_some();
        drop(state);
        self.changed.notify_all();
        if let Some(lead) = lead {
            self.issue(lead, again);
        }
        for request in done {
            request.finish(Ok(()));
        }
        for request in cancelled {
            let error = self.error(ErrorKind::Cancelled, "taken back before it was issued");
            request.finish(Err(error));
        }
    }

    /// The one on its way has failed with `error`, and so have `others` and those that waited.
    fn fail(&self, error: &Error, mut others: Vec<Request>) {
        let mut state = self.state.lock();
        others.append(&mut state.waiting);
        state.failed = Some(error.clone());
        state.flying = false;
        drop(state);
        self.changed.notify_all();
        for request in others {
            request.finish(Err(self.after(error)));
        }
    }

    /// What a flush is told that comes too late.
    fn after(&self, failed: &Error) -> Error {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let text = format!("another flush has failed ({}); {LOST}", failed.detail());
        self.error(failed.kind(), &text)
    }

    fn closed(&self) -> Error {
        self.error(ErrorKind::Closed, "the device is closed; open it again")
    }

    fn error(&self, kind: ErrorKind, text: &str) -> Error {
        Error::new(kind, Op::Flush, &self.name, (0, 0), text)
    }
}

/// Whether a flush that ended with `error` may have been executed, and so have been told of a lost write.
fn was_executed(error: &Error) -> bool {
    use ErrorKind::{Cancelled, Closed, InvalidRequest, ReadOnly};
    let refused = [Cancelled, Closed, InvalidRequest, ReadOnly].contains(&error.kind());
    error.errno().is_some() || !refused
}

#[cfg(all(test, not(forebay_model)))]
mod tests;
