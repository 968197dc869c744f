//! What all backends share: lanes, their steps, and how requests end.
//!
//! A request is checked and pushed into the queue of the submitter's lane ([`super::entry`]), and issued
//! by the backend as permits allow. Ends come back in batches: their permits return under
//! the lane's lock, then their callbacks run outside it. [`super::queued`] closes.
//!
//! Invariants:
//! * A lane whose lock is free has made its step: nothing waits in its queue that could be issued. So
//!   whoever changes something that may let an issue go (a push, a permit that returns, a kick) makes a step ([`Core::leave`]) as it unlocks.
//! * Who makes a step for others, or inside a callback, runs no callbacks and does not wait for the medium
//!   ([`Caller::Quiet`]): not who raises or cancels, perhaps under a lock that a callback takes; not who
//!   kicks, so that kicks are no recursion. What it finds to be told it leaves in the lane,
//!   and summons the backend's thread for it.
//! * So who is told of a cancellation is told outside callbacks, at once: nothing is counted as told
//!   before it is.
//! * `closed` is set and read under the lane's lock, so a request that is accepted is accepted
//!   before the close, which waits for it.
//! * `finishing` counts what has left the queue and the backend but whose callbacks have not
//!   returned; a lane is idle when both are empty and `finishing` is zero.
//!
//! Locking: `io-lane`, one a lane, never two at once, and no callback under it. Under it may be taken:
//! `request-home` (by the queue), and the permits' own.
//!
//! Deliberately absent: a queue that all lanes share; moving requests from one lane to another.

use std::cell::Cell;
use std::io;

use crossbeam_utils::CachePadded;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::thread::JoinHandle;
use forebay_base::sync::{Arc, Condvar, Mutex, MutexGuard, Weak, thread, thread_slot};

use super::blocking::Blocking;
use super::entry::{Crowd, TAKEN_BACK};
use crate::completion::in_callback;
use crate::counters::IoCounters;
use crate::device::{DeviceInfo, Engine, Health};
use crate::error::{Error, ErrorKind};
use crate::priority::Priority;
use crate::queue::{Issue, Kick, Lane, Limits, MAX_LANES, Permits, Pieces};
use crate::request::{Home, Request};
use crate::tunables::IoTunables;
use crate::waiter::Waiter;

/// Who makes a step of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A thread that may run callbacks, and wait for the medium.
    Free,
    /// The thread that drives this lane, perhaps in a callback: it sees to the rest itself, later.
    Driver,
    /// A thread that may do neither.
    Quiet,
}

/// What does the work that the queues hand out.
pub(crate) trait Backend: Send + Sync + Sized + 'static {
    /// Its part of a lane, under the lane's lock.
    type Lane: Send;
    /// What is to be done once the lane's lock is free.
    type Outside;

    /// Issues what may be issued ([`Core::next`]) and gets it going, unless the caller is the driver.
    /// For a quiet caller nothing may be left to do.
    fn begin(core: &Core<Self>, state: &mut LaneState<Self>, caller: Caller) -> Self::Outside;

    /// Does what `begin` left, without the lane's lock.
    fn outside(core: &Core<Self>, lane: usize, rest: Self::Outside);

    /// Lends the calling thread to a lane.
    fn help(core: &Core<Self>, lane: usize, waiter: &Waiter);

    /// A request of this lane has ended elsewhere; somebody who helps may be waiting for it.
    fn nudge(core: &Core<Self>, lane: usize);

    /// Has a thread of the backend's make a step of this lane soon, whatever there is to issue.
    fn summon(core: &Core<Self>, state: &mut LaneState<Self>);

    /// What a thread can block on that has nothing else to do, if there is such a thing.
    fn blocking(&self) -> Option<&Blocking> {
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
    lanes: Box<[CachePadded<LaneSlot<B>>]>,
    /// For handles.
    pub(super) me: Weak<Self>,
    errors: AtomicU64,
    gone: AtomicBool,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A lane, and those who wait for something of it.
pub(crate) struct LaneSlot<B: Backend> {
    state: Mutex<LaneState<B>>,
    /// Room in the queue of a class.
    pub(super) room: [Condvar; Priority::COUNT],
    /// The last end of a lane that is closed.
    pub(super) idle: Condvar,
}

/// What a lane's lock protects.
pub(crate) struct LaneState<B: Backend> {
    pub(crate) queue: Lane,
    pub(crate) own: B::Lane,
    pub(super) index: usize,
    pub(super) closed: bool,
    pub(super) crowd: Crowd,
    /// See the module's head.
    pub(super) finishing: usize,
}

/// How an issue ended.
pub(crate) struct Ended {
    pub(crate) issue: Issue,
    /// Bytes that were moved, if it failed.
    pub(crate) moved: u64,
    pub(crate) result: Result<(), Error>,
}

impl Batch {
    /// Whether there is nothing to tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.kicks.is_empty() && self.cancelled.is_empty()
    }
}

impl Ended {
    /// Whether one of several requests has spoiled it for the others.
    fn is_to_be_split(&self) -> bool {
        let merged = self.issue.requests.as_slice().len() > 1;
        merged && self.result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Device)
    }
}

/// What was done under a lane's lock and has to be told without it.
#[must_use]
pub(crate) struct Batch {
    kicks: Kick,
    cancelled: Vec<Request>,
}

forebay_base::sync::thread_local! {
    /// The core and lane whose callbacks this thread runs as its driver; no core: zero.
    static DRIVING: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

impl<B: Backend> LaneState<B> {
    pub(super) fn is_idle(&self) -> bool {
        self.finishing == 0 && self.queue.is_idle()
    }

    /// The lane's number.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Callbacks of `ended` requests have returned.
    pub(crate) fn told(&mut self, ended: usize) {
        self.finishing -= ended;
    }
}

impl<B: Backend> Core<B> {
    /// A core of as many lanes as `own` has parts for them.
    pub(crate) fn new(
        backend: B,
        info: DeviceInfo,
        (tunables, limits): (&Arc<IoTunables>, Limits),
        own: Vec<B::Lane>,
    ) -> Arc<Self> {
        assert!(!own.is_empty() && own.len() <= MAX_LANES, "{} lanes", own.len());
        let lanes = own.len();
        Arc::new_cyclic(|core: &Weak<Self>| {
            let slot = |(index, own)| {
                let home = Weak::clone(core) as Weak<dyn Home>;
                let queue = Lane::new(index, home, Arc::clone(tunables));
                let (closed, crowd, finishing) = (false, Crowd::default(), 0);
                let state = LaneState { queue, own, index, closed, crowd, finishing };
                let state = Mutex::named("io-lane", state);
                let room = std::array::from_fn(|_| Condvar::new());
                CachePadded::new(LaneSlot { state, room, idle: Condvar::new() })
            };
            Self {
                backend,
                info,
                counters: IoCounters::new(),
                permits: Permits::new(limits, lanes),
                lanes: own.into_iter().enumerate().map(slot).collect(),
                me: Weak::clone(core),
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
        lane: usize,
    ) -> io::Result<()> {
        let core = Arc::clone(self);
        let thread = thread::spawn_named(name, move || f(&core, lane))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// How many lanes there are.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The state of a lane.
    pub(crate) fn lock(&self, lane: usize) -> MutexGuard<'_, LaneState<B>> {
        self.lanes[lane].state.lock()
    }

    /// What those who wait for something of a lane sleep on.
    pub(super) fn slot(&self, lane: usize) -> &LaneSlot<B> {
        &self.lanes[lane]
    }

    /// Where the calling thread submits, and as whom.
    pub(super) fn lane_of_caller(&self) -> (usize, Caller) {
        let (core, lane) = DRIVING.with(Cell::get);
        if core == std::ptr::from_ref(self).addr() {
            return (lane, Caller::Driver);
        }
        let caller = if in_callback() { Caller::Quiet } else { Caller::Free };
        (thread_slot().index(self.lanes.len()), caller)
    }

    /// Runs `f` as the driver of `lane`: what it submits to this core goes there, and begins when
    /// the driver says so.
    pub(crate) fn driving<R>(&self, lane: usize, f: impl FnOnce() -> R) -> R {
        let before =
            DRIVING.with(|driving| driving.replace((std::ptr::from_ref(self).addr(), lane)));
        let result = f();
        DRIVING.with(|driving| driving.set(before));
        result
    }

    /// Makes a step of a lane: issues what may be issued, gets it going, unlocks, and does what is
    /// left to do without the lock.
    pub(crate) fn leave(&self, mut state: MutexGuard<'_, LaneState<B>>, caller: Caller) {
        let lane = state.index;
        let (outside, Batch { kicks, cancelled }) = self.turn(&mut state, caller);
        drop(state);
        self.kick(kicks);
        B::outside(self, lane, outside);
        self.tell_cancelled(lane, cancelled, caller);
    }

    /// The part of a step that is under the lock.
    pub(crate) fn turn(&self, state: &mut LaneState<B>, caller: Caller) -> (B::Outside, Batch) {
        let outside = B::begin(self, state, caller);
        (outside, self.collect(state, caller))
    }

    /// What the queue wants to be told without the lock.
    pub(crate) fn collect(&self, state: &mut LaneState<B>, caller: Caller) -> Batch {
        let mut cancelled = Vec::new();
        if state.queue.has_cancelled() {
            if caller == Caller::Quiet {
                B::summon(self, state);
            } else if !in_callback() {
                cancelled = state.queue.take_cancelled();
                state.finishing += cancelled.len();
            }
        }
        self.invite(state);
        Batch { kicks: state.queue.take_kicks(), cancelled }
    }

    /// Tells it.
    pub(crate) fn settle(&self, lane: usize, batch: Batch, caller: Caller) {
        let Batch { kicks, cancelled } = batch;
        self.kick(kicks);
        self.tell_cancelled(lane, cancelled, caller);
    }

    /// The next issue of a lane. To be called until there is none, unless [`rest`](Self::rest)
    /// follows.
    #[inline]
    pub(crate) fn next(&self, state: &mut LaneState<B>) -> Option<Issue> {
        let issue = state.queue.next(&self.permits)?;
        let shard = self.counters.shard();
        shard.add(IoCounters::ISSUED, issue.priority.index(), 1);
        if let Pieces::Many(requests) = &issue.requests {
            shard.add(IoCounters::MERGED, 0, requests.len() as u64 - 1);
        }
        Some(issue)
    }

    /// The lane has nobody who could do more at the moment: what it has of permits is there for
    /// others until the next step.
    pub(crate) fn rest(&self, state: &mut LaneState<B>) {
        state.queue.rest(&self.permits);
    }

    /// Ends what was taken back. Not in a callback, where the ends would come later.
    fn tell_cancelled(&self, lane: usize, cancelled: Vec<Request>, caller: Caller) {
        if cancelled.is_empty() {
            return;
        }
        debug_assert!(!in_callback(), "left to somebody else");
        let count = cancelled.len();
        for request in cancelled {
            self.counters.add(IoCounters::CANCELLED, request.priority().index(), 1);
            let error = self.refusal(&request, ErrorKind::Cancelled, TAKEN_BACK);
            request.finish(Err(error));
        }
        let mut state = self.lock(lane);
        state.told(count);
        self.tell_if_idle(&state);
        drop(state);
        if caller != Caller::Driver {
            B::nudge(self, lane);
        }
    }

    /// Takes in that issues have ended: their permits return. What is left in `ended` is to be told
    /// with [`finish`](Self::finish), and then [`LaneState::told`].
    pub(crate) fn ended(&self, state: &mut LaneState<B>, ended: &mut Vec<Ended>) {
        let mut split = false;
        for end in ended.iter() {
            state.queue.done(end.issue.priority, &self.permits);
            split |= end.is_to_be_split();
        }
        if split {
            self.counters.add(IoCounters::SPLIT, 0, 1);
            for end in ended.extract_if(.., |end| end.is_to_be_split()) {
                state.queue.split(end.issue);
            }
        }
        state.finishing += ended.len();
    }

    /// Tells the requests of `ended` how they ended. Without any lock.
    pub(crate) fn finish(&self, ended: &mut Vec<Ended>) {
        let shard = self.counters.shard();
        for Ended { issue, moved, result } in ended.drain(..) {
            let (op, requests) = (issue.op as usize, issue.requests.as_slice().len() as u64);
            match result {
                Ok(()) => {
                    shard.add(IoCounters::COMPLETED, op, requests);
                    shard.add(IoCounters::BYTES, op, issue.len);
                    issue.finish(Ok(()));
                }
                Err(error) => {
                    shard.add(IoCounters::FAILED, op, requests);
                    self.count_error(&error);
                    issue.finish_short(moved, &error);
                }
            }
        }
    }

    /// Makes a step of each lane that was given permits, and of those that these give permits to.
    fn kick(&self, mut kicks: Kick) {
        while let Some(lane) = kicks.next() {
            self.counters.add(IoCounters::KICKED, 0, 1);
            let mut state = self.lock(lane);
            let (_, batch) = self.turn(&mut state, Caller::Quiet);
            drop(state);
            kicks.add(batch.kicks);
        }
    }

    /// Tells those who close, if the lane has become idle.
    pub(crate) fn tell_if_idle(&self, state: &LaneState<B>) {
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
