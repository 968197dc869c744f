//! How requests come into a lane: checks, the queue's bound, and what handles ask later.
//!
//! Who finds the queue of its class full sleeps until there is room. Whatever makes room is a step of the
//! lane, which invites as many sleepers as there are places; who comes newly at that moment may be
//! quicker, then the invited one sleeps again.
//!
//! Invariants:
//! * [`SlotWaiters::notified`] never exceeds those of [`SlotWaiters::waiting`] that are about to look: so a place
//!   that is free always has somebody on the way to it, or nobody waits.
//! * The handle of a request whose submitter sleeps leads here ([`SubmissionQueue::blocked_id`]): raised or
//!   cancelled, it looks at once.
//!
//! Locking: `io-queue`, and under it `request-requeue_target`.
//!
//! Deliberately absent: an order among those who wait for room.

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

/// What memory for direct I/O is aligned to at least, in bytes.
const MEMORY_ALIGN: usize = 512;

/// What a request that is cancelled is told.
pub(super) const CANCELLED_BEFORE_ISSUE: &str = "taken back before it was issued";

/// Who waits for room in a lane, by class.
#[derive(Default)]
pub(super) struct SlotWaiters {
    waiting: [usize; Priority::COUNT],
    /// Those of them that were woken, and have not had the lane's lock since.
    notified: [usize; Priority::COUNT],
    total: usize,
}

/// Why a request was not taken.
enum Refused {
    Closed(Request),
    Cancelled(Request),
    Full(Request),
}

impl<B: Backend> Core<B> {
    /// Takes requests in, with one step for all unless a queue is full.
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
                    // What was taken so far must go its way before this thread waits.
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
            // What the handle was asked before is seen below; what it is asked from now on wakes.
            let requeue_target = Weak::clone(&self.weak_self) as Weak<dyn RequeueTarget>;
            request.set_requeue_target(Some((requeue_target, state.sq.blocked_id())));
        }
        loop {
            if request.is_cancelled() {
                // It may have been invited to a place that it does not take.
                self.notify_slot_waiters(&mut state);
                return Err(Refused::Cancelled(request));
            }
            // If it is raised from here on, its handle comes here, after this thread sleeps.
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

    /// Wakes as many of those who wait for room as there is room for.
    pub(super) fn notify_slot_waiters(&self, state: &mut QueueState<B>) {
        if state.slot_waiters.total == 0 {
            return;
        }
        let QueueState { sq, slot_waiters, .. } = state;
        for class in Priority::ALL {
            let at = class.index();
            let welcome = slot_waiters.waiting[at].min(sq.free_slots(class));
            while slot_waiters.notified[at] < welcome {
                slot_waiters.notified[at] += 1;
                self.slot(state.index).slot_freed[at].notify_one();
            }
        }
    }

    /// Has all who wait for room look again.
    pub(super) fn wake_slot_waiters(&self, queue: usize) {
        for condvar in &self.slot(queue).slot_freed {
            condvar.notify_all();
        }
    }

    /// Whether a request can succeed at all.
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
            return refuse(ErrorKind::InvalidRequest, "it is of no bytes");
        }
        // The sector is a power of two.
        if (offset | len) & (sector - 1) != 0 {
            let text = format!("offset and length must be multiples of a sector, {sector} bytes");
            return refuse(ErrorKind::InvalidRequest, &text);
        }
        if request.end().is_none_or(|end| end > info.size_bytes) {
            let text = format!("the device has {} bytes", info.size_bytes);
            return refuse(ErrorKind::InvalidRequest, &text);
        }
        if matches!(request.op(), Op::Read | Op::Write) && !has_fitting_memory(request) {
            let text = "its memory is not of its length, or a read's memory is shared";
            return refuse(ErrorKind::InvalidRequest, text);
        }
        let aligned =
            |payload: &Payload| payload.bytes().as_ptr().addr().is_multiple_of(MEMORY_ALIGN);
        if info.direct && !request.payload().is_none_or(aligned) {
            let text =
                format!("memory for direct I/O must be at a multiple of {MEMORY_ALIGN} bytes");
            return refuse(ErrorKind::InvalidRequest, &text);
        }
        Ok(())
    }

    pub(super) fn refusal(&self, request: &Request, kind: ErrorKind, text: &str) -> Error {
        let range = (request.offset(), request.len());
        Error::new(kind, request.op(), &self.info.name, range, text)
    }

    /// A request that was cancelled while its submitter waited, and what it is told.
    fn cancelled_by_handle(&self, request: Request) -> (Request, Error) {
        self.counters.add(IoCounters::CANCELLED, request.priority().index(), 1);
        let error = self.refusal(&request, ErrorKind::Cancelled, CANCELLED_BEFORE_ISSUE);
        (request, error)
    }

    /// What a waiter keeps to find the lane again.
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

/// Whether a read or write has memory of its length, and a read memory of its own. Whoever had the request
/// could exchange it.
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
            // Its submitter does it.
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
