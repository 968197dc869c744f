//! How requests come into a lane: checks, the queue's bound, and what handles ask later.
//!
//! Who finds the queue of its class full sleeps until there is room. Whatever makes room is a step of the
//! lane, which invites as many sleepers as there are places; who comes newly at that moment may be
//! quicker, then the invited one sleeps again.
//!
//! Invariants:
//! * [`Crowd::invited`] never exceeds those of [`Crowd::waiting`] that are about to look: so a place
//!   that is free always has somebody on the way to it, or nobody waits.
//! * The handle of a request whose submitter sleeps leads here ([`Lane::outsider`]): raised or
//!   cancelled, it looks at once.
//!
//! Locking: `io-lane`, and under it `request-home`.
//!
//! Deliberately absent: an order among those who wait for room.

use forebay_base::sync::{MutexGuard, Weak};

use super::core::{Backend, Caller, Core, LaneState};
use crate::buffer::Payload;
use crate::completion::in_callback;
use crate::counters::IoCounters;
use crate::error::{Error, ErrorKind};
use crate::priority::Priority;
use crate::queue::Lane;
use crate::request::{Home, Op, Request};
use crate::waiter::Waiter;

/// What memory for direct I/O is aligned to at least, in bytes.
const MEMORY_ALIGN: usize = 512;

/// What a request that is cancelled is told.
pub(super) const TAKEN_BACK: &str = "taken back before it was issued";

/// Who waits for room in a lane, by class.
#[derive(Default)]
pub(super) struct Crowd {
    waiting: [usize; Priority::COUNT],
    /// Those of them that were woken, and have not had the lane's lock since.
    invited: [usize; Priority::COUNT],
    all: usize,
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
        let (lane, caller) = self.lane_of_caller();
        let over = in_callback();
        let mut refused = Vec::new();
        let mut state = None;
        for request in requests {
            if let Err(error) = self.check(&request) {
                refused.push((request, error));
                continue;
            }
            request.set_place(self.place(lane));
            let mut state_now = state.take().unwrap_or_else(|| self.lock(lane));
            let result = match self.accept(&mut state_now, request, over) {
                Ok(()) => Ok(state_now),
                Err(Refused::Full(request)) => {
                    // What was taken so far must go its way before this thread waits.
                    self.leave(state_now, caller);
                    self.accept_when_room(lane, request)
                }
                Err(other) => {
                    state = Some(state_now);
                    Err(other)
                }
            };
            match result {
                Ok(guard) => state = Some(guard),
                Err(Refused::Cancelled(request)) => {
                    refused.push(self.taken_back(request));
                }
                Err(Refused::Closed(request) | Refused::Full(request)) => {
                    let text = "the device is closed; open it again";
                    let error = self.refusal(&request, ErrorKind::Closed, text);
                    refused.push((request, error));
                }
            }
        }
        if let Some(state) = state {
            self.leave(state, caller);
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
        state: &mut LaneState<B>,
        request: Request,
        over: bool,
    ) -> Result<(), Refused> {
        if state.closed {
            return Err(Refused::Closed(request));
        }
        let class = request.priority().index();
        if over {
            state.queue.push_over(request);
        } else {
            state.queue.push(request).map_err(Refused::Full)?;
        }
        self.counters.add(IoCounters::SUBMITTED, class, 1);
        Ok(())
    }

    fn accept_when_room(
        &self,
        lane: usize,
        mut request: Request,
    ) -> Result<MutexGuard<'_, LaneState<B>>, Refused> {
        self.counters.add(IoCounters::QUEUE_FULL, request.priority().index(), 1);
        let mut state = self.lock(lane);
        if request.has_handle() {
            // What the handle was asked before is seen below; what it is asked from now on wakes.
            let home = Weak::clone(&self.me) as Weak<dyn Home>;
            request.set_home(Some((home, state.queue.outsider())));
        }
        loop {
            if request.is_cancelled() {
                // It may have been invited to a place that it does not take.
                self.invite(&mut state);
                return Err(Refused::Cancelled(request));
            }
            // If it is raised from here on, its handle comes here, after this thread sleeps.
            let class = request.priority().index();
            match self.accept(&mut state, request, false) {
                Ok(()) => return Ok(state),
                Err(Refused::Full(back)) => request = back,
                Err(other) => return Err(other),
            }
            state.crowd.waiting[class] += 1;
            state.crowd.all += 1;
            self.slot(lane).room[class].wait(&mut state);
            let crowd = &mut state.crowd;
            crowd.waiting[class] -= 1;
            crowd.all -= 1;
            crowd.invited[class] = crowd.invited[class].saturating_sub(1);
        }
    }

    /// Wakes as many of those who wait for room as there is room for.
    pub(super) fn invite(&self, state: &mut LaneState<B>) {
        if state.crowd.all == 0 {
            return;
        }
        let LaneState { queue, crowd, .. } = state;
        for class in Priority::ALL {
            let at = class.index();
            let welcome = crowd.waiting[at].min(queue.room(class));
            while crowd.invited[at] < welcome {
                crowd.invited[at] += 1;
                self.slot(state.index).room[at].notify_one();
            }
        }
    }

    /// Has all who wait for room look again.
    pub(super) fn rouse(&self, lane: usize) {
        for room in &self.slot(lane).room {
            room.notify_all();
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
    fn taken_back(&self, request: Request) -> (Request, Error) {
        self.counters.add(IoCounters::CANCELLED, request.priority().index(), 1);
        let error = self.refusal(&request, ErrorKind::Cancelled, TAKEN_BACK);
        (request, error)
    }

    /// What a waiter keeps to find the lane again.
    fn place(&self, lane: usize) -> usize {
        std::ptr::from_ref(self).addr() | (lane + 1)
    }

    pub(super) fn help(&self, waiter: &Waiter) {
        let place = waiter.place();
        let lane = place.wrapping_sub(std::ptr::from_ref(self).addr()).wrapping_sub(1);
        if lane < self.lanes() {
            B::help(self, lane, waiter);
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

impl<B: Backend> Home for Core<B> {
    fn requeue(&self, id: u64, priority: Option<Priority>) {
        let lane = Lane::lane_of(id);
        let mut state = self.lock(lane);
        if Lane::is_outsider(id) {
            // Its submitter does it.
            self.rouse(lane);
            return;
        }
        if state.queue.requeue(id, priority) {
            if priority.is_some() {
                self.counters.add(IoCounters::RAISED, 0, 1);
            }
            let caller = match self.lane_of_caller() {
                (here, Caller::Driver) if here == lane => Caller::Driver,
                _ => Caller::Quiet,
            };
            self.leave(state, caller);
        }
    }
}
