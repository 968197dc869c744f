//! The backend over a thread pool and blocking calls.
//!
//! Each queue has its own workers, which fetch operations from it directly. A worker that fetched
//! one wakes the next, as long as more may be fetched; so a run passes from worker to worker. If
//! all others are busy or nothing is left, the last worker cannot end the run with `None`. Then it
//! releases the queue's unused permits ([`Core::release_unused`]).
//!
//! Minimums of classes are reduced to fit among a queue's workers ([`Limits::for_workers`]). With
//! more reserved permits than workers, one busy class could occupy all workers.
//!
//! Locking: `io-submission-queue`. System calls and callbacks are outside it.
//!
//! Workers do not help other queues, and their number does not follow the load.

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

/// Default number of workers per queue: enough to keep a drive busy, few enough for one lock.
const WORKERS_PER_QUEUE: usize = 8;
/// Least number of threads by default.
const MIN_THREADS: usize = 8;
/// Least number of workers per queue: each class's minimum is at least one.
const MIN_WORKERS_PER_QUEUE: usize = Priority::COUNT;

/// The thread pool.
pub(crate) struct Threads {
    blocking: BlockingFile,
    /// By queue: an operation may be fetched.
    work: Box<[Condvar]>,
    stopping: AtomicBool,
}

/// The pool's data of one queue.
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
        core.spawn(&format!("io-worker-{worker}"), worker_loop, worker % queues)?;
    }
    Ok(queued)
}

/// The loop of a worker.
fn worker_loop(core: &Arc<Core<Threads>>, queue: usize) {
    let backend = &core.backend;
    let mut ended = Vec::with_capacity(1);
    let mut state = core.lock(queue);
    loop {
        let operation = core.next(&mut state);
        if operation.is_some() {
            wake_workers(core, &mut state, 1);
        }
        let deferred = core.take_deferred(&mut state, RunContext::MayBlock);
        if let Some(operation) = operation {
            drop(state);
            core.run_deferred(queue, deferred, RunContext::MayBlock);
            ended.push(backend.blocking.execute(Transfer::new(operation), &core.counters));
            state = complete(core, queue, &mut ended);
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

/// Completes operations that ended, and locks the queue again.
fn complete<'a>(
    core: &'a Core<Threads>,
    queue: usize,
    ended: &mut Vec<EndedOperation>,
) -> forebay_base::sync::MutexGuard<'a, QueueState<Threads>> {
    let mut state = core.lock(queue);
    core.ended(&mut state, ended);
    // Before the callbacks, so that others need not wait for them.
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

/// Wakes up to `most` idle workers to continue the run. If there are none, or nothing is queued,
/// ends the run.
fn wake_workers(core: &Core<Threads>, state: &mut QueueState<Threads>, most: usize) {
    let wanted = queued(state).min(state.data.idle).min(most);
    if wanted == 0 {
        core.release_unused(state);
    }
    for _ in 0..wanted {
        core.backend.work[state.index()].notify_one();
    }
}

/// Returns the number of queued requests.
fn queued(state: &QueueState<Threads>) -> usize {
    Priority::ALL.into_iter().map(|class| state.sq.queued(class)).sum()
}

impl Backend for Threads {
    type QueueData = ThreadsQueue;
    type FollowUp = ();

    fn dispatch(core: &Core<Self>, state: &mut QueueState<Self>, _caller: RunContext) {
        wake_workers(core, state, usize::MAX);
    }

    fn follow_up(_core: &Core<Self>, _queue: usize, (): ()) {}

    fn help(_core: &Core<Self>, _queue: usize, _waiter: &Waiter) {
        // The workers need no help.
    }

    fn wake_helper(_core: &Core<Self>, _queue: usize) {}

    fn run_async(core: &Core<Self>, state: &mut QueueState<Self>) {
        // If no worker is idle, the next one that becomes free looks at the queue.
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

    fn close_file(core: &Core<Self>) {
        core.backend.blocking.close();
    }
}
