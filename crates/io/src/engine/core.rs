//! What all backends share: lanes, their steps, and how requests end.
//!
//! A request is checked and pushed into the queue of the submitter's lane ([`super::submit`]), and issued
//! by the backend as permits allow. Ends come back in batches: their permits return under
//! the lane's lock, then their callbacks run outside it. [`super::queued`] closes.
//!
//! Invariants:
//! * A lane whose lock is free has made its step: nothing waits in its queue that could be issued. So
//!   whoever changes something that may let an issue go (a push, a permit that returns, a kick) makes a step ([`Core::run_and_unlock`]) as it unlocks.
//! * Who makes a step for others, or inside a callback, runs no callbacks and does not wait for the medium
//!   ([`RunContext::NonBlocking`]): not who raises or cancels, perhaps under a lock that a callback takes; not who
//!   kicks, so that kicks are no recursion. What it finds to be told it leaves in the lane,
//!   and summons the backend's thread for it.
//! * So who is told of a cancellation is told outside callbacks, at once: nothing is counted as told
//!   before it is.
//! * `closed` is set and read under the lane's lock, so a request that is accepted is accepted
//!   before the close, which waits for it.
//! * `finishing` counts what has left the queue and the backend but whose callbacks have not
//!   returned; a lane is idle when both are empty and `finishing` is zero.
//!
//! Locking: `io-queue`, one a lane, never two at once, and no callback under it. Under it may be taken:
//! `request-requeue_target` (by the queue), and the permits' own.
//!
//! Deliberately absent: a queue that all lanes share; moving requests from one lane to another.

use std::cell::Cell;
use std::io;

use crossbeam_utils::CachePadded;
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

/// Who makes a step of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunContext {
    /// A thread that may run callbacks, and wait for the medium.
    MayBlock,
    /// The thread that drives this lane, perhaps in a callback: it sees to the rest itself, later.
    Driver,
    /// A thread that may do neither.
    NonBlocking,
}

/// What does the work that the queues hand out.
pub(crate) trait Backend: Send + Sync + Sized + 'static {
    /// Its part of a lane, under the lane's lock.
    type QueueData: Send;
    /// What is to be done once the lane's lock is free.
    type FollowUp;

    /// Issues what may be issued ([`Core::next`]) and gets it going, unless the caller is the driver.
    /// For a quiet caller nothing may be left to do.
    fn dispatch(
        core: &Core<Self>,
        state: &mut QueueState<Self>,
        context: RunContext,
    ) -> Self::FollowUp;

    /// Does what `dispatch` left, without the lane's lock.
    fn follow_up(core: &Core<Self>, queue: usize, action: Self::FollowUp);

    /// Lends the calling thread to a lane.
    fn help(core: &Core<Self>, queue: usize, waiter: &Waiter);

    /// A request of this lane has ended elsewhere; somebody who helps may be waiting for it.
    fn wake_helper(core: &Core<Self>, queue: usize);

    /// Has a thread of the backend's make a step of this lane soon, whatever there is to issue.
    fn run_async(core: &Core<Self>, state: &mut QueueState<Self>);

    /// What a thread can block on that has nothing else to do, if there is such a thing.
    fn blocking(&self) -> Option<&BlockingFile> {
        None
    }

    /// What executes requests by now.
    fn engine(&self, started: &Engine) -> Engine {
        started.clone()
    }

    /// Ends the backend's threads; nothing is in flight, and nothing will come.
    fn stop(core: &Core<Self>);
}

/// A queued device: every backend's, and what its threads share.
#[repr(align(128))]
pub(crate) struct Core<B: Backend> {
    pub(crate) backend: B,
    pub(crate) info: DeviceInfo,
    pub(crate) counters: IoCounters,
    permits: Permits,
    queues: Box<[CachePadded<QueueSlot<B>>]>,
    /// For handles.
    pub(super) weak_self: Weak<Self>,
    errors: AtomicU64,
    gone: AtomicBool,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A lane, and those who wait for something of it.
pub(crate) struct QueueSlot<B: Backend> {
    state: Mutex<QueueState<B>>,
    /// Room in the queue of a class.
    pub(super) slot_freed: [Condvar; Priority::COUNT],
    /// The last end of a lane that is closed.
    pub(super) idle: Condvar,
}

/// What a lane's lock protects.
pub(crate) struct QueueState<B: Backend> {
    pub(crate) sq: SubmissionQueue,
    pub(crate) data: B::QueueData,
    pub(super) index: usize,
    pub(super) closed: bool,
    pub(super) slot_waiters: SlotWaiters,
    /// See the module's head.
    pub(super) finishing: usize,
}

/// How an issue ended.
pub(crate) struct EndedOperation {
    pub(crate) operation: Operation,
    /// Bytes that were moved, if it failed.
    pub(crate) moved: u64,
    pub(crate) result: Result<(), Error>,
}

impl Deferred {
    /// Whether there is nothing to tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.to_run.is_empty() && self.cancelled.is_empty()
    }
}

impl EndedOperation {
    /// Whether one of several requests has spoiled it for the others.
    fn should_split(&self) -> bool {
        let merged = self.operation.requests.as_slice().len() > 1;
        merged && self.result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Device)
    }
}

/// What was done under a lane's lock and has to be told without it.
#[must_use]
pub(crate) struct Deferred {
    to_run: QueuesToRun,
    cancelled: Vec<Request>,
}

forebay_base::sync::thread_local! {
    /// The core and lane whose callbacks this thread runs as its driver; no core: zero.
    static DRIVING: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

impl<B: Backend> QueueState<B> {
    pub(super) fn is_idle(&self) -> bool {
        self.finishing == 0 && self.sq.is_idle()
    }

    /// The lane's number.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Callbacks of `ended` requests have returned.
    pub(crate) fn callbacks_returned(&mut self, ended: usize) {
        self.finishing -= ended;
    }
}

impl<B: Backend> Core<B> {
    /// A core of as many lanes as `data` has parts for them.
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

    /// Starts a thread of the backend's, to be joined at the close.
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

    /// How many lanes there are.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// The state of a lane.
    pub(crate) fn lock(&self, queue: usize) -> MutexGuard<'_, QueueState<B>> {
        self.queues[queue].state.lock()
    }

    /// What those who wait for something of a lane sleep on.
    pub(super) fn slot(&self, queue: usize) -> &QueueSlot<B> {
        &self.queues[queue]
    }

    /// Where the calling thread submits, and as whom.
    pub(super) fn queue_of_caller(&self) -> (usize, RunContext) {
        let (core, queue) = DRIVING.with(Cell::get);
        if core == std::ptr::from_ref(self).addr() {
            return (queue, RunContext::Driver);
        }
        let context = if in_callback() { RunContext::NonBlocking } else { RunContext::MayBlock };
        (thread_slot().index(self.queues.len()), context)
    }

    /// Runs `f` as the driver of `queue`: what it submits to this core goes there, and begins when
    /// the driver says so.
    pub(crate) fn driving<R>(&self, queue: usize, f: impl FnOnce() -> R) -> R {
        let before =
            DRIVING.with(|driving| driving.replace((std::ptr::from_ref(self).addr(), queue)));
        let result = f();
        DRIVING.with(|driving| driving.set(before));
        result
    }

    /// Makes a step of a lane: issues what may be issued, gets it going, unlocks, and does what is
    /// left to do without the lock.
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

    /// The part of a step that is under the lock.
    pub(crate) fn run(
        &self,
        state: &mut QueueState<B>,
        context: RunContext,
    ) -> (B::FollowUp, Deferred) {
        let follow_up = B::dispatch(self, state, context);
        (follow_up, self.take_deferred(state, context))
    }

    /// What the queue wants to be told without the lock.
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

    /// Tells it.
    pub(crate) fn run_deferred(&self, queue: usize, deferred: Deferred, context: RunContext) {
        let Deferred { to_run, cancelled } = deferred;
        self.run_queues(to_run);
        self.finish_cancelled(queue, cancelled, context);
    }

    /// The next issue of a lane. To be called until there is none, unless [`rest`](Self::rest)
    /// follows.
    #[inline]
    pub(crate) fn next(&self, state: &mut QueueState<B>) -> Option<Operation> {
        let operation = state.sq.next(&self.permits)?;
        let shard = self.counters.shard();
        shard.add(IoCounters::ISSUED, operation.priority.index(), 1);
        if let Requests::Many(requests) = &operation.requests {
            shard.add(IoCounters::MERGED, 0, requests.len() as u64 - 1);
        }
        Some(operation)
    }

    /// The lane has nobody who could do more at the moment: what it has of permits is there for
    /// others until the next step.
    pub(crate) fn release_unused(&self, state: &mut QueueState<B>) {
        state.sq.release_unused(&self.permits);
    }

    /// Ends what was taken back. Not in a callback, where the ends would come later.
    fn finish_cancelled(&self, queue: usize, cancelled: Vec<Request>, context: RunContext) {
        if cancelled.is_empty() {
            return;
        }
        debug_assert!(!in_callback(), "left to somebody else");
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

    /// Takes in that issues have ended: their permits return. What is left in `ended` is to be told
    /// with [`finish`](Self::finish), and then [`QueueState::finished`].
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

    /// Tells the requests of `ended` how they ended. Without any lock.
    pub(crate) fn finish(&self, ended: &mut Vec<EndedOperation>) {
        let shard = self.counters.shard();
        for EndedOperation { operation, moved, result } in ended.drain(..) {
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

    /// Makes a step of each lane that was given permits, and of those that these give permits to.
    fn run_queues(&self, mut to_run: QueuesToRun) {
        while let Some(queue) = to_run.next() {
            self.counters.add(IoCounters::QUEUES_WOKEN, 0, 1);
            let mut state = self.lock(queue);
            let (_, deferred) = self.run(&mut state, RunContext::NonBlocking);
            drop(state);
            to_run.add(deferred.to_run);
        }
    }

    /// Tells those who close, if the lane has become idle.
    pub(crate) fn notify_if_idle(&self, state: &QueueState<B>) {
        if state.closed && state.is_idle() {
            self.slot(state.index).idle.notify_all();
        }
    }

    /// How the device is, by what its requests have met.
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
