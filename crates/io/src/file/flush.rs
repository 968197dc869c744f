//! Flushes of one open file: one at a time, and none after a failed one.
//!
//! The kernel reports lost page cache writes once per open file, to the first flush that checks,
//! and then considers the pages clean. All submission queues share one open file. So a successful
//! flush proves nothing about its writes if another flush failed before or at the same time.
//!
//! # Invariants
//!
//! - At most one flush is in flight below. Flushes that come meanwhile wait, and are issued
//!   together as one flush once the result is known. It covers the writes that had completed when
//!   each of them came, and costs one flush of the medium.
//! - After a failed flush none is issued: waiting and later flushes fail, until
//!   [`retry`](FlushQueue::retry). So no successful flush was executed beside or after a failed one
//!   whose writes anybody still trusts.
//! - A flush that was not executed (cancelled in the queue) has no effect on others.
//! - Flushes wait only while one is in flight. Its completion handles them.
//!
//! # Locking
//!
//! `io-flush`, for a look at the list. Requests are submitted and finished outside it.
//!
//! # What it does not do
//!
//! It does not hold back writes, before or after a failure. Flushes by another process, or of the
//! same file opened twice, do not matter: the kernel reports to each open file separately.

use std::os::fd::OwnedFd;

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, Condvar, Mutex, Weak};

use crate::completion::in_callback;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Name};
use crate::request::{Completion, Op, Request};

/// Most waiting flushes. Further submitters block.
const MAX_WAITING: usize = 1024;

/// The consequence of a failed flush.
const WRITES_LOST: &str = "writes since the last successful flush may be lost, and no flush will \
                           succeed until they are written again or the device is opened again";

/// The flushes of a file.
///
/// # Synchronous writes
///
/// Writes of an open file with `O_DSYNC` check too, each for the whole file: of two at a time, the
/// wrong one may be told. So each flush then also asks the *witness*, the file opened a second
/// time, which is told of all lost writes.
pub(super) struct FlushQueue {
    /// The device that executes them.
    below: Weak<dyn Device>,
    name: Name,
    /// The file as opened a second time, which is told of lost writes too.
    witness: Option<Arc<OwnedFd>>,
    state: Mutex<FlushState>,
    /// The list has space, or the last flush completed.
    changed: Condvar,
    /// Flushes that failed because an earlier one did.
    refused: AtomicU64,
}

#[derive(Default)]
struct FlushState {
    in_flight: bool,
    waiting: Vec<Request>,
    failed: Option<Error>,
    closed: bool,
}

impl FlushQueue {
    /// Creates the queue of a file whose device is `below`.
    pub(super) fn new(
        below: Weak<dyn Device>,
        name: &Name,
        witness: Option<Arc<OwnedFd>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            below,
            name: Name::clone(name),
            witness,
            state: Mutex::named("io-flush", FlushState::default()),
            changed: Condvar::new(),
            refused: AtomicU64::new(0),
        })
    }

    /// Returns the number of flushes that were not executed because an earlier one failed.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Submits a flush.
    pub(super) fn submit(self: &Arc<Self>, request: Request) {
        let mut state = self.state.lock();
        while state.waiting.len() >= MAX_WAITING && !state.closed && !in_callback() {
            self.changed.wait(&mut state);
        }
        let refusal = match &state.failed {
            Some(failed) => Some(self.refuse_after(failed)),
            None => state.closed.then(|| self.closed()),
        };
        if let Some(error) = refusal {
            drop(state);
            return request.finish(Err(error));
        }
        if state.in_flight {
            state.waiting.push(request);
            return;
        }
        state.in_flight = true;
        drop(state);
        self.issue(request, Vec::new());
    }

    /// Issues flushes again after a failed one. The caller trusts no write that completed since the
    /// last successful flush.
    pub(super) fn retry(&self) {
        self.state.lock().failed = None;
    }

    /// Refuses new flushes, and waits until all have completed. In a callback it does not wait.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.changed.notify_all();
        while state.in_flight && !in_callback() {
            self.changed.wait(&mut state);
        }
    }

    /// Issues `lead`, for itself and for `others`.
    fn issue(self: &Arc<Self>, lead: Request, others: Vec<Request>) {
        let this = Arc::clone(self);
        let lead = lead.layered(move |completion| this.ended(completion, others));
        match self.below.upgrade() {
            Some(below) => below.submit(lead),
            // A callback, which does not wait, has dropped the device.
            None => lead.finish(Err(self.closed())),
        }
    }

    /// Handles the completion of the lead, which applies to `others` as well.
    fn ended(self: &Arc<Self>, completion: &mut Completion, others: Vec<Request>) {
        if completion.result.is_ok() {
            completion.result = self.ask_witness();
        }
        match &completion.result {
            Ok(()) => self.issue_next(others, Vec::new()),
            Err(error) if was_executed(error) => {
                let error = error.clone();
                self.fail(&error, others);
                completion.result = Err(error.and(WRITES_LOST));
            }
            Err(_) => self.issue_next(Vec::new(), others),
        }
    }

    /// Fails if the kernel has reported a lost write to a synchronous write of the file, which may
    /// not be the one that is lost.
    fn ask_witness(&self) -> Result<(), Error> {
        let Some(witness) = &self.witness else { return Ok(()) };
        rustix::fs::fdatasync(&**witness)
            .map_err(|errno| self.error(ErrorKind::Device, &errno.to_string()))
    }

    /// After the flush in flight: completes `done`, and issues `again` and the waiting flushes as
    /// one.
    fn issue_next(self: &Arc<Self>, done: Vec<Request>, mut again: Vec<Request>) {
        let mut state = self.state.lock();
        again.append(&mut state.waiting);
        let cancelled: Vec<_> = again.extract_if(.., |request| request.is_cancelled()).collect();
        let lead = again.iter().enumerate().min_by_key(|(_, request)| request.priority());
        let lead = lead.map(|(at, _)| at).map(|at| again.remove(at));
        state.in_flight = lead.is_some();
        drop(state);
        self.changed.notify_all();
        if let Some(lead) = lead {
            self.issue(lead, again);
        }
        for request in done {
            request.finish(Ok(()));
        }
        for request in cancelled {
            let error = self.error(ErrorKind::Cancelled, "cancelled before it was issued");
            request.finish(Err(error));
        }
    }

    /// Fails `others` and the waiting flushes, because the flush in flight failed with `error`.
    fn fail(&self, error: &Error, mut others: Vec<Request>) {
        let mut state = self.state.lock();
        others.append(&mut state.waiting);
        state.failed = Some(error.clone());
        state.in_flight = false;
        drop(state);
        self.changed.notify_all();
        for request in others {
            request.finish(Err(self.refuse_after(error)));
        }
    }

    /// Returns the error of a flush that comes after a failed one.
    fn refuse_after(&self, failed: &Error) -> Error {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let text = format!("an earlier flush failed ({}); {WRITES_LOST}", failed.detail());
        self.error(failed.kind(), &text)
    }

    fn closed(&self) -> Error {
        self.error(ErrorKind::Closed, "the device is closed; open it again")
    }

    fn error(&self, kind: ErrorKind, text: &str) -> Error {
        Error::new(kind, Op::Flush, &self.name, (0, 0), text)
    }
}

/// Returns whether a flush with this `error` may have been executed, and so have consumed the
/// report of a lost write.
fn was_executed(error: &Error) -> bool {
    use ErrorKind::{Cancelled, Closed, InvalidRequest, ReadOnly};
    let refused = [Cancelled, Closed, InvalidRequest, ReadOnly].contains(&error.kind());
    error.errno().is_some() || !refused
}

#[cfg(all(test, not(forebay_model)))]
mod tests;
