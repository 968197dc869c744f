//! Submission: checks, the limit of the queues, and raises and cancels by handles.
//!
//! A thread that finds the queue of its class full sleeps until a slot is free. Slots become free
//! in a run of the queue, which notifies as many sleepers as there are free slots. A newly arriving
//! thread may take the slot first; then the notified one sleeps again.
//!
//! Invariants:
//! * [`SlotWaiters::notified`] never exceeds the number of waiting threads that were woken and will
//!   look. So for each free slot a woken thread is on its way, or no thread waits.
//! * The handle of a request whose submitter sleeps leads here ([`SubmissionQueue::blocked_id`]). A
//!   raise or cancel wakes the submitter.
//!
//! Locking: `io-submission-queue`, and under it `request-handle`.
//!
//! Threads that wait for a slot are not served in order.

use forebay_base::sync::{MutexGuard, Weak};

use super::core::{Backend, Core, QueueState, RunContext};
use crate::completion::in_callback;
use crate::counters::IoCounters;
use crate::error::{Error, ErrorKind};
use crate::payload::Payload;
use crate::priority::Priority;
use crate::queue::SubmissionQueue;
use crate::request::{Op, Request, RequeueTarget};
use crate::waiter::Waiter;

/// Least alignment of memory for direct I/O, in bytes.
const MEMORY_ALIGN: usize = 512;

/// The error text of a cancelled request.
pub(super) const CANCELLED_BEFORE_ISSUE: &str = "cancelled before it was issued";

/// Threads that wait for a free slot of a queue, by class.
#[derive(Default)]
pub(super) struct SlotWaiters {
    waiting: [usize; Priority::COUNT],
    /// Waiting threads that were woken and have not taken the queue's lock since.
    notified: [usize; Priority::COUNT],
    total: usize,
}

/// Why a request was not accepted.
enum Refused {
    Closed(Request),
    Cancelled(Request),
    Full(Request),
}

impl<B: Backend> Core<B> {
    /// Accepts requests, with one run for all of them unless a queue is full.
    pub(super) fn submit_all(&self, requests: impl Iterator<Item = Request>) {
        let (queue, context) = self.queue_of_caller();
        let unbounded = in_callback();
        let mut refused = Vec::new();
        let mut state = None;
        for request in requests {
            if let Err(error) = self.check(&request) {
                refused.push((request, error));
                continue;
            }
            request.set_engine_tag(self.engine_tag(queue));
            let mut state_now = state.take().unwrap_or_else(|| self.lock(queue));
            let result = match self.accept(&mut state_now, request, unbounded) {
                Ok(()) => Ok(state_now),
                Err(Refused::Full(request)) => {
                    // Start the requests accepted so far before this thread waits.
                    self.run_and_unlock(state_now, context);
                    self.accept_when_free(queue, request)
                }
                Err(other) => {
                    state = Some(state_now);
                    Err(other)
                }
            };
            match result {
                Ok(guard) => state = Some(guard),
                Err(Refused::Cancelled(request)) => {
                    refused.push(self.cancelled_by_handle(request));
                }
                Err(Refused::Closed(request) | Refused::Full(request)) => {
                    let text = "the device is closed; open it again";
                    let error = self.refusal(&request, ErrorKind::Closed, text);
                    refused.push((request, error));
                }
            }
        }
        if let Some(state) = state {
            self.run_and_unlock(state, context);
        }
        for (request, error) in refused {
            if error.kind() != ErrorKind::Cancelled {
                self.counters.add(IoCounters::REFUSED, 0, 1);
            }
            request.finish(Err(error));
        }
    }

    fn accept(
        &self,
        state: &mut QueueState<B>,
        request: Request,
        unbounded: bool,
    ) -> Result<(), Refused> {
        if state.closed {
            return Err(Refused::Closed(request));
        }
        let class = request.priority().index();
        if unbounded {
            state.sq.push_unbounded(request);
        } else {
            state.sq.push(request).map_err(Refused::Full)?;
        }
        self.counters.add(IoCounters::SUBMITTED, class, 1);
        Ok(())
    }

    fn accept_when_free(
        &self,
        queue: usize,
        mut request: Request,
    ) -> Result<MutexGuard<'_, QueueState<B>>, Refused> {
        self.counters.add(IoCounters::QUEUE_FULL, request.priority().index(), 1);
        let mut state = self.lock(queue);
        if request.has_handle() {
            // Earlier raises and cancels are seen below. Later ones wake this thread.
            let requeue_target = Weak::clone(&self.weak_self) as Weak<dyn RequeueTarget>;
            request.set_requeue_target(Some((requeue_target, state.sq.blocked_id())));
        }
        loop {
            if request.is_cancelled() {
                // This thread may have been notified of a slot that it does not take.
                self.notify_slot_waiters(&mut state);
                return Err(Refused::Cancelled(request));
            }
            // A raise from here on wakes this thread once it sleeps.
            let class = request.priority().index();
            match self.accept(&mut state, request, false) {
                Ok(()) => return Ok(state),
                Err(Refused::Full(back)) => request = back,
                Err(other) => return Err(other),
            }
            state.slot_waiters.waiting[class] += 1;
            state.slot_waiters.total += 1;
            self.slot(queue).slot_freed[class].wait(&mut state);
            let slot_waiters = &mut state.slot_waiters;
            slot_waiters.waiting[class] -= 1;
            slot_waiters.total -= 1;
            slot_waiters.notified[class] = slot_waiters.notified[class].saturating_sub(1);
        }
    }

    /// Wakes as many waiting threads as there are free slots.
    pub(super) fn notify_slot_waiters(&self, state: &mut QueueState<B>) {
        if state.slot_waiters.total == 0 {
            return;
        }
        let QueueState { sq, slot_waiters, .. } = state;
        for class in Priority::ALL {
            let at = class.index();
            let wanted = slot_waiters.waiting[at].min(sq.free_slots(class));
            while slot_waiters.notified[at] < wanted {
                slot_waiters.notified[at] += 1;
                self.slot(state.index).slot_freed[at].notify_one();
            }
        }
    }

    /// Wakes all threads that wait for a slot.
    pub(super) fn wake_slot_waiters(&self, queue: usize) {
        for condvar in &self.slot(queue).slot_freed {
            condvar.notify_all();
        }
    }

    /// Checks whether a request can succeed at all.
    fn check(&self, request: &Request) -> Result<(), Error> {
        let Self { info, .. } = self;
        let refuse = |kind, text: &str| Err(self.refusal(request, kind, text));
        if info.read_only && request.op() != Op::Read {
            return refuse(ErrorKind::ReadOnly, "the device was opened read-only");
        }
        if request.op() == Op::Flush {
            return Ok(());
        }
        let (offset, len) = (request.offset(), request.len());
        let sector = u64::from(info.sector_bytes);
        if len == 0 {
            return refuse(ErrorKind::InvalidRequest, "the length is 0; give at least one sector");
        }
        // The sector size is a power of two.
        if (offset | len) & (sector - 1) != 0 {
            let text =
                format!("offset and length must be multiples of the sector size, {sector} bytes");
            return refuse(ErrorKind::InvalidRequest, &text);
        }
        if request.end().is_none_or(|end| end > info.size_bytes) {
            let text = format!("it ends after the device, which has {} bytes", info.size_bytes);
            return refuse(ErrorKind::InvalidRequest, &text);
        }
        if matches!(request.op(), Op::Read | Op::Write) && !has_fitting_memory(request) {
            let text = "its buffer is not as long as the request, or a read has shared memory";
            return refuse(ErrorKind::InvalidRequest, text);
        }
        let aligned =
            |payload: &Payload| payload.bytes().as_ptr().addr().is_multiple_of(MEMORY_ALIGN);
        if info.direct && !request.payload().is_none_or(aligned) {
            let text = format!(
                "memory for direct I/O must be aligned to {MEMORY_ALIGN} bytes; use an arena"
            );
            return refuse(ErrorKind::InvalidRequest, &text);
        }
        Ok(())
    }

    pub(super) fn refusal(&self, request: &Request, kind: ErrorKind, text: &str) -> Error {
        let range = (request.offset(), request.len());
        Error::new(kind, request.op(), &self.info.name, range, text)
    }

    /// Returns a request that was cancelled while its submitter waited, with its error.
    fn cancelled_by_handle(&self, request: Request) -> (Request, Error) {
        self.counters.add(IoCounters::CANCELLED, request.priority().index(), 1);
        let error = self.refusal(&request, ErrorKind::Cancelled, CANCELLED_BEFORE_ISSUE);
        (request, error)
    }

    /// Returns a tag by which a waiter finds the queue again.
    fn engine_tag(&self, queue: usize) -> usize {
        std::ptr::from_ref(self).addr() | (queue + 1)
    }

    pub(super) fn help(&self, waiter: &Waiter) {
        let engine_tag = waiter.engine_tag();
        let queue = engine_tag.wrapping_sub(std::ptr::from_ref(self).addr()).wrapping_sub(1);
        if queue < self.queues() {
            B::help(self, queue, waiter);
        }
    }
}

/// Returns whether a read or write has memory of its length, and a read its own memory. A decorator
/// could have replaced the memory.
fn has_fitting_memory(request: &Request) -> bool {
    let owned = |payload: &Payload| matches!(payload, Payload::Owned(_));
    request.payload().is_some_and(|payload| {
        payload.bytes().len() as u64 == request.len()
            && (request.op() == Op::Write || owned(payload))
    })
}

impl<B: Backend> RequeueTarget for Core<B> {
    fn requeue(&self, id: u64, priority: Option<Priority>) {
        let queue = SubmissionQueue::queue_of(id);
        let mut state = self.lock(queue);
        if SubmissionQueue::is_blocked_id(id) {
            // The submitter raises or cancels it.
            self.wake_slot_waiters(queue);
            return;
        }
        if state.sq.requeue(id, priority) {
            if priority.is_some() {
                self.counters.add(IoCounters::RAISED, 0, 1);
            }
            let context = match self.queue_of_caller() {
                (here, RunContext::Driver) if here == queue => RunContext::Driver,
                _ => RunContext::NonBlocking,
            };
            self.run_and_unlock(state, context);
        }
    }
}
