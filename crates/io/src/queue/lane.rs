//! A lane: the queues of five classes in front of one ring, and what it has in flight.
//!
//! # Use
//!
//! A lane stands under its engine's lock. A *step* is: take the lock; [`push`](Lane::push) what has
//! come, [`done`](Lane::done) for what has ended, then [`next`](Lane::next) **until it returns `None`**;
//! [`take_kicks`](Lane::take_kicks) and [`take_cancelled`](Lane::take_cancelled); release the lock;
//! make a step of each lane that was kicked; finish what was cancelled or has ended.
//! A step that stops before `None` may leave another lane waiting for permits that this one does not use; it
//! must end with [`rest`](Lane::rest), and another must follow when the lane can issue again.
//!
//! # Invariants
//!
//! - When `next` has returned `None`, each class that has requests here has either operations in
//!   flight here, whose `done` makes the next step, or waits with the [`Permits`], which will kick the lane.
//! - A request is in exactly one place: a queue, an [`Issue`], or the list of the cancelled.
//!
//! # What it does not do
//!
//! No I/O, no waiting, no callbacks, no lock but that of a request's handle. Order between a write and
//! another request that overlaps it is the submitter's business; a queue may turn them around.

use forebay_base::sync::{Arc, Weak};

use super::class::{ClassQueue, Like, Slots};
use super::issue::{Issue, MAX_PIECES, Pieces};
use super::permits::{Kick, Permits, Seat};
use crate::priority::Priority;
use crate::request::{Home, Op, Request};
use crate::tunables::IoTunables;

/// Bits of a request's identifier that count; the rest name the lane.
const ID_BITS: u32 = 56;
/// What no request is ever called: all bits that count.
const NOBODY: u64 = (1 << ID_BITS) - 1;

/// The queues in front of one ring.
pub struct Lane {
    seat: Seat,
    classes: [ClassQueue; Priority::COUNT],
    slots: Slots,
    cancelled: Vec<Request>,
    home: Weak<dyn Home>,
    tunables: Arc<IoTunables>,
    next_id: u64,
    era: u64,
}

impl Lane {
    /// The lane called `index`, of those that `permits` were made for. Handles of its requests
    /// will ask `home`, and find the lane by [`lane_of`](Self::lane_of).
    pub(crate) fn new(index: usize, home: Weak<dyn Home>, tunables: Arc<IoTunables>) -> Self {
        Self {
            seat: Seat::new(index),
            classes: Priority::ALL.map(ClassQueue::new),
            slots: Slots::default(),
            cancelled: Vec::new(),
            home,
            tunables,
            next_id: (index as u64) << ID_BITS,
            era: 0,
        }
    }

    /// The index of the lane whose request is called `id`.
    pub fn lane_of(id: u64) -> usize {
        (id >> ID_BITS) as usize
    }

    /// What the requests are called that have not come to this lane yet, because it has no room.
    pub fn outsider(&self) -> u64 {
        self.next_id | NOBODY
    }

    /// Whether `id` is the name of such requests.
    pub fn is_outsider(id: u64) -> bool {
        id & NOBODY == NOBODY
    }

    /// Takes a request in.
    ///
    /// # Errors
    /// The request, if the queue of its class is full.
    pub fn push(&mut self, request: Request) -> Result<(), Request> {
        if !self.has_room(request.priority()) {
            return Err(request);
        }
        self.push_over(request);
        Ok(())
    }

    /// Takes a request in even if the queue is full: one that a callback submits, in place of what has
    /// just ended.
    pub fn push_over(&mut self, request: Request) {
        self.insert(request, Priority::Scrub, false);
    }

    /// Whether [`push`](Self::push) would take a request of `class`.
    pub fn has_room(&self, class: Priority) -> bool {
        self.room(class) > 0
    }

    /// How many requests of `class` [`push`](Self::push) would take.
    pub fn room(&self, class: Priority) -> usize {
        (self.tunables.queue_limit() as usize).saturating_sub(self.queued(class))
    }

    /// Requests of `class` that wait.
    pub fn queued(&self, class: Priority) -> usize {
        self.classes[class.index()].len()
    }

    /// Operations of `class` in flight.
    pub fn in_flight(&self, class: Priority) -> u32 {
        self.seat.in_flight(class)
    }

    /// What it has of the permits, for [`Permits::audit`].
    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Whether nothing waits, nothing is in flight, and nobody is to be told of a cancellation.
    pub fn is_idle(&self) -> bool {
        let empty = |class: &Priority| self.queued(*class) == 0 && self.in_flight(*class) == 0;
        !self.has_cancelled() && Priority::ALL.iter().all(empty)
    }

    /// The next operation, if there is something to do and a permit for it. Must be called again
    /// until there is none, or [`rest`](Self::rest) must follow.
    pub fn next(&mut self, permits: &Permits) -> Option<Issue> {
        loop {
            let waiting = self.waiting_classes();
            let class = permits.admit(&mut self.seat, waiting)?;
            if let Some(issue) = self.assemble(class) {
                return Some(issue);
            }
            // All that waited in the class was cancelled.
            permits.end(&mut self.seat, class);
        }
    }

    /// Ends a step that could issue no more, though [`next`](Self::next) has not returned `None`.
    pub fn rest(&mut self, permits: &Permits) {
        permits.rest(&mut self.seat);
    }

    /// Notes that an operation of `class` has ended. A step follows.
    pub fn done(&mut self, class: Priority, permits: &Permits) {
        permits.end(&mut self.seat, class);
    }

    /// The lanes that have been given permits since this was asked last, and need a step.
    pub fn take_kicks(&mut self) -> Kick {
        self.seat.take_kicks()
    }

    /// Takes back the requests of an operation that failed as a whole, to be tried one by one; they
    /// will not be merged again. Call [`done`](Self::done) for the operation as well.
    pub fn split(&mut self, issue: Issue) {
        let class = issue.priority;
        for request in issue.requests {
            self.insert(request, class, true);
        }
    }

    /// Moves the request called `id` up to `priority`, if it waits here and that is more urgent;
    /// without a priority, takes it out if it is cancelled. Returns whether it found something to
    /// do: then a step follows.
    pub fn requeue(&mut self, id: u64, priority: Option<Priority>) -> bool {
        let found =
            self.classes.iter().enumerate().find_map(|(at, class)| Some((at, class.find(id)?)));
        let Some((at, key)) = found else { return false };
        match priority {
            Some(priority) if priority.index() < at => {
                let queued = self.classes[at].remove(&mut self.slots, key);
                let kept = (queued.request, queued.era, queued.alone);
                self.classes[priority.index()].insert(&mut self.slots, id, kept);
                true
            }
            None if self.slots.get(key.slot).request.is_cancelled() => {
                let queued = self.classes[at].remove(&mut self.slots, key);
                self.cancelled.push(queued.request);
                true
            }
            _ => false,
        }
    }

    /// The requests that were found cancelled. They end with
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), outside the lane's lock.
    pub fn take_cancelled(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.cancelled)
    }

    /// Whether requests were found cancelled and not taken yet.
    pub fn has_cancelled(&self) -> bool {
        !self.cancelled.is_empty()
    }

    /// Takes out everything that waits: the device is gone.
    pub fn take_queued(&mut self) -> Vec<Request> {
        let mut all = Vec::new();
        for class in &mut self.classes {
            while let Some(key) = class.pick(&self.slots) {
                all.push(class.remove(&mut self.slots, key).request);
            }
        }
        all
    }

    /// Puts a request into the queue of its class, or into that of `class` if this is more urgent.
    fn insert(&mut self, request: Request, class: Priority, alone: bool) {
        let id = self.next_id;
        self.next_id += 1;
        if request.has_handle() {
            request.set_home(Some((self.home.clone(), id)));
        }
        // Not before: a raise in between would have been lost.
        let class = request.priority().min(class);
        self.era += u64::from(request.op() == Op::Flush);
        let kept = (request, self.era, alone);
        self.classes[class.index()].insert(&mut self.slots, id, kept);
    }

    fn waiting_classes(&self) -> u8 {
        let bit = |(at, class): (usize, &ClassQueue)| u8::from(!class.is_empty()) << at;
        self.classes.iter().enumerate().map(bit).sum()
    }

    /// The next request of `class` that is not cancelled, and what can be merged with it.
    fn assemble(&mut self, class: Priority) -> Option<Issue> {
        let queue = &mut self.classes[class.index()];
        let first = loop {
            let key = queue.pick(&self.slots)?;
            let queued = queue.remove(&mut self.slots, key);
            if !queued.request.is_cancelled() {
                break queued;
            }
            self.cancelled.push(queued.request);
        };
        let (op, mut offset, mut len) =
            (first.request.op(), first.request.offset(), first.request.len());
        let mut requests = Pieces::One(first.request);
        if !queue.is_empty() && !first.alone && matches!(op, Op::Read | Op::Write) {
            let most = self.tunables.aggregate_bytes();
            let like = |len: u64| Like { op, era: first.era, room: most.saturating_sub(len) };
            let mut pieces = 1;
            while pieces < MAX_PIECES
                && let Some(key) = queue.follower(&self.slots, offset + len, like(len))
            {
                let request = queue.remove(&mut self.slots, key).request;
                len += request.len();
                requests.push(request);
                pieces += 1;
            }
            let ahead = pieces;
            while pieces < MAX_PIECES
                && let Some(key) = queue.predecessor(&self.slots, offset, like(len))
            {
                let request = queue.remove(&mut self.slots, key).request;
                (offset, len) = (request.offset(), len + request.len());
                requests.push(request);
                pieces += 1;
            }
            requests.order(ahead);
        }
        queue.note_served(requests.as_slice().len(), offset + len);
        for request in requests.as_slice().iter().filter(|request| request.has_handle()) {
            request.set_home(None);
        }
        Some(Issue { op, offset, len, priority: class, requests })
    }
}
