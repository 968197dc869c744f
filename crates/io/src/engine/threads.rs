//! The backend over a pool of threads and blocking calls.
//!
//! Each lane has workers of its own, which fetch from its queue themselves: there is no second
//! queue. A worker that has fetched wakes the next, as long as there is something to fetch; so a step of a
//! lane goes from worker to worker. The last of them, if it has not come to the end of the step because all
//! others are busy or nothing is left to fetch, gives back what the lane has of permits ([`Core::rest`]).
//!
//! Minimums of classes are made to fit among a lane's workers ([`Limits::for_workers`]): with more
//! reserved permits than workers, a class that is never short of requests would have all workers.
//!
//! Locking: `io-lane`. Calls of the system and callbacks are outside it.
//!
//! Deliberately absent: workers that help other lanes, threads that come and go with the load.

use std::os::fd::OwnedFd;

use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Condvar};

use super::blocking::Blocking;
use super::core::{Backend, Caller, Core, Ended, LaneState};
use super::queued::Queued;
use super::transfer::Transfer;
use super::{MAX_LANES, Setup};
use crate::device::DeviceInfo;
use crate::priority::Priority;
use crate::queue::Limits;
use crate::waiter::Waiter;

/// Workers of a lane by default: enough to keep a drive busy, few enough for one lock.
const WORKERS_PER_LANE: usize = 8;
/// Least threads by default.
const MIN_THREADS: usize = 8;
/// Least workers of a lane: each class's minimum is at least one.
const MIN_PER_LANE: usize = Priority::COUNT;

/// The pool.
pub(crate) struct Threads {
    medium: Blocking,
    /// One a lane: something may be fetched.
    work: Box<[Condvar]>,
    stopping: AtomicBool,
}

/// The pool's part of a lane's state.
#[derive(Default)]
pub(crate) struct ThreadsLane {
    idle: usize,
}

/// Starts the workers.
///
/// # Errors
/// If the system refuses a thread.
pub(super) fn start(
    file: OwnedFd,
    info: DeviceInfo,
    setup: &Setup,
) -> std::io::Result<Queued<Threads>> {
    let threads = match setup.threads {
        0 => (2 * forebay_base::memory::cpus()).max(MIN_THREADS),
        threads => threads,
    };
    let lanes = match setup.lanes {
        0 => threads / WORKERS_PER_LANE,
        lanes => lanes.min(threads),
    };
    let lanes = lanes.clamp(1, MAX_LANES);
    let threads = threads.max(lanes * MIN_PER_LANE);
    let limits = Limits::for_workers(&setup.tunables, (threads / lanes) as u32);
    let medium = Blocking::new(file, &info);
    let work = (0..lanes).map(|_| Condvar::new()).collect();
    let backend = Threads { medium, work, stopping: AtomicBool::new(false) };
    let own = (0..lanes).map(|_| ThreadsLane::default()).collect();
    let core = Core::new(backend, info, (&setup.tunables, limits), own);
    let queued = Queued::new(Arc::clone(&core));
    for worker in 0..threads {
        core.spawn(&format!("io-worker-{worker}"), work_on, worker % lanes)?;
    }
    Ok(queued)
}

/// A worker's life.
fn work_on(core: &Arc<Core<Threads>>, lane: usize) {
    let backend = &core.backend;
    let mut ended = Vec::with_capacity(1);
    let mut state = core.lock(lane);
    loop {
        let issue = core.next(&mut state);
        if issue.is_some() {
            go_on(core, &mut state, 1);
        }
        let batch = core.collect(&mut state, Caller::Free);
        if let Some(issue) = issue {
            drop(state);
            core.settle(lane, batch, Caller::Free);
            ended.push(backend.medium.execute(Transfer::new(issue), &core.counters));
            state = tell(core, lane, &mut ended);
            continue;
        }
        if !batch.is_empty() {
            drop(state);
            core.settle(lane, batch, Caller::Free);
            state = core.lock(lane);
            continue;
        }
        if backend.stopping.load(Ordering::Acquire) {
            return;
        }
        state.own.idle += 1;
        backend.work[lane].wait(&mut state);
        state.own.idle -= 1;
    }
}

/// Tells how an issue has ended, and locks the lane again.
fn tell<'a>(
    core: &'a Core<Threads>,
    lane: usize,
    ended: &mut Vec<Ended>,
) -> forebay_base::sync::MutexGuard<'a, LaneState<Threads>> {
    let mut state = core.lock(lane);
    core.ended(&mut state, ended);
    // Before the callbacks: others need not wait for them.
    let ((), batch) = core.turn(&mut state, Caller::Free);
    let told = ended.len();
    drop(state);
    core.settle(lane, batch, Caller::Free);
    core.finish(ended);
    let mut state = core.lock(lane);
    state.told(told);
    core.tell_if_idle(&state);
    state
}

/// Has up to `most` workers that are idle go on with the lane's step; if there are none, or nothing is left
/// to do, ends it.
fn go_on(core: &Core<Threads>, state: &mut LaneState<Threads>, most: usize) {
    let wanted = queued(state).min(state.own.idle).min(most);
    if wanted == 0 {
        core.rest(state);
    }
    for _ in 0..wanted {
        core.backend.work[state.index()].notify_one();
    }
}

/// Requests that wait in a lane.
fn queued(state: &LaneState<Threads>) -> usize {
    Priority::ALL.into_iter().map(|class| state.queue.queued(class)).sum()
}

impl Backend for Threads {
    type Lane = ThreadsLane;
    type Outside = ();

    fn begin(core: &Core<Self>, state: &mut LaneState<Self>, _caller: Caller) {
        go_on(core, state, usize::MAX);
    }

    fn outside(_core: &Core<Self>, _lane: usize, (): ()) {}

    fn help(_core: &Core<Self>, _lane: usize, _waiter: &Waiter) {
        // The workers bring it about.
    }

    fn nudge(_core: &Core<Self>, _lane: usize) {}

    fn summon(core: &Core<Self>, state: &mut LaneState<Self>) {
        // If none is idle, the next that becomes free comes by.
        core.backend.work[state.index()].notify_one();
    }

    fn blocking(&self) -> Option<&Blocking> {
        Some(&self.medium)
    }

    fn stop(core: &Core<Self>) {
        core.backend.stopping.store(true, Ordering::Release);
        for lane in 0..core.lanes() {
            let _state = core.lock(lane);
            core.backend.work[lane].notify_all();
        }
    }
}
