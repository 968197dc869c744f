//! The part of an engine that all backends share: submission queues, their runs, and completion of
//! requests.
//!
//! A request is checked and pushed into the queue of the submitting thread ([`super::submit`]). The
//! backend issues it as permits allow. Operations end in batches: their permits return under the
//! queue's lock, then callbacks run outside it. [`super::queued_device`] closes.
//!
//! Invariants:
//! * A queue whose lock is free was run: nothing is queued that could be issued. So every change
//!   that may allow an issue (a pushed request, a returned permit, a granted one) is followed by a
//!   run before the unlock ([`Core::run_and_unlock`]).
//! * [`RunContext::NonBlocking`] is the context of a thread that runs a queue for others or inside
//!   a callback. It runs no callbacks and does not wait for the medium. A thread that raises or
//!   cancels may hold a lock that a callback takes; and running queues for others must not recurse.
//!   Such a run leaves cancelled requests in the queue and asks the backend for an asynchronous
//!   run.
//! * Cancelled requests are finished at once, outside callbacks. None counts as finished before.
//! * `closed` is read and written under the queue's lock. So an accepted request was accepted
//!   before the close, which waits for it.
//! * `finishing` counts requests and operations that left the queue and the backend, but whose
//!   callbacks have not returned. A queue is idle when queue and backend are empty and `finishing`
//!   is zero.
//!
//! Locking: `io-submission-queue`, one per queue. No thread holds two, and no callback runs under
//! one. `request-handle` and the locks of [`Permits`] may be taken under it.

use std::cell::Cell;
use std::io;

use crossbeam_utils::CachePadded;
use forebay_base::probe;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::thread::JoinHandle;
use forebay_base::sync::{Arc, Condvar, Mutex, MutexGuard, Weak, thread, thread_slot};

use super::blocking::BlockingFile;
use super::submit::{CANCELLED_BEFORE_ISSUE, SlotWaiters};
use crate::completion::in_callback;
use crate::counters::IoCounters;
use crate::device::{DeviceInfo, Engine, Health};
use crate::error::{Error, ErrorKind};
use crate::priority::Priority;
use crate::queue::{
    Limits, MAX_SUBMISSION_QUEUES, Operation, Permits, QueuesToRun, Requests, SubmissionQueue,
};
use crate::request::{Request, RequeueTarget};
use crate::tunables::IoTunables;
use crate::waiter::Waiter;

/// What the thread that runs a queue may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunContext {
    /// It may run callbacks and wait for the medium.
    MayBlock,
    /// It drives this queue, perhaps inside a callback, and does the remaining work itself later.
    Driver,
    /// It may neither run callbacks nor wait.
    NonBlocking,
}

/// Executes the operations that submission queues hand out.
pub(crate) trait Backend: Send + Sync + Sized + 'static {
    /// The backend's data of one queue, under the queue's lock.
    type QueueData: Send;
    /// Work to do once the queue's lock is released.
    type FollowUp;

    /// Issues all operations that it can ([`Core::next`]) and starts them, unless the caller is the
    /// driver. For a non-blocking caller, no follow-up work may remain.
    fn dispatch(
        core: &Core<Self>,
        state: &mut QueueState<Self>,
        context: RunContext,
    ) -> Self::FollowUp;

    /// Does the work that `dispatch` left, without the queue's lock.
    fn follow_up(core: &Core<Self>, queue: usize, action: Self::FollowUp);

    /// Lends the calling thread to a queue until `waiter` is complete.
    fn help(core: &Core<Self>, queue: usize, waiter: &Waiter);

    /// Wakes a thread that helps with this queue: a request may have completed elsewhere.
    fn wake_helper(core: &Core<Self>, queue: usize);

    /// Has one of the backend's threads run this queue soon, even if nothing can be issued.
    fn run_async(core: &Core<Self>, state: &mut QueueState<Self>);

    /// Returns the file for blocking calls by a thread that has nothing else to do, if there is
    /// one.
    fn blocking(&self) -> Option<&BlockingFile> {
        None
    }

    /// Returns the engine that executes requests now.
    fn engine(&self, started: &Engine) -> Engine {
        started.clone()
    }

    /// Ends the backend's threads. Nothing is in flight, and no request will come.
    fn stop(core: &Core<Self>);

    /// Closes the file, if there is one. The threads have ended.
    fn close_file(_core: &Core<Self>) {}
}

/// A queued device: the data that all of its threads share.
#[repr(align(128))]
pub(crate) struct Core<B: Backend> {
    pub(crate) backend: B,
    pub(crate) info: DeviceInfo,
    pub(crate) counters: IoCounters,
    permits: Permits,
    queues: Box<[CachePadded<QueueSlot<B>>]>,
    /// For the handles of requests.
    pub(super) weak_self: Weak<Self>,
    errors: AtomicU64,
    gone: AtomicBool,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A submission queue and the condition variables of threads that wait for it.
pub(crate) struct QueueSlot<B: Backend> {
    state: Mutex<QueueState<B>>,
    /// By class: a slot of the queue became free.
    pub(super) slot_freed: [Condvar; Priority::COUNT],
    /// The closed queue became idle.
    pub(super) idle: Condvar,
}

/// The data that a queue's lock protects.
pub(crate) struct QueueState<B: Backend> {
    pub(crate) sq: SubmissionQueue,
    pub(crate) data: B::QueueData,
    pub(super) index: usize,
    pub(super) closed: bool,
    pub(super) slot_waiters: SlotWaiters,
    /// See the head of the module.
    pub(super) finishing: usize,
}

/// An operation that ended.
pub(crate) struct EndedOperation {
    pub(crate) operation: Operation,
    /// Bytes that were moved, if it failed.
    pub(crate) moved: u64,
    pub(crate) result: Result<(), Error>,
}

impl Deferred {
    /// Returns whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.to_run.is_empty() && self.cancelled.is_empty()
    }
}

impl EndedOperation {
    /// Returns whether one of several merged requests may have failed the others.
    fn should_split(&self) -> bool {
        let merged = self.operation.requests.as_slice().len() > 1;
        merged && self.result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Device)
    }
}

/// Work that a run leaves for after the unlock.
#[must_use]
pub(crate) struct Deferred {
    to_run: QueuesToRun,
    cancelled: Vec<Request>,
}

forebay_base::sync::thread_local! {
    /// Address of the core and index of the queue that this thread drives while it runs callbacks.
    /// Address 0: none.
    static DRIVING: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

impl<B: Backend> QueueState<B> {
    pub(super) fn is_idle(&self) -> bool {
        self.finishing == 0 && self.sq.is_idle()
    }

    /// Returns the queue's index.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Notes that the callbacks of `ended` requests or operations have returned.
    pub(crate) fn callbacks_returned(&mut self, ended: usize) {
        self.finishing -= ended;
    }
}

impl<B: Backend> Core<B> {
    /// Creates a core with one queue for each element of `data`.
    pub(crate) fn new(
        backend: B,
        info: DeviceInfo,
        (tunables, limits): (&Arc<IoTunables>, Limits),
        data: Vec<B::QueueData>,
    ) -> Arc<Self> {
        assert!(
            !data.is_empty() && data.len() <= MAX_SUBMISSION_QUEUES,
            "{} submission queues",
            data.len()
        );
        let queues = data.len();
        Arc::new_cyclic(|core: &Weak<Self>| {
            let slot = |(index, data)| {
                let requeue_target = Weak::clone(core) as Weak<dyn RequeueTarget>;
                let sq = SubmissionQueue::new(index, requeue_target, Arc::clone(tunables));
                let (closed, slot_waiters, finishing) = (false, SlotWaiters::default(), 0);
                let state = QueueState { sq, data, index, closed, slot_waiters, finishing };
                let state = Mutex::named("io-submission-queue", state);
                let slot_freed = std::array::from_fn(|_| Condvar::new());
                CachePadded::new(QueueSlot { state, slot_freed, idle: Condvar::new() })
            };
            Self {
                backend,
                info,
                counters: IoCounters::new(),
                permits: Permits::new(limits, queues),
                queues: data.into_iter().enumerate().map(slot).collect(),
                weak_self: Weak::clone(core),
                errors: AtomicU64::new(0),
                gone: AtomicBool::new(false),
                threads: Mutex::named("io-threads", Vec::new()),
            }
        })
    }

    /// Starts a thread of the backend. Closing joins it.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        name: &str,
        f: fn(&Arc<Self>, usize),
        queue: usize,
    ) -> io::Result<()> {
        let core = Arc::clone(self);
        let thread = thread::spawn_named(name, move || f(&core, queue))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Returns the number of queues.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Locks a queue.
    pub(crate) fn lock(&self, queue: usize) -> MutexGuard<'_, QueueState<B>> {
        self.queues[queue].state.lock()
    }

    /// Returns a queue with its condition variables.
    pub(super) fn slot(&self, queue: usize) -> &QueueSlot<B> {
        &self.queues[queue]
    }

    /// Returns the queue to which the calling thread submits, and its context.
    pub(super) fn queue_of_caller(&self) -> (usize, RunContext) {
        let (core, queue) = DRIVING.with(Cell::get);
        if core == std::ptr::from_ref(self).addr() {
            return (queue, RunContext::Driver);
        }
        let context = if in_callback() { RunContext::NonBlocking } else { RunContext::MayBlock };
        (thread_slot().index(self.queues.len()), context)
    }

    /// Runs `f` as the driver of `queue`. Requests that `f` submits to this core go to that queue,
    /// and start when the driver dispatches them.
    pub(crate) fn driving<R>(&self, queue: usize, f: impl FnOnce() -> R) -> R {
        let before =
            DRIVING.with(|driving| driving.replace((std::ptr::from_ref(self).addr(), queue)));
        let result = f();
        DRIVING.with(|driving| driving.set(before));
        result
    }

    /// Runs a queue: issues and starts all operations that it can, unlocks, and does the remaining
    /// work.
    pub(crate) fn run_and_unlock(
        &self,
        mut state: MutexGuard<'_, QueueState<B>>,
        context: RunContext,
    ) {
        let queue = state.index;
        let (follow_up, Deferred { to_run, cancelled }) = self.run(&mut state, context);
        drop(state);
        self.run_queues(to_run);
        B::follow_up(self, queue, follow_up);
        self.finish_cancelled(queue, cancelled, context);
    }

    /// The part of a run that needs the lock.
    pub(crate) fn run(
        &self,
        state: &mut QueueState<B>,
        context: RunContext,
    ) -> (B::FollowUp, Deferred) {
        let follow_up = B::dispatch(self, state, context);
        (follow_up, self.take_deferred(state, context))
    }

    /// Takes the work that must be done without the lock.
    pub(crate) fn take_deferred(&self, state: &mut QueueState<B>, context: RunContext) -> Deferred {
        let mut cancelled = Vec::new();
        if state.sq.has_cancelled() {
            if context == RunContext::NonBlocking {
                B::run_async(self, state);
            } else if !in_callback() {
                cancelled = state.sq.take_cancelled();
                state.finishing += cancelled.len();
            }
        }
        self.notify_slot_waiters(state);
        Deferred { to_run: state.sq.take_queues_to_run(), cancelled }
    }

    /// Does that work.
    pub(crate) fn run_deferred(&self, queue: usize, deferred: Deferred, context: RunContext) {
        let Deferred { to_run, cancelled } = deferred;
        self.run_queues(to_run);
        self.finish_cancelled(queue, cancelled, context);
    }

    /// Returns the next operation of a queue. Call it until it returns `None`, or call
    /// [`release_unused`](Self::release_unused).
    #[inline]
    pub(crate) fn next(&self, state: &mut QueueState<B>) -> Option<Operation> {
        let operation = state.sq.next(&self.permits)?;
        probe!(io_issue, &raw const *self, operation.op as u32, operation.offset, operation.len);
        let shard = self.counters.shard();
        shard.add(IoCounters::ISSUED, operation.priority.index(), 1);
        if let Requests::Many(requests) = &operation.requests {
            shard.add(IoCounters::MERGED, 0, requests.len() as u64 - 1);
        }
        Some(operation)
    }

    /// Makes the queue's unused permits available to others until its next run. For a queue without
    /// a thread that could do more.
    pub(crate) fn release_unused(&self, state: &mut QueueState<B>) {
        state.sq.release_unused(&self.permits);
    }

    /// Finishes cancelled requests. Not for callbacks, where they would complete later.
    fn finish_cancelled(&self, queue: usize, cancelled: Vec<Request>, context: RunContext) {
        if cancelled.is_empty() {
            return;
        }
        debug_assert!(!in_callback(), "callbacks leave this to another thread");
        let count = cancelled.len();
        for request in cancelled {
            self.counters.add(IoCounters::CANCELLED, request.priority().index(), 1);
            let error = self.refusal(&request, ErrorKind::Cancelled, CANCELLED_BEFORE_ISSUE);
            request.finish(Err(error));
        }
        let mut state = self.lock(queue);
        state.callbacks_returned(count);
        self.notify_if_idle(&state);
        drop(state);
        if context != RunContext::Driver {
            B::wake_helper(self, queue);
        }
    }

    /// Returns the permits of operations that ended. Finish the rest of `ended` with
    /// [`finish`](Self::finish), then call [`QueueState::callbacks_returned`].
    pub(crate) fn ended(&self, state: &mut QueueState<B>, ended: &mut Vec<EndedOperation>) {
        let mut split = false;
        for end in ended.iter() {
            state.sq.done(end.operation.priority, &self.permits);
            split |= end.should_split();
        }
        if split {
            self.counters.add(IoCounters::SPLIT, 0, 1);
            for end in ended.extract_if(.., |end| end.should_split()) {
                state.sq.split(end.operation);
            }
        }
        state.finishing += ended.len();
    }

    /// Completes the requests of `ended`. The caller must hold no lock.
    pub(crate) fn finish(&self, ended: &mut Vec<EndedOperation>) {
        let shard = self.counters.shard();
        for EndedOperation { operation, moved, result } in ended.drain(..) {
            let failed = result.is_err();
            probe!(
                io_done,
                &raw const *self,
                operation.op as u32,
                operation.offset,
                operation.len,
                failed
            );
            let (op, requests) =
                (operation.op as usize, operation.requests.as_slice().len() as u64);
            match result {
                Ok(()) => {
                    shard.add(IoCounters::COMPLETED, op, requests);
                    shard.add(IoCounters::BYTES, op, operation.len);
                    operation.finish(Ok(()));
                }
                Err(error) => {
                    shard.add(IoCounters::FAILED, op, requests);
                    self.count_error(&error);
                    operation.finish_short(moved, &error);
                }
            }
        }
    }

    /// Runs each of these queues, and the queues that were granted permits by that.
    fn run_queues(&self, mut to_run: QueuesToRun) {
        while let Some(queue) = to_run.next() {
            self.counters.add(IoCounters::QUEUES_WOKEN, 0, 1);
            let mut state = self.lock(queue);
            let (_, deferred) = self.run(&mut state, RunContext::NonBlocking);
            drop(state);
            to_run.add(deferred.to_run);
        }
    }

    /// Wakes closing threads if the queue has become idle.
    pub(crate) fn notify_if_idle(&self, state: &QueueState<B>) {
        if state.closed && state.is_idle() {
            self.slot(state.index).idle.notify_all();
        }
    }

    /// Returns the device's health, judged by its requests so far.
    pub(super) fn health(&self) -> Health {
        if self.gone.load(Ordering::Relaxed) {
            return Health::Gone;
        }
        match self.errors.load(Ordering::Relaxed) {
            0 => Health::Healthy,
            errors => Health::Degraded { errors },
        }
    }

    fn count_error(&self, error: &Error) {
        match error.kind() {
            ErrorKind::Gone => self.gone.store(true, Ordering::Relaxed),
            ErrorKind::Cancelled => return,
            _ => {}
        }
        self.errors.fetch_add(1, Ordering::Relaxed);
    }
}
