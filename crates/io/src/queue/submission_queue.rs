//! A lane: the queues of five classes in front of one ring, and what it has in flight.
//!
//! # Use
//!
//! A lane stands under its engine's lock. A *step* is: take the lock; [`push`](Lane::push) what has
//! come, [`done`](Lane::done) for what has ended, then [`next`](Lane::next) **until it returns `None`**;
//! [`take_queues_to_run`](Lane::take_queues_to_run) and [`take_cancelled`](Lane::take_cancelled); release the lock;
//! make a step of each lane that was kicked; finish what was cancelled or has ended.
//! A step that stops before `None` may leave another lane waiting for permits that this one does not use; it
//! must end with [`rest`](Lane::rest), and another must follow when the lane can issue again.
//!
//! # Invariants
//!
//! - When `next` has returned `None`, each class that has requests here has either operations in
//!   flight here, whose `done` makes the next step, or waits with the [`Permits`], which will kick the lane.
//! - A request is in exactly one place: a queue, an [`Operation`], or the list of the cancelled.
//!
//! # What it does not do
//!
//! No I/O, no waiting, no callbacks, no lock but that of a request's handle. Order between a write and
//! another request that overlaps it is the submitter's business; a queue may turn them around.

use forebay_base::sync::{Arc, Weak};

use super::class_queue::{ClassQueue, MergeFilter, Slots};
use super::operation::{MAX_MERGED, Operation, Requests};
use super::permits::{Permits, QueueCredits, QueuesToRun};
use crate::priority::Priority;
use crate::request::{Op, Request, RequeueTarget};
use crate::tunables::IoTunables;

/// Bits of a request's identifier that count; the rest name the lane.
const ID_BITS: u32 = 56;
/// What no request is ever called: all bits that count.
const BLOCKED: u64 = (1 << ID_BITS) - 1;

/// The queues in front of one ring.
pub struct SubmissionQueue {
    credits: QueueCredits,
    classes: [ClassQueue; Priority::COUNT],
    slots: Slots,
    cancelled: Vec<Request>,
    requeue_target: Weak<dyn RequeueTarget>,
    tunables: Arc<IoTunables>,
    next_id: u64,
    flush_epoch: u64,
}

impl SubmissionQueue {
    /// The lane called `index`, of those that `permits` were made for. Handles of its requests
    /// will ask `requeue_target`, and find the lane by [`queue_of`](Self::queue_of).
    pub(crate) fn new(
        index: usize,
        requeue_target: Weak<dyn RequeueTarget>,
        tunables: Arc<IoTunables>,
    ) -> Self {
        Self {
            credits: QueueCredits::new(index),
            classes: Priority::ALL.map(ClassQueue::new),
            slots: Slots::default(),
            cancelled: Vec::new(),
            requeue_target,
            tunables,
            next_id: (index as u64) << ID_BITS,
            flush_epoch: 0,
        }
    }

    /// The index of the lane whose request is called `id`.
    pub fn queue_of(id: u64) -> usize {
        (id >> ID_BITS) as usize
    }

    /// What the requests are called that have not come to this lane yet, because it has no room.
    pub fn blocked_id(&self) -> u64 {
        self.next_id | BLOCKED
    }

    /// Whether `id` is the name of such requests.
    pub fn is_blocked_id(id: u64) -> bool {
        id & BLOCKED == BLOCKED
    }

    /// Takes a request in.
    ///
    /// # Errors
    /// The request, if the queue of its class is full.
    pub fn push(&mut self, request: Request) -> Result<(), Request> {
        if !self.has_free_slot(request.priority()) {
            return Err(request);
        }
        self.push_unbounded(request);
        Ok(())
    }

    /// Takes a request in even if the queue is full: one that a callback submits, in place of what has
    /// just ended.
    pub fn push_unbounded(&mut self, request: Request) {
        self.insert(request, Priority::Scrub, false);
    }

    /// Whether [`push`](Self::push) would take a request of `class`.
    pub fn has_free_slot(&self, class: Priority) -> bool {
        self.free_slots(class) > 0
    }

    /// How many requests of `class` [`push`](Self::push) would take.
    pub fn free_slots(&self, class: Priority) -> usize {
        (self.tunables.queue_limit() as usize).saturating_sub(self.queued(class))
    }

    /// Requests of `class` that wait.
    pub fn queued(&self, class: Priority) -> usize {
        self.classes[class.index()].len()
    }

    /// Operations of `class` in flight.
    pub fn in_flight(&self, class: Priority) -> u32 {
        self.credits.in_flight(class)
    }

    /// What it has of the permits, for [`Permits::audit`].
    pub fn credits(&self) -> &QueueCredits {
        &self.credits
    }

    /// Whether nothing waits, nothing is in flight, and nobody is to be told of a cancellation.
    pub fn is_idle(&self) -> bool {
        let empty = |class: &Priority| self.queued(*class) == 0 && self.in_flight(*class) == 0;
        !self.has_cancelled() && Priority::ALL.iter().all(empty)
    }

    /// The next operation, if there is something to do and a permit for it. Must be called again
    /// until there is none, or [`rest`](Self::rest) must follow.
    pub fn next(&mut self, permits: &Permits) -> Option<Operation> {
        loop {
            let waiting = self.waiting_classes();
            let class = permits.admit(&mut self.credits, waiting)?;
            if let Some(operation) = self.assemble(class) {
                return Some(operation);
            }
            // All that waited in the class was cancelled.
            permits.end(&mut self.credits, class);
        }
    }

    /// Ends a step that could issue no more, though [`next`](Self::next) has not returned `None`.
    pub fn release_unused(&mut self, permits: &Permits) {
        permits.release_unused(&mut self.credits);
    }

    /// Notes that an operation of `class` has ended. A step follows.
    pub fn done(&mut self, class: Priority, permits: &Permits) {
        permits.end(&mut self.credits, class);
    }

    /// The lanes that have been given permits since this was asked last, and need a step.
    pub fn take_queues_to_run(&mut self) -> QueuesToRun {
        self.credits.take_queues_to_run()
    }

    /// Takes back the requests of an operation that failed as a whole, to be tried one by one; they
    /// will not be merged again. Call [`done`](Self::done) for the operation as well.
    pub fn split(&mut self, operation: Operation) {
        let class = operation.priority;
        for request in operation.requests {
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
                let kept = (queued.request, queued.flush_epoch, queued.no_merge);
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
    fn insert(&mut self, request: Request, class: Priority, no_merge: bool) {
        let id = self.next_id;
        self.next_id += 1;
        if request.has_handle() {
            request.set_requeue_target(Some((self.requeue_target.clone(), id)));
        }
        // Not before: a raise in between would have been lost.
        let class = request.priority().min(class);
        self.flush_epoch += u64::from(request.op() == Op::Flush);
        let kept = (request, self.flush_epoch, no_merge);
        self.classes[class.index()].insert(&mut self.slots, id, kept);
    }

    fn waiting_classes(&self) -> u8 {
        let bit = |(at, class): (usize, &ClassQueue)| u8::from(!class.is_empty()) << at;
        self.classes.iter().enumerate().map(bit).sum()
    }

    /// The next request of `class` that is not cancelled, and what can be merged with it.
    fn assemble(&mut self, class: Priority) -> Option<Operation> {
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
        let mut requests = Requests::One(first.request);
        if !queue.is_empty() && !first.no_merge && matches!(op, Op::Read | Op::Write) {
            let most = self.tunables.aggregate_bytes();
            let mergeable = |len: u64| MergeFilter {
                op,
                flush_epoch: first.flush_epoch,
                max_bytes: most.saturating_sub(len),
            };
            let mut merged = 1;
            while merged < MAX_MERGED
                && let Some(key) = queue.back_merge(&self.slots, offset + len, mergeable(len))
            {
                let request = queue.remove(&mut self.slots, key).request;
                len += request.len();
                requests.push(request);
                merged += 1;
            }
            let ahead = merged;
            while merged < MAX_MERGED
                && let Some(key) = queue.front_merge(&self.slots, offset, mergeable(len))
            {
                let request = queue.remove(&mut self.slots, key).request;
                (offset, len) = (request.offset(), len + request.len());
                requests.push(request);
                merged += 1;
            }
            requests.order(ahead);
        }
        queue.note_served(requests.as_slice().len(), offset + len);
        for request in requests.as_slice().iter().filter(|request| request.has_handle()) {
            request.set_requeue_target(None);
        }
        Some(Operation { op, offset, len, priority: class, requests })
    }
}
