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
//! Locking: `io-queue`. Calls of the system and callbacks are outside it.
//!
//! Deliberately absent: workers that help other lanes, threads that come and go with the load.

use std::os::fd::OwnedFd;

use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Condvar};

use super::blocking::BlockingFile;
use super::core::{Backend, Core, EndedOperation, QueueState, RunContext};
use super::queued_device::QueuedDevice;
use super::transfer::Transfer;
use super::{MAX_SUBMISSION_QUEUES, Setup};
use crate::device::DeviceInfo;
use crate::priority::Priority;
use crate::queue::Limits;
use crate::waiter::Waiter;

/// Workers of a lane by default: enough to keep a drive busy, few enough for one lock.
const WORKERS_PER_QUEUE: usize = 8;
/// Least threads by default.
const MIN_THREADS: usize = 8;
/// Least workers of a lane: each class's minimum is at least one.
const MIN_WORKERS_PER_QUEUE: usize = Priority::COUNT;

/// The pool.
pub(crate) struct Threads {
    blocking: BlockingFile,
    /// One a lane: something may be fetched.
    work: Box<[Condvar]>,
    stopping: AtomicBool,
}

/// The pool's part of a lane's state.
#[derive(Default)]
pub(crate) struct ThreadsQueue {
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
) -> std::io::Result<QueuedDevice<Threads>> {
    let threads = match setup.threads {
        0 => (2 * forebay_base::memory::cpus()).max(MIN_THREADS),
        threads => threads,
    };
    let queues = match setup.queues {
        0 => threads / WORKERS_PER_QUEUE,
        queues => queues.min(threads),
    };
    let queues = queues.clamp(1, MAX_SUBMISSION_QUEUES);
    let threads = threads.max(queues * MIN_WORKERS_PER_QUEUE);
    let limits = Limits::for_workers(&setup.tunables, (threads / queues) as u32);
    let blocking = BlockingFile::new(file, &info);
    let work = (0..queues).map(|_| Condvar::new()).collect();
    let backend = Threads { blocking, work, stopping: AtomicBool::new(false) };
    let data = (0..queues).map(|_| ThreadsQueue::default()).collect();
    let core = Core::new(backend, info, (&setup.tunables, limits), data);
    let queued = QueuedDevice::new(Arc::clone(&core));
    for worker in 0..threads {
        core.spawn(&format!("io-worker-{worker}"), work_on, worker % queues)?;
    }
    Ok(queued)
}

/// A worker's life.
fn work_on(core: &Arc<Core<Threads>>, queue: usize) {
    let backend = &core.backend;
    let mut ended = Vec::with_capacity(1);
    let mut state = core.lock(queue);
    loop {
        let operation = core.next(&mut state);
        if operation.is_some() {
            go_on(core, &mut state, 1);
        }
        let deferred = core.take_deferred(&mut state, RunContext::MayBlock);
        if let Some(operation) = operation {
            drop(state);
            core.run_deferred(queue, deferred, RunContext::MayBlock);
            ended.push(backend.blocking.execute(Transfer::new(operation), &core.counters));
            state = tell(core, queue, &mut ended);
            continue;
        }
        if !deferred.is_empty() {
            drop(state);
            core.run_deferred(queue, deferred, RunContext::MayBlock);
            state = core.lock(queue);
            continue;
        }
        if backend.stopping.load(Ordering::Acquire) {
            return;
        }
        state.data.idle += 1;
        backend.work[queue].wait(&mut state);
        state.data.idle -= 1;
    }
}

/// Tells how an issue has ended, and locks the lane again.
fn tell<'a>(
    core: &'a Core<Threads>,
    queue: usize,
    ended: &mut Vec<EndedOperation>,
) -> forebay_base::sync::MutexGuard<'a, QueueState<Threads>> {
    let mut state = core.lock(queue);
    core.ended(&mut state, ended);
    // Before the callbacks: others need not wait for them.
    let ((), deferred) = core.run(&mut state, RunContext::MayBlock);
    let finished = ended.len();
    drop(state);
    core.run_deferred(queue, deferred, RunContext::MayBlock);
    core.finish(ended);
    let mut state = core.lock(queue);
    state.callbacks_returned(finished);
    core.notify_if_idle(&state);
    state
}

/// Has up to `most` workers that are idle go on with the lane's step; if there are none, or nothing is left
/// to do, ends it.
fn go_on(core: &Core<Threads>, state: &mut QueueState<Threads>, most: usize) {
    let wanted = queued(state).min(state.data.idle).min(most);
    if wanted == 0 {
        core.release_unused(state);
    }
    for _ in 0..wanted {
        core.backend.work[state.index()].notify_one();
    }
}

/// Requests that wait in a lane.
fn queued(state: &QueueState<Threads>) -> usize {
    Priority::ALL.into_iter().map(|class| state.sq.queued(class)).sum()
}

impl Backend for Threads {
    type QueueData = ThreadsQueue;
    type FollowUp = ();

    fn dispatch(core: &Core<Self>, state: &mut QueueState<Self>, _caller: RunContext) {
        go_on(core, state, usize::MAX);
    }

    fn follow_up(_core: &Core<Self>, _queue: usize, (): ()) {}

    fn help(_core: &Core<Self>, _queue: usize, _waiter: &Waiter) {
        // The workers bring it about.
    }

    fn wake_helper(_core: &Core<Self>, _queue: usize) {}

    fn run_async(core: &Core<Self>, state: &mut QueueState<Self>) {
        // If none is idle, the next that becomes free comes by.
        core.backend.work[state.index()].notify_one();
    }

    fn blocking(&self) -> Option<&BlockingFile> {
        Some(&self.blocking)
    }

    fn stop(core: &Core<Self>) {
        core.backend.stopping.store(true, Ordering::Release);
        for queue in 0..core.queues() {
            let _state = core.lock(queue);
            core.backend.work[queue].notify_all();
        }
    }
}
