//! What all backends share: checks, lanes, permits, room, closing.
//!
//! A request is checked, pushed into the queue of the submitter's lane, and issued by the backend
//! as permits and the backend's room allow. Ends come back in batches: their permits return under
//! the lane's lock, then their callbacks run outside it.
//!
//! Invariants:
//! * A lane whose lock is free has made its step: nothing waits in its queue that could be issued. So
//!   whoever changes something that may let an issue go (a push, a permit that returns, a kick) makes a step ([`Core::leave`]) as it unlocks.
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

use crate::buffer::Payload;
use crate::completion::in_callback;
use crate::counters::IoCounters;
use crate::device::{Device, DeviceInfo, DeviceStats, Engine, Health};
use crate::error::{Error, ErrorKind};
use crate::priority::Priority;
use crate::queue::{Issue, Kick, Lane, Limits, MAX_LANES, Permits, Pieces};
use crate::request::{Home, Op, Request};
use crate::tunables::IoTunables;
use crate::waiter::Waiter;

/// What does the work that the queues hand out.
pub(crate) trait Backend: Send + Sync + Sized + 'static {
    /// Its part of a lane, under the lane's lock.
    type Lane: Send;
    /// What is to be done once the lane's lock is free.
    type Outside;

    /// Issues what may be issued ([`Core::next`]) and gets it going. `driven`: the caller is the
    /// thread that drives this lane, which will see to the second itself.
    fn begin(core: &Core<Self>, state: &mut LaneState<Self>, driven: bool) -> Self::Outside;

    /// Does what `begin` left, without the lane's lock.
    fn outside(core: &Core<Self>, lane: usize, rest: Self::Outside);

    /// Lends the calling thread to a lane.
    fn help(core: &Core<Self>, lane: usize, waiter: &Waiter);

    /// A request of this lane has ended elsewhere; somebody who helps may be waiting for it.
    fn nudge(core: &Core<Self>, lane: usize);

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
    errors: AtomicU64,
    gone: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A lane, and those who wait for something of it.
pub(crate) struct LaneSlot<B: Backend> {
    state: Mutex<LaneState<B>>,
    /// Room in a queue, or the lane's last end.
    changed: Condvar,
}

/// What a lane's lock protects.
pub(crate) struct LaneState<B: Backend> {
    pub(crate) queue: Lane,
    pub(crate) own: B::Lane,
    index: usize,
    closed: bool,
    /// Threads that wait for `changed`.
    waiting: usize,
    /// See the module's head.
    finishing: usize,
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
    fn is_idle(&self) -> bool {
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
        tunables: &Arc<IoTunables>,
        own: Vec<B::Lane>,
    ) -> Arc<Self> {
        assert!(!own.is_empty() && own.len() <= MAX_LANES, "{} lanes", own.len());
        let lanes = own.len();
        Arc::new_cyclic(|core: &Weak<Self>| {
            let slot = |(index, own)| {
                let home = Weak::clone(core) as Weak<dyn Home>;
                let queue = Lane::new(index, home, Arc::clone(tunables));
                let state =
                    LaneState { queue, own, index, closed: false, waiting: 0, finishing: 0 };
                let state = Mutex::named("io-lane", state);
                CachePadded::new(LaneSlot { state, changed: Condvar::new() })
            };
            Self {
                backend,
                info,
                counters: IoCounters::new(),
                permits: Permits::new(Limits::new(tunables), lanes),
                lanes: own.into_iter().enumerate().map(slot).collect(),
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

    /// Where the calling thread submits, and whether it is that lane's driver.
    fn lane_of_caller(&self) -> (usize, bool) {
        let (core, lane) = DRIVING.with(Cell::get);
        match core == std::ptr::from_ref(self).addr() {
            true => (lane, true),
            false => (thread_slot().index(self.lanes.len()), false),
        }
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

    fn submit_all(&self, requests: impl Iterator<Item = Request>) {
        let (lane, driven) = self.lane_of_caller();
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
            match self.accept(&mut state_now, request, over) {
                Ok(()) => state = Some(state_now),
                Err(Refused::Closed(request)) => {
                    state = Some(state_now);
                    let error = self.refusal(&request, ErrorKind::Closed, CLOSED);
                    refused.push((request, error));
                }
                Err(Refused::Full(request)) => {
                    // What was taken so far must go its way before this thread waits.
                    self.leave(state_now, driven);
                    match self.accept_when_room(lane, request) {
                        Ok(guard) => state = Some(guard),
                        Err(request) => {
                            let error = self.refusal(&request, ErrorKind::Closed, CLOSED);
                            refused.push((request, error));
                        }
                    }
                }
            }
        }
        if let Some(state) = state {
            self.leave(state, driven);
        }
        for (request, error) in refused {
            self.counters.add(IoCounters::REFUSED, 0, 1);
            request.finish(Err(error));
        }
    }

    /// Makes a step of a lane: issues what may be issued, gets it going, unlocks, and does what is
    /// left to do without the lock.
    pub(crate) fn leave(&self, mut state: MutexGuard<'_, LaneState<B>>, driven: bool) {
        let lane = state.index;
        let (outside, batch) = self.turn(&mut state, driven);
        drop(state);
        B::outside(self, lane, outside);
        self.settle(lane, batch);
    }

    /// The part of a step that is under the lock.
    pub(crate) fn turn(&self, state: &mut LaneState<B>, driven: bool) -> (B::Outside, Batch) {
        let outside = B::begin(self, state, driven);
        (outside, self.collect(state))
    }

    /// What the queue wants to be told without the lock.
    pub(crate) fn collect(&self, state: &mut LaneState<B>) -> Batch {
        let cancelled = state.queue.take_cancelled();
        state.finishing += cancelled.len();
        Batch { kicks: state.queue.take_kicks(), cancelled }
    }

    /// Tells it.
    pub(crate) fn settle(&self, lane: usize, batch: Batch) {
        let Batch { kicks, cancelled } = batch;
        self.tell_cancelled(lane, cancelled);
        self.kick(kicks);
    }

    /// The next issue of a lane. To be called until there is none, or by every thread that becomes
    /// free.
    #[inline]
    pub(crate) fn next(&self, state: &mut LaneState<B>) -> Option<Issue> {
        let issue = state.queue.next(&self.permits)?;
        if state.waiting > 0 {
            self.lanes[state.index].changed.notify_all();
        }
        let shard = self.counters.shard();
        shard.add(IoCounters::ISSUED, issue.priority.index(), 1);
        if let Pieces::Many(requests) = &issue.requests {
            shard.add(IoCounters::MERGED, 0, requests.len() as u64 - 1);
        }
        Some(issue)
    }

    /// Ends what was taken back.
    fn tell_cancelled(&self, lane: usize, cancelled: Vec<Request>) {
        if cancelled.is_empty() {
            return;
        }
        let count = cancelled.len();
        for request in cancelled {
            self.counters.add(IoCounters::CANCELLED, request.priority().index(), 1);
            let text = "taken back before it was issued";
            let error = self.refusal(&request, ErrorKind::Cancelled, text);
            request.finish(Err(error));
        }
        let mut state = self.lock(lane);
        state.told(count);
        self.tell_if_idle(&state);
        drop(state);
        B::nudge(self, lane);
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

    /// Makes a step of each lane that was given permits.
    fn kick(&self, kicks: Kick) {
        for lane in kicks {
            self.counters.add(IoCounters::KICKED, 0, 1);
            let state = self.lock(lane);
            self.leave(state, false);
        }
    }

    /// Tells those who close, if the lane has become idle.
    pub(crate) fn tell_if_idle(&self, state: &LaneState<B>) {
        if state.closed && state.is_idle() {
            self.lanes[state.index].changed.notify_all();
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

/// What who comes too late is told.
const CLOSED: &str = "the device is closed; open it again";

enum Refused {
    Closed(Request),
    Full(Request),
}

impl<B: Backend> Core<B> {
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
    ) -> Result<MutexGuard<'_, LaneState<B>>, Request> {
        self.counters.add(IoCounters::QUEUE_FULL, request.priority().index(), 1);
        let mut state = self.lock(lane);
        loop {
            match self.accept(&mut state, request, false) {
                Ok(()) => return Ok(state),
                Err(Refused::Closed(request)) => return Err(request),
                Err(Refused::Full(back)) => request = back,
            }
            state.waiting += 1;
            self.lanes[lane].changed.wait(&mut state);
            state.waiting -= 1;
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
        let aligned =
            |payload: &Payload| payload.bytes().as_ptr().addr().is_multiple_of(MEMORY_ALIGN);
        if info.direct && !request.payload().is_none_or(aligned) {
            let text =
                format!("memory for direct I/O must be at a multiple of {MEMORY_ALIGN} bytes");
            return refuse(ErrorKind::InvalidRequest, &text);
        }
        Ok(())
    }

    fn refusal(&self, request: &Request, kind: ErrorKind, text: &str) -> Error {
        let range = (request.offset(), request.len());
        Error::new(kind, request.op(), &self.info.name, range, text)
    }

    /// What a waiter keeps to find the lane again.
    fn place(&self, lane: usize) -> usize {
        std::ptr::from_ref(self).addr() | (lane + 1)
    }

    fn help(&self, waiter: &Waiter) {
        let place = waiter.place();
        let lane = place.wrapping_sub(std::ptr::from_ref(self).addr()).wrapping_sub(1);
        if lane < self.lanes.len() {
            B::help(self, lane, waiter);
        }
    }

    fn refuse_from_now_on(&self) {
        for slot in &self.lanes {
            let mut state = slot.state.lock();
            state.closed = true;
            slot.changed.notify_all();
        }
    }

    fn close(&self) {
        self.refuse_from_now_on();
        if in_callback() {
            // The callback is among what would be waited for.
            return;
        }
        for slot in &self.lanes {
            let mut state = slot.state.lock();
            while !state.is_idle() {
                slot.changed.wait(&mut state);
            }
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        B::stop(self);
        for thread in threads {
            // What went wrong in it was told by the panic hook.
            let _ = thread.join();
        }
    }
}

/// What memory for direct I/O is aligned to at least, in bytes.
const MEMORY_ALIGN: usize = 512;

impl<B: Backend> Home for Core<B> {
    fn requeue(&self, id: u64, priority: Option<Priority>) {
        let mut state = self.lock(Lane::lane_of(id));
        if state.queue.requeue(id, priority) {
            if priority.is_some() {
                self.counters.add(IoCounters::RAISED, 0, 1);
            }
            self.leave(state, false);
        }
    }
}

/// A core with its owner: dropping it closes.
pub(crate) struct Queued<B: Backend>(Arc<Core<B>>);

impl<B: Backend> Queued<B> {
    pub(crate) fn new(core: Arc<Core<B>>) -> Self {
        Self(core)
    }
}

impl<B: Backend> Device for Queued<B> {
    fn submit(&self, request: Request) {
        self.0.submit_all(std::iter::once(request));
    }

    fn submit_all(&self, requests: &mut Vec<Request>) {
        self.0.submit_all(requests.drain(..));
    }

    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn health(&self) -> Health {
        if self.0.gone.load(Ordering::Relaxed) {
            return Health::Gone;
        }
        match self.0.errors.load(Ordering::Relaxed) {
            0 => Health::Healthy,
            errors => Health::Degraded { errors },
        }
    }

    fn stats(&self) -> DeviceStats {
        let counters = self.0.counters.snapshot();
        let counters = counters.into_iter().map(|c| (c.name, c.label.unwrap_or(""), c.value));
        DeviceStats {
            engine: self.0.backend.engine(&self.0.info.engine),
            counters: counters.collect(),
        }
    }

    fn help(&self, waiter: &Waiter) {
        self.0.help(waiter);
    }

    fn close(&self) {
        self.0.close();
    }
}

impl<B: Backend> Drop for Queued<B> {
    fn drop(&mut self) {
        self.0.close();
        if in_callback() {
            // Its threads cannot be joined here; somebody else waits for the rest.
            let core = Arc::clone(&self.0);
            let _ = thread::spawn_named("io-close", move || core.close());
        }
    }
}
