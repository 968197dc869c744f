//! A submission queue: the queued requests of all classes in front of one ring, and the operations
//! in flight.
//!
//! # Invariants
//!
//! - After `next` has returned `None`, each class with queued requests either has operations in
//!   flight here, whose `done` leads to the next run, or is registered with [`Permits`], which
//!   names this queue as one to run.
//! - A request is in exactly one place: a class queue, an [`Operation`], or the list of cancelled
//!   requests.
//!
//! # What it does not do
//!
//! No I/O, no waiting, no callbacks, and no lock except that of a request's handle. It does not
//! order overlapping requests: the submitter must, because a queue may reorder them.

use forebay_base::sync::{Arc, Weak};

use super::class_queue::{ClassQueue, MergeFilter, Slots};
use super::operation::{MAX_MERGED, Operation, Requests};
use super::permits::{Permits, QueueCredits, QueuesToRun};
use crate::priority::Priority;
use crate::request::{Op, Request, RequeueTarget};
use crate::tunables::IoTunables;

/// Bits of a request's identifier that count requests. The higher bits are the queue's index.
const ID_BITS: u32 = 56;
/// All counting bits set: never the identifier of a queued request.
const BLOCKED: u64 = (1 << ID_BITS) - 1;

/// The class queues in front of one ring, and what the queue has in flight.
///
/// # Use
///
/// A submission queue is protected by its engine's lock. To *run* the queue means:
///
/// 1. take the lock, [`push`](SubmissionQueue::push) new requests, and call
///    [`done`](SubmissionQueue::done) for each operation that ended;
/// 2. call [`next`](SubmissionQueue::next) **until it returns `None`**;
/// 3. take [the queues to run](SubmissionQueue::take_queues_to_run) and [the cancelled
///    requests](SubmissionQueue::take_cancelled), and release the lock;
/// 4. run each of those queues, and finish the cancelled and completed requests.
///
/// A run that stops before `None` may leave another queue waiting for permits that this one does
/// not use. It must end with [`release_unused`](SubmissionQueue::release_unused), and another run
/// must follow once this queue can issue again.
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
    /// Creates the queue with this `index`. Handles of its requests call `requeue_target`, which
    /// finds the queue by [`queue_of`](Self::queue_of).
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

    /// Returns the index of the queue to which request `id` belongs.
    pub fn queue_of(id: u64) -> usize {
        (id >> ID_BITS) as usize
    }

    /// Returns the identifier of requests that wait outside this queue because it is full.
    pub fn blocked_id(&self) -> u64 {
        self.next_id | BLOCKED
    }

    /// Returns whether `id` stands for requests that wait outside their queue.
    pub fn is_blocked_id(id: u64) -> bool {
        id & BLOCKED == BLOCKED
    }

    /// Queues a request.
    ///
    /// # Errors
    /// Returns the request if the queue of its class is full.
    pub fn push(&mut self, request: Request) -> Result<(), Request> {
        if !self.has_free_slot(request.priority()) {
            return Err(request);
        }
        self.push_unbounded(request);
        Ok(())
    }

    /// Queues a request even if its class is full. For requests that a callback submits: each takes
    /// the place of one that has just ended.
    pub fn push_unbounded(&mut self, request: Request) {
        self.insert(request, Priority::Scrub, false);
    }

    /// Returns whether [`push`](Self::push) accepts a request of `class`.
    pub fn has_free_slot(&self, class: Priority) -> bool {
        self.free_slots(class) > 0
    }

    /// Returns how many requests of `class` [`push`](Self::push) accepts.
    pub fn free_slots(&self, class: Priority) -> usize {
        (self.tunables.queue_limit() as usize).saturating_sub(self.queued(class))
    }

    /// Returns the number of queued requests of `class`.
    pub fn queued(&self, class: Priority) -> usize {
        self.classes[class.index()].len()
    }

    /// Returns the number of operations of `class` in flight.
    pub fn in_flight(&self, class: Priority) -> u32 {
        self.credits.in_flight(class)
    }

    /// Returns the permits that this queue holds, for [`Permits::audit`].
    pub fn credits(&self) -> &QueueCredits {
        &self.credits
    }

    /// Returns whether nothing is queued or in flight, and no cancelled request is left to finish.
    pub fn is_idle(&self) -> bool {
        let empty = |class: &Priority| self.queued(*class) == 0 && self.in_flight(*class) == 0;
        !self.has_cancelled() && Priority::ALL.iter().all(empty)
    }

    /// Returns the next operation for which there is a permit. Call it again until it returns
    /// `None`, or call [`release_unused`](Self::release_unused).
    pub fn next(&mut self, permits: &Permits) -> Option<Operation> {
        loop {
            let waiting = self.waiting_classes();
            let class = permits.admit(&mut self.credits, waiting)?;
            if let Some(operation) = self.assemble(class) {
                return Some(operation);
            }
            // All requests of the class were cancelled.
            permits.end(&mut self.credits, class);
        }
    }

    /// Ends a run that can issue no more although [`next`](Self::next) has not returned `None`.
    pub fn release_unused(&mut self, permits: &Permits) {
        permits.release_unused(&mut self.credits);
    }

    /// Returns the permit of an operation of `class` that ended. A run must follow.
    pub fn done(&mut self, class: Priority, permits: &Permits) {
        permits.end(&mut self.credits, class);
    }

    /// Takes the set of queues that were granted permits since the last call and must be run.
    pub fn take_queues_to_run(&mut self) -> QueuesToRun {
        self.credits.take_queues_to_run()
    }

    /// Queues the requests of a failed merged operation again, to be issued one by one. They are
    /// never merged again. Call [`done`](Self::done) for the operation as well.
    pub fn split(&mut self, operation: Operation) {
        let class = operation.priority;
        for request in operation.requests {
            self.insert(request, class, true);
        }
    }

    /// Moves request `id` to `priority`, if it is queued here with a lower one. Without a priority,
    /// takes it out if it was cancelled. Returns whether anything changed: if so, a run must
    /// follow.
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

    /// Takes the requests that were found cancelled. Finish them with
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), outside the queue's lock.
    pub fn take_cancelled(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.cancelled)
    }

    /// Returns whether there are cancelled requests that were not taken yet.
    pub fn has_cancelled(&self) -> bool {
        !self.cancelled.is_empty()
    }

    /// Takes out all queued requests, because the device is gone.
    pub fn take_queued(&mut self) -> Vec<Request> {
        let mut all = Vec::new();
        for class in &mut self.classes {
            while let Some(key) = class.pick(&self.slots) {
                all.push(class.remove(&mut self.slots, key).request);
            }
        }
        all
    }

    /// Queues a request in its own class, or in `class` if that is more urgent.
    fn insert(&mut self, request: Request, class: Priority, no_merge: bool) {
        let id = self.next_id;
        self.next_id += 1;
        if request.has_handle() {
            request.set_requeue_target(Some((self.requeue_target.clone(), id)));
        }
        // Read the priority only after the handle knows the queue. Otherwise a raise in between is
        // lost.
        let class = request.priority().min(class);
        self.flush_epoch += u64::from(request.op() == Op::Flush);
        let kept = (request, self.flush_epoch, no_merge);
        self.classes[class.index()].insert(&mut self.slots, id, kept);
    }

    fn waiting_classes(&self) -> u8 {
        let bit = |(at, class): (usize, &ClassQueue)| u8::from(!class.is_empty()) << at;
        self.classes.iter().enumerate().map(bit).sum()
    }

    /// Builds an operation from the next request of `class` that is not cancelled, and the requests
    /// that can be merged with it.
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
